//! The kernel's tables change while packets flow: the router follows, and forwards by the new state.

use crate::flows::{LEVELS, forwarded};
use crate::garbage::{mac, udp};
use crate::harness::{Bywash, PATIENCE};
use crate::raw::{Ear, send};
use crate::reload::{File, config};
use bywash_lab::{Ping, Topology, Transfer, has_tool, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns whether one ping from host a is answered, however late: a lost ARP request is repeated after a second.
fn reaches(lab: &Topology, to: IpAddr) -> bool {
    Ping::to(to).count(1).wait(PATIENCE).run(&lab.a().ns).unwrap().received == 1
}

/// Returns whether a ping from host a is not answered within the time that an answer may take.
fn misses(lab: &Topology, to: IpAddr) -> bool {
    Ping::to(to).count(1).wait(Duration::from_millis(800)).run(&lab.a().ns).unwrap().received == 0
}

/// Returns the row of `show routes` for exactly this prefix.
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

/// Of the members of a next-hop object, the kernel chooses those whose neighbours answer (nexthop_is_good_nh).
#[test]
pub fn flows_of_a_member_without_neighbour_take_the_other() {
    require!(require_lab());
    const FLOWS: usize = 16;
    for level in LEVELS {
        let lab = Topology::router_n(3).unwrap();
        let targets: Vec<String> = (1..=FLOWS).map(|n| format!("10.99.0.{n}")).collect();
        for target in &targets {
            lab.b().ns.ip(&["address", "add", target, "dev", "lo"]).unwrap();
        }
        // Nobody has the second member's address.
        lab.r()
            .ip_batch(&format!(
                "nexthop add id 1 via {} dev r1\nnexthop add id 2 via 10.0.3.77 dev r2\nnexthop add id 3 group 1/2\n\
                 route add 10.99.0.0/24 nhid 3\n",
                lab.b().v4
            ))
            .unwrap();
        let unanswered = || targets.iter().filter(|target| misses(&lab, ip(target))).count();
        wait_until("the kernel to know both neighbours", PATIENCE, || unanswered() == 0).unwrap();
        let file = File::new(&config(&[("r0", level), ("r1", level), ("r2", level)]));
        let bywash = file.run(&lab);
        bywash.wait("packets to be forwarded past the kernel", |bywash| {
            !misses(&lab, lab.b().v4.into()) && forwarded(bywash)[0] > 0
        });
        // The kernel forgets now and then that the neighbour did not answer, and tries it with one packet.
        let lost: usize = (0..3).map(|_| unanswered()).sum();
        assert!(lost <= 3, "{level:?}: {lost} of {} lost: {}", 3 * FLOWS, bywash.log());
        bywash.stop();
    }
}

#[test]
pub fn routes_come_move_and_go() {
    require!(require_lab());
    let lab = Topology::router_n(3).unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let nets =
        [("10.9.0.0/24", "10.9.0.1", "10.0.2.2", "10.0.3.2"), ("fd09::/64", "fd09::1", "fd00:2::2", "fd00:3::2")];
    for (net, target, by_b, by_c) in nets {
        // Both b and c have the address; the ports' counters tell which of them was reached.
        for host in &lab.hosts()[1..] {
            host.ns.ip(&["address", "add", target, "dev", "lo"]).unwrap();
        }
        let target = ip(target);
        assert!(misses(&lab, target), "{net} is reached before its route was added");
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
        // A blackhole route with the best metric takes over; after it is deleted there is no route.
        let metric = if net.contains(':') { "512" } else { "0" };
        lab.r().ip(&["route", "replace", "blackhole", net, "metric", metric]).unwrap();
        lab.r().ip(&["route", "del", net, "via", by_c]).ok();
        wait_for_route(&bywash, net, |route| route.is_some_and(|route| route["kind"] == "blackhole"));
        assert!(misses(&lab, target));
        lab.r().ip(&["route", "del", "blackhole", net]).unwrap();
        wait_for_route(&bywash, net, |route| route.is_none());
        assert!(misses(&lab, target));
    }
    bywash.stop();
}

/// A gateway that was one of the router's own addresses when its route was added is none to the kernel, which sends to
/// the destinations themselves (rt_set_nexthop).
#[test]
pub fn own_addresses_are_no_gateways() {
    require!(require_lab());
    for level in LEVELS {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        let to = |n: u8| IpAddr::from([10, 9, n, 1]);
        for n in 0..6 {
            lab.b().ns.ip(&["address", "add", &to(n).to_string(), "dev", "lo"]).unwrap();
        }
        // By a route, by a next-hop object, and by one whose gateway was an address of the router.
        let add = |first: u8| {
            let [second, third] = [1, 2].map(|n| first + n);
            let all = format!(
                "address add 10.6.{first}.1/32 dev r1\n\
                 nexthop add id 1{first} via 10.0.2.1 dev r1\n\
                 nexthop add id 2{first} via 10.6.{first}.1 dev r1\n\
                 address del 10.6.{first}.1/32 dev r1\n\
                 route add 10.9.{second}.0/24 nhid 1{first}\n\
                 route add 10.9.{third}.0/24 nhid 2{first}\n\
                 route add 10.9.{first}.0/24 via 10.0.2.1\n"
            );
            lab.r().ip_batch(&all).unwrap();
        };
        add(0);
        let file = File::new(&config(&[("r0", level), ("r1", level)]));
        let bywash = file.run(&lab);
        add(3);
        wait_for_route(&bywash, "10.9.3.0/24", |route| route.is_some());
        for n in 0..6 {
            assert!(reaches(&lab, to(n)), "{level:?}: {}: {}", to(n), bywash.text(&["routes"]));
        }
        bywash.stop();
    }
}

/// Returns UDP packets from host a, `times` in each of `flows` flows.
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
    // The hash that chooses a path includes the ports.
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
    // Sends the frames and returns how many left by each of the two paths.
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
    // With weights 1 and 3, a quarter leaves by the first path.
    let weighted = split(&flows(&lab, 400, ip("10.10.0.1"), 1));
    assert!((50..=150).contains(&weighted[0]), "{weighted:?}");
    // A next-hop object is replaced while a route uses it.
    r.ip(&["nexthop", "replace", "id", "10", "group", "2"]).unwrap();
    wait_for_route(&bywash, "10.10.0.0/24", has_hop("r2"));
    assert_eq!(split(&flows(&lab, 40, ip("10.10.0.1"), 1)), [0, 40]);
    // A path without carrier takes no more flows once such paths are ignored.
    r.sysctl("net/ipv4/conf/r1/ignore_routes_with_linkdown", "1").unwrap();
    lab.b().ns.ip(&["link", "set", "b0", "down"]).unwrap();
    bywash.wait("the link to go down", |bywash| bywash.port("r1")["state"] == "down");
    // Until the router follows, the kernel forwards the packets of this path, and the port does not count them.
    let dead = |route: Option<&Value>| route.is_some_and(|route| route["next_hops"].to_string().contains("\"dead\""));
    wait_for_route(&bywash, "10.9.0.0/24", dead);
    bywash.wait("the dead path to be unused", |_| split(&flows(&lab, 40, ip("10.9.0.1"), 1)) == [0, 40]);
    bywash.stop();
}

