//! Benchmark of TX queues: one worker's flow switch sends to a port, either all packets of a burst together or those of
//! each flow separately, and these by a queue or at once.
//!
//! The traffic alternates between one source address per flow, so that a burst contains packets of as many flows as
//! possible. Each address matches a flow of its own, and all flows lead to one port.

use crate::args::{frames, number, size};
use crate::stages::{self, Stage};
use bywash_config::count;
use bywash_engine::{Idle, PortId, PortTable, Worker, WorkerConfig};
use bywash_flow::app::CacheConfig;
use bywash_flow::control::{BridgeConfig, FlowControl, random_seed};
use bywash_flow::pipeline::SwitchPort;
use bywash_flow::syntax;
use bywash_frame::{Arena, ArenaConfig, BATCH, Batch, Buffers, PoolConfig, PoolSet};
use bywash_lab::{Topology, counters};
use bywash_measure::step::StageSample;
use bywash_port::af_xdp::{AfXdpPort, Bare, LinkInfo, SocketConfig, Transmit, Umem};
use bywash_port::memif::{self, MemifPort, Role};
use bywash_port::pcap::{Pace, PcapPort, PcapSource};
use bywash_port::{NullPort, Port, PortCounters, TxQueue, TxQueueConfig, TxQueueStats, WaitCounts, pair};
use bywash_sync::{Qsbr, clock};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// `bywash bench txq`
#[derive(Debug, Args)]
pub struct TxqArgs {
    /// Flow counts to measure; each flow has its own source address, used in turn
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64", value_parser = txq_flows)]
    pub flows: Vec<usize>,
    /// Send all packets for a port together (on), each flow's packets by the TX queue (queue), or each flow's packets
    /// immediately (off)  [default: measure all three in turn]
    #[arg(long, value_name = "on|queue|off", hide_possible_values = true)]
    pub coalesce: Option<Coalesce>,
    /// Kind of egress port
    #[arg(long, value_name = "PORT", default_value = "pair")]
    pub port: TxqPort,
    /// Transmit method of the veth port
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Number of frames after which the TX queue sends
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = burst)]
    pub burst: usize,
    /// Maximum time the TX queue collects frames, in microseconds; 0: until the end of the worker's iteration
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub deadline_us: u64,
    /// Offered load in packets per second  [default: as many as are accepted]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Number of rounds, each measuring on, queue and off; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Length of each measurement, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub milliseconds: u64,
    /// Also count the instructions of each stage, by running the worker one instruction at a time for some seconds
    /// (needs permission to trace)
    #[arg(long)]
    pub instructions: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How the packets of a burst get to their port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Coalesce {
    /// All packets for a port together, through its TX queue
    On,
    /// The packets of each flow separately, through the port's TX queue
    Queue,
    /// The packets of each flow separately, without waiting for others
    Off,
}

impl Coalesce {
    /// All ways, in the order of the report.
    const ALL: [Self; 3] = [Self::On, Self::Queue, Self::Off];
}

impl std::fmt::Display for Coalesce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::On => "on",
            Self::Queue => "queue",
            Self::Off => "off",
        })
    }
}

/// Egress port of `bywash bench txq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TxqPort {
    /// In-memory ring to another thread
    Pair,
    /// memif to another thread with separate buffers
    Memif,
    /// AF_XDP on a veth whose peer drops the frames (root)
    Veth,
    /// Discards the frames
    Null,
}

impl TxqPort {
    /// Returns the port's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Memif => "memif",
            Self::Veth => "veth",
            Self::Null => "null",
        }
    }
}

fn txq_flows(text: &str) -> Result<usize, String> {
    number(text, 1..=4096, "flows")
}

fn burst(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_frame::BATCH, "frames")
}

/// Warm-up time, for caches and CPU frequency.
const WARM_UP: Duration = Duration::from_millis(200);
/// Maximum time for the kernel to release a socket that has not sent everything.
const LET_GO: Duration = Duration::from_secs(1);
/// Maximum number of additional measurement intervals to wait for a worker that has sent nothing yet.
const STARVED: u32 = 50;
/// Maximum number of attempts to read all counters at one time.
const LOOKS: u32 = 50;
/// Ring size of a pair or memif, in frames.
const DEPTH: usize = 1024;

#[derive(Serialize)]
struct Figures {
    port: TxqPort,
    burst: usize,
    deadline_us: u64,
    rounds: u64,
    /// One row for each flow count and mode: the round with the median rate.
    rows: Vec<Row>,
    /// Comparison of the others with off if all were measured: medians of the rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    compared: Vec<Compared>,
}

