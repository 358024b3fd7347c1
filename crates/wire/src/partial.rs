//! Detection and completion of partial checksums, which Linux leaves to a device.
//!
//! A frame from veth or TAP, or merged by GRO, with `CHECKSUM_PARTIAL` (linux/skbuff.h) holds the folded pseudo-header
//! sum, not complemented, in its TCP or UDP checksum field. The checksum must be completed before the frame leaves the
//! host. An XDP program cannot see the flag, so it is inferred from the field.
//!
//! One in 65,536 packets with a full checksum looks partial. Completing it computes the same checksum again, so a
//! correct packet is never changed. (A corrupted packet that looks partial would get a valid checksum: as unlikely as a
//! corruption that the checksum misses.)
//!
//! Only the outermost TCP or UDP header is examined, except by [`complete_all`]; for a router, the XDP program leaves
//! packets with a partial checksum inside a tunnel to the kernel (`hides_checksum` in xdp/router.h), as well as SCTP:
//! veth claims CRC-32C offload, too (`NETIF_F_SCTP_CRC`). Not completed are fragments, UDP over
//! IPv4 without checksum, packets with a routing header that has segments left (their pseudo-header holds another
//! destination), and ICMPv6, which the kernel fills in itself (net/ipv6/icmp.c, `icmpv6_push_pending_frames`).

mod within;

pub use within::complete_all;

use crate::checksum::{Sum, pseudo4, pseudo6};
use crate::ipv4::{self, Ipv4Info};
use crate::ipv6::{self, Ipv6Info, Upper};
use crate::proto;

/// State of a packet's transport checksum, as determined by [`state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The field holds a full checksum, correct or wrong, or zero for a deliberately absent one.
    Full,
    /// The field holds the pseudo-header sum only.
    Partial,
    /// The packet is not TCP or UDP, is a fragment, has routing segments left, or is malformed.
    NotApplicable,
}

/// Returns the offset of the checksum field in the transport header and the length of the header's fixed part, in
/// bytes.
#[inline]
fn field_of(protocol: u8) -> Option<(usize, usize)> {
    match protocol {
        proto::TCP => Some((16, 20)),
        proto::UDP => Some((6, 8)),
        _ => None,
    }
}

/// Returns the offset of the checksum field within `l4` and its value.
#[inline]
fn field(protocol: u8, l4: &[u8]) -> Option<(usize, u16)> {
    let (at, min) = field_of(protocol)?;
    let bytes = l4.get(..min)?.get(at..)?.first_chunk::<2>()?;
    Some((at, u16::from_be_bytes(*bytes)))
}

/// Applies the rule for both address families to the transport packet `l3[at..end]`.
///
/// A pseudo-header sum is never 0, so a UDP checksum of 0 is not mistaken for one. Otherwise the field equals the sum
/// if the sum plus the field's complement is all ones.
#[inline]
fn judge(l3: &[u8], protocol: u8, at: usize, end: usize, pseudo: impl FnOnce(usize) -> Sum) -> State {
    let Some((field, min)) = field_of(protocol) else { return State::NotApplicable };
    if end > l3.len() || at.saturating_add(min) > end {
        return State::NotApplicable;
    }
    let Some(bytes) = l3.get(at + field..at + field + 2) else { return State::NotApplicable };
    let field = u16::from_be_bytes([bytes[0], bytes[1]]);
    if field != 0 && (pseudo(end - at) + Sum::of_u16(!field)).is_valid() { State::Partial } else { State::Full }
}

/// Returns the checksum state of an IPv4 packet that passed [`ipv4::check`]. It takes a few additions; the payload is
/// not read.
#[inline]
pub fn state4(l3: &[u8], info: &Ipv4Info) -> State {
    let Some(header) = l3.first_chunk() else { return State::NotApplicable };
    if info.is_fragment() {
        return State::NotApplicable;
    }
    let (at, end) = (usize::from(info.header_len), usize::from(info.total_len));
    judge(l3, info.proto, at, end, |len| pseudo4(header, info.proto, len as u16))
}

/// Returns the checksum state of an IPv6 packet that passed [`ipv6::check`] and [`ipv6::walk`].
#[inline]
pub fn state6(l3: &[u8], info: &Ipv6Info, upper: &Upper) -> State {
    let Some(header) = l3.first_chunk() else { return State::NotApplicable };
    if upper.fragment || upper.segments_left {
        return State::NotApplicable;
    }
    judge(l3, upper.proto, upper.offset, info.total_len as usize, |len| pseudo6(header, upper.proto, len as u32))
}

