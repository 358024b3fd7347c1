//! The readers' side: longest-prefix match in memory that one writer changes under them.
//!
//! A table is a root of 2^18 references and, below it, nodes of six bits each. A reference (32 bits) is a next-hop id, a
//! bitmap node or a skip. A bitmap node is one 64-bit word and the references of its runs: bit *i* says that
//! slot *i* differs from slot *i-1*, so the reference of a slot is number `popcnt(bitmap << (63 - slot))`. Covering
//! routes are pushed down into the slots they cover, so a lookup never looks back. A skip jumps over bits that all
//! routes below share.
//!
//! # Consistency
//! The writer makes new nodes, then stores the one reference that leads to them: every address is looked up in a
//! state from before or after a change, never in between. Two addresses of one batch may see different states.
//!
//! # Contract of the readers
//! Nodes are reused after a grace period of the domain given to `Table::new`. Hold an online
//! [`Reader`](bywash_sync::Reader) of that domain, and announce [`quiescent`](bywash_sync::Reader::quiescent) only
//! between lookups. Memory safety does not depend on it: without it a lookup that a writer overtakes may return an
//! id that was never a route's, nothing worse. Ids that a control side retires need the same grace period.

use crate::addr::{Addr, ROOT, STRIDE};
use crate::region::{Region, View};
use crate::simd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Names a next hop; opaque here. 0 is [`NO_ROUTE`]; ids go up to [`MAX_ID`].
pub type NextHopId = u32;
/// What a lookup returns when no route covers the address.
pub const NO_ROUTE: NextHopId = 0;
/// Largest id: references are 32 bits, one of which marks nodes.
pub const MAX_ID: NextHopId = (1 << 31) - 1;

/// Marks a reference to a node.
pub(crate) const NODE: u32 = 1 << 31;
/// Marks, beside [`NODE`], a skip.
pub(crate) const SKIP: u32 = 1 << 30;
/// A reference's word index.
pub(crate) const INDEX: u32 = SKIP - 1;
/// Words of the root, which the region starts with.
pub(crate) const ROOT_WORDS: usize = 1 << (ROOT - 1);
/// Keys looked up together. Enough that their cache misses overlap as far as the core lets them.
pub(crate) const BATCH: usize = 64;
/// Bytes of the largest table that is taken to be in the caches while it is used.
const CACHED: usize = 16 << 20;

/// The readers' side of a table; shared by `Arc`, see the module for the contract.
///
/// # Thread-safety
/// Any number of readers, concurrent with the one writer that owns the table.
pub struct Fib<A> {
    pub(crate) region: Region,
    pub(crate) top_bytes: AtomicUsize,
    vector: bool,
    gather: bool,
    bmi2: bool,
    family: std::marker::PhantomData<A>,
}

/// The IPv4 forwarding table. Addresses are `u32` in host order.
pub type Fib4 = Fib<u32>;
/// The IPv6 forwarding table. Addresses are `u128` in host order.
pub type Fib6 = Fib<u128>;

/// Which code looks a batch up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// One key after the other, branch-free, level by level with prefetch. Measured faster wherever gathers are slow,
    /// as they are on every Intel core with the mitigation of CVE-2022-40982.
    Scalar,
    /// Eight keys at a time by gathers: AVX-512 F, VL, DQ and VPOPCNTDQ (Ice Lake, Zen 4 and later). The default where
    /// the kernel says that gathers need no mitigation.
    Avx512,
}

impl<A: Addr> Fib<A> {
    pub(crate) fn new(region: Region) -> Self {
        Self {
            region,
            top_bytes: AtomicUsize::new(0),
            vector: simd::available(),
            gather: simd::available() && simd::fast_gathers(),
            bmi2: simd::bmi2(),
            family: std::marker::PhantomData,
        }
    }

    /// Whether this processor can run `kernel`.
    pub fn can(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Scalar || self.vector
    }

    /// The code that [`Fib::lookup_batch`] takes: the faster one, as far as can be known of this processor and from the
    /// table's size. A table beyond the caches is the scalar kernel's, which prefetches.
    #[inline]
    pub fn kernel(&self) -> Kernel {
        if self.gather && self.bytes() <= CACHED { Kernel::Avx512 } else { Kernel::Scalar }
    }

    /// Bytes of memory in use, root included; free memory between nodes counts.
    pub fn bytes(&self) -> usize {
        self.top_bytes.load(Ordering::Relaxed)
    }

    /// The id of the longest prefix that covers `dst`, or [`NO_ROUTE`].
    #[inline]
    pub fn lookup(&self, dst: A) -> NextHopId {
        self.walk(self.region.load32(dst.root()), dst, ROOT)
    }

    /// Looks up `dst[i]` into `out[i]`.
    ///
    /// # Panics
    /// When the slices' lengths differ.
    pub fn lookup_batch(&self, dst: &[A], out: &mut [NextHopId]) {
        self.lookup_batch_with(self.kernel(), dst, out);
    }

