//! When to look again at a ring's index that another CPU writes.
//!
//! A look takes the index's cache line from its writer, and what follows the lines of the entries just written, which
//! the writer goes on to fill. Whoever has nothing else to do looks at a ring as often as the caches let it, finds an
//! entry or two each time, and so slows down the very writer it waits for. So one that found some, and no burst, comes
//! again when there should be one: two microseconds later at most.

use bywash_frame::BATCH;
use bywash_sync::clock;

/// Entries for which it was worth it: no pause.
const ENOUGH: u64 = BATCH as u64;
/// More than there need be.
const MANY: u64 = 2 * ENOUGH;
/// Shortest and longest pause, in nanoseconds.
const SHORTEST: u64 = 100;
const LONGEST: u64 = 2000;

/// One reader's looks.
pub(crate) struct Pace {
    /// When the next look is due. (All in ticks of the time stamp counter.)
    due: u64,
    pause: u64,
    shortest: u64,
    longest: u64,
}

impl Pace {
    /// A reader that has not looked yet.
    pub fn new() -> Self {
        let ticks = |ns: u64| clock::us_to_ticks(ns) / 1000;
        Self { due: 0, pause: 0, shortest: ticks(SHORTEST), longest: ticks(LONGEST) }
    }

    /// Calls `look`, which returns how many entries there are, unless it found few just now.
    #[inline]
    pub fn look(&mut self, look: impl FnOnce() -> usize) {
        let now = clock::tsc();
        if now < self.due {
            return;
        }
        let pause = match look() as u64 {
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

    /// Looks that were made of 100,000 tries, and the most there may be in the time they took.
    fn looks(found: usize) -> (u64, u64, u64) {
        let (mut pace, mut looks) = (Pace::new(), 0);
        let start = clock::tsc();
        for _ in 0..100_000 {
            pace.look(|| {
                looks += 1;
                found
            });
        }
        let took = clock::tsc() - start;
        (looks, 1 + took / pace.shortest, 8 + took / pace.longest)
    }

    #[test]
    fn who_finds_little_comes_later() {
        let (none, at_shortest, _) = looks(0);
        assert!((1..=at_shortest).contains(&none), "{none} of {at_shortest}");
        let (few, _, at_longest) = looks(1);
        assert!((1..=at_longest).contains(&few), "{few} of {at_longest}");
        let (many, at_shortest, _) = looks(1000);
        assert!((1..=at_shortest).contains(&many), "{many} of {at_shortest}");
    }
}
