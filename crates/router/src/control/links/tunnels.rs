//! Tunnels: their stations, and the paths to their remotes.

use super::super::followed::Followed;
use super::super::{Bridged, Entrance, MasterSpec, PortView, TunnelSpec};
use super::{Links, differing, replace};
use crate::tables::{PortInfo, Reception};
use crate::tunnel::{Ends, MemberPort, Paths, Stations, TunnelInfo, Tunnels, ends_of};
use bywash_engine::PortId;
use bywash_fib::model::{self, Address, Behind, Encapsulation, Families, Mac, Outer, OuterHeader, Tunnel};
use bywash_port::af_xdp::{TUNNEL_ENDS, TunnelEnd};
use bywash_wire::ethernet::HEADER_LEN;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum number of outer headers from routes that are used; packets with others are left to the kernel.
const OUTERS: usize = 1024;

/// Users of a pair of ends.
#[derive(Clone, Copy, Debug)]
pub struct EndsOf {
    /// Set if a tunnel whose packets may be masqueraded has these ends.
    pub masqueraded: bool,
    /// Set if only headers from routes have these ends.
    pub routes: bool,
}

/// Returns the other end of a VXLAN that a station is behind.
fn end(behind: Behind) -> Option<IpAddr> {
    match behind {
        Behind::End(end) => Some(end),
        Behind::Member(_) => None,
    }
}

/// Returns whether packets of a tunnel can have these headers of a route.
fn has_headers(tunnel: &Tunnel, outer: &Outer) -> bool {
    let OuterHeader { id, keyed, checksum, .. } = outer.header;
    let fits = match tunnel.encapsulation {
        Encapsulation::Vxlan => !keyed && id >> 24 == 0,
        Encapsulation::Gre | Encapsulation::Gretap => !checksum,
        _ => !checksum && !keyed,
    };
    fits && outer.remote.is_ipv6() == tunnel.is_over_v6()
}

impl Links {
    /// Returns whether an interface is a tunnel whose packets are forwarded.
    pub fn is_tunnel(&self, index: u32) -> bool {
        self.tunnels.contains_key(&index)
    }

    /// Sets the tunnels, and returns the interfaces that became or ceased to be one, or changed, with the bridges of
    /// which they are or were members.
    pub fn set_tunnels(&mut self, tunnels: &[TunnelSpec]) -> Vec<u32> {
        let old = replace(&mut self.tunnels, tunnels, |tunnel| tunnel.index);
        self.tracked.retain(|index, _| self.tunnels.contains_key(index));
        for tunnel in tunnels {
            self.tracked.entry(tunnel.index).or_default();
        }
        let changed = differing(&old, &self.tunnels);
        self.stale_ends.extend(&changed);
        let both = |index: &u32| [old.get(index), self.tunnels.get(index)].into_iter().flatten();
        let interfaces = changed.iter().flat_map(both).map(|(spec, _)| spec.interface());
        changed.iter().copied().chain(interfaces).collect()
    }

    /// Sets the tunnels whose packets are forwarded, by number, and those whose outer packets may be masqueraded;
    /// returns those for which either changes.
    pub fn allow_tunnels(&mut self, allowed: &BTreeSet<PortId>, masqueraded: &BTreeSet<PortId>) -> Vec<u32> {
        let changed = &(&self.allowed ^ allowed) | &(&self.masqueraded ^ masqueraded);
        (self.allowed, self.masqueraded) = (allowed.clone(), masqueraded.clone());
        self.stale_paths |= !changed.is_empty();
        let changed = |(spec, _): &&(TunnelSpec, _)| changed.contains(&spec.id);
        self.tunnels.values().filter(changed).map(|(spec, _)| spec.interface()).collect()
    }

    /// Sets the families of which rules translate addresses; returns whether that changes.
    pub fn let_rules_translate(&mut self, translating: Families) -> bool {
        std::mem::replace(&mut self.translating, translating) != translating
    }

