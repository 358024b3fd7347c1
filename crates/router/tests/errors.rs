//! Packets that the router answers, punts to the kernel, or queues: one at a time, each in a burst of its own.

mod common;

use bywash_engine::{Event, Idle, PortId, PortTable, Worker, WorkerConfig, WorkerCounters};
use bywash_fib::{Net, Table4, Table6};
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_port::{TxQueue, TxQueueConfig};
use bywash_router::tables::{Cold, Entry, HashPolicy, Kind, Own4, PortInfo, SourceCheck, Tables};
use bywash_router::tunnel::Tunnels;
use bywash_router::{Request, Router, RouterConfig};
use bywash_sync::{Published, Qsbr, clock};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use common::Line;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Ids of [`entries`].
const THERE: u32 = 1;
const SMALL: u32 = 2;
const KERNEL: u32 = 3;
const LOCAL: u32 = 4;
const GLEAN: u32 = 5;
const MIXED: u32 = 6;
const NEAR: u32 = 7;
const OTHER: u32 = 8;
const POLICY: u32 = 9;

/// Gateways of next hops that have one.
const GATEWAYS: [(u32, Ipv4Addr); 2] = [(NEAR, Ipv4Addr::new(192, 0, 2, 8)), (OTHER, Ipv4Addr::new(192, 0, 2, 9))];

fn entries() -> Vec<Entry> {
    let forward = |port, mtu| Entry::of_port(Kind::Forward, PortId(port), mtu, [2; 12]);
    vec![
        Entry::verdict(Kind::NoRoute),
        forward(0, 1500),
        forward(1, 600),
        Entry::verdict(Kind::Kernel),
        Entry::verdict(Kind::Local),
        Entry::of_port(Kind::Glean, PortId(1), 1500, [0; 12]),
        Entry::of_group(0, 2),
        Entry::of_port(Kind::Pending, PortId(1), 1500, [0; 12]),
        Entry::of_port(Kind::Pending, PortId(1), 1500, [0; 12]),
        Entry::verdict(Kind::Policy),
    ]
}

/// Result for frames received on port 0.
struct Outcome {
    sent: Vec<Vec<u8>>,
    punted: Vec<Vec<u8>>,
    asked: Vec<IpAddr>,
    counters: Arc<WorkerCounters>,
}

impl Outcome {
    /// Returns the number of ICMP errors sent with this type and code.
    fn errors(&self, kind: u8, code: u8) -> usize {
        self.sent.iter().filter(|f| f.len() > 36 && f[23] == 1 && f[34..36] == [kind, code]).count()
    }

    fn event(&self, event: Event) -> u64 {
        self.counters.port(PortId(0)).events(event)
    }
}

/// Routes by first byte: sources are in 10/8 (out of port 0), 20/8 (to the kernel), 30/8 (local), 40/8 (either), 50/8
/// (none); destinations in 60/8 (out of port 1, with a small MTU), 70/8 (on port 1's link), 80/8 and 90/8 (by one
/// gateway on it) and 100/8 (under an IPsec policy).
fn run(check: SourceCheck, own: &[Ipv4Addr], frames: Vec<Vec<u8>>) -> Outcome {
    run_at(1, check, own, frames)
}

/// Same as [`run`], on ports whose interfaces have this index; 0 for ports without an interface.
fn run_at(index: u32, check: SourceCheck, own: &[Ipv4Addr], frames: Vec<Vec<u8>>) -> Outcome {
    let turns = frames.len() + 2;
    let mut rig = Rig::new(index, check, own, frames);
    (0..turns).for_each(|_| rig.turn());
    rig.end()
}

/// A worker with two ports, and its tables.
struct Rig {
    worker: Worker,
    now: u64,
    table4: Table4,
    inbox: rtrb::Consumer<Request>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    pools: Arc<PoolSet>,
}

