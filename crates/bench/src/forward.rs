//! Benchmark of the whole IPv4 router path, with a capture replayed from memory and sent frames discarded: the cost of
//! the program itself. Workers have ports and a pool of their own, and share the tables.

mod tunnel;

use super::captured::{self, Captured, Cost};
use super::established;
use crate::args::{SECONDS, flows, frames, number, routes, size};
use crate::scaling::{self, Scaling};
use crate::stages::{self, Stage};
use anyhow::{Context as _, bail};
use bywash_config::count;
use bywash_engine::{App, Context, Idle, PortId, PortTable, Worker, WorkerConfig, WorkerHandle};
use bywash_fib::flows::Flows;
use bywash_fib::model::{Families, Gate, Tunnel};
use bywash_fib::{Net4, Table4, Table6, synth};
use bywash_frame::{Batch, Buffers, Pages, PoolKind, PoolSet};
use bywash_measure::step::StageSample;
use bywash_port::pcap::{CaptureFile, PcapPort, PcapSource};
use bywash_port::{Port, PortCounters, TxQueue, TxQueueConfig};
use bywash_router::gates::Gates;
use bywash_router::tables::{Cold, Entry, HashPolicy, Kind, Own4, PortInfo, Tables, VlanInfo};
use bywash_router::tunnel::Tunnels;
use bywash_router::vlan::{FIRST, tag};
use bywash_router::{Router, RouterConfig};
use bywash_sync::{Published, Qsbr, clock};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::{MacAddr, ethertype};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// `bywash bench forward`
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// Work per packet
    #[arg(long, value_name = "WHAT", default_value = "route")]
    pub app: Application,
    /// Buffer pool policy
    #[arg(long, value_name = "KIND", default_value = "stack")]
    pub pool: PoolKind,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Size of the worker's cache in front of the pool, in buffers; a cache hides the pool's policy  [default: 0]
    #[arg(long, value_name = "N", value_parser = cache)]
    pub cache: Option<usize>,
    /// Number of IPv4 routes in the table
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = routes)]
    pub routes: usize,
    /// Number of flows in a worker's traffic, each with its own destination address
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Read every byte of every forwarded packet
    #[arg(long)]
    pub touch: bool,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Also measure, in alternating rounds, the cost of an active capture that matches no packet
    #[arg(long, value_name = "WHAT")]
    pub capture: Option<Captured>,
    /// tcpdump expression of `--capture filtered`; no packet of the traffic may match it
    #[arg(long, value_name = "EXPR", default_value = "udp src port 9999")]
    pub filter: String,
    /// CPU to run on  [default: chosen by the scheduler]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    #[command(flatten)]
    pub scaling: Scaling,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Replay this capture file on both ports instead of generated traffic
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Forward between DPDK net_pcap devices on port0.pcap and port1.pcap in this directory (requires a build with the
    /// feature `dpdk`)
    #[arg(long, value_name = "DIR", conflicts_with = "pcap")]
    pub net_pcap: Option<PathBuf>,
    /// Forward between these two DPDK devices, by name and arguments (requires a build with the feature `dpdk`)
    #[arg(long = "device", value_name = "DEVICE", conflicts_with_all = ["pcap", "net_pcap"])]
    pub devices: Vec<String>,
    /// Send this many frames by each port at the start: between two ends of one link, they go round for ever
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first: usize,
    /// Only write the traffic and the routes to this directory (port0.pcap, port1.pcap, and routes_v4.txt in l3fwd's
    /// format), and exit
    #[arg(long, value_name = "DIR", conflicts_with = "pcap")]
    pub write_pcap: Option<PathBuf>,
    /// Also count the instructions of each stage, by running the worker one instruction at a time for some seconds
    /// (needs permission to trace)
    #[arg(long)]
    pub instructions: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Applications that forward between the two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// The full IPv4 router path
    Route,
    /// The router's path past a closed gate: every flow is an established connection with its source translated
    Nat,
    /// The router's path from a VLAN to another, with a tag on both sides
    Vlans,
    /// The router's path through a VXLAN with UDP checksums, over IPv4
    Vxlan,
    /// The same over IPv6
    Vxlan6,
    /// The router's path of packets that come through a VXLAN with UDP checksums, over IPv4
    FromVxlan,
    /// The router's path through a GRE tunnel over IPv4
    Gre,
    /// The router's path of packets that come through a GRE tunnel over IPv4
    FromGre,
    /// Swap the MAC addresses: the least work of any forwarder, and so the highest rate from this source
    Swap,
    /// Send each packet by the other port, unread
    Io,
}

