//! Fault injection and capture around a port that records everything.

mod common;

use bywash_frame::{Batch, Buffers};
use bywash_port::pcap::Filter;
use bywash_port::{
    CaptureStats, Fault, Faults, Happened, Port, PortState, Record, Records, Wanted, Watched, capture, pair,
};
use common::{Scripted, assert_conserved, batch_of, contents, pools};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn number(i: u32) -> Vec<u8> {
    let mut p = vec![0x5a; 60];
    p[..4].copy_from_slice(&i.to_be_bytes());
    p
}

/// Sends `n` numbered frames through `port`.
fn send(bufs: &mut Buffers, port: &mut dyn Port, n: u32) {
    let mut left = Batch::new();
    for i in 0..n {
        let mut one = batch_of(bufs, [number(i)]);
        one.move_to(&mut left);
        if left.room() == 0 || i + 1 == n {
            while !left.is_empty() {
                port.tx_burst(bufs, &mut left);
            }
        }
    }
}

/// Sends `n` numbered frames through a fault decorator into a pair; returns the frames that come out and the counters.
fn through(faults: Faults, seed: u64, n: u32) -> (Vec<Vec<u8>>, [u64; 6]) {
    let pools = pools(8192);
    let mut bufs = Buffers::attach(&pools, 0);
    let (near, mut far) = pair(8192);
    let mut port = Fault::new(near, seed, Faults::default(), faults);
    send(&mut bufs, &mut port, n);
    let mut got = Vec::new();
    let mut batch = Batch::new();
    while far.rx_burst(&mut bufs, &mut batch) > 0 {
        got.extend(contents(&mut bufs, &mut batch));
    }
    let c = port.tx_faults();
    assert_eq!(port.held() + far.held(), 0);
    port.close(&mut bufs);
    far.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
    let figures = [&c.dropped, &c.duplicated, &c.reordered, &c.corrupted, &c.truncated, &c.limited].map(|c| c.get());
    (got, figures)
}

#[test]
fn without_faults_nothing_happens() {
    let (got, figures) = through(Faults::default(), 1, 500);
    assert_eq!(got, (0..500).map(number).collect::<Vec<_>>());
    assert_eq!(figures, [0; 6]);
}

#[test]
fn each_fault_does_what_it_says_as_often_as_it_says() {
    const N: u32 = 4000;
    let near = |n: u64, share: f64| (n as f64 - share * f64::from(N)).abs() < 0.05 * f64::from(N);
    let off = Faults::default();

    let (got, [dropped, ..]) = through(Faults { drop: 0.25, ..off }, 7, N);
    assert_eq!(got.len() as u64, u64::from(N) - dropped);
    assert!(near(dropped, 0.25), "{dropped}");

    let (got, [_, duplicated, ..]) = through(Faults { duplicate: 0.3, ..off }, 7, N);
    assert_eq!(got.len() as u64, u64::from(N) + duplicated);
    assert!(near(duplicated, 0.3), "{duplicated}");
    let mut unique = got;
    unique.dedup();
    assert_eq!(unique, (0..N).map(number).collect::<Vec<_>>());

    let (got, [_, _, reordered, ..]) = through(Faults { reorder: 0.2, ..off }, 7, N);
    assert!(near(reordered, 0.2), "{reordered}");
    assert_ne!(got, (0..N).map(number).collect::<Vec<_>>());
    let mut sorted = got;
    sorted.sort();
    assert_eq!(sorted, (0..N).map(number).collect::<Vec<_>>());

    let (got, [_, _, _, corrupted, ..]) = through(Faults { corrupt: 0.4, ..off }, 7, N);
    let differ = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a != b).count();
    let changed = got.iter().zip(0..).map(|(g, i)| differ(g, &number(i))).inspect(|d| assert!(*d <= 1));
    assert_eq!(changed.sum::<usize>() as u64, corrupted);
    assert!(near(corrupted, 0.4), "{corrupted}");

    let (got, [_, _, _, _, truncated, _]) = through(Faults { truncate: 0.5, ..off }, 7, N);
    assert_eq!(got.iter().filter(|g| g.len() < 60).count() as u64, truncated);
    assert!(near(truncated, 0.5), "{truncated}");
}

#[test]
fn the_same_seed_does_the_same() {
    let faults = Faults { drop: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1, truncate: 0.1, ..Faults::default() };
    assert_eq!(through(faults, 42, 1000), through(faults, 42, 1000));
    assert_ne!(through(faults, 42, 1000), through(faults, 43, 1000));
}

