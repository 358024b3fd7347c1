//! The kernel's tables as its messages describe them, kept close enough to the kernel's own structure that every
//! message can be applied, and converted to changes of the model.

mod early;
mod moved;
mod mtus;
mod teams;
mod vlans;

use crate::bodies::{Bodies, BodyId, Resolver};
use crate::parse::{Body, Event, Leg, Object, RouteKey};
use crate::pending::Pending;
use crate::routes::{self, Key, Key4, Key6, Outcome, Routes};
use crate::state::{RouteBody, route_gone};
use crate::teams::Team;
use crate::uapi::{NETCONFA_IFINDEX_ALL, RTN_BLACKHOLE};
use crate::vnis::Vnis;
use bywash_fib::model::{Address, Behind, BridgeVlans, Change, Link, Mac, Member, Neighbour, Prefix, Station};
use early::{Doubt, Early, Known};
use moved::Moved;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

/// Returns the resolver of a [`Kernel`], whose other fields may be borrowed meanwhile.
macro_rules! resolver {
    ($kernel:expr) => {
        Resolver { links: &$kernel.links, objects: &$kernel.objects, addresses: &$kernel.addresses }
    };
}
use resolver;

/// A value and the generation of the dump in which it was last seen.
#[derive(Clone, Debug)]
pub struct Stamped<T> {
    pub value: T,
    pub generation: u32,
}

/// Set of object kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope(u8);

impl Scope {
    pub const NONE: Self = Self(0);
    pub const LINKS: Self = Self(1);
    pub const ADDRESSES: Self = Self(2);
    pub const OBJECTS: Self = Self(4);
    pub const ROUTES4: Self = Self(8);
    pub const ROUTES6: Self = Self(16);
    pub const NEIGHBOURS: Self = Self(32);
    pub const STATIONS: Self = Self(64);
    /// VLANs of bridges and their members.
    pub const VLANS: Self = Self(128);
    pub const ALL: Self = Self(255);
    /// Kinds whose objects the kernel removes or changes silently with a link.
    const UNDER_LINKS: Self = Self(2 | 4 | 8 | 16);
    const ROUTES: Self = Self(8 | 16);

    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the kinds in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Returns the kinds that are not in the other set.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the kinds in either set.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn when(condition: bool, scope: Self) -> Self {
        if condition { scope } else { Self::NONE }
    }
}

impl std::ops::BitOr for Scope {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A dump: one of several bodies of a key, in order.
    Dump,
    /// A notification, newer than all known state.
    Live,
    /// A notification that a running dump may have overtaken, before this dump ends. It is replayed afterwards.
    Early,
    /// A notification that a dump may have overtaken.
    Replay,
}

/// The kernel's tables.
#[derive(Debug, Default)]
pub struct Kernel {
    links: BTreeMap<u32, Stamped<Link>>,
    addresses: BTreeMap<(u32, IpAddr, u8), Stamped<Address>>,
    neighbours: HashMap<(u32, IpAddr), Stamped<Neighbour>>,
    /// Stations of bridges and VXLANs, by index, [`Station::vlan`] and MAC address.
    stations: HashMap<(u32, u32, Mac), Stamped<Behind>>,
    /// VLANs of bridges and their members, by index.
    vlans: BTreeMap<u32, Stamped<BridgeVlans>>,
    /// Networks that VXLANs with a filter receive, by index.
    networks: BTreeMap<u32, Stamped<Vnis>>,
    /// Options of teams, by index: `None` until they have been read.
    teams: BTreeMap<u32, Option<Team>>,
    /// Kinds that must be read again before a reading ends.
    unread: Scope,
    objects: HashMap<u32, Stamped<Object>>,
    routes4: Routes<Key4>,
    routes6: Routes<Key6>,
    bodies: Bodies,
    /// Prefixes, by table, with routes for some packets only, and the links of those routes.
    selective: BTreeMap<(u32, Prefix), Stamped<BTreeSet<u32>>>,
    generation: u32,
    /// Generations of the previous and the current dump of IPv6 routes.
    generations6: [u32; 2],
    pending: Pending,
    /// Links whose bodies must be resolved again before anything is reported.
    stirred_links: BTreeSet<u32>,
    stirred_objects: bool,
    /// Subjects of the notifications during the reading, other than routes.
    moved: Moved,
    /// Kinds of routes whose dump in this reading has not ended.
    awaited: Scope,
    /// Kind whose dump has ended, and whose notifications have not been replayed yet.
    replayed: Scope,
    /// Set if the reading includes routes.
    reads_routes: bool,
    /// Key of the last route that the running dump has shown. More of its bodies may follow.
    unfinished: Option<RouteKey>,
    /// Kind that is being dumped.
    dumped: Scope,
    early: Early,
}

