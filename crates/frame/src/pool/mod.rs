//! Pools of free cells, by policy.

mod blocks;
mod cells;
mod custom;
mod guard;
mod occupancy;
mod out;
mod ring;
mod set;
mod slots;
mod stack;
#[cfg(test)]
mod tests;

use crate::Arena;
use crate::marks::Marks;
use crate::numa::Place;
pub use blocks::BlockStats;
use blocks::Blocks;
use bywash_sync::facade::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use bywash_sync::{Counter, lock};
pub use cells::CellPool;
use custom::Custom;
pub use custom::Policy;
use occupancy::OccupancySamples;
use ring::Ring;
use serde::{Deserialize, Serialize};
pub use set::{Audit, PoolSet};
use stack::Stack;
use std::sync::{Arc, Mutex};

/// Allocation policy of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum PoolKind {
    /// Last in, first out.
    ///
    /// Shared under a spin lock that is taken once per burst.
    #[default]
    Stack,
    /// First in, first out, behind a cache per worker.
    ///
    /// Shared without a lock; the caches are LIFO.
    Ring,
    /// Blocks of consecutive buffers, one shared by all workers.
    ///
    /// Self-described buffers, the baseline of the TABM paper.
    Sdb,
    /// Blocks of consecutive buffers, one per worker.
    ///
    /// Thread-affine buffer management.
    Tabm,
    /// Like tabm, but each packet takes only the space it needs.
    ///
    /// A cell holds as many packets as fit.
    Typewriter,
}

impl PoolKind {
    /// All policies.
    pub const ALL: [Self; 5] = [Self::Ring, Self::Stack, Self::Sdb, Self::Tabm, Self::Typewriter];

    /// Returns the default cache size in frames: 256 for `ring`, else 0.
    pub fn default_cache(self) -> usize {
        match self {
            Self::Ring => 256,
            _ => 0,
        }
    }

    /// Returns whether the policy hands out and takes back whole blocks.
    pub fn blocks(self) -> bool {
        matches!(self, Self::Sdb | Self::Tabm | Self::Typewriter)
    }

    /// Returns whether a cell holds several packets, so that the arena must be [`crate::ArenaConfig::packed`].
    pub fn packed(self) -> bool {
        self == Self::Typewriter
    }
}

impl std::fmt::Display for PoolKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Stack => "stack",
            Self::Sdb => "sdb",
            Self::Tabm => "tabm",
            Self::Typewriter => "typewriter",
        })
    }
}

/// Configuration of a [`Pool`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Name, shown by `show` and in errors.
    pub name: String,
    /// Allocation policy.
    pub kind: PoolKind,
    /// Frames per worker cache; 0 disables the cache.
    pub cache: usize,
    /// Frames in the pool; cells if the kind is `typewriter`. A multiple of the block size if the kind has blocks.
    pub frames: usize,
    /// Block size in frames (cells for `typewriter`) of `sdb`, `tabm` and `typewriter`: a power of two from 64 to
    /// 65,536.
    pub block: usize,
    /// Order of free blocks: if true, the block freed last is reused first; if false, the one freed first.
    pub lifo: bool,
    /// CPU to whose NUMA node the pool's memory is bound; `None` to leave the memory where it is.
    pub cpu: Option<usize>,
}

/// Default block size in frames: the threshold of the TABM paper.
pub const BLOCK: usize = 1024;

impl PoolConfig {
    /// Creates the configuration of a pool of `kind` with that kind's default cache and blocks.
    pub fn new(name: &str, kind: PoolKind, frames: usize) -> Self {
        let (cache, lifo) = (kind.default_cache(), matches!(kind, PoolKind::Tabm | PoolKind::Typewriter));
        Self { name: name.into(), kind, cache, frames, block: BLOCK, lifo, cpu: None }
    }

    /// Creates the configuration of a `ring` pool with its default cache.
    pub fn ring(name: &str, frames: usize) -> Self {
        Self::new(name, PoolKind::Ring, frames)
    }

    /// Creates the configuration of a `stack` pool, without a cache.
    pub fn stack(name: &str, frames: usize) -> Self {
        Self::new(name, PoolKind::Stack, frames)
    }
}

