//! The router's control side: applies the kernel's changes and keeps the published [`Tables`] and the FIBs up to date.
//!
//! A batch of changes goes through four steps: the models (routes, links, addresses, neighbours) apply it and record
//! the prefixes concerned; the planner determines the next hops of those prefixes and allocates new ids; the tables are
//! published, at most once, if there are new ids or changed entries; the FIBs are updated in place. Entries keep their
//! id when their neighbour or link changes, so half a million routes by one gateway switch at once.
//!
//! Deliberate differences from the kernel:
//! - prefixes with routes by TOS or source are left to the kernel, in every table;
//! - next hops over a link without carrier that the kernel keeps using are left to it; in a group, they keep their
//!   flows;
//! - a route with several next hops, one of them without a gateway, is left to the kernel.

mod applied;
mod bits;
mod exceptions;
mod followed;
mod hops;
mod image;
mod links;
mod lookup;
mod neighbours;
mod plan;
mod ports;
mod rib;
mod sets;
mod shares;
mod specs;
mod view;

pub use applied::{Applied, PortBack};
pub use exceptions::Policies;
pub use ports::Ports;
pub use specs::{Bridged, Egress, Entrance, MasterSpec, PortSpec, TunnelSpec, VlanSpec};
pub use view::{ControlStats, HopState, HopView, NeighbourView, Place, PortView, RouteStatus, RouteView};

use crate::tables::{Cold, Entry, HashPolicy, Own4, SourceCheck, Tables};
use crate::tunnel::{Ends, MemberPort, Paths, Tunnels, WantedPath};
use crate::xdp::XdpTableSink;
use bits::{V4, V6};
use bywash_engine::PortId;
use bywash_fib::model::{Behind, Change, Mac, Prefix, Route, RouteKind, Rules, Station};
use bywash_fib::{Table4, Table6};
use bywash_sync::{Published, Qsbr};
use followed::Followed;
use hops::Hops;
use image::Image;
use links::{Bound, EndsOf, Links};
use lookup::Lookup;
use neighbours::{Neighbours, Reach};
use plan::Planner;
use rib::{Rank, Rec, Rib};
use sets::{Outcome, Sets};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Number of table main (RT_TABLE_MAIN).
pub const MAIN: u32 = 254;
/// Number of table local (RT_TABLE_LOCAL).
pub const LOCAL_TABLE: u32 = 255;

/// Entry of a VLAN or macvlan in the XDP program of a port.
#[derive(Clone, Debug)]
pub struct PortEntry {
    /// The interface.
    pub view: PortView,
    /// Port that carries it.
    pub port: PortId,
    /// Number of the entry.
    pub entry: PortId,
    /// Tag of its frames; [`crate::vlan::UNTAGGED`] for a macvlan.
    pub tag: [u8; 4],
}

/// The router's control side, owned by one thread.
pub struct Control {
    domain: Qsbr,
    published: Arc<Published<Tables>>,
    links: Links,
    neighbours: Neighbours,
    sets: Sets,
    hops: Hops,
    image: Image,
    /// Routes of tables local and main.
    main: Lookup,
    sink: Option<XdpTableSink>,
    /// Destinations of the last [`Control::set_policies`].
    excepted: Vec<Prefix>,
    /// IPv4 routes of types local, broadcast, anycast and multicast: table, prefix and metric. Loopback and multicast
    /// prefixes are left out: sources in them are martians anyway.
    local4: BTreeSet<(u32, V4, u8, u32)>,
    /// Prefixes that have routes for some packets only (by TOS or source), by table.
    selective: BTreeSet<(u32, Prefix)>,
    /// Routes of other tables than local and main.
    others: BTreeMap<(u32, Prefix, u32), Rec>,
    /// Tables that policy routing rules look up.
    followed: Followed,
    /// Time of the last [`Control::renew_stations`].
    renewed: Instant,
    /// Number of stations that are left out because the sink has no room for them.
    unplaced: usize,
    generation: u64,
    changes: u64,
}

/// State affected by a batch.
#[derive(Default)]
struct Touched {
    v4: Vec<(V4, u8)>,
    v6: Vec<(V6, u8)>,
    /// Interfaces that were bound to a port or released by one.
    indices: Vec<u32>,
    /// Set if the workers' view of the ports must be published.
    ports: bool,
    /// Stations of bridges that have moved to another member, or have gone: the interfaces, bridges and VLANs on these,
    /// whose packets they receive, and their MAC addresses.
    stations: BTreeSet<(u32, Mac)>,
    /// Set if the sink's stations have changed.
    bridged: bool,
}

