//! Parses nf_tables objects from netlink attributes, whose numbers are in network order. Anything unknown makes the
//! chain opaque, or the expression one that may do anything.

use super::xt;
use super::{Base, Chain, Expression, Family, Loaded, Rule, Table, Tracking, Verdict};
use crate::effect::IfMatch;
use bywash_netlink::wire::{Attributes, u32_at};

/// Size of struct nfgenmsg, in octets.
pub const NFGENMSG: usize = 4;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_TABLE_OWNER: u16 = 7;
const NFT_TABLE_F_DORMANT: u32 = 1;

const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_CHAIN_FLAGS: u16 = 10;
const NFTA_CHAIN_USERDATA: u16 = 12;
/// Known chain flags: NFT_CHAIN_BASE, NFT_CHAIN_HW_OFFLOAD, NFT_CHAIN_BINDING.
const CHAIN_FLAGS: u32 = 7;

const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;
const NFTA_DEVICE_NAME: u16 = 1;
const NFTA_DEVICE_PREFIX: u16 = 2;

const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_CHAIN_ID: u16 = 11;

const NFTA_OBJ_TABLE: u16 = 1;
const NFTA_OBJ_NAME: u16 = 2;
const NFTA_OBJ_TYPE: u16 = 3;

const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_EXPR: u16 = 17;
const NFTA_SET_EXPRESSIONS: u16 = 18;

const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFT_REG_VERDICT: u32 = 0;
/// NFTA_IMMEDIATE_DREG, NFTA_META_DREG, NFTA_PAYLOAD_DREG and NFTA_EXTHDR_DREG.
const DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_META_KEY: u16 = 2;
const NFTA_META_SREG: u16 = 3;
const NFTA_PAYLOAD_SREG: u16 = 6;
const NFTA_EXTHDR_SREG: u16 = 7;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFT_CMP_EQ: u32 = 0;
const NFTA_OBJREF_IMM_TYPE: u16 = 1;
const NFTA_DYNSET_EXPR: u16 = 7;
const NFTA_DYNSET_EXPRESSIONS: u16 = 10;
/// NFTA_MATCH_NAME and NFTA_TARGET_NAME.
const XT_NAME: u16 = 1;

/// A parsed object and the table it belongs to.
pub struct Of<T> {
    pub family: Family,
    pub table: String,
    pub object: T,
}

/// Parses NFT_MSG_NEWTABLE; the flag tells whether all its attributes are known.
pub fn table(body: &[u8]) -> Option<(Table, bool)> {
    let attributes = Attributes::after(body, NFGENMSG);
    let known = attributes.clone().all(|(kind, _)| kind <= NFTA_TABLE_OWNER);
    Some((
        Table {
            family: family(*body.first()?),
            name: text(find(attributes.clone(), NFTA_TABLE_NAME)?),
            dormant: find(attributes, NFTA_TABLE_FLAGS).and_then(be32).unwrap_or(0) & NFT_TABLE_F_DORMANT != 0,
            chains: Vec::new(),
            tracking: Vec::new(),
        },
        known,
    ))
}

/// Parses NFT_MSG_NEWCHAIN.
pub fn chain(body: &[u8]) -> Option<Of<Chain>> {
    let attributes = Attributes::after(body, NFGENMSG);
    let (mut table, mut name, mut hook, mut opaque) = (None, None, None, None);
    let (mut accepts, mut kind) = (None, None);
    for (attribute, value) in attributes {
        match attribute {
            NFTA_CHAIN_TABLE => table = Some(text(value)),
            NFTA_CHAIN_NAME => name = Some(text(value)),
            NFTA_CHAIN_HOOK => hook = Some(value),
            NFTA_CHAIN_POLICY => accepts = be32(value).map(|policy| policy == 1),
            NFTA_CHAIN_TYPE => kind = Some(text(value)),
            NFTA_CHAIN_FLAGS if be32(value).is_none_or(|flags| flags & !CHAIN_FLAGS != 0) => {
                opaque = Some("unknown chain flags".into());
            }
            0..=NFTA_CHAIN_USERDATA => {}
            other => opaque = Some(format!("unknown chain attribute {other}")),
        }
    }
    let base = hook.map(|hook| {
        let (base, why) = base(hook, accepts, kind);
        opaque = opaque.take().or(why);
        base
    });
    let object = Chain { name: name?, base, rules: Vec::new(), opaque };
    Some(Of { family: family(*body.first()?), table: table?, object })
}

