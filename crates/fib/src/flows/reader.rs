//! The readers' side of a flow table: lookups in memory that one writer changes concurrently.

use super::Traffic;
use super::layout::{
    BUCKET, END, GENERATION, KEYS, Key, Keys, PACKETS, SIZE, SLOTS, STATE, Size, Sums, addresses_at, bytes_at,
    generation_at, hash, record_at, record_words, rest_at, second,
};
use crate::region::Region;
use std::sync::atomic::Ordering;

/// Keys looked up together, so that their cache misses overlap.
const BATCH: usize = 64;

/// The flows of one family, shared by `Arc`; `N` is 1 for IPv4 and 4 for IPv6.
///
/// # Thread-safety
/// Any number of readers may run concurrently with the one writer. Each must hold an online
/// [`Reader`](bywash_sync::Reader) of the domain that the table was made with, and announce
/// [`quiescent`](bywash_sync::Reader::quiescent) only when it has no [`Hit`] left. Memory safety does not depend on
/// this.
pub struct FlowTable<const N: usize> {
    pub(super) region: Region,
    pub(super) keys: Keys,
}

/// Flow that a packet belongs to, and its direction; the default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit(pub(super) u32);

impl Hit {
    /// No flow.
    pub const NONE: Self = Self(0);

    /// Returns whether the packet belongs to a flow.
    #[inline(always)]
    pub fn is_some(self) -> bool {
        self.0 != 0
    }

    #[inline(always)]
    pub(super) fn record(self) -> u32 {
        self.0 >> 1
    }

    #[inline(always)]
    pub(super) fn direction(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// A packet's addresses and ports when it leaves, and the resulting changes of its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit<const N: usize> {
    /// Source and destination address, as they lie in the packet.
    pub addresses: [[u8; 8]; N],
    /// Source and destination port, as they lie in the packet.
    pub ports: [u8; 4],
    /// Number of the port that it leaves by.
    pub port: u16,
    /// One's complement difference of the addresses, in the order of the packet's bytes; never 0.
    pub addresses_change: u16,
    /// One's complement difference of addresses and ports; never 0.
    pub change: u16,
}

impl<const N: usize> FlowTable<N> {
    pub(super) fn word(&self, hit: Hit, at: usize) -> u64 {
        self.region.load(record_at::<N>(hit.record()) + at)
    }

    #[inline(always)]
    pub(super) fn size(&self) -> Size {
        Size(self.region.load(record_at::<N>(0) + SIZE))
    }

    #[inline(always)]
    pub(super) fn generation(&self) -> u32 {
        self.region.load(generation_at::<N>()) as u32
    }

    /// Returns the tuple by which packets of a direction are found.
    #[inline(always)]
    pub(super) fn key(&self, hit: Hit) -> Key<N> {
        let from = addresses_at::<N>(hit.direction());
        let addresses = std::array::from_fn(|i| self.word(hit, from + i));
        Key { addresses, rest: self.word(hit, rest_at::<N>(hit.direction())) }
    }

    /// Returns the flow of a packet; [`Hit::NONE`] if it has none of the current generation.
    #[inline]
    pub fn lookup(&self, key: &Key<N>) -> Hit {
        let mut hit = [Hit::NONE];
        self.lookup_batch(std::slice::from_ref(key), &mut hit);
        hit[0]
    }

    /// Looks up `keys[i]` into `out[i]`.
    ///
    /// # Panics
    /// If the slices' lengths differ.
    pub fn lookup_batch(&self, keys: &[Key<N>], out: &mut [Hit]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        let (size, generation) = (self.size(), self.generation());
        // Without flows there is no index; no record has generation 0.
        if size.buckets() == 0 || generation == 0 {
            return out.fill(Hit::NONE);
        }
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            self.chunk(size, generation, keys, out);
        }
    }

    fn chunk(&self, size: Size, generation: u32, keys: &[Key<N>], out: &mut [Hit]) {
        let view = self.region.view();
        let mut hashes = [0; BATCH];
        for (hash_of, key) in hashes.iter_mut().zip(keys) {
            *hash_of = hash(&self.keys, key);
            view.prefetch((size.bucket(*hash_of) * BUCKET) as u32);
        }
        for (hash, out) in hashes.iter().zip(&mut *out) {
            *out = self.first_in(size.bucket(*hash), *hash);
            let next = match out.is_some() {
                true => record_at::<N>(out.record()),
                false => size.bucket(second(*hash)) * BUCKET,
            };
            view.prefetch(next as u32);
            if N > 1 && out.is_some() {
                // A record lies in two cache lines or three.
                view.prefetch((next + 8) as u32);
                view.prefetch((next + record_words::<N>() - 1) as u32);
            }
        }
        for ((key, hash), out) in keys.iter().zip(hashes).zip(out) {
            if !(out.is_some() && self.is(*out, key)) {
                *out = self.find(size, hash, key).map_or(Hit::NONE, |found| found.1);
            }
            // The generation is read last: a flow that is added or removed meanwhile has generation 0.
            if out.is_some() && self.word(*out, STATE) as u32 != generation {
                *out = Hit::NONE;
            }
        }
    }

