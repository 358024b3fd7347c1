//! Route bodies, each stored once: a full table has a million routes but only a few dozen bodies.

use crate::parse::{Body, Encap, Leg, Object};
use crate::state::RouteBody;
use crate::uapi::*;
use bywash_fib::model::{Address, Link, NextHop, RouteKind};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Id of a body, valid while the body is held.
pub type BodyId = u32;

/// A stored body and the route body it resolves to.
#[derive(Debug)]
pub struct Entry {
    pub body: Arc<Body>,
    pub resolved: Arc<RouteBody>,
    holders: u32,
}

/// State on which the resolution of a body depends.
#[derive(Clone, Copy, Debug)]
pub struct Resolver<'a> {
    pub links: &'a BTreeMap<u32, crate::kernel::Stamped<Link>>,
    pub objects: &'a HashMap<u32, crate::kernel::Stamped<Object>>,
    pub addresses: &'a BTreeMap<(u32, IpAddr, u8), crate::kernel::Stamped<Address>>,
}

impl Resolver<'_> {
    /// Returns whether a link is up and whether it has carrier. Both are assumed for an unknown link.
    pub fn link(&self, index: u32) -> (bool, bool) {
        self.links.get(&index).map_or((true, true), |link| (link.value.up, link.value.carrier))
    }

    /// Clears dead marks that the state of the link explains, so that legs are usable as soon as the link comes back.
    pub fn clear_dead_marks(&self, legs: &mut [Leg]) {
        for leg in legs {
            let (up, carrier) = self.link(leg.index);
            leg.ignored &= !(up && carrier);
            leg.dead &= up && !leg.ignored;
        }
    }

    /// Returns whether the kernel uses a leg. It does so without carrier too, unless the leg is marked as ignored then.
    fn uses(&self, leg: &Leg) -> bool {
        let (up, carrier) = self.link(leg.index);
        up && !leg.dead && (carrier || !leg.ignored)
    }

    /// Returns whether the kernel may send the packets of a route's leg to their destinations themselves, past the
    /// gateway, because this is one of the host's own addresses. It does so if it was one when the route was added
    /// (rt_set_nexthop), which messages about routes do not show.
    fn may_skip_gateway(&self, leg: &Leg) -> bool {
        let Some(gateway @ IpAddr::V4(_)) = leg.gateway else { return false };
        let own = (leg.index, gateway, 0)..=(leg.index, gateway, u8::MAX);
        self.addresses.range(own).next().is_some()
    }

    fn hop(&self, leg: &Leg, weight: u16) -> NextHop {
        let (index, outer) = match leg.encap {
            Encap::None => (leg.index, None),
            Encap::Outer(outer) => (leg.index, Some(outer)),
            Encap::Kernel(_) => (0, None),
        };
        NextHop { index, outer, gateway: leg.gateway, weight, alive: self.uses(leg) }
    }

    /// Returns the ids and weights of the objects to which an object leads: the members of a group, or itself.
    pub fn members(&self, object: u32) -> Vec<(u32, u16)> {
        match self.objects.get(&object).map(|object| &object.value) {
            Some(Object::Group(members)) => members.clone(),
            _ => vec![(object, 1)],
        }
    }

    /// Resolves `body`, following its next-hop objects.
    pub fn resolve(&self, body: &Body) -> RouteBody {
        let mut kind = match body.kind {
            RTN_LOCAL | RTN_BROADCAST | RTN_ANYCAST | RTN_MULTICAST => RouteKind::Local,
            RTN_BLACKHOLE => RouteKind::Blackhole,
            RTN_UNREACHABLE => RouteKind::Unreachable,
            RTN_PROHIBIT => RouteKind::Prohibit,
            RTN_THROW => RouteKind::Throw,
            _ => RouteKind::Unicast,
        };
        let mut hops: Vec<NextHop> = Vec::new();
        if body.object != 0 && matches!(kind, RouteKind::Unicast | RouteKind::Blackhole) {
            let (mut discards, mut unknown) = (false, false);
            for (id, weight) in self.members(body.object) {
                match self.objects.get(&id).map(|object| &object.value) {
                    Some(Object::Leg(leg)) => hops.push(self.hop(leg, weight)),
                    Some(Object::Blackhole) => discards = true,
                    Some(Object::Group(_)) => {}
                    None => unknown = true,
                }
            }
            // The kernel shows any route as a blackhole while its object discards (fib_dump_info, rt6_fill_node). Once
            // the object forwards, only the kernel knows whether the route itself discards. Nor is an object known
            // whose message was lost.
            if kind == RouteKind::Blackhole && !discards || unknown {
                hops = vec![NextHop { index: 0, outer: None, gateway: None, weight: 1, alive: true }];
            }
            kind = if discards { RouteKind::Blackhole } else { RouteKind::Unicast };
        } else if kind == RouteKind::Unicast {
            hops.extend(body.legs.iter().map(|leg| {
                let hop = self.hop(leg, leg.weight);
                NextHop { index: if self.may_skip_gateway(leg) { 0 } else { hop.index }, ..hop }
            }));
        }
        if body.mixed_mtus {
            hops.iter_mut().for_each(|hop| hop.index = 0);
        }
        // A single next hop takes all packets, whatever its weight in its group.
        if let [only] = &mut hops[..] {
            only.weight = 1;
        }
        RouteBody { kind, next_hops: hops.into(), mtu: body.mtu, source: body.source, protocol: body.protocol }
    }
}

/// All bodies, with reference counts.
#[derive(Debug, Default)]
pub struct Bodies {
    entries: Vec<Option<Entry>>,
    ids: HashMap<Arc<Body>, BodyId>,
    free: Vec<BodyId>,
    last: BodyId,
}

