//! Tables that the router's stages look up: the forwarding tables, and the next hops that their ids refer to.
//!
//! The control side builds [`Tables`] and publishes them as a whole; the FIBs inside are updated in place. One rule
//! keeps the two consistent: **an id exists before a FIB refers to it and until a grace period after the last FIB entry
//! that did.** So the control side publishes tables that contain a new id before it inserts routes to it; it removes
//! routes first, waits for a grace period, and only then reuses the id.

use crate::bond::XmitHash;
use crate::bytes::{address6, be32};
use crate::flow::flow_hash;
use crate::rules::Steps;
use crate::tunnel::Tunnels;
use bywash_engine::{PORTS, PortId};
pub use bywash_fib::model::{HashPolicy, SourceCheck};
use bywash_fib::{Fib4, Fib6};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, ipv6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::Arc;

/// Action on a packet whose route leads to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Kind {
    /// No route: ICMP network unreachable (IPv6: no route to destination).
    NoRoute,
    /// Rewrite the MAC addresses and send.
    Forward,
    /// The destination is a neighbour on the link and is not resolved.
    Glean,
    /// The gateway is not resolved.
    Pending,
    /// Resolution of the neighbour failed: ICMP host (address) unreachable.
    Failed,
    /// A group of next hops: choose one by flow hash.
    Group,
    /// Discard silently.
    Blackhole,
    /// Discard; ICMP host unreachable (IPv6: no route).
    Unreachable,
    /// Discard; ICMP communication administratively prohibited.
    Prohibit,
    /// An address of this host: left to the kernel.
    Local,
    /// The egress interface is not a port: left to the kernel.
    Kernel,
    /// A kernel policy concerns the destination or the egress interface: left to the kernel.
    Policy,
    /// Encapsulate in a packet to the other end of a tunnel.
    Tunnel,
    /// The link has no carrier: left to the kernel, which drops the packet, or answers it when the neighbour does not
    /// respond. In a group it keeps its share of the flows.
    NoCarrier,
}

impl Kind {
    /// Returns whether the entry is a single next hop of a unicast route (`RTN_UNICAST` in linux/rtnetlink.h).
    pub(crate) fn is_unicast(self) -> bool {
        self == Self::Tunnel || self.is_of_port()
    }

    /// Returns whether packets leave through the entry's port, now or once the neighbour answers; those of a tunnel do
    /// not.
    pub(crate) fn is_of_port(self) -> bool {
        matches!(self, Self::Forward | Self::Glean | Self::Pending | Self::Failed)
    }
}

/// A next hop: everything that the fast path needs of it. Two fit a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Entry {
    /// Destination MAC, then source MAC, as they go into the frame.
    pub macs: [u8; 12],
    /// Action on packets.
    pub kind: Kind,
    /// Port, VLAN or bond to send on, for `Forward`, `Glean`, `Pending` and `Failed`; the tunnel's number, for
    /// `Tunnel`.
    pub port: PortId,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// For `Group`: index of its first bucket. For `Tunnel`: place of its path.
    pub(crate) first: u32,
    /// For `Group`: number of buckets. For `Tunnel`: place of its packets' headers plus 2, or 1. For others 1.
    pub(crate) count: u32,
}

impl Entry {
    /// Creates an entry that only has a `kind`.
    pub const fn verdict(kind: Kind) -> Self {
        Self::of_port(kind, PortId(0), 0, [0; 12])
    }

    /// Creates an entry for packets that leave by a port, VLAN or bond.
    pub const fn of_port(kind: Kind, port: PortId, mtu: u32, macs: [u8; 12]) -> Self {
        Self { macs, kind, port, mtu, first: 0, count: 1 }
    }

    /// Creates an entry for a group with `count` buckets, at least 1, from index `first` in [`Tables::buckets`].
    pub const fn of_group(first: u32, count: u32) -> Self {
        Self { first, count, ..Self::verdict(Kind::Group) }
    }

    /// Creates an entry for packets that leave through a tunnel. `path` is an index into [`crate::tunnel::Paths::all`],
    /// `header` one into the headers of [`crate::tunnel::Tunnels::new`]; `None` if the tunnel has its own headers.
    pub const fn of_tunnel(number: PortId, mtu: u32, macs: [u8; 12], path: u32, header: Option<u32>) -> Self {
        let count = match header {
            Some(at) => at + 2,
            None => 1,
        };
        Self { first: path, count, ..Self::of_port(Kind::Tunnel, number, mtu, macs) }
    }

