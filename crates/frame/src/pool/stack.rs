//! The LIFO: returns the cell that was freed last, while it is still in the CPU cache.
//!
//! An array under a spin lock, like DPDK's standard `rte_stack`: a lock-free list would touch every cell it pops. The
//! lock is taken once per burst and held while the indices are copied. A preempted lock holder delays the others: pin
//! workers, or give each its own pool (the router's default).

use super::slots::Slots;
use bywash_sync::CachePadded;
use bywash_sync::facade::{AtomicBool, AtomicU32, Ordering, spin_loop};

/// A stack for up to `capacity` cells.
pub(super) struct Stack {
    locked: CachePadded<AtomicBool>,
    /// Written under the lock; read without it for `len`.
    len: AtomicU32,
    /// Accessed under the lock only.
    slots: Slots,
}

impl Stack {
    /// Creates an empty stack with room for `capacity` cells.
    pub fn new(capacity: usize) -> Self {
        Self { locked: CachePadded::new(AtomicBool::new(false)), len: AtomicU32::new(0), slots: Slots::new(capacity) }
    }

    /// Returns the number of cells.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire) as usize
    }

    /// Pushes all of `cells`, the last on top, or returns false and pushes none if they do not fit.
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

    /// Takes up to `out.len()` cells from the top. Returns how many, and how many are left.
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
