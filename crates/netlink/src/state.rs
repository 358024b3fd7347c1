//! A copy of everything the mirror reports: the result of a stream of changes, and the difference between two such
//! copies.

use bywash_fib::model::{Address, Behind, Change, Link, Mac, Neighbour, NextHop, Prefix, Route, RouteKind, Station};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

pub use crate::parse::RouteKey;

/// Content of a route without its key. Equal routes share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RouteBody {
    /// Action on packets.
    pub kind: RouteKind,
    /// Next hops, for unicast.
    pub next_hops: Arc<[NextHop]>,
    /// MTU in bytes, if the route sets one.
    pub mtu: Option<u32>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Origin of the route (rtm_protocol).
    pub protocol: u8,
}

impl RouteBody {
    /// Returns the route with this key and body.
    pub fn route(&self, key: RouteKey) -> Route {
        Route {
            table: key.table,
            prefix: key.prefix,
            kind: self.kind,
            metric: key.metric,
            next_hops: Arc::clone(&self.next_hops),
            mtu: self.mtu,
            source: self.source,
            protocol: self.protocol,
        }
    }

    /// Returns whether packets can be sent by this route now. Routes that are not unicast are always usable.
    pub fn is_usable(&self) -> bool {
        self.kind != RouteKind::Unicast || self.next_hops.iter().any(|hop| hop.alive)
    }
}

impl From<&Route> for RouteBody {
    fn from(route: &Route) -> Self {
        Self {
            kind: route.kind,
            next_hops: Arc::clone(&route.next_hops),
            mtu: route.mtu,
            source: route.source,
            protocol: route.protocol,
        }
    }
}

/// Links, addresses, routes and neighbours. Takes about 45 bytes per route.
#[derive(Clone, Debug, Default)]
pub struct State {
    links: BTreeMap<u32, Link>,
    addresses: BTreeMap<(u32, IpAddr, u8), Address>,
    neighbours: BTreeMap<(u32, IpAddr), Neighbour>,
    /// Members by bridge, VLAN and MAC address.
    stations: BTreeMap<(u32, u32, Mac), Behind>,
    routes: HashMap<RouteKey, Arc<RouteBody>>,
    selective: BTreeSet<(u32, Prefix)>,
    bodies: HashSet<Arc<RouteBody>>,
    /// Size of `bodies` at which those without a route are dropped.
    sweep_at: usize,
}

impl State {
    /// Applies one change. [`Change::Synced`] changes nothing.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Link(link) => {
                self.links.insert(link.index, link.clone());
            }
            Change::LinkGone { index } => {
                self.links.remove(index);
            }
            Change::Address(address) => {
                self.addresses.insert((address.index, address.addr, address.len), address.clone());
            }
            Change::AddressGone { index, addr, len } => {
                self.addresses.remove(&(*index, *addr, *len));
            }
            Change::Route(route) => {
                let body = self.share(route.into());
                self.routes.insert(RouteKey { table: route.table, prefix: route.prefix, metric: route.metric }, body);
            }
            Change::RouteGone { table, prefix, metric } => {
                self.routes.remove(&RouteKey { table: *table, prefix: *prefix, metric: *metric });
            }
            Change::Selective { table, prefix } => drop(self.selective.insert((*table, *prefix))),
            Change::SelectiveGone { table, prefix } => drop(self.selective.remove(&(*table, *prefix))),
            Change::Neighbour(neighbour) => {
                self.neighbours.insert((neighbour.index, neighbour.addr), neighbour.clone());
            }
            Change::NeighbourGone { index, addr } => {
                self.neighbours.remove(&(*index, *addr));
            }
            Change::Station(Station { bridge, vlan, mac, behind }) => {
                self.stations.insert((*bridge, *vlan, *mac), *behind);
            }
            Change::StationGone { bridge, vlan, mac } => drop(self.stations.remove(&(*bridge, *vlan, *mac))),
            Change::Elsewhere { .. } | Change::Synced => {}
        }
    }

    /// Returns the changes that turn `from` into `to` when applied in order.
    pub fn diff(from: &Self, to: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        changes.extend(fresh(&from.links, &to.links).map(|(_, link)| Change::Link(link.clone())));
        changes.extend(fresh(&from.addresses, &to.addresses).map(|(_, address)| Change::Address(address.clone())));
        for (key, body) in &to.routes {
            if from.routes.get(key).is_none_or(|old| old != body) {
                changes.push(Change::Route(body.route(*key)));
            }
        }
        for key in from.routes.keys().filter(|key| !to.routes.contains_key(key)) {
            changes.push(route_gone(*key));
        }
        let selective = to.selective.difference(&from.selective);
        changes.extend(selective.map(|&(table, prefix)| Change::Selective { table, prefix }));
        let gone = from.selective.difference(&to.selective);
        changes.extend(gone.map(|&(table, prefix)| Change::SelectiveGone { table, prefix }));
        changes.extend(fresh(&from.neighbours, &to.neighbours).map(|(_, n)| Change::Neighbour(n.clone())));
        changes.extend(
            missing(&from.neighbours, &to.neighbours)
                .map(|(index, addr)| Change::NeighbourGone { index: *index, addr: *addr }),
        );
        changes.extend(
            fresh(&from.stations, &to.stations)
                .map(|(&(bridge, vlan, mac), &behind)| Change::Station(Station { bridge, vlan, mac, behind })),
        );
        let lost = missing(&from.stations, &to.stations);
        changes.extend(lost.map(|&(bridge, vlan, mac)| Change::StationGone { bridge, vlan, mac }));
        changes.extend(missing(&from.addresses, &to.addresses).map(|(index, addr, len)| Change::AddressGone {
            index: *index,
            addr: *addr,
            len: *len,
        }));
        changes.extend(missing(&from.links, &to.links).map(|index| Change::LinkGone { index: *index }));
        changes
    }

    /// Returns all links, by index.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// Returns the link with this index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// Returns all addresses, by interface.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.values()
    }

    /// Returns all neighbours, by interface.
    pub fn neighbours(&self) -> impl Iterator<Item = &Neighbour> {
        self.neighbours.values()
    }

    /// Returns whether there is an entry for a station.
    pub fn station(&self, bridge: u32, vlan: u32, mac: Mac) -> bool {
        self.stations.contains_key(&(bridge, vlan, mac))
    }

    /// Returns all routes, in no particular order.
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        self.routes.iter().map(|(key, body)| body.route(*key))
    }

    /// Returns the route with this table, prefix and metric.
    pub fn route(&self, table: u32, prefix: Prefix, metric: u32) -> Option<Route> {
        let key = RouteKey { table, prefix, metric };
        self.routes.get(&key).map(|body| body.route(key))
    }

    /// Returns the tables and prefixes that have routes for some packets only, by TOS or source.
    pub fn selective(&self) -> impl Iterator<Item = (u32, Prefix)> {
        self.selective.iter().copied()
    }

    /// Returns the number of routes.
    pub fn route_count(&self) -> usize {
        self.routes.len()
    }

    fn share(&mut self, body: RouteBody) -> Arc<RouteBody> {
        if let Some(known) = self.bodies.get(&body) {
            return Arc::clone(known);
        }
        if self.bodies.len() >= self.sweep_at {
            self.bodies.retain(|body| Arc::strong_count(body) > 1);
            self.sweep_at = (self.bodies.len() * 2).max(1024);
        }
        let body = Arc::new(body);
        self.bodies.insert(Arc::clone(&body));
        body
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.links == other.links
            && self.addresses == other.addresses
            && self.neighbours == other.neighbours
            && self.stations == other.stations
            && self.routes == other.routes
            && self.selective == other.selective
    }
}

