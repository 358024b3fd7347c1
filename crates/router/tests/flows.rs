//! Sends bursts of mixed packets through a router whose gate is closed except for established connections, and compares
//! with packets built anew from the tuples that they should leave with.

mod common;

use bywash_engine::{Event, Idle, PortId, PortTable, Worker, WorkerConfig};
use bywash_fib::flows::{Flow, Flows, Traffic, Tuple};
use bywash_fib::model::{Families, Gate};
use bywash_fib::{Net, Table4, Table6};
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_port::{TxQueue, TxQueueConfig};
use bywash_router::gates::Gates;
use bywash_router::tables::{Cold, Entry, HashPolicy, Kind, Own4, PortInfo, Tables};
use bywash_router::tunnel::Tunnels;
use bywash_router::{Request, Router, RouterConfig};
use bywash_sync::random::splitmix64;
use bywash_sync::{Published, Qsbr};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::partial;
use common::Line;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

const MACS: [u8; 12] = [2, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 1];

/// Routes everything by port 1.
fn tables(domain: &Qsbr) -> Tables {
    let (mut table4, mut table6) = (Table4::new(domain).unwrap(), Table6::new(domain).unwrap());
    table4.insert(Net::new(0, 0).unwrap(), 1);
    table6.insert(Net::new(0, 0).unwrap(), 1);
    let forward = Entry::of_port(Kind::Forward, PortId(1), 1500, MACS);
    let port = PortInfo { index: 1, mac: [2; 6], ..PortInfo::default() };
    Tables {
        generation: 1,
        fib4: table4.reader(),
        fib6: table6.reader(),
        cold: vec![Cold::default(); 2],
        entries: vec![Entry::verdict(Kind::NoRoute), forward],
        buckets: vec![],
        ports: vec![port; 2],
        vlans: vec![],
        bonds: vec![],
        bridges: vec![],
        tunnels: Tunnels::default(),
        own4: Own4::default(),
        hash4: HashPolicy::L4,
        hash6: HashPolicy::L4,
    }
}

/// Returns the tuple with which packets of flow `n` arrive, and that with which they leave.
fn tuples(n: u16) -> (Tuple, Tuple) {
    let address = |net: u8, n: u16| -> IpAddr {
        match n % 4 {
            3 => Ipv6Addr::new(0x2001, net.into(), 0, 1, 0, 0, 0, n).into(),
            _ => Ipv4Addr::from_bits(u32::from(net) << 24 | u32::from(n)).into(),
        }
    };
    let arrives = Tuple { src: address(10, n), dst: address(20, n), src_port: 1024 + n, dst_port: 80 };
    let leaves = match n % 3 {
        0 => arrives,
        1 => Tuple { src: address(30, n), src_port: 50_000 - n, ..arrives },
        _ => Tuple { src: address(30, n), dst: address(40, n), dst_port: 8080, ..arrives },
    };
    (arrives, leaves)
}

fn packet(tuple: Tuple, macs: [u8; 12], ttl: u8, salt: u64) -> Vec<u8> {
    let (from, to) = (SocketAddr::new(tuple.src, tuple.src_port), SocketAddr::new(tuple.dst, tuple.dst_port));
    let payload: Vec<u8> = (0..salt % 90).map(|i| splitmix64(salt, i) as u8).collect();
    let (to_mac, from_mac) = (MacAddr(macs[..6].try_into().unwrap()), MacAddr(macs[6..].try_into().unwrap()));
    Packet::udp(from, to).macs(from_mac, to_mac).ttl(ttl).payload(&payload).build().unwrap()
}

/// Runs the bursts through the router; returns what it sent and punted, and how many packets the gate kept.
fn run(gate: Gate, flows: &Flows, domain: &Qsbr, bursts: &[Vec<Vec<u8>>]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, u64) {
    let arena = Arena::new(ArenaConfig { cells: 2048, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena.clone(), &[PoolConfig::stack("main", 2048)]).unwrap();
    let tables = Arc::new(Published::new(domain, tables(domain)));
    let (requests, mut inbox) = rtrb::RingBuffer::new(2048);
    let gates = Gates::open();
    gates.set(PortId(0), gate);
    let config = RouterConfig { icmp_rate: 1000, redirects: false };
    let router = Router::new(tables, requests, config).with_gates(gates).with_flows(flows.reader());
    let mut table = PortTable::new();
    let sent: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let line = |bursts: &[Vec<Vec<u8>>]| Line { bursts: bursts.iter().rev().cloned().collect(), sent: sent.clone() };
    table.add(Box::new(line(bursts)), TxQueue::new(TxQueueConfig::default()));
    table.add(Box::new(line(&[])), TxQueue::new(TxQueueConfig::default()));
    let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Spin };
    let worker = Worker::new(config, table, Box::new(router), Buffers::attach(&pools, 0), domain.register());
    let counters = worker.counters();
    worker.run_turns(bursts.len() as u64 + 1);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut punted = vec![];
    while let Ok(request) = inbox.pop() {
        let Request::Punt { frame, copy, .. } = request else { panic!("{request:?}") };
        // A copy is of a packet that was dropped, for the kernel to answer.
        if !copy {
            punted.push(arena.data(&frame).to_vec());
        }
        bufs.free_one(frame);
    }
    drop(bufs);
    let (missing, wrong) = pools.verify();
    assert!(missing.is_empty() && wrong.is_empty());
    let kept = counters.port(PortId(0)).events(Event::KeptByPolicy);
    (std::mem::take(&mut *sent.lock().unwrap()), punted, kept)
}

