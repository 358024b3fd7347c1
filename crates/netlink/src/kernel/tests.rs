use super::*;
use crate::teams::Set;
use crate::uapi::{NLM_F_APPEND, NLM_F_EXCL};
use bywash_fib::model::Bond;
use bywash_fib::model::{Bridge, Encapsulation, Prefix, Tunnel, VlanRange, Vxlan};
use std::net::Ipv4Addr;

pub fn link(carrier: bool) -> Event {
    let link = Link {
        index: 3,
        name: "a0".into(),
        mtu: 1500,
        up: true,
        carrier,
        kind: "veth".into(),
        rx_queues: 1,
        ..Link::default()
    };
    Event::Link { link, switched: false }
}

pub fn route(addr: IpAddr, ignored: bool) -> Event {
    let legs =
        vec![Leg { index: 3, gateway: None, weight: 1, dead: ignored, ignored, encap: crate::parse::Encap::None }];
    const RTN_UNICAST: u8 = 1;
    let body = Body {
        kind: RTN_UNICAST,
        protocol: 3,
        scope: 0,
        mtu: None,
        source: None,
        object: 0,
        legs,
        mixed_mtus: false,
        others: 0,
    };
    let key = RouteKey { table: 254, prefix: Prefix { addr, len: 24 }, metric: 0 };
    Event::Route { key, body, flags: 0, gone: false, expires: None }
}

/// Returns a message about a route by a leg over the link `index`.
pub fn route_by(to: IpAddr, index: u32, flags: u16, gone: bool) -> Event {
    let Event::Route { key, mut body, expires, .. } = route(to, false) else { unreachable!() };
    body.legs[0].index = index;
    Event::Route { key, body, flags, gone, expires }
}

pub fn alive(kernel: &mut Kernel) -> Option<bool> {
    let mut alive = None;
    kernel.report(|change| {
        if let Change::Route(route) = change {
            alive = Some(route.next_hops[0].alive);
        }
    });
    alive
}

fn read(kernel: &mut Kernel, events: [Event; 2]) {
    kernel.begin(Scope::ALL);
    for event in events {
        kernel.apply(event, Origin::Dump);
    }
    kernel.finish(Scope::ALL, true);
}

pub fn reported(kernel: &mut Kernel) -> Vec<Change> {
    let mut all = vec![];
    kernel.report(|change| all.push(change));
    all
}

#[test]
fn stations_are_reported_as_they_move_and_go() {
    let behind = Behind::Member;
    let station = |last, member| Station { bridge: 7, vlan: 0, mac: [2, 0, 0, 0, 0, last], behind: behind(member) };
    let gone = |last| Change::StationGone { bridge: 7, vlan: 0, mac: station(last, 0).mac };
    let mut kernel = Kernel::default();
    kernel.begin(Scope::ALL);
    kernel.apply(Event::Station(station(1, 3)), Origin::Dump);
    kernel.apply(Event::Station(station(2, 3)), Origin::Dump);
    kernel.finish(Scope::ALL, true);
    let mut first = reported(&mut kernel);
    first.sort_by_key(|change| format!("{change:?}"));
    assert_eq!(first, [Change::Station(station(1, 3)), Change::Station(station(2, 3))]);
    // A station that moves away and back has not changed.
    for member in [4, 3] {
        kernel.apply(Event::Station(station(1, member)), Origin::Live);
    }
    kernel.apply(Event::StationGone { bridge: 7, vlan: 0, mac: station(9, 3).mac }, Origin::Live);
    assert_eq!(reported(&mut kernel), []);
    kernel.apply(Event::Station(station(1, 4)), Origin::Live);
    kernel.apply(Event::StationGone { bridge: 7, vlan: 0, mac: station(2, 3).mac }, Origin::Live);
    let mut then = reported(&mut kernel);
    then.sort_by_key(|change| format!("{change:?}"));
    assert_eq!(then, [Change::Station(station(1, 4)), gone(2)]);
    // A dump that no longer shows it.
    kernel.begin(Scope::STATIONS);
    kernel.finish(Scope::STATIONS, true);
    assert_eq!(reported(&mut kernel), [gone(1)]);
}

