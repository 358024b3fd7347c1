//! Changes of modems at run time: keys, by the API and by a reload, and the addresses behind them.

use anyhow::Context as _;
use bywash_api::{CpesChanged, KeysChanged};
use bywash_config::count;
use bywash_config::{self as config, Config};
use bywash_docsis::cpe::{Cpe, Learning};
use bywash_docsis::group::{Group, Mac, ModemConfig};
use bywash_docsis::keys::Rollover;
use bywash_docsis::seal::KeyPair;
use bywash_sync::lock;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::hex;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait of a request for the workers to take the keys.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which a request checks whether they have.
const LOOK: Duration = Duration::from_millis(1);

/// Modems of a group.
pub struct Modems {
    group: Arc<Group>,
    state: Mutex<State>,
}

struct State {
    rollover: Rollover,
    learning: Learning,
    /// Modems as the configuration last had them.
    configured: config::Modems,
}

/// Line of a request for a change of keys.
struct Line {
    modem: usize,
    sequence: u8,
    key: Option<KeyPair>,
}

impl Modems {
    pub fn new(group: Arc<Group>, rollover: Rollover, learning: Learning, configured: config::Modems) -> Self {
        Self { group, state: Mutex::new(State { rollover, learning, configured }) }
    }

    /// Carries changes on and learns addresses; returns whether there were any.
    pub fn tick(&self) -> bool {
        let mut state = lock(&self.state);
        let learned = state.learning.tick(Instant::now());
        state.rollover.pending() > 0 && state.rollover.tick() > 0 || learned
    }

    /// Returns the addresses behind the modems, in order.
    pub fn cpes(&self) -> Vec<(Mac, Cpe)> {
        let mut all: Vec<_> = lock(&self.state).learning.all().collect();
        all.sort_unstable_by_key(|(mac, cpe)| (cpe.modem, *mac));
        all
    }

    /// Adds addresses behind modems, one per line: `ADDRESS MODEM`; or removes them: `ADDRESS`. If a line is refused,
    /// nothing is changed.
    pub fn change_cpes(&self, lines: &str, add: bool) -> Result<CpesChanged, String> {
        let numbered = || lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let mac = |text: &str| {
            text.parse().map_err(|_| format!("invalid address `{text}`: expected one such as 02:00:00:00:00:01"))
        };
        let parse = |line: &str| -> Result<(Mac, Option<usize>), String> {
            let words: Vec<&str> = line.split_whitespace().collect();
            match (&words[..], add) {
                ([cpe, modem], true) => {
                    let (MacAddr(cpe), modem): (MacAddr, MacAddr) = (mac(cpe)?, mac(modem)?);
                    let of_group = self.group.modem_at(modem.0).filter(|_| modem.0[0] & 1 == 0);
                    let modem = of_group.ok_or_else(|| format!("no modem of the group has address {modem}"))?;
                    Ok((cpe, Some(modem)))
                }
                ([cpe], false) => Ok((mac(cpe)?.0, None)),
                (_, true) => Err("expected an address and that of its modem".into()),
                (_, false) => Err("expected an address".into()),
            }
        };
        let parsed = numbered().map(|(at, line)| parse(line).map_err(|why| format!("line {}: {why}", at + 1)));
        let parsed = parsed.collect::<Result<Vec<_>, String>>()?;
        let changed = lock(&self.state).learning.change(&parsed);
        changed.map_err(|(index, why)| {
            let line = numbered().nth(index).map_or(0, |(at, _)| at + 1);
            format!("line {line}: {}: {why}", MacAddr(parsed[index].0))
        })?;
        Ok(CpesChanged { changed: parsed.len() as u64 })
    }

