//! Exact-match cache: complete keys, each in one of two entries.

use crate::key::fold;

/// Reference to a flow in the megaflow cache: its index, and the incarnation that tells it from other flows that used
/// the same index over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRef {
    /// Index in the megaflow cache.
    pub at: u32,
    /// Incarnation of the flow; 0 means no flow.
    pub incarnation: u32,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entry<const W: usize> {
    key: [u64; W],
    flow: FlowRef,
}

/// Cache of keys of `W` words.
pub struct Emc<const W: usize> {
    entries: Vec<Entry<W>>,
    mask: usize,
    /// log2 of the number of entries. A key's two entries are given by the lowest `bits` bits of its hash and the
    /// `bits` bits above them.
    bits: u32,
}

impl<const W: usize> Emc<W> {
    /// Creates an empty cache of `entries` keys, rounded up to a power of two.
    pub fn new(entries: usize) -> Self {
        let entries = entries.next_power_of_two();
        let empty = Entry { key: [0; W], flow: FlowRef::default() };
        Self { entries: vec![empty; entries], mask: entries - 1, bits: entries.trailing_zeros() }
    }

    /// Returns the hash of a key, as needed by the other methods.
    #[inline(always)]
    pub fn hash(key: &[u64; W], seed: u64) -> u64 {
        // One multiplication per two words, all independent of each other. Unlike in the megaflow cache, it is
        // acceptable that an attacker may find collisions: they only cost a lookup in the next level.
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

    /// Prefetches the first of the two entries for a hash.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        bywash_sync::hint::prefetch(&self.entries[self.places(hash)[0]]);
    }

    /// Returns the flow cached for exactly this key.
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

    /// Inserts the key: in the entry that already has it, else in an entry whose flow is gone according to `lives`,
    /// else in the one of the two entries that `coin` selects.
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
        /// A lookup returns the flow last inserted for the key; a key just inserted is found.
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
