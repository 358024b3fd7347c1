//! Parses expressions.

use super::{be32, find, list, nested, object_type, text};
use crate::nft::ct as keys;
use crate::nft::expression::To;
use crate::nft::{Comparison, Expression, Tracking, Verdict, xt};
use bywash_nl::wire::{Attributes, u32_at};

pub const NFTA_EXPR_NAME: u16 = 1;
pub const NFTA_EXPR_DATA: u16 = 2;
pub const NFTA_DATA_VALUE: u16 = 1;
pub const NFTA_DATA_VERDICT: u16 = 2;
pub const NFTA_VERDICT_CODE: u16 = 1;
pub const NFTA_VERDICT_CHAIN: u16 = 2;
pub const NFT_REG_VERDICT: u32 = 0;
/// NFTA_IMMEDIATE_DREG, NFTA_META_DREG, NFTA_PAYLOAD_DREG, NFTA_EXTHDR_DREG, NFTA_CT_DREG, NFTA_RT_DREG and
/// NFTA_FIB_DREG.
pub const DREG: u16 = 1;
pub const NFTA_IMMEDIATE_DATA: u16 = 2;
pub const NFTA_META_KEY: u16 = 2;
pub const NFTA_META_SREG: u16 = 3;
pub const NFTA_PAYLOAD_BASE: u16 = 2;
pub const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub const NFTA_PAYLOAD_LEN: u16 = 4;
pub const NFTA_PAYLOAD_SREG: u16 = 5;
pub const NFTA_EXTHDR_SREG: u16 = 7;
pub const NFTA_CT_KEY: u16 = 2;
pub const NFTA_CT_DIRECTION: u16 = 3;
const NFTA_CT_SREG: u16 = 4;
/// NFTA_CMP_SREG, NFTA_RANGE_SREG, NFTA_BITWISE_SREG and NFTA_BYTEORDER_SREG.
pub const SREG: u16 = 1;
const NFTA_FIB_RESULT: u16 = 2;
const NFTA_FIB_FLAGS: u16 = 3;
pub const NFTA_CMP_OP: u16 = 2;
pub const NFTA_CMP_DATA: u16 = 3;
const NFTA_RANGE_OP: u16 = 2;
const NFTA_RANGE_FROM_DATA: u16 = 3;
const NFTA_RANGE_TO_DATA: u16 = 4;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_BITWISE_OP: u16 = 6;
const NFTA_BYTEORDER_DREG: u16 = 2;
const NFTA_BYTEORDER_LEN: u16 = 4;
const NFTA_BYTEORDER_SIZE: u16 = 5;
pub const NFTA_LOOKUP_SET: u16 = 1;
pub const NFTA_LOOKUP_SREG: u16 = 2;
pub const NFTA_LOOKUP_DREG: u16 = 3;
const NFTA_LOOKUP_FLAGS: u16 = 5;
const NFT_LOOKUP_F_INV: u32 = 1;
const NFTA_OBJREF_IMM_TYPE: u16 = 1;
const NFTA_OBJREF_IMM_NAME: u16 = 2;
const NFT_OBJECT_COUNTER: u32 = 1;
pub const NFTA_DYNSET_SET_NAME: u16 = 1;
const NFTA_DYNSET_EXPR: u16 = 7;
const NFTA_DYNSET_EXPRESSIONS: u16 = 10;
const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFTA_NAT_REG_ADDR_MAX: u16 = 4;
const NFTA_NAT_FLAGS: u16 = 7;
const NFT_NAT_SNAT: u32 = 0;
const NFPROTO_IPV4: u32 = 2;
const NFPROTO_IPV6: u32 = 10;
// linux/netfilter/nf_nat.h
const NF_NAT_RANGE_MAP_IPS: u32 = 1;
/// NFTA_MATCH_NAME and NFTA_TARGET_NAME, and the same for the others.
pub const XT_NAME: u16 = 1;
const XT_REVISION: u16 = 2;
const XT_INFO: u16 = 3;

