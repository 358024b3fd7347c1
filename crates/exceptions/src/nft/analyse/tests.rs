use super::*;
use crate::nft::build::{accept, acts, chain, drop, is, jump, load};
use crate::nft::{Base, FlowTable};
use proptest::prelude::*;

fn rule(expressions: &[Expression]) -> Vec<Expression> {
    expressions.to_vec()
}

fn ct() -> Expression {
    Expression::Acts { how: "ct".into(), tracking: Tracking::TurnsOn }
}

fn vmap() -> Expression {
    Expression::Lookup { set: "m".into(), key: 0, data: Some(To::Verdict), invert: false }
}

fn reads() -> Expression {
    Expression::Reads { how: "fib".into(), register: None }
}

/// Returns a load and a comparison, as nft and iptables generate them.
fn interface(key: u32, name: &str) -> [Expression; 2] {
    let mut value = name.as_bytes().to_vec();
    value.resize(16, 0);
    [load(key), is(&value)]
}

fn iif(name: &str) -> [Expression; 2] {
    interface(meta::IIFNAME, name)
}

fn oif(name: &str) -> [Expression; 2] {
    interface(meta::OIFNAME, name)
}

fn base(name: &str, hook: u32, rules: &[Vec<Expression>]) -> Chain {
    let base = Base { hook, priority: 0, kind: "filter".into(), accepts: true, devices: Vec::new() };
    Chain { base: Some(base), ..chain(name, rules) }
}

fn table(family: Family, chains: &[Chain]) -> Table {
    Table {
        family,
        name: "t".into(),
        dormant: false,
        owned: false,
        chains: chains.to_vec(),
        sets: Vec::new(),
        tracking: Vec::new(),
        flow_tables: Vec::new(),
    }
}

fn effects(family: Family, chains: &[Chain]) -> Vec<Effect> {
    analyse(&Ruleset { tables: vec![table(family, chains)], ..Ruleset::default() })
}

fn scopes(family: Family, chains: &[Chain]) -> Vec<Scope> {
    effects(family, chains).into_iter().map(|effect| effect.scope).collect()
}

fn came_by(name: &str, families: Families) -> Scope {
    Scope::In(vec![IfMatch::Name(name.into())], families)
}

const ALL: Scope = Scope::All(Families::BOTH);
const FRAGMENTS: Scope = Scope::Fragments(Families::BOTH);

/// Packets have no egress interface before they are routed: its index is 0 then.
#[test]
fn an_interface_of_index_0_is_any() {
    let no_interface = rule(&[load(meta::OIF), is(&[0; 4]), drop()]);
    assert_eq!(scopes(Family::Inet, &[base("c", 0, &[no_interface])]), [ALL]);
}

/// Connections that are in a flow table pass the rules, and stay there when the rules go.
#[test]
fn a_flow_table_has_packets_of_its_devices_without_rules() {
    let p0 = || vec![IfMatch::Name("p0".into())];
    let with = |devices, chains: &[Chain]| {
        let flow_tables = vec![FlowTable { name: "f".into(), devices }];
        let table = Table { flow_tables, ..table(Family::Ip, chains) };
        let effects = analyse(&Ruleset { tables: vec![table], ..Ruleset::default() });
        effects.into_iter().map(|effect| effect.scope).collect::<Vec<_>>()
    };
    assert_eq!(with(Some(vec![]), &[]), []);
    assert_eq!(with(Some(p0()), &[]), [Scope::In(p0(), Families::V4)]);
    assert_eq!(with(None, &[]), [Scope::All(Families::V4)]);
    let dropping = [base("c", 2, &[rule(&[drop()])])];
    assert_eq!(with(Some(p0()), &dropping), [Scope::All(Families::V4)]);
}

#[test]
fn a_chain_that_only_lets_pass_does_nothing() {
    let rules = [rule(&[accept()]), rule(&[reads(), accept()]), [&iif("p0")[..], &[accept()]].concat()];
    for family in [Family::Ip, Family::Ip6, Family::Inet] {
        for hook in 0..5 {
            assert_eq!(effects(family, &[base("c", hook, &rules)]), []);
        }
    }
}

#[test]
fn the_object_is_the_first_rule_that_acts() {
    let rules = [rule(&[accept()]), rule(&[reads(), acts("counter"), drop()]), rule(&[drop()])];
    let wanted = Effect {
        kind: Kind::Netfilter,
        scope: Scope::All(Families::V6),
        object: "table ip6 t chain c rule handle 2".into(),
        reason: "counter, drop".into(),
    };
    assert_eq!(effects(Family::Ip6, &[base("c", 2, &rules)]), [wanted]);
}

