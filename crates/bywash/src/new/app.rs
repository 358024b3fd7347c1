//! An application on Bywash: what comes by one port leaves by the other.
//!
//! Without arguments it is tried between two hosts in a lab; with two interfaces it forwards between them.

use bywash_engine::{App, Context, PortId};
use bywash_frame::Batch;
use bywash_kit::{Kit, Running};
use bywash_lab::{Ping, Wire};
use std::error::Error;

/// Buffers for two interfaces.
const BUFFERS: usize = 16_384;

/// The application: its state on one worker.
struct Application;

impl App for Application {
    /// What `stage` below counts packets and cycles for.
    fn stages(&self) -> &'static [&'static str] {
        &["forward"]
    }

    /// A burst has come. No system call, lock, allocation or log line here: counters and published tables instead.
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let n = batch.len();
        // Yours: `cx.bufs.arena().data_mut(frame)` for each frame of `batch.as_mut_slice()` has its bytes;
        // `cx.drop(from, reason, frame)` counts one that goes nowhere.
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
        println!("forwarding between {one} and {other}; Enter ends it");
        std::io::stdin().read_line(&mut String::new())?;
        return Ok(running.stop()?);
    }
    let lab = Wire::new()?;
    let running = lab.r.enter(|| start(["r0", "r1"]))??;
    let report = Ping::to(Wire::B).count(5).run(&lab.a)?;
    running.stop()?;
    println!("{} of {} pings answered through the application", report.received, report.sent);
    if report.received == report.sent { Ok(()) } else { Err("pings were lost".into()) }
}