impl Touched {
    fn host(&mut self, addr: IpAddr) {
        match addr {
            IpAddr::V4(a) => self.v4.push((a.to_bits(), 32)),
            IpAddr::V6(a) => self.v6.push((a.into(), 128)),
        }
    }
}

/// Returns the route that stands for one of table local that is no address of this host; `None` if it stands for
/// itself.
///
/// Until there is the first rule, the kernel looks up both IPv4 tables as one (fib_unmerge): a longer prefix of table
/// main goes before one of table local, and `throw` there ends the lookup. Which of both applies is not visible, so
/// such a route is left to the kernel like an address. So is IPv6's `throw`, after which no shorter prefix of table
/// local applies.
pub fn kept_in_local(route: &Route) -> Option<Route> {
    let of_kernel = match route.kind {
        RouteKind::Local => false,
        RouteKind::Throw => true,
        _ => route.prefix.addr.is_ipv4(),
    };
    let kept = || Route { kind: RouteKind::Local, next_hops: Arc::new([]), ..route.clone() };
    (of_kernel && route.table == LOCAL_TABLE).then(kept)
}

impl Control {
    /// Creates a control side for `ports`, without any state of the kernel, and publishes tables without routes in
    /// `domain`.
    ///
    /// # Errors
    /// If there is no memory for the FIBs.
    ///
    /// # Panics
    /// If the port numbers do not count from 0 without gaps.
    pub fn new(domain: &Qsbr, ports: Vec<PortSpec>) -> io::Result<Self> {
        Self::with_sink(domain, ports, None)
    }

    /// Same as [`Control::new`], with an XDP program that forwards by the same tables as the workers.
    ///
    /// # Errors
    /// Same as [`Control::new`].
    ///
    /// # Panics
    /// Same as [`Control::new`].
    pub fn with_sink(domain: &Qsbr, mut ports: Vec<PortSpec>, mut sink: Option<XdpTableSink>) -> io::Result<Self> {
        ports.sort_by_key(|p| p.id);
        assert!(ports.iter().enumerate().all(|(n, p)| n == usize::from(p.id.0)), "port numbers have gaps");
        let (fib4, fib6) = match &mut sink {
            Some(sink) => {
                let [memory4, memory6] = sink.memory();
                (Table4::shared(domain, memory4)?, Table6::shared(domain, memory6)?)
            }
            None => (Table4::new(domain)?, Table6::new(domain)?),
        };
        let links = Links::new(ports);
        let neighbours = Neighbours::default();
        let mut hops = Hops::new();
        let mut image = Image::default();
        image.refresh(&hops.take_dirty(), &hops, &links, &neighbours);
        let followed = Followed::new((fib4.reader(), fib6.reader()));
        let first = Tables {
            generation: 1,
            fib4: fib4.reader(),
            fib6: fib6.reader(),
            entries: image.entries.clone(),
            cold: image.cold.clone(),
            buckets: Vec::new(),
            ports: links.ports().iter().map(|p| links.info(p, &followed)).collect(),
            vlans: vec![],
            bonds: vec![],
            bridges: vec![],
            tunnels: Tunnels::default(),
            own4: Own4::default(),
            hash4: HashPolicy::default(),
            hash6: HashPolicy::default(),
        };
        if let Some(sink) = &mut sink {
            sink.publish(&first);
        }
        Ok(Self {
            domain: domain.clone(),
            published: Arc::new(Published::new(domain, first)),
            links,
            neighbours,
            sets: Sets::default(),
            hops,
            image,
            main: Lookup::new(fib4, fib6),
            sink,
            excepted: Vec::new(),
            local4: BTreeSet::new(),
            selective: BTreeSet::new(),
            others: BTreeMap::new(),
            followed,
            renewed: Instant::now(),
            unplaced: 0,
            generation: 1,
            changes: 0,
        })
    }

    /// Publishes the tables again, for a sink that now interprets them differently.
    pub fn republish(&mut self) {
        self.publish();
    }

    /// Returns the source validation of a port, VLAN, bond or bridge: as set, but never loose on an interface without
    /// an IPv4 address, as in Linux.
    pub fn source_check(&self, port: PortId) -> SourceCheck {
        self.links.source_check(port)
    }

