//! Port through which a worker punts received frames to the kernel.

use super::{Error, Injector};
use crate::{Port, PortCounters};
use bywash_frame::{Batch, Buffers};
use std::sync::Arc;

/// Port that receives nothing; the kernel receives the frames sent on it, as if they had arrived on an interface. Each
/// takes a system call of 2 us.
///
/// # Thread-safety
/// Belongs to one worker, whose thread must be in the interface's network namespace.
pub struct PuntPort {
    injector: Injector,
    index: u32,
    counters: Arc<PortCounters>,
}

impl PuntPort {
    /// Creates the port for the interface with the kernel's number `index`.
    ///
    /// # Errors
    /// [`Error::Injector`] with the kernel's reason.
    pub fn new(index: u32) -> Result<Self, Error> {
        Ok(Self { injector: Injector::new()?, index, counters: Arc::default() })
    }
}

impl Port for PuntPort {
    fn rx_burst(&mut self, _bufs: &mut Buffers, _out: &mut Batch) -> usize {
        0
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let n = frames.len();
        for frame in frames.as_slice() {
            match self.injector.inject(self.index, bufs.arena().data(frame), true) {
                Ok(()) => {
                    self.counters.tx_packets.add(1);
                    self.counters.tx_bytes.add(frame.len() as u64);
                }
                Err(_) => self.counters.tx_refused.add(1),
            }
        }
        bufs.free(frames);
        n
    }

    fn receives(&self) -> bool {
        false
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, _bufs: &mut Buffers) {}
}
