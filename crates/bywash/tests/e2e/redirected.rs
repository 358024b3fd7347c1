//! Packets that filters of other interfaces redirect to a port's ingress, as if the port had received them; and packets
//! that rules send by another interface as the port has received them.

use crate::bpf::tcx_that_redirects_with_a_mark;
use crate::garbage::mac;
use crate::harness::{Bywash, PATIENCE};
use crate::raw::{self, Ear};
use bywash_lab::{Topology, has_tool, kernel_has, require, require_lab, wait_until};
use bywash_wire::build::Packet;

const LEVELS: [&[&str]; 2] = [&["--xdp", "native", "--level", "driver"], &[]];

/// Creates a router with a third interface, r2, which is no port.
fn lab() -> Topology {
    // Before Linux 6.3, a veth drops redirected frames if its peer is without GRO, and does not tell.
    Topology::builder().ports(3).static_neighbours(true).host_offload("gro", true).build().unwrap()
}

/// Sends datagrams from hosts c and then a, as from a to b, to the addresses given; returns the ports of those that
/// arrive in ascending order, at least `wanted`. One from a is sent to r0 last.
fn arriving(lab: &Topology, from_c: &[(&str, u16)], wanted: usize) -> Vec<u16> {
    let (a, b, c) = (lab.a(), lab.b(), &lab.hosts()[2]);
    let datagram = |to: &str, port| {
        let packet = Packet::udp((a.v4, port).into(), (b.v4, 9).into());
        (1, packet.macs(mac(&a.mac), mac(to)).payload(b"from a").build().unwrap())
    };
    let port = |frame: &[u8]| u16::from_be_bytes([frame[34], frame[35]]);
    let is_of_a = |frame: &[u8]| frame.ends_with(b"from a");
    let ear = Ear::at(&b.ns, &b.interface);
    let frames: Vec<_> = from_c.iter().map(|(to, port)| datagram(to, *port)).collect();
    raw::send(&c.ns, &c.interface, &frames);
    raw::send(&a.ns, &a.interface, &[datagram(&a.router_mac, 1)]);
    ear.wait(1, |frame| is_of_a(frame) && port(frame) == 1);
    // Queues of two CPUs may be served in either order.
    let mut ports: Vec<u16> = ear.wait(wanted, is_of_a).iter().map(|frame| port(frame)).collect();
    ports.sort_unstable();
    ports
}

/// A redirected packet keeps its mark, by which a rule selects it.
#[test]
fn marks_of_redirected_packets_select_rules() {
    require!(require_lab(), kernel_has("tcx"));
    for arguments in LEVELS {
        let lab = lab();
        let r = lab.r();
        let index = r.run(&["sh", "-c", "ip -o link show r0 | cut -d: -f1"]).unwrap().stdout;
        let _other = tcx_that_redirects_with_a_mark(r, "r2", index.trim().parse().unwrap());
        r.ip(&["rule", "add", "fwmark", "1", "blackhole"]).unwrap();
        let bywash = Bywash::run_as_is(r, &[arguments, &["r0", "r1"]].concat());
        let to_r0 = lab.a().router_mac.as_str();
        assert_eq!(arriving(&lab, &[(to_r0, 2), (to_r0, 3)], 1), [1], "{arguments:?}");
        bywash.stop();
    }
}

/// The kernel has decided whether a packet is to this host when the first interface received it, by that one's address.
#[test]
fn redirected_packets_to_another_address_than_that_of_their_interface_are_dropped() {
    require!(require_lab());
    for arguments in LEVELS {
        let lab = lab();
        let filter = "tc qdisc add dev r2 clsact && tc filter add dev r2 ingress protocol ip u32 match u32 0 0 \
                      action mirred ingress redirect dev r0";
        lab.r().run(&["sh", "-c", filter]).unwrap();
        let bywash = Bywash::run_as_is(lab.r(), &[arguments, &["r0", "r1"]].concat());
        let (to_r0, to_r2) = (lab.a().router_mac.as_str(), lab.hosts()[2].router_mac.as_str());
        assert_eq!(arriving(&lab, &[(to_r0, 2), (to_r2, 3)], 2), [1, 3], "{arguments:?}");
        bywash.stop();
    }
}

/// The kernel needs the length of the Ethernet header, which it loses where it copies a packet for generic XDP.
#[test]
fn frames_that_rules_send_on_have_their_ethernet_headers() {
    require!(require_lab(), has_tool("nft"));
    for how in ["fwd", "dup"] {
        let lab = lab();
        let bywash = Bywash::run(lab.r(), &["r0", "r1"]);
        lab.r()
            .nft(&format!(
                "table netdev t {{\nchain c {{\ntype filter hook ingress device r0 priority 0\n\
                 ip protocol udp {how} to r2\n}}\n}}"
            ))
            .unwrap();
        let (a, b, c) = (lab.a(), lab.b(), &lab.hosts()[2]);
        let packet = Packet::udp((a.v4, 1).into(), (b.v4, 9).into()).macs(mac(&a.mac), mac(&a.router_mac));
        let frame = packet.payload(b"sent on").build().unwrap();
        let ear = Ear::at(&c.ns, &c.interface);
        let come = wait_until("the frame as it was sent", PATIENCE, || {
            raw::send(&a.ns, &a.interface, &[(1, frame.clone())]);
            ear.heard().contains(&frame)
        });
        come.unwrap_or_else(|error| panic!("{how}: {error}; {}", bywash.text(&["placement"])));
        let placement = bywash.text(&["placement"]);
        let why = format!("r0: all packets received left to the kernel because of table netdev t chain c: {how}\n");
        assert!(placement.contains(&why), "{placement}");
        bywash.stop();
    }
}

/// Generic XDP of a port also copies the packets of the interfaces above it.
#[test]
fn frames_that_rules_of_a_macvlan_send_on_have_their_ethernet_headers() {
    require!(require_lab(), has_tool("nft"), kernel_has("macvlan"));
    let (lab, own) = (lab(), "02:00:00:00:07:01");
    let r = lab.r();
    r.ip_batch(&format!("link add link r0 name mv0 address {own} type macvlan mode bridge\nlink set mv0 up\n"))
        .unwrap();
    let chain = "type filter hook ingress device mv0 priority 0; ip protocol udp fwd to r2";
    r.nft(&format!("table netdev t {{ chain c {{ {chain}; }}; }}")).unwrap();
    let (a, b, c) = (lab.a(), lab.b(), &lab.hosts()[2]);
    let packet = Packet::udp((a.v4, 1).into(), (b.v4, 9).into()).macs(mac(&a.mac), mac(own));
    let frame = packet.payload(b"sent on").build().unwrap();
    let is_sent_on = || {
        let ear = Ear::at(&c.ns, &c.interface);
        raw::send(&a.ns, &a.interface, &[(1, frame.clone())]);
        ear.wait(1, |heard| heard.ends_with(b"sent on")) == [frame.as_slice()]
    };
    assert!(is_sent_on(), "by the kernel");
    let bywash = Bywash::run(r, &["r0", "r1"]);
    bywash.wait("the frame as it was sent", |_| is_sent_on());
    let placement = bywash.text(&["placement"]);
    assert!(placement.contains("r0: all packets received left to the kernel because of table netdev t chain c: fwd\n"));
    bywash.stop();
}
