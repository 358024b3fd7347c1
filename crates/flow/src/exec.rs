//! Execution of op lists on groups of packets.

use crate::extract::Layout;
use crate::key::hash_words;
use crate::ops::Op;
use crate::pipeline::Pipeline;
use crate::rewrite::{put_macs, rewrite};
use bywash_engine::{Context, DROP_REASONS, DropReason, Event, PortId};
use bywash_frame::{Arena, BATCH, Frame};
use bywash_sync::clock;

/// First of the port numbers that encode a drop reason.
const REASONS: u16 = 0xff00;
/// Drop by the flow's own actions.
pub(crate) const DROP: PortId = PortId(REASONS + DropReason::FlowDrop as u16);

/// Encodes a drop reason in place of an egress port.
pub(crate) fn drop_as(reason: DropReason) -> PortId {
    PortId(REASONS + reason as u16)
}

/// Returns the drop reason that `to` encodes, or `None` if it is a port.
#[inline(always)]
pub(crate) fn reason(to: PortId) -> Option<DropReason> {
    let at = to.0.checked_sub(REASONS)?;
    Some(DROP_REASONS.get(usize::from(at)).copied().unwrap_or(DropReason::FlowDrop))
}

/// Applies the actions of most flows to a plain packet: rewrites the Ethernet addresses and decrements the TTL, which
/// is known to be large enough.
#[inline(always)]
pub(crate) fn quick_plain(arena: &Arena, frame: &mut Frame, value: [u64; 2], keep: [u64; 2], dec: u8) {
    let Some(head) = arena.head_mut::<34>(frame) else { return };
    put_macs(head.first_chunk_mut().expect("14 of 34"), value, keep);
    if dec != 0 {
        let field: &mut [u8; 4] = head[22..].first_chunk_mut().expect("TTL, protocol and checksum");
        // The sum is computed on little-endian words: end-around carry does not depend on the byte order (RFC 1071
        // 1.B). Decrementing the TTL increments the checksum (RFC 1624); all ones become zero, as by its formula.
        let word = u32::from_le_bytes(*field);
        let sum = (word >> 16) + u32::from(dec);
        let sum = sum + u32::from(sum >= 0xffff);
        *field = (word.wrapping_sub(u32::from(dec)) & 0xffff | sum << 16).to_le_bytes();
    }
}

/// Does the same as [`quick_plain`] for any packet.
#[inline(never)]
pub(crate) fn quick(arena: &Arena, frame: &mut Frame, mut layout: Layout, value: [u64; 2], keep: [u64; 2], dec: u8) {
    if let Some(head) = arena.head_mut(frame) {
        put_macs(head, value, keep);
    }
    if dec != 0 {
        rewrite(&Op::DecTtl(dec), arena, frame, &mut layout);
    }
}

/// Runs `ops` on the packets of `frames` that `members` lists, in that order, and writes each packet's egress port or
/// drop reason to `to`. Copies are sent at once.
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
    for m in members.iter() {
        to[usize::from(*m)] = drop_as(reason.unwrap_or(DropReason::FlowDrop));
    }
    if !matches!(ops.first(), Some(Op::Longer { .. })) {
        return run(cx, pipeline, from, ops, frames, layouts, members, to);
    }
    // Neighbours with the same ops together, so that all leave in the order they came.
    let mut rest = members;
    while let Some(first) = rest.first() {
        let range = of_length(ops, frames[usize::from(*first)].len());
        let n = rest.iter().take_while(|m| std::ptr::eq(of_length(ops, frames[usize::from(**m)].len()), range)).count();
        let (these, others) = rest.split_at_mut(n);
        run(cx, pipeline, from, range, frames, layouts, these, to);
        rest = others;
    }
}

/// Returns the ops of a megaflow for packets of `len` bytes.
fn of_length(mut ops: &[Op], len: usize) -> &[Op] {
    while let Some((Op::Longer { than, ops: n }, rest)) = ops.split_first() {
        let (of_longer, of_others) = rest.split_at(usize::from(*n).min(rest.len()));
        if len > *than as usize {
            return of_longer;
        }
        ops = of_others;
    }
    ops
}

