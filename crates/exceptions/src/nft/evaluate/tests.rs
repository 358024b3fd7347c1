use super::*;
use crate::effect::IfMatch;
use crate::nft::build::{accept, acts, chain, drop, is, jump, load, mask, state};
use crate::nft::{Comparison, Data, Element, Expression, Interface, Set, To, Tracking, Tuple, Verdict, ct, meta};

mod twin;

fn interface(index: u32, name: &str) -> Option<Interface> {
    Some(Interface { index, name: name.into(), ..Interface::default() })
}

/// Returns the packets from a client, 10.0.1.2:4000 on p0, to a server, 10.0.2.2:80 on p1, whose source is translated
/// to 192.0.2.1:5000.
fn masqueraded() -> Flow {
    let tuple = |src: &str, dst: &str, src_port, dst_port| Tuple {
        src: Some(src.parse().unwrap()),
        dst: Some(dst.parse().unwrap()),
        src_port: Some(src_port),
        dst_port: Some(dst_port),
    };
    Flow {
        mark_changes: false,
        v6: false,
        options6: false,
        icmp: [0; 2],
        protocol: 6,
        course: Course::Forwarded,
        state: State::Established,
        input: interface(2, "p0"),
        output: interface(3, "p1"),
        original: tuple("10.0.1.2", "10.0.2.2", 4000, 80),
        reply: tuple("10.0.2.2", "192.0.2.1", 80, 5000),
        replies: Some(false),
        status: Some(0x19e),
        mark: Some(0),
        zone: Some(0),
        skb_mark: Some(0),
        returns: true,
    }
}

/// Returns the packets of the same connection in the other direction.
fn back(flow: &Flow) -> Flow {
    Flow { input: flow.output.clone(), output: flow.input.clone(), replies: Some(true), ..flow.clone() }
}

fn payload(base: u32, offset: u32, len: u32) -> Expression {
    Expression::Payload { base, offset, len, register: 0 }
}

fn saddr(addr: [u8; 4]) -> [Expression; 2] {
    [payload(1, 12, 4), is(&addr)]
}

fn daddr(addr: [u8; 4]) -> [Expression; 2] {
    [payload(1, 16, 4), is(&addr)]
}

fn established() -> Vec<Expression> {
    state(2 | 4)
}

fn counter() -> Expression {
    Expression::Counter { name: None }
}

fn goto(chain: &str) -> Expression {
    Expression::Verdict(Verdict::Goto(chain.into()))
}

fn base(name: &str, hook: u32, priority: i32, accepts: bool, of: &[Vec<Expression>]) -> Chain {
    let base = Base { hook, priority, kind: "filter".into(), accepts, devices: Vec::new() };
    Chain { base: Some(base), ..chain(name, of) }
}

fn table(family: Family, chains: Vec<Chain>, sets: Vec<Set>) -> Table {
    Table {
        family,
        name: "t".into(),
        dormant: false,
        owned: false,
        chains,
        sets,
        tracking: Vec::new(),
        flow_tables: Vec::new(),
    }
}

fn ruleset(table: Table) -> Ruleset {
    Ruleset { generation: 1, tables: vec![table] }
}

fn answer(chains: Vec<Chain>, sets: Vec<Set>, flow: &Flow) -> Answer {
    Evaluator::new(&ruleset(table(Family::Inet, chains, sets))).evaluate(flow)
}

/// Evaluates a chain at hook forward whose policy is to drop.
fn forward(of: &[Vec<Expression>]) -> Answer {
    answer(vec![base("c", 2, 0, false, of)], Vec::new(), &masqueraded())
}

fn kept(answer: &Answer) -> (u64, &str) {
    match answer {
        Answer::Kernel { findings } => (findings[0].place.rule.unwrap_or(0), findings[0].why.as_str()),
        other => panic!("{other:?}"),
    }
}

const ACCEPTED: Answer = Answer::Accept { counters: Vec::new(), masquerades: false };

fn rule(parts: &[&[Expression]]) -> Vec<Expression> {
    parts.concat()
}

#[test]
fn an_empty_ruleset_accepts() {
    assert_eq!(Evaluator::new(&Ruleset::default()).evaluate(&masqueraded()), ACCEPTED);
    assert_eq!(forward(&[vec![accept()]]), ACCEPTED);
    let dropped = Place { family: "inet".into(), table: "t".into(), chain: "c".into(), rule: None };
    let counters = Vec::new();
    assert_eq!(forward(&[]), Answer::Drop { at: dropped.clone(), counters: counters.clone() });
    assert_eq!(forward(&[vec![drop()]]), Answer::Drop { at: Place { rule: Some(1), ..dropped }, counters });
}

#[test]
fn established_packets_pass_a_stateful_firewall() {
    let stateful = [rule(&[&established(), &[accept()]]), rule(&[&state(1), &[drop()]]), vec![acts("limit"), accept()]];
    assert_eq!(forward(&stateful), ACCEPTED);
    // Not so if the limit comes first.
    let late = [stateful[2].clone(), stateful[0].clone()];
    assert_eq!(kept(&forward(&late)), (1, "limit"));
    // New and invalid packets are others.
    assert_eq!(forward(&[rule(&[&state(8), &[acts("log")]]), stateful[0].clone()]), ACCEPTED);
}

