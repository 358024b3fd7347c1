//! Runs lists of ops on groups of packets.

use crate::extract::{Layout, MAC_MASK};
use crate::ops::Op;
use crate::pipeline::Pipeline;
use crate::rewrite::{put_macs, rewrite};
use bywash_engine::{Context, DROP_REASONS, DropReason, PortId};
use bywash_frame::{Arena, BATCH, Frame};
use bywash_wire::checksum::update_u16;

/// From here on a port's number is a reason to drop.
const REASONS: u16 = 0xff00;
/// Nowhere.
pub(crate) const DROP: PortId = PortId(REASONS + DropReason::FlowDrop as u16);

/// In place of a port: the packet is dropped.
pub(crate) fn drop_as(reason: DropReason) -> PortId {
    PortId(REASONS + reason as u16)
}

/// The reason, where there is no port.
#[inline(always)]
pub(crate) fn reason(to: PortId) -> Option<DropReason> {
    let at = to.0.checked_sub(REASONS)?;
    Some(DROP_REASONS.get(usize::from(at)).copied().unwrap_or(DropReason::FlowDrop))
}

/// What most flows do to a packet: whole Ethernet addresses, and the TTL.
#[inline(always)]
pub(crate) fn quick(arena: &Arena, frame: &mut Frame, layout: Layout, value: [u64; 2], set: [bool; 2], dec: u8) {
    let mask = set.map(|set| if set { MAC_MASK } else { 0 });
    if dec != 0
        && layout.l3 == 14
        && let Some(head) = arena.head_mut::<34>(frame)
        && head[14] >> 4 == 4
    {
        put_macs(head.first_chunk_mut().expect("14 of 34"), value, mask);
        let old = u16::from_be_bytes([head[22], head[23]]);
        head[22] = head[22].wrapping_sub(dec);
        let new = u16::from_be_bytes([head[22], head[23]]);
        let sum = update_u16(u16::from_be_bytes([head[24], head[25]]), old, new);
        [head[24], head[25]] = sum.to_be_bytes();
        return;
    }
    let mut layout = layout;
    if mask != [0; 2] {
        rewrite(&Op::Eth { value, mask }, arena, frame, &mut layout);
    }
    if dec != 0 {
        rewrite(&Op::DecTtl(dec), arena, frame, &mut layout);
    }
}

/// Runs `ops` on the packets of `frames` that `members` names, in their order; notes in `to` where each leaves, or why it
/// does not. Copies are sent at once.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub(crate) fn execute(
    cx: &mut Context<'_>,
    pipeline: &Pipeline,
    from: PortId,
    ops: &[Op],
    reason: Option<DropReason>,
    frames: &mut [Frame],
    layouts: &mut [Layout; BATCH],
    members: &mut [u8],
    to: &mut [PortId; BATCH],
) {
    let mut live = members;
    for m in live.iter() {
        to[usize::from(*m)] = drop_as(reason.unwrap_or(DropReason::FlowDrop));
    }
    for (i, op) in ops.iter().enumerate() {
        let last = i + 1 == ops.len();
        match *op {
            Op::Output(port) if last => live.iter().for_each(|m| to[usize::from(*m)] = port),
            Op::Output(port) => {
                for m in live.iter() {
                    copy(cx, from, port, &frames[usize::from(*m)]);
                }
            }
            Op::Meter(slot) => {
                let meter = pipeline.meters.get(slot as usize).and_then(Option::as_deref);
                live = limit(cx.now, meter, live, frames, to, DropReason::Metered);
            }
            Op::Storm => {
                let meter = pipeline.storm.get(usize::from(from.0)).and_then(Option::as_deref);
                live = limit(cx.now, meter, live, frames, to, DropReason::Storm);
            }
            _ => {
                let arena = cx.bufs.arena();
                for m in live.iter() {
                    let m = usize::from(*m);
                    rewrite(op, arena, &mut frames[m], &mut layouts[m]);
                }
            }
        }
    }
}

/// The packets a meter lets pass; the others are dropped.
fn limit<'m>(
    now: u64,
    meter: Option<&crate::meter::Meter>,
    live: &'m mut [u8],
    frames: &[Frame],
    to: &mut [PortId; BATCH],
    reason: DropReason,
) -> &'m mut [u8] {
    let Some(meter) = meter else { return live };
    let passed = meter.admit(now, live.iter().map(|m| frames[usize::from(*m)].len()));
    let (live, refused) = live.split_at_mut(passed);
    refused.iter().for_each(|m| to[usize::from(*m)] = drop_as(reason));
    live
}

/// Sends a copy of a packet.
fn copy(cx: &mut Context<'_>, from: PortId, to: PortId, frame: &Frame) {
    let mut fresh = bywash_frame::Batch::new();
    cx.bufs.alloc(&mut fresh, 1);
    let Some(mut copy) = fresh.pop() else { return cx.lost(from, DropReason::NoBuffer) };
    let arena = cx.bufs.arena();
    if arena.write(&mut copy, arena.data(frame)) {
        cx.send(from, to, copy);
    } else {
        cx.drop(from, DropReason::Oversize, copy);
    }
}
