//! Custom application: answers ARP requests and pings itself, for an address that no host has.
//!
//!     sudo -E cargo run -p bywash-examples --example own_app

use bywash_engine::{App, Context, DropReason, PortId};
use bywash_frame::Batch;
use bywash_kit::Kit;
use bywash_lab::{Ping, Wire};
use std::error::Error;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
const ADDRESS: [u8; 4] = [10, 0, 0, 99];

struct Responder;

/// Turns a request for this application's address into the answer, in place. Returns false for all other packets.
fn answer(data: &mut [u8]) -> bool {
    let Some(head) = data.first_chunk_mut::<42>() else { return false };
    if head[12..14] == [8, 6] && head[20..22] == [0, 1] && head[38..] == ADDRESS {
        // ARP request: the sender becomes the target of the reply.
        head.copy_within(22..32, 32);
        head[21] = 2;
        head[22..28].copy_from_slice(&MAC);
        head[28..32].copy_from_slice(&ADDRESS);
    } else if head[12..15] == [8, 0, 0x45] && head[23] == 1 && head[30..34] == ADDRESS && head[34] == 8 {
        // ICMP echo request: swap the addresses; the checksum grows by as much as the type shrinks.
        head[26..34].rotate_left(4);
        head[34] = 0;
        let sum = u32::from(u16::from_be_bytes([head[36], head[37]])) + 0x0800;
        head[36..38].copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
    } else {
        return false;
    }
    head.copy_within(6..12, 0);
    head[6..12].copy_from_slice(&MAC);
    true
}

impl App for Responder {
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        for mut frame in batch.drain() {
            match answer(cx.bufs.arena().data_mut(&mut frame)) {
                true => cx.send(from, from, frame),
                false => cx.drop(from, DropReason::Filtered, frame),
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let lab = Wire::new()?;
    let mut kit = Kit::new(16_384)?;
    lab.r.enter(|| kit.interface("r0"))??;
    let running = kit.start(Responder)?;
    let report = Ping::to(std::net::Ipv4Addr::from(ADDRESS)).count(10).run(&lab.a)?;
    println!("{} of {} answered", report.received, report.sent);
    Ok(running.stop()?)
}
