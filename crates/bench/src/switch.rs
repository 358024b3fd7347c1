//! Benchmark of the flow switch, with a capture replayed from memory; sent frames are discarded. Workers have ports, a
//! pool and caches of their own, and share the tables.

use crate::args::{OnOff, SECONDS, flows, frames, size};
use crate::scaling::{self, Scaling};
use crate::stages::{self, Stage};
use anyhow::Context as _;
use bywash_config::count;
use bywash_engine::{Idle, PortId, PortTable, Worker, WorkerConfig, WorkerCounters, WorkerHandle};
use bywash_flow::app::CacheConfig;
use bywash_flow::control::{BridgeConfig, FlowControl, random_seed};
use bywash_flow::pipeline::SwitchPort;
use bywash_flow::stats::CacheCounters;
use bywash_flow::syntax;
use bywash_frame::{Buffers, Pages, PoolKind, PoolSet};
use clap::Args;
use std::path::PathBuf;

/// `bywash bench switch`
#[derive(Debug, Args)]
pub struct SwitchArgs {
    /// Number of flows in the traffic, each with its own source address and port
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// File with the switch's flows, in ovs-ofctl syntax; port 1 receives, port 2 discards  [default: 512 flows with
    /// dec_ttl and mod_dl_dst]
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Use the exact-match cache
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub emc: OnOff,
    /// Insertion rate of the exact-match cache: one in N flows that miss it is inserted
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub emc_insert: u32,
    /// Replay this capture file instead of generated traffic
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// CPU to run on  [default: chosen by the scheduler]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    #[command(flatten)]
    pub scaling: Scaling,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Only write the traffic and the flows to this directory (traffic.pcap, flows.txt), and exit
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
    /// Also count the instructions of each stage, by running the worker one instruction at a time for some seconds
    /// (needs permission to trace)
    #[arg(long)]
    pub instructions: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

use bywash_measure::step::StageSample;
use bywash_port::pcap::{CaptureFile, PcapPort, PcapSource};
use bywash_port::{NullPort, Port, PortCounters, TxQueue, TxQueueConfig};
use bywash_sync::{Qsbr, clock};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Number of the switch's flows if none are given.
const RULES: usize = 512;
const WARM_UP: Duration = Duration::from_millis(500);

#[derive(Serialize)]
struct Figures {
    mpps: f64,
    cycles_per_packet: f64,
    packets: u64,
    /// Packets from the start to the end of the worker: those of `packets`, and those before and after.
    packets_in_all: u64,
    drops: u64,
    flows: usize,
    rules: usize,
    emc: bool,
    /// Share of packets found at each level, in percent.
    exact_percent: f64,
    megaflow_percent: f64,
    table_percent: f64,
    megaflows: u64,
    masks: u64,
    /// Mean number of masks tried per packet that misses the exact-match cache.
    masks_tried: f64,
    pages: String,
    seconds: f64,
    /// Stages of the first worker.
    stages: Vec<Stage>,
    /// The other figures are those of the first number of workers in the first round.
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<scaling::Curve>,
}

pub fn run(args: &SwitchArgs) -> anyhow::Result<()> {
    let rules = match &args.rules {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
        None => (0..RULES).map(rule).collect(),
    };
    let source = match &args.pcap {
        Some(path) => PcapSource::load(path).with_context(|| format!("{}", path.display()))?,
        None => {
            let frames = (0..args.flows).map(|flow| frame(flow, args.size)).collect::<Result<Vec<_>, _>>()?;
            if let Some(dir) = &args.write {
                std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
                let write = CaptureFile::of_frames(dir.join("traffic.pcap"), &frames);
                write.and_then(|()| std::fs::write(dir.join("flows.txt"), &rules)).context("cannot write")?;
                return Ok(());
            }
            PcapSource::from_frames(frames)?
        }
    };
    let (mut figures, curve) = args.scaling.measure(
        args.cpu,
        |cpus| measure(args, &rules, &source, cpus),
        |f| (f.mpps, f.cycles_per_packet),
    )?;
    figures.scaling = curve;
    super::report(args.json, &figures, print)
}

fn address(rule: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + (rule as u32) * 256 + 1)
}

fn rule(i: usize) -> String {
    format!(
        "priority=100,ip,nw_dst={} actions=dec_ttl,mod_dl_dst:02:00:00:01:{:02x}:{:02x},output:2\n",
        address(i),
        i >> 8,
        i & 255
    )
}

fn frame(flow: usize, size: usize) -> Result<Vec<u8>, bywash_wire::build::BuildError> {
    let src = SocketAddr::from((Ipv4Addr::from(0xc612_0000 + flow as u32), 1024 + (flow % 50_000) as u16));
    let dst = SocketAddr::from((address(flow % RULES), 9));
    Packet::udp(src, dst).macs(MacAddr([2, 0, 0, 0, 1, 1]), MacAddr([2, 0, 0, 0, 0, 1])).size(size).build()
}

fn print(f: &Figures) {
    println!(
        "{:.2} Mpps, {:.1} cycles/packet ({} packets in {:.1} s, {} dropped)",
        f.mpps, f.cycles_per_packet, f.packets, f.seconds, f.drops
    );
    println!(
        "{}, {}; exact-match cache {}: {:.1} %, megaflows {:.1} %, tables {:.3} %; {} megaflows, {} masks",
        count(f.rules, "rule"),
        count(f.flows, "source flow"),
        if f.emc { "on" } else { "off" },
        f.exact_percent,
        f.megaflow_percent,
        f.table_percent,
        f.megaflows,
        f.masks
    );
    stages::print(&f.stages);
    if let Some(curve) = &f.scaling {
        print!("{curve}");
    }
}

