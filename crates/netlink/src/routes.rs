//! Routes by key, as the kernel keeps them: several may share prefix and metric, and their order matters.

use crate::bodies::{Bodies, BodyId, Resolver};
use crate::parse::{Body, RouteKey};
use crate::uapi::{NLM_F_APPEND, NLM_F_EXCL, NLM_F_REPLACE};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A route key that takes no more memory than its family needs.
pub trait Key: Copy + Eq + Hash {
    fn of(key: &RouteKey) -> Self;
    fn full(&self) -> RouteKey;
}

/// Key of an IPv4 route; 16 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key4 {
    addr: u32,
    table: u32,
    metric: u32,
    len: u8,
}

/// Key of an IPv6 route; 28 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key6 {
    addr: [u8; 16],
    table: u32,
    metric: u32,
    len: u8,
}

impl Key for Key4 {
    fn of(key: &RouteKey) -> Self {
        let IpAddr::V4(addr) = key.prefix.addr else { unreachable!("an IPv6 route among IPv4 routes") };
        Self { addr: addr.into(), table: key.table, metric: key.metric, len: key.prefix.len }
    }

    fn full(&self) -> RouteKey {
        let addr = IpAddr::V4(Ipv4Addr::from(self.addr));
        let prefix = bywash_fib::model::Prefix { addr, len: self.len };
        RouteKey { table: self.table, prefix, metric: self.metric }
    }
}

impl Key for Key6 {
    fn of(key: &RouteKey) -> Self {
        let IpAddr::V6(addr) = key.prefix.addr else { unreachable!("an IPv4 route among IPv6 routes") };
        Self { addr: addr.octets(), table: key.table, metric: key.metric, len: key.prefix.len }
    }

    fn full(&self) -> RouteKey {
        let addr = IpAddr::V6(Ipv6Addr::from(self.addr));
        let prefix = bywash_fib::model::Prefix { addr, len: self.len };
        RouteKey { table: self.table, prefix, metric: self.metric }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    first: BodyId,
    generation: u32,
}

/// The routes of one family. The first body of a key is kept apart from the rare further ones, so that an IPv4 route
/// takes 24 octets.
#[derive(Debug)]
pub struct Routes<K> {
    slots: HashMap<K, Slot>,
    others: HashMap<K, Vec<BodyId>>,
}

impl<K> Default for Routes<K> {
    fn default() -> Self {
        Self { slots: HashMap::new(), others: HashMap::new() }
    }
}

impl<K: Key> Routes<K> {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Writes the bodies of a key to `list` and returns the generation in which the key was last seen.
    pub fn read(&self, key: &K, list: &mut Vec<BodyId>) -> Option<u32> {
        list.clear();
        let slot = self.slots.get(key)?;
        list.push(slot.first);
        if !self.others.is_empty() {
            list.extend(self.others.get(key).into_iter().flatten());
        }
        Some(slot.generation)
    }

    /// Returns the generation in which a key was last seen.
    pub fn seen(&self, key: &K) -> Option<u32> {
        self.slots.get(key).map(|slot| slot.generation)
    }

    /// Replaces the bodies of a key with `list`; an empty list removes the key.
    pub fn write(&mut self, key: K, list: &[BodyId], generation: u32) {
        match list {
            [] => {
                self.slots.remove(&key);
                self.others.remove(&key);
            }
            [first, others @ ..] => {
                self.slots.insert(key, Slot { first: *first, generation });
                if !others.is_empty() {
                    self.others.insert(key, others.to_vec());
                } else if !self.others.is_empty() {
                    self.others.remove(&key);
                }
            }
        }
    }

    /// Returns the keys that the dump of `generation` did not show.
    pub fn unseen(&self, generation: u32) -> Vec<K> {
        self.slots.iter().filter(|(_, slot)| slot.generation != generation).map(|(key, _)| *key).collect()
    }

    /// Returns the keys with a body for which `of` is true.
    pub fn with_body(&self, mut of: impl FnMut(BodyId) -> bool) -> Vec<K> {
        let mut keys: Vec<K> = self.slots.iter().filter(|(_, slot)| of(slot.first)).map(|(key, _)| *key).collect();
        keys.extend(self.others.iter().filter(|(_, others)| others.iter().any(|id| of(*id))).map(|(key, _)| *key));
        keys
    }

    /// Releases memory after most routes have gone.
    pub fn trim(&mut self) {
        if self.slots.capacity() > 4 * self.slots.len().max(1024) {
            self.slots.shrink_to(2 * self.slots.len());
        }
    }
}

/// Certainty of the result of applying a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The result matches the kernel's state.
    Sure,
    /// The kernel's state may differ; the tables should be read again.
    Unsure,
}

