//! Content of routes, stored once: half a million routes by the same gateway share one record.

use bywash_fib::model::{NextHop, Route, RouteKind};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

/// Resolution of a set with the current ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Not resolved yet.
    Stale,
    /// A next-hop id, to which the set holds a reference.
    Id(u32),
    /// On-link by the next hop at this index: the id also depends on the prefix.
    OnLink(u32),
}

/// Content of a route: everything except prefix, metric and origin.
pub(super) struct Set {
    /// Set for routes of IPv6.
    pub v6: bool,
    pub kind: RouteKind,
    pub mtu: Option<u32>,
    pub source: Option<IpAddr>,
    pub hops: Arc<[NextHop]>,
    pub outcome: Outcome,
    refs: u32,
    hash: u64,
}

impl Set {
    fn says(&self, r: &Route) -> bool {
        self.v6 == r.prefix.addr.is_ipv6()
            && self.kind == r.kind
            && self.mtu == r.mtu
            && self.source == r.source
            && self.hops == r.next_hops
    }
}

/// All sets, by number.
#[derive(Default)]
pub(super) struct Sets {
    sets: Vec<Option<Set>>,
    free: Vec<u32>,
    by_hash: HashMap<u64, Vec<u32>>,
    hasher: RandomState,
    /// The set requested last: equal routes come in runs.
    last: u32,
    /// Number of sets with an MTU.
    with_mtu: usize,
    /// Number of sets with several next hops.
    several: usize,
}

impl Sets {
    pub fn len(&self) -> usize {
        self.sets.len() - self.free.len()
    }

    /// Returns whether any route has an MTU of its own.
    pub fn has_mtu(&self) -> bool {
        self.with_mtu > 0
    }

    /// Returns whether any route has several next hops.
    pub fn has_several(&self) -> bool {
        self.several > 0
    }

    pub fn get(&self, id: u32) -> &Set {
        self.sets[id as usize].as_ref().expect("a set that a route holds")
    }

    pub fn get_mut(&mut self, id: u32) -> &mut Set {
        self.sets[id as usize].as_mut().expect("a set that a route holds")
    }

    pub fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        let living: Vec<u32> = (0u32..).zip(&self.sets).filter(|(_, s)| s.is_some()).map(|(n, _)| n).collect();
        living.into_iter()
    }

    /// Returns the set with the content of `route` and adds a reference, which [`Sets::release`] drops.
    pub fn hold(&mut self, route: &Route) -> u32 {
        let v6 = route.prefix.addr.is_ipv6();
        let last = self.sets.get_mut(self.last as usize).and_then(Option::as_mut);
        if let Some(set) = last.filter(|s| s.says(route)) {
            set.refs += 1;
            return self.last;
        }
        let hash = self.hasher.hash_one((v6, route.kind, route.mtu, route.source, &route.next_hops));
        let same = self.by_hash.entry(hash).or_default();
        let known = same.iter().copied().find(|id| self.sets[*id as usize].as_ref().is_some_and(|s| s.says(route)));
        self.last = match known {
            Some(id) => {
                self.get_mut(id).refs += 1;
                id
            }
            None => {
                let id = self.free.pop().unwrap_or_else(|| {
                    self.sets.push(None);
                    self.sets.len() as u32 - 1
                });
                same.push(id);
                self.with_mtu += usize::from(route.mtu.is_some());
                self.several += usize::from(route.next_hops.len() > 1);
                self.sets[id as usize] = Some(Set {
                    v6,
                    kind: route.kind,
                    mtu: route.mtu,
                    source: route.source,
                    hops: route.next_hops.clone(),
                    outcome: Outcome::Stale,
                    refs: 1,
                    hash,
                });
                id
            }
        };
        self.last
    }

    /// Drops a reference. With the last one, returns the set's resolution, whose id the caller must release.
    pub fn release(&mut self, id: u32) -> Option<Outcome> {
        let set = self.get_mut(id);
        set.refs -= 1;
        if set.refs > 0 {
            return None;
        }
        let set = self.sets[id as usize].take()?;
        self.free.push(id);
        self.with_mtu -= usize::from(set.mtu.is_some());
        self.several -= usize::from(set.hops.len() > 1);
        if let Some(same) = self.by_hash.get_mut(&set.hash) {
            same.retain(|n| *n != id);
            if same.is_empty() {
                self.by_hash.remove(&set.hash);
            }
        }
        Some(set.outcome)
    }
}
