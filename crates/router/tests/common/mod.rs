//! A port that exists in memory alone.

use bywash_frame::{Batch, Buffers};
use bywash_port::{Port, PortCounters};
use std::sync::{Arc, Mutex};

/// Bursts to deliver, the last one first, and the frames that were sent.
#[derive(Default)]
pub struct Line {
    pub bursts: Vec<Vec<Vec<u8>>>,
    pub sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Port for Line {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let Some(burst) = self.bursts.pop() else { return 0 };
        assert_eq!(bufs.alloc(out, burst.len()), burst.len());
        for (frame, bytes) in out.as_mut_slice().iter_mut().zip(&burst) {
            assert!(bufs.arena().write(frame, bytes));
        }
        burst.len()
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let n = frames.len();
        self.sent.lock().unwrap().extend(frames.as_slice().iter().map(|f| bufs.arena().data(f).to_vec()));
        bufs.free(frames);
        n
    }

    fn counters(&self) -> Arc<PortCounters> {
        Arc::default()
    }

    fn close(&mut self, _bufs: &mut Buffers) {}
}
