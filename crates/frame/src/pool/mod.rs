//! Pools: where free cells wait, by policy.

mod blocks;
mod cells;
mod guard;
mod looks;
mod own;
mod ring;
mod set;
mod slots;
mod stack;
#[cfg(test)]
mod tests;

use crate::Arena;
use crate::marks::Marks;
pub use blocks::BlockStats;
use blocks::Blocks;
use bywash_sync::Counter;
use bywash_sync::facade::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub use cells::CellPool;
use looks::Looks;
use own::Own;
pub use own::Policy;
use ring::Ring;
use serde::{Deserialize, Serialize};
pub use set::{Audit, PoolSet};
use stack::Stack;
use std::sync::{Arc, Mutex};

/// A pool's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolKind {
    /// First in, first out, shared without a lock; in front of it a LIFO cache per worker.
    Ring,
    /// Last in, first out, shared under a spin lock taken once a burst.
    Stack,
    /// Blocks of cells at consecutive addresses, all threads taking from one: self-described buffers, the baseline of
    /// the TABM paper.
    Sdb,
    /// Blocks of cells at consecutive addresses, one for each taker: thread-affine buffer management.
    Tabm,
    /// As `tabm`, with a stride that follows the packets' lengths: a cell holds as many as fit.
    Typewriter,
}

impl PoolKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Ring, Self::Stack, Self::Sdb, Self::Tabm, Self::Typewriter];

    /// The cache size, in frames, that a pool of this kind gets when none is named: 256 for `ring`, else 0.
    pub fn default_cache(self) -> usize {
        match self {
            Self::Ring => 256,
            _ => 0,
        }
    }

    /// Whether it hands out and takes back whole blocks.
    pub fn blocks(self) -> bool {
        matches!(self, Self::Sdb | Self::Tabm | Self::Typewriter)
    }

    /// Whether a cell holds several packets, so that the arena must be [`crate::ArenaConfig::packed`].
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

/// What a pool is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name in `show` and in errors.
    pub name: String,
    /// Its policy.
    pub kind: PoolKind,
    /// Frames each worker's cache holds; 0: no cache.
    pub cache: usize,
    /// Frames in the pool, of `typewriter` cells; where there are blocks, whole ones.
    pub frames: usize,
    /// Frames, or cells, a block of `sdb`, `tabm` and `typewriter`: a power of two from 64 to 65,536.
    pub block: usize,
    /// Which free block is next: the one that came back last, or first.
    pub lifo: bool,
}

/// Frames a block has when nothing is said: the paper's threshold.
pub const BLOCK: usize = 1024;

impl PoolConfig {
    /// A pool of `kind` with that kind's default cache and blocks.
    pub fn new(name: &str, kind: PoolKind, frames: usize) -> Self {
        let (cache, lifo) = (kind.default_cache(), matches!(kind, PoolKind::Tabm | PoolKind::Typewriter));
        Self { name: name.into(), kind, cache, frames, block: BLOCK, lifo }
    }

    /// A `ring` pool with its default cache.
    pub fn ring(name: &str, frames: usize) -> Self {
        Self::new(name, PoolKind::Ring, frames)
    }

    /// A `stack` pool, without cache.
    pub fn stack(name: &str, frames: usize) -> Self {
        Self::new(name, PoolKind::Stack, frames)
    }
}

impl PoolConfig {
    /// Whether such a pool can be, of `left` cells of `arena`.
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
}

/// Why there are no pools.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A pool without frames.
    #[error("pool `{0}` has no frames")]
    Empty(String),
    /// Pools that want more cells than the arena has.
    #[error("pool `{name}` needs {frames} cells, but only {left} of the arena's are left")]
    NoCells {
        /// The pool.
        name: String,
        /// Cells it wants.
        frames: usize,
        /// Cells left.
        left: usize,
    },
    /// A cache that could hold the whole pool and starve every other worker.
    #[error("pool `{name}`: a cache of {cache} frames per worker is too large for {frames} frames (at most half)")]
    Cache {
        /// The pool.
        name: String,
        /// Cache size asked for.
        cache: usize,
        /// Frames in the pool.
        frames: usize,
    },
    /// A block of an impossible size.
    #[error("pool `{name}`: a block of {block} frames is none: the size is a power of two from {least} to {most}", least = blocks::SIZES.start(), most = blocks::SIZES.end())]
    Block {
        /// The pool.
        name: String,
        /// Block size asked for.
        block: usize,
    },
    /// Frames that are not whole blocks, or only one: the next would have to wait for its last cell.
    #[error("pool `{name}`: {frames} frames are not two or more whole blocks of {block}")]
    Blocks {
        /// The pool.
        name: String,
        /// Frames asked for.
        frames: usize,
        /// Block size asked for.
        block: usize,
    },
    /// A cache in front of blocks would mix up the addresses they keep together.
    #[error("pool `{name}`: a pool of kind {kind} has no cache")]
    BlockCache {
        /// The pool.
        name: String,
        /// Its policy.
        kind: PoolKind,
    },
    /// A pool of packets of any length beside others, or in an arena for cells, or the reverse.
    #[error("pool `{name}` of kind {kind}: pools of kind typewriter need a packed arena to themselves")]
    Packed {
        /// The pool.
        name: String,
        /// Its policy.
        kind: PoolKind,
    },
    /// A pool of blocks that comes where cells were not watched from the start.
    #[error("pool `{name}`: a pool of kind {kind} cannot come while frames of pools without blocks are out")]
    Unwatched {
        /// The pool.
        name: String,
        /// Its policy.
        kind: PoolKind,
    },
    /// Two pools of one name.
    #[error("two pools are named `{0}`")]
    Duplicate(String),
}

