//! Flow keys: every field that can be matched, at a fixed position.

use std::ops::{BitAnd, BitOr, Not};
use zerocopy::{FromBytes, IntoBytes};

/// Number of 64-bit words of a packet's fields.
pub const KEY_WORDS: usize = 13;
/// Number of 64-bit words of a packet's fields, the metadata, the registers, the mark and the conjunction's number.
pub const FLOW_WORDS: usize = KEY_WORDS + 10;

/// Offsets of the fields, in bytes from the start of a [`Flow`]. Fields are in network byte order.
pub(crate) mod at {
    pub const DL_DST: usize = 0;
    pub const VLAN_TCI: usize = 6;
    pub const DL_SRC: usize = 8;
    pub const DL_TYPE: usize = 14;
    pub const IN_PORT: usize = 16;
    pub const NW_TOS: usize = 18;
    pub const NW_TTL: usize = 19;
    pub const NW_PROTO: usize = 20;
    pub const NW_FRAG: usize = 21;
    pub const TCP_FLAGS: usize = 22;
    pub const TP_SRC: usize = 24;
    pub const TP_DST: usize = 26;
    pub const TPID: usize = 28;
    pub const LABEL: usize = 29;
    pub const NW_SRC: usize = 32;
    pub const NW_DST: usize = 36;
    pub const IPV6_SRC: usize = 40;
    pub const IPV6_DST: usize = 56;
    pub const ARP_SHA: usize = 72;
    /// TCI of the inner of two tags.
    pub const INNER_TCI: usize = 78;
    pub const ARP_THA: usize = 80;
    /// Outermost label stack entry of an MPLS packet: see [`super::LABEL_AT`].
    pub const MPLS: usize = 72;
    /// Extent of the label stack and version of the IP packet behind it: see [`super::stack`].
    pub const STACK: usize = 86;
    /// TPID of the inner of two tags, as in `TPID`.
    pub const INNER_TPID: usize = 87;
    pub const ND_TARGET: usize = 88;
    pub const METADATA: usize = 104;
    pub const REGS: usize = 112;
    pub const PKT_MARK: usize = 176;
    pub const CONJ_ID: usize = 180;
}

/// Bit of `vlan_tci` that is set if there is a tag. On the wire the bit means drop eligible, which is not matched, as
/// in OVS.
pub const TAGGED: u16 = 0x1000;
/// Bit of `nw_frag` that is set for any fragment, including the first.
pub const FRAG_ANY: u8 = 1;
/// Bit of `nw_frag` that is set for fragments other than the first, which have no transport header.
pub const FRAG_LATER: u8 = 2;
/// Bit of `nw_frag` that is set if the IP or ARP header is valid and may be rewritten. Flows cannot match it; it is
/// part of every megaflow mask.
pub(crate) const IP_VALID: u8 = 0x80;
/// Value of `TPID` for a tag of type 0x8100.
pub(crate) const TPID_8100: u8 = 1;
/// Value of `TPID` for a tag of type 0x88a8.
pub(crate) const TPID_88A8: u8 = 2;

/// Number of VLAN tags that have a place in the key, the same as in OVS.
pub const TAGS: usize = 2;
/// Offsets of the TCI and the TPID of each tag, outer tag first.
pub(crate) const TAG_AT: [(usize, usize); TAGS] = [(at::VLAN_TCI, at::TPID), (at::INNER_TCI, at::INNER_TPID)];

/// Number of label stack entries that are read, the same as in OVS.
pub(crate) const LABELS: usize = 3;
/// Offsets of the upper and the lower half of each label stack entry, outermost first. They are in place of the
/// addresses of ARP and neighbour discovery.
pub(crate) const LABEL_AT: [[usize; 2]; LABELS] =
    [[at::MPLS, at::MPLS + 2], [at::ARP_THA, at::ARP_THA + 2], [at::MPLS + 4, at::ARP_THA + 4]];

/// Values of `STACK`, which is 0 for packets that are not MPLS. Flows cannot match it; it is part of the megaflow mask
/// of every MPLS packet.
pub(crate) mod stack {
    /// Mask of the number of entries read.
    pub const ENTRIES: u8 = 3;
    /// Bit that is set if the bottom of the stack is not among them.
    pub const DEEPER: u8 = 4;
    /// Number of bits below the version, which is 0 if there is no IP packet behind the stack.
    pub const VERSION: u32 = 4;
}

/// Bottom-of-stack bit of a label stack entry.
pub(crate) const BOTTOM: u32 = 0x100;

/// A packet's fields in network byte order, stored in 64-bit words. Fields that a packet does not have are zero.
pub type Key = [u64; KEY_WORDS];

