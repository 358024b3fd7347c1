//! Tunnels over IPv4: decapsulation of the packets that a tunnel's other end sends to this host, and encapsulation of
//! packets to that end.
//!
//! A tunnel has a number like a VLAN's, from [`crate::vlan::FIRST`] on; gates, next hops and source checks name it by
//! that. Its packets arrive and leave by whatever port the routes of the packets around them lead to. All of this
//! happens on the slow path. Packets for which the kernel would do more than encapsulate or decapsulate are left to it:
//! fragments, a congestion mark to be carried over, an error to be answered, a route of several next hops.

use crate::bytes::{be16, be32, frame_type};
use crate::flow::flow_hash;
use crate::tables::{Cold, Entry, HashPolicy, Kind, PortInfo, Tables};
use crate::valid::{host4, valid_header6};
use crate::vlan::Ingress;
use bywash_engine::PortId;
use bywash_fib::model::{Encapsulation, Mac, Tunnel};
use bywash_frame::{Arena, Frame};
use bywash_port::af_xdp::TunnelEnd;
use bywash_wire::checksum::{Sum, pseudo4};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::ipv4::Ipv4Info;
use bywash_wire::{ipv4, partial};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Length of a GRE header, and of one with a key (RFC 2784 2, RFC 2890 2).
const GRE_LEN: usize = 4;
const KEYED_LEN: usize = GRE_LEN + 4;
/// Flag of a GRE header that has a key (RFC 2890).
const KEY: u32 = 0x2000;
/// Congestion experienced (RFC 3168 5), and the bits of the TOS octet that it is in.
const CE: u8 = 3;
/// ECT(0) and ECT(1) of the same bits.
const ECT_0: u8 = 2;
const ECT_1: u8 = 1;
/// Smallest MTU of IPv6 (RFC 8200 5).
const MIN_MTU6: u32 = 1280;

/// Length of the UDP and VXLAN headers (RFC 7348 5).
const VXLAN_LEN: usize = 8 + 8;
/// First word of a VXLAN header with a network identifier and nothing else.
const VNI: u32 = 0x0800_0000;

/// A tunnel as routing sees it.
#[derive(Clone, Debug)]
pub struct TunnelInfo {
    /// Its number.
    pub id: PortId,
    /// Ends and header fields. The addresses are those of hosts; a VXLAN may have no other end.
    pub tunnel: Tunnel,
    /// Properties of the interface that its packets belong to: its own, or those of the bridge that a VXLAN is a
    /// member of.
    pub info: PortInfo,
    /// MAC address of a VXLAN's own interface.
    pub mac: Mac,
    /// Time in seconds after which the kernel forgets a station of a VXLAN that it has not heard; 0 if it never does,
    /// `None` if it learns none.
    pub ageing: Option<u32>,
    /// Stations from which the kernel learns nothing.
    pub stations: Arc<Stations>,
    /// Set if its outer packets may be masqueraded.
    pub masqueraded: bool,
    /// Time in seconds at which the kernel last got a packet of it, if connection tracking must not forget its outer
    /// packets: their tuple might be given to a connection of another host. `None` for VXLANs, whose packets have many
    /// tuples.
    pub tracked: Option<Arc<AtomicU32>>,
}

/// Interval in seconds at which the kernel gets a packet of a tunnel for connection tracking, which forgets GRE without
/// answers after 30 s, other protocols later (nf_conntrack_proto_gre.c, nf_conntrack_proto_generic.c).
const TRACKED: u32 = 10;

/// Stations of a VXLAN, with the addresses of the other ends that lead to them, or 0 for any end.
#[derive(Debug, Default)]
pub struct Stations {
    /// In ascending order.
    all: Vec<(Mac, u32)>,
    /// Time in seconds at which the kernel last got a frame of each.
    heard: Vec<AtomicU32>,
}

impl Stations {
    /// Creates a list of stations, which must be in ascending order; `before` is the list until now.
    pub fn new(all: Vec<(Mac, u32)>, before: &Self) -> Self {
        let heard = |(mac, _): &(Mac, u32)| before.at(mac).map_or(0, |at| before.heard[at].load(Ordering::Relaxed));
        let heard = all.iter().map(|station| AtomicU32::new(heard(station))).collect();
        Self { all, heard }
    }

    fn at(&self, mac: &Mac) -> Option<usize> {
        self.all.binary_search_by_key(mac, |(mac, _)| *mac).ok()
    }

