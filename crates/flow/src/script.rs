//! Lines of flows, groups and meters from files and commands. All lines are parsed before any is applied.

use crate::control::FlowControl;
use crate::model::{Action, FlowFilter, FlowSpec, GroupSpec, MeterSpec, OfPort};
use crate::syntax::{self, SyntaxError};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// Default operation for lines that do not name one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Adds the entry.
    Add,
    /// Changes the matching entries.
    Mod {
        /// True for exact matches only.
        strict: bool,
    },
    /// Deletes the matching entries.
    Del {
        /// True for exact matches only.
        strict: bool,
    },
}

impl Verb {
    /// Words of ovs-ofctl that can precede a flow.
    const WORDS: [(&str, Self); 6] = [
        ("add", Self::Add),
        ("modify", Self::Mod { strict: false }),
        ("modify_strict", Self::Mod { strict: true }),
        ("delete", Self::Del { strict: false }),
        ("delete_strict", Self::Del { strict: true }),
        ("strict_delete", Self::Del { strict: true }),
    ];

    /// Returns the verb with this name in the API; `None` if there is none, or it cannot be strict.
    pub fn named(name: &str, strict: bool) -> Option<Self> {
        match name {
            "add" if !strict => Some(Self::Add),
            "mod" => Some(Self::Mod { strict }),
            "del" => Some(Self::Del { strict }),
            _ => None,
        }
    }

    /// Returns the verb's name in the API, and whether it is strict.
    pub fn name(self) -> (&'static str, bool) {
        match self {
            Self::Add => ("add", false),
            Self::Mod { strict } => ("mod", strict),
            Self::Del { strict } => ("del", strict),
        }
    }
}

/// Parsed line.
pub enum Item {
    /// Adds a flow.
    Add(Box<FlowSpec>),
    /// Changes flows; true: only exact matches.
    Mod(Box<FlowSpec>, bool),
    /// Deletes flows; true: only exact matches.
    Del(Box<FlowFilter>, bool),
    /// Sets a group.
    SetGroup {
        /// Group to set.
        group: GroupSpec,
        /// True if the group must not exist yet.
        new: bool,
    },
    /// Deletes the group with this number; all if `None`.
    DelGroup(Option<u32>),
    /// Sets a meter.
    SetMeter {
        /// Meter to set.
        meter: MeterSpec,
        /// True if the meter must not exist yet.
        new: bool,
    },
    /// Deletes the meter with this number; all if `None`.
    DelMeter(Option<u32>),
}

/// Error in a line.
#[derive(Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// Line number, from 1.
    pub line: usize,
    /// Error, with the column.
    pub error: SyntaxError,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, {}", self.line, self.error)
    }
}

/// Parses lines. Skips comments, which begin with `#`, and empty lines. Errors at the first invalid line.
pub fn parse(lines: &str, verb: Verb, names: syntax::PortNames<'_>) -> Result<Vec<Item>, ScriptError> {
    let mut items = Vec::new();
    for (at, line) in lines.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        items.push(item(line, verb, names).map_err(|error| ScriptError { line: at + 1, error })?);
    }
    Ok(items)
}

fn item(line: &str, verb: Verb, names: syntax::PortNames<'_>) -> Result<Item, SyntaxError> {
    let first = line.trim_start();
    let word = first.split([' ', '\t']).next().unwrap_or_default();
    let (verb, rest) = match Verb::WORDS.iter().find(|(name, _)| *name == word) {
        Some((_, said)) => (*said, &first[word.len()..]),
        None => (verb, line),
    };
    // Columns count from the start of the line, before the verb was removed.
    let skipped = line[..line.len() - rest.len()].chars().count();
    let of_line = |mut e: SyntaxError| {
        e.column += skipped;
        e
    };
    let begins = |key: &str| rest.trim_start().starts_with(key);
    let read = || {
        Ok(match verb {
            Verb::Del { .. } if begins("group_id=") => Item::DelGroup(syntax::group_id(rest)?),
            Verb::Del { .. } if begins("meter=") => Item::DelMeter(syntax::meter_id(rest)?),
            Verb::Del { strict } => Item::Del(Box::new(syntax::filter(rest, names, strict)?), strict),
            _ if begins("group_id=") => Item::SetGroup { group: syntax::group(rest, names)?, new: verb == Verb::Add },
            _ if begins("meter=") => Item::SetMeter { meter: syntax::meter(rest)?, new: verb == Verb::Add },
            Verb::Add => Item::Add(Box::new(syntax::flow(rest, names)?)),
            Verb::Mod { strict } => Item::Mod(Box::new(syntax::flow(rest, names)?), strict),
        })
    };
    read().map_err(of_line)
}

