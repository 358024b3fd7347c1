//! Pools: where free cells wait, by policy.

mod ring;
mod stack;
#[cfg(test)]
mod tests;

use crate::Arena;
use bywash_sync::Counter;
use bywash_sync::facade::{AtomicU32, AtomicU64, Ordering};
use ring::Ring;
use serde::{Deserialize, Serialize};
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
}

impl PoolKind {
    /// The cache size, in frames, that a pool of this kind gets when none is named: 256 for `ring`, 0 for `stack`.
    pub fn default_cache(self) -> usize {
        match self {
            Self::Ring => 256,
            Self::Stack => 0,
        }
    }
}

impl std::fmt::Display for PoolKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Stack => "stack",
        })
    }
}

/// What a pool is made of.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Its name in `show` and in errors.
    pub name: String,
    /// Its policy.
    pub kind: PoolKind,
    /// Frames each worker's cache holds; 0: no cache.
    pub cache: usize,
    /// Frames in the pool.
    pub frames: usize,
}

impl PoolConfig {
    /// A pool of `kind` with that kind's default cache.
    pub fn new(name: &str, kind: PoolKind, frames: usize) -> Self {
        Self { name: name.into(), kind, cache: kind.default_cache(), frames }
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
    /// Two pools of one name.
    #[error("two pools are named `{0}`")]
    Duplicate(String),
}

enum Backend {
    Ring(Ring),
    Stack(Stack),
}

/// Written by one worker's handle on a pool, read by everyone.
#[derive(Default)]
pub(crate) struct HandleStats {
    pub allocated: Counter,
    pub freed: Counter,
    pub exhausted: Counter,
    pub cached: Counter,
}

/// A pool: a range of the arena's cells, and where the free ones wait.
///
/// # Thread-safety
/// Shared by all workers; they use it through [`crate::Buffers`].
pub struct Pool {
    config: PoolConfig,
    first: u32,
    backend: Backend,
    /// Fewest free cells seen by any taker (worker caches not counted).
    low_water: AtomicU32,
    /// Frames that were given back although the pool was full: freed twice.
    surplus: AtomicU64,
    handles: Mutex<Vec<Arc<HandleStats>>>,
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
    /// Held by ports, queues and workers.
    pub in_use: usize,
    /// Most ever held or cached at once.
    pub peak: usize,
    /// Handed out since the start.
    pub allocated: u64,
    /// Given back since the start.
    pub freed: u64,
    /// Times a taker got fewer than it asked for.
    pub exhausted: u64,
    /// Frames freed twice (refused); a bug when not zero.
    pub surplus: u64,
}

impl Pool {
    fn new(config: PoolConfig, first: u32) -> Self {
        let backend = match config.kind {
            PoolKind::Ring => Backend::Ring(Ring::new(config.frames)),
            PoolKind::Stack => Backend::Stack(Stack::new(config.frames)),
        };
        let pool = Self {
            first,
            backend,
            low_water: AtomicU32::new(config.frames as u32),
            surplus: AtomicU64::new(0),
            handles: Mutex::new(Vec::new()),
            config,
        };
        // From the top down, so that a stack hands out its lowest cells first.
        let cells: Vec<u32> = (first..first + pool.config.frames as u32).rev().collect();
        cells.chunks(1024).for_each(|c| pool.push(c));
        pool
    }

    /// What it was made of.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Free frames in the shared part.
    pub fn free(&self) -> usize {
        match &self.backend {
            Backend::Ring(r) => r.len(),
            Backend::Stack(s) => s.len(),
        }
    }

    pub(crate) fn owns(&self, cell: u32) -> bool {
        cell.wrapping_sub(self.first) < self.config.frames as u32
    }

    pub(crate) fn register(&self) -> Arc<HandleStats> {
        let stats = Arc::new(HandleStats::default());
        self.handles.lock().expect("pool registry").push(stats.clone());
        stats
    }

