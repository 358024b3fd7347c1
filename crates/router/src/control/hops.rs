//! Next-hop ids: who holds them, when they are born and when they may be used again.
//!
//! An id is held by FIB prefixes, by sets of next hops and by groups. When nobody holds it, it is retired with an
//! epoch of the reclamation domain; when that epoch has passed, no worker can have it in hand, and it is free.
//! A retired id may come back to life before that: it is in the published tables all the while.

use crate::tables::Kind;
use bywash_route::model::Prefix;
use bywash_sync::Qsbr;
use bywash_sync::qsbr::Epoch;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

/// Ids that always exist, in this order.
pub(super) const FIXED: [Kind; 8] = [
    Kind::NoRoute,
    // Of its own, because the FIB takes id 0 for an absence: this one hides less specific routes (`throw`).
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

/// Where an adjacency leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// To a neighbour.
    Via(IpAddr),
    /// To whatever neighbour the packet names. The prefix is there only when it decides the source address.
    Glean(Option<Prefix>),
}

/// A way out of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Adjacency {
    pub index: u32,
    pub way: Way,
    /// The route's own MTU.
    pub mtu: Option<u32>,
    /// The route's preferred source.
    pub source: Option<IpAddr>,
}

/// What an id stands for, as long as it lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum HopKey {
    Fixed(u32),
    Adjacency(Adjacency),
    /// Ids with their weights, sorted by id, weights without a common divisor.
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
    free: Vec<u32>,
    unheld: Vec<u32>,
    dying: VecDeque<(Epoch, u32)>,
    /// Ids whose entries must be made anew, and published.
    dirty: Vec<u32>,
    /// Ids freed since their entries were last made: to be blanked when something is published anyway.
    freed: Vec<u32>,
}

impl Hops {
    pub fn new() -> Self {
        let mut hops = Self {
            slots: Vec::new(),
            by_key: HashMap::new(),
            by_gateway: HashMap::new(),
            groups: BTreeSet::new(),
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

    /// One more than the highest id.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Ids in use, retired ones included.
    pub fn living(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// What `id` stands for; none when it is free.
    pub fn key(&self, id: u32) -> Option<&HopKey> {
        self.slots.get(id as usize).and_then(|s| s.key.as_ref())
    }

    /// The adjacency `id` stands for, if it does.
    pub fn adjacency(&self, id: u32) -> Option<&Adjacency> {
        match self.key(id) {
            Some(HopKey::Adjacency(a)) => Some(a),
            _ => None,
        }
    }

    /// Whether `id` leads to the neighbours of a link.
    pub fn is_glean(&self, id: u32) -> bool {
        matches!(self.adjacency(id), Some(Adjacency { way: Way::Glean(_), .. }))
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

    /// The id of `key`, held once more; a new one when there is none.
    pub fn hold(&mut self, key: HopKey) -> u32 {
        if let Some(&id) = self.by_key.get(&key) {
            self.hold_id(id);
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { key: None, refs: 0, retired: None });
            self.slots.len() as u32 - 1
        });
        match &key {
            HopKey::Adjacency(Adjacency { index, way: Way::Via(gateway), .. }) => {
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

    /// Holds an id once more.
    pub fn hold_id(&mut self, id: u32) {
        self.slots[id as usize].refs += 1;
    }

    /// Ends a hold.
    pub fn release(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        slot.refs -= 1;
        if slot.refs == 0 {
            self.unheld.push(id);
        }
    }

    /// Retires what nobody holds. Call when no FIB entry names it any more.
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

    /// Frees the ids that no worker can have in hand any more. Never blocks.
    pub fn reclaim(&mut self, domain: &Qsbr) {
        while let Some(&(epoch, id)) = self.dying.front() {
            if !domain.passed(epoch) {
                break;
            }
            self.dying.pop_front();
            let slot = &mut self.slots[id as usize];
            // It may have been held again since, and even retired again.
            if slot.refs > 0 || slot.retired != Some(epoch) {
                continue;
            }
            slot.retired = None;
            let Some(key) = slot.key.take() else { continue };
            self.by_key.remove(&key);
            self.free.push(id);
            self.freed.push(id);
            match key {
                HopKey::Adjacency(Adjacency { index, way: Way::Via(gateway), .. }) => {
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

    /// A neighbour changed: the entries to it are to be made anew.
    pub fn touch_gateway(&mut self, index: u32, gateway: IpAddr) {
        let ids = self.by_gateway.get(&(index, gateway)).into_iter().flatten();
        self.dirty.extend(ids.filter(|id| self.slots[**id as usize].refs > 0));
    }

    /// An interface changed; none: any may have.
    pub fn touch_link(&mut self, index: Option<u32>) {
        for (id, slot) in (0u32..).zip(&self.slots) {
            match &slot.key {
                Some(HopKey::Adjacency(a)) if index.is_none_or(|i| i == a.index) => self.dirty.push(id),
                _ => {}
            }
        }
    }

    /// Whether there is something to publish.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The ids whose entries must be made anew, each once.
    pub fn take_dirty(&mut self) -> Vec<u32> {
        let mut ids = std::mem::take(&mut self.dirty);
        ids.append(&mut self.freed);
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}
