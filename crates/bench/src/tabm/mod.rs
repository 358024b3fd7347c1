//! Benchmark of thread-affine blocks (`tabm` with a cell per packet, `typewriter` with only the space it needs) against
//! a shared block (`sdb`): N threads forward packets that a dispatching device distributes round-robin.
//!
//! The device uses no CPU of its own: a thread that finds its channel empty distributes a round to all threads. The
//! thread that forwards a packet also writes it, in place of the device's DMA, which no CPU's TLB is involved in.

use crate::args::{block, frames, number};
use crate::line::{self, Apart, Way};
use bywash_engine::cpus;
use bywash_frame::{BATCH, Batch, Buffers, Frame, Pages, PoolConfig, PoolKind, PoolSet};
use bywash_measure::pmu::{CacheMisses, Misses};
use bywash_measure::{PageSize, Processor, Tlb, hardware, processor};
use bywash_sync::{CachePadded, Counter, clock};
use clap::{Args, ValueEnum};
use rtrb::{Consumer, Producer, RingBuffer};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// `bywash bench tabm`
#[derive(Debug, Args)]
pub struct TabmArgs {
    /// Pool kinds to measure in turn: sdb, tabm, typewriter
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "sdb,tabm")]
    pub kinds: Vec<PoolKind>,
    /// Thread counts to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8", value_parser = channels)]
    pub threads: Vec<usize>,
    /// Packet sizes, in bytes
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,128,256,512,1024,1500", value_parser = packet)]
    pub sizes: Vec<usize>,
    /// Number of buffers in the region that the threads share or that is divided between them
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = frames)]
    pub frames: usize,
    /// Block size, in buffers
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BLOCK, value_parser = block)]
    pub block: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    pub pages: Pages,
    /// Orders in which blocks are reused, for all kinds: `fifo`, as in the paper, or `lifo`, the last freed first
    #[arg(long, value_name = "ORDERS", value_delimiter = ',', default_value = "fifo,lifo")]
    pub order: Vec<Order>,
    /// Number of rounds, each measuring all kinds; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Length of each measurement, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub milliseconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Order in which a pool reuses its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The block that has been free for the longest time first
    Fifo,
    /// The block freed last first
    Lifo,
}

fn channels(text: &str) -> Result<usize, String> {
    number(text, 1..=16, "threads")
}

fn packet(text: &str) -> Result<usize, String> {
    number(text, 64..=1518, "bytes")
}

/// Capacity of a channel in packets.
const CHANNEL: usize = 512;
/// Maximum number of packets that a thread forwards at once.
const BURST: usize = 32;
const WARM_UP: Duration = Duration::from_millis(100);
/// Number of packets per thread in the TLB model, after as many for warm-up: more than one pass through the pool.
const MODELLED: usize = 1 << 17;

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
    cpus: cpus::Placement,
    /// Processor whose TLB is modelled.
    tlb: &'static Processor,
    hardware: Vec<hardware::Source>,
}

#[derive(Serialize)]
struct Row {
    kind: String,
    /// Order in which the pool reuses its blocks.
    order: Order,
    threads: usize,
    size: usize,
    mpps: f64,
    dtlb_misses_per_packet: f64,
    dtlb_source: &'static str,
    /// Misses of the last-level cache per packet; `None` if they cannot be measured here.
    #[serde(skip_serializing_if = "Option::is_none")]
    llc_misses_per_packet: Option<f64>,
    /// True if there are more threads than CPUs, so that the rate means little.
    crowded: bool,
    rounds_mpps: Vec<f64>,
    /// Cost of a cache line's way between the first two CPUs before each round.
    line: Vec<Option<Way>>,
    /// Medians of near and far rounds, where the CPUs were both.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<Apart>,
}

