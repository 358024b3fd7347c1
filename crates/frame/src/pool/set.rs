//! The pools of one arena: those created at the start, and those added and removed at run time.

use super::*;
use crate::pool::guard::Guard;
use bywash_sync::lock;

/// The pools of one arena.
///
/// Cells that belong to no pool are spare: [`PoolSet::add`] creates pools from them, and the cells of removed pools
/// become spare again.
pub struct PoolSet {
    arena: Arc<Arena>,
    guard: Option<Guard>,
    /// End of the last pool, in units: cells, or lines if the arena is packed.
    units: AtomicU32,
    /// Version of the pool list; users compare it with the one they last saw.
    version: AtomicU32,
    changing: Mutex<Changing>,
}

struct Changing {
    pools: Arc<[Arc<Pool>]>,
    /// Removed pools. Their cells become spare when no handle refers to them any more.
    gone: Vec<Arc<Pool>>,
    /// Ranges of spare cells: first cell and count, in ascending order.
    spare: Vec<(usize, usize)>,
}

impl Changing {
    /// Takes a range of `cells` consecutive spare cells. Returns the first one, or `None` if no range is large enough.
    fn carve(&mut self, cells: usize) -> Option<usize> {
        let at = self.spare.iter().position(|(_, n)| *n >= cells)?;
        let (first, n) = self.spare[at];
        match n - cells {
            0 => drop(self.spare.remove(at)),
            left => self.spare[at] = (first + cells, left),
        }
        Some(first)
    }

    /// Returns the length of the longest range of spare cells.
    fn room(&self) -> usize {
        self.spare.iter().map(|(_, n)| *n).max().unwrap_or(0)
    }

    fn give_back(&mut self, first: usize, cells: usize) {
        self.spare.push((first, cells));
        self.spare.sort_unstable();
        self.spare.dedup_by(|next, before| {
            let joins = before.0 + before.1 == next.0;
            if joins {
                before.1 += next.1;
            }
            joins
        });
    }

    /// Turns the cells of removed pools without remaining handles into spare ones.
    fn reclaim_removed(&mut self) {
        let mut at = 0;
        while at < self.gone.len() {
            if Arc::strong_count(&self.gone[at]) > 1 {
                at += 1;
                continue;
            }
            let pool = self.gone.swap_remove(at);
            self.give_back(pool.cell(), pool.config.frames);
        }
    }
}

/// Location of every cell of an arena, for conservation checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Cells that belong to pools.
    pub cells: usize,
    /// Free cells in pools.
    pub free: usize,
    /// Free cells in worker caches.
    pub cached: usize,
    /// Cells returned to blocks that are not free yet.
    pub parked: usize,
    /// Cells held by ports, queues and workers, by their own count.
    pub held: usize,
    /// Cells unaccounted for; negative if some are counted twice.
    pub missing: i64,
}

impl PoolSet {
    /// Creates pools from `arena`'s cells, in order.
    pub fn new(arena: Arc<Arena>, configs: &[PoolConfig]) -> Result<Arc<Self>, PoolError> {
        let guarded = cfg!(debug_assertions) || configs.iter().any(|c| c.kind.blocks());
        Self::create(arena, configs, guarded)
    }

    /// Creates pools as [`PoolSet::new`] does, in a set to which pools of blocks can be added even if it has none yet.
    ///
    /// # Errors
    /// Those of [`PoolSet::new`].
    pub fn watched(arena: Arc<Arena>, configs: &[PoolConfig]) -> Result<Arc<Self>, PoolError> {
        Self::create(arena, configs, true)
    }

    fn create(arena: Arc<Arena>, configs: &[PoolConfig], guarded: bool) -> Result<Arc<Self>, PoolError> {
        let mut pools: Vec<Pool> = Vec::new();
        let mut first = 0;
        for c in configs {
            if pools.iter().any(|p| p.config.name == c.name) {
                return Err(PoolError::Duplicate(c.name.clone()));
            }
            c.check(&arena, arena.cells() - first)?;
            let place = c.bind(&arena, first)?;
            pools.push(Pool { place, ..Pool::new(c.clone(), first as u32, arena.marks().cloned()) });
            first += c.frames;
        }
        Ok(Self::with_pools(arena, pools, guarded))
    }

