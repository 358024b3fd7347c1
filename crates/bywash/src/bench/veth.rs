//! Forwarding between veth interfaces: host a - router r - host b, in turn by the kernel, by us, and by a peer.
//!
//! The source is the kernel's live-frame generator, the fastest there is, on a CPU of its own; the forwarder has the
//! other. Counted is what arrives at b's interface: a frame lost on the way is not forwarded. Frames are routed to a
//! station behind b, whose MAC address is not b's, so that b drops each at first sight, whoever forwarded it: what b
//! would do with them is not what is measured.

use crate::api::Topic;
use crate::cli::bench::VethArgs;
use crate::config::Host;
use crate::show;
use anyhow::{Context as _, bail, ensure};
use bywash_lab::{Process, Topology, counters};
use bywash_port::af_xdp::LiveGen;
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use serde::Serialize;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Destinations: flow n goes to this address plus n (RFC 2544, appendix C.2.2: addresses for benchmarks).
const STATIONS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The MAC address of the station behind b.
const STATION_MAC: &str = "02:00:00:00:02:99";
const FLOWS: u32 = 1024;
/// Frames the kernel makes at once: a NAPI poll's worth.
const BATCH: u32 = 64;
/// Options for packet rate on veth: a native program costs its peer TCP segmentation, and is not the default there.
pub const FOR_RATE: &[&str] = &["--xdp", "native"];
/// What is not counted: caches, frequencies, neighbours.
const WARM_UP: Duration = Duration::from_millis(300);
/// How long a forwarder may take until it forwards.
const START: Duration = Duration::from_secs(20);
/// Packets, a millisecond apart, that tell forwarding from the odd packet of the kernel's own.
const PROBES: u64 = 5;

/// The topology, with frames to send through it.
pub struct Lab {
    topology: Topology,
    frame: Vec<u8>,
    /// CPUs of the generator and of the forwarder.
    cpus: [usize; 2],
}

/// What one measurement gave.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// Frames that arrived at b, in millions a second.
    pub mpps: f64,
    /// Frames the generator made, in millions a second over its whole run, the pauses between its system calls
    /// included.
    pub offered_mpps: f64,
}

impl Lab {
    /// Builds it for frames of `size` bytes on the wire.
    pub fn new(size: usize) -> anyhow::Result<Self> {
        let topology = Topology::router()?;
        let (a, b) = (topology.a(), topology.b());
        topology.r().ip_batch(&format!(
            "neigh replace 10.0.2.3 lladdr {STATION_MAC} nud permanent dev {dev}\nroute add 198.18.0.0/15 via 10.0.2.3 dev {dev}\n",
            dev = b.router_interface
        ))?;
        let mac = |text: &str| text.parse::<MacAddr>().map_err(|_| anyhow::anyhow!("{text} is no MAC address"));
        let from = SocketAddr::from((a.v4, 1024));
        let frame = Packet::udp(from, SocketAddr::from((STATIONS, 9)))
            .macs(mac(&a.mac)?, mac(&a.router_mac)?)
            .size(size)
            .build()?;
        let allowed = Host::this().allowed;
        let (Some(&first), Some(&last)) = (allowed.first(), allowed.get(1).or(allowed.first())) else {
            bail!("no CPU to run on");
        };
        Ok(Self { topology, frame, cpus: [first, last] })
    }

    /// The namespaces.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Sends for `time` as fast as it goes and counts what arrives.
    pub fn measure(&self, time: Duration) -> anyhow::Result<Rate> {
        let (a, b) = (self.topology.a(), self.topology.b());
        let (interface, frame, cpu) = (a.interface.clone(), self.frame.clone(), self.cpus[0]);
        let source = a.ns.thread(move || -> anyhow::Result<f64> {
            super::pin(Some(cpu))?;
            let mut generator = LiveGen::new(&interface, &frame, FLOWS)?;
            let start = Instant::now();
            let made = generator.run_for(WARM_UP + time + WARM_UP, BATCH)?;
            Ok(made as f64 / start.elapsed().as_secs_f64() / 1e6)
        })?;
        std::thread::sleep(WARM_UP);
        let arrived = || counters(&b.ns, &b.interface).map(|c| (c.rx_packets, Instant::now()));
        let (before, started) = arrived()?;
        std::thread::sleep(time);
        let (after, ended) = arrived()?;
        let offered_mpps = source.join().map_err(|_| anyhow::anyhow!("the generator panicked"))???;
        Ok(Rate { mpps: (after - before) as f64 / (ended - started).as_secs_f64() / 1e6, offered_mpps })
    }

    /// Whether a few frames come through now.
    fn forwards(&self) -> anyhow::Result<bool> {
        let (a, b) = (self.topology.a(), self.topology.b());
        let before = counters(&b.ns, &b.interface)?.rx_packets;
        a.ns.enter(|| LiveGen::new(&a.interface, &self.frame, FLOWS)?.run(1000, BATCH))??;
        std::thread::sleep(Duration::from_millis(10));
        // Not by the odd packet of the kernel's own.
        Ok(counters(&b.ns, &b.interface)?.rx_packets - before > 500)
    }

