//! Packets and frames of all kinds, valid and broken, through tunnels: they have the same bytes with the program and
//! without.

use super::{BRIDGED, CHOSEN, EXTERNAL, EXTERNAL_IP, Row, TUNNELS, Tunnels, VXLANS, has_tunnels, mac_of};
use crate::garbage::mac;
use crate::harness::Bywash;
use crate::raw::{Ear, send};
use bywash_lab::{kernel_has, require, require_lab};
use bywash_wire::checksum::{Sum, pseudo4};
use bywash_wire::ipv4::fill_checksum;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

pub fn ipv4(tos: u8, ttl: u8, fragment: u16, protocol: u8, ends: (Ipv4Addr, Ipv4Addr), payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len() as u16).to_be_bytes();
    let fragment = fragment.to_be_bytes();
    let head = [0x45, tos, total[0], total[1], 0x12, 0x34, fragment[0], fragment[1], ttl, protocol, 0, 0];
    let mut packet = [&head[..], &ends.0.octets(), &ends.1.octets(), payload].concat();
    fill_checksum(&mut packet);
    packet
}

pub fn ipv6(class: u8, hops: u8, ends: (Ipv6Addr, Ipv6Addr), payload: &[u8]) -> Vec<u8> {
    let (len, class) = ((payload.len() as u16).to_be_bytes(), u32::from(class) << 20 | 0x6000_1234);
    let head = [len[0], len[1], 253, hops];
    [&class.to_be_bytes()[..], &head, &ends.0.octets(), &ends.1.octets(), payload].concat()
}

pub fn frame(to: &str, from: &str, kind: u16, packet: &[u8]) -> Vec<u8> {
    [&mac(to).0[..], &mac(from).0, &kind.to_be_bytes(), packet].concat()
}

