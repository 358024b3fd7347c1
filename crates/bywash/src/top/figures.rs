//! Figures of `bywash top`: differences between two samples of the instance's counters.

use crate::api;
use crate::api::client::ask;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

/// Maximum number of flows for which they are queried; a switch can have millions.
const FLOWS: u64 = 4096;
/// Number of flows shown: those with the highest packet rates.
const BUSIEST: usize = 20;

/// Sample of the instance's counters.
pub struct Sample {
    at: Instant,
    mode: String,
    ports: Vec<api::Port>,
    workers: Vec<api::Worker>,
    pools: api::Pools,
    drops: api::Drops,
    caches: Option<api::Caches>,
    flows: Vec<FlowCount>,
    placement: Vec<api::Placement>,
    /// Table of a router's established flows; `None` if there is none.
    table: Option<api::FlowTable>,
}

/// Counters of a flow or service flow.
#[derive(Clone, Default)]
struct FlowCount {
    /// Text that identifies it.
    key: String,
    name: String,
    packets: u64,
    bytes: u64,
    queued: Option<u64>,
}

impl From<api::Flow> for FlowCount {
    fn from(flow: api::Flow) -> Self {
        let matches = if flow.matches.is_empty() { String::new() } else { format!(",{}", flow.matches) };
        let key = format!("table={},priority={}{matches}", flow.table, flow.priority);
        let name = format!("{key} actions={}", flow.actions);
        Self { key, name, packets: flow.n_packets, bytes: flow.n_bytes, queued: None }
    }
}

impl From<api::ServiceFlow> for FlowCount {
    fn from(flow: api::ServiceFlow) -> Self {
        let key = format!("group {}, modem {}, flow {}", flow.group, flow.modem, flow.flow);
        Self { name: key.clone(), key, packets: flow.packets, bytes: flow.bytes, queued: Some(flow.queued) }
    }
}

