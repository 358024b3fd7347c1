//! Relations between interfaces, which may leave all packets of a port to the kernel.
//!
//! Packets of a port that belongs to a bond or bridge are packets of the bond or bridge, whose own rules decide which
//! of them are routed; packets of a VRF's member are looked up in the VRF's table. Some interfaces above a port take
//! packets to the port's own MAC address: an ipvlan shares it, a macvlan may. An interface of an unknown kind above a
//! port may do anything.

mod tunnels;

pub use tunnels::Through;

use bywash_config::RouterConfig;
use bywash_engine::PortId;
use bywash_fib::model::{self, Behind, Bond, Bridge, Change, Link, Mac, Member, Station};
use bywash_router::bond::XmitHash;
use bywash_router::control::MasterSpec;
use bywash_router::vlan::{UNTAGGED, tag};
use bywash_wire::ethernet::ethertype;
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of upper interfaces that take only packets from the kernel's UDP and IP input. A MACsec interface is none of
/// them: without strict validation it also takes untagged frames, and with offload the NIC has removed the tags.
const HARMLESS: [&str; 15] = [
    "vxlan",
    "geneve",
    "bareudp",
    "gre",
    "gretap",
    "erspan",
    "ip6gre",
    "ip6gretap",
    "ip6erspan",
    "ipip",
    "ip6tnl",
    "sit",
    "vti",
    "vti6",
    "xfrm",
];

/// Modes of a macvlan in which it takes only packets to its own MAC address: private, VEPA and bridge (`enum
/// macvlan_mode`, linux/if_link.h).
const OWN_ADDRESS: [u32; 3] = [1, 2, 4];

/// Modes of an ipvlan in which it takes only packets to its own addresses, before the interface below it gets them: L2
/// and L3 (`enum ipvlan_mode`).
const OWN_ADDRESSES: [u16; 2] = [0, 1];

/// Modes of a macvlan in which it sends everything by the interface below it: private, VEPA. In mode bridge, packets to
/// another macvlan on that interface go there directly, even into another network namespace.
const SENDS_BELOW: [u32; 2] = [1, 2];

/// Names of a bond's modes, by number (BOND_MODE_*, linux/if_bonding.h).
const MODES: [&str; 7] =
    ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];
/// Modes of a bond in which it sends by the active members, and receives by these alone: active-backup, balance-xor and
/// 802.3ad.
const FOLLOWED: [u8; 3] = [Bond::ACTIVE_BACKUP, 2, 4];

/// Known interfaces, and how they are stacked.
#[derive(Default)]
pub struct Relations {
    /// Interfaces by kernel index.
    links: BTreeMap<u32, Link>,
    /// Interfaces above others: both kernel indices, the lower one first.
    above: BTreeSet<(u32, u32)>,
    /// Interfaces in other network namespaces that are above others, or are tunnels, of this one. Their index is 0.
    elsewhere: Vec<Link>,
    /// Kernel indices of the ports' interfaces.
    ports: BTreeSet<u32>,
    /// Set if packets of bridges are left to the kernel; the others likewise.
    left_bridges: bool,
    /// Members of bonds and bridges whose packets are not forwarded as those of the bond or bridge, even if they could
    /// be.
    unserved: BTreeSet<u32>,
    /// Bridges' own MAC addresses, with the bridges' kernel indices and the VLANs.
    own: BTreeSet<(u32, u32, Mac)>,
    left_vlans: bool,
    left_macvlans: bool,
    left_tunnels: bool,
}

/// Properties by which packets of an interface above a port are distinguished from the port's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperPackets {
    /// Their tag; [`UNTAGGED`] for packets of a macvlan, which are addressed to its own MAC address.
    pub tag: [u8; 4],
    /// Set if packets routed to the interface leave by the port.
    pub sends: bool,
}

