//! Which tunnels are followed, and what they forward.

use super::*;
use bywash_fib::model::{Encapsulation, Tunnel, VlanRange, Vxlan};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub fn tunnel(index: u32, local: u8, remote: u8, key: Option<u32>) -> Link {
    let of = |net, last| if last == 0 { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::new(192, 0, net, last) }.into();
    let plain = Tunnel::between(Encapsulation::Gre, of(2, local), of(3, remote));
    let tunnel = Tunnel { keys: [key; 2], dont_fragment: true, ..plain };
    Link { mac: None, tunnel: Some(tunnel), ..link(index, &format!("g{index}"), "gre") }
}

/// Returns a tunnel that carries Ethernet frames in GRE.
fn tap(index: u32) -> Link {
    let tunnel = tunnel(index, 1, 1, None).tunnel;
    let tunnel = tunnel.map(|tunnel| Tunnel { encapsulation: Encapsulation::Gretap, ..tunnel });
    Link { tunnel, ..link(index, &format!("t{index}"), "gretap") }
}

/// Returns the reasons why tunnels are left, by index.
fn left_tunnels(links: &[Link]) -> BTreeMap<u32, Option<String>> {
    let mut relations = Relations::default();
    relations.note(&links.iter().cloned().map(Change::Link).collect::<Vec<_>>());
    let why = |(link, through): (&Link, Result<Through, String>)| (link.index, through.err());
    relations.tunnels().map(why).collect()
}

#[test]
fn tunnels_that_may_be_others_are_left() {
    let (first, second) = (tunnel(5, 1, 1, None), tunnel(6, 1, 2, None));
    let (keyed, any) = (tunnel(7, 1, 1, Some(3)), tunnel(8, 1, 0, None));
    let plain = left_tunnels(&[first.clone(), second.clone(), keyed.clone(), any.clone()]);
    let several = Some("it has no local address, or no fixed remote".into());
    assert_eq!(plain, [(5, None), (6, None), (7, None), (8, several.clone())].into());
    let with = |change: &dyn Fn(&mut Tunnel)| {
        let mut any = any.clone();
        any.tunnel.iter_mut().for_each(change);
        left_tunnels(&[first.clone(), second.clone(), any])
    };
    let taken = Some("gre interface g8 may receive its packets instead".to_owned());
    let both = BTreeMap::from([(5, taken.clone()), (6, taken.clone()), (8, several)]);
    assert_eq!(with(&|any| any.link = 1), both, "bound to an interface");
    let one = BTreeMap::from([(5, taken.clone()), (6, None), (8, None)]);
    assert_eq!(with(&|any| (any.link, any.remote) = (1, [192, 0, 3, 1].into()))[&5], one[&5]);
    assert_eq!(with(&|any| (any.link, any.encapsulation) = (1, Encapsulation::Ipip))[&5], None);
    // Without an address of its own, it has the packets that no other tunnel with this remote and key takes.
    let chosen = tunnel(9, 0, 1, None);
    let beside = |other: &Link| left_tunnels(&[chosen.clone(), other.clone()]);
    assert_eq!(beside(&second), [(6, None), (9, None)].into());
    assert_eq!(beside(&keyed), [(7, None), (9, None)].into());
    assert_eq!(
        beside(&first),
        [(5, None), (9, Some("gre interface g5 may receive its packets instead".into()))].into()
    );
    let mut bound = first.clone();
    bound.tunnel.iter_mut().for_each(|tunnel| (tunnel.link, tunnel.keys) = (1, [Some(4); 2]));
    assert_eq!(beside(&bound)[&9].as_deref(), Some("gre interface g5 may receive its packets instead"));
    let mut over6 = chosen.clone();
    let ends: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)].map(IpAddr::from);
    over6.tunnel.iter_mut().for_each(|tunnel| (tunnel.local, tunnel.remote) = (ends[0], ends[1]));
    assert!(left_tunnels(&[over6])[&9].as_deref().is_some_and(|why| why.contains("no local address")));
}

