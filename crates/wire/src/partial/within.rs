//! Completion of partial checksums within tunnels, and of SCTP's.

use crate::checksum::{Sum, crc32c};
use crate::ethernet::{HEADER_LEN, ethertype};
use crate::{ipv4, ipv6, partial, proto};

/// Depth to which packets within tunnels are looked at.
const DEPTH: usize = 4;
/// UDP ports of VXLAN: by RFC 7348, and Linux's default.
const VXLAN: [u16; 2] = [4789, 8472];
/// UDP port of Geneve (RFC 8926).
const GENEVE: u16 = 6081;

/// Completes the checksums that the sender of a packet has left to a device, like [`partial::complete`], but also those
/// within tunnels (IP in IP, GRE, VXLAN and Geneve to their usual ports) and the CRC of SCTP. Returns `true` if there
/// were any.
///
/// For programs that cannot leave such packets to the kernel. At most one checksum of a packet is partial, but for that
/// of GRE, which is computed last.
pub fn complete_all(l3: &mut [u8]) -> bool {
    of_packet(l3, 0)
}

fn of_packet(l3: &mut [u8], depth: usize) -> bool {
    let Some((protocol, at, end)) = transport(l3) else { return false };
    match protocol {
        proto::TCP => partial::complete(l3),
        proto::UDP => {
            let inner = depth < DEPTH && tunnelled(&mut l3[at..end], depth + 1);
            inner | partial::complete(l3)
        }
        proto::SCTP => complete_sctp(&mut l3[at..end]),
        proto::IPIP | proto::IPV6 if depth < DEPTH => of_packet(&mut l3[at..end], depth + 1),
        proto::GRE if depth < DEPTH => of_gre(&mut l3[at..end], depth + 1),
        _ => false,
    }
}

/// Returns protocol, offset and end of what an IP packet carries; `None` for fragments, and if it is malformed.
fn transport(l3: &[u8]) -> Option<(u8, usize, usize)> {
    let (protocol, at, end) = if let Ok(info) = ipv4::check(l3) {
        let range = (usize::from(info.header_len), usize::from(info.total_len));
        (!info.is_fragment()).then_some((info.proto, range.0, range.1))?
    } else {
        let (info, upper) = ipv6::upper(l3)?;
        (!upper.fragment).then_some((upper.proto, upper.offset, info.total_len as usize))?
    };
    (at <= end && end <= l3.len()).then_some((protocol, at, end))
}

/// Completes an Ethernet frame within a tunnel.
fn of_frame(frame: &mut [u8], depth: usize) -> bool {
    let mut at = HEADER_LEN;
    while let Some(&[high, low]) = frame.get(at - 2..at).and_then(<[u8]>::first_chunk) {
        match u16::from_be_bytes([high, low]) {
            ethertype::VLAN | ethertype::QINQ => at += 4,
            ethertype::IPV4 | ethertype::IPV6 => return frame.get_mut(at..).is_some_and(|l3| of_packet(l3, depth)),
            _ => return false,
        }
    }
    false
}

/// Completes the frame that UDP carries, if the datagram is VXLAN's or Geneve's.
fn tunnelled(udp: &mut [u8], depth: usize) -> bool {
    let Some((&mut [_, _, high, low, ..], tunnel)) = udp.split_first_chunk_mut::<8>() else { return false };
    let port = u16::from_be_bytes([high, low]);
    let Some(header) = tunnel.first_chunk::<8>() else { return false };
    let len = match header {
        // The flag of the network's number, and no others.
        [0x08, 0, 0, 0, ..] if VXLAN.contains(&port) => 8,
        // Version 0, and frames.
        [options @ 0..=0x3f, _, 0x65, 0x58, ..] if port == GENEVE => 8 + usize::from(*options) * 4,
        _ => return false,
    };
    tunnel.get_mut(len..).is_some_and(|frame| of_frame(frame, depth))
}

