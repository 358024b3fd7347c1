//! IPv4 headers (RFC 791) and the header validation required of routers (RFC 1812 5.2.2).

use crate::checksum::Sum;
use core::fmt;
use std::net::Ipv4Addr;
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;
/// "Don't fragment", in [`Ipv4Header::fragment`].
pub const DF: u16 = 0x4000;
/// "More fragments", in [`Ipv4Header::fragment`].
pub const MF: u16 = 0x2000;
/// Mask of the fragment offset in [`Ipv4Header::fragment`], in units of 8 bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

/// Fixed part of an IPv4 header.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    /// Version (4) in the upper half, header length in 32-bit words in the lower half.
    pub version_ihl: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Length of header and data in bytes.
    pub total_len: U16,
    /// Identification, for reassembly.
    pub ident: U16,
    /// [`DF`], [`MF`] and the offset in units of 8 bytes.
    pub fragment: U16,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Protocol number of the payload.
    pub proto: u8,
    /// Header checksum.
    pub checksum: U16,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}

impl Ipv4Header {
    /// Returns the header at the start of `l3`, not validated, and the bytes behind its fixed part, or `None` if `l3`
    /// is shorter than 20 bytes.
    #[inline]
    pub fn parse(l3: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(l3).ok()
    }

    /// Returns the same parts as [`Self::parse`], mutable.
    #[inline]
    pub fn parse_mut(l3: &mut [u8]) -> Option<(&mut Self, &mut [u8])> {
        Self::mut_from_prefix(l3).ok()
    }

    /// Returns the header length in bytes as stated in the header, 0 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }
}

/// Fields of a header that passed [`check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Info {
    /// Destination address, host order.
    pub dst: u32,
    /// Source address, host order.
    pub src: u32,
    /// Length of header and data in bytes, at most the length of the checked slice.
    pub total_len: u16,
    /// Fragment word: [`DF`], [`MF`] and the offset in units of 8 bytes.
    pub fragment: u16,
    /// Header length in bytes, 20 to 60, at most `total_len`.
    pub header_len: u8,
    /// Protocol number of the payload.
    pub proto: u8,
    /// Time to live as received, in hops.
    pub ttl: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
}

impl Ipv4Info {
    /// Returns the destination address.
    #[inline]
    pub fn dst_addr(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.dst)
    }

    /// Returns the source address.
    #[inline]
    pub fn src_addr(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.src)
    }

    /// Returns `true` for any fragment, including the first.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment & (MF | OFFSET_MASK) != 0
    }

    /// Returns `true` for a fragment other than the first, which has no transport header.
    #[inline]
    pub fn is_later_fragment(&self) -> bool {
        self.fragment & OFFSET_MASK != 0
    }

    /// Returns `true` if "don't fragment" is set.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.fragment & DF != 0
    }

    /// Returns `true` if the header has options.
    #[inline]
    pub fn has_options(&self) -> bool {
        self.header_len != HEADER_LEN as u8
    }

    /// Returns the payload within `l3`, the slice that was checked; empty if `l3` is another, shorter slice.
    #[inline]
    pub fn payload<'a>(&self, l3: &'a [u8]) -> &'a [u8] {
        l3.get(usize::from(self.header_len)..usize::from(self.total_len)).unwrap_or_default()
    }
}

/// Reason why a header is invalid: the failed step of RFC 1812 5.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ipv4Error {
    /// (1) Fewer than 20 bytes.
    Runt,
    /// (3) Version is not 4.
    Version,
    /// (4) Header length below 20 bytes.
    HeaderLength,
    /// (5) Total length below the header length, or beyond the frame.
    Length,
    /// (2) Wrong header checksum.
    Checksum,
}

impl fmt::Display for Ipv4Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runt => "packet is shorter than an IPv4 header",
            Self::Version => "version is not 4",
            Self::HeaderLength => "header length is below 20 bytes",
            Self::Length => "total length is below the header length or beyond the frame",
            Self::Checksum => "wrong header checksum",
        })
    }
}

impl std::error::Error for Ipv4Error {}