impl Kernel {
    /// Applies one event. Returns the kinds that must be read again because the kernel changes them without a message.
    pub fn apply(&mut self, event: Event, origin: Origin) -> Scope {
        match event {
            Event::Link { link, switched } => self.link(link, switched, origin),
            Event::LinkGone(index) => self.link_gone(index, origin),
            Event::Address { address, expires } => self.address(address, expires, origin),
            Event::AddressGone(index, addr, len) => self.address_gone(index, addr, len, origin),
            Event::Route { key, body, flags, gone, .. } => self.route(key, body, flags, gone, origin),
            // The prefix may have other selective routes.
            Event::Selective { prefix, gone: true, .. } => routes_of(prefix),
            Event::Selective { table, prefix, links, .. } => {
                self.selective(table, prefix, links);
                Scope::NONE
            }
            Event::Object(id, object) => self.object(id, object, origin),
            Event::ObjectGone(id) => self.object_gone(id, origin),
            Event::Neighbour(neighbour) => {
                let (key, dumped) = ((neighbour.index, neighbour.addr), self.dumped.has(Scope::NEIGHBOURS));
                if note(&mut self.early.neighbours, key, origin, dumped) {
                    self.neighbour(neighbour);
                }
                Scope::NONE
            }
            Event::NeighbourGone(index, addr) => {
                let dumped = self.dumped.has(Scope::NEIGHBOURS);
                note(&mut self.early.neighbours, (index, addr), origin, dumped);
                self.drop_neighbour((index, addr));
                Scope::NONE
            }
            Event::BridgePort(index, member) => self.bridge_port(index, member),
            Event::BridgeVlans(index, vlans) => self.vlans_of(index, vlans, origin),
            Event::Networks(index, networks) => {
                self.add_networks(index, networks, origin);
                Scope::NONE
            }
            Event::NetworksGone(index, networks) => {
                self.remove_networks(index, &networks);
                Scope::NONE
            }
            Event::Station(Station { bridge, vlan, mac, behind }) => {
                let (key, dumped) = ((bridge, vlan, mac), self.dumped.has(Scope::STATIONS));
                if note(&mut self.early.stations, key, origin, dumped) {
                    let old = self.stations.insert(key, Stamped { value: behind, generation: self.generation });
                    self.pending.stations.entry(key).or_insert(old.map(|old| old.value));
                }
                Scope::NONE
            }
            Event::StationGone { bridge, vlan, mac } => {
                let dumped = self.dumped.has(Scope::STATIONS);
                note(&mut self.early.stations, (bridge, vlan, mac), origin, dumped);
                self.drop_station((bridge, vlan, mac));
                Scope::NONE
            }
            Event::Linkdown { index, v6 } => self.linkdown(index, v6),
        }
    }

    /// Ends a dump of this kind and the replay after it. Returns the kinds that must be read again because the replay
    /// did not give the kernel's state.
    pub fn end_dump(&mut self, kind: Scope) -> Scope {
        self.unfinished = None;
        self.dumped = Scope::NONE;
        self.awaited = self.awaited.without(kind);
        self.replayed = Scope::NONE;
        let lost = self.early.doubts.drain().filter(|(_, doubt)| doubt.lost);
        lost.fold(Scope::NONE, |kinds, (key, _)| kinds | routes_of(key.prefix))
    }

    /// Begins a reading of the kinds in `scope`.
    pub fn begin(&mut self, scope: Scope) {
        self.generation = self.generation.wrapping_add(1);
        self.awaited = scope.and(Scope::ROUTES);
        self.reads_routes = !self.awaited.is_empty();
        if scope.has(Scope::ROUTES6) {
            self.generations6 = [self.generations6[1], self.generation];
        }
    }

