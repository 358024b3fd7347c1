//! Trial: runs the instances for some time under one load.

use super::Bench;
use super::source::{self, Bursts, Occupancy, Source};
use bywash_docsis::instance::{CELL, INPUT, Instance, InstanceConfig};
use bywash_docsis::window::Window;
use bywash_engine::{DROP_REASONS, Idle};
use bywash_frame::{Arena, ArenaConfig, PoolConfig, PoolKind, PoolSet};
use bywash_measure::bandwidth::{Bandwidth, Moved};
use bywash_measure::energy::{Energy, Joules};
use bywash_port::pcap::{Arrears, Pace, PcapPort};
use bywash_port::{NullPort, Port, PortCounters, TxQueueConfig};
use bywash_sync::{Qsbr, clock};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WARM_UP: Duration = Duration::from_millis(300);
/// Maximum number of frames in flight per instance if the source waits: near the reference document's 750.
const WINDOW: usize = 768;

/// Load of a trial.
#[derive(Clone, Copy)]
pub enum Load {
    /// Closed loop: packets arrive as others have left, for the maximum rate.
    Closed,
    /// Fixed rate in packets per second for each instance, regardless of loss.
    Paced(u64),
}

/// Cost of one stage.
#[derive(Clone, Serialize)]
pub struct Stage {
    pub worker: &'static str,
    pub stage: String,
    pub cycles_per_packet: f64,
    pub percent: f64,
}