pub fn expression(element: &[u8]) -> Expression {
    let mut parts = Attributes::after(element, 0);
    let name = find(parts.clone(), NFTA_EXPR_NAME).map(text).unwrap_or_default();
    let data = find(parts.clone(), NFTA_EXPR_DATA).unwrap_or_default();
    if parts.any(|(attribute, _)| attribute > NFTA_EXPR_DATA) {
        return anything(format!("unknown part of expression {name}"));
    }
    let attributes = Attributes::after(data, 0);
    // Expressions that may only read, with their last known attribute.
    let last = match name.as_str() {
        "immediate" | "rt" => 2,
        "meta" | "cmp" | "fib" => 3,
        "range" => 4,
        "byteorder" => 5,
        "exthdr" => 7,
        "bitwise" | "payload" => 8,
        "hash" => 9,
        _ => return acting(&name, attributes),
    };
    if let Some((other, _)) = attributes.clone().find(|(attribute, _)| *attribute > last) {
        return anything(format!("unknown attribute {other} of expression {name}"));
    }
    let has = |attribute| find(attributes.clone(), attribute).is_some();
    let read = match name.as_str() {
        "immediate" => return immediate(attributes),
        "meta" if has(NFTA_META_SREG) || !has(DREG) => return acts("meta set"),
        "payload" if has(NFTA_PAYLOAD_SREG) || !has(DREG) => return acts("header written"),
        "exthdr" if has(NFTA_EXTHDR_SREG) || !has(DREG) => return acts("option written"),
        "cmp" => compare(&attributes),
        "range" => range(&attributes),
        "meta" => meta(&attributes),
        "payload" => payload(&attributes),
        "bitwise" => bitwise(&attributes),
        "byteorder" => byte_order(&attributes),
        "fib" => fib(&attributes),
        _ => None,
    };
    // The result register of the others is not their first attribute, or they end the rule.
    let register =
        matches!(name.as_str(), "meta" | "payload" | "exthdr" | "rt").then(|| register(&attributes, DREG)).flatten();
    read.unwrap_or(Expression::Reads { how: name, register })
}

/// Returns the first octet of a register: NFT_REG_1 to NFT_REG_4 have 16 octets, NFT_REG32_00 (8) to NFT_REG32_15 four.
fn register(attributes: &Attributes<'_>, which: u16) -> Option<usize> {
    match find(attributes.clone(), which).and_then(be32)? as usize {
        number @ 1..=4 => Some((number - 1) * 16),
        number @ 8..=23 => Some((number - 8) * 4),
        _ => None,
    }
}

fn value(attributes: &Attributes<'_>, which: u16) -> Option<Vec<u8>> {
    let data = find(attributes.clone(), which)?;
    find(Attributes::after(data, 0), NFTA_DATA_VALUE).map(<[u8]>::to_vec)
}

fn number(attributes: &Attributes<'_>, which: u16) -> Option<u32> {
    find(attributes.clone(), which).and_then(be32)
}

fn meta(attributes: &Attributes<'_>) -> Option<Expression> {
    Some(Expression::Meta { key: number(attributes, NFTA_META_KEY)?, register: register(attributes, DREG)? })
}

fn payload(attributes: &Attributes<'_>) -> Option<Expression> {
    Some(Expression::Payload {
        base: number(attributes, NFTA_PAYLOAD_BASE)?,
        offset: number(attributes, NFTA_PAYLOAD_OFFSET)?,
        len: number(attributes, NFTA_PAYLOAD_LEN)?,
        register: register(attributes, DREG)?,
    })
}

fn fib(attributes: &Attributes<'_>) -> Option<Expression> {
    Some(Expression::Fib {
        result: number(attributes, NFTA_FIB_RESULT)?,
        flags: number(attributes, NFTA_FIB_FLAGS)?,
        register: register(attributes, DREG)?,
    })
}