fn base(hook: &[u8], accepts: Option<bool>, kind: Option<String>) -> (Base, Option<String>) {
    let mut opaque = None;
    let mut base = Base { hook: u32::MAX, priority: 0, kind: String::new(), accepts: false, devices: Vec::new() };
    let mut single = None;
    let mut listed = None;
    for (attribute, value) in Attributes::after(hook, 0) {
        match attribute {
            NFTA_HOOK_HOOKNUM => base.hook = be32(value).unwrap_or(u32::MAX),
            NFTA_HOOK_PRIORITY => base.priority = be32(value).unwrap_or(0) as i32,
            NFTA_HOOK_DEV => single = Some(device(value)),
            NFTA_HOOK_DEVS => {
                let devices = Attributes::after(value, 0).map(|(attribute, value)| match attribute {
                    NFTA_DEVICE_NAME => Some(device(value)),
                    NFTA_DEVICE_PREFIX => Some(IfMatch::Prefix(text(value))),
                    _ => None,
                });
                listed = devices.collect::<Option<Vec<_>>>();
                if listed.is_none() {
                    opaque = Some("unknown device attribute".into());
                }
            }
            other => opaque = Some(format!("unknown hook attribute {other}")),
        }
    }
    base.devices = listed.unwrap_or_else(|| single.into_iter().collect());
    base.devices.sort();
    match (accepts, kind) {
        (Some(accepts), Some(kind)) if matches!(kind.as_str(), "filter" | "nat" | "route") => {
            base.accepts = accepts;
            base.kind = kind;
        }
        (_, kind) => opaque = Some(format!("unknown chain type {}", kind.unwrap_or_default())),
    }
    (base, opaque)
}

/// Parses a device name. A name without a terminating NUL is a prefix (Linux 6.16, before NFTA_DEVICE_PREFIX).
fn device(value: &[u8]) -> IfMatch {
    match value.contains(&0) {
        true => IfMatch::Name(text(value)),
        false => IfMatch::Prefix(text(value)),
    }
}

/// Parses NFT_MSG_NEWRULE: the name of its chain, and the rule.
pub fn rule(body: &[u8]) -> Option<Of<(String, Rule)>> {
    let (mut table, mut chain, mut handle, mut expressions) = (None, None, None, Vec::new());
    for (attribute, value) in Attributes::after(body, NFGENMSG) {
        match attribute {
            NFTA_RULE_TABLE => table = Some(text(value)),
            NFTA_RULE_CHAIN => chain = Some(text(value)),
            NFTA_RULE_HANDLE => handle = value.try_into().ok().map(u64::from_be_bytes),
            NFTA_RULE_EXPRESSIONS => expressions.extend(list(value)),
            0..=NFTA_RULE_CHAIN_ID => {}
            other => expressions.push(anything(format!("unknown rule attribute {other}"))),
        }
    }
    let object = (chain?, Rule { handle: handle?, expressions });
    Some(Of { family: family(*body.first()?), table: table?, object })
}

/// Parses NFT_MSG_NEWOBJ: the object's type and name if it enables connection tracking (such types have an init that
/// calls nf_ct_netns_get).
pub fn object(body: &[u8]) -> Option<Of<Option<String>>> {
    let attributes = Attributes::after(body, NFGENMSG);
    let name = text(find(attributes.clone(), NFTA_OBJ_NAME)?);
    let (what, tracking) = object_type(be32(find(attributes.clone(), NFTA_OBJ_TYPE)?)?);
    let object = (tracking != Tracking::No).then(|| format!("{what} {name}"));
    Some(Of { family: family(*body.first()?), table: text(find(attributes, NFTA_OBJ_TABLE)?), object })
}

