//! The built-in XDP program, one instance for all ports of a process, and its forwarding tables.
//!
//! # Shared tables
//! The memory of the forwarding tables is made in segments that the process maps and the program reads
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
//! route named until then: the version advances, and results cached under older versions become invalid. The first
//! version is random, so that no sender can make up an entry.

use super::abi::{
    BUCKETS, FLAG_ENABLED, FLAG_FLOWS4, FLAG_FLOWS6, FLAG_FORWARD, FLAG_KERNEL4, FLAG_KERNEL6, FLOW_WORKERS, HOPS, Hop,
    HopKind, PORT_CPUS, PORTS, PROBES, QUEUES, RawPort, SENDING_BRIDGED, SENDING_BY_RULES, SENDING_TARGET, VLANS,
    XdpCounters,
};
use super::attach::{TcxProgram, tcx_programs};
use super::cpumap::CpuQueues;
use super::ends::{TunnelEnd, TunnelPolicy};
use super::error::checked;
use super::flows::{Flows, Memory};
use super::map::Map;
use super::objects::{Kind, Make, OnDemand, make};
use super::parts::Parts;
use super::port_pairs::PortPairs;
use super::router::{Router, Vlans};
use super::segments::Segments;
use super::stations::Stations;
use super::{Error, shared};
use bywash_sync::lock;
use shared::{Versions, Words};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// The loaded XDP program and its maps. Clones share one instance, which is unloaded with the last clone.
///
/// # Thread-safety
/// Shared freely between threads; the kernel sees each change at once and as a whole.
#[derive(Clone)]
pub struct XdpDatapath(Arc<Mutex<Inner>>);

pub(super) struct Inner {
    /// Number that identifies its objects where they were made.
    pub number: u32,
    pub xdp: OwnedFd,
    /// The program of traffic control; `None` before it is needed.
    tc: Option<OwnedFd>,
    ports: Words,
    /// Entries in `ports`: those of ports, by slot, and after them those of VLANs, by number.
    places: [RawPort; SLOTS],
    /// End of the slots that have ever been used, and at least of all slots of ports.
    slots: usize,
    xsks: Map,
    devices: Map,
    counters: Map,
    /// Our program, for each port on which a program of the user's runs before it.
    pub next: Map,
    /// `None` if the program does not forward.
    port_pairs: Option<PortPairs>,
    /// `None` for a program that is not a router's.
    router: Option<Router>,
    refused: Option<Arc<str>>,
    /// Next hops and the members of groups; `None` for a switch's program.
    hops: Option<(Versions, Versions)>,
    /// `None` for a program that is not a switch's.
    flows: Option<Arc<Memory>>,
    /// Queues to CPUs, or the reason why the kernel cannot spread frames over CPUs.
    cpu_queues: Result<CpuQueues, String>,
    pub version: u64,
    /// Filter of the host's own addresses, as last published.
    own: u64,
    /// Set if the gates of all ports are closed: see [`XdpDatapath::close`].
    closed: bool,
    /// Set while all frames between members of bridges are left to the kernel.
    members_suspended: bool,
    /// Set if any port has ever been enabled: until then no program reads the tables.
    enabled: bool,
    /// Ids of the tcx links of the process's own programs.
    pub own_links: Vec<u32>,
    _forget: Forget,
}

/// Releases the objects of a datapath, where they were made, when dropped.
struct Forget(u32);

impl Drop for Forget {
    fn drop(&mut self) {
        // If this fails, they are freed with the process.
        let _ = make(&Make::Forget { of: self.0 });
    }
}

/// Number of entries for ports, and for VLANs after them.
const SLOTS: usize = (PORTS + VLANS) as usize;

/// Address family of a forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