#[test]
fn counters_of_every_packet_are_reported() {
    let rules = [rule(&[&established(), &[counter(), accept()]])];
    let Answer::Accept { counters, .. } = forward(&rules) else { panic!() };
    assert_eq!(counters.len(), 1);
    assert_eq!(counters[0].place.rule, Some(1));
    let some = [rule(&[&[payload(1, 1, 1), is(&[0]), counter()]]), vec![accept()]];
    assert_eq!(kept(&forward(&some)), (1, "counter of some packets, by ip dscp"));
    // Of the packets that the first rule leaves.
    let rest = [rule(&[&[payload(1, 1, 1), is(&[0]), accept()]]), vec![counter(), accept()]];
    assert_eq!(kept(&forward(&rest)).0, 2);
}

#[test]
fn what_differs_between_packets_matters_only_if_the_verdict_does() {
    let long = |verdict| rule(&[&[load(meta::LEN), is(&[1, 0, 0, 0])], &[verdict]]);
    let last = rule(&[&established(), &[accept()]]);
    assert_eq!(kept(&forward(&[long(drop()), last.clone()])), (1, "length"));
    assert_eq!(forward(&[long(accept()), last.clone()]), ACCEPTED);
    assert_eq!(kept(&forward(&[long(accept())])), (1, "length"));
    let cases = [
        (payload(1, 1, 1), "ip dscp"),
        (payload(1, 8, 1), "ip ttl"),
        (payload(2, 14, 2), "tcp window"),
        (payload(2, 20, 4), "octets after the header"),
        (payload(0, 6, 6), "link-layer header"),
        (Expression::Reads { how: "fib".into(), register: None }, "fib"),
        (Expression::Ct { key: 14, direction: None, register: 0 }, "ct packets"),
    ];
    for (expression, why) in cases {
        let rule = rule(&[&[expression, is(&[1]), drop()]]);
        assert_eq!(kept(&forward(&[rule, last.clone()])), (1, why));
    }
}

#[test]
fn flags_of_segments_that_are_first_or_last_do_not_occur() {
    let flags = |bits: u8, wanted: u8, verdict| rule(&[&[payload(2, 13, 1), mask(&[bits]), is(&[wanted])], &[verdict]]);
    let last = vec![accept()];
    // As iptables clamps the MSS: --tcp-flags SYN,RST SYN.
    assert_eq!(forward(&[flags(0x06, 0x02, acts("xt target TCPMSS")), last.clone()]), ACCEPTED);
    assert_eq!(forward(&[flags(0x07, 0x00, accept())]), ACCEPTED);
    // Packets without any flag, and all with ACK.
    assert_eq!(forward(&[flags(0x3f, 0x00, drop()), flags(0x12, 0x10, accept())]), ACCEPTED);
    assert_eq!(kept(&forward(&[flags(0x18, 0x10, drop()), last])), (1, "tcp flags"));
}

#[test]
fn a_flow_table_does_not_matter_if_the_verdict_is_the_same_without_it() {
    let add = || Expression::FlowAdd;
    assert_eq!(forward(&[vec![add()], vec![accept()]]), ACCEPTED);
    assert_eq!(forward(&[vec![add(), accept()], vec![accept()]]), ACCEPTED);
    assert_eq!(kept(&forward(&[vec![add(), accept()], vec![drop()]])), (1, "flow add"));
    assert_eq!(kept(&forward(&[vec![add(), counter()], vec![accept()]])), (1, "counter of some packets, by flow add"));
    let status = |bits: u32| {
        let load = Expression::Ct { key: ct::STATUS, direction: None, register: 0 };
        let any = Expression::Compare { register: 0, by: Comparison::NotEqual, value: vec![0; 4] };
        rule(&[&[load, mask(&bits.to_ne_bytes()), any, accept()]])
    };
    assert_eq!(forward(&[status(0x8)]), ACCEPTED);
    for changing in [0x400, 0x2000, 0x4000, 0x8000] {
        assert_eq!(kept(&forward(&[status(changing)])), (1, "status of the connection that may change"));
    }
}

