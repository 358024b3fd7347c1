//! A closed loop: a source that waits for what it sent to have come out.

use bywash_frame::{BATCH, Batch, Buffers};
use bywash_port::{Port, PortCounters, PortState};
use std::sync::Arc;

/// A port that receives only while fewer than so many frames are on their way to another port: for finding out what a
/// pipeline can do at most, without losing any. A frame that is dropped on its way counts as being on it for ever.
pub struct Window<P> {
    port: P,
    own: Arc<PortCounters>,
    /// Of the port that frames leave by.
    out: Arc<PortCounters>,
    frames: u64,
}

impl<P: Port> Window<P> {
    /// At most `frames` (at least a batch) between `port` and the one that counts in `out`.
    pub fn new(port: P, out: Arc<PortCounters>, frames: usize) -> Self {
        Self { own: port.counters(), port, out, frames: frames.max(BATCH) as u64 }
    }
}

impl<P: Port> Port for Window<P> {
    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let on_their_way = self.own.rx_packets.get() - self.out.tx_packets.get();
        if on_their_way + BATCH as u64 > self.frames { 0 } else { self.port.rx_burst(bufs, out) }
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        self.port.tx_burst(bufs, frames)
    }

    fn housekeep(&mut self, bufs: &mut Buffers) {
        self.port.housekeep(bufs);
    }

    fn held(&self) -> usize {
        self.port.held()
    }

    fn state(&self) -> PortState {
        self.port.state()
    }

    fn max_frame(&self) -> usize {
        self.port.max_frame()
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.own.clone()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.port.close(bufs);
    }
}