pub fn run(args: &TabmArgs) -> anyhow::Result<()> {
    let most = args.threads.iter().copied().max().unwrap_or(1);
    let cpus = cpus::Placement::of(most)?;
    let tlb = processor::this().unwrap_or(&bywash_measure::XEON_GOLD_6148);
    let kinds = &args.kinds;
    if let Some(kind) = kinds.iter().find(|kind| !kind.blocks()) {
        anyhow::bail!("pools of kind {kind} have no blocks: expected sdb, tabm, typewriter");
    }
    let pools: Vec<(Order, PoolKind)> =
        args.order.iter().flat_map(|order| kinds.iter().map(|kind| (*order, *kind))).collect();
    let mut rows = vec![];
    for &threads in &args.threads {
        for &size in &args.sizes {
            let mut rounds: Vec<Vec<Measured>> = pools.iter().map(|_| vec![]).collect();
            let mut line = vec![];
            for _ in 0..args.rounds {
                line.push(line::measure(&cpus)?);
                for (pool, rounds) in pools.iter().zip(&mut rounds) {
                    rounds.push(measure(args, *pool, threads, size, &cpus)?);
                }
            }
            for (&pool, rounds) in pools.iter().zip(rounds) {
                let rounds_mpps: Vec<f64> = rounds.iter().map(|round| round.mpps).collect();
                let median = |of: &dyn Fn(&Measured) -> Option<f64>| super::median(rounds.iter().filter_map(of));
                let (measured, source) = match median(&|round| round.dtlb_misses) {
                    Some(misses) => (misses, "measured"),
                    None => (modelled(args, pool, threads, size, tlb)?, "modelled"),
                };
                rows.push(Row {
                    kind: pool.1.to_string(),
                    order: pool.0,
                    threads,
                    size,
                    mpps: median(&|round| Some(round.mpps)).unwrap_or(0.0),
                    dtlb_misses_per_packet: measured,
                    dtlb_source: source,
                    llc_misses_per_packet: median(&|round| round.llc_misses),
                    crowded: !cpus.enough_for(threads),
                    apart: line::apart(&line, &rounds_mpps),
                    rounds_mpps,
                    line: line.clone(),
                });
            }
        }
    }
    let figures = Figures { rows, cpus, tlb, hardware: hardware::sources() };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    let source = figures.rows.first().map_or("modelled", |row| row.dtlb_source);
    println!("{}; dTLB misses {source} ({})", figures.cpus, tlb.name);
    println!("threads  size  order  kind             Mpps  to the first  dTLB misses/packet");
    // The rows of one order, number of threads and size.
    for of_kinds in figures.rows.chunks(kinds.len()) {
        for row in of_kinds {
            let crowded = if row.crowded { "  (more threads than CPUs)" } else { "" };
            println!(
                "{:7} {:5}  {:5}  {:10} {:10.2} {:13.2} {:19.3}{crowded}",
                row.threads,
                row.size,
                match row.order {
                    Order::Fifo => "fifo",
                    Order::Lifo => "lifo",
                },
                row.kind,
                row.mpps,
                row.mpps / of_kinds[0].mpps,
                row.dtlb_misses_per_packet
            );
            row.apart.as_ref().inspect(|apart| println!("{:22}{apart}", ""));
        }
    }
    let line: Vec<Option<Way>> = figures.rows.chunks(pools.len()).flat_map(|rows| rows[0].line.clone()).collect();
    println!("way of a cache line from CPU to CPU, by round: {}", line::words(&line));
    for source in &figures.hardware {
        source.missing.as_ref().inspect(|why| println!("not measured by {}: {why}", source.name));
    }
    Ok(())
}

/// Creates the pools: one of all cells for `sdb`, else one per thread.
fn region(args: &TabmArgs, (order, kind): (Order, PoolKind), threads: usize) -> anyhow::Result<Arc<PoolSet>> {
    let arena = super::arena(kind, args.frames, args.pages)?;
    let lifo = order == Order::Lifo;
    let pool = |name: &str, frames| PoolConfig { block: args.block, lifo, ..PoolConfig::new(name, kind, frames) };
    let share = args.frames / threads / args.block * args.block;
    let pools: Vec<PoolConfig> = match kind {
        PoolKind::Tabm | PoolKind::Typewriter => (0..threads).map(|t| pool(&format!("thread{t}"), share)).collect(),
        _ => vec![pool("shared", args.frames)],
    };
    Ok(PoolSet::new(arena, &pools)?)
}

/// Simulated device: allocates a cell for each packet on behalf of the thread that the packet is for.
struct Device {
    /// Allocators: one for each thread if threads have their own blocks, else one.
    takers: Vec<Buffers>,
    channels: Vec<Producer<Frame>>,
    /// Packet size in bytes.
    size: u32,
    /// True once a thread has ended: further packets would not be received.
    closed: bool,
}

impl Device {
    fn new(pools: &Arc<PoolSet>, channels: Vec<Producer<Frame>>, size: usize) -> Self {
        Self {
            takers: (0..pools.pools().len()).map(|own| Buffers::attach(pools, own)).collect(),
            channels,
            size: size as u32,
            closed: false,
        }
    }

