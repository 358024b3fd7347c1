//! Where forwarding between veth interfaces is measured: host a - router r - host b, in turn by the kernel, by us, and by
//! peers.
//!
//! The source is the kernel's live-frame generator, the fastest there is, on a CPU of its own; the forwarder has the
//! other. Counted is what arrives at b's interface: a frame lost on the way is not forwarded. Frames are routed to
//! stations behind b, whose MAC addresses are not b's, so that b drops each at first sight, whoever forwarded it: what b
//! would do with them is not what is measured.

use crate::api::Topic;
use crate::config::Host;
use crate::show;
use anyhow::{Context as _, bail, ensure};
use bywash_lab::{Process, Topology, counters};
use bywash_port::af_xdp::{Bare, LiveGen};
use bywash_route::{Net4, synth};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Destinations: flow n goes to this address plus n (RFC 2544, appendix C.2.2: addresses for benchmarks).
const STATIONS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Stations behind b, 10.0.2.3 and up: next hops, which differ in their MAC addresses.
const NEXT_HOPS: u32 = 250;
/// The routes' seed, and the destinations': the same in every run.
const SEED: u64 = 1812;
pub const FLOWS: u32 = 1024;
/// Frames the kernel makes at once: a NAPI poll's worth.
pub const BATCH: u32 = 64;
/// Options for packet rate on veth: a native program costs its peer TCP segmentation, and is not the default there.
pub const FOR_RATE: &[&str] = &["--xdp", "native"];
/// What is not counted: caches, frequencies, neighbours.
pub const WARM_UP: Duration = Duration::from_millis(300);
/// How long a forwarder may take until it forwards.
const START: Duration = Duration::from_secs(20);
/// Packets, a millisecond apart, that tell forwarding from the odd packet of the kernel's own.
const PROBES: u64 = 5;

/// The topology, with frames to send through it.
pub struct Lab {
    /// What drops them at b.
    sink: Option<Bare>,
    topology: Topology,
    frame: Vec<u8>,
    destinations: Vec<IpAddr>,
    /// CPUs of the generator and of the forwarder.
    pub cpus: [usize; 2],
}

/// What is sent through it.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Bytes on the wire, FCS included.
    pub size: usize,
    /// Destination addresses, each a flow.
    pub destinations: usize,
    /// Routes in the kernel's table. One: they are neighbouring addresses under it. More: addresses under randomly
    /// chosen ones.
    pub routes: usize,
}

impl Traffic {
    /// Frames of `size` bytes along one route.
    pub fn one_route(size: usize) -> Self {
        Self { size, destinations: FLOWS as usize, routes: 1 }
    }
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
    /// Builds it.
    pub fn new(traffic: Traffic) -> anyhow::Result<Self> {
        let topology = Topology::router()?;
        let (a, b) = (topology.a(), topology.b());
        let dev = &b.router_interface;
        let mut lines = String::new();
        for i in 0..NEXT_HOPS {
            writeln!(
                lines,
                "neigh replace {} lladdr 02:00:00:00:02:{:02x} nud permanent dev {dev}",
                station(i),
                i + 3
            )?;
        }
        let destinations = if traffic.routes > 1 {
            let routes: Vec<_> =
                synth::routes4(traffic.routes, SEED).into_iter().filter(|(net, _)| public(*net)).collect();
            for (net, id) in &routes {
                let to = Ipv4Addr::from(net.addr());
                writeln!(lines, "route add {to}/{} via {} dev {dev}", net.len(), station(*id))?;
            }
            synth::under(&routes, traffic.destinations, SEED).into_iter().map(Ipv4Addr::from).collect()
        } else {
            writeln!(lines, "route add 198.18.0.0/15 via {} dev {dev}", station(0))?;
            let first = u32::from(STATIONS);
            (first..first + traffic.destinations as u32).map(Ipv4Addr::from).collect::<Vec<_>>()
        };
        topology.r().ip_batch(&lines)?;
        let mac = |text: &str| text.parse::<MacAddr>().map_err(|_| anyhow::anyhow!("{text} is no MAC address"));
        let from = SocketAddr::from((a.v4, 1024));
        let frame = Packet::udp(from, SocketAddr::from((STATIONS, 9)))
            .macs(mac(&a.mac)?, mac(&a.router_mac)?)
            .size(traffic.size)
            .build()?;
        let allowed = Host::this().allowed;
        let (Some(&first), Some(&last)) = (allowed.first(), allowed.get(1).or(allowed.first())) else {
            bail!("no CPU to run on");
        };
        let destinations = destinations.into_iter().map(IpAddr::from).collect();
        Ok(Self { topology, frame, destinations, sink: None, cpus: [first, last] })
    }

