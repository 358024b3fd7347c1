//! MPLS labels: pushed, changed and removed, and the packets behind them.

mod common;

use bywash_engine::DropReason;
use bywash_flow::app::CacheConfig;
use bywash_flow::syntax;
use bywash_wire::build::Packet;
use common::rig::{Rig, add};

const CACHES: CacheConfig = CacheConfig { exact: 8192, insert_one_in: 1, megaflows: 200_000, idle_s: 3600 };
const BOTTOM: u32 = 0x100;

/// Creates a switch of five ports with these flows.
fn switch(flows: &[&str]) -> Rig {
    let mut rig = Rig::new(5, CACHES, 32);
    add(&mut rig.control, flows);
    rig
}

fn udp<'a>() -> Packet<'a> {
    Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()).ttl(9).tos(0xb8)
}

fn plain() -> Vec<u8> {
    udp().build().unwrap()
}

/// Returns a frame with these labels in front of its packet.
fn labelled(mut frame: Vec<u8>, dl_type: u16, entries: &[u32]) -> Vec<u8> {
    frame[12..14].copy_from_slice(&dl_type.to_be_bytes());
    frame.splice(14..14, entries.iter().flat_map(|entry| entry.to_be_bytes()));
    frame
}

fn entry(label: u32, tc: u32, ttl: u32) -> u32 {
    label << 12 | tc << 9 | ttl
}

/// Returns what leaves by each port when the frame comes in on port 1, from the tables and again from the caches.
fn sent(rig: &mut Rig, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let first = rig.send(1, &[frame.to_vec()]);
    assert_eq!(rig.send(1, &[frame.to_vec()]), first, "tables and caches gave different results");
    first
}

/// Checks that the frame leaves by port 2 like this, and by no other.
fn gives(flows: &[&str], frame: &[u8], wanted: &[u8]) {
    let sent = sent(&mut switch(flows), frame);
    assert_eq!(sent, [(2, wanted.to_vec())], "{flows:?}");
}