#[test]
fn a_policy_that_drops_is_for_all() {
    let mut chain = base("c", 2, &[rule(&[accept()])]);
    chain.base.as_mut().unwrap().accepts = false;
    let found = effects(Family::Inet, &[chain]);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].scope, found[0].reason.as_str()), (&ALL, "policy drop"));
    assert_eq!(found[0].object, "table inet t chain c policy drop");
}

#[test]
fn hooks_tell_whose_packets_they_see() {
    let of = |family, hook| scopes(family, &[base("c", hook, &[rule(&[drop()])])]);
    for forwarded in [0, 2, 4] {
        assert_eq!(of(Family::Inet, forwarded), [ALL]);
    }
    assert_eq!(of(Family::Inet, 1), [Scope::Own(Families::BOTH)]);
    assert_eq!(of(Family::Inet, 3), [Scope::Errors(Families::BOTH), Scope::Own(Families::BOTH)]);
    assert_eq!(of(Family::Bridge, 2), [Scope::Between]);
    for hook in [0, 1, 3, 4, 5] {
        assert_eq!(of(Family::Bridge, hook), [Scope::Bridged]);
    }
    for hook in [0, 2] {
        assert_eq!(scopes(Family::Bridge, &[base("c", hook, &[rule(&[accept()])])]), []);
    }
    let tracked = scopes(Family::Bridge, &[base("c", 2, &[rule(&[ct()])])]);
    assert_eq!(tracked, [Scope::Between, Scope::Between, Scope::Fragments(Families::BOTH)]);
    assert_eq!(of(Family::Arp, 0), []);
    // Unknown hooks and families.
    assert_eq!(of(Family::Ip, 9), [Scope::All(Families::V4)]);
    assert_eq!(of(Family::Other(12), 0), [ALL]);
}

#[test]
fn devices_of_ingress_and_egress_are_the_scope() {
    let with = |family, hook, devices: &[IfMatch]| {
        let mut chain = base("c", hook, &[rule(&[drop()])]);
        chain.base.as_mut().unwrap().devices = devices.to_vec();
        scopes(family, &[chain])
    };
    let interfaces = vec![IfMatch::Name("p0".into()), IfMatch::Prefix("eth".into())];
    let families = Families::BOTH;
    let into = [Scope::In(interfaces.clone(), families)];
    assert_eq!(with(Family::Netdev, 0, &interfaces), into);
    assert_eq!(with(Family::Inet, 5, &interfaces), into);
    let out = [Scope::Out(interfaces.clone(), families), Scope::Errors(families)];
    assert_eq!(with(Family::Netdev, 1, &interfaces), out);
    assert_eq!(with(Family::Netdev, 0, &[IfMatch::Name("lo".into())]), []);
    assert_eq!(with(Family::Netdev, 0, &[]), []);
}

#[test]
fn an_interface_before_the_action_narrows_it() {
    let one = |rule: &[&[Expression]]| scopes(Family::Ip, &[base("c", 2, &[rule.concat()])]);
    let v4 = Families::V4;
    assert_eq!(one(&[&iif("p0"), &[drop()]]), [came_by("p0", v4)]);
    let out = Scope::Out(vec![IfMatch::Name("p1".into())], v4);
    assert_eq!(one(&[&oif("p1"), &[drop()]]), [out]);
    assert_eq!(one(&[&iif("p0"), &oif("p1"), &[drop()]]), [came_by("p0", v4)]);
    // The comparison comes too late, is of another register, or of one overwritten since.
    assert_eq!(one(&[&[acts("counter")], &iif("p0"), &[drop()]]), [Scope::All(v4)]);
    let [load, Expression::Compare { value, .. }] = iif("p0") else { unreachable!() };
    let other = Expression::Compare { register: 16, by: Comparison::Equal, value: value.clone() };
    assert_eq!(one(&[&[load.clone(), other, drop()]]), [Scope::All(v4)]);
    let overwritten = [load, reads(), is(&value), drop()];
    assert_eq!(one(&[&overwritten]), [Scope::All(v4)]);
}

