//! The kernel's routing state as plain data: reported by the mirror and applied by the router's control side.
//!
//! Addresses are `std::net` types; interfaces are identified by kernel index.

mod tunnel;

pub use tunnel::{Encapsulation, Outer, OuterHeader, Tunnel, Vxlan};

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A set of address families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

impl Families {
    /// Neither family.
    pub const NONE: Self = Self { v4: false, v6: false };
    /// IPv4 alone.
    pub const V4: Self = Self { v4: true, v6: false };
    /// IPv6 alone.
    pub const V6: Self = Self { v4: false, v6: true };
    /// Both families.
    pub const BOTH: Self = Self { v4: true, v6: true };

    /// Returns whether no family is in the set.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

impl std::ops::BitOr for Families {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self { v4: self.v4 | other.v4, v6: self.v6 | other.v6 }
    }
}

impl std::ops::BitAnd for Families {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self { v4: self.v4 & other.v4, v6: self.v6 & other.v6 }
    }
}

impl std::ops::Not for Families {
    type Output = Self;

    fn not(self) -> Self {
        Self { v4: !self.v4, v6: !self.v6 }
    }
}

impl std::ops::BitOrAssign for Families {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// Packets received on a port that are left to the kernel, because one of its policies (firewall, IPsec, rule, filter,
/// switch) applies to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// Families whose packets are all left to the kernel.
    pub closed: Families,
    /// Families whose fragments are left to the kernel.
    pub fragments: Families,
    /// Families whose packets are left to the kernel if they cause an ICMP error, which the kernel sends.
    pub errors: Families,
    /// Families that are closed only because of netfilter: packets of known flows are forwarded all the same.
    pub flows: Families,
}

impl Gate {
    /// Gate that leaves every packet to the kernel.
    pub const CLOSED: Self =
        Self { closed: Families::BOTH, fragments: Families::BOTH, errors: Families::BOTH, flows: Families::NONE };
}

/// Packet fields that select among equal next hops: `net.ipv4.fib_multipath_hash_policy` and its IPv6 counterpart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HashPolicy {
    /// Policy 0: the addresses, for IPv6 also flow label and next header. An ICMP error uses the fields of the packet
    /// it quotes.
    L3,
    /// Policy 1: addresses, protocol and ports.
    #[default]
    L4,
    /// Policies 2 and 3, which use fields that are not parsed here: groups are left to the kernel.
    Kernel,
}

/// IPv4 source validation by reverse path: Linux's `rp_filter` (ip-sysctl), RFC 3704.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceCheck {
    /// No check.
    #[default]
    Off,
    /// Requires a unicast route to the source (`rp_filter` 2).
    Loose,
    /// Requires that the route to the source leads out of the port that received the packet (`rp_filter` 1).
    Strict,
}

/// A prefix: an address with host bits zero, and its length in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Prefix {
    /// First address of the prefix.
    pub addr: IpAddr,
    /// Length in bits: 0 to 32 or 128.
    pub len: u8,
}

impl Prefix {
    /// Returns the prefix of `len` bits that contains an address; `None` if it would be longer than the address.
    pub fn containing(addr: IpAddr, len: u8) -> Option<Self> {
        let behind = |bits: u32| bits.checked_sub(u32::from(len));
        let addr = match addr {
            IpAddr::V4(addr) => {
                IpAddr::V4(Ipv4Addr::from_bits(addr.to_bits() & u32::MAX.checked_shl(behind(32)?).unwrap_or(0)))
            }
            IpAddr::V6(addr) => {
                IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() & u128::MAX.checked_shl(behind(128)?).unwrap_or(0)))
            }
        };
        Some(Self { addr, len })
    }

    /// Returns whether `inner` lies within the prefix, or is the same.
    pub fn covers(self, inner: Self) -> bool {
        self.len <= inner.len && Self::containing(inner.addr, self.len) == Some(self)
    }
}

