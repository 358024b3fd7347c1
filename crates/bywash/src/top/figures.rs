//! Figures of `bywash top`: differences between two samples of the instance's counters.

use crate::api::Topic;
use crate::show;
use crate::show::list;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

/// Maximum number of flows for which they are queried; a switch can have millions.
const FLOWS: u64 = 4096;
/// Number of flows shown: those with the highest packet rates.
const BUSIEST: usize = 20;

/// Sample of the instance's counters.
pub struct Look {
    at: Instant,
    mode: String,
    ports: Value,
    workers: Value,
    pools: Value,
    drops: Value,
    caches: Value,
    flows: Value,
}

impl Look {
    /// Queries the instance for a sample.
    pub fn take(socket: &Path) -> anyhow::Result<Self> {
        let ask = |topic| show::ask(socket, topic);
        let mode = ask(Topic::Config)?["mode"].as_str().unwrap_or_default().to_owned();
        let caches = if mode == "switch" { ask(Topic::Caches)? } else { Value::Null };
        let flows = match mode.as_str() {
            "switch" if caches["flows"].as_u64().unwrap_or(0) <= FLOWS => ask(Topic::Flows)?,
            "cmts" => ask(Topic::ServiceFlows)?,
            _ => Value::Null,
        };
        Ok(Self {
            at: Instant::now(),
            ports: ask(Topic::Ports)?,
            workers: ask(Topic::Workers)?,
            pools: ask(Topic::Pools)?,
            drops: ask(Topic::Drops)?,
            mode,
            caches,
            flows,
        })
    }
}

/// Differences between two samples. Rates are per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub interval_s: f64,
    pub mode: String,
    pub total: Total,
    pub ports: Vec<Port>,
    pub workers: Vec<Worker>,
    pub pools: Vec<Pool>,
    pub drops: Vec<Drop>,
    /// Flow caches of a switch; `None` in other modes.
    pub caches: Option<Caches>,
    /// Flows of a switch, or service flows of a cable downstream: those with the highest packet rates.
    pub flows: Vec<Flow>,
}

/// Totals over all ports and workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Total {
    pub rx_pps: f64,
    pub tx_pps: f64,
    pub rx_bps: f64,
    pub tx_bps: f64,
    pub drops_pps: f64,
    /// Mean of all workers.
    pub busy_percent: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    pub name: String,
    pub state: String,
    pub level: String,
    pub rx_pps: f64,
    pub tx_pps: f64,
    pub rx_bps: f64,
    pub tx_bps: f64,
    /// Number of frames in its rings and queues.
    pub held: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    pub id: u64,
    pub cpu: Option<u64>,
    pub busy_percent: f64,
    /// Received packets per second.
    pub rx_pps: f64,
    /// Mean number of packets per burst, at most 64.
    pub burst_mean: f64,
    pub cycles_per_packet: f64,
    pub stages: Vec<Stage>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    pub name: String,
    /// Percentage of the worker's time.
    pub percent: f64,
    pub pps: f64,
    pub cycles_per_packet: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    pub name: String,
    pub frames: u64,
    pub in_use: u64,
    pub peak: u64,
    /// Allocations per second that got fewer buffers than requested.
    pub exhausted_per_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drop {
    pub port: String,
    pub reason: String,
    pub pps: f64,
    /// Total since the start of the instance.
    pub packets: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Caches {
    pub lookups_pps: f64,
    pub exact_percent: f64,
    pub megaflow_percent: f64,
    pub miss_percent: f64,
    pub flows: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    pub name: String,
    pub pps: f64,
    pub bps: f64,
    /// Total since the start of the instance.
    pub packets: u64,
    /// Number of queued packets; `None` for flows without a queue.
    pub queued: Option<u64>,
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn share(part: f64, of: f64) -> f64 {
    if of > 0.0 { (100.0 * part / of).clamp(0.0, 100.0) } else { 0.0 }
}

fn mean(sum: f64, of: f64) -> f64 {
    if of > 0.0 { sum / of } else { 0.0 }
}

/// Returns the row of `before` with the same values of `keys` as `now`; null if there is none.
fn same<'a>(before: &'a Value, now: &Value, keys: &[&str]) -> &'a Value {
    let row = list(before).iter().find(|row| keys.iter().all(|key| row[*key] == now[*key]));
    row.unwrap_or(&Value::Null)
}

/// Returns the increase of a counter. A counter that has decreased was reset, so its value is the increase.
fn grown(before: &Value, now: &Value) -> f64 {
    let (before, now) = (number(before), number(now));
    if now >= before { now - before } else { now }
}

impl Figures {
    /// Computes the differences between two samples.
    pub fn between(before: &Look, now: &Look) -> Self {
        Self::over(before, now, now.at.duration_since(before.at).as_secs_f64())
    }

