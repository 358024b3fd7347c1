//! Errors of netlink sockets that tests ask for, in builds with debug assertions only: `BYWASH_FAULT_NETLINK=50` makes
//! one call of 50 fail as if the kernel were short of memory, at random and in every run in the same order.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns whether this call fails.
pub fn strikes() -> bool {
    static ONE_OF: LazyLock<u64> = LazyLock::new(|| {
        let asked = std::env::var("BYWASH_FAULT_NETLINK").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        if asked > 0 {
            tracing::warn!("a test asks for errors: one of {asked} calls on netlink sockets fails");
        }
        asked
    });
    static CALLS: AtomicU64 = AtomicU64::new(0);
    if *ONE_OF == 0 {
        return false;
    }
    // Multiplication by 2^64 / golden ratio (Knuth): the upper half of the result is spread evenly.
    let spread = CALLS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    spread.is_multiple_of(*ONE_OF)
}
