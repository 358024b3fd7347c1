//! The kernel's routing as plain data: what the mirror reports and the router's control side takes in.
//!
//! Addresses are `std::net` types; interfaces are kernel indices.

use serde::Serialize;
use std::net::IpAddr;
use std::sync::Arc;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Address families, as a set.
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

impl std::ops::BitOrAssign for Families {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// Packets received on a port that stay the kernel's, because one of its policies (firewall, IPsec, rule, filter, switch)
/// concerns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// Families of which every packet is the kernel's.
    pub closed: Families,
    /// Families of which fragments are the kernel's.
    pub fragments: Families,
    /// Families of which the kernel gets the packets that an ICMP error would be sent about: it sends the error.
    pub errors: Families,
}

impl Gate {
    /// Every packet is the kernel's.
    pub const CLOSED: Self = Self { closed: Families::BOTH, fragments: Families::BOTH, errors: Families::BOTH };
}

/// Fields of a packet that choose among equal next hops: `net.ipv4.fib_multipath_hash_policy` and its twin of IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HashPolicy {
    /// Policy 0: the addresses, of IPv6 flow label and next header too; of an ICMP error, those of the packet it is about.
    L3,
    /// Policy 1: addresses, protocol and ports.
    #[default]
    L4,
    /// Policies 2 and 3, by fields that are not looked at here: groups are the kernel's.
    Kernel,
}

/// Source validation of IPv4 by reverse path: `rp_filter` of Linux (ip-sysctl), RFC 3704.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceCheck {
    /// No check.
    #[default]
    Off,
    /// A unicast route leads to the source (`rp_filter` 2).
    Loose,
    /// The route to the source leads by the port that received the packet (`rp_filter` 1).
    Strict,
}

/// A prefix: an address with host bits zero, and its length in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Prefix {
    /// First address.
    pub addr: IpAddr,
    /// Leading bits that count: 0 to 32 or 128.
    pub len: u8,
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// A network interface (RTM_NEWLINK).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Kernel index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Link-layer address; none for loopback and tunnels.
    pub mac: Option<Mac>,
    /// MTU in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// Running with carrier (IFF_LOWER_UP).
    pub carrier: bool,
    /// Kind: `veth`, `vlan`, `bond`, ...; empty for hardware.
    pub kind: String,
    /// Lower device, for VLAN and macvlan (IFLA_LINK).
    pub parent: Option<u32>,
    /// VLAN id, for kind `vlan`.
    pub vlan: Option<u16>,
    /// Mode of a macvlan or macvtap (`enum macvlan_mode`, linux/if_link.h): 1 private, 2 VEPA, 4 bridge, 8 passthru, 16 source.
    pub macvlan: Option<u32>,
    /// Bridge, bond or VRF it belongs to (IFLA_MASTER).
    pub master: Option<u32>,
    /// Receive queues.
    pub rx_queues: u32,
}

/// An address of an interface (RTM_NEWADDR).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Address {
    /// Interface.
    pub index: u32,
    /// The address itself (IFA_LOCAL where there is one).
    pub addr: IpAddr,
    /// Length of its subnet's prefix.
    pub len: u8,
    /// A secondary address of its subnet (IFA_F_SECONDARY): not a preferred source.
    pub secondary: bool,
    /// IPv6 scope is link, or IPv4 scope is not global: not a source for errors sent afar.
    pub link_scope: bool,
}

/// What a route does with a packet (rtm_type).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteKind {
    /// Sends it on.
    Unicast,
    /// It is the kernel's own: local, broadcast, anycast or multicast routes.
    Local,
    /// Discards it silently.
    Blackhole,
    /// Discards it with an ICMP host unreachable (IPv6: no route).
    Unreachable,
    /// Discards it with an ICMP administratively prohibited.
    Prohibit,
    /// Looks on in the next table; with one table only, no route.
    Throw,
}

/// One way out of a unicast route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NextHop {
    /// Interface to send on; 0 when only the kernel can serve this way (a route with an encapsulation).
    pub index: u32,
    /// Neighbour to send to; none: the destination itself is on the link. May be IPv6 for an IPv4 route (RFC 5549).
    pub gateway: Option<IpAddr>,
    /// Share of flows, 1 to 256.
    pub weight: u16,
    /// Used by the kernel's lookup now (not RTNH_F_DEAD). Its link may be without carrier all the same: such next hops
    /// are passed over only where `ignore_routes_with_linkdown` is set.
    pub alive: bool,
}

/// A route (RTM_NEWROUTE), next-hop objects resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// Table: 254 main, 255 local.
    pub table: u32,
    /// Destination.
    pub prefix: Prefix,
    /// What it does.
    pub kind: RouteKind,
    /// Lower wins among routes to one prefix.
    pub metric: u32,
    /// Ways out, for unicast; routes that go the same way share one list.
    pub next_hops: Arc<[NextHop]>,
    /// MTU of this route (RTAX_MTU), when set.
    pub mtu: Option<u32>,
    /// Preferred source address (RTA_PREFSRC), when set.
    pub source: Option<IpAddr>,
    /// Who made it (rtm_protocol): 2 kernel, 3 boot, 4 static, 186 BGP, ...
    pub protocol: u8,
}

/// State of a neighbour, as far as forwarding cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighbourState {
    /// Usable, and confirmed or being confirmed (REACHABLE, PERMANENT, NOARP, DELAY, PROBE).
    Reachable,
    /// Usable, not confirmed lately (STALE).
    Stale,
    /// Being asked for (INCOMPLETE), no address yet.
    Incomplete,
    /// Asked for without an answer.
    Failed,
}

/// A neighbour (RTM_NEWNEIGH).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// Interface.
    pub index: u32,
    /// Its IP address.
    pub addr: IpAddr,
    /// Its link-layer address; none while incomplete or failed.
    pub mac: Option<Mac>,
    /// Its state.
    pub state: NeighbourState,
}

/// A change in the kernel. The first ones describe all there is, up to [`Change::Synced`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// New, or different from before.
    Link(Link),
    /// Gone: deleted, or moved to another namespace.
    LinkGone {
        /// Its index.
        index: u32,
    },
    /// New, or different.
    Address(Address),
    /// Gone.
    AddressGone {
        /// Interface.
        index: u32,
        /// Address.
        addr: IpAddr,
        /// Length of its subnet's prefix.
        len: u8,
    },
    /// New, or replaced: table, prefix and metric name it.
    Route(Route),
    /// Gone.
    RouteGone {
        /// Table.
        table: u32,
        /// Destination.
        prefix: Prefix,
        /// Metric.
        metric: u32,
    },
    /// A prefix has come to have routes for some of its packets only, by TOS or source: the kernel alone can tell whose
    /// they are. Such routes are not reported themselves.
    Selective {
        /// Table.
        table: u32,
        /// Destination.
        prefix: Prefix,
    },
    /// It has none any more.
    SelectiveGone {
        /// Table.
        table: u32,
        /// Destination.
        prefix: Prefix,
    },
    /// New, or different.
    Neighbour(Neighbour),
    /// Gone.
    NeighbourGone {
        /// Interface.
        index: u32,
        /// Address.
        addr: IpAddr,
    },
    /// Everything the kernel had when the dump began has been reported (at the start, and again after an overflow,
    /// when only differences were).
    Synced,
}
