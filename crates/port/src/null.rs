//! Null port: discards what it sends and receives nothing.

use crate::{Port, PortCounters};
use bywash_frame::{Batch, Buffers};
use std::sync::Arc;

/// Port that receives nothing, and counts and frees the frames sent on it.
#[derive(Default)]
pub struct NullPort {
    counters: Arc<PortCounters>,
}

impl NullPort {
    /// Returns a null port.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Counts all of `frames` as sent and frees them; returns how many there were.
#[inline]
pub(crate) fn discard(counters: &PortCounters, bufs: &mut Buffers, frames: &mut Batch) -> usize {
    let n = frames.len();
    if n > 0 {
        counters.tx_packets.add(n as u64);
        counters.tx_bytes.add(frames.as_slice().iter().map(|f| f.len() as u64).sum());
        bufs.free(frames);
    }
    n
}

impl Port for NullPort {
    #[inline]
    fn rx_burst(&mut self, _bufs: &mut Buffers, _out: &mut Batch) -> usize {
        0
    }

    #[inline]
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        discard(&self.counters, bufs, frames)
    }

    fn receives(&self) -> bool {
        false
    }

    fn max_frame(&self) -> usize {
        usize::MAX
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, _bufs: &mut Buffers) {}
}