    /// Returns the filter of IPv4 sources that the kernel may refuse: addresses of interfaces, and whatever a route of
    /// type local, broadcast, anycast or multicast leads to. The kernel considers these routes only if rules, custom
    /// local routes or realms have ever been added to the namespace. It does not report whether they have, so it has to
    /// decide about each such packet. A prefix shorter than 32 bits makes the filter match every address.
    fn own4(&self) -> Own4 {
        // A prefix with routes for one TOS may have routes of these types.
        if self.selective.iter().any(|(table, prefix)| self.is_used(*table) && prefix.addr.is_ipv4()) {
            return Own4::ANY;
        }
        self.local4.iter().fold(self.links.own4(), |own, (_, addr, len, _)| match len {
            32 => own.with((*addr).into()),
            _ => Own4::ANY,
        })
    }

    /// Returns whether packets are looked up in a table.
    fn is_used(&self, table: u32) -> bool {
        Rank::of(table).is_some() || self.followed.has(table)
    }

    /// Adds a port, with the next number or that of a removed port. The workers must have it already: they may send on
    /// it from now on. Waits for a grace period.
    ///
    /// # Panics
    /// If its number leaves a gap.
    pub fn add_port(&mut self, spec: PortSpec) {
        let index = self.links.add_port(spec);
        self.ports_changed(index);
    }

    /// Removes a port; its interface stays, and packets routed to it are left to the kernel. On return, no worker sends
    /// on the port any more. Waits for a grace period.
    pub fn remove_port(&mut self, id: PortId) {
        let index = self.links.remove_port(id);
        self.ports_changed(index);
    }

    /// Records whether a port is open on its interface ([`PortBack`]). If it is not, packets routed to it are left to
    /// the kernel. Waits for a grace period.
    pub fn set_open(&mut self, id: PortId, open: bool) {
        let index = self.links.set_open(id, open);
        self.ports_changed(index);
    }

    fn ports_changed(&mut self, index: Option<u32>) {
        let mut indices: Vec<u32> = index.into_iter().collect();
        indices.extend(index.into_iter().flat_map(|index| self.links.above(index)));
        self.interfaces_changed(indices);
    }

    fn interfaces_changed(&mut self, indices: Vec<u32>) {
        if indices.is_empty() {
            self.hops.touch_link(None);
        }
        indices.iter().for_each(|index| self.hops.touch_link(Some(*index)));
        let touched = Touched { indices, ports: true, bridged: true, ..Touched::default() };
        self.settle(touched, &mut Applied::default());
    }

    /// Sets the bonds and bridges that ports belong to. None may be the interface of a port, and each must have a
    /// number that no other interface has had since the last grace period. Packets routed to other bonds and bridges
    /// are left to the kernel. Waits for a grace period if anything changes.
    pub fn set_masters(&mut self, masters: &[MasterSpec]) {
        self.restack(|links| links.set_masters(masters));
    }

    /// Sets the VLANs whose packets are forwarded. Each must have a number that no other interface has had since the
    /// last grace period. Packets routed to other VLAN interfaces are left to the kernel. Waits for a grace period if
    /// anything changes.
    pub fn set_vlans(&mut self, vlans: &[VlanSpec]) {
        self.restack(|links| links.set_vlans(vlans));
    }

    /// Sets the tunnels whose packets are forwarded. Each must have a number that no other interface has had since the
    /// last grace period. Packets routed to other tunnels are left to the kernel, and so are those of tunnels that
    /// [`Policies::tunnels`] does not name, and of one until its path is known ([`Control::set_paths`]). Waits for a
    /// grace period if anything changes.
    pub fn set_tunnels(&mut self, tunnels: &[TunnelSpec]) {
        self.restack(|links| links.set_tunnels(tunnels));
    }

    /// Returns whether policies allow the packets of a tunnel to be forwarded.
    pub fn allows_tunnel(&self, index: u32) -> bool {
        self.links.allows_tunnel(index)
    }

    /// Returns whether masquerading certainly leaves all outer packets of a tunnel as they are; the packets of other
    /// tunnels are left to the kernel.
    pub fn keeps_source(&self, tunnel: &TunnelSpec) -> bool {
        self.links.keeps_source(tunnel)
    }

