//! Pools: conservation under one thread, many threads, and every interleaving loom can find.

use super::*;

#[cfg(not(loom))]
mod threads {
    use super::*;
    use crate::{ArenaConfig, Batch, Buffers, Pages};

    fn set(configs: &[PoolConfig]) -> Arc<PoolSet> {
        let cells = configs.iter().map(|c| c.frames).sum();
        let arena = Arena::new(ArenaConfig { cells, pages: Pages::Small, ..Default::default() }).unwrap();
        PoolSet::new(arena, configs).unwrap()
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
        for config in [PoolConfig::stack("p", 128), PoolConfig { cache: 32, ..PoolConfig::ring("p", 128) }] {
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
            assert_eq!(pools.pools()[0].stats().peak, 128);
        }
    }

    #[test]
    fn frames_go_home_to_their_own_pool() {
        let pools = set(&[PoolConfig::stack("a", 64), PoolConfig { cache: 16, ..PoolConfig::ring("b", 64) }]);
        let mut a = Buffers::attach(&pools, 0);
        let mut b = Buffers::attach(&pools, 1);
        let mut batch = Batch::new();
        for _ in 0..100 {
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
        for config in [
            PoolConfig::stack("p", 512),
            PoolConfig { cache: 0, ..PoolConfig::ring("p", 512) },
            PoolConfig { cache: 64, ..PoolConfig::ring("p", 512) },
        ] {
            let pools = set(&[config]);
            let threads: Vec<_> = (0..4u8)
                .map(|id| {
                    let pools = pools.clone();
                    std::thread::spawn(move || {
                        let mut bufs = Buffers::attach(&pools, 0);
                        let mut batch = Batch::new();
                        for round in 0..5_000 {
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
        assert!(make(&[PoolConfig::stack("x", 8), PoolConfig::stack("x", 8)]).contains("two pools"));
    }
}

#[cfg(loom)]
mod interleavings {
    use super::*;
    use bywash_sync::facade::thread;

    /// Two threads take and give; whatever the order, the cells at the end are those of the beginning.
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
