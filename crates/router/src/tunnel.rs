//! Tunnels: decapsulation of the packets that a tunnel's other end sends to this host (`receive`), and encapsulation of
//! packets to that end (`send`); frames between a tunnel and other members of its bridge (`bridged`).
//!
//! A tunnel is numbered like a VLAN, from [`crate::vlan::FIRST`] on; gates, next hops and source checks refer to it by
//! that number. Its packets arrive and leave by whatever port the outer packets are routed to. All of this happens on
//! the slow path. Packets for which the kernel would do more than encapsulate or decapsulate are left to it: fragments,
//! a congestion mark to be carried over, an error to be answered.

mod bridged;
mod receive;
mod send;

use crate::tables::{Cold, Entry, PortInfo};
use bywash_engine::PortId;
use bywash_fib::model::{Encapsulation, Mac, OuterHeader, Tunnel, Vxlan};
use bywash_port::af_xdp::TunnelEnd;
use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::{ipv4, ipv6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use bridged::MemberPort;
pub(crate) use receive::{Decapsulated, RemovedHeaders, complete_inner, decapsulate, is_outer, put_back};
pub(crate) use send::{Encap, OuterRoute, encapsulate};

/// Length of a GRE header, and of each of the fields that may follow (RFC 2784 2, RFC 2890 2).
const GRE_LEN: usize = 4;
const FIELD_LEN: usize = 4;
/// Flags of a GRE header that has a checksum, and of one that has a key.
const SUMMED: u32 = 0x8000;
const KEY: u32 = 0x2000;
/// Congestion experienced (RFC 3168 5); also the mask of the ECN field in the TOS octet.
const CE: u8 = 3;
/// Code points ECT(0) and ECT(1) of the ECN field.
const ECT_0: u8 = 2;
const ECT_1: u8 = 1;
/// Length of the UDP and VXLAN headers (RFC 7348 5).
const VXLAN_LEN: usize = 8 + 8;
/// First word of a VXLAN header with a network identifier and nothing else.
const VNI: u32 = 0x0800_0000;
/// Length of destination options with an encapsulation limit and nothing else (RFC 2473 4.1.1).
const LIMIT_LEN: usize = 8;

/// Returns destination options with an encapsulation limit, padded to a multiple of 8 bytes, in front of a header of
/// this protocol.
const fn limit_options(protocol: u8, limit: u8) -> [u8; LIMIT_LEN] {
    // Option 4 of one byte, then PadN of one byte.
    [protocol, 0, 4, 1, limit, 1, 1, 0]
}

/// A tunnel as routing sees it.
#[derive(Clone, Debug)]
pub struct TunnelInfo {
    /// Number of the tunnel.
    pub id: PortId,
    /// Ends and header fields. A VXLAN may have no other end, and a tunnel no address of its own.
    pub tunnel: Tunnel,
    /// Header fields by which the packets that it receives are found ([`ends_of`]), each once.
    pub ends: Vec<TunnelEnd>,
    /// Properties of the interface that its packets belong to: its own, or those of the bridge that it is a member of.
    pub info: PortInfo,
    /// MAC address of its own interface, if it carries Ethernet frames.
    pub mac: Mac,
    /// Time in seconds after which the kernel forgets a station behind the tunnel that it has not seen; 0 if it never
    /// does, `None` if it learns none.
    pub ageing: Option<u32>,
    /// Stations from which the kernel learns nothing, and those behind other members of the tunnel's bridge.
    pub stations: Arc<Stations>,
    /// Members to which the tunnel's bridge forwards frames from it, and the reverse, by their addresses alone.
    pub members: Vec<MemberPort>,
    /// Length in bytes of the longest frame that the bridge sends to the tunnel, Ethernet header included.
    pub longest: u32,
    /// Set if its outer packets may be masqueraded.
    pub masqueraded: bool,
    /// Time in seconds at which the kernel last got a packet of the tunnel, if connection tracking must not forget the
    /// outer packets: it might give their tuple to a connection of another host. `None` for VXLANs, whose packets have
    /// many tuples.
    pub tracked: Option<Arc<AtomicU32>>,
}

/// Interval in seconds at which the kernel gets a packet of a tunnel for connection tracking, which forgets GRE without
/// answers after 30 s, other protocols later (nf_conntrack_proto_gre.c, nf_conntrack_proto_generic.c).
const TRACKED: u32 = 10;

/// Stations of a tunnel that carries Ethernet frames, with the addresses of the other ends that lead to them, or `None`
/// for any end; and the stations of its bridge that are behind other members.
#[derive(Debug, Default)]
pub struct Stations {
    /// In ascending order.
    all: Vec<(Mac, Option<IpAddr>)>,
    /// Time in seconds at which the kernel last got a frame of each.
    seen: Vec<AtomicU32>,
    /// Stations behind other members, by the members' kernel indices, in ascending order.
    members: Vec<(Mac, u32)>,
    /// Stations that the bridge has behind the tunnel, with the ends that it sends their frames to, in ascending order.
    beyond: Vec<(Mac, IpAddr)>,
}

impl Stations {
    /// Creates a list of stations, which must be in ascending order; `before` is the list until now.
    pub fn new(all: Vec<(Mac, Option<IpAddr>)>, before: &Self) -> Self {
        let seen = |(mac, _): &(Mac, _)| before.at(mac).map_or(0, |at| before.seen[at].load(Ordering::Relaxed));
        let seen = all.iter().map(|station| AtomicU32::new(seen(station))).collect();
        Self { all, seen, ..Self::default() }
    }

    /// Adds stations of the bridge: those behind other members, by the members' kernel indices, and those behind the
    /// tunnel, with the ends that it sends their frames to. Both lists must be in ascending order.
    #[must_use]
    pub fn bridged(self, members: Vec<(Mac, u32)>, beyond: Vec<(Mac, IpAddr)>) -> Self {
        Self { members, beyond, ..self }
    }

    /// Returns the kernel index of the other member of the bridge that a station is behind.
    pub fn member_of(&self, mac: &Mac) -> Option<u32> {
        let at = self.members.binary_search_by_key(mac, |(mac, _)| *mac).ok()?;
        Some(self.members[at].1)
    }

    fn at(&self, mac: &Mac) -> Option<usize> {
        self.all.binary_search_by_key(mac, |(mac, _)| *mac).ok()
    }

    /// Returns whether a frame of a station that came from this end may be forwarded past the kernel. The kernel ages
    /// out stations from which it receives nothing, so it gets one frame in each quarter of the ageing time; a call
    /// that returns false for that reason restarts the interval.
    fn claim_bypass(&self, mac: &Mac, remote: IpAddr, ageing: u32, now: u32) -> bool {
        let behind = |at: &usize| self.all[*at].1.is_none_or(|end| end == remote);
        let Some(at) = self.at(mac).filter(behind) else { return false };
        let due = ageing != 0 && now.wrapping_sub(self.seen[at].load(Ordering::Relaxed)) >= (ageing / 4).max(1);
        if due {
            self.seen[at].store(now, Ordering::Relaxed);
        }
        !due
    }
}

/// A tunnel's own address and its remote, and the kernel index of the interface that it is bound to, or 0.
pub type Ends = (IpAddr, IpAddr, u32);

/// Path of a tunnel's packets to its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// Ends of the tunnels that use it.
    pub ends: Ends,
    /// Source of the outer packets: the tunnel's own address or, without one, the one that the kernel gives them.
    pub source: IpAddr,
    /// Length in bytes of the longest packet that it takes, if that is less than the interface's MTU.
    pub mtu: u32,
    /// TTL or hop limit of the host's own packets.
    pub ttl: u8,
    /// Next hop by which the kernel sends its own packets, if the route has several, or if the source was chosen for
    /// it. Once the route has lost this next hop, the packets are left to the kernel.
    pub via: Option<Via>,
}