#[test]
fn tunnels_that_do_more_are_left() {
    let plain = tunnel(5, 1, 1, None);
    let why = |link: Link| left_tunnels(&[link])[&5].clone().unwrap_or_default();
    assert_eq!(why(plain.clone()), "");
    assert_eq!(why(Link { up: false, ..plain.clone() }), "it is down");
    assert!(why(Link { master: Some(9), ..plain.clone() }).contains("is a member of"));
    let special = plain.tunnel.map(|tunnel| Tunnel { plain: false, ..tunnel });
    assert!(why(Link { tunnel: special, ..plain.clone() }).contains("not followed"));
    let bound = plain.tunnel.map(|tunnel| Tunnel { link: 8, ..tunnel });
    let member = Link { master: Some(9), ..link(8, "r8", "") };
    let vrf = Link { vrf: Some(10), ..link(9, "red", "vrf") };
    let all = [Link { tunnel: bound, ..plain.clone() }, member, vrf];
    assert!(left_tunnels(&all)[&5].as_deref().is_some_and(|why| why.contains("VRF")));
    let ipip = plain.tunnel.map(|tunnel| Tunnel { encapsulation: Encapsulation::Ipip, ..tunnel });
    let ipip = Link { tunnel: ipip, ..plain.clone() };
    let left = |vti| left_tunnels(&[ipip.clone(), vti])[&5].clone();
    assert_eq!(
        left(link(6, "ip_vti0", "vti")).as_deref(),
        Some("vti interface ip_vti0 may receive its packets instead")
    );
    assert_eq!(left(Link { up: false, ..link(6, "ip_vti0", "vti") }), None);
    assert_eq!(left(link(6, "vti6", "vti6")), None);
    let tap = tap(5);
    assert_eq!(why(tap.clone()), "");
    assert!(why(Link { mac: None, ..tap.clone() }).contains("neighbours"));
    let over6 = tap.tunnel.map(|tunnel| {
        let of = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).into();
        Tunnel { local: of(1), remote: of(2), ..tunnel }
    });
    let left = |over: &Link, other| left_tunnels(&[over.clone(), other])[&5].clone();
    let erspan = link(6, "er0", "ip6erspan");
    assert_eq!(left(&tap, erspan.clone()), None);
    let over6 = Link { tunnel: over6, ..tap };
    assert_eq!(left(&over6, link(6, "er0", "erspan")), None);
    assert_eq!(left(&over6, erspan).as_deref(), Some("ip6erspan interface er0 may receive its packets instead"));
    assert_eq!(left(&over6, plain.clone()), None, "of another kind, with the same ends");
    let vlan = Link { parent: Some(5), ..link(6, "v6", "vlan") };
    assert_eq!(left_tunnels(&[plain.clone(), vlan])[&5].as_deref(), Some("vlan interface v6 is above it"));
    for (local, remote) in
        [([224, 0, 0, 1], [192, 0, 3, 1]), ([192, 0, 2, 1], [239, 1, 1, 1]), ([127, 0, 0, 1], [192, 0, 3, 1])]
    {
        let tunnel = plain.tunnel.map(|tunnel| Tunnel { local: local.into(), remote: remote.into(), ..tunnel });
        let of = Link { tunnel, ..plain.clone() };
        let why = left_tunnels(std::slice::from_ref(&of))[&5].clone();
        assert_eq!(why.as_deref(), Some("it has no local address, or no fixed remote"));
        assert!(left_tunnels(&[Link { up: false, ..of }]).is_empty(), "{local:?} {remote:?}");
    }
    let mut relations = Relations::default();
    relations.note(&[Change::Link(plain)]);
    relations
        .configure(&RouterConfig { tunnels: false, ..RouterConfig::clone(&bywash_config::Config::default().router) });
    assert_eq!(relations.tunnels().count(), 0);
}

fn vxlan(index: u32, vni: u32) -> Link {
    let vxlan = Vxlan { vni, port: 4789, checksum: true, learns: true, ageing: 300, ..Vxlan::default() };
    let tunnel = tunnel(index, 1, 0, None).tunnel.map(|tunnel| Tunnel {
        encapsulation: Encapsulation::Vxlan,
        vxlan: Some(vxlan),
        ..tunnel
    });
    Link { tunnel, ..link(index, &format!("v{index}"), "vxlan") }
}

