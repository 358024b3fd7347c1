//! Sets and maps.

use super::Verdict;

/// A set, or a map if its elements have data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Name, unique in its table; anonymous sets have one too.
    pub name: String,
    /// Length of a key, in octets.
    pub key_len: usize,
    /// Whether elements are intervals (NFT_SET_INTERVAL).
    pub interval: bool,
    /// Lengths of the fields of a concatenation, in octets; empty if the key is a single field.
    pub fields: Vec<usize>,
    /// Reason why packets or time change the set without an announcement, if so: "flags dynamic".
    pub volatile: Option<&'static str>,
    /// Reason why the set is not fully understood, if so.
    pub opaque: Option<String>,
    /// Elements, ordered by key, the end of an interval before the start of another one; `None` if they were not read.
    pub elements: Option<Vec<Element>>,
}

/// An element of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Key, or the first key of an interval.
    pub key: Vec<u8>,
    /// Last key of an interval of concatenations. Other intervals last until the next element.
    pub to: Option<Vec<u8>>,
    /// Whether the element only ends an interval: its key is the first one behind it.
    pub ends: bool,
    /// Whether the element stands for all keys without one of their own.
    pub catch_all: bool,
    /// Data of a map's element.
    pub data: Option<Data>,
    /// Whether it expires.
    pub expires: bool,
    /// Side effect of a lookup that finds the element, or a part of it that is not understood, if any: "counter".
    pub acts: Option<String>,
}

/// Data of a map's element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A value.
    Value(Vec<u8>),
    /// A verdict.
    Verdict(Verdict),
}

impl Set {
    /// Puts elements into their order.
    pub(super) fn sort(elements: &mut [Element]) {
        elements.sort_by(|a, b| a.key.cmp(&b.key).then(b.ends.cmp(&a.ends)));
    }
}
