//! Checks of a running instance: its state, and counters that rise during the examination.

use super::finding::Finding;
use super::finding::Severity::{Error, Note, Warning};
use crate::api::Topic;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Time between the two samples.
const LOOK: Duration = Duration::from_secs(1);
/// Threshold for the fraction of a pool's buffers in use, and of a worker's busy time.
const NEARLY: f64 = 0.9;

/// Sample of the examined topics.
#[derive(Debug)]
pub struct Look {
    pub ports: Value,
    workers: Value,
    pools: Value,
    drops: Value,
    placement: Value,
}

impl Look {
    /// Takes a sample; `None` if no instance answers on the socket.
    pub fn now(socket: &Path) -> Option<Self> {
        let ask = |topic| crate::show::ask(socket, topic).ok();
        Some(Self {
            ports: ask(Topic::Ports)?,
            workers: ask(Topic::Workers)?,
            pools: ask(Topic::Pools)?,
            drops: ask(Topic::Drops)?,
            placement: ask(Topic::Placement)?,
        })
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Examines the instance by comparing `before` with a new sample.
pub fn examine(socket: &Path, before: &Look) -> Vec<Finding> {
    std::thread::sleep(LOOK);
    Look::now(socket).map(|now| compare(before, &now)).unwrap_or_default()
}

fn compare(before: &Look, now: &Look) -> Vec<Finding> {
    let mut found = vec![];
    // Increase of the counter `field` of a row, which is identified by `keys`.
    let grown = |was: &[Value], row: &Value, keys: &[&str], field: &str| {
        let same = was.iter().find(|was| keys.iter().all(|key| was[*key] == row[*key]));
        let count = |row: &Value| row.pointer(field).and_then(Value::as_u64).unwrap_or(0);
        count(row).saturating_sub(same.map_or(0, count))
    };
    for port in list(&now.ports) {
        let name = text(port, "name");
        if port["state"] != "up" {
            let why = port["reason"].as_str().unwrap_or("no reason given");
            let finding = Finding::new(
                Error,
                "port-down",
                format!("the port is {}: {why}", text(port, "state")),
                "it forwards nothing",
            );
            found.push(finding.mend("bywash show ports").of(name));
        }
        let full = grown(list(&before.ports), port, &["name"], "/counters/tx_full");
        if full > 0 {
            let what = format!("its TX ring was full {full} times in a second");
            let costs = "packets are delayed, and dropped when the TX queue is full";
            let mend = "use a faster link, or an additional queue and worker";
            found.push(Finding::new(Warning, "tx-ring-full", what, costs).mend(mend).of(name));
        }
        for queue in list(&port["queues"]).iter().filter(|queue| queue["mode"] == "copy") {
            let why = queue["mode_note"].as_str().unwrap_or("the driver has no zero-copy");
            let what = format!("queue {} copies frames: {why}", queue["queue"]);
            found.push(Finding::new(Note, "copy-mode", what, "a copy for each packet").of(name));
        }
    }
    for port in
        list(&now.placement).iter().filter(|port| port["configured"] != port["level"] && port["configured"] != "auto")
    {
        if let (Some(wanted), Some(is)) = (port["configured"].as_str(), port["level"].as_str()) {
            let what = format!("level {wanted} is configured, but {is} is in effect: {}", text(port, "why"));
            found.push(
                Finding::new(Warning, "level", what, "packets are forwarded at another level than configured")
                    .of(text(port, "port")),
            );
        }
    }
    for port in list(&now.placement) {
        for kept in list(&port["kept"]) {
            let what = format!("{}: {}: {}", text(kept, "packets"), text(kept, "object"), text(kept, "reason"));
            let finding = if kept["ignored"] == true {
                let costs = "packets are forwarded that the kernel would have handled otherwise";
                Finding::new(Error, "kernel-policy-ignored", what, costs)
                    .mend("remove the key from [kernel] and reload")
            } else {
                let costs = "these packets are forwarded by the kernel, at its rate";
                Finding::new(Warning, "kernel-policy", what, costs).mend(text(kept, "allow"))
            };
            found.push(finding.of(text(port, "port")));
        }
    }
    for row in list(&now.drops["drops"]) {
        let more = grown(list(&before.drops["drops"]), row, &["port", "reason"], "/packets");
        if more > 0 {
            let reason = text(row, "reason");
            let what = format!("{more} packets were dropped in a second: {reason}");
            let mend = format!("bywash capture {} --drops {reason}", text(row, "port"));
            let finding = Finding::new(Warning, "drops", what, "packets are lost").mend(mend);
            found.push(finding.of(text(row, "port")));
        }
    }
    for pool in list(&now.pools["pools"]) {
        let name = text(pool, "name");
        let number = |key: &str| pool[key].as_f64().unwrap_or(0.0);
        let exhausted = grown(list(&before.pools["pools"]), pool, &["name"], "/exhausted");
        if exhausted > 0 || number("in_use") > NEARLY * number("frames") {
            let what = format!(
                "pool {name} has {} of {} buffers in use and ran out {exhausted} times in a second",
                pool["in_use"], pool["frames"]
            );
            found.push(
                Finding::new(Warning, "pool", what, "packets are lost for lack of buffers")
                    .mend("increase `frames` in [pool]"),
            );
        }
    }
    for worker in list(&now.workers) {
        let of = |field| grown(list(&before.workers), worker, &["id"], field) as f64;
        let (busy, all) = (of("/busy_cycles"), of("/cycles"));
        if all > 0.0 && busy > NEARLY * all {
            let what = format!("worker {} is busy for {:.0} % of its time", worker["id"], 100.0 * busy / all);
            let costs = "packets beyond this load are lost";
            let mend = "add workers and queues; `bywash profile` shows where its time goes";
            found.push(Finding::new(Warning, "saturated", what, costs).mend(mend));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(busy: u64, drops: u64, full: u64, in_use: u64) -> Look {
        Look {
            ports: json!([{ "name": "r0", "state": "up", "counters": { "tx_full": full },
                "queues": [{ "queue": 0, "mode": "copy", "mode_note": "no zero-copy" }] }]),
            workers: json!([{ "id": 0, "busy_cycles": busy, "cycles": 100 + busy }]),
            pools: json!({ "pools": [{ "name": "worker0", "frames": 100, "in_use": in_use, "exhausted": 3 }] }),
            drops: json!({ "drops": [{ "port": "r0", "reason": "no-route", "packets": drops }] }),
            placement: json!([{ "port": "r0", "configured": "driver", "level": "user", "why": "no native XDP" },
                { "port": "r1", "configured": "auto", "level": "user", "why": "" }]),
        }
    }

    #[test]
    fn what_rises_is_found() {
        let ids = |before, now| compare(&before, &now).iter().map(|f| f.id).collect::<Vec<_>>();
        assert_eq!(ids(look(0, 5, 2, 10), look(0, 5, 2, 10)), ["copy-mode", "level"]);
        let all = ["tx-ring-full", "copy-mode", "level", "drops", "pool", "saturated"];
        assert_eq!(ids(look(0, 5, 2, 10), look(1000, 6, 3, 95)), all);
    }
}
