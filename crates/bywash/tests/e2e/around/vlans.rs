//! VLAN interfaces of ports are forwarded past the kernel, which does the same without the program; those that do more
//! than tag are left to it.

use super::{assert_datagrams, assert_lost, ip};
use crate::flows::{BRIEF, Ends, wait_for_flow, wait_until_followed};
use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Namespace, Ping, Topology, Transfer, has_tool, kernel_has, require, require_lab, wait_until};
use std::net::IpAddr;
use std::time::Duration;

/// Creates a VLAN interface `id` with addresses that end in `host`, and sets it up.
fn add(ns: &Namespace, on: &str, id: u16, host: u16, more: &str) {
    ns.ip_batch(&format!(
        "link add link {on} name {on}.{id} type vlan id {id} {more}\naddress add 10.1.{id}.{host}/24 dev {on}.{id}\n\
         address add fd01:{id}::{host}/64 dev {on}.{id} nodad\nlink set {on}.{id} up\n"
    ))
    .unwrap();
}

/// Hosts a and b, and host c behind the same cable as a: VLANs 5 (host a) and 6 (host c) on r0, VLAN 7 (host b) on r1.
/// Packets to host b's own address leave r1 untagged.
struct Trunks {
    lab: Topology,
    c: Namespace,
}

impl Trunks {
    fn new() -> Self {
        let (lab, c) = (Topology::router().unwrap(), Namespace::new("c").unwrap());
        let (a, b, r) = (lab.a(), lab.b(), lab.r());
        add(r, "r0", 5, 1, "");
        // With an address of its own.
        add(r, "r0", 6, 1, "");
        r.ip_batch("link set r0.6 down\nlink set r0.6 address 02:00:00:00:00:66\nlink set r0.6 up\n").unwrap();
        r.ip(&["address", "replace", "fd01:6::1/64", "dev", "r0.6", "nodad"]).unwrap();
        add(r, "r1", 7, 1, "");
        add(&a.ns, "a0", 5, 2, "");
        a.ns.ip_batch(&format!("link add link a0 name a0.6 type vlan id 6\nlink set a0.6 netns {}\n", c.name()))
            .unwrap();
        c.ip_batch(
            "address add 10.1.6.2/24 dev a0.6\naddress add fd01:6::2/64 dev a0.6 nodad\nlink set a0.6 up\n\
             route add default via 10.1.6.1\nroute add ::/0 via fd01:6::1\n",
        )
        .unwrap();
        add(&b.ns, "b0", 7, 2, "");
        a.ns.ip_batch("route add 10.1.0.0/16 via 10.1.5.1\nroute add fd01::/16 via fd01:5::1\n").unwrap();
        b.ns.ip_batch("route add 10.1.5.0/24 via 10.1.7.1\nroute add fd01:5::/64 via fd01:7::1\n").unwrap();
        Self { lab, c }
    }

    /// Returns hosts and addresses: from VLAN to VLAN across ports and on one port, and between a VLAN and a port.
    fn ways(&self) -> [(&Namespace, IpAddr); 6] {
        let (a, b, c) = (&self.lab.a().ns, self.lab.b(), &self.c);
        [
            (a, ip("10.1.7.2")),
            (a, ip("fd01:7::2")),
            (a, ip("10.1.6.2")),
            (a, ip("fd01:6::2")),
            (c, IpAddr::from(b.v4)),
            (c, b.v6.into()),
        ]
    }

