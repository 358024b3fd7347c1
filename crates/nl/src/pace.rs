//! Cost of periodic requests, by which they are spaced.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time that a thread spends on a request: what the kernel does for its system calls counts, waiting for a CPU or a
/// lock does not.
#[derive(Clone, Copy, Debug)]
pub struct Cost(Duration);

impl Cost {
    /// Begins to count, for the calling thread.
    pub fn begin() -> Self {
        Self(cpu_time())
    }

    /// Returns a multiple of the time since the beginning, on the same thread.
    pub fn times(self, ratio: u32) -> Duration {
        cpu_time().saturating_sub(self.0) * ratio
    }
}

/// Returns the CPU time that the calling thread has used.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}