    /// Ends the dump of one kind and removes the objects that it did not show. A dump that is not `quiet` may have
    /// skipped objects; then only those that the previous dump did not show either are removed.
    pub fn finish(&mut self, kind: Scope, quiet: bool) {
        self.end_dump(kind);
        self.replayed = kind;
        let generation = self.generation;
        if kind.has(Scope::LINKS) {
            for index in unseen(&self.links, generation) {
                self.link_gone(index, Origin::Dump);
            }
        }
        if kind.has(Scope::ADDRESSES) {
            for key in unseen(&self.addresses, generation) {
                self.drop_address(key);
            }
        }
        if kind.has(Scope::OBJECTS) {
            let before = self.objects.len();
            self.objects.retain(|_, object| object.generation == generation);
            self.stirred_objects |= before != self.objects.len();
        }
        if kind.has(Scope::NEIGHBOURS) {
            let stale: Vec<_> =
                self.neighbours.iter().filter(|(_, n)| n.generation != generation).map(|(key, _)| *key).collect();
            for key in stale {
                self.drop_neighbour(key);
            }
        }
        if kind.has(Scope::VLANS) {
            for index in unseen(&self.vlans, generation) {
                self.vlans.remove(&index);
                self.set_vlans(index);
            }
            for index in unseen(&self.networks, generation) {
                self.networks.remove(&index);
                self.set_vlans(index);
            }
        }
        if kind.has(Scope::STATIONS) {
            let stale: Vec<_> =
                self.stations.iter().filter(|(_, s)| s.generation != generation).map(|(key, _)| *key).collect();
            for key in stale {
                self.drop_station(key);
            }
        }
        if kind.has(Scope::ROUTES4) {
            let stale = self.routes4.unseen(generation);
            clear(&mut self.routes4, stale, &mut self.bodies, &mut self.pending);
            self.clear_known(Scope::ROUTES4, |seen| seen != generation);
            self.clear_selective(Scope::ROUTES4, |seen| seen != generation);
        }
        if kind.has(Scope::ROUTES6) {
            let mut stale = self.routes6.unseen(generation);
            if !quiet {
                stale.retain(|key| self.routes6.seen(key).is_some_and(|seen| seen < self.generations6[0]));
            }
            clear(&mut self.routes6, stale, &mut self.bodies, &mut self.pending);
            let before = self.generations6[0];
            let stale = |seen| seen != generation && (quiet || seen < before);
            self.clear_known(Scope::ROUTES6, stale);
            self.clear_selective(Scope::ROUTES6, stale);
        }
    }

    /// Returns the kinds that must be read again because an object that has been read decides about them.
    pub fn unread(&mut self) -> Scope {
        std::mem::take(&mut self.unread)
    }

    /// Returns the number of objects that have changed since the last report.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether changes must be reported before `event` is applied: it announces a link with the index of one
    /// that has gone since the last report, or one whose master has changed since then and changes again. A member that
    /// has left a bond and is back is the last in its order.
    pub fn must_report(&self, event: &Event) -> bool {
        let Event::Link { link, .. } = event else { return false };
        let Some(Some(old)) = self.pending.links.get(&link.index) else { return false };
        self.links.get(&link.index).is_none_or(|known| {
            let known = known.value.master;
            known != link.master && known != old.master
        })
    }

    /// Emits the changes since the last report, one for each object, except for a route of which a dump may show more.
    /// Routes that have gone come after those that may take their place: the changes may be applied one by one.
    pub fn report(&mut self, mut emit: impl FnMut(Change)) {
        self.settle();
        let mut gone = Vec::new();
        for (index, old) in std::mem::take(&mut self.pending.links) {
            match self.links.get(&index).map(|link| &link.value) {
                Some(new) if old.as_ref() != Some(new) => emit(Change::Link(new.clone())),
                None if old.is_some() => gone.push(Change::LinkGone { index }),
                _ => {}
            }
        }
        for (key, old) in std::mem::take(&mut self.pending.addresses) {
            match self.addresses.get(&key).map(|address| &address.value) {
                Some(new) if old.as_ref() != Some(new) => emit(Change::Address(new.clone())),
                None if old.is_some() => gone.push(Change::AddressGone { index: key.0, addr: key.1, len: key.2 }),
                _ => {}
            }
        }
        let mut unselected = Vec::new();
        for ((table, prefix), old) in std::mem::take(&mut self.pending.selective) {
            match self.selective.contains_key(&(table, prefix)) {
                true if !old => emit(Change::Selective { table, prefix }),
                false if old => unselected.push(Change::SelectiveGone { table, prefix }),
                _ => {}
            }
        }
        let (mut list, mut routes) = (Vec::new(), std::mem::take(&mut self.pending.routes));
        if let Some((key, old)) = self.unfinished.and_then(|key| routes.remove_entry(&key)) {
            self.pending.routes.insert(key, old);
        }
        routes.retain(|key, old| {
            match key.prefix.addr {
                IpAddr::V4(_) => self.routes4.read(&Key4::of(key), &mut list),
                IpAddr::V6(_) => self.routes6.read(&Key6::of(key), &mut list),
            };
            let new = self.bodies.effective(&list, key.prefix.addr.is_ipv6());
            if let Some(new) = new.as_ref().filter(|new| old.as_ref() != Some(new)) {
                emit(Change::Route(new.route(*key)));
            }
            new.is_none() && old.is_some()
        });
        routes.into_keys().for_each(|key| emit(route_gone(key)));
        unselected.into_iter().for_each(&mut emit);
        for (key, old) in std::mem::take(&mut self.pending.neighbours) {
            match self.neighbours.get(&key).map(|neighbour| &neighbour.value) {
                Some(new) if old.as_ref() != Some(new) => emit(Change::Neighbour(new.clone())),
                None if old.is_some() => emit(Change::NeighbourGone { index: key.0, addr: key.1 }),
                _ => {}
            }
        }
        for (key @ (bridge, vlan, mac), old) in std::mem::take(&mut self.pending.stations) {
            match self.stations.get(&key).map(|station| station.value) {
                Some(behind) if old != Some(behind) => emit(Change::Station(Station { bridge, vlan, mac, behind })),
                None if old.is_some() => emit(Change::StationGone { bridge, vlan, mac }),
                _ => {}
            }
        }
        gone.into_iter().rev().for_each(emit);
        self.routes4.trim();
        self.routes6.trim();
    }