/// An interface whose packets come and leave by a member of a bridge: the bridge's own or, if the bridge filters VLANs,
/// a VLAN interface on it, or a VLAN without an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Kernel index of the interface, or [`MasterSpec::index_of_vlan`].
    pub index: u32,
    /// Kernel index of the bridge.
    pub bridge: u32,
    /// VLAN of its frames; 0 if the bridge does not filter VLANs.
    pub vlan: u16,
    /// Tag of that VLAN.
    pub tag: [u8; 4],
    /// Set if its frames have the tag on this member.
    pub tagged: bool,
}

impl Relations {
    /// Applies changes. Returns whether they may have changed the result of [`Relations::left`].
    pub fn note(&mut self, changes: &[Change]) -> bool {
        let above =
            |link: &Link| (link.parent, link.macvlan, link.ipvlan, link.vlan, link.master, link.vrf, link.tunnel);
        // A bond or a member of one that takes no packets is left to the kernel.
        let bonded = |link: &Link| {
            let either = link.bond.is_some() || link.bridge.is_some() || link.member.is_some();
            (link.bond, link.bridge, link.member, either.then(|| (link.carrier, link.mtu, link.vlans.clone())))
        };
        let of = |link: &Link| (link.name.clone(), link.kind.clone(), link.mac, link.up, above(link), bonded(link));
        let mut news = false;
        for change in changes {
            match change {
                Change::Link(link) => {
                    let before = self.links.insert(link.index, link.clone());
                    self.stack(before.as_ref(), Some(link));
                    news |= before.is_none_or(|before| of(&before) != of(link));
                }
                Change::LinkGone { index } => {
                    self.own.retain(|(bridge, ..)| bridge != index);
                    let before = self.links.remove(index);
                    self.stack(before.as_ref(), None);
                    news |= before.is_some();
                }
                Change::Elsewhere { links } => {
                    let of = |link: &Link| {
                        let name = format!("{} of another network namespace", link.name);
                        Link { index: 0, name, ..link.clone() }
                    };
                    self.elsewhere = links.iter().map(of).collect();
                    news = true;
                }
                Change::Station(Station { bridge, vlan, mac, behind }) if *behind == Behind::Member(*bridge) => {
                    news |= self.own.insert((*bridge, *vlan, *mac));
                }
                Change::Station(Station { bridge, vlan, mac, .. }) | Change::StationGone { bridge, vlan, mac } => {
                    news |= self.own.remove(&(*bridge, *vlan, *mac));
                }
                _ => {}
            }
        }
        news
    }

    /// Records what an interface is above, and no longer is.
    fn stack(&mut self, before: Option<&Link>, now: Option<&Link>) {
        let pair = |link: &Link| Some((link.parent?, link.index));
        before.and_then(pair).map(|pair| self.above.remove(&pair));
        self.above.extend(now.and_then(pair));
    }

    /// Returns all interfaces that may take packets, with those in other network namespaces.
    fn all(&self) -> impl Iterator<Item = &Link> {
        self.links.values().chain(&self.elsewhere)
    }

    /// Returns the interfaces directly above this one, with those in other network namespaces.
    fn all_above(&self, index: u32) -> impl Iterator<Item = &Link> {
        self.above(index).chain(self.elsewhere.iter().filter(move |link| link.parent == Some(index)))
    }

    /// Returns the interfaces directly above this one.
    fn above(&self, index: u32) -> impl Iterator<Item = &Link> {
        self.above.range((index, 0)..=(index, u32::MAX)).filter_map(|(_, above)| self.links.get(above))
    }

    /// Sets the interfaces of the ports, by kernel index.
    pub fn set_ports(&mut self, ports: BTreeSet<u32>) {
        self.ports = ports;
    }

