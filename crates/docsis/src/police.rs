//! Rate limits of service flows: maximum sustained and peak traffic rate (CableLabs MULPI, "Service flow encodings").
//! Rates and bursts count the bytes of the PDU, from the destination address to the end of the CRC.

use crate::crc::CRC_LEN;
use crate::group::PDU_MAX;
use bywash_sync::bucket::Rate;

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

/// Minimum depth of the buckets in bytes: the longest PDU, which would never conform otherwise. MULPI ("Maximum traffic
/// burst") has 1522, the longest PDU of earlier versions.
pub const BURST_MIN: u32 = (PDU_MAX + CRC_LEN) as u32;
/// Default depth of the sustained rate's bucket in bytes.
pub const BURST_DEFAULT: u32 = 3044;

/// Policer or shaper of a flow. Times are TSC ticks.
#[derive(Clone, Copy, Debug)]
pub struct Policer {
    sustained: Rate,
    peak: Rate,
    /// Times at which the buckets will be full again.
    full_at: [u64; 2],
}

impl Policer {
    /// Creates a policer with full buckets. `hz` is the TSC frequency.
    pub fn new(limits: &Limits, hz: u64) -> Self {
        // Bits per second are bytes per 8 seconds.
        let rate = |bits: u64, depth: u32| match bits {
            0 => Rate::UNLIMITED,
            _ => Rate::new(bits, 8 * hz, depth.into()),
        };
        let burst = if limits.burst == 0 { BURST_DEFAULT } else { limits.burst.max(BURST_MIN) };
        Self { sustained: rate(limits.sustained, burst), peak: rate(limits.peak, BURST_MIN), full_at: [0; 2] }
    }

    /// Returns whether `len` bytes conform now. If so, takes them from both buckets.
    #[inline]
    pub fn admit(&mut self, len: u32, now: u64) -> bool {
        let sustained = self.sustained.conforms(self.full_at[0], len, now);
        let peak = self.peak.conforms(self.full_at[1], len, now);
        let (Some(sustained), Some(peak)) = (sustained, peak) else { return false };
        self.full_at = [sustained, peak];
        true
    }
}

impl Policer {
    /// Returns the time from which `len` bytes conform, or from which the buckets are full.
    #[inline]
    pub fn ready_at(&self, len: u32) -> u64 {
        let [sustained, peak] = self.full_at;
        self.sustained.ready_at(sustained, len).max(self.peak.ready_at(peak, len))
    }

    /// Takes `len` bytes from both buckets, whether they conform or not.
    #[inline]
    pub fn charge(&mut self, len: u32, now: u64) {
        let [sustained, peak] = self.full_at;
        self.full_at = [self.sustained.charge(sustained, len, now), self.peak.charge(peak, len, now)];
    }

    /// Returns the bytes in the sustained rate's bucket.
    #[inline]
    pub fn tokens(&self, now: u64) -> f64 {
        self.sustained.tokens(self.full_at[0], now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 2_500_000_000;

    #[test]
    fn a_packet_takes_from_both_buckets_or_from_neither() {
        // A byte in 1 and in 0.1 microseconds.
        let mut policer = Policer::new(&Limits { sustained: 8_000_000, burst: 4000, peak: 80_000_000 }, HZ);
        let mut at = |us: u64, len| policer.admit(len, us * HZ / 1_000_000);
        assert!(at(0, 1500) && !at(0, 1500), "504 bytes at the peak rate");
        assert!(at(200, 1500) && !at(400, 1500), "1400 bytes at the sustained rate");
        assert!(at(400, 1400));
    }

    #[test]
    fn the_longest_pdu_conforms_to_any_limits() {
        let longest = (PDU_MAX + CRC_LEN) as u32;
        for limits in [Limits { sustained: 1, burst: 1, peak: 0 }, Limits { sustained: 0, burst: 0, peak: 1 }] {
            let mut policer = Policer::new(&limits, HZ);
            assert!(policer.admit(longest, 0) && !policer.admit(longest, 0), "{limits:?}");
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
