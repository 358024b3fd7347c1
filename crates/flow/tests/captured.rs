//! Packets that flows show to captures: `controller` and `sample`.

mod common;

use bywash_engine::DropReason;
use bywash_flow::app::CacheConfig;
use bywash_port::{Happened, Records};
use bywash_wire::build::Packet;
use common::rig::{Rig, add};

fn switch(flows: &[&str]) -> Rig {
    let mut rig = Rig::new(4, CacheConfig { insert_one_in: 1, ..CacheConfig::default() }, 32);
    add(&mut rig.control, flows);
    rig
}

fn packet(n: u8) -> Vec<u8> {
    Packet::udp(([10, 0, 0, n], 1).into(), ([10, 0, 0, 9], 2).into()).ttl(9).size(68).build().unwrap()
}

/// Returns the reason and the TTL of each captured packet.
fn shown(records: &mut Records) -> Vec<(DropReason, u8)> {
    let mut all = vec![];
    records
        .drain(|record| {
            let Happened::Dropped(reason) = record.happened else { panic!("{record:?}") };
            let reasons = bywash_engine::DROP_REASONS;
            all.push((reasons[usize::from(reason)], record.bytes[22]));
            Ok(())
        })
        .unwrap();
    all
}

/// Sends three packets twice and returns how many are sent, how many are captured, and the TTLs of those captured of
/// the first packet.
fn run(flow: &str) -> (usize, usize, Vec<u8>) {
    use DropReason::{Controller, Sampled};
    let mut rig = switch(&[flow]);
    let mut records = rig.capture(&[Controller, Sampled]);
    rig.settle(2);
    let first = rig.send(1, &[packet(1)]).len();
    let ttls = shown(&mut records).iter().map(|(_, ttl)| *ttl).collect();
    let more = [packet(1), packet(2), packet(1), packet(3), packet(3)];
    let sent = first + rig.send(1, &more).len();
    let captured = rig.drops(Controller) + rig.drops(Sampled);
    // Each packet that came, and each copy, was sent or dropped.
    assert_eq!(6 + rig.copies(), (sent as u64) + captured + rig.drops(DropReason::FlowDrop), "{flow}");
    // A packet for a controller is not dropped by the flow as well.
    assert!(!flow.contains("controller") || rig.drops(DropReason::FlowDrop) == 0, "{flow}");
    (sent, captured as usize, ttls)
}

#[test]
fn what_a_controller_would_get_is_captured() {
    assert_eq!(run("actions=controller"), (0, 6, vec![9]));
    assert_eq!(run("actions=CONTROLLER:65535,output:2"), (6, 6, vec![9]));
    assert_eq!(run("actions=output:2,controller(max_len=65535)"), (6, 6, vec![9]));
    // Each is the packet as it is at that place.
    assert_eq!(run("ip,actions=controller,dec_ttl,output:2,output:controller"), (6, 12, vec![9, 8]));
    assert_eq!(run("ip,actions=output:2,dec_ttl,controller"), (6, 6, vec![8]));
    assert_eq!(run("ip,actions=dec_ttl,controller,dec_ttl"), (0, 6, vec![8]));
}

#[test]
fn samples_are_captured() {
    assert_eq!(run("ip,actions=dec_ttl,sample(probability=65535),output:2"), (6, 6, vec![8]));
    assert_eq!(run("ip,actions=output:2,sample(probability=65535)"), (6, 6, vec![9]));
    assert_eq!(run("ip,actions=sample(probability=65535)"), (0, 6, vec![9]));
    assert_eq!(run("ip,actions=output:2,dec_ttl,sample(probability=65535)"), (6, 6, vec![8]));
    let mut rig = switch(&["actions=sample(probability=16384),output:2"]);
    const N: u64 = 8000;
    for _ in 0..N / 32 {
        assert_eq!(rig.send(1, &vec![packet(1); 32]).len(), 32);
    }
    // The share sampled is a quarter, within six standard deviations.
    let (sampled, off) = (rig.drops(DropReason::Sampled), (N * 3 / 16).isqrt() * 6);
    assert!(sampled.abs_diff(N / 4) <= off, "{sampled} of {N} packets");
}