#[derive(Clone, Serialize)]
struct Row {
    flows: usize,
    coalesce: Coalesce,
    /// Packets that arrived at the other end of the port, in millions per second.
    mpps: f64,
    cycles_per_packet: f64,
    /// Calls of the port's transmit function per packet.
    send_calls_per_packet: f64,
    /// System calls for sending per packet; ports batch frames for them with and without coalescing.
    system_calls_per_packet: f64,
    /// Time that the oldest frame of a burst waits in the TX queue.
    wait_us_p50: Option<f64>,
    wait_us_p99: Option<f64>,
    wait_us_max: Option<f64>,
    packets: u64,
    drops: u64,
    stages: Vec<Stage>,
}

#[derive(Serialize)]
struct Compared {
    flows: usize,
    /// The way that is compared with off.
    coalesce: Coalesce,
    /// Ratio of the packet rates, this to off.
    mpps_ratio: f64,
    /// Ratio of the send calls per packet, off to this.
    send_calls_cut: f64,
}

/// Runs `bywash bench txq`.
pub fn run(args: &TxqArgs) -> anyhow::Result<()> {
    let settings = args.coalesce.map_or(Coalesce::ALL.to_vec(), |one| vec![one]);
    let lab = (args.port == TxqPort::Veth).then(Lab::new).transpose()?.map(Arc::new);
    let (mut rows, mut compared) = (vec![], vec![]);
    for &flows in &args.flows {
        let mut rounds: Vec<Vec<Row>> = vec![];
        for round in 0..args.rounds {
            // Alternate the order.
            let mut order = settings.clone();
            if round % 2 == 1 {
                order.reverse();
            }
            let one = |coalesce| measure(args, flows, coalesce, lab.as_ref());
            let mut round = order.into_iter().map(one).collect::<anyhow::Result<Vec<_>>>()?;
            round.sort_by_key(|row| row.coalesce as u8);
            rounds.push(round);
        }
        for at in 0..settings.len() {
            rows.extend(super::middle(rounds.iter().map(|round| round[at].clone()), |row| row.mpps));
        }
        for (at, &coalesce) in settings.iter().enumerate().take(settings.len() - 1) {
            let ratio = |of: fn(&[Row], usize) -> f64| {
                super::median(rounds.iter().map(|round| of(round, at))).unwrap_or(f64::NAN)
            };
            compared.push(Compared {
                flows,
                coalesce,
                mpps_ratio: ratio(|round, at| round[at].mpps / round[2].mpps),
                send_calls_cut: ratio(|round, at| round[2].send_calls_per_packet / round[at].send_calls_per_packet),
            });
        }
    }
    let figures = Figures {
        port: args.port,
        burst: args.burst,
        deadline_us: args.deadline_us,
        rounds: args.rounds,
        rows,
        compared,
    };
    super::report(args.json, &figures, print)
}

fn print(f: &Figures) {
    let rounds = count(f.rounds, "round");
    println!("port {}, bursts of {} or {} us, medians of {rounds}", f.port.name(), f.burst, f.deadline_us);
    println!(
        "flows  coalesce     Mpps  cycles/packet  send calls/packet  system calls/packet  wait p50, p99, longest us"
    );
    for row in &f.rows {
        let waits = [row.wait_us_p50, row.wait_us_p99, row.wait_us_max].map(|us| us.unwrap_or(0.0));
        println!(
            "{:5}  {:8} {:8.3} {:14.1} {:18.4} {:20.4}  {:.1}, {:.1}, {:.1}",
            row.flows,
            row.coalesce,
            row.mpps,
            row.cycles_per_packet,
            row.send_calls_per_packet,
            row.system_calls_per_packet,
            waits[0],
            waits[1],
            waits[2]
        );
    }
    for row in f.rows.iter().filter(|row| row.stages.iter().any(|stage| stage.cpi.is_some())) {
        println!("{}, coalesce {}:", count(row.flows, "flow"), row.coalesce);
        stages::print(&row.stages);
    }
    for c in &f.compared {
        println!(
            "{}: {} has {:.2} x the rate of off, with 1/{:.1} of the send calls",
            count(c.flows, "flow"),
            c.coalesce,
            c.mpps_ratio,
            c.send_calls_cut
        );
    }
}

/// Returns the source address of a flow (RFC 2544, appendix C.2.2: addresses for benchmarks).
fn source(flow: usize) -> Ipv4Addr {
    Ipv4Addr::from(0xc612_0001 + flow as u32)
}