#[test]
fn jumps_return_and_gotos_do_not() {
    let with = |first: &[Vec<Expression>], sub: &[Vec<Expression>]| {
        answer(vec![base("c", 2, 0, false, first), chain("sub", sub)], Vec::new(), &masqueraded())
    };
    let is_drop = |answer| matches!(answer, Answer::Drop { .. });
    assert_eq!(with(&[vec![jump("sub")], vec![accept()]], &[]), ACCEPTED);
    assert!(is_drop(with(&[vec![goto("sub")], vec![accept()]], &[])));
    assert_eq!(with(&[vec![jump("sub")]], &[vec![accept()]]), ACCEPTED);
    assert!(is_drop(with(&[vec![jump("sub")], vec![accept()]], &[vec![drop()]])));
    let returns = [vec![Expression::Verdict(Verdict::Return)], vec![drop()]];
    assert_eq!(with(&[vec![jump("sub")], vec![accept()]], &returns), ACCEPTED);
    assert!(is_drop(with(&[vec![goto("sub")], vec![accept()]], &returns)));
    assert!(is_drop(with(&returns, &[])), "returning from a base chain is the policy");
    // Only some packets take the jump: both ways count.
    let some = rule(&[&[payload(1, 1, 1), is(&[0]), jump("sub")]]);
    assert_eq!(with(&[some.clone(), vec![accept()]], &[vec![accept()]]), ACCEPTED);
    assert_eq!(kept(&with(&[some.clone(), vec![accept()]], &[vec![drop()]])).1, "ip dscp");
    assert_eq!(kept(&with(&[some, vec![counter(), accept()]], &[vec![accept()]])).0, 2);
    let deep: Vec<Chain> = (0..20).map(|n| chain(&n.to_string(), &[vec![jump(&(n + 1).to_string())]])).collect();
    let deep = [vec![base("c", 2, 0, true, &[vec![jump("0")]])], deep].concat();
    assert_eq!(kept(&answer(deep, Vec::new(), &masqueraded())).1, "jumps nested too deeply");
    let twice = |to: u32| vec![vec![jump(&to.to_string())]; 8];
    let many: Vec<Chain> = (0..15).map(|n| chain(&n.to_string(), &twice(n + 1))).chain([chain("15", &[])]).collect();
    let many = [vec![base("c", 2, 0, true, &twice(0))], many].concat();
    assert_eq!(kept(&answer(many, Vec::new(), &masqueraded())).1, "too many rules");
}

#[test]
fn addresses_are_those_of_the_place() {
    let at = |hook, priority, flow: &Flow, matched: [Expression; 2]| {
        let rule = rule(&[&matched, &[accept()]]);
        answer(vec![base("c", hook, priority, false, &[rule])], Vec::new(), flow)
    };
    let flow = masqueraded();
    let (inside, outside, server) = ([10, 0, 1, 2], [192, 0, 2, 1], [10, 0, 2, 2]);
    for (hook, priority) in [(0, -300), (0, 0), (2, 0), (4, 99)] {
        assert_eq!(at(hook, priority, &flow, saddr(inside)), ACCEPTED, "{hook} {priority}");
    }
    assert_eq!(at(4, 101, &flow, saddr(outside)), ACCEPTED);
    assert_eq!(kept(&at(4, 100, &flow, saddr(outside))).1, "source address");
    assert_eq!(at(4, 100, &flow, daddr(server)), ACCEPTED);
    let reply = back(&flow);
    for priority in [-300, -101] {
        assert_eq!(at(0, priority, &reply, daddr(outside)), ACCEPTED);
    }
    for (hook, priority) in [(0, -99), (2, 0), (4, 200)] {
        assert_eq!(at(hook, priority, &reply, daddr(inside)), ACCEPTED);
    }
    assert_eq!(kept(&at(0, -100, &reply, daddr(inside))).1, "destination address");
    // Ports are translated with their addresses.
    let port = |number: u16| [payload(2, 2, 2), is(&number.to_be_bytes())];
    assert_eq!(at(0, -150, &reply, port(5000)), ACCEPTED);
    assert_eq!(at(2, 0, &reply, port(4000)), ACCEPTED);
}

#[test]
fn connections_are_known_behind_connection_tracking_only() {
    let at = |hook, priority, matched: Vec<Expression>| {
        let rule = rule(&[&matched, &[accept()]]);
        answer(vec![base("c", hook, priority, false, &[rule])], Vec::new(), &masqueraded())
    };
    assert_eq!(at(0, -150, established()), ACCEPTED);
    assert_eq!(at(0, -300, state(1)), ACCEPTED);
    assert!(matches!(at(0, -300, established()), Answer::Drop { .. }));
    assert!(matches!(at(0, -200, established()), Answer::Kernel { .. }));
    let mark = vec![Expression::Ct { key: ct::MARK, direction: None, register: 0 }, is(&[0; 4])];
    assert_eq!(at(2, 0, mark.clone()), ACCEPTED);
    assert!(matches!(at(0, -300, mark.clone()), Answer::Drop { .. }), "the load ends the rule");
    // A rule counts all packets of a flow or none, unless packets change the mark.
    for mark_changes in [false, true] {
        let counts = rule(&[&mark, &[Expression::Counter { name: None }]]);
        let flow = Flow { mark: None, mark_changes, ..masqueraded() };
        let counted = answer(vec![base("c", 2, 0, true, &[counts])], Vec::new(), &flow);
        assert_eq!(matches!(counted, Answer::Kernel { .. }), mark_changes, "{counted:?}");
    }
}

