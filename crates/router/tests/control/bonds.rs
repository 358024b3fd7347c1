//! Bonds as next hops, by the members that carry them.

use crate::world::*;
use bywash_engine::PortId;
use bywash_fib::model::{Change, Families, Neighbour, NeighbourState, SourceCheck};
use bywash_router::bond::XmitHash;
use bywash_router::control::{Egress, MasterSpec, Policies, VlanSpec};
use bywash_router::vlan::{FIRST, UNTAGGED, tag};

/// A bond of the members `p0` and `p1`, and a VLAN interface on it.
const BOND: u32 = 7;
const VLAN: u32 = 8;
const NUMBER: PortId = PortId(FIRST + 4);

/// Returns the bond with these members, in this order; with none, its packets are left to the kernel.
fn bond(members: &[(u16, u32)]) -> MasterSpec {
    let members = members.iter().map(|(port, index)| (PortId(*port), *index)).collect();
    let sends = Egress::ByHash(XmitHash::Layer34);
    MasterSpec { id: NUMBER, index: BOND, members, tagged: vec![], tag: UNTAGGED, vxlans: vec![], egress: sends }
}

fn by(port: u16, member: u32) -> MasterSpec {
    bond(&[(port, member)])
}

/// Returns the VLAN, with an entry for each of these ports.
fn vlan(ports: &[u16]) -> VlanSpec {
    VlanSpec {
        id: PortId(FIRST),
        index: VLAN,
        port: NUMBER,
        parent: BOND,
        entries: ports.iter().map(|port| (PortId(*port), PortId(FIRST + 1 + port))).collect(),
        tag: tag(0x8100, 5),
        sends: true,
    }
}

/// Two ports, and a bond with an address, a neighbour and a network behind that; the same for a VLAN on it.
fn world() -> World {
    let mut w = World::new();
    w.apply(&[link(BOND, "bond0"), address(BOND, "10.5.0.1", 24), neighbour(BOND, "10.5.0.9", 9)]);
    w.apply(&[route("10.5.0.0/24").dev(BOND).into(), route("192.0.2.0/24").via(BOND, "10.5.0.9").into()]);
    w.apply(&[link(VLAN, "bond0.5"), neighbour(VLAN, "10.6.0.9", 8), route("10.6.0.0/24").dev(VLAN).into()]);
    w.apply(&[route("198.51.100.0/24").via(VLAN, "10.6.0.9").into()]);
    w
}

/// Returns the port of a route, and the last octet of the source address of its frames.
fn way(w: &World, addr: &str) -> Option<(u16, u8)> {
    match w.got(addr) {
        Got::Out { port, from, .. } => Some((port, from[5])),
        _ => None,
    }
}

#[test]
fn a_bond_leads_to_its_members_port() {
    let mut w = world();
    assert_eq!([w.brief("192.0.2.1"), w.brief("10.5.0.9"), w.brief("198.51.100.1")], ["kernel"; 3]);
    // Failover and back: one publication each.
    for (port, member) in [(0, P0), (1, P1), (0, P0)] {
        w.control.set_masters(&[by(port, member)]);
        assert_eq!(way(&w, "192.0.2.1"), Some((port, BOND as u8)));
        assert_eq!(w.brief("10.5.0.9"), "forward dev 7 via 10.5.0.9 mac 9");
        assert_eq!(w.brief("10.5.0.8"), "glean dev 7 mac 0");
        w.with(|t| {
            let (own, other) = (&t.ports[usize::from(port)], &t.ports[usize::from(1 - port)]);
            assert_eq!((own.index, own.source4), (BOND, Some("10.5.0.1".parse().unwrap())));
            assert_ne!(other.index, BOND);
        });
        let view = w.control.ports().nth(usize::from(port)).unwrap();
        assert_eq!((view.index, view.number), (member, NUMBER));
        let masters: Vec<_> = w.control.masters().map(|(view, _)| (view.id, view.index, view.name)).collect();
        assert_eq!(masters, [(NUMBER, BOND, "bond0".to_owned())]);
    }
    assert!(w.control.inconsistent_prefixes().is_empty());
    // The bond's own carrier, address and MTU count.
    let mut new = a_link(BOND, "bond0");
    (new.mac, new.mtu) = (Some([2, 0, 0, 0, 0xee, 1]), 1400);
    w.apply(&[Change::Link(new.clone())]);
    let Got::Out { from, mtu, .. } = w.got("192.0.2.1") else { panic!() };
    assert_eq!((from, mtu), ([2, 0, 0, 0, 0xee, 1], 1400));
    new.carrier = false;
    w.apply(&[Change::Link(new)]);
    assert_eq!(w.brief("192.0.2.1"), "no-carrier");
    w.control.set_masters(&[]);
    assert_eq!(w.brief("192.0.2.1"), "kernel");
    assert!(w.control.inconsistent_prefixes().is_empty());
}

