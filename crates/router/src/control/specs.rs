//! Ports, the interfaces above them, and tunnels, as described to the control side.

use crate::bond::XmitHash;
use crate::tables::Reception;
use bywash_engine::PortId;
#[cfg(doc)]
use bywash_fib::model::Station;
use bywash_fib::model::{Mac, Tunnel};

/// A port on which the router forwards packets.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Port number; numbers count from 0 without gaps.
    pub id: PortId,
    /// Kernel index of its interface; 0 when there is none yet.
    pub index: u32,
    /// Name of its interface. An interface that appears with this name while the port has none is bound to the port.
    pub name: String,
    /// Set if frames received on it may carry partial checksums (veth, TAP).
    pub partial_checksums: bool,
    /// Frames that it gives the router.
    pub reception: Reception,
}

/// A bond or bridge that ports belong to, or a VLAN of a bridge that filters VLANs: a VLAN interface on it or, without
/// one, a VLAN whose frames the bridge only forwards between its members. The router forwards its packets as far as
/// they arrive and leave by these ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterSpec {
    /// Number of the interface, from [`crate::vlan::FIRST`] on.
    pub id: PortId,
    /// Kernel index of the interface; for a VLAN without one, [`MasterSpec::index_of_vlan`].
    pub index: u32,
    /// Ports on its members, and the kernel indices of these members. For a bond, all members that it sends by, in the
    /// kernel's order, or none while its packets are left to the kernel.
    pub members: Vec<(PortId, u32)>,
    /// Ports on which its frames have the tag, if the bridge filters VLANs, each with the number of its entry in XDP
    /// programs. Packets to a station behind such a port use that entry.
    pub tagged: Vec<(PortId, PortId)>,
    /// Tag of its frames on these ports ([`crate::vlan::tag`]).
    pub tag: [u8; 4],
    /// Indices of the tunnels that are members of the bridge ([`TunnelSpec::index`]), whose frames have no tag there
    /// ([`Bridged`]).
    pub vxlans: Vec<u32>,
    /// Choice of the member that a packet leaves by.
    pub egress: Egress,
}

/// Choice of the member of a bond or bridge that a packet leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// A bond: by a hash of the packet's headers.
    ByHash(XmitHash),
    /// A bridge, with this kernel index: by its forwarding database, of this VLAN if it filters VLANs; 0 if not.
    ToStation {
        /// Kernel index of the bridge.
        bridge: u32,
        /// VLAN of the interface's frames.
        vlan: u16,
    },
}

impl MasterSpec {
    /// Returns the index of a VLAN of a bridge in which the host has no interface: a number that is no kernel index.
    /// `None` if the bridge's own index is too large.
    pub fn index_of_vlan(bridge: u32, vlan: u16) -> Option<u32> {
        // Kernel indices are positive numbers of 31 bits.
        (bridge < 1 << 19 && vlan < 1 << 12).then(|| 1 << 31 | bridge << 12 | u32::from(vlan))
    }

    /// Returns the kernel index of the bridge, and the VLAN, of an index that [`MasterSpec::index_of_vlan`] has
    /// returned; `None` for a kernel index.
    pub fn vlan_of_index(index: u32) -> Option<(u32, u16)> {
        (index >> 31 != 0).then_some((index << 1 >> 13, (index & 0xfff) as u16))
    }

    /// Returns the kernel index of the interface that an index stands for: the index itself or, for a VLAN
    /// ([`MasterSpec::index_of_vlan`]), the interface that the VLAN is on.
    pub fn interface_of(index: u32) -> u32 {
        Self::vlan_of_index(index).map_or(index, |(interface, _)| interface)
    }

    /// Returns whether the host has an interface with its index, whose packets are routed.
    pub fn has_interface(&self) -> bool {
        Self::vlan_of_index(self.index).is_none()
    }

    /// Returns whether it is a bridge, or a VLAN interface on one; if not, it is a bond.
    pub fn is_bridge(&self) -> bool {
        self.stations().is_some()
    }

    /// Returns kernel index and VLAN of the bridge whose stations its packets come from and go to; `None` for a bond.
    pub fn stations(&self) -> Option<(u32, u16)> {
        match self.egress {
            Egress::ToStation { bridge, vlan } => Some((bridge, vlan)),
            Egress::ByHash(_) => None,
        }
    }

    /// Returns the forwarding database of [`MasterSpec::stations`]: the bridge, and [`Station::vlan`].
    pub(super) fn fdb(&self) -> Option<(u32, u32)> {
        self.stations().map(|(bridge, vlan)| (bridge, vlan.into()))
    }

    /// Returns whether it is a VLAN of a bridge.
    pub fn is_vlan(&self) -> bool {
        self.stations().is_some_and(|(bridge, _)| bridge != self.index)
    }

    /// Returns the number of its entry on a port where its frames have a tag; `None` where they have none.
    pub(super) fn entry(&self, port: PortId) -> Option<PortId> {
        self.tagged.iter().find(|(of, _)| *of == port).map(|(_, entry)| *entry)
    }

