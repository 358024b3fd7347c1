//! Packets in tunnels: encapsulated in others, decapsulated of them, and put back as they were for the kernel.

mod common;

use bywash_engine::{Idle, PortId, PortTable, Worker, WorkerConfig};
use bywash_fib::model::{Encapsulation, OuterHeader, Tunnel, Vxlan};
use bywash_fib::{Net, Table4, Table6};
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_port::{TxQueue, TxQueueConfig};
use bywash_router::gates::{Gate, Gates};
use bywash_router::tables::{Cold, Entry, HashPolicy, Kind, Own4, PortInfo, Reception, Tables, VlanInfo};
use bywash_router::tunnel::{MemberPort, Path, Paths, Stations, TunnelInfo, Tunnels, ends_of};
use bywash_router::vlan::{self, FIRST};
use bywash_router::{Request, Router, RouterConfig};
use bywash_sync::{Published, Qsbr, clock};
use bywash_wire::checksum::Sum;
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::ipv4::fill_checksum;
use common::Line;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const HERE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
const THERE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1);
const TUNNEL: PortId = PortId(FIRST + 3);
/// MAC addresses of the tunnel, and of the station that its next hop is.
const OWN: [u8; 6] = [2, 0, 0, 0, 9, 1];
const STATION: [u8; 6] = [2, 0, 0, 0, 9, 2];
/// Station behind another member of a VXLAN's bridge, which port 1 is on.
const BESIDE: [u8; 6] = [2, 0, 0, 0, 9, 3];
/// MAC address of that bridge.
const GATEWAY: [u8; 6] = [2; 6];
const BRIDGE: PortId = PortId(FIRST + 1);
/// VLAN of the bridge, and the first of its entries on the ports.
const TAG: u16 = 7;
const ENTRY: u16 = FIRST + 5;
const MEMBER: MemberPort = MemberPort { index: 7, port: PortId(1), longest: 114, entry: None };

/// Next hops: out of port 1, this host, the tunnel, and the tunnel with a neighbour that is not known.
const OUT: u32 = 1;
const LOCAL: u32 = 2;
const THROUGH: u32 = 3;
const GLEAN: u32 = 4;

fn gre(keys: [Option<u32>; 2]) -> Tunnel {
    let plain = Tunnel::between(Encapsulation::Gre, HERE.into(), THERE.into());
    Tunnel { keys, tos: 1, dont_fragment: true, ..plain }
}

/// Headers that the next hop gives a VXLAN that takes them from routes; GRE has a key if it has one itself, and no DF.
const HEADER: OuterHeader =
    OuterHeader { id: 0x0a_0b0c, keyed: false, ttl: 9, tos: 0x10, checksum: false, dont_fragment: true };

struct Outcome {
    sent: Vec<Vec<u8>>,
    punted: Vec<Vec<u8>>,
    /// Frames for the kernel to bridge.
    handed_back: Vec<Vec<u8>>,
}

/// A worker whose router has a tunnel.
struct Rig {
    worker: Worker,
    table4: Table4,
    gates: Gates,
    inbox: rtrb::Consumer<Request>,
    pools: Arc<PoolSet>,
    /// Number of the interface that receives the frames.
    received: PortId,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// Membership of the tunnel and the ports in a bridge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joined {
    Nothing,
    Bridge,
    /// A bridge on which the ports have the tunnel's VLAN with a tag.
    Trunk,
}

/// Effects of rules that translate addresses on outer packets.
#[derive(Default)]
struct Nat {
    masqueraded: bool,
    /// Address that masquerading gives.
    gives: Option<Ipv4Addr>,
    tracked: Option<Arc<AtomicU32>>,
}

impl Rig {
    /// Creates a router with this tunnel, through which 10/8 is reached, by packets that wait for their neighbour first
    /// if `waits`; 20/8 is out of port 1. `frames` arrive on port 0, one in each turn.
    fn new(tunnel: Tunnel, path_mtu: u32, waits: bool, frames: &[Vec<u8>]) -> Self {
        Self::beside_nat(tunnel, path_mtu, waits, frames, &Nat::default())
    }

    fn beside_nat(tunnel: Tunnel, path_mtu: u32, waits: bool, frames: &[Vec<u8>], nat: &Nat) -> Self {
        Self::made(tunnel, path_mtu, waits, frames, nat, Joined::Nothing)
    }

    /// Creates a router with this VXLAN in a bridge, of which both ports are on members.
    fn of_bridge(tunnel: Tunnel, path_mtu: u32, frames: &[Vec<u8>]) -> Self {
        Self::made(tunnel, path_mtu, false, frames, &Nat::default(), Joined::Bridge)
    }

    /// Creates a router like [`Rig::of_bridge`], whose bridge filters VLANs: both ports have the VXLAN's with a tag.
    fn of_trunk(tunnel: Tunnel, path_mtu: u32, frames: &[Vec<u8>]) -> Self {
        Self::made(tunnel, path_mtu, false, frames, &Nat::default(), Joined::Trunk)
    }

