mod tunnels;

use super::*;
use bywash_fib::model::{Bond, Bridge, BridgeVlans, Macvlan, Member, Vlan, VlanRange};

fn link(index: u32, name: &str, kind: &str) -> Link {
    Link {
        index,
        name: name.into(),
        mac: Some([2, 0, 0, 0, 0, index as u8]),
        mtu: 1500,
        up: true,
        carrier: true,
        kind: kind.into(),
        rx_queues: 1,
        ..Link::default()
    }
}

fn with(more: Link) -> Relations {
    let mut relations = Relations::default();
    assert!(relations.note(&[Change::Link(link(1, "r0", "")), Change::Link(more.clone())]));
    assert!(!relations.note(&[Change::Link(Link { carrier: false, ..more })]));
    relations
}

fn above(kind: &str) -> Link {
    Link { parent: Some(1), ..link(2, "u0", kind) }
}

#[test]
fn members_are_left() {
    let mut relations = with(link(2, "br0", "bridge"));
    assert_eq!(relations.left(1), None);
    let mut deaf = with(link(2, "br0", "bridge"));
    assert!(deaf.note(&[Change::Link(Link { mac: None, ..link(1, "r0", "") })]));
    assert!(deaf.left(1).is_some_and(|why| why.contains("arp off")));
    assert!(relations.note(&[Change::Link(Link { master: Some(2), ..link(1, "r0", "") })]));
    assert_eq!(
        relations.left(1).unwrap(),
        "it is a member of bridge interface br0, but the bridge learns no addresses, or has an XDP program, a spanning tree \
         for each VLAN or unknown properties"
    );
    assert!(relations.note(&[Change::Link(Link { vrf: Some(10), ..link(2, "red", "vrf") })]));
    assert_eq!((relations.left(1), model::vrf(&relations.links, 1)), (None, Some((2, "red", 10))));
    assert!(relations.note(&[Change::Link(link(2, "red", "vrf"))]), "a VRF whose table is not known");
    assert!(relations.left(1).is_some() && model::vrf(&relations.links, 1).is_none());
    assert!(relations.note(&[Change::Link(link(1, "r0", ""))]));
    assert_eq!((relations.left(1), relations.left(7)), (None, None));
}

#[test]
fn what_takes_the_ports_packets_or_is_not_known_leaves_it() {
    for kind in ["ipvlan", "ipvtap", "hsr", "dsa", "rmnet"] {
        assert_eq!(with(above(kind)).left(1).unwrap(), format!("{kind} interface u0 is above it"));
    }
    assert_eq!(with(above("")).left(1).unwrap(), "interface u0 is above it");
    for kind in HARMLESS {
        assert_eq!(with(above(kind)).left(1), None, "{kind}");
    }
    // An HSR interface may have any port for a member.
    let hsr = with(Link { parent: None, ..above("hsr") });
    assert_eq!(hsr.left(1).unwrap(), "hsr interface u0 may be above it");
    // An ipvlan above another interface does not matter.
    assert_eq!(with(Link { parent: Some(3), ..above("ipvlan") }).left(1), None);
    let mut relations = with(above("ipvlan"));
    assert!(relations.note(&[Change::LinkGone { index: 2 }]) && relations.left(1).is_none());
}

#[test]
fn vlans_leave_it_where_tags_are_hidden() {
    let relations = with(above("vlan"));
    assert_eq!(relations.left(1), None);
    let why = relations.left_without_tags(1).unwrap();
    assert_eq!(why, "vlan interface u0 is above it: programs do not see the tags of its packets");
    assert_eq!(with(above("macsec")).left_without_tags(1), None);
}