impl PoolConfig {
    /// Validates against the arena and its `left` unassigned cells.
    fn check(&self, arena: &Arena, left: usize) -> Result<(), PoolError> {
        let name = || self.name.clone();
        if self.kind.packed() != arena.marks().is_some() {
            return Err(PoolError::Packed { name: name(), kind: self.kind });
        }
        if self.frames == 0 {
            return Err(PoolError::Empty(name()));
        }
        if self.cache > self.frames / 2 {
            return Err(PoolError::Cache { name: name(), cache: self.cache, frames: self.frames });
        }
        if self.kind.blocks() {
            if self.cache > 0 {
                return Err(PoolError::BlockCache { name: name(), kind: self.kind });
            }
            if !blocks::SIZES.contains(&self.block) || !self.block.is_power_of_two() {
                return Err(PoolError::Block { name: name(), block: self.block });
            }
            if !self.frames.is_multiple_of(self.block) || self.frames < 2 * self.block {
                return Err(PoolError::Blocks { name: name(), frames: self.frames, block: self.block });
            }
        }
        if self.frames > left {
            return Err(PoolError::NoCells { name: name(), frames: self.frames, left });
        }
        Ok(())
    }

    /// Binds the memory of the pool's cells, from `first` on, to the node of its CPU. Returns the place; `None` if the
    /// pool has no CPU.
    fn bind(&self, arena: &Arena, first: usize) -> Result<Option<Place>, PoolError> {
        let Some(cpu) = self.cpu else { return Ok(None) };
        let name = || self.name.clone();
        let place = Place::of(cpu).ok_or_else(|| PoolError::Cpu { name: name(), cpu })?;
        if let Place::Node(node) = place {
            let bound = arena.bind(first, self.frames, node);
            bound.map_err(|source| PoolError::Bind { name: name(), cpu, place, source })?;
        }
        Ok(Some(place))
    }
}

/// Error from creating a pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Pool without frames.
    #[error("pool `{0}` has no frames")]
    Empty(String),
    /// More cells requested than the arena has unassigned.
    #[error("pool `{name}` needs {frames} cells, but the arena has only {left} unassigned")]
    NoCells {
        /// Name of the pool.
        name: String,
        /// Cells requested.
        frames: usize,
        /// Unassigned cells of the arena.
        left: usize,
    },
    /// Cache so large that one worker could hold the whole pool and starve the others.
    #[error("pool `{name}`: a cache of {cache} frames per worker is too large for {frames} frames (at most half)")]
    Cache {
        /// Name of the pool.
        name: String,
        /// Requested cache size in frames.
        cache: usize,
        /// Frames in the pool.
        frames: usize,
    },
    /// Invalid block size.
    #[error("pool `{name}`: invalid block size {block}: must be a power of two from {least} to {most}", least = blocks::SIZES.start(), most = blocks::SIZES.end())]
    Block {
        /// Name of the pool.
        name: String,
        /// Requested block size.
        block: usize,
    },
    /// Pool size that is not a multiple of the block size, or is a single block, which could not be reused before its
    /// last cell is returned.
    #[error("pool `{name}`: invalid size of {frames} frames: must be two or more whole blocks of {block}")]
    Blocks {
        /// Name of the pool.
        name: String,
        /// Requested frames.
        frames: usize,
        /// Requested block size.
        block: usize,
    },
    /// Cache requested for a pool of blocks: it would mix up the addresses that blocks keep together.
    #[error("pool `{name}`: a pool of kind {kind} has no cache")]
    BlockCache {
        /// Name of the pool.
        name: String,
        /// Policy of the pool.
        kind: PoolKind,
    },
    /// A `typewriter` pool in an arena that is not packed, or a pool of another kind in one that is.
    #[error("pool `{name}` of kind {kind}: pools of kind typewriter need a packed arena to themselves")]
    Packed {
        /// Name of the pool.
        name: String,
        /// Policy of the pool.
        kind: PoolKind,
    },
    /// Pool of blocks added to a set that does not track which cells are in use.
    #[error("pool `{name}`: a pool of kind {kind} cannot be added to an arena that started without pools of blocks")]
    Unwatched {
        /// Name of the pool.
        name: String,
        /// Policy of the pool.
        kind: PoolKind,
    },
    /// No such CPU.
    #[error("pool `{name}`: CPU {cpu} does not exist")]
    Cpu {
        /// Name of the pool.
        name: String,
        /// Requested CPU.
        cpu: usize,
    },
    /// The memory could not be bound to the NUMA node of the pool's CPU.
    #[error("pool `{name}`: its memory cannot be bound to {place}, that of CPU {cpu}: {source}")]
    Bind {
        /// Name of the pool.
        name: String,
        /// Requested CPU.
        cpu: usize,
        /// Place of the memory: the NUMA node of the CPU.
        place: Place,
        /// Error returned by the kernel.
        source: std::io::Error,
    },
    /// Two pools with the same name.
    #[error("two pools are named `{0}`")]
    Duplicate(String),
}