#[test]
fn stations_of_each_vlan_are_others() {
    let behind = Behind::Member;
    let station = |vlan, member| Station { bridge: 7, vlan, mac: [2, 0, 0, 0, 0, 1], behind: behind(member) };
    let mut kernel = Kernel::default();
    kernel.begin(Scope::ALL);
    for (vlan, member) in [(0, 3), (1, 3), (2, 4)] {
        kernel.apply(Event::Station(station(vlan, member)), Origin::Dump);
    }
    kernel.finish(Scope::STATIONS, true);
    let mut all = reported(&mut kernel);
    all.sort_by_key(|change| format!("{change:?}"));
    assert_eq!(all, [station(0, 3), station(1, 3), station(2, 4)].map(Change::Station));
    let mac = station(1, 0).mac;
    kernel.apply(Event::StationGone { bridge: 7, vlan: 1, mac }, Origin::Live);
    assert_eq!(reported(&mut kernel), [Change::StationGone { bridge: 7, vlan: 1, mac }]);
}

/// VLANs of a VXLAN with a filter are networks as far as it receives these.
#[test]
fn networks_of_a_vxlan_pass_its_filter() {
    let Event::Link { link: free, switched } = link(true) else { unreachable!() };
    let any = Ipv4Addr::UNSPECIFIED.into();
    let vxlan = Some(Vxlan { filters: true, ..Vxlan::default() });
    let tunnel = Some(Tunnel { vxlan, external: true, ..Tunnel::between(Encapsulation::Vxlan, any, any) });
    let link = Event::Link { link: Link { index: 9, tunnel, ..free }, switched };
    let tagged = vec![VlanRange { first: 10, last: 19, vni: Some(1010) }, VlanRange { first: 30, last: 30, vni: None }];
    let vlans = Event::BridgeVlans(9, BridgeVlans { untagged: 0, tagged, stale: false });
    let mut kernel = Kernel::default();
    let read = |kernel: &mut Kernel, more: &[Event]| {
        kernel.begin(Scope::ALL);
        for event in [link.clone(), vlans.clone()].iter().chain(more) {
            kernel.apply(event.clone(), Origin::Dump);
        }
        kernel.finish(Scope::VLANS, true);
        assert!(kernel.filters_networks());
    };
    let known = |kernel: &mut Kernel| {
        let changes = reported(kernel);
        let Some(Change::Link(link)) = changes.last() else { return None };
        assert_eq!(link.vlans.all().collect::<Vec<u16>>(), (10..20).chain([30]).collect::<Vec<u16>>());
        Some(link.vlans.all().filter_map(|vlan| link.vlans.vni(vlan)).collect::<Vec<u32>>())
    };
    read(&mut kernel, &[]);
    assert_eq!(known(&mut kernel), Some(vec![]));
    // In several messages, with networks that no VLAN is.
    read(&mut kernel, &[Event::Networks(9, vec![(1, 1011), (1013, 1015)]), Event::Networks(9, vec![(1017, 1017)])]);
    assert_eq!(known(&mut kernel), Some(vec![1010, 1011, 1013, 1014, 1015, 1017]));
    kernel.apply(Event::NetworksGone(9, vec![(1014, 1014)]), Origin::Live);
    assert_eq!(known(&mut kernel), Some(vec![1010, 1011, 1013, 1015, 1017]));
    kernel.apply(Event::NetworksGone(9, vec![(1011, 1013), (1017, 2000)]), Origin::Live);
    assert_eq!(known(&mut kernel), Some(vec![1010, 1015]));
    kernel.apply(Event::Networks(9, vec![(1019, 1019)]), Origin::Live);
    assert_eq!(known(&mut kernel), Some(vec![1010, 1015, 1019]));
    // The next reading has only what there is then, and another interface's networks are none of this one.
    read(&mut kernel, &[Event::Networks(9, vec![(1012, 1012)]), Event::Networks(8, vec![(1013, 1013)])]);
    assert_eq!(known(&mut kernel), Some(vec![1012]));
    read(&mut kernel, &[]);
    assert_eq!(known(&mut kernel), Some(vec![]));
}

