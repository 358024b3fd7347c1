//! The router on real or emulated NICs that the caller names for the tests.
//!
//! `BYWASH_TEST_NICS` lists groups of NICs, separated by spaces, such as `virtio:zero-copy:eth0,eth1,eth2,eth3`: the
//! model, the mode in which its sockets must be bound (`zero-copy` or `copy`), and four NICs (host a's, the router's
//! two, host b's), with cables between the first two and between the last two. `make test-vm` provides such NICs; no
//! other test touches hardware.

use crate::harness::{Bywash, PATIENCE, alone, assert_detached, bywash};
use bywash_lab::{
    Direction, Iperf, Namespace, Ping, Reason, Transfer, has_tool, kernel_has, require, require_lab, run_host,
    wait_until,
};
use rustix::process::Signal;
use std::net::IpAddr;

/// Host a - router - host b: 10.0.1.0/24 and fd00:1::/64 on the first cable, 10.0.2.0/24 and fd00:2::/64 on the second.
struct Cabled {
    model: String,
    mode: String,
    nics: Vec<String>,
    a: Namespace,
    r: Namespace,
    b: Namespace,
}

impl Cabled {
    fn new(group: &str) -> Self {
        let [model, mode, nics]: [&str; 3] = group.split(':').collect::<Vec<_>>().try_into().expect("MODEL:MODE:NICS");
        let nics: Vec<String> = nics.split(',').map(String::from).collect();
        assert_eq!(nics.len(), 4, "{group}");
        let [a, r, b] = ["a", "r", "b"].map(|hint| Namespace::new(hint).unwrap());
        r.sysctl("net/ipv4/ip_forward", "1").unwrap();
        r.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        for (nic, (ns, host)) in nics.iter().zip([(&a, "1.2"), (&r, "1.1"), (&r, "2.1"), (&b, "2.2")]) {
            // A deleted namespace returns its NICs to the host with a delay.
            let there = || run_host(&["ip", "link", "show", nic]).is_ok();
            wait_until(&format!("{nic} to be free"), PATIENCE, there).unwrap();
            run_host(&["ip", "link", "set", nic, "netns", ns.name()]).unwrap();
            let (net, host) = host.split_once('.').unwrap();
            ns.ip_batch(&format!(
                "address add 10.0.{net}.{host}/24 dev {nic}\naddress add fd00:{net}::{host}/64 dev {nic} nodad\n\
                 link set {nic} up\n"
            ))
            .unwrap();
        }
        for (ns, net) in [(&a, 1), (&b, 2)] {
            ns.ip_batch(&format!("route add default via 10.0.{net}.1\nroute add ::/0 via fd00:{net}::1\n")).unwrap();
        }
        Self { model: model.to_owned(), mode: mode.to_owned(), nics, a, r, b }
    }

    /// Waits until all NICs have a carrier: many drivers reset the NIC when a program or a setting changes.
    fn wait_for_carrier(&self) {
        for (ns, nic) in [&self.a, &self.r, &self.r, &self.b].iter().zip(&self.nics) {
            let running = || ns.ip(&["link", "show", nic]).is_ok_and(|out| out.stdout.contains("LOWER_UP"));
            wait_until(&format!("{nic} to have a carrier"), PATIENCE, running).unwrap();
        }
    }

    /// Runs the router on its two NICs. Zero-copy is required if the group's mode is `zero-copy`.
    fn run(&self) -> Bywash<'_> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bywash.toml");
        let zero_copy = if self.mode == "zero-copy" { "require" } else { "auto" };
        let port = |nic: &String| format!("[[port]]\ninterface = \"{nic}\"\nzero_copy = \"{zero_copy}\"\n");
        std::fs::write(&file, port(&self.nics[1]) + &port(&self.nics[2])).unwrap();
        Bywash::run(&self.r, &["--config", file.to_str().unwrap()])
    }

    /// Runs the router at a level, at which nothing is zero-copy for `driver`.
    fn run_at(&self, level: &str) -> Bywash<'_> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bywash.toml");
        let zero_copy = if level == "driver" { "off" } else { "auto" };
        let port = |nic: &String| {
            format!("[[port]]\ninterface = \"{nic}\"\nlevel = \"{level}\"\nzero_copy = \"{zero_copy}\"\n")
        };
        std::fs::write(&file, port(&self.nics[1]) + &port(&self.nics[2])).unwrap();
        Bywash::run(&self.r, &["--config", file.to_str().unwrap()])
    }

    /// Fails unless the hosts reach each other by IPv4 and IPv6 without loss.
    fn assert_connected(&self) {
        self.wait_for_carrier();
        for (from, to) in [(&self.a, "10.0.2.2"), (&self.a, "fd00:2::2"), (&self.b, "10.0.1.2"), (&self.b, "fd00:1::2")]
        {
            let report = Ping::to(to.parse::<IpAddr>().unwrap()).count(10).run(from).unwrap();
            assert_eq!((report.received, report.errors), (10, 0), "{}: {}", self.model, report.text);
        }
    }
}