    /// Returns the indices of a group's buckets in [`Tables::buckets`].
    #[inline]
    pub fn group(&self) -> Range<usize> {
        self.first as usize..self.first as usize + self.count as usize
    }

    /// Returns the indices of a tunnel's path and headers, as in [`Entry::of_tunnel`].
    #[inline]
    pub fn tunnel(&self) -> (u32, Option<u32>) {
        (self.first, self.count.checked_sub(2))
    }

    /// Writes the MAC addresses of a frame that is sent to this next hop.
    #[inline]
    pub(crate) fn rewrite_macs(&self, data: &mut [u8]) {
        if let Some(macs) = data.first_chunk_mut() {
            *macs = self.macs;
        }
    }
}

/// Properties of a next hop that only the slow path needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cold {
    /// Kernel index of the interface.
    pub index: u32,
    /// Gateway to resolve, for `Pending`; `None` for `Glean`, where it is the packet's destination.
    pub gateway: Option<IpAddr>,
    /// Source address of ICMP errors sent by this next hop.
    pub source4: Option<Ipv4Addr>,
    /// Source address of ICMPv6 errors sent by this next hop.
    pub source6: Option<Ipv6Addr>,
    /// Address that masquerading gives to packets that leave by this next hop; `None` if it is not certain.
    pub masquerade4: Option<Ipv4Addr>,
}

/// Returns whether the kernel certainly accepts a packet received on `from` whose source is routed to `back`
/// (fib_validate_source). Anything but a single next hop is left to the kernel to decide.
#[inline]
pub(crate) fn takes_source(tables: &Tables, check: SourceCheck, back: &Entry, from: PortId) -> bool {
    let unicast = back.kind.is_unicast();
    check == SourceCheck::Off || (unicast && (check == SourceCheck::Loose || tables.number(back.port) == from))
}

/// Filter of the host's own IPv4 addresses, from which the kernel takes no packets (fib_validate_source) unless
/// `accept_local` is set. A hit may be false: the address then has to be looked up.
///
/// Workers and the XDP program have a filter each, because an operation that is cheap in one is expensive in the other:
/// workers test three bits by one multiplication, eight packets at once, and the program one bit by the last octet
/// (`own_bit` of `xdp/forward.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own4 {
    words: [u32; 3],
    octets: u64,
}

impl Own4 {
    /// Any address may be the host's own.
    pub const ANY: Self = Self { words: [u32::MAX; 3], octets: u64::MAX };

    /// Returns the place of an address, given as it lies in memory, in each of the words.
    #[inline(always)]
    const fn places(raw: u32) -> [u32; 3] {
        let mixed = raw.wrapping_mul(0x9e37_79b1);
        [mixed >> 27, mixed >> 22 & 31, mixed >> 17 & 31]
    }

    /// Returns the filter with an address added.
    #[must_use]
    pub fn with(mut self, addr: Ipv4Addr) -> Self {
        let places = Self::places(u32::from_ne_bytes(addr.octets()));
        self.words.iter_mut().zip(places).for_each(|(word, place)| *word |= 1 << place);
        self.octets |= 1 << (63 - (addr.octets()[3] & 63));
        self
    }

    /// Returns the XDP program's filter: bit 63 - n for addresses whose last octet is n, modulo 64.
    pub const fn octets(self) -> u64 {
        self.octets
    }

    /// Returns 1 for an address, as it lies in memory, that may be the host's own; else 0. Without branches and in
    /// 32-bit words, so that loops over many addresses vectorise.
    #[inline(always)]
    pub(crate) const fn bit(self, raw: u32) -> u32 {
        let [a, b, c] = Self::places(raw);
        self.words[0] >> a & self.words[1] >> b & self.words[2] >> c & 1
    }
}

/// Frames that a port gives the router, by their destination's MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reception {
    /// Frames to its interface. An XDP program leaves the others to the kernel.
    #[default]
    Own,
    /// All frames of a link that has one other end.
    Link,
    /// All frames of its link. Those to other hosts are dropped.
    Promiscuous,
    /// Frames to its interface, and those to stations behind VXLANs in its bridge.
    Bridged,
}

