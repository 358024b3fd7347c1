//! Lab for measuring forwarding between veth interfaces: host a - router r - host b, with the kernel, Bywash and peers
//! as forwarders in turn.
//!
//! The source is the kernel's live-frame generator, the fastest available, on a CPU of its own; the forwarder has the
//! other CPU. Only frames that arrive at b's interface count as forwarded. Frames are routed to stations behind b whose
//! MAC addresses are not b's, so that b drops each one immediately, regardless of the forwarder: b's processing is not
//! part of the measurement.

mod interfaces;
pub(crate) mod vxlan;

pub use interfaces::Interfaces;

use crate::args::Family;
use anyhow::{Context as _, bail, ensure};
use bywash_api::{Pools, Worker, client};
use bywash_config::Host;
use bywash_fib::{Addr, Net, Net4, NextHopId, synth};
use bywash_lab::{Process, Topology, counters};
use bywash_port::af_xdp::{Around, Bare, LiveGen};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// First destination: flow n goes to this address plus n (RFC 2544, appendix C.2.2: addresses for benchmarks).
pub const STATIONS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The same for IPv6 (RFC 3849: addresses for documentation).
const STATIONS6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const NETWORK6: &str = "2001:db8::/32";
/// Frame size on the wire of an IPv6 packet with an empty UDP datagram, in bytes.
const SMALLEST6: usize = 66;
/// MAC address of the first station behind b.
const STATION: &str = "02:00:00:00:02:03";
/// Number of stations behind b, from 10.0.2.3 and fd00:2::3: next hops with different MAC addresses.
const NEXT_HOPS: u32 = 250;
/// Seed of routes and destinations, the same in every run.
const SEED: u64 = 1812;
/// Number of flows in the traffic, each to its own destination.
pub const FLOWS: u32 = 1024;
/// Frames that the kernel generates at once: a NAPI poll's budget.
pub const BATCH: u32 = 64;
/// Maximum number of packets that arrive besides those of a probe: a few may be the kernel's own. More than this arrive
/// of a probe, however short the rings that it overruns.
pub const SOME: u64 = 50;
/// Options for the highest packet rate on veth. A native program disables TCP segmentation offload on its peer and is
/// therefore not the default there.
pub const FOR_RATE: &[&str] = &["--xdp", "native"];
/// Warm-up time before each measurement, for caches, CPU frequency and neighbours.
pub const WARM_UP: Duration = Duration::from_millis(300);
/// Longest time that a frame is in flight.
const LAST: Duration = Duration::from_millis(10);
/// Ruleset that drops what the kernel would forward. Forwarding stays on: with it off, a program's lookups in the
/// kernel's routes (bpf_fib_lookup) find none.
const NO_KERNEL: &str = "table inet peer { chain forward { type filter hook forward priority 0; policy drop; }; }";
/// UDP checksum of an untagged IPv4 frame.
const UDP_CHECKSUM: std::ops::Range<usize> = 40..42;
/// Timeout for a forwarder to start forwarding.
const START: Duration = Duration::from_secs(20);
/// Number of packets, sent one millisecond apart, that show that forwarding works; fewer may be the kernel's own.
const PROBES: u64 = 5;

/// Topology, and frames to send through it.
pub struct Lab {
    /// XDP program that drops the frames at b.
    sink: Option<Bare>,
    topology: Topology,
    frame: Vec<u8>,
    /// Headers of `frame`.
    around: Around,
    /// Frame to send again once the router receives no tags, or no VXLAN's packets.
    plain: Option<Vec<u8>>,
    destinations: Vec<IpAddr>,
    /// Number of routes to them.
    routes: usize,
    /// CPUs of the generator and of the forwarder.
    pub cpus: [usize; 2],
}

/// Traffic to send through the lab.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Frame size on the wire in bytes, FCS included.
    pub size: usize,
    /// Number of destination addresses, each a flow.
    pub destinations: usize,
    /// Number of routes in the kernel's table. With one route, the destinations are consecutive addresses under it;
    /// with more, they are addresses under randomly chosen routes.
    pub routes: usize,
    /// IP version.
    pub family: Family,
}

impl Traffic {
    /// Returns traffic of `size`-byte IPv4 frames along one route.
    pub fn one_route(size: usize) -> Self {
        Self { size, destinations: FLOWS as usize, routes: 1, family: Family::V4 }
    }
}

