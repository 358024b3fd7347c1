use super::*;
use proptest::prelude::*;

/// Returns an attribute with `value`, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

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
    assert_eq!(read("meta", &[dreg.clone(), number(NFTA_META_KEY, 3)]), Expression::Reads);
    assert_eq!(read("meta", &[dreg.clone(), number(NFTA_META_KEY, 6)]), Expression::Load(Loaded::IifName, 1));
    assert_eq!(read("payload", std::slice::from_ref(&dreg)), Expression::Reads);
    assert_eq!(read("exthdr", std::slice::from_ref(&dreg)), Expression::Reads);
    let value = attribute(NFTA_CMP_DATA, &attribute(NFTA_DATA_VALUE, b"p0\0"));
    let cmp = |operation| read("cmp", &[number(NFTA_CMP_SREG, 1), number(NFTA_CMP_OP, operation), value.clone()]);
    assert_eq!(cmp(NFT_CMP_EQ), Expression::Equals(1, b"p0\0".to_vec()));
    assert_eq!(cmp(1), Expression::Reads);
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
    // An expression with neither register removes the option.
    assert!(matches!(read("exthdr", &[]), Expression::Acts { .. }));
    let all = [read("cmp", &[number(9, 0)]), read("brandnew", &[]), expression(&[]), expression(&attribute(7, &[]))];
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
    for code in [1, -1, -2, -5] {
        assert_eq!(verdict(code, None), Expression::Verdict(Verdict::GoesOn));
    }
    for code in [-3, -4] {
        assert_eq!(verdict(code, Some("x\0")), Expression::Verdict(Verdict::Chain("x".into())));
    }
    for code in [0, 2, 3, 4, -3, -6, 0x10000] {
        assert!(matches!(verdict(code, None), Expression::Verdict(Verdict::Other(_))), "{code}");
    }
    assert!(matches!(read("immediate", &[number(DREG, 0)]), Expression::Acts { .. }));
    assert_eq!(read("immediate", &[number(DREG, 1)]), Expression::Reads);
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
fn objects_and_sets_that_track_are_told() {
    let object_of = |kind| {
        let parts = [attribute(NFTA_OBJ_TABLE, b"t\0"), attribute(NFTA_OBJ_NAME, b"x\0"), number(NFTA_OBJ_TYPE, kind)];
        object(&[vec![1, 0, 0, 0], parts.concat()].concat()).unwrap().object
    };
    assert_eq!(object_of(1), None);
    assert_eq!(object_of(3).unwrap(), "ct helper x");
    assert_eq!(object_of(99).unwrap(), "unknown object x");
    let set_of = |more: Vec<u8>| {
        let parts = [attribute(NFTA_SET_TABLE, b"t\0"), attribute(NFTA_SET_NAME, b"s\0"), more];
        set(&[vec![1, 0, 0, 0], parts.concat()].concat()).unwrap().object
    };
    assert_eq!(set_of(vec![]), None);
    assert_eq!(set_of(attribute(NFTA_SET_EXPR, &element("counter", &[]))), None);
    assert_eq!(set_of(attribute(NFTA_SET_EXPR, &element("connlimit", &[]))).unwrap(), "set s");
    let several = attribute(NFTA_LIST_ELEM, &element("connlimit", &[]));
    assert_eq!(set_of(attribute(NFTA_SET_EXPRESSIONS, &several)).unwrap(), "set s");
}

proptest! {
    #[test]
    fn any_octets_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = (table(&bytes), chain(&bytes), rule(&bytes), object(&bytes), set(&bytes), expression(&bytes));
    }

    #[test]
    fn any_attributes_are_read_without_harm(
        attributes in prop::collection::vec((0u16..14, prop::collection::vec(any::<u8>(), 0..24)), 0..12),
    ) {
        let mut bytes = vec![2, 0, 0, 0];
        bytes.extend(attributes.iter().flat_map(|(kind, value)| attribute(*kind, value)));
        let _ = (table(&bytes), chain(&bytes), rule(&bytes), object(&bytes), set(&bytes), expression(&bytes[4..]));
    }
}
