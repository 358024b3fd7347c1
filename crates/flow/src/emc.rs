//! The exact-match cache: whole keys, each in one of two places.

use crate::key::fold;

/// A flow in the megaflow cache: its place there, and which of those that had it over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRef {
    /// Its place.
    pub at: u32,
    /// 0: no flow.
    pub incarnation: u32,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entry<const W: usize> {
    key: [u64; W],
    flow: FlowRef,
}

/// A cache of keys of `W` words.
pub struct Emc<const W: usize> {
    entries: Vec<Entry<W>>,
    mask: usize,
    /// The two positions are these bits of the hash, and those above.
    bits: u32,
}

impl<const W: usize> Emc<W> {
    /// A cache of `entries` keys, a power of two.
    pub fn new(entries: usize) -> Self {
        let entries = entries.next_power_of_two();
        let empty = Entry { key: [0; W], flow: FlowRef::default() };
        Self { entries: vec![empty; entries], mask: entries - 1, bits: entries.trailing_zeros() }
    }

    /// The hash of a key, to be given to the other calls.
    #[inline(always)]
    pub fn hash(key: &[u64; W], seed: u64) -> u64 {
        // Two words a multiplication, all of them at once: unlike the megaflow cache's, a hash of this cache may have
        // collisions that somebody finds, since they cost no more than a look elsewhere.
        let (pairs, rest) = key.as_chunks::<2>();
        let mut h = 0;
        for (i, [a, b]) in pairs.iter().enumerate() {
            let seed = seed.rotate_left(7 * i as u32);
            h ^= fold(a ^ seed, b ^ seed.rotate_left(29) ^ 0xa076_1d64_78bd_642f).rotate_left(11 * i as u32);
        }
        rest.iter().fold(h, |h, a| fold(h ^ a ^ seed, 0xe703_7ed1_a0b4_28db))
    }

    #[inline(always)]
    fn places(&self, hash: u64) -> [usize; 2] {
        [hash as usize & self.mask, (hash >> self.bits) as usize & self.mask]
    }

    /// Starts loading where the key would be first.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        bywash_sync::hint::prefetch(&self.entries[self.places(hash)[0]]);
    }

    /// The flow of this very key.
    #[inline(always)]
    pub fn find(&self, key: &[u64; W], hash: u64) -> Option<FlowRef> {
        for place in self.places(hash) {
            let entry = &self.entries[place];
            let differing = entry.key.iter().zip(key).fold(0, |d, (a, b)| d | (a ^ b));
            if differing == 0 && entry.flow.incarnation != 0 {
                return Some(entry.flow);
            }
        }
        None
    }

    /// Remembers the key: where it is, in a place that holds no living flow, or else in one of the two that `coin`
    /// chooses.
    pub fn insert(&mut self, key: &[u64; W], hash: u64, flow: FlowRef, coin: bool, lives: impl Fn(FlowRef) -> bool) {
        let places = self.places(hash);
        let same = places.into_iter().find(|p| self.entries[*p].key == *key);
        let dead = || places.into_iter().find(|p| !lives(self.entries[*p].flow));
        let place = same.or_else(dead).unwrap_or(places[usize::from(coin)]);
        self.entries[place] = Entry { key: *key, flow };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// What is found is what was last inserted for that key; what was just inserted is found.
        #[test]
        fn never_wrong(steps in proptest::collection::vec((0..64u64, 1..9u32, any::<bool>()), 1..300), seed: u64) {
            let mut emc = Emc::<5>::new(16);
            let mut model: HashMap<[u64; 5], FlowRef> = HashMap::new();
            for (n, flow, coin) in steps {
                let key = [n, 0, n >> 3, 7, 0];
                let hash = Emc::hash(&key, seed);
                if let Some(found) = emc.find(&key, hash) {
                    prop_assert_eq!(Some(&found), model.get(&key));
                }
                let flow = FlowRef { at: flow, incarnation: 1 + flow };
                emc.insert(&key, hash, flow, coin, |f| f.incarnation > 3);
                model.insert(key, flow);
                prop_assert_eq!(emc.find(&key, hash), Some(flow));
            }
        }
    }
}
