//! Cost of periodic requests, by which they are spaced.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the CPU time that the calling thread has used: what the kernel does for its system calls counts, waiting for
/// a CPU or a lock does not.
pub fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}