/// Returns the slot for a port's entry. The program looks for an interface in several slots: of these, the one that the
/// port already has; otherwise the first that is free or has this port's entry for another interface. `None` without an
/// interface, or if all are taken.
fn slot_of(places: &[RawPort; SLOTS], port: &RawPort) -> Option<usize> {
    if port.ifindex == 0 {
        return None;
    }
    let mut slots = (0..PROBES).map(|n| (port.ifindex.wrapping_add(n) % PORTS) as usize);
    let has = |at: &usize| places[*at].id == port.id && places[*at].ifindex == port.ifindex;
    slots.clone().find(has).or_else(|| slots.find(|at| places[*at].ifindex == 0 || places[*at].id == port.id))
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

    /// Returns a port's entry, with its gate closed if the gates of all ports are, and without other members while
    /// frames between members are left to the kernel.
    fn gated(&self, mut port: RawPort) -> RawPort {
        if self.closed && port.ifindex != 0 {
            port.flags = (port.flags | FLAG_KERNEL4 | FLAG_KERNEL6) & !(FLAG_FLOWS4 | FLAG_FLOWS6);
        }
        if self.closed || self.members_suspended {
            port.members = 0;
        }
        port
    }

    fn set_closed(&mut self, closed: bool) {
        self.closed = closed;
        self.gate_all();
    }

    /// Returns the stations of bridges. `None` for a program that is not a router's.
    pub fn stations(&mut self) -> Option<&mut Stations> {
        self.router.as_mut().map(|router| &mut router.stations)
    }

    pub fn suspends_members(&self) -> bool {
        self.members_suspended
    }

    /// Sets whether all frames between members of bridges are left to the kernel.
    pub fn suspend_members(&mut self, suspended: bool) {
        self.members_suspended = suspended;
        self.gate_all();
    }

    fn gate_all(&self) {
        for at in 0..self.slots {
            let port = self.gated(self.places[at]);
            // The word with the flags.
            self.ports.store(at * RawPort::WORDS, port.words()[0]);
            self.ports.store(at * RawPort::WORDS + RawPort::MEMBERS, port.members);
        }
    }

    /// Loads the programs for VLANs and bonds, for bridges, for flows, and for flows of VLANs and bonds, if these
    /// entries of ports or VLANs are the first that need them. Those for flows serve members of bridges, too.
    fn load_programs(&mut self, entries: &[RawPort]) -> Result<(), Error> {
        let Self { router: Some(router), places, number, .. } = self else { return Ok(()) };
        let all = || entries.iter().chain(places.iter()).filter(|entry| entry.ifindex != 0);
        let bridged = |entry: &RawPort| entry.sending & SENDING_BRIDGED != 0;
        let above = |entry: &RawPort| entry.route_id >= PORTS as u16 && !bridged(entry);
        if all().any(above) {
            router.vlans.programs.load(*number, 0, OnDemand::Vlans)?;
        }
        if all().any(bridged) {
            router.bridge_programs.load(*number, 0, OnDemand::Bridges)?;
        }
        if !all().any(|entry| bridged(entry) || entry.flags & (FLAG_FLOWS4 | FLAG_FLOWS6) != 0) {
            return Ok(());
        }
        router.flow_programs.load(*number, 0, OnDemand::Flows)?;
        if all().any(above) {
            router.flow_programs.load(*number, 1, OnDemand::FlowsOfVlans)?;
        }
        Ok(())
    }

    /// Loads the programs for ports with policy routing rules if this entry is the first that needs them. If they are
    /// refused, which is reported as an error once, user space looks up the port's packets.
    fn load_rule_programs(&mut self, port: &mut RawPort) -> Result<(), Error> {
        if port.sending & SENDING_BY_RULES == 0 {
            return Ok(());
        }
        let loaded = match &mut self.router {
            Some(Router { rule_programs, .. }) if !rule_programs.refused() => {
                rule_programs.load(self.number, 0, OnDemand::Rules)
            }
            _ => Ok(()),
        };
        if self.refuses_rules() {
            port.sending &= !SENDING_BY_RULES;
        }
        loaded
    }

    fn refuses_rules(&self) -> bool {
        self.router.as_ref().is_none_or(|router| router.rule_programs.refused())
    }

    /// Returns whether there is a program of traffic control: only a router's object has one.
    pub fn has_tc(&self) -> bool {
        self.router.is_some()
    }

    /// Returns the program of traffic control, which is loaded when it is first needed.
    pub fn tc(&mut self) -> Result<BorrowedFd<'_>, String> {
        if self.tc.is_none() {
            let what = OnDemand::TrafficControl;
            let mut made = make(&Make::OnDemand { of: self.number, what }).map_err(|why| Error::from(why).reason())?;
            self.tc = Some(made.take(what.names()[0])?);
        }
        self.tc.as_ref().map(|tc| tc.as_fd()).ok_or_else(|| "the object has no such program".into())
    }

    /// Writes a port's entry into a slot. The word with the interface index, which makes the entry valid, is written
    /// after the others. The word with the members depends on all of them: it is cleared first and written last.
    fn place(&mut self, at: usize, port: RawPort) {
        self.places[at] = port;
        let (first, port) = (at * RawPort::WORDS, self.gated(port));
        let words = port.words();
        self.ports.store(first + RawPort::MEMBERS, 0);
        self.ports.store(first + RawPort::LONGEST, u64::from(port.longest) | u64::from(port.through) << 32);
        for n in [0, 2, 1] {
            self.ports.store(first + n, words[n]);
        }
        self.ports.store(first + RawPort::MEMBERS, port.members);
    }
}

