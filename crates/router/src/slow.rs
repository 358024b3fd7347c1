//! The slow path: what the fast path could not finish on the spot.
//!
//! Here every odd packet gets its exact reason. Errors quote the packet as it arrived; a packet is charged its hop
//! only when it is certain to leave, or to wait for its neighbour.

use crate::icmp::Limiter;
use crate::sound::martian4;
use crate::stages::{Request, RouterConfig, be16, entry, frame_type, martian6, resolve, rewrite_macs};
use crate::tables::{Kind, Tables};
use crate::waiting::{Wait, Waiting};
use bywash_engine::{Context, DropReason, Event, PortId};
use bywash_frame::Frame;
use bywash_sync::clock;
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::icmp4::Icmp4Error;
use bywash_wire::icmp6::Icmp6Error;
use bywash_wire::{frag, icmp4, icmp6, ipv4, ipv6, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How long a packet waits for its neighbour: the kernel asks three times, a second apart.
const PATIENCE_US: u64 = 3_500_000;
/// How often waiting packets look whether their neighbour has come.
const RECHECK_US: u64 = 500;
/// How often a waiting packet has its neighbour asked for: longer than the kernel side ignores a repeated request.
const ASK_US: u64 = 600_000;

/// An ICMP message about a packet.
#[derive(Clone, Copy)]
enum Answer {
    TtlExceeded,
    NoRoute,
    HostUnreachable,
    Prohibited,
    TooBig { mtu: u32 },
    Redirect { gateway: Ipv4Addr },
}

impl Answer {
    fn v4(self) -> Icmp4Error {
        match self {
            Self::TtlExceeded => Icmp4Error::TimeExceeded,
            Self::NoRoute => Icmp4Error::NetUnreachable,
            Self::HostUnreachable => Icmp4Error::HostUnreachable,
            Self::Prohibited => Icmp4Error::AdminProhibited,
            Self::TooBig { mtu } => Icmp4Error::FragNeeded { mtu: mtu.min(0xffff) as u16 },
            Self::Redirect { gateway } => Icmp4Error::Redirect { gateway },
        }
    }

    /// None: there is no such error in IPv6 (its redirects are neighbour discovery, the kernel's).
    fn v6(self) -> Option<Icmp6Error> {
        Some(match self {
            Self::TtlExceeded => Icmp6Error::HopLimitExceeded,
            Self::NoRoute => Icmp6Error::NoRoute,
            Self::HostUnreachable => Icmp6Error::AddressUnreachable,
            Self::Prohibited => Icmp6Error::AdminProhibited,
            Self::TooBig { mtu } => Icmp6Error::PacketTooBig { mtu },
            Self::Redirect { .. } => return None,
        })
    }
}

/// What the slow path keeps from packet to packet. Apart from the tables, so that these can be borrowed beside it.
pub(crate) struct SlowPath {
    requests: rtrb::Producer<Request>,
    pub config: RouterConfig,
    pub waiting: Waiting,
    pub limiter: Limiter,
    ip_id: u16,
}

impl SlowPath {
    pub fn new(requests: rtrb::Producer<Request>, config: RouterConfig) -> Self {
        let limiter = Limiter::new(config.icmp_rate);
        Self { requests, config, waiting: Waiting::new(), limiter, ip_id: 1 }
    }

    /// Decides what becomes of a packet that is not for the fast path.
    pub(crate) fn slow(&mut self, cx: &mut Context<'_>, tables: &Tables, from: PortId, frame: Frame) {
        let data = cx.bufs.arena().data(&frame);
        let verdict = match (frame_type(data), data.get(HEADER_LEN..)) {
            (Some(ethertype::IPV4), Some(ip)) => check4(ip),
            (Some(ethertype::IPV6), Some(ip)) => check6(ip),
            (Some(_), _) => Err(DropReason::NotIp),
            (None, _) => Err(DropReason::Runt),
        };
        match verdict {
            // What is for this machine is not forwarded: routing protocols send with a TTL of 1.
            Err(DropReason::TtlExceeded) if is_local(tables, cx.bufs.arena().data(&frame)) => {
                self.punt(cx, from, frame);
            }
            Err(DropReason::TtlExceeded) => {
                self.refuse(cx, tables, from, frame, DropReason::TtlExceeded, Answer::TtlExceeded);
            }
            Err(reason) => cx.drop(from, reason, frame),
            Ok(Sound::Forward) => self.route(cx, tables, from, frame),
            Ok(Sound::Kernel) => self.punt(cx, from, frame),
        }
    }

    /// Looks up a sound packet and sends, queues or refuses it.
    fn route(&mut self, cx: &mut Context<'_>, tables: &Tables, from: PortId, mut frame: Frame) {
        let data = cx.bufs.arena().data_mut(&mut frame);
        let id = lookup(tables, data);
        let hop = entry(tables, id);
        let (len, v6) = ip_len(data);
        match hop.kind {
            Kind::Forward if len <= hop.mtu => {
                if self.config.redirects && hop.port == from && !v6 {
                    self.redirect(cx, tables, from, &frame, id);
                }
                let data = cx.bufs.arena().data_mut(&mut frame);
                charge(data);
                rewrite_macs(hop, data);
                cx.send(from, hop.port, frame);
            }
            Kind::Forward if v6 || dont_fragment(data) => {
                self.refuse(cx, tables, from, frame, DropReason::TooBig, Answer::TooBig { mtu: hop.mtu });
            }
            Kind::Forward => {
                charge(data);
                rewrite_macs(hop, data);
                Self::fragment(cx, from, frame, hop.port, hop.mtu);
            }
            Kind::Glean | Kind::Pending | Kind::Failed => {
                charge(data);
                self.wait(cx, tables, from, frame, id);
            }
            Kind::Local | Kind::Kernel | Kind::Policy => self.punt(cx, from, frame),
            Kind::Blackhole => cx.drop(from, DropReason::Blackhole, frame),
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

    /// Sends what has been charged already: an answer of our own, or a packet that has waited.
    fn send_charged(&mut self, cx: &mut Context<'_>, tables: &Tables, from: PortId, mut frame: Frame) {
        let data = cx.bufs.arena().data_mut(&mut frame);
        let id = lookup(tables, data);
        let hop = entry(tables, id);
        let (len, v6) = ip_len(data);
        match hop.kind {
            Kind::Forward if len > hop.mtu && (v6 || dont_fragment(data)) => {
                self.refuse(cx, tables, from, frame, DropReason::TooBig, Answer::TooBig { mtu: hop.mtu });
            }
            Kind::Forward => {
                rewrite_macs(hop, data);
                if len > hop.mtu {
                    Self::fragment(cx, from, frame, hop.port, hop.mtu);
                } else {
                    cx.send(from, hop.port, frame);
                }
            }
            Kind::Glean | Kind::Pending | Kind::Failed => self.wait(cx, tables, from, frame, id),
            _ => cx.drop(from, DropReason::NoRoute, frame),
        }
    }

    fn fragment(cx: &mut Context<'_>, from: PortId, frame: Frame, to: PortId, mtu: u32) {
        let arena = cx.bufs.arena().clone();
        let data = arena.data(&frame);
        let (header, ip) = data.split_at(HEADER_LEN);
        // Pieces may be smaller than the link takes, but not larger than a fresh frame.
        let Ok(plan) = frag::plan(ip, (mtu as usize).min(arena.max_data() - HEADER_LEN)) else {
            return cx.drop(from, DropReason::TooBig, frame);
        };
        for i in 0..plan.count() {
            let Some(mut piece) = cx.bufs.alloc_one() else {
                return cx.drop(from, DropReason::NoBuffer, frame);
            };
            arena.resize(&mut piece, arena.max_data());
            let out = arena.data_mut(&mut piece);
            out[..HEADER_LEN].copy_from_slice(header);
            let len = plan.write(i, ip, &mut out[HEADER_LEN..]).unwrap_or(0);
            piece.truncate(HEADER_LEN + len);
            cx.event(from, Event::FragmentMade, 1);
            cx.send(from, to, piece);
        }
        cx.event(from, Event::Fragmented, 1);
        cx.discard(frame);
    }

    fn wait(&mut self, cx: &mut Context<'_>, tables: &Tables, from: PortId, frame: Frame, id: u32) {
        let cold = tables.cold.get(id as usize).copied().unwrap_or_default();
        let failed = entry(tables, id).kind == Kind::Failed;
        let Some((_, dst)) = addresses(cx.bufs.arena().data(&frame)) else {
            return cx.drop(from, DropReason::Runt, frame);
        };
        let addr = cold.gateway.unwrap_or(dst);
        let until = cx.now + clock::us_to_ticks(PATIENCE_US);
        let ask_at = cx.now + clock::us_to_ticks(ASK_US);
        match self.waiting.add(Wait { frame, from, index: cold.index, addr, until, ask_at, failed }) {
            Ok(first) => {
                cx.event(from, Event::NeighbourWait, 1);
                if first {
                    // A full queue loses nothing: the packet waits on, and asks again.
                    let _ = self.requests.push(Request::Resolve { index: cold.index, addr });
                }
            }
            Err(wait) => cx.drop(from, DropReason::NeighbourQueueFull, wait.frame),
        }
    }

    /// Sends the waiting packets whose neighbour has come, refuses those whose neighbour has not.
    pub(crate) fn release(&mut self, cx: &mut Context<'_>, tables: &Tables) {
        if cx.now < self.waiting.recheck_at {
            return;
        }
        self.waiting.recheck_at = cx.now + clock::us_to_ticks(RECHECK_US);
        let mut i = 0;
        while let Some(w) = self.waiting.get_mut(i) {
            let data = cx.bufs.arena().data(&w.frame);
            let kind = entry(tables, lookup(tables, data)).kind;
            let wait_on = match kind {
                // Failed from the start: asked for once more, wait for the outcome.
                Kind::Failed => w.failed,
                Kind::Glean | Kind::Pending => {
                    w.failed = false;
                    true
                }
                _ => false,
            };
            if wait_on && cx.now < w.until {
                if cx.now >= w.ask_at {
                    w.ask_at = cx.now + clock::us_to_ticks(ASK_US);
                    let _ = self.requests.push(Request::Resolve { index: w.index, addr: w.addr });
                }
                i += 1;
                continue;
            }
            let w = self.waiting.take(i);
            if matches!(kind, Kind::Glean | Kind::Pending | Kind::Failed) {
                self.refuse(cx, tables, w.from, w.frame, DropReason::NeighbourFailed, Answer::HostUnreachable);
            } else {
                cx.event(w.from, Event::NeighbourReleased, 1);
                self.send_charged(cx, tables, w.from, w.frame);
            }
        }
    }

    pub(crate) fn punt(&mut self, cx: &mut Context<'_>, from: PortId, frame: Frame) {
        match self.requests.push(Request::Punt { from, frame }) {
            Ok(()) => cx.event(from, Event::Punted, 1),
            Err(rtrb::PushError::Full(Request::Punt { frame, .. })) => cx.drop(from, DropReason::PuntFailed, frame),
            Err(rtrb::PushError::Full(Request::Resolve { .. })) => {}
        }
    }

    /// Answers a packet with an error where that is allowed, and drops it.
    fn refuse(
        &mut self,
        cx: &mut Context<'_>,
        tables: &Tables,
        from: PortId,
        frame: Frame,
        reason: DropReason,
        answer: Answer,
    ) {
        self.answer(cx, tables, from, &frame, answer);
        cx.drop(from, reason, frame);
    }

    /// Tells the sender of a better first hop, if it is a neighbour itself (RFC 1812 5.2.7.2).
    fn redirect(&mut self, cx: &mut Context<'_>, tables: &Tables, from: PortId, frame: &Frame, id: u32) {
        let data = cx.bufs.arena().data(frame);
        let Some(IpAddr::V4(src)) = addresses(data).map(|(src, _)| src) else { return };
        let back = tables.fib4.lookup(src.to_bits());
        let back_cold = tables.cold.get(back as usize);
        let on_link = entry(tables, back).port == from && back_cold.is_some_and(|c| c.gateway == Some(src.into()));
        let gateway = tables.cold.get(id as usize).and_then(|c| c.gateway);
        if let (true, Some(IpAddr::V4(gateway))) = (on_link, gateway) {
            self.answer(cx, tables, from, frame, Answer::Redirect { gateway });
        }
    }

    /// Sends an ICMP message about `frame` to the packet's source, where that is allowed and within the rate limit.
    fn answer(&mut self, cx: &mut Context<'_>, tables: &Tables, from: PortId, frame: &Frame, answer: Answer) {
        let arena = cx.bufs.arena().clone();
        let data = arena.data(frame);
        let original = &data[HEADER_LEN..];
        let broadcast = data[0] & 1 == 1;
        let message = match source(tables, from, data) {
            Some(IpAddr::V4(source)) if icmp4::may_answer4(original, broadcast) => Message::V4(answer.v4(), source),
            Some(IpAddr::V6(source)) => match answer.v6() {
                Some(kind) if icmp6::may_answer6(original, broadcast, kind) => Message::V6(kind, source),
                _ => return cx.event(from, Event::IcmpWithheld, 1),
            },
            _ => return cx.event(from, Event::IcmpWithheld, 1),
        };
        if !self.limiter.take() {
            return cx.event(from, Event::IcmpLimited, 1);
        }
        let Some(mut reply) = cx.bufs.alloc_one() else { return cx.event(from, Event::IcmpWithheld, 1) };
        arena.resize(&mut reply, HEADER_LEN + icmp6::MAX_LEN);
        let out = arena.data_mut(&mut reply);
        let (header, out) = out.split_at_mut(HEADER_LEN);
        header.copy_from_slice(&data[..HEADER_LEN]);
        self.ip_id = self.ip_id.wrapping_add(1);
        let len = match message {
            Message::V4(kind, source) => icmp4::build_icmp4_error(out, kind, original, source, self.ip_id),
            Message::V6(kind, source) => icmp6::build_icmp6_error(out, kind, original, source),
        };
        let Some(len) = len else {
            cx.discard(reply);
            return cx.event(from, Event::IcmpWithheld, 1);
        };
        reply.truncate(HEADER_LEN + len);
        cx.event(from, Event::IcmpSent, 1);
        self.send_charged(cx, tables, from, reply);
    }
}

enum Message {
    V4(Icmp4Error, Ipv4Addr),
    V6(Icmp6Error, Ipv6Addr),
}

enum Sound {
    Forward,
    Kernel,
}

/// RFC 1812 5.2.2 and 5.3.7, in that order, then the TTL.
fn check4(ip: &[u8]) -> Result<Sound, DropReason> {
    use ipv4::Ipv4Error as E;
    let info = ipv4::check(ip).map_err(|e| match e {
        E::Runt => DropReason::Runt,
        E::Version => DropReason::BadVersion,
        E::HeaderLength => DropReason::BadHeaderLength,
        E::Length => DropReason::BadLength,
        E::Checksum => DropReason::BadChecksum,
    })?;
    if martian4(info.src) {
        return Err(DropReason::MartianSource);
    }
    if martian4(info.dst) {
        return Err(DropReason::MartianDestination);
    }
    if info.has_options() {
        return Ok(Sound::Kernel);
    }
    if info.ttl <= 1 { Err(DropReason::TtlExceeded) } else { Ok(Sound::Forward) }
}

/// RFC 8200 3, and the addresses that no router forwards.
fn check6(ip: &[u8]) -> Result<Sound, DropReason> {
    use ipv6::Ipv6Error as E;
    let info = ipv6::check(ip).map_err(|e| match e {
        E::Runt => DropReason::Runt,
        E::Version => DropReason::BadVersion,
        E::Length => DropReason::BadLength,
    })?;
    if martian6(info.src) {
        return Err(DropReason::MartianSource);
    }
    if martian6(info.dst) {
        return Err(DropReason::MartianDestination);
    }
    // Hop-by-hop options are for every router to look at, and the kernel is the one that knows them.
    if info.next_header == proto::HOP_BY_HOP {
        return ipv6::walk(ip, &info).map(|_| Sound::Kernel).map_err(|_| DropReason::BadExtension);
    }
    if info.hop_limit <= 1 { Err(DropReason::TtlExceeded) } else { Ok(Sound::Forward) }
}

/// Takes one hop off the packet.
fn charge(data: &mut [u8]) {
    let ip = &mut data[HEADER_LEN..];
    if ip[0] >> 4 == 6 {
        ip.first_chunk_mut().map(ipv6::decrement_hop_limit);
    } else {
        ip.first_chunk_mut().map(ipv4::decrement_ttl);
    }
}

/// Whether an IPv4 packet says not to fragment it.
fn dont_fragment(data: &[u8]) -> bool {
    be16(&data[HEADER_LEN + 6..]) as u16 & ipv4::DF != 0
}

/// Length of the IP packet in bytes, and whether it is IPv6.
fn ip_len(data: &[u8]) -> (u32, bool) {
    let ip = &data[HEADER_LEN..];
    if ip[0] >> 4 == 6 { (40 + be16(&ip[4..]), true) } else { (be16(&ip[2..]), false) }
}

/// Source and destination; none when the frame is too short to have them.
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

fn id_of(tables: &Tables, addr: IpAddr) -> u32 {
    match addr {
        IpAddr::V4(a) => tables.fib4.lookup(a.to_bits()),
        IpAddr::V6(a) => tables.fib6.lookup(a.to_bits()),
    }
}

/// Whether a packet with a sound header is for this machine.
fn is_local(tables: &Tables, data: &[u8]) -> bool {
    entry(tables, lookup(tables, data)).kind == Kind::Local
}

/// The plain next hop of a packet.
fn lookup(tables: &Tables, data: &[u8]) -> u32 {
    addresses(data).map_or(0, |(_, dst)| resolve(tables, id_of(tables, dst), data))
}

/// Where a message about a packet comes from: the address of the way back to its sender (as Linux has it), or of the
/// port it came in by.
fn source(tables: &Tables, from: PortId, data: &[u8]) -> Option<IpAddr> {
    let (src, _) = addresses(data)?;
    let port = tables.ports.get(usize::from(from.0));
    let id = id_of(tables, src);
    let way = match entry(tables, id) {
        group if group.kind == Kind::Group => tables.buckets.get(group.first as usize).copied().unwrap_or(0),
        _ => id,
    };
    let way = tables.cold.get(way as usize);
    if src.is_ipv6() {
        way.and_then(|c| c.source6).or_else(|| port.and_then(|p| p.source6)).map(IpAddr::V6)
    } else {
        way.and_then(|c| c.source4).or_else(|| port.and_then(|p| p.source4)).map(IpAddr::V4)
    }
}
