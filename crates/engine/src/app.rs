//! Applications that run on a worker: the stages of a router, a switch, a tester.

use crate::{DropReason, Event, PortId, PortTable, StageCounters, WorkerCounters};
use bywash_frame::{Batch, Buffers, Frame};
use bywash_sync::{Reader, clock::tsc};
use std::cell::Cell;

/// Counters of the processor that a worker reads at the end of each stage of a timed turn, without a system call.
pub trait Meter: Send {
    /// Returns the counts so far of core cycles, instructions retired and pipeline slots that retired a uop; `None`
    /// while the kernel lends the counters to others.
    fn read(&self) -> Option<Counts>;
}

/// Core cycles, instructions and retired slots.
pub type Counts = [u64; 3];

/// Processing stages of an application on one worker.
///
/// An implementation makes no system call, takes no lock, allocates no memory and logs nothing. It reads tables as
/// published snapshots and reports through counters. Every frame it receives is put on a TX queue, dropped with a
/// reason, or kept and reported by [`App::held`].
pub trait App: Send {
    /// Returns the names of the application's stages, for [`Context::stage`].
    fn stages(&self) -> &'static [&'static str] {
        &[]
    }

    /// Processes a burst received by port `from`. Leaves `batch` empty.
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch);

    /// Called once per turn, after all bursts, to handle timers and updates. Returns true while the application waits
    /// for either, so that the worker does not sleep for long.
    fn turn(&mut self, _cx: &mut Context<'_>) -> bool {
        false
    }

    /// Returns the number of frames that the application holds.
    fn held(&self) -> usize {
        0
    }

    /// Frees every frame that the application holds. Called when the worker ends, and after a panic that it outlives.
    fn close(&mut self, _cx: &mut Context<'_>) {}

    /// Prepares the application to continue after a panic in one of its functions, when [`App::close`] has freed its
    /// frames. Returns whether it can: whether its state, and the state that it shares with other threads, is
    /// consistent wherever the panic interrupted it. If it cannot, which is the default, the worker ends.
    fn recover(&mut self) -> bool {
        false
    }
}

/// A closure that processes bursts is an application without stages or state of its own.
impl<F: FnMut(&mut Context<'_>, PortId, &mut Batch) + Send> App for F {
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        self(cx, from, batch);
    }
}

/// Worker resources available to an application while it processes a burst.
pub struct Context<'a> {
    /// The worker's buffers.
    pub bufs: &'a mut Buffers,
    /// The worker's membership in the reclamation domain of its tables.
    pub reader: &'a Reader,
    /// Time-stamp counter at the start of this turn.
    pub now: u64,
    pub(crate) ports: &'a mut PortTable,
    pub(crate) counters: &'a WorkerCounters,
    pub(crate) trash: &'a mut Batch,
    /// Set if this turn's stages are timed.
    pub(crate) timed: bool,
    pub(crate) mark: Cell<u64>,
    /// Counters to read at the end of each stage of this turn, if there are any.
    pub(crate) meter: Option<&'a dyn Meter>,
    /// Their counts at the last mark.
    pub(crate) counted: Cell<Option<Counts>>,
}

/// Interval in turns at which stages are timed; one timed turn represents this many. Reading the time-stamp counter
/// takes as long as looking up three packets.
pub const SAMPLE: u64 = 16;

impl Context<'_> {
    /// Puts `frame` on the TX queue of `to`. If the queue is full and its port accepts nothing, drops the frame as
    /// `tx-full` (or `port-down`), counted for its ingress port `from`.
    #[inline]
    pub fn send(&mut self, from: PortId, to: PortId, frame: Frame) {
        if let Err((frame, reason)) = self.ports.push(self.bufs, to, frame, self.now) {
            self.drop(from, reason, frame);
        }
    }

    /// Sends a whole batch as [`Context::send`] does, and leaves it empty.
    #[inline]
    pub fn send_batch(&mut self, from: PortId, to: PortId, batch: &mut Batch) {
        let reason = self.ports.push_batch(self.bufs, to, batch, self.now);
        if !batch.is_empty() {
            batch.drain().for_each(|frame| self.drop(from, reason, frame));
        }
    }

    /// Queues as many frames of a batch as [`Context::send`] would. Those that remain are to be dropped by the caller,
    /// for the returned reason.
    #[inline]
    pub fn offer_batch(&mut self, to: PortId, batch: &mut Batch) -> DropReason {
        self.ports.push_batch(self.bufs, to, batch, self.now)
    }

    /// Marks the end of sending `packets` packets: the cycles since the last stage are counted for the `tx` stage.
    #[inline]
    pub fn sent(&self, packets: usize) {
        self.account(STAGE_TX, packets);
    }

    /// Drops `frame`, received by `from`, and counts it under `reason`.
    #[inline]
    pub fn drop(&mut self, from: PortId, reason: DropReason, frame: Frame) {
        self.counters.count_drops(from, reason, 1);
        self.ports.note_dropped(self.bufs, from, reason, &frame);
        self.discard(frame);
    }

    /// Counts a copy of `frame`, received by `from`, that is dropped under `reason`. Captures get the frame itself, so
    /// no copy is made.
    #[inline]
    pub fn drop_copy(&mut self, from: PortId, reason: DropReason, frame: &Frame) {
        self.event(from, Event::CopyMade, 1);
        self.counters.count_drops(from, reason, 1);
        self.ports.note_dropped(self.bufs, from, reason, frame);
    }

    /// Counts the loss of a packet for which there was no frame.
    #[inline]
    pub fn lost(&mut self, from: PortId, reason: DropReason) {
        self.counters.count_drops(from, reason, 1);
    }

    /// Frees `frame` without counting it, because it was never a packet or is counted elsewhere.
    #[inline]
    pub fn discard(&mut self, frame: Frame) {
        if let Err(frame) = self.trash.push(frame) {
            self.bufs.free(self.trash);
            let pushed = self.trash.push(frame);
            debug_assert!(pushed.is_ok());
        }
    }

    /// Counts `n` events for `port`.
    #[inline]
    pub fn event(&self, port: PortId, event: Event, n: u64) {
        self.counters.count_events(port, event, n);
    }

    /// Marks the end of a stage: if this turn is timed, the cycles since the last call are counted for it. `stage` is
    /// an index into [`App::stages`].
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
            s.cycles.add(now.saturating_sub(self.mark.replace(now)) * SAMPLE);
            if let Some(meter) = self.meter {
                self.count(s, meter);
            }
        }
    }

    /// Adds the processor's counts since the last mark to those of a stage.
    #[cold]
    fn count(&self, stage: &StageCounters, meter: &dyn Meter) {
        let now = meter.read();
        let Some((now, before)) = now.zip(self.counted.replace(now)) else { return };
        for (counter, (now, before)) in stage.counted.iter().zip(now.into_iter().zip(before)) {
            counter.add(now.wrapping_sub(before) * SAMPLE);
        }
    }

    /// Excludes the cycles since the last call from all stages.
    #[inline]
    pub(crate) fn skip(&self) {
        if self.timed {
            self.mark.set(tsc());
            if let Some(meter) = self.meter {
                self.counted.set(meter.read());
            }
        }
    }
}

/// Indices of the engine's own stages, which precede those of the application.
pub(crate) const STAGE_RX: usize = 0;
pub(crate) const STAGE_TX: usize = 1;
const APP_STAGES: usize = 2;