/// Everything that flows match and set: a [`Key`], then the metadata, the registers, the mark and the conjunction's
/// number. Also used as a mask of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow(pub [u64; FLOW_WORDS]);

impl Default for Flow {
    fn default() -> Self {
        Self([0; FLOW_WORDS])
    }
}

impl From<&Key> for Flow {
    fn from(key: &Key) -> Self {
        let mut flow = Self::default();
        flow.0[..KEY_WORDS].copy_from_slice(key);
        flow
    }
}

impl Flow {
    /// Returns the part that comes from the packet.
    pub fn key(&self) -> &Key {
        self.0.first_chunk().expect("a flow begins with a key")
    }

    /// Returns the flow as bytes.
    pub fn bytes(&self) -> &[u8; FLOW_WORDS * 8] {
        zerocopy::transmute_ref!(&self.0)
    }

    /// Returns the flow as mutable bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8; FLOW_WORDS * 8] {
        zerocopy::transmute_mut!(&mut self.0)
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.bytes()[at]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        let bytes = self.bytes();
        u16::from_be_bytes([bytes[at], bytes[at + 1]])
    }

    /// Returns the label stack entry with this index, counted from the outermost.
    pub(crate) fn label(&self, i: usize) -> u32 {
        let [upper, lower] = LABEL_AT[i];
        u32::from(self.u16(upper)) << 16 | u32::from(self.u16(lower))
    }

    pub(crate) fn put_label(&mut self, i: usize, entry: u32) {
        let [upper, lower] = LABEL_AT[i];
        self.put(upper, &((entry >> 16) as u16).to_be_bytes());
        self.put(lower, &(entry as u16).to_be_bytes());
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns `true` if no bit is set.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    /// Returns `true` if every bit set in `other` is also set here.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| b & !a == 0)
    }

    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    /// Returns this flow's bits where `mask` is set and `other`'s bits elsewhere.
    pub fn or_else(self, mask: &Self, other: &Self) -> Self {
        (self & *mask) | (*other & !*mask)
    }

    /// Returns the bits that differ.
    pub fn differing(self, other: &Self) -> Self {
        self.zip(*other, |a, b| a ^ b)
    }
}

impl BitAnd for Flow {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
}

impl BitOr for Flow {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }
}

impl Not for Flow {
    type Output = Self;
    fn not(self) -> Self {
        Self(self.0.map(|w| !w))
    }
}

/// Returns the key as mutable bytes.
pub(crate) fn key_bytes(key: &mut Key) -> &mut [u8; KEY_WORDS * 8] {
    <[u8; KEY_WORDS * 8]>::mut_from_bytes(key.as_mut_bytes()).expect("a key has as many bytes")
}

/// Returns a hash of the words keyed by `seed`. Without the seed, an attacker cannot predict collisions.
#[inline(always)]
pub(crate) fn hash_words(words: &[u64], seed: u64) -> u64 {
    // One multiplication per two words, with the halves of the product folded. Both factors depend on the seed.
    let mut h = seed;
    let (pairs, rest) = words.as_chunks::<2>();
    for [a, b] in pairs {
        h = fold(a ^ h ^ 0xa076_1d64_78bd_642f, b ^ h.rotate_left(32) ^ 0xe703_7ed1_a0b4_28db);
    }
    if let [a] = rest {
        h = fold(a ^ h ^ 0x8ebc_6af0_9c88_c6e3, h ^ seed.rotate_left(17) ^ 0x5899_65cc_7537_4cc3);
    }
    h
}

#[inline(always)]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_are_said_to_be() {
        let mut flow = Flow::default();
        flow.put(at::IN_PORT, &7u16.to_be_bytes());
        assert_eq!(flow.u16(at::IN_PORT), 7);
        assert_eq!(flow.bytes()[17], 7);
        let mut key = *flow.key();
        key_bytes(&mut key)[17] = 9;
        assert_eq!(Flow::from(&key).u16(at::IN_PORT), 9);
        assert!(Flow::default().is_zero() && !flow.is_zero());
        assert!((!Flow::default()).covers(&flow) && !Flow::default().covers(&flow));
    }

    #[test]
    fn hashes_spread_and_depend_on_the_seed() {
        let mut seen = std::collections::HashSet::new();
        for i in 0..4096u64 {
            assert!(seen.insert(hash_words(&[i, 0, 0, i << 40, 5], 1) >> 20));
        }
        assert_ne!(hash_words(&[1, 2, 3], 1), hash_words(&[1, 2, 3], 2));
    }
}
