//! Parses the kernel's messages into events of the followed objects.

mod link;

pub(crate) use link::upper_elsewhere;

use crate::uapi::*;
use bywash_fib::model::{
    Address, Behind, BridgeVlans, Link, Mac, Member, Neighbour, NeighbourState, Outer, OuterHeader, Prefix, Station,
    VlanRange, is_host,
};
use bywash_nl::wire::{Attributes, Message, u8_at, u16_at, u32_at};
use link::link;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Key of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey {
    /// Routing table: 254 is main, 255 is local.
    pub table: u32,
    /// Destination.
    pub prefix: Prefix,
    /// Metric (RTA_PRIORITY): the lowest wins.
    pub metric: u32,
}

/// A next hop as given in a route or next-hop object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leg {
    pub index: u32,
    pub gateway: Option<IpAddr>,
    pub weight: u16,
    /// RTNH_F_DEAD: not used, whatever the state of its link.
    pub dead: bool,
    /// Not used while its link has no carrier (`ignore_routes_with_linkdown`): RTNH_F_DEAD and RTNH_F_LINKDOWN
    /// (fib_nexthop_info). RTNH_F_LINKDOWN alone has no effect: the kernel keeps using the next hop.
    pub ignored: bool,
    /// Encapsulation of the packets that it takes.
    pub encap: Encap,
}

/// Encapsulation of the packets of a next hop (RTA_ENCAP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encap {
    None,
    /// Headers for a tunnel that takes them from routes.
    Outer(Outer),
    /// Any other, by a hash of its type and properties: only the kernel can apply it.
    Kernel(u64),
}

/// A route without its key. Equal bodies are stored once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Body {
    /// Route type (RTN_*).
    pub kind: u8,
    pub protocol: u8,
    pub scope: u8,
    pub mtu: Option<u32>,
    pub source: Option<IpAddr>,
    /// Id of the next-hop object; 0 for none. With an object, `legs` is empty.
    pub object: u32,
    pub legs: Vec<Leg>,
    /// Set if the legs have, or may have, different MTUs, so that only the kernel can use them: of an IPv6 route each
    /// leg has its own, of which a message shows one.
    pub mixed_mtus: bool,
    /// Hash of what else tells IPv4 routes of one key apart (fib_find_info): metrics, realms, `onlink`. 0 without any.
    pub others: u64,
}

/// A next-hop object (RTM_NEWNEXTHOP).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Leg(Leg),
    Blackhole,
    /// Ids and weights of the members.
    Group(Vec<(u32, u16)>),
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new or changed link. `switched` is true if this message reports a change of IFF_UP, RUNNING or LOWER_UP.
    Link {
        link: Link,
        switched: bool,
    },
    LinkGone(u32),
    Address {
        address: Address,
        /// Set if the address has a lifetime, which may differ in each message.
        expires: bool,
    },
    AddressGone(u32, IpAddr, u8),
    /// A new, changed or removed route. `flags` are the message's NLM_F_*.
    Route {
        key: RouteKey,
        body: Body,
        flags: u16,
        gone: bool,
        /// Time until the route expires; `None` if it does not.
        expires: Option<Duration>,
    },
    /// A route for one TOS or some sources only. Only its links matter, because it is removed with them.
    Selective {
        table: u32,
        prefix: Prefix,
        links: Vec<u32>,
        gone: bool,
    },
    Object(u32, Object),
    ObjectGone(u32),
    Neighbour(Neighbour),
    NeighbourGone(u32, IpAddr),
    /// The state of a bridge's member, by index.
    BridgePort(u32, Member),
    /// VLANs of a bridge or of its member, by index. A notification has those only that have changed, and a dump has
    /// all of them, perhaps in several messages.
    BridgeVlans(u32, BridgeVlans),
    /// Networks that a VXLAN receives, by index: the first and last VNI of ranges.
    Networks(u32, Vec<(u32, u32)>),
    /// Networks that it no longer receives.
    NetworksGone(u32, Vec<(u32, u32)>),
    Station(Station),
    StationGone {
        bridge: u32,
        vlan: u32,
        mac: Mac,
    },
    /// `ignore_routes_with_linkdown` of an interface, or of all ([`NETCONFA_IFINDEX_ALL`]), has been set.
    Linkdown {
        index: u32,
        v6: bool,
    },
}

