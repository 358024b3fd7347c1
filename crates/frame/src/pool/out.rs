//! Record of the cells that are out of their pool.

use bywash_sync::facade::{AtomicU8, Ordering};

/// Cells that are out: handed out and not yet returned. One byte per cell.
///
/// # Thread-safety
/// Shared by any number of threads. [`Out::take`] and [`Out::give`] are plain loads and stores on the path of every
/// burst. They suffice where a cell has one holder anyway, and the record only finds mistakes: two threads that give
/// the same cell at the same instant could both be told that it was out. [`Out::put`] and [`Out::claim`] decide who
/// gets a cell: of several threads that claim it at once, one succeeds, and it sees all accesses made before the cell
/// was put.
pub(super) struct Out(Box<[AtomicU8]>);

impl Out {
    /// Creates the record of `cells` cells, of which all are out, or none.
    pub fn new(cells: usize, out: bool) -> Self {
        Self((0..cells).map(|_| AtomicU8::new(out.into())).collect())
    }

    /// Returns whether a cell is out.
    #[inline]
    pub fn is_out(&self, cell: u32) -> bool {
        self.0[cell as usize].load(Ordering::Relaxed) != 0
    }

    /// Records that a cell is handed out.
    #[inline]
    pub fn take(&self, cell: u32) {
        self.0[cell as usize].store(1, Ordering::Relaxed);
    }

    /// Records that a cell is returned. Returns 1 if it was out, and 0 if not or if it does not exist: numbers, which
    /// callers collect as bits without a comparison.
    #[inline]
    pub fn give(&self, cell: u32) -> u8 {
        let Some(out) = self.0.get(cell as usize) else { return 0 };
        let was = out.load(Ordering::Relaxed);
        out.store(0, Ordering::Relaxed);
        was
    }

    /// Records that a cell is returned, to whoever claims it.
    #[inline]
    pub fn put(&self, cell: u32) {
        self.0[cell as usize].store(0, Ordering::Release);
    }

    /// Hands out a cell. Returns false if it is out already, or does not exist.
    #[inline]
    pub fn claim(&self, cell: u32) -> bool {
        self.0.get(cell as usize).is_some_and(|out| out.swap(1, Ordering::AcqRel) == 0)
    }
}
