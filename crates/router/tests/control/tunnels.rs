//! Tunnels whose packets are forwarded.

use crate::world::*;
use bywash_engine::PortId;
use bywash_fib::model::{Change, Encapsulation, Families, Link, Outer, OuterHeader, Tunnel, Vxlan};
use bywash_port::af_xdp::TunnelEnd;
use bywash_router::control::{Policies, TunnelSpec};
use bywash_router::tables::Kind;
use bywash_router::tunnel::{Path, Paths, WantedPath, via};
use bywash_router::vlan::FIRST;
use std::net::IpAddr;

const TUNNEL: u32 = 9;
const THROUGH: PortId = PortId(FIRST);
const LOCAL: &str = "fd09::1";

fn tunnel(encapsulation: Encapsulation) -> TunnelSpec {
    let ends = [LOCAL, "fd09::2"].map(|end| end.parse().unwrap());
    let tunnel = Tunnel::between(encapsulation, ends[0], ends[1]);
    TunnelSpec { id: THROUGH, index: TUNNEL, tunnel, bridge: None }
}

/// The kernel wants an address of an interface, outside of VRFs: a local route to it is not enough.
#[test]
fn a_tunnel_over_ipv6_has_an_address_of_its_own() {
    for (encapsulation, ends) in [(Encapsulation::Gre, 1), (Encapsulation::Ip6tnl, 2)] {
        let mut w = World::new();
        w.apply(&[link(TUNNEL, "tun"), route("fd09::1/128").dev(P0).local().into()]);
        w.control.set_policies(&Policies { tunnels: [THROUGH].into(), ..Policies::default() });
        w.control.set_tunnels(&[tunnel(encapsulation)]);
        assert_eq!(w.control.tunnels_by_end().len(), 0);
        w.apply(&[address(P1, LOCAL, 64)]);
        assert_eq!(w.control.tunnels_by_end().len(), ends, "{encapsulation:?}");
        w.with(|t| assert!(t.tunnels.get(THROUGH).is_some()));
        // Tentative.
        let Change::Address(own) = address(P1, LOCAL, 64) else { panic!() };
        let tentative = bywash_fib::model::Address { secondary: true, ..own };
        w.apply(&[Change::Address(tentative)]);
        assert_eq!(w.control.tunnels_by_end().len(), 0);
        w.with(|t| assert!(t.tunnels.get(THROUGH).is_none()));
        w.apply(&[address(P1, LOCAL, 64)]);
        // In a VRF.
        let vrf = Link { vrf: Some(10), ..a_link(20, "red") };
        w.apply(&[Change::Link(vrf), Change::Link(Link { master: Some(20), ..a_link(P1, "p1") })]);
        assert_eq!(w.control.tunnels_by_end().len(), 0);
    }
}

/// Among these is the one by which the kernel sends its own packets, if the route has several.
#[test]
fn next_hops_to_the_other_end_are_those_by_ports() {
    let mut w = World::new();
    w.apply(&[link(TUNNEL, "tun"), address(P1, LOCAL, 64)]);
    w.control.set_tunnels(&[tunnel(Encapsulation::Gre)]);
    let hops = |w: &World| -> Vec<(u32, Option<String>)> {
        let all = w.control.tunnel_ends().into_iter().flat_map(|WantedPath { ends: (_, remote, _), hops, .. }| {
            hops.into_iter().map(move |hop| via(hop.index, hop.gateway, remote)).collect::<Vec<_>>()
        });
        all.map(|(index, gateway)| (index, gateway.map(|gateway| gateway.to_string()))).collect()
    };
    let of = |index, gateway: &str| (index, Some(gateway.to_owned()));
    let to = || route("fd09::2/128");
    for masqueraded in [false, true] {
        let masqueraded = masqueraded.then_some(THROUGH).into_iter().collect();
        let policies = Policies { tunnels: [THROUGH].into(), masqueraded, ..Policies::default() };
        w.control.set_policies(&policies);
        let several = policies.masqueraded.is_empty();
        for (route, expected) in [
            (to().via(P0, "fd01::9"), vec![of(P0, "fd01::9")]),
            (to().via(P0, "fd01::9").via(P1, "fd02::9"), vec![of(P0, "fd01::9"), of(P1, "fd02::9")]),
            (
                to().via(P0, "fd01::9").via(P1, "fd02::9").dead(P1, "fd02::8"),
                vec![of(P0, "fd01::9"), of(P1, "fd02::9")],
            ),
            (to().via(OTHER, "fd03::9"), vec![]),
        ] {
            w.apply(&[route.into()]);
            // Masquerading over IPv6 may give any source.
            assert_eq!(hops(&w), if several { expected } else { vec![] });
        }
    }
}

