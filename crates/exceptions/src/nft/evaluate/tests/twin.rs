//! The evaluation against a naive interpreter of rules that is given whole packets, one after the other.

use super::*;
use proptest::prelude::*;
use std::net::IpAddr;

/// A packet at a hook.
struct Packet {
    hook: Hook,
    network: Vec<u8>,
    transport: Vec<u8>,
    input: Interface,
    /// `None` before routing.
    output: Option<Interface>,
    /// Established, or without a connection.
    tracked: bool,
}

/// Properties that packets of a flow differ in.
#[derive(Clone, Copy, Debug)]
struct Differs {
    dscp: u8,
    ttl: u8,
    flags: u8,
    window: u16,
    /// Set if chains of the priority of connection tracking, and of translation, run behind it.
    behind: bool,
}

const HOOKS: [(Hook, u32); 3] = [(Hook::Prerouting, 0), (Hook::Forward, 2), (Hook::Postrouting, 4)];

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

/// Returns the packet of a fully known IPv4 flow at a hook and priority.
fn packet(flow: &Flow, differs: Differs, hook: Hook, priority: i32) -> Packet {
    let after = |limit: i32| priority > limit || priority == limit && differs.behind;
    let (own, other) = if flow.replies.unwrap() { (flow.reply, flow.original) } else { (flow.original, flow.reply) };
    let (mut src, mut dst) = ((own.src, own.src_port), (own.dst, own.dst_port));
    if hook > Hook::Prerouting || after(-100) {
        dst = (other.src, other.src_port);
    }
    if hook == Hook::Postrouting && after(100) {
        src = (other.dst, other.dst_port);
    }
    let mut network = vec![0x45, differs.dscp, 0, 60, 1, 2, 0, 0, differs.ttl, flow.protocol, 3, 4];
    network.extend([octets(src.0.unwrap()), octets(dst.0.unwrap())].concat());
    let mut transport = [src.1.unwrap().to_be_bytes(), dst.1.unwrap().to_be_bytes()].concat();
    transport.resize(if flow.protocol == 6 { 20 } else { 8 }, 7);
    if flow.protocol == 6 {
        transport[13] = differs.flags & !0x07 | 0x10;
        transport[14..16].copy_from_slice(&differs.window.to_be_bytes());
    }
    Packet {
        hook,
        network,
        transport,
        input: flow.input.clone().unwrap(),
        output: flow.output.clone().filter(|_| hook != Hook::Prerouting),
        tracked: hook != Hook::Prerouting || after(-200),
    }
}

/// Result of a chain or of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Accepted,
    Dropped,
    /// A chain ended.
    Through,
    /// A rule had a side effect.
    Acted,
}

struct Twin<'a> {
    table: &'a Table,
    flow: &'a Flow,
    packet: Packet,
    registers: [u8; 64],
    counters: Vec<u64>,
}

