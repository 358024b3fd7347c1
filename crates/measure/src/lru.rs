//! A set-associative memory with least-recently-used replacement: the one mechanism of every cache and TLB here.

/// An entry that had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub tag: u64,
    pub dirty: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    /// 0: empty; else when it was last used.
    used: u64,
    tag: u64,
    dirty: bool,
}

/// Sets of ways.
pub(crate) struct Lru {
    entries: Vec<Entry>,
    sets: u64,
    ways: usize,
    /// Sets are chosen by a hash of the tag, not by its lowest bits.
    hashed: bool,
    clock: u64,
}

impl Lru {
    /// `entries` in sets of `ways`.
    ///
    /// # Panics
    /// When they are not whole sets.
    pub fn new(entries: usize, ways: usize, hashed: bool) -> Self {
        assert!(ways > 0 && entries > 0 && entries.is_multiple_of(ways), "{entries} entries in sets of {ways}");
        let empty = Entry { used: 0, tag: 0, dirty: false };
        Self { entries: vec![empty; entries], sets: (entries / ways) as u64, ways, hashed, clock: 0 }
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

    /// Whether `tag` is there; it is then the last to go, and dirty if it was or is now.
    pub fn touch(&mut self, tag: u64, dirty: bool) -> bool {
        self.clock += 1;
        let now = self.clock;
        match self.set(tag).iter_mut().find(|e| e.used != 0 && e.tag == tag) {
            Some(entry) => {
                entry.used = now;
                entry.dirty |= dirty;
                true
            }
            None => false,
        }
    }

    /// Whether `tag` is there; nothing changes.
    pub fn has(&mut self, tag: u64) -> bool {
        self.set(tag).iter().any(|e| e.used != 0 && e.tag == tag)
    }

    /// Takes `tag` out: whether it was dirty, if it was there.
    pub fn take(&mut self, tag: u64) -> Option<bool> {
        let entry = self.set(tag).iter_mut().find(|e| e.used != 0 && e.tag == tag)?;
        entry.used = 0;
        Some(entry.dirty)
    }

    /// Puts `tag`, which is not there, in place of the least recently used of the first `ways` ways; of several empty
    /// ones, the last, so that those a device may use are the last to be taken by others.
    pub fn put(&mut self, tag: u64, dirty: bool, ways: usize) -> Option<Evicted> {
        self.clock += 1;
        let now = self.clock;
        let victim = self.set(tag)[..ways].iter_mut().rev().min_by_key(|e| e.used)?;
        let evicted = (victim.used != 0).then_some(Evicted { tag: victim.tag, dirty: victim.dirty });
        *victim = Entry { used: now, tag, dirty };
        evicted
    }

    /// Ways of a set.
    pub fn ways(&self) -> usize {
        self.ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list of each set's tags in order of use.
        #[test]
        fn is_least_recently_used(
            ways in 1usize..5,
            sets in 1usize..5,
            steps in proptest::collection::vec((0u64..24, any::<bool>(), 0u8..4), 0..300),
        ) {
            let mut lru = Lru::new(sets * ways, ways, false);
            let mut model: Vec<Vec<(u64, bool)>> = vec![vec![]; sets];
            for (tag, dirty, what) in steps {
                let set = &mut model[tag as usize % sets];
                let at = set.iter().position(|(t, _)| *t == tag);
                if what == 0 {
                    prop_assert_eq!(lru.take(tag), at.map(|at| set.remove(at).1));
                    continue;
                }
                prop_assert_eq!(lru.has(tag), at.is_some());
                prop_assert_eq!(lru.touch(tag, dirty), at.is_some());
                let was = at.map(|at| set.remove(at));
                if was.is_none() {
                    let full = set.len() == ways;
                    let expected = full.then(|| set.remove(0)).map(|(tag, dirty)| Evicted { tag, dirty });
                    prop_assert_eq!(lru.put(tag, dirty, ways), expected);
                }
                set.push((tag, dirty || was.is_some_and(|(_, dirty)| dirty)));
            }
        }
    }

    #[test]
    fn some_ways_only() {
        let mut lru = Lru::new(4, 4, false);
        (0..4).for_each(|tag| assert_eq!(lru.put(tag, false, 4), None));
        // Each fills the last empty way: tags 3 and 2 lie in the first two.
        assert_eq!(lru.put(10, true, 2), Some(Evicted { tag: 2, dirty: false }));
        assert_eq!(lru.put(11, true, 2), Some(Evicted { tag: 3, dirty: false }));
        assert_eq!(lru.put(12, true, 2), Some(Evicted { tag: 10, dirty: true }));
        assert!(lru.has(0) && lru.has(1));
    }

    #[test]
    fn hashing_spreads() {
        let mut lru = Lru::new(40960 * 11, 11, true);
        let evicted = (0..40960 * 8).filter(|line| lru.put(*line, false, 11).is_some()).count();
        assert!(evicted < 40960, "{evicted} of {} evicted from a memory that is not full", 40960 * 8);
    }
}
