//! Reader of recorded counters: `perf stat -x` output, or JSON with stages.

use super::{AnalysisError, Counts, Event};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Counters of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Units counted separately: threads, CPUs, stages or functions.
    pub units: Vec<Unit>,
    /// Slots per cycle, if the file states them.
    pub slots_per_cycle: Option<f64>,
    /// Notes on the quality of the figures.
    pub notes: Vec<String>,
}

/// One separately counted unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unit {
    /// Name of the unit; empty if the file has only one.
    pub name: String,
    /// Worker number, if known.
    pub worker: Option<u64>,
    /// Event counts.
    pub counts: Counts,
    /// Packets handled, if known.
    pub packets: Option<u64>,
    /// Bursts handled, if known.
    pub bursts: Option<u64>,
    /// Location of each event in the file.
    places: BTreeMap<Event, String>,
    /// Events that were requested but not counted, with location and reason.
    uncounted: BTreeMap<Event, String>,
}

impl Unit {
    /// Returns the error's message with the location in the file.
    pub fn explain(&self, error: &AnalysisError) -> String {
        let of = if self.name.is_empty() { String::new() } else { format!("{}: ", self.name) };
        match error {
            AnalysisError::Missing { missing, .. } => {
                let why = missing.iter().filter_map(|event| self.uncounted.get(event)).map(|why| format!("; {why}"));
                format!("{of}{error}{}", why.collect::<String>())
            }
            AnalysisError::Impossible { event, .. } => match self.places.get(event) {
                Some(place) => format!("{place}: {of}{error}"),
                None => format!("{of}{error}"),
            },
        }
    }
}

/// Error in a file of counters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The file has no counters.
    #[error(
        "no counters in it: record some with `perf stat -x, -o FILE -e cycles,instructions,... -t THREAD sleep 10`"
    )]
    Empty,
    /// Line that is not in the format of perf.
    #[error("line {line}: {what}")]
    Line {
        /// Line number, starting at 1.
        line: usize,
        /// Description of the error.
        what: String,
    },
    /// The text starts like JSON but is not valid.
    #[error("not JSON: {0}")]
    Json(String),
    /// JSON field that is missing or wrong.
    #[error("{field}: {what}")]
    Field {
        /// Path of the field, such as `units[2].counters.cycles`.
        field: String,
        /// Description of the error.
        what: String,
    },
}

/// Parses a file of counters: JSON if its first character is a brace, else the output of `perf stat -x`.
///
/// # Errors
/// [`ReadError`] with the line or field.
pub fn read(text: &str) -> Result<Recorded, ReadError> {
    let recorded = if text.trim_start().starts_with('{') { json(text)? } else { perf(text)? };
    if recorded.units.is_empty() { Err(ReadError::Empty) } else { Ok(recorded) }
}

/// Units printed by `perf stat`, to be distinguished from event names.
const UNITS: [&str; 9] = ["msec", "ns", "Joules", "MiB", "KiB", "Bytes", "%", "Cel", "Watts"];

/// Maximum number of fields before the value: time, unit name, and number of CPUs in the unit.
const MOST_BEFORE: usize = 3;

enum Counted {
    Number(f64),
    Not(&'static str),
}

fn value(field: &str) -> Option<Counted> {
    match field.trim() {
        "<not counted>" => {
            Some(Counted::Not("not counted: the thread did not run, or other events occupied the counters"))
        }
        "<not supported>" => Some(Counted::Not("not supported by this machine")),
        number => number.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0).map(Counted::Number),
    }
}

