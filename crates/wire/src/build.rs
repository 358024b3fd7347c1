//! Builders of complete packets for tests, benchmarks and the traffic generator.
//!
//! ```
//! use bywash_wire::build::Packet;
//! let frame = Packet::tcp("[fd00::1]:1024".parse().unwrap(), "[fd09::1]:80".parse().unwrap())
//!     .vlan(10)
//!     .payload(b"hello")
//!     .build()
//!     .unwrap();
//! assert_eq!(frame.len(), 14 + 4 + 40 + 20 + 5);
//! ```

use crate::checksum::{Sum, pseudo4, pseudo6};
use crate::ethernet::{self, EthernetHeader, FCS_LEN, MacAddr, TAG_LEN, VlanTag, ethertype};
use crate::ipv4::{self, Ipv4Header};
use crate::ipv6::{self, Ipv6Header};
use crate::l4::{IcmpHeader, TcpHeader, UdpHeader, tcp_flags};
use crate::proto;
use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use zerocopy::IntoBytes;

#[derive(Clone, Copy, Debug)]
enum Upper {
    Udp { src: u16, dst: u16 },
    Tcp { src: u16, dst: u16, seq: u32, ack: u32, flags: u8 },
    Echo { ident: u16, seq: u16, reply: bool },
}

/// Description of a packet to build. All checksums are correct unless [`Self::partial_checksum`] is set.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    src: IpAddr,
    dst: IpAddr,
    upper: Upper,
    dst_mac: MacAddr,
    src_mac: MacAddr,
    vlan: Option<u16>,
    ttl: u8,
    tos: u8,
    ident: u16,
    fragment: u16,
    options: &'a [u8],
    payload: &'a [u8],
    size: Option<usize>,
    partial: bool,
}

/// Reason why a packet cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// One address is IPv4, the other IPv6.
    Families,
    /// IPv4 options on an IPv6 packet, or options whose length is not a multiple of 4 or exceeds 40 bytes.
    Options,
    /// The requested size cannot hold the headers and the payload.
    Size {
        /// Smallest possible size in bytes, counted as in [`Packet::size`].
        minimum: usize,
    },
    /// The packet exceeds the maximum length of an IP packet.
    TooLong,
    /// The output slice is too short.
    Room {
        /// Bytes needed.
        needed: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Families => f.write_str("source and destination addresses are of different families"),
            Self::Options => f.write_str("IPv4 options must be a multiple of 4 bytes, at most 40"),
            Self::Size { minimum } => write!(f, "frame size must be at least {minimum}"),
            Self::TooLong => f.write_str("packet exceeds the maximum IP packet length"),
            Self::Room { needed } => write!(f, "output slice is too short: needs {needed} bytes"),
        }
    }
}

impl std::error::Error for BuildError {}

impl<'a> Packet<'a> {
    fn new(src: IpAddr, dst: IpAddr, upper: Upper) -> Self {
        Self {
            src,
            dst,
            upper,
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vlan: None,
            ttl: 64,
            tos: 0,
            ident: 0,
            fragment: 0,
            options: &[],
            payload: &[],
            size: None,
            partial: false,
        }
    }

    /// Returns a UDP datagram from `src` to `dst`.
    pub fn udp(src: SocketAddr, dst: SocketAddr) -> Self {
        Self::new(src.ip(), dst.ip(), Upper::Udp { src: src.port(), dst: dst.port() })
    }

    /// Returns a TCP segment with the ACK flag set and sequence and acknowledgement numbers of 0.
    pub fn tcp(src: SocketAddr, dst: SocketAddr) -> Self {
        let upper = Upper::Tcp { src: src.port(), dst: dst.port(), seq: 0, ack: 0, flags: tcp_flags::ACK };
        Self::new(src.ip(), dst.ip(), upper)
    }

    /// Returns an ICMP or ICMPv6 echo request.
    pub fn echo(src: IpAddr, dst: IpAddr, ident: u16, seq: u16) -> Self {
        Self::new(src, dst, Upper::Echo { ident, seq, reply: false })
    }

    /// Turns an echo request into an echo reply. Has no effect on other packets.
    pub fn reply(mut self) -> Self {
        if let Upper::Echo { reply, .. } = &mut self.upper {
            *reply = true;
        }
        self
    }

    /// Sets the sequence number, acknowledgement number and flags of a TCP segment. Has no effect on other packets.
    pub fn tcp_fields(mut self, new_seq: u32, new_ack: u32, new_flags: u8) -> Self {
        if let Upper::Tcp { seq, ack, flags, .. } = &mut self.upper {
            (*seq, *ack, *flags) = (new_seq, new_ack, new_flags);
        }
        self
    }

