//! Differences between two configurations, as steps that a running instance can take.

use crate::choice::Choice;
use bywash_config::{Config, Idle, KernelConfig, Level, Mode, OF_ARENA, PortConfig, PortKind, count};
use bywash_frame::PoolConfig;
use serde_json::Value;
use std::collections::BTreeSet;

/// One step of a reload.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Add a port.
    Add(PortConfig),
    /// Remove a port, by name.
    Remove(String),
    /// Close a port and open it again with these settings; the text lists those that differ.
    Reopen(PortConfig, String),
    /// Change a port's level: name, old and new level.
    Level(String, Level, Level),
    /// Change which kernel policies are respected; the text lists the changes.
    Kernel(Box<KernelConfig>, String),
    /// Change how workers idle: old and new.
    Idle(Idle, Idle),
    /// Move a worker to another CPU: worker, old and new CPU.
    Cpu(usize, Option<usize>, usize),
    /// Give workers another pool to allocate from: old and new.
    Pool(Vec<usize>, PoolConfig, PoolConfig),
    /// Record why a worker's pool has its kind; `None` if the configuration says so.
    Choose(usize, Option<Choice>),
}

impl Step {
    /// Returns whether the step adds, removes or reopens a port.
    pub fn is_of_ports(&self) -> bool {
        matches!(self, Self::Add(_) | Self::Remove(_) | Self::Reopen(..))
    }

    /// Returns the number of buffers of the step's new pool; 0 for other steps.
    pub fn frames(&self) -> usize {
        if let Self::Pool(_, _, is) = self { is.frames } else { 0 }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let idle = |idle: &Idle| if *idle == Idle::Spin { "spin" } else { "sleep" };
        match self {
            Self::Add(port) => match port.interface.as_ref().filter(|interface| **interface != port.name) {
                Some(interface) => write!(f, "port {} added: {} on {interface}", port.name, port.kind.name()),
                None => write!(f, "port {} added: {}", port.name, port.kind.name()),
            },
            Self::Remove(name) => write!(f, "port {name} removed"),
            Self::Reopen(port, why) => write!(f, "port {} opened again: {why}", port.name),
            Self::Level(name, was, is) => write!(f, "port {name} level: {} -> {}", was.name(), is.name()),
            Self::Pool(_, was, is) => {
                let of = |pool: &PoolConfig| match (pool.cache, pool.kind.blocks()) {
                    (_, true) => format!("{} of {} in blocks of {}", pool.kind, pool.frames, pool.block),
                    (0, _) => format!("{} of {}", pool.kind, pool.frames),
                    (cache, _) => format!("{} of {} with caches of {cache}", pool.kind, pool.frames),
                };
                write!(f, "pool {} added: {}; {} drains: {}", is.name, of(is), was.name, of(was))
            }
            Self::Choose(worker, Some(Choice { kind, why, .. })) => {
                write!(f, "worker {worker}: pool of kind {kind}: {why}")
            }
            Self::Choose(worker, None) => {
                write!(f, "worker {worker}: pool kind as configured, no longer chosen automatically")
            }
            Self::Cpu(worker, Some(was), is) => write!(f, "worker {worker} moves from CPU {was} to {is}"),
            Self::Cpu(worker, None, is) => write!(f, "worker {worker} moves to CPU {is}"),
            Self::Kernel(_, changes) => write!(f, "kernel: {changes}"),
            Self::Idle(was, is) => write!(f, "workers.idle: {} -> {}", idle(was), idle(is)),
        }
    }
}

