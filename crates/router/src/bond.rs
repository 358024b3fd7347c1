//! Bonds: the member that a packet leaves by, chosen as Linux does (`bond_xmit_hash`, drivers/net/bonding/bond_main.c):
//! the hash, modulo the number of active members, is the index in their list. `xdp/bond.h` does the same in the driver.

use bywash_wire::ethernet::{HEADER_LEN, ethertype};

/// Hash by which a bond chooses the member that a packet leaves by (`xmit_hash_policy`,
/// Documentation/networking/bonding.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum XmitHash {
    /// MAC addresses and EtherType.
    #[default]
    Layer2 = 0,
    /// IP addresses and ports, or the identifier of an ICMP query.
    Layer34 = 1,
    /// MAC addresses, EtherType and IP addresses.
    Layer23 = 2,
}

// linux/in.h, linux/icmp.h, linux/icmpv6.h
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const AH: u8 = 51;
/// Protocols whose headers begin with two ports, or with a word that is hashed in their place: TCP, UDP, DCCP, ESP,
/// SCTP, UDP-Lite (proto_ports_offset).
const PORTS_FIRST: [u8; 6] = [6, 17, 33, 50, 132, 136];
/// ICMP messages with an identifier, of both versions (icmp_has_id).
const WITH_ID: [u8; 6] = [0, 8, 13, 14, 128, 129];
/// Errors, which quote the packet that caused them (icmp_is_err, icmpv6_is_err).
const ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
const ERRORS6: [u8; 4] = [1, 2, 3, 4];
const ICMP_HEADER: usize = 8;

/// Fields of a packet that enter the hash, each as it lies in memory.
#[derive(Clone, Copy, Default)]
struct Fields {
    /// Source and destination address, XORed.
    addresses: u32,
    /// Ports, or type, code and identifier of an ICMP query; 0 if there are none.
    ends: u32,
}

impl XmitHash {
    /// Returns the hash with this number (BOND_XMIT_POLICY_*, linux/if_bonding.h); `None` for hashes that look into
    /// tunnels or at VLANs, and for unknown numbers.
    pub fn of(number: u8) -> Option<Self> {
        [Self::Layer2, Self::Layer34, Self::Layer23].into_iter().find(|hash| *hash as u8 == number)
    }

    /// Returns the hash of a frame as it is sent, but without its VLAN tag; 0 if the Ethernet header is truncated.
    pub fn hash(self, frame: &[u8]) -> u32 {
        let Some((header, ip)) = frame.split_first_chunk::<HEADER_LEN>() else { return 0 };
        let kind = u16::from_be_bytes([header[12], header[13]]);
        let link = u32::from(header[5] ^ header[11]) ^ u32::from(kind);
        let Some(fields) = (self != Self::Layer2).then(|| Fields::of(kind, ip)).flatten() else { return link };
        let first = if self == Self::Layer34 { fields.ends } else { link };
        let mut hash = first ^ fields.addresses;
        hash ^= hash >> 16;
        hash ^= hash >> 8;
        // Drops the lowest bit, because ports are often even.
        if self == Self::Layer34 { hash >> 1 } else { hash }
    }
}

impl Fields {
    /// Returns the fields of a packet of this EtherType; for an ICMP error, those of the packet that it quotes. `None`
    /// if a header is truncated.
    fn of(kind: u16, ip: &[u8]) -> Option<Self> {
        let (addresses, proto, rest) = network(kind, ip)?;
        let (Some(proto @ (ICMP | ICMPV6)), Some(header)) = (proto, rest.get(..ICMP_HEADER)) else {
            return Some(Self { addresses, ends: proto.map_or(0, |proto| ports(proto, rest)) });
        };
        let errors = if proto == ICMP { &ERRORS[..] } else { &ERRORS6 };
        if errors.contains(&header[0]) {
            let (addresses, proto, rest) = network(kind, &rest[ICMP_HEADER..])?;
            return Some(Self { addresses, ends: proto.map_or(0, |proto| ports(proto, rest)) });
        }
        if !WITH_ID.contains(&header[0]) {
            return Some(Self { addresses, ends: 0 });
        }
        // Identifier 0 counts as 1 (skb_flow_get_icmp_tci), in host order.
        let id = u16::from_be_bytes([header[4], header[5]]).max(1).to_ne_bytes();
        Some(Self { addresses, ends: u32::from_ne_bytes([header[0], header[1], id[0], id[1]]) })
    }
}

