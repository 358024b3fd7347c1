//! Ports of one worker and the TX queues in front of them.

use crate::DropReason;
use crate::{PortId, WorkerCounters};
use bywash_frame::{Batch, Buffers, Frame};
use bywash_port::{NullPort, Port, PortState, Recorder, TxQueue, TxQueueConfig, Watched};
use bywash_sync::clock;

struct Slot {
    port: Box<dyn Port>,
    queue: TxQueue,
}

/// A worker's end of every port, by [`PortId`], each behind its TX queue.
#[derive(Default)]
pub struct PortTable {
    slots: Vec<Slot>,
    /// Active packet captures; usually empty.
    recorders: Vec<Recorder>,
    /// Set while the application runs, and none of its calls is within a port: a panic then leaves the ports and their
    /// queues as they are.
    pub(crate) at_rest: bool,
}

impl PortTable {
    /// Creates an instance without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next port and returns its ID, the number of ports added before.
    pub fn add(&mut self, port: Box<dyn Port>, queue: TxQueue) -> PortId {
        self.slots.push(Slot { port, queue });
        PortId((self.slots.len() - 1) as u16)
    }

    /// Returns the number of ports.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether there are no ports.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = &dyn Port> {
        self.slots.iter().map(|s| s.port.as_ref())
    }

    /// Returns every port with the number of frames on its TX queue.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (&dyn Port, usize)> {
        self.slots.iter().map(|s| (s.port.as_ref(), s.queue.len()))
    }

    #[inline]
    pub(crate) fn receive(&mut self, bufs: &mut Buffers, id: PortId, out: &mut Batch) -> usize {
        self.slots[usize::from(id.0)].port.rx_burst(bufs, out)
    }

    /// Passes received packets to the active captures.
    #[inline]
    pub(crate) fn note_received(&mut self, bufs: &Buffers, from: PortId, frames: &[Frame]) {
        if !self.recorders.is_empty() {
            self.record_received(bufs, from, frames);
        }
    }

    #[cold]
    fn record_received(&mut self, bufs: &Buffers, from: PortId, frames: &[Frame]) {
        self.recorders.iter_mut().for_each(|recorder| recorder.received(bufs.arena(), from.0, frames));
    }

    /// Passes a packet that is dropped to the active captures.
    #[inline]
    pub(crate) fn note_dropped(&mut self, bufs: &Buffers, from: PortId, reason: DropReason, frame: &Frame) {
        if !self.recorders.is_empty() {
            self.record_dropped(bufs, from, reason, frame);
        }
    }

    #[cold]
    fn record_dropped(&mut self, bufs: &Buffers, from: PortId, reason: DropReason, frame: &Frame) {
        self.recorders.iter_mut().for_each(|recorder| recorder.dropped(bufs.arena(), from.0, reason as u8, frame));
    }

    pub(crate) fn add_recorder(&mut self, recorder: Recorder) {
        self.recorders.push(recorder);
    }

    /// Leaves the packets of a port out of the recording `id`, if there is one.
    pub(crate) fn leave_out(&mut self, id: u64, port: PortId) {
        self.recorders.iter_mut().filter(|recorder| recorder.id() == id).for_each(|one| one.leave_out(port.0));
    }

    pub(crate) fn take_recorder(&mut self, id: u64) -> Option<Recorder> {
        let at = self.recorders.iter().position(|recorder| recorder.id() == id)?;
        Some(self.recorders.swap_remove(at))
    }

    #[inline]
    pub(crate) fn push(
        &mut self,
        bufs: &mut Buffers,
        to: PortId,
        frame: Frame,
        now: u64,
    ) -> Result<(), (Frame, DropReason)> {
        let Some(slot) = self.slots.get_mut(usize::from(to.0)) else { return Err((frame, DropReason::PortDown)) };
        slot.queue.push(frame, now).or_else(|frame| {
            let before = std::mem::take(&mut self.at_rest);
            let pushed = slot.spill(bufs, to, frame, now, &mut self.recorders);
            self.at_rest = before;
            pushed
        })
    }

    /// Queues a whole batch as `push` does. Frames that remain in it were not accepted, for the returned reason.
    #[inline]
    pub(crate) fn push_batch(&mut self, bufs: &mut Buffers, to: PortId, batch: &mut Batch, now: u64) -> DropReason {
        let Some(slot) = self.slots.get_mut(usize::from(to.0)) else { return DropReason::PortDown };
        let before = std::mem::take(&mut self.at_rest);
        if self.recorders.is_empty() {
            slot.queue.push_batch(slot.port.as_mut(), bufs, batch, now);
        } else {
            let (mut port, queue) = slot.watched(to, &mut self.recorders);
            queue.push_batch(&mut port, bufs, batch, now);
        }
        self.at_rest = before;
        if batch.is_empty() { DropReason::TxFull } else { slot.refusal() }
    }

    /// Sends the frames on every queue that are due before the next call, at `next`, and calls every port's
    /// housekeeping. Returns the number of frames sent.
    #[inline]
    pub(crate) fn flush(&mut self, bufs: &mut Buffers, now: u64, next: u64, counters: &WorkerCounters) -> usize {
        let mut sent = 0;
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if !slot.queue.is_empty() && slot.queue.due(next) {
                sent += slot.flush(bufs, PortId(i as u16), now, &mut self.recorders);
                if !slot.queue.is_empty() && slot.port.state() != PortState::Up {
                    counters.count_drops(PortId(i as u16), DropReason::PortDown, slot.queue.len() as u64);
                    slot.queue.clear(bufs);
                }
            }
            slot.port.housekeep(bufs);
        }
        sent
    }

    /// Returns whether any queue holds frames.
    pub(crate) fn waiting(&self) -> bool {
        self.slots.iter().any(|s| !s.queue.is_empty())
    }

    /// Returns the ticks until the earliest deadline of a queued frame; `None` if no deadline is pending or all have
    /// passed (a device that accepts nothing).
    pub(crate) fn patience(&self, now: u64) -> Option<u64> {
        let left = self.slots.iter().filter_map(|s| s.queue.deadline()).map(|at| at.wrapping_sub(now));
        left.filter(|ticks| *ticks < 1 << 63).min()
    }

    pub(crate) fn replace(&mut self, bufs: &mut Buffers, id: PortId, port: Box<dyn Port>) {
        if let Some(slot) = self.slots.get_mut(usize::from(id.0)) {
            let mut old = std::mem::replace(&mut slot.port, port);
            old.close(bufs);
        }
    }

    /// Sets the port with this ID, which may be the next free one. Frames queued on a port it replaces are sent, as far
    /// as that port accepts them.
    pub(crate) fn set(&mut self, bufs: &mut Buffers, id: PortId, port: Box<dyn Port>, queue: TxQueue) {
        let at = usize::from(id.0);
        while self.slots.len() <= at {
            self.add(Box::new(NullPort::new()), TxQueue::new(TxQueueConfig::default()));
        }
        self.slots[at].close(bufs);
        self.slots[at] = Slot { port, queue };
    }

    pub(crate) fn remove(&mut self, bufs: &mut Buffers, id: PortId) {
        if usize::from(id.0) < self.slots.len() {
            self.set(bufs, id, Box::new(NullPort::new()), TxQueue::new(TxQueueConfig::default()));
        }
    }

    pub(crate) fn close(&mut self, bufs: &mut Buffers) {
        self.slots.iter_mut().for_each(|slot| slot.close(bufs));
    }
}

