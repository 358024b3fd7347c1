//! Applies the actions of a burst's flows and sends the packets.

use super::{Arrival, Caches, Group, Work, low_bits};
use crate::exec::{DROP, drop_as, execute, quick, quick_plain, reason};
use crate::extract::Layout;
use crate::megaflow::{Hot, Plan, bits};
use bywash_engine::{Context, PortId};
use bywash_frame::{Arena, BATCH, Batch, Frame};

/// Layout of a plain packet.
const PLAIN_LAYOUT: Layout = Layout { l3: 14, l4: 34 };

impl Work {
    /// Returns `true` if all `n` packets belong to one flow and share one egress port or drop reason.
    #[inline]
    fn one_way(&self, n: usize) -> bool {
        let n = n.min(BATCH);
        let (flows, to) = (&self.flows[..n], &self.to[..n]);
        let differ = |i: usize| (flows[i].at ^ flows[0].at) | u32::from(to[i].0 ^ to[0].0);
        self.found == low_bits(n) && (1..n).fold(0, |all, i| all | differ(i)) == 0
    }

    /// Writes the indices of a group's packets to `into`, in packet order, and returns them.
    #[inline]
    fn members<'a>(&self, group: &Group, into: &'a mut [u8; BATCH]) -> &'a mut [u8] {
        let mut i = group.first;
        let members = &mut into[..usize::from(group.n)];
        for member in members.iter_mut() {
            *member = i;
            i = self.next[usize::from(i) % BATCH];
        }
        members
    }
}

impl Caches {
    /// Applies the actions of each packet's flow. Packets whose flow needs more than a [`Plan::Quick`] are grouped by
    /// flow, and each list of ops is run once per group.
    pub(super) fn act(&mut self, cx: &mut Context<'_>, arrival: Arrival<'_>, work: &mut Work, batch: &mut Batch) {
        let generation = arrival.pipeline.generation;
        let plain = work.plain == low_bits(batch.len()) && work.found == work.plain;
        let act = if plain { Self::act_each::<true> } else { Self::act_each::<false> };
        let (mut lists, stale) = act(self, cx.bufs.arena(), generation, work, batch.as_mut_slice(), !0);
        if stale != 0 {
            work.found &= !stale;
            self.lookup_rest(cx, arrival, work, batch, 0, stale);
            let arena = cx.bufs.arena();
            let (more, _) = self.act_each::<false>(arena, generation, work, batch.as_mut_slice(), stale);
            lists |= more;
        }
        if lists != 0 {
            self.act_by_group(cx, arrival, work, batch, lists);
        }
    }

    /// Applies the plans of the packets in the set `which` that have a flow. Returns the set of packets whose flow has
    /// a list of ops, and the set of packets whose flow is gone or older than the tables.
    #[inline(always)]
    fn act_each<const PLAIN: bool>(
        &mut self,
        arena: &Arena,
        generation: u64,
        work: &mut Work,
        frames: &mut [Frame],
        which: u64,
    ) -> (u64, u64) {
        let (mut lists, mut stale) = (0u64, 0u64);
        let which = which & work.found;
        for (i, frame) in frames.iter_mut().enumerate().take(BATCH) {
            if !PLAIN && which >> i & 1 == 0 {
                continue;
            }
            let flow = work.flows[i];
            let hot = self.mega.hot(flow.at);
            if hot.valid != Hot::valid_for(flow.incarnation, generation) {
                stale |= 1 << i;
                continue;
            }
            hot.packets += 1;
            hot.bytes += frame.len() as u64;
            match hot.plan {
                Plan::Quick { value, keep, dec, to } => {
                    if PLAIN || work.plain >> i & 1 == 1 {
                        quick_plain(arena, frame, value, keep, dec);
                    } else {
                        quick(arena, frame, work.layouts[i], value, keep, dec);
                    }
                    work.to[i] = to;
                }
                Plan::Drop(reason) => work.to[i] = drop_as(reason),
                Plan::List => lists |= 1 << i,
            }
        }
        (lists, stale)
    }

