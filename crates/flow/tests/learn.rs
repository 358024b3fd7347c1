//! Flows that packets make and change: `learn` and `fin_timeout`.

mod common;

use bywash_engine::DropReason;
use bywash_flow::app::CacheConfig;
use bywash_flow::control::BridgeConfig;
use bywash_flow::model::FlowFilter;
use bywash_flow::syntax::{self, Shown};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use common::rig::{Rig, add};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn switch(flows: &[&str]) -> Rig {
    let mut rig = Rig::new(5, CacheConfig { insert_one_in: 1, ..CacheConfig::default() }, 32);
    add(&mut rig.control, flows);
    rig
}

fn packet(from: u8, to: u8) -> Vec<u8> {
    let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
    let ends = (([10, 0, 0, from], 1000 + u16::from(from)).into(), ([10, 0, 0, to], 53).into());
    Packet::udp(ends.0, ends.1).macs(mac(from), mac(to)).size(64).build().unwrap()
}

/// Sends a packet, lets the control side learn from it, and returns the ports it left by.
fn send(rig: &mut Rig, of: u16, packet: &[u8]) -> Vec<u16> {
    let mut sent: Vec<u16> = rig.send(of, &[packet.to_vec()]).iter().map(|(port, _)| *port).collect();
    rig.control.poll();
    sent.sort_unstable();
    sent
}

/// Returns the flows of a table.
fn learned(rig: &Rig, table: u8) -> Vec<String> {
    let flows = rig.control.flows(&FlowFilter { table: Some(table), ..FlowFilter::default() });
    flows.iter().map(|flow| Shown(&flow.rule.spec).to_string()).collect()
}

/// A learning bridge made of flows, as in OVS's tutorial.
const BRIDGE: [&str; 4] = [
    "actions=learn(table=10,idle_timeout=300,NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],\
     load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]),resubmit(,10),resubmit(,11)",
    "table=10,priority=0,actions=load:0->NXM_NX_REG0[0..15]",
    "table=11,reg0=0,actions=flood",
    "table=11,priority=10,actions=output:NXM_NX_REG0[0..15]",
];

#[test]
fn a_bridge_of_flows_learns_addresses() {
    let mut rig = switch(&BRIDGE);
    assert_eq!(send(&mut rig, 1, &packet(1, 2)), [2, 3, 4, 5]);
    assert_eq!(send(&mut rig, 2, &packet(2, 1)), [1]);
    assert_eq!(send(&mut rig, 1, &packet(1, 2)), [2]);
    assert_eq!(
        learned(&rig, 10)[..2],
        [1, 2].map(|n| format!(
            "table=10, idle_timeout=300, vlan_tci=0x0000/0x0fff,dl_dst=02:00:00:00:00:0{n} actions=load:{n:#x}->NXM_NX_REG0[0..15]"
        ))
    );
    // The station moves.
    assert_eq!(send(&mut rig, 4, &packet(1, 2)), [2]);
    assert_eq!(send(&mut rig, 2, &packet(2, 1)), [4]);
    assert_eq!(rig.control.len(), 6);
    assert_eq!(send(&mut rig, 1, &packet(1, 2)), [2]);
    assert_eq!(send(&mut rig, 2, &packet(2, 1)), [1], "the packet came from a flow in the cache");
}