/// A next-hop object, or the only member of a group, discards packets and forwards again. Meanwhile the kernel shows
/// its routes as blackholes. With `nexthop_compat_mode` off it does not announce them again when the object changes.
#[test]
pub fn next_hop_objects_discard_and_forward_again() {
    require!(require_lab());
    for (level, compatible) in [("user", "1"), ("user", "0"), ("driver", "0")] {
        let lab = Topology::router_n(3).unwrap();
        let (b, r) = (lab.b(), lab.r());
        r.run(&["sysctl", "-qw", &format!("net.ipv4.nexthop_compat_mode={compatible}")]).unwrap();
        let targets = ["10.9.0.1", "fd09::1"];
        for target in targets {
            b.ns.ip(&["address", "add", target, "dev", "lo"]).unwrap();
        }
        // A less specific route leads to b, too: packets that an object discards must not take it.
        r.ip_batch(&format!(
            "nexthop add id 4 via {0} dev r1\nnexthop add id 6 via {1} dev r1\nnexthop add id 14 group 4\n\
             nexthop add id 16 group 6\nroute add 10.9.0.0/24 nhid 4\nroute add fd09::/64 nhid 6\n\
             route add 10.9.0.0/28 nhid 14\nroute add fd09::/96 nhid 16\nroute add 10.0.0.0/8 via {0}\n\
             route add fd00::/8 via {1}\n",
            b.v4, b.v6
        ))
        .unwrap();
        let bywash = Bywash::run(r, &["--level", level, "r0", "r1", "r2"]);
        let routes = ["10.9.0.0/24", "fd09::/64", "10.9.0.0/28", "fd09::/96"];
        let all = |wanted: &str| {
            for prefix in routes {
                wait_for_route(&bywash, prefix, |route| route.is_some_and(|route| route["kind"] == wanted));
            }
        };
        for _ in 0..2 {
            all("unicast");
            assert!(targets.iter().all(|target| reaches(&lab, ip(target))), "{level}: {}", bywash.log());
            r.ip(&["nexthop", "replace", "id", "4", "blackhole"]).unwrap();
            r.ip(&["-6", "nexthop", "replace", "id", "6", "blackhole"]).unwrap();
            all("blackhole");
            assert!(targets.iter().all(|target| misses(&lab, ip(target))), "{level}: a packet was not discarded");
            r.ip(&["nexthop", "replace", "id", "4", "via", &b.v4.to_string(), "dev", "r1"]).unwrap();
            r.ip(&["nexthop", "replace", "id", "6", "via", &b.v6.to_string(), "dev", "r1"]).unwrap();
        }
        all("unicast");
        assert!(targets.iter().all(|target| reaches(&lab, ip(target))), "{level}: {}", bywash.log());
        bywash.wait("no drift", |bywash| bywash.show(&["drift"]) == json!([]));
        bywash.stop();
    }
}

