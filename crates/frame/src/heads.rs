//! Transposition of the first bytes of a burst's packets into columns, for stages that classify many packets at once.

use crate::{Arena, BATCH, Frame};
use std::arch::x86_64::*;

/// Offset of the first word in a packet, in bytes.
const FROM: usize = 10;
/// Words read of each packet.
const WORDS: usize = 6;
/// Length in bytes of the shortest packet that has all words.
const NEED: usize = FROM + 4 * WORDS;
/// Packets transposed at once.
const GROUP: usize = 8;

/// Six 32-bit words of each packet of a burst, from byte 10 to byte 33: with an untagged Ethernet header, these are two
/// bytes of the source address, the EtherType, and an IPv4 header without options.
#[repr(C, align(64))]
pub struct Heads {
    /// Words by word index and packet, little-endian. All zero for a packet shorter than 34 bytes. Entries beyond the
    /// burst's last packet hold stale values.
    pub words: [[u32; BATCH]; WORDS],
    /// Packet lengths in bytes.
    pub lens: [u32; BATCH],
}

impl Default for Heads {
    fn default() -> Self {
        Self { words: [[0; BATCH]; WORDS], lens: [0; BATCH] }
    }
}

/// A burst whose heads have been read.
pub struct Burst<'a> {
    arena: &'a Arena,
    frames: &'a mut [Frame],
    /// Every packet has at least `NEED` bytes, and all were checked to lie in the mapping.
    whole: bool,
}

impl<'a> Burst<'a> {
    /// Returns the frames.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        self.frames
    }

    /// Consumes the burst and returns its frames, mutable: changing them invalidates the checks made when reading.
    #[inline]
    pub fn into_frames(self) -> &'a mut [Frame] {
        self.frames
    }

    /// Returns the first 34 bytes of every packet, mutable; `None` if any packet is shorter.
    #[inline]
    pub fn heads_mut(&mut self) -> Option<impl Iterator<Item = &mut [u8; NEED]>> {
        let base = self.arena.base();
        // SAFETY: `whole` was established when the burst was made, and the frames have not been changed since. Each is
        // exclusive, so the heads do not overlap; nobody else reads or writes them while the burst is borrowed.
        self.whole.then(|| self.frames.iter_mut().map(move |f| unsafe { &mut *base.add(f.addr() as usize).cast() }))
    }
}

impl Heads {
    /// Offset of the first word in a packet, in bytes.
    pub const FROM: usize = FROM;
    /// Words read of each packet.
    pub const WORDS: usize = WORDS;

    /// Reads the heads of `frames`, at most [`BATCH`] of them.
    #[inline]
    pub fn read<'a>(&mut self, arena: &'a Arena, frames: &'a mut [Frame]) -> Burst<'a> {
        let whole = self.read_shared(arena, frames);
        Burst { arena, whole: whole && frames.len() <= BATCH, frames }
    }

