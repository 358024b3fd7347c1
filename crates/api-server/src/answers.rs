//! Answers about ports, workers, pools and drops, from the counters of the engine, ports and pools.

use bywash_api::{
    Arena, Audit, Blocks, DropCount, Drops, EventCount, Health, Poll, Pool, PortCounters, Queue, Stage, TxQueue,
    Worker, WorkerTxQueue, XdpCount,
};
use bywash_engine::{DROP_REASONS, DropReason, EVENTS, Event, Idle, PortDrops, PortReport, WorkerHandle};
use bywash_frame::{BATCH, PoolSet};
use bywash_port::af_xdp::XdpCounters;
use bywash_port::{PortState, TxQueueStats, WaitCounts};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for a worker's report.
const REPORT: Duration = Duration::from_millis(200);

/// Returns the ends of every worker with the worker's number, and the number of buffers that the workers hold.
pub fn reports<'a>(workers: impl IntoIterator<Item = &'a WorkerHandle>) -> (Vec<(usize, PortReport)>, usize) {
    let (mut ends, mut held) = (vec![], 0);
    for worker in workers {
        if let Some(report) = worker.report(REPORT) {
            held += report.held;
            ends.extend(report.ports.into_iter().map(|port| (worker.id(), port)));
        }
    }
    (ends, held)
}

/// Returns the counters of a port's ends, added up, with those of its XDP program, if it has one: they count the port's
/// frames whichever level they were handled at.
pub fn port_counters(ends: &[Arc<bywash_port::PortCounters>], program: Option<&XdpCounters>) -> PortCounters {
    let all = bywash_port::PortCounters::default();
    ends.iter().for_each(|end| all.add(end));
    let mut sum = PortCounters {
        rx_packets: all.rx_packets.get(),
        rx_bytes: all.rx_bytes.get(),
        tx_packets: all.tx_packets.get(),
        tx_bytes: all.tx_bytes.get(),
        rx_no_buffer: all.rx_no_buffer.get(),
        rx_ring_full: all.rx_ring_full.get(),
        invalid: all.invalid.get(),
        tx_full: all.tx_full.get(),
        tx_refused: all.tx_refused.get(),
        rx_wakeups: all.rx_wakeups.get(),
        tx_wakeups: all.tx_wakeups.get(),
        polls: all.polls.get(),
        busy_polls: all.busy_polls.get(),
        tx_reordered: all.tx_reordered.get(),
    };
    if let Some(program) = program {
        let handled = ["to_port", "to_member", "drop_port_gone", "drop_cpu_busy"];
        sum.rx_packets += handled.into_iter().map(|name| program.get(name)).sum::<u64>();
        sum.rx_bytes += program.rx_bytes;
        sum.tx_packets += program.tx_frames;
        sum.tx_bytes += program.tx_bytes;
    }
    sum
}

/// Returns the name of a state, and its reason.
pub fn state(state: &PortState) -> (&'static str, Option<String>) {
    match state {
        PortState::Up => ("up", None),
        PortState::Down(reason) => ("down", Some(reason.clone())),
        PortState::Ended => ("ended", None),
    }
}

/// Returns an end of a port, polled by a worker.
pub fn queue((worker, end): &(usize, PortReport)) -> Queue {
    let mut texts: BTreeMap<String, String> =
        end.details.iter().map(|(key, text)| ((*key).to_owned(), text.clone())).collect();
    Queue {
        worker: *worker as u64,
        held: end.held as u64,
        state: state(&end.state).0.into(),
        queue: texts.remove("queue"),
        mode: texts.remove("mode"),
        mode_note: texts.remove("mode_note"),
        transmit_note: texts.remove("transmit_note"),
        peer: texts.remove("peer"),
        reconnects: texts.remove("reconnects"),
        refused: texts.remove("refused"),
        others: texts,
    }
}

