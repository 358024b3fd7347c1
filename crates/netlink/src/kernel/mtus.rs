//! IPv6 routes with several legs, each with an MTU of its own, of which messages show only one. Until the kernel has
//! been asked about the others, the route is left to it.

use super::{Kernel, Resolver, resolver};
use crate::bodies::Bodies;
use crate::parse::{Body, Leg, RouteKey};
use crate::routes::{Key, Key6, Routes};
use std::sync::Arc;

/// Returns whether the legs of a body that a dump shows may have different MTUs, as far as it is known.
pub fn may_be_mixed(routes: &Routes<Key6>, key: &RouteKey, body: &Body, bodies: &Bodies) -> bool {
    let mut list = vec![];
    routes.read(&Key6::of(key), &mut list);
    let mut known = list.iter().map(|id| &bodies.get(*id).body);
    known.find(|known| known.is(body)).is_none_or(|known| known.mixed_mtus)
}

impl Kernel {
    /// Returns whether packets are forwarded by a leg. The kernel may use one without carrier, to drop them.
    pub fn forwards_by(&self, leg: &Leg) -> bool {
        resolver!(self).link(leg.index) == (true, true) && !leg.dead && !leg.ignored
    }

    /// Returns the IPv6 routes with several legs, of whose attributes messages show only those of one.
    pub fn multipaths6(&self) -> Vec<(RouteKey, Arc<Body>)> {
        if !self.bodies.iter().any(|(_, entry)| entry.body.has_own_mtus()) {
            return vec![];
        }
        let mut found = vec![];
        let mut list = Vec::new();
        for key in self.routes6.with_body(|id| self.bodies.get(id).body.has_own_mtus()) {
            self.routes6.read(&key, &mut list);
            let bodies = list.iter().map(|id| &self.bodies.get(*id).body).filter(|body| body.has_own_mtus());
            found.extend(bodies.map(|body| (key.full(), Arc::clone(body))));
        }
        found
    }

    /// Leaves an IPv6 route with several legs to the kernel, if their MTUs may differ, or no longer.
    pub fn set_mixed_mtus(&mut self, key: RouteKey, mixed: bool) {
        let (short, mut list) = (Key6::of(&key), vec![]);
        let generation = self.routes6.read(&short, &mut list).unwrap_or(self.generation);
        let Some(at) = list.iter().position(|id| self.bodies.get(*id).body.has_own_mtus()) else { return };
        if self.bodies.get(list[at]).body.mixed_mtus == mixed {
            return;
        }
        let bodies = &mut self.bodies;
        self.pending.routes.entry(key).or_insert_with(|| bodies.effective(&list, true));
        let body = Body { mixed_mtus: mixed, ..Body::clone(&bodies.get(list[at]).body) };
        let new = bodies.hold(body, &resolver!(self));
        let old = std::mem::replace(&mut list[at], new);
        self.routes6.write(short, &list, generation);
        bodies.release(old);
    }
}
