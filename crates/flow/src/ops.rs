//! Ops: the flat list of packet changes and outputs that results from a translation.

use bywash_engine::{DropReason, PortId};

/// Single op. Multi-byte values are in network order; only the bits set in a mask are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets destination and source Ethernet address: the first two words of the key.
    Eth {
        /// New bits.
        value: [u64; 2],
        /// Bits to change.
        mask: [u64; 2],
    },
    /// Removes the outer VLAN tag.
    PopVlan,
    /// Pushes a VLAN tag in front of any others.
    PushVlan {
        /// Ethernet type of the tag.
        tpid: u16,
        /// Priority and VLAN identifier.
        tci: u16,
    },
    /// Replaces the outer tag's priority and VLAN identifier.
    SetTci(u16),
    /// Pushes a label stack entry in front of any others, and sets the Ethernet type.
    PushMpls {
        /// Entry.
        entry: u32,
        /// Ethernet type.
        dl_type: u16,
    },
    /// Removes the outer label stack entries, and sets the Ethernet type.
    PopMpls {
        /// Number of entries.
        entries: u8,
        /// Ethernet type.
        dl_type: u16,
    },
    /// Sets the outer label stack entry.
    SetMpls {
        /// New bits.
        value: u32,
        /// Bits to change.
        mask: u32,
    },
    /// Sets the IPv4 source (0) or destination (1) address.
    Ip4 {
        /// 0 for the source address, 1 for the destination address.
        which: u8,
        /// New bits.
        value: u32,
        /// Bits to change.
        mask: u32,
    },
    /// Sets half an IPv6 address: one of the four 64-bit words from byte 8 of the header on.
    Ip6 {
        /// Index of the word, 0 to 3.
        word: u8,
        /// New bits.
        value: u64,
        /// Bits to change.
        mask: u64,
    },
    /// Sets the IPv6 flow label.
    Label {
        /// New bits.
        value: u32,
        /// Bits to change.
        mask: u32,
    },
    /// Sets the TOS or traffic class.
    Tos {
        /// New bits.
        value: u8,
        /// Bits to change.
        mask: u8,
    },
    /// Sets the TTL or hop limit.
    Ttl(u8),
    /// Subtracts from the TTL or hop limit.
    DecTtl(u8),
    /// Sets the source (0) or destination (1) port of TCP, UDP or SCTP.
    Tp {
        /// 0 for the source port, 1 for the destination port.
        which: u8,
        /// New bits.
        value: u16,
        /// Bits to change.
        mask: u16,
    },
    /// Sets the type (0) or code (1) of ICMP or ICMPv6.
    Icmp {
        /// 0 for the type, 1 for the code.
        which: u8,
        /// New bits.
        value: u8,
        /// Bits to change.
        mask: u8,
    },
    /// Sets up to six bytes of an ARP packet.
    Arp {
        /// Offset in the ARP packet in bytes.
        at: u8,
        /// New bits.
        value: [u8; 6],
        /// Bits to change.
        mask: [u8; 6],
    },
    /// Sets half the target address of a neighbour solicitation or advertisement.
    NdTarget {
        /// Index of the 64-bit word, 0 or 1.
        word: u8,
        /// New bits.
        value: u64,
        /// Bits to change.
        mask: u64,
    },
    /// Sets the link-layer address option of a neighbour solicitation (1) or advertisement (2).
    NdLla {
        /// Type of the option.
        option: u8,
        /// New bits.
        value: [u8; 6],
        /// Bits to change.
        mask: [u8; 6],
    },
    /// Applies the meter in this slot: packets beyond its rate are dropped.
    Meter(u32),
    /// Applies the storm limit of the ingress port: packets beyond it are dropped.
    Storm,
    /// Sends the packet in its current form.
    Output(PortId),
    /// Shows a copy of the packet in its current form to captures, as one for a controller.
    Controller,
    /// Shows copies of so many of 65,535 packets in their current form to captures.
    Sample(u16),
    /// Runs the next ops on longer packets only, and all ops behind these on the others only. It stands in front of all
    /// ops that change a packet.
    Longer {
        /// Length of a frame in bytes as received.
        than: u32,
        /// Number of ops for longer packets.
        ops: u16,
    },
    /// Drops the packet; the last of the ops for packets of some length, or of all.
    Drop(DropReason),
}