    /// Sets whether outer packets of tunnels pass gates that let flows pass; returns whether that changes.
    pub fn let_outer_pass(&mut self, passes: bool) -> bool {
        std::mem::replace(&mut self.outer_passes, passes) != passes
    }

    /// Returns whether policies allow the packets of a tunnel to be forwarded; false for other interfaces.
    pub fn allows_tunnel(&self, index: u32) -> bool {
        self.tunnels.get(&index).is_some_and(|(spec, _)| self.allowed.contains(&spec.id))
    }

    /// Returns the pairs of ends between which tunnels that policies allow need a path, each with the interface that it
    /// leads by, if the tunnel is bound to one, or 0.
    pub fn tunnel_ends(&self) -> BTreeMap<Ends, EndsOf> {
        let mut all = BTreeMap::new();
        for (spec, _) in self.tunnels.values().filter(|(spec, _)| self.allows_tunnel(spec.index)) {
            for ends in self.pairs(spec) {
                let of = all.entry(ends).or_insert(EndsOf { masqueraded: false, routes: true });
                of.masqueraded |= self.masqueraded.contains(&spec.id);
                of.routes &= spec.tunnel.external;
            }
        }
        all
    }

    /// Records that an address of the host has changed: the kernel may now choose another for a tunnel that has none.
    pub fn addresses_changed(&mut self) {
        self.stale_paths |= self.tunnels.values().any(|(spec, _)| spec.tunnel.local.is_unspecified());
    }

    /// Returns whether tunnels may need other paths than those that are set, and clears that state.
    pub fn take_stale_paths(&mut self) -> bool {
        std::mem::take(&mut self.stale_paths)
    }

    /// Returns the tunnel that takes the headers of its packets from their routes, if the interface is one.
    pub fn external_tunnel(&self, index: u32) -> Option<&TunnelSpec> {
        self.tunnels.get(&index).map(|(spec, _)| spec).filter(|spec| spec.tunnel.external)
    }

    /// Returns the tunnels that take the headers of their packets from routes, by kernel index.
    pub fn external(&self) -> BTreeSet<u32> {
        self.tunnels.values().filter(|(spec, _)| spec.tunnel.external).map(|(spec, _)| spec.index).collect()
    }

    /// Returns whether `outer` fits the interface of a next hop: an external tunnel needs headers that it can send,
    /// because it sends nothing without; any other interface must have none, because it may ignore them.
    pub fn takes_outer(&self, index: u32, outer: Option<Outer>) -> bool {
        match (outer, self.external_tunnel(index)) {
            (Some(outer), Some(spec)) => has_headers(&spec.tunnel, &outer),
            (outer, external) => outer.is_none() && external.is_none(),
        }
    }

    /// Sets the outer headers that routes specify, by interface; only the first [`OUTERS`] are used. Returns the
    /// interfaces whose next hops must be rebuilt because the indices of the headers have changed.
    pub fn set_outers(&mut self, outers: BTreeSet<(u32, Outer)>) -> BTreeSet<u32> {
        let beyond = outers.len().saturating_sub(OUTERS);
        if beyond > 0 && self.outers.len() < OUTERS {
            tracing::warn!(
                "{beyond} outer headers of routes with `encap` do not fit (at most {OUTERS}): packets to these routes are \
                 left to the kernel"
            );
        }
        self.outers = outers.into_iter().take(OUTERS).collect();
        self.stale_paths = true;
        let headers: BTreeSet<OuterHeader> = self.outers.iter().map(|(_, outer)| outer.header).collect();
        let headers: Vec<OuterHeader> = headers.into_iter().collect();
        let changed = std::mem::replace(&mut self.headers, headers) != self.headers;
        // All of them: a header that is beyond the limit now may have been among the first before.
        if changed { self.external() } else { BTreeSet::new() }
    }

    /// Returns the outer headers that routes give to packets of a tunnel, as far as the tunnel can have them.
    fn outers_of(&self, spec: &TunnelSpec) -> impl Iterator<Item = Outer> {
        let TunnelSpec { index, tunnel, .. } = *spec;
        let of = move |(of, outer): &&(u32, Outer)| *of == index && has_headers(&tunnel, outer);
        self.outers.iter().filter(of).map(|(_, outer)| *outer)
    }

