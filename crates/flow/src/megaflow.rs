//! Megaflow cache: flows that each stand for all packets equal under a mask, found by tuple-space search.

use crate::dependents::{Dependents, ROLES, SEVERAL};
use crate::emc::FlowRef;
use crate::key::{KEY_WORDS, Key, hash_words};
use crate::learn::FlowChange;
use crate::ops::Op;
use crate::pipeline::mac_key;
use crate::translate::{Learn, Translator};
use bywash_engine::{DropReason, PortId};
use bywash_sync::hint::prefetch;

/// Entries of a bucket; they fill one cache line.
const WAYS: usize = 8;
/// Maximum number of masks; packets that would need another one get a megaflow for their exact key.
pub const MASKS: usize = 96;
/// Index of the tuple with the mask of all bits. It exists as soon as any tuple does.
const EXACT: usize = 0;

/// Processing of a megaflow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Rewrite Ethernet addresses, decrement the TTL and send out of one port: most flows.
    Quick {
        /// New bits of the key's first two words, which hold the Ethernet addresses.
        value: [u64; 2],
        /// Bits of these words to keep.
        keep: [u64; 2],
        /// Amount to subtract from the TTL.
        dec: u8,
        /// Egress port.
        to: PortId,
    },
    /// Run the list of ops in [`Cold::ops`].
    List,
    /// Drop the packets.
    Drop(DropReason),
}

/// Part of a megaflow that every packet needs; one cache line.
#[repr(align(64))]
pub struct Hot {
    /// Processing of the packets.
    pub plan: Plan,
    /// Incarnation of the flow and the generation of the tables that it is valid for: see [`Hot::valid_for`].
    pub valid: u64,
    /// Bytes since the last [`Megaflows::take_counts`].
    pub bytes: u64,
    /// Packets since the last [`Megaflows::take_counts`].
    pub packets: u32,
}

const _: () = assert!(size_of::<Hot>() == 64);

impl Hot {
    /// Returns the value that [`Hot::valid`] must have for a packet to use this flow: the incarnation in the upper
    /// half, the lower 32 bits of the generation in the lower half.
    #[inline(always)]
    pub fn valid_for(incarnation: u32, generation: u64) -> u64 {
        u64::from(incarnation) << 32 | u64::from(generation as u32)
    }

    /// Returns the incarnation of the flow; 0 means that the entry is free.
    pub fn incarnation(&self) -> u32 {
        (self.valid >> 32) as u32
    }
}

/// Part of a megaflow that is not needed for every packet.
#[derive(Default)]
pub struct Cold {
    /// Ops of the flow, run if its plan is [`Plan::List`].
    pub ops: Vec<Op>,
    /// Counter slots of the flows that it stands for.
    pub rules: Vec<u32>,
    /// Bit set of the tables that it was looked up in or makes flows in.
    pub tables: [u64; 4],
    /// Source addresses that its packets show to be in use.
    pub learn: Vec<Learn>,
    /// Changes of the flows that its packets make.
    pub(crate) flow_changes: Vec<FlowChange>,
    /// Drop reason of its packets, if no op outputs them.
    pub reason: Option<DropReason>,
    /// Pipeline generation that it is known to be valid for.
    pub generation: u64,
    /// Burst for which `group` is valid.
    pub burst: u32,
    /// Index of its group in that burst.
    pub group: u8,
    /// Time when it was last found to have had packets, in ticks.
    pub used: u64,
    /// Time when its addresses and flows were last reported, in ticks; 0 if they are yet to be.
    pub reported: u64,
    /// Index of its entry in the driver's table, counted from 1; 0 if it is not offloaded.
    pub driven: u32,
    /// Index of its tuple.
    mask: u16,
    /// Hash of its masked key.
    hash: u64,
}

/// Flows that share one mask.
struct Tuple {
    mask: Key,
    /// Index and value of each nonzero word of the mask.
    words: [(u8, u64); KEY_WORDS],
    n: usize,
    flows: usize,
    hits: u64,
}