/// Runs `ops`, none of which is [`Op::Longer`].
#[allow(clippy::too_many_arguments)]
fn run(
    cx: &mut Context<'_>,
    pipeline: &Pipeline,
    from: PortId,
    ops: &[Op],
    frames: &mut [Frame],
    layouts: &mut [Layout; BATCH],
    mut live: &mut [u8],
    to: &mut [PortId; BATCH],
) {
    for (i, op) in ops.iter().enumerate() {
        let last = i + 1 == ops.len();
        match *op {
            Op::Output(port) if last => live.iter().for_each(|m| to[usize::from(*m)] = port),
            Op::Output(port) => {
                for m in live.iter() {
                    copy(cx, from, port, &frames[usize::from(*m)]);
                }
            }
            Op::Controller => {
                for m in live.iter() {
                    cx.drop_copy(from, DropReason::Controller, &frames[usize::from(*m)]);
                }
            }
            Op::Sample(of) => {
                for m in live.iter() {
                    if hash_words(&[clock::tsc()], u64::from(*m)) % u64::from(u16::MAX) < u64::from(of) {
                        cx.drop_copy(from, DropReason::Sampled, &frames[usize::from(*m)]);
                    }
                }
            }
            Op::Drop(reason) => live.iter().for_each(|m| to[usize::from(*m)] = drop_as(reason)),
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

/// Applies a meter. Returns the packets that pass; the others are marked to be dropped.
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

/// Sends a copy of a packet, or counts a drop if there is no buffer or the copy does not fit.
fn copy(cx: &mut Context<'_>, from: PortId, to: PortId, frame: &Frame) {
    cx.event(from, Event::CopyMade, 1);
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

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_frame::{ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
    use proptest::prelude::*;

    proptest! {
        /// The quick functions have the same effect as the ops.
        #[test]
        fn quick_is_as_the_ops(mut bytes in proptest::collection::vec(any::<u8>(), 60), value: [u64; 2], mask: [u64; 2], dec in 0..3u8, sum in 0..4usize) {
            bytes[14] = 0x45;
            bytes[22] |= 4;
            if sum < 3 {
                bytes[24..26].copy_from_slice(&[[0xff, 0xff], [0xfe, 0xff], [0xfd, 0xff]][sum]);
            }
            let arena = Arena::new(ArenaConfig { cells: 64, ..Default::default() }).unwrap();
            let pools = PoolSet::new(arena, &[PoolConfig::stack("test", 64)]).unwrap();
            let mut bufs = Buffers::attach(&pools, 0);
            let mut batch = Batch::new();
            bufs.alloc(&mut batch, 3);
            let arena = bufs.arena().clone();
            batch.as_mut_slice().iter_mut().for_each(|f| assert!(arena.write(f, &bytes)));
            let low = u64::from_ne_bytes([255, 255, 255, 255, 255, 255, 0, 0]);
            let mask = mask.map(|m| m & low);
            let value = [value[0] & mask[0], value[1] & mask[1]];
            let (keep, mut layout) = (mask.map(|m| !m), Layout { l3: 14, l4: 34 });
            let frames = batch.as_mut_slice();
            rewrite(&Op::Eth { value, mask }, &arena, &mut frames[0], &mut layout);
            if dec > 0 {
                rewrite(&Op::DecTtl(dec), &arena, &mut frames[0], &mut layout);
            }
            quick(&arena, &mut frames[1], layout, value, keep, dec);
            quick_plain(&arena, &mut frames[2], value, keep, dec);
            let all: Vec<Vec<u8>> = frames.iter().map(|f| arena.data(f).to_vec()).collect();
            prop_assert_eq!(&all[0], &all[1]);
            prop_assert_eq!(&all[0], &all[2]);
            bufs.free(&mut batch);
        }
    }
}
