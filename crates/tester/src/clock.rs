//! Time source of the tester.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time in nanoseconds of CLOCK_MONOTONIC, which does not step when the time of day is set. The kernel's
/// own generator stamps frames with the same clock (`bpf_ktime_get_ns`).
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
