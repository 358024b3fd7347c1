//! Decapsulation of packets that came through tunnels.

use super::{ECT_1, FIELD_LEN, GRE_LEN, InnerDestination, KEY, LIMIT_LEN, SUMMED, VNI, VXLAN_LEN, any, limit_options};
use crate::bytes::{be16, be32, frame_type};
use crate::tables::{Kind, PortInfo, Tables};
use crate::valid::{host4, valid_header6};
use crate::vlan::Ingress;
use bywash_engine::PortId;
use bywash_frame::{Arena, Frame};
use bywash_port::af_xdp::TunnelEnd;
use bywash_wire::checksum::{Sum, pseudo4, pseudo6};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, ipv6, partial, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Outer headers that [`decapsulate`] removed, as far as they are not still in front of the inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemovedHeaders {
    /// Number of the interface that received the outer packet.
    id: PortId,
    /// Length of the headers behind the Ethernet header. All but the last two bytes are still in front of the inner
    /// packet.
    len: u8,
    /// The last two bytes, which the EtherType of the inner packet has replaced.
    last: [u8; 2],
}

/// Returns whether a frame is an outer packet of a tunnel, as far as its headers tell.
pub(crate) fn is_outer(tables: &Tables, data: &[u8]) -> bool {
    Headers::of(data).is_some_and(|headers| tables.tunnels.with(&headers.end()).is_some())
}

/// A packet that came through a tunnel, after decapsulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decapsulated {
    /// Origin of the packet: for a frame that a bridge forwards, the tunnel; otherwise the interface that routes it.
    pub from: Ingress,
    /// Port by which the bridge forwards the frame, unchanged.
    pub to: Option<PortId>,
}

/// Removes the outer headers of a packet that came through a tunnel: a valid IP packet to this host. A packet to be
/// routed then has an Ethernet header with meaningless addresses. `now` returns the time in seconds. Returns the inner
/// packet if it may be forwarded; `None`, with the frame unchanged, if not or without such a tunnel.
pub(crate) fn decapsulate(
    arena: &Arena,
    tables: &Tables,
    from: Ingress,
    frame: &mut Frame,
    now: impl Fn() -> u32,
) -> Option<Decapsulated> {
    // A tunnel within a tunnel.
    if from.outer.is_some() {
        return None;
    }
    let data = arena.data(frame);
    let headers = Headers::of(data)?;
    // The kernel carries ECT(1) and CE over to the inner packet, or drops it (INET_ECN_decapsulate, RFC 6040 4.2).
    if headers.tos & ECT_1 != 0 {
        return None;
    }
    let Headers { len, total, kind, remote, local, .. } = headers;
    // ip6_parse_tlv
    if headers.ip > ipv6::HEADER_LEN && !tables.tunnels.paths.limited {
        return None;
    }
    let ip = &data[HEADER_LEN..][..total];
    let tunnel = tables.tunnels.with(&headers.end())?;
    let link = tunnel.tunnel.link;
    if link != 0 && tables.port(from.id).is_none_or(|port| port.index != link) {
        return None;
    }
    let accepted = match tunnel.tunnel.vxlan {
        _ if headers.has_sum(ip) => headers.sums_up(ip),
        Some(vxlan) => remote.is_ipv4() || vxlan.unsummed6,
        None => true,
    };
    if !accepted {
        return None;
    }
    // Rules were evaluated for packets of no VRF, and a VXLAN's socket takes none of one (udp_sk_bound_dev_eq). Ports
    // of VRFs have routing rules.
    let by_rules = |port: &PortInfo| if remote.is_ipv4() { !port.rules4.is_empty() } else { !port.rules6.is_empty() };
    if tables.port(from.id).is_none_or(by_rules) {
        return None;
    }
    // The kernel has not seen this packet: it would take an answer for a new connection, and translate it.
    let answered = || tables.cold.get(tables.id_to(remote) as usize);
    if tunnel.masqueraded && !answered().is_some_and(|outer| tunnel.keeps_source(local, outer)) {
        return None;
    }
    // ip6_tnl_rcv_ctl. The caller has validated the sources of IPv4 packets.
    if remote.is_ipv6() && tables.entry_to(remote).kind == Kind::Local {
        return None;
    }
    if tunnel.claim_refresh(&now) {
        return None;
    }
    let destination = match tunnel.tunnel.is_ethernet() {
        true => tunnel.inner_destination(remote, ip.get(len - HEADER_LEN..)?, now)?,
        false => InnerDestination::Interface,
    };
    if destination == InnerDestination::Interface && !may_be_forwarded(kind, ip.get(len..)?) {
        return None;
    }
    frame.truncate(HEADER_LEN + total);
    frame.pull(len);
    let [high, low] = arena.data_mut(frame).get_mut(HEADER_LEN - 2..HEADER_LEN)? else { return None };
    let last = [*high, *low];
    [*high, *low] = kind.to_be_bytes();
    let (id, to) = match destination {
        InnerDestination::Interface => (tunnel.info.master.unwrap_or(tunnel.id), None),
        InnerDestination::Port(port) => (tunnel.id, Some(port)),
    };
    let from = Ingress { id, outer: Some(RemovedHeaders { id: from.id, len: len as u8, last }), ..from };
    Some(Decapsulated { from, to })
}