/// Error for a message that is too short for its kind or lacks a mandatory attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Parses one message. `None` for messages that are not followed: other families, caches, devices' own address lists.
pub fn parse(message: &Message<'_>) -> Result<Option<Event>, Malformed> {
    let body = message.body;
    let parsed = match message.kind {
        RTM_NEWLINK | RTM_DELLINK => link(body, message.kind == RTM_DELLINK),
        RTM_NEWADDR | RTM_DELADDR => address(body, message.kind == RTM_DELADDR),
        RTM_NEWROUTE | RTM_DELROUTE => route(body, message.flags, message.kind == RTM_DELROUTE),
        RTM_NEWNEIGH | RTM_DELNEIGH => neighbour(body, message.kind == RTM_DELNEIGH),
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP => object(body, message.kind == RTM_DELNEXTHOP),
        RTM_NEWVLAN | RTM_DELVLAN => vlans(body),
        RTM_NEWTUNNEL | RTM_DELTUNNEL => networks(body, message.kind == RTM_DELTUNNEL),
        RTM_NEWNETCONF => netconf(body),
        _ => return Ok(None),
    };
    match parsed {
        Some(event) => Ok(event),
        None => Err(Malformed),
    }
}

/// Result of a parser: `None` if malformed, `Some(None)` if not followed.
type Parsed = Option<Option<Event>>;

