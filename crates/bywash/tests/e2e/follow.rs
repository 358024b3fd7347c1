//! The kernel's tables change while packets flow, and the very next packet goes by them.

use crate::garbage::{mac, udp};
use crate::harness::Bywash;
use crate::raw::{Ear, send};
use bywash_lab::{Ping, Topology, Transfer, has_tool, require, require_lab};
use bywash_wire::build::Packet;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Whether one ping from host a is answered.
fn reaches(lab: &Topology, to: IpAddr) -> bool {
    Ping::to(to).count(1).wait(Duration::from_millis(800)).run(&lab.a().ns).unwrap().received == 1
}

/// What `show routes` has for exactly this prefix.
fn route(bywash: &Bywash<'_>, prefix: &str) -> Option<Value> {
    let routes = bywash.show(&["routes", prefix]);
    routes.as_array().unwrap().iter().find(|route| route["prefix"] == prefix).cloned()
}

fn wait_for_route(bywash: &Bywash<'_>, prefix: &str, wanted: impl Fn(Option<&Value>) -> bool) {
    bywash.wait(&format!("{prefix} to be followed"), |bywash| wanted(route(bywash, prefix).as_ref()));
}

fn has_hop(port: &'static str) -> impl Fn(Option<&Value>) -> bool {
    move |route| route.is_some_and(|route| route["next_hops"][0]["port"] == port)
}

#[test]
pub fn routes_come_move_and_go() {
    require!(require_lab());
    let lab = Topology::router_n(3).unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let nets =
        [("10.9.0.0/24", "10.9.0.1", "10.0.2.2", "10.0.3.2"), ("fd09::/64", "fd09::1", "fd00:2::2", "fd00:3::2")];
    for (net, target, by_b, by_c) in nets {
        // Both b and c have the address; each answers for itself, counted on its port.
        for host in &lab.hosts()[1..] {
            host.ns.ip(&["address", "add", target, "dev", "lo"]).unwrap();
        }
        let target = ip(target);
        assert!(!reaches(&lab, target), "{net} is there before it was added");
        lab.r().ip(&["route", "add", net, "via", by_b]).unwrap();
        wait_for_route(&bywash, net, has_hop("r1"));
        let sent = || (bywash.counter("r1", "tx_packets"), bywash.counter("r2", "tx_packets"));
        let (b, c) = sent();
        assert!(reaches(&lab, target));
        assert_eq!(sent(), (b + 1, c));
        lab.r().ip(&["route", "replace", net, "via", by_c]).unwrap();
        wait_for_route(&bywash, net, has_hop("r2"));
        assert!(reaches(&lab, target));
        assert_eq!(sent(), (b + 1, c + 1));
        // A better metric wins, and gives way when it is gone.
        let metric = if net.contains(':') { "512" } else { "0" };
        lab.r().ip(&["route", "replace", "blackhole", net, "metric", metric]).unwrap();
        lab.r().ip(&["route", "del", net, "via", by_c]).ok();
        wait_for_route(&bywash, net, |route| route.is_some_and(|route| route["kind"] == "blackhole"));
        assert!(!reaches(&lab, target));
        lab.r().ip(&["route", "del", "blackhole", net]).unwrap();
        wait_for_route(&bywash, net, |route| route.is_none());
        assert!(!reaches(&lab, target));
    }
    bywash.stop();
}

/// UDP packets of `flows` flows from host a.
fn flows(lab: &Topology, flows: u16, to: IpAddr, times: u32) -> Vec<(u32, Vec<u8>)> {
    let a = lab.a();
    let from = if to.is_ipv4() { IpAddr::from(a.v4) } else { a.v6.into() };
    (0..flows).map(|flow| (times, udp(a, (from, 10_000 + flow), (to, 9)))).collect()
}

