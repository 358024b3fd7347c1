//! Octets of which some bits are not known: the contents of registers during a symbolic evaluation.

use super::Comparison;

/// Reason why a value is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Why<'a> {
    /// Packets among which the value differs.
    pub of: Of,
    /// The value: "ip dscp".
    pub what: &'a str,
}

/// Packets among which an unknown value differs. The order is that of the weaker promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// It is the same for all packets of a flow, but differs between flows.
    Flows,
    /// It may differ between packets of one flow, or from one moment to the next.
    Packets,
}

/// Answer to a question about a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth<'a> {
    /// The condition holds.
    Yes,
    /// The condition does not hold.
    No,
    /// The condition depends on a value that is not known.
    Maybe(Why<'a>),
}

impl Truth<'_> {
    /// Returns the opposite answer.
    pub fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            maybe => maybe,
        }
    }

    /// Returns whether both hold; if neither is known, with the weaker of the reasons.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, other) => other,
            (one, Self::Yes) => one,
            (Self::Maybe(one), Self::Maybe(other)) => Self::Maybe(one.max(other)),
        }
    }

    /// Returns whether one of them holds.
    pub fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }
}

impl From<bool> for Truth<'_> {
    fn from(is: bool) -> Self {
        if is { Self::Yes } else { Self::No }
    }
}

/// An octet of which the bits in `known` are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Octet<'a> {
    /// Value; bits that are not known are 0.
    pub value: u8,
    /// Bits that are known.
    pub known: u8,
    /// Reason why the other bits are unknown.
    pub why: Why<'a>,
}

impl<'a> Octet<'a> {
    /// Creates an octet that is known.
    pub fn new(value: u8) -> Self {
        Self { value, known: 0xff, why: Why { of: Of::Flows, what: "" } }
    }

    /// Creates an octet that is not known.
    pub fn unknown(why: Why<'a>) -> Self {
        Self { value: 0, known: 0, why }
    }
}

/// Returns known octets.
pub fn known<'a>(value: &[u8]) -> Vec<Octet<'a>> {
    value.iter().map(|&octet| Octet::new(octet)).collect()
}

/// Returns `len` octets that are not known.
pub fn unknown(len: usize, why: Why<'_>) -> Vec<Octet<'_>> {
    vec![Octet::unknown(why); len]
}

/// Returns the value, if all of it is known.
pub fn value(octets: &[Octet<'_>]) -> Option<Vec<u8>> {
    octets.iter().map(|octet| (octet.known == 0xff).then_some(octet.value)).collect()
}

/// Returns the weakest reason why a part of the value is not known.
fn why<'a>(octets: &[Octet<'a>]) -> Option<Why<'a>> {
    octets.iter().filter(|octet| octet.known != 0xff).map(|octet| octet.why).max_by_key(|why| why.of)
}

/// Returns the least and the greatest value that the octets may have, as a number in network order.
pub fn bounds(octets: &[Octet<'_>]) -> (Vec<u8>, Vec<u8>) {
    (octets.iter().map(|o| o.value).collect(), octets.iter().map(|o| o.value | !o.known).collect())
}

fn decide<'a>(octets: &[Octet<'a>], yes: bool, no: bool) -> Truth<'a> {
    match why(octets) {
        _ if yes => Truth::Yes,
        _ if no => Truth::No,
        Some(why) => Truth::Maybe(why),
        None => Truth::No,
    }
}

/// Returns whether the octets are `value`.
pub fn equal<'a>(octets: &[Octet<'a>], value: &[u8]) -> Truth<'a> {
    let differs = octets.iter().zip(value).any(|(octet, value)| (octet.value ^ value) & octet.known != 0);
    let all = octets.iter().all(|octet| octet.known == 0xff);
    decide(octets, all && !differs, differs)
}

/// Returns whether the octets are from `first` to `last`.
pub fn within<'a>(octets: &[Octet<'a>], first: &[u8], last: &[u8]) -> Truth<'a> {
    let (min, max) = bounds(octets);
    decide(octets, *min >= *first && *max <= *last, *max < *first || *min > *last)
}

/// Compares the octets with `value` of the same length (nft_cmp_eval).
pub fn compare<'a>(octets: &[Octet<'a>], by: Comparison, value: &[u8]) -> Truth<'a> {
    let (min, max) = bounds(octets);
    match by {
        Comparison::Equal => equal(octets, value),
        Comparison::NotEqual => equal(octets, value).not(),
        Comparison::Less => decide(octets, *max < *value, *min >= *value),
        Comparison::LessOrEqual => decide(octets, *max <= *value, *min > *value),
        Comparison::Greater => decide(octets, *min > *value, *max <= *value),
        Comparison::GreaterOrEqual => decide(octets, *min >= *value, *max < *value),
    }
}

