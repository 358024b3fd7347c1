//! Distribution of a group's buckets among its members that keeps flows where they are.
//!
//! A packet's flow hash selects a bucket, and the bucket a member. When a member is removed, only its buckets are
//! reassigned; when one is added, it takes its share from all others and nothing else moves. This requires memory: a
//! group's buckets are derived from its former ones, and those of a new group from the group that shares the most
//! members with it, which is the one that routes switch from when a router is lost or returns.

use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of buckets of a group, used while there are few groups: a share is exact to 1/256.
pub(super) const MAX_BUCKETS: usize = 256;
/// Number of groups beyond which new ones get fewer buckets, so that all of them fit the XDP program's table.
const FULL: usize = 128;
/// Number of buckets of those groups, if that is enough for their weights.
const SMALL: usize = 64;
/// Maximum number of groups with which a new one is compared.
const COMPARED: usize = 1024;

/// Id of a member, and its weight.
pub(super) type Weighted = (u32, u32);

struct Layout {
    /// Members of the group, because its id may have been another group's before.
    group: Arc<[Weighted]>,
    buckets: Vec<u32>,
    /// Sequence number, which orders layouts by age.
    made: u64,
}

/// Layouts of all groups, by id.
#[derive(Default)]
pub(super) struct Shares {
    layouts: HashMap<u32, Layout>,
    made: u64,
}

impl Shares {
    /// Returns the buckets of the group `id`, whose members are sorted by id.
    pub fn of(&mut self, id: u32, group: &Arc<[Weighted]>) -> &[u32] {
        if self.layouts.get(&id).is_none_or(|layout| layout.group != *group) {
            let shares = used(group);
            let before = self.nearest(shares).map(|layout| layout.buckets.as_slice()).unwrap_or_default();
            let count = before.len().max(size(shares, self.layouts.len()));
            let buckets = lay_out(shares, before, count);
            self.made += 1;
            self.layouts.insert(id, Layout { group: group.clone(), buckets, made: self.made });
        }
        &self.layouts[&id].buckets
    }

    /// Removes the layouts of groups that no longer exist.
    pub fn retain(&mut self, lives: impl Fn(u32) -> bool) {
        self.layouts.retain(|id, _| lives(*id));
    }

    /// Returns the layout that shares the most members with a new group. Of several, the latest, because that is the
    /// one in use: earlier ones are about to be removed.
    fn nearest(&self, shares: &[Weighted]) -> Option<&Layout> {
        let common = |layout: &Layout| {
            let theirs = |id: u32| used(&layout.group).binary_search_by_key(&id, |share| share.0).is_ok();
            shares.iter().filter(|share| theirs(share.0)).count()
        };
        let known = self.layouts.values().take(COMPARED).map(|layout| (common(layout), layout));
        known.filter(|(n, _)| *n > 0).max_by_key(|(n, layout)| (*n, layout.made)).map(|(_, layout)| layout)
    }
}

/// Returns the members of a group for which there are buckets.
fn used(group: &[Weighted]) -> &[Weighted] {
    &group[..group.len().min(MAX_BUCKETS)]
}

/// Returns the number of buckets of a group when there are `groups` others.
fn size(shares: &[Weighted], groups: usize) -> usize {
    let weights: u64 = shares.iter().map(|share| u64::from(share.1)).sum();
    if groups >= FULL && weights <= SMALL as u64 { SMALL } else { MAX_BUCKETS }
}

/// Returns the number of buckets of each member, out of `count`. Buckets left by rounding down go to the largest
/// remainders. Every member gets at least one, taken from the member with the most.
fn quotas(shares: &[Weighted], count: usize) -> Vec<usize> {
    let total: u64 = shares.iter().map(|share| u64::from(share.1)).sum::<u64>().max(1);
    let exact = |at: usize| u64::from(shares[at].1) * count as u64;
    let mut quotas: Vec<usize> = (0..shares.len()).map(|at| (exact(at) / total) as usize).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(exact(at) % total));
    let left = count - quotas.iter().sum::<usize>();
    order.into_iter().take(left).for_each(|at| quotas[at] += 1);
    while let Some(none) = quotas.iter().position(|quota| *quota == 0)
        && let Some(most) = (0..quotas.len()).max_by_key(|at| quotas[*at])
    {
        (quotas[none], quotas[most]) = (1, quotas[most] - 1);
    }
    quotas
}

