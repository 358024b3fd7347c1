//! IPv6 headers and their extension header chains (RFC 8200).

use crate::proto;
use core::fmt;
use std::net::Ipv6Addr;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the fixed header in bytes.
pub const HEADER_LEN: usize = 40;
/// Maximum number of extension headers that [`walk`] follows.
pub const MAX_EXTENSIONS: usize = 8;
/// Limit in bytes of extension headers before [`walk`] refuses to follow another one: the part of a packet of the
/// minimum MTU that is behind the fixed header.
pub const MAX_EXTENSION_BYTES: usize = 1280 - HEADER_LEN;

/// Fixed IPv6 header.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub version_flow: U32,
    /// Length in bytes of all data behind this header, extension headers included.
    pub payload_len: U16,
    /// Protocol number of the following header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl Ipv6Header {
    /// Returns the header at the start of `l3`, not validated, and the bytes behind it, or `None` if `l3` is shorter
    /// than 40 bytes.
    #[inline]
    pub fn parse(l3: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(l3).ok()
    }

    /// Returns the same parts as [`Self::parse`], mutable.
    #[inline]
    pub fn parse_mut(l3: &mut [u8]) -> Option<(&mut Self, &mut [u8])> {
        Self::mut_from_prefix(l3).ok()
    }
}

/// Fields of a header that passed [`check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Info {
    /// Destination address, host order.
    pub dst: u128,
    /// Source address, host order.
    pub src: u128,
    /// Length of header and payload in bytes, 40 to 65575, at most the length of the checked slice.
    pub total_len: u32,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Protocol number of the header behind the fixed header.
    pub next_header: u8,
    /// Hop limit as received. A packet with a hop limit below 2 must not be forwarded (RFC 8200 3).
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
}

impl Ipv6Info {
    /// Returns the destination address.
    #[inline]
    pub fn dst_addr(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.dst)
    }

    /// Returns the source address.
    #[inline]
    pub fn src_addr(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.src)
    }
}

/// Reason why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ipv6Error {
    /// Fewer than 40 bytes.
    Runt,
    /// Version is not 6.
    Version,
    /// The payload length is beyond the frame.
    Length,
}

impl fmt::Display for Ipv6Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runt => "packet is shorter than an IPv6 header",
            Self::Version => "version is not 6",
            Self::Length => "payload length is beyond the frame",
        })
    }
}

impl std::error::Error for Ipv6Error {}

/// Validates the fixed header at the start of `l3`. A jumbogram (RFC 2675) is read as a packet without payload.
///
/// # Errors
/// The first fault, in the order of [`Ipv6Error`]'s variants. The hop limit is not checked: packets for this host may
/// arrive with a hop limit of 1.
#[inline]
pub fn check(l3: &[u8]) -> Result<Ipv6Info, Ipv6Error> {
    let Some((h, payload)) = Ipv6Header::parse(l3) else { return Err(Ipv6Error::Runt) };
    let word = h.version_flow.get();
    if word >> 28 != 6 {
        return Err(Ipv6Error::Version);
    }
    let payload_len = h.payload_len.get();
    if usize::from(payload_len) > payload.len() {
        return Err(Ipv6Error::Length);
    }
    Ok(Ipv6Info {
        dst: u128::from_be_bytes(h.dst),
        src: u128::from_be_bytes(h.src),
        total_len: u32::from(payload_len) + HEADER_LEN as u32,
        flow_label: word & 0xf_ffff,
        next_header: h.next_header,
        hop_limit: h.hop_limit,
        traffic_class: (word >> 20) as u8,
    })
}

/// Decrements the hop limit. Returns `false` and changes nothing if it is 0 or 1: the packet must not be forwarded (RFC
/// 8200 3).
#[inline]
pub fn decrement_hop_limit(header: &mut [u8; HEADER_LEN]) -> bool {
    if header[7] <= 1 {
        return false;
    }
    header[7] -= 1;
    true
}

/// Upper-layer header found at the end of an extension header chain, and properties of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// Offset in bytes from the start of the IPv6 header to the upper-layer header, or to the data of a later fragment.
    pub offset: usize,
    /// Upper-layer protocol number. ESP and "no next header" end a chain.
    pub proto: u8,
    /// The chain has a fragment header.
    pub fragment: bool,
    /// The packet is a fragment other than the first: `offset` does not point to an upper-layer header.
    pub later_fragment: bool,
    /// The chain has a hop-by-hop options header, which asks every router to inspect the packet.
    pub hop_by_hop: bool,
    /// The chain has a routing header with segments left: the destination address is not the final one.
    pub segments_left: bool,
}

