//! Counters written by one worker and read by the control plane.

use crate::facade::{AtomicU64, Ordering};

/// Counter with one writer at a time. Adding is a plain load and store, never a locked instruction. Readers on other
/// threads see a value that is at most a burst old and never torn.
///
/// # Thread-safety
/// Concurrent calls of [`Counter::add`] lose counts (and do no other harm): use one counter per worker.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter at zero.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`, wrapping at 2^64.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the value, for gauges and figures read from elsewhere.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Returns the current value.
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
