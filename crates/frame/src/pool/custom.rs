//! Policies implemented by the caller, and validation of what they hand out.

use super::out::Out;

/// Pool policy implemented by the caller: decides which free cells are handed out next.
///
/// A faulty policy cannot cause a cell to have two owners: cells it hands out that are in use already, or were never
/// given to it, are withheld and counted as surplus in the pool's statistics.
///
/// # Thread-safety
/// Called concurrently by all workers that share the pool, for a burst of cells at a time: a lock taken here is taken
/// once per burst.
pub trait Policy: Send + Sync {
    /// Takes back free cells. Called first with all cells of the pool, the highest first.
    fn put(&self, cells: &[u32]);

    /// Hands out free cells from the front of `out`. Returns how many; fewer than `out.len()` if no more are free.
    fn take(&self, out: &mut [u32]) -> usize;

    /// Returns the number of free cells.
    fn free(&self) -> usize;
}

/// A policy, and a record of the cells in use.
pub(super) struct Custom {
    policy: Box<dyn Policy>,
    out: Out,
}

impl Custom {
    /// Creates the pool part for cells 0 to `cells` - 1, all of which count as in use at first.
    pub fn new(policy: Box<dyn Policy>, cells: usize) -> Self {
        Self { policy, out: Out::new(cells, true) }
    }

    pub fn free(&self) -> usize {
        self.policy.free()
    }

    /// Takes back cells that belong to the pool and are in use.
    pub fn put(&self, cells: &[u32]) {
        cells.iter().for_each(|cell| self.out.put(*cell));
        self.policy.put(cells);
    }

    /// Hands out cells from the front of `out`. Returns how many, and how many the policy offered wrongly.
    pub fn take(&self, out: &mut [u32]) -> (usize, usize) {
        let n = self.policy.take(out).min(out.len());
        let mut good = 0;
        for at in 0..n {
            if self.out.claim(out[at]) {
                out[good] = out[at];
                good += 1;
            }
        }
        (good, n - good)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::tests::threads::take;
    use crate::{Arena, ArenaConfig, Buffers, Pages, PoolError, PoolSet};
    use std::sync::Mutex;

    /// FIFO of free cells, and wrong cells to hand out first, once each.
    struct Queue(Mutex<std::collections::VecDeque<u32>>, Mutex<Vec<u32>>);

    impl Policy for Queue {
        fn put(&self, cells: &[u32]) {
            self.0.lock().unwrap().extend(cells);
        }

        fn take(&self, out: &mut [u32]) -> usize {
            let (mut free, mut lies) = (self.0.lock().unwrap(), self.1.lock().unwrap());
            out.iter_mut().map_while(|place| lies.pop().or_else(|| free.pop_front()).map(|cell| *place = cell)).count()
        }

        fn free(&self) -> usize {
            self.0.lock().unwrap().len()
        }
    }

    fn pools(lies: &[u32]) -> std::sync::Arc<PoolSet> {
        let arena = Arena::new(ArenaConfig { cells: 16, pages: Pages::Small, ..Default::default() }).unwrap();
        let policy = Queue(Mutex::default(), Mutex::new(lies.to_vec()));
        PoolSet::with_policy(arena, "queue", 16, Box::new(policy)).unwrap()
    }

    #[test]
    fn cells_come_as_the_policy_says_and_all_come_back() {
        let pools = pools(&[]);
        let mut bufs = Buffers::attach(&pools, 0);
        let (mut batch, cells) = take(&mut bufs, 3);
        assert_eq!(cells, [15, 14, 13]);
        bufs.free(&mut batch);
        let (mut batch, cells) = take(&mut bufs, 32);
        assert_eq!((cells.len(), &cells[13..]), (16, &[15, 14, 13][..]));
        assert_eq!(pools.pools()[0].stats().in_use, 16);
        bufs.free(&mut batch);
        drop(bufs);
        assert_eq!(pools.verify(), (vec![], vec![]));
    }

    #[test]
    fn a_policy_that_lies_hands_no_cell_out_twice() {
        // A cell that does not exist, and one that is in use already.
        let pools = pools(&[15, 99, 15]);
        let mut bufs = Buffers::attach(&pools, 0);
        let (mut batch, cells) = take(&mut bufs, 8);
        // Asked for eight, the policy gave 15, the two wrong ones, 15 once more, and four others.
        assert_eq!(cells, [15, 14, 13, 12, 11]);
        assert_eq!(pools.pools()[0].stats().surplus, 3);
        bufs.free(&mut batch);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let arena = || Arena::new(ArenaConfig { cells: 16, pages: Pages::Small, ..Default::default() }).unwrap();
        let policy = || Box::new(Queue(Mutex::default(), Mutex::default()));
        assert!(matches!(PoolSet::with_policy(arena(), "p", 0, policy()), Err(PoolError::Empty(_))));
        assert!(matches!(PoolSet::with_policy(arena(), "p", 17, policy()), Err(PoolError::NoCells { .. })));
    }
}
