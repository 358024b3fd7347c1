//! Random histories in a small address space: after every batch each address must have the result of the reference
//! implementation.

use crate::model::Model;
use crate::world::{Got, World, a_link, got};
use bywash_engine::PortId;
use bywash_fib::Addr;
use bywash_fib::model::Families;
use bywash_fib::model::{
    Address, Change, Neighbour, NeighbourState, NextHop, Prefix, Route, RouteKind, Rule, RuleAction, Rules,
};
use bywash_router::control::Policies;
use bywash_router::rules::Steps;
use bywash_router::tables::Tables;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Sixteen addresses of each family, a few next to them, and one far away.
fn space() -> impl Iterator<Item = IpAddr> {
    (0..20u8).chain([200]).flat_map(|n| [v4(n), v6(n)]).chain([
        IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)),
        IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)),
        "2001:db8::1".parse().unwrap(),
        "fe80::2".parse().unwrap(),
    ])
}

fn v4(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
}

fn v6(n: u8) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()))
}

fn any_addr() -> impl Strategy<Value = IpAddr> {
    (0..16u8, any::<bool>()).prop_map(|(n, four)| if four { v4(n) } else { v6(n) })
}

fn any_prefix() -> impl Strategy<Value = Prefix> {
    (any_addr(), prop_oneof![1 => 0..=0u8, 1 => 4..=24u8, 5 => 27..=31u8, 3 => 32..=32u8])
        .prop_map(|(addr, len)| (addr, if addr.is_ipv4() || len < 24 { len } else { len + 96 }))
        .prop_map(|(addr, len)| Prefix::containing(addr, len).unwrap())
}

fn any_index() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(1), 4 => Just(2), 1 => Just(3), 1 => Just(4)]
}

fn any_hop() -> impl Strategy<Value = NextHop> {
    let gateway = prop_oneof![1 => Just(None), 2 => any_addr().prop_map(Some)];
    (any_index(), gateway, 1..=4u16, prop_oneof![6 => Just(true), 1 => Just(false)])
        .prop_map(|(index, gateway, weight, alive)| NextHop { index, outer: None, gateway, weight, alive })
}

fn any_kind() -> impl Strategy<Value = RouteKind> {
    prop_oneof![
        12 => Just(RouteKind::Unicast),
        2 => Just(RouteKind::Local),
        1 => Just(RouteKind::Blackhole),
        1 => Just(RouteKind::Unreachable),
        1 => Just(RouteKind::Prohibit),
        1 => Just(RouteKind::Throw),
    ]
}

fn any_table() -> impl Strategy<Value = u32> {
    prop_oneof![8 => Just(254u32), 2 => Just(255), 1 => Just(100)]
}

fn any_route() -> impl Strategy<Value = Route> {
    // A gateway of the other family is allowed (RFC 5549), and the model treats both directions alike.
    let hops = prop_oneof![3 => prop::collection::vec(any_hop(), 1..=1), 1 => prop::collection::vec(any_hop(), 0..=3)];
    let more = (
        prop::option::weighted(0.2, prop_oneof![3 => 1000..1002u32, 1 => Just(9000)]),
        prop::option::weighted(0.3, any_addr()),
    );
    (any_table(), any_prefix(), any_kind(), 0..3u32, hops, more).prop_map(
        |(table, prefix, kind, metric, hops, more)| {
            let next_hops = if kind == RouteKind::Unicast { hops } else { Vec::new() }.into_iter().collect();
            Route { table, prefix, kind, metric, next_hops, mtu: more.0, source: more.1, protocol: 4 }
        },
    )
}

fn any_link() -> impl Strategy<Value = Change> {
    let state = (prop_oneof![4 => Just(true), 1 => Just(false)], prop_oneof![4 => Just(true), 1 => Just(false)]);
    (any_index(), 0..2u8, prop_oneof![4 => Just(1500u32), 1 => Just(1001)], state, 0..8u8).prop_map(
        |(index, mac, mtu, (up, carrier), other)| {
            // Index 4 is p0 after it was recreated; sometimes another interface takes the name.
            let name = if other == 0 { "y" } else { ["", "p0", "p1", "x", "p0"][index as usize] };
            let mut link = a_link(index, name);
            link.mac.as_mut().unwrap()[4] = mac;
            Change::Link(bywash_fib::model::Link { mtu, up, carrier, ..link })
        },
    )
}

