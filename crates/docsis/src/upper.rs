//! Upper MAC: classifies and polices Ethernet frames.

use crate::assist::Assist;
use crate::cpe::Cpes;
use crate::crc::CRC_LEN;
use crate::group::{Flow, Group, LEAD, Lead, PDU_MAX, PDU_MIN};
use crate::keys::{self, Rollover};
use crate::lower::{LowerConfig, LowerStats, in_batches};
use crate::police::Policer;
use crate::seal::SealError;
use bywash_engine::{App, Context, DropReason, Event, PortId};
use bywash_frame::{Arena, BATCH, Batch, Frame};
use bywash_sync::{Published, clock};
use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::partial;
use std::sync::Arc;

const CLASSIFY: usize = 0;
const POLICE: usize = 1;
const SEAL: usize = 2;

/// Application of an upper MAC's worker: finds the modem and flow of received frames, filters and polices them, and
/// sends them to the lower MAC by another port.
pub struct Upper {
    group: Arc<Group>,
    arena: Arc<Arena>,
    policers: Vec<Policer>,
    /// Port to the lower MAC.
    lower: PortId,
    /// Addresses behind the modems; `None` if only PDUs to modems themselves are accepted.
    cpes: Option<Arc<Published<Cpes>>>,
    /// Set if received transport checksums may be incomplete.
    partial: bool,
    /// Flows of the frames in a batch.
    flows: [u32; BATCH],
    /// Sealer for frames that the lower MAC has no time to seal.
    assist: Option<Assist>,
    /// Frames sealed here that are to be sent; empty between turns.
    done: Vec<Frame>,
    /// Ingress port of the frames held, on which drops are counted.
    account: PortId,
}

impl Upper {
    /// Creates the upper MAC of `group`, with frames in `arena`; `lower` is the port to the lower MAC.
    pub fn new(group: Arc<Group>, arena: Arc<Arena>, lower: PortId) -> Self {
        let hz = clock::tsc_hz();
        let policers = (0..group.flows().len()).map(|flow| Policer::new(&group.kind_of(flow).policed(), hz)).collect();
        Self {
            group,
            arena,
            policers,
            lower,
            cpes: None,
            partial: false,
            flows: [0; BATCH],
            assist: None,
            done: Vec::with_capacity(4 * BATCH),
            account: lower,
        }
    }

    /// Sets whether to complete transport checksums that senders left to checksum offload, as with veth.
    pub fn completing(mut self, partial: bool) -> Self {
        self.partial = partial;
        self
    }

    /// Also accepts PDUs to addresses behind modems, by this table.
    pub fn with_cpes(mut self, cpes: Arc<Published<Cpes>>) -> Self {
        self.cpes = Some(cpes);
        self
    }

    /// Makes the upper MAC also seal while the lower MAC with this configuration and these statistics is behind. Does
    /// nothing if `config` disables it or there is nothing to seal. Errors if sealing is not possible as configured.
    pub fn assisting(mut self, config: &LowerConfig, stats: Arc<LowerStats>) -> Result<Self, SealError> {
        if config.assist && (config.protection.crc || config.protection.cipher) {
            self.assist = Some(Assist::new(&self.group, &self.arena, config, stats)?);
        }
        Ok(self)
    }

    /// Takes new keys from the control half of the group's keys.
    pub fn keyed_by(mut self, rollover: &mut Rollover) -> Self {
        if let Some(assist) = &mut self.assist {
            assist.keyed_by(rollover.add_worker());
        }
        self
    }

    /// Sends the frames sealed here.
    fn send_done(&mut self, cx: &mut Context<'_>) {
        let Self { group, arena, lower, account, done, .. } = self;
        in_batches(done, |batch| send(cx, (group, arena), *account, *lower, batch));
    }

