//! Actions whose effect depends on others: the action set, clones and the stack.

mod common;

use bywash_engine::PortId;
use bywash_flow::app::CacheConfig;
use bywash_flow::control::{BridgeConfig, FlowControl};
use bywash_flow::key::KEY_WORDS;
use bywash_flow::ops::Op;
use bywash_flow::pipeline::SwitchPort;
use bywash_flow::syntax;
use bywash_sync::Qsbr;
use bywash_wire::build::Packet;
use bywash_wire::checksum::checksum;
use common::rig::{Rig, add};

/// Creates a switch of nine ports with these flows. Port 9 is down.
fn switch(flows: &[&str]) -> FlowControl {
    let ports = (1..=9).map(|of| SwitchPort { up: of != 9, ..SwitchPort::numbered(of) }).collect();
    let mut control = FlowControl::new(&Qsbr::new(), ports, BridgeConfig::default());
    add(&mut control, flows);
    control
}

/// Returns the numbers of the ports that a packet leaves by, received on port 1.
fn ports(control: &FlowControl, packet: &Packet<'_>) -> Vec<u16> {
    let mut key = [0; KEY_WORDS];
    bywash_flow::extract::extract(&packet.build().unwrap(), 1, 1, &mut key).unwrap();
    let done = control.trace(&key);
    println!("{}", done.story.unwrap().join("\n"));
    done.ops.iter().filter_map(|op| if let Op::Output(PortId(id)) = op { Some(id + 1) } else { None }).collect()
}

/// Returns the numbers of the ports that an untagged UDP packet with TTL 1, received on port 1, leaves by.
fn sent(flows: &[&str]) -> Vec<u16> {
    let packet = Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()).ttl(1);
    ports(&switch(flows), &packet)
}

#[test]
fn the_action_set_is_executed_last_and_once() {
    assert_eq!(sent(&["actions=write_actions(output:2),output:3"]), [3, 2]);
    assert_eq!(sent(&["actions=write_actions(output:2),goto_table:1", "table=1,actions=write_actions(output:3)"]), [3]);
    assert_eq!(sent(&["actions=write_actions(output:2),goto_table:1", "table=1,actions=clear_actions,output:4"]), [4]);
    assert_eq!(sent(&["actions=write_actions(output:2),output:3,exit,output:4"]), [3, 2]);
    // A set without an output does nothing, and one with a TTL that cannot be decremented ends there.
    assert_eq!(sent(&["actions=write_actions(load:7->reg0[]),output:reg0[]"]), [0; 0]);
    assert_eq!(sent(&["ip,actions=write_actions(output:2,dec_ttl),output:3"]), [3]);
    // Whatever was written first, fields are set before the packet leaves.
    assert_eq!(sent(&["actions=write_actions(output:reg0[],load:7->reg0[])"]), [7]);
    // A list in the set may lead to more tables, which write to no set any more.
    let more = ["actions=write_actions(resubmit(,1))", "table=1,actions=output:5,write_actions(output:6)"];
    assert_eq!(sent(&more), [5]);
}