#[test]
fn vlans_of_bridges_are_read_again_after_a_notification() {
    let Event::Link { link: free, switched } = link(true) else { unreachable!() };
    let bridge = Some(Bridge { ageing_ms: 1, plain: true, filters: true, ..Bridge::default() });
    let of = |untagged, tagged: &[(u16, u16)]| {
        let range = |(first, last): &(u16, u16)| VlanRange { first: *first, last: *last, vni: None };
        let vlans = BridgeVlans { untagged, tagged: tagged.iter().map(range).collect(), stale: false };
        Link { index: 7, bridge, vlans, ..free.clone() }
    };
    let vlans = |untagged, tagged: &[(u16, u16)]| Event::BridgeVlans(7, of(untagged, tagged).vlans);
    let read = |kernel: &mut Kernel, events: Vec<Event>| {
        kernel.begin(Scope::ALL);
        for event in events {
            kernel.apply(event, Origin::Dump);
        }
        kernel.finish(Scope::VLANS, true);
    };
    let mut kernel = Kernel::default();
    let link = Event::Link { link: of(0, &[]), switched };
    // In several messages.
    read(&mut kernel, vec![link, vlans(0, &[(5, 9)]), vlans(1, &[(20, 20)]), vlans(0, &[])]);
    assert_eq!(reported(&mut kernel), [Change::Link(of(1, &[(5, 9), (20, 20)]))]);
    // A notification does not say which VLANs are left.
    assert!(kernel.apply(vlans(1, &[]), Origin::Live).has(Scope::VLANS));
    let stale = BridgeVlans { stale: true, ..BridgeVlans::default() };
    assert_eq!(reported(&mut kernel), [Change::Link(Link { vlans: stale, ..of(0, &[]) })]);
    read(&mut kernel, vec![vlans(2, &[(5, 9)])]);
    assert_eq!(reported(&mut kernel), [Change::Link(of(2, &[(5, 9)]))]);
    // A dump without its VLANs.
    kernel.begin(Scope::VLANS);
    kernel.finish(Scope::VLANS, true);
    assert_eq!(reported(&mut kernel), [Change::Link(of(0, &[]))]);
}

#[test]
fn a_members_state_changes_its_link() {
    let mut kernel = Kernel::default();
    let Event::Link { link: free, switched } = link(true) else { unreachable!() };
    let forwarding = Member { active: true, plain: true, ..Member::default() };
    let of = |member: Option<Member>, master: Option<u32>| Link { member, master, ..free.clone() };
    kernel.apply(Event::BridgePort(3, forwarding), Origin::Live);
    kernel.apply(Event::Link { link: of(None, None), switched }, Origin::Live);
    kernel.apply(Event::BridgePort(3, forwarding), Origin::Live);
    assert_eq!(reported(&mut kernel), [Change::Link(of(None, None))], "it belongs to no bridge");
    kernel.apply(Event::Link { link: of(Some(forwarding), Some(7)), switched }, Origin::Live);
    kernel.apply(Event::BridgePort(3, forwarding), Origin::Live);
    assert_eq!(reported(&mut kernel), [Change::Link(of(Some(forwarding), Some(7)))]);
    // A member that moves to another bridge loses its VLANs, by a notification or a dump.
    let vlans = BridgeVlans { untagged: 5, ..BridgeVlans::default() };
    let in_vlan = |master| Link { vlans: vlans.clone(), ..of(Some(forwarding), Some(master)) };
    for (origin, masters) in [(Origin::Live, [7, 8]), (Origin::Dump, [8, 7])] {
        kernel.apply(Event::BridgeVlans(3, vlans.clone()), Origin::Dump);
        assert_eq!(reported(&mut kernel), [Change::Link(in_vlan(masters[0]))]);
        kernel.apply(Event::Link { link: of(Some(forwarding), Some(masters[1])), switched }, origin);
        assert!(kernel.unread().has(Scope::VLANS));
        assert_eq!(reported(&mut kernel), [Change::Link(of(Some(forwarding), Some(masters[1])))]);
    }
    let blocked = Member { active: false, plain: true, ..Member::default() };
    kernel.apply(Event::BridgePort(3, blocked), Origin::Live);
    assert_eq!(reported(&mut kernel), [Change::Link(of(Some(blocked), Some(7)))]);
}