impl Rig {
    fn new(index: u32, check: SourceCheck, own: &[Ipv4Addr], frames: Vec<Vec<u8>>) -> Self {
        let domain = Qsbr::new();
        let (mut table4, table6) = (Table4::new(&domain).unwrap(), Table6::new(&domain).unwrap());
        let early = [(10, THERE), (20, KERNEL), (30, LOCAL), (40, MIXED)];
        let late = [(60, SMALL), (70, GLEAN), (80, NEAR), (90, NEAR), (100, POLICY)];
        for (first, id) in early.into_iter().chain(late) {
            table4.insert(Net::new(first << 24, 8).unwrap(), id);
        }
        for own in own {
            table4.insert(Net::new(own.to_bits(), 32).unwrap(), LOCAL);
        }
        let port = PortInfo {
            index,
            mac: [2; 6],
            source4: Some(Ipv4Addr::new(192, 0, 2, 1)),
            source_check: check,
            ..PortInfo::default()
        };
        let mut cold = vec![Cold { index: 2, ..Cold::default() }; entries().len()];
        for (id, gateway) in GATEWAYS {
            cold[id as usize].gateway = Some(gateway.into());
        }
        let tables = Tables {
            generation: 1,
            fib4: table4.reader(),
            fib6: table6.reader(),
            cold,
            entries: entries(),
            buckets: vec![THERE, KERNEL],
            ports: vec![port; 2],
            vlans: vec![],
            bonds: vec![],
            bridges: vec![],
            tunnels: Tunnels::default(),
            own4: own.iter().fold(Own4::default(), |filter, own| filter.with(*own)),
            hash4: HashPolicy::L4,
            hash6: HashPolicy::L4,
        };
        let tables = Arc::new(Published::new(&domain, tables));
        let arena = Arena::new(ArenaConfig { cells: 4096, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 4096)]).unwrap();
        let (requests, inbox) = rtrb::RingBuffer::new(8192);
        let router = Router::new(tables, requests, RouterConfig { icmp_rate: 1000, redirects: false });
        let mut table = PortTable::new();
        let first = Line { bursts: frames.into_iter().rev().map(|frame| vec![frame]).collect(), ..Line::default() };
        let sent = first.sent.clone();
        for line in [first, Line { sent: sent.clone(), ..Line::default() }] {
            table.add(Box::new(line), TxQueue::new(TxQueueConfig { burst: 1, deadline_us: 0 }));
        }
        let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Spin };
        let worker = Worker::new(config, table, Box::new(router), Buffers::attach(&pools, 0), domain.register());
        Self { worker, now: clock::tsc(), table4, inbox, sent, pools }
    }

    /// Runs a turn. The worker's time passes slowly, however late this thread is: requests are repeated after 0.6 s.
    fn turn(&mut self) {
        self.now = clock::tsc_after(self.now).min(self.now + clock::us_to_ticks(20));
        self.worker.turn(self.now);
    }

    /// Runs turns until a frame has been sent.
    fn until_sent(&mut self) {
        // A part of the neighbours is checked every half millisecond.
        let until = Instant::now() + Duration::from_secs(60);
        while self.sent.lock().unwrap().is_empty() {
            assert!(Instant::now() < until);
            self.turn();
        }
    }

    fn end(self) -> Outcome {
        let Self { mut worker, mut inbox, pools, sent, .. } = self;
        let counters = worker.counters();
        worker.close();
        let mut bufs = Buffers::attach(&pools, 0);
        let mut outcome = Outcome { sent: vec![], punted: vec![], asked: vec![], counters };
        while let Ok(request) = inbox.pop() {
            match request {
                Request::Resolve { addr, .. } => outcome.asked.push(addr),
                Request::Punt { frame, .. } => {
                    outcome.punted.push(bufs.arena().data(&frame).to_vec());
                    bufs.free_one(frame);
                }
            }
        }
        drop((worker, bufs));
        let (missing, wrong) = pools.verify();
        assert!(missing.is_empty() && wrong.is_empty());
        outcome.sent = std::mem::take(&mut *sent.lock().unwrap());
        outcome
    }
}

fn udp(from: impl Into<IpAddr>, to: impl Into<IpAddr>, payload: usize) -> Vec<u8> {
    let packet = Packet::udp(SocketAddr::new(from.into(), 5), SocketAddr::new(to.into(), 9));
    packet.macs(MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([2; 6])).payload(&vec![0; payload]).build().unwrap()
}

