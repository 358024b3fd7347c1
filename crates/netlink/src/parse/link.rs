//! Parses links: the properties of each kind, and the states of members of bonds and bridges.

use super::{Event, Parsed, address_of, attribute, is_zero, mac};
use crate::uapi::*;
use bywash_fib::model::{Bond, Bridge, Bridging, Encapsulation, Families, Link, Macvlan, Member, Tunnel, Vlan, Vxlan};
use bywash_nl::wire::{Attributes, text, u8_at, u16_at, u32_at};

/// Parses a message about a link, or about a bridge's member.
pub(super) fn link(body: &[u8], gone: bool) -> Parsed {
    match u8_at(body, 0)? {
        AF_UNSPEC => {}
        AF_BRIDGE => return bridge_port(body, gone),
        _ => return Some(None),
    }
    if gone {
        return Some(Some(Event::LinkGone(u32_at(body, 4)?)));
    }
    // Wireless events carry a name and nothing else of the link.
    if Attributes::after(body, 16).any(|(kind, _)| kind == IFLA_WIRELESS) {
        return Some(None);
    }
    let (mut link, below) = properties(body)?;
    if below.is_some() {
        (link.tunnel, link.parent) = (None, None);
    }
    let switched = u32_at(body, 12)? & (IFF_UP | IFF_RUNNING | IFF_LOWER_UP) != 0;
    Some(Some(Event::Link { link, switched }))
}

/// Parses a message about a link of another network namespace. Returns the link if what is below it, or its tunnel's
/// ends, are in the namespace with the number `own`.
pub(crate) fn upper_elsewhere(body: &[u8], own: u32) -> Option<Link> {
    let (link, below) = properties(body)?;
    let is_tunnel = link.tunnel.is_some() || ["vti", "vti6", "ip6erspan"].contains(&link.kind.as_str());
    (below == Some(own) && (link.parent.is_some() || is_tunnel)).then_some(link)
}

/// Parses a link, and the number of the network namespace that what is below it is in, if that is another.
fn properties(body: &[u8]) -> Option<(Link, Option<u32>)> {
    let (hardware, index, flags) = (u16_at(body, 2)?, u32_at(body, 4)?, u32_at(body, 8)?);
    let mut link =
        Link { index, up: flags & IFF_UP != 0, carrier: flags & IFF_LOWER_UP != 0, rx_queues: 1, ..Link::default() };
    let (mut below, mut has_program) = (None, false);
    let mut mtu = None;
    for (kind, value) in Attributes::after(body, 16) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS if hardware == ARPHRD_ETHER && flags & IFF_NOARP == 0 => link.mac = mac(value),
            IFLA_MTU => mtu = u32_at(value, 0),
            IFLA_LINK => link.parent = u32_at(value, 0).filter(|parent| *parent != 0),
            IFLA_LINK_NETNSID => below = Some(u32_at(value, 0)?),
            IFLA_MASTER => link.master = u32_at(value, 0).filter(|master| *master != 0),
            IFLA_PHYS_SWITCH_ID => link.switch = true,
            IFLA_NUM_RX_QUEUES => link.rx_queues = u32_at(value, 0)?,
            IFLA_LINKINFO => link_info(value, &mut link),
            IFLA_XDP => has_program = attribute(value, IFLA_XDP_ATTACHED).is_some_and(|mode| mode.first() != Some(&0)),
            _ => {}
        }
    }
    if has_program {
        link.vlan.iter_mut().for_each(|vlan| vlan.plain = false);
        link.bond.iter_mut().for_each(|bond| bond.plain = false);
        link.bridge.iter_mut().for_each(|bridge| bridge.plain = false);
        link.macvlan.iter_mut().for_each(|macvlan| macvlan.plain = false);
        link.tunnel.iter_mut().for_each(|tunnel| tunnel.plain = false);
    }
    // The peer of a veth or netkit pair is not a lower device, and an interface on nothing is on itself.
    let is_pair = link.kind == "veth" || link.kind == "netkit";
    link.paired = is_pair && below.is_none() && link.parent.is_some();
    if is_pair || (below.is_none() && link.parent == Some(index)) {
        link.parent = None;
    }
    if link.name.is_empty() {
        return None;
    }
    link.mtu = mtu?;
    Some((link, below))
}

