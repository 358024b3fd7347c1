use super::expression::*;
use super::set::*;
use super::*;
use crate::nft::expression::To;
use crate::nft::{Comparison, Data, Element, Set, Verdict, meta};
use bywash_nl::wire::attribute;
use proptest::prelude::*;

fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

fn element(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
    let name = attribute(NFTA_EXPR_NAME, format!("{name}\0").as_bytes());
    [name, attribute(NFTA_EXPR_DATA, &data.concat())].concat()
}

fn read(name: &str, data: &[Vec<u8>]) -> Expression {
    expression(&element(name, data))
}

fn chain_of(hook: &[Vec<u8>], more: &[Vec<u8>]) -> Chain {
    let mut body = vec![2, 0, 0, 0];
    body.extend(attribute(NFTA_CHAIN_TABLE, b"t\0"));
    body.extend(attribute(NFTA_CHAIN_NAME, b"c\0"));
    body.extend(attribute(NFTA_CHAIN_HOOK, &hook.concat()));
    body.extend(number(NFTA_CHAIN_POLICY, 1));
    body.extend(attribute(NFTA_CHAIN_TYPE, b"filter\0"));
    body.extend(more.concat());
    chain(&body).unwrap().object
}

#[test]
fn what_only_reads_does_nothing_else() {
    let dreg = number(DREG, 1);
    let load = |key, register| Expression::Meta { key, register };
    assert_eq!(read("meta", &[dreg.clone(), number(NFTA_META_KEY, 3)]), load(meta::MARK, 0));
    assert_eq!(read("meta", &[number(DREG, 2), number(NFTA_META_KEY, 6)]), load(meta::IIFNAME, 16));
    assert_eq!(read("meta", &[number(DREG, 9), number(NFTA_META_KEY, 6)]), load(meta::IIFNAME, 4));
    let reads = |name: &str, register| Expression::Reads { how: name.into(), register };
    assert_eq!(read("payload", std::slice::from_ref(&dreg)), reads("payload", Some(0)));
    assert_eq!(read("exthdr", std::slice::from_ref(&dreg)), reads("exthdr", Some(0)));
    assert_eq!(read("fib", std::slice::from_ref(&dreg)), reads("fib", None));
    let value = attribute(NFTA_CMP_DATA, &attribute(NFTA_DATA_VALUE, b"p0\0"));
    let cmp = |operation| read("cmp", &[number(SREG, 1), number(NFTA_CMP_OP, operation), value.clone()]);
    let compare = |by| Expression::Compare { register: 0, by, value: b"p0\0".to_vec() };
    assert_eq!(cmp(0), compare(Comparison::Equal));
    assert_eq!(cmp(1), compare(Comparison::NotEqual));
    assert_eq!(cmp(5), compare(Comparison::GreaterOrEqual));
    assert_eq!(cmp(6), reads("cmp", None));
    let place = [(NFTA_PAYLOAD_BASE, 1), (NFTA_PAYLOAD_OFFSET, 12), (NFTA_PAYLOAD_LEN, 4)];
    let place: Vec<Vec<u8>> = place.iter().map(|(kind, value)| number(*kind, *value)).chain([dreg.clone()]).collect();
    assert_eq!(read("payload", &place), Expression::Payload { base: 1, offset: 12, len: 4, register: 0 });
    let ct = [dreg.clone(), number(NFTA_CT_KEY, 8), attribute(NFTA_CT_DIRECTION, &[1])];
    assert_eq!(read("ct", &ct), Expression::Ct { key: 8, direction: Some(1), register: 0 });
}

#[test]
fn a_hook_that_no_chain_of_the_family_has_is_not_understood() {
    assert_eq!(chain_of(&[number(NFTA_HOOK_HOOKNUM, 4)], &[]).opaque, None);
    assert!(chain_of(&[number(NFTA_HOOK_HOOKNUM, 5)], &[]).opaque.is_some());
    assert!(chain_of(&[], &[]).opaque.is_some());
}

