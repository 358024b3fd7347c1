//! The built-in XDP program, one instance for all ports of a process, and its forwarding tables.
//!
//! # Shared tables
//! The memory of the forwarding tables is made here, in segments that the process maps and the program reads
//! ([`XdpDatapath::segments`]): one store by the control side changes a route for both. The next hops that routes name
//! are published as a whole ([`XdpDatapath::publish`]), as they are for the workers.
//!
//! # Ordering
//! The program reads the version of the next hops first, then the table, then the next hop. So the control side
//! publishes next hops before a route names them, and may reuse a next hop's id once no route names it: a program that
//! reads the newer version reads the newer table too. [`XdpDatapath::publish`] ends with a grace period, after which no
//! program is running that read an older version.
//!
//! The program caches the result of a lookup under the version it had read before (`xdp/dst_cache.h`). So when a table
//! has changed, the control side calls [`XdpDatapath::changed`], at the latest before it publishes next hops that no
//! route named until then: the version advances, and results cached under older versions become invalid.

use super::abi::{
    BUCKETS, DST_CACHE_CPUS, DST_CACHE4, DST_CACHE6, FLAG_ENABLED, FLAG_FLOWS4, FLAG_FLOWS6, FLAG_FORWARD,
    FLAG_KERNEL4, FLAG_KERNEL6, FLOW_WORKERS, HOPS, Hop, HopKind, PORT_CPUS, PORTS, PROBES, QUEUES, RawCounters,
    RawPort, Traffic, VLANS, XdpCounters,
};
use super::attach::{TcxProgram, tcx_programs};
use super::cpumap::CpuQueues;
use super::flows::{Flows, Memory};
use super::program::{chain, loader, named, program_fd, tc_fd};
use super::test_run::TestRun;
use super::{Error, shared};
use aya::Ebpf;
use aya::maps::{DevMap, HashMap, Map, MapData, MapError, PerCpuArray, ProgramArray, XskMap};
use aya::programs::{Program, ProgramError, Xdp};
use shared::{Versions, Words};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../xdp/bywash.bpf.o");
/// The same program without forwarding tables.
static PLAIN: &[u8] = aya::include_bytes_aligned!("../../xdp/plain.bpf.o");
/// The same program for a switch, with the flows of its workers.
static SWITCH: &[u8] = aya::include_bytes_aligned!("../../xdp/switch.bpf.o");

// linux/bpf.h, linux/pkt_cls.h
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_REDIRECT: i32 = 7;

/// Bytes of a segment of a forwarding table.
pub const SEGMENT: usize = 2 << 20;

/// The loaded XDP program and its maps. Clones share one instance, which is unloaded with the last clone.
///
/// # Thread-safety
/// Shared freely between threads; the kernel sees each change at once and as a whole.
#[derive(Clone)]
pub struct XdpDatapath(Arc<Mutex<Inner>>);

pub(super) struct Inner {
    pub ebpf: Ebpf,
    ports: Words,
    /// Ports in `ports`, by slot, and VLANs behind them, by number.
    places: [RawPort; SLOTS],
    /// End of the slots that have ever been used; those of all ports are within.
    slots: usize,
    xsks: XskMap<MapData>,
    devices: DevMap<MapData>,
    counters: PerCpuArray<MapData, RawCounters>,
    /// Our program, by the ports that have one of the user's before it.
    pub next: ProgramArray<MapData>,
    /// Maps `ports`, `counters` and `next`, which `bywash_first` uses.
    pub of_first: [OwnedFd; 3],
    /// Object file of the program.
    pub object: &'static [u8],
    /// `None` if the program does not forward.
    port_pairs: Option<PortPairs>,
    fibs: [Option<Segments>; 2],
    /// Memory of the connections that packets are forwarded for although their family's gate is closed.
    connections: [Option<OwnedFd>; 2],
    /// Programs for ports with such connections, of XDP and of traffic control; empty until they are needed. `None` for
    /// a program that is not a router's.
    flow_programs: Option<Further>,
    /// VLANs by their keys in the program, and the programs for their frames. `None` for a program that is not a
    /// router's.
    vlans: Option<Vlans>,
    refused: Option<Arc<str>>,
    /// `None` for a program that is not a router's.
    hops: Option<Versions>,
    buckets: Option<Versions>,
    /// `None` for a program that is not a switch's.
    flows: Option<Arc<Memory>>,
    /// Queues to CPUs; `None` before a port has any. Error if the kernel cannot spread frames over CPUs: the reason.
    cpu_queues: Option<Result<CpuQueues, String>>,
    version: u64,
    /// Filter of the host's own addresses, as last published.
    own: u64,
    /// Whether the gates of all ports are closed: see [`XdpDatapath::close`].
    closed: bool,
    /// Whether any port has ever been enabled: until then no program reads the tables.
    enabled: bool,
    /// Ids of the tcx links of the process's own programs.
    pub own_links: Vec<u32>,
}

