//! Robustness against faulty configurations and attacks: endless tables, floods against the caches, truncated headers.

mod common;

use bywash_engine::DropReason;
use bywash_flow::app::CacheConfig;
use bywash_flow::control::{BridgeConfig, FlowControl};
use bywash_flow::megaflow::MASKS;
use bywash_flow::model::FlowFilter;
use bywash_flow::syntax;
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use common::generate::{self, Random};
use common::rig::{Rig, Sent, add};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Inserts every key into the exact-match cache, and lets no megaflow time out, however slow the machine.
const EAGER: CacheConfig = CacheConfig { exact: 8192, insert_one_in: 1, megaflows: 200_000, idle_s: 3600 };

fn clear(control: &mut FlowControl) {
    control.delete_group(None);
    control.delete(&FlowFilter::default(), false);
    control.commit();
}

fn group(control: &mut FlowControl, line: &str) -> Result<(), String> {
    let spec = syntax::group(line, &|_| None).unwrap_or_else(|e| panic!("{line}: {e}"));
    control.set_group(spec, true).map_err(|refused| refused.0)?;
    control.commit();
    Ok(())
}

/// Returns a packet from the n-th source, whose Ethernet address contains the number too.
fn udp(n: u32, to: Ipv4Addr) -> Vec<u8> {
    let [_, a, b, c] = n.to_be_bytes();
    let from = SocketAddr::from((Ipv4Addr::new(10, a, b, c), 0));
    let macs = (MacAddr([2, 0, 0, a, b, c]), MacAddr([2, 0, 0, 0, 0, 9]));
    Packet::udp(from, (to, 9).into()).macs(macs.0, macs.1).size(64).build().unwrap()
}

const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Returns the egress port of each packet sent.
fn ports(sent: &Sent) -> Vec<u16> {
    sent.iter().map(|(port, _)| *port).collect()
}

#[test]
fn lists_within_lists_are_refused() {
    for list in ["write_actions(", "clone("] {
        let line = format!("actions={}output:1{}", list.repeat(100_000), ")".repeat(100_000));
        assert!(syntax::flow(&line, &|_| None).is_err(), "{list}");
    }
}

#[test]
fn what_has_no_end_is_stopped() {
    let mut rig = Rig::new(3, EAGER, 32);
    let last = |n: u8| format!("table={n},actions=output:2");
    let twice = |n: u8| format!("table={n},actions=resubmit(,{0}),resubmit(,{0})", n + 1);
    let endless: [Vec<String>; 4] = [
        vec!["actions=resubmit(,0)".into()],
        vec!["actions=resubmit(,0),resubmit(,0),output:2".into()],
        // Each path ends, but there are 2 to the 60th of them.
        (0..60).map(twice).chain([last(60)]).collect(),
        vec!["actions=group:1".into()],
    ];
    for (flows, dropped) in endless.iter().zip(1..) {
        clear(&mut rig.control);
        for n in (1..60).rev() {
            let line = format!("group_id={n},type=all,bucket=group:{0},bucket=group:{0}", n + 1);
            group(&mut rig.control, &line).unwrap();
        }
        add(&mut rig.control, flows);
        assert_eq!(rig.send(1, &[udp(1, HOST)]), vec![], "{}", flows[0]);
        assert_eq!(rig.drops(DropReason::TooManyResubmits), dropped, "{}", flows[0]);
        // The worker still forwards afterwards.
        add(&mut rig.control, &["priority=40000,ip,actions=output:3"]);
        assert_eq!(ports(&rig.send(1, &[udp(1, HOST)])), [3]);
    }
}

#[test]
fn groups_that_watch_each_other_are_looked_at_so_often_and_no_more() {
    let mut rig = Rig::new(3, EAGER, 32);
    let bucket = |watched: u32| format!("bucket=watch_group:{watched},output:2,").repeat(40);
    for n in 1..=8 {
        group(&mut rig.control, &format!("group_id={n},type=ff,{}", bucket(n % 8 + 1).trim_end_matches(','))).unwrap();
    }
    add(&mut rig.control, &["actions=group:1"]);
    assert_eq!(rig.send(1, &[udp(1, HOST)]), vec![]);
    // Make one bucket live.
    let live = syntax::group("group_id=2,type=ff,bucket=watch_port:3,output:3", &|_| None).unwrap();
    rig.control.set_group(live, false).unwrap();
    rig.control.commit();
    assert_eq!(ports(&rig.send(1, &[udp(1, HOST)])), [2]);
}