impl From<IpAddr> for Prefix {
    fn from(addr: IpAddr) -> Self {
        Self { addr, len: if addr.is_ipv4() { 32 } else { 128 } }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// Error for text that is neither a prefix nor an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPrefix;

impl fmt::Display for NotAPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected an address or a prefix such as 10.0.0.0/8")
    }
}

impl std::error::Error for NotAPrefix {}

impl FromStr for Prefix {
    type Err = NotAPrefix;

    /// Parses a prefix, or an address as a prefix of full length. Sets host bits to zero.
    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        let (addr, len) = text.split_once('/').map_or((text, None), |(addr, len)| (addr, Some(len)));
        let whole = Self::from(addr.parse::<IpAddr>().map_err(|_| NotAPrefix)?);
        let len = len.map_or(Ok(whole.len), str::parse).map_err(|_| NotAPrefix)?;
        Self::containing(whole.addr, len).ok_or(NotAPrefix)
    }
}

/// A policy routing rule (`ip rule`) as it applies to the packets that one interface receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Set if the rule selects the packets that do not match both `from` and `to` (`ip rule add not`).
    pub not: bool,
    /// Prefix of the source; `None` for any.
    pub from: Option<Prefix>,
    /// Prefix of the destination; `None` for any.
    pub to: Option<Prefix>,
    /// Action on the packets that it selects.
    pub then: RuleAction,
}

/// Action of a policy routing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleAction {
    /// Looks up table local, and then table main; without a route, the next rule decides.
    LocalAndMain,
    /// Looks up one table; without a route, the next rule decides.
    Table {
        /// The table.
        table: u32,
        /// Length in bits of the shortest prefix that counts (`suppress_prefixlength`, plus one).
        shortest: u8,
    },
    /// Discards the packets as a route of this kind does.
    Discard(RouteKind),
    /// Leaves the packets to the kernel.
    Kernel,
}

/// Policy routing rules that apply to the packets that one interface receives, in the kernel's order. A family whose
/// packets are routed by tables local and main has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Rules for IPv4 packets.
    pub v4: Vec<Rule>,
    /// Rules for IPv6 packets.
    pub v6: Vec<Rule>,
    /// Rules by which the route back to an IPv4 packet's source is found (fib_validate_source), with the packet's
    /// source as the destination.
    pub back4: Vec<Rule>,
}

impl Rules {
    /// Returns whether all packets are routed by tables local and main.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.back4.is_empty()
    }

    /// Returns whether a rule ignores some of a table's IPv6 routes (`suppress_prefixlength`).
    pub fn suppress6(&self) -> bool {
        self.v6.iter().any(|rule| matches!(rule.then, RuleAction::Table { shortest: 1.., .. }))
    }
}

/// VLAN of an interface of kind `vlan` (linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Vlan {
    /// EtherType of its tags.
    pub protocol: u16,
    /// VLAN identifier.
    pub id: u16,
    /// Set if it only removes and adds its tag: it has the flag `reorder_hdr` alone, no QoS maps, and no XDP program.
    pub plain: bool,
}

/// Properties of a macvlan or macvtap (IFLA_MACVLAN_*, linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Macvlan {
    /// Mode (`enum macvlan_mode`): 1 private, 2 VEPA, 4 bridge, 8 passthru, 16 source.
    pub mode: u32,
    /// Set if it has no XDP program and no unknown property.
    pub plain: bool,
}

/// Properties of a bond (IFLA_BOND_*, linux/if_link.h), or of a team, of which only mode activebackup is known: it is
/// like the bonds' mode active-backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bond {
    /// Mode (BOND_MODE_*, linux/if_bonding.h): 1 active-backup, 2 balance-xor, 4 802.3ad; or [`Bond::UNKNOWN`].
    pub mode: u8,
    /// Index of the member that it sends by, in modes that have one (IFLA_BOND_ACTIVE_SLAVE).
    pub active: Option<u32>,
    /// Hash by which it chooses the member that a packet leaves by, in modes that do (BOND_XMIT_POLICY_*,
    /// linux/if_bonding.h): 0 layer2, 1 layer3+4, 2 layer2+3.
    pub xmit_hash: u8,
    /// Set if only the mode, the hash and the members decide about the bond's packets: no ARP monitor counts them, and
    /// it has no XDP program and no unknown property.
    pub plain: bool,
}

