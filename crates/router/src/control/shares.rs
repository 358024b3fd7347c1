//! How the buckets of a group are shared by its members, so that flows stay where they are.
//!
//! A packet's flow names a bucket, the bucket a member. When a member goes, only its buckets get others; when one comes,
//! it gets its share of everybody's and nothing else moves. That needs memory: a group's buckets are laid out from what
//! they were, and those of a new group from the group that has most in common with it, which is the one that routes
//! change from when a router is lost or comes back.

use std::collections::HashMap;
use std::sync::Arc;

/// Most buckets of a group, and how many it has while there are few groups: a share is exact to 1/256.
pub(super) const MAX_BUCKETS: usize = 256;
/// Groups beyond this many are laid out in fewer buckets, so that all of them fit the XDP program's table.
const FULL: usize = 128;
/// Buckets of those groups, where that is enough for their weights.
const SMALL: usize = 64;
/// A new group is compared with this many others at most.
const COMPARED: usize = 1024;

/// A member, by id, and its weight.
pub(super) type Weighted = (u32, u32);

struct Layout {
    /// Who the group is: its id may have been another's before.
    group: Arc<[Weighted]>,
    buckets: Vec<u32>,
    /// Counts layouts: of two it says which is later.
    made: u64,
}

/// The layouts of all groups, by their ids.
#[derive(Default)]
pub(super) struct Shares {
    layouts: HashMap<u32, Layout>,
    made: u64,
}

impl Shares {
    /// The buckets of the group `id`, whose members are sorted by id.
    pub fn of(&mut self, id: u32, group: &Arc<[Weighted]>) -> &[u32] {
        if self.layouts.get(&id).is_none_or(|layout| layout.group != *group) {
            let shares = used(group);
            let before = self.nearest(shares).map(|layout| layout.buckets.as_slice()).unwrap_or_default();
            let count = match before.len() {
                known if known >= shares.len() && known > 0 => known,
                _ => size(shares, self.layouts.len()),
            };
            let buckets = lay_out(shares, before, count);
            self.made += 1;
            self.layouts.insert(id, Layout { group: group.clone(), buckets, made: self.made });
        }
        &self.layouts[&id].buckets
    }

    /// Forgets groups that are no more.
    pub fn retain(&mut self, lives: impl Fn(u32) -> bool) {
        self.layouts.retain(|id, _| lives(*id));
    }

    /// The layout that shares most of its members with a group that is new; of several the latest, which is the one in use:
    /// those before it wait for their end.
    fn nearest(&self, shares: &[Weighted]) -> Option<&Layout> {
        let common = |layout: &Layout| {
            let theirs = |id: u32| used(&layout.group).binary_search_by_key(&id, |share| share.0).is_ok();
            shares.iter().filter(|share| theirs(share.0)).count()
        };
        let known = self.layouts.values().take(COMPARED).map(|layout| (common(layout), layout));
        known.filter(|(n, _)| *n > 0).max_by_key(|(n, layout)| (*n, layout.made)).map(|(_, layout)| layout)
    }
}

/// Those of a group's members that there are buckets for.
fn used(group: &[Weighted]) -> &[Weighted] {
    &group[..group.len().min(MAX_BUCKETS)]
}

/// How many buckets a group gets beside so many others.
fn size(shares: &[Weighted], groups: usize) -> usize {
    let weights: u64 = shares.iter().map(|share| u64::from(share.1)).sum();
    if groups >= FULL && weights <= SMALL as u64 { SMALL } else { MAX_BUCKETS }
}

/// How many of `count` buckets each member gets: what is left by rounding down goes to the largest remainders. Nobody gets
/// none: whoever has most gives one.
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

/// The buckets, as many of them as can be as they were.
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
    // Those without a member, one after the other to each that has too few: all get of what is free, wherever it is.
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
        // Somebody with next to nothing gets something all the same.
        let weighted = counts(Shares::default().all(1, &[(7, 256), (8, 256), (9, 1)]));
        assert_eq!(weighted.last(), Some(&(9, 1)));
        assert_eq!(Shares::default().all(1, &even(300)).len(), 256);
    }

    #[test]
    fn only_the_flows_of_who_goes_or_comes_move() {
        let mut all = Shares::default();
        let four = [(10, 1), (11, 1), (12, 1), (13, 1)];
        let before = all.all(1, &four).to_vec();
        // A new group without one of them: FRR makes one when a router is lost.
        let without = [four[0], four[1], four[3]];
        let after = all.all(2, &without).to_vec();
        let lost = |(was, is): (&u32, &u32)| if *was == 12 { *is != 12 } else { is == was };
        assert!(before.iter().zip(&after).all(lost), "{before:?}\n{after:?}");
        assert_eq!(counts(&after).iter().map(|c| c.1).max(), Some(86));
        // The first group has gone meanwhile; the member comes back: it gets a quarter, nothing else moves.
        all.retain(|id| id == 2);
        let back = all.all(3, &four).to_vec();
        assert_eq!(moved(&after, &back), 64);
        assert!(after.iter().zip(&back).all(|(was, is)| was == is || *is == 12));
        // Two go, one after the other, while the groups before are not forgotten: it is the latest that counts.
        let mut all = Shares::default();
        all.all(9, &four);
        let three = all.all(5, &without).to_vec();
        let two = all.all(7, &[four[0], four[1]]).to_vec();
        assert!(three.iter().zip(&two).all(|(was, is)| *was == 13 || was == is));
        // An id that was another group's says nothing of what this one was.
        all.all(8, &[(20, 1), (21, 1)]);
        let again = all.all(8, &[four[0], four[1], four[3]]).to_vec();
        assert_eq!(moved(&two, &again), 256 / 3);
        // Other weights move what they must.
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