impl Inner {
    fn to_device(&self, id: u16, ifindex: u32) -> io::Result<()> {
        // struct bpf_devmap_val, without a program; before Linux 5.8 only its first half.
        let value = [ifindex.to_ne_bytes(), [0; 4]].concat();
        self.router.iter().for_each(|router| router.stations.set_interface(id, ifindex));
        self.devices.update(&u32::from(id).to_ne_bytes(), &value[..self.devices.value_size().min(value.len())])
    }
}

impl XdpDatapath {
    /// Loads the programs of XDP and of traffic control without attaching them. If the kernel refuses them, because of
    /// its verifier or because it cannot provide memory shared with the process, loads a plain program that leaves
    /// forwarding to user space; see [`XdpDatapath::refused`].
    ///
    /// # Errors
    /// [`Error::Load`] and [`Error::Map`] with the kernel's reasons if it accepts neither.
    pub fn load() -> Result<Self, Error> {
        Self::or_plain(Self::load_object(Kind::Router, true, None))
    }

    /// Like [`XdpDatapath::load`], but loads the program of XDP alone, where that is likely to be all that is needed:
    /// the program of traffic control is loaded when it is first attached.
    ///
    /// # Errors
    /// Errors of [`XdpDatapath::load`].
    pub fn load_native() -> Result<Self, Error> {
        Self::or_plain(Self::load_object(Kind::Router, false, None))
    }

    /// Loads the program of a switch with tables for the flows of `workers` workers ([`XdpDatapath::flows`]), clamped
    /// to 1 to 16. If the kernel refuses it, loads the plain program.
    ///
    /// # Errors
    /// Errors of [`XdpDatapath::load`].
    pub fn load_switch(workers: usize) -> Result<Self, Error> {
        Self::or_plain(Self::load_object(Kind::Switch(workers.clamp(1, FLOW_WORKERS)), false, None))
    }

