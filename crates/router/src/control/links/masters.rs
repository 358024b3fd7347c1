//! Bonds and bridges: the ports on their members, and the stations of bridges.

use super::super::followed::Followed;
use super::super::{Egress, MasterSpec, PortView, TunnelSpec};
use super::{Bound, Links, differing, replace};
use crate::tables::{BondInfo, PortInfo};
use crate::tunnel::MemberPort;
use bywash_engine::{PORTS, PortId};
use bywash_fib::model::{Behind, Link, Mac};
use bywash_wire::ethernet::HEADER_LEN;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// Maximum number of bridge stations that a sink is given: more than the XDP program has room for, and few enough to be
/// laid out in milliseconds when one of them changes.
const STATIONS: usize = 16384;

/// Place of a port for stations behind a tunnel ([`bywash_port::af_xdp::XdpDatapath::set_stations`]).
const THROUGH: PortId = PortId(PORTS as u16);

impl Links {
    /// Returns the ports that are open on members of a bond or bridge. If the port of any member is not open, a bond
    /// has none: the kernel may send any packet by that member.
    pub(super) fn ports_of<'a>(&'a self, master: &'a MasterSpec) -> impl Iterator<Item = PortId> + 'a {
        let open = |(port, member): &&(PortId, u32)| self.open_on(*member) == Some(*port);
        let whole = master.is_bridge() || master.members.iter().all(|member| open(&member));
        master.members.iter().filter(move |member| whole && open(member)).map(|(port, _)| *port)
    }

    /// Returns whether a tunnel whose packets are forwarded is a member of a bridge.
    pub(super) fn has_vxlan(&self, bridge: &MasterSpec) -> bool {
        bridge.vxlans.iter().any(|index| self.is_tunnel(*index))
    }

    pub(super) fn all_masters(&self) -> impl Iterator<Item = &MasterSpec> {
        self.masters.values().map(|(master, _)| master)
    }

    pub(super) fn master(&self, index: u32) -> Option<&MasterSpec> {
        self.masters.get(&index).map(|(master, _)| master)
    }

    /// Returns the bridge with this kernel index.
    pub(super) fn bridge(&self, index: u32) -> Option<&MasterSpec> {
        self.master(index).filter(|master| master.is_bridge())
    }

    /// Returns the bonds and bridges whose packets arrive and leave by this port, perhaps among other ports: several if
    /// a bridge filters VLANs.
    pub(super) fn masters_of(&self, id: PortId) -> impl Iterator<Item = &MasterSpec> {
        self.all_masters().filter(move |master| self.ports_of(master).any(|port| port == id))
    }

    /// Returns the bond or bridge to which the port's frames without a tag belong.
    fn master_of(&self, id: PortId) -> Option<&MasterSpec> {
        self.masters_of(id).find(|master| master.entry(id).is_none())
    }

    /// Returns the bridge, or the VLAN interface on one, with this number, if its packets arrive by this port.
    pub fn bridge_with(&self, number: PortId, port: PortId) -> Option<&MasterSpec> {
        self.masters_of(port).find(|master| master.id == number && master.is_bridge())
    }

    /// Returns the kernel index of the bridge of which a port is a member, and whether it filters VLANs.
    pub fn bridge_below(&self, id: PortId) -> Option<(u32, bool)> {
        let (bridge, vlan) = self.masters_of(id).find_map(MasterSpec::stations)?;
        Some((bridge, vlan != 0))
    }

    /// Returns the ports to which the bridge forwards, by addresses alone, the frames that a port receives and that
    /// belong to the interface with this number.
    pub fn bridged_to(&self, number: PortId, port: PortId) -> Vec<MemberPort> {
        let own = || self.ports.get(usize::from(port.0)).map(Bound::index);
        self.bridge_with(number, port).zip(own()).map_or_else(Vec::new, |(bridge, own)| self.reached_from(bridge, own))
    }

    /// Returns the ports to which a bridge forwards, by addresses alone, the frames that the member with this kernel
    /// index receives.
    pub(super) fn reached_from(&self, bridge: &MasterSpec, from: u32) -> Vec<MemberPort> {
        if self.bridge_link(bridge).and_then(|link| link.bridge).is_none_or(|of| of.calls_ip) {
            return vec![];
        }
        // A hardware switch may already have forwarded a frame that it also hands over.
        let member = |index| {
            let link = self.get(index).filter(|link| !link.switch)?;
            Some((link.member?.bridging, link.mtu))
        };
        let Some((own, _)) = member(from) else { return vec![] };
        let to = |port: PortId| {
            let index = self.ports.get(usize::from(port.0))?.index();
            let (that, mtu) = member(index).filter(|_| index != from)?;
            let (longest, entry) = (mtu + HEADER_LEN as u32, bridge.entry(port));
            own.reaches(that).then_some(MemberPort { index, port, longest, entry })
        };
        self.ports_of(bridge).filter_map(to).collect()
    }

