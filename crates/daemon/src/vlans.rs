//! VLANs, macvlans, bonds, bridges and tunnels: the numbers of those for which packets are forwarded, and a list of the
//! others.

use crate::relations::{Joined, Through, UpperPackets};
use bywash_engine::PortId;
use bywash_fib::model::Link;
use bywash_router::control::{Bridged, Egress, MasterSpec, TunnelSpec, VlanSpec};
use bywash_router::vlan::{FIRST, VLANS, tag};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A VLAN interface or macvlan on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Kernel index of the interface.
    pub index: u32,
    /// Properties by which its packets are distinguished from the port's own.
    pub packets: UpperPackets,
    /// Port that carries it, and kernel index of the interface below it: the port's own, or that of the port's bond or
    /// bridge.
    pub port: PortId,
    pub parent: u32,
}

/// A bond or bridge that ports belong to, or a VLAN of a bridge that filters VLANs ([`MasterSpec`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Ports that are its members, with their kernel indices.
    pub members: Vec<(PortId, u32)>,
    /// Ports on which its frames have this tag.
    pub tagged: Vec<PortId>,
    pub tag: [u8; 4],
    /// Indices of the VXLANs that are members of the bridge ([`Through::index`]).
    pub vxlans: Vec<u32>,
    pub egress: Egress,
}

impl Master {
    pub fn new(tag: [u8; 4], egress: Egress) -> Self {
        Self { members: vec![], tagged: vec![], tag, vxlans: vec![], egress }
    }

    /// Returns how many numbers it needs.
    pub fn numbers(&self) -> usize {
        1 + self.tagged.len()
    }
}

/// Interfaces with numbers, whose packets are forwarded with those of ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uppers {
    /// Bonds and bridges.
    pub masters: Vec<MasterSpec>,
    /// VLANs and macvlans.
    pub vlans: Vec<VlanSpec>,
    /// Tunnels.
    pub tunnels: Vec<TunnelSpec>,
}

impl Uppers {
    /// Returns those of these interfaces that are not among these, by kernel index, each with its port if it has one.
    pub fn without(&self, vlans: &[Carried], tunnels: &[Through]) -> Vec<(u32, Option<PortId>)> {
        let is_vlan = |of: &&Carried| self.vlans.iter().any(|vlan| vlan.index == of.index);
        let is_tunnel = |of: &&Through| self.tunnels.iter().any(|tunnel| tunnel.index == of.index);
        let vlans = vlans.iter().filter(|of| !is_vlan(of)).map(|of| (of.index, Some(of.port)));
        vlans.chain(tunnels.iter().filter(|of| !is_tunnel(of)).map(|of| (of.index, None))).collect()
    }
}

/// Interface above ports, or tunnel, whose packets are left to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Kernel index.
    pub index: u32,
    /// Ports that it is above; empty for a tunnel.
    pub ports: Vec<PortId>,
    /// Kind of interface, as rtnetlink has it.
    pub kind: String,
    /// Tag of a VLAN.
    pub tag: Option<[u8; 4]>,
    /// Addresses of a tunnel: its own, and that of its other end.
    pub ends: Option<(IpAddr, IpAddr)>,
    /// Reason.
    pub why: String,
}

impl Left {
    pub fn new(link: &Link, why: String) -> Self {
        let tag = link.vlan.map(|vlan| tag(vlan.protocol, vlan.id));
        let ends = link.tunnel.map(|tunnel| (tunnel.local, tunnel.remote));
        Self { index: link.index, ports: vec![], kind: link.kind.clone(), tag, ends, why }
    }
}

/// Object with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A bond or bridge, by kernel index.
    Master(u32),
    /// A tunnel, by kernel index.
    Tunnel(u32),
    /// A VLAN or macvlan of a bond or bridge.
    OnMaster { index: u32, parent: u32, tag: [u8; 4] },
    /// A VLAN or macvlan of a port, or the entry on this port of a VLAN of a bond or bridge.
    OnPort { index: u32, parent: u32, port: PortId, tag: [u8; 4] },
}