    /// Fails if something is lost, changed or not answered as the kernel answers it.
    fn assert_connected(&self) {
        let (a, b, r) = (self.lab.a(), self.lab.b(), self.lab.r());
        for (from, to) in self.ways() {
            let report = Ping::to(to).count(10).run(from).unwrap();
            assert_eq!((report.received, report.errors), (10, 0), "{to}: {}", report.text);
        }
        for to in [ip("10.1.5.1"), ip("fd01:5::1"), ip("10.1.7.1")] {
            let report = Ping::to(to).count(3).run(&a.ns).unwrap();
            assert_eq!(report.received, 3, "the router's own address {to}: {}", report.text);
        }
        for to in ["10.1.7.2", "fd01:7::2"] {
            let report = Transfer::new(2_000_000).run(&a.ns, &b.ns, ip(to)).unwrap();
            assert!(report.is_intact(), "{to}: {report:?}");
        }
        self.assert_datagrams();
        for (to, by) in [("10.1.7.2", "10.1.5.1"), ("fd01:7::2", "fd01:5::1")] {
            let report = Ping::to(ip(to)).count(1).ttl(1).run(&a.ns).unwrap();
            assert!(report.text.contains(by) && report.errors == 1, "{}", report.text);
        }
        // A mirror hears of the MTU while the kernel has it already, and a host remembers the MTU of a path.
        let forget = || {
            for ns in [&a.ns, &b.ns] {
                ns.ip(&["route", "flush", "cache"]).unwrap();
                ns.ip(&["-6", "route", "flush", "cache"]).unwrap();
            }
        };
        let sized = |to: &str, size| Ping::to(ip(to)).count(2).size(size).dont_fragment().run(&a.ns).unwrap();
        r.ip(&["link", "set", "r1.7", "mtu", "1290"]).unwrap();
        for (to, size) in [("10.1.7.2", 1300), ("fd01:7::2", 1280)] {
            wait_until(&format!("the MTU of the path to {to}"), PATIENCE, || {
                let report = sized(to, size);
                report.received == 0 && report.text.contains("1290")
            })
            .unwrap();
        }
        let report = sized("10.1.7.2", 1262);
        assert_eq!(report.received, 2, "{}", report.text);
        r.ip(&["link", "set", "r1.7", "mtu", "1500"]).unwrap();
        // The longest packets, with a tag.
        wait_until("the longest packets to pass", PATIENCE, || {
            forget();
            sized("10.1.7.2", 1472).received == 2
        })
        .unwrap();
        wait_until("those of IPv6 to pass", PATIENCE, || {
            forget();
            sized("fd01:7::2", 1452).received == 2
        })
        .unwrap();
    }

    fn assert_datagrams(&self) {
        let ends = ((&self.lab.a().ns, ip("10.1.5.2")), (&self.lab.b().ns, ip("10.1.7.2")));
        // The longest is sent in fragments.
        assert_datagrams(ends.0, ends.1, &[0, 1, 7, 100, 1471, 1472, 4000]);
    }

    /// Fails unless the packets of all ways are forwarded past the kernel, in both directions.
    fn assert_carried(&self, bywash: &Bywash<'_>) {
        for (from, to) in self.ways() {
            // The kernel has the first packets, which wait for a neighbour.
            let report = Ping::to(to).count(3).run(from).unwrap();
            assert_eq!(report.received, 3, "{to}: {}", report.text);
            let forwarded = || bywash.counter("r0", "tx_packets") + bywash.counter("r1", "tx_packets");
            let before = forwarded();
            let report = Ping::to(to).count(10).run(from).unwrap();
            assert_eq!(report.received, 10, "{to}: {}", report.text);
            let now = forwarded() - before;
            assert!(now >= 20, "{now} to {to}: {}", bywash.show(&["all"]));
        }
    }

    fn wait_for_vlans(&self, bywash: &Bywash<'_>) {
        let carried = || {
            let before = bywash.counter("r1", "tx_packets");
            let _ = Ping::to(ip("10.1.7.2")).count(3).run(&self.lab.a().ns);
            bywash.counter("r1", "tx_packets") >= before + 3
        };
        bywash.wait("VLANs to be carried", |_| carried());
    }
}

/// By traffic control, which forwards on a veth by default. A veth passes tags beside frames.
#[test]
fn vlans_are_forwarded_by_traffic_control() {
    require!(require_lab(), kernel_has("8021q"), kernel_has("tcx"));
    let trunks = Trunks::new();
    trunks.assert_connected();
    let bywash = Bywash::run(trunks.lab.r(), &["--level", "auto", "r0", "r1"]);
    assert_eq!(bywash.port("r0")["level"], "driver", "{}", bywash.show(&["ports"]));
    trunks.wait_for_vlans(&bywash);
    trunks.assert_carried(&bywash);
    trunks.assert_connected();
    assert!(!bywash.log().contains("left to the kernel"), "{}", bywash.log());
    bywash.stop();
    trunks.assert_connected();
}

/// Hosts behind VLANs of r0 may open connections; those of IPv4 are translated to the router's address on the way out.
const FIREWALL: &str = "
table inet filter {
 chain forward {
  type filter hook forward priority 0; policy drop;
  ct state established,related accept
  iifname { r0.5, r0.6 } accept
 }
}
table ip nat { chain from { type nat hook postrouting priority 100; oifname { r1, r1.7 } masquerade; }; }
";

