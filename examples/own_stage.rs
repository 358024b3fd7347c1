//! Custom stage: frames are forwarded unchanged, but every other ping of host a is dropped.
//!
//!     sudo -E cargo run -p bywash-examples --example own_stage

use bywash_engine::{App, Context, DropReason, PortId};
use bywash_frame::{Batch, Frame};
use bywash_kit::Kit;
use bywash_lab::{Ping, Wire};
use std::error::Error;

/// Offsets of the EtherType, and of the protocol and ICMP type with an IPv4 header without options.
const ETHERTYPE: usize = 12;
const PROTOCOL: usize = 23;
const ICMP_TYPE: usize = 34;

#[derive(Default)]
struct Lossy {
    pings: u64,
}

impl Lossy {
    /// The stage: returns whether to drop a frame. Called for all frames of a burst in turn, with hot caches.
    fn loses(&mut self, cx: &Context<'_>, frame: &Frame) -> bool {
        let Some(head) = cx.bufs.arena().head::<{ ICMP_TYPE + 1 }>(frame) else { return false };
        let ping = head[ETHERTYPE..ETHERTYPE + 2] == [8, 0] && head[PROTOCOL] == 1 && head[ICMP_TYPE] == 8;
        self.pings += u64::from(ping);
        ping && self.pings.is_multiple_of(2)
    }
}

impl App for Lossy {
    fn stages(&self) -> &'static [&'static str] {
        &["lossy"]
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let n = batch.len();
        for frame in batch.drain() {
            match self.loses(cx, &frame) {
                true => cx.drop(from, DropReason::Filtered, frame),
                false => cx.send(from, PortId(1 - from.0), frame),
            }
        }
        cx.stage(0, n);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let lab = Wire::new()?;
    let mut kit = Kit::new(16_384)?;
    lab.r.enter(|| kit.interface("r0").and_then(|_| kit.interface("r1")))??;
    let running = kit.start(Lossy::default())?;
    let report = Ping::to(Wire::B).count(10).run(&lab.a)?;
    println!("{} of {} answered", report.received, report.sent);
    Ok(running.stop()?)
}