fn address(body: &[u8], gone: bool) -> Parsed {
    let family = u8_at(body, 0)?;
    if family != AF_INET && family != AF_INET6 {
        return Some(None);
    }
    let (len, short_flags, scope, index) = (u8_at(body, 1)?, u8_at(body, 2)?, u8_at(body, 3)?, u32_at(body, 4)?);
    let (mut local, mut peer, mut flags) = (None, None, u32::from(short_flags));
    for (kind, value) in Attributes::after(body, 8) {
        match kind {
            IFA_LOCAL => local = ip(family, value),
            IFA_ADDRESS => peer = ip(family, value),
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let addr = local.or(peer)?;
    if len > longest(family) {
        return None;
    }
    if gone {
        return Some(Some(Event::AddressGone(index, addr, len)));
    }
    let unpreferred = IFA_F_SECONDARY | IFA_F_DEPRECATED | IFA_F_TENTATIVE | IFA_F_DADFAILED;
    let link_scope = if addr.is_ipv4() { scope != RT_SCOPE_UNIVERSE } else { scope >= RT_SCOPE_LINK };
    let address = Address { index, addr, len, secondary: flags & unpreferred != 0, link_scope };
    Some(Some(Event::Address { address, expires: flags & IFA_F_PERMANENT == 0 }))
}

fn route(body: &[u8], message_flags: u16, gone: bool) -> Parsed {
    let family = u8_at(body, 0)?;
    let flags = u32_at(body, 8)?;
    // Multicast routes have families of their own; cloned routes are caches (path MTU, redirects).
    if (family != AF_INET && family != AF_INET6) || flags & RTM_F_CLONED != 0 {
        return Some(None);
    }
    let (len, source_len, tos) = (u8_at(body, 1)?, u8_at(body, 2)?, u8_at(body, 3)?);
    let mut key =
        RouteKey { table: u32::from(u8_at(body, 4)?), prefix: Prefix { addr: unspecified(family), len }, metric: 0 };
    let mut read = Body {
        kind: u8_at(body, 7)?,
        protocol: u8_at(body, 5)?,
        scope: u8_at(body, 6)?,
        mtu: None,
        source: None,
        object: 0,
        legs: Vec::new(),
        mixed_mtus: false,
        others: 0,
    };
    let v4 = family == AF_INET;
    // Of the legs, unless they are those of a next-hop object.
    let mut of_legs = if v4 && flags & RTNH_F_ONLINK != 0 { digest(RTNH_F_ONLINK) } else { 0 };
    let mut leg = Leg::of(flags);
    let mut nested = false;
    let mut lifetime = 0;
    // Set if only the kernel can use the route.
    let mut kernels = false;
    for (kind, value) in Attributes::after(body, 12) {
        match kind {
            RTA_METRICS if v4 => read.others = digest(value),
            RTA_FLOW if v4 => of_legs = digest((of_legs, value)),
            _ => {}
        }
        match kind {
            RTA_DST => key.prefix.addr = ip(family, value)?,
            RTA_TABLE => key.table = u32_at(value, 0)?,
            RTA_PRIORITY => key.metric = u32_at(value, 0)?,
            RTA_PREFSRC => read.source = ip(family, value),
            RTA_METRICS => {
                let metric = |wanted| attribute(value, wanted).and_then(|metric| u32_at(metric, 0));
                read.mtu = metric(RTAX_MTU)
                    .filter(|mtu| *mtu != 0)
                    // ip6_forward() raises a smaller one.
                    .map(|mtu| if family == AF_INET6 { mtu.max(IPV6_MIN_MTU) } else { mtu });
                // IPv4 then takes 576 octets for the MTU of a route by a gateway (ip_dst_mtu_maybe_forward).
                let locked = metric(RTAX_LOCK).is_some_and(|locked| locked & 1 << RTAX_MTU != 0);
                kernels |= v4 && locked && read.mtu.is_none();
            }
            RTA_NH_ID => read.object = u32_at(value, 0)?,
            RTA_CACHEINFO if family == AF_INET6 => lifetime = u32_at(value, RTA_CACHEINFO_EXPIRES)? as i32,
            RTA_MULTIPATH => {
                nested = true;
                read.legs = multipath(family, value, &mut of_legs)?;
            }
            _ => leg_attribute(family, kind, value, &mut leg),
        }
    }
    if read.object != 0 {
        read.legs = Vec::new();
    } else if !nested && leg.index != 0 {
        read.legs = vec![leg];
    }
    if read.object == 0 && of_legs != 0 {
        read.others = digest((read.others, of_legs));
    }
    if len > longest(family) {
        return None;
    }
    if source_len != 0 || tos != 0 {
        let links = read.legs.iter().map(|leg| leg.index).collect();
        return Some(Some(Event::Selective { table: key.table, prefix: key.prefix, links, gone }));
    }
    // Each of several legs has a lifetime of its own, of which the message shows the first. The kernel uses all legs
    // until the last has expired (fib6_select_path).
    kernels |= nested && lifetime < 0 && !gone;
    if kernels {
        if read.object != 0 {
            (read.object, read.legs) = (0, vec![Leg::of(flags)]);
        }
        read.legs.iter_mut().for_each(|leg| leg.encap = Encap::kernels((leg.encap, lifetime < 0)));
    } else if lifetime < 0 && !gone {
        // The kernel shows an expired route until it collects it, and does not use it (fib6_check_expired).
        return Some(None);
    }
    let expires = (lifetime > 0).then(|| Duration::from_secs(1) * lifetime.unsigned_abs() / USER_HZ);
    Some(Some(Event::Route { key, body: read, flags: message_flags, gone, expires }))
}

/// Parses the legs of RTA_MULTIPATH: struct rtnexthop, each followed by its attributes. Adds what else tells legs of
/// IPv4 routes apart to `others`.
fn multipath(family: u8, mut rest: &[u8], others: &mut u64) -> Option<Vec<Leg>> {
    let mut legs = Vec::new();
    while rest.len() >= 8 {
        let length = usize::from(u16_at(rest, 0)?);
        let one = rest.get(..length).filter(|one| one.len() >= 8)?;
        let (flags, weight) = (u32::from(u8_at(one, 2)?), u16::from(u8_at(one, 3)?) + 1);
        let mut leg = Leg { index: u32_at(one, 4)?, weight, ..Leg::of(flags) };
        let mut more = flags & RTNH_F_ONLINK != 0;
        for (kind, value) in Attributes::after(one, 8) {
            more |= kind == RTA_FLOW;
            if kind != RTA_OIF {
                leg_attribute(family, kind, value, &mut leg);
            }
        }
        if family == AF_INET && more {
            let flow = Attributes::after(one, 8).find(|(kind, _)| *kind == RTA_FLOW);
            *others = digest((*others, legs.len(), flags & RTNH_F_ONLINK, flow));
        }
        legs.push(leg);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(legs)
}

/// Sets the field of a leg that an attribute of a route gives; others are ignored.
pub(crate) fn leg_attribute(family: u8, kind: u16, value: &[u8], leg: &mut Leg) {
    match kind {
        RTA_OIF => leg.index = u32_at(value, 0).unwrap_or(0),
        RTA_GATEWAY => leg.gateway = ip(family, value).filter(|gateway| !gateway.is_unspecified()),
        // struct rtvia: a family, then an address of it.
        RTA_VIA => {
            let via = u16_at(value, 0).and_then(|family| ip(u8::try_from(family).ok()?, &value[2..]));
            leg.gateway = via.or(leg.gateway);
        }
        RTA_ENCAP => leg.encap = leg.encap.with(value),
        RTA_ENCAP_TYPE => leg.encap = leg.encap.of_type(value),
        _ => {}
    }
}

fn object(body: &[u8], gone: bool) -> Parsed {
    let family = u8_at(body, 0)?;
    let mut leg = Leg::of(u32_at(body, 4)?);
    let (mut id, mut group, mut blackhole) = (None, None, false);
    for (kind, value) in Attributes::after(body, 8) {
        match kind {
            NHA_ID => id = u32_at(value, 0),
            NHA_GROUP => group = Some(members(value)),
            NHA_BLACKHOLE => blackhole = true,
            NHA_OIF => leg.index = u32_at(value, 0)?,
            NHA_GATEWAY => leg.gateway = ip(family, value).filter(|gateway| !gateway.is_unspecified()),
            NHA_ENCAP => leg.encap = leg.encap.with(value),
            NHA_ENCAP_TYPE => leg.encap = leg.encap.of_type(value),
            // Used by VXLAN; routes cannot refer to it.
            NHA_FDB => return Some(None),
            _ => {}
        }
    }
    // The kernel sends to the destinations themselves then (rt_set_nexthop): the gateway was one of the host's own
    // addresses when the next hop was added, or had a route of such a scope.
    if family == AF_INET && u8_at(body, 1)? > RT_SCOPE_LINK {
        leg.gateway = None;
    }
    let id = id?;
    Some(Some(match (gone, group, blackhole) {
        (true, ..) => Event::ObjectGone(id),
        (_, Some(members), _) => Event::Object(id, Object::Group(members)),
        (_, None, true) => Event::Object(id, Object::Blackhole),
        (_, None, false) => Event::Object(id, Object::Leg(leg)),
    }))
}

/// Parses an array of struct nexthop_grp: id, low octet of weight - 1, high octet (since Linux 6.12).
fn members(value: &[u8]) -> Vec<(u32, u16)> {
    value
        .chunks_exact(8)
        .filter_map(|member| {
            let weight = u16::from_le_bytes([u8_at(member, 4)?, u8_at(member, 5)?]);
            Some((u32_at(member, 0)?, weight.saturating_add(1)))
        })
        .collect()
}

fn neighbour(body: &[u8], gone: bool) -> Parsed {
    let family = u8_at(body, 0)?;
    let (index, state, flags) = (u32_at(body, 4)?, u16_at(body, 8)?, u8_at(body, 10)?);
    if family == AF_BRIDGE {
        return station(body, (index, state), gone);
    }
    if (family != AF_INET && family != AF_INET6) || flags & NTF_PROXY != 0 {
        return Some(None);
    }
    let (mut addr, mut lladdr) = (None, None);
    for (kind, value) in Attributes::after(body, 12) {
        match kind {
            NDA_DST => addr = ip(family, value),
            NDA_LLADDR => lladdr = mac(value),
            _ => {}
        }
    }
    let addr = addr?;
    // Mappings of multicast addresses appear without a message and add nothing to the address itself.
    if addr.is_multicast() || addr == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Some(None);
    }
    let state = match state {
        _ if gone => return Some(Some(Event::NeighbourGone(index, addr))),
        NUD_NONE => return Some(Some(Event::NeighbourGone(index, addr))),
        NUD_INCOMPLETE => NeighbourState::Incomplete,
        state if state & NUD_FAILED != 0 => NeighbourState::Failed,
        // The kernel does not announce that an entry goes from STALE to DELAY.
        state if state & (NUD_STALE | NUD_DELAY) != 0 => NeighbourState::Stale,
        _ => NeighbourState::Reachable,
    };
    let usable = matches!(state, NeighbourState::Reachable | NeighbourState::Stale);
    Some(Some(Event::Neighbour(Neighbour { index, addr, mac: lladdr.filter(|_| usable), state })))
}

/// Parses an entry of a bridge's forwarding database, or of a VXLAN interface's own. Entries of a device's own list
/// have no NDA_MASTER, and those of the bridge's own addresses are permanent: the bridge itself takes the place of
/// their member. The kernel drops packets of stations that are locked out; the meaning of other flags is unknown.
fn station(body: &[u8], (member, state): (u32, u16), gone: bool) -> Parsed {
    let (mut bridge, mut address, mut vlan, mut locked) = (None, None, 0, false);
    let (mut end, mut special, mut network, mut vni) = (None, false, 0, None);
    for (kind, value) in Attributes::after(body, 12) {
        match kind {
            NDA_MASTER => bridge = u32_at(value, 0),
            NDA_LLADDR => address = mac(value),
            NDA_VLAN => vlan = u16_at(value, 0)?.into(),
            NDA_FLAGS_EXT => locked = u32_at(value, 0)? != 0,
            NDA_DST => end = Some(address_of(value)),
            NDA_SRC_VNI => network = u32_at(value, 0)?,
            NDA_VNI => vni = u32_at(value, 0),
            // Another port or interface than the VXLAN interface's, or several ends.
            NDA_PORT | NDA_IFINDEX | NDA_NH_ID => special = true,
            _ => {}
        }
    }
    // Frames of one network may be sent as those of another: also as those of network 0, by a VXLAN of one network,
    // whose entries do not show its own.
    special |= vni.is_some_and(|vni| vni == 0 || vni != network);
    if let (None, Some(mac), true) = (bridge, address, end.is_some() || special) {
        // An all-zero or group address stands for all unknown stations, or for a group.
        if mac == [0; 6] || mac[0] & 1 != 0 {
            return Some(None);
        }
        let (bridge, vlan) = (member, network);
        // Packets to a group, to nobody, or to a loopback address are left to the kernel.
        return Some(Some(match end.flatten().filter(|end| is_host(*end) && !gone && !special) {
            Some(end) => Event::Station(Station { bridge, vlan, mac, behind: Behind::End(end) }),
            None => Event::StationGone { bridge, vlan, mac },
        }));
    }
    let (Some(bridge), Some(mac)) = (bridge, address) else { return Some(None) };
    let member = if state & NUD_PERMANENT != 0 { bridge } else { member };
    Some(Some(match gone || locked {
        true => Event::StationGone { bridge, vlan, mac },
        false => Event::Station(Station { bridge, vlan, mac, behind: Behind::Member(member) }),
    }))
}

/// Parses struct br_vlan_msg: VLANs of a bridge or of its member, as far as they are in state forwarding. Frames that
/// it receives without a tag belong to its PVID; it sends those of a VLAN without a tag if the VLAN is so flagged. Of
/// the VLANs that it sends without a tag, only the PVID is recorded.
fn vlans(body: &[u8]) -> Parsed {
    let index = u32_at(body, 4)?;
    let mut vlans = BridgeVlans::default();
    for (_, entry) in Attributes::after(body, 8).filter(|(kind, _)| *kind == BRIDGE_VLANDB_ENTRY) {
        let info = attribute(entry, BRIDGE_VLANDB_ENTRY_INFO)?;
        let (flags, first) = (u16_at(info, 0)?, u16_at(info, 2)?);
        let last = attribute(entry, BRIDGE_VLANDB_ENTRY_RANGE).map_or(Some(first), |value| u16_at(value, 0))?;
        let state = attribute(entry, BRIDGE_VLANDB_ENTRY_STATE).and_then(|value| u8_at(value, 0));
        let tunnel = attribute(entry, BRIDGE_VLANDB_ENTRY_TUNNEL_INFO);
        // The VNI is the first VLAN's: only VLANs with consecutive VNIs form a range (vlan_tunid_inrange).
        let vni =
            tunnel.and_then(|info| u32_at(attribute(info, BRIDGE_VLANDB_TINFO_ID)?, 0)).filter(|vni| vni >> 24 == 0);
        let untagged = flags & BRIDGE_VLAN_INFO_UNTAGGED != 0;
        // Without the tag, the bridge does not find the VNI of a frame that it sends.
        if state != Some(BR_STATE_FORWARDING) || (tunnel.is_some() && (untagged || vni.is_none())) {
            continue;
        }
        match (untagged, flags & BRIDGE_VLAN_INFO_PVID != 0) {
            (false, _) => vlans.tagged.push(VlanRange { first, last, vni }),
            (true, true) if first == last => vlans.untagged = first,
            (true, _) => {}
        }
    }
    Some(Some(Event::BridgeVlans(index, vlans)))
}

/// Parses struct tunnel_msg: networks that a VXLAN with a filter receives.
fn networks(body: &[u8], gone: bool) -> Parsed {
    let index = u32_at(body, 4)?;
    let mut all = vec![];
    for (_, entry) in Attributes::after(body, 8).filter(|(kind, _)| *kind == VXLAN_VNIFILTER_ENTRY) {
        let first = u32_at(attribute(entry, VXLAN_VNIFILTER_ENTRY_START)?, 0)?;
        let last = attribute(entry, VXLAN_VNIFILTER_ENTRY_END).map_or(Some(first), |value| u32_at(value, 0))?;
        all.push((first, last));
    }
    Some(Some(if gone { Event::NetworksGone(index, all) } else { Event::Networks(index, all) }))
}

/// Parses struct netconfmsg, which holds a family.
fn netconf(body: &[u8]) -> Parsed {
    let family = u8_at(body, 0)?;
    let of = |wanted| Attributes::after(body, 1).find(|(kind, _)| *kind == wanted);
    if (family != AF_INET && family != AF_INET6) || of(NETCONFA_IGNORE_ROUTES_WITH_LINKDOWN).is_none() {
        return Some(None);
    }
    let index = u32_at(of(NETCONFA_IFINDEX)?.1, 0)?;
    Some(Some(Event::Linkdown { index, v6: family == AF_INET6 }))
}

impl Leg {
    /// Returns a leg with these RTNH_F_* and nothing else.
    pub(crate) fn of(flags: u32) -> Self {
        let dead = flags & RTNH_F_DEAD != 0;
        let ignored = dead && flags & RTNH_F_LINKDOWN != 0;
        Self { index: 0, gateway: None, weight: 1, dead, ignored, encap: Encap::None }
    }
}

impl Encap {
    /// Returns the encapsulation with these attributes, whose type follows (lwtunnel_fill_encap).
    fn with(self, attributes: &[u8]) -> Self {
        let properties = || Attributes::after(attributes, 0).filter(|(kind, _)| *kind != SEG6_LOCAL_COUNTERS);
        match (self, outer(attributes)) {
            (Self::None, Some(outer)) => Self::Outer(outer),
            (before, _) => Self::kernels((before, properties().collect::<Vec<_>>())),
        }
    }

    /// Returns the encapsulation if it has this type (`enum lwtunnel_encap_types`).
    fn of_type(self, value: &[u8]) -> Self {
        match (self, u16_at(value, 0)) {
            (_, Some(LWTUNNEL_ENCAP_NONE)) => Self::None,
            (Self::Outer(outer), Some(LWTUNNEL_ENCAP_IP)) if outer.remote.is_ipv4() => self,
            (Self::Outer(outer), Some(LWTUNNEL_ENCAP_IP6)) if outer.remote.is_ipv6() => self,
            (_, kind) => Self::kernels((self, kind)),
        }
    }

    /// Returns an encapsulation with these properties that only the kernel can apply.
    fn kernels(properties: impl Hash) -> Self {
        Self::Kernel(digest(properties))
    }
}

/// Returns a hash that is the same in every process.
fn digest(value: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// Parses LWTUNNEL_IP_*, or LWTUNNEL_IP6_*, which have the same numbers; `None` for other options than those of
/// [`Outer`].
fn outer(attributes: &[u8]) -> Option<Outer> {
    let (mut id, mut ends, mut ttl, mut tos, mut flags) = (None, [None; 2], 0, 0, 0);
    for (kind, value) in Attributes::after(attributes, 0) {
        match kind {
            LWTUNNEL_IP_ID => id = Some(u64::from_be_bytes(value.try_into().ok()?)),
            LWTUNNEL_IP_DST => ends[0] = address_of(value),
            LWTUNNEL_IP_SRC => ends[1] = address_of(value),
            LWTUNNEL_IP_TTL => ttl = u8_at(value, 0)?,
            LWTUNNEL_IP_TOS => tos = u8_at(value, 0)?,
            LWTUNNEL_IP_FLAGS => flags = u16::from_be(u16_at(value, 0)?),
            LWTUNNEL_IP_PAD => {}
            _ => return None,
        }
    }
    let [Some(remote), Some(source)] = ends else { return None };
    let id = u32::try_from(id?).ok()?;
    // The ECN bits are those of the packet within (ip_tunnel_ecn_encap), but the kernel tells routes apart by these,
    // too. Rules about errors are evaluated for the tunnel, not for routes that set DF.
    let known = flags & !(TUNNEL_CSUM | TUNNEL_KEY) == 0 && tos & 3 == 0;
    let [checksum, keyed] = [TUNNEL_CSUM, TUNNEL_KEY].map(|flag| flags & flag != 0);
    let header = OuterHeader { id, keyed, ttl, tos, checksum, dont_fragment: false };
    let hosts = is_host(remote) && (source.is_unspecified() || is_host(source));
    (known && hosts && source.is_ipv4() == remote.is_ipv4()).then_some(Outer { remote, source, header })
}

fn unspecified(family: u8) -> IpAddr {
    if family == AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Returns the number of bits of an address of IPv4 or IPv6.
fn longest(family: u8) -> u8 {
    if family == AF_INET { 32 } else { 128 }
}

/// Parses an address.
pub(crate) fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        AF_INET6 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Returns the first attribute of this type.
fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    Attributes::after(attributes, 0).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Returns an address whose length tells its family.
fn address_of(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(value).ok().map(IpAddr::from))
}

fn is_zero(value: &[u8]) -> bool {
    value.iter().all(|octet| *octet == 0)
}

fn mac(value: &[u8]) -> Option<Mac> {
    value.try_into().ok()
}

#[cfg(test)]
mod tests;