/// Established connections from VLAN to VLAN, and from a VLAN to a port, through a firewall and a translation.
#[test]
fn connections_over_vlans_pass_without_the_kernel() {
    require!(require_lab(), kernel_has("8021q"), kernel_has("tcx"), has_tool("nft"), has_tool("conntrack"));
    let trunks = Trunks::new();
    let (a, b, r) = (&trunks.lab.a().ns, trunks.lab.b(), trunks.lab.r());
    r.nft(FIREWALL).unwrap();
    let bywash = Bywash::run(r, &["--level", "auto", "r0", "r1"]);
    wait_until_followed(&bywash);
    for (ns, own, to, ports, translated) in [
        (a, ip("10.1.5.2"), ip("10.1.7.2"), ["r0.5", "r1.7"], true),
        (a, ip("fd01:5::2"), ip("fd01:7::2"), ["r0.5", "r1.7"], false),
        (&trunks.c, ip("10.1.6.2"), b.v4.into(), ["r0.6", "r1"], true),
    ] {
        let mut ends = Ends::udp_between((ns, own), (&b.ns, to), to);
        assert_eq!(ends.seen().ip() != own, translated);
        wait_for_flow(&bywash, &mut ends, &format!("UDP to {to}"));
        let shown = bywash.show(&["flows", &format!("src={own}")]);
        let flow = &shown["flows"][0];
        assert_eq!([&flow["original"]["port"], &flow["reply"]["port"]], ports, "{shown}");
        assert_eq!(flow["original"]["level"], "driver", "{shown}");
        // TCP, whose super-frames stay whole.
        let report = Transfer::new(5_000_000).run(ns, &b.ns, to).unwrap();
        assert!(report.is_intact(), "{to}: {report:?}");
        // The connection ends: packets from b are dropped.
        r.run(&["conntrack", "-D", "-p", "udp", "-f", if to.is_ipv4() { "ipv4" } else { "ipv6" }]).unwrap();
        wait_until("the end of the connection to hold", PATIENCE, || ends.is_unanswered()).unwrap();
        assert!(!ends.answered(BRIEF), "{to}: forwarded past conntrack");
    }
    // A rule for the device below concerns the VLAN's packets, too.
    let mut ends = Ends::udp_between((a, ip("10.1.5.2")), (&b.ns, ip("10.1.7.2")), ip("10.1.7.2"));
    wait_for_flow(&bywash, &mut ends, "UDP once more");
    r.nft("table netdev n {\nchain c {\ntype filter hook ingress device r0 priority 0\ndrop\n}\n}").unwrap();
    wait_until("the rule to hold", PATIENCE, || ends.is_lost()).unwrap();
    assert!(!ends.arrives(BRIEF), "forwarded past the rule");
    r.nft("delete table netdev n").unwrap();
    wait_for_flow(&bywash, &mut ends, "UDP after the rule");
    bywash.stop();
}

/// Where XDP takes the frames, it does not see a tag that a veth passes beside them.
#[test]
fn vlans_whose_tags_are_hidden_are_left_to_the_kernel() {
    require!(require_lab(), kernel_has("8021q"));
    let trunks = Trunks::new();
    let bywash = Bywash::run(trunks.lab.r(), &["--level", "user", "r0", "r1"]);
    bywash.wait("the ports to be left to the kernel", |bywash| {
        bywash.log().matches("is above it: programs do not see the tags").count() == 2
    });
    trunks.assert_connected();
    assert_eq!(bywash.counter("r0", "rx_packets"), 0);
    trunks.lab.r().ip_batch("link del r0.5\nlink del r0.6\nlink del r1.7\n").unwrap();
    bywash.wait("the ports to be taken over again", |bywash| {
        bywash.log().matches("Bywash forwards its packets again").count() == 2
    });
    bywash.wait("the ports to forward again", |bywash| {
        let before = bywash.counter("r0", "rx_packets");
        let report = Ping::to(trunks.lab.b().v4).count(5).run(&trunks.lab.a().ns).unwrap();
        report.received == 5 && bywash.counter("r0", "rx_packets") >= before + 5
    });
    bywash.stop();
}