impl Twin<'_> {
    fn chain(&mut self, name: &str, depth: usize) -> Fate {
        let Some(chain) = self.table.chains.iter().find(|chain| chain.name == name) else { return Fate::Acted };
        if depth > 16 {
            return Fate::Acted;
        }
        'rules: for rule in &chain.rules {
            for expression in &rule.expressions {
                let mut verdict = None;
                let goes_on = match expression {
                    Expression::Verdict(of) => {
                        verdict = Some(of.clone());
                        true
                    }
                    Expression::Acts { .. } => return Fate::Acted,
                    Expression::Counter { .. } => {
                        self.counters.push(rule.handle);
                        true
                    }
                    Expression::Lookup { set, key, data, invert } => {
                        let set = self.table.sets.iter().find(|other| other.name == *set).unwrap();
                        let key = self.registers[*key..key + set.key_len].to_vec();
                        let found = find(set, &key);
                        if let (Some(Data::Verdict(of)), Some(To::Verdict)) =
                            (found.and_then(|element| element.data.as_ref()), data)
                        {
                            verdict = Some(of.clone());
                        }
                        found.is_some() != *invert
                    }
                    other => self.reads(other),
                };
                if !goes_on {
                    continue 'rules;
                }
                match verdict {
                    None | Some(Verdict::Continue) => {}
                    Some(Verdict::Break) => continue 'rules,
                    Some(Verdict::Accept) => return Fate::Accepted,
                    Some(Verdict::Drop) => return Fate::Dropped,
                    Some(Verdict::Return) => return Fate::Through,
                    Some(Verdict::Goto(name)) => return self.chain(&name, depth + 1),
                    Some(Verdict::Jump(name)) => match self.chain(&name, depth + 1) {
                        Fate::Through => continue 'rules,
                        fate => return fate,
                    },
                    Some(Verdict::Other(_)) => return Fate::Acted,
                }
            }
        }
        Fate::Through
    }

    fn reads(&mut self, expression: &Expression) -> bool {
        let word = |number: u32| Some(number.to_ne_bytes().to_vec());
        let name = |interface: Option<&Interface>| {
            let mut name = interface.map_or(Vec::new(), |interface| interface.name.clone().into_bytes());
            name.resize(16, 0);
            Some(name)
        };
        let (packet, flow) = (&self.packet, self.flow);
        let (register, value) = match expression {
            Expression::Meta { key, register } => (
                *register,
                match *key {
                    meta::IIF => word(packet.input.index),
                    meta::OIF => word(packet.output.as_ref().map_or(0, |interface| interface.index)),
                    meta::IIFNAME => name(Some(&packet.input)),
                    meta::OIFNAME => name(packet.output.as_ref()),
                    meta::L4PROTO => Some(vec![flow.protocol, 0, 0, 0]),
                    meta::NFPROTO => Some(vec![2, 0, 0, 0]),
                    meta::MARK => word(0),
                    meta::SKUID => None,
                    other => panic!("{other}"),
                },
            ),
            Expression::Payload { base, offset, len, register } => {
                let header = if *base == 1 { &packet.network } else { &packet.transport };
                let value = header.get(*offset as usize..(offset + len) as usize).map(|octets| {
                    let mut octets = octets.to_vec();
                    octets.resize(octets.len().next_multiple_of(4), 0);
                    octets
                });
                (*register, value)
            }
            Expression::Ct { key, register, .. } => (
                *register,
                match (*key, packet.tracked) {
                    (ct::STATE, tracked) => word(if tracked { 2 } else { 1 }),
                    (_, false) => None,
                    (ct::DIRECTION, _) => Some(vec![u8::from(flow.replies.unwrap()), 0, 0, 0]),
                    (ct::STATUS, _) => word(flow.status.unwrap()),
                    (ct::MARK, _) => word(flow.mark.unwrap()),
                    (other, _) => panic!("{other}"),
                },
            ),
            Expression::Compare { register, by, value } => {
                let octets = &self.registers[*register..register + value.len()];
                return match by {
                    Comparison::Equal => octets == value,
                    Comparison::NotEqual => octets != value,
                    Comparison::Less => octets < value,
                    Comparison::LessOrEqual => octets <= value,
                    Comparison::Greater => octets > value,
                    Comparison::GreaterOrEqual => octets >= value,
                };
            }
            Expression::Range { register, inside, from, to } => {
                let octets = &self.registers[*register..register + from.len()];
                return (octets >= from && octets <= to) == *inside;
            }
            Expression::Bitwise { from, to, mask, xor } => {
                let octets = self.registers[*from..from + mask.len()].iter().zip(mask).zip(xor);
                (*to, Some(octets.map(|((octet, mask), xor)| octet & mask ^ xor).collect()))
            }
            Expression::ByteOrder { from, to, len, size } => {
                let octets = &self.registers[*from..from + len];
                let swapped = octets.chunks(*size).flat_map(|number| number.iter().rev().copied());
                (*to, Some(if cfg!(target_endian = "little") { swapped.collect() } else { octets.to_vec() }))
            }
            other => panic!("{other:?}"),
        };
        match value {
            Some(value) => {
                self.registers[register..register + value.len()].copy_from_slice(&value);
                true
            }
            None => false,
        }
    }
}

