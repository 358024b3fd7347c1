//! Parses nf_tables objects from netlink attributes, whose numbers are in network order. Anything unknown makes its
//! chain opaque, or counts as an expression that may do anything.

mod expression;
mod set;

pub use set::{elements, set};

use super::{Base, Chain, Expression, Family, FlowTable, Rule, Table, Tracking};
use crate::effect::IfMatch;
use bywash_nl::wire::{Attributes, u32_at};
use expression::{anything, expression};

/// Size of struct nfgenmsg, in octets.
pub const NFGENMSG: usize = 4;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_TABLE_OWNER: u16 = 7;
const NFT_TABLE_F_DORMANT: u32 = 1;
const NFT_TABLE_F_OWNER: u32 = 2;
const NFT_TABLE_F_PERSIST: u32 = 4;

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
const NFTA_RULE_USERDATA: u16 = 7;
const NFTA_RULE_CHAIN_ID: u16 = 11;
/// Type of a comment among the user data of a rule (libnftnl's enum nftnl_udata_rule_types).
const UDATA_COMMENT: u8 = 0;

const NFTA_OBJ_TABLE: u16 = 1;
const NFTA_OBJ_NAME: u16 = 2;
const NFTA_OBJ_TYPE: u16 = 3;

const NFTA_FLOWTABLE_TABLE: u16 = 1;
const NFTA_FLOWTABLE_NAME: u16 = 2;
const NFTA_FLOWTABLE_HOOK: u16 = 3;
const NFTA_FLOWTABLE_HOOK_DEVS: u16 = 3;

const NFTA_LIST_ELEM: u16 = 1;

/// A parsed object and the table it belongs to.
pub struct Of<T> {
    pub family: Family,
    pub table: String,
    pub object: T,
}

/// Parses NFT_MSG_NEWTABLE; the flag tells whether all its attributes and flags are known.
pub fn table(body: &[u8]) -> Option<(Table, bool)> {
    let attributes = Attributes::after(body, NFGENMSG);
    let flags = find(attributes.clone(), NFTA_TABLE_FLAGS).and_then(be32).unwrap_or(0);
    let known = attributes.clone().all(|(kind, _)| kind <= NFTA_TABLE_OWNER)
        && flags & !(NFT_TABLE_F_DORMANT | NFT_TABLE_F_OWNER | NFT_TABLE_F_PERSIST) == 0;
    Some((
        Table {
            family: family(*body.first()?),
            name: text(find(attributes, NFTA_TABLE_NAME)?),
            dormant: flags & NFT_TABLE_F_DORMANT != 0,
            owned: flags & (NFT_TABLE_F_OWNER | NFT_TABLE_F_PERSIST) == NFT_TABLE_F_OWNER,
            chains: Vec::new(),
            sets: Vec::new(),
            tracking: Vec::new(),
            flow_tables: Vec::new(),
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
    let family = family(*body.first()?);
    let base = hook.map(|hook| {
        let (base, why) = base(hook, accepts, kind);
        opaque = opaque.take().or(why);
        if !has_hook(family, base.hook) {
            opaque.get_or_insert_with(|| format!("unknown hook {} of family {family}", base.hook));
        }
        base
    });
    let object = Chain { name: name?, base, rules: Vec::new(), opaque };
    Some(Of { family, table: table?, object })
}

/// Returns whether base chains of a family may be on a hook (linux/netfilter.h, netfilter_arp.h, netfilter_bridge.h).
fn has_hook(family: Family, hook: u32) -> bool {
    let hooks = match family {
        Family::Ip | Family::Ip6 => 5,
        // NF_INET_INGRESS is one of them.
        Family::Inet | Family::Bridge => 6,
        Family::Netdev => 2,
        Family::Arp => 3,
        Family::Other(_) => 0,
    };
    hook < hooks
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
                listed = devices(value);
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

/// Parses a list of devices; `None` if it is not understood.
fn devices(list: &[u8]) -> Option<Vec<IfMatch>> {
    let one = |(attribute, value): (u16, _)| match attribute {
        NFTA_DEVICE_NAME => Some(device(value)),
        NFTA_DEVICE_PREFIX => Some(IfMatch::Prefix(text(value))),
        _ => None,
    };
    Attributes::after(list, 0).map(one).collect()
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
    let mut note = None;
    for (attribute, value) in Attributes::after(body, NFGENMSG) {
        match attribute {
            NFTA_RULE_TABLE => table = Some(text(value)),
            NFTA_RULE_CHAIN => chain = Some(text(value)),
            NFTA_RULE_HANDLE => handle = value.try_into().ok().map(u64::from_be_bytes),
            NFTA_RULE_EXPRESSIONS => expressions.extend(list(value)),
            NFTA_RULE_USERDATA => note = comment(value),
            0..=NFTA_RULE_CHAIN_ID => {}
            other => expressions.push(anything(format!("unknown rule attribute {other}"))),
        }
    }
    let object = (chain?, Rule { handle: handle?, expressions, comment: note });
    Some(Of { family: family(*body.first()?), table: table?, object })
}

/// Returns the comment among user data: parts of a type, a length and a value.
fn comment(mut parts: &[u8]) -> Option<String> {
    while let [kind, len, rest @ ..] = parts {
        let value = rest.get(..usize::from(*len))?;
        if *kind == UDATA_COMMENT {
            return Some(text(value)).filter(|comment| !comment.is_empty());
        }
        parts = &rest[value.len()..];
    }
    None
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

/// Parses NFT_MSG_NEWFLOWTABLE.
pub fn flow_table(body: &[u8]) -> Option<Of<FlowTable>> {
    let attributes = Attributes::after(body, NFGENMSG);
    let hook = find(attributes.clone(), NFTA_FLOWTABLE_HOOK)?;
    // A flow table without devices has no list.
    let devices = find(Attributes::after(hook, 0), NFTA_FLOWTABLE_HOOK_DEVS).map_or(Some(vec![]), devices);
    let object = FlowTable { name: text(find(attributes.clone(), NFTA_FLOWTABLE_NAME)?), devices };
    Some(Of { family: family(*body.first()?), table: text(find(attributes, NFTA_FLOWTABLE_TABLE)?), object })
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
    let tracking = |expression: Expression| expression.effect().map_or(Tracking::No, |(_, tracking)| tracking);
    let single = find(attributes.clone(), single).map(expression).map(tracking);
    let several = find(attributes, several).into_iter().flat_map(list).map(tracking).max();
    single.max(several).unwrap_or(Tracking::No)
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
