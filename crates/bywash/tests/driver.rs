//! Compares the XDP program with the user-space router: both get the same frames and the same tables.
//!
//! The kernel runs the program over a frame (BPF_PROG_TEST_RUN); the router gets the frame from a port in memory. A
//! frame that the program redirects to a port must leave the router by that port with the same bytes. A frame that the
//! router forwards and the program does not must have a reason for it: [`leaves`] for frames left to user space,
//! [`passes`] for frames passed to the kernel.
//!
//! A further test compares both with the Linux kernel: with the same routes, the kernel must forward the same frames
//! with the same bytes, except for [`DIFFERENCES`].

#[path = "driver/bridges.rs"]
mod bridges;
#[path = "driver/flows.rs"]
mod flows;
#[path = "driver/kernel.rs"]
mod kernel;
#[path = "driver/nat.rs"]
mod nat;
#[path = "driver/vlans.rs"]
mod vlans;

use bywash_engine::{DROP_REASONS, Event, Idle, PortId, PortTable, Worker, WorkerConfig, WorkerCounters};
use bywash_fib::{Net, Net4, Net6, Shared, Table4, Table6, synth};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_lab::{End, Namespace, Veth, require, require_lab};
use bywash_port::af_xdp::{
    self, Family, Hop, HopKind, LinkInfo, Program, REASONS, Segments, TAKES_FRAMES, UNICAST, XdpAttach, XdpConfig,
    XdpDatapath,
};
use bywash_port::{Port, PortCounters, TxQueue, TxQueueConfig};
use bywash_router::tables::{Cold, Entry, HashPolicy, Kind, Own4, PortInfo, SourceCheck, Tables};
use bywash_router::{Request, Router, RouterConfig};
use bywash_sync::{Published, Qsbr};
use bywash_wire::ipv4;
use kernel::Kernel;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

const PORTS: u16 = 3;
/// The port to which the program cannot redirect.
const NO_TARGET: u16 = 2;
const MAX_FRAME: u32 = 1600;
const SMALL_MTU: u32 = 200;
const SEED: u64 = 1812;

struct Memory(Segments);

impl Shared for Memory {
    fn segment(&mut self, n: usize) -> io::Result<OwnedFd> {
        self.0.make(n)
    }

    fn grace(&mut self) {
        self.0.grace();
    }
}

fn mac(port: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8]
}

fn entries() -> Vec<Entry> {
    let forward = |port: u16, mtu| {
        let mut macs = [2, 0, 0, 0, 2, port as u8, 0, 0, 0, 0, 0, 0];
        macs[6..].copy_from_slice(&mac(port));
        Entry { macs, port: PortId(port), mtu, ..Entry::verdict(Kind::Forward) }
    };
    let group = |first, count| Entry { first, count, ..Entry::verdict(Kind::Group) };
    vec![
        Entry::verdict(Kind::NoRoute),
        forward(0, 1500),
        forward(1, 1500),
        forward(NO_TARGET, 1500),
        forward(1, SMALL_MTU),
        group(0, 3),
        group(3, 4),
        group(7, 2),
        Entry::verdict(Kind::Local),
        Entry::verdict(Kind::Kernel),
        Entry { port: PortId(1), ..Entry::verdict(Kind::Pending) },
        Entry::verdict(Kind::Glean),
        Entry::verdict(Kind::Blackhole),
        Entry::verdict(Kind::Unreachable),
        Entry::verdict(Kind::Prohibit),
    ]
}

/// Returns the subnets of a next hop's own.
fn subnets(id: u32) -> (Net4, Net6) {
    let (net4, net6) = (10 << 24 | id << 16, (0x2001_0db8_u128 << 32 | u128::from(id)) << 64);
    (Net::new(net4, 16).unwrap(), Net::new(net6, 64).unwrap())
}

/// Returns addresses of a subnet that collide in the program's destination cache (xdp/dst_cache.h).
fn crowd4(net: u32) -> impl Iterator<Item = u32> {
    (net + 256..).filter(|a| a.swap_bytes().wrapping_mul(0x9e37_79b1) >> 19 == 77).take(6)
}

