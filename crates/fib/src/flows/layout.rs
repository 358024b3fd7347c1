//! The layout of a flow table's memory, which the XDP program reads as well (`xdp/flows.h`).
//!
//! Segments before [`RECORDS`] hold the index: buckets of one cache line, each of 16 slots of 32 bits. A slot names a
//! direction of a record, and has nine bits of its hash. The other segments hold the records, of 64 bytes for IPv4 and
//! 112 for IPv6; the header and the [`candidates`](super::candidates) take the place of the first records. A record
//! that would cross the end of its segment is left out: the program reads one segment at a time. Segments are made when
//! they are needed, that of the header with the first generation.
//!
//! Addresses and ports are in packet order, so that they are compared and written without conversion.

use crate::SEGMENT;

/// Words of a segment.
pub(super) const SEGMENT_WORDS: usize = SEGMENT / 8;
/// Number of the first segment with records.
pub(super) const RECORDS: usize = 32;
/// Maximum number of segments of a table.
pub(super) const SEGMENTS: usize = 256;
/// Slots of a bucket.
pub(super) const SLOTS: usize = 16;
/// Words of a bucket.
pub(super) const BUCKET: usize = SLOTS / 2;
/// Buckets of a segment: the initial size of the index.
pub(super) const BASE: usize = SEGMENT_WORDS / BUCKET;
/// Maximum number of buckets.
pub(super) const BUCKETS: usize = RECORDS * BASE;
/// Lowest bits of a slot, which name a direction of a record; the others are the hash's highest.
pub(super) const END: u32 = (1 << 23) - 1;

/// Word of the header with the size of the index: see [`Size`].
pub(super) const SIZE: usize = 0;
/// First of the header's words with the keys of the hash.
pub(super) const KEYS: usize = 1;

/// Words in front of the first record, in the segment that begins with the header.
pub(super) mod front {
    /// Word with the number of candidates that were reported so far, modulo 2^64.
    pub const REPORTED: usize = 16;
    /// First of the words with the weights of tuples.
    pub const WEIGHTS: usize = 64;
    /// Number of weights.
    pub const MANY_WEIGHTS: usize = 1 << 16;
    /// First word of the ring of reports.
    pub const REPORTS: usize = WEIGHTS + MANY_WEIGHTS;
    /// Number of reports in the ring.
    pub const MANY_REPORTS: usize = 1 << 11;
    /// Words of a report: a key, with its field `rest` as the fifth word.
    pub const REPORT: usize = 8;
    /// Number of words in front of the first record.
    pub const WORDS: usize = REPORTS + MANY_REPORTS * REPORT;
}

/// Word of a record with the packets of both directions, 32 bits each.
pub(super) const PACKETS: usize = 6;
/// Word of a record with its generation (0: none), and above it the changes of the checksums: see
/// [`Sums`].
pub(super) const STATE: usize = 7;
/// Bits of the generation in the word [`STATE`]. The generation of a revoked flow is 0.
pub(super) const GENERATION: u64 = 0xffff_ffff;

/// Returns the number of words of a record whose tuples have `N` words of addresses.
pub(super) const fn record_words<const N: usize>() -> usize {
    if N == 1 { 8 } else { 14 }
}

/// Returns whether a record crosses the end of a segment, and is not used.
pub(super) const fn crosses<const N: usize>(record: u32) -> bool {
    record_at::<N>(record) % SEGMENT_WORDS > SEGMENT_WORDS - record_words::<N>()
}

/// Returns the number of the first record.
pub(super) const fn first_record<const N: usize>() -> u32 {
    front::WORDS.div_ceil(record_words::<N>()) as u32
}

/// Returns the first word of a record.
pub(super) const fn record_at<const N: usize>(record: u32) -> usize {
    RECORDS * SEGMENT_WORDS + record as usize * record_words::<N>()
}

/// Returns the word of the header with the current generation.
pub(super) const fn generation_at<const N: usize>() -> usize {
    record_at::<N>(0) + record_words::<N>() - 1
}

/// Returns the offset in a record of a direction's addresses.
pub(super) const fn addresses_at<const N: usize>(direction: usize) -> usize {
    if N == 1 { 2 * direction } else { 8 * direction }
}

/// Returns the offset in a record of [`Key::rest`] of a direction.
pub(super) const fn rest_at<const N: usize>(direction: usize) -> usize {
    if N == 1 { 2 * direction + 1 } else { 4 + direction }
}

/// Returns the offset in a record of a direction's bytes.
pub(super) const fn bytes_at<const N: usize>(direction: usize) -> usize {
    if N == 1 { 4 + direction } else { 12 + direction }
}

/// Fields by which a packet is looked up. `N` is the number of words of its addresses: 1 for IPv4, 4 for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<const N: usize> {
    /// Source and destination address, as they lie in the packet.
    pub(super) addresses: [u64; N],
    /// Source and destination port, as they lie in the packet; above them the protocol, and from bit 48 on the number
    /// of the port that receives it.
    pub(super) rest: u64,
}

impl<const N: usize> Key<N> {
    /// Key of no packet.
    pub const NONE: Self = Self { addresses: [0; N], rest: 0 };

