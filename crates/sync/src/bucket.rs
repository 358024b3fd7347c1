//! Token buckets, stored as the time at which they will be full again. Times are ticks of any clock.

use crate::facade::{AtomicU64, Ordering::Relaxed};

/// Fraction bits of the number of ticks per token.
const FRACTION: u32 = 24;

/// Rate and depth of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Ticks per token, with [`FRACTION`] bits of fraction.
    per_token: u64,
    /// Ticks from empty to full.
    depth: u64,
}

impl Rate {
    /// Rate of a bucket that is always full.
    pub const UNLIMITED: Self = Self { per_token: 0, depth: u64::MAX };

    /// Creates the rate of a bucket that holds `depth` tokens and gains `tokens` of them in `ticks`.
    pub fn new(tokens: u64, ticks: u64, depth: u64) -> Self {
        let per_token = (u128::from(ticks) << FRACTION) / u128::from(tokens.max(1));
        // Clamped to avoid overflow: a token in half a minute, and a depth of decades.
        let per_token = per_token.clamp(1, 1 << (FRACTION + 36)) as u64;
        let depth = (u128::from(per_token) * u128::from(depth)) >> FRACTION;
        Self { per_token, depth: depth.min(1 << 62) as u64 }
    }

    /// Returns the time at which a bucket that is full at `full_at` is full again if `tokens` are taken now. `None` if
    /// it does not contain enough.
    #[inline]
    pub fn conforms(&self, full_at: u64, tokens: u32, now: u64) -> Option<u64> {
        let after = u128::from(full_at.max(now)) + self.cost(tokens);
        (after - u128::from(now) <= u128::from(self.depth)).then_some(after as u64)
    }

    /// Returns the time from which a bucket that is full at `full_at` contains `tokens`, or is full if it never
    /// contains as many.
    #[inline]
    pub fn ready_at(&self, full_at: u64, tokens: u32) -> u64 {
        let cost = self.cost(tokens).min(u128::from(self.depth)) as u64;
        full_at.saturating_add(cost).saturating_sub(self.depth)
    }

    /// Returns the time at which a bucket that is full at `full_at` is full again if `tokens` are taken now, whether it
    /// contains them or not.
    #[inline]
    pub fn charge(&self, full_at: u64, tokens: u32, now: u64) -> u64 {
        full_at.max(now).saturating_add(self.cost(tokens) as u64)
    }

    /// Returns the tokens that a bucket that is full at `full_at` contains now, at most `u32::MAX`.
    #[inline]
    pub fn tokens(&self, full_at: u64, now: u64) -> f64 {
        let ticks = self.depth.saturating_sub(full_at.saturating_sub(now));
        (ticks as f64 * (1u64 << FRACTION) as f64 / self.per_token as f64).min(f64::from(u32::MAX))
    }

    /// Returns the ticks in which the bucket becomes full from empty.
    #[inline]
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// Returns the ticks in which a bucket gains `tokens`, rounded down.
    #[inline]
    pub fn cost(&self, tokens: u32) -> u128 {
        (u128::from(self.per_token) * u128::from(tokens)) >> FRACTION
    }
}

/// Token bucket of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: Rate,
    full_at: u64,
}

impl Bucket {
    /// Creates a full bucket.
    pub fn new(rate: Rate) -> Self {
        Self { rate, full_at: 0 }
    }

    /// Takes one token; returns whether there was one.
    #[inline]
    pub fn take(&mut self, now: u64) -> bool {
        let full_at = self.rate.conforms(self.full_at, 1, now);
        self.full_at = full_at.unwrap_or(self.full_at);
        full_at.is_some()
    }
}

/// Token bucket shared by threads.
///
/// # Thread-safety
/// May be used by any number of threads, which together take no more than the bucket has.
#[derive(Debug)]
pub struct SharedBucket {
    rate: Rate,
    full_at: AtomicU64,
}

impl SharedBucket {
    /// Creates a full bucket.
    pub fn new(rate: Rate) -> Self {
        Self { rate, full_at: AtomicU64::new(0) }
    }