    #[inline]
    pub(crate) fn push(&self, cells: &[u32]) {
        let taken = match &self.backend {
            Backend::Ring(r) => r.push(cells),
            Backend::Stack(s) => s.push(cells),
        };
        if !taken && !cells.is_empty() {
            self.surplus.fetch_add(cells.len() as u64, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn pop(&self, out: &mut [u32]) -> usize {
        let (n, left) = match &self.backend {
            Backend::Ring(r) => r.pop(out),
            Backend::Stack(s) => s.pop(out),
        };
        if (left as u32) < self.low_water.load(Ordering::Relaxed) {
            self.low_water.fetch_min(left as u32, Ordering::Relaxed);
        }
        n
    }

    /// The figures now. While workers run, the parts are read one after another and may be a burst apart.
    pub fn stats(&self) -> PoolStats {
        let handles = self.handles.lock().expect("pool registry");
        let sum = |f: fn(&HandleStats) -> &Counter| handles.iter().map(|h| f(h).get()).sum::<u64>();
        let (free, cached) = (self.free(), sum(|h| &h.cached) as usize);
        PoolStats {
            name: self.config.name.clone(),
            kind: self.config.kind,
            cache: self.config.cache,
            frames: self.config.frames,
            free,
            cached,
            in_use: self.config.frames.saturating_sub(free + cached),
            peak: self.config.frames - self.low_water.load(Ordering::Relaxed) as usize,
            allocated: sum(|h| &h.allocated),
            freed: sum(|h| &h.freed),
            exhausted: sum(|h| &h.exhausted),
            surplus: self.surplus.load(Ordering::Relaxed),
        }
    }
}

/// The pools of one arena.
pub struct PoolSet {
    arena: Arc<Arena>,
    pools: Vec<Pool>,
}

/// Where every cell of an arena is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Cells that belong to pools.
    pub cells: usize,
    /// Free in pools.
    pub free: usize,
    /// Free in workers' caches.
    pub cached: usize,
    /// Held by ports, queues and workers, by their own count.
    pub held: usize,
    /// In no place, or (negative) in two.
    pub missing: i64,
}

impl PoolSet {
    /// Makes pools out of `arena`'s cells, in order.
    pub fn new(arena: Arc<Arena>, configs: &[PoolConfig]) -> Result<Arc<Self>, PoolError> {
        let mut pools: Vec<Pool> = Vec::new();
        let mut first = 0;
        for c in configs {
            let name = || c.name.clone();
            if pools.iter().any(|p| p.config.name == c.name) {
                return Err(PoolError::Duplicate(name()));
            }
            if c.frames == 0 {
                return Err(PoolError::Empty(name()));
            }
            if c.cache > c.frames / 2 {
                return Err(PoolError::Cache { name: name(), cache: c.cache, frames: c.frames });
            }
            let left = arena.cells() - first;
            if c.frames > left {
                return Err(PoolError::NoCells { name: name(), frames: c.frames, left });
            }
            pools.push(Pool::new(c.clone(), first as u32));
            first += c.frames;
        }
        Ok(Arc::new(Self { arena, pools }))
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The pools, in config order.
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Counts every cell, given how many the ports, queues and workers say they hold. Exact when they stand still.
    pub fn audit(&self, held: usize) -> Audit {
        let stats: Vec<_> = self.pools.iter().map(Pool::stats).collect();
        let cells = stats.iter().map(|s| s.frames).sum();
        let free = stats.iter().map(|s| s.free).sum();
        let cached = stats.iter().map(|s| s.cached).sum();
        Audit { cells, free, cached, held, missing: cells as i64 - (free + cached + held) as i64 }
    }

    /// Looks at every free cell: each must be in its own pool, once. Call when all workers have let go: it empties
    /// the pools and fills them again. Returns the cells that are missing and those found twice or in a wrong pool.
    pub fn verify(&self) -> (Vec<u32>, Vec<u32>) {
        let (mut missing, mut wrong) = (vec![], vec![]);
        for pool in &self.pools {
            let mut cells = vec![0; pool.config.frames + 1];
            let n = pool.pop(&mut cells);
            cells.truncate(n);
            let mut seen = vec![false; pool.config.frames];
            for &cell in &cells {
                match seen.get_mut(cell.wrapping_sub(pool.first) as usize) {
                    Some(seen) if !*seen => *seen = true,
                    _ => wrong.push(cell),
                }
            }
            missing.extend((pool.first..).zip(&seen).filter(|(_, s)| !**s).map(|(c, _)| c));
            pool.push(&cells);
        }
        (missing, wrong)
    }
}