/// Reason why [`walk`] cannot reach the end of an extension header chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtensionError {
    /// The packet ends inside the chain.
    Truncated,
    /// The chain exceeds [`MAX_EXTENSIONS`] headers or [`MAX_EXTENSION_BYTES`] bytes.
    TooLong,
    /// A hop-by-hop options header is not the first extension header (RFC 8200 4.1).
    HopByHop,
}

impl fmt::Display for ExtensionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "packet ends inside its extension headers",
            Self::TooLong => "extension header chain is too long",
            Self::HopByHop => "hop-by-hop options header is not the first extension header",
        })
    }
}

impl std::error::Error for ExtensionError {}

/// Returns `true` for the extension headers that [`walk`] steps over.
#[inline]
pub fn is_extension(next_header: u8) -> bool {
    matches!(next_header, proto::HOP_BY_HOP | proto::ROUTING | proto::FRAGMENT | proto::AUTH | proto::DEST_OPTIONS)
}

/// Follows the extension headers of a packet that passed [`check`] to the upper-layer header.
///
/// # Errors
/// [`ExtensionError`]. At most [`MAX_EXTENSIONS`] headers are read.
#[inline]
pub fn walk(l3: &[u8], info: &Ipv6Info) -> Result<Upper, ExtensionError> {
    if is_extension(info.next_header) { walk_chain(l3, info) } else { Ok(Upper::at_once(info)) }
}

impl Upper {
    /// Returns the upper layer of a packet without extension headers.
    #[inline]
    fn at_once(info: &Ipv6Info) -> Self {
        Self {
            offset: HEADER_LEN,
            proto: info.next_header,
            fragment: false,
            later_fragment: false,
            hop_by_hop: false,
            segments_left: false,
        }
    }
}

#[cold]
#[inline(never)]
fn walk_chain(l3: &[u8], info: &Ipv6Info) -> Result<Upper, ExtensionError> {
    let mut at = Upper::at_once(info);
    let l3 = l3.get(..info.total_len as usize).ok_or(ExtensionError::Truncated)?;
    let mut passed = 0;
    while is_extension(at.proto) {
        if passed == MAX_EXTENSIONS || at.offset - HEADER_LEN > MAX_EXTENSION_BYTES {
            return Err(ExtensionError::TooLong);
        }
        // Every extension header is at least 8 bytes long.
        let Some(head) = l3.get(at.offset..).and_then(|rest| rest.first_chunk::<8>()) else {
            return Err(ExtensionError::Truncated);
        };
        let units = usize::from(head[1]);
        let mut len = (units + 1) * 8;
        match at.proto {
            proto::HOP_BY_HOP if passed > 0 => return Err(ExtensionError::HopByHop),
            proto::HOP_BY_HOP => at.hop_by_hop = true,
            proto::ROUTING => at.segments_left |= head[3] > 0,
            proto::AUTH => len = (units + 2) * 4, // RFC 4302 2.2
            proto::FRAGMENT => {
                len = 8;
                at.fragment = true;
                at.later_fragment = u16::from_be_bytes([head[2], head[3]]) & 0xfff8 != 0;
            }
            _ => {}
        }
        at.proto = head[0];
        at.offset += len;
        passed += 1;
        if at.offset > l3.len() {
            return Err(ExtensionError::Truncated);
        }
        if at.later_fragment {
            break;
        }
    }
    Ok(at)
}