/// Parses lines of `perf stat -x SEP`: optionally a time (`-I`) and a unit name (`-A`, `--per-thread`, ...), then
/// value, unit, event, optionally a deviation (`-r`), time counted, and percentage of the time counted.
fn perf(text: &str) -> Result<Recorded, ReadError> {
    let mut units: Vec<Unit> = vec![];
    let (mut least, mut unused) = (100.0f64, vec![]);
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let mut lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#')).peekable();
    let first = lines.peek().map_or("", |(_, line)| *line);
    let separator = ['\t', ';', ','].into_iter().max_by_key(|c| first.matches(*c).count()).unwrap_or(',');
    for (line, text) in lines {
        let wrong = |what: String| ReadError::Line { line, what };
        let fields = split(text, separator);
        let is_name = |f: &&String| {
            value(f).is_none() && f.contains(|c: char| c.is_ascii_alphabetic()) && !UNITS.contains(&f.trim())
        };
        let Some(at) = (0..fields.len().min(MOST_BEFORE + 1))
            .find(|at| value(&fields[*at]).is_some() && fields.get(at + 2).is_some_and(|f| is_name(&f)))
        else {
            return Err(wrong(match fields.len() {
                0..=2 => {
                    format!(
                        "`{}` is not a line of `perf stat -x{separator}`: expected value, unit and event",
                        cut(text)
                    )
                }
                _ => format!("`{}` is not a count (expected value{separator}unit{separator}event)", cut(&fields[0])),
            }));
        };
        let before = &fields[..at];
        let timed = before.first().is_some_and(|f| f.contains('.') && value(f).is_some());
        let name = before.iter().filter(|f| value(f).is_none()).map(|f| f.trim()).collect::<Vec<_>>().join(" ");
        let event_name = fields[at + 2].trim();
        let Some((event, worth)) = Event::named(event_name) else {
            if !unused.contains(&event_name.to_owned()) {
                unused.push(event_name.to_owned());
            }
            continue;
        };
        let unit = match units.iter().position(|unit| unit.name == name) {
            Some(at) => &mut units[at],
            None => {
                let worker = worker(&name);
                units.push(Unit { name, worker, ..Unit::default() });
                let last = units.len() - 1;
                &mut units[last]
            }
        };
        let place = format!("line {line}");
        match value(&fields[at]) {
            Some(Counted::Number(n)) => {
                if let Some(earlier) = unit.places.get(&event).filter(|_| !timed) {
                    return Err(wrong(format!("duplicate event {event_name}: see {earlier}")));
                }
                unit.counts.add(event, n * worth);
                unit.places.insert(event, place);
                // Percentage of the time counted; follows the deviation, if there is one.
                let mut rest = fields[at + 3..].iter().map(|f| f.trim()).filter(|f| !f.ends_with('%'));
                if let Some(share) = rest.nth(1).and_then(|f| f.parse::<f64>().ok()) {
                    least = least.min(share);
                }
            }
            Some(Counted::Not(why)) => {
                unit.uncounted.insert(event, format!("{place}: {why}"));
            }
            None => return Err(wrong(format!("`{}` is not a count", cut(&fields[at])))),
        }
    }
    let mut notes = vec![];
    if least < 99.9 {
        notes.push(format!(
            "counters were multiplexed (each ran for {least:.0} % of the time or more): shares are estimates; record \
             fewer at once"
        ));
    }
    if !unused.is_empty() {
        notes.push(format!("events not used: {}", unused.join(", ")));
    }
    Ok(Recorded { units, slots_per_cycle: None, notes })
}

/// Splits a line into fields. An event such as `cpu/event=0x9c,umask=0x1/` is one field.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut fields: Vec<String> = vec![];
    let mut open = false;
    for part in text.split(separator) {
        match fields.last_mut().filter(|_| open) {
            Some(last) => {
                last.push(separator);
                last.push_str(part);
            }
            None => fields.push(part.to_owned()),
        }
        open = fields.last().is_some_and(|last| last.matches('/').count() == 1);
    }
    fields
}

/// Returns the worker number from a thread name as printed by perf: `bywash-w3-1234`.
fn worker(name: &str) -> Option<u64> {
    let number = name.strip_prefix("bywash-w")?;
    number.split('-').next()?.parse().ok()
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(40).map_or(text, |(end, _)| &text[..end])
}