impl Bond {
    /// Mode in which it sends and receives by one member.
    pub const ACTIVE_BACKUP: u8 = 1;
    /// Mode of a team that is in another mode or has not been read.
    pub const UNKNOWN: u8 = u8::MAX;
}

/// Properties of a bridge (IFLA_BR_*, linux/if_link.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bridge {
    /// Shortest time in milliseconds after which a station that has not been seen is forgotten; 0 if none is learned.
    pub ageing_ms: u64,
    /// Set if stations' MAC addresses, and VLANs if it filters them, alone decide about unicast frames: it has no
    /// spanning tree for each VLAN (MST), no XDP program, and no unknown property.
    pub plain: bool,
    /// Set if it filters VLANs.
    pub filters: bool,
    /// EtherType of the tags by which it tells VLANs (IFLA_BR_VLAN_PROTOCOL): 0x8100 802.1Q, 0x88a8 802.1ad; 0 if it is
    /// not known.
    pub protocol: u16,
    /// Set if frames between its members pass hooks of IPv4, IPv6 or ARP (`nf_call_iptables` and the like).
    pub calls_ip: bool,
}

/// Handling of the frames between a bridge's member and the other members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Bridging {
    /// The kernel bridges them: more decides about them than addresses, or it is not known what decides.
    #[default]
    Kernel,
    /// They are bridged except between two isolated members (IFLA_BRPORT_ISOLATED).
    Isolated,
    /// The frames are bridged by their addresses.
    Any,
}

impl Bridging {
    /// Returns whether a bridge forwards frames between this member and that one by their addresses alone.
    pub fn reaches(self, that: Self) -> bool {
        !matches!((self, that), (Self::Kernel, _) | (_, Self::Kernel) | (Self::Isolated, Self::Isolated))
    }
}

/// State of a member of a bond (IFLA_BOND_SLAVE_*, linux/if_link.h) or of a bridge (IFLA_BRPORT_*).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Set if the member is in use: active for the bond, with a link that the bond's monitor considers up; forwarding
    /// for the bridge.
    pub active: bool,
    /// Set if no property of the member decides about its packets: for a bond, a number (`queue_id`); for a bridge, a
    /// lock.
    pub plain: bool,
    /// Set if VLANs of the bridge are networks of the member (`vlan_tunnel`): those with a [`VlanRange::vni`].
    pub tunnels: bool,
    /// Set if the bridge learns MAC addresses from the frames that the member receives.
    pub learns: bool,
    /// Handling of its frames to and from other members of its bridge.
    pub bridging: Bridging,
}

/// VLANs, in state forwarding, of a bridge's own interface or of a bridge's member (RTM_NEWVLAN). They matter only if
/// the bridge filters VLANs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BridgeVlans {
    /// VLAN whose frames it sends and receives without a tag; 0 if there is none.
    pub untagged: u16,
    /// VLANs whose frames it sends with a tag.
    pub tagged: Vec<VlanRange>,
    /// Set if they have changed and are not known until they have been read again.
    pub stale: bool,
}

/// Consecutive VLANs of a bridge or of a bridge's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VlanRange {
    /// First VLAN.
    pub first: u16,
    /// Last VLAN.
    pub last: u16,
    /// VNI of the first, if they are networks of a member that is a tunnel; the others have the following VNIs.
    pub vni: Option<u32>,
}

impl VlanRange {
    fn has(&self, vlan: u16) -> bool {
        (self.first..=self.last).contains(&vlan)
    }

