//! VLANs and macvlans of ports: tags are removed from received frames before the stages, and added to sent ones after
//! them. Macvlans are handled alike: their frames have no tag, and are identified by their destination.
//!
//! A VLAN is numbered like a port, by a [`PortId`] from [`FIRST`] on ([`PortId::is_port`] is false for it). Gates, next
//! hops and source checks refer to it by that number; queues and counters are those of the port that carries it.

use crate::tables::{PortInfo, Tables};
use crate::tunnel::{self, RemovedHeaders};
use bywash_engine::{Context, DropReason, PORTS, PortId};
use bywash_frame::{Arena, Batch, Frame};
use bywash_wire::ethernet::{HEADER_LEN, TAG_LEN, ethertype};

/// Lowest number of an interface that is not a port, but a VLAN, macvlan, bond, bridge or tunnel.
pub const FIRST: u16 = PORTS as u16;
/// Maximum number of VLANs of a process.
pub const VLANS: usize = bywash_port::af_xdp::VLANS as usize;

/// Value in place of the tag, for a macvlan.
pub const UNTAGGED: [u8; TAG_LEN] = [0; TAG_LEN];

/// Length of the two addresses in front of the tag or the EtherType.
const ADDRESSES: usize = HEADER_LEN - 2;
/// Bits of a tag that identify its VLAN: all but priority and drop eligibility.
const MASK: [u8; TAG_LEN] = [0xff, 0xff, 0x0f, 0xff];

/// Origin of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ingress {
    /// Port that received it, for which it is counted.
    pub port: PortId,
    /// Number of the receiving interface: the frame's VLAN or macvlan, the port's bond or bridge, or else the port.
    pub id: PortId,
    /// Tag of the frame, which was removed.
    pub tag: Tag,
    /// Outer headers that were removed, if the packet came through a tunnel.
    pub outer: Option<RemovedHeaders>,
}

/// Tag that a received frame had. [`restore`] puts it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// No tag.
    None,
    /// Tag of a VLAN of the port. The kernel receives the frame with it, on an interface below the VLAN's.
    OfPort,
    /// Tag of a VLAN of the port's bridge. The kernel receives a frame to be routed without it, on the interface of the
    /// VLAN, and one to be bridged with it, on the port's.
    OfBridge,
}

impl Ingress {
    /// Restores a frame to what the port received. Returns the number of the interface that received it.
    pub fn restore(self, arena: &Arena, frame: &mut Frame) -> PortId {
        let id = self.outer.map_or(self.id, |outer| tunnel::put_back(arena, outer, frame));
        if self.tag == Tag::OfPort {
            restore(arena, frame);
        }
        id
    }
}

/// Returns the tag of a VLAN as it is in frames, with priority 0.
pub fn tag(protocol: u16, id: u16) -> [u8; TAG_LEN] {
    let ([a, b], [c, d]) = (protocol.to_be_bytes(), id.to_be_bytes());
    [a, b, c & MASK[2], d]
}

/// Returns whether a frame has a tag, of whatever VLAN.
pub(crate) fn is_tagged(data: &[u8]) -> bool {
    let kind = data.get(ADDRESSES..HEADER_LEN).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
    matches!(kind, Some(ethertype::VLAN | ethertype::QINQ))
}

/// Moves the frames of one of a port's VLANs or macvlans from `batch` to `out`, which is empty, without their tags.
/// Returns that interface, and whether its frames had tags; `None` if no frame is of one.
#[cold]
pub(crate) fn take(arena: &Arena, port: &PortInfo, batch: &mut Batch, out: &mut Batch) -> Option<(PortId, bool)> {
    let mut taken = None;
    batch.filter(|_, mut frame| match of(port, arena.data(&frame)) {
        Some(one) if *taken.get_or_insert(one) == one => {
            if let (_, true) = one {
                untag(arena, &mut frame);
            }
            out.push(frame).err()
        }
        _ => Some(frame),
    });
    taken
}

/// Returns the VLAN or macvlan of a frame, and whether it has a tag.
fn of(port: &PortInfo, data: &[u8]) -> Option<(PortId, bool)> {
    if !is_tagged(data) {
        let mac = |(mac, _): &&([u8; 6], PortId)| data.starts_with(mac);
        return port.macvlans.iter().find(mac).map(|(_, id)| (*id, false));
    }
    let head: &[u8; HEADER_LEN + TAG_LEN] = data.first_chunk()?;
    let mut tag: [u8; TAG_LEN] = *head[ADDRESSES..].first_chunk()?;
    tag.iter_mut().zip(MASK).for_each(|(byte, mask)| *byte &= mask);
    let at = port.vlans.binary_search_by_key(&tag, |(tag, _)| *tag).ok()?;
    Some((port.vlans[at].1, true))
}

/// Removes a frame's tag. It is kept in the headroom that this makes, for [`restore`].
fn untag(arena: &Arena, frame: &mut Frame) {
    let Some(head) = arena.head_mut::<{ ADDRESSES + TAG_LEN }>(frame) else { return };
    head.rotate_right(TAG_LEN);
    frame.pull(TAG_LEN);
}