fn compare(attributes: &Attributes<'_>) -> Option<Expression> {
    let by = match number(attributes, NFTA_CMP_OP)? {
        0 => Comparison::Equal,
        1 => Comparison::NotEqual,
        2 => Comparison::Less,
        3 => Comparison::LessOrEqual,
        4 => Comparison::Greater,
        5 => Comparison::GreaterOrEqual,
        _ => return None,
    };
    let register = register(attributes, SREG)?;
    Some(Expression::Compare { register, by, value: value(attributes, NFTA_CMP_DATA)? })
}

fn range(attributes: &Attributes<'_>) -> Option<Expression> {
    let inside = match number(attributes, NFTA_RANGE_OP)? {
        0 => true,
        1 => false,
        _ => return None,
    };
    let (from, to) = (value(attributes, NFTA_RANGE_FROM_DATA)?, value(attributes, NFTA_RANGE_TO_DATA)?);
    let register = register(attributes, SREG)?;
    (from.len() == to.len()).then_some(Expression::Range { register, inside, from, to })
}

fn bitwise(attributes: &Attributes<'_>) -> Option<Expression> {
    // NFT_BITWISE_MASK_XOR; kernels before 5.6 have no other, and no attribute for it.
    if number(attributes, NFTA_BITWISE_OP).unwrap_or(0) != 0 {
        return None;
    }
    let (mask, xor) = (value(attributes, NFTA_BITWISE_MASK)?, value(attributes, NFTA_BITWISE_XOR)?);
    let (from, to) = (register(attributes, SREG)?, register(attributes, NFTA_BITWISE_DREG)?);
    (mask.len() == xor.len()).then_some(Expression::Bitwise { from, to, mask, xor })
}

fn byte_order(attributes: &Attributes<'_>) -> Option<Expression> {
    Some(Expression::ByteOrder {
        from: register(attributes, SREG)?,
        to: register(attributes, NFTA_BYTEORDER_DREG)?,
        len: number(attributes, NFTA_BYTEORDER_LEN)? as usize,
        size: number(attributes, NFTA_BYTEORDER_SIZE)? as usize,
    })
}

fn immediate(attributes: Attributes<'_>) -> Expression {
    let data = find(attributes.clone(), NFTA_IMMEDIATE_DATA).unwrap_or_default();
    match number(&attributes, DREG) {
        Some(NFT_REG_VERDICT) => {}
        Some(_) => {
            let value = value(&attributes, NFTA_IMMEDIATE_DATA);
            return match (register(&attributes, DREG), value) {
                (Some(register), Some(value)) => Expression::Immediate { register, value },
                (register, _) => Expression::Reads { how: "immediate".into(), register },
            };
        }
        None => return anything("malformed verdict".into()),
    }
    match find(Attributes::after(data, 0), NFTA_DATA_VERDICT) {
        Some(data) => Expression::Verdict(verdict(data)),
        None => anything("malformed verdict".into()),
    }
}

/// Parses the attributes of a verdict.
pub fn verdict(data: &[u8]) -> Verdict {
    let parts = Attributes::after(data, 0);
    let chain = find(parts.clone(), NFTA_VERDICT_CHAIN).map(text);
    match (find(parts, NFTA_VERDICT_CODE).and_then(be32).map(|code| code as i32), chain) {
        (Some(0), _) => Verdict::Drop,
        (Some(1), _) => Verdict::Accept,
        (Some(-1), _) => Verdict::Continue,
        (Some(-2), _) => Verdict::Break,
        (Some(-3), Some(chain)) => Verdict::Jump(chain),
        (Some(-4), Some(chain)) => Verdict::Goto(chain),
        (Some(-5), _) => Verdict::Return,
        (code, _) => Verdict::Other(format!("verdict {}", code.unwrap_or_default())),
    }
}