// The size does not matter: there are few pools, each with one of these.
#[allow(clippy::large_enum_variant)]
enum Backend {
    Ring(Ring),
    Stack(Stack),
    Blocks(Blocks),
    Custom(Custom),
}

/// Counters of one worker's handle on a pool: written by that worker, read by all threads.
#[derive(Default)]
pub(crate) struct HandleStats {
    pub allocated: Counter,
    pub freed: Counter,
    pub exhausted: Counter,
    pub cached: Counter,
    /// Position in the open block owned by this handle alone, for `tabm` pools ([`Blocks::take`]).
    pub open: Counter,
}

/// Counters of all handles of a pool.
#[derive(Default)]
struct Handles {
    live: Vec<Arc<HandleStats>>,
    /// Sums of the handles that have been dropped.
    ended: HandleStats,
}

/// A pool: a range of the arena's cells, and the free ones among them.
///
/// # Thread-safety
/// Shared by all workers, which use it through [`crate::Buffers`].
pub struct Pool {
    config: PoolConfig,
    /// Place of its memory; `None` if the configuration names no CPU.
    place: Option<Place>,
    /// First unit of the pool: a cell or, if the arena is packed, a line of a cell.
    first: u32,
    /// Slot boundaries, for `typewriter` pools.
    marks: Option<Arc<Marks>>,
    backend: Backend,
    /// Fewest free cells seen by any taker (worker caches not counted).
    low_water: AtomicU32,
    /// Frames refused because they were freed twice or belong to another arena.
    surplus: AtomicU64,
    /// Panics of workers that may have lost frames of the pool.
    panics: AtomicU64,
    handles: Mutex<Handles>,
    occupancy: Mutex<OccupancySamples>,
    /// Number of workers that allocate from the pool.
    takers: AtomicU32,
    /// Set when the pool is to be removed as soon as it has no takers and all frames are back.
    drains: AtomicBool,
}

/// Pool statistics at one moment. Amounts are in frames.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStats {
    /// Pool name from the configuration.
    pub name: String,
    /// Allocation policy.
    pub kind: PoolKind,
    /// Size of each worker's cache.
    pub cache: usize,
    /// Total frames of the pool.
    pub frames: usize,
    /// Free frames in the shared part.
    pub free: usize,
    /// Free frames in worker caches.
    pub cached: usize,
    /// Frames returned to a block that is not free yet (`sdb`, `tabm`, `typewriter`).
    pub parked: usize,
    /// Frames held by ports, queues and workers; packets for `typewriter`, whose cells hold several.
    pub in_use: usize,
    /// Median of the sampled `in_use` ([`PoolSet::sample_occupancy`]); the current value before the first sample.
    pub normal: usize,
    /// Maximum of the sampled `in_use`.
    pub peak: usize,
    /// Most frames that were ever absent from the shared part at once (held, cached or parked); in whole blocks if the
    /// pool has blocks.
    pub high_water: usize,
    /// Frames allocated since the start.
    pub allocated: u64,
    /// Frames freed since the start.
    pub freed: u64,
    /// Number of requests that were met only in part or not at all.
    pub exhausted: u64,
    /// Frames refused because they were already free or belong to no pool of this arena. Nonzero indicates a bug.
    pub surplus: u64,
    /// Set if the pool is removed as soon as all of its frames are back.
    pub draining: bool,
    /// Block counts by state, if the pool has blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockStats>,
}

impl Pool {
    fn new(config: PoolConfig, first: u32, marks: Option<Arc<Marks>>) -> Self {
        let frames = config.frames;
        let lines = marks.as_ref().map_or(0, |marks| marks.lines_shift());
        let first = first << lines;
        let backend = match config.kind {
            PoolKind::Ring => Backend::Ring(Ring::new(frames)),
            PoolKind::Stack => Backend::Stack(Stack::new(frames)),
            PoolKind::Sdb | PoolKind::Tabm | PoolKind::Typewriter => {
                let (size, shared) = (config.block, config.kind == PoolKind::Sdb);
                Backend::Blocks(Blocks::new(first, size << lines, frames / size, shared, config.lifo))
            }
        };
        Self::with_backend(config, first, marks, backend)
    }

