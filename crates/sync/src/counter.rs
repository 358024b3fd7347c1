//! Counters a worker writes and the control side reads.

use crate::facade::{AtomicU64, Ordering};

/// A counter with one writer at a time. Adding is a plain load and store, never a locked instruction; readers on
/// other threads see a value that is at most a burst old and never torn.
///
/// # Thread-safety
/// [`Counter::add`] from two threads at once loses counts (never more than that): keep it per worker.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`; wraps at 2^64.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the value: for gauges and for figures read from elsewhere.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}
