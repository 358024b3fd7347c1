//! The upper MAC: from Ethernet frames to flows.

use crate::group::{Group, LEAD, PDU_MIN};
use crate::police::Policer;
use bywash_engine::{App, Context, DropReason, Event, PortId};
use bywash_frame::{Arena, BATCH, Batch};
use bywash_sync::clock;
use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::partial;
use std::sync::Arc;

const CLASSIFY: usize = 0;
const POLICE: usize = 1;

/// The application of an upper MAC's worker: finds the modem and the flow of what one port receives, filters, polices,
/// and sends it to the lower MAC by the other port.
pub struct Upper {
    group: Arc<Group>,
    arena: Arc<Arena>,
    policers: Vec<Policer>,
    /// The port to the lower MAC.
    lower: PortId,
    /// Transport checksums may be unfinished.
    partial: bool,
    /// The flows of a batch.
    flows: [u32; BATCH],
}

impl Upper {
    /// Of `group`, whose frames lie in `arena`; `lower` leads to the lower MAC.
    pub fn new(group: Arc<Group>, arena: Arc<Arena>, lower: PortId) -> Self {
        let hz = clock::tsc_hz();
        let policers = (0..group.flows().len()).map(|flow| Policer::new(&group.kind_of(flow).limits, hz)).collect();
        Self { group, arena, policers, lower, partial: false, flows: [0; BATCH] }
    }

    /// Whether transport checksums that senders left to their hardware are finished: behind veth, say.
    pub fn completing(mut self, partial: bool) -> Self {
        self.partial = partial;
        self
    }
}

impl App for Upper {
    fn stages(&self) -> &'static [&'static str] {
        &["classify", "police"]
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let Self { group, arena, policers, lower, partial, flows } = self;
        let received = batch.len();
        let mut known = Batch::new();
        batch.as_slice().iter().for_each(|frame| arena.prefetch(frame));
        for mut frame in batch.drain() {
            let Some(head) = arena.head::<PDU_MIN>(&frame) else {
                cx.drop(from, DropReason::Runt, frame);
                continue;
            };
            let [a, b, c, d, e, f, ..] = *head;
            let Some(modem) = group.find([a, b, c, d, e, f]) else {
                cx.drop(from, DropReason::UnknownModem, frame);
                continue;
            };
            if *partial
                && let Some(l3) = arena.data_mut(&mut frame).get_mut(HEADER_LEN..)
                && partial::complete(l3)
            {
                cx.event(from, Event::ChecksumCompleted, 1);
            }
            let Some(flow) = group.decide(modem, arena.data(&frame)) else {
                cx.drop(from, DropReason::Filtered, frame);
                continue;
            };
            flows[known.len()] = flow as u32;
            let pushed = known.push(frame);
            debug_assert!(pushed.is_ok());
        }
        cx.stage(CLASSIFY, received);

        let admitted = known.len();
        let mut out = Batch::new();
        for (mut frame, &flow) in known.drain().zip(flows.iter()) {
            let counters = &group.counters(flow as usize).upper;
            if !policers[flow as usize].admit(frame.len() as u32, cx.now) {
                counters.policed.add(1);
                cx.drop(from, DropReason::Policed, frame);
                continue;
            }
            // Without headroom, it came from somewhere that puts frames at the start of cells.
            if !arena.push(&mut frame, LEAD) {
                cx.drop(from, DropReason::Oversize, frame);
                continue;
            }
            if let Some(lead) = arena.head_mut::<4>(&mut frame) {
                *lead = flow.to_ne_bytes();
            }
            counters.packets.add(1);
            let pushed = out.push(frame);
            debug_assert!(pushed.is_ok());
        }
        cx.stage(POLICE, admitted);
        let sent = out.len();
        cx.send_batch(from, *lower, &mut out);
        cx.sent(sent);
    }
}
