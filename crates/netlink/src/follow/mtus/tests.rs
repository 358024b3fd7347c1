use super::*;
use crate::kernel::Scope;
use bywash_fib::model::{Change, Route};
use bywash_lab::{Namespace, require, require_lab};
use std::fmt::Write as _;
use std::time::Duration;

/// Reads IPv6 routes; returns those that are reported.
fn read_routes(follower: &mut Follower) -> Vec<Route> {
    let mut routes = vec![];
    let mut keep = |change: Change| {
        if let Change::Route(route) = change {
            routes.push(route);
        }
    };
    follower.kernel.begin(Scope::ROUTES6);
    follower.read_kind(Scope::ROUTES6, &mut keep).unwrap();
    follower.kernel.end();
    follower.report(&mut keep);
    routes
}

/// Returns whether each report of the route to `to` left it to the kernel.
fn left<'a>(routes: &'a [Route], to: &str) -> Vec<bool> {
    let to: IpAddr = to.parse().unwrap();
    let of = |route: &&'a Route| route.prefix.addr == to;
    routes.iter().filter(of).map(|route| route.next_hops.iter().all(|hop| hop.index == 0)).collect()
}

/// Makes a namespace with an interface `a0` and so many IPv6 routes that a dump has several datagrams.
fn namespace(hint: &str, mut lines: String) -> Namespace {
    let ns = Namespace::new(hint).unwrap();
    ns.ip_batch(
        "link add a0 type veth peer name a1\nlink set a1 up\nlink set a0 up\naddr add fd01::1/64 dev a0 nodad\n",
    )
    .unwrap();
    for n in 0..1000 {
        writeln!(lines, "route add 2001:dbf:{n:x}::/48 via fd01::9").unwrap();
    }
    ns.ip_batch(&lines).unwrap();
    ns
}

/// Notifications are applied after a dump, and what it has shown is reported during it.
#[test]
fn routes_with_different_mtus_are_never_reported_as_if_they_had_one() {
    require!(require_lab());
    let (mixed, equal, more) = ("2001:db8:1::", "2001:db8:2::", "2001:db8:3::");
    let mut lines = String::new();
    for (to, mtu) in [(mixed, " mtu 1400"), (equal, ""), (more, " mtu 1400")] {
        writeln!(lines, "route add {to}/48 via fd01::2\nroute append {to}/48 via fd01::3{mtu}").unwrap();
    }
    let ns = namespace("mtus", lines);
    ns.enter(|| {
        let mut follower = Follower::new(1 << 20, Duration::ZERO, true).unwrap();
        follower.want_all();
        let mut routes = vec![];
        follower
            .read(&mut |change: Change| {
                if let Change::Route(route) = change {
                    routes.push(route)
                }
            })
            .unwrap();
        assert_eq!([mixed, equal, more].map(|to| left(&routes, to).pop()), [true, false, true].map(Some));
        // Received during the dump, after its first datagram, whose routes are reported then.
        ns.ip_batch(&format!("route append {more}/48 via fd01::4\n")).unwrap();
        let routes = read_routes(&mut follower);
        assert_eq!((left(&routes, mixed), left(&routes, equal), left(&routes, more)), (vec![], vec![], vec![true]));
        // A route that is not known yet.
        let mut follower = Follower::new(1 << 20, Duration::ZERO, true).unwrap();
        ns.ip_batch("neigh add fd01::2 lladdr 02:00:00:00:00:02 dev a0\n").unwrap();
        let routes = read_routes(&mut follower);
        assert_eq!([mixed, equal].map(|to| left(&routes, to)), [vec![true], vec![true, false]]);
    })
    .unwrap();
}

/// Requests are spread over legs as packets are.
#[test]
fn legs_that_few_packets_take_are_found() {
    require!(require_lab());
    let all = prefixes();
    let mut lines = String::new();
    for to in &all {
        writeln!(lines, "route add {to}/48 nexthop via fd01::2 weight 256 nexthop via fd01::3").unwrap();
    }
    let ns = namespace("weights", lines);
    let routes = ns.enter(|| read_routes(&mut Follower::new(1 << 20, Duration::ZERO, true).unwrap())).unwrap();
    let left: Vec<_> = all.iter().filter(|to| left(&routes, to).pop() != Some(false)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Packets take the same leg, wherever they come from.
#[test]
fn routes_with_a_leg_that_no_packet_takes_are_left_to_the_kernel() {
    require!(require_lab());
    let all = prefixes();
    let mut lines = String::new();
    for to in &all {
        writeln!(lines, "route add {to}/48 via fd01::2\nroute append {to}/48 via fd01::3 mtu 1400").unwrap();
    }
    let ns = namespace("unseen", lines);
    ns.sysctl("net/ipv6/fib_multipath_hash_policy", "3").unwrap();
    const DESTINATION: &str = "2";
    ns.sysctl("net/ipv6/fib_multipath_hash_fields", DESTINATION).unwrap();
    let routes = ns.enter(|| read_routes(&mut Follower::new(1 << 20, Duration::ZERO, true).unwrap())).unwrap();
    let used: Vec<_> = all.iter().filter(|to| left(&routes, to).pop() != Some(true)).collect();
    assert!(used.is_empty(), "{used:?}");
}

fn prefixes() -> Vec<String> {
    (0..16).map(|n| format!("2001:db8:{n:x}::")).collect()
}
