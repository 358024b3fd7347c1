//! An application based on Bywash: forwards packets between two ports.
//!
//! Without arguments, it runs between two hosts in a lab; with two interfaces as arguments, it forwards between them.

use bywash_engine::{App, Context, PortId};
use bywash_frame::Batch;
use bywash_kit::{Kit, Running};
use bywash_lab::{Ping, Wire};
use std::error::Error;

/// Buffers for two interfaces.
const BUFFERS: usize = 16_384;

/// Application state of one worker.
struct Application;

impl App for Application {
    /// Names of the stages; `stage` below counts packets and cycles for them.
    fn stages(&self) -> &'static [&'static str] {
        &["forward"]
    }

    /// Processes a burst received on `from`. Must not make system calls, lock, allocate or log: use counters and
    /// published tables instead.
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let n = batch.len();
        // Your code: `cx.bufs.arena().data_mut(frame)` returns the bytes of each `frame` of `batch.as_mut_slice()`;
        // `cx.drop(from, reason, frame)` frees a frame and counts it as dropped.
        cx.send_batch(from, PortId(1 - from.0), batch);
        cx.stage(0, n);
    }
}

fn start(interfaces: [&str; 2]) -> Result<Running, bywash_kit::Error> {
    let mut kit = Kit::new(BUFFERS)?;
    for interface in interfaces {
        kit.interface(interface)?;
    }
    kit.start(Application)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [one, other] = &arguments[..] {
        let running = start([one, other])?;
        println!("forwarding between {one} and {other}; press Enter to stop");
        std::io::stdin().read_line(&mut String::new())?;
        return Ok(running.stop()?);
    }
    let lab = Wire::new()?;
    let running = lab.r.enter(|| start(["r0", "r1"]))??;
    let report = Ping::to(Wire::B).count(5).run(&lab.a)?;
    running.stop()?;
    let (sent, received) = (report.sent, report.received);
    println!("{received} of {sent} pings answered through the application");
    if received < sent {
        return Err("pings were lost".into());
    }
    Ok(())
}
