//! VLANs, VRFs, bonds, bridges and dummies beside the router's ports: the kernel handles their packets, and the ports
//! keep forwarding.

mod bonds;
mod filters;
mod firewalls;
mod hooks;
mod ipsec;
mod taps;
mod tunnels;
mod tunnels6;
mod vlans;

use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Namespace, Ping, Topology, Transfer, kernel_has, require, require_lab, wait_until};
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Sends five pings from host a, and fails if one is lost.
fn assert_reaches(lab: &Topology, to: &str) {
    let report = Ping::to(ip(to)).count(5).run(&lab.a().ns).unwrap();
    assert_eq!(report.received, 5, "{}", report.text);
}

fn assert_hosts_connected(lab: &Topology) {
    for to in [IpAddr::from(lab.b().v4), lab.b().v6.into()] {
        let report = Ping::to(to).count(5).run(&lab.a().ns).unwrap();
        assert_eq!(report.received, 5, "{}", report.text);
    }
}

/// Waits until pings are lost because of a change, and fails if a later one is not.
pub fn assert_lost(ns: &Namespace, to: IpAddr, what: &str) {
    // A change is followed within milliseconds, on a busy machine later. There one answer may be late, too.
    let ping = |count| Ping::to(to).count(count).wait(Duration::from_millis(300)).run(ns).unwrap();
    wait_until(what, PATIENCE, || ping(3).received == 0).unwrap();
    let report = ping(5);
    assert_eq!(report.received, 0, "{what}: {}", report.text);
}

