//! Tunnels whose packets are forwarded.

use crate::world::*;
use bywash_engine::PortId;
use bywash_fib::model::{Change, Encapsulation, Link, Tunnel};
use bywash_router::control::{Policies, TunnelSpec};
use bywash_router::vlan::FIRST;

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
