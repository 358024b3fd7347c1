//! The router on real or emulated NICs that the caller names for the tests.
//!
//! `BYWASH_TEST_NICS` lists groups of NICs, separated by spaces, such as `igb:zero-copy:2:eth0,eth1,eth2,eth3`: the
//! model; the mode of XDP and of the sockets, which the tests require: `zero-copy` or `copy`, both with native XDP, or
//! `skb`, with generic XDP or traffic control; the number of queues on which such a NIC receives if there are many
//! flows; and four NICs (host a's, the router's two, host b's), with cables between the first two and between the last
//! two. `make test-vm` provides such NICs; no other test touches hardware.

use crate::garbage::mac;
use crate::harness::{Bywash, PATIENCE, alone, assert_detached, bywash};
use crate::raw;
use bywash_lab::{
    Direction, Iperf, Namespace, Ping, Reason, Transfer, has_tool, kernel_has, patience, require, require_lab,
    run_host, wait_until,
};
use bywash_wire::build::Packet;
use rustix::process::Signal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Network and host part of the addresses of each NIC.
const ADDRESSES: [(u8, u8); 4] = [(1, 2), (1, 1), (2, 1), (2, 2)];

/// Host a - router - host b: 10.0.1.0/24 and fd00:1::/64 on the first cable, 10.0.2.0/24 and fd00:2::/64 on the second.
struct Cabled {
    model: String,
    mode: String,
    /// Number of queues on which a NIC receives.
    queues: usize,
    nics: Vec<String>,
    a: Namespace,
    r: Namespace,
    b: Namespace,
}

impl Cabled {
    fn new(group: &str) -> Self {
        let parts: Vec<&str> = group.split(':').collect();
        let [model, mode, queues, nics] = parts.try_into().expect("MODEL:MODE:QUEUES:NICS");
        let nics: Vec<String> = nics.split(',').map(String::from).collect();
        assert_eq!(nics.len(), 4, "{group}");
        let [a, r, b] = ["a", "r", "b"].map(|hint| Namespace::new(hint).unwrap());
        r.sysctl("net/ipv4/ip_forward", "1").unwrap();
        r.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        let cabled =
            Self { model: model.to_owned(), mode: mode.to_owned(), queues: queues.parse().unwrap(), nics, a, r, b };
        for (side, nic) in cabled.nics.iter().enumerate() {
            // A deleted namespace returns its NICs to the host with a delay.
            let there = || run_host(&["ip", "link", "show", nic]).is_ok();
            wait_until(&format!("{nic} to be free"), PATIENCE, there).unwrap();
            run_host(&["ip", "link", "set", nic, "netns", cabled.namespace(side).name()]).unwrap();
            cabled.set_up(side);
        }
        cabled
    }

    /// Returns the namespace of NIC `side`.
    fn namespace(&self, side: usize) -> &Namespace {
        [&self.a, &self.r, &self.r, &self.b][side]
    }

    /// Sets NIC `side` up, with its addresses and its host's default routes, which it has lost if it was down.
    fn set_up(&self, side: usize) {
        let (ns, nic, (net, host)) = (self.namespace(side), &self.nics[side], ADDRESSES[side]);
        ns.ip_batch(&format!(
            "link set {nic} mtu 1500 up\naddress replace 10.0.{net}.{host}/24 dev {nic}\n\
             address replace fd00:{net}::{host}/64 dev {nic} nodad\n"
        ))
        .unwrap();
        if host == 2 {
            ns.ip_batch(&format!("route replace default via 10.0.{net}.1\nroute replace ::/0 via fd00:{net}::1\n"))
                .unwrap();
        }
    }

    /// Waits until all NICs have a carrier: many drivers reset the NIC when a program or a setting changes.
    fn wait_for_carrier(&self) {
        for (side, nic) in self.nics.iter().enumerate() {
            let running =
                || self.namespace(side).ip(&["link", "show", nic]).is_ok_and(|out| out.stdout.contains("LOWER_UP"));
            wait_until(&format!("{nic} to have a carrier"), PATIENCE, running).unwrap();
        }
    }

