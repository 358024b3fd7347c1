//! Prefetch hints. The feature `no-prefetch` turns them off, to measure their benefit.

/// Prefetches the cache line of `what` for reading.
#[inline(always)]
pub fn prefetch<T>(what: &T) {
    prefetch_at(std::ptr::from_ref(what).cast());
}

/// Prefetches the cache line at `at` for reading. The address need not be valid.
#[inline(always)]
pub fn prefetch_at(at: *const u8) {
    if cfg!(feature = "no-prefetch") {
        return;
    }
    // SAFETY: a prefetch reads nothing and cannot fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
}

/// Prefetches the cache line at `at` for writing. The address need not be valid.
#[inline(always)]
pub fn prefetch_to_write(at: *const u8) {
    if cfg!(feature = "no-prefetch") {
        return;
    }
    // SAFETY: a prefetch reads nothing and cannot fault. (The intrinsic would become a read prefetch unless compiled
    // for a specific processor; processors that lack PREFETCHW ignore it.)
    unsafe {
        std::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
}
