//! Views of the control side's state, for `show`.

use super::bits::{Bits, V4, V6, net};
use super::exceptions::is_excepted;
use super::hops::{self, Adjacency, HopKey, KERNEL, POLICY};
use super::neighbours::Reach;
use super::rib::{Key, Rank, Rec, Rib};
use super::sets::{Outcome, Set};
use super::{Control, Entrance, MasterSpec, TunnelSpec, VlanSpec};
use crate::tables::{Cold, Entry, Kind};
use bywash_engine::PortId;
use bywash_fib::model::{self, Change, Link, Mac, Neighbour, NeighbourState, NextHop, Outer, Prefix, Route, RouteKind};
use bywash_port::af_xdp::TunnelEnd;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

/// Use of a route, or the reason why it is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteStatus {
    /// Packets are forwarded by it, or answered accordingly.
    Installed,
    /// It wins, but packets are left to the kernel: an egress interface is not a port or has no carrier, or one of
    /// several next hops has no gateway.
    Kernel,
    /// Packets are left to the kernel because of the egress interface or the prefix: by [`Control::set_policies`], or
    /// because the prefix has routes for some packets only ([`Change::Selective`]).
    Policy,
    /// Another route to the prefix has a lower metric.
    Metric,
    /// All its next hops are dead.
    Dead,
    /// Table local decides for its prefix.
    Hidden,
    /// Not used: no rule looks up its table.
    OtherTable,
}

/// State of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HopState {
    /// The gateway is resolved.
    Forward,
    /// The gateway is not resolved.
    Pending,
    /// Resolution of the gateway failed.
    Failed,
    /// The destination is on the link.
    Glean,
    /// The kernel marks it as unusable.
    Dead,
    /// The link is down or has no carrier.
    LinkDown,
    /// The interface is not a port.
    Kernel,
    /// Packets out of the interface are left to the kernel ([`Control::set_policies`]).
    Policy,
}

/// A next hop of a route.
#[derive(Clone, Debug, Serialize)]
pub struct HopView {
    /// Kernel index of the interface.
    pub index: u32,
    /// Name of the interface, if known.
    pub dev: Option<String>,
    /// The port that is open on the interface, or that carries it as a VLAN.
    pub port: Option<PortId>,
    /// Gateway.
    pub via: Option<IpAddr>,
    /// Outer headers that it gives to packets.
    pub outer: Option<Outer>,
    /// Weight in the choice among next hops.
    pub weight: u16,
    /// State.
    pub state: HopState,
}

/// A route.
#[derive(Clone, Debug, Serialize)]
pub struct RouteView {
    /// Destination.
    pub prefix: Prefix,
    /// Table.
    pub table: u32,
    /// Metric.
    pub metric: u32,
    /// Origin of the route (rtm_protocol).
    pub protocol: u8,
    /// Action on packets.
    pub kind: RouteKind,
    /// Next hops.
    pub next_hops: Vec<HopView>,
    /// MTU of the route, in bytes; `None` if it has none of its own.
    pub mtu: Option<u32>,
    /// Preferred source.
    pub source: Option<IpAddr>,
    /// Use of the route, or the reason why it is not used.
    pub status: RouteStatus,
}

/// Position of a route among all routes, for resuming an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(Part);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    V4(Key<V4>),
    V6(Key<V6>),
    Other((u32, Prefix, u32)),
}

/// A neighbour.
#[derive(Clone, Debug, Serialize)]
pub struct NeighbourView {
    /// IP address.
    pub addr: IpAddr,
    /// Interface.
    pub index: u32,
    /// Name of the interface, if known.
    pub dev: Option<String>,
    /// The port that is open on the interface, or that carries it as a VLAN.
    pub port: Option<PortId>,
    /// Link-layer address.
    pub mac: Option<Mac>,
    /// State reported by the kernel.
    pub state: NeighbourState,
    /// Set if it has a FIB entry of its own.
    pub installed: bool,
}

