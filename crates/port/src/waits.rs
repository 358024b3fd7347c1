//! Histogram of waiting times of bursts, written by one worker without allocation, readable from any thread.

use bywash_sync::Counter;

/// Base-2 logarithm of the buckets per octave: a bucket's bound exceeds its waits by at most 1/64, so a deadline that
/// was met does not appear missed.
const FINE: u32 = 6;
const STEPS: usize = 1 << FINE;
/// Longest wait recorded, in nanoseconds (2^30, about one second); longer waits count as this one.
const LONGEST: u64 = (1 << 30) - 1;
const BUCKETS: usize = place(LONGEST) + 1;

/// Returns the bucket of a wait in nanoseconds: exact below 64, then 64 buckets per power of two.
const fn place(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2();
    (octave - FINE) as usize * STEPS + (ns >> (octave - FINE)) as usize
}

/// Returns the longest wait in bucket `at`, in nanoseconds.
const fn bound(at: usize) -> u64 {
    if at < 2 * STEPS {
        return at as u64;
    }
    let shift = at / STEPS - 1;
    ((((at % STEPS) + STEPS + 1) as u64) << shift) - 1
}

/// Histogram of waiting times from nanoseconds to one second, with an error of at most 1/64.
///
/// # Thread-safety
/// One worker writes; any thread may read.
pub struct Waits([Counter; BUCKETS]);

impl Default for Waits {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::new()))
    }
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.counts().fmt(f)
    }
}

impl Waits {
    /// Counts a wait of `ns` nanoseconds.
    #[inline]
    pub(crate) fn count(&self, ns: u64) {
        self.0[place(ns.min(LONGEST))].add(1);
    }

    /// Returns a copy of the counts so far.
    pub fn counts(&self) -> WaitCounts {
        WaitCounts(self.0.iter().map(Counter::get).collect())
    }
}

/// Snapshot of the counts of a [`Waits`], or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts(Vec<u64>);

impl WaitCounts {
    /// Returns the number of waits counted.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the counts added since the snapshot `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.0.iter().chain(std::iter::repeat(&0));
        Self(self.0.iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect())
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(all, n)| *all += n);
    }

    /// Returns the time in microseconds that a share `q` (0 to 1) of the waits did not exceed; `None` if none was
    /// counted.
    pub fn quantile_us(&self, q: f64) -> Option<f64> {
        let wanted = (q * self.total() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = self.0.iter().position(|n| {
            seen += n;
            seen >= wanted
        });
        at.map(us)
    }

    /// Returns the non-empty buckets: the longest wait of each in microseconds, and its count.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        self.0.iter().enumerate().filter(|(_, n)| **n > 0).map(|(at, n)| (us(at), *n)).collect()
    }
}

fn us(at: usize) -> f64 {
    bound(at) as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_is_within_its_bucket_and_a_64th() {
        assert_eq!((place(0), bound(place(LONGEST))), (0, LONGEST));
        for ns in (0..100_000).chain((0..30).flat_map(|e| [(1 << e) - 1, 1 << e, (1 << e) + 1])) {
            let (at, limit) = (place(ns), bound(place(ns)));
            assert!(ns <= limit && (limit - ns) * 64 <= ns, "{ns} ns: at most {limit}");
            assert!(at == 0 || bound(at - 1) < ns, "{ns} ns belongs in an earlier bucket");
        }
    }

    #[test]
    fn quantiles() {
        let waits = Waits::default();
        assert_eq!(waits.counts().quantile_us(0.99), None);
        for (us, n) in [(1, 98), (40, 1), (1000, 1)] {
            (0..n).for_each(|_| waits.count(us * 1000));
        }
        let counts = waits.counts();
        let near = |q: f64, us: f64| counts.quantile_us(q).is_some_and(|got| (us * 0.99..us * 1.016).contains(&got));
        assert!(near(0.5, 1.0) && near(0.98, 1.0) && near(0.99, 40.0) && near(1.0, 1000.0), "{:?}", counts.buckets());
        assert_eq!((counts.total(), counts.buckets().len()), (100, 3));
        let mut twice = counts.clone();
        twice.add(&counts);
        assert_eq!(twice.since(&counts), counts);
        waits.count(u64::MAX / 2);
        assert_eq!(waits.counts().since(&counts).quantile_us(1.0), Some(LONGEST as f64 / 1e3));
    }
}