/// The kernel has what is routed to the member itself: what the port receives is no packet of that interface.
#[test]
fn a_members_own_routes_are_left_to_the_kernel() {
    let mut w = world();
    w.apply(&[route("203.0.113.0/24").via(P0, "10.0.0.9").into(), neighbour(P0, "10.0.0.9", 7)]);
    assert_eq!(way(&w, "203.0.113.1"), Some((0, P0 as u8)));
    w.control.set_masters(&[by(0, P0)]);
    assert_eq!(w.brief("203.0.113.1"), "kernel");
    w.control.set_masters(&[by(1, P1)]);
    assert_eq!(way(&w, "203.0.113.1"), Some((0, P0 as u8)));
}

/// At a failover the FIB stays as it is: what next hops are for is said in their entries.
#[test]
fn a_failover_does_not_look_at_routes() {
    let mut w = world();
    w.control.set_masters(&[bond(&[])]);
    let ids = |w: &World| {
        let id = |addr: &str| w.with(|t| t.fib4.lookup(addr.parse::<std::net::Ipv4Addr>().unwrap().into()));
        ["192.0.2.1", "10.5.0.9", "10.5.0.8", "198.51.100.1", "10.6.0.9"].map(id)
    };
    let first = ids(&w);
    assert_eq!([w.brief("192.0.2.1"), w.brief("10.5.0.9"), w.brief("198.51.100.1")], ["kernel"; 3]);
    let status =
        |w: &World| w.control.routes().find(|route| route.prefix.to_string() == "192.0.2.0/24").unwrap().status;
    assert_eq!(format!("{:?}", status(&w)), "Kernel");
    for (port, member) in [(0, P0), (1, P1), (0, P0)] {
        w.control.set_masters(&[by(port, member)]);
        w.control.set_vlans(&[vlan(&[port])]);
        let above = (FIRST, VLAN as u8);
        assert_eq!((way(&w, "192.0.2.1"), way(&w, "198.51.100.1")), (Some((port, BOND as u8)), Some(above)));
        assert_eq!(format!("{:?}", status(&w)), "Installed");
        w.control.set_vlans(&[]);
        w.control.set_masters(&[bond(&[])]);
        assert_eq!([w.brief("192.0.2.1"), w.brief("198.51.100.1")], ["kernel"; 2]);
        assert_eq!(ids(&w), first);
    }
    assert!(w.control.inconsistent_prefixes().is_empty());
    w.control.set_masters(&[]);
    assert_eq!([w.brief("192.0.2.1"), w.brief("198.51.100.1")], ["kernel"; 2]);
    assert_ne!(ids(&w), first);
}

#[test]
fn a_vlan_on_a_bond_goes_with_it() {
    let mut w = world();
    w.control.set_vlans(&[vlan(&[0])]);
    assert_eq!(w.brief("198.51.100.1"), "kernel", "without the bond");
    for (port, member) in [(0, P0), (1, P1)] {
        w.control.set_masters(&[by(port, member)]);
        w.control.set_vlans(&[vlan(&[port])]);
        assert_eq!(way(&w, "198.51.100.1"), Some((FIRST, VLAN as u8)));
        w.with(|t| {
            assert_eq!(t.ports[usize::from(port)].vlans, [([0x81, 0, 0, 5], PortId(FIRST))]);
            assert!(t.ports[usize::from(1 - port)].vlans.is_empty());
            let (vlan, bond) = (t.vlan(PortId(FIRST)).unwrap(), t.bond(NUMBER).unwrap());
            assert_eq!((vlan.port, &bond.ports[..]), (NUMBER, &[PortId(port)][..]));
        });
    }
    for _ in 0..2 {
        w.control.set_open(PortId(1), false);
        assert_eq!([w.brief("192.0.2.1"), w.brief("198.51.100.1")], ["kernel"; 2]);
        w.control.set_open(PortId(1), true);
        assert_eq!((way(&w, "192.0.2.1"), way(&w, "198.51.100.1")), (Some((1, BOND as u8)), Some((FIRST, VLAN as u8))));
    }
    w.apply(&[Change::LinkGone { index: P1 }]);
    assert_eq!([w.brief("192.0.2.1"), w.brief("198.51.100.1")], ["kernel"; 2]);
    assert!(w.control.inconsistent_prefixes().is_empty());
}

