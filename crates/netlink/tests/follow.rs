//! Compares the mirror with the kernel, one situation at a time.

mod common;
#[path = "common/team.rs"]
mod team;

use bywash_fib::model::{Change, Prefix};
use bywash_lab::{Namespace, kernel_has, require, require_lab, wait_until};
use bywash_netlink::{Config, State};
use common::{Followed, Oracle, differences, skipped};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Creates two veth pairs with all ends in one namespace; `a0` and `b0` have addresses.
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

/// Runs one `ip` command line, or `sysctl KEY VALUE`.
fn ip(ns: &Namespace, line: &str) {
    if let Some((key, value)) = line.strip_prefix("sysctl ").and_then(|line| line.split_once(' ')) {
        return ns.sysctl(key, value).unwrap();
    }
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
    // A fresh reading shows the same state as following did.
    let read = ns.enter(State::read).unwrap().unwrap();
    let routes = |changes: Vec<Change>| {
        changes.into_iter().filter(|c| !format!("{c:?}").contains("eighbour")).collect::<Vec<_>>()
    };
    for change in routes(State::diff(&followed.state, &read)) {
        // Only the order of legs may differ.
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
            "-6 route append 2001:db8:7::/48 dev a0",
            "-6 route del 2001:db8:7::/48 dev a0",
            "-6 route add 2001:db8:8::/48 nexthop via fd01::2 weight 2 nexthop via fd02::2",
            "-6 route add default via fe80::1 dev b0 onlink",
            // The older way of adding several paths: one message each.
            "-6 route append 2001:db8:1::/48 via fd02::2",
            "-6 route append 2001:db8:1::/48 via fd01::3",
            "-6 route del 2001:db8:1::/48 via fd01::2",
            "-6 route append 2001:db8:1::/48 nexthop via fd01::4 nexthop via fd02::4",
            "-6 route del 2001:db8:1::/48 via fd01::3",
            "-6 route replace 2001:db8:1::/48 via fd01::9",
            "-6 route append 2001:db8:1::/48 via fd02::9",
            "-6 route del 2001:db8:1::/48 via fd01::9",
            "-6 route del 2001:db8:8::/48",
            "-6 route replace 2001:db8:7::/48 nexthop via fd01::2 nexthop via fd02::2",
            "-6 route del 2001:db8:7::/48 nexthop via fd01::2 nexthop via fd02::2",
            "-6 route flush table main",
        ],
    );
}

/// The kernel shows legs and flags of a next-hop object as if they were the route's.
#[test]
fn a_route_by_an_object_beside_another() {
    each_step(
        "byobject",
        &[
            "route add 192.0.2.0/24 via 10.1.0.2 dev a0",
            "nexthop add id 5 via 10.1.0.7 dev a0 onlink",
            "route append 192.0.2.0/24 nhid 5",
            "nexthop replace id 5 via 10.2.0.9 dev b0",
            "route del 192.0.2.0/24",
        ],
    );
}

