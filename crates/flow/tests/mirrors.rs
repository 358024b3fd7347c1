//! Mirrors: copies of what ports receive and send.

mod common;

use bywash_engine::DropReason;
use bywash_flow::app::CacheConfig;
use bywash_flow::model::OfPort;
use bywash_flow::pipeline::Mirror;
use bywash_wire::build::Packet;
use common::rig::{Rig, add};

/// Creates a switch of four ports with these flows. Port 4 gets copies of what port 1 receives and of what port 2
/// sends.
fn switch(flows: &[&str]) -> Rig {
    let mut rig = Rig::new(4, CacheConfig { insert_one_in: 1, ..CacheConfig::default() }, 32);
    add(&mut rig.control, flows);
    let mirror = Mirror {
        name: "test".into(),
        sources: vec![OfPort(1)],
        destinations: vec![OfPort(2)],
        output: Some(OfPort(4)),
    };
    rig.control.set_mirrors(vec![mirror]);
    rig
}

fn packet(len: u16) -> Vec<u8> {
    Packet::udp(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 9], 2).into()).ttl(9).size(len.into()).build().unwrap()
}

/// Returns the ports that a packet left by, with its TTL there, of a packet that port `from` receives.
fn sent(rig: &mut Rig, from: u16) -> Vec<(u16, u8)> {
    let mut sent: Vec<_> = rig.send(from, &[packet(64)]).into_iter().map(|(port, bytes)| (port, bytes[22])).collect();
    sent.sort_unstable();
    sent
}

#[test]
fn copies_are_as_the_port_received_or_sent_them() {
    let mut rig = switch(&["ip,actions=dec_ttl,output:2,dec_ttl,output:3"]);
    // The second time, from the cache.
    for _ in 0..2 {
        assert_eq!(sent(&mut rig, 1), [(2, 8), (3, 7), (4, 8), (4, 9)]);
        assert_eq!(sent(&mut rig, 3), [(2, 8), (4, 8)]);
    }
}

/// Between two ports with the same mirror, a packet is copied once in each form.
#[test]
fn a_packet_is_copied_again_only_if_it_has_changed() {
    for (flow, expected) in [
        ("actions=output:2", &[(2, 9), (4, 9)][..]),
        ("actions=output:2,output:3,output:2", &[(2, 9), (2, 9), (3, 9), (4, 9)]),
        ("actions=load:1->reg0[],output:2", &[(2, 9), (4, 9)]),
        ("ip,actions=output:3,dec_ttl,output:2,output:2", &[(2, 8), (2, 8), (3, 9), (4, 8), (4, 9)]),
        ("actions=normal", &[(2, 9), (3, 9), (4, 9)]),
    ] {
        let mut rig = switch(&[flow]);
        let port = |of| Mirror {
            name: format!("{of}"),
            sources: vec![OfPort(of)],
            destinations: vec![OfPort(of)],
            output: Some(OfPort(4)),
        };
        rig.control.set_mirrors(vec![port(1), port(2)]);
        for _ in 0..2 {
            assert_eq!(sent(&mut rig, 1), expected, "{flow}");
        }
    }
}

#[test]
fn normal_leaves_the_port_of_a_mirror_alone() {
    let mut rig = switch(&["actions=normal"]);
    assert_eq!(sent(&mut rig, 3), [(1, 9), (2, 9), (4, 9)]);
    assert_eq!(sent(&mut rig, 4), []);
}

#[test]
fn what_is_dropped_has_its_reason_with_a_mirror_too() {
    use DropReason::{Controller, FlowDrop, NoFlow, TtlExceeded};
    for (flow, reason) in [
        ("arp,actions=output:2", NoFlow),
        ("actions=drop", FlowDrop),
        ("actions=controller", Controller),
        ("ip,actions=set_field:1->nw_ttl,dec_ttl,output:2", TtlExceeded),
        ("actions=resubmit(,1)", FlowDrop),
        ("actions=check_pkt_larger(1000)->reg0[0],resubmit(,1)", FlowDrop),
    ] {
        let mut rig = switch(&[flow, "table=1,reg0=1,actions=output:2", "table=1,reg0=0,ip,actions=drop"]);
        for n in 1..=2 {
            assert_eq!(sent(&mut rig, 1), [(4, 9)], "{flow}");
            assert_eq!((rig.drops(reason), rig.copies()), (n, n), "{flow}");
        }
        // Without the mirror, the same reason.
        assert_eq!(sent(&mut rig, 3), [], "{flow}");
        assert_eq!(rig.drops(reason), 3, "{flow}");
    }
}
