//! EVPN of FRR: three leaves, whose VXLANs are members of bridges that route between the networks of the hosts.
//!
//! ```text
//!   h1 ── h0 leaf1 u0 ─┐
//!   h2 ── h0 leaf2 u0 ─┼─ switch
//!   h3 ── h0 leaf3 u0 ─┘
//! ```

use crate::daemons::{Router, join, open_to_all};
use crate::harness::{Bywash, PATIENCE, daemons};
use bywash_lab::{Namespace, Ping, Transfer, has_tool, kernel_has, require, require_lab, wait_until};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use tempfile::TempDir;

/// Virtual networks of the hosts, by leaf.
const NETWORKS: [u8; 3] = [10, 20, 10];
/// Network identifier of the VXLAN by which leaves route to each other.
const BETWEEN: u8 = 50;
/// Table of the VRF that the networks are in.
const TABLE: u32 = 10;

/// How packets are routed from one network to another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Irb {
    /// By the leaf that receives them from a host, which has all networks.
    Asymmetric,
    /// By the leaves of both hosts, through a VXLAN of its own (RFC 9135), in a VRF.
    Symmetric,
}

struct Fabric {
    _directory: TempDir,
    _switch: Namespace,
    leaves: Vec<Router>,
    hosts: Vec<Namespace>,
    irb: Irb,
}

/// Returns the address of a leaf's host.
fn host(leaf: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, NETWORKS[leaf - 1], 0, leaf as u8)
}

impl Fabric {
    fn new(irb: Irb) -> Self {
        let directory = tempfile::tempdir().unwrap();
        open_to_all(directory.path());
        let switch = Namespace::new("sw").unwrap();
        switch.ip_batch("link add br0 type bridge\nlink set br0 up\n").unwrap();
        let (mut leaves, mut hosts) = (vec![], vec![]);
        for n in 1..=3 {
            let leaf = Router::new(&format!("leaf{n}"), directory.path());
            for hooks in ["arptables", "iptables", "ip6tables"] {
                // Missing without br_netfilter.
                let _ = leaf.ns.sysctl(&format!("net/bridge/bridge-nf-call-{hooks}"), "0");
            }
            let (port, own) = (format!("to{n}"), NETWORKS[n - 1]);
            join(&leaf.ns, ("u0", &format!("10.0.0.{n}/24")), &switch, (&port, ""));
            switch.ip(&["link", "set", &port, "master", "br0"]).unwrap();
            let end = Namespace::new(&format!("h{n}")).unwrap();
            join(&leaf.ns, ("h0", ""), &end, ("eth0", &format!("{}/24", host(n))));
            if irb == Irb::Symmetric {
                let vrf = format!("link add red type vrf table {TABLE}\nlink set red up\n");
                leaf.ns.ip_batch(&vrf).unwrap();
            }
            let networks = match irb {
                Irb::Asymmetric => vec![10, 20],
                Irb::Symmetric => vec![own, BETWEEN],
            };
            networks.into_iter().for_each(|id| add_network(&leaf.ns, n, id, irb));
            leaf.ns.ip(&["link", "set", "h0", "master", &format!("br{own}")]).unwrap();
            end.ip(&["link", "set", "lo", "up"]).unwrap();
            end.ip(&["route", "add", "default", "via", &format!("10.{own}.0.254")]).unwrap();
            leaves.push(leaf);
            hosts.push(end);
        }
        Self { _directory: directory, _switch: switch, leaves, hosts, irb }
    }

    fn start_daemons(&self) {
        for (leaf, n) in self.leaves.iter().zip(1..) {
            let symmetric = self.irb == Irb::Symmetric;
            let zebra = if symmetric { format!("vrf red\n vni {BETWEEN}\nexit-vrf\n") } else { String::new() };
            leaf.start("zebra", &zebra);
            leaf.start("bgpd", &bgp(n, symmetric));
        }
    }

    /// Sends pings from one host to another. Returns how many were answered.
    fn ping(&self, from: usize, to: usize, count: u32) -> u32 {
        Ping::to(IpAddr::V4(host(to))).count(count).run(&self.hosts[from - 1]).unwrap().received
    }

    /// Waits until a host reaches its leaf, which then knows the host.
    fn wait_for_gateway(&self, n: usize) {
        let gateway = IpAddr::V4(Ipv4Addr::new(10, NETWORKS[n - 1], 0, 254));
        let reached = || Ping::to(gateway).count(1).run(&self.hosts[n - 1]).unwrap().received == 1;
        wait_until("the gateway", PATIENCE, reached).unwrap();
    }

    /// Waits until the leaves have told each other of all hosts.
    fn wait_until_reached(&self) {
        (1..=3).for_each(|n| self.wait_for_gateway(n));
        for (from, to) in [(1, 2), (2, 3), (3, 1)] {
            wait_until("the other host", PATIENCE, || self.ping(from, to, 1) == 1).unwrap_or_else(|e| {
                let shown = ["neigh", "route"].map(|what| self.leaves[from - 1].ns.ip(&[what]).unwrap().stdout);
                panic!("{from} to {to}: {e}: {shown:?} {}", self.leaves[from - 1].daemons_say())
            });
        }
    }
}