#[test]
fn a_group_that_runs_itself_is_refused() {
    let mut rig = Rig::new(2, EAGER, 32);
    let refused = |control: &mut FlowControl, line| group(control, line).unwrap_err().contains("would run itself");
    assert!(refused(&mut rig.control, "group_id=1,type=all,bucket=output:2,bucket=group:1"));
    for n in 2..60 {
        let line = format!("group_id={n},type=all,bucket=group:{0},bucket=group:{0}", n + 1);
        group(&mut rig.control, &line).unwrap();
    }
    assert!(refused(&mut rig.control, "group_id=60,type=all,bucket=group:2"));
    group(&mut rig.control, "group_id=1,type=all,bucket=group:2").unwrap();
}

#[test]
fn with_the_cache_full_new_flows_are_forwarded() {
    const FLOWS: u32 = 2000;
    let mut rig = Rig::new(3, CacheConfig { megaflows: 16, ..EAGER }, 32);
    let flow = |n: u32| format!("ip,nw_src={},actions=output:{}", Ipv4Addr::from_bits(0x0a00_0000 + n), 2 + n % 2);
    add(&mut rig.control, &(0..FLOWS).map(flow).collect::<Vec<_>>());
    let packets: Vec<_> = (0..FLOWS).map(|n| udp(n, HOST)).collect();
    let right: Vec<u16> = (0..FLOWS).map(|n| 2 + (n % 2) as u16).collect();
    for round in 1..=2 {
        let sent = rig.send(1, &packets);
        // Packets leave each port in the order in which they arrived.
        let of = |port| sent.iter().filter(move |s| s.0 == port).map(|s| &s.1);
        assert!(of(2).eq(packets.iter().step_by(2)) && of(3).eq(packets.iter().skip(1).step_by(2)), "round {round}");
        assert_eq!(sent.len(), right.len());
    }
    assert!(rig.counter("not_cached") >= u64::from(2 * (FLOWS - 16)), "{}", rig.counter("not_cached"));
    rig.settle(100);
    assert!(rig.counter("megaflows") <= 16);
}

/// Tuple-space explosion: twelve flows whose later bits are examined only where the earlier ones match let a sender
/// choose among 4,096 masks.
#[test]
fn masks_are_bounded_and_counted() {
    const BITS: u32 = 12;
    let mut rig = Rig::new(3, EAGER, 32);
    let flow = |bit: u32| {
        let mac = format!("00:00:00:00:{:02x}:{:02x}", (1 << bit) >> 8, (1 << bit) & 0xff);
        let port = 1 << bit;
        format!("priority=100,udp,dl_src={mac}/{mac},tp_src={port}/{port},actions=output:3")
    };
    let mut flows: Vec<String> = (0..BITS).map(flow).collect();
    flows.push("priority=1,actions=output:2".into());
    add(&mut rig.control, &flows);
    let packets: Vec<_> = (0..1 << BITS).map(|n| udp(n, HOST)).collect();
    for _ in 0..2 {
        assert_eq!(rig.send(1, &packets), packets.iter().map(|p| (2, p.clone())).collect::<Sent>());
    }
    // The counter is updated when a sweep is complete.
    for _ in 0..200 {
        if rig.counter("masks") < MASKS as u64 / 2 {
            rig.settle(100);
        }
    }
    let (masks, full) = (rig.counter("masks"), rig.counter("masks_full"));
    assert!(masks > MASKS as u64 / 2, "only {masks} masks: the attack does not work");
    assert!(masks <= MASKS as u64, "{masks}");
    assert!(full > 2000, "{full}");
    assert!(rig.counter("masks_tried") <= 2 * packets.len() as u64 * MASKS as u64);
    // Each packet goes through the tables only once, because afterwards its megaflow with the mask of all bits is
    // found.
    assert!(rig.counter("misses") <= packets.len() as u64, "{}", rig.counter("misses"));
}

/// All keys share the same two entries, which is the worst that an attacker who knows the seed could cause.
#[test]
fn colliding_keys_cost_no_packet() {
    const FLOWS: u32 = 5000;
    let mut rig = Rig::new(3, CacheConfig { exact: 2, ..EAGER }, 32);
    let flows = ["ip,nw_src=0.0.0.1/0.0.0.1,actions=output:3", "ip,nw_src=0.0.0.0/0.0.0.1,actions=output:2"];
    add(&mut rig.control, &flows.map(String::from));
    let packets: Vec<_> = (0..FLOWS).map(|n| udp(n, HOST)).collect();
    for _ in 0..2 {
        let sent = rig.send(1, &packets);
        let of = |port| sent.iter().filter(move |s| s.0 == port).map(|s| &s.1);
        assert!(of(2).eq(packets.iter().step_by(2)) && of(3).eq(packets.iter().skip(1).step_by(2)));
    }
    assert_eq!(rig.counter("misses"), 2);
}