    /// Has b's driver drop each frame, rather than its stack. A veth must have a program, or GRO on, to be sent XDP
    /// frames at all, and a stack that makes a packet of each costs more than forwarding it did.
    pub fn with_driver_sink(mut self) -> anyhow::Result<Self> {
        let b = self.topology.b();
        self.sink = Some(b.ns.enter(|| Bare::drop(&b.interface))??);
        Ok(self)
    }

    /// Has b's stack receive each frame, to the end: the addresses are not its own.
    pub fn with_stack_sink(self) -> anyhow::Result<Self> {
        let b = self.topology.b();
        b.ns.offload(&b.interface, "gro", true)?;
        Ok(self)
    }

    /// The namespaces.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Sends for `time` as fast as it goes and counts what arrives.
    pub fn measure(&self, time: Duration) -> anyhow::Result<Rate> {
        self.measure_by(time, || self.arrived())
    }

    /// As [`Lab::measure`], by another count.
    pub fn measure_by(&self, time: Duration, count: impl Fn() -> anyhow::Result<u64>) -> anyhow::Result<Rate> {
        let a = self.topology.a();
        let (interface, frame, cpu) = (a.interface.clone(), self.frame.clone(), self.cpus[0]);
        let destinations = self.destinations.clone();
        let source = a.ns.thread(move || -> anyhow::Result<f64> {
            super::pin(Some(cpu))?;
            let mut generator = LiveGen::new(&interface, &frame, &destinations)?;
            let start = Instant::now();
            let made = generator.run_for(WARM_UP + time + WARM_UP, BATCH)?;
            Ok(made as f64 / start.elapsed().as_secs_f64() / 1e6)
        })?;
        let mpps = rate(time, count)?;
        let offered_mpps = source.join().map_err(|_| anyhow::anyhow!("the generator panicked"))???;
        Ok(Rate { mpps, offered_mpps })
    }

    /// Frames that b's interface has received.
    pub fn arrived(&self) -> anyhow::Result<u64> {
        let b = self.topology.b();
        Ok(counters(&b.ns, &b.interface)?.rx_packets)
    }

    /// Sends a thousand frames; the generator's setup takes 20 ms.
    pub fn probe(&self) -> anyhow::Result<()> {
        let a = self.topology.a();
        a.ns.enter(|| LiveGen::new(&a.interface, &self.frame, &self.destinations)?.run(1000, BATCH))??;
        std::thread::sleep(Duration::from_millis(10));
        Ok(())
    }