/// It then sends from the addresses that the kernel gives its packets, and receives at these.
#[test]
fn a_tunnel_without_an_address_of_its_own_has_those_of_its_paths() {
    let mut w = World::new();
    let (any, remote) = ([0, 0, 0, 0].into(), [198, 51, 100, 1].into());
    let spec = TunnelSpec { tunnel: Tunnel::between(Encapsulation::Gre, any, remote), ..tunnel(Encapsulation::Gre) };
    w.apply(&[link(TUNNEL, "tun"), route("198.51.100.1/32").via(P0, "10.1.0.9").into()]);
    w.control.set_tunnels(&[spec]);
    assert!(!w.control.needs_paths());
    for masqueraded in [false, true] {
        let masqueraded = masqueraded.then_some(THROUGH).into_iter().collect();
        w.control.set_policies(&Policies { tunnels: [THROUGH].into(), masqueraded, ..Policies::default() });
        assert!(w.control.needs_paths() && !w.control.needs_paths());
        let wanted = w.control.tunnel_ends();
        assert_eq!((wanted.len(), wanted[0].ends), (1, (any, remote, 0)));
        assert_eq!(wanted[0].hops[0].masquerade4, Some([10, 0, 0, 1].into()));
        assert_eq!(w.control.tunnels_by_end().len(), 0);
        for source in [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from) {
            let path = Path { ends: (any, remote, 0), source, mtu: 1500, ttl: 64, via: None };
            w.control.set_paths(Paths { all: vec![path], ..Paths::default() });
            let ends: Vec<_> = w.control.tunnels_by_end().into_keys().map(|end| end.local).collect();
            assert_eq!(ends, [source]);
            w.with(|t| assert_eq!(t.tunnels.get(THROUGH).unwrap().ends[0].local, source));
        }
        w.control.set_paths(Paths::default());
        assert_eq!(w.control.tunnels_by_end().len(), 0);
    }
    w.apply(&[address(P1, "10.9.0.1", 24)]);
    assert!(w.control.needs_paths());
    // A next hop of several is by no port: the kernel may send by that, with another source.
    w.apply(&[route("198.51.100.1/32").via(P0, "10.1.0.9").via(OTHER, "10.3.0.9").into()]);
    assert!(w.control.tunnel_ends().is_empty());
}

