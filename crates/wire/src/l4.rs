//! Views of TCP, UDP and ICMP headers.

use crate::proto;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// UDP header (RFC 768).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Length of header and data in bytes.
    pub len: U16,
    /// Checksum; over IPv4, zero means no checksum.
    pub checksum: U16,
}

impl UdpHeader {
    /// Returns the header at the start of `l4` and the bytes behind it, or `None` if `l4` is shorter than 8 bytes.
    #[inline]
    pub fn parse(l4: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(l4).ok()
    }
}

/// TCP flag bits (RFC 9293 3.1) of [`TcpHeader::flags`].
pub mod tcp_flags {
    /// Sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push buffered data to the receiving application.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
}

/// Fixed part of a TCP header (RFC 9293 3.1).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Sequence number.
    pub seq: U32,
    /// Acknowledgement number.
    pub ack: U32,
    /// Header length in 32-bit words, in the upper half.
    pub data_offset: u8,
    /// Flag bits, see [`tcp_flags`].
    pub flags: u8,
    /// Receive window.
    pub window: U16,
    /// Checksum.
    pub checksum: U16,
    /// Urgent pointer.
    pub urgent: U16,
}

impl TcpHeader {
    /// Returns the header at the start of `l4` and the bytes behind its fixed part, or `None` if `l4` is shorter than
    /// 20 bytes.
    #[inline]
    pub fn parse(l4: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(l4).ok()
    }
}

/// Common first 8 bytes of ICMP (RFC 792) and ICMPv6 (RFC 4443) messages.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcmpHeader {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Checksum.
    pub checksum: U16,
    /// Type-dependent bytes: identifier and sequence number, MTU, gateway or pointer.
    pub rest: [u8; 4],
}

impl IcmpHeader {
    /// Returns the header at the start of `l4` and the bytes behind it, or `None` if `l4` is shorter than 8 bytes.
    #[inline]
    pub fn parse(l4: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(l4).ok()
    }
}

/// Returns the source and destination port of TCP, UDP, UDP-Lite, DCCP and SCTP, whose headers start with them. Returns
/// `None` for other protocols and if `l4` is shorter than 4 bytes. The caller must exclude later fragments.
#[inline]
pub fn flow_ports(protocol: u8, l4: &[u8]) -> Option<(u16, u16)> {
    match protocol {
        proto::TCP | proto::UDP | proto::UDP_LITE | proto::DCCP | proto::SCTP => {
            let [a, b, c, d] = *l4.first_chunk::<4>()?;
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        let l4 = [0x04, 0xd2, 0x00, 0x35];
        assert_eq!(flow_ports(proto::UDP, &l4), Some((1234, 53)));
        assert_eq!(flow_ports(proto::ICMP, &l4), None);
        assert_eq!(flow_ports(proto::TCP, &l4[..3]), None);
    }

    #[test]
    fn sizes_are_the_formats() {
        assert_eq!(size_of::<UdpHeader>(), 8);
        assert_eq!(size_of::<TcpHeader>(), 20);
        assert_eq!(size_of::<IcmpHeader>(), 8);
    }
}