impl Application {
    /// Returns the tunnel that the router has, and whether all routes lead through it.
    fn tunnel(self) -> Option<(Tunnel, bool)> {
        match self {
            Self::Vxlan => Some((tunnel::vxlan(), true)),
            Self::Vxlan6 => Some((tunnel::vxlan6(), true)),
            Self::FromVxlan => Some((tunnel::vxlan(), false)),
            Self::Gre => Some((tunnel::gre(), true)),
            Self::FromGre => Some((tunnel::gre(), false)),
            Self::Route | Self::Nat | Self::Vlans | Self::Swap | Self::Io => None,
        }
    }
}

fn cache(text: &str) -> Result<usize, String> {
    number(text, 0..=8192, "buffers")
}

const PORTS: u16 = 2;
const WARM_UP: Duration = Duration::from_millis(300);
/// Seed of the routes, the same in every run.
const SEED: u64 = 2544;

#[derive(Serialize)]
struct Figures {
    app: Application,
    mpps: f64,
    cycles_per_packet: f64,
    packets: u64,
    /// Packets from the start to the end of the worker: those of `packets`, and those before and after.
    packets_in_all: u64,
    drops: u64,
    pool: String,
    cache: usize,
    frames: usize,
    routes: usize,
    flows: usize,
    size: usize,
    touch: bool,
    pages: String,
    seconds: f64,
    /// Stages of the first worker.
    stages: Vec<Stage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<Cost>,
    /// The other figures are those of the first number of workers in the first round.
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<scaling::Curve>,
}

pub fn run(args: &ForwardArgs) -> anyhow::Result<()> {
    let traffic = Traffic::new(args)?;
    if let Some(dir) = &args.write_pcap {
        return traffic.write(args, dir);
    }
    if !args.scaling.one() && (args.net_pcap.is_some() || !args.devices.is_empty() || args.capture.is_some()) {
        bail!("--workers and --rounds measure traffic from memory only: remove --net-pcap, --device and --capture");
    }
    let tunnelled = args.app.tunnel().is_some();
    if tunnelled && (args.pcap.is_some() || args.net_pcap.is_some() || !args.devices.is_empty()) {
        bail!("packets in tunnels are generated: remove --pcap, --net-pcap and --device");
    }
    if tunnelled && args.size > tunnel::SIZE {
        bail!("--size {}: the tunnel carries frames of up to {} bytes", args.size, tunnel::SIZE);
    }
    let (mut figures, curve) =
        args.scaling.measure(args.cpu, |cpus| measure(args, &traffic, cpus), |f| (f.mpps, f.cycles_per_packet))?;
    figures.scaling = curve;
    super::report(args.json, &figures, print)
}

fn print(f: &Figures) {
    println!(
        "{:.2} Mpps, {:.1} cycles/packet ({} packets in {:.1} s, {} dropped)",
        f.mpps, f.cycles_per_packet, f.packets, f.seconds, f.drops
    );
    let routes = count(f.routes, "route");
    let work = match f.app {
        Application::Route => routes,
        Application::Nat => format!("{routes}, sources translated"),
        Application::Vlans => format!("{routes}, from a VLAN to another"),
        Application::Vxlan => format!("{routes}, through a VXLAN over IPv4"),
        Application::Vxlan6 => format!("{routes}, through a VXLAN over IPv6"),
        Application::FromVxlan => format!("{routes}, from a VXLAN over IPv4"),
        Application::Gre => format!("{routes}, through GRE over IPv4"),
        Application::FromGre => format!("{routes}, from GRE over IPv4"),
        Application::Swap => "MAC addresses swapped, no lookup".into(),
        Application::Io => "packets unread".into(),
    };
    println!(
        "pool {} of {} frames, cache {}, pages {}; {work}, {}, {} B",
        f.pool,
        f.frames,
        f.cache,
        f.pages,
        count(f.flows, "flow"),
        f.size
    );
    stages::print(&f.stages);
    if let Some(cost) = &f.capture {
        println!("{cost}");
    }
    if let Some(curve) = &f.scaling {
        print!("{curve}");
    }
}

/// Frames to replay on each port.
type Frames = [Vec<Vec<u8>>; PORTS as usize];

/// Routes, and a capture to replay: packets received on one port leave on the other.
struct Traffic {
    routes: Vec<(Net4, PortId)>,
    captured: Option<Frames>,
}