/// After any history of changes the caches give the same results as a switch that only ever had the current tables.
#[test]
fn no_change_leaves_a_wrong_answer() {
    let r = &mut Random::new(0x5eed_0005);
    let two_tags = BridgeConfig { learn_interval: Duration::ZERO, vlan_limit: 2, ..BridgeConfig::default() };
    let mut old = Rig::configured(generate::PORTS, EAGER, 16, None, two_tags);
    let mut packets: Vec<(u16, Vec<u8>)> = vec![];
    for i in 0..200 {
        packets.push((1 + r.below(u64::from(generate::PORTS)) as u16, generate::packet(r, i, 0, 4)));
    }
    let through = |rig: &mut Rig| {
        packets.iter().for_each(|(port, bytes)| rig.input(*port, std::slice::from_ref(bytes)));
        let mut sent = rig.drain();
        sent.sort();
        sent
    };
    let (mut flows, mut sent) = (Vec::<String>::new(), 0);
    let mut groups = ["group_id=1,type=all,bucket=output:1".to_string(), "group_id=2,type=all,bucket=output:2".into()];
    let mut ports = common::rig::ports(generate::PORTS);
    let set = |control: &mut FlowControl, line: &str| {
        control.set_group(syntax::group(line, &|_| None).unwrap_or_else(|e| panic!("{line}: {e}")), false).unwrap();
        control.commit();
    };
    groups.iter().for_each(|group| set(&mut old.control, group));
    for step in 0..60 {
        // Groups and the states of ports change, too.
        if r.one_in(2)
            && let Some(line) = generate::tables(r, false, 2).groups.pop()
        {
            let at = r.below(2) as usize;
            groups[at] = format!("group_id={},{}", at + 1, line.split_once(',').unwrap().1);
            set(&mut old.control, &groups[at]);
        }
        if r.one_in(3) {
            let port = &mut ports[r.below(u64::from(generate::PORTS)) as usize];
            port.up = !port.up;
            old.control.set_port_up(port.of, port.up);
        }
        // Deletions and additions are published together or one after the other.
        if !flows.is_empty() && r.one_in(3) {
            // Other actions for a flow.
            let at = r.below(flows.len() as u64) as usize;
            let actions = r.pick(&["dec_ttl,output:3", "drop", "group:1", "group:2,output:4", "resubmit(,1),output:1"]);
            flows[at] = format!("{},actions={actions}", flows[at].split_once(",actions=").unwrap().0);
            old.control.modify(syntax::flow(&flows[at], &|_| None).unwrap(), true).unwrap();
        }
        while !flows.is_empty() && r.one_in(2) {
            let gone = flows.swap_remove(r.below(flows.len() as u64) as usize);
            let spec = syntax::flow(&gone, &|_| None).unwrap();
            let (table, priority) = (Some(spec.table), Some(spec.priority));
            let filter = FlowFilter { table, priority, matches: spec.matches, ..FlowFilter::default() };
            assert_eq!(old.control.delete(&filter, true), 1, "{gone}");
        }
        if r.one_in(2) {
            old.control.commit();
        }
        let mut more = generate::tables(r, false, 2).flows;
        more.retain(|flow| !flow.contains("meter"));
        more.truncate(4);
        // Every flow gets a priority of its own, so that the better of two matching flows is always the same.
        for flow in &mut more {
            let (table, rest) = flow.split_once(",priority=").unwrap();
            let rest = rest.split_once(',').unwrap().1;
            *flow = format!("{table},priority={},{rest}", 1 + step * 8 + flows.len() as u64 % 8 + 1000 * r.below(50));
        }
        more.retain(|flow| syntax::flow(flow, &|_| None).is_ok());
        for flow in more {
            let priority = |f: &str| f.split(',').find(|p| p.starts_with("priority=")).map(str::to_owned);
            if flows.iter().all(|other| priority(other) != priority(&flow)) {
                add(&mut old.control, std::slice::from_ref(&flow));
                flows.push(flow);
            }
        }
        old.control.commit();
        let answer = through(&mut old);
        let mut fresh = Rig::configured(generate::PORTS, CacheConfig { exact: 0, ..EAGER }, 16, None, two_tags);
        fresh.control.set_ports(ports.clone(), &[], vec![]);
        groups.iter().for_each(|group| set(&mut fresh.control, group));
        add(&mut fresh.control, &flows);
        assert_eq!(answer, through(&mut fresh), "step {step}, with\n{}", flows.join("\n"));
        sent += answer.len();
    }
    assert!(sent > 2000, "only {sent} packets forwarded: the test checks too little");
    assert!(old.counter("changed") > 50 && old.counter("exact_hits") > 500, "the caches were hardly used");
}

