//! ICMP errors about packets that are not forwarded, and redirects about those for which there is a better next hop.

use super::{SlowPath, addresses};
use crate::icmp::About;
use crate::request::Request;
use crate::tables::{Entry, Kind, Tables};
use crate::vlan::Ingress;
use bywash_engine::{Context, DropReason, Event, PortId};
use bywash_frame::Frame;
use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::icmp4::Icmp4Error;
use bywash_wire::icmp6::Icmp6Error;
use bywash_wire::{icmp4, icmp6};
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An ICMP message about a packet.
#[derive(Clone, Copy)]
pub(super) enum Answer {
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

    fn about(self) -> About {
        if matches!(self, Self::TooBig { .. }) { About::Size } else { About::Other }
    }

    /// Returns the ICMPv6 error; `None` if IPv6 has none (its redirects are neighbour discovery, which is the
    /// kernel's).
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

impl SlowPath {
    /// Drops a packet that causes an ICMP error. The kernel sends the error: it gets a copy, as if the port's interface
    /// had received it, and finds the same fault. The router itself sends errors about a neighbour that does not
    /// answer, because the kernel would solicit it again, and errors for ports without an interface. Where the router
    /// would send the error but the route back to the sender is not on ports, or a policy concerns such errors, the
    /// packet itself is punted instead.
    pub(super) fn refuse(
        &mut self,
        cx: &mut Context<'_>,
        tables: &Tables,
        from: Ingress,
        mut frame: Frame,
        reason: DropReason,
        answer: Answer,
    ) {
        let data = cx.bufs.arena().data(&frame);
        let interface = tables.port(from.id).is_some_and(|port| port.index != 0);
        let by_kernel = interface && reason != DropReason::NeighbourFailed;
        let Some((src, _)) = addresses(data).filter(|_| by_kernel || self.answerable(from, data, answer)) else {
            cx.event(from.port, Event::IcmpWithheld, 1);
            return cx.drop(from.port, reason, frame);
        };
        let allowed = match by_kernel {
            true => self.limits.allow_kernel(src, answer.about(), cx.now),
            false => self.limits.allow(src, answer.about(), cx.now),
        };
        if !allowed {
            cx.event(from.port, Event::IcmpLimited, 1);
            return cx.drop(from.port, reason, frame);
        }
        let errors = self.gates.get(from.id).errors;
        if by_kernel {
            let id = from.restore(cx.bufs.arena(), &mut frame);
            self.have_answered(cx, from.port, id, &frame);
        } else if if src.is_ipv6() { errors.v6 } else { errors.v4 } || !by_ports(tables, id_of(tables, src)) {
            return self.punt(cx, from, frame);
        } else {
            self.answer(cx, tables, from, &frame, answer);
        }
        cx.drop(from.port, reason, frame);
    }

    /// Punts a copy of a packet to the kernel, which answers it.
    fn have_answered(&mut self, cx: &mut Context<'_>, from: PortId, id: PortId, frame: &Frame) {
        let Some(mut copy) = cx.bufs.alloc_one() else { return cx.event(from, Event::IcmpWithheld, 1) };
        let arena = cx.bufs.arena().clone();
        let written = arena.write(&mut copy, arena.data(frame));
        match self.room_to_punt().filter(|_| written) {
            Some(room) => {
                room.fill_from_iter(iter::once(Request::Punt { from, id: Some(id), frame: copy, copy: true }));
                cx.event(from, Event::IcmpByKernel, 1);
            }
            None => {
                cx.discard(copy);
                cx.event(from, Event::IcmpWithheld, 1);
            }
        }
    }

    /// Returns whether an error may be sent about a packet (RFC 1812 4.3.2.7, RFC 4443 2.4 e).
    fn answerable(&self, from: Ingress, data: &[u8], answer: Answer) -> bool {
        let broadcast = from.outer.is_none() && data[0] & 1 == 1;
        let original = &data[HEADER_LEN..];
        match original.first().map(|first| first >> 4) {
            Some(4) => icmp4::may_answer4(original, broadcast),
            _ => answer.v6().is_some_and(|kind| icmp6::may_answer6(original, broadcast, kind)),
        }
    }

