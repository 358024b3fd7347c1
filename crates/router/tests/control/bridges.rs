//! Bridges as next hops: to each station by the port that leads to it.

use crate::world::*;
use bywash_engine::PortId;
use bywash_fib::model::{
    Behind, Bridge, Bridging, Change, Encapsulation, Families, Link, Mac, Member, SourceCheck, Station, Tunnel, Vxlan,
};
use bywash_router::control::{Bridged, Egress, MasterSpec, Policies, TunnelSpec, VlanSpec};
use bywash_router::tables::{Kind, Reception};
use bywash_router::tunnel::{Path, Paths};
use bywash_router::vlan::{FIRST, UNTAGGED, tag};
use std::net::{IpAddr, Ipv4Addr};

/// A bridge of the members `p0` and `p1`, and of one that is no port.
const BRIDGE: u32 = 7;
const NUMBER: PortId = PortId(FIRST);

fn bridge(members: &[(u16, u32)]) -> MasterSpec {
    let members = members.iter().map(|(port, index)| (PortId(*port), *index)).collect();
    let sends = Egress::ToStation { bridge: BRIDGE, vlan: 0 };
    MasterSpec { id: NUMBER, index: BRIDGE, members, tagged: vec![], tag: UNTAGGED, vxlans: vec![], egress: sends }
}

fn both() -> MasterSpec {
    bridge(&[(0, P0), (1, P1)])
}

#[test]
fn a_vlan_without_an_interface_routes_nothing() {
    for (bridge, vlan) in [(1, 1), (7, 4094), ((1 << 19) - 1, 4095)] {
        let index = MasterSpec::index_of_vlan(bridge, vlan).unwrap();
        assert_eq!(MasterSpec::vlan_of_index(index), Some((bridge, vlan)));
    }
    assert_eq!([MasterSpec::index_of_vlan(1 << 19, 1), MasterSpec::index_of_vlan(1, 4096)], [None; 2]);
    assert_eq!(MasterSpec::vlan_of_index(i32::MAX as u32), None);
    let mut w = world();
    let own = |w: &World| w.control.ports().map(|port| (port.mac, port.mtu)).collect::<Vec<_>>();
    w.control.set_masters(&[]);
    let alone = own(&w);
    let (index, entry) = (MasterSpec::index_of_vlan(BRIDGE, 7).unwrap(), PortId(FIRST + 9));
    let sends = Egress::ToStation { bridge: BRIDGE, vlan: 7 };
    let (tag, tagged) = (tag(0x8100, 7), vec![(PortId(1), entry)]);
    w.control.set_masters(&[MasterSpec { index, tag, tagged, egress: sends, ..both() }]);
    assert_eq!(own(&w), alone, "ports keep their addresses");
    assert_eq!([0, 1].map(|port| w.control.receiver(PortId(port), NUMBER)), [None; 2]);
    let (view, _) = w.control.masters().next().unwrap();
    assert_eq!((view.index, view.mac, view.name.ends_with(" VLAN 7")), (0, None, true));
    let entries = w.control.entries();
    assert_eq!((entries.len(), entries[0].entry, entries[0].view.mac), (1, entry, Some(Mac::default())));
    assert_eq!(w.with(|t| t.port(NUMBER).unwrap().index), 0);
}

/// Returns the station of the neighbour with this last octet of its MAC address.
fn station(last: u8, member: u32) -> Change {
    let Change::Neighbour(of) = neighbour(BRIDGE, "10.5.0.9", last) else { panic!() };
    Change::Station(Station { bridge: BRIDGE, vlan: 0, mac: of.mac.unwrap(), behind: Behind::Member(member) })
}

fn gone(last: u8) -> Change {
    let Change::Station(Station { bridge, vlan, mac, .. }) = station(last, 0) else { panic!() };
    Change::StationGone { bridge, vlan, mac }
}