/// Returns the buckets, with as many as possible unchanged.
fn lay_out(shares: &[Weighted], before: &[u32], count: usize) -> Vec<u32> {
    let mut left = quotas(shares, count);
    let member = |id: u32| shares.binary_search_by_key(&id, |share| share.0).ok();
    let mut buckets: Vec<Option<u32>> = vec![None; count];
    for (at, bucket) in buckets.iter_mut().enumerate() {
        let was = before.get(at * before.len() / count).copied();
        if let Some(id) = was
            && let Some(member) = member(id)
            && left[member] > 0
        {
            left[member] -= 1;
            *bucket = Some(id);
        }
    }
    // Free buckets go in turn to the members that have too few, so that all of them get buckets from everywhere.
    let mut next = 0;
    for bucket in buckets.iter_mut().filter(|bucket| bucket.is_none()) {
        while left[next % left.len()] == 0 {
            next += 1;
        }
        left[next % shares.len()] -= 1;
        *bucket = Some(shares[next % shares.len()].0);
        next += 1;
    }
    buckets.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Shares {
        fn all(&mut self, id: u32, members: &[Weighted]) -> &[u32] {
            self.of(id, &members.into())
        }
    }

    fn counts(buckets: &[u32]) -> Vec<(u32, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        buckets.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
        counts.into_iter().collect()
    }

    fn moved(before: &[u32], after: &[u32]) -> usize {
        assert_eq!(before.len(), after.len());
        before.iter().zip(after).filter(|(a, b)| a != b).count()
    }

    #[test]
    fn shares_are_even_and_by_weight() {
        let mut all = Shares::default();
        let even = |n: u32| (0..n).map(|id| (id, 1)).collect::<Vec<_>>();
        for n in 1..=256 {
            let counts = counts(all.all(1000 + n, &even(n)));
            assert_eq!(counts.len(), n as usize);
            let (least, most) = (counts.iter().map(|c| c.1).min(), counts.iter().map(|c| c.1).max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{n}: {counts:?}");
        }
        let weighted = counts(Shares::default().all(1, &[(7, 3), (8, 1)]));
        assert_eq!(weighted, [(7, 192), (8, 64)]);
        // A member with a tiny weight still gets a bucket.
        let weighted = counts(Shares::default().all(1, &[(7, 256), (8, 256), (9, 1)]));
        assert_eq!(weighted.last(), Some(&(9, 1)));
        assert_eq!(Shares::default().all(1, &even(300)).len(), 256);
    }

    #[test]
    fn only_the_flows_of_who_goes_or_comes_move() {
        let mut all = Shares::default();
        let four = [(10, 1), (11, 1), (12, 1), (13, 1)];
        let before = all.all(1, &four).to_vec();
        // A new group without one of the members, as FRR creates when a router is lost.
        let without = [four[0], four[1], four[3]];
        let after = all.all(2, &without).to_vec();
        let lost = |(was, is): (&u32, &u32)| if *was == 12 { *is != 12 } else { is == was };
        assert!(before.iter().zip(&after).all(lost), "{before:?}\n{after:?}");
        assert_eq!(counts(&after).iter().map(|c| c.1).max(), Some(86));
        // The first group has been removed meanwhile; the member returns and gets a quarter, nothing else moves.
        all.retain(|id| id == 2);
        let back = all.all(3, &four).to_vec();
        assert_eq!(moved(&after, &back), 64);
        assert!(after.iter().zip(&back).all(|(was, is)| was == is || *is == 12));
        // Two members are removed one after the other while the former groups remain: the latest one counts.
        let mut all = Shares::default();
        all.all(9, &four);
        let three = all.all(5, &without).to_vec();
        let two = all.all(7, &[four[0], four[1]]).to_vec();
        assert!(three.iter().zip(&two).all(|(was, is)| *was == 13 || was == is));
        // An id that belonged to another group is no precedent for this one.
        all.all(8, &[(20, 1), (21, 1)]);
        let again = all.all(8, &[four[0], four[1], four[3]]).to_vec();
        assert_eq!(moved(&two, &again), 256 / 3);
        // Changed weights move only as many buckets as needed.
        let heavier = all.all(4, &[(10, 2), (11, 1), (12, 1), (13, 1)]).to_vec();
        assert!(heavier.iter().filter(|id| **id == 10).count() >= 102);
    }

    #[test]
    fn many_groups_are_smaller_and_no_stranger_matters() {
        let mut all = Shares::default();
        for n in 0..1000 {
            let count = all.all(n, &[(2 * n, 1), (2 * n + 1, 1)]).len();
            assert_eq!(count, if n < 128 { 256 } else { 64 }, "{n}");
        }
        let total: usize = (0..1000).map(|n| all.all(n, &[(2 * n, 1), (2 * n + 1, 1)]).len()).sum();
        assert!(total > 65_536, "as many as this do not fit, and the rest is forwarded in user space");
    }
}