/// Parses NFT_MSG_NEWSET: the set's name if expressions of its elements enable connection tracking ("ct count").
pub fn set(body: &[u8]) -> Option<Of<Option<String>>> {
    let attributes = Attributes::after(body, NFGENMSG);
    let name = text(find(attributes.clone(), NFTA_SET_NAME)?);
    let tracks = nested(attributes.clone(), NFTA_SET_EXPR, NFTA_SET_EXPRESSIONS) == Tracking::TurnsOn;
    let object = tracks.then(|| format!("set {name}"));
    Some(Of { family: family(*body.first()?), table: text(find(attributes, NFTA_SET_TABLE)?), object })
}

fn object_type(number: u32) -> (&'static str, Tracking) {
    match number {
        1 => ("counter", Tracking::No),
        2 => ("quota", Tracking::No),
        3 => ("ct helper", Tracking::TurnsOn),
        4 => ("limit", Tracking::No),
        5 => ("ct count", Tracking::TurnsOn),
        6 => ("tunnel", Tracking::No),
        7 => ("ct timeout", Tracking::TurnsOn),
        8 => ("secmark", Tracking::No),
        9 => ("ct expectation", Tracking::TurnsOn),
        10 => ("synproxy", Tracking::TurnsOn),
        _ => ("unknown object", Tracking::TurnsOn),
    }
}

fn list(elements: &[u8]) -> impl Iterator<Item = Expression> {
    Attributes::after(elements, 0).map(|(attribute, value)| match attribute {
        NFTA_LIST_ELEM => expression(value),
        other => anything(format!("unknown list attribute {other}")),
    })
}

/// Returns the strongest tracking role of the expressions nested in a set or in a set update.
fn nested(attributes: Attributes<'_>, single: u16, several: u16) -> Tracking {
    let tracking = |expression: Expression| match expression {
        Expression::Acts { tracking, .. } => tracking,
        _ => Tracking::No,
    };
    let single = find(attributes.clone(), single).map(expression).map(tracking);
    let several = find(attributes, several).into_iter().flat_map(list).map(tracking).max();
    single.max(several).unwrap_or(Tracking::No)
}

fn expression(element: &[u8]) -> Expression {
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
    match name.as_str() {
        "immediate" => immediate(attributes),
        "cmp" => cmp(attributes),
        "meta" if has(NFTA_META_SREG) || !has(DREG) => acts("meta set"),
        "meta" => meta(attributes),
        "payload" if has(NFTA_PAYLOAD_SREG) || !has(DREG) => acts("header written"),
        "exthdr" if has(NFTA_EXTHDR_SREG) || !has(DREG) => acts("option written"),
        _ => Expression::Reads,
    }
}

fn meta(attributes: Attributes<'_>) -> Expression {
    let register = find(attributes.clone(), DREG).and_then(be32);
    let loaded = match find(attributes, NFTA_META_KEY).and_then(be32) {
        Some(4) => Loaded::Iif,
        Some(5) => Loaded::Oif,
        Some(6) => Loaded::IifName,
        Some(7) => Loaded::OifName,
        Some(15) => Loaded::Nfproto,
        _ => return Expression::Reads,
    };
    register.map_or(Expression::Reads, |register| Expression::Load(loaded, register))
}

fn cmp(attributes: Attributes<'_>) -> Expression {
    let register = find(attributes.clone(), NFTA_CMP_SREG).and_then(be32);
    let operation = find(attributes.clone(), NFTA_CMP_OP).and_then(be32);
    let value = find(attributes, NFTA_CMP_DATA).and_then(|data| find(Attributes::after(data, 0), NFTA_DATA_VALUE));
    match (register, operation, value) {
        (Some(register), Some(NFT_CMP_EQ), Some(value)) => Expression::Equals(register, value.to_vec()),
        _ => Expression::Reads,
    }
}

