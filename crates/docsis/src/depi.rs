//! DEPI: encapsulation of MAC frames to a remote PHY, in L2TPv3 over IPv4 (CableLabs R-DEPI, packet streaming
//! protocol).
//!
//! ```text
//! Ethernet 14 | IPv4 20, protocol 115 | session 4 | PSP 4: flags and flow; segments; sequence | table | segments
//! ```
//!
//! A packet carries segments of the MAC frames of one flow, as many as fit the MTU. The table has two bytes for each:
//! whether it begins and ends a frame, and its length. A frame that does not fit the remainder of a packet continues in
//! the flow's next one. Flows are numbered by priority, and each has its own sequence numbers.

use crate::group::Mac;
use bywash_frame::{Arena, Buffers, Frame};
use bywash_wire::checksum::Sum;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// Size of the headers before the segment table in bytes.
pub const DEPI_LEN: usize = ETHERNET + IPV4 + 4 + 4;
/// Valid MTUs: sizes of an IP packet in bytes. The greatest fits a cell of the default size.
pub const MTUS: RangeInclusive<usize> = 576..=3800;
/// Default MTU in bytes: that of Ethernet.
pub const MTU: usize = 1500;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
/// IP protocol number of L2TPv3 (RFC 3931, section 4.1.1).
const PROTO_L2TP: u8 = 115;
/// PSP flag: the sequence number is valid.
const SEQUENCED: u8 = 0x40;
/// PSP segment flags: the segment begins, and ends, a frame.
const BEGIN: u16 = 0x8000;
const END: u16 = 0x4000;
/// Maximum number of segments of a packet: the count has 7 bits.
const SEGMENTS: usize = 127;
/// Size of an entry of the segment table in bytes.
const ENTRY: usize = 2;
/// Number of flows: the flow identifier has three bits.
pub(crate) const FLOWS: usize = 8;

/// Addresses of a tunnel to a remote PHY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depi {
    /// Source MAC address.
    pub source_mac: Mac,
    /// MAC address of the remote PHY or of the gateway to it.
    pub destination_mac: Mac,
    /// Source IPv4 address.
    pub source: Ipv4Addr,
    /// IPv4 address of the remote PHY.
    pub destination: Ipv4Addr,
    /// L2TPv3 session of the first channel; other channels have the following ones.
    pub session: u32,
    /// Differentiated services code point, 0 to 63.
    pub dscp: u8,
    /// Maximum size of an IP packet in bytes, in [`MTUS`].
    pub mtu: usize,
}

/// Packer of the MAC frames of one channel.
pub(crate) struct Packer {
    template: [u8; DEPI_LEN],
    ident: u16,
    /// Space for the table and the segments of a packet in bytes.
    room: usize,
    flows: [Flow; FLOWS],
}

/// Frames of a flow that are to be packed.
#[derive(Default)]
struct Flow {
    sequence: u16,
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that are in earlier packets.
    done: usize,
}

/// Result of packing frames, for the caller to take.
#[derive(Default)]
pub(crate) struct Packets {
    /// Packets to send.
    pub(crate) packets: Vec<Frame>,
    /// Frames that are in them.
    pub(crate) packed: Vec<Frame>,
    /// Frames for which there was no buffer.
    pub(crate) lost: Vec<Frame>,
}

/// Part of a frame in a packet.
#[derive(Clone, Copy)]
struct Segment {
    start: usize,
    len: usize,
    flags: u16,
}

impl Packer {
    /// Creates the packer of channel number `channel`, for at most `frames` frames at a time and packets in `arena`.
    pub(crate) fn new(depi: &Depi, channel: u32, frames: usize, arena: &Arena) -> Self {
        let mut t = [0; DEPI_LEN];
        t[..6].copy_from_slice(&depi.destination_mac);
        t[6..12].copy_from_slice(&depi.source_mac);
        t[12..14].copy_from_slice(&[8, 0]);
        let ip = &mut t[14..34];
        ip[0] = 0x45;
        ip[1] = depi.dscp << 2;
        // Don't fragment: a remote PHY need not reassemble.
        ip[6] = 0x40;
        ip[8] = 255;
        ip[9] = PROTO_L2TP;
        ip[12..16].copy_from_slice(&depi.source.octets());
        ip[16..].copy_from_slice(&depi.destination.octets());
        t[34..38].copy_from_slice(&depi.session.wrapping_add(channel).to_be_bytes());
        let flow = || Flow { frames: VecDeque::with_capacity(frames), ..Flow::default() };
        Self {
            template: t,
            ident: 0,
            room: (depi.mtu + ETHERNET).min(arena.max_data()) - DEPI_LEN,
            flows: std::array::from_fn(|_| flow()),
        }
    }

