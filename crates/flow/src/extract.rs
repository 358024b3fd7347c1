//! Key extraction from frames; every field has the meaning it has in OVS.

use crate::key::{
    BOTTOM, FRAG_ANY, FRAG_LATER, IP_VALID, KEY_WORDS, Key, LABEL_AT, LABELS, TAG_AT, TAGGED, TPID_88A8, TPID_8100, at,
    key_bytes, stack,
};
use bywash_wire::ethernet::ethertype;
use bywash_wire::proto;

/// `dl_type` of 802.3 frames, which have a length instead of an Ethernet type, without a SNAP header that gives one.
pub const DL_TYPE_NONE: u16 = 0x05ff;

/// Offsets of a frame's headers, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the network header, or of the MPLS labels in front of it.
    pub l3: u16,
    /// Offset of the transport header; 0 if there is none or if it is in another fragment.
    pub l4: u16,
}

const NO_L4: u16 = 0;
/// Maximum number of VLAN tags in front of a packet with a partial checksum: `VLAN_MAX_DEPTH` (linux/if_vlan.h).
const DEPTH: usize = 8;
const MACS: usize = 12;

/// Returns the `N` bytes at offset `at`, or `None` if `data` is too short.
#[inline(always)]
fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<&[u8; N]> {
    data.get(at..)?.first_chunk()
}

#[inline(always)]
fn be16(data: &[u8], at: usize) -> Option<u16> {
    bytes(data, at).map(|b| u16::from_be_bytes(*b))
}

/// Extracts a frame's fields into `key`. `in_port` is the OpenFlow number of the ingress port, `tags` the number of
/// VLAN tags to read, at most [`TAGS`](crate::key::TAGS); any further ones are payload. Returns `None` if the frame is
/// shorter than an Ethernet header.
#[inline]
pub fn extract(data: &[u8], in_port: u16, tags: usize, key: &mut Key) -> Option<Layout> {
    // Fast path for untagged IPv4 packets without options, the most common kind.
    if let Some(head) = data.first_chunk::<34>()
        && head[12..15] == [8, 0, 0x45]
    {
        let word = |at: usize| u64::from_ne_bytes(*head[at..].first_chunk().expect("8 of 34 bytes"));
        let total = usize::from(u16::from_be_bytes([head[16], head[17]]));
        if total >= 20 && total + 14 <= data.len() {
            let fragment = u16::from_be_bytes([head[20], head[21]]);
            let (mut l4, mut l4_word, mut flags) = (14 + 20, 0, [0; 2]);
            let frag = frag_bits(fragment);
            if frag & FRAG_LATER == 0 {
                (l4_word, flags) = transport(&data[..14 + total], 34, head[23], proto::ICMP);
            } else {
                l4 = NO_L4;
            }
            let [port_high, port_low] = in_port.to_be_bytes();
            *key = [0; KEY_WORDS];
            key[0] = word(0) & MAC_MASK;
            key[1] = word(6);
            let third = [port_high, port_low, head[15], head[22], head[23], frag | IP_VALID, flags[0], flags[1]];
            key[2] = u64::from_ne_bytes(third);
            key[3] = l4_word;
            key[4] = word(26);
            return Some(Layout { l3: 14, l4 });
        }
    }
    long_way(data, in_port, tags, key)
}

/// Completes the checksums that the sender of a frame, with tags and labels or without, has left to a device: see
/// [`bywash_wire::partial`]. Returns `true` if there were any.
pub(crate) fn complete_partial(data: &mut [u8]) -> bool {
    let mut l3 = 14;
    for _ in 0..DEPTH {
        match be16(data, l3 - 2) {
            Some(ethertype::VLAN | ethertype::QINQ) => l3 += 4,
            _ => break,
        }
    }
    let ip = match be16(data, l3 - 2) {
        Some(ethertype::IPV4 | ethertype::IPV6) => true,
        Some(ethertype::MPLS | ethertype::MPLS_UPSTREAM) => {
            let mut bottom = false;
            while !bottom && let Some(entry) = bytes::<4>(data, l3) {
                bottom = u32::from_be_bytes(*entry) & BOTTOM != 0;
                l3 += 4;
            }
            bottom
        }
        _ => false,
    };
    ip && data.get_mut(l3..).is_some_and(bywash_wire::partial::complete_all)
}