/// The message about the link reports no switched flag here, like one that was coalesced with others.
#[test]
fn a_link_without_carrier_that_is_set_down_takes_its_next_hops_along() {
    let mut kernel = Kernel::default();
    kernel.apply(link(false), Origin::Live);
    kernel.apply(route(IpAddr::from([192, 0, 2, 0]), false), Origin::Live);
    assert_eq!(alive(&mut kernel), Some(true));
    let Event::Link { link: down, switched } = link(false) else { unreachable!() };
    kernel.apply(Event::Link { link: Link { up: false, ..down }, switched }, Origin::Live);
    assert_eq!(alive(&mut kernel), Some(false));
}

/// The message about the carrier arrives before the kernel acts on it.
#[test]
fn a_late_link_watch_revives_what_a_dump_showed_dead() {
    for addr in [IpAddr::from([192, 0, 2, 0]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0])] {
        let mut kernel = Kernel::default();
        read(&mut kernel, [link(false), route(addr, true)]);
        assert_eq!(alive(&mut kernel), Some(false));
        assert!(kernel.apply(link(true), Origin::Live).has(Scope::UNDER_LINKS));
        read(&mut kernel, [link(true), route(addr, true)]);
        assert_ne!(alive(&mut kernel), Some(true));

        // The link watch's own message, after it has cleared the mark.
        let wanted = kernel.apply(link(true), Origin::Live);
        assert!(wanted.has(Scope::ROUTES4) && wanted.has(Scope::ROUTES6) && wanted.has(Scope::OBJECTS));
        read(&mut kernel, [link(true), route(addr, false)]);
        assert_eq!(alive(&mut kernel), Some(true));
        assert!(kernel.apply(link(true), Origin::Live).is_empty(), "nothing is dead any more");
    }
}

/// Returns a team, or a member of one, as rtnetlink shows it.
fn teamed(index: u32, kind: &str, master: Option<u32>) -> Event {
    let unknown = Bond { mode: Bond::UNKNOWN, active: None, xmit_hash: 0, plain: true };
    let bond = (kind == "team").then_some(unknown);
    let link = Link { index, name: format!("e{index}"), mtu: 1500, kind: kind.into(), bond, master, ..Link::default() };
    Event::Link { link, switched: false }
}

#[test]
fn a_teams_options_are_part_of_its_links_once_they_have_been_read() {
    let mut kernel = Kernel::default();
    let read = |kernel: &mut Kernel, active| kernel.set_team(9, Some(Team::with(active, &[4, 5])));
    let links = |kernel: &mut Kernel| {
        let of = |change| match change {
            Change::Link(link) => {
                Some((link.index, link.bond.map(|bond| (bond.mode, bond.active)), link.member.map(|of| of.active)))
            }
            _ => None,
        };
        reported(kernel).into_iter().filter_map(of).collect::<Vec<_>>()
    };
    let member = |index| (index, None, Some(true));
    let (backup, unknown) = (Some(Bond::ACTIVE_BACKUP), Bond::UNKNOWN);
    let team = |active| (9, backup.map(|mode| (mode, active)), None);
    assert_eq!(kernel.apply(teamed(4, "veth", Some(9)), Origin::Live), Scope::NONE);
    assert_eq!(kernel.apply(teamed(9, "team", None), Origin::Live), Scope::LINKS, "to be read");
    assert_eq!(kernel.apply(teamed(9, "team", None), Origin::Live), Scope::NONE, "only once");
    // An announcement before the options have been read may not have all of them.
    kernel.change_team(9, Set::active(4));
    assert_eq!(links(&mut kernel), [(4, None, None), (9, Some((unknown, None)), None)]);
    read(&mut kernel, 5);
    assert_eq!(links(&mut kernel), [member(4), team(Some(5))]);
    kernel.change_team(9, Set::active(4));
    assert_eq!(links(&mut kernel), [team(Some(4))]);
    // Later messages about the links show no options either.
    kernel.apply(teamed(9, "team", None), Origin::Live);
    kernel.apply(teamed(4, "veth", Some(9)), Origin::Live);
    assert_eq!(links(&mut kernel), []);
    kernel.apply(teamed(5, "veth", Some(9)), Origin::Live);
    assert_eq!(links(&mut kernel), [member(5)]);
    kernel.apply(teamed(5, "veth", None), Origin::Live);
    assert_eq!(links(&mut kernel), [(5, None, None)]);
    kernel.set_team(9, None);
    kernel.change_team(9, Set::active(4));
    assert_eq!(links(&mut kernel), [(4, None, None), (9, Some((unknown, None)), None)]);
    // Another interface with the index of the team.
    read(&mut kernel, 4);
    kernel.apply(Event::LinkGone(9), Origin::Live);
    assert_eq!(kernel.apply(teamed(9, "team", None), Origin::Live), Scope::LINKS);
    kernel.change_team(9, Set::active(4));
    assert_eq!(links(&mut kernel), []);
    kernel.apply(teamed(9, "dummy", None), Origin::Dump);
    assert!(kernel.teams().is_empty());
}

