//! A connection in the kernel's conntrack table.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// Status bits of a connection (enum ip_conntrack_status in linux/netfilter/nf_conntrack_common.h).
pub mod status {
    /// A helper expected the connection (IPS_EXPECTED).
    pub const EXPECTED: u32 = 1 << 0;
    /// Packets were seen in both directions (IPS_SEEN_REPLY).
    pub const SEEN_REPLY: u32 = 1 << 1;
    /// The connection is not dropped early when the table is full (IPS_ASSURED).
    pub const ASSURED: u32 = 1 << 2;
    /// The connection is in the kernel's table (IPS_CONFIRMED).
    pub const CONFIRMED: u32 = 1 << 3;
    /// Sources are translated in the original direction (IPS_SRC_NAT).
    pub const SRC_NAT: u32 = 1 << 4;
    /// Destinations are translated in the original direction (IPS_DST_NAT).
    pub const DST_NAT: u32 = 1 << 5;
    /// TCP sequence numbers are adjusted (IPS_SEQ_ADJUST).
    pub const SEQ_ADJUST: u32 = 1 << 6;
    /// The connection is being removed (IPS_DYING).
    pub const DYING: u32 = 1 << 9;
    /// The timeout does not change (IPS_FIXED_TIMEOUT).
    pub const FIXED_TIMEOUT: u32 = 1 << 10;
    /// A helper is attached (IPS_HELPER).
    pub const HELPER: u32 = 1 << 13;
    /// A flow table has taken it (IPS_OFFLOAD).
    pub const OFFLOAD: u32 = 1 << 14;
    /// A device has taken it (IPS_HW_OFFLOAD).
    pub const HW_OFFLOAD: u32 = 1 << 15;
}

/// Properties of TCP connections (linux/netfilter/nf_conntrack_tcp.h).
pub mod tcp {
    /// State of an established connection (TCP_CONNTRACK_ESTABLISHED).
    pub const ESTABLISHED: u8 = 3;
    /// Flag of a direction whose window is not checked (IP_CT_TCP_FLAG_BE_LIBERAL).
    pub const LIBERAL: u8 = 0x08;
    /// Flag of a direction with data that is not acknowledged, which shortens the timeout
    /// (IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED).
    pub const UNACKNOWLEDGED: u8 = 0x10;
    /// Flag of a direction whose last acknowledgement is known, which an RST has to match (IP_CT_TCP_FLAG_MAXACK_SET).
    pub const MAXACK: u8 = 0x20;
}

/// Addresses and ports of the packets of one direction, as they are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// Source address and port.
    pub src: SocketAddr,
    /// Destination address and port.
    pub dst: SocketAddr,
}

impl Tuple {
    /// Creates a tuple.
    pub fn new(src: (IpAddr, u16), dst: (IpAddr, u16)) -> Self {
        Self { src: src.into(), dst: dst.into() }
    }

    /// Returns the tuple with source and destination exchanged.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src }
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.src, self.dst)
    }
}

/// Identity of a connection in the kernel's table while it lasts. A later connection may have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// IP protocol number.
    pub protocol: u8,
    /// Addresses and ports of its first packet.
    pub original: Tuple,
    /// Zone; 0 by default.
    pub zone: u16,
}

/// A TCP or UDP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Identity of the connection.
    pub key: Key,
    /// Addresses and ports of a reply: translation makes them differ from the reverse of the first packet's.
    pub reply: Tuple,
    /// Identifier (`conntrack -o id`). The next connection with this key has the same one if the kernel happens to keep
    /// it at the same place (nf_ct_get_id).
    pub id: u32,
    /// Status bits; see [`status`].
    pub status: u32,
    /// Mark.
    pub mark: u32,
    /// Seconds until it expires; `None` if not reported.
    pub timeout: Option<u32>,
    /// State of TCP; `None` for UDP, and in events that leave it out as unchanged.
    pub tcp_state: Option<u8>,
    /// Set if TCP's window is checked in neither direction. Not set in events that leave it out as unchanged.
    pub liberal: bool,
    /// Set if the two directions have different zones.
    pub zone_of_direction: bool,
    /// Set if a helper looks into it.
    pub helper: bool,
    /// Set if another connection's helper expected this one.
    pub expected: bool,
    /// Set if sequence numbers are adjusted, by a helper or by synproxy.
    pub sequence_changes: bool,
    /// Number of an attribute that this crate does not know, if the connection has one.
    pub unknown: Option<u16>,
}

impl Connection {
    /// Returns whether all of these status bits are set.
    pub fn has(&self, bits: u32) -> bool {
        self.status & bits == bits
    }

    /// Returns the addresses and ports of a direction as they are received: the original one, or that of replies.
    pub fn tuple(&self, replies: bool) -> Tuple {
        if replies { self.reply } else { self.key.original }
    }

    /// Returns the addresses and ports of a direction as they are sent.
    pub fn translated(&self, replies: bool) -> Tuple {
        self.tuple(!replies).reversed()
    }
}
