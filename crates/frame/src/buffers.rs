//! One worker's access to the pools.

use crate::marks::LINE_SHIFT;
use crate::pool::{HandleStats, Pool, PoolKind};
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
    /// Free units in a device's own cache.
    lent: usize,
    stats: Arc<HandleStats>,
}

impl Handle {
    fn new(pool: Arc<Pool>) -> Self {
        let limit = pool.config().cache;
        let cache = Vec::with_capacity(limit * 3 / 2 + BATCH);
        Self { range: pool.range(), cache, limit, lent: 0, stats: pool.register(), pool }
    }

    /// Returns how many free units a device may keep: none if that would change the order in which the pool hands them
    /// out, or be a large part of it.
    fn lends(&self) -> usize {
        let config = self.pool.config();
        let lifo = config.kind == PoolKind::Stack || self.limit > 0;
        let few = config.frames < 16 * LENT;
        if self.pool.drains() || self.pool.custom() || !lifo || few { 0 } else { LENT }
    }

    #[inline]
    fn lend(&mut self, units: usize) {
        self.lent = units;
        self.count_cached();
    }

    #[inline]
    fn count_cached(&self) {
        self.stats.cached.set((self.cache.len() + self.lent) as u64);
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
        self.count_cached();
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
            self.count_cached();
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
        self.count_cached();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.pool.unregister(&self.stats);
    }
}

/// Free cells that a device may keep in its own cache: two bursts, so that one is there to receive into when one has
/// been sent.
const LENT: usize = 2 * BATCH;

/// Cells in a device's own cache ([`Buffers::lent`]).
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// First cell of the pool whose cells may be there, and number of its cells.
    pub cells: (u32, u32),
    /// Number of cells that may be there.
    pub most: usize,
    /// Number of cells that are there.
    pub now: usize,
    /// Set if cells of other pools exist.
    pub mixed: bool,
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
    /// Most units that a device may keep.
    lends: usize,
    /// Set if a device may keep units of another pool, too.
    moved: bool,
}

impl Buffers {
    /// Creates a worker's access that allocates from the pool with index `own`.
    ///
    /// # Panics
    /// If there is no such pool.
    pub fn attach(pools: &Arc<PoolSet>, own: usize) -> Self {
        let mut bufs = Self { pools: pools.clone(), version: 0, handles: vec![], own, lends: 0, moved: false };
        bufs.refresh();
        assert!(own < bufs.handles.len(), "no pool {own}");
        bufs.handles[own].pool.taker_comes();
        bufs.lends = bufs.handles[own].lends();
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
        self.lends = self.handles[own].lends();
        self.moved = true;
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
            self.lends = self.handles[self.own].lends();
            self.moved = true;
        }
        self.version = version;
    }

    /// Updates the handles if the list of pools has changed.
    #[inline]
    pub fn follow(&mut self) {
        if self.version != self.pools.version() {
            self.refresh();
        }
    }

    /// Returns how many free cells a device may keep in its own cache on this thread, between its calls, and how many
    /// it keeps.
    #[inline]
    pub fn lent(&self) -> Lent {
        let own = &self.handles[self.own];
        let now = if self.moved { self.handles.iter().map(|handle| handle.lent).sum() } else { own.lent };
        Lent { cells: own.range, most: self.lends, now, mixed: self.handles.len() > 1 }
    }

    /// Counts `cells` cells of the pool that this worker allocates from as cached by a device, and no cells of other
    /// pools.
    #[inline]
    pub fn lend(&mut self, cells: usize) {
        if std::mem::take(&mut self.moved) {
            self.handles.iter_mut().for_each(|handle| handle.lend(0));
        }
        self.handles[self.own].lend(cells);
    }

    /// Returns whether a device has to give cells back because the pools have changed.
    #[inline]
    pub fn recalls(&self) -> bool {
        let changed = self.moved || self.version != self.pools.version();
        self.handles[self.own].lent > self.lends || changed && self.handles.iter().any(|handle| handle.lent > 0)
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

    /// Frees cells that the kernel or a driver owned. Not for packed arenas.
    ///
    /// # Safety
    /// Each cell was passed out, by [`Buffers::alloc_cells`] or with its frame by [`Frame::into_raw`], and is freed
    /// only once.
    #[inline]
    pub unsafe fn free_cells(&mut self, cells: &mut [u32]) {
        // SAFETY: whoever allocates a cell next gets its only frame. By contract no one else holds one.
        cells.chunks_mut(BATCH).for_each(|cells| self.give(cells));
    }

    /// Frees one frame. For slow paths only.
    pub fn free_one(&mut self, frame: Frame) {
        let cell = self.pools.arena().unit_of(frame.addr());
        self.give(&mut [cell]);
    }

    /// Frees frames that the kernel or a device returned as descriptors.
    ///
    /// # Safety
    /// Each address is that of the data of a frame that was passed out by [`Frame::into_raw`], and the frame's cell is
    /// freed only once.
    #[inline]
    pub unsafe fn free_raw(&mut self, frames: impl Iterator<Item = RawFrame>) {
        // SAFETY: as for `free_cells`.
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
        self.follow();
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
        // (Cells that a device still has are given back when its thread ends.)
        self.handles.iter_mut().for_each(|handle| handle.lent = 0);
        self.handles.iter_mut().for_each(Handle::retire);
        self.handles[self.own].pool.taker_goes();
    }
}