/// Parses the JSON format: `{"format": "bywash-counters", "slots_per_cycle": 4, "units": [{"worker": 0, "stage":
/// "lookup", "packets": 64, "bursts": 1, "counters": {"CPU_CLK_UNHALTED.THREAD": 1000, ...}}, ...]}`
fn json(text: &str) -> Result<Recorded, ReadError> {
    let whole: Value = serde_json::from_str(text).map_err(|why| ReadError::Json(why.to_string()))?;
    let wrong = |field: &str, what: &str| ReadError::Field { field: field.into(), what: what.into() };
    if whole["format"] != "bywash-counters" {
        return Err(wrong("format", "expected \"bywash-counters\""));
    }
    let slots_per_cycle = match &whole["slots_per_cycle"] {
        Value::Null => None,
        width => {
            let width = width.as_f64().filter(|width| (1.0..=16.0).contains(width));
            Some(width.ok_or_else(|| wrong("slots_per_cycle", "expected a number from 1 to 16"))?)
        }
    };
    let list = whole["units"].as_array().ok_or_else(|| wrong("units", "expected a list of units"))?;
    let (mut units, mut unused) = (vec![], vec![]);
    for (at, unit) in list.iter().enumerate() {
        let path = |field: &str| format!("units[{at}].{field}");
        let whole_number = |field: &str| match &unit[field] {
            Value::Null => Ok(None),
            value => value.as_u64().map(Some).ok_or_else(|| wrong(&path(field), "expected a whole number")),
        };
        let stage = match &unit["stage"] {
            Value::Null => "",
            name => name.as_str().ok_or_else(|| wrong(&path("stage"), "expected a name"))?,
        };
        let none = Map::new();
        let counters = match &unit["counters"] {
            Value::Object(counters) => counters,
            Value::Null => &none,
            _ => return Err(wrong(&path("counters"), "expected an object of events and counts")),
        };
        if counters.is_empty() {
            return Err(wrong(&path("counters"), "no counters"));
        }
        let mut read = Unit {
            name: stage.into(),
            worker: whole_number("worker")?,
            packets: whole_number("packets")?,
            bursts: whole_number("bursts")?,
            ..Unit::default()
        };
        for (name, count) in counters {
            let place = path(&format!("counters.{name}"));
            let Some(n) = count.as_f64().filter(|n| *n >= 0.0) else {
                return Err(wrong(&place, "expected a count: a number that is not negative"));
            };
            let Some((event, worth)) = Event::named(name) else {
                if !unused.contains(name) {
                    unused.push(name.clone());
                }
                continue;
            };
            if let Some(earlier) = read.places.get(&event) {
                return Err(wrong(&place, &format!("the same event as {earlier}")));
            }
            read.counts.add(event, n * worth);
            read.places.insert(event, place);
        }
        units.push(read);
    }
    let notes = if unused.is_empty() { vec![] } else { vec![format!("events not used: {}", unused.join(", "))] };
    Ok(Recorded { units, slots_per_cycle, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(recorded: &Recorded, at: usize) -> Vec<Option<f64>> {
        [Event::Cycles, Event::Instructions].iter().map(|event| recorded.units[at].counts.get(*event)).collect()
    }

    #[test]
    fn every_shape_perf_writes() {
        let plain =
            read("# started on Mon\n\n1000,,cycles:u,500,100.00,,\n800,,instructions,500,100.00,0.80,insn per cycle\n");
        assert_eq!(counts(&plain.unwrap(), 0), [Some(1000.0), Some(800.0)]);
        let text = "     0.1002,0.89,msec,task-clock,8,100.00,0.009,CPUs utilized\n     0.1002,10,,cycles,8,100.00,,\n\
                    0.2002,<not counted>,,cycles,8,100.00,,\n0.3002,5,,cycles,8,40.00,,\n";
        let intervals = read(text).unwrap();
        assert_eq!(counts(&intervals, 0), [Some(15.0), None]);
        assert!(
            intervals.notes[0].contains("40 %") && intervals.notes[1] == "events not used: task-clock",
            "{intervals:?}"
        );
        let threads =
            read("bywash-w1-77;10;;cpu/cycles,any=1/;8;100.00;;\nbywash-w1-77;4;;instructions;0.5%;8;90.00;;\n")
                .unwrap();
        assert_eq!((counts(&threads, 0), threads.units[0].worker), (vec![None, Some(4.0)], Some(1)));
        assert!(threads.notes[0].contains("90 %"), "{threads:?}");
        let cpus =
            read("CPU0,10,,cycles,8,100.00,,\nCPU1,20,,cycles,8,100.00,,\nS0-D0-C0,1,7,,cycles,8,100,,\n").unwrap();
        assert_eq!(cpus.units.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(), ["CPU0", "CPU1", "S0-D0-C0"]);
        assert_eq!(counts(&cpus, 2), [Some(7.0), None]);
        let scaled = read("4000,,topdown-total-slots,8,100,,\n").unwrap();
        assert_eq!(counts(&scaled, 0), [Some(1000.0), None]);
    }

    #[test]
    fn wrong_lines_are_named() {
        let why = |text: &str| read(text).unwrap_err().to_string();
        assert!(why("").starts_with("no counters in it"));
        assert!(why("# only a comment\n").starts_with("no counters in it"));
        assert!(why("12,,task-clock,1,100,,\n").starts_with("no counters in it"));
        assert!(why("10,,cycles,8,100,,\nhello\n").starts_with("line 2: `hello` is not a line of `perf stat -x,`"));
        assert!(why("many,,cycles,8,100,,\n").starts_with("line 1: `many` is not a count"));
        let shifted = why("1.1e9 or so,,instructions,60000,100.00,1.12,insn per cycle\n");
        assert!(shifted.starts_with("line 1: `1.1e9 or so` is not a count"), "{shifted}");
        assert!(why("-5,,cycles,8,100,,\n").starts_with("line 1: `-5` is not a count"));
        assert_eq!(why("1,,cycles,8,100,,\n2,,cpu-cycles,8,100,,\n"), "line 2: duplicate event cpu-cycles: see line 1");
    }

    #[test]
    fn wrong_fields_are_named() {
        let why = |text: &str| read(text).unwrap_err().to_string();
        assert!(why("{\n  \"format\": 1,,\n}").starts_with("not JSON: "));
        assert_eq!(why("{}"), "format: expected \"bywash-counters\"");
        let with = |units: &str| format!("{{\"format\": \"bywash-counters\", \"units\": {units}}}");
        assert_eq!(why(&with("3")), "units: expected a list of units");
        assert!(why(&with("[]")).starts_with("no counters"));
        assert_eq!(why(&with("[{}]")), "units[0].counters: no counters");
        let bad = with(r#"[{"counters": {"cycles": 1}}, {"counters": {"cycles": "1"}}]"#);
        assert_eq!(why(&bad), "units[1].counters.cycles: expected a count: a number that is not negative");
        let twice = with(r#"[{"counters": {"cycles": 1, "cpu-cycles": 1}}]"#);
        assert!(why(&twice).contains("the same event as units[0].counters."), "{}", why(&twice));
        assert_eq!(
            why(&with(r#"[{"worker": -1, "counters": {"cycles": 1}}]"#)),
            "units[0].worker: expected a whole number"
        );
    }

    #[test]
    fn no_file_makes_it_panic() {
        use proptest::prelude::*;
        proptest!(|(text in "[a-z0-9,;./<> \n%#{}\"\\[\\]:-]{0,200}")| { let _ = read(&text); });
    }
}