    /// Creates a key from both addresses, as they lie in the packet, both ports, the protocol, and the number of the
    /// port that received the packet.
    #[inline(always)]
    pub fn new(addresses: &[[u8; 8]; N], ports: [u8; 4], protocol: u8, port: u16) -> Self {
        let rest = u64::from(u32::from_le_bytes(ports)) | u64::from(protocol) << 32 | u64::from(port) << 48;
        Self { addresses: addresses.map(u64::from_le_bytes), rest }
    }

    /// Returns the addresses with source and destination exchanged.
    #[inline(always)]
    pub(super) fn swapped(addresses: [u64; N]) -> [u64; N] {
        if N == 1 {
            addresses.map(|both| both.rotate_left(32))
        } else {
            let mut swapped = addresses;
            swapped.rotate_left(N / 2);
            swapped
        }
    }
}

/// Keys of the hash: one to start from, one for each 32-bit word of the addresses, one each for ports and protocol.
pub(super) type Keys = [u64; 11];

/// Returns the hash of a key, whatever its port: the upper half of a sum of products with secret keys, which is
/// strongly universal (Lemire, Kaser 2014, "Strongly universal string hashing is fast").
#[inline(always)]
pub(super) fn hash<const N: usize>(keys: &Keys, key: &Key<N>) -> u32 {
    let product = |at: usize, word: u64| keys[at].wrapping_mul(word);
    let mut sum = keys[0];
    for (i, word) in key.addresses.iter().enumerate() {
        sum = sum.wrapping_add(product(2 * i + 1, word & 0xffff_ffff)).wrapping_add(product(2 * i + 2, word >> 32));
    }
    let protocol = key.rest >> 32 & 0xff;
    sum = sum.wrapping_add(product(2 * N + 1, key.rest & 0xffff_ffff)).wrapping_add(product(2 * N + 2, protocol));
    (sum >> 32) as u32
}

/// Returns the hash by which a key's second bucket is found.
#[inline(always)]
pub(super) fn second(hash: u32) -> u32 {
    (hash ^ hash >> 15).wrapping_mul(0x9e37_79b1) >> 12
}

/// Size of the index, in one word: the number of buckets, and above it the mask of the next power of two. The index
/// grows by one bucket at a time (Litwin 1980, "Linear hashing"): the first bucket that has not been split in this
/// round shares its slots with a new one at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub u64);

impl Size {
    /// Returns the size of an index of `buckets` buckets, a power of two.
    pub const fn of(buckets: usize) -> Self {
        Self(buckets as u64 | (2 * buckets as u64 - 1) << 32)
    }

    #[inline(always)]
    pub fn buckets(self) -> u32 {
        self.0 as u32
    }

    fn mask(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the bucket of a hash.
    #[inline(always)]
    pub fn bucket(self, hash: u32) -> usize {
        let at = hash & self.mask();
        (if at >= self.buckets() { at & self.mask() >> 1 } else { at }) as usize
    }

    /// Returns the bucket that is split next.
    pub fn oldest(self) -> usize {
        (self.buckets() & self.mask() >> 1) as usize
    }

    /// Returns the size after the next split.
    pub fn next(self) -> Self {
        let buckets = u64::from(self.buckets()) + 1;
        let mask = u64::from(self.mask());
        Self(buckets | if buckets > mask { mask << 33 | 1 << 32 } else { mask << 32 })
    }
}

/// Changes that translation makes to the checksums of packets of the original direction: the one's complement
/// differences between the reply tuple and the original tuple, of their addresses and of addresses and ports. Nonzero,
/// like the kernel's sums; the changes of the reply direction are their negatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    pub addresses: u16,
    pub all: u16,
}

impl Sums {
    pub fn between<const N: usize>(original: &Key<N>, reply: &Key<N>) -> Self {
        let halves = |word: u64| (0..4).map(|n| word >> (16 * n) & 0xffff).sum::<u64>();
        let addresses = |key: &Key<N>| key.addresses.iter().map(|word| halves(*word)).sum::<u64>();
        let all = |key: &Key<N>| addresses(key) + halves(key.rest & 0xffff_ffff);
        // A multiple of 0xffff that is larger than any of the sums.
        let difference = |new: u64, old: u64| nonzero(fold(new + (0xffff << 5) - old));
        Self {
            addresses: difference(addresses(reply), addresses(original)),
            all: difference(all(reply), all(original)),
        }
    }

    /// Returns the changes of a direction.
    #[inline(always)]
    pub fn of(self, direction: usize) -> Self {
        let of = |sum: u16| if direction == 0 { sum } else { nonzero(!sum) };
        Self { addresses: of(self.addresses), all: of(self.all) }
    }

    /// Returns the word [`STATE`] with a generation.
    pub fn state(self, generation: u32) -> u64 {
        u64::from(generation) | u64::from(self.addresses) << 32 | u64::from(self.all) << 48
    }

    #[inline(always)]
    pub fn of_state(state: u64) -> Self {
        Self { addresses: (state >> 32) as u16, all: (state >> 48) as u16 }
    }
}

fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns 0xffff, the other zero of one's complement, for 0.
#[inline(always)]
fn nonzero(sum: u16) -> u16 {
    if sum == 0 { 0xffff } else { sum }
}