#[test]
fn a_bond_with_several_members_is_an_interface_of_its_own() {
    let mut w = world();
    // The kernel counts them in this order.
    let both = bond(&[(1, P1), (0, P0)]);
    w.control.set_masters(std::slice::from_ref(&both));
    w.control.set_vlans(&[vlan(&[0, 1])]);
    let ways = || [Some((NUMBER.0, BOND as u8)), Some((FIRST, VLAN as u8))];
    assert_eq!(["192.0.2.1", "198.51.100.1"].map(|addr| way(&w, addr)), ways());
    w.with(|t| {
        let of = t.bond(NUMBER).unwrap();
        assert_eq!((&of.ports[..], of.hash), (&[PortId(1), PortId(0)][..], XmitHash::Layer34));
        for port in &t.ports {
            assert_eq!((port.index, port.master), (BOND, Some(NUMBER)));
            assert_eq!(port.vlans, [([0x81, 0, 0, 5], PortId(FIRST))]);
        }
        assert_eq!([0, 1].map(|port| t.number(PortId(port))), [NUMBER; 2]);
        let source = Some("10.5.0.1".parse().unwrap());
        assert_eq!((t.port(NUMBER).unwrap().source4, t.ports[0].source4), (source, source));
        assert_eq!(t.egress("10.5.0.9".parse().unwrap()), Some(NUMBER));
    });
    let (view, spec) = w.control.masters().next().unwrap();
    assert_eq!((view.id, view.name, spec.clone()), (NUMBER, "bond0".to_owned(), both.clone()));
    // A neighbour may have been sent to by either.
    let Change::Neighbour(known) = neighbour(BOND, "10.5.0.9", 9) else { panic!() };
    w.apply(&[Change::Neighbour(Neighbour { state: NeighbourState::Stale, ..known })]);
    for port in 0..2 {
        let stale: Vec<_> = w.control.stale_neighbours(|of| of == PortId(port)).collect();
        assert_eq!(stale, [(BOND, "10.5.0.9".parse().unwrap())]);
    }
    assert_eq!(w.control.stale_neighbours(|_| false).count(), 0);
    // Without one of its ports it is left to the kernel, which may send any packet by that.
    w.control.set_open(PortId(0), false);
    assert_eq!([w.brief("192.0.2.1"), w.brief("198.51.100.1")], ["kernel"; 2]);
    assert_eq!(w.control.masters().count(), 0);
    w.control.set_open(PortId(0), true);
    assert_eq!(["192.0.2.1", "198.51.100.1"].map(|addr| way(&w, addr)), ways());
    w.control.set_policies(&Policies {
        source_check: [(NUMBER, SourceCheck::Strict), (PortId(0), SourceCheck::Loose)].into(),
        ..Policies::default()
    });
    w.with(|t| assert_eq!([t.ports[0].source_check, t.ports[1].source_check], [SourceCheck::Strict; 2]));
    // A member that fails, and comes back.
    w.control.set_masters(&[by(1, P1)]);
    assert_eq!(way(&w, "192.0.2.1"), Some((1, BOND as u8)));
    w.control.set_masters(&[both]);
    assert_eq!(way(&w, "192.0.2.1"), Some((NUMBER.0, BOND as u8)));
    assert!(w.control.inconsistent_prefixes().is_empty());
}

#[test]
fn policies_are_the_bonds() {
    let mut w = world();
    w.control.set_masters(&[by(0, P0)]);
    w.control.set_policies(&Policies {
        egress: vec![(BOND, Families::V4)],
        source_check: [(NUMBER, SourceCheck::Loose)].into(),
        ..Policies::default()
    });
    assert_eq!(w.brief("192.0.2.1"), "policy");
    assert_eq!(w.control.source_check(NUMBER), SourceCheck::Loose);
    // Never loose without an address of the bond.
    w.apply(&[Change::AddressGone { index: BOND, addr: "10.5.0.1".parse().unwrap(), len: 24 }]);
    assert_eq!(w.control.source_check(NUMBER), SourceCheck::Strict);
}
