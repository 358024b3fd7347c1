//! Numbers of VLANs, macvlans and bridges.

use crate::relations::Told;
use bywash_engine::PortId;
use bywash_router::control::{BridgeSpec, VlanSpec};
use bywash_router::vlan::{FIRST, VLANS};
use std::collections::BTreeMap;

/// A VLAN interface or macvlan of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Kernel index of the interface.
    pub index: u32,
    /// How its packets are told from the port's own.
    pub told: Told,
    /// Port that carries it, and kernel index of the interface below it: that port's, or the bond whose member that is.
    pub port: PortId,
    pub parent: u32,
}

/// Interface with a number: a bridge by its kernel index, or a VLAN or macvlan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Bridge(u32),
    Vlan { index: u32, parent: u32, port: PortId, tag: [u8; 4] },
}

/// Numbers of the interfaces that have one.
#[derive(Default)]
pub struct Numbers(BTreeMap<Key, PortId>);

impl Numbers {
    /// Gives each of these bridges, by kernel index with the ports on its members and their kernel indices, and each of
    /// these others a number, and takes back those of all others. A bridge keeps its number, and a VLAN on its port; none
    /// gets one that was another's until now, which packets on their way may still refer to. The last ones get none if
    /// there are more than there are numbers.
    pub fn assign(
        &mut self,
        bridges: &BTreeMap<u32, Vec<(PortId, u32)>>,
        vlans: &[Carried],
    ) -> (Vec<BridgeSpec>, Vec<VlanSpec>) {
        let before = std::mem::take(&mut self.0);
        let mut taken = [false; VLANS];
        before.values().for_each(|id| taken[usize::from(id.0 - FIRST)] = true);
        let mut number = |key| {
            let free = || taken.iter().position(|taken| !taken).map(|at| PortId(FIRST + at as u16));
            let id = before.get(&key).copied().or_else(free)?;
            taken[usize::from(id.0 - FIRST)] = true;
            self.0.insert(key, id);
            Some(id)
        };
        let bridge = |(index, members): (&u32, &Vec<_>)| {
            Some(BridgeSpec { id: number(Key::Bridge(*index))?, index: *index, members: members.clone() })
        };
        let bridges = bridges.iter().filter_map(bridge).collect();
        let vlan = |of: &Carried| {
            let Carried { index, told: Told { tag, sends }, port, parent } = *of;
            Some(VlanSpec { id: number(Key::Vlan { index, parent, port, tag })?, index, port, parent, tag, sends })
        };
        (bridges, vlans.iter().filter_map(vlan).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(index: u32) -> Carried {
        let told = Told { tag: [0x81, 0, 0, index as u8], sends: true };
        Carried { index, told, port: PortId(0), parent: 1 }
    }

    #[test]
    fn a_number_rests_before_it_is_anothers() {
        let mut numbers = Numbers::default();
        let mut assign = |indices: &[u32]| -> Vec<(u32, u16)> {
            let vlans: Vec<Carried> = indices.iter().map(|index| carried(*index)).collect();
            numbers.assign(&BTreeMap::new(), &vlans).1.iter().map(|vlan| (vlan.index, vlan.id.0 - FIRST)).collect()
        };
        assert_eq!(assign(&[5, 6]), [(5, 0), (6, 1)]);
        assert_eq!(assign(&[7, 6]), [(7, 2), (6, 1)]);
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
        let (bridges, vlans) = numbers.assign(&[(5, members.clone())].into(), &[carried(5)]);
        assert_eq!((bridges[0].index, &bridges[0].members, bridges[0].id.0), (5, &members, FIRST));
        assert_eq!(vlans[0].id.0, FIRST + 1);
        // With other members it is the same bridge.
        let (then, _) = numbers.assign(&[(5, vec![(PortId(1), 2)]), (6, vec![])].into(), &[]);
        assert_eq!([then[0].id, then[1].id], [FIRST, FIRST + 2].map(PortId));
    }

    #[test]
    fn another_tag_is_another_vlan() {
        let mut numbers = Numbers::default();
        let mut assign = |vlans: &[Carried]| numbers.assign(&BTreeMap::new(), vlans).1;
        let first = assign(&[carried(5)]);
        assert_eq!(first[0].tag, [0x81, 0, 0, 5]);
        let other = Carried { told: Told { tag: [0x81, 0, 0, 9], sends: true }, ..carried(5) };
        assert_ne!(assign(&[other])[0].id, first[0].id);
    }

    #[test]
    fn a_number_belongs_to_one_port() {
        let mut numbers = Numbers::default();
        let mut assign = |vlans: &[Carried]| numbers.assign(&BTreeMap::new(), vlans).1;
        let first = assign(&[carried(5)]);
        let moved = Carried { port: PortId(1), ..carried(5) };
        assert_ne!(assign(&[moved])[0].id, first[0].id);
        assert_eq!(assign(&[carried(5)])[0].id, first[0].id);
    }
}