/// Performs all header checks of RFC 1812 5.2.2 on the header at the start of `l3`.
///
/// # Errors
/// The first check that fails, in the order of [`Ipv4Error`]'s variants.
#[inline]
pub fn check(l3: &[u8]) -> Result<Ipv4Info, Ipv4Error> {
    let Some(fixed) = l3.first_chunk::<HEADER_LEN>() else { return Err(Ipv4Error::Runt) };
    let total_len = u16::from_be_bytes([fixed[2], fixed[3]]);
    let fits = usize::from(total_len) <= l3.len() && total_len >= HEADER_LEN as u16;
    if !(fixed[0] == 0x45 && fits && header_checksum_ok(fixed)) {
        check_rare(l3)?;
    }
    // Fields are read only here, so that the fast path need not keep them in registers across the call.
    Ok(read(fixed))
}

#[inline]
fn read(h: &[u8; HEADER_LEN]) -> Ipv4Info {
    Ipv4Info {
        dst: u32::from_be_bytes([h[16], h[17], h[18], h[19]]),
        src: u32::from_be_bytes([h[12], h[13], h[14], h[15]]),
        total_len: u16::from_be_bytes([h[2], h[3]]),
        fragment: u16::from_be_bytes([h[6], h[7]]),
        header_len: (h[0] & 0xf) * 4,
        proto: h[9],
        ttl: h[8],
        tos: h[1],
    }
}

/// Checks headers with options and names the fault of an invalid header.
#[cold]
#[inline(never)]
fn check_rare(l3: &[u8]) -> Result<(), Ipv4Error> {
    let Some((header, _)) = Ipv4Header::parse(l3) else { return Err(Ipv4Error::Runt) };
    let (header_len, total_len) = (header.header_len(), usize::from(header.total_len.get()));
    if header.version_ihl >> 4 != 4 {
        return Err(Ipv4Error::Version);
    }
    if header_len < HEADER_LEN {
        return Err(Ipv4Error::HeaderLength);
    }
    if total_len < header_len || total_len > l3.len() {
        return Err(Ipv4Error::Length);
    }
    if !l3.get(..header_len).is_some_and(|h| Sum::of(h).is_valid()) {
        return Err(Ipv4Error::Checksum);
    }
    Ok(())
}

/// Returns `true` if the checksum of a header without options is correct.
#[inline]
pub fn header_checksum_ok(header: &[u8; HEADER_LEN]) -> bool {
    let h = header;
    let a = Sum::of_8([h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]]);
    let b = Sum::of_8([h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]);
    // Padding the last four bytes on either side gives the same sum, as long as the bytes of each 16-bit word stay in
    // order.
    let c = Sum::of_8([h[16], h[17], h[18], h[19], 0, 0, 0, 0]);
    (a + b + c).is_valid()
}

/// Decrements the TTL and updates the checksum (RFC 1812 5.3.1, RFC 1624).
///
/// Returns `false` and changes nothing if the TTL is 0 or 1: the packet must not be forwarded.
#[inline]
pub fn decrement_ttl(header: &mut [u8; HEADER_LEN]) -> bool {
    let ttl = header[8];
    if ttl <= 1 {
        return false;
    }
    header[8] = ttl - 1;
    // The header's sum lost 1 in the upper byte of a word, so the checksum gains it. The addition is done in the
    // machine's byte order with end-around carry; a result of 0xffff (negative zero) becomes 0.
    let sum = u32::from(u16::from_ne_bytes([header[10], header[11]])) + u32::from(0x0100u16.to_be());
    let sum = (sum + u32::from(sum >= 0xffff)) as u16;
    header[10..12].copy_from_slice(&sum.to_ne_bytes());
    true
}