fn link_info(info: &[u8], link: &mut Link) {
    let (mut data, mut member_of, mut member_data): (&[u8], _, &[u8]) = (&[], String::new(), &[]);
    for (kind, value) in Attributes::after(info, 0) {
        match kind {
            IFLA_INFO_KIND => link.kind = text(value),
            IFLA_INFO_DATA => data = value,
            IFLA_INFO_SLAVE_KIND => member_of = text(value),
            IFLA_INFO_SLAVE_DATA => member_data = value,
            _ => {}
        }
    }
    match link.kind.as_str() {
        "vlan" => link.vlan = vlan(data),
        "macvlan" | "macvtap" => {
            let mode = attribute(data, IFLA_MACVLAN_MODE).and_then(|value| u32_at(value, 0));
            let plain = Attributes::after(data, 0).all(|(kind, _)| kind <= IFLA_MACVLAN_BC_CUTOFF);
            link.macvlan = mode.map(|mode| Macvlan { mode, plain });
        }
        "ipvlan" | "ipvtap" => link.ipvlan = attribute(data, IFLA_IPVLAN_MODE).and_then(|value| u16_at(value, 0)),
        "vrf" => link.vrf = attribute(data, IFLA_VRF_TABLE).and_then(|value| u32_at(value, 0)),
        "bond" => link.bond = bond(data),
        // Generic netlink shows the options of a team, rtnetlink none.
        "team" => link.bond = Some(Bond { mode: Bond::UNKNOWN, active: None, xmit_hash: 0, plain: data.is_empty() }),
        "bridge" => link.bridge = bridge(data),
        "ipip" => link.tunnel = ip_tunnel(data, Encapsulation::Ipip),
        "sit" => link.tunnel = ip_tunnel(data, Encapsulation::Sit),
        "ip6tnl" => link.tunnel = ip_tunnel(data, Encapsulation::Ip6tnl),
        "gre" => link.tunnel = gre(data, Encapsulation::Gre, false),
        "ip6gre" => link.tunnel = gre(data, Encapsulation::Gre, true),
        "gretap" => link.tunnel = gre(data, Encapsulation::Gretap, false),
        "ip6gretap" => link.tunnel = gre(data, Encapsulation::Gretap, true),
        "vxlan" => link.tunnel = vxlan(data),
        _ => {}
    }
    match member_of.as_str() {
        "bond" => link.member = member(member_data),
        "bridge" => link.member = bridge_member(member_data),
        _ => {}
    }
}

/// Parses the AF_BRIDGE message about a bridge's member whose state has changed: the kernel does not repeat it with
/// AF_UNSPEC. RTM_DELLINK means that the member has left the bridge.
fn bridge_port(body: &[u8], gone: bool) -> Parsed {
    let index = u32_at(body, 4)?;
    let state = Attributes::after(body, 16).find(|(kind, _)| *kind == IFLA_PROTINFO);
    let member = state.and_then(|(_, state)| bridge_member(state)).filter(|_| !gone);
    Some(member.map(|member| Event::BridgePort(index, member)))
}

