//! Encapsulation of packets to the other ends of tunnels.
//!
//! Packets for which the kernel would do more than encapsulate are left to it, such as an error to be answered.

use super::{
    CE, ECT_0, FIELD_LEN, GRE_LEN, KEY, LIMIT_LEN, Path, SUMMED, TunnelInfo, VNI, added, limit_options, own_header, via,
};
use crate::bytes::{be16, frame_type};
use crate::flow::flow_hash;
use crate::tables::{Entry, HashPolicy, Kind, Tables};
use bywash_engine::PortId;
use bywash_fib::model::{Encapsulation, OuterHeader, Tunnel};
use bywash_frame::{Arena, Frame};
use bywash_wire::checksum::{Sum, pseudo6};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, ipv6, proto};
use std::net::IpAddr;

/// Smallest MTU of IPv6 (RFC 8200 5).
const MIN_MTU6: u32 = 1280;

/// Route of the outer packets through the tunnel of one next hop. Consecutive packets of a burst that have the same
/// next hop share it.
pub(crate) struct OuterRoute<'a> {
    info: &'a TunnelInfo,
    path: &'a Path,
    header: OuterHeader,
    /// Addresses of the inner Ethernet header, if the tunnel carries frames.
    macs: [u8; 12],
    /// Next hop of the outer packets.
    hop: &'a Entry,
}

/// Encapsulation of one packet: the route of the outer packet, and header fields that depend on the inner one.
pub(crate) struct Encap<'a> {
    route: &'a OuterRoute<'a>,
    /// Source port, for VXLAN.
    source: u16,
    /// Flow label, for kinds `ip6tnl`, `ip6gre` and `ip6gretap`.
    label: u32,
}

impl<'a> OuterRoute<'a> {
    /// Looks up the route to the other end of the tunnel of a next hop; `None` if the tunnel's packets are left to the
    /// kernel.
    pub fn of(tables: &'a Tables, hop: &Entry) -> Option<Self> {
        let (info, path) = (tables.tunnels.get(hop.port)?, tables.tunnels.paths.all.get(hop.tunnel().0 as usize)?);
        Self::by(tables, info, path, tables.tunnels.header(info, hop)?, hop.macs)
    }

    /// Looks up the route for a frame that a bridge forwards to this end of a tunnel; `None` as for [`OuterRoute::of`].
    pub fn to(tables: &'a Tables, info: &'a TunnelInfo, remote: IpAddr, frame: &[u8]) -> Option<Self> {
        let (paths, ends) = (&tables.tunnels.paths.all, (info.tunnel.local, remote, info.tunnel.link));
        let at = paths.binary_search_by_key(&ends, |path| path.ends).ok()?;
        Self::by(tables, info, &paths[at], own_header(&info.tunnel), *frame.first_chunk()?)
    }

    fn by(
        tables: &'a Tables,
        info: &'a TunnelInfo,
        path: &'a Path,
        header: OuterHeader,
        macs: [u8; 12],
    ) -> Option<Self> {
        let tunnel = &info.tunnel;
        // The kernel takes no address that is not its own for a source (ip_route_output_key, ip6_dst_lookup_tail).
        if tables.entry_to(path.source).kind != Kind::Local {
            return None;
        }
        let (local, remote, link) = path.ends;
        let from = local == tunnel.local || (tunnel.external && local.is_ipv6() == tunnel.is_over_v6());
        let own = from && link == tunnel.link && (tunnel.vxlan.is_some() || tunnel.external || remote == tunnel.remote);
        // Routes with headers over IPv6 have no cache: the kernel chooses one of several next hops for each packet. For
        // a given source, `via` is one of several.
        if tunnel.external && local.is_ipv6() && !local.is_unspecified() && path.via.is_some() {
            return None;
        }
        let id = next_hop(tables, path)?;
        let outer = Some(tables.entry(id)).filter(|outer| own && outer.kind == Kind::Forward)?;
        let cold = tables.cold.get(id as usize)?;
        let leads = (link == 0 || link == cold.index) && info.keeps_source(path.source, cold);
        leads.then_some(Self { info, path, header, macs, hop: outer })
    }

