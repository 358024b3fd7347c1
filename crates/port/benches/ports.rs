//! Benchmark of the ports' own cost: `cargo bench -p bywash-port`. Prints cycles per packet (TSC ticks) and Mpps.

use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolKind, PoolSet};
use bywash_port::pcap::{PcapPort, PcapSource};
use bywash_port::{NullPort, Port, TxQueue, TxQueueConfig, pair};
use bywash_sync::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn pools(kind: PoolKind, frames: usize) -> Arc<PoolSet> {
    let arena = Arena::new(ArenaConfig { cells: frames, ..Default::default() }).expect("arena");
    PoolSet::new(arena, &[PoolConfig::new("main", kind, frames)]).expect("pools")
}

fn report(what: &str, packets: u64, ticks: u64) {
    let cycles = ticks as f64 / packets as f64;
    println!("{what:<44} {cycles:>7.1} cycles  {:>6.1} Mpps", clock::tsc_hz() as f64 / cycles / 1e6);
}

const RUNS: usize = 25;

/// Pins the thread to `cpu`: two threads on one CPU would measure the scheduler.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if rustix::thread::sched_setaffinity(None, &set).is_err() {
        println!("cannot pin to CPU {cpu}: figures of two threads may be meaningless");
    }
}

/// Returns the fastest of several short runs: interference from other processes only slows runs down.
fn best(mut run: impl FnMut() -> (u64, u64)) -> (u64, u64) {
    (0..RUNS).map(|_| run()).min_by(|a, b| (a.1 * b.0).cmp(&(b.1 * a.0))).expect("runs")
}

fn replay(kind: PoolKind, frames: usize, size: usize) {
    let pools = pools(kind, frames);
    let mut bufs = Buffers::attach(&pools, 0);
    let packets: Vec<Vec<u8>> = (0..1024u32).map(|i| vec![i as u8; size]).collect();
    let mut rx = PcapPort::replay(PcapSource::from_frames(&packets).expect("source").repeated());
    let mut tx = NullPort::new();
    let (n, ticks) = best(|| {
        let (mut n, from) = (0, clock::tsc());
        let mut batch = Batch::new();
        for _ in 0..5_000 {
            n += rx.rx_burst(&mut bufs, &mut batch) as u64;
            tx.tx_burst(&mut bufs, &mut batch);
        }
        (n, clock::tsc() - from)
    });
    report(&format!("pcap to null, {size} B, {kind} of {frames}"), n, ticks);
}

fn queue(kind: PoolKind) {
    let pools = pools(kind, 4096);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = NullPort::new();
    let mut queue = TxQueue::new(TxQueueConfig::default());
    let (n, ticks) = best(|| {
        let (mut n, from) = (0u64, clock::tsc());
        let mut batch = Batch::new();
        for turn in 0..5_000u64 {
            n += bufs.alloc(&mut batch, 64) as u64;
            for frame in batch.drain() {
                if let Err(frame) = queue.push(frame, turn) {
                    queue.flush(&mut port, &mut bufs, turn);
                    queue.push(frame, turn).expect("room after a flush");
                }
            }
            if queue.due(turn) {
                queue.flush(&mut port, &mut bufs, turn);
            }
        }
        (n, clock::tsc() - from)
    });
    report(&format!("pool, tx queue, null ({kind})"), n, ticks);
}

fn across(kind: PoolKind, frames: usize, depth: usize) {
    let pools = pools(kind, frames);
    let (mut a, mut b) = pair(depth);
    let stop = Arc::new(AtomicBool::new(false));
    let (there, stopped) = (pools.clone(), stop.clone());
    let receiver = std::thread::spawn(move || {
        pin(1);
        let mut bufs = Buffers::attach(&there, 0);
        let mut batch = Batch::new();
        while !stopped.load(Ordering::Relaxed) {
            if b.rx_burst(&mut bufs, &mut batch) > 0 {
                bufs.free(&mut batch);
            } else {
                std::hint::spin_loop();
            }
        }
        b.close(&mut bufs);
    });
    let mut bufs = Buffers::attach(&pools, 0);
    let mut batch = Batch::new();
    let (n, ticks) = best(|| {
        let (mut n, from) = (0, clock::tsc());
        while clock::tsc() - from < clock::us_to_ticks(20_000) {
            let room = batch.room();
            bufs.alloc(&mut batch, room);
            let sent = a.tx_burst(&mut bufs, &mut batch);
            n += sent as u64;
            if sent == 0 {
                std::hint::spin_loop();
            }
        }
        (n, clock::tsc() - from)
    });
    stop.store(true, Ordering::Relaxed);
    receiver.join().expect("receiver");
    bufs.free(&mut batch);
    a.close(&mut bufs);
    report(&format!("pair of {depth}, two threads, {kind} of {frames}"), n, ticks);
}

fn main() {
    pin(0);
    for kind in [PoolKind::Stack, PoolKind::Ring] {
        for frames in [1024, 16_384, 131_072] {
            replay(kind, frames, 60);
        }
        replay(kind, 16_384, 1514);
        queue(kind);
        for depth in [256, 1024, 4096] {
            across(kind, 16_384, depth);
        }
    }
}