impl Eq for State {}

/// Returns the change that reports a route as gone.
pub(crate) fn route_gone(key: RouteKey) -> Change {
    Change::RouteGone { table: key.table, prefix: key.prefix, metric: key.metric }
}

fn fresh<'a, K: Ord, V: PartialEq>(
    from: &'a BTreeMap<K, V>,
    to: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    to.iter().filter(|(key, value)| from.get(key) != Some(*value))
}

/// Returns the keys of `from` that `to` lacks.
fn missing<'a, K: Ord, V>(from: &'a BTreeMap<K, V>, to: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    from.keys().filter(|key| !to.contains_key(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_fib::model::NeighbourState;
    use proptest::prelude::*;

    fn addr() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0u8..4).prop_map(|n| IpAddr::from([10, 0, 0, n])),
            (0u16..4).prop_map(|n| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n])),
        ]
    }

    fn change() -> impl Strategy<Value = Change> {
        let prefix = || (addr(), 30u8..33).prop_map(|(addr, len)| Prefix { addr, len });
        let hop = (1u32..4, prop::option::of(addr()), any::<bool>()).prop_map(|(index, gateway, alive)| NextHop {
            outer: None,
            index,
            gateway,
            weight: 1,
            alive,
        });
        let route = (prefix(), 0u32..2, prop::collection::vec(hop, 0..3)).prop_map(|(prefix, metric, hops)| Route {
            table: 254,
            prefix,
            kind: RouteKind::Unicast,
            metric,
            next_hops: hops.into(),
            mtu: None,
            source: None,
            protocol: 3,
        });
        let link = (1u32..4, 1280u32..1283).prop_map(|(index, mtu)| Link {
            index,
            name: format!("e{index}"),
            mtu,
            up: true,
            carrier: true,
            rx_queues: 1,
            ..Link::default()
        });
        prop_oneof![
            link.prop_map(Change::Link),
            (1u32..4).prop_map(|index| Change::LinkGone { index }),
            (1u32..4, addr(), any::<bool>()).prop_map(|(index, addr, secondary)| {
                Change::Address(Address { index, addr, len: 30, secondary, link_scope: false })
            }),
            (1u32..4, addr()).prop_map(|(index, addr)| Change::AddressGone { index, addr, len: 30 }),
            route.prop_map(Change::Route),
            (prefix(), 0u32..2).prop_map(|(prefix, metric)| Change::RouteGone { table: 254, prefix, metric }),
            prefix().prop_map(|prefix| Change::Selective { table: 254, prefix }),
            prefix().prop_map(|prefix| Change::SelectiveGone { table: 254, prefix }),
            (1u32..4, addr(), any::<bool>()).prop_map(|(index, addr, known)| {
                let state = if known { NeighbourState::Reachable } else { NeighbourState::Failed };
                Change::Neighbour(Neighbour { index, addr, mac: known.then_some([2; 6]), state })
            }),
            (1u32..4, addr()).prop_map(|(index, addr)| Change::NeighbourGone { index, addr }),
            Just(Change::Synced),
        ]
    }

    proptest! {
        #[test]
        fn a_difference_makes_one_state_the_other(
            one in prop::collection::vec(change(), 0..60),
            other in prop::collection::vec(change(), 0..60),
        ) {
            let state = |changes: &[Change]| {
                let mut state = State::default();
                changes.iter().for_each(|change| state.apply(change));
                state
            };
            let (mut from, to) = (state(&one), state(&other));
            let difference = State::diff(&from, &to);
            difference.iter().for_each(|change| from.apply(change));
            prop_assert_eq!(&from, &to);
            prop_assert_eq!(State::diff(&from, &to), vec![]);
        }
    }
}