#[test]
pub fn neighbours_and_addresses_are_followed() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (a, b) = (lab.a(), lab.b());
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    assert!(reaches(&lab, b.v4.into()) && reaches(&lab, b.v6.into()));

    // The host gets another MAC address, as with a new network card, and the router's entries are replaced.
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
    bywash.wait("the router's new MAC address", |bywash| bywash.port("r0")["mac"] == "02:00:00:00:01:55");
    assert!(reaches(&lab, b.v4.into()) && reaches(&lab, b.v6.into()));

    // An address is added to the router, and deleted again.
    for (address, len) in [("10.77.0.1", "/32"), ("fd77::1", "/128")] {
        let with_len = format!("{address}{len}");
        assert!(misses(&lab, ip(address)));
        lab.r().ip(&["address", "add", &with_len, "dev", "lo"]).unwrap();
        // Before the router follows, the kernel answers, too: it gets a copy of the packet to send an error about it.
        bywash.wait(address, |bywash| {
            let before = bywash.verdicts("r0", "pass_local");
            !misses(&lab, ip(address)) && bywash.verdicts("r0", "pass_local") > before
        });
        lab.r().ip(&["address", "del", &with_len, "dev", "lo"]).unwrap();
        bywash.wait("the address to go", |bywash| bywash.show(&["routes", address]) == serde_json::json!([]));
        assert!(misses(&lab, ip(address)));
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
    // The carrier goes, as with a pulled cable: the kernel keeps the addresses.
    b.ns.ip(&["link", "set", &b.interface, "down"]).unwrap();
    bywash.wait("no carrier", |bywash| bywash.port("r1")["state"] == "down");
    assert!(misses(&lab, b.v4.into()));
    assert_eq!(bywash.port("r0")["state"], "up");
    b.ns.ip(&["link", "set", &b.interface, "up"]).unwrap();
    b.ns.ip(&["route", "replace", "default", "via", &b.router_v4.to_string()]).unwrap();
    bywash.wait("carrier", |bywash| bywash.port("r1")["state"] == "up");
    bywash.wait("b to be reached", |_| !misses(&lab, b.v4.into()));
    // The interface is set down: the kernel removes IPv4 routes without notification, and IPv6 addresses.
    r.ip(&["link", "set", "r1", "down"]).unwrap();
    bywash.wait("r1 to be down", |bywash| bywash.port("r1")["state"] == "down");
    bywash.wait("an error about the destination", |_| {
        let report = Ping::to(b.v4).count(1).run(&lab.a().ns).unwrap();
        (report.received, report.errors) == (0, 1)
    });
    r.ip(&["link", "set", "r1", "up"]).unwrap();
    r.ip(&["address", "replace", "fd00:2::1/64", "dev", "r1", "nodad"]).unwrap();
    bywash.wait("r1 to be up", |bywash| bywash.port("r1")["state"] == "up");
    bywash.wait("b to be reached by IPv4", |_| !misses(&lab, b.v4.into()));
    bywash.stop();
}

