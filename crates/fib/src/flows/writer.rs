//! The writer's side of a flow table.
//!
//! # Order of the writes
//! A record is whole before a slot names it. A removed flow first loses its generation, then its slots; the record is
//! used again after a grace period, since readers may still hold it, and after another one if a slot that had moved
//! still named it. When a bucket is split, the slots that move are written into the new bucket before the size that
//! leads there; in the old one they stay until a grace period has passed, for readers that have read the size before.

use super::layout::{
    BASE, BUCKETS, END, GENERATION, KEYS, Key, Keys, PACKETS, RECORDS, SEGMENT_WORDS, SEGMENTS, SIZE, SLOTS, STATE,
    Size, Sums, addresses_at, bytes_at, crosses, first_record, generation_at, hash, record_at, record_words, rest_at,
    second,
};
use super::reader::{FlowTable, Hit};
use super::{Refused, Traffic};
use crate::SEGMENT;
use crate::region::{Region, Shared};
use bywash_sync::Qsbr;
use bywash_sync::qsbr::Epoch;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// Average number of slots in use per bucket beyond which the index grows. Buckets that have not been split in a round
/// have up to twice as many.
const USUAL: u32 = SLOTS as u32 / 2;
/// Number of slots in use in a key's first bucket from which on its second one may be used.
const CROWDED: usize = 12;

/// Number of bucket splits after which garbage is collected without being asked to.
const COLLECTED: u32 = 1024;

/// Returns the places of a bucket's slots.
fn places(bucket: usize) -> std::ops::Range<usize> {
    bucket * SLOTS..(bucket + 1) * SLOTS
}

/// The writer of one family's table.
pub(super) struct Writer<const N: usize> {
    pub(super) table: Arc<FlowTable<N>>,
    domain: Qsbr,
    generation: u32,
    /// Size that the index begins with.
    first: Size,
    /// `None` before the first generation.
    size: Option<Size>,
    /// Segments with buckets.
    index: usize,
    /// Segments with records.
    records: usize,
    /// Lowest record that has never been used.
    top: u32,
    pub(super) free: Vec<u32>,
    garbage: Garbage,
    waiting: Option<Waiting>,
    /// Places of slots that have moved to another bucket and are still to be cleared, whether or not their grace period
    /// has begun.
    pub(super) stale: HashSet<u32>,
    len: usize,
    /// Number of candidates that were taken.
    pub(super) taken: u64,
}

/// Memory that readers may still use.
#[derive(Default)]
struct Garbage {
    records: Vec<u32>,
    /// Records that slots named until the last grace period had passed.
    unnamed: Vec<u32>,
    /// Places of slots that have moved to another bucket.
    slots: Vec<u32>,
}

impl Garbage {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.unnamed.is_empty() && self.slots.is_empty()
    }
}

/// Garbage whose grace period has begun.
struct Waiting {
    garbage: Garbage,
    epoch: Epoch,
    /// Waits for readers outside the domain; `None` if there are none.
    outside: Option<JoinHandle<()>>,
}

impl<const N: usize> Writer<N> {
    pub fn new(domain: &Qsbr, memory: Option<Box<dyn Shared>>, keys: Keys, first: Size) -> io::Result<Self> {
        let region = Region::of(SEGMENTS * SEGMENT_WORDS, memory)?;
        Ok(Self {
            table: Arc::new(FlowTable { region, keys }),
            domain: domain.clone(),
            generation: 0,
            first,
            size: None,
            index: 0,
            records: 0,
            top: first_record::<N>(),
            free: vec![],
            garbage: Garbage::default(),
            waiting: None,
            stale: HashSet::new(),
            len: 0,
            taken: 0,
        })
    }