/// Completes what GRE (RFC 2784, RFC 2890) carries, and then the checksum of GRE itself: without a pseudo-header, a
/// partial one is zero.
fn of_gre(gre: &mut [u8], depth: usize) -> bool {
    let Some(&[flags, version, high, low]) = gre.first_chunk() else { return false };
    // No routing, which RFC 2784 has removed, and version 0.
    if flags & 0x4f != 0 || version & 0x87 != 0 {
        return false;
    }
    let (summed, options) = (flags & 0x80 != 0, (flags & 0xb0).count_ones());
    let Some(inner) = gre.get_mut(4 + 4 * options as usize..) else { return false };
    let completed = match u16::from_be_bytes([high, low]) {
        ethertype::IPV4 | ethertype::IPV6 => of_packet(inner, depth),
        ethertype::TEB => of_frame(inner, depth),
        _ => false,
    };
    if !summed || gre[4..6] != [0, 0] {
        return completed;
    }
    let sum = Sum::of(gre).checksum();
    gre[4..6].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Fills in the CRC of SCTP, which a sender that leaves it to a device sets to zero (`sctp_packet_pack`).
fn complete_sctp(sctp: &mut [u8]) -> bool {
    if sctp.len() < 12 || sctp[8..12] != [0; 4] {
        return false;
    }
    let crc = crc32c(sctp);
    sctp[8..12].copy_from_slice(&crc.to_le_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Packet;

    fn inner(v6: bool, partial: bool) -> Vec<u8> {
        let (src, dst) = if v6 { ("[fd00::1]:1000", "[fd01::2]:80") } else { ("10.1.2.3:1000", "10.4.5.6:80") };
        let packet = Packet::tcp(src.parse().unwrap(), dst.parse().unwrap()).payload(b"data");
        packet.partial_checksum(partial).build_l3().unwrap()
    }

    fn frame(l3: &[u8]) -> Vec<u8> {
        let kind = if l3[0] >> 4 == 6 { ethertype::IPV6 } else { ethertype::IPV4 };
        [&[2; 12][..], &[0x81, 0, 0, 5], &kind.to_be_bytes(), l3].concat()
    }

    /// Returns an IPv4 packet, or one of IPv6 with destination options, which carries this.
    fn outer(v6: bool, protocol: u8, carried: &[u8]) -> Vec<u8> {
        let mut packet = match v6 {
            false => {
                let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
                header[2..4].copy_from_slice(&(20 + carried.len() as u16).to_be_bytes());
                ipv4::fill_checksum(&mut header);
                header
            }
            true => {
                let mut header = vec![0x60, 0, 0, 0, 0, 0, proto::DEST_OPTIONS, 64];
                header.extend([0xfd; 32]);
                // A tunnel's encapsulation limit (RFC 2473 4.1.1).
                header.extend([protocol, 0, 4, 1, 4, 1, 1, 0]);
                header[4..6].copy_from_slice(&(8 + carried.len() as u16).to_be_bytes());
                header
            }
        };
        packet.extend(carried);
        packet
    }

    fn udp(port: u16, carried: &[u8]) -> Vec<u8> {
        let len = 8 + carried.len() as u16;
        [&[0xc0, 0][..], &port.to_be_bytes(), &len.to_be_bytes(), &[0, 0], carried].concat()
    }

    #[test]
    fn checksums_within_tunnels_are_completed() {
        for (v6, within) in [(false, false), (false, true), (true, false), (true, true)] {
            let kind = if within { ethertype::IPV6 } else { ethertype::IPV4 };
            let gre = |flags: &[u8], kind: u16, more: &[u8], carried: &[u8]| {
                [flags, &kind.to_be_bytes(), more, carried].concat()
            };
            let build = |partial: bool| {
                let l3 = inner(within, partial);
                let key = [0, 0, 0, 7];
                [
                    outer(v6, if within { proto::IPV6 } else { proto::IPIP }, &l3),
                    outer(v6, proto::GRE, &gre(&[0, 0], kind, &[], &l3)),
                    outer(v6, proto::GRE, &gre(&[0x20, 0], kind, &key, &l3)),
                    outer(v6, proto::GRE, &gre(&[0, 0], ethertype::TEB, &[], &frame(&l3))),
                    outer(v6, proto::UDP, &udp(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0][..], &frame(&l3)].concat())),
                    outer(
                        v6,
                        proto::UDP,
                        &udp(6081, &[&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 0, 0, 0, 0][..], &frame(&l3)].concat()),
                    ),
                ]
            };
            for (at, (mut packet, full)) in build(true).into_iter().zip(build(false)).enumerate() {
                assert!(complete_all(&mut packet), "{v6} {within} {at}");
                assert_eq!(packet, full, "{v6} {within} {at}");
                assert!(!complete_all(&mut packet));
                (0..packet.len()).for_each(|len| _ = complete_all(&mut packet[..len].to_vec()));
            }
            // To another port, it is anything.
            let other = outer(
                v6,
                proto::UDP,
                &udp(4790, &[&[8, 0, 0, 0, 0, 0, 7, 0][..], &frame(&inner(within, true))].concat()),
            );
            assert!(!complete_all(&mut other.clone()));
        }
    }

    #[test]
    fn the_checksum_of_gre_is_computed_after_what_it_covers() {
        let build = |partial| [&[0x80, 0, 8, 0, 0, 0, 0, 0][..], &inner(false, partial)].concat();
        let mut packet = outer(false, proto::GRE, &build(true));
        assert!(complete_all(&mut packet));
        let gre = &packet[20..];
        assert!(Sum::of(gre).is_valid() && gre[8..] == build(false)[8..]);
    }

    #[test]
    fn the_crc_of_sctp_is_filled_in() {
        // Ports 1000 and 80, a tag, and an empty COOKIE-ACK.
        let sctp = [3, 0xe8, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 11, 0, 0, 4];
        let mut packet = outer(false, proto::SCTP, &sctp);
        assert!(complete_all(&mut packet));
        assert_eq!(packet[28..32], crc32c(&sctp).to_le_bytes());
        assert!(!complete_all(&mut packet));
    }
}