impl Bodies {
    /// Stores `body` or finds it stored, and adds a reference, which [`Bodies::release`] drops.
    pub fn hold(&mut self, body: Body, resolver: &Resolver<'_>) -> BodyId {
        // Consecutive routes of a dump mostly have equal bodies.
        let last = self.entries.get(self.last as usize).and_then(Option::as_ref);
        let known = match last.filter(|entry| *entry.body == body) {
            Some(_) => Some(self.last),
            None => self.ids.get(&body).copied(),
        };
        let id = match known {
            Some(id) => {
                self.share(id);
                id
            }
            None => {
                let resolved = Arc::new(resolver.resolve(&body));
                let body = Arc::new(body);
                let entry = Some(Entry { body: Arc::clone(&body), resolved, holders: 1 });
                let id = match self.free.pop() {
                    Some(id) => {
                        self.entries[id as usize] = entry;
                        id
                    }
                    None => {
                        self.entries.push(entry);
                        (self.entries.len() - 1) as BodyId
                    }
                };
                self.ids.insert(body, id);
                id
            }
        };
        self.last = id;
        id
    }

    /// Adds a reference to a held body.
    pub fn share(&mut self, id: BodyId) {
        if let Some(Some(entry)) = self.entries.get_mut(id as usize) {
            entry.holders += 1;
        }
    }

    /// Drops one reference and removes the body with the last one.
    pub fn release(&mut self, id: BodyId) {
        let slot = &mut self.entries[id as usize];
        let Some(entry) = slot else { return };
        entry.holders -= 1;
        if entry.holders == 0 {
            self.ids.remove(&entry.body);
            *slot = None;
            self.free.push(id);
        }
    }

    /// Returns the entry of a held body.
    pub fn get(&self, id: BodyId) -> &Entry {
        self.entries[id as usize].as_ref().expect("a body is stored while it is held")
    }

    /// Sets the resolved body of `id`.
    pub fn settle(&mut self, id: BodyId, resolved: Arc<RouteBody>) {
        if let Some(Some(entry)) = self.entries.get_mut(id as usize) {
            entry.resolved = resolved;
        }
    }

    /// Returns all bodies with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (BodyId, &Entry)> {
        (0..).zip(&self.entries).filter_map(|(id, entry)| Some((id, entry.as_ref()?)))
    }

    /// Returns the number of bodies.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns the body that decides among those of one key: the first usable one, as in the kernel's lookup, else the
    /// first. Among several of IPv6, the kernel's choice depends on which neighbours are reachable (rt6_score_route),
    /// so that only the kernel can use them.
    pub fn effective(&self, list: &[BodyId], v6: bool) -> Option<Arc<RouteBody>> {
        let first = *list.first()?;
        if list.len() == 1 {
            return Some(Arc::clone(&self.get(first).resolved));
        }
        let of = |id: &BodyId| &self.get(*id).resolved;
        let mut usable = list.iter().filter(|id| of(id).is_usable());
        let chosen = of(usable.next().unwrap_or(&first));
        let several = v6 && usable.any(|id| of(id).kind == RouteKind::Unicast || chosen.kind == RouteKind::Unicast);
        if !several {
            return Some(Arc::clone(chosen));
        }
        let hop = NextHop { index: 0, outer: None, gateway: None, weight: 1, alive: true };
        Some(Arc::new(RouteBody { kind: RouteKind::Unicast, next_hops: [hop].into(), ..RouteBody::clone(chosen) }))
    }
}

impl Body {
    /// Returns whether this is the same route as `other`, ignoring dead marks, which change over time.
    pub fn is(&self, other: &Self) -> bool {
        (self.kind, self.protocol, self.scope, self.mtu, self.source, self.object, self.others)
            == (other.kind, other.protocol, other.scope, other.mtu, other.source, other.object, other.others)
            && self.legs.len() == other.legs.len()
            && self.legs.iter().zip(&other.legs).all(|(a, b)| a.has_same_target(b) && a.weight == b.weight)
    }

    /// Returns whether an IPv6 route becomes one leg among the others of its prefix and metric (rt6_qualify_for_ecmp).
    pub fn joins(&self) -> bool {
        self.object == 0 && self.protocol != RTPROT_RA && self.legs.iter().any(|leg| leg.gateway.is_some())
    }

    /// Returns whether this is an IPv6 route with several legs, each with an MTU of its own.
    pub fn has_own_mtus(&self) -> bool {
        self.legs.len() > 1 && self.joins()
    }

    /// Returns whether two IPv6 routes are equal in everything by which the kernel tells routes apart.
    pub fn is_same_route(&self, other: &Self) -> bool {
        (self.kind, self.object) == (other.kind, other.object)
            && self.legs.len() == other.legs.len()
            && self.legs.iter().zip(&other.legs).all(|(a, b)| a.has_same_target(b))
    }

    /// Returns whether a leg uses a link.
    pub fn uses(&self, index: u32) -> bool {
        self.legs.iter().any(|leg| leg.index == index)
    }

    /// Returns whether `addr` is its preferred source.
    pub fn prefers(&self, addr: IpAddr) -> bool {
        self.source == Some(addr)
    }
}

impl Leg {
    /// Returns whether both legs have the same interface, gateway and encapsulation, as far as that is known
    /// (lwtunnel_cmp_encap).
    pub fn has_same_target(&self, other: &Self) -> bool {
        (self.index, self.gateway, self.encap) == (other.index, other.gateway, other.encap)
    }
}