/// Entries for ports, and for VLANs behind them.
const SLOTS: usize = (PORTS + VLANS) as usize;

/// VLANs in the program.
struct Vlans {
    numbers: HashMap<MapData, u64, u32>,
    /// Keys in `numbers`, with their ports and numbers.
    keys: BTreeMap<u64, (u16, u16)>,
    programs: Further,
}

/// Programs that others go on with by a tail call, loaded when they are first needed.
struct Further {
    /// Of XDP and of traffic control.
    arrays: [ProgramArray<MapData>; 2],
    /// Whether there are programs at this place.
    loaded: [bool; 2],
}

impl Further {
    fn new(arrays: [ProgramArray<MapData>; 2]) -> Self {
        Self { arrays, loaded: [false; 2] }
    }

    /// Loads the programs of a place, which takes some tens of milliseconds, unless they are loaded.
    fn load(&mut self, ebpf: &mut Ebpf, place: usize, names: [&str; 2]) -> Result<(), Error> {
        if self.loaded[place] {
            return Ok(());
        }
        let failed = |reason: String| Error::Load { interface: String::new(), reason };
        load_side_by_side(ebpf, &names).map_err(failed)?;
        for (programs, name) in self.arrays.iter_mut().zip(names) {
            let program = program_fd(ebpf, name).map_err(failed)?;
            programs.set(place as u32, &program, 0).map_err(|e| failed(chain(&e)))?;
        }
        self.loaded[place] = true;
        Ok(())
    }
}

impl Vlans {
    /// Returns the program's key of a port's VLAN.
    fn key(port: u16, [a, b, c, d]: [u8; 4]) -> u64 {
        let (protocol, id) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        u64::from(port) | u64::from(protocol) << 16 | u64::from(id) << 32
    }
}

/// Variant of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Router,
    Plain,
    /// Switch with tables for this many workers.
    Switch(usize),
}

/// Counters of frames forwarded between ports.
struct PortPairs {
    words: Words,
    cpus: usize,
}

impl PortPairs {
    /// Words per CPU.
    const OF_A_CPU: usize = (PORTS * PORTS) as usize * Traffic::WORDS;

    /// Returns the index of the counters of frames that one CPU forwarded from one port to another.
    fn at(cpu: usize, from: u16, to: u16) -> usize {
        cpu * Self::OF_A_CPU + (usize::from(from) * PORTS as usize + usize::from(to)) * Traffic::WORDS
    }

    /// Returns the frames and bytes forwarded from one port to another, summed over CPUs.
    fn between(&self, from: u16, to: u16) -> Traffic {
        let mut all = Traffic::default();
        for cpu in 0..self.cpus {
            let at = Self::at(cpu, from, to);
            all.frames = all.frames.wrapping_add(self.words.load(at));
            all.bytes = all.bytes.wrapping_add(self.words.load(at + 1));
        }
        all
    }

    /// Returns the frames received by a port and forwarded, per sending CPU.
    fn by_cpu(&self, from: u16) -> Vec<u64> {
        let sent =
            |cpu| (0..PORTS as u16).map(|to| self.words.load(Self::at(cpu, from, to))).fold(0, u64::wrapping_add);
        (0..self.cpus).map(sent).collect()
    }
}

/// Address family of a forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

/// Result of [`XdpDatapath::try_frame`] or [`XdpDatapath::try_skb`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Verdict of the program, as an XDP action (linux/bpf.h); traffic-control verdicts are translated.
    pub verdict: u32,
    /// Frame after the program ran.
    pub bytes: Vec<u8>,
    /// Run time of the program in nanoseconds, with cold caches as after any system call.
    pub nanoseconds: u32,
}

impl Tried {
    /// Returns whether the frame is redirected to another port or to a socket; the counters say which.
    pub fn redirected(&self) -> bool {
        self.verdict == XDP_REDIRECT
    }