/// A port or VLAN as routing sees it.
#[derive(Clone, Debug, Default)]
pub struct PortInfo {
    /// Kernel index of the interface; 0 while it is gone.
    pub index: u32,
    /// MAC address.
    pub mac: [u8; 6],
    /// Set if frames received on it may carry partial checksums (veth, TAP).
    pub partial_checksums: bool,
    /// Frames that it gives the router.
    pub reception: Reception,
    /// Main IPv4 address, the source of errors whose route back is not on a port.
    pub source4: Option<Ipv4Addr>,
    /// Main global IPv6 address, for the same purpose.
    pub source6: Option<Ipv6Addr>,
    /// Source validation of received packets.
    pub source_check: SourceCheck,
    /// Number of the bond or bridge that the port's packets belong to or, if this is the entry of a bridge's VLAN on
    /// one port, of that VLAN; `None` if there is none.
    pub master: Option<PortId>,
    /// Rules by which its IPv4 packets are looked up.
    pub rules4: Steps<u32>,
    /// Rules by which its IPv6 packets are looked up.
    pub rules6: Steps<u128>,
    /// Rules by which the sources of its IPv4 packets are looked up, as if they were destinations.
    pub back4: Steps<u32>,
    /// VLANs that it carries: their tags as they are in frames, with priority 0, in ascending order, and their numbers.
    pub vlans: Vec<([u8; 4], PortId)>,
    /// Macvlans above it: their MAC addresses and numbers.
    pub macvlans: Vec<([u8; 6], PortId)>,
}

/// A VLAN interface or macvlan as routing sees it.
#[derive(Clone, Debug)]
pub struct VlanInfo {
    /// Port that carries it, or number of the bond or bridge below it.
    pub port: PortId,
    /// Tag of its frames, as in [`PortInfo::vlans`]; [`crate::vlan::UNTAGGED`] for a macvlan.
    pub tag: [u8; 4],
    /// Properties of the interface itself.
    pub info: PortInfo,
}

/// A bond as routing sees it.
#[derive(Clone, Debug)]
pub struct BondInfo {
    /// Ports on the members that it sends by, in the kernel's order; at least one.
    pub ports: Vec<PortId>,
    /// Hash that chooses among these.
    pub hash: XmitHash,
    /// Properties of the interface itself.
    pub info: PortInfo,
}

impl BondInfo {
    /// Returns the port that a frame leaves by. The frame must not contain its VLAN tag yet.
    pub(crate) fn port_of(&self, frame: &[u8]) -> Option<PortId> {
        match self.ports[..] {
            [port] => Some(port),
            ref ports => ports.get((self.hash.hash(frame) as usize).checked_rem(ports.len())?).copied(),
        }
    }
}

/// One version of all tables; immutable except for the FIBs.
pub struct Tables {
    /// Version number, from 1.
    pub generation: u64,
    /// IPv4 routes of tables local and main.
    pub fib4: Arc<Fib4>,
    /// IPv6 routes of tables local and main.
    pub fib6: Arc<Fib6>,
    /// Next hops by id; entry 0 is `NoRoute`. An id beyond the end is treated as 0.
    pub entries: Vec<Entry>,
    /// Parallel to `entries`.
    pub cold: Vec<Cold>,
    /// Members of groups, as ids of entries that are not groups. A member appears as often as its weight requires.
    pub buckets: Vec<u32>,
    /// Ports by [`PortId`].
    pub ports: Vec<PortInfo>,
    /// VLANs, by their number less [`crate::vlan::FIRST`].
    pub vlans: Vec<Option<VlanInfo>>,
    /// Bonds whose packets arrive and leave by ports on their members, by their numbers.
    pub bonds: Vec<(PortId, BondInfo)>,
    /// Bridges whose packets arrive and leave by several of the ports, by their numbers.
    pub bridges: Vec<(PortId, PortInfo)>,
    /// Tunnels whose packets are forwarded.
    pub tunnels: Tunnels,
    /// The host's own IPv4 addresses.
    pub own4: Own4,
    /// Hash policy by which IPv4 packets choose a group member.
    pub hash4: HashPolicy,
    /// Hash policy by which IPv6 packets choose a group member.
    pub hash6: HashPolicy,
}

impl Tables {
    /// Returns the next hop, by tables local and main, of a frame with a valid IP packet: that of the destination or,
    /// if it is a group, the member that the packet's flow hash selects. `NoRoute` for any other frame.
    ///
    /// [`Fib4::lookup_batch`](bywash_fib::Fib::lookup_batch) is faster for many packets.
    #[inline]
    pub fn next_hop(&self, frame: &[u8]) -> &Entry {
        let Some((header, ip)) = frame.split_first_chunk::<HEADER_LEN>() else { return &self.entries[0] };
        let version = ip.first().map(|first| first >> 4);
        let id = match (u16::from_be_bytes([header[12], header[13]]), version) {
            (ethertype::IPV4, Some(4)) if ip.len() >= ipv4::HEADER_LEN => self.fib4.lookup(be32(&ip[16..])),
            (ethertype::IPV6, Some(6)) if ip.len() >= ipv6::HEADER_LEN => self.fib6.lookup(address6(&ip[24..])),
            _ => return &self.entries[0],
        };
        self.entry(self.resolve(id, frame))
    }