/// Returns a GRE packet with these flags, protocol and key. A checksum is right, changed by `wrong`.
pub fn gre(flags: u16, kind: u16, key: &[u8], wrong: u16, payload: &[u8]) -> Vec<u8> {
    let summed: &[u8] = if flags & 0x8000 == 0 { &[] } else { &[0; 4] };
    let mut packet = [&flags.to_be_bytes()[..], &kind.to_be_bytes(), summed, key, payload].concat();
    if !summed.is_empty() {
        let sum = Sum::of(&packet).checksum() ^ wrong;
        packet[4..6].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Clears the fields that the kernel chooses as it likes: identification, and with it the checksum.
pub fn masked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[18..20].fill(0);
    frame[24..26].fill(0);
    frame
}

/// Clears the source port of a UDP header, which has the kernel's secret hash in it. Of the checksum, it leaves whether
/// there is none, and whether it is right.
pub fn masked_udp(mut frame: Vec<u8>, at: usize, pseudo: Sum) -> Vec<u8> {
    let udp = &frame[at..];
    let (none, right) = (udp[6..8] == [0, 0], (pseudo + Sum::of(udp)).is_valid());
    let source = u16::from_be_bytes([udp[0], udp[1]]);
    let range = if none { 50000..50100 } else { 32768..60999 };
    assert!(range.contains(&source), "{source}");
    frame[at..at + 2].fill(0);
    frame[at + 6..at + 8].copy_from_slice(&[u8::from(none), u8::from(right)]);
    frame
}

/// Payload of the nth packet, by which it is recognised. The protocol is that for experiments (RFC 3692).
pub fn payload(n: usize) -> Vec<u8> {
    format!("bywash{n:04}").into_bytes()
}

fn number(frame: &[u8]) -> Option<usize> {
    let at = frame.windows(6).position(|window| window == b"bywash")?;
    std::str::from_utf8(frame.get(at + 6..at + 10)?).ok()?.parse().ok()
}

/// Sends frames, and returns those that arrive with their numbers, in the order of these.
fn passed(tunnels: &Tunnels, from_a: bool, frames: &[Vec<u8>], last: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let (from, to) = if from_a { (a, b) } else { (b, a) };
    let ear = Ear::at(&to.ns, &to.interface);
    for chunk in frames.chunks(16) {
        let some: Vec<_> = chunk.iter().map(|frame| (1, frame.clone())).collect();
        send(&from.ns, &from.interface, &some);
        std::thread::sleep(Duration::from_millis(20));
    }
    // The last one comes through in any case, after all others.
    std::thread::sleep(Duration::from_millis(300));
    send(&from.ns, &from.interface, &[(1, last.to_owned())]);
    ear.wait(1, |frame| number(frame) == Some(9999));
    let heard = ear.heard().into_iter().filter_map(|frame| Some((number(&frame)?, frame)));
    let mut all: Vec<_> = heard.filter(|(n, _)| *n != 9999).collect();
    all.sort();
    all
}

/// Packets of all kinds leave encapsulated by the same bytes as without the program.
#[test]
fn packets_are_encapsulated_as_the_kernel_does() {
    require!(require_lab(), has_tunnels());
    let tunnels = Tunnels::new(&TUNNELS[..7]);
    let (b, r) = (tunnels.0.b(), tunnels.0.r());
    // Another tunnel of kind `sit`, which needs another address of the router or the host.
    let (name, options, ..) = TUNNELS[7];
    r.ip_batch(&format!(
        "address add 10.0.2.101/24 dev r1\nlink add name {name} type {options} local 10.0.2.101 remote {}\nlink set {name} up\n\
         route add fd99::/64 dev {name}\n",
        b.v4
    ))
    .unwrap();
    // The kernel would leave the checksum to the device.
    r.run(&["ethtool", "-K", "r1", "tx", "off"]).unwrap();
    let nets6 = [0xfd80, 0xfd81, 0xfd82, 0xfd83, 0xfd85, 0xfd86, 0xfd99];
    encapsulates(&tunnels, &[80, 81, 82, 83, 84, 86], &nets6, masked);
}

#[test]
fn packets_with_headers_of_routes_are_encapsulated_as_the_kernel_does() {
    require!(require_lab(), has_tunnels());
    let tunnels = Tunnels::new(&EXTERNAL_IP);
    encapsulates(&tunnels, &[95, 96], &[0xfd95], masked);
}

#[test]
fn frames_are_encapsulated_as_the_kernel_does() {
    frames_are_encapsulated(&VXLANS);
}

#[test]
fn frames_with_a_chosen_source_are_encapsulated_as_the_kernel_does() {
    frames_are_encapsulated(&CHOSEN);
}

#[test]
fn frames_with_headers_of_routes_are_encapsulated_as_the_kernel_does() {
    frames_are_encapsulated(&EXTERNAL);
}

pub fn frames_are_encapsulated(rows: &'static [Row; 2]) {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(rows);
    // The kernel would leave the checksum to the device.
    tunnels.0.r().run(&["ethtool", "-K", "r1", "tx", "off"]).unwrap();
    let masked = |frame: Vec<u8>| {
        let pseudo = pseudo4(frame[14..].first_chunk().unwrap(), 17, (frame.len() - 34) as u16);
        masked(masked_udp(frame, 34, pseudo))
    };
    let nets6 = rows.map(|row| 0xfd00 | u16::from_str_radix(&row.4.to_string(), 16).unwrap());
    encapsulates(&tunnels, &rows.map(|row| row.3), &nets6, masked);
}

pub fn encapsulates(tunnels: &Tunnels, nets4: &[u8], nets6: &[u16], masked: impl Fn(Vec<u8>) -> Vec<u8>) {
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let mut frames = vec![];
    let mut add = |packet: &dyn Fn(&[u8]) -> Vec<u8>| {
        let packet = packet(&payload(frames.len()));
        let kind = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
        frames.push(frame(&a.router_mac, &a.mac, kind, &packet));
    };
    for net in nets4 {
        for (tos, ttl, fragment) in [
            (0, 64, 0),
            (0xb8, 2, 0x4000),
            (0x11, 255, 0),
            (0x2, 9, 0x4000),
            (0x3, 64, 0),
            (0xff, 64, 0x4000),
            (0, 64, 0x2000),
        ] {
            let to = Ipv4Addr::new(10, *net, 0, 2);
            add(&|payload| ipv4(tos, ttl, fragment, 253, (a.v4, to), &[payload, &[7; 31]].concat()));
        }
    }
    for net in nets6 {
        for (class, hops) in [(0, 64), (0xb8, 2), (0x2, 9), (0x3, 64), (0xff, 255)] {
            let to = Ipv6Addr::new(*net, 0, 0, 0, 0, 0, 0, 2);
            add(&|payload| ipv6(class, hops, (a.v6, to), payload));
        }
    }
    // Padding is not encapsulated.
    add(&|payload| ipv4(0, 64, 0, 253, (a.v4, Ipv4Addr::new(10, nets4[0], 0, 2)), payload));
    frames.last_mut().unwrap().extend([0xaa; 40]);
    let last = ipv4(0, 64, 0, 253, (a.v4, b.v4), b"bywash9999");
    let last = frame(&a.router_mac, &a.mac, 0x0800, &last);
    // Neighbours in a VXLAN are known afterwards.
    tunnels.assert_connected();
    let kernels = passed(tunnels, true, &frames, &last);
    assert_eq!(kernels.len(), frames.len(), "the kernel sends them");
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    tunnels.assert_carried(&bywash);
    let before = Tunnels::moved(&bywash).0;
    let ours = passed(tunnels, true, &frames, &last);
    let encapsulated = Tunnels::moved(&bywash).0 - before;
    assert_eq!(encapsulated, frames.len() as u64, "{}", bywash.show(&["all"]));
    for ((n, theirs), (m, ours)) in kernels.into_iter().zip(ours) {
        assert_eq!((n, masked(theirs)), (m, masked(ours)));
    }
    bywash.stop();
}

/// Packets around others, right and wrong in all ways: the same packets come out as without the program.
#[test]
fn packets_are_decapsulated_as_the_kernel_does() {
    require!(require_lab(), has_tunnels());
    let tunnels = Tunnels::new(&TUNNELS[..7]);
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let ends = (b.v4, b.router_v4);
    let (mut frames, mut plain) = (vec![], 0);
    // Adds the packet around another, which is given by the flags and key of GRE or else by the protocol; `taken` if it
    // is decapsulated past the kernel.
    let mut add = |taken: bool, around: &dyn Fn(&[u8]) -> Vec<u8>, within: &dyn Fn(&[u8]) -> Vec<u8>| {
        let packet = around(&within(&payload(frames.len())));
        plain += u64::from(taken);
        frames.push(frame(&b.router_mac, &b.mac, 0x0800, &packet));
    };
    let summed = gre;
    let gre = |flags: u16, kind: u16, more: &[u8], payload: &[u8]| {
        [&flags.to_be_bytes()[..], &kind.to_be_bytes(), more, payload].concat()
    };
    let around = |tos: u8, ttl: u8, fragment: u16, protocol: u8| {
        move |payload: &[u8]| ipv4(tos, ttl, fragment, protocol, ends, payload)
    };
    let (from4, from6) = (Ipv4Addr::new(10, 81, 0, 2), Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, 0, 2));
    let in4 = |payload: &[u8]| ipv4(0, 64, 0, 253, (from4, a.v4), payload);
    let in6 = |payload: &[u8]| ipv6(0, 64, (from6, a.v6), payload);
    let plain4 = |payload: &[u8]| gre(0, 0x0800, &[], payload);
    // Every tunnel and family.
    add(true, &|p| around(0, 64, 0, 47)(&plain4(p)), &in4);
    add(true, &|p| around(0, 64, 0x4000, 47)(&gre(0, 0x86dd, &[], p)), &in6);
    add(true, &|p| around(0, 64, 0, 47)(&gre(0x2000, 0x0800, &[0, 0, 0, 7], p)), &in4);
    add(true, &|p| around(0, 64, 0, 47)(&gre(0x2000, 0x86dd, &[0, 0, 0, 8], p)), &in6);
    add(true, &|p| around(0, 64, 0, 4)(p), &in4);
    add(true, &|p| around(0, 64, 0, 41)(p), &in6);
    // With a checksum: right, wrong, missing, not expected.
    let key = &[0, 0, 0, 11];
    add(true, &|p| around(0, 64, 0, 47)(&summed(0xa000, 0x0800, key, 0, p)), &in4);
    add(true, &|p| around(0, 64, 0, 47)(&summed(0xa000, 0x86dd, key, 0, p)), &in6);
    add(false, &|p| around(0, 64, 0, 47)(&summed(0xa000, 0x0800, key, 1, p)), &in4);
    add(false, &|p| around(0, 64, 0, 47)(&summed(0x2000, 0x0800, key, 0, p)), &in4);
    add(false, &|p| around(0, 64, 0, 47)(&summed(0x8000, 0x0800, &[], 0, p)), &in4);
    add(false, &|p| around(0, 64, 0, 47)(&summed(0xa000, 0x0800, &[0, 0, 0, 7], 0, p)), &in4);
    // Congestion marks, around and within.
    for tos in 0..4 {
        for within in 0..4 {
            add(tos & 1 == 0, &|p| around(tos, 64, 0, 47)(&plain4(p)), &|p| ipv4(within, 64, 0, 253, (from4, a.v4), p));
            add(tos & 1 == 0, &|p| around(tos, 64, 0, 41)(p), &|p| ipv6(within, 64, (from6, a.v6), p));
        }
    }
    // Faults of the outer packet: TTL, a fragment, another key, flags, versions, protocols, ends.
    add(false, &|p| around(0, 1, 0, 47)(&plain4(p)), &in4);
    add(false, &|p| around(0, 64, 0x2000, 47)(&plain4(p)), &in4);
    for (flags, kind, more) in [
        (0x2000u16, 0x0800u16, &[0, 0, 0, 70][..]),
        (0x2000, 0x0800, &[0, 0, 0, 9]),
        (0x2000, 0x0800, &[]),
        (0x8000, 0x0800, &[0, 0, 0, 0]),
        (0x1000, 0x0800, &[0, 0, 0, 1]),
        (0x4000, 0x0800, &[0, 0, 0, 0]),
        (0x0001, 0x0800, &[]),
        (0x0008, 0x0800, &[]),
        (0, 0x6558, &[]),
        (0, 0x0806, &[]),
    ] {
        add(false, &|p| around(0, 64, 0, 47)(&gre(flags, kind, more, p)), &in4);
    }
    add(false, &|p| ipv4(0, 64, 0, 47, (Ipv4Addr::new(10, 0, 2, 9), b.router_v4), &plain4(p)), &in4);
    add(false, &|p| ipv4(0, 64, 0, 47, (b.v4, a.router_v4), &plain4(p)), &in4);
    add(false, &|p| around(0, 64, 0, 47)(&gre(0, 0x86dd, &[], p)), &in4);
    add(false, &|p| around(0, 64, 0, 4)(p), &in6);
    add(false, &|p| around(0, 64, 0, 41)(p), &in4);
    // The kernel gets the packet as it came, after a look at the second one.
    add(true, &|p| around(0, 64, 0, 4)(&around(0, 64, 0, 4)(p)), &in4);
    let broken = |packet: Vec<u8>, at: usize, with: u8| {
        let mut packet = packet;
        packet[at] ^= with;
        packet
    };
    add(false, &|p| broken(around(0, 64, 0, 4)(p), 10, 1), &in4);
    // Faults of the inner packet: TTL, checksum, options, lengths, addresses that are not forwarded.
    for (ttl, taken) in [(2, true), (1, false), (0, false)] {
        add(taken, &|p| around(0, 64, 0, 4)(p), &|p| ipv4(0, ttl, 0, 253, (from4, a.v4), p));
        add(taken, &|p| around(0, 64, 0, 41)(p), &|p| ipv6(0, ttl, (from6, a.v6), p));
    }
    for (at, with) in [(10, 1), (0, 1), (0, 0x20), (3, 0x40)] {
        add(false, &|p| around(0, 64, 0, 4)(p), &|p| broken(in4(p), at, with));
    }
    // Of the last three, the kernel gets the packets, or a copy, after a look at their routes.
    for (from, to, taken) in [
        (from4, Ipv4Addr::new(224, 0, 0, 5), false),
        (from4, Ipv4Addr::new(127, 0, 0, 1), false),
        (Ipv4Addr::new(127, 0, 0, 1), a.v4, false),
        (Ipv4Addr::new(0, 0, 0, 0), a.v4, false),
        (a.router_v4, a.v4, false),
        (from4, a.router_v4, true),
        (from4, Ipv4Addr::new(10, 0, 1, 255), true),
        (from4, Ipv4Addr::new(10, 99, 0, 1), true),
    ] {
        add(taken, &|p| around(0, 64, 0, 4)(p), &|p| ipv4(0, 64, 0, 253, (from, to), p));
    }
    for (from, to, taken) in [
        ("fe80::9", "fd00:1::2", false),
        ("fd85::2", "ff02::5", false),
        ("::1", "fd00:1::2", false),
        ("fd85::2", "fd00:1::1", true),
    ] {
        let ends: (Ipv6Addr, Ipv6Addr) = (from.parse().unwrap(), to.parse().unwrap());
        add(taken, &|p| around(0, 64, 0, 41)(p), &|p| ipv6(0, 64, ends, p));
    }
    // Padding behind.
    add(true, &|p| around(0, 64, 0, 4)(p), &in4);
    frames.last_mut().unwrap().extend([0xaa; 40]);
    decapsulates(&tunnels, &frames, plain..=plain);
}

