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
use crate::region::Region;
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

/// The readers' side of a table; shared by `Arc`, see the module for the contract.
///
/// # Thread-safety
/// Any number of readers, concurrent with the one writer that owns the table.
pub struct Fib<A> {
    pub(crate) region: Region,
    pub(crate) top_bytes: AtomicUsize,
    vector: bool,
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
    /// Eight keys at a time: AVX-512 F, VL, DQ and VPOPCNTDQ (Ice Lake, Zen 4 and later).
    Avx512,
    /// One key at a time, branch-free, misses overlapped.
    Scalar,
}

impl<A: Addr> Fib<A> {
    pub(crate) fn new(region: Region) -> Self {
        Self { region, top_bytes: AtomicUsize::new(0), vector: simd::available(), family: std::marker::PhantomData }
    }

    /// The code that this processor's batches use.
    pub fn kernel(&self) -> Kernel {
        if self.vector { Kernel::Avx512 } else { Kernel::Scalar }
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

    /// Level by level over the whole chunk, so that misses of different keys overlap; keys that are done drop out
    /// of the list without a branch.
    fn scalar_chunk(&self, dst: &[A], out: &mut [NextHopId]) {
        let mut open = [0u8; BATCH];
        let mut n = 0;
        for (i, (d, o)) in dst.iter().zip(out.iter_mut()).enumerate() {
            let r = self.region.load32(d.root());
            self.region.prefetch((r & INDEX & 0u32.wrapping_sub(r >> 31)) as usize);
            *o = r;
            open[n] = i as u8;
            n += (r >> 31) as usize;
        }
        let mut depth = ROOT;
        while n > 0 {
            let mut left = 0;
            for j in 0..n {
                let i = usize::from(open[j]);
                let mut r = out[i];
                if r & SKIP == 0 {
                    r = self.step(r, dst[i], depth);
                    self.region.prefetch((r & INDEX & 0u32.wrapping_sub(r >> 31)) as usize);
                } else {
                    r = self.walk(r, dst[i], depth);
                }
                out[i] = r;
                open[left] = i as u8;
                left += (r >> 31) as usize;
            }
            n = left;
            depth += STRIDE;
            if depth >= A::BITS {
                // Only memory reused under a reader leads here with anything left.
                for i in &open[..n] {
                    out[usize::from(*i)] = NO_ROUTE;
                }
                return;
            }
        }
    }
}