    fn made(tunnel: Tunnel, path_mtu: u32, waits: bool, frames: &[Vec<u8>], nat: &Nat, joined: Joined) -> Self {
        let domain = Qsbr::new();
        let (mut table4, mut table6) = (Table4::new(&domain).unwrap(), Table6::new(&domain).unwrap());
        table4.insert(Net::new(10 << 24, 8).unwrap(), if waits { GLEAN } else { THROUGH });
        table4.insert(Net::new(20 << 24, 8).unwrap(), OUT);
        table4.insert(Net::new(HERE.to_bits(), 32).unwrap(), LOCAL);
        table4.insert(Net::new(THERE.to_bits(), 32).unwrap(), OUT);
        table6.insert(Net::new(HERE6.to_bits(), 128).unwrap(), LOCAL);
        table6.insert(Net::new(THERE6.to_bits(), 128).unwrap(), OUT);
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&STATION);
        macs[6..].copy_from_slice(&OWN);
        let (external, keyed) = (tunnel.external, tunnel.keys[1].is_some());
        let vni = tunnel.vxlan.map(|vxlan| if external { HEADER.id } else { vxlan.vni });
        let entries = vec![
            Entry::verdict(Kind::NoRoute),
            Entry::of_port(Kind::Forward, PortId(1), 1500, [2; 12]),
            Entry::verdict(Kind::Local),
            Entry::of_tunnel(TUNNEL, 1476, macs, 0, external.then_some(0)),
            Entry::of_port(Kind::Glean, TUNNEL, 1476, [0; 12]),
        ];
        let beside = vec![(BESIDE, MEMBER.index)];
        let stations = Stations::new(vec![(STATION, Some(tunnel.remote))], &Stations::default());
        let stations = Arc::new(stations.bridged(beside, vec![(STATION, tunnel.remote)]));
        let (of_bridge, trunk) = (joined != Joined::Nothing, joined == Joined::Trunk);
        let above = of_bridge.then_some(BRIDGE);
        let master = above.filter(|_| !trunk);
        let mac = if of_bridge { GATEWAY } else { OWN };
        let info = PortInfo { index: 9, mac, master: above, ..PortInfo::default() };
        let reception = if of_bridge { Reception::Bridged } else { Reception::Own };
        let tag = vlan::tag(ethertype::VLAN, TAG);
        let vlans = if trunk { vec![(tag, BRIDGE)] } else { vec![] };
        let port = PortInfo { index: 1, mac: [2; 6], master, reception, vlans, ..PortInfo::default() };
        let of = PortInfo { master: None, reception: Reception::Own, vlans: vec![], ..port.clone() };
        let bridges = above.map(|id| (id, of.clone()));
        let entry = |port: PortId| trunk.then_some(PortId(ENTRY + port.0));
        let mut entries_of_vlan = vec![None; usize::from(ENTRY - FIRST) + 2];
        for port in [PortId(0), PortId(1)] {
            let info = PortInfo { master: above, ..of.clone() };
            let place = entry(port).map(|entry| &mut entries_of_vlan[usize::from(entry.0 - FIRST)]);
            place.into_iter().for_each(|place| *place = Some(VlanInfo { port, tag, info: info.clone() }));
        }
        let member = |port: PortId| MemberPort { port, entry: entry(port), ..MEMBER };
        let ageing = tunnel.vxlan.filter(|vxlan| vxlan.learns).map(|vxlan| vxlan.ageing);
        // The kernel gives packets of a tunnel without an address of its own one of the host's.
        let source = if tunnel.local.is_unspecified() { HERE.into() } else { tunnel.local };
        let path = (path_mtu != 0).then_some(Path {
            ends: (tunnel.local, tunnel.remote, tunnel.link),
            source,
            mtu: path_mtu,
            ttl: 61,
            via: None,
        });
        let paths =
            Paths { all: path.into_iter().collect(), sources: [32768, 60999], labels: Some(0x8_0000), limited: true };
        let tables = Tables {
            generation: 1,
            fib4: table4.reader(),
            fib6: table6.reader(),
            cold: vec![Cold { index: 2, masquerade4: nat.gives, ..Cold::default() }; entries.len()],
            entries,
            buckets: vec![],
            ports: vec![port; 2],
            vlans: entries_of_vlan,
            bonds: vec![],
            bridges: bridges.into_iter().collect(),
            tunnels: Tunnels::new(
                vec![TunnelInfo {
                    id: TUNNEL,
                    tunnel,
                    ends: ends_of(&tunnel, &[source], vni.as_slice()),
                    info,
                    mac: OWN,
                    ageing,
                    stations,
                    members: vec![member(PortId(1)), member(PortId(0))],
                    longest: 1414,
                    masqueraded: nat.masqueraded,
                    tracked: nat.tracked.clone(),
                }],
                paths,
                vec![OuterHeader { keyed, dont_fragment: tunnel.vxlan.is_some(), ..HEADER }],
                false,
            ),
            own4: Own4::default().with(HERE),
            hash4: HashPolicy::L4,
            hash6: HashPolicy::L4,
        };
        let tables = Arc::new(Published::new(&domain, tables));
        let arena = Arena::new(ArenaConfig { cells: 512, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 512)]).unwrap();
        let (requests, inbox) = rtrb::RingBuffer::new(512);
        let gates = Gates::open();
        let router = Router::new(tables, requests, RouterConfig::default()).with_gates(gates.clone());
        let mut table = PortTable::new();
        let bursts: Vec<_> = frames.iter().rev().map(|frame| vec![frame.clone()]).collect();
        let first = Line { bursts, ..Line::default() };
        let sent = first.sent.clone();
        for line in [first, Line { sent: sent.clone(), ..Line::default() }] {
            table.add(Box::new(line), TxQueue::new(TxQueueConfig { burst: 1, deadline_us: 0 }));
        }
        let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Spin };
        let worker = Worker::new(config, table, Box::new(router), Buffers::attach(&pools, 0), domain.register());
        Self { worker, table4, gates, inbox, pools, received: master.unwrap_or(PortId(0)), sent }
    }

    /// Runs this many turns, then closes.
    fn end(mut self, turns: usize) -> Outcome {
        self.worker.run_turns(turns as u64);
        let mut bufs = Buffers::attach(&self.pools, 0);
        let mut outcome = Outcome { sent: vec![], punted: vec![], handed_back: vec![] };
        while let Ok(request) = self.inbox.pop() {
            if let Request::Punt { frame, id, .. } = request {
                assert!(id.is_none_or(|id| id == self.received), "the kernel receives what the port received");
                let of = if id.is_some() { &mut outcome.punted } else { &mut outcome.handed_back };
                of.push(bufs.arena().data(&frame).to_vec());
                bufs.free_one(frame);
            }
        }
        drop(bufs);
        let (missing, wrong) = self.pools.verify();
        assert!(missing.is_empty() && wrong.is_empty());
        outcome.sent = std::mem::take(&mut *self.sent.lock().unwrap());
        outcome
    }
}

