//! Notifications that are applied and reported during the dump of the kind that they are about
//! ([`super::Origin::Early`]).
//!
//! Of an object that changes so, the dump may still show the state before: the kernel writes a datagram while the one
//! before it is being received. So the dump's word about such objects is kept apart, and nothing of it is reported. At
//! the end of the dump it replaces what the early changes have made of these objects, and all notifications are applied
//! to it once more.

use super::{Kernel, Key4, Key6, Scope, routes_of};
use crate::bodies::{Bodies, BodyId, Resolver};
use crate::parse::{Body, Leg, RouteKey};
use crate::pending::Pending;
use crate::routes::{Key, Routes};
use crate::uapi::{NLM_F_EXCL, NLM_F_REPLACE, RTN_UNICAST};
use bywash_fib::model::Mac;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Objects that have changed early, and what is known without these changes.
#[derive(Debug, Default)]
pub struct Early {
    pub routes: HashMap<RouteKey, Known>,
    pub neighbours: HashSet<(u32, IpAddr)>,
    pub stations: HashSet<(u32, u32, Mac)>,
    /// Set during the first datagram of a dump. Notifications that are received with it may be older, since the kernel
    /// writes it at once.
    pub opening: bool,
    /// Routes that the dump has shown, at least in part, after their first notification: it may have overtaken some.
    pub overtaken: HashSet<RouteKey>,
    /// The same routes, while notifications are applied to them again.
    pub doubts: HashMap<RouteKey, Doubt>,
}

/// Bodies of a route, which are held, and the generation in which it was last seen.
#[derive(Debug, Default)]
pub struct Known {
    pub list: Vec<BodyId>,
    pub seen: Option<u32>,
}

impl Known {
    /// Adds a body that the dump of `generation` shows; the first replaces those known before.
    pub fn show(&mut self, body: Body, generation: u32, bodies: &mut Bodies, resolver: &Resolver<'_>) {
        if self.seen.replace(generation) != Some(generation) {
            self.clear(bodies);
        }
        if !self.list.iter().any(|id| bodies.get(*id).body.is(&body)) {
            self.list.push(bodies.hold(body, resolver));
        }
    }

    fn clear(&mut self, bodies: &mut Bodies) {
        self.list.drain(..).for_each(|id| bodies.release(id));
    }
}

/// Bodies of a route that the dump has shown after the notifications that are applied to it, or before them.
///
/// A replacement does not say which body it takes the place of. Applied to bodies that are newer, it may displace
/// another than in the kernel. This makes no difference as long as the new body stays, since then the dump would have
/// shown it, nor if the displaced one comes or goes later on. If the new body is in place already, it displaces none:
/// neither the one that it took the place of, if an older message has brought that back.
#[derive(Debug, Default)]
pub struct Doubt {
    shown: Vec<Arc<Body>>,
    displaced: Vec<Arc<Body>>,
    /// Bodies that the dump did not show, and messages have added beside others.
    added: Vec<Arc<Body>>,
    /// Set if the kernel's bodies are not known.
    pub lost: bool,
}

impl Doubt {
    /// Returns the doubt about a route with these bodies.
    pub fn about(list: &[BodyId], bodies: &Bodies) -> Self {
        let shown = list.iter().map(|id| Arc::clone(&bodies.get(*id).body)).collect();
        Self { shown, ..Self::default() }
    }

