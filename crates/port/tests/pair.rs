//! The pair: order across threads, and ownership of frames when an end goes away.

mod common;

use bywash_frame::{Batch, Buffers, PoolConfig, PoolSet};
use bywash_port::{Port, PortState, pair};
use common::{assert_conserved, batch_of, contents, pools};
use std::sync::Arc;

#[test]
fn numbers_arrive_in_order_between_two_threads_both_ways() {
    const N: u32 = 300_000;
    let pools = pools(4096);
    let (a, b) = pair(256);
    let run = |mut port: bywash_port::PairPort, pools: Arc<PoolSet>| {
        move || {
            let mut bufs = Buffers::attach(&pools, 0);
            let (mut out, mut got) = (Batch::new(), Batch::new());
            let (mut sent, mut received) = (0u32, 0u32);
            while sent < N || received < N || !out.is_empty() {
                if out.is_empty() && sent < N {
                    // Bursts of all sizes, so that the ring wraps everywhere.
                    let want = (sent as usize % 64 + 1).min((N - sent) as usize);
                    bufs.alloc(&mut out, want);
                    for f in out.as_mut_slice() {
                        assert!(bufs.arena().write(f, &sent.to_be_bytes()));
                        sent += 1;
                    }
                }
                port.tx_burst(&mut bufs, &mut out);
                if port.rx_burst(&mut bufs, &mut got) == 0 {
                    std::thread::yield_now();
                }
                for bytes in contents(&mut bufs, &mut got) {
                    assert_eq!(bytes, received.to_be_bytes());
                    received += 1;
                }
            }
            (port, bufs)
        }
    };
    let (one, two) = (std::thread::spawn(run(a, pools.clone())), std::thread::spawn(run(b, pools.clone())));
    for end in [one, two] {
        let (mut port, mut bufs) = end.join().unwrap();
        let counters = port.counters();
        assert_eq!((counters.rx_packets.get(), counters.tx_packets.get()), (N.into(), N.into()));
        assert_eq!((counters.rx_bytes.get(), counters.tx_bytes.get()), (u64::from(N) * 4, u64::from(N) * 4));
        port.close(&mut bufs);
    }
    assert_conserved(&pools);
}

#[test]
fn a_full_ring_leaves_the_rest_with_the_sender() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let (mut a, mut b) = pair(100);
    let mut first = batch_of(&mut bufs, (0..64u8).map(|n| [n]));
    let mut second = batch_of(&mut bufs, (64..128u8).map(|n| [n]));
    assert_eq!(a.tx_burst(&mut bufs, &mut first), 64);
    assert_eq!(a.tx_burst(&mut bufs, &mut second), 36);
    assert_eq!((a.held(), b.held(), second.len()), (0, 100, 28));
    assert_eq!(a.counters().tx_full.get(), 1);
    let mut got = Batch::new();
    let mut seen = Vec::new();
    while b.rx_burst(&mut bufs, &mut got) > 0 {
        seen.extend(contents(&mut bufs, &mut got));
        a.tx_burst(&mut bufs, &mut second);
    }
    assert_eq!(seen, (0..128u8).map(|n| vec![n]).collect::<Vec<_>>());
    a.close(&mut bufs);
    b.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn what_a_closed_peer_did_not_receive_comes_back() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let down = PortState::Down("peer closed".into());
    for dropped in [false, true] {
        let (mut a, mut b) = pair(64);
        let mut to_b = batch_of(&mut bufs, [b"to b"; 10]);
        let mut to_a = batch_of(&mut bufs, [b"to a"; 7]);
        assert_eq!(a.tx_burst(&mut bufs, &mut to_b), 10);
        assert_eq!(b.tx_burst(&mut bufs, &mut to_a), 7);
        assert_eq!((a.held(), b.held()), (7, 10));
        if dropped {
            drop(b);
            assert_eq!(a.held(), 17, "frames of the closed end are returned");
        } else {
            b.close(&mut bufs);
            assert_eq!((a.held(), b.held()), (7, 0));
            assert!(to_b.is_empty() && b.rx_burst(&mut bufs, &mut to_b) == 0);
        }
        assert_eq!(a.state(), down);
        let mut more = batch_of(&mut bufs, [b"late"; 3]);
        assert_eq!(a.tx_burst(&mut bufs, &mut more), 0);
        assert_eq!(more.len(), 3);
        bufs.free(&mut more);
        a.housekeep(&mut bufs);
        assert_eq!(a.held(), 7);
        let mut got = Batch::new();
        assert_eq!(a.rx_burst(&mut bufs, &mut got), 7, "frames sent before are still received");
        bufs.free(&mut got);
        a.close(&mut bufs);
        assert_eq!(pools.audit(0).missing, 0);
    }
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn ends_that_close_at_the_same_time_lose_nothing() {
    let pools = pools(2048);
    for _ in 0..500 {
        let (a, b) = pair(64);
        let ends = [a, b].map(|mut port| {
            let pools = pools.clone();
            std::thread::spawn(move || {
                let mut bufs = Buffers::attach(&pools, 0);
                let mut batch = Batch::new();
                for _ in 0..4 {
                    bufs.alloc(&mut batch, 16);
                    port.tx_burst(&mut bufs, &mut batch);
                    bufs.free(&mut batch);
                }
                port.close(&mut bufs);
            })
        });
        ends.into_iter().for_each(|e| e.join().unwrap());
        assert_eq!(pools.audit(0).missing, 0);
    }
    assert_conserved(&pools);
}

#[test]
fn frames_of_another_arena_are_refused() {
    let (here, there) = (pools(64), pools(64));
    let (mut bufs, mut other) = (Buffers::attach(&here, 0), Buffers::attach(&there, 0));
    let (mut a, mut b) = pair(64);
    let mut batch = batch_of(&mut bufs, [b"x"]);
    assert_eq!(a.tx_burst(&mut bufs, &mut batch), 1);
    let mut foreign = batch_of(&mut other, [b"y"]);
    assert_eq!(b.tx_burst(&mut other, &mut foreign), 0);
    assert!(matches!(b.state(), PortState::Down(why) if why.contains("arena")));
    assert_eq!(b.rx_burst(&mut other, &mut Batch::new()), 0);
    assert_eq!((a.state(), a.held()), (PortState::Down("peer closed".into()), 1));
    other.free(&mut foreign);
    b.close(&mut other);
    a.close(&mut bufs);
    drop((bufs, other));
    assert_conserved(&here);
    assert_conserved(&there);
}

#[test]
fn frames_go_home_to_their_own_pool() {
    let arena = bywash_frame::Arena::new(bywash_frame::ArenaConfig { cells: 128, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena, &[PoolConfig::stack("a", 64), PoolConfig::stack("b", 64)]).unwrap();
    let (mut one, mut two) = (Buffers::attach(&pools, 0), Buffers::attach(&pools, 1));
    let (mut a, mut b) = pair(64);
    let mut batch = batch_of(&mut one, [b"from a"; 20]);
    assert_eq!(a.tx_burst(&mut one, &mut batch), 20);
    let mut got = Batch::new();
    assert_eq!(b.rx_burst(&mut two, &mut got), 20);
    two.free(&mut got);
    assert_eq!(pools.pools()[0].free(), 64);
    a.close(&mut one);
    b.close(&mut two);
    drop((one, two));
    assert_conserved(&pools);
}
