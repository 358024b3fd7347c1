//! Tables, router and comparison for the XDP program, wherever it runs: tables that both read, the
//! router with ports in memory, and the comparison. Shared by the tests of the program in the kernel and by the fuzz
//! target of its sources.

use bywash_engine::{DROP_REASONS, Event, Idle, PortId, PortTable, Worker, WorkerConfig, WorkerCounters};
use bywash_fib::{Net, Net4, Net6, Shared, Table4, Table6, synth};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_port::af_xdp::{self, Hop, HopKind, TAKES_FRAMES, UNICAST, XdpConfig};
use bywash_port::{Port, PortCounters, TxQueue, TxQueueConfig};
use bywash_router::tables::{Cold, Entry, HashPolicy, Kind, Own4, PortInfo, Reception, SourceCheck, Tables};
use bywash_router::tunnel::Tunnels;
use bywash_router::{Request, Router, RouterConfig};
use bywash_sync::{Published, Qsbr, clock};
use bywash_wire::ipv4;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ports of the router. Frames arrive at port 0.
pub const PORTS: u16 = 3;
/// The port to which the program cannot redirect.
pub const NO_TARGET: u16 = 2;
pub const MAX_FRAME: u32 = 1600;
pub const SMALL_MTU: u32 = 200;
pub const SEED: u64 = 1812;

pub fn mac(port: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8]
}

pub fn entries() -> Vec<Entry> {
    let forward = |port: u16, mtu| {
        let mut macs = [2, 0, 0, 0, 2, port as u8, 0, 0, 0, 0, 0, 0];
        macs[6..].copy_from_slice(&mac(port));
        Entry::of_port(Kind::Forward, PortId(port), mtu, macs)
    };
    vec![
        Entry::verdict(Kind::NoRoute),
        forward(0, 1500),
        forward(1, 1500),
        forward(NO_TARGET, 1500),
        forward(1, SMALL_MTU),
        Entry::of_group(0, 3),
        Entry::of_group(3, 4),
        Entry::of_group(7, 2),
        Entry::verdict(Kind::Local),
        Entry::verdict(Kind::Kernel),
        Entry::of_port(Kind::Pending, PortId(1), 0, [0; 12]),
        Entry::verdict(Kind::Glean),
        Entry::verdict(Kind::Blackhole),
        Entry::verdict(Kind::Unreachable),
        Entry::verdict(Kind::Prohibit),
    ]
}

/// Returns the subnets of a next hop's own.
pub fn subnets(id: u32) -> (Net4, Net6) {
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
pub const BACK: [([u8; 4], u8, u32); 6] = [
    ([10, 200, 0, 0], 18, 1),
    ([10, 200, 32, 0], 20, 11),
    ([10, 200, 48, 0], 20, 10),
    ([10, 200, 64, 0], 18, 2),
    ([10, 200, 128, 0], 18, 5),
    (OWN, 32, 8),
];
/// An address of the router's host.
pub const OWN: [u8; 4] = [10, 200, 7, 1];

/// The settings that a run of the test varies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    pub redirects: bool,
    pub check: SourceCheck,
    pub l3: bool,
}

/// The modes that packets are compared in.
pub const MODES: [Mode; 5] = [
    Mode { redirects: false, check: SourceCheck::Off, l3: false },
    Mode { redirects: true, check: SourceCheck::Off, l3: false },
    Mode { redirects: false, check: SourceCheck::Off, l3: true },
    Mode { redirects: false, check: SourceCheck::Loose, l3: false },
    Mode { redirects: true, check: SourceCheck::Strict, l3: true },
];

impl Mode {
    /// Returns the settings of the program for a port.
    pub fn config(self, port: u16) -> XdpConfig {
        let source_check = match self.check {
            SourceCheck::Off => af_xdp::RpFilter::Off,
            SourceCheck::Loose => af_xdp::RpFilter::Loose,
            SourceCheck::Strict => af_xdp::RpFilter::Strict,
        };
        XdpConfig {
            enabled: true,
            mac: mac(port),
            max_frame: MAX_FRAME,
            forward: true,
            partial: true,
            redirects: self.redirects,
            source_check,
            l3_hash4: self.l3,
            l3_hash6: self.l3,
            ..XdpConfig::default()
        }
    }
}