    /// Returns the paths needed by the tunnels that policies allow, those for headers from routes last. Left out are
    /// next hops on no port, those in a VRF, where the host's own packets first pass the hooks of the VRF, untracked
    /// (vrf_ip_out), and those by which masquerading may give packets another source. If the source may be masqueraded
    /// or is chosen by the kernel, a remote with several next hops is left to the kernel: the source may depend on the
    /// next hop, which depends on the packet.
    pub fn tunnel_ends(&self) -> Vec<WantedPath> {
        let by_ports = |(ends, EndsOf { masqueraded, .. }): (Ends, EndsOf)| {
            let (local, remote, link) = ends;
            let leads = |(entry, cold): &(&Entry, &Cold)| {
                let gives = |to: IpAddr| local.is_unspecified() || to == local;
                let kept = !masqueraded || cold.masquerade4.is_some_and(|to| gives(to.into()));
                entry.kind.is_of_port() && (link == 0 || cold.index == link) && kept && self.vrf(cold.index).is_none()
            };
            let hops = self.hops_towards(remote);
            let certain = hops.len() == 1 || !(masqueraded || local.is_unspecified());
            let hops: Vec<Cold> = hops.into_iter().filter(leads).map(|(_, cold)| *cold).collect();
            (certain && !hops.is_empty()).then_some(WantedPath { ends, masqueraded, hops })
        };
        let (last, first): (Vec<_>, Vec<_>) = self.links.tunnel_ends().into_iter().partition(|(_, of)| of.routes);
        first.into_iter().chain(last).filter_map(by_ports).collect()
    }

    /// Returns whether tunnels may need other paths than those that are set, and clears that state: policies allow
    /// other tunnels, or there is another remote or address.
    pub fn needs_paths(&mut self) -> bool {
        self.links.take_stale_paths()
    }

    /// Sets the paths of tunnels. Waits for a grace period if they have changed.
    pub fn set_paths(&mut self, paths: Paths) {
        // Headers that no route has any more take room.
        self.hops.reclaim(&self.domain);
        let (changed, tunnels) = self.links.set_paths(paths);
        tunnels.iter().for_each(|index| self.hops.touch_link(Some(*index)));
        if !tunnels.is_empty() || self.hops.is_dirty() {
            // The program is not given stations behind a VXLAN that has no path.
            let bridged = self.links.bridges_tunnels();
            self.settle(Touched { ports: true, bridged, ..Touched::default() }, &mut Applied::default());
        } else if changed {
            self.publish_to_workers();
        }
    }

    /// Changes the ports by which packets of interfaces arrive and leave; `change` returns the interfaces concerned.
    /// Routes are resolved again only if their interfaces begin or cease to have next hops, and not if the next hops
    /// move to other ports: a failover takes no longer with a million routes than with one.
    fn restack(&mut self, change: impl FnOnce(&mut Links) -> Vec<u32>) {
        let before = (self.links.leading(), self.links.external());
        let changed = change(&mut self.links);
        if changed.is_empty() {
            return;
        }
        changed.iter().for_each(|index| self.hops.touch_link(Some(*index)));
        let indices = &(&before.0 ^ &self.links.leading()) | &(&before.1 ^ &self.links.external());
        let indices = indices.into_iter().collect();
        let touched = Touched { indices, ports: true, bridged: true, ..Touched::default() };
        self.settle(touched, &mut Applied::default());
    }

    /// Returns the kernel index of the interface to which a packet is punted that arrived on `port` for the interface
    /// with number `id`; `None` if that interface has no index, or no longer exists. For a bridge and the VLANs on it,
    /// this is the bridge itself, because a bridge drops frames with a marked source address from its members; for a
    /// VLAN interface on a VLAN-filtering bridge, that interface; for all others, the port's interface.
    pub fn receiver(&self, port: PortId, id: PortId) -> Option<u32> {
        let index = self.port_index(port);
        match self.links.bridge_with(id, port) {
            Some(master) => Some(master.index).filter(|_| master.has_interface()),
            None => match self.links.bridge_below(port) {
                Some((_, true)) => None,
                Some((bridge, false)) => Some(bridge),
                None => Some(index).filter(|index| *index != 0),
            },
        }
    }

    /// Returns the policy routing rules of the packets that are received with this number, that of a port or VLAN;
    /// `None` if there are none.
    pub fn rules_of(&self, number: PortId) -> Option<&Rules> {
        self.links.rules_of(number)
    }