#[test]
fn plain_vlans_are_found() {
    let plain = Vlan { protocol: 0x8100, id: 5, plain: true };
    let vlan = Link { vlan: Some(plain), ..above("vlan") };
    let of = |relations: &Relations| relations.uppers(1).filter_map(|(_, vlan)| vlan.ok()).collect::<Vec<_>>();
    let found = |link: Link| of(&with(link));
    let told = UpperPackets { tag: [0x81, 0, 0, 5], sends: true };
    assert_eq!(found(vlan.clone()), [told]);
    let service = Vlan { protocol: 0x88a8, ..plain };
    assert_eq!(found(Link { vlan: Some(service), ..vlan.clone() }), [UpperPackets { tag: [0x88, 0xa8, 0, 5], ..told }]);
    for other in [
        Link { vlan: Some(Vlan { plain: false, ..plain }), ..vlan.clone() },
        Link { vlan: Some(Vlan { protocol: 0x9100, ..plain }), ..vlan.clone() },
        Link { vlan: Some(Vlan { id: 0, ..plain }), ..vlan.clone() },
        Link { vlan: Some(Vlan { id: 0xfff, ..plain }), ..vlan.clone() },
        Link { vlan: None, ..vlan.clone() },
        Link { parent: Some(3), ..vlan.clone() },
        Link { parent: None, ..vlan.clone() },
        Link { up: false, ..vlan.clone() },
        Link { master: Some(3), ..vlan.clone() },
        Link { mac: None, ..vlan.clone() },
        Link { mac: Some([1, 0, 0, 0, 0, 1]), ..vlan.clone() },
    ] {
        assert_eq!(found(other.clone()), [], "{other:?}");
    }
    // Any interface above a VLAN takes packets of the VLAN.
    let mut relations = with(vlan.clone());
    for kind in ["vlan", "macvlan", "ipvlan", "macsec"] {
        assert!(relations.note(&[Change::Link(Link { parent: Some(2), ..link(3, "w0", kind) })]));
        assert_eq!(relations.uppers(1).next().unwrap().1, Err(format!("{kind} interface w0 is above it")));
        assert!(relations.note(&[Change::LinkGone { index: 3 }]));
        assert_eq!(of(&relations), [told]);
    }
    assert!(relations.note(&[Change::Link(Link { up: false, ..vlan })]));
    assert_eq!(of(&relations), []);
}

const BOND: u32 = 9;

/// Returns a bond.
fn bond(mode: u8, active: Option<u32>) -> Link {
    let mac = link(1, "", "").mac;
    Link { bond: Some(Bond { mode, active, xmit_hash: 0, plain: true }), mac, ..link(BOND, "bond0", "bond") }
}

/// Returns a member of it.
fn member(index: u32, active: bool) -> Link {
    let (mac, member) = (bond(1, None).mac, Some(Member { active, plain: true, ..Member::default() }));
    Link { master: Some(BOND), mac, member, ..link(index, "r0", "veth") }
}

fn of(links: &[Link]) -> Relations {
    let mut relations = Relations::default();
    let bridges = links.iter().filter(|link| link.kind == "bridge");
    let own = bridges.filter_map(|link| Some(own(0, link.mac?, link.index)));
    relations.note(&links.iter().cloned().map(Change::Link).chain(own).collect::<Vec<_>>());
    relations
}

fn range(first: u16, last: u16) -> VlanRange {
    VlanRange { first, last, vni: None }
}

/// Returns an entry of the tests' bridge's forwarding database for an address in a VLAN.
fn own(vlan: u16, mac: Mac, member: u32) -> Change {
    Change::Station(Station { bridge: BRIDGE, vlan: vlan.into(), mac, behind: Behind::Member(member) })
}

/// Returns the reason why interface 1 is left, without the words that it belongs to the bond.
fn left(links: &[Link]) -> Option<String> {
    let relations = of(links);
    let why = relations.left(1).map(|why| why.replace("it is a member of bond interface bond0, but ", ""));
    assert_eq!(relations.bond(1).unwrap().err(), relations.left(1).filter(|why| why.starts_with("it is a member")));
    why
}

#[test]
fn a_member_that_has_all_of_a_bonds_packets_has_the_bonds_part() {
    let backup = bond(1, Some(1));
    assert_eq!(left(&[backup.clone(), member(1, true), member(2, false)]), None);
    assert_eq!(of(&[backup.clone(), member(1, true)]).bond(1).unwrap().unwrap().index, BOND);
    assert!(of(&[link(BOND, "br0", "bridge"), member(1, true)]).bond(1).is_none());
    for mode in [2, 4] {
        let bond = bond(mode, None);
        assert_eq!(left(&[bond.clone(), member(1, true), member(2, false)]), None);
        assert_eq!(left(&[bond, member(1, true), Link { master: Some(8), ..member(2, true) }]), None);
    }
}

