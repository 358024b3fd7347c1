//! The pools' policies for buffers in memory that is no arena: another program's, known here by their numbers.

use super::PoolKind;
use super::blocks::Blocks;
use super::ring::Ring;
use super::stack::Stack;

/// Free cells by number, by one of the pools' policies. What the cells are, the user knows.
///
/// Two things differ from a [`crate::Pool`], because its user was promised them. A request is met in full or not at
/// all. And a cell that came back can be had: a request that finds no free block of `sdb` or `tabm` takes single cells
/// out of the blocks that wait for others, at the price of a search.
///
/// # Thread-safety
/// Shared by any number of threads.
pub struct CellPool(Backend);

// There are as many as pools: a few.
#[allow(clippy::large_enum_variant)]
enum Backend {
    Ring(Ring),
    Stack(Stack),
    Blocks(Blocks),
}

impl CellPool {
    /// A pool for cells 0 to `cells` - 1. All of them are out at first: [`CellPool::give`] fills it.
    ///
    /// `takers`: of `tabm`, and `typewriter`, which is the same here, how many threads get a block of their own.
    pub fn new(kind: PoolKind, cells: usize, takers: usize) -> Self {
        Self::with_blocks(kind, cells, takers, Self::block(cells))
    }

    /// The same with blocks of `block` cells, a power of two up to 65,536.
    pub fn with_blocks(kind: PoolKind, cells: usize, takers: usize, block: usize) -> Self {
        let blocks = |takers, lifo| Backend::Blocks(Blocks::picking(block, cells.div_ceil(block), takers, lifo));
        Self(match kind {
            PoolKind::Ring => Backend::Ring(Ring::new(cells)),
            PoolKind::Stack => Backend::Stack(Stack::new(cells)),
            PoolKind::Sdb => blocks(1, false),
            // (Of numbers, each counts as one: nothing of theirs is shorter.)
            PoolKind::Tabm | PoolKind::Typewriter => blocks(takers.max(1), true),
        })
    }

    /// Cells a block, of a pool of `cells`: 256, and fewer in a pool of which that would make less than 128 blocks. The
    /// block that is being handed out and those that drain are what has to stay in the cache.
    pub fn block(cells: usize) -> usize {
        let most = (cells / 128).clamp(1, 256);
        1 << most.ilog2()
    }

    /// Takes `out.len()` cells, or none; false: there are not as many. `taker`: which of the threads this is; beyond the
    /// last: the last, which several may be.
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

    /// Takes `cells` back: they were out, each once. False: there are more than the pool can hold, and none was taken.
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

    /// Cells in it; exact when nobody is at work.
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
