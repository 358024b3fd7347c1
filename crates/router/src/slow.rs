//! The slow path: packets that the fast path could not finish.
//!
//! It determines the exact drop reason of each packet. Errors quote the packet as it arrived; the TTL is decremented
//! only when the packet is certain to be sent.

mod check;
mod errors;
mod neighbours;
mod tunnels;

use crate::bytes::{be16, frame_type};
use crate::gates::Gates;
use crate::icmp::Limits;
use crate::request::{Request, RouterConfig};
use crate::tables::{Kind, SourceCheck, Tables, takes_source};
use crate::tunnel::OuterRoute;
use crate::vlan::{self, Ingress};
use crate::waiting::Waiting;
use bywash_engine::{Context, DropReason, Event, PortId};
use bywash_frame::Frame;
use bywash_sync::clock;
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::frag::{self, FragError, Plan};
use bywash_wire::{ipv4, ipv6};
use check::{Validated, check4, check6};
use errors::Answer;
use rtrb::chunks::WriteChunkUninit;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) use tunnels::Inner;

/// Divisor of the request queue: one part in `RESERVED` is reserved for neighbour resolution, so that a flood of punted
/// packets cannot block it.
const RESERVED: usize = 4;

/// State of the slow path. It is separate from the tables, which are borrowed at the same time.
pub(crate) struct SlowPath {
    requests: rtrb::Producer<Request>,
    /// Number of free entries in `requests` that punted packets must leave.
    reserved: usize,
    pub config: RouterConfig,
    pub waiting: Waiting,
    pub limits: Limits,
    /// Gates of all ports: packets that are left to the kernel.
    pub gates: Gates,
    /// Packets of a burst that came through tunnels and are kept by gates that let flows pass.
    pub inner: Inner,
    /// Slot of the neighbour to check next.
    next: usize,
    /// Identification of the packet that it sent last, and the odd number between two: workers must not send packets
    /// with one identification to one host at a time.
    ip_id: (u16, u16),
}

/// Returns a time in seconds.
pub(crate) fn seconds(tsc: u64) -> u32 {
    (tsc / clock::tsc_hz().max(1)) as u32
}

impl SlowPath {
    pub fn new(requests: rtrb::Producer<Request>, config: RouterConfig) -> Self {
        let limits = Limits::new(config.icmp_rate);
        let reserved = requests.buffer().capacity() / RESERVED;
        let random = RandomState::new().hash_one(0u8);
        let ip_id = (random as u16, (random >> 16) as u16 | 1);
        Self {
            requests,
            reserved,
            config,
            waiting: Waiting::new(),
            limits,
            gates: Gates::open(),
            inner: Inner::new(),
            next: 0,
            ip_id,
        }
    }

    fn next_id(&mut self) -> u16 {
        self.ip_id.0 = self.ip_id.0.wrapping_add(self.ip_id.1);
        self.ip_id.0
    }

    /// Processes a packet that the fast path does not handle.
    pub(crate) fn slow(&mut self, cx: &mut Context<'_>, tables: &Tables, from: Ingress, frame: Frame) {
        let data = cx.bufs.arena().data(&frame);
        // A port without an interface has no kernel side to leave a frame to.
        let has_kernel = || tables.port(from.id).is_some_and(|port| port.index != 0);
        let verdict = match (frame_type(data), data.get(HEADER_LEN..)) {
            (Some(ethertype::IPV4), Some(ip)) => match check4(ip) {
                // Loopback addresses: the kernel drops the packet, or routes it with `route_localnet`.
                Err(DropReason::MartianSource | DropReason::MartianDestination)
                    if (ip[12] == 127 || ip[16] == 127) && has_kernel() =>
                {
                    Ok(Validated::Kernel)
                }
                checked => checked,
            },
            (Some(ethertype::IPV6), Some(ip)) => check6(ip),
            // The tag belongs to no interface.
            _ if vlan::is_tagged(data) && has_kernel() => Ok(Validated::Kernel),
            (Some(_), _) => Err(DropReason::NotIp),
            (None, _) => Err(DropReason::Runt),
        };
        // The kernel validates the source before it checks the TTL.
        let dubious = matches!(verdict, Ok(Validated::Forward) | Err(DropReason::TtlExceeded))
            && !has_accepted_source(tables, from, data);
        match verdict {
            _ if dubious => self.punt(cx, from, frame),
            // Packets to this host are not forwarded, so their TTL does not matter: routing protocols send with a TTL
            // of 1.
            Err(DropReason::TtlExceeded) if may_be_local(tables, from, cx.bufs.arena().data(&frame)) => {
                self.punt(cx, from, frame);
            }
            Err(DropReason::TtlExceeded) => {
                self.refuse(cx, tables, from, frame, DropReason::TtlExceeded, Answer::TtlExceeded);
            }
            Err(reason) => cx.drop(from.port, reason, frame),
            Ok(Validated::Forward) => self.route(cx, tables, from, frame),
            Ok(Validated::Kernel) => self.punt(cx, from, frame),
        }
    }

