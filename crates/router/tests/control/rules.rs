//! One test per rule.

use crate::world::*;
use bywash_engine::PortId;
use bywash_fib::model::Families;
use bywash_fib::model::{Address, Change, NeighbourState, RouteKind};
use bywash_router::control::{HopState, Policies, PortBack, RouteStatus};
use bywash_router::tables::Kind;

#[test]
fn nothing_known_is_no_route() {
    let w = World::bare();
    assert_eq!(w.brief("192.0.2.1"), "no-route");
    assert_eq!(w.brief("2001:db8::1"), "no-route");
    w.with(|t| assert_eq!(t.entries[0].kind, Kind::NoRoute));
}

#[test]
fn gateway_pending_then_forward_then_failed_under_one_id() {
    let mut w = World::new();
    w.apply(&[route("0.0.0.0/0").via(P0, "10.0.0.254").into()]);
    let id = w.id("192.0.2.1");
    assert_eq!(w.brief("192.0.2.1"), "pending dev 1 via 10.0.0.254 mac 0");
    let applied = w.apply(&[neighbour(P0, "10.0.0.254", 7)]);
    assert!(applied.published);
    assert_eq!(w.brief("192.0.2.1"), "forward dev 1 via 10.0.0.254 mac 7");
    w.apply(&[neighbour(P0, "10.0.0.254", 8)]);
    assert_eq!(w.brief("192.0.2.1"), "forward dev 1 via 10.0.0.254 mac 8");
    w.apply(&[neighbour(P0, "10.0.0.254", 0)]);
    assert_eq!(w.brief("192.0.2.1"), "failed dev 1 via 10.0.0.254 mac 0");
    w.apply(&[Change::NeighbourGone { index: P0, addr: "10.0.0.254".parse().unwrap() }]);
    assert_eq!(w.brief("192.0.2.1"), "pending dev 1 via 10.0.0.254 mac 0");
    assert_eq!(w.id("192.0.2.1"), id);
}

#[test]
fn a_neighbour_of_a_connected_net_has_a_host_route() {
    let mut w = World::new();
    assert_eq!(w.brief("10.0.0.9"), "glean dev 1 mac 0");
    w.apply(&[neighbour(P0, "10.0.0.9", 9), neighbour(P1, "10.0.0.8", 8), neighbour(P0, "fd00::9", 9)]);
    assert_eq!(w.brief("10.0.0.9"), "forward dev 1 via 10.0.0.9 mac 9");
    assert_eq!(w.brief("fd00::9"), "forward dev 1 via fd00::9 mac 9");
    assert_eq!(w.brief("10.0.0.8"), "glean dev 1 mac 0", "its neighbour is on another link");
    // A more specific route displaces the neighbour's host route; removing it restores that.
    w.apply(&[route("10.0.0.8/29").via(P1, "10.0.1.7").into()]);
    assert_eq!(w.brief("10.0.0.9"), "pending dev 2 via 10.0.1.7 mac 0");
    w.apply(&[route("10.0.0.8/29").gone()]);
    assert_eq!(w.brief("10.0.0.9"), "forward dev 1 via 10.0.0.9 mac 9");
    // A route to the host itself takes precedence.
    w.apply(&[route("10.0.0.9/32").kind(RouteKind::Blackhole).into()]);
    assert_eq!(w.brief("10.0.0.9"), "blackhole");
    w.apply(&[route("10.0.0.9/32").gone(), Change::NeighbourGone { index: P0, addr: "10.0.0.9".parse().unwrap() }]);
    assert_eq!(w.brief("10.0.0.9"), "glean dev 1 mac 0");
}

#[test]
fn a_host_route_on_the_link_asks_for_the_host() {
    let mut w = World::new();
    w.apply(&[route("192.0.2.5/32").dev(P0).into()]);
    assert_eq!(w.brief("192.0.2.5"), "pending dev 1 via 192.0.2.5 mac 0");
    w.apply(&[neighbour(P0, "192.0.2.5", 5)]);
    assert_eq!(w.brief("192.0.2.5"), "forward dev 1 via 192.0.2.5 mac 5");
}

