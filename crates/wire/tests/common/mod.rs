//! Properties that hold for arbitrary bytes, shared by the garbage test, the corpus replay and the fuzz targets. Each
//! function takes arbitrary input and panics if a property is violated.

use bywash_wire::checksum::{Sum, checksum, update_u16, update_u32};
use bywash_wire::icmp4::{Icmp4Error, build_icmp4_error, may_answer4};
use bywash_wire::icmp6::{Icmp6Error, build_icmp6_error, may_answer6};
use bywash_wire::partial::{self, State, transport_checksum_ok};
use bywash_wire::{ethernet, frag, hex, ipv4, ipv6, l4, summary};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Property check over arbitrary bytes.
pub type Target = fn(&[u8]);

/// Fuzz targets by name, which is also the name of their corpus folder.
pub const TARGETS: [(&str, Target); 6] =
    [("views", views), ("ipv4", ipv4), ("ipv6", ipv6), ("partial", partial), ("icmp", icmp), ("frag", frag)];

/// Gives the input to a check, and again with a correct IPv4 header checksum, which random input seldom has.
fn with_checksum(l3: &[u8], check: Target) {
    check(l3);
    let mut mended = l3.to_vec();
    if ipv4::fill_checksum(&mut mended) && mended != l3 {
        check(&mended);
    }
}

/// Checks the Ethernet, tag and transport views, the one-line summary, addresses and hex digits as text, and that
/// checksums are the same however they are computed.
pub fn views(data: &[u8]) {
    let carried = ethernet::carried(data);
    assert!(carried.is_none() || data.len() >= ethernet::HEADER_LEN);
    if let Some(at) = carried {
        assert!((ethernet::HEADER_LEN..=data.len()).contains(&at.offset), "{at:?}");
    }
    if let Some((header, rest)) = ethernet::EthernetHeader::parse(data) {
        assert_eq!(rest.len() + ethernet::HEADER_LEN, data.len());
        assert_eq!(header.dst.to_string().parse(), Ok(header.dst));
        assert!(header.dst.is_multicast() || !header.dst.is_broadcast());
    }
    if let Some((tag, rest)) = ethernet::VlanTag::parse(data) {
        assert_eq!(rest.len() + ethernet::TAG_LEN, data.len());
        assert_eq!(u16::from(tag.pcp()) << 13 | u16::from(tag.dei()) << 12 | tag.vid(), tag.tci.get());
    }
    let rest =
        |found: Option<usize>, len| assert_eq!(found.map(|rest| rest + len), (data.len() >= len).then_some(data.len()));
    rest(l4::UdpHeader::parse(data).map(|(_, rest)| rest.len()), 8);
    rest(l4::TcpHeader::parse(data).map(|(_, rest)| rest.len()), 20);
    rest(l4::IcmpHeader::parse(data).map(|(_, rest)| rest.len()), 8);
    assert!(!summary::line(data).contains(|c: char| c.is_control()));

    let text = String::from_utf8_lossy(data);
    if let Ok(mac) = text.parse::<ethernet::MacAddr>() {
        assert_eq!(mac.to_string(), text.to_ascii_lowercase().replace('-', ":"));
    }
    if let Ok(bytes) = hex::decode(&text) {
        assert_eq!(hex::decode(&hex::encode(&bytes)), Ok(bytes));
    }

    let words = data.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u64::from(*b)));
    let sum = words.sum::<u64>();
    let folded = |sum: u64| (sum & 0xffff) + (sum >> 16);
    let naive = !(folded(folded(folded(sum))) as u16);
    assert_eq!(checksum(data), naive);
    let (head, tail) = data.split_at(data.len() / 2);
    let tail = Sum::of(tail);
    let whole = Sum::of(head) + if head.len().is_multiple_of(2) { tail } else { tail.at_odd_offset() };
    assert_eq!(whole.checksum(), naive);
    // An updated checksum stays correct. That of nothing but zeros has two forms, and no header is.
    if let Some((new, old)) = data.split_first_chunk::<4>()
        && let Some(was) = old.first_chunk::<4>()
    {
        let mut changed = old.to_vec();
        changed[..4].copy_from_slice(new);
        if changed.iter().all(|byte| *byte == 0) {
            return;
        }
        let (was, new) = (u32::from_be_bytes(*was), u32::from_be_bytes(*new));
        let is = |sum: u16| (Sum::of(&changed) + Sum::of_u16(sum)).is_valid();
        assert!(is(update_u32(checksum(old), was, new)));
        let by_halves = update_u16(checksum(old), (was >> 16) as u16, (new >> 16) as u16);
        assert!(is(update_u16(by_halves, was as u16, new as u16)));
    }
}

/// Checks the IPv4 header validation and the TTL decrement.
pub fn ipv4(data: &[u8]) {
    with_checksum(data, ipv4_header);
}

fn ipv4_header(data: &[u8]) {
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
    with_checksum(data, partial_of);
}

fn partial_of(data: &[u8]) {
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
    with_checksum(data, icmp_of);
}

fn icmp_of(data: &[u8]) {
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
    fragments(l3, mtu);
    let mut mended = l3.to_vec();
    if ipv4::fill_checksum(&mut mended) {
        fragments(&mended, mtu);
    }
}

fn fragments(l3: &[u8], mtu: usize) {
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
