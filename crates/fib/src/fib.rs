//! The readers' side: longest-prefix match in memory that one writer changes concurrently.
//!
//! A table is a root of 2^18 references and, below it, nodes of six bits each. A reference (32 bits) is a next-hop id,
//! a bitmap node or a skip. A bitmap node is one 64-bit word followed by the references of its runs: bit *i* is set if
//! slot *i* differs from slot *i-1*, so the reference of a slot has the index `popcnt(bitmap << (63 - slot))`. Covering
//! routes are pushed down into the slots they cover, so a lookup never backtracks. A skip passes over bits that all
//! routes below it share.
//!
//! # Consistency
//! The writer builds new nodes, then stores the one reference that leads to them: every address is looked up in the
//! state before or after a change, never in between. Two addresses of one batch may see different states.
//!
//! # Contract of the readers
//! Nodes are reused after a grace period of the domain given to `Table::new`. A reader must hold an online
//! [`Reader`](bywash_sync::Reader) of that domain and announce [`quiescent`](bywash_sync::Reader::quiescent) only
//! between lookups. Memory safety does not depend on this: without it, a lookup concurrent with reuse may at worst
//! return an id that was never a route's. Ids that a control side retires need the same grace period.

use crate::addr::{Addr, ROOT, STRIDE};
use crate::region::{Region, View};
use crate::simd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Id of a next hop, opaque to this crate. 0 is [`NO_ROUTE`]; the largest id is [`MAX_ID`].
pub type NextHopId = u32;
/// Result of a lookup when no route covers the address.
pub const NO_ROUTE: NextHopId = 0;
/// Largest id. References are 32 bits, one of which marks nodes.
pub const MAX_ID: NextHopId = (1 << 31) - 1;

/// Bit that marks a reference to a node.
pub(crate) const NODE: u32 = 1 << 31;
/// Bit that, together with [`NODE`], marks a skip.
pub(crate) const SKIP: u32 = 1 << 30;
/// Mask of a reference's word index.
pub(crate) const INDEX: u32 = SKIP - 1;
/// Words of the root, which is at the start of the region.
pub(crate) const ROOT_WORDS: usize = 1 << (ROOT - 1);
/// Keys looked up together: enough that their cache misses overlap as far as the core allows.
pub(crate) const BATCH: usize = 64;
/// Size in bytes up to which a table is assumed to stay in the caches while in use.
const CACHED: usize = 16 << 20;

/// The readers' side of a table, shared by `Arc`. See the module documentation for the contract.
///
/// # Thread-safety
/// Any number of readers may run concurrently with the one writer that owns the table.
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

/// Implementation of batch lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// One key after the other, branch-free, level by level with prefetch. Measured faster wherever gathers are slow,
    /// as on every Intel core with the mitigation of CVE-2022-40982.
    Scalar,
    /// Eight keys at a time with gathers: AVX-512 F, VL, DQ and VPOPCNTDQ (Ice Lake, Zen 4 and later). The default if
    /// the Linux kernel reports that gathers need no mitigation and the table is small.
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

    /// Returns whether this processor can run `kernel`.
    pub fn can(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Scalar || self.vector
    }

    /// Returns the implementation that [`Fib::lookup_batch`] uses: the one expected to be faster for this processor and
    /// table size. A table beyond the caches uses the scalar one, which prefetches.
    #[inline]
    pub fn kernel(&self) -> Kernel {
        if self.gather && self.bytes() <= CACHED { Kernel::Avx512 } else { Kernel::Scalar }
    }

    /// Returns the bytes of memory in use, including the root and free memory between nodes.
    pub fn bytes(&self) -> usize {
        self.top_bytes.load(Ordering::Relaxed)
    }

    /// Returns the id of the longest prefix that covers `dst`, or [`NO_ROUTE`].
    #[inline]
    pub fn lookup(&self, dst: A) -> NextHopId {
        self.walk(self.region.load32(dst.root()), dst, ROOT)
    }

    /// Looks up `dst[i]` into `out[i]`.
    ///
    /// # Panics
    /// If the slices' lengths differ.
    pub fn lookup_batch(&self, dst: &[A], out: &mut [NextHopId]) {
        self.lookup_batch_with(self.kernel(), dst, out);
    }

    /// [`Fib::lookup_batch`] with a given implementation; scalar if the processor cannot run it.
    ///
    /// # Panics
    /// If the slices' lengths differ.
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

    /// Reads the slot of `dst` in the bitmap node `r` at `depth`.
    #[inline(always)]
    fn step(&self, r: u32, dst: A, depth: u8) -> u32 {
        let at = (r & INDEX) as usize;
        let slot = dst.slot(depth);
        let rank = (self.region.load(at) << (63 - slot)).count_ones() as usize;
        self.region.load32(at * 2 + 2 + rank)
    }

    /// Follows `r`, found at `depth`, to its end. Terminates whatever the memory holds, because the depth only grows.
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

    /// Returns the key and length of a skip, and its references for keys that match and that do not.
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

    /// Looks up a chunk with the scalar implementation, which is compiled twice: shifts by a variable count take one
    /// operation with BMI2, three without.
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
            // SAFETY: the flag is set only if the processor has the instructions.
            unsafe { self.scalar_bmi2(dst, out) }
        } else {
            self.scalar_body(dst, out);
        }
    }

    /// # Safety
    /// The processor has BMI1, BMI2, LZCNT and POPCNT.
    #[target_feature(enable = "bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn scalar_bmi2(&self, dst: &[A; BATCH], out: &mut [NextHopId; BATCH]) {
        self.scalar_body(dst, out);
    }

    /// Looks up level by level over the whole chunk, so that the cache misses of different keys overlap. Levels at
    /// which many keys continue are processed for all of them without a branch, other levels only for the open keys. (A
    /// list of open keys in memory would be slower: its stores' addresses wait for the misses, and later loads for the
    /// stores.)
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
                    // A skip stores its own depth; a bitmap node is left over only after the last level above.
                    refs[i] = self.walk(r, dst[i], if r & SKIP == 0 { depth } else { ROOT });
                }
            }
        }
    }
}

/// [`Fib::step`] for the low six bits of `key`; the result is arbitrary if `r` is not a bitmap node.
#[inline(always)]
fn level(region: View<'_>, r: u32, key: u64) -> u32 {
    let rank = (region.load(r, 0) << (!key & 63)).count_ones() as usize;
    (region.load(r, 1 + (rank >> 1)) >> ((rank << 5) & 63)) as u32
}

/// Returns a word whose top bit is set if `r` refers to a bitmap node.
#[inline(always)]
fn plain(r: u32) -> u32 {
    r & !(r << 1)
}