/// Two ports, and a bridge with an address, a neighbour behind each member, and a network behind one of these.
fn world() -> World {
    let mut w = World::new();
    w.apply(&[link(BRIDGE, "br0"), address(BRIDGE, "10.5.0.1", 24), route("10.5.0.0/24").dev(BRIDGE).into()]);
    for (addr, mac) in [("10.5.0.8", 8), ("10.5.0.9", 9), ("10.5.0.10", 10)] {
        w.apply(&[neighbour(BRIDGE, addr, mac)]);
    }
    w.apply(&[
        station(8, P0),
        station(9, P1),
        station(10, OTHER),
        route("192.0.2.0/24").via(BRIDGE, "10.5.0.9").into(),
    ]);
    w
}

fn port(w: &World, addr: &str) -> Option<u16> {
    match w.got(addr) {
        Got::Out { kind: "forward", port, from, .. } => {
            assert_eq!(from[5], BRIDGE as u8, "the bridge's address");
            Some(port)
        }
        _ => None,
    }
}

#[test]
fn a_bridge_leads_to_stations_by_their_ports() {
    let mut w = world();
    assert_eq!(w.brief("192.0.2.1"), "kernel");
    w.control.set_masters(&[both()]);
    assert_eq!(["192.0.2.1", "10.5.0.9", "10.5.0.8"].map(|addr| port(&w, addr)), [Some(1), Some(1), Some(0)]);
    // Behind a member that is no port, or behind none: the kernel sends. Whoever is no neighbour is to be resolved.
    w.apply(&[neighbour(BRIDGE, "10.5.0.11", 11)]);
    assert_eq!([w.brief("10.5.0.10"), w.brief("10.5.0.11")], ["kernel"; 2]);
    assert_eq!(w.brief("10.5.0.12"), "glean dev 7 mac 0");
    // The station moves, is forgotten, and comes back.
    w.apply(&[station(9, P0)]);
    assert_eq!((port(&w, "192.0.2.1"), port(&w, "10.5.0.9")), (Some(0), Some(0)));
    w.apply(&[gone(9)]);
    assert_eq!(w.brief("192.0.2.1"), "kernel");
    w.apply(&[station(9, P1), station(11, P0)]);
    assert_eq!((port(&w, "192.0.2.1"), port(&w, "10.5.0.11")), (Some(1), Some(0)));
    // The neighbour gets another MAC address.
    w.apply(&[neighbour(BRIDGE, "10.5.0.9", 8)]);
    assert_eq!(port(&w, "192.0.2.1"), Some(0));
    // A member leaves the bridge.
    w.control.set_masters(&[bridge(&[(1, P1)])]);
    assert_eq!((w.brief("192.0.2.1"), port(&w, "10.5.0.8")), ("kernel".into(), None));
    w.control.set_masters(&[]);
    assert_eq!(w.brief("10.5.0.9"), "kernel");
    assert!(w.control.inconsistent_prefixes().is_empty());
}

