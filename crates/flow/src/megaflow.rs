//! The megaflow cache: flows of many packets alike, found by tuple-space search.

use crate::emc::FlowRef;
use crate::key::{KEY_WORDS, Key, hash_words};
use crate::ops::Op;
use crate::translate::{Learn, Translator};
use bywash_engine::{DropReason, PortId};
use bywash_sync::hint::prefetch;

/// Entries of a bucket: a cache line of them.
const WAYS: usize = 8;
/// Most different masks; packets that would need another get a megaflow of their own.
pub const MASKS: usize = 96;
/// The mask of all bits, which is always there.
const EXACT: usize = 0;

/// What is done with the packets of a megaflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Ethernet addresses, TTL, and out by one port: most flows.
    Quick {
        /// New bits of the key's first two words.
        value: [u64; 2],
        /// Bits of them to leave.
        keep: [u64; 2],
        /// How much to take off the TTL.
        dec: u8,
        /// The way out.
        to: PortId,
    },
    /// A list of ops.
    List,
    /// Nothing but to drop them.
    Drop(DropReason),
}

/// The part of a megaflow that every packet needs.
#[repr(align(64))]
pub struct Hot {
    /// What to do.
    pub plan: Plan,
    /// Which of the flows that had this place it is, and which generation of the tables it is known to be right for: see
    /// [`Hot::valid`].
    pub valid: u64,
    /// Bytes since the last [`Megaflows::take_counts`].
    pub bytes: u64,
    /// Packets since then.
    pub packets: u32,
}

const _: () = assert!(size_of::<Hot>() == 64);

impl Hot {
    /// What [`Hot::valid`] must be for a packet to go by this flow.
    #[inline(always)]
    pub fn valid_for(incarnation: u32, generation: u64) -> u64 {
        u64::from(incarnation) << 32 | u64::from(generation as u32)
    }

    /// 0: the place is free.
    pub fn incarnation(&self) -> u32 {
        (self.valid >> 32) as u32
    }
}

/// The rest.
#[derive(Default)]
pub struct Cold {
    /// Its ops, when its plan is a list.
    pub ops: Vec<Op>,
    /// Counters of the flows it stands for.
    pub rules: Vec<u32>,
    /// Tables it was looked up in.
    pub tables: [u64; 4],
    /// It depends on learned addresses.
    pub bridged: bool,
    /// An address its packets show to be in use.
    pub learn: Option<Learn>,
    /// Why its packets are dropped, when no op outputs them.
    pub reason: Option<DropReason>,
    /// The pipeline's generation it is known to be right for.
    pub generation: u64,
    /// The burst whose group it has, and the group.
    pub burst: u32,
    /// As said.
    pub group: u8,
    /// When it was last seen to have had packets, in ticks.
    pub used: u64,
    /// When its address was last told to be in use, in ticks.
    pub told: u64,
    /// Its place in the driver's table, counted from 1; 0: it is not there.
    pub driven: u32,
    /// Its mask, by number.
    mask: u16,
    /// Hash of its key under that mask.
    hash: u64,
}

/// Flows with one mask.
struct Tuple {
    mask: Key,
    /// The words that are not zero, and where.
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

/// Why a flow was not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The megaflows of one worker.
///
/// All tuples share one table of buckets; a flow is in one of two. Nothing is allocated after the start but room for
/// longer lists of ops than a place had before.
pub struct Megaflows {
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    /// The masked words, without gaps.
    keys: Vec<Key>,
    free: Vec<u32>,
    buckets: Vec<[u64; WAYS]>,
    tuples: Vec<Option<Tuple>>,
    /// Tuples in the order they are tried: most hits first, `EXACT` last.
    order: Vec<u16>,
    seed: u64,
    incarnations: u32,
    limit: usize,
}

#[inline(always)]
fn tag(hash: u64) -> u64 {
    hash >> 32 | 1
}

impl Megaflows {
    /// Room for `limit` flows; hashes are keyed by `seed`.
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
            seed,
            incarnations: 0,
            limit,
        }
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.hot.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of masks.
    pub fn masks(&self) -> usize {
        self.order.len()
    }