#[test]
fn what_writes_or_is_unknown_acts() {
    let written = |name, sreg| {
        let read = read(name, &[number(DREG, 1), number(sreg, 1)]);
        assert!(matches!(read, Expression::Acts { tracking: Tracking::No, .. }), "{read:?}");
    };
    written("meta", NFTA_META_SREG);
    written("payload", NFTA_PAYLOAD_SREG);
    written("exthdr", NFTA_EXTHDR_SREG);
    let sets = |key| read("ct", &[number(NFTA_CT_KEY, key), number(4, 1)]);
    for (key, name) in [(3, "ct mark set"), (13, "ct label set"), (17, "ct zone set"), (18, "ct event set")] {
        assert_eq!(sets(key), Expression::Acts { how: name.into(), tracking: Tracking::TurnsOn });
    }
    assert!(matches!(sets(99), Expression::Acts { how, .. } if how == "unknown expression ct"));
    // An expression with neither register removes the option.
    assert!(matches!(read("exthdr", &[]), Expression::Acts { .. }));
    let all = [
        read("cmp", &[number(9, 0)]),
        read("ct", &[number(NFTA_CT_KEY, 3), number(4, 1)]),
        read("brandnew", &[]),
        expression(&[]),
        expression(&attribute(7, &[])),
    ];
    for read in all {
        assert!(matches!(read, Expression::Acts { tracking: Tracking::TurnsOn, .. }), "{read:?}");
    }
}

#[test]
fn verdicts() {
    let verdict = |code: i32, chain: Option<&str>| {
        let mut parts = number(NFTA_VERDICT_CODE, code as u32);
        parts.extend(chain.map(|chain| attribute(NFTA_VERDICT_CHAIN, chain.as_bytes())).unwrap_or_default());
        let data = attribute(NFTA_IMMEDIATE_DATA, &attribute(NFTA_DATA_VERDICT, &parts));
        read("immediate", &[number(DREG, NFT_REG_VERDICT), data])
    };
    let plain = [
        (0, Verdict::Drop),
        (1, Verdict::Accept),
        (-1, Verdict::Continue),
        (-2, Verdict::Break),
        (-5, Verdict::Return),
    ];
    for (code, wanted) in plain {
        assert_eq!(verdict(code, None), Expression::Verdict(wanted));
    }
    assert_eq!(verdict(-3, Some("x\0")), Expression::Verdict(Verdict::Jump("x".into())));
    assert_eq!(verdict(-4, Some("x\0")), Expression::Verdict(Verdict::Goto("x".into())));
    for code in [2, 3, 4, -3, -6, 0x10000] {
        assert!(matches!(verdict(code, None), Expression::Verdict(Verdict::Other(_))), "{code}");
    }
    assert!(matches!(read("immediate", &[number(DREG, 0)]), Expression::Acts { .. }));
    let data = attribute(NFTA_IMMEDIATE_DATA, &attribute(NFTA_DATA_VALUE, &[7; 4]));
    let copied = read("immediate", &[number(DREG, 1), data]);
    assert_eq!(copied, Expression::Immediate { register: 0, value: vec![7; 4] });
}

#[test]
fn devices_are_names_or_their_beginnings() {
    let devices = |list: &[Vec<u8>]| {
        let hook = [number(NFTA_HOOK_HOOKNUM, 0), attribute(NFTA_HOOK_DEVS, &list.concat())];
        let chain = chain_of(&hook, &[]);
        (chain.opaque.is_some(), chain.base.unwrap().devices)
    };
    let name = |name: &str| IfMatch::Name(name.into());
    let prefix = |name: &str| IfMatch::Prefix(name.into());
    assert_eq!(devices(&[attribute(1, b"p1\0"), attribute(1, b"p0\0")]), (false, vec![name("p0"), name("p1")]));
    // Linux 6.16 does not terminate a prefix; 6.18 has an attribute for it.
    assert_eq!(devices(&[attribute(1, b"eth")]), (false, vec![prefix("eth")]));
    assert_eq!(devices(&[attribute(2, b"eth\0")]), (false, vec![prefix("eth")]));
    assert!(devices(&[attribute(3, b"eth\0")]).0);
    let single = chain_of(&[number(NFTA_HOOK_HOOKNUM, 0), attribute(NFTA_HOOK_DEV, b"p0\0")], &[]);
    assert_eq!(single.base.unwrap().devices, [name("p0")]);
}