#[test]
fn a_bond_is_forwarded_for_by_all_that_it_sends_by() {
    let reason = |bond: Link, second: Link| {
        let mut relations = of(&[bond, member(1, true), Link { name: "r2".into(), ..second }]);
        relations.set_ports([1, 2].into());
        relations.left(1).map(|why| why.replace("it is a member of bond interface bond0, but ", ""))
    };
    let of_hash = |xmit_hash| Link { bond: Some(Bond { xmit_hash, ..bond(4, None).bond.unwrap() }), ..bond(4, None) };
    for xmit_hash in 0..3 {
        assert_eq!(reason(of_hash(xmit_hash), member(2, true)), None);
    }
    let why = reason(of_hash(3), member(2, true)).unwrap();
    assert!(why.contains("their xmit_hash_policy is not followed"), "{why}");
    assert_eq!(reason(of_hash(3), member(2, false)), None, "there is nothing to choose");
    let why = |second: Link| reason(of_hash(1), second).unwrap();
    assert_eq!(why(member(3, true)), "the active member r2 is not a port: name it, too");
    assert_eq!(why(Link { carrier: false, ..member(2, true) }), "the active member r2 has no carrier");
    let differs = "the bond's MAC address or MTU differs from that of an active member";
    assert_eq!(why(Link { mtu: 1400, ..member(2, true) }), differs);
}

#[test]
fn ports_of_a_bond_are_in_the_order_of_its_members() {
    let relations = of(&[bond(2, None), member(1, true), Link { name: "r2".into(), ..member(2, true) }]);
    let (one, two) = ((PortId(5), 1), (PortId(3), 2));
    let names = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
    let order = |members: &[_], of: std::io::Result<_>| relations.in_order(BOND, members, |_| of);
    assert_eq!(order(&[one, two], names(&["r2", "r0", "r9"])), [two, one]);
    assert_eq!(order(&[one, two], names(&["r0", "r2"])), [one, two]);
    // A sending member is not a port, a member's name is missing, or the names cannot be read.
    assert_eq!(order(&[one], names(&["r0", "r2"])), []);
    assert_eq!(order(&[one, two], names(&["r0"])), []);
    assert_eq!(order(&[one, two], Err(std::io::ErrorKind::NotFound.into())), []);
    // With one member there is no order to read.
    let relations = of(&[bond(1, Some(1)), member(1, true), member(2, true)]);
    assert_eq!(relations.in_order(BOND, &[one], |_| panic!()), [one]);
}

#[test]
fn what_is_not_known_of_a_bond_leaves_it() {
    let backup = bond(1, Some(1));
    let not_plain = Bond { mode: 1, active: Some(1), xmit_hash: 0, plain: false };
    let said = "the bond has an ARP monitor, an XDP program, or unknown properties";
    for other in [None, Some(not_plain)] {
        assert_eq!(left(&[Link { bond: other, ..backup.clone() }, member(1, true)]).unwrap(), said);
    }
    for (mode, name) in [(0, "balance-rr"), (3, "broadcast"), (5, "balance-tlb"), (6, "balance-alb"), (7, "unknown")] {
        let why = left(&[bond(mode, Some(1)), member(1, true)]).unwrap();
        assert_eq!(why, format!("mode {name} is not followed"));
    }
    let why = |bond: Link, member: Link| left(&[link(7, "br0", "bridge"), bond, member]).unwrap();
    assert_eq!(
        why(Link { master: Some(7), ..backup.clone() }, member(1, true)),
        "the bond is itself a member of another interface"
    );
    assert_eq!(why(Link { up: false, ..backup.clone() }, member(1, true)), "the bond is down");
    assert_eq!(why(bond(1, Some(2)), member(1, true)), "another member is active");
    assert_eq!(why(bond(1, None), member(1, true)), "another member is active");
    let no_active = "it is not an active member";
    for other in [
        member(1, false),
        Link { member: None, ..member(1, true) },
        Link { up: false, ..member(1, true) },
        Link { carrier: false, ..member(1, true) },
    ] {
        assert_eq!(why(backup.clone(), other), no_active);
    }
    // Packets of a queue leave by whichever member is chosen for it.
    let chosen = |index, active| Link {
        member: Some(Member { active, plain: false, ..Member::default() }),
        ..member(index, true)
    };
    let unknown = Link { member: None, ..member(2, false) };
    let said = "a member has a queue_id or unknown properties";
    assert_eq!(why(backup.clone(), chosen(1, true)), said);
    for other in [chosen(2, false), unknown] {
        assert_eq!(left(&[backup.clone(), member(1, true), other]).unwrap(), said);
    }
    let another = "the bond's MAC address or MTU differs from that of an active member";
    assert_eq!(why(backup.clone(), Link { mac: Some([2; 6]), ..member(1, true) }), another);
    assert_eq!(why(backup.clone(), Link { mtu: 1400, ..member(1, true) }), another);
    assert_eq!(why(Link { mac: None, ..backup.clone() }, Link { mac: None, ..member(1, true) }), another);
    // In a VRF it has the VRF's routes.
    let red = Link { vrf: Some(10), ..link(7, "red", "vrf") };
    assert_eq!(left(&[red, Link { master: Some(7), ..backup.clone() }, member(1, true)]), None);
    let mut relations = of(&[backup, member(1, true)]);
    relations.set_ports([1, BOND].into());
    assert_eq!(relations.left(1).unwrap(), "it is a member of bond interface bond0, but the bond is a port itself");
    relations.set_ports([1].into());
    relations.serve(&[2].into());
    assert!(relations.left(1).unwrap().contains("too many interfaces"));
    relations.serve(&[1].into());
    assert_eq!(relations.left(1), None);
}