/// Completes the checksum of an IPv4 packet if it is partial. Returns `true` if it was.
#[inline]
pub fn complete4(l3: &mut [u8], info: &Ipv4Info) -> bool {
    state4(l3, info) == State::Partial
        && complete_at(l3, info.proto, usize::from(info.header_len), usize::from(info.total_len))
}

/// Completes the checksum of an IPv6 packet if it is partial. Returns `true` if it was.
#[inline]
pub fn complete6(l3: &mut [u8], info: &Ipv6Info, upper: &Upper) -> bool {
    state6(l3, info, upper) == State::Partial && complete_at(l3, upper.proto, upper.offset, info.total_len as usize)
}

/// Completes a checksum known to be partial, as a device would: sums `l3[l4..end]`, including the pseudo-header sum in
/// the field, and writes the complement. Returns `false` and changes nothing if the range is invalid, the header is
/// incomplete or the protocol is neither TCP nor UDP.
#[inline(never)]
pub fn complete_at(l3: &mut [u8], protocol: u8, l4: usize, end: usize) -> bool {
    let Some(l4) = l3.get_mut(l4..end) else { return false };
    let Some((at, _)) = field(protocol, l4) else { return false };
    let mut sum = Sum::of(l4).checksum();
    if protocol == proto::UDP && sum == 0 {
        sum = 0xffff; // RFC 768: a zero field means "no checksum".
    }
    l4[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Returns the checksum state of a packet that has not been parsed yet, like [`state4`] or [`state6`].
pub fn state(l3: &[u8]) -> State {
    if let Ok(info) = ipv4::check(l3) {
        state4(l3, &info)
    } else if let Some((info, upper)) = ipv6::upper(l3) {
        state6(l3, &info, &upper)
    } else {
        State::NotApplicable
    }
}

/// Completes the checksum of a packet that has not been parsed yet, like [`complete4`] or [`complete6`].
pub fn complete(l3: &mut [u8]) -> bool {
    if let Ok(info) = ipv4::check(l3) {
        complete4(l3, &info)
    } else if let Some((info, upper)) = ipv6::upper(l3) {
        complete6(l3, &info, &upper)
    } else {
        false
    }
}

/// Returns `true` if the transport checksum of a packet is correct, absent, or cannot be verified (fragments, other
/// protocols, malformed packets).
pub fn transport_checksum_ok(l3: &[u8]) -> bool {
    let (sum, protocol, l4) = if let Ok(info) = ipv4::check(l3) {
        let (l4, Some(header)) = (info.payload(l3), l3.first_chunk()) else { return true };
        if info.is_fragment() {
            return true;
        }
        let pseudo = pseudo4(header, info.proto, l4.len() as u16);
        (if info.proto == proto::ICMP { Sum::ZERO } else { pseudo }, info.proto, l4)
    } else if let Some((info, upper)) = ipv6::upper(l3) {
        let (Some(l4), Some(header)) = (l3.get(upper.offset..info.total_len as usize), l3.first_chunk()) else {
            return true;
        };
        if upper.fragment || upper.segments_left {
            return true;
        }
        (pseudo6(header, upper.proto, l4.len() as u32), upper.proto, l4)
    } else {
        return true;
    };
    match protocol {
        proto::UDP if matches!(field(protocol, l4), Some((_, 0))) => l3.first().is_some_and(|b| b >> 4 == 4),
        proto::UDP | proto::TCP if field(protocol, l4).is_none() => true,
        proto::UDP | proto::TCP | proto::ICMP | proto::ICMP6 => (sum + Sum::of(l4)).is_valid(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Packet;
    use proptest::prelude::*;

    fn packet(v6: bool, tcp: bool, payload: &[u8], partial: bool) -> Vec<u8> {
        let (src, dst) = if v6 { ("[fd00::1]:1000", "[fd01::2]:80") } else { ("10.1.2.3:1000", "10.4.5.6:80") };
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        let p = if tcp { Packet::tcp(src, dst) } else { Packet::udp(src, dst) };
        p.payload(payload).partial_checksum(partial).build_l3().unwrap()
    }

    proptest! {
        #[test]
        fn completed_is_what_the_sender_would_have_sent(
            v6: bool, tcp: bool, payload in proptest::collection::vec(any::<u8>(), 0..1400), pad in 0usize..20,
        ) {
            let full = packet(v6, tcp, &payload, false);
            let mut l3 = packet(v6, tcp, &payload, true);
            l3.extend(vec![0x5a; pad]);
            prop_assert_eq!(state(&l3), State::Partial);
            prop_assert!(complete(&mut l3));
            prop_assert_eq!(&l3[..full.len()], &full[..]);
            prop_assert!(l3[full.len()..].iter().all(|b| *b == 0x5a));
            prop_assert!(transport_checksum_ok(&l3));
        }

        /// A packet with a correct checksum comes out unchanged, whether or not it looks partial.
        #[test]
        fn good_packets_are_never_changed(v6: bool, tcp: bool, payload in proptest::collection::vec(any::<u8>(), 2..64)) {
            let full = packet(v6, tcp, &payload, false);
            let mut l3 = full.clone();
            complete(&mut l3);
            prop_assert_eq!(l3, full);
        }
    }

    /// Checks the rule word by word, for every sum that a pseudo-header can have and neighbouring field values.
    #[test]
    fn agrees_with_naive() {
        for word in 0..=u16::MAX {
            let mut l3 = packet(false, false, b"data", false);
            l3[14..16].copy_from_slice(&word.to_be_bytes());
            ipv4::fill_checksum(&mut l3);
            let pseudo = [&l3[12..20], &[0, 17, 0, 12][..]].concat();
            let sum = crate::checksum::tests::naive(&pseudo);
            for field in [0, 1, sum.wrapping_sub(1), sum, sum.wrapping_add(1), !sum, 0xffff] {
                l3[26..28].copy_from_slice(&field.to_be_bytes());
                let want = if field == sum { State::Partial } else { State::Full };
                assert_eq!(state(&l3), want, "sum {sum:04x}, field {field:04x}");
            }
        }
    }

    /// Exactly one of 65,536 payloads has a full checksum equal to the pseudo-header sum.
    #[test]
    fn look_alike_is_completed_to_itself() {
        let mut seen = 0;
        for word in 0..=u16::MAX {
            let full = packet(false, true, &word.to_be_bytes(), false);
            if state(&full) == State::Partial {
                let mut l3 = full.clone();
                assert!(complete(&mut l3));
                assert_eq!(l3, full);
                seen += 1;
            }
        }
        assert_eq!(seen, 1);
    }

    #[test]
    fn left_alone() {
        let mut none = packet(false, false, b"data", false);
        none[26..28].fill(0);
        assert_eq!(state(&none), State::Full);
        assert!(!complete(&mut none) && transport_checksum_ok(&none));

        let mut fragment = packet(false, false, b"data", true);
        fragment[6] = 0x20;
        ipv4::fill_checksum(&mut fragment);
        assert_eq!(state(&fragment), State::NotApplicable);

        let ping = Packet::echo("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 1, 1).build_l3().unwrap();
        assert_eq!(state(&ping), State::NotApplicable);
        assert!(transport_checksum_ok(&ping));

        let short = packet(false, true, b"", true);
        let mut l3 = short[..30].to_vec();
        l3[3] = 30;
        ipv4::fill_checksum(&mut l3);
        assert_eq!(state(&l3), State::NotApplicable);
    }

    #[test]
    fn behind_extension_headers() {
        let full = packet(true, true, b"some data", false);
        let partial = packet(true, true, b"some data", true);
        let stuffed = |p: &[u8]| {
            let mut l3 = p[..40].to_vec();
            l3[6] = proto::DEST_OPTIONS;
            l3[5] += 8;
            l3.extend([proto::TCP, 0, 1, 4, 0, 0, 0, 0]);
            l3.extend(&p[40..]);
            l3
        };
        let mut l3 = stuffed(&partial);
        assert!(complete(&mut l3));
        assert_eq!(l3, stuffed(&full));
        // A routing header with segments left: the sum in the field covers another destination.
        let mut routed = stuffed(&partial);
        routed[6] = proto::ROUTING;
        routed[43] = 1;
        assert_eq!(state(&routed), State::NotApplicable);
    }

    #[test]
    fn udp_sum_of_zero_becomes_all_ones() {
        for word in 0..=u16::MAX {
            let mut l3 = packet(true, false, &word.to_be_bytes(), true);
            complete(&mut l3);
            assert_ne!(l3[46..48], [0, 0]);
        }
    }
}