/// Fails unless as many of the frames as `plain` says are decapsulated past the kernel, and all that come out do so
/// anyway.
pub fn decapsulates(tunnels: &Tunnels, frames: &[Vec<u8>], plain: RangeInclusive<u64>) {
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let last = ipv4(0, 64, 0, 253, (b.v4, a.v4), b"bywash9999");
    let last = frame(&b.router_mac, &b.mac, 0x0800, &last);
    let kernels = passed(tunnels, false, frames, &last);
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    let before = Tunnels::moved(&bywash).1;
    let ours = passed(tunnels, false, frames, &last);
    let taken = Tunnels::moved(&bywash).1 - before;
    assert_eq!(kernels, ours);
    assert!(plain.contains(&taken), "{taken}, not {plain:?}: {}", bywash.show(&["all"]));
    bywash.assert_conserved();
    bywash.stop();
}

/// The same for frames in VXLANs.
#[test]
fn frames_are_decapsulated_as_the_kernel_does() {
    frames_are_decapsulated(&VXLANS, Ipv6Addr::new(0xfd87, 0, 0, 0, 0, 0, 0, 2));
}

/// The same in VXLANs without an address of their own.
#[test]
fn frames_to_any_address_are_decapsulated_as_the_kernel_does() {
    frames_are_decapsulated(&CHOSEN, Ipv6Addr::new(0xfd91, 0, 0, 0, 0, 0, 0, 2));
}

