//! Packets through the router are forwarded correctly, or answered with the right ICMP error from the right address.

use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Ping, PingReport, Topology, require, require_lab};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Runs a ping from host a.
fn from_a(lab: &Topology, ping: Ping) -> PingReport {
    ping.run(&lab.a().ns).unwrap()
}

/// Returns the line in which ping reports an ICMP error, `From <address> icmp_seq=1 <error>`, without the number.
fn error_line(report: &PingReport) -> String {
    let line = report.text.lines().find(|line| line.starts_with("From "));
    line.map(|line| line.replace(" icmp_seq=1", "")).unwrap_or_else(|| format!("no error in: {}", report.text))
}

#[test]
pub fn hosts_reach_each_other_and_the_router() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let (a, b) = (lab.a(), lab.b());
    for (from, to) in [(a, b), (b, a)] {
        for far in [IpAddr::from(to.v4), to.v6.into()] {
            // No neighbour is known yet: not even the first packet may be lost.
            let report = Ping::to(far).count(5).run(&from.ns).unwrap();
            assert_eq!((report.received, report.errors), (5, 0), "{}", report.text);
            assert!(report.text.contains("ttl=63"), "not exactly one hop: {}", report.text);
        }
        for near in [IpAddr::from(from.router_v4), from.router_v6.into(), to.router_v4.into(), to.router_v6.into()] {
            let report = Ping::to(near).count(3).run(&from.ns).unwrap();
            assert_eq!((report.received, report.errors), (3, 0), "{}", report.text);
            assert!(report.text.contains("ttl=64"), "{}", report.text);
        }
    }
    // Four runs of five pings, there and back. Packets to the router itself are passed to the kernel before they are
    // received here, or are punted.
    assert_eq!(bywash.counter("r0", "rx_packets"), 20 + bywash.events("r0", "punted"));
    assert_eq!(bywash.counter("r1", "rx_packets"), 20 + bywash.events("r1", "punted"));
    assert_eq!(bywash.counter("r0", "tx_packets"), 20);
    assert_eq!(bywash.verdicts("r0", "pass_local") + bywash.verdicts("r1", "pass_local"), 24);
    assert!(bywash.all_drops().is_empty(), "{:?}", bywash.all_drops());
    assert_eq!(bywash.port("r0")["state"], "up");
    bywash.stop();
}

#[test]
pub fn a_hop_limit_that_runs_out_is_answered_by_the_router() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let (a, b) = (lab.a(), lab.b());
    let report = from_a(&lab, Ping::to(b.v4).count(1).ttl(1));
    assert_eq!(error_line(&report), format!("From {} Time to live exceeded", a.router_v4));
    let report = from_a(&lab, Ping::to(b.v6).count(1).ttl(1));
    assert_eq!(error_line(&report), format!("From {} Time exceeded: Hop limit", a.router_v6));
    // A TTL of 2 suffices for one hop.
    assert_eq!(from_a(&lab, Ping::to(b.v4).count(1).ttl(2)).received, 1);
    assert_eq!(from_a(&lab, Ping::to(b.v6).count(1).ttl(2)).received, 1);
    assert_eq!(bywash.drops("r0", "ttl-exceeded"), 2);
    assert_eq!(bywash.events("r0", "icmp-by-kernel"), 2);
    bywash.stop();
}

#[test]
pub fn routes_that_lead_nowhere_say_so() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    // The kernel sends the errors, and limits their rate for each destination by default.
    lab.r().sysctl("net.ipv4.icmp_ratelimit", "0").unwrap();
    let (v4, v6) = (lab.a().router_v4, lab.a().router_v6);
    let mut lines = String::new();
    for (net, kind) in ["blackhole", "unreachable", "prohibit"].iter().enumerate() {
        lines += &format!("route add {kind} 10.5{net}.0.0/24\nroute add {kind} fd5{net}::/64\n");
    }
    lab.r().ip_batch(&lines).unwrap();
    bywash.wait("the routes to be followed", |bywash| {
        bywash.show(&["routes", "fd52::/64"]).as_array().unwrap().iter().any(|route| route["kind"] == "prohibit")
    });
    // Requests to addresses without a blackhole, by drop reason, IPv4 and IPv6.
    let mut sent = HashMap::from([("blackhole", 2)]);
    for (reason, to, answer) in [
        ("unreachable", "10.51.0.1", format!("From {v4} Destination Host Unreachable")),
        ("prohibited", "10.52.0.1", format!("From {v4} Packet filtered")),
        ("no-route", "10.53.0.1", format!("From {v4} Destination Net Unreachable")),
        ("unreachable", "fd51::1", format!("From {v6} Destination unreachable: No route")),
        ("prohibited", "fd52::1", format!("From {v6} Destination unreachable: Administratively prohibited")),
        ("no-route", "fd53::1", format!("From {v6} Destination unreachable: No route")),
    ] {
        let mut report = from_a(&lab, Ping::to(ip(to)).count(1));
        *sent.entry(reason).or_default() += 1;
        // ip_error() also limits the errors to each source, with Debian's 6.1.0-56 to one a second.
        for _ in 0..3 {
            if report.errors > 0 {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
            report = from_a(&lab, Ping::to(ip(to)).count(1));
            *sent.entry(reason).or_default() += 1;
        }
        assert_eq!(error_line(&report), answer, "{to}");
    }
    for silent in ["10.50.0.1", "fd50::1"] {
        let report = from_a(&lab, Ping::to(ip(silent)).count(1).wait(Duration::from_millis(300)));
        assert_eq!((report.received, report.errors), (0, 0), "{}", report.text);
    }
    for (reason, packets) in sent {
        assert_eq!(bywash.drops("r0", reason), packets, "{reason}");
    }
    bywash.stop();
}

