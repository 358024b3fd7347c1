//! ICMPv6 error messages (RFC 4443).

use crate::checksum::{Sum, pseudo6};
use crate::ipv6::{self, Ipv6Header};
use crate::proto;
use std::net::Ipv6Addr;
use zerocopy::IntoBytes;

/// Maximum length of an error message in bytes, IPv6 header included: the minimum MTU (RFC 4443 2.4 (c)).
pub const MAX_LEN: usize = 1280;
const HOP_LIMIT: u8 = 64;
/// Length in bytes of the IPv6 and ICMPv6 headers in front of the quoted packet.
const HEADERS: usize = ipv6::HEADER_LEN + 8;

/// Kind of ICMPv6 error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp6Error {
    /// Type 1 code 0: no route to destination.
    NoRoute,
    /// Type 1 code 1: communication administratively prohibited.
    AdminProhibited,
    /// Type 1 code 3: address unreachable.
    AddressUnreachable,
    /// Type 2: packet too big.
    PacketTooBig {
        /// MTU of the next hop in bytes.
        mtu: u32,
    },
    /// Type 3 code 0: hop limit exceeded in transit.
    HopLimitExceeded,
    /// Type 4: parameter problem.
    ParameterProblem {
        /// 0: erroneous header field; 1: unrecognised next header; 2: unrecognised option.
        code: u8,
        /// Offset of the faulty byte in the original packet.
        pointer: u32,
    },
}

impl Icmp6Error {
    /// Returns the type, the code and the four bytes behind the checksum.
    fn fields(self) -> (u8, u8, u32) {
        match self {
            Self::NoRoute => (1, 0, 0),
            Self::AdminProhibited => (1, 1, 0),
            Self::AddressUnreachable => (1, 3, 0),
            Self::PacketTooBig { mtu } => (2, 0, mtu),
            Self::HopLimitExceeded => (3, 0, 0),
            Self::ParameterProblem { code, pointer } => (4, code, pointer),
        }
    }

    /// Returns `true` for the two errors that may answer a multicast (RFC 4443 2.4 (e.3)).
    fn answers_multicast(self) -> bool {
        matches!(self, Self::PacketTooBig { .. } | Self::ParameterProblem { code: 2, .. })
    }
}

/// Writes the error message about `original_l3` to the start of `out`, IPv6 header first, and returns its length in
/// bytes, at most [`MAX_LEN`]. The message goes from `src` to the original's sender and quotes as much of the original
/// as fits.
///
/// `original_l3` is quoted as given, so undo changes that forwarding has made to it first. Returns `None` if it is not
/// a valid IPv6 packet or `out` is too short. Call [`may_answer6`] first to find out whether an error may be sent at
/// all.
pub fn build_icmp6_error(out: &mut [u8], kind: Icmp6Error, original_l3: &[u8], src: Ipv6Addr) -> Option<usize> {
    let info = ipv6::check(original_l3).ok()?;
    let quoted = original_l3.get(..(info.total_len as usize).min(MAX_LEN - HEADERS))?;
    let len = HEADERS + quoted.len();
    let out = out.get_mut(..len)?;
    let icmp_len = len - ipv6::HEADER_LEN;
    let header = Ipv6Header {
        version_flow: (6 << 28).into(),
        payload_len: (icmp_len as u16).into(),
        next_header: proto::ICMP6,
        hop_limit: HOP_LIMIT,
        src: src.octets(),
        dst: info.src.to_be_bytes(),
    };
    let (ip, icmp) = out.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
    ip.copy_from_slice(header.as_bytes());
    let (kind, code, rest) = kind.fields();
    icmp[..4].copy_from_slice(&[kind, code, 0, 0]);
    icmp[4..8].copy_from_slice(&rest.to_be_bytes());
    icmp[8..].copy_from_slice(quoted);
    let sum = (pseudo6(ip, proto::ICMP6, icmp_len as u32) + Sum::of(icmp)).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(len)
}