    /// Distributes a batch to every channel, one packet at a time in turn, unless a channel is full.
    fn deal(&mut self) {
        if self.closed || self.channels.iter().any(|c| c.slots() < BATCH) {
            return;
        }
        let threads = self.channels.len();
        let mut hands: Vec<Batch> = (0..threads).map(|_| Batch::new()).collect();
        if let [shared] = &mut self.takers[..] {
            // The n-th packet goes to thread n modulo the number of threads and uses the n-th cell.
            let mut cells = Batch::new();
            let mut next = 0;
            for _ in 0..threads {
                shared.alloc(&mut cells, BATCH);
                for frame in cells.drain() {
                    let pushed = hands[next % threads].push(frame);
                    debug_assert!(pushed.is_ok());
                    next += 1;
                }
            }
        } else {
            for (taker, hand) in self.takers.iter_mut().zip(&mut hands) {
                taker.alloc_for(hand, &[self.size; BATCH]);
            }
        }
        for (channel, mut hand) in self.channels.iter_mut().zip(hands) {
            let n = hand.len();
            if let Ok(chunk) = channel.write_chunk_uninit(n) {
                chunk.fill_from_iter(hand.drain());
            }
        }
    }
}

/// Result of one round.
struct Measured {
    mpps: f64,
    /// Misses per packet from the processor's counters, if available.
    dtlb_misses: Option<f64>,
    llc_misses: Option<f64>,
}

fn measure(
    args: &TabmArgs,
    pool: (Order, PoolKind),
    threads: usize,
    size: usize,
    cpus: &cpus::Placement,
) -> anyhow::Result<Measured> {
    let pools = region(args, pool, threads)?;
    let (channels, inboxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| RingBuffer::new(CHANNEL)).unzip();
    let device = Arc::new(Mutex::new(Device::new(&pools, channels, size)));
    let stop = Arc::new(AtomicBool::new(false));
    let done: Vec<Arc<CachePadded<Counter>>> = (0..threads).map(|_| Arc::default()).collect();
    let mut running = vec![];
    for (at, mut inbox) in inboxes.into_iter().enumerate() {
        let (pools, device, stop, done) = (pools.clone(), device.clone(), stop.clone(), done[at].clone());
        let cpu = cpus.cpu(at);
        running.push(std::thread::spawn(move || -> anyhow::Result<Option<Misses>> {
            super::pin(Some(cpu))?;
            let mut misses = CacheMisses::open().ok();
            let mut bufs = Buffers::attach(&pools, 0);
            let mut batch = Batch::new();
            let packet: Vec<u8> = (0..size).map(|i| i as u8).collect();
            while !stop.load(Ordering::Relaxed) {
                if !receive(&mut inbox, &mut batch) {
                    if let Ok(mut device) = device.try_lock() {
                        device.deal();
                    }
                    continue;
                }
                forward(&mut bufs, &mut batch, &packet);
                done.add(batch.len() as u64);
                bufs.free(&mut batch);
            }
            device.lock().expect("device").closed = true;
            while receive(&mut inbox, &mut batch) {
                bufs.free(&mut batch);
            }
            Ok(misses.as_mut().map(CacheMisses::read).transpose()?)
        }));
    }
    let total = || done.iter().map(|d| d.get()).sum::<u64>();
    std::thread::sleep(WARM_UP);
    let (t0, n0) = (clock::tsc(), total());
    std::thread::sleep(Duration::from_millis(args.milliseconds));
    let (ticks, packets) = (clock::tsc() - t0, total() - n0);
    stop.store(true, Ordering::Relaxed);
    let mut misses = vec![];
    for thread in running {
        misses.extend(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??);
    }
    drop(device);
    super::all_back(&pools)?;
    // Counted from the first to the last packet of the threads.
    let of = |which: fn(&Misses) -> f64| {
        (misses.len() == threads).then(|| misses.iter().map(which).sum::<f64>() / total().max(1) as f64)
    };
    Ok(Measured {
        mpps: packets as f64 * clock::tsc_hz() as f64 / ticks as f64 / 1e6,
        dtlb_misses: of(|misses| misses.dtlb),
        llc_misses: of(|misses| misses.llc),
    })
}

fn receive(inbox: &mut Consumer<Frame>, batch: &mut Batch) -> bool {
    let n = inbox.slots().min(BURST);
    let Ok(chunk) = inbox.read_chunk(n) else { return false };
    for frame in chunk {
        let pushed = batch.push(frame);
        debug_assert!(pushed.is_ok());
    }
    n > 0
}