/// Parses the properties of a bridge.
fn bridge(data: &[u8]) -> Option<Bridge> {
    let (mut ageing, mut delay, mut stp, mut filtering, mut protocol) = (None, None, None, None, 0);
    let (mut calls_ip, mut options, mut others) = (false, 0, false);
    for (kind, value) in Attributes::after(data, 0) {
        match kind {
            IFLA_BR_AGEING_TIME => ageing = u32_at(value, 0),
            IFLA_BR_FORWARD_DELAY => delay = u32_at(value, 0),
            IFLA_BR_STP_STATE => stp = u32_at(value, 0),
            IFLA_BR_VLAN_FILTERING => filtering = u8_at(value, 0),
            // In network byte order.
            IFLA_BR_VLAN_PROTOCOL => protocol = u16::from_be_bytes([u8_at(value, 0)?, u8_at(value, 1)?]),
            IFLA_BR_NF_CALL_IPTABLES | IFLA_BR_NF_CALL_IP6TABLES | IFLA_BR_NF_CALL_ARPTABLES => {
                calls_ip |= u8_at(value, 0)? != 0;
            }
            IFLA_BR_MULTI_BOOLOPT => options = u32_at(value, 0)?,
            // The others concern multicast, spanning tree and VLANs, or how many stations are learned.
            kind => others |= kind > IFLA_BR_FDB_MAX_LEARNED,
        }
    }
    // After a change of the spanning tree, stations are forgotten sooner (hold_time).
    let ageing = match (ageing?, delay) {
        (ageing, Some(delay)) if stp != Some(0) => ageing.min(delay),
        (ageing, _) => ageing,
    };
    // In units of 1/100 s (USER_HZ).
    let ageing_ms = u64::from(ageing) * 10;
    // A kernel that cannot filter VLANs has no such property.
    let filters = filtering.unwrap_or(0) != 0;
    let unknown = others || options & !BR_BOOLOPTS != 0 || (filters && options & 1 << BR_BOOLOPT_MST_ENABLE != 0);
    Some(Bridge { ageing_ms, plain: ageing_ms > 0 && !unknown, filters, protocol, calls_ip })
}

/// Parses the state of a member of a bridge.
fn bridge_member(data: &[u8]) -> Option<Member> {
    let (mut state, mut learns, mut others) = (None, None, false);
    let (mut isolated, mut backup, mut tunnels) = (None, false, false);
    for (kind, value) in Attributes::after(data, 0) {
        match kind {
            IFLA_BRPORT_STATE => state = u8_at(value, 0),
            IFLA_BRPORT_LEARNING => learns = u8_at(value, 0),
            IFLA_BRPORT_VLAN_TUNNEL => tunnels = u8_at(value, 0)? != 0,
            IFLA_BRPORT_LOCKED | IFLA_BRPORT_MAB => others |= u8_at(value, 0)? != 0,
            IFLA_BRPORT_ISOLATED => isolated = u8_at(value, 0),
            // The member that replaces it while it has no carrier.
            IFLA_BRPORT_BACKUP_PORT | IFLA_BRPORT_BACKUP_NHID => backup |= !is_zero(value),
            // The others concern multicast, flooding, and ARP and neighbour discovery.
            kind => others |= kind > IFLA_BRPORT_BACKUP_NHID,
        }
    }
    let bridging = match isolated {
        Some(isolated) if !backup && isolated != 0 => Bridging::Isolated,
        Some(_) if !backup => Bridging::Any,
        _ => Bridging::Kernel,
    };
    let (active, plain) = (state? == BR_STATE_FORWARDING, learns.is_some() && !others);
    Some(Member { active, plain, tunnels, learns: learns == Some(1), bridging })
}

/// Parses the properties of a VLAN interface. It is plain only if each of them is known not to change its packets.
fn vlan(data: &[u8]) -> Option<Vlan> {
    let (mut id, mut protocol, mut flags, mut others) = (None, 0, 0, false);
    for (kind, value) in Attributes::after(data, 0) {
        match kind {
            IFLA_VLAN_ID => id = u16_at(value, 0),
            IFLA_VLAN_PROTOCOL => protocol = u16::from_be(u16_at(value, 0)?),
            IFLA_VLAN_FLAGS => flags = u32_at(value, 0)?,
            _ => others = true,
        }
    }
    Some(Vlan { protocol, id: id?, plain: flags == VLAN_FLAG_REORDER_HDR && !others })
}

/// Parses the properties of a bond.
fn bond(data: &[u8]) -> Option<Bond> {
    let (mut mode, mut active, mut arp_interval, mut xmit_hash, mut others) = (None, None, None, 0, false);
    for (kind, value) in Attributes::after(data, 0) {
        match kind {
            IFLA_BOND_MODE => mode = u8_at(value, 0),
            IFLA_BOND_ACTIVE_SLAVE => active = u32_at(value, 0),
            IFLA_BOND_ARP_INTERVAL => arp_interval = u32_at(value, 0),
            IFLA_BOND_XMIT_HASH_POLICY => xmit_hash = u8_at(value, 0)?,
            // The others choose members, or concern other modes or packets than those that are forwarded.
            kind => others |= kind > IFLA_BOND_BROADCAST_NEIGH,
        }
    }
    Some(Bond { mode: mode?, active, xmit_hash, plain: arp_interval == Some(0) && !others })
}