    /// Returns the indices of these headers, and of the path to the remote, in the tunnels' lists; `None` if the
    /// tunnel has no such path.
    pub fn outer_path(&self, index: u32, outer: Outer) -> Option<(usize, usize)> {
        let (TunnelSpec { tunnel, .. }, _) = self.tunnels.get(&index)?;
        // Another tunnel may have a path of the other family, or such headers.
        if !has_headers(tunnel, &outer) || !self.outers.contains(&(index, outer)) {
            return None;
        }
        let path = self.path((outer.source, outer.remote, tunnel.link))?;
        Some((self.headers.binary_search(&outer.header).ok()?, path))
    }

    /// Returns the header fields by which the packets that a tunnel receives are found: with headers from routes, those
    /// of packets that the routes' other ends send back, as many as the program has room for.
    fn received(&self, spec: &TunnelSpec) -> Vec<TunnelEnd> {
        let tunnel = spec.tunnel;
        match tunnel.vxlan {
            Some(vxlan) if !tunnel.external => ends_of(&tunnel, &self.own(spec), &[vxlan.vni]),
            Some(_) => {
                let own = self.own(spec);
                let vnis: BTreeSet<u32> = self.outers_of(spec).map(|outer| outer.header.id).collect();
                let vnis: Vec<u32> = vnis.into_iter().take(TUNNEL_ENDS / own.len().max(1)).collect();
                ends_of(&tunnel, &own, &vnis)
            }
            None if tunnel.external => {
                let back = |Outer { remote, source, header }| {
                    let path = self.path((source, remote, tunnel.link))?;
                    let keys = [header.keyed.then_some(header.id); 2];
                    Some(ends_of(&Tunnel { remote, keys, ..tunnel }, &[self.paths.all[path].source], &[]))
                };
                let all: BTreeSet<TunnelEnd> = self.outers_of(spec).filter_map(back).flatten().collect();
                all.into_iter().collect()
            }
            None => ends_of(&tunnel, &self.own(spec), &[]),
        }
    }

    /// Returns the pairs of ends of a tunnel.
    fn pairs(&self, spec: &TunnelSpec) -> Vec<Ends> {
        let Tunnel { local, link, .. } = spec.tunnel;
        if spec.tunnel.external {
            let ends: BTreeSet<Ends> = self.outers_of(spec).map(|outer| (outer.source, outer.remote, link)).collect();
            return ends.into_iter().collect();
        }
        self.remotes(spec).into_iter().map(|remote| (local, remote, link)).collect()
    }

    /// Returns the other ends of a tunnel.
    pub fn remotes(&self, spec: &TunnelSpec) -> Vec<IpAddr> {
        match spec.tunnel.vxlan {
            _ if spec.tunnel.external => self.outers_of(spec).map(|outer| outer.remote).collect(),
            Some(_) => self.ends_of(spec.own_index()).collect(),
            None => vec![spec.tunnel.remote],
        }
    }

