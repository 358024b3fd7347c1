//! Tunnels over IPv6, with the tests of those over IPv4.

use super::tunnels::same_bytes::{decapsulates, encapsulates, frame, ipv4, ipv6, masked_udp, payload};
use super::tunnels::{Row, Tunnels, forwards, mac_of};
use bywash_lab::{Probe, kernel_has, require, require_lab};
use bywash_wire::checksum::{Sum, pseudo6};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The last one has another pair of ends: between two hosts there is only one of kind `ip6tnl`.
const TUNNELS: [Row; 5] = [
    ("ug", "ip6gre", 1448, 71, 71),
    ("uk", "ip6gre key 7 hoplimit 33 tclass 0x10 encaplimit none", 1452, 72, 72),
    ("un", "ip6gre ikey 8 okey 9 tclass inherit", 1444, 73, 73),
    ("um", "ip6gre key 11 csum", 1440, 70, 70),
    ("ua", "ip6tnl mode any hoplimit 64", 1452, 74, 74),
];

/// Each on a port of its own: a socket receives packets without UDP checksums, or does not.
pub const VXLANS: [Row; 2] = [
    ("ux", "vxlan over6 id 75 dstport 4789", 1430, 75, 75),
    (
        "uy",
        "vxlan over6 id 76 dstport 4790 nolearning udp6zerocsumtx udp6zerocsumrx ttl 9 tos inherit srcport 50000 50100",
        1430,
        76,
        76,
    ),
];

/// A VXLAN without an address of its own at the router.
const CHOSEN: [Row; 1] = [("uc", "vxlan over6 id 77 dstport 4789 chosen", 1430, 77, 77)];

fn has_tunnels() -> Probe {
    ["ip6gre", "ip6tnl"].into_iter().try_for_each(kernel_has)
}

const ENDS: &str = "fd00:2::1 to fd00:2::2";

/// Clears a flow label, which is a hash of the kernel's own; leaves whether there is one.
pub fn without_label(mut frame: Vec<u8>) -> Vec<u8> {
    let labelled = frame[15] & 0xf | frame[16] | frame[17] != 0;
    frame[15] &= 0xf0;
    frame[16..18].copy_from_slice(&[0, u8::from(labelled)]);
    frame
}

#[test]
fn tunnels_over_ipv6_are_forwarded_past_the_kernel() {
    require!(require_lab(), has_tunnels());
    forwards(&TUNNELS, ENDS);
}

#[test]
fn vxlans_over_ipv6_are_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("vxlan"));
    forwards(&VXLANS, ENDS);
}

#[test]
fn vxlans_over_ipv6_without_an_address_are_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("vxlan"));
    forwards(&CHOSEN, "any to fd00:2::2");
}

#[test]
fn packets_are_encapsulated_in_ipv6_as_the_kernel_does() {
    require!(require_lab(), has_tunnels());
    let tunnels = Tunnels::new(&TUNNELS);
    let (b, r) = (tunnels.0.b(), tunnels.0.r());
    r.ip_batch(&format!(
        "address add fd00:2::101/64 dev r1 nodad\n\
         link add name uo type ip6tnl mode ipip6 local fd00:2::101 remote {} encaplimit none hoplimit 0 tclass inherit\n\
         link set uo up\nroute add 10.77.0.0/24 dev uo\n",
        b.v6
    ))
    .unwrap();
    // The kernel would leave the checksum to the device.
    r.run(&["ethtool", "-K", "r1", "tx", "off"]).unwrap();
    encapsulates(&tunnels, &[70, 71, 72, 73, 74, 77], &[0xfd70, 0xfd71, 0xfd72, 0xfd73, 0xfd74], without_label);
}

#[test]
fn frames_are_encapsulated_in_ipv6_as_the_kernel_does() {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(&VXLANS);
    // The kernel would leave the checksum to the device.
    tunnels.0.r().run(&["ethtool", "-K", "r1", "tx", "off"]).unwrap();
    let masked = |frame: Vec<u8>| {
        let pseudo = pseudo6(frame[14..].first_chunk().unwrap(), 17, (frame.len() - 54) as u32);
        masked_udp(frame, 54, pseudo)
    };
    encapsulates(&tunnels, &[75, 76], &[0xfd75, 0xfd76], masked);
}