impl Tuple {
    fn new(mask: Key) -> Self {
        let mut words = [(0, 0); KEY_WORDS];
        let mut n = 0;
        for (i, m) in mask.iter().enumerate().filter(|(_, m)| **m != 0) {
            words[n] = (i as u8, *m);
            n += 1;
        }
        Self { mask, words, n, flows: 0, hits: 0 }
    }

    #[inline(always)]
    fn pack(&self, key: &Key, into: &mut [u64; KEY_WORDS]) {
        for (to, (at, mask)) in into.iter_mut().zip(&self.words[..self.n]) {
            *to = key[usize::from(*at) % KEY_WORDS] & mask;
        }
    }
}

/// Error: the megaflow cache has no room for the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Megaflow cache of one worker.
///
/// All tuples share one table of buckets; a flow is in one of two buckets. After the start nothing is allocated, except
/// when a flow's list of ops is longer than any list its entry has held before.
pub struct Megaflows {
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    /// Masked key words of each flow, packed without gaps.
    keys: Vec<Key>,
    free: Vec<u32>,
    buckets: Vec<[u64; WAYS]>,
    tuples: Vec<Option<Tuple>>,
    /// Tuples in the order in which they are tried: most hits first, `EXACT` last.
    order: Vec<u16>,
    pub(crate) dependents: Dependents,
    seed: u64,
    incarnations: u32,
    limit: usize,
}

#[inline(always)]
fn tag(hash: u64) -> u64 {
    hash >> 32 | 1
}

impl Megaflows {
    /// Creates a cache with room for `limit` flows; hashes are keyed by `seed`.
    pub fn new(limit: usize, seed: u64) -> Self {
        let buckets = (limit * 2).div_ceil(WAYS).next_power_of_two();
        Self {
            hot: Vec::with_capacity(limit),
            cold: Vec::with_capacity(limit),
            keys: Vec::with_capacity(limit),
            free: Vec::with_capacity(limit),
            buckets: vec![[0; WAYS]; buckets],
            tuples: vec_of(MASKS),
            order: Vec::with_capacity(MASKS),
            dependents: Dependents::new(limit, seed),
            seed,
            incarnations: 0,
            limit,
        }
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.hot.len() - self.free.len()
    }

