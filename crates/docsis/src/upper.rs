//! The upper MAC: from Ethernet frames to flows.

use crate::assist::Assist;
use crate::group::{Group, LEAD, Lead, PDU_MIN};
use crate::lower::{LowerConfig, LowerStats, send_all};
use crate::police::Policer;
use crate::seal::SealError;
use bywash_engine::{App, Context, DropReason, Event, PortId};
use bywash_frame::{Arena, BATCH, Batch, Frame};
use bywash_sync::clock;
use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::partial;
use std::sync::Arc;

const CLASSIFY: usize = 0;
const POLICE: usize = 1;
const SEAL: usize = 2;

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
    /// Seals what the lower MAC has no time for.
    assist: Option<Assist>,
    /// Sealed here, to be sent: empty between turns.
    done: Vec<Frame>,
    /// The port that what it holds came in by: whose drops it is.
    account: PortId,
}

impl Upper {
    /// Of `group`, whose frames lie in `arena`; `lower` leads to the lower MAC.
    pub fn new(group: Arc<Group>, arena: Arc<Arena>, lower: PortId) -> Self {
        let hz = clock::tsc_hz();
        let policers = (0..group.flows().len()).map(|flow| Policer::new(&group.kind_of(flow).limits, hz)).collect();
        Self {
            group,
            arena,
            policers,
            lower,
            partial: false,
            flows: [0; BATCH],
            assist: None,
            done: Vec::with_capacity(4 * BATCH),
            account: lower,
        }
    }

    /// Whether transport checksums that senders left to their hardware are finished: behind veth, say.
    pub fn completing(mut self, partial: bool) -> Self {
        self.partial = partial;
        self
    }

    /// Has it seal as well while the lower MAC of these settings, which says of itself `stats`, is behind.
    pub fn assisting(mut self, config: &LowerConfig, stats: Arc<LowerStats>) -> Result<Self, SealError> {
        if config.assist && (config.protection.crc || config.protection.cipher) {
            self.assist = Some(Assist::new(&self.group, &self.arena, config, stats)?);
        }
        Ok(self)
    }

    /// Seals a batch of `flows`, or sends it as it is.
    #[inline]
    fn hand_over(&mut self, cx: &mut Context<'_>, from: PortId, out: &mut Batch) {
        let Self { group, arena, lower, flows, assist, done, .. } = self;
        if let Some(assist) = assist {
            self.account = from;
            let share = assist.share(cx.now, done);
            if share > 0 {
                let n = out.len().min(share);
                for (i, (mut frame, &flow)) in out.drain().zip(flows.iter()).enumerate() {
                    if i >= share {
                        assist.pass(frame, done);
                        continue;
                    }
                    Lead { flow, sealed: true }.write(arena, &mut frame);
                    let key = group.flows()[flow as usize].modem as usize;
                    if let Err(frame) = assist.seal(frame, key, done) {
                        cx.drop(from, DropReason::Oversize, frame);
                    }
                }
                cx.stage(SEAL, n);
            }
        }
        let sent = done.len() + out.len();
        send_all(cx, from, *lower, done);
        cx.send_batch(from, *lower, out);
        cx.sent(sent);
    }
}

impl App for Upper {
    fn stages(&self) -> &'static [&'static str] {
        &["classify", "police", "seal"]
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let Self { group, arena, policers, partial, flows, .. } = self;
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
        for (i, mut frame) in known.drain().enumerate() {
            let flow = flows[i];
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
            Lead { flow, sealed: false }.write(arena, &mut frame);
            flows[out.len()] = flow;
            counters.packets.add(1);
            let pushed = out.push(frame);
            debug_assert!(pushed.is_ok());
        }
        cx.stage(POLICE, admitted);
        self.hand_over(cx, from, &mut out);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(assist) = &mut self.assist else { return false };
        assist.turn(cx.now, &mut self.done);
        if !self.done.is_empty() {
            let sent = self.done.len();
            cx.stage(SEAL, 0);
            send_all(cx, self.account, self.lower, &mut self.done);
            cx.sent(sent);
        }
        assist.waiting() > 0
    }

    fn held(&self) -> usize {
        self.assist.as_ref().map_or(0, Assist::waiting)
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        if let Some(assist) = &mut self.assist {
            assist.flush(&mut self.done);
            send_all(cx, self.account, self.lower, &mut self.done);
        }
    }
}
