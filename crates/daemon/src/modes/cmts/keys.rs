//! Changes of the modems' keys, by the API and by a reload.

use anyhow::Context as _;
use bywash_api::KeysChanged;
use bywash_config::GroupConfig;
use bywash_docsis::group::{Group, ModemConfig};
use bywash_docsis::keys::Rollover;
use bywash_docsis::seal::KeyPair;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::hex;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait of a request for the workers to take the keys.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which a request looks whether they have.
const LOOK: Duration = Duration::from_millis(1);

/// Keys of the modems of a group.
pub struct Keys {
    group: Arc<Group>,
    state: Mutex<State>,
}

struct State {
    rollover: Rollover,
    /// Modems as the configuration last had them.
    configured: Vec<ModemConfig>,
}

/// One line of a request.
struct Line {
    modem: usize,
    sequence: u8,
    key: Option<KeyPair>,
}

impl Keys {
    pub fn new(group: Arc<Group>, rollover: Rollover) -> Self {
        let configured = group.modems().to_vec();
        Self { group, state: Mutex::new(State { rollover, configured }) }
    }

    /// Carries changes on; returns whether there are any.
    pub fn tick(&self) -> bool {
        let mut state = self.state.lock().expect("keys");
        state.rollover.pending() > 0 && state.rollover.tick() > 0
    }

    /// Changes keys, one per line: `MAC SEQUENCE KEY IV` to load a key, `MAC SEQUENCE` for one that is loaded. They are
    /// used from then on unless `later` is true. The lines before a refused one are carried out.
    pub fn change(&self, lines: &str, later: bool) -> Result<KeysChanged, String> {
        let numbered = || lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let parsed = numbered().map(|(at, line)| self.parse(line).map_err(|why| format!("line {}: {why}", at + 1)));
        let parsed = parsed.collect::<Result<Vec<Line>, String>>()?;
        {
            let mut state = self.state.lock().expect("keys");
            for (Line { modem, sequence, key }, (at, _)) in parsed.iter().zip(numbered()) {
                let changed = state.rollover.change(*modem, *sequence, *key, !later);
                changed.map_err(|why| format!("line {}: {why}", at + 1))?;
            }
        }
        let start = Instant::now();
        let under_way = loop {
            let pending = self.state.lock().expect("keys").rollover.tick();
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
        let mac: MacAddr = mac.parse().map_err(|_| format!("`{mac}` is no address"))?;
        let modem = self.group.modem_at(mac.0).ok_or_else(|| format!("no modem of the group has address {mac}"))?;
        let sequence = sequence.parse().map_err(|_| format!("`{sequence}` is no sequence number: expected 0 to 15"))?;
        Ok(Line { modem, sequence, key })
    }

    /// Returns a line about the keys that the group's file of modems has changed, if any; with `apply`, rolls over to
    /// them. Errors if anything else in the file has changed.
    pub fn reread(&self, number: usize, config: &GroupConfig, apply: bool) -> anyhow::Result<Option<String>> {
        let modems = config.all_modems().map_err(|wrong| anyhow::anyhow!("{}: {}", wrong.what, wrong.expected))?;
        let mut state = self.state.lock().expect("keys");
        let (mut all, known) = (vec![], &state.configured);
        anyhow::ensure!(
            modems.len() == known.len(),
            "group {number}: {} modems instead of {}: modems are read when bywash starts; restart it",
            modems.len(),
            known.len()
        );
        for (at, (was, is)) in known.iter().zip(&modems).enumerate() {
            let mac = MacAddr(is.mac);
            let same = ModemConfig { key: was.key, sequence: was.sequence, ..is.clone() };
            anyhow::ensure!(same == *was, "group {number}: modem {mac} is read when bywash starts; restart it");
            if is.sequence == was.sequence {
                anyhow::ensure!(
                    is.key == was.key,
                    "group {number}: modem {mac} has another key of the same sequence number"
                );
                continue;
            }
            let check = state.rollover.check(at, is.sequence, true);
            check.with_context(|| format!("group {number}: modem {mac}"))?;
            all.push(at);
        }
        if all.is_empty() {
            return Ok(None);
        }
        if apply {
            for &at in &all {
                let ModemConfig { key, sequence, .. } = &modems[at];
                state.rollover.change(at, *sequence, Some(*key), true)?;
            }
            state.configured = modems;
        }
        Ok(Some(format!("group {number}: new keys of {} modems", all.len())))
    }
}

/// Parses a key or initialization vector. The error does not repeat it.
fn block(text: &str) -> Result<[u8; 16], String> {
    let bytes = hex::decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "invalid key or initialization vector: expected 32 hex digits".into())
}