/// Returns the groups of `BYWASH_TEST_NICS`; an error if there are none.
fn groups() -> Result<Vec<String>, Reason> {
    let list = std::env::var("BYWASH_TEST_NICS").unwrap_or_default();
    let groups: Vec<String> = list.split_whitespace().map(String::from).collect();
    if groups.is_empty() { Err(Reason::new("no NICs to take (BYWASH_TEST_NICS)")) } else { Ok(groups) }
}

/// Runs `test` on each group of NICs in turn.
fn on_each(test: impl Fn(&Cabled)) {
    let _alone = alone();
    for group in groups().unwrap() {
        test(&Cabled::new(&group));
    }
}

#[test]
fn nics_carry_ping_tcp_and_udp() {
    require!(require_lab(), groups().map(drop), has_tool("iperf3"));
    on_each(|lab| {
        let bywash = lab.run();
        for nic in &lab.nics[1..3] {
            let port = bywash.port(nic);
            let queues = port["queues"].as_array().unwrap();
            let modes: Vec<&str> = queues.iter().map(|queue| queue["mode"].as_str().unwrap()).collect();
            println!(
                "{}: {nic} {} XDP, {} queues {modes:?}, {}",
                lab.model,
                port["mode"],
                queues.len(),
                queues[0]["mode_note"]
            );
            assert!(!modes.is_empty() && modes.iter().all(|mode| *mode == lab.mode), "{port}");
        }
        lab.assert_connected();
        for (from, to, address) in [(&lab.a, &lab.b, "10.0.2.2"), (&lab.b, &lab.a, "fd00:1::2")] {
            let report = Transfer::new(3_000_000).run(from, to, address.parse::<IpAddr>().unwrap()).unwrap();
            assert!(report.is_intact(), "{}: {report:?}", lab.model);
            println!("{}: TCP {:.1} Mbit/s", lab.model, report.bits_per_second() / 1e6);
        }
        for way in [Direction::Forward, Direction::Reverse] {
            let to = "10.0.2.2".parse::<IpAddr>().unwrap();
            let report = Iperf::udp(3, 2_000_000).run(&lab.a, &lab.b, to, way).unwrap();
            println!("{}: UDP {:.1} Mbit/s, {} lost", lab.model, report.bits_per_second / 1e6, report.lost);
            assert!(report.bits_per_second > 500e3, "{}: {report:?}", lab.model);
        }
        for nic in &lab.nics[1..3] {
            assert!(bywash.counter(nic, "rx_packets") > 1000 && bywash.counter(nic, "tx_packets") > 1000, "{nic}");
        }
        let log = bywash.stop();
        println!("{}: {}", lab.model, log.lines().last().unwrap_or_default());
        lab.assert_connected();
    });
}

#[test]
fn the_kernel_forwards_on_nics_after_a_kill() {
    require!(require_lab(), groups().map(drop));
    on_each(|lab| {
        for _ in 0..2 {
            let mut running = lab.run();
            lab.assert_connected();
            running.signalled(Signal::KILL);
            assert_detached(&lab.r);
            lab.assert_connected();
        }
        assert_eq!(bywash(&lab.r, &["restore"]).status.code(), Some(0));
    });
}

