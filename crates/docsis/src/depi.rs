//! DEPI: encapsulation of MAC frames to a remote PHY, in L2TPv3 over IPv4 (CableLabs R-DEPI, packet streaming
//! protocol).
//!
//! ```text
//! Ethernet 14 | IPv4 20, protocol 115 | session 4 | PSP 4: flags, flow 0; 1 segment; sequence | segment 2 | frame
//! ```
//!
//! Each packet carries one segment, which contains one whole MAC frame.

use crate::group::Mac;
use bywash_wire::checksum::Sum;
use std::net::Ipv4Addr;

/// Size of the headers before the MAC frame in bytes.
pub const DEPI_LEN: usize = 14 + 20 + 4 + 4 + 2;

/// IP protocol number of L2TPv3 (RFC 3931, section 4.1.1).
const PROTO_L2TP: u8 = 115;
/// PSP flag: the sequence number is valid.
const SEQUENCED: u8 = 0x40;
/// PSP segment flags: the segment begins and ends a frame.
const WHOLE: u16 = 0xc000;
/// Maximum size of a segment in bytes: its length field has 14 bits.
const SEGMENT_MAX: usize = 0x3fff;

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
}

/// Headers for one channel, with its sequence number.
#[derive(Clone, Debug)]
pub(crate) struct Encapsulation {
    template: [u8; DEPI_LEN],
    sequence: u16,
    ident: u16,
}

impl Encapsulation {
    pub fn new(depi: &Depi, channel: u32) -> Self {
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
        t[38] = SEQUENCED;
        t[39] = 1;
        Self { template: t, sequence: 0, ident: 0 }
    }

    /// Writes the headers of the next packet, for a MAC frame of `len` bytes. Returns false, with `out` unchanged, if
    /// the frame is too long for a segment.
    #[inline]
    pub fn write(&mut self, out: &mut [u8; DEPI_LEN], len: usize) -> bool {
        if len > SEGMENT_MAX {
            return false;
        }
        *out = self.template;
        let total = (DEPI_LEN - 14 + len) as u16;
        out[16..18].copy_from_slice(&total.to_be_bytes());
        out[18..20].copy_from_slice(&self.ident.to_be_bytes());
        let checksum = Sum::of(&out[14..34]).checksum();
        out[24..26].copy_from_slice(&checksum.to_be_bytes());
        out[40..42].copy_from_slice(&self.sequence.to_be_bytes());
        out[42..].copy_from_slice(&(WHOLE | len as u16).to_be_bytes());
        self.sequence = self.sequence.wrapping_add(1);
        self.ident = self.ident.wrapping_add(1);
        true
    }
}