    fn over(before: &Look, now: &Look, seconds: f64) -> Self {
        let rate = |before: &Value, now: &Value| mean(grown(before, now), seconds);
        let port = |row: &Value| {
            let old = &same(&before.ports, row, &["name"])["counters"];
            let of = |key: &str| rate(&old[key], &row["counters"][key]);
            Port {
                name: word(&row["name"]),
                state: word(&row["state"]),
                level: word(&row["level"]),
                rx_pps: of("rx_packets"),
                tx_pps: of("tx_packets"),
                rx_bps: 8.0 * of("rx_bytes"),
                tx_bps: 8.0 * of("tx_bytes"),
                held: list(&row["queues"]).iter().filter_map(|queue| queue["held"].as_u64()).sum(),
            }
        };
        let ports: Vec<Port> = list(&now.ports).iter().map(port).collect();
        let worker = |row: &Value| worker(same(&before.workers, row, &["id"]), row, seconds);
        let workers: Vec<Worker> = list(&now.workers).iter().map(worker).collect();
        let pool = |row: &Value| {
            let old = same(&before.pools["pools"], row, &["name"]);
            Pool {
                name: word(&row["name"]),
                frames: number(&row["frames"]) as u64,
                in_use: number(&row["in_use"]) as u64,
                peak: number(&row["peak"]) as u64,
                exhausted_per_s: rate(&old["exhausted"], &row["exhausted"]),
            }
        };
        let drop = |row: &Value| Drop {
            port: word(&row["port"]),
            reason: word(&row["reason"]),
            pps: rate(&same(&before.drops["drops"], row, &["port", "reason"])["packets"], &row["packets"]),
            packets: number(&row["packets"]) as u64,
        };
        let mut drops: Vec<Drop> = list(&now.drops["drops"]).iter().map(drop).collect();
        drops.sort_by(|a, b| b.pps.total_cmp(&a.pps).then(b.packets.cmp(&a.packets)));
        let sum = |of: fn(&Port) -> f64| 0.0 + ports.iter().map(of).sum::<f64>();
        let total = Total {
            rx_pps: sum(|port| port.rx_pps),
            tx_pps: sum(|port| port.tx_pps),
            rx_bps: sum(|port| port.rx_bps),
            tx_bps: sum(|port| port.tx_bps),
            // The sum of an empty iterator is -0.
            drops_pps: 0.0 + drops.iter().map(|drop| drop.pps).sum::<f64>(),
            busy_percent: mean(workers.iter().map(|worker| worker.busy_percent).sum(), workers.len() as f64),
        };
        Self {
            interval_s: seconds,
            mode: now.mode.clone(),
            total,
            ports,
            workers,
            pools: list(&now.pools["pools"]).iter().map(pool).collect(),
            drops,
            caches: caches(&before.caches, &now.caches, seconds),
            flows: flows(before, now, seconds),
        }
    }
}

fn worker(before: &Value, now: &Value, seconds: f64) -> Worker {
    let of = |key: &str| grown(&before[key], &now[key]);
    let cycles = of("cycles");
    let (mut bursts, mut packets) = (0.0, 0.0);
    for (n, now) in list(&now["rx_bursts"]).iter().enumerate().skip(1) {
        let grown = grown(list(&before["rx_bursts"]).get(n).unwrap_or(&Value::Null), now);
        bursts += grown;
        packets += n as f64 * grown;
    }
    let stage = |row: &Value| {
        let old = same(&before["stages"], row, &["name"]);
        let (spent, handled) = (grown(&old["cycles"], &row["cycles"]), grown(&old["packets"], &row["packets"]));
        Stage {
            name: word(&row["name"]),
            percent: share(spent, cycles),
            pps: mean(handled, seconds),
            cycles_per_packet: mean(spent, handled),
        }
    };
    let stages: Vec<Stage> = list(&now["stages"]).iter().map(stage).filter(|stage| stage.pps > 0.0).collect();
    Worker {
        id: number(&now["id"]) as u64,
        cpu: now["cpu"].as_u64(),
        busy_percent: share(of("busy_cycles"), cycles),
        rx_pps: mean(packets, seconds),
        burst_mean: mean(packets, bursts),
        cycles_per_packet: mean(of("busy_cycles"), packets),
        stages,
    }
}

fn caches(before: &Value, now: &Value, seconds: f64) -> Option<Caches> {
    now["workers"].as_array()?;
    let sum = |key: &str| -> f64 {
        let row = |row: &Value| grown(&same(&before["workers"], row, &["worker"])[key], &row[key]);
        list(&now["workers"]).iter().map(row).sum()
    };
    let (exact, megaflow, misses) = (sum("exact_hits"), sum("megaflow_hits"), sum("misses"));
    let all = exact + megaflow + misses;
    Some(Caches {
        lookups_pps: mean(all, seconds),
        exact_percent: share(exact, all),
        megaflow_percent: share(megaflow, all),
        miss_percent: share(misses, all),
        flows: number(&now["flows"]) as u64,
    })
}