    #[inline(always)]
    pub(super) fn is(&self, hit: Hit, key: &Key<N>) -> bool {
        self.key(hit) == *key
    }

    /// Returns the first slot in a bucket with the bits of a hash.
    #[inline(always)]
    fn first_in(&self, bucket: usize, hash: u32) -> Hit {
        self.matches(bucket, hash).next().map_or(Hit::NONE, |found| found.1)
    }

    /// Iterates over the slots in a bucket that have the bits of a hash, with their places in the index.
    #[inline(always)]
    pub(super) fn matches(&self, bucket: usize, hash: u32) -> impl Iterator<Item = (usize, Hit)> {
        let (view, tag) = (self.region.view(), hash & !END);
        let words: [u64; BUCKET] = std::array::from_fn(|i| view.load((bucket * BUCKET) as u32, i));
        (0..SLOTS).filter_map(move |i| {
            let end = (words[i / 2] >> (i % 2 * 32)) as u32 ^ tag;
            (end.wrapping_sub(1) < END).then_some((bucket * SLOTS + i, Hit(end)))
        })
    }

    /// Returns the place and the contents of the slot of a key, whatever its generation.
    pub(super) fn find(&self, size: Size, hash: u32, key: &Key<N>) -> Option<(usize, Hit)> {
        let of = |bucket| self.matches(bucket, hash).find(|(_, hit)| self.is(*hit, key));
        of(size.bucket(hash)).or_else(|| of(size.bucket(second(hash))))
    }

    /// Returns the original direction with the tuple of a key, whatever its port and generation.
    pub(super) fn find_original(&self, size: Size, hash: u32, key: &Key<N>) -> Option<Hit> {
        let of = |bucket| self.matches(bucket, hash).map(|found| found.1).find(|hit| self.is_original(*hit, key));
        of(size.bucket(hash)).or_else(|| of(size.bucket(second(hash))))
    }

    /// Returns whether this is the original direction of a flow, with the tuple of a key, whatever its port.
    pub(super) fn is_original(&self, hit: Hit, key: &Key<N>) -> bool {
        let found = self.key(hit);
        hit.direction() == 0 && found.addresses == key.addresses && (found.rest ^ key.rest) << 16 == 0
    }

    /// Returns how a packet of this flow and direction leaves.
    #[inline]
    pub fn exit(&self, hit: Hit) -> Exit<N> {
        let out = self.key(Hit(hit.0 ^ 1));
        let ports = (out.rest as u32).rotate_left(16);
        let sums = Sums::of_state(self.word(hit, STATE)).of(hit.direction());
        Exit {
            addresses: Key::swapped(out.addresses).map(u64::to_le_bytes),
            ports: ports.to_le_bytes(),
            port: (out.rest >> 48) as u16,
            addresses_change: sums.addresses,
            change: sums.all,
        }
    }

    /// Revokes a flow: no packet belongs to it any more. The writer removes it, and adds another for the connection
    /// once this may have one again.
    #[inline]
    pub fn revoke(&self, hit: Hit) {
        self.region.and(record_at::<N>(hit.record()) + STATE, !GENERATION);
    }

    /// Counts a packet of `bytes` bytes that has been forwarded.
    #[inline]
    pub fn count(&self, hit: Hit, bytes: u32) {
        let at = record_at::<N>(hit.record());
        self.region.half(2 * (at + PACKETS) + hit.direction()).fetch_add(1, Ordering::Relaxed);
        self.region.add(at + bytes_at::<N>(hit.direction()), bytes.into());
    }

    pub(super) fn traffic(&self, record: u32) -> [Traffic; 2] {
        let at = record_at::<N>(record);
        [0, 1].map(|direction| Traffic {
            packets: self.region.half(2 * (at + PACKETS) + direction).load(Ordering::Relaxed),
            bytes: self.region.load(at + bytes_at::<N>(direction)),
        })
    }
}

const _: () = assert!(KEYS + size_of::<Keys>() / 8 + record_at::<4>(0) <= generation_at::<4>());