#[test]
fn interfaces_are_compared_as_the_kernel_does() {
    let one = |what, value: &[u8]| {
        let rule = rule(&[load(what), is(value), drop()]);
        scopes(Family::Inet, &[base("c", 2, &[rule])])
    };
    let families = Families::BOTH;
    let by = |interface| [Scope::In(vec![interface], families)];
    assert_eq!(one(meta::IIFNAME, b"eth"), by(IfMatch::Prefix("eth".into())));
    assert_eq!(one(meta::IIFNAME, b"eth0\0"), by(IfMatch::Name("eth0".into())));
    assert_eq!(one(meta::IIF, &7u32.to_ne_bytes()), by(IfMatch::Index(7)));
    assert_eq!(one(meta::IIF, &1u32.to_ne_bytes()), []);
    assert_eq!(one(meta::IIF, &[7]), [ALL]);
    assert_eq!(one(meta::IIFNAME, b""), [ALL]);
    assert_eq!(one(meta::IIFNAME, b"eth\0x"), [ALL]);
    assert_eq!(one(meta::IIFNAME, b"\xff\xfe"), [ALL]);
    assert_eq!(one(meta::NFPROTO, &[2]), [Scope::All(Families::V4)]);
    assert_eq!(one(meta::NFPROTO, &[10]), [Scope::All(Families::V6)]);
    assert_eq!(one(meta::NFPROTO, &[1]), [ALL]);
}

#[test]
fn nothing_forwarded_goes_by_the_loopback_interface() {
    let rules = [[&iif("lo")[..], &[drop()]].concat(), [&oif("lo")[..], &[drop()]].concat()];
    assert_eq!(effects(Family::Inet, &[base("c", 0, &rules), base("d", 4, &rules)]), []);
    // A prefix match covers other interfaces too.
    let prefix = rule(&[load(meta::IIFNAME), is(b"lo"), drop()]);
    assert_eq!(scopes(Family::Inet, &[base("c", 0, &[prefix])]).len(), 1);
}

#[test]
fn families_of_a_rule_are_those_of_its_table_too() {
    let rules = [rule(&[load(meta::NFPROTO), is(&[10]), drop()])];
    assert_eq!(effects(Family::Ip, &[base("c", 2, &rules)]), []);
    assert_eq!(scopes(Family::Inet, &[base("c", 2, &rules)]), [Scope::All(Families::V6)]);
}

#[test]
fn jumps_are_as_wide_as_they_and_their_chain() {
    let to = |rule: Vec<Expression>, sub: &[Vec<Expression>]| {
        scopes(Family::Inet, &[base("c", 2, &[rule]), chain("sub", sub)])
    };
    let both = Families::BOTH;
    assert_eq!(to(rule(&[jump("sub")]), &[rule(&[accept()])]), []);
    assert_eq!(to(rule(&[jump("sub")]), &[rule(&[drop()])]), [ALL]);
    assert_eq!(to([&iif("p0")[..], &[jump("sub")]].concat(), &[rule(&[drop()])]), [came_by("p0", both)]);
    assert_eq!(to([&iif("lo")[..], &[jump("sub")]].concat(), &[rule(&[drop()])]), []);
    assert_eq!(to(rule(&[jump("sub")]), &[[&iif("p1")[..], &[drop()]].concat()]), [came_by("p1", both)]);
    assert_eq!(to(rule(&[jump("none")]), &[]), [ALL]);
    let found = effects(Family::Ip, &[base("c", 2, &[rule(&[jump("sub")])]), chain("sub", &[rule(&[drop()])])]);
    assert_eq!(found[0].object, "table ip t chain c rule handle 1, chain sub rule handle 1");
}

#[test]
fn jumps_in_circles_end() {
    let twice = [rule(&[jump("a")]), rule(&[jump("b")])];
    assert_eq!(scopes(Family::Inet, &[base("c", 2, &twice), chain("a", &twice), chain("b", &twice)]), [ALL]);
    let deep: Vec<Chain> =
        (0..100_000).map(|n| chain(&format!("{n}"), &[rule(&[jump(&format!("{}", n + 1))])])).collect();
    let chains = [vec![base("c", 2, &[rule(&[jump("0")])])], deep].concat();
    assert_eq!(scopes(Family::Inet, &chains), [ALL]);
}

#[test]
fn chains_without_a_hook_do_nothing_themselves() {
    assert_eq!(effects(Family::Inet, &[chain("sub", &[rule(&[drop()])])]), []);
}

