//! What is done to a packet, flat: the result of a trip through the tables.

use bywash_engine::PortId;

/// One step. Values lie in network order; only the bits a mask names are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Destination and source Ethernet address: the first two words of the key.
    Eth {
        /// New bits.
        value: [u64; 2],
        /// Bits to change.
        mask: [u64; 2],
    },
    /// Removes the outer VLAN tag.
    PopVlan,
    /// Adds a VLAN tag in front of others.
    PushVlan {
        /// Its Ethernet type.
        tpid: u16,
        /// Priority and VLAN.
        tci: u16,
    },
    /// Replaces the outer tag's priority and VLAN.
    SetTci(u16),
    /// IPv4 source (0) or destination (1).
    Ip4 {
        /// Which.
        which: u8,
        /// New bits.
        value: u32,
        /// Bits to change.
        mask: u32,
    },
    /// Half an IPv6 address: the words from byte 8 of the header on.
    Ip6 {
        /// Which word, 0 to 3.
        word: u8,
        /// New bits.
        value: u64,
        /// Bits to change.
        mask: u64,
    },
    /// IPv6 flow label.
    Label {
        /// New bits.
        value: u32,
        /// Bits to change.
        mask: u32,
    },
    /// TOS or traffic class.
    Tos {
        /// New bits.
        value: u8,
        /// Bits to change.
        mask: u8,
    },
    /// TTL or hop limit.
    Ttl(u8),
    /// TTL or hop limit, less this.
    DecTtl(u8),
    /// Source (0) or destination (1) port of TCP, UDP or SCTP.
    Tp {
        /// Which.
        which: u8,
        /// New bits.
        value: u16,
        /// Bits to change.
        mask: u16,
    },
    /// Type (0) or code (1) of ICMP or ICMPv6.
    Icmp {
        /// Which.
        which: u8,
        /// New value.
        value: u8,
    },
    /// Bytes of an ARP packet.
    Arp {
        /// Offset in the packet.
        at: u8,
        /// New bits.
        value: [u8; 6],
        /// Bits to change.
        mask: [u8; 6],
    },
    /// Half the target of a neighbour solicitation or advertisement.
    NdTarget {
        /// Which word.
        word: u8,
        /// New bits.
        value: u64,
        /// Bits to change.
        mask: u64,
    },
    /// Link-layer address option of a neighbour solicitation (1) or advertisement (2).
    NdLla {
        /// The option's type.
        option: u8,
        /// New bits.
        value: [u8; 6],
        /// Bits to change.
        mask: [u8; 6],
    },
    /// A rate limit: what exceeds it goes no further.
    Meter(u32),
    /// The storm limit of the port the packet came in by: what exceeds it goes no further.
    Storm,
    /// Sends the packet as it is now.
    Output(PortId),
}