    /// Returns the addresses of this host at which a tunnel receives packets: its own or, without one, the sources of
    /// its paths.
    fn own(&self, spec: &TunnelSpec) -> Vec<IpAddr> {
        if !spec.tunnel.local.is_unspecified() {
            return vec![spec.tunnel.local];
        }
        let sources = self.pairs(spec).into_iter().filter_map(|ends| Some(self.paths.all[self.path(ends)?].source));
        sources.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns whether masquerading certainly leaves all outer packets of a tunnel as they are.
    pub fn keeps_source(&self, spec: &TunnelSpec) -> bool {
        if !self.masqueraded.contains(&spec.id) {
            return true;
        }
        let pairs = self.pairs(spec);
        !pairs.is_empty() && pairs.iter().all(|ends| self.has_path(*ends))
    }

    fn has_path(&self, ends: Ends) -> bool {
        self.path(ends).is_some()
    }

    /// Returns the place of the path between these ends.
    fn path(&self, ends: Ends) -> Option<usize> {
        self.paths.all.binary_search_by_key(&ends, |path| path.ends).ok()
    }

    /// Returns the other ends of a VXLAN that lead to stations, each once.
    fn ends_of(&self, index: u32) -> impl Iterator<Item = IpAddr> {
        let all = self.behind.range((index, Behind::Member(0))..(index + 1, Behind::Member(0)));
        all.filter_map(|((_, behind), _)| end(*behind))
    }

    /// Returns the tunnels of an interface: several if it is a VXLAN of several networks.
    pub fn vxlans_at(&self, index: u32) -> impl Iterator<Item = &TunnelSpec> {
        let of_vlan = |vlan| MasterSpec::index_of_vlan(index, vlan);
        let range = of_vlan(0).zip(of_vlan(0xfff)).map(|(first, last)| first..=last);
        let networks = range.into_iter().flat_map(|range| self.tunnels.range(range).map(|(_, spec)| spec));
        self.tunnels.get(&index).into_iter().chain(networks).map(|(spec, _)| spec)
    }

    /// Returns the VXLAN whose stations are in a forwarding database ([`TunnelSpec::fdb`]).
    pub(super) fn vxlan_with(&self, fdb: (u32, u32)) -> Option<&TunnelSpec> {
        self.vxlans_at(fdb.0).find(|spec| spec.fdb() == fdb)
    }

    /// Returns the stations of a VXLAN, in ascending order, with the ends that lead to them.
    fn stations_of(&self, spec: &TunnelSpec) -> impl Iterator<Item = (Mac, IpAddr)> {
        let (index, vlan) = spec.fdb();
        let range = self.stations.range((index, vlan, [0; 6])..=(index, vlan, [0xff; 6]));
        range.filter_map(|((_, _, mac), behind)| Some((*mac, end(*behind)?)))
    }

    /// Returns the other end of a tunnel that leads to a station, or its only other end, with the place of the path to
    /// it, if there is one.
    pub fn tunnel_path(&self, index: u32, station: Option<Mac>) -> Option<(IpAddr, usize)> {
        let (spec, _) = self.tunnels.get(&index)?;
        let (tunnel, (of, vlan)) = (spec.tunnel, spec.fdb());
        let remote = match station {
            Some(mac) if tunnel.vxlan.is_some() => end(*self.stations.get(&(of, vlan, mac))?)?,
            _ => tunnel.remote,
        };
        Some((remote, self.path((tunnel.local, remote, tunnel.link))?))
    }

    /// Returns the tunnel through which packets routed to an interface reach the neighbour with this MAC address: the
    /// interface itself or, for a bridge, the member behind which its FDB has the address. `None` if there is none.
    pub fn tunnel_towards(&self, index: u32, to: Mac) -> Option<u32> {
        if self.is_tunnel(index) {
            return Some(index);
        }
        let bridge = self.bridge(index)?;
        let (of, vlan) = bridge.fdb()?;
        let Behind::Member(member) = *self.stations.get(&(of, vlan, to))? else { return None };
        self.vxlan_on(bridge, member).filter(|vxlan| self.is_tunnel(*vxlan))
    }

    /// Returns the index of the VXLAN that is a member of a bridge by this interface ([`TunnelSpec::index`]).
    fn vxlan_on(&self, bridge: &MasterSpec, member: u32) -> Option<u32> {
        bridge.vxlans.iter().copied().find(|vxlan| MasterSpec::interface_of(*vxlan) == member)
    }

    /// Sets the paths of tunnels. Returns whether they have changed, and the interfaces whose next hops this changes.
    pub fn set_paths(&mut self, paths: Paths) -> (bool, Vec<u32>) {
        let ends = |paths: &Paths| paths.all.iter().map(|path| (path.ends, path.source)).collect::<Vec<_>>();
        let (changed, others) = (self.paths != paths, ends(&self.paths) != ends(&paths));
        self.paths = paths;
        (changed, self.tunnels.values().filter(|_| others).map(|(spec, _)| spec.interface()).collect())
    }

    /// Returns whether the stations of a tunnel have changed since the last [`Links::refresh_ends`].
    pub fn has_stale_ends(&self) -> bool {
        !self.stale_ends.is_empty()
    }

    /// Returns the stations from whose frames the kernel would learn nothing new, each with the end of the tunnel that
    /// it must be behind, or `None` for any end.
    fn known_stations(&self, spec: &TunnelSpec) -> Vec<(Mac, Option<IpAddr>)> {
        let learns = spec.tunnel.vxlan.is_some_and(|vxlan| vxlan.learns);
        let Some(of @ Bridged { ageing: Some(_), .. }) = spec.bridge else {
            return self.stations_of(spec).map(|(mac, end)| (mac, Some(end))).collect();
        };
        let ((bridge, vlan), (own, network)) = (of.fdb(), spec.fdb());
        let all = self.stations.range((bridge, vlan, [0; 6])..=(bridge, vlan, [0xff; 6]));
        let behind = all.filter(|(_, behind)| **behind == Behind::Member(own));
        let from = |mac: Mac| match learns {
            true => end(*self.stations.get(&(own, network, mac))?).map(Some),
            false => Some(None),
        };
        behind.filter_map(|((.., mac), _)| Some((*mac, from(*mac)?))).collect()
    }

    /// Returns whether a tunnel is a member of a bridge.
    pub fn bridges_tunnels(&self) -> bool {
        self.tunnels.values().any(|(spec, _)| spec.bridge.is_some())
    }

    /// Returns the stations behind other members of a tunnel's bridge, with the members' kernel indices.
    fn behind_members(&self, spec: &TunnelSpec) -> Vec<(Mac, u32)> {
        let Some((bridge, vlan)) = spec.bridge.map(|of| of.fdb()) else { return vec![] };
        let all = self.stations.range((bridge, vlan, [0; 6])..=(bridge, vlan, [0xff; 6]));
        let member = |((.., mac), behind): (&(_, _, Mac), &Behind)| match *behind {
            Behind::Member(index) if index != spec.own_index() => Some((*mac, index)),
            _ => None,
        };
        all.filter_map(member).collect()
    }

    /// Returns the stations that a tunnel's bridge has behind it, with the ends that it sends their frames to.
    fn beyond(&self, spec: &TunnelSpec) -> Vec<(Mac, IpAddr)> {
        let Some((bridge, vlan)) = spec.bridge.map(|of| of.fdb()) else { return vec![] };
        let member = Behind::Member(spec.own_index());
        if spec.tunnel.vxlan.is_some() {
            let is_behind = |mac: &Mac| self.stations.get(&(bridge, vlan, *mac)) == Some(&member);
            return self.stations_of(spec).filter(|(mac, _)| is_behind(mac)).collect();
        }
        let all = self.stations.range((bridge, vlan, [0; 6])..=(bridge, vlan, [0xff; 6]));
        all.filter(|(_, behind)| **behind == member).map(|((.., mac), _)| (*mac, spec.tunnel.remote)).collect()
    }

    /// Returns the length in bytes, with the Ethernet header and without a tag, of the longest frame that a bridge (or
    /// a VLAN interface on it) sends from a port through a tunnel; `None` if it sends none by addresses alone.
    pub fn bridged_through(&self, number: PortId, port: PortId) -> Option<u32> {
        let bridge = self.bridge_with(number, port)?;
        let vxlans = bridge.vxlans.iter().filter_map(|index| Some(&self.tunnels.get(index)?.0));
        let reached = |spec: &&TunnelSpec| self.reached(spec).iter().any(|member| member.port == port);
        vxlans.filter(|spec| self.is_open(spec)).filter(reached).map(|spec| self.longest(spec)).min()
    }

    fn longest(&self, spec: &TunnelSpec) -> u32 {
        self.get(spec.own_index()).map_or(0, |link| link.mtu + HEADER_LEN as u32)
    }

    /// Returns whether frames go through a tunnel past the kernel to a station that a bridge, or the VLAN interface on
    /// one, has behind this member. If not, workers would hand them back one by one.
    pub(super) fn leads_through(&self, bridge: u32, behind: Behind, mac: Mac) -> bool {
        let Behind::Member(member) = behind else { return false };
        let Some(index) = self.bridge(bridge).and_then(|bridge| self.vxlan_on(bridge, member)) else { return false };
        let open = || self.tunnels.get(&index).is_some_and(|(spec, _)| self.is_open(spec));
        self.tunnel_path(index, Some(mac)).is_some() && open()
    }

    /// Records which ports are on members of bridges with VXLANs.
    fn note_bridged(&mut self) {
        let with = |bridge: &&MasterSpec| bridge.is_bridge() && self.has_vxlan(bridge);
        let ports = self.all_masters().filter(with).flat_map(|bridge| self.ports_of(bridge));
        let ports: Vec<PortId> = ports.collect();
        for port in ports {
            let bound = self.ports.get_mut(usize::from(port.0));
            bound.filter(|bound| bound.spec.reception == Reception::Own).into_iter().for_each(|b| b.bridged = true);
        }
    }

    /// Returns the ports to which a tunnel's bridge forwards frames from it by their addresses alone.
    fn reached(&self, spec: &TunnelSpec) -> Vec<MemberPort> {
        let bridge = spec.bridge.and_then(|of| self.master(of.index));
        bridge.map_or_else(Vec::new, |bridge| self.reached_from(bridge, spec.own_index()))
    }

    /// Returns the tunnels whose packets are forwarded. Left out are tunnels that policies leave to the kernel, tunnels
    /// whose packets may be masqueraded, and tunnels whose local address the kernel would refuse.
    fn open_tunnels(&self) -> impl Iterator<Item = &TunnelSpec> {
        self.tunnels.values().map(|(spec, _)| spec).filter(|spec| self.is_open(spec))
    }

    fn is_open(&self, spec: &TunnelSpec) -> bool {
        let bridge = spec.bridge.is_none_or(|of| self.master(of.index).is_some() && self.running(of.index));
        let allowed = bridge && self.allows_tunnel(spec.index) && self.running(spec.index);
        allowed && self.keeps_source(spec) && self.has_local(&spec.tunnel) && !self.may_be_given_away(&spec.tunnel)
    }

    /// Returns whether connections of other hosts could be translated to a tuple of a tunnel's packets without its
    /// being noticed: only tunnels with one tuple, and VXLANs, are looked after ([`TunnelInfo::tracked`]).
    fn may_be_given_away(&self, tunnel: &Tunnel) -> bool {
        tunnel.external && tunnel.vxlan.is_none() && !(self.translating & tunnel.family()).is_empty()
    }

    /// Returns whether the kernel lets a tunnel use its local address. That of kinds `ip6tnl`, `ip6gre` and `ip6gretap`
    /// must be one of an interface outside of VRFs, and not tentative (ip6_tnl_xmit_ctl, ip6_tnl_rcv_ctl); a local
    /// route to it is enough for others, and is looked up for each packet.
    fn has_local(&self, tunnel: &Tunnel) -> bool {
        let is = |address: &Address| address.addr == tunnel.local && !address.secondary;
        let outside = |index: u32| model::vrf(&self.links, index).is_none();
        let has = |(index, all): (&u32, &Vec<Address>)| outside(*index) && all.iter().any(is);
        !tunnel.is_over_v6() || tunnel.vxlan.is_some() || self.addresses.iter().any(has)
    }

    /// Returns the tunnels whose packets are decapsulated; of those with headers from routes, as many as the program
    /// has room for.
    pub fn ends(&self) -> BTreeMap<TunnelEnd, Entrance> {
        let of = |spec: &TunnelSpec| {
            let mac = match spec.tunnel.is_ethernet() {
                true if MasterSpec::vlan_of_index(spec.interface()).is_none() => self.get(spec.interface())?.mac?,
                _ => Mac::default(),
            };
            let id = spec.bridge.map_or(Some(spec.id), |of| Some(self.master(of.index)?.id))?;
            let link = match spec.tunnel.link {
                0 => None,
                link => Some(self.received_as(link)?),
            };
            let members = self.reached(spec).iter().map(|member| 1 << member.port.0).sum();
            let learns = spec.ageing().is_some();
            let entrance = Entrance { id, mac, link, members, learns };
            Some(self.received(spec).into_iter().map(move |end| (end, entrance)))
        };
        let (external, plain): (Vec<_>, Vec<_>) = self.open_tunnels().partition(|spec| spec.tunnel.external);
        plain.into_iter().chain(external).filter_map(of).flatten().take(TUNNEL_ENDS).collect()
    }

    /// Returns the number by which workers and the XDP program identify packets received on an interface.
    fn received_as(&self, index: u32) -> Option<PortId> {
        let master = self.master(index).map(|master| master.id);
        master.or_else(|| Some(self.vlans.get(&index)?.0.id)).or_else(|| self.device_of(index))
    }

    /// Brings the stations of tunnels up to date, for [`Links::tunnels`].
    pub fn refresh_ends(&mut self) {
        self.note_bridged();
        self.ends.retain(|index, _| self.tunnels.contains_key(index));
        let of_stations = self.tunnels.values().filter(|(spec, _)| spec.tunnel.is_ethernet());
        for spec in of_stations.map(|(spec, _)| *spec).collect::<Vec<_>>() {
            let before = self.ends.get(&spec.index);
            if before.is_none() || self.stale_ends.contains(&spec.index) {
                let new = Stations::new(self.known_stations(&spec), before.unwrap_or(&Arc::default()));
                let (members, beyond) = (self.behind_members(&spec), self.beyond(&spec));
                self.ends.insert(spec.index, Arc::new(new.bridged(members, beyond)));
            }
        }
        self.stale_ends.clear();
    }

    /// Returns the tunnels as the stages use them, without those that policies leave to the kernel.
    pub fn tunnels(&self, followed: &Followed) -> Tunnels {
        let of = |spec: &TunnelSpec| {
            let TunnelSpec { id, index, tunnel, bridge } = *spec;
            let master = bridge.and_then(|of| self.master(of.index)).map(|master| (master.id, master.index));
            let info = self.own_info(master.unwrap_or((id, spec.own_index())), followed);
            let info = PortInfo { master: master.map(|(id, _)| id), ..info };
            let mac = self.get(spec.own_index()).and_then(|link| link.mac).unwrap_or_default();
            let stations = self.ends.get(&index).cloned().unwrap_or_default();
            let masqueraded = self.masqueraded.contains(&id);
            let translated = !(self.translating & tunnel.family()).is_empty();
            let tracked = self.tracked.get(&index).filter(|_| translated && tunnel.vxlan.is_none()).cloned();
            let (ageing, members, longest) = (spec.ageing(), self.reached(spec), self.longest(spec));
            let ends = self.received(spec);
            TunnelInfo { id, tunnel, ends, info, mac, ageing, stations, members, longest, masqueraded, tracked }
        };
        let all = self.open_tunnels().map(of).collect();
        Tunnels::new(all, self.paths.clone(), self.headers.clone(), self.outer_passes)
    }

    /// Returns all tunnels for display.
    pub fn tunnel_views(&self) -> impl Iterator<Item = (PortView, &TunnelSpec)> {
        self.tunnels.values().map(|(spec, _)| {
            let (id, index) = (spec.id, spec.own_index());
            let name = self.get(index).map(|link| link.name.clone()).unwrap_or_default();
            let name = spec.network().map_or_else(|| name.clone(), |vni| format!("{name} VNI {vni}"));
            (self.view(id, name, index), spec)
        })
    }

    /// Returns the number of a tunnel whose packets are forwarded.
    pub fn tunnel_number(&self, index: u32) -> Option<PortId> {
        self.tunnels.get(&index).map(|(spec, _)| spec.id)
    }
}