impl Traffic {
    fn new(args: &ForwardArgs) -> anyhow::Result<Self> {
        // Routes alternate between the ports; flows spread evenly over the routes.
        let prefixes = synth::routes4(args.routes, SEED);
        let routable = prefixes.iter().filter(|(net, _)| net.addr() >> 24 != 127);
        let routes: Vec<_> = routable.enumerate().map(|(i, (net, _))| (*net, PortId(i as u16 % PORTS))).collect();
        let load = |path: &PathBuf| PcapSource::load(path).with_context(|| format!("{}", path.display()));
        let captured = args.pcap.as_ref().map(load).transpose()?;
        let captured = captured.map(|source| std::array::from_fn(|_| source.frames().collect()));
        Ok(Self { routes, captured })
    }

    /// Returns the frames of a worker: flows of its own, as if a device had spread them, or the capture.
    fn frames(&self, args: &ForwardArgs, worker: usize) -> anyhow::Result<Frames> {
        if let Some(frames) = &self.captured {
            return Ok(frames.clone());
        }
        let mut frames = [vec![], vec![]];
        for flow in 0..args.flows {
            let (net, to) = self.routes[flow * self.routes.len() / args.flows];
            let (addr, len) = (net.addr(), net.len());
            // A different host within the prefix for each flow, not the prefix's first address.
            let host =
                if len >= 31 { 0 } else { 1 + (flow as u32 % ((1u32 << (32 - u32::from(len)).min(31)) - 2).max(1)) };
            let src =
                SocketAddr::from((Ipv4Addr::from(0xc612_0000 + flow as u32 % 0xffff), 1024 + (flow % 50_000) as u16));
            let dst = SocketAddr::from((Ipv4Addr::from(addr | host), 9 + worker as u16));
            let from = 1 - to.0;
            let frame = Packet::udp(src, dst)
                .macs(MacAddr([2, 0, 0, 0, 1, from as u8]), MacAddr([2, 0, 0, 0, 0, from as u8]))
                .size(args.size)
                .build()?;
            let frame = match args.app.tunnel() {
                Some((tunnel, false)) => tunnel::around(&tunnel, &frame)?,
                _ if args.app == Application::Vlans => [&frame[..12], &vlan_tag(from), &frame[12..]].concat(),
                _ => frame,
            };
            frames[usize::from(from)].push(frame);
        }
        Ok(frames)
    }

