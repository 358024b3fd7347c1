//! Frames that no router should forward: each is dropped and counted once, by its reason, while good ones pass.

use crate::harness::{Bywash, PATIENCE};
use crate::raw::{Ear, send};
use bywash_lab::{Host, Ping, Topology, has_tool, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use bywash_wire::checksum::checksum;
use bywash_wire::ethernet::MacAddr;
use std::net::{IpAddr, SocketAddr};

/// Bytes of an Ethernet header.
const ETH: usize = 14;

pub fn mac(text: &str) -> MacAddr {
    text.parse().unwrap()
}

/// Returns a UDP packet from a host to its router's MAC address.
pub fn udp(host: &Host, from: (IpAddr, u16), to: (IpAddr, u16)) -> Vec<u8> {
    let packet = Packet::udp(SocketAddr::from(from), SocketAddr::from(to)).payload(b"a payload to be seen again");
    packet.macs(mac(&host.mac), mac(&host.router_mac)).ttl(64).build().unwrap()
}

/// Returns the packet with its IPv4 header changed and the header checksum corrected.
fn with4(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let header = &mut frame[ETH..ETH + 20];
    change(header);
    header[10..12].fill(0);
    let sum = checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn with6(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = frame.to_vec();
    change(&mut frame[ETH..]);
    frame
}

/// Returns an IPv6 packet that consists of extension headers only: the first is of type `first`, the others of type
/// `kind`, and the last names another of type `kind` that is missing.
fn chain(good6: &[u8], first: u8, kind: u8, headers: usize) -> Vec<u8> {
    let mut frame = good6[..ETH + 40].to_vec();
    frame[ETH + 6] = first;
    for _ in 0..headers {
        // Next header, length 8 bytes, PadN of 4.
        frame.extend([kind, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame[ETH + 4..ETH + 6].copy_from_slice(&(8 * headers as u16).to_be_bytes());
    frame
}

#[test]
pub fn every_kind_of_broken_frame_is_dropped_by_name() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let (a, b) = (lab.a(), lab.b());
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let good4 = udp(a, (a.v4.into(), 1000), (b.v4.into(), 9));
    let good6 = udp(a, (a.v6.into(), 1000), (b.v6.into(), 9));
    let set = |at: usize, bytes: &'static [u8]| move |ip: &mut [u8]| ip[at..at + bytes.len()].copy_from_slice(bytes);
    let mut wrong_sum = good4.clone();
    wrong_sum[ETH + 10] ^= 0x55;

    // Fault, number of times it is sent, frame, reason of the drop.
    let broken: Vec<(&str, u32, Vec<u8>, &str)> = vec![
        ("IPv4 header cut off", 3, good4[..ETH + 19].to_vec(), "runt"),
        ("no IPv4 header at all", 1, good4[..ETH].to_vec(), "runt"),
        ("IPv6 header cut off", 4, good6[..ETH + 39].to_vec(), "runt"),
        ("version 6 in IPv4", 5, with4(&good4, |ip| ip[0] = 0x65), "bad-version"),
        ("version 0", 2, with4(&good4, |ip| ip[0] = 0x05), "bad-version"),
        ("version 4 in IPv6", 6, with6(&good6, |ip| ip[0] = 0x40), "bad-version"),
        ("header of 16 bytes", 7, with4(&good4, |ip| ip[0] = 0x44), "bad-header-length"),
        ("header of 0 bytes", 1, with4(&good4, |ip| ip[0] = 0x40), "bad-header-length"),
        ("IPv4 longer than its frame", 9, with4(&good4, set(2, &[0x05, 0x00])), "bad-length"),
        ("IPv4 shorter than its header", 2, with4(&good4, set(2, &[0, 19])), "bad-length"),
        ("IPv6 longer than its frame", 3, with6(&good6, set(4, &[0xff, 0xff])), "bad-length"),
        ("wrong checksum", 11, wrong_sum, "bad-checksum"),
        ("from multicast", 4, with4(&good4, set(12, &[224, 0, 0, 1])), "martian-source"),
        ("from broadcast", 4, with4(&good4, set(12, &[255, 255, 255, 255])), "martian-source"),
        ("from this network", 4, with4(&good4, set(12, &[0, 1, 2, 3])), "martian-source"),
        ("from IPv6 multicast", 1, with6(&good6, set(8, &[0xff, 2])), "martian-source"),
        ("to class E", 13, with4(&good4, set(16, &[240, 1, 2, 3])), "martian-destination"),
    ];
    let frames: Vec<(u32, Vec<u8>)> = broken.iter().map(|(_, times, frame, _)| (*times, frame.clone())).collect();
    send(&a.ns, &a.interface, &frames);
    let total: u64 = broken.iter().map(|(_, times, ..)| u64::from(*times)).sum();
    bywash.wait("all to be received", |bywash| bywash.counter("r0", "rx_packets") >= total);
    // A frame counts as received before it is looked at.
    bywash.wait("all to be dropped", |bywash| {
        bywash.all_drops().iter().map(|(_, packets)| packets).sum::<u64>() >= total
    });
    let mut expected: Vec<(&str, u64)> = Vec::new();
    for (_, times, _, reason) in &broken {
        match expected.iter_mut().find(|(known, _)| known == reason) {
            Some((_, packets)) => *packets += u64::from(*times),
            None => expected.push((reason, u64::from(*times))),
        }
    }
    for (reason, packets) in expected {
        assert_eq!(bywash.drops("r0", reason), packets, "{reason}; {:?}", bywash.all_drops());
    }
    let dropped: u64 = bywash.all_drops().iter().map(|(_, packets)| packets).sum();
    assert_eq!(dropped, total, "{:?}", bywash.all_drops());
    assert_eq!(bywash.events("r0", "icmp-sent"), 0, "an ICMP error about a broken packet");
    assert_eq!(bywash.counter("r1", "tx_packets"), 0);

    for to in [IpAddr::from(b.v4), b.v6.into()] {
        // A reply may take longer than ping waits on a busy machine.
        wait_until("replies", PATIENCE, || Ping::to(to).count(3).run(&a.ns).unwrap().received == 3).unwrap();
    }
    bywash.stop();
}

#[test]
fn frames_for_the_kernel_are_passed_to_it() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let (a, b) = (lab.a(), lab.b());
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let good4 = udp(a, (a.v4.into(), 1000), (b.v4.into(), 9));
    let good6 = udp(a, (a.v6.into(), 1000), (b.v6.into(), 9));
    let mut arp_type = good4.clone();
    arp_type[12..ETH].copy_from_slice(&[0x88, 0xcc]);
    let packet = Packet::udp(SocketAddr::from((a.v4, 1000)), SocketAddr::from((b.v4, 9)));
    let to_router = |packet: Packet<'_>| packet.macs(mac(&a.mac), mac(&a.router_mac)).build().unwrap();
    let cases = [
        (2, to_router(packet.clone().ip_options(&[1, 1, 1, 0])), "pass_options"),
        // The number of headers after a hop-by-hop header does not matter.
        (3, chain(&good6, 0, 0, 170), "pass_options"),
        (4, to_router(packet.clone().vlan(7)), "pass_vlan"),
        (5, arp_type, "pass_ethertype"),
        (6, packet.clone().macs(mac(&a.mac), mac("02:00:00:00:77:77")).build().unwrap(), "pass_not_mine"),
        (7, with4(&good4, |ip| ip[12] = 127), "pass_reserved"),
        (8, with4(&good4, |ip| ip[16..18].copy_from_slice(&[169, 254])), "pass_link_local"),
    ];
    for (times, frame, verdict) in cases {
        let before = bywash.verdicts("r0", verdict);
        send(&a.ns, &a.interface, &[(times, frame)]);
        let wanted = u64::from(times);
        // A busy machine may process the frames after they have been sent.
        bywash.wait(&format!("{verdict} to be counted"), |bywash| bywash.verdicts("r0", verdict) >= before + wanted);
        let passed = bywash.verdicts("r0", verdict) - before;
        // Neighbour discovery of the hosts may be counted under this verdict, too.
        let spare = if verdict == "pass_link_local" { 4 } else { 0 };
        assert!((wanted..=wanted + spare).contains(&passed), "{verdict}: {passed}, not {wanted}");
    }
    assert_eq!(bywash.counter("r0", "rx_packets"), 0);
    bywash.stop();
}

/// A chain of extension headers of any length is forwarded: a router examines only hop-by-hop options (RFC 8200).
#[test]
pub fn extension_headers_are_left_to_the_destination() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let (a, b) = (lab.a(), lab.b());
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let good6 = udp(a, (a.v6.into(), 1000), (b.v6.into(), 9));
    let ear = Ear::at(&b.ns, &b.interface);
    // A chain of destination options; the last names another that is missing.
    let endless = chain(&good6, 60, 60, 170);
    send(&a.ns, &a.interface, &[(5, endless.clone())]);
    let heard = ear.wait(5, |frame| frame.len() == endless.len());
    assert_eq!(heard[0][ETH + 8..], endless[ETH + 8..]);
    assert!(bywash.all_drops().is_empty(), "{:?}", bywash.all_drops());
    bywash.stop();
}

#[test]
pub fn a_forwarded_packet_changes_only_where_it_must() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let (a, b) = (lab.a(), lab.b());
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let ear = Ear::at(&b.ns, &b.interface);
    for ttl in [2, 3, 64, 128, 255] {
        let good4 = with4(&udp(a, (a.v4.into(), 1000), (b.v4.into(), 9)), |ip| ip[8] = ttl);
        let good6 = with6(&udp(a, (a.v6.into(), 1000), (b.v6.into(), 9)), |ip| ip[7] = ttl);
        let macs = [mac(&b.mac).0, mac(&b.router_mac).0].concat();
        let expected4 = [&macs[..], &with4(&good4, |ip| ip[8] -= 1)[12..]].concat();
        let expected6 = [&macs[..], &with6(&good6, |ip| ip[7] -= 1)[12..]].concat();
        send(&a.ns, &a.interface, &[(1, good4), (1, good6)]);
        ear.wait(1, |frame| frame == expected4);
        ear.wait(1, |frame| frame == expected6);
    }
    bywash.stop();
}