#[test]
fn flows_are_made_of_values_and_fields() {
    let mut rig = switch(&[
        "udp,actions=load:3->reg1[],learn(table=2,priority=7,cookie=0x5,hard_timeout=9,eth_type=0x800,nw_proto=17,\
         udp_dst=udp_src,NXM_OF_IP_SRC[8..31],load:0x2a->NXM_NX_REG0[0..7],load:nw_dst->nw_src,output:in_port,output:reg1)",
    ]);
    let rule = "cookie=0x5, table=2, hard_timeout=9, priority=7,udp,nw_src=10.0.0.0/24,tp_dst=1001 \
                actions=load:0x2a->NXM_NX_REG0[0..7],load:0xa000002->NXM_OF_IP_SRC[],output:1,output:3";
    send(&mut rig, 1, &packet(1, 2));
    assert_eq!(learned(&rig, 2), [rule]);
    // Packets that differ in a field that the flow is made of have another megaflow.
    send(&mut rig, 1, &packet(4, 2));
    send(&mut rig, 1, &packet(1, 2));
    assert_eq!(learned(&rig, 2), [rule.to_owned(), rule.replace("tp_dst=1001", "tp_dst=1004")]);
    // No port has this number.
    let mut rig = switch(&["actions=load:0xfffa->reg1[],learn(table=2,eth_src,output:reg1)"]);
    send(&mut rig, 1, &packet(1, 2));
    assert_eq!(learned(&rig, 2), ["table=2, dl_src=02:00:00:00:00:01 actions=drop"]);
}

#[test]
fn learned_flows_are_bounded_and_counted() {
    let mut rig = switch(&["actions=learn(table=2,cookie=0x9,limit=3,eth_src,output:in_port),output:2"]);
    add(&mut rig.control, &["table=2,cookie=0x9,actions=drop", "table=2,cookie=0x8,arp,actions=drop"]);
    for n in [1, 2, 1, 3, 4] {
        assert_eq!(send(&mut rig, 1, &packet(n, 9)), [2]);
    }
    assert_eq!((learned(&rig, 2).len(), rig.control.not_learned), (4, 2));
    let many = format!("actions={}output:2", "learn(table=3,eth_src,output:in_port),".repeat(65));
    let mut rig = switch(&[&many]);
    assert_eq!(send(&mut rig, 1, &packet(1, 2)), [0; 0]);
    assert_eq!((rig.drops(DropReason::TooManyResubmits), rig.control.len()), (1, 2));
}