/// Parses the state of a member of a bond.
fn member(data: &[u8]) -> Option<Member> {
    let (mut state, mut link, mut queue, mut others) = (None, None, None, false);
    for (kind, value) in Attributes::after(data, 0) {
        match kind {
            IFLA_BOND_SLAVE_STATE => state = u8_at(value, 0),
            IFLA_BOND_SLAVE_MII_STATUS => link = u8_at(value, 0),
            IFLA_BOND_SLAVE_QUEUE_ID => queue = u16_at(value, 0),
            kind => others |= kind > IFLA_BOND_SLAVE_AD_CHURN_PARTNER_STATE,
        }
    }
    // BOND_STATE_ACTIVE and BOND_LINK_UP (linux/if_bonding.h).
    Some(Member { active: state? == 0 && link? == 0, plain: queue == Some(0) && !others, ..Member::default() })
}

/// Parses the properties of a tunnel of kind `ipip`, `sit` or `ip6tnl`.
fn ip_tunnel(data: &[u8], encapsulation: Encapsulation) -> Option<Tunnel> {
    let v6 = encapsulation == Encapsulation::Ip6tnl;
    let mut tunnel = Tunnel::without_ends(encapsulation, v6);
    let (mut protocol, mut outer6, mut external) = (None, Outer6::default(), false);
    for (kind, value) in Attributes::after(data, 0) {
        match kind {
            IFLA_IPTUN_LINK => tunnel.link = u32_at(value, 0)?,
            IFLA_IPTUN_LOCAL => tunnel.local = address_of(value)?,
            IFLA_IPTUN_REMOTE => tunnel.remote = address_of(value)?,
            IFLA_IPTUN_TTL => tunnel.ttl = u8_at(value, 0)?,
            IFLA_IPTUN_TOS => tunnel.tos = u8_at(value, 0)?,
            IFLA_IPTUN_ENCAP_LIMIT if v6 => outer6.limit = u8_at(value, 0)?,
            IFLA_IPTUN_FLOWINFO if v6 => outer6.flowinfo = u32::from_be(u32_at(value, 0)?),
            IFLA_IPTUN_FLAGS if v6 => outer6.flags = u32_at(value, 0)?,
            IFLA_IPTUN_PMTUDISC => tunnel.dont_fragment = u8_at(value, 0)? != 0,
            IFLA_IPTUN_PROTO => protocol = u8_at(value, 0),
            // ISATAP, encapsulation in UDP, and a mark.
            IFLA_IPTUN_FLAGS | IFLA_IPTUN_ENCAP_TYPE | IFLA_IPTUN_FWMARK => tunnel.plain &= is_zero(value),
            IFLA_IPTUN_COLLECT_METADATA if encapsulation == Encapsulation::Ipip => external = true,
            // These matter only with a type of encapsulation, or without an address of the other end (6rd).
            kind => tunnel.plain &= kind <= IFLA_IPTUN_ENCAP_DPORT && kind > IFLA_IPTUN_PMTUDISC,
        }
    }
    let [v4, v6] = [false, true].map(|v6| protocol.is_some_and(|of| of == 0 || of == tunnel.protocol(v6)));
    match encapsulation {
        Encapsulation::Ip6tnl => {
            tunnel.carries = Families { v4, v6 };
            outer6.apply(&mut tunnel);
        }
        // 0 also takes packets of other protocols, with which the kernel keeps them apart.
        Encapsulation::Sit => tunnel.plain &= v6 && tunnel.is_tos_unambiguous(),
        _ => tunnel.plain &= v4,
    }
    tunnel.plain &= !tunnel.carries.is_empty();
    Some(if external { tunnel.with_headers_of_routes() } else { tunnel })
}