    /// Returns the encapsulation of a valid IP packet of `len` bytes, or of a frame with as many bytes
    /// behind its Ethernet header; `None` if it is left to the kernel.
    pub fn encap(&self, tables: &Tables, data: &[u8], len: u32) -> Option<Encap<'_>> {
        let tunnel = &self.info.tunnel;
        let v6 = frame_type(data)? == ethertype::IPV6;
        let carries = if v6 { tunnel.carries.v6 } else { tunnel.carries.v4 };
        if !carries || (v6 && is_unusual6(tunnel, &data[HEADER_LEN..])) {
            return None;
        }
        let longest = self.hop.mtu.min(self.path.mtu);
        let narrow = tunnel.encapsulation == Encapsulation::Sit && longest < MIN_MTU6 + ipv4::HEADER_LEN as u32;
        if narrow || len + added(tunnel, &self.header) as u32 > longest {
            return None;
        }
        // The kernel's hashes for these are keyed with secrets; a connection has one source port here, too
        // (udp_flow_src_port, ip6_make_flowlabel).
        let hash = || flow_hash(HashPolicy::L4, HashPolicy::L4, data);
        let source = tunnel.vxlan.map_or(0, |vxlan| {
            let [first, end] =
                if vxlan.sources[0] < vxlan.sources[1] { vxlan.sources } else { tables.tunnels.paths.sources };
            first + ((u64::from(hash()) * u64::from(end.saturating_sub(first))) >> 32) as u16
        });
        let labels = tables.tunnels.paths.labels.filter(|_| tunnel.is_over_v6() && tunnel.vxlan.is_none());
        let label = labels.map_or(0, |set| hash() >> 12 | set);
        Some(Encap { route: self, source, label })
    }

    /// Returns whether this packet must be left to the kernel for connection tracking, like
    /// [`TunnelInfo::claim_refresh`].
    pub fn claim_refresh(&self, now: impl FnOnce() -> u32) -> bool {
        self.info.claim_refresh(now)
    }
}

/// Returns the next hop of outer packets by this path: the one by which the kernel sends its own packets, if that
/// matters; `None` if it is not among those of the route any more.
fn next_hop(tables: &Tables, path: &Path) -> Option<u32> {
    let (_, remote, _) = path.ends;
    let id = tables.id_to(remote);
    let Some(own) = path.via else { return Some(id) };
    let route = tables.entry(id);
    let hops = match route.kind {
        Kind::Group => tables.members(route),
        _ => &[id],
    };
    let is_own = |id: &u32| tables.cold.get(*id as usize).is_some_and(|hop| via(hop.index, hop.gateway, remote) == own);
    hops.iter().copied().find(is_own)
}

/// Returns whether the kernel may do more than encapsulate this IPv6 packet in one of kind `ip6tnl`, `ip6gre` or
/// `ip6gretap`: it comes from the tunnel's remote, or has extension headers, among which may be an encapsulation limit
/// (RFC 2473 4.1.1).
fn is_unusual6(tunnel: &Tunnel, ip: &[u8]) -> bool {
    let IpAddr::V6(remote) = tunnel.remote else { return false };
    let Some((header, _)) = ipv6::Ipv6Header::parse(ip) else { return true };
    tunnel.vxlan.is_none() && (ipv6::is_extension(header.next_header) || header.src == remote.octets())
}

/// Encapsulates a valid IP packet of `len` bytes, whose TTL has been decremented, or a frame that a bridge forwards, as
/// `ip_tunnel_xmit`, `ipip6_tunnel_xmit`, `ip6_tnl_xmit` and `vxlan_xmit_one` do; `id` is the identification of an
/// outer IPv4 packet. Returns the port by which the packet leaves; `None` if the frame has no room in front.
pub(crate) fn encapsulate(arena: &Arena, encap: &Encap<'_>, frame: &mut Frame, len: u32, id: u16) -> Option<PortId> {
    let OuterRoute { info: TunnelInfo { tunnel, .. }, path, header, macs, hop } = encap.route;
    let ip = arena.data(frame).get(HEADER_LEN..)?;
    let v6 = ip[0] >> 4 == 6;
    let (tos, ttl, whole) = match v6 {
        true => ((be16(ip) >> 4) as u8, ip[7], false),
        false => (ip[1], ip[8], be16(&ip[6..]) as u16 & ipv4::DF != 0),
    };
    let base = if header.tos & 1 != 0 { tos } else { header.tos };
    let tos = match (tunnel.encapsulation, tunnel.is_over_v6()) {
        // The kernel takes it as it is (prepare_ip6gre_xmit_ipv4).
        (Encapsulation::Gre | Encapsulation::Gretap, true) => base,
        // INET_ECN_encapsulate: the outer packet of one that has experienced congestion has not experienced any itself.
        _ => base & !CE | if tos & CE == CE { ECT_0 } else { tos & CE },
    };
    let whole = header.dont_fragment || (whole && tunnel.inherits_dont_fragment());
    let own = if tunnel.vxlan.is_some() { path.ttl } else { ttl };
    let outer = Outer {
        tos,
        ttl: if header.ttl == 0 { own } else { header.ttl },
        fixed: if whole { ipv4::DF } else { 0 },
        id,
        protocol: tunnel.protocol(v6),
    };
    // Padding is no part of the packet.
    frame.truncate(HEADER_LEN + len as usize);
    if !arena.push(frame, added(tunnel, header)) {
        return None;
    }
    let data = arena.data_mut(frame);
    let (ethernet, ip) = data.split_at_mut(HEADER_LEN);
    ethernet[..12].copy_from_slice(&hop.macs);
    let kind = if tunnel.is_over_v6() { ethertype::IPV6 } else { ethertype::IPV4 };
    ethernet[12..].copy_from_slice(&kind.to_be_bytes());
    if tunnel.is_ethernet() {
        // The EtherType behind them is still there.
        ip[added(tunnel, header) - HEADER_LEN..][..12].copy_from_slice(macs);
    }
    let (pseudo, rest) = outer.write(encap, ip)?;
    match (tunnel.encapsulation, tunnel.vxlan) {
        (Encapsulation::Gre | Encapsulation::Gretap, _) => {
            let kind = match v6 {
                _ if tunnel.is_ethernet() => ethertype::TEB,
                true => ethertype::IPV6,
                false => ethertype::IPV4,
            };
            let flags = if header.keyed { KEY } else { 0 } | if header.checksum { SUMMED } else { 0 };
            rest[..2].copy_from_slice(&(flags as u16).to_be_bytes());
            rest[2..4].copy_from_slice(&kind.to_be_bytes());
            if header.keyed {
                let at = GRE_LEN + if header.checksum { FIELD_LEN } else { 0 };
                rest[at..at + FIELD_LEN].copy_from_slice(&header.id.to_be_bytes());
            }
            if header.checksum {
                rest[GRE_LEN..][..FIELD_LEN].fill(0);
                let sum = nonzero(Sum::of(rest).checksum());
                rest[GRE_LEN..][..2].copy_from_slice(&sum.to_be_bytes());
            }
        }
        (_, Some(vxlan)) => {
            rest[..2].copy_from_slice(&encap.source.to_be_bytes());
            rest[2..4].copy_from_slice(&vxlan.port.to_be_bytes());
            let len = rest.len() as u16;
            rest[4..6].copy_from_slice(&len.to_be_bytes());
            rest[6..8].fill(0);
            rest[8..12].copy_from_slice(&VNI.to_be_bytes());
            rest[12..16].copy_from_slice(&(header.id << 8).to_be_bytes());
            if header.checksum {
                let sum = nonzero((pseudo + Sum::of(rest)).checksum());
                rest[6..8].copy_from_slice(&sum.to_be_bytes());
            }
        }
        _ => {}
    }
    Some(hop.port)
}

