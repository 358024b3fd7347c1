//! Custom port: a source that generates frames, forwarded to host b, which receives a UDP datagram from each.
//!
//!     sudo -E cargo run -p bywash-examples --example own_port

use bywash_engine::{Context, PortId};
use bywash_frame::{Batch, Buffers};
use bywash_kit::Kit;
use bywash_lab::Wire;
use bywash_port::{Port, PortCounters};
use std::{error::Error, net::UdpSocket, sync::Arc, time::Duration};

/// Broadcast from 02:..:01: IPv4 from 10.0.0.1 to 10.0.0.2, UDP from 7 to 9 with 4 bytes, without a UDP checksum.
const FRAME: &[u8] = b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\x01\x08\0\x45\0\0\x20\0\0\0\0\x40\x11\x66\xcb\
                       \x0a\0\0\x01\x0a\0\0\x02\0\x07\0\x09\0\x0c\0\0ping";

struct Source {
    left: usize,
    counters: Arc<PortCounters>,
}

impl Port for Source {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let n = bufs.alloc(out, self.left.min(out.room()));
        for frame in out.as_mut_slice().iter_mut().rev().take(n) {
            bufs.arena().write(frame, FRAME);
        }
        self.left -= n;
        self.counters.rx_packets.add(n as u64);
        n
    }

    fn tx_burst(&mut self, _bufs: &mut Buffers, _frames: &mut Batch) -> usize {
        0 // takes no frames
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, _bufs: &mut Buffers) {} // holds no frames
}

/// Forwards frames of the source to the other port and frees those received there.
fn forward(cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
    if from == PortId(0) { cx.send_batch(from, PortId(1), batch) } else { cx.bufs.free(batch) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let lab = Wire::new()?;
    let socket = lab.b.enter(|| UdpSocket::bind((Wire::B, 9)))??;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut kit = Kit::new(16_384)?;
    kit.port(Box::new(Source { left: 100, counters: Arc::default() }));
    lab.r.enter(|| kit.interface("r1"))??;
    let running = kit.start(forward)?;
    let came = (0..100).take_while(|_| socket.recv(&mut [0; 64]).is_ok()).count();
    println!("{came} of 100 came");
    Ok(running.stop()?)
}