/// The members of the three groups: one of two ports; one with an unresolved next hop and one by [`NO_TARGET`]; one
/// with a member that is left to the kernel.
pub const BUCKETS: [u32; 9] = [1, 2, 2, 1, 3, 4, 10, 1, 9];

/// Returns the program's next hops for the router's entries, as the control plane would.
pub fn hops(entries: &[Entry]) -> Vec<Hop> {
    let kernels = |e: &Entry| BUCKETS[e.group()].contains(&9);
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
        let (first, count) = (e.group().start as u32, e.group().len() as u32);
        // The interface does not matter, since nothing is sent.
        Hop { macs: e.macs, kind, flags, port: e.port.0, mtu: e.mtu, first, count, ifindex: 1 }
    };
    entries.iter().map(hop).collect()
}

/// The router's treatment of a frame.
#[derive(Default)]
pub struct Fate {
    pub sent: Vec<(u16, Vec<u8>)>,
    pub punted: bool,
    /// Names of the drop reasons and events that were counted, if they were asked for ([`Rig::named`]).
    pub named: Vec<&'static str>,
}

/// A frame for the router, with the port that it arrives at until it has, and its fate so far.
#[derive(Default)]
struct Given {
    frame: Option<(u16, Vec<u8>)>,
    fate: Fate,
}

/// A port in memory.
struct Line {
    port: u16,
    given: Arc<Mutex<Given>>,
    /// Requests of the router; `None` in all ports but one.
    inbox: Option<rtrb::Consumer<Request>>,
}

impl Line {
    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for Line {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let Some((_, bytes)) = self.given().frame.take_if(|(port, _)| *port == self.port) else { return 0 };
        assert_eq!(bufs.alloc(out, 1), 1);
        assert!(bufs.arena().write(&mut out.as_mut_slice()[0], &bytes));
        1
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let n = frames.len();
        let sent = frames.as_slice().iter().map(|f| (self.port, bufs.arena().data(f).to_vec()));
        self.given().fate.sent.extend(sent);
        bufs.free(frames);
        n
    }

    fn housekeep(&mut self, bufs: &mut Buffers) {
        while let Some(Ok(request)) = self.inbox.as_mut().map(rtrb::Consumer::pop) {
            if let Request::Punt { frame, .. } = request {
                self.given().fate.punted = true;
                bufs.free_one(frame);
            }
        }
    }

    fn counters(&self) -> Arc<PortCounters> {
        Arc::default()
    }

    fn close(&mut self, _bufs: &mut Buffers) {}
}

/// The router, which gets frames one at a time at one of its ports.
pub struct Rig {
    worker: Worker,
    counters: Arc<WorkerCounters>,
    counted: Vec<u64>,
    given: Arc<Mutex<Given>>,
    from: u16,
    pools: Arc<PoolSet>,
}

impl Rig {
    /// Makes a router with a number of ports, which gets frames at one of them; `finish` completes it.
    pub fn new(
        tables: Arc<Published<Tables>>,
        domain: &Qsbr,
        (ports, from): (u16, u16),
        redirects: bool,
        finish: impl FnOnce(Router) -> Router,
    ) -> Self {
        let arena = Arena::new(ArenaConfig { cells: 1024, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 1024)]).unwrap();
        let (requests, inbox) = rtrb::RingBuffer::new(16);
        let (mut inbox, given) = (Some(inbox), Arc::<Mutex<Given>>::default());
        let mut table = PortTable::new();
        for port in 0..ports {
            let line = Line { port, given: given.clone(), inbox: inbox.take() };
            table.add(Box::new(line), TxQueue::new(TxQueueConfig { burst: 1, deadline_us: 0 }));
        }
        let router = finish(Router::new(tables, requests, RouterConfig { icmp_rate: 0, redirects }));
        let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Spin };
        let worker = Worker::new(config, table, Box::new(router), Buffers::attach(&pools, 0), domain.register());
        let counters = worker.counters();
        Self { worker, counters, counted: vec![], given, from, pools }
    }

    /// Sends a frame through the router.
    pub fn give(&mut self, frame: &[u8]) -> Fate {
        let given = || self.given.lock().unwrap_or_else(PoisonError::into_inner);
        *given() = Given { frame: Some((self.from, frame.to_vec())), ..Given::default() };
        self.worker.turn(clock::tsc());
        std::mem::take(&mut given().fate)
    }

    /// Returns the names of the drop reasons and events that were counted since the last call.
    pub fn named(&mut self) -> Vec<&'static str> {
        let counters = self.counters.port(PortId(self.from));
        let events = [Event::NeighbourWait, Event::Fragmented, Event::ChecksumCompleted];
        let drops = DROP_REASONS.iter().map(|r| (r.name(), counters.drops(*r)));
        let now = drops.chain(events.map(|e| (e.name(), counters.events(e))));
        self.counted.resize(DROP_REASONS.len() + events.len(), 0);
        let more = now
            .zip(&mut self.counted)
            .filter_map(|((name, now), before)| (now > std::mem::replace(before, now)).then_some(name));
        more.collect()
    }
}