#[test]
fn a_team_is_forwarded_for_like_a_bond() {
    let of_mode = |mode, active| Link { kind: "team".into(), name: "team0".into(), ..bond(mode, active) };
    let left = |team: Link| of(&[team, member(1, true), member(2, true)]).left(1);
    assert_eq!(left(of_mode(1, Some(1))), None);
    let why = |team: Link| left(team).unwrap().replace("it is a member of team interface team0, but ", "");
    assert_eq!(why(of_mode(1, Some(2))), "another member is active");
    assert_eq!(why(of_mode(1, None)), "another member is active");
    assert_eq!(why(of_mode(Bond::UNKNOWN, None)), "the team's mode is not activebackup, or its options are unknown");
    assert!(why(Link { bond: None, ..of_mode(1, Some(1)) }).contains("unknown properties"));
    let unknown = of(&[of_mode(1, Some(1)), member(1, true), Link { member: None, ..member(2, true) }]);
    assert!(unknown.left(1).unwrap().contains("a member has a queue_id"));
}

#[test]
fn what_is_above_a_bond_is_above_its_member() {
    let bond = bond(1, Some(1));
    let plain = Vlan { protocol: 0x8100, id: 5, plain: true };
    let above = |parent, kind: &str| {
        let vlan = (kind == "vlan").then_some(plain);
        Link { parent: Some(parent), vlan, ..link(3, "u0", kind) }
    };
    let relations = of(&[bond.clone(), member(1, true), member(2, false), above(BOND, "vlan")]);
    assert_eq!(relations.left(1), None);
    assert!(relations.left_without_tags(1).is_some());
    assert_eq!(
        relations.uppers(1).map(|(link, vlan)| (link.index, vlan)).collect::<Vec<_>>(),
        [(3, Ok(UpperPackets { tag: [0x81, 0, 0, 5], sends: true }))]
    );
    assert_eq!(relations.uppers(2).count(), 0, "on a member that is not active");
    let left = |link: Link| left(&[bond.clone(), member(1, true), link]);
    assert_eq!(left(above(BOND, "ipvlan")).unwrap(), "ipvlan interface u0 is above it");
    assert_eq!(left(above(1, "vlan")).unwrap(), "vlan interface u0 is above it");
    assert_eq!(left(above(BOND, "vxlan")), None);
}

const BRIDGE: u32 = 8;

fn bridge() -> Link {
    Link {
        bridge: Some(Bridge { ageing_ms: 300_000, plain: true, ..Bridge::default() }),
        ..link(BRIDGE, "br0", "bridge")
    }
}

fn bridged(index: u32) -> Link {
    let member = Some(Member { active: true, plain: true, learns: true, ..Member::default() });
    Link { master: Some(BRIDGE), member, ..link(index, &format!("r{index}"), "veth") }
}

