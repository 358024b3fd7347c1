//! Packets that show each difference, with the configuration needed for it.

use super::Example;
use crate::change::Change;
use crate::flows::Connection;
use crate::packets::Sent;
use crate::packets::build::{Ipv4, Ipv6, ethernet, tagged_udp};
use crate::topology::{host_mac, neighbours, router_mac};
use bywash_wire::checksum::{checksum, pseudo4};
use std::net::Ipv4Addr;

fn example(changes: Vec<Change>, sent: Vec<Sent>) -> Example {
    Example { changes, opening: vec![], sent }
}

fn host4(port: usize, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, port as u8 + 1, host)
}

/// Returns the packet as number 1, sent to port 0.
fn one(packet: Vec<u8>) -> Vec<Sent> {
    vec![Sent { port: 0, number: 1, frame: ethernet(router_mac(0), host_mac(0, 2), 0x800, packet) }]
}

fn ipv4(src: Ipv4Addr, dst: Ipv4Addr) -> Ipv4 {
    Ipv4 { src, dst, ident: 1, ..Ipv4::default() }
}

fn route(line: &str) -> Vec<Change> {
    vec![Change::Ip(format!("route replace {line}"))]
}

pub fn redirect() -> Example {
    let changes =
        ["all", "p1"].map(|device| Change::Sysctl(format!("net/ipv4/conf/{device}/send_redirects"), "1".into()));
    example(changes.to_vec(), one(ipv4(host4(0, 2), host4(0, 3)).packet(&tagged_udp(1))))
}

/// Returns a TCP packet whose sender left the checksum to its device.
fn left_to_device(src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
    let ip = Ipv4 { protocol: 6, ..ipv4(src, dst) };
    let udp = tagged_udp(1);
    let mut tcp = [&udp[..4], &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 16, 255, 255, 0, 0, 0, 0], &udp[8..]].concat();
    let header: [u8; 20] = ip.packet(&[])[..20].try_into().unwrap();
    let sum = pseudo4(&header, 6, tcp.len() as u16).fold();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    ip.packet(&tcp)
}

pub fn unfinished() -> Example {
    example(vec![], one(left_to_device(host4(0, 2), host4(1, 2))))
}

/// Returns such a packet in a VXLAN, whose socket does not get what ports of a VRF receive: an error quotes it.
pub fn unfinished_within() -> Example {
    let lines = [
        "link add vx1 address 02:00:00:03:00:01 type vxlan id 1 local 10.0.1.1 remote 10.0.2.2 dstport 4789",
        "link set vx1 up",
        "link add vr1 type vrf table 1001",
        "link set vr1 up",
        "link set p1 master vr1",
    ];
    let mut changes = lines.map(|line| Change::Ip(line.into())).to_vec();
    changes.extend(neighbours(0));
    let inner = ethernet([2, 0, 0, 3, 0, 1], [4; 6], 0x800, left_to_device(host4(0, 2), host4(1, 2)));
    let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0], &inner[..]].concat();
    let len = (8 + vxlan.len()) as u16;
    let udp = [&[0xc0, 0][..], &4789u16.to_be_bytes(), &len.to_be_bytes(), &[0, 0], &vxlan].concat();
    example(changes, one(ipv4(host4(0, 2), host4(0, 1)).packet(&udp)))
}

pub fn class_e() -> Example {
    example(
        route("240.0.0.0/4 via 10.0.2.2"),
        one(ipv4(host4(0, 2), Ipv4Addr::new(240, 0, 0, 1)).packet(&tagged_udp(1))),
    )
}

pub fn frame_in_segments() -> Example {
    let route = "-6 route replace fd77::/64 encap seg6 mode l2encap segs fd00:2::3 dev p2";
    let (src, dst) = ("fd00:1::2".parse().unwrap(), "fd77::1".parse().unwrap());
    let ip = Ipv6 { src, dst, class: 0, label: 1, limit: 64, extensions: vec![] };
    let frame = ethernet(router_mac(0), host_mac(0, 2), 0x86dd, ip.packet(17, &tagged_udp(1)));
    example(vec![Change::Ip(route.into())], vec![Sent { port: 0, number: 1, frame }])
}

/// Several hosts use the same source port: behind one address, only one of them can keep it.
pub fn one_port_for_two() -> Example {
    let table = "table ip t { chain c { type nat hook postrouting priority 100; oifname p2 masquerade; }; }";
    let flow = |number: u32| {
        let ip = Ipv4 { ident: number as u16, ..ipv4(host4(0, 1 + number as u8), host4(1, 2)) };
        let frame = ethernet(router_mac(0), host_mac(0, 2), 0x800, ip.packet(&tagged_udp(number)));
        Sent { port: 0, number, frame }
    };
    example(vec![Change::Nft(table.into())], (1..5).map(flow).collect())
}

/// Returns a packet longer than the path MTU of an error about an echo reply of the router.
pub fn learned_mtu() -> Example {
    let quoted = Ipv4 { protocol: 1, ..ipv4(host4(1, 1), host4(1, 2)) }.packet(&[0; 8]);
    let mut icmp = [&[3, 4, 0, 0, 0, 0][..], &300u16.to_be_bytes(), &quoted].concat();
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let error = Ipv4 { protocol: 1, ..ipv4(host4(1, 2), host4(1, 1)) }.packet(&icmp);
    let error = Sent { port: 1, number: 1, frame: ethernet(router_mac(1), host_mac(1, 2), 0x800, error) };
    let long = [tagged_udp(1), vec![0; 1200]].concat();
    let sent = one(Ipv4 { fragment: 0x4000, protocol: 253, ..ipv4(host4(0, 2), host4(1, 2)) }.packet(&long));
    Example { changes: vec![], opening: vec![error], sent }
}

/// So many flows that at least one takes different paths in the two routers.
pub fn many_flows() -> Example {
    let flow = |number: u32| {
        let ip = Ipv4 { ident: number as u16, ..ipv4(host4(0, 2), Ipv4Addr::from(0x0a1e_0000 | number)) };
        let frame = ethernet(router_mac(0), host_mac(0, 2), 0x800, ip.packet(&tagged_udp(number)));
        Sent { port: 0, number, frame }
    };
    example(route("10.30.0.0/16 nexthop via 10.0.2.2 dev p2 nexthop via 10.0.3.2 dev p3"), (1..65).map(flow).collect())
}

/// Returns an established connection, of whose packets a rule drops the invalid ones.
fn established(of_it: impl FnOnce(&Connection) -> Sent) -> Example {
    let table = "table inet t { chain c { type filter hook forward priority 0; ct state invalid drop; }; }";
    let (connection, opening) = Connection::example();
    Example { changes: vec![Change::Nft(table.into())], opening, sent: vec![of_it(&connection)] }
}

pub fn wrong_checksum() -> Example {
    established(Connection::with_wrong_checksum)
}

pub fn beyond_window() -> Example {
    established(Connection::beyond_window)
}