/// Writes packet and control data, as the device does; then forwards: reads the destination and swaps the addresses.
fn forward(bufs: &mut Buffers, batch: &mut Batch, packet: &[u8]) {
    let arena = bufs.arena();
    for frame in batch.as_mut_slice() {
        arena.write(frame, packet);
        arena.meta_mut(frame)[..8].copy_from_slice(&(packet.len() as u64).to_ne_bytes());
    }
    for frame in batch.as_mut_slice() {
        let len = arena.meta_mut(frame)[0];
        if let Some(head) = arena.head_mut::<12>(frame) {
            let (to, from) = head.split_at_mut(6);
            to.swap_with_slice(from);
            head[0] ^= len;
        }
    }
}

/// Returns the dTLB misses per packet from a model: the same device and pools, one thread after the other, each with
/// its own TLB, which sees the pages of the cells that the thread forwards. (The pools' own memory is only a few
/// pages.)
fn modelled(
    args: &TabmArgs,
    pool: (Order, PoolKind),
    threads: usize,
    size: usize,
    of: &Processor,
) -> anyhow::Result<f64> {
    let pools = region(args, pool, threads)?;
    // Model the requested page size even if this machine cannot provide it: the policy's addresses matter.
    let page = if args.pages == Pages::Small { PageSize::Small } else { PageSize::Huge };
    let (channels, mut inboxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| RingBuffer::new(CHANNEL)).unzip();
    let mut device = Device::new(&pools, channels, size);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut tlbs: Vec<Tlb> = (0..threads).map(|_| Tlb::new(of)).collect();
    let mut round = |packets: usize| {
        let mut seen = 0;
        while seen < packets * threads {
            device.deal();
            for (inbox, tlb) in inboxes.iter_mut().zip(&mut tlbs) {
                let mut batch = Batch::new();
                while receive(inbox, &mut batch) {
                    for frame in batch.as_slice() {
                        // Control data and packet are in one cell, and so on one page.
                        tlb.access(frame.addr(), page);
                    }
                    seen += batch.len();
                    bufs.free(&mut batch);
                }
            }
        }
        (tlbs.iter().map(Tlb::walks).sum::<u64>(), seen)
    };
    let (warm, _) = round(MODELLED);
    let (walks, seen) = round(MODELLED);
    Ok((walks - warm) as f64 / seen as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Order::{Fifo, Lifo};
    use PoolKind::{Sdb, Tabm};
    use bywash_measure::XEON_GOLD_6148;

    fn misses(order: Order, kind: PoolKind, threads: usize) -> f64 {
        let args = TabmArgs {
            kinds: vec![],
            threads: vec![],
            sizes: vec![],
            frames: 131_072,
            block: bywash_frame::BLOCK,
            pages: Pages::Small,
            order: vec![],
            rounds: 1,
            milliseconds: 10,
            json: true,
        };
        modelled(&args, (order, kind), threads, 64, &XEON_GOLD_6148).unwrap()
    }

    /// In order, 131,072 cells of 2 KiB are 65,536 pages, which no TLB has. Of two cells in a page, one thread finds the
    /// second one's translation; of two threads each has one of the two, unless the block is its own.
    #[test]
    fn known_answers_of_the_model() {
        let cases = [
            (Fifo, Sdb, 1, 0.5),
            (Fifo, Sdb, 2, 1.0),
            (Fifo, Tabm, 1, 0.5),
            (Fifo, Tabm, 2, 0.5),
            (Lifo, Tabm, 2, 0.0),
        ];
        for (order, kind, threads, expected) in cases {
            let found = misses(order, kind, threads);
            assert!((found - expected).abs() < 0.01, "{order:?} {kind} {threads}: {found}");
        }
    }

    #[test]
    fn tabm_misses_the_tlb_less_than_sdb() {
        for threads in [2, 4, 8] {
            let [sdb, tabm] = [Sdb, Tabm].map(|kind| misses(Fifo, kind, threads));
            assert!(tabm < sdb, "{threads} threads: tabm {tabm}, sdb {sdb}");
            let [sdb, tabm] = [Sdb, Tabm].map(|kind| misses(Lifo, kind, threads));
            assert!(tabm <= sdb, "{threads} threads, lifo: tabm {tabm}, sdb {sdb}");
        }
    }
}