/// Returns IPv6 addresses as [`crowd4`] does.
fn crowd6(net: u128) -> impl Iterator<Item = u128> {
    let mixed = |a: u128| {
        let (high, low) = (((a >> 64) as u64).swap_bytes(), (a as u64).swap_bytes());
        (high ^ low.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    (net + 256..).filter(move |a| mixed(*a) >> 52 == 77).take(6)
}

/// Routes back to sources: address, prefix length and entry. They lead to port 0, a connected subnet, an unresolved
/// next hop, port 1, a group, and the host.
const BACK: [([u8; 4], u8, u32); 6] = [
    ([10, 200, 0, 0], 18, 1),
    ([10, 200, 32, 0], 20, 11),
    ([10, 200, 48, 0], 20, 10),
    ([10, 200, 64, 0], 18, 2),
    ([10, 200, 128, 0], 18, 5),
    (OWN, 32, 8),
];
/// An address of the router's host.
const OWN: [u8; 4] = [10, 200, 7, 1];

/// The settings that a run of the test varies.
#[derive(Clone, Copy, Debug, Default)]
struct Mode {
    redirects: bool,
    check: SourceCheck,
    l3: bool,
}

/// The members of the three groups: one of two ports; one with an unresolved next hop and one by [`NO_TARGET`]; one
/// with a member that is the kernel's.
const BUCKETS: [u32; 9] = [1, 2, 2, 1, 3, 4, 10, 1, 9];

/// Returns the program's next hops for the router's entries, as the control plane would.
fn hops(entries: &[Entry]) -> Vec<Hop> {
    let kernels = |e: &Entry| BUCKETS[e.first as usize..][..e.count as usize].contains(&9);
    let hop = |e: &Entry| {
        let kind = match e.kind {
            Kind::Local => HopKind::Local,
            Kind::Kernel => HopKind::Kernel,
            Kind::Forward if e.port.0 != NO_TARGET => HopKind::Forward,
            Kind::Group if kernels(e) => HopKind::Kernel,
            Kind::Group => HopKind::Group,
            _ => HopKind::User,
        };
        let unicast = matches!(e.kind, Kind::Forward | Kind::Glean | Kind::Pending);
        let flags = if unicast { TAKES_FRAMES | UNICAST } else { TAKES_FRAMES };
        let (first, count) = (e.first, e.count);
        // The interface does not matter, since nothing is sent.
        Hop { macs: e.macs, kind, flags, port: e.port.0, mtu: e.mtu, first, count, ifindex: 1 }
    };
    entries.iter().map(hop).collect()
}

/// A port that delivers its frames one at a time and logs the fate of each.
struct Line {
    frames: std::vec::IntoIter<Vec<u8>>,
    /// Requests of the router; `None` in ports that deliver no frames.
    inbox: Option<rtrb::Consumer<Request>>,
    log: Arc<Mutex<Vec<Fate>>>,
    counters: Arc<OnceLock<Arc<WorkerCounters>>>,
    counted: Vec<u64>,
    port: u16,
}

/// The router's treatment of a frame.
#[derive(Default)]
struct Fate {
    sent: Vec<(u16, Vec<u8>)>,
    punted: bool,
    /// Names of the drop reasons and events that were counted.
    named: Vec<&'static str>,
}

impl Line {
    /// Adds to the fate of the latest frame the reasons and events that the router has counted since.
    fn note(&mut self) {
        let counters = self.counters.get().unwrap().port(PortId(self.port));
        let events = [Event::NeighbourWait, Event::Fragmented, Event::ChecksumCompleted];
        let drops = DROP_REASONS.iter().map(|r| (r.name(), counters.drops(*r)));
        let now: Vec<_> = drops.chain(events.map(|e| (e.name(), counters.events(e)))).collect();
        self.counted.resize(now.len(), 0);
        if let Some(fate) = self.log.lock().unwrap().last_mut() {
            fate.named.extend(now.iter().zip(&self.counted).filter(|(new, old)| new.1 > **old).map(|(new, _)| new.0));
        }
        self.counted = now.into_iter().map(|n| n.1).collect();
    }
}

impl Port for Line {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        if self.inbox.is_none() {
            return 0;
        }
        self.note();
        let Some(inbox) = &mut self.inbox else { return 0 };
        while let Ok(request) = inbox.pop() {
            if let Request::Punt { frame, .. } = request {
                self.log.lock().unwrap().last_mut().unwrap().punted = true;
                bufs.free_one(frame);
            }
        }
        let Some(bytes) = self.frames.next() else { return 0 };
        assert_eq!(bufs.alloc(out, 1), 1);
        assert!(bufs.arena().write(&mut out.as_mut_slice()[0], &bytes));
        self.log.lock().unwrap().push(Fate::default());
        1
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let n = frames.len();
        let mut log = self.log.lock().unwrap();
        let sent = frames.as_slice().iter().map(|f| (self.port, bufs.arena().data(f).to_vec()));
        log.last_mut().unwrap().sent.extend(sent);
        bufs.free(frames);
        n
    }

    fn counters(&self) -> Arc<PortCounters> {
        Arc::default()
    }

    fn close(&mut self, _bufs: &mut Buffers) {}
}

/// Sends the frames one by one through the router, from port 0. Returns the fate of each.
fn route(tables: Arc<Published<Tables>>, domain: &Qsbr, redirects: bool, frames: &[Vec<u8>]) -> Vec<Fate> {
    route_with(tables, domain, redirects, frames, |router| router)
}

/// Does what [`route`] does, with a router that `finish` completes.
fn route_with(
    tables: Arc<Published<Tables>>,
    domain: &Qsbr,
    redirects: bool,
    frames: &[Vec<u8>],
    finish: impl FnOnce(Router) -> Router,
) -> Vec<Fate> {
    route_at(tables, domain, (PORTS, 0), redirects, frames, finish)
}

/// Does what [`route_with`] does, with a number of ports, from one of them.
fn route_at(
    tables: Arc<Published<Tables>>,
    domain: &Qsbr,
    (ports, from): (u16, u16),
    redirects: bool,
    frames: &[Vec<u8>],
    finish: impl FnOnce(Router) -> Router,
) -> Vec<Fate> {
    let arena = Arena::new(ArenaConfig { cells: 1024, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 1024)]).unwrap();
    let (requests, inbox) = rtrb::RingBuffer::new(16);
    let mut inbox = Some(inbox);
    let log = Arc::new(Mutex::new(vec![]));
    let counters = Arc::new(OnceLock::new());
    let mut table = PortTable::new();
    for port in 0..ports {
        let frames = if port == from { frames.to_vec() } else { vec![] };
        let inbox = if port == from { inbox.take() } else { None };
        let (log, counters) = (log.clone(), counters.clone());
        let line = Line { frames: frames.into_iter(), inbox, log, counters, counted: vec![], port };
        table.add(Box::new(line), TxQueue::new(TxQueueConfig { burst: 1, deadline_us: 0 }));
    }
    let router = finish(Router::new(tables, requests, RouterConfig { icmp_rate: 0, redirects }));
    let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Spin };
    let worker = Worker::new(config, table, Box::new(router), Buffers::attach(&pools, 0), domain.register());
    assert!(counters.set(worker.counters()).is_ok());
    worker.run_turns(frames.len() as u64 + 2);
    let (missing, wrong) = pools.verify();
    assert!(missing.is_empty() && wrong.is_empty());
    std::mem::take(&mut *log.lock().unwrap())
}