/// Worker of the benchmark, with its caches' counters and those of the port that discards.
struct Running {
    worker: WorkerHandle,
    cache: Arc<CacheCounters>,
    out: Arc<PortCounters>,
}

/// Measures a worker on each of `cpus`; `None` leaves it to the scheduler.
fn measure(args: &SwitchArgs, rules: &str, source: &PcapSource, cpus: &[Option<usize>]) -> anyhow::Result<Figures> {
    let kind = PoolKind::Stack;
    let arena = super::arena(kind, args.frames * cpus.len(), args.pages)?;
    let pools = PoolSet::new(arena, &scaling::pools(kind, args.frames, 0, cpus.len()))?;
    let domain = Qsbr::new();
    let mut control =
        FlowControl::new(&domain, vec![SwitchPort::numbered(1), SwitchPort::numbered(2)], BridgeConfig::default());
    let names = |_: &str| None;
    for (n, line) in rules.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#')) {
        let flow = syntax::flow(line, &names).with_context(|| format!("line {}", n + 1))?;
        control.add(flow).with_context(|| format!("line {}", n + 1))?;
    }
    control.commit();
    let mut caches = CacheConfig { insert_one_in: args.emc_insert.max(1), ..CacheConfig::default() };
    if args.emc == OnOff::Off {
        caches.exact = 0;
    }
    let mut running = vec![];
    for (id, cpu) in cpus.iter().enumerate() {
        let switch = control.worker(caches, random_seed());
        let cache = control.counters().last().context("a worker has counters")?.clone();
        let mut ports = PortTable::new();
        ports.add(Box::new(PcapPort::replay(source.clone().repeated())), TxQueue::new(TxQueueConfig::default()));
        let null = NullPort::new();
        let out = null.counters();
        ports.add(Box::new(null), TxQueue::new(TxQueueConfig::default()));
        let config = WorkerConfig { id, cpu: *cpu, idle: Idle::Spin };
        let bufs = Buffers::attach(&pools, id % pools.pools().len());
        let worker = Worker::new(config, ports, Box::new(switch), bufs, domain.register()).spawn()?;
        running.push(Running { worker, cache, out });
    }

    std::thread::sleep(WARM_UP);
    let take = || running.iter().map(Sample::take).collect::<Vec<_>>();
    let (tsc, before) = (clock::tsc(), take());
    std::thread::sleep(Duration::from_secs(args.seconds));
    let (ticks, after) = (clock::tsc() - tsc, take());
    let of_worker: Vec<Sample> = before.iter().zip(&after).map(|(before, after)| after.since(before)).collect();
    let sum = |of: fn(&Sample) -> u64| of_worker.iter().map(of).sum::<u64>();
    let packets = sum(Sample::packets);
    let first = running[0].worker.counters();
    let of_first = of_worker[0].packets();
    let stages = stages::between(first, &before[0].stages, &after[0].stages, of_first, args.instructions)?;
    let counters: Vec<_> = running.iter().map(|one| (one.worker.counters().clone(), one.out.clone())).collect();
    let cache = running[0].cache.clone();
    running.into_iter().for_each(|one| drop(one.worker.stop()));
    let of = |(worker, out): &(Arc<WorkerCounters>, Arc<PortCounters>)| {
        out.tx_packets.get() + worker.port(PortId(0)).total()
    };
    let packets_in_all = counters.iter().map(of).sum();
    super::all_back(&pools)?;

    let seconds = ticks as f64 / clock::tsc_hz() as f64;
    let hits: [f64; 4] = std::array::from_fn(|i| of_worker.iter().map(|one| one.hits[i]).sum::<u64>() as f64);
    let share = |n: f64| 100.0 * n / packets.max(1) as f64;
    Ok(Figures {
        mpps: packets as f64 / seconds / 1e6,
        cycles_per_packet: ticks as f64 * cpus.len() as f64 / packets.max(1) as f64,
        packets,
        packets_in_all,
        drops: sum(|one| one.drops),
        flows: source.len(),
        rules: control.len(),
        emc: args.emc == OnOff::On,
        exact_percent: share(hits[0]),
        megaflow_percent: share(hits[1]),
        table_percent: share(hits[2]),
        megaflows: cache.megaflows.get(),
        masks: cache.masks.get(),
        masks_tried: hits[3] / (hits[1] + hits[2]).max(1.0),
        pages: pools.arena().pages().to_string(),
        seconds,
        stages,
        scaling: None,
    })
}

/// Counters of a worker.
struct Sample {
    sent: u64,
    drops: u64,
    hits: [u64; 4],
    stages: StageSample,
}

impl Sample {
    fn take(of: &Running) -> Self {
        let cache = &of.cache;
        Self {
            sent: of.out.tx_packets.get(),
            drops: of.worker.counters().port(PortId(0)).total(),
            hits: [&cache.exact_hits, &cache.megaflow_hits, &cache.misses, &cache.masks_tried].map(|c| c.get()),
            stages: stages::sample(of.worker.counters()),
        }
    }

    /// Returns the difference to an earlier sample; the stages are those of this one.
    fn since(&self, before: &Self) -> Self {
        let hits = std::array::from_fn(|i| self.hits[i] - before.hits[i]);
        Self { sent: self.sent - before.sent, drops: self.drops - before.drops, hits, stages: self.stages.clone() }
    }

    fn packets(&self) -> u64 {
        self.sent + self.drops
    }
}