    fn with_backend(config: PoolConfig, first: u32, marks: Option<Arc<Marks>>, backend: Backend) -> Self {
        let frames = config.frames;
        let pool = Self {
            first,
            marks,
            backend,
            low_water: AtomicU32::new(frames as u32),
            surplus: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            handles: Mutex::default(),
            occupancy: Mutex::default(),
            takers: AtomicU32::new(0),
            drains: AtomicBool::new(false),
            place: None,
            config,
        };
        if !pool.config.kind.blocks() {
            // From the top down, so that a stack hands out its lowest cells first.
            let cells: Vec<u32> = (first..first + frames as u32).rev().collect();
            cells.chunks(1024).for_each(|c| pool.push(c));
        }
        pool
    }

    /// Returns the configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Returns whether the policy is the caller's own.
    pub(crate) fn custom(&self) -> bool {
        matches!(self.backend, Backend::Custom(_))
    }

    /// Returns the place of the pool's memory; `None` if the configuration names no CPU.
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// Returns the number of free frames in the shared part; for `sdb`, `tabm` and `typewriter`, in blocks that are not
    /// open.
    pub fn free(&self) -> usize {
        match &self.backend {
            Backend::Ring(r) => r.len(),
            Backend::Stack(s) => s.len(),
            Backend::Blocks(b) => b.free() >> self.lines(),
            Backend::Custom(custom) => custom.free(),
        }
    }

    /// Returns the logarithm of the units per cell.
    fn lines(&self) -> u32 {
        self.marks.as_ref().map_or(0, |marks| marks.lines_shift())
    }

    /// Returns the pool's first unit and its number of units.
    pub(crate) fn range(&self) -> (u32, u32) {
        (self.first, (self.config.frames as u32) << self.lines())
    }

    /// Returns the pool's first cell.
    fn cell(&self) -> usize {
        (self.first >> self.lines()) as usize
    }