#[test]
fn verdicts_metrics_and_dead_next_hops() {
    let mut w = World::new();
    let kinds = [
        (RouteKind::Blackhole, "blackhole"),
        (RouteKind::Unreachable, "unreachable"),
        (RouteKind::Prohibit, "prohibit"),
        (RouteKind::Throw, "no-route"),
    ];
    w.apply(&[route("0.0.0.0/0").via(P0, "10.0.0.254").into()]);
    for (kind, name) in kinds {
        w.apply(&[route("198.51.100.0/24").kind(kind).metric(5).into()]);
        assert_eq!(w.brief("198.51.100.1"), name);
        assert_eq!(w.brief("198.51.101.1"), "pending dev 1 via 10.0.0.254 mac 0");
    }
    w.apply(&[route("198.51.100.0/24").via(P1, "10.0.1.9").metric(4).into()]);
    assert_eq!(w.brief("198.51.100.1"), "pending dev 2 via 10.0.1.9 mac 0");
    w.apply(&[route("198.51.100.0/24").dead(P1, "10.0.1.9").metric(4).into()]);
    assert_eq!(w.brief("198.51.100.1"), "no-route", "the throw of metric 5");
    w.apply(&[route("198.51.100.0/24").metric(5).gone()]);
    assert_eq!(w.brief("198.51.100.1"), "pending dev 1 via 10.0.0.254 mac 0", "a dead route is passed over");
}

#[test]
fn an_interface_that_is_no_port_is_left_to_the_kernel() {
    let mut w = World::new();
    w.apply(&[route("198.51.100.0/24").via(OTHER, "10.9.9.9").into(), route("203.0.113.0/24").dev(77).into()]);
    assert_eq!((w.brief("198.51.100.1"), w.brief("203.0.113.1")), ("kernel".into(), "kernel".into()));
    let status = |p: &str| w.control.routes().find(|r| r.prefix == prefix(p)).unwrap().status;
    assert_eq!(status("198.51.100.0/24"), RouteStatus::Kernel);
}

#[test]
fn groups_share_by_weight_and_are_found_again() {
    let mut w = World::new();
    let ecmp = |p: &str| route(p).weighted(P0, "10.0.0.2", 4).weighted(P1, "10.0.1.2", 2);
    w.apply(&[ecmp("198.51.100.0/24").into(), ecmp("203.0.113.0/24").into(), neighbour(P0, "10.0.0.2", 2)]);
    assert_eq!(w.id("198.51.100.1"), w.id("203.0.113.1"));
    let Got::Group(members) = w.got("203.0.113.1") else { panic!("no group") };
    assert_eq!(members.iter().map(|m| m.1).collect::<Vec<_>>(), [Share(43_690), Share(21_845)]);
    // Another order gives the same group; a duplicated next hop is not a group.
    w.apply(&[route("192.0.2.0/24").weighted(P1, "10.0.1.2", 1).weighted(P0, "10.0.0.2", 2).into()]);
    assert_eq!(w.id("192.0.2.1"), w.id("203.0.113.1"));
    w.apply(&[route("192.0.2.0/24").via(P0, "10.0.0.2").via(P0, "10.0.0.2").into()]);
    assert_eq!(w.brief("192.0.2.1"), "forward dev 1 via 10.0.0.2 mac 2");
    // A dead member is left out. A member without carrier that the kernel keeps using is left to the kernel, under the
    // same id.
    let id = w.id("203.0.113.1");
    let mut down = a_link(P1, "p1");
    down.carrier = false;
    w.apply(&[Change::Link(down)]);
    assert_eq!(w.id("203.0.113.1"), id);
    let Got::Group(members) = w.got("203.0.113.1") else { panic!("no group") };
    assert!(members.contains(&(Got::Verdict("no-carrier"), Share(21_845))), "{members:?}");
    let of = |w: &World| w.control.routes().find(|r| r.prefix == prefix("203.0.113.0/24")).unwrap().status;
    assert_eq!(of(&w), RouteStatus::Kernel);
    w.apply(&[route("203.0.113.0/24").via(P0, "10.0.0.2").dead(P1, "10.0.1.2").into()]);
    assert_eq!(w.brief("203.0.113.1"), "forward dev 1 via 10.0.0.2 mac 2");
}