/// Sends datagrams of these lengths between two addresses, in both directions, and fails if one does not arrive as it
/// was sent.
pub fn assert_datagrams(near: (&Namespace, IpAddr), far: (&Namespace, IpAddr), lengths: &[u32]) {
    let bound = |(ns, addr): (&Namespace, IpAddr)| {
        let socket = ns.enter(|| UdpSocket::bind((addr, 0))).unwrap().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let (near, far) = (bound(near), bound(far));
    near.connect(far.local_addr().unwrap()).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    for len in lengths {
        let sent: Vec<u8> = (0..*len).map(|n| n as u8).collect();
        for (from, to) in [(&near, &far), (&far, &near)] {
            let mut buffer = [0; 8000];
            from.send(&sent).unwrap();
            let n = to.recv(&mut buffer).unwrap();
            assert!(buffer[..n] == sent, "{len} bytes");
        }
    }
}

/// Creates a VLAN interface with an address, and sets it up.
fn vlan(ns: &Namespace, on: &str, id: u16, address: &str) {
    let lines = format!(
        "link add link {on} name {on}.{id} type vlan id {id}\naddress add {address} dev {on}.{id}\n\
         link set {on}.{id} up\n"
    );
    ns.ip_batch(&lines).unwrap();
}

/// The kernel forwards to a network behind a VLAN interface on an interface that is not a port.
#[test]
fn a_vlan_beside_the_ports_is_reached() {
    require!(require_lab(), kernel_has("8021q"));
    let lab = Topology::router_n(3).unwrap();
    let c = &lab.hosts()[2];
    vlan(lab.r(), "r2", 9, "10.1.3.1/24");
    vlan(&c.ns, "c0", 9, "10.1.3.2/24");
    let bywash = Bywash::run(lab.r(), &["r0", "r1"]);
    assert_reaches(&lab, "10.1.3.2");
    assert_reaches(&lab, "10.0.3.2");
    assert_hosts_connected(&lab);
    bywash.stop();
}

/// A VRF on an interface that is not a port has other routes for the same networks: neither table affects the other.
#[test]
fn a_vrf_beside_the_ports_keeps_to_itself() {
    require!(require_lab(), kernel_has("vrf"));
    let lab = Topology::router_n(3).unwrap();
    let r = lab.r();
    r.ip_batch(
        "link add red type vrf table 10\nlink set red up\nlink set r2 master red\n\
         route add 10.0.2.0/24 via 10.0.3.2 table 10\nroute add blackhole 10.0.1.0/24 table 10\n",
    )
    .unwrap();
    let bywash = Bywash::run(r, &["r0", "r1"]);
    assert_hosts_connected(&lab);
    assert_eq!(bywash.counter("r0", "tx_packets"), 10, "{}", bywash.show(&["all"]));
    // The network of c is only in the VRF's table, so a has no route to it.
    let report = Ping::to(lab.hosts()[2].v4).count(2).run(&lab.a().ns).unwrap();
    assert_eq!(report.received, 0, "{}", report.text);
    bywash.stop();
}

/// A port is put into a VRF while it runs: its packets are then forwarded by the VRF's table, past the kernel.
#[test]
fn a_port_in_a_vrf_goes_by_its_table() {
    require!(require_lab(), kernel_has("vrf"));
    let lab = Topology::router_n(3).unwrap();
    let (a, c, r) = (lab.a(), &lab.hosts()[2], lab.r());
    let bywash = Bywash::run(r, &["r0", "r1"]);
    assert_hosts_connected(&lab);
    // VRF red holds a and c, and c has b's address too.
    c.ns.ip(&["address", "add", "10.0.2.2/32", "dev", "lo"]).unwrap();
    r.ip_batch(
        "link add red type vrf table 10\nlink set red up\nlink set r0 master red\nlink set r2 master red\n\
         route add 10.0.2.2/32 via 10.0.3.2 table 10\n",
    )
    .unwrap();
    let answered_by_c = || {
        let count = || {
            let text = c.ns.ip(&["-s", "link", "show", "c0"]).unwrap().stdout;
            text.lines()
                .skip_while(|line| !line.contains("RX:"))
                .nth(1)
                .unwrap()
                .split_whitespace()
                .nth(1)
                .unwrap()
                .parse()
        };
        let before: u64 = count().unwrap();
        let report = Ping::to(ip("10.0.2.2")).count(3).run(&a.ns).unwrap();
        report.received == 3 && count().unwrap() >= before + 3
    };
    bywash.wait("packets to be forwarded by the VRF's table", |_| answered_by_c());
    let before = bywash.counter("r0", "tx_packets");
    assert!(answered_by_c());
    // The router is without c as a port.
    assert!(bywash.counter("r0", "tx_packets") == before);
    bywash.stop();
}

/// Routes lead to a bond beside the ports, and to a dummy that is a port.
#[test]
fn bonds_and_dummies_beside_the_ports() {
    require!(require_lab(), kernel_has("bonding"), kernel_has("dummy"));
    let lab = Topology::router_n(3).unwrap();
    let (c, r) = (&lab.hosts()[2], lab.r());
    r.ip_batch(
        "link add bond7 type bond mode active-backup\nlink set r2 down\naddress flush dev r2\nlink set r2 master bond7\nlink set bond7 up\n\
         address add 10.0.3.1/24 dev bond7\nlink add d0 type dummy\naddress add 10.77.0.1/24 dev d0\nlink set d0 up\n",
    )
    .unwrap();
    let bywash = Bywash::run(r, &["r0", "r1", "d0"]);
    assert_hosts_connected(&lab);
    assert_reaches(&lab, &c.v4.to_string());
    assert_reaches(&lab, "10.77.0.1");
    let report = Ping::to(ip("10.77.0.9")).count(2).run(&lab.a().ns).unwrap();
    assert_eq!(report.received, 0, "{}", report.text);
    assert_hosts_connected(&lab);
    bywash.stop();
}

/// A bridge is a port like any other, also for packets whose checksums and segmentation its members' peers left to it.
#[test]
fn a_bridge_as_a_port() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (b, r) = (lab.b(), lab.r());
    r.ip_batch(&format!(
        "address flush dev r1\nlink add br0 type bridge\nlink set r1 master br0\nlink set br0 up\n\
         address add {}/24 dev br0\naddress add {}/64 dev br0 nodad\n",
        b.router_v4, b.router_v6
    ))
    .unwrap();
    let bywash = Bywash::run(r, &["r0", "br0"]);
    assert_hosts_connected(&lab);
    for (from, to, address) in [(lab.a(), b, b.v4), (b, lab.a(), lab.a().v4)] {
        let report = Transfer::new(2_000_000).run(&from.ns, &to.ns, IpAddr::from(address)).unwrap();
        assert!(report.is_intact(), "{report:?}");
    }
    assert!(bywash.counter("br0", "rx_packets") >= 10 && bywash.counter("br0", "tx_packets") >= 10);
    bywash.stop();
}

/// A bond is a port like any other.
#[test]
fn a_bond_as_a_port() {
    require!(require_lab(), kernel_has("bonding"));
    let lab = Topology::router().unwrap();
    let (b, r) = (lab.b(), lab.r());
    r.ip_batch(&format!(
        "link add bond7 type bond mode active-backup\nlink set r1 down\naddress flush dev r1\nlink set r1 master bond7\nlink set bond7 up\n\
         address add {}/24 dev bond7\naddress add {}/64 dev bond7 nodad\n",
        b.router_v4, b.router_v6
    ))
    .unwrap();
    assert_reaches(&lab, &b.v4.to_string());
    let bywash = Bywash::run(r, &["r0", "bond7"]);
    assert_hosts_connected(&lab);
    assert!(bywash.counter("bond7", "rx_packets") >= 10 && bywash.counter("bond7", "tx_packets") >= 10);
    bywash.stop();
}