/// Result of one measurement.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rate {
    /// Frames that arrived at b, in millions per second.
    pub mpps: f64,
    /// Frames that the generator made, in millions per second over its whole run, including the pauses between its
    /// system calls.
    pub offered_mpps: f64,
    /// Nanoseconds for a frame in the generator's system calls, without their setup. They include the frame's
    /// forwarding where it runs on the generator's CPU, and only there.
    pub frame_ns: f64,
    /// Share of the generated frames that arrived.
    pub arrived: f64,
}

impl Lab {
    /// Builds the lab.
    pub fn new(traffic: Traffic) -> anyhow::Result<Self> {
        Self::with_queues(traffic, 1)
    }

    /// Builds the lab with this number of queues on each interface.
    pub fn with_queues(traffic: Traffic, queues: u32) -> anyhow::Result<Self> {
        let topology = Topology::builder().queues(queues).build()?;
        let (a, b) = (topology.a(), topology.b());
        let dev = &b.router_interface;
        let mut lines = String::new();
        for (i, mac) in (0..NEXT_HOPS).zip(3..) {
            for station in [IpAddr::from(station(i)), station6(i).into()] {
                writeln!(lines, "neigh replace {station} lladdr 02:00:00:00:02:{mac:02x} nud permanent dev {dev}")?;
            }
        }
        let Traffic { routes, destinations: count, family, .. } = traffic;
        let destinations: Vec<IpAddr> = match family {
            Family::V4 if routes > 1 => {
                let routes: Vec<_> = synth::routes4(routes, SEED).into_iter().filter(|(net, _)| public(*net)).collect();
                add_routes(&mut lines, dev, &routes, |addr| Ipv4Addr::from(addr).into(), |id| station(id).into())?;
                synth::under(&routes, count, SEED).into_iter().map(|addr| Ipv4Addr::from(addr).into()).collect()
            }
            Family::V6 if routes > 1 => {
                let global = |(net, _): &(Net<u128>, NextHopId)| net.addr() >> 125 == 1;
                let routes: Vec<_> = synth::routes6(routes, SEED).into_iter().filter(global).collect();
                add_routes(&mut lines, dev, &routes, |addr| Ipv6Addr::from(addr).into(), |id| station6(id).into())?;
                synth::under(&routes, count, SEED).into_iter().map(|addr| Ipv6Addr::from(addr).into()).collect()
            }
            Family::V4 => {
                writeln!(lines, "route add {} via {} dev {dev}", network(count), station(0))?;
                let first = u32::from(STATIONS);
                (first..first + count as u32).map(|addr| Ipv4Addr::from(addr).into()).collect()
            }
            Family::V6 => {
                writeln!(lines, "route add {NETWORK6} via {} dev {dev}", station6(0))?;
                let first = u128::from(STATIONS6);
                (first..first + count as u128).map(|addr| Ipv6Addr::from(addr).into()).collect()
            }
        };
        topology.r().ip_batch(&lines)?;
        let (from, to, size) = match family {
            Family::V4 => (SocketAddr::from((a.v4, 1024)), SocketAddr::from((STATIONS, 9)), traffic.size),
            Family::V6 => (SocketAddr::from((a.v6, 1024)), (STATIONS6, 9).into(), traffic.size.max(SMALLEST6)),
        };
        let frame = Packet::udp(from, to).macs(mac(&a.mac)?, mac(&a.router_mac)?).size(size).build()?;
        let allowed = Host::this().allowed;
        let (Some(&first), Some(&last)) = (allowed.first(), allowed.get(1).or(allowed.first())) else {
            bail!("no CPU to run on");
        };
        Ok(Self {
            topology,
            frame,
            around: Around::Ethernet,
            plain: None,
            destinations,
            routes,
            sink: None,
            cpus: [first, last],
        })
    }

    /// Returns the next hops and networks of both families, where there is one route.
    fn next_hops(&self) -> [(IpAddr, &'static str); 2] {
        [(station(0).into(), network(self.destinations.len())), (station6(0).into(), NETWORK6)]
    }

    /// Makes b's driver drop each frame, instead of its stack. A veth must have a program or GRO enabled to receive XDP
    /// frames at all, and a stack that builds a packet from each costs more than the forwarding.
    pub fn with_driver_sink(mut self) -> anyhow::Result<Self> {
        let b = self.topology.b();
        self.sink = Some(b.ns.enter(|| Bare::drop(&b.interface))??);
        Ok(self)
    }

    /// Makes b's stack process each frame until it drops it as not addressed to b.
    pub fn with_stack_sink(self) -> anyhow::Result<Self> {
        let b = self.topology.b();
        b.ns.offload(&b.interface, "gro", true)?;
        Ok(self)
    }

    /// Returns the destinations' network, to which there is one route.
    pub fn network(&self) -> &'static str {
        network(self.destinations.len())
    }