fn traffic(args: &TxqArgs, flows: usize) -> anyhow::Result<PcapSource> {
    // At least a burst, so that bursts are as full with one flow as with many.
    let frames = (0..flows.max(BATCH) / flows * flows).map(|n| {
        let (from, to) = (source(n % flows), Ipv4Addr::new(198, 19, 0, 1));
        Packet::udp(SocketAddr::from((from, 1024)), SocketAddr::from((to, 9)))
            .macs(MacAddr([2, 0, 0, 0, 1, 1]), MacAddr([2, 0, 0, 0, 0, 1]))
            .size(args.size)
            .build()
    });
    let source = PcapSource::from_frames(frames.collect::<Result<Vec<_>, _>>()?)?.repeated();
    Ok(match args.rate {
        Some(rate) => source.paced(Pace::PacketsPerSecond(rate)),
        None => source,
    })
}

/// Egress port under test, and the counter of packets at its other end.
struct Target {
    port: Box<dyn Port>,
    counters: Arc<PortCounters>,
    arrived: Box<dyn Fn() -> anyhow::Result<u64>>,
    /// Stops the receiver.
    end: Box<dyn FnOnce() -> anyhow::Result<()>>,
}

/// Namespaces of `--port veth`, with an XDP program that drops all frames at the far end.
struct Lab {
    _sink: Bare,
    topology: Topology,
}

impl Lab {
    fn new() -> anyhow::Result<Self> {
        bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
        let topology = Topology::router()?;
        let b = topology.b();
        let sink = b.ns.enter(|| Bare::drop(&b.interface))??;
        Ok(Self { _sink: sink, topology })
    }
}

fn target(args: &TxqArgs, pools: &Arc<PoolSet>, lab: Option<&Arc<Lab>>, cpu: Option<usize>) -> anyhow::Result<Target> {
    Ok(match (args.port, lab) {
        (TxqPort::Veth, Some(lab)) => {
            let umem = Umem::new(pools.arena());
            let interface = lab.topology.b().router_interface.clone();
            let config = SocketConfig { transmit: args.transmit, ..SocketConfig::default() };
            let port = lab.topology.r().enter(|| {
                let link = LinkInfo::query(&interface)?;
                AfXdpPort::open(&umem, &link, 0, &config)
            })??;
            let (seen, lab, pools) = (lab.clone(), lab.clone(), pools.clone());
            Target {
                counters: port.counters(),
                port: Box::new(port),
                arrived: Box::new(move || {
                    let b = seen.topology.b();
                    Ok(counters(&b.ns, &b.interface)?.rx_packets)
                }),
                end: Box::new(move || {
                    lab.topology.r().enter(|| umem.settle(&mut Buffers::attach(&pools, 0), LET_GO))?;
                    Ok(())
                }),
            }
        }
        (TxqPort::Pair, _) => {
            let (here, there) = pair(DEPTH);
            let (sink, received) = (Sink::start(pools.clone(), there, cpu), here.counters());
            let arrived = sink.counters.clone();
            Target {
                port: Box::new(here),
                counters: received,
                arrived: Box::new(move || Ok(arrived.rx_packets.get())),
                end: Box::new(move || sink.stop()),
            }
        }
        (TxqPort::Memif, _) => {
            let config = |role| memif::Config {
                socket: format!("@bywash-txq-{}", std::process::id()).into(),
                role,
                ring: DEPTH,
                sealed: false,
                ..memif::Config::default()
            };
            let cells = 4 * DEPTH;
            let theirs = Arena::new(ArenaConfig { cells, ..Default::default() })?;
            let theirs = PoolSet::new(theirs, &[PoolConfig::stack("receiver", cells)])?;
            let there = MemifPort::open(&config(Role::Server), theirs.arena())?;
            let here = MemifPort::open(&config(Role::Client), pools.arena())?;
            let (sink, counters) = (Sink::start(theirs, there, cpu), here.counters());
            let arrived = sink.counters.clone();
            Target {
                port: Box::new(here),
                counters,
                arrived: Box::new(move || Ok(arrived.rx_packets.get())),
                end: Box::new(move || sink.stop()),
            }
        }
        _ => {
            let port = NullPort::new();
            let sent = port.counters();
            Target {
                port: Box::new(port),
                counters: sent.clone(),
                arrived: Box::new(move || Ok(sent.tx_packets.get())),
                end: Box::new(|| Ok(())),
            }
        }
    })
}

/// Receiving thread at the other end of a pair or memif.
struct Sink {
    counters: Arc<PortCounters>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Sink {
    fn start(pools: Arc<PoolSet>, mut port: impl Port + 'static, cpu: Option<usize>) -> Self {
        let (counters, stop) = (port.counters(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            super::pin(cpu)?;
            let mut bufs = Buffers::attach(&pools, 0);
            let mut batch = Batch::new();
            while !stopped.load(Ordering::Relaxed) {
                if port.rx_burst(&mut bufs, &mut batch) == 0 {
                    std::hint::spin_loop();
                }
                bufs.free(&mut batch);
                port.housekeep(&mut bufs);
            }
            port.close(&mut bufs);
            Ok(())
        });
        Self { counters, stop, thread }
    }

    fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the receiving thread panicked"))?
    }
}

