//! Checks of built packets by the crate's own parsers and by etherparse.

use bywash_wire::build::{BuildError, Packet};
use bywash_wire::ethernet::{self, ethertype};
use bywash_wire::partial::transport_checksum_ok;
use bywash_wire::{ipv4, ipv6, l4, proto};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};

fn addrs(v6: bool, a: u32, b: u32) -> (IpAddr, IpAddr) {
    if v6 {
        let v6 = |x: u32| IpAddr::from((0xfd00u128 << 112 | u128::from(x)).to_be_bytes());
        (v6(a), v6(b))
    } else {
        (IpAddr::from(a.to_be_bytes()), IpAddr::from(b.to_be_bytes()))
    }
}

proptest! {
    #[test]
    fn etherparse_agrees(
        v6: bool, kind in 0..3, a: u32, b: u32, sport: u16, dport: u16, vlan in proptest::option::of(0u16..4095),
        ttl: u8, tos: u8, payload in proptest::collection::vec(any::<u8>(), 0..200), extra in proptest::option::of(0usize..1300),
    ) {
        let (src, dst) = addrs(v6, a, b);
        let (s, d) = (SocketAddr::new(src, sport), SocketAddr::new(dst, dport));
        let mut p = match kind { 0 => Packet::udp(s, d), 1 => Packet::tcp(s, d), _ => Packet::echo(src, dst, sport, dport) };
        p = p.ttl(ttl).tos(tos).payload(&payload);
        if let Some(tci) = vlan { p = p.vlan(tci) }
        let least = p.frame_len().unwrap();
        if let Some(extra) = extra { p = p.size(least + 4 + extra) }
        let frame = p.build().unwrap();
        prop_assert_eq!(frame.len(), least + extra.unwrap_or(0));

        let seen = SlicedPacket::from_ethernet(&frame).unwrap();
        prop_assert_eq!(seen.link_exts.len(), usize::from(vlan.is_some()));
        let data_len = payload.len() + extra.unwrap_or(0);
        let (ttl_seen, ip_payload) = match seen.net.unwrap() {
            NetSlice::Ipv4(ip) => {
                let h = ip.header().to_header();
                prop_assert_eq!(h.calc_header_checksum(), h.header_checksum);
                prop_assert_eq!((IpAddr::from(h.source), IpAddr::from(h.destination)), (src, dst));
                (h.time_to_live, ip.payload().payload)
            }
            NetSlice::Ipv6(ip) => {
                let h = ip.header().to_header();
                prop_assert_eq!((IpAddr::from(h.source), IpAddr::from(h.destination)), (src, dst));
                prop_assert_eq!(h.traffic_class, tos);
                (h.hop_limit, ip.payload().payload)
            }
            NetSlice::Arp(_) => unreachable!(),
        };
        prop_assert_eq!(ttl_seen, ttl);
        match seen.transport.unwrap() {
            TransportSlice::Udp(u) => {
                let h = u.to_header();
                let want = match (src, dst) {
                    (IpAddr::V4(s), IpAddr::V4(d)) => h.calc_checksum_ipv4_raw(s.octets(), d.octets(), u.payload()).unwrap(),
                    (IpAddr::V6(s), IpAddr::V6(d)) => h.calc_checksum_ipv6_raw(s.octets(), d.octets(), u.payload()).unwrap(),
                    _ => unreachable!(),
                };
                prop_assert_eq!((h.source_port, h.destination_port, h.checksum), (sport, dport, want));
                prop_assert_eq!(u.payload().len(), data_len);
                prop_assert_eq!(&u.payload()[..payload.len()], &payload[..]);
            }
            TransportSlice::Tcp(t) => {
                let h = t.to_header();
                let want = match (src, dst) {
                    (IpAddr::V4(s), IpAddr::V4(d)) => h.calc_checksum_ipv4_raw(s.octets(), d.octets(), t.payload()).unwrap(),
                    (IpAddr::V6(s), IpAddr::V6(d)) => h.calc_checksum_ipv6_raw(s.octets(), d.octets(), t.payload()).unwrap(),
                    _ => unreachable!(),
                };
                prop_assert_eq!((h.source_port, h.destination_port, h.checksum), (sport, dport, want));
                prop_assert_eq!(t.payload().len(), data_len);
                prop_assert!(h.ack);
            }
            TransportSlice::Icmpv4(i) => {
                let want = i.header().icmp_type.calc_checksum(i.payload());
                prop_assert_eq!(i.header().checksum, want);
            }
            TransportSlice::Icmpv6(i) => {
                let (IpAddr::V6(s), IpAddr::V6(d)) = (src, dst) else { unreachable!() };
                prop_assert!(i.is_checksum_valid(s.octets(), d.octets()));
            }
            TransportSlice::Igmp(_) => unreachable!(),
        }

        // Check the same frame with this crate's own parsers.
        let at = ethernet::carried(&frame).unwrap();
        prop_assert_eq!(at.ethertype, if v6 { ethertype::IPV6 } else { ethertype::IPV4 });
        prop_assert_eq!(at.outer.map(|t| t.1), vlan);
        let l3 = &frame[at.offset..];
        prop_assert!(transport_checksum_ok(l3));
        let (protocol, payload_seen) = if v6 {
            let (info, upper) = ipv6::upper(l3).unwrap();
            prop_assert_eq!(info.total_len as usize, l3.len());
            (upper.proto, &l3[upper.offset..])
        } else {
            let info = ipv4::check(l3).unwrap();
            prop_assert_eq!(usize::from(info.total_len), l3.len());
            (info.proto, info.payload(l3))
        };
        prop_assert_eq!(payload_seen, ip_payload);
        let ports = if kind == 2 { None } else { Some((sport, dport)) };
        prop_assert_eq!(l4::flow_ports(protocol, payload_seen), ports);
    }
}