#[test]
fn ports_of_a_bridge_receive_for_it() {
    let mut w = world();
    w.apply(&[route("203.0.113.0/24").via(P0, "10.0.0.9").into(), neighbour(P0, "10.0.0.9", 7)]);
    assert_eq!(w.brief("203.0.113.1"), "forward dev 1 via 10.0.0.9 mac 7");
    w.control.set_masters(&[bridge(&[(0, P0)])]);
    // A member's own routes are left to the kernel.
    assert_eq!(w.brief("203.0.113.1"), "kernel");
    let checks = [(PortId(0), SourceCheck::Off), (NUMBER, SourceCheck::Strict), (PortId(1), SourceCheck::Loose)];
    w.control.set_policies(&Policies { source_check: checks.into(), ..Policies::default() });
    w.with(|t| {
        let (member, other, bridge) = (&t.ports[0], &t.ports[1], t.port(NUMBER).unwrap());
        assert_eq!((member.master, other.master), (Some(NUMBER), None));
        assert_eq!([0, 1].map(|port| t.number(PortId(port))), [NUMBER, PortId(1)]);
        for of in [member, bridge] {
            assert_eq!((of.index, of.mac[5], of.source4), (BRIDGE, BRIDGE as u8, Some("10.5.0.1".parse().unwrap())));
            assert_eq!(of.source_check, SourceCheck::Strict);
        }
        assert_eq!(other.source_check, SourceCheck::Loose);
        assert_eq!(t.egress("10.5.0.8".parse().unwrap()), Some(NUMBER));
        // A translated source may have this address of the bridge, and of nothing else.
        let gives = |addr: &str, port| t.is_source_of(addr.parse().unwrap(), port);
        assert!(gives("10.0.1.1", PortId(1)) && !gives("10.0.1.1", NUMBER));
    });
    let numbers: Vec<_> = w.control.ports().map(|view| view.number).collect();
    assert_eq!(numbers, [NUMBER, PortId(1)]);
    let masters: Vec<_> = w.control.masters().map(|(view, _)| (view.id, view.index, view.name)).collect();
    assert_eq!(masters, [(NUMBER, BRIDGE, "br0".to_owned())]);
    assert_eq!([0, 1].map(|port| w.control.receiver(PortId(port), NUMBER)), [Some(BRIDGE), Some(P1)]);
    assert_eq!(w.control.receiver(PortId(0), TAGGED), Some(BRIDGE), "a VLAN on the bridge");
    // A port that is closed is no way to a station.
    assert_eq!(port(&w, "10.5.0.8"), Some(0));
    w.control.set_open(PortId(0), false);
    assert_eq!((w.brief("10.5.0.8"), w.control.masters().count()), ("kernel".into(), 0));
    w.control.set_open(PortId(0), true);
    assert_eq!(port(&w, "10.5.0.8"), Some(0));
    // Policies by the egress interface are the bridge's.
    let egress = |index| Policies { egress: vec![(index, Families::V4)], ..Policies::default() };
    w.control.set_policies(&egress(P0));
    assert_eq!(port(&w, "10.5.0.8"), Some(0));
    w.control.set_policies(&egress(BRIDGE));
    assert_eq!(w.brief("10.5.0.8"), "policy");
    assert!(w.control.inconsistent_prefixes().is_empty());
}

#[test]
fn what_is_known_of_stations_is_reported() {
    let mut w = world();
    w.control.set_masters(&[both()]);
    let known: Vec<Change> = w.control.known().filter(|change| matches!(change, Change::Station(_))).collect();
    assert_eq!(known, [station(8, P0), station(9, P1), station(10, OTHER)]);
}

/// A VLAN interface on the bridge, and its number; its entries on the ports have the next ones.
const VLAN: u32 = 8;
const TAGGED: PortId = PortId(FIRST + 3);

fn vlan() -> VlanSpec {
    VlanSpec {
        id: TAGGED,
        index: VLAN,
        port: NUMBER,
        parent: BRIDGE,
        entries: (0..2).map(|port| (PortId(port), PortId(TAGGED.0 + 1 + port))).collect(),
        tag: tag(0x8100, 5),
        sends: true,
    }
}

#[test]
fn a_vlan_on_a_bridge_leads_to_its_stations() {
    let mut w = world();
    w.apply(&[link(VLAN, "br0.5"), address(VLAN, "10.6.0.1", 24), route("10.6.0.0/24").dev(VLAN).into()]);
    for (addr, mac) in [("10.6.0.8", 8), ("10.6.0.9", 9), ("10.6.0.10", 10)] {
        w.apply(&[neighbour(VLAN, addr, mac)]);
    }
    w.apply(&[route("198.51.100.0/24").via(VLAN, "10.6.0.9").into()]);
    w.control.set_vlans(&[vlan()]);
    assert_eq!(w.brief("10.6.0.8"), "kernel", "without the bridge");
    w.control.set_masters(&[both()]);
    let way = |w: &World, addr: &str| match w.got(addr) {
        Got::Out { kind: "forward", port, from, .. } => Some((port - TAGGED.0 - 1, from[5])),
        _ => None,
    };
    let by = |port| Some((port, VLAN as u8));
    assert_eq!(["10.6.0.8", "10.6.0.9", "198.51.100.1"].map(|addr| way(&w, addr)), [by(0), by(1), by(1)]);
    assert_eq!(w.brief("10.6.0.10"), "kernel", "behind a member that is no port");
    w.with(|t| {
        for port in 0..2 {
            assert_eq!(t.ports[usize::from(port)].vlans, [([0x81, 0, 0, 5], TAGGED)]);
            let entry = t.vlan(PortId(TAGGED.0 + 1 + port)).unwrap();
            assert_eq!((entry.port, entry.tag), (PortId(port), tag(0x8100, 5)));
            assert_eq!(t.number(PortId(TAGGED.0 + 1 + port)), TAGGED);
        }
        assert_eq!((t.number(TAGGED), t.number(PortId(0))), (TAGGED, NUMBER));
        assert!(t.is_bridged(TAGGED) && t.is_bridged(NUMBER) && !t.is_bridged(PortId(0)));
        assert_eq!(t.egress("198.51.100.1".parse().unwrap()), Some(TAGGED));
        assert!(t.is_source_of("10.6.0.1".parse().unwrap(), TAGGED));
    });
    // The station moves, is forgotten, and comes back.
    w.apply(&[station(9, P0)]);
    assert_eq!(["10.6.0.9", "198.51.100.1"].map(|addr| way(&w, addr)), [by(0), by(0)]);
    w.apply(&[gone(9)]);
    assert_eq!(w.brief("198.51.100.1"), "kernel");
    w.apply(&[station(9, P1)]);
    assert_eq!(way(&w, "198.51.100.1"), by(1));
    w.control.set_open(PortId(1), false);
    assert_eq!((w.brief("198.51.100.1"), way(&w, "10.6.0.8")), ("kernel".into(), by(0)));
    w.control.set_open(PortId(1), true);
    assert_eq!(way(&w, "198.51.100.1"), by(1));
    w.control.set_masters(&[]);
    assert_eq!(w.brief("10.6.0.8"), "kernel");
    assert!(w.control.inconsistent_prefixes().is_empty());
}