    /// Returns whether a port is on a member of a bridge, and if so, whether the bridge filters VLANs.
    pub fn bridge_filters(&self, id: PortId) -> Option<bool> {
        self.links.bridge_below(id).map(|(_, filters)| filters)
    }

    /// Returns all entries of VLANs and macvlans in XDP programs.
    pub fn entries(&self) -> Vec<PortEntry> {
        let vlans = self.vlans().map(|(view, vlan)| (view, vlan.tag, &vlan.entries));
        let masters = self.masters().map(|(view, master)| {
            // No packets are routed to the address zero: the gate is closed.
            let mac = if master.has_interface() { view.mac } else { Some(Mac::default()) };
            (PortView { mac, ..view }, master.tag, &master.tagged)
        });
        let all = vlans.chain(masters).flat_map(|(view, tag, entries)| {
            entries.iter().map(move |&(port, entry)| PortEntry { view: view.clone(), port, entry, tag })
        });
        all.collect()
    }

    /// Passes one packet of each station of a bridge to the kernel from time to time, because a bridge forgets stations
    /// that it does not see: four times in the shortest ageing time of all bridges. To be called every few
    /// milliseconds.
    pub fn renew_stations(&mut self) {
        if self.links.ageing().is_none_or(|ageing| self.renewed.elapsed() < ageing / 4) {
            return;
        }
        self.renewed = Instant::now();
        self.sink.iter_mut().for_each(|sink| sink.renew_stations());
    }

    /// Returns the ports on members of a bridge to which the kernel forwards, by addresses alone, the unicast frames
    /// that `port` receives and that belong to the interface with this number: the bridge, or the VLAN interface on it.
    pub fn bridged_to(&self, number: PortId, port: PortId) -> Vec<MemberPort> {
        self.links.bridged_to(number, port)
    }

    /// Returns the length in bytes of the longest frame that `port` receives for the interface with this number and
    /// that the kernel sends through VXLANs by addresses alone, Ethernet header included and a tag aside; `None` if it
    /// sends none.
    pub fn bridged_through(&self, number: PortId, port: PortId) -> Option<u32> {
        self.links.bridged_through(number, port)
    }

    /// Returns the kernel index of the interface on which a port is open; 0 if there is none.
    pub fn port_index(&self, id: PortId) -> u32 {
        self.links.ports().get(usize::from(id.0)).map_or(0, Bound::index)
    }

    /// Returns the published tables, which workers load once per turn.
    pub fn tables(&self) -> Arc<Published<Tables>> {
        self.published.clone()
    }

    /// Applies a batch of changes. On return, every worker forwards by it, or will from its next turn on. Waits for a
    /// grace period at most once; a caller that is itself an online reader of the domain would deadlock.
    pub fn apply(&mut self, changes: &[Change]) -> Applied {
        self.hops.reclaim(&self.domain);
        let mut applied = Applied::default();
        let mut touched = Touched::default();
        for change in changes {
            self.apply_one(change, &mut touched, &mut applied);
        }
        self.changes += changes.len() as u64;
        self.settle(touched, &mut applied);
        applied.ports_changed.sort_unstable();
        applied.ports_changed.dedup();
        applied
    }

    fn apply_one(&mut self, change: &Change, touched: &mut Touched, applied: &mut Applied) {
        match change {
            Change::Link(link) => {
                let effect = self.links.set(link);
                if effect.entries {
                    self.hops.touch_link(Some(link.index));
                }
                let vlan = effect.entries && self.links.port_of(link.index).is_some();
                touched.ports |= effect.port.is_some() || vlan || (effect.bridging && self.links.bridges_tunnels());
                applied.ports_changed.extend(effect.port);
                applied.port_back(effect.back);
            }
            Change::LinkGone { index } => self.forget_link(*index, touched, applied),
            Change::Address(address) => {
                let changed = self.links.add_address(address);
                self.addresses_changed(changed, touched);
            }
            Change::AddressGone { index, addr, len } => {
                let changed = self.links.remove_address(*index, *addr, *len);
                self.addresses_changed(changed, touched);
            }
            Change::Route(route) => self.add_route(route, touched),
            Change::RouteGone { table, prefix, metric } => self.remove_route(*table, *prefix, *metric, touched),
            Change::Selective { table, prefix } => self.select(*table, *prefix, true, touched),
            Change::SelectiveGone { table, prefix } => self.select(*table, *prefix, false, touched),
            Change::Neighbour(n) => {
                let (old, new) = self.neighbours.set(n);
                self.neighbour_changed(n.index, n.addr, old, new, touched);
            }
            Change::NeighbourGone { index, addr } => {
                let old = self.neighbours.remove(*index, *addr);
                self.neighbour_changed(*index, *addr, old, Reach::Unknown, touched);
            }
            Change::Station(Station { bridge, vlan, mac, behind }) => {
                self.station((*bridge, *vlan, *mac), Some(*behind), touched);
            }
            Change::StationGone { bridge, vlan, mac } => self.station((*bridge, *vlan, *mac), None, touched),
            Change::Elsewhere { .. } => {}
            Change::Synced => applied.synced = true,
        }
    }

