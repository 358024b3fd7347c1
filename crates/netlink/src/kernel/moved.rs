//! Notifications other than about routes, while routes are being read: how they concern routes is judged at the end of
//! the reading.

use super::{Kernel, Origin, Scope, resolver};
use crate::bodies::{Entry, Resolver};
use crate::parse::Object;
use crate::uapi::RTN_BLACKHOLE;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Links, addresses and next-hop objects that notifications were about while tables were being read.
#[derive(Debug, Default)]
pub struct Moved {
    /// Links that changed or went, or have gained or lost an address.
    pub links: BTreeSet<u32>,
    /// Addresses that went.
    pub addresses: BTreeSet<IpAddr>,
    /// Next-hop objects that have changed and do not discard packets.
    pub objects: BTreeSet<u32>,
    /// Next-hop objects that went.
    pub gone: BTreeSet<u32>,
}

impl Kernel {
    /// Ends a reading. Returns the kinds that must be read again because of notifications during it: when they were
    /// applied, the routes that they concern were perhaps not known yet, or have been shown since as they were before.
    pub fn end(&mut self) -> Scope {
        let Moved { links, addresses, objects, gone } = std::mem::take(&mut self.moved);
        let (mut under, mut preferred, mut hidden, mut used) = (false, false, false, false);
        for (_, Entry { body, .. }) in self.bodies.iter() {
            under |= body.legs.iter().any(|leg| links.contains(&leg.index));
            preferred |= body.source.is_some_and(|source| addresses.contains(&source));
            hidden |= !objects.is_empty() && body.kind == RTN_BLACKHOLE && body.object != 0 && {
                let members = || resolver!(self).members(body.object);
                objects.contains(&body.object) || members().iter().any(|member| objects.contains(&member.0))
            };
            used |= gone.contains(&body.object);
        }
        let leads = |object: &Object| matches!(object, Object::Leg(leg) if links.contains(&leg.index));
        under |= self.objects.values().any(|object| leads(&object.value));
        under |= self.selective.values().any(|of| of.value.iter().any(|index| links.contains(index)));
        Scope::when(under, Scope::UNDER_LINKS)
            | Scope::when(preferred || hidden, Scope::ROUTES)
            | Scope::when(used, Scope::OBJECTS | Scope::ROUTES)
    }

    /// Returns whether what a notification means for routes is judged at the end of the reading.
    pub(super) fn notes(&self, origin: Origin) -> bool {
        self.reads_routes && matches!(origin, Origin::Early | Origin::Replay)
    }
}