/// A port.
#[derive(Clone, Debug, Serialize)]
pub struct PortView {
    /// Port number.
    pub id: PortId,
    /// Number by which gates, source checks and flows name the interface that its packets are received on: its own, or
    /// that of its bond or bridge.
    pub number: PortId,
    /// Name in the config.
    pub name: String,
    /// Kernel index; 0 while the interface is gone.
    pub index: u32,
    /// Current name of the interface, if known.
    pub dev: Option<String>,
    /// MAC address of the interface whose packets it receives: its own, or that of its bond or bridge.
    pub mac: Option<Mac>,
    /// MTU, in bytes.
    pub mtu: Option<u32>,
    /// Set if the interface is up and has carrier.
    pub running: bool,
    /// Addresses with the prefix lengths of their subnets.
    pub addresses: Vec<Prefix>,
}

/// Sizes and counters of the control side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ControlStats {
    /// IPv4 routes of tables local and main.
    pub routes4: usize,
    /// IPv6 routes of tables local and main.
    pub routes6: usize,
    /// Routes of other tables.
    pub routes_other: usize,
    /// Neighbours.
    pub neighbours: usize,
    /// Next-hop ids in use, groups included.
    pub entries: usize,
    /// Next-hop groups.
    pub groups: usize,
    /// Distinct route contents.
    pub sets: usize,
    /// Publications since the first.
    pub publishes: u64,
    /// Changes applied.
    pub changes: u64,
    /// Bytes of the IPv4 FIB.
    pub fib4_bytes: usize,
    /// Bytes of the IPv6 FIB.
    pub fib6_bytes: usize,
}

impl Control {
    /// Returns all routes: tables local and main of IPv4, then of IPv6, then the other tables.
    pub fn routes(&self) -> impl Iterator<Item = RouteView> {
        self.routes_after(None).map(|(_, route)| route)
    }

    /// Returns the routes after `last`, each with its place; all routes if it is `None`. There need not be a route at
    /// `last` any more.
    pub fn routes_after(&self, last: Option<Place>) -> impl Iterator<Item = (Place, RouteView)> {
        // Parts before that of the place are left out; parts after it are complete.
        let (v4, v6, others) = match last.map(|place| place.0) {
            None => (Some(None), Some(None), None),
            Some(Part::V4(key)) => (Some(Some(key)), Some(None), None),
            Some(Part::V6(key)) => (None, Some(Some(key)), None),
            Some(Part::Other(key)) => (None, None, Some(key)),
        };
        let v4 = v4.into_iter().flat_map(|last| self.main.rib4.after(last));
        let v4 = v4.map(|(k, r)| (Place(Part::V4(*k)), self.ranked(&self.main.rib4, *k, *r)));
        let v6 = v6.into_iter().flat_map(|last| self.main.rib6.after(last));
        let v6 = v6.map(|(k, r)| (Place(Part::V6(*k)), self.ranked(&self.main.rib6, *k, *r)));
        let others = self.others.range((others.map_or(Unbounded, Excluded), Unbounded)).map(|(&key, r)| {
            let (table, prefix, metric) = key;
            let (len, rank) = (prefix.len, Rank::Main);
            let status = self.followed.of(table).next().map(|of| match prefix.addr {
                IpAddr::V4(a) => self.status(&of.rib4, Key { addr: a.to_bits(), len, rank, metric }, *r),
                IpAddr::V6(a) => self.status(&of.rib6, Key { addr: a.into(), len, rank, metric }, *r),
            });
            let status = status.unwrap_or(RouteStatus::OtherTable);
            (Place(Part::Other(key)), self.route_view(prefix, table, metric, *r, status))
        });
        v4.chain(v6).chain(others)
    }

    fn ranked<A: Bits>(&self, rib: &Rib<A>, key: Key<A>, rec: Rec) -> RouteView {
        let prefix = Prefix { addr: key.addr.ip(), len: key.len };
        self.route_view(prefix, key.rank.table(), key.metric, rec, self.status(rib, key, rec))
    }