/// Returns an IPv6 packet from `ends.0` to `ends.1`, with destination options unless they are empty.
pub fn around(
    class: u8,
    hops: u8,
    ends: (Ipv6Addr, Ipv6Addr),
    options: &[u8],
    protocol: u8,
    payload: &[u8],
) -> Vec<u8> {
    let (next, options) = match options {
        [] => (protocol, vec![]),
        options => (60, [&[protocol, (options.len() as u8 + 2) / 8 - 1], options].concat()),
    };
    let mut packet = ipv6(class, hops, ends, &[&options, payload].concat());
    packet[6] = next;
    packet
}

/// An encapsulation limit.
pub const LIMIT: &[u8] = &[4, 1, 5, 1, 1, 0];

#[test]
fn packets_are_decapsulated_from_ipv6_as_the_kernel_does() {
    require!(require_lab(), has_tunnels());
    let tunnels = Tunnels::new(&TUNNELS);
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let ends = (b.v6, b.router_v6);
    let (mut frames, mut plain) = (vec![], 0);
    let mut add = |taken: bool, around: &dyn Fn(&[u8]) -> Vec<u8>, within: &dyn Fn(&[u8]) -> Vec<u8>| {
        let packet = around(&within(&payload(frames.len())));
        plain += u64::from(taken);
        frames.push(frame(&b.router_mac, &b.mac, 0x86dd, &packet));
    };
    let gre = |flags: u16, kind: u16, more: &[u8], payload: &[u8]| {
        [&flags.to_be_bytes()[..], &kind.to_be_bytes(), more, payload].concat()
    };
    let (from4, from6) = (Ipv4Addr::new(10, 71, 0, 2), Ipv6Addr::new(0xfd71, 0, 0, 0, 0, 0, 0, 2));
    let in4 = |payload: &[u8]| ipv4(0, 64, 0, 253, (from4, a.v4), payload);
    let in6 = |payload: &[u8]| ipv6(0, 64, (from6, a.v6), payload);
    let plain4 = |payload: &[u8]| gre(0, 0x0800, &[], payload);
    // Every tunnel and family, with and without a limit.
    for options in [&[][..], LIMIT] {
        add(true, &|p| around(0, 64, ends, options, 47, &plain4(p)), &in4);
        add(true, &|p| around(0, 64, ends, options, 47, &gre(0, 0x86dd, &[], p)), &in6);
        add(true, &|p| around(0, 64, ends, options, 47, &gre(0x2000, 0x0800, &[0, 0, 0, 7], p)), &in4);
        add(true, &|p| around(0, 64, ends, options, 47, &gre(0x2000, 0x86dd, &[0, 0, 0, 8], p)), &in6);
        add(true, &|p| around(0, 64, ends, options, 4, p), &in4);
        add(true, &|p| around(0, 64, ends, options, 41, p), &in6);
    }
    for class in 0..4 {
        for within in 0..4 {
            let taken = class & 1 == 0;
            let in4 = |p: &[u8]| ipv4(within, 64, 0, 253, (from4, a.v4), p);
            let in6 = |p: &[u8]| ipv6(within, 64, (from6, a.v6), p);
            add(taken, &|p| around(class, 64, ends, &[], 47, &plain4(p)), &in4);
            add(taken, &|p| around(class, 64, ends, &[], 4, p), &in4);
            add(taken, &|p| around(class, 64, ends, &[], 41, p), &in6);
        }
    }
    // Faults of the outer packet: hop limit, options, key, flags, protocols, ends.
    add(false, &|p| around(0, 1, ends, &[], 47, &plain4(p)), &in4);
    let long = [LIMIT, &[1, 6, 0, 0, 0, 0, 0, 0]].concat();
    for options in [&[5u8, 2, 0, 0, 1, 0][..], &[4, 1, 5, 0, 0, 0], &[1, 4, 0, 0, 0, 0], &long] {
        add(false, &|p| around(0, 64, ends, options, 47, &plain4(p)), &in4);
        add(false, &|p| around(0, 64, ends, options, 4, p), &in4);
    }
    for (flags, kind, more) in [
        (0x2000u16, 0x0800u16, &[0, 0, 0, 70][..]),
        (0x2000, 0x0800, &[0, 0, 0, 9]),
        (0x8000, 0x0800, &[0, 0, 0, 0]),
        (0x1000, 0x0800, &[0, 0, 0, 1]),
        (0x0001, 0x0800, &[]),
        (0, 0x6558, &[]),
    ] {
        add(false, &|p| around(0, 64, ends, &[], 47, &gre(flags, kind, more, p)), &in4);
    }
    let other = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 9);
    for ends in [(other, b.router_v6), (b.v6, a.router_v6), (b.router_v6, b.router_v6)] {
        add(false, &|p| around(0, 64, ends, &[], 47, &plain4(p)), &in4);
        add(false, &|p| around(0, 64, ends, &[], 4, p), &in4);
    }
    add(false, &|p| around(0, 64, ends, &[], 4, p), &in6);
    add(false, &|p| around(0, 64, ends, &[], 41, p), &in4);
    add(false, &|p| around(0, 64, ends, &[], 44, &[&[4, 0, 0, 0, 0, 0, 0, 1], p].concat()), &in4);
    // Faults of the inner packet.
    for (ttl, taken) in [(2, true), (1, false), (0, false)] {
        add(taken, &|p| around(0, 64, ends, &[], 4, p), &|p| ipv4(0, ttl, 0, 253, (from4, a.v4), p));
        add(taken, &|p| around(0, 64, ends, &[], 41, p), &|p| ipv6(0, ttl, (from6, a.v6), p));
    }
    for to in [Ipv4Addr::new(224, 0, 0, 5), Ipv4Addr::LOCALHOST] {
        add(false, &|p| around(0, 64, ends, &[], 4, p), &|p| ipv4(0, 64, 0, 253, (from4, to), p));
    }
    // Padding behind.
    add(true, &|p| around(0, 64, ends, LIMIT, 4, p), &in4);
    frames.last_mut().unwrap().extend([0xaa; 40]);
    decapsulates(&tunnels, &frames, plain..=plain);
}