/// The program on every port, and tables that the program and the router share.
struct Twin {
    datapath: XdpDatapath,
    programs: Vec<(Program, u32)>,
    domain: Qsbr,
    tables: Arc<Published<Tables>>,
    fibs: (Table4, Table6),
    routes4: Vec<(Net4, u32)>,
    routes6: Vec<(Net6, u32)>,
    targets4: Vec<u32>,
    targets6: Vec<u128>,
}

impl Twin {
    fn new() -> Self {
        let datapath = XdpDatapath::load().unwrap();
        let mut programs = vec![];
        for id in 0..PORTS {
            let link = LinkInfo::query(&format!("p{id}")).unwrap();
            programs.push((Program::attach_to(&datapath, id, &link, XdpAttach::Native, None).unwrap(), link.index));
            if id != NO_TARGET {
                datapath.set_device(id, link.index).unwrap();
            }
        }
        let domain = Qsbr::new();
        let memory = |family| Box::new(Memory(datapath.segments(family).unwrap()));
        let mut table4 = Table4::shared(&domain, memory(Family::V4)).unwrap();
        let mut table6 = Table6::shared(&domain, memory(Family::V6)).unwrap();
        let entries = entries();
        let ids = entries.len() as u32;
        // Routes of every length, and one subnet for each next hop.
        let routes4: Vec<_> = synth::routes4(3000, SEED).into_iter().enumerate().collect();
        let mut routes4: Vec<_> = routes4.into_iter().map(|(i, (net, _))| (net, i as u32 % ids)).collect();
        let routes6: Vec<_> = synth::routes6(3000, SEED).into_iter().enumerate().collect();
        let mut routes6: Vec<_> = routes6.into_iter().map(|(i, (net, _))| (net, i as u32 % ids)).collect();
        table4.load(routes4.iter().copied());
        table6.load(routes6.iter().copied());
        let (mut targets4, mut targets6) = (synth::under(&routes4, 500, SEED), synth::under(&routes6, 500, SEED));
        for id in 0..ids {
            let (net4, net6) = subnets(id);
            routes4.push((net4, id));
            routes6.push((net6, id));
            table4.insert(net4, id);
            table6.insert(net6, id);
            let (net4, net6) = (net4.addr(), net6.addr());
            targets4.extend((1..9).map(|i| net4 + i).chain(crowd4(net4)));
            targets6.extend((2..10).map(|i| net6 + i).chain(crowd6(net6)));
        }
        for (addr, len, id) in BACK {
            let net = Net::new(u32::from_be_bytes(addr), len).unwrap();
            routes4.push((net, id));
            table4.insert(net, id);
        }
        let own4 = Own4::default().with(OWN.into());
        let index = |hop: &Hop| programs.get(usize::from(hop.port)).map_or(0, |(_, index)| *index);
        let hops: Vec<Hop> = hops(&entries).iter().map(|hop| Hop { ifindex: index(hop), ..*hop }).collect();
        datapath.publish(&hops, &BUCKETS, own4.octets());
        let port = |id| PortInfo { index: 1, mac: mac(id), partial_checksums: true, ..PortInfo::default() };
        let tables = Tables {
            generation: 1,
            fib4: table4.reader(),
            fib6: table6.reader(),
            cold: vec![Cold::default(); entries.len()],
            entries,
            buckets: BUCKETS.to_vec(),
            ports: (0..PORTS).map(port).collect(),
            vlans: vec![],
            bridges: vec![],
            own4,
            hash4: HashPolicy::L4,
            hash6: HashPolicy::L4,
        };
        let tables = Arc::new(Published::new(&domain, tables));
        Self { datapath, programs, domain, tables, fibs: (table4, table6), routes4, routes6, targets4, targets6 }
    }

    /// Moves the subnet of each next hop to the following one. Most of their addresses have been looked up before, so
    /// that stale results of earlier lookups would show.
    fn turn(&mut self) {
        let ids = entries().len() as u32;
        for id in 0..ids {
            let (net4, net6) = subnets(id);
            self.fibs.0.insert(net4, (id + 1) % ids);
            self.fibs.1.insert(net6, (id + 1) % ids);
        }
        self.datapath.changed();
    }