    fn with_pools(arena: Arc<Arena>, pools: Vec<Pool>, guarded: bool) -> Arc<Self> {
        let lines = arena.marks().map_or(0, |marks| marks.lines_shift());
        let used: usize = pools.iter().map(|pool| pool.config.frames).sum();
        let left = arena.cells() - used;
        let spare = if left > 0 { vec![(used, left)] } else { vec![] };
        let changing = Changing { pools: pools.into_iter().map(Arc::new).collect(), gone: vec![], spare };
        Arc::new(Self {
            guard: guarded.then(|| Guard::new(arena.cells() << lines)),
            units: AtomicU32::new((used << lines) as u32),
            version: AtomicU32::new(1),
            changing: Mutex::new(changing),
            arena,
        })
    }

    /// Creates a set of one pool of `cells` cells with a policy implemented by the caller.
    ///
    /// # Errors
    /// As for [`PoolSet::new`]; [`PoolError::Packed`] if the arena is packed.
    pub fn with_policy(
        arena: Arc<Arena>,
        name: &str,
        cells: usize,
        policy: Box<dyn Policy>,
    ) -> Result<Arc<Self>, PoolError> {
        // (Reported as the nearest built-in kind: single cells without a cache.)
        let config = PoolConfig::stack(name, cells);
        config.check(&arena, arena.cells())?;
        let pool = Pool::with_backend(config, 0, None, Backend::Custom(Custom::new(policy, cells)));
        Ok(Self::with_pools(arena, vec![pool], cfg!(debug_assertions)))
    }