    /// Returns the numbers of links, addresses, routes of both families, neighbours, and distinct route bodies.
    pub fn sizes(&self) -> [usize; 6] {
        let (four, six) = (self.routes4.len(), self.routes6.len());
        [self.links.len(), self.addresses.len(), four, six, self.neighbours.len(), self.bodies.len()]
    }

    fn link(&mut self, mut link: Link, switched: bool, origin: Origin) -> Scope {
        let (index, mut scope) = (link.index, Scope::NONE);
        let joins = self.links.get(&index).is_some_and(|old| old.value.master != link.master);
        // The VLANs known until now may be those of the bridge that the interface has left.
        if joins || self.forgets_networks(index, link.member) {
            scope.add(self.forget_vlans(index));
        }
        link.vlans = self.known_vlans(&link);
        let is_new_team = link.kind == "team" && !self.teams.contains_key(&index);
        if is_new_team {
            self.teams.insert(index, None);
        } else if link.kind != "team" {
            self.drop_team(index);
        }
        self.join_team(&mut link);
        let old = self.links.get(&index).map(|old| &old.value);
        let sending = |link: &Link| link.up && link.carrier;
        // Next hops without carrier are used until the link is down.
        let turned = old.is_none_or(|old| (old.up, old.carrier) != (link.up, link.carrier));
        if origin != Origin::Dump {
            let moved = old.is_some_and(|old| old.master != link.master);
            if self.notes(origin) && (switched || turned || moved || old.is_some_and(|old| old.mtu != link.mtu)) {
                self.moved.links.insert(index);
            }
            // The tables are read again even if this message changes nothing: the kernel sends a first message before
            // it clears the routes and a second one after.
            let shaken = (switched || turned || moved) && self.is_used(index);
            // A message can show the carrier before the kernel's link watch has cleared the dead marks of the legs
            // (fib_sync_up, rt6_sync_up), and so can the dump that it triggers. The later message of the link watch
            // shows nothing new.
            let revived = sending(&link) && self.is_dead_over(index);
            // Nor does the loss of carrier have to be new: a dump can have shown it before the link watch marked the
            // legs.
            let lost = link.up && !link.carrier && self.is_used(index);
            scope.add(Scope::when(shaken || revived || lost, Scope::UNDER_LINKS));
            // The kernel announces the end of a pair that it makes first as one without a peer (veth_newlink), and does
            // not announce it again when it has one.
            let repaired = old.map_or(link.paired, |old| old.paired != link.paired);
            scope.add(Scope::when(repaired, Scope::LINKS));
            // rt6_mtu_change lowers and raises explicit route MTUs without a message.
            if old.is_some_and(|old| old.mtu != link.mtu) {
                let has_mtu =
                    |body: &Body| (body.mtu.is_some() || body.mixed_mtus) && (body.object != 0 || body.uses(index));
                let fixed = self.bodies.iter().any(|(_, entry)| has_mtu(&entry.body));
                scope.add(Scope::when(fixed, Scope::ROUTES6));
            }
        }
        if turned {
            self.stirred_links.insert(index);
        }
        if old != Some(&link) {
            let old = old.cloned();
            self.pending.links.entry(index).or_insert(old);
        }
        self.links.insert(index, Stamped { value: link, generation: self.generation });
        // Each reading has the options of all teams.
        scope.add(Scope::when(is_new_team, Scope::LINKS));
        scope
    }