/// Runs [`check`] and [`walk`]; for callers off the fast path. Returns `None` if either fails.
pub fn upper(l3: &[u8]) -> Option<(Ipv6Info, Upper)> {
    let info = check(l3).ok()?;
    Some((info, walk(l3, &info).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a packet with the chain `headers` (protocol, bytes), then `last` with 8 zero bytes.
    fn chain(headers: &[(u8, Vec<u8>)], last: u8) -> Vec<u8> {
        let mut p = vec![0u8; HEADER_LEN];
        p[0] = 0x60;
        p[7] = 64;
        p[6] = headers.first().map_or(last, |h| h.0);
        for (i, (_, bytes)) in headers.iter().enumerate() {
            let at = p.len();
            p.extend(bytes);
            p[at] = headers.get(i + 1).map_or(last, |h| h.0);
        }
        p.extend([0; 8]);
        let len = (p.len() - HEADER_LEN) as u16;
        p[4..6].copy_from_slice(&len.to_be_bytes());
        p
    }

    fn options(units: u8) -> Vec<u8> {
        let mut b = vec![0; (usize::from(units) + 1) * 8];
        b[1] = units;
        b
    }

    fn walked(p: &[u8]) -> Result<Upper, ExtensionError> {
        walk(p, &check(p).unwrap())
    }

    #[test]
    fn header() {
        let mut p = chain(&[], proto::UDP);
        p[0..4].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45]);
        p.extend([1, 2, 3]);
        let info = check(&p).unwrap();
        assert_eq!((info.total_len, info.traffic_class, info.flow_label), (48, 0xab, 0x12345));
        assert_eq!(check(&p[..39]), Err(Ipv6Error::Runt));
        assert_eq!(check(&p[..47]), Err(Ipv6Error::Length));
        p[0] = 0x4a;
        assert_eq!(check(&p), Err(Ipv6Error::Version));
    }

    #[test]
    fn no_extension() {
        let u = walked(&chain(&[], proto::TCP)).unwrap();
        assert_eq!((u.proto, u.offset, u.hop_by_hop), (proto::TCP, 40, false));
    }

    #[test]
    fn all_kinds() {
        let p = chain(
            &[
                (proto::HOP_BY_HOP, options(0)),
                (proto::DEST_OPTIONS, options(1)),
                (proto::ROUTING, options(2)),
                (proto::FRAGMENT, options(0)),
                (proto::AUTH, {
                    let mut b = vec![0; 16];
                    b[1] = 2;
                    b
                }),
                (proto::DEST_OPTIONS, options(0)),
            ],
            proto::UDP,
        );
        let u = walked(&p).unwrap();
        assert_eq!((u.proto, u.offset), (proto::UDP, 40 + 8 + 16 + 24 + 8 + 16 + 8));
        assert!(u.hop_by_hop && u.fragment && !u.later_fragment && !u.segments_left);
    }

    #[test]
    fn fragment_length_byte_is_reserved() {
        let mut f = options(0);
        f[1] = 0xff;
        assert_eq!(walked(&chain(&[(proto::FRAGMENT, f)], proto::UDP)).unwrap().offset, 48);
    }

    #[test]
    fn later_fragment_ends_the_walk() {
        let mut f = options(0);
        f[3] = 0x08;
        // The data behind the fragment header looks like an extension header.
        let u = walked(&chain(&[(proto::FRAGMENT, f)], proto::DEST_OPTIONS)).unwrap();
        assert_eq!((u.proto, u.offset, u.later_fragment), (proto::DEST_OPTIONS, 48, true));
    }

    #[test]
    fn routing_with_segments_left() {
        let mut r = options(2);
        r[3] = 1;
        assert!(walked(&chain(&[(proto::ROUTING, r)], proto::TCP)).unwrap().segments_left);
    }

    #[test]
    fn faults() {
        let many = |n| chain(&vec![(proto::DEST_OPTIONS, options(0)); n], proto::UDP);
        assert!(walked(&many(8)).is_ok());
        assert_eq!(walked(&many(9)), Err(ExtensionError::TooLong));
        let long = chain(&[(proto::DEST_OPTIONS, options(200)), (proto::DEST_OPTIONS, options(0))], proto::UDP);
        assert_eq!(walked(&long), Err(ExtensionError::TooLong));
        let mut lying = chain(&[(proto::DEST_OPTIONS, options(0))], proto::UDP);
        lying[41] = 2;
        assert_eq!(walked(&lying), Err(ExtensionError::Truncated));
        let late = chain(&[(proto::DEST_OPTIONS, options(0)), (proto::HOP_BY_HOP, options(0))], proto::UDP);
        assert_eq!(walked(&late), Err(ExtensionError::HopByHop));
    }

    #[test]
    fn bytes_past_the_packet_are_not_read() {
        let mut p = chain(&[(proto::DEST_OPTIONS, options(0))], proto::UDP);
        p[5] = 4;
        assert_eq!(walked(&p), Err(ExtensionError::Truncated));
    }

    #[test]
    fn hop_limit() {
        let mut p = chain(&[], proto::UDP);
        let h: &mut [u8; 40] = p.first_chunk_mut().unwrap();
        h[7] = 2;
        assert!(decrement_hop_limit(h));
        assert!(!decrement_hop_limit(h));
        assert_eq!(h[7], 1);
    }
}