#[test]
fn a_vxlan_has_the_packets_of_its_bridge() {
    let member = |plain, learns| Member { active: true, plain, learns, ..Member::default() };
    let vxlan = |state| Link { master: Some(BRIDGE), member: Some(state), ..vxlan(5, 1) };
    let through = |links: &[Link]| {
        let relations = of(links);
        relations.tunnels().map(|(_, through)| through.map(|through| through.joined)).next().unwrap()
    };
    for (learns, expected) in [(false, None), (true, Some(300))] {
        let (joined, ageing) = through(&[bridge(), vxlan(member(true, learns))]).unwrap().unwrap();
        assert_eq!((joined.index, joined.bridge, joined.vlan, ageing), (BRIDGE, BRIDGE, 0, expected));
    }
    let why = |links: &[Link]| through(links).unwrap_err();
    let plain = vxlan(member(true, true));
    assert!(why(&[bridge(), vxlan(member(false, true))]).contains("it is locked"));
    assert!(why(&[Link { up: false, ..bridge() }, plain.clone()]).contains("is down"));
    assert!(why(&[bridge(), Link { mtu: 1400, ..plain.clone() }]).contains("MTU"));
    let ipvlan = Link { parent: Some(BRIDGE), ..link(9, "iv0", "ipvlan") };
    assert_eq!(why(&[bridge(), plain.clone(), ipvlan]), "ipvlan interface iv0 is above it");
    let of_bridge = Link { master: Some(BRIDGE), member: Some(member(true, true)), ..tap(5) };
    let (joined, ageing) = through(&[bridge(), of_bridge]).unwrap().unwrap();
    assert_eq!((joined.index, ageing), (BRIDGE, Some(300)));
    let bond = Link { master: Some(BOND), ..plain.clone() };
    assert!(why(&[link(BOND, "bond0", "bond"), bond]).contains("is a member of bond"));
    // The interface of a VLAN that has no tag on it; a port's membership needs learning.
    let [bridge, port, upper] = [bridge(), bridged(1), on_bridge(7)];
    let filters = bridge.bridge.map(|of| Bridge { filters: true, protocol: 0x8100, ..of });
    let bridge = |untagged| Link {
        bridge: filters,
        vlans: BridgeVlans { untagged, tagged: vec![range(7, 7)], stale: false },
        ..bridge.clone()
    };
    let of_vxlan = |untagged| {
        let vlans = BridgeVlans { untagged, tagged: vec![range(1, 1)], stale: false };
        Link { vlans, ..plain.clone() }
    };
    let mut relations = of(&[bridge(1), of_vxlan(7), upper.clone()]);
    relations.note(&[own(7, bridge(1).mac.unwrap(), BRIDGE)]);
    let joined = relations.tunnels().next().unwrap().1.unwrap().joined.unwrap().0;
    assert_eq!((joined.index, joined.vlan, joined.tagged), (upper.index, 7, false));
    assert!(why(&[bridge(0), of_vxlan(0), upper]).contains("an untagged member of none"));
    // Without an interface, for frames between members.
    let joined = through(&[bridge(1), of_vxlan(9)]).unwrap().unwrap().0;
    assert_eq!((Some(joined.index), joined.vlan), (MasterSpec::index_of_vlan(BRIDGE, 9), 9));
    let mut relations = of(&[super::bridge(), Link { member: Some(member(true, false)), ..port }]);
    relations.set_ports([1].into());
    assert!(relations.left(1).unwrap().contains("it is locked there, does not learn addresses"));
}

/// The kernel prefers other tunnels of the kind to one that takes headers from routes, except the one of its own.
#[test]
fn an_external_tunnel_is_the_only_one_of_its_kind() {
    let nobody = Ipv4Addr::UNSPECIFIED.into();
    let made = |index: u32, external, remote: IpAddr, key| {
        let of = Tunnel::between(Encapsulation::Gre, nobody, remote);
        let tunnel = Some(Tunnel { external, keys: [key, None], ..of });
        Link { tunnel, ..link(index, &format!("g{index}"), "gre") }
    };
    let external = made(5, true, nobody, None);
    let left = |links: &[Link]| left_tunnels(links)[&5].clone();
    assert_eq!(left(&[external.clone(), made(1, false, nobody, None)]), None);
    for (remote, key) in [(IpAddr::from([192, 0, 2, 1]), None), (nobody, Some(1))] {
        let why = left(&[external.clone(), made(6, false, remote, key)]);
        assert_eq!(why.as_deref(), Some("gre interface g6 may receive its packets instead"));
    }
}