#[test]
fn a_chain_with_anything_unknown_is_opaque() {
    let hook = [number(NFTA_HOOK_HOOKNUM, 2), number(NFTA_HOOK_PRIORITY, 0)];
    assert_eq!(chain_of(&hook, &[]).opaque, None);
    for more in [number(NFTA_CHAIN_USERDATA + 1, 0), number(NFTA_CHAIN_FLAGS, 8), attribute(NFTA_CHAIN_TYPE, b"new\0")]
    {
        assert!(chain_of(&hook, &[more]).opaque.is_some());
    }
    assert!(chain_of(&[number(9, 0)], &[]).opaque.is_some());
}

#[test]
fn objects_and_sets_that_track_are_reported() {
    let object_of = |kind| {
        let parts = [attribute(NFTA_OBJ_TABLE, b"t\0"), attribute(NFTA_OBJ_NAME, b"x\0"), number(NFTA_OBJ_TYPE, kind)];
        object(&[vec![1, 0, 0, 0], parts.concat()].concat()).unwrap().object
    };
    assert_eq!(object_of(1), None);
    assert_eq!(object_of(3).unwrap(), "ct helper x");
    assert_eq!(object_of(99).unwrap(), "unknown object x");
    let set_of = |more: Vec<u8>| {
        let parts = [attribute(NFTA_SET_TABLE, b"t\0"), attribute(NFTA_SET_NAME, b"s\0"), more];
        set(&[vec![1, 0, 0, 0], parts.concat()].concat()).unwrap().object.1
    };
    assert!(!set_of(vec![]));
    assert!(!set_of(attribute(NFTA_SET_EXPR, &element("counter", &[]))));
    assert!(set_of(attribute(NFTA_SET_EXPR, &element("connlimit", &[]))));
    let several = attribute(NFTA_LIST_ELEM, &element("connlimit", &[]));
    assert!(set_of(attribute(NFTA_SET_EXPRESSIONS, &several)));
}

#[test]
fn a_set_with_anything_unknown_is_opaque() {
    let set_of = |more: Vec<u8>| {
        let key = number(NFTA_SET_KEY_LEN, 4);
        let parts = [attribute(NFTA_SET_TABLE, b"t\0"), attribute(NFTA_SET_NAME, b"s\0"), key, more];
        set(&[vec![1, 0, 0, 0], parts.concat()].concat()).unwrap().object.0
    };
    let plain = Set { name: "s".into(), key_len: 4, ..Set::default() };
    assert_eq!(set_of(vec![]), plain);
    assert_eq!(set_of(number(NFTA_SET_FLAGS, 4)), Set { interval: true, ..plain.clone() });
    assert_eq!(set_of(number(NFTA_SET_FLAGS, 0x30)).volatile, Some("flags dynamic"));
    assert!(set_of(number(NFTA_SET_FLAGS, 0x84)).opaque.is_some(), "no fields are given");
    assert!(set_of(number(NFTA_SET_FLAGS, 0x1000)).opaque.is_some());
    assert!(set_of(number(99, 0)).opaque.is_some());
    assert_eq!(set_of(attribute(NFTA_SET_EXPR, &element("quota", &[]))).acts.as_deref(), Some("quota"));
}

