//! Bonds whose members are ports are forwarded past the kernel, by the members that the kernel sends by; others are
//! left to it.

mod teams;

use super::{assert_datagrams, assert_lost, ip};
use crate::garbage::mac;
use crate::harness::{Bywash, PATIENCE};
use crate::raw::{self, Ear};
use bywash_lab::{Namespace, Ping, Topology, Transfer, kernel_has, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Monitors carriers every 10 ms, and prefers the first member.
const BACKUP: &str = "mode active-backup miimon 10";

/// Host a on r0; host b behind two cables, bonded at both ends: r1 and r2 in the router's bond0, b0 and b1 in the
/// host's.
struct Bonded {
    lab: Topology,
}

impl Bonded {
    fn new(options: &str) -> Self {
        let lab = Topology::router().unwrap();
        let bond = |ns: &Namespace, members: [&str; 2], v4: String, v6: String| {
            let [first, second] = members;
            let primary = if options.contains("active-backup") {
                format!("link set bond0 type bond primary {first}\n")
            } else {
                String::new()
            };
            ns.ip_batch(&format!(
                "link add bond0 type bond {options}\nlink set {first} down\naddress flush dev {first}\n\
                 link set {first} master bond0\nlink set {second} down\nlink set {second} master bond0\n{primary}\
                 link set bond0 up\naddress add {v4}/24 dev bond0\naddress add {v6}/64 dev bond0 nodad\n"
            ))
            .unwrap();
        };
        Self::between(lab, bond)
    }

    /// Lays the second cable, and connects the hosts. `bond` makes a bond of a namespace's members, with these
    /// addresses.
    fn between(lab: Topology, bond: impl Fn(&Namespace, [&str; 2], String, String)) -> Self {
        let (b, r) = (lab.b(), lab.r());
        r.ip_batch(&format!("link add r2 type veth peer name b1 netns {}\n", b.ns.name())).unwrap();
        bond(r, ["r1", "r2"], b.router_v4.to_string(), b.router_v6.to_string());
        bond(&b.ns, ["b0", "b1"], b.v4.to_string(), b.v6.to_string());
        b.ns.ip_batch(&format!("route add default via {}\nroute add ::/0 via {}\n", b.router_v4, b.router_v6)).unwrap();
        let bonded = Self { lab };
        bonded.wait_until_reached();
        bonded
    }

    fn wait_until_reached(&self) {
        for to in [IpAddr::from(self.lab.b().v4), self.lab.b().v6.into()] {
            let reached = || Ping::to(to).count(1).run(&self.lab.a().ns).is_ok_and(|report| report.received == 1);
            wait_until(&format!("{to} to be reached"), PATIENCE, reached).unwrap();
        }
    }

    fn run(&self, level: &str) -> Bywash<'_> {
        Bywash::run(self.lab.r(), &["--level", level, "r0", "r1", "r2"])
    }

    /// Fails if something is lost, changed or not answered as the kernel answers it.
    fn assert_connected(&self) {
        let (a, b) = (self.lab.a(), self.lab.b());
        let ways: [(&Namespace, IpAddr); 4] =
            [(&a.ns, b.v4.into()), (&a.ns, b.v6.into()), (&b.ns, a.v4.into()), (&b.ns, a.v6.into())];
        for (from, to) in ways {
            let report = Ping::to(to).count(10).run(from).unwrap();
            assert_eq!((report.received, report.errors), (10, 0), "{to}: {}", report.text);
        }
        for to in [IpAddr::from(b.router_v4), b.router_v6.into(), a.router_v4.into()] {
            let report = Ping::to(to).count(3).run(&b.ns).unwrap();
            assert_eq!(report.received, 3, "the router's own address {to}: {}", report.text);
        }
        for (from, to, addr) in [
            (&a.ns, &b.ns, IpAddr::from(b.v4)),
            (&a.ns, &b.ns, b.v6.into()),
            (&b.ns, &a.ns, a.v4.into()),
            (&b.ns, &a.ns, a.v6.into()),
        ] {
            let report = Transfer::new(1_000_000).run(from, to, addr).unwrap();
            assert!(report.is_intact(), "{addr}: {report:?}");
        }
        for (near, far) in [(IpAddr::from(a.v4), IpAddr::from(b.v4)), (a.v6.into(), b.v6.into())] {
            // The longest is sent in fragments.
            assert_datagrams((&a.ns, near), (&b.ns, far), &[0, 1, 100, 1452, 4000]);
        }
        for (to, by) in [(IpAddr::from(a.v4), "10.0.2.1"), (a.v6.into(), "fd00:2::1")] {
            let report = Ping::to(to).count(1).ttl(1).run(&b.ns).unwrap();
            assert!(report.text.contains(by) && report.errors == 1, "{}", report.text);
        }
    }

    /// Returns the packets that were forwarded to and from a member, of ten pings to this address of host b.
    fn forwarded(&self, bywash: &Bywash<'_>, to: IpAddr, member: &str) -> (u64, u64) {
        // The kernel may have the first ones, which wait for a neighbour.
        let _ = Ping::to(to).count(3).run(&self.lab.a().ns);
        let count = || (bywash.counter(member, "rx_packets"), bywash.counter(member, "tx_packets"));
        let (rx, tx) = count();
        let driver = |of: &str| bywash.port(of)["level"] == "driver";
        let sent = bywash.counter("r0", "tx_packets");
        let report = Ping::to(to).count(10).run(&self.lab.a().ns).unwrap();
        assert_eq!(report.received, 10, "{to}: {}", report.text);
        let (now_rx, now_tx) = count();
        // Frames that the program forwards are counted where they leave.
        let came = if driver(member) { bywash.counter("r0", "tx_packets") - sent } else { now_rx - rx };
        (came, now_tx - tx)
    }

    fn passes(&self, bywash: &Bywash<'_>, to: IpAddr, member: &str) -> bool {
        let (received, sent) = self.forwarded(bywash, to, member);
        received >= 10 && sent >= 10
    }

    /// Fails unless the packets of both families are forwarded past the kernel by this member, in both directions.
    fn assert_carried_by(&self, bywash: &Bywash<'_>, member: &str) {
        let other = if member == "r1" { "r2" } else { "r1" };
        for to in [IpAddr::from(self.lab.b().v4), self.lab.b().v6.into()] {
            let carried = || self.passes(bywash, to, member);
            bywash.wait(&format!("packets to {to} to be forwarded by {member}"), |_| carried());
            assert_eq!(self.forwarded(bywash, to, other).1, 0, "sent by {other}");
        }
    }
}