/// Parses an expression that has side effects, or that this crate does not know.
fn acting(name: &str, attributes: Attributes<'_>) -> Expression {
    let (how, tracking) = match name {
        "counter" => return Expression::Counter { name: None },
        "log" | "limit" | "quota" | "reject" | "queue" | "dup" | "fwd" | "numgen" | "last" | "xfrm" | "tunnel"
        | "osf" => (name.to_owned(), Tracking::No),
        // It may be in a map that leads to any chain.
        "lookup" => return lookup(&attributes).unwrap_or_else(|| anything("unknown set lookup".into())),
        "dynset" => {
            let Some(set) = find(attributes.clone(), NFTA_DYNSET_SET_NAME).map(text) else {
                return anything("update of an unknown set".into());
            };
            let part = |of| find(attributes.clone(), of);
            let acts = nested_effect(part(NFTA_DYNSET_EXPR), part(NFTA_DYNSET_EXPRESSIONS));
            let tracking = nested(attributes, NFTA_DYNSET_EXPR, NFTA_DYNSET_EXPRESSIONS);
            return Expression::Update { set, acts, tracking };
        }
        "notrack" => ("notrack".into(), Tracking::Uses),
        "objref" => match number(&attributes, NFTA_OBJREF_IMM_TYPE) {
            Some(NFT_OBJECT_COUNTER) => {
                return Expression::Counter { name: find(attributes, NFTA_OBJREF_IMM_NAME).map(text) };
            }
            Some(number) => {
                let (what, tracking) = object_type(number);
                (what.into(), tracking)
            }
            None => ("object of a map".into(), Tracking::TurnsOn),
        },
        "ct" => return ct(&attributes),
        "nat" => match source_nat(&attributes) {
            Some(address) => return Expression::SourceNat { address: Some(address) },
            // A table of family inet has both kinds; each turns connection tracking on for its family (nft_nat_init).
            None if number(&attributes, NFTA_NAT_FAMILY) == Some(NFPROTO_IPV6) => ("nat ip6".into(), Tracking::TurnsOn),
            None => ("nat".into(), Tracking::TurnsOn),
        },
        "synproxy" | "tproxy" | "socket" => (name.to_owned(), Tracking::TurnsOn),
        // The attributes of `masq`, flags and registers with a range, choose ports.
        "masq" if attributes.clone().next().is_none() => return Expression::SourceNat { address: None },
        "masq" => ("masquerade".into(), Tracking::TurnsOn),
        "redir" => ("redirect".into(), Tracking::TurnsOn),
        "connlimit" => ("ct count".into(), Tracking::TurnsOn),
        "flow_offload" => return Expression::FlowAdd,
        "match" => return matching(attributes),
        "target" => {
            let name = find(attributes.clone(), XT_NAME).map(text).unwrap_or_default();
            if let Some(known) = mark(&attributes, &name).or_else(|| masquerade(&attributes, &name)) {
                return known;
            }
            let tracking = if xt::is_untracked(true, &name) { Tracking::No } else { Tracking::TurnsOn };
            (format!("xt target {name}"), tracking)
        }
        _ => (format!("unknown expression {name}"), Tracking::TurnsOn),
    };
    Expression::Acts { how, tracking }
}

fn lookup(attributes: &Attributes<'_>) -> Option<Expression> {
    let flags = number(attributes, NFTA_LOOKUP_FLAGS).unwrap_or(0);
    let unknown =
        attributes.clone().any(|(attribute, _)| attribute > NFTA_LOOKUP_FLAGS) || flags & !NFT_LOOKUP_F_INV != 0;
    let data = match number(attributes, NFTA_LOOKUP_DREG) {
        None => None,
        Some(NFT_REG_VERDICT) => Some(To::Verdict),
        Some(_) => Some(To::Register(register(attributes, NFTA_LOOKUP_DREG)?)),
    };
    let set = find(attributes.clone(), NFTA_LOOKUP_SET).map(text)?;
    let key = register(attributes, NFTA_LOOKUP_SREG)?;
    (!unknown).then_some(Expression::Lookup { set, key, data, invert: flags & NFT_LOOKUP_F_INV != 0 })
}

