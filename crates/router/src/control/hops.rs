//! Next-hop ids: their references, and when they are allocated and reused.
//!
//! An id is held by FIB prefixes, by sets of next hops and by groups. When its last holder releases it, it is retired
//! with an epoch of the reclamation domain; when that epoch has passed, no worker can be using it, and it is free. A
//! retired id can be held again before that: it stays in the published tables until then.

use crate::tables::Kind;
use bywash_fib::model::{Outer, Prefix};
use bywash_sync::Qsbr;
use bywash_sync::qsbr::Epoch;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

/// Kinds of the fixed ids, which always exist, in this order.
pub(super) const FIXED: [Kind; 8] = [
    Kind::NoRoute,
    // Separate from id 0, which means no route in the FIB: this one hides less specific routes (`throw`).
    Kind::NoRoute,
    Kind::Blackhole,
    Kind::Unreachable,
    Kind::Prohibit,
    Kind::Local,
    Kind::Kernel,
    Kind::Policy,
];
pub(super) const THROW: u32 = 1;
pub(super) const BLACKHOLE: u32 = 2;
pub(super) const UNREACHABLE: u32 = 3;
pub(super) const PROHIBIT: u32 = 4;
pub(super) const LOCAL: u32 = 5;
pub(super) const KERNEL: u32 = 6;
pub(super) const POLICY: u32 = 7;

/// Neighbour to which an adjacency leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Neighbour {
    /// A given neighbour.
    Via(IpAddr),
    /// The packet's destination. The prefix is set only if it determines the source address.
    Glean(Option<Prefix>),
}

/// A next hop on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Adjacency {
    /// Set for routes of IPv6. Routes of both families may use the same IPv6 gateway (RFC 8950).
    pub v6: bool,
    pub index: u32,
    pub neighbour: Neighbour,
    /// The route's own MTU.
    pub mtu: Option<u32>,
    /// The route's preferred source.
    pub source: Option<IpAddr>,
    /// Outer headers that it gives to packets, on a tunnel that takes them from routes.
    pub outer: Option<Outer>,
}

/// Object that an id refers to, as long as the id is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum HopKey {
    Fixed(u32),
    Adjacency(Adjacency),
    /// Ids with their weights, sorted by id; the weights have no common divisor.
    Group(Arc<[(u32, u32)]>),
}

struct Slot {
    key: Option<HopKey>,
    refs: u32,
    retired: Option<Epoch>,
}

/// All next-hop ids.
pub(super) struct Hops {
    slots: Vec<Slot>,
    by_key: HashMap<HopKey, u32>,
    by_gateway: HashMap<(u32, IpAddr), Vec<u32>>,
    groups: BTreeSet<u32>,
    /// Number of adjacencies with these headers, by interface.
    outers: BTreeMap<(u32, Outer), u32>,
    /// Set if there are other headers than at the last [`Hops::new_outers`].
    new_outers: bool,
    free: Vec<u32>,
    unheld: Vec<u32>,
    dying: VecDeque<(Epoch, u32)>,
    /// Ids whose entries must be rebuilt and published.
    dirty: Vec<u32>,
    /// Ids freed since their entries were last built; the entries are cleared at the next publication.
    freed: Vec<u32>,
}

impl Hops {
    pub fn new() -> Self {
        let mut hops = Self {
            slots: Vec::new(),
            by_key: HashMap::new(),
            by_gateway: HashMap::new(),
            groups: BTreeSet::new(),
            outers: BTreeMap::new(),
            new_outers: false,
            free: Vec::new(),
            unheld: Vec::new(),
            dying: VecDeque::new(),
            dirty: Vec::new(),
            freed: Vec::new(),
        };
        for n in 0..FIXED.len() as u32 {
            hops.hold(HopKey::Fixed(n));
        }
        hops
    }