    fn set_up(&mut self, mode: Mode) {
        let reader = self.domain.register();
        let now = self.tables.load(&reader);
        let hash = if mode.l3 { HashPolicy::L3 } else { HashPolicy::L4 };
        let ports = now.ports.iter().map(|port| PortInfo { source_check: mode.check, ..port.clone() }).collect();
        let next = Tables {
            generation: now.generation + 1,
            fib4: now.fib4.clone(),
            fib6: now.fib6.clone(),
            entries: now.entries.clone(),
            cold: now.cold.clone(),
            buckets: now.buckets.clone(),
            ports,
            vlans: vec![],
            bridges: vec![],
            own4: now.own4,
            hash4: hash,
            hash6: hash,
        };
        drop(reader);
        self.tables.replace(next);
        for (id, (program, _)) in self.programs.iter_mut().enumerate() {
            let (mac, max_frame) = (mac(id as u16), MAX_FRAME);
            let source_check = match mode.check {
                SourceCheck::Off => af_xdp::SourceCheck::Off,
                SourceCheck::Loose => af_xdp::SourceCheck::Loose,
                SourceCheck::Strict => af_xdp::SourceCheck::Strict,
            };
            let config = XdpConfig {
                enabled: true,
                mac,
                max_frame,
                forward: true,
                partial: true,
                redirects: mode.redirects,
                source_check,
                l3_hash4: mode.l3,
                l3_hash6: mode.l3,
                ..XdpConfig::default()
            };
            program.set_config(config).unwrap();
        }
    }

    fn counters(&self) -> Vec<BTreeMap<&'static str, u64>> {
        let of = |(program, _): &(Program, u32)| {
            let counters = program.counters().unwrap();
            let mut all: BTreeMap<_, _> = REASONS.iter().map(|r| (*r, counters.get(r))).collect();
            all.insert("tx", counters.tx_frames);
            all
        };
        self.programs.iter().map(of).collect()
    }

    /// Runs the program over a frame from port 0, as an XDP frame or as an skb. Returns the name of the verdict, the
    /// port of a redirect, and the resulting bytes.
    fn drive(&self, frame: &[u8], skb: bool) -> (&'static str, Option<u16>, Vec<u8>) {
        let before = self.counters();
        let from = self.programs[0].1;
        let tried =
            if skb { self.datapath.try_skb(from, frame) } else { self.datapath.try_frame(from, frame) }.unwrap();
        let after = self.counters();
        let counted = |name: &str, port: usize| after[port][name] - before[port][name];
        let reasons: Vec<_> = REASONS.into_iter().filter(|r| counted(r, 0) > 0).collect();
        assert_eq!(reasons.len(), 1, "counted once: {reasons:?}");
        let to = (0..PORTS).find(|p| counted("tx", usize::from(*p)) > 0);
        assert_eq!((tried.redirected(), tried.passed()), (to.is_some(), to.is_none()), "{}", reasons[0]);
        (reasons[0], to, tried.bytes)
    }

    /// Returns the kind and number of the entry for the frame's destination.
    fn kind(&self, frame: &[u8]) -> Option<(Kind, u32)> {
        let reader = self.domain.register();
        let tables = self.tables.load(&reader);
        let ip = frame.get(14..)?;
        let id = match ip.first()? >> 4 {
            4 => tables.fib4.lookup(u32::from_be_bytes(*ip.get(16..)?.first_chunk()?)),
            _ => tables.fib6.lookup(u128::from_be_bytes(*ip.get(24..)?.first_chunk()?)),
        };
        Some((tables.entries[id as usize].kind, id))
    }

    /// Returns the entry for the frame's source; `None` for IPv6.
    fn back(&self, frame: &[u8]) -> Option<Entry> {
        let reader = self.domain.register();
        let tables = self.tables.load(&reader);
        let ip = frame.get(14..34).filter(|ip| ip[0] >> 4 == 4)?;
        let id = tables.fib4.lookup(u32::from_be_bytes(*ip[12..].first_chunk()?));
        Some(tables.entries[id as usize])
    }

    fn compare(&self, mode: Mode, frame: &[u8], fate: &Fate) -> Result<(), TestCaseError> {
        let (reason, to, bytes) = self.drive(frame, false);
        // For shorter IP frames the kernel makes no skb.
        if frame.len() >= 54 {
            let twin = self.drive(frame, true);
            // Frames that XDP would leave to user space, traffic control leaves to the kernel.
            let of_skb = if matches!(reason, "pass_no_socket" | "pass_superframe") { "pass_exception" } else { reason };
            prop_assert!(twin == (of_skb, to, bytes.clone()), "as an skb {twin:02x?}, else {reason}: {frame:02x?}");
        }
        let show = || format!("{reason} to {to:?}: {frame:02x?}, the router sent {:02x?}", fate.sent);
        let plain = fate.sent.len() == 1 && fate.sent[0].1.len() == frame.len();
        match (reason, to) {
            ("to_port", Some(to)) => {
                prop_assert!(fate.sent.len() == 1 && fate.sent[0] == (to, bytes.clone()), "{bytes:02x?} {}", show());
            }
            // The frame is left to user space, but the test has no socket.
            ("pass_no_socket", None) => {
                prop_assert!(bytes == frame, "changed: {}", show());
                if plain {
                    prop_assert!(leaves(frame, mode.redirects, fate.sent[0].0, &fate.sent[0].1), "{}", show());
                }
            }
            ("pass_source", None) => {
                let why = match self.back(frame) {
                    None => frame[22..30] == [0; 8],
                    Some(back) => fate.punted && (back.kind == Kind::Local || !takes(back, mode.check)),
                };
                prop_assert!(why, "{mode:?} {:?} {}", self.back(frame), show());
            }
            (_, None) => {
                prop_assert!(bytes == frame, "changed: {}", show());
                prop_assert!(passes(reason, frame, self.kind(frame)), "{}", show());
            }
            _ => prop_assert!(false, "{}", show()),
        }
        Ok(())
    }
}

