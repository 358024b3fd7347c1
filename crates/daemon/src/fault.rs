//! Faults that tests ask for, in builds with debug assertions only.
//!
//! `BYWASH_FAULT_LENGTH=777` makes a worker panic when it receives a frame of 777 bytes. `BYWASH_FAULT_DEVICE="r0 deaf
//! 1"` makes interface r0 a device whose zero-copy sockets receive nothing the first time they are opened; `mute` is
//! one that sends nothing.

use bywash_engine::{App, Context, PortId};
use bywash_frame::{Batch, Buffers, Frame};
use bywash_port::{Port, PortCounters};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of times that the sockets of the broken device have been opened.
static OPENED: AtomicU32 = AtomicU32::new(0);
/// Frames that a mute device keeps.
const KEPT: usize = 1024;

/// Wraps the end of a socket that may be zero-copy so that the device seems to have zero-copy and a broken driver, if a
/// test asks for that.
pub fn device(interface: &str, port: Box<dyn Port>) -> Result<Box<dyn Port>, Box<dyn Port>> {
    let asked = std::env::var("BYWASH_FAULT_DEVICE").unwrap_or_default();
    let mut asked = asked.split(' ');
    if asked.next() != Some(interface) {
        return Err(port);
    }
    let deaf = asked.next() == Some("deaf");
    let times = asked.next().and_then(|times| times.parse().ok()).unwrap_or(0);
    match OPENED.fetch_add(1, Ordering::Relaxed) < times {
        true => Ok(Box::new(Broken { port, deaf, kept: vec![], counters: Arc::default() })),
        false => Err(port),
    }
}

/// End of a broken device.
struct Broken {
    port: Box<dyn Port>,
    /// True if it receives nothing, false if it sends nothing.
    deaf: bool,
    kept: Vec<Frame>,
    counters: Arc<PortCounters>,
}

impl Port for Broken {
    bywash_port::by_port!(port: housekeep, wait_fd, state, max_frame, details);

    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        if self.deaf {
            let mut lost = Batch::new();
            self.port.rx_burst(bufs, &mut lost);
            bufs.free(&mut lost);
            return 0;
        }
        let n = self.port.rx_burst(bufs, out);
        self.counters.rx_packets.add(n as u64);
        n
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        if self.deaf {
            let n = self.port.tx_burst(bufs, frames);
            self.counters.tx_packets.add(n as u64);
            return n;
        }
        let n = frames.len();
        if self.kept.len() + n > KEPT {
            return 0;
        }
        self.kept.extend(frames.drain());
        self.counters.tx_waiting.set(self.kept.len() as u64);
        self.counters.tx_packets.add(n as u64);
        n
    }

    fn held(&self) -> usize {
        self.port.held() + self.kept.len()
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.kept.drain(..).for_each(|frame| bufs.free_one(frame));
        self.port.close(bufs);
    }
}

/// Application that panics on receiving a burst that contains such a frame.
struct Faulty {
    app: Box<dyn App>,
    length: usize,
}

/// Makes all applications panic as asked for, if at all.
pub fn inject(apps: Vec<Box<dyn App>>) -> Vec<Box<dyn App>> {
    let length = std::env::var("BYWASH_FAULT_LENGTH").ok().and_then(|text| text.parse().ok());
    let Some(length) = length else { return apps };
    tracing::warn!("a test asks for panics: workers fail when they receive a frame of {length} bytes");
    apps.into_iter().map(|app| Box::new(Faulty { app, length }) as Box<dyn App>).collect()
}

impl App for Faulty {
    fn stages(&self) -> &'static [&'static str] {
        self.app.stages()
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let asked = batch.as_slice().iter().any(|frame| frame.len() == self.length);
        assert!(!asked, "a test asked for it");
        self.app.process(cx, from, batch);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.app.turn(cx)
    }

    fn held(&self) -> usize {
        self.app.held()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.app.close(cx);
    }

    fn recover(&mut self) -> bool {
        self.app.recover()
    }
}
