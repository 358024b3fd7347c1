//! What a port is to the rest of the program.

use bywash_frame::{Batch, Buffers};
use bywash_sync::Counter;
use serde::Serialize;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One worker's end of a port: a queue it alone receives from and sends to. Bulk only.
///
/// Calls never block and never fail: a port that cannot work says so in [`Port::state`], receives nothing and
/// takes nothing. System calls belong here, in ports, never in stages.
pub trait Port: Send {
    /// Appends received frames to `out`, up to its room; returns how many. Buffers come from `bufs`.
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize;

    /// Sends from the front of `frames`; returns how many were taken. The rest stays, in order, with the caller.
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize;

    /// Once per turn of the worker, busy or idle: takes back what was sent, refills what receives, wakes the kernel
    /// where it wants to be woken. A port that must not wait for the next `tx_burst` to do so does it here.
    fn housekeep(&mut self, _bufs: &mut Buffers) {}

    /// Frames this port holds now: posted for receiving, or sent and not yet taken back. For the conservation audit.
    fn held(&self) -> usize {
        0
    }

    /// A descriptor that becomes readable when there is something to receive, for a worker about to sleep.
    /// None: the port must be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether it can ever receive: a worker that sleeps need not poll one that cannot.
    fn receives(&self) -> bool {
        true
    }

    /// Whether it works, and if not, why.
    fn state(&self) -> PortState {
        PortState::Up
    }

    /// Most bytes of a frame (Ethernet header included, FCS not) that it can send.
    fn max_frame(&self) -> usize {
        1518
    }

    /// Its counters, for whoever shows them.
    fn counters(&self) -> Arc<PortCounters>;

    /// Facts to show: mode, queue, ring sizes, why not better. Names as in the API's JSON.
    fn details(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Gives every frame back and lets the device go. Called once, before the port is dropped.
    fn close(&mut self, bufs: &mut Buffers);
}

/// Whether a port works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub enum PortState {
    /// It receives and sends.
    #[default]
    Up,
    /// It does not, for this reason: link down, device deleted, peer gone.
    Down(String),
    /// A finite source has delivered everything (a pcap that is not looped).
    Ended,
}

/// A port's counters, written by its worker, read by anyone.
#[derive(Debug, Default, Serialize)]
pub struct PortCounters {
    /// Frames received.
    #[serde(serialize_with = "get")]
    pub rx_packets: Counter,
    /// Bytes received, without FCS.
    #[serde(serialize_with = "get")]
    pub rx_bytes: Counter,
    /// Frames sent.
    #[serde(serialize_with = "get")]
    pub tx_packets: Counter,
    /// Bytes sent, without FCS.
    #[serde(serialize_with = "get")]
    pub tx_bytes: Counter,
    /// Frames lost before us because no buffer was posted (kernel: `rx_fill_ring_empty_descs`, `rx_dropped`).
    #[serde(serialize_with = "get")]
    pub rx_no_buffer: Counter,
    /// Frames lost before us because we did not take them fast enough (kernel: `rx_ring_full`).
    #[serde(serialize_with = "get")]
    pub rx_ring_full: Counter,
    /// Descriptors the kernel refused (`rx_invalid_descs` and `tx_invalid_descs`): a bug when not zero.
    #[serde(serialize_with = "get")]
    pub invalid: Counter,
    /// Bursts of which the device did not take all: its ring was full.
    #[serde(serialize_with = "get")]
    pub tx_full: Counter,
    /// Frames the kernel took from us and would not send: its queue was full, the link down.
    #[serde(serialize_with = "get")]
    pub tx_refused: Counter,
    /// System calls to wake the receiving side.
    #[serde(serialize_with = "get")]
    pub rx_wakeups: Counter,
    /// System calls to wake the sending side.
    #[serde(serialize_with = "get")]
    pub tx_wakeups: Counter,
    /// System calls of poll(2): to wait, or to wake either side.
    #[serde(serialize_with = "get")]
    pub polls: Counter,
    /// System calls in which the driver was polled for received frames, instead of by interrupts.
    #[serde(serialize_with = "get")]
    pub busy_polls: Counter,
    /// Frames sent that came back in another order than they were sent in, where the same order was counted on. When not
    /// zero, it no longer is.
    #[serde(serialize_with = "get")]
    pub tx_reordered: Counter,
}

fn get<S: serde::Serializer>(c: &Counter, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(c.get())
}