/// Finds an element by comparing with one after the other.
fn find<'a>(set: &'a Set, key: &[u8]) -> Option<&'a Element> {
    let elements = set.elements.as_ref().unwrap();
    let found =
        elements.iter().enumerate().filter(|(_, element)| !element.ends && !element.catch_all).find(|(at, e)| {
            let last = e.to.as_ref().unwrap_or(&e.key);
            match (set.interval, set.fields.is_empty()) {
                (false, _) => e.key == key,
                (true, true) => {
                    e.key.as_slice() <= key && elements.get(at + 1).is_none_or(|next| key < next.key.as_slice())
                }
                (true, false) => (0..key.len()).step_by(4).all(|start| {
                    let word = start..start + 4;
                    key[word.clone()] >= e.key[word.clone()] && key[word.clone()] <= last[word]
                }),
            }
        });
    found.map(|(_, element)| element).or_else(|| elements.iter().find(|element| element.catch_all))
}

/// Runs a packet through all hooks. Returns its fate and the rules that have counted it.
fn fate(ruleset: &Ruleset, flow: &Flow, differs: Differs) -> (Fate, Vec<u64>) {
    let mut counters = Vec::new();
    let table = &ruleset.tables[0];
    for (hook, number) in HOOKS {
        let of = |chain: &&Chain| chain.base.as_ref().is_some_and(|base| base.hook == number);
        let mut chains: Vec<&Chain> = table.chains.iter().filter(of).collect();
        chains.reverse();
        chains.sort_by_key(|chain| chain.base.as_ref().unwrap().priority);
        for chain in chains {
            let base = chain.base.as_ref().unwrap();
            let packet = packet(flow, differs, hook, base.priority);
            let mut twin = Twin { table, flow, packet, registers: [0; 64], counters: Vec::new() };
            let fate = twin.chain(&chain.name, 0);
            assert_eq!(twin.packet.hook, hook);
            counters.extend(twin.counters);
            match fate {
                Fate::Through if !base.accepts => return (Fate::Dropped, counters),
                Fate::Through | Fate::Accepted => {}
                fate => return (fate, counters),
            }
        }
    }
    (Fate::Accepted, counters)
}

fn pick<T: Clone + std::fmt::Debug + 'static>(of: &[T]) -> impl Strategy<Value = T> + use<T> {
    prop::sample::select(of.to_vec())
}

const ADDRESSES: [[u8; 4]; 4] = [[10, 0, 1, 2], [10, 0, 2, 2], [192, 0, 2, 1], [10, 0, 2, 9]];
const PORTS: [u16; 4] = [80, 4000, 5000, 53];

fn any_flow() -> impl Strategy<Value = Flow> {
    let side = || (pick(&ADDRESSES), pick(&PORTS));
    let tuple = |(src, src_port): ([u8; 4], u16), (dst, dst_port): ([u8; 4], u16)| Tuple {
        src: Some(src.into()),
        dst: Some(dst.into()),
        src_port: Some(src_port),
        dst_port: Some(dst_port),
    };
    (side(), side(), side(), side(), pick(&[6, 17]), any::<bool>(), pick(&[0x0e, 0x19e, 0x1ae]), pick(&[0, 1]))
        .prop_map(move |(a, b, c, d, protocol, replies, status, mark)| Flow {
            protocol,
            original: tuple(a, b),
            reply: tuple(c, d),
            replies: Some(replies),
            status: Some(status),
            mark: Some(mark),
            ..masqueraded()
        })
}

/// Returns a flow of which some properties are forgotten.
fn forgetting(flow: &Flow, what: u8) -> Flow {
    let mut flow = flow.clone();
    let bit = |bit: u8| what & 1 << bit != 0;
    flow.input = flow.input.filter(|_| bit(0));
    flow.output = flow.output.filter(|_| bit(1));
    flow.replies = flow.replies.filter(|_| bit(2));
    flow.status = flow.status.filter(|_| bit(3));
    flow.mark = flow.mark.filter(|_| bit(4));
    for tuple in [&mut flow.original, &mut flow.reply] {
        tuple.src = tuple.src.filter(|_| bit(5));
        tuple.dst = tuple.dst.filter(|_| bit(6));
        tuple.dst_port = tuple.dst_port.filter(|_| bit(7));
    }
    flow
}

