//! What runs on a worker: the stages of a router, a switch, a tester.

use crate::{DropReason, Event, Outputs, PortId, WorkerCounters};
use bywash_frame::{Batch, Buffers, Frame};
use bywash_sync::{Reader, clock::tsc};
use std::cell::Cell;

/// An application's stages on one worker.
///
/// It makes no system call, takes no lock, allocates nothing and logs nothing; tables come to it as published
/// snapshots, what it has to say leaves by counters, and every frame it is given goes on a tx queue, into a named
/// drop, or is kept and reported by [`App::held`].
pub trait App: Send {
    /// Names of its stages, for [`Context::stage`].
    fn stages(&self) -> &'static [&'static str] {
        &[]
    }

    /// Handles a burst received by port `from`. Leaves `batch` empty.
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch);

    /// Called once a turn, after all bursts: for what waits for time or for news. True when it still holds
    /// something that does, so that the worker does not sleep for long.
    fn turn(&mut self, _cx: &mut Context<'_>) -> bool {
        false
    }

    /// Frames it keeps.
    fn held(&self) -> usize {
        0
    }

    /// Gives back every frame it keeps: the worker ends.
    fn close(&mut self, _cx: &mut Context<'_>) {}
}

/// What handles bursts and no more is an application as it is.
impl<F: FnMut(&mut Context<'_>, PortId, &mut Batch) + Send> App for F {
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        self(cx, from, batch);
    }
}

/// What an application may use while it handles a burst.
pub struct Context<'a> {
    /// The worker's buffers.
    pub bufs: &'a mut Buffers,
    /// The worker's membership in the reclamation domain of its tables.
    pub reader: &'a Reader,
    /// Time-stamp counter at the start of this turn.
    pub now: u64,
    pub(crate) out: &'a mut Outputs,
    pub(crate) counters: &'a WorkerCounters,
    pub(crate) trash: &'a mut Batch,
    /// Whether this turn's stages are timed.
    pub(crate) timed: bool,
    pub(crate) mark: Cell<u64>,
}

/// One turn in this many is timed by stage, and stands for the others: reading the clock takes as long as looking up
/// three packets.
pub(crate) const SAMPLE: u64 = 16;

impl Context<'_> {
    /// Puts `frame` on the tx queue of `to`. If that is full and its port takes nothing, the frame is dropped as
    /// `tx-full` (or `port-down`) on the account of `from`, the port it came in by.
    #[inline]
    pub fn send(&mut self, from: PortId, to: PortId, frame: Frame) {
        if let Err((frame, reason)) = self.out.push(self.bufs, to, frame, self.now) {
            self.drop(from, reason, frame);
        }
    }

    /// As [`Context::send`] for a whole batch, which is empty afterwards.
    #[inline]
    pub fn send_batch(&mut self, from: PortId, to: PortId, batch: &mut Batch) {
        let reason = self.out.push_batch(self.bufs, to, batch, self.now);
        if !batch.is_empty() {
            batch.drain().for_each(|frame| self.drop(from, reason, frame));
        }
    }

    /// Ends the sending of `packets`: the cycles since the last stage are the tx queues' and the ports'.
    #[inline]
    pub fn sent(&self, packets: usize) {
        self.account(STAGE_TX, packets);
    }

    /// Drops `frame`, which came in by `from`.
    #[inline]
    pub fn drop(&mut self, from: PortId, reason: DropReason, frame: Frame) {
        self.counters.count_drops(from, reason, 1);
        self.out.note_dropped(self.bufs, from, reason, &frame);
        self.discard(frame);
    }

    /// Counts the loss of a packet that there was no frame for.
    #[inline]
    pub fn lost(&mut self, from: PortId, reason: DropReason) {
        self.counters.count_drops(from, reason, 1);
    }

    /// Frees `frame` without counting: for what was never a packet, or is counted elsewhere.
    #[inline]
    pub fn discard(&mut self, frame: Frame) {
        if let Err(frame) = self.trash.push(frame) {
            self.bufs.free(self.trash);
            let pushed = self.trash.push(frame);
            debug_assert!(pushed.is_ok());
        }
    }

    /// Counts `n` events on the account of `port`.
    #[inline]
    pub fn event(&self, port: PortId, event: Event, n: u64) {
        self.counters.count_events(port, event, n);
    }

    /// Ends a stage: the cycles since the last call are its own, where this turn is timed. `stage` counts from 0 in
    /// [`App::stages`].
    #[inline]
    pub fn stage(&self, stage: usize, packets: usize) {
        self.account(APP_STAGES + stage, packets);
    }

    #[inline]
    pub(crate) fn account(&self, stage: usize, packets: usize) {
        let s = &self.counters.stages[stage];
        s.packets.add(packets as u64);
        s.bursts.add(1);
        if self.timed {
            let now = tsc();
            s.cycles.add((now - self.mark.replace(now)) * SAMPLE);
        }
    }

    /// What went before is no stage's.
    #[inline]
    pub(crate) fn skip(&self) {
        if self.timed {
            self.mark.set(tsc());
        }
    }
}

/// The engine's own stages come first.
pub(crate) const STAGE_RX: usize = 0;
pub(crate) const STAGE_TX: usize = 1;
const APP_STAGES: usize = 2;