/// Next hops give a VXLAN the headers of its packets; those that do not fit are left to the kernel.
#[test]
fn a_vxlan_takes_headers_from_next_hops() {
    let mut w = World::new();
    let any: IpAddr = [0, 0, 0, 0].into();
    let vxlan = Vxlan { port: 4789, checksum: true, ..Vxlan::default() };
    let of = Tunnel { vxlan: Some(vxlan), external: true, ..Tunnel::between(Encapsulation::Vxlan, any, any) };
    let spec = TunnelSpec { tunnel: of, ..tunnel(Encapsulation::Vxlan) };
    let header = |id, ttl| OuterHeader { id, keyed: false, ttl, tos: 0, checksum: true, dont_fragment: false };
    let outer = |vni, ttl, end: u8| Outer { remote: [198, 51, 100, end].into(), source: any, header: header(vni, ttl) };
    let other = Outer { source: [10, 0, 0, 1].into(), ..outer(7, 0, 1) };
    let over6 = Outer { remote: "fd09::2".parse().unwrap(), source: "::".parse().unwrap(), ..outer(5, 0, 1) };
    let routes = [
        route("10.20.0.0/24").around(TUNNEL, "10.9.0.2", outer(5, 0, 1)),
        route("10.20.1.0/24").around(TUNNEL, "10.9.0.2", outer(6, 9, 2)),
        route("10.20.2.0/24").around(TUNNEL, "10.9.0.2", other),
        route("10.20.3.0/24").around(TUNNEL, "10.9.0.2", over6),
        // No headers, an unknown neighbour, and headers by a port.
        route("10.20.4.0/24").via(TUNNEL, "10.9.0.2"),
        route("10.20.5.0/24").around(TUNNEL, "10.9.0.3", outer(5, 0, 1)),
        route("10.20.6.0/24").around(P0, "10.0.0.2", outer(5, 0, 1)),
    ];
    w.apply(&[link(TUNNEL, "vx0"), neighbour(TUNNEL, "10.9.0.2", 2), neighbour(P0, "10.0.0.2", 3)]);
    w.apply(&routes.map(Into::into));
    w.control.set_tunnels(&[spec]);
    w.control.set_policies(&Policies { tunnels: [THROUGH].into(), ..Policies::default() });
    assert!(w.control.needs_paths());
    let all = [1, 2].map(|end| (any, IpAddr::from([198, 51, 100, end])));
    let of = |(source, remote): (IpAddr, IpAddr)| {
        let from = match source {
            IpAddr::V6(_) => LOCAL.parse().unwrap(),
            source if source.is_unspecified() => [10, 0, 0, 2].into(),
            source => source,
        };
        Path { ends: (source, remote, 0), source: from, mtu: 1500, ttl: 64, via: None }
    };
    let paths = [&all[..], &[(other.source, other.remote), (over6.source, over6.remote)]].concat().into_iter().map(of);
    w.control.set_paths(Paths { all: paths.collect(), ..Paths::default() });
    let seen = |w: &World| {
        ["10.20.0.1", "10.20.1.1", "10.20.2.1", "10.20.3.1", "10.20.4.1", "10.20.5.1", "10.20.6.1"].map(|to| {
            let id = w.id(to) as usize;
            w.with(|t| (t.entries[id].kind == Kind::Tunnel).then(|| t.entries[id].tunnel()))
        })
    };
    assert_eq!(seen(&w), [Some((0, Some(0))), Some((1, Some(1))), Some((2, Some(2))), None, None, None, None]);
    // Packets come to the sources of the paths, with any of the numbers.
    let ends: Vec<_> = w.control.tunnels_by_end().into_keys().map(|end| (end.local, end.key.unwrap())).collect();
    let own = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    assert_eq!(ends, own.map(|own| [5, 6, 7].map(|vni| (own, vni))).concat());
    // Without the routes of the first headers, the places of the others change.
    assert!(!w.control.needs_paths());
    w.apply(&["10.20.0.0/24", "10.20.5.0/24"].map(|to| route(to).gone()));
    w.apply(&[route("10.20.3.0/24").gone()]);
    // Next hops are reclaimed later.
    w.apply(&[route("10.30.0.0/24").via(P0, "10.0.0.2").into()]);
    w.control.republish();
    assert_eq!(seen(&w)[1..3], [Some((1, Some(0))), Some((2, Some(1)))]);
    assert!(w.control.needs_paths());
    assert_eq!(w.control.tunnels_by_end().len(), 4);
    w.control.set_tunnels(&[]);
    assert_eq!(seen(&w), [None; 7]);
    assert!(w.control.inconsistent_prefixes().is_empty());
}