/// A bridge that filters VLANs: its own interface is in VLAN 1, without a tag behind both members, and a VLAN interface
/// is in VLAN 5, with a tag behind the second.
fn filtering() -> [MasterSpec; 2] {
    let sends = |vlan| Egress::ToStation { bridge: BRIDGE, vlan };
    let own = MasterSpec { egress: sends(1), tag: tag(0x8100, 1), ..both() };
    let tagged = vec![(PortId(1), PortId(TAGGED.0 + 1))];
    [own.clone(), MasterSpec { id: TAGGED, index: VLAN, tag: tag(0x8100, 5), egress: sends(5), tagged, ..own }]
}

#[test]
fn interfaces_of_a_bridge_that_filters_vlans_lead_to_stations_of_their_own() {
    let mut w = world();
    let in_vlan = |vlan, last, member| match station(last, member) {
        Change::Station(of) => Change::Station(Station { vlan, ..of }),
        _ => unreachable!(),
    };
    w.apply(&[link(VLAN, "br0.5"), address(VLAN, "10.6.0.1", 24), route("10.6.0.0/24").dev(VLAN).into()]);
    for (addr, mac) in [("10.6.0.8", 8), ("10.6.0.9", 9)] {
        w.apply(&[neighbour(VLAN, addr, mac)]);
    }
    let mut masters = filtering();
    masters[1].members = vec![(PortId(1), P1)];
    w.control.set_masters(&masters);
    let way = |w: &World, addr: &str| match w.got(addr) {
        Got::Out { kind: "forward", port, from, .. } => Some((port, from[5])),
        _ => None,
    };
    // The stations of `world` are in no VLAN.
    assert_eq!(["10.5.0.8", "10.6.0.8"].map(|addr| way(&w, addr)), [None, None]);
    w.apply(&[in_vlan(1, 8, P0), in_vlan(5, 8, P1), in_vlan(5, 9, P0)]);
    let (entry, own) = (TAGGED.0 + 1, BRIDGE as u8);
    assert_eq!(["10.5.0.8", "10.6.0.8"].map(|addr| way(&w, addr)), [Some((0, own)), Some((entry, VLAN as u8))]);
    assert_eq!(w.brief("10.6.0.9"), "kernel", "a member that is not in the VLAN");
    w.with(|t| {
        assert_eq!([0, 1].map(|port| t.ports[port].vlans.clone()), [vec![], vec![(tag(0x8100, 5), TAGGED)]]);
        assert_eq!([0, 1].map(|port| t.number(PortId(port))), [NUMBER; 2]);
        let of = t.vlan(PortId(entry)).unwrap();
        assert_eq!((of.port, of.tag, of.info.index, of.info.mac[5]), (PortId(1), tag(0x8100, 5), VLAN, VLAN as u8));
        assert_eq!((t.number(PortId(entry)), t.number(TAGGED), t.port(TAGGED).unwrap().index), (TAGGED, TAGGED, VLAN));
        assert!(t.is_bridged(TAGGED) && t.is_bridged(NUMBER));
        assert_eq!(t.egress("10.6.0.8".parse().unwrap()), Some(TAGGED));
        assert!(t.is_source_of("10.6.0.1".parse().unwrap(), TAGGED));
    });
    let receivers = |w: &World, port| [NUMBER, TAGGED].map(|id| w.control.receiver(PortId(port), id));
    assert_eq!([receivers(&w, 0), receivers(&w, 1)], [[Some(BRIDGE), None], [Some(BRIDGE), Some(VLAN)]]);
    let views = w.control.entries().into_iter().map(|of| (of.view.id, of.view.name, of.port, of.entry, of.tag));
    assert_eq!(views.collect::<Vec<_>>(), [(TAGGED, "br0.5".into(), PortId(1), PortId(TAGGED.0 + 1), tag(0x8100, 5))]);
    // The same VLAN without a tag on the first member, whose frames without one were the bridge's own.
    masters[0].members = vec![(PortId(1), P1)];
    masters[1].members = vec![(PortId(0), P0), (PortId(1), P1)];
    w.control.set_masters(&masters);
    assert_eq!(["10.6.0.9", "10.6.0.8"].map(|addr| way(&w, addr).map(|way| way.0)), [Some(0), Some(entry)]);
    assert_eq!(w.brief("10.5.0.8"), "kernel");
    w.with(|t| assert_eq!([0, 1].map(|port| t.number(PortId(port))), [TAGGED, NUMBER]));
    assert_eq!([receivers(&w, 0), receivers(&w, 1)], [[None, Some(VLAN)], [Some(BRIDGE), Some(VLAN)]]);
    // Between members, only frames of one VLAN that have a tag on neither.
    assert_eq!([0, 1].map(|port| w.control.bridge_filters(PortId(port))), [Some(true); 2]);
    // All of the second member's frames without a tag are left to the kernel.
    w.control.set_masters(&masters[1..]);
    w.with(|t| assert_eq!([0, 1].map(|port| t.number(PortId(port))), [TAGGED, PortId(1)]));
    assert_eq!((receivers(&w, 1), w.control.bridge_filters(PortId(1))), ([None, Some(VLAN)], Some(true)));
    assert_eq!(w.control.receiver(PortId(1), PortId(1)), None, "its own frames, which are no interface's");
    w.apply(&[in_vlan(5, 8, P0)]);
    assert_eq!(way(&w, "10.6.0.8"), Some((0, VLAN as u8)));
    w.control.set_masters(&[]);
    assert_eq!(w.brief("10.6.0.8"), "kernel");
    assert!(w.control.inconsistent_prefixes().is_empty());
}

