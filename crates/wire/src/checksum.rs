//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

use core::ops::{Add, AddAssign};

/// One's-complement sum of 16-bit words, not yet folded.
///
/// The sum is kept in the machine's byte order, which does not affect the result (RFC 1071 1.B); only [`Sum::fold`] and
/// [`Sum::checksum`] return values that are independent of it. Sums of adjoining parts can be added if every part
/// except the last has an even length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Sum of no data.
    pub const ZERO: Self = Self(0);

    /// Returns the sum of `data`, which may be up to 4 GiB long; an odd last byte is padded with a zero byte.
    #[inline]
    pub fn of(data: &[u8]) -> Self {
        let (blocks, mut rest) = data.as_chunks::<32>();
        // Adding 32-bit words in 64-bit lanes needs no carries, and the eight independent lanes let the compiler
        // vectorize.
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

    /// Returns the sum of one 16-bit word, given as a host-order value.
    #[inline]
    pub fn of_u16(word: u16) -> Self {
        Self(u64::from(word.to_be()))
    }

    /// Returns the sum of a 32-bit word, given as a host-order value.
    #[inline]
    pub fn of_u32(word: u32) -> Self {
        Self(u64::from(word.to_be()))
    }

    /// Returns the sum of 8 bytes in packet order.
    #[inline]
    pub fn of_8(bytes: [u8; 8]) -> Self {
        Self(u64::from_ne_bytes(bytes))
    }

    /// Returns the sum of the same bytes placed at an odd offset (RFC 1071 2.B).
    #[inline]
    pub fn at_odd_offset(self) -> Self {
        Self(u64::from(self.folded().swap_bytes()))
    }

    /// Returns the folded sum as a host-order value of the network-order field, not complemented. It is zero only if
    /// all words were zero.
    #[inline]
    pub fn fold(self) -> u16 {
        u16::from_be(self.folded())
    }

    /// Returns the value for a checksum field that was zero when the sum was computed.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Returns `true` if the sum, which includes the checksum field, verifies.
    #[inline]
    pub fn is_valid(self) -> bool {
        // End-around carry addition computes the remainder modulo 0xffff; testing that for zero takes one
        // multiplication.
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
        // After a carry the sum is at most 2^64 - 2, so adding the carry cannot overflow again.
        Self(sum.wrapping_add(u64::from(carry)))
    }
}

impl AddAssign for Sum {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Returns the checksum of `data`, in which the checksum field is zero or absent.
#[inline]
pub fn checksum(data: &[u8]) -> u16 {
    Sum::of(data).checksum()
}

/// Returns the checksum after a 16-bit word at an even offset changed from `old` to `new` (RFC 1624 eqn. 3).
///
/// A correct checksum stays correct. Do not pass a UDP checksum of zero, which means "no checksum".
#[inline]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// Updates a checksum like [`update_u16`] for a 32-bit value at an even offset, such as an IPv4 address.
#[inline]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let c = update_u16(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update_u16(c, old as u16, new as u16)
}

/// Returns the sum of the IPv4 pseudo-header (RFC 9293 3.1). `header` supplies the addresses; `len` is the length of
/// transport header and data in bytes.
#[inline]
pub fn pseudo4(header: &[u8; 20], proto: u8, len: u16) -> Sum {
    let [.., a, b, c, d, e, f, g, h] = *header;
    Sum::of_8([a, b, c, d, e, f, g, h]) + Sum::of_u32(u32::from(proto) + u32::from(len))
}

/// Returns the sum of the IPv6 pseudo-header (RFC 8200 8.1). `header` supplies the addresses; `len` is the length of
/// the upper-layer packet in bytes. With a routing header that has segments left, the final destination is not the one
/// in `header`, and the sum does not match the packet's checksum.
#[inline]
pub fn pseudo6(header: &[u8; 40], proto: u8, len: u32) -> Sum {
    let mut sum = Sum::of_u32(len) + Sum::of_u16(u16::from(proto));
    let (words, _) = header[8..].as_chunks::<8>();
    for word in words {
        sum += Sum::of_8(*word);
    }
    sum
}

/// Returns the CRC-32C of an SCTP packet with its checksum field taken as zero (RFC 9260 appendix A). The field holds
/// it in little-endian order.
pub fn crc32c(sctp: &[u8]) -> u32 {
    static TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let (mut crc, mut bit) = (i as u32, 0);
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    let bytes = sctp.iter().enumerate().map(|(i, b)| if (8..12).contains(&i) { 0 } else { *b });
    !bytes.fold(!0, |crc, b| TABLE[usize::from(crc as u8 ^ b)] ^ crc >> 8)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the folded sum word by word, as in RFC 1071 4.1.
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
            data[0] |= 1; // real packets are never all zero; a sum of 0 has only one representation
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