/// Returns whether the check accepts a source with this entry on port 0.
fn takes(back: Entry, check: SourceCheck) -> bool {
    let unicast = matches!(back.kind, Kind::Forward | Kind::Pending | Kind::Glean);
    match check {
        SourceCheck::Off => true,
        SourceCheck::Loose => unicast,
        SourceCheck::Strict => unicast && back.port == PortId(0),
    }
}

fn be16(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Returns whether the program may leave to user space a frame that the router forwards by `to`.
fn leaves(frame: &[u8], redirects: bool, to: u16, sent: &[u8]) -> bool {
    let (ip, v6) = (&frame[14..], frame[14] >> 4 == 6);
    // The checksum is unfinished if it equals the sum of the pseudo-header; behind an IPv6 extension header it may be.
    let (proto, l4, pseudo) = if v6 {
        (ip[6], 40, [&ip[8..40], &[0, ip[6]], &((be16(&ip[4..]) as u16).to_be_bytes())].concat())
    } else {
        (ip[9], 20, [&ip[12..20], &[0, ip[9]], &((be16(&ip[2..]) as u16 - 20).to_be_bytes())].concat())
    };
    let field = match proto {
        6 => ip.get(l4 + 16..l4 + 18),
        17 => ip.get(l4 + 6..l4 + 8),
        _ => None,
    };
    let unfinished = field.is_some_and(|f| be16(f) == sum(&pseudo)) || (v6 && matches!(proto, 43 | 60));
    // Port 1 has one next hop with a small MTU, entry 4.
    let small = frame.len() > 14 + SMALL_MTU as usize && to == 1 && sent.len() > 14 + SMALL_MTU as usize;
    let padded = frame.len() > 1514 || (small && (if v6 { 40 + be16(&ip[4..]) } else { be16(&ip[2..]) }) <= 200);
    unfinished || padded || to == NO_TARGET || (redirects && to == 0)
}

/// Returns whether the program may pass a frame to the kernel for this reason.
fn passes(reason: &str, frame: &[u8], leads: Option<(Kind, u32)>) -> bool {
    let (ip, kind) = (&frame[14..], be16(&frame[12..]));
    let v4 = kind == 0x800 && ip.len() >= 20 && ip[0] >> 4 == 4;
    let v6 = kind == 0x86dd && ip.len() >= 40 && ip[0] >> 4 == 6;
    let (leads, id) = leads.unwrap_or((Kind::NoRoute, 0));
    match reason {
        "pass_not_mine" => frame[..6] != mac(0) && frame[0] & 1 == 0,
        "pass_returned" => frame[..6] == frame[6..12],
        "pass_vlan" => matches!(kind, 0x8100 | 0x88a8),
        "pass_ethertype" => !matches!(kind, 0x800 | 0x86dd | 0x8100 | 0x88a8),
        "pass_options" => (v4 && ip[0] & 15 > 5) || (v6 && ip[6] == 0),
        "pass_multicast" if frame[0] & 1 == 1 => true,
        "pass_multicast" => (v6 && ip[24] == 0xff) || (v4 && (ip[16] & 0xf0 == 0xe0 || ip[16..20] == [0xff; 4])),
        "pass_link_local" if v4 => ip[12..14] == [169, 254] || ip[16..18] == [169, 254],
        "pass_link_local" => v6 && [8, 24].iter().any(|at| ip[*at] == 0xfe && ip[at + 1] >> 6 == 2),
        "pass_reserved" if v4 => matches!(ip[16], 0 | 127) || ip[12] == 127,
        "pass_reserved" => v6 && ip[24..39] == [0; 15] && ip[39] < 2,
        "pass_superframe" => frame.len() > MAX_FRAME as usize,
        "pass_local" => (v4 || v6) && leads == Kind::Local,
        // Entry 7 is a group with a member that is the kernel's.
        "pass_route" => (v4 || v6) && (leads == Kind::Kernel || id == 7),
        _ => false,
    }
}

/// Returns the one's complement sum of the words.
fn sum(bytes: &[u8]) -> usize {
    let total: usize = bytes.chunks(2).map(|w| usize::from(w[0]) << 8 | usize::from(*w.get(1).unwrap_or(&0))).sum();
    let total = (total & 0xffff) + (total >> 16);
    (total & 0xffff) + (total >> 16)
}

/// A random frame. `fault` selects a defect; most values stand for none.
#[derive(Clone, Debug)]
struct Shape {
    v6: bool,
    target: prop::sample::Index,
    unusual: u8,
    ttl: u8,
    proto: u8,
    checksum: u8,
    fault: u8,
    body: Vec<u8>,
    padding: usize,
    seed: u16,
}

impl Shape {
    fn build(&self, targets4: &[u32], targets6: &[u128]) -> Vec<u8> {
        let s = self.seed;
        let header = if self.v6 { 40 } else { 20 };
        let mut l3 = vec![0; header];
        l3.extend_from_slice(&self.body);
        let total = l3.len() as u16;
        let unusual4 = [
            [0, 1, 2, 3],
            [127, 0, 0, 1],
            [224, 0, 0, 5],
            [240, 1, 2, 3],
            [255; 4],
            [169, 254, 1, 1],
            [223, 9, 9, 9],
            OWN,
        ];
        if self.v6 {
            l3[0] = 0x60;
            l3[4..6].copy_from_slice(&(total - 40).to_be_bytes());
            (l3[6], l3[7]) = (self.proto, self.ttl);
            l3[8..16].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, s as u8]);
            l3[22..24].copy_from_slice(&s.to_be_bytes());
            l3[24..40].copy_from_slice(&self.target.get(targets6).to_be_bytes());
            let unusual6 = [[0xff, 2], [0xfe, 0x80], [0xfe, 0xc0], [0, 0], [0xfc, 0], [0xfe, 0xbf]];
            let at = if s & 1 == 0 { 8 } else { 24 };
            if let Some(unusual) = unusual6.get(usize::from(self.unusual)) {
                l3[at..at + 16].fill(0);
                l3[at..at + 2].copy_from_slice(unusual);
                l3[at + 15] = (s >> 8) as u8 % 4;
            } else if self.unusual == 6 {
                l3[8..20].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            }
        } else {
            (l3[0], l3[8], l3[9]) = (0x45, self.ttl, self.proto);
            l3[2..4].copy_from_slice(&total.to_be_bytes());
            l3[4..6].copy_from_slice(&s.to_be_bytes());
            l3[12..16].copy_from_slice(&[10, 200, (s >> 8) as u8, s as u8]);
            l3[16..20].copy_from_slice(&self.target.get(targets4).to_be_bytes());
            let at = if s & 1 == 0 { 12 } else { 16 };
            if let Some(unusual) = unusual4.get(usize::from(self.unusual)) {
                l3[at..at + 4].copy_from_slice(unusual);
            }
        }
        // The type of an ICMP message. Mostly errors, which are hashed by the packet they quote.
        if matches!(self.proto, 1 | 58) && l3.len() > header && s & 4 == 0 {
            l3[header] = [1, 2, 3, 4, 5, 11, 12, 8][usize::from(s >> 4 & 7)];
        }
        let field = header + if self.proto == 6 { 16 } else { 6 };
        if matches!(self.proto, 6 | 17) && l3.len() >= field + 2 && self.checksum < 3 {
            let addresses = if self.v6 { l3[8..40].to_vec() } else { l3[12..20].to_vec() };
            let len = (total - header as u16).to_be_bytes();
            let pseudo = sum(&[&addresses[..], &[0, self.proto], &len].concat());
            let value = [pseudo, 0, 0xffff - pseudo][usize::from(self.checksum)];
            l3[field..field + 2].copy_from_slice(&(value as u16).to_be_bytes());
        }
        match self.fault {
            0 if !self.v6 => l3[0] = 0x40 + (s % 16) as u8,
            1 => l3[0] = l3[0] & 15 | ((s % 16) as u8) << 4,
            2 if !self.v6 => l3[2..4].copy_from_slice(&(s % 3000).to_be_bytes()),
            2 => l3[4..6].copy_from_slice(&(s % 3000).to_be_bytes()),
            // Fragments, and packets with DF set.
            3 if !self.v6 => l3[6..8].copy_from_slice(&[(s >> 8) as u8 & 0x7f, s as u8]),
            _ => {}
        }
        if !self.v6 {
            let len = usize::from(l3[0] & 15) * 4;
            if len > 20 && len <= l3.len() {
                l3[10..12].fill(0);
                let value = 0xffff - sum(&l3[..len]) as u16;
                l3[10..12].copy_from_slice(&value.to_be_bytes());
            } else {
                ipv4::fill_checksum(&mut l3);
            }
        }
        if self.fault == 4 {
            l3[10 + usize::from(s & 1)] ^= 1 << (s >> 1 & 7);
        }
        let mut frame = [mac(0), [2, 0, 0, 0, 0, 9]].concat();
        let kind: u16 = if self.v6 { 0x86dd } else { 0x800 };
        frame.extend(kind.to_be_bytes());
        frame.extend(l3);
        frame.resize(frame.len() + self.padding, 0);
        match self.fault {
            5 => frame[..6].copy_from_slice(&[[0xff; 6], mac(1), [1, 0, 0x5e, 0, 0, 1]][usize::from(s % 3)]),
            6 => frame[12..14]
                .copy_from_slice(&[0x8100, 0x88a8, 0x806, 0x800, 0x86dd, s][usize::from(s % 6)].to_be_bytes()),
            7 => frame.truncate(14 + usize::from(s) % 60),
            8 => frame[6..12].copy_from_slice(&mac(0)),
            9..=11 => {
                let at = usize::from(s) % frame.len();
                frame[at] ^= self.ttl.max(1);
            }
            12 => frame.iter_mut().skip(14).zip(self.body.iter().rev()).for_each(|(byte, noise)| *byte = *noise),
            _ => {}
        }
        frame
    }
}