/// The kernel forgets which networks VLANs are when `vlan_tunnel` is turned off, and announces nothing but that.
#[test]
fn networks_of_vlans_are_read_again_after_they_were_none() {
    let member = |tunnels| Member { active: true, plain: true, tunnels, ..Member::default() };
    let Event::Link { link: free, switched } = link(true) else { unreachable!() };
    let of_link = |tunnels| {
        let link = Link { index: 9, master: Some(7), member: Some(member(tunnels)), ..free.clone() };
        Event::Link { link, switched }
    };
    let of_member = |tunnels| Event::BridgePort(9, member(tunnels));
    let events: [(&dyn Fn(bool) -> Event, Origin); 3] =
        [(&of_link, Origin::Live), (&of_link, Origin::Dump), (&of_member, Origin::Live)];
    for (event, origin) in events {
        let tagged = vec![VlanRange { first: 10, last: 10, vni: Some(1010) }];
        let mut kernel = Kernel::default();
        kernel.begin(Scope::ALL);
        kernel.apply(of_link(true), Origin::Dump);
        kernel.apply(Event::BridgeVlans(9, BridgeVlans { untagged: 0, tagged, stale: false }), Origin::Dump);
        let vni = |kernel: &Kernel| kernel.links[&9].value.vlans.vni(10);
        assert_eq!((vni(&kernel), kernel.unread()), (Some(1010), Scope::NONE));
        assert_eq!(kernel.apply(event(true), origin), Scope::NONE, "nothing new");
        assert_eq!(vni(&kernel), Some(1010));
        for tunnels in [false, true] {
            let wanted = kernel.apply(event(tunnels), origin);
            assert!(wanted.has(Scope::VLANS) && kernel.unread().has(Scope::VLANS), "{tunnels}");
            assert_eq!(vni(&kernel), None, "{tunnels}");
        }
    }
}

/// Returns a route to 10.9.0.0/16 by a gateway on link 3.
fn route_via(gateway: [u8; 4], metric: u32) -> Event {
    let Event::Route { mut key, mut body, .. } = route(Ipv4Addr::new(10, 9, 0, 0).into(), false) else {
        unreachable!()
    };
    key.metric = metric;
    body.legs[0].gateway = Some(gateway.into());
    Event::Route { key, body, flags: 0, gone: false, expires: None }
}

/// Returns the gateways of the reported routes, and whether each is left to the kernel.
fn gateways(kernel: &mut Kernel) -> Vec<(IpAddr, bool)> {
    let routes = reported(kernel).into_iter().filter_map(|change| match change {
        Change::Route(route) => route.next_hops[0].gateway.map(|gateway| (gateway, route.next_hops[0].index == 0)),
        _ => None,
    });
    let mut all: Vec<_> = routes.collect();
    all.sort_unstable();
    all
}

#[test]
fn gateways_that_the_kernel_may_skip_are_left_to_it() {
    let addr = |last| IpAddr::from([10, 0, 0, last]);
    let address = |last, index| {
        let address = Address { index, addr: addr(last), len: 24, secondary: false, link_scope: false };
        Event::Address { address, expires: false }
    };
    let mut kernel = Kernel::default();
    // Dumps show addresses before routes.
    kernel.begin(Scope::ALL);
    kernel.apply(link(true), Origin::Dump);
    kernel.apply(address(1, 3), Origin::Dump);
    kernel.apply(address(4, 4), Origin::Dump);
    for last in 1..5 {
        kernel.apply(route_via([10, 0, 0, last], last.into()), Origin::Dump);
    }
    kernel.finish(Scope::ALL, true);
    let all = [(addr(1), true), (addr(2), false), (addr(3), false), (addr(4), false)];
    assert_eq!(gateways(&mut kernel), all, "the address of another link");
    // An address that comes, and two that go.
    kernel.apply(address(2, 3), Origin::Live);
    assert_eq!(gateways(&mut kernel), [(addr(2), true)]);
    for last in [1, 2] {
        kernel.apply(Event::AddressGone(3, addr(last), 24), Origin::Live);
    }
    assert_eq!(gateways(&mut kernel), [(addr(1), false), (addr(2), false)]);
}