/// Compact key of a plain packet: untagged, unfragmented IPv4 without options, TCP or UDP.
pub(crate) type PlainKey = [u64; 4];

/// Number of leading frame bytes that a [`PlainKey`] is made from.
pub(crate) const PLAIN_HEAD: usize = 48;

/// Returns the compact key of a plain packet, or `None` if the packet is not plain. Two packets with equal compact keys
/// have equal [`Key`]s. `len` is the length of the whole frame in bytes.
#[inline(always)]
pub(crate) fn plain(head: &[u8; PLAIN_HEAD], len: usize, in_port: u16) -> Option<PlainKey> {
    let word = |at: usize| u64::from_ne_bytes(*head[at..].first_chunk().expect("8 of 48 bytes"));
    let half = |at: usize| u64::from(u32::from_ne_bytes(*head[at..].first_chunk().expect("4 of 48 bytes")));
    // Ethernet type, version and header length.
    const TYPE: u64 = u64::from_ne_bytes([0, 0, 0, 0, 8, 0, 0x45, 0]);
    const TYPE_MASK: u64 = u64::from_ne_bytes([0, 0, 0, 0, 255, 255, 255, 0]);
    let (total, protocol) = (usize::from(u16::from_be_bytes([head[16], head[17]])), head[23]);
    let tcp = protocol == proto::TCP;
    // Length of the transport header in 32-bit words. The TCP data offset shares its byte with flag bits that are not
    // part of the compact key; rotating them to the top makes the number too large if any of them is set.
    let (least, words) = if tcp { (5, head[46].rotate_left(4)) } else { (2, 2) };
    if word(8) & TYPE_MASK != TYPE
        || u16::from_ne_bytes([head[20], head[21]]) & 0x3fff_u16.to_be() != 0
        || !(tcp | (protocol == proto::UDP))
        || words.wrapping_sub(least) > 10
        || total < 20 + 4 * usize::from(words)
        || total + 14 > len
    {
        return None;
    }
    let flags = u64::from(head[47]) * u64::from(tcp);
    let second = word(8) & !u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 255, 0]) | (flags << 48).to_le();
    let ports = half(34) | u64::from(u16::from_ne_bytes([head[22], protocol])) << 32 | u64::from(in_port) << 48;
    Some([word(0), second, word(26), ports])
}

/// Mask of the bytes of a word that an Ethernet address at its start occupies.
pub(crate) const MAC_MASK: u64 = u64::from_ne_bytes([255, 255, 255, 255, 255, 255, 0, 0]);

#[inline(always)]
fn frag_bits(fragment: u16) -> u8 {
    match fragment & 0x3fff {
        0 => 0,
        f if f & 0x1fff != 0 => FRAG_ANY | FRAG_LATER,
        _ => FRAG_ANY,
    }
}

/// Returns `true` if the TCP data offset is valid and the header fits in the `there` bytes present.
#[inline(always)]
pub(crate) fn header_fits(header: &[u8; 20], there: usize) -> bool {
    let len = usize::from(header[12] >> 4) * 4;
    len >= 20 && len <= there
}