#[test]
fn families_hooks_and_devices_decide_which_chains_are_met() {
    let with = |family, mut chain: Chain, devices: &[&str], kind: &str, v6| {
        let base = chain.base.as_mut().unwrap();
        base.devices = devices.iter().map(|name| IfMatch::Name((*name).into())).collect();
        base.kind = kind.into();
        let flow = Flow { v6, original: Tuple::default(), reply: Tuple::default(), ..masqueraded() };
        Evaluator::new(&ruleset(table(family, vec![chain], Vec::new()))).evaluate(&flow)
    };
    let dropping = |hook| base("c", hook, 0, false, &[]);
    let is_drop = |answer| matches!(answer, Answer::Drop { .. });
    assert!(is_drop(with(Family::Ip, dropping(2), &[], "filter", false)));
    assert_eq!(with(Family::Ip, dropping(2), &[], "filter", true), ACCEPTED);
    assert!(is_drop(with(Family::Ip6, dropping(2), &[], "filter", true)));
    assert_eq!(with(Family::Ip6, dropping(2), &[], "filter", false), ACCEPTED);
    for local in [1, 3] {
        assert_eq!(with(Family::Inet, dropping(local), &[], "filter", false), ACCEPTED);
    }
    assert_eq!(with(Family::Inet, dropping(4), &[], "nat", false), ACCEPTED);
    assert!(matches!(with(Family::Bridge, dropping(2), &[], "filter", false), Answer::Kernel { .. }));
    assert_eq!(with(Family::Arp, dropping(0), &[], "filter", false), ACCEPTED);
    for (family, hook) in [(Family::Netdev, 0), (Family::Inet, 5)] {
        assert!(is_drop(with(family, dropping(hook), &["p0"], "filter", false)));
        assert_eq!(kept(&with(family, dropping(hook), &["p1"], "filter", false)).1, "packets of devices above");
        assert_eq!(with(family, base("c", hook, 0, true, &[]), &["p1"], "filter", false), ACCEPTED);
        // A packet of a VLAN need not be one of IPv4 there.
        let accepts = rule(&[&[load(meta::L4PROTO), is(&[6]), accept()]]);
        let above = with(family, base("c", hook, 0, false, std::slice::from_ref(&accepts)), &["p1"], "filter", false);
        assert!(matches!(above, Answer::Kernel { .. }));
        assert_eq!(
            with(family, base("c", hook, 0, false, std::slice::from_ref(&accepts)), &["p0"], "filter", false),
            ACCEPTED
        );
    }
    // A chain on a VLAN and on the device below it sees the packets twice, first as frames with a tag.
    let both = |rules: &[Vec<Expression>], below: &[(u32, String)]| {
        let mut chain = base("c", 0, 0, true, rules);
        chain.base.as_mut().unwrap().devices = ["p0", "q"].map(|name| IfMatch::Name(name.into())).into();
        let mut flow = masqueraded();
        flow.input.as_mut().unwrap().below = below.to_vec();
        Evaluator::new(&ruleset(table(Family::Netdev, vec![chain], Vec::new()))).evaluate(&flow)
    };
    let of_device =
        rule(&[&[load(meta::IIF), is(&9u32.to_ne_bytes()), payload(1, 12, 4), is(&[192, 0, 2, 66]), drop()]]);
    let below = [(9, "q".to_owned())];
    assert_eq!(both(std::slice::from_ref(&of_device), &[]), ACCEPTED);
    assert_eq!(kept(&both(&[of_device], &below)).1, "packets of devices above");
    assert_eq!(both(&[], &below), ACCEPTED);
    assert!(is_drop(with(Family::Netdev, dropping(1), &["p1"], "filter", false)));
    assert!(matches!(with(Family::Netdev, dropping(1), &["p0"], "filter", false), Answer::Kernel { .. }));
    assert!(matches!(with(Family::Ip, dropping(9), &[], "filter", false), Answer::Kernel { .. }));
    assert!(matches!(with(Family::Other(77), dropping(2), &[], "filter", false), Answer::Kernel { .. }));
    let opaque = Chain { opaque: Some("unknown".into()), ..dropping(1) };
    assert!(matches!(with(Family::Inet, opaque, &[], "filter", false), Answer::Kernel { .. }));
}

#[test]
fn chains_are_in_the_kernels_order() {
    let chains = [(2, 10), (0, 5), (2, -10), (4, 0), (0, -300), (2, 10)]
        .iter()
        .zip(0..)
        .map(|(&(hook, priority), name)| base(&format!("{name}"), hook, priority, true, &[]));
    let ruleset = ruleset(table(Family::Inet, chains.collect(), Vec::new()));
    let evaluator = Evaluator::new(&ruleset);
    let order: Vec<&str> = evaluator.chains().iter().map(|hooked| hooked.chain.name.as_str()).collect();
    assert_eq!(order, ["4", "1", "2", "5", "0", "3"]);
}

fn element(key: &[u8], data: Option<Verdict>) -> Element {
    Element { key: key.to_vec(), data: data.map(Data::Verdict), ..Element::default() }
}

fn set(key_len: usize, elements: Vec<Element>) -> Set {
    Set { name: "s".into(), key_len, elements: Some(elements), ..Set::default() }
}

fn lookup(data: Option<To>, invert: bool) -> Expression {
    Expression::Lookup { set: "s".into(), key: 0, data, invert }
}