#[test]
fn tracking_concerns_both_directions() {
    let narrow = [&iif("p0")[..], &[ct(), drop()]].concat();
    assert_eq!(scopes(Family::Inet, &[base("c", 2, std::slice::from_ref(&narrow))]), [ALL, FRAGMENTS]);
    // Through a jump too, and next to a narrower rule.
    let jumping = [&iif("p0")[..], &[jump("sub")]].concat();
    let sub = chain("sub", &[rule(&[acts("log")]), narrow]);
    assert_eq!(scopes(Family::Inet, &[base("c", 2, &[jumping]), sub]), [ALL, FRAGMENTS]);
}

#[test]
fn maps_may_lead_to_chains_that_track() {
    let mapped = [&iif("p0")[..], &[vmap()]].concat();
    let with = |sub: &[Expression]| {
        scopes(Family::Inet, &[base("c", 2, std::slice::from_ref(&mapped)), chain("s", &[rule(sub)])])
    };
    assert_eq!(with(&[drop()]), [came_by("p0", Families::BOTH)]);
    assert_eq!(with(&[ct(), drop()]), [ALL, FRAGMENTS]);
    // No map leads to a base chain.
    let chains = [base("c", 2, &[mapped]), base("d", 1, &[rule(&[ct()])])];
    assert_eq!(scopes(Family::Inet, &chains), [came_by("p0", Families::BOTH), Scope::Own(Families::BOTH), FRAGMENTS]);
}

#[test]
fn translation_concerns_both_directions() {
    let mut chain = base("c", 4, &[[&oif("p0")[..], &[acts("masquerade")]].concat()]);
    chain.base.as_mut().unwrap().kind = "nat".into();
    assert_eq!(scopes(Family::Ip, &[chain]), [Scope::All(Families::V4)]);
}

#[test]
fn tracking_is_turned_on_from_anywhere() {
    let v4 = Scope::Fragments(Families::V4);
    let own = Scope::Own(Families::V4);
    assert_eq!(scopes(Family::Ip, &[base("c", 1, &[rule(&[ct()])])]), [own, v4.clone()]);
    assert_eq!(scopes(Family::Ip, &[chain("unused", &[rule(&[ct()])])]), [v4]);
    assert_eq!(scopes(Family::Bridge, &[chain("unused", &[rule(&[ct()])])]), [Scope::Between, FRAGMENTS]);
    assert_eq!(scopes(Family::Arp, &[base("c", 1, &[rule(&[ct()])])]), []);
    let mut table = table(Family::Inet, &[base("c", 2, &[rule(&[ct(), drop()])])]);
    table.dormant = true;
    let found = analyse(&Ruleset { tables: vec![table.clone()], ..Ruleset::default() });
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].object, "table inet t chain c rule handle 1");
    assert_eq!(found[0].reason, "connection tracking (ct)");
    table.chains.clear();
    table.tracking.push("ct helper ftp".into());
    let found = analyse(&Ruleset { tables: vec![table], ..Ruleset::default() });
    assert_eq!((&found[0].scope, found[0].object.as_str()), (&FRAGMENTS, "table inet t ct helper ftp"));
}

#[test]
fn a_dormant_table_does_nothing() {
    let mut table = table(Family::Inet, &[base("c", 2, &[rule(&[drop()])])]);
    assert_eq!(analyse(&Ruleset { tables: vec![table.clone()], ..Ruleset::default() }).len(), 1);
    table.dormant = true;
    assert_eq!(analyse(&Ruleset { tables: vec![table], ..Ruleset::default() }), []);
}

#[test]
fn a_chain_that_is_not_understood_does_everything() {
    let opaque = |chain: Chain| Chain { opaque: Some("unknown".into()), ..chain };
    // Even on a hook that would not matter.
    assert_eq!(scopes(Family::Inet, &[opaque(base("c", 1, &[]))]), [Scope::Between, ALL, FRAGMENTS]);
    let jumped = [base("c", 2, &[[&iif("p0")[..], &[jump("sub")]].concat()]), opaque(chain("sub", &[]))];
    assert_eq!(scopes(Family::Inet, &jumped), [ALL, FRAGMENTS]);
}

fn any_expression() -> impl Strategy<Value = Expression> {
    let name = prop::sample::select(vec!["lo", "p0", "p1"]);
    prop_oneof![
        Just(reads()),
        Just(accept()),
        Just(drop()),
        Just(acts("counter")),
        Just(ct()),
        Just(vmap()),
        Just(load(meta::IIFNAME)),
        Just(load(meta::OIFNAME)),
        Just(load(meta::NFPROTO)),
        name.prop_map(|name| is(format!("{name}\0").as_bytes())),
        Just(is(&[2])),
        prop::sample::select(vec!["0", "1", "2", "3"]).prop_map(jump),
    ]
}