/// Receives frames on port 0 of a router with this tunnel, whose own packets find this gate.
fn run(tunnel: Tunnel, path_mtu: u32, gate: Gate, frames: &[Vec<u8>]) -> Outcome {
    let rig = Rig::new(tunnel, path_mtu, false, frames);
    rig.gates.set(TUNNEL, gate);
    rig.end(frames.len() + 2)
}

fn packet(tos: u8, ttl: u8, protocol: u8, ends: (Ipv4Addr, Ipv4Addr), payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len() as u16).to_be_bytes();
    let head = [0x45, tos, total[0], total[1], 0, 1, 0, 0, ttl, protocol, 0, 0];
    let mut packet = [&head[..], &ends.0.octets(), &ends.1.octets(), payload].concat();
    fill_checksum(&mut packet);
    packet
}

fn frame(packet: &[u8]) -> Vec<u8> {
    [&[2; 6][..], &[4; 6], &[8, 0], packet].concat()
}

/// Returns a frame with the bridge's tag and this priority.
fn tagged(frame: &[u8], priority: u8) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, priority << 5, TAG as u8], &frame[12..]].concat()
}

fn far(net: u8) -> Ipv4Addr {
    Ipv4Addr::new(net, 0, 0, 9)
}

#[test]
fn a_packet_through_and_back_is_the_same() {
    for keys in [[None; 2], [Some(5), Some(5)]] {
        let inner = packet(0xb8, 64, 253, (far(20), far(10)), b"through");
        let encapsulated = run(gre(keys), 1500, Gate::default(), &[frame(&inner)]);
        assert_eq!((encapsulated.sent.len(), encapsulated.punted.len()), (1, 0));
        let out = &encapsulated.sent[0];
        let added = if keys[0].is_some() { 28 } else { 24 };
        assert_eq!((out.len(), &out[..12]), (HEADER_LEN + inner.len() + added, &[2; 12][..]));
        assert_eq!((out[15], out[22], &out[20..22]), (0xb8, 63, &[0x40, 0][..]), "TOS, TTL, DF");
        // As it comes to the other end.
        let mut back = out[HEADER_LEN..].to_vec();
        back[12..16].copy_from_slice(&THERE.octets());
        back[16..20].copy_from_slice(&HERE.octets());
        fill_checksum(&mut back[..20]);
        let expected = packet(0xb8, 62, 253, (far(20), far(20)), b"through");
        back[added + 16] = 20;
        fill_checksum(&mut back[added..added + 20]);
        let taken = run(gre(keys), 1500, Gate::default(), &[frame(&back)]);
        assert_eq!((taken.sent.len(), taken.punted.len()), (1, 0));
        assert_eq!(taken.sent[0][HEADER_LEN..], expected);
    }
}

/// Ethernet in GRE, and GRE with a checksum, which must be right; a tunnel of another kind, or without a checksum,
/// leaves the packet to the kernel.
#[test]
fn a_frame_through_gre_and_back_is_the_same() {
    let inner = packet(0xb8, 64, 253, (far(20), far(10)), b"through");
    for (encapsulation, checksum) in
        [(Encapsulation::Gre, true), (Encapsulation::Gretap, false), (Encapsulation::Gretap, true)]
    {
        let of = |encapsulation, checksum| Tunnel { encapsulation, summed: [checksum; 2], ..gre([Some(5); 2]) };
        let run = |tunnel, frame: &[u8]| run(tunnel, 1500, Gate::default(), &[frame.to_vec()]);
        let encapsulated = run(of(encapsulation, checksum), &frame(&inner));
        assert_eq!((encapsulated.sent.len(), encapsulated.punted.len()), (1, 0));
        let out = &encapsulated.sent[0];
        let ethernet = encapsulation == Encapsulation::Gretap;
        let flags = if checksum { 0xa0 } else { 0x20 };
        let kind = if ethernet { [0x65, 0x58] } else { [8, 0] };
        assert_eq!(out[34..38], [[flags, 0], kind].concat());
        assert_eq!((out[15], out[22], &out[20..22]), (0xb8, 63, &[0x40, 0][..]), "TOS, TTL, DF");
        let behind = if checksum { 46 } else { 42 };
        assert_eq!(out[behind - 4..behind], [0, 0, 0, 5]);
        assert!(!checksum || Sum::of(&out[34..]).is_valid());
        let at = behind + if ethernet { HEADER_LEN } else { 0 };
        assert_eq!(out.len(), at + inner.len());
        assert!(!ethernet || out[behind..at] == [&STATION[..], &OWN, &[8, 0]].concat());
        // The packet comes back with addresses exchanged, which leaves the checksum as it is.
        let mut back = out.clone();
        back[26..34].rotate_left(4);
        fill_checksum(&mut back[14..34]);
        back[at + 12..at + 20].rotate_left(4);
        if ethernet {
            back[behind..behind + 12].rotate_left(6);
        }
        let taken = run(of(encapsulation, checksum), &back);
        assert_eq!((taken.sent.len(), taken.punted.len()), (1, 0), "{encapsulation:?} {checksum}");
        assert_eq!(taken.sent[0][HEADER_LEN..], packet(0xb8, 62, 253, (far(10), far(20)), b"through"));
        let mut wrong = back.clone();
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(run(of(encapsulation, checksum), &wrong).sent.len(), usize::from(!checksum));
        let another = if ethernet { Encapsulation::Gre } else { Encapsulation::Gretap };
        for tunnel in [of(another, checksum), of(encapsulation, !checksum)] {
            let left = run(tunnel, &back);
            assert_eq!((left.sent.len(), &left.punted[..]), (0, &[back.clone()][..]));
        }
    }
}