    /// Measures the kernel's forwarding. It runs in the generator's own system call, frame by frame to the end, and so
    /// is never offered more than it takes: it does better that way than on a CPU of its own (a NAPI thread), where
    /// the generator overruns it.
    pub fn kernel(&self, time: Duration) -> anyhow::Result<Rate> {
        let (r, interface) = (self.topology.r(), &self.topology.a().router_interface);
        // veth takes live frames only where its peer polls: with GRO on, or an XDP program.
        r.offload(interface, "gro", true)?;
        let rate = self.measure(time);
        r.offload(interface, "gro", false)?;
        rate
    }

    /// Starts `bywash run` between the two interfaces, with options of its own, and waits until it forwards.
    pub fn bywash(&self, options: &[&str]) -> anyhow::Result<Bywash> {
        let mut bywash = self.start(options)?;
        bywash.process.wait_for_output("forwarding;", START)?;
        Ok(bywash)
    }

    fn start(&self, options: &[&str]) -> anyhow::Result<Bywash> {
        let program = std::env::current_exe().context("where this program is")?;
        let socket = std::env::temp_dir().join(format!("bywash-veth-{}.sock", std::process::id()));
        let cpu = self.cpus[1].to_string();
        let mut argv = vec![program.as_os_str(), "run".as_ref(), "--socket".as_ref(), socket.as_os_str()];
        argv.extend(["--workers", "1", "--cpus", &cpu].map(std::ffi::OsStr::new));
        argv.extend(options.iter().map(std::ffi::OsStr::new));
        argv.extend(self.topology.router_interfaces().into_iter().map(std::ffi::OsStr::new));
        Ok(Bywash { process: self.topology.r().spawn(&argv)?, socket })
    }

    /// Time from starting `bywash run` until it forwards a first packet, while one is sent every millisecond and the
    /// kernel forwards none.
    fn start_up(&self) -> anyhow::Result<Duration> {
        let (a, b, r) = (self.topology.a(), self.topology.b(), self.topology.r());
        r.sysctl("net/ipv4/ip_forward", "0")?;
        let sending = Arc::new(AtomicBool::new(true));
        let (go_on, from) = (sending.clone(), a.v4);
        let sender = a.ns.thread(move || -> std::io::Result<()> {
            let socket = UdpSocket::bind((from, 0))?;
            while go_on.load(Ordering::Relaxed) {
                socket.send_to(&[0; 18], (STATIONS, 9))?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })?;
        let first = b.ns.enter(|| {
            let before = received(&b.interface)?;
            let start = Instant::now();
            let bywash = self.start(FOR_RATE)?;
            while received(&b.interface)? < before + PROBES {
                ensure!(start.elapsed() < START, "bywash run forwards nothing: {}", bywash.process.output());
                std::thread::sleep(Duration::from_micros(200));
            }
            let elapsed = start.elapsed().saturating_sub(Duration::from_millis(PROBES));
            bywash.stop()?;
            Ok(elapsed)
        })?;
        sending.store(false, Ordering::Relaxed);
        sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??.context("cannot send")?;
        r.sysctl("net/ipv4/ip_forward", "1")?;
        first
    }

    /// Measures a command that forwards between the interfaces, run in the router's namespace. The kernel does not
    /// forward meanwhile, so that nothing of its doing is counted as the command's.
    fn peer(&self, command: &str, time: Duration) -> anyhow::Result<Rate> {
        let r = self.topology.r();
        r.sysctl("net/ipv4/ip_forward", "0")?;
        let mut process = r.spawn(&["sh", "-c", &format!("exec {command}")])?;
        let until = Instant::now() + START;
        while !self.forwards()? {
            if process.try_status()?.is_some() || Instant::now() > until {
                bail!("`{command}` does not forward; it said: {}", process.output());
            }
        }
        let rate = self.measure(time)?;
        process.terminate(Duration::from_secs(10))?;
        r.sysctl("net/ipv4/ip_forward", "1")?;
        Ok(rate)
    }
}

/// A running `bywash run`; it ends with it.
pub struct Bywash {
    pub process: Process,
    pub socket: PathBuf,
}

impl Bywash {
    /// Cycles per packet of each stage since the start.
    pub fn stages(&self) -> anyhow::Result<Vec<(String, f64)>> {
        let workers = show::ask(&self.socket, Topic::Workers)?;
        let stages = workers[0]["stages"].as_array().context("a worker without stages")?;
        let packets = stages.iter().filter_map(|s| s["packets"].as_f64()).fold(1.0, f64::max);
        let per_packet = |stage: &Value| {
            let name = stage["name"].as_str().unwrap_or("?").to_owned();
            (name, stage["cycles"].as_f64().unwrap_or(0.0) / packets)
        };
        Ok(stages.iter().map(per_packet).collect())
    }

    /// Memory in use and the arena in it, in bytes.
    fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS is no number")?;
        let pools = show::ask(&self.socket, Topic::Pools)?;
        Ok((kib << 10, pools["arena"]["bytes"].as_u64().context("an arena without bytes")?))
    }