    /// Returns whether there is an interface above others that packets may be forwarded for, tunnels included.
    pub fn has_uppers(&self) -> bool {
        self.links.values().map(|link| &link.value).any(|link| {
            let of_frames = link.vlan.is_some() || link.bond.is_some() || link.bridge.is_some();
            of_frames || link.macvlan.is_some() || link.tunnel.is_some()
        })
    }

    fn link_gone(&mut self, index: u32, origin: Origin) -> Scope {
        if self.notes(origin) {
            self.moved.links.insert(index);
        }
        self.vlans.remove(&index);
        self.networks.remove(&index);
        self.drop_team(index);
        let Some(old) = self.links.remove(&index) else { return Scope::NONE };
        // A VXLAN interface that moves to another network namespace takes some along without a word.
        let stations: Vec<_> = self.stations.keys().filter(|(of, ..)| *of == index).copied().collect();
        stations.into_iter().for_each(|key| self.drop_station(key));
        self.pending.links.entry(index).or_insert(Some(old.value));
        self.stirred_links.insert(index);
        Scope::when(self.is_used(index), Scope::UNDER_LINKS)
    }

    /// Returns the routes to read again after `ignore_routes_with_linkdown` has changed: the kernel then marks next
    /// hops without carrier differently in its dumps, but sends no message.
    fn linkdown(&self, index: u32, v6: bool) -> Scope {
        let concerned = |link: &Link| [link.index, NETCONFA_IFINDEX_ALL].contains(&index) && link.up && !link.carrier;
        let any = self.links.values().any(|link| concerned(&link.value) && self.is_used(link.value.index));
        Scope::when(any, if v6 { Scope::ROUTES6 } else { Scope::ROUTES4 })
    }

    /// Returns whether a route or next-hop object uses a link.
    fn is_used(&self, index: u32) -> bool {
        self.bodies.iter().any(|(_, entry)| entry.body.uses(index))
            || self.objects.values().any(|object| matches!(&object.value, Object::Leg(leg) if leg.index == index))
            || self.selective.values().any(|links| links.value.contains(&index))
    }

    fn selective(&mut self, table: u32, prefix: Prefix, links: Vec<u32>) {
        let known = self.selective.get_mut(&(table, prefix));
        self.pending.selective.entry((table, prefix)).or_insert(known.is_some());
        match known {
            Some(known) => {
                known.generation = self.generation;
                known.value.extend(links);
            }
            None => {
                let new = Stamped { value: links.into_iter().collect(), generation: self.generation };
                self.selective.insert((table, prefix), new);
            }
        }
    }

    /// Removes the selective prefixes of a family for whose generation `stale` is true.
    fn clear_selective(&mut self, family: Scope, stale: impl Fn(u32) -> bool) {
        let pending = &mut self.pending.selective;
        self.selective.retain(|key, known| {
            let keep = routes_of(key.1) != family || !stale(known.generation);
            if !keep {
                pending.entry(*key).or_insert(true);
            }
            keep
        });
    }

    /// Returns whether a leg over a link is marked dead.
    fn is_dead_over(&self, index: u32) -> bool {
        let dead = |leg: &Leg| leg.index == index && (leg.dead || leg.ignored);
        self.bodies.iter().any(|(_, entry)| entry.body.legs.iter().any(dead))
            || self.objects.values().any(|object| matches!(&object.value, Object::Leg(leg) if dead(leg)))
    }

    fn address(&mut self, address: Address, expires: bool, origin: Origin) -> Scope {
        let v6 = address.addr.is_ipv6();
        let (key, index) = ((address.index, address.addr, address.len), address.index);
        let old = self.addresses.get(&key).map(|old| &old.value);
        let is_new = old.is_none();
        if old != Some(&address) {
            let old = old.cloned();
            self.pending.addresses.entry(key).or_insert(old);
        }
        self.addresses.insert(key, Stamped { value: address, generation: self.generation });
        if is_new {
            self.stir_gateway(index, key.1);
        }
        if self.notes(origin) && is_new {
            self.moved.links.insert(index);
        }
        // The first IPv4 address of a link revives its legs silently (fib_sync_up).
        let revived = origin != Origin::Dump && is_new && self.is_dead_over(index);
        // An address with a new lifetime gives it to its prefix route silently (modify_prefix_route).
        let lifetime = origin != Origin::Dump && !is_new && v6 && expires;
        Scope::when(revived, Scope::ROUTES4) | Scope::when(lifetime, Scope::ROUTES6)
    }

