//! Completion of the transport checksums that a virtual interface's peer has left to hardware.

use bywash_frame::{Batch, Buffers};
use bywash_port::Port;
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::partial;

/// Port whose received frames have complete checksums.
pub struct Completing<P> {
    port: P,
    completed: u64,
}

impl<P: Port> Completing<P> {
    pub fn new(port: P) -> Self {
        Self { port, completed: 0 }
    }
}

/// Completes a frame's partial checksums. Returns whether it had any.
fn complete(frame: &mut [u8]) -> bool {
    let Some([.., high, low]) = frame.first_chunk::<HEADER_LEN>() else { return false };
    let ip = [ethertype::IPV4, ethertype::IPV6].contains(&u16::from_be_bytes([*high, *low]));
    ip && partial::complete_all(&mut frame[HEADER_LEN..])
}

impl<P: Port> Port for Completing<P> {
    bywash_port::by_port!(port: tx_burst, housekeep, held, wait_fd, receives, state, max_frame, counters, close);

    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let before = out.len();
        let n = self.port.rx_burst(bufs, out);
        for frame in &mut out.as_mut_slice()[before..] {
            self.completed += u64::from(complete(bufs.arena().data_mut(frame)));
        }
        n
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut details = self.port.details();
        details.push(("checksums_completed", self.completed.to_string()));
        details
    }
}