    /// Ends it as Ctrl-C would.
    pub fn stop(mut self) -> anyhow::Result<()> {
        let status = self.process.terminate(Duration::from_secs(10))?;
        ensure!(status.success(), "bywash run ended with {status}: {}", self.process.output());
        Ok(())
    }
}

impl Drop for Bywash {
    fn drop(&mut self) {
        // A killed one leaves it behind.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Packets an interface of the calling thread's namespace received (proc_net_dev).
fn received(interface: &str) -> anyhow::Result<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let packets = line.and_then(|fields| fields.split_whitespace().nth(1)?.parse().ok());
    packets.with_context(|| format!("no counters of {interface}"))
}

const MIB: f64 = (1 << 20) as f64;

#[derive(Serialize)]
struct Figures {
    /// Medians of the rounds.
    mpps: f64,
    offered_mpps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_mpps: Option<f64>,
    /// Ours to the kernel's.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_mpps: Option<f64>,
    /// Ours to the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_ratio: Option<f64>,
    size: usize,
    flows: u32,
    seconds: u64,
    /// CPUs of the generator and of the forwarder.
    cpus: [usize; 2],
    /// Our worker's cycles per packet by stage; tx holds the kernel's transmit path.
    stages: Vec<(String, f64)>,
    /// From the start of `bywash run` to its first forwarded packet.
    start_ms: f64,
    /// Resident memory of `bywash run` after a measurement, in MiB.
    resident_mib: f64,
    /// The arena of packet buffers, all of it, in MiB.
    arena_mib: f64,
    rounds: Vec<Round>,
}

#[derive(Default, Serialize)]
struct Round {
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<Rate>,
    bywash: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<Rate>,
}

/// `bywash bench veth`.
pub fn run(args: &VethArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    let lab = Lab::new(args.size)?;
    let time = Duration::from_secs(args.seconds);
    let start_ms = lab.start_up()?.as_secs_f64() * 1e3;
    let (mut stages, mut resident, mut arena) = (vec![], 0, 0);
    let mut rounds = vec![];
    for _ in 0..args.rounds {
        let mut round = Round::default();
        if !args.ours_only {
            round.kernel = Some(lab.kernel(time)?);
        }
        let bywash = lab.bywash(FOR_RATE)?;
        round.bywash = Some(lab.measure(time)?);
        stages = bywash.stages()?;
        (resident, arena) = bywash.memory()?;
        bywash.stop()?;
        if let Some(command) = &args.peer {
            round.peer = Some(lab.peer(command, time)?);
        }
        rounds.push(round);
    }
    let ours = median(&rounds, |r| r.bywash).context("no round")?;
    let kernel_mpps = median(&rounds, |r| r.kernel).map(|r| r.mpps);
    let peer_mpps = median(&rounds, |r| r.peer).map(|r| r.mpps);
    let figures = Figures {
        mpps: ours.mpps,
        offered_mpps: ours.offered_mpps,
        kernel_mpps,
        ratio: kernel_mpps.map(|kernel| ours.mpps / kernel),
        peer_mpps,
        peer_ratio: peer_mpps.map(|peer| ours.mpps / peer),
        size: args.size,
        flows: FLOWS,
        seconds: args.seconds,
        cpus: lab.cpus,
        stages,
        start_ms,
        resident_mib: resident as f64 / MIB,
        arena_mib: arena as f64 / MIB,
        rounds,
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        print(&figures);
    }
    Ok(())
}

/// The middle one by rate.
fn median(rounds: &[Round], of: impl Fn(&Round) -> Option<Rate>) -> Option<Rate> {
    let mut rates: Vec<Rate> = rounds.iter().filter_map(of).collect();
    rates.sort_by(|a, b| a.mpps.total_cmp(&b.mpps));
    rates.get(rates.len() / 2).copied()
}

fn print(f: &Figures) {
    println!("{} B, {} flows, medians of {} rounds of {} s", f.size, f.flows, f.rounds.len(), f.seconds);
    if let (Some(kernel), Some(ratio)) = (f.kernel_mpps, f.ratio) {
        println!("  kernel  {kernel:6.3} Mpps");
        println!("  bywash  {:6.3} Mpps, {ratio:.2} x the kernel ({:.2} Mpps offered)", f.mpps, f.offered_mpps);
    } else {
        println!("  bywash  {:6.3} Mpps ({:.2} Mpps offered)", f.mpps, f.offered_mpps);
    }
    if let (Some(peer), Some(ratio)) = (f.peer_mpps, f.peer_ratio) {
        println!("  peer    {peer:6.3} Mpps: bywash has {ratio:.2} x its rate");
    }
    let stages: Vec<String> = f.stages.iter().map(|(name, cycles)| format!("{name} {cycles:.0}")).collect();
    println!("cycles per packet of bywash's worker: {}", stages.join(", "));
    println!(
        "first packet after {:.0} ms; {:.0} MiB resident, arena {:.0} MiB",
        f.start_ms, f.resident_mib, f.arena_mib
    );
}