/// A frame between another member of a bridge and Ethernet in GRE is unchanged; outer packets are shown to connection
/// tracking.
#[test]
fn a_frame_through_gre_between_members_is_the_same() {
    let tunnel = Tunnel { encapsulation: Encapsulation::Gretap, summed: [true; 2], tos: 0, ..gre([None; 2]) };
    let expired = packet(0, 1, 17, (Ipv4Addr::LOCALHOST, far(10)), b"no host's");
    let inner = [&STATION[..], &BESIDE, &[8, 0], &expired].concat();
    let there = Rig::of_bridge(tunnel, 1500, std::slice::from_ref(&inner)).end(3);
    assert_eq!((there.sent.len(), there.handed_back.len()), (1, 0));
    let mut back = there.sent[0].clone();
    assert_eq!((back[22], &back[42..]), (1, &inner[..]));
    back[..6].copy_from_slice(&GATEWAY);
    back[22] = 64;
    back[26..34].rotate_left(4);
    fill_checksum(&mut back[14..34]);
    back[42..54].rotate_left(6);
    let outcome = Rig::of_bridge(tunnel, 1500, std::slice::from_ref(&back)).end(3);
    let beside = [&BESIDE[..], &STATION, &[8, 0], &expired].concat();
    assert_eq!((&outcome.sent[..], &outcome.punted[..]), (&[beside][..], &[][..]));
    let nat = Nat { tracked: Some(Arc::default()), ..Nat::default() };
    let frames = [inner.clone(), inner.clone()];
    let outcome = Rig::made(tunnel, 1500, false, &frames, &nat, Joined::Bridge).end(4);
    assert_eq!((outcome.sent.len(), &outcome.handed_back[..]), (1, &[inner][..]));
}

/// A packet that waited for its neighbour in the tunnel is encapsulated afterwards, but is the kernel's if the gate has
/// closed meanwhile: the kernel sends its outer packet past the rules of that moment.
#[test]
fn a_packet_that_waits_for_a_tunnel_respects_the_gate() {
    let waiting = frame(&packet(0, 64, 253, (far(20), far(10)), b"waits"));
    for closed in [false, true] {
        let mut rig = Rig::new(gre([None; 2]), 1500, true, std::slice::from_ref(&waiting));
        rig.worker.turn(clock::tsc());
        assert!(rig.sent.lock().unwrap().is_empty());
        rig.table4.insert(Net::new(10 << 24, 8).unwrap(), THROUGH);
        if closed {
            rig.gates.set(PortId(0), Gate::CLOSED);
        }
        // A part of the neighbours is checked every half millisecond. The first request is that for the neighbour.
        let until = Instant::now() + Duration::from_secs(60);
        while rig.sent.lock().unwrap().is_empty() && rig.inbox.slots() < 2 {
            assert!(Instant::now() < until);
            rig.worker.turn(clock::tsc());
        }
        let outcome = rig.end(2);
        assert_eq!((outcome.sent.len(), outcome.punted.len()), if closed { (0, 1) } else { (1, 0) });
        assert!(!closed || outcome.punted[0] == waiting);
    }
}

/// Through a VXLAN and back; with a wrong checksum, or from a station that is not known by that end, a frame is the
/// kernel's.
#[test]
fn a_frame_through_a_vxlan_and_back_is_the_same() {
    let of = |checksum, learns| {
        let sources = [100, 101];
        let (ageing, link, unsummed6) = (0, 0, false);
        let vxlan =
            Vxlan { vni: 0x1_0203, port: 4789, sources, checksum, unsummed6, learns, filters: false, ageing, link };
        let encapsulation = Encapsulation::Vxlan;
        Tunnel { encapsulation, vxlan: Some(vxlan), dont_fragment: false, ..gre([None; 2]) }
    };
    for payload in [&b"even"[..], b"odd"] {
        let inner = packet(0, 64, 253, (far(20), far(10)), payload);
        let encapsulated = run(of(true, true), 1500, Gate::default(), &[frame(&inner)]);
        assert_eq!((encapsulated.sent.len(), encapsulated.punted.len()), (1, 0));
        let out = &encapsulated.sent[0];
        assert_eq!(out.len(), HEADER_LEN + inner.len() + 50);
        assert_eq!((&out[20..22], out[22], &out[34..38]), (&[0, 0][..], 61, &[0, 100, 18, 181][..]), "DF, TTL, ports");
        assert_eq!(out[42..50], [8, 0, 0, 0, 1, 2, 3, 0]);
        assert_eq!(out[50..64], [&STATION[..], &OWN, &[8, 0]].concat());
        // The sum of the addresses stays the same.
        let mut back = out[HEADER_LEN..].to_vec();
        back[12..16].copy_from_slice(&THERE.octets());
        back[16..20].copy_from_slice(&HERE.octets());
        fill_checksum(&mut back[..20]);
        back[36..48].rotate_left(6);
        // The other way: so does that of 10.0.0.9 and 20.0.0.9 in another order.
        let ends = back[62..70].to_vec();
        back[62..66].copy_from_slice(&ends[4..]);
        back[66..70].copy_from_slice(&ends[..4]);
        let taken = run(of(true, true), 1500, Gate::default(), &[frame(&back)]);
        assert_eq!((taken.sent.len(), taken.punted.len()), (1, 0));
        assert_eq!(taken.sent[0][HEADER_LEN..], packet(0, 62, 253, (far(10), far(20)), payload));
        for (at, with, learns) in [(26, 1, false), (47, 1, true), (15, 1, true), (25, 1, true)] {
            let mut wrong = back.clone();
            wrong[at] ^= with;
            if at != 26 {
                // Without a checksum.
                wrong[26..28].fill(0);
            }
            fill_checksum(&mut wrong[..20]);
            let frames = [frame(&wrong)];
            let outcome = run(of(true, learns), 1500, Gate::default(), &frames);
            assert_eq!((outcome.sent.len(), &outcome.punted[..]), (0, &frames[..]), "{at}");
        }
        // One that does not learn takes frames of any station, by any end.
        let mut strange = back.clone();
        (strange[47], strange[15]) = (9, 9);
        strange[26..28].fill(0);
        fill_checksum(&mut strange[..20]);
        assert_eq!(run(of(true, false), 1500, Gate::default(), &[frame(&strange)]).sent.len(), 1);
    }
}

