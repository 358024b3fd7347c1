//! A packet for each difference, and what must be configured for it to be seen.

use crate::change::Change;
use crate::packets::Sent;
use crate::packets::build::{Ipv4, Ipv6, ethernet, tagged_udp};
use crate::topology::{PORTS, host_mac, router_mac};
use bywash_wire::checksum::{checksum, pseudo4};
use std::net::{Ipv4Addr, Ipv6Addr};

type Example = (Vec<Change>, Vec<Sent>);

fn host4(port: usize, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, port as u8 + 1, host)
}

fn host6(port: usize, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, port as u16 + 1, 0, 0, 0, 0, 0, host)
}

/// A packet into port 0, with number 1.
fn one(packet: Vec<u8>) -> Vec<Sent> {
    let ethertype = if packet[0] >> 4 == 4 { 0x800 } else { 0x86dd };
    vec![Sent { port: 0, number: 1, frame: ethernet(router_mac(0), host_mac(0, 2), ethertype, packet) }]
}

fn ipv4(src: Ipv4Addr, dst: Ipv4Addr) -> Ipv4 {
    Ipv4 { src, dst, ident: 1, ..Ipv4::default() }
}

fn ipv6(src: Ipv6Addr, dst: Ipv6Addr) -> Ipv6 {
    Ipv6 { src, dst, class: 0, label: 1, limit: 64, extensions: vec![] }
}

fn route(line: &str) -> Vec<Change> {
    vec![Change::Ip(format!("route replace {line}"))]
}

/// Nothing leads there.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const NOWHERE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

pub fn redirect() -> Example {
    let changes =
        ["all", "p1"].map(|device| Change::Sysctl(format!("net/ipv4/conf/{device}/send_redirects"), "1".into()));
    (changes.to_vec(), one(ipv4(host4(0, 2), host4(0, 3)).packet(&tagged_udp(1))))
}

pub fn unfinished() -> Example {
    let ip = ipv4(host4(0, 2), host4(1, 2));
    let mut udp = tagged_udp(1);
    let header: [u8; 20] = ip.packet(&[])[..20].try_into().unwrap();
    let sum = pseudo4(&header, 17, udp.len() as u16).fold();
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    (vec![], one(ip.packet(&udp)))
}

pub fn class_e() -> Example {
    (route("240.0.0.0/4 via 10.0.2.2"), one(ipv4(host4(0, 2), Ipv4Addr::new(240, 0, 0, 1)).packet(&tagged_udp(1))))
}

pub fn fragment() -> Example {
    let mut ip = ipv6(host6(0, 2), host6(1, 2));
    ip.limit = 1;
    ip.extensions = vec![(44, vec![0, 0, 8, 0, 0, 0, 1])];
    (vec![], one(ip.packet(58, &tagged_udp(1))))
}

/// So many that not every one takes the same of two ways in both.
pub fn many_flows() -> Example {
    let flow = |number: u32| {
        let ip = Ipv4 { ident: number as u16, ..ipv4(host4(0, 2), Ipv4Addr::from(0x0a1e_0000 | number)) };
        let frame = ethernet(router_mac(0), host_mac(0, 2), 0x800, ip.packet(&tagged_udp(number)));
        Sent { port: 0, number, frame }
    };
    (route("10.30.0.0/16 nexthop via 10.0.2.2 dev p2 nexthop via 10.0.3.2 dev p3"), (1..65).map(flow).collect())
}

pub fn no_route_tos() -> Example {
    let ip = Ipv4 { tos: 0x10, ..ipv4(host4(0, 2), NOWHERE) };
    (vec![], one(ip.packet(&tagged_udp(1))))
}

pub fn from_elsewhere() -> Example {
    (vec![], one(ipv6(host6(1, 2), NOWHERE6).packet(17, &tagged_udp(1))))
}

pub fn no_route_no_ttl() -> Example {
    let ip = Ipv6 { limit: 1, ..ipv6(host6(0, 2), NOWHERE6) };
    (vec![], one(ip.packet(17, &tagged_udp(1))))
}

pub fn odd_icmp() -> Example {
    let mut icmp = vec![10, 0, 0, 0, 0, 1, 0, 1];
    icmp.extend(tagged_udp(1));
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = Ipv4 { protocol: 1, ..ipv4(host4(0, 3), NOWHERE) };
    (vec![], one(ip.packet(&icmp)))
}

pub fn about_redirect() -> Example {
    let ip = Ipv6 { limit: 1, ..ipv6(host6(0, 2), host6(1, 2)) };
    let icmp = [&[137, 0, 0, 0, 0, 0, 0, 0][..], &[0; 32], &tagged_udp(1)].concat();
    (vec![], one(ip.packet(58, &icmp)))
}

/// The last port is not Bywash's where examples are tried.
pub fn by_no_port() -> Example {
    let ip = Ipv6 { limit: 1, ..ipv6(host6(PORTS - 1, 2), host6(1, 2)) };
    (vec![], one(ip.packet(17, &tagged_udp(1))))
}

pub fn no_source() -> Example {
    (vec![], one(ipv6(Ipv6Addr::UNSPECIFIED, host6(0, 3)).packet(17, &tagged_udp(1))))
}

pub fn from_broadcast() -> Example {
    let ip = Ipv4 { ttl: 1, ..ipv4(host4(0, 255), host4(1, 2)) };
    (vec![], one(ip.packet(&tagged_udp(1))))
}