fn any_compare() -> impl Strategy<Value = Comparison> {
    use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    pick(&[Equal, Equal, Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual])
}

/// A match: loads, and comparisons of what was loaded.
fn any_match() -> impl Strategy<Value = Vec<Expression>> {
    let with = |load: Expression| {
        move |(by, value): (Comparison, Vec<u8>)| vec![load.clone(), Expression::Compare { register: 0, by, value }]
    };
    let words = |of: &[u32]| pick(&of.iter().map(|n| n.to_ne_bytes().to_vec()).collect::<Vec<_>>());
    let name = || pick(&[b"p0".to_vec(), b"p1\0".to_vec(), b"p".to_vec(), b"x\0".to_vec()]);
    let address = || pick(&ADDRESSES).prop_map(|octets| octets.to_vec());
    let port = || pick(&PORTS).prop_map(|port| port.to_be_bytes().to_vec());
    let ct = |key| Expression::Ct { key, direction: None, register: 0 };
    let masked = (pick(&[(1u32, 13u32, 2u32), (1, 1, 1), (1, 6, 1)]), any::<u8>(), any::<bool>());
    let masked = masked.prop_map(|((_, offset, base), bits, not)| {
        let by = if not { Comparison::NotEqual } else { Comparison::Equal };
        vec![payload(base, offset, 1), mask(&[bits]), Expression::Compare { register: 0, by, value: vec![0] }]
    });
    let range = (port(), port(), any::<bool>(), pick(&[0, 2])).prop_map(|(from, to, inside, offset)| {
        vec![payload(2, offset, 2), Expression::Range { register: 0, inside, from, to }]
    });
    let marks = (any_compare(), 0u8..3).prop_map(move |(by, value)| {
        let order = Expression::ByteOrder { from: 0, to: 0, len: 4, size: 4 };
        vec![ct(ct::MARK), order, Expression::Compare { register: 0, by, value: vec![0, 0, 0, value] }]
    });
    let set = pick(&["plain", "interval"]).prop_flat_map(|set| (Just(set), any::<bool>(), pick(&[0, 2, 14])));
    let set = set.prop_map(|(set, invert, offset)| {
        vec![payload(2, offset, 2), Expression::Lookup { set: set.into(), key: 0, data: None, invert }]
    });
    let concat = any::<bool>().prop_map(|invert| {
        let port = Expression::Payload { base: 2, offset: 2, len: 2, register: 4 };
        vec![payload(1, 16, 4), port, Expression::Lookup { set: "concat".into(), key: 0, data: None, invert }]
    });
    prop_oneof![
        2 => (any_compare(), name()).prop_map(with(load(meta::IIFNAME))),
        1 => (any_compare(), name()).prop_map(with(load(meta::OIFNAME))),
        1 => (any_compare(), words(&[0, 2, 3])).prop_map(with(load(meta::OIF))),
        1 => (any_compare(), pick(&[vec![6u8], vec![17]])).prop_map(with(load(meta::L4PROTO))),
        1 => (any_compare(), words(&[0])).prop_map(with(load(meta::MARK))),
        1 => (any_compare(), words(&[0])).prop_map(with(load(meta::SKUID))),
        2 => (any_compare(), address()).prop_map(with(payload(1, 12, 4))),
        2 => (any_compare(), address()).prop_map(with(payload(1, 16, 4))),
        2 => (any_compare(), port()).prop_map(with(payload(2, 2, 2))),
        1 => (any_compare(), pick(&[vec![0u8], vec![64]])).prop_map(with(payload(1, 8, 1))),
        1 => (any_compare(), words(&[0x0e, 0x19e])).prop_map(with(ct(ct::STATUS))),
        1 => (any_compare(), pick(&[vec![0u8], vec![1]])).prop_map(with(ct(ct::DIRECTION))),
        4 => pick(&[1u32, 2, 6, 8]).prop_map(state),
        3 => masked,
        2 => range,
        1 => marks,
        3 => set,
        2 => concat,
    ]
}