    /// Changes keys, one per line: `MAC SEQUENCE KEY IV` to load a key, `MAC SEQUENCE` for one that is loaded. They are
    /// used from then on unless `later` is true. The lines before a refused one are carried out.
    pub fn change(&self, lines: &str, later: bool) -> Result<KeysChanged, String> {
        let numbered = || lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let parsed = numbered().map(|(at, line)| self.parse(line).map_err(|why| format!("line {}: {why}", at + 1)));
        let parsed = parsed.collect::<Result<Vec<Line>, String>>()?;
        {
            let mut state = lock(&self.state);
            for (Line { modem, sequence, key }, (at, _)) in parsed.iter().zip(numbered()) {
                let changed = state.rollover.change(*modem, *sequence, *key, !later);
                changed.map_err(|why| format!("line {}: {why}", at + 1))?;
            }
        }
        let start = Instant::now();
        let under_way = loop {
            let pending = lock(&self.state).rollover.tick();
            if pending == 0 || start.elapsed() > PATIENCE {
                break pending;
            }
            std::thread::sleep(LOOK);
        };
        Ok(KeysChanged { changed: parsed.len() as u64, under_way: under_way as u64 })
    }

    fn parse(&self, line: &str) -> Result<Line, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (mac, sequence, key) = match words[..] {
            [mac, sequence] => (mac, sequence, None),
            [mac, sequence, key, iv] => (mac, sequence, Some((block(key)?, block(iv)?))),
            _ => return Err("expected an address, a sequence number, and a key and its initialization vector".into()),
        };
        // Errors repeat no word that may be a key in the wrong place.
        let mac: MacAddr = mac.parse().map_err(|_| "invalid address: expected one such as 02:00:00:00:00:01")?;
        let modem = self.group.modem_at(mac.0).ok_or_else(|| format!("no modem of the group has address {mac}"))?;
        let sequence = sequence.parse().map_err(|_| "invalid sequence number: expected 0 to 15")?;
        Ok(Line { modem, sequence, key })
    }

    /// Returns a line about each kind of change in the group's file of modems: keys, and addresses behind modems; with
    /// `apply`, applies them. Errors if anything else in the file has changed.
    pub fn reread(&self, number: usize, config: &Config, apply: bool) -> anyhow::Result<Vec<String>> {
        let read = config.groups[number - 1].all_modems(config)?;
        let modems = &read.modems;
        let mut state = lock(&self.state);
        let (mut all, known) = (vec![], &state.configured.modems);
        anyhow::ensure!(
            read.kinds == state.configured.kinds,
            "group {number}: the flows of modems are read only at startup; restart bywash"
        );
        anyhow::ensure!(
            modems.len() == known.len(),
            "group {number}: {} instead of {}: modems are read only at startup; restart bywash",
            count(modems.len(), "modem"),
            known.len()
        );
        for (at, (was, is)) in known.iter().zip(modems).enumerate() {
            let mac = MacAddr(is.mac);
            let same = ModemConfig { key: was.key, sequence: was.sequence, cpes: was.cpes.clone(), ..is.clone() };
            anyhow::ensure!(same == *was, "group {number}: modem {mac} is read only at startup; restart bywash");
            if is.sequence == was.sequence {
                anyhow::ensure!(
                    is.key == was.key,
                    "group {number}: modem {mac} has another key of the same sequence number"
                );
                continue;
            }
            if state.rollover.uses(at, is.sequence, &is.key) {
                // The API has changed it before the file.
                continue;
            }
            let check = state.rollover.check(at, is.sequence, true);
            check.with_context(|| format!("group {number}: modem {mac}"))?;
            all.push(at);
        }
        let cpes_changed = known.iter().zip(modems).any(|(was, is)| was.cpes != is.cpes);
        let mut changes = vec![];
        if !all.is_empty() {
            changes.push(format!("group {number}: new keys of {}", count(all.len(), "modem")));
        }
        if cpes_changed {
            changes.push(format!("group {number}: other addresses behind modems"));
        }
        if apply {
            for &at in &all {
                let ModemConfig { key, sequence, .. } = &modems[at];
                state.rollover.change(at, *sequence, Some(*key), true)?;
            }
            if cpes_changed {
                let cpes: Vec<_> = modems.iter().map(|modem| modem.cpes.clone()).collect();
                state.learning.configure(&cpes);
            }
            state.configured = read;
        }
        Ok(changes)
    }
}

/// Parses a key or initialization vector. The error does not repeat it.
fn block(text: &str) -> Result<[u8; 16], String> {
    let bytes = hex::decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "invalid key or initialization vector: expected 32 hex digits".into())
}
