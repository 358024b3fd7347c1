//! Tunnels over IPv4: packets are taken out of those that a tunnel's other end sends to this host, and enclosed in
//! packets to that end.
//!
//! A tunnel has a number like a VLAN's, from [`crate::vlan::FIRST`] on; gates, next hops and source checks name it by
//! that. Its packets arrive and leave by whatever port the routes of the packets around them lead to. All of this
//! happens on the slow path. Packets about which the kernel would do more than enclose them, or take them out, are left
//! to it: fragments, a congestion mark to be carried over, an error to be answered, a route of several next hops.

use crate::bytes::{be16, be32, frame_type};
use crate::tables::{Entry, Kind, PortInfo, Tables};
use crate::valid::{host4, valid6};
use crate::vlan::Ingress;
use bywash_engine::PortId;
use bywash_fib::model::{Encapsulation, Tunnel};
use bywash_frame::{Arena, Frame};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, ipv6};

/// Flag of a GRE header that has a key (RFC 2890).
const KEY: u32 = 0x2000;
/// Congestion experienced (RFC 3168 5), and the bits of the TOS octet that it is in.
const CE: u8 = 3;
/// ECT(0) and ECT(1) of the same bits.
const ECT_0: u8 = 2;
const ECT_1: u8 = 1;
/// Smallest MTU of IPv6 (RFC 8200 5).
const MIN_MTU6: u32 = 1280;

/// Values of a received packet that name its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    remote: u32,
    local: u32,
    protocol: u8,
    key: Option<u32>,
}

/// A tunnel as routing sees it.
#[derive(Clone, Debug)]
pub struct TunnelInfo {
    /// Its number.
    pub id: PortId,
    /// Ends and header fields. Both addresses are those of hosts.
    pub tunnel: Tunnel,
    /// Length in bytes of the longest packet around others that the path to the other end takes; 0 while it is not
    /// known.
    pub path_mtu: u32,
    /// Properties of the interface itself.
    pub info: PortInfo,
}

impl TunnelInfo {
    fn end(&self) -> End {
        let Tunnel { encapsulation, local, remote, keys: [key, _], .. } = self.tunnel;
        End { remote: remote.to_bits(), local: local.to_bits(), protocol: encapsulation.protocol(), key }
    }
}

/// Tunnels, by their numbers and by their ends.
#[derive(Clone, Debug, Default)]
pub struct Tunnels {
    /// In ascending order of their numbers.
    all: Vec<TunnelInfo>,
    /// Places in `all`, in ascending order of their ends.
    ends: Vec<(End, usize)>,
}

impl Tunnels {
    /// Creates a set of tunnels. No two may have the same number, or the same ends.
    pub fn new(mut all: Vec<TunnelInfo>) -> Self {
        all.sort_by_key(|tunnel| tunnel.id);
        let mut ends: Vec<_> = all.iter().enumerate().map(|(at, tunnel)| (tunnel.end(), at)).collect();
        ends.sort_unstable();
        Self { all, ends }
    }

    /// Returns the tunnel with this number.
    pub fn get(&self, id: PortId) -> Option<&TunnelInfo> {
        self.all.binary_search_by_key(&id, |tunnel| tunnel.id).ok().map(|at| &self.all[at])
    }

    /// Returns all tunnels.
    pub fn iter(&self) -> impl Iterator<Item = &TunnelInfo> {
        self.all.iter()
    }

    /// Returns the encapsulations of the tunnels, as bits: 1 IPv4, 2 IPv6, 4 GRE.
    pub fn encapsulations(&self) -> u32 {
        self.all.iter().fold(0, |all, tunnel| all | 1 << tunnel.tunnel.encapsulation as u32)
    }

