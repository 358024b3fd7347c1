//! ICMP error messages for IPv4 (RFC 792, RFC 1812 4.3).

use crate::checksum::checksum;
use crate::ipv4::{self, Ipv4Header};
use crate::proto;
use std::net::Ipv4Addr;
use zerocopy::IntoBytes;

/// Maximum length of an error message in bytes, IP header included (RFC 1812 4.3.2.3).
pub const MAX_LEN: usize = 576;
/// TOS of error messages: precedence 6, internetwork control (RFC 1812 4.3.2.5).
const TOS: u8 = 0xc0;
const TTL: u8 = 64;
/// Length in bytes of the IP and ICMP headers in front of the quoted packet.
const HEADERS: usize = ipv4::HEADER_LEN + 8;

/// Kind of ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp4Error {
    /// Type 11 code 0: TTL exceeded in transit.
    TimeExceeded,
    /// Type 3 code 0: network unreachable.
    NetUnreachable,
    /// Type 3 code 1: host unreachable.
    HostUnreachable,
    /// Type 3 code 13: communication administratively prohibited.
    AdminProhibited,
    /// Type 3 code 4: fragmentation needed and DF set (RFC 1191).
    FragNeeded {
        /// MTU of the next hop in bytes.
        mtu: u16,
    },
    /// Type 5 code 1: redirect for the host.
    Redirect {
        /// Gateway to use instead.
        gateway: Ipv4Addr,
    },
    /// Type 12 code 0: parameter problem.
    ParameterProblem {
        /// Offset of the faulty byte in the original header.
        pointer: u8,
    },
}

impl Icmp4Error {
    /// Returns the type, the code and the four bytes behind the checksum.
    fn fields(self) -> (u8, u8, [u8; 4]) {
        match self {
            Self::TimeExceeded => (11, 0, [0; 4]),
            Self::NetUnreachable => (3, 0, [0; 4]),
            Self::HostUnreachable => (3, 1, [0; 4]),
            Self::AdminProhibited => (3, 13, [0; 4]),
            Self::FragNeeded { mtu } => (3, 4, [0, 0, mtu.to_be_bytes()[0], mtu.to_be_bytes()[1]]),
            Self::Redirect { gateway } => (5, 1, gateway.octets()),
            Self::ParameterProblem { pointer } => (12, 0, [pointer, 0, 0, 0]),
        }
    }
}