/// Returns the steps that lead from `old` to `new`. Errors with a line for each changed setting that cannot change at
/// run time.
pub fn diff(old: &Config, new: &Config) -> Result<Vec<Step>, Vec<String>> {
    let mut refused = vec![];
    let (was, is) = (flat(old), flat(new));
    let keys: BTreeSet<&String> = was.iter().chain(&is).map(|(key, _)| key).collect();
    for key in keys {
        let value = |of: &[(String, Value)]| of.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        let (was, is) = (value(&was), value(&is));
        if was != is
            && let Some(why) = why(key, old, new)
        {
            let mut changes = vec![];
            compare(key, was.as_ref(), is.as_ref(), ": ", &mut changes);
            refused.push(format!("{}: {why}", changes.join(", ")));
        }
    }
    // The comparison above is of serialized settings, which hide secrets.
    let secrets = |config: &Config| config.groups.iter().map(|group| (group.key, group.iv)).collect::<Vec<_>>();
    if old.groups.len() == new.groups.len() && secrets(old) != secrets(new) {
        refused.push("group: key or iv changed: read only at startup; restart bywash".into());
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    let mut steps = vec![];
    let named = |ports: &'_ [PortConfig], name: &str| ports.iter().find(|port| port.name == name).cloned();
    for port in &new.ports {
        let Some(before) = named(&old.ports, &port.name) else {
            steps.push(Step::Add(port.clone()));
            continue;
        };
        let (was, is) = (level(&before), level(port));
        let others = other_settings(&before, port);
        if !others.is_empty() {
            steps.push(Step::Reopen(port.clone(), others));
        } else if let (Some(was), Some(is)) = (was, is)
            && was != is
        {
            steps.push(Step::Level(port.name.clone(), was, is));
        }
    }
    let gone = old.ports.iter().filter(|port| named(&new.ports, &port.name).is_none());
    steps.extend(gone.map(|port| Step::Remove(port.name.clone())));
    if old.kernel != new.kernel {
        let (was, is) = (serde_json::to_value(&old.kernel), serde_json::to_value(&new.kernel));
        let changes = differences(&was.unwrap_or_default(), &is.unwrap_or_default(), &[]);
        steps.push(Step::Kernel(Box::new(new.kernel.clone()), changes));
    }
    if old.workers.idle != new.workers.idle {
        steps.push(Step::Idle(old.workers.idle, new.workers.idle));
    }
    Ok(steps)
}

fn level(port: &PortConfig) -> Option<Level> {
    port.af_xdp.as_ref().map(|af_xdp| af_xdp.level)
}

/// Returns the settings other than the level that differ, as text.
fn other_settings(old: &PortConfig, new: &PortConfig) -> String {
    // Serialization leaves a switch's settings out that are all defaults.
    let of_switch = |port: &PortConfig| serde_json::to_value(&port.bridge).unwrap_or_default();
    let value = |port: &PortConfig| {
        let mut all = serde_json::to_value(port).unwrap_or_default();
        if let (Value::Object(all), Value::Object(of_switch)) = (&mut all, of_switch(port)) {
            all.extend(of_switch);
        }
        all
    };
    let seen = differences(&value(old), &value(new), &["level"]);
    let secret = |port: &PortConfig| port.memif.as_ref().map(|memif| memif.secret.clone());
    // Serialization hides both secrets, so that they look equal.
    let other = seen.is_empty() && secret(old) != secret(new);
    if other { "another secret".into() } else { seen }
}

/// Returns the keys of two tables whose values differ, with both values, as text. Ignores the keys in `but`.
fn differences(old: &Value, new: &Value, but: &[&str]) -> String {
    let keys: BTreeSet<&String> = [old, new].into_iter().filter_map(Value::as_object).flat_map(|o| o.keys()).collect();
    let mut changes = vec![];
    for key in keys.into_iter().filter(|key| !but.contains(&key.as_str())) {
        compare(key, old.get(key), new.get(key), " ", &mut changes);
    }
    changes.join(", ")
}

/// Adds a text with both values if those of `key` differ; of tables, one for each key below that differs. `after`
/// stands between key and values. Lists of as many tables are compared by place.
fn compare(key: &str, was: Option<&Value>, is: Option<&Value>, after: &str, changes: &mut Vec<String>) {
    let tables = |list: &[Value]| !list.is_empty() && list.iter().all(Value::is_object);
    match (was, is) {
        _ if was == is => {}
        (Some(Value::Object(was)), Some(Value::Object(is))) => {
            for name in was.keys().chain(is.keys()).collect::<BTreeSet<_>>() {
                compare(&format!("{key}.{name}"), was.get(name), is.get(name), after, changes);
            }
        }
        (Some(Value::Array(was)), Some(Value::Array(is))) if was.len() == is.len() && tables(was) && tables(is) => {
            for (at, (was, is)) in was.iter().zip(is).enumerate() {
                compare(&format!("{key}.{at}"), Some(was), Some(is), after, changes);
            }
        }
        _ => changes.push(format!("{key}{after}{} -> {}", text(was), text(is))),
    }
}

/// Formats a value as in the file; of a list of tables, only their number.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "nothing".into(),
        Some(Value::Array(list)) if list.iter().any(Value::is_object) => count(list.len(), "table"),
        Some(Value::Array(list)) => {
            format!("[{}]", list.iter().map(|value| text(Some(value))).collect::<Vec<_>>().join(", "))
        }
        Some(Value::Object(table)) => {
            let keys = table.iter().filter(|(_, value)| !value.is_null());
            let keys: Vec<String> = keys.map(|(key, value)| format!("{key} = {}", text(Some(value)))).collect();
            format!("{{ {} }}", keys.join(", "))
        }
        Some(value) => value.to_string(),
    }
}