    /// Returns whether the frame is passed to the kernel.
    pub fn passed(&self) -> bool {
        self.verdict == XDP_PASS
    }
}

impl Inner {
    /// Stores the version with every port. The program reads it with its port's entry, which it reads first, so that
    /// each run sees one version.
    fn set_version(&mut self, version: u64) {
        self.version = version;
        for at in 0..self.slots {
            self.ports.store(at * RawPort::WORDS + RawPort::VERSION, version);
        }
    }

    /// Returns a port's entry, with its gate closed if the gates of all ports are.
    fn gated(&self, port: RawPort) -> RawPort {
        if !self.closed || port.ifindex == 0 {
            return port;
        }
        RawPort { flags: (port.flags | FLAG_KERNEL4 | FLAG_KERNEL6) & !(FLAG_FLOWS4 | FLAG_FLOWS6), ..port }
    }

    fn set_closed(&mut self, closed: bool) {
        self.closed = closed;
        for at in 0..self.slots {
            // The word with the flags.
            self.ports.store(at * RawPort::WORDS, self.gated(self.places[at]).words()[0]);
        }
    }

    /// Loads the programs for flows, and for flows of VLANs, if these entries of ports or VLANs are the first that need
    /// them.
    fn load_flow_programs(&mut self, entries: &[RawPort]) -> Result<(), Error> {
        let Self { flow_programs: Some(programs), places, ebpf, .. } = self else { return Ok(()) };
        let all = || entries.iter().chain(places.iter()).filter(|entry| entry.ifindex != 0);
        if !all().any(|entry| entry.flags & (FLAG_FLOWS4 | FLAG_FLOWS6) != 0) {
            return Ok(());
        }
        programs.load(ebpf, 0, ["bywash_flows", "bywash_tc_flows"])?;
        if all().any(|entry| entry.route_id >= PORTS as u16) {
            programs.load(ebpf, 1, ["bywash_vlan_flows", "bywash_tc_vlan_flows"])?;
        }
        Ok(())
    }

    /// Writes a port's entry into a slot. The word with the interface index, which makes the entry valid, is written
    /// last.
    fn place(&mut self, at: usize, port: RawPort) {
        self.places[at] = port;
        let words = self.gated(port).words();
        for n in [0, 2, 1] {
            self.ports.store(at * RawPort::WORDS + n, words[n]);
        }
    }
}

impl XdpDatapath {
    /// Loads the programs of XDP and of traffic control without attaching them. If the kernel refuses the forwarding program, because of its verifier or
    /// because it cannot provide memory shared by both, loads a plain program that leaves forwarding to user space; see
    /// [`XdpDatapath::refused`].
    ///
    /// # Errors
    /// [`Error::Load`] and [`Error::Map`] with the kernel's reasons if it accepts neither.
    pub fn load() -> Result<Self, Error> {
        Self::or_plain(Self::load_object(Kind::Router, &["bywash", "bywash_tc"], None))
    }

    /// Loads like [`XdpDatapath::load`] the program of XDP alone, where that is likely to be all that is needed: the
    /// other is loaded when it is first attached.
    ///
    /// # Errors
    /// Errors of [`XdpDatapath::load`].
    pub fn load_native() -> Result<Self, Error> {
        Self::or_plain(Self::load_object(Kind::Router, &["bywash"], None))
    }

    /// Loads the program of a switch with tables for the flows of `workers` workers ([`XdpDatapath::flows`]), clamped
    /// to 1 to 16. If the kernel refuses it, loads the plain program.
    ///
    /// # Errors
    /// Errors of [`XdpDatapath::load`].
    pub fn load_switch(workers: usize) -> Result<Self, Error> {
        Self::or_plain(Self::load_object(Kind::Switch(workers.clamp(1, FLOW_WORKERS)), &["bywash"], None))
    }

    fn or_plain(loaded: Result<Self, Error>) -> Result<Self, Error> {
        loaded.or_else(|e| Self::load_object(Kind::Plain, &["bywash"], Some(e.reason().into())))
    }

    /// Returns the flows by which a switch's program forwards; `None` if it does not forward by flows.
    pub fn flows(&self) -> Option<Flows> {
        let memory = self.lock().flows.clone()?;
        Some(Flows::new(self.clone(), memory))
    }