fn a_shape() -> impl Strategy<Value = Shape> {
    let body = prop_oneof![
        20 => prop::collection::vec(any::<u8>(), 0..100),
        4 => prop::collection::vec(any::<u8>(), 140..200),
        1 => prop::collection::vec(any::<u8>(), 1400..1580),
    ];
    let proto = prop_oneof![4 => Just(17u8), 4 => Just(6u8), 2 => prop::sample::select(vec![0, 1, 33, 43, 44, 51, 58, 60, 132, 136]),
        1 => any::<u8>()];
    let ttl = prop_oneof![10 => 2u8.., 1 => 0u8..3];
    let padding = prop_oneof![4 => Just(0usize), 1 => 0usize..120];
    let fault = prop_oneof![20 => Just(255u8), 10 => 0u8..13];
    let unusual = prop_oneof![20 => Just(255u8), 1 => 0u8..8];
    let rest = (fault, body, padding, any::<u16>());
    (any::<bool>(), any::<prop::sample::Index>(), unusual, ttl, proto, 0u8..6, rest).prop_map(
        |(v6, target, unusual, ttl, proto, checksum, (fault, body, padding, seed))| Shape {
            v6,
            target,
            unusual,
            ttl,
            proto,
            checksum,
            fault,
            body,
            padding,
            seed,
        },
    )
}