/// Request for a path that tunnels need.
#[derive(Clone, Debug)]
pub struct WantedPath {
    /// Ends of the tunnels.
    pub ends: Ends,
    /// Set if their outer packets may be masqueraded: their source must then be the address that masquerading gives.
    pub masqueraded: bool,
    /// Next hops by which packets are forwarded to the remote.
    pub hops: Vec<Cold>,
}

/// A next hop of a route: the kernel index of its interface, and the gateway if there is one.
pub type Via = (u32, Option<IpAddr>);

/// Returns the next hop of packets to an address by this interface and gateway, which may be the address itself.
pub fn via(index: u32, gateway: Option<IpAddr>, to: IpAddr) -> Via {
    (index, gateway.filter(|gateway| *gateway != to))
}

/// Paths of the tunnels, and what the host's own packets have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// In ascending order of their ends. A next hop names its path by the place in this list; a tunnel without a path
    /// is left to the kernel.
    pub all: Vec<Path>,
    /// Source ports of VXLANs without a range of their own: the first, and one past the last.
    pub sources: [u16; 2],
    /// Bits set in all flow labels of kinds `ip6tnl`, `ip6gre` and `ip6gretap`, which are hashes otherwise; `None` if
    /// they have no labels (`net.ipv6.auto_flowlabels`, `net.ipv6.flowlabel_state_ranges`).
    pub labels: Option<u32>,
    /// Set if the kernel receives packets with an encapsulation limit (`net.ipv6.max_dst_opts_number`,
    /// `net.ipv6.max_dst_opts_length`).
    pub limited: bool,
}