/// Returns how often the log says that the packets of the bond, or team, are forwarded by this member.
fn said(bywash: &Bywash<'_>, member: &str) -> usize {
    bywash.log().matches(&format!("0: its packets are forwarded by its member {member}")).count()
}

fn wait_for(bywash: &Bywash<'_>, member: &str, times: usize) {
    bywash.wait(&format!("{member} to have the bond's packets"), |bywash| said(bywash, member) >= times);
}

#[test]
fn a_bond_is_forwarded_by_its_active_member() {
    require!(require_lab(), kernel_has("bonding"));
    let bonded = Bonded::new(BACKUP);
    let (a, b, r) = (bonded.lab.a(), bonded.lab.b(), bonded.lab.r());
    bonded.assert_connected();
    for level in ["user", "driver"] {
        let bywash = bonded.run(level);
        wait_for(&bywash, "r1", 1);
        let left = "r2: left to the kernel: it is a member of bond interface bond0, but it is not an active member";
        assert!(bywash.log().contains(left), "{}", bywash.log());
        assert_eq!(bywash.port("r1")["level"], level, "{}", bywash.show(&["ports"]));
        bonded.assert_carried_by(&bywash, "r1");
        bonded.assert_connected();
        // The bond's MTU, which its members get with it.
        r.ip(&["link", "set", "bond0", "mtu", "1400"]).unwrap();
        bonded.assert_carried_by(&bywash, "r1");
        bywash.wait("the MTU to be followed", |_| {
            let report = Ping::to(b.v4).count(2).size(1400).dont_fragment().run(&a.ns).unwrap();
            report.received == 0 && report.text.contains("1400")
        });
        r.ip(&["link", "set", "bond0", "mtu", "1500"]).unwrap();
        r.ip(&["address", "replace", &format!("{}/64", b.router_v6), "dev", "bond0", "nodad"]).unwrap();
        a.ns.ip(&["route", "flush", "cache"]).unwrap();
        bonded.assert_carried_by(&bywash, "r1");
        bywash.stop();
    }
}