/// Returns the statistics of TX queues, added up.
pub fn tx_queue(queues: &[Arc<TxQueueStats>]) -> TxQueue {
    let (mut calls, mut frames, mut waits) = (0, 0, WaitCounts::default());
    let mut bursts = [0; BATCH + 1];
    for queue in queues {
        let (c, f) = queue.sends();
        (calls, frames) = (calls + c, frames + f);
        waits.add(&queue.waits.counts());
        bursts.iter_mut().zip(&queue.bursts).for_each(|(all, n)| *all += n.get());
    }
    TxQueue {
        sends: calls,
        packets: frames,
        burst_mean: frames as f64 / calls.max(1) as f64,
        bursts: bursts.to_vec(),
        wait_us_p50: waits.quantile_us(0.5),
        wait_us_p99: waits.quantile_us(0.99),
        wait_us_max: waits.quantile_us(1.0),
        waits_us: waits.buckets(),
    }
}

/// Returns a worker: `cpu` is the CPU that it is pinned to, `polls` are its queues, `tx_queues` those that it sends by.
pub fn worker(
    worker: &WorkerHandle,
    (cpu, idle): (Option<usize>, Idle),
    polls: Vec<Poll>,
    tx_queues: Vec<WorkerTxQueue>,
) -> Worker {
    let c = worker.counters();
    let (cycles, busy) = (c.cycles.get(), c.busy_cycles.get());
    let rx_bursts: Vec<u64> = c.rx_bursts.iter().map(|b| b.get()).collect();
    let packets: u64 = rx_bursts.iter().zip(0..).map(|(bursts, size)| size * bursts).sum();
    let stages = c.stages.iter().map(|s| {
        let (cycles, packets) = (s.cycles.get(), s.packets.get());
        let cycles_per_packet = cycles as f64 / packets.max(1) as f64;
        let counted = s.counted.each_ref().map(|counter| counter.get());
        let counted = (counted[0] > 0).then_some(counted);
        Stage { name: s.name.into(), cycles, packets, bursts: s.bursts.get(), cycles_per_packet, counted }
    });
    Worker {
        id: worker.id() as u64,
        cpu: cpu.map(|cpu| cpu as u64),
        idle: match idle {
            Idle::Sleep => "sleep".into(),
            Idle::Spin => "spin".into(),
        },
        polls,
        turns: c.turns.get(),
        idle_turns: c.idle_turns.get(),
        sleeps: c.sleeps.get(),
        panics: c.panics.get(),
        thread: c.thread.get(),
        cycles,
        busy_cycles: busy,
        busy_percent: 100.0 * busy as f64 / cycles.max(1) as f64,
        rx_burst_mean: packets as f64 / rx_bursts.iter().sum::<u64>().max(1) as f64,
        rx_bursts,
        stages: stages.collect(),
        tx_queues,
    }
}

/// Returns the arena of the pools.
pub fn arena(pools: &PoolSet) -> Arena {
    let arena = pools.arena();
    Arena {
        cells: arena.cells() as u64,
        spare: pools.spare() as u64,
        cell: arena.cell_size() as u64,
        bytes: arena.mapped() as u64,
        pages: arena.pages().to_string(),
        note: arena.pages_note().into(),
    }
}

/// Returns a pool, from which these workers allocate. `chosen` is the reason for its kind, if it was chosen.
pub fn pool(pool: &bywash_frame::Pool, workers: &[usize], chosen: Option<String>) -> Pool {
    let (stats, config) = (pool.stats(), pool.config());
    let blocks = stats.blocks.map(|blocks| Blocks {
        size: blocks.size as u64,
        free: blocks.free as u64,
        open: blocks.open as u64,
        draining: blocks.draining as u64,
    });
    Pool {
        name: stats.name,
        kind: stats.kind.to_string(),
        cache: stats.cache as u64,
        frames: stats.frames as u64,
        free: stats.free as u64,
        cached: stats.cached as u64,
        parked: stats.parked as u64,
        in_use: stats.in_use as u64,
        normal: stats.normal as u64,
        peak: stats.peak as u64,
        high_water: stats.high_water as u64,
        allocated: stats.allocated,
        freed: stats.freed,
        exhausted: stats.exhausted,
        surplus: stats.surplus,
        draining: stats.draining,
        chosen,
        workers: workers.iter().map(|worker| *worker as u64).collect(),
        cpu: config.cpu.map(|cpu| cpu as u64),
        memory: pool.place().map(|place| place.to_string()),
        blocks,
    }
}