    /// Looks up a valid packet and sends it, queues it, or answers it with an error.
    fn route(&mut self, cx: &mut Context<'_>, tables: &Tables, from: Ingress, mut frame: Frame) {
        let data = cx.bufs.arena().data_mut(&mut frame);
        let route = route_of(tables, from, data);
        let id = tables.resolve(route, data);
        let hop = tables.entry(id);
        let (len, v6) = ip_len(data);
        match hop.kind {
            // Of a group of next-hop objects, the kernel chooses members with neighbours alone (nexthop_is_good_nh).
            Kind::Pending | Kind::Failed if tables.entry(route).kind == Kind::Group => self.punt(cx, from, frame),
            Kind::Forward if len <= hop.mtu => {
                if self.config.redirects && tables.number(hop.port) == from.id && !v6 {
                    if tables.port(from.id).is_some_and(|port| !port.rules4.is_empty() || !port.back4.is_empty()) {
                        return self.punt(cx, from, frame);
                    }
                    self.redirect(cx, tables, from, &frame, id);
                }
                if frame.len() > HEADER_LEN + hop.mtu as usize {
                    // Padding, which would make the frame too long for the device.
                    frame.truncate(HEADER_LEN + len as usize);
                }
                let data = cx.bufs.arena().data_mut(&mut frame);
                decrement_ttl(data);
                hop.rewrite_macs(data);
                vlan::send(cx, tables, from.port, hop.port, frame);
            }
            // The kernel checks the length before it resolves the neighbour (ip6_forward, ip_forward).
            kind if kind.is_of_port() && len > hop.mtu && (v6 || dont_fragment(data)) => {
                self.refuse(cx, tables, from, frame, DropReason::TooBig, Answer::TooBig { mtu: hop.mtu });
            }
            Kind::Forward => match plan(cx, &frame, hop.mtu) {
                Ok(plan) => {
                    let data = cx.bufs.arena().data_mut(&mut frame);
                    decrement_ttl(data);
                    hop.rewrite_macs(data);
                    Self::fragment(cx, tables, from, frame, hop.port, &plan);
                }
                // Linux fragments even where the offset of a fragment wraps.
                Err(_) => self.punt(cx, from, frame),
            },
            Kind::Glean | Kind::Pending | Kind::Failed => self.wait(cx, tables, from, frame, id, false),
            Kind::Tunnel => {
                self.encapsulate(cx, tables, from, frame, (hop, OuterRoute::of(tables, hop).as_ref()));
            }
            Kind::Local => self.decapsulate(cx, tables, from, frame),
            Kind::Kernel | Kind::Policy | Kind::NoCarrier => self.punt(cx, from, frame),
            Kind::Blackhole => cx.drop(from.port, DropReason::Blackhole, frame),
            Kind::Unreachable => {
                // Linux answers an IPv6 unreachable route with "no route", an IPv4 one with "host unreachable".
                let answer = if v6 { Answer::NoRoute } else { Answer::HostUnreachable };
                self.refuse(cx, tables, from, frame, DropReason::Unreachable, answer);
            }
            Kind::Prohibit => self.refuse(cx, tables, from, frame, DropReason::Prohibited, Answer::Prohibited),
            Kind::NoRoute | Kind::Group => {
                self.refuse(cx, tables, from, frame, DropReason::NoRoute, Answer::NoRoute);
            }
        }
    }