    /// Returns the next hop with this id; entry 0 if the id is out of range.
    #[inline]
    pub(crate) fn entry(&self, id: u32) -> &Entry {
        self.entries.get(id as usize).unwrap_or(&self.entries[0])
    }

    /// Returns the id of a next hop that is not a group: `id` itself, or the group member that the flow hash of a valid
    /// packet selects.
    #[inline]
    pub(crate) fn resolve(&self, id: u32, data: &[u8]) -> u32 {
        let group = self.entry(id);
        if group.kind == Kind::Group { self.member(group, flow_hash(self.hash4, self.hash6, data)) } else { id }
    }

    /// Returns the ids in a group's buckets.
    pub(crate) fn members(&self, group: &Entry) -> &[u32] {
        self.buckets.get(group.group()).unwrap_or_default()
    }

    /// Returns the id of the group member that a flow hash selects.
    #[inline]
    pub(crate) fn member(&self, group: &Entry, hash: u32) -> u32 {
        let pick = (u64::from(hash) * u64::from(group.count)) >> 32;
        self.buckets.get((group.first + pick as u32) as usize).copied().unwrap_or(0)
    }

    /// Returns the id of the next hop of an IPv4 packet received on a port: by the port's rules, or by tables local and
    /// main.
    #[inline]
    pub(crate) fn route4(&self, port: Option<&PortInfo>, src: u32, dst: u32) -> u32 {
        match port.filter(|port| !port.rules4.is_empty()) {
            Some(port) => port.rules4.lookup(&self.entries, src, dst),
            None => self.fib4.lookup(dst),
        }
    }

    /// Returns the id of the next hop of an IPv6 packet, like [`Tables::route4`].
    #[inline]
    pub(crate) fn route6(&self, port: Option<&PortInfo>, src: u128, dst: u128) -> u32 {
        match port.filter(|port| !port.rules6.is_empty()) {
            Some(port) => port.rules6.lookup(&self.entries, src, dst),
            None => self.fib6.lookup(dst),
        }
    }

    /// Returns the id of the next hop towards the source of an IPv4 packet received on a port (fib_validate_source).
    pub(crate) fn back4(&self, port: Option<&PortInfo>, src: u32, dst: u32) -> u32 {
        match port.filter(|port| !port.back4.is_empty()) {
            Some(port) => port.back4.lookup(&self.entries, dst, src),
            None => self.fib4.lookup(src),
        }
    }

    /// Returns the port, VLAN, bond, bridge or tunnel with this number.
    #[inline]
    pub fn port(&self, id: PortId) -> Option<&PortInfo> {
        match self.ports.get(usize::from(id.0)) {
            Some(port) => Some(port),
            None => self.vlan(id).map(|vlan| &vlan.info).or_else(|| self.master(id)),
        }
    }

    #[cold]
    fn master(&self, id: PortId) -> Option<&PortInfo> {
        let bridge = || self.bridges.iter().find(|(number, _)| *number == id).map(|(_, info)| info);
        let tunnel = || self.tunnels.get(id).map(|tunnel| &tunnel.info);
        self.bond(id).map(|bond| &bond.info).or_else(bridge).or_else(tunnel)
    }

    /// Returns the bond with this number.
    #[cold]
    pub fn bond(&self, id: PortId) -> Option<&BondInfo> {
        self.bonds.iter().find(|(number, _)| *number == id).map(|(_, bond)| bond)
    }

    /// Returns the number by which gates, source checks and flows name the interface of a port, VLAN or tunnel: its
    /// own, or that of the bond or bridge that it belongs to; for an entry of a VLAN on a bridge, the VLAN's.
    #[inline]
    pub fn number(&self, id: PortId) -> PortId {
        match self.ports.get(usize::from(id.0)) {
            Some(port) => port.master.unwrap_or(id),
            None => self.master_above(id).unwrap_or(id),
        }
    }