/// VLAN interfaces are deleted and created again under traffic, and get policies of their own.
#[test]
fn vlans_come_and_go() {
    require!(require_lab(), kernel_has("8021q"), kernel_has("tcx"));
    let trunks = Trunks::new();
    let (a, b, r) = (trunks.lab.a(), trunks.lab.b(), trunks.lab.r());
    let bywash = Bywash::run(r, &["--level", "driver", "r0", "r1"]);
    trunks.wait_for_vlans(&bywash);
    let mut traffic = a.ns.spawn(&["ping", "-n", "-i", "0.01", "10.1.7.2"]).unwrap();
    for _ in 0..3 {
        r.ip(&["link", "del", "r1.7"]).unwrap();
        let sent = || {
            let before = bywash.counter("r1", "tx_packets");
            let _ = Ping::to(ip("10.1.7.2")).count(10).wait(Duration::from_millis(100)).run(&a.ns);
            bywash.counter("r1", "tx_packets") - before
        };
        bywash.wait("nothing to be sent without the VLAN", |_| sent() == 0);
        assert_eq!(sent(), 0, "sent without the VLAN");
        add(r, "r1", 7, 1, "");
        trunks.wait_for_vlans(&bywash);
    }
    traffic.kill().unwrap();
    trunks.assert_carried(&bywash);

    // A rule for one VLAN's interface.
    r.nft("table inet f {\nchain c {\ntype filter hook forward priority 0\niifname \"r0.5\" drop\n}\n}").unwrap();
    assert_lost(&a.ns, ip("10.1.7.2"), "a rule for one VLAN");
    let before = bywash.counter("r1", "tx_packets");
    let report = Ping::to(b.v4).count(10).run(&trunks.c).unwrap();
    assert_eq!(report.received, 10, "{}", report.text);
    assert!(bywash.counter("r1", "tx_packets") >= before + 9, "{}", bywash.show(&["all"]));
    r.nft("delete table inet f").unwrap();
    trunks.wait_for_vlans(&bywash);

    // Down, and up again.
    r.ip(&["link", "set", "r1.7", "down"]).unwrap();
    assert_lost(&a.ns, ip("10.1.7.2"), "a VLAN that is down");
    r.ip(&["link", "set", "r1.7", "up"]).unwrap();
    r.ip(&["address", "replace", "fd01:7::1/64", "dev", "r1.7", "nodad"]).unwrap();
    trunks.wait_for_vlans(&bywash);
    bywash.stop();
    trunks.assert_connected();
}