#[test]
fn lookups_find_what_the_kernel_finds() {
    let daddr = || payload(1, 16, 4);
    let with = |load: Expression, set: Set, invert| {
        let of = [rule(&[&[load, lookup(None, invert), accept()]])];
        answer(vec![base("c", 2, 0, false, &of)], vec![set], &masqueraded()) == ACCEPTED
    };
    let plain = set(4, vec![element(&[10, 0, 2, 2], None)]);
    assert!(with(daddr(), plain.clone(), false));
    assert!(!with(daddr(), plain.clone(), true));
    assert!(!with(payload(1, 12, 4), plain.clone(), false));
    let end = |key: &[u8]| Element { ends: true, ..element(key, None) };
    let interval = |from: &[u8], to: &[u8]| Set { interval: true, ..set(4, vec![element(from, None), end(to)]) };
    assert!(with(daddr(), interval(&[10, 0, 0, 0], &[11, 0, 0, 0]), false));
    assert!(with(daddr(), interval(&[10, 0, 2, 2], &[10, 0, 2, 3]), false));
    assert!(!with(daddr(), interval(&[10, 0, 0, 0], &[10, 0, 2, 2]), false), "the end is not in it");
    let adjacent = vec![element(&[10, 0, 0, 0], None), end(&[10, 0, 2, 2]), element(&[10, 0, 2, 2], None)];
    assert!(with(daddr(), Set { interval: true, ..set(4, adjacent) }, false));
    // The rest of a register's word is zero.
    let ports = |last: u16| {
        let from = [10, 0, 2, 0, 0, 80, 0, 0];
        let to = [vec![10, 0, 2, 255], last.to_be_bytes().to_vec(), vec![0, 0]].concat();
        let element = Element { to: Some(to), ..element(&from, None) };
        Set { interval: true, fields: vec![4, 2], ..set(8, vec![element]) }
    };
    let concatenated = |last| {
        let port = Expression::Payload { base: 2, offset: 2, len: 2, register: 4 };
        let of = [rule(&[&[daddr(), port, lookup(None, false), accept()]])];
        answer(vec![base("c", 2, 0, false, &of)], vec![ports(last)], &masqueraded()) == ACCEPTED
    };
    assert!(concatenated(80) && concatenated(90) && !concatenated(79));
    let rest = Element { catch_all: true, ..Element::default() };
    assert!(with(daddr(), set(4, vec![rest]), false));
}

#[test]
fn sets_that_change_by_themselves_are_left_to_the_kernel() {
    let with = |set: Set| {
        let of = [rule(&[&[payload(1, 16, 4), lookup(None, false), drop()]]), vec![accept()]];
        answer(vec![base("c", 2, 0, true, &of)], vec![set], &masqueraded())
    };
    let other = element(&[10, 0, 9, 9], None);
    let this = element(&[10, 0, 2, 2], None);
    assert_eq!(with(set(4, vec![other.clone()])), ACCEPTED);
    assert!(matches!(with(set(4, vec![this.clone()])), Answer::Drop { .. }));
    assert_eq!(kept(&with(Set { volatile: Some("flags dynamic"), ..set(4, vec![]) })).1, "flags dynamic");
    assert_eq!(kept(&with(Set { elements: None, ..set(4, vec![]) })).1, "set s: elements that were not read");
    assert_eq!(kept(&with(Set { name: "other".into(), ..set(4, vec![]) })).1, "set s: unknown set");
    let expires = |element: &Element| set(4, vec![Element { expires: true, ..element.clone() }]);
    assert_eq!(kept(&with(expires(&this))).1, "set element that expires");
    assert_eq!(with(expires(&other)), ACCEPTED);
    let two_keys = Element { to: Some(vec![10, 0, 2, 1]), ..element(&[10, 0, 2, 0], None) };
    assert_eq!(with(Set { interval: true, ..set(4, vec![two_keys]) }), ACCEPTED, "it ends before the key");
    let counts = Element { acts: Some("counter".into()), ..this };
    assert_eq!(kept(&with(set(4, vec![counts]))).1, "element of set s: counter");
}

#[test]
fn verdict_maps() {
    let with = |key: Expression, elements: &[(&[u8], Verdict)]| {
        let elements = elements.iter().map(|(key, verdict)| element(key, Some(verdict.clone()))).collect();
        let of = [vec![key.clone(), lookup(Some(To::Verdict), false)], vec![acts("limit")]];
        let chains = vec![base("c", 2, 0, false, &of), chain("sub", &[vec![accept()]])];
        answer(chains, vec![set(if matches!(key, Expression::Ct { .. }) { 4 } else { 2 }, elements)], &masqueraded())
    };
    let state = || Expression::Ct { key: ct::STATE, direction: None, register: 0 };
    let (two, one) = (2u32.to_ne_bytes(), 1u32.to_ne_bytes());
    assert_eq!(with(state(), &[(&one, Verdict::Drop), (&two, Verdict::Accept)]), ACCEPTED);
    assert!(matches!(with(state(), &[(&two, Verdict::Drop)]), Answer::Drop { .. }));
    assert_eq!(with(state(), &[(&two, Verdict::Jump("sub".into()))]), ACCEPTED);
    assert_eq!(kept(&with(state(), &[(&one, Verdict::Accept)])), (2, "limit"));
    // Any of the verdicts, and none.
    let window = payload(2, 14, 2);
    assert_eq!(kept(&with(window, &[(&[0, 1], Verdict::Accept), (&[0, 2], Verdict::Drop)])), (2, "limit"));
}