    /// Returns the same VLANs, as networks only where `takes` is true of the VNI.
    pub fn restricted(self, takes: impl Fn(u32) -> bool) -> Vec<Self> {
        let Some(first) = self.vni else { return vec![self] };
        let mut all: Vec<Self> = vec![];
        for vlan in self.first..=self.last {
            let vni = Some(first + u32::from(vlan - self.first)).filter(|vni| takes(*vni));
            match all.last_mut() {
                Some(range) if range.vni.is_some() == vni.is_some() => range.last = vlan,
                _ => all.push(Self { first: vlan, last: vlan, vni }),
            }
        }
        all
    }
}

impl BridgeVlans {
    /// Returns whether it sends frames of this VLAN with a tag.
    pub fn tags(&self, vlan: u16) -> bool {
        self.tagged.iter().any(|range| range.has(vlan))
    }

    /// Returns the VLANs that it is in.
    pub fn all(&self) -> impl Iterator<Item = u16> {
        let untagged = Some(self.untagged).filter(|vlan| *vlan != 0 && !self.tags(*vlan));
        untagged.into_iter().chain(self.tagged.iter().flat_map(|range| range.first.max(1)..=range.last))
    }

    /// Returns the VNI of the network that a VLAN is on a member that is a tunnel; `None` if it is none there.
    pub fn vni(&self, vlan: u16) -> Option<u32> {
        let range = self.tagged.iter().find(|range| range.has(vlan))?;
        Some(range.vni? + u32::from(vlan - range.first))
    }

    /// Returns whether it sends frames of this VLAN with a tag (`Some(true)`), or sends and receives them without one
    /// (`Some(false)`); `None` if it is not in this VLAN.
    pub fn form(&self, vlan: u16) -> Option<bool> {
        if self.tags(vlan) { Some(true) } else { (vlan != 0 && self.untagged == vlan).then_some(false) }
    }
}

/// A network interface (RTM_NEWLINK).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Kernel index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Link-layer address; `None` for loopback, tunnels, and interfaces that resolve no neighbours (IFF_NOARP).
    pub mac: Option<Mac>,
    /// MTU in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// Running with carrier (IFF_LOWER_UP).
    pub carrier: bool,
    /// Kind: `veth`, `vlan`, `bond`, ...; empty for hardware.
    pub kind: String,
    /// Lower device, for VLAN, macvlan and ipvlan (IFLA_LINK).
    pub parent: Option<u32>,
    /// Set for a veth or netkit whose peer is in the same network namespace.
    pub paired: bool,
    /// VLAN of the interface, for kind `vlan`.
    pub vlan: Option<Vlan>,
    /// Properties of a macvlan or macvtap; `None` if they cannot be parsed.
    pub macvlan: Option<Macvlan>,
    /// Mode of an ipvlan or ipvtap (`enum ipvlan_mode`, linux/if_link.h): 0 L2, 1 L3, 2 L3S; `None` if it cannot be
    /// parsed.
    pub ipvlan: Option<u16>,
    /// Index of the bridge, bond or VRF it belongs to (IFLA_MASTER).
    pub master: Option<u32>,
    /// Routing table of a VRF (IFLA_VRF_TABLE), for kind `vrf`.
    pub vrf: Option<u32>,
    /// Properties of a bond, for kinds `bond` and `team`; `None` if they cannot be parsed.
    pub bond: Option<Bond>,
    /// Properties of a bridge, for kind `bridge`; `None` if they cannot be parsed.
    pub bridge: Option<Bridge>,
    /// State of a member of a bond, team or bridge; `None` if it is not a member, or its state cannot be parsed.
    pub member: Option<Member>,
    /// VLANs of a bridge, or of a bridge's member.
    pub vlans: BridgeVlans,
    /// Properties of a tunnel of IP packets or Ethernet frames (`ipip`, `ip6tnl`, `gretap`, `vxlan` and the like);
    /// `None` if they cannot be parsed, or if its packets come and leave in another network namespace.
    pub tunnel: Option<Tunnel>,
    /// Number of receive queues.
    pub rx_queues: u32,
    /// Set if it is a port of a switch in hardware (IFLA_PHYS_SWITCH_ID), which may already have forwarded a frame that
    /// the kernel gets.
    pub switch: bool,
}