/// Returns the header fields by which the packets that come through a tunnel to these addresses of the host are found;
/// those of a VXLAN have these network identifiers.
pub fn ends_of(tunnel: &Tunnel, own: &[IpAddr], vnis: &[u32]) -> Vec<TunnelEnd> {
    let Tunnel { remote, keys: [key, _], summed: [summed, _], vxlan, .. } = *tunnel;
    let of = |local: IpAddr, protocol| -> Vec<TunnelEnd> {
        let Some(Vxlan { port, .. }) = vxlan else {
            return vec![TunnelEnd { remote, local, protocol, port: 0, key, ethernet: tunnel.is_ethernet(), summed }];
        };
        let of = |vni: &u32| TunnelEnd {
            remote: any(local),
            local,
            protocol,
            port,
            key: Some(*vni),
            ethernet: false,
            summed: false,
        };
        vnis.iter().map(of).collect()
    };
    own.iter().flat_map(|local| tunnel.protocols().flat_map(|protocol| of(*local, protocol))).collect()
}

/// Returns the fields of a tunnel's outer headers that its own properties determine.
fn own_header(tunnel: &Tunnel) -> OuterHeader {
    let Tunnel { ttl, tos, dont_fragment, vxlan, keys: [_, key], summed: [_, summed], .. } = *tunnel;
    let (id, checksum) = vxlan.map_or((key.unwrap_or(0), summed), |vxlan| (vxlan.vni, vxlan.checksum));
    OuterHeader { id, keyed: key.is_some(), ttl, tos, checksum, dont_fragment }
}