    /// [`Fib::lookup_batch`] by a given kernel; scalar where the processor has no other.
    ///
    /// # Panics
    /// When the slices' lengths differ.
    pub fn lookup_batch_with(&self, kernel: Kernel, dst: &[A], out: &mut [NextHopId]) {
        assert_eq!(dst.len(), out.len(), "one result per address");
        let vector = self.vector && kernel == Kernel::Avx512;
        for (dst, out) in dst.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            if vector {
                simd::chunk(self, dst, out);
            } else {
                self.scalar_chunk(dst, out);
            }
        }
    }

    /// Reads the bitmap node `r` names at depth `depth` of `dst`.
    #[inline(always)]
    fn step(&self, r: u32, dst: A, depth: u8) -> u32 {
        let at = (r & INDEX) as usize;
        let slot = dst.slot(depth);
        let rank = (self.region.load(at) << (63 - slot)).count_ones() as usize;
        self.region.load32(at * 2 + 2 + rank)
    }

    /// Follows `r`, found at `depth`, to its end. Terminates whatever the memory holds: the depth only grows.
    pub(crate) fn walk(&self, mut r: u32, dst: A, mut depth: u8) -> NextHopId {
        while r & NODE != 0 {
            if depth >= A::BITS {
                return NO_ROUTE;
            }
            if r & SKIP == 0 {
                r = self.step(r, dst, depth);
                depth += STRIDE;
                continue;
            }
            let (key, len, hit, miss) = self.skip(r);
            if len <= depth {
                return NO_ROUTE;
            }
            r = if key.common(dst) >= len { hit } else { miss };
            depth = len;
        }
        r
    }

    /// Key, length, reference behind it and reference beside it of a skip.
    pub(crate) fn skip(&self, r: u32) -> (A, u8, u32, u32) {
        let at = (r & INDEX) as usize;
        let mut words = [0; 3];
        for (i, w) in words.iter_mut().enumerate().take(A::SKIP_WORDS) {
            *w = self.region.load(at + i);
        }
        let (key, len) = A::unpack(words);
        let refs = self.region.load(at + A::SKIP_WORDS);
        (key, len, refs as u32, (refs >> 32) as u32)
    }

    /// A chunk by the scalar kernel, compiled twice: shifts by a variable count are one operation with BMI2, three
    /// without.
    fn scalar_chunk(&self, dst: &[A], out: &mut [NextHopId]) {
        if let (Ok(dst), Ok(out)) = (dst.try_into(), <&mut [_; BATCH]>::try_from(&mut *out)) {
            return self.scalar_full(dst, out);
        }
        let (mut keys, mut ids) = ([A::ZERO; BATCH], [NO_ROUTE; BATCH]);
        keys[..dst.len()].copy_from_slice(dst);
        self.scalar_full(&keys, &mut ids);
        out.copy_from_slice(&ids[..out.len()]);
    }

    fn scalar_full(&self, dst: &[A; BATCH], out: &mut [NextHopId; BATCH]) {
        if self.bmi2 {
            // SAFETY: the flag says that the processor has the instructions.
            unsafe { self.scalar_bmi2(dst, out) }
        } else {
            self.scalar_body(dst, out);
        }
    }

    /// # Safety
    /// The processor has BMI1, BMI2 and LZCNT.
    #[target_feature(enable = "bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn scalar_bmi2(&self, dst: &[A; BATCH], out: &mut [NextHopId; BATCH]) {
        self.scalar_body(dst, out);
    }

    /// Level by level over the whole chunk, so that misses of different keys overlap. Levels where many keys go on
    /// are done for all of them without a branch; the rest only for those that do. (A list of open keys in memory
    /// would be slower: its stores' addresses wait for the misses, and later loads for the stores.)
    #[inline(always)]
    fn scalar_body(&self, dst: &[A; BATCH], refs: &mut [NextHopId; BATCH]) {
        let region = self.region.view();
        let mut open = 0u64;
        let mut nodes = 0;
        for i in (0..BATCH).rev() {
            let at = dst[i].root() as u32;
            let r = (region.load(at >> 1, 0) >> ((at << 5) & 63)) as u32;
            region.prefetch(r);
            refs[i] = r;
            open = open << 1 | u64::from(plain(r) >> 31);
            nodes |= r;
        }
        let mut depth = ROOT;
        while open != 0 && depth <= 64 - STRIDE && depth < A::BITS {
            let shift = 64 - STRIDE - depth;
            if open.count_ones() as usize >= BATCH / 3 {
                open = 0;
                nodes = 0;
                for i in (0..BATCH).rev() {
                    let r = refs[i];
                    let next = level(region, r, dst[i].high() >> shift);
                    let r = std::hint::select_unpredictable((plain(r) as i32) < 0, next, r);
                    region.prefetch(r);
                    refs[i] = r;
                    open = open << 1 | u64::from(plain(r) >> 31);
                    nodes |= r;
                }
            } else {
                let mut todo = open;
                while todo != 0 {
                    let i = todo.trailing_zeros() as usize % BATCH;
                    let bit = todo & todo.wrapping_neg();
                    todo ^= bit;
                    let r = level(region, refs[i], dst[i].high() >> shift);
                    region.prefetch(r);
                    refs[i] = r;
                    open ^= std::hint::select_unpredictable((plain(r) as i32) < 0, 0, bit);
                    nodes |= r;
                }
            }
            depth += STRIDE;
        }
        if nodes & NODE != 0 {
            for i in 0..BATCH {
                let r = refs[i];
                if r & NODE != 0 {
                    // A skip holds its own depth; a bitmap node is left only after the last level above.
                    refs[i] = self.walk(r, dst[i], if r & SKIP == 0 { depth } else { ROOT });
                }
            }
        }
    }
}

/// [`Fib::step`] for the low six bits of `key`; anything when `r` is no bitmap node.
#[inline(always)]
fn level(region: View<'_>, r: u32, key: u64) -> u32 {
    let rank = (region.load(r, 0) << (!key & 63)).count_ones() as usize;
    (region.load(r, 1 + (rank >> 1)) >> ((rank << 5) & 63)) as u32
}

/// The top bit says whether `r` names a bitmap node.
#[inline(always)]
fn plain(r: u32) -> u32 {
    r & !(r << 1)
}