/// Returns a namespace with the ports.
fn lab() -> Namespace {
    let ns = Namespace::new("driver").unwrap();
    for id in 0..PORTS {
        let port = End::new(&ns, format!("p{id}")).mac(bywash_wire::ethernet::MacAddr(mac(id)).to_string());
        Veth::new(port, End::new(&ns, format!("q{id}"))).create().unwrap();
    }
    // The program would count the kernel's own multicast, too.
    ns.sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    ns
}

#[test]
fn the_program_does_what_the_router_does() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::new();
            let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
            let modes = [
                Mode::default(),
                Mode { redirects: true, ..Mode::default() },
                Mode { l3: true, ..Mode::default() },
                Mode { check: SourceCheck::Loose, ..Mode::default() },
                Mode { check: SourceCheck::Strict, l3: true, redirects: true },
            ];
            for mode in modes {
                twin.set_up(mode);
                let mut runner =
                    TestRunner::new(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() });
                let done = runner.run(&prop::collection::vec(a_shape(), 1..200), |shapes| {
                    let frames: Vec<_> = shapes.iter().map(|s| s.build(&twin.targets4, &twin.targets6)).collect();
                    let fates = route(twin.tables.clone(), &twin.domain, mode.redirects, &frames);
                    prop_assert_eq!(fates.len(), frames.len());
                    frames.iter().zip(&fates).try_for_each(|(frame, fate)| twin.compare(mode, frame, fate))
                });
                if let Err(e) = done {
                    panic!("{e}");
                }
                twin.turn();
            }
            for (reason, frames) in &twin.counters()[0] {
                seen.insert(reason, *frames);
            }
            println!("{seen:?}");
            let enough = |reason: &str, frames: u64| seen[reason] > frames;
            let seen_all = enough("to_port", 500) && enough("pass_no_socket", 500) && enough("pass_source", 100);
            assert!(seen_all, "too few frames of some verdict: {seen:?}");
        })
        .unwrap();
}

#[test]
fn the_program_is_timed_alone() {
    require!(require_lab());
    for family in ["4", "6"] {
        let args = ["bench", "driver", "--family", family, "--routes", "1000", "--destinations", "64", "--rounds", "1"];
        let ran = Command::new(env!("CARGO_BIN_EXE_bywash")).args(args).arg("--json").output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let figures: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        // No machine forwards a packet in less time. A shorter time would mean that the program returned early.
        assert!(figures["ns_per_packet"].as_f64().unwrap() > 2.0 && figures["destinations"] == 64, "{figures}");
    }
}

/// Returns the kernel's route arguments for each of [`entries`]; `None` for those that the kernel cannot express.
fn leads() -> Vec<kernel::Leads> {
    let both = |say: &dyn Fn(bool) -> String| [false, true].map(|v6| Some(say(v6)));
    let via = |port: u16, more: &str| both(&|v6| format!("via {} dev t{port} {more}", kernel::gateway(port, v6)));
    let plain = |what: &str| both(&|_| what.to_string());
    let group = |ports: &[(u16, u32)]| {
        both(&|v6| {
            let ways = ports.iter().map(|(port, weight)| {
                format!("nexthop via {} dev t{port} weight {weight}", kernel::gateway(*port, v6))
            });
            ways.collect::<Vec<_>>().join(" ")
        })
    };
    let small = format!("mtu lock {SMALL_MTU}");
    vec![
        plain("throw|"),
        via(0, ""),
        via(1, ""),
        via(NO_TARGET, ""),
        via(1, &small),
        group(&[(0, 1), (1, 2)]),
        // The next hops of one route cannot have different MTUs, and none can be local.
        [None, None],
        [None, None],
        plain("local|dev lo table main"),
        plain("dev away"),
        [Some("via 10.100.1.9 dev t1".into()), Some("via fd00:1::9 dev t1".into())],
        plain("dev t1"),
        plain("blackhole|"),
        plain("unreachable|"),
        plain("prohibit|"),
    ]
}

/// The differences between Bywash and the kernel that are allowed (docs/decisions/differences.md). Each must be seen.
const DIFFERENCES: [&str; 5] = ["class-e", "equal-cost-way", "padding", "this-network", "unfinished-checksum"];