/// Returns the unspecified address of the same family.
fn any(addr: IpAddr) -> IpAddr {
    if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Returns the length in bytes of the headers that a tunnel adds, if they have these fields.
fn added(tunnel: &Tunnel, header: &OuterHeader) -> usize {
    let more = match tunnel.encapsulation {
        Encapsulation::Gre | Encapsulation::Gretap => {
            GRE_LEN + FIELD_LEN * (usize::from(header.checksum) + usize::from(header.keyed))
        }
        Encapsulation::Vxlan => VXLAN_LEN,
        _ => 0,
    };
    let ethernet = if tunnel.is_ethernet() { HEADER_LEN } else { 0 };
    let ip = if tunnel.is_over_v6() { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    ip + tunnel.limit.map_or(0, |_| LIMIT_LEN) + more + ethernet
}

impl TunnelInfo {
    /// Returns whether this packet must be left to the kernel, so that connection tracking does not forget the outer
    /// packets; if so, restarts the interval. `now` returns the time in seconds.
    fn claim_refresh(&self, now: impl FnOnce() -> u32) -> bool {
        let forgotten = |last: &Arc<AtomicU32>| {
            let now = now();
            let due = now.wrapping_sub(last.load(Ordering::Relaxed)) >= TRACKED;
            if due {
                last.store(now, Ordering::Relaxed);
            }
            due
        };
        self.tracked.as_ref().is_some_and(forgotten)
    }

    /// Returns whether the kernel gives no other source to outer packets from this address by this next hop.
    fn keeps_source(&self, source: IpAddr, outer: &Cold) -> bool {
        !self.masqueraded || outer.masquerade4.map(IpAddr::V4) == Some(source)
    }

    /// Returns the destination of an Ethernet frame from this end of a tunnel, if the kernel need not learn from it
    /// (vxlan_set_mac, vxlan_snoop, br_fdb_update); `now` returns the time in seconds.
    fn inner_destination(&self, remote: IpAddr, frame: &[u8], now: impl Fn() -> u32) -> Option<InnerDestination> {
        let (to, rest) = frame.split_first_chunk::<6>()?;
        let from = rest.first_chunk::<6>()?;
        let destination = if *to == self.info.mac {
            InnerDestination::Interface
        } else {
            InnerDestination::Port(self.member(to, frame)?)
        };
        // Gateways of an EVPN network have one address on all leaves. A bridge that learns logs frames from its own.
        let own = *from == self.mac || (self.ageing.is_some() && *from == self.info.mac);
        let plain = from[0] & 1 == 0 && *from != [0; 6] && !own;
        let known = || self.ageing.is_none_or(|ageing| self.stations.claim_bypass(from, remote, ageing, now()));
        (plain && known()).then_some(destination)
    }
}

/// Destination of a packet or frame that came through a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InnerDestination {
    /// To the interface that the tunnel's packets belong to, which routes it.
    Interface,
    /// By this port, unchanged, or by a VLAN on it, with the tag.
    Port(PortId),
}

/// Tunnels, by their numbers and by their ends.
#[derive(Clone, Debug, Default)]
pub struct Tunnels {
    /// In ascending order of their numbers.
    all: Vec<TunnelInfo>,
    /// Places in `all`, in ascending order of their ends.
    ends: Vec<(TunnelEnd, usize)>,
    /// Places in `all` of tunnels in bridges, in ascending order of the bridges' numbers.
    bridged: Vec<(PortId, usize)>,
    paths: Paths,
    /// Fields of the outer headers that routes give to packets.
    headers: Vec<OuterHeader>,
    /// Set if the outer packets of these tunnels pass gates that let flows pass.
    outer_passes: bool,
}

impl Tunnels {
    /// Creates a set of tunnels. No two may have the same number, or an end in common. `headers` are the fields of the
    /// outer headers that routes give to packets ([`crate::tables::Entry::tunnel`]). `outer_passes` is set if the outer
    /// packets pass gates that let flows pass.
    pub fn new(mut all: Vec<TunnelInfo>, paths: Paths, headers: Vec<OuterHeader>, outer_passes: bool) -> Self {
        all.sort_by_key(|tunnel| tunnel.id);
        let of = |(at, tunnel): (usize, &TunnelInfo)| tunnel.ends.iter().map(|end| (*end, at)).collect::<Vec<_>>();
        let mut ends: Vec<_> = all.iter().enumerate().flat_map(of).collect();
        ends.sort_unstable();
        let bridged = |(at, tunnel): (usize, &TunnelInfo)| Some((tunnel.info.master?, at));
        let mut bridged: Vec<_> = all.iter().enumerate().filter_map(bridged).collect();
        bridged.sort_unstable();
        Self { all, ends, bridged, paths, headers, outer_passes }
    }

    /// Returns the tunnel with this number.
    pub fn get(&self, id: PortId) -> Option<&TunnelInfo> {
        self.all.binary_search_by_key(&id, |tunnel| tunnel.id).ok().map(|at| &self.all[at])
    }

    /// Returns the fields of the outer headers of packets that leave by this next hop through a tunnel.
    pub fn header(&self, info: &TunnelInfo, hop: &Entry) -> Option<OuterHeader> {
        match hop.tunnel().1 {
            Some(at) => self.headers.get(at as usize).copied(),
            None => Some(own_header(&info.tunnel)),
        }
    }

    /// Returns all tunnels.
    pub fn iter(&self) -> impl Iterator<Item = &TunnelInfo> {
        self.all.iter()
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns a set of bits: 1 if there are tunnels over IPv4, 2 if there are some over IPv6.
    pub(crate) fn families(&self) -> u32 {
        self.all.iter().fold(0, |all, tunnel| all | if tunnel.tunnel.is_over_v6() { 2 } else { 1 })
    }

    /// Returns whether the outer packets of the tunnels pass gates that let flows pass.
    pub fn outer_passes(&self) -> bool {
        self.outer_passes && !self.all.is_empty()
    }

    fn with(&self, end: &TunnelEnd) -> Option<&TunnelInfo> {
        self.ends.binary_search_by_key(end, |(end, _)| *end).ok().map(|at| &self.all[self.ends[at].1])
    }
}