impl Sample {
    /// Queries the instance for a sample.
    pub fn take(socket: &Path) -> anyhow::Result<Self> {
        let mode = ask::<api::Config>(socket)?.mode;
        let caches: Option<api::Caches> = (mode == "switch").then(|| ask(socket)).transpose()?;
        let flows = match mode.as_str() {
            "switch" if caches.as_ref().is_some_and(|caches| caches.flows <= FLOWS) => {
                ask::<Vec<api::Flow>>(socket)?.into_iter().map(FlowCount::from).collect()
            }
            "cmts" => ask::<Vec<api::ServiceFlow>>(socket)?.into_iter().map(FlowCount::from).collect(),
            _ => vec![],
        };
        Ok(Self {
            at: Instant::now(),
            ports: ask(socket)?,
            workers: ask(socket)?,
            pools: ask(socket)?,
            drops: ask(socket)?,
            placement: if mode == "router" { ask(socket)? } else { vec![] },
            // An instance of an older version has none.
            table: ask::<api::FlowTable>(socket).ok().filter(|table| mode == "router" && table.state != "off"),
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
    /// Shares of a router's packets by path; `None` without established flows, and in other modes.
    pub ways: Option<PathShares>,
}

/// Shares of a router's received packets by path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathShares {
    /// Percentage forwarded by established flows.
    pub flow_percent: f64,
    /// Percentage forwarded by routes alone, or dropped.
    pub route_percent: f64,
    /// Percentage left to the kernel.
    pub kernel_percent: f64,
    /// Established flows now, and their maximum number.
    pub flows: u64,
    pub limit: u64,
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

fn share(part: f64, of: f64) -> f64 {
    if of > 0.0 { (100.0 * part / of).clamp(0.0, 100.0) } else { 0.0 }
}

fn mean(sum: f64, of: f64) -> f64 {
    if of > 0.0 { sum / of } else { 0.0 }
}

/// Returns the row of `before` with the same key as `now`; one with counters of zero if there is none.
fn same<T: Clone + Default, K: PartialEq>(before: &[T], now: &T, key: impl Fn(&T) -> K) -> T {
    before.iter().find(|row| key(row) == key(now)).cloned().unwrap_or_default()
}

/// Returns the increase of a counter. A counter that has decreased was reset, so its value is the increase.
fn grown(before: u64, now: u64) -> f64 {
    now.checked_sub(before).unwrap_or(now) as f64
}

impl Figures {
    /// Computes the differences between two samples.
    pub fn between(before: &Sample, now: &Sample) -> Self {
        Self::over(before, now, now.at.duration_since(before.at).as_secs_f64())
    }

    fn over(before: &Sample, now: &Sample, seconds: f64) -> Self {
        let rate = |before, now| mean(grown(before, now), seconds);
        let port = |row: &api::Port| {
            let (old, new) = (same(&before.ports, row, |port| port.name.clone()).counters, &row.counters);
            Port {
                name: row.name.clone(),
                state: row.state.clone(),
                level: row.level.clone(),
                rx_pps: rate(old.rx_packets, new.rx_packets),
                tx_pps: rate(old.tx_packets, new.tx_packets),
                rx_bps: 8.0 * rate(old.rx_bytes, new.rx_bytes),
                tx_bps: 8.0 * rate(old.tx_bytes, new.tx_bytes),
                held: row.queues.iter().map(|queue| queue.held).sum(),
            }
        };
        let ports: Vec<Port> = now.ports.iter().map(port).collect();
        let worker = |row| worker(&same(&before.workers, row, |worker| worker.id), row, seconds);
        let workers: Vec<Worker> = now.workers.iter().map(worker).collect();
        let pool = |row: &api::Pool| Pool {
            name: row.name.clone(),
            frames: row.frames,
            in_use: row.in_use,
            peak: row.peak,
            exhausted_per_s: rate(same(&before.pools.pools, row, |pool| pool.name.clone()).exhausted, row.exhausted),
        };
        let drop = |row: &api::DropCount| {
            let old = same(&before.drops.drops, row, |row| (row.port.clone(), row.reason.clone()));
            let (port, reason, packets) = (row.port.clone(), row.reason.clone(), row.packets);
            Drop { port, reason, pps: rate(old.packets, packets), packets }
        };
        let mut drops: Vec<Drop> = now.drops.drops.iter().map(drop).collect();
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
            pools: now.pools.pools.iter().map(pool).collect(),
            drops,
            caches: now.caches.as_ref().map(|now| caches(before.caches.as_ref(), now, seconds)),
            flows: flows(before, now, seconds),
            ways: now.table.as_ref().map(|table| path_shares(before, now, table)),
        }
    }
}

fn worker(before: &api::Worker, now: &api::Worker, seconds: f64) -> Worker {
    let (cycles, busy) = (grown(before.cycles, now.cycles), grown(before.busy_cycles, now.busy_cycles));
    let (mut bursts, mut packets) = (0.0, 0.0);
    for (n, now) in now.rx_bursts.iter().enumerate().skip(1) {
        let grown = grown(before.rx_bursts.get(n).copied().unwrap_or(0), *now);
        bursts += grown;
        packets += n as f64 * grown;
    }
    let stage = |row: &api::Stage| {
        let old = same(&before.stages, row, |stage| stage.name.clone());
        let (spent, handled) = (grown(old.cycles, row.cycles), grown(old.packets, row.packets));
        Stage {
            name: row.name.clone(),
            percent: share(spent, cycles),
            pps: mean(handled, seconds),
            cycles_per_packet: mean(spent, handled),
        }
    };
    let stages: Vec<Stage> = now.stages.iter().map(stage).filter(|stage| stage.pps > 0.0).collect();
    Worker {
        id: now.id,
        cpu: now.cpu,
        busy_percent: share(busy, cycles),
        rx_pps: mean(packets, seconds),
        burst_mean: mean(packets, bursts),
        cycles_per_packet: mean(busy, packets),
        stages,
    }
}

fn path_shares(before: &Sample, now: &Sample, table: &api::FlowTable) -> PathShares {
    let frames = |of: fn(&api::LevelFrames) -> u64| -> f64 {
        let old = |row| same(&before.placement, row, |row| row.port.clone());
        now.placement.iter().map(|row| grown(of(&old(row).frames), of(&row.frames))).sum()
    };
    let (taken, kernel) = (frames(|frames| frames.driver + frames.user), frames(|frames| frames.kernel));
    let by_flow = grown(before.table.as_ref().map_or(0, |table| table.packets), table.packets).min(taken);
    let all = taken + kernel;
    PathShares {
        flow_percent: share(by_flow, all),
        route_percent: share(taken - by_flow, all),
        kernel_percent: share(kernel, all),
        flows: table.families.iter().map(|family| family.flows).sum(),
        limit: table.limit,
    }
}

fn caches(before: Option<&api::Caches>, now: &api::Caches, seconds: f64) -> Caches {
    let before = before.map_or(&[][..], |before| &before.workers);
    let sum = |of: fn(&api::WorkerCaches) -> u64| -> f64 {
        now.workers.iter().map(|row| grown(of(&same(before, row, |row| row.worker)), of(row))).sum()
    };
    let (exact, megaflow, misses) = (sum(|row| row.exact_hits), sum(|row| row.megaflow_hits), sum(|row| row.misses));
    let all = exact + megaflow + misses;
    Caches {
        lookups_pps: mean(all, seconds),
        exact_percent: share(exact, all),
        megaflow_percent: share(megaflow, all),
        miss_percent: share(misses, all),
        flows: now.flows,
    }
}

fn flows(before: &Sample, now: &Sample, seconds: f64) -> Vec<Flow> {
    let old: HashMap<&str, &FlowCount> = before.flows.iter().map(|flow| (flow.key.as_str(), flow)).collect();
    let flow = |row: &FlowCount| {
        let (packets, bytes) = old.get(row.key.as_str()).map_or((0, 0), |old| (old.packets, old.bytes));
        Flow {
            name: row.name.clone(),
            pps: mean(grown(packets, row.packets), seconds),
            bps: mean(8.0 * grown(bytes, row.bytes), seconds),
            packets: row.packets,
            queued: row.queued,
        }
    };
    let mut flows: Vec<Flow> = now.flows.iter().map(flow).collect();
    flows.sort_by(|a, b| b.pps.total_cmp(&a.pps).then(b.packets.cmp(&a.packets)));
    flows.truncate(BUSIEST);
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn read<T: DeserializeOwned>(json: Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    fn look(packets: u64, cycles: u64) -> Sample {
        Sample {
            at: Instant::now(),
            mode: "switch".into(),
            ports: read(
                json!([{ "name": "a", "state": "up", "level": "user", "queues": [{ "held": 3 }, { "held": 4 }],
                            "counters": { "rx_packets": packets, "rx_bytes": packets * 100, "tx_packets": 2 * packets } }]),
            ),
            workers: read(json!([{ "id": 0, "cpu": 2, "cycles": cycles, "busy_cycles": cycles / 4,
                              "rx_bursts": [9, 0, packets / 2],
                              "stages": [{ "name": "rx", "cycles": cycles / 10, "packets": packets },
                                         { "name": "slow", "cycles": 7, "packets": 3 }] }])),
            pools: read(
                json!({ "pools": [{ "name": "p", "frames": 64, "in_use": 9, "peak": 11, "exhausted": packets }] }),
            ),
            drops: read(json!({ "drops": [{ "port": "a", "reason": "runt", "packets": 5 },
                                     { "port": "a", "reason": "no-flow", "packets": packets }] })),
            caches: Some(read(
                json!({ "flows": 1, "workers": [{ "worker": 0, "exact_hits": packets, "megaflow_hits": 0, "misses": 0 }] }),
            )),
            flows: vec![FlowCount::from(read::<api::Flow>(json!({ "table": 0, "priority": 1, "match": "ip",
                "actions": "drop", "n_packets": packets, "n_bytes": 0 })))],
            placement: read(
                json!([{ "port": "a", "frames": { "driver": 2 * packets, "user": packets, "kernel": packets } }]),
            ),
            table: Some(read(json!({ "packets": packets, "limit": 9, "families": [{ "flows": 2 }, { "flows": 1 }] }))),
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
        let shares = it.ways.as_ref().unwrap();
        assert_eq!((shares.flow_percent, shares.route_percent, shares.kernel_percent), (25.0, 50.0, 25.0));
        assert_eq!((shares.flows, shares.limit), (3, 9));
    }

    #[test]
    fn a_restarted_instance_counts_from_nothing() {
        let it = Figures::over(&look(3000, 90_000), &look(1000, 10_000), 1.0);
        assert_eq!(it.ports[0].rx_pps, 1000.0);
        let first = Figures::over(&look(0, 0), &look(0, 0), 0.0);
        assert_eq!((first.ports[0].rx_pps, first.workers[0].busy_percent), (0.0, 0.0));
    }
}
