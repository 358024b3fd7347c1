//! A twin in the kernel: what the application gives back, and what the kernel sends.

use crate::lab::{Lab, datagrams};
use bywash_engine::{App, Context, DropReason, PortId};
use bywash_frame::Batch;
use bywash_kit::Kit;
use bywash_lab::{Ping, Snapshot, Transfer, require};
use std::net::Ipv4Addr;

/// Gives frames to the twin's MAC address back to the kernel, and drops the others.
struct GiveBack {
    mac: [u8; 6],
    twin: PortId,
}

impl App for GiveBack {
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        for frame in batch.drain() {
            match cx.bufs.arena().head::<6>(&frame).is_some_and(|mac| *mac == self.mac) {
                true => cx.send(from, self.twin, frame),
                false => cx.drop(from, DropReason::Filtered, frame),
            }
        }
    }
}

const TWIN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

/// The twin is the kernel's interface on the link, with several workers, of which one has no queue.
#[test]
fn the_kernel_has_its_share_by_the_twin() {
    require!(bywash_lab::require_lab());
    let lab = Lab::new([2, 1]);
    let before = Snapshot::of(&lab.r).unwrap();
    let mut kit = Kit::new(65_536).unwrap();
    kit.workers(3);
    let twin = lab.r.enter(|| {
        let port = kit.interface("r0").unwrap();
        kit.twin(port, "k0").unwrap()
    });
    let twin = twin.unwrap();
    let mac = lab.r.run(&["cat", "/sys/class/net/k0/address"]).unwrap().stdout;
    let mac: Vec<u8> = mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let running = kit.start_with(|_| GiveBack { mac: mac.clone().try_into().unwrap(), twin }).unwrap();
    lab.r.ip(&["address", "add", "10.0.0.3/24", "dev", "k0"]).unwrap();

    let report = Ping::to(TWIN).count(5).run(&lab.a).unwrap();
    assert_eq!(report.received, 5, "{report:?}");
    // Frames from a have unfinished checksums.
    assert!(Transfer::new(1 << 20).run(&lab.a, &lab.r, TWIN).unwrap().is_intact());
    assert!(Transfer::new(1 << 20).run(&lab.r, &lab.a, Lab::A).unwrap().is_intact());
    // Flows of both queues.
    assert_eq!(datagrams(&lab.a, &lab.r, TWIN, 64), 64);
    let received: Vec<u64> = running.counters().map(|worker| worker.stages[0].packets.get()).collect();
    assert!(received[1] > 0, "{received:?}");
    running.stop().unwrap();
    let after = Snapshot::of(&lab.r).unwrap();
    assert!(before.differences(&after).is_empty(), "{:?}", before.differences(&after));
}
