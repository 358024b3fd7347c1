//! Ethernet II frames and their 802.1Q / 802.1ad tags.

use core::fmt;
use core::str::FromStr;
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of an untagged Ethernet header in bytes.
pub const HEADER_LEN: usize = 14;
/// Length of an 802.1Q or 802.1ad tag in bytes.
pub const TAG_LEN: usize = 4;
/// Length of the frame check sequence in bytes. The host never sees it, but RFC 2544 frame sizes include it.
pub const FCS_LEN: usize = 4;

/// EtherTypes (IANA ieee-802-numbers).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// 802.1ad service tag.
    pub const QINQ: u16 = 0x88a8;
    /// Ethernet frames within another protocol (transparent Ethernet bridging, RFC 1701).
    pub const TEB: u16 = 0x6558;
    /// MPLS label stack, unicast.
    pub const MPLS: u16 = 0x8847;
    /// MPLS label stack whose top label is assigned by the upstream router, usually of a multicast (RFC 5332).
    pub const MPLS_UPSTREAM: u16 = 0x8848;
}

/// 48-bit MAC address.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Broadcast address, ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// All-zero address, 00:00:00:00:00:00.
    pub const ZERO: Self = Self([0; 6]);

    /// Returns `true` if the group bit is set, as in multicast and broadcast addresses.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns `true` for the broadcast address.
    #[inline]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error for text that is not six pairs of hexadecimal digits separated by `:` or `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseMacError;

impl fmt::Display for ParseMacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid MAC address: expected six pairs of hexadecimal digits, such as 02:00:00:00:00:01")
    }
}

impl std::error::Error for ParseMacError {}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(s: &str) -> Result<Self, ParseMacError> {
        let mut mac = [0; 6];
        let mut parts = s.split([':', '-']);
        for byte in &mut mac {
            let part = parts.next().ok_or(ParseMacError)?;
            // `from_str_radix` would accept a leading sign.
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(ParseMacError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() { Err(ParseMacError) } else { Ok(Self(mac)) }
    }
}

/// Ethernet II header.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EthernetHeader {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// [`ethertype`] of the payload, or the length of an 802.3 frame if below 0x600.
    pub ethertype: U16,
}

impl EthernetHeader {
    /// Returns the header of `frame` and the bytes behind it, or `None` if the frame is shorter than 14 bytes.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(frame).ok()
    }

    /// Returns the same parts as [`Self::parse`], mutable.
    #[inline]
    pub fn parse_mut(frame: &mut [u8]) -> Option<(&mut Self, &mut [u8])> {
        Self::mut_from_prefix(frame).ok()
    }
}

/// 802.1Q or 802.1ad tag without its leading EtherType: the tag control information, then the EtherType of the payload.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct VlanTag {
    /// Tag control information: priority (3 bits), drop eligible indicator (1), VLAN identifier (12).
    pub tci: U16,
    /// EtherType of the data behind the tag.
    pub ethertype: U16,
}

impl VlanTag {
    /// Returns the tag at the start of `bytes` and the bytes behind it, or `None` if `bytes` is shorter than 4 bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// Returns the VLAN identifier, 0 to 4095; 0 marks a priority tag without a VLAN.
    #[inline]
    pub fn vid(&self) -> u16 {
        self.tci.get() & 0xfff
    }

    /// Returns the priority code point, 0 to 7.
    #[inline]
    pub fn pcp(&self) -> u8 {
        (self.tci.get() >> 13) as u8
    }

    /// Returns the drop eligible indicator.
    #[inline]
    pub fn dei(&self) -> bool {
        self.tci.get() & 0x1000 != 0
    }
}

/// Payload type and VLAN tags of an Ethernet frame, at most two tags deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// EtherType behind the tags. With more than two tags, this is the EtherType of the third tag.
    pub ethertype: u16,
    /// Offset of the payload from the start of the frame in bytes: 14, 18 or 22.
    pub offset: usize,
    /// Outermost tag: its EtherType and tag control information.
    pub outer: Option<(u16, u16)>,
    /// Inner of two tags, in the same form.
    pub inner: Option<(u16, u16)>,
}

/// Parses the Ethernet header and up to two tags. Returns `None` if the frame ends inside them.
#[inline]
pub fn carried(frame: &[u8]) -> Option<Carried> {
    let (eth, mut rest) = EthernetHeader::parse(frame)?;
    let mut c = Carried { ethertype: eth.ethertype.get(), offset: HEADER_LEN, outer: None, inner: None };
    while matches!(c.ethertype, ethertype::VLAN | ethertype::QINQ) && c.inner.is_none() {
        let (tag, behind) = VlanTag::parse(rest)?;
        let seen = Some((c.ethertype, tag.tci.get()));
        if c.outer.is_none() {
            c.outer = seen;
        } else {
            c.inner = seen;
        }
        c.ethertype = tag.ethertype.get();
        c.offset += TAG_LEN;
        rest = behind;
    }
    Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_text() {
        let mac: MacAddr = "02:ab:00:CD:0e:ff".parse().unwrap();
        assert_eq!(mac.0, [2, 0xab, 0, 0xcd, 0x0e, 0xff]);
        assert_eq!(mac.to_string(), "02:ab:00:cd:0e:ff");
        assert_eq!("02-ab-00-cd-0e-ff".parse(), Ok(mac));
        for bad in
            ["", "02:ab:00:cd:0e", "02:ab:00:cd:0e:ff:01", "2:ab:00:cd:0e:ff", "+2:ab:00:cd:0e:ff", "0g:0:0:0:0:0"]
        {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad}");
        }
        assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
        assert!(!mac.is_multicast());
    }

    #[test]
    fn tags() {
        let mut f = vec![0; 12];
        f.extend([0x88, 0xa8, 0xe0, 0x64, 0x81, 0x00, 0x10, 0x0a, 0x86, 0xdd]);
        let c = carried(&f).unwrap();
        assert_eq!((c.ethertype, c.offset), (ethertype::IPV6, 22));
        assert_eq!(c.outer, Some((ethertype::QINQ, 0xe064)));
        assert_eq!(c.inner, Some((ethertype::VLAN, 0x100a)));
        let (tag, _) = VlanTag::parse(&f[14..]).unwrap();
        assert_eq!((tag.vid(), tag.pcp(), tag.dei()), (100, 7, false));
        assert!((0..22).all(|n| carried(&f[..n]).is_none()));
        f[20..22].copy_from_slice(&[0x81, 0x00]);
        assert_eq!(carried(&f).unwrap().ethertype, ethertype::VLAN);
    }
}