/// Returns the frame with another TTL, or with DF set.
fn set(mut frame: Vec<u8>, ttl: u8, dont_fragment: bool) -> Vec<u8> {
    frame[22] = ttl;
    frame[20] = if dont_fragment { 0x40 } else { 0 };
    bywash_wire::ipv4::fill_checksum(&mut frame[14..]);
    frame
}

fn host(net: u8, n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(net) << 24 | (n + 1))
}

const FAR: Ipv4Addr = Ipv4Addr::new(60, 0, 0, 1);

#[test]
fn a_flood_of_expired_packets_leaves_path_mtu_discovery_alone() {
    let mut frames: Vec<_> = (0..2000).map(|n| set(udp(host(10, n), FAR, 8), 1, false)).collect();
    frames.extend((0..20).map(|n| set(udp(host(10, n), FAR, 1000), 64, true)));
    let outcome = run_at(0, SourceCheck::Off, &[], frames.clone());
    assert_eq!(outcome.errors(3, 4), 20);
    assert!(outcome.errors(11, 0) >= 50);
    assert!(outcome.event(Event::IcmpLimited) > 1000);
    // On ports with an interface the kernel sends the errors.
    let outcome = run(SourceCheck::Off, &[], frames);
    assert_eq!(outcome.punted.iter().filter(|frame| frame.len() > 1000).count(), 20);
    assert_eq!((outcome.sent.len(), outcome.punted.len() as u64), (0, outcome.event(Event::IcmpByKernel)));
    assert!(outcome.event(Event::IcmpLimited) > 1000);
}

#[test]
fn a_host_that_provokes_errors_uses_up_its_own() {
    let mut frames: Vec<_> = (0..2000).map(|_| set(udp(host(10, 1), FAR, 8), 1, false)).collect();
    frames.extend((0..20).map(|n| set(udp(host(10, 5 + n), FAR, 8), 1, false)));
    let outcome = run_at(0, SourceCheck::Off, &[], frames.clone());
    let to = |n: u32| outcome.sent.iter().filter(|f| f[30..34] == host(10, n).octets()).count();
    assert!((6..20).contains(&to(1)), "{}", to(1));
    assert!((0..20).all(|n| to(5 + n) == 1));
    // The same holds for packets that the kernel is given to answer.
    let outcome = run(SourceCheck::Off, &[], frames);
    let from = |n: u32| outcome.punted.iter().filter(|f| f[26..30] == host(10, n).octets()).count();
    assert!((20..200).contains(&from(1)), "{}", from(1));
    assert!((0..20).all(|n| from(5 + n) == 1));
}

#[test]
fn an_error_that_leaves_by_no_port_is_the_kernels_to_send() {
    // Routes back to the kernel, to this host, to a port or the kernel, and none.
    for net in [20, 30, 40, 50] {
        for original in [set(udp(host(net, 1), FAR, 8), 1, false), set(udp(host(net, 1), FAR, 1000), 64, true)] {
            let outcome = run(SourceCheck::Off, &[], vec![original.clone()]);
            assert_eq!((outcome.sent.len(), &outcome.punted[..]), (0, &[original][..]), "{net}/8");
        }
    }
    // A flood is not passed on: punted packets are limited too.
    let flood = (0..2000).map(|n| set(udp(host(20, n), FAR, 8), 1, false)).collect();
    assert!(run(SourceCheck::Off, &[], flood).punted.len() < 500);
}

#[test]
fn the_kernel_judges_sources_that_are_its_own() {
    let own = Ipv4Addr::new(10, 9, 9, 9);
    let outcome = run(SourceCheck::Off, &[own], vec![udp(own, FAR, 8), set(udp(own, FAR, 8), 1, false)]);
    assert_eq!((outcome.sent.len(), outcome.punted.len()), (0, 2));
    // Other sources are forwarded, even those that the filter cannot distinguish from it.
    let outcome = run(SourceCheck::Off, &[own], (0..1000).map(|n| udp(host(10, n), FAR, 8)).collect());
    assert_eq!((outcome.sent.len(), outcome.punted.len()), (1000, 0));
}

