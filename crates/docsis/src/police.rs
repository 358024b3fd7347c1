//! Rate limits of service flows: maximum sustained and peak traffic rate (CableLabs MULPI, "Service flow encodings").

/// Rate limits of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum sustained rate in bits per second; 0 means no limit.
    pub sustained: u64,
    /// Depth of the sustained rate's bucket in bytes; 0 means [`BURST_DEFAULT`].
    pub burst: u32,
    /// Peak rate in bits per second; 0 means no limit.
    pub peak: u64,
}

/// Minimum depth of the sustained rate's bucket in bytes (MULPI, "Maximum traffic burst").
pub const BURST_MIN: u32 = 1522;
/// Default depth of the sustained rate's bucket in bytes.
pub const BURST_DEFAULT: u32 = 3044;
/// Depth of the peak rate's bucket in bytes: the longest PDU of DOCSIS 3.1.
const PEAK_BURST: u32 = 2000;

/// Fraction bits of the number of ticks per byte.
const FRACTION: u32 = 8;

/// Token bucket, stored as the time at which it will be full again.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at: u64,
    /// TSC ticks per byte, with [`FRACTION`] bits of fraction; 0 means no limit.
    per_byte: u64,
    /// TSC ticks from empty to full.
    depth: u64,
}

impl Bucket {
    fn new(rate: u64, depth: u32, hz: u64) -> Self {
        if rate == 0 {
            return Self::default();
        }
        let per_byte = ((u128::from(hz) * 8) << FRACTION) / u128::from(rate);
        // Clamped to avoid overflow: a rate below a byte a day stops the flow anyway.
        let per_byte = per_byte.clamp(1, 1 << 52) as u64;
        let depth = (u128::from(per_byte) * u128::from(depth)) >> FRACTION;
        Self { full_at: 0, per_byte, depth: depth.min(1 << 62) as u64 }
    }

    /// Returns the time at which the bucket is full again if `len` bytes are taken now. `None` if it does not contain
    /// enough.
    #[inline]
    fn after(&self, len: u32, now: u64) -> Option<u64> {
        let cost = (u128::from(self.per_byte) * u128::from(len)) >> FRACTION;
        let full_at = u128::from(self.full_at.max(now)) + cost;
        (full_at - u128::from(now) <= u128::from(self.depth) || self.per_byte == 0).then_some(full_at as u64)
    }
}

/// Policer of a flow. Times are TSC ticks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policer {
    sustained: Bucket,
    peak: Bucket,
}

impl Policer {
    /// Creates a policer with full buckets. `hz` is the TSC frequency.
    pub fn new(limits: &Limits, hz: u64) -> Self {
        let burst = if limits.burst == 0 { BURST_DEFAULT } else { limits.burst.max(BURST_MIN) };
        Self { sustained: Bucket::new(limits.sustained, burst, hz), peak: Bucket::new(limits.peak, PEAK_BURST, hz) }
    }

    /// Returns whether `len` bytes conform now. If so, takes them from both buckets.
    #[inline]
    pub fn admit(&mut self, len: u32, now: u64) -> bool {
        let (Some(sustained), Some(peak)) = (self.sustained.after(len, now), self.peak.after(len, now)) else {
            return false;
        };
        self.sustained.full_at = sustained;
        self.peak.full_at = peak;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HZ: u64 = 2_500_000_000;

    /// Token buckets as the specification words them, in exact numbers of token-ticks.
    struct Naive {
        tokens: [u128; 2],
        rate: [u128; 2],
        depth: [u128; 2],
        last: u64,
    }

    impl Naive {
        fn admit(&mut self, len: u32, now: u64) -> bool {
            let cost = u128::from(len) * 8 * u128::from(HZ);
            for i in 0..2 {
                self.tokens[i] = (self.tokens[i] + u128::from(now - self.last) * self.rate[i]).min(self.depth[i]);
            }
            self.last = now;
            let admitted = (0..2).all(|i| self.rate[i] == 0 || self.tokens[i] >= cost);
            if admitted {
                (0..2).for_each(|i| self.tokens[i] = self.tokens[i].saturating_sub(cost));
            }
            admitted
        }
    }

    proptest! {
        #[test]
        fn polices_as_two_token_buckets(sustained in 1_000_000..10_000_000_000u64, peak in 1_000_000..10_000_000_000u64,
                                        which in 0..4u8, burst in 1522..100_000u32,
                                        packets in proptest::collection::vec((14..1522u32, 0..3_000_000u64), 1..400)) {
            let (sustained, peak) = (if which & 1 == 0 { 0 } else { sustained }, if which & 2 == 0 { 0 } else { peak });
            let mut policer = Policer::new(&Limits { sustained, burst, peak }, HZ);
            let depth = |bytes: u32| u128::from(bytes) * 8 * u128::from(HZ);
            let mut naive = Naive {
                tokens: [depth(burst), depth(2000)],
                depth: [depth(burst), depth(2000)],
                rate: [sustained.into(), peak.into()],
                last: 0,
            };
            let (mut now, mut ours, mut theirs) = (0, 0u64, 0u64);
            for (len, gap) in packets {
                now += gap;
                ours += if policer.admit(len, now) { u64::from(len) } else { 0 };
                theirs += if naive.admit(len, now) { u64::from(len) } else { 0 };
                // Rounding can change the decision on a packet and on following ones, by one packet in total.
                prop_assert!(ours.abs_diff(theirs) <= 2 * 1522, "{ours} {theirs}");
            }
        }
    }

    #[test]
    fn long_run_rate_is_the_sustained_rate() {
        let mut policer = Policer::new(&Limits { sustained: 100_000_000, burst: 3044, peak: 0 }, HZ);
        let mut bytes = 0u64;
        for i in 0..1_000_000u64 {
            bytes += if policer.admit(1000, i * HZ / 1_000_000) { 1000 } else { 0 };
        }
        // One second at the sustained rate, plus the bucket.
        assert!((12_499_000..12_504_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn absurd_rates_neither_panic_nor_pass() {
        let mut slow = Policer::new(&Limits { sustained: 1, burst: u32::MAX, peak: 1 }, HZ);
        assert!(slow.admit(1500, 0));
        assert!(!slow.admit(1500, 1000));
        let mut fast = Policer::new(&Limits { sustained: u64::MAX, burst: 0, peak: u64::MAX }, HZ);
        assert!((0..1000).all(|i| fast.admit(1500, i * 1000)));
        let mut free = Policer::new(&Limits::default(), HZ);
        assert!((0..1000).all(|_| free.admit(u32::MAX, 5)));
    }
}
