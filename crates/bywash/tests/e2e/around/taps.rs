//! Ethernet in GRE over IPv4 and IPv6: `gretap` and `ip6gretap`, with the tests of other tunnels.

use super::tunnels::same_bytes::{decapsulates, encapsulates, frame, gre, ipv4, ipv6, masked, payload};
use super::tunnels::{Row, Tunnels, forwards, mac_of};
use super::tunnels6::{LIMIT, around, without_label};
use bywash_lab::{kernel_has, require, require_lab};
use std::net::{Ipv4Addr, Ipv6Addr};

const OVER4: [Row; 4] = [
    ("ga", "gretap", 1462, 51, 51),
    ("gb", "gretap key 7 csum ttl 33 tos 0x10", 1454, 52, 52),
    ("gd", "gretap ikey 8 okey 9 tos inherit ttl 64 nopmtudisc", 1458, 53, 53),
    ("gc", "gretap key 10 chosen", 1458, 54, 54),
];

const OVER6: [Row; 3] = [
    ("ha", "ip6gretap", 1434, 55, 55),
    ("hb", "ip6gretap key 7 csum hoplimit 33 tclass 0x10 encaplimit none", 1434, 56, 56),
    ("hc", "ip6gretap ikey 8 okey 9 tclass inherit hoplimit 0", 1430, 57, 57),
];

/// Members of a bridge at the router.
const BRIDGED4: [Row; 2] = [("gl", "gretap bridged", 1462, 58, 58), ("gm", "gretap key 7 csum bridged", 1454, 59, 59)];
const BRIDGED6: [Row; 2] =
    [("hl", "ip6gretap bridged", 1434, 60, 60), ("hm", "ip6gretap key 7 csum encaplimit none bridged", 1434, 61, 61)];

const ENDS4: &str = "10.0.2.1 to 10.0.2.2";
const ENDS6: &str = "fd00:2::1 to fd00:2::2";

#[test]
fn ethernet_in_gre_is_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("gretap"));
    forwards(&OVER4, ENDS4);
}

#[test]
fn ethernet_in_gre_over_ipv6_is_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("ip6gretap"));
    forwards(&OVER6, ENDS6);
}

#[test]
fn ethernet_in_gre_in_bridges_is_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("gretap"), kernel_has("ip6gretap"));
    forwards(&BRIDGED4, ENDS4);
    forwards(&BRIDGED6, ENDS6);
}

#[test]
fn frames_are_encapsulated_in_gre_as_the_kernel_does() {
    require!(require_lab(), kernel_has("gretap"), kernel_has("ip6gretap"));
    // The kernel would leave the checksum to the device.
    let checksums = |tunnels: &Tunnels| drop(tunnels.0.r().run(&["ethtool", "-K", "r1", "tx", "off"]).unwrap());
    let tunnels = Tunnels::new(&OVER4);
    checksums(&tunnels);
    encapsulates(&tunnels, &[51, 52, 53, 54], &[0xfd51, 0xfd52, 0xfd53, 0xfd54], masked);
    drop(tunnels);
    let tunnels = Tunnels::new(&OVER6);
    checksums(&tunnels);
    encapsulates(&tunnels, &[55, 56, 57], &[0xfd55, 0xfd56, 0xfd57], without_label);
}

#[test]
fn frames_are_decapsulated_from_gre_as_the_kernel_does() {
    require!(require_lab(), kernel_has("gretap"));
    frames_are_decapsulated(&OVER4, false);
}

#[test]
fn frames_are_decapsulated_from_gre_over_ipv6_as_the_kernel_does() {
    require!(require_lab(), kernel_has("ip6gretap"));
    frames_are_decapsulated(&OVER6, true);
}

/// The same in tunnels that are members of bridges.
#[test]
fn frames_to_a_bridge_are_decapsulated_from_gre_as_the_kernel_does() {
    require!(require_lab(), kernel_has("gretap"), kernel_has("ip6gretap"));
    frames_are_decapsulated(&BRIDGED4, false);
    frames_are_decapsulated(&BRIDGED6, true);
}