struct Sample {
    tsc: u64,
    arrived: u64,
    sent: u64,
    drops: u64,
    sends: u64,
    system_calls: u64,
    waits: WaitCounts,
    stages: StageSample,
}

fn measure(args: &TxqArgs, flows: usize, coalesce: Coalesce, lab: Option<&Arc<Lab>>) -> anyhow::Result<Row> {
    let allowed = bywash_config::Host::this().allowed;
    let cpus = [allowed.first().copied(), allowed.get(1).or(allowed.first()).copied()];
    let arena = Arena::new(ArenaConfig { cells: args.frames, ..Default::default() })?;
    let pools = PoolSet::new(arena, &[PoolConfig::stack("bench", args.frames)])?;
    let domain = Qsbr::new();
    let mut control =
        FlowControl::new(&domain, vec![SwitchPort::numbered(1), SwitchPort::numbered(2)], BridgeConfig::default());
    for n in 0..flows {
        // The reference document's flows, one for each address.
        let flow = format!("in_port=1,dl_type=0x0800,nw_src={},actions=output:2", source(n));
        control.add(syntax::flow(&flow, &|_| None)?)?;
    }
    control.commit();
    let mut switch = control.worker(CacheConfig { insert_one_in: 1, ..CacheConfig::default() }, random_seed());
    let mut queue = TxQueueConfig { burst: args.burst, deadline_us: args.deadline_us };
    if coalesce != Coalesce::On {
        switch = switch.sending_by_flow();
    }
    if coalesce == Coalesce::Off {
        queue.burst = 1;
    }

    let target = target(args, &pools, lab, cpus[0])?;
    let mut out = PortTable::new();
    out.add(Box::new(PcapPort::replay(traffic(args, flows)?)), TxQueue::new(TxQueueConfig::default()));
    let queue = TxQueue::new(queue);
    let stats: Arc<TxQueueStats> = queue.stats();
    out.add(target.port, queue);
    let config = WorkerConfig { id: 0, cpu: cpus[1], idle: Idle::Spin };
    let worker = Worker::new(config, out, Box::new(switch), Buffers::attach(&pools, 0), domain.register());
    let worker = match lab {
        // The worker must run in the namespace of the interface it sends on.
        Some(lab) => lab.topology.r().enter(|| worker.spawn())??,
        None => worker.spawn()?,
    };

    let look = || -> anyhow::Result<Sample> {
        Ok(Sample {
            tsc: clock::tsc(),
            arrived: (target.arrived)()?,
            sent: target.counters.tx_packets.get(),
            drops: worker.counters().port(PortId(0)).total(),
            sends: stats.sends().0,
            system_calls: target.counters.tx_wakeups.get(),
            waits: stats.waits.counts(),
            stages: stages::sample(worker.counters()),
        })
    };
    // This thread may lose its CPU between two counters, which would then be of different times.
    let take = || -> anyhow::Result<Sample> {
        let mut sample = look()?;
        for _ in 1..LOOKS {
            if clock::tsc() - sample.tsc < clock::us_to_ticks(100) {
                break;
            }
            sample = look()?;
        }
        Ok(sample)
    };
    std::thread::sleep(WARM_UP);
    let before = take()?;
    std::thread::sleep(Duration::from_millis(args.milliseconds));
    let mut after = take()?;
    // On a busy machine the worker may not have run at all so far.
    for _ in 0..STARVED {
        if after.sent > before.sent {
            break;
        }
        std::thread::sleep(Duration::from_millis(args.milliseconds));
        after = take()?;
    }
    let packets = after.sent - before.sent;
    let drops = after.drops - before.drops;
    let stages = stages::between(worker.counters(), &before.stages, &after.stages, packets + drops, args.instructions)?;
    worker.stop();
    drop(worker);
    (target.end)()?;
    super::all_back(&pools)?;

    let ticks = (after.tsc - before.tsc) as f64;
    let waits = after.waits.since(&before.waits);
    let per_packet = |n: u64| n as f64 / packets.max(1) as f64;
    anyhow::ensure!(packets > 0, "nothing was sent");
    Ok(Row {
        flows,
        coalesce,
        mpps: (after.arrived - before.arrived) as f64 / (ticks / clock::tsc_hz() as f64) / 1e6,
        cycles_per_packet: ticks / (packets + drops) as f64,
        send_calls_per_packet: per_packet(after.sends - before.sends),
        system_calls_per_packet: per_packet(after.system_calls - before.system_calls),
        wait_us_p50: waits.quantile_us(0.5),
        wait_us_p99: waits.quantile_us(0.99),
        wait_us_max: waits.quantile_us(1.0),
        packets,
        drops,
        stages,
    })
}