    /// Returns whether frames of a station come from this end, and its next frame need not be heard by the kernel,
    /// which forgets stations that it does not hear: it gets one in each quarter of the ageing time.
    fn may_skip(&self, mac: &Mac, remote: u32, ageing: u32, now: u32) -> bool {
        let Some(at) = self.at(mac).filter(|at| [0, remote].contains(&self.all[*at].1)) else { return false };
        let due = ageing != 0 && now.wrapping_sub(self.heard[at].load(Ordering::Relaxed)) >= (ageing / 4).max(1);
        if due {
            self.heard[at].store(now, Ordering::Relaxed);
        }
        !due
    }
}

/// Path from a tunnel's own address to its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The tunnel's own address and its remote, and the kernel index of the interface that it is bound to, or 0.
    pub ends: (Ipv4Addr, Ipv4Addr, u32),
    /// Length in bytes of the longest packet that it takes, if that is less than the interface's MTU.
    pub mtu: u32,
    /// TTL of the host's own packets.
    pub ttl: u8,
}

/// Paths of the tunnels, and what the host's own packets have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// In ascending order. A tunnel without is left to the kernel.
    pub all: Vec<Path>,
    /// Source ports of VXLANs without a range of their own: the first, and one past the last.
    pub sources: [u16; 2],
}

/// Returns the header fields by which the packets that come through a tunnel are found.
pub fn end_of(tunnel: &Tunnel) -> TunnelEnd {
    let Tunnel { encapsulation, local, remote, keys: [key, _], vxlan, .. } = *tunnel;
    let (local, protocol) = (local.to_bits(), encapsulation.protocol());
    match vxlan {
        Some(vxlan) => TunnelEnd { remote: 0, local, protocol, port: vxlan.port, key: Some(vxlan.vni) },
        None => TunnelEnd { remote: remote.to_bits(), local, protocol, port: 0, key },
    }
}

impl TunnelInfo {
    /// Returns whether the kernel must get the next packet for connection tracking.
    fn is_forgotten(&self, now: u32) -> bool {
        let forgotten = |last: &Arc<AtomicU32>| {
            let due = now.wrapping_sub(last.load(Ordering::Relaxed)) >= TRACKED;
            if due {
                last.store(now, Ordering::Relaxed);
            }
            due
        };
        self.tracked.as_ref().is_some_and(forgotten)
    }

    /// Returns whether the kernel gives no other source to outer packets by this next hop.
    fn keeps_source(&self, outer: &Cold) -> bool {
        !self.masqueraded || outer.masquerade4 == Some(self.tunnel.local)
    }

    /// Returns whether the kernel takes an Ethernet frame from this end of a VXLAN for the interface, and need not
    /// learn from it (vxlan_set_mac, vxlan_snoop, br_fdb_update); `now` is the time in seconds.
    fn takes(&self, remote: u32, frame: &[u8], now: u32) -> bool {
        let Some((to, rest)) = frame.split_first_chunk::<6>() else { return false };
        let Some(from) = rest.first_chunk::<6>() else { return false };
        let own = [self.mac, self.info.mac].contains(from);
        let plain = *to == self.info.mac && from[0] & 1 == 0 && *from != [0; 6] && !own;
        plain && self.ageing.is_none_or(|ageing| self.stations.may_skip(from, remote, ageing, now))
    }
}

/// Tunnels, by their numbers and by their ends.
#[derive(Clone, Debug, Default)]
pub struct Tunnels {
    /// In ascending order of their numbers.
    all: Vec<TunnelInfo>,
    /// Places in `all`, in ascending order of their ends.
    ends: Vec<(TunnelEnd, usize)>,
    paths: Paths,
    /// Set if the outer packets of these tunnels pass gates that let flows pass.
    outer_passes: bool,
}

impl Tunnels {
    /// Creates a set of tunnels. No two may have the same number, or the same ends. `outer_passes` if their outer
    /// packets pass gates that let flows pass.
    pub fn new(mut all: Vec<TunnelInfo>, paths: Paths, outer_passes: bool) -> Self {
        all.sort_by_key(|tunnel| tunnel.id);
        let mut ends: Vec<_> = all.iter().enumerate().map(|(at, tunnel)| (end_of(&tunnel.tunnel), at)).collect();
        ends.sort_unstable();
        Self { all, ends, paths, outer_passes }
    }