    fn address_gone(&mut self, index: u32, addr: IpAddr, len: u8, origin: Origin) -> Scope {
        if self.notes(origin) {
            self.moved.links.insert(index);
            self.moved.addresses.insert(addr);
        }
        self.drop_address((index, addr, len));
        // Another address may remain that differs only by its peer.
        let mut scope = Scope::ADDRESSES;
        let preferred = self.bodies.iter().any(|(_, entry)| entry.body.prefers(addr));
        if addr.is_ipv4() {
            // The kernel silently removes all IPv4 routes of a link with its last address (fib_disable_ip).
            let last = !self.addresses.keys().any(|(of, addr, _)| *of == index && addr.is_ipv4());
            scope.add(Scope::when(preferred || last, Scope::ROUTES4));
        } else {
            // With `skip_notify_on_dev_down`, the kernel silently removes all IPv6 routes of a link on which IPv6 ends
            // (rt6_disable_ip), and then its addresses, of which `keep_addr_on_down` spares all but those of the link.
            let last = !self.addresses.keys().any(|(of, addr, _)| *of == index && addr.is_ipv6());
            let of_link = matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
            scope.add(Scope::when(preferred || last || of_link, Scope::ROUTES6));
        }
        scope
    }

    fn drop_address(&mut self, key: (u32, IpAddr, u8)) {
        if let Some(old) = self.addresses.remove(&key) {
            self.pending.addresses.entry(key).or_insert(Some(old.value));
            self.stir_gateway(key.0, key.1);
        }
    }

    /// Has the routes by `gateway` resolved again, which has become an address of the host or is one no longer.
    fn stir_gateway(&mut self, index: u32, gateway: IpAddr) {
        let leads = |leg: &Leg| leg.index == index && leg.gateway == Some(gateway);
        if gateway.is_ipv4() && self.bodies.iter().any(|(_, entry)| entry.body.legs.iter().any(leads)) {
            self.stirred_links.insert(index);
        }
    }

    fn neighbour(&mut self, neighbour: Neighbour) {
        let key = (neighbour.index, neighbour.addr);
        let generation = self.generation;
        match self.neighbours.get_mut(&key) {
            Some(known) if known.value == neighbour => known.generation = generation,
            known => {
                let old = known.map(|known| known.value.clone());
                self.pending.neighbours.entry(key).or_insert(old);
                self.neighbours.insert(key, Stamped { value: neighbour, generation });
            }
        }
    }

    /// Returns whether a neighbour is known with its link-layer address.
    pub fn knows(&self, neighbour: &Neighbour) -> bool {
        let known = self.neighbours.get(&(neighbour.index, neighbour.addr));
        known.is_some_and(|known| known.value.mac == neighbour.mac)
    }

    fn drop_neighbour(&mut self, key: (u32, IpAddr)) {
        if let Some(old) = self.neighbours.remove(&key) {
            self.pending.neighbours.entry(key).or_insert(Some(old.value));
        }
    }

    fn drop_station(&mut self, key: (u32, u32, Mac)) {
        if let Some(old) = self.stations.remove(&key) {
            self.pending.stations.entry(key).or_insert(Some(old.value));
        }
    }

    /// Updates the state of a bridge's member.
    fn bridge_port(&mut self, index: u32, member: Member) -> Scope {
        let forgets = self.forgets_networks(index, Some(member));
        let Some(link) = self.links.get_mut(&index).map(|link| &mut link.value) else { return Scope::NONE };
        if link.member == Some(member) || link.master.is_none() {
            return Scope::NONE;
        }
        self.pending.links.entry(index).or_insert_with(|| Some(link.clone()));
        link.member = Some(member);
        if !forgets {
            return Scope::NONE;
        }
        let scope = self.forget_vlans(index);
        self.set_vlans(index);
        scope
    }

    fn object(&mut self, id: u32, mut object: Object, origin: Origin) -> Scope {
        if let Object::Leg(leg) = &mut object {
            resolver!(self).clear_dead_marks(std::slice::from_mut(leg));
        }
        let new = Stamped { value: object, generation: self.generation };
        let changed = self.objects.get(&id).is_none_or(|old| old.value != new.value);
        self.stirred_objects |= changed;
        let discards = new.value == Object::Blackhole;
        if changed && !discards && self.notes(origin) {
            self.moved.objects.insert(id);
        }
        self.objects.insert(id, new);
        // Routes shown as blackholes may have had the type of this object. With `nexthop_compat_mode` off, the kernel
        // does not announce them again.
        let resolver = resolver!(self);
        let leads = |object| object == id || resolver.members(object).iter().any(|member| member.0 == id);
        let shown = |body: &Body| body.kind == RTN_BLACKHOLE && body.object != 0 && leads(body.object);
        let hidden = changed && !discards && self.bodies.iter().any(|(_, entry)| shown(&entry.body));
        Scope::when(hidden, Scope::ROUTES)
    }