/// Returns all settings but the ports': `section.key`, value.
fn flat(config: &Config) -> Vec<(String, Value)> {
    let Ok(Value::Object(sections)) = serde_json::to_value(config) else { return vec![] };
    let keys_of = |(name, value): (String, Value)| match value {
        Value::Object(keys) => keys.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)).collect(),
        value => vec![(name, value)],
    };
    let tables = sections.into_iter().filter(|(name, _)| name != "port").flat_map(|(name, value)| match value {
        Value::Array(pools) if name == "pool" => pools_of(pools),
        value => vec![(name, value)],
    });
    tables.flat_map(keys_of).collect()
}

/// Returns the tables of several pools, with the arena's keys in a table `pool` of their own, as if there were one.
fn pools_of(mut pools: Vec<Value>) -> Vec<(String, Value)> {
    let mut arena = serde_json::Map::new();
    // Settings of the pool for all other workers, if there is one.
    if let Ok(Value::Object(defaults)) = serde_json::to_value(bywash_config::PoolConfig::default()) {
        arena.extend(defaults.into_iter().filter(|(key, _)| OF_ARENA.contains(&key.as_str())));
    }
    for pool in pools.iter_mut().filter_map(Value::as_object_mut) {
        arena.extend(OF_ARENA.into_iter().filter_map(|key| pool.remove_entry(key)));
    }
    let numbered = (0..).zip(pools).map(|(n, pool): (usize, Value)| (format!("pool.{n}"), pool));
    [("pool".to_owned(), arena.into())].into_iter().chain(numbered).collect()
}