#[test]
fn members_of_a_bridge_have_its_packets() {
    let relations = of(&[bridge(), bridged(1), bridged(2)]);
    for index in [1, 2] {
        assert_eq!((relations.left(index), relations.bridge(index).unwrap().unwrap().index), (None, BRIDGE));
    }
    let mut relations = relations;
    let mac = bridge().mac.unwrap();
    for (change, others) in [(own(0, mac, 2), true), (own(0, mac, BRIDGE), false)] {
        assert!(relations.note(&[change]) && relations.left(1).is_some() == others);
    }
    assert!(relations.note(&[Change::StationGone { bridge: BRIDGE, vlan: 0, mac }]));
    assert!(relations.left(1).unwrap().ends_with("has no local entry for the bridge's own MAC address"));
    assert!(relations.bridge(BRIDGE).is_none() && of(&[bond(1, None), member(1, true)]).bridge(1).is_none());
    let why = |bridge: Link, member: Link| {
        let relations = of(&[bridge, member, link(7, "up0", "bridge")]);
        let why = relations.left(1).unwrap();
        assert_eq!(relations.bridge(1).unwrap().unwrap_err(), why);
        why.replace("it is a member of bridge interface br0, but ", "")
    };
    let not_plain = Bridge { plain: false, ..bridge().bridge.unwrap() };
    for other in [None, Some(not_plain)] {
        assert!(why(Link { bridge: other, ..bridge() }, bridged(1)).starts_with("the bridge learns no addresses"));
    }
    assert_eq!(
        why(Link { master: Some(7), ..bridge() }, bridged(1)),
        "the bridge is itself a member of another interface"
    );
    assert_eq!(why(Link { up: false, ..bridge() }, bridged(1)), "the bridge is down");
    let no_mac = why(Link { mac: None, ..bridge() }, bridged(1));
    assert_eq!([no_mac, why(bridge(), Link { mtu: 1400, ..bridged(1) })].map(|why| why.contains("MTU")), [true; 2]);
    let state = |active, plain| Link {
        member: Some(Member { active, plain, learns: true, ..Member::default() }),
        ..bridged(1)
    };
    for other in [Link { member: None, ..bridged(1) }, Link { up: false, ..bridged(1) }, state(false, true)] {
        assert_eq!(why(bridge(), other), "it is down, or not in state forwarding");
    }
    assert!(why(bridge(), state(true, false)).starts_with("it is locked there"));
    let mut relations = of(&[bridge(), bridged(1)]);
    relations.set_ports([1, BRIDGE].into());
    assert!(relations.left(1).unwrap().contains("is a port itself"));
    relations.set_ports([1].into());
    relations.serve(&[2].into());
    assert!(relations.left(1).unwrap().contains("too many interfaces"));
    relations.serve(&[1].into());
    assert_eq!(relations.left(1), None);
    relations.left_bridges = true;
    assert!(relations.left(1).unwrap().contains("as configured"));
    // The kernel looks for uppers of the bridge and VLANs of the member first.
    let above = |kind: &str, parent| {
        let upper = Link { parent: Some(parent), ..link(9, "u0", kind) };
        let relations = of(&[bridge(), bridged(1), upper]);
        (relations.left(1).is_some(), relations.left_without_tags(1).is_some())
    };
    assert_eq!([above("ipvlan", BRIDGE), above("vlan", 1)], [(true, false), (true, true)]);
    assert_eq!([above("vlan", BRIDGE), above("vxlan", BRIDGE)], [(false, true), (false, false)]);
    let told = |kind: &str| {
        let (vlan, macvlan) = (Vlan { protocol: 0x8100, id: 5, plain: true }, Macvlan { mode: 1, plain: true });
        let upper = |kind: &str| Link {
            vlan: (kind == "vlan").then_some(vlan),
            macvlan: (kind == "macvlan").then_some(macvlan),
            parent: Some(BRIDGE),
            ..link(9, "u0", kind)
        };
        super::tests::of(&[bridge(), bridged(1), upper(kind)]).uppers(1).map(|(_, told)| told).collect::<Vec<_>>()
    };
    assert_eq!(told("vlan"), [Ok(UpperPackets { tag: [0x81, 0, 0, 5], sends: true })]);
    assert_eq!(told("macvlan"), [Err("it is above a bridge".into())]);
    // A VRF of the bridge has its packets.
    let red = Link { vrf: Some(10), ..link(7, "red", "vrf") };
    assert_eq!(of(&[red, Link { master: Some(7), ..bridge() }, bridged(1)]).left(1), None);
}