#[test]
fn routes_that_only_metrics_realms_or_flags_tell_apart() {
    let mut lines = vec!["route add 192.0.2.0/24 via 10.1.0.2 dev a0".to_string()];
    for apart in ["advmss 1400", "realm 7", "onlink"] {
        lines.push(format!("route append 192.0.2.0/24 via 10.1.0.2 dev a0 {apart}"));
    }
    for legs in ["", "onlink ", "realm 3 "] {
        let legs = format!("nexthop via 10.1.0.2 dev a0 {legs}nexthop via 10.2.0.2 dev b0");
        lines.push(format!("route append 192.0.2.0/24 {legs}"));
    }
    // Each removes the first that is left.
    lines.extend(["route del 192.0.2.0/24"; 7].map(str::to_string));
    each_step("alike", &lines.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The kernel neither announces that a lifetime has passed nor that it was extended.
#[test]
fn ipv6_routes_expire() {
    if skipped() {
        return;
    }
    let ns = namespace("expire");
    // Expired routes stay in the tables meanwhile.
    ns.sysctl("net/ipv6/route/gc_interval", "600").unwrap();
    let mut followed = Followed::start(&ns, Config::default());
    let prefix = |text: &str| Prefix { addr: text.parse().unwrap(), len: 48 };
    let known = |followed: &mut Followed, of: &str| {
        while followed.take(Duration::from_millis(10)) {}
        followed.state.routes().any(|route| route.prefix == prefix(of))
    };
    ip(&ns, "-6 route add 2001:db8:1::/48 via fd01::2 expires 1");
    ip(&ns, "-6 route add 2001:db8:2::/48 via fd01::2 expires 10600");
    ip(&ns, "-6 route add 2001:db8:3::/48 via fd01::2");
    let all = ["2001:db8:1::", "2001:db8:2::", "2001:db8:3::"];
    wait_until("the route to expire", Duration::from_secs(60), || {
        all.map(|of| known(&mut followed, of)) == [false, true, true]
    })
    .unwrap();
    let shown = || ns.ip(&["-6", "route", "show"]).unwrap().stdout;
    // Less than a second is shown as 0.
    wait_until("the kernel to say so", Duration::from_secs(60), || shown().contains("expires -")).unwrap();
    let shown = shown();
    assert!(shown.contains("2001:db8:1::/48"), "the kernel has collected it: {shown}");
    // A fresh reading leaves out the expired route, too.
    let read = ns.enter(State::read).unwrap().unwrap();
    assert_eq!(differences(&read, &Oracle::of(&ns)), Vec::<String>::new());
}

/// Of several legs, the kernel shows one lifetime, and uses all until the last has expired: only it knows when.
#[test]
fn several_legs_that_expire_are_left_to_the_kernel() {
    if skipped() {
        return;
    }
    let ns = namespace("legs");
    // Expired routes stay in the tables meanwhile.
    ns.sysctl("net/ipv6/route/gc_interval", "600").unwrap();
    let mut followed = Followed::start(&ns, Config::default());
    ip(&ns, "-6 route add 2001:db8:1::/48 via fd01::2 expires 30");
    ip(&ns, "-6 route append 2001:db8:1::/48 via fd01::3 expires 30");
    let prefix = Prefix { addr: "2001:db8:1::".parse().unwrap(), len: 48 };
    let mut links = || -> Vec<u32> {
        while followed.take(Duration::from_millis(10)) {}
        let route = followed.state.routes().find(|route| route.prefix == prefix);
        route.iter().flat_map(|route| route.next_hops.iter()).map(|hop| hop.index).collect()
    };
    wait_until(
        "both legs",
        Duration::from_secs(60),
        || matches!(links()[..], [first, second] if first.min(second) > 0),
    )
    .unwrap();
    wait_until("the legs to expire", Duration::from_secs(60), || links() == [0, 0]).unwrap();
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
            // Only the carrier changes.
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
            "-6 route add 2001:db8:4::/48 via fd02::2 mtu 1300",
            "link set b0 mtu 1280",
            "link set b0 mtu 1500",
            "link del a0",
            "link set b0 down",
            "link del b0",
        ],
    );
}

/// A link loses its IPv6 routes without any message about them if the administrator wants none.
#[test]
fn what_goes_silently_with_ipv6_on_a_link() {
    if skipped() {
        return;
    }
    let ns = namespace("six");
    ns.sysctl("net/ipv6/route/skip_notify_on_dev_down", "1").unwrap();
    let mut followed = Followed::start(&ns, Config::default());
    for (off, on) in [
        ("link set a0 mtu 1279", "link set a0 mtu 1500"),
        ("sysctl net/ipv6/conf/a0/disable_ipv6 1", "sysctl net/ipv6/conf/a0/disable_ipv6 0"),
    ] {
        // The other addresses of the link may stay.
        for keep in ["0", "1"] {
            ns.sysctl("net/ipv6/conf/a0/keep_addr_on_down", keep).unwrap();
            ip(&ns, "addr replace fd01::1/64 dev a0 nodad");
            ip(&ns, "-6 route add 2001:db8:1::/48 via fd01::2");
            ip(&ns, "-6 route add 2001:db8:2::/48 nexthop via fd01::2 nexthop via fd01::3");
            followed.must_agree(&ns, "routes are added");
            ip(&ns, off);
            ip(&ns, on);
            followed.must_agree(&ns, off);
        }
    }
}

