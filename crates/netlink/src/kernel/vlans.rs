//! VLANs of bridges and their members, and the networks that VXLANs receive.

use super::{Kernel, Origin, Scope, Stamped};
use crate::vnis::Vnis;
use bywash_fib::model::{BridgeVlans, Link, Member};

impl Kernel {
    /// Returns the VLANs of a bridge or of its member; none while they are not known. Those of a VXLAN with a filter
    /// are networks only if it receives these.
    pub(super) fn known_vlans(&self, link: &Link) -> BridgeVlans {
        let mut vlans = self.vlans.get(&link.index).map(|vlans| vlans.value.clone()).unwrap_or_default();
        if filters(link) {
            let all = self.networks.get(&link.index);
            let takes = |vni| all.is_some_and(|all| all.value.has(vni));
            vlans.tagged = vlans.tagged.into_iter().flat_map(|range| range.restricted(takes)).collect();
        }
        vlans
    }

    /// Adds networks that a VXLAN receives. A dump may have several messages about one VXLAN.
    pub(super) fn add_networks(&mut self, index: u32, networks: Vec<(u32, u32)>, origin: Origin) {
        let generation = self.generation;
        let known = self.networks.entry(index).or_insert_with(|| Stamped { value: Vnis::default(), generation });
        if origin == Origin::Dump && std::mem::replace(&mut known.generation, generation) != generation {
            known.value = Vnis::default();
        }
        networks.into_iter().for_each(|(first, last)| known.value.add(first, last));
        self.set_vlans(index);
    }

    /// Removes networks that a VXLAN no longer receives.
    pub(super) fn remove_networks(&mut self, index: u32, networks: &[(u32, u32)]) {
        let Some(known) = self.networks.get_mut(&index) else { return };
        networks.iter().for_each(|(first, last)| known.value.remove(*first, *last));
        self.set_vlans(index);
    }

    /// Returns whether there is a VXLAN that receives only the networks that it has been given.
    pub fn filters_networks(&self) -> bool {
        self.links.values().any(|link| filters(&link.value))
    }

    /// Returns whether a member's VLANs begin or cease to be networks: when they cease, the kernel forgets which ones
    /// they are (nbp_vlan_tunnel_info_flush), and announces only the new state of the member.
    pub(super) fn forgets_networks(&self, index: u32, member: Option<Member>) -> bool {
        let tunnels = |member: Option<Member>| member.is_some_and(|of| of.tunnels);
        self.links.get(&index).is_some_and(|old| tunnels(old.value.member) != tunnels(member))
    }

    /// Forgets the VLANs of a bridge or of its member until they have been read again; returns what is to be read.
    pub(super) fn forget_vlans(&mut self, index: u32) -> Scope {
        self.vlans.remove(&index);
        self.unread.add(Scope::VLANS);
        Scope::VLANS
    }

    /// Sets the VLANs of a bridge or of its member. A notification says only that VLANs have changed: until they have
    /// been read again, it is not known which.
    pub(super) fn vlans_of(&mut self, index: u32, mut vlans: BridgeVlans, origin: Origin) -> Scope {
        let generation = self.generation;
        match self.vlans.get(&index) {
            _ if origin != Origin::Dump => vlans = BridgeVlans { stale: true, ..BridgeVlans::default() },
            Some(known) if known.generation == generation => {
                vlans.untagged = vlans.untagged.max(known.value.untagged);
                vlans.tagged.splice(0..0, known.value.tagged.iter().copied());
            }
            _ => {}
        }
        self.vlans.insert(index, Stamped { value: vlans, generation });
        self.set_vlans(index);
        Scope::when(origin != Origin::Dump, Scope::VLANS)
    }

    /// Updates a link after its VLANs have changed.
    pub(super) fn set_vlans(&mut self, index: u32) {
        let Some(vlans) = self.links.get(&index).map(|link| self.known_vlans(&link.value)) else { return };
        let Some(link) = self.links.get_mut(&index).map(|link| &mut link.value) else { return };
        if link.vlans != vlans {
            self.pending.links.entry(index).or_insert_with(|| Some(link.clone()));
            link.vlans = vlans;
        }
    }

    /// Returns whether there is a bridge that filters VLANs.
    pub fn filters_vlans(&self) -> bool {
        self.links.values().any(|link| link.value.bridge.is_some_and(|of| of.filters))
    }
}

/// Returns whether a link is a VXLAN that receives only the networks that it has been given.
fn filters(link: &Link) -> bool {
    link.tunnel.and_then(|tunnel| tunnel.vxlan).is_some_and(|vxlan| vxlan.filters)
}