    /// Returns an interface as the kernel last reported it.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// Returns the reason why a router leaves this interface to the kernel; `None` if it need not.
    pub fn left(&self, index: u32) -> Option<String> {
        let own = self.links.get(&index)?;
        let upper = match self.upper(index).or_else(|| self.member(index).map(Err)).transpose() {
            Ok(upper) => upper,
            Err(why) => return Some(why),
        };
        if own.mac.is_none() {
            // The MAC address is not known then, and with it the frames that are to this host.
            return Some("it resolves no neighbours (IFF_NOARP, `arp off`)".into());
        }
        // The kernel looks for a VLAN of the member before it gives the frame to the bond or bridge.
        let above = |link: &Link| match (link.parent, upper) {
            (Some(parent), _) if parent == index => self.takes(link, own) || (upper.is_some() && link.kind == "vlan"),
            (Some(parent), Some(upper)) if parent == upper.index => self.takes(link, upper),
            // An HSR interface names its members only in attributes of its own (IFLA_HSR_SLAVE1), which are not read.
            _ => link.kind == "hsr" && link.index != index,
        };
        let is = |link: &Link| if link.parent.is_some() { "is" } else { "may be" };
        self.all().find(|link| above(link)).map(|link| format!("{} {} above it", named(link), is(link)))
    }

    /// Returns the reason why a router leaves this interface to the kernel where programs do not see the tags of
    /// received frames, and so would treat a frame of a VLAN as untagged.
    pub fn left_without_tags(&self, index: u32) -> Option<String> {
        let upper = self.upper(index).and_then(Result::ok);
        if let Some(bridge) = upper.filter(|upper| upper.bridge.is_some_and(|of| of.filters)) {
            return Some(format!("{} filters VLANs: programs do not see the tags of its packets", named(bridge)));
        }
        let upper = upper.map_or(index, |upper| upper.index);
        let tags = |link: &&Link| link.kind == "vlan" && [Some(index), Some(upper)].contains(&link.parent);
        let link = self.all().find(tags)?;
        Some(format!("{} is above it: programs do not see the tags of its packets", named(link)))
    }

    /// Returns the VLAN interfaces and macvlans above this one, or above the bond or bridge whose packets come and
    /// leave by it. Each comes with the properties that distinguish its packets or, if they cannot be forwarded, with
    /// the reason. No packets of VLAN interfaces on a bridge that filters VLANs are forwarded like these: they may be
    /// forwarded otherwise ([`Relations::joined`]).
    pub fn uppers(&self, index: u32) -> impl Iterator<Item = (&Link, Result<UpperPackets, String>)> {
        let parent = self.upper(index).and_then(Result::ok).map_or(index, |upper| upper.index);
        let followed = |link: &Link| match link.kind.as_str() {
            "vlan" => !self.left_vlans,
            "macvlan" => !self.left_macvlans,
            _ => false,
        };
        let packets = |link| {
            self.upper_packets(link).and_then(|packets| match self.filter(link) {
                Some(_) => Err("no port is in its VLAN".into()),
                None => Ok(packets),
            })
        };
        self.above(parent).filter(move |link| followed(link)).map(move |link| (link, packets(link)))
    }

    /// Returns the bridge below an interface, if it filters VLANs and is not a port itself.
    fn filter(&self, link: &Link) -> Option<(&Link, Bridge)> {
        let below = self.links.get(&link.parent?).filter(|below| !self.ports.contains(&below.index))?;
        Some((below, below.bridge.filter(|of| of.filters)?))
    }

    /// Returns the interfaces whose packets come and leave by this member of a bridge; none if it is not one, or is
    /// left to the kernel.
    pub fn joined(&self, index: u32) -> Vec<Joined> {
        match (self.links.get(&index), self.bridge(index)) {
            (Some(own), Some(Ok(bridge))) => self.joins(own, bridge).collect(),
            _ => vec![],
        }
    }

