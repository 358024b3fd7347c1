//! Closed loop: a source limited by the number of frames in flight.

use bywash_frame::{BATCH, Batch, Buffers};
use bywash_port::{Port, PortCounters};
use std::sync::Arc;

/// Port that receives only while fewer than a given number of frames are in flight to another port. Measures the
/// maximum throughput of a pipeline without losses. A frame dropped on its way counts as in flight forever.
pub struct Window<P> {
    port: P,
    own: Arc<PortCounters>,
    /// Counters of the port by which frames leave.
    out: Arc<PortCounters>,
    frames: u64,
}

impl<P: Port> Window<P> {
    /// Limits the frames in flight between `port` and the port that counts in `out` to `frames`, at least a batch.
    pub fn new(port: P, out: Arc<PortCounters>, frames: usize) -> Self {
        Self { own: port.counters(), port, out, frames: frames.max(BATCH) as u64 }
    }
}

impl<P: Port> Port for Window<P> {
    bywash_port::by_port!(port: tx_burst, housekeep, held, state, max_frame, details, close);

    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let on_their_way = self.own.rx_packets.get() - self.out.tx_packets.get();
        if on_their_way + BATCH as u64 > self.frames { 0 } else { self.port.rx_burst(bufs, out) }
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.own.clone()
    }
}