    fn status<A: Bits>(&self, rib: &Rib<A>, key: Key<A>, rec: Rec) -> RouteStatus {
        let prefix = Prefix { addr: key.addr.ip(), len: key.len };
        let set = self.sets.get(rec.set);
        match rib.winner(key.addr, key.len) {
            _ if rib.excepted.over(key.addr, key.len).is_some() => RouteStatus::Policy,
            Some((winner, _)) if winner == key => match set.outcome {
                Outcome::Id(KERNEL) => RouteStatus::Kernel,
                _ if set.hops.iter().any(|h| h.alive && self.is_left(h)) => RouteStatus::Kernel,
                _ if set.hops.iter().any(|h| h.alive && self.is_excepted(set, h, prefix)) => RouteStatus::Policy,
                _ => RouteStatus::Installed,
            },
            _ if !rec.usable => RouteStatus::Dead,
            Some((winner, _)) if winner.rank == key.rank => RouteStatus::Metric,
            _ => RouteStatus::Hidden,
        }
    }

    fn route_view(&self, prefix: Prefix, table: u32, metric: u32, rec: Rec, status: RouteStatus) -> RouteView {
        let set = self.sets.get(rec.set);
        RouteView {
            prefix,
            table,
            metric,
            protocol: rec.protocol,
            kind: set.kind,
            next_hops: set.hops.iter().map(|h| self.hop_view(set, h, prefix)).collect(),
            mtu: set.mtu,
            source: set.source,
            status,
        }
    }

    /// Returns whether packets of a next hop are left to the kernel because no port sends them. With several next hops,
    /// those of the others may not be.
    fn is_left(&self, hop: &NextHop) -> bool {
        !self.links.running(hop.index) || self.port_of(hop).is_none()
    }

    /// Returns the port by which packets of a next hop are sent.
    fn port_of(&self, hop: &NextHop) -> Option<PortId> {
        let sends = self.links.sends(hop.index) && self.links.takes_outer(hop.index, hop.outer);
        self.links.port_of(hop.index).filter(|_| sends)
    }

    /// Returns whether packets of a next hop are left to the kernel because of its interface.
    fn is_excepted(&self, set: &Set, hop: &NextHop, prefix: Prefix) -> bool {
        let neighbour = hop.gateway.map_or(hops::Neighbour::Glean(Some(prefix)), hops::Neighbour::Via);
        let (v6, index, mtu, source, outer) = (set.v6, hop.index, set.mtu, set.source, hop.outer);
        let adjacency = Adjacency { v6, index, neighbour, mtu, source, outer };
        is_excepted(&adjacency, self.links.excepted(hop.index))
    }

    fn hop_view(&self, set: &Set, hop: &NextHop, prefix: Prefix) -> HopView {
        let port = self.port_of(hop);
        let state = match hop.gateway {
            _ if !hop.alive => HopState::Dead,
            _ if port.is_none() => HopState::Kernel,
            _ if self.is_excepted(set, hop, prefix) => HopState::Policy,
            _ if !self.links.running(hop.index) => HopState::LinkDown,
            _ if hop.outer.is_some_and(|outer| self.links.outer_path(hop.index, outer).is_none()) => HopState::Kernel,
            None => HopState::Glean,
            Some(gateway) => match self.neighbours.reach(hop.index, gateway) {
                Reach::Usable(_) => HopState::Forward,
                Reach::Failed => HopState::Failed,
                Reach::Unknown => HopState::Pending,
            },
        };
        let mac = hop.gateway.and_then(|gateway| match self.neighbours.reach(hop.index, gateway) {
            Reach::Usable(mac) => Some(mac),
            _ => None,
        });
        let port = self.links.carriers_of(hop.index, mac).first().copied();
        let NextHop { index, outer, gateway: via, weight, .. } = *hop;
        HopView { index, dev: self.dev(index), port, via, outer, weight, state }
    }

    fn dev(&self, index: u32) -> Option<String> {
        self.links.get(index).map(|l| l.name.clone())
    }

    /// Returns whether the kernel has determined the neighbour's reachability.
    pub fn is_resolved(&self, index: u32, addr: IpAddr) -> bool {
        self.neighbours.reach(index, addr) != Reach::Unknown
    }

    /// Returns all neighbours, by address.
    pub fn neighbours(&self) -> impl Iterator<Item = NeighbourView> {
        self.neighbours_after(None)
    }