/// Inserts a route into the bodies of its key as the kernel does (fib_table_insert, fib6_add_rt2node). Bodies that
/// leave `list` are added to `released`.
pub fn insert(
    list: &mut Vec<BodyId>,
    v6: bool,
    body: Body,
    flags: u16,
    (bodies, resolver): (&mut Bodies, &Resolver<'_>),
    released: &mut Vec<BodyId>,
) -> Outcome {
    if v6 {
        insert6(list, body, flags, bodies, resolver, released)
    } else {
        insert4(list, body, flags, bodies, resolver, released)
    }
}

fn insert4(
    list: &mut Vec<BodyId>,
    body: Body,
    flags: u16,
    bodies: &mut Bodies,
    resolver: &Resolver<'_>,
    released: &mut Vec<BodyId>,
) -> Outcome {
    let same = list.iter().position(|id| bodies.get(*id).body.is(&body));
    let new = bodies.hold(body, resolver);
    if let Some(at) = same.filter(|_| flags & NLM_F_EXCL == 0) {
        released.push(std::mem::replace(&mut list[at], new));
        // The replacement is already in the list further down: this message is older than the list.
        return if flags & NLM_F_REPLACE != 0 && at > 0 { Outcome::Unsure } else { Outcome::Sure };
    }
    if flags & NLM_F_EXCL != 0 || list.is_empty() {
        // The kernel had no route with this key, so those known here have been removed silently.
        released.append(list);
        list.push(new);
    } else if flags & NLM_F_REPLACE != 0 {
        released.push(std::mem::replace(&mut list[0], new));
    } else if flags & NLM_F_APPEND != 0 {
        list.push(new);
    } else {
        list.insert(0, new);
    }
    Outcome::Sure
}

fn insert6(
    list: &mut Vec<BodyId>,
    mut body: Body,
    flags: u16,
    bodies: &mut Bodies,
    resolver: &Resolver<'_>,
    released: &mut Vec<BodyId>,
) -> Outcome {
    let joins = body.joins();
    let alike = list.iter().position(|id| bodies.get(*id).body.joins() == joins);
    if flags & NLM_F_REPLACE != 0 {
        let new = bodies.hold(body, resolver);
        match alike.or(if list.is_empty() { None } else { Some(0) }) {
            Some(at) => released.push(std::mem::replace(&mut list[at], new)),
            None => list.push(new),
        }
        return Outcome::Sure;
    }
    if flags & NLM_F_EXCL != 0 {
        released.append(list);
    } else if joins {
        // The message lists all legs of the key, the new one first.
        if let Some(at) = alike {
            let old = &bodies.get(list[at]).body;
            let agree = (old.mtu, old.source, old.protocol) == (body.mtu, body.source, body.protocol);
            body.legs
                .sort_by_key(|leg| old.legs.iter().position(|known| known.has_same_target(leg)).unwrap_or(usize::MAX));
            // Each leg has its own attributes, and the kernel shows only those of one.
            body.mixed_mtus = old.mixed_mtus || old.mtu != body.mtu;
            let agree = agree && !body.mixed_mtus;
            let new = bodies.hold(body, resolver);
            released.push(std::mem::replace(&mut list[at], new));
            return if agree { Outcome::Sure } else { Outcome::Unsure };
        }
    } else if let Some(at) = list.iter().position(|id| bodies.get(*id).body.is_same_route(&body)) {
        let new = bodies.hold(body, resolver);
        released.push(std::mem::replace(&mut list[at], new));
        return Outcome::Sure;
    }
    list.push(bodies.hold(body, resolver));
    Outcome::Sure
}

/// Removes a route, or one of its legs, from the bodies of its key.
pub fn remove(
    list: &mut Vec<BodyId>,
    v6: bool,
    body: &Body,
    (bodies, resolver): (&mut Bodies, &Resolver<'_>),
    released: &mut Vec<BodyId>,
) -> Outcome {
    if list.is_empty() {
        return Outcome::Sure;
    }
    if v6 && body.joins() {
        let Some(at) = list.iter().position(|id| bodies.get(*id).body.joins()) else { return Outcome::Unsure };
        let old = Body::clone(&bodies.get(list[at]).body);
        // The attributes shown were those of the first leg; the next leg has its own.
        let leads = |leg: &crate::parse::Leg| body.legs.iter().any(|gone| gone.has_same_target(leg));
        let agree = !old.mixed_mtus
            && !old.legs.first().is_some_and(leads)
            && (old.mtu, old.source, old.protocol) == (body.mtu, body.source, body.protocol);
        let mut left = old;
        left.legs.retain(|leg| !body.legs.iter().any(|gone| gone.has_same_target(leg)));
        if left.legs.is_empty() {
            released.push(list.remove(at));
            return Outcome::Sure;
        }
        let new = bodies.hold(left, resolver);
        released.push(std::mem::replace(&mut list[at], new));
        return if agree { Outcome::Sure } else { Outcome::Unsure };
    }
    let exact = list.iter().position(|id| bodies.get(*id).body.is(body));
    let found = match exact {
        None if v6 => list.iter().position(|id| bodies.get(*id).body.is_same_route(body)),
        exact => exact,
    };
    match found {
        Some(at) => {
            released.push(list.remove(at));
            Outcome::Sure
        }
        None => Outcome::Unsure,
    }
}