/// Numbers of the interfaces that have one.
#[derive(Default)]
pub struct Numbers(BTreeMap<Key, PortId>);

impl Numbers {
    /// Assigns a number to each of these bonds and bridges, by kernel index, of these VLANs and macvlans, and of these
    /// tunnels, and takes back the numbers of all others. A bond, bridge or tunnel keeps its number,
    /// and so does a VLAN while it is on the same port or bond. None gets a number that was another's until now,
    /// because packets on their way may still refer to it. If there are not enough numbers, the last ones get none;
    /// VLANs without an interface are the last.
    pub fn assign(&mut self, masters: &BTreeMap<u32, Master>, vlans: &[Carried], tunnels: &[Through]) -> Uppers {
        let before = std::mem::take(&mut self.0);
        let mut taken = [false; VLANS];
        before.values().for_each(|id| taken[usize::from(id.0 - FIRST)] = true);
        let mut number = |key| {
            let free = || taken.iter().position(|taken| !taken).map(|at| PortId(FIRST + at as u16));
            let id = self.0.get(&key).or_else(|| before.get(&key)).copied().or_else(free)?;
            taken[usize::from(id.0 - FIRST)] = true;
            self.0.insert(key, id);
            Some(id)
        };
        let master = |(index, of): (&u32, &Master), number: &mut dyn FnMut(Key) -> Option<PortId>| {
            let (index, tag) = (*index, of.tag);
            let id = number(match of.egress {
                Egress::ToStation { bridge, .. } if bridge != index => Key::OnMaster { index, parent: bridge, tag },
                _ => Key::Master(index),
            })?;
            let mut members = of.members.clone();
            let mut tagged = vec![];
            for port in of.tagged.iter().copied() {
                match number(Key::OnPort { index, parent: index, port, tag }) {
                    Some(entry) => tagged.push((port, entry)),
                    // Without a number, its frames there are left to the kernel.
                    None => members.retain(|(member, _)| *member != port),
                }
            }
            Some(MasterSpec { id, index, members, tagged, tag, vxlans: of.vxlans.clone(), egress: of.egress })
        };
        let (others, interfaces): (Vec<_>, Vec<_>) =
            masters.iter().partition(|(index, _)| MasterSpec::vlan_of_index(**index).is_some());
        let mut specs: Vec<MasterSpec> = interfaces.into_iter().filter_map(|of| master(of, &mut number)).collect();
        let mut all: BTreeMap<(u32, PortId), VlanSpec> = BTreeMap::new();
        for Carried { index, packets: UpperPackets { tag, sends }, port, parent } in vlans.iter().copied() {
            let below = specs.iter().find(|spec| spec.index == parent).map(|spec| spec.id);
            let Some(entry) = number(Key::OnPort { index, parent, port, tag }) else { continue };
            let id = if below.is_some() { number(Key::OnMaster { index, parent, tag }) } else { Some(entry) };
            let Some(id) = id else { continue };
            let below = below.unwrap_or(port);
            let new = || VlanSpec { id, index, port: below, parent, entries: vec![], tag, sends };
            all.entry((index, below)).or_insert_with(new).entries.push((port, entry));
        }
        let tunnels = tunnels.iter().filter_map(|&Through { index, tunnel, joined }| {
            let id = number(Key::Tunnel(index))?;
            let bridge =
                joined.map(|(Joined { index, bridge, vlan, .. }, ageing)| Bridged { index, bridge, vlan, ageing });
            Some(TunnelSpec { id, index, tunnel, bridge })
        });
        let tunnels = tunnels.collect();
        specs.extend(others.into_iter().filter_map(|of| master(of, &mut number)));
        Uppers { masters: specs, vlans: all.into_values().collect(), tunnels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_router::bond::XmitHash;
    use bywash_router::vlan::UNTAGGED;

    fn carried(index: u32) -> Carried {
        let packets = UpperPackets { tag: [0x81, 0, 0, index as u8], sends: true };
        Carried { index, packets, port: PortId(0), parent: 1 }
    }

    fn bridge(members: &[(PortId, u32)]) -> Master {
        Master { members: members.to_vec(), ..Master::new(UNTAGGED, Egress::ToStation { bridge: 5, vlan: 0 }) }
    }

    #[test]
    fn a_number_rests_before_it_is_anothers() {
        let mut numbers = Numbers::default();
        let mut assign = |indices: &[u32]| -> Vec<(u32, u16)> {
            let vlans: Vec<Carried> = indices.iter().map(|index| carried(*index)).collect();
            numbers
                .assign(&BTreeMap::new(), &vlans, &[])
                .vlans
                .iter()
                .map(|vlan| (vlan.index, vlan.id.0 - FIRST))
                .collect()
        };
        assert_eq!(assign(&[5, 6]), [(5, 0), (6, 1)]);
        assert_eq!(assign(&[7, 6]), [(6, 1), (7, 2)]);
        assert_eq!(assign(&[6, 7, 8]), [(6, 1), (7, 2), (8, 0)]);
        let many: Vec<u32> = (100..100 + VLANS as u32).collect();
        assert_eq!(assign(&many).len(), VLANS - 3);
        assert_eq!(assign(&many).len(), VLANS);
        assert_eq!(assign(&[]), []);
    }

    #[test]
    fn bridges_and_vlans_have_numbers_of_their_own() {
        let mut numbers = Numbers::default();
        let members = vec![(PortId(0), 1), (PortId(1), 2)];
        let Uppers { masters: bridges, vlans, .. } =
            numbers.assign(&[(5, bridge(&members))].into(), &[carried(5)], &[]);
        assert_eq!((bridges[0].index, &bridges[0].members, bridges[0].id.0), (5, &members, FIRST));
        assert_eq!((vlans[0].id.0, &vlans[0].entries[..]), (FIRST + 1, &[(PortId(0), PortId(FIRST + 1))][..]));
        // With other members it is the same bridge.
        let both = [(5, bridge(&[(PortId(1), 2)])), (6, bridge(&[]))].into();
        let then = numbers.assign(&both, &[], &[]).masters;
        assert_eq!([then[0].id, then[1].id], [FIRST, FIRST + 2].map(PortId));
    }

    #[test]
    fn vlans_without_an_interface_are_numbered_last() {
        let between = |vlan| {
            let index = MasterSpec::index_of_vlan(5, vlan).unwrap();
            (index, Master { tagged: vec![PortId(1)], ..bridge(&[(PortId(0), 1), (PortId(1), 2)]) })
        };
        let masters: BTreeMap<u32, Master> = (1..=4).map(between).collect();
        assert_eq!(masters.values().map(Master::numbers).sum::<usize>(), 8);
        let vlans: Vec<Carried> = (100..100 + VLANS as u32 - 5).map(carried).collect();
        let uppers = Numbers::default().assign(&masters, &vlans, &[]);
        let numbers: Vec<_> = uppers.masters.iter().map(|of| (of.id.0 - FIRST, of.tagged.len())).collect();
        let first = VLANS as u16 - 5;
        assert_eq!((uppers.vlans.len(), numbers), (VLANS - 5, vec![(first, 1), (first + 2, 1), (first + 4, 0)]));
        assert_eq!(uppers.masters[2].members, [(PortId(0), 1)]);
    }

    #[test]
    fn a_vlan_on_a_bond_keeps_its_number_and_has_an_entry_for_each_port() {
        let mut numbers = Numbers::default();
        let mut assign = |ports: &[u16]| {
            let members: Vec<_> = ports.iter().map(|port| (PortId(*port), 10 + u32::from(*port))).collect();
            let bond = Master { members, ..Master::new(UNTAGGED, Egress::ByHash(XmitHash::Layer34)) };
            let on = |port: &u16| Carried { port: PortId(*port), parent: 9, ..carried(5) };
            let vlans: Vec<Carried> = ports.iter().map(on).collect();
            let Uppers { masters: bonds, vlans, .. } = numbers.assign(&[(9, bond)].into(), &vlans, &[]);
            let [vlan] = &vlans[..] else { panic!("{vlans:?}") };
            assert_eq!((bonds[0].id, vlan.port, vlan.parent, vlan.index), (PortId(FIRST), PortId(FIRST), 9, 5));
            (vlan.id.0 - FIRST, vlan.entries.iter().map(|(port, at)| (port.0, at.0 - FIRST)).collect::<Vec<_>>())
        };
        assert_eq!(assign(&[0, 1]), (2, vec![(0, 1), (1, 3)]));
        assert_eq!(assign(&[1]), (2, vec![(1, 3)]));
        assert_eq!(assign(&[1, 2]), (2, vec![(1, 3), (2, 1)]));
        assert_eq!(assign(&[0, 1, 2]), (2, vec![(0, 4), (1, 3), (2, 1)]));
    }

    #[test]
    fn an_interface_of_a_bridge_has_an_entry_where_its_frames_have_a_tag() {
        let mut numbers = Numbers::default();
        let mut assign = |untagged: &[u16], tagged: &[u16]| {
            let port = |port: &u16| PortId(*port);
            let members = untagged.iter().chain(tagged).map(|of| (port(of), 10 + u32::from(*of))).collect();
            let tagged = tagged.iter().map(port).collect();
            let of =
                Master { members, tagged, ..Master::new([0x81, 0, 0, 9], Egress::ToStation { bridge: 5, vlan: 9 }) };
            let Uppers { masters, vlans, .. } = numbers.assign(&[(6, of)].into(), &[], &[]);
            let spec = &masters[0];
            assert_eq!((masters.len(), vlans.len(), spec.id, spec.tag), (1, 0, PortId(FIRST), [0x81, 0, 0, 9]));
            let members: Vec<u16> = spec.members.iter().map(|(port, _)| port.0).collect();
            (members, spec.tagged.iter().map(|(port, entry)| (port.0, entry.0 - FIRST)).collect::<Vec<_>>())
        };
        assert_eq!(assign(&[0], &[1, 2]), (vec![0, 1, 2], vec![(1, 1), (2, 2)]));
        assert_eq!(assign(&[1], &[2]), (vec![1, 2], vec![(2, 2)]));
        assert_eq!(assign(&[], &[0, 1, 2]), (vec![0, 1, 2], vec![(0, 1), (1, 3), (2, 2)]));
        let all: Vec<u16> = (0..VLANS as u16 + 9).collect();
        assert_eq!(assign(&[], &all).0.len(), VLANS - 3 + 2, "those without a number are no members");
    }

    #[test]
    fn another_tag_is_another_vlan() {
        let mut numbers = Numbers::default();
        let mut assign = |vlans: &[Carried]| numbers.assign(&BTreeMap::new(), vlans, &[]).vlans;
        let first = assign(&[carried(5)]);
        assert_eq!(first[0].tag, [0x81, 0, 0, 5]);
        let other = Carried { packets: UpperPackets { tag: [0x81, 0, 0, 9], sends: true }, ..carried(5) };
        assert_ne!(assign(&[other])[0].id, first[0].id);
    }

    #[test]
    fn a_number_belongs_to_one_port() {
        let mut numbers = Numbers::default();
        let mut assign = |vlans: &[Carried]| numbers.assign(&BTreeMap::new(), vlans, &[]).vlans;
        let first = assign(&[carried(5)]);
        let moved = Carried { port: PortId(1), ..carried(5) };
        assert_ne!(assign(&[moved])[0].id, first[0].id);
        assert_eq!(assign(&[carried(5)])[0].id, first[0].id);
    }
}