fn any_table() -> impl Strategy<Value = Table> {
    let family = prop::sample::select(vec![Family::Ip, Family::Ip6, Family::Inet, Family::Netdev, Family::Bridge]);
    let rules = prop::collection::vec(prop::collection::vec(any_expression(), 0..5), 0..4);
    let hook = prop::option::weighted(0.7, (0u32..6, prop::bool::weighted(0.8)));
    let chains = prop::collection::vec((rules, hook), 0..5);
    (family, chains, any::<bool>(), any::<u32>()).prop_map(|(family, chains, dormant, name)| {
        let chains = chains.into_iter().enumerate().map(|(n, (rules, hook))| match hook {
            None => chain(&n.to_string(), &rules),
            Some((hook, accepts)) => {
                let mut chain = base(&n.to_string(), hook, &rules);
                let base = chain.base.as_mut().unwrap();
                base.accepts = accepts;
                base.devices = vec![IfMatch::Name("p0".into())];
                chain
            }
        });
        Table {
            family,
            name: name.to_string(),
            dormant,
            owned: false,
            chains: chains.collect(),
            sets: Vec::new(),
            tracking: Vec::new(),
            flow_tables: Vec::new(),
        }
    })
}

/// Returns whether any expression acts on a packet between two ports, if every comparison with an unknown outcome
/// holds. The simplest possible reference for the analysis.
fn touched(table: &Table, rules: &[Rule], families: Families, from: &str, to: &str, depth: usize) -> bool {
    rules.iter().any(|rule| {
        let mut register = None;
        for expression in &rule.expressions {
            match expression {
                Expression::Meta { key, .. } => register = Some(*key),
                Expression::Compare { value, .. } => {
                    // Without the terminating NUL it is a prefix.
                    let is = |name: &str| format!("{name}\0").as_bytes().starts_with(value);
                    let holds = match register {
                        Some(meta::IIFNAME) => is(from),
                        Some(meta::OIFNAME) => is(to),
                        Some(meta::NFPROTO) if *value == [2] => families.v4,
                        _ => true,
                    };
                    if !holds {
                        return false;
                    }
                }
                Expression::Acts { .. } | Expression::Lookup { .. } | Expression::Verdict(Verdict::Drop) => {
                    return true;
                }
                Expression::Verdict(Verdict::Jump(name)) => {
                    let rules = table.chains.iter().find(|chain| chain.name == *name).map(|chain| &chain.rules[..]);
                    if depth > 4 || rules.is_none_or(|r| touched(table, r, families, from, to, depth + 1)) {
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    })
}

proptest! {
    #[test]
    fn the_order_of_tables_changes_nothing(
        (tables, shuffled) in prop::collection::vec(any_table(), 0..5)
            .prop_flat_map(|tables| (Just(tables.clone()), Just(tables).prop_shuffle())),
    ) {
        let sorted = |tables| {
            let mut effects = analyse(&Ruleset { tables, ..Ruleset::default() });
            effects.sort_by_key(|effect| format!("{effect:?}"));
            effects
        };
        prop_assert_eq!(sorted(tables), sorted(shuffled));
    }

    #[test]
    fn a_packet_that_something_touches_is_in_a_scope(
        table in any_table(),
        families in prop::sample::select(vec![Families::V4, Families::V6]),
        hook in prop::sample::select(vec![0, 2, 4]),
    ) {
        let table = Table { family: Family::Inet, dormant: false, ..table };
        let hooked = |chain: &&Chain| chain.base.as_ref().is_some_and(|base| base.hook == hook);
        let touched = table.chains.iter().filter(hooked).any(|chain| {
            !chain.base.as_ref().unwrap().accepts || touched(&table, &chain.rules, families, "p0", "p1", 0)
        });
        let effects = analyse(&Ruleset { tables: vec![table], ..Ruleset::default() });
        let seen = effects.iter().any(|effect| match &effect.scope {
            Scope::In(interfaces, f) => {
                interfaces.iter().any(|i| i.covers(5, "p0")) && !(*f & families).is_empty()
            }
            Scope::Out(interfaces, f) => {
                interfaces.iter().any(|i| i.covers(6, "p1")) && !(*f & families).is_empty()
            }
            Scope::All(f) => !(*f & families).is_empty(),
            _ => false,
        });
        prop_assert!(seen || !touched, "{:?}", effects);
    }
}