    /// Returns the highest id plus one.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of ids in use, retired ones included.
    pub fn living(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the object that `id` refers to; `None` if the id is free.
    pub fn key(&self, id: u32) -> Option<&HopKey> {
        self.slots.get(id as usize).and_then(|s| s.key.as_ref())
    }

    /// Returns the adjacency that `id` refers to; `None` if it refers to another object.
    pub fn adjacency(&self, id: u32) -> Option<&Adjacency> {
        match self.key(id) {
            Some(HopKey::Adjacency(a)) => Some(a),
            _ => None,
        }
    }

    /// Returns whether `id` leads to the neighbours of a link.
    pub fn is_glean(&self, id: u32) -> bool {
        matches!(self.adjacency(id), Some(Adjacency { neighbour: Neighbour::Glean(_), .. }))
    }

    pub fn groups(&self) -> impl Iterator<Item = (u32, &Arc<[(u32, u32)]>)> {
        self.groups.iter().filter_map(|id| match self.key(*id) {
            Some(HopKey::Group(members)) => Some((*id, members)),
            _ => None,
        })
    }

    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Returns the id of `key` with one more reference; allocates one if there is none.
    pub fn hold(&mut self, key: HopKey) -> u32 {
        if let Some(&id) = self.by_key.get(&key) {
            self.hold_id(id);
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { key: None, refs: 0, retired: None });
            self.slots.len() as u32 - 1
        });
        self.count_outer(&key, 1);
        match &key {
            HopKey::Adjacency(Adjacency { index, neighbour: Neighbour::Via(gateway), .. }) => {
                self.by_gateway.entry((*index, *gateway)).or_default().push(id);
            }
            HopKey::Group(members) => {
                self.groups.insert(id);
                members.iter().for_each(|(m, _)| self.hold_id(*m));
            }
            _ => {}
        }
        self.slots[id as usize] = Slot { key: Some(key.clone()), refs: 1, retired: None };
        self.by_key.insert(key, id);
        self.dirty.push(id);
        id
    }

    /// Counts an adjacency with headers of its own that has come or gone.
    fn count_outer(&mut self, key: &HopKey, by: i32) {
        let HopKey::Adjacency(Adjacency { index, outer: Some(outer), .. }) = key else { return };
        let count = self.outers.entry((*index, *outer)).or_default();
        let before = *count;
        *count = count.checked_add_signed(by).expect("an adjacency that was counted");
        self.new_outers |= (before == 0) != (*count == 0);
        if *count == 0 {
            self.outers.remove(&(*index, *outer));
        }
    }

    /// Returns the headers of all adjacencies by interface, each once, if there are others than at the last call.
    pub fn new_outers(&mut self) -> Option<BTreeSet<(u32, Outer)>> {
        std::mem::take(&mut self.new_outers).then(|| self.outers.keys().copied().collect())
    }

    /// Adds a reference to an id.
    pub fn hold_id(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        slot.refs += 1;
        // Changes of its neighbour have passed over an id without references.
        if slot.refs == 1 {
            self.dirty.push(id);
        }
    }

    /// Drops a reference to an id.
    pub fn release(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        slot.refs -= 1;
        if slot.refs == 0 {
            self.unheld.push(id);
        }
    }

    /// Retires the ids without references. Call it when no FIB entry refers to them any more.
    pub fn retire(&mut self, domain: &Qsbr) {
        if self.unheld.is_empty() {
            return;
        }
        let epoch = domain.advance();
        for id in std::mem::take(&mut self.unheld) {
            let slot = &mut self.slots[id as usize];
            if slot.refs == 0 && slot.key.is_some() {
                slot.retired = Some(epoch);
                self.dying.push_back((epoch, id));
            }
        }
    }

    /// Frees the ids that no worker can be using any more. Never blocks.
    pub fn reclaim(&mut self, domain: &Qsbr) {
        while let Some(&(epoch, id)) = self.dying.front() {
            if !domain.passed(epoch) {
                break;
            }
            self.dying.pop_front();
            let slot = &mut self.slots[id as usize];
            // The id may have been held again since, and even retired again.
            if slot.refs > 0 || slot.retired != Some(epoch) {
                continue;
            }
            slot.retired = None;
            let Some(key) = slot.key.take() else { continue };
            self.by_key.remove(&key);
            self.free.push(id);
            self.freed.push(id);
            self.count_outer(&key, -1);
            match key {
                HopKey::Adjacency(Adjacency { index, neighbour: Neighbour::Via(gateway), .. }) => {
                    if let Some(ids) = self.by_gateway.get_mut(&(index, gateway)) {
                        ids.retain(|n| *n != id);
                        if ids.is_empty() {
                            self.by_gateway.remove(&(index, gateway));
                        }
                    }
                }
                HopKey::Group(members) => {
                    self.groups.remove(&id);
                    members.iter().for_each(|(m, _)| self.release(*m));
                }
                _ => {}
            }
        }
        self.retire(domain);
    }

    /// Marks the entries of a neighbour that has changed for rebuilding.
    pub fn touch_gateway(&mut self, index: u32, gateway: IpAddr) {
        let ids = self.by_gateway.get(&(index, gateway)).into_iter().flatten();
        self.dirty.extend(ids.filter(|id| self.slots[**id as usize].refs > 0));
    }

    /// Marks the entries of an interface that has changed for rebuilding; `None` for all interfaces.
    pub fn touch_link(&mut self, index: Option<u32>) {
        for (id, slot) in (0u32..).zip(&self.slots) {
            match &slot.key {
                Some(HopKey::Adjacency(a)) if index.is_none_or(|i| i == a.index) => self.dirty.push(id),
                _ => {}
            }
        }
    }

    /// Returns whether entries must be published.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.new_outers
    }

    /// Returns the ids whose entries must be rebuilt, each once.
    pub fn take_dirty(&mut self) -> Vec<u32> {
        let mut ids = std::mem::take(&mut self.dirty);
        ids.append(&mut self.freed);
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While an id is retired, changes of its neighbour pass over it.
    #[test]
    fn an_id_that_is_held_again_is_built_again() {
        let domain = Qsbr::new();
        // A worker that has not passed any epoch.
        let worker = domain.register();
        let (mut hops, gateway) = (Hops::new(), IpAddr::from([10, 0, 0, 1]));
        let neighbour = Neighbour::Via(gateway);
        let key = HopKey::Adjacency(Adjacency { v6: false, index: 2, neighbour, mtu: None, source: None, outer: None });
        let id = hops.hold(key.clone());
        hops.release(id);
        hops.retire(&domain);
        hops.take_dirty();
        hops.touch_gateway(2, gateway);
        hops.reclaim(&domain);
        assert_eq!((hops.hold(key), hops.take_dirty()), (id, vec![id]));
        drop(worker);
    }
}