/// A route by a next-hop object whose message was lost is not a route without next hops, which others would replace.
#[test]
fn routes_by_unknown_objects_are_left_to_the_kernel() {
    let Event::Route { key, body, .. } = route([192, 0, 2, 0].into(), false) else { unreachable!() };
    let leg = body.legs[0].clone();
    let by = Body { object: 7, legs: vec![], ..body };
    let mut kernel = Kernel::default();
    let mut hops = |event| {
        let origin = Origin::Live;
        kernel.apply(event, origin);
        reported(&mut kernel).into_iter().find_map(|change| match change {
            Change::Route(route) => Some(route.next_hops.iter().map(|hop| hop.index).collect::<Vec<_>>()),
            _ => None,
        })
    };
    assert_eq!(hops(Event::Route { key, body: by, flags: 0, gone: false, expires: None }), Some(vec![0]));
    assert_eq!(hops(Event::Object(7, Object::Group(vec![(1, 1), (2, 1)]))), None);
    assert_eq!(hops(Event::Object(1, Object::Leg(leg.clone()))), None);
    assert_eq!(hops(Event::Object(2, Object::Leg(Leg { index: 4, ..leg }))), Some(vec![3, 4]));
    assert_eq!(hops(Event::ObjectGone(1)), Some(vec![4]));
    assert_eq!(hops(Event::ObjectGone(2)), Some(vec![0]));
}

/// Batches of a report may be applied one by one.
#[test]
fn routes_go_after_those_that_replace_them_are_there() {
    let to = |n: u8| IpAddr::from([192, 0, n, 0]);
    let selective = |n, gone| {
        let prefix = Prefix { addr: to(n), len: 24 };
        Event::Selective { table: 254, prefix, links: vec![], gone }
    };
    let mut kernel = Kernel::default();
    kernel.begin(Scope::ROUTES4);
    (0..100).for_each(|n| _ = kernel.apply(route(to(n), false), Origin::Dump));
    kernel.apply(selective(200, false), Origin::Dump);
    kernel.finish(Scope::ROUTES4, true);
    assert_eq!(reported(&mut kernel).len(), 101);
    kernel.begin(Scope::ROUTES4);
    (100..200).for_each(|n| _ = kernel.apply(route(to(n), false), Origin::Dump));
    kernel.apply(selective(201, false), Origin::Dump);
    kernel.finish(Scope::ROUTES4, true);
    let order = reported(&mut kernel).into_iter().map(|change| match change {
        Change::Selective { .. } => 0,
        Change::Route(_) => 1,
        Change::RouteGone { .. } => 2,
        Change::SelectiveGone { .. } => 3,
        other => panic!("{other:?}"),
    });
    let order: Vec<u32> = order.collect();
    assert_eq!(order.len(), 202);
    assert!(order.is_sorted(), "{order:?}");
}

/// Of a route with several bodies, one alone may be unusable, or seem to be the only one.
#[test]
fn a_route_is_not_reported_while_its_dump_may_show_more_of_it() {
    let to: IpAddr = "2001:db8::".parse().unwrap();
    let Event::Route { key, body, .. } = route(to, false) else { unreachable!() };
    let other = Body { legs: vec![Leg { index: 4, ..body.legs[0].clone() }], ..body.clone() };
    let shown = |body| Event::Route { key, body, flags: 0, gone: false, expires: None };
    let mut kernel = Kernel::default();
    kernel.begin(Scope::ROUTES6);
    kernel.apply(shown(body), Origin::Dump);
    assert_eq!(reported(&mut kernel), []);
    kernel.apply(shown(other), Origin::Dump);
    kernel.apply(route("2001:db9::".parse().unwrap(), false), Origin::Dump);
    // Only the kernel can choose between the two.
    let [Change::Route(first)] = &reported(&mut kernel)[..] else { panic!() };
    assert_eq!((first.prefix.addr, first.next_hops[0].index), (to, 0));
    kernel.finish(Scope::ROUTES6, true);
    assert_eq!(reported(&mut kernel).len(), 1);
}