    /// Adds that route again.
    pub fn route(&self) -> anyhow::Result<()> {
        let via = station(0).to_string();
        let dev = &self.topology.b().router_interface;
        self.topology.r().ip(&["route", "replace", self.network(), "via", &via, "dev", dev])?;
        Ok(())
    }

    /// Leaves out the UDP checksum, which is right for one destination only: connection tracking checks it.
    pub fn without_checksums(mut self) -> Self {
        self.frame[UDP_CHECKSUM].fill(0);
        self
    }

    /// Returns the namespaces.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Sends at the maximum rate until `stop` is set.
    pub fn flood(&self, stop: Arc<AtomicBool>) -> anyhow::Result<JoinHandle<bywash_lab::Result<anyhow::Result<()>>>> {
        let a = self.topology.a();
        let (interface, frame, cpu) = (a.interface.clone(), self.frame.clone(), self.cpus[0]);
        let destinations = self.destinations.clone();
        Ok(a.ns.thread(move || {
            super::pin(Some(cpu))?;
            let mut generator = LiveGen::new(&interface, &frame, &destinations)?;
            while !stop.load(Ordering::Relaxed) {
                generator.run_for(WARM_UP, BATCH)?;
            }
            Ok(())
        })?)
    }

    /// Sends for `time` at the maximum rate and counts the frames that arrive at b.
    pub fn measure(&self, time: Duration) -> anyhow::Result<Rate> {
        self.measure_by(time, || self.arrived())
    }

    /// Measures like [`Lab::measure`], with another counter.
    pub fn measure_by(&self, time: Duration, count: impl Fn() -> anyhow::Result<u64>) -> anyhow::Result<Rate> {
        let a = self.topology.a();
        let (interface, frame, cpu) = (a.interface.clone(), self.frame.clone(), self.cpus[0]);
        let (destinations, around) = (self.destinations.clone(), self.around);
        let before = count()?;
        let source = a.ns.thread(move || -> anyhow::Result<(u64, f64, f64)> {
            super::pin(Some(cpu))?;
            let mut generator = LiveGen::writing(&interface, &frame, &destinations, around)?;
            let start = Instant::now();
            let made = generator.run_for(WARM_UP + time + WARM_UP, BATCH)?;
            Ok((made, made as f64 / start.elapsed().as_secs_f64() / 1e6, generator.nanoseconds()))
        })?;
        let mpps = rate(time, &count)?;
        let joined = source.join().map_err(|_| anyhow::anyhow!("the generator panicked"))?;
        let (made, offered_mpps, frame_ns) = joined??;
        std::thread::sleep(LAST);
        Ok(Rate { mpps, offered_mpps, frame_ns, arrived: (count()? - before) as f64 / made as f64 })
    }

    /// Returns the number of frames that b's interface has received.
    pub fn arrived(&self) -> anyhow::Result<u64> {
        let b = self.topology.b();
        Ok(counters(&b.ns, &b.interface)?.rx_packets)
    }

    /// Sends a thousand frames; setting up the generator takes 20 ms.
    pub fn probe(&self) -> anyhow::Result<()> {
        self.send(1000)
    }

    /// Sends frames to all destinations in turn, and waits until those on their way have arrived.
    pub fn send(&self, frames: u64) -> anyhow::Result<()> {
        let a = self.topology.a();
        a.ns.enter(|| LiveGen::new(&a.interface, &self.frame, &self.destinations)?.run(frames, BATCH))??;
        std::thread::sleep(LAST);
        Ok(())
    }

    /// Returns true if frames are currently forwarded.
    fn forwards(&self) -> anyhow::Result<bool> {
        let before = self.arrived()?;
        self.probe()?;
        Ok(self.arrived()? - before > SOME)
    }

    /// Measures the kernel's forwarding. It runs within the generator's system call, one frame at a time, and is never
    /// offered more than it can take. It is faster that way than on a CPU of its own (a NAPI thread), where the
    /// generator overruns it.
    pub fn kernel(&self, time: Duration) -> anyhow::Result<Rate> {
        self.polled(&self.topology.a().router_interface, || self.measure(time))
    }

    /// Calls `then` while an interface of the router polls, with GRO enabled: without, or an XDP program, its peer
    /// sends no live frames.
    pub fn polled<T>(&self, interface: &str, then: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let r = self.topology.r();
        r.offload(interface, "gro", true)?;
        let done = then();
        r.offload(interface, "gro", false)?;
        done
    }

