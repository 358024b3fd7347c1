//! The LIFO: hands back the cell that was freed last, while it is still in the cache.
//!
//! An array under a spin lock, as DPDK's standard `rte_stack`: a lock-free list would touch every cell it pops.
//! The lock is taken once a burst and held for a copy of its indices. A holder that is preempted delays the
//! others: pin workers, or give each its own pool (the router's default).

use super::slots::Slots;
use bywash_sync::CachePadded;
use bywash_sync::facade::{AtomicBool, AtomicU32, Ordering, spin_loop};

/// A stack for up to `capacity` cells.
pub(super) struct Stack {
    locked: CachePadded<AtomicBool>,
    /// Written under the lock; read without it for `len`.
    len: AtomicU32,
    /// Touched under the lock only.
    slots: Slots,
}

impl Stack {
    /// An empty stack with room for `capacity` cells.
    pub fn new(capacity: usize) -> Self {
        Self { locked: CachePadded::new(AtomicBool::new(false)), len: AtomicU32::new(0), slots: Slots::new(capacity) }
    }

    /// Cells in it.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire) as usize
    }

    /// Adds all of `cells`, the last on top, or none when they do not fit.
    pub fn push(&self, cells: &[u32]) -> bool {
        self.with_lock(|| {
            let len = self.len.load(Ordering::Relaxed) as usize;
            if self.slots.len() - len < cells.len() {
                return false;
            }
            // SAFETY: under the lock.
            unsafe { self.slots.write(len, cells) };
            self.len.store((len + cells.len()) as u32, Ordering::Release);
            true
        })
    }

    /// Takes up to `out.len()` cells from the top; returns how many, and how many are left.
    pub fn pop(&self, out: &mut [u32]) -> (usize, usize) {
        self.with_lock(|| {
            let len = self.len.load(Ordering::Relaxed) as usize;
            let n = out.len().min(len);
            // SAFETY: under the lock.
            unsafe { self.slots.read(len - n, &mut out[..n]) };
            self.len.store((len - n) as u32, Ordering::Release);
            (n, len - n)
        })
    }

    fn with_lock<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.locked.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
        let result = f();
        self.locked.store(false, Ordering::Release);
        result
    }
}
