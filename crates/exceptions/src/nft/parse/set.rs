//! Parses sets and their elements.

use super::expression::{NFTA_DATA_VALUE, NFTA_DATA_VERDICT, nested_effect, verdict};
use super::{NFGENMSG, NFTA_LIST_ELEM, Of, be32, family, find, nested, text};
use crate::nft::{Data, Element, Set, Tracking};
use bywash_nl::wire::Attributes;

pub const NFTA_SET_TABLE: u16 = 1;
pub const NFTA_SET_NAME: u16 = 2;
pub const NFTA_SET_FLAGS: u16 = 3;
pub const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_DESC: u16 = 9;
pub const NFTA_SET_EXPR: u16 = 17;
pub const NFTA_SET_EXPRESSIONS: u16 = 18;
/// The last known attribute: NFTA_SET_TYPE (Linux 6.16) and NFTA_SET_COUNT inform only.
const LAST: u16 = 20;
const NFT_SET_INTERVAL: u32 = 0x4;
const NFT_SET_TIMEOUT: u32 = 0x10;
const NFT_SET_EVAL: u32 = 0x20;
const NFT_SET_CONCAT: u32 = 0x80;
/// All flags up to NFT_SET_EXPR.
const FLAGS: u32 = 0x1ff;

const NFTA_SET_DESC_CONCAT: u16 = 2;
const NFTA_SET_FIELD_LEN: u16 = 1;

const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_FLAGS: u16 = 3;
const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
const NFTA_SET_ELEM_EXPIRATION: u16 = 5;
const NFTA_SET_ELEM_USERDATA: u16 = 6;
const NFTA_SET_ELEM_EXPR: u16 = 7;
const NFTA_SET_ELEM_PAD: u16 = 8;
const NFTA_SET_ELEM_KEY_END: u16 = 10;
const NFTA_SET_ELEM_EXPRESSIONS: u16 = 11;
const NFT_SET_ELEM_INTERVAL_END: u32 = 1;
const NFT_SET_ELEM_CATCHALL: u32 = 2;

/// Parses NFT_MSG_NEWSET: the set without its elements, and whether expressions of its elements enable connection
/// tracking ("ct count").
pub fn set(body: &[u8]) -> Option<Of<(Set, bool)>> {
    let attributes = Attributes::after(body, NFGENMSG);
    let flags = find(attributes.clone(), NFTA_SET_FLAGS).and_then(be32).unwrap_or(0);
    let mut set = Set {
        name: text(find(attributes.clone(), NFTA_SET_NAME)?),
        key_len: find(attributes.clone(), NFTA_SET_KEY_LEN).and_then(be32).unwrap_or(0) as usize,
        interval: flags & NFT_SET_INTERVAL != 0,
        fields: find(attributes.clone(), NFTA_SET_DESC).map(fields).unwrap_or_default(),
        volatile: match () {
            () if flags & NFT_SET_EVAL != 0 => Some("flags dynamic"),
            () if flags & NFT_SET_TIMEOUT != 0 => Some("flags timeout"),
            () => None,
        },
        ..Set::default()
    };
    if set.key_len == 0 {
        set.opaque = Some("unknown length of keys".into());
    }
    if flags & !FLAGS != 0 {
        set.opaque = Some("unknown set flags".into());
    }
    if flags & NFT_SET_CONCAT != 0 && set.fields.is_empty() && set.interval {
        set.opaque = Some("concatenation of unknown fields".into());
    }
    if let Some((other, _)) = attributes.clone().find(|(attribute, _)| *attribute > LAST) {
        set.opaque = Some(format!("unknown set attribute {other}"));
    }
    set.acts = nested_effect(find(attributes.clone(), NFTA_SET_EXPR), find(attributes.clone(), NFTA_SET_EXPRESSIONS));
    let tracks = nested(attributes.clone(), NFTA_SET_EXPR, NFTA_SET_EXPRESSIONS) == Tracking::TurnsOn;
    Some(Of { family: family(*body.first()?), table: text(find(attributes, NFTA_SET_TABLE)?), object: (set, tracks) })
}

fn fields(description: &[u8]) -> Vec<usize> {
    let Some(fields) = find(Attributes::after(description, 0), NFTA_SET_DESC_CONCAT) else { return Vec::new() };
    let length = |(_, field)| find(Attributes::after(field, 0), NFTA_SET_FIELD_LEN).and_then(be32);
    Attributes::after(fields, 0).map(|field| length(field).unwrap_or(0) as usize).collect()
}

/// Parses NFT_MSG_NEWSETELEM: the name of the set, and some of its elements.
pub fn elements(body: &[u8]) -> Option<Of<(String, Vec<Element>)>> {
    let attributes = Attributes::after(body, NFGENMSG);
    let set = text(find(attributes.clone(), NFTA_SET_ELEM_LIST_SET)?);
    let list = find(attributes.clone(), NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
    let elements = Attributes::after(list, 0).map(|(attribute, value)| match attribute {
        NFTA_LIST_ELEM => element(value),
        _ => None,
    });
    let object = (set, elements.collect::<Option<Vec<_>>>()?);
    Some(Of { family: family(*body.first()?), table: text(find(attributes, NFTA_SET_ELEM_LIST_TABLE)?), object })
}

fn element(parts: &[u8]) -> Option<Element> {
    let mut element = Element::default();
    let (mut single, mut several, mut key) = (None, None, None);
    let value = |data| find(Attributes::after(data, 0), NFTA_DATA_VALUE).map(<[u8]>::to_vec);
    let mut unknown = None;
    for (attribute, part) in Attributes::after(parts, 0) {
        match attribute {
            NFTA_SET_ELEM_KEY => key = value(part),
            NFTA_SET_ELEM_KEY_END => element.to = Some(value(part)?),
            NFTA_SET_ELEM_DATA => element.data = data(part),
            NFTA_SET_ELEM_FLAGS => {
                let flags = be32(part)?;
                element.ends = flags & NFT_SET_ELEM_INTERVAL_END != 0;
                element.catch_all = flags & NFT_SET_ELEM_CATCHALL != 0;
                if flags & !(NFT_SET_ELEM_INTERVAL_END | NFT_SET_ELEM_CATCHALL) != 0 {
                    unknown = Some("unknown element flags".to_owned());
                }
            }
            NFTA_SET_ELEM_TIMEOUT | NFTA_SET_ELEM_EXPIRATION => element.expires = true,
            NFTA_SET_ELEM_EXPR => single = Some(part),
            NFTA_SET_ELEM_EXPRESSIONS => several = Some(part),
            NFTA_SET_ELEM_USERDATA | NFTA_SET_ELEM_PAD => {}
            other => unknown = Some(format!("element attribute {other}")),
        }
    }
    element.acts = nested_effect(single, several).or(unknown);
    // Only the element that stands for all others has no key.
    element.key = if element.catch_all { Vec::new() } else { key? };
    Some(element)
}

fn data(part: &[u8]) -> Option<Data> {
    let attributes = Attributes::after(part, 0);
    match find(attributes.clone(), NFTA_DATA_VERDICT) {
        Some(of) => Some(Data::Verdict(verdict(of))),
        None => find(attributes, NFTA_DATA_VALUE).map(|value| Data::Value(value.to_vec())),
    }
}