    fn forget_link(&mut self, index: u32, touched: &mut Touched, applied: &mut Applied) {
        for addr in self.neighbours.on(index) {
            let old = self.neighbours.remove(index, addr);
            self.neighbour_changed(index, addr, old, Reach::Unknown, touched);
        }
        // Other interfaces may have used its addresses as sources.
        self.hops.touch_link(None);
        touched.ports = true;
        if let Some((id, back)) = self.links.remove(index) {
            touched.indices.push(index);
            touched.indices.extend(self.links.above(index));
            applied.port_gone(id, back);
        }
    }

    fn addresses_changed(&mut self, changed: bool, touched: &mut Touched) {
        if changed {
            self.hops.touch_link(None);
            self.links.addresses_changed();
            touched.ports = true;
        }
    }

    fn neighbour_changed(&mut self, index: u32, addr: IpAddr, old: Reach, new: Reach, touched: &mut Touched) {
        if old == new {
            return;
        }
        self.hops.touch_gateway(index, addr);
        if (old == Reach::Unknown) != (new == Reach::Unknown) {
            touched.host(addr);
        }
    }

    fn station(&mut self, station: (u32, u32, Mac), behind: Option<Behind>, touched: &mut Touched) {
        let concerned = self.links.set_station(station, behind);
        // Workers compare the stations of VXLANs; the sink has those of bridges.
        let vxlan = self.links.vxlans_at(station.0).next().is_some();
        touched.ports |= self.links.has_stale_ends();
        touched.bridged |= !concerned.is_empty() && (!vxlan || self.links.bridges_tunnels());
        touched.stations.extend(concerned.into_iter().map(|index| (index, station.2)));
    }

    fn add_route(&mut self, route: &Route, touched: &mut Touched) {
        let kept = kept_in_local(route);
        let route = kept.as_ref().unwrap_or(route);
        let set = self.sets.hold(route);
        let rank = Rank::of(route.table);
        let usable = match route.kind {
            RouteKind::Unicast => route.next_hops.iter().any(|h| h.alive),
            _ => true,
        };
        let rec = Rec { set, protocol: route.protocol, usable };
        let Prefix { addr, len } = route.prefix;
        self.followed.note(&mut self.sets, route.table, route.prefix, route.metric, Some(rec), touched);
        if let IpAddr::V4(a) = addr {
            let key = (route.table, a.to_bits(), len, route.metric);
            touched.ports |= if route.kind == RouteKind::Local && !a.is_loopback() && !a.is_multicast() {
                self.local4.insert(key)
            } else {
                self.local4.remove(&key)
            };
        }
        let old = match rank {
            Some(rank) => self.main.note(touched, route.prefix, rank, route.metric, Some(rec)),
            None => self.others.insert((route.table, route.prefix, route.metric), rec),
        };
        old.into_iter().for_each(|old| self.let_go(old.set));
    }

    fn remove_route(&mut self, table: u32, prefix: Prefix, metric: u32, touched: &mut Touched) {
        self.followed.note(&mut self.sets, table, prefix, metric, None, touched);
        if let IpAddr::V4(a) = prefix.addr {
            touched.ports |= self.local4.remove(&(table, a.to_bits(), prefix.len, metric));
        }
        let old = match Rank::of(table) {
            Some(rank) => self.main.note(touched, prefix, rank, metric, None),
            None => self.others.remove(&(table, prefix, metric)),
        };
        old.into_iter().for_each(|old| self.let_go(old.set));
    }