#[test]
fn the_rate_limit_lets_a_burst_through_and_no_more() {
    let start = Instant::now();
    let (got, [.., limited]) = through(Faults { limit_pps: 1, ..Faults::default() }, 1, 640);
    // And one a second, however long it took.
    let most = 65 + start.elapsed().as_secs() as usize + 1;
    assert!((64..=most).contains(&got.len()), "{}", got.len());
    assert_eq!(got.len() as u64 + limited, 640);
}

#[test]
fn frames_beyond_the_limit_wait_as_many_as_the_queue_holds() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let (mut far, near) = pair(64);
    let faults = Faults { limit_pps: 100, queue: 10, ..Faults::default() };
    let mut port = Fault::new(near, 1, faults, Faults::default());
    let mut batch = batch_of(&mut bufs, (0..20).map(number));
    far.tx_burst(&mut bufs, &mut batch);
    let start = Instant::now();
    let mut got = Vec::new();
    while got.len() < 11 && start.elapsed() < Duration::from_secs(60) {
        port.rx_burst(&mut bufs, &mut batch);
        got.extend(contents(&mut bufs, &mut batch));
    }
    // The first goes at once, ten wait 10 ms each, the others exceed the queue.
    assert_eq!(got, (0..11).map(number).collect::<Vec<_>>());
    assert!(start.elapsed() >= Duration::from_millis(99), "{:?}", start.elapsed());
    assert_eq!((port.rx_faults().limited.get(), port.held()), (9, 0));
    port.close(&mut bufs);
    far.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn delayed_frames_are_held_and_come_later() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let (mut far, near) = pair(64);
    let delay = Duration::from_millis(20);
    let faults = Faults { delay_ns: delay.as_nanos() as u64, ..Faults::default() };
    let mut port = Fault::new(near, 1, faults, Faults::default());
    let mut batch = batch_of(&mut bufs, (0..10).map(number));
    let start = Instant::now();
    far.tx_burst(&mut bufs, &mut batch);
    assert_eq!(port.rx_burst(&mut bufs, &mut batch), 0);
    assert_eq!((far.held() + port.held(), port.receives(), port.state()), (10, true, PortState::Up));
    while port.rx_burst(&mut bufs, &mut batch) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    assert!(start.elapsed() >= delay);
    assert_eq!(contents(&mut bufs, &mut batch), (0..10).map(number).collect::<Vec<_>>());
    let mut late = batch_of(&mut bufs, [[1]]);
    far.tx_burst(&mut bufs, &mut late);
    port.close(&mut bufs);
    far.close(&mut bufs);
    bufs.free(&mut batch);
    drop(bufs);
    let (missing, wrong) = pools.verify();
    assert_eq!((missing.len(), wrong.len()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the faults and however few frames the inner port takes, no frame is lost track of.
    #[test]
    fn faults_lose_no_buffer(
        rates in prop::array::uniform5(0.0..1.0f64),
        seed in any::<u64>(),
        takes in prop::collection::vec(0..64usize, 0..40),
        delay_ns in prop_oneof![Just(0), Just(10_000u64)],
    ) {
        let [drop_, duplicate, reorder, corrupt, truncate] = rates;
        let (limit_pps, queue) = (if delay_ns > 0 { 1_000_000 } else { 0 }, 7);
        let faults = Faults { drop: drop_, duplicate, reorder, corrupt, truncate, delay_ns, limit_pps, queue };
        let pools = pools(512);
        let mut bufs = Buffers::attach(&pools, 0);
        let inner = Scripted { take: takes.into(), receive: (0..200).map(number).collect(), ..Default::default() };
        let mut port = Fault::new(inner, seed, faults, faults);
        let mut batch = Batch::new();
        for i in 0..60u32 {
            port.rx_burst(&mut bufs, &mut batch);
            if i % 2 == 0 {
                let n = batch.room().min(5);
                bufs.alloc(&mut batch, n);
            }
            port.tx_burst(&mut bufs, &mut batch);
            port.housekeep(&mut bufs);
            prop_assert_eq!(pools.audit(port.held() + batch.len()).missing, 0);
        }
        bufs.free(&mut batch);
        port.close(&mut bufs);
        drop(bufs);
        assert_conserved(&pools);
    }
}

/// Returns all records of the ring: port, event, length on the wire, bytes kept.
fn drained(records: &mut Records) -> Vec<(u16, Happened, u32, Vec<u8>)> {
    let mut all = vec![];
    let take = |r: Record<'_>| {
        all.push((r.port, r.happened, r.length, r.bytes.to_vec()));
        Ok(())
    };
    records.drain(take).unwrap();
    all
}

