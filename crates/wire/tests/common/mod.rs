//! Properties that hold for arbitrary bytes, shared by the garbage test, the corpus replay and the fuzz targets. Each
//! function takes arbitrary input and panics if a property is violated.

use bywash_wire::checksum::Sum;
use bywash_wire::icmp4::{Icmp4Error, build_icmp4_error, may_answer4};
use bywash_wire::icmp6::{Icmp6Error, build_icmp6_error, may_answer6};
use bywash_wire::partial::{self, State, transport_checksum_ok};
use bywash_wire::{ethernet, frag, ipv4, ipv6, l4};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Property check over arbitrary bytes.
pub type Target = fn(&[u8]);

/// Fuzz targets by name, which is also the name of their corpus folder.
pub const TARGETS: [(&str, Target); 5] =
    [("ipv4", ipv4), ("ipv6", ipv6), ("partial", partial), ("icmp", icmp), ("frag", frag)];

/// Checks the Ethernet and IPv4 header validation and the TTL decrement.
pub fn ipv4(data: &[u8]) {
    if let Some(at) = ethernet::carried(data) {
        assert!(at.offset <= data.len());
    }
    let Ok(info) = ipv4::check(data) else { return };
    assert!(info.header_len >= 20 && u16::from(info.header_len) <= info.total_len);
    assert!(usize::from(info.total_len) <= data.len());
    assert!(Sum::of(&data[..usize::from(info.header_len)]).is_valid());
    let payload = info.payload(data);
    assert_eq!(payload.len(), usize::from(info.total_len) - usize::from(info.header_len));
    if l4::flow_ports(info.proto, payload).is_some() {
        assert!(payload.len() >= 4);
    }
    let mut l3 = data.to_vec();
    let forwarded = ipv4::decrement_ttl(l3.first_chunk_mut().unwrap());
    assert_eq!(forwarded, info.ttl > 1);
    if forwarded {
        assert_eq!(ipv4::check(&l3).unwrap(), ipv4::Ipv4Info { ttl: info.ttl - 1, ..info });
    } else {
        assert_eq!(l3, data);
    }
}

/// Checks the IPv6 header validation, the extension header walk and the hop limit decrement.
pub fn ipv6(data: &[u8]) {
    let Ok(info) = ipv6::check(data) else { return };
    assert!(info.total_len as usize <= data.len());
    if let Ok(upper) = ipv6::walk(data, &info) {
        assert!((40..=info.total_len as usize).contains(&upper.offset));
        assert!(upper.later_fragment || !ipv6::is_extension(upper.proto));
        assert!(upper.fragment || !upper.later_fragment);
    }
    let mut l3 = data.to_vec();
    assert_eq!(ipv6::decrement_hop_limit(l3.first_chunk_mut().unwrap()), info.hop_limit > 1);
}

/// Checks that completion changes only partial checksums, changes only the checksum field, leaves it correct, and never
/// changes a correct checksum.
pub fn partial(data: &[u8]) {
    let mut l3 = data.to_vec();
    let before = partial::state(data);
    let was_ok = transport_checksum_ok(data);
    assert_eq!(partial::complete(&mut l3), before == State::Partial);
    let changed: Vec<usize> = (0..data.len()).filter(|i| l3[*i] != data[*i]).collect();
    if before == State::Partial {
        assert!(transport_checksum_ok(&l3));
        assert!(changed.len() <= 2 && changed.last().zip(changed.first()).is_none_or(|(b, a)| b - a < 2));
    }
    if before != State::Partial || was_ok {
        assert!(changed.is_empty());
    }
}

/// Checks that ICMP errors about any input are valid, within their length limits, and never answer an error.
pub fn icmp(data: &[u8]) {
    let mut out = [0; 1400];
    for kind in [
        Icmp4Error::TimeExceeded,
        Icmp4Error::FragNeeded { mtu: 1400 },
        Icmp4Error::Redirect { gateway: Ipv4Addr::new(10, 0, 0, 1) },
    ] {
        if let Some(n) = build_icmp4_error(&mut out, kind, data, Ipv4Addr::new(10, 0, 0, 9), 1) {
            assert!((48..=576).contains(&n));
            assert_eq!(usize::from(ipv4::check(&out[..n]).unwrap().total_len), n);
            assert!(transport_checksum_ok(&out[..n]));
            assert!(!may_answer4(&out[..n], false));
            assert_eq!(out[28..n], data[..n - 28]);
        } else {
            assert!(!may_answer4(data, false));
        }
    }
    for kind in [Icmp6Error::HopLimitExceeded, Icmp6Error::PacketTooBig { mtu: 1280 }] {
        if let Some(n) = build_icmp6_error(&mut out, kind, data, Ipv6Addr::LOCALHOST) {
            assert!((88..=1280).contains(&n));
            assert_eq!(ipv6::check(&out[..n]).unwrap().total_len as usize, n);
            assert!(transport_checksum_ok(&out[..n]));
            assert!(!may_answer6(&out[..n], false, kind));
            assert_eq!(out[48..n], data[..n - 48]);
        } else {
            assert!(!may_answer6(data, false, kind));
        }
    }
}

/// Checks that the fragments join to the original. The first two bytes of the input choose the MTU.
pub fn frag(data: &[u8]) {
    let Some(([a, b], l3)) = data.split_first_chunk() else { return };
    let mtu = usize::from(u16::from_be_bytes([*a, *b])) % 2048;
    let Ok(plan) = frag::plan(l3, mtu) else { return };
    let info = ipv4::check(l3).unwrap();
    let mut joined = Vec::new();
    let mut out = [0; 2048];
    for i in 0..plan.count() {
        let n = plan.write(i, l3, &mut out).unwrap();
        let part = ipv4::check(&out[..n]).unwrap();
        assert!(n <= mtu && usize::from(part.total_len) == n);
        let base = usize::from(info.fragment & ipv4::OFFSET_MASK) * 8;
        assert_eq!(usize::from(part.fragment & ipv4::OFFSET_MASK) * 8, base + joined.len());
        let more = i + 1 < plan.count() || info.fragment & ipv4::MF != 0;
        assert_eq!(part.fragment & ipv4::MF != 0, more);
        joined.extend_from_slice(part.payload(&out[..n]));
    }
    assert_eq!(joined, info.payload(l3));
    assert_eq!(plan.write(plan.count(), l3, &mut out), None);
}