    /// Returns whether the pool is removed as soon as all of its frames are back.
    pub fn drains(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    pub(crate) fn taker_comes(&self) {
        self.takers.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn taker_goes(&self) {
        self.takers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a panic of a worker that may have lost frames of the pool. Returns how many there were before.
    pub fn count_panic(&self) -> u64 {
        self.panics.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether draining is complete: no takers, and all frames are back.
    fn drained(&self) -> bool {
        self.drains() && self.takers.load(Ordering::Acquire) == 0 && {
            let stats = self.stats();
            stats.in_use == 0 && stats.cached == 0
        }
    }

    pub(crate) fn register(&self) -> Arc<HandleStats> {
        let stats = Arc::new(HandleStats::default());
        if let Backend::Blocks(b) = &self.backend {
            stats.open.set(b.closed());
        }
        lock(&self.handles).live.push(stats.clone());
        stats
    }

    /// Forgets a handle that is dropped. What it has counted remains in the pool's statistics.
    pub(crate) fn unregister(&self, stats: &Arc<HandleStats>) {
        let Handles { live, ended } = &mut *lock(&self.handles);
        live.retain(|one| !Arc::ptr_eq(one, stats));
        ended.allocated.add(stats.allocated.get());
        ended.freed.add(stats.freed.get());
        ended.exhausted.add(stats.exhausted.get());
    }

    #[inline]
    pub(crate) fn push(&self, cells: &[u32]) {
        let taken = match &self.backend {
            Backend::Ring(r) => r.push(cells),
            Backend::Stack(s) => s.push(cells),
            Backend::Blocks(b) => {
                match &self.marks {
                    None => b.release(cells),
                    Some(marks) => b.release_slots(marks, cells),
                }
                true
            }
            Backend::Custom(custom) => {
                custom.put(cells);
                true
            }
        };
        if !taken && !cells.is_empty() {
            self.refused(cells.len());
        }
    }

    /// Takes up to `out.len()` cells. `open` is the taker's own block, if the policy gives it one. For `typewriter`,
    /// takes whole cells.
    #[inline]
    pub(crate) fn pop(&self, open: &Counter, out: &mut [u32]) -> usize {
        let (n, left) = match &self.backend {
            Backend::Ring(r) => r.pop(out),
            Backend::Stack(s) => s.pop(out),
            Backend::Blocks(b) => {
                let taken = match &self.marks {
                    None => b.take(open, out),
                    Some(marks) => {
                        out.fill(1 << marks.lines_shift());
                        b.take_slots(open, marks, out)
                    }
                };
                match taken {
                    (n, Some(left)) => (n, left >> self.lines()),
                    (n, None) => return n,
                }
            }
            Backend::Custom(custom) => {
                let (n, wrong) = custom.take(out);
                if wrong > 0 {
                    self.refused(wrong);
                }
                (n, custom.free())
            }
        };
        self.lower(left);
        n
    }

    /// Takes a slot for each entry of `slots`, which gives the number of lines needed, and replaces it with the slot's
    /// number. Returns how many; `None` if the pool hands out whole cells only.
    #[inline]
    pub(crate) fn pop_slots(&self, open: &Counter, slots: &mut [u32]) -> Option<usize> {
        let (Backend::Blocks(blocks), Some(marks)) = (&self.backend, &self.marks) else { return None };
        let (n, left) = blocks.take_slots(open, marks, slots);
        left.inspect(|left| self.lower(left >> self.lines()));
        Some(n)
    }

    /// Lowers the low-water mark to `left` if that is less.
    #[inline]
    fn lower(&self, left: usize) {
        if (left as u32) < self.low_water.load(Ordering::Relaxed) {
            self.low_water.fetch_min(left as u32, Ordering::Relaxed);
        }
    }

    /// Releases the unused part of the open block of a handle that is closed.
    pub(crate) fn close(&self, stats: &HandleStats) {
        if let Backend::Blocks(b) = &self.backend {
            b.close(&stats.open);
        }
    }

    #[cold]
    pub(crate) fn refused(&self, frames: usize) {
        self.surplus.fetch_add(frames as u64, Ordering::Relaxed);
    }

    /// Returns the number of frames in use.
    fn in_use(&self) -> usize {
        self.stats().in_use
    }

    /// Returns the current statistics. While workers run, the parts are read one after another and may be a burst
    /// apart.
    pub fn stats(&self) -> PoolStats {
        let handles = lock(&self.handles);
        let sum = |f: fn(&HandleStats) -> &Counter| {
            f(&handles.ended).get() + handles.live.iter().map(|h| f(h).get()).sum::<u64>()
        };
        let cached = sum(|h| &h.cached) as usize;
        let (mut free, mut parked, mut blocks) = (self.free(), 0, None);
        if let Backend::Blocks(b) = &self.backend {
            let open = b.opened(handles.live.iter().map(|h| h.open.get()));
            free += open.iter().map(ExactSizeIterator::len).sum::<usize>() >> self.lines();
            parked = b.parked() >> self.lines();
            blocks = Some(BlockStats { size: self.config.block, ..b.stats(open.len()) });
        }
        let (allocated, freed) = (sum(|h| &h.allocated), sum(|h| &h.freed));
        let in_use = match &self.marks {
            None => self.config.frames.saturating_sub(free + cached + parked),
            // Count packets: a cell holds several.
            Some(_) => allocated.saturating_sub(freed) as usize,
        };
        let occupancy = lock(&self.occupancy);
        PoolStats {
            name: self.config.name.clone(),
            kind: self.config.kind,
            cache: self.config.cache,
            frames: self.config.frames,
            free,
            cached,
            parked,
            in_use,
            normal: occupancy.median().unwrap_or(in_use),
            peak: occupancy.peak().max(in_use),
            high_water: self.config.frames - self.low_water.load(Ordering::Relaxed) as usize,
            allocated,
            freed,
            exhausted: sum(|h| &h.exhausted),
            surplus: self.surplus.load(Ordering::Relaxed),
            draining: self.drains(),
            blocks,
        }
    }

    /// Returns every free cell, by emptying the pool and filling it again.
    fn sweep(&self) -> Vec<u32> {
        let Backend::Blocks(b) = &self.backend else {
            let mut cells = vec![0; self.config.frames + 1];
            let n = self.pop(&Counter::new(), &mut cells);
            cells.truncate(n);
            self.push(&cells);
            return cells;
        };
        let mut cells = b.sweep();
        let handles = lock(&self.handles);
        cells.extend(b.opened(handles.live.iter().map(|h| h.open.get())).into_iter().flatten());
        cells
    }
}
