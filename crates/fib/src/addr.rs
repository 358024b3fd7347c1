//! Addresses as bit strings of 32 or 128 bits, in host order, most significant bit first.

use crate::model;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bits per trie level: 64 slots, so that a level's bitmap is one machine word.
pub(crate) const STRIDE: u8 = 6;
/// Depth in bits of the directly indexed root: 2^18 references of 32 bits take 1 MiB, which fits a 1.25 MiB L2 cache.
pub(crate) const ROOT: u8 = 18;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u128 {}
}

/// Integer type of an address family: `u32` for IPv4, `u128` for IPv6, both in host order.
pub trait Addr: sealed::Sealed + Copy + Eq + Ord + fmt::Debug + Send + Sync + 'static {
    /// Width in bits.
    const BITS: u8;
    /// Depth from which chains of single children are skipped. Above it every level is a bitmap, as the vector kernels
    /// need; below it sparse routes (host routes) would otherwise cost a chain of blocks each.
    #[doc(hidden)]
    const SKIP_FROM: u8;
    /// Number of words for the key and length of a skip.
    #[doc(hidden)]
    const SKIP_WORDS: usize;
    /// The address with all bits zero.
    const ZERO: Self;

    /// Returns the six bits at `depth`; bits beyond the end are zero. Requires `depth < BITS`.
    #[doc(hidden)]
    fn slot(self, depth: u8) -> usize;
    /// Returns the bit at position `at`, which must be less than `BITS`.
    #[doc(hidden)]
    fn bit(self, at: u8) -> usize;
    /// Returns the address with all but the first `len` bits cleared.
    #[doc(hidden)]
    fn mask(self, len: u8) -> Self;
    /// Combines the first `len` bits of `self`, whose other bits are zero, with the remaining bits of `host`.
    #[doc(hidden)]
    fn join(self, host: Self, len: u8) -> Self;
    /// Returns the number of leading bits that `self` and `other` share.
    #[doc(hidden)]
    fn common(self, other: Self) -> u8;
    /// Returns the first 64 bits, left-aligned.
    #[doc(hidden)]
    fn high(self) -> u64;
    /// Returns the first 18 bits, the index into the root.
    #[doc(hidden)]
    fn root(self) -> usize;
    /// Returns the address whose first `len` bits are `bits`.
    #[doc(hidden)]
    fn from_top(bits: usize, len: u8) -> Self;
    /// Packs the key and length of a skip into words.
    #[doc(hidden)]
    fn pack(self, len: u8) -> [u64; 3];
    /// Inverse of `pack`.
    #[doc(hidden)]
    fn unpack(words: [u64; 3]) -> (Self, u8);
    /// Converts to a `std::net` address.
    fn to_ip(self) -> IpAddr;
}

macro_rules! common_methods {
    ($t:ty) => {
        const ZERO: Self = 0;
        #[inline(always)]
        fn slot(self, depth: u8) -> usize {
            ((self << depth) >> (<$t>::BITS - STRIDE as u32)) as usize
        }
        #[inline(always)]
        fn bit(self, at: u8) -> usize {
            ((self >> (<$t>::BITS - 1 - at as u32)) & 1) as usize
        }
        #[inline(always)]
        fn mask(self, len: u8) -> Self {
            if len == 0 { 0 } else { self & (<$t>::MAX << (<$t>::BITS - len as u32)) }
        }
        fn join(self, host: Self, len: u8) -> Self {
            self | (host ^ host.mask(len))
        }
        #[inline(always)]
        fn common(self, other: Self) -> u8 {
            (self ^ other).leading_zeros() as u8
        }
        #[inline(always)]
        fn root(self) -> usize {
            (self >> (<$t>::BITS - ROOT as u32)) as usize
        }
        fn from_top(bits: usize, len: u8) -> Self {
            if len == 0 { 0 } else { (bits as $t) << (<$t>::BITS - len as u32) }
        }
    };
}

impl Addr for u32 {
    const BITS: u8 = 32;
    const SKIP_FROM: u8 = 24;
    const SKIP_WORDS: usize = 1;
    common_methods!(u32);

    #[inline(always)]
    fn high(self) -> u64 {
        u64::from(self) << 32
    }
    #[inline]
    fn pack(self, len: u8) -> [u64; 3] {
        [u64::from(self) << 32 | u64::from(len), 0, 0]
    }
    #[inline]
    fn unpack(w: [u64; 3]) -> (Self, u8) {
        ((w[0] >> 32) as u32, w[0] as u8)
    }
    fn to_ip(self) -> IpAddr {
        Ipv4Addr::from_bits(self).into()
    }
}

impl Addr for u128 {
    const BITS: u8 = 128;
    const SKIP_FROM: u8 = 48;
    const SKIP_WORDS: usize = 3;
    common_methods!(u128);

    #[inline(always)]
    fn high(self) -> u64 {
        (self >> 64) as u64
    }
    #[inline]
    fn pack(self, len: u8) -> [u64; 3] {
        [(self >> 64) as u64, self as u64, u64::from(len)]
    }
    #[inline]
    fn unpack(w: [u64; 3]) -> (Self, u8) {
        (u128::from(w[0]) << 64 | u128::from(w[1]), w[2] as u8)
    }
    fn to_ip(self) -> IpAddr {
        Ipv6Addr::from_bits(self).into()
    }
}

/// A prefix of one family. Its host bits are zero and its length is within the family's width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Net<A: Addr> {
    addr: A,
    len: u8,
}

/// An IPv4 prefix.
pub type Net4 = Net<u32>;
/// An IPv6 prefix.
pub type Net6 = Net<u128>;

impl<A: Addr> Net<A> {
    /// Creates the prefix of the first `len` bits of `addr`; host bits are cleared. `None` if `len` exceeds the
    /// family's width.
    pub fn new(addr: A, len: u8) -> Option<Self> {
        (len <= A::BITS).then(|| Self { addr: addr.mask(len), len })
    }

    /// Returns the first address.
    pub fn addr(self) -> A {
        self.addr
    }

    /// Returns the length in bits.
    #[expect(clippy::len_without_is_empty, reason = "the length of a prefix, not of a collection")]
    pub fn len(self) -> u8 {
        self.len
    }

    /// Returns whether `addr` is in the prefix.
    pub fn contains(self, addr: A) -> bool {
        self.addr.common(addr) >= self.len
    }
}

impl<A: Addr> fmt::Display for Net<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr.to_ip(), self.len)
    }
}

impl<A: Addr> fmt::Debug for Net<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<A: Addr> From<Net<A>> for model::Prefix {
    fn from(n: Net<A>) -> Self {
        Self { addr: n.addr.to_ip(), len: n.len }
    }
}
