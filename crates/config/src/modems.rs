//! File of modems: a line for each, with the columns that the first line names.

use crate::cmts::{Block, FlowConfig, GroupConfig};
use crate::model::Config;
use crate::text;
use bywash_docsis::channel::CHANNELS_MAX;
use bywash_docsis::cipher::derived_key;
use bywash_docsis::group::{MODEMS_MAX, ModemConfig};
use bywash_wire::ethernet::MacAddr;
use std::collections::HashSet;

/// Modem or multicast group of a file. `None`: as for a generated modem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModemLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// MAC address; a group address is that of a multicast group.
    pub mac: MacAddr,
    /// Security association identifier.
    pub said: Option<u16>,
    /// AES-128 key.
    pub key: Option<Block>,
    /// Initialization vector.
    pub iv: Option<Block>,
    /// Sequence number of the key.
    pub sequence: u8,
    /// Addresses behind the modem.
    pub cpes: Vec<MacAddr>,
    /// Bit mask of the channels that it receives; 0 for all.
    pub channels: u64,
    /// Names of its service flows; all if empty.
    pub flows: Vec<String>,
    /// Name of its profile; `None` for the first one.
    pub profile: Option<String>,
}

/// Line of a file that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// Problem, and what was expected.
    pub what: String,
}

/// Highest security association identifier.
const SAID_MAX: u16 = 16_383;

/// Names of the columns. The first is required.
const COLUMNS: [&str; 9] = ["mac", "said", "key", "iv", "sequence", "cpe", "channels", "flows", "profile"];

/// Parses the text of a file. The first line names the columns, in any order; `#` begins a comment. Errors with the
/// first invalid line.
pub fn modems(text: &str) -> Result<Vec<ModemLine>, WrongLine> {
    let content = |(at, line): (usize, &'_ str)| {
        let end = line.find('#').unwrap_or(line.len());
        (at + 1, line[..end].trim_end().len())
    };
    let mut lines = text.lines().enumerate().map(|all| (content(all), all.1)).filter(|((_, len), _)| *len > 0);
    let Some(((line, len), names)) = lines.next() else { return Ok(vec![]) };
    let columns = columns(&names[..len]).map_err(|what| WrongLine { line, what })?;
    let modem = |((line, len), values): ((usize, usize), &str)| {
        modem(line, &values[..len], &columns).map_err(|what| WrongLine { line, what })
    };
    lines.map(modem).collect()
}

/// Parses the first line: the index in [`COLUMNS`] of each column.
fn columns(names: &str) -> Result<Vec<usize>, String> {
    let mut columns = vec![];
    for (at, name) in names.split(',').map(str::trim).enumerate() {
        // Errors repeat no value: a key may be in the wrong place.
        let known = || format!("unknown name of column {}: expected some of {}", at + 1, COLUMNS.join(", "));
        let column = COLUMNS.iter().position(|known| *known == name).ok_or_else(known)?;
        if columns.contains(&column) {
            return Err(format!("column `{name}` twice"));
        }
        columns.push(column);
    }
    if columns.contains(&0) { Ok(columns) } else { Err("no column `mac`".into()) }
}

fn modem(line: usize, values: &str, columns: &[usize]) -> Result<ModemLine, String> {
    let found = values.split(',').count();
    if found != columns.len() {
        return Err(format!("{found} columns, expected {}, as in the first line", columns.len()));
    }
    let mut fields = [""; COLUMNS.len()];
    columns.iter().zip(values.split(',')).for_each(|(column, value)| fields[*column] = value.trim());
    let [mac, said, key, iv, sequence, cpe, channels, flows, profile] = fields;
    let block = |name: &str, value: &str| {
        let parsed = (!value.is_empty()).then(|| text::block(value).map(Block)).transpose();
        parsed.map_err(|expected| format!("invalid {name}: {expected}"))
    };
    Ok(ModemLine {
        line,
        mac: address(mac)?,
        said: (!said.is_empty()).then(|| number("said", said, SAID_MAX)).transpose()?,
        key: block("key", key)?,
        iv: block("iv", iv)?,
        sequence: if sequence.is_empty() { 0 } else { number("sequence", sequence, 15)? as u8 },
        cpes: cpe.split_whitespace().map(station).collect::<Result<_, _>>()?,
        channels: channels.split_whitespace().try_fold(0, |mask, number| Ok::<_, String>(mask | channel(number)?))?,
        flows: flows.split_whitespace().map(str::to_owned).collect(),
        profile: (!profile.is_empty()).then(|| profile.to_owned()),
    })
}

/// Parses the address of a modem or multicast group.
fn address(text: &str) -> Result<MacAddr, String> {
    match text.parse() {
        Ok(group @ MacAddr([first, ..])) if first & 1 != 0 => Ok(group),
        _ => text::mac(text).map_err(|expected| format!("invalid mac: {expected}")),
    }
}