/// Returns `true` if this error may be sent about this packet (RFC 4443 2.4 (e)). No error may answer an ICMPv6 error
/// or redirect, a packet received as a link-layer broadcast or multicast or sent to a multicast address (with the two
/// exceptions of (e.3)), or a source address that does not identify a single node. Packets whose extension header chain
/// [`ipv6::walk`] cannot follow to its end are not answered either, as they may carry an ICMPv6 error.
pub fn may_answer6(original_l3: &[u8], was_l2_broadcast: bool, kind: Icmp6Error) -> bool {
    let Some((info, upper)) = ipv6::upper(original_l3) else { return false };
    let (src, dst) = (info.src_addr(), info.dst_addr());
    if src.is_unspecified() || src.is_multicast() || src.is_loopback() {
        return false;
    }
    if (was_l2_broadcast || dst.is_multicast()) && !kind.answers_multicast() {
        return false;
    }
    if upper.proto != proto::ICMP6 {
        return true;
    }
    // Types from 128 up are informational; 137 is the redirect.
    let l4 = original_l3.get(upper.offset..info.total_len as usize).unwrap_or_default();
    !upper.later_fragment && matches!(l4.first(), Some(128..=136 | 138..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Packet;
    use crate::partial::transport_checksum_ok;

    const SRC: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

    fn original(payload: usize) -> Vec<u8> {
        Packet::udp("[fd00::1]:5".parse().unwrap(), "[fd09::1]:6".parse().unwrap())
            .payload(&vec![7; payload])
            .build_l3()
            .unwrap()
    }

    #[test]
    fn kinds() {
        let original = original(9);
        let mut padded = original.clone();
        padded.extend([0xee; 10]);
        for (kind, want) in [
            (Icmp6Error::NoRoute, [1, 0, 0, 0, 0, 0]),
            (Icmp6Error::AdminProhibited, [1, 1, 0, 0, 0, 0]),
            (Icmp6Error::AddressUnreachable, [1, 3, 0, 0, 0, 0]),
            (Icmp6Error::PacketTooBig { mtu: 1400 }, [2, 0, 0, 0, 5, 120]),
            (Icmp6Error::HopLimitExceeded, [3, 0, 0, 0, 0, 0]),
            (Icmp6Error::ParameterProblem { code: 1, pointer: 40 }, [4, 1, 0, 0, 0, 40]),
        ] {
            let mut out = [0; 1500];
            let n = build_icmp6_error(&mut out, kind, &padded, SRC).unwrap();
            let msg = &out[..n];
            let info = ipv6::check(msg).unwrap();
            assert_eq!((info.total_len as usize, info.hop_limit, info.next_header), (n, 64, 58));
            assert_eq!((info.src_addr(), info.dst_addr()), (SRC, "fd00::1".parse().unwrap()));
            assert_eq!((&msg[40..42], &msg[44..48]), (&want[..2], &want[2..]), "{kind:?}");
            assert_eq!(msg[48..], original);
            assert!(transport_checksum_ok(msg));
            assert!(!may_answer6(msg, false, Icmp6Error::PacketTooBig { mtu: 1280 }));
        }
    }

    #[test]
    fn long_original_is_cut() {
        let mut out = [0; 1500];
        let original = original(1400);
        assert_eq!(build_icmp6_error(&mut out, Icmp6Error::NoRoute, &original, SRC), Some(1280));
        assert!(transport_checksum_ok(&out[..1280]));
        assert_eq!(build_icmp6_error(&mut out[..1279], Icmp6Error::NoRoute, &original, SRC), None);
        assert_eq!(build_icmp6_error(&mut out, Icmp6Error::NoRoute, &original[..100], SRC), None);
    }

    #[test]
    fn when_not_to_answer() {
        let big = Icmp6Error::PacketTooBig { mtu: 1280 };
        let with = |at: usize, bytes: &[u8], kind| {
            let mut p = original(4);
            p[at..at + bytes.len()].copy_from_slice(bytes);
            may_answer6(&p, false, kind)
        };
        assert!(may_answer6(&original(4), false, Icmp6Error::NoRoute));
        assert!(!may_answer6(&original(4), true, Icmp6Error::NoRoute));
        assert!(may_answer6(&original(4), true, big));
        for src in [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, "ff02::1".parse().unwrap()] {
            assert!(!with(8, &src.octets(), big), "{src}");
        }
        assert!(!with(24, &[0xff, 0x05], Icmp6Error::NoRoute));
        assert!(with(24, &[0xff, 0x05], big));
        assert!(with(24, &[0xff, 0x05], Icmp6Error::ParameterProblem { code: 2, pointer: 42 }));
        for kind in 0..=255u8 {
            let mut p = original(4);
            (p[6], p[40]) = (proto::ICMP6, kind);
            assert_eq!(may_answer6(&p, false, big), kind >= 128 && kind != 137, "{kind}");
        }
        assert!(!with(6, &[proto::DEST_OPTIONS], big), "a chain without end");
    }

    #[test]
    fn later_fragments() {
        let fragment = |upper: u8| {
            let mut p = original(4);
            p[6] = proto::FRAGMENT;
            p[40..48].copy_from_slice(&[upper, 0, 0, 0x08, 0, 0, 0, 1]);
            may_answer6(&p, false, Icmp6Error::NoRoute)
        };
        assert!(fragment(proto::UDP));
        assert!(!fragment(proto::ICMP6), "its type is in another fragment");
    }
}