    /// Returns the reason why the kernel refused the forwarding program, if it did.
    pub fn refused(&self) -> Option<Arc<str>> {
        self.lock().refused.clone()
    }

    fn load_object(kind: Kind, programs: &[&str], refused: Option<Arc<str>>) -> Result<Self, Error> {
        let object = match kind {
            Kind::Router => OBJECT,
            Kind::Plain => PLAIN,
            Kind::Switch(_) => SWITCH,
        };
        let interface = String::new();
        let load_error = |reason: String| Error::Load { interface: interface.clone(), reason };
        let cpus = aya::util::nr_cpus().map_err(|(what, e)| load_error(format!("{what}: {e}")))?;
        let cached_cpus = (cpus as u32).min(DST_CACHE_CPUS);
        let mut loader = loader();
        loader
            .map_max_entries("dst_cache4", cached_cpus * DST_CACHE4)
            .map_max_entries("dst_cache6", cached_cpus * DST_CACHE6);
        loader.map_max_entries("port_pairs", cpus as u32 * PORTS * PORTS).map_max_entries("cpumap", cpus as u32);
        if let Kind::Switch(workers) = kind {
            for (map, entries) in Memory::sizes(workers, cpus) {
                loader.map_max_entries(map, entries);
            }
        }
        let mut ebpf = loader.load(object).map_err(|e| load_error(chain(&e)))?;
        drop(loader);
        let memory = |of: [&'static str; 2]| -> Result<[Option<OwnedFd>; 2], Error> {
            let [v4, v6] = of;
            Ok(match kind {
                Kind::Router => [Some(duplicate(ebpf.map(v4), v4)?), Some(duplicate(ebpf.map(v6), v6)?)],
                _ => [None, None],
            })
        };
        let (fibs, connections) = (memory(["fib4", "fib6"])?, memory(["flows4", "flows6"])?);
        let fibs = std::thread::scope(|scope| {
            // The kernel waits for a grace period of RCU for each, while its verifier computes.
            let begun = fibs.map(|fib| scope.spawn(|| fib.map(Segments::begin).transpose()));
            load_side_by_side(&mut ebpf, programs).map_err(load_error)?;
            let [v4, v6] = begun.map(|begun| begun.join().unwrap_or_else(|panic| resume_unwind(panic)));
            let failed = |e: io::Error| Error::Map { interface: interface.clone(), map: "fib4", reason: e.to_string() };
            Ok([v4.map_err(failed)?, v6.map_err(failed)?])
        })?;
        let cpu_queues = (kind == Kind::Plain).then(|| Err("the program does not forward".into()));
        macro_rules! map {
            ($name:literal) => {{
                let wrong = |reason: String| Error::Map { interface: interface.clone(), map: $name, reason };
                let map = ebpf.take_map($name).ok_or_else(|| wrong("not in the object".into()))?;
                map.try_into().map_err(|e: MapError| wrong(chain(&e)))?
            }};
        }
        let copied = |name| duplicate(ebpf.map(name), name);
        let of_first = [copied("ports")?, copied("counters")?, copied("next")?];
        let mut words = |name, words| mapped(&ebpf, name, words);
        let switch = matches!(kind, Kind::Switch(_));
        let versions = |name, entries, of_an_entry| -> Result<Option<Versions>, Error> {
            if switch {
                return Ok(None);
            }
            let made = Versions::new(duplicate(ebpf.map(name), name)?, entries, of_an_entry);
            let failed = |e: io::Error| Error::Map { interface: String::new(), map: name, reason: e.to_string() };
            Ok(Some(made.map_err(failed)?))
        };
        let hops = versions("hops", HOPS, size_of::<Hop>() / 8)?;
        let buckets = versions("buckets", BUCKETS, 1)?;
        let flows = match kind {
            Kind::Switch(workers) => Some(Arc::new(Memory::map(workers, cpus, &mut words)?)),
            _ => None,
        };
        let ports = words("ports", SLOTS * RawPort::WORDS)?;
        let port_pairs = match refused {
            None => Some(PortPairs { words: words("port_pairs", cpus * PortPairs::OF_A_CPU)?, cpus }),
            Some(_) => None,
        };
        let flow_programs = match kind {
            Kind::Router => Some(Further::new([map!("flow_xdp"), map!("flow_tc")])),
            _ => None,
        };
        let vlans = match kind {
            Kind::Router => Some(Vlans {
                numbers: map!("vlans"),
                keys: BTreeMap::new(),
                programs: Further::new([map!("vlan_xdp"), map!("vlan_tc")]),
            }),
            _ => None,
        };
        let inner = Inner {
            ports,
            places: [RawPort::default(); SLOTS],
            slots: PORTS as usize,
            xsks: map!("xsks"),
            devices: map!("devices"),
            counters: map!("counters"),
            next: map!("next"),
            of_first,
            object,
            port_pairs,
            fibs,
            connections,
            flow_programs,
            vlans,
            refused,
            hops,
            buckets,
            flows,
            cpu_queues,
            version: 0,
            own: 0,
            closed: false,
            enabled: false,
            own_links: vec![],
            ebpf,
        };
        Ok(Self(Arc::new(Mutex::new(inner))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory of a family's table, to be made segment by segment. `None` if it has been handed out already
    /// or the program does not route ([`XdpDatapath::refused`]).
    pub fn segments(&self, family: Family) -> Option<Segments> {
        self.lock().fibs[family as usize].take()
    }

    /// Returns the memory of a family's flow table (`xdp/flows.h`), like [`XdpDatapath::segments`].
    pub fn flow_segments(&self, family: Family) -> Option<Segments> {
        self.lock().connections[family as usize].take().map(|outer| Segments { outer, first: None })
    }

    /// Publishes next hops (by id), the members of groups, and the bit set of addresses that may be the host's own
    /// (`own_bit` in `xdp/forward.h`), all at once. Once a port has been enabled, blocks for a grace period of some
    /// milliseconds; after it no program uses older ones.
    ///
    /// Packets to next hops beyond [`HOPS`], or to groups beyond [`BUCKETS`], go to user space.
    pub fn publish(&self, hops: &[Hop], buckets: &[u32], own: u64) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let (Some(in_hops), Some(in_buckets)) = (&mut inner.hops, &mut inner.buckets) else { return };
        let next = inner.version + 1;
        let half = (next & 1) as usize;
        let (for_hops, for_buckets) = (in_hops.room(half, hops.len()), in_buckets.room(half, buckets.len()));
        for (i, hop) in hops.iter().take(for_hops).enumerate() {
            let known = hop.kind != HopKind::Group || (hop.first as usize + hop.count as usize) <= for_buckets;
            let hop = if known { *hop } else { Hop::default() };
            for (n, word) in words_of(&hop).into_iter().enumerate() {
                in_hops.store(half, i * size_of::<Hop>() / 8 + n, word);
            }
        }
        for i in hops.len().min(for_hops)..for_hops {
            // The word with the kind: `HopKind::User`.
            in_hops.store(half, i * size_of::<Hop>() / 8 + 1, 0);
        }
        for (i, id) in buckets.iter().take(for_buckets).enumerate() {
            in_buckets.store(half, i, u64::from(*id));
        }
        inner.own = own;
        for at in 0..inner.slots {
            inner.ports.store(at * RawPort::WORDS + RawPort::OWN, own);
        }
        inner.set_version(next);
        let read = inner.enabled;
        drop(guard);
        if read {
            shared::grace();
        }
    }

    /// Announces that the tables have changed: from now on the program does not use cached lookup results.
    pub fn changed(&self) {
        let mut inner = self.lock();
        // The lowest bit selects the half with the valid next hops and must not change.
        let next = inner.version + 2;
        inner.set_version(next);
    }

    /// Sets the interface on which frames forwarded out of port `id` leave. The kernel removes the entry with the
    /// interface.
    ///
    /// # Errors
    /// [`Error::Map`] with the kernel's reason.
    pub fn set_device(&self, id: u16, ifindex: u32) -> Result<(), Error> {
        let done = self.lock().devices.set(id.into(), ifindex, None, 0);
        done.map_err(|e| Error::Map { interface: String::new(), map: "devices", reason: chain(&e) })
    }

    /// Runs the program on a frame as if queue 0 of the interface had just received it; nothing is sent. The interface
    /// must be in the calling thread's network namespace, up, and have the program attached.
    ///
    /// # Errors
    /// [`Error::TestRun`] with the kernel's reason, for instance for a frame of less than 14 bytes.
    pub fn try_frame(&self, ifindex: u32, frame: &[u8]) -> Result<Tried, Error> {
        let mut inner = self.lock();
        let program: &mut Xdp = named(&mut inner.ebpf, "bywash").map_err(Error::TestRun)?;
        // struct xdp_md.
        let program = program.fd().map_err(|e| Error::TestRun(chain(&e)))?;
        try_program(program, frame, &[0, frame.len() as u32, 0, ifindex, 0, 0])
    }

    /// Runs the traffic-control program on a frame given as a linear skb; otherwise like [`XdpDatapath::try_frame`].
    ///
    /// # Errors
    /// Errors of [`XdpDatapath::try_frame`]; also for an unknown verdict of the program.
    pub fn try_skb(&self, ifindex: u32, frame: &[u8]) -> Result<Tried, Error> {
        let mut inner = self.lock();
        let program = tc_fd(&mut inner.ebpf).map_err(Error::TestRun)?;
        // struct __sk_buff, up to its ifindex.
        let mut context = [0; 11];
        context[10] = ifindex;
        let mut tried = try_program(&program, frame, &context)?;
        tried.verdict = match tried.verdict as i32 {
            TC_ACT_UNSPEC => XDP_PASS,
            TC_ACT_REDIRECT => XDP_REDIRECT,
            other => return Err(Error::TestRun(format!("unknown verdict {other} of the traffic-control program"))),
        };
        Ok(tried)
    }

    /// Sets the CPUs that send for a port. The program learns their number from [`XdpDatapath::set_port`].
    pub(super) fn set_cpus(&self, id: u16, cpus: &[usize]) -> Result<(), Error> {
        let refused = |reason: &str| Error::Spread { interface: String::new(), reason: reason.into() };
        if cpus.len() > PORT_CPUS {
            return Err(refused(&format!("{} CPUs: at most {PORT_CPUS} per port", cpus.len())));
        }
        let inner = &mut *self.lock();
        match inner.cpu_queues.get_or_insert_with(|| CpuQueues::load(&mut inner.ebpf)) {
            Ok(queues) => queues.set(&mut inner.ebpf, id, cpus).map_err(|e| refused(&e)),
            Err(why) => Err(refused(why)),
        }
    }

    /// Invalidates flows of a switch's tables that were found under another generation.
    pub(super) fn set_generation(&self, generation: u64) {
        self.lock().set_version(generation);
    }

    /// Sets the longest frame in bytes that a switch's program may send on a port; 0: none.
    pub(super) fn set_target(&self, id: u16, longest: u32) {
        self.lock().flows.iter().for_each(|flows| flows.set_target(id, longest));
    }

    /// Closes the gates of all ports regardless of each port's setting: from the next frame on every IP packet is
    /// passed to the kernel. Takes microseconds, one store per port.
    pub fn close(&self) {
        self.lock().set_closed(true);
    }

    /// Returns the tcx programs on an interface that do not belong to this process: see [`tcx_programs`].
    ///
    /// # Errors
    /// Errors of [`tcx_programs`].
    pub fn foreign(&self, ifindex: u32) -> io::Result<Vec<TcxProgram>> {
        let all = tcx_programs(ifindex)?;
        let own = &self.lock().own_links;
        Ok(all.into_iter().filter(|program| !own.contains(&program.link)).collect())
    }

    /// Ends [`XdpDatapath::close`]: each port's own [`super::XdpGate`] applies again.
    pub fn open(&self) {
        self.lock().set_closed(false);
    }

    /// Sets a port's entry in the program; removes it if `ifindex` is 0. A program that does not route ignores the
    /// flags of flows, so that their families' gates are closed.
    pub(super) fn set_port(&self, mut port: RawPort) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.flow_programs.is_none() {
            port.flags &= !(FLAG_FLOWS4 | FLAG_FLOWS6);
        }
        inner.load_flow_programs(&[port])?;
        inner.enabled |= port.flags & FLAG_ENABLED != 0;
        let driven = port.ifindex != 0 && port.flags & FLAG_ENABLED != 0 && port.flags & FLAG_FORWARD != 0;
        inner.flows.iter().for_each(|flows| flows.set_level(port.id, driven));
        let mine = |p: &RawPort| p.ifindex != 0 && p.id == port.id;
        let at = inner.places[..PORTS as usize].iter().position(mine);
        if let Some(at) = at
            && inner.places[at].ifindex != port.ifindex
        {
            inner.place(at, RawPort::default());
        }
        if port.ifindex == 0 {
            return Ok(());
        }
        let places = (0..PROBES).map(|n| ((port.ifindex.wrapping_add(n)) % PORTS) as usize);
        let free = |at: &usize| inner.places[*at].ifindex == 0 || mine(&inner.places[*at]);
        let at = places.into_iter().find(free).ok_or_else(|| Error::Map {
            interface: format!("index {}", port.ifindex),
            map: "ports",
            reason: format!("too many interfaces with indices that are equal modulo {PORTS}"),
        })?;
        inner.place(at, port);
        Ok(())
    }

    /// Sets the VLANs of a port: their tags and entries. A program that does not route leaves them to the kernel. A
    /// number may be used again a grace period after its VLAN has gone.
    pub(super) fn set_vlans(&self, port: u16, vlans: &[([u8; 4], RawPort)]) -> Result<(), Error> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let Some(known) = &mut inner.vlans else { return Ok(()) };
        if !vlans.is_empty() {
            known.programs.load(&mut inner.ebpf, 0, ["bywash_vlan", "bywash_tc_vlan"])?;
        }
        inner.load_flow_programs(&vlans.iter().map(|(_, entry)| *entry).collect::<Vec<_>>())?;
        let Some(known) = &mut inner.vlans else { return Ok(()) };
        let new: BTreeMap<u64, (u16, u16)> =
            vlans.iter().map(|(tag, entry)| (Vlans::key(port, *tag), (port, entry.route_id))).collect();
        let mut free = vec![];
        known.keys.retain(|key, of| {
            let gone = of.0 == port && new.get(key) != Some(of);
            if gone {
                // An error means that it is not there.
                let _ = known.numbers.remove(key);
                free.push(usize::from(of.1));
            }
            !gone
        });
        free.into_iter().for_each(|at| inner.place(at, RawPort::default()));
        for (_, entry) in vlans {
            let at = usize::from(entry.route_id);
            if !(PORTS as usize..SLOTS).contains(&at) {
                continue;
            }
            inner.slots = inner.slots.max(at + 1);
            inner.ports.store(at * RawPort::WORDS + RawPort::VERSION, inner.version);
            inner.ports.store(at * RawPort::WORDS + RawPort::OWN, inner.own);
            inner.place(at, *entry);
        }
        let Some(known) = &mut inner.vlans else { return Ok(()) };
        for (key, of) in new {
            if !known.keys.contains_key(&key) {
                checked("vlans", known.numbers.insert(key, u32::from(of.1), 0))?;
                known.keys.insert(key, of);
            }
        }
        Ok(())
    }