/// The headers are those of the next hop: without a key unless it says so, and without DF whatever the packet within
/// has.
#[test]
fn gre_and_ipip_may_have_the_headers_of_a_next_hop() {
    let mut inner = packet(0, 64, 253, (far(20), far(10)), b"payload");
    inner[6] = 0x40;
    fill_checksum(&mut inner[..20]);
    let keys = [Some(HEADER.id), Some(1)];
    for (encapsulation, keys, head) in [
        (Encapsulation::Gre, [None; 2], &[0, 0, 8, 0][..]),
        (Encapsulation::Gre, keys, &[0x20, 0, 8, 0, 0, 0x0a, 0x0b, 0x0c]),
        (Encapsulation::Ipip, [None; 2], &[]),
    ] {
        let tunnel = Tunnel { encapsulation, external: true, dont_fragment: false, ..gre(keys) };
        let run = |frames: &[Vec<u8>]| run(tunnel, 1500, Gate::default(), frames);
        let outcome = run(&[frame(&inner)]);
        let out = &outcome.sent[0];
        assert_eq!((out[15], &out[20..23]), (0x10, &[0, 0, 9][..]), "TOS, DF, TTL");
        assert_eq!(out[34..].split_at(head.len()).0, head);
        assert_eq!(out[34 + head.len() + 12..], [&[][..], &inner[12..]].concat());
        // A packet that comes back is taken by its key.
        let mut back = out[HEADER_LEN..].to_vec();
        back[12..20].rotate_left(4);
        fill_checksum(&mut back[..20]);
        let within = 20 + head.len();
        back[within + 12..within + 20].rotate_left(4);
        let taken = run(&[frame(&back)]);
        assert_eq!((taken.sent.len(), taken.punted.len()), (1, 0));
        if keys[0].is_some() {
            back[27] ^= 1;
            let taken = run(&[frame(&back)]);
            assert_eq!((taken.sent.len(), taken.punted.len()), (0, 1));
        }
    }
}

/// The headers are those of the next hop, whatever the VXLAN's own properties are.
#[test]
fn a_vxlan_may_have_the_headers_of_a_next_hop() {
    let (sources, unsummed6, learns) = ([100, 101], false, false);
    let vxlan = Vxlan { vni: 0, port: 4789, sources, checksum: true, unsummed6, learns, ..Default::default() };
    let of = |external| Tunnel {
        encapsulation: Encapsulation::Vxlan,
        vxlan: Some(vxlan),
        external,
        local: Ipv4Addr::UNSPECIFIED.into(),
        dont_fragment: false,
        ..gre([None; 2])
    };
    let inner = packet(3, 64, 253, (far(20), far(10)), b"payload");
    let encapsulated = run(of(true), 1500, Gate::default(), &[frame(&inner)]);
    let out = &encapsulated.sent[0];
    // The packet within has seen congestion.
    assert_eq!((out[15], &out[20..23], &out[40..42]), (0x12, &[0x40, 0, 9][..], &[0, 0][..]), "TOS, DF, TTL, sum");
    assert_eq!(out[42..50], [8, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0]);
    // A packet that comes back is taken by its number.
    for (vni, taken) in [(&[0x0a, 0x0b, 0x0c][..], true), (&[0; 3], false)] {
        let mut back = out[HEADER_LEN..].to_vec();
        back[1] = 0;
        back[12..16].copy_from_slice(&THERE.octets());
        back[16..20].copy_from_slice(&HERE.octets());
        fill_checksum(&mut back[..20]);
        back[32..35].copy_from_slice(vni);
        back[36..48].rotate_left(6);
        let ends = back[62..70].to_vec();
        back[62..66].copy_from_slice(&ends[4..]);
        back[66..70].copy_from_slice(&ends[..4]);
        let outcome = run(of(true), 1500, Gate::default(), &[frame(&back)]);
        assert_eq!((outcome.sent.len(), outcome.punted.len()), if taken { (1, 0) } else { (0, 1) });
    }
}

/// A frame in a VXLAN to a station behind another member of its bridge leaves by that member, unchanged except for the
/// tag that its VLAN has there, whatever packet it carries; the kernel has it as received if it is of another kind, too
/// long, or to another station, and all frames while the VXLAN's gate is closed.
#[test]
fn a_frame_from_a_vxlan_to_another_member_is_unchanged() {
    let (sources, checksum, unsummed6, learns, ageing, link) = ([100, 101], false, false, true, 0, 0);
    let vxlan = Vxlan { vni: 0, port: 4789, sources, checksum, unsummed6, learns, filters: false, ageing, link };
    let tunnel = Tunnel { encapsulation: Encapsulation::Vxlan, vxlan: Some(vxlan), ..gre([None; 2]) };
    let within = |to: [u8; 6], kind: u16, payload: &[u8]| {
        let frame = [&to[..], &STATION, &kind.to_be_bytes(), payload].concat();
        let len = (16 + frame.len() as u16).to_be_bytes();
        let udp = [&[0, 100, 18, 181, len[0], len[1], 0, 0, 8, 0, 0, 0, 0, 0, 0, 0][..], &frame].concat();
        (self::frame(&packet(0, 64, 17, (THERE, HERE), &udp)), frame)
    };
    let neighbour = [&[0x60, 0, 0, 0, 0, 24, 58, 255][..], &[0; 32], &[135, 0, 0, 0], &[0; 20]].concat();
    let echo = [&neighbour[..40], &[128], &neighbour[41..]].concat();
    let expired = packet(0, 1, 17, (Ipv4Addr::LOCALHOST, far(10)), b"no host's");
    for (to, kind, payload, forwarded) in [
        (BESIDE, 0x800, &expired, true),
        (BESIDE, 0x86dd, &echo, true),
        // Not even IP, but long enough for its header; padded; as long as the member sends.
        (BESIDE, 0x800, &vec![0; 20], true),
        (BESIDE, 0x800, &[&expired[..], &[0; 60]].concat(), true),
        (BESIDE, 0x800, &vec![7; 100], true),
        (BESIDE, 0x800, &vec![7; 101], false),
        (BESIDE, 0x800, &vec![0; 19], false),
        (BESIDE, 0x86dd, &neighbour, false),
        (BESIDE, 0x806, &vec![0; 28], false),
        (BESIDE, 0x8100, &expired, false),
        (OWN, 0x800, &expired, false),
        (STATION, 0x800, &expired, false),
        ([0xff; 6], 0x800, &expired, false),
    ] {
        let (outer, frame) = within(to, kind, payload);
        let open = run(tunnel, 1500, Gate::default(), std::slice::from_ref(&outer));
        let closed = run(tunnel, 1500, Gate::CLOSED, std::slice::from_ref(&outer));
        let trunk = Rig::of_trunk(tunnel, 1500, std::slice::from_ref(&outer)).end(3);
        if forwarded {
            let with_tag = tagged(&frame, 0);
            assert_eq!((&open.sent[..], &open.punted[..]), (&[frame][..], &[][..]), "{kind:x} {payload:?}");
            assert_eq!((&trunk.sent[..], &trunk.punted[..]), (&[with_tag][..], &[][..]), "{kind:x} {payload:?}");
        } else {
            assert_eq!((trunk.sent.len(), &trunk.punted[..]), (0, &[outer.clone()][..]), "{to:?} {kind:x} {payload:?}");
            assert_eq!((open.sent.len(), &open.punted[..]), (0, &[outer.clone()][..]), "{to:?} {kind:x} {payload:?}");
        }
        assert_eq!((closed.sent.len(), &closed.punted[..]), (0, &[outer][..]));
    }
}