/// A VXLAN that takes headers from routes receives the packets of all networks at its port.
#[test]
fn an_external_vxlan_is_the_only_one_at_its_port() {
    let external = |index, port| {
        let of = vxlan(index, 0);
        let tunnel = of.tunnel.map(|tunnel| {
            let vxlan = tunnel.vxlan.map(|vxlan| Vxlan { learns: false, port, ..vxlan });
            Tunnel { local: Ipv4Addr::UNSPECIFIED.into(), vxlan, external: true, ..tunnel }
        });
        Link { tunnel, ..of }
    };
    let of = |links: &[Link]| -> Vec<Result<u32, String>> {
        let relations = of(links);
        relations.tunnels().map(|(_, through)| through.map(|through| through.index)).collect()
    };
    assert_eq!(of(&[external(5, 4789), external(6, 4790), vxlan(7, 1)]), [Ok(5), Ok(6), Ok(7)]);
    let other = |name: &str| Err(format!("vxlan interface {name} may receive its packets instead"));
    assert_eq!(of(&[external(5, 4789), external(6, 4789)]), [other("v6"), other("v5")]);
    // A member of a bridge takes the VNIs of the bridge's VLANs.
    let member = Some(Member { active: true, plain: true, tunnels: true, ..Member::default() });
    let bridged = Link { master: Some(BRIDGE), member, ..external(5, 4789) };
    let none = || [Err("none of its bridge's VLANs is a network of it".into())];
    assert_eq!(of(&[bridge(), bridged.clone()]), none());
    assert!(
        of(&[bridge(), Link { tunnel: vxlan(5, 1).tunnel, ..bridged }])[0].clone().unwrap_err().contains("vlan_tunnel")
    );
}

/// A VXLAN of several networks is like a VXLAN for each VLAN with a VNI, with the VLAN's tag, and the interface's own
/// properties except for the DF bit.
#[test]
fn vlans_of_a_vxlan_are_networks() {
    let filters = bridge().bridge.map(|of| Bridge { filters: true, protocol: 0x8100, ..of });
    let bridge =
        || Link { bridge: filters, vlans: BridgeVlans { tagged: vec![range(7, 7)], ..Default::default() }, ..bridge() };
    let member = Some(Member { active: true, plain: true, tunnels: true, ..Member::default() });
    let vlans =
        BridgeVlans { tagged: vec![VlanRange { vni: Some(1007), ..range(7, 9) }, range(12, 12)], ..Default::default() };
    let of = vxlan(5, 0);
    let own_vxlan = of.tunnel.unwrap().vxlan.map(|of| Vxlan { learns: false, ..of });
    let tunnel = of.tunnel.map(|of| Tunnel { vxlan: own_vxlan, external: true, ttl: 9, dont_fragment: true, ..of });
    let mut relations =
        super::of(&[bridge(), Link { master: Some(BRIDGE), member, vlans, tunnel, ..of }, on_bridge(7)]);
    relations.note(&[own(7, bridge().mac.unwrap(), BRIDGE)]);
    let networks: Vec<Through> = relations.tunnels().map(|(_, through)| through.unwrap()).collect();
    let index = |vlan| MasterSpec::index_of_vlan(5, vlan);
    let interfaces =
        [Some(on_bridge(7).index), MasterSpec::index_of_vlan(BRIDGE, 8), MasterSpec::index_of_vlan(BRIDGE, 9)];
    assert_eq!(networks.len(), 3);
    for ((of, vlan), interface) in networks.iter().zip(7..).zip(interfaces) {
        let (joined, ageing) = of.joined.unwrap();
        assert_eq!((Some(of.index), of.tunnel.vxlan.unwrap().vni), (index(vlan), 1000 + u32::from(vlan)));
        assert_eq!((Some(joined.index), joined.vlan, joined.tagged, ageing), (interface, vlan, true, None));
        let Tunnel { local, ttl, dont_fragment, external, .. } = of.tunnel;
        assert_eq!((local, ttl, dont_fragment, external), (tunnel.unwrap().local, 9, false, false));
    }
}

#[test]
fn vxlans_without_neighbours_or_in_vrfs_are_left() {
    let of = |link: &mut Link, change: &dyn Fn(&mut Tunnel)| link.tunnel.iter_mut().for_each(change);
    let alone = |change: &dyn Fn(&mut Link)| {
        let mut own = vxlan(5, 1);
        change(&mut own);
        let member = Link { master: Some(9), ..link(8, "r8", "") };
        let vrf = Link { vrf: Some(10), ..link(9, "red", "vrf") };
        left_tunnels(&[own, member, vrf])[&5].clone().unwrap_or_default()
    };
    assert!(alone(&|own| own.mac = None).contains("does not resolve neighbours"));
    let below = |tunnel: &mut Tunnel| tunnel.vxlan.iter_mut().for_each(|vxlan| vxlan.link = 8);
    assert!(alone(&|own| of(own, &below)).contains("VRF"));
}
