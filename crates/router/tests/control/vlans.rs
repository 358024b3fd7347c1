//! VLAN interfaces as next hops.

use crate::world::*;
use bywash_engine::PortId;
use bywash_fib::model::{Change, Families, Link, SourceCheck};
use bywash_router::control::{Policies, VlanSpec};
use bywash_router::vlan::{FIRST, UNTAGGED, tag};

/// A VLAN interface on `p0`.
const VLAN: u32 = 7;

fn spec() -> VlanSpec {
    let (id, port) = (PortId(FIRST), PortId(0));
    VlanSpec { id, index: VLAN, port, parent: P0, entries: vec![(port, id)], tag: tag(0x8100, 5), sends: true }
}

/// Two ports, and a VLAN interface with an address, a neighbour, a network behind that, and one behind both it and
/// `p1`.
fn world() -> World {
    let mut w = World::new();
    w.apply(&[link(VLAN, "p0.5"), address(VLAN, "10.5.0.1", 24), neighbour(VLAN, "10.5.0.9", 9)]);
    w.apply(&[route("10.5.0.0/24").dev(VLAN).into(), route("192.0.2.0/24").via(VLAN, "10.5.0.9").into()]);
    w.apply(&[route("198.51.100.0/24").via(VLAN, "10.5.0.9").via(P1, "10.0.1.9").into(), neighbour(P1, "10.0.1.9", 8)]);
    w
}

fn port(w: &World, addr: &str) -> Option<u16> {
    match w.got(addr) {
        Got::Out { port, .. } => Some(port),
        _ => None,
    }
}

#[test]
fn a_vlan_is_an_interface_of_its_own() {
    let mut w = world();
    assert_eq!([w.brief("192.0.2.1"), w.brief("10.5.0.9"), w.brief("10.5.0.8")], ["kernel"; 3]);
    w.control.set_vlans(&[spec()]);
    let Got::Out { kind, port: to, index, from, mtu, .. } = w.got("192.0.2.1") else { panic!() };
    assert_eq!((kind, to, index, from, mtu), ("forward", FIRST, VLAN, [2, 0, 0, 0, 0xff, VLAN as u8], 1500));
    assert_eq!(w.brief("10.5.0.9"), "forward dev 7 via 10.5.0.9 mac 9");
    assert_eq!(w.brief("10.5.0.8"), "glean dev 7 mac 0");
    assert!(matches!(w.got("198.51.100.1"), Got::Group(members) if members.len() == 2));
    w.with(|t| {
        assert_eq!(t.ports[0].vlans, [([0x81, 0, 0, 5], PortId(FIRST))]);
        assert!(t.ports[1].vlans.is_empty());
        let vlan = t.vlan(PortId(FIRST)).unwrap();
        assert_eq!((vlan.port, vlan.tag, vlan.info.index), (PortId(0), [0x81, 0, 0, 5], VLAN));
        assert_eq!(vlan.info.mac, [2, 0, 0, 0, 0xff, VLAN as u8]);
        assert_eq!(t.port(PortId(FIRST)).unwrap().source4, Some("10.5.0.1".parse().unwrap()));
        assert!(t.port(PortId(FIRST + 1)).is_none() && t.port(PortId(9)).is_none());
    });
    assert!(w.control.inconsistent_prefixes().is_empty());
    // Its own properties are followed, those of the port below are not its.
    let mut new = a_link(VLAN, "p0.5");
    (new.mac, new.mtu) = (Some([2, 0, 0, 0, 0xee, 1]), 1400);
    let mut below = a_link(P0, "p0");
    below.mtu = 9000;
    w.apply(&[Change::Link(new.clone()), Change::Link(below)]);
    let Got::Out { from, mtu, .. } = w.got("192.0.2.1") else { panic!() };
    assert_eq!((from, mtu), ([2, 0, 0, 0, 0xee, 1], 1400));
    w.with(|t| assert_eq!(t.vlan(PortId(FIRST)).unwrap().info.mac, [2, 0, 0, 0, 0xee, 1]));
    new.up = false;
    w.apply(&[Change::Link(new)]);
    assert_eq!(w.brief("192.0.2.1"), "no-carrier");
}

