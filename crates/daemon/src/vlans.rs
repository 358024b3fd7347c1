//! Numbers of VLANs.

use bywash_engine::PortId;
use bywash_fib::model::Vlan;
use bywash_router::control::VlanSpec;
use bywash_router::vlan::{FIRST, VLANS, tag};
use std::collections::BTreeMap;

/// A VLAN interface of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Kernel index of the interface.
    pub index: u32,
    /// Protocol and identifier.
    pub vlan: Vlan,
    /// Port that carries it, and kernel index of the interface below it: that port's, or the bond whose member that is.
    pub port: PortId,
    pub parent: u32,
}

/// Numbers of the VLANs that have one.
#[derive(Default)]
pub struct Numbers(BTreeMap<(u32, u32, PortId, [u8; 4]), PortId>);

impl Numbers {
    /// Gives each of these VLANs a number, and takes back those of all others. A VLAN keeps its number on its port; none
    /// gets one that was another's until now, which packets on their way may still refer to. The last ones get none if there are more than
    /// there are numbers.
    pub fn assign(&mut self, vlans: &[Carried]) -> Vec<VlanSpec> {
        let before = std::mem::take(&mut self.0);
        let mut taken = [false; VLANS];
        before.values().for_each(|id| taken[usize::from(id.0 - FIRST)] = true);
        let mut all = vec![];
        for Carried { index, vlan, port, parent } in vlans.iter().copied() {
            let tag = tag(vlan.protocol, vlan.id);
            let key = (index, parent, port, tag);
            let free = || taken.iter().position(|taken| !taken).map(|at| PortId(FIRST + at as u16));
            let Some(id) = before.get(&key).copied().or_else(free) else { continue };
            taken[usize::from(id.0 - FIRST)] = true;
            self.0.insert(key, id);
            all.push(VlanSpec { id, index, port, parent, tag });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(index: u32) -> Carried {
        let vlan = Vlan { protocol: 0x8100, id: index as u16, plain: true };
        Carried { index, vlan, port: PortId(0), parent: 1 }
    }

    #[test]
    fn a_number_rests_before_it_is_anothers() {
        let mut numbers = Numbers::default();
        let mut assign = |indices: &[u32]| -> Vec<(u32, u16)> {
            let vlans: Vec<Carried> = indices.iter().map(|index| carried(*index)).collect();
            numbers.assign(&vlans).iter().map(|vlan| (vlan.index, vlan.id.0 - FIRST)).collect()
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
    fn another_tag_is_another_vlan() {
        let mut numbers = Numbers::default();
        let first = numbers.assign(&[carried(5)]);
        assert_eq!(first[0].tag, [0x81, 0, 0, 5]);
        let other = Carried { vlan: Vlan { id: 9, ..carried(5).vlan }, ..carried(5) };
        assert_ne!(numbers.assign(&[other])[0].id, first[0].id);
    }

    #[test]
    fn a_number_belongs_to_one_port() {
        let mut numbers = Numbers::default();
        let first = numbers.assign(&[carried(5)]);
        let moved = Carried { port: PortId(1), ..carried(5) };
        assert_ne!(numbers.assign(&[moved])[0].id, first[0].id);
        assert_eq!(numbers.assign(&[carried(5)])[0].id, first[0].id);
    }
}