/// A VXLAN that is a member of the bridge.
const VXLAN: u32 = 9;
const THROUGH: PortId = PortId(FIRST + 1);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

fn vxlan(learns: bool) -> TunnelSpec {
    let (sources, unsummed6) = ([0; 2], false);
    let of =
        Vxlan { vni: 5, port: 4789, sources, checksum: false, unsummed6, learns, filters: false, ageing: 40, link: 0 };
    let any = Ipv4Addr::UNSPECIFIED.into();
    let tunnel = Tunnel { vxlan: Some(of), ..Tunnel::between(Encapsulation::Vxlan, HERE, any) };
    let bridge = Some(Bridged { index: BRIDGE, bridge: BRIDGE, vlan: 0, ageing: learns.then_some(30) });
    TunnelSpec { id: THROUGH, index: VXLAN, tunnel, bridge }
}

#[test]
fn a_bridge_leads_to_stations_behind_a_vxlan() {
    let mut w = world();
    let Change::Station(Station { mac, .. }) = station(9, 0) else { panic!() };
    let behind = |end| Change::Station(Station { bridge: VXLAN, vlan: 0, mac, behind: Behind::End(end) });
    let through = |w: &World| {
        let id = w.id("192.0.2.1") as usize;
        w.with(|t| {
            let entry = t.entries[id];
            let from: Mac = *entry.macs[6..].first_chunk().unwrap();
            assert!(entry.kind != Kind::Tunnel || (entry.port, from[5]) == (THROUGH, BRIDGE as u8), "{entry:?}");
            (entry.kind, entry.tunnel().0)
        })
    };
    w.apply(&[link(VXLAN, "vx0"), station(9, VXLAN), behind(THERE)]);
    w.control.set_policies(&Policies { tunnels: [THROUGH].into(), ..Policies::default() });
    // The second path leads there.
    let path = |local| Path { ends: (local, THERE, 0), source: local, mtu: 1500, ttl: 64, via: None };
    let all = vec![path([10, 0, 0, 0].into()), path(HERE)];
    let paths = Paths { all, sources: [1, 2], ..Paths::default() };
    w.control.set_paths(paths.clone());
    // With a port on a member, and with none.
    for members in [&[(0, P0), (1, P1)][..], &[]] {
        w.control.set_masters(&[MasterSpec { vxlans: vec![VXLAN], ..bridge(members) }]);
        w.control.set_tunnels(&[vxlan(true)]);
        assert_eq!(through(&w), (Kind::Tunnel, 1));
        assert_eq!(port(&w, "10.5.0.8"), members.first().map(|_| 0));
        w.with(|t| {
            assert_eq!((t.number(THROUGH), t.number(NUMBER), t.is_bridged(NUMBER)), (NUMBER, NUMBER, true));
            for info in [t.port(NUMBER).unwrap(), t.port(THROUGH).unwrap()] {
                assert_eq!((info.index, info.mac[5], info.source4), (BRIDGE, BRIDGE as u8, Some([10, 5, 0, 1].into())));
            }
            let tunnel = t.tunnels.get(THROUGH).unwrap();
            assert_eq!((tunnel.mac[5], tunnel.ageing), (VXLAN as u8, Some(30)));
        });
        assert_eq!(w.brief("10.5.0.12"), "glean dev 7 mac 0");
        let [_, _, _, _, _, own] = mac_of_bridge(&w);
        assert_eq!(
            w.control.tunnels_by_end().into_iter().map(|(end, of)| (end.key, of.id, of.mac[5])).collect::<Vec<_>>(),
            [(Some(5), NUMBER, own)]
        );
        let masters: Vec<_> = w.control.masters().map(|(view, _)| view.index).collect();
        assert_eq!(masters, [BRIDGE]);
        // The station moves, to another member and to another remote, and is forgotten by either.
        for (change, back) in [
            (station(9, OTHER), station(9, VXLAN)),
            (gone(9), station(9, VXLAN)),
            (behind(HERE), behind(THERE)),
            (Change::StationGone { bridge: VXLAN, vlan: 0, mac }, behind(THERE)),
        ] {
            w.apply(&[change]);
            assert_eq!(through(&w).0, Kind::Kernel);
            w.apply(&[back]);
            assert_eq!(through(&w), (Kind::Tunnel, 1));
        }
        // No path to the remote, a policy for the outer packets, no number.
        w.control.set_paths(Paths::default());
        assert_eq!(through(&w).0, Kind::Kernel);
        w.control.set_paths(paths.clone());
        w.control.set_policies(&Policies::default());
        assert_eq!(through(&w).0, Kind::Kernel);
        w.control.set_policies(&Policies { tunnels: [THROUGH].into(), ..Policies::default() });
        assert_eq!(through(&w), (Kind::Tunnel, 1));
        w.control.set_tunnels(&[]);
        assert_eq!(through(&w).0, Kind::Kernel);
    }
    assert!(w.control.inconsistent_prefixes().is_empty());
}

