//! In-order completion: what was sent comes back in the order it was sent in, so that our own list says what came back.
//!
//! Most drivers complete in order; none promises it, and a cell that is freed while the kernel still sends from it is
//! sent with another packet's bytes. So every completion is compared with the list before its cell is freed.

use std::collections::VecDeque;

/// Cells given to the transmit ring, oldest first, that have not come back.
pub(crate) struct Order {
    cells: VecDeque<u32>,
    /// Most there can be: what the transmit and the completion ring hold.
    most: usize,
}

impl Order {
    /// For rings of `tx` and `completion` entries.
    pub(crate) fn new(tx: u32, completion: u32) -> Self {
        let most = tx as usize + completion as usize;
        Self { cells: VecDeque::with_capacity(most), most }
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Cells that may be sent.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.most - self.cells.len()
    }

    /// The cell goes to the kernel; there is room.
    #[inline]
    pub(crate) fn sent(&mut self, cell: u32) {
        debug_assert!(self.room() > 0);
        self.cells.push_back(cell);
    }

    /// How many of `came`, completions as the kernel gave them, are the oldest of the list in its order.
    pub(crate) fn agree(&self, came: impl Iterator<Item = u32>) -> usize {
        came.zip(&self.cells).take_while(|(came, sent)| came == *sent).count()
    }

    /// Takes the `n` oldest, as far as there are so many.
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
        let mut order = Order::new(2, 2);
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
        let mut order = Order::new(64, 64);
        for cell in 0..100_000 {
            order.sent(cell);
            assert_eq!(order.agree([cell].into_iter()), 1);
            assert_eq!(order.take(1).collect::<Vec<_>>(), [cell]);
        }
        [1, 2].into_iter().for_each(|cell| order.sent(cell));
        assert_eq!(order.agree([2, 1].into_iter()), 0);
    }
}