/// Parses a load or a store of a connection's property (nft_ct_set_ops).
fn ct(attributes: &Attributes<'_>) -> Expression {
    let unknown = attributes.clone().any(|(attribute, _)| attribute > NFTA_CT_SREG);
    let direction = find(attributes.clone(), NFTA_CT_DIRECTION).and_then(|value| value.first().copied());
    let sets = find(attributes.clone(), NFTA_CT_SREG).is_some();
    match (number(attributes, NFTA_CT_KEY), register(attributes, DREG)) {
        (Some(key), Some(register)) if !unknown && !sets => Expression::Ct { key, direction, register },
        (Some(key), _) if !unknown && settable(key) => anything(format!("{} set", keys::name(key))),
        _ => anything("unknown expression ct".into()),
    }
}

/// Returns whether the kernel lets rules set a property of connections (nft_ct_set_init).
fn settable(key: u32) -> bool {
    matches!(key, keys::MARK | keys::SECMARK | keys::LABELS | keys::ZONE | keys::EVENTMASK)
}

/// Parses the target MARK (struct xt_mark_tginfo2).
fn mark(attributes: &Attributes<'_>, name: &str) -> Option<Expression> {
    let info = find(attributes.clone(), XT_INFO)?;
    let is = name == "MARK" && number(attributes, XT_REVISION) == Some(2);
    is.then_some(Expression::Mark { keep: !u32_at(info, 4)?, xor: u32_at(info, 0)? })
}

/// Parses the target MASQUERADE of x_tables (struct nf_nat_ipv4_multi_range_compat). `None` for other targets, and if
/// it chooses ports.
fn masquerade(attributes: &Attributes<'_>, name: &str) -> Option<Expression> {
    let info = find(attributes.clone(), XT_INFO)?;
    let is = name == "MASQUERADE" && number(attributes, XT_REVISION) == Some(0);
    (is && u32_at(info, 0)? == 1 && u32_at(info, 4)? == 0).then_some(Expression::SourceNat { address: None })
}

/// Returns the register with the address of a translation of the source to one address; `None` for others.
fn source_nat(attributes: &Attributes<'_>) -> Option<usize> {
    let first = find(attributes.clone(), NFTA_NAT_REG_ADDR_MIN)?;
    let plain = attributes.clone().all(|(attribute, value)| match attribute {
        NFTA_NAT_TYPE => be32(value) == Some(NFT_NAT_SNAT),
        NFTA_NAT_FAMILY => be32(value) == Some(NFPROTO_IPV4),
        NFTA_NAT_REG_ADDR_MIN => true,
        NFTA_NAT_REG_ADDR_MAX => value == first,
        // The kernel sets it for the addresses.
        NFTA_NAT_FLAGS => be32(value) == Some(NF_NAT_RANGE_MAP_IPS),
        _ => false,
    });
    plain.then(|| register(attributes, NFTA_NAT_REG_ADDR_MIN)).flatten()
}

fn matching(attributes: Attributes<'_>) -> Expression {
    Expression::Match {
        name: find(attributes.clone(), XT_NAME).map(text).unwrap_or_default(),
        revision: number(&attributes, XT_REVISION).unwrap_or(u32::MAX),
        info: find(attributes, XT_INFO).unwrap_or_default().to_vec(),
    }
}

fn acts(how: &str) -> Expression {
    Expression::Acts { how: how.to_owned(), tracking: Tracking::No }
}

pub fn anything(how: String) -> Expression {
    Expression::Acts { how, tracking: Tracking::TurnsOn }
}

/// Returns the side effect of expressions nested in a set's element, if any.
pub fn nested_effect(single: Option<&[u8]>, several: Option<&[u8]>) -> Option<String> {
    let one = single.map(expression).into_iter();
    one.chain(several.into_iter().flat_map(list)).find_map(|expression| expression.effect()).map(|(how, _)| how)
}