    /// Takes these numbers of tokens in order, up to the first for which there are not enough; returns how many were
    /// taken. A number larger than the bucket is taken if the bucket is full.
    pub fn take(&self, numbers: impl IntoIterator<Item = u32> + Clone, now: u64) -> usize {
        let mut before = self.full_at.load(Relaxed);
        loop {
            let (mut full_at, mut taken) = (before, 0);
            for tokens in numbers.clone() {
                let full = || (full_at <= now).then(|| now.saturating_add(self.rate.cost(tokens) as u64));
                let Some(after) = self.rate.conforms(full_at, tokens, now).or_else(full) else { break };
                (full_at, taken) = (after, taken + 1);
            }
            if taken == 0 {
                return 0;
            }
            match self.full_at.compare_exchange_weak(before, full_at, Relaxed, Relaxed) {
                Ok(_) => return taken,
                Err(changed) => before = changed,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// With whole numbers of ticks per token no decision may differ; with others, a cost by a tick.
        #[test]
        fn buckets_decide_as_counts_of_tokens(ticks in 1..1_000_000i64, depth in 0..100_000u32, rate in 1..1u64 << 34,
                                              takes in proptest::collection::vec((0..2000u32, 0..3_000_000i64), 400)) {
            let (even, uneven) = (Rate::new(1, ticks as u64, depth.into()), Rate::new(rate, 1 << 31, 0));
            let (shared, mut full_at, mut now) = (SharedBucket::new(even), 0, 0);
            // Contents in ticks.
            let most = i64::from(depth) * ticks;
            let (mut own, mut all) = (most, most);
            for (tokens, gap) in takes {
                let (cost, exact) = (i64::from(tokens) * ticks, (u128::from(tokens) << 31) / u128::from(rate));
                prop_assert!(exact - uneven.cost(tokens) <= 1);
                now += gap as u64;
                (own, all) = ((own + gap).min(most), (all + gap).min(most));
                let after = even.conforms(full_at, tokens, now);
                prop_assert_eq!(after.is_some(), cost <= own);
                full_at = after.unwrap_or(full_at);
                own -= if after.is_some() { cost } else { 0 };
                let taken = shared.take([tokens], now);
                prop_assert_eq!(taken == 1, cost <= all || all == most);
                all -= cost * taken as i64;
            }
        }
    }

    #[test]
    fn times_and_contents_agree() {
        // A token in 10 ticks, 100 of them.
        let rate = Rate::new(1, 10, 100);
        let full_at = rate.charge(0, 60, 5_000);
        assert_eq!((full_at, rate.depth(), rate.tokens(full_at, 5_000)), (5_600, 1_000, 40.0));
        for tokens in 0..=100 {
            let at = rate.ready_at(full_at, tokens);
            assert!(rate.conforms(full_at, tokens, at).is_some() && rate.conforms(full_at, tokens, at - 1).is_none());
            assert!(rate.tokens(full_at, at) >= f64::from(tokens));
        }
        // More than it holds: when it is full.
        assert_eq!(rate.ready_at(full_at, 101), full_at);
        let in_debt = rate.charge(full_at, 1_000, 5_000);
        assert_eq!((rate.tokens(in_debt, 5_000), rate.ready_at(in_debt, 1)), (0.0, 5_600 + 10_000 - 990));
        assert_eq!((Rate::UNLIMITED.ready_at(7, 9), Rate::UNLIMITED.charge(7, 9, 8)), (0, 8));
        assert!(Rate::UNLIMITED.tokens(0, 0) >= 1e9);
    }

    #[test]
    fn threads_share_what_there_is() {
        const ALL: usize = 2_000_000;
        let (shared, now) = (SharedBucket::new(Rate::new(1, 1, ALL as u64)), 1 << 40);
        let start = std::sync::Barrier::new(2);
        let takes = || {
            start.wait();
            (0..ALL).map(|_| shared.take([1], now)).sum::<usize>()
        };
        let taken: usize = std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(takes));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, ALL);
    }

    #[test]
    fn tokens_are_taken_in_order() {
        let shared = SharedBucket::new(Rate::new(1, 1, 10));
        assert_eq!([shared.take([4, 4, 4, 1], 5), shared.take([2, 1], 5)], [2, 1]);
        let mut own = Bucket::new(Rate::new(1, 100, 2));
        assert_eq!([0, 0, 99, 100, 100].map(|now| own.take(now)), [true, true, false, true, false]);
        assert!(!Bucket::new(Rate::new(0, 100, 0)).take(u64::MAX));
        assert_eq!(Rate::UNLIMITED.conforms(0, u32::MAX, 7), Some(7));
    }
}