    /// Sends the packet's sender a redirect to a better first hop, if the sender is a neighbour itself (RFC 1812
    /// 5.2.7.2).
    pub(super) fn redirect(&mut self, cx: &mut Context<'_>, tables: &Tables, from: Ingress, frame: &Frame, id: u32) {
        let data = cx.bufs.arena().data(frame);
        let Some(IpAddr::V4(src)) = addresses(data).map(|(src, _)| src) else { return };
        let back = tables.fib4.lookup(src.to_bits());
        let back_cold = tables.cold.get(back as usize);
        let leads_back = tables.number(tables.entry(back).port) == from.id;
        let on_link = leads_back && back_cold.is_some_and(|c| c.gateway == Some(src.into()));
        let gateway = tables.cold.get(id as usize).and_then(|c| c.gateway);
        if let (true, Some(IpAddr::V4(gateway))) = (on_link, gateway) {
            let answer = Answer::Redirect { gateway };
            if !self.answerable(from, data, answer) {
                return cx.event(from.port, Event::IcmpWithheld, 1);
            }
            if !self.limits.allow(src.into(), answer.about(), cx.now) {
                return cx.event(from.port, Event::IcmpLimited, 1);
            }
            self.answer(cx, tables, from, frame, answer);
        }
    }

    /// Sends an ICMP message about `frame` to the packet's source.
    fn answer(&mut self, cx: &mut Context<'_>, tables: &Tables, from: Ingress, frame: &Frame, answer: Answer) {
        let arena = cx.bufs.arena().clone();
        let data = arena.data(frame);
        let original = &data[HEADER_LEN..];
        let message = match (source(tables, from, data), answer.v6()) {
            (Some(IpAddr::V4(source)), _) => Message::V4(answer.v4(), source),
            (Some(IpAddr::V6(source)), Some(kind)) => Message::V6(kind, source),
            _ => return cx.event(from.port, Event::IcmpWithheld, 1),
        };
        let Some(mut reply) = cx.bufs.alloc_one() else { return cx.event(from.port, Event::IcmpWithheld, 1) };
        arena.resize(&mut reply, HEADER_LEN + icmp6::MAX_LEN);
        let out = arena.data_mut(&mut reply);
        let (header, out) = out.split_at_mut(HEADER_LEN);
        header.copy_from_slice(&data[..HEADER_LEN]);
        let id = self.next_id();
        let len = match message {
            Message::V4(kind, source) => icmp4::build_icmp4_error(out, kind, original, source, id),
            Message::V6(kind, source) => icmp6::build_icmp6_error(out, kind, original, source),
        };
        let Some(len) = len else {
            cx.discard(reply);
            return cx.event(from.port, Event::IcmpWithheld, 1);
        };
        reply.truncate(HEADER_LEN + len);
        cx.event(from.port, Event::IcmpSent, 1);
        self.send_own(cx, tables, from, reply);
    }
}

enum Message {
    V4(Icmp4Error, Ipv4Addr),
    V6(Icmp6Error, Ipv6Addr),
}

/// Returns the next hop of an address in tables local and main. Used only for errors, which are left to the kernel
/// where rules apply.
fn id_of(tables: &Tables, addr: IpAddr) -> u32 {
    match addr {
        IpAddr::V4(a) => tables.fib4.lookup(a.to_bits()),
        IpAddr::V6(a) => tables.fib6.lookup(a.to_bits()),
    }
}

/// Returns whether all next hops of a route are on ports.
fn by_ports(tables: &Tables, id: u32) -> bool {
    let port = |hop: &Entry| hop.kind.is_unicast();
    let hop = tables.entry(id);
    port(hop) || (hop.kind == Kind::Group && tables.members(hop).iter().all(|id| port(tables.entry(*id))))
}

/// Returns the source address of an ICMP message about a packet: that of the route back to its sender (as in Linux), or
/// of the port that received it.
fn source(tables: &Tables, from: Ingress, data: &[u8]) -> Option<IpAddr> {
    let (src, _) = addresses(data)?;
    let port = tables.port(from.id);
    let id = id_of(tables, src);
    let hop = match tables.entry(id) {
        group if group.kind == Kind::Group => tables.members(group).first().copied().unwrap_or(0),
        _ => id,
    };
    let cold = tables.cold.get(hop as usize);
    if src.is_ipv6() {
        cold.and_then(|c| c.source6).or_else(|| port.and_then(|p| p.source6)).map(IpAddr::V6)
    } else {
        cold.and_then(|c| c.source4).or_else(|| port.and_then(|p| p.source4)).map(IpAddr::V4)
    }
}