    /// Returns the tunnel with this number.
    pub fn get(&self, id: PortId) -> Option<&TunnelInfo> {
        self.all.binary_search_by_key(&id, |tunnel| tunnel.id).ok().map(|at| &self.all[at])
    }

    /// Returns all tunnels.
    pub fn iter(&self) -> impl Iterator<Item = &TunnelInfo> {
        self.all.iter()
    }

    /// Returns whether there are no tunnels.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether the outer packets of the tunnels pass gates that let flows pass.
    pub fn outer_passes(&self) -> bool {
        self.outer_passes && !self.all.is_empty()
    }

    fn path(&self, ends: (Ipv4Addr, Ipv4Addr, u32)) -> Option<&Path> {
        self.paths.all.binary_search_by_key(&ends, |path| path.ends).ok().map(|at| &self.paths.all[at])
    }

    fn with(&self, end: &TunnelEnd) -> Option<&TunnelInfo> {
        self.ends.binary_search_by_key(end, |(end, _)| *end).ok().map(|at| &self.all[self.ends[at].1])
    }
}

/// The packet around one that came through a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Around {
    /// Number of the interface that received it.
    id: PortId,
    /// Length of its headers behind the Ethernet header. All but the last two bytes are still in front of the packet
    /// within.
    len: u8,
    /// These two, in place of which is the EtherType of the packet within.
    last: [u8; 2],
}

/// Returns whether a frame is an outer packet of a tunnel, as far as its headers tell.
pub(crate) fn is_outer(tables: &Tables, data: &[u8]) -> bool {
    let known = || {
        let (info, of) = headers(data.get(HEADER_LEN..)?)?;
        tables.tunnels.with(&of.end(&info))
    };
    frame_type(data) == Some(ethertype::IPV4) && known().is_some()
}

/// Removes the headers around a packet that came through a tunnel: a valid IPv4 packet to this host, without options.
/// The frame then has an Ethernet header with meaningless addresses. `now` is the time in seconds. Returns where the
/// inner packet was received if it may be forwarded; `None`, with the frame unchanged, if not or without such a tunnel.
pub(crate) fn decapsulate(
    arena: &Arena,
    tables: &Tables,
    from: Ingress,
    frame: &mut Frame,
    now: u32,
) -> Option<Ingress> {
    let data = arena.data(frame);
    // A packet within one that was itself within another.
    if from.around.is_some() || frame_type(data) != Some(ethertype::IPV4) {
        return None;
    }
    let ip = &data[HEADER_LEN..];
    let (info, of) = headers(ip)?;
    let Headers { len, kind, port, .. } = of;
    // The kernel carries ECT(1) and CE over to the packet within, or drops it (INET_ECN_decapsulate, RFC 6040 4.2).
    if info.tos & ECT_1 != 0 {
        return None;
    }
    let ip = &ip[..usize::from(info.total_len)];
    let tunnel = tables.tunnels.with(&of.end(&info))?;
    let link = tunnel.tunnel.link;
    if link != 0 && tables.port(from.id).is_none_or(|port| port.index != link) {
        return None;
    }
    let (within, long) = (ip.get(len..)?, HEADER_LEN + ip.len());
    if !may_be_forwarded(kind, within) || (port != 0 && !sums_up(ip)) {
        return None;
    }
    // Rules were evaluated for packets of no VRF, and a VXLAN's socket takes none of one (udp_sk_bound_dev_eq). Ports
    // of VRFs have routing rules.
    if tables.port(from.id).is_none_or(|port| !port.rules4.is_empty()) {
        return None;
    }
    // The kernel would not know an answer to it, and translate that.
    let answered = || tables.cold.get(tables.fib4.lookup(info.src) as usize);
    if tunnel.masqueraded && !answered().is_some_and(|outer| tunnel.keeps_source(outer)) {
        return None;
    }
    if tunnel.is_forgotten(now) {
        return None;
    }
    if tunnel.tunnel.vxlan.is_some() && !tunnel.takes(info.src, ip.get(len - HEADER_LEN..)?, now) {
        return None;
    }
    frame.truncate(long);
    frame.pull(len);
    let [high, low] = arena.data_mut(frame).get_mut(HEADER_LEN - 2..HEADER_LEN)? else { return None };
    let last = [*high, *low];
    [*high, *low] = kind.to_be_bytes();
    let id = tunnel.info.master.unwrap_or(tunnel.id);
    Some(Ingress { id, around: Some(Around { id: from.id, len: len as u8, last }), ..from })
}

