//! Hints to the processor.

/// Starts loading the cache line of `what`, for reading soon.
#[inline(always)]
pub fn prefetch<T>(what: &T) {
    // SAFETY: a prefetch reads nothing and cannot fault; the reference is valid anyway.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast());
    }
}