/// Result of a trial. Rates are means over the instances.
pub struct Outcome {
    pub gbps_each: f64,
    pub mpps_each: f64,
    pub cycles_per_packet: f64,
    /// Share of packets that were dropped, or missed because the upper MAC did not poll its source for longer than the
    /// source's ring lasts.
    pub loss_percent: f64,
    pub drops: Vec<(&'static str, u64)>,
    pub stages: Vec<Stage>,
    /// Traffic of the memory controllers during the trial, or the reason why it is unknown.
    pub memory: Result<Moved, String>,
    /// Energy during the trial, or the reason why it is unknown.
    pub energy: Result<Joules, String>,
    pub seconds: f64,
    pub crypto: String,
    pub pages: String,
    /// Frames in flight: the mean of the instances, the peak and the bursts of any of them.
    pub occupancy: source::Figures,
    /// Share of the bytes that each channel carried, in percent.
    pub channels_percent: Vec<f64>,
}

/// Longest wait for an instance to ask its source once.
const ASKED: Duration = Duration::from_secs(10);

const WORKERS: [&str; 2] = ["upper", "lower"];

struct Rig {
    instance: Instance,
    pools: Arc<PoolSet>,
    input: Arc<PortCounters>,
    output: Arc<PortCounters>,
    occupancy: Arc<Occupancy>,
    /// `None` if the source waits for the instance.
    arrears: Option<Arc<Arrears>>,
}

/// Sum of the counters of all instances.
struct Sample {
    tsc: u64,
    received: u64,
    sent: u64,
    bytes: u64,
    /// Packets that the sources could not deliver in time.
    missed: u64,
    drops: Vec<u64>,
    stages: [Vec<u64>; 2],
}

/// Runs the instances, each on channels of these rates in bits per second.
pub fn run(
    bench: &Bench<'_>,
    kind: PoolKind,
    load: Load,
    channels: &[u64],
    length: Duration,
) -> anyhow::Result<Outcome> {
    let domain = Qsbr::new();
    let n = bench.args.instances;
    let start = |id| Rig::start(bench, kind, load, channels, id, &domain);
    let rigs = (0..n).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    std::thread::sleep(WARM_UP);
    let (memory, energy) = (Bandwidth::open(), Energy::open());
    rigs.iter().for_each(|rig| rig.occupancy.begin());
    let before = Sample::take(&rigs)?;
    std::thread::sleep(length);
    let after = Sample::take(&rigs)?;
    let memory = memory.and_then(|mut memory| memory.read().map_err(|why| why.to_string()));
    let energy = energy.and_then(|energy| energy.read().map_err(|why| why.to_string()));
    for rig in &rigs {
        rig.instance.stop().map_err(|why| anyhow::anyhow!("a worker died: {why}"))?;
        super::super::all_back(&rig.pools)?;
    }

    let ticks = (after.tsc - before.tsc) as f64;
    let seconds = ticks / clock::tsc_hz() as f64;
    let packets = (after.sent - before.sent) as f64;
    let dropped: Vec<u64> = after.drops.iter().zip(&before.drops).map(|(a, b)| a - b).collect();
    let (all_dropped, received) = (dropped.iter().sum::<u64>(), (after.received - before.received) as f64);
    let offered = match load {
        Load::Closed => received,
        Load::Paced(rate) => rate as f64 * seconds * n as f64,
    };
    let lost = (all_dropped + after.missed - before.missed) as f64;
    let mut stages = vec![];
    for (which, worker) in WORKERS.into_iter().enumerate() {
        let counters = rigs[0].instance.workers[which].counters();
        let mut idle = ticks * n as f64;
        let mut push = |stage: &str, cycles: f64| {
            let percent = 100.0 * cycles / (ticks * n as f64);
            let cycles_per_packet = cycles / packets.max(1.0);
            stages.push(Stage { worker, stage: stage.into(), cycles_per_packet, percent });
        };
        for (i, stage) in counters.stages.iter().enumerate() {
            let cycles = (after.stages[which][i] - before.stages[which][i]) as f64;
            idle -= cycles;
            push(stage.name, cycles);
        }
        push("idle", idle.max(0.0));
    }
    let mut carried = vec![0.0; channels.len()];
    for channel in rigs.iter().flat_map(|rig| rig.instance.stats.channels.iter().enumerate()) {
        carried[channel.0] += channel.1.bytes.get() as f64;
    }
    let bytes: f64 = carried.iter().sum();
    Ok(Outcome {
        gbps_each: (after.bytes - before.bytes) as f64 * 8.0 / 1e9 / seconds / n as f64,
        mpps_each: packets / seconds / 1e6 / n as f64,
        cycles_per_packet: ticks * n as f64 / packets.max(1.0),
        // Bursts come on top of the rate.
        loss_percent: 100.0 * lost / offered.max(received).max(1.0),
        drops: DROP_REASONS.iter().zip(dropped).filter(|(_, n)| *n > 0).map(|(r, n)| (r.name(), n)).collect(),
        stages,
        memory,
        energy,
        seconds,
        crypto: rigs[0].instance.stats.crypto.clone(),
        pages: rigs[0].pools.arena().pages().to_string(),
        occupancy: occupancy(&rigs),
        channels_percent: carried.iter().map(|of| 100.0 * of / bytes.max(1.0)).collect(),
    })
}

/// Returns the frames in flight of all instances.
fn occupancy(rigs: &[Rig]) -> source::Figures {
    let all: Vec<source::Figures> = rigs.iter().map(|rig| rig.occupancy.figures()).collect();
    let joined = |one: Bursts, other: Bursts| Bursts {
        number: one.number + other.number,
        over: one.over + other.over,
        longest_ms: one.longest_ms.max(other.longest_ms),
    };
    source::Figures {
        normal: all.iter().map(|one| one.normal).sum::<f64>() / all.len().max(1) as f64,
        peak: all.iter().map(|one| one.peak).max().unwrap_or(0),
        bursts: all.iter().filter_map(|one| one.bursts).reduce(joined),
    }
}

impl Rig {
    fn start(
        bench: &Bench<'_>,
        kind: PoolKind,
        load: Load,
        channels: &[u64],
        id: usize,
        domain: &Qsbr,
    ) -> anyhow::Result<Self> {
        let args = bench.args;
        let arena = Arena::new(ArenaConfig {
            cells: args.frames,
            cell: CELL,
            pages: args.pages,
            packed: kind.packed(),
            ..ArenaConfig::default()
        })?;
        // The arena was touched by this thread, which may run on any socket.
        let near = PoolConfig { cpu: Some(bench.cpus.cpu(2 * id)), ..PoolConfig::new("bench", kind, args.frames) };
        let pools = PoolSet::new(arena, &[near])?;
        let output = NullPort::new();
        let sent = output.counters();
        let full = || PcapPort::replay(bench.source.clone());
        let (source, arrears) = match load {
            Load::Closed => (Source::new(full(), sent.clone()), None),
            Load::Paced(rate) => {
                let paced = bench.source.clone().paced(Pace::PacketsPerSecond(rate));
                let arrears = paced.arrears();
                let source = Source::new(PcapPort::replay(paced), sent.clone());
                let source = match args.burst {
                    Some(frames) => source.with_bursts(full(), frames),
                    None => source,
                };
                (source, arrears)
            }
        };
        let (received, occupancy, drops) = (source.counters(), source.occupancy(), source.workers());
        let input: Box<dyn Port> = match load {
            Load::Closed => Box::new(Window::new(source, sent.clone(), WINDOW)),
            Load::Paced(_) => Box::new(source),
        };
        let config = InstanceConfig {
            id,
            cpus: [Some(bench.cpus.cpu(2 * id)), Some(bench.cpus.cpu(2 * id + 1))],
            // Threads that share a CPU must yield it to each other.
            idle: if bench.cpus.enough_for(2 * args.instances) { Idle::Spin } else { Idle::Sleep },
            tx: TxQueueConfig::default(),
            ring: bench.ring(),
            lower: bench.lower(channels.to_vec()),
        };
        let instance =
            Instance::start(super::group(&bench.modems)?, &config, (&pools, 0), input, Box::new(output), domain)?;
        // Set once: nobody else has this place.
        let _ = drops.set(instance.workers.iter().map(|worker| worker.counters().clone()).collect());
        Ok(Self { instance, pools, input: received, output: sent, occupancy, arrears })
    }
}

impl Sample {
    fn take(rigs: &[Rig]) -> anyhow::Result<Self> {
        // A source finds what it missed when it is next asked.
        let (now, until) = (clock::tsc(), Instant::now() + ASKED);
        for arrears in rigs.iter().filter_map(|rig| rig.arrears.as_ref()) {
            while arrears.asked.get() < now {
                anyhow::ensure!(
                    Instant::now() < until,
                    "an upper MAC did not ask for packets for {} s",
                    ASKED.as_secs()
                );
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let mut sample = Self {
            tsc: clock::tsc(),
            received: 0,
            sent: 0,
            bytes: 0,
            missed: rigs.iter().filter_map(|rig| rig.arrears.as_ref()).map(|arrears| arrears.missed.get()).sum(),
            drops: vec![0; DROP_REASONS.len()],
            stages: [vec![], vec![]],
        };
        for rig in rigs {
            sample.received += rig.input.rx_packets.get();
            sample.sent += rig.output.tx_packets.get();
            let group = &rig.instance.group;
            sample.bytes += (0..group.flows().len()).map(|f| group.counters(f).lower.bytes.get()).sum::<u64>();
            for (worker, stages) in rig.instance.workers.iter().zip(&mut sample.stages) {
                let counters = worker.counters();
                for (sum, reason) in sample.drops.iter_mut().zip(DROP_REASONS) {
                    *sum += counters.port(INPUT).drops(*reason);
                }
                stages.resize(counters.stages.len(), 0);
                stages.iter_mut().zip(&counters.stages).for_each(|(sum, s)| *sum += s.cycles.get());
            }
        }
        Ok(sample)
    }
}