/// Routes by TOS and by source lead to c, and the other routes for these destinations to b. The router leaves such
/// packets to the kernel, because only the kernel can tell which route applies. (The kernel ignores the other routes of
/// a prefix whose routes by source do not match a packet.)
fn some_packets_only(level: &str) {
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let (a, b, c, r) = (lab.a(), lab.b(), &lab.hosts()[2], lab.r());
    r.ip_batch("route add 10.9.0.0/16 via 10.0.2.2\nroute add fd09::/32 via fd00:2::2\n").unwrap();
    let bywash = Bywash::run(r, &["--level", level, "r0", "r1", "r2"]);
    let ears = [b, c].map(|host| Ear::at(&host.ns, &host.interface));
    let mut turn = 0;
    // Sends one packet and returns whether it arrived at c.
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
    // For each family, one packet without a route by TOS or source and one with such a route.
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
    bywash.wait("no drift", |bywash| bywash.show(&["drift"]) == json!([]));
    change("del");
    bywash.wait("nothing to be left to the kernel", |_| {
        let before = passed();
        assert_eq!(all(), [false; 4]);
        passed() == before
    });
    bywash.stop();
}

#[test]
pub fn routes_for_some_packets_only_are_left_to_the_kernel() {
    require!(require_lab(), has_tool("python3"));
    some_packets_only("user");
    some_packets_only("driver");
}

/// The kernel sends packets to host c, whose interface is not a port.
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

/// Sends a router advertisement to all, from a host's link-local address, with the lifetime in seconds and the MTU
/// given as arguments.
const ADVERTISE: &str = "
import socket, struct, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
lifetime, mtu = map(int, sys.argv[2:])
message = struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, lifetime, 0, 0) + struct.pack('!BBHI', 5, 1, 0, mtu)
s.sendto(message, ('ff02::1', 0, 0, socket.if_nametoindex(sys.argv[1])))
";

/// A router advertisement changes the lifetime and the MTU of routes, which the kernel does not announce.
#[test]
pub fn a_router_advertisement_changes_routes_silently() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::router().unwrap();
    let (r, b) = (lab.r(), lab.b());
    for (name, value) in [("conf/r1/accept_ra", "2"), ("conf/r1/accept_ra_mtu", "1"), ("route/gc_interval", "1000")] {
        r.sysctl(&format!("net/ipv6/{name}"), value).unwrap();
    }
    b.ns.ip_batch("address add fd09::1 dev lo\naddress add fd0a::1 dev lo\n").unwrap();
    r.ip(&["route", "add", "fd0a::/64", "via", &b.v6.to_string(), "mtu", "1480"]).unwrap();
    let advertise = |lifetime: &str, mtu: &str| {
        b.ns.run(&["python3", "-c", ADVERTISE, &b.interface, lifetime, mtu]).unwrap();
    };
    let bywash = Bywash::run(r, &lab.router_interfaces());
    wait_until("the default route", PATIENCE, || {
        advertise("1000", "1500");
        reaches(&lab, ip("fd09::1"))
    })
    .unwrap();
    assert!(reaches(&lab, ip("fd0a::1")));
    let of_kernel = |mtu: &str| r.ip(&["-6", "route", "show", "fd0a::/64"]).unwrap().stdout.contains(mtu);
    wait_for_route(&bywash, "fd0a::/64", has_mtu(1480));
    // The interface's MTU rises again, but not that of the route.
    advertise("1000", "1400");
    advertise("1000", "1500");
    assert!(of_kernel("mtu 1400"));
    wait_for_route(&bywash, "fd0a::/64", has_mtu(1400));
    assert!(route(&bywash, "::/0").is_some());
    advertise("1", "1500");
    wait_until("the default route to expire", PATIENCE, || misses(&lab, ip("fd09::1"))).unwrap();
    bywash.stop();
}