/// Two VLANs of a bridge that are networks of one VXLAN interface: each has its own stations and its own VNI.
#[test]
fn vlans_of_a_bridge_lead_to_stations_in_networks_of_a_vxlan() {
    let mut w = world();
    let Change::Station(Station { mac, .. }) = station(9, 0) else { panic!() };
    let vlan = |vlan: u16| {
        let (interface, index) = (20 + u32::from(vlan), MasterSpec::index_of_vlan(VXLAN, vlan).unwrap());
        let sends = Egress::ToStation { bridge: BRIDGE, vlan };
        let id = PortId(NUMBER.0 + 2 * vlan);
        let master = MasterSpec { id, index: interface, vxlans: vec![index], egress: sends, ..bridge(&[(0, P0)]) };
        let of = Bridged { index: interface, bridge: BRIDGE, vlan, ageing: None };
        let tunnel = vxlan(false).tunnel.network(1000 + u32::from(vlan));
        (master, TunnelSpec { id: PortId(id.0 + 1), index, tunnel, bridge: Some(of) })
    };
    let [(one, through_one), (two, through_two)] = [7, 8].map(vlan);
    for (of, net) in [(&one, 7), (&two, 8)] {
        let gateway = format!("10.{net}.0.9");
        w.apply(&[
            link(of.index, &format!("br0.{net}")),
            address(of.index, &format!("10.{net}.0.1"), 24),
            neighbour(of.index, &gateway, 9),
            route(&format!("192.0.{net}.0/24")).via(of.index, &gateway).into(),
            Change::Station(Station { bridge: BRIDGE, vlan: net, mac, behind: Behind::Member(VXLAN) }),
        ]);
    }
    w.apply(&[link(VXLAN, "vxn")]);
    let all = vec![Path { ends: (HERE, THERE, 0), source: HERE, mtu: 1500, ttl: 64, via: None }];
    w.control.set_paths(Paths { all, sources: [1, 2], ..Paths::default() });
    let tunnels = [through_one.id, through_two.id].into();
    w.control.set_policies(&Policies { tunnels, ..Policies::default() });
    w.control.set_masters(&[one.clone(), two.clone()]);
    w.control.set_tunnels(&[through_one, through_two]);
    let through = |w: &World| {
        ["192.0.7.1", "192.0.8.1"].map(|to| {
            let id = w.id(to) as usize;
            w.with(|t| (t.entries[id].kind == Kind::Tunnel).then_some(t.entries[id].port))
        })
    };
    let known = |vni| Change::Station(Station { bridge: VXLAN, vlan: vni, mac, behind: Behind::End(THERE) });
    assert_eq!(through(&w), [None, None]);
    w.apply(&[known(1009), known(1007)]);
    assert_eq!(through(&w), [Some(through_one.id), None]);
    w.apply(&[known(1008)]);
    assert_eq!(through(&w), [Some(through_one.id), Some(through_two.id)]);
    let keys: Vec<_> = w.control.tunnels_by_end().into_iter().map(|(end, of)| (end.key, of.id)).collect();
    assert_eq!(keys, [(Some(1007), one.id), (Some(1008), two.id)]);
    let views: Vec<_> = w.control.tunnels().map(|(view, _)| (view.index, view.name)).collect();
    assert_eq!(views, [(VXLAN, "vxn VNI 1007".into()), (VXLAN, "vxn VNI 1008".into())]);
    w.apply(&[Change::StationGone { bridge: VXLAN, vlan: 1007, mac }]);
    assert_eq!(through(&w), [None, Some(through_two.id)]);
    assert!(w.control.inconsistent_prefixes().is_empty());
}

