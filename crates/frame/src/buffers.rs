//! What one worker uses of the pools.

use crate::marks::LINE_SHIFT;
use crate::pool::{HandleStats, Pool};
use crate::{Arena, BATCH, Batch, DATA_OFFSET, Frame, PoolSet, RawFrame};
use std::sync::Arc;

/// Bytes behind a packet of a `typewriter` pool: for a check sequence.
const TAIL: usize = 4;

/// One worker's side of one pool: its cache and its counters.
struct Handle {
    pool: Arc<Pool>,
    /// The pool's first unit, and how many it has.
    range: (u32, u32),
    /// LIFO: the end is the warm side.
    cache: Vec<u32>,
    limit: usize,
    stats: Arc<HandleStats>,
}

impl Handle {
    fn new(pool: Arc<Pool>) -> Self {
        let limit = pool.config().cache;
        let cache = Vec::with_capacity(limit * 3 / 2 + BATCH);
        Self { range: pool.range(), cache, limit, stats: pool.register(), pool }
    }

    #[inline]
    fn owns(&self, unit: u32) -> bool {
        unit.wrapping_sub(self.range.0) < self.range.1
    }

    /// Keeps nothing for itself from now on: the pool drains, or this handle goes.
    fn retire(&mut self) {
        self.limit = 0;
        self.pool.push(&self.cache);
        self.cache.clear();
        self.stats.cached.set(0);
        self.pool.close(&self.stats);
    }

    /// Fills `out` as far as possible, from the end of the cache and then from the pool.
    #[inline]
    fn take(&mut self, out: &mut [u32]) -> usize {
        let n = if self.limit == 0 {
            self.pool.pop(&self.stats.open, out)
        } else {
            if self.cache.len() < out.len() {
                self.refill(out.len());
            }
            let n = out.len().min(self.cache.len());
            let from = self.cache.len() - n;
            out[..n].copy_from_slice(&self.cache[from..]);
            self.cache.truncate(from);
            self.stats.cached.set(from as u64);
            n
        };
        self.stats.allocated.add(n as u64);
        if n < out.len() {
            self.stats.exhausted.add(1);
        }
        n
    }

    #[cold]
    fn refill(&mut self, need: usize) {
        let have = self.cache.len();
        let want = self.limit.max(need) + need - have;
        self.cache.resize(have + want, 0);
        // Cold cells go below the warm ones.
        self.cache.copy_within(..have, want);
        let got = self.pool.pop(&self.stats.open, &mut self.cache[..want]);
        self.cache.drain(got..want);
    }

    #[inline]
    fn give(&mut self, cells: &[u32]) {
        self.stats.freed.add(cells.len() as u64);
        if self.limit == 0 {
            return self.pool.push(cells);
        }
        self.cache.extend_from_slice(cells);
        if self.cache.len() > self.limit * 3 / 2 {
            // The cold end goes back; the cache keeps what was freed last.
            let surplus = self.cache.len() - self.limit;
            self.pool.push(&self.cache[..surplus]);
            self.cache.drain(..surplus);
        }
        self.stats.cached.set(self.cache.len() as u64);
    }
}

/// One worker's access to all pools of an arena: takes from its own pool, gives back to whichever pool a frame
/// came from.
///
/// # Thread-safety
/// Belongs to one thread; any number of them share the [`PoolSet`].
pub struct Buffers {
    pools: Arc<PoolSet>,
    /// The version of the pools that `handles` are for.
    version: u32,
    handles: Vec<Handle>,
    own: usize,
}

impl Buffers {
    /// A worker's access, taking from the pool with index `own`.
    ///
    /// # Panics
    /// When there is no such pool.
    pub fn attach(pools: &Arc<PoolSet>, own: usize) -> Self {
        let mut bufs = Self { pools: pools.clone(), version: 0, handles: vec![], own };
        bufs.refresh();
        assert!(own < bufs.handles.len(), "no pool {own}");
        bufs.handles[own].pool.taker_comes();
        bufs
    }

    /// Takes from this pool from now on; one that has gone already changes nothing.
    pub fn take_from(&mut self, pool: &Arc<Pool>) {
        self.refresh();
        let known = self.handles.iter().position(|handle| Arc::ptr_eq(&handle.pool, pool));
        let Some(own) = known else { return };
        // A taker of the new one before it is none of the old one: neither is without while it is taken from.
        pool.taker_comes();
        let before = &mut self.handles[self.own];
        before.pool.close(&before.stats);
        before.pool.taker_goes();
        self.own = own;
    }

    /// Takes in which pools there are now. Whoever takes and gives back does so by itself; this is for those who do
    /// neither for long, and keep what they have cached of a pool that drains.
    #[cold]
    pub fn refresh(&mut self) {
        let (version, pools) = self.pools.current();
        let mut before = std::mem::take(&mut self.handles);
        let own = before.get(self.own).map(|handle| handle.pool.clone());
        for pool in pools.iter() {
            let known = before.iter().position(|handle| Arc::ptr_eq(&handle.pool, pool));
            let mut handle = known.map_or_else(|| Handle::new(pool.clone()), |at| before.swap_remove(at));
            if pool.drains() {
                handle.retire();
            }
            self.handles.push(handle);
        }
        // A pool goes when nobody takes from it, and all is back.
        before.iter_mut().for_each(Handle::retire);
        if let Some(own) = own {
            self.own = self.handles.iter().position(|handle| Arc::ptr_eq(&handle.pool, &own)).unwrap_or(0);
        }
        self.version = version;
    }

    /// The arena.
    #[inline]
    pub fn arena(&self) -> &Arc<Arena> {
        self.pools.arena()
    }