#[test]
fn heavy_weights_fit_in_256_buckets() {
    let mut w = World::new();
    w.apply(&[route("0.0.0.0/0").weighted(P0, "10.0.0.2", 256).weighted(P1, "10.0.1.2", 255).into()]);
    let Got::Group(members) = w.got("192.0.2.1") else { panic!("no group") };
    assert_eq!(members.len(), 2);
    assert!(members.iter().all(|m| m.1 == Share(32_768)), "{members:?}");
    let many = (0..300).fold(route("0.0.0.0/0"), |r, n| r.via(P0, &format!("10.0.{}.{}", n / 100, n % 100 + 2)));
    w.apply(&[many.into()]);
    let Got::Group(members) = w.got("192.0.2.1") else { panic!("no group") };
    assert_eq!(members.len(), 256);
}

#[test]
fn a_route_of_several_links_own_is_left_to_the_kernel() {
    let mut w = World::new();
    w.apply(&[route("198.51.100.0/24").dev(P0).dev(P1).into()]);
    assert_eq!(w.brief("198.51.100.1"), "kernel");
}

#[test]
fn ipv4_by_an_ipv6_gateway() {
    let mut w = World::new();
    w.apply(&[route("198.51.100.0/24").via(P0, "fd00::2").into(), neighbour(P0, "fd00::2", 2)]);
    assert_eq!(w.brief("198.51.100.1"), "forward dev 1 via fd00::2 mac 2");
    let Got::Out { source4, source6, .. } = w.got("198.51.100.1") else { panic!() };
    assert_eq!((source4, source6), (Some("10.0.0.1".parse().unwrap()), Some("fd00::1".parse().unwrap())));
}

#[test]
fn mtu_is_the_routes_own_unless_the_link_has_less() {
    let mut w = World::new();
    w.apply(&[
        route("198.51.100.0/24").via(P0, "10.0.0.2").mtu(1400).into(),
        route("203.0.113.0/24").via(P0, "10.0.0.2").into(),
        route("192.0.2.0/24").via(P0, "10.0.0.2").mtu(9000).into(),
    ]);
    let mtu = |w: &World, a: &str| match w.got(a) {
        Got::Out { mtu, .. } => mtu,
        other => panic!("{other:?}"),
    };
    assert_eq!((mtu(&w, "198.51.100.1"), mtu(&w, "203.0.113.1")), (1400, 1500));
    // The kernel sends longer frames than the link has room for, and leaves them to the device.
    assert_eq!(w.brief("192.0.2.1"), "kernel");
    let mut small = a_link(P0, "p0");
    small.mtu = 1280;
    let applied = w.apply(&[Change::Link(small)]);
    assert_eq!(applied.ports_changed, [PortId(0)]);
    assert_eq!((mtu(&w, "203.0.113.1"), w.brief("198.51.100.1").as_str()), (1280, "kernel"));
}

#[test]
fn a_link_without_carrier_is_the_kernels_and_comes_back_under_the_same_id() {
    let mut w = World::new();
    w.apply(&[route("0.0.0.0/0").via(P0, "10.0.0.254").into(), neighbour(P0, "10.0.0.254", 7)]);
    let id = w.id("192.0.2.1");
    let mut down = a_link(P0, "p0");
    down.carrier = false;
    w.apply(&[Change::Link(down)]);
    assert_eq!(w.brief("192.0.2.1"), "no-carrier");
    let hop = w.control.routes().find(|r| r.prefix.len == 0).unwrap().next_hops[0].state;
    assert_eq!(hop, HopState::LinkDown);
    w.apply(&[link(P0, "p0")]);
    assert_eq!(w.brief("192.0.2.1"), "forward dev 1 via 10.0.0.254 mac 7");
    assert_eq!(w.id("192.0.2.1"), id);
}