#[test]
pub fn equal_paths_share_the_flows_and_a_flow_keeps_its_path() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let r = lab.r();
    // By ports, too.
    for family in ["ipv4", "ipv6"] {
        r.sysctl(&format!("net.{family}.fib_multipath_hash_policy"), "1").unwrap();
    }
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    r.ip_batch(
        "route add 10.9.0.0/24 nexthop via 10.0.2.2 nexthop via 10.0.3.2\n\
         route add fd09::/64 nexthop via fd00:2::2 nexthop via fd00:3::2\n\
         nexthop add id 1 via 10.0.2.2 dev r1\nnexthop add id 2 via 10.0.3.2 dev r2\n\
         nexthop add id 10 group 1/2,3\nroute add 10.10.0.0/24 nhid 10\n",
    )
    .unwrap();
    for net in ["10.9.0.0/24", "fd09::/64", "10.10.0.0/24"] {
        wait_for_route(&bywash, net, |route| route.is_some_and(|r| r["next_hops"].as_array().unwrap().len() == 2));
    }
    let sent = || [bywash.counter("r1", "tx_packets"), bywash.counter("r2", "tx_packets")];
    // Sends and says how many left by each of the two paths.
    let split = |frames: &[(u32, Vec<u8>)]| {
        let (before, total) = (sent(), frames.iter().map(|(times, _)| u64::from(*times)).sum::<u64>());
        send(&lab.a().ns, &lab.a().interface, frames);
        let now = || sent().iter().zip(before).map(|(now, before)| now - before).collect::<Vec<u64>>();
        bywash.wait("all to be sent", |_| now().iter().sum::<u64>() >= total);
        now()
    };
    for to in ["10.9.0.1", "fd09::1"] {
        let many = split(&flows(&lab, 400, ip(to), 1));
        assert!(many.iter().all(|path| (130..=270).contains(path)), "{to}: {many:?}");
        let one = split(&flows(&lab, 1, ip(to), 100));
        assert!(one == [100, 0] || one == [0, 100], "{to}: one flow on two paths: {one:?}");
    }
    // Weights 1 and 3: a quarter by the first.
    let weighted = split(&flows(&lab, 400, ip("10.10.0.1"), 1));
    assert!((50..=150).contains(&weighted[0]), "{weighted:?}");
    // A next hop object changes under its route.
    r.ip(&["nexthop", "replace", "id", "10", "group", "2"]).unwrap();
    wait_for_route(&bywash, "10.10.0.0/24", has_hop("r2"));
    assert_eq!(split(&flows(&lab, 40, ip("10.10.0.1"), 1)), [0, 40]);
    // A path without carrier takes no more flows where such are ignored.
    r.sysctl("net/ipv4/conf/r1/ignore_routes_with_linkdown", "1").unwrap();
    lab.b().ns.ip(&["link", "set", "b0", "down"]).unwrap();
    bywash.wait("the link to go down", |bywash| bywash.port("r1")["state"] == "down");
    // Until that is followed, packets by this path are the kernel's, and not counted.
    let dead = |route: Option<&Value>| route.is_some_and(|route| route["next_hops"].to_string().contains("\"dead\""));
    wait_for_route(&bywash, "10.9.0.0/24", dead);
    bywash.wait("its path to be left", |_| split(&flows(&lab, 40, ip("10.9.0.1"), 1)) == [0, 40]);
    bywash.stop();
}

#[test]
pub fn neighbours_and_addresses_are_followed() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (a, b) = (lab.a(), lab.b());
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    assert!(reaches(&lab, b.v4.into()) && reaches(&lab, b.v6.into()));

    // The host gets another network card, and says so.
    b.ns.ip(&["link", "set", &b.interface, "address", "02:00:00:00:02:99"]).unwrap();
    for address in [b.v4.to_string(), b.v6.to_string()] {
        let port = b.router_interface.as_str();
        lab.r().ip(&["neigh", "replace", &address, "lladdr", "02:00:00:00:02:99", "dev", port]).unwrap();
    }
    let has_new = |bywash: &Bywash<'_>| bywash.show(&["neighbours"]).to_string().matches("02:00:00:00:02:99").count();
    bywash.wait("the new MAC address", |bywash| has_new(bywash) >= 2);
    assert!(reaches(&lab, b.v4.into()) && reaches(&lab, b.v6.into()));

    // The router gets another MAC address on a's side.
    lab.r().ip(&["link", "set", "r0", "address", "02:00:00:00:01:55"]).unwrap();
    a.ns.ip(&["neigh", "flush", "all"]).unwrap();
    bywash.wait("its own new MAC address", |bywash| bywash.port("r0")["mac"] == "02:00:00:00:01:55");
    assert!(reaches(&lab, b.v4.into()) && reaches(&lab, b.v6.into()));

    // An address becomes the router's own, and ceases to be.
    for (address, len) in [("10.77.0.1", "/32"), ("fd77::1", "/128")] {
        let with_len = format!("{address}{len}");
        assert!(!reaches(&lab, ip(address)));
        lab.r().ip(&["address", "add", &with_len, "dev", "lo"]).unwrap();
        // Until it is followed, the kernel answers the copy of the packet that it gets to send an error about.
        bywash.wait(address, |bywash| {
            let before = bywash.verdicts("r0", "pass_local");
            reaches(&lab, ip(address)) && bywash.verdicts("r0", "pass_local") > before
        });
        lab.r().ip(&["address", "del", &with_len, "dev", "lo"]).unwrap();
        bywash.wait("the address to go", |bywash| bywash.show(&["routes", address]) == serde_json::json!([]));
        assert!(!reaches(&lab, ip(address)));
    }
    bywash.stop();
}