/// Checks lines for empty tables: errors with the reason for which [`carry_out`] would apply none.
pub fn check(items: &[Item]) -> Result<(), String> {
    refusal(BTreeMap::new(), HashSet::new(), items).map_or(Ok(()), Err)
}

/// Returns the reason why a line would be refused: it adds a group or meter that exists at that point, it changes one
/// that does not, its flow or group uses one that does not exist once all lines are applied, or it deletes one that a
/// group still uses then. A group may follow the flows that run it. `groups` and `meters` exist before.
fn refusal<'a>(
    mut groups: BTreeMap<u32, &'a GroupSpec>,
    mut meters: HashSet<u32>,
    items: &'a [Item],
) -> Option<String> {
    let before = (groups.clone(), meters.clone());
    let exists = |what: &str, id: u32| Some(format!("{what} {id} already exists: use mod to change it"));
    let lacking = |what: &str, id: u32| Some(format!("{what} {id} does not exist: use add to add it"));
    for item in items {
        let (what, id, known, new) = match item {
            Item::SetGroup { group, new } => ("group", group.id, groups.insert(group.id, group).is_some(), *new),
            Item::SetMeter { meter, new } => ("meter", meter.id, !meters.insert(meter.id), *new),
            Item::DelGroup(id) => {
                groups.retain(|group, _| id.is_some_and(|id| id != *group));
                continue;
            }
            Item::DelMeter(id) => {
                meters.retain(|meter| id.is_some_and(|id| id != *meter));
                continue;
            }
            _ => continue,
        };
        match (known, new) {
            (true, true) => return exists(what, id),
            (false, false) => return lacking(what, id),
            _ => {}
        }
    }
    let flows = items.iter().filter_map(|item| match item {
        Item::Add(flow) | Item::Mod(flow, _) => Some(Action::all(&flow.actions)),
        _ => None,
    });
    let missing = |action: &Action| match action {
        Action::Group(id) if !groups.contains_key(id) => Some(format!("group {id} does not exist")),
        Action::Meter(id) if !meters.contains(id) => Some(format!("meter {id} does not exist")),
        _ => None,
    };
    flows.flatten().find_map(missing).or_else(|| {
        groups.iter().find_map(|(user, group)| {
            let set = before.0.get(user).is_none_or(|before| !std::ptr::eq(*before, *group));
            // A group that lacked something before is not the fault of these lines.
            let lost = |action: &&Action| match action {
                Action::Group(id) => set || before.0.contains_key(id),
                Action::Meter(id) => set || before.1.contains(id),
                _ => false,
            };
            let actions = group.buckets.iter().flat_map(|bucket| Action::all(&bucket.actions));
            actions.filter(lost).find_map(missing).map(|what| format!("{what}, which group {user} uses"))
        })
    })
}

/// Applies the lines in order. Returns how many flows, groups and meters were added, changed or deleted. Errors with
/// the reason, and applies none, if a line adds a group or meter that exists, or changes or runs one that does not, or
/// deletes one that a group uses. If the tables are full, a flow overlaps another and is to be checked for that, or a
/// group would run itself, the lines before it are applied; the error has the number of their changes. The workers use
/// the new tables when this returns.
pub fn carry_out(control: &mut FlowControl, items: Vec<Item>) -> Result<usize, String> {
    let known = control.groups();
    let groups = known.iter().map(|group| (group.spec.id, &group.spec)).collect();
    let meters = control.meters().iter().map(|meter| meter.spec.id).collect();
    if let Some(what) = refusal(groups, meters, &items) {
        return Err(format!("{what}; no change was applied"));
    }
    let (mut done, mut refused) = (0, None);
    for item in items {
        match apply(control, item) {
            Ok(n) => done += n,
            Err(why) => {
                let before =
                    if done == 1 { "1 change before it was".into() } else { format!("{done} changes before it were") };
                refused = Some(format!("{why}; {before} applied"));
                break;
            }
        }
    }
    control.commit();
    refused.map_or(Ok(done), Err)
}

