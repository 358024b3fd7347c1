//! Connections of UDP that a flow table of the kernel's (nf_flowtable) has taken are forwarded as others are, where the
//! rules accept them without it; those of TCP are the table's.

use crate::flows::{BRIEF, Ends, behind_firewall, forwarded, run, wait_for_flow};
use crate::harness::PATIENCE;
use bywash_lab::{has_tool, require, require_lab, skip, wait_until};

/// A flow table for UDP that has been replied to, in addition to the firewall.
const FLOW_TABLE: &str = "
table inet filter { flowtable ft { hook ingress priority 0; devices = { r0, r1 }; }; }
insert rule inet filter forward ct state established meta l4proto udp flow add @ft
";

#[test]
fn connections_in_a_flow_table_of_the_kernel_are_forwarded() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let lab = behind_firewall();
    if let Err(why) = lab.r().nft(FLOW_TABLE) {
        skip!("this kernel has no flow tables: {why}");
    }
    // 30 s by default, which is less than a slow machine needs for some commands.
    lab.r().sysctl("net/netfilter/nf_flowtable_udp_timeout", "3600").unwrap();
    // Connections are not renewed, which would show that one is gone.
    lab.r().sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", "3600").unwrap();
    let offloaded = || lab.r().run(&["conntrack", "-L", "-p", "udp"]).unwrap().stdout.contains("[OFFLOAD]");
    let bywash = run(&lab, "");
    let mut udp = Ends::udp(&lab, lab.b().v4.into());
    // Before two seconds have passed, after which it may be forwarded past the kernel.
    bywash.wait("the kernel's flow table to take UDP", |_| {
        udp.talk(b"offload");
        offloaded()
    });
    let mut tcp = Ends::tcp(&lab, lab.b().v4.into());
    wait_for_flow(&bywash, &mut tcp, "TCP");
    wait_for_flow(&bywash, &mut udp, "UDP in the kernel's flow table");
    assert_eq!(udp.seen().ip(), tcp.seen().ip(), "the source is not translated");
    // The end of a connection that was never assured is announced.
    lab.r().run(&["conntrack", "-D", "-p", "udp"]).unwrap();
    wait_until("the end of the connection to hold", PATIENCE, || udp.is_unanswered()).unwrap();
    assert!(!udp.answered(BRIEF), "forwarded past conntrack");
    // Packets that b has sent since are a connection of its own to the router, with the translated tuple: the next
    // connection is translated to another port.
    drop(udp);
    let mut udp = Ends::udp(&lab, lab.b().v4.into());
    wait_for_flow(&bywash, &mut udp, "UDP once more");
    // The kernel's table goes on with its connections whatever the rules become, and only it can.
    lab.r().nft("insert rule inet filter forward meta l4proto udp drop").unwrap();
    bywash.wait("the connection to be left to the kernel", |bywash| {
        bywash.show(&["flows", "proto=udp"])["flows"] == serde_json::json!([])
    });
    let before = forwarded(&bywash);
    for n in 0..100u8 {
        udp.talk(&[n; 700]);
    }
    assert_eq!(forwarded(&bywash), before, "forwarded past the kernel's flow table");
    wait_for_flow(&bywash, &mut tcp, "TCP beside the kernel's flow table");
    // The kernel does not tell the state of TCP that its table has.
    lab.r().nft("insert rule inet filter forward meta l4proto tcp flow add @ft").unwrap();
    let mut taken = Ends::tcp(&lab, lab.b().v4.into());
    bywash.wait("the reason why TCP is the kernel's", |bywash| {
        taken.talk(b"offload");
        let reasons = bywash.show(&["kernel-connections"])["reasons"].clone();
        reasons.as_array().is_some_and(|all| all.iter().any(|one| one["reason"] == "TCP in a flow table of the kernel"))
    });
    bywash.stop();
}
