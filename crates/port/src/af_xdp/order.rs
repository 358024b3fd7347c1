//! In-order completion: frames are freed from a list kept here, in the order in which they were sent.
//!
//! Most drivers complete in order, but none guarantees it. A cell that is freed while the kernel still sends from it is
//! sent with another packet's bytes, so every completion is compared with the list before its cell is freed.

use std::collections::VecDeque;

/// Cells given to the TX ring and not completed yet, oldest first.
pub(crate) struct InOrderCompletion {
    cells: VecDeque<u32>,
    /// Capacity: entries of the TX ring and the completion ring together.
    most: usize,
}

impl InOrderCompletion {
    /// Creates an empty list for rings of `tx` and `completion` entries.
    pub(crate) fn new(tx: u32, completion: u32) -> Self {
        let most = tx as usize + completion as usize;
        Self { cells: VecDeque::with_capacity(most), most }
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Returns how many more cells may be sent.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.most - self.cells.len()
    }

    /// Appends a cell that is given to the kernel. There must be room.
    #[inline]
    pub(crate) fn sent(&mut self, cell: u32) {
        debug_assert!(self.room() > 0);
        self.cells.push_back(cell);
    }

    /// Returns how many of `came`, the completions in the kernel's order, match the oldest cells of the list.
    pub(crate) fn agree(&self, came: impl Iterator<Item = u32>) -> usize {
        came.zip(&self.cells).take_while(|(came, sent)| came == *sent).count()
    }

    /// Removes and returns the `n` oldest cells, or all if there are fewer.
    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> impl Iterator<Item = u32> {
        self.cells.drain(..n.min(self.cells.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_list_that_notices_another_order() {
        let mut order = InOrderCompletion::new(2, 2);
        [7, 8, 9].into_iter().for_each(|cell| order.sent(cell));
        assert_eq!((order.len(), order.room()), (3, 1));
        assert_eq!(order.agree([7, 8].into_iter()), 2);
        assert_eq!(order.agree([7, 9, 8].into_iter()), 1);
        assert_eq!(order.agree([8].into_iter()), 0);
        assert_eq!(order.take(2).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(order.take(5).collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn another_order_is_noticed_however_late() {
        let mut order = InOrderCompletion::new(64, 64);
        for cell in 0..100_000 {
            order.sent(cell);
            assert_eq!(order.agree([cell].into_iter()), 1);
            assert_eq!(order.take(1).collect::<Vec<_>>(), [cell]);
        }
        [1, 2].into_iter().for_each(|cell| order.sent(cell));
        assert_eq!(order.agree([2, 1].into_iter()), 0);
    }
}
