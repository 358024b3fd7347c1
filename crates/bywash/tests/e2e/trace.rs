//! `bywash trace`: the path of a given packet, which is not sent, and of the next packet that a port receives.

use crate::harness::{Bywash, PATIENCE, bywash, program};
use bywash_lab::{Ping, Topology, has_tool, require, require_lab};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};

/// Returns a UDP frame in hex, of 96 bytes without the frame check sequence.
pub fn frame(from: IpAddr, to: &str, ttl: u8, mac: MacAddr) -> String {
    let from: SocketAddr = (from, 1000).into();
    let to: SocketAddr = (to.parse::<IpAddr>().unwrap(), 2000).into();
    let mut bytes = Packet::udp(from, to).macs(MacAddr([2, 0, 0, 0, 0, 9]), mac).size(100).build().unwrap();
    bytes[22] = ttl;
    bywash_wire::ipv4::fill_checksum(&mut bytes[14..]);
    bywash_wire::hex::encode(&bytes)
}

#[test]
fn a_packet_is_followed_through_the_router() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let router = Bywash::run(lab.r(), &lab.router_interfaces());
    let socket = router.socket();
    let (a, b) = (lab.a(), lab.b());
    // The router must know b's MAC address.
    assert_eq!(Ping::to(b.v4).count(1).run(&a.ns).unwrap().received, 1);
    let mac: MacAddr = router.port("r0")["mac"].as_str().unwrap().parse().unwrap();
    let frame = |to: &str, ttl: u8| frame(a.v4.into(), to, ttl, mac);
    let trace = |arguments: &[&str]| {
        let out = bywash(lab.r(), &[&["trace", "--socket", socket.to_str().unwrap()], arguments].concat());
        (out.status.success(), out.stdout + &out.stderr)
    };
    let to = b.v4.to_string();
    router.wait("the neighbour to be known", |_| {
        trace(&["r0", &frame(&to, 64)]).1.contains(&format!("adjacency: {to} at "))
    });
    let before = (router.counter("r1", "tx_packets"), router.drops("r0", "ttl-exceeded"));
    let (good, story) = trace(&["r0", &frame(&to, 64)]);
    let udp = format!("udp {} port 1000 > {to} port 2000", a.v4);
    let lines: Vec<&str> = story.lines().collect();
    assert!(good && lines.len() == 8, "{story}");
    assert!(lines[0].starts_with("r0: received, 96 B: ") && lines[0].ends_with(&udp), "{story}");
    assert_eq!(lines[1], "level: user (as requested)");
    assert_eq!(lines[2], "stages: input, lookup, forward");
    assert!(lines[3].starts_with("route: unicast ") && lines[3].contains("dev r1"), "{story}");
    assert!(lines[4].starts_with(&format!("adjacency: {to} at ")) && lines[4].contains(", r1, "), "{story}");
    assert!(lines[5].starts_with("r1: sent, 96 B, ") && lines[5].ends_with(&udp), "{story}");
    assert_eq!(lines[7], "sent to: r1");

    let (_, story) = trace(&["r0", &frame(&to, 1)]);
    assert!(story.ends_with("\n\nnot forwarded: ttl-exceeded; the kernel gets a copy for the ICMP error\n"), "{story}");
    assert_eq!(story.matches("ttl-exceeded").count(), 1, "{story}");
    assert!(story.contains("stages: input, lookup, forward, slow"), "{story}");
    let (_, story) = trace(&["r0", &frame("10.99.0.1", 64)]);
    assert!(
        story.contains("route: none covers") && story.contains("not forwarded: no-route; the kernel gets a copy"),
        "{story}"
    );
    let (_, story) = trace(&["r0", &frame("10.0.2.77", 64)]);
    assert!(story.contains("its neighbour 10.0.2.77 is not known"), "{story}");
    let (_, story) = trace(&["r0", &frame(&a.router_v4.to_string(), 64)]);
    assert!(story.contains("route: local ") && story.contains("handed to the kernel"), "{story}");
    // A packet without a whole header has no destination that a route could be missing for.
    let (_, story) = trace(&["r0", &frame(&to, 64)[..40]]);
    assert!(story.ends_with("\n\ndropped: runt\n") && !story.contains("route"), "{story}");
    // Frames that the port's program passes to the kernel before any worker gets them.
    let (source, own) = ("020000000009", mac.to_string().replace(':', ""));
    let to_own = frame(&to, 64);
    for (frame, why) in [
        (format!("ffffffffffff{source}0806{}", "00".repeat(28)), "it is a multicast or broadcast frame"),
        (format!("{own}{source}0806{}", "00".repeat(28)), "it is neither IPv4 nor IPv6"),
        (format!("0180c2000002{source}8809{}", "00".repeat(46)), "it is a multicast or broadcast frame"),
        (frame("224.0.0.5", 1), "its destination address is multicast or broadcast"),
        (frame("169.254.3.4", 64), "its destination address is link-local"),
        (format!("02000000aaaa{}", &to_own[12..]), "it is addressed to another station than the port's interface"),
    ] {
        let (_, story) = trace(&["r0", &frame]);
        assert!(story.contains(&format!("\nleft to the kernel by the port's program: {why}\n")), "{story}");
        assert!(story.ends_with("\n\nleft to the kernel\n") && !story.contains("dropped"), "{story}");
    }
    // Tracing has neither sent nor counted a packet.
    assert_eq!((router.counter("r1", "tx_packets"), router.drops("r0", "ttl-exceeded")), before);

    let (good, json) = trace(&["--json", "r0", &frame(&to, 64)]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(good && json["outputs"] == serde_json::json!(["r1"]) && json["dropped"].is_null(), "{json}");
    assert_eq!(json["level"]["level"], "user");
    let sent = json["frames"][0]["frame"].as_str().unwrap();
    // The TTL is decremented.
    assert_eq!((sent.len(), &sent[44..46]), (192, "3f"), "{json}");

    let long = format!("{own}{source}0800{}", "00".repeat(4986));
    for (port, frame, told) in [
        ("r7", "00", "no port `r7`: the ports are r0, r1"),
        ("r0", "0", "not hex"),
        ("r0", "00", "left to the kernel by the port's program: it is shorter than an Ethernet header"),
        ("r0", &long, "a frame of 5000 bytes"),
    ] {
        let (_, story) = trace(&[port, frame]);
        assert!(story.contains(told), "{port} {frame}: {story}");
    }
    router.stop();
}