/// Rules for the bond and for the member that its packets pass.
#[test]
fn policies_of_a_bond_and_of_its_member_hold() {
    require!(require_lab(), kernel_has("bonding"));
    let bonded = Bonded::new(BACKUP);
    let (a, b, r) = (bonded.lab.a(), bonded.lab.b(), bonded.lab.r());
    let bywash = bonded.run("user");
    bonded.assert_carried_by(&bywash, "r1");
    for rules in [
        "table inet f {\nchain c {\ntype filter hook forward priority 0\niifname \"bond0\" drop\n}\n}",
        "table netdev f {\nchain c {\ntype filter hook ingress device \"r1\" priority 0\nip saddr 10.0.2.2 drop\n}\n}",
    ] {
        r.nft(rules).unwrap();
        assert_lost(&b.ns, a.v4.into(), rules);
        r.nft("flush ruleset").unwrap();
        bonded.assert_carried_by(&bywash, "r1");
    }
    r.run(&["tc", "qdisc", "add", "dev", "r1", "clsact"]).unwrap();
    r.run(&["tc", "filter", "add", "dev", "r1", "egress", "matchall", "action", "drop"]).unwrap();
    assert_lost(&a.ns, b.v4.into(), "a filter of the member");
    r.run(&["tc", "qdisc", "del", "dev", "r1", "clsact"]).unwrap();
    bonded.assert_carried_by(&bywash, "r1");
    // The bond's switch of forwarding, not the member's.
    r.sysctl("net/ipv4/conf/r1/forwarding", "0").unwrap();
    bonded.assert_carried_by(&bywash, "r1");
    r.sysctl("net/ipv4/conf/bond0/forwarding", "0").unwrap();
    assert_lost(&b.ns, a.v4.into(), "no forwarding");
    r.sysctl("net/ipv4/conf/bond0/forwarding", "1").unwrap();
    bonded.assert_carried_by(&bywash, "r1");
    bywash.stop();
}

/// Pings host b every 10 ms while its first cable is cut, until `is_over` after that; returns how many are lost.
fn lost_by_cutting(bonded: &Bonded, is_over: impl Fn() -> bool) -> u32 {
    let (a, b) = (&bonded.lab.a().ns, bonded.lab.b());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let (mut lost, ping) = (0, Ping::to(b.v4).count(50).interval(Duration::from_millis(10)));
            while !over.load(Ordering::Relaxed) {
                let report = ping.run(a).unwrap();
                lost += report.sent - report.received;
            }
            lost
        });
        b.ns.ip(&["link", "set", "b0", "down"]).unwrap();
        let done = wait_until("the other member to be used", PATIENCE, is_over);
        over.store(true, Ordering::Relaxed);
        done.unwrap();
        pings.join().unwrap()
    })
}

