//! The interface between a port and the workers that use it.

use bywash_frame::{Batch, Buffers};
use bywash_sync::Counter;
use serde::Serialize;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One worker's end of a port: a queue that only this worker receives from and sends to, in bursts.
///
/// Calls never block and never fail: a port that cannot work reports it in [`Port::state`], receives nothing and takes
/// nothing. System calls belong here, in ports, never in stages.
pub trait Port: Send {
    /// Appends received frames to `out` as far as it has room; returns the number appended. Buffers come from `bufs`.
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize;

    /// Sends from the front of `frames`; returns how many frames were taken. The others stay in `frames`, in order.
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize;

    /// Does periodic work, once per turn of the worker, busy or idle: frees sent frames, refills the receive side,
    /// wakes the kernel where it needs a wakeup. Work that must not wait for the next `tx_burst` belongs here.
    fn housekeep(&mut self, _bufs: &mut Buffers) {}

    /// Returns the number of frames this port holds now: posted for receiving, or sent and not yet taken back. Used by
    /// the conservation audit.
    fn held(&self) -> usize {
        0
    }

    /// Returns a descriptor that becomes readable when there is something to receive, for a worker about to sleep.
    /// `None` if the port must be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns whether the port can ever receive. A sleeping worker need not poll a port that cannot.
    fn receives(&self) -> bool {
        true
    }

    /// Returns whether the port works, and the reason if it does not.
    fn state(&self) -> PortState {
        PortState::Up
    }

    /// Returns the longest frame the port can send, in bytes, with the Ethernet header and without FCS.
    fn max_frame(&self) -> usize {
        1518
    }

    /// Returns the port's counters.
    fn counters(&self) -> Arc<PortCounters>;

    /// Returns facts to display: mode, queue, ring sizes, why a better mode is not used. Names as in the API's JSON.
    fn details(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Gives every frame back and releases the device. Called once, before the port is dropped.
    fn close(&mut self, bufs: &mut Buffers);
}

/// Defines methods of [`Port`] that call the same method of another port, in a decorator's implementation:
/// `by_port!(inner: housekeep, held)` for its field `inner`.
#[macro_export]
macro_rules! by_port {
    ($port:tt: $($method:ident),+) => { $($crate::by_port!(@$method $port);)+ };
    (@rx_burst $port:tt) => {
        fn rx_burst(&mut self, bufs: &mut bywash_frame::Buffers, out: &mut bywash_frame::Batch) -> usize {
            self.$port.rx_burst(bufs, out)
        }
    };
    (@tx_burst $port:tt) => {
        fn tx_burst(&mut self, bufs: &mut bywash_frame::Buffers, frames: &mut bywash_frame::Batch) -> usize {
            self.$port.tx_burst(bufs, frames)
        }
    };
    (@housekeep $port:tt) => {
        fn housekeep(&mut self, bufs: &mut bywash_frame::Buffers) {
            self.$port.housekeep(bufs);
        }
    };
    (@held $port:tt) => {
        fn held(&self) -> usize {
            self.$port.held()
        }
    };
    (@wait_fd $port:tt) => {
        fn wait_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.$port.wait_fd()
        }
    };
    (@receives $port:tt) => {
        fn receives(&self) -> bool {
            self.$port.receives()
        }
    };
    (@state $port:tt) => {
        fn state(&self) -> $crate::PortState {
            self.$port.state()
        }
    };
    (@max_frame $port:tt) => {
        fn max_frame(&self) -> usize {
            self.$port.max_frame()
        }
    };
    (@counters $port:tt) => {
        fn counters(&self) -> std::sync::Arc<$crate::PortCounters> {
            self.$port.counters()
        }
    };
    (@details $port:tt) => {
        fn details(&self) -> Vec<(&'static str, String)> {
            self.$port.details()
        }
    };
    (@close $port:tt) => {
        fn close(&mut self, bufs: &mut bywash_frame::Buffers) {
            self.$port.close(bufs);
        }
    };
}