#[test]
fn bursts_of_flows_leave_translated_and_the_rest_is_punted() {
    const FLOWS: u16 = 300;
    let domain = Qsbr::new();
    let mut flows = Flows::new(&domain, [None, None], 1000).unwrap();
    flows.set_generation(3);
    let reversed = |t: Tuple| Tuple { src: t.dst, dst: t.src, src_port: t.dst_port, dst_port: t.src_port };
    // One in five is not in the table.
    let known = |n: u16| !n.is_multiple_of(5);
    let ids: Vec<_> = (0..FLOWS)
        .filter(|n| known(*n))
        .map(|n| {
            let (original, leaves) = tuples(n);
            let flow = Flow { protocol: 17, original, reply: reversed(leaves), input: 0, output: 1 };
            (n, flows.insert(&flow, 3).unwrap())
        })
        .collect();
    let arriving = [2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 9];
    let (mut leave, mut stay, mut open, mut bursts) = (vec![], vec![], vec![], vec![]);
    let mut traffic = vec![Traffic::default(); FLOWS.into()];
    for i in 0..40u64 {
        let burst = (0..1 + splitmix64(1, i) % 64).map(|k| {
            let salt = splitmix64(i, k);
            let (n, ttl) = ((salt >> 32) as u16 % FLOWS, if salt >> 60 == 0 { 1 } else { 64 });
            let (arrives, leaves) = tuples(n);
            let frame = packet(arrives, arriving, ttl, salt);
            assert!(partial::transport_checksum_ok(&frame[14..]));
            if ttl > 1 {
                open.push(packet(arrives, MACS, ttl - 1, salt));
            }
            if known(n) && ttl > 1 {
                leave.push(packet(leaves, MACS, ttl - 1, salt));
                let counted = &mut traffic[usize::from(n)];
                *counted = Traffic { packets: counted.packets + 1, bytes: counted.bytes + frame.len() as u64 - 14 };
            } else {
                stay.push(frame.clone());
            }
            frame
        });
        bursts.push(burst.collect::<Vec<_>>());
    }
    let closed = Gate { closed: Families::BOTH, ..Gate::default() };
    let (sent, punted, kept) = run(Gate { flows: Families::BOTH, ..closed }, &flows, &domain, &bursts);
    assert_eq!((sent.len(), punted.len(), kept), (leave.len(), stay.len(), stay.len() as u64));
    assert!(sent == leave && punted == stay && leave.len() > 500 && stay.len() > 150);
    for (n, id) in &ids {
        assert_eq!(flows.traffic(*id), [traffic[usize::from(*n)], Traffic::default()]);
    }

    // The kernel gets every packet of a family without flows, or none if the gate is open.
    let of = |v6: bool, frames: &[Vec<u8>]| -> Vec<Vec<u8>> {
        frames.iter().filter(|frame| (frame[12] == 0x86) == v6).cloned().collect()
    };
    let all: Vec<_> = bursts.iter().flatten().cloned().collect();
    let (sent, punted, _) = run(Gate { flows: Families::V6, ..closed }, &flows, &domain, &bursts);
    assert!(sent == of(true, &leave) && of(false, &punted) == of(false, &all) && of(true, &punted) == of(true, &stay));
    let (sent, punted, _) =
        run(Gate { closed: Families::V4, flows: Families::V4, ..Gate::default() }, &flows, &domain, &bursts);
    assert!(of(false, &sent) == of(false, &leave) && of(true, &sent) == of(true, &open));
    assert!(of(false, &punted) == of(false, &stay));
    // All flows are revoked at once.
    flows.set_generation(4);
    let (sent, punted, _) = run(Gate { flows: Families::BOTH, ..closed }, &flows, &domain, &bursts);
    assert!(sent.is_empty() && punted == all);
}