#[test]
fn sizes_count_the_fcs() {
    let udp = |v6: bool| {
        let (s, d) = addrs(v6, 1, 2);
        Packet::udp(SocketAddr::new(s, 1), SocketAddr::new(d, 2))
    };
    for size in [64, 128, 256, 512, 1024, 1280, 1518] {
        assert_eq!(udp(false).size(size).build().unwrap().len(), size - 4);
        assert_eq!(udp(false).size(size).vlan(5).build().unwrap().len(), size - 4);
    }
    assert_eq!(udp(true).size(64).build(), Err(BuildError::Size { minimum: 66 }));
    assert_eq!(udp(false).size(0).build(), Err(BuildError::Size { minimum: 46 }));
    assert_eq!(udp(false).size(70_000).build(), Err(BuildError::TooLong));
    assert_eq!(udp(false).ip_options(&[1, 1, 1]).build(), Err(BuildError::Options));
    assert_eq!(udp(true).ip_options(&[1, 1, 1, 1]).build(), Err(BuildError::Options));
    assert_eq!(udp(false).size(64).write(&mut [0; 59]), Err(BuildError::Room { needed: 60 }));
    let mixed = Packet::echo(addrs(false, 1, 2).0, addrs(true, 1, 2).1, 0, 0);
    assert_eq!(mixed.build(), Err(BuildError::Families));
}

#[test]
fn largest_packets() {
    let payload = vec![0xff; 65_535];
    let (s, d) = addrs(true, 1, 2);
    let p = Packet::udp(SocketAddr::new(s, 1), SocketAddr::new(d, 2));
    let l3 = p.clone().payload(&payload[..65_527]).build_l3().unwrap();
    assert!(transport_checksum_ok(&l3));
    assert_eq!(p.payload(&payload[..65_528]).build_l3(), Err(BuildError::TooLong));
}

#[test]
fn echo_reply_and_tcp_fields() {
    let (s, d) = addrs(false, 1, 2);
    let l3 = Packet::echo(s, d, 7, 9).reply().build_l3().unwrap();
    assert_eq!((l3[9], l3[20], &l3[24..28]), (proto::ICMP, 0, &[0, 7, 0, 9][..]));
    let l3 = Packet::tcp(SocketAddr::new(s, 1), SocketAddr::new(d, 2))
        .tcp_fields(0x01020304, 0x05060708, l4::tcp_flags::SYN)
        .build_l3()
        .unwrap();
    let (tcp, _) = l4::TcpHeader::parse(&l3[20..]).unwrap();
    assert_eq!((tcp.seq.get(), tcp.ack.get(), tcp.flags), (0x01020304, 0x05060708, 2));
    assert!(transport_checksum_ok(&l3));
}

/// One payload word in 65,536 makes the checksum zero: UDP must send it as 0xffff, TCP as zero.
#[test]
fn a_sum_of_zero() {
    let sums = |v6: bool, tcp: bool| -> Vec<u16> {
        let (s, d) = addrs(v6, 1, 2);
        let (s, d) = (SocketAddr::new(s, 1), SocketAddr::new(d, 2));
        let at = if v6 { 40 } else { 20 } + if tcp { 16 } else { 6 };
        let sum = |word: u16| {
            let p = if tcp { Packet::tcp(s, d) } else { Packet::udp(s, d) };
            let l3 = p.payload(&word.to_be_bytes()).build_l3().unwrap();
            u16::from_be_bytes([l3[at], l3[at + 1]])
        };
        (0..=u16::MAX).map(sum).collect()
    };
    for v6 in [false, true] {
        let udp = sums(v6, false);
        assert!(udp.iter().all(|s| *s != 0) && udp.contains(&0xffff));
        let tcp = sums(v6, true);
        assert!(tcp.iter().all(|s| *s != 0xffff) && tcp.contains(&0));
    }
}