/// Returns whether an address can be the address of a single host without naming a link: it is neither unspecified,
/// multicast, broadcast, loopback, IPv6 link-local nor IPv4-mapped.
pub fn is_host(addr: IpAddr) -> bool {
    let other = match addr {
        IpAddr::V4(addr) => addr.is_broadcast(),
        IpAddr::V6(addr) => addr.is_unicast_link_local() || addr.to_ipv4_mapped().is_some(),
    };
    !(addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || other)
}

/// Returns the VRF that an interface belongs to, by index, name and table; `None` if it belongs to none, or to one
/// whose table is not known.
pub fn vrf(links: &BTreeMap<u32, Link>, index: u32) -> Option<(u32, &str, u32)> {
    let vrf = links.get(&links.get(&index)?.master?)?;
    Some((vrf.index, &vrf.name, vrf.vrf?))
}

/// An address of an interface (RTM_NEWADDR).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Address {
    /// Kernel index of the interface.
    pub index: u32,
    /// The address (IFA_LOCAL if present).
    pub addr: IpAddr,
    /// Prefix length of its subnet.
    pub len: u8,
    /// Set if it is not a preferred source: secondary, deprecated, tentative, or failed duplicate address detection.
    pub secondary: bool,
    /// Set if its scope is link (IPv6) or not global (IPv4): it is then not a source of errors sent to other networks.
    pub link_scope: bool,
}

/// Action of a route on packets (rtm_type).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteKind {
    /// Forwards to a next hop.
    Unicast,
    /// Leaves the packet to the kernel: local, broadcast, anycast and multicast routes.
    Local,
    /// Discards silently.
    Blackhole,
    /// Discards with an ICMP host unreachable error (IPv6: no route).
    Unreachable,
    /// Discards with an ICMP administratively prohibited error.
    Prohibit,
    /// Continues in the next table; the same as no route when there is only one table.
    Throw,
}

/// Next hop of a unicast route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NextHop {
    /// Index of the egress interface; 0 if only the kernel can use this next hop (a route with another encapsulation
    /// than [`NextHop::outer`]).
    pub index: u32,
    /// Outer headers that it gives to packets.
    pub outer: Option<Outer>,
    /// Gateway; `None` if the destination is on the link. May be IPv6 for an IPv4 route (RFC 5549).
    pub gateway: Option<IpAddr>,
    /// Weight in the choice among next hops, 1 to 256.
    pub weight: u16,
    /// Set if the kernel's lookup uses it now (not RTNH_F_DEAD). Its link may still be without carrier: the kernel
    /// skips such next hops only if `ignore_routes_with_linkdown` is set.
    pub alive: bool,
}

/// A route (RTM_NEWROUTE) with its next-hop objects resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// Routing table: 254 is main, 255 is local.
    pub table: u32,
    /// Destination.
    pub prefix: Prefix,
    /// Action on packets.
    pub kind: RouteKind,
    /// Metric: the lowest wins among routes to one prefix.
    pub metric: u32,
    /// Next hops, for unicast; routes with equal next hops share one list.
    pub next_hops: Arc<[NextHop]>,
    /// MTU of this route in bytes (RTAX_MTU), if set.
    pub mtu: Option<u32>,
    /// Preferred source address (RTA_PREFSRC), if set.
    pub source: Option<IpAddr>,
    /// Origin of the route (rtm_protocol): 2 kernel, 3 boot, 4 static, 186 BGP, ...
    pub protocol: u8,
}

/// State of a neighbour, reduced to what matters for forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighbourState {
    /// Usable, and confirmed or being confirmed (REACHABLE, PERMANENT, NOARP, PROBE).
    Reachable,
    /// Usable, not confirmed recently (STALE, DELAY).
    Stale,
    /// Being resolved (INCOMPLETE); has no link-layer address yet.
    Incomplete,
    /// Resolution failed (FAILED).
    Failed,
}

