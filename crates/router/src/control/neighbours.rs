//! Neighbours, in the order of their addresses.

use super::bits::Bits;
use bywash_route::model::{Mac, Neighbour, NeighbourState};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What forwarding cares about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Has an address, confirmed or stale.
    Usable(Mac),
    /// Asked for and not there.
    Failed,
    /// Not known, or being asked for.
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
        self.known.iter().map(|(&(addr, index), &k)| (addr, index, k))
    }

    pub fn reach(&self, index: u32, addr: IpAddr) -> Reach {
        self.known.get(&(addr, index)).map_or(Reach::Unknown, |k| k.reach())
    }

    /// What it was and what it is.
    pub fn set(&mut self, n: &Neighbour) -> (Reach, Reach) {
        let known = Known { mac: n.mac, state: n.state };
        let old = self.known.insert((n.addr, n.index), known);
        (old.map_or(Reach::Unknown, Known::reach), known.reach())
    }

    pub fn remove(&mut self, index: u32, addr: IpAddr) -> Reach {
        self.known.remove(&(addr, index)).map_or(Reach::Unknown, Known::reach)
    }

    /// Those of one interface.
    pub fn on(&self, index: u32) -> Vec<IpAddr> {
        self.known.keys().filter(|(_, i)| *i == index).map(|(a, _)| *a).collect()
    }

    /// Interfaces where `addr` is a neighbour worth a host route: reachable, or known not to be.
    pub fn with(&self, addr: IpAddr) -> impl Iterator<Item = u32> {
        let range = self.known.range((addr, 0)..=(addr, u32::MAX));
        range.filter(move |(_, k)| host(addr) && k.reach() != Reach::Unknown).map(|((_, i), _)| *i)
    }

    /// Addresses of neighbours within a prefix.
    pub fn within<A: Bits>(&self, addr: A, len: u8) -> impl Iterator<Item = A> {
        let (low, high) = (addr.first(len).ip(), addr.last(len).ip());
        self.known.range((low, 0)..=(high, u32::MAX)).filter_map(|((a, _), _)| A::of(*a))
    }
}

/// Whether packets to it are ever forwarded by a host route: groups and link-local addresses stay with the kernel.
fn host(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => !a.is_multicast() && !a.is_broadcast(),
        IpAddr::V6(a) => !a.is_multicast() && !a.is_unicast_link_local(),
    }
}