/// Notifications that arrive while links are being dumped are applied before the routes are dumped: they do not count
/// as shown by that dump.
#[test]
fn routes_replayed_before_their_dump_are_not_those_that_it_shows() {
    let to: IpAddr = [192, 0, 2, 0].into();
    let Event::Route { key, .. } = route(to, false) else { unreachable!() };
    let event = |index, flags, gone| route_by(to, index, flags, gone);
    // The messages about the replacement of 10 by 11 were lost.
    for (message, shown, wanted) in [
        (event(11, 0, true), vec![], vec![]),
        (event(12, NLM_F_APPEND, false), vec![11, 12], vec![11, 12]),
        (event(12, NLM_F_EXCL, false), vec![12], vec![12]),
    ] {
        let mut kernel = Kernel::default();
        kernel.begin(Scope::ROUTES4);
        kernel.apply(event(10, 0, false), Origin::Dump);
        kernel.finish(Scope::ROUTES4, true);
        kernel.begin(Scope::ROUTES4);
        kernel.apply(message.clone(), Origin::Replay);
        kernel.end_dump(Scope::LINKS);
        for index in shown {
            kernel.apply(event(index, 0, false), Origin::Dump);
        }
        kernel.finish(Scope::ROUTES4, true);
        let mut list = vec![];
        kernel.routes4.read(&Key4::of(&key), &mut list);
        let left: Vec<u32> = list.iter().map(|id| kernel.bodies.get(*id).body.legs[0].index).collect();
        assert_eq!(left, wanted, "{message:?}");
    }
    // After the dump, a removal that is not understood is drift, unless it is replayed.
    let mut kernel = Kernel::default();
    kernel.begin(Scope::ROUTES4 | Scope::NEIGHBOURS);
    kernel.apply(event(10, 0, false), Origin::Dump);
    kernel.finish(Scope::ROUTES4, true);
    assert_eq!(kernel.apply(event(13, 0, true), Origin::Replay), Scope::NONE);
    kernel.end_dump(Scope::ROUTES4);
    for origin in [Origin::Early, Origin::Replay] {
        assert_eq!(kernel.apply(event(13, 0, true), origin), Scope::ROUTES4);
    }
}

/// Notifications are judged by the routes once these are known.
#[test]
fn notifications_before_the_routes_are_judged_after_them() {
    let addr: IpAddr = [192, 0, 2, 5].into();
    let Event::Route { key, body, .. } = route([198, 51, 100, 0].into(), false) else { unreachable!() };
    let preferring = Body { source: Some(addr), ..body.clone() };
    let by_object = Body { object: 7, legs: vec![], ..body.clone() };
    let Event::Link { link: up, .. } = link(true) else { unreachable!() };
    let down = Event::Link { link: Link { up: false, ..up.clone() }, switched: true };
    for (notification, body, wanted) in [
        (Event::AddressGone(9, addr, 24), preferring, Scope::ROUTES),
        (down, body.clone(), Scope::UNDER_LINKS),
        (Event::LinkGone(3), body.clone(), Scope::UNDER_LINKS),
        (Event::ObjectGone(7), by_object, Scope::OBJECTS | Scope::ROUTES),
        (Event::LinkGone(8), body.clone(), Scope::NONE),
    ] {
        let mut kernel = Kernel::default();
        kernel.begin(Scope::ALL);
        kernel.apply(link(true), Origin::Dump);
        kernel.end_dump(Scope::LINKS);
        kernel.apply(notification.clone(), Origin::Replay);
        kernel.end_dump(Scope::OBJECTS);
        kernel.apply(Event::Route { key, body, flags: 0, gone: false, expires: None }, Origin::Dump);
        kernel.finish(Scope::ROUTES4, true);
        assert_eq!(kernel.end(), wanted, "{notification:?}");
        assert_eq!(kernel.end(), Scope::NONE);
    }
}