/// The gateways of an EVPN network may have one address on all leaves, which only somebody who learns would object to.
#[test]
fn a_frame_from_the_same_gateway_on_another_leaf_is_bridged() {
    for learns in [false, true] {
        let (sources, checksum, unsummed6, ageing, link) = ([100, 101], false, false, 0, 0);
        let vxlan = Vxlan { vni: 0, port: 4789, sources, checksum, unsummed6, learns, filters: false, ageing, link };
        let tunnel = Tunnel { encapsulation: Encapsulation::Vxlan, vxlan: Some(vxlan), ..gre([None; 2]) };
        let inner = [&BESIDE[..], &GATEWAY, &[8, 0], &packet(0, 9, 17, (far(20), far(10)), b"routed")].concat();
        let len = (16 + inner.len() as u16).to_be_bytes();
        let udp = [&[0, 100, 18, 181, len[0], len[1], 0, 0, 8, 0, 0, 0, 0, 0, 0, 0][..], &inner].concat();
        let outer = frame(&packet(0, 64, 17, (THERE, HERE), &udp));
        let outcome = Rig::of_bridge(tunnel, 1500, &[[&GATEWAY[..], &outer[6..]].concat()]).end(3);
        assert_eq!((outcome.sent.len(), outcome.punted.len()), if learns { (0, 1) } else { (1, 0) });
        assert!(learns || outcome.sent[0] == inner);
    }
}

/// A frame that a port receives for a station behind a VXLAN in its bridge is encapsulated, without a tag but otherwise
/// unchanged. The kernel has, as they were, those to other stations, that the VXLAN or the way to its end does not
/// take, or of no sound IP packet.
#[test]
fn a_frame_from_a_member_goes_through_the_vxlan() {
    let (sources, checksum, unsummed6, learns, ageing, link) = ([100, 101], false, false, true, 0, 0);
    let vxlan = Vxlan { vni: 9, port: 4789, sources, checksum, unsummed6, learns, filters: false, ageing, link };
    let tunnel = Tunnel { encapsulation: Encapsulation::Vxlan, vxlan: Some(vxlan), tos: 1, ..gre([None; 2]) };
    let of = |to: [u8; 6], kind: u16, payload: &[u8]| [&to[..], &BESIDE, &kind.to_be_bytes(), payload].concat();
    let expired = packet(0xb8, 1, 17, (Ipv4Addr::LOCALHOST, far(10)), b"no host's");
    let echo = [&[0x6b, 0x80, 0, 0, 0, 24, 58, 255][..], &[0; 32], &[128], &[0; 23]].concat();
    let neighbour = [&echo[..40], &[135], &echo[41..]].concat();
    for (to, kind, payload, forwarded) in [
        (STATION, 0x800, &expired, true),
        (STATION, 0x800, &[&expired[..], &[0; 60]].concat(), true),
        (STATION, 0x800, &[&[0x4f, 0xb8][..], &[0; 18]].concat(), true),
        (STATION, 0x800, &[&[0x45, 0xb8][..], &[7; 1398]].concat(), true),
        (STATION, 0x800, &[&[0x45, 0xb8][..], &[7; 1399]].concat(), false),
        (STATION, 0x86dd, &echo, true),
        (STATION, 0x86dd, &neighbour, false),
        (STATION, 0x86dd, &echo[..40].to_vec(), false),
        (STATION, 0x800, &echo, false),
        (STATION, 0x800, &vec![0x45; 19], false),
        (STATION, 0x806, &vec![0; 28], false),
        (STATION, 0x8864, &vec![0x45; 40], false),
        (BESIDE, 0x800, &expired, false),
        ([2, 9, 9, 9, 9, 9], 0x800, &expired, false),
    ] {
        let frame = of(to, kind, payload);
        let ways = [(1450, Gate::default()), (1450, Gate::CLOSED), (0, Gate::default())];
        for ((path, gate), trunk) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
            let (came, new): (_, fn(_, _, &[_]) -> _) = match trunk {
                false => (frame.clone(), Rig::of_bridge),
                true => (tagged(&frame, 3), Rig::of_trunk),
            };
            let rig = new(tunnel, path, std::slice::from_ref(&came));
            rig.gates.set(TUNNEL, gate);
            let outcome = rig.end(3);
            if forwarded && path != 0 && gate == Gate::default() {
                assert_eq!((outcome.sent.len(), outcome.handed_back.len()), (1, 0), "{kind:x} {payload:?}");
                let out = &outcome.sent[0];
                assert_eq!((&out[..12], out[15], out[22]), (&[2; 12][..], 0xb8, 61), "MACs, TOS, TTL");
                assert_eq!(out[42..50], [8, 0, 0, 0, 0, 0, 9, 0]);
                assert_eq!(out[50..], frame);
            } else {
                assert_eq!((outcome.sent.len(), &outcome.handed_back[..]), (0, &[came][..]));
            }
            assert!(outcome.punted.is_empty());
        }
    }
}