    /// Returns `true` if there are no flows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of masks.
    pub fn masks(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of entries ever used.
    pub fn places(&self) -> usize {
        self.hot.len()
    }

    #[inline(always)]
    fn hash(&self, tuple: usize, words: &[u64]) -> u64 {
        hash_words(words, self.seed.wrapping_add((tuple as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    #[inline(always)]
    fn places_of(&self, hash: u64) -> [usize; 2] {
        let mask = self.buckets.len() - 1;
        let first = hash as usize & mask;
        // The second bucket is derived from the first and the tag alone.
        [first, (first ^ (tag(hash).wrapping_mul(0x5bd1_e995_9ddc_0da7) >> 24) as usize) & mask]
    }

    /// Looks up the keys at the indices in the bit set `todo` and writes their flows to `found`. Returns the set of
    /// keys not found and the total number of tuples tried.
    pub fn find_batch(&mut self, keys: &[Key; 64], mut todo: u64, found: &mut [FlowRef; 64]) -> (u64, u64) {
        let mut packed = [[0; KEY_WORDS]; 64];
        let mut hashes = [0; 64];
        let mut tries = 0;
        for order in 0..self.order.len() {
            if todo == 0 {
                break;
            }
            let id = usize::from(self.order[order]);
            let Some(tuple) = &self.tuples[id] else { continue };
            tries += u64::from(todo.count_ones());
            for i in bits(todo) {
                tuple.pack(&keys[i], &mut packed[i]);
                hashes[i] = self.hash(id, &packed[i][..tuple.n]);
                prefetch(&self.buckets[hashes[i] as usize & (self.buckets.len() - 1)]);
            }
            // Entry of the first slot with a matching tag, which is nearly always the right one.
            let mut likely = [0u32; 64];
            for i in bits(todo) {
                let bucket = &self.buckets[self.places_of(hashes[i])[0]];
                let at = bucket.iter().find(|slot| *slot >> 32 == tag(hashes[i]));
                likely[i] = at.map_or(u32::MAX, |slot| *slot as u32);
                if let Some(at) = at {
                    prefetch(&self.keys[*at as u32 as usize]);
                    prefetch(&self.hot[*at as u32 as usize]);
                }
            }
            let (n, mut hits) = (tuple.n, 0);
            for i in bits(todo) {
                let same = |at: u32| self.keys[at as usize][..n] == packed[i][..n];
                let at = if likely[i] != u32::MAX
                    && usize::from(self.cold[likely[i] as usize].mask) == id
                    && same(likely[i])
                {
                    Some(likely[i])
                } else {
                    self.search(id, hashes[i], &packed[i][..n])
                };
                if let Some(at) = at {
                    found[i] = FlowRef { at, incarnation: self.hot[at as usize].incarnation() };
                    todo &= !(1 << i);
                    hits += 1;
                }
            }
            if let Some(tuple) = &mut self.tuples[id] {
                tuple.hits += hits;
            }
        }
        (todo, tries)
    }

    /// Returns the index of the flow with these masked words.
    fn search(&self, tuple: usize, hash: u64, words: &[u64]) -> Option<u32> {
        for place in self.places_of(hash) {
            for slot in self.buckets[place].iter().filter(|slot| *slot >> 32 == tag(hash)) {
                let at = *slot as u32;
                if usize::from(self.cold[at as usize].mask) == tuple && self.keys[at as usize][..words.len()] == *words
                {
                    return Some(at);
                }
            }
        }
        None
    }

    /// Returns the flow that `key` belongs to.
    pub fn find(&mut self, key: &Key) -> Option<FlowRef> {
        let mut keys = [[0; KEY_WORDS]; 64];
        keys[0] = *key;
        let mut found = [FlowRef::default(); 64];
        (self.find_batch(&keys, 1, &mut found).0 == 0).then_some(found[0])
    }

    /// Returns the hot part of a flow.
    #[inline(always)]
    pub fn hot(&mut self, at: u32) -> &mut Hot {
        &mut self.hot[at as usize]
    }

    /// Returns the cold part of a flow.
    pub fn cold(&mut self, at: u32) -> &mut Cold {
        &mut self.cold[at as usize]
    }

    /// Prefetches the hot part of a flow.
    #[inline(always)]
    pub fn prefetch(&self, flow: FlowRef) {
        if let Some(hot) = self.hot.get(flow.at as usize) {
            prefetch(hot);
        }
    }

    /// Returns `true` if the flow still exists.
    #[inline(always)]
    pub fn lives(&self, flow: FlowRef) -> bool {
        flow.incarnation != 0 && self.hot.get(flow.at as usize).is_some_and(|h| h.incarnation() == flow.incarnation)
    }

    /// Returns the mask of a flow.
    pub fn mask(&self, at: u32) -> &Key {
        let id = usize::from(self.cold[at as usize].mask);
        self.tuples[id].as_ref().map_or(&[0; KEY_WORDS], |t| &t.mask)
    }

    /// Returns the key of a sample packet of a flow, zero in all bits outside the mask.
    pub fn sample(&self, at: u32) -> Key {
        let mut key = [0; KEY_WORDS];
        if let Some(tuple) = &self.tuples[usize::from(self.cold[at as usize].mask)] {
            for (word, (place, _)) in self.keys[at as usize].iter().zip(&tuple.words[..tuple.n]) {
                key[usize::from(*place)] = *word;
            }
        }
        key
    }

    /// Caches the result of translating `key`, for all packets that agree with it in the bits of the result's mask. If
    /// there are too many masks, the flow covers only this exact key; the returned flag is then `true`. Errors with
    /// [`Full`] if the cache or both buckets are full.
    pub fn insert(
        &mut self,
        key: &Key,
        result: &Translator,
        generation: u64,
        now: u64,
    ) -> Result<(FlowRef, bool), Full> {
        let (id, narrow) = match self.tuple(result.mask.key()) {
            Some(id) => (id, false),
            None => (EXACT, true),
        };
        let tuple = self.tuples[id].as_ref().expect("a tuple found or made");
        let (mut words, n) = ([0; KEY_WORDS], tuple.n);
        tuple.pack(key, &mut words);
        let hash = self.hash(id, &words[..n]);
        if let Some(at) = self.search(id, hash, &words[..n]) {
            self.fill(at, result, generation, now);
            return Ok((FlowRef { at, incarnation: self.hot[at as usize].incarnation() }, narrow));
        }
        let places = self.places_of(hash);
        let slot = places.into_iter().find_map(|p| self.buckets[p].iter().position(|s| *s == 0).map(|way| (p, way)));
        let (Some((place, way)), true) = (slot, self.len() < self.limit) else {
            self.forget_if_empty(id);
            return Err(Full);
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.hot.push(Hot { plan: Plan::List, valid: 0, bytes: 0, packets: 0 });
            self.cold.push(Cold::default());
            self.keys.push([0; KEY_WORDS]);
            self.dependents.grow();
            (self.hot.len() - 1) as u32
        });
        self.buckets[place][way] = tag(hash) << 32 | u64::from(at);
        self.keys[at as usize] = words;
        self.incarnations = self.incarnations.wrapping_add(1).max(1);
        let hot = &mut self.hot[at as usize];
        (hot.valid, hot.packets, hot.bytes) = (Hot::valid_for(self.incarnations, generation), 0, 0);
        let cold = &mut self.cold[at as usize];
        (cold.mask, cold.hash, cold.burst) = (id as u16, hash, 0);
        self.fill(at, result, generation, now);
        if let Some(tuple) = &mut self.tuples[id] {
            tuple.flows += 1;
        }
        Ok((FlowRef { at, incarnation: self.incarnations }, narrow))
    }

    /// Returns the tuple with this mask and creates it if needed, or `None` if there are too many masks.
    fn tuple(&mut self, mask: &Key) -> Option<usize> {
        let known = |t: &Option<Tuple>| t.as_ref().is_some_and(|t| t.mask == *mask);
        if let Some(id) = self.tuples.iter().position(known) {
            return Some(id);
        }
        if self.tuples[EXACT].is_none() {
            self.tuples[EXACT] = Some(Tuple::new([!0; KEY_WORDS]));
            self.order.push(EXACT as u16);
        }
        let id = self.tuples.iter().position(Option::is_none)?;
        self.tuples[id] = Some(Tuple::new(*mask));
        // Insert before the exact tuple, which stays last.
        self.order.insert(self.order.len() - 1, id as u16);
        Some(id)
    }

    fn forget_if_empty(&mut self, id: usize) {
        if id != EXACT && self.tuples[id].as_ref().is_some_and(|t| t.flows == 0) {
            self.tuples[id] = None;
            self.order.retain(|o| usize::from(*o) != id);
        }
    }

    /// Sets a flow's actions and dependencies to those of `result`. The flow's mask must cover the result's mask.
    pub fn fill(&mut self, at: u32, result: &Translator, generation: u64, now: u64) {
        let cold = &mut self.cold[at as usize];
        cold.ops.clear();
        cold.ops.extend_from_slice(&result.ops);
        cold.rules.clear();
        cold.rules.extend_from_slice(&result.rules);
        cold.learn.clear();
        cold.learn.extend_from_slice(&result.learn);
        cold.flow_changes.clear();
        cold.flow_changes.extend_from_slice(&result.flow_changes);
        (cold.tables, cold.reason, cold.used) = (result.tables, result.reason, now);
        let source = match &result.learn[..] {
            [] => None,
            [learn] => Some(mac_key(learn.vlan, learn.mac)),
            _ => Some(SEVERAL),
        };
        self.dependents.list(at, [source, result.looked_up]);
        self.hot[at as usize].plan = plan(result);
        self.mark_valid(at, generation);
    }

    /// Marks a flow as valid for `generation` of the tables.
    pub fn mark_valid(&mut self, at: u32, generation: u64) {
        self.cold[at as usize].generation = generation;
        let hot = &mut self.hot[at as usize];
        hot.valid = Hot::valid_for(hot.incarnation(), generation);
    }

    /// Marks a flow as valid for no generation, so that it is translated again before its next packet is processed. It
    /// is listed under no address until then.
    pub(crate) fn doubt(&mut self, at: u32) {
        self.dependents.list(at, [None; ROLES]);
        self.mark_valid(at, 0);
    }

    /// Removes a flow.
    pub fn remove(&mut self, at: u32) {
        self.dependents.list(at, [None; ROLES]);
        let (hash, id) = (self.cold[at as usize].hash, usize::from(self.cold[at as usize].mask));
        let slot = tag(hash) << 32 | u64::from(at);
        for place in self.places_of(hash) {
            if let Some(way) = self.buckets[place].iter().position(|s| *s == slot) {
                self.buckets[place][way] = 0;
            }
        }
        self.hot[at as usize].valid = 0;
        self.free.push(at);
        if let Some(tuple) = &mut self.tuples[id] {
            tuple.flows -= 1;
        }
        self.forget_if_empty(id);
    }

    /// Returns the packets and bytes of a flow since the last call.
    pub fn take_counts(&mut self, at: u32) -> (u64, u64) {
        let hot = &mut self.hot[at as usize];
        (u64::from(std::mem::take(&mut hot.packets)), std::mem::take(&mut hot.bytes))
    }

    /// Sorts the tuples by their recent hits, so that the most used ones are tried first.
    pub fn sort(&mut self) {
        let Self { order, tuples, .. } = self;
        order.sort_by_key(|id| {
            let hits = tuples[usize::from(*id)].as_ref().map_or(0, |t| t.hits);
            (usize::from(*id) == EXACT, std::cmp::Reverse(hits))
        });
        tuples.iter_mut().flatten().for_each(|t| t.hits /= 2);
    }
}

/// Returns the simplest plan for a result.
fn plan(result: &Translator) -> Plan {
    if let Some(reason) = result.reason
        && result.ops.is_empty()
    {
        return Plan::Drop(reason);
    }
    let (mut value, mut keep, mut left) = ([0; 2], [!0; 2], 0);
    for (i, op) in result.ops.iter().enumerate() {
        match *op {
            Op::Eth { value: v, mask } if i == 0 => (value, keep) = (v, mask.map(|m| !m)),
            Op::DecTtl(n) if left == 0 => left = n,
            Op::Output(to) if i + 1 == result.ops.len() => return Plan::Quick { value, keep, dec: left, to },
            _ => break,
        }
    }
    Plan::List
}

/// Returns an iterator over the indices of the set bits.
#[inline(always)]
pub(crate) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let i = set.trailing_zeros() as usize;
        (set != 0).then(|| {
            set &= set - 1;
            i & 63
        })
    })
}

fn vec_of<T>(n: usize) -> Vec<Option<T>> {
    std::iter::repeat_with(|| None).take(n).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flows that all hash to the same two buckets: as many as fit are found, one more is refused, and there is room
    /// again when one is removed.
    #[test]
    fn a_full_pair_of_buckets_refuses() {
        let mut mega = Megaflows::new(256, 7);
        let mut result = Translator::default();
        result.mask.0[0] = !0;
        let key = |n: u64| std::array::from_fn(|word| if word == 0 { n } else { 0 });
        // The tuple's index is part of the hash; the first tuple created has this one.
        let places = |mega: &Megaflows, n: u64| {
            let mut places = mega.places_of(mega.hash(EXACT + 1, &[n]));
            places.sort_unstable();
            places
        };
        let wanted = places(&mega, 0);
        assert_ne!(wanted[0], wanted[1]);
        let keys: Vec<u64> = (0..).filter(|n| places(&mega, *n) == wanted).take(2 * WAYS + 1).collect();
        let (last, fitting) = keys.split_last().unwrap();
        for n in fitting {
            assert!(mega.insert(&key(*n), &result, 1, 0).is_ok(), "{n}");
        }
        assert_eq!(mega.insert(&key(*last), &result, 1, 0), Err(Full));
        for n in fitting {
            let found = mega.find(&key(*n)).unwrap();
            assert_eq!(mega.sample(found.at), key(*n));
        }
        assert_eq!((mega.find(&key(*last)), mega.len()), (None, 2 * WAYS));
        let first = mega.find(&key(fitting[0])).unwrap();
        mega.remove(first.at);
        assert!(!mega.lives(first) && mega.insert(&key(*last), &result, 1, 0).is_ok());
        assert!(mega.find(&key(*last)).is_some() && mega.find(&key(fitting[0])).is_none());
    }
}