impl Slot {
    /// Sends queued frames as far as the port accepts them, frees the others, and closes the port.
    fn close(&mut self, bufs: &mut Buffers) {
        if !self.queue.is_empty() {
            self.queue.flush(self.port.as_mut(), bufs, clock::tsc());
            self.queue.clear(bufs);
        }
        self.port.close(bufs);
    }

    #[inline]
    fn flush(&mut self, bufs: &mut Buffers, id: PortId, now: u64, recorders: &mut [Recorder]) -> usize {
        if recorders.is_empty() {
            return self.queue.flush(self.port.as_mut(), bufs, now);
        }
        let (mut port, queue) = self.watched(id, recorders);
        queue.flush(&mut port, bufs, now)
    }

    #[cold]
    fn watched<'a>(&'a mut self, id: PortId, recorders: &'a mut [Recorder]) -> (Watched<'a>, &'a mut TxQueue) {
        (Watched { port: self.port.as_mut(), number: id.0, recorders }, &mut self.queue)
    }

    /// Handles a full queue: flushes it and retries, or returns the frame with the drop reason.
    #[cold]
    fn spill(
        &mut self,
        bufs: &mut Buffers,
        id: PortId,
        frame: Frame,
        now: u64,
        recorders: &mut [Recorder],
    ) -> Result<(), (Frame, DropReason)> {
        self.flush(bufs, id, now, recorders);
        self.queue.push(frame, now).map_err(|frame| (frame, self.refusal()))
    }

    #[cold]
    fn refusal(&self) -> DropReason {
        if self.port.state() == PortState::Up { DropReason::TxFull } else { DropReason::PortDown }
    }
}