#[test]
fn a_learned_flow_is_refreshed_by_the_packets_that_made_it() {
    let mut rig = switch(&["actions=learn(table=2,hard_timeout=2,eth_src,output:in_port),output:2"]);
    let all = FlowFilter { table: Some(2), ..FlowFilter::default() };
    send(&mut rig, 1, &packet(1, 2));
    // Deleted, it comes back with the next packet.
    assert_eq!(rig.control.delete(&all, false), 1);
    rig.control.commit();
    send(&mut rig, 1, &packet(1, 2));
    assert_eq!(learned(&rig, 2).len(), 1);
    // In use, it becomes older than its timeout.
    let begin = Instant::now();
    while rig.control.flows(&all).iter().all(|flow| flow.age < Duration::from_secs(3)) {
        send(&mut rig, 1, &packet(1, 2));
        rig.control.expire();
        assert!(begin.elapsed() < PATIENCE, "the flow is not refreshed");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Unused, it expires.
    let begin = Instant::now();
    while !learned(&rig, 2).is_empty() {
        assert!(begin.elapsed() < PATIENCE, "the flow did not expire");
        rig.control.poll();
        rig.control.expire();
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_flow_expires_sooner_when_its_connection_has_ended() {
    let fin = "fin_timeout(idle_timeout=20,hard_timeout=9)";
    let mut rig = switch(&[
        &format!("tcp,hard_timeout=8,actions={fin},output:2"),
        "table=1,actions=drop",
        "udp,actions=learn(table=2,dl_type=0x800,nw_proto=6,nw_dst=nw_src,fin_idle_timeout=3,output:in_port),output:2",
    ]);
    let tcp = |flags: u8| {
        let mut bytes = Packet::tcp(([10, 0, 0, 1], 7).into(), ([10, 0, 0, 2], 8).into()).build().unwrap();
        bytes[47] = flags;
        bytes
    };
    let flow = |rig: &Rig| learned(rig, 0)[0].clone();
    let before = format!("hard_timeout=8, tcp actions={fin},output:2");
    assert_eq!((send(&mut rig, 1, &tcp(0x10)), flow(&rig)), (vec![2], before.clone()));
    // ACK and SYN have the same megaflow, FIN another.
    assert_eq!((send(&mut rig, 1, &tcp(2)), flow(&rig), rig.counter("misses")), (vec![2], before.clone(), 1));
    assert_eq!(send(&mut rig, 1, &tcp(0x11)), [2]);
    assert_eq!((flow(&rig), rig.counter("misses")), (format!("idle_timeout=20, {before}"), 2));
    // A learned flow can have the same action.
    send(&mut rig, 1, &packet(1, 2));
    let shown = "table=2, tcp,nw_dst=10.0.0.1 actions=fin_timeout(idle_timeout=3),output:1";
    assert_eq!(learned(&rig, 2), [shown]);
}

#[test]
fn learned_flows_go_with_the_last_flow_that_learns_them() {
    let learn = "actions=learn(table=2,cookie=0x7,delete_learned,eth_src,output:in_port)";
    let mut rig = switch(&[learn, &format!("priority=1,arp,{learn}"), "table=2,actions=drop"]);
    send(&mut rig, 1, &packet(1, 2));
    assert_eq!(learned(&rig, 2).len(), 2);
    // Another flow still learns them, and so does one that replaces the last.
    let delete = |rig: &mut Rig, filter: &str| {
        rig.control.delete(&syntax::filter(filter, &|_| None, false).unwrap(), false);
        rig.control.commit();
    };
    delete(&mut rig, "table=0,arp");
    add(&mut rig.control, &[learn]);
    assert_eq!(learned(&rig, 2).len(), 2);
    delete(&mut rig, "table=0");
    assert_eq!(learned(&rig, 2), ["table=2,  actions=drop"]);
}

#[test]
fn what_is_shown_is_what_was_written() {
    for line in [
        "actions=learn(table=1)",
        "tcp actions=fin_timeout(hard_timeout=4),output:2",
        "actions=learn(table=1,fin_idle_timeout=4,fin_hard_timeout=5,dl_type=0x800,nw_proto=6)",
        "actions=learn(table=9,idle_timeout=4,hard_timeout=8,priority=3,delete_learned,cookie=0x5,limit=6,dl_type=0x806,\
         NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],NXM_OF_IN_PORT[],load:0x3->NXM_NX_REG1[4..7],\
         load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15],output:NXM_NX_REG2[],NXM_NX_REG3[0..1]=0x2),output:2",
    ] {
        assert_eq!(Shown(&syntax::flow(line, &|_| None).unwrap()).to_string().trim(), line);
    }
}

/// A report that is still on its way when the flow that learned has gone makes no flow.
#[test]
fn nothing_is_learned_for_a_flow_that_has_gone() {
    let mut rig = switch(&BRIDGE);
    rig.send(1, &[packet(1, 2)]);
    rig.control.delete(&FlowFilter { table: Some(0), ..FlowFilter::default() }, false);
    rig.control.commit();
    rig.control.poll();
    assert_eq!(learned(&rig, 10).len(), 1, "{:?}", learned(&rig, 10));
    assert_eq!(rig.control.not_learned, 0);
}

/// Packets cannot fill the tables: what they make is bounded by itself, and what the user adds is not.
#[test]
fn learned_flows_are_bounded() {
    let config = BridgeConfig { learn_interval: Duration::ZERO, learned: 3, ..BridgeConfig::default() };
    let mut rig = Rig::configured(5, CacheConfig { insert_one_in: 1, ..CacheConfig::default() }, 32, None, config);
    add(&mut rig.control, &BRIDGE);
    for from in 1..=9 {
        send(&mut rig, 1, &packet(from, 99));
    }
    assert_eq!((learned(&rig, 10).len(), rig.control.not_learned), (3 + 1, 6));
    add(&mut rig.control, &["table=20,actions=drop"]);
    rig.control.delete(&FlowFilter { table: Some(10), ..FlowFilter::default() }, false);
    rig.control.commit();
    send(&mut rig, 1, &packet(20, 99));
    assert_eq!(learned(&rig, 10).len(), 1, "there is room again");
}