/// Properties of the IPv6 headers that kinds `ip6tnl`, `ip6gre` and `ip6gretap` add.
#[derive(Default)]
struct Outer6 {
    limit: u8,
    /// Traffic class and flow label, as in the header.
    flowinfo: u32,
    flags: u32,
}

impl Outer6 {
    fn apply(&self, tunnel: &mut Tunnel) {
        let has = |flag| self.flags & flag != 0;
        let inherits = has(IP6_TNL_F_USE_ORIG_TCLASS);
        tunnel.limit = (!has(IP6_TNL_F_IGN_ENCAP_LIMIT)).then_some(self.limit);
        tunnel.tos = if inherits { 1 } else { (self.flowinfo >> 20) as u8 };
        let followed = IP6_TNL_F_IGN_ENCAP_LIMIT | IP6_TNL_F_USE_ORIG_TCLASS | IP6_TNL_F_CAP;
        // A tunnel with a fixed flow label is left to the kernel, and so is one whose traffic class would stand for
        // that of the inner packets.
        let odd = tunnel.tos & 1 != 0 && !inherits;
        tunnel.plain &= self.flags & !followed == 0 && self.flowinfo & 0xf_ffff == 0 && !odd;
    }
}

/// Parses the properties of a tunnel of kind `gre`, `ip6gre`, `gretap` or `ip6gretap`.
fn gre(data: &[u8], encapsulation: Encapsulation, v6: bool) -> Option<Tunnel> {
    let mut tunnel = Tunnel::without_ends(encapsulation, v6);
    let (mut flags, mut keys, mut outer6, mut external) = ([0; 2], [0; 2], Outer6::default(), false);
    for (kind, value) in Attributes::after(data, 0) {
        let key = || Some(u32::from_be(u32_at(value, 0)?));
        match kind {
            IFLA_GRE_LINK => tunnel.link = u32_at(value, 0)?,
            IFLA_GRE_IFLAGS => flags[0] = u16::from_be(u16_at(value, 0)?),
            IFLA_GRE_OFLAGS => flags[1] = u16::from_be(u16_at(value, 0)?),
            IFLA_GRE_IKEY => keys[0] = key()?,
            IFLA_GRE_OKEY => keys[1] = key()?,
            IFLA_GRE_LOCAL => tunnel.local = address_of(value)?,
            IFLA_GRE_REMOTE => tunnel.remote = address_of(value)?,
            IFLA_GRE_TTL => tunnel.ttl = u8_at(value, 0)?,
            IFLA_GRE_TOS => tunnel.tos = u8_at(value, 0)?,
            IFLA_GRE_PMTUDISC => tunnel.dont_fragment = u8_at(value, 0)? != 0,
            IFLA_GRE_ENCAP_LIMIT if v6 => outer6.limit = u8_at(value, 0)?,
            IFLA_GRE_FLOWINFO if v6 => outer6.flowinfo = u32::from_be(u32_at(value, 0)?),
            IFLA_GRE_FLAGS if v6 => outer6.flags = u32_at(value, 0)?,
            IFLA_GRE_ENCAP_TYPE | IFLA_GRE_IGNORE_DF | IFLA_GRE_FWMARK => tunnel.plain &= is_zero(value),
            IFLA_GRE_COLLECT_METADATA if !v6 && !tunnel.is_ethernet() => external = true,
            // Ports and flags of the encapsulation matter only with a type of encapsulation.
            kind => tunnel.plain &= kind <= IFLA_GRE_ENCAP_DPORT && kind > IFLA_GRE_ENCAP_TYPE,
        }
    }
    if v6 {
        outer6.apply(&mut tunnel);
        // The kernel compares a received key also without the flag (ip6gre_tunnel_lookup).
        tunnel.plain &= flags[0] & GRE_KEY != 0 || keys[0] == 0;
    }
    tunnel.summed = flags.map(|flags| flags & GRE_CSUM != 0);
    // Tunnels with sequence numbers are left to the kernel, and those that drop what comes without a checksum although
    // routes give them their headers.
    let followed = GRE_KEY | if external { 0 } else { GRE_CSUM };
    tunnel.plain &= flags.iter().all(|flags| flags & !followed == 0);
    for ((to, flags), key) in tunnel.keys.iter_mut().zip(flags).zip(keys) {
        *to = (flags & GRE_KEY != 0).then_some(key);
    }
    Some(if external { tunnel.with_headers_of_routes() } else { tunnel })
}