/// Returns the ports, or ICMP type and code, as in the key's fourth word, and the TCP flags. `data` must end at the end
/// of the packet.
#[inline(always)]
fn transport(data: &[u8], at: usize, protocol: u8, icmp: u8) -> (u64, [u8; 2]) {
    let word = |b: [u8; 4]| u64::from_ne_bytes([b[0], b[1], b[2], b[3], 0, 0, 0, 0]);
    let Some(l4) = data.get(at..) else { return (0, [0; 2]) };
    match protocol {
        proto::UDP => l4.first_chunk::<8>().map_or((0, [0; 2]), |h| (word([h[0], h[1], h[2], h[3]]), [0; 2])),
        proto::TCP => match l4.first_chunk::<20>() {
            Some(h) if header_fits(h, l4.len()) => (word([h[0], h[1], h[2], h[3]]), [h[12] & 0x0f, h[13]]),
            _ => (0, [0; 2]),
        },
        proto::SCTP => l4.first_chunk::<12>().map_or((0, [0; 2]), |h| (word([h[0], h[1], h[2], h[3]]), [0; 2])),
        p if p == icmp => l4.first_chunk::<8>().map_or((0, [0; 2]), |h| (word([0, h[0], 0, h[1]]), [0; 2])),
        _ => (0, [0; 2]),
    }
}

/// Extracts the fields of any frame.
#[inline(never)]
fn long_way(data: &[u8], in_port: u16, tags: usize, key: &mut Key) -> Option<Layout> {
    *key = [0; KEY_WORDS];
    let head: &[u8; 14] = data.first_chunk()?;
    let k = key_bytes(key);
    let mut put = |at: usize, bytes: &[u8]| k[at..at + bytes.len()].copy_from_slice(bytes);
    put(at::DL_DST, &head[..6]);
    put(at::DL_SRC, &head[6..12]);
    put(at::IN_PORT, &in_port.to_be_bytes());
    let next = match be16(data, MACS)? {
        ethertype::VLAN | ethertype::QINQ => vlans(data, tags, &mut put)?,
        _ => MACS,
    };
    let (dl_type, l3) = ether_type(data, next)?;
    put(at::DL_TYPE, &dl_type.to_be_bytes());
    let mut layout = Layout { l3: l3 as u16, l4: NO_L4 };
    match dl_type {
        ethertype::IPV4 => {
            if let Some(found) = ipv4(data, l3, &mut put) {
                layout.l4 = found as u16;
            }
        }
        ethertype::IPV6 => {
            if let Some(found) = ipv6(data, l3, &mut put) {
                layout.l4 = found as u16;
            }
        }
        ethertype::ARP | 0x8035 => arp(data, l3, &mut put),
        ethertype::MPLS | ethertype::MPLS_UPSTREAM => {
            if let Some(found) = mpls(data, l3, &mut put) {
                layout.l4 = found as u16;
            }
        }
        _ => {}
    }
    Some(layout)
}

/// Extracts the tags, up to `limit`. Returns the offset of the Ethernet type behind them.
fn vlans(data: &[u8], limit: usize, put: &mut impl FnMut(usize, &[u8])) -> Option<usize> {
    let mut next = MACS;
    for (tci_at, tpid_at) in TAG_AT.into_iter().take(limit) {
        let tpid = match be16(data, next)? {
            ethertype::VLAN => TPID_8100,
            ethertype::QINQ => TPID_88A8,
            _ => break,
        };
        // There is no tag without an Ethernet type behind it.
        if data.len() < next + 6 {
            break;
        }
        let tci = be16(data, next + 2)? | TAGGED;
        put(tci_at, &tci.to_be_bytes());
        put(tpid_at, &[tpid]);
        next += 4;
    }
    Some(next)
}

/// Returns the Ethernet type at `at` and the offset of its payload. An 802.3 length is followed by LLC, possibly with
/// SNAP.
fn ether_type(data: &[u8], at: usize) -> Option<(u16, usize)> {
    let value = be16(data, at)?;
    let next = at + 2;
    if value >= 0x600 {
        return Some((value, next));
    }
    match bytes::<8>(data, next) {
        Some([0xaa, 0xaa, 3, 0, 0, 0, high, low]) if u16::from_be_bytes([*high, *low]) >= 0x600 => {
            Some((u16::from_be_bytes([*high, *low]), next + 8))
        }
        _ => Some((DL_TYPE_NONE, next)),
    }
}