#[test]
fn a_capture_holds_what_is_wanted_and_only_what_was_sent() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut inner = Scripted { take: [3, 64, 64].into(), ..Default::default() };
    let wanted = Wanted {
        received: vec![true],
        sent: vec![false, true],
        dropped: vec![true],
        reasons: 1 << 5,
        snaplen: 30,
        filter: None,
    };
    let (recorder, mut records) = capture(7, wanted, 1 << 20);
    assert_eq!(recorder.id(), 7);
    let mut recorders = [recorder];
    // Five are offered; the port takes three, then the other two.
    let mut batch = batch_of(&mut bufs, (10..15).map(number));
    for (number, sent) in [(1, 3), (1, 2)] {
        let mut port = Watched { port: &mut inner, number, recorders: &mut recorders };
        assert_eq!(port.tx_burst(&mut bufs, &mut batch), sent);
    }
    // Sent on a port whose received packets only are captured; received on one whose received packets are not.
    let mut one = batch_of(&mut bufs, [number(20)]);
    recorders[0].received(bufs.arena(), 0, one.as_slice());
    recorders[0].received(bufs.arena(), 1, one.as_slice());
    recorders[0].dropped(bufs.arena(), 0, 5, &one.as_slice()[0]);
    recorders[0].dropped(bufs.arena(), 0, 4, &one.as_slice()[0]);
    recorders[0].dropped(bufs.arena(), 0, 200, &one.as_slice()[0]);
    recorders[0].dropped(bufs.arena(), 1, 5, &one.as_slice()[0]);
    Watched { port: &mut inner, number: 0, recorders: &mut recorders }.tx_burst(&mut bufs, &mut one);

    let cut = |i| number(i)[..30].to_vec();
    let mut want: Vec<_> = (10..15).map(|i| (1, Happened::Sent, 60, cut(i))).collect();
    want.extend([(0, Happened::Received, 60, cut(20)), (0, Happened::Dropped(5), 60, cut(20))]);
    assert_eq!(drained(&mut records), want);
    assert_eq!(records.stats(), CaptureStats { captured: 7, lost: 0 });
    inner.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn a_capture_holds_what_passes_its_filter() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    // The fourth byte is odd.
    let filter = Filter::parse("4\n48 0 0 3\n69 0 1 1\n6 0 0 262144\n6 0 0 0\n").unwrap();
    let wanted = Wanted { received: vec![true], filter: Some(Arc::new(filter)), snaplen: 60, ..Default::default() };
    let (mut recorder, mut records) = capture(0, wanted, 1 << 20);
    let mut batch = batch_of(&mut bufs, (0..64).map(number));
    recorder.received(bufs.arena(), 0, batch.as_slice());
    let want: Vec<_> = (0..64).filter(|i| i % 2 == 1).map(|i| (0, Happened::Received, 60, number(i))).collect();
    assert_eq!(drained(&mut records), want);
    bufs.free(&mut batch);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn a_slow_reader_loses_packets_of_the_capture_and_nothing_else() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut inner = Scripted::default();
    let wanted = Wanted { sent: vec![true], snaplen: usize::MAX, ..Default::default() };
    let (recorder, mut records) = capture(0, wanted, 4096);
    let mut recorders = [recorder];
    for round in 0..200 {
        let mut batch = batch_of(&mut bufs, (0..64).map(|i| number(round * 64 + i)));
        let mut port = Watched { port: &mut inner, number: 0, recorders: &mut recorders };
        assert_eq!(port.tx_burst(&mut bufs, &mut batch), 64);
    }
    let stats = records.stats();
    assert_eq!(stats.captured + stats.lost, 200 * 64);
    assert!(stats.lost > 0 && stats.captured == 4096 / (19 + 60), "{stats:?}");
    // The captured packets are complete and in order.
    let first = drained(&mut records);
    assert!(first.iter().enumerate().all(|(i, (.., bytes))| *bytes == number(i as u32)));
    assert_eq!(first.len() as u64, stats.captured);
    inner.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}