#[test]
pub fn a_link_goes_down_and_comes_back() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (b, r) = (lab.b(), lab.r());
    let bywash = Bywash::run(r, &lab.router_interfaces());
    assert!(reaches(&lab, b.v4.into()));
    // The cable: the kernel keeps the addresses.
    b.ns.ip(&["link", "set", &b.interface, "down"]).unwrap();
    bywash.wait("no carrier", |bywash| bywash.port("r1")["state"] == "down");
    assert!(!reaches(&lab, b.v4.into()));
    assert_eq!(bywash.port("r0")["state"], "up");
    b.ns.ip(&["link", "set", &b.interface, "up"]).unwrap();
    b.ns.ip(&["route", "replace", "default", "via", &b.router_v4.to_string()]).unwrap();
    bywash.wait("carrier", |bywash| bywash.port("r1")["state"] == "up");
    bywash.wait("the way back", |_| reaches(&lab, b.v4.into()));
    // The administrator: IPv4 routes go in silence, IPv6 addresses with them.
    r.ip(&["link", "set", "r1", "down"]).unwrap();
    bywash.wait("down", |bywash| bywash.port("r1")["state"] == "down");
    let report = Ping::to(b.v4).count(1).run(&lab.a().ns).unwrap();
    assert_eq!((report.received, report.errors), (0, 1), "{}", report.text);
    r.ip(&["link", "set", "r1", "up"]).unwrap();
    r.ip(&["address", "replace", "fd00:2::1/64", "dev", "r1", "nodad"]).unwrap();
    bywash.wait("up", |bywash| bywash.port("r1")["state"] == "up");
    bywash.wait("IPv4 again", |_| reaches(&lab, b.v4.into()));
    bywash.stop();
}