/// Packets come back to GRE from the other ends of routes, with their keys. Where rules translate addresses, the kernel
/// has them.
#[test]
fn gre_takes_headers_from_next_hops() {
    let mut w = World::new();
    let any: IpAddr = [0, 0, 0, 0].into();
    let of = Tunnel { external: true, ..Tunnel::between(Encapsulation::Gre, any, any) };
    let outer = |id, keyed, checksum, end: u8| {
        let header = OuterHeader { id, keyed, ttl: 0, tos: 0, checksum, dont_fragment: false };
        Outer { remote: [198, 51, 100, end].into(), source: any, header }
    };
    let routes = [
        route("10.20.0.0/24").around(TUNNEL, "10.9.0.2", outer(5, true, false, 1)),
        route("10.20.1.0/24").around(TUNNEL, "10.9.0.2", outer(5, false, false, 2)),
        route("10.20.2.0/24").around(TUNNEL, "10.9.0.2", outer(5, true, true, 1)),
        route("10.20.3.0/24").via(TUNNEL, "10.9.0.2"),
    ];
    w.apply(&[Change::Link(Link { mac: None, ..a_link(TUNNEL, "g0") })]);
    w.apply(&routes.map(Into::into));
    w.control.set_tunnels(&[TunnelSpec { tunnel: of, ..tunnel(Encapsulation::Gre) }]);
    let policies = Policies { tunnels: [THROUGH].into(), ..Policies::default() };
    w.control.set_policies(&policies);
    let path = |end: u8| {
        let ends = (any, IpAddr::from([198, 51, 100, end]), 0);
        Path { ends, source: [10, 0, 0, end].into(), mtu: 1500, ttl: 64, via: None }
    };
    w.control.set_paths(Paths { all: vec![path(1), path(2)], ..Paths::default() });
    let seen = ["10.20.0.1", "10.20.1.1", "10.20.2.1", "10.20.3.1"].map(|to| {
        let id = w.id(to) as usize;
        w.with(|t| (t.entries[id].kind == Kind::Tunnel).then(|| t.entries[id].tunnel().0))
    });
    assert_eq!(seen, [Some(0), Some(1), None, None]);
    let end = |end: TunnelEnd| (end.remote, end.local, end.key);
    let ends = |w: &World| w.control.tunnels_by_end().into_keys().map(end).collect::<Vec<_>>();
    let of = |end: u8, key| ([198, 51, 100, end].into(), [10, 0, 0, end].into(), key);
    assert_eq!(ends(&w), [of(1, Some(5)), of(2, None)]);
    w.control.set_policies(&Policies { translating: Families::V4, ..policies });
    assert_eq!(ends(&w), []);
}

/// Headers beyond the limit are left to the kernel, also those that were within it before.
#[test]
fn headers_beyond_the_limit_are_left_to_the_kernel() {
    let mut w = World::new();
    let any: IpAddr = [0, 0, 0, 0].into();
    let spec = |index: u32| {
        let vxlan = Vxlan { port: index as u16, ..Vxlan::default() };
        let of = Tunnel { vxlan: Some(vxlan), external: true, ..Tunnel::between(Encapsulation::Vxlan, any, any) };
        TunnelSpec { id: PortId(FIRST + index as u16), index, tunnel: of, bridge: None }
    };
    let remote = IpAddr::from([198, 51, 100, 1]);
    let outer = |id| {
        let header = OuterHeader { id, keyed: false, ttl: 0, tos: 0, checksum: true, dont_fragment: false };
        Outer { remote, source: any, header }
    };
    w.apply(&[5, 6].map(|index| link(index, &format!("vx{index}"))));
    w.apply(&[5, 6].map(|index| neighbour(index, "10.9.0.2", 2)));
    w.control.set_tunnels(&[spec(5), spec(6)]);
    w.control.set_policies(&Policies { tunnels: [5, 6].map(|n| PortId(FIRST + n)).into(), ..Policies::default() });
    w.apply(&[route("10.30.0.0/24").around(6, "10.9.0.2", outer(7)).into()]);
    let path = Path { ends: (any, remote, 0), source: [10, 0, 0, 2].into(), mtu: 1500, ttl: 64, via: None };
    w.control.set_paths(Paths { all: vec![path], ..Paths::default() });
    let vni = |w: &World| {
        let id = w.id("10.30.0.1") as usize;
        w.with(|t| {
            let info = t.tunnels.get(t.entries[id].port)?;
            (t.entries[id].kind == Kind::Tunnel).then(|| t.tunnels.header(info, &t.entries[id]).unwrap().id)
        })
    };
    assert_eq!(vni(&w), Some(7));
    for (first, expected) in [(0, Some(7)), (1022, None)] {
        for n in first..first + 1022 {
            let to = format!("10.{}.{}.0/24", 100 + n / 256, n % 256);
            w.apply(&[route(&to).around(5, "10.9.0.2", outer(100 + n)).into()]);
        }
        assert_eq!(vni(&w), expected);
    }
    let ends = w.control.tunnels_by_end();
    assert!(ends.len() == 1024 && ends.keys().all(|end| end.port == 5));
}
