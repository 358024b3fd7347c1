//! Sets and maps.

use super::octets::{self, Octet, Of, Truth, Why};
use super::{Comparison, Verdict};

/// A set, or a map if its elements have data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Name, unique in its table; anonymous sets have one too.
    pub name: String,
    /// Length of a key, in octets.
    pub key_len: usize,
    /// Set if elements are intervals (NFT_SET_INTERVAL).
    pub interval: bool,
    /// Lengths of the fields of a concatenation, in octets; empty if the key is a single field.
    pub fields: Vec<usize>,
    /// Reason why packets or time change the set without an announcement, if so: "flags dynamic".
    pub volatile: Option<&'static str>,
    /// Reason why the set is not fully understood, if so.
    pub opaque: Option<String>,
    /// Side effect of an expression that new elements get, if any: "counter".
    pub acts: Option<String>,
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
    /// Set if the element only ends an interval: its key is the first one behind it.
    pub ends: bool,
    /// Set if the element stands for all keys without an element of their own.
    pub catch_all: bool,
    /// Data of a map's element.
    pub data: Option<Data>,
    /// Set if it expires.
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

impl Element {
    /// Returns whether finding the element has the same consequences as finding `other`.
    fn gives_like(&self, other: &Self) -> bool {
        self.data == other.data && self.expires == other.expires && self.acts == other.acts
    }
}

/// Elements that a lookup may find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The elements: exactly one is found, or none.
    pub elements: Vec<&'a Element>,
    /// Set if it may find none.
    pub none: bool,
    /// Unknown value that it depends on, if so.
    pub why: Option<Why<'a>>,
}

impl Set {
    /// Returns the elements that a lookup of `key`, of [`Set::key_len`] octets, may find. `Err` if they cannot be
    /// determined.
    pub(super) fn find<'a>(&'a self, key: &[Octet<'a>]) -> Result<Found<'a>, Why<'a>> {
        let whatever = |what| Why { of: Of::Packets, what };
        let unclear = self.opaque.as_deref().or(self.volatile);
        if let Some(why) = unclear {
            return Err(whatever(why));
        }
        let elements = self.elements.as_ref().ok_or(whatever("elements that were not read"))?;
        let mut found = Found { elements: Vec::new(), none: true, why: None };
        let overlaps = self.overlaps();
        match octets::value(key).filter(|_| !overlaps) {
            Some(key) => {
                found.elements.extend(self.exact(elements, &key));
                found.none = found.elements.is_empty();
            }
            None => {
                for (at, element) in elements.iter().enumerate() {
                    match self.holds(elements, at, key) {
                        Truth::Yes if overlaps => {
                            found.elements.push(element);
                            found.none = false;
                        }
                        Truth::Yes => {
                            found = Found { elements: vec![element], none: false, why: None };
                            break;
                        }
                        Truth::No => {}
                        Truth::Maybe(why) => {
                            found.elements.push(element);
                            found.why = found.why.max(Some(why));
                        }
                    }
                }
            }
        }
        if overlaps && found.elements.len() > 1 {
            if found.elements.iter().all(|element| element.gives_like(found.elements[0])) {
                found.elements.truncate(1);
            } else {
                found.why = found.why.max(Some(whatever("order of overlapping elements")));
            }
        }
        if found.none
            && let Some(rest) = self.catch_all()
        {
            found.elements.push(rest);
            found.none = false;
        }
        Ok(found)
    }

    /// Returns the element that stands for all keys without an element of their own: its key is empty and sorts first.
    pub(super) fn catch_all(&self) -> Option<&Element> {
        self.elements.as_ref()?.first().filter(|element| element.catch_all)
    }

    /// Returns the side effect that a lookup in the set may have, if any: that of an element, or of the set's
    /// expressions, which its elements get. Elements that are not known may have any.
    pub(super) fn acts(&self) -> Option<&str> {
        let of = || self.elements.iter().flatten().find_map(|element| element.acts.as_deref());
        let unread = self.elements.is_none().then_some("elements that were not read");
        self.opaque.as_deref().or(unread).or(self.acts.as_deref()).or_else(of)
    }

    /// Returns the number of elements that [`Set::find`] compares with `key` one by one.
    pub(super) fn scans(&self, key: &[Octet<'_>]) -> usize {
        let searches = octets::value(key).is_some() && !self.overlaps();
        self.elements.as_ref().map_or(0, |elements| if searches { 0 } else { elements.len() })
    }

    /// Returns whether elements may overlap: those of a concatenation of intervals. The one that was added first is
    /// found, an order that is not known.
    fn overlaps(&self) -> bool {
        self.interval && !self.fields.is_empty()
    }

    /// Returns the element of a known key. Intervals last until the next element, which may be a start or an end
    /// (nft_rbtree_lookup).
    fn exact<'a>(&self, elements: &'a [Element], key: &[u8]) -> Option<&'a Element> {
        let before = elements.partition_point(|element| element.key.as_slice() <= key);
        let nearest = elements.get(before.checked_sub(1)?)?;
        let last = nearest.to.as_deref().is_none_or(|last| key <= last);
        (!nearest.ends && !nearest.catch_all && last && (self.interval || nearest.key == key)).then_some(nearest)
    }

    /// Returns whether the element at a place of `elements` has the key.
    fn holds<'a>(&self, elements: &[Element], at: usize, key: &[Octet<'a>]) -> Truth<'a> {
        let element = &elements[at];
        if element.ends || element.catch_all || element.key.len() != key.len() {
            return Truth::No;
        }
        match (self.interval, self.fields.is_empty()) {
            (false, _) => octets::equal(key, &element.key),
            (true, true) => {
                let behind = elements.get(at + 1).map(|next| octets::compare(key, Comparison::Less, &next.key));
                let last = element.to.as_ref().map(|last| octets::compare(key, Comparison::LessOrEqual, last));
                let end = behind.unwrap_or(Truth::Yes).and(last.unwrap_or(Truth::Yes));
                octets::compare(key, Comparison::GreaterOrEqual, &element.key).and(end)
            }
            (true, false) => {
                let last = element.to.as_ref().unwrap_or(&element.key);
                let mut all = Truth::Yes;
                let mut start = 0;
                for len in &self.fields {
                    let field = start..start + len;
                    let parts = (key.get(field.clone()), element.key.get(field.clone()), last.get(field));
                    let (Some(key), Some(first), Some(last)) = parts else { return Truth::No };
                    all = all.and(octets::within(key, first, last));
                    start += len.next_multiple_of(4);
                }
                all
            }
        }
    }

    /// Sets the elements, in any order. A set whose keys differ in length is not understood.
    pub(super) fn fill(&mut self, mut elements: Vec<Element>) {
        let fits = |key: &Vec<u8>| key.len() == self.key_len;
        if !elements.iter().all(|of| of.catch_all || (fits(&of.key) && of.to.iter().all(fits))) {
            self.opaque.get_or_insert("keys of another length".into());
        }
        Self::sort(&mut elements);
        self.elements = Some(elements);
    }

    /// Puts elements into their order.
    pub(super) fn sort(elements: &mut [Element]) {
        elements.sort_by(|a, b| a.key.cmp(&b.key).then(b.ends.cmp(&a.ends)));
    }
}