/// Returns a check that a route has this MTU of its own.
fn has_mtu(mtu: u32) -> impl Fn(Option<&Value>) -> bool {
    move |route| route.is_some_and(|route| route["mtu"] == mtu)
}

/// The kernel lowers the MTU of a route with a next-hop object together with the MTU of an interface, without a
/// message.
#[test]
pub fn an_interface_lowers_the_mtu_of_routes_by_objects() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let r = lab.r();
    r.ip_batch("nexthop add id 1 via fd00:2::2 dev r1\nroute add fd09::/64 nhid 1 mtu 1480\n").unwrap();
    let bywash = Bywash::run(r, &lab.router_interfaces());
    wait_for_route(&bywash, "fd09::/64", has_mtu(1480));
    r.ip(&["link", "set", "r1", "mtu", "1400"]).unwrap();
    wait_for_route(&bywash, "fd09::/64", has_mtu(1400));
    // Not raised again with the interface, which has got another MTU for IPv6 meanwhile.
    r.sysctl("net/ipv6/conf/r1/mtu", "1390").unwrap();
    r.ip(&["link", "set", "r1", "mtu", "1500"]).unwrap();
    assert!(r.ip(&["-6", "route", "show", "fd09::/64"]).unwrap().stdout.contains("mtu 1400"));
    wait_for_route(&bywash, "fd09::/64", has_mtu(1400));
    bywash.stop();
}

/// Each leg of an IPv6 route has an MTU of its own, of which the kernel shows the first one's.
#[test]
pub fn legs_with_different_mtus_are_left_to_the_kernel() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let (r, a) = (lab.r(), lab.a());
    let one = "route add fd09::/64 via fd00:2::2\nroute append fd09::/64 via fd00:3::2";
    r.ip_batch(&format!("{one} mtu 1300\n")).unwrap();
    let bywash = Bywash::run(r, &lab.router_interfaces());
    let hops = |wanted: &'static [&'static str]| {
        move |route: Option<&Value>| {
            let ports = |route: &Value| -> Vec<String> {
                let hops = route["next_hops"].as_array().unwrap().iter();
                hops.map(|hop| hop["port"].as_str().unwrap_or_default().to_owned()).collect()
            };
            route.is_some_and(|route| ports(route) == wanted)
        }
    };
    let (both, kernels) = (hops(&["r1", "r2"]), hops(&["", ""]));
    wait_for_route(&bywash, "fd09::/64", kernels);
    // Nothing longer than 1,300 bytes leaves by the second leg.
    let [near, far] = [1, 2].map(|host: usize| Ear::at(&lab.hosts()[host].ns, &lab.hosts()[host].interface));
    let long = |n: u16| {
        let (from, to) = (SocketAddr::from((a.v6, 10_000 + n)), SocketAddr::from((ip(&format!("fd09::{n:x}")), 9)));
        let packet = Packet::udp(from, to).macs(mac(&a.mac), mac(&a.router_mac)).ttl(64).payload(&[0; 1400]);
        (1, packet.build().unwrap())
    };
    send(&a.ns, &a.interface, &(0..64).map(long).collect::<Vec<_>>());
    let is_long = |frame: &[u8]| frame.len() > 1400;
    near.wait(8, is_long);
    assert!(!far.heard().iter().any(|frame| is_long(frame)));
    // Without a difference, both are used, and again not once there is one.
    r.ip(&["route", "del", "fd09::/64", "via", "fd00:3::2"]).unwrap();
    r.ip(&["route", "append", "fd09::/64", "via", "fd00:3::2"]).unwrap();
    wait_for_route(&bywash, "fd09::/64", both);
    r.ip(&["route", "del", "fd09::/64"]).unwrap();
    r.ip_batch(&format!("{one} mtu 1300\n")).unwrap();
    wait_for_route(&bywash, "fd09::/64", kernels);
    bywash.stop();
}