/// Replaces all flows, groups and meters by those of the lines. Errors with the reason, and changes nothing, if a line
/// cannot be applied. The workers use the new tables when this returns.
pub fn replace(control: &mut FlowControl, items: Vec<Item>) -> Result<(), String> {
    check(&items)?;
    let all = [Item::Del(Box::default(), false), Item::DelGroup(None), Item::DelMeter(None)];
    control.make_all(|control| all.into_iter().chain(items).try_for_each(|item| apply(control, item).map(drop)))?;
    control.commit();
    Ok(())
}

/// Applies a line, which is yet to be published. Returns how many flows, groups and meters were changed.
fn apply(control: &mut FlowControl, item: Item) -> Result<usize, String> {
    let done = match item {
        Item::Add(flow) => control.add(*flow).map(|()| 1),
        // If there is none to change, the flow is added.
        Item::Mod(flow, strict) => control.modify(*flow, strict).map(|changed| changed.max(1)),
        Item::Del(filter, strict) => Ok(control.delete(&filter, strict)),
        Item::SetGroup { group, new } => control.set_group(group, new).map(|()| 1),
        Item::DelGroup(id) => Ok(control.delete_group(id)),
        Item::SetMeter { meter, new } => control.set_meter(meter, new).map(|()| 1),
        Item::DelMeter(id) => Ok(control.delete_meter(id)),
    };
    done.map_err(|why| why.to_string())
}

/// Returns the OpenFlow number of the port with this name: [`OfPort::LOCAL`] if it is the one named `local`; of the
/// others, the first port is 1.
pub fn port_number(ports: &[String], local: Option<&str>, name: &str) -> Option<OfPort> {
    let at = ports.iter().position(|port| port == name)?;
    Some(if local == Some(name) { OfPort::LOCAL } else { OfPort(at as u16 + 1) })
}