/// A neighbour (RTM_NEWNEIGH).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// Interface.
    pub index: u32,
    /// IP address.
    pub addr: IpAddr,
    /// Link-layer address; `None` while incomplete or failed.
    pub mac: Option<Mac>,
    /// State of the entry.
    pub state: NeighbourState,
}

/// A station that a bridge, or a VXLAN interface in its place, knows (RTM_NEWNEIGH with AF_BRIDGE): an entry of its
/// forwarding database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Station {
    /// Kernel index of the bridge.
    pub bridge: u32,
    /// VLAN in which the bridge knows it, 0 if the bridge does not filter VLANs; for a VXLAN interface with several
    /// networks, the VNI of its network.
    pub vlan: u32,
    /// MAC address.
    pub mac: Mac,
    /// Member that leads to it, or the bridge for one of its own addresses; for a VXLAN interface, the other end that
    /// leads to it.
    pub behind: Behind,
}

/// Way to a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Behind {
    /// Interface, by kernel index.
    Member(u32),
    /// Other end of a VXLAN.
    End(IpAddr),
}

/// A change of the kernel's state. The first changes describe the whole state, up to [`Change::Synced`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// A new or changed link.
    Link(Link),
    /// A link that was deleted or moved to another namespace.
    LinkGone {
        /// Kernel index.
        index: u32,
    },
    /// All interfaces of other network namespaces that are above interfaces of this one, or are tunnels between its
    /// addresses. Their kernel indices are those of their own namespaces.
    Elsewhere {
        /// Interfaces.
        links: Vec<Link>,
    },
    /// A new or changed address.
    Address(Address),
    /// A removed address.
    AddressGone {
        /// Interface.
        index: u32,
        /// Address.
        addr: IpAddr,
        /// Prefix length of its subnet.
        len: u8,
    },
    /// A new or replaced route, identified by table, prefix and metric.
    Route(Route),
    /// A removed route.
    RouteGone {
        /// Table.
        table: u32,
        /// Destination.
        prefix: Prefix,
        /// Metric.
        metric: u32,
    },
    /// A prefix that now has routes for some of its packets only, by TOS or source, so that only the kernel can route
    /// its packets. Such routes are not reported themselves.
    Selective {
        /// Table.
        table: u32,
        /// Destination.
        prefix: Prefix,
    },
    /// A prefix that has no such routes any more.
    SelectiveGone {
        /// Table.
        table: u32,
        /// Destination.
        prefix: Prefix,
    },
    /// A new or changed neighbour.
    Neighbour(Neighbour),
    /// A removed neighbour.
    NeighbourGone {
        /// Interface.
        index: u32,
        /// Address.
        addr: IpAddr,
    },
    /// A new station of a bridge, or one that has moved to another member.
    Station(Station),
    /// A station that a bridge no longer knows.
    StationGone {
        /// Kernel index of the bridge.
        bridge: u32,
        /// VLAN or VNI, as in [`Station::vlan`].
        vlan: u32,
        /// MAC address.
        mac: Mac,
    },
    /// The whole state at the start of the dump has been reported (initially, and after every full read, which reports
    /// only differences).
    Synced,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let p = |text: &str| text.parse::<Prefix>().unwrap();
        assert_eq!((p("10.1.2.3/8"), p("fd00::1")), (p("10.0.0.0/8"), p("fd00::1/128")));
        for bad in ["", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "x", "10.0.0.0/"] {
            assert_eq!(bad.parse::<Prefix>(), Err(NotAPrefix), "{bad}");
        }
        for (outer, inner, covers) in [
            ("0.0.0.0/0", "10.1.2.3", true),
            ("::/0", "10.1.2.3", false),
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.1.0.0/16", "10.0.0.0/8", false),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("fd00::/8", "fd12::1", true),
        ] {
            assert_eq!(p(outer).covers(p(inner)), covers, "{outer} {inner}");
        }
    }
}
