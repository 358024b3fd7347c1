//! Pacing of reads of a ring index that another CPU writes.
//!
//! Reading the index takes its cache line away from the writer, and reading the entries takes the lines the writer
//! fills next. A reader with nothing else to do would read the index as often as the caches allow, find an entry or two
//! each time, and so slow down the writer it waits for. So a reader that found less than a burst pauses until a burst
//! should be there: at most two microseconds.

use bywash_frame::BATCH;
use bywash_sync::clock;

/// Entries that make a read worthwhile: the pause does not grow.
const ENOUGH: u64 = BATCH as u64;
/// More entries than needed: the pause is halved.
const MANY: u64 = 2 * ENOUGH;
/// Shortest and longest pause, in nanoseconds.
const SHORTEST: u64 = 100;
const LONGEST: u64 = 2000;

/// Pacing state of one reader. Times are in ticks of the time-stamp counter.
pub(crate) struct Pace {
    /// Time of the next read.
    due: u64,
    pause: u64,
    shortest: u64,
    longest: u64,
}

impl Pace {
    /// Returns the state of a reader that has not read yet.
    pub fn new() -> Self {
        let ticks = |ns: u64| clock::us_to_ticks(ns) / 1000;
        Self { due: 0, pause: 0, shortest: ticks(SHORTEST), longest: ticks(LONGEST) }
    }

    /// Calls `read`, which returns the number of entries found, unless the pause after the previous read is not over.
    #[inline]
    pub fn poll(&mut self, read: impl FnOnce() -> usize) {
        let now = clock::tsc();
        // A longer pause than the longest means that the counter went back.
        if now < self.due && self.due - now <= self.longest {
            return;
        }
        let pause = match read() as u64 {
            0 => 0,
            1..ENOUGH => 2 * self.pause,
            ENOUGH..=MANY => self.pause,
            _ => self.pause / 2,
        };
        self.pause = pause.clamp(self.shortest, self.longest);
        self.due = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the reads made in 100,000 tries, and the most possible in that time at the shortest and at the longest
    /// pause.
    fn reads(found: usize) -> (u64, u64, u64) {
        let (mut pace, mut reads) = (Pace::new(), 0);
        let start = clock::tsc();
        for _ in 0..100_000 {
            pace.poll(|| {
                reads += 1;
                found
            });
        }
        let took = clock::tsc() - start;
        (reads, 1 + took / pace.shortest, 8 + took / pace.longest)
    }

    #[test]
    fn a_counter_that_goes_back_is_not_waited_for() {
        let mut pace = Pace::new();
        (pace.due, pace.pause) = (u64::MAX, pace.longest);
        let mut read = false;
        pace.poll(|| {
            read = true;
            1
        });
        assert!(read && pace.due <= clock::tsc() + pace.longest);
    }

    #[test]
    fn who_finds_little_comes_later() {
        let (none, at_shortest, _) = reads(0);
        assert!((1..=at_shortest).contains(&none), "{none} of {at_shortest}");
        let (few, _, at_longest) = reads(1);
        assert!((1..=at_longest).contains(&few), "{few} of {at_longest}");
        let (many, at_shortest, _) = reads(1000);
        assert!((1..=at_shortest).contains(&many), "{many} of {at_shortest}");
    }
}
