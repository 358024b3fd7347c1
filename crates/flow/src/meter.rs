//! Meters: rate limits shared by all workers.

use crate::model::MeterSpec;
use bywash_sync::clock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Meter that lets packets pass at its rate, and a burst at once.
///
/// # Thread-safety
/// May be used by any number of workers; the state is one atomic word, changed once per group of packets.
#[derive(Debug)]
pub struct Meter {
    /// Specification of the meter.
    pub spec: MeterSpec,
    /// Time at which all packets let through so far would have been sent at the rate, in ticks.
    busy_until: AtomicU64,
    /// Ticks per packet, or per kilobit, times 2^16.
    ticks: u128,
    /// Number of ticks by which `busy_until` may be ahead of the current time: the burst.
    ahead: u64,
    /// Number of packets let through.
    pub passed: AtomicU64,
    /// Number of packets refused.
    pub refused: AtomicU64,
}

impl Meter {
    /// Creates a meter with its full burst available.
    pub fn new(spec: MeterSpec) -> Self {
        let ticks = (u128::from(clock::tsc_hz()) << 16) / u128::from(spec.rate.max(1));
        let burst = if spec.burst == 0 { spec.rate } else { spec.burst };
        let ahead = (ticks.saturating_mul(u128::from(burst)) >> 16).min(u128::from(u64::MAX / 4)) as u64;
        Self {
            spec,
            busy_until: AtomicU64::new(0),
            ticks,
            ahead,
            passed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns how many of these packets, given by their lengths in bytes, may pass at time `now` in ticks. Packets
    /// pass in order: once one is refused, so are all later ones.
    pub fn admit(&self, now: u64, lengths: impl Iterator<Item = usize>) -> usize {
        let mut busy = self.busy_until.load(Relaxed).max(now.saturating_sub(1));
        let start = busy;
        let (mut passed, mut refused) = (0, 0);
        for len in lengths {
            let ticks = if self.spec.packets { self.ticks >> 16 } else { (self.ticks * len as u128 * 8 / 1000) >> 16 };
            let next = busy.saturating_add(ticks as u64);
            if refused == 0 && next.saturating_sub(now) <= self.ahead.max(ticks as u64) {
                busy = next;
                passed += 1;
            } else {
                refused += 1;
            }
        }
        // Two workers at once may let one extra burst pass, which is within the accuracy of a rate limit.
        self.busy_until.fetch_max(busy, Relaxed);
        debug_assert!(busy >= start);
        self.passed.fetch_add(passed as u64, Relaxed);
        self.refused.fetch_add(refused as u64, Relaxed);
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept() {
        let hz = clock::tsc_hz();
        for (packets, rate, len) in [(true, 1000, 60), (false, 10_000, 1000)] {
            let meter = Meter::new(MeterSpec { id: 1, packets, rate, burst: rate / 10 });
            let per_second = if packets { u64::from(rate) } else { u64::from(rate) * 1000 / (8 * len as u64) };
            let mut passed = 0;
            // Offers ten times the rate for two seconds.
            let (mut now, step) = (hz, hz / (per_second * 10 / 4));
            while now < 3 * hz {
                passed += meter.admit(now, [len; 4].into_iter()) as u64;
                now += step;
            }
            let want = 2 * per_second + per_second / 10;
            assert!(passed.abs_diff(want) <= want / 50, "{passed} of {want}");
        }
    }
}