/// Returns `(octets & mask) ^ xor`.
pub fn bitwise<'a>(octets: &[Octet<'a>], mask: &[u8], xor: &[u8]) -> Vec<Octet<'a>> {
    let one = |((octet, mask), xor): ((&Octet<'a>, &u8), &u8)| {
        let known = octet.known | !mask;
        Octet { value: ((octet.value & mask) ^ xor) & known, known, why: octet.why }
    };
    octets.iter().zip(mask).zip(xor).map(one).collect()
}

/// Converts numbers of `size` octets between host and network order.
pub fn byte_order<'a>(octets: &[Octet<'a>], size: usize) -> Option<Vec<Octet<'a>>> {
    let fits = matches!(size, 2 | 4 | 8) && octets.len().is_multiple_of(size);
    let swapped = |number: &[Octet<'a>]| number.iter().rev().copied().collect::<Vec<_>>();
    fits.then(|| match cfg!(target_endian = "little") {
        true => octets.chunks(size).flat_map(swapped).collect(),
        false => octets.to_vec(),
    })
}

/// Returns what several values have in common.
pub fn merged<'a>(values: &[&[u8]], why: Why<'a>) -> Vec<Octet<'a>> {
    let Some((first, others)) = values.split_first() else { return Vec::new() };
    let one = |(at, value): (usize, &u8)| {
        let differ = others.iter().fold(0, |bits, other| bits | other.get(at).map_or(0xff, |octet| octet ^ value));
        Octet { value: value & !differ, known: !differ, why }
    };
    first.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHY: Why<'static> = Why { of: Of::Packets, what: "x" };

    fn octets(parts: &[(u8, u8)]) -> Vec<Octet<'static>> {
        parts.iter().map(|&(value, known)| Octet { value: value & known, known, why: WHY }).collect()
    }

    proptest! {
        /// Every answer holds for every value that the octets may have.
        #[test]
        fn answers_hold_for_every_value(
            parts in prop::collection::vec((any::<u8>(), prop::sample::select(vec![0xff, 0xff, 0xf0, 0, 0xfe])), 1..4),
            random in prop::collection::vec(prop::collection::vec(any::<u8>(), 4), 16),
            (first, last) in (prop::collection::vec(any::<u8>(), 4), prop::collection::vec(any::<u8>(), 4)),
            near in any::<bool>(),
        ) {
            let octets = octets(&parts);
            let len = octets.len();
            let (min, max) = bounds(&octets);
            // Comparisons with random values would rarely meet the limits.
            let (first, last) = if near { (min.clone(), max.clone()) } else { (first[..len].to_vec(), last[..len].to_vec()) };
            let mut values: Vec<Vec<u8>> = random
                .iter()
                .map(|bits| octets.iter().zip(bits).map(|(o, bits)| o.value | bits & !o.known).collect())
                .collect();
            values.extend([min, max]);
            for value in values {
                let holds = |truth: Truth<'_>, is: bool| match truth {
                    Truth::Yes => is,
                    Truth::No => !is,
                    Truth::Maybe(_) => octets.iter().any(|o| o.known != 0xff),
                };
                prop_assert!(holds(within(&octets, &first, &last), value >= first && value <= last));
                let wanted = [
                    (Comparison::Equal, value == first),
                    (Comparison::NotEqual, value != first),
                    (Comparison::Less, value < first),
                    (Comparison::LessOrEqual, value <= first),
                    (Comparison::Greater, value > first),
                    (Comparison::GreaterOrEqual, value >= first),
                ];
                for (by, is) in wanted {
                    prop_assert!(holds(compare(&octets, by, &first), is), "{by:?}");
                }
            }
        }
    }

    #[test]
    fn known_bits_decide() {
        let state = octets(&[(2, 0xff), (0, 0xff)]);
        assert_eq!(equal(&state, &[2, 0]), Truth::Yes);
        // The flags of a TCP segment that is neither first nor last.
        let flags = octets(&[(0, 0x07)]);
        assert_eq!(equal(&flags, &[0x02]), Truth::No);
        assert_eq!(equal(&flags, &[0x10]), Truth::Maybe(WHY));
        assert_eq!(compare(&flags, Comparison::NotEqual, &[0x02]), Truth::Yes);
    }
}
