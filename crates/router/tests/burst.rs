//! Sends bursts through the router and compares with a reference that processes one packet at a time by the plain
//! functions of `wire`.

mod common;

use bywash_engine::{Idle, PortId, PortTable, Worker, WorkerConfig};
use bywash_fib::{Net, Table4, Table6};
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_port::{TxQueue, TxQueueConfig};
use bywash_router::tables::{Cold, Entry, HashPolicy, Kind, Own4, PortInfo, Tables};
use bywash_router::tunnel::Tunnels;
use bywash_router::{Router, RouterConfig};
use bywash_sync::{Published, Qsbr};
use bywash_wire::ipv4;
use common::Line;
use proptest::prelude::*;
use std::sync::Arc;

const MTU: u32 = 200;
/// Ids: 1 and 2 forward to ports 0 and 1, 3 is a group of both, 4 a blackhole.
const IDS: u32 = 5;

fn macs(port: u16) -> [u8; 12] {
    [2, 0, 0, 0, 2, port as u8, 2, 0, 0, 0, 0, port as u8]
}

fn tables(domain: &Qsbr) -> Tables {
    let mut table4 = Table4::new(domain).unwrap();
    let mut table6 = Table6::new(domain).unwrap();
    for id in 1..IDS {
        table4.insert(Net::new(id << 24, 8).unwrap(), id);
        table6.insert(Net::new((0x2000 + u128::from(id)) << 112, 16).unwrap(), id);
    }
    let forward = |port| Entry::of_port(Kind::Forward, PortId(port), MTU, macs(port));
    let group = Entry::of_group(0, 2);
    let none = Entry::verdict(Kind::NoRoute);
    let entries = vec![none, forward(0), forward(1), group, Entry::verdict(Kind::Blackhole)];
    // Without an interface: frames that were left to the kernel would be missing in the end.
    let port = PortInfo { index: 0, mac: [2; 6], ..PortInfo::default() };
    Tables {
        generation: 1,
        fib4: table4.reader(),
        fib6: table6.reader(),
        cold: vec![Cold::default(); entries.len()],
        entries,
        buckets: vec![1, 2],
        ports: vec![port; 2],
        vlans: vec![],
        bonds: vec![],
        bridges: vec![],
        tunnels: Tunnels::default(),
        own4: Own4::default().with([10, 0, 0, 7].into()),
        hash4: HashPolicy::L4,
        hash6: HashPolicy::L4,
    }
}

fn host(first: u8) -> bool {
    first != 0 && first != 127 && first < 224
}

/// Returns the expected result for a packet: its bytes, with both MAC addresses unchanged, and its next hop's id.
fn twin(frame: &[u8]) -> Option<(Vec<u8>, u32)> {
    let l3 = frame.get(14..)?;
    let mut out = frame.to_vec();
    match u16::from_be_bytes([frame[12], frame[13]]) {
        0x0800 => {
            let info = ipv4::check(l3).ok()?;
            let (src, dst) = (l3[12], l3[16]);
            let fits = u32::from(info.total_len) <= MTU;
            if info.header_len != 20 || info.ttl < 2 || !host(src) || !host(dst) || !fits {
                return None;
            }
            assert!(ipv4::decrement_ttl(out[14..].first_chunk_mut()?));
            Some((out, u32::from(dst)))
        }
        0x86dd => {
            let h: &[u8; 40] = l3.first_chunk()?;
            let total = 40 + u32::from(u16::from_be_bytes([h[4], h[5]]));
            if h[0] >> 4 != 6 || total > l3.len() as u32 || total > MTU || h[7] < 2 || h[8] != 0x20 || h[24] != 0x20 {
                return None;
            }
            out[14 + 7] -= 1;
            Some((out, u32::from(h[25])))
        }
        _ => None,
    }
    .filter(|(_, id)| (1..4).contains(id))
}

/// Returns the length of the frame's IP packet.
fn ip_len(frame: &[u8]) -> usize {
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    if frame[12] == 8 { word(16) } else { 40 + word(18) }
}

