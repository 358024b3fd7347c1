//! Pool tests: conservation under one thread, many threads, and every interleaving that loom explores.

use super::*;

#[cfg(not(loom))]
pub(super) mod threads {
    use super::*;
    use crate::{ArenaConfig, Batch, Buffers, Pages, RawFrame};

    /// Repetitions in tests of one thread. Miri is some hundred times slower, and sees each access in one.
    const TURNS: usize = if cfg!(miri) { 3 } else { 100 };
    /// Longest random sequence.
    const STEPS: usize = if cfg!(miri) { 10 } else { 200 };

    fn set(configs: &[PoolConfig]) -> Arc<PoolSet> {
        let cells = configs.iter().map(|c| c.frames).sum();
        let packed = configs.iter().any(|c| c.kind.packed());
        let arena = Arena::new(ArenaConfig { cells, pages: Pages::Small, packed, ..Default::default() }).unwrap();
        PoolSet::new(arena, configs).unwrap()
    }

    fn blocks(name: &str, kind: PoolKind, frames: usize, block: usize) -> PoolConfig {
        PoolConfig { block, cache: 0, ..PoolConfig::new(name, kind, frames) }
    }

    pub(in crate::pool) fn take(bufs: &mut Buffers, n: usize) -> (Batch, Vec<u32>) {
        let mut batch = Batch::new();
        bufs.alloc(&mut batch, n);
        let cells = batch.as_slice().iter().map(|f| bufs.arena().cell_of(f.addr())).collect();
        (batch, cells)
    }

    #[test]
    fn a_dropped_handle_leaves_nothing_but_its_counts() {
        for kind in PoolKind::ALL {
            let pools = set(&[PoolConfig::new("p", kind, 4096)]);
            for _ in 0..TURNS {
                let mut bufs = Buffers::attach(&pools, 0);
                let mut batch = Batch::new();
                assert_eq!(bufs.alloc(&mut batch, 10), 10);
                bufs.free(&mut batch);
            }
            let pool = &pools.pools()[0];
            let stats = pool.stats();
            assert_eq!(
                (stats.allocated, stats.freed, stats.in_use, stats.cached),
                (10 * TURNS as u64, 10 * TURNS as u64, 0, 0),
                "{kind}"
            );
            assert!(lock(&pool.handles).live.is_empty(), "{kind}");
        }
    }

    #[test]
    fn cells_of_threads_interleave_in_sdb_and_do_not_in_tabm() {
        for (kind, second) in [(PoolKind::Sdb, 3), (PoolKind::Tabm, 64), (PoolKind::Typewriter, 64)] {
            let pools = set(&[blocks("p", kind, 256, 64)]);
            let (mut a, mut b) = (Buffers::attach(&pools, 0), Buffers::attach(&pools, 0));
            let (mut first, cells) = take(&mut a, 3);
            assert_eq!(cells, [0, 1, 2]);
            let (mut other, cells) = take(&mut b, 3);
            assert_eq!(cells, [second, second + 1, second + 2], "{kind}");
            // Freed by the other worker: no cell is reused before the whole block is back.
            b.free(&mut first);
            let (mut next, cells) = take(&mut a, 2);
            assert_eq!(cells[0], if kind == PoolKind::Sdb { 6 } else { 3 });
            let stats = pools.pools()[0].stats();
            assert_eq!((stats.parked, stats.in_use, stats.free), (3, 5, 248), "{kind}");
            let open = if kind == PoolKind::Sdb { 1 } else { 2 };
            assert_eq!(stats.blocks, Some(BlockStats { size: 64, free: 4 - open, open, draining: 0 }));
            a.free(&mut other);
            a.free(&mut next);
            drop((a, b));
            assert_eq!(pools.verify(), (vec![], vec![]));
        }
    }

    #[test]
    fn a_frame_held_long_stalls_its_own_block_only() {
        // More than there are blocks.
        const ROUNDS: usize = if cfg!(miri) { 6 } else { 50 };
        for kind in [PoolKind::Sdb, PoolKind::Tabm, PoolKind::Typewriter] {
            let pools = set(&[blocks("p", kind, 256, 64)]);
            let mut bufs = Buffers::attach(&pools, 0);
            let (mut slow, cells) = take(&mut bufs, 1);
            let mut reused = 0;
            for _ in 0..ROUNDS {
                let (mut batch, seen) = take(&mut bufs, 64);
                assert_eq!(seen.len(), 64, "{kind}: three blocks are enough");
                assert!(!seen.contains(&cells[0]), "{kind}: handed out while it is held");
                reused += usize::from(seen.iter().any(|c| *c < 64));
                bufs.free(&mut batch);
            }
            assert!(reused <= 1, "{kind}: its block was used again");
            assert_eq!(pools.pools()[0].stats().blocks.unwrap().draining, 1);
            bufs.free(&mut slow);
            let mut again = false;
            for _ in 0..ROUNDS {
                let (mut batch, seen) = take(&mut bufs, 64);
                again |= seen.iter().any(|c| *c < 64);
                bufs.free(&mut batch);
            }
            assert!(again, "{kind}: its block never came back");
            drop(bufs);
            assert_eq!(pools.verify(), (vec![], vec![]));
        }
    }