/// Puts back what [`decapsulate`] removed; returns the number of the interface that received the frame.
pub(crate) fn put_back(arena: &Arena, outer: RemovedHeaders, frame: &mut Frame) -> PortId {
    if let Some(place) = arena.data_mut(frame).get_mut(HEADER_LEN - 2..HEADER_LEN) {
        place.copy_from_slice(&outer.last);
    }
    // The frame was pulled by as many bytes.
    let pushed = arena.push(frame, usize::from(outer.len));
    debug_assert!(pushed);
    outer.id
}

/// Completes the transport checksum of an inner packet, or the checksum of GRE, if its sender left it to its device. An
/// outer checksum is already that of the completed packet if the inner one was left (local checksum offload).
pub(crate) fn complete_inner(data: &mut [u8]) -> bool {
    let Some(headers) = Headers::of(data) else { return false };
    let ip = &mut data[HEADER_LEN..][..headers.total];
    // If the outer checksum is right, the inner packet is right as it is.
    if headers.has_sum(ip) && headers.sums_up(ip) {
        return false;
    }
    let completed = partial::complete(&mut ip[headers.len..]);
    let gre = &mut ip[headers.ip..];
    // GRE has no pseudo-header, so an unfinished field is zero.
    if !headers.summed || gre[GRE_LEN..][..2] != [0, 0] {
        return completed;
    }
    let sum = Sum::of(gre).checksum();
    gre[GRE_LEN..][..2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Outer headers of a packet.
struct Headers {
    /// Source and destination of the outer packet.
    remote: IpAddr,
    local: IpAddr,
    /// TOS or traffic class of the outer packet.
    tos: u8,
    /// IP protocol of what follows its IP header.
    protocol: u8,
    /// Length of its IP header, destination options with an encapsulation limit included.
    ip: usize,
    /// Length of the outer packet. Padding may follow it.
    total: usize,
    /// Length of all headers, and that of the packet's own Ethernet header if it has one.
    len: usize,
    /// EtherType of the packet.
    kind: u16,
    /// Destination port, for VXLAN; else 0.
    port: u16,
    /// Key, or network identifier.
    key: Option<u32>,
    /// Set for an Ethernet frame in GRE.
    ethernet: bool,
    /// Set for GRE with a checksum.
    summed: bool,
}

impl Headers {
    /// Returns the outer headers of a frame. `None` if its packet is not valid, is a fragment, has options, or has
    /// unknown headers.
    fn of(data: &[u8]) -> Option<Self> {
        let ip = data.get(HEADER_LEN..)?;
        match frame_type(data)? {
            ethertype::IPV4 => {
                let info = ipv4::check(ip).ok().filter(|info| !info.is_fragment() && !info.has_options())?;
                let total = usize::from(info.total_len);
                let [remote, local] = [info.src, info.dst].map(|addr| Ipv4Addr::from_bits(addr).into());
                Self::new(ip, [remote, local], info.tos, info.proto, ipv4::HEADER_LEN, total)
            }
            ethertype::IPV6 => {
                let info = ipv6::check(ip).ok()?;
                let [remote, local] = [info.src, info.dst].map(|addr| Ipv6Addr::from_bits(addr).into());
                let (mut protocol, mut len) = (info.next_header, ipv6::HEADER_LEN);
                // VXLANs add no options, and the rules for their packets are evaluated without.
                if protocol == proto::DEST_OPTIONS {
                    let options: &[u8; LIMIT_LEN] = ip.get(len..)?.first_chunk()?;
                    let [next, _, _, _, limit, ..] = *options;
                    if *options != limit_options(next, limit) || next == proto::UDP {
                        return None;
                    }
                    (protocol, len) = (next, len + LIMIT_LEN);
                }
                Self::new(ip, [remote, local], info.traffic_class, protocol, len, info.total_len as usize)
            }
            _ => None,
        }
    }

    fn new(ip: &[u8], ends: [IpAddr; 2], tos: u8, protocol: u8, len: usize, total: usize) -> Option<Self> {
        let [remote, local] = ends;
        let payload = ip.get(len..total)?;
        let of = |more, kind, key| {
            let (ip, len, port) = (len, len + more, 0);
            let (ethernet, summed) = (false, false);
            Some(Self { remote, local, tos, protocol, ip, total, len, kind, port, key, ethernet, summed })
        };
        match protocol {
            proto::IPIP => of(0, ethertype::IPV4, None),
            proto::IPV6 => of(0, ethertype::IPV6, None),
            proto::GRE => {
                // RFC 2784 2.1, RFC 2890 2: flags and version, protocol, and with the flag, the key.
                let head: &[u8; GRE_LEN] = payload.first_chunk()?;
                let flags = be16(head);
                if flags & !(SUMMED | KEY) != 0 {
                    return None;
                }
                let summed = flags & SUMMED != 0;
                let at = GRE_LEN + if summed { FIELD_LEN } else { 0 };
                let (len, key) = match flags & KEY {
                    0 => (at, None),
                    _ => (at + FIELD_LEN, Some(be32(payload.get(at..at + FIELD_LEN)?))),
                };
                let kind = be16(&head[2..]) as u16;
                let ethernet = kind == ethertype::TEB;
                let headers = match kind {
                    ethertype::IPV4 | ethertype::IPV6 => of(len, kind, key),
                    ethertype::TEB => of(len + HEADER_LEN, be16(payload.get(len + 12..len + HEADER_LEN)?) as u16, key),
                    _ => None,
                };
                Some(Self { ethernet, summed, ..headers? })
            }
            proto::UDP => {
                let head: &[u8; VXLAN_LEN + HEADER_LEN] = payload.first_chunk()?;
                let (vni, whole) = (be32(&head[12..]), be16(&head[4..]) as usize == payload.len());
                let kind = be16(&head[VXLAN_LEN + 12..]) as u16;
                if !whole || be32(&head[8..]) != VNI || vni & 0xff != 0 {
                    return None;
                }
                let headers = of(VXLAN_LEN + HEADER_LEN, kind, Some(vni >> 8))?;
                Some(Self { port: be16(&head[2..]) as u16, ..headers })
            }
            _ => None,
        }
    }

    /// Returns the values that name the tunnel of a packet with these headers.
    fn end(&self) -> TunnelEnd {
        let Self { remote, local, protocol, port, key, ethernet, summed, .. } = *self;
        TunnelEnd { remote: if port == 0 { remote } else { any(remote) }, local, protocol, port, key, ethernet, summed }
    }

    /// Returns whether the outer packet has a checksum of UDP or GRE.
    fn has_sum(&self, ip: &[u8]) -> bool {
        self.summed || (self.port != 0 && ip.get(self.ip + 6..self.ip + 8) != Some(&[0, 0]))
    }

    /// Returns whether that checksum is right.
    fn sums_up(&self, ip: &[u8]) -> bool {
        let data = &ip[self.ip..];
        let pseudo = match self.remote {
            _ if self.port == 0 => Some(Sum::ZERO),
            IpAddr::V4(_) => ip.first_chunk().map(|header| pseudo4(header, proto::UDP, data.len() as u16)),
            IpAddr::V6(_) => ip.first_chunk().map(|header| pseudo6(header, proto::UDP, data.len() as u32)),
        };
        pseudo.is_some_and(|pseudo| (pseudo + Sum::of(data)).is_valid())
    }
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