/// Returns the reason for which a setting cannot change at run time; `None` if it can.
fn why(key: &str, old: &Config, new: &Config) -> Option<&'static str> {
    let dpdk = |config: &Config| config.ports.iter().any(|port| port.kind == PortKind::Dpdk);
    Some(match key.split('.').next().unwrap_or_default() {
        _ if key == "workers.idle" || (key == "workers.cpus" && old.mode != Mode::Cmts) => return None,
        "pool" if key.strip_prefix("pool.").is_some_and(|key| OF_ARENA.contains(&key)) => {
            "it is a setting of the arena, which is laid out at startup; restart bywash"
        }
        "pool" if old.mode == Mode::Cmts => "a cable downstream keeps the pools it started with; restart bywash",
        "pool" if dpdk(old) || dpdk(new) => "DPDK drivers keep the pools they started with; restart bywash",
        "pool" if old.packed() != new.packed() => {
            "a typewriter pool needs an arena of its own, which is made at startup; restart bywash"
        }
        "pool" | "kernel" => return None,
        _ if key == "workers.counters" => "workers open their counters at startup; restart bywash",
        "workers" => "queues and rings are assigned to workers at startup; restart bywash",
        "mode" => "the mode is chosen at startup; restart bywash",
        "sandbox" => "dropped privileges cannot be regained; restart bywash",
        "api" => "the API sockets are made at startup; restart bywash",
        _ => "read only at startup; restart bywash",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_config::Auto;
    use bywash_config::Draft;
    use serde_json::json;

    fn config(ports: &[&str]) -> Config {
        Config::for_interfaces(&ports.iter().map(|name| name.to_string()).collect::<Vec<_>>())
    }

    fn changes(old: &Config, new: &Config) -> Vec<String> {
        diff(old, new).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ports_come_go_and_change() {
        let old = config(&["a", "b", "c"]);
        assert_eq!(diff(&old, &old), Ok(vec![]));
        // The order in the file does not matter.
        assert_eq!(diff(&old, &config(&["c", "a", "b"])), Ok(vec![]));
        let mut new = config(&["a", "c", "d"]);
        new.ports[0].af_xdp.as_mut().unwrap().level = Level::Kernel;
        new.ports[1].tx_burst = 8;
        new.ports[1].bridge.flood = false;
        new.ports.push(PortConfig { name: "n".into(), kind: PortKind::Null, ..PortConfig::default() });
        new.workers.idle = Idle::Spin;
        let expected = [
            "port a level: auto -> kernel",
            "port c opened again: flood true -> false, tx_burst 32 -> 8",
            "port d added: af_xdp",
            "port n added: null",
            "port b removed",
            "workers.idle: sleep -> spin",
        ];
        assert_eq!(changes(&old, &new), expected);
    }

    #[test]
    fn what_cannot_change_is_refused_all_at_once() {
        let (old, mut new) = (config(&["a"]), config(&["a", "b"]));
        (new.pools[0].cell, new.pools[0].frames) = (Auto::Set(4096), Auto::Set(4096));
        new.workers.count = Auto::Set(2);
        let refused = diff(&old, &new).unwrap_err();
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(refused[0].starts_with("pool.cell: \"auto\" -> 4096: it is a setting of the arena"), "{refused:?}");
        let mut new = old.clone();
        new.workers.counters = !old.workers.counters;
        let refused = diff(&old, &new).unwrap_err();
        assert!(refused.len() == 1 && refused[0].contains(": workers open their counters at"), "{refused:?}");
    }

    #[test]
    fn changes_in_tables_and_lists_are_shown_as_the_file_has_them() {
        let told = |was: Value, is: Value| differences(&json!({ "key": was }), &json!({ "key": is }), &[]);
        let ring = |rx: u32| json!({ "rx": rx, "tx": 2048 });
        assert_eq!(told(ring(2048), ring(1024)), "key.rx 2048 -> 1024");
        assert_eq!(told(Value::Null, ring(1024)), "key nothing -> { rx = 1024, tx = 2048 }");
        assert_eq!(told(json!("all"), json!([0, 1])), "key \"all\" -> [0, 1]");
        assert_eq!(told(json!([ring(1), ring(2)]), json!([ring(1), ring(3)])), "key.1.rx 2 -> 3");
        assert_eq!(told(json!([ring(1)]), json!([ring(1), ring(3)])), "key 1 table -> 2 tables");
        let group = |said: u32| {
            let port = |name| format!("[[port]]\nname = \"{name}\"\nkind = \"null\"\n");
            let group = format!("[[group]]\ninput = \"a\"\noutput = \"b\"\nsaid = {said}\n");
            let text = format!("mode = \"cmts\"\n{}{}{group}", port("a"), port("b"));
            Draft::text("a.toml", text).finish(None).unwrap()
        };
        let refused = diff(&group(1), &group(2)).unwrap_err();
        assert_eq!(refused, ["group.0.said: 1 -> 2: read only at startup; restart bywash"]);
    }

    #[test]
    fn another_secret_is_noticed_and_not_shown() {
        let of = |text: String| Draft::text("a.toml", text).finish(None).unwrap();
        let memif = |secret: &str| {
            of(format!("[[port]]\nname = \"m\"\nkind = \"memif\"\nsocket = \"/run/m\"\nsecret = \"{secret}\"\n"))
        };
        assert_eq!(changes(&memif("one"), &memif("one")), [""; 0]);
        assert_eq!(changes(&memif("one"), &memif("two")), ["port m opened again: another secret"]);
        let group = |key: u8| {
            let port = |name| format!("[[port]]\nname = \"{name}\"\nkind = \"null\"\n");
            let group = format!("[[group]]\ninput = \"a\"\noutput = \"b\"\nkey = \"{key:032x}\"\n");
            of(format!("mode = \"cmts\"\n{}{}{group}", port("a"), port("b")))
        };
        let refused = diff(&group(7), &group(8)).unwrap_err();
        assert!(refused.len() == 1 && refused[0].starts_with("group: key or iv changed"), "{refused:?}");
    }

    #[test]
    fn a_pool_becomes_several_and_the_arena_stays() {
        let old = config(&["a"]);
        let mut new = old.clone();
        new.pools.push(bywash_config::PoolConfig { workers: Some(vec![0]), ..new.pools[0].clone() });
        assert_eq!((changes(&old, &new), changes(&new, &old)), (vec![], vec![]));
        new.pools[0].reserve = 64;
        let refused = diff(&old, &new).unwrap_err();
        assert!(
            refused.len() == 1 && refused[0].starts_with("pool.reserve: 0 -> 64: it is a setting of the arena"),
            "{refused:?}"
        );
        // Settings of a cable downstream's pools are named by their table.
        let (mut old, mut new) = (old.clone(), new.clone());
        (old.mode, new.mode, new.pools[0].reserve) = (Mode::Cmts, Mode::Cmts, 0);
        let refused = diff(&old, &new).unwrap_err();
        assert!(refused.iter().any(|line| line.starts_with("pool.1.kind: nothing -> \"stack\"")), "{refused:?}");
    }
}