    /// Sets the source and destination MAC address; by default 02:00:00:00:00:01 and 02:00:00:00:00:02.
    pub fn macs(mut self, src: MacAddr, dst: MacAddr) -> Self {
        (self.src_mac, self.dst_mac) = (src, dst);
        self
    }

    /// Adds an 802.1Q tag with the given tag control information: priority, drop eligible indicator, VLAN identifier.
    pub fn vlan(mut self, tci: u16) -> Self {
        self.vlan = Some(tci);
        self
    }

    /// Sets the TTL or hop limit; by default 64.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the type of service or traffic class; by default 0.
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// Sets the IPv4 identification; by default 0.
    pub fn ident(mut self, ident: u16) -> Self {
        self.ident = ident;
        self
    }

    /// Sets the IPv4 fragment word: [`ipv4::DF`], [`ipv4::MF`] and the offset in units of 8 bytes; by default 0.
    pub fn fragment(mut self, word: u16) -> Self {
        self.fragment = word;
        self
    }

    /// Sets the IPv4 options: a multiple of 4 bytes, at most 40.
    pub fn ip_options(mut self, options: &'a [u8]) -> Self {
        self.options = options;
        self
    }

    /// Sets the data behind the transport header.
    pub fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }

    /// Sets the frame size as counted by RFC 2544: from the destination MAC to the end of the **4-byte FCS**, VLAN tag
    /// included. The host never holds the FCS, so the built frame has `size - 4` bytes: `size(64)` builds 60. Zeros are
    /// added behind the payload, within the IP packet.
    pub fn size(mut self, size: usize) -> Self {
        self.size = Some(size);
        self
    }

    /// Leaves the TCP or UDP checksum partial, as Linux does for checksum offload (see [`crate::partial`]).
    pub fn partial_checksum(mut self, partial: bool) -> Self {
        self.partial = partial;
        self
    }

    /// Returns the length of the Ethernet frame in bytes, without the FCS.
    ///
    /// # Errors
    /// Any [`BuildError`] except `Room`.
    pub fn frame_len(&self) -> Result<usize, BuildError> {
        if self.src.is_ipv4() != self.dst.is_ipv4() {
            return Err(BuildError::Families);
        }
        let options_fit = self.options.len() <= 40 && self.options.len().is_multiple_of(4);
        if !options_fit || (self.src.is_ipv6() && !self.options.is_empty()) {
            return Err(BuildError::Options);
        }
        let least = self.l2_len() + self.ip_len() + self.upper_len() + self.payload.len();
        let len = match self.size {
            None => least,
            Some(size) => size
                .checked_sub(FCS_LEN)
                .filter(|len| *len >= least)
                .ok_or(BuildError::Size { minimum: least + FCS_LEN })?,
        };
        let uncounted = self.l2_len() + if self.src.is_ipv6() { ipv6::HEADER_LEN } else { 0 };
        if len - uncounted > usize::from(u16::MAX) { Err(BuildError::TooLong) } else { Ok(len) }
    }

    /// Writes the Ethernet frame to the start of `out` and returns its length in bytes.
    ///
    /// # Errors
    /// [`BuildError`]; `out` is unchanged on error.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, BuildError> {
        let len = self.frame_len()?;
        let frame = out.get_mut(..len).ok_or(BuildError::Room { needed: len })?;
        let (l2, l3) = frame.split_at_mut(self.l2_len());
        let inner = if self.src.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
        let outer = if self.vlan.is_some() { ethertype::VLAN } else { inner };
        let eth = EthernetHeader { dst: self.dst_mac, src: self.src_mac, ethertype: outer.into() };
        l2[..ethernet::HEADER_LEN].copy_from_slice(eth.as_bytes());
        if let Some(tci) = self.vlan {
            let tag = VlanTag { tci: tci.into(), ethertype: inner.into() };
            l2[ethernet::HEADER_LEN..].copy_from_slice(tag.as_bytes());
        }
        self.write_l3(l3);
        Ok(len)
    }

    /// Builds the Ethernet frame, without the FCS.
    ///
    /// # Errors
    /// Any [`BuildError`] except `Room`.
    pub fn build(&self) -> Result<Vec<u8>, BuildError> {
        let mut frame = vec![0; self.frame_len()?];
        self.write(&mut frame)?;
        Ok(frame)
    }

    /// Builds only the IP packet; [`Self::size`] still counts the Ethernet frame around it.
    ///
    /// # Errors
    /// Any [`BuildError`] except `Room`.
    pub fn build_l3(&self) -> Result<Vec<u8>, BuildError> {
        let mut l3 = vec![0; self.frame_len()? - self.l2_len()];
        self.write_l3(&mut l3);
        Ok(l3)
    }

    fn l2_len(&self) -> usize {
        ethernet::HEADER_LEN + if self.vlan.is_some() { TAG_LEN } else { 0 }
    }

    fn ip_len(&self) -> usize {
        if self.src.is_ipv4() { ipv4::HEADER_LEN + self.options.len() } else { ipv6::HEADER_LEN }
    }

    fn upper_len(&self) -> usize {
        match self.upper {
            Upper::Udp { .. } | Upper::Echo { .. } => 8,
            Upper::Tcp { .. } => 20,
        }
    }

    fn proto(&self) -> u8 {
        match self.upper {
            Upper::Udp { .. } => proto::UDP,
            Upper::Tcp { .. } => proto::TCP,
            Upper::Echo { .. } if self.src.is_ipv4() => proto::ICMP,
            Upper::Echo { .. } => proto::ICMP6,
        }
    }

    /// Writes the IP packet; `l3` has exactly the length computed by `frame_len`.
    fn write_l3(&self, l3: &mut [u8]) {
        let total = l3.len();
        let (ip, l4) = l3.split_at_mut(self.ip_len());
        let pseudo = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.write_ipv4(ip, total, src, dst),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.write_ipv6(ip, l4.len(), src, dst),
            _ => return,
        };
        self.write_l4(l4, pseudo);
    }

    fn write_ipv4(&self, ip: &mut [u8], total: usize, src: Ipv4Addr, dst: Ipv4Addr) -> Sum {
        let header = Ipv4Header {
            version_ihl: 0x40 | (ip.len() / 4) as u8,
            tos: self.tos,
            total_len: (total as u16).into(),
            ident: self.ident.into(),
            fragment: self.fragment.into(),
            ttl: self.ttl,
            proto: self.proto(),
            checksum: 0.into(),
            src: src.octets(),
            dst: dst.octets(),
        };
        let l4_len = (total - ip.len()) as u16;
        ip[..ipv4::HEADER_LEN].copy_from_slice(header.as_bytes());
        ip[ipv4::HEADER_LEN..].copy_from_slice(self.options);
        ipv4::fill_checksum(ip);
        // ICMP has no pseudo-header.
        ip.first_chunk()
            .filter(|_| self.proto() != proto::ICMP)
            .map_or(Sum::ZERO, |header| pseudo4(header, self.proto(), l4_len))
    }

    fn write_ipv6(&self, ip: &mut [u8], l4_len: usize, src: Ipv6Addr, dst: Ipv6Addr) -> Sum {
        let header = Ipv6Header {
            version_flow: (6 << 28 | u32::from(self.tos) << 20).into(),
            payload_len: (l4_len as u16).into(),
            next_header: self.proto(),
            hop_limit: self.ttl,
            src: src.octets(),
            dst: dst.octets(),
        };
        ip.copy_from_slice(header.as_bytes());
        ip.first_chunk().map_or(Sum::ZERO, |header| pseudo6(header, self.proto(), l4_len as u32))
    }

    fn write_l4(&self, l4: &mut [u8], pseudo: Sum) {
        let l4_len = l4.len() as u16;
        let (head, data) = l4.split_at_mut(self.upper_len());
        let field = match self.upper {
            Upper::Udp { src, dst } => {
                let udp =
                    UdpHeader { src_port: src.into(), dst_port: dst.into(), len: l4_len.into(), checksum: 0.into() };
                head.copy_from_slice(udp.as_bytes());
                6
            }
            Upper::Tcp { src, dst, seq, ack, flags } => {
                let tcp = TcpHeader {
                    src_port: src.into(),
                    dst_port: dst.into(),
                    seq: seq.into(),
                    ack: ack.into(),
                    data_offset: 5 << 4,
                    flags,
                    window: u16::MAX.into(),
                    checksum: 0.into(),
                    urgent: 0.into(),
                };
                head.copy_from_slice(tcp.as_bytes());
                16
            }
            Upper::Echo { ident, seq, reply } => {
                let kind = match (self.src.is_ipv4(), reply) {
                    (true, false) => 8,
                    (true, true) => 0,
                    (false, false) => 128,
                    (false, true) => 129,
                };
                let [a, b] = ident.to_be_bytes();
                let [c, d] = seq.to_be_bytes();
                let icmp = IcmpHeader { kind, code: 0, checksum: 0.into(), rest: [a, b, c, d] };
                head.copy_from_slice(icmp.as_bytes());
                2
            }
        };
        data[..self.payload.len()].copy_from_slice(self.payload);
        data[self.payload.len()..].fill(0);
        let sum = if self.partial && field != 2 {
            pseudo.fold()
        } else {
            match (pseudo + Sum::of(l4)).checksum() {
                0 if field == 6 => 0xffff, // RFC 768: a zero field means "no checksum".
                sum => sum,
            }
        };
        l4[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}