fn station(text: &str) -> Result<MacAddr, String> {
    text::mac(text).map_err(|expected| format!("invalid cpe: {expected}"))
}

/// Parses the number of a channel, from 1; returns its bit.
fn channel(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=CHANNELS_MAX).contains(number));
    number.map(|number| 1 << (number - 1)).ok_or_else(|| format!("invalid channel: expected 1 to {CHANNELS_MAX}"))
}

fn number(name: &str, value: &str, most: u16) -> Result<u16, String> {
    let parsed = value.parse().ok().filter(|number| *number <= most);
    parsed.ok_or_else(|| format!("invalid {name}: expected 0 to {most}"))
}

/// Number of generated modems of a group without file.
const GENERATED: usize = 300;

/// Modems of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modems {
    /// Modems in order.
    pub modems: Vec<ModemConfig>,
    /// Service flows of each kind of modem, as indices in the configuration. Kind 0 has all.
    pub kinds: Vec<Vec<usize>>,
}

/// Error of [`GroupConfig::all_modems`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {expected}")]
pub struct WrongModems {
    /// Key of the group that is wrong.
    pub key: &'static str,
    /// Problem.
    pub what: String,
    /// Expected content.
    pub expected: String,
}

impl Config {
    /// Returns the bits per symbol of the profile with the most; 0 without profiles.
    pub fn best_bits(&self) -> u8 {
        self.profiles.iter().map(|profile| profile.bits).max().unwrap_or(0)
    }
}

impl GroupConfig {
    /// Returns the number of generated modems.
    pub fn generated(&self) -> usize {
        self.modems.set().copied().unwrap_or(if self.file.is_some() { 0 } else { GENERATED })
    }

    /// Returns all modems of this group of `config`: the generated ones, with consecutive addresses and SAIDs and
    /// derived keys, then those of the file.
    pub fn all_modems(&self, config: &Config) -> Result<Modems, WrongModems> {
        let (channels, flows, profiles) = (config.cmts.channels.len(), &config.flows, &config.profiles);
        let first_bits = profiles.first().map_or(0, |profile| profile.bits);
        let wrong = |key, what: String, expected: &str| Err(WrongModems { key, what, expected: expected.into() });
        let first = self.mac.0.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        // Wider than SAIDs are: those beyond the range are found below.
        let said = |n: usize| usize::from(self.said) + n;
        let keys = |n: usize| (derived_key(&self.key.expose().0, n as u32), derived_key(&self.iv.expose().0, n as u32));
        let mut all = vec![];
        let mut kinds = vec![(0..flows.len()).filter(|at| !flows[*at].drop).collect::<Vec<_>>()];
        for n in 0..self.generated() {
            let [_, _, mac @ ..] = (first + n as u64).to_be_bytes();
            all.push((
                ModemConfig { mac, said: said(n) as u16, key: keys(n), bits: first_bits, ..ModemConfig::default() },
                said(n),
                0,
            ));
        }
        if let Some(file) = &self.file {
            let name = file.display();
            let text = match bywash_port::broker::read_to_string(file) {
                Ok(text) => text,
                Err(why) => return wrong("file", format!("cannot read {name}"), &why.to_string()),
            };
            let lines = match modems(&text) {
                Ok(lines) => lines,
                Err(WrongLine { line, what }) => return wrong("file", format!("{name}:{line}"), &what),
            };
            for modem in lines {
                let n = all.len();
                let said = modem.said.map_or_else(|| all.last().map_or(said(0), |(_, said, _)| said + 1), usize::from);
                let (key, iv) = keys(n);
                let key = (modem.key.map_or(key, |key| key.0), modem.iv.map_or(iv, |iv| iv.0));
                let ModemLine { line, mac, sequence, cpes, channels, flows: names, profile, .. } = modem;
                let of = match named(flows, &names) {
                    Ok(of) => of,
                    Err((what, expected)) => return wrong("file", format!("{name}:{line}: {what}"), &expected),
                };
                let kind = kinds.iter().position(|kind| *kind == of || of.is_empty()).unwrap_or(kinds.len());
                if kind == kinds.len() {
                    kinds.push(of);
                }
                let named = |name: &String| profiles.iter().find(|profile| profile.name == *name);
                let bits = match profile.as_ref().map(|name| named(name).ok_or(name)) {
                    None => first_bits,
                    Some(Ok(profile)) => profile.bits,
                    Some(Err(unknown)) => {
                        let what = format!("{name}:{line}: unknown profile {unknown}");
                        return wrong("file", what, "expected the name of a [[profile]]");
                    }
                };
                let cpes = cpes.iter().map(|cpe| cpe.0).collect();
                let said_16 = said as u16;
                let modem = ModemConfig { mac: mac.0, kind, said: said_16, key, sequence, cpes, channels, bits };
                all.push((modem, said, line));
            }
        }
        let at = |line: usize| match &self.file {
            Some(file) if line > 0 => format!("{}:{line}: ", file.display()),
            _ => String::new(),
        };
        let key = |line| if line > 0 { "file" } else { "modems" };
        if all.is_empty() {
            return wrong(key(usize::from(self.file.is_some())), "no modems".into(), "expected at least one");
        }
        if all.len() > MODEMS_MAX {
            let expected = format!("expected at most {MODEMS_MAX}");
            return wrong(key(usize::from(self.file.is_some())), format!("{} modems", all.len()), &expected);
        }
        if let Some((_, said, line)) = all.iter().find(|(_, said, _)| *said > usize::from(SAID_MAX)) {
            let what = format!("{}SAID {said} exceeds the range", at(*line));
            return wrong(key(*line), what, "expected SAIDs up to 16383");
        }
        let there = u64::MAX >> (CHANNELS_MAX - channels.clamp(1, CHANNELS_MAX));
        if let Some((_, _, line)) = all.iter().find(|(modem, ..)| modem.channels & !there != 0) {
            let what = format!("{}a channel that does not exist", at(*line));
            return wrong("file", what, &format!("expected 1 to {channels}"));
        }
        let (mut seen, mut saids) = (HashSet::new(), HashSet::new());
        for (modem, said, line) in &all {
            if !saids.insert(said) {
                let what = format!("{}SAID {said} is used twice", at(*line));
                return wrong(key(*line), what, "expected different SAIDs");
            }
            let mut macs = std::iter::once(&modem.mac).chain(&modem.cpes);
            if let Some(mac) = macs.find(|mac| !seen.insert(**mac)) {
                let what = format!("{}address {} is used twice", at(*line), MacAddr(*mac));
                return wrong(key(*line), what, "expected different addresses");
            }
        }
        Ok(Modems { modems: all.into_iter().map(|(modem, ..)| modem).collect(), kinds })
    }
}