    /// Measures a minimal XDP redirect from a's side to b's.
    pub fn redirect(&self, time: Duration) -> anyhow::Result<Rate> {
        let [from, to] = [self.topology.a(), self.topology.b()].map(|host| host.router_interface.as_str());
        let redirect = self.topology.r().enter(|| Bare::redirect(from, to))??;
        let rate = self.measure(time);
        drop(redirect);
        rate
    }

    /// Measures how fast the kernel makes frames that are neither written nor sent.
    pub fn idle(&self, time: Duration) -> anyhow::Result<Rate> {
        let a = self.topology.a();
        let (interface, frame, cpu) = (a.interface.clone(), self.frame.clone(), self.cpus[0]);
        let source = a.ns.thread(move || -> anyhow::Result<Rate> {
            super::pin(Some(cpu))?;
            let mut generator = LiveGen::idle(&interface, &frame)?;
            let start = Instant::now();
            let mpps = generator.run_for(time, BATCH)? as f64 / start.elapsed().as_secs_f64() / 1e6;
            Ok(Rate { mpps, offered_mpps: mpps, frame_ns: generator.nanoseconds(), arrived: 0.0 })
        })?;
        source.join().map_err(|_| anyhow::anyhow!("the generator panicked"))??
    }

    /// Measures the generator alone: an XDP program drops each frame where the router receives it.
    pub fn source(&self, time: Duration) -> anyhow::Result<Rate> {
        let interface = &self.topology.a().router_interface;
        let drops = self.topology.r().enter(|| Bare::drop(interface))??;
        let rate = self.measure_by(time, || Ok(counters(self.topology.r(), interface)?.rx_packets));
        drop(drops);
        rate
    }

    /// Starts `bywash run` between the two interfaces with the given options, and waits until it forwards.
    pub fn bywash(&self, options: &[&str]) -> anyhow::Result<Bywash> {
        Bywash::start(&self.topology, self.cpus[1], options)
    }

    /// Returns the time from the start of `bywash run` until it forwards the first packet. A packet is sent every
    /// millisecond. The kernel's forwarding is disabled, and Bywash is configured to ignore that setting.
    pub fn start_up(&self) -> anyhow::Result<Duration> {
        let file = std::env::temp_dir().join(format!("bywash-start-{}.toml", std::process::id()));
        let ports = self.topology.router_interfaces();
        let port = |name: &&str| format!("[[port]]\ninterface = \"{name}\"\nxdp = \"native\"\n");
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
                ensure!(start.elapsed() < START, "bywash run forwards no packets: {}", bywash.process.output());
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

    /// Measures a command that forwards between the interfaces, run in the router's namespace. What the kernel forwards
    /// meanwhile is dropped, so that it is not counted as the command's.
    pub fn peer(&self, command: &str, time: Duration) -> anyhow::Result<Rate> {
        self.peer_by(command, || self.forwards(), || self.measure(time))
    }

    /// Measures like [`Lab::peer`], for a command with another task: `works` checks that it runs, `measure` measures
    /// it.
    pub fn peer_by(
        &self,
        command: &str,
        works: impl Fn() -> anyhow::Result<bool>,
        measure: impl FnOnce() -> anyhow::Result<Rate>,
    ) -> anyhow::Result<Rate> {
        let r = self.topology.r();
        r.nft(NO_KERNEL)?;
        let rate = self.measured_beside(command, works, measure);
        r.nft("delete table inet peer")?;
        rate
    }

    fn measured_beside(
        &self,
        command: &str,
        works: impl Fn() -> anyhow::Result<bool>,
        measure: impl FnOnce() -> anyhow::Result<Rate>,
    ) -> anyhow::Result<Rate> {
        let r = self.topology.r();
        let mut process = r.spawn(&["sh", "-c", &format!("exec {command}")])?;
        let until = Instant::now() + START;
        while !works()? {
            if process.try_status()?.is_some() || Instant::now() > until {
                bail!("`{command}` forwards no frames; its output: {}", process.output());
            }
        }
        let rate = measure()?;
        process.terminate(Duration::from_secs(10))?;
        Ok(rate)
    }
}

/// Returns the increase of `count` in millions per second over `time`, after a warm-up.
pub fn rate(time: Duration, count: impl Fn() -> anyhow::Result<u64>) -> anyhow::Result<f64> {
    std::thread::sleep(WARM_UP);
    let taken = || count().map(|n| (n, Instant::now()));
    let (before, started) = taken()?;
    std::thread::sleep(time);
    let (after, ended) = taken()?;
    Ok((after - before) as f64 / (ended - started).as_secs_f64() / 1e6)
}

/// Running `bywash run`, which ends when this is dropped.
pub struct Bywash {
    /// The process.
    pub process: Process,
    /// API socket of the instance.
    pub socket: PathBuf,
}

impl Bywash {
    /// Starts Bywash on the router's interfaces with one worker, and waits until it forwards.
    pub fn start(topology: &Topology, cpu: usize, options: &[&str]) -> anyhow::Result<Self> {
        let interfaces = topology.router_interfaces();
        let options: Vec<&OsStr> = options.iter().chain(&interfaces).map(OsStr::new).collect();
        let mut bywash = Self::spawn(topology, cpu, &options)?;
        bywash.process.wait_for_output("forwarding;", START)?;
        Ok(bywash)
    }

