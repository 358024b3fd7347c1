//! Links, their addresses, and the ports bound to them.

mod masters;
mod tunnels;

pub(super) use tunnels::EndsOf;

use super::followed::Followed;
use super::{MasterSpec, PortBack, PortSpec, PortView, TunnelSpec, VlanSpec};
use crate::tables::{Own4, PortInfo, Reception, SourceCheck, VlanInfo};
use crate::tunnel::{Paths, Stations};
use crate::vlan::{FIRST, UNTAGGED};
use bywash_engine::PortId;
use bywash_fib::model::{
    Address, Behind, Change, Families, Link, Mac, Outer, OuterHeader, Prefix, Rule, Rules, Station,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Interfaces by kernel index, and the source validation of packets that they receive.
type Checked<S> = BTreeMap<u32, (S, SourceCheck)>;

/// Replaces interfaces; those that remain keep their source validation. Returns the former ones.
fn replace<S: Clone>(all: &mut Checked<S>, specs: &[S], index: fn(&S) -> u32) -> Checked<S> {
    let check = |index: u32| all.get(&index).map_or(SourceCheck::Off, |(_, check)| *check);
    let new = specs.iter().map(|spec| (index(spec), (spec.clone(), check(index(spec))))).collect();
    std::mem::replace(all, new)
}

/// Returns the interfaces that only one of two maps has, or for which they differ.
fn differing<V: PartialEq>(old: &BTreeMap<u32, V>, new: &BTreeMap<u32, V>) -> Vec<u32> {
    let either: BTreeSet<u32> = old.keys().chain(new.keys()).copied().collect();
    either.into_iter().filter(|index| old.get(index) != new.get(index)).collect()
}

/// A port and the interface to which it is bound.
pub(super) struct Bound {
    pub spec: PortSpec,
    /// Kernel index of the interface bound to it, open or not; 0 while that is gone.
    claimed: u32,
    /// Set if it can send and receive on that interface.
    open: bool,
    /// Configured source validation of received packets.
    pub source_check: SourceCheck,
    /// Set once the port is on a member of a bridge with a VXLAN. It is never cleared: the program may have handed over
    /// frames to stations behind that, which must not be routed.
    pub bridged: bool,
}

impl Bound {
    fn new(spec: PortSpec) -> Self {
        Self { claimed: spec.index, open: spec.index != 0, spec, source_check: SourceCheck::Off, bridged: false }
    }

    /// Binds the port to an interface on which it is not open yet.
    fn claim(&mut self, index: u32) -> PortId {
        (self.claimed, self.open) = (index, false);
        self.spec.id
    }

    /// Returns the kernel index of the interface on which it is open; 0 if there is none.
    pub fn index(&self) -> u32 {
        if self.open { self.claimed } else { 0 }
    }
}

/// Effect of a link message.
#[derive(Debug, Default)]
pub(super) struct LinkEffect {
    /// Set if a property used in entries changed: MAC, MTU, up or carrier.
    pub entries: bool,
    /// Set if a property changed that decides which frames bridges forward.
    pub bridging: bool,
    /// The port that it affects.
    pub port: Option<PortId>,
    /// An interface with the port's name on which the port must be opened.
    pub back: Option<PortBack>,
}

/// All known interfaces.
pub(super) struct Links {
    links: BTreeMap<u32, Link>,
    addresses: BTreeMap<u32, Vec<Address>>,
    ports: Vec<Bound>,
    by_index: HashMap<u32, PortId>,
    /// Bonds and bridges.
    masters: Checked<MasterSpec>,
    /// Way to each station of a bridge or VXLAN interface, by kernel index, [`Station::vlan`] and MAC address.
    stations: BTreeMap<(u32, u32, Mac), Behind>,
    /// Number of stations behind each member of a bridge or end of a VXLAN interface, by kernel index of the bridge or
    /// VXLAN interface, and member or end.
    behind: BTreeMap<(u32, Behind), usize>,
    vlans: Checked<VlanSpec>,
    tunnels: Checked<TunnelSpec>,
    /// Stations of VXLANs as workers have them, by [`TunnelSpec::index`], and the VXLANs for which they have changed
    /// since.
    ends: BTreeMap<u32, Arc<Stations>>,
    stale_ends: BTreeSet<u32>,
    /// Outer headers that routes give to packets, by kernel index of the tunnels that take them, and their fields, each
    /// once.
    outers: BTreeSet<(u32, Outer)>,
    headers: Vec<OuterHeader>,
    /// Paths to the other ends of tunnels, and a flag that is set if some may be missing or out of date.
    paths: Paths,
    stale_paths: bool,
    /// Numbers of the tunnels that policies allow to be forwarded.
    allowed: BTreeSet<PortId>,
    /// Numbers of the tunnels whose outer packets may be masqueraded.
    masqueraded: BTreeSet<PortId>,
    /// Families of which rules translate addresses.
    translating: Families,
    /// Times in seconds at which connection tracking last saw a packet of a tunnel, by [`TunnelSpec::index`].
    tracked: BTreeMap<u32, Arc<AtomicU32>>,
    /// Set if outer packets of tunnels pass gates that let flows pass.
    outer_passes: bool,
    /// Families whose packets out of an interface are left to the kernel, by interface index.
    excepted: BTreeMap<u32, Families>,
    /// IPv6 MTUs that differ from the links', in bytes, by interface index.
    mtu6: BTreeMap<u32, u32>,
    /// Policy routing rules, by port and VLAN.
    rules: BTreeMap<PortId, Rules>,
}

impl Links {
    /// Creates the ports of `specs`, which must be in the order of their ids, without gaps.
    pub fn new(specs: Vec<PortSpec>) -> Self {
        let ports: Vec<Bound> = specs.into_iter().map(Bound::new).collect();
        let by_index = ports.iter().filter(|p| p.claimed != 0).map(|p| (p.claimed, p.spec.id)).collect();
        Self {
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            ports,
            by_index,
            masters: BTreeMap::new(),
            stations: BTreeMap::new(),
            behind: BTreeMap::new(),
            vlans: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            ends: BTreeMap::new(),
            stale_ends: BTreeSet::new(),
            outers: BTreeSet::new(),
            headers: vec![],
            paths: Paths::default(),
            stale_paths: false,
            allowed: BTreeSet::new(),
            masqueraded: BTreeSet::new(),
            translating: Families::NONE,
            tracked: BTreeMap::new(),
            outer_passes: false,
            excepted: BTreeMap::new(),
            mtu6: BTreeMap::new(),
            rules: BTreeMap::new(),
        }
    }

    pub fn get(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// Returns all links, by kernel index.
    pub fn all(&self) -> &BTreeMap<u32, Link> {
        &self.links
    }

    pub fn ports(&self) -> &[Bound] {
        &self.ports
    }

    /// Returns the port that is open on an interface.
    fn open_on(&self, index: u32) -> Option<PortId> {
        self.by_index.get(&index).copied().filter(|id| self.ports[usize::from(id.0)].open)
    }

    /// Returns the port open on an interface; `None` if the interface is a member of a bond or bridge, to which the
    /// packets of its port belong.
    fn device_of(&self, index: u32) -> Option<PortId> {
        self.open_on(index).filter(|_| self.masters.values().all(|(master, _)| !master.has_member(index)))
    }

    /// Returns whether packets routed to an interface are sent past the kernel at all: false for a macvlan that may
    /// have others beside it, for a tunnel while a policy concerns its outer packets, and for a VXLAN in a bridge.
    pub fn sends(&self, index: u32) -> bool {
        self.vlans.get(&index).is_none_or(|(vlan, _)| vlan.sends)
            && self.tunnels.get(&index).is_none_or(|(spec, _)| spec.bridge.is_none() && self.allows_tunnel(index))
    }

    /// Returns whether routes by an interface lead to next hops of its own: true if it has a port, or may get one at
    /// any time without the routes being processed again, as a bond does at a failover. While it has no port, these
    /// next hops are left to the kernel.
    pub fn leads(&self, index: u32) -> bool {
        let vlan = || self.get(index).filter(|link| link.kind == "vlan").and_then(|link| link.parent);
        let master = |index| self.masters.contains_key(&index);
        self.open_on(index).is_some() || master(index) || self.port_of(index).is_some() || vlan().is_some_and(master)
    }

    /// Returns the interfaces for which [`Links::leads`] is true.
    pub fn leading(&self) -> BTreeSet<u32> {
        let all = self.links.keys().chain(self.by_index.keys()).chain(self.masters.keys()).chain(self.vlans.keys());
        all.copied().filter(|index| self.leads(*index)).collect()
    }

    /// Returns the port by which packets of an interface arrive and leave, or the number of the VLAN, bond or bridge if
    /// the interface is one. For a bond with one member, it is that member's port.
    pub fn port_of(&self, index: u32) -> Option<PortId> {
        if let Some(master) = self.master(index) {
            let mut ports = self.ports_of(master);
            let Some(first) = ports.next() else { return self.has_vxlan(master).then_some(master.id) };
            let alone = !master.is_bridge() && ports.next().is_none();
            return Some(if alone { first } else { master.id });
        }
        self.device_of(index)
            .or_else(|| {
                let (vlan, _) = self.vlans.get(&index)?;
                let below = match self.master(vlan.parent) {
                    Some(master) => self.ports_of(master).next().map(|_| master.id),
                    None => self.device_of(vlan.parent),
                };
                (below == Some(vlan.port)).then_some(vlan.id)
            })
            .or_else(|| self.tunnel_number(index))
    }

    /// Returns the ports whose devices send packets routed to an interface: for a VLAN, the port that carries it; for a
    /// bond, those of its members; for a bridge, the port that leads to the station with this MAC address.
    pub fn carriers_of(&self, index: u32, to: Option<Mac>) -> Vec<PortId> {
        if let Some(port) = self.leads_to(index, to) {
            return port.into_iter().collect();
        }
        let id = match (self.port_of(index), self.vlans.get(&index)) {
            (None, _) => return vec![],
            // The packets of a tunnel leave by the ports that their outer packets are routed to.
            _ if self.is_tunnel(index) => return vec![],
            (Some(_), Some((vlan, _))) => vlan.port,
            (Some(id), None) => id,
        };
        self.ports_at(id)
    }

    /// Sets the VLANs, and returns the interfaces that became or ceased to be one.
    pub fn set_vlans(&mut self, vlans: &[VlanSpec]) -> Vec<u32> {
        let old = replace(&mut self.vlans, vlans, |vlan| vlan.index);
        differing(&old, &self.vlans)
    }

    /// Returns the interfaces whose packets arrive and leave by this one, by kernel index: the bond or bridge that it
    /// is a member of, and the VLANs on it or on these.
    pub fn above(&self, index: u32) -> Vec<u32> {
        let masters = self.all_masters().filter(|master| master.has_member(index)).map(|master| master.index);
        let of_masters = masters.flat_map(|master| std::iter::once(master).chain(self.vlans_on(master)));
        self.vlans_on(index).chain(of_masters).collect()
    }

    /// Returns the VLANs on an interface, by kernel index.
    pub fn vlans_on(&self, index: u32) -> impl Iterator<Item = u32> {
        self.vlans.values().filter(move |(vlan, _)| vlan.parent == index).map(|(vlan, _)| vlan.index)
    }

    /// Returns the VLANs whose ports are open, as the stages use them: indexed by number minus [`FIRST`].
    pub fn vlans(&self, followed: &Followed) -> Vec<Option<VlanInfo>> {
        let mut all = vec![];
        let mut put = |id: PortId, info: VlanInfo| {
            let at = usize::from(id.0 - FIRST);
            all.resize(all.len().max(at + 1), None);
            all[at] = Some(info);
        };
        for (vlan, _) in self.vlans.values().filter(|(vlan, _)| self.port_of(vlan.index) == Some(vlan.id)) {
            let ports = self.ports_at(vlan.port);
            let Some(carrier) = ports.first().and_then(|port| self.ports.get(usize::from(port.0))) else { continue };
            let info = PortInfo {
                partial_checksums: carrier.spec.partial_checksums,
                reception: carrier.spec.reception,
                ..self.own_info((vlan.id, vlan.index), followed)
            };
            if self.bridge(vlan.parent).is_some() {
                for (port, entry) in &vlan.entries {
                    let info = PortInfo { master: Some(vlan.id), ..info.clone() };
                    put(*entry, VlanInfo { port: *port, tag: vlan.tag, info });
                }
            }
            put(vlan.id, VlanInfo { port: vlan.port, tag: vlan.tag, info });
        }
        for master in self.all_masters().filter(|master| !master.tagged.is_empty()) {
            for port in self.ports_of(master) {
                let (Some(entry), Some(bound)) = (master.entry(port), self.ports.get(usize::from(port.0))) else {
                    continue;
                };
                let info = self.info_of(bound, (master.id, master.index), followed);
                let info = PortInfo { vlans: vec![], macvlans: vec![], ..info };
                put(entry, VlanInfo { port, tag: master.tag, info });
            }
        }
        all
    }

    /// Returns whether an interface, or for a VLAN the one that it is on, is up and has carrier; false for an unknown
    /// one.
    pub fn running(&self, index: u32) -> bool {
        self.links.get(&MasterSpec::interface_of(index)).is_some_and(|l| l.up && l.carrier)
    }

    /// Returns the families whose packets out of `index` are left to the kernel: both if it has no link-layer address
    /// and is no tunnel, because only the kernel knows the Ethernet header then.
    pub fn excepted(&self, index: u32) -> Families {
        if self.links.get(&index).is_some_and(|link| link.mac.is_none()) && !self.is_tunnel(index) {
            return Families::BOTH;
        }
        self.excepted.get(&index).copied().unwrap_or_default()
    }

    /// Sets the excepted families of all interfaces and returns the interfaces for which they have changed.
    pub fn set_excepted(&mut self, egress: &[(u32, Families)]) -> Vec<u32> {
        let mut new: BTreeMap<u32, Families> = BTreeMap::new();
        for (index, families) in egress {
            *new.entry(*index).or_default() |= *families;
        }
        let old = std::mem::replace(&mut self.excepted, new);
        differing(&old, &self.excepted)
    }

    /// Returns the IPv6 MTU of `index`, if one is set.
    pub fn mtu6(&self, index: u32) -> Option<u32> {
        self.mtu6.get(&index).copied()
    }

    /// Sets the IPv6 MTUs of all interfaces and returns the interfaces for which they have changed.
    pub fn set_mtu6(&mut self, mtu6: &BTreeMap<u32, u32>) -> Vec<u32> {
        let old = std::mem::replace(&mut self.mtu6, mtu6.clone());
        differing(&old, mtu6)
    }

    pub fn set(&mut self, link: &Link) -> LinkEffect {
        let old = self.links.insert(link.index, link.clone());
        let bridging =
            old.as_ref().is_none_or(|o| (o.member, o.bridge, o.switch) != (link.member, link.bridge, link.switch));
        let entries =
            old.is_none_or(|o| (o.mac, o.mtu, o.up, o.carrier) != (link.mac, link.mtu, link.up, link.carrier));
        if let Some(&id) = self.by_index.get(&link.index) {
            let closed = !self.ports[usize::from(id.0)].open;
            let back = closed.then_some(PortBack { id, index: link.index });
            return LinkEffect { entries, bridging, port: entries.then_some(id), back };
        }
        let Some(bound) = self.ports.iter_mut().find(|p| p.claimed == 0 && p.spec.name == link.name) else {
            return LinkEffect { entries, bridging, ..LinkEffect::default() };
        };
        let id = bound.claim(link.index);
        self.by_index.insert(link.index, id);
        LinkEffect { entries: true, bridging, port: Some(id), back: Some(PortBack { id, index: link.index }) }
    }

    /// Records whether a port can send and receive on its interface. Returns the interface, if it has one.
    pub fn set_open(&mut self, id: PortId, open: bool) -> Option<u32> {
        let bound = self.ports.get_mut(usize::from(id.0)).filter(|bound| bound.claimed != 0)?;
        bound.open = open;
        Some(bound.claimed)
    }

    /// Adds a port, with the next number or that of a removed port. Returns its interface, if it has one already.
    ///
    /// # Panics
    /// If its number leaves a gap.
    pub fn add_port(&mut self, spec: PortSpec) -> Option<u32> {
        let (at, index, id) = (usize::from(spec.id.0), spec.index, spec.id);
        assert!(at <= self.ports.len(), "port numbers have gaps");
        self.by_index.retain(|_, port| *port != id);
        let bound = Bound::new(spec);
        match self.ports.get_mut(at) {
            Some(port) => *port = bound,
            None => self.ports.push(bound),
        }
        if index != 0 {
            self.by_index.insert(index, id);
        }
        (index != 0).then_some(index)
    }

    /// Removes a port; its interface stays. Returns the interface.
    pub fn remove_port(&mut self, id: PortId) -> Option<u32> {
        let bound = self.ports.get_mut(usize::from(id.0))?;
        // No interface has an empty name.
        bound.spec.name.clear();
        let index = std::mem::take(&mut bound.claimed);
        self.by_index.remove(&index).map(|_| index)
    }

    /// Removes a link and its addresses. Returns the port bound to it, and the link that has taken the port's name
    /// meanwhile.
    pub fn remove(&mut self, index: u32) -> Option<(PortId, Option<PortBack>)> {
        self.links.remove(&index);
        self.addresses.remove(&index);
        self.mtu6.remove(&index);
        let id = self.by_index.remove(&index)?;
        let bound = &mut self.ports[usize::from(id.0)];
        bound.claim(0);
        let heir = self.links.values().find(|l| l.name == bound.spec.name && !self.by_index.contains_key(&l.index));
        let back = heir.map(|l| PortBack { id, index: l.index });
        if let Some(PortBack { index, .. }) = back {
            bound.claim(index);
            self.by_index.insert(index, id);
        }
        Some((id, back))
    }

    /// Adds or updates an address; returns whether anything changed.
    pub fn add_address(&mut self, address: &Address) -> bool {
        let list = self.addresses.entry(address.index).or_default();
        match list.iter_mut().find(|a| (a.addr, a.len) == (address.addr, address.len)) {
            Some(known) if known == address => false,
            Some(known) => {
                known.clone_from(address);
                true
            }
            None => {
                list.push(address.clone());
                true
            }
        }
    }

    /// Removes an address; returns whether anything changed.
    pub fn remove_address(&mut self, index: u32, addr: IpAddr, len: u8) -> bool {
        let Some(list) = self.addresses.get_mut(&index) else { return false };
        let before = list.len();
        list.retain(|a| (a.addr, a.len) != (addr, len));
        let changed = list.len() != before;
        if list.is_empty() {
            self.addresses.remove(&index);
        }
        changed
    }

    /// Returns the source address of an error sent on `index` towards `near` (a gateway, or the first address of a
    /// glean prefix): the address whose subnet contains it, else the interface's first, else any other interface's,
    /// like the kernel's inet_select_addr. Primary addresses precede secondary ones; the scope is global unless the
    /// interface has no other.
    pub fn source(&self, index: u32, near: Option<IpAddr>, of: fn(IpAddr) -> bool) -> Option<IpAddr> {
        let own = || self.addresses.get(&index).into_iter().flatten().filter(|a| of(a.addr));
        let global = || own().filter(|a| !a.secondary && !a.link_scope);
        near.and_then(|n| {
            global().find(|a| Prefix::containing(a.addr, a.len).is_some_and(|subnet| subnet.covers(n.into())))
        })
        .or_else(|| global().next())
        .or_else(|| self.addresses.values().flatten().find(|a| of(a.addr) && !a.secondary && !a.link_scope))
        .or_else(|| own().next())
        .map(|a| a.addr)
    }

    /// Returns the address that the kernel gives to packets that it masquerades out of `index`, if the interface has a
    /// single global IPv4 address: among several, their order in the kernel decides (inet_select_addr), which the
    /// kernel does not report.
    pub fn masquerade4(&self, index: u32) -> Option<Ipv4Addr> {
        let own = self.addresses.get(&index).into_iter().flatten().filter(|a| !a.link_scope);
        let mut own = own.filter_map(|a| match a.addr {
            IpAddr::V4(addr) => Some(addr),
            IpAddr::V6(_) => None,
        });
        own.next().filter(|_| own.next().is_none())
    }

    pub fn source4(&self, index: u32, near: Option<IpAddr>) -> Option<Ipv4Addr> {
        match self.source(index, near, |a| a.is_ipv4()) {
            Some(IpAddr::V4(a)) => Some(a),
            _ => None,
        }
    }

    pub fn source6(&self, index: u32, near: Option<IpAddr>) -> Option<Ipv6Addr> {
        match self.source(index, near, |a| a.is_ipv6()) {
            Some(IpAddr::V6(a)) => Some(a),
            _ => None,
        }
    }

    /// Returns the routing properties of a port.
    pub fn info(&self, bound: &Bound, followed: &Followed) -> PortInfo {
        self.info_of(bound, (self.number_of(bound.spec.id), self.interface_of(bound)), followed)
    }

    /// Returns the routing properties of an interface that are the same on any port.
    fn own_info(&self, (number, index): (PortId, u32), followed: &Followed) -> PortInfo {
        let info = PortInfo {
            index: MasterSpec::vlan_of_index(index).map_or(index, |_| 0),
            mac: self.get(index).and_then(|l| l.mac).unwrap_or_default(),
            source4: self.source4(index, None),
            source6: self.source6(index, None),
            source_check: self.source_check(number),
            ..PortInfo::default()
        };
        self.with_rules(info, number, followed)
    }

    /// Returns the routing properties of the interface with this number and kernel index on a port: the port's own, or
    /// a bond's or bridge's.
    fn info_of(&self, bound: &Bound, (number, index): (PortId, u32), followed: &Followed) -> PortInfo {
        let vlans = self.vlans.values().filter(|(vlan, _)| [bound.spec.id, number].contains(&vlan.port));
        let vlans = vlans.filter(|(vlan, _)| self.port_of(vlan.index) == Some(vlan.id));
        let (macvlans, vlans): (Vec<_>, Vec<_>) = vlans.partition(|(vlan, _)| vlan.tag == UNTAGGED);
        let vlans = vlans.iter().map(|(vlan, _)| (vlan.tag, vlan.id));
        let tagged = self.masters_of(bound.spec.id).filter(|master| master.entry(bound.spec.id).is_some());
        let mut vlans: Vec<_> = vlans.chain(tagged.map(|master| (master.tag, master.id))).collect();
        vlans.sort_unstable();
        let mac = |vlan: &VlanSpec| Some((self.get(vlan.index)?.mac?, vlan.id));
        let macvlans = macvlans.iter().filter_map(|(vlan, _)| mac(vlan)).collect();
        PortInfo {
            partial_checksums: bound.spec.partial_checksums,
            reception: if bound.bridged { Reception::Bridged } else { bound.spec.reception },
            master: Some(number).filter(|number| *number != bound.spec.id),
            vlans,
            macvlans,
            ..self.own_info((number, index), followed)
        }
    }

    fn with_rules(&self, info: PortInfo, id: PortId, followed: &Followed) -> PortInfo {
        let none = Rules::default();
        let rules = self.rules.get(&id).unwrap_or(&none);
        let of = |rules: &[Rule]| rules.iter().map(|rule| followed.step4(rule)).collect();
        PortInfo {
            rules4: of(&rules.v4),
            back4: of(&rules.back4),
            rules6: rules.v6.iter().map(|rule| followed.step6(rule)).collect(),
            ..info
        }
    }

    /// Returns the policy routing rules of a port or VLAN; `None` if there are none.
    pub fn rules_of(&self, id: PortId) -> Option<&Rules> {
        self.rules.get(&id)
    }

    /// Sets the policy routing rules of all ports and VLANs; returns whether any changed.
    pub fn set_rules(&mut self, rules: &BTreeMap<PortId, Rules>) -> bool {
        let changed = self.rules != *rules;
        self.rules.clone_from(rules);
        changed
    }

    /// Returns the source validation that the kernel applies on a port, VLAN, bond or bridge: never loose if it has no
    /// IPv4 address (fib_validate_source).
    pub fn source_check(&self, id: PortId) -> SourceCheck {
        let port = self.ports.get(usize::from(id.0)).map(|bound| (self.interface_of(bound), bound.source_check));
        let vlan = || self.vlans.values().find(|(vlan, _)| vlan.id == id).map(|(vlan, check)| (vlan.index, *check));
        let master = || self.masters.values().find(|(of, _)| of.id == id).map(|(of, check)| (of.index, *check));
        let tunnel = || self.tunnels.values().find(|(of, _)| of.id == id).map(|(of, check)| (of.index, *check));
        match port.or_else(vlan).or_else(master).or_else(tunnel) {
            Some((index, SourceCheck::Loose)) if !self.addresses(index).any(|a| a.addr.is_ipv4()) => {
                SourceCheck::Strict
            }
            of => of.map_or(SourceCheck::Off, |(_, check)| check),
        }
    }

    /// Sets the source validation of all ports, VLANs, bonds and bridges; returns whether any changed.
    pub fn check_sources(&mut self, checks: &BTreeMap<PortId, SourceCheck>) -> bool {
        let ports = self.ports.iter_mut().map(|bound| (bound.spec.id, &mut bound.source_check));
        let vlans = self.vlans.values_mut().map(|(vlan, check)| (vlan.id, check));
        let masters = self.masters.values_mut().map(|(master, check)| (master.id, check));
        let tunnels = self.tunnels.values_mut().map(|(spec, check)| (spec.id, check));
        let mut changed = false;
        for (id, check) in ports.chain(vlans).chain(masters).chain(tunnels) {
            let new = checks.get(&id).copied().unwrap_or_default();
            changed |= std::mem::replace(check, new) != new;
        }
        changed
    }

    /// Returns a filter of the IPv4 addresses of all interfaces.
    pub fn own4(&self) -> Own4 {
        let all = self.addresses.values().flatten();
        all.fold(Own4::default(), |own, address| match address.addr {
            IpAddr::V4(addr) => own.with(addr),
            IpAddr::V6(_) => own,
        })
    }

    /// Returns the addresses of an interface with the prefix lengths of their subnets.
    pub fn addresses(&self, index: u32) -> impl Iterator<Item = Prefix> {
        self.addresses.get(&index).into_iter().flatten().map(|a| Prefix { addr: a.addr, len: a.len })
    }

    /// Returns all links, addresses and stations as changes.
    pub fn known(&self) -> impl Iterator<Item = Change> {
        let links = self.links.values().cloned().map(Change::Link);
        let station = |(&(bridge, vlan, mac), &behind): (&(u32, u32, Mac), &Behind)| {
            Change::Station(Station { bridge, vlan, mac, behind })
        };
        let addresses = self.addresses.values().flatten().cloned().map(Change::Address);
        links.chain(addresses).chain(self.stations.iter().map(station))
    }

    /// Returns all ports for display, by number.
    pub fn views(&self) -> impl Iterator<Item = PortView> {
        self.ports.iter().map(|bound| {
            let id = bound.spec.id;
            let interface = self.interface_of(bound);
            // A VLAN without an interface has no address.
            let shown = MasterSpec::vlan_of_index(interface).map_or(interface, |_| bound.index());
            PortView {
                number: self.number_of(id),
                mac: self.get(shown).and_then(|link| link.mac),
                addresses: self.addresses(interface).collect(),
                ..self.view(id, bound.spec.name.clone(), bound.index())
            }
        })
    }

    /// Returns all VLANs whose ports are open, with those ports, by kernel index.
    pub fn vlan_views(&self) -> impl Iterator<Item = (PortView, &VlanSpec)> {
        let open = self.vlans.values().filter(|(vlan, _)| self.port_of(vlan.index) == Some(vlan.id));
        open.map(|(vlan, _)| {
            let name = self.get(vlan.index).map(|link| link.name.clone()).unwrap_or_default();
            (self.view(vlan.id, name, vlan.index), vlan)
        })
    }

    pub fn view(&self, id: PortId, name: String, index: u32) -> PortView {
        let link = self.get(index);
        PortView {
            id,
            number: id,
            name,
            index,
            dev: link.map(|l| l.name.clone()),
            mac: link.and_then(|l| l.mac),
            mtu: link.map(|l| l.mtu),
            running: self.running(index),
            addresses: self.addresses(index).collect(),
        }
    }
}