    /// Returns the neighbours after `last`, an address and an interface; all if it is `None`. There need not be a
    /// neighbour at `last` any more.
    pub fn neighbours_after(&self, last: Option<(IpAddr, u32)>) -> impl Iterator<Item = NeighbourView> {
        self.neighbours.after(last).map(|(addr, index, known)| {
            let neighbour = hops::Neighbour::Via(addr);
            let own = |a: &Adjacency| (a.index, a.neighbour) == (index, neighbour);
            NeighbourView {
                addr,
                index,
                dev: self.dev(index),
                port: self.links.carriers_of(index, known.mac).first().copied(),
                mac: known.mac,
                state: known.state,
                installed: self.at(addr).and_then(|id| self.hops.adjacency(id)).is_some_and(own),
            }
        })
    }

    /// Returns the id in the FIB for an address's host prefix.
    fn at(&self, addr: IpAddr) -> Option<u32> {
        self.lookups().find_map(|lookup| lookup.at(addr))
    }

    /// Returns the VLANs whose packets are forwarded.
    pub fn vlans(&self) -> impl Iterator<Item = (PortView, &VlanSpec)> {
        self.links.vlan_views()
    }

    /// Returns the tunnels whose packets are forwarded.
    pub fn tunnels(&self) -> impl Iterator<Item = (PortView, &TunnelSpec)> {
        self.links.tunnel_views()
    }

    /// Returns the tunnels whose packets are decapsulated.
    pub fn tunnels_by_end(&self) -> BTreeMap<TunnelEnd, Entrance> {
        self.links.ends()
    }

    /// Returns the ports by which packets to the other ends of a tunnel may leave.
    pub fn ports_of_tunnel(&self, tunnel: &TunnelSpec) -> impl Iterator<Item = PortId> {
        let hops = self.links.remotes(tunnel).into_iter().flat_map(|remote| self.hops_towards(remote));
        let forward = hops.filter(|(entry, _)| entry.kind == Kind::Forward);
        forward.flat_map(|(entry, cold)| self.links.carriers_of(cold.index, entry.macs.first_chunk().copied()))
    }

    /// Returns the ports that packets to an address may leave by, by tables local and main; none if they have no single
    /// next hop.
    pub fn carriers_to(&self, addr: IpAddr) -> Vec<PortId> {
        self.leaves_towards(addr).map(|(index, mac)| self.links.carriers_of(index, mac)).unwrap_or_default()
    }

    /// Returns the interface that packets to an address leave by, by tables local and main, and the MAC address
    /// that they are sent to.
    fn leaves_towards(&self, addr: IpAddr) -> Option<(u32, Option<Mac>)> {
        let (entry, cold) = self.hop_towards(addr).filter(|(entry, _)| entry.kind == Kind::Forward)?;
        Some((cold.index, entry.macs.first_chunk().copied()))
    }

    /// Returns the id of the next hop or group of packets to an address, by tables local and main.
    fn id_towards(&self, addr: IpAddr) -> u32 {
        match addr {
            IpAddr::V4(addr) => self.main.fib4.reader().lookup(addr.to_bits()),
            IpAddr::V6(addr) => self.main.fib6.reader().lookup(addr.to_bits()),
        }
    }

    fn hop(&self, id: u32) -> Option<(&Entry, &Cold)> {
        Some((self.image.entries.get(id as usize)?, self.image.cold.get(id as usize)?))
    }

    /// Returns the next hop or group of packets to an address, by tables local and main.
    pub(super) fn hop_towards(&self, addr: IpAddr) -> Option<(&Entry, &Cold)> {
        self.hop(self.id_towards(addr))
    }

    /// Returns the next hops of packets to an address, by tables local and main: several if they have a group.
    pub(super) fn hops_towards(&self, addr: IpAddr) -> Vec<(&Entry, &Cold)> {
        let id = self.id_towards(addr);
        match (self.hops.key(id), self.hop(id)) {
            (Some(HopKey::Group(hops)), Some((Entry { kind: Kind::Group, .. }, _))) => {
                hops.iter().filter_map(|(id, _)| self.hop(*id)).collect()
            }
            (_, hop) => hop.into_iter().collect(),
        }
    }

    /// Returns the bonds and bridges whose packets are forwarded, and VLAN interfaces on bridges that filter VLANs.
    pub fn masters(&self) -> impl Iterator<Item = (PortView, &MasterSpec)> {
        self.links.master_views()
    }