    /// Sends an ICMP message made by the router.
    fn send_own(&mut self, cx: &mut Context<'_>, tables: &Tables, from: Ingress, mut frame: Frame) {
        let data = cx.bufs.arena().data_mut(&mut frame);
        let id = lookup(tables, from, data);
        let hop = tables.entry(id);
        let (len, v6) = ip_len(data);
        match hop.kind {
            Kind::Forward if len > hop.mtu && (v6 || dont_fragment(data)) => {
                cx.drop(from.port, DropReason::TooBig, frame)
            }
            Kind::Forward => {
                hop.rewrite_macs(data);
                if len <= hop.mtu {
                    return vlan::send(cx, tables, from.port, hop.port, frame);
                }
                match plan(cx, &frame, hop.mtu) {
                    Ok(plan) => Self::fragment(cx, tables, from, frame, hop.port, &plan),
                    Err(_) => cx.drop(from.port, DropReason::TooBig, frame),
                }
            }
            Kind::Glean | Kind::Pending | Kind::Failed => self.wait(cx, tables, from, frame, id, true),
            Kind::Tunnel => {
                let route = OuterRoute::of(tables, hop).filter(|_| len <= hop.mtu);
                match route.as_ref().and_then(|route| route.encap(tables, data, len)) {
                    Some(encap) => self.send_through(cx, tables, from, (frame, len), &encap),
                    None => cx.drop(from.port, DropReason::NoRoute, frame),
                }
            }
            _ => cx.drop(from.port, DropReason::NoRoute, frame),
        }
    }

    fn fragment(cx: &mut Context<'_>, tables: &Tables, from: Ingress, frame: Frame, to: PortId, plan: &Plan) {
        let arena = cx.bufs.arena().clone();
        let data = arena.data(&frame);
        let (header, ip) = data.split_at(HEADER_LEN);
        for i in 0..plan.count() {
            let Some(mut piece) = cx.bufs.alloc_one() else {
                return cx.drop(from.port, DropReason::NoBuffer, frame);
            };
            arena.resize(&mut piece, arena.max_data());
            let out = arena.data_mut(&mut piece);
            out[..HEADER_LEN].copy_from_slice(header);
            let len = plan.write(i, ip, &mut out[HEADER_LEN..]).unwrap_or(0);
            piece.truncate(HEADER_LEN + len);
            cx.event(from.port, Event::FragmentMade, 1);
            vlan::send(cx, tables, from.port, to, piece);
        }
        cx.event(from.port, Event::Fragmented, 1);
        cx.discard(frame);
    }

    /// Hands a packet to the kernel unchanged.
    pub(crate) fn punt(&mut self, cx: &mut Context<'_>, from: Ingress, mut frame: Frame) {
        let id = from.restore(cx.bufs.arena(), &mut frame);
        self.hand_over(cx, from.port, Some(id), frame);
    }

    fn hand_over(&mut self, cx: &mut Context<'_>, from: PortId, id: Option<PortId>, frame: Frame) {
        match self.room_to_punt() {
            Some(room) => {
                room.fill_from_iter(iter::once(Request::Punt { from, id, frame, copy: false }));
                cx.event(from, Event::Punted, 1);
            }
            None => cx.drop(from, DropReason::PuntFailed, frame),
        }
    }

    /// Returns room for the request to punt a packet, if that leaves as many free entries as are reserved.
    fn room_to_punt(&mut self) -> Option<WriteChunkUninit<'_, Request>> {
        self.requests.write_chunk_uninit(self.reserved + 1).ok()
    }
}

