//! Flow hashes for the choice among equal next hops. `xdp/flow_hash.h` computes the same ones.

use crate::bytes::{address6, be16, be32};
use bywash_fib::model::HashPolicy;
use bywash_fib::{flow_hash4, flow_hash6};
use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::proto;

/// Returns the flow hash of a valid packet, by the hash policy of its family: `hash4` or `hash6`.
pub(crate) fn flow_hash(hash4: HashPolicy, hash6: HashPolicy, data: &[u8]) -> u32 {
    let ip = &data[HEADER_LEN..];
    match (ip[0] >> 4, hash4, hash6) {
        (4, HashPolicy::L3, _) => l3_hash4(ip),
        (4, ..) => l4_hash4(ip),
        (_, _, HashPolicy::L3) => l3_hash6(ip),
        _ => l4_hash6(ip),
    }
}

/// Hashes addresses, protocol, and ports unless the packet is a fragment.
fn l4_hash4(ip: &[u8]) -> u32 {
    // Only the first fragment carries ports. Ports of fragments are ignored, so that all fragments take one next hop.
    let whole = be16(&ip[6..]) & 0x3fff == 0;
    let ports = if whole { ports(ip[9], ip.get(usize::from(ip[0] & 15) * 4..)) } else { 0 };
    flow_hash4(be32(&ip[12..]), be32(&ip[16..]), ip[9], ports)
}

fn l4_hash6(ip: &[u8]) -> u32 {
    flow_hash6(address6(&ip[8..]), address6(&ip[24..]), ip[6], ports(ip[6], ip.get(40..)))
}

/// Hashes addresses. As in Linux (ip_multipath_l3_keys, icmp_is_err), an ICMP error takes the next hop of the flow that
/// it is about: the quoted packet travelled in the other direction, so its addresses are swapped.
fn l3_hash4(ip: &[u8]) -> u32 {
    let inner = |icmp: &'_ [u8]| matches!(icmp[0], 3 | 4 | 5 | 11 | 12);
    let first = be16(&ip[6..]) & 0x1fff == 0;
    match ip.get(20..48).filter(|icmp| ip[9] == proto::ICMP && first && inner(icmp)) {
        Some(icmp) => flow_hash4(be32(&icmp[8 + 16..]), be32(&icmp[8 + 12..]), 0, 0),
        None => flow_hash4(be32(&ip[12..]), be32(&ip[16..]), 0, 0),
    }
}

/// Hashes addresses, flow label and next header (ip6_multipath_l3_keys).
fn l3_hash6(ip: &[u8]) -> u32 {
    let label = |ip: &[u8]| be32(ip) & 0xf_ffff;
    match ip.get(40..88).filter(|icmp| ip[6] == proto::ICMP6 && matches!(icmp[0], 1..=4)) {
        Some(icmp) => {
            let key = &icmp[8..];
            flow_hash6(address6(&key[24..]), address6(&key[8..]), key[6], label(key))
        }
        None => flow_hash6(address6(&ip[8..]), address6(&ip[24..]), ip[6], label(ip)),
    }
}

fn ports(proto: u8, l4: Option<&[u8]>) -> u32 {
    match (proto, l4) {
        // TCP, UDP, DCCP, SCTP and UDP-Lite headers begin with source and destination port.
        (6 | 17 | 33 | 132 | 136, Some(l4)) if l4.len() >= 4 => be32(l4),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_wire::build::Packet;
    use bywash_wire::icmp4::{Icmp4Error, build_icmp4_error};
    use bywash_wire::icmp6::{Icmp6Error, build_icmp6_error};

    fn udp(from: &str, to: &str) -> Vec<u8> {
        Packet::udp(from.parse().unwrap(), to.parse().unwrap()).payload(&[7; 100]).build_l3().unwrap()
    }

    /// An ICMP error about a server's packets takes the next hop of the client's packets: several servers may share one
    /// address, each behind another next hop.
    #[test]
    fn an_error_takes_the_way_of_its_flow() {
        let (there, back) = (udp("10.0.0.1:5", "10.9.0.1:6"), udp("10.9.0.1:6", "10.0.0.1:5"));
        let mut error = [0; 600];
        let about = Icmp4Error::FragNeeded { mtu: 1400 };
        let n = build_icmp4_error(&mut error, about, &back, "192.0.2.1".parse().unwrap(), 1).unwrap();
        assert_eq!(l3_hash4(&error[..n]), l3_hash4(&there));
        // Too short, a later fragment, or another type: its own addresses are hashed.
        let own = flow_hash4(be32(&error[12..]), be32(&error[16..]), 0, 0);
        assert_eq!(l3_hash4(&error[..47]), own);
        for (at, byte) in [(7, 1), (20, 8)] {
            let mut other = error;
            other[at] = byte;
            assert_eq!(l3_hash4(&other[..n]), own);
        }
        // Ports do not count.
        assert_eq!(l3_hash4(&there), l3_hash4(&udp("10.0.0.1:50", "10.9.0.1:6")));
        assert_ne!(l4_hash4(&there), l4_hash4(&udp("10.0.0.1:50", "10.9.0.1:6")));

        let (there, back) = (udp("[fd00::1]:5", "[fd09::1]:6"), udp("[fd09::1]:6", "[fd00::1]:5"));
        let mut error = [0; 1300];
        let about = Icmp6Error::PacketTooBig { mtu: 1400 };
        let n = build_icmp6_error(&mut error, about, &back, "fd05::1".parse().unwrap()).unwrap();
        assert_eq!(l3_hash6(&error[..n]), l3_hash6(&there));
        assert_ne!(l3_hash6(&error[..87]), l3_hash6(&there));
        let mut labelled = there.clone();
        labelled[3] ^= 1;
        assert_ne!(l3_hash6(&labelled), l3_hash6(&there));
        assert_eq!(l4_hash6(&labelled), l4_hash6(&there));
    }
}