/// Writes the error message about `original_l3` to the start of `out`, IP header first, and returns its length in
/// bytes, at most [`MAX_LEN`]. The message goes from `src` to the original's sender and quotes as much of the original
/// as fits.
///
/// `original_l3` is quoted as given, so undo changes that forwarding has made to it first. Returns `None` if it is not
/// a valid IPv4 packet or `out` is too short. Call [`may_answer4`] first to find out whether an error may be sent at
/// all.
pub fn build_icmp4_error(
    out: &mut [u8],
    kind: Icmp4Error,
    original_l3: &[u8],
    src: Ipv4Addr,
    ident: u16,
) -> Option<usize> {
    let info = ipv4::check(original_l3).ok()?;
    let quoted = original_l3.get(..usize::from(info.total_len).min(MAX_LEN - HEADERS))?;
    let len = HEADERS + quoted.len();
    let out = out.get_mut(..len)?;
    let header = Ipv4Header {
        version_ihl: 0x45,
        tos: TOS,
        total_len: (len as u16).into(),
        ident: ident.into(),
        fragment: 0.into(),
        ttl: TTL,
        proto: proto::ICMP,
        checksum: 0.into(),
        src: src.octets(),
        dst: info.src.to_be_bytes(),
    };
    let (ip, icmp) = out.split_at_mut(ipv4::HEADER_LEN);
    ip.copy_from_slice(header.as_bytes());
    ipv4::fill_checksum(ip);
    let (kind, code, rest) = kind.fields();
    icmp[..4].copy_from_slice(&[kind, code, 0, 0]);
    icmp[4..8].copy_from_slice(&rest);
    icmp[8..].copy_from_slice(quoted);
    let sum = checksum(icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(len)
}

/// Returns `true` if an ICMP error may be sent about this packet (RFC 1812 4.3.2.7). No error may answer an ICMP error
/// (or an ICMP type unknown here), an invalid header, a later fragment, a packet received as a link-layer broadcast or
/// multicast, a packet to a multicast or the limited broadcast address, or a source address that does not identify a
/// single host.
///
/// Directed broadcast addresses are the caller's to check, because they depend on the configured subnets.
pub fn may_answer4(original_l3: &[u8], was_l2_broadcast: bool) -> bool {
    let Ok(info) = ipv4::check(original_l3) else { return false };
    let (src, dst) = (info.src_addr(), info.dst_addr());
    // 224.0.0.0/3 holds multicast, reserved addresses and the limited broadcast (RFC 1812 5.3.7).
    let bad_source = src.octets()[0] == 0 || src.is_loopback() || src.octets()[0] >= 224;
    if was_l2_broadcast || bad_source || dst.is_multicast() || dst.is_broadcast() || info.is_later_fragment() {
        return false;
    }
    match (info.proto, info.payload(original_l3).first()) {
        // ICMP types that are not errors: echo, router discovery, timestamp, information, address mask, extended echo.
        (proto::ICMP, kind) => matches!(kind, Some(0 | 8..=10 | 13..=18 | 42 | 43)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Packet;
    use crate::partial::transport_checksum_ok;

    const SRC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    fn original(payload: usize) -> Vec<u8> {
        Packet::udp("10.0.0.1:5".parse().unwrap(), "10.9.0.1:6".parse().unwrap())
            .payload(&vec![7; payload])
            .build_l3()
            .unwrap()
    }

    #[test]
    fn message() {
        let original = original(3);
        let mut padded = original.clone();
        padded.extend([0xee; 10]);
        let mut out = [0; 600];
        let n = build_icmp4_error(&mut out, Icmp4Error::FragNeeded { mtu: 1400 }, &padded, SRC, 0x1234).unwrap();
        let msg = &out[..n];
        let info = ipv4::check(msg).unwrap();
        assert_eq!(n, 28 + original.len());
        assert_eq!((info.src_addr(), info.dst_addr()), (SRC, "10.0.0.1".parse().unwrap()));
        assert_eq!((info.tos, info.ttl, info.proto), (0xc0, 64, 1));
        assert_eq!(msg[4..6], [0x12, 0x34]);
        assert_eq!((msg[20], msg[21], &msg[24..28]), (3, 4, &[0, 0, 5, 120][..]));
        assert_eq!(msg[28..], original);
        assert!(transport_checksum_ok(msg));
    }

    #[test]
    fn kinds() {
        let gateway = Ipv4Addr::new(10, 0, 0, 254);
        for (kind, want) in [
            (Icmp4Error::TimeExceeded, [11, 0, 0, 0, 0, 0]),
            (Icmp4Error::NetUnreachable, [3, 0, 0, 0, 0, 0]),
            (Icmp4Error::HostUnreachable, [3, 1, 0, 0, 0, 0]),
            (Icmp4Error::AdminProhibited, [3, 13, 0, 0, 0, 0]),
            (Icmp4Error::Redirect { gateway }, [5, 1, 10, 0, 0, 254]),
            (Icmp4Error::ParameterProblem { pointer: 20 }, [12, 0, 20, 0, 0, 0]),
        ] {
            let mut out = [0; 600];
            let n = build_icmp4_error(&mut out, kind, &original(0), SRC, 0).unwrap();
            assert_eq!((&out[20..22], &out[24..28]), (&want[..2], &want[2..]), "{kind:?}");
            assert!(transport_checksum_ok(&out[..n]));
            assert!(!may_answer4(&out[..n], false));
        }
    }

    #[test]
    fn long_original_is_cut() {
        let mut out = [0; 1500];
        let original = original(1400);
        assert_eq!(build_icmp4_error(&mut out, Icmp4Error::TimeExceeded, &original, SRC, 0), Some(576));
        assert_eq!(build_icmp4_error(&mut out[..575], Icmp4Error::TimeExceeded, &original, SRC, 0), None);
        assert_eq!(build_icmp4_error(&mut out, Icmp4Error::TimeExceeded, &original[..100], SRC, 0), None);
    }

    #[test]
    fn when_not_to_answer() {
        let with = |at: usize, bytes: &[u8]| {
            let mut p = original(4);
            p[at..at + bytes.len()].copy_from_slice(bytes);
            ipv4::fill_checksum(&mut p);
            may_answer4(&p, false)
        };
        assert!(may_answer4(&original(4), false));
        assert!(!may_answer4(&original(4), true));
        assert!(!may_answer4(&original(4)[..31], false));
        for src in [[0, 0, 0, 0], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 5], [240, 0, 0, 1], [255; 4]] {
            assert!(!with(12, &src), "{src:?}");
        }
        assert!(!with(16, &[239, 1, 1, 1]) && !with(16, &[255; 4]));
        assert!(!with(6, &[0x00, 0x01]));
        assert!(with(6, &[0x20, 0x00]), "a first fragment is answered");
        for kind in 0..=255u8 {
            let mut p = original(4);
            (p[9], p[20]) = (proto::ICMP, kind);
            ipv4::fill_checksum(&mut p);
            assert_eq!(may_answer4(&p, false), matches!(kind, 0 | 8 | 9 | 10 | 13..=18 | 42 | 43), "{kind}");
        }
        let mut p = original(0)[..20].to_vec();
        (p[3], p[9]) = (20, proto::ICMP);
        ipv4::fill_checksum(&mut p);
        assert!(!may_answer4(&p, false), "an ICMP packet without a type may be anything");
    }
}