    /// Follows the addition of a body by a message with these flags, which displaced others. Returns whether the
    /// kernel's bodies are not known.
    pub fn add<'a>(
        &mut self,
        body: &Body,
        v6: bool,
        flags: u16,
        mut displaced: impl Iterator<Item = &'a Arc<Body>>,
    ) -> bool {
        if flags & NLM_F_EXCL != 0 {
            // The kernel had no other.
            *self = Self::default();
        } else if flags & NLM_F_REPLACE == 0 {
            // It may be displaced again.
            match self.displaced.iter().position(|known| known.is(body)) {
                Some(at) => self.shown.push(self.displaced.swap_remove(at)),
                None if self.shown.iter().any(|known| known.is(body)) => {}
                None => self.added.push(Arc::new(body.clone())),
            }
        } else {
            self.forget(body);
            // All legs of an IPv6 route are replaced by all of another.
            let same = |old: &Body| old.is(body) || v6 && old.joins() && body.joins();
            match displaced.find(|old| !same(old)) {
                Some(old) => {
                    self.added.retain(|known| !known.is(old));
                    if let Some(at) = self.shown.iter().position(|shown| shown.is(old)) {
                        self.displaced.push(self.shown.swap_remove(at));
                    }
                }
                None => self.lost |= !self.added.is_empty(),
            }
        }
        self.lost
    }

    /// Follows a removal. Returns whether the kernel's bodies are not known, since it may have one that was displaced.
    pub fn remove(&mut self, body: &Body) -> bool {
        self.forget(body);
        self.lost |= !self.displaced.is_empty();
        self.lost
    }

    fn forget(&mut self, body: &Body) {
        for known in [&mut self.shown, &mut self.displaced, &mut self.added] {
            known.retain(|known| !known.is(body));
        }
    }
}

/// Returns a body for a route of which only the kernel knows the bodies.
pub fn only_the_kernels() -> Body {
    Body {
        kind: RTN_UNICAST,
        protocol: 0,
        scope: 0,
        mtu: None,
        source: None,
        object: 0,
        legs: vec![Leg::of(0)],
        mixed_mtus: false,
        others: 0,
    }
}

impl Kernel {
    /// Begins a dump of this kind.
    pub fn begin_dump(&mut self, kind: Scope) {
        self.dumped = kind;
        self.early.opening = true;
    }

    /// Ends the datagram of a dump, after the notifications received with it.
    pub fn end_datagram(&mut self) {
        self.early.opening = false;
    }

    /// Begins the replay after a dump: undoes all early changes of routes. Replayed onto their own result, they would
    /// not always give it. Returns whether there were any.
    pub fn begin_replay(&mut self) -> bool {
        let opening = self.early.opening;
        let Early { routes, overtaken, .. } = std::mem::replace(&mut self.early, Early { opening, ..Early::default() });
        let any = !routes.is_empty();
        for (key, known) in routes {
            let (bodies, pending, generation) = (&mut self.bodies, &mut self.pending, self.generation);
            match key.prefix.addr {
                IpAddr::V4(_) => restore(&mut self.routes4, key, known, generation, bodies, pending),
                IpAddr::V6(_) => restore(&mut self.routes6, key, known, generation, bodies, pending),
            }
        }
        let mut list = vec![];
        for key in overtaken {
            match key.prefix.addr {
                IpAddr::V4(_) => self.routes4.read(&Key4::of(&key), &mut list),
                IpAddr::V6(_) => self.routes6.read(&Key6::of(&key), &mut list),
            };
            self.early.doubts.insert(key, Doubt::about(&list, &self.bodies));
        }
        any
    }

    /// Forgets the known bodies of routes of a kind that have changed early, if they are `stale`.
    pub(super) fn clear_known(&mut self, kind: Scope, stale: impl Fn(u32) -> bool) {
        let stale =
            |(key, known): &(&RouteKey, &mut Known)| routes_of(key.prefix) == kind && known.seen.is_some_and(&stale);
        for (_, known) in self.early.routes.iter_mut().filter(stale) {
            known.clear(&mut self.bodies);
        }
    }
}

/// Replaces the bodies of a route by those known without its early changes.
fn restore<K: Key>(
    routes: &mut Routes<K>,
    key: RouteKey,
    known: Known,
    generation: u32,
    bodies: &mut Bodies,
    pending: &mut Pending,
) {
    let (short, mut now) = (K::of(&key), Vec::new());
    routes.read(&short, &mut now);
    let v6 = key.prefix.addr.is_ipv6();
    pending.routes.entry(key).or_insert_with(|| bodies.effective(&now, v6));
    routes.write(short, &known.list, known.seen.unwrap_or(generation));
    now.into_iter().for_each(|id| bodies.release(id));
}

#[cfg(test)]
mod tests;