    pub fn reader(&self) -> &Arc<FlowTable<N>> {
        &self.table
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn memory(&self) -> usize {
        let slots =
            |garbage: &Garbage| garbage.records.capacity() + garbage.unnamed.capacity() + garbage.slots.capacity();
        let waiting = self.waiting.as_ref().map_or(0, |waiting| slots(&waiting.garbage));
        (self.index + self.records) * SEGMENT + (self.free.capacity() + slots(&self.garbage) + waiting) * 4
    }

    pub fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
        // Without memory there are neither flows nor candidates.
        if self.size.is_some() || (generation != 0 && self.begin().is_ok()) {
            self.store(generation_at::<N>(), generation.into());
        }
    }

    /// Adds a flow; returns its record. `keys` are the tuples of its directions.
    pub fn insert(&mut self, keys: [Key<N>; 2], generation: u32) -> Result<u32, Refused> {
        let size = match self.size {
            Some(size) => size,
            None => self.begin()?,
        };
        if self.index == 0 {
            self.commit(0)?;
            self.index = 1;
        }
        let hashes = keys.map(|key| hash(&self.table.keys, &key));
        if keys.iter().zip(hashes).any(|(key, hash)| self.find_slot(size, hash, key).is_some()) {
            return Err(Refused::Known);
        }
        let mut size = size;
        for _ in 0..2 {
            if 2 * (self.len as u32 + 1) > size.buckets() * USUAL {
                size = self.split(size);
            }
        }
        let place = |hash, taken| self.room(size, hash, taken).or_else(|| self.displaced(size, hash, taken));
        let original = place(hashes[0], None).ok_or(Refused::Full)?;
        let reply = place(hashes[1], Some(original)).ok_or(Refused::Full)?;
        let record = self.record()?;
        let at = record_at::<N>(record);
        for (direction, key) in keys.iter().enumerate() {
            for (i, word) in key.addresses.iter().enumerate() {
                self.store(at + addresses_at::<N>(direction) + i, *word);
            }
            self.store(at + rest_at::<N>(direction), key.rest);
            self.table.region.half(2 * (at + PACKETS) + direction).store(0, Ordering::Relaxed);
            self.store(at + bytes_at::<N>(direction), 0);
        }
        self.store(at + STATE, Sums::between(&keys[0], &keys[1]).state(generation));
        for (direction, (place, hash)) in [original, reply].into_iter().zip(hashes).enumerate() {
            self.put(place, hash & !END | record << 1 | direction as u32);
            self.table.forget(hash);
        }
        self.len += 1;
        Ok(record)
    }

    /// Sets the generation of a flow unless the writer or a reader has revoked it; returns whether it was set.
    pub fn confirm(&mut self, record: u32, generation: u32) -> bool {
        let new = |old| (old & GENERATION != 0).then_some(old & !GENERATION | u64::from(generation));
        self.table.region.update(record_at::<N>(record) + STATE, new)
    }

    /// Makes a flow invalid: no packet belongs to it.
    pub fn revoke(&mut self, record: u32) {
        self.table.region.and(record_at::<N>(record) + STATE, !GENERATION);
    }

    pub fn remove(&mut self, record: u32) {
        self.revoke(record);
        let Some(size) = self.size else { return };
        let mut found = false;
        for direction in 0..2 {
            let end = Hit(record << 1 | direction);
            let key = self.table.key(end);
            let slot = self.find_slot(size, hash(&self.table.keys, &key), &key);
            if let Some((place, _)) = slot.filter(|found| found.1 == end) {
                self.put(place, 0);
                found = true;
            }
        }
        if found {
            self.garbage.records.push(record);
            self.len -= 1;
        }
    }

    /// Returns the record whose original direction has this key, whatever the port.
    pub fn find(&self, key: &Key<N>) -> Option<u32> {
        let is = |found: &(usize, Hit)| self.table.is_original(found.1, key);
        self.slots(self.size?, hash(&self.table.keys, key)).find(is).map(|(_, hit)| hit.record())
    }