/// Returns the name of the port with this OpenFlow number: the inverse of [`port_number`].
pub fn port_name<'a>(ports: &'a [String], local: Option<&'a str>, of: OfPort) -> Option<&'a str> {
    if of == OfPort::LOCAL {
        return local;
    }
    ports.get(usize::from(of.0).checked_sub(1)?).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::BridgeConfig;

    fn wrong(lines: &str, verb: Verb) -> (usize, usize) {
        let names = |_: &str| None;
        let wrong = parse(lines, verb, &names).err().unwrap_or_else(|| panic!("{lines}"));
        (wrong.line, wrong.error.column)
    }

    #[test]
    fn errors_have_line_and_column() {
        assert_eq!(wrong("# x\n\nip,tp_src=1,actions=drop\n", Verb::Add).0, 3);
        assert_eq!(wrong("in_prt=1 actions=drop", Verb::Add), (1, 1));
        assert_eq!(wrong("  add  in_prt=1 actions=drop", Verb::Del { strict: false }), (1, 8));
        assert_eq!(wrong("delete in_prt=1", Verb::Add), (1, 8));
    }

    #[test]
    fn a_flow_that_runs_a_missing_group_or_meter_is_refused() {
        let mut control = FlowControl::new(&bywash_sync::Qsbr::new(), vec![], BridgeConfig::default());
        let mut load = |lines: &str| carry_out(&mut control, parse(lines, Verb::Add, &|_| None).unwrap());
        let missing = |what: &str| Err(format!("{what} does not exist; no change was applied"));
        assert_eq!(load("ip,actions=1\narp,actions=group:5"), missing("group 5"));
        assert_eq!(load("ip,actions=meter:6,1"), missing("meter 6"));
        let both = "arp,actions=group:5\nip,actions=meter:6,1\ngroup_id=5,bucket=output:1\n\
                    meter=6 pktps bands=type=drop rate=5";
        assert_eq!(load(both), Ok(4));
        assert_eq!(load("delete group_id=5\nipv6,actions=group:5"), missing("group 5"));
    }

    /// OVS lets a bucket name a meter or group that does not exist, and ignores meters in buckets altogether.
    #[test]
    fn a_group_that_uses_a_missing_group_or_meter_is_refused() {
        let mut control = FlowControl::new(&bywash_sync::Qsbr::new(), vec![], BridgeConfig::default());
        let mut load = |lines: &str| carry_out(&mut control, parse(lines, Verb::Add, &|_| None).unwrap());
        let missing = |what: &str, user: u32| {
            Err(format!("{what} does not exist, which group {user} uses; no change was applied"))
        };
        let (one, two) = ("group_id=1,bucket=group:2", "group_id=2,bucket=output:1,bucket=meter:3,output:2");
        let meter = "meter=3 pktps bands=type=drop rate=5";
        assert_eq!(load(&format!("arp,actions=1\n{one}")), missing("group 2", 1));
        assert_eq!(load(&format!("{one}\n{two}")), missing("meter 3", 2));
        assert_eq!(load(&format!("{one}\n{two}\n{meter}\nactions=group:1")), Ok(4));
        // Meters and groups that a group uses stay until it has gone, or no longer uses them.
        assert_eq!(load("delete meter=3"), missing("meter 3", 2));
        assert_eq!(load("delete meter=all"), missing("meter 3", 2));
        assert_eq!(load("delete group_id=2"), missing("group 2", 1));
        assert_eq!(load("modify group_id=2,bucket=meter:4,output:1"), missing("meter 4", 2));
        assert_eq!(
            load(&format!("delete meter=3\nmodify {meter}")),
            Err("meter 3 does not exist: use add to add it; no change was applied".into())
        );
        assert_eq!(load(&format!("delete meter=3\n{meter}")), Ok(2));
        assert_eq!(load("modify group_id=2,bucket=output:1\ndelete meter=3"), Ok(2));
        assert_eq!(load("delete group_id=2\ndelete group_id=1"), Ok(2));
        assert_eq!(control.len(), 0, "the flow ran group 1");
    }

    #[test]
    fn a_group_or_meter_that_exists_changes_nothing() {
        let mut control = FlowControl::new(&bywash_sync::Qsbr::new(), vec![], BridgeConfig::default());
        let mut load = |lines: &str| carry_out(&mut control, parse(lines, Verb::Add, &|_| None).unwrap());
        let (group, meter) = ("group_id=5,bucket=output:1", "meter=6 pktps bands=type=drop rate=5");
        assert_eq!(load(&format!("ip,actions=1\n{group}\n{meter}")), Ok(3));
        for (of, what) in [(group, "group 5"), (meter, "meter 6")] {
            let refused = Err(format!("{what} already exists: use mod to change it; no change was applied"));
            assert_eq!(load(&format!("delete\narp,actions=2\n{of}")), refused);
        }
        assert_eq!(load(&format!("delete\ndelete group_id=5\n{group}")), Ok(3), "one flow, and the group twice");
    }

    #[test]
    fn ports_have_numbers_and_names() {
        let ports = ["a", "b", "c"].map(String::from);
        for (local, numbers) in [(None, [1, 2, 3]), (Some("b"), [1, 0xfffe, 3])] {
            let of = |name: &str| port_number(&ports, local, name);
            assert_eq!(["a", "b", "c"].map(of), numbers.map(|n| Some(OfPort(n))));
            let name = |n: u16| port_name(&ports, local, OfPort(n));
            assert_eq!(numbers.map(name), ["a", "b", "c"].map(Some));
            assert_eq!((of("d"), name(4), name(0)), (None, None, None));
        }
        assert_eq!(port_name(&ports, None, OfPort::LOCAL), None);
    }

    #[test]
    fn what_a_line_is() {
        let names = |name: &str| port_number(&["a".into(), "b".into()], None, name);
        let lines = "in_port=b actions=a # to a\n # delete\ndelete ip\nmodify_strict tcp,actions=drop\n\
                     group_id=1,type=all,bucket=output:a\nmeter=1 pktps bands=type=drop rate=5\ndelete group_id=1\n";
        let items = parse(lines, Verb::Add, &names).unwrap();
        assert!(matches!(
            items.as_slice(),
            [
                Item::Add(_),
                Item::Del(_, false),
                Item::Mod(_, true),
                Item::SetGroup { new: true, .. },
                Item::SetMeter { new: true, .. },
                Item::DelGroup(Some(1))
            ]
        ));
    }
}
