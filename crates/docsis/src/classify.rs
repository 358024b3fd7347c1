//! Classification of a modem's packets to flows, and filters, by rules on the IP header and the ports.

use bywash_wire::proto;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Packet fields that rules match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// IP version, 4 or 6; 0 if not IP, which only rules without conditions match.
    pub version: u8,
    /// DSCP: the upper six bits of the type of service or traffic class.
    pub dscp: u8,
    /// Protocol; for IPv6, the next header.
    pub proto: u8,
    /// Set if the ports are known.
    pub has_ports: bool,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Source address; IPv4 addresses are in the lower 32 bits.
    pub source: u128,
    /// Destination address; IPv4 addresses are in the lower 32 bits.
    pub destination: u128,
}

impl Key {
    /// Extracts the key of an Ethernet frame, skipping up to two VLAN tags. Truncated headers count as absent. Ports
    /// are taken from unfragmented packets and first fragments only, and not after IPv6 extension headers.
    #[inline]
    pub fn of(frame: &[u8]) -> Self {
        let mut at = 12;
        let mut kind = two(frame, at);
        for _ in 0..2 {
            if !matches!(kind, Some(0x8100 | 0x88a8)) {
                break;
            }
            at += 4;
            kind = two(frame, at);
        }
        let l3 = frame.get(at + 2..).unwrap_or_default();
        match kind {
            Some(0x0800) => Self::ipv4(l3),
            Some(0x86dd) => Self::ipv6(l3),
            _ => None,
        }
        .unwrap_or_default()
    }

    #[inline]
    fn ipv4(l3: &[u8]) -> Option<Self> {
        let head: &[u8; 20] = l3.first_chunk()?;
        let header_len = usize::from(head[0] & 0xf) * 4;
        if head[0] >> 4 != 4 || header_len < 20 {
            return None;
        }
        let first = u16::from_be_bytes([head[6], head[7]]) & 0x1fff == 0;
        let key = Self {
            version: 4,
            dscp: head[1] >> 2,
            proto: head[9],
            source: u128::from(u32::from_be_bytes([head[12], head[13], head[14], head[15]])),
            destination: u128::from(u32::from_be_bytes([head[16], head[17], head[18], head[19]])),
            ..Self::default()
        };
        Some(if first { key.with_ports(l3.get(header_len..)) } else { key })
    }

    #[inline]
    fn ipv6(l3: &[u8]) -> Option<Self> {
        let head: &[u8; 40] = l3.first_chunk()?;
        if head[0] >> 4 != 6 {
            return None;
        }
        let key = Self {
            version: 6,
            dscp: (u16::from_be_bytes([head[0], head[1]]) >> 6 & 0x3f) as u8,
            proto: head[6],
            source: u128::from_be_bytes(*head[8..].first_chunk()?),
            destination: u128::from_be_bytes(*head[24..].first_chunk()?),
            ..Self::default()
        };
        Some(key.with_ports(l3.get(40..)))
    }

    #[inline]
    fn with_ports(self, l4: Option<&[u8]>) -> Self {
        match (self.proto, l4.and_then(|l4| l4.first_chunk::<4>())) {
            (proto::TCP | proto::UDP, Some(&[a, b, c, d])) => Self {
                has_ports: true,
                source_port: u16::from_be_bytes([a, b]),
                destination_port: u16::from_be_bytes([c, d]),
                ..self
            },
            _ => self,
        }
    }
}

#[inline]
fn two(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Conditions on the source or the destination address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct End {
    /// IP version; 0 matches any.
    version: u8,
    mask: u128,
    value: u128,
}

impl End {
    fn new(addr: IpAddr, len: u8) -> Self {
        let (version, bits, value) = match addr {
            IpAddr::V4(a) => (4, 32, u128::from(a.to_bits())),
            IpAddr::V6(a) => (6, 128, a.to_bits()),
        };
        let len = u32::from(len).min(bits);
        let ones = if bits == 128 { u128::MAX } else { (1 << bits) - 1 };
        let mask = if len == 0 { 0 } else { ones & ones << (bits - len) };
        Self { version, mask, value: value & mask }
    }

    #[inline]
    fn admits(&self, version: u8, addr: u128) -> bool {
        (self.version == 0 || self.version == version) && addr & self.mask == self.value
    }
}

/// Rule: a set of conditions that all must hold. A rule without conditions matches every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    source: End,
    destination: End,
    proto: Option<u8>,
    source_port: Option<RangeInclusive<u16>>,
    destination_port: Option<RangeInclusive<u16>>,
    /// Bit mask of the matching DSCPs. `None` matches any.
    dscp: Option<u64>,
}

impl Rule {
    /// Requires a source address in this prefix.
    pub fn source(mut self, addr: IpAddr, len: u8) -> Self {
        self.source = End::new(addr, len);
        self
    }

    /// Requires a destination address in this prefix.
    pub fn destination(mut self, addr: IpAddr, len: u8) -> Self {
        self.destination = End::new(addr, len);
        self
    }

    /// Requires this protocol.
    pub fn proto(mut self, proto: u8) -> Self {
        self.proto = Some(proto);
        self
    }

    /// Requires a source port in this range.
    pub fn source_port(mut self, ports: RangeInclusive<u16>) -> Self {
        self.source_port = Some(ports);
        self
    }