fn any_rule() -> impl Strategy<Value = Vec<Expression>> {
    // At the end of the rule, or before another verdict.
    let behind = pick(&[vec![], vec![accept()], vec![drop()], vec![counter(), drop()]]);
    let vmap = (pick(&[0, 2, 14, 14]), behind).prop_map(|(offset, behind)| {
        let lookup = Expression::Lookup { set: "map".into(), key: 0, data: Some(To::Verdict), invert: false };
        [vec![payload(2, offset, 2), lookup], behind].concat()
    });
    let verdict = prop_oneof![
        5 => Just(vec![accept()]),
        2 => Just(vec![drop()]),
        1 => Just(vec![Expression::Verdict(Verdict::Return)]),
        1 => Just(vec![acts("log"), accept()]),
        3 => pick(&["a", "b"]).prop_map(|name| vec![jump(name)]),
        1 => pick(&["a", "b"]).prop_map(|name| vec![goto(name)]),
        1 => Just(vec![]),
        2 => vmap,
    ];
    (prop::collection::vec(any_match(), 0..3), prop::bool::weighted(0.2), verdict).prop_map(
        |(matches, counts, verdict)| {
            let counter = counts.then(counter).into_iter().collect();
            [matches.concat(), counter, verdict].concat()
        },
    )
}

fn any_sets() -> impl Strategy<Value = Vec<Set>> {
    let key = |port: u16| port.to_be_bytes().to_vec();
    let ports = prop::collection::btree_set(pick(&PORTS), 0..3);
    let verdict =
        pick(&[Verdict::Accept, Verdict::Drop, Verdict::Jump("b".into()), Verdict::Return, Verdict::Continue]);
    let map = prop::collection::btree_map(pick(&PORTS), verdict, 0..3);
    let ends = prop::collection::btree_map(0u16..6000, any::<bool>(), 0..5);
    let concat = prop::collection::vec((pick(&ADDRESSES), pick(&PORTS), 0u16..50), 0..3);
    (ports, map, ends, concat, any::<bool>()).prop_map(move |(ports, map, ends, concat, rest)| {
        let named = |name: &str, set: Set| Set { name: name.into(), ..set };
        let mut of_map: Vec<Element> = map.iter().map(|(port, to)| element(&key(*port), Some(to.clone()))).collect();
        if rest {
            of_map.push(Element { catch_all: true, ..element(&[], Some(Verdict::Accept)) });
        }
        let intervals = ends.iter().map(|(port, ends)| Element { ends: *ends, ..element(&key(*port), None) });
        let joined = |(addr, port, more): &([u8; 4], u16, u16)| {
            let of = |port: u16| [&addr[..], &port.to_be_bytes(), &[0, 0]].concat();
            Element { to: Some(of(port + more)), ..element(&of(*port), None) }
        };
        let mut sets = vec![
            named("plain", set(2, ports.iter().map(|port| element(&key(*port), None)).collect())),
            named("map", set(2, of_map)),
            named("interval", Set { interval: true, ..set(2, intervals.collect()) }),
        ];
        let concat: Vec<Element> = concat.iter().map(joined).collect();
        sets.push(named("concat", Set { interval: true, fields: vec![4, 2], ..set(8, concat) }));
        for set in &mut sets {
            Set::sort(set.elements.as_mut().unwrap());
        }
        sets
    })
}

