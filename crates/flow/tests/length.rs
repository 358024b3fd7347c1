//! Packets of one flow that are told apart by their length: `check_pkt_larger`.

mod common;

use bywash_engine::DropReason;
use bywash_flow::app::CacheConfig;
use bywash_wire::build::Packet;
use common::rig::{Rig, add};

/// Length of the check sequence, which the length of a built packet includes and a frame does not have.
const FCS: usize = 4;
const CACHES: CacheConfig = CacheConfig { exact: 8192, insert_one_in: 1, megaflows: 200_000, idle_s: 10 };

/// Creates a switch of nine ports with these flows, in which port 9 exists, but has no flow.
fn switch(flows: &[&str]) -> Rig {
    let mut rig = Rig::new(9, CACHES, 32);
    add(&mut rig.control, flows);
    rig
}

/// Returns a UDP packet whose frame has this many bytes, of which `tags` times four are VLAN tags.
fn packet(len: usize, tags: usize) -> Vec<u8> {
    let packet = Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let mut bytes = packet.size(len + FCS - 4 * tags).build().unwrap();
    (0..tags).for_each(|_| drop(bytes.splice(12..12, [0x81, 0, 0, 5])));
    assert_eq!(bytes.len(), len);
    bytes
}

/// Returns the port that each packet left by and its length there, in the order of the packets' lengths.
fn sent(rig: &mut Rig, lengths: &[usize], tags: usize) -> Vec<(u16, usize)> {
    let packets: Vec<_> = lengths.iter().map(|len| packet(*len, tags)).collect();
    let mut sent: Vec<_> = rig.send(1, &packets).into_iter().map(|(port, bytes)| (port, bytes.len())).collect();
    sent.sort_by_key(|(port, len)| (*len, *port));
    sent
}

#[test]
fn packets_of_a_megaflow_part_by_length() {
    let by_length = [
        "actions=check_pkt_larger(100)->reg0[0],check_pkt_larger(1000)->reg0[1],resubmit(,1)",
        "table=1,reg0=0,actions=output:2",
        "table=1,reg0=1,actions=output:3",
        "table=1,reg0=3,actions=output:4,output:5",
    ];
    let mut rig = switch(&by_length);
    let lengths = [60, 1001, 100, 101, 1000, 1500];
    let right = [(2, 60), (2, 100), (3, 101), (3, 1000), (4, 1001), (5, 1001), (4, 1500), (5, 1500)];
    for _ in 0..3 {
        assert_eq!(sent(&mut rig, &lengths, 0), right);
    }
    assert_eq!(rig.counter("misses"), 1, "packets that differ in length have one megaflow");
    // The result counts in the lists that led to the one that asks, and not behind a clone.
    let outside = "actions=clone(check_pkt_larger(100)->reg0[0]),resubmit(,2),resubmit(,1)";
    let mut rig =
        switch(&[outside, "table=2,actions=check_pkt_larger(1000)->reg0[1]", by_length[1], "table=1,reg0=2,actions=4"]);
    assert_eq!(sent(&mut rig, &lengths, 0), [(2, 60), (2, 100), (2, 101), (2, 1000), (4, 1001), (4, 1500)]);
}

#[test]
fn tags_count() {
    let flows = [
        "actions=strip_vlan,check_pkt_larger(100)->reg0[0],resubmit(,1)",
        "table=1,reg0=0,actions=2",
        "table=1,reg0=1,actions=3",
    ];
    let mut rig = switch(&flows);
    assert_eq!(sent(&mut rig, &[100, 101], 0), [(2, 100), (3, 101)]);
    assert_eq!(sent(&mut rig, &[100, 104, 105], 1), [(2, 96), (2, 100), (3, 101)]);
    let mut rig = switch(&["actions=push_vlan:0x8100,check_pkt_larger(100)->reg0[0],resubmit(,1)", flows[1], flows[2]]);
    assert_eq!(sent(&mut rig, &[96, 97], 0), [(2, 100), (3, 101)]);
}

#[test]
fn each_length_has_its_reason() {
    let flows = [
        "actions=check_pkt_larger(100)->reg0[0],check_pkt_larger(200)->reg0[1],resubmit(,1)",
        "table=1,reg0=0,ip,actions=mod_nw_ttl:1,dec_ttl,output:2",
        "table=1,reg0=1,actions=drop",
        "table=1,reg0=3,actions=output:3",
    ];
    let mut rig = switch(&flows);
    assert_eq!(sent(&mut rig, &[60, 61, 150, 300], 0), [(3, 300)]);
    assert_eq!((rig.drops(DropReason::TtlExceeded), rig.drops(DropReason::FlowDrop)), (2, 1));
}

#[test]
fn lengths_are_bounded() {
    let ask = |n: usize| (1..=n).map(|n| format!("check_pkt_larger({})->reg0[0],", 100 + n)).collect::<String>();
    // The longest packets are told apart first.
    let mut rig = switch(&[&format!("actions={}output:2", ask(64))]);
    assert_eq!(sent(&mut rig, &[60, 101, 102, 164, 300], 0), [(2, 102), (2, 164), (2, 300)]);
    assert_eq!(rig.drops(DropReason::TooManyResubmits), 2);
    let mut rig = switch(&[&format!("actions={}output:2", ask(63))]);
    assert_eq!(sent(&mut rig, &[60, 101, 164], 0), [(2, 60), (2, 101), (2, 164)]);
}

/// Copies of packets of both ranges leave a port in the order they came.
#[test]
fn order_is_kept_between_lengths() {
    let mut rig = switch(&[
        "actions=check_pkt_larger(100)->reg0[0],resubmit(,1)",
        "table=1,reg0=0,actions=output:2,output:3",
        "table=1,reg0=1,actions=output:2,output:4",
    ]);
    let lengths = [60, 1500, 60, 61, 1499, 62];
    let packets: Vec<_> = lengths.iter().map(|len| packet(*len, 0)).collect();
    for _ in 0..3 {
        let sent = rig.send(1, &packets);
        let copies: Vec<_> = sent.iter().filter(|(of, _)| *of == 2).map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(copies, lengths);
    }
}