    /// Places that were ever used.
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
        // From the tag alone: the same way back and forth.
        [first, (first ^ (tag(hash).wrapping_mul(0x5bd1_e995_9ddc_0da7) >> 24) as usize) & mask]
    }

    /// Finds the flows of the keys at `todo`, a set of bits, and writes them to `found`; returns the keys not found, and
    /// how many tuples were tried in all.
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
            // The place of the first entry with the right tag: it is nearly always the one.
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

    /// The flow with these masked words.
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

    /// The flow that `key` belongs to.
    pub fn find(&mut self, key: &Key) -> Option<FlowRef> {
        let mut keys = [[0; KEY_WORDS]; 64];
        keys[0] = *key;
        let mut found = [FlowRef::default(); 64];
        (self.find_batch(&keys, 1, &mut found).0 == 0).then_some(found[0])
    }

    /// What every packet of a flow needs.
    #[inline(always)]
    pub fn hot(&mut self, at: u32) -> &mut Hot {
        &mut self.hot[at as usize]
    }

    /// The rest of a flow.
    pub fn cold(&mut self, at: u32) -> &mut Cold {
        &mut self.cold[at as usize]
    }

    /// Starts loading what every packet of a flow needs.
    #[inline(always)]
    pub fn prefetch(&self, flow: FlowRef) {
        if let Some(hot) = self.hot.get(flow.at as usize) {
            prefetch(hot);
        }
    }

    /// Whether the flow is still there.
    #[inline(always)]
    pub fn lives(&self, flow: FlowRef) -> bool {
        flow.incarnation != 0 && self.hot.get(flow.at as usize).is_some_and(|h| h.incarnation() == flow.incarnation)
    }

    /// The mask of a flow.
    pub fn mask(&self, at: u32) -> &Key {
        let id = usize::from(self.cold[at as usize].mask);
        self.tuples[id].as_ref().map_or(&[0; KEY_WORDS], |t| &t.mask)
    }

    /// A packet of a flow: its key, zero where it does not matter.
    pub fn sample(&self, at: u32) -> Key {
        let mut key = [0; KEY_WORDS];
        if let Some(tuple) = &self.tuples[usize::from(self.cold[at as usize].mask)] {
            for (word, (place, _)) in self.keys[at as usize].iter().zip(&tuple.words[..tuple.n]) {
                key[usize::from(*place)] = *word;
            }
        }
        key
    }

    /// Caches what became of `key`: for all packets alike in the bits that mattered. With too many masks, for this very
    /// packet alone; the flag says so.
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

    /// The tuple with this mask, made when there is room.
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
        // Before the exact one.
        self.order.insert(self.order.len() - 1, id as u16);
        Some(id)
    }

    fn forget_if_empty(&mut self, id: usize) {
        if id != EXACT && self.tuples[id].as_ref().is_some_and(|t| t.flows == 0) {
            self.tuples[id] = None;
            self.order.retain(|o| usize::from(*o) != id);
        }
    }

    /// Makes a flow do what `result` says. Its mask must cover the result's.
    pub fn fill(&mut self, at: u32, result: &Translator, generation: u64, now: u64) {
        let cold = &mut self.cold[at as usize];
        cold.ops.clear();
        cold.ops.extend_from_slice(&result.ops);
        cold.rules.clear();
        cold.rules.extend_from_slice(&result.rules);
        (cold.tables, cold.bridged, cold.learn) = (result.tables, result.bridged, result.learn);
        (cold.reason, cold.used) = (result.reason, now);
        self.hot[at as usize].plan = plan(result);
        self.right_for(at, generation);
    }

    /// Notes that a flow is right for this generation of the tables.
    pub fn right_for(&mut self, at: u32, generation: u64) {
        self.cold[at as usize].generation = generation;
        let hot = &mut self.hot[at as usize];
        hot.valid = Hot::valid_for(hot.incarnation(), generation);
    }

    /// Forgets a flow.
    pub fn remove(&mut self, at: u32) {
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

    /// Packets and bytes of a flow since this was last asked.
    pub fn take_counts(&mut self, at: u32) -> (u64, u64) {
        let hot = &mut self.hot[at as usize];
        (u64::from(std::mem::take(&mut hot.packets)), std::mem::take(&mut hot.bytes))
    }

    /// Tries first what was hit most, from now on.
    pub fn sort(&mut self) {
        let Self { order, tuples, .. } = self;
        order.sort_by_key(|id| {
            let hits = tuples[usize::from(*id)].as_ref().map_or(0, |t| t.hits);
            (usize::from(*id) == EXACT, std::cmp::Reverse(hits))
        });
        tuples.iter_mut().flatten().for_each(|t| t.hits /= 2);
    }
}

/// The simplest form of a list of ops.
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

/// The numbers of the bits that are set.
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

    /// Flows that all fall into the same two buckets: as many as there is room for are found, one more is refused, and
    /// there is room again when one goes.
    #[test]
    fn a_full_pair_of_buckets_refuses() {
        let mut mega = Megaflows::new(256, 7);
        let mut result = Translator::default();
        result.mask.0[0] = !0;
        let key = |n: u64| std::array::from_fn(|word| if word == 0 { n } else { 0 });
        // The tuple's number is part of the hash; the first that is made has this one.
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
