//! In-order completion: what was sent comes back in the order it was sent in, so that our own list says what came back.
//!
//! The completion ring's index is then all that is read of it: its entries, eight to a cache line that the kernel has
//! just written on whatever CPU, stay where they are. Most drivers complete in order; none promises it. So the
//! entries are compared with the list at the start, and always in debug builds.

use std::collections::VecDeque;

/// Completions compared at the start, in rings' worth of them.
const RINGS: usize = 4;

/// Cells given to the transmit ring, oldest first, that have not come back.
pub(crate) struct Order {
    cells: VecDeque<u32>,
    /// Most there can be: what the transmit and the completion ring hold.
    most: usize,
    /// Completions still to be compared.
    to_check: usize,
}

impl Order {
    /// For rings of `tx` and `completion` entries.
    pub(crate) fn new(tx: u32, completion: u32) -> Self {
        let most = tx as usize + completion as usize;
        Self { cells: VecDeque::with_capacity(most), most, to_check: RINGS * most }
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

    /// Whether the next completions must be compared, `n` of them about to be taken.
    #[inline]
    pub(crate) fn must_check(&mut self, n: usize) -> bool {
        let more = self.to_check > 0;
        self.to_check = self.to_check.saturating_sub(n);
        more || cfg!(debug_assertions)
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
    fn compares_at_the_start() {
        let mut order = Order::new(2, 2);
        assert!(order.must_check(4 * RINGS));
        assert_eq!(order.must_check(1), cfg!(debug_assertions));
    }
}