impl Drop for Rig {
    /// Checks that no buffer is lost.
    fn drop(&mut self) {
        self.worker.close();
        if !std::thread::panicking() {
            let (missing, wrong) = self.pools.verify();
            assert!(missing.is_empty() && wrong.is_empty());
        }
    }
}

/// Verdict of the program, port of a redirect, and resulting bytes.
pub type Driven = (&'static str, Option<u16>, Vec<u8>);

/// Returns whether the kernel can have an skb of a frame: not of shorter IP frames, and a tag is beside its data.
pub fn is_skb(frame: &[u8]) -> bool {
    frame.len() >= 54 && !matches!(be16(&frame[12..]), 0x8100 | 0x88a8)
}

/// Runs the program over a frame as an XDP frame and as an skb, by `drive`.
///
/// # Errors
/// A description of the difference between them.
pub fn both(frame: &[u8], drive: impl Fn(&[u8], bool) -> Driven) -> Result<Driven, String> {
    let driven = drive(frame, false);
    if is_skb(frame) {
        let twin = drive(frame, true);
        // Frames that XDP would leave to user space, traffic control leaves to the kernel.
        let of_skb = if matches!(driven.0, "pass_no_socket" | "pass_superframe") { "pass_exception" } else { driven.0 };
        // Traffic control may leave a frame to the kernel for another reason than that only the kernel can finish it.
        let of_skb = if driven.0 == "pass_unfinished" && twin.0 == "pass_exception" { twin.0 } else { of_skb };
        if (twin.0, twin.1, &twin.2) != (of_skb, driven.1, &driven.2) {
            return Err(format!("as an skb {twin:02x?}, else {driven:02x?}: {frame:02x?}"));
        }
    }
    Ok(driven)
}

/// Tables that the program and the router share.
pub struct World {
    pub domain: Qsbr,
    pub entries: Vec<Entry>,
    pub fibs: (Table4, Table6),
    pub routes4: Vec<(Net4, u32)>,
    pub routes6: Vec<(Net6, u32)>,
    pub targets4: Vec<u32>,
    pub targets6: Vec<u128>,
}

impl World {
    /// Makes the tables in memory that the program reads, for IPv4 and IPv6.
    pub fn new([memory4, memory6]: [Box<dyn Shared>; 2]) -> Self {
        let domain = Qsbr::new();
        let mut table4 = Table4::shared(&domain, memory4).unwrap();
        let mut table6 = Table6::shared(&domain, memory6).unwrap();
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
        Self { domain, entries, fibs: (table4, table6), routes4, routes6, targets4, targets6 }
    }

    /// Returns the bit set of the host's own addresses.
    pub fn own4() -> Own4 {
        Own4::default().with(OWN.into())
    }

    /// Returns the router's tables.
    pub fn tables(&self, mode: Mode) -> Arc<Published<Tables>> {
        Arc::new(Published::new(&self.domain, self.plain_tables(mode)))
    }

    /// Returns the router's tables, to be changed before they are published.
    pub fn plain_tables(&self, mode: Mode) -> Tables {
        let hash = if mode.l3 { HashPolicy::L3 } else { HashPolicy::L4 };
        let port = |id| PortInfo {
            index: 1,
            mac: mac(id),
            partial_checksums: true,
            // The program keeps these from it otherwise.
            reception: Reception::Link,
            source_check: mode.check,
            ..PortInfo::default()
        };
        Tables {
            generation: 1,
            fib4: self.fibs.0.reader(),
            fib6: self.fibs.1.reader(),
            cold: vec![Cold::default(); self.entries.len()],
            entries: self.entries.clone(),
            buckets: BUCKETS.to_vec(),
            ports: (0..PORTS).map(port).collect(),
            vlans: vec![],
            bonds: vec![],
            bridges: vec![],
            tunnels: Tunnels::default(),
            own4: Self::own4(),
            hash4: hash,
            hash6: hash,
        }
    }

    /// Returns the kind and number of the entry for the frame's destination.
    pub fn kind(&self, frame: &[u8]) -> Option<(Kind, u32)> {
        let ip = frame.get(14..)?;
        let id = match ip.first()? >> 4 {
            4 => self.fibs.0.reader().lookup(u32::from_be_bytes(*ip.get(16..)?.first_chunk()?)),
            _ => self.fibs.1.reader().lookup(u128::from_be_bytes(*ip.get(24..)?.first_chunk()?)),
        };
        Some((self.entries[id as usize].kind, id))
    }

    /// Returns the entry for the frame's source; `None` for IPv6.
    fn back(&self, frame: &[u8]) -> Option<Entry> {
        let ip = frame.get(14..34).filter(|ip| ip[0] >> 4 == 4)?;
        let id = self.fibs.0.reader().lookup(u32::from_be_bytes(*ip[12..].first_chunk()?));
        Some(self.entries[id as usize])
    }

    /// Compares what the router has done with a frame with what the program does, which `drive` runs over it as an XDP
    /// frame or as an skb.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn compare(
        &self,
        mode: Mode,
        frame: &[u8],
        fate: &Fate,
        drive: impl Fn(&[u8], bool) -> Driven,
    ) -> Result<(), String> {
        let (reason, to, bytes) = both(frame, drive)?;
        let plain = fate.sent.len() == 1 && fate.sent[0].1.len() == frame.len();
        let unchanged = bytes == frame;
        let agree = match (reason, to) {
            _ if frame[0] & 1 == 1 && !fate.sent.is_empty() => false,
            ("to_port", Some(to)) => fate.sent.len() == 1 && fate.sent[0].0 == to && fate.sent[0].1 == bytes,
            // The frame is left to user space, but there is no socket.
            ("pass_no_socket", None) => {
                unchanged && (!plain || leaves(frame, mode.redirects, fate.sent[0].0, &fate.sent[0].1))
            }
            ("pass_source", None) => match self.back(frame) {
                None => frame[22..30] == [0; 8],
                // Control would add all addresses with a local route to the filter of the host's own. Others than the
                // one that it has here may be false hits of one side's filter.
                Some(back) if back.kind == Kind::Local => fate.punted || frame[26..30] != OWN,
                Some(back) => fate.punted && !takes(back, mode.check),
            },
            (_, None) => unchanged && passes(reason, frame, self.kind(frame)),
            _ => false,
        };
        if agree {
            return Ok(());
        }
        let (back, sent) = (self.back(frame), &fate.sent);
        Err(format!("{mode:?} {back:?} {reason} to {to:?}: {frame:02x?} {bytes:02x?}, the router sent {sent:02x?}"))
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

pub fn be16(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Returns whether a packet's checksum is unfinished: if it equals the sum of the pseudo-header. Behind an IPv6
/// extension header it may be.
pub fn unfinished(frame: &[u8]) -> bool {
    let (ip, v6) = (&frame[14..], frame[14] >> 4 == 6);
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
    field.is_some_and(|f| be16(f) == sum(&pseudo)) || (v6 && matches!(proto, 43 | 60))
}

/// Returns whether a packet may have an unfinished checksum that only the kernel finds: in a tunnel, that of SCTP, or
/// one behind an IPv6 extension header. Random payloads are no tunnel's.
fn hides_checksum(frame: &[u8]) -> bool {
    let v6 = frame[14] >> 4 == 6;
    let proto = if v6 { frame[14 + 6] } else { frame[14 + 9] };
    [4, 41, 47, 132, 137].contains(&proto) || (v6 && matches!(proto, 43 | 60))
}

/// Returns whether the program may leave to user space a frame that the router forwards by `to`.
pub fn leaves(frame: &[u8], redirects: bool, to: u16, sent: &[u8]) -> bool {
    let (ip, v6) = (&frame[14..], frame[14] >> 4 == 6);
    // Port 1 has one next hop with a small MTU, entry 4.
    let small = frame.len() > 14 + SMALL_MTU as usize && to == 1 && sent.len() > 14 + SMALL_MTU as usize;
    let padded = frame.len() > 1514 || (small && (if v6 { 40 + be16(&ip[4..]) } else { be16(&ip[2..]) }) <= 200);
    unfinished(frame) || padded || to == NO_TARGET || (redirects && to == 0)
}

/// Returns whether the program may pass a frame to the kernel for this reason.
pub fn passes(reason: &str, frame: &[u8], leads: Option<(Kind, u32)>) -> bool {
    let (ip, kind) = (&frame[14..], be16(&frame[12..]));
    let v4 = kind == 0x800 && ip.len() >= 20 && ip[0] >> 4 == 4;
    let v6 = kind == 0x86dd && ip.len() >= 40 && ip[0] >> 4 == 6;
    let (leads, id) = leads.unwrap_or((Kind::NoRoute, 0));
    match reason {
        "pass_not_mine" => frame[..6] != mac(0) && frame[0] & 1 == 0,
        "pass_returned" => frame[0] == frame[6] & !1 && frame[1..6] == frame[7..12],
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
        "pass_unfinished" => (v4 || v6) && hides_checksum(frame),
        "pass_local" => (v4 || v6) && leads == Kind::Local,
        // Entry 7 is a group with a member that is left to the kernel.
        "pass_route" => (v4 || v6) && (leads == Kind::Kernel || id == 7),
        _ => false,
    }
}

/// Returns the one's complement sum of the words.
pub fn sum(bytes: &[u8]) -> usize {
    let total: usize = bytes.chunks(2).map(|w| usize::from(w[0]) << 8 | usize::from(*w.get(1).unwrap_or(&0))).sum();
    let total = (total & 0xffff) + (total >> 16);
    (total & 0xffff) + (total >> 16)
}

/// Longest frame of an input: longer than the ports take, and not longer than the router's buffers.
const LONGEST: usize = MAX_FRAME as usize + 100;

/// Reads an input of the fuzz targets: an IP packet, alone or behind two bytes, or an Ethernet frame. These two bytes,
/// or the frame's first two, choose the mode, padding, and whether the frame's destination is the one given instead of
/// the port. Returns the number of the mode, of any number of modes, and the frame, which may lack an Ethernet header.
pub fn input(data: &[u8]) -> (usize, Vec<u8>) {
    let is_ip = |at: &usize| data.get(*at).is_some_and(|byte| matches!(byte >> 4, 4 | 6));
    let start = [0, 2].into_iter().find(is_ip);
    let (choices, mut frame) = match start {
        Some(at) => {
            let kind: u16 = if data[at] >> 4 == 6 { 0x86dd } else { 0x800 };
            (&data[..at], [&mac(0)[..], &[2, 0, 0, 0, 0, 9], &kind.to_be_bytes(), &data[at..]].concat())
        }
        None => (&data[..data.len().min(2)], data.to_vec()),
    };
    let choice = |n: usize| choices.get(n).copied().unwrap_or(0);
    if frame.len() < 14 {
        return (0, frame);
    }
    frame.resize((frame.len() + 32 * usize::from(choice(1) & 63)).min(LONGEST), 0);
    if choice(1) >> 6 < 3 {
        frame[..6].copy_from_slice(&mac(0));
    }
    (choice(0).into(), frame)
}

/// Puts the right checksum into an IPv4 header without options.
pub fn mend(frame: &mut [u8]) {
    if frame[14] >> 4 == 4 {
        ipv4::fill_checksum(&mut frame[14..]);
    }
}

impl World {
    /// Returns the frame with addresses that lead somewhere, which random ones seldom do; `None` if it has none.
    pub fn addressed(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let mut frame = frame.to_vec();
        let word = |at: usize| frame.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word) as usize);
        match be16(frame.get(12..14)?) {
            0x800 => {
                let target = self.targets4[word(30)? % self.targets4.len()];
                frame[26..28].copy_from_slice(&[10, 200]);
                frame[30..34].copy_from_slice(&target.to_be_bytes());
            }
            0x86dd => {
                let target = self.targets6[word(50)? % self.targets6.len()];
                frame[22..26].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
                frame[38..54].copy_from_slice(&target.to_be_bytes());
            }
            _ => return None,
        }
        mend(&mut frame);
        Some(frame)
    }
}
