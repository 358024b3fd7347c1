//! One worker's access to the pools.

use crate::marks::LINE_SHIFT;
use crate::pool::{HandleStats, Pool};
use crate::{Arena, BATCH, Batch, DATA_OFFSET, Frame, PoolSet, RawFrame};
use std::sync::Arc;

/// Bytes reserved behind a packet of a `typewriter` pool, for a frame check sequence.
const TAIL: usize = 4;

/// One worker's view of one pool: its cache and its counters.
struct Handle {
    pool: Arc<Pool>,
    /// First unit of the pool, and number of units.
    range: (u32, u32),
    /// LIFO cache of free units; the end holds those most recently used.
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

    /// Disables the cache and returns its contents to the pool: the pool is draining, or this handle is dropped.
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
        // Units from the pool are cold: they go below the warm ones.
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
            // Return the cold end; the cache keeps the most recently freed units.
            let surplus = self.cache.len() - self.limit;
            self.pool.push(&self.cache[..surplus]);
            self.cache.drain(..surplus);
        }
        self.stats.cached.set(self.cache.len() as u64);
    }
}

/// One worker's access to all pools of an arena. It allocates from one pool, and frees each frame to the pool it came
/// from.
///
/// # Thread-safety
/// Used by one thread at a time; any number of instances share the [`PoolSet`].
pub struct Buffers {
    pools: Arc<PoolSet>,
    /// Version of the pool list that `handles` reflects.
    version: u32,
    handles: Vec<Handle>,
    own: usize,
}

impl Buffers {
    /// Creates a worker's access that allocates from the pool with index `own`.
    ///
    /// # Panics
    /// If there is no such pool.
    pub fn attach(pools: &Arc<PoolSet>, own: usize) -> Self {
        let mut bufs = Self { pools: pools.clone(), version: 0, handles: vec![], own };
        bufs.refresh();
        assert!(own < bufs.handles.len(), "no pool {own}");
        bufs.handles[own].pool.taker_comes();
        bufs
    }

    /// Allocates from `pool` from now on. Does nothing if the pool has already been removed.
    pub fn take_from(&mut self, pool: &Arc<Pool>) {
        self.refresh();
        let known = self.handles.iter().position(|handle| Arc::ptr_eq(&handle.pool, pool));
        let Some(own) = known else { return };
        // Register with the new pool before leaving the old one, so that neither lacks a taker while it is allocated
        // from.
        pool.taker_comes();
        let before = &mut self.handles[self.own];
        before.pool.close(&before.stats);
        before.pool.taker_goes();
        self.own = own;
    }

    /// Updates the handles to the current list of pools. Freeing does this by itself; call it on a thread that frees
    /// nothing for long, because its cache would otherwise hold on to frames of a draining pool.
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
        // Handles that remain belong to removed pools: no taker, all frames returned.
        before.iter_mut().for_each(Handle::retire);
        if let Some(own) = own {
            self.own = self.handles.iter().position(|handle| Arc::ptr_eq(&handle.pool, &own)).unwrap_or(0);
        }
        self.version = version;
    }

    /// Returns the arena.
    #[inline]
    pub fn arena(&self) -> &Arc<Arena> {
        self.pools.arena()
    }

    /// Returns the pool that it allocates from.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.handles[self.own].pool
    }

    /// Returns the pools.
    pub fn pools(&self) -> &Arc<PoolSet> {
        &self.pools
    }

    /// Appends up to `n` empty frames to `out`, as many as fit and are free. Returns how many. A shortage of free
    /// frames counts as one exhaustion.
    #[inline]
    pub fn alloc(&mut self, out: &mut Batch, n: usize) -> usize {
        let mut cells = [0u32; BATCH];
        let n = n.min(out.room());
        let n = self.handles[self.own].take(&mut cells[..n]);
        self.pools.taken(&cells[..n]);
        let arena = self.pools.arena();
        // SAFETY: a pool hands out each of its cells to one taker until it is returned.
        out.extend_from(&cells[..n], |cell| unsafe { arena.frame_of(cell) });
        n
    }

    /// Appends one empty frame for a packet of each length in `lens` (bytes), as many as fit and are free. Returns how
    /// many. A `typewriter` pool allocates no more room than each packet needs, any other pool a whole cell. A packet
    /// longer than a cell gets a whole cell, into which it will not fit.
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
            // (Longer requests are clamped to a whole cell.)
            *slot = ((DATA_OFFSET + TAIL) as u32).saturating_add(*len).div_ceil(1 << LINE_SHIFT);
        }
        let handle = &self.handles[self.own];
        let Some(got) = handle.pool.pop_slots(&handle.stats.open, slots) else { return 0 };
        handle.stats.allocated.add(got as u64);
        if got < n {
            handle.stats.exhausted.add(1);
        }
        self.pools.taken(&slots[..got]);
        // SAFETY: as in `alloc`; a slot has room for metadata, headroom and the packet.
        out.extend_from(&slots[..got], |slot| unsafe { arena.frame_of(slot) });
        got
    }

    /// Returns whether [`Buffers::alloc_for`] allocates by packet length.
    #[inline]
    pub fn packed(&self) -> bool {
        self.arena().marks().is_some()
    }

    /// Allocates one empty frame. For slow paths only: the hot path allocates bursts.
    pub fn alloc_one(&mut self) -> Option<Frame> {
        let mut one = Batch::new();
        self.alloc(&mut one, 1);
        one.pop()
    }

    /// Frees all frames of `batch`, each to its pool.
    #[inline]
    pub fn free(&mut self, batch: &mut Batch) {
        let mut cells = [0u32; BATCH];
        let n = batch.len();
        self.pools.arena().units_of(batch.drain().map(|frame| frame.addr()), &mut cells[..n]);
        self.give(&mut cells[..n]);
    }

    /// Allocates cells for a driver that does not use frames, filling `cells` from the front. Returns how many.
    /// Ownership passes to the caller, as with [`Frame::into_raw`]. Not for packed arenas.
    #[inline]
    pub fn alloc_cells(&mut self, cells: &mut [u32]) -> usize {
        debug_assert!(!self.packed(), "a cell may hold several packets");
        let n = self.handles[self.own].take(cells);
        self.pools.taken(&cells[..n]);
        n
    }

    /// Frees cells that a driver owned.
    ///
    /// # Safety
    /// Each cell was passed out by [`Buffers::alloc_cells`] or with its frame by [`Frame::into_raw`], and is freed
    /// once.
    #[inline]
    pub unsafe fn free_cells(&mut self, cells: &mut [u32]) {
        self.give(cells);
    }

    /// Frees one frame. For slow paths only.
    pub fn free_one(&mut self, frame: Frame) {
        let cell = self.pools.arena().unit_of(frame.addr());
        self.give(&mut [cell]);
    }

    /// Frees frames that the kernel or a device returned as descriptors.
    ///
    /// # Safety
    /// Each address lies in a cell whose frame was passed out by [`Frame::into_raw`] and is freed once; in a packed
    /// arena, it lies behind the slot's metadata.
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
