//! Snapshots of network settings, to test that the host is left as found: all settings that a dataplane could touch,
//! flattened to keys and values, compared before and after.

use crate::command::{self, DEFAULT_TIMEOUT};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Settings of one network namespace: links (flags, MTU, promiscuity, attached XDP, qdisc), addresses, routes of all
/// tables, rules, permanent neighbours, `ethtool -k` features, channels, per-device polling settings, sysctls.
///
/// Values that change by themselves are excluded: counters, operational state, lifetimes, learnt neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<String, String>);

/// Fields that change without a change of settings.
const VOLATILE: [&str; 8] = [
    "operstate",
    "valid_life_time",
    "preferred_life_time",
    "expires",
    "used",
    "age",
    // Of a link, NO-CARRIER and LOWER_UP follow the peer; IFF_UP and IFF_PROMISC are kept through /sys. Of a route,
    // `linkdown` and `dead` follow the carrier.
    "flags",
    "stats64",
];

/// Per-device files of /sys/class/net that user-space packet I/O may write.
const DEVICE_FILES: &str = "flags mtu tx_queue_len gro_flush_timeout napi_defer_hard_irqs threaded";

/// Sysctls that are measurements, not settings.
const READINGS: [&str; 5] =
    ["nf_conntrack_count", "tcp_fastopen_key", "dentry-state", "ipfrag_secret_interval", "nf_conntrack_buckets"];

impl Snapshot {
    /// Takes a snapshot of a namespace.
    pub fn of(namespace: &Namespace) -> Result<Self> {
        let sysctls = namespace.enter(sysctls)?;
        take(Some(namespace), sysctls)
    }

    /// Takes a snapshot of the caller's own namespace.
    pub fn of_host() -> Result<Self> {
        take(None, sysctls())
    }

    /// Returns the value of a key in the form shown by [`Self::differences`].
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns one line for each setting that differs: `key: before -> after`, with `(none)` for a missing one.
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let keys = self.0.keys().chain(after.0.keys().filter(|key| !self.0.contains_key(*key)));
        let shown = |snapshot: &Self, key: &str| snapshot.0.get(key).cloned().unwrap_or_else(|| "(none)".to_owned());
        keys.filter(|key| self.0.get(*key) != after.0.get(*key))
            .map(|key| format!("{key}: {} -> {}", shown(self, key), shown(after, key)))
            .collect()
    }
}

fn take(namespace: Option<&Namespace>, sysctls: BTreeMap<String, String>) -> Result<Snapshot> {
    let mut all = sysctls;
    let tool = |arguments: &[&str]| -> Result<String> {
        let mut argv: Vec<&str> = Vec::new();
        if let Some(namespace) = namespace {
            argv.extend(["ip", "netns", "exec", namespace.name()]);
        }
        argv.extend(arguments);
        Ok(command::run(&argv, None, DEFAULT_TIMEOUT)?.ok()?.stdout)
    };

    let mut devices = Vec::new();
    for link in json("ip address", &tool(&["ip", "-j", "-d", "address", "show"])?)? {
        let name = link["ifname"].as_str().unwrap_or("?").to_owned();
        for address in link["addr_info"].as_array().into_iter().flatten() {
            let text = format!("{}/{}", address["local"].as_str().unwrap_or("?"), address["prefixlen"]);
            flatten(&format!("address {name} {text}"), address, &mut all);
        }
        flatten(&format!("link {name}"), &link, &mut all);
        devices.push(name);
    }
    for (family, option) in [("route4", "-4"), ("route6", "-6")] {
        for route in json("ip route", &tool(&["ip", "-j", option, "route", "show", "table", "all"])?)? {
            insert_line(family, &route, &mut all);
        }
        for rule in json("ip rule", &tool(&["ip", "-j", option, "rule", "show"])?)? {
            insert_line(&format!("rule{}", &option[1..]), &rule, &mut all);
        }
    }
    for neighbour in json("ip neighbour", &tool(&["ip", "-j", "neighbour", "show", "nud", "permanent"])?)? {
        insert_line("neighbour", &neighbour, &mut all);
    }
    let files = format!(
        "cd /sys/class/net && grep -H . $(for d in *; do for f in {DEVICE_FILES}; do [ -r $d/$f ] && echo $d/$f; done; done)"
    );
    for line in tool(&["sh", "-c", &files])?.lines() {
        if let Some((key, value)) = line.split_once(':') {
            all.insert(format!("sys {key}"), value.to_owned());
        }
    }
    for device in &devices {
        for option in ["-k", "-l"] {
            // Not every device has channels; ethtool then fails.
            let Ok(text) = tool(&["ethtool", option, device]) else { continue };
            insert_ethtool(&format!("ethtool {option} {device}"), &text, &mut all);
        }
    }
    Ok(Snapshot(all))
}

fn json(what: &'static str, text: &str) -> Result<Vec<Value>> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Array(items)) => Ok(items),
        Ok(other) => Err(Error::parse(what, format!("not a list: {other}"))),
        Err(error) => Err(Error::parse(what, error.to_string())),
    }
}

/// Inserts one key per leaf. The caller handles `addr_info` of a link.
fn flatten(prefix: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if !VOLATILE.contains(&name.as_str()) && name != "addr_info" {
                    flatten(&format!("{prefix} {name}"), field, into);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                flatten(&format!("{prefix} {index}"), item, into);
            }
        }
        leaf => {
            into.insert(prefix.to_owned(), leaf.to_string());
        }
    }
}

/// Inserts a row of a table without a natural key: the whole row is the key, so that a change shows as one row removed
/// and one added.
fn insert_line(table: &str, row: &Value, into: &mut BTreeMap<String, String>) {
    let mut fields = BTreeMap::new();
    flatten("", row, &mut fields);
    let text: Vec<String> = fields.iter().map(|(key, value)| format!("{}={value}", key.trim())).collect();
    let key = format!("{table} {}", text.join(" "));
    let times = into.get(&key).and_then(|times| times.parse::<u32>().ok()).unwrap_or(0);
    into.insert(key, (times + 1).to_string());
}

/// Inserts lines such as `name: on [fixed]`; `ethtool -l` has the same names twice, under two headings.
fn insert_ethtool(prefix: &str, text: &str, into: &mut BTreeMap<String, String>) {
    let mut heading = String::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        if value.trim().is_empty() {
            heading = format!(" ({name})");
        } else {
            into.insert(format!("{prefix}{heading} {}", name.trim()), value.trim().to_owned());
        }
    }
}

/// Returns all readable sysctls under /proc/sys/net of the calling thread's namespace.
fn sysctls() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    walk(Path::new("/proc/sys/net"), &mut found);
    found
}

fn walk(directory: &Path, into: &mut BTreeMap<String, String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&path, into);
        } else if !entry.file_name().to_str().is_some_and(|name| READINGS.contains(&name)) {
            // Some are write-only (`route/flush`) or unset (`stable_secret`).
            if let Ok(value) = fs::read_to_string(&path) {
                let key = path.strip_prefix("/proc/sys").unwrap_or(&path).display().to_string();
                into.insert(format!("sysctl {key}"), value.trim().to_owned());
            }
        }
    }
}