/// The same for frames in VXLANs that are members of bridges.
#[test]
fn frames_to_a_bridge_are_decapsulated_as_the_kernel_does() {
    frames_are_decapsulated(&BRIDGED, Ipv6Addr::new(0xfd89, 0, 0, 0, 0, 0, 0, 2));
}

fn frames_are_decapsulated(rows: &'static [Row; 2], from6: Ipv6Addr) {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(rows);
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let (mut frames, mut plain) = (vec![], 0);
    let [learns, told] = [rows[0].3, rows[1].3];
    let id = u32::from(learns) << 8;
    let from4 = Ipv4Addr::new(10, learns, 0, 2);
    let own = |vni: u8| (mac_of(vni, 1), mac_of(vni, 2));
    let vxlan = |word: u32, vni: u32, inner: &[u8]| [&word.to_be_bytes()[..], &vni.to_be_bytes(), inner].concat();
    // Returns the packet around a VXLAN header and what follows; the checksum is right, plus `wrong`, or `None`.
    let around = |ends: (Ipv4Addr, Ipv4Addr), tos: u8, port: u16, wrong: Option<u16>, more: i16, vxlan: &[u8]| {
        let len = (8 + vxlan.len() as i16 + more) as u16;
        let mut udp = [&50_000u16.to_be_bytes()[..], &port.to_be_bytes(), &len.to_be_bytes(), &[0, 0], vxlan].concat();
        let packet = ipv4(tos, 64, 0, 17, ends, &udp);
        let header: &[u8; 20] = packet[..20].try_into().unwrap();
        let sum = pseudo4(header, 17, len) + Sum::of(&udp);
        if let Some(wrong) = wrong {
            udp[6..8].copy_from_slice(&(sum.checksum() ^ wrong).to_be_bytes());
        }
        ipv4(tos, 64, 0, 17, ends, &udp)
    };
    let ends = (b.v4, b.router_v4);
    let mut add = |taken: bool, packet: &dyn Fn(&[u8]) -> Vec<u8>| {
        frames.push(frame(&b.router_mac, &b.mac, 0x0800, &packet(&payload(frames.len()))));
        plain += u64::from(taken);
    };
    let in4 =
        |(to, from): (String, String), p: &[u8]| frame(&to, &from, 0x0800, &ipv4(0, 64, 0, 253, (from4, a.v4), p));
    let in6 = |(to, from): (String, String), p: &[u8]| frame(&to, &from, 0x86dd, &ipv6(0, 64, (from6, a.v6), p));
    const VNI: u32 = 0x0800_0000;
    for vni in [learns, told] {
        for wrong in [None, Some(0)] {
            add(true, &|p| around(ends, 0, 4789, wrong, 0, &vxlan(VNI, u32::from(vni) << 8, &in4(own(vni), p))));
            add(true, &|p| around(ends, 0, 4789, wrong, 0, &vxlan(VNI, u32::from(vni) << 8, &in6(own(vni), p))));
        }
        for tos in 0..4u8 {
            for within in 0..4 {
                let packet = |p: &[u8]| ipv4(within, 64, 0, 253, (from4, a.v4), p);
                let inner = |p: &[u8]| frame(&own(vni).0, &own(vni).1, 0x0800, &packet(p));
                let taken = tos & 1 == 0;
                add(taken, &|p| around(ends, tos, 4789, None, 0, &vxlan(VNI, u32::from(vni) << 8, &inner(p))));
            }
        }
    }
    let plain4 = |p: &[u8]| vxlan(VNI, id, &in4(own(learns), p));
    add(false, &|p| around(ends, 0, 4789, Some(1), 0, &plain4(p)));
    add(false, &|p| around(ends, 0, 4788, None, 0, &plain4(p)));
    add(false, &|p| around(ends, 0, 4789, None, 1, &plain4(p)));
    add(false, &|p| around(ends, 0, 4789, None, -1, &plain4(p)));
    add(false, &|p| around((b.v4, a.router_v4), 0, 4789, None, 0, &plain4(p)));
    for (word, vni) in [(0, id), (VNI, 99 << 8), (VNI, id | 1), (VNI | 1, id), (0x0c00_0000, id)] {
        add(false, &|p| around(ends, 0, 4789, None, 0, &vxlan(word, vni, &in4(own(learns), p))));
    }
    // Faults of the inner frame: other addresses, other types, packets that are not forwarded.
    let (mine, theirs) = own(learns);
    for (to, from) in [
        ("02:00:00:00:87:09", theirs.as_str()),
        ("ff:ff:ff:ff:ff:ff", &theirs),
        ("01:00:5e:00:00:05", &theirs),
        (&mine, &mine),
        (&mine, "03:00:00:00:00:01"),
        (&mine, "00:00:00:00:00:00"),
    ] {
        let ends_within = (to.to_owned(), from.to_owned());
        add(false, &|p| around(ends, 0, 4789, None, 0, &vxlan(VNI, id, &in4(ends_within.clone(), p))));
    }
    for kind in [0x86dd, 0x8100, 0x0806, 0x0000] {
        let inner = |p: &[u8]| frame(&mine, &theirs, kind, &ipv4(0, 64, 0, 253, (from4, a.v4), p));
        add(false, &|p| around(ends, 0, 4789, None, 0, &vxlan(VNI, id, &inner(p))));
    }
    for (ttl, to, taken) in [(2, a.v4, true), (1, a.v4, false), (64, Ipv4Addr::new(224, 0, 0, 5), false)] {
        let inner = |p: &[u8]| frame(&mine, &theirs, 0x0800, &ipv4(0, ttl, 0, 253, (from4, to), p));
        add(taken, &|p| around(ends, 0, 4789, None, 0, &vxlan(VNI, id, &inner(p))));
    }
    // A VXLAN that does not learn takes frames of any station, of any end.
    let strange = (mac_of(told, 1), "02:00:00:00:88:99".to_owned());
    add(true, &|p| around(ends, 0, 4789, None, 0, &vxlan(VNI, u32::from(told) << 8, &in4(strange.clone(), p))));
    let other = (Ipv4Addr::new(10, 0, 2, 9), b.router_v4);
    add(true, &|p| around(other, 0, 4789, None, 0, &vxlan(VNI, u32::from(told) << 8, &in4(own(told), p))));
    // The kernel may hear one, to renew the station of the VXLAN that learns.
    decapsulates(&tunnels, &frames, plain - 1..=plain);
}