#[test]
fn sources_of_errors() {
    let mut w = World::new();
    let secondary =
        Address { index: P0, addr: "10.0.0.77".parse().unwrap(), len: 24, secondary: true, link_scope: false };
    w.apply(&[Change::Address(secondary), address(P0, "172.16.0.1", 16), address(P0, "fe80::1", 64)]);
    w.apply(&[
        route("198.51.100.0/24").via(P0, "172.16.3.3").into(),
        route("203.0.113.0/24").via(P0, "10.0.0.3").source("10.0.0.77").into(),
        route("192.0.2.0/24").via(P0, "192.168.1.1").into(),
        route("2001:db8::/32").via(P0, "fe80::2").into(),
    ]);
    let source = |a: &str| match w.got(a) {
        Got::Out { source4, .. } => source4.unwrap().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(source("198.51.100.1"), "172.16.0.1", "the subnet of the gateway");
    assert_eq!(source("203.0.113.1"), "10.0.0.77", "the route's own");
    assert_eq!(source("192.0.2.1"), "10.0.0.1", "the first");
    let Got::Out { source6, .. } = w.got("2001:db8::1") else { panic!() };
    assert_eq!(source6, Some("fd00::1".parse().unwrap()), "global, though the gateway is link-local");
}

#[test]
fn local_addresses_are_local() {
    let mut w = World::bare();
    w.apply(&[route("127.0.0.0/8").local().into(), route("10.0.0.1/32").local().into()]);
    assert_eq!((w.brief("127.1.2.3"), w.brief("10.0.0.1")), ("local".into(), "local".into()));
    // Reported again with another source, it is still local, and nothing is published.
    assert!(!w.apply(&[route("10.0.0.1/32").local().source("10.0.0.1").into()]).published);
}

#[test]
fn table_local_hides_what_main_has_beneath() {
    let mut w = World::new();
    w.apply(&[route("198.51.100.8/29").via(P0, "10.0.0.2").into()]);
    w.apply(&[route("198.51.100.0/24").local().into()]);
    assert_eq!(w.brief("198.51.100.9"), "local");
    let status = w.control.routes().find(|r| r.prefix == prefix("198.51.100.8/29")).unwrap().status;
    assert_eq!(status, RouteStatus::Hidden);
    w.apply(&[route("198.51.100.0/24").local().gone()]);
    assert_eq!(w.brief("198.51.100.9"), "pending dev 1 via 10.0.0.2 mac 0");
}

#[test]
fn other_tables_are_listed_and_not_used() {
    let mut w = World::new();
    w.apply(&[route("198.51.100.0/24").via(P0, "10.0.0.2").table(100).into()]);
    assert_eq!((w.brief("198.51.100.1"), w.control.stats().routes_other), ("no-route".into(), 1));
    let status = w.control.routes().find(|r| r.table == 100).unwrap().status;
    assert_eq!(status, RouteStatus::OtherTable);
}

#[test]
fn routes_and_neighbours_are_listed_from_any_place_on() {
    let mut w = World::new();
    let some = |table| move |prefix| route(prefix).via(P0, "10.0.0.2").table(table).into();
    w.apply(&["0.0.0.0/0", "198.51.100.0/24", "198.51.100.0/25", "::/0", "fd01::/16"].map(some(254)));
    w.apply(&["198.51.100.0/24", "2001:db8::/32"].map(some(100)));
    w.apply(&[neighbour(P0, "10.0.0.2", 2), neighbour(P1, "10.0.0.2", 2), neighbour(P0, "fd00::2", 2)]);
    let listed = |last| {
        let routes = w.control.routes_after(last);
        routes.map(|(place, r)| (place, (r.prefix, r.table, r.metric))).collect::<Vec<_>>()
    };
    let all = listed(None);
    assert_eq!(all.len(), w.control.routes().count());
    for (n, (place, _)) in all.iter().enumerate() {
        assert_eq!(listed(Some(*place)), all[n + 1..], "{place:?}");
    }
    let next = |last| w.control.neighbours_after(last).map(|n| (n.addr, n.index)).collect::<Vec<_>>();
    let all = next(None);
    for (n, place) in all.iter().enumerate() {
        assert_eq!(next(Some(*place)), all[n + 1..], "{place:?}");
    }
    // A place stays one when its route is gone.
    let (place, rest) = (listed(None)[0].0, listed(None)[1..].to_vec());
    w.apply(&[route("0.0.0.0/0").gone()]);
    let routes = w.control.routes_after(Some(place)).map(|(_, r)| r.prefix).collect::<Vec<_>>();
    assert!(routes.iter().eq(rest.iter().map(|(_, (prefix, ..))| prefix)), "{routes:?}");
}

#[test]
fn a_port_goes_and_comes_back_under_its_name() {
    let mut w = World::new();
    w.apply(&[route("198.51.100.0/24").via(P0, "10.0.0.2").into(), neighbour(P0, "10.0.0.2", 2)]);
    let applied = w.apply(&[Change::LinkGone { index: P0 }]);
    assert_eq!((applied.ports_gone, applied.ports_changed), (vec![PortId(0)], vec![PortId(0)]));
    assert_eq!(w.brief("198.51.100.1"), "kernel");
    w.with(|t| assert_eq!(t.ports[0].index, 0));
    let applied = w.control.apply(&[link(9, "p0")]);
    assert_eq!(applied.ports_back, [PortBack { id: PortId(0), index: 9 }]);
    // The port is not open there yet: the kernel sends on the interface.
    w.control.apply(&[route("198.51.100.0/24").via(9, "10.0.0.2").into(), neighbour(9, "10.0.0.2", 3)]);
    assert_eq!(w.brief("198.51.100.1"), "kernel");
    w.control.set_open(PortId(0), true);
    assert_eq!(w.brief("198.51.100.1"), "forward dev 9 via 10.0.0.2 mac 3");
    w.with(|t| assert_eq!((t.ports[0].index, t.ports[0].mac[5]), (9, 9)));
    // A port keeps its interface when that is renamed.
    let renamed = w.apply(&[link(9, "elsewhere")]);
    assert!(renamed.ports_back.is_empty() && renamed.ports_gone.is_empty());
    assert_eq!(w.brief("198.51.100.1"), "forward dev 9 via 10.0.0.2 mac 3");
}

#[test]
fn nothing_is_published_for_known_next_hops_or_states_alike() {
    let mut w = World::new();
    w.apply(&[route("198.51.100.0/24").via(P0, "10.0.0.2").into(), neighbour(P0, "10.0.0.2", 2)]);
    let before = w.control.stats().publishes;
    let applied = w.apply(&[route("203.0.113.0/24").via(P0, "10.0.0.2").into(), route("198.51.100.0/24").gone()]);
    assert!(!applied.published);
    let mut stale = neighbour(P0, "10.0.0.2", 2);
    if let Change::Neighbour(n) = &mut stale {
        n.state = NeighbourState::Stale;
    }
    assert!(!w.apply(&[stale, link(P0, "p0"), address(P0, "10.0.0.1", 24)]).published);
    assert_eq!(w.control.stats().publishes, before);
    let shown = w.control.neighbours().find(|n| n.addr.to_string() == "10.0.0.2").unwrap();
    assert_eq!((shown.state, shown.installed), (NeighbourState::Stale, true));
}

#[test]
fn a_batch_is_published_once() {
    let mut w = World::new();
    let before = w.control.stats().publishes;
    let batch: Vec<Change> = (2..100)
        .flat_map(|n| {
            let via = route(&format!("198.51.{n}.0/24")).via(P0, &format!("10.0.0.{n}"));
            [via.into(), neighbour(P0, &format!("10.0.0.{n}"), n)]
        })
        .collect();
    w.apply(&batch);
    assert_eq!(w.control.stats().publishes, before + 1);
}

#[test]
fn an_excepted_prefix_is_the_kernels_whatever_lies_beneath() {
    let mut w = World::new();
    w.apply(&[neighbour(P0, "10.0.0.9", 9), neighbour(P1, "10.0.1.9", 9)]);
    w.apply(&[route("0.0.0.0/0").via(P1, "10.0.1.9").into(), route("10.0.0.64/26").via(P1, "10.0.1.9").into()]);
    let except = |w: &mut World, of: &[&str]| {
        let prefixes = of.iter().map(|p| prefix(p)).collect();
        w.control.set_policies(&Policies { prefixes, ..Policies::default() });
    };
    let all = |w: &World| ["10.0.0.9", "10.0.0.65", "10.0.0.1", "10.0.1.9", "192.0.2.1"].map(|a| w.brief(a));
    let before = all(&w);
    assert_eq!(before[4], "forward dev 2 via 10.0.1.9 mac 9");
    except(&mut w, &["10.0.0.0/24", "10.0.0.0/25"]);
    assert_eq!(all(&w), ["policy", "policy", "policy", &before[3], &before[4]]);
    let of = |w: &World, p: &str| w.control.routes().find(|r| r.prefix == prefix(p)).unwrap().status;
    assert_eq!(of(&w, "10.0.0.64/26"), RouteStatus::Policy);
    assert_eq!(of(&w, "0.0.0.0/0"), RouteStatus::Installed);
    except(&mut w, &["10.0.0.0/25"]);
    assert_eq!(all(&w), ["policy", "policy", "policy", &before[3], &before[4]]);
    assert_eq!(w.brief("10.0.0.129"), "glean dev 1 mac 0");
    except(&mut w, &["0.0.0.0/0"]);
    assert_eq!(all(&w), ["policy"; 5]);
    assert_eq!(w.brief("fd00::9"), "glean dev 1 mac 0");
    // Routes and neighbours added meanwhile have no effect until it ends.
    w.apply(&[route("192.0.2.0/24").kind(RouteKind::Blackhole).into(), neighbour(P0, "10.0.0.8", 8)]);
    assert_eq!((w.brief("192.0.2.1"), w.brief("10.0.0.8")), ("policy".into(), "policy".into()));
    except(&mut w, &[]);
    assert_eq!(all(&w)[..4], before[..4]);
    assert_eq!(w.brief("192.0.2.1"), "blackhole");
    assert_eq!(w.brief("10.0.0.8"), "forward dev 1 via 10.0.0.8 mac 8");
    assert!(w.control.inconsistent_prefixes().is_empty());
}

#[test]
fn an_excepted_way_out_is_the_kernels_by_family_and_one_publication() {
    let mut w = World::new();
    w.apply(&[neighbour(P1, "10.0.1.9", 9), neighbour(P1, "fd01::9", 9), neighbour(P0, "10.0.0.9", 9)]);
    w.apply(&[
        route("0.0.0.0/0").via(P1, "10.0.1.9").into(),
        route("::/0").via(P1, "fd01::9").into(),
        route("198.51.100.0/24").via(P0, "10.0.0.9").via(P1, "10.0.1.9").into(),
    ]);
    let except = |w: &mut World, egress: &[(u32, Families)]| {
        w.control.set_policies(&Policies { egress: egress.to_vec(), ..Policies::default() });
    };
    let all = |w: &World| ["192.0.2.1", "2001:db8::1", "10.0.0.9", "10.0.1.7"].map(|a| w.brief(a));
    let (before, id, published) = (all(&w), w.id("192.0.2.1"), w.control.stats().publishes);
    let [v4, v6] = [(true, false), (false, true)].map(|(v4, v6)| Families { v4, v6 });
    except(&mut w, &[(P1, v4)]);
    assert_eq!(all(&w), ["policy", &before[1], &before[2], "policy"]);
    let Got::Group(members) = w.got("198.51.100.1") else { panic!() };
    assert!(members.iter().any(|(got, _)| *got == Got::Verdict("policy")) && members.len() == 2);
    assert_eq!((w.id("192.0.2.1"), w.control.stats().publishes), (id, published + 1));
    let of = w.control.routes().find(|r| r.prefix == prefix("0.0.0.0/0")).unwrap();
    assert_eq!((of.status, of.next_hops[0].state), (RouteStatus::Policy, HopState::Policy));
    except(&mut w, &[(P1, v6)]);
    assert_eq!(all(&w), [&before[0], "policy", &before[2], &before[3]]);
    except(&mut w, &[(P1, v6)]);
    assert_eq!(w.control.stats().publishes, published + 2, "the same again is no change");
    except(&mut w, &[]);
    assert_eq!(all(&w), before);
}

#[test]
fn ipv6_has_an_mtu_of_its_own() {
    let mut w = World::new();
    // Routes of both families by the same gateway (RFC 8950).
    w.apply(&[route("0.0.0.0/0").via(P0, "fd00::9").into(), route("::/0").via(P0, "fd00::9").into()]);
    let mtu = |w: &World, addr| w.with(|t| t.entries[lookup(t, addr) as usize].mtu);
    let both = |w: &World| ["192.0.2.1", "2001:db8::1"].map(|a| mtu(w, a.parse().unwrap()));
    let set = |w: &mut World, mtu6: &[(u32, u32)]| {
        w.control.set_policies(&Policies { mtu6: mtu6.iter().copied().collect(), ..Policies::default() });
    };
    set(&mut w, &[(P0, 1280)]);
    assert_eq!(both(&w), [1500, 1280]);
    set(&mut w, &[(P0, 9000)]);
    assert_eq!(both(&w), [1500, 1500]);
    set(&mut w, &[]);
    assert_eq!(both(&w), [1500, 1500]);
}

#[test]
fn groups_are_the_kernels_by_a_policy_that_is() {
    use bywash_router::tables::HashPolicy::{Kernel, L3, L4};
    let mut w = World::new();
    w.apply(&[
        route("198.51.100.0/24").weighted(P0, "10.0.0.2", 1).weighted(P1, "10.0.1.2", 1).into(),
        route("2001:db8::/32").weighted(P0, "fd00::2", 1).weighted(P1, "fd01::2", 1).into(),
    ]);
    let kinds = |w: &World| [w.brief("198.51.100.1"), w.brief("2001:db8::1")];
    let (group, kernel) = ("group of 2".to_owned(), "kernel".to_owned());
    assert_eq!(kinds(&w), [group.clone(), group.clone()]);
    w.with(|t| assert_eq!((t.hash4, t.hash6), (L4, L4)));
    let set = |w: &mut World, hash4, hash6| w.control.set_policies(&Policies { hash4, hash6, ..Policies::default() });
    set(&mut w, L3, Kernel);
    assert_eq!(kinds(&w), [group.clone(), kernel.clone()]);
    w.with(|t| assert_eq!(t.hash4, L3));
    set(&mut w, Kernel, L4);
    assert_eq!(kinds(&w), [kernel, group.clone()]);
    set(&mut w, L4, L4);
    assert_eq!(kinds(&w), [group.clone(), group]);
}

#[test]
fn the_hosts_own_addresses_and_source_checks_are_reported() {
    use bywash_router::tables::{Own4, SourceCheck};
    let mut w = World::new();
    let own = |of: &[&str]| of.iter().fold(Own4::default(), |own, addr| own.with(addr.parse().unwrap()));
    w.with(|t| assert_eq!(t.own4, own(&["10.0.0.1", "10.0.1.1"])));
    let gone = Change::AddressGone { index: P1, addr: "10.0.1.1".parse().unwrap(), len: 24 };
    w.apply(&[gone, route("10.0.1.1/32").local().gone()]);
    w.with(|t| assert_eq!(t.own4, own(&["10.0.0.1"])));
    // Table local, the broadcast addresses in it as well; sources in 127.0.0.0/8 and multicast ones are martians
    // anyway.
    w.apply(&[route("10.5.5.5/32").local().protocol(4).into()]);
    w.with(|t| assert_eq!(t.own4, own(&["10.0.0.1", "10.5.5.5"])));
    w.apply(&[route("127.0.0.0/8").local().into(), route("224.0.0.0/4").local().into()]);
    w.with(|t| assert_eq!(t.own4, own(&["10.0.0.1", "10.5.5.5"])));
    w.apply(&[route("10.5.0.0/16").local().protocol(4).into()]);
    w.with(|t| assert_eq!(t.own4, Own4::ANY));
    w.apply(&[route("10.5.0.0/16").local().gone(), route("10.5.5.5/32").local().gone()]);
    w.apply(&[route("10.0.0.255/32").local().into()]);
    w.with(|t| assert_eq!(t.own4, own(&["10.0.0.1", "10.0.0.255"])));
    w.apply(&[route("10.0.0.255/32").local().gone()]);
    w.with(|t| assert_eq!(t.own4, own(&["10.0.0.1"])));

    let check = |w: &mut World, ports: &[u16]| {
        let source_check = ports.iter().map(|port| (PortId(*port), SourceCheck::Loose)).collect();
        w.control.set_policies(&Policies { source_check, ..Policies::default() });
    };
    check(&mut w, &[0, 1]);
    // Port 1 no longer has an IPv4 address.
    let now = |w: &World| w.with(|t| t.ports.iter().map(|port| port.source_check).collect::<Vec<_>>());
    assert_eq!(now(&w), [SourceCheck::Loose, SourceCheck::Strict]);
    assert_eq!(w.control.source_check(PortId(1)), SourceCheck::Strict);
    w.apply(&[address(P1, "10.0.1.1", 24)]);
    assert_eq!(now(&w), [SourceCheck::Loose, SourceCheck::Loose]);
    check(&mut w, &[1]);
    assert_eq!(now(&w)[0], SourceCheck::Off);
}
