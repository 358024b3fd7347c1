//! Benchmark of a pool between two threads, as in a pipeline: one allocates, writes and sends buffers, the other reads
//! and frees them.

use crate::args::{SECONDS, block, frames, number, touch};
use crate::line::{self, Apart, Auto, TransferCost};
use bywash_config::count;
use bywash_engine::cpus;
use bywash_frame::{Batch, Buffers, Pages, PoolConfig, PoolKind, PoolSet};
use bywash_port::{Port, pair};
use bywash_sync::clock;
use bywash_sync::hint::{prefetch_at, prefetch_to_write};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `bywash bench pool`
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Pool kinds to measure, in this order
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack,sdb,tabm")]
    pub kinds: Vec<PoolKind>,
    /// Number of threads: 1, which allocates and frees, or an even number, half of which allocate and half free
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = pool_threads)]
    pub threads: usize,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = frames)]
    pub frames: usize,
    /// Block size of `sdb` and `tabm`, in buffers
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BLOCK, value_parser = block)]
    pub block: usize,
    /// Number of bytes written and read per buffer
    #[arg(long, value_name = "BYTES", default_value_t = 1520, value_parser = touch)]
    pub touch: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Measure the pool kinds in turn for five rounds and print the medians
    #[arg(long)]
    pub alternate: bool,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn pool_threads(text: &str) -> Result<usize, String> {
    let wanted = "expected 1 or an even number from 2 to 64".to_string();
    number(text, 1..=64, "threads").ok().filter(|n| *n == 1 || n % 2 == 0).ok_or(wanted)
}

/// Maximum number of frames in flight between an allocating and a freeing thread: near the reference document's 750.
const IN_FLIGHT: usize = 1024;
/// Frames allocated at once.
const BURST: usize = 32;
/// Prefetch distance in frames. Both sides wait for the other's cache or for memory, and a core can have more requests
/// in flight than it issues without prefetching.
const AHEAD: usize = 2;
const WARM_UP: Duration = Duration::from_millis(100);
/// Number of rounds with `--alternate`; the result is their median.
const ROUNDS: usize = 5;

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
    cpus: cpus::Placement,
    /// Cost of a cache line transfer between the first two CPUs before each round.
    line: Vec<Option<TransferCost>>,
    /// Choice of `kind = "auto"` for these threads.
    auto: Auto,
}

#[derive(Clone, Serialize)]
struct Row {
    kind: String,
    mpps: f64,
    cycles_per_packet: f64,
    threads: usize,
    frames: usize,
    cache: usize,
    block: Option<usize>,
    size: usize,
    pages: String,
    exhausted: u64,
    /// Buffers taken per packet, and so descriptors of a device that fills one after the other: less than one where
    /// several packets share a buffer.
    buffers_per_packet: f64,
    /// Rate of each round, in order.
    rounds_mpps: Vec<f64>,
    /// Medians of near and far rounds, if there were both.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<Apart>,
}

pub fn run(args: &PoolArgs) -> anyhow::Result<()> {
    let cpus = cpus::Placement::of(args.threads)?;
    let rounds = if args.alternate { ROUNDS } else { 1 };
    let mut rows: Vec<Vec<Row>> = args.kinds.iter().map(|_| vec![]).collect();
    let mut line = vec![];
    for _ in 0..rounds {
        line.push(line::measure(&cpus)?);
        for (kind, rows) in args.kinds.iter().zip(&mut rows) {
            rows.push(measure(args, *kind, &cpus)?);
        }
    }
    let rows = rows.into_iter().filter_map(|of_kind| {
        let rounds_mpps: Vec<f64> = of_kind.iter().map(|row| row.mpps).collect();
        let middle = super::middle(of_kind, |row| row.mpps)?;
        Some(Row { apart: line::apart(&line, &rounds_mpps), rounds_mpps, ..middle })
    });
    let rows: Vec<Row> = rows.collect();
    let rates: Vec<(&str, f64)> = rows.iter().map(|row| (row.kind.as_str(), row.mpps)).collect();
    let auto = match args.threads {
        // The thread frees its buffers itself.
        1 => Auto::of(PoolKind::Stack, &rates),
        _ => Auto::between(&cpus, line::usual(&line), &rates),
    };
    let figures = Figures { rows, cpus, line, auto };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    println!("{} on {}; {} B touched", count(args.threads, "thread"), figures.cpus, args.touch);
    println!("  way of a cache line from CPU to CPU, by round: {}", line::words(&figures.line));
    for row in &figures.rows {
        println!(
            "  {:5} {:6.2} Mpps, {:6.1} cycles/packet, {:.2} buffers/packet ({} frames, cache {}, pages {})",
            row.kind, row.mpps, row.cycles_per_packet, row.buffers_per_packet, row.frames, row.cache, row.pages
        );
        row.apart.as_ref().inspect(|apart| println!("        {apart}"));
    }
    println!("  {}", figures.auto);
    Ok(())
}