    fn object_gone(&mut self, id: u32, origin: Origin) -> Scope {
        if self.notes(origin) {
            self.moved.gone.insert(id);
        }
        self.objects.remove(&id);
        self.stirred_objects = true;
        // IPv4 routes that use it are removed silently, and groups shrink and go (remove_nexthop_from_groups).
        let mut used = self.bodies.iter().any(|(_, entry)| entry.body.object == id);
        self.objects.retain(|_, object| {
            let Object::Group(members) = &mut object.value else { return true };
            let before = members.len();
            members.retain(|(member, _)| *member != id);
            used |= members.len() != before;
            !members.is_empty()
        });
        Scope::when(used, Scope::OBJECTS | Scope::ROUTES4 | Scope::ROUTES6)
    }

    fn route(&mut self, key: RouteKey, mut body: Body, flags: u16, gone: bool, origin: Origin) -> Scope {
        let resolver = resolver!(self);
        resolver.clear_dead_marks(&mut body.legs);
        let v4 = key.prefix.addr.is_ipv4();
        let kind = if v4 { Scope::ROUTES4 } else { Scope::ROUTES6 };
        let (generation, early, bodies) = (self.generation, &mut self.early, &mut self.bodies);
        let read = || {
            let mut list = vec![];
            let seen = match v4 {
                true => self.routes4.read(&Key4::of(&key), &mut list),
                false => self.routes6.read(&Key6::of(&key), &mut list),
            };
            (list, seen)
        };
        match origin {
            Origin::Dump => {
                body.mixed_mtus = !v4 && body.has_own_mtus() && mtus::may_be_mixed(&self.routes6, &key, &body, bodies);
                self.unfinished = Some(key);
                if let Some(known) = early.routes.get_mut(&key) {
                    known.show(body, generation, bodies, &resolver);
                    early.overtaken.insert(key);
                    return Scope::NONE;
                }
            }
            Origin::Early if self.dumped.has(kind) && !early.routes.contains_key(&key) => {
                if early.opening || self.unfinished == Some(key) {
                    early.overtaken.insert(key);
                }
                if self.unfinished == Some(key) {
                    // Applied to a part of its bodies, it could change their order.
                    return Scope::NONE;
                }
                let (list, seen) = read();
                if early.opening {
                    early.doubts.insert(key, Doubt::about(&list, bodies));
                }
                list.iter().for_each(|id| bodies.share(*id));
                early.routes.insert(key, Known { list, seen });
            }
            Origin::Replay if early.opening && self.replayed.has(kind) => {
                early.doubts.entry(key).or_insert_with(|| Doubt::about(&read().0, bodies));
            }
            _ => {}
        }
        let awaited = self.awaited.has(kind);
        let message = RouteMessage { key, body, flags, gone, origin, awaited, generation };
        let (doubt, pending) = (early.doubts.get_mut(&key), &mut self.pending);
        let outcome = match v4 {
            true => apply_route(&mut self.routes4, message, bodies, &resolver, pending, doubt),
            false => apply_route(&mut self.routes6, message, bodies, &resolver, pending, doubt),
        };
        // A message that may be older than a dump does not indicate drift.
        let newest = origin == Origin::Live || !(awaited || self.replayed.has(kind));
        let drifted = outcome == Outcome::Unsure && (newest || !gone);
        Scope::when(drifted, kind)
    }

    /// Resolves the bodies again that depend on changed links and next-hop objects.
    fn settle(&mut self) {
        if self.stirred_links.is_empty() && !self.stirred_objects {
            return;
        }
        let links = std::mem::take(&mut self.stirred_links);
        // Any object may depend on a link.
        let objects = std::mem::take(&mut self.stirred_objects) || !links.is_empty();
        let resolver = resolver!(self);
        let mut changed: HashMap<BodyId, Arc<RouteBody>> = HashMap::new();
        for (id, entry) in self.bodies.iter() {
            let concerned = match entry.body.object {
                0 => entry.body.legs.iter().any(|leg| links.contains(&leg.index)),
                _ => objects,
            };
            if concerned {
                let resolved = resolver.resolve(&entry.body);
                if resolved != *entry.resolved {
                    changed.insert(id, Arc::new(resolved));
                }
            }
        }
        if changed.is_empty() {
            return;
        }
        record_previous(&self.routes4, &changed, &self.bodies, &mut self.pending);
        record_previous(&self.routes6, &changed, &self.bodies, &mut self.pending);
        for (id, resolved) in changed {
            self.bodies.settle(id, resolved);
        }
    }
}

