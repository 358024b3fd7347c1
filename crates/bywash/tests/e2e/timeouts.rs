//! Connections live as long as the kernel alone would keep them, and the kernel checks the window of those without a
//! flow.

use crate::flows::{BRIEF, Ends, FIREWALL, LEVELS, run, wait_for_flow};
use crate::harness::{Bywash, PATIENCE};
use crate::raw;
use bywash_lab::{Topology, has_tool, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::l4::tcp_flags::ACK;
use std::net::SocketAddr;

/// Timeouts of UDP connections, in seconds: of idle ones that the test waits for, and of those in use, before and after
/// a change.
const IDLE: u32 = 20;
const SHORT: u32 = 120;
const LONG: u32 = 1200;

/// A rule for packets that belong to no connection, because they are beyond its window, for instance.
const DROP_INVALID: &str = "insert rule inet filter forward ct state invalid counter drop";

/// Waits until the rule [`DROP_INVALID`] drops packets of host a's that are beyond the window of this connection.
fn drops_beyond_the_window(lab: &Topology, bywash: &Bywash, (from, to): (SocketAddr, SocketAddr)) {
    // The window is less than a quarter of all sequence numbers: all of these but one are beyond it.
    let mac: MacAddr = bywash.port("r0")["mac"].as_str().unwrap().parse().unwrap();
    let beyond = |quarter: u32| {
        let packet = Packet::tcp(from, to).tcp_fields(quarter << 30, quarter << 30, ACK);
        (1, packet.macs(MacAddr([2, 0, 0, 0, 0, 9]), mac).build().unwrap())
    };
    raw::send(&lab.a().ns, &lab.a().interface, &(0..4).map(beyond).collect::<Vec<_>>());
    wait_until("the kernel to drop packets beyond the window", PATIENCE, || {
        let rules = lab.r().run(&["nft", "list", "chain", "inet", "filter", "forward"]).unwrap().stdout;
        rules.contains("ct state invalid counter packets") && !rules.contains("counter packets 0 ")
    })
    .unwrap();
}

/// Sets a setting of connection tracking.
fn set(lab: &Topology, name: &str, value: u32) {
    let setting = format!("net.netfilter.nf_conntrack_{name}={value}");
    lab.r().run(&["sysctl", "-w", &setting]).unwrap();
}

/// A connection in use has the new timeout from its next packet on.
#[test]
fn a_longer_timeout_keeps_connections_in_use() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    lab.r().nft(FIREWALL).unwrap();
    set(&lab, "udp_timeout_stream", SHORT);
    let bywash = run(&lab, LEVELS[2]);
    let mut udp = Ends::udp(&lab, lab.b().v4.into());
    wait_for_flow(&bywash, &mut udp, "UDP");
    set(&lab, "udp_timeout_stream", LONG);
    bywash.wait("the connection to have the new timeout", |_| {
        udp.talk(b"in use");
        let shown = lab.r().run(&["conntrack", "-L", "-p", "udp"]).unwrap().stdout;
        let left: u32 = shown.split_whitespace().nth(2).unwrap().parse().unwrap();
        assert!(left > SHORT / 4, "it is about to expire: {shown}");
        left > LONG / 2
    });
    wait_for_flow(&bywash, &mut udp, "UDP still");
    bywash.stop();
}

/// Connections of whose end the kernel sends no event get no flow, but are considered after each change of the rules.
#[test]
fn changes_of_rules_do_not_prolong_idle_connections() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    lab.r().nft(&format!("{FIREWALL}table ip other {{ set hosts {{ type ipv4_addr; }}; }}")).unwrap();
    set(&lab, "udp_timeout_stream", IDLE);
    set(&lab, "events", 0);
    let mut udp = Ends::udp(&lab, lab.b().v4.into());
    let shown = || lab.r().run(&["conntrack", "-L", "-p", "udp"]).unwrap().stdout;
    wait_until("the connection to be assured", PATIENCE, || {
        udp.talk(b"begin");
        shown().contains("ASSURED")
    })
    .unwrap();
    let bywash = run(&lab, LEVELS[2]);
    let mut what = ["add", "delete"].iter().cycle();
    bywash.wait("the idle connection to end", |_| {
        lab.r().nft(&format!("{} element ip other hosts {{ 192.0.2.1 }}", what.next().unwrap())).unwrap();
        !shown().contains("ASSURED")
    });
    assert!(!udp.answered(BRIEF), "forwarded although it has ended");
    bywash.stop();
}

/// Such a connection is considered when packets propose it, too, but its packets are left to the kernel.
#[test]
fn the_window_of_a_connection_without_a_flow_is_checked() {
    require!(require_lab(), has_tool("nft"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    lab.r().nft(FIREWALL).unwrap();
    lab.r().nft(DROP_INVALID).unwrap();
    set(&lab, "events", 0);
    let mut tcp = Ends::tcp(&lab, lab.b().v4.into());
    let Ends::Tcp(near, _) = &tcp else { unreachable!() };
    let (from, to) = (near.local_addr().unwrap(), SocketAddr::from((lab.b().v4, 80)));
    let bywash = run(&lab, LEVELS[2]);
    bywash.wait("the connection to be considered", |bywash| {
        (0..16).for_each(|_| tcp.talk(b"in use"));
        bywash.show(&["flow-table"])["judged"].as_u64() > Some(1)
    });
    assert_eq!(bywash.show(&["flow-table"])["families"][0]["inserted"], 0);
    drops_beyond_the_window(&lab, &bywash, (from, to));
    tcp.talk(b"still");
    bywash.stop();
}

/// Where a routing rule leaves all packets of a family to the kernel, the kernel goes on checking the window of its
/// connections, which have no flows then.
#[test]
fn the_window_of_a_connection_is_checked_where_no_flows_of_its_family_pass() {
    require!(require_lab(), has_tool("nft"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    lab.r().nft(FIREWALL).unwrap();
    lab.r().nft(DROP_INVALID).unwrap();
    // The connections begin before anyone listens.
    set(&lab, "events", 1);
    let rule = |what| lab.r().ip(&["rule", what, "from", "10.9.0.0/16", "lookup", "100", "priority", "60"]).unwrap();
    rule("add");
    let (mut v4, mut v6) = (Ends::tcp(&lab, lab.b().v4.into()), Ends::tcp(&lab, lab.b().v6.into()));
    let Ends::Tcp(near, _) = &v4 else { unreachable!() };
    let ends = (near.local_addr().unwrap(), SocketAddr::from((lab.b().v4, 80)));
    let bywash = run(&lab, LEVELS[2]);
    let families = |bywash: &Bywash| [0, 1].map(|at| bywash.show(&["flow-table"])["families"][at]["flows"].as_u64());
    // Both connections are read at once.
    bywash.wait("a flow of IPv6", |bywash| families(bywash)[1] == Some(1));
    assert_eq!(families(&bywash)[0], Some(0));
    [&mut v4, &mut v6].into_iter().for_each(|ends| ends.talk(b"established"));
    drops_beyond_the_window(&lab, &bywash, ends);
    v4.talk(b"still");
    rule("del");
    bywash.wait("flows of both", |bywash| {
        (0..16).for_each(|_| v4.talk(b"translated"));
        families(bywash) == [Some(1); 2]
    });
    rule("add");
    bywash.wait("no flow of IPv4", |bywash| families(bywash) == [Some(0), Some(1)]);
    bywash.stop();
}