    #[test]
    fn a_worker_that_goes_leaves_the_rest_of_its_block() {
        for kind in PoolKind::ALL {
            let pools = set(&[blocks("p", kind, 256, 64)]);
            let mut dies = Buffers::attach(&pools, 0);
            let (held, mut cells) = take(&mut dies, 5);
            cells.sort_unstable();
            drop(dies);
            // The cells it held are reported missing; all others can be allocated, those of its block once it is
            // complete.
            assert_eq!(pools.verify(), (cells.clone(), vec![]), "{kind}");
            let mut bufs = Buffers::attach(&pools, 0);
            held.as_slice().iter().for_each(|f| {
                // SAFETY: the previous holder is gone; this is its frame.
                unsafe { bufs.free_raw(std::iter::once(f.raw())) };
            });
            let mut batches: Vec<Batch> = (0..4).map(|_| take(&mut bufs, 64).0).collect();
            // Cells returned to the block that `sdb` has open wait until it has been used up.
            let least = if kind == PoolKind::Sdb { 256 - 5 } else { 256 };
            assert_eq!(batches.iter().map(Batch::len).sum::<usize>(), least, "{kind}");
            batches.iter_mut().for_each(|b| bufs.free(b));
            drop(bufs);
            assert_eq!(pools.verify(), (vec![], vec![]), "{kind}");
        }
    }