    /// Returns the interfaces whose packets come and leave by a member of a bridge, as far as the VLANs decide.
    fn joins<'a>(&'a self, member: &'a Link, bridge: &'a Link) -> impl Iterator<Item = Joined> {
        let (of, own) = (bridge.bridge.unwrap_or_default(), (bridge.index, bridge.vlans.untagged));
        // Without such an entry, the bridge sends packets to its own address to a member, or to all
        // (br_handle_frame_finish).
        let is_own = move |vlan| bridge.mac.is_some_and(|mac| self.own.contains(&(bridge.index, u32::from(vlan), mac)));
        let in_vlan = move |(index, vlan): (u32, u16)| {
            let tagged = if of.filters { member.vlans.form(vlan)? } else { false };
            let tag = if of.filters { tag(of.protocol, vlan) } else { UNTAGGED };
            Some(Joined { index, bridge: bridge.index, vlan, tag, tagged })
        };
        let joined = move |(index, vlan)| in_vlan((index, vlan)).filter(|_| is_own(vlan));
        let own = if of.filters { Some(own).filter(|(_, vlan)| *vlan != 0) } else { Some((bridge.index, 0)) };
        let on = |link: &&Link| link.kind == "vlan" && !self.ports.contains(&link.index);
        let above = (of.filters && !self.left_vlans).then(|| self.above(bridge.index).filter(on));
        let vlan = move |link: &Link| joined((link.index, link.vlan?.id)).filter(|_| self.upper_packets(link).is_ok());
        let routed = own.into_iter().filter_map(joined).chain(above.into_iter().flatten().filter_map(vlan));
        // An interface that is not followed may make the bridge receive more than it forwards. One in another network
        // namespace may not have been found yet: then only the VLANs of the bridge itself indicate it.
        let on_bridge = |link: &Link| link.vlan.filter(|_| link.kind == "vlan").map(|vlan| vlan.id);
        let taken: BTreeSet<u16> = self.all_above(bridge.index).filter_map(on_bridge).collect();
        let known = of.filters && !bridge.vlans.stale;
        let free = move |vlan: &u16| known && !taken.contains(vlan) && bridge.vlans.form(*vlan).is_none();
        let without = move |vlan| in_vlan((MasterSpec::index_of_vlan(bridge.index, vlan)?, vlan));
        routed.chain(member.vlans.all().filter(free).filter_map(without))
    }

    /// Returns the bond or bridge that an interface is a member of, if packets can be forwarded for it on this member,
    /// or else the reason why they are left to the kernel; `None` if the interface is not a member of one.
    fn upper(&self, index: u32) -> Option<Result<&Link, String>> {
        self.bond(index).or_else(|| self.bridge(index))
    }

    /// Returns the bridge that an interface is a member of, if packets can be forwarded for the bridge on this member,
    /// or else the reason why they are left to the kernel; `None` if the interface is not a member of one.
    pub fn bridge(&self, index: u32) -> Option<Result<&Link, String>> {
        let unserved = |bridge: &Link| match bridge.bridge.is_some_and(|of| of.filters) {
            true => {
                "it is in none of the VLANs for which Bywash forwards, there are too many interfaces, or this port has no \
                 forwarding program"
            }
            false => "there are too many interfaces, or this port has no forwarding program",
        };
        self.bridgeable(index).map(|bridge| match bridge {
            Ok(bridge) if self.unserved.contains(&index) => {
                Err(format!("it is a member of {}, but {}", named(bridge), unserved(bridge)))
            }
            bridge => bridge,
        })
    }

    /// Like [`Relations::bridge`], whether or not packets are forwarded for the bridge on this member
    /// ([`Relations::serve`]).
    pub fn bridgeable(&self, index: u32) -> Option<Result<&Link, String>> {
        let own = self.links.get(&index)?;
        let bridge = self.links.get(&own.master?).filter(|master| master.kind == "bridge")?;
        let reason = |why| format!("it is a member of {}, but {why}", named(bridge));
        Some(self.bridges(own, bridge).map(|()| bridge).map_err(reason))
    }

    /// Checks whether packets of a bridge that come and leave by one of its members can be forwarded; errors with the
    /// reason if not.
    fn bridges(&self, member: &Link, bridge: &Link) -> Result<(), &'static str> {
        if self.left_bridges {
            return Err("bridges are left to the kernel, as configured");
        }
        let Some(of) = bridge.bridge.filter(|of| of.plain) else {
            return Err(
                "the bridge learns no addresses, or has an XDP program, a spanning tree for each VLAN or unknown properties",
            );
        };
        if self.ports.contains(&bridge.index) {
            return Err("the bridge is a port itself");
        }
        if self.member(bridge.index).is_some() {
            return Err("the bridge is itself a member of another interface");
        }
        if !bridge.up {
            return Err("the bridge is down");
        }
        if !member.up || !member.member.is_some_and(|state| state.active) {
            return Err("it is down, or not in state forwarding");
        }
        // The FDB of a bridge has the sources of a port's frames only if the bridge learns there. A VXLAN needs that
        // only where it learns ([`Through::joined`]).
        let learns = |state: Member| state.learns || !self.ports.contains(&member.index);
        if !member.member.is_some_and(|state| state.plain && learns(state)) {
            return Err("it is locked there, does not learn addresses, or has unknown properties");
        }
        if member.member.is_some_and(|state| state.tunnels) && !tunnels::has_networks(member) {
            return Err("vlan_tunnel is on, although it is not a VXLAN with several networks");
        }
        if bridge.mac.is_none_or(|mac| mac[0] & 1 != 0) || member.mtu < bridge.mtu {
            return Err("the bridge's MTU is larger than its own, or the bridge has no valid MAC address");
        }
        match self.joins(member, bridge).next().is_none() {
            true if of.filters => Err("it is in none of the VLANs that Bywash follows"),
            true => Err("the bridge's FDB has no local entry for the bridge's own MAC address"),
            false => Ok(()),
        }
    }

    /// Sets the members of bonds and bridges, by kernel index, whose packets are forwarded as the bonds' or bridges'.
    /// All other ports on members are left to the kernel: as ordinary ports, they would bypass the policies of their
    /// bonds and bridges.
    pub fn serve(&mut self, served: &BTreeSet<u32>) {
        let member = |index| self.bridgeable(index).is_some() || self.bond_above(index).is_some();
        let port = |link: &Link| link.tunnel.is_none() || self.ports.contains(&link.index);
        let members = |link: &&Link| member(link.index) && !served.contains(&link.index) && port(link);
        self.unserved = self.links.values().filter(members).map(|link| link.index).collect();
    }

    /// Sets which kinds of interfaces are left to the kernel, as configured.
    pub fn configure(&mut self, config: &RouterConfig) {
        self.left_bridges = !config.bridges;
        (self.left_vlans, self.left_macvlans, self.left_tunnels) = (!config.vlans, !config.macvlans, !config.tunnels);
    }

    /// Returns the bond or team that an interface is a member of, if its packets come and leave by this member, or else
    /// the reason why they are left to the kernel; `None` if the interface is not a member of one.
    pub fn bond(&self, index: u32) -> Option<Result<&Link, String>> {
        let (own, bond) = (self.links.get(&index)?, self.bond_above(index)?);
        let reason = |why| format!("it is a member of {}, but {why}", named(bond));
        let unserved = "there are too many interfaces, or an active member is left to the kernel";
        let carries = match self.carries(own, bond) {
            Ok(()) if self.unserved.contains(&index) => Err(unserved.into()),
            carries => carries,
        };
        Some(carries.map(|()| bond).map_err(reason))
    }

    /// Returns the members that a bond sends by.
    fn senders(&self, bond: &Link) -> impl Iterator<Item = &Link> {
        let (of, index) = (bond.bond, bond.index);
        let sends = move |link: &&Link| match of {
            Some(of) if of.mode == Bond::ACTIVE_BACKUP => of.active == Some(link.index),
            _ => link.member.is_some_and(|state| state.active),
        };
        self.links.values().filter(move |link| link.master == Some(index)).filter(sends)
    }

    /// Returns the ports on a bond's members in the order in which the bond's hash counts them, if these are all the
    /// members that it sends by; otherwise none. `names` returns the names of a bond's members in that order.
    pub fn in_order(
        &self,
        bond: u32,
        members: &[(PortId, u32)],
        names: impl FnOnce(&str) -> std::io::Result<Vec<String>>,
    ) -> Vec<(PortId, u32)> {
        let Some(link) = self.links.get(&bond) else { return vec![] };
        let senders: BTreeSet<u32> = self.senders(link).map(|link| link.index).collect();
        if members.iter().map(|(_, index)| *index).collect::<BTreeSet<u32>>() != senders {
            return vec![];
        }
        if members.len() < 2 {
            return members.to_vec();
        }
        let names = names(&link.name).unwrap_or_else(|e| {
            tracing::warn!("{}: left to the kernel: cannot read its members: {e}", link.name);
            vec![]
        });
        let named = |name: &String| {
            members.iter().find(|(_, index)| self.links.get(index).is_some_and(|link| link.name == *name)).copied()
        };
        let ordered: Vec<_> = names.iter().filter_map(named).collect();
        if ordered.len() == members.len() { ordered } else { vec![] }
    }

    /// Returns the bond or team that an interface is a member of.
    pub fn bond_above(&self, index: u32) -> Option<&Link> {
        let master = self.links.get(&index)?.master?;
        self.links.get(&master).filter(|master| ["bond", "team"].contains(&master.kind.as_str()))
    }

    /// Checks whether packets of a bond that come and leave by one of its members can be forwarded; errors with the
    /// reason if not.
    fn carries(&self, member: &Link, bond: &Link) -> Result<(), String> {
        let Some(of) = bond.bond.filter(|of| of.plain) else {
            return Err(format!("the {} has an ARP monitor, an XDP program, or unknown properties", bond.kind));
        };
        if !FOLLOWED.contains(&of.mode) && bond.kind == "team" {
            return Err("the team's mode is not activebackup, or its options are unknown".into());
        }
        if !FOLLOWED.contains(&of.mode) {
            let mode = MODES.get(usize::from(of.mode)).unwrap_or(&"unknown");
            return Err(format!("mode {mode} is not followed"));
        }
        if self.ports.contains(&bond.index) {
            return Err(format!("the {} is a port itself", bond.kind));
        }
        if self.member(bond.index).is_some() {
            return Err(format!("the {} is itself a member of another interface", bond.kind));
        }
        if !bond.up {
            return Err(format!("the {} is down", bond.kind));
        }
        if !member.member.is_some_and(|state| state.active && member.up && member.carrier) {
            return Err("it is not an active member".into());
        }
        let members = || self.links.values().filter(|link| link.master == Some(bond.index));
        if members().any(|link| link.member.is_none_or(|state| !state.plain)) {
            return Err("a member has a queue_id or unknown properties".into());
        }
        if of.mode == Bond::ACTIVE_BACKUP && of.active != Some(member.index) {
            return Err("another member is active".into());
        }
        if self.senders(bond).nth(1).is_some() && XmitHash::of(of.xmit_hash).is_none() {
            return Err("several members are active, and their xmit_hash_policy is not followed".into());
        }
        for link in self.senders(bond) {
            let other = link.index != member.index;
            if other && !self.ports.contains(&link.index) {
                return Err(format!("the active member {} is not a port: name it, too", link.name));
            }
            if other && (!link.up || !link.carrier) {
                return Err(format!("the active member {} has no carrier", link.name));
            }
            if link.mac.is_none() || (link.mac, link.mtu) != (bond.mac, bond.mtu) {
                return Err(format!("the {}'s MAC address or MTU differs from that of an active member", bond.kind));
            }
        }
        Ok(())
    }

    /// Returns the properties of an upper interface's packets, or the reason why they are left to the kernel.
    fn upper_packets(&self, link: &Link) -> Result<UpperPackets, String> {
        if !link.up {
            return Err("it is down".into());
        }
        if let Some(member) = self.member(link.index) {
            return Err(member);
        }
        if let Some(upper) = self.all_above(link.index).find(|upper| upper.kind == "vlan" || self.takes(upper, link)) {
            return Err(format!("{} is above it", named(upper)));
        }
        if link.mac.is_none_or(|mac| mac[0] & 1 != 0) {
            return Err("its address is not known".into());
        }
        let below = link.parent.and_then(|parent| self.links.get(&parent));
        if let Some((bridge, of)) = self.filter(link).filter(|_| link.kind == "vlan") {
            if link.vlan.is_none_or(|vlan| vlan.protocol != of.protocol || !bridge.vlans.tags(vlan.id)) {
                return Err("the bridge below it, which filters VLANs, is not a tagged member of its VLAN".into());
            }
            if link.mac != bridge.mac {
                return Err("its address differs from that of the bridge below it, which filters VLANs".into());
            }
        }
        if link.kind == "macvlan" {
            if below.is_some_and(|below| below.kind == "bridge") {
                return Err("it is above a bridge".into());
            }
            return match link.macvlan {
                Some(of) if !of.plain => Err("it has an XDP program, or properties that are not known".into()),
                Some(of) if OWN_ADDRESS.contains(&of.mode) && below.is_some_and(|below| below.mac != link.mac) => {
                    Ok(UpperPackets { tag: UNTAGGED, sends: SENDS_BELOW.contains(&of.mode) })
                }
                _ => Err("it takes packets to addresses other than one of its own".into()),
            };
        }
        let known = |protocol, id| [ethertype::VLAN, ethertype::QINQ].contains(&protocol) && (1..0xfff).contains(&id);
        match link.vlan {
            Some(vlan) if !known(vlan.protocol, vlan.id) => Err("its tag is not known".into()),
            Some(vlan) if vlan.plain => Ok(UpperPackets { tag: tag(vlan.protocol, vlan.id), sends: true }),
            Some(_) => Err("it has flags other than reorder_hdr, QoS maps, or an XDP program".into()),
            None => Err("its tag is not known".into()),
        }
    }

    /// Returns whether `link`, above `own`, takes packets that would otherwise be forwarded as `own`'s.
    fn takes(&self, link: &Link, own: &Link) -> bool {
        match link.kind.as_str() {
            "vlan" => false,
            "macvlan" | "macvtap" => {
                link.mac == own.mac || link.macvlan.is_none_or(|of| !OWN_ADDRESS.contains(&of.mode))
            }
            // The addresses of an ipvlan are the host's, with local routes, unless it is in another network namespace.
            // In a VRF, packets are looked up in another table than these routes are in.
            "ipvlan" | "ipvtap" => {
                let in_vrf = |index: u32| model::vrf(&self.links, index).is_some();
                let alone = link.index != 0 && link.master.is_none() && !in_vrf(own.index);
                !alone || link.ipvlan.is_none_or(|mode| !OWN_ADDRESSES.contains(&mode))
            }
            kind => !HARMLESS.contains(&kind),
        }
    }

    /// Returns which interface this one is a member of, worded as a reason; `None` if it is not a member, or is one of
    /// a VRF. A bond's member may have all of the bond's packets ([`Relations::bond`]), and a bridge's member its own
    /// share ([`Relations::bridge`]).
    pub fn member(&self, index: u32) -> Option<String> {
        let master = self.links.get(&index)?.master?;
        if model::vrf(&self.links, index).is_some() {
            return None;
        }
        let master = self.links.get(&master).map_or_else(|| "another interface".into(), named);
        Some(format!("it is a member of {master}"))
    }
}

/// Returns kind and name of an interface, such as `ipvlan interface iv0`.
fn named(link: &Link) -> String {
    format!("{}{}interface {}", link.kind, if link.kind.is_empty() { "" } else { " " }, link.name)
}

#[cfg(test)]
mod tests;