fn any_neighbour() -> impl Strategy<Value = Change> {
    let state = prop_oneof![
        3 => Just(NeighbourState::Reachable),
        1 => Just(NeighbourState::Stale),
        1 => Just(NeighbourState::Incomplete),
        1 => Just(NeighbourState::Failed)
    ];
    let addr = prop_oneof![20 => any_addr(), 1 => Just("fe80::2".parse().unwrap())];
    (any_index(), addr, state, 1..3u8).prop_map(|(index, addr, state, mac)| {
        let has = matches!(state, NeighbourState::Reachable | NeighbourState::Stale);
        Change::Neighbour(Neighbour { index, addr, mac: has.then_some([2, 0, 0, 0, mac, index as u8]), state })
    })
}

fn any_address() -> impl Strategy<Value = Change> {
    (any_index(), any_addr(), 27..=30u8, 0..6u8).prop_map(|(index, addr, len, flags)| {
        let len = if addr.is_ipv4() { len } else { len + 96 };
        Change::Address(Address { index, addr, len, secondary: flags == 0, link_scope: flags == 1 })
    })
}

fn any_change() -> impl Strategy<Value = Change> {
    let gone = |index: u32, addr: IpAddr, len: u8| {
        let len = if addr.is_ipv4() { len } else { len + 96 };
        Change::AddressGone { index, addr, len }
    };
    prop_oneof![
        10 => any_route().prop_map(Change::Route),
        4 => (any_table(), any_prefix(), 0..3u32)
            .prop_map(|(table, prefix, metric)| Change::RouteGone { table, prefix, metric }),
        1 => (any_table(), any_prefix()).prop_map(|(table, prefix)| Change::Selective { table, prefix }),
        2 => (any_table(), any_prefix()).prop_map(|(table, prefix)| Change::SelectiveGone { table, prefix }),
        8 => any_neighbour(),
        2 => (any_index(), any_addr()).prop_map(|(index, addr)| Change::NeighbourGone { index, addr }),
        2 => any_link(),
        1 => any_index().prop_map(|index| Change::LinkGone { index }),
        2 => any_address(),
        1 => (any_index(), any_addr(), 27..=30u8).prop_map(move |(i, a, l)| gone(i, a, l)),
    ]
}

/// Directs a removal at an existing object: random removals seldom match one.
fn aim(change: Change, model: &Model, pick: usize) -> Change {
    match change {
        Change::RouteGone { .. } if !model.routes.is_empty() && !pick.is_multiple_of(4) => {
            let r = &model.routes[pick % model.routes.len()];
            Change::RouteGone { table: r.table, prefix: r.prefix, metric: r.metric }
        }
        Change::NeighbourGone { .. } if !model.neighbours.is_empty() => {
            let (index, addr) = *model.neighbours.keys().nth(pick % model.neighbours.len()).unwrap();
            Change::NeighbourGone { index, addr }
        }
        Change::SelectiveGone { .. } if !model.selective.is_empty() => {
            let (table, prefix) = *model.selective.iter().nth(pick % model.selective.len()).unwrap();
            Change::SelectiveGone { table, prefix }
        }
        other => other,
    }
}