    /// Sets the socket that receives the frames of a port's queue. The kernel removes the entry when the socket is
    /// closed.
    pub(super) fn set_socket(&self, id: u16, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        if queue >= QUEUES {
            let reason = format!("queue {queue}: the program supports queues 0 to {}", QUEUES - 1);
            return Err(Error::Map { interface: String::new(), map: "xsks", reason });
        }
        let done = self.lock().xsks.set(u32::from(id) * QUEUES + queue, socket.as_raw_fd(), 0);
        checked("xsks", done)
    }

    /// Returns the frames of a port that each CPU forwarded, indexed by CPU; empty if the program does not forward.
    pub(super) fn forwarded_by_cpu(&self, id: u16) -> Vec<u64> {
        self.lock().port_pairs.as_ref().map(|port_pairs| port_pairs.by_cpu(id)).unwrap_or_default()
    }

    /// Stops the program from sending on a port, including frames queued for a CPU to send.
    pub(super) fn clear_device(&self, id: u16) {
        // Interface index 0 means none. An error means that the entry went with its interface.
        let _ = self.lock().devices.set(id.into(), 0, None, 0);
    }

    /// Returns the counters of a port since the program was loaded.
    pub(super) fn counters(&self, id: u16) -> Result<XdpCounters, Error> {
        let inner = self.lock();
        let cpus = inner.counters.get(&id.into(), 0);
        let cpus = cpus.map_err(|e| Error::Map { interface: String::new(), map: "counters", reason: chain(&e) })?;
        let mut all = XdpCounters::sum(cpus.iter());
        if let Some(port_pairs) = &inner.port_pairs {
            all.add_forwarded(id, |from, to| port_pairs.between(from, to));
            all.tx_bytes = all.tx_bytes.wrapping_add(inner.flows.as_ref().map_or(0, |flows| flows.grown(id)));
        }
        Ok(all)
    }
}