#[test]
fn labels_are_pushed() {
    let pushed = labelled(plain(), 0x8847, &[entry(0, 6, 9) | BOTTOM]);
    gives(&["actions=push_mpls:0x8847,output:2"], &plain(), &pushed);
    let twice = labelled(plain(), 0x8848, &[entry(7, 6, 9), entry(5, 6, 9) | BOTTOM]);
    let flow = "actions=push_mpls:0x8847,set_mpls_label:5,push_mpls:0x8848,set_mpls_label:7,output:2";
    gives(&[flow], &plain(), &twice);
    // A label in front of IPv6 says so, and what has no TTL gets one.
    let v6 = Packet::udp("[fd00::1]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap()).ttl(9).build().unwrap();
    gives(&["actions=push_mpls:0x8847,output:2"], &v6, &labelled(v6.clone(), 0x8847, &[entry(2, 0, 9) | BOTTOM]));
    let mut other = plain();
    other[12..14].copy_from_slice(&[0x88, 0xb5]);
    let pushed = labelled(other.clone(), 0x8847, &[entry(0, 0, 64) | BOTTOM]);
    gives(&["actions=push_mpls:0x8847,output:2"], &other, &pushed);
    // Labels are behind the tag, whichever comes first.
    let mut tagged = labelled(plain(), 0x8847, &[entry(0, 6, 9) | BOTTOM]);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    gives(&["actions=mod_vlan_vid:7,push_mpls:0x8847,output:2"], &plain(), &tagged);
    gives(&["actions=push_mpls:0x8847,mod_vlan_vid:7,output:2"], &plain(), &tagged);
    // A packet that is changed before has its changes behind the label.
    let changed = labelled(udp().ttl(8).build().unwrap(), 0x8847, &[entry(0, 6, 8) | BOTTOM]);
    gives(&["actions=dec_ttl,push_mpls:0x8847,dec_ttl,mod_nw_tos:0,output:2"], &plain(), &changed);
}

#[test]
fn what_is_behind_labels_is_seen_once_they_are_gone() {
    let label = entry(5, 1, 64) | BOTTOM;
    let tables = [
        "table=0,priority=1,mpls,mpls_label=5,mpls_tc=1,mpls_bos=1,mpls_ttl=64,actions=pop_mpls:0x0800,resubmit(,1)",
        "table=0,priority=2,ip,actions=output:3",
        "table=1,priority=2,udp,nw_src=10.0.0.1,nw_ttl=9,tp_dst=2,\
         actions=dec_ttl,mod_nw_dst:10.0.0.9,mod_tp_dst:7,output:2",
        "table=1,priority=1,actions=output:4",
    ];
    let wanted = Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.9:7".parse().unwrap()).ttl(8).tos(0xb8);
    gives(&tables, &labelled(plain(), 0x8847, &[label]), &wanted.build().unwrap());
    // All labels go if the Ethernet type is none of MPLS.
    let deep = labelled(plain(), 0x8848, &[entry(1, 1, 1), entry(2, 2, 2), label]);
    gives(&["mplsm,actions=pop_mpls:0x0800,output:2"], &deep, &plain());
    let popped = labelled(plain(), 0x8847, &[entry(2, 2, 2), label]);
    gives(&["mplsm,actions=pop_mpls:0x8847,output:2"], &deep, &popped);
    // The packet is none of that Ethernet type.
    let frame = labelled(plain(), 0x8847, &[label]);
    let mut as_v6 = plain();
    as_v6[12..14].copy_from_slice(&[0x86, 0xdd]);
    let flows = ["mpls,actions=pop_mpls:0x86dd,resubmit(,1)", "table=1,udp6,actions=3", "table=1,ipv6,actions=2"];
    gives(&flows, &frame, &as_v6);
    // Pushed labels can be popped again.
    let flows = [
        "actions=mod_nw_src:10.0.0.7,dec_ttl,push_mpls:0x8847,resubmit(,1)",
        "table=1,priority=9,ip,actions=output:4",
        "table=1,mpls,actions=pop_mpls:0x0800,resubmit(,2)",
        "table=2,ip,nw_src=10.0.0.7,nw_ttl=8,actions=dec_ttl,output:2",
    ];
    let wanted = Packet::udp("10.0.0.7:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()).ttl(7).tos(0xb8);
    gives(&flows, &plain(), &wanted.build().unwrap());
}

#[test]
fn the_outer_label_is_changed() {
    let stack = |outer| labelled(plain(), 0x8847, &[outer, entry(6, 0, 1) | BOTTOM]);
    let swap = "mpls,mpls_label=5,actions=set_mpls_label:9,set_mpls_tc:4,dec_mpls_ttl,output:2";
    gives(&[swap], &stack(entry(5, 1, 64)), &stack(entry(9, 4, 63)));
    gives(&["mpls,actions=set_field:9->mpls_label,set_mpls_ttl:7,2"], &stack(entry(5, 1, 64)), &stack(entry(9, 1, 7)));
    let moved =
        "mpls,actions=move:OXM_OF_MPLS_LABEL[0..2]->OXM_OF_MPLS_TC[],load:3->OXM_OF_MPLS_LABEL[18..19],output:2";
    gives(&[moved], &stack(entry(5, 1, 64)), &stack(entry(0xc_0005, 5, 64)));
    // Actions on labels do nothing to a packet without.
    gives(&["actions=set_mpls_label:9,pop_mpls:0x0800,output:2"], &plain(), &plain());
    // A TTL that ends, and a packet without labels, end the list.
    let flows = ["actions=output:2,dec_mpls_ttl,output:3"];
    gives(&flows, &stack(entry(5, 1, 1)), &stack(entry(5, 1, 1)));
    gives(&flows, &plain(), &plain());
    let mut rig = switch(&["actions=dec_mpls_ttl,output:3"]);
    assert_eq!(sent(&mut rig, &stack(entry(5, 1, 1))), []);
    assert_eq!(rig.drops(DropReason::TtlExceeded), 2);
}

#[test]
fn more_than_three_labels_are_not_changed() {
    let push = |n: usize| format!("actions=output:3,{}output:2", "push_mpls:0x8847,".repeat(n));
    assert_eq!(sent(&mut switch(&[&push(3)]), &plain()).len(), 2);
    let deep = labelled(plain(), 0x8847, &[entry(1, 0, 9), entry(2, 0, 9), entry(3, 0, 9), entry(4, 0, 9) | BOTTOM]);
    for (flow, frame) in [
        (&*push(4), &plain()),
        (&push(1), &deep),
        ("actions=output:3,pop_mpls:0x8847,output:2", &deep),
        ("actions=output:3,pop_mpls:0x0800,output:2", &deep),
    ] {
        let mut rig = switch(&[flow]);
        assert_eq!(sent(&mut rig, frame), [], "{flow}");
        assert_eq!(rig.drops(DropReason::TooManyLabels), 2, "{flow}");
    }
    let mut changed = deep.clone();
    changed[14..18].copy_from_slice(&entry(7, 0, 8).to_be_bytes());
    gives(&["mpls,mpls_bos=0,actions=set_mpls_label:7,dec_mpls_ttl,output:2"], &deep, &changed);
}

/// Changes by a bucket or a clone to the labels and to the packet behind them are undone for those after it.
#[test]
fn every_copy_has_its_own_labels() {
    let label = entry(5, 1, 64) | BOTTOM;
    let frame = labelled(plain(), 0x8847, &[entry(3, 0, 2), label]);
    let other = udp().ttl(8).build().unwrap();
    let clone = "mpls,actions=clone(pop_mpls:0x0800,dec_ttl,output:3),clone(pop_mpls:0x8847,set_mpls_label:9,output:4),\
                 clone(pop_mpls:0x0800,dec_ttl,push_mpls:0x8847,output:5),output:2";
    let sent = sent(&mut switch(&[clone]), &frame);
    let wanted = [
        (3, other.clone()),
        (4, labelled(plain(), 0x8847, &[entry(9, 1, 64) | BOTTOM])),
        (5, labelled(other, 0x8847, &[entry(0, 6, 8) | BOTTOM])),
        (2, frame),
    ];
    assert_eq!(sent.len(), 4);
    wanted.iter().for_each(|one| assert!(sent.contains(one), "{one:x?} in {sent:x?}"));
}

/// The bits of labels that decide nothing tell no flows apart.
#[test]
fn labels_that_do_not_matter_share_a_megaflow() {
    let misses = |flow: &str, wanted: u64| {
        let mut rig = switch(&[flow]);
        for label in 0..20 {
            rig.send(1, &[labelled(plain(), 0x8847, &[entry(label, label & 7, 2 + label) | BOTTOM])]);
        }
        assert_eq!(rig.counter("misses"), wanted, "{flow}");
    };
    misses("actions=output:2", 1);
    misses("mpls,actions=pop_mpls:0x0800,output:2", 1);
    misses("mpls,actions=pop_mpls:0x0800,dec_ttl,mod_nw_src:10.0.0.9,output:2", 1);
    misses("mpls,mpls_bos=1,actions=set_mpls_tc:3,output:2", 8);
    misses("mpls,actions=push_mpls:0x8847,output:2", 20);
}

#[test]
fn labels_count_in_a_length() {
    let ask = "actions=push_mpls:0x8847,check_pkt_larger(100)->reg0[0],resubmit(,1)";
    let mut rig = switch(&[ask, "table=1,reg0=0,actions=output:2", "table=1,reg0=1,actions=output:3"]);
    for (len, to) in [(96, 2), (97, 3)] {
        let frame = udp().size(len + 4).build().unwrap();
        assert_eq!(frame.len(), len);
        let sent = sent(&mut rig, &frame);
        assert_eq!(sent.iter().map(|(port, bytes)| (*port, bytes.len())).collect::<Vec<_>>(), [(to, len + 4)]);
    }
}

/// Labels and the addresses of ARP have one place in the key.
#[test]
fn labels_and_addresses_are_distinguished() {
    let frame = labelled(plain(), 0x8847, &[entry(0, 0, 3) | BOTTOM]);
    gives(&["actions=output:2", "priority=9,arp,arp_sha=00:00:00:00:00:00,actions=output:3"], &frame, &frame);
    let line = "mpls,mpls_label=5,mpls_tc=1,mpls_ttl=64,mpls_bos=1 actions=push_mpls:0x8848,\
                set_mpls_label:5,set_mpls_tc:3,set_mpls_ttl:9,dec_mpls_ttl,set_field:7->mpls_label,pop_mpls:0x0800,output:2";
    let spec = syntax::flow(line, &|_| None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(syntax::Shown(&spec).to_string(), line);
}

#[test]
fn flows_that_no_packet_can_follow_are_refused() {
    let refused = |line: &str| syntax::flow(line, &|_| None).expect_err(line).what;
    for (line, why) in [
        ("mpls_label=5,actions=2", "can only be matched with mpls or mplsm"),
        ("mpls,mpls_label=0x100000,actions=2", "too large"),
        ("mpls,mpls_label=5/7,actions=2", "cannot be masked"),
        ("actions=push_mpls:0x800", "use 0x8847 or 0x8848"),
        ("mpls,actions=pop_mpls:0x806", "only IP is read after labels"),
        ("mpls,actions=pop_mpls:0x8100", "only IP is read after labels"),
        ("mpls,actions=pop_mpls:0x5ff", "only IP is read after labels"),
        ("mpls,actions=set_mpls_tc:8", "too large"),
        ("mpls,actions=set_field:1->mpls_bos", "cannot be set"),
        ("ip,actions=set_field:1->mpls_label", "in a flow that matches mpls or mplsm"),
        ("ip,actions=push_mpls:0x8847,load:1->NXM_NX_IP_TTL[]", "in a flow that matches ip or ipv6"),
    ] {
        let what = refused(line);
        assert!(what.contains(why), "{line}: {what}");
    }
    for line in [
        "ip,actions=push_mpls:0x8847,set_field:1->mpls_label,2",
        "mpls,actions=pop_mpls:0x0800,set_field:10.0.0.1->ip_src,2",
        "actions=clone(push_mpls:0x8847,load:1->OXM_OF_MPLS_LABEL[],2)",
    ] {
        syntax::flow(line, &|_| None).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}