/// Settings given to the control side besides the kernel's reports.
#[derive(Clone, Debug)]
enum Told {
    Nothing,
    Except(Vec<Prefix>, Vec<(u32, Families)>),
    Mtu6(u32, Option<u32>),
    Rules(Vec<Rule>),
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let shortest = prop_oneof![3 => Just(0), 1 => 1..=32u8, 1 => 96..=129u8];
    let then = prop_oneof![
        2 => Just(RuleAction::LocalAndMain),
        5 => (any_table(), shortest).prop_map(|(table, shortest)| RuleAction::Table { table, shortest }),
        1 => prop_oneof![Just(RouteKind::Blackhole), Just(RouteKind::Prohibit), Just(RouteKind::Unreachable)]
            .prop_map(RuleAction::Discard),
        1 => Just(RuleAction::Kernel),
    ];
    let prefix = || prop::option::weighted(0.4, any_prefix());
    (any::<bool>(), prefix(), prefix(), then).prop_map(|(not, from, to, then)| {
        let not = not && (from.is_some() || to.is_some());
        Rule { not, from, to, then }
    })
}

/// Returns the rules of one family.
fn of_family(rules: &[Rule], v4: bool) -> Vec<Rule> {
    let fits = |prefix: Option<Prefix>| prefix.is_none_or(|prefix| prefix.addr.is_ipv4() == v4);
    rules.iter().filter(|rule| fits(rule.from) && fits(rule.to)).cloned().collect()
}

fn told() -> impl Strategy<Value = Told> {
    let families = (any::<bool>(), any::<bool>()).prop_map(|(v4, v6)| Families { v4, v6 });
    let prefixes = prop::collection::vec(any_prefix(), 0..4);
    let egress = prop::collection::vec((any_index(), families), 0..3);
    prop_oneof![
        3 => Just(Told::Nothing),
        2 => (prefixes, egress).prop_map(|(prefixes, egress)| Told::Except(prefixes, egress)),
        1 => Just(Told::Except(vec![], vec![])),
        1 => (any_index(), prop::option::of(1280..1283u32)).prop_map(|(index, mtu)| Told::Mtu6(index, mtu)),
        2 => prop::collection::vec(any_rule(), 0..5).prop_map(Told::Rules),
    ]
}

fn tell(world: &mut World, model: &mut Model, told: Told) {
    match told {
        Told::Nothing => return,
        Told::Except(prefixes, egress) => (model.policies.prefixes, model.policies.egress) = (prefixes, egress),
        Told::Mtu6(index, mtu) => {
            model.policies.mtu6.remove(&index);
            model.policies.mtu6.extend(mtu.map(|mtu| (index, mtu)));
        }
        Told::Rules(rules) => {
            let (v4, v6) = (of_family(&rules, true), of_family(&rules, false));
            model.policies.rules = [(PortId(0), Rules { back4: v4.clone(), v4, v6 })].into();
        }
    }
    world.control.set_policies(&model.policies);
}

fn check(world: &World, model: &Model, history: &[Change]) {
    for addr in space() {
        let (got, want) = (world.get(addr), model.get(addr));
        assert_eq!(got, want, "{addr} after {history:#?}\nroutes {:#?}", model.routes);
    }
    check_rules(world, model, history);
    world.with(|t| {
        for (info, (name, index)) in t.ports.iter().zip(&model.ports) {
            assert_eq!(info.index, *index, "{name}");
            assert_eq!(info.mac, model.links.get(index).and_then(|l| l.mac).unwrap_or_default(), "{name}");
            let source = |v4| model.source(*index, None, v4);
            assert_eq!(info.source4.map(IpAddr::V4), source(true), "{name}");
            assert_eq!(info.source6.map(IpAddr::V6), source(false), "{name}");
        }
    });
}

/// Looks up destinations by rules, one at a time and in a burst, which must have the same results.
fn looked_up<A>(t: &Tables, rules: &Steps<A>, src: A, dst: &[A]) -> Vec<u32>
where
    A: Addr + Default + std::ops::BitAnd<Output = A>,
{
    let mut ids = vec![7; dst.len()];
    rules.lookup_batch(&t.entries, &vec![src; dst.len()], dst, &mut ids);
    let ones: Vec<u32> = dst.iter().map(|dst| rules.lookup(&t.entries, src, *dst)).collect();
    assert_eq!(ids, ones, "bursts are looked up like single packets");
    ids
}