/// Parses the properties of a tunnel of kind `vxlan`.
fn vxlan(data: &[u8]) -> Option<Tunnel> {
    // Without any address, it is over IPv4 or not followed.
    let over_v6 = |kind| kind == IFLA_VXLAN_GROUP6 || kind == IFLA_VXLAN_LOCAL6;
    let v6 = Attributes::after(data, 0).any(|(kind, _)| over_v6(kind));
    let mut tunnel = Tunnel::without_ends(Encapsulation::Vxlan, v6);
    let (mut vni, mut port, mut sources, mut checksum, mut learns) = (None, None, [0; 2], [false, true], true);
    let (mut ageing, mut link, mut unsummed6, mut external, mut filters) = (0, 0, false, false, false);
    for (kind, value) in Attributes::after(data, 0) {
        let of_port = |at| Some(u16::from_be(u16_at(value, at)?));
        match kind {
            IFLA_VXLAN_ID => vni = u32_at(value, 0),
            IFLA_VXLAN_GROUP | IFLA_VXLAN_GROUP6 => tunnel.remote = address_of(value)?,
            IFLA_VXLAN_LOCAL | IFLA_VXLAN_LOCAL6 => tunnel.local = address_of(value)?,
            IFLA_VXLAN_TTL => tunnel.ttl = u8_at(value, 0)?,
            IFLA_VXLAN_TOS => tunnel.tos = u8_at(value, 0)?,
            IFLA_VXLAN_LEARNING => learns = !is_zero(value),
            IFLA_VXLAN_AGEING => ageing = u32_at(value, 0)?,
            IFLA_VXLAN_LINK => link = u32_at(value, 0)?,
            IFLA_VXLAN_PORT_RANGE => sources = [of_port(0)?, of_port(2)?],
            IFLA_VXLAN_PORT => port = of_port(0),
            IFLA_VXLAN_UDP_CSUM => checksum[0] = !is_zero(value),
            IFLA_VXLAN_UDP_ZERO_CSUM6_TX => checksum[1] = is_zero(value),
            IFLA_VXLAN_UDP_ZERO_CSUM6_RX => unsummed6 = !is_zero(value),
            IFLA_VXLAN_COLLECT_METADATA => external = !is_zero(value),
            IFLA_VXLAN_VNIFILTER => filters = !is_zero(value),
            IFLA_VXLAN_DF => match u8_at(value, 0)? {
                0 => {}
                1 => tunnel.dont_fragment = true,
                _ => tunnel.plain = false,
            },
            IFLA_VXLAN_PROXY
            | IFLA_VXLAN_RSC
            | IFLA_VXLAN_REMCSUM_TX
            | IFLA_VXLAN_REMCSUM_RX
            | IFLA_VXLAN_TTL_INHERIT
            | IFLA_VXLAN_LABEL
            | IFLA_VXLAN_LABEL_POLICY => tunnel.plain &= is_zero(value),
            // Set if present.
            IFLA_VXLAN_GBP | IFLA_VXLAN_GPE => tunnel.plain = false,
            // The others concern stations, groups, or reserved bits of received headers, which must be 0 here.
            kind => tunnel.plain &= kind <= IFLA_VXLAN_MC_ROUTE,
        }
    }
    tunnel.plain &= tunnel.is_tos_unambiguous() && tunnel.local.is_ipv6() == v6 && tunnel.remote.is_ipv6() == v6;
    tunnel.external = external;
    if external {
        // The kernel would learn stations. With a network identifier, it receives nothing (vxlan_vs_find_vni).
        tunnel.plain &= !learns && vni == Some(0);
    }
    let checksum = checksum[usize::from(v6)];
    tunnel.vxlan = Some(Vxlan { vni: vni?, port: port?, sources, checksum, unsummed6, learns, filters, ageing, link });
    Some(tunnel)
}