    #[inline(never)]
    fn act_by_group(
        &mut self,
        cx: &mut Context<'_>,
        arrival: Arrival<'_>,
        work: &mut Work,
        batch: &mut Batch,
        lists: u64,
    ) {
        for i in bits(lists & work.plain) {
            work.layouts[i] = PLAIN_LAYOUT;
        }
        let (groups, n) = self.gather(work, lists);
        for group in &groups[..n] {
            let mut members = [0; BATCH];
            let members = work.members(group, &mut members);
            let cold = self.mega.cold(group.flow);
            let frames = batch.as_mut_slice();
            execute(
                cx,
                arrival.pipeline,
                arrival.from,
                &cold.ops,
                cold.reason,
                frames,
                &mut work.layouts,
                members,
                &mut work.to,
            );
        }
    }

    /// Groups the packets of the set `which` by flow; each of them must have a flow. Returns the groups and their
    /// number.
    #[inline]
    fn gather(&mut self, work: &mut Work, which: u64) -> ([Group; BATCH], usize) {
        self.burst = self.burst.wrapping_add(1).max(1);
        let mut groups = [const { Group { flow: 0, first: 0, last: 0, n: 0 } }; BATCH];
        let mut n = 0;
        for i in bits(which) {
            let at = work.flows[i].at;
            let cold = self.mega.cold(at);
            if cold.burst == self.burst {
                let group = &mut groups[usize::from(cold.group) % BATCH];
                work.next[usize::from(group.last) % BATCH] = i as u8;
                group.last = i as u8;
                group.n += 1;
            } else {
                (cold.burst, cold.group) = (self.burst, n as u8);
                groups[n % BATCH] = Group { flow: at, first: i as u8, last: i as u8, n: 1 };
                n += 1;
            }
        }
        (groups, n.min(BATCH))
    }

    /// Sends or drops the packets of a burst, the packets of each flow separately.
    #[inline(never)]
    pub(super) fn send_by_flow(&mut self, cx: &mut Context<'_>, from: PortId, work: &mut Work, batch: &mut Batch) {
        if work.one_way(batch.len()) {
            return send_one_way(cx, from, work.to[0], batch);
        }
        let (groups, n) = self.gather(work, work.found);
        let mut frames = batch.drain();
        let mut frames: [Option<Frame>; BATCH] = std::array::from_fn(|_| frames.next());
        let mut group_frames = Batch::new();
        for group in &groups[..n] {
            let mut members = [0; BATCH];
            let mut to = None;
            for i in work.members(group, &mut members).iter().map(|i| usize::from(*i)) {
                let Some(frame) = frames[i].take() else { continue };
                if let Some(before) = to.replace(work.to[i]).filter(|before| *before != work.to[i]) {
                    send_one_way(cx, from, before, &mut group_frames);
                }
                let pushed = group_frames.push(frame);
                debug_assert!(pushed.is_ok());
            }
            send_one_way(cx, from, to.unwrap_or(DROP), &mut group_frames);
        }
        for (i, frame) in frames.into_iter().enumerate() {
            let pushed = frame.map_or(Ok(()), |frame| group_frames.push(frame));
            debug_assert!(pushed.is_ok());
            send_one_way(cx, from, work.to[i], &mut group_frames);
        }
    }
}

/// Sends all packets of `batch` out of port `to`, or drops them if `to` encodes a drop reason.
fn send_one_way(cx: &mut Context<'_>, from: PortId, to: PortId, batch: &mut Batch) {
    match reason(to) {
        _ if batch.is_empty() => {}
        None => cx.send_batch(from, to, batch),
        Some(reason) => batch.drain().for_each(|frame| cx.drop(from, reason, frame)),
    }
}

/// Sends or drops each packet of a burst.
pub(super) fn send(cx: &mut Context<'_>, from: PortId, to: &[PortId; BATCH], batch: &mut Batch) {
    let to = &to[..batch.len().min(BATCH)];
    let Some(first) = to.first() else { return };
    let differ = to.iter().fold(0, |differ, to| differ | (to.0 ^ first.0));
    if differ == 0 && reason(*first).is_none() {
        return cx.send_batch(from, *first, batch);
    }
    for (frame, to) in batch.drain().zip(to) {
        match reason(*to) {
            None => cx.send(from, *to, frame),
            Some(reason) => cx.drop(from, reason, frame),
        }
    }
}