/// Puts back what [`decapsulate`] removed; returns the number of the interface that received the frame.
pub(crate) fn put_back(arena: &Arena, around: Around, frame: &mut Frame) -> PortId {
    if let Some(place) = arena.data_mut(frame).get_mut(HEADER_LEN - 2..HEADER_LEN) {
        place.copy_from_slice(&around.last);
    }
    // The frame was pulled by as many bytes.
    let pushed = arena.push(frame, usize::from(around.len));
    debug_assert!(pushed);
    around.id
}

/// Headers around a packet.
struct Headers {
    /// Their length, and that of the packet's own Ethernet header if it has one.
    len: usize,
    /// EtherType of the packet.
    kind: u16,
    /// Destination port, for VXLAN; else 0.
    port: u16,
    /// Key, or network identifier.
    key: Option<u32>,
}

impl Headers {
    /// Returns the values that name the tunnel of a packet with these headers, the first of which is `info`.
    fn end(&self, info: &Ipv4Info) -> TunnelEnd {
        let remote = if self.port == 0 { info.src } else { 0 };
        TunnelEnd { remote, local: info.dst, protocol: info.proto, port: self.port, key: self.key }
    }
}

/// Returns the IPv4 header at the start of `ip`, and all headers around the packet within. Padding may follow the outer
/// packet. `None` if that is not valid, is a fragment, has options, or has headers that are not known.
fn headers(ip: &[u8]) -> Option<(Ipv4Info, Headers)> {
    let info = ipv4::check(ip).ok().filter(|info| !info.is_fragment() && !info.has_options())?;
    let payload = ip.get(ipv4::HEADER_LEN..usize::from(info.total_len))?;
    Some((info, tunnel_headers(info.proto, payload)?))
}

/// Returns the headers around the packet in the payload of an IPv4 packet without options, the IPv4 header included.
fn tunnel_headers(protocol: u8, payload: &[u8]) -> Option<Headers> {
    let of = |more, kind, key| Some(Headers { len: ipv4::HEADER_LEN + more, kind, port: 0, key });
    match Encapsulation::of(protocol)? {
        Encapsulation::Ipip => of(0, ethertype::IPV4, None),
        Encapsulation::Sit => of(0, ethertype::IPV6, None),
        Encapsulation::Gre => {
            // RFC 2784 2.1, RFC 2890 2: flags and version, protocol, and with the flag, the key.
            let head: &[u8; GRE_LEN] = payload.first_chunk()?;
            let kind = be16(&head[2..]) as u16;
            let known = kind == ethertype::IPV4 || kind == ethertype::IPV6;
            match be16(head) {
                0 if known => of(GRE_LEN, kind, None),
                KEY if known => of(KEYED_LEN, kind, Some(be32(payload.get(GRE_LEN..KEYED_LEN)?))),
                _ => None,
            }
        }
        Encapsulation::Vxlan => {
            let head: &[u8; VXLAN_LEN + HEADER_LEN] = payload.first_chunk()?;
            let (vni, whole) = (be32(&head[12..]), be16(&head[4..]) as usize == payload.len());
            let kind = be16(&head[VXLAN_LEN + 12..]) as u16;
            if !whole || be32(&head[8..]) != VNI || vni & 0xff != 0 {
                return None;
            }
            let len = ipv4::HEADER_LEN + VXLAN_LEN + HEADER_LEN;
            Some(Headers { len, kind, port: be16(&head[2..]) as u16, key: Some(vni >> 8) })
        }
    }
}

/// Completes the transport checksum of a packet within another, if its sender left it to its device. A checksum around
/// it is already that of the completed packet (local checksum offload).
pub(crate) fn complete_within(data: &mut [u8]) -> bool {
    let Some(ip) = data.get_mut(HEADER_LEN..) else { return false };
    let Some((info, Headers { len, port, .. })) = headers(ip) else { return false };
    let ip = &mut ip[..usize::from(info.total_len)];
    // If the checksum around it is right, so is the packet as it is.
    let has_sum = port != 0 && ip[ipv4::HEADER_LEN + 6..][..2] != [0, 0];
    !(has_sum && sums_up(ip)) && partial::complete(&mut ip[len..])
}