/// Puts back the tag that was removed from a received frame, which is then as received.
pub(crate) fn restore(arena: &Arena, frame: &mut Frame) {
    if arena.push(frame, TAG_LEN)
        && let Some(head) = arena.head_mut::<{ ADDRESSES + TAG_LEN }>(frame)
    {
        head.rotate_left(TAG_LEN);
    }
}

/// Sends a frame on `to`, a port, VLAN, macvlan or bond: adds the VLAN's tag, and chooses the bond's member. The frame
/// is counted for `from`.
#[inline(always)]
pub(crate) fn send(cx: &mut Context<'_>, tables: &Tables, from: PortId, to: PortId, frame: Frame) {
    if to.is_port() { cx.send(from, to, frame) } else { send_above(cx, tables, from, to, frame) }
}

#[cold]
pub(crate) fn send_above(cx: &mut Context<'_>, tables: &Tables, from: PortId, to: PortId, mut frame: Frame) {
    let arena = cx.bufs.arena();
    let (below, tag) = tables.vlan(to).map_or((to, UNTAGGED), |vlan| (vlan.port, vlan.tag));
    // The member is chosen before the tag is in the frame, as in the kernel, which still has the tag beside the packet
    // then.
    let port = match tables.bond(below) {
        Some(bond) => bond.port_of(arena.data(&frame)),
        None => Some(below).filter(|port| port.is_port()),
    };
    let Some(port) = port else { return cx.drop(from, DropReason::PortDown, frame) };
    if tag == UNTAGGED {
        return cx.send(from, port, frame);
    }
    if !arena.push(&mut frame, TAG_LEN) {
        return cx.drop(from, DropReason::NoBuffer, frame);
    }
    if let Some(head) = arena.head_mut::<{ ADDRESSES + TAG_LEN }>(&mut frame) {
        head[..TAG_LEN].copy_from_slice(&tag);
        head.rotate_left(TAG_LEN);
    }
    cx.send(from, port, frame);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_frame::{ArenaConfig, Buffers, PoolConfig, PoolKind, PoolSet};

    fn port(vlans: &[([u8; 4], u16)]) -> PortInfo {
        let vlans = vlans.iter().map(|(tag, id)| (*tag, PortId(*id))).collect();
        PortInfo { vlans, ..PortInfo::default() }
    }

    #[test]
    fn frames_of_a_vlan_lose_their_tag_and_get_it_back() {
        let arena = Arena::new(ArenaConfig { cells: 64, ..ArenaConfig::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::new("p", PoolKind::Stack, 64)]).unwrap();
        let mut bufs = Buffers::attach(&pools, 0);
        let trunk =
            port(&[(tag(ethertype::VLAN, 5), 64), (tag(ethertype::VLAN, 6), 66), (tag(ethertype::QINQ, 5), 65)]);
        assert!(trunk.vlans.is_sorted());
        // Two of VLAN 5 (one with a priority), one of service VLAN 5, a tag of no interface, VLAN 0, no tag, a
        // truncated tag.
        let tags: [&[u8]; 7] = [
            &[0x81, 0, 0, 5, 8, 0, 1],
            &[0x88, 0xa8, 0, 5, 8, 0, 2],
            &[0x81, 0, 0xf0, 5, 8, 0, 3],
            &[0x81, 0, 0, 7, 8, 0, 4],
            &[0x81, 0, 0xe0, 0, 8, 0, 5],
            &[8, 0, 0x81, 0, 0, 5, 6],
            &[0x81, 0, 0, 5],
        ];
        let frames: Vec<Vec<u8>> = tags.iter().map(|tag| [&[1; 6][..], &[2; 6], tag].concat()).collect();
        let mut batch = Batch::new();
        for bytes in &frames {
            let mut frame = bufs.alloc_one().unwrap();
            assert!(bufs.arena().write(&mut frame, bytes));
            assert!(batch.push(frame).is_ok());
        }
        let arena = bufs.arena().clone();
        let mut seen = vec![];
        let mut out = Batch::new();
        while let Some((vlan, true)) = take(&arena, &trunk, &mut batch, &mut out) {
            for mut frame in out.drain() {
                let bare = arena.data(&frame).to_vec();
                restore(&arena, &mut frame);
                let whole = arena.data(&frame).to_vec();
                assert_eq!(bare, [&whole[..12], &whole[16..]].concat());
                seen.push((vlan.0, frames.iter().position(|bytes| *bytes == whole).unwrap()));
                bufs.free_one(frame);
            }
        }
        assert_eq!(seen, [(64, 0), (64, 2), (65, 1)]);
        let left: Vec<Vec<u8>> = batch.as_slice().iter().map(|frame| arena.data(frame).to_vec()).collect();
        assert_eq!(left, frames[3..]);
        bufs.free(&mut batch);
    }
}
