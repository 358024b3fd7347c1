//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

use core::ops::{Add, AddAssign};

/// A one's-complement sum of 16-bit words, not yet folded.
///
/// It is kept in the byte order of the machine, since the sum does not depend on it (RFC 1071 1.B); only
/// [`Sum::fold`] and [`Sum::checksum`] give network values. Sums of adjoining parts add up as long as every part
/// but the last has an even length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// The sum of `data`, up to 4 GiB; an odd last byte is padded with zero.
    #[inline]
    pub fn of(data: &[u8]) -> Self {
        let (blocks, mut rest) = data.as_chunks::<32>();
        // 32-bit words in 64-bit lanes need no carries, and the compiler makes vectors of eight independent lanes.
        let mut lanes = [0u64; 8];
        for block in blocks {
            let (words, _) = block.as_chunks::<4>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = lane.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
            }
        }
        let mut sum = lanes.iter().fold(0u64, |a, b| a.wrapping_add(*b));
        if let Some((word, tail)) = rest.split_first_chunk::<16>() {
            let (words, _) = word.as_chunks::<4>();
            for word in words {
                sum = sum.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
            }
            rest = tail;
        }
        while let Some((word, tail)) = rest.split_first_chunk::<4>() {
            sum = sum.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
            rest = tail;
        }
        if let Some((word, tail)) = rest.split_first_chunk::<2>() {
            sum = sum.wrapping_add(u64::from(u16::from_ne_bytes(*word)));
            rest = tail;
        }
        if let Some(&last) = rest.first() {
            sum = sum.wrapping_add(u64::from(u16::from_ne_bytes([last, 0])));
        }
        Self(sum)
    }

    /// The sum of one 16-bit word, given as its value.
    #[inline]
    pub fn of_u16(word: u16) -> Self {
        Self(u64::from(word.to_be()))
    }

    /// The sum of a 32-bit quantity, given as its value.
    #[inline]
    pub fn of_u32(word: u32) -> Self {
        Self(u64::from(word.to_be()))
    }

    /// The sum of 8 bytes as they lie in the packet.
    #[inline]
    pub fn of_8(bytes: [u8; 8]) -> Self {
        Self(u64::from_ne_bytes(bytes))
    }

    /// The same bytes when they start at an odd offset (RFC 1071 2.B).
    #[inline]
    pub fn at_odd_offset(self) -> Self {
        Self(u64::from(self.folded().swap_bytes()))
    }

    /// The folded sum as a network value, not complemented. Zero only when all words were zero.
    #[inline]
    pub fn fold(self) -> u16 {
        u16::from_be(self.folded())
    }

    /// What belongs into a checksum field that was zero when the sum was made.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// True when the sum, the checksum field among its words, says that nothing was changed.
    #[inline]
    pub fn is_valid(self) -> bool {
        // The sum of end-around carries is the remainder by 0xffff; to test it against zero takes one multiplication.
        self.0 != 0 && self.0.is_multiple_of(0xffff)
    }

    #[inline]
    fn folded(self) -> u16 {
        let (a, carry) = ((self.0 >> 32) as u32).overflowing_add(self.0 as u32);
        let a = a.wrapping_add(u32::from(carry));
        let (b, carry) = ((a >> 16) as u16).overflowing_add(a as u16);
        b.wrapping_add(u16::from(carry))
    }
}

impl Add for Sum {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // After a carry the sum is at most 2^64 - 2, so that this cannot carry again.
        Self(sum.wrapping_add(u64::from(carry)))
    }
}

impl AddAssign for Sum {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// The checksum of `data`, whose own checksum field is zero or absent.
#[inline]
pub fn checksum(data: &[u8]) -> u16 {
    Sum::of(data).checksum()
}

/// The checksum after a 16-bit word at an even offset changed from `old` to `new` (RFC 1624 eqn. 3).
///
/// Never turns a right checksum into a wrong one; a UDP checksum of zero means "none" and must not come here.
#[inline]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// As [`update_u16`] for two adjoining words, such as an IPv4 address.
#[inline]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let c = update_u16(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update_u16(c, old as u16, new as u16)
}

/// Sum of the IPv4 pseudo-header (RFC 9293 3.1): `header` supplies the addresses, `len` is that of transport header
/// and data in bytes.
#[inline]
pub fn pseudo4(header: &[u8; 20], proto: u8, len: u16) -> Sum {
    let [.., a, b, c, d, e, f, g, h] = *header;
    Sum::of_8([a, b, c, d, e, f, g, h]) + Sum::of_u32(u32::from(proto) + u32::from(len))
}

/// Sum of the IPv6 pseudo-header (RFC 8200 8.1): `header` supplies the addresses, `len` is the upper-layer packet's
/// in bytes. With a routing header whose segments are not used up the destination is not the header's, and the sum
/// is of no use.
#[inline]
pub fn pseudo6(header: &[u8; 40], proto: u8, len: u32) -> Sum {
    let mut sum = Sum::of_u32(len) + Sum::of_u16(u16::from(proto));
    let (words, _) = header[8..].as_chunks::<8>();
    for word in words {
        sum += Sum::of_8(*word);
    }
    sum
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 4.1, word by word.
    pub(crate) fn naive(data: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in data.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        sum as u16
    }

    #[test]
    fn rfc1071_example() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&data).fold(), 0xddf2);
        assert_eq!(checksum(&data), !0xddf2);
    }

    #[test]
    fn rfc1624_example() {
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn extremes() {
        assert_eq!(Sum::ZERO.fold(), 0);
        assert_eq!(Sum::of(&[0xff; 65536]).fold(), 0xffff);
        assert_eq!(Sum::of(&[0; 100]).fold(), 0);
        assert_eq!((Sum(u64::MAX) + Sum(u64::MAX)).fold(), 0xffff);
        assert_eq!((Sum(u64::MAX) + Sum(1)).fold(), naive(&1u16.to_ne_bytes()));
    }

    proptest! {
        #[test]
        fn agrees_with_naive(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(Sum::of(&data).fold(), naive(&data));
        }

        #[test]
        fn parts_add_up(data in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..300) {
            let (a, b) = data.split_at(cut.min(data.len()));
            let b = if a.len() % 2 == 1 { Sum::of(b).at_odd_offset() } else { Sum::of(b) };
            prop_assert_eq!((Sum::of(a) + b).fold(), naive(&data));
        }

        #[test]
        fn update_equals_recompute(mut data in proptest::collection::vec(any::<u8>(), 8..64), at in 0usize..30, new: u32) {
            data[0] |= 1; // an all-zero packet does not exist, and its sum has no second representation
            let at = 4 + ((at * 2 % (data.len() - 7)) & !1);
            let before = checksum(&data);
            let old = u32::from_be_bytes(*data[at..].first_chunk().unwrap());
            data[at..at + 4].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update_u32(before, old, new), checksum(&data));
        }

        #[test]
        fn words_agree(a: u16, b: u32, c: [u8; 8]) {
            let sum = Sum::of_u16(a) + Sum::of_u32(b) + Sum::of_8(c);
            let bytes: Vec<u8> = [&a.to_be_bytes()[..], &b.to_be_bytes(), &c].concat();
            prop_assert_eq!(sum.fold(), naive(&bytes));
        }
    }
}