/// Returns whether the UDP checksum of a valid IPv4 packet without options is right, or there is none.
fn sums_up(ip: &[u8]) -> bool {
    let Some((header, udp)) = ip.split_first_chunk::<{ ipv4::HEADER_LEN }>() else { return false };
    let none = udp.get(6..8).is_some_and(|sum| sum == [0, 0]);
    none || (pseudo4(header, header[9], udp.len() as u16) + Sum::of(udp)).is_valid()
}

/// Returns whether an IP packet may be forwarded, as far as it decides itself.
fn may_be_forwarded(kind: u16, ip: &[u8]) -> bool {
    match kind {
        ethertype::IPV4 => {
            let plain = ipv4::check(ip).ok().filter(|info| !info.has_options() && info.ttl > 1);
            plain.is_some_and(|info| host4(info.src) && host4(info.dst))
        }
        ethertype::IPV6 => ip.first_chunk().and_then(|header| valid_header6(header, ip.len())).is_some(),
        _ => false,
    }
}

/// Way of a packet through a tunnel.
pub(crate) struct Through<'a> {
    tunnel: &'a Tunnel,
    remote: Ipv4Addr,
    /// TTL of the host's own packets.
    ttl: u8,
    /// Addresses of the Ethernet header within, for VXLAN.
    macs: [u8; 12],
    /// Source port, for VXLAN.
    source: u16,
    /// Next hop of the packet around it.
    hop: &'a Entry,
}

/// Returns whether the kernel must get the next packet through the tunnel of a next hop for connection tracking; `now`
/// is the time in seconds.
pub(crate) fn is_forgotten(tables: &Tables, hop: &Entry, now: u32) -> bool {
    tables.tunnels.get(hop.port).is_some_and(|tunnel| tunnel.is_forgotten(now))
}

/// Returns the way of a valid IP packet of `len` bytes through the tunnel of its next hop; `None` if it is left to the
/// kernel.
pub(crate) fn way<'a>(tables: &'a Tables, hop: &Entry, data: &[u8], len: u32) -> Option<Through<'a>> {
    let info = tables.tunnels.get(hop.port)?;
    let tunnel = &info.tunnel;
    let v6 = frame_type(data)? == ethertype::IPV6;
    let carries = match tunnel.encapsulation {
        Encapsulation::Ipip => !v6,
        Encapsulation::Sit => v6,
        Encapsulation::Gre | Encapsulation::Vxlan => true,
    };
    // The kernel takes no address that is not its own for a source (ip_route_output_key).
    if !carries || tables.entry(tables.fib4.lookup(tunnel.local.to_bits())).kind != Kind::Local {
        return None;
    }
    let remote = if tunnel.vxlan.is_some() { Ipv4Addr::from_bits(hop.first) } else { tunnel.remote };
    let id = tables.fib4.lookup(remote.to_bits());
    let outer = Some(tables.entry(id)).filter(|outer| outer.kind == Kind::Forward)?;
    let cold = tables.cold.get(id as usize)?;
    if (tunnel.link != 0 && tunnel.link != cold.index) || !info.keeps_source(cold) {
        return None;
    }
    let path = tables.tunnels.path((tunnel.local, remote, tunnel.link))?;
    let longest = outer.mtu.min(path.mtu);
    let narrow = tunnel.encapsulation == Encapsulation::Sit && longest < MIN_MTU6 + ipv4::HEADER_LEN as u32;
    if narrow || len + added(tunnel) as u32 > longest {
        return None;
    }
    // The kernel's hash for it is its own secret; a connection has one port here, too (udp_flow_src_port).
    let source = tunnel.vxlan.map_or(0, |vxlan| {
        let [first, end] =
            if vxlan.sources[0] < vxlan.sources[1] { vxlan.sources } else { tables.tunnels.paths.sources };
        let hash = u64::from(flow_hash(HashPolicy::L4, HashPolicy::L4, data));
        first + ((hash * u64::from(end.saturating_sub(first))) >> 32) as u16
    });
    Some(Through { tunnel, remote, ttl: path.ttl, macs: hop.macs, source, hop: outer })
}

