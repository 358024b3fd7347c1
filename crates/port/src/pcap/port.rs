//! pcap port: receives from a file in memory and sends to a file.

use super::{PcapRecorder, PcapSource};
use crate::null::discard;
use crate::{Port, PortCounters, PortState};
use bywash_frame::{Batch, Buffers};
use std::sync::Arc;

/// Port that receives from a [`PcapSource`] and sends to a [`PcapRecorder`]. Without a source it receives nothing;
/// without a recorder, sent frames are counted and freed.
#[derive(Default)]
pub struct PcapPort {
    source: Option<PcapSource>,
    sink: Option<PcapRecorder>,
    counters: Arc<PortCounters>,
}

impl PcapPort {
    /// Creates a port from an optional source and an optional recorder.
    pub fn new(source: Option<PcapSource>, sink: Option<PcapRecorder>) -> Self {
        Self { source, sink, counters: Arc::default() }
    }

    /// Creates a port that replays `source` and discards sent frames.
    pub fn replay(source: PcapSource) -> Self {
        Self::new(Some(source), None)
    }

    /// Creates a port that receives nothing and records sent frames.
    pub fn record(sink: PcapRecorder) -> Self {
        Self::new(None, Some(sink))
    }
}

impl Port for PcapPort {
    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let Some(source) = &mut self.source else { return 0 };
        let (n, bytes) = source.fill(bufs, out);
        self.counters.rx_packets.add(n as u64);
        self.counters.rx_bytes.add(bytes);
        n
    }

    #[inline]
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let Some(sink) = &mut self.sink else { return discard(&self.counters, bufs, frames) };
        let (n, bytes) = sink.take(bufs, frames);
        self.counters.tx_packets.add(n as u64);
        self.counters.tx_bytes.add(bytes);
        n
    }

    #[inline]
    fn housekeep(&mut self, _bufs: &mut Buffers) {
        if let Some(sink) = &mut self.sink {
            sink.housekeep();
        }
    }

    fn receives(&self) -> bool {
        self.source.as_ref().is_some_and(|s| !s.ended())
    }

    fn state(&self) -> PortState {
        if let Some(why) = self.sink.as_ref().and_then(PcapRecorder::failure) {
            return PortState::Down(format!("cannot record: {why}"));
        }
        match &self.source {
            Some(source) if source.ended() => PortState::Ended,
            _ => PortState::Up,
        }
    }

    fn max_frame(&self) -> usize {
        usize::MAX
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let Some(source) = &self.source else { return Vec::new() };
        vec![
            ("packets", source.len().to_string()),
            ("oversize", source.oversize().to_string()),
            ("cut", source.cut().to_string()),
        ]
    }

    fn close(&mut self, _bufs: &mut Buffers) {
        if let Some(sink) = &mut self.sink {
            sink.flush();
        }
    }
}
