//! Pool policies for buffers outside an arena: memory of another program, identified by cell number only.

use super::PoolKind;
use super::blocks::Blocks;
use super::ring::Ring;
use super::stack::Stack;

/// Free cells by number, managed by one of the pool policies. The meaning of the numbers is up to the user.
///
/// A `CellPool` differs from a [`crate::Pool`] in two guarantees. A request is met in full or not at all. Every free
/// cell can be allocated: a request that finds no free block of `sdb` or `tabm` searches for single free cells in
/// blocks that are still draining.
///
/// # Thread-safety
/// Shared by any number of threads.
pub struct CellPool(Backend);

// The size does not matter: there are few pools, each with one of these.
#[allow(clippy::large_enum_variant)]
enum Backend {
    Ring(Ring),
    Stack(Stack),
    Blocks(Blocks),
}

impl CellPool {
    /// Creates a pool for cells 0 to `cells` - 1. All count as in use at first: [`CellPool::give`] fills the pool.
    ///
    /// `takers`: for `tabm` and `typewriter` (equivalent here), the number of threads with a block of their own.
    pub fn new(kind: PoolKind, cells: usize, takers: usize) -> Self {
        Self::with_blocks(kind, cells, takers, Self::block(cells))
    }

    /// Creates a pool with blocks of `block` cells, a power of two up to 65,536.
    pub fn with_blocks(kind: PoolKind, cells: usize, takers: usize, block: usize) -> Self {
        let blocks = |takers, lifo| Backend::Blocks(Blocks::picking(block, cells.div_ceil(block), takers, lifo));
        Self(match kind {
            PoolKind::Ring => Backend::Ring(Ring::new(cells)),
            PoolKind::Stack => Backend::Stack(Stack::new(cells)),
            PoolKind::Sdb => blocks(1, false),
            // (Cells are only numbers here and have equal size, so that `typewriter` has nothing to pack.)
            PoolKind::Tabm | PoolKind::Typewriter => blocks(takers.max(1), true),
        })
    }

    /// Returns the default block size for a pool of `cells` cells: 256 cells, or fewer if that made less than 128
    /// blocks. The open block and the draining ones should fit the cache.
    pub fn block(cells: usize) -> usize {
        let most = (cells / 128).clamp(1, 256);
        1 << most.ilog2()
    }

    /// Takes `out.len()` cells, or none and returns false if fewer are free. `taker`: number of the calling thread;
    /// numbers beyond the last share the last one's block.
    #[inline]
    pub fn take(&self, taker: usize, out: &mut [u32]) -> bool {
        let mut n = match &self.0 {
            Backend::Ring(r) => r.pop(out).0,
            Backend::Stack(s) => s.pop(out).0,
            Backend::Blocks(b) => b.take_at(taker, out),
        };
        if n == out.len() {
            return true;
        }
        if let Backend::Blocks(b) = &self.0 {
            n += b.pick(&mut out[n..]);
        }
        n == out.len() || {
            self.give(&out[..n]);
            false
        }
    }

    /// Returns `cells` to the pool. Each must be in use and is returned once. Returns false, and takes none, if the
    /// pool cannot hold as many.
    #[inline]
    pub fn give(&self, cells: &[u32]) -> bool {
        match &self.0 {
            Backend::Ring(r) => r.push(cells),
            Backend::Stack(s) => s.push(cells),
            Backend::Blocks(b) => {
                b.release(cells);
                true
            }
        }
    }

    /// Returns the number of free cells; exact only while no other thread uses the pool.
    pub fn free(&self) -> usize {
        match &self.0 {
            Backend::Ring(r) => r.len(),
            Backend::Stack(s) => s.len(),
            Backend::Blocks(b) => {
                b.free() + b.opened(std::iter::empty()).iter().map(ExactSizeIterator::len).sum::<usize>() + b.parked()
            }
        }
    }
}