/// Returns the length in bytes of the headers that a tunnel adds.
fn added(tunnel: &Tunnel) -> usize {
    let more = match (tunnel.encapsulation, tunnel.keys[1]) {
        (Encapsulation::Gre, None) => GRE_LEN,
        (Encapsulation::Gre, Some(_)) => KEYED_LEN,
        (Encapsulation::Vxlan, _) => VXLAN_LEN + HEADER_LEN,
        _ => 0,
    };
    ipv4::HEADER_LEN + more
}

/// Encapsulates a valid IP packet of `len` bytes, whose TTL has been decremented, as `ip_tunnel_xmit`,
/// `ipip6_tunnel_xmit` and `vxlan_xmit_one` do; `id` is the identification of the packet around it. Returns the port
/// that it leaves by; `None` if the frame has no room in front.
pub(crate) fn encapsulate(
    arena: &Arena,
    through: &Through<'_>,
    frame: &mut Frame,
    len: u32,
    id: u16,
) -> Option<PortId> {
    let Through { tunnel, hop, .. } = through;
    let ip = arena.data(frame).get(HEADER_LEN..)?;
    let v6 = ip[0] >> 4 == 6;
    let (tos, ttl, whole) = match v6 {
        true => ((be16(ip) >> 4) as u8, ip[7], false),
        false => (ip[1], ip[8], be16(&ip[6..]) as u16 & ipv4::DF != 0),
    };
    // INET_ECN_encapsulate: the packet around one that has seen congestion has not seen it itself.
    let base = if tunnel.tos & 1 != 0 { tos } else { tunnel.tos };
    let around = base & !CE | if tos & CE == CE { ECT_0 } else { tos & CE };
    let inherits = matches!(tunnel.encapsulation, Encapsulation::Ipip | Encapsulation::Gre);
    let fixed = if tunnel.dont_fragment || (whole && inherits) { ipv4::DF } else { 0 };
    let own = if tunnel.vxlan.is_some() { through.ttl } else { ttl };
    let added = added(tunnel);
    let total = (len as usize + added) as u16;
    // Padding is no part of the packet.
    frame.truncate(HEADER_LEN + len as usize);
    if !arena.push(frame, added) {
        return None;
    }
    let data = arena.data_mut(frame);
    let (ethernet, ip) = data.split_at_mut(HEADER_LEN);
    ethernet[..12].copy_from_slice(&hop.macs);
    ethernet[12..].copy_from_slice(&ethertype::IPV4.to_be_bytes());
    let (header, rest) = ip.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
    header[..2].copy_from_slice(&[0x45, around]);
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[4..6].copy_from_slice(&id.to_be_bytes());
    header[6..8].copy_from_slice(&fixed.to_be_bytes());
    header[8] = if tunnel.ttl == 0 { own } else { tunnel.ttl };
    header[9] = tunnel.encapsulation.protocol();
    header[12..16].copy_from_slice(&tunnel.local.octets());
    header[16..].copy_from_slice(&through.remote.octets());
    ipv4::fill_checksum(header);
    match (tunnel.encapsulation, tunnel.vxlan) {
        (Encapsulation::Gre, _) => {
            let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
            let flags = if tunnel.keys[1].is_some() { KEY as u16 } else { 0 };
            rest[..2].copy_from_slice(&flags.to_be_bytes());
            rest[2..4].copy_from_slice(&kind.to_be_bytes());
            if let Some(key) = tunnel.keys[1] {
                rest[GRE_LEN..KEYED_LEN].copy_from_slice(&key.to_be_bytes());
            }
        }
        (_, Some(vxlan)) => {
            rest[VXLAN_LEN..VXLAN_LEN + 12].copy_from_slice(&through.macs);
            rest[..2].copy_from_slice(&through.source.to_be_bytes());
            rest[2..4].copy_from_slice(&vxlan.port.to_be_bytes());
            rest[4..6].copy_from_slice(&(total - ipv4::HEADER_LEN as u16).to_be_bytes());
            rest[6..8].fill(0);
            rest[8..12].copy_from_slice(&VNI.to_be_bytes());
            rest[12..16].copy_from_slice(&(vxlan.vni << 8).to_be_bytes());
            if vxlan.checksum {
                let sum = (pseudo4(header, header[9], rest.len() as u16) + Sum::of(rest)).checksum();
                // RFC 768: zero means that there is no checksum.
                rest[6..8].copy_from_slice(&if sum == 0 { u16::MAX } else { sum }.to_be_bytes());
            }
        }
        _ => {}
    }
    Some(hop.port)
}
