//! Conjunctions: flows that match a packet only together.

mod common;

use bywash_engine::PortId;
use bywash_flow::control::{BridgeConfig, FlowControl};
use bywash_flow::key::KEY_WORDS;
use bywash_flow::ops::Op;
use bywash_flow::pipeline::SwitchPort;
use bywash_flow::syntax;
use bywash_sync::Qsbr;
use bywash_wire::build::Packet;
use common::rig::add;

fn switch(flows: &[&str]) -> FlowControl {
    let mut control =
        FlowControl::new(&Qsbr::new(), (1..=9).map(SwitchPort::numbered).collect(), BridgeConfig::default());
    add(&mut control, flows);
    control
}

/// Returns the number of the port that a packet from one host to another leaves by; 0 if it is dropped.
fn port(control: &FlowControl, from: u8, to: u8, tos: u8) -> u16 {
    let packet = Packet::udp(([10, 0, 0, from], 1).into(), ([10, 0, 0, to], 2).into()).tos(tos);
    let mut key = [0; KEY_WORDS];
    bywash_flow::extract::extract(&packet.build().unwrap(), 1, 1, &mut key).unwrap();
    let done = control.trace(&key);
    println!("{}", done.story.unwrap().join("\n"));
    let sent = done.ops.iter().find_map(|op| if let Op::Output(PortId(id)) = op { Some(id + 1) } else { None });
    sent.unwrap_or(0)
}

/// Packets from hosts 1 and 2 to hosts 3 and 4 leave by port 5, all others by port 6.
const FLOWS: [&str; 6] = [
    "ip,nw_src=10.0.0.1,actions=conjunction(7,1/2)",
    "ip,nw_src=10.0.0.2,actions=conjunction(7,1/2),conjunction(8,1/2)",
    "ip,nw_dst=10.0.0.3,actions=conjunction(7,2/2)",
    "ip,nw_dst=10.0.0.4,actions=conjunction(7,2/2)",
    "conj_id=7,actions=output:5",
    "priority=1,actions=output:6",
];

#[test]
fn all_parts_must_match() {
    let mut control = switch(&FLOWS);
    for (from, to, of) in [(1, 3, 5), (1, 4, 5), (2, 3, 5), (2, 4, 5), (3, 3, 6), (1, 1, 6), (4, 1, 6), (4, 2, 6)] {
        assert_eq!(port(&control, from, to, 0), of, "from {from} to {to}");
    }
    // Each flow is replaced and deleted by itself.
    let delete = |control: &mut FlowControl, filter: &str| {
        assert_eq!(control.delete(&syntax::filter(filter, &|_| None, false).unwrap(), false), 1);
        control.commit();
    };
    delete(&mut control, "ip,nw_dst=10.0.0.4");
    assert_eq!((port(&control, 1, 4, 0), port(&control, 1, 3, 0)), (6, 5));
    delete(&mut control, "conj_id=7");
    assert_eq!((port(&control, 1, 4, 0), port(&control, 1, 3, 0)), (6, 6));
    delete(&mut control, "ip,nw_src=10.0.0.1");
    delete(&mut control, "ip,nw_src=10.0.0.2");
    delete(&mut control, "ip,nw_dst=10.0.0.3");
    assert_eq!(port(&control, 1, 3, 0), 6);
}

#[test]
fn priorities_decide() {
    // A flow of a higher or the same priority wins, one of a lower does not.
    for (priority, of) in [(40000, 4), (32768, 4), (32767, 5)] {
        let other = format!("priority={priority},ip,nw_dst=10.0.0.0/24,actions=output:4");
        let mut flows = FLOWS.to_vec();
        flows.push(&other);
        assert_eq!(port(&switch(&flows), 1, 3, 0), of, "{priority}");
    }
    // Parts of different priorities do not go together.
    let mut flows = FLOWS.to_vec();
    flows[0] = "priority=5,ip,nw_src=10.0.0.1,actions=conjunction(7,1/2)";
    assert_eq!(port(&switch(&flows), 1, 3, 0), 6);
    // A conjunction below one that lacks a part.
    flows.extend([
        "priority=5,ip,nw_tos=4,actions=conjunction(9,2/2)",
        "priority=5,ip,nw_dst=10.0.0.3,actions=conjunction(9,1/2)",
        "priority=5,conj_id=9,actions=output:8",
    ]);
    assert_eq!((port(&switch(&flows), 1, 3, 4), port(&switch(&flows), 1, 3, 8)), (8, 6));
    // The flow that matches the conjunction may match more.
    let mut flows = FLOWS.to_vec();
    flows.push("priority=50000,conj_id=7,ip,nw_tos=4,actions=output:9");
    assert_eq!((port(&switch(&flows), 1, 3, 4), port(&switch(&flows), 1, 3, 8)), (9, 5));
    // Neither the flow's actions nor the next table see the conjunction's number.
    let more = [
        "conj_id=7,actions=move:conj_id->reg0[],resubmit(,1)",
        "table=1,priority=9,conj_id=7,actions=2",
        "table=1,reg0=0,actions=3",
    ];
    let flows = [&FLOWS[..4], &more].concat();
    assert_eq!(port(&switch(&flows), 1, 3, 0), 3);
}

#[test]
fn a_conjunction_has_up_to_64_parts() {
    let line = |part: usize| {
        let (bit, id) = (1u64 << (part % 32), if part < 32 { "nw_src" } else { "nw_dst" });
        let address = std::net::Ipv4Addr::from_bits(bit as u32);
        format!("ip,{id}={}/{address},actions=conjunction(1,{}/64)", std::net::Ipv4Addr::from_bits(0), part + 1)
    };
    let mut lines: Vec<String> = (0..64).map(line).collect();
    lines.push("conj_id=1,actions=output:2".into());
    let flows: Vec<&str> = lines.iter().map(String::as_str).collect();
    let control = switch(&flows);
    let zero = Packet::udp("0.0.0.0:1".parse().unwrap(), "0.0.0.0:2".parse().unwrap()).build().unwrap();
    let mut key = [0; KEY_WORDS];
    bywash_flow::extract::extract(&zero, 1, 1, &mut key).unwrap();
    assert_eq!(control.trace(&key).ops, [Op::Output(PortId(1))]);
    assert_eq!(port(&control, 1, 0, 0), 0);
}

/// Flows that disagree on the number of parts complete nothing: part 2 of 2 is not there.
#[test]
fn part_counts_that_differ_complete_nothing() {
    for [one, other] in [["1/2", "3/3"], ["3/3", "1/2"]] {
        let control = switch(&[
            &format!("ip,nw_src=10.0.0.1,actions=conjunction(7,{one})"),
            &format!("ip,nw_dst=10.0.0.3,actions=conjunction(7,{other})"),
            FLOWS[4],
            FLOWS[5],
        ]);
        assert_eq!(port(&control, 1, 3, 0), 6, "{one} and {other}");
    }
}