fn measure(args: &PoolArgs, kind: PoolKind, cpus: &cpus::Placement) -> anyhow::Result<Row> {
    let arena = super::arena(kind, args.frames, args.pages)?;
    let config = PoolConfig { block: args.block, ..PoolConfig::new("bench", kind, args.frames) };
    let pools = PoolSet::new(arena, std::slice::from_ref(&config))?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut counters = vec![];
    let mut threads = vec![];
    if args.threads == 1 {
        let freed = Arc::new(bywash_port::PortCounters::default());
        counters.push(freed.clone());
        let (pools, stop, cpu, touch) = (pools.clone(), stop.clone(), cpus.cpu(0), args.touch);
        threads.push(std::thread::spawn(move || -> anyhow::Result<()> {
            super::pin(Some(cpu))?;
            let mut bufs = Buffers::attach(&pools, 0);
            let mut batch = Batch::new();
            while !stop.load(Ordering::Relaxed) {
                bufs.alloc_for(&mut batch, &[touch as u32; BURST]);
                write(&mut bufs, &mut batch, touch);
                read(&bufs, &batch);
                freed.rx_packets.add(batch.len() as u64);
                bufs.free(&mut batch);
            }
            Ok(())
        }));
    }
    for at in 0..args.threads / 2 {
        let (mut here, mut there) = pair(IN_FLIGHT);
        counters.push(there.counters());
        let (set, stopped, cpu, touch) = (pools.clone(), stop.clone(), cpus.cpu(2 * at), args.touch);
        threads.push(std::thread::spawn(move || -> anyhow::Result<()> {
            super::pin(Some(cpu))?;
            let mut bufs = Buffers::attach(&set, 0);
            let mut batch = Batch::new();
            while !stopped.load(Ordering::Relaxed) {
                if batch.is_empty() {
                    bufs.alloc_for(&mut batch, &[touch as u32; BURST]);
                    write(&mut bufs, &mut batch, touch);
                }
                here.tx_burst(&mut bufs, &mut batch);
                here.housekeep(&mut bufs);
            }
            bufs.free(&mut batch);
            here.close(&mut bufs);
            Ok(())
        }));
        let (set, stopped, cpu) = (pools.clone(), stop.clone(), cpus.cpu(2 * at + 1));
        threads.push(std::thread::spawn(move || -> anyhow::Result<()> {
            super::pin(Some(cpu))?;
            let mut bufs = Buffers::attach(&set, 0);
            let mut batch = Batch::new();
            while !stopped.load(Ordering::Relaxed) {
                there.rx_burst(&mut bufs, &mut batch);
                read(&bufs, &batch);
                bufs.free(&mut batch);
            }
            there.close(&mut bufs);
            Ok(())
        }));
    }
    let packets = || counters.iter().map(|c| c.rx_packets.get()).sum::<u64>();
    std::thread::sleep(WARM_UP);
    let (t0, n0) = (clock::tsc(), packets());
    std::thread::sleep(Duration::from_secs(args.seconds));
    let (ticks, packets) = (clock::tsc() - t0, packets() - n0);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    super::all_back(&pools)?;
    let seconds = ticks as f64 / clock::tsc_hz() as f64;
    Ok(Row {
        kind: kind.to_string(),
        mpps: packets as f64 / seconds / 1e6,
        cycles_per_packet: ticks as f64 / packets.max(1) as f64,
        threads: args.threads,
        frames: args.frames,
        cache: config.cache,
        block: kind.blocks().then_some(args.block),
        size: args.touch,
        pages: pools.arena().pages().to_string(),
        exhausted: pools.pools()[0].stats().exhausted,
        buffers_per_packet: buffers_per_packet(&pools, args.touch),
        rounds_mpps: vec![],
        apart: None,
    })
}

/// Returns the number of buffers that each of many packets of `bytes` bytes takes.
fn buffers_per_packet(pools: &Arc<PoolSet>, bytes: usize) -> f64 {
    let mut bufs = Buffers::attach(pools, 0);
    let (mut batches, mut cells, mut packets) = (vec![], BTreeSet::new(), 0);
    for _ in 0..pools.arena().cells() / BURST / 2 {
        let mut batch = Batch::new();
        bufs.alloc_for(&mut batch, &[bytes as u32; BURST]);
        packets += batch.len();
        cells.extend(batch.as_slice().iter().map(|frame| pools.arena().cell_of(frame.addr())));
        batches.push(batch);
    }
    batches.iter_mut().for_each(|batch| bufs.free(batch));
    cells.len() as f64 / packets.max(1) as f64
}

/// Writes every packet, as receiving does.
fn write(bufs: &mut Buffers, batch: &mut Batch, bytes: usize) {
    let arena = bufs.arena();
    for frame in batch.as_mut_slice() {
        arena.resize(frame, bytes);
    }
    for i in 0..batch.len() {
        lines(bufs, batch, i + AHEAD).for_each(prefetch_to_write);
        arena.data_mut(&mut batch.as_mut_slice()[i]).fill(i as u8);
    }
}

/// Reads every byte, as sending or a checksum does.
fn read(bufs: &Buffers, batch: &Batch) {
    let mut sum = 0u64;
    for (i, frame) in batch.as_slice().iter().enumerate() {
        lines(bufs, batch, i + AHEAD).for_each(prefetch_at);
        let (words, rest) = bufs.arena().data(frame).as_chunks::<8>();
        sum = words.iter().fold(sum, |s, w| s.wrapping_add(u64::from_ne_bytes(*w)));
        sum = rest.iter().fold(sum, |s, b| s.wrapping_add(u64::from(*b)));
    }
    std::hint::black_box(sum);
}

/// Returns the cache lines of the packet at index `at`; empty if the batch is shorter.
fn lines<'a>(bufs: &'a Buffers, batch: &'a Batch, at: usize) -> impl Iterator<Item = *const u8> + use<'a> {
    batch.as_slice().get(at).into_iter().flat_map(|frame| bufs.arena().data(frame).chunks(64)).map(<[u8]>::as_ptr)
}