/// Creates a bridge of a network on a leaf, with its VXLAN.
fn add_network(leaf: &Namespace, n: usize, id: u8, irb: Irb) {
    // The gateway of a network is the same on all leaves; between these, each has an address of its own.
    let of = if id == BETWEEN { n as u8 } else { 0 };
    let mut lines = format!(
        "link add br{id} address 02:00:5e:00:{of:02x}:{id:02x} type bridge mcast_snooping 0\n\
         link add vx{id} type vxlan id {id} local 10.0.0.{n} dstport 4789 nolearning\nlink set vx{id} master br{id}\n"
    );
    if irb == Irb::Symmetric {
        writeln!(lines, "link set br{id} master red").unwrap();
    }
    if id != BETWEEN {
        writeln!(lines, "address add 10.{id}.0.254/24 dev br{id}").unwrap();
    }
    writeln!(lines, "link set vx{id} mtu 1450 up\nlink set br{id} up").unwrap();
    leaf.ip_batch(&lines).unwrap();
    leaf.run(&["bridge", "link", "set", "dev", &format!("vx{id}"), "learning", "off", "neigh_suppress", "on"]).unwrap();
}

fn bgp(n: usize, symmetric: bool) -> String {
    let mut text = format!("router bgp 65000\n bgp router-id 10.0.0.{n}\n no bgp default ipv4-unicast\n");
    text += " timers bgp 1 9\n";
    for peer in (1..=3).filter(|peer| *peer != n) {
        write!(text, " neighbor 10.0.0.{peer} remote-as 65000\n neighbor 10.0.0.{peer} timers connect 1\n").unwrap();
    }
    text += " address-family l2vpn evpn\n";
    for peer in (1..=3).filter(|peer| *peer != n) {
        writeln!(text, "  neighbor 10.0.0.{peer} activate").unwrap();
    }
    text += "  advertise-all-vni\n exit-address-family\n";
    if symmetric {
        write!(text, "router bgp 65000 vrf red\n bgp router-id 10.0.0.{n}\n").unwrap();
        text += " address-family ipv4 unicast\n  redistribute connected\n exit-address-family\n";
        text += " address-family l2vpn evpn\n  advertise ipv4 unicast\n exit-address-family\n";
    }
    text
}

#[test]
fn leaves_that_receive_from_hosts_route() {
    routes_past_the_kernel(Irb::Asymmetric);
}

#[test]
fn leaves_of_both_hosts_route() {
    require!(kernel_has("vrf"));
    routes_past_the_kernel(Irb::Symmetric);
}

fn routes_past_the_kernel(irb: Irb) {
    require!(require_lab(), kernel_has("vxlan"), has_tool("vtysh"), has_tool("/usr/lib/frr/bgpd"));
    let _daemons = daemons();
    let fabric = Fabric::new(irb);
    let running: Vec<Bywash> =
        fabric.leaves.iter().map(|leaf| Bywash::run(&leaf.ns, &["--level", "user", "u0", "h0"])).collect();
    fabric.start_daemons();
    fabric.wait_until_reached();
    let moved = |leaf: usize| {
        let events = |port: &str, event: &str| running[leaf - 1].events(port, event);
        (events("h0", "encapsulated"), events("u0", "decapsulated"))
    };
    for (from, to) in [(1, 2), (2, 1), (2, 3), (3, 2)] {
        running[from - 1].wait("packets past the kernel", |_| {
            let before = (moved(from).0, moved(to).1);
            let received = fabric.ping(from, to, 10);
            // If asymmetric, the leaf of the second host bridges what the other one has routed for it.
            received == 10 && moved(from).0 - before.0 >= 10 && moved(to).1 - before.1 >= 10
        });
        let report = Ping::to(IpAddr::V4(host(to))).count(1).ttl(1).run(&fabric.hosts[from - 1]).unwrap();
        assert_eq!((report.received, report.errors), (0, 1), "{}", report.text);
        let [near, far] = [from, to].map(|n| &fabric.hosts[n - 1]);
        let report = Transfer::new(500_000).run(near, far, IpAddr::V4(host(to))).unwrap();
        assert!(report.is_intact(), "{report:?}");
    }
    // Within a network, a leaf bridges what comes through its VXLAN.
    for (from, to) in [(1, 3), (3, 1)] {
        running[to - 1].wait("frames past the kernel", |_| {
            let before = moved(to).1;
            fabric.ping(from, to, 10) == 10 && moved(to).1 - before >= 10
        });
    }
    let punted = || running.iter().map(|bywash| bywash.events("u0", "punted")).sum::<u64>();
    let before = punted();
    let report = Transfer::new(500_000).run(&fabric.hosts[0], &fabric.hosts[2], IpAddr::V4(host(3))).unwrap();
    assert!(report.is_intact() && punted() < before + 20, "{report:?}, {} punted", punted() - before);
    // A host moves to another leaf, which tells the others.
    let (old, new) = (&fabric.leaves[0].ns, &fabric.leaves[2].ns);
    old.ip(&["link", "set", "h0", "nomaster"]).unwrap();
    new.ip(&["link", "del", "h0"]).unwrap();
    join(new, ("h1", ""), &fabric.hosts[0], ("eth1", ""));
    new.ip(&["link", "set", "h1", "master", &format!("br{}", NETWORKS[0])]).unwrap();
    let mac = "02:00:00:00:aa:01";
    fabric.hosts[0]
        .ip_batch(&format!(
            "link set eth0 down\nlink set eth1 address {mac}\naddress flush dev eth0\naddress add {}/24 dev eth1\n\
             route add default via 10.{}.0.254\n",
            host(1),
            NETWORKS[0]
        ))
        .unwrap();
    fabric.wait_for_gateway(1);
    running[1].wait("packets to the other leaf", |_| {
        let before = moved(2).0;
        fabric.ping(2, 1, 10) == 10 && moved(2).0 - before >= 10
    });
    running.iter().for_each(Bywash::assert_conserved);
    running.into_iter().for_each(|bywash| drop(bywash.stop()));
}