#[test]
pub fn a_smaller_mtu_ahead_causes_an_error_or_fragments() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (a, b) = (lab.a(), lab.b());
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    // The MTU changes while the router runs.
    b.ns.ip(&["link", "set", &b.interface, "mtu", "1300"]).unwrap();
    // The interface's IPv6 MTU is a setting of the kernel's, for which the gates close.
    bywash.change_policies(|| lab.r().ip(&["link", "set", &b.router_interface, "mtu", "1300"]).unwrap());
    bywash.wait("the MTU to be followed", |bywash| bywash.port("r1")["mtu"] == 1300);

    // 1,300 bytes of IPv4 packet fit, 1,301 do not.
    assert_eq!(from_a(&lab, Ping::to(b.v4).count(1).size(1272).dont_fragment()).received, 1);
    let report = from_a(&lab, Ping::to(b.v4).count(1).size(1273).dont_fragment());
    assert_eq!(error_line(&report), format!("From {} Frag needed and DF set (mtu = 1300)", a.router_v4));
    assert_eq!(from_a(&lab, Ping::to(b.v6).count(1).size(1252).dont_fragment()).received, 1);
    let report = from_a(&lab, Ping::to(b.v6).count(1).size(1253).dont_fragment());
    assert_eq!(error_line(&report), format!("From {} Packet too big: mtu=1300", a.router_v6));
    assert_eq!(bywash.drops("r0", "too-big"), 2);

    // Without DF (-M dont) the router fragments, and b reassembles. Host a must forget the path MTU that it has learnt.
    a.ns.ip(&["route", "flush", "cache"]).unwrap();
    // DPDK's net_af_packet has the kernel reassemble fragments (PACKET_FANOUT_FLAG_DEFRAG), and truncates the result.
    let sizes: &[&str] = if bywash_lab::detached_ports() > 0 { &["1273", "1472"] } else { &["1273", "1472", "4000"] };
    for size in sizes {
        let to = b.v4.to_string();
        let out = a.ns.run_with_timeout(&["ping", "-n", "-c1", "-M", "dont", "-s", size, &to], PATIENCE).unwrap();
        assert!(out.stdout.contains(" 0% packet loss"), "{}", out.stdout);
    }
    assert!(bywash.events("r0", "fragmented") >= sizes.len() as u64);
    // TCP of the end hosts adapts to the path MTU.
    let report = bywash_lab::Transfer::new(300_000).run(&a.ns, &b.ns, b.v4).unwrap();
    assert!(report.is_intact(), "{report:?}");
    bywash.stop();
}

#[test]
pub fn a_neighbour_that_does_not_answer_is_reported() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let (v4, v6) = (lab.a().router_v4, lab.a().router_v6);
    std::thread::scope(|scope| {
        let patient = |to| from_a(&lab, Ping::to(ip(to)).count(1).wait(PATIENCE));
        let six = scope.spawn(move || error_line(&patient("fd00:2::77")));
        let four = scope.spawn(move || error_line(&patient("10.0.2.77")));
        assert_eq!(four.join().unwrap(), format!("From {v4} Destination Host Unreachable"));
        assert_eq!(six.join().unwrap(), format!("From {v6} Destination unreachable: Address unreachable"));
    });
    assert_eq!(bywash.drops("r0", "neighbour-failed"), 2);
    bywash.stop();
}

/// The kernel's neighbour entry is flushed again and again, more often than the router asks the kernel to resolve it:
/// enough packets arrive, and none waits for ever.
#[test]
pub fn a_forgotten_neighbour_is_found_again() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (a, b) = (lab.a(), lab.b());
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    for to in [IpAddr::from(b.v4), b.v6.into()] {
        let report = std::thread::scope(|scope| {
            let ping = Ping::to(to).count(120).interval(Duration::from_millis(25)).wait(Duration::from_secs(3));
            let steady = scope.spawn(move || ping.run(&a.ns).unwrap());
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(300));
                lab.r().ip(&["neigh", "flush", "to", &to.to_string()]).unwrap();
            }
            steady.join().unwrap()
        });
        // The router asks the kernel again only after 0.6 s, and a neighbour's queue holds 8 packets: some are lost.
        assert!(report.received >= 30, "{}", report.text);
        bywash.wait("the neighbour to be found", |_| Ping::to(to).count(3).run(&a.ns).unwrap().received == 3);
    }
    assert!(bywash.events("r0", "neighbour-released") >= 2);
    assert_eq!(bywash.drops("r0", "neighbour-failed"), 0);
    bywash.stop();
}

#[test]
pub fn a_packet_that_waited_for_its_neighbour_is_checked_against_the_mtu() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let b = lab.b();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    b.ns.ip(&["link", "set", &b.interface, "mtu", "1300"]).unwrap();
    lab.r().ip(&["link", "set", &b.router_interface, "mtu", "1300"]).unwrap();
    bywash.wait("the MTU to be followed", |bywash| bywash.port("r1")["mtu"] == 1300);
    for (to, error) in [(IpAddr::from(b.v4), "Frag needed"), (b.v6.into(), "Packet too big")] {
        lab.r().ip(&["neigh", "flush", "all"]).unwrap();
        let report = from_a(&lab, Ping::to(to).count(1).size(1400).dont_fragment());
        assert!(report.text.contains(error), "{}", report.text);
    }
    bywash.stop();
}