/// State of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub enum PortState {
    /// Receives and sends.
    #[default]
    Up,
    /// Does not work, for the given reason: link down, device deleted, peer gone.
    Down(String),
    /// Finite source that has delivered everything (a pcap that is not looped).
    Ended,
}

/// Counters of a port. Written by its worker, readable from any thread.
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
    /// Frames lost before they reached the port because no buffer was posted (kernel: `rx_dropped`; with zero-copy also
    /// `rx_fill_ring_empty_descs`, the driver's vain attempts to get a buffer).
    #[serde(serialize_with = "get")]
    pub rx_no_buffer: Counter,
    /// Frames lost before they reached the port because the RX ring was full (kernel: `rx_ring_full`).
    #[serde(serialize_with = "get")]
    pub rx_ring_full: Counter,
    /// Descriptors the kernel refused (`rx_invalid_descs` and `tx_invalid_descs`): a bug if not zero.
    #[serde(serialize_with = "get")]
    pub invalid: Counter,
    /// Bursts that the device took only in part because its ring was full.
    #[serde(serialize_with = "get")]
    pub tx_full: Counter,
    /// Frames the kernel took but did not send: its queue was full or the link was down.
    #[serde(serialize_with = "get")]
    pub tx_refused: Counter,
    /// System calls to wake the receive side.
    #[serde(serialize_with = "get")]
    pub rx_wakeups: Counter,
    /// System calls to wake the transmit side.
    #[serde(serialize_with = "get")]
    pub tx_wakeups: Counter,
    /// poll(2) system calls, to wait or to wake either side.
    #[serde(serialize_with = "get")]
    pub polls: Counter,
    /// System calls that polled the driver for received frames (busy polling) instead of waiting for interrupts.
    #[serde(serialize_with = "get")]
    pub busy_polls: Counter,
    /// Frames that completed in another order than they were sent in, on a port that relied on completion in order.
    /// Once this is not zero, the port no longer relies on it.
    #[serde(serialize_with = "get")]
    pub tx_reordered: Counter,
    /// Frames, or parts of long frames, that the device has sent or dropped. Together with `tx_waiting` this detects
    /// devices that send nothing. Up to 160 ms old; 0 unless the port is an AF_XDP socket.
    #[serde(skip)]
    pub tx_done: Counter,
    /// Frames, or parts of long frames, that the device holds. As old as `tx_done`.
    #[serde(skip)]
    pub tx_waiting: Counter,
}

impl PortCounters {
    /// Adds the counters of an end, except `tx_waiting`, which counts what an end has at the moment.
    pub fn add(&self, end: &Self) {
        // Every counter is named.
        let Self {
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            rx_no_buffer,
            rx_ring_full,
            invalid,
            tx_full,
            tx_refused,
            rx_wakeups,
            tx_wakeups,
            polls,
            busy_polls,
            tx_reordered,
            tx_done,
            tx_waiting: _,
        } = end;
        for (to, from) in [
            (&self.rx_packets, rx_packets),
            (&self.rx_bytes, rx_bytes),
            (&self.tx_packets, tx_packets),
            (&self.tx_bytes, tx_bytes),
            (&self.rx_no_buffer, rx_no_buffer),
            (&self.rx_ring_full, rx_ring_full),
            (&self.invalid, invalid),
            (&self.tx_full, tx_full),
            (&self.tx_refused, tx_refused),
            (&self.rx_wakeups, rx_wakeups),
            (&self.tx_wakeups, tx_wakeups),
            (&self.polls, polls),
            (&self.busy_polls, busy_polls),
            (&self.tx_reordered, tx_reordered),
            (&self.tx_done, tx_done),
        ] {
            to.add(from.get());
        }
    }
}

fn get<S: serde::Serializer>(c: &Counter, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(c.get())
}