/// Sends frames in GRE, right and wrong in all ways, through the first tunnel, which has no key, and the second, which
/// has 7 and a checksum.
fn frames_are_decapsulated(rows: &'static [Row], v6: bool) {
    let tunnels = Tunnels::new(rows);
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let (mut frames, mut plain) = (vec![], 0);
    let mut add = |taken: bool, tos: u8, options: &[u8], gre: &dyn Fn(&[u8]) -> Vec<u8>| {
        let gre = gre(&payload(frames.len()));
        let (kind, packet) = match v6 {
            true => (0x86dd, around(tos, 64, (b.v6, b.router_v6), options, 47, &gre)),
            false => (0x0800, ipv4(tos, 64, 0, 47, (b.v4, b.router_v4), &gre)),
        };
        frames.push(frame(&b.router_mac, &b.mac, kind, &packet));
        plain += u64::from(taken);
    };
    const KEY: &[u8] = &[0, 0, 0, 7];
    const TEB: u16 = 0x6558;
    let from4 = Ipv4Addr::new(10, rows[0].3, 0, 2);
    let from6: Ipv6Addr = format!("fd{}::2", rows[0].4).parse().unwrap();
    let in4 = |tos: u8, p: &[u8]| ipv4(tos, 64, 0, 253, (from4, a.v4), p);
    let in6 = |p: &[u8]| ipv6(0, 64, (from6, a.v6), p);
    for (row, flags, key) in [(0, 0, &[][..]), (1, 0xa000, KEY)] {
        let (mine, theirs) = (mac_of(rows[row].3, 1), mac_of(rows[row].3, 2));
        let within = |kind: u16, packet: &[u8]| gre(flags, TEB, key, 0, &frame(&mine, &theirs, kind, packet));
        for options in [&[][..], LIMIT] {
            if v6 || options.is_empty() {
                add(true, 0, options, &|p| within(0x0800, &in4(0, p)));
                add(true, 0, options, &|p| within(0x86dd, &in6(p)));
            }
        }
        // Congestion marks, around and within.
        for tos in 0..4 {
            for inner in 0..4 {
                add(tos & 1 == 0, tos, &[], &|p| within(0x0800, &in4(inner, p)));
            }
        }
        // Other types and addresses; packets that are not forwarded.
        for kind in [0x86dd, 0x8100, 0x0806, 0x0000] {
            add(false, 0, &[], &|p| within(kind, &in4(0, p)));
        }
        for (to, from) in [
            ("02:00:00:00:87:09", theirs.as_str()),
            ("ff:ff:ff:ff:ff:ff", &theirs),
            ("01:00:5e:00:00:05", &theirs),
            (&mine, "03:00:00:00:00:01"),
        ] {
            add(false, 0, &[], &|p| gre(flags, TEB, key, 0, &frame(to, from, 0x0800, &in4(0, p))));
        }
        for (ttl, to, taken) in [(2, a.v4, true), (1, a.v4, false), (64, Ipv4Addr::new(224, 0, 0, 5), false)] {
            add(taken, 0, &[], &|p| within(0x0800, &ipv4(0, ttl, 0, 253, (from4, to), p)));
        }
    }
    // Other keys and flags, a wrong checksum, none, packets without Ethernet headers.
    let (mine, theirs) = (mac_of(rows[0].3, 1), mac_of(rows[0].3, 2));
    for (flags, kind, key, wrong) in [
        (0x2000, TEB, KEY, 0),
        (0xa000, TEB, KEY, 1),
        (0xa000, TEB, &[0, 0, 0, 70], 0),
        (0x8000, TEB, &[], 0),
        (0x1000, TEB, &[0, 0, 0, 1], 0),
        (0x0001, TEB, &[], 0),
        (0, 0x88be, &[], 0),
    ] {
        add(false, 0, &[], &|p| gre(flags, kind, key, wrong, &frame(&mine, &theirs, 0x0800, &in4(0, p))));
    }
    add(false, 0, &[], &|p| gre(0, 0x0800, &[], 0, &in4(0, p)));
    add(false, 0, &[], &|p| gre(0xa000, 0x86dd, KEY, 0, &in6(p)));
    // Of each of the two stations, the kernel may hear one, so that a bridge does not forget it.
    decapsulates(&tunnels, &frames, plain - 2..=plain);
}