/// An interface that does not forward accepts redirects by its own switch, for packets that others forward to it.
#[test]
pub fn redirects_are_followed_out_of_an_interface_that_does_not_forward() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let (r, a, b) = (lab.r(), lab.a(), lab.b());
    r.sysctl("net/ipv4/conf/r1/forwarding", "0").unwrap();
    r.ip_batch("route add 10.9.0.0/24 via 10.0.2.2\nneighbour add 10.0.2.3 lladdr 02:00:00:00:00:99 dev r1\n").unwrap();
    let bywash = Bywash::run(r, &lab.router_interfaces());
    let redirect = "
import socket, struct
def sum16(b):
    total = sum(struct.unpack('!%dH' % (len(b) // 2), b))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return struct.pack('!H', ~total & 0xffff)
at = socket.inet_aton
about = struct.pack('!BBHIBBH', 0x45, 0, 28, 0, 64, 1, 0) + at('10.0.2.1') + at('10.9.0.1')
about = about[:10] + sum16(about) + about[12:] + bytes(8)
message = struct.pack('!BBH', 5, 1, 0) + at('10.0.2.3') + about
message = message[:2] + sum16(message) + message[4:]
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).sendto(message, ('10.0.2.1', 0))
";
    let ear = Ear::at(&b.ns, &b.interface);
    let by_other = |frame: &[u8]| frame.starts_with(&[2, 0, 0, 0, 0, 0x99]);
    wait_until("the redirect to be followed", PATIENCE, || {
        b.ns.run(&["python3", "-c", redirect]).unwrap();
        send(&a.ns, &a.interface, &flows(&lab, 1, ip("10.9.0.1"), 4));
        ear.heard().iter().any(|frame| by_other(frame))
    })
    .unwrap();
    bywash.stop();
}

/// While there are no rules, the kernel looks up IPv4's tables local and main as one.
#[test]
pub fn a_longer_prefix_goes_before_a_route_of_table_local() {
    require!(require_lab());
    for level in LEVELS {
        let lab = Topology::router_n(3).unwrap();
        let b = lab.b();
        b.ns.ip(&["address", "add", "10.9.0.1", "dev", "lo"]).unwrap();
        lab.r().ip(&["route", "add", "10.9.0.0/24", "via", "10.0.2.2"]).unwrap();
        let file = File::new(&config(&[("r0", level), ("r1", level), ("r2", level)]));
        let bywash = file.run(&lab);
        assert!(reaches(&lab, b.v4.into()) && reaches(&lab, ip("10.9.0.1")));
        lab.r().ip_batch("route add 10.0.0.0/8 via 10.0.3.2 table local\n").unwrap();
        wait_for_route(&bywash, "10.0.0.0/8", |route| route.is_some());
        assert!(reaches(&lab, b.v4.into()), "{level:?}: the shorter prefix is used");
        lab.r().ip_batch("route add throw 10.9.0.0/24 table local\n").unwrap();
        bywash.wait("throw to be followed", |bywash| {
            let routes = bywash.show(&["routes", "10.9.0.0/24"]);
            routes.as_array().unwrap().iter().any(|route| route["table"] == 255)
        });
        assert!(misses(&lab, ip("10.9.0.1")), "{level:?}: the lookup goes on after `throw`");
        // IPv6's tables are separate, and `throw` leads from one to the next.
        lab.r()
            .ip_batch("route add throw fd00:2::/64 table local\nroute add fd00:2::/32 via fd00:3::2 table local\n")
            .unwrap();
        wait_for_route(&bywash, "fd00:2::/32", |route| route.is_some());
        assert!(reaches(&lab, b.v6.into()), "{level:?}: a shorter prefix is used after `throw`");
        bywash.wait("no drift", |bywash| bywash.show(&["drift"]) == json!([]));
        bywash.stop();
    }
}

/// Ports with two queues each run on two workers where there are two CPUs, and a packet that one worker receives can
/// leave by a port's queue of another.
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
    let rings = |bywash: &Bywash<'_>, name| {
        bywash.port(name)["queues"].as_array().unwrap().iter().filter(|end| end["queue"] != Value::Null).count()
    };
    // A worker that does not run just now is left out.
    bywash.wait("every queue to be shown", |bywash| (rings(bywash, "r0"), rings(bywash, "r1")) == (2, 2));
    assert!(bywash.all_drops().is_empty(), "{:?}", bywash.all_drops());
    bywash.stop();
}