/// Computes and writes the checksum of the header at the start of `l3`. Returns `false` and changes nothing if `l3` is
/// shorter than the header or the stated header length is below 20 bytes.
pub fn fill_checksum(l3: &mut [u8]) -> bool {
    let len = l3.first().map_or(0, |b| usize::from(b & 0xf) * 4);
    let Some(header) = l3.get_mut(..len).filter(|h| h.len() >= HEADER_LEN) else { return false };
    header[10..12].fill(0);
    let sum = Sum::of(header).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::tests::naive;
    use proptest::prelude::*;

    // Well-known textbook example; its checksum is 0xb861.
    const GOOD: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8,
        0x00, 0xc7,
    ];

    fn packet(header: [u8; 20]) -> Vec<u8> {
        let mut p = header.to_vec();
        p.resize(0x73, 0);
        p
    }

    #[test]
    fn good_and_padded() {
        let mut p = packet(GOOD);
        p.extend([0xaa; 9]);
        let info = check(&p).unwrap();
        assert_eq!((info.total_len, info.header_len, info.proto, info.ttl), (115, 20, 17, 64));
        assert_eq!(info.dst_addr(), Ipv4Addr::new(192, 168, 0, 199));
        assert_eq!(info.src_addr(), Ipv4Addr::new(192, 168, 0, 1));
        assert!(info.dont_fragment() && !info.is_fragment() && !info.has_options());
        assert_eq!(info.payload(&p).len(), 95);
        assert!(info.payload(&p[..50]).is_empty());
    }

    #[test]
    fn each_fault_by_name() {
        assert_eq!(check(&GOOD[..19]), Err(Ipv4Error::Runt));
        assert_eq!(check(&packet(GOOD)[..114]), Err(Ipv4Error::Length));
        let fault = |at: usize, value: u8| {
            let mut p = packet(GOOD);
            p[at] = value;
            if at != 10 {
                fill_checksum(&mut p);
            }
            check(&p).unwrap_err()
        };
        assert_eq!(fault(0, 0x65), Ipv4Error::Version);
        assert_eq!(fault(0, 0x44), Ipv4Error::HeaderLength);
        assert_eq!(fault(3, 19), Ipv4Error::Length);
        assert_eq!(fault(3, 0x74), Ipv4Error::Length);
        assert_eq!(fault(10, 0xb9), Ipv4Error::Checksum);
        let mut p = packet(GOOD);
        p[0] = 0x46;
        p[3] = 23;
        fill_checksum(&mut p);
        assert_eq!(check(&p), Err(Ipv4Error::Length));
    }

    #[test]
    fn ttl_runs_down() {
        let mut h = GOOD;
        for ttl in (1..64).rev() {
            assert!(decrement_ttl(&mut h));
            assert_eq!(h[8], ttl);
            assert!(header_checksum_ok(&h));
        }
        let before = h;
        assert!(!decrement_ttl(&mut h));
        h[8] = 0;
        assert!(!decrement_ttl(&mut h));
        assert_eq!(h[9..], before[9..]);
    }

    /// Compares the incremental update with a recomputation for every checksum that a header can have.
    #[test]
    fn ttl_with_every_checksum() {
        for ident in 0..=u16::MAX {
            let mut h = GOOD;
            h[4..6].copy_from_slice(&ident.to_be_bytes());
            fill_checksum(&mut h);
            decrement_ttl(&mut h);
            let by_increment = h;
            fill_checksum(&mut h);
            assert_eq!(h, by_increment);
        }
    }

    proptest! {
        #[test]
        fn fast_check_agrees(header: [u8; 20], mend: bool) {
            let mut h = header;
            if mend {
                h[0] = 0x45;
                fill_checksum(&mut h);
            }
            prop_assert_eq!(header_checksum_ok(&h), naive(&h) == 0xffff);
        }

        #[test]
        fn check_agrees_with_rules(mut l3 in proptest::collection::vec(any::<u8>(), 0..80), ihl in 4u8..8, len in 0u16..90, mend in 0..8) {
            if l3.len() >= 20 {
                l3[0] = 0x40 | ihl;
                l3[2..4].copy_from_slice(&len.to_be_bytes());
                if mend > 0 {
                    fill_checksum(&mut l3);
                }
            }
            let hl = usize::from(ihl) * 4;
            let want = if l3.len() < 20 { Some(Ipv4Error::Runt) }
                else if ihl < 5 { Some(Ipv4Error::HeaderLength) }
                else if usize::from(len) < hl || usize::from(len) > l3.len() { Some(Ipv4Error::Length) }
                else if naive(&l3[..hl]) != 0xffff { Some(Ipv4Error::Checksum) }
                else { None };
            prop_assert_eq!(check(&l3).err(), want);
        }
    }
}