fn ipv4(data: &[u8], l3: usize, put: &mut impl FnMut(usize, &[u8])) -> Option<usize> {
    let h: &[u8; 20] = bytes(data, l3)?;
    let header = usize::from(h[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([h[2], h[3]]));
    if header < 20 || header > total || l3 + total > data.len() {
        return None;
    }
    let frag = frag_bits(u16::from_be_bytes([h[6], h[7]]));
    put(at::NW_SRC, &h[12..20]);
    put(at::NW_TOS, &[h[1], h[8], h[9], frag | IP_VALID]);
    (frag & FRAG_LATER == 0).then(|| {
        let (word, flags) = transport(&data[..l3 + total], l3 + header, h[9], proto::ICMP);
        put(at::TP_SRC, &word.to_ne_bytes()[..4]);
        put(at::TCP_FLAGS, &flags);
        l3 + header
    })
}

fn ipv6(data: &[u8], l3: usize, put: &mut impl FnMut(usize, &[u8])) -> Option<usize> {
    let h: &[u8; 40] = bytes(data, l3)?;
    let end = l3 + 40 + usize::from(u16::from_be_bytes([h[4], h[5]]));
    let data = data.get(..end)?;
    put(at::IPV6_SRC, &h[8..40]);
    let (protocol, frag, l4) = extensions(data, l3 + 40, h[6])?;
    put(at::LABEL, &[h[1] & 0x0f, h[2], h[3]]);
    put(at::NW_TOS, &[h[0] << 4 | h[1] >> 4, h[7], protocol, frag | IP_VALID]);
    if frag & FRAG_LATER != 0 {
        return None;
    }
    let (word, flags) = transport(data, l4, protocol, proto::ICMP6);
    put(at::TP_SRC, &word.to_ne_bytes()[..4]);
    put(at::TCP_FLAGS, &flags);
    if protocol == proto::ICMP6 {
        neighbour(data, l4, put);
    }
    Some(l4)
}

/// Follows the extension headers from `at`. Returns the protocol behind them, the fragment bits and the offset of the
/// upper-layer header, or `None` if the headers are truncated.
fn extensions(data: &[u8], mut at: usize, mut next: u8) -> Option<(u8, u8, usize)> {
    let mut frag = 0;
    loop {
        if !matches!(next, proto::HOP_BY_HOP | proto::ROUTING | proto::DEST_OPTIONS | proto::AUTH | proto::FRAGMENT) {
            return Some((next, frag, at));
        }
        let h: &[u8; 8] = bytes(data, at)?;
        let len = match next {
            proto::AUTH => (usize::from(h[1]) + 2) * 4,
            proto::FRAGMENT => 8,
            _ => (usize::from(h[1]) + 1) * 8,
        };
        if next == proto::FRAGMENT {
            let word = u16::from_be_bytes([h[2], h[3]]);
            if word != 0 {
                frag = FRAG_ANY;
                if word & 0xfff8 != 0 {
                    return Some((proto::FRAGMENT, FRAG_ANY | FRAG_LATER, at + 8));
                }
            }
        }
        next = h[0];
        at += len;
        if at > data.len() {
            return None;
        }
    }
}

/// Extracts the target and link-layer addresses of a neighbour solicitation or advertisement (RFC 4861 4.3, 4.4).
fn neighbour(data: &[u8], l4: usize, put: &mut impl FnMut(usize, &[u8])) {
    let (Some([135 | 136, 0]), Some(target)) = (bytes::<2>(data, l4), bytes::<16>(data, l4 + 8)) else { return };
    let (mut lla, mut next) = ([[0u8; 6]; 2], l4 + 24);
    while let Some(option) = bytes::<8>(data, next) {
        let len = usize::from(option[1]) * 8;
        if len == 0 || next + len > data.len() {
            break;
        }
        if len == 8
            && let Some(slot) = usize::from(option[0]).checked_sub(1).and_then(|i| lla.get_mut(i))
        {
            if *slot != [0; 6] {
                return; // a repeated option is ambiguous: extract nothing
            }
            slot.copy_from_slice(&option[2..]);
        }
        next += len;
    }
    put(at::ND_TARGET, target);
    put(at::ARP_SHA, &lla[0]);
    put(at::ARP_THA, &lla[1]);
}

/// Extracts the label stack at `at`, and the IP packet behind it, which flows see once the labels have been popped.
/// Returns the offset of that packet's transport header, if it has one.
fn mpls(data: &[u8], mut at: usize, put: &mut impl FnMut(usize, &[u8])) -> Option<usize> {
    let (mut labels, mut entries, mut bottom) = ([[0; 4]; LABELS], 0, false);
    while !bottom
        && entries < LABELS
        && let Some(entry) = bytes::<4>(data, at)
    {
        labels[entries] = *entry;
        bottom = u32::from_be_bytes(*entry) & BOTTOM != 0;
        (entries, at) = (entries + 1, at + 4);
    }
    let version = data.get(at).filter(|_| bottom).map_or(0, |first| first >> 4);
    let (version, found) = match version {
        4 => (4, ipv4(data, at, put)),
        6 => (6, ipv6(data, at, put)),
        _ => (0, None),
    };
    // Last, because the labels take the place of the link-layer addresses of neighbour discovery.
    for ([upper, lower], entry) in LABEL_AT.into_iter().zip(&labels) {
        put(upper, &entry[..2]);
        put(lower, &entry[2..]);
    }
    let deeper = if bottom { 0 } else { stack::DEEPER };
    put(at::STACK, &[entries as u8 | deeper | version << stack::VERSION]);
    found
}

fn arp(data: &[u8], l3: usize, put: &mut impl FnMut(usize, &[u8])) {
    let Some(h) = bytes::<28>(data, l3) else { return };
    if h[..6] != [0, 1, 8, 0, 6, 4] {
        return;
    }
    put(at::NW_SRC, &h[14..18]);
    put(at::NW_DST, &h[24..28]);
    if h[6] == 0 && h[7] != 0 {
        put(at::NW_PROTO, &[h[7], IP_VALID]);
    }
    put(at::ARP_SHA, &h[8..14]);
    put(at::ARP_THA, &h[18..24]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Field;
    use crate::key::{Flow, TAGS};
    use bywash_wire::build::Packet;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn flow(data: &[u8]) -> (Flow, Layout) {
        let mut key = [!0; KEY_WORDS];
        let layout = extract(data, 3, TAGS, &mut key).unwrap();
        (Flow::from(&key), layout)
    }

    #[test]
    fn udp_both_ways_alike() {
        let frame =
            Packet::udp("10.0.0.1:1024".parse().unwrap(), "10.9.0.1:9".parse().unwrap()).size(64).build().unwrap();
        let (found, layout) = flow(&frame);
        assert_eq!(layout, Layout { l3: 14, l4: 34 });
        for (field, value) in [
            (Field::InPort, 3),
            (Field::DlType, 0x800),
            (Field::NwSrc, 0x0a00_0001),
            (Field::NwDst, 0x0a09_0001),
            (Field::NwProto, 17),
            (Field::TpSrc, 1024),
            (Field::UdpDst, 9),
            (Field::VlanTci, 0),
        ] {
            assert_eq!(field.get(&found), value, "{field:?}");
        }
        assert!(found.0[5..].iter().all(|w| *w == 0));
        let mut tagged = frame.clone();
        tagged.splice(12..12, [0x81, 0, 0x20, 5]);
        let (found, layout) = flow(&tagged);
        assert_eq!((Field::VlanTci.get(&found), layout), (0x3005, Layout { l3: 18, l4: 38 }));
        assert_eq!(Field::UdpDst.get(&found), 9);
    }

    /// Of three tags, as many are in the key as are to be read; the next one's TPID is the Ethernet type.
    #[test]
    fn tags() {
        let mut frame = Packet::udp("10.0.0.1:1024".parse().unwrap(), "10.9.0.1:9".parse().unwrap()).build().unwrap();
        let field = |key: &Key, field: Field| field.get(&Flow::from(key));
        let read = |frame: &[u8], tags| {
            let mut key = [!0; KEY_WORDS];
            (extract(frame, 3, tags, &mut key).unwrap(), key)
        };
        frame.splice(12..12, [0x88, 0xa8, 0x20, 5, 0x81, 0, 0x10, 6]);
        let (layout, key) = read(&frame, 2);
        let inner = |key: &Key| [at::INNER_TCI, at::INNER_TCI + 1, at::INNER_TPID].map(|at| key.as_bytes()[at]);
        assert_eq!((layout, inner(&key)), (Layout { l3: 22, l4: 42 }, [0x10, 6, TPID_8100]));
        assert_eq!((field(&key, Field::VlanTci), field(&key, Field::UdpDst)), (0x3005, 9));
        let (layout, key) = read(&frame, 1);
        assert_eq!((layout, field(&key, Field::DlType)), (Layout { l3: 18, l4: 0 }, 0x8100));
        assert_eq!(inner(&key), [0; 3]);
        frame.splice(12..12, [0x81, 0, 0, 7]);
        let (layout, key) = read(&frame, 2);
        assert_eq!((layout, field(&key, Field::DlType)), (Layout { l3: 22, l4: 0 }, 0x8100));
        assert_eq!((field(&key, Field::VlanTci), field(&key, Field::NwDst)), (0x1007, 0));
        // A tag without an Ethernet type behind it is none.
        let (_, key) = read(&frame[..21], 2);
        assert_eq!((field(&key, Field::VlanTci), field(&key, Field::DlType)), (0x1007, 0x88a8));
    }

    /// Labels are in the key, and so is what is behind the bottom of the stack.
    #[test]
    fn labels() {
        let frame = Packet::udp("10.0.0.1:1024".parse().unwrap(), "10.9.0.1:9".parse().unwrap()).build().unwrap();
        let labelled = |entries: &[[u8; 4]]| {
            let mut frame = frame.clone();
            frame[12..14].copy_from_slice(&[0x88, 0x47]);
            frame.splice(14..14, entries.concat());
            frame
        };
        let (found, layout) = flow(&labelled(&[[0, 0, 0x52, 9], [0xff, 0xff, 0xf1, 64]]));
        assert_eq!(layout, Layout { l3: 14, l4: 42 });
        for (field, value) in [
            (Field::DlType, 0x8847),
            (Field::MplsLabel, 5),
            (Field::MplsTc, 1),
            (Field::MplsBos, 0),
            (Field::MplsTtl, 9),
            (Field::NwDst, 0x0a09_0001),
            (Field::UdpDst, 9),
        ] {
            assert_eq!(field.get(&found), value, "{field:?}");
        }
        assert_eq!((found.label(1), found.label(2)), (0xffff_f140, 0));
        assert_eq!(found.u8(at::STACK), 0x42);
        let (found, layout) = flow(&labelled(&[[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 3], [0, 0, 1, 4]]));
        assert_eq!((found.u8(at::STACK), found.label(2)), (3 | stack::DEEPER, 3));
        assert_eq!((layout.l4, Field::NwSrc.get(&found)), (0, 0));
        let (found, _) = flow(&labelled(&[[0, 0, 1, 1]])[..16]);
        assert_eq!((found.u8(at::STACK), found.label(0)), (stack::DEEPER, 0));
    }

    #[test]
    fn partial_checksums_behind_tags_and_labels_are_completed() {
        let packet = |partial| {
            let packet = Packet::tcp("10.0.0.1:1024".parse().unwrap(), "10.9.0.1:9".parse().unwrap());
            let mut frame = packet.partial_checksum(partial).build().unwrap();
            frame.splice(12..14, [0x88, 0x47, 0, 0, 0x50, 9, 0, 0, 0x61, 64]);
            frame.splice(12..12, [0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 0x81, 0, 0, 6]);
            frame
        };
        let mut frame = packet(true);
        assert!(complete_partial(&mut frame) && frame == packet(false));
        assert!(!complete_partial(&mut frame) && !complete_partial(&mut packet(true)[..34]));
    }

    #[test]
    fn lengths_and_snap() {
        let mut frame = vec![0; 60];
        assert_eq!(Field::DlType.get(&flow(&frame).0), u128::from(DL_TYPE_NONE));
        frame[12..22].copy_from_slice(&[0, 46, 0xaa, 0xaa, 3, 0, 0, 0, 8, 6]);
        assert_eq!(Field::DlType.get(&flow(&frame).0), 0x806);
        assert_eq!(extract(&frame[..13], 1, 1, &mut [0; KEY_WORDS]), None);
    }

    proptest! {
        /// The fast path agrees with the general path, and neither panics.
        #[test]
        fn quick_is_right(mut data in proptest::collection::vec(any::<u8>(), 0..120), len: u8, frag in 0..4usize, protocol in 0..6usize) {
            if data.len() > 34 {
                data[12..17].copy_from_slice(&[8, 0, 0x45, 0, 0]);
                data[17] = len % 128;
                data[20..22].copy_from_slice(&[[0u8, 0], [0x20, 0], [0x40, 0], [0, 7]][frag]);
                data[23] = [1, 6, 17, 132, 58, 0][protocol];
            }
            let (mut a, mut b) = ([1; KEY_WORDS], [2; KEY_WORDS]);
            prop_assert_eq!(extract(&data, 7, TAGS, &mut a), long_way(&data, 7, TAGS, &mut b));
            prop_assert!(data.len() < 14 || a == b, "{:x?} {:x?}", a, b);
        }

        /// Packets with equal compact keys have equal full keys, and plain packets have the expected layout.
        #[test]
        fn plain_keys_say_all(tcp: bool, bytes in proptest::array::uniform32(any::<u8>()), change in proptest::collection::vec((0..54usize, any::<u8>()), 0..3)) {
            let packet = if tcp { Packet::tcp("10.0.0.1:1".parse().unwrap(), "10.9.0.1:9".parse().unwrap()) } else { Packet::udp("10.0.0.1:1".parse().unwrap(), "10.9.0.1:9".parse().unwrap()) };
            let mut a = packet.payload(&bytes).build().unwrap();
            let mut b = a.clone();
            change.iter().for_each(|(at, byte)| a[*at] = *byte);
            change.iter().skip(1).for_each(|(at, byte)| b[*at] = *byte);
            let of = |data: &[u8]| super::plain(data.first_chunk().unwrap(), data.len(), 7);
            if let (Some(x), Some(y)) = (of(&a), of(&b)) {
                let ((flow, layout), (other, _)) = (flow(&a), flow(&b));
                prop_assert!(x != y || flow == other);
                prop_assert_eq!(layout, Layout { l3: 14, l4: 34 });
            }
        }

        #[test]
        fn nothing_panics(mut data in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..9usize, tagged in 0..4usize,
                          tags in 1..=TAGS, labels in 0..5usize) {
            let types: [&[u8]; 9] = [&[8, 0, 0x46], &[0x86, 0xdd, 0x60], &[8, 6, 0, 1, 8, 0, 6, 4], &[0x81, 0], &[0, 9],
                &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 100, 44],
                &[0x45, 0, 0, 20], &[0x60, 0, 0, 0, 0, 8, 17], &[]];
            let at = 12 + 4 * tagged;
            if data.len() > 40 {
                (12..at).step_by(4).for_each(|at| data[at..at + 2].copy_from_slice(&[0x88, 0xa8]));
                data[at..at + types[kind].len()].copy_from_slice(types[kind]);
            }
            if kind >= 6 && data.len() > at {
                let mut stack = vec![0x88, 0x47];
                (0..labels).for_each(|i| stack.extend([0, 0, u8::from(i + 1 == labels), 64]));
                data.splice(at..at, stack);
            }
            let mut key = [0; KEY_WORDS];
            if let Some(layout) = extract(&data, 1, tags, &mut key) {
                prop_assert!(usize::from(layout.l4) <= data.len() && usize::from(layout.l3) <= data.len());
                complete_partial(&mut data);
            }
        }
    }
}
