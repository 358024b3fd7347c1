//! A trait for both address families, so that each rule is written once.

use bywash_fib::{Addr, Net};
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of one family as used in keys: machine words, because `Ipv6Addr` compares by eight segments. Addresses
/// order numerically, so a prefix is a range of keys.
pub(super) trait Bits: Copy + Ord + Debug {
    /// Type of an address in the FIB.
    type Word: Addr;
    /// Number of bits in an address.
    const MAX: u8;
    /// Returns the address whose first `len` bits are set.
    fn ones(len: u8) -> Self;
    /// Returns the lowest address of the prefix of `len` bits that contains it.
    fn first(self, len: u8) -> Self;
    /// Returns the highest address of the prefix of `len` bits that contains it.
    fn last(self, len: u8) -> Self;
    /// Converts `ip`; `None` if it is of the other family.
    fn of(ip: IpAddr) -> Option<Self>;
    /// Converts to a `std::net` address.
    fn ip(self) -> IpAddr;
    /// Converts to the FIB's type.
    fn word(self) -> Self::Word;
}

/// Returns a prefix in the FIB's type.
pub(super) fn net<A: Bits>(addr: A, len: u8) -> Net<A::Word> {
    Net::new(addr.word(), len).expect("lengths are bounded where routes come in")
}

/// An IPv4 address.
pub(super) type V4 = u32;

/// An IPv6 address as two words, which need less alignment than a `u128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct V6(u64, u64);

impl From<Ipv6Addr> for V6 {
    fn from(a: Ipv6Addr) -> Self {
        let bits = a.to_bits();
        Self((bits >> 64) as u64, bits as u64)
    }
}

impl Bits for V4 {
    type Word = u32;
    const MAX: u8 = 32;

    fn ones(len: u8) -> Self {
        u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
    }

    fn first(self, len: u8) -> Self {
        self & Self::ones(len)
    }

    fn last(self, len: u8) -> Self {
        self | u32::MAX.checked_shr(len.into()).unwrap_or(0)
    }

    fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(a) => Some(a.to_bits()),
            IpAddr::V6(_) => None,
        }
    }

    fn ip(self) -> IpAddr {
        Ipv4Addr::from_bits(self).into()
    }

    fn word(self) -> u32 {
        self
    }
}

impl Bits for V6 {
    type Word = u128;
    const MAX: u8 = 128;

    fn ones(len: u8) -> Self {
        Ipv6Addr::from_bits(u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)).into()
    }

    fn first(self, len: u8) -> Self {
        Ipv6Addr::from_bits(self.word() & Self::ones(len).word()).into()
    }

    fn last(self, len: u8) -> Self {
        Ipv6Addr::from_bits(self.word() | u128::MAX.checked_shr(len.into()).unwrap_or(0)).into()
    }

    fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V6(a) => Some(a.into()),
            IpAddr::V4(_) => None,
        }
    }

    fn ip(self) -> IpAddr {
        Ipv6Addr::from_bits(self.word()).into()
    }

    fn word(self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }
}