    /// The pools.
    pub fn pools(&self) -> &Arc<PoolSet> {
        &self.pools
    }

    /// Appends up to `n` empty frames to `out`, as many as fit and are free; returns how many. Fewer than asked for
    /// because none are free is counted as an exhaustion.
    #[inline]
    pub fn alloc(&mut self, out: &mut Batch, n: usize) -> usize {
        let mut cells = [0u32; BATCH];
        let n = n.min(out.room());
        let n = self.handles[self.own].take(&mut cells[..n]);
        self.pools.taken(&cells[..n]);
        let arena = self.pools.arena();
        // SAFETY: a pool hands out each of its cells to one taker until it is given back.
        out.extend_from(&cells[..n], |cell| unsafe { arena.frame_of(cell) });
        n
    }

    /// Appends an empty frame for a packet of each of `lens` bytes, as many as fit and are free; returns how many. Of a
    /// `typewriter` pool each takes no more room than its packet needs, of any other a cell. A packet longer than a cell
    /// gets a whole one, and will not fit it.
    #[inline]
    pub fn alloc_for(&mut self, out: &mut Batch, lens: &[u32]) -> usize {
        let arena = self.pools.arena();
        if arena.marks().is_none() {
            return self.alloc(out, lens.len());
        }
        let mut slots = [0u32; BATCH];
        let n = lens.len().min(out.room());
        let slots = &mut slots[..n];
        for (slot, len) in slots.iter_mut().zip(lens) {
            // (Whole cells are the most.)
            *slot = ((DATA_OFFSET + TAIL) as u32).saturating_add(*len).div_ceil(1 << LINE_SHIFT);
        }
        let handle = &self.handles[self.own];
        let Some(got) = handle.pool.pop_slots(&handle.stats.open, slots) else { return 0 };
        handle.stats.allocated.add(got as u64);
        if got < n {
            handle.stats.exhausted.add(1);
        }
        self.pools.taken(&slots[..got]);
        // SAFETY: as above; a slot has room for metadata, headroom and the packet.
        out.extend_from(&slots[..got], |slot| unsafe { arena.frame_of(slot) });
        got
    }

    /// Whether [`Buffers::alloc_for`] gives room by length.
    #[inline]
    pub fn packed(&self) -> bool {
        self.arena().marks().is_some()
    }

    /// One empty frame. Slow paths only: the hot path takes bursts.
    pub fn alloc_one(&mut self) -> Option<Frame> {
        let mut one = Batch::new();
        self.alloc(&mut one, 1);
        one.pop()
    }

    /// Gives all frames of `batch` back, each to its pool.
    #[inline]
    pub fn free(&mut self, batch: &mut Batch) {
        let mut cells = [0u32; BATCH];
        let n = batch.len();
        let arena = self.pools.arena();
        for (cell, frame) in cells.iter_mut().zip(batch.drain()) {
            *cell = arena.unit_of(frame.addr());
        }
        self.give(&mut cells[..n]);
    }

    /// Takes cells for a driver that knows no frames, from the front of `cells`; returns how many there were. They are
    /// given away, as by [`Frame::into_raw`]. For an arena that is not packed.
    #[inline]
    pub fn alloc_cells(&mut self, cells: &mut [u32]) -> usize {
        debug_assert!(!self.packed(), "a cell may hold several packets");
        let n = self.handles[self.own].take(cells);
        self.pools.taken(&cells[..n]);
        n
    }

    /// Gives back cells that a driver had.
    ///
    /// # Safety
    /// Each was given away, by [`Buffers::alloc_cells`] or with its frame by [`Frame::into_raw`], and has come back once.
    #[inline]
    pub unsafe fn free_cells(&mut self, cells: &mut [u32]) {
        self.give(cells);
    }

    /// Gives one frame back. Slow paths only.
    pub fn free_one(&mut self, frame: Frame) {
        let cell = self.pools.arena().unit_of(frame.addr());
        self.give(&mut [cell]);
    }

    /// Gives back frames that a kernel or a device returned, as descriptors.
    ///
    /// # Safety
    /// Each address lies in a cell whose frame was given away by [`Frame::into_raw`] and has come back once; in a packed
    /// arena, behind its metadata.
    #[inline]
    pub unsafe fn free_raw(&mut self, frames: impl Iterator<Item = RawFrame>) {
        let mut cells = [0u32; BATCH];
        let mut n = 0;
        for raw in frames {
            cells[n] = self.pools.arena().unit_of(raw.addr);
            n += 1;
            if n == BATCH {
                self.give(&mut cells);
                n = 0;
            }
        }
        self.give(&mut cells[..n]);
    }

    #[inline]
    fn give(&mut self, cells: &mut [u32]) {
        if self.version != self.pools.version() {
            self.refresh();
        }
        let good = self.pools.given(cells);
        if good < cells.len() {
            self.handles[self.own].pool.refused(cells.len() - good);
        }
        let cells = &cells[..good];
        if let [handle] = &mut self.handles[..] {
            return handle.give(cells);
        }
        let mut rest = cells;
        while let Some(&first) = rest.first() {
            let Some(handle) = self.handles.iter_mut().find(|handle| handle.owns(first)) else {
                debug_assert!(false, "cell {first} belongs to no pool");
                return;
            };
            let run = rest.iter().take_while(|c| handle.owns(**c)).count();
            handle.give(&rest[..run]);
            rest = &rest[run..];
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.handles.iter_mut().for_each(Handle::retire);
        self.handles[self.own].pool.taker_goes();
    }
}