    /// Returns the bridge itself, also for a VLAN interface on it; `None` for a bond.
    fn bridge_link(&self, master: &MasterSpec) -> Option<&Link> {
        self.get(master.stations()?.0)
    }

    /// Returns the shortest time after which one of the bridges forgets a station; `None` without bridges.
    pub fn ageing(&self) -> Option<Duration> {
        let of = |master| Some(Duration::from_millis(self.bridge_link(master)?.bridge?.ageing_ms));
        self.all_masters().filter_map(of).min()
    }

    /// Returns the number by which gates, source checks and flows name the interface that a port's packets are received
    /// on: the port's own, or that of a bond or bridge.
    pub fn number_of(&self, id: PortId) -> PortId {
        self.master_of(id).map_or(id, |master| master.id)
    }

    /// Returns the port that leads to the station with this MAC address, if the interface is a bridge or a VLAN on one.
    /// `Err` if no port does, so that the kernel sends the packets; `None` for other interfaces.
    pub(super) fn leads_to(&self, index: u32, to: Option<Mac>) -> Option<Result<PortId, ()>> {
        let bridge = self.bridge(self.vlans.get(&index).map_or(index, |(vlan, _)| vlan.parent))?;
        let port = match to {
            Some(mac) => {
                let behind = bridge.fdb().and_then(|(bridge, vlan)| self.stations.get(&(bridge, vlan, mac)));
                let leads = |index: u32| behind == Some(&Behind::Member(index));
                let port = bridge.members.iter().find(|(_, index)| leads(*index)).map(|(port, _)| *port);
                port.filter(|port| self.ports_of(bridge).any(|open| open == *port))
            }
            None => self.ports_of(bridge).next(),
        };
        Some(port.ok_or(()))
    }

    /// Like [`Links::leads_to`], but returns the number of the interface's entry on that port if its frames have a tag
    /// there.
    pub fn bridged(&self, index: u32, to: Option<Mac>) -> Option<Result<PortId, ()>> {
        let port = self.leads_to(index, to)?;
        if let Some(master) = self.master(index) {
            return Some(port.map(|port| master.entry(port).unwrap_or(port)));
        }
        let Some((vlan, _)) = self.vlans.get(&index) else { return Some(port) };
        let entry = |port| vlan.entries.iter().find(|(of, _)| *of == port).map(|(_, entry)| *entry);
        Some(port.and_then(|port| entry(port).ok_or(())))
    }

    /// Records which member of a bridge leads to a station, given by bridge, VLAN and MAC address; `None` if none does.
    /// Returns the bridge and the VLAN interfaces on it, by kernel index, whose next hops this changes.
    pub fn set_station(&mut self, station: (u32, u32, Mac), behind: Option<Behind>) -> Vec<u32> {
        let old = match behind {
            Some(behind) => self.stations.insert(station, behind),
            None => self.stations.remove(&station),
        };
        if old == behind {
            return vec![];
        }
        let (bridge, vlan, _) = station;
        if let Some(new) = behind {
            let count = self.behind.entry((bridge, new)).or_default();
            let first = *count == 0;
            *count += 1;
            self.stale_paths |= first && self.vxlans_at(bridge).next().is_some();
        }
        if let Some(Entry::Occupied(mut count)) = old.map(|old| self.behind.entry((bridge, old))) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if let Some((vxlan, interface)) = self.vxlan_with((bridge, vlan)).map(|spec| (spec.index, spec.interface())) {
            self.stale_ends.insert(vxlan);
            return vec![interface];
        }
        let vxlans = self.tunnels.values().map(|(spec, _)| spec);
        let of_bridge = |spec: &&TunnelSpec| spec.bridge.is_some_and(|of| of.fdb() == (bridge, vlan));
        self.stale_ends.extend(vxlans.filter(of_bridge).map(|spec| spec.index));
        let masters = self.all_masters().filter(|master| master.fdb() == Some((bridge, vlan)));
        masters.flat_map(|master| std::iter::once(master.index).chain(self.vlans_on(master.index))).collect()
    }