/// Returns a checksum as the kernel writes it, also that of GRE (skb_checksum_help): zero means that UDP has none (RFC
/// 768).
const fn nonzero(sum: u16) -> u16 {
    if sum == 0 { u16::MAX } else { sum }
}

/// Fields of an outer IP header.
struct Outer {
    tos: u8,
    ttl: u8,
    /// DF bit, for IPv4.
    fixed: u16,
    /// Identification, for IPv4.
    id: u16,
    protocol: u8,
}

impl Outer {
    /// Writes the header at the start of a packet, and destination options with an encapsulation limit if the tunnel
    /// has one. Returns the sum of the pseudo-header for UDP, and what follows; `None` if the addresses are not of one
    /// family.
    fn write<'a>(&self, encap: &Encap<'_>, ip: &'a mut [u8]) -> Option<(Sum, &'a mut [u8])> {
        let total = ip.len();
        let OuterRoute { info: TunnelInfo { tunnel, .. }, path: Path { ends: (_, remote, _), source, .. }, .. } =
            encap.route;
        match (*source, *remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let (header, rest) = ip.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
                // Summed in registers: a load of what several stores have just written waits for them.
                let (local, remote) = (local.to_bits(), remote.to_bits());
                let mut words = [
                    0x45 << 24 | u32::from(self.tos) << 16 | u32::from(total as u16),
                    u32::from(self.id) << 16 | u32::from(self.fixed),
                    u32::from(self.ttl) << 24 | u32::from(self.protocol) << 16,
                    local,
                    remote,
                ];
                let sum = words.iter().fold(Sum::ZERO, |sum, word| sum + Sum::of_u32(*word));
                words[2] |= u32::from(sum.checksum());
                header.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_be_bytes());
                let ends = Sum::of_u32(local) + Sum::of_u32(remote);
                Some((ends + Sum::of_u32(u32::from(proto::UDP) + rest.len() as u32), rest))
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let (header, rest) = ip.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
                let word = 6 << 28 | u32::from(self.tos) << 20 | encap.label;
                header[..4].copy_from_slice(&word.to_be_bytes());
                header[4..6].copy_from_slice(&(rest.len() as u16).to_be_bytes());
                (header[6], header[7]) = (self.protocol, self.ttl);
                header[8..24].copy_from_slice(&local.octets());
                header[24..].copy_from_slice(&remote.octets());
                let mut rest = rest;
                if let Some(limit) = tunnel.limit {
                    header[6] = proto::DEST_OPTIONS;
                    let (options, behind) = rest.split_first_chunk_mut::<LIMIT_LEN>()?;
                    *options = limit_options(self.protocol, limit);
                    rest = behind;
                }
                Some((pseudo6(header, proto::UDP, rest.len() as u32), rest))
            }
            _ => None,
        }
    }
}