    fn with(&self, end: &End) -> Option<&TunnelInfo> {
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

/// Removes the headers around a packet that came through a tunnel: a valid IPv4 packet to this host, without options.
/// The frame then has an Ethernet header whose addresses mean nothing. Returns where the packet within was received, if
/// it may be forwarded; if not, or if there is no such tunnel, `None`, with the frame unchanged.
pub(crate) fn take_out(arena: &Arena, tables: &Tables, from: Ingress, frame: &mut Frame) -> Option<Ingress> {
    let data = arena.data(frame);
    // A packet within one that was itself within another.
    if from.around.is_some() || frame_type(data) != Some(ethertype::IPV4) {
        return None;
    }
    let ip = &data[HEADER_LEN..];
    let info = ipv4::check(ip).ok()?;
    let whole = info.fragment & 0x3fff == 0 && !info.has_options();
    // The kernel carries ECT(1) and CE over to the packet within, or drops it (INET_ECN_decapsulate, RFC 6040 4.2).
    if !whole || ip[1] & ECT_1 != 0 {
        return None;
    }
    let ip = ip.get(..usize::from(info.total_len))?;
    let (len, kind, key) = headers(info.proto, &ip[ipv4::HEADER_LEN..])?;
    let tunnel = tables.tunnels.with(&End { remote: info.src, local: info.dst, protocol: info.proto, key })?;
    let link = tunnel.tunnel.link;
    if link != 0 && tables.port(from.id).is_none_or(|port| port.index != link) {
        return None;
    }
    let (within, long) = (ip.get(len..)?, HEADER_LEN + ip.len());
    if !may_be_forwarded(kind, within) {
        return None;
    }
    frame.truncate(long);
    frame.pull(len);
    let [high, low] = arena.data_mut(frame).get_mut(HEADER_LEN - 2..HEADER_LEN)? else { return None };
    let last = [*high, *low];
    [*high, *low] = kind.to_be_bytes();
    Some(Ingress { id: tunnel.id, around: Some(Around { id: from.id, len: len as u8, last }), ..from })
}

/// Puts back what [`take_out`] removed; returns the number of the interface that received the frame.
pub(crate) fn put_back(arena: &Arena, around: Around, frame: &mut Frame) -> PortId {
    if let Some(place) = arena.data_mut(frame).get_mut(HEADER_LEN - 2..HEADER_LEN) {
        place.copy_from_slice(&around.last);
    }
    // The frame was pulled by as many bytes.
    let pushed = arena.push(frame, usize::from(around.len));
    debug_assert!(pushed);
    around.id
}

/// Returns the length of the headers around a packet, its EtherType, and the key that it came with.
fn headers(protocol: u8, payload: &[u8]) -> Option<(usize, u16, Option<u32>)> {
    const IPIP: u8 = Encapsulation::Ipip.protocol();
    const SIT: u8 = Encapsulation::Sit.protocol();
    const GRE: u8 = Encapsulation::Gre.protocol();
    match protocol {
        IPIP => Some((ipv4::HEADER_LEN, ethertype::IPV4, None)),
        SIT => Some((ipv4::HEADER_LEN, ethertype::IPV6, None)),
        GRE => {
            // RFC 2784 2.1, RFC 2890 2: flags and version, protocol, and with the flag, the key.
            let head: &[u8; 4] = payload.first_chunk()?;
            let kind = be16(&head[2..]) as u16;
            let known = kind == ethertype::IPV4 || kind == ethertype::IPV6;
            match be16(head) {
                0 if known => Some((ipv4::HEADER_LEN + 4, kind, None)),
                KEY if known => Some((ipv4::HEADER_LEN + 8, kind, Some(be32(payload.get(4..8)?)))),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns whether an IP packet may be forwarded, as far as it decides itself.
fn may_be_forwarded(kind: u16, ip: &[u8]) -> bool {
    if kind == ethertype::IPV6 {
        // The addresses and the type of an Ethernet header in front.
        let mut head = [0; HEADER_LEN + ipv6::HEADER_LEN];
        let Some(own) = ip.first_chunk::<{ ipv6::HEADER_LEN }>() else { return false };
        head[HEADER_LEN..].copy_from_slice(own);
        head[HEADER_LEN - 2..HEADER_LEN].copy_from_slice(&kind.to_be_bytes());
        return valid6(&head, ip.len()).is_some();
    }
    ipv4::check(ip).is_ok_and(|info| !info.has_options() && info.ttl > 1 && host4(info.src) && host4(info.dst))
}

/// Way of a packet through a tunnel.
pub(crate) struct Through<'a> {
    tunnel: &'a Tunnel,
    /// Next hop of the packet around it.
    hop: &'a Entry,
}

/// Returns the way of a valid IP packet of `len` bytes through the tunnel of its next hop; `None` if it is left to the
/// kernel.
pub(crate) fn way<'a>(tables: &'a Tables, hop: &Entry, data: &[u8], len: u32) -> Option<Through<'a>> {
    let TunnelInfo { tunnel, path_mtu, .. } = tables.tunnels.get(hop.port)?;
    let v6 = frame_type(data)? == ethertype::IPV6;
    let carries = match tunnel.encapsulation {
        Encapsulation::Ipip => !v6,
        Encapsulation::Sit => v6,
        Encapsulation::Gre => true,
    };
    // The kernel takes no address that is not its own for a source (ip_route_output_key).
    if !carries || tables.entry(tables.fib4.lookup(tunnel.local.to_bits())).kind != Kind::Local {
        return None;
    }
    let id = tables.fib4.lookup(tunnel.remote.to_bits());
    let outer = Some(tables.entry(id)).filter(|outer| outer.kind == Kind::Forward)?;
    let link = tables.cold.get(id as usize)?.index;
    if tunnel.link != 0 && tunnel.link != link {
        return None;
    }
    let longest = outer.mtu.min(*path_mtu);
    let narrow = tunnel.encapsulation == Encapsulation::Sit && longest < MIN_MTU6 + ipv4::HEADER_LEN as u32;
    (!narrow && len + added(tunnel) as u32 <= longest).then_some(Through { tunnel, hop: outer })
}

/// Returns the length in bytes of the headers that a tunnel adds.
fn added(tunnel: &Tunnel) -> usize {
    let gre = match (tunnel.encapsulation, tunnel.keys[1]) {
        (Encapsulation::Gre, None) => 4,
        (Encapsulation::Gre, Some(_)) => 8,
        _ => 0,
    };
    ipv4::HEADER_LEN + gre
}

/// Encloses a valid IP packet of `len` bytes, whose TTL has been decremented, as `ip_tunnel_xmit` and
/// `ipip6_tunnel_xmit` do; `id` is the identification of the packet around it. Returns the port that it leaves by;
/// `None` if the frame has no room in front.
pub(crate) fn enclose(
    arena: &Arena,
    Through { tunnel, hop }: &Through<'_>,
    frame: &mut Frame,
    len: u32,
    id: u16,
) -> Option<PortId> {
    let ip = arena.data(frame).get(HEADER_LEN..)?;
    let v6 = ip[0] >> 4 == 6;
    let (tos, ttl, whole) = match v6 {
        true => ((be16(ip) >> 4) as u8, ip[7], false),
        false => (ip[1], ip[8], be16(&ip[6..]) as u16 & ipv4::DF != 0),
    };
    // INET_ECN_encapsulate: the packet around one that has seen congestion has not seen it itself.
    let base = if tunnel.tos & 1 != 0 { tos } else { tunnel.tos };
    let around = base & !CE | if tos & CE == CE { ECT_0 } else { tos & CE };
    let fixed =
        if tunnel.dont_fragment || (whole && tunnel.encapsulation != Encapsulation::Sit) { ipv4::DF } else { 0 };
    let added = added(tunnel);
    let total = (len as usize + added) as u16;
    // Padding is no part of the packet.
    frame.truncate(HEADER_LEN + len as usize);
    if !arena.push(frame, added) {
        return None;
    }
    let data = arena.data_mut(frame);
    let (ethernet, rest) = data.split_at_mut(HEADER_LEN);
    ethernet[..12].copy_from_slice(&hop.macs);
    ethernet[12..].copy_from_slice(&ethertype::IPV4.to_be_bytes());
    let (header, rest) = rest.split_at_mut(ipv4::HEADER_LEN);
    header[..2].copy_from_slice(&[0x45, around]);
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[4..6].copy_from_slice(&id.to_be_bytes());
    header[6..8].copy_from_slice(&fixed.to_be_bytes());
    header[8] = if tunnel.ttl == 0 { ttl } else { tunnel.ttl };
    header[9] = tunnel.encapsulation.protocol();
    header[12..16].copy_from_slice(&tunnel.local.octets());
    header[16..].copy_from_slice(&tunnel.remote.octets());
    ipv4::fill_checksum(header);
    if tunnel.encapsulation == Encapsulation::Gre {
        let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let flags = if tunnel.keys[1].is_some() { KEY as u16 } else { 0 };
        rest[..2].copy_from_slice(&flags.to_be_bytes());
        rest[2..4].copy_from_slice(&kind.to_be_bytes());
        if let Some(key) = tunnel.keys[1] {
            rest[4..8].copy_from_slice(&key.to_be_bytes());
        }
    }
    Some(hop.port)
}
