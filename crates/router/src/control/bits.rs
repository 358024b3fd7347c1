//! The two address families behind one trait, so that each rule is written once.

use bywash_route::{Addr, Net};
use std::fmt::Debug;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of one family. Its order is numeric, so a prefix is a range of keys.
pub(super) trait Bits: Copy + Ord + Hash + Debug + Into<IpAddr> {
    /// As the FIB has it.
    type Word: Addr;
    /// Bits in an address.
    const MAX: u8;
    /// Lowest address of the prefix of `len` bits around it.
    fn first(self, len: u8) -> Self;
    /// Highest address of that prefix.
    fn last(self, len: u8) -> Self;
    /// `ip`, when it is of this family.
    fn of(ip: IpAddr) -> Option<Self>;
    /// Its value.
    fn word(self) -> Self::Word;
}

/// A prefix as the FIB has it.
pub(super) fn net<A: Bits>(addr: A, len: u8) -> Net<A::Word> {
    Net::new(addr.word(), len).expect("lengths are bounded where routes come in")
}

impl Bits for Ipv4Addr {
    type Word = u32;
    const MAX: u8 = 32;

    fn first(self, len: u8) -> Self {
        Self::from_bits(self.to_bits() & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0))
    }

    fn last(self, len: u8) -> Self {
        Self::from_bits(self.to_bits() | u32::MAX.checked_shr(len.into()).unwrap_or(0))
    }

    fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(a) => Some(a),
            IpAddr::V6(_) => None,
        }
    }

    fn word(self) -> u32 {
        self.to_bits()
    }
}

impl Bits for Ipv6Addr {
    type Word = u128;
    const MAX: u8 = 128;

    fn first(self, len: u8) -> Self {
        Self::from_bits(self.to_bits() & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0))
    }

    fn last(self, len: u8) -> Self {
        Self::from_bits(self.to_bits() | u128::MAX.checked_shr(len.into()).unwrap_or(0))
    }

    fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V6(a) => Some(a),
            IpAddr::V4(_) => None,
        }
    }

    fn word(self) -> u128 {
        self.to_bits()
    }
}

/// Whether `addr` is in the subnet of `len` bits around `of`; false across families.
pub(super) fn contains(of: IpAddr, len: u8, addr: IpAddr) -> bool {
    match (of, addr) {
        (IpAddr::V4(n), IpAddr::V4(a)) => n.first(len) == a.first(len),
        (IpAddr::V6(n), IpAddr::V6(a)) => n.first(len) == a.first(len),
        _ => false,
    }
}