    /// Adds a MAC frame to a flow.
    #[inline]
    pub(crate) fn push(&mut self, flow: usize, frame: Frame) {
        self.flows[flow].frames.push_back(frame);
    }

    /// Packs all frames, into packets with buffers from `bufs`.
    pub(crate) fn flush(&mut self, arena: &Arena, bufs: &mut Buffers, out: &mut Packets) {
        for flow in 0..FLOWS {
            while !self.flows[flow].frames.is_empty() {
                match bufs.alloc_one() {
                    Some(packet) => {
                        let packet = self.pack(flow, arena, packet, &mut out.packed);
                        out.packets.push(packet);
                    }
                    None => {
                        // The remote PHY discards the part of the first frame that it has.
                        self.flows[flow].done = 0;
                        out.lost.extend(self.flows[flow].frames.drain(..));
                    }
                }
            }
        }
    }

    /// Fills the next packet of flow `number`, which has frames. Those that end in it go to `packed`.
    fn pack(&mut self, number: usize, arena: &Arena, mut packet: Frame, packed: &mut Vec<Frame>) -> Frame {
        let Self { template, ident, room, flows } = self;
        let Flow { sequence, frames, done } = &mut flows[number];
        let mut segments = [Segment { start: 0, len: 0, flags: 0 }; SEGMENTS];
        let (mut count, mut left, mut start) = (0, *room, *done);
        for frame in frames.iter() {
            if count == SEGMENTS || left <= ENTRY {
                break;
            }
            let len = (frame.len() - start).min(left - ENTRY);
            let begin = if start == 0 { BEGIN } else { 0 };
            let end = if start + len == frame.len() { END } else { 0 };
            segments[count] = Segment { start, len, flags: begin | end };
            (count, left, start) = (count + 1, left - ENTRY - len, 0);
        }
        let segments = &segments[..count];
        let data = segments.iter().map(|segment| segment.len).sum::<usize>();
        let table = DEPI_LEN + ENTRY * count;
        let fits = arena.resize(&mut packet, table + data);
        debug_assert!(fits);

        let out = arena.data_mut(&mut packet);
        out[..DEPI_LEN].copy_from_slice(template);
        let total = (table + data - ETHERNET) as u16;
        out[16..18].copy_from_slice(&total.to_be_bytes());
        out[18..20].copy_from_slice(&ident.to_be_bytes());
        let checksum = Sum::of(&out[14..34]).checksum();
        out[24..26].copy_from_slice(&checksum.to_be_bytes());
        out[38] = SEQUENCED | (number as u8) << 1;
        out[39] = count as u8;
        out[40..42].copy_from_slice(&sequence.to_be_bytes());
        let mut at = table;
        for (segment, entry) in segments.iter().zip(out[DEPI_LEN..table].as_chunks_mut::<ENTRY>().0) {
            *entry = (segment.flags | segment.len as u16).to_be_bytes();
        }
        *sequence = sequence.wrapping_add(1);
        *ident = ident.wrapping_add(1);
        for segment in segments {
            let Some(frame) = frames.front() else { break };
            let out = arena.data_mut(&mut packet);
            out[at..at + segment.len].copy_from_slice(&arena.data(frame)[segment.start..][..segment.len]);
            at += segment.len;
            if segment.flags & END == 0 {
                *done = segment.start + segment.len;
            } else if let Some(frame) = frames.pop_front() {
                *done = 0;
                packed.push(frame);
            }
        }
        packet
    }
}