#[test]
fn a_macvlan_is_recognised_by_its_address() {
    let mut w = world();
    for sends in [true, false] {
        w.control.set_vlans(&[VlanSpec { tag: UNTAGGED, sends, ..spec() }]);
        let brief = if sends { "forward dev 7 via 10.5.0.9 mac 9" } else { "kernel" };
        assert_eq!(w.brief("10.5.0.9"), brief);
        w.with(|t| {
            assert_eq!(t.ports[0].macvlans, [([2, 0, 0, 0, 0xff, VLAN as u8], PortId(FIRST))]);
            assert!(t.ports[0].vlans.is_empty() && t.ports[1].macvlans.is_empty());
            assert_eq!(t.port(PortId(FIRST)).unwrap().source4, Some("10.5.0.1".parse().unwrap()));
        });
    }
    let new = Link { mac: Some([2, 0, 0, 0, 0xee, 1]), ..a_link(VLAN, "mv0") };
    w.apply(&[Change::Link(new)]);
    w.with(|t| assert_eq!(t.ports[0].macvlans, [([2, 0, 0, 0, 0xee, 1], PortId(FIRST))]));
    assert!(w.control.inconsistent_prefixes().is_empty());
}

#[test]
fn a_vlan_goes_with_its_port_and_its_interface() {
    let mut w = world();
    w.control.set_vlans(&[spec()]);
    for _ in 0..2 {
        assert_eq!(port(&w, "192.0.2.1"), Some(FIRST));
        w.control.set_open(PortId(0), false);
        assert_eq!([w.brief("192.0.2.1"), w.brief("10.5.0.8")], ["kernel"; 2]);
        w.with(|t| assert!(t.ports[0].vlans.is_empty() && t.vlan(PortId(FIRST)).is_none()));
        w.control.set_open(PortId(0), true);
    }
    w.apply(&[Change::LinkGone { index: P0 }]);
    assert_eq!(w.brief("192.0.2.1"), "kernel");
    // A new interface of that name is not what the VLAN stands on.
    w.apply(&[link(20, "p0")]);
    assert_eq!(w.brief("192.0.2.1"), "kernel");
    w.control.set_vlans(&[VlanSpec { parent: 20, ..spec() }]);
    assert_eq!(port(&w, "192.0.2.1"), Some(FIRST));
    w.apply(&[Change::LinkGone { index: VLAN }]);
    assert_eq!(w.brief("192.0.2.1"), "kernel");
    w.apply(&[link(VLAN, "p0.5")]);
    assert_eq!(w.brief("192.0.2.1"), "pending dev 7 via 10.5.0.9 mac 0");
    w.control.set_vlans(&[]);
    assert_eq!(w.brief("192.0.2.1"), "kernel");
    w.with(|t| assert!(t.vlans.iter().all(Option::is_none) && t.ports.iter().all(|port| port.vlans.is_empty())));
    assert!(w.control.inconsistent_prefixes().is_empty());
}

#[test]
fn policies_of_a_vlan_are_not_its_ports() {
    let mut w = world();
    w.apply(&[route("203.0.113.0/24").via(P0, "10.0.0.9").into(), neighbour(P0, "10.0.0.9", 7)]);
    w.control.set_vlans(&[spec()]);
    w.control.set_policies(&Policies {
        egress: vec![(VLAN, Families::V4)],
        source_check: [(PortId(FIRST), SourceCheck::Loose)].into(),
        ..Policies::default()
    });
    assert_eq!((w.brief("192.0.2.1"), port(&w, "203.0.113.1")), ("policy".into(), Some(0)));
    let check = |w: &World| [PortId(0), PortId(FIRST)].map(|id| w.control.source_check(id));
    assert_eq!(check(&w), [SourceCheck::Off, SourceCheck::Loose]);
    w.with(|t| assert_eq!(t.vlan(PortId(FIRST)).unwrap().info.source_check, SourceCheck::Loose));
    // Never loose without an address.
    w.apply(&[Change::AddressGone { index: VLAN, addr: "10.5.0.1".parse().unwrap(), len: 24 }]);
    assert_eq!(check(&w), [SourceCheck::Off, SourceCheck::Strict]);
    w.control.set_policies(&Policies { egress: vec![(P0, Families::BOTH)], ..Policies::default() });
    assert_eq!((port(&w, "192.0.2.1"), w.brief("203.0.113.1")), (Some(FIRST), "policy".into()));
}
