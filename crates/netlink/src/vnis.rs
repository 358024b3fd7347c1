//! Network identifiers (VNIs) of a VXLAN with a filter.

use std::collections::BTreeMap;

/// Set of VNIs: as few ranges as possible, by their first VNI. A VXLAN may have thousands, which are added and removed
/// one by one, and each change is followed by a search for the VNI of each VLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vnis(BTreeMap<u32, u32>);

impl Vnis {
    /// Returns whether a VNI is among them.
    pub fn has(&self, vni: u32) -> bool {
        self.0.range(..=vni).next_back().is_some_and(|(_, last)| vni <= *last)
    }

    /// Adds the VNIs from `first` to `last`.
    pub fn add(&mut self, first: u32, last: u32) {
        if first > last {
            return;
        }
        // Those that overlap, or precede or follow directly.
        let touched = |(from, to): (&u32, &u32)| (to.saturating_add(1) >= first).then_some((*from, *to));
        let touched: Vec<_> = self.0.range(..=last.saturating_add(1)).rev().map_while(touched).collect();
        let (mut from, mut to) = (first, last);
        for (known, end) in touched {
            self.0.remove(&known);
            (from, to) = (from.min(known), to.max(end));
        }
        self.0.insert(from, to);
    }

    /// Removes the VNIs from `first` to `last`.
    pub fn remove(&mut self, first: u32, last: u32) {
        if first > last {
            return;
        }
        let overlaps = |(from, to): (&u32, &u32)| (*to >= first).then_some((*from, *to));
        let overlapping: Vec<_> = self.0.range(..=last).rev().map_while(overlaps).collect();
        for (from, to) in overlapping {
            self.0.remove(&from);
            if from < first {
                self.0.insert(from, first - 1);
            }
            if to > last {
                self.0.insert(last + 1, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_are_those_of_the_set(
            changes in prop::collection::vec((any::<bool>(), 1u32..40, 0u32..12), 0..40),
            offset in prop::sample::select(vec![0, u32::MAX - 50]),
        ) {
            let (mut vnis, mut set) = (Vnis::default(), BTreeSet::new());
            for (adds, first, length) in changes {
                let (first, last) = (offset + first, offset + first + length - 1);
                match adds {
                    true => vnis.add(first, last),
                    false => vnis.remove(first, last),
                }
                for vni in first..=last {
                    let _ = if adds { set.insert(vni) } else { set.remove(&vni) };
                }
                let all: BTreeSet<u32> = (offset..=offset + 50).filter(|vni| vnis.has(*vni)).collect();
                prop_assert_eq!(&all, &set);
                let begins = set.iter().filter(|vni| vni.checked_sub(1).is_none_or(|before| !set.contains(&before)));
                prop_assert_eq!(vnis.0.len(), begins.count(), "as few as possible: {:?}", vnis);
            }
        }
    }
}