/// A bridge that filters VLANs, with a VLAN interface, and a member; each with its VLAN without a tag, and one with.
fn filtering(of_bridge: (u16, u16), of_member: (u16, u16), upper: Link) -> Relations {
    let vlans = |(untagged, tagged)| BridgeVlans { untagged, tagged: vec![range(tagged, tagged)], stale: false };
    let of = Bridge { filters: true, protocol: 0x8100, ..bridge().bridge.unwrap() };
    let bridge = Link { bridge: Some(of), vlans: vlans(of_bridge), ..bridge() };
    let mut relations = super::tests::of(&[bridge, Link { vlans: vlans(of_member), ..bridged(1) }, upper]);
    let mac = self::bridge().mac.unwrap();
    relations.note(&[own(of_bridge.0, mac, BRIDGE), own(of_bridge.1, mac, BRIDGE)]);
    relations
}

/// The VLAN interface.
fn on_bridge(id: u16) -> Link {
    let vlan = Some(Vlan { protocol: 0x8100, id, plain: true });
    Link { vlan, parent: Some(BRIDGE), mac: bridge().mac, ..link(9, "u0", "vlan") }
}

#[test]
fn a_member_has_the_packets_of_its_vlans() {
    let joined = |index, vlan, tagged| Joined { index, bridge: BRIDGE, vlan, tag: [0x81, 0, 0, vlan as u8], tagged };
    // Of a VLAN without an interface, frames between members only.
    let between = |vlan, tagged| joined(MasterSpec::index_of_vlan(BRIDGE, vlan).unwrap(), vlan, tagged);
    for (of_bridge, of_member, expected) in [
        // The bridge's own VLAN, without a tag there, and the VLAN interface's, with one or without.
        ((1, 5), (1, 5), vec![joined(BRIDGE, 1, false), joined(9, 5, true)]),
        ((1, 5), (5, 1), vec![joined(BRIDGE, 1, true), joined(9, 5, false)]),
        ((1, 5), (5, 9), vec![joined(9, 5, false), between(9, true)]),
        ((1, 5), (1, 9), vec![joined(BRIDGE, 1, false), between(9, true)]),
        ((0, 5), (0, 5), vec![joined(9, 5, true)]),
        ((5, 1), (5, 1), vec![joined(BRIDGE, 5, false)]),
        ((1, 5), (2, 9), vec![between(2, false), between(9, true)]),
        ((0, 0), (0, 0), vec![]),
    ] {
        let relations = filtering(of_bridge, of_member, on_bridge(5));
        assert_eq!(relations.joined(1), expected, "{of_bridge:?} {of_member:?}");
        let left = relations.left(1);
        assert_eq!(left.is_some(), expected.is_empty());
        assert!(left.is_none_or(|why| why.contains("it is in none of the VLANs")));
        assert_eq!(relations.left_without_tags(1).is_some(), !expected.is_empty());
        // The VLAN interface is none of the port itself.
        let uppers: Vec<_> = relations.uppers(1).map(|(_, told)| told.is_ok()).collect();
        assert_eq!(uppers, if expected.is_empty() { vec![] } else { vec![false] });
    }
    let others = |upper: Link| {
        let all = filtering((1, 5), (1, 5), upper).joined(1);
        all.iter().filter(|joined| MasterSpec::vlan_of_index(joined.index).is_none()).count()
    };
    assert_eq!(others(on_bridge(5)), 2);
    for upper in [
        on_bridge(6),
        Link { mac: Some([2; 6]), ..on_bridge(5) },
        Link { up: false, ..on_bridge(5) },
        Link { master: Some(4), ..on_bridge(5) },
        Link { vlan: Some(Vlan { protocol: 0x88a8, id: 5, plain: true }), ..on_bridge(5) },
        Link { vlan: Some(Vlan { protocol: 0x8100, id: 5, plain: false }), ..on_bridge(5) },
    ] {
        assert_eq!(others(upper.clone()), 1, "{upper:?}");
    }
    let mut relations = filtering((1, 5), (1, 5), on_bridge(5));
    relations.left_vlans = true;
    assert_eq!(relations.joined(1), [joined(BRIDGE, 1, false)]);
    relations.left_vlans = false;
    // The bridge no longer has the address for its own in VLAN 5.
    assert!(relations.note(&[Change::StationGone { bridge: BRIDGE, vlan: 5, mac: bridge().mac.unwrap() }]));
    assert_eq!(relations.joined(1), [joined(BRIDGE, 1, false)]);
    // Until the VLANs of the bridge have been read again, none is known to be without an interface.
    for (stale, expected) in [(false, vec![between(2, false), between(9, true)]), (true, vec![])] {
        let mut relations = filtering((1, 5), (2, 9), on_bridge(5));
        let of = relations.link(BRIDGE).unwrap().clone();
        relations.note(&[Change::Link(Link { vlans: BridgeVlans { stale, ..of.vlans.clone() }, ..of })]);
        assert_eq!(relations.joined(1), expected);
    }
    // A port itself.
    let mut relations = filtering((1, 5), (1, 5), on_bridge(5));
    relations.set_ports([1, 9].into());
    assert_eq!(relations.joined(1), [joined(BRIDGE, 1, false)]);
    // The kernel's bridge chooses the member, and whether frames have a tag there.
    relations.set_ports([BRIDGE].into());
    assert!(relations.uppers(BRIDGE).next().unwrap().1.is_ok());
    assert_eq!(relations.joined(1), []);
    // A bridge that does not filter VLANs has the packets of its VLAN interfaces by all members.
    let relations = of(&[bridge(), bridged(1), on_bridge(5)]);
    assert_eq!(relations.joined(1), [Joined { tag: UNTAGGED, ..joined(BRIDGE, 0, false) }]);
    assert!(relations.uppers(1).next().unwrap().1.is_ok());
}

