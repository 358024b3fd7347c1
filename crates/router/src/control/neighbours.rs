//! Neighbours, ordered by address.

use super::bits::Bits;
use bywash_fib::model::{Mac, Neighbour, NeighbourState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

/// Reachability of a neighbour, as far as it matters for forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Has a link-layer address, confirmed or stale.
    Usable(Mac),
    /// Resolution failed.
    Failed,
    /// Unknown, or being resolved.
    Unknown,
}

#[derive(Clone, Copy)]
pub(super) struct Known {
    pub mac: Option<Mac>,
    pub state: NeighbourState,
}

impl Known {
    fn reach(self) -> Reach {
        match (self.state, self.mac) {
            (NeighbourState::Reachable | NeighbourState::Stale, Some(mac)) => Reach::Usable(mac),
            (NeighbourState::Failed, _) => Reach::Failed,
            _ => Reach::Unknown,
        }
    }
}

#[derive(Default)]
pub(super) struct Neighbours {
    known: BTreeMap<(IpAddr, u32), Known>,
}

impl Neighbours {
    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, u32, Known)> {
        self.after(None)
    }

    /// Returns the neighbours after `last`, which need not exist; all if it is `None`.
    pub fn after(&self, last: Option<(IpAddr, u32)>) -> impl Iterator<Item = (IpAddr, u32, Known)> {
        let range = self.known.range((last.map_or(Unbounded, Excluded), Unbounded));
        range.map(|(&(addr, index), &k)| (addr, index, k))
    }

    pub fn reach(&self, index: u32, addr: IpAddr) -> Reach {
        self.known.get(&(addr, index)).map_or(Reach::Unknown, |k| k.reach())
    }

    /// Adds or updates a neighbour; returns its old and new reachability.
    pub fn set(&mut self, n: &Neighbour) -> (Reach, Reach) {
        let known = Known { mac: n.mac, state: n.state };
        let old = self.known.insert((n.addr, n.index), known);
        (old.map_or(Reach::Unknown, Known::reach), known.reach())
    }

    pub fn remove(&mut self, index: u32, addr: IpAddr) -> Reach {
        self.known.remove(&(addr, index)).map_or(Reach::Unknown, Known::reach)
    }

    /// Returns the addresses of the neighbours on one interface.
    pub fn on(&self, index: u32) -> Vec<IpAddr> {
        self.known.keys().filter(|(_, i)| *i == index).map(|(a, _)| *a).collect()
    }

    /// Returns the interfaces on which `addr` is a neighbour that needs a host route: reachable, or failed.
    pub fn with(&self, addr: IpAddr) -> impl Iterator<Item = u32> {
        let range = self.known.range((addr, 0)..=(addr, u32::MAX));
        range.filter(move |(_, k)| host(addr) && k.reach() != Reach::Unknown).map(|((_, i), _)| *i)
    }

    /// Returns the neighbours, with their interfaces, that have one of these interfaces and MAC addresses.
    pub fn with_macs(&self, macs: &BTreeSet<(u32, Mac)>) -> impl Iterator<Item = (IpAddr, u32)> {
        let has =
            |((_, index), known): &(&(IpAddr, u32), &Known)| known.mac.is_some_and(|mac| macs.contains(&(*index, mac)));
        self.known.iter().filter(has).map(|(key, _)| *key)
    }

    /// Returns the addresses of neighbours within a prefix.
    pub fn within<A: Bits>(&self, addr: A, len: u8) -> impl Iterator<Item = A> {
        let (low, high) = (addr.first(len).ip(), addr.last(len).ip());
        self.known.range((low, 0)..=(high, u32::MAX)).filter_map(|((a, _), _)| A::of(*a))
    }
}

/// Returns whether an address can have a host route. Multicast, broadcast and link-local addresses are left to the
/// kernel.
fn host(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => !a.is_multicast() && !a.is_broadcast(),
        IpAddr::V6(a) => !a.is_multicast() && !a.is_unicast_link_local(),
    }
}