/// Returns the count of all buffers, of which workers and sockets hold `held`.
pub fn audit(pools: &PoolSet, held: usize) -> Audit {
    let bywash_frame::Audit { cells, free, cached, parked, held, missing } = pools.audit(held);
    let [cells, free, cached, parked, held] = [cells, free, cached, parked, held].map(|cells| cells as u64);
    Audit { cells, free, cached, parked, held, missing }
}

/// Adds the drops and events that workers have counted for a port. `(packets, copies)` are the packets, and copies of
/// dropped ones, that workers handed to the kernel and that it refused.
pub fn add_drops(all: &mut Drops, port: &str, counted: &[&PortDrops], (packets, copies): (u64, u64)) {
    for reason in DROP_REASONS {
        let later = if *reason == DropReason::PuntFailed { packets } else { 0 };
        let n = later + counted.iter().map(|c| c.drops(*reason)).sum::<u64>();
        if n > 0 {
            all.drops.push(DropCount { port: port.into(), reason: reason.name().into(), packets: n });
        }
    }
    for event in EVENTS {
        let (more, less) = match event {
            Event::Punted => (0, packets),
            Event::IcmpByKernel => (0, copies),
            Event::IcmpWithheld => (copies, 0),
            _ => (0, 0),
        };
        let n = (more + counted.iter().map(|c| c.events(*event)).sum::<u64>()).saturating_sub(less);
        if n > 0 {
            all.events.push(EventCount { port: port.into(), event: event.name().into(), count: n });
        }
    }
}

/// Names of packets that the kernel or the driver lost, beside those that workers dropped.
pub const LOSSES: [&str; 4] = ["rx-no-buffer", "rx-ring-full", "invalid-descriptor", "tx-refused"];

/// Adds the packets of a port that the kernel or the driver lost, on receiving or on sending.
pub fn add_losses(all: &mut Drops, port: &str, ends: &[Arc<bywash_port::PortCounters>]) {
    let mut counts = [0; LOSSES.len()];
    for c in ends {
        let of_end = [&c.rx_no_buffer, &c.rx_ring_full, &c.invalid, &c.tx_refused];
        counts.iter_mut().zip(of_end).for_each(|(sum, counter)| *sum += counter.get());
    }
    for (reason, packets) in LOSSES.into_iter().zip(counts).filter(|(_, n)| *n > 0) {
        all.drops.push(DropCount { port: port.into(), reason: reason.into(), packets });
    }
}

/// Adds the verdicts of a port's XDP program.
pub fn add_verdicts(all: &mut Drops, port: &str, counters: &XdpCounters) {
    let counted = counters.iter().filter(|(_, n)| *n > 0);
    let row = |(verdict, packets): (&str, u64)| XdpCount { port: port.into(), verdict: verdict.into(), packets };
    all.xdp.extend(counted.map(row));
}

/// Returns the health of an instance with this mode that has no fault.
pub fn health(mode: &str, started: Instant) -> Health {
    Health {
        status: "ok".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        mode: mode.into(),
        pid: std::process::id().into(),
        uptime_s: started.elapsed().as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers find a row by its port and reason.
    #[test]
    fn losses_of_all_ends_of_a_port_are_one_row() {
        let ends: [Arc<bywash_port::PortCounters>; 2] = Default::default();
        ends[0].rx_no_buffer.set(10);
        ends[1].rx_no_buffer.set(5_000);
        ends[1].tx_refused.set(1);
        let mut all = Drops::default();
        add_losses(&mut all, "up", &ends);
        let rows: Vec<_> = all.drops.iter().map(|row| (row.reason.as_str(), row.packets)).collect();
        assert_eq!(rows, [("rx-no-buffer", 5_010), ("tx-refused", 1)]);
    }
}