    /// Returns the bridge to which the packets of an entry of a VLAN, or of a VXLAN, belong.
    #[cold]
    fn master_above(&self, id: PortId) -> Option<PortId> {
        match self.vlan(id) {
            Some(vlan) => vlan.info.master,
            None => self.tunnels.get(id)?.info.master,
        }
    }

    /// Returns whether packets of the interface with this number pass a bridge: it is a bridge, or a VLAN on one.
    pub fn is_bridged(&self, id: PortId) -> bool {
        let below = self.vlan(id).map_or(id, |vlan| vlan.port);
        self.bridges.iter().any(|(number, _)| *number == below)
    }

    /// Returns the VLAN with this number.
    #[cold]
    pub fn vlan(&self, id: PortId) -> Option<&VlanInfo> {
        self.vlans.get(usize::from(id.0).checked_sub(PORTS)?)?.as_ref()
    }

    /// Returns the id of the route to an address, by tables local and main.
    pub(crate) fn id_to(&self, addr: IpAddr) -> u32 {
        match addr {
            IpAddr::V4(addr) => self.fib4.lookup(addr.to_bits()),
            IpAddr::V6(addr) => self.fib6.lookup(addr.to_bits()),
        }
    }

    /// Returns the entry of the route to an address, by tables local and main.
    pub(crate) fn entry_to(&self, addr: IpAddr) -> &Entry {
        self.entry(self.id_to(addr))
    }

    /// Returns the number of the port, VLAN, bond, bridge or tunnel that all packets to an address leave by; `None` if
    /// they are not forwarded, or by several ports.
    pub fn egress(&self, addr: IpAddr) -> Option<PortId> {
        let port = |entry: &Entry| entry.kind.is_unicast().then_some(self.number(entry.port));
        let entry = self.entry_to(addr);
        if entry.kind != Kind::Group {
            return port(entry);
        }
        let mut ports = self.members(entry).iter().map(|id| port(self.entry(*id)));
        let first = ports.next()??;
        ports.all(|port| port == Some(first)).then_some(first)
    }

    /// Returns whether packets to an address are left to the kernel because of a policy that concerns this destination,
    /// or the interface that they leave by.
    pub fn is_excepted(&self, addr: IpAddr) -> bool {
        self.entry_to(addr).kind == Kind::Policy
    }

    /// Returns whether packets to an address are for the host itself.
    pub fn is_own(&self, addr: IpAddr) -> bool {
        self.entry_to(addr).kind == Kind::Local
    }

    /// Returns whether a translated source address can only come from the port's interface: the address is the source
    /// address of this interface and of no other, or it is not an address of the host.
    pub fn is_source_of(&self, addr: IpAddr, port: PortId) -> bool {
        let has = |info: &PortInfo| match addr {
            IpAddr::V4(addr) => info.source4 == Some(addr),
            IpAddr::V6(addr) => info.source6 == Some(addr),
        };
        if !self.is_own(addr) {
            return true;
        }
        let ports = self.ports.iter().filter(|info| info.master.is_none());
        let vlans = self.vlans.iter().flatten().map(|vlan| &vlan.info).filter(|info| info.master.is_none());
        let all = ports.chain(vlans);
        let all = all.chain(self.bonds.iter().map(|(_, bond)| &bond.info));
        let all = all.chain(self.bridges.iter().map(|(_, info)| info));
        let all = all.chain(self.tunnels.iter().map(|tunnel| &tunnel.info).filter(|info| info.master.is_none()));
        self.port(port).is_some_and(has) && all.filter(|info| has(info)).count() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_found_and_few_others() {
        let own: Vec<Ipv4Addr> = (1..9).map(|n| Ipv4Addr::new(10, n, 0, 1)).collect();
        let filter = own.iter().fold(Own4::default(), |filter, addr| filter.with(*addr));
        let bit = |addr: Ipv4Addr| filter.bit(u32::from_ne_bytes(addr.octets()));
        assert!(own.iter().all(|addr| bit(*addr) == 1));
        let hits = (0..64_000).filter(|n| bit(Ipv4Addr::from(0x0b00_0000 + n * 7)) == 1).count();
        assert!(hits < 64_000 / 40, "{hits}");
        // The XDP program's filter matches addresses with the same last octet, or one that differs by a multiple of 64.
        let signs = (0..=255u8).filter(|last| ((filter.octets() << (last & 63)) as i64) < 0);
        assert_eq!(signs.collect::<Vec<_>>(), [1, 65, 129, 193]);
    }
}
