//! In-place header changes with incremental checksum updates (RFC 1624). A header that the packet is too short for is
//! left unchanged.

use crate::extract::{Layout, header_fits};
use crate::key::BOTTOM;
use crate::ops::Op;
use bywash_frame::{Arena, Frame};
use bywash_wire::checksum::{crc32c, update_u16, update_u32};
use bywash_wire::ethernet::ethertype;
use bywash_wire::proto;

/// Length of a VLAN tag in bytes.
const TAG: usize = 4;
/// Length of a label stack entry in bytes.
const LABEL: usize = 4;

/// Applies `op` to a packet whose headers are at the offsets in `layout`. Ops that do not change headers are ignored.
#[inline(always)]
pub fn rewrite(op: &Op, arena: &Arena, frame: &mut Frame, layout: &mut Layout) {
    match *op {
        Op::Eth { value, mask } => match arena.head_mut::<14>(frame) {
            Some(head) => put_macs(head, value, mask.map(|m| !m)),
            None => debug_assert!(false, "a frame shorter than an Ethernet header"),
        },
        Op::DecTtl(n) => {
            let l3 = usize::from(layout.l3);
            let Some(ip) = arena.data_mut(frame).get_mut(l3..).and_then(|d| d.first_chunk_mut::<20>()) else { return };
            if ip[0] >> 4 == 4 {
                let old = u16::from_be_bytes([ip[8], ip[9]]);
                ip[8] = ip[8].wrapping_sub(n);
                let new = u16::from_be_bytes([ip[8], ip[9]]);
                let sum = update_u16(u16::from_be_bytes([ip[10], ip[11]]), old, new);
                [ip[10], ip[11]] = sum.to_be_bytes();
            } else {
                ip[7] = ip[7].wrapping_sub(n);
            }
        }
        Op::PopVlan => pop_vlan(arena, frame, layout),
        Op::PushVlan { tpid, tci } => push_vlan(arena, frame, layout, tpid, tci),
        Op::PushMpls { entry, dl_type } => push_mpls(arena, frame, layout, entry, dl_type),
        Op::PopMpls { entries, dl_type } => pop_mpls(arena, frame, layout, entries, dl_type),
        Op::SetMpls { value, mask } => set_mpls(arena.data_mut(frame), *layout, value, mask),
        _ => rare(op, arena.data_mut(frame), *layout),
    }
}

/// Offsets of the key's first two words in a frame.
const MACS: [usize; 2] = [0, 6];

/// Sets the bits of the key's first two words that are not in `keep` to those of `value`, which must be zero in all
/// bits of `keep`.
#[inline(always)]
pub(crate) fn put_macs(head: &mut [u8; 14], value: [u64; 2], keep: [u64; 2]) {
    // Read both words before writing either: they overlap.
    let old = MACS.map(|at| u64::from_ne_bytes(*head[at..].first_chunk().expect("8 of 14 bytes")));
    for i in 0..2 {
        let new = old[i] & keep[i] | value[i];
        head[MACS[i]..MACS[i] + 8].copy_from_slice(&new.to_ne_bytes());
    }
}

fn pop_vlan(arena: &Arena, frame: &mut Frame, layout: &mut Layout) {
    let data = arena.data_mut(frame);
    let tagged = data.len() >= 14 + TAG && matches!(be16(data, 12), ethertype::VLAN | ethertype::QINQ);
    if tagged {
        data.copy_within(..12, TAG);
        frame.pull(TAG);
        layout.l3 = layout.l3.saturating_sub(TAG as u16);
        layout.l4 = layout.l4.saturating_sub(TAG as u16);
    }
}

/// Pushes a VLAN tag. A frame without headroom is left unchanged.
fn push_vlan(arena: &Arena, frame: &mut Frame, layout: &mut Layout, tpid: u16, tci: u16) {
    if !arena.push(frame, TAG) {
        return;
    }
    let data = arena.data_mut(frame);
    data.copy_within(TAG..TAG + 12, 0);
    data[12..14].copy_from_slice(&tpid.to_be_bytes());
    data[14..16].copy_from_slice(&tci.to_be_bytes());
    layout.l3 += TAG as u16;
    if layout.l4 != 0 {
        layout.l4 += TAG as u16;
    }
}