    /// Requires a destination port in this range.
    pub fn destination_port(mut self, ports: RangeInclusive<u16>) -> Self {
        self.destination_port = Some(ports);
        self
    }

    /// Requires one of these code points; values from 64 on are ignored.
    pub fn dscp(mut self, points: impl IntoIterator<Item = u8>) -> Self {
        self.dscp = Some(points.into_iter().filter(|p| *p < 64).fold(0, |set, p| set | 1 << p));
        self
    }

    /// Returns whether a packet meets all conditions.
    #[inline]
    pub fn admits(&self, key: &Key) -> bool {
        let port = |range: &Option<RangeInclusive<u16>>, port| match range {
            None => true,
            Some(range) => key.has_ports && range.contains(&port),
        };
        self.dscp.is_none_or(|set| key.version != 0 && set >> key.dscp & 1 == 1)
            && self.proto.is_none_or(|proto| key.version != 0 && proto == key.proto)
            && self.source.admits(key.version, key.source)
            && self.destination.admits(key.version, key.destination)
            && port(&self.source_port, key.source_port)
            && port(&self.destination_port, key.destination_port)
    }
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Assigns the packet to the modem's flow with this index.
    Flow(u32),
    /// Drops the packet.
    Drop,
}

/// Ordered rules: the first one that matches decides. Packets without a match belong to flow 0.
#[derive(Clone, Debug, Default)]
pub struct Rules(pub Vec<(Rule, Verdict)>);

impl Rules {
    /// Returns the verdict for a packet.
    #[inline]
    pub fn decide(&self, frame: &[u8]) -> Verdict {
        if self.0.is_empty() {
            return Verdict::Flow(0);
        }
        let key = Key::of(frame);
        self.0.iter().find(|(rule, _)| rule.admits(&key)).map_or(Verdict::Flow(0), |(_, verdict)| *verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_wire::build::Packet;
    use proptest::prelude::*;

    fn udp(src: &str, dst: &str) -> Vec<u8> {
        Packet::udp(src.parse().unwrap(), dst.parse().unwrap()).tos(46 << 2).size(128).build().unwrap()
    }

    #[test]
    fn keys_of_packets() {
        let key = Key::of(&udp("10.0.0.1:5", "10.0.0.2:6"));
        let expected = Key {
            version: 4,
            dscp: 46,
            proto: 17,
            has_ports: true,
            source_port: 5,
            destination_port: 6,
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
        };
        assert_eq!(key, expected);
        let frame = udp("[fd00::1]:5", "[fd00::2]:6");
        let key = Key::of(&frame);
        assert_eq!((key.version, key.dscp, key.destination_port), (6, 46, 6));
        assert_eq!(key.source, 0xfd00 << 112 | 1);
        let mut tagged = udp("10.0.0.1:5", "10.0.0.2:6");
        tagged.splice(12..12, [0x81, 0, 0, 1]);
        assert_eq!(Key::of(&tagged), expected);
        let mut fragment = udp("10.0.0.1:5", "10.0.0.2:6");
        fragment[20] = 0x20;
        assert!(Key::of(&fragment).has_ports, "the first fragment");
        fragment[21] = 1;
        assert!(!Key::of(&fragment).has_ports);
        let mut arp = udp("10.0.0.1:5", "10.0.0.2:6");
        arp[13] = 6;
        assert_eq!(Key::of(&arp), Key::default());
    }

    #[test]
    fn each_condition_decides() {
        let net = |text: &str| -> IpAddr { text.parse().unwrap() };
        let frame = udp("10.0.0.1:5", "10.0.0.2:6");
        let rule = Rule::default;
        for (rule, admits) in [
            (rule(), true),
            (rule().source(net("10.0.0.0"), 8), true),
            (rule().source(net("11.0.0.0"), 8), false),
            (rule().source(net("10.0.0.1"), 32), true),
            (rule().source(net("10.0.0.3"), 31), false),
            (rule().source(net("::"), 0), false),
            (rule().source(net("0.0.0.0"), 0), true),
            (rule().destination(net("10.0.0.2"), 32), true),
            (rule().destination(net("fd00::"), 8), false),
            (rule().proto(17), true),
            (rule().proto(6), false),
            (rule().source_port(5..=5), true),
            (rule().source_port(6..=9), false),
            (rule().destination_port(0..=6), true),
            (rule().destination_port(7..=7), false),
            (rule().dscp([46]), true),
            (rule().dscp([0, 45, 47, 200]), false),
        ] {
            assert_eq!(rule.admits(&Key::of(&frame)), admits, "{rule:?}");
        }
        let rules = Rules(vec![(rule().proto(6), Verdict::Drop), (rule().dscp([46]), Verdict::Flow(3))]);
        assert_eq!(rules.decide(&frame), Verdict::Flow(3));
        assert_eq!(Rules::default().decide(&frame), Verdict::Flow(0));
        assert_eq!(rules.decide(&[0; 14]), Verdict::Flow(0));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_key(frame in proptest::collection::vec(any::<u8>(), 0..120), ip in any::<bool>()) {
            let mut frame = frame;
            if ip && frame.len() > 14 {
                let kind: [u8; 2] = if frame[14] & 1 == 0 { [8, 0] } else { [0x86, 0xdd] };
                frame[12..14].copy_from_slice(&kind);
            }
            let _ = Key::of(&frame);
        }
    }
}