/// Returns whether an event is to be applied to an object, and notes early changes. If one was noted, the dump may show
/// the object as it was before.
fn note<K: Eq + Hash>(changed: &mut HashSet<K>, key: K, origin: Origin, dumped: bool) -> bool {
    if origin == Origin::Early && dumped {
        changed.insert(key);
        return true;
    }
    origin != Origin::Dump || !changed.contains(&key)
}

/// Returns the scope of routes to a prefix.
fn routes_of(prefix: Prefix) -> Scope {
    if prefix.addr.is_ipv4() { Scope::ROUTES4 } else { Scope::ROUTES6 }
}

/// A route message to be applied to the table of its family.
struct RouteMessage {
    key: RouteKey,
    body: Body,
    flags: u16,
    gone: bool,
    origin: Origin,
    /// Set if the dump of such routes has not ended.
    awaited: bool,
    generation: u32,
}

fn apply_route<K: Key>(
    routes: &mut Routes<K>,
    message: RouteMessage,
    bodies: &mut Bodies,
    resolver: &Resolver<'_>,
    pending: &mut Pending,
    doubt: Option<&mut Doubt>,
) -> Outcome {
    let RouteMessage { key, body, flags, gone, origin, awaited, generation } = message;
    let short = K::of(&key);
    let (mut list, mut released) = (Vec::new(), Vec::new());
    let seen = routes.read(&short, &mut list);
    let v6 = key.prefix.addr.is_ipv6();
    // A body that arrived before the dump has shown the route gives way to those that it shows.
    let early = awaited && origin != Origin::Dump;
    let stamp = if early && seen != Some(generation) { generation.wrapping_sub(1) } else { generation };
    let first = origin == Origin::Dump && seen != Some(generation);
    if first && list.len() == 1 && *bodies.get(list[0]).body == body {
        routes.write(short, &list, generation);
        return Outcome::Sure;
    }
    pending.routes.entry(key).or_insert_with(|| bodies.effective(&list, v6));
    let doubt = doubt.map(|doubt| (doubt, body.clone()));
    let outcome = if first {
        // The dump's first body of this key replaces the list.
        released.append(&mut list);
        list.push(bodies.hold(body, resolver));
        Outcome::Sure
    } else if gone {
        routes::remove(&mut list, v6, &body, (bodies, resolver), &mut released)
    } else if origin == Origin::Dump {
        // IPv6 replacements leave entries behind that differ only by their attributes; a dump shows each of them.
        if !list.iter().any(|id| bodies.get(*id).body.is(&body)) {
            list.push(bodies.hold(body, resolver));
        }
        Outcome::Sure
    } else {
        routes::insert(&mut list, v6, body, flags, (bodies, resolver), &mut released)
    };
    if let Some((doubt, body)) = doubt {
        let lost = match gone {
            true => doubt.remove(&body),
            false => doubt.add(&body, v6, flags, released.iter().map(|id| &bodies.get(*id).body)),
        };
        if lost {
            released.append(&mut list);
            list.push(bodies.hold(early::only_the_kernels(), resolver));
        }
    }
    routes.write(short, &list, stamp);
    for id in released {
        bodies.release(id);
    }
    outcome
}

/// Records the previous values of routes with a changed body.
fn record_previous<K: Key>(
    routes: &Routes<K>,
    changed: &HashMap<BodyId, Arc<RouteBody>>,
    bodies: &Bodies,
    pending: &mut Pending,
) {
    let mut list = Vec::new();
    for key in routes.with_body(|id| changed.contains_key(&id)) {
        routes.read(&key, &mut list);
        let full = key.full();
        let v6 = full.prefix.addr.is_ipv6();
        pending.routes.entry(full).or_insert_with(|| bodies.effective(&list, v6));
    }
}

fn clear<K: Key>(routes: &mut Routes<K>, keys: Vec<K>, bodies: &mut Bodies, pending: &mut Pending) {
    let mut list = Vec::new();
    for key in keys {
        routes.read(&key, &mut list);
        let full = key.full();
        let v6 = full.prefix.addr.is_ipv6();
        pending.routes.entry(full).or_insert_with(|| bodies.effective(&list, v6));
        routes.write(key, &[], 0);
        for id in &list {
            bodies.release(*id);
        }
    }
}

fn unseen<K: Copy, V>(map: &BTreeMap<K, Stamped<V>>, generation: u32) -> Vec<K> {
    map.iter().filter(|(_, value)| value.generation != generation).map(|(key, _)| *key).collect()
}

#[cfg(test)]
mod tests;