    /// Iterates over the slots with the bits of a hash in its two buckets, with their places, except those that have
    /// moved.
    fn slots(&self, size: Size, hash: u32) -> impl Iterator<Item = (usize, Hit)> {
        let of = move |hash_of| self.table.matches(size.bucket(hash_of), hash);
        of(hash).chain(of(second(hash))).filter(|(place, _)| !self.stale.contains(&(*place as u32)))
    }

    /// Returns the place and the contents of the slot of a key, whatever its generation.
    fn find_slot(&self, size: Size, hash: u32, key: &Key<N>) -> Option<(usize, Hit)> {
        self.slots(size, hash).find(|(_, hit)| self.table.is(*hit, key))
    }

    /// Returns the keys of a record's directions.
    pub fn keys(&self, record: u32) -> [Key<N>; 2] {
        [0, 1].map(|direction| self.table.key(Hit(record << 1 | direction)))
    }

    pub fn generation(&self, record: u32) -> u32 {
        self.table.region.load(record_at::<N>(record) + STATE) as u32
    }

    pub fn traffic(&self, record: u32) -> [Traffic; 2] {
        self.table.traffic(record)
    }

    /// Begins a grace period for the garbage so far, if none is under way, and ends one that has passed. Returns the
    /// number of records that are not free yet.
    pub fn collect(&mut self) -> usize {
        let passed = |waiting: &mut Waiting| {
            self.domain.passed(waiting.epoch) && waiting.outside.as_ref().is_none_or(JoinHandle::is_finished)
        };
        if let Some(Waiting { garbage, .. }) = self.waiting.take_if(passed) {
            for place in &garbage.slots {
                self.stale.remove(place);
                self.put(*place as usize, 0);
            }
            self.free.extend(garbage.unnamed);
            // Until now, a reader could find a record by such a slot.
            match garbage.slots.is_empty() {
                true => self.free.extend(garbage.records),
                false => self.garbage.unnamed.extend(garbage.records),
            }
        }
        if self.waiting.is_none() && !self.garbage.is_empty() {
            let garbage = std::mem::take(&mut self.garbage);
            let epoch = self.domain.advance();
            self.waiting = Some(Waiting { garbage, epoch, outside: self.outside() });
        }
        let used = |garbage: &Garbage| garbage.records.len() + garbage.unnamed.len();
        used(&self.garbage) + self.waiting.as_ref().map_or(0, |waiting| used(&waiting.garbage))
    }

    /// Starts to wait for readers outside the domain, which takes milliseconds, in a thread of its own.
    fn outside(&self) -> Option<JoinHandle<()>> {
        let table = self.table.clone();
        if !table.region.is_shared() {
            return None;
        }
        let started = std::thread::Builder::new().name("flows-grace".into()).spawn(move || table.region.grace());
        started.inspect_err(|_| self.table.region.grace()).ok()
    }

    /// Makes the first segment of records, whose front the candidates need. That of the index is made with the first
    /// flow: until then, readers find only zeros there, or no segment.
    fn begin(&mut self) -> Result<Size, Refused> {
        if self.records == 0 {
            self.commit(RECORDS)?;
            self.records = 1;
        }
        let header = record_at::<N>(0);
        for (i, key) in self.table.keys.into_iter().take(2 * N + 3).enumerate() {
            self.store(header + KEYS + i, key);
        }
        self.store(generation_at::<N>(), self.generation.into());
        self.set_size(self.first);
        Ok(self.first)
    }

    fn set_size(&mut self, size: Size) {
        self.size = Some(size);
        self.store(record_at::<N>(0) + SIZE, size.0);
    }

    /// Makes segment `n`. Once a shared segment was refused, the table does not grow any more: other readers would not
    /// see it.
    fn commit(&self, n: usize) -> Result<(), Refused> {
        let region = &self.table.region;
        if !region.is_refused()
            && region.commit(n * SEGMENT_WORDS, (n + 1) * SEGMENT_WORDS).is_ok()
            && !region.is_refused()
        {
            Ok(())
        } else {
            Err(Refused::Full)
        }
    }

