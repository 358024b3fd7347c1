//! The tester's time.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC: it never steps when the time of day is set, and is the one that the kernel's own
/// generator stamps frames with (`bpf_ktime_get_ns`).
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
