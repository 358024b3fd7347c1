//! The mirror against the kernel, one situation at a time.

mod common;

use bywash_lab::Namespace;
use bywash_mirror::{Config, State};
use common::{Followed, Oracle, differences, skipped};

/// Two veth pairs, all ends in one namespace, `a0` and `b0` addressed.
fn namespace(hint: &str) -> Namespace {
    let ns = Namespace::new(hint).unwrap();
    for line in [
        "link add a0 type veth peer name a1",
        "link add b0 type veth peer name b1",
        "link set a0 up",
        "link set a1 up",
        "link set b0 up",
        "link set b1 up",
        "addr add 10.1.0.1/24 dev a0",
        "addr add 10.2.0.1/24 dev b0",
        "addr add fd01::1/64 dev a0 nodad",
        "addr add fd02::1/64 dev b0 nodad",
    ] {
        ip(&ns, line);
    }
    ns
}

fn ip(ns: &Namespace, line: &str) {
    ns.ip(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
}

/// Runs the lines one after the other; the mirror must agree with the kernel after each.
fn each_step(hint: &str, lines: &[&str]) {
    if skipped() {
        return;
    }
    let ns = namespace(hint);
    let mut followed = Followed::start(&ns, Config::default());
    followed.must_agree(&ns, "the start");
    for line in lines {
        ip(&ns, line);
        followed.must_agree(&ns, line);
    }
    let stats = followed.mirror.stats();
    assert_eq!((stats.malformed, stats.overflows), (0, 0), "{stats:?}");
    assert_eq!(stats.failed, None);
    // What a fresh reading shows is what following came to.
    let read = ns.enter(State::read).unwrap().unwrap();
    let routes = |changes: Vec<bywash_route::model::Change>| {
        changes.into_iter().filter(|c| !format!("{c:?}").contains("eighbour")).collect::<Vec<_>>()
    };
    for change in routes(State::diff(&followed.state, &read)) {
        // The order of legs is the only thing that may differ.
        let mut repaired = followed.state.clone();
        repaired.apply(&change);
        assert_eq!(differences(&repaired, &Oracle::of(&ns)), Vec::<String>::new(), "{change:?}");
    }
}

#[test]
fn kinds_of_ipv4_routes() {
    each_step(
        "r4",
        &[
            "route add 192.0.2.0/24 via 10.1.0.2",
            "route add 198.51.100.0/24 via 10.1.0.2 metric 20 mtu 1400 src 10.1.0.1 proto bird",
            "route add blackhole 203.0.113.0/24",
            "route add unreachable 203.0.114.0/24 metric 5",
            "route add prohibit 203.0.115.0/24",
            "route add throw 203.0.116.0/24 table 100",
            "route add 100.64.0.1/32 via 172.16.0.1 dev a0 onlink",
            "route add 100.65.0.0/16 dev b0",
            "route add default nexthop via 10.1.0.2 weight 3 nexthop via 10.2.0.2 dev b0",
            "route replace 192.0.2.0/24 via 10.2.0.2",
            "route append 192.0.2.0/24 via 10.1.0.3",
            "route prepend 192.0.2.0/24 via 10.1.0.4",
            "route replace 192.0.2.0/24 via 10.1.0.5",
            "route del 192.0.2.0/24 via 10.1.0.5",
            "route del 192.0.2.0/24",
            "route del 192.0.2.0/24",
            "route add 192.0.2.0/24 via inet6 fd01::2 dev a0",
            "route add 192.0.3.0/24 nexthop via inet6 fe80::9 dev a0 nexthop via 10.2.0.9 dev b0",
            "route add 192.0.4.0/24 via 10.1.0.2 table 1000",
            "route flush table 1000",
            "route change 198.51.100.0/24 via 10.2.0.7 metric 20",
            "route add local 100.70.0.0/16 dev lo",
            "route flush table main",
        ],
    );
}

#[test]
fn kinds_of_ipv6_routes() {
    each_step(
        "r6",
        &[
            "-6 route add 2001:db8:1::/48 via fd01::2",
            "-6 route add 2001:db8:2::/48 via fe80::2 dev a0 metric 20 mtu 1400 src fd01::1",
            "-6 route add blackhole 2001:db8:3::/48",
            "-6 route add unreachable 2001:db8:4::/48",
            "-6 route add prohibit 2001:db8:5::/48",
            "-6 route add throw 2001:db8:6::/48 table 100",
            "-6 route add 2001:db8:7::/48 dev b0",
            "-6 route add 2001:db8:8::/48 nexthop via fd01::2 weight 2 nexthop via fd02::2",
            "-6 route add default via fe80::1 dev b0 onlink",
            // The older way of making several paths: one message each.
            "-6 route append 2001:db8:1::/48 via fd02::2",
            "-6 route append 2001:db8:1::/48 via fd01::3",
            "-6 route del 2001:db8:1::/48 via fd01::2",
            "-6 route append 2001:db8:1::/48 nexthop via fd01::4 nexthop via fd02::4",
            "-6 route del 2001:db8:1::/48 via fd01::3",
            "-6 route replace 2001:db8:1::/48 via fd01::9",
            "-6 route append 2001:db8:1::/48 via fd02::9 mtu 1300",
            "-6 route del 2001:db8:1::/48 via fd01::9",
            "-6 route del 2001:db8:8::/48",
            "-6 route replace 2001:db8:7::/48 nexthop via fd01::2 nexthop via fd02::2",
            "-6 route del 2001:db8:7::/48 nexthop via fd01::2 nexthop via fd02::2",
            "-6 route flush table main",
        ],
    );
}

#[test]
fn what_goes_silently_with_a_link() {
    each_step(
        "down",
        &[
            "route add 192.0.2.0/24 via 10.1.0.2",
            "route add 192.0.3.0/24 via 10.2.0.2 metric 5",
            "route add 192.0.3.0/24 via 10.1.0.2",
            "route add 192.0.4.0/24 nexthop via 10.1.0.2 nexthop via 10.2.0.2",
            "-6 route add 2001:db8:1::/48 via fd01::2",
            "-6 route add 2001:db8:2::/48 nexthop via fd01::2 nexthop via fd02::2",
            // The carrier alone.
            "link set a1 down",
            "link set a1 up",
            "link set a0 down",
            "link set a0 up",
            "addr add fd01::1/64 dev a0 nodad",
            "route add 192.0.2.0/24 via 10.1.0.2",
            "route add 192.0.5.0/24 nexthop via 10.1.0.2 nexthop via 10.2.0.2",
            "addr del 10.1.0.1/24 dev a0",
            "addr add 10.1.0.1/24 dev a0",
            "addr add 10.1.0.7/24 dev a0",
            "route add 192.0.6.0/24 via 10.1.0.2 src 10.1.0.7",
            "addr del 10.1.0.7/24 dev a0",
            "route add 192.0.2.0/24 via 10.1.0.2",
            "-6 route add 2001:db8:3::/48 via fd02::2 src fd01::1",
            "addr del fd01::1/64 dev a0",
            "link set b0 mtu 1400",
            "link set b0 name c0",
            "-6 route add 2001:db8:4::/48 via fd02::2 mtu 1300",
            "link set c0 mtu 1280",
            "link set c0 mtu 1500",
            "link del a0",
            "link set c0 down",
            "link del c0",
        ],
    );
}

#[test]
fn next_hop_objects() {
    each_step(
        "nh",
        &[
            "nexthop add id 1 via 10.1.0.2 dev a0",
            "nexthop add id 2 via 10.2.0.2 dev b0",
            "nexthop add id 3 group 1/2,3",
            "nexthop add id 4 blackhole",
            "nexthop add id 5 via fd01::2 dev a0",
            "nexthop add id 6 via fd02::2 dev b0",
            "nexthop add id 7 group 5/6",
            "route add 192.0.2.0/24 nhid 1",
            "route add 192.0.3.0/24 nhid 3",
            "route add 192.0.4.0/24 nhid 4",
            "route add 192.0.5.0/24 nhid 7",
            "-6 route add 2001:db8:1::/48 nhid 5",
            "-6 route add 2001:db8:2::/48 nhid 7",
            "nexthop replace id 1 via 10.1.0.3 dev a0",
            "nexthop replace id 3 group 2,5",
            "nexthop del id 2",
            "route add 192.0.6.0/24 nhid 3",
            "link set b1 down",
            "link set b1 up",
            "link set a0 down",
            "link set a0 up",
        ],
    );
}

#[test]
fn neighbours_and_addresses() {
    each_step(
        "neigh",
        &[
            "neigh add 10.1.0.2 lladdr 02:00:00:00:00:02 dev a0 nud permanent",
            "neigh add 10.1.0.3 lladdr 02:00:00:00:00:03 dev a0 nud stale",
            "neigh replace 10.1.0.2 lladdr 02:00:00:00:00:22 dev a0 nud reachable",
            "neigh add fd01::2 lladdr 02:00:00:00:00:02 dev a0 nud permanent",
            "neigh add proxy 10.1.0.9 dev a0",
            "neigh del fd01::2 dev a0",
            "neigh flush dev a0 nud all",
            "addr add 10.1.0.5/24 dev a0",
            "addr add 10.1.0.6/32 peer 10.9.0.1 dev a0",
            "addr add 10.3.0.1/24 dev a0 scope link",
            "addr del 10.1.0.1/24 dev a0",
            "addr change fd01::1/64 dev a0 preferred_lft 0 valid_lft 1000",
            "addr flush dev a0",
        ],
    );
}