/// Returns a packet; `fault` selects its fault, if any.
fn packet(fault: u8, dst: u8, ttl: u8, body: &[u8], seed: u16) -> Vec<u8> {
    let v6 = fault == 20;
    let header = if v6 { 40 } else { 20 };
    let mut l3 = vec![0; header];
    l3.extend_from_slice(body);
    let total = l3.len() as u16;
    if v6 {
        l3[0] = 0x60;
        l3[4..6].copy_from_slice(&(total - 40).to_be_bytes());
        (l3[6], l3[7]) = (17, ttl);
        (l3[8], l3[24], l3[25]) = (0x20, 0x20, dst);
        l3[38..40].copy_from_slice(&seed.to_be_bytes());
    } else {
        (l3[0], l3[1], l3[8], l3[9]) = (0x45, seed as u8, ttl, 17);
        l3[2..4].copy_from_slice(&total.to_be_bytes());
        l3[4..6].copy_from_slice(&seed.to_be_bytes());
        l3[6] = 0x40;
        (l3[12], l3[15], l3[16], l3[19]) = (10, seed as u8, dst, 1);
        match fault {
            0 => l3[0] = 0x44 + (seed % 3) as u8 * 0x10,
            1 => l3[2..4].copy_from_slice(&(total + 1 + seed % 9).to_be_bytes()),
            2 => l3[2..4].copy_from_slice(&(seed % 21).to_be_bytes()),
            3 => l3[12] = [0, 127, 224, 255][usize::from(seed % 4)],
            4 => l3[16] = [0, 127, 240, 255][usize::from(seed % 4)],
            _ => {}
        }
        if l3[0] & 15 == 5 {
            ipv4::fill_checksum(&mut l3);
        }
        if fault == 5 {
            l3[10 + usize::from(seed & 1)] ^= 1 << (seed >> 1 & 7);
        }
    }
    let kind: u16 = if v6 { 0x86dd } else { 0x0800 };
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8];
    frame.extend_from_slice(&if fault == 6 { 0x0801 } else { kind }.to_be_bytes());
    frame.extend(l3);
    if fault == 7 {
        frame.truncate(14 + usize::from(seed) % 24);
    }
    frame
}

fn a_packet() -> impl Strategy<Value = Vec<u8>> {
    // Most packets of most bursts are valid and take the fast path.
    let fault = prop_oneof![60 => Just(255u8), 1 => 0u8..8, 2 => Just(20u8)];
    let dst = prop_oneof![20 => 1u8..3, 2 => Just(3u8), 1 => 0u8..8];
    let ttl = prop_oneof![30 => 2u8.., 1 => 0u8..3];
    let body =
        prop_oneof![20 => prop::collection::vec(any::<u8>(), 8..60), 1 => prop::collection::vec(any::<u8>(), 0..220)];
    (fault, dst, ttl, body, any::<u16>()).prop_map(|(f, d, t, b, s)| packet(f, d, t, &b, s))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..Default::default() })]

    #[test]
    fn bursts_are_forwarded_as_single_packets_would_be(
        bursts in prop::collection::vec(prop::collection::vec(a_packet(), 1..=64), 1..6),
    ) {
        let arena = Arena::new(ArenaConfig { cells: 512, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 512)]).unwrap();
        let domain = Qsbr::new();
        let tables = Arc::new(Published::new(&domain, tables(&domain)));
        let (requests, _inbox) = rtrb::RingBuffer::new(16);
        let router = Router::new(tables, requests, RouterConfig { icmp_rate: 0, redirects: false });
        let mut table = PortTable::new();
        let mut sent = vec![];
        for port in 0..2 {
            let line = Line { bursts: if port == 0 { bursts.clone() } else { vec![] }, ..Default::default() };
            sent.push(line.sent.clone());
            table.add(Box::new(line), TxQueue::new(TxQueueConfig::default()));
        }
        let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Spin };
        let turns = bursts.len() as u64 + 1;
        Worker::new(config, table, Box::new(router), Buffers::attach(&pools, 0), domain.register()).run_turns(turns);

        let want = bursts.iter().rev().flatten().filter_map(|p| twin(p));
        let (padded, want): (Vec<_>, Vec<_>) = want.partition(|(bytes, _)| bytes.len() > 14 + MTU as usize);
        let mut got: Vec<_> = sent.iter().map(|s| s.lock().unwrap().clone()).collect();
        // The slow path, which keeps no order, removes padding that makes a frame too long.
        for (mut bytes, _) in padded {
            bytes.truncate(14 + ip_len(&bytes));
            let found = got.iter_mut().find_map(|sent| Some((sent.iter().position(|f| f[12..] == bytes[12..])?, sent)));
            prop_assert!(found.is_some(), "not sent: {bytes:02x?}");
            found.map(|(at, sent)| sent.remove(at));
        }
        let mut got: Vec<_> = got.into_iter().map(|sent| sent.into_iter().peekable()).collect();
        for (mut bytes, id) in want {
            // A packet to a group leaves by either port, according to its flow hash.
            let goes = (0..2u16).find(|&port| {
                bytes[..12].copy_from_slice(&macs(port));
                (id == 3 || id == u32::from(port) + 1) && got[usize::from(port)].peek() == Some(&bytes)
            });
            prop_assert!(goes.is_some(), "not sent next: {bytes:02x?} (id {id})");
            got[usize::from(goes.unwrap())].next();
        }
        prop_assert!(got.iter_mut().all(|g| g.next().is_none()), "frames were sent that the reference drops");
        let (missing, wrong) = pools.verify();
        prop_assert!(missing.is_empty() && wrong.is_empty());
    }
}