#[test]
fn frames_are_decapsulated_from_ipv6_as_the_kernel_does() {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(&VXLANS);
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let (mut frames, mut plain) = (vec![], 0);
    let ends = (b.v6, b.router_v6);
    let from4 = Ipv4Addr::new(10, 75, 0, 2);
    // Returns the packet around a frame; its checksum is right, plus `wrong`, or `None`.
    let packet = |class: u8, options: &[u8], vni: u8, wrong: Option<u16>, inner: &[u8]| {
        let vxlan = [&[8, 0, 0, 0, 0, 0, vni, 0], inner].concat();
        let len = 8 + vxlan.len() as u16;
        let port = if vni == 76 { 182 } else { 181 };
        let mut udp = [&[195, 80, 18, port][..], &len.to_be_bytes(), &[0, 0], &vxlan].concat();
        let header = around(class, 64, ends, &[], 17, &udp);
        if let Some(wrong) = wrong {
            let pseudo = pseudo6(header.first_chunk().unwrap(), 17, len.into());
            let sum = (pseudo + Sum::of(&udp)).checksum();
            udp[6..8].copy_from_slice(&(sum ^ wrong).to_be_bytes());
        }
        around(class, 64, ends, options, 17, &udp)
    };
    let mut add = |taken: bool, packet: &dyn Fn(&[u8]) -> Vec<u8>| {
        frames.push(frame(&b.router_mac, &b.mac, 0x86dd, &packet(&payload(frames.len()))));
        plain += u64::from(taken);
    };
    for (vni, unsummed) in [(75u8, false), (76, true)] {
        let in4 = |tos: u8, p: &[u8]| {
            frame(&mac_of(vni, 1), &mac_of(vni, 2), 0x0800, &ipv4(tos, 64, 0, 253, (from4, a.v4), p))
        };
        add(true, &|p| packet(0, &[], vni, Some(0), &in4(0, p)));
        add(unsummed, &|p| packet(0, &[], vni, None, &in4(0, p)));
        add(false, &|p| packet(0, &[], vni, Some(1), &in4(0, p)));
        add(false, &|p| packet(0, LIMIT, vni, Some(0), &in4(0, p)));
        add(false, &|p| packet(0, &[], vni + 9, Some(0), &in4(0, p)));
        for class in 0..4 {
            for within in 0..4 {
                add(class & 1 == 0, &|p| packet(class, &[], vni, Some(0), &in4(within, p)));
            }
        }
    }
    // The kernel may hear one, to renew the station of the VXLAN that learns.
    decapsulates(&tunnels, &frames, plain - 1..=plain);
}