// There are as many as pools: a few.
#[allow(clippy::large_enum_variant)]
enum Backend {
    Ring(Ring),
    Stack(Stack),
    Blocks(Blocks),
    Own(Own),
}

/// Written by one worker's handle on a pool, read by everyone.
#[derive(Default)]
pub(crate) struct HandleStats {
    pub allocated: Counter,
    pub freed: Counter,
    pub exhausted: Counter,
    pub cached: Counter,
    /// The block that this handle alone hands out, of a `tabm` pool ([`Blocks::take`]).
    pub open: Counter,
}

/// A pool: a range of the arena's cells, and where the free ones wait.
///
/// # Thread-safety
/// Shared by all workers; they use it through [`crate::Buffers`].
pub struct Pool {
    config: PoolConfig,
    /// The first of what it hands out: cells, or lines of cells.
    first: u32,
    /// Where slots begin, of `typewriter`.
    marks: Option<Arc<Marks>>,
    backend: Backend,
    /// Fewest free cells seen by any taker (worker caches not counted).
    low_water: AtomicU32,
    /// Frames that were refused: freed twice, or of another arena.
    surplus: AtomicU64,
    handles: Mutex<Vec<Arc<HandleStats>>>,
    looks: Mutex<Looks>,
    /// Those who take from it.
    takers: AtomicU32,
    /// It goes as soon as nobody takes from it and all is back.
    drains: AtomicBool,
}