/// Checks where packets of the port with rules go, one at a time and in bursts.
fn check_rules(world: &World, model: &Model, history: &[Change]) {
    let Some(rules) = model.policies.rules.get(&PortId(0)) else { return };
    let sources = [v4(1), v4(9), v6(1), v6(9)];
    world.with(|t| {
        let port = &t.ports[0];
        assert_eq!((port.rules4.is_empty(), port.rules6.is_empty()), (rules.v4.is_empty(), rules.v6.is_empty()));
        for src in sources {
            let all: Vec<IpAddr> = space().filter(|dst| dst.is_ipv4() == src.is_ipv4()).collect();
            let bits4 = |addr: &IpAddr| if let IpAddr::V4(a) = addr { a.to_bits() } else { unreachable!() };
            let bits6 = |addr: &IpAddr| if let IpAddr::V6(a) = addr { a.to_bits() } else { unreachable!() };
            let ids = match src.is_ipv4() {
                true => looked_up(t, &port.rules4, bits4(&src), &all.iter().map(bits4).collect::<Vec<_>>()),
                false => looked_up(t, &port.rules6, bits6(&src), &all.iter().map(bits6).collect::<Vec<_>>()),
            };
            let of = if src.is_ipv4() { &rules.v4 } else { &rules.v6 };
            for (dst, id) in all.into_iter().zip(ids) {
                let want = model.get_by(of, src, dst);
                assert_eq!(got(t, id), want, "{src} to {dst} after {history:#?}\n{of:#?}\n{:#?}", model.routes);
            }
        }
    });
}

/// Removes everything and checks that no id, set or FIB entry is left.
fn empty(world: &mut World, model: &Model) {
    let routes = model.routes.iter();
    let mut gone: Vec<Change> =
        routes.map(|r| Change::RouteGone { table: r.table, prefix: r.prefix, metric: r.metric }).collect();
    gone.extend(model.selective.iter().map(|&(table, prefix)| Change::SelectiveGone { table, prefix }));
    gone.extend((1..5).map(|index| Change::LinkGone { index }));
    gone.extend(model.neighbours.keys().map(|&(index, addr)| Change::NeighbourGone { index, addr }));
    world.apply(&gone);
    world.control.set_policies(&Policies::default());
    // Groups release their members only when they are freed themselves.
    (0..3).for_each(|_| drop(world.apply(&[])));
    let stats = world.control.stats();
    assert_eq!((stats.routes4, stats.routes6, stats.routes_other), (0, 0, 0));
    assert_eq!((stats.entries, stats.groups, stats.sets), (8, 0, 0), "left behind");
    space().for_each(|a| assert_eq!(world.get(a), Got::Verdict("no-route")));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn every_address_goes_where_the_naive_twin_says(
        batches in prop::collection::vec(
            (prop::collection::vec((any_change(), any::<usize>()), 1..8), told()), 1..20
        ),
        links in any::<bool>(),
    ) {
        let mut world = World::bare();
        let mut model = Model { ports: vec![("p0".into(), 1), ("p1".into(), 2)], ..Model::default() };
        let first = [a_link(1, "p0"), a_link(2, "p1"), a_link(3, "x")].map(Change::Link).to_vec();
        let mut history = Vec::new();
        let start = if links { vec![(first.into_iter().map(|c| (c, 0)).collect(), Told::Nothing)] } else { Vec::new() };
        for (batch, told) in start.into_iter().chain(batches) {
            let mut changes: Vec<Change> = Vec::new();
            for (change, pick) in batch {
                changes.push(aim(change, &model, pick));
                model.apply(changes.last().unwrap());
            }
            let applied = world.apply(&changes);
            history.extend(changes);
            check(&world, &model, &history);
            tell(&mut world, &mut model, told);
            check(&world, &model, &history);
            prop_assert_eq!(world.control.inconsistent_prefixes(), []);
            for bound in &applied.ports_back {
                prop_assert_eq!(model.ports[usize::from(bound.id.0)].1, bound.index);
            }
        }
        empty(&mut world, &model);
    }
}
