//! Benchmark of two workers connected by in-memory ports: the cost of passing frames between CPUs.

use crate::args::{SECONDS, frames, touch};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolKind, PoolSet};
use bywash_port::{Port, pair};
use bywash_sync::clock;
use clap::Args;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `bywash bench pair`
#[derive(Debug, Args)]
pub struct PairArgs {
    /// Buffer pool policy
    #[arg(long, value_name = "KIND", default_value = "stack")]
    pub pool: PoolKind,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Bytes of each frame that the receiver copies into its own buffer, to show what zero copy saves
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = touch)]
    pub copy: usize,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Figures {
    mpps: f64,
    cycles_per_packet: f64,
    packets: u64,
    pool: String,
    frames: usize,
    copied: usize,
    seconds: f64,
    threads_on_cpus: Vec<usize>,
}

/// Runs `bywash bench pair`: one thread allocates and sends frames, the other receives and frees them.
pub fn run(args: &PairArgs) -> anyhow::Result<()> {
    let kind = args.pool;
    let arena = Arena::new(ArenaConfig { cells: args.frames, ..Default::default() })?;
    let pools = PoolSet::new(arena, &[PoolConfig::new("bench", kind, args.frames)])?;
    let (mut here, mut there) = pair(1024);
    let counters = there.counters();
    let stop = Arc::new(AtomicBool::new(false));
    let cpus: Vec<usize> = (0..std::thread::available_parallelism()?.get()).take(2).collect();

    let copy = args.copy;
    let (set, stopped, cpu) = (pools.clone(), stop.clone(), cpus.first().copied());
    let sender = std::thread::spawn(move || -> anyhow::Result<()> {
        super::pin(cpu)?;
        let mut bufs = Buffers::attach(&set, 0);
        let mut batch = Batch::new();
        while !stopped.load(Ordering::Relaxed) {
            let room = batch.room();
            bufs.alloc(&mut batch, room);
            if copy > 0 {
                batch.as_mut_slice().iter_mut().for_each(|frame| {
                    bufs.arena().resize(frame, copy);
                });
            }
            here.tx_burst(&mut bufs, &mut batch);
            here.housekeep(&mut bufs);
        }
        bufs.free(&mut batch);
        here.close(&mut bufs);
        Ok(())
    });
    let (set, stopped, cpu) = (pools.clone(), stop.clone(), cpus.last().copied());
    let receiver = std::thread::spawn(move || -> anyhow::Result<()> {
        super::pin(cpu)?;
        let mut bufs = Buffers::attach(&set, 0);
        let (mut batch, mut copies) = (Batch::new(), Batch::new());
        while !stopped.load(Ordering::Relaxed) {
            there.rx_burst(&mut bufs, &mut batch);
            if copy > 0 {
                let n = bufs.alloc(&mut copies, batch.len());
                for (from, to) in batch.as_slice().iter().zip(copies.as_mut_slice()).take(n) {
                    bufs.arena().write(to, bufs.arena().data(from));
                }
                bufs.free(&mut copies);
            }
            bufs.free(&mut batch);
        }
        there.close(&mut bufs);
        Ok(())
    });

    std::thread::sleep(Duration::from_millis(200));
    let (t0, n0) = (clock::tsc(), counters.rx_packets.get());
    std::thread::sleep(Duration::from_secs(args.seconds));
    let (ticks, packets) = (clock::tsc() - t0, counters.rx_packets.get() - n0);
    stop.store(true, Ordering::Relaxed);
    for thread in [sender, receiver] {
        thread.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
    }
    super::all_back(&pools)?;

    let seconds = ticks as f64 / clock::tsc_hz() as f64;
    let f = Figures {
        mpps: packets as f64 / seconds / 1e6,
        cycles_per_packet: ticks as f64 / packets.max(1) as f64,
        packets,
        pool: kind.to_string(),
        frames: args.frames,
        copied: args.copy,
        seconds,
        threads_on_cpus: cpus,
    };
    if args.json {
        println!("{}", serde_json::to_string(&f)?);
    } else {
        println!(
            "{:.2} Mpps between two workers, {:.1} cycles/packet, pool {} of {} frames",
            f.mpps, f.cycles_per_packet, f.pool, f.frames
        );
    }
    Ok(())
}