/// Memory of one table; see [`XdpDatapath::segments`].
pub struct Segments {
    outer: OwnedFd,
    /// The first segment, made with the table, until it is asked for.
    first: Option<OwnedFd>,
}

impl Segments {
    /// Makes the first segment, and tests that it can be mapped.
    fn begin(outer: OwnedFd) -> io::Result<Self> {
        let mut segments = Self { outer, first: None };
        let first = segments.make(0)?;
        Words::map(first.as_fd(), SEGMENT / 8)?;
        Ok(Self { first: Some(first), ..segments })
    }

    /// Makes segment `n`, counted from 0, of [`SEGMENT`] zero bytes; returns a descriptor to map it by.
    ///
    /// # Errors
    /// If there are as many segments as the table can have, or the kernel refuses the memory.
    pub fn make(&mut self, n: usize) -> io::Result<OwnedFd> {
        if let (0, Some(first)) = (n, self.first.take()) {
            return Ok(first);
        }
        let segment = shared::new_array(SEGMENT as u32)?;
        shared::set_inner(self.outer.as_fd(), n as u32, segment.as_fd())?;
        Ok(segment)
    }

    /// Waits until every program that was running at the time of the call has ended.
    pub fn grace(&self) {
        shared::grace();
    }
}

/// Returns a duplicate of a map's descriptor. The object's own stays open: programs that are loaded later name it.
fn duplicate(of: Option<&Map>, map: &'static str) -> Result<OwnedFd, Error> {
    let fd = match of {
        Some(Map::Array(data) | Map::ArrayOfMaps(data) | Map::PerCpuArray(data) | Map::ProgramArray(data)) => {
            data.fd().as_fd().try_clone_to_owned()
        }
        _ => Err(io::Error::other("not in the object")),
    };
    fd.map_err(|e| Error::Map { interface: String::new(), map, reason: e.to_string() })
}

