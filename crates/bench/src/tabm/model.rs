//! TLB misses of the threads by a model, and the chains of their descriptors: the same device and pools, without a
//! clock.

use super::path::{self, Chain, Setup};
use super::{Case, TabmArgs};
use bywash_frame::{Batch, Pages};
use bywash_measure::{PageSize, Processor, Tlb};

/// Turns of the device without a packet after which it is taken to have stopped.
const PATIENCE: u32 = 10_000;

/// Figures of the model.
pub struct Modelled {
    /// dTLB misses per packet.
    pub walks: f64,
    /// Share of the packets whose address the previous descriptor named.
    pub chained: f64,
    /// Share of the packets in the cell after that of the thread's previous packet.
    pub consecutive: f64,
}

/// Counts the dTLB misses of threads, each with its own TLB, which sees the pages of the cells that the thread
/// forwards, in one pass through the pools after another for warm-up. (The pools' own memory is only a few pages.)
pub fn pages(args: &TabmArgs, case: Case, of: &Processor) -> anyhow::Result<Modelled> {
    let Setup { pools, mut device, mut channels, .. } = path::open(args, case, None)?;
    // Model the requested page size even if this machine cannot provide it: the policy's addresses matter.
    let page = if args.pages == Pages::Small { PageSize::Small } else { PageSize::Huge };
    let mut threads: Vec<(Tlb, Chain)> = channels.iter().map(|_| (Tlb::new(of), Chain::default())).collect();
    let mut batch = Batch::new();
    let mut pass = || -> anyhow::Result<(u64, u64)> {
        let (mut seen, mut idle) = (0, 0);
        while seen < args.frames {
            device.turn();
            idle += 1;
            for (channel, (tlb, chain)) in channels.iter_mut().zip(&mut threads) {
                while channel.poll(&mut batch) > 0 {
                    (seen, idle) = (seen + batch.len(), 0);
                    for mut packet in batch.drain() {
                        let told = channel.descriptor(&mut packet);
                        chain.follow(&packet, channel.arena().cell_of(packet.addr()), told);
                        // Control data and packet are in one cell, and so on one page.
                        tlb.access(packet.addr(), page);
                        let sent = channel.send(packet, told.port, told.len as usize);
                        anyhow::ensure!(sent.is_ok(), "the device does not take a packet back: a bug");
                    }
                }
            }
            anyhow::ensure!(idle < PATIENCE, "the device has stopped after {seen} packets: a bug");
        }
        Ok((threads.iter().map(|(tlb, _)| tlb.walks()).sum(), seen as u64))
    };
    let (warm, _) = pass()?;
    let (walks, seen) = pass()?;
    drop(channels);
    device.close();
    crate::all_back(&pools)?;
    let sum = |of: fn(&Chain) -> u64| threads.iter().map(|(_, chain)| of(chain)).sum::<u64>() as f64;
    let packets = sum(|chain| chain.packets);
    Ok(Modelled {
        walks: (walks - warm) as f64 / seen as f64,
        chained: sum(|chain| chain.named) / packets,
        consecutive: sum(|chain| chain.consecutive) / packets,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Order::{self, Fifo, Lifo};
    use super::super::Runs;
    use super::*;
    use bywash_frame::PoolKind::{self, Sdb, Tabm, Typewriter};
    use bywash_measure::XEON_GOLD_6148;
    use bywash_port::npe::Dispatch::{self, ByPort, RoundRobin};
    use bywash_port::npe::Engine;

    fn model(frames: usize, dispatch: Dispatch, order: Order, kind: PoolKind, threads: usize) -> Modelled {
        let args = TabmArgs {
            kinds: vec![],
            threads: vec![],
            sizes: vec![],
            rate: 10.0,
            dispatch: vec![],
            frames,
            block: bywash_frame::BLOCK,
            pages: Pages::Small,
            order: vec![],
            device: Runs::Threads,
            engine: Engine::Software,
            rounds: 1,
            milliseconds: 10,
            json: true,
        };
        pages(&args, Case { kind, order, dispatch, threads, size: 64 }, &XEON_GOLD_6148).unwrap()
    }

    fn misses(order: Order, kind: PoolKind, threads: usize) -> f64 {
        model(131_072, RoundRobin, order, kind, threads).walks
    }

    /// In order, 131,072 cells of 2 KiB are 65,536 pages, which no TLB has. A single thread finds the translation of
    /// the second of two cells in a page cached; two threads get one of the two each, unless blocks belong to threads.
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

    /// The chain holds for each kind, but only the blocks of `tabm` belong to one thread: its packets lie at
    /// consecutive addresses, except where one block ends and another begins. With `sdb`, four threads in turn get
    /// every fourth cell.
    #[test]
    fn only_a_threads_own_blocks_are_consecutive() {
        let consecutive = |kind, dispatch, order, threads| model(16_384, dispatch, order, kind, threads).consecutive;
        for order in [Fifo, Lifo] {
            for dispatch in [RoundRobin, ByPort] {
                let tabm = consecutive(Tabm, dispatch, order, 4);
                assert!(tabm > 0.99, "tabm {dispatch:?} {order:?}: {tabm}");
            }
            let sdb = consecutive(Sdb, RoundRobin, order, 4);
            assert!(sdb < 0.01, "sdb in turn {order:?}: {sdb}");
            assert!(consecutive(Sdb, RoundRobin, order, 1) > 0.99);
        }
    }

    /// Each packet but a thread's first is where the previous descriptor says; with `typewriter` it cannot say.
    #[test]
    fn threads_follow_the_chain_of_descriptors() {
        for (kind, expected) in [(Sdb, 1.0), (Tabm, 1.0), (Typewriter, 0.0)] {
            for dispatch in [RoundRobin, ByPort] {
                for order in [Fifo, Lifo] {
                    let chained = model(16_384, dispatch, order, kind, 4).chained;
                    assert!((chained - expected).abs() < 0.01, "{kind} {dispatch:?} {order:?}: {chained}");
                }
            }
        }
    }
}