/// Returns a name for the difference between the frames sent by Bywash and by the kernel; `None` if there is none.
fn difference(
    leads: Option<(Kind, u32)>,
    ours: &[(u16, Vec<u8>)],
    theirs: &[(u16, Vec<u8>)],
    named: &[&str],
    source: u8,
) -> Option<&'static str> {
    if ours == theirs {
        return None;
    }
    match source {
        _ if !ours.is_empty() || !named.contains(&"martian-source") => {}
        240.. => return Some("class-e"),
        0 => return Some("this-network"),
        _ => {}
    }
    let ours: Vec<_> = ours.iter().map(|(port, frame)| (*port, unpadded(frame))).collect();
    if ours.len() != theirs.len() {
        return Some("another number of packets");
    }
    let pairs = || ours.iter().zip(theirs);
    if pairs().all(|((port, ours), (other, theirs))| port == other && ours == theirs) {
        return Some("padding");
    }
    // Distance between the first and the last byte that differ, behind the MAC addresses.
    let changed = pairs().map(|((_, ours), (_, theirs))| {
        let at: Vec<_> = (12..ours.len().max(theirs.len())).filter(|at| ours.get(*at) != theirs.get(*at)).collect();
        at.last().map_or(0, |last| last - at[0] + 1)
    });
    let changed: Vec<_> = changed.collect();
    let ways = pairs().any(|((port, _), (other, _))| port != other);
    match (&changed[..], leads) {
        // Only one word of the packet, or of its first fragment, differs.
        ([1..=2, rest @ ..], _) if rest.iter().all(|n| *n == 0) && named.contains(&"checksum-completed") => {
            Some("unfinished-checksum")
        }
        (none, Some((Kind::Group, _))) if none.iter().all(|n| *n == 0) && ways => Some("equal-cost-way"),
        _ => Some("other bytes"),
    }
}

/// Returns the frame without the padding behind its packet.
fn unpadded(frame: &[u8]) -> &[u8] {
    let len = if frame[14] >> 4 == 6 { 54 + be16(&frame[18..]) } else { 14 + be16(&frame[16..]) };
    &frame[..len.min(frame.len())]
}

#[test]
fn the_kernel_does_what_both_do() {
    require!(require_lab());
    require!(bywash_lab::kernel_has("tun"));
    let ns = lab();
    let (mut seen, mut forwarded, mut dropped) = (BTreeMap::<&str, (u64, String)>::new(), 0, 0);
    ns.enter(|| {
        let mut twin = Twin::new();
        twin.set_up(Mode::default());
        let known = |id: u32| leads()[id as usize][0].is_some();
        let routes4: Vec<_> = twin.routes4.iter().filter(|(_, id)| known(*id)).copied().collect();
        let routes6: Vec<_> = twin.routes6.iter().filter(|(_, id)| known(*id)).copied().collect();
        let macs: Vec<_> = (0..PORTS).map(mac).collect();
        let station = |port: u16| [2, 0, 0, 0, 2, port as u8];
        let mut kernel = Kernel::new(&macs, station, &kernel::routes(&routes4, &routes6, &leads()));
        let mut runner = TestRunner::deterministic();
        let shapes = prop::collection::vec(a_shape(), 100);
        for _ in 0..100 {
            let shapes = shapes.new_tree(&mut runner).unwrap().current();
            let frames: Vec<_> = shapes.iter().map(|s| s.build(&twin.targets4, &twin.targets6)).collect();
            let fates = route(twin.tables.clone(), &twin.domain, false, &frames);
            for (frame, fate) in frames.iter().zip(&fates) {
                let (reason, to, bytes) = twin.drive(frame, false);
                let leads = twin.kind(frame);
                if leads.is_some_and(|(_, id)| !known(id)) {
                    continue;
                }
                let mut theirs = kernel.give(frame);
                let (ours, named) = match (reason, to) {
                    (_, Some(to)) => (vec![(to, bytes)], vec![]),
                    ("pass_no_socket", None) if !fate.punted => (fate.sent.clone(), fate.named.clone()),
                    // The frame was left to the kernel, so that there is nothing to compare.
                    _ => continue,
                };
                if theirs.is_empty() && !ours.is_empty() {
                    theirs = kernel.late(frame);
                }
                forwarded += u64::from(!ours.is_empty());
                dropped += u64::from(ours.is_empty());
                assert!(!ours.is_empty() || !named.is_empty(), "lost and not counted: {leads:?} {frame:02x?}");
                if let Some(name) = difference(leads, &ours, &theirs, &named, *frame.get(26).unwrap_or(&0)) {
                    let show =
                        || format!("{leads:?} {named:?} {frame:02x?}\n  ours {ours:02x?}\n  theirs {theirs:02x?}");
                    seen.entry(name).or_insert_with(|| (0, show())).0 += 1;
                }
            }
        }
    })
    .unwrap();
    println!("{forwarded} forwarded, {dropped} not; {:?}", seen.iter().map(|(k, v)| (k, v.0)).collect::<Vec<_>>());
    for (name, (_, example)) in seen.iter().filter(|(name, _)| !DIFFERENCES.contains(name)) {
        println!("{name}: {example}");
    }
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), DIFFERENCES);
    assert!(forwarded > 2000 && dropped > 500, "too few frames");
}