    /// Whether a few frames come through now.
    fn forwards(&self) -> anyhow::Result<bool> {
        let before = self.arrived()?;
        self.probe()?;
        // Not by the odd packet of the kernel's own.
        Ok(self.arrived()? - before > 500)
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

    /// Measures the barest XDP redirect from a's side to b's.
    pub fn redirect(&self, time: Duration) -> anyhow::Result<Rate> {
        let [from, to] = [self.topology.a(), self.topology.b()].map(|host| host.router_interface.as_str());
        let redirect = self.topology.r().enter(|| Bare::redirect(from, to))??;
        let rate = self.measure(time);
        drop(redirect);
        rate
    }

    /// Starts `bywash run` between the two interfaces, with options of its own, and waits until it forwards.
    pub fn bywash(&self, options: &[&str]) -> anyhow::Result<Bywash> {
        Bywash::start(&self.topology, self.cpus[1], options)
    }

    /// Time from starting `bywash run` until it forwards a first packet, while one is sent every millisecond and the
    /// kernel forwards none, in which it is told not to follow the kernel.
    pub fn start_up(&self) -> anyhow::Result<Duration> {
        let file = std::env::temp_dir().join(format!("bywash-start-{}.toml", std::process::id()));
        let ports = self.topology.router_interfaces();
        let port = |name: &&str| format!("[[port]]\ninterface = \"{name}\"\nmode = \"native\"\n");
        let text = format!("[kernel]\nsysctls = \"ignore\"\n{}", ports.iter().map(port).collect::<String>());
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
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
            let bywash = Bywash::spawn(&self.topology, self.cpus[1], &["--config".as_ref(), file.as_os_str()])?;
            while received(&b.interface)? < before + PROBES {
                ensure!(start.elapsed() < START, "bywash run forwards nothing: {}", bywash.process.output());
                std::thread::sleep(Duration::from_micros(200));
            }
            let elapsed = start.elapsed().saturating_sub(Duration::from_millis(PROBES));
            bywash.stop()?;
            Ok(elapsed)
        })?;
        let _ = std::fs::remove_file(&file);
        sending.store(false, Ordering::Relaxed);
        sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??.context("cannot send")?;
        r.sysctl("net/ipv4/ip_forward", "1")?;
        first
    }

    /// Measures a command that forwards between the interfaces, run in the router's namespace. The kernel does not
    /// forward meanwhile, so that nothing of its doing is counted as the command's.
    pub fn peer(&self, command: &str, time: Duration) -> anyhow::Result<Rate> {
        self.peer_by(command, || self.forwards(), || self.measure(time))
    }

    /// As [`Lab::peer`], for a command that does something else: whether it does by now, and how fast.
    pub fn peer_by(
        &self,
        command: &str,
        works: impl Fn() -> anyhow::Result<bool>,
        measure: impl FnOnce() -> anyhow::Result<Rate>,
    ) -> anyhow::Result<Rate> {
        let r = self.topology.r();
        r.sysctl("net/ipv4/ip_forward", "0")?;
        let mut process = r.spawn(&["sh", "-c", &format!("exec {command}")])?;
        let until = Instant::now() + START;
        while !works()? {
            if process.try_status()?.is_some() || Instant::now() > until {
                bail!("`{command}` moves no frames; it said: {}", process.output());
            }
        }
        let rate = measure()?;
        process.terminate(Duration::from_secs(10))?;
        r.sysctl("net/ipv4/ip_forward", "1")?;
        Ok(rate)
    }
}

/// By how much `count` grows a second, in millions, over `time` and after a while that is not counted.
pub fn rate(time: Duration, count: impl Fn() -> anyhow::Result<u64>) -> anyhow::Result<f64> {
    std::thread::sleep(WARM_UP);
    let taken = || count().map(|n| (n, Instant::now()));
    let (before, started) = taken()?;
    std::thread::sleep(time);
    let (after, ended) = taken()?;
    Ok((after - before) as f64 / (ended - started).as_secs_f64() / 1e6)
}

/// A running `bywash run`; it ends with it.
pub struct Bywash {
    pub process: Process,
    pub socket: PathBuf,
}

impl Bywash {
    /// Starts it on the router's interfaces, with one worker, and waits until it forwards.
    pub fn start(topology: &Topology, cpu: usize, options: &[&str]) -> anyhow::Result<Self> {
        let interfaces = topology.router_interfaces();
        let options: Vec<&OsStr> = options.iter().chain(&interfaces).map(OsStr::new).collect();
        let mut bywash = Self::spawn(topology, cpu, &options)?;
        bywash.process.wait_for_output("forwarding;", START)?;
        Ok(bywash)
    }

    fn spawn(topology: &Topology, cpu: usize, options: &[&OsStr]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("where this program is")?;
        let socket = std::env::temp_dir().join(format!("bywash-veth-{}.sock", std::process::id()));
        let cpu = cpu.to_string();
        let mut argv = vec![program.as_os_str(), "run".as_ref(), "--socket".as_ref(), socket.as_os_str()];
        argv.extend(["--workers", "1", "--cpus", &cpu].map(OsStr::new));
        argv.extend(options);
        Ok(Self { process: topology.r().spawn(&argv)?, socket })
    }

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
    pub fn memory(&self) -> anyhow::Result<(u64, u64)> {
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

/// The address of station `i`.
fn station(i: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0203 + i % NEXT_HOPS)
}

/// Whether a route may be there beside the topology's own addresses and the reserved ones.
pub fn public(net: Net4) -> bool {
    !matches!(net.addr() >> 24, 0 | 10 | 127 | 224..) && net.addr() >> 16 != 0xa9fe
}

/// Packets an interface of the calling thread's namespace received (proc_net_dev).
fn received(interface: &str) -> anyhow::Result<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let packets = line.and_then(|fields| fields.split_whitespace().nth(1)?.parse().ok());
    packets.with_context(|| format!("no counters of {interface}"))
}