#[test]
fn sources_are_checked_by_where_they_lead_back_to() {
    use SourceCheck::{Loose, Off, Strict};
    // Routes back: the receiving port, another port, the same link, the kernel, local, several, none.
    for (net, off, loose, strict) in [
        (10, true, true, true),
        (60, true, true, false),
        (70, true, true, false),
        (20, true, false, false),
        (30, true, false, false),
        (40, true, false, false),
        (50, true, false, false),
    ] {
        for (check, passes) in [(Off, off), (Loose, loose), (Strict, strict)] {
            for ttl in [64, 1] {
                let outcome = run(check, &[], vec![set(udp(host(net, 9), FAR, 8), ttl, false)]);
                let what = format!("{net}/8, {check:?}, TTL {ttl}");
                match (passes, ttl) {
                    (true, 64) => assert_eq!((outcome.sent.len(), outcome.punted.len()), (1, 0), "{what}"),
                    (false, _) => assert_eq!((outcome.sent.len(), outcome.punted.len()), (0, 1), "{what}"),
                    // It causes an error, sent by the router or the kernel.
                    _ => assert!(outcome.sent.len() + outcome.punted.len() + outcome.asked.len() > 0, "{what}"),
                }
            }
        }
    }
}

#[test]
fn every_neighbour_is_asked_for_whatever_waits() {
    let scan = (0..3000).map(|n| udp(host(10, 1), host(70, n), 8)).collect();
    let outcome = run(SourceCheck::Off, &[], scan);
    assert_eq!(outcome.asked.len(), 3000);
    assert_eq!(outcome.event(Event::NeighbourWait), 3000);
}

/// Otherwise it would wait for a neighbour that nobody asks for, and hold up others that wait for the first.
#[test]
fn a_packet_whose_route_moves_waits_for_the_new_neighbour() {
    let frames = vec![udp(host(10, 1), host(80, 1), 8), udp(host(10, 1), host(90, 1), 8)];
    let mut rig = Rig::new(1, SourceCheck::Off, &[], frames.clone());
    (0..3).for_each(|_| rig.turn());
    let waits = rig.worker.counters().port(PortId(0)).events(Event::NeighbourWait);
    assert_eq!((waits, rig.sent.lock().unwrap().len()), (2, 0));
    rig.table4.insert(Net::new(80 << 24, 8).unwrap(), OTHER);
    rig.table4.insert(Net::new(90 << 24, 8).unwrap(), THERE);
    rig.until_sent();
    let outcome = rig.end();
    assert_eq!((outcome.sent.len(), outcome.sent[0][30..34].to_vec()), (1, host(90, 1).octets().to_vec()));
    assert_eq!(outcome.asked, GATEWAYS.map(|(_, gateway)| IpAddr::from(gateway)));
}

/// The policy may cover the host's own addresses.
#[test]
fn expired_packets_under_a_policy_are_the_kernels() {
    let frames: Vec<_> = (0..2000).map(|n| set(udp(host(10, n), host(100, 1), 8), 1, false)).collect();
    let outcome = run(SourceCheck::Off, &[], frames.clone());
    assert_eq!((outcome.event(Event::IcmpByKernel), outcome.punted == frames), (0, true));
}

#[test]
fn a_fragment_whose_pieces_would_wrap_is_left_to_the_kernel() {
    let mut last = udp(host(10, 1), FAR, 1000);
    last[20..22].copy_from_slice(&0x1fff_u16.to_be_bytes());
    bywash_wire::ipv4::fill_checksum(&mut last[14..]);
    let outcome = run(SourceCheck::Off, &[], vec![last.clone()]);
    assert_eq!((outcome.sent.len(), &outcome.punted[..]), (0, &[last][..]));
}

#[test]
fn padding_makes_no_packet_too_big() {
    let mut padded = udp(host(10, 1), FAR, 400);
    padded.resize(1000, 0);
    let outcome = run(SourceCheck::Off, &[], vec![padded, udp(host(10, 1), FAR, 400)]);
    let lengths: Vec<usize> = outcome.sent.iter().map(|frame| frame.len()).collect();
    assert_eq!((lengths, outcome.punted.len()), (vec![442, 442], 0));
}