#[test]
fn unknown_flows_depend() {
    let any = Flow { protocol: 6, ..Flow::default() };
    let with = |of: &[Vec<Expression>]| answer(vec![base("c", 2, 0, false, of)], Vec::new(), &any);
    assert_eq!(with(&[rule(&[&established(), &[accept()]])]), ACCEPTED);
    let drops = rule(&[&saddr([10, 0, 0, 1]), &[drop()]]);
    let Answer::Depends { findings } = with(&[drops.clone(), vec![accept()]]) else { panic!() };
    assert_eq!((findings[0].cause, findings[0].why.as_str()), (Cause::Drops, "source address"));
    let limits = rule(&[&saddr([10, 0, 0, 1]), &[acts("limit"), accept()]]);
    let Answer::Depends { findings } = with(&[limits, vec![accept()]]) else { panic!() };
    assert_eq!((findings[0].cause, findings[0].why.as_str(), findings[0].some), (Cause::Acts, "limit", true));
    assert!(matches!(with(&[vec![acts("limit")], drops]), Answer::Kernel { .. }));
    assert!(matches!(with(&[vec![accept()]]), Answer::Accept { .. }));
}

#[test]
fn maps_in_the_midst_of_a_rule() {
    let with = |key: Expression, verdicts: [Verdict; 2]| {
        let elements = [[0u8], [4]].iter().zip(verdicts).map(|(key, verdict)| element(key, Some(verdict))).collect();
        let of = [vec![key, lookup(Some(To::Verdict), false), drop()]];
        answer(vec![base("c", 2, 0, true, &of)], vec![set(1, elements)], &masqueraded())
    };
    let dscp = || payload(1, 1, 1);
    let how = "map s: some packets go on in the rule";
    assert_eq!(kept(&with(dscp(), [Verdict::Continue, Verdict::Accept])), (1, how));
    assert_eq!(with(dscp(), [Verdict::Accept, Verdict::Return]), ACCEPTED);
    assert!(matches!(with(dscp(), [Verdict::Continue, Verdict::Continue]), Answer::Kernel { .. }));
    let zero = || Expression::Immediate { register: 0, value: vec![0] };
    assert!(matches!(with(zero(), [Verdict::Continue, Verdict::Accept]), Answer::Drop { .. }));
    assert_eq!(with(zero(), [Verdict::Accept, Verdict::Continue]), ACCEPTED);
}

#[test]
fn overlapping_elements_are_all_candidates() {
    let with = |verdicts: [Verdict; 2]| {
        let from = [10, 0, 2, 0, 0, 80, 0, 0];
        let ends = [[10, 0, 2, 9, 0, 80, 0, 0], [10, 0, 2, 255, 0, 90, 0, 0]];
        let one =
            |(to, verdict): ([u8; 8], Verdict)| Element { to: Some(to.to_vec()), ..element(&from, Some(verdict)) };
        let elements = ends.into_iter().zip(verdicts).map(one).collect();
        let port = Expression::Payload { base: 2, offset: 2, len: 2, register: 4 };
        let of = [vec![payload(1, 16, 4), port, lookup(Some(To::Verdict), false)]];
        let set = Set { interval: true, fields: vec![4, 2], ..set(8, elements) };
        answer(vec![base("c", 2, 0, false, &of)], vec![set], &masqueraded())
    };
    assert_eq!(with([Verdict::Accept, Verdict::Accept]), ACCEPTED);
    assert_eq!(kept(&with([Verdict::Accept, Verdict::Drop])).1, "order of overlapping elements");
    assert_eq!(kept(&with([Verdict::Drop, Verdict::Accept])).1, "order of overlapping elements");
}

#[test]
fn lookups_have_the_side_effects_of_sets() {
    let finds = || rule(&[&[payload(1, 16, 4), lookup(None, false), accept()]]);
    let with = |set: Set, update: Option<Option<&str>>| {
        let update = update.map(|acts| Expression::Update {
            set: "s".into(),
            acts: acts.map(str::to_owned),
            tracking: Tracking::No,
        });
        let unmet = rule(&[&saddr([9, 9, 9, 9]), &update.into_iter().collect::<Vec<_>>()]);
        answer(vec![base("c", 2, 0, true, &[finds(), unmet])], vec![set], &masqueraded())
    };
    let empty = || set(4, vec![]);
    assert_eq!(with(empty(), None), ACCEPTED);
    // The lookup matters to no verdict, but to a limit.
    let volatile = || Set { volatile: Some("flags dynamic"), ..empty() };
    assert_eq!(with(volatile(), None), ACCEPTED);
    assert_eq!(kept(&with(Set { acts: Some("limit".into()), ..volatile() }, None)), (1, "set s: limit"));
    let opaque = Set { opaque: Some("unknown set flags".into()), ..empty() };
    assert_eq!(kept(&with(opaque, None)), (1, "set s: unknown set flags"));
    let counts = Element { acts: Some("counter".into()), expires: true, ..element(&[10, 0, 2, 2], None) };
    assert_eq!(kept(&with(set(4, vec![counts]), None)), (1, "set s: counter"));
    assert_eq!(kept(&with(empty(), Some(Some("limit")))), (1, "set s: limit"));
    // Elements that a rule adds are not known, whatever the flags of the set.
    let updated = |set: Set| {
        let add = Expression::Update { set: "s".into(), acts: None, tracking: Tracking::No };
        let chains = [base("c", 2, 0, false, &[finds()]), base("d", 1, 0, true, &[vec![add]])];
        answer(chains.to_vec(), vec![set], &masqueraded())
    };
    assert_eq!(kept(&updated(set(4, vec![element(&[10, 0, 2, 2], None)]))), (1, "set that rules update"));
}