#[test]
fn a_member_that_fails_is_replaced() {
    require!(require_lab(), kernel_has("bonding"));
    let bonded = Bonded::new(BACKUP);
    let b = bonded.lab.b();
    let restore = || {
        b.ns.ip(&["link", "set", "b0", "up"]).unwrap();
        let back = || {
            let shown = bonded.lab.r().ip(&["-d", "link", "show", "bond0"]).unwrap().stdout;
            shown.contains("active_slave r1")
        };
        wait_until("the first member to be active", PATIENCE, back).unwrap();
        bonded.wait_until_reached();
    };
    let active = || bonded.lab.r().ip(&["-d", "link", "show", "bond0"]).unwrap().stdout.contains("active_slave r2");
    let by_kernel = lost_by_cutting(&bonded, active);
    restore();
    for level in ["user", "driver"] {
        let bywash = bonded.run(level);
        bonded.assert_carried_by(&bywash, "r1");
        // The time that it takes depends on what else the machine does.
        let lost = lost_by_cutting(&bonded, || said(&bywash, "r2") > 0);
        println!("failover: {lost} pings lost at level {level}, {by_kernel} by the kernel alone");
        bonded.assert_carried_by(&bywash, "r2");
        bonded.assert_connected();
        restore();
        wait_for(&bywash, "r1", 2);
        bonded.assert_carried_by(&bywash, "r1");
        bywash.stop();
    }
}

#[test]
fn members_come_and_go() {
    require!(require_lab(), kernel_has("bonding"));
    let bonded = Bonded::new(BACKUP);
    let (b, r) = (bonded.lab.b(), bonded.lab.r());
    let bywash = bonded.run("driver");
    bonded.assert_carried_by(&bywash, "r1");
    // The host sends by its second cable from here on.
    b.ns.ip(&["link", "set", "bond0", "type", "bond", "primary", "b1"]).unwrap();
    r.ip(&["link", "set", "r1", "nomaster"]).unwrap();
    wait_for(&bywash, "r2", 1);
    bonded.assert_carried_by(&bywash, "r2");
    r.ip_batch("link set r1 down\nlink set r1 master bond0\nlink set bond0 type bond primary r2\n").unwrap();
    bywash.wait("r1 to be left to the kernel", |bywash| bywash.port("r1")["level"] == "kernel");
    bonded.assert_carried_by(&bywash, "r2");
    // The bond itself is deleted, and made again.
    r.ip(&["link", "del", "bond0"]).unwrap();
    assert_lost(&bonded.lab.a().ns, b.v4.into(), "without the bond");
    r.ip_batch(&format!(
        "link add bond0 type bond {BACKUP}\nlink set r1 down\nlink set r1 master bond0\nlink set r2 down\n\
         link set r2 master bond0\nlink set bond0 type bond primary r2\nlink set bond0 up\n\
         address add {}/24 dev bond0\naddress add {}/64 dev bond0 nodad\n",
        b.router_v4, b.router_v6
    ))
    .unwrap();
    bonded.wait_until_reached();
    bonded.assert_carried_by(&bywash, "r2");
    bonded.assert_connected();
    bywash.stop();
}