/// Maps `words` 64-bit words of a map.
pub(super) fn mapped(ebpf: &Ebpf, map: &'static str, words: usize) -> Result<Words, Error> {
    let mapped = Words::map(duplicate(ebpf.map(map), map)?.as_fd(), words);
    mapped.map_err(|e| Error::Map { interface: String::new(), map, reason: e.to_string() })
}

fn words_of(hop: &Hop) -> [u64; 4] {
    let m = &hop.macs;
    let u32_at = |at: usize| u64::from(u32::from_le_bytes([m[at], m[at + 1], m[at + 2], m[at + 3]]));
    let rest = u64::from(hop.kind as u8) | u64::from(hop.flags) << 8 | u64::from(hop.port) << 16;
    [
        u32_at(0) | u32_at(4) << 32,
        u32_at(8) | rest << 32,
        u64::from(hop.mtu) | u64::from(hop.first) << 32,
        u64::from(hop.count) | u64::from(hop.ifindex) << 32,
    ]
}

fn try_program(program: &aya::programs::ProgramFd, data: &[u8], context: &[u32]) -> Result<Tried, Error> {
    let run = TestRun { program: program.as_fd(), data, context, repeat: 1, flags: 0, batch_size: 0 };
    let mut bytes = vec![0; data.len() + 256];
    let ran = run.run_into(&mut bytes).map_err(|e| Error::TestRun(chain(&e)))?;
    bytes.truncate(ran.bytes);
    Ok(Tried { verdict: ran.verdict, bytes, nanoseconds: ran.nanoseconds })
}

/// Loads programs of XDP and traffic control, each in a thread of its own: the kernel's verifier takes tens of
/// milliseconds for each.
fn load_side_by_side(ebpf: &mut Ebpf, names: &[&str]) -> Result<(), String> {
    let load = |program: &mut Program| match program {
        Program::Xdp(xdp) => xdp.load(),
        Program::SchedClassifier(classifier) => classifier.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    std::thread::scope(|scope| {
        let asked = ebpf.programs_mut().filter(|(name, _)| names.contains(name));
        let loading: Vec<_> = asked.map(|(_, program)| scope.spawn(move || load(program))).collect();
        let joined = loading.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.collect::<Result<(), _>>().map_err(|e| chain(&e))
    })
}

fn checked(map: &'static str, result: Result<(), MapError>) -> Result<(), Error> {
    result.map_err(|e| Error::Map { interface: String::new(), map, reason: chain(&e) })
}
