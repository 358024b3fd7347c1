//! Set-associative memory, the common mechanism of all caches and TLBs in the model.

use crate::processor::Replacement;
use std::ops::Range;

/// Evicted entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub tag: u64,
    pub dirty: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    there: bool,
    dirty: bool,
    tag: u64,
    /// Time of the last use (LRU), or the age from 0 to 3 (quad-age).
    rank: u64,
}

/// Age of the next entry to be evicted, and of empty entries.
const OLDEST: u64 = 3;

/// A set-associative memory.
pub(crate) struct Sets {
    entries: Vec<Entry>,
    sets: u64,
    ways: usize,
    /// Set if sets are selected by a hash of the tag instead of its lowest bits.
    hashed: bool,
    replacement: Replacement,
    clock: u64,
}

impl Sets {
    /// Creates a memory of `entries` entries in sets of `ways`.
    ///
    /// # Panics
    /// If `entries` is not a positive multiple of `ways`.
    pub fn new(entries: usize, ways: usize, hashed: bool, replacement: Replacement) -> Self {
        assert!(ways > 0 && entries > 0 && entries.is_multiple_of(ways), "{entries} entries in sets of {ways}");
        let empty = Entry { there: false, dirty: false, tag: 0, rank: OLDEST };
        Self { entries: vec![empty; entries], sets: (entries / ways) as u64, ways, hashed, replacement, clock: 0 }
    }

