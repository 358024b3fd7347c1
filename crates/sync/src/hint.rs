//! Hints to the processor. With the feature `no-prefetch` there are none, to measure what they are worth.

/// Starts loading the cache line of `what`, for reading soon.
#[inline(always)]
pub fn prefetch<T>(what: &T) {
    prefetch_at(std::ptr::from_ref(what).cast());
}

/// The same by its address, which need not be one of ours.
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

/// The same, to write there soon.
#[inline(always)]
pub fn prefetch_to_write(at: *const u8) {
    if cfg!(feature = "no-prefetch") {
        return;
    }
    // SAFETY: as for a prefetch to read. (The intrinsic becomes one to read, unless compiled for a named processor;
    // those that do not know the instruction do nothing.)
    unsafe {
        std::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
}