/// A VLAN on the bond is carried by the active member, by traffic control, which sees the tags that a veth passes
/// beside frames.
#[test]
fn a_vlan_on_a_bond_goes_with_it() {
    require!(require_lab(), kernel_has("bonding"), kernel_has("8021q"), kernel_has("tcx"));
    let bonded = Bonded::new(BACKUP);
    let (a, b, r) = (&bonded.lab.a().ns, &bonded.lab.b().ns, bonded.lab.r());
    for (ns, host) in [(r, 1), (b, 2)] {
        ns.ip_batch(&format!(
            "link add link bond0 name bond0.7 type vlan id 7\naddress add 10.1.7.{host}/24 dev bond0.7\n\
             address add fd01:7::{host}/64 dev bond0.7 nodad\nlink set bond0.7 up\n"
        ))
        .unwrap();
    }
    b.ip_batch("route add 10.0.1.0/24 via 10.1.7.1\nroute add fd00:1::/64 via fd01:7::1\n").unwrap();
    let ways = [ip("10.1.7.2"), ip("fd01:7::2")];
    for to in ways {
        let reached = || Ping::to(to).count(1).run(a).is_ok_and(|report| report.received == 1);
        wait_until(&format!("{to} to be reached"), PATIENCE, reached).unwrap();
    }
    let carried_by = |bywash: &Bywash<'_>, member: &str| {
        for to in ways {
            let carried = || bonded.passes(bywash, to, member);
            bywash.wait(&format!("packets to {to} to be forwarded by {member}"), |_| carried());
            let report = Transfer::new(1_000_000).run(a, b, to).unwrap();
            assert!(report.is_intact(), "{to}: {report:?}");
        }
    };
    let bywash = bonded.run("driver");
    assert!(bywash.log().contains("bond0.7: its packets are forwarded past the kernel"), "{}", bywash.log());
    carried_by(&bywash, "r1");
    b.ip(&["link", "set", "b0", "down"]).unwrap();
    wait_for(&bywash, "r2", 1);
    carried_by(&bywash, "r2");
    b.ip(&["link", "set", "b0", "up"]).unwrap();
    wait_for(&bywash, "r1", 2);
    carried_by(&bywash, "r1");
    bonded.assert_carried_by(&bywash, "r1");
    bywash.stop();
    // Where XDP takes the frames, it does not see the tags.
    let bywash = bonded.run("user");
    let left = "r1: left to the kernel: vlan interface bond0.7 is above it: programs do not see the tags";
    bywash.wait("the member to be left", |bywash| bywash.log().contains(left));
    bywash.stop();
}

/// Bonds of other modes, or with a hash that is not followed, or an ARP monitor, are left to the kernel.
#[test]
fn other_bonds_are_left_to_the_kernel() {
    require!(require_lab(), kernel_has("bonding"));
    for (options, why) in [
        ("mode balance-rr miimon 10", "mode balance-rr is not followed"),
        (
            "mode balance-xor miimon 10 xmit_hash_policy encap3+4",
            "several members are active, and their xmit_hash_policy is not followed",
        ),
        ("mode active-backup arp_interval 100 arp_ip_target 10.0.2.2", "the bond has an ARP monitor, an XDP program"),
    ] {
        // The host has no targets that answer for it.
        let bonded = Bonded::new(&options.replace("arp_ip_target 10.0.2.2", "arp_ip_target 10.0.2.1,10.0.2.2"));
        let bywash = bonded.run("user");
        let left = format!("r1: left to the kernel: it is a member of bond interface bond0, but {why}");
        bywash.wait("the members to be left", |bywash| bywash.log().contains(&left));
        let report = Ping::to(bonded.lab.b().v4).count(10).run(&bonded.lab.a().ns).unwrap();
        assert!(report.received > 0, "{options}: {}", report.text);
        for member in ["r1", "r2"] {
            let count = |name| bywash.counter(member, name);
            assert_eq!((count("rx_packets"), count("tx_packets")), (0, 0), "{options}, {member}");
        }
        assert_eq!(said(&bywash, "r"), 0, "{options}");
        bywash.stop();
    }
}

/// Connections of each test of hashes.
const CONNECTIONS: u16 = 40;