#[test]
fn large_sets_are_searched_to_a_limit() {
    let elements: Vec<Element> = (0..1u32 << 18).map(|key| element(&key.to_be_bytes(), None)).collect();
    let finds = rule(&[&[payload(2, 4, 4), lookup(None, false), accept()]]);
    let tells = |rules: usize| {
        let chains = vec![base("c", 2, 0, false, &vec![finds.clone(); rules])];
        match answer(chains, vec![set(4, elements.clone())], &masqueraded()) {
            Answer::Kernel { findings } => findings.iter().any(|finding| finding.why == "too many set elements"),
            other => panic!("{other:?}"),
        }
    };
    assert!(!tells(1));
    assert!(tells(walk::SCANNED / elements.len() + 1));
}

#[test]
fn marks_of_packets_need_not_be_known() {
    let marked = || rule(&[&[load(meta::MARK), is(&0u32.to_ne_bytes()), accept()]]);
    assert_eq!(forward(&[marked()]), ACCEPTED);
    let flow = Flow { skb_mark: None, ..masqueraded() };
    assert_eq!(kept(&answer(vec![base("c", 2, 0, false, &[marked()])], Vec::new(), &flow)).1, "mark");
}

/// A veth whose peer is in the same network namespace leaves packets the socket of their sender until IP receives them.
#[test]
fn owners_of_packets_are_not_known_before_ip_receives_them() {
    let owner = |key| rule(&[&[load(key), is(&1000u32.to_ne_bytes()), drop()]]);
    for key in [meta::SKUID, meta::SKGID, meta::CGROUP] {
        let at = |hook, flow: &Flow| {
            let mut chain = base("c", hook, 0, true, &[owner(key)]);
            chain.base.as_mut().unwrap().devices = vec![IfMatch::Name("p0".into())];
            answer(vec![chain], Vec::new(), flow)
        };
        let paired = Interface { marked: true, ..masqueraded().input.unwrap() };
        let paired = Flow { input: Some(paired), ..masqueraded() };
        assert_eq!(kept(&at(5, &paired)).1, meta::name(key));
        assert_eq!([0, 2, 4].map(|hook| at(hook, &paired)), [ACCEPTED; 3]);
        assert_eq!(at(5, &masqueraded()), ACCEPTED);
        assert!(matches!(at(5, &Flow { input: None, ..masqueraded() }), Answer::Depends { .. }));
    }
}

#[test]
fn zones_may_differ_between_directions() {
    let zone = |direction| Expression::Ct { key: ct::ZONE, direction, register: 0 };
    assert_eq!(forward(&[rule(&[&[zone(None), is(&[0, 0]), accept()]])]), ACCEPTED);
    let of_direction = forward(&[rule(&[&[zone(Some(0)), is(&[0, 0]), accept()]])]);
    assert_eq!(kept(&of_direction).1, "ct zone of a direction");
}

#[test]
fn the_order_of_chains_of_one_priority_is_not_relied_on() {
    let with = |of: [(i32, &Vec<Expression>); 2]| {
        let chain = |((priority, rule), name)| base(name, 2, priority, true, std::slice::from_ref(rule));
        answer(of.into_iter().zip(["c", "d"]).map(chain).collect(), Vec::new(), &masqueraded())
    };
    let (drops, logs, counts) = (vec![drop()], vec![acts("log")], vec![counter()]);
    for (first, second) in [(&drops, &logs), (&logs, &drops)] {
        assert_eq!(kept(&with([(0, first), (0, second)])).1, "log");
    }
    assert!(matches!(with([(0, &drops), (1, &logs)]), Answer::Drop { .. }));
    assert!(matches!(with([(0, &drops), (0, &vec![])]), Answer::Drop { .. }));
    for (first, second) in [(&drops, &counts), (&counts, &drops)] {
        assert!(matches!(with([(0, first), (0, second)]), Answer::Kernel { .. }));
    }
    // A counter before a drop counts every packet, unless some are dropped before.
    let Answer::Drop { counters, .. } = with([(0, &counts), (1, &drops)]) else { panic!() };
    assert_eq!(counters.len(), 1);
    let some = rule(&[&[payload(1, 1, 1), is(&[0]), drop()]]);
    let counted = with([(0, &some), (1, &vec![counter(), drop()])]);
    assert_eq!(kept(&counted).1, "counter of some packets, by an earlier drop");
}