    fn let_go(&mut self, set: u32) {
        if let Some(Outcome::Id(id)) = self.sets.release(set) {
            self.hops.release(id);
        }
    }

    /// Brings the tables and the FIBs up to date with the models.
    fn settle(&mut self, mut touched: Touched, applied: &mut Applied) {
        if !touched.indices.is_empty() {
            self.invalidate_routes(&mut touched);
        }
        if !touched.stations.is_empty() {
            for (addr, index) in self.neighbours.with_macs(&touched.stations) {
                self.hops.touch_gateway(index, addr);
            }
        }
        if let Some(sink) = self.sink.as_mut().filter(|_| touched.bridged) {
            let (stations, left_out) = self.links.stations();
            let unplaced = left_out + sink.set_stations(&stations);
            if unplaced > 0 && self.unplaced == 0 {
                tracing::warn!(
                    "{unplaced} FDB entries of bridges do not fit the XDP program's table: packets to these stations \
                     are left to the kernel"
                );
            }
            self.unplaced = unplaced;
        }
        let (sets, hops, links, neighbours) = (&mut self.sets, &mut self.hops, &self.links, &self.neighbours);
        let mut planner = Planner { sets, hops, links, neighbours };
        let ops = self.main.plan(&mut planner, &mut touched);
        let others = self.followed.plan(&mut planner, &mut touched);
        if self.hops.is_dirty() || touched.ports {
            self.publish();
            applied.published = true;
        }
        let changed = !ops.is_empty() || others.iter().any(|(_, ops)| !ops.is_empty());
        self.main.carry_out(&mut self.hops, ops);
        self.followed.carry_out(&mut self.hops, others);
        if let Some(sink) = &mut self.sink
            && changed
        {
            sink.changed();
        }
        self.main.reclaim();
        self.followed.reclaim();
        self.hops.retire(&self.domain);
    }

    /// Marks the routes over interfaces that became or ceased to be ports, so that they are resolved again.
    fn invalidate_routes(&mut self, touched: &mut Touched) {
        let mut stale = std::collections::HashSet::new();
        for id in self.sets.ids() {
            let set = self.sets.get_mut(id);
            if !set.hops.iter().any(|h| touched.indices.contains(&h.index)) {
                continue;
            }
            if let Outcome::Id(hop) = std::mem::replace(&mut set.outcome, Outcome::Stale) {
                self.hops.release(hop);
            }
            stale.insert(id);
        }
        let of = |rec: &Rec| stale.contains(&rec.set);
        self.lookups().for_each(|lookup| lookup.touch(touched, of));
        for &index in &touched.indices.clone() {
            self.neighbours.on(index).into_iter().for_each(|addr| touched.host(addr));
        }
    }

    /// Returns all lookups: that of tables local and main, and those of tables that rules look up.
    fn lookups(&self) -> impl Iterator<Item = &Lookup> {
        std::iter::once(&self.main).chain(self.followed.tables())
    }

    fn publish(&mut self) {
        let tables = self.build_tables();
        if let Some(sink) = &mut self.sink {
            sink.publish(&tables);
        }
        self.published.replace(tables);
    }

    /// Publishes the tables to workers alone: nothing has changed for a sink.
    fn publish_to_workers(&mut self) {
        let tables = self.build_tables();
        self.published.replace(tables);
    }

    /// Returns the next version of the tables.
    fn build_tables(&mut self) -> Tables {
        if let Some(outers) = self.hops.new_outers() {
            self.links.set_outers(outers).iter().for_each(|index| self.hops.touch_link(Some(*index)));
        }
        self.image.refresh(&self.hops.take_dirty(), &self.hops, &self.links, &self.neighbours);
        let buckets = self.image.buckets(&self.hops);
        self.links.refresh_ends();
        self.generation += 1;
        Tables {
            generation: self.generation,
            fib4: self.main.fib4.reader(),
            fib6: self.main.fib6.reader(),
            entries: self.image.entries.clone(),
            cold: self.image.cold.clone(),
            buckets,
            ports: self.links.ports().iter().map(|p| self.links.info(p, &self.followed)).collect(),
            vlans: self.links.vlans(&self.followed),
            bonds: self.links.bonds(&self.followed),
            bridges: self.links.bridges(&self.followed),
            tunnels: self.links.tunnels(&self.followed),
            own4: self.own4(),
            hash4: self.image.hash[0],
            hash6: self.image.hash[1],
        }
    }
}