/// The time since a flow's last packet is known of flows without a timeout, too.
#[test]
fn flows_without_a_timeout_have_an_idle_age() {
    let mut rig = Rig::new(2, EAGER, 64);
    add(&mut rig.control, &["priority=2,udp,actions=output:2", "priority=1,actions=drop"]);
    rig.send(1, &[udp(1, HOST)]);
    while rig.control.flows(&FlowFilter::default())[0].packets == 0 {
        std::thread::yield_now();
    }
    rig.control.expire();
    let flows = rig.control.flows(&FlowFilter::default());
    let idle: Vec<bool> = flows.iter().map(|flow| flow.idle == flow.age).collect();
    assert_eq!(idle, [false, true], "{:?} of {:?}", flows[0].idle, flows[0].age);
}

/// With many megaflows, as a flood of addresses makes them, flows are still credited within a second or so, even by a
/// worker that sleeps most of the time: flows with an idle timeout would otherwise expire while they have packets.
#[test]
fn many_megaflows_do_not_delay_the_counters() {
    const N: u32 = 30_000;
    let mut rig = Rig::new(2, EAGER, 64);
    add(&mut rig.control, &["actions=move:NXM_OF_ETH_SRC[0..15]->NXM_NX_REG0[0..15],output:2"]);
    let packets: Vec<_> = (0..N).map(|n| udp(n, HOST)).collect();
    for round in 1..=2 {
        assert_eq!(rig.send(1, &packets).len(), packets.len());
        let from = rig.turns();
        while rig.control.flows(&FlowFilter::default())[0].packets < u64::from(round * N) {
            std::thread::yield_now();
        }
        // A sweep of one megaflow per turn would take as many turns as there are megaflows.
        assert!(rig.turns() - from < u64::from(N) / 2, "{} turns in round {round}", rig.turns() - from);
    }
    assert_eq!(rig.control.flows(&FlowFilter::default())[0].packets, u64::from(2 * N));
}

/// Frames truncated anywhere in their headers are sent or dropped, and counted; nothing is written behind their end.
#[test]
fn frames_cut_off_anywhere() {
    let mut rig = Rig::new(3, EAGER, 32);
    let actions = "dec_ttl,mod_nw_tos:4,mod_nw_src:1.2.3.4,mod_tp_dst:7,mod_vlan_vid:9,push_vlan:0x8100,output:3,\
        strip_vlan,strip_vlan,mod_dl_src:02:00:00:00:00:07,output:2";
    let flows = ["tcp", "udp", "ip", "icmp", "ipv6", "tcp6", "udp6", "icmp6", "arp"];
    let flow = |(n, what): (usize, &&str)| format!("priority={},{what},actions={actions}", 10 + n);
    let mut flows: Vec<String> = flows.iter().enumerate().map(flow).collect();
    flows.push("priority=1,actions=output:2".into());
    add(&mut rig.control, &flows);
    let r = &mut Random::new(0x5eed_0006);
    let (mut n, mut sent) = (0, 0);
    for i in 0..60 {
        let whole = generate::packet(r, i, 0, 4);
        let cuts: Vec<Vec<u8>> = (0..whole.len().min(100)).map(|len| whole[..len].to_vec()).collect();
        n += cuts.len();
        let out = rig.send(1, &cuts);
        sent += out.iter().filter(|(port, _)| *port == 2).count();
        for (_, bytes) in out.iter().filter(|(port, _)| *port == 2) {
            // The length is that of one of the truncated frames, up to the tags pushed or popped.
            assert!(bytes.len() >= 14 && bytes.len() < whole.len().min(100) + 4);
        }
    }
    let reasons = [DropReason::Runt, DropReason::TtlExceeded, DropReason::FlowDrop, DropReason::NoFlow];
    let dropped: u64 = reasons.iter().map(|reason| rig.drops(*reason)).sum();
    assert_eq!(sent as u64 + dropped, n as u64);
    assert_eq!(rig.drops(DropReason::Runt), 60 * 14);
}
