//! Checksums that a veth's peer leaves to hardware.

use crate::lab::Lab;
use bywash_engine::{Context, PortId};
use bywash_frame::Batch;
use bywash_kit::Kit;
use bywash_lab::{Transfer, require};

#[test]
fn frames_have_complete_checksums() {
    require!(bywash_lab::require_lab());
    let lab = Lab::new([1, 1]);
    let mut kit = Kit::new(16_384).unwrap();
    lab.r.enter(|| kit.interface("r0").and_then(|_| kit.interface("r1")).unwrap()).unwrap();
    let forward = |cx: &mut Context<'_>, from: PortId, batch: &mut Batch| {
        cx.send_batch(from, PortId(1 - from.0), batch);
    };
    let running = kit.start(forward).unwrap();
    let report = Transfer::new(1 << 20).run(&lab.a, &lab.b, Lab::B).unwrap();
    assert!(report.is_intact(), "{report:?}");
    running.stop().unwrap();
}