#[test]
fn next_hops_without_carrier_count_unless_they_are_ignored() {
    let (up, down) = (["link set a1 up", "link set b1 up"], ["link set a1 down", "link set b1 down"]);
    let lines = |of: &[[&'static str; 2]]| of.concat();
    let routes = lines(&[
        ["route add 192.0.2.0/24 via 10.1.0.2", "route add 192.0.3.0/24 via inet6 fd01::2 dev a0"],
        [
            "route add 192.0.4.0/24 nexthop via 10.1.0.2 nexthop via 10.2.0.2",
            "route add 192.0.2.0/24 via 10.2.0.2 metric 5",
        ],
        [
            "-6 route add 2001:db8:1::/48 via fd01::2",
            "-6 route add 2001:db8:2::/48 nexthop via fd01::2 nexthop via fd02::2",
        ],
    ]);
    let set = lines(&[
        [
            "sysctl net.ipv4.conf.a0.ignore_routes_with_linkdown 1",
            "sysctl net.ipv6.conf.a0.ignore_routes_with_linkdown 1",
        ],
        [
            "sysctl net.ipv4.conf.a0.ignore_routes_with_linkdown 0",
            "sysctl net.ipv6.conf.a0.ignore_routes_with_linkdown 0",
        ],
        [
            "sysctl net.ipv4.conf.all.ignore_routes_with_linkdown 1",
            "sysctl net.ipv6.conf.all.ignore_routes_with_linkdown 1",
        ],
    ]);
    let clear = [
        "sysctl net.ipv4.conf.all.ignore_routes_with_linkdown 0",
        "sysctl net.ipv6.conf.all.ignore_routes_with_linkdown 0",
    ];
    let came = lines(&[up, [down[0], up[0]], down, clear, ["link set a0 down", "link set a0 up"], up]);
    each_step("linkdown", &[&routes[..], &down[..], &set[..], &came[..]].concat());
}

#[test]
fn a_pair_is_one_at_both_ends() {
    each_step("pair", &["link add c0 type veth peer name c1", "link set c1 up", "link del c0"]);
}

#[test]
fn a_link_renamed_while_it_is_up() {
    bywash_lab::require!(bywash_lab::kernel_has("live-rename"));
    each_step(
        "rename",
        &["route add 192.0.2.0/24 via 10.2.0.2", "link set b0 name c0", "link set c0 mtu 1400", "link del c0"],
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
            "nexthop replace id 3 group 2,5/1",
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

#[test]
fn overflow_forced_by_a_tiny_buffer_ends_in_the_same_state() {
    if skipped() {
        return;
    }
    let ns = namespace("tiny");
    // The kernel doubles it and allows no less than 2304.
    let config = Config { receive_buffer: 1, ..Config::default() };
    let mut followed = Followed::start(&ns, config);
    let began = Instant::now();
    // The mirror may keep up with some rounds.
    for round in (100..105).cycle() {
        let lines: String = (0..2000u32)
            .map(|n| format!("route replace 10.{round}.{}.0/24 via 10.1.0.{}\n", n % 250, n / 250 + 2))
            .collect();
        ns.ip_batch(&lines).unwrap();
        ip(&ns, &format!("route flush root 10.{round}.0.0/17"));
        followed.must_agree(&ns, "an overflow");
        let stats = followed.mirror.stats();
        if round == 104 && stats.overflows > 0 && stats.resyncs > 1 {
            break;
        }
        assert!(began.elapsed() < bywash_lab::patience(Duration::from_secs(60)), "{stats:?}");
    }
}

#[test]
fn a_resync_on_request_reports_nothing_but_its_end() {
    if skipped() {
        return;
    }
    let ns = namespace("resync");
    let mut followed = Followed::start(&ns, Config::default());
    followed.must_agree(&ns, "the start");
    let before = followed.changes;
    followed.mirror.request_resync();
    followed.until_synced(2);
    assert_eq!(followed.changes, before + 1);
}

#[test]
fn links_and_addresses_alone() {
    if skipped() {
        return;
    }
    let ns = namespace("links");
    let mut followed = Followed::start(&ns, Config { routes: false, ..Config::default() });
    for line in [
        "route add 192.0.2.0/24 via 10.1.0.2",
        "rule add from 198.51.100.0/24 blackhole",
        "neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev a0",
        "addr add 10.3.0.1/24 dev a0",
        "link set b1 down",
    ] {
        ip(&ns, line);
    }
    followed.mirror.request_resync();
    followed.until_synced(2);
    let links = |changes: Vec<Change>| {
        let is = |c: &Change| matches!(c, Change::Link(_) | Change::Address(_));
        changes.into_iter().partition::<Vec<_>, _>(is)
    };
    let read = ns.enter(State::read).unwrap().unwrap();
    let (known, more) = links(State::diff(&State::default(), &followed.state));
    let (there, routes) = links(State::diff(&State::default(), &read));
    assert_eq!(known, there);
    assert!(more.is_empty() && routes.len() > 3, "{more:?}");
}

#[test]
fn a_full_channel_merges_and_loses_nothing() {
    if skipped() {
        return;
    }
    let ns = namespace("full");
    let config = Config { batch: 1, queue: 1, ..Config::default() };
    let mut followed = Followed::start(&ns, config);
    for _ in 0..20 {
        let lines: String =
            (0..200).map(|n| format!("route replace 192.0.2.0/24 via 10.1.0.{}\n", n % 250 + 2)).collect();
        ns.ip_batch(&lines).unwrap();
    }
    let before = followed.changes;
    followed.must_agree(&ns, "4,000 replacements that were not received");
    assert!(followed.changes - before < 3000, "{} changes for one route", followed.changes - before);
}

#[test]
fn dropping_a_mirror_that_nobody_listens_to_does_not_hang() {
    if skipped() {
        return;
    }
    let ns = namespace("drop");
    let config = Config { batch: 1, queue: 1, ..Config::default() };
    let mirror = ns.enter(|| bywash_netlink::Mirror::start(config)).unwrap().unwrap();
    let began = std::time::Instant::now();
    drop(mirror);
    assert!(began.elapsed().as_secs() < 60);
}

#[test]
fn probing_makes_the_kernel_ask() {
    if skipped() {
        return;
    }
    let (ns, peer) = (Namespace::new("ask").unwrap(), Namespace::new("asked").unwrap());
    ip(&ns, &format!("link add p0 type veth peer name p1 netns {}", peer.name()));
    for line in ["link set p0 up", "addr add 10.1.0.1/24 dev p0"] {
        ip(&ns, line);
    }
    for line in ["link set p1 up", "addr add 10.1.0.2/24 dev p1"] {
        ip(&peer, line);
    }
    let mut followed = Followed::start(&ns, Config::default());
    let index = followed.state.links().find(|link| link.name == "p0").unwrap().index;
    let there = "10.1.0.2".parse().unwrap();
    // Asked again half a second later, it asks again: a machine that stands still as long shows nothing.
    let asks_once = || {
        let began = std::time::Instant::now();
        assert!(followed.mirror.probe(index, there));
        let again = followed.mirror.probe(index, there);
        let at_once = began.elapsed() < Duration::from_millis(500);
        assert!(!(again && at_once), "asked twice at once");
        if !at_once {
            std::thread::sleep(Duration::from_millis(600));
        }
        at_once
    };
    assert!((0..20).any(|_| asks_once()), "the machine is too slow");
    assert!(!followed.mirror.probe(9999, there), "there is no such interface");
    let began = std::time::Instant::now();
    while !followed.state.neighbours().any(|n| n.addr == there && n.mac.is_some()) {
        followed.take(std::time::Duration::from_millis(50));
        assert!(began.elapsed().as_secs() < 60, "not resolved");
    }
}

#[test]
fn a_neighbour_made_permanent_while_it_is_given_up_stays() {
    if skipped() {
        return;
    }
    let ns = namespace("permanent");
    let followed = Followed::start(&ns, Config::default());
    let index = followed.state.links().find(|link| link.name == "a0").unwrap().index;
    let all: Vec<_> = (2..250).map(|n| Ipv4Addr::new(10, 1, 0, n)).collect();
    let lines = |line: &dyn Fn(&Ipv4Addr) -> String| all.iter().map(line).collect::<String>();
    let made = lines(&|addr| format!("neigh replace {addr} lladdr 02:00:00:00:00:09 dev a0 nud permanent\n"));
    let deleted = lines(&|addr| format!("neigh del {addr} dev a0\n"));
    let prober = followed.mirror.prober();
    let (round, rounds) = (AtomicU32::new(0), 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while round.load(Ordering::Relaxed) < rounds {
                for addr in &all {
                    prober.probe(index, (*addr).into());
                    prober.forget(index, (*addr).into());
                }
            }
        });
        for _ in 0..rounds {
            ns.ip_batch(&made).unwrap();
            // One that was just deleted is put back at once.
            let all_there = bywash_lab::wait_until("all neighbours to be permanent", Duration::from_secs(60), || {
                let shown = ns.ip(&["neigh", "show", "dev", "a0", "nud", "permanent"]).unwrap().stdout;
                shown.lines().count() == all.len()
            });
            round.fetch_add(if all_there.is_ok() { 1 } else { rounds }, Ordering::Relaxed);
            all_there.unwrap();
            ns.ip_batch(&deleted).unwrap();
        }
    });
}

#[test]
fn routes_for_some_packets_only() {
    each_step(
        "some",
        &[
            "route add 192.0.2.0/24 via 10.1.0.2",
            "route add 192.0.2.0/24 tos 0x10 via 10.2.0.2",
            "route add 192.0.2.0/24 tos 0x08 via 10.2.0.2",
            "route del 192.0.2.0/24 tos 0x10",
            "route del 192.0.2.0/24 tos 0x08",
            "route add default tos 0x10 via 10.2.0.2 table 100",
            "route replace default tos 0x10 via 10.2.0.3 table 100",
            "-6 route add 2001:db8::/48 from 2001:db8:1::/48 via fd01::2",
            "-6 route add 2001:db8::/48 from 2001:db8:2::/48 via fd02::2",
            "-6 route add default from 2001:db8:2::/48 via fd02::2",
            "-6 route del 2001:db8::/48 from 2001:db8:1::/48",
            "route add 192.0.3.0/24 tos 0x10 via 10.2.0.2",
            // Changes without a message.
            "link set b0 down",
            "link set b0 up",
            "-6 route flush table main",
        ],
    );
}

#[test]
fn the_namespace_is_that_of_the_thread() {
    if skipped() {
        return;
    }
    let ns = namespace("thread");
    assert_eq!(bywash_netlink::interface_by_name("a0").unwrap(), None);
    ns.enter(|| {
        let link = bywash_netlink::interface_by_name("a0").unwrap().unwrap();
        assert_eq!((link.name.as_str(), link.kind.as_str(), link.up), ("a0", "veth", true));
        assert_eq!(bywash_netlink::interface_by_name("nosuch").unwrap(), None);
    })
    .unwrap();
}

/// A team's active port is followed when it is announced, not only when links are read again.
#[test]
fn a_teams_active_port_is_announced() {
    require!(require_lab(), kernel_has("team"));
    let ns = namespace("team");
    let set = |port: Option<&str>, name: &str, value| ns.enter(|| team::set("team0", port, name, value)).unwrap();
    ip(&ns, "link add team0 type team");
    set(None, "mode", team::Value::Text("activebackup"));
    for line in ["link set a0 down", "link set a0 master team0", "link set b0 down", "link set b0 master team0"] {
        ip(&ns, line);
    }
    let mut followed = Followed::start(&ns, Config::default());
    followed.until_synced(1);
    let link = |followed: &Followed, name: &str| followed.state.links().find(|link| link.name == name).unwrap().clone();
    let patience = Duration::from_secs(60);
    let mut ports = ["a0", "b0"].into_iter().cycle();
    let announced = || {
        let (port, before) = (ports.next().unwrap(), followed.mirror.stats());
        set(None, "activeport", team::Value::Port(port));
        let index = link(&followed, port).index;
        wait_until("the active port", patience, || {
            followed.take(Duration::from_millis(10));
            link(&followed, "team0").bond.is_some_and(|bond| (bond.mode, bond.active) == (1, Some(index)))
        })
        .unwrap();
        wait_until("the counters", patience, || followed.mirror.stats().changes > before.changes).unwrap();
        followed.mirror.stats().readings == before.readings
    };
    wait_until("a port to be announced between two readings", patience, announced).unwrap();
    for (port, enabled) in [("a0", false), ("b0", false), ("a0", true)] {
        set(Some(port), "enabled", team::Value::Flag(enabled));
        wait_until("the port's state", patience, || {
            followed.take(Duration::from_millis(10));
            link(&followed, port).member.is_some_and(|member| member.active == enabled && member.plain)
        })
        .unwrap();
    }
}