/// Decrements the packet's TTL or hop limit.
fn decrement_ttl(data: &mut [u8]) {
    let ip = &mut data[HEADER_LEN..];
    if ip[0] >> 4 == 6 {
        ip.first_chunk_mut().map(ipv6::decrement_hop_limit);
    } else {
        ip.first_chunk_mut().map(ipv4::decrement_ttl);
    }
}

/// Returns whether the DF bit of an IPv4 packet is set.
fn dont_fragment(data: &[u8]) -> bool {
    be16(&data[HEADER_LEN + 6..]) as u16 & ipv4::DF != 0
}

/// Returns the length of the IP packet in bytes, and whether it is IPv6.
pub(crate) fn ip_len(data: &[u8]) -> (u32, bool) {
    let ip = &data[HEADER_LEN..];
    if ip[0] >> 4 == 6 { (40 + be16(&ip[4..]), true) } else { (be16(&ip[2..]), false) }
}

/// Returns the source and destination address; `None` if the frame is too short.
fn addresses(data: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let ip = data.get(HEADER_LEN..)?;
    if ip.first()? >> 4 == 6 {
        let at = |i: usize| Some(Ipv6Addr::from(*ip.get(i..)?.first_chunk::<16>()?).into());
        Some((at(8)?, at(24)?))
    } else {
        let at = |i: usize| Some(Ipv4Addr::from(*ip.get(i..)?.first_chunk::<4>()?).into());
        Some((at(12)?, at(16)?))
    }
}

/// Returns whether the kernel certainly accepts the source of a packet with a valid header: it is not one of the host's
/// own addresses and passes the port's source check. Doubtful cases are left to the kernel.
pub(crate) fn has_accepted_source(tables: &Tables, from: Ingress, data: &[u8]) -> bool {
    let Some((IpAddr::V4(src), IpAddr::V4(dst))) = addresses(data) else { return true };
    let port = tables.port(from.id);
    let check = port.map_or(SourceCheck::Off, |port| port.source_check);
    let own = tables.own4.bit(u32::from_ne_bytes(src.octets())) == 1;
    if check == SourceCheck::Off && !own {
        return true;
    }
    let back = tables.entry(tables.back4(port, src.to_bits(), dst.to_bits()));
    !matches!(back.kind, Kind::Local | Kind::Policy) && takes_source(tables, check, back, from.id)
}

/// Returns how to fragment a packet. Fragments may be smaller than the link's MTU, but not larger than a fresh frame.
fn plan(cx: &Context<'_>, frame: &Frame, mtu: u32) -> Result<Plan, FragError> {
    let arena = cx.bufs.arena();
    frag::plan(&arena.data(frame)[HEADER_LEN..], (mtu as usize).min(arena.max_data() - HEADER_LEN))
}

/// Returns whether a packet with a valid header is addressed to this host.
fn is_local(tables: &Tables, from: Ingress, data: &[u8]) -> bool {
    tables.entry(lookup(tables, from, data)).kind == Kind::Local
}

/// Returns whether a packet with a valid header may be addressed to this host: IPsec policies, and rules before that
/// for table local, hide the host's own addresses.
fn may_be_local(tables: &Tables, from: Ingress, data: &[u8]) -> bool {
    matches!(tables.entry(lookup(tables, from, data)).kind, Kind::Local | Kind::Policy | Kind::Kernel)
}

/// Returns the next hop of a packet received on `from`, with groups resolved.
fn lookup(tables: &Tables, from: Ingress, data: &[u8]) -> u32 {
    tables.resolve(route_of(tables, from, data), data)
}

/// Returns the next hop or group of a packet received on `from`.
fn route_of(tables: &Tables, from: Ingress, data: &[u8]) -> u32 {
    let port = tables.port(from.id);
    match addresses(data) {
        Some((IpAddr::V4(src), IpAddr::V4(dst))) => tables.route4(port, src.to_bits(), dst.to_bits()),
        Some((IpAddr::V6(src), IpAddr::V6(dst))) => tables.route6(port, src.to_bits(), dst.to_bits()),
        _ => 0,
    }
}