    fn or_plain(loaded: Result<Self, Error>) -> Result<Self, Error> {
        loaded.or_else(|e| Self::load_object(Kind::Plain, false, Some(e.reason().into())))
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

    fn load_object(kind: Kind, tc: bool, refused: Option<Arc<str>>) -> Result<Self, Error> {
        let mut made = make(&Make::Datapath { kind, tc })?;
        let load_error = |reason: String| Error::Load { interface: String::new(), reason };
        let cpus = aya::util::nr_cpus().map_err(|(what, e)| load_error(format!("{what}: {e}")))?;
        let number = made.number;
        // From here on, a failure forgets the objects.
        let forget = Forget(number);
        let cpu_queues = CpuQueues::new(&mut made);
        let mut parts = Parts(made);
        let (hops, flows) = match kind {
            Kind::Switch(workers) => {
                let memory = Memory::map(workers, cpus, &mut |name, words| parts.words(name, words))?;
                (None, Some(Arc::new(memory)))
            }
            _ => {
                let hops = parts.versions("hops", HOPS, Hop::WORDS)?;
                (Some((hops, parts.versions("buckets", BUCKETS, 1)?)), None)
            }
        };
        let port_pairs = match refused {
            None => Some(PortPairs::new(parts.words("port_pairs", cpus * PortPairs::OF_A_CPU)?, cpus)),
            Some(_) => None,
        };
        let mut inner = Inner {
            number,
            xdp: parts.take("bywash")?,
            tc: tc.then(|| parts.take("bywash_tc")).transpose()?,
            ports: parts.words("ports", SLOTS * RawPort::WORDS)?,
            places: [RawPort::default(); SLOTS],
            slots: PORTS as usize,
            xsks: parts.map("xsks")?,
            devices: parts.map("devices")?,
            counters: parts.map("counters")?,
            next: parts.map("next")?,
            port_pairs,
            router: (kind == Kind::Router).then(|| Router::take(&mut parts)).transpose()?,
            refused,
            hops,
            flows,
            cpu_queues,
            version: 0,
            own: 0,
            closed: false,
            members_suspended: false,
            enabled: false,
            own_links: vec![],
            _forget: forget,
        };
        if kind == Kind::Router {
            // Unpredictable: a cache entry has a packet's addresses, and its seal is a plain function of its words and
            // the version, so that a sender who knew the version could make up an entry.
            inner.set_version(RandomState::new().hash_one(number));
        }
        Ok(Self(Arc::new(Mutex::new(inner))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// Returns the memory of a family's table, to be made segment by segment. `None` if it has been handed out already
    /// or the program does not route ([`XdpDatapath::refused`]).
    pub fn segments(&self, family: Family) -> Option<Segments> {
        self.lock().router.as_mut()?.fibs[family as usize].take()
    }

    /// Returns the memory of a family's flow table (`xdp/flows.h`), like [`XdpDatapath::segments`].
    pub fn flow_segments(&self, family: Family) -> Option<Segments> {
        self.lock().router.as_mut()?.connections[family as usize].take().map(Segments::new)
    }

    /// Publishes next hops (by id), the members of groups, and the bit set of addresses that may be the host's own
    /// (`own_bit` in `xdp/forward.h`), all at once. Once a port has been enabled, blocks for a grace period of some
    /// milliseconds; after it no program uses older ones.
    ///
    /// Packets to next hops beyond [`HOPS`], or to groups beyond [`BUCKETS`], go to user space.
    pub fn publish(&self, hops: &[Hop], buckets: &[u32], own: u64) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some((in_hops, in_buckets)) = &mut inner.hops else { return };
        let next = inner.version.wrapping_add(1);
        let half = (next & 1) as usize;
        let (for_hops, for_buckets) = (in_hops.room(half, hops.len()), in_buckets.room(half, buckets.len()));
        for (i, hop) in hops.iter().take(for_hops).enumerate() {
            let buckets = match hop.kind {
                HopKind::Group => hop.count,
                HopKind::Bond => hop.ifindex & 0xffff,
                _ => 0,
            };
            let known = buckets == 0 || hop.first as usize + buckets as usize <= for_buckets;
            let hop = if known { *hop } else { Hop::default() };
            for (n, word) in hop.words().into_iter().enumerate() {
                in_hops.store(half, i * Hop::WORDS + n, word);
            }
        }
        for i in hops.len().min(for_hops)..for_hops {
            // The word with the kind: `HopKind::User`.
            in_hops.store(half, i * Hop::WORDS + 1, 0);
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
        let next = inner.version.wrapping_add(2);
        inner.set_version(next);
    }

    /// Sets the interface on which frames forwarded out of port `id` leave. The kernel removes the entry with the
    /// interface.
    ///
    /// # Errors
    /// [`Error::Map`] with the kernel's reason.
    pub fn set_device(&self, id: u16, ifindex: u32) -> Result<(), Error> {
        checked("devices", self.lock().to_device(id, ifindex))
    }

    /// Sets the CPUs that send for a port. The program learns their number from [`XdpDatapath::set_port`].
    pub(super) fn set_cpus(&self, id: u16, cpus: &[usize]) -> Result<(), Error> {
        let refused = |reason: &str| Error::Spread { interface: String::new(), reason: reason.into() };
        if cpus.len() > PORT_CPUS {
            return Err(refused(&format!("{} CPUs: at most {PORT_CPUS} per port", cpus.len())));
        }
        match &mut self.lock().cpu_queues {
            Ok(queues) => queues.set(id, cpus).map_err(|e| refused(&e)),
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

    /// Closes the gates of all ports regardless of each port's setting: from the next frame on every IP packet, and
    /// every frame between members of a bridge, is passed to the kernel. Takes microseconds, two stores per port.
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
        if inner.router.is_none() {
            port.flags &= !(FLAG_FLOWS4 | FLAG_FLOWS6);
        }
        // Even if a program cannot be loaded, the previous entry must not stay: its gates may differ.
        let loaded = inner.load_programs(&[port]);
        if loaded.is_err() {
            port.flags &= !(FLAG_FLOWS4 | FLAG_FLOWS6);
            if port.sending & SENDING_BRIDGED != 0 {
                (port.flags, port.sending) = (port.flags & !FLAG_ENABLED, port.sending & !SENDING_BRIDGED);
            }
        }
        let refused = loaded.and(inner.load_rule_programs(&mut port));
        if refused.is_err() {
            // Until a configuration can be set, nothing may be led here.
            port.sending &= !SENDING_TARGET;
        }
        inner.enabled |= port.flags & FLAG_ENABLED != 0;
        let driven = port.ifindex != 0 && port.flags & FLAG_ENABLED != 0 && port.flags & FLAG_FORWARD != 0;
        inner.flows.iter().for_each(|flows| flows.set_level(port.id, driven));
        let at = slot_of(&inner.places, &port);
        for slot in 0..PORTS as usize {
            let place = inner.places[slot];
            let same = Some(slot) == at && place.ifindex == port.ifindex;
            if place.ifindex != 0 && place.id == port.id && !same {
                inner.place(slot, RawPort::default());
            }
        }
        if port.ifindex == 0 {
            return Ok(());
        }
        let at = at.ok_or_else(|| Error::Map {
            interface: format!("index {}", port.ifindex),
            map: "ports",
            reason: format!("too many interfaces with indices that are equal modulo {PORTS}"),
        })?;
        inner.place(at, port);
        refused
    }

    /// Returns whether the kernel has refused the programs for ports with policy routing rules, so that user space
    /// looks their packets up.
    pub fn refuses_rules(&self) -> bool {
        self.lock().refuses_rules()
    }

    /// Sets the tunnels whose packets go to user space; those of all others are left to the kernel.
    ///
    /// # Errors
    /// [`Error::Load`] for the first tunnel of all, and [`Error::Map`], with the kernel's reasons: the packets of the
    /// tunnels that could not be set are left to the kernel.
    pub fn set_tunnels(&self, ends: &BTreeMap<TunnelEnd, TunnelPolicy>) -> Result<(), Error> {
        let mut inner = self.lock();
        let Inner { router: Some(router), number, .. } = &mut *inner else { return Ok(()) };
        if !ends.is_empty() {
            router.tunnel_programs.load(*number, 0, OnDemand::Tunnels)?;
        }
        checked("ends", router.ends.set(ends))
    }

    /// Sets the VLANs of a port: the tag of each, the number of its entry, and the entry. A program that does not route
    /// leaves them to the kernel. A number may be used again a grace period after its VLAN has gone.
    pub(super) fn set_vlans(&self, port: u16, vlans: &[([u8; 4], u16, RawPort)]) -> Result<(), Error> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let Some(Router { vlans: known, .. }) = &mut inner.router else { return Ok(()) };
        let new: BTreeMap<u64, (u16, u16)> =
            vlans.iter().map(|(tag, at, entry)| (Vlans::key(port, *tag, entry.mac), (port, *at))).collect();
        let (mut gone_keys, mut free) = (vec![], vec![]);
        known.keys.retain(|key, of| {
            let gone = of.0 == port && new.get(key) != Some(of);
            if gone {
                gone_keys.push(*key);
                free.push(usize::from(of.1));
            }
            !gone
        });
        gone_keys.into_iter().for_each(|key| known.remove(key));
        free.into_iter().for_each(|at| inner.place(at, RawPort::default()));
        // After the removals, which cannot fail: VLANs that are gone must be removed in any case.
        if vlans.is_empty() {
            return Ok(());
        }
        inner.load_programs(&vlans.iter().map(|(_, _, entry)| *entry).collect::<Vec<_>>())?;
        for (_, at, entry) in vlans {
            let at = usize::from(*at);
            if !(PORTS as usize..SLOTS).contains(&at) {
                continue;
            }
            inner.slots = inner.slots.max(at + 1);
            inner.ports.store(at * RawPort::WORDS + RawPort::VERSION, inner.version);
            inner.ports.store(at * RawPort::WORDS + RawPort::OWN, inner.own);
            inner.place(at, *entry);
        }
        let Some(Router { vlans: known, .. }) = &mut inner.router else { return Ok(()) };
        for (key, of) in new {
            if !known.keys.contains_key(&key) {
                checked("vlans", known.insert(key, of))?;
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
        checked("xsks", self.lock().xsks.put(u32::from(id) * QUEUES + queue, socket))
    }

    /// Returns the frames of a port that each CPU forwarded, indexed by CPU; empty if the program does not forward.
    pub(super) fn forwarded_by_cpu(&self, id: u16) -> Vec<u64> {
        self.lock().port_pairs.as_ref().map(|port_pairs| port_pairs.by_cpu(id)).unwrap_or_default()
    }

    /// Stops the program from sending on a port, including frames queued for a CPU to send.
    pub(super) fn clear_device(&self, id: u16) {
        // Interface index 0 means none. An error means that the entry went with its interface.
        let _ = self.lock().to_device(id, 0);
    }

    /// Returns the counters of a port since the program was loaded.
    pub(super) fn counters(&self, id: u16) -> Result<XdpCounters, Error> {
        let inner = self.lock();
        let words = checked("counters", inner.counters.of_cpus(&u32::from(id).to_ne_bytes()))?;
        let mut all = XdpCounters::sum(&words);
        if let Some(port_pairs) = &inner.port_pairs {
            all.add_forwarded(id, |from, to| port_pairs.between(from, to));
            all.tx_bytes = all.tx_bytes.wrapping_add(inner.flows.as_ref().map_or(0, |flows| flows.grown(id)));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_lab::{require, require_lab};

    fn port(id: u16, ifindex: u32) -> RawPort {
        RawPort { id, ifindex, ..RawPort::default() }
    }

    fn slots(datapath: &XdpDatapath) -> Vec<(usize, u16, u32)> {
        let inner = datapath.lock();
        let (places, ports) = (inner.places.iter().enumerate(), &inner.ports);
        let places: Vec<_> = places.filter(|(_, place)| place.ifindex != 0).collect();
        for (at, place) in &places {
            assert_eq!(ports.load(at * RawPort::WORDS + 1), place.words()[1], "slot {at}");
        }
        places.into_iter().map(|(at, place)| (at, place.id, place.ifindex)).collect()
    }

    #[test]
    fn a_port_has_one_slot_whatever_others_leave() {
        require!(require_lab());
        let datapath = XdpDatapath::load_native().unwrap();
        let set = |port: RawPort| datapath.set_port(port).unwrap();
        set(port(0, 5));
        set(port(1, 69));
        assert_eq!(slots(&datapath), [(5, 0, 5), (6, 1, 69)]);
        set(port(0, 0));
        // Stays where the program finds it.
        set(port(1, 69));
        assert_eq!(slots(&datapath), [(6, 1, 69)]);
        // The port's interface has gone, and another one has the port's number.
        set(port(1, 70));
        assert_eq!(slots(&datapath), [(6, 1, 70)]);
        set(port(1, 5));
        assert_eq!(slots(&datapath), [(5, 1, 5)]);
        (2..5).for_each(|n| set(port(n, 5 + 64 * u32::from(n))));
        let full = datapath.set_port(port(5, 5 + 64 * 5)).unwrap_err().to_string();
        assert!(full.contains("too many interfaces"), "{full}");
        (1..5).for_each(|n| set(port(n, 0)));
        assert_eq!(slots(&datapath), []);
    }

    #[test]
    fn nobody_can_guess_the_first_version() {
        require!(require_lab());
        let version = || {
            let datapath = XdpDatapath::load_native().unwrap();
            let inner = datapath.lock();
            let of = |slot: usize| inner.ports.load(slot * RawPort::WORDS + RawPort::VERSION);
            assert!((0..PORTS as usize).all(|slot| of(slot) == inner.version));
            inner.version
        };
        let versions = [version(), version()];
        assert!(
            versions[0] != versions[1] && versions.iter().all(|version| *version > u64::from(u32::MAX)),
            "{versions:?}"
        );
    }

    #[test]
    fn versions_may_wrap_around() {
        require!(require_lab());
        let datapath = XdpDatapath::load_native().unwrap();
        datapath.lock().set_version(u64::MAX);
        datapath.publish(&[], &[], 0);
        assert_eq!(datapath.lock().version, 0);
        datapath.lock().set_version(u64::MAX);
        datapath.changed();
        assert_eq!(datapath.lock().version, 1);
    }
}