fn mac_of_bridge(w: &World) -> Mac {
    w.with(|t| t.port(NUMBER).unwrap().mac)
}

/// Between a VXLAN and a port on another member, frames are bridged past the kernel as the states of both allow, and to
/// stations to whose end there is a path. A port that has been on such a member compares addresses from then on.
#[test]
fn frames_between_a_vxlan_and_members_follow_their_states() {
    let mut w = world();
    let Change::Station(Station { mac, .. }) = station(9, 0) else { panic!() };
    let Change::Station(Station { mac: near, .. }) = station(8, 0) else { panic!() };
    let behind = Change::Station(Station { bridge: VXLAN, vlan: 0, mac, behind: Behind::End(THERE) });
    let member = |index, name, bridging| {
        let member = Some(Member { active: true, plain: true, learns: true, bridging, ..Member::default() });
        Change::Link(Link { member, mtu: 1400, ..a_link(index, name) })
    };
    let of = Bridge { ageing_ms: 300_000, plain: true, filters: false, protocol: 0x8100, calls_ip: false };
    let bridge_link = |calls_ip| {
        let bridge = Some(Bridge { calls_ip, ..of });
        Change::Link(Link { bridge, ..a_link(BRIDGE, "br0") })
    };
    w.apply(&[bridge_link(false), member(VXLAN, "vx0", Bridging::Any), station(9, VXLAN), behind]);
    w.apply(&[member(P0, "p0", Bridging::Any), member(P1, "p1", Bridging::Kernel)]);
    w.control.set_policies(&Policies { tunnels: [THROUGH].into(), ..Policies::default() });
    let all = vec![Path { ends: (HERE, THERE, 0), source: HERE, mtu: 1500, ttl: 64, via: None }];
    w.control.set_paths(Paths { all, sources: [1, 2], ..Paths::default() });
    assert!(w.with(|t| t.ports.iter().all(|port| port.reception == Reception::Own)));
    w.control.set_masters(&[MasterSpec { vxlans: vec![VXLAN], ..both() }]);
    w.control.set_tunnels(&[vxlan(true)]);
    let through = |w: &World| [0, 1].map(|port| w.control.bridged_through(NUMBER, PortId(port)));
    let members = |w: &World| {
        let told: Vec<_> = w.control.tunnels_by_end().into_values().map(|of| (of.members, of.learns)).collect();
        let ports =
            w.with(|t| t.tunnels.get(THROUGH).unwrap().members.iter().map(|to| (to.port.0, to.longest)).collect());
        (told, ports)
    };
    let open = (vec![(1, true)], vec![(0, 1414)]);
    let none = (vec![(0, true)], vec![]);
    assert_eq!((through(&w), members(&w)), ([Some(1414), None], open.clone()));
    assert_eq!(w.with(|t| [0, 1].map(|port| t.ports[port].reception)), [Reception::Bridged; 2]);
    for (change, back) in [
        (member(P0, "p0", Bridging::Kernel), member(P0, "p0", Bridging::Any)),
        (member(VXLAN, "vx0", Bridging::Kernel), member(VXLAN, "vx0", Bridging::Any)),
        (bridge_link(true), bridge_link(false)),
    ] {
        w.apply(&[change]);
        assert_eq!((through(&w), members(&w)), ([None; 2], none.clone()));
        w.apply(&[back]);
        assert_eq!((through(&w), members(&w)), ([Some(1414), None], open.clone()));
    }
    // By the VLAN's entry where frames have its tag.
    let entry = PortId(FIRST + 9);
    let trunk = MasterSpec { tagged: vec![(PortId(0), entry)], tag: tag(0x8100, 7), ..both() };
    w.control.set_masters(&[MasterSpec { vxlans: vec![VXLAN], ..trunk }]);
    assert_eq!((through(&w), members(&w)), ([Some(1414), None], open.clone()));
    assert_eq!(w.with(|t| t.tunnels.get(THROUGH).unwrap().members[0].entry), Some(entry));
    w.control.set_masters(&[MasterSpec { vxlans: vec![VXLAN], ..both() }]);
    // Isolated members do not reach each other.
    w.apply(&[member(P0, "p0", Bridging::Isolated)]);
    assert_eq!((through(&w), members(&w)), ([Some(1414), None], open.clone()));
    w.apply(&[member(VXLAN, "vx0", Bridging::Isolated)]);
    assert_eq!((through(&w), members(&w)), ([None; 2], none));
    w.apply(&[member(VXLAN, "vx0", Bridging::Any), member(P0, "p0", Bridging::Any)]);
    // A station that moves between other members.
    let at = |w: &World| w.with(|t| t.tunnels.get(THROUGH).unwrap().stations.member_of(&near));
    assert_eq!(at(&w), Some(P0));
    w.apply(&[station(8, P1)]);
    assert_eq!(at(&w), Some(P1));
    w.apply(&[gone(8)]);
    assert_eq!(at(&w), None);
    // Frames in its ring are still not to be routed.
    w.control.set_masters(&[]);
    assert_eq!(through(&w), [None; 2]);
    assert_eq!(w.with(|t| t.ports[0].reception), Reception::Bridged);
    assert!(w.control.inconsistent_prefixes().is_empty());
}
