//! Determines changed FIB entries from changed prefixes, given routes, ports and neighbours.

use super::bits::{Bits, net};
use super::hops::{Adjacency, BLACKHOLE, HopKey, Hops, KERNEL, LOCAL, Neighbour, POLICY, PROHIBIT, THROW, UNREACHABLE};
use super::links::Links;
use super::neighbours::Neighbours;
use super::rib::Rib;
use super::sets::{Outcome, Sets};
use bywash_fib::Table;
use bywash_fib::model::{NextHop, Prefix, RouteKind};
use std::net::IpAddr;

/// A FIB entry to set or remove. The plan holds a reference to the new id; its executor releases the old one.
#[derive(Debug)]
pub(super) struct Op<A> {
    pub addr: A,
    pub len: u8,
    pub id: Option<u32>,
}

/// State that decides where a prefix leads.
pub(super) struct Planner<'a> {
    pub sets: &'a mut Sets,
    pub hops: &'a mut Hops,
    pub links: &'a Links,
    pub neighbours: &'a Neighbours,
}

impl Planner<'_> {
    /// Returns the changes of `fib` after changes of routes to these prefixes or of neighbours with these addresses.
    /// Sorts `dirty` and removes its duplicates.
    pub fn plan<A: Bits>(&mut self, rib: &Rib<A>, fib: &Table<A::Word>, dirty: &mut Vec<(A, u8)>) -> Vec<Op<A>> {
        dirty.sort_unstable();
        dirty.dedup();
        let mut ops = Vec::with_capacity(dirty.len());
        let mut hosts = Vec::new();
        for &(addr, len) in &*dirty {
            let old = fib.get(net(addr, len));
            let Some(new) = self.differs(rib, old, addr, len) else { continue };
            // Neighbours below a prefix have host routes only if the prefix is on-link. Replacing one gateway route by
            // another does not affect them.
            let plain = |id: Option<u32>| id.is_some_and(|id| !self.hops.is_glean(id));
            if len < A::MAX && !(plain(old) && plain(new)) {
                hosts.extend(self.neighbours.within(addr, len));
            }
            ops.push(Op { addr, len, id: new });
        }
        hosts.sort_unstable();
        hosts.dedup();
        for addr in hosts {
            if dirty.binary_search(&(addr, A::MAX)).is_err()
                && let Some(id) = self.differs(rib, fib.get(net(addr, A::MAX)), addr, A::MAX)
            {
                ops.push(Op { addr, len: A::MAX, id });
            }
        }
        // Additions come before removals, so that no address is without a route while a prefix is replaced by its
        // halves.
        ops.sort_by_key(|op| op.id.is_none());
        ops
    }

    /// Returns the id that a prefix should have, with a reference, if it differs from `old`.
    fn differs<A: Bits>(&mut self, rib: &Rib<A>, old: Option<u32>, addr: A, len: u8) -> Option<Option<u32>> {
        let new = match (rib.excepted.over(addr, len), rib.winner(addr, len)) {
            (Some(over), _) => (over == len).then(|| {
                self.hops.hold_id(POLICY);
                POLICY
            }),
            (None, Some((_, rec))) => Some(self.target(rec.set, Prefix { addr: addr.ip(), len })),
            (None, None) if len == A::MAX => self.host(rib, addr),
            (None, None) => None,
        };
        if new == old {
            new.into_iter().for_each(|id| self.hops.release(id));
            return None;
        }
        Some(new)
    }

    /// Returns the id of the neighbour `addr` itself, with a reference, if the route covering it is on-link on the same
    /// interface.
    fn host<A: Bits>(&mut self, rib: &Rib<A>, addr: A) -> Option<u32> {
        let mut on = self.neighbours.with(addr.ip()).peekable();
        on.peek()?;
        let (key, rec) = rib.covering(addr)?;
        let glean = self.target(rec.set, Prefix { addr: key.addr.ip(), len: key.len });
        self.hops.release(glean);
        let over = self.hops.adjacency(glean).copied().filter(|a| matches!(a.neighbour, Neighbour::Glean(_)))?;
        on.any(|index| index == over.index)
            .then(|| self.hops.hold(HopKey::Adjacency(Adjacency { neighbour: Neighbour::Via(addr.ip()), ..over })))
    }

    /// Returns the id to which `set` resolves for `prefix`, with a reference.
    fn target(&mut self, set: u32, prefix: Prefix) -> u32 {
        if self.sets.get(set).outcome == Outcome::Stale {
            let outcome = self.resolve(set);
            self.sets.get_mut(set).outcome = outcome;
        }
        let set = self.sets.get(set);
        match set.outcome {
            Outcome::Id(id) => {
                self.hops.hold_id(id);
                id
            }
            Outcome::OnLink(hop) => {
                let neighbour = match (prefix.addr, prefix.len) {
                    // A host route on the link: there is only one neighbour to resolve.
                    (IpAddr::V4(_), 32) | (IpAddr::V6(_), 128) => Neighbour::Via(prefix.addr),
                    // Only without a preferred source does the prefix determine which of the interface's addresses is
                    // used.
                    _ => Neighbour::Glean(set.source.is_none().then_some(prefix)),
                };
                let NextHop { index, outer, .. } = set.hops[hop as usize];
                self.hops.hold(HopKey::Adjacency(Adjacency {
                    v6: set.v6,
                    index,
                    neighbour,
                    mtu: set.mtu,
                    source: set.source,
                    outer,
                }))
            }
            Outcome::Stale => unreachable!("resolved above"),
        }
    }

    /// Resolves a set, which holds a reference to the id in the outcome.
    fn resolve(&mut self, set: u32) -> Outcome {
        let set = self.sets.get(set);
        let fixed = |hops: &mut Hops, id| {
            hops.hold_id(id);
            Outcome::Id(id)
        };
        match set.kind {
            RouteKind::Unicast => {}
            RouteKind::Local => return fixed(self.hops, LOCAL),
            RouteKind::Blackhole => return fixed(self.hops, BLACKHOLE),
            RouteKind::Unreachable => return fixed(self.hops, UNREACHABLE),
            RouteKind::Prohibit => return fixed(self.hops, PROHIBIT),
            RouteKind::Throw => return fixed(self.hops, THROW),
        }
        let port = |h: &NextHop| self.links.leads(h.index) && self.links.takes_outer(h.index, h.outer);
        let alive = || (0u32..).zip(&*set.hops).filter(|(_, h)| h.alive);
        let many = alive().nth(1).is_some();
        match alive().find(|(_, h)| port(h) && h.gateway.is_none()) {
            Some((n, _)) if !many => return Outcome::OnLink(n),
            // A destination on one of several links: only the kernel can solicit it on all of them.
            Some(_) => return fixed(self.hops, KERNEL),
            None => {}
        }
        let mut members: Vec<(u32, u32)> = Vec::new();
        for (_, hop) in alive() {
            let id = match hop.gateway {
                Some(gateway) if port(hop) => self.hops.hold(HopKey::Adjacency(Adjacency {
                    v6: set.v6,
                    index: hop.index,
                    neighbour: Neighbour::Via(gateway),
                    mtu: set.mtu,
                    source: set.source,
                    outer: hop.outer,
                })),
                _ => {
                    self.hops.hold_id(KERNEL);
                    KERNEL
                }
            };
            members.push((id, u32::from(hop.weight.max(1))));
        }
        let held: Vec<u32> = members.iter().map(|m| m.0).collect();
        let outcome = match held[..] {
            [] => return fixed(self.hops, THROW),
            [id] => return Outcome::Id(id),
            _ => group(self.hops, members),
        };
        held.into_iter().for_each(|id| self.hops.release(id));
        outcome
    }
}

/// Returns the group of these ids, or the single id if they are all equal.
fn group(hops: &mut Hops, mut members: Vec<(u32, u32)>) -> Outcome {
    members.sort_unstable();
    members.dedup_by(|next, kept| {
        next.0 == kept.0 && {
            kept.1 += next.1;
            true
        }
    });
    if let [(id, _)] = members[..] {
        hops.hold_id(id);
        return Outcome::Id(id);
    }
    let common = members.iter().fold(0, |g, m| gcd(g, m.1));
    members.iter_mut().for_each(|m| m.1 /= common);
    Outcome::Id(hops.hold(HopKey::Group(members.into())))
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