    /// Runs the router on its two NICs. Zero-copy is required if the group's mode is `zero-copy`.
    fn run(&self) -> Bywash<'_> {
        self.run_with("", "")
    }

    /// Like [`Cabled::run`], with these lines in front of the ports' sections and in each of them.
    fn run_with(&self, front: &str, each: &str) -> Bywash<'_> {
        let zero_copy = if self.mode == "zero-copy" { "require" } else { "auto" };
        // By default igb is in copy mode, because it would cut frames.
        let pool = if zero_copy == "require" && self.model == "igb" { "[pool]\ncell = 4096\n" } else { "" };
        let port = |nic: &String| format!("[[port]]\ninterface = \"{nic}\"\nzero_copy = \"{zero_copy}\"\n{each}");
        self.run_by(&format!("{pool}{front}{}{}", port(&self.nics[1]), port(&self.nics[2])))
    }

    /// Runs the router with this configuration.
    fn run_by(&self, configuration: &str) -> Bywash<'_> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bywash.toml");
        std::fs::write(&file, configuration).unwrap();
        Bywash::run(&self.r, &["--config", file.to_str().unwrap()])
    }

    /// Runs the router at a level, at which nothing is zero-copy for `driver`.
    fn run_at(&self, level: &str) -> Bywash<'_> {
        let zero_copy = if level == "driver" { "off" } else { "auto" };
        let port = |nic: &String| {
            format!("[[port]]\ninterface = \"{nic}\"\nlevel = \"{level}\"\nzero_copy = \"{zero_copy}\"\n")
        };
        self.run_by(&(port(&self.nics[1]) + &port(&self.nics[2])))
    }

    /// Fails unless the hosts reach each other by IPv4 and IPv6 without loss.
    fn assert_connected(&self) {
        self.wait_for_carrier();
        for (from, to) in [(&self.a, "10.0.2.2"), (&self.a, "fd00:2::2"), (&self.b, "10.0.1.2"), (&self.b, "fd00:1::2")]
        {
            let ping = Ping::to(to.parse::<IpAddr>().unwrap());
            // Only few packets wait until a neighbour answers, and a NIC may hold its first ones back.
            let answered = || ping.clone().count(1).run(from).unwrap().received == 1;
            wait_until(&format!("{to} to answer"), PATIENCE, answered).unwrap();
            // `ping` waits for the last answer as long as for the next request, and a CPU of an emulated machine may
            // stand still for longer: one of three runs without loss is enough.
            let ping = ping.count(10).interval(patience(Duration::from_millis(10)));
            let mut last = String::new();
            let complete = (0..3).any(|_| {
                let report = ping.run(from).unwrap();
                last = report.text;
                (report.received, report.errors) == (10, 0)
            });
            assert!(complete, "{}: {last}", self.model);
        }
    }

    /// Waits until pings from a to an address of b, and their answers, are forwarded past the kernel, and fails if
    /// bytes of a transfer there are lost or changed.
    fn assert_carried(&self, bywash: &Bywash<'_>, to: &str) {
        let to: IpAddr = to.parse().unwrap();
        let sent = |nic: usize| bywash.counter(&self.nics[nic], "tx_packets");
        bywash.wait(&format!("packets to {to} to be forwarded"), |_| {
            let before = (sent(1), sent(2));
            let report = Ping::to(to).count(5).run(&self.a).unwrap();
            report.received == 5 && sent(1) >= before.0 + 5 && sent(2) >= before.1 + 5
        });
        let report = Transfer::new(1_000_000).run(&self.a, &self.b, to).unwrap();
        assert!(report.is_intact(), "{} {to}: {report:?}", self.model);
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

/// Runs `test` on the first group of NICs: for what does not depend on the model.
fn on_first(test: impl Fn(&Cabled)) {
    let _alone = alone();
    test(&Cabled::new(&groups().unwrap()[0]));
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
            let sockets = if lab.mode == "skb" { "copy" } else { &lab.mode };
            assert!(modes.iter().all(|mode| *mode == sockets), "{} {port}", lab.mode);
            assert_eq!(port["mode"] == "native", lab.mode != "skb", "{} {port}", lab.mode);
            assert!(modes.len() >= lab.queues, "{port}");
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
            // Not packets: traffic control counts an skb that GRO has made of many as one. Each transfer has 3 MB.
            let [rx, tx] = ["rx_bytes", "tx_bytes"].map(|name| bywash.counter(nic, name));
            assert!(rx > 2_500_000 && tx > 2_500_000, "{}: {nic} has forwarded {rx} and {tx} bytes", lab.model);
        }
        let log = bywash.stop();
        println!("{}: {}", lab.model, log.lines().last().unwrap_or_default());
        lab.assert_connected();
    });
}