/// A tag of nobody is left to the kernel, and so are VLAN interfaces that do more than tag, that belong to another
/// interface, or that have one above them.
#[test]
fn other_vlans_are_left_to_the_kernel() {
    require!(require_lab(), kernel_has("8021q"), kernel_has("vrf"), kernel_has("macvlan"));
    let trunks = Trunks::new();
    let (a, b, r) = (trunks.lab.a(), trunks.lab.b(), trunks.lab.r());
    add(r, "r0", 8, 1, "egress-qos-map 0:3");
    add(r, "r0", 10, 1, "loose_binding on");
    add(r, "r0", 11, 1, "");
    r.ip_batch("link add link r0.11 name mv0 type macvlan mode source\nlink set mv0 up\n").unwrap();
    for id in [8, 10, 11] {
        add(&a.ns, "a0", id, 2, "");
    }
    a.ns.ip_batch(
        "link add link a0 name a0.9 type vlan id 9\naddress add 10.1.9.2/24 dev a0.9\nlink set a0.9 up\n\
         neigh replace 10.1.9.1 lladdr 02:00:00:00:01:01 nud permanent dev a0.9\n\
         route add 10.0.2.77 via 10.1.9.1\nroute add 10.0.2.78 via 10.1.8.1\nroute add 10.0.2.80 via 10.1.10.1\n\
         route add 10.0.2.81 via 10.1.11.1\n",
    )
    .unwrap();
    for host in [77, 78, 80, 81] {
        b.ns.ip(&["address", "add", &format!("10.0.2.{host}/32"), "dev", "b0"]).unwrap();
    }
    // Answers, which have a way past the kernel, do not come by.
    b.ns.nft("table ip t {\nchain c {\ntype filter hook input priority 0\nip saddr 10.1.9.2 counter\n}\n}").unwrap();
    let bywash = Bywash::run(r, &["--level", "driver", "r0", "r1"]);
    trunks.wait_for_vlans(&bywash);
    let log = bywash.log();
    for said in [
        "r0.5: its packets are forwarded past the kernel",
        "r0.8: left to the kernel: it has flags other than reorder_hdr, QoS maps, or an XDP program",
        "r0.10: left to the kernel: it has flags other than reorder_hdr",
        "r0.11: left to the kernel: macvlan interface mv0 is above it",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    for (host, received) in [(77, 0), (78, 5), (80, 5), (81, 5)] {
        let before = bywash.counter("r1", "tx_packets");
        let report = Ping::to(ip(&format!("10.0.2.{host}"))).count(5).run(&a.ns).unwrap();
        assert_eq!(report.received, received, "{}", report.text);
        assert_eq!(bywash.counter("r1", "tx_packets"), before, "past the kernel");
    }
    let counted = b.ns.run(&["nft", "list", "ruleset"]).unwrap().stdout;
    assert!(counted.contains("counter packets 0 "), "{counted}");
    assert!(bywash.verdicts("r0", "pass_vlan") >= 20, "{}", bywash.show(&["drops"]));
    // Without what is above it, a VLAN is carried; as a member of a VRF it has the VRF's routes, of which there are
    // none.
    let sent = || {
        let before = bywash.counter("r1", "tx_packets");
        let _ = Ping::to(ip("10.0.2.81")).count(3).run(&a.ns);
        bywash.counter("r1", "tx_packets") - before
    };
    r.ip(&["link", "del", "mv0"]).unwrap();
    bywash.wait("the VLAN to be carried", |_| sent() >= 3);
    r.ip_batch("link add red type vrf table 10\nlink set red up\nlink set r0.11 master red\n").unwrap();
    bywash.wait("the VLAN to have no routes", |_| sent() == 0);
    bywash.stop();
}

/// A VLAN interface on a bridge: packets of its hosts are routed past the kernel on the member that each host is
/// behind.
#[test]
fn a_vlan_on_a_bridge_is_forwarded() {
    require!(require_lab(), kernel_has("bridge"), kernel_has("8021q"), kernel_has("tcx"));
    let lab = Topology::router().unwrap();
    let (a, b, r) = (lab.a(), lab.b(), lab.r());
    // Host b's cable, and another to host c.
    let c = Namespace::new("c").unwrap();
    r.ip_batch(&format!(
        "link add r2 type veth peer name c0 netns {}\nlink add br0 type bridge\nlink set r1 master br0\n\
         link set r2 master br0\nlink set r2 up\nlink set br0 up\n",
        c.name()
    ))
    .unwrap();
    c.ip_batch("link set lo up\nlink set c0 up\n").unwrap();
    for (ns, on, host) in [(r, "br0", 1), (&b.ns, "b0", 2), (&c, "c0", 3)] {
        add(ns, on, 9, host, "");
    }
    for ns in [&b.ns, &c] {
        ns.ip_batch("route replace 10.0.1.0/24 via 10.1.9.1\nroute replace fd00:1::/64 via fd01:9::1\n").unwrap();
    }
    let ways = [
        (&b.ns, ip("10.1.9.2"), "r1"),
        (&b.ns, ip("fd01:9::2"), "r1"),
        (&c, ip("10.1.9.3"), "r2"),
        (&c, ip("fd01:9::3"), "r2"),
    ];
    let reached = |to| Ping::to(to).count(1).run(&a.ns).is_ok_and(|report| report.received == 1);
    for (_, to, _) in ways {
        wait_until(&format!("{to} to be reached"), PATIENCE, || reached(to)).unwrap();
    }
    let bywash = Bywash::run(r, &["--level", "driver", "r0", "r1", "r2"]);
    assert!(bywash.log().contains("br0.9: its packets are forwarded past the kernel"), "{}", bywash.log());
    let sent = |of: &str| bywash.counter(of, "tx_packets");
    for (host, to, port) in ways {
        bywash.wait(&format!("packets to and from {to} to be forwarded"), |_| {
            let before = (sent(port), sent("r0"));
            let report = Ping::to(to).count(10).run(&a.ns).unwrap();
            assert_eq!(report.received, 10, "{}", report.text);
            sent(port) >= before.0 + 10 && sent("r0") >= before.1 + 10
        });
        let report = Transfer::new(1_000_000).run(&a.ns, host, to).unwrap();
        assert!(report.is_intact(), "{to}: {report:?}");
    }
    // Between the hosts, and to the router itself, the kernel bridges and receives as ever.
    for to in ["10.1.9.2", "10.1.9.1", "fd01:9::1"] {
        let report = Ping::to(ip(to)).count(3).run(&c).unwrap();
        assert_eq!(report.received, 3, "{to}: {}", report.text);
    }
    // Rules for the VLAN, and for the member that its packets pass.
    for rules in [
        "table inet f {\nchain c {\ntype filter hook forward priority 0\niifname \"br0.9\" drop\n}\n}",
        "table netdev f {\nchain c {\ntype filter hook ingress device \"r2\" priority 0\ndrop\n}\n}",
        "table bridge f {\nchain c {\ntype filter hook input priority 0\ndrop\n}\n}",
    ] {
        r.nft(rules).unwrap();
        assert_lost(&c, a.v4.into(), rules);
        r.nft("flush ruleset").unwrap();
    }
    let (_, to, port) = ways[2];
    bywash.wait("packets to be forwarded again", |_| {
        let before = sent(port);
        reached(to) && sent(port) > before
    });
    // Where XDP takes the frames, it does not see their tags.
    bywash.stop();
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1", "r2"]);
    let left = "r1: left to the kernel: vlan interface br0.9 is above it: programs do not see the tags";
    bywash.wait("the members to be left", |bywash| bywash.log().contains(left));
    assert!(reached(ip("10.1.9.2")));
    bywash.stop();
}