    /// With debug assertions the second free panics and reports the first. Without them it is refused and counted;
    /// `ring` and `stack` notice it only when the pool is full.
    #[test]
    fn what_is_freed_twice_or_is_foreign_is_refused() {
        for kind in PoolKind::ALL {
            let pools = set(&[blocks("p", kind, 256, 64)]);
            let mut bufs = Buffers::attach(&pools, 0);
            let (mut other, _) = take(&mut bufs, if kind.blocks() { 32 } else { 0 });
            let (mut batch, cells) = take(&mut bufs, 2);
            let raw = batch.as_slice()[0].raw();
            bufs.free(&mut batch);
            let foreign = RawFrame { addr: 1 << 40, len: 0, options: 0 };
            for twice in [raw, foreign] {
                let free = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    // SAFETY: deliberately violated: freeing a frame that is not ours is the test.
                    unsafe { bufs.free_raw(std::iter::once(twice)) };
                }));
                if cfg!(debug_assertions) {
                    let panic = *free.unwrap_err().downcast::<String>().unwrap();
                    assert!(panic.contains("freed twice"), "{panic}");
                    let known = if kind.packed() { cells[0] * 32 } else { cells[0] };
                    let told = panic.contains(&format!("cell {known} ")) && panic.contains("freed by ThreadId");
                    assert!(told || twice == foreign, "{panic}");
                }
            }
            bufs.free(&mut other);
            if cfg!(not(debug_assertions)) {
                assert_eq!(pools.pools()[0].stats().surplus, 2);
            }
            drop(bufs);
            assert_eq!(pools.verify(), (vec![], vec![]), "{kind}");
        }
    }

    #[test]
    fn occupancy_is_sampled() {
        let pools = set(&[PoolConfig::stack("p", 256)]);
        let mut bufs = Buffers::attach(&pools, 0);
        for n in [10, 10, 10, 60, 64] {
            let (mut batch, _) = take(&mut bufs, n);
            pools.sample_occupancy();
            bufs.free(&mut batch);
        }
        let s = pools.pools()[0].stats();
        assert_eq!((s.in_use, s.normal, s.peak, s.high_water), (0, 10, 64, 64));
    }

    proptest::proptest! {
        /// Random sequences of allocations and frees by three workers, one of which comes and goes, compared with a set
        /// of the cells in use: no cell twice, none lost, and exhaustion only when blocks explain it.
        #[test]
        fn any_order_conserves(
            kind in 0usize..5,
            lifo: bool,
            steps in proptest::collection::vec((0usize..3, 0usize..=64, 0usize..8), 1..STEPS),
        ) {
            let kind = PoolKind::ALL[kind];
            let pools = set(&[PoolConfig { lifo, ..blocks("p", kind, 512, 64) }]);
            let mut workers: Vec<Buffers> = (0..3).map(|_| Buffers::attach(&pools, 0)).collect();
            let mut out = std::collections::BTreeSet::new();
            let mut held: Vec<Batch> = vec![];
            for (who, n, what) in steps {
                match what {
                    0..4 => {
                        let (batch, cells) = take(&mut workers[who], n);
                        if !kind.blocks() {
                            proptest::prop_assert_eq!(cells.len(), n.min(512 - out.len()));
                        }
                        for cell in cells {
                            proptest::prop_assert!(cell < 512 && out.insert(cell), "cell {} twice", cell);
                        }
                        held.push(batch);
                    }
                    4..7 if !held.is_empty() => {
                        let mut batch = held.swap_remove(n % held.len());
                        for f in batch.as_slice() {
                            out.remove(&pools.arena().cell_of(f.addr()));
                        }
                        workers[who].free(&mut batch);
                    }
                    _ => workers[2] = Buffers::attach(&pools, 0),
                }
                let stats = pools.pools()[0].stats();
                proptest::prop_assert_eq!(stats.in_use, out.len());
                proptest::prop_assert_eq!(pools.audit(out.len()).missing, 0);
            }
            for mut batch in held {
                workers[0].free(&mut batch);
            }
            drop(workers);
            proptest::prop_assert_eq!(pools.verify(), (vec![], vec![]));
            let mut bufs = Buffers::attach(&pools, 0);
            let mut all: Vec<Batch> = (0..8).map(|_| take(&mut bufs, 64).0).collect();
            let least = if kind == PoolKind::Sdb { 512 - 63 } else { 512 };
            proptest::prop_assert!(all.iter().map(Batch::len).sum::<usize>() >= least);
            all.iter_mut().for_each(|b| bufs.free(b));
        }
    }

    #[test]
    fn a_stack_returns_the_warm_frame_a_bare_ring_the_cold_one() {
        for (config, again) in [
            (PoolConfig::stack("p", 1024), true),
            (PoolConfig::ring("p", 1024), true),
            (PoolConfig { cache: 0, ..PoolConfig::ring("p", 1024) }, false),
        ] {
            let pools = set(std::slice::from_ref(&config));
            let mut bufs = Buffers::attach(&pools, 0);
            let mut b = Batch::new();
            bufs.alloc(&mut b, 32);
            let first: Vec<u64> = b.as_slice().iter().map(|f| f.addr()).collect();
            bufs.free(&mut b);
            bufs.alloc(&mut b, 32);
            let second: Vec<u64> = b.as_slice().iter().map(|f| f.addr()).collect();
            assert_eq!(first.iter().any(|a| second.contains(a)), again, "{config:?}");
            bufs.free(&mut b);
        }
    }

    #[test]
    fn exhaustion_is_counted_and_recovers() {
        for config in [
            PoolConfig::stack("p", 128),
            PoolConfig { cache: 32, ..PoolConfig::ring("p", 128) },
            blocks("p", PoolKind::Sdb, 128, 64),
            blocks("p", PoolKind::Tabm, 128, 64),
            blocks("p", PoolKind::Typewriter, 128, 64),
        ] {
            let pools = set(&[config]);
            let mut bufs = Buffers::attach(&pools, 0);
            let mut held: Vec<Batch> = (0..3).map(|_| Batch::new()).collect();
            let got: Vec<usize> = held.iter_mut().map(|b| bufs.alloc(b, 64)).collect();
            assert_eq!(got, [64, 64, 0]);
            assert_eq!(pools.pools()[0].stats().exhausted, 1);
            assert_eq!(pools.audit(128).missing, 0);
            held.iter_mut().for_each(|b| bufs.free(b));
            assert_eq!(bufs.alloc(&mut held[0], 64), 64);
            bufs.free(&mut held[0]);
            drop(bufs);
            assert_eq!(pools.verify(), (vec![], vec![]));
            assert_eq!(pools.pools()[0].stats().high_water, 128);
        }
    }

    #[test]
    fn frames_go_home_to_their_own_pool() {
        let pools = set(&[PoolConfig::stack("a", 64), PoolConfig { cache: 16, ..PoolConfig::ring("b", 64) }]);
        let mut a = Buffers::attach(&pools, 0);
        let mut b = Buffers::attach(&pools, 1);
        let mut batch = Batch::new();
        for _ in 0..TURNS {
            a.alloc(&mut batch, 5);
            b.alloc(&mut batch, 7);
            a.alloc(&mut batch, 3);
            b.free(&mut batch);
        }
        drop((a, b));
        assert_eq!(pools.verify(), (vec![], vec![]));
    }

    #[test]
    fn nothing_is_lost_or_doubled_between_threads() {
        const ROUNDS: usize = if cfg!(miri) { 3 } else { 5_000 };
        for config in [
            PoolConfig::stack("p", 512),
            PoolConfig { cache: 0, ..PoolConfig::ring("p", 512) },
            PoolConfig { cache: 64, ..PoolConfig::ring("p", 512) },
            blocks("p", PoolKind::Sdb, 512, 64),
            blocks("p", PoolKind::Tabm, 512, 64),
            blocks("p", PoolKind::Typewriter, 512, 64),
        ] {
            let pools = set(&[config]);
            let threads: Vec<_> = (0..4u8)
                .map(|id| {
                    let pools = pools.clone();
                    std::thread::spawn(move || {
                        let mut bufs = Buffers::attach(&pools, 0);
                        let mut batch = Batch::new();
                        for round in 0..ROUNDS {
                            bufs.alloc(&mut batch, 1 + (round * 7 + id as usize) % 64);
                            let arena = bufs.arena().clone();
                            for f in batch.as_mut_slice() {
                                arena.meta_mut(f).fill(id);
                            }
                            for f in batch.as_mut_slice() {
                                assert!(arena.meta_mut(f).iter().all(|b| *b == id), "a cell in two hands");
                            }
                            bufs.free(&mut batch);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(pools.verify(), (vec![], vec![]));
            let s = pools.pools()[0].stats();
            assert_eq!((s.allocated, s.in_use, s.surplus), (s.freed, 0, 0));
        }
    }

    #[test]
    fn bad_sizes_are_refused() {
        let arena = Arena::new(ArenaConfig { cells: 64, pages: Pages::Small, ..Default::default() }).unwrap();
        let make = |configs: &[PoolConfig]| PoolSet::new(arena.clone(), configs).err().unwrap().to_string();
        assert!(make(&[PoolConfig::stack("x", 0)]).contains("`x` has no frames"));
        assert!(make(&[PoolConfig::stack("x", 65)]).contains("only 64"));
        assert!(make(&[PoolConfig::ring("x", 64)]).contains("too large"));
        for kind in [PoolKind::Sdb, PoolKind::Tabm] {
            for block in [0, 1, 63, 65, 100, 1 << 17, usize::MAX] {
                assert!(make(&[blocks("x", kind, 64, block)]).contains("power of two from 64 to 65536"));
            }
            assert!(make(&[blocks("x", kind, 64, 64)]).contains("two or more whole blocks"));
            assert!(make(&[blocks("x", kind, 130, 64)]).contains("two or more whole blocks"));
            assert!(make(&[blocks("x", kind, 1 << 40, 64)]).contains("only 64"));
            assert!(make(&[PoolConfig { cache: 1, ..blocks("x", kind, 128, 64) }]).contains("has no cache"));
        }
        assert!(make(&[PoolConfig::stack("x", 8), PoolConfig::stack("x", 8)]).contains("two pools"));
        assert!(
            make(&[PoolConfig { cpu: Some(9999), ..PoolConfig::stack("x", 8) }]).contains("CPU 9999 does not exist")
        );
        let alone = "need a packed arena to themselves";
        assert!(make(&[blocks("x", PoolKind::Typewriter, 64, 64)]).contains(alone));
        let packed = ArenaConfig { cells: 256, pages: Pages::Small, packed: true, ..Default::default() };
        let packed = Arena::new(packed).unwrap();
        let make = |configs: &[PoolConfig]| PoolSet::new(packed.clone(), configs).err().unwrap().to_string();
        assert!(make(&[blocks("x", PoolKind::Typewriter, 128, 64), PoolConfig::stack("y", 8)]).contains(alone));
        assert!(make(&[blocks("x", PoolKind::Typewriter, 130, 64)]).contains("two or more whole blocks"));
    }

    #[test]
    fn a_typewriter_fills_cells() {
        let pools = set(&[blocks("p", PoolKind::Typewriter, 128, 64)]);
        let mut bufs = Buffers::attach(&pools, 0);
        let mut batch = Batch::new();
        // 256 bytes before the data, 60, and room for a check sequence: five lines, so that a cell of 32 lines holds
        // six and two lines are left.
        assert_eq!(bufs.alloc_for(&mut batch, &[60; 13]), 13);
        let at: Vec<u64> = batch.as_slice().iter().map(|f| f.addr() - 256).collect();
        let expected: Vec<u64> = (0..13).map(|n| n / 6 * 2048 + n % 6 * 320).collect();
        assert_eq!(at, expected);
        let arena = bufs.arena().clone();
        let frame = &mut batch.as_mut_slice()[1];
        assert!(!arena.write(frame, &[1; 65]) && arena.write(frame, &[1; 60]));
        assert!(arena.resize(frame, 64) && !arena.resize(frame, 65), "a check sequence, and no more");
        assert!(arena.push(frame, 128) && !arena.push(frame, 1), "down to its metadata");
        arena.meta_mut(frame).fill(7);
        // A frame cut to zero length at its slot's end is still attributed to its slot.
        frame.pull(192);
        assert_eq!((frame.len(), frame.addr()), (0, 640));
        assert_eq!(arena.meta_mut(frame), &[7; 128]);
        arena.reset(frame);
        assert_eq!(frame.addr(), 320 + 256);
        let stats = pools.pools()[0].stats();
        assert_eq!((stats.in_use, pools.audit(13).missing, pools.audit(12).missing), (13, 0, 1));
        bufs.free(&mut batch);
        // A whole cell does not fit the rest of a partly used one.
        assert_eq!(bufs.alloc_for(&mut batch, &[1788, 9000, 0]), 3);
        let at: Vec<u64> = batch.as_slice().iter().map(|f| f.addr() - 256).collect();
        assert_eq!(at, [3 * 2048, 4 * 2048, 5 * 2048]);
        let fits: Vec<bool> = batch.as_mut_slice().iter_mut().map(|f| arena.write(f, &[0; 1788])).collect();
        assert_eq!(fits, [true, true, false]);
        bufs.free(&mut batch);
        drop(bufs);
        assert_eq!(pools.verify(), (vec![], vec![]));
    }

    #[test]
    fn other_kinds_give_a_cell_for_any_length() {
        let pools = set(&[PoolConfig::stack("p", 128)]);
        let mut bufs = Buffers::attach(&pools, 0);
        let mut batch = Batch::new();
        assert_eq!(bufs.alloc_for(&mut batch, &[1, 1500, 9000]), 3);
        let arena = bufs.arena().clone();
        assert!(batch.as_mut_slice().iter_mut().all(|f| arena.write(f, &[0; 1792])));
        bufs.free(&mut batch);
    }

    proptest::proptest! {
        /// Packets of any length by any worker: each keeps all bytes written to it while it is in use, and all lines
        /// are returned.
        #[test]
        fn a_typewriter_never_types_over(
            cell in 0usize..2,
            steps in proptest::collection::vec(
                (0usize..3, proptest::collection::vec(0u32..2000, 0..64), 0usize..3), 1..STEPS / 2),
        ) {
            let (frames, cell) = (512, [2048, 4096][cell]);
            let config = ArenaConfig { cells: frames, cell, pages: Pages::Small, packed: true, ..Default::default() };
            let arena = Arena::new(config).unwrap();
            let pools = PoolSet::new(arena.clone(), &[blocks("p", PoolKind::Typewriter, frames, 64)]).unwrap();
            let mut workers: Vec<Buffers> = (0..3).map(|_| Buffers::attach(&pools, 0)).collect();
            let mut held: Vec<(u8, Batch)> = vec![];
            for (n, (who, lens, what)) in steps.into_iter().enumerate() {
                if what < 2 {
                    let mut batch = Batch::new();
                    let got = workers[who].alloc_for(&mut batch, &lens);
                    for (frame, len) in batch.as_mut_slice().iter_mut().zip(&lens[..got]) {
                        let len = *len as usize;
                        proptest::prop_assert_eq!(arena.resize(frame, len), len <= arena.max_data());
                        proptest::prop_assert!(arena.push(frame, 128));
                        arena.data_mut(frame).fill(n as u8);
                        arena.meta_mut(frame).fill(n as u8);
                    }
                    held.push((n as u8, batch));
                } else if !held.is_empty() {
                    let (mark, mut batch) = held.swap_remove(lens.len() % held.len());
                    for frame in batch.as_mut_slice() {
                        proptest::prop_assert!(arena.data(frame).iter().all(|b| *b == mark));
                        proptest::prop_assert!(arena.meta_mut(frame).iter().all(|b| *b == mark));
                    }
                    workers[who].free(&mut batch);
                }
                let out = held.iter().map(|(_, batch)| batch.len()).sum();
                proptest::prop_assert_eq!(pools.audit(out).missing, 0);
            }
            for (_, mut batch) in held {
                workers[0].free(&mut batch);
            }
            drop(workers);
            proptest::prop_assert_eq!(pools.verify(), (vec![], vec![]));
        }
    }

    #[test]
    fn a_lost_packet_is_missing_by_its_cell() {
        let pools = set(&[blocks("p", PoolKind::Typewriter, 128, 64)]);
        let mut bufs = Buffers::attach(&pools, 0);
        let mut batch = Batch::new();
        bufs.alloc_for(&mut batch, &[60; 20]);
        let lost = batch.pop().unwrap();
        bufs.free(&mut batch);
        drop(bufs);
        assert_eq!(pools.verify(), (vec![3], vec![]), "the twentieth lies in the fourth cell");
        assert_eq!(pools.arena().cell_of(lost.addr()), 3);
    }
}

/// Cell pools: requests met in full or not at all, and every free cell can be allocated.
#[cfg(not(loom))]
mod cells {
    use super::*;

    fn full(kind: PoolKind, cells: u32) -> CellPool {
        let pool = CellPool::new(kind, cells as usize, 2);
        assert!((0..cells).all(|c| pool.give(&[c])));
        pool
    }

    #[test]
    fn every_cell_can_be_had_whoever_held_it() {
        let most = if cfg!(miri) { 300 } else { 20_001 };
        for kind in PoolKind::ALL {
            for cells in [1, 63, 64, 1055, 20_001].map(|cells| most.min(cells)) {
                let pool = full(kind, cells);
                assert_eq!(pool.free(), cells as usize, "{kind}");
                let mut all = vec![0; cells as usize];
                // By one taker after another, so that each leaves an open block behind; then by one alone.
                for takers in [3, 1] {
                    for (i, cell) in all.iter_mut().enumerate() {
                        assert!(pool.take(i % takers, std::slice::from_mut(cell)), "{kind}: {i} of {cells}");
                    }
                    assert!(!pool.take(0, &mut [0]), "{kind}");
                    assert_eq!(pool.free(), 0, "{kind}");
                    all.sort_unstable();
                    assert!(all.iter().copied().eq(0..cells), "{kind}");
                    // Return every other cell, so that no block is complete.
                    let (odd, even): (Vec<u32>, Vec<u32>) = all.iter().partition(|c| *c % 2 == 1);
                    odd.chunks(7).for_each(|c| assert!(pool.give(c)));
                    assert_eq!(pool.free(), odd.len(), "{kind}");
                    let mut some = vec![0; odd.len() + 1];
                    assert!(!pool.take(1, &mut some), "{kind}: more than there are");
                    assert_eq!(pool.free(), odd.len(), "{kind}: none of a request that cannot be met");
                    some.pop();
                    assert!(pool.take(1, &mut some), "{kind}");
                    some.extend(&even);
                    some.chunks(32).for_each(|c| assert!(pool.give(c)));
                    assert_eq!(pool.free(), cells as usize, "{kind}");
                }
            }
        }
    }

    #[test]
    fn threads_that_exhaust_it_never_hold_a_cell_twice() {
        use std::sync::atomic::AtomicBool;
        const CELLS: u32 = 600;
        const TURNS: usize = if cfg!(miri) { 100 } else { 5_000 };
        for kind in PoolKind::ALL {
            let pool = full(kind, CELLS);
            let held: Vec<AtomicBool> = (0..CELLS).map(|_| AtomicBool::new(false)).collect();
            std::thread::scope(|s| {
                for me in 0..3usize {
                    let (pool, held) = (&pool, &held);
                    s.spawn(move || {
                        let mut mine = std::collections::VecDeque::new();
                        for turn in 0..TURNS {
                            let mut out = [0; 32];
                            let out = &mut out[..1 + (turn * 7 + me) % 32];
                            if pool.take(me, out) {
                                for c in out.iter() {
                                    assert!(!held[*c as usize].swap(true, Ordering::Relaxed), "{kind}: {c} twice");
                                    mine.push_back(*c);
                                }
                            }
                            // Oldest first, and of different ages, so that blocks complete in all orders.
                            let keep = (turn * 13 + me * 50) % 300;
                            while mine.len() > keep {
                                let n = (mine.len() - keep).min(16);
                                let back: Vec<u32> = mine.drain(..n).collect();
                                back.iter().for_each(|c| held[*c as usize].store(false, Ordering::Relaxed));
                                assert!(pool.give(&back));
                            }
                        }
                        mine.iter().for_each(|c: &u32| held[*c as usize].store(false, Ordering::Relaxed));
                        assert!(pool.give(mine.make_contiguous()));
                    });
                }
            });
            assert_eq!(pool.free(), CELLS as usize, "{kind}");
            assert!(pool.take(0, &mut [0; CELLS as usize]), "{kind}");
        }
    }
}

#[cfg(loom)]
mod interleavings {
    use super::*;
    use bywash_sync::facade::{AtomicU32, Ordering, thread};

    /// Two threads allocate and free: in every interleaving the final set of cells equals the initial one.
    fn conserve<T: Send + Sync + 'static>(
        make: fn() -> T,
        push: fn(&T, &[u32]) -> bool,
        pop: fn(&T, &mut [u32]) -> usize,
    ) {
        loom::model(move || {
            let pool = loom::sync::Arc::new(make());
            assert!(push(&pool, &[1, 2, 3]));
            let other = pool.clone();
            let work = move |p: &T| {
                let mut out = [0; 2];
                let n = pop(p, &mut out);
                assert!(push(p, &out[..n]) || n == 0);
                out[..n].to_vec()
            };
            let t = thread::spawn(move || work(&other));
            work(&pool);
            t.join().unwrap();
            let mut rest = [0; 4];
            let n = pop(&pool, &mut rest);
            let mut rest = rest[..n].to_vec();
            rest.sort_unstable();
            assert_eq!(rest, [1, 2, 3]);
        });
    }

    #[test]
    fn ring() {
        conserve(|| Ring::new(4), Ring::push, |r, out| r.pop(out).0);
    }

    #[test]
    fn stack() {
        conserve(|| Stack::new(4), Stack::push, |s, out| s.pop(out).0);
    }

    /// Takers with their own open block, as in `tabm`, or sharing one, as in `sdb`; each frees what the other took.
    fn blocks(shared: bool, lifo: bool) {
        loom::model(move || {
            let pool = loom::sync::Arc::new(Blocks::new(10, 2, 2, shared, lifo));
            let (mine, theirs) = (Counter::new(), Counter::new());
            [&mine, &theirs].iter().for_each(|own| own.set(pool.closed()));
            // Each taker holds one cell, of the same block if the policy shares it.
            let (mut a, mut b) = ([0], [0]);
            assert_eq!((pool.take(&mine, &mut a).0, pool.take(&theirs, &mut b).0), (1, 1));
            assert_ne!(a, b);
            let other = pool.clone();
            let t = thread::spawn(move || {
                other.release(&a);
                let mut out = [0; 2];
                let n = other.take(&theirs, &mut out).0;
                other.close(&theirs);
                out[..n].to_vec()
            });
            pool.release(&b);
            let mut out = [0; 2];
            let n = pool.take(&mine, &mut out).0;
            pool.close(&mine);
            let theirs = t.join().unwrap();
            assert!(!theirs.iter().any(|c| out[..n].contains(c)), "handed out twice");
            pool.release(&theirs);
            pool.release(&out[..n]);
            // In every interleaving each cell can be allocated again, exactly once.
            let mut all = [0; 5];
            let n = pool.take(&mine, &mut all).0;
            let mut all = all[..n].to_vec();
            all.sort_unstable();
            let left = pool.opened(std::iter::once(mine.get())).iter().map(ExactSizeIterator::len).sum::<usize>();
            assert_eq!(all.len() + left + pool.free() + pool.parked(), 4);
            // A half-used shared block has to be used up before it can be reopened.
            pool.release(&all);
            let mut again = [0; 5];
            assert!(pool.take(&mine, &mut again).0 >= 2);
        });
    }

    /// Of two threads that claim a cell, at most one gets it, and sees what was written before the cell was put.
    #[test]
    fn a_cell_is_claimed_once() {
        loom::model(|| {
            let shared = loom::sync::Arc::new((out::Out::new(1, true), AtomicU32::new(0)));
            let claims = |(out, data): &(out::Out, AtomicU32)| {
                let mine = out.claim(0);
                assert!(!mine || data.load(Ordering::Relaxed) == 1);
                mine
            };
            let other = shared.clone();
            let t = thread::spawn(move || claims(&other));
            shared.1.store(1, Ordering::Relaxed);
            shared.0.put(0);
            let mine = claims(&shared);
            assert!(!(t.join().unwrap() && mine), "handed out twice");
        });
    }

    /// One thread picks single cells while the other returns the last one of their block: the block becomes free or is
    /// picked from, not both.
    #[test]
    fn picking_while_the_last_cell_comes_back() {
        loom::model(|| {
            let pool = loom::sync::Arc::new(CellPool::with_blocks(PoolKind::Tabm, 2, 2, 2));
            pool.give(&[0]);
            let other = pool.clone();
            let t = thread::spawn(move || {
                other.give(&[1]);
                let mut out = [0];
                if other.take(1, &mut out) { Some(out[0]) } else { None }
            });
            let mut out = [0];
            let mine = if pool.take(0, &mut out) { Some(out[0]) } else { None };
            let theirs = t.join().unwrap();
            assert!(mine.is_none() || mine != theirs, "handed out twice");
            let held: Vec<u32> = mine.into_iter().chain(theirs).collect();
            assert_eq!(pool.free(), 2 - held.len());
            pool.give(&held);
            let mut all = [0; 2];
            assert!(pool.take(0, &mut all), "{held:?}");
            all.sort_unstable();
            assert_eq!(all, [0, 1]);
        });
    }

    /// A block becomes free, is handed out and comes back as a whole while the other thread, which saw one of its cells
    /// returned, begins to pick from it.
    #[test]
    fn picking_while_the_block_goes_round() {
        loom::model(|| {
            let pool = loom::sync::Arc::new(CellPool::with_blocks(PoolKind::Tabm, 2, 2, 2));
            pool.give(&[0]);
            let other = pool.clone();
            let t = thread::spawn(move || {
                other.give(&[1]);
                let mut out = [0; 2];
                assert!(!other.take(1, &mut out) || other.give(&out));
            });
            let mut out = [0];
            assert!(!pool.take(0, &mut out) || pool.give(&out));
            t.join().unwrap();
            assert_eq!(pool.free(), 2);
            assert!(pool.take(0, &mut [0; 2]), "the block is in no queue");
        });
    }

    #[test]
    fn tabm_blocks() {
        blocks(false, true);
        blocks(false, false);
    }

    #[test]
    fn sdb_blocks() {
        blocks(true, false);
    }

    /// Packets of different lengths in blocks of two cells of 32 lines, freed by the thread that did not take them.
    #[test]
    fn typewriter_blocks() {
        loom::model(|| {
            let marks = loom::sync::Arc::new(Marks::new(4, 11));
            let pool = loom::sync::Arc::new(Blocks::new(0, 64, 2, false, true));
            let (mine, theirs) = (Counter::new(), Counter::new());
            [&mine, &theirs].iter().for_each(|own| own.set(pool.closed()));
            // The second does not fit behind the first: the end of the cell stays unused.
            let (mut a, mut b) = ([20, 20], [5]);
            assert_eq!((pool.take_slots(&mine, &marks, &mut a).0, pool.take_slots(&theirs, &marks, &mut b).0), (2, 1));
            assert_eq!(a[1] - a[0], 32);
            let (other, stops) = (pool.clone(), marks.clone());
            let t = thread::spawn(move || {
                other.release_slots(&stops, &a[..1]);
                let mut out = [7];
                let n = other.take_slots(&theirs, &stops, &mut out).0;
                other.release_slots(&stops, &a[1..]);
                other.close(&theirs);
                out[..n].to_vec()
            });
            pool.release_slots(&marks, &b);
            pool.close(&mine);
            let theirs = t.join().unwrap();
            assert_eq!(theirs.len(), 1, "its own block is open");
            pool.release_slots(&marks, &theirs);
            assert_eq!((pool.free(), pool.parked()), (128, 0));
        });
    }

    /// While one thread holds cells, the other must never be given the same ones.
    #[test]
    fn ring_never_hands_out_twice() {
        loom::model(|| {
            let ring = loom::sync::Arc::new(Ring::new(4));
            ring.push(&[1, 2]);
            let other = ring.clone();
            let t = thread::spawn(move || {
                let mut one = [0];
                (other.pop(&mut one).0 == 1).then_some(one[0])
            });
            let mut one = [0];
            let mine = (ring.pop(&mut one).0 == 1).then_some(one[0]);
            let theirs = t.join().unwrap();
            assert!(mine.is_some() && theirs.is_some() && mine != theirs);
        });
    }
}