/// Turns an outer IPv6 packet, and the IPv4 packet at `within`, into those of the other direction.
fn reverse6(out: &[u8], within: usize) -> Vec<u8> {
    let mut back = out.to_vec();
    back[8..24].copy_from_slice(&out[24..40]);
    back[24..40].copy_from_slice(&out[8..24]);
    back[within + 12..within + 16].copy_from_slice(&out[within + 16..within + 20]);
    back[within + 16..within + 20].copy_from_slice(&out[within + 12..within + 16]);
    back
}

/// The limit is in destination options, which received packets may also have if sent ones do not.
#[test]
fn a_packet_through_ipv6_and_back_is_the_same() {
    let inner = packet(0xba, 64, 253, (far(20), far(10)), b"through");
    let over6 = |encapsulation, limit, tos| Tunnel {
        encapsulation,
        local: HERE6.into(),
        remote: THERE6.into(),
        limit,
        tos,
        ..gre([None; 2])
    };
    for (encapsulation, limit, tos, outer_tos) in [
        (Encapsulation::Gre, None, 1, 0xba),
        (Encapsulation::Gre, Some(4), 0x40, 0x40),
        (Encapsulation::Ip6tnl, None, 1, 0xba),
        (Encapsulation::Ip6tnl, Some(4), 0x40, 0x42),
    ] {
        let gre = encapsulation == Encapsulation::Gre;
        let tunnel = over6(encapsulation, limit, tos);
        let encapsulated = run(tunnel, 1500, Gate::default(), &[frame(&inner)]);
        assert_eq!((encapsulated.sent.len(), encapsulated.punted.len()), (1, 0));
        let out = &encapsulated.sent[0][HEADER_LEN..];
        let options: &[u8] = if limit.is_some() { &[if gre { 47 } else { 4 }, 0, 4, 1, 4, 1, 1, 0] } else { &[] };
        let around = [options, if gre { &[0, 0, 8, 0] } else { &[] }].concat();
        let within = 40 + around.len();
        assert_eq!(out.len(), within + inner.len());
        assert_eq!(out[0] << 4 | out[1] >> 4, outer_tos, "{tunnel:?}");
        let label = out[1..4].iter().fold(0, |label, octet| label << 8 | u32::from(*octet)) & 0xf_ffff;
        assert!(label > 0x8_0000, "{label:x}");
        let next = if limit.is_some() { 60 } else { if gre { 47 } else { 4 } };
        let len = (out.len() as u16 - 40).to_be_bytes();
        assert_eq!(out[4..8], [len[0], len[1], next, 63]);
        assert_eq!(out[8..40], [HERE6.octets(), THERE6.octets()].concat());
        assert_eq!(out[40..within], around);

        let mut back = reverse6(out, within);
        back[1] &= !0x30;
        for taken in [over6(encapsulation, None, 0), over6(encapsulation, Some(255), 0)] {
            let taken = run(taken, 1500, Gate::default(), &[[&[2; 6][..], &[4; 6], &[0x86, 0xdd], &back].concat()]);
            assert_eq!((taken.sent.len(), taken.punted.len()), (1, 0));
            assert_eq!(taken.sent[0][HEADER_LEN..], packet(0xba, 62, 253, (far(10), far(20)), b"through"));
        }
        // From another host; with another option; with ECN; a fragment; from this host.
        let (other, own) = (Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 1), HERE6);
        let wrong = [(8, &other.octets()[..]), (6, &[44]), (1, &[back[1] | 0x10]), (8, &own.octets())];
        let options = (42, &[5u8][..]);
        for (at, with) in wrong.into_iter().chain(limit.map(|_| options)) {
            let mut wrong = back.clone();
            wrong[at..at + with.len()].copy_from_slice(with);
            let frames = [[&[2; 6][..], &[4; 6], &[0x86, 0xdd], &wrong].concat()];
            let outcome = run(tunnel, 1500, Gate::default(), &frames);
            assert_eq!((outcome.sent.len(), &outcome.punted[..]), (0, &frames[..]), "{at} {tunnel:?}");
        }
    }
}

/// IPv6 without a UDP checksum is received only where that is configured.
#[test]
fn a_frame_through_a_vxlan_over_ipv6_and_back_is_the_same() {
    let of = |checksum, unsummed6| {
        let sources = [100, 101];
        let (learns, ageing, link) = (true, 0, 0);
        let vxlan = Vxlan { vni: 5, port: 4789, sources, checksum, unsummed6, learns, filters: false, ageing, link };
        let (local, remote) = (HERE6.into(), THERE6.into());
        Tunnel { encapsulation: Encapsulation::Vxlan, vxlan: Some(vxlan), local, remote, ..gre([None; 2]) }
    };
    for payload in [&b"even"[..], b"odd"] {
        let inner = packet(0, 64, 253, (far(20), far(10)), payload);
        let encapsulated = run(of(true, false), 1500, Gate::default(), &[frame(&inner)]);
        assert_eq!((encapsulated.sent.len(), encapsulated.punted.len()), (1, 0));
        let out = &encapsulated.sent[0][HEADER_LEN..];
        assert_eq!((out.len(), &out[..4], &out[6..8]), (inner.len() + 70, &[0x60, 0, 0, 0][..], &[17, 61][..]));
        assert_eq!(out[40..44], [0, 100, 18, 181]);
        let mut back = reverse6(out, 70);
        back[56..68].rotate_left(6);
        let around = |back: &[u8]| [&[2; 6][..], &[4; 6], &[0x86, 0xdd], back].concat();
        let taken = run(of(true, false), 1500, Gate::default(), &[around(&back)]);
        assert_eq!((taken.sent.len(), taken.punted.len()), (1, 0));
        assert_eq!(taken.sent[0][HEADER_LEN..], packet(0, 62, 253, (far(10), far(20)), payload));
        let (mut wrong, mut without) = (back.clone(), back);
        wrong[46] ^= 1;
        without[46..48].fill(0);
        for (back, unsummed6, taken) in [(&wrong, true, false), (&without, false, false), (&without, true, true)] {
            let frames = [around(back)];
            let outcome = run(of(true, unsummed6), 1500, Gate::default(), &frames);
            assert_eq!((outcome.sent.len() == 1, outcome.punted.is_empty()), (taken, taken));
        }
    }
}