/// Pushes a label stack entry. A frame without headroom is left unchanged.
#[inline(never)]
fn push_mpls(arena: &Arena, frame: &mut Frame, layout: &mut Layout, entry: u32, dl_type: u16) {
    let l3 = usize::from(layout.l3);
    if l3 < 14 || !arena.push(frame, LABEL) {
        return;
    }
    let data = arena.data_mut(frame);
    data.copy_within(LABEL..LABEL + l3, 0);
    data[l3 - 2..l3].copy_from_slice(&dl_type.to_be_bytes());
    data[l3..l3 + LABEL].copy_from_slice(&entry.to_be_bytes());
    if layout.l4 != 0 {
        layout.l4 += LABEL as u16;
    }
}

/// Returns the outer label stack entry. `None` if there is none, which may be because one could not be pushed.
fn outer_label(data: &mut [u8], layout: Layout) -> Option<&mut [u8; LABEL]> {
    let (header, rest) = data.split_at_mut_checked(layout.l3.into())?;
    let mpls = matches!(*header.last_chunk()?, [0x88, 0x47 | 0x48]);
    rest.first_chunk_mut().filter(|_| mpls)
}

/// Removes label stack entries, but none beyond the bottom of the stack.
#[inline(never)]
fn pop_mpls(arena: &Arena, frame: &mut Frame, layout: &mut Layout, entries: u8, dl_type: u16) {
    let l3 = usize::from(layout.l3);
    for _ in 0..entries {
        let data = arena.data_mut(frame);
        let Some(entry) = outer_label(data, *layout) else { return };
        let bottom = u32::from_be_bytes(*entry) & BOTTOM != 0;
        data.copy_within(..l3, LABEL);
        frame.pull(LABEL);
        layout.l4 = layout.l4.saturating_sub(LABEL as u16);
        if bottom {
            break;
        }
    }
    arena.data_mut(frame)[l3 - 2..l3].copy_from_slice(&dl_type.to_be_bytes());
}

#[inline(never)]
fn set_mpls(data: &mut [u8], layout: Layout, value: u32, mask: u32) {
    if let Some(entry) = outer_label(data, layout) {
        *entry = (u32::from_be_bytes(*entry) & !mask | value & mask).to_be_bytes();
    }
}