    /// Seals part of the batch of `flows` if the lower MAC is behind, and sends the batch.
    #[inline]
    fn hand_over(&mut self, cx: &mut Context<'_>, from: PortId, out: &mut Batch) {
        let Self { group, arena, lower, flows, assist, done, .. } = self;
        if let Some(assist) = assist {
            self.account = from;
            let share = assist.share(cx.now, done);
            if share > 0 {
                let n = out.len().min(share);
                for (i, (mut frame, &flow)) in out.drain().zip(flows.iter()).enumerate() {
                    // Frames of a shaped flow may wait so long that the modem no longer has the key that is in use now.
                    let Flow { modem, shaped, .. } = group.flows()[flow as usize];
                    if i >= share || shaped {
                        assist.pass(frame, done);
                        continue;
                    }
                    let modem = modem as usize;
                    let sequence = group.key_state().in_use(modem);
                    Lead { flow, sealed: Some(sequence) }.write(arena, &mut frame);
                    match assist.seal(frame, keys::slot(modem, sequence), done) {
                        Ok(()) => group.key_state().sealed_early(modem, sequence),
                        Err(frame) => cx.drop(from, DropReason::Oversize, frame),
                    }
                }
                cx.stage(SEAL, n);
            }
        }
        let sent = done.len() + out.len();
        in_batches(done, |batch| send(cx, (group, arena), from, *lower, batch));
        send(cx, (group, arena), from, *lower, out);
        cx.sent(sent);
    }
}

/// Sends a batch to the lower MAC, and drops the frames that do not fit.
#[inline]
fn send(cx: &mut Context<'_>, (group, arena): (&Group, &Arena), from: PortId, to: PortId, batch: &mut Batch) {
    let reason = cx.offer_batch(to, batch);
    for frame in batch.drain() {
        if let Some(Lead { flow, sealed: Some(sequence) }) = Lead::read(arena, &frame) {
            group.key_state().not_handed_over(group.flows()[flow as usize].modem as usize, sequence);
        }
        cx.drop(from, reason, frame);
    }
}

impl App for Upper {
    fn stages(&self) -> &'static [&'static str] {
        &["classify", "police", "seal"]
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let Self { group, arena, policers, cpes, partial, flows, .. } = self;
        let received = batch.len();
        let reader = cx.reader;
        let cpes = cpes.as_ref().map(|cpes| cpes.load(reader));
        let mut known = Batch::new();
        batch.as_slice().iter().for_each(|frame| arena.prefetch(frame));
        for mut frame in batch.drain() {
            let Some(head) = arena.head::<PDU_MIN>(&frame) else {
                cx.drop(from, DropReason::Runt, frame);
                continue;
            };
            let [a, b, c, d, e, f, ..] = *head;
            if frame.len() > PDU_MAX {
                cx.drop(from, DropReason::Oversize, frame);
                continue;
            }
            let mac = [a, b, c, d, e, f];
            let Some(modem) = group.find(mac).or_else(|| cpes.and_then(|cpes| cpes.find(mac))) else {
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
            // MULPI counts to the end of the CRC, also of a PDU that is sent without one.
            if !policers[flow as usize].admit((frame.len() + CRC_LEN) as u32, cx.now) {
                counters.policed.add(1);
                cx.drop(from, DropReason::Policed, frame);
                continue;
            }
            // No headroom: the port put the frame at the start of its cell.
            if !arena.push(&mut frame, LEAD) {
                cx.drop(from, DropReason::Oversize, frame);
                continue;
            }
            Lead { flow, sealed: None }.write(arena, &mut frame);
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
        let waiting = assist.waiting() > 0;
        if !self.done.is_empty() {
            let sent = self.done.len();
            cx.stage(SEAL, 0);
            self.send_done(cx);
            cx.sent(sent);
        }
        waiting
    }

    fn held(&self) -> usize {
        self.assist.as_ref().map_or(0, Assist::waiting)
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        if let Some(assist) = &mut self.assist {
            assist.flush(&mut self.done);
            self.send_done(cx);
        }
    }
}