fn flows(before: &Look, now: &Look, seconds: f64) -> Vec<Flow> {
    let (keys, packets, octets): (&[&str], _, _) = match now.mode.as_str() {
        "switch" => (&["table", "priority", "match"], "n_packets", "n_bytes"),
        _ => (&["group", "modem", "flow"], "packets", "bytes"),
    };
    let flow = |row: &Value| {
        let old = same(&before.flows, row, keys);
        let name = match now.mode.as_str() {
            "switch" => {
                let part = |key: &str, before: &str| match word(&row[key]) {
                    text if text.is_empty() => text,
                    text => format!("{before}{text}"),
                };
                format!(
                    "table={},priority={}{} actions={}",
                    word(&row["table"]),
                    word(&row["priority"]),
                    part("match", ","),
                    word(&row["actions"])
                )
            }
            _ => keys.iter().map(|key| format!("{key} {}", word(&row[*key]))).collect::<Vec<_>>().join(", "),
        };
        Flow {
            name,
            pps: mean(grown(&old[packets], &row[packets]), seconds),
            bps: mean(8.0 * grown(&old[octets], &row[octets]), seconds),
            packets: number(&row[packets]) as u64,
            queued: row["queued"].as_u64(),
        }
    };
    let mut flows: Vec<Flow> = list(&now.flows).iter().map(flow).collect();
    flows.sort_by(|a, b| b.pps.total_cmp(&a.pps).then(b.packets.cmp(&a.packets)));
    flows.truncate(BUSIEST);
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(packets: u64, cycles: u64) -> Look {
        Look {
            at: Instant::now(),
            mode: "switch".into(),
            ports: json!([{ "name": "a", "state": "up", "level": "user", "queues": [{ "held": 3 }, { "held": 4 }],
                            "counters": { "rx_packets": packets, "rx_bytes": packets * 100, "tx_packets": 2 * packets } }]),
            workers: json!([{ "id": 0, "cpu": 2, "cycles": cycles, "busy_cycles": cycles / 4,
                              "rx_bursts": [9, 0, packets / 2],
                              "stages": [{ "name": "rx", "cycles": cycles / 10, "packets": packets },
                                         { "name": "slow", "cycles": 7, "packets": 3 }] }]),
            pools: json!({ "pools": [{ "name": "p", "frames": 64, "in_use": 9, "peak": 11, "exhausted": packets }] }),
            drops: json!({ "drops": [{ "port": "a", "reason": "runt", "packets": 5 },
                                     { "port": "a", "reason": "no-flow", "packets": packets }] }),
            caches: json!({ "flows": 1, "workers": [{ "worker": 0, "exact_hits": packets, "megaflow_hits": 0, "misses": 0 }] }),
            flows: json!([{ "table": 0, "priority": 1, "match": "ip", "actions": "drop", "n_packets": packets, "n_bytes": 0 }]),
        }
    }

    #[test]
    fn rates_are_of_the_time_in_between() {
        let it = Figures::over(&look(1000, 10_000), &look(3000, 90_000), 2.0);
        let port = &it.ports[0];
        assert_eq!((port.rx_pps, port.tx_pps, port.rx_bps, port.held), (1000.0, 2000.0, 800_000.0, 7));
        let worker = &it.workers[0];
        assert_eq!((worker.busy_percent, worker.burst_mean, worker.rx_pps), (25.0, 2.0, 1000.0));
        assert_eq!(worker.cycles_per_packet, 10.0);
        // Stages without packets are left out.
        assert_eq!(worker.stages.len(), 1);
        assert_eq!((worker.stages[0].percent, worker.stages[0].cycles_per_packet), (10.0, 4.0));
        assert_eq!(it.pools[0].exhausted_per_s, 1000.0);
        // Rising counters come first.
        let drops: Vec<_> = it.drops.iter().map(|drop| (drop.reason.as_str(), drop.pps)).collect();
        assert_eq!(drops, [("no-flow", 1000.0), ("runt", 0.0)]);
        assert_eq!(it.caches.as_ref().unwrap().exact_percent, 100.0);
        assert_eq!(it.flows[0].name, "table=0,priority=1,ip actions=drop");
    }

    #[test]
    fn a_restarted_instance_counts_from_nothing() {
        let it = Figures::over(&look(3000, 90_000), &look(1000, 10_000), 1.0);
        assert_eq!(it.ports[0].rx_pps, 1000.0);
        let first = Figures::over(&look(0, 0), &look(0, 0), 0.0);
        assert_eq!((first.ports[0].rx_pps, first.workers[0].busy_percent), (0.0, 0.0));
    }
}