pub(crate) fn be16(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

fn be32(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

/// Applies the ops that are not worth inlining.
#[inline(never)]
fn rare(op: &Op, data: &mut [u8], layout: Layout) {
    let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
    let v4 = data.get(l3).is_some_and(|b| b >> 4 == 4);
    if data.len() < l3 + 20 && !matches!(op, Op::SetTci(_)) {
        return;
    }
    match *op {
        Op::SetTci(tci) => {
            if let Some(field) = data.get_mut(14..16) {
                field.copy_from_slice(&tci.to_be_bytes());
            }
        }
        Op::Ip4 { which, value, mask } => {
            let at = l3 + 12 + 4 * usize::from(which & 1);
            let old = be32(data, at);
            let new = old & !mask | value & mask;
            if new != old {
                let protocol = data[l3 + 9];
                transport_sum(data, l4, protocol, |sum| update_u32(sum, old, new));
                header_sum(data, l3, |sum| update_u32(sum, old, new));
                data[at..at + 4].copy_from_slice(&new.to_be_bytes());
            }
        }
        Op::Ip6 { word, value, mask } if data.len() >= l3 + 40 => {
            let at = l3 + 8 + 8 * usize::from(word & 3);
            let (protocol, routed) = last_header(data, l3, l4);
            // The final destination is in the routing header, so this destination address is not part of the checksum.
            let counts = !(routed && word >= 2);
            change_word(data, at, value, mask, |data, old, new| {
                if counts {
                    transport_sum(data, l4, protocol, |sum| update_u64(sum, old, new));
                }
            });
        }
        Op::Label { value, mask } => {
            let old = be32(data, l3);
            let mask = mask & 0xf_ffff;
            data[l3..l3 + 4].copy_from_slice(&(old & !mask | value & mask).to_be_bytes());
        }
        Op::Tos { value, mask } if v4 => {
            let old = be16(data, l3);
            let new = old & !u16::from(mask) | u16::from(value & mask);
            if new != old {
                header_sum(data, l3, |sum| update_u16(sum, old, new));
                data[l3 + 1] = new as u8;
            }
        }
        Op::Tos { value, mask } => {
            let old = be32(data, l3);
            let (value, mask) = (u32::from(value) << 20, u32::from(mask) << 20);
            data[l3..l3 + 4].copy_from_slice(&(old & !mask | value & mask).to_be_bytes());
        }
        Op::Ttl(ttl) if v4 => {
            let old = be16(data, l3 + 8);
            let new = u16::from(ttl) << 8 | old & 0xff;
            if new != old {
                header_sum(data, l3, |sum| update_u16(sum, old, new));
                data[l3 + 8] = ttl;
            }
        }
        Op::Ttl(ttl) => data[l3 + 7] = ttl,
        Op::Tp { which, value, mask } if l4 != 0 => {
            set_port(data, (l3, l4), usize::from(which & 1), value, mask);
        }
        Op::Icmp { which, value, mask } if l4 != 0 && data.len() >= l4 + 8 => {
            let old = be16(data, l4);
            let byte = &mut data[l4 + usize::from(which & 1)];
            *byte = *byte & !mask | value & mask;
            let new = be16(data, l4);
            if new != old {
                let sum = update_u16(be16(data, l4 + 2), old, new);
                data[l4 + 2..l4 + 4].copy_from_slice(&sum.to_be_bytes());
            }
        }
        Op::Arp { at, value, mask } => {
            let at = (l3 + usize::from(at)).min(data.len());
            for ((byte, value), mask) in data[at..].iter_mut().zip(value).zip(mask) {
                *byte = *byte & !mask | value & mask;
            }
        }
        Op::NdTarget { word, value, mask } if l4 != 0 && data.len() >= l4 + 24 => {
            let at = l4 + 8 + 8 * usize::from(word & 1);
            change_word(data, at, value, mask, |data, old, new| {
                transport_sum(data, l4, proto::ICMP6, |sum| update_u64(sum, old, new));
            });
        }
        Op::NdLla { option, value, mask } if l4 != 0 && data.len() >= l4 + 24 => {
            set_lla(data, l3, l4, option, value, mask);
        }
        _ => {}
    }
}

/// Sets the source port (`which` is 0) or the destination port (1) of TCP, UDP or SCTP.
fn set_port(data: &mut [u8], (l3, l4): (usize, usize), which: usize, value: u16, mask: u16) {
    let protocol = protocol(data, l3, l4);
    let least = match protocol {
        proto::TCP => 20,
        proto::UDP => 8,
        proto::SCTP => 12,
        _ => return,
    };
    if data.len() < l4 + least {
        return;
    }
    if protocol == proto::TCP && !data[l4..].first_chunk().is_some_and(|h| header_fits(h, data.len() - l4)) {
        return;
    }
    let at = l4 + 2 * which;
    let old = be16(data, at);
    let new = old & !mask | value & mask;
    if new == old {
        return;
    }
    if protocol == proto::SCTP {
        let end = end(data, l3);
        let before = crc32c(&data[l4..end]);
        data[at..at + 2].copy_from_slice(&new.to_be_bytes());
        let change = before ^ crc32c(&data[l4..end]);
        let sum = u32::from_le_bytes([data[l4 + 8], data[l4 + 9], data[l4 + 10], data[l4 + 11]]);
        data[l4 + 8..l4 + 12].copy_from_slice(&(sum ^ change).to_le_bytes());
    } else {
        data[at..at + 2].copy_from_slice(&new.to_be_bytes());
        transport_sum(data, l4, protocol, |sum| update_u16(sum, old, new));
    }
}

/// Sets the address in the first link-layer address option, if that option has type `option`.
fn set_lla(data: &mut [u8], l3: usize, l4: usize, option: u8, value: [u8; 6], mask: [u8; 6]) {
    let (mut at, end) = (l4 + 24, end(data, l3));
    while at + 8 <= end && data[at + 1] != 0 {
        if matches!(data[at], 1 | 2) && data[at + 1] == 1 {
            if data[at] == option {
                for i in (2..8).step_by(2) {
                    let old = be16(data, at + i);
                    let (v, m) = (be16(&value, i - 2), be16(&mask, i - 2));
                    let new = old & !m | v & m;
                    if new != old {
                        transport_sum(data, l4, proto::ICMP6, |sum| update_u16(sum, old, new));
                        data[at + i..at + i + 2].copy_from_slice(&new.to_be_bytes());
                    }
                }
            }
            return;
        }
        at += usize::from(data[at + 1]) * 8;
    }
}

fn change_word(data: &mut [u8], at: usize, value: u64, mask: u64, sums: impl FnOnce(&mut [u8], u64, u64)) {
    let Some(old) = data[at..].first_chunk().map(|b| u64::from_ne_bytes(*b)) else { return };
    let new = old & !mask | value & mask;
    if new != old {
        sums(data, old.to_be(), new.to_be());
        data[at..at + 8].copy_from_slice(&new.to_ne_bytes());
    }
}

fn update_u64(sum: u16, old: u64, new: u64) -> u16 {
    update_u32(update_u32(sum, (old >> 32) as u32, (new >> 32) as u32), old as u32, new as u32)
}

fn header_sum(data: &mut [u8], l3: usize, update: impl FnOnce(u16) -> u16) {
    let sum = update(be16(data, l3 + 10));
    data[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Updates a transport checksum. A UDP checksum of zero means none (RFC 768) and is left unchanged.
fn transport_sum(data: &mut [u8], l4: usize, protocol: u8, update: impl FnOnce(u16) -> u16) {
    let (at, least) = match protocol {
        proto::TCP => (16, 20),
        proto::UDP => (6, 8),
        proto::ICMP6 => (2, 4),
        _ => return,
    };
    if l4 == 0 || data.len() < l4 + least {
        return;
    }
    let old = be16(data, l4 + at);
    if protocol == proto::UDP && old == 0 {
        return;
    }
    let mut sum = update(old);
    if protocol == proto::UDP && sum == 0 {
        sum = 0xffff;
    }
    data[l4 + at..l4 + at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the offset of the end of the IP packet, at most the length of `data`.
fn end(data: &[u8], l3: usize) -> usize {
    let len = match data[l3] >> 4 {
        4 => usize::from(be16(data, l3 + 2)),
        _ => 40 + usize::from(be16(data, l3 + 4)),
    };
    (l3 + len).min(data.len())
}

/// Returns the protocol number of the header at `l4`.
fn protocol(data: &[u8], l3: usize, l4: usize) -> u8 {
    if data[l3] >> 4 == 4 { data[l3 + 9] } else { last_header(data, l3, l4).0 }
}

/// Returns the protocol behind an IPv6 packet's extension headers, and whether one of them is a routing header with
/// segments left.
fn last_header(data: &[u8], l3: usize, l4: usize) -> (u8, bool) {
    let (mut next, mut at, mut routed) = (data[l3 + 6], l3 + 40, false);
    while at < l4 && at + 8 <= data.len() {
        let len = match next {
            proto::AUTH => (usize::from(data[at + 1]) + 2) * 4,
            proto::FRAGMENT => 8,
            proto::HOP_BY_HOP | proto::ROUTING | proto::DEST_OPTIONS => (usize::from(data[at + 1]) + 1) * 8,
            _ => break,
        };
        routed |= next == proto::ROUTING && data[at + 3] > 0;
        next = data[at];
        at += len;
    }
    (next, routed)
}