impl Bonded {
    /// Returns the member of host b's bond that receives each of some UDP packets, by family and source port: those of
    /// [`CONNECTIONS`] connections of each family.
    fn arrivals(&self) -> BTreeMap<(bool, u16), String> {
        let (a, b) = (self.lab.a(), self.lab.b());
        let of = |member: &str| {
            format!(
                "set {member}v4 {{\ntype inet_service\nflags dynamic\n}}\nset {member}v6 {{\ntype inet_service\nflags dynamic\n}}\n\
                 chain {member} {{\ntype filter hook ingress device \"{member}\" priority 0\n\
                 meta protocol ip udp dport 9 add @{member}v4 {{ udp sport }}\n\
                 meta protocol ip6 udp dport 9 add @{member}v6 {{ udp sport }}\n}}\n"
            )
        };
        b.ns.nft(&format!("table netdev arrivals {{\n{}{}}}", of("b0"), of("b1"))).unwrap();
        a.ns.enter(|| {
            for (own, to) in [(IpAddr::from(a.v4), IpAddr::from(b.v4)), (a.v6.into(), b.v6.into())] {
                for port in 30_000..30_000 + CONNECTIONS {
                    UdpSocket::bind((own, port)).unwrap().send_to(b"bond", (to, 9)).unwrap();
                }
            }
        })
        .unwrap();
        let mut all = BTreeMap::new();
        let arrived = || {
            for (member, v6) in [("b0", false), ("b1", false), ("b0", true), ("b1", true)] {
                let set = format!("{member}v{}", if v6 { 6 } else { 4 });
                let shown = b.ns.run(&["nft", "-j", "list", "set", "netdev", "arrivals", &set]).unwrap().stdout;
                let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
                let elements =
                    shown["nftables"].as_array().unwrap().iter().filter_map(|of| of["set"]["elem"].as_array());
                let ports = elements.flatten().map(|port| port.as_u64().unwrap() as u16);
                all.extend(ports.map(|port| ((v6, port), member.to_owned())));
            }
            all.len() == 2 * usize::from(CONNECTIONS)
        };
        wait_until("all packets to arrive", PATIENCE, arrived).unwrap();
        b.ns.nft("delete table netdev arrivals").unwrap();
        all
    }

    /// Returns the packets that were sent by each member so far.
    fn sent(bywash: &Bywash<'_>) -> [u64; 2] {
        ["r1", "r2"].map(|member| bywash.counter(member, "tx_packets"))
    }

    /// Has host a send UDP with complete checksums: user space leaves others to the kernel.
    fn completing(self) -> Self {
        self.lab.a().ns.run(&["ethtool", "-K", "a0", "tx", "off"]).unwrap();
        self
    }

    /// Waits until packets of both families are forwarded past the kernel to both members' cables.
    fn wait_for_both(&self, bywash: &Bywash<'_>) {
        bywash.wait("both members to send", |bywash| {
            let before = Self::sent(bywash);
            let by_kernel = self.arrivals().len() as u64;
            let sent: u64 = Self::sent(bywash).iter().zip(before).map(|(now, before)| now - before).sum();
            sent >= by_kernel
        });
    }
}

/// Each connection leaves by the member that the kernel chooses, whoever sends its packets.
#[test]
fn connections_leave_by_the_members_that_the_kernel_chooses() {
    require!(require_lab(), kernel_has("bonding"));
    for hash in ["layer2", "layer2+3", "layer3+4"] {
        let bonded = Bonded::new(&format!("mode balance-xor miimon 10 xmit_hash_policy {hash}")).completing();
        let by_kernel = bonded.arrivals();
        let used: BTreeSet<&String> = by_kernel.values().collect();
        assert!(used.len() == 2 || hash != "layer3+4", "{used:?}");
        for level in ["user", "driver"] {
            let bywash = bonded.run(level);
            bywash.wait("the bond's packets", |bywash| {
                bywash.log().contains("bond0: its packets are forwarded by its members r1, r2")
            });
            bonded.wait_for_both(&bywash);
            assert_eq!(bonded.arrivals(), by_kernel, "{hash}, {level}");
            bonded.assert_connected();
            bywash.stop();
        }
    }
}