    /// Returns a record that nobody uses.
    fn record(&mut self) -> Result<u32, Refused> {
        if let Some(record) = self.free.pop() {
            return Ok(record);
        }
        if crosses::<N>(self.top) {
            self.top += 1;
        }
        let end = record_at::<N>(self.top) + record_words::<N>();
        if end > (RECORDS + self.records) * SEGMENT_WORDS {
            if RECORDS + self.records == SEGMENTS || self.top > END >> 1 {
                return Err(Refused::Full);
            }
            self.commit(RECORDS + self.records)?;
            self.records += 1;
        }
        self.top += 1;
        Ok(self.top - 1)
    }

    /// Returns the place of an empty slot, other than `taken`, for a hash.
    fn room(&self, size: Size, hash: u32, taken: Option<usize>) -> Option<usize> {
        let empty = |place: &usize| self.is_empty(*place, taken);
        let used = |bucket| SLOTS - places(bucket).filter(empty).count();
        let mut bucket = size.bucket(hash);
        if used(bucket) >= CROWDED {
            let other = size.bucket(second(hash));
            bucket = if used(other) < used(bucket) { other } else { bucket };
        }
        places(bucket).find(empty)
    }

    /// Moves a slot from one of a hash's two full buckets to its own other bucket, and returns the place that it
    /// leaves. A reader that has just looked in that other bucket finds no flow for this packet.
    fn displaced(&self, size: Size, hash: u32, taken: Option<usize>) -> Option<usize> {
        let buckets = |hash| [size.bucket(hash), size.bucket(second(hash))];
        buckets(hash).into_iter().flat_map(places).find(|place| {
            let slot = self.table.region.load32(*place);
            if slot == 0 || self.stale.contains(&(*place as u32)) {
                return false;
            }
            let of = self::hash(&self.table.keys, &self.table.key(Hit(slot & END)));
            let other = buckets(of).into_iter().filter(|bucket| *bucket != place / SLOTS).flat_map(places);
            let Some(empty) = other.into_iter().find(|place| self.is_empty(*place, taken)) else { return false };
            self.put(empty, slot);
            self.put(*place, 0);
            true
        })
    }

    fn is_empty(&self, place: usize, taken: Option<usize>) -> bool {
        self.table.region.load32(place) == 0 && Some(place) != taken
    }

    /// Splits a bucket; returns the new size. Leaves the index as it is if there is no memory.
    fn split(&mut self, size: Size) -> Size {
        let (old, new, next) = (size.oldest(), size.buckets() as usize, size.next());
        if new >= BUCKETS {
            return size;
        }
        if new >= self.index * BASE {
            if self.commit(self.index).is_err() {
                return size;
            }
            self.index += 1;
        }
        let mut to = new * SLOTS;
        for place in old * SLOTS..(old + 1) * SLOTS {
            let slot = self.table.region.load32(place);
            // One that has moved before may be about to be cleared, and its place to be used again.
            if slot == 0 || self.stale.contains(&(place as u32)) {
                continue;
            }
            let hash = hash(&self.table.keys, &self.table.key(Hit(slot & END)));
            let by = [hash, second(hash)].into_iter().find(|hash| size.bucket(*hash) == old);
            if by.is_some_and(|hash| next.bucket(hash) == new) {
                self.put(to, slot);
                to += 1;
                self.garbage.slots.push(place as u32);
                self.stale.insert(place as u32);
            }
        }
        self.set_size(next);
        // Slots that have moved take room until they are cleared: at the latest when their bucket is split again.
        if next.buckets().is_multiple_of(COLLECTED) {
            self.collect();
        }
        next
    }

    fn put(&self, place: usize, slot: u32) {
        self.table.region.store32(place, slot);
        #[cfg(test)]
        super::tests::stored();
    }

    fn store(&self, at: usize, value: u64) {
        self.table.region.store(at, value);
        #[cfg(test)]
        super::tests::stored();
    }
}