#[test]
fn what_does_not_fit_the_path_is_left_to_the_kernel() {
    let of = |len: usize| frame(&packet(0, 64, 253, (far(20), far(10)), &vec![7; len - 20]));
    for (path_mtu, longest) in [(1500, 1476), (u32::MAX, 1476), (1300, 1276)] {
        let frames = [of(longest), of(longest + 1)];
        let outcome = run(gre([None; 2]), path_mtu, Gate::default(), &frames);
        assert_eq!((outcome.sent.len(), &outcome.punted[..]), (1, &frames[1..]), "{path_mtu}");
    }
    let frames = [of(100)];
    let outcome = run(gre([None; 2]), 0, Gate::default(), &frames);
    assert_eq!((outcome.sent.len(), &outcome.punted[..]), (0, &frames[..]), "the path is not known");
}

#[test]
fn a_closed_gate_leaves_packets_to_the_kernel_as_they_were() {
    let inner = packet(0, 64, 253, (far(10), far(20)), b"kept");
    let around = packet(0, 64, 47, (THERE, HERE), &[&[0, 0, 8, 0][..], &inner].concat());
    let frames = [frame(&around)];
    let outcome = run(gre([None; 2]), 1500, Gate::CLOSED, &frames);
    assert_eq!((outcome.sent.len(), &outcome.punted[..]), (0, &frames[..]));
}

/// Outer packets that masquerading would change are the kernel's in both directions, and so is one packet of a tunnel
/// every ten seconds while rules translate addresses.
#[test]
fn beside_nat_connection_tracking_knows_the_outer_packets() {
    let out = frame(&packet(0, 64, 253, (far(20), far(10)), b"out"));
    let inner = packet(0, 64, 253, (far(10), far(20)), b"back");
    let back = frame(&packet(0, 64, 47, (THERE, HERE), &[&[0, 0, 8, 0][..], &inner].concat()));
    let frames = [out.clone(), back.clone(), out.clone(), back.clone()];
    let punted = |nat: &Nat| {
        let outcome = Rig::beside_nat(gre([None; 2]), 1500, false, &frames, nat).end(frames.len() + 2);
        assert_eq!(outcome.sent.len() + outcome.punted.len(), frames.len());
        outcome.punted
    };
    let masqueraded = |gives| Nat { masqueraded: true, gives, tracked: None };
    assert!(punted(&masqueraded(Some(HERE))).is_empty());
    assert_eq!(punted(&masqueraded(None)), frames);
    assert_eq!(punted(&masqueraded(Some(far(20)))), frames);
    assert_eq!(punted(&Nat { tracked: Some(Arc::default()), ..Nat::default() }), frames[..1]);
}

/// The source is that of the path, and packets to any other address are left to the kernel.
#[test]
fn a_tunnel_may_have_no_address_of_its_own() {
    let chosen = Tunnel { local: Ipv4Addr::UNSPECIFIED.into(), ..gre([None; 2]) };
    let out = frame(&packet(0, 64, 253, (far(20), far(10)), b"out"));
    let inner = packet(0, 64, 253, (far(10), far(20)), b"back");
    let back = |to| frame(&packet(0, 64, 47, (THERE, to), &[&[0, 0, 8, 0][..], &inner].concat()));
    let frames = [out.clone(), back(HERE), back(far(20))];
    let masqueraded = |gives| Nat { masqueraded: true, gives: Some(gives), tracked: None };
    for (nat, own) in [(Nat::default(), true), (masqueraded(HERE), true), (masqueraded(far(20)), false)] {
        let Outcome { sent, punted, .. } = Rig::beside_nat(chosen, 1500, false, &frames, &nat).end(frames.len() + 2);
        assert_eq!(punted, if own { vec![] } else { frames[..2].to_vec() });
        // The last one is to another host.
        assert_eq!(sent.len(), if own { 3 } else { 1 });
        if own {
            assert_eq!(sent[0][HEADER_LEN + 12..][..4], HERE.octets());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever is around and within, a frame is forwarded, dropped, or given to the kernel unchanged.
    #[test]
    fn no_packet_is_changed_for_the_kernel(
        protocol in prop::sample::select(vec![4u8, 41, 47, 47, 47]),
        head in prop::sample::select(vec![
            vec![], vec![0, 0, 8, 0], vec![0, 0, 0x86, 0xdd], vec![0x20, 0, 8, 0, 0, 0, 0, 5], vec![0x20, 0, 8, 0],
        ]),
        net in 9u8..22,
        ttl in 0u8..4,
        cut in 0usize..60,
        noise in prop::collection::vec((0usize..60, any::<u8>()), 0..3),
        key in prop::option::of(Just(5u32)),
        padding in 0usize..8,
    ) {
        let mut inner = packet(0, ttl, 253, (far(10), far(net)), b"some payload");
        for (at, with) in noise {
            if let Some(byte) = inner.get_mut(at) {
                *byte ^= with;
            }
        }
        inner.truncate(60 - cut);
        let around = packet(0, 64, protocol, (THERE, HERE), &[&head[..], &inner].concat());
        let frame = [frame(&around), vec![0; padding]].concat();
        let outcome = run(gre([key, key]), 1500, Gate::default(), std::slice::from_ref(&frame));
        for punted in outcome.punted {
            // The padding may be cut off.
            prop_assert_eq!(&punted[..], &frame[..punted.len()]);
            prop_assert!(punted.len() >= frame.len() - padding);
        }
        for sent in outcome.sent {
            prop_assert!(inner.len() >= 20 && sent.len() >= HEADER_LEN + 20);
        }
    }
}