#[test]
fn the_next_packet_is_followed_while_it_is_forwarded() {
    require!(require_lab());
    require!(has_tool("tcpdump"));
    let lab = Topology::router().unwrap();
    let router = Bywash::run(lab.r(), &lab.router_interfaces());
    let (program, socket) = (program(), router.socket());
    let filter = "icmp and greater 200";
    let argv = [program.as_str(), "trace", "--socket", socket.to_str().unwrap(), "r0", "--live", "--filter", filter];
    let mut trace = lab.r().spawn(&argv).unwrap();
    trace.wait_for_output("waiting for a packet", PATIENCE).unwrap();
    let (a, b) = (lab.a(), lab.b());
    // The first pings do not match the filter, the others do.
    assert_eq!(Ping::to(b.v4).count(2).run(&a.ns).unwrap().received, 2);
    assert_eq!(Ping::to(b.v4).count(2).size(400).run(&a.ns).unwrap().received, 2);
    assert!(trace.wait(PATIENCE).unwrap().success(), "{}", trace.output());
    let story = trace.output();
    assert!(story.contains(&format!("r0: received, 442 B: icmp {} > {}", a.v4, b.v4)), "{story}");
    assert!(story.contains("sent to: r1"), "{story}");
    router.stop();
}

#[test]
fn a_switch_takes_a_frame_as_well() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let switch = Bywash::run_as_is(lab.r(), &["--mode", "switch", "r0", "r1"]);
    let socket = switch.socket();
    let frame = frame(lab.a().v4.into(), "10.0.0.2", 64, MacAddr([2, 0, 0, 0, 0, 1]));
    let out = bywash(lab.r(), &["trace", "--socket", socket.to_str().unwrap(), "r0", &frame]);
    let udp = format!("r0: received, 96 B: udp {} port 1000 > 10.0.0.2 port 2000", lab.a().v4);
    assert!(out.stdout.starts_with(&udp) && out.stdout.contains("sent to: r1"), "{}{}", out.stdout, out.stderr);
    switch.stop();
}
