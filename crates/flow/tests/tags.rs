//! Two VLAN tags: pushed, seen and removed, and the packets behind them.

mod common;

use bywash_engine::DropReason;
use bywash_flow::app::CacheConfig;
use bywash_flow::control::BridgeConfig;
use bywash_flow::pipeline::Vlans;
use bywash_flow::syntax;
use bywash_wire::build::Packet;
use common::rig::{Rig, Sent, add, ports};
use std::time::Duration;

const CACHES: CacheConfig = CacheConfig { exact: 8192, insert_one_in: 1, megaflows: 200_000, idle_s: 3600 };

/// Creates a switch of five ports with these flows, which see this number of tags.
fn switch(vlan_limit: usize, flows: &[&str]) -> Rig {
    let config = BridgeConfig { vlan_limit, learn_interval: Duration::ZERO, ..BridgeConfig::default() };
    let mut rig = Rig::configured(5, CACHES, 32, None, config);
    add(&mut rig.control, flows);
    rig
}

fn udp<'a>() -> Packet<'a> {
    Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()).ttl(9)
}

/// Returns the packet with these tags, outer tag first.
fn tagged(packet: Packet<'_>, tags: &[(u16, u16)]) -> Vec<u8> {
    let mut frame = packet.build().unwrap();
    frame.splice(12..12, tags.iter().flat_map(|(tpid, tci)| [tpid.to_be_bytes(), tci.to_be_bytes()].concat()));
    frame
}

/// Returns what leaves by each port when the frame comes in on port 1, from the tables and again from the caches.
fn sent(rig: &mut Rig, frame: &[u8]) -> Sent {
    let first = rig.send(1, &[frame.to_vec()]);
    assert_eq!(rig.send(1, &[frame.to_vec()]), first, "tables and caches gave different results");
    first
}