    /// Writes the packets of a worker, and the routes in l3fwd's format, for other programs.
    fn write(&self, args: &ForwardArgs, dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        for (i, frames) in self.frames(args, 0)?.iter().enumerate() {
            let path = dir.join(format!("port{i}.pcap"));
            CaptureFile::of_frames(&path, frames).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let rules: String =
            self.routes.iter().map(|(n, p)| format!("R{}/{} {}\n", Ipv4Addr::from(n.addr()), n.len(), p.0)).collect();
        let path = dir.join("routes_v4.txt");
        std::fs::write(&path, rules).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Worker of the benchmark, with the counters of its ports.
struct Running {
    worker: WorkerHandle,
    ports: Vec<Arc<PortCounters>>,
}

/// Measures a worker on each of `cpus`; `None` leaves it to the scheduler.
fn measure(args: &ForwardArgs, traffic: &Traffic, cpus: &[Option<usize>]) -> anyhow::Result<Figures> {
    // A cache in front of a pool hides the pool's policy from a worker that frees its own buffers. The policy is
    // measured here, so there is no cache unless one is requested.
    let cache = args.cache.unwrap_or(0);
    let kind = args.pool;
    let arena = super::arena(kind, args.frames * cpus.len(), args.pages)?;
    let pools = PoolSet::new(arena, &scaling::pools(kind, args.frames, cache, cpus.len()))?;

    let domain = Qsbr::new();
    let tables = tables(&domain, traffic, args.app)?;
    let frames = (0..cpus.len()).map(|worker| traffic.frames(args, worker)).collect::<anyhow::Result<Vec<_>>>()?;
    if frames.iter().flatten().any(Vec::is_empty) {
        bail!("no traffic for one of the ports: give more flows or routes");
    }
    let devices = match &args.net_pcap {
        Some(dir) => super::dpdk::net_pcap(dir, PORTS)?,
        None => args.devices.clone(),
    };
    let gates = Gates::open();
    let mut connections = Flows::new(&domain, [None, None], args.flows * cpus.len())?;
    if args.app == Application::Nat {
        connections.set_generation(established::GENERATION);
        for (from, frames) in frames.iter().flat_map(|of_worker| (0..PORTS).zip(of_worker)) {
            let mut add = |frame: &Vec<u8>| established::add(&mut connections, frame, (from, 1 - from), 0);
            frames.iter().try_for_each(&mut add)?;
        }
        let gate = Gate { closed: Families::V4, flows: Families::V4, ..Gate::default() };
        (0..PORTS).for_each(|port| gates.set(PortId(port), gate));
    }
    let (mut running, mut inboxes) = (vec![], vec![]);
    for ((id, cpu), frames) in cpus.iter().enumerate().zip(&frames) {
        let mut out = PortTable::new();
        let replay = |frames: &Vec<Vec<u8>>| -> anyhow::Result<Box<dyn Port>> {
            Ok(Box::new(PcapPort::replay(PcapSource::from_frames(frames)?.repeated())))
        };
        let opened = match devices.len() {
            0 => frames.iter().map(replay).collect::<anyhow::Result<_>>()?,
            n if n == usize::from(PORTS) => super::dpdk::open(&devices, &pools)?,
            n => bail!("{n} devices: give {PORTS}"),
        };
        let ports = opened.iter().map(|port| port.counters()).collect();
        for port in opened {
            out.add(port, TxQueue::new(TxQueueConfig::default()));
        }
        let (requests, inbox) = rtrb::RingBuffer::new(256);
        inboxes.push(inbox);
        let router = Router::new(tables.clone(), requests, RouterConfig::default());
        let app: Box<dyn App> = match args.app {
            Application::Nat => Box::new(router.with_gates(gates.clone()).with_flows(connections.reader())),
            Application::Swap => Box::new(swap),
            Application::Io => Box::new(io),
            _ => Box::new(router),
        };
        let app = if args.first > 0 { Box::new(First(app, [args.first; PORTS as usize])) } else { app };
        let app = if args.touch { Box::new(Touch(app, 0)) } else { app };
        let config = WorkerConfig { id, cpu: *cpu, idle: Idle::Spin };
        let bufs = Buffers::attach(&pools, id % pools.pools().len());
        running.push(Running { worker: Worker::new(config, out, app, bufs, domain.register()).spawn()?, ports });
    }

    std::thread::sleep(WARM_UP);
    let take = || running.iter().map(Sample::take).collect::<Vec<_>>();
    let (tsc, before) = (clock::tsc(), take());
    std::thread::sleep(Duration::from_secs(args.seconds));
    let (ticks, after) = (clock::tsc() - tsc, take());
    let capture = args
        .capture
        .map(|what| captured::cost(what, &args.filter, &running[0].worker, &running[0].ports, args.seconds))
        .transpose()?;
    let of_worker: Vec<_> = before.iter().zip(&after).map(|(b, a)| (a.sent - b.sent, a.drops - b.drops)).collect();
    let packets = of_worker.iter().map(|of| of.0).sum::<u64>();
    let first = running[0].worker.counters();
    let stages = stages::between(first, &before[0].stages, &after[0].stages, of_worker[0].0, args.instructions)?;
    let counters: Vec<_> = running.iter().flat_map(|one| one.ports.clone()).collect();
    running.into_iter().for_each(|one| drop(one.worker.stop()));
    let packets_in_all = counters.iter().map(|p| p.tx_packets.get()).sum();
    super::all_back(&pools)?;

    let seconds = ticks as f64 / clock::tsc_hz() as f64;
    Ok(Figures {
        app: args.app,
        mpps: packets as f64 / seconds / 1e6,
        cycles_per_packet: ticks as f64 * cpus.len() as f64 / packets.max(1) as f64,
        packets,
        packets_in_all,
        drops: of_worker.iter().map(|of| of.1).sum(),
        pool: kind.to_string(),
        cache,
        frames: args.frames,
        routes: traffic.routes.len(),
        flows: frames[0].iter().map(Vec::len).sum(),
        size: args.size,
        touch: args.touch,
        pages: pools.arena().pages().to_string(),
        seconds,
        stages,
        capture,
        scaling: None,
    })
}

/// Counters of a worker.
struct Sample {
    sent: u64,
    drops: u64,
    stages: StageSample,
}

impl Sample {
    fn take(of: &Running) -> Self {
        let counters = of.worker.counters();
        Self {
            sent: of.ports.iter().map(|p| p.tx_packets.get()).sum(),
            drops: (0..PORTS).map(|p| counters.port(PortId(p)).total()).sum(),
            stages: stages::sample(counters),
        }
    }
}

/// Returns the tag of the VLAN on a port.
fn vlan_tag(port: u16) -> [u8; 4] {
    tag(ethertype::VLAN, 1 + port)
}

/// Returns the tables that lead to the ports or, for [`Application::Vlans`], to a VLAN on each, and have the tunnel of
/// [`Application::tunnel`].
fn tables(domain: &Qsbr, traffic: &Traffic, app: Application) -> anyhow::Result<Arc<Published<Tables>>> {
    let (mut table4, mut table6) = (Table4::new(domain)?, Table6::new(domain)?);
    let tunnel = app.tunnel();
    let mut entries = vec![Entry::verdict(Kind::NoRoute)];
    let mut ports = vec![PortInfo { index: 1, mac: [2, 0, 0, 0, 0, 0], ..PortInfo::default() }; usize::from(PORTS)];
    let mut vlans = vec![];
    for port in 0..PORTS {
        let macs = [2, 0, 0, 0, 2, port as u8, 2, 0, 0, 0, 0, port as u8];
        let (mut by, info) = (PortId(port), &mut ports[usize::from(port)]);
        if app == Application::Vlans {
            by = PortId(FIRST + port);
            vlans.push(Some(VlanInfo { port: PortId(port), tag: vlan_tag(port), info: info.clone() }));
            info.vlans = vec![(vlan_tag(port), by)];
        }
        entries.push(Entry::of_port(Kind::Forward, by, 1500, macs));
    }
    let first = if tunnel.is_some_and(|(_, through)| through) { entries.len() as u32 } else { 1 };
    table4.load(traffic.routes.iter().map(|(net, to)| (*net, first + u32::from(to.0))));
    let tunnels = match tunnel {
        Some((tunnel, _)) => tunnel::add(&mut entries, (&mut table4, &mut table6), tunnel)?,
        None => Tunnels::default(),
    };
    let tables = Tables {
        generation: 1,
        fib4: table4.reader(),
        fib6: table6.reader(),
        cold: vec![Cold::default(); entries.len()],
        entries,
        buckets: vec![],
        ports,
        vlans,
        bonds: vec![],
        bridges: vec![],
        tunnels,
        own4: (1..4).fold(Own4::default(), |own, n| own.with([203, 0, 113, n].into())),
        hash4: HashPolicy::L4,
        hash6: HashPolicy::L4,
    };
    Ok(Arc::new(Published::new(domain, tables)))
}

/// Sends each packet to the other port.
fn io(cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
    cx.send_batch(from, PortId(1 - from.0), batch);
}

/// Application that first sends a number of frames by each port.
struct First(Box<dyn App>, [usize; PORTS as usize]);

impl App for First {
    fn stages(&self) -> &'static [&'static str] {
        self.0.stages()
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        self.0.process(cx, from, batch);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        for (port, left) in (0..PORTS).zip(&mut self.1) {
            let mut batch = Batch::new();
            let n = cx.bufs.alloc(&mut batch, *left);
            for frame in batch.as_mut_slice() {
                cx.bufs.arena().write(frame, &[0; 60]);
            }
            cx.offer_batch(PortId(port), &mut batch);
            *left -= n - batch.len();
            batch.drain().for_each(|frame| cx.discard(frame));
        }
        self.0.turn(cx)
    }

    fn held(&self) -> usize {
        self.0.held()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.0.close(cx);
    }
}

/// Swaps the MAC addresses of each packet and sends it to the other port.
fn swap(cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
    for frame in batch.as_mut_slice() {
        if let Some(macs) = cx.bufs.arena().head_mut::<12>(frame) {
            // By 64-bit words: a rotation of octets is slower than the router's whole path.
            let [low, high] = [0, 4].map(|at| u64::from_le_bytes(std::array::from_fn(|n| macs[at + n])));
            macs[..8].copy_from_slice(&(high >> 16 | low << 48).to_le_bytes());
            macs[8..].copy_from_slice(&((low >> 16) as u32).to_le_bytes());
        }
    }
    cx.send_batch(from, PortId(1 - from.0), batch);
}

/// Reads every byte of every packet before the application sees it, as a payload inspection would.
struct Touch(Box<dyn App>, u64);

impl App for Touch {
    fn stages(&self) -> &'static [&'static str] {
        self.0.stages()
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        for frame in batch.as_slice() {
            let (words, rest) = cx.bufs.arena().data(frame).as_chunks::<8>();
            let sum = words.iter().fold(0u64, |s, w| s.wrapping_add(u64::from_ne_bytes(*w)));
            self.1 = rest.iter().fold(self.1.wrapping_add(sum), |s, b| s.wrapping_add(u64::from(*b)));
        }
        std::hint::black_box(self.1);
        self.0.process(cx, from, batch);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.turn(cx)
    }

    fn held(&self) -> usize {
        self.0.held()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.0.close(cx);
    }
}