/// Returns the indices of the flows with these names, in the order of the configuration. Errors with what is wrong and
/// what was expected.
fn named(flows: &[FlowConfig], names: &[String]) -> Result<Vec<usize>, (String, String)> {
    let mut found = vec![];
    for name in names {
        let of_name = flows.iter().position(|flow| flow.name == *name);
        let at = of_name.ok_or_else(|| (format!("unknown flow {name}"), "expected the name of a [[flow]]".into()))?;
        if flows[at].drop {
            return Err((format!("{name} is a filter"), "filters are those of all modems".into()));
        }
        if found.contains(&at) {
            return Err((format!("flow {name} is named twice"), "expected different flows".into()));
        }
        found.push(at);
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::time::{Duration, Instant};

    #[test]
    fn columns_may_be_in_any_order_and_empty() {
        let text = "# modems of the north\n\nsaid, mac ,sequence,key,iv,cpe,channels,flows,profile  # columns\n\
                    7,00:10:18:00:00:01,15,2b7e151628aed2a6abf7158809cf4f3c,,02:00:00:00:00:07  02:00:00:00:00:08,\
                    1 64,a b,A\n , 00:10:18:00:00:02,,,,,,,\n";
        let found = modems(text).unwrap();
        let key = Block(0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes());
        let first = ModemLine {
            line: 4,
            mac: MacAddr([0, 0x10, 0x18, 0, 0, 1]),
            said: Some(7),
            key: Some(key),
            iv: None,
            sequence: 15,
            cpes: vec![MacAddr([2, 0, 0, 0, 0, 7]), MacAddr([2, 0, 0, 0, 0, 8])],
            channels: 1 | 1 << 63,
            flows: vec!["a".into(), "b".into()],
            profile: Some("A".into()),
        };
        let second = ModemLine {
            line: 5,
            mac: MacAddr([0, 0x10, 0x18, 0, 0, 2]),
            said: None,
            key: None,
            sequence: 0,
            cpes: vec![],
            channels: 0,
            flows: vec![],
            profile: None,
            ..first.clone()
        };
        assert_eq!(found, [first, second]);
        assert_eq!(modems("mac\n02:00:00:00:00:01\nff:ff:ff:ff:ff:ff\n").unwrap().len(), 2);
        assert_eq!(modems("# nothing\n"), Ok(vec![]));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, line, part) in [
            ("mac,colour\n", 1, "unknown name of column 2"),
            ("said\n", 1, "no column `mac`"),
            ("mac,mac\n", 1, "column `mac` twice"),
            ("mac,said\n02:00:00:00:00:01\n", 2, "1 columns, expected 2"),
            ("mac\n\n02:00:00:00:00\n", 3, "invalid mac: "),
            ("mac,said\n02:00:00:00:00:01,16384\n", 2, "expected 0 to 16383"),
            ("mac,cpe\n02:00:00:00:00:01,ff:ff:ff:ff:ff:ff\n", 2, "not a group address"),
            ("mac,channels\n02:00:00:00:00:01,1 65\n", 2, "invalid channel: "),
            ("mac,sequence\n02:00:00:00:00:01,16\n", 2, "expected 0 to 15"),
        ] {
            let wrong = modems(text).unwrap_err();
            assert!(wrong.line == line && wrong.what.contains(part), "{text:?}: {wrong:?}");
        }
        // Keys are secrets: an error does not repeat them, not even in a wrong column.
        for text in ["mac,key\n02:00:00:00:00:01,5ec4e7\n", "mac,said\n02:00:00:00:00:01,5ec4e7\n", "5ec4e7,mac\n"] {
            let wrong = modems(text).unwrap_err();
            assert!(!wrong.what.contains("5ec4e7"), "{wrong:?}");
        }
    }

    #[test]
    fn modems_of_the_same_flows_are_of_a_kind() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("modems.csv");
        let text = format!(
            "mode = \"cmts\"\n[[port]]\nkind = \"null\"\nname = \"a\"\n[[port]]\nkind = \"null\"\nname = \"b\"\n\
             [[group]]\ninput = \"a\"\noutput = \"b\"\nmodems = 1\nfile = \"{}\"\n\
             [[flow]]\nname = \"none\"\ndrop = true\nproto = 17\n[[flow]]\nname = \"rest\"\n\
             [[flow]]\nname = \"voice\"\ndscp = 46\n[[flow]]\nname = \"gold\"\ndscp = 10\n",
            file.display()
        );
        let config = crate::Draft::text("t.toml", text).finish(None).unwrap();
        let read = |lines: &[&str]| {
            let lines = lines.iter().enumerate().map(|(n, flows)| format!("02:00:00:00:00:{n:02x},{flows}\n"));
            std::fs::write(&file, format!("mac,flows\n{}", lines.collect::<String>())).unwrap();
            config.groups[0].all_modems(&config)
        };
        let Modems { modems, kinds } = read(&["voice rest", "", "gold", "rest voice", "rest voice gold"]).unwrap();
        assert_eq!(kinds, [vec![1, 2, 3], vec![1, 2], vec![3]]);
        // The generated modem has all flows.
        assert_eq!(modems.iter().map(|modem| modem.kind).collect::<Vec<_>>(), [0, 1, 0, 2, 1, 0]);
        for (flows, what) in [
            ("rest silver", "unknown flow silver"),
            ("none", "none is a filter"),
            ("rest rest", "flow rest is named twice"),
        ] {
            let wrong = read(&["", flows]).unwrap_err();
            assert!(wrong.key == "file" && wrong.what.ends_with(&format!(":3: {what}")), "{wrong:?}");
        }
    }

    #[test]
    fn modems_have_the_bits_of_their_profile() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("modems.csv");
        let text = format!(
            "mode = \"cmts\"\n[[port]]\nkind = \"null\"\nname = \"a\"\n[[port]]\nkind = \"null\"\nname = \"b\"\n\
             [[group]]\ninput = \"a\"\noutput = \"b\"\nmodems = 1\nfile = \"{}\"\n\
             [[profile]]\nname = \"A\"\nbits = 8\n[[profile]]\nname = \"B\"\n",
            file.display()
        );
        let config = crate::Draft::text("t.toml", text).finish(None).unwrap();
        let read = |profile: &str| {
            std::fs::write(&file, format!("mac,profile\n02:00:00:00:00:01,{profile}\n")).unwrap();
            config.groups[0].all_modems(&config)
        };
        let bits = |profile: &str| read(profile).unwrap().modems.iter().map(|modem| modem.bits).collect::<Vec<_>>();
        assert_eq!([bits(""), bits("A"), bits("B")], [[8, 8], [8, 8], [8, 12]]);
        assert!(read("C").unwrap_err().what.ends_with(":2: unknown profile C"));
        assert_eq!(config.best_bits(), 12);
    }

    #[test]
    fn ten_thousand_modems_are_read() {
        let mut text = "mac,said,key,iv,sequence\n".to_owned();
        for n in 0..10_000u32 {
            let [_, a, b, c] = n.to_be_bytes();
            writeln!(text, "02:00:00:{a:02x}:{b:02x}:{c:02x},{n},{n:032x},{:032x},{}", n + 1, n % 16).unwrap();
        }
        let start = Instant::now();
        assert_eq!(modems(&text).unwrap().len(), 10_000);
        // The goal is a second. This takes some hundredths of one; a busy machine is allowed more.
        println!("10,000 modems after {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}