    /// Returns whether a port is on the member with this kernel index.
    pub(super) fn has_member(&self, index: u32) -> bool {
        self.members.iter().any(|(_, member)| *member == index)
    }
}

/// A VLAN interface, or a macvlan, whose packets the router forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanSpec {
    /// Number of the interface, from [`crate::vlan::FIRST`] on.
    pub id: PortId,
    /// Kernel index of the interface.
    pub index: u32,
    /// Port that carries it, or number of the bond or bridge below it.
    pub port: PortId,
    /// Kernel index of the interface below it: the port's, the bond's or the bridge's.
    pub parent: u32,
    /// Numbers of its entries in XDP programs, by the ports that carry it. On a bridge, packets to a station use the
    /// entry of the port that leads there.
    pub entries: Vec<(PortId, PortId)>,
    /// Tag of its frames ([`crate::vlan::tag`]); [`crate::vlan::UNTAGGED`] for a macvlan, which is identified by its
    /// MAC address.
    pub tag: [u8; 4],
    /// Set if packets routed to the interface leave by the port; if not, they are left to the kernel.
    pub sends: bool,
}

/// A tunnel whose packets the router forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    /// Number of the interface, from [`crate::vlan::FIRST`] on.
    pub id: PortId,
    /// Kernel index of the interface; for one of several networks of a VXLAN interface,
    /// [`MasterSpec::index_of_vlan`] of this interface and the VLAN that is the network.
    pub index: u32,
    /// Properties of the tunnel. Both addresses are those of hosts, but its own may be unspecified, and so may the
    /// remote of a VXLAN; and no other tunnel takes the same packets.
    pub tunnel: Tunnel,
    /// Bridge that it is a member of, if it carries frames.
    pub bridge: Option<Bridged>,
}

/// Properties of the packets that come through a tunnel, by which the XDP program hands them to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// Number of the interface that they belong to: the tunnel, or its bridge.
    pub id: PortId,
    /// MAC address that the frames in it are sent to, if it carries any.
    pub mac: Mac,
    /// Number of the only interface that receives the outer packets; `None` if any may.
    pub link: Option<PortId>,
    /// Ports on other members to which the tunnel's bridge forwards frames from it by their addresses alone: bit n
    /// stands for port n.
    pub members: u64,
    /// Set if the kernel learns the sources of the frames in it.
    pub learns: bool,
}

impl TunnelSpec {
    /// Returns the kernel index of its own interface.
    pub fn own_index(&self) -> u32 {
        MasterSpec::interface_of(self.index)
    }

    /// Returns the VNI, if it is one of several networks of a VXLAN interface.
    pub fn network(&self) -> Option<u32> {
        self.tunnel.vxlan.filter(|_| self.own_index() != self.index).map(|vxlan| vxlan.vni)
    }

    /// Returns the forwarding database that has its stations: the interface, and [`Station::vlan`].
    pub(super) fn fdb(&self) -> (u32, u32) {
        (self.own_index(), self.network().unwrap_or(0))
    }

    /// Returns the kernel index of the interface that its packets belong to: its own, or that of its bridge.
    pub fn interface(&self) -> u32 {
        self.bridge.map_or(self.index, |bridge| bridge.index)
    }

    /// Returns the time in seconds after which the kernel forgets a station that it has not seen; `None` if it learns
    /// no stations of this tunnel, 0 if it never forgets them.
    pub(super) fn ageing(&self) -> Option<u32> {
        let own = self.tunnel.vxlan.filter(|vxlan| vxlan.learns).map(|vxlan| vxlan.ageing);
        let bridge = self.bridge.and_then(|of| of.ageing);
        let shortest = |a: u32, b: u32| if a == 0 { b } else { a.min(b) };
        own.map_or(bridge, |own| Some(bridge.map_or(own, |bridge| shortest(own, bridge))))
    }
}

/// Membership of a tunnel in a bridge. Its packets are then those of the bridge or, if the bridge filters VLANs, of the
/// interface in the VLAN whose frames have no tag on the tunnel; if the VLANs are networks of a VXLAN, in its own one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bridged {
    /// Kernel index of the interface: the bridge's, or that of a VLAN interface on it; [`MasterSpec::index_of_vlan`] if
    /// there is none.
    pub index: u32,
    /// Kernel index of the bridge.
    pub bridge: u32,
    /// VLAN of the frames; 0 if the bridge does not filter VLANs.
    pub vlan: u16,
    /// Time in seconds after which the bridge forgets a station behind the tunnel that it has not seen; `None` if it
    /// learns none there.
    pub ageing: Option<u32>,
}

impl Bridged {
    /// Returns the forwarding database of the bridge: the bridge, and [`Station::vlan`].
    pub(super) fn fdb(&self) -> (u32, u32) {
        (self.bridge, self.vlan.into())
    }
}