/// Routes by TOS and by source lead to c, those beside and beneath them to b: which is whose only the kernel can tell. (To
/// packets for which no source of a prefix fits, it forgets the prefix's other routes.)
fn some_packets_only(level: &str) {
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let (a, b, c, r) = (lab.a(), lab.b(), &lab.hosts()[2], lab.r());
    r.ip_batch("route add 10.9.0.0/16 via 10.0.2.2\nroute add fd09::/32 via fd00:2::2\n").unwrap();
    let bywash = Bywash::run(r, &["--level", level, "r0", "r1", "r2"]);
    let ears = [b, c].map(|host| Ear::at(&host.ns, &host.interface));
    let mut turn = 0;
    // Sends one packet; whether it has gone to c.
    let mut goes_to_c = |from: IpAddr, tos: u8| {
        turn += 1;
        let (to, octets): (IpAddr, Vec<u8>) = match from {
            IpAddr::V4(_) => (Ipv4Addr::from(0x0a09_0000 + turn).into(), (0x0a09_0000 + turn).to_be_bytes().to_vec()),
            IpAddr::V6(_) => {
                let to = (0xfd09 << 112) + u128::from(turn);
                (Ipv6Addr::from(to).into(), to.to_be_bytes().to_vec())
            }
        };
        let packet = Packet::udp(SocketAddr::from((from, 1000)), SocketAddr::from((to, 9))).tos(tos);
        let frame = packet.macs(mac(&a.mac), mac(&a.router_mac)).ttl(64).build().unwrap();
        send(&a.ns, &a.interface, &[(1, frame)]);
        let came = |ear: &Ear| ear.heard().iter().any(|frame| frame.windows(octets.len()).any(|w| w == octets));
        bywash.wait("the packet", |_| ears.iter().any(came));
        came(&ears[1])
    };
    // Without a route of their own, and with one.
    let mut all = || {
        [(a.v4.into(), 0), (a.v4.into(), 0x10), (a.v6.into(), 0), (ip("fd00:1::3"), 0)].map(|(f, t)| goes_to_c(f, t))
    };
    let passed = || bywash.verdicts("r0", "pass_policy");
    assert_eq!(all(), [false; 4]);
    assert_eq!(passed(), 0);
    let some = ["route NOW fd09::/48 from fd00:1::3/128 via fd00:3::2", "route NOW 10.9.0.0/16 tos 0x10 via 10.0.3.2"];
    let change = |verb: &str| r.ip_batch(&some.map(|line| line.replace("NOW", verb) + "\n").concat()).unwrap();
    change("add");
    wait_for_route(&bywash, "10.9.0.0/16", |route| route.is_some_and(|route| route["reason"] == "policy"));
    assert_eq!(all(), [false, true, false, true]);
    assert_eq!(passed(), 4);
    assert_eq!(bywash.show(&["drift"]), json!([]));
    change("del");
    bywash.wait("nothing to be left to the kernel", |_| {
        let before = passed();
        assert_eq!(all(), [false; 4]);
        passed() == before
    });
    bywash.stop();
}

#[test]
pub fn routes_for_some_packets_only_are_the_kernels() {
    require!(require_lab(), has_tool("python3"));
    some_packets_only("user");
    some_packets_only("driver");
}

/// c hangs on an interface that bywash was not given.
#[test]
pub fn the_kernel_sends_what_leaves_by_no_port() {
    require!(require_lab());
    let lab = Topology::router_n(3).unwrap();
    let c = &lab.hosts()[2];
    let bywash = Bywash::run(lab.r(), &["r0", "r1"]);
    c.ns.ip_batch("address add 203.0.113.9 dev lo\naddress add 2001:db8::9 dev lo\n").unwrap();
    lab.r().ip_batch("route add default via 10.0.3.2\nroute add ::/0 via fd00:3::2\n").unwrap();
    wait_for_route(&bywash, "::/0", |route| route.is_some_and(|route| route["reason"] == "kernel"));
    for to in [IpAddr::from(c.v4), c.v6.into(), ip("203.0.113.9"), ip("2001:db8::9")] {
        let report = Ping::to(to).count(5).run(&lab.a().ns).unwrap();
        assert_eq!((report.received, report.errors), (5, 0), "{}", report.text);
        assert!(report.text.contains("ttl=63"), "{}", report.text);
        let last_hop = Ping::to(to).count(1).ttl(1).run(&lab.a().ns).unwrap();
        assert_eq!((last_hop.received, last_hop.errors), (0, 1), "{}", last_hop.text);
    }
    let report = Transfer::new(1_000_000).run(&lab.a().ns, &c.ns, c.v4).unwrap();
    assert!(report.is_intact(), "{report:?}");
    assert!(bywash.verdicts("r0", "pass_route") > 20);
    bywash.stop();
}

/// Two queues a port, and so two workers where there are two CPUs; what one receives, any other can send.
#[test]
pub fn every_queue_is_served() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().queues(2).static_neighbours(true).build().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    for to in [IpAddr::from(lab.b().v4), lab.b().v6.into()] {
        send(&lab.a().ns, &lab.a().interface, &flows(&lab, 200, to, 1));
        assert!(reaches(&lab, to));
    }
    bywash.wait("all to be sent", |bywash| bywash.counter("r1", "tx_packets") >= 402);
    let rings =
        |name| bywash.port(name)["queues"].as_array().unwrap().iter().filter(|end| end["queue"] != Value::Null).count();
    assert_eq!((rings("r0"), rings("r1")), (2, 2));
    assert!(bywash.all_drops().is_empty(), "{:?}", bywash.all_drops());
    bywash.stop();
}