#[test]
fn a_bridges_news_are_news() {
    let mut relations = of(&[bridge(), bridged(1)]);
    for change in [
        Link { bridge: Some(Bridge { ageing_ms: 1000, plain: true, ..Bridge::default() }), ..bridge() },
        Link { member: Some(Member { active: false, plain: true, ..Member::default() }), ..bridged(1) },
        Link { mtu: 1400, ..bridge() },
        Link { vlans: BridgeVlans { untagged: 1, ..BridgeVlans::default() }, ..bridge() },
    ] {
        assert!(relations.note(&[Change::Link(change.clone())]), "{change:?}");
        assert!(!relations.note(&[Change::Link(change)]));
    }
}

#[test]
fn a_failover_is_news() {
    let mut relations = of(&[bond(1, Some(1)), member(1, true), member(2, false)]);
    for change in [
        bond(1, Some(2)),
        member(1, false),
        member(2, true),
        Link { carrier: false, ..member(2, true) },
        Link { mtu: 1400, ..member(2, true) },
    ] {
        assert!(relations.note(&[Change::Link(change.clone())]), "{change:?}");
        assert!(!relations.note(&[Change::Link(change)]));
    }
}

#[test]
fn macvlans_with_an_address_of_their_own_are_found() {
    let of = |link: Link| with(link).uppers(1).next().unwrap().1;
    let macvlan = |mode, plain| Link { macvlan: Some(Macvlan { mode, plain }), ..above("macvlan") };
    for (mode, sends) in [(1, true), (2, true), (4, false)] {
        assert_eq!(of(macvlan(mode, true)), Ok(UpperPackets { tag: UNTAGGED, sends }));
        assert!(of(macvlan(mode, false)).unwrap_err().contains("XDP program"));
    }
    for other in [
        macvlan(8, true),
        macvlan(16, true),
        Link { macvlan: None, ..macvlan(1, true) },
        Link { mac: link(1, "r0", "").mac, ..macvlan(1, true) },
        Link { mac: None, ..macvlan(1, true) },
        Link { up: false, ..macvlan(1, true) },
        Link { master: Some(7), ..macvlan(1, true) },
    ] {
        assert!(of(other.clone()).is_err(), "{other:?}");
    }
    assert_eq!(with(Link { kind: "macvtap".into(), ..macvlan(1, true) }).uppers(1).count(), 0);
    let mut relations = with(macvlan(1, true));
    relations.left_macvlans = true;
    assert_eq!(relations.uppers(1).count(), 0);
}