    fn changing(&self) -> std::sync::MutexGuard<'_, Changing> {
        lock(&self.changing)
    }

    fn set_pools(&self, changing: &mut Changing, pools: Vec<Arc<Pool>>) {
        changing.pools = pools.into();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Creates one more pool from spare cells.
    ///
    /// # Errors
    /// As for [`PoolSet::new`]; [`PoolError::Unwatched`] for a pool of blocks if the set was created without any: cells
    /// in use have not been tracked from the start.
    pub fn add(&self, config: PoolConfig) -> Result<Arc<Pool>, PoolError> {
        let mut changing = self.changing();
        changing.reclaim_removed();
        if changing.pools.iter().any(|pool| pool.config.name == config.name) {
            return Err(PoolError::Duplicate(config.name));
        }
        if self.guard.is_none() && config.kind.blocks() {
            return Err(PoolError::Unwatched { name: config.name, kind: config.kind });
        }
        let most = changing.room();
        config.check(&self.arena, most)?;
        let first = changing.carve(config.frames).unwrap_or_default();
        let place = match config.bind(&self.arena, first) {
            Ok(place) => place,
            Err(why) => {
                changing.give_back(first, config.frames);
                return Err(why);
            }
        };
        let pool = Arc::new(Pool { place, ..Pool::new(config, first as u32, self.arena.marks().cloned()) });
        let (start, units) = pool.range();
        self.units.fetch_max(start + units, Ordering::Relaxed);
        let pools = changing.pools.iter().cloned().chain([pool.clone()]).collect();
        self.set_pools(&mut changing, pools);
        Ok(pool)
    }

    /// Marks the pool for removal. [`PoolSet::collect`] removes it once its takers use another pool
    /// ([`crate::Buffers::take_from`]) and all of its frames are back.
    pub fn drain(&self, pool: &Pool) {
        let changing = self.changing();
        pool.drains.store(true, Ordering::Release);
        drop(changing);
        // Makes every handle return its cached cells of the pool.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Removes pools that have drained. Returns whether there were any. Their cells become spare once every
    /// [`crate::Buffers`] has updated its handles ([`crate::Buffers::refresh`]).
    pub fn collect(&self) -> bool {
        let mut changing = self.changing();
        changing.reclaim_removed();
        let (gone, left): (Vec<_>, Vec<_>) = changing.pools.iter().cloned().partition(|pool| pool.drained());
        let some = !gone.is_empty();
        if some {
            changing.gone.extend(gone);
            self.set_pools(&mut changing, left);
        }
        some
    }

    /// Returns the number of cells that belong to no pool.
    pub fn spare(&self) -> usize {
        let mut changing = self.changing();
        changing.reclaim_removed();
        changing.spare.iter().map(|(_, n)| n).sum()
    }

    /// Returns the largest number of frames that a new pool can have.
    pub fn room(&self) -> usize {
        let mut changing = self.changing();
        changing.reclaim_removed();
        changing.room()
    }

    /// Returns the current pools and the version of the list.
    pub(crate) fn current(&self) -> (u32, Arc<[Arc<Pool>]>) {
        let changing = self.changing();
        (self.version.load(Ordering::Acquire), changing.pools.clone())
    }

    #[inline]
    pub(crate) fn version(&self) -> u32 {
        // Relaxed is enough: a cell of a new pool was passed on by a thread that already knew the pool.
        self.version.load(Ordering::Relaxed)
    }

    /// Records `cells` as in use.
    #[inline]
    pub(crate) fn taken(&self, cells: &[u32]) {
        if let Some(guard) = &self.guard {
            guard.take(cells);
        }
    }

    /// Records `cells`, at most a batch, as returned. Moves the valid ones to the front, in order, and returns how many
    /// there are.
    #[inline]
    pub(crate) fn given(&self, cells: &mut [u32]) -> usize {
        match &self.guard {
            Some(guard) => guard.give(cells),
            // (The maximum vectorises; a search for the first cell out of range would not.)
            None if cells.iter().fold(0, |most, c| most.max(*c)) < self.units.load(Ordering::Relaxed) => cells.len(),
            None => self.own(cells),
        }
    }

    #[cold]
    fn own(&self, cells: &mut [u32]) -> usize {
        let (mut kept, units) = (0, self.units.load(Ordering::Relaxed));
        for i in 0..cells.len() {
            if cells[i] < units {
                cells[kept] = cells[i];
                kept += 1;
            }
        }
        kept
    }

    /// Samples the number of frames in use, for [`PoolStats::normal`] and [`PoolStats::peak`]. Call it periodically.
    pub fn sample_occupancy(&self) {
        for pool in self.pools().iter() {
            let in_use = pool.in_use();
            lock(&pool.occupancy).add(in_use);
        }
    }

    /// Returns the arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the current pools: first those configured at the start, in order, then those added.
    pub fn pools(&self) -> Arc<[Arc<Pool>]> {
        self.changing().pools.clone()
    }

    /// Counts every cell, given the number that ports, queues and workers report as held. Exact only while they are
    /// stopped.
    pub fn audit(&self, held: usize) -> Audit {
        let stats: Vec<_> = self.pools().iter().map(|pool| pool.stats()).collect();
        let sum = |f: fn(&PoolStats) -> usize| stats.iter().map(f).sum::<usize>();
        let (cells, free, cached, parked) = (sum(|s| s.frames), sum(|s| s.free), sum(|s| s.cached), sum(|s| s.parked));
        let missing = match self.arena.marks() {
            None => cells as i64 - (free + cached + parked + held) as i64,
            // A cell can hold several packets: count packets instead.
            Some(_) => sum(|s| s.in_use) as i64 - held as i64,
        };
        Audit { cells, free, cached, parked, held, missing }
    }

    /// Checks that every free cell is in its own pool exactly once. Returns the missing cells, and those found twice or
    /// in a wrong pool. It empties the pools and fills them again, so call it only after all workers have stopped.
    pub fn verify(&self) -> (Vec<u32>, Vec<u32>) {
        let (mut missing, mut wrong) = (vec![], vec![]);
        let marks = self.arena.marks();
        let is_out = |unit: &u32| {
            // A slot is identified by its first line.
            let known = marks.map_or(*unit, |marks| marks.around(u64::from(*unit)).0 as u32);
            self.guard.as_ref().is_some_and(|guard| guard.is_out(known))
        };
        for pool in self.pools().iter() {
            let mut seen = vec![false; pool.config.frames << pool.lines()];
            for unit in pool.sweep() {
                match seen.get_mut(unit.wrapping_sub(pool.first) as usize) {
                    Some(seen) if !*seen && !is_out(&unit) => *seen = true,
                    _ => wrong.push(unit >> pool.lines()),
                }
            }
            let unseen = (pool.first..).zip(&seen).filter(|(_, s)| !**s).map(|(c, _)| c);
            // Cells of a block that is not free are only counted, not listed.
            let parked = match &pool.backend {
                Backend::Blocks(b) => b.parked(),
                _ => 0,
            };
            let (out, back): (Vec<u32>, Vec<u32>) = unseen.partition(is_out);
            let lost = if back.len() == parked { vec![] } else { back };
            missing.extend(out.into_iter().chain(lost).map(|unit| unit >> pool.lines()));
        }
        if marks.is_some() {
            [&mut missing, &mut wrong].into_iter().for_each(Vec::dedup);
        }
        (missing, wrong)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::tests::threads::take;
    use crate::{ArenaConfig, Batch, Buffers, Pages};

    fn config(name: &str, kind: PoolKind) -> PoolConfig {
        let cache = if kind == PoolKind::Ring { 32 } else { 0 };
        PoolConfig { cache, block: 64, ..PoolConfig::new(name, kind, 256) }
    }

    fn with_spare(kind: PoolKind, cells: usize) -> Arc<PoolSet> {
        let packed = kind.packed();
        let arena = Arena::new(ArenaConfig { cells, pages: Pages::Small, packed, ..Default::default() }).unwrap();
        PoolSet::new(arena, &[config("first", kind)]).unwrap()
    }

    fn names(pools: &PoolSet) -> Vec<String> {
        pools.pools().iter().map(|pool| pool.config.name.clone()).collect()
    }

    #[test]
    fn a_pool_near_a_cpu_says_where_it_is() {
        let arena = Arena::new(ArenaConfig { cells: 128, pages: Pages::Small, ..Default::default() }).unwrap();
        let near = |name: &str| PoolConfig { cpu: Some(0), ..PoolConfig::stack(name, 32) };
        let pools = PoolSet::new(arena, &[near("a"), PoolConfig::stack("b", 32)]).unwrap();
        let added = pools.add(near("c")).unwrap();
        let places: Vec<_> = pools.pools().iter().map(|pool| pool.place()).collect();
        assert_eq!(places, [added.place(), None, added.place()]);
        assert!(added.place().is_some());
        assert_eq!((pools.spare(), pools.room()), (32, 32));
        // Refused: its cells are still spare.
        assert!(pools.add(PoolConfig { cpu: Some(9999), ..PoolConfig::stack("d", 32) }).is_err());
        assert_eq!(pools.spare(), 32);
    }

    #[test]
    fn a_pool_goes_when_its_last_frame_is_back_and_the_next_has_its_cells() {
        for kind in PoolKind::ALL {
            let pools = with_spare(kind, 512);
            let (mut a, mut b) = (Buffers::attach(&pools, 0), Buffers::attach(&pools, 0));
            let (mut of_first, _) = take(&mut a, 40);
            let (mut some, _) = take(&mut b, 3);
            b.free(&mut some);
            let first = pools.pools()[0].clone();
            let second = pools.add(config("second", kind)).unwrap();
            assert_eq!((pools.spare(), names(&pools)), (0, vec!["first".into(), "second".into()]));
            assert!(matches!(pools.add(config("third", kind)), Err(PoolError::NoCells { left: 0, .. })), "{kind}");
            assert!(matches!(pools.add(config("second", kind)), Err(PoolError::Duplicate(_))), "{kind}");
            a.take_from(&second);
            pools.drain(&first);
            let (mut of_second, cells) = take(&mut a, 40);
            assert!(cells.iter().all(|cell| (256..512).contains(cell)), "{kind}: {cells:?}");
            // `b` still takes from the first pool, and does not know the second, whose frames it frees.
            b.free(&mut of_second);
            assert_eq!((pools.collect(), first.stats().draining), (false, true), "{kind}");
            b.take_from(&second);
            a.refresh();
            assert!(!pools.collect(), "{kind}: 40 frames are out");
            assert_eq!((first.stats().in_use, first.stats().cached), (40, 0), "{kind}");
            b.free(&mut of_first);
            assert!(pools.collect(), "{kind}: {:?}", first.stats());
            assert_eq!(names(&pools), ["second"]);
            drop(first);
            // A worker with outdated handles could give the cells to the wrong pool.
            assert_eq!(pools.spare(), 0, "{kind}");
            [&mut a, &mut b].into_iter().for_each(Buffers::refresh);
            assert_eq!(pools.spare(), 256, "{kind}");
            let third = pools.add(config("third", kind)).unwrap();
            b.take_from(&third);
            let (mut of_third, cells) = take(&mut b, 40);
            assert!(cells.iter().all(|cell| *cell < 256), "{kind}: {cells:?}");
            a.free(&mut of_third);
            assert_eq!(pools.audit(0).missing, 0, "{kind}");
            drop((a, b));
            assert_eq!(pools.verify(), (vec![], vec![]), "{kind}");
        }
    }

    #[test]
    fn spare_cells_join_again() {
        let pools = with_spare(PoolKind::Stack, 4 * 256);
        let more: Vec<_> = ["b", "c", "d"].map(|name| pools.add(config(name, PoolKind::Stack)).unwrap()).into();
        for at in [0, 2, 1] {
            pools.drain(&more[at]);
        }
        drop(more);
        assert!(pools.collect() && pools.spare() == 3 * 256);
        let all = PoolConfig::stack("all", 3 * 256);
        assert!(pools.add(PoolConfig::stack("more", 3 * 256 + 1)).is_err());
        assert_eq!(pools.add(all).unwrap().free(), 3 * 256);
    }

    #[test]
    fn pools_come_and_go_under_load() {
        // Under Miri, which is some hundred times slower, the threads meet at other points of each round.
        const ROUNDS: usize = if cfg!(miri) { 3 } else { 50 };
        for kind in PoolKind::ALL {
            let pools = with_spare(kind, 768);
            pools.add(config("other", kind)).unwrap();
            let (to_b, from_a) = std::sync::mpsc::sync_channel::<Batch>(4);
            let done = AtomicBool::new(false);
            let (tell, told) = std::sync::mpsc::channel::<Arc<Pool>>();
            std::thread::scope(|threads| {
                let (pools, done) = (&pools, &done);
                let (mut bufs, mut others) = (Buffers::attach(pools, 0), Buffers::attach(pools, 1));
                threads.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        told.try_iter().for_each(|pool| bufs.take_from(&pool));
                        bufs.refresh();
                        let mut batch = Batch::new();
                        if bufs.alloc(&mut batch, 16) == 0 {
                            std::thread::yield_now();
                        }
                        to_b.send(batch).unwrap();
                    }
                });
                // This worker is not notified: it learns of new pools from the frames it frees.
                threads.spawn(move || {
                    from_a.iter().for_each(|mut batch| others.free(&mut batch));
                });
                let mut current = pools.pools()[0].clone();
                for n in 0..ROUNDS {
                    let next = loop {
                        pools.collect();
                        match pools.add(config(&format!("next{n}"), kind)) {
                            Ok(pool) => break pool,
                            Err(PoolError::NoCells { .. }) => std::thread::yield_now(),
                            Err(e) => panic!("{e}"),
                        }
                    };
                    tell.send(next.clone()).unwrap();
                    let before = std::mem::replace(&mut current, next);
                    pools.drain(&before);
                }
                done.store(true, Ordering::Relaxed);
            });
            pools.collect();
            assert_eq!(names(&pools), ["other".to_owned(), format!("next{}", ROUNDS - 1)], "{kind}");
            assert_eq!((pools.audit(0).missing, pools.verify()), (0, (vec![], vec![])), "{kind}");
        }
    }
}