fn any_ruleset() -> impl Strategy<Value = Ruleset> {
    let rules = || prop::collection::vec(any_rule(), 0..4);
    let hooked =
        (pick(&[0u32, 2, 2, 4]), pick(&[-300, -200, -150, -100, 0, 100, 150]), prop::bool::weighted(0.7), rules());
    let chains = prop::collection::vec(hooked, 1..4);
    (chains, rules(), rules(), any_sets()).prop_map(|(hooked, a, b, sets)| {
        let mut chains: Vec<Chain> = (0..)
            .zip(&hooked)
            .map(|(n, (hook, priority, accepts, rules))| base(&format!("base{n}"), *hook, *priority, *accepts, rules))
            .collect();
        // Only jumps from a to b end.
        let leaf: Vec<Vec<Expression>> = b
            .into_iter()
            .map(|rule| {
                let jumps = |e: &Expression| {
                    matches!(e, Expression::Verdict(Verdict::Jump(_) | Verdict::Goto(_)))
                        || matches!(e, Expression::Lookup { data: Some(_), .. })
                };
                rule.into_iter().filter(|expression| !jumps(expression)).collect()
            })
            .collect();
        let inner = a
            .into_iter()
            .map(|rule| {
                rule.into_iter()
                    .map(|expression| match expression {
                        Expression::Verdict(Verdict::Jump(_)) => jump("b"),
                        Expression::Verdict(Verdict::Goto(_)) => goto("b"),
                        other => other,
                    })
                    .collect()
            })
            .collect::<Vec<_>>();
        chains.extend([chain("a", &inner), chain("b", &leaf)]);
        // A handle is unique in its table.
        for (handle, rule) in (1..).zip(chains.iter_mut().flat_map(|chain| &mut chain.rules)) {
            rule.handle = handle;
        }
        ruleset(table(Family::Ip, chains, sets))
    })
}

fn any_packet() -> impl Strategy<Value = Differs> {
    let bits = (any::<u8>(), any::<u8>(), any::<u8>());
    (bits, pick(&PORTS), any::<bool>()).prop_map(|((dscp, ttl, flags), window, behind)| Differs {
        dscp,
        ttl,
        flags,
        window,
        behind,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// The answer holds for every packet of every flow that is meant.
    #[test]
    fn answers_hold_for_every_packet(
        ruleset in any_ruleset(),
        flow in any_flow(),
        packets in prop::collection::vec(any_packet(), 8),
        known in prop_oneof![Just(0xff), any::<u8>()],
    ) {
        let answer = Evaluator::new(&ruleset).evaluate(&forgetting(&flow, known));
        for differs in packets {
            let (fate, counted) = fate(&ruleset, &flow, differs);
            match &answer {
                Answer::Accept { counters, .. } => {
                    prop_assert_eq!(fate, Fate::Accepted);
                    let told: Vec<u64> = counters.iter().map(|counter| counter.place.rule.unwrap()).collect();
                    match known {
                        0xff => prop_assert_eq!(told, counted),
                        _ => prop_assert!(told.iter().all(|rule| counted.contains(rule))),
                    }
                }
                Answer::Drop { counters, .. } => {
                    prop_assert_eq!(fate, Fate::Dropped);
                    let told: Vec<u64> = counters.iter().map(|counter| counter.place.rule.unwrap()).collect();
                    match known {
                        0xff => prop_assert_eq!(told, counted),
                        _ => prop_assert!(told.iter().all(|rule| counted.contains(rule))),
                    }
                }
                Answer::Kernel { findings } => prop_assert!(!findings.is_empty()),
                Answer::Depends { findings } => {
                    prop_assert!(!findings.is_empty() && known != 0xff);
                }
            }
        }
    }
}

/// Most random flows are told a verdict, else the property above would hold for nothing.
#[test]
fn most_answers_are_verdicts() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut accepted, mut dropped) = (0, 0);
    for _ in 0..1000 {
        let ruleset = any_ruleset().new_tree(&mut runner).unwrap().current();
        let flow = any_flow().new_tree(&mut runner).unwrap().current();
        match Evaluator::new(&ruleset).evaluate(&flow) {
            Answer::Accept { .. } => accepted += 1,
            Answer::Drop { .. } => dropped += 1,
            _ => {}
        }
    }
    assert!(accepted > 250 && dropped > 150, "{accepted} accepted, {dropped} dropped");
}
