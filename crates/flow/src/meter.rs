//! Meters: rate limits shared by all workers.

use crate::model::MeterSpec;
use bywash_sync::bucket::{Rate, SharedBucket};
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
    /// Bucket of packets, or of bytes.
    bucket: SharedBucket,
    /// Number of packets let through.
    pub passed: AtomicU64,
    /// Number of packets refused.
    pub refused: AtomicU64,
}

impl Meter {
    /// Creates a meter with its full burst available.
    pub fn new(spec: MeterSpec) -> Self {
        let burst = if spec.burst == 0 { spec.rate } else { spec.burst };
        // Bytes in a kilobit.
        let unit = if spec.packets { 1 } else { 125 };
        let rate = Rate::new(u64::from(spec.rate.max(1)) * unit, clock::tsc_hz(), u64::from(burst) * unit);
        Self { spec, bucket: SharedBucket::new(rate), passed: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// Returns how many of these packets, given by their lengths in bytes, may pass at time `now` in ticks. Packets
    /// pass in order: once one is refused, so are all later ones.
    pub fn admit(&self, now: u64, lengths: impl ExactSizeIterator<Item = usize> + Clone) -> usize {
        let all = lengths.len();
        let passed = self.bucket.take(lengths.map(|len| if self.spec.packets { 1 } else { len as u32 }), now);
        self.passed.fetch_add(passed as u64, Relaxed);
        self.refused.fetch_add((all - passed) as u64, Relaxed);
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