    /// Reads like [`Heads::read`], but leaves the frames shared. Returns whether every packet has all words.
    #[inline]
    pub fn read_shared(&mut self, arena: &Arena, frames: &[Frame]) -> bool {
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports AVX2.
            unsafe { self.read_avx2(arena, frames) }
        } else {
            self.read_from(arena, frames, 0)
        }
    }

    /// Reads packets one at a time from index `from` on. Returns whether every one of them has all words.
    #[inline(always)]
    fn read_from(&mut self, arena: &Arena, frames: &[Frame], from: usize) -> bool {
        let mut whole = true;
        for (i, frame) in frames.iter().enumerate().take(BATCH).skip(from) {
            self.lens[i] = frame.len() as u32;
            let bytes: &[u8; NEED] = arena.head(frame).unwrap_or_else(|| {
                whole = false;
                &[0; NEED]
            });
            let (words, _) = bytes[FROM..].as_chunks::<4>();
            for (column, word) in self.words.iter_mut().zip(words) {
                column[i] = u32::from_le_bytes(*word);
            }
        }
        whole
    }

    /// Reads eight packets at a time, 32 bytes each. Incomplete groups, and groups with a packet shorter than `NEED`,
    /// are read by the scalar code. Returns whether every packet has all words.
    #[target_feature(enable = "avx2")]
    fn read_avx2(&mut self, arena: &Arena, frames: &[Frame]) -> bool {
        let mut whole = true;
        let (groups, rest) = frames.as_chunks::<GROUP>();
        let mut ahead = frames.iter();
        ahead.by_ref().take(GROUP).for_each(|f| arena.prefetch(f));
        for (g, group) in groups.iter().enumerate().take(BATCH / GROUP) {
            ahead.by_ref().take(GROUP).for_each(|f| arena.prefetch(f));
            let at = g * GROUP;
            if group.iter().any(|f| f.len() < NEED) {
                whole &= self.read_from(arena, &frames[..at + GROUP], at);
                continue;
            }
            let mut rows = [_mm256_setzero_si256(); GROUP];
            for (i, frame) in group.iter().enumerate() {
                let (start, len) = arena.checked(frame);
                self.lens[at + i] = len as u32;
                // SAFETY: the row lies inside the packet, which has at least NEED bytes and is inside the mapping;
                // nobody writes while its frame is borrowed.
                rows[i] = unsafe { _mm256_loadu_si256(arena.base().add(start + NEED - 32).cast()) };
            }
            let [a, b, c, d, e, f, g, h] = rows;
            let (a, b) = (turn(a, b, c, d), turn(e, f, g, h));
            let columns = [
                _mm256_permute2x128_si256::<0x20>(a[2], b[2]),
                _mm256_permute2x128_si256::<0x20>(a[3], b[3]),
                _mm256_permute2x128_si256::<0x31>(a[0], b[0]),
                _mm256_permute2x128_si256::<0x31>(a[1], b[1]),
                _mm256_permute2x128_si256::<0x31>(a[2], b[2]),
                _mm256_permute2x128_si256::<0x31>(a[3], b[3]),
            ];
            for (to, column) in self.words.iter_mut().zip(columns) {
                // SAFETY: `at` is at most BATCH - GROUP, so that eight entries follow.
                unsafe { _mm256_storeu_si256(to.as_mut_ptr().add(at).cast(), column) };
            }
        }
        self.read_from(arena, frames, frames.len() - rest.len()) && whole
    }
}

/// Transposes four rows of eight words into pairs of columns: words 0 and 4 (in the lower and upper half), 1 and 5, 2
/// and 6, 3 and 7.
#[target_feature(enable = "avx2")]
#[inline]
fn turn(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ef, gh) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ef, gh),
        _mm256_unpackhi_epi64(ef, gh),
    ]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};

    #[test]
    fn columns_are_the_packets_bytes() {
        let arena = Arena::new(ArenaConfig { cells: BATCH, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena.clone(), &[PoolConfig::stack("main", BATCH)]).unwrap();
        let mut bufs = Buffers::attach(&pools, 0);
        let mut seed = 1u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        for round in 0..2000 {
            let mut batch = Batch::new();
            let n = bufs.alloc(&mut batch, 1 + random() as usize % BATCH);
            for frame in batch.as_mut_slice() {
                // Mostly long enough, in some rounds always; anywhere in the cell, up to its last byte.
                let len = if round % 3 == 0 { 34 + random() % 30 } else { random() % 90 };
                let bytes: Vec<u8> = (0..1792).map(|_| random() as u8).collect();
                assert!(arena.write(frame, &bytes));
                let most = 1792 - len as usize;
                frame.pull(if random() % 4 == 0 { most } else { random() as usize % 64 });
                frame.truncate(len as usize);
            }
            let mut heads = Heads::default();
            let mut burst = heads.read(&arena, batch.as_mut_slice());
            let whole = burst.frames().iter().all(|f| f.len() >= NEED);
            assert_eq!(burst.heads_mut().is_some(), whole);
            let starts = burst.heads_mut().map(|h| h.map(|h| *h).collect::<Vec<_>>());
            let mut twin = Heads::default();
            twin.read_from(&arena, batch.as_slice(), 0);
            for (i, frame) in batch.as_slice().iter().enumerate() {
                let data = arena.data(frame);
                assert!(starts.as_ref().is_none_or(|s| s[i] == data[..NEED]));
                assert_eq!(heads.lens[i] as usize, data.len());
                for w in 0..WORDS {
                    let at = FROM + 4 * w;
                    let want =
                        if data.len() < NEED { 0 } else { u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) };
                    assert_eq!(heads.words[w][i], want, "word {w} of packet {i} of {n}, {} bytes", data.len());
                    assert_eq!(twin.words[w][i], want, "scalar: word {w} of packet {i} of {n}");
                }
            }
            bufs.free(&mut batch);
        }
    }
}