    fn set(&mut self, tag: u64) -> &mut [Entry] {
        let set = if self.hashed {
            // Fibonacci hashing; the high half of the product spreads evenly over any number of sets.
            let mixed = (tag ^ tag >> 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((u128::from(mixed) * u128::from(self.sets)) >> 64) as usize
        } else {
            (tag % self.sets) as usize
        };
        &mut self.entries[set * self.ways..(set + 1) * self.ways]
    }

    fn find(&mut self, tag: u64) -> Option<usize> {
        self.set(tag).iter().position(|e| e.there && e.tag == tag)
    }

    /// Updates the replacement state of a set after an access to its entry `at`: a hit, or an insertion.
    fn rank(&mut self, tag: u64, at: usize, hit: bool) {
        self.clock += 1;
        let (now, replacement) = (self.clock, self.replacement);
        let set = self.set(tag);
        let Replacement::QuadAge { hits, others_only } = replacement else {
            set[at].rank = now;
            return;
        };
        set[at].rank = if hit { u64::from(hits[set[at].rank as usize]) } else { 1 };
        let raised = |(other, _): &(usize, &mut Entry)| !others_only || *other != at;
        let oldest = set.iter_mut().enumerate().filter(raised).map(|(_, e)| e.rank).max().unwrap_or(OLDEST);
        set.iter_mut().enumerate().filter(raised).for_each(|(_, e)| e.rank += OLDEST - oldest);
    }

    /// Returns whether `tag` is present. If so, counts as a use, and marks the entry dirty if `dirty`.
    pub fn touch(&mut self, tag: u64, dirty: bool) -> bool {
        let Some(at) = self.find(tag) else { return false };
        self.set(tag)[at].dirty |= dirty;
        self.rank(tag, at, true);
        true
    }

    /// Returns whether `tag` is present, without counting as a use.
    pub fn has(&mut self, tag: u64) -> bool {
        self.find(tag).is_some()
    }

    /// Removes `tag`. Returns whether it was dirty, or `None` if it was not present.
    pub fn take(&mut self, tag: u64) -> Option<bool> {
        let at = self.find(tag)?;
        let entry = &mut self.set(tag)[at];
        (entry.there, entry.rank) = (false, OLDEST);
        Some(entry.dirty)
    }

    /// Inserts `tag`, which must not be present, into the first empty way or in place of the entry to be evicted next.
    pub fn put(&mut self, tag: u64, dirty: bool) -> Option<Evicted> {
        self.put_in(tag, dirty, 0..self.ways)
    }

    /// Inserts `tag` like [`Sets::put`], but only into these ways.
    pub fn put_in(&mut self, tag: u64, dirty: bool, ways: Range<usize>) -> Option<Evicted> {
        let by_age = matches!(self.replacement, Replacement::QuadAge { .. });
        let first = ways.start;
        let set = &mut self.set(tag)[ways];
        if by_age {
            // Ages cover the whole set, so that none of these ways may have the highest.
            let raise = OLDEST - set.iter().map(|e| e.rank).max()?;
            set.iter_mut().for_each(|e| e.rank += raise);
        }
        // LRU evicts the lowest rank, quad-age the highest. `min_by_key` returns the first of equal entries.
        let next = |e: &Entry| (e.there, if by_age { OLDEST - e.rank } else { e.rank });
        let (at, victim) = set.iter_mut().enumerate().min_by_key(|(_, e)| next(e))?;
        let evicted = victim.there.then_some(Evicted { tag: victim.tag, dirty: victim.dirty });
        *victim = Entry { there: true, dirty, tag, rank: OLDEST };
        self.rank(tag, first + at, false);
        evicted
    }

    /// Returns the number of ways per set.
    pub fn ways(&self) -> usize {
        self.ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compared with a list of each set's tags in order of use.
        #[test]
        fn is_least_recently_used(
            ways in 1usize..5,
            n in 1usize..5,
            steps in proptest::collection::vec((0u64..24, any::<bool>(), 0u8..4), 0..300),
        ) {
            let mut sets = Sets::new(n * ways, ways, false, Replacement::Lru);
            let mut model: Vec<Vec<(u64, bool)>> = vec![vec![]; n];
            for (tag, dirty, what) in steps {
                let set = &mut model[tag as usize % n];
                let at = set.iter().position(|(t, _)| *t == tag);
                if what == 0 {
                    prop_assert_eq!(sets.take(tag), at.map(|at| set.remove(at).1));
                    continue;
                }
                prop_assert_eq!(sets.has(tag), at.is_some());
                prop_assert_eq!(sets.touch(tag, dirty), at.is_some());
                let was = at.map(|at| set.remove(at));
                if was.is_none() {
                    let full = set.len() == ways;
                    let expected = full.then(|| set.remove(0)).map(|(tag, dirty)| Evicted { tag, dirty });
                    prop_assert_eq!(sets.put(tag, dirty), expected);
                }
                set.push((tag, dirty || was.is_some_and(|(_, dirty)| dirty)));
            }
        }
    }

    proptest! {
        /// Compared with a literal implementation of the published description: ages after every access, one set.
        #[test]
        fn is_quad_age(
            ways in 1usize..6,
            others_only: bool,
            steps in proptest::collection::vec((0u64..12, 0u8..8), 0..300),
        ) {
            let hits = if others_only { [0, 0, 0, 0] } else { [0, 0, 1, 1] };
            let mut sets = Sets::new(ways, ways, false, Replacement::QuadAge { hits, others_only });
            let mut model: Vec<(Option<u64>, u8)> = vec![(None, 3); ways];
            for (tag, what) in steps {
                let at = model.iter().position(|(t, _)| *t == Some(tag));
                if what == 0 {
                    prop_assert_eq!(sets.take(tag).is_some(), at.is_some());
                    at.into_iter().for_each(|at| model[at] = (None, 3));
                    continue;
                }
                prop_assert_eq!(sets.touch(tag, false), at.is_some());
                let at = if let Some(at) = at {
                    model[at].1 = hits[usize::from(model[at].1)];
                    at
                } else {
                    let empty = model.iter().position(|(t, _)| t.is_none());
                    // With one way whose own age is kept, no age was raised to 3.
                    let raise = 3 - model.iter().map(|(_, age)| *age).max().unwrap();
                    model.iter_mut().for_each(|(_, age)| *age += raise);
                    let at = empty.unwrap_or_else(|| model.iter().position(|(_, age)| *age == 3).unwrap());
                    let evicted = model[at].0.map(|tag| Evicted { tag, dirty: false });
                    prop_assert_eq!(sets.put(tag, false), evicted);
                    model[at] = (Some(tag), 1);
                    at
                };
                let counts = |other: usize| !others_only || other != at;
                let all = model.iter().enumerate().filter(|(other, _)| counts(*other));
                let raise = 3 - all.map(|(_, (_, age))| *age).max().unwrap_or(3);
                for (other, entry) in model.iter_mut().enumerate() {
                    entry.1 += if counts(other) { raise } else { 0 };
                }
            }
        }
    }

    #[test]
    fn some_ways_only() {
        for replacement in [Replacement::Lru, Replacement::QuadAge { hits: [0, 0, 1, 1], others_only: false }] {
            let mut sets = Sets::new(4, 4, false, replacement);
            (0..4).for_each(|tag| assert_eq!(sets.put(tag, false), None));
            assert_eq!(sets.put_in(10, true, 2..4), Some(Evicted { tag: 2, dirty: false }));
            assert_eq!(sets.put_in(11, true, 2..4), Some(Evicted { tag: 3, dirty: false }));
            assert_eq!(sets.put_in(12, true, 2..4), Some(Evicted { tag: 10, dirty: true }));
            assert!(sets.has(0) && sets.has(1));
        }
    }

    #[test]
    fn hashing_spreads() {
        let mut sets = Sets::new(40960 * 11, 11, true, Replacement::Lru);
        let evicted = (0..40960 * 8).filter(|line| sets.put(*line, false).is_some()).count();
        assert!(evicted < 40960, "{evicted} of {} evicted from a memory that is not full", 40960 * 8);
    }
}