    /// Starts Bywash with one worker and a configuration file, and waits until it forwards.
    pub fn configured(topology: &Topology, cpu: usize, file: &Path) -> anyhow::Result<Self> {
        let mut bywash = Self::spawn(topology, cpu, &["--config".as_ref(), file.as_os_str()])?;
        bywash.process.wait_for_output("forwarding;", START)?;
        Ok(bywash)
    }

    fn spawn(topology: &Topology, cpu: usize, options: &[&OsStr]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's path")?;
        let socket = std::env::temp_dir().join(format!("bywash-veth-{}.sock", std::process::id()));
        let cpu = cpu.to_string();
        let mut argv = vec![program.as_os_str(), "run".as_ref(), "--socket".as_ref(), socket.as_os_str()];
        argv.extend(["--workers", "1", "--cpus", &cpu].map(OsStr::new));
        argv.extend(options);
        Ok(Self { process: topology.r().spawn(&argv)?, socket })
    }

    /// Returns the cycles per packet of each stage since the start.
    pub fn stages(&self) -> anyhow::Result<Vec<(String, f64)>> {
        let mut workers: Vec<Worker> = client::ask(&self.socket)?;
        let stages = workers.pop().context("it has no worker")?.stages;
        let packets = stages.iter().map(|stage| stage.packets).fold(1, u64::max) as f64;
        Ok(stages.into_iter().map(|stage| (stage.name, stage.cycles as f64 / packets)).collect())
    }

    /// Returns the resident memory and the size of the arena, in bytes.
    pub fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS is not a number")?;
        Ok((kib << 10, client::ask::<Pools>(&self.socket)?.arena.bytes))
    }

    /// Stops it like Ctrl-C and waits for its exit. Errors if it fails.
    pub fn stop(mut self) -> anyhow::Result<()> {
        let status = self.process.terminate(Duration::from_secs(10))?;
        ensure!(status.success(), "bywash run ended with {status}: {}", self.process.output());
        Ok(())
    }
}

impl Drop for Bywash {
    fn drop(&mut self) {
        // A killed instance leaves its socket behind.
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn mac(text: &str) -> anyhow::Result<MacAddr> {
    text.parse().map_err(|_| anyhow::anyhow!("{text} is not a MAC address"))
}

/// Returns a network with this many destinations: the block for benchmarks, or a larger one around it.
fn network(destinations: usize) -> &'static str {
    if destinations < 1 << 17 { "198.18.0.0/15" } else { "198.0.0.0/8" }
}

/// Returns the address of station `i`.
fn station(i: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0203 + i % NEXT_HOPS)
}

/// Returns the IPv6 address of station `i`.
fn station6(i: u32) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, (3 + i % NEXT_HOPS) as u16)
}

/// Appends the commands that add routes to stations behind `dev`.
fn add_routes<A: Addr>(
    lines: &mut String,
    dev: &str,
    routes: &[(Net<A>, NextHopId)],
    address: impl Fn(A) -> IpAddr,
    station: impl Fn(u32) -> IpAddr,
) -> std::fmt::Result {
    routes.iter().try_for_each(|(net, id)| {
        writeln!(lines, "route add {}/{} via {} dev {dev}", address(net.addr()), net.len(), station(*id))
    })
}

/// Returns true if a route to `net` conflicts neither with the topology's addresses nor with reserved ones.
pub fn public(net: Net4) -> bool {
    !matches!(net.addr() >> 24, 0 | 10 | 127 | 224..) && net.addr() >> 16 != 0xa9fe
}

/// Returns the number of packets received by an interface of the calling thread's namespace (proc_net_dev).
pub fn received(interface: &str) -> anyhow::Result<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let packets = line.and_then(|fields| fields.split_whitespace().nth(1)?.parse().ok());
    packets.with_context(|| format!("no counters of {interface}"))
}