#[test]
fn elements_have_keys_and_data() {
    let value = |kind, value: &[u8]| attribute(kind, &attribute(NFTA_DATA_VALUE, value));
    let list = |of: &[Vec<Vec<u8>>]| {
        let items: Vec<u8> = of.iter().flat_map(|parts| attribute(NFTA_LIST_ELEM, &parts.concat())).collect();
        let parts = [attribute(1, b"t\0"), attribute(2, b"s\0"), attribute(3, &items)];
        elements(&[vec![1, 0, 0, 0], parts.concat()].concat()).map(|of| of.object.1)
    };
    let plain = Element { key: vec![1, 2], ..Element::default() };
    let drop = attribute(2, &attribute(NFTA_DATA_VERDICT, &number(NFTA_VERDICT_CODE, 0)));
    let counter = attribute(7, &element("counter", &[]));
    let found = list(&[
        vec![value(1, &[1, 2])],
        vec![value(1, &[1, 2]), value(10, &[1, 9])],
        vec![value(1, &[1, 2]), drop, attribute(4, &[0; 8])],
        vec![number(3, 2), counter],
        vec![value(1, &[1, 2]), number(3, 1)],
        vec![value(1, &[1, 2]), attribute(9, b"object\0")],
    ]);
    let found = found.unwrap();
    assert_eq!(found[0], plain);
    assert_eq!(found[1], Element { to: Some(vec![1, 9]), ..plain.clone() });
    assert_eq!(found[2], Element { data: Some(Data::Verdict(Verdict::Drop)), expires: true, ..plain.clone() });
    assert_eq!(found[3], Element { catch_all: true, acts: Some("counter".into()), ..Element::default() });
    assert_eq!(found[4], Element { ends: true, ..plain.clone() });
    assert!(found[5].acts.is_some());
    assert_eq!(list(&[vec![number(3, 0)]]), None, "no key");
}

#[test]
fn updates_name_their_set() {
    let name = attribute(NFTA_DYNSET_SET_NAME, b"s\0");
    let update = |acts: Option<&str>| Expression::Update {
        set: "s".into(),
        acts: acts.map(str::to_owned),
        tracking: Tracking::No,
    };
    assert_eq!(read("dynset", std::slice::from_ref(&name)), update(None));
    assert_eq!(read("dynset", &[name, attribute(7, &element("limit", &[]))]), update(Some("limit")));
    assert!(matches!(read("dynset", &[]), Expression::Acts { tracking: Tracking::TurnsOn, .. }));
}

#[test]
fn lookups_and_comments() {
    let set = attribute(NFTA_LOOKUP_SET, b"s\0");
    let lookup = |more: &[Vec<u8>]| {
        let mut parts = vec![set.clone(), number(NFTA_LOOKUP_SREG, 1)];
        parts.extend_from_slice(more);
        read("lookup", &parts)
    };
    let wanted = |data, invert| Expression::Lookup { set: "s".into(), key: 0, data, invert };
    assert_eq!(lookup(&[]), wanted(None, false));
    assert_eq!(lookup(&[number(5, 1)]), wanted(None, true));
    assert_eq!(lookup(&[number(NFTA_LOOKUP_DREG, 0)]), wanted(Some(To::Verdict), false));
    assert_eq!(lookup(&[number(NFTA_LOOKUP_DREG, 8)]), wanted(Some(To::Register(0)), false));
    assert!(matches!(lookup(&[number(5, 2)]), Expression::Acts { .. }));
    assert_eq!(comment(b"\x01\x01x\x00\x03hi\x00").as_deref(), Some("hi"));
    assert_eq!(comment(b"\x00\x09hi"), None);
}

proptest! {
    #[test]
    fn any_octets_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = (table(&bytes), chain(&bytes), rule(&bytes), object(&bytes), set(&bytes), elements(&bytes), expression(&bytes));
    }

    #[test]
    fn any_attributes_are_read_without_harm(
        attributes in prop::collection::vec((0u16..14, prop::collection::vec(any::<u8>(), 0..24)), 0..12),
    ) {
        let mut bytes = vec![2, 0, 0, 0];
        bytes.extend(attributes.iter().flat_map(|(kind, value)| attribute(*kind, value)));
        let _ = (table(&bytes), chain(&bytes), rule(&bytes), object(&bytes), set(&bytes), elements(&bytes), expression(&bytes[4..]));
    }
}