    /// Returns whether every packet's next hop depends on its addresses alone: no route has several next hops, and none
    /// is for some packets only.
    pub fn routes_by_addresses(&self) -> bool {
        self.selective.is_empty() && !self.sets.has_several()
    }

    /// Returns whether any route of any table has an MTU of its own.
    pub fn has_route_mtu(&self) -> bool {
        self.sets.has_mtu()
    }

    /// Returns the name of an interface.
    pub fn name_of(&self, index: u32) -> Option<&str> {
        self.links.get(index).map(|link| link.name.as_str())
    }

    /// Returns an interface with its state in the kernel, and no number; `None` if it is not known.
    pub fn interface(&self, index: u32) -> Option<PortView> {
        let name = self.name_of(index)?.to_owned();
        Some(self.links.view(PortId(0), name, index))
    }

    /// Returns an interface as the kernel last reported it.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(index)
    }

    /// Returns the interfaces by which the kernel receives the packets of an interface: the one that a VLAN or macvlan
    /// is on, the members of a bridge or bond, and those below these.
    pub fn receivers_of(&self, index: u32) -> Vec<&Link> {
        let (mut found, mut at): (Vec<&Link>, _) = (vec![], 0);
        let mut next = self.links.get(index);
        while let Some(upper) = next {
            let parent = upper.parent.and_then(|parent| self.links.get(parent));
            // Hardware and veths, of which there may be thousands, have no members.
            let has_members = !matches!(upper.kind.as_str(), "" | "veth" | "vrf");
            let members =
                has_members.then(|| self.links.all().values().filter(|link| link.master == Some(upper.index)));
            for link in parent.into_iter().chain(members.into_iter().flatten()) {
                if link.index != index && found.iter().all(|known| known.index != link.index) {
                    found.push(link);
                }
            }
            next = found.get(at).copied();
            at += 1;
        }
        found
    }

    /// Returns the interfaces above these in the same network namespace: VLANs and the like, bonds and bridges that
    /// they are members of, and those above them.
    pub fn uppers_of(&self, indices: &[u32]) -> Vec<&Link> {
        let mut found: Vec<&Link> = vec![];
        let mut below: Vec<u32> = indices.to_vec();
        while !below.is_empty() {
            let masters: Vec<u32> =
                below.iter().filter_map(|index| self.links.get(*index)?.master).filter(|index| *index != 0).collect();
            let is_above = |link: &&Link| {
                masters.contains(&link.index) || link.parent.is_some_and(|parent| below.contains(&parent))
            };
            let is_new = |link: &&Link| found.iter().all(|known| known.index != link.index);
            let above: Vec<&Link> = self.links.all().values().filter(is_above).filter(is_new).collect();
            below = above.iter().map(|link| link.index).collect();
            found.extend(above);
        }
        found
    }

    /// Returns whether frames between a bridge's members pass hooks of IP (`nf_call_iptables` and the like); `true` if
    /// the bridge is not known.
    pub fn calls_ip(&self, bridge: u32) -> bool {
        self.links.get(bridge).and_then(|link| link.bridge).is_none_or(|of| of.calls_ip)
    }

    /// Returns the VRF that an interface belongs to ([`model::vrf`]).
    pub fn vrf(&self, index: u32) -> Option<(u32, &str, u32)> {
        model::vrf(self.links.all(), index)
    }

    /// Returns all ports, by number.
    pub fn ports(&self) -> impl Iterator<Item = PortView> {
        self.links.views()
    }

    /// Returns the stale neighbours, with the interface's kernel index, on the ports for which `has_sent` returns true.
    /// They are to be probed: the kernel sees none of that traffic, and would never notice that a neighbour has moved.
    pub fn stale_neighbours(&self, has_sent: impl Fn(PortId) -> bool) -> impl Iterator<Item = (u32, IpAddr)> {
        let stale = self.neighbours.iter().filter(|(.., known)| known.state == NeighbourState::Stale);
        let sent = move |addr: IpAddr, index, mac: Option<Mac>| {
            if let Some(spec) = self.links.external_tunnel(index) {
                // The probe of a neighbour has no headers and is lost. With the next packet, the kernel asks again, for
                // an IPv6 neighbour without headers, too (ndisc_solicit).
                return addr.is_ipv4() && self.ports_of_tunnel(spec).any(&has_sent);
            }
            // Packets to a neighbour in a VXLAN leave by the port that leads to its end.
            let tunnel = mac.and_then(|mac| self.links.tunnel_towards(index, mac));
            let (index, mac) = match tunnel.and_then(|tunnel| self.links.tunnel_path(tunnel, mac)) {
                Some((end, _)) => self.leaves_towards(end).unwrap_or((index, mac)),
                None => (index, mac),
            };
            self.links.carriers_of(index, mac).into_iter().any(&has_sent)
        };
        stale.filter(move |(addr, index, known)| sent(*addr, *index, known.mac)).map(|(addr, index, _)| (index, addr))
    }

    /// Returns the known kernel state as the changes that lead to it from nothing.
    pub fn known(&self) -> impl Iterator<Item = Change> {
        let links = self.links.known();
        let routes = self.routes().map(|view| {
            let RouteView { prefix, table, metric, protocol, kind, next_hops, mtu, source, .. } = view;
            let hop = |h: HopView| {
                let HopView { index, via: gateway, weight, state, outer, .. } = h;
                NextHop { index, outer, gateway, weight, alive: state != HopState::Dead }
            };
            let next_hops = next_hops.into_iter().map(hop).collect();
            Change::Route(Route { table, prefix, kind, metric, next_hops, mtu, source, protocol })
        });
        let neighbours = self.neighbours.iter().map(|(addr, index, known)| {
            Change::Neighbour(Neighbour { index, addr, mac: known.mac, state: known.state })
        });
        let selective = self.selective.iter().map(|&(table, prefix)| Change::Selective { table, prefix });
        links.chain(routes).chain(selective).chain(neighbours)
    }

    /// Returns the prefixes for which the FIBs differ from the planned result, for consistency checks. There should be
    /// none.
    pub fn inconsistent_prefixes(&self) -> Vec<Prefix> {
        let mut found = vec![];
        for of in self.lookups() {
            let v4 = of.rib4.iter().filter(|(k, r)| self.is_inconsistent(&of.rib4, **k, **r, |at| of.fib4.get(at)));
            found.extend(v4.map(|(k, _)| whole((k.addr, k.len))));
            let v6 = of.rib6.iter().filter(|(k, r)| self.is_inconsistent(&of.rib6, **k, **r, |at| of.fib6.get(at)));
            found.extend(v6.map(|(k, _)| whole((k.addr, k.len))));
            found.extend(of.rib4.excepted.all().filter(|p| of.fib4.get(net(p.0, p.1)) != Some(POLICY)).map(whole));
            found.extend(of.rib6.excepted.all().filter(|p| of.fib6.get(net(p.0, p.1)) != Some(POLICY)).map(whole));
        }
        found
    }

    fn is_inconsistent<A: Bits>(
        &self,
        rib: &Rib<A>,
        key: Key<A>,
        rec: Rec,
        fib: impl Fn(bywash_fib::Net<A::Word>) -> Option<u32>,
    ) -> bool {
        let wins = rib.winner(key.addr, key.len).is_some_and(|(winner, _)| winner == key);
        match self.sets.get(rec.set).outcome {
            Outcome::Id(id) if wins => fib(net(key.addr, key.len)) != Some(id),
            _ => false,
        }
    }

    /// Returns sizes and counters.
    pub fn stats(&self) -> ControlStats {
        ControlStats {
            routes4: self.main.rib4.len(),
            routes6: self.main.rib6.len(),
            routes_other: self.others.len(),
            neighbours: self.neighbours.len(),
            entries: self.hops.living(),
            groups: self.hops.group_count(),
            sets: self.sets.len(),
            publishes: self.generation - 1,
            changes: self.changes,
            fib4_bytes: self.main.fib4.reader().bytes(),
            fib6_bytes: self.main.fib6.reader().bytes(),
        }
    }
}

fn whole<A: Bits>((addr, len): (A, u8)) -> Prefix {
    Prefix { addr: addr.ip(), len }
}