/// A pool's figures at one moment. Counted in frames.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStats {
    /// Name in the config.
    pub name: String,
    /// Policy.
    pub kind: PoolKind,
    /// Size of each worker's cache.
    pub cache: usize,
    /// All frames.
    pub frames: usize,
    /// Free, in the shared part.
    pub free: usize,
    /// Free, in workers' caches.
    pub cached: usize,
    /// Given back to a block that is not free yet (`sdb`, `tabm`, `typewriter`).
    pub parked: usize,
    /// Held by ports, queues and workers; of `typewriter` packets, of which a cell holds several.
    pub in_use: usize,
    /// Held at the median look ([`PoolSet::look`]); before the first, now.
    pub normal: usize,
    /// Most held at any look.
    pub peak: usize,
    /// Most that were ever out of the shared part at once, held, cached or parked; where there are blocks, in
    /// whole ones.
    pub high_water: usize,
    /// Handed out since the start.
    pub allocated: u64,
    /// Given back since the start.
    pub freed: u64,
    /// Times a taker got fewer than it asked for.
    pub exhausted: u64,
    /// Frames that were refused, because they were free already or no pool's here; a bug when not zero.
    pub surplus: u64,
    /// It goes as soon as all of its frames are back.
    pub draining: bool,
    /// Where there are blocks: these by state.
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
            handles: Mutex::new(Vec::new()),
            looks: Mutex::default(),
            takers: AtomicU32::new(0),
            drains: AtomicBool::new(false),
            config,
        };
        if !pool.config.kind.blocks() {
            // From the top down, so that a stack hands out its lowest cells first.
            let cells: Vec<u32> = (first..first + frames as u32).rev().collect();
            cells.chunks(1024).for_each(|c| pool.push(c));
        }
        pool
    }

    /// What it was made of.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Free frames in the shared part; of `sdb` and `tabm`, in blocks that are not open.
    pub fn free(&self) -> usize {
        match &self.backend {
            Backend::Ring(r) => r.len(),
            Backend::Stack(s) => s.len(),
            Backend::Blocks(b) => b.free() >> self.lines(),
            Backend::Own(own) => own.free(),
        }
    }

    /// What it hands out of a cell, as a shift.
    fn lines(&self) -> u32 {
        self.marks.as_ref().map_or(0, |marks| marks.lines_shift())
    }

    /// The first of what it hands out, and how many there are.
    pub(crate) fn range(&self) -> (u32, u32) {
        (self.first, (self.config.frames as u32) << self.lines())
    }

    /// Its first cell.
    fn cell(&self) -> usize {
        (self.first >> self.lines()) as usize
    }

    /// Whether it goes as soon as all of its frames are back.
    pub fn drains(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    pub(crate) fn taker_comes(&self) {
        self.takers.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn taker_goes(&self) {
        self.takers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether it has drained: nobody takes from it, and all of its frames are back.
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
        self.handles.lock().expect("pool registry").push(stats.clone());
        stats
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
            Backend::Own(own) => {
                own.put(cells);
                true
            }
        };
        if !taken && !cells.is_empty() {
            self.refused(cells.len());
        }
    }

    /// Takes up to `out.len()` cells; `open` is the taker's own block, if the policy gives it one. Of `typewriter`, whole
    /// cells.
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
            Backend::Own(own) => {
                let (n, wrong) = own.take(out);
                if wrong > 0 {
                    self.refused(wrong);
                }
                (n, own.free())
            }
        };
        self.lower(left);
        n
    }

    /// Takes up to `slots.len()` slots of as many lines as each says, and puts their numbers in their places. None: the
    /// pool has cells only.
    #[inline]
    pub(crate) fn pop_slots(&self, open: &Counter, slots: &mut [u32]) -> Option<usize> {
        let (Backend::Blocks(blocks), Some(marks)) = (&self.backend, &self.marks) else { return None };
        let (n, left) = blocks.take_slots(open, marks, slots);
        left.inspect(|left| self.lower(left >> self.lines()));
        Some(n)
    }

    /// Notes how few were left.
    #[inline]
    fn lower(&self, left: usize) {
        if (left as u32) < self.low_water.load(Ordering::Relaxed) {
            self.low_water.fetch_min(left as u32, Ordering::Relaxed);
        }
    }

    /// Gives back what a handle that goes still has open.
    pub(crate) fn close(&self, stats: &HandleStats) {
        if let Backend::Blocks(b) = &self.backend {
            b.close(&stats.open);
        }
    }

    #[cold]
    pub(crate) fn refused(&self, frames: usize) {
        self.surplus.fetch_add(frames as u64, Ordering::Relaxed);
    }

    /// Frames held now.
    fn in_use(&self) -> usize {
        self.stats().in_use
    }

    /// The figures now. While workers run, the parts are read one after another and may be a burst apart.
    pub fn stats(&self) -> PoolStats {
        let handles = self.handles.lock().expect("pool registry");
        let sum = |f: fn(&HandleStats) -> &Counter| handles.iter().map(|h| f(h).get()).sum::<u64>();
        let cached = sum(|h| &h.cached) as usize;
        let (mut free, mut parked, mut blocks) = (self.free(), 0, None);
        if let Backend::Blocks(b) = &self.backend {
            let open = b.opened(handles.iter().map(|h| h.open.get()));
            free += open.iter().map(ExactSizeIterator::len).sum::<usize>() >> self.lines();
            parked = b.parked() >> self.lines();
            blocks = Some(BlockStats { size: self.config.block, ..b.stats(open.len()) });
        }
        let (allocated, freed) = (sum(|h| &h.allocated), sum(|h| &h.freed));
        let in_use = match &self.marks {
            None => self.config.frames.saturating_sub(free + cached + parked),
            // Packets, of which a cell holds several.
            Some(_) => allocated.saturating_sub(freed) as usize,
        };
        let looks = self.looks.lock().expect("looks");
        PoolStats {
            name: self.config.name.clone(),
            kind: self.config.kind,
            cache: self.config.cache,
            frames: self.config.frames,
            free,
            cached,
            parked,
            in_use,
            normal: looks.median().unwrap_or(in_use),
            peak: looks.peak().max(in_use),
            high_water: self.config.frames - self.low_water.load(Ordering::Relaxed) as usize,
            allocated,
            freed,
            exhausted: sum(|h| &h.exhausted),
            surplus: self.surplus.load(Ordering::Relaxed),
            draining: self.drains(),
            blocks,
        }
    }

    /// Every free cell, by looking at each; the pool is emptied and filled again.
    fn sweep(&self) -> Vec<u32> {
        let Backend::Blocks(b) = &self.backend else {
            let mut cells = vec![0; self.config.frames + 1];
            let n = self.pop(&Counter::new(), &mut cells);
            cells.truncate(n);
            self.push(&cells);
            return cells;
        };
        let mut cells = b.sweep();
        let handles = self.handles.lock().expect("pool registry");
        cells.extend(b.opened(handles.iter().map(|h| h.open.get())).into_iter().flatten());
        cells
    }
}
