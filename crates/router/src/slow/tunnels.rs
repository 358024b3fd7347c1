//! Packets into and out of tunnels.

use super::check::{Validated, check4, check6};
use super::{SlowPath, decrement_ttl, has_accepted_source, ip_len, is_local, seconds};
use crate::bytes::frame_type;
use crate::gates::is_kept;
use crate::tables::{Entry, Tables};
use crate::tunnel::{self, Decapsulated, Encap, OuterRoute};
use crate::vlan::{self, Ingress, Tag};
use bywash_engine::{Context, DropReason, Event, PortId};
use bywash_frame::{BATCH, Batch, Frame};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::partial;

/// Inner packets of tunnels, at most a burst, each with its origin.
pub(crate) struct Inner {
    pub frames: Batch,
    pub from: [Ingress; BATCH],
}

impl Inner {
    pub fn new() -> Self {
        let nowhere = Ingress { port: PortId(0), id: PortId(0), tag: Tag::None, outer: None };
        Self { frames: Batch::new(), from: [nowhere; BATCH] }
    }

    /// Adds a packet; gives it back if there is no room.
    fn add(&mut self, from: Ingress, frame: Frame) -> Result<(), Frame> {
        let at = self.frames.len();
        self.frames.push(frame)?;
        self.from[at] = from;
        Ok(())
    }
}

impl SlowPath {
    /// Handles an outer packet of a tunnel received on a port whose gate is closed except for flows. The packet is not
    /// looked up: even if its route has changed, it must not be forwarded itself.
    pub(crate) fn receive_outer(&mut self, cx: &mut Context<'_>, tables: &Tables, from: Ingress, frame: Frame) {
        let data = cx.bufs.arena().data(&frame);
        let valid = data.get(HEADER_LEN..).is_some_and(|ip| {
            let checked = if frame_type(data) == Some(ethertype::IPV6) { check6(ip) } else { check4(ip) };
            matches!(checked, Ok(Validated::Forward))
        });
        if valid && has_accepted_source(tables, from, data) && is_local(tables, from, data) {
            self.decapsulate(cx, tables, from, frame);
        } else {
            self.punt(cx, from, frame);
        }
    }

    /// Forwards the inner packet of a valid packet to this host, if that came through a tunnel; punts all others.
    pub(crate) fn decapsulate(&mut self, cx: &mut Context<'_>, tables: &Tables, from: Ingress, mut frame: Frame) {
        let partial = tables.ports.get(usize::from(from.port.0)).is_some_and(|device| device.partial_checksums);
        // The mark of an unfinished checksum does not travel with a punted packet.
        if partial && tunnel::complete_inner(cx.bufs.arena().data_mut(&mut frame)) {
            cx.event(from.port, Event::ChecksumCompleted, 1);
        }
        let tsc = cx.now;
        let Some(Decapsulated { from: inner, to }) =
            tunnel::decapsulate(cx.bufs.arena(), tables, from, &mut frame, || seconds(tsc))
        else {
            return self.punt(cx, from, frame);
        };
        let data = cx.bufs.arena().data(&frame);
        let gate = self.gates.get(inner.id);
        if let Some(to) = to {
            if !gate.closed.is_empty() {
                cx.event(from.port, Event::KeptByPolicy, 1);
                return self.punt(cx, inner, frame);
            }
            cx.event(from.port, Event::Decapsulated, 1);
            return vlan::send(cx, tables, from.port, to, frame);
        }
        if is_kept(gate, data) {
            // Packets that belong to no flow are punted as the burst ends.
            let Some(frame) = (if gate.flows.is_empty() { Some(frame) } else { self.inner.add(inner, frame).err() })
            else {
                return;
            };
            cx.event(from.port, Event::KeptByPolicy, 1);
            return self.punt(cx, inner, frame);
        } else if has_accepted_source(tables, inner, data) {
            cx.event(from.port, Event::Decapsulated, 1);
            return self.route(cx, tables, inner, frame);
        }
        self.punt(cx, inner, frame);
    }

    /// Sends a valid packet through the tunnel of its next hop, by the route of the outer packets. Packets that would
    /// leave by the tunnel that they came by are punted: the kernel may send a redirect.
    pub(crate) fn encapsulate(
        &mut self,
        cx: &mut Context<'_>,
        tables: &Tables,
        from: Ingress,
        mut frame: Frame,
        (hop, route): (&Entry, Option<&OuterRoute<'_>>),
    ) {
        let data = cx.bufs.arena().data_mut(&mut frame);
        let (len, _) = ip_len(data);
        let route = route.filter(|_| len <= hop.mtu && tables.number(hop.port) != from.id);
        let encap =
            route.and_then(|route| route.encap(tables, data, len).filter(|_| !route.claim_refresh(|| seconds(cx.now))));
        let Some(encap) = encap else { return self.punt(cx, from, frame) };
        decrement_ttl(data);
        self.send_through(cx, tables, from, (frame, len), &encap);
    }

    /// Sends a frame to another station, which the port's bridge forwards, through the tunnel that leads there. Leaves
    /// all others to the kernel.
    pub(crate) fn bridge(&mut self, cx: &mut Context<'_>, tables: &Tables, from: Ingress, mut frame: Frame) {
        let data = cx.bufs.arena().data_mut(&mut frame);
        if tables.ports.get(usize::from(from.port.0)).is_some_and(|device| device.partial_checksums)
            && data.get_mut(HEADER_LEN..).is_some_and(partial::complete)
        {
            cx.event(from.port, Event::ChecksumCompleted, 1);
        }
        let data = cx.bufs.arena().data(&frame);
        let route = tables.tunnels.towards(from, data).filter(|(info, _)| self.gates.get(info.id).closed.is_empty());
        let route = route.and_then(|(info, remote)| OuterRoute::to(tables, info, remote, data));
        let len = data.len().saturating_sub(HEADER_LEN) as u32;
        let route = route.as_ref().filter(|route| !route.claim_refresh(|| seconds(cx.now)));
        match route.and_then(|route| route.encap(tables, data, len)) {
            Some(encap) => self.send_through(cx, tables, from, (frame, len), &encap),
            None => {
                if from.tag == Tag::OfBridge {
                    vlan::restore(cx.bufs.arena(), &mut frame);
                }
                self.hand_over(cx, from.port, None, frame);
            }
        }
    }

    /// Sends a packet of this length through a tunnel.
    pub(crate) fn send_through(
        &mut self,
        cx: &mut Context<'_>,
        tables: &Tables,
        from: Ingress,
        (mut frame, len): (Frame, u32),
        encap: &Encap<'_>,
    ) {
        match tunnel::encapsulate(cx.bufs.arena(), encap, &mut frame, len, self.next_id()) {
            Some(port) => {
                cx.event(from.port, Event::Encapsulated, 1);
                vlan::send(cx, tables, from.port, port, frame);
            }
            None => cx.drop(from.port, DropReason::NoBuffer, frame),
        }
    }
}