/// igb with cells of 2048 bytes: in zero-copy mode it would cut frames of more than 1024.
#[test]
fn nics_are_in_copy_mode_where_zero_copy_cuts_frames() {
    require!(require_lab(), groups().map(drop));
    on_each(|lab| {
        if lab.model != "igb" || lab.mode != "zero-copy" {
            return;
        }
        let ports: String = lab.nics[1..3].iter().map(|nic| format!("[[port]]\ninterface = \"{nic}\"\n")).collect();
        let bywash = lab.run_by(&ports);
        for nic in &lab.nics[1..3] {
            let port = bywash.port(nic);
            let note = port["queues"][0]["mode_note"].as_str().unwrap_or_default();
            assert!(port["queues"][0]["mode"] == "copy" && note.contains("1024 bytes of a chunk of 2048"), "{port}");
        }
        lab.assert_connected();
        let report = Ping::to("10.0.2.2".parse::<IpAddr>().unwrap()).size(1472).count(5).run(&lab.a).unwrap();
        assert_eq!(report.received, 5, "{}", report.text);
        bywash.stop();
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

/// A worker polls the same queue of both ports, so that what it receives while one host sends comes from one queue.
#[test]
fn nics_receive_on_all_queues() {
    const FLOWS: u8 = 64;
    require!(require_lab(), groups().map(drop), has_tool("python3"));
    on_each(|lab| {
        let count = format!("[workers]\ncount = {}\n", lab.queues);
        let bywash = lab.run_with(&count, "level = \"user\"\n");
        lab.assert_connected();
        let received = || -> Vec<u64> {
            let shown = bywash.show(&["workers"]);
            let workers = shown.as_array().unwrap().iter();
            workers.map(|worker| worker["stages"][0]["packets"].as_u64().unwrap()).collect()
        };
        let address = |side: usize| {
            let shown = lab.namespace(side).ip(&["-br", "link", "show", &lab.nics[side]]).unwrap().stdout;
            mac(shown.split_whitespace().nth(2).unwrap())
        };
        for (from, near, far, to) in [(0, 1, 2, 3), (3, 2, 1, 0)] {
            // Nobody has this address, so that nothing comes back.
            let (net, silent) = (ADDRESSES[from].0, Ipv4Addr::new(10, 0, ADDRESSES[to].0, 99));
            let neighbour = format!("neighbour replace {silent} lladdr {} dev {}\n", address(to), lab.nics[far]);
            lab.r.ip_batch(&neighbour).unwrap();
            let frames: Vec<(u32, Vec<u8>)> = (0..FLOWS)
                .map(|flow| {
                    let source = SocketAddr::from(([10, 0, net, 100 + flow], 1000 + u16::from(flow)));
                    let packet = Packet::udp(source, SocketAddr::from((silent, 9))).payload(&[7; 32]);
                    (1, packet.macs(address(from), address(near)).ttl(64).build().unwrap())
                })
                .collect();
            let (before, sent) = (received(), bywash.counter(&lab.nics[far], "tx_packets"));
            raw::send(lab.namespace(from), &lab.nics[from], &frames);
            bywash.wait("all flows to be forwarded", |bywash| {
                bywash.counter(&lab.nics[far], "tx_packets") >= sent + u64::from(FLOWS)
            });
            let share: Vec<u64> = received().iter().zip(&before).map(|(after, before)| after - before).collect();
            println!("{}: {} packets by queue {share:?}", lab.model, lab.nics[near]);
            assert!(share.iter().all(|packets| *packets >= u64::from(FLOWS) / 8), "{}: {share:?}", lab.model);
        }
        bywash.stop();
    });
}

#[test]
fn nics_carry_traffic_after_they_were_down() {
    require!(require_lab(), groups().map(drop));
    on_each(|lab| {
        let bywash = lab.run();
        lab.assert_connected();
        // The router's NICs one after the other, the hosts', both of the router, and then all, while frames are sent.
        for down in [&[1][..], &[2], &[0], &[3], &[1, 2], &[0, 1, 2, 3]] {
            let mut flood =
                lab.a.spawn(&["ping", "-n", "-q", "-i", "0.02", "-c", "1000", "-W", "1", "10.0.2.2"]).unwrap();
            for &side in down {
                lab.namespace(side).ip(&["link", "set", &lab.nics[side], "down"]).unwrap();
            }
            for &side in down {
                lab.set_up(side);
            }
            flood.kill().unwrap();
            lab.assert_connected();
        }
        let report = Transfer::new(500_000).run(&lab.a, &lab.b, "10.0.2.2".parse::<IpAddr>().unwrap()).unwrap();
        assert!(report.is_intact(), "{}: {report:?}", lab.model);
        bywash.stop();
        lab.assert_connected();
    });
}

/// VLANs are forwarded between NICs, and to and from untagged interfaces, at each level: the NIC leaves the tags in the
/// frames. VLANs that do more than tag are left to the kernel.
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

/// A NIC forwards for the bond that it is the active member of, and for a VLAN on the bond, at each level.
#[test]
fn nics_carry_bonds() {
    require!(require_lab(), groups().map(drop), kernel_has("bonding"), kernel_has("8021q"));
    on_each(|lab| {
        let member = &lab.nics[2];
        lab.r
            .ip_batch(&format!(
                "address flush dev {member}\nlink add bond0 type bond mode active-backup miimon 100\n\
                 link set {member} down\nlink set {member} master bond0\nlink set bond0 up\n\
                 address add 10.0.2.1/24 dev bond0\naddress add fd00:2::1/64 dev bond0 nodad\n\
                 link add link bond0 name bond0.7 type vlan id 7\naddress add 10.1.2.1/24 dev bond0.7\n\
                 link set bond0.7 up\n"
            ))
            .unwrap();
        let name = format!("{}.7", lab.nics[3]);
        lab.b
            .ip_batch(&format!(
                "link add link {} name {name} type vlan id 7\naddress add 10.1.2.2/24 dev {name}\nlink set {name} up\n",
                lab.nics[3]
            ))
            .unwrap();
        for level in ["user", "driver"] {
            let bywash = lab.run_at(level);
            lab.wait_for_carrier();
            // Answers come without a tag.
            for to in ["10.0.2.2", "10.1.2.2"] {
                lab.assert_carried(&bywash, to);
            }
            lab.assert_connected();
            assert!(bywash.log().contains(&format!("bond0: its packets are forwarded by its member {member}")));
            println!("{} {level}: {}", lab.model, bywash.port(member)["level"]);
            bywash.stop();
        }
        lab.assert_connected();
    });
}

/// A NIC carries two VLANs of a bridge that filters VLANs: that of the bridge's own packets without a tag, and that of
/// a VLAN interface on it; both with tags.
#[test]
fn nics_carry_vlans_of_a_bridge() {
    require!(require_lab(), groups().map(drop), kernel_has("bridge-vlans"), kernel_has("8021q"));
    on_each(|lab| {
        let (member, far) = (&lab.nics[2], &lab.nics[3]);
        lab.r
            .ip_batch(&format!(
                "address flush dev {member}\nlink add br0 type bridge vlan_filtering 1\nlink set {member} master br0\n\
                 link add link br0 name br0.7 type vlan id 7\nlink set br0 up\nlink set br0.7 up\n\
                 address add 10.0.2.1/24 dev br0\naddress add fd00:2::1/64 dev br0 nodad\n\
                 address add 10.1.2.1/24 dev br0.7\n"
            ))
            .unwrap();
        for vlan in [&["br0", "vid", "7", "self"][..], &[member, "vid", "7"], &[member, "vid", "1"]] {
            lab.r.run(&[&["bridge", "vlan", "add", "dev"], vlan].concat()).unwrap();
        }
        lab.b
            .ip_batch(&format!(
                "address flush dev {far}\nlink add link {far} name {far}.1 type vlan id 1\n\
                 link add link {far} name {far}.7 type vlan id 7\nlink set {far}.1 up\nlink set {far}.7 up\n\
                 address add 10.0.2.2/24 dev {far}.1\naddress add fd00:2::2/64 dev {far}.1 nodad\n\
                 address add 10.1.2.2/24 dev {far}.7\nroute replace default via 10.0.2.1\n\
                 route replace ::/0 via fd00:2::1\nroute add default via 10.1.2.1 table 9\n\
                 rule add from 10.1.2.2 table 9\n"
            ))
            .unwrap();
        for level in ["user", "driver"] {
            let bywash = lab.run_at(level);
            lab.wait_for_carrier();
            for (to, gateway) in [("10.0.2.2", "10.0.2.1"), ("10.1.2.2", "10.1.2.1")] {
                lab.assert_carried(&bywash, to);
                // Answered by the kernel, which gets the packet on the interface of its VLAN.
                let argv = ["ping", "-n", "-c", "1", "-t", "1", "-W", "10", "-I", to, "10.0.1.2"];
                let out = lab.b.try_run(&argv, PATIENCE).unwrap().stdout;
                assert!(out.contains(&format!("From {gateway}")), "{} {level}: {out}", lab.model);
            }
            lab.assert_connected();
            println!("{} {level}: {}", lab.model, bywash.port(member)["level"]);
            bywash.stop();
        }
    });
}

/// Makes a bridge that filters VLANs, with a VLAN that has a tag on the router's first NIC and none on the other
/// member; with `interface`, also a VLAN interface on the bridge.
fn bridge_with_a_trunk(lab: &Cabled, second: &str, interface: bool) {
    let near = &lab.nics[1];
    lab.r
        .ip_batch(&format!(
            "address flush dev {near}\nlink add br0 type bridge vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0\n\
             link set {near} master br0\nlink set {second} master br0\nlink set br0 up\n"
        ))
        .unwrap();
    for vlan in [&[near, "vid", "7"][..], &[second, "vid", "7", "pvid", "untagged"]] {
        lab.r.run(&[&["bridge", "vlan", "add", "dev"], vlan].concat()).unwrap();
    }
    if interface {
        lab.r.run(&["bridge", "vlan", "add", "dev", "br0", "vid", "7", "self"]).unwrap();
        lab.r.ip_batch("link add link br0 name br0.7 type vlan id 7\nlink set br0.7 up\n").unwrap();
    }
}

/// Gives an interface of host a, or a VLAN on it, the addresses of a network to which the router bridges.
fn join_network(lab: &Cabled, tagged: bool, mtu: u32) {
    let nic = &lab.nics[0];
    let (name, vlan) = match tagged {
        true => (format!("{nic}.7"), format!("link add link {nic} name {nic}.7 type vlan id 7\n")),
        false => (nic.clone(), String::new()),
    };
    lab.a
        .ip_batch(&format!(
            "{vlan}link set {name} mtu {mtu} up\naddress add 10.9.0.1/24 dev {name}\n\
             address add fd00:9::1/64 dev {name} nodad\n"
        ))
        .unwrap();
}

/// Hosts of one network behind two members of a bridge, one of which has the network's VLAN with a tag; the router has
/// an interface in the VLAN, or none.
#[test]
fn nics_carry_frames_from_a_trunk_to_an_access_port() {
    require!(require_lab(), groups().map(drop), kernel_has("bridge-vlans"), kernel_has("8021q"));
    on_first(|lab| frames_from_a_trunk(lab, true));
    on_each(|lab| frames_from_a_trunk(lab, false));
}

fn frames_from_a_trunk(lab: &Cabled, interface: bool) {
    let (near, second, far) = (&lab.nics[1], &lab.nics[2], &lab.nics[3]);
    lab.r.ip(&["address", "flush", "dev", second]).unwrap();
    bridge_with_a_trunk(lab, second, interface);
    join_network(lab, true, 1500);
    lab.b.ip_batch(&format!("address add 10.9.0.2/24 dev {far}\naddress add fd00:9::2/64 dev {far} nodad\n")).unwrap();
    let bywash = lab.run_at("driver");
    lab.wait_for_carrier();
    for to in ["10.9.0.2", "fd00:9::2"] {
        lab.assert_carried(&bywash, to);
    }
    assert!(bywash.counter(near, "rx_bytes") > 1_000_000, "{}", lab.model);
    bywash.assert_conserved();
    println!("{}: {}", lab.model, bywash.port(near)["level"]);
    bywash.stop();
}

/// Hosts of one network on both sides of a VXLAN, to which the router bridges, at each level: what the first sends goes
/// through the VXLAN, and the answers leave by the NIC on the other member of the bridge.
#[test]
fn nics_carry_a_network_through_a_vxlan() {
    require!(require_lab(), groups().map(drop), kernel_has("vxlan"));
    on_each(|lab| network_through_a_tunnel(lab, Through::Bridge));
}

/// Likewise, in a VLAN of a bridge that has no interface in it, with a tag on the NIC.
#[test]
fn nics_carry_a_vlan_through_a_vxlan() {
    require!(require_lab(), groups().map(drop), kernel_has("vxlan"), kernel_has("bridge-vlans"), kernel_has("8021q"));
    on_first(|lab| network_through_a_tunnel(lab, Through::Vlan));
}

/// Likewise, through a VXLAN of several networks, one of which is the VLAN.
#[test]
fn nics_carry_a_vlan_through_a_network_of_a_vxlan() {
    require!(require_lab(), groups().map(drop), kernel_has("vxlan"), kernel_has("bridge-vlans"), kernel_has("8021q"));
    on_first(|lab| network_through_a_tunnel(lab, Through::Network));
}

/// The same with Ethernet in GRE.
#[test]
fn nics_carry_a_network_through_ethernet_in_gre() {
    require!(require_lab(), groups().map(drop), kernel_has("gretap"));
    on_first(|lab| network_through_a_tunnel(lab, Through::Gretap));
}

/// Bridge between a NIC and a VXLAN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    /// Bridge that does not filter VLANs.
    Bridge,
    /// The same with a tunnel of kind `gretap` in place of the VXLAN.
    Gretap,
    /// A VLAN with a tag on the NIC and none on the VXLAN.
    Vlan,
    /// A VLAN with a tag on the NIC that is a network of the VXLAN.
    Network,
}

fn network_through_a_tunnel(lab: &Cabled, through: Through) {
    let (near, far) = (&lab.nics[1], &lab.nics[2]);
    let (kind, of_r, of_b) = match through {
        Through::Gretap => ("gretap key 5 csum", "remote 10.0.2.2", "remote 10.0.2.1"),
        Through::Network => ("vxlan dstport 4789", "external nolearning", "id 5 remote 10.0.2.1"),
        _ => ("vxlan dstport 4789", "id 5 remote 10.0.2.2", "id 5 remote 10.0.2.1"),
    };
    lab.r
        .ip_batch(&format!(
            "link add vx0 type {kind} {of_r} local 10.0.2.1\nlink set vx0 mtu 1450 up\n\
             link set {near} mtu 1450\n"
        ))
        .unwrap();
    let mac_of_b = "02:00:00:00:05:02";
    let tagged = matches!(through, Through::Vlan | Through::Network);
    if tagged {
        bridge_with_a_trunk(lab, "vx0", false);
        let bridge = |line: &str| drop(lab.r.run(&line.split(' ').collect::<Vec<_>>()).unwrap());
        if through == Through::Network {
            bridge("bridge link set dev vx0 vlan_tunnel on");
            bridge("bridge vlan add dev vx0 vid 7");
            bridge("bridge vlan add dev vx0 vid 7 tunnel_info id 5");
            for mac in ["00:00:00:00:00:00", mac_of_b] {
                bridge(&format!("bridge fdb append {mac} dev vx0 src_vni 5 dst 10.0.2.2 self"));
            }
        }
    } else {
        lab.r
            .ip_batch(&format!(
                "address flush dev {near}\nlink add br0 type bridge mcast_snooping 0\nlink set {near} master br0\n\
                 link set vx0 master br0\nlink set br0 mtu 1450\nlink set br0 up\n"
            ))
            .unwrap();
    }
    join_network(lab, tagged, 1450);
    lab.b
        .ip_batch(&format!(
            "link add vx0 address {mac_of_b} type {kind} {of_b} local 10.0.2.2\n\
             link set vx0 mtu 1450 up\naddress add 10.9.0.2/24 dev vx0\naddress add fd00:9::2/64 dev vx0 nodad\n",
        ))
        .unwrap();
    let members = [near.as_str(), "vx0"];
    let isolate = |on| {
        for member in members {
            lab.r.run(&["bridge", "link", "set", "dev", member, "isolated", on]).unwrap();
        }
    };
    let answered = |to: &str| Ping::to(to.parse::<IpAddr>().unwrap()).count(5).run(&lab.a).unwrap().received;
    for level in ["user", "driver"] {
        let bywash = lab.run_at(level);
        lab.wait_for_carrier();
        if lab.mode == "skb" {
            wait_until("pings through the kernel", PATIENCE, || answered("10.9.0.2") == 5).unwrap();
            bywash.stop();
            continue;
        }
        for to in ["10.9.0.2", "fd00:9::2"] {
            lab.assert_carried(&bywash, to);
        }
        let events = |nic, event| bywash.events(nic, event);
        assert!(events(near, "encapsulated") > 20 && events(far, "decapsulated") > 20, "{}", lab.model);
        // A tag makes a frame longer than the MTU of its member allows one without.
        assert_eq!(bywash.verdicts(near, "pass_superframe"), 0, "{}", lab.model);
        // The kernel sends what workers cannot, and resolves the neighbour.
        lab.r.ip(&["neighbour", "flush", "dev", far]).unwrap();
        wait_until("the neighbour", PATIENCE, || answered("10.9.0.2") == 5).unwrap();
        isolate("on");
        wait_until("members that are isolated from each other", PATIENCE, || answered("10.9.0.2") == 0).unwrap();
        isolate("off");
        lab.assert_carried(&bywash, "10.9.0.2");
        println!("{} {level}: {}", lab.model, bywash.port(near)["level"]);
        bywash.assert_conserved();
        bywash.stop();
    }
}