/// Returns the XORed addresses of a packet, its protocol, and the bytes after its header; no protocol for IPv4
/// fragments. `None` if the header is truncated.
fn network(kind: u16, ip: &[u8]) -> Option<(u32, Option<u8>, &[u8])> {
    let word = |at: usize| ip[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
    match kind {
        ethertype::IPV4 if ip.len() >= 20 => {
            let end = usize::from(u16::from_be_bytes([ip[2], ip[3]])).min(ip.len());
            let rest = ip.get(usize::from(ip[0] & 0xf) * 4..end).unwrap_or_default();
            let whole = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff == 0;
            Some((word(12) ^ word(16), whole.then_some(ip[9]), rest))
        }
        ethertype::IPV6 if ip.len() >= 40 => {
            let end = (usize::from(u16::from_be_bytes([ip[4], ip[5]])) + 40).min(ip.len());
            let addresses = (8..40).step_by(4).map(word).fold(0, |all, word| all ^ word);
            Some((addresses, Some(ip[6]), &ip[40..end]))
        }
        _ => None,
    }
}

/// Returns the ports of a transport header, as they lie in memory; 0 if there are none (skb_flow_get_ports).
fn ports(proto: u8, header: &[u8]) -> u32 {
    let at = match proto {
        AH => 4,
        proto if PORTS_FIRST.contains(&proto) => 0,
        _ => return 0,
    };
    header.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |ports| u32::from_ne_bytes(*ports))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP4: [u8; 28] = [
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 1, 2, 10, 0, 2, 3, // the IP header
        0x30, 0x39, 0, 53, 0, 8, 0, 0,
    ];

    fn frame(kind: u16, ip: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 9][..], &[2, 0, 0, 0, 0, 7], &kind.to_be_bytes(), ip].concat()
    }

    /// Returns the three hashes of a frame.
    fn hashes(frame: &[u8]) -> [u32; 3] {
        [XmitHash::Layer2, XmitHash::Layer34, XmitHash::Layer23].map(|hash| hash.hash(frame))
    }

    /// Folds by the kernel's own steps (bond_ip_hash).
    fn fold(hash: u32) -> u32 {
        let hash = hash ^ hash >> 16;
        hash ^ hash >> 8
    }

    #[test]
    fn hashes_equal_the_kernels() {
        let (ports, addresses) = (0x3500_3930, 0x0201_000a ^ 0x0302_000a);
        let link = 9 ^ 7 ^ 0x0800;
        let expected = [link, fold(ports ^ addresses) >> 1, fold(link ^ addresses)];
        assert_eq!(hashes(&frame(0x0800, &UDP4)), expected);
        // Padding is not part of the packet: a truncated transport header has no ports.
        let mut short = UDP4;
        short[3] = 22;
        let padded = [&frame(0x0800, &short)[..], &[0; 20]].concat();
        assert_eq!(hashes(&padded)[1], fold(addresses) >> 1);
        for fragment in [[0x20, 0], [0, 1]] {
            let mut ip = UDP4;
            ip[6..8].copy_from_slice(&fragment);
            assert_eq!(hashes(&frame(0x0800, &ip))[1], fold(addresses) >> 1);
        }
        assert_eq!(hashes(&frame(0x0806, &UDP4)), [9 ^ 7 ^ 0x0806; 3], "not IP");
        assert_eq!(hashes(&frame(0x0800, &UDP4[..19])), [link; 3], "a truncated header");
        assert_eq!(hashes(&UDP4[..13]), [0; 3]);
    }

    #[test]
    fn queries_of_icmp_count_their_identifier_and_errors_their_cause() {
        let addresses = 0x0201_000a ^ 0x0302_000a;
        let mut icmp = UDP4;
        icmp[9] = ICMP;
        let mut of = |header: [u8; 8]| {
            icmp[20..].copy_from_slice(&header);
            hashes(&frame(0x0800, &icmp))[1]
        };
        assert_eq!(of([8, 0, 0, 0, 0x12, 0x34, 0, 1]), fold(0x1234_0008 ^ addresses) >> 1);
        assert_eq!(of([8, 0, 0, 0, 0, 0, 0, 1]), fold(0x0001_0008 ^ addresses) >> 1);
        assert_eq!(of([9, 0, 0, 0, 0x12, 0x34, 0, 1]), fold(addresses) >> 1, "without an identifier");
        // An error about the UDP packet, from another router.
        let mut error = [&[0x45, 0, 0, 56, 0, 0, 0, 0, 64, ICMP, 0, 0, 10, 9, 9, 9, 10, 0, 1, 2][..], &[3, 3]].concat();
        error.extend([0; 6]);
        error.extend(UDP4);
        let [_, by_ports, by_addresses] = hashes(&frame(0x0800, &UDP4));
        assert_eq!(hashes(&frame(0x0800, &error))[1..], [by_ports, by_addresses]);
        let cut = &error[..error.len() - 9];
        assert_eq!(hashes(&frame(0x0800, cut))[1], 9 ^ 7 ^ 0x0800, "the quoted header is not whole");
    }

    #[test]
    fn both_halves_of_ipv6_addresses_count() {
        let mut ip = [0u8; 48];
        (ip[0], ip[5], ip[6]) = (0x60, 8, 17);
        (8..40).for_each(|at| ip[at] = at as u8 * 3);
        ip[40..44].copy_from_slice(&[1, 2, 3, 4]);
        let half = |at: usize| u64::from_ne_bytes(*ip[at..].first_chunk().unwrap());
        let one = |at: usize| half(at) ^ half(at + 8);
        let folded = |of: u64| (of ^ of >> 32) as u32;
        let addresses = folded(one(8)) ^ folded(one(24));
        let expected = [fold(0x0403_0201 ^ addresses) >> 1, fold(9 ^ 7 ^ 0x86dd ^ addresses)];
        assert_eq!(hashes(&frame(0x86dd, &ip))[1..], expected);
        ip[6] = 44;
        assert_eq!(hashes(&frame(0x86dd, &ip))[1], fold(addresses) >> 1, "a fragment");
    }

    #[test]
    fn other_hashes_are_not_followed() {
        let known: Vec<u8> = (0..=255).filter(|number| XmitHash::of(*number).is_some()).collect();
        assert_eq!(known, [0, 1, 2]);
    }
}