#[test]
fn the_inner_tag_is_seen_behind_the_outer() {
    let flows = [
        "table=0,dl_vlan=7,udp,tp_dst=2,actions=strip_vlan,resubmit(,1)",
        "table=1,dl_vlan=5,dl_vlan_pcp=3,ip,nw_ttl=9,\
         actions=dec_ttl,mod_nw_src:10.0.0.9,mod_vlan_vid:6,push_vlan:0x88a8,mod_vlan_vid:8,output:2",
        "table=0,priority=1,dl_type=0x8100,actions=output:3",
    ];
    let frame = tagged(udp(), &[(0x88a8, 7), (0x8100, 0x6005)]);
    let changed = Packet::udp("10.0.0.9:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()).ttl(8);
    let wanted = tagged(changed, &[(0x88a8, 8), (0x8100, 0x6006)]);
    assert_eq!(sent(&mut switch(2, &flows), &frame), [(2, wanted.clone())]);
    assert_eq!(sent(&mut switch(0, &flows), &frame), [(2, wanted)], "0 is the most");
    // With one tag read, the inner one is the Ethernet type; with two, a third is.
    assert_eq!(sent(&mut switch(1, &flows), &frame), [(3, frame)]);
    let three = tagged(udp(), &[(0x88a8, 7), (0x8100, 5), (0x8100, 4)]);
    assert_eq!(sent(&mut switch(2, &flows), &three), [(3, three)]);
}

/// A tag that is pushed in front of two removes the inner of them, and no more can be pushed in one flow.
#[test]
fn there_are_two_tags_at_most() {
    let flows =
        ["actions=push_vlan:0x8100,mod_vlan_vid:3,output:2,pop_vlan,output:3,pop_vlan,output:4,pop_vlan,output:5"];
    let frame = tagged(udp(), &[(0x88a8, 7), (0x8100, 5), (0x8100, 4)]);
    let wanted = [
        (2, tagged(udp(), &[(0x8100, 3), (0x88a8, 7), (0x8100, 4)])),
        (3, tagged(udp(), &[(0x88a8, 7), (0x8100, 4)])),
        (4, tagged(udp(), &[(0x8100, 4)])),
        (5, tagged(udp(), &[(0x8100, 4)])),
    ];
    let mut got = sent(&mut switch(2, &flows), &frame);
    got.sort();
    assert_eq!(got, wanted);
    let refused = |line: &str| syntax::flow(line, &|_| None).unwrap_err().what;
    let thrice = "actions=push_vlan:0x8100,push_vlan:0x8100,push_vlan:0x8100,output:1";
    assert!(refused(thrice).contains("more than 2 tags"), "{}", refused(thrice));
    assert!(refused("dl_vlan=5,actions=push_vlan:0x8100,push_vlan:0x88a8,output:1").contains("more than 2 tags"));
    let line = "dl_vlan=5,actions=push_vlan:0x8100,pop_vlan,push_vlan:0x88a8,set_field:4097->vlan_vid,output:1";
    syntax::flow(line, &|_| None).unwrap();
    assert!(refused("dl_vlan=5,actions=pop_vlan,set_field:4097->vlan_vid").contains("dl_vlan"));
}

/// The inner tag makes megaflows of its own only where it decides something.
#[test]
fn megaflows_of_packets_with_two_tags() {
    let misses = |flows: &[&str], frames: &[Vec<u8>]| {
        let mut rig = switch(2, flows);
        let sent: usize = frames.iter().map(|frame| rig.send(1, std::slice::from_ref(frame)).len()).sum();
        assert_eq!(sent, frames.len());
        rig.counter("misses")
    };
    let frames: Vec<Vec<u8>> = (1..=50).map(|vid| tagged(udp(), &[(0x88a8, 7), (0x8100, vid)])).collect();
    assert_eq!(misses(&["dl_vlan=7,actions=dec_ttl,output:2"], &frames), 1);
    assert_eq!(misses(&["dl_vlan=7,actions=mod_vlan_vid:9,output:2"], &frames), 1);
    let popped = ["dl_vlan=7,actions=pop_vlan,resubmit(,1)", "table=1,actions=output:2"];
    assert_eq!(misses(&popped, &frames), 50);
    // One tag or two, the IP packet behind is the same.
    let mixed = [tagged(udp(), &[(0x8100, 7)]), tagged(udp(), &[(0x8100, 7), (0x8100, 7)])];
    assert_eq!(misses(&["udp,actions=mod_nw_dst:10.0.0.7,output:2"], &mixed), 2);
}

/// `normal` knows a packet's VLAN by the outer tag. An access port gets neither tag, and no flooded packets with two.
#[test]
fn the_bridge_and_two_tags() {
    let mut rig = switch(2, &["actions=NORMAL"]);
    let mut list = ports(5);
    list[1].vlans = Vlans::Access(7);
    list[2].vlans = Vlans::Trunk(vec![7]);
    list[3].vlans = Vlans::Trunk(vec![5]);
    rig.control.set_ports(list, &[], vec![]);
    let frame = tagged(udp(), &[(0x88a8, 7), (0x8100, 5)]);
    assert_eq!(sent(&mut rig, &frame), [(3, frame.clone()), (5, frame.clone())]);
    // A tag within the VLAN that has neither a VLAN nor a priority is removed.
    let within = |tci| tagged(udp(), &[(0x88a8, 7), (0x8100, tci)]);
    let single = tagged(udp(), &[(0x88a8, 7)]);
    let bare = udp().build().unwrap();
    let empty = within(0);
    let mut got = sent(&mut rig, &empty);
    got.sort();
    assert_eq!(got, [(2, bare.clone()), (3, single.clone()), (5, single)]);
    let priority = within(0x2000);
    let mut got = sent(&mut rig, &priority);
    got.sort();
    assert_eq!(got, [(2, bare.clone()), (3, priority.clone()), (5, priority)]);
    // Packets to an address that was learned on an access port leave without both tags.
    let back = Packet::udp("10.0.0.2:2".parse().unwrap(), "10.0.0.1:1".parse().unwrap());
    let mut back = back.build().unwrap();
    let (to, from) = (bare[6..12].to_vec(), bare[..6].to_vec());
    back[..6].copy_from_slice(&to);
    back[6..12].copy_from_slice(&from);
    rig.send(2, &[back]);
    rig.control.poll();
    rig.settle(2);
    assert_eq!(sent(&mut rig, &frame), [(2, bare)]);
    assert_eq!(rig.drops(DropReason::BridgeFiltered), 0);
}