    /// Returns up to [`STATIONS`] stations of the bridges whose packets are forwarded, each with the bridge's number
    /// and the port that leads to it, or [`THROUGH`]; and the number of those left out.
    pub fn stations(&self) -> (Vec<(PortId, Mac, PortId)>, usize) {
        // The kernel drops frames from other addresses (is_valid_ether_addr).
        let valid = |mac: &Mac| mac[0] & 1 == 0 && *mac != [0; 6];
        let of = |(bridge, through): (&MasterSpec, bool)| {
            let (id, index) = (bridge.id, bridge.index);
            let range = bridge.fdb().map(|(bridge, vlan)| (bridge, vlan, [0; 6])..=(bridge, vlan, [0xff; 6]));
            let port = move |((_, _, mac), behind): (&(u32, u32, Mac), &Behind)| {
                let port = match through {
                    false => self.leads_to(index, Some(*mac)).and_then(Result::ok),
                    true => self.leads_through(index, *behind, *mac).then_some(THROUGH),
                };
                port.filter(|_| valid(mac)).map(|port| (id, *mac, port))
            };
            range.into_iter().flat_map(|range| self.stations.range(range)).filter_map(port)
        };
        // Those behind ports first: without room, only frames through VXLANs are left to the kernel.
        let all = [false, true].into_iter().flat_map(|through| self.all_masters().map(move |bridge| (bridge, through)));
        let mut stations = all.flat_map(of);
        let all = stations.by_ref().take(STATIONS).collect();
        (all, stations.count())
    }

    /// Returns the kernel index of the interface whose packets arrive and leave by this port: that of its bond or
    /// bridge, or its own.
    pub(super) fn interface_of(&self, bound: &Bound) -> u32 {
        self.master_of(bound.spec.id).map_or(bound.index(), |master| master.index)
    }

    /// Returns the ports of the bond or bridge with this number, or the port whose number it is.
    pub(super) fn ports_at(&self, id: PortId) -> Vec<PortId> {
        match self.all_masters().find(|master| master.id == id) {
            Some(master) => self.ports_of(master).collect(),
            None => vec![id],
        }
    }

    /// Sets the bonds and bridges, and returns the interfaces whose packets now come and leave by other ports.
    pub fn set_masters(&mut self, masters: &[MasterSpec]) -> Vec<u32> {
        let old = replace(&mut self.masters, masters, |master| master.index);
        let with_members = |index: u32| {
            let both = [old.get(&index), self.masters.get(&index)].into_iter().flatten();
            let members = both.flat_map(|(master, _)| &master.members).map(|(_, member)| *member);
            std::iter::once(index).chain(self.vlans_on(index)).chain(members).collect::<BTreeSet<u32>>()
        };
        differing(&old, &self.masters).into_iter().flat_map(with_members).collect()
    }

    /// Returns the properties of a bond or bridge with open ports, as the stages use them: as on its first port; for a
    /// bridge, a VXLAN is as good as a port.
    fn master_info(&self, master: &MasterSpec, followed: &Followed) -> Option<PortInfo> {
        let (named, first) = ((master.id, master.index), self.ports_of(master).next());
        match first.and_then(|first| self.ports.get(usize::from(first.0))) {
            Some(first) => Some(self.info_of(first, named, followed)),
            None => self.has_vxlan(master).then(|| self.own_info(named, followed)),
        }
    }

    /// Returns the bridges with open ports or VXLANs, each with its number.
    pub fn bridges(&self, followed: &Followed) -> Vec<(PortId, PortInfo)> {
        let bridges = self.all_masters().filter(|master| master.is_bridge());
        bridges.filter_map(|bridge| Some((bridge.id, self.master_info(bridge, followed)?))).collect()
    }

    /// Returns the bonds with open ports, each with its number.
    pub fn bonds(&self, followed: &Followed) -> Vec<(PortId, BondInfo)> {
        let bond = |bond: &MasterSpec| {
            let Egress::ByHash(hash) = bond.egress else { return None };
            let info = self.master_info(bond, followed)?;
            Some((bond.id, BondInfo { ports: self.ports_of(bond).collect(), hash, info }))
        };
        self.all_masters().filter_map(bond).collect()
    }

    /// Returns all bonds and bridges with open ports or VXLANs, by kernel index; for a VLAN without an interface, a
    /// view with index 0.
    pub fn master_views(&self) -> impl Iterator<Item = (PortView, &MasterSpec)> {
        let served = |master: &&MasterSpec| self.ports_of(master).next().is_some() || self.has_vxlan(master);
        self.all_masters().filter(served).map(|master| {
            let name = |index| self.get(index).map(|link| link.name.clone()).unwrap_or_default();
            let view = match MasterSpec::vlan_of_index(master.index) {
                Some((bridge, vlan)) => PortView {
                    index: 0,
                    mtu: self.get(bridge).map(|link| link.mtu),
                    ..self.view(master.id, format!("{} VLAN {vlan}", name(bridge)), master.index)
                },
                None => self.view(master.id, name(master.index), master.index),
            };
            (view, master)
        })
    }
}