#[test]
fn macvlans_leave_it_that_take_what_is_to_its_address() {
    for kind in ["macvlan", "macvtap"] {
        for (mode, left) in
            [(Some(1), false), (Some(2), false), (Some(4), false), (Some(8), true), (Some(16), true), (None, true)]
        {
            let macvlan = mode.map(|mode| Macvlan { mode, plain: true });
            assert_eq!(with(Link { macvlan, ..above(kind) }).left(1).is_some(), left, "{kind} {mode:?}");
        }
    }
    let macvlan = Some(Macvlan { mode: 4, plain: true });
    let same = Link { mac: link(1, "r0", "").mac, macvlan, ..above("macvlan") };
    assert!(with(same).left(1).is_some());
}

#[test]
fn ipvlans_of_this_namespace_take_only_what_the_host_receives() {
    let ipvlan = |mode| Link { ipvlan: mode, ..above("ipvlan") };
    for (mode, left) in [(Some(0), false), (Some(1), false), (Some(2), true), (None, true)] {
        assert_eq!(with(ipvlan(mode)).left(1).is_some(), left, "{mode:?}");
    }
    assert!(with(Link { master: Some(9), ..ipvlan(Some(0)) }).left(1).is_some());
    // Packets of the port are looked up in the VRF's table, which does not have the ipvlan's addresses.
    let mut relations = with(ipvlan(Some(0)));
    let vrf = Link { vrf: Some(10), ..link(9, "red", "vrf") };
    relations.note(&[Change::Link(vrf), Change::Link(Link { master: Some(9), ..link(1, "r0", "") })]);
    assert!(relations.left(1).is_some());
}

#[test]
fn interfaces_of_other_namespaces_are_judged_as_if_they_were_here() {
    let elsewhere = |links: Vec<Link>| {
        let mut relations = Relations::default();
        relations.note(&[Change::Link(link(1, "r0", "")), Change::Link(tunnels::tunnel(5, 1, 1, None))]);
        assert!(relations.note(&[Change::Elsewhere { links }]));
        relations
    };
    let ipvlan = Link { ipvlan: Some(0), ..above("ipvlan") };
    let relations = elsewhere(vec![ipvlan.clone()]);
    let why = relations.left(1).unwrap();
    assert_eq!(why, format!("ipvlan interface {} of another network namespace is above it", ipvlan.name));
    let macvlan = |mode| Link { macvlan: Some(Macvlan { mode, plain: true }), ..above("macvlan") };
    assert_eq!(elsewhere(vec![macvlan(4)]).left(1), None);
    assert!(elsewhere(vec![macvlan(8)]).left(1).is_some());
    // A VLAN interface there is none of those that are followed.
    let vlan = Link { vlan: Some(Vlan { protocol: 0x8100, id: 5, plain: true }), ..above("vlan") };
    let relations = elsewhere(vec![vlan]);
    assert_eq!((relations.left(1), relations.uppers(1).count()), (None, 0));
    assert!(relations.left_without_tags(1).is_some());
    // A macvlan of a container on a VLAN interface here.
    let own = Link { vlan: Some(Vlan { protocol: 0x8100, id: 5, plain: true }), ..above("vlan") };
    for (mode, told) in [(4, true), (8, false)] {
        let mut relations = elsewhere(vec![Link { parent: Some(2), mac: Some([2; 6]), ..macvlan(mode) }]);
        relations.note(&[Change::Link(own.clone())]);
        assert_eq!(relations.uppers(1).next().unwrap().1.is_ok(), told, "{mode}");
    }
    // A tunnel with the same ends; its index is that of another interface here.
    let mut relations = elsewhere(vec![Link { name: "t".into(), ..tunnels::tunnel(5, 1, 1, None) }]);
    let why = relations.tunnels().next().unwrap().1.unwrap_err();
    assert_eq!(why, "gre interface t of another network namespace may receive its packets instead");
    relations.note(&[Change::Elsewhere { links: vec![] }]);
    assert_eq!(relations.tunnels().next().unwrap().1.err(), None);
}