fn immediate(attributes: Attributes<'_>) -> Expression {
    let data = find(attributes.clone(), NFTA_IMMEDIATE_DATA).unwrap_or_default();
    match find(attributes, DREG).and_then(be32) {
        Some(NFT_REG_VERDICT) => {}
        Some(_) => return Expression::Reads,
        None => return anything("malformed verdict".into()),
    }
    let Some(verdict) = find(Attributes::after(data, 0), NFTA_DATA_VERDICT) else {
        return anything("malformed verdict".into());
    };
    let parts = Attributes::after(verdict, 0);
    let chain = find(parts.clone(), NFTA_VERDICT_CHAIN).map(text);
    Expression::Verdict(match (find(parts, NFTA_VERDICT_CODE).and_then(be32).map(|code| code as i32), chain) {
        (Some(0), _) => Verdict::Other("drop".into()),
        // NF_ACCEPT, NFT_CONTINUE, NFT_BREAK, NFT_RETURN.
        (Some(1 | -1 | -2 | -5), _) => Verdict::GoesOn,
        (Some(-3 | -4), Some(chain)) => Verdict::Chain(chain),
        (code, _) => Verdict::Other(format!("verdict {}", code.unwrap_or_default())),
    })
}

/// Classifies an expression that has side effects, or that this crate does not know.
///
/// A counter is a side effect: it would miss packets forwarded past the kernel, and users of the ruleset would notice.
/// A set element may carry a counter, a limit or a verdict of its own, so a set lookup is a side effect too.
fn acting(name: &str, attributes: Attributes<'_>) -> Expression {
    let (how, tracking) = match name {
        "counter" | "log" | "limit" | "quota" | "reject" | "queue" | "dup" | "fwd" | "numgen" | "last" | "xfrm"
        | "tunnel" | "osf" => (name.to_owned(), Tracking::No),
        "lookup" => ("set lookup".into(), Tracking::No),
        "dynset" => ("set update".into(), nested(attributes, NFTA_DYNSET_EXPR, NFTA_DYNSET_EXPRESSIONS)),
        "notrack" => ("notrack".into(), Tracking::Uses),
        "objref" => match find(attributes, NFTA_OBJREF_IMM_TYPE).and_then(be32).map(object_type) {
            Some((what, tracking)) => (what.into(), tracking),
            None => ("object of a map".into(), Tracking::TurnsOn),
        },
        "ct" | "nat" | "synproxy" | "tproxy" | "socket" => (name.to_owned(), Tracking::TurnsOn),
        "masq" => ("masquerade".into(), Tracking::TurnsOn),
        "redir" => ("redirect".into(), Tracking::TurnsOn),
        "connlimit" => ("ct count".into(), Tracking::TurnsOn),
        "flow_offload" => ("flow add".into(), Tracking::TurnsOn),
        "match" | "target" => return extension(name == "target", attributes),
        _ => (format!("unknown expression {name}"), Tracking::TurnsOn),
    };
    Expression::Acts { how, tracking }
}

fn extension(target: bool, attributes: Attributes<'_>) -> Expression {
    let name = find(attributes, XT_NAME).map(text).unwrap_or_default();
    if !target && name == "comment" {
        return Expression::Reads;
    }
    let kind = if target { "target" } else { "match" };
    let tracking = if xt::is_untracked(target, &name) { Tracking::No } else { Tracking::TurnsOn };
    Expression::Acts { how: format!("xt {kind} {name}"), tracking }
}

fn acts(how: &str) -> Expression {
    Expression::Acts { how: how.to_owned(), tracking: Tracking::No }
}

fn anything(how: String) -> Expression {
    Expression::Acts { how, tracking: Tracking::TurnsOn }
}

fn family(number: u8) -> Family {
    match number {
        1 => Family::Inet,
        2 => Family::Ip,
        3 => Family::Arp,
        5 => Family::Netdev,
        7 => Family::Bridge,
        10 => Family::Ip6,
        other => Family::Other(other),
    }
}

fn find<'a>(mut attributes: Attributes<'a>, wanted: u16) -> Option<&'a [u8]> {
    attributes.find(|(attribute, _)| *attribute == wanted).map(|(_, value)| value)
}

fn be32(value: &[u8]) -> Option<u32> {
    u32_at(value, 0).map(u32::from_be)
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&octet| octet == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests;