#[test]
fn findings_tell_whether_packets_are_tracked() {
    let tracked = |hook, priority| {
        let chains = vec![base("c", hook, priority, true, &[vec![jump("sub")]]), chain("sub", &[vec![acts("limit")]])];
        match answer(chains, Vec::new(), &masqueraded()) {
            Answer::Kernel { findings } => findings[0].tracked,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([tracked(0, -300), tracked(0, -200), tracked(0, -150), tracked(2, -300)], [false, false, true, true]);
}

#[test]
fn extensions_of_iptables_that_act() {
    let xt = |name: &str, revision, info| Expression::Match { name: name.into(), revision, info };
    // Nothing else depends on whether they match.
    for name in ["recent", "limit", "hashlimit", "quota", "nfacct", "statistic", "connlimit", "set", "connlabel", "bpf"]
    {
        assert_eq!(
            kept(&forward(&[vec![xt(name, 1, vec![0; 64])], vec![accept()]])),
            (1, &*format!("xt match {name}"))
        );
    }
    for name in ["addrtype", "length", "time"] {
        assert_eq!(forward(&[vec![xt(name, 1, vec![0; 64])], vec![accept()]]), ACCEPTED);
    }
    let conntrack = |flags: u16, mask: u16| {
        let mut info = vec![0; 160];
        info[146..148].copy_from_slice(&flags.to_ne_bytes());
        info[150..152].copy_from_slice(&mask.to_ne_bytes());
        vec![xt("conntrack", 3, info), accept()]
    };
    assert_eq!(forward(&[conntrack(1 | 1 << 13, 2)]), ACCEPTED, "written -m state");
    let early = answer(vec![base("c", 0, -300, false, &[conntrack(1, 1 << 6)])], Vec::new(), &masqueraded());
    assert!(matches!(early, Answer::Drop { .. }), "no packet is known to be translated yet");
}

#[test]
fn the_weaker_reason_of_an_extension_is_reported() {
    // The ports are those of the flow, the flags those of the packet.
    let flow = Flow { original: Tuple { src_port: None, ..masqueraded().original }, ..masqueraded() };
    let ports = [0u16, 4000, 0, u16::MAX].map(u16::to_ne_bytes).concat();
    let tcp = Expression::Match { name: "tcp".into(), revision: 0, info: [ports, vec![0, 0x08, 0x08, 0]].concat() };
    let answer = answer(vec![base("c", 2, 0, false, &[vec![tcp, accept()]])], Vec::new(), &flow);
    assert_eq!(kept(&answer).1, "tcp flags");
}

#[test]
fn extensions_of_iptables() {
    let xt = |name: &str, revision, info: Vec<u8>| Expression::Match { name: name.into(), revision, info };
    let passes =
        |of: Expression, flow: &Flow| answer(vec![base("c", 2, 0, false, &[vec![of, accept()]])], Vec::new(), flow);
    let flow = masqueraded();
    let conntrack = |mask: u16, inverted: u16| {
        let mut info = vec![0; 160];
        info[146..148].copy_from_slice(&1u16.to_ne_bytes());
        info[148..150].copy_from_slice(&inverted.to_ne_bytes());
        info[150..152].copy_from_slice(&mask.to_ne_bytes());
        xt("conntrack", 3, info)
    };
    assert_eq!(passes(conntrack(6, 0), &flow), ACCEPTED);
    assert!(matches!(passes(conntrack(6, 1), &flow), Answer::Drop { .. }));
    assert!(matches!(passes(conntrack(8, 0), &flow), Answer::Drop { .. }));
    assert_eq!(passes(conntrack(1 << 6, 0), &flow), ACCEPTED, "SNAT");
    assert!(matches!(passes(conntrack(1 << 7, 0), &flow), Answer::Drop { .. }), "DNAT");
    let ports = |ports: [u16; 4], rest: &[u8]| [ports.map(u16::to_ne_bytes).concat(), rest.to_vec()].concat();
    let any = u16::MAX;
    assert_eq!(passes(xt("tcp", 0, ports([0, any, 80, 80], &[0; 4])), &flow), ACCEPTED);
    assert!(matches!(passes(xt("tcp", 0, ports([0, any, 80, 80], &[0, 0, 0, 2])), &flow), Answer::Drop { .. }));
    assert!(matches!(passes(xt("tcp", 0, ports([0, any, 81, 90], &[0; 4])), &flow), Answer::Drop { .. }));
    assert!(matches!(passes(xt("tcp", 0, ports([0, any, 0, any], &[0, 2, 2, 0])), &flow), Answer::Drop { .. }), "SYN");
    assert!(matches!(passes(xt("tcp", 0, ports([0, any, 0, any], &[5, 0, 0, 0])), &flow), Answer::Kernel { .. }));
    let udp = Flow { protocol: 17, ..flow.clone() };
    assert_eq!(passes(xt("udp", 0, ports([0, any, 80, 80], &[0; 2])), &udp), ACCEPTED);
    let multiport = |inverted: u8| {
        let mut info = vec![0; 48];
        info[..2].copy_from_slice(&[1, 3]);
        for (at, port) in [53u16, 70, 90].iter().enumerate() {
            info[2 + 2 * at..4 + 2 * at].copy_from_slice(&port.to_ne_bytes());
        }
        (info[33], info[47]) = (1, inverted);
        xt("multiport", 1, info)
    };
    assert_eq!(passes(multiport(0), &flow), ACCEPTED);
    assert!(matches!(passes(multiport(1), &flow), Answer::Drop { .. }));
    assert_eq!(passes(xt("comment", 0, vec![]), &flow), ACCEPTED);
    assert_eq!(kept(&passes(xt("addrtype", 1, vec![0; 8]), &flow)).1, "addrtype");
    for name in ["conntrack", "tcp", "udp", "multiport", "mark"] {
        for revision in 0..4 {
            let _ = passes(xt(name, revision, vec![0; 7]), &flow);
        }
    }
}