/// VLANs are forwarded between NICs, and to and from untagged interfaces, at each level: the NIC leaves the tags in the
/// frames. VLANs that do more than tag are the kernel's.
#[test]
fn nics_carry_vlans() {
    require!(require_lab(), groups().map(drop), kernel_has("8021q"));
    on_each(|lab| {
        for (ns, nic, vlan, net, host) in
            [(&lab.a, 0, 5, 1, 2), (&lab.r, 1, 5, 1, 1), (&lab.r, 2, 7, 2, 1), (&lab.b, 3, 7, 2, 2)]
        {
            let name = format!("{}.{vlan}", lab.nics[nic]);
            ns.ip_batch(&format!(
                "link add link {} name {name} type vlan id {vlan}\naddress add 10.1.{net}.{host}/24 dev {name}\n\
                 link set {name} up\n",
                lab.nics[nic]
            ))
            .unwrap();
        }
        lab.r.ip(&["address", "add", "10.2.2.1/24", "dev", &lab.nics[2]]).unwrap();
        lab.b.ip(&["address", "add", "10.2.2.2/24", "dev", &lab.nics[3]]).unwrap();
        lab.a.ip_batch("route add 10.1.2.0/24 via 10.1.1.1\nroute add 10.2.2.0/24 via 10.1.1.1\n").unwrap();
        lab.b.ip(&["route", "add", "10.1.1.0/24", "via", "10.1.2.1"]).unwrap();
        // From VLAN interface to VLAN interface, from VLAN to plain interface, from plain to VLAN interface.
        lab.a.ip(&["route", "add", "10.1.2.2", "via", "10.0.1.1", "table", "9"]).unwrap();
        lab.a.ip(&["rule", "add", "from", "10.0.1.2", "table", "9"]).unwrap();
        for level in ["user", "driver"] {
            let bywash = lab.run_at(level);
            lab.wait_for_carrier();
            let sent = || bywash.counter(&lab.nics[1], "tx_packets") + bywash.counter(&lab.nics[2], "tx_packets");
            let ping = |from: &str, to: &str| {
                let argv = ["ping", "-n", "-c", "5", "-i", "0.05", "-W", "10", "-I", from, to];
                lab.a.try_run(&argv, PATIENCE).unwrap().stdout
            };
            bywash.wait("VLANs to be carried", |_| {
                let before = sent();
                ping("10.1.1.2", "10.1.2.2");
                sent() >= before + 10
            });
            for (from, to) in [("10.1.1.2", "10.1.2.2"), ("10.1.1.2", "10.2.2.2"), ("10.0.1.2", "10.1.2.2")] {
                let before = sent();
                let out = ping(from, to);
                assert!(out.contains(" 0% packet loss"), "{} {level} {from} {to}: {out}", lab.model);
                let now = sent() - before;
                assert!(now >= 8, "{} {level} {from} {to}: {now} {}", lab.model, bywash.show(&["all"]));
            }
            let before = bywash.verdicts(&lab.nics[1], "pass_vlan");
            let report = Transfer::new(1_000_000).run(&lab.a, &lab.b, "10.1.2.2".parse::<IpAddr>().unwrap()).unwrap();
            assert!(report.is_intact(), "{}: {report:?}", lab.model);
            assert_eq!(bywash.verdicts(&lab.nics[1], "pass_vlan"), before);
            // Answered by the kernel, which gets the frame with its tag.
            let out = lab.a.try_run(&["ping", "-n", "-c", "1", "-t", "1", "10.1.2.2"], PATIENCE).unwrap().stdout;
            assert!(out.contains("From 10.1.1.1"), "{} {level}: {out}", lab.model);
            lab.assert_connected();
            println!("{} {level}: {}", lab.model, bywash.port(&lab.nics[1])["level"]);
            bywash.stop();
        }
        let name = format!("{}.5", lab.nics[1]);
        lab.r.ip(&["link", "set", &name, "type", "vlan", "egress-qos-map", "0:3"]).unwrap();
        let bywash = lab.run();
        lab.wait_for_carrier();
        for to in ["10.1.2.2", "10.2.2.2"] {
            let argv = ["ping", "-n", "-c", "5", "-i", "0.05", "-W", "10", "-I", "10.1.1.2", to];
            let out = lab.a.try_run(&argv, PATIENCE).unwrap().stdout;
            assert!(out.contains(" 0% packet loss"), "{} {to}: {out}", lab.model);
        }
        assert!(bywash.verdicts(&lab.nics[1], "pass_vlan") >= 10, "{}", bywash.show(&["drops"]));
        lab.assert_connected();
        bywash.stop();
    });
}