/// LACP stays the kernel's, and with it the choice of members: all that are active have the bond's packets.
#[test]
fn an_aggregate_is_forwarded_by_its_active_members() {
    require!(require_lab(), kernel_has("bonding"));
    let bonded = Bonded::new("mode 802.3ad miimon 10 lacp_rate fast xmit_hash_policy layer3+4").completing();
    let b = bonded.lab.b();
    for level in ["user", "driver"] {
        let bywash = bonded.run(level);
        let both = "bond0: its packets are forwarded by its members r1, r2";
        bywash.wait("both members to be active", |bywash| bywash.log().contains(both));
        bonded.wait_until_reached();
        bonded.wait_for_both(&bywash);
        bonded.assert_connected();
        let (before, alone) = (bywash.log().matches(both).count(), said(&bywash, "r1"));
        b.ns.ip(&["link", "set", "b1", "down"]).unwrap();
        wait_for(&bywash, "r1", alone + 1);
        bonded.assert_carried_by(&bywash, "r1");
        bonded.assert_connected();
        b.ns.ip(&["link", "set", "b1", "up"]).unwrap();
        bywash.wait("both members to be active again", |bywash| bywash.log().matches(both).count() > before);
        bonded.wait_until_reached();
        bonded.wait_for_both(&bywash);
        // LACP itself passes: a partner that hears none would have ended the aggregate after 3 s.
        let start = Instant::now();
        wait_until("the aggregate to last", PATIENCE, || start.elapsed() > Duration::from_secs(6)).unwrap();
        let shown = bonded.lab.r().run(&["cat", "/proc/net/bonding/bond0"]).unwrap().stdout;
        assert!(shown.contains("Number of ports: 2"), "{shown}");
        bywash.stop();
    }
}

/// A bond of which an active member is not a port is left to the kernel: it may send any packet by that.
#[test]
fn a_bond_with_a_member_that_is_not_a_port_is_left_to_the_kernel() {
    require!(require_lab(), kernel_has("bonding"));
    let bonded = Bonded::new("mode balance-xor miimon 10 xmit_hash_policy layer3+4");
    let bywash = Bywash::run(bonded.lab.r(), &["--level", "user", "r0", "r1"]);
    let left = "r1: left to the kernel: it is a member of bond interface bond0, but the active member r2 is not a port";
    bywash.wait("the member to be left", |bywash| bywash.log().contains(left));
    bonded.assert_connected();
    assert_eq!(bywash.counter("r1", "tx_packets"), 0);
    bywash.stop();
}

/// A packet that a filter of another interface redirects to a member is to the other interface's address, or to nobody.
#[test]
fn packets_to_others_that_are_redirected_to_a_member_are_dropped() {
    require!(require_lab(), kernel_has("bonding"));
    let bonded = Bonded::new(BACKUP);
    let (a, b, r) = (bonded.lab.a(), bonded.lab.b(), bonded.lab.r());
    r.ip_batch(&format!("link add r3 type veth peer name a3 netns {}\nlink set r3 up\n", a.ns.name())).unwrap();
    a.ns.ip(&["link", "set", "a3", "up"]).unwrap();
    let filter = "tc qdisc add dev r3 clsact && tc filter add dev r3 ingress protocol ip u32 match u32 0 0 \
                  action mirred ingress redirect dev r1";
    r.run(&["sh", "-c", filter]).unwrap();
    let address = |name: &str| {
        let address = r.run(&["cat", &format!("/sys/class/net/{name}/address")]).unwrap().stdout;
        mac(address.trim())
    };
    let (bond, other) = (address("bond0"), address("r3"));
    let datagram = |to, port| {
        let packet = Packet::udp((b.v4, port).into(), (a.v4, 9).into()).macs(mac("02:00:00:00:00:09"), to);
        (1, packet.payload(b"from b").build().unwrap())
    };
    let arriving = || {
        let port = |frame: &[u8]| u16::from_be_bytes([frame[34], frame[35]]);
        let is_from_b = |frame: &[u8]| frame.ends_with(b"from b");
        let ear = Ear::at(&a.ns, &a.interface);
        raw::send(&a.ns, "a3", &[datagram(bond, 2), datagram(other, 3)]);
        raw::send(&b.ns, "b0", &[datagram(bond, 1)]);
        ear.wait(1, |frame| is_from_b(frame) && port(frame) == 1);
        ear.wait(1, is_from_b).iter().map(|frame| port(frame)).collect::<Vec<_>>()
    };
    assert_eq!(arriving(), [3, 1], "by the kernel");
    let bywash = bonded.run("driver");
    bonded.assert_carried_by(&bywash, "r1");
    assert_eq!(arriving(), [3, 1]);
    bywash.stop();
}