/// Bits of a field that an action does not set are the packet's own, for each packet of a megaflow.
#[test]
fn a_part_of_a_field_is_set_alone() {
    let echo = |ttl| Packet::echo("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 7, 1).ttl(ttl);
    for (action, at, before, after) in [
        ("load:2->NXM_NX_IP_TTL[5..6]", 22, 255, 0xdf),
        ("load:2->NXM_NX_IP_TTL[5..6]", 22, 1, 0x41),
        ("dec_ttl,load:1->NXM_NX_IP_TTL[0]", 22, 9, 9),
        ("mod_nw_ttl:64,load:1->NXM_NX_IP_TTL[0]", 22, 9, 65),
        ("load:1->NXM_OF_ICMP_TYPE[0..1]", 34, 64, 9),
        ("load:1->NXM_OF_ICMP_CODE[2]", 35, 64, 4),
    ] {
        let mut rig = Rig::new(2, CacheConfig { insert_one_in: 1, ..CacheConfig::default() }, 8);
        rig.control.add(syntax::flow(&format!("icmp,actions={action},output:2"), &|_| None).unwrap()).unwrap();
        rig.control.commit();
        let mut send = |ttl| rig.send(1, &[echo(ttl).build().unwrap()]).pop().unwrap().1;
        // Another packet makes a megaflow first.
        send(if before == 255 { 2 } else { 255 });
        for _ in 0..2 {
            let sent = send(before);
            assert_eq!(sent[at], after, "{action}");
            assert_eq!((checksum(&sent[14..34]), checksum(&sent[34..])), (0, 0), "{action}");
        }
    }
}

#[test]
fn a_clone_changes_nothing_outside() {
    assert_eq!(sent(&["actions=load:7->reg0[],clone(load:8->reg0[],output:reg0[]),output:reg0[]"]), [8, 7]);
    // `exit` ends everything, but for the action set.
    assert_eq!(sent(&["actions=write_actions(output:5),clone(output:2,exit,output:3),output:4"]), [2, 5]);
    // A clone has a copy of the action set, which it executes.
    let writes = "table=1,actions=write_actions(output:3)";
    assert_eq!(sent(&["actions=write_actions(output:2),clone(resubmit(,1))", writes]), [3, 2]);
    assert_eq!(sent(&["actions=write_actions(output:2),clone(output:4)"]), [4, 2, 2]);
    assert_eq!(sent(&["actions=clone(resubmit(,1))", writes]), [3]);
    // The same holds for the stack.
    let popped = "actions=load:2->reg0[],push:reg0[],load:3->reg0[],push:reg0[],clone(pop:reg0[],output:reg0[],\
                  load:4->reg0[],push:reg0[]),pop:reg0[],output:reg0[],pop:reg0[],output:reg0[]";
    assert_eq!(sent(&[popped]), [3, 3, 2]);
}

#[test]
fn the_stack_holds_what_was_pushed() {
    // A wider field is filled with zeros, of a longer entry the lowest bits are taken.
    assert_eq!(sent(&["actions=load:0x3f->reg0[],push:reg0[0..1],pop:reg0[],output:reg0[]"]), [3]);
    assert_eq!(sent(&["actions=load:0x24->reg0[],push:reg0[],load:0->reg0[],pop:reg0[0..2],output:reg0[]"]), [4]);
    // Popping from an empty stack has no effect.
    assert_eq!(sent(&["actions=load:5->reg0[],pop:reg0[],output:reg0[]"]), [5]);
    let full = format!("actions={}output:2", "push:reg0[],".repeat(1025));
    assert_eq!(sent(&[&full]), [0; 0]);
    // The usual way to send a packet back.
    assert_eq!(sent(&["actions=push:in_port,load:0->in_port[],output:1,output:2,pop:in_port,output:1"]), [1, 2]);
}

#[test]
fn a_bundle_uses_live_ports() {
    assert_eq!(sent(&["actions=bundle(eth_src,0,active_backup,ofport,members:99,9,3,2)"]), [3]);
    assert_eq!(sent(&["actions=bundle(eth_src,0,hrw,ofport,slaves:99,9,4)"]), [4]);
    assert_eq!(sent(&["actions=bundle(eth_src,0,hrw,ofport,members:9,99),output:2"]), [2]);
    assert_eq!(sent(&["actions=bundle_load(nw_src,0,active_backup,ofport,reg0[],members:5),output:reg0[]"]), [5]);
    let none =
        ["actions=bundle_load(nw_src,0,hrw,ofport,reg0[0..15],members:9),resubmit(,1)", "table=1,reg0=65535,actions=7"];
    assert_eq!(sent(&none), [7]);
}

/// Each choice depends on its fields only, and spreads flows over all links.
#[test]
fn links_are_chosen_by_flow() {
    let flow = |from: u8, to: u8, sport: u16, dport: u16| {
        let (from, to): ([u8; 4], [u8; 4]) = ([10, 0, 0, from], [10, 0, 0, to]);
        Packet::tcp((from, sport).into(), (to, dport).into())
    };
    for algorithm in ["modulo_n", "hash_threshold", "hrw", "iter_hash"] {
        let by = |fields: &str| {
            let choose = format!("actions=multipath({fields},7,{algorithm},7,0,reg0[]),resubmit(,1)");
            let links: Vec<String> = (0..7).map(|n| format!("table=1,reg0={n},actions=output:{}", n + 2)).collect();
            switch(&std::iter::once(choose.as_str()).chain(links.iter().map(String::as_str)).collect::<Vec<_>>())
        };
        let (all, addresses, source) = (by("symmetric_l3l4"), by("symmetric_l3"), by("nw_src"));
        let mut counts = [0; 10];
        for n in 0..200u8 {
            let there = flow(n, 201, 1000, 80);
            let way = ports(&all, &there);
            counts[usize::from(way[0])] += 1;
            assert_eq!(way, ports(&all, &flow(201, n, 80, 1000)), "both directions use one link");
            assert_eq!(ports(&addresses, &there), ports(&addresses, &flow(201, n, 7, 9)));
            assert_eq!(ports(&source, &there), ports(&source, &flow(n, 7, 7, 7)));
        }
        assert!(counts[2..9].iter().all(|count| *count > 8), "{algorithm}: {counts:?}");
        let moved = (0..200).filter(|n| ports(&all, &flow(*n, 1, 5, 5)) != ports(&all, &flow(*n, 1, 5, 6))).count();
        assert!(moved > 100, "{algorithm}: ports do not matter");
    }
}

#[test]
fn lists_are_refused_where_they_cannot_be() {
    let refused = |line: &str| syntax::flow(line, &|_| None).expect_err(line).what;
    for (inner, outer) in [
        ("goto_table:1", "write_actions"),
        ("goto_table:1", "clone"),
        ("exit", "write_actions"),
        ("meter:1", "clone"),
        ("meter:1", "write_actions"),
        ("push:reg0", "write_actions"),
        ("write_metadata:1", "clone"),
        ("clear_actions", "clone"),
        ("write_actions(1)", "clone"),
        ("clone(1)", "write_actions"),
    ] {
        let why = refused(&format!("actions={outer}({inner})"));
        assert!(why.contains("not allowed"), "{outer}({inner}): {why}");
    }
    for name in ["clone", "write_actions"] {
        let deep = format!("actions={}1{}", format!("{name}(").repeat(20_000), ")".repeat(20_000));
        let why = refused(&deep);
        assert!(why.contains("not allowed") || why.contains("too many"), "{name}: {why}");
    }
    for (line, why) in [
        ("multipath(eth_src,0,hrw,17,0,reg0[0..3])", "too few"),
        ("multipath(eth_src,0,hrw,0,0,reg0[])", "1 to 65535"),
        ("multipath(eth_dst,0,hrw,1,0,reg0[])", "unknown fields"),
        ("multipath(eth_src,0,best,1,0,reg0[])", "unknown algorithm"),
        ("multipath(eth_src,0,hrw,1,0,dl_type[])", "cannot be set"),
        ("bundle(eth_src,0,hrw,ofport,1,2)", "missing `members:`"),
        ("bundle(eth_src,0,hrw,vport,members:1)", "unknown type"),
        ("bundle_load(eth_src,0,hrw,ofport,reg0[0..7],members:1)", "too narrow"),
        ("pop:dl_type", "cannot be set"),
    ] {
        let what = refused(&format!("actions={line}"));
        assert!(what.contains(why), "{line}: {what}");
    }
}
