//! Macvlans above ports, as VRRP has them for its virtual MAC address: what they receive is forwarded past the kernel,
//! and in the modes in which they send by the port, what is routed to them.

use crate::around::{assert_datagrams, assert_lost};
use crate::flows::{BRIEF, Ends, masquerade_to_r0, wait_until_followed};
use crate::harness::{Bywash, PATIENCE};
use crate::moves::handled;
use bywash_lab::{Namespace, Ping, Topology, Transfer, has_tool, require, require_lab, wait_until};
use std::net::IpAddr;

/// Levels asked for: user space, native XDP, and traffic control by default.
const LEVELS: [&[&str]; 3] = [&["--level", "user"], &["--xdp", "native", "--level", "driver"], &[]];
/// VRRP's MAC address for router 7 (RFC 9568 7.3).
const VIRTUAL: &str = "00:00:5e:00:01:07";
/// Addresses of the macvlan and of host b behind it.
const OWN: [&str; 2] = ["10.7.0.1", "fd00:7::1"];
const B: [&str; 2] = ["10.7.0.2", "fd00:7::2"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Host a on r0, host b on r1, where the router has the macvlan mv0, by which b sends everything.
struct Virtual {
    lab: Topology,
}

impl Virtual {
    fn new(mode: &str) -> Self {
        let lab = Topology::builder().host_offload("gro", true).host_offload("tx", false).build().unwrap();
        lab.r()
            .ip_batch(&format!(
                "link add link r1 name mv0 address {VIRTUAL} type macvlan mode {mode}\nlink set mv0 up\n\
                 address add {}/24 dev mv0\naddress add {}/64 dev mv0 nodad\n",
                OWN[0], OWN[1]
            ))
            .unwrap();
        let b = &lab.b().ns;
        b.ip_batch(&format!(
            "address add {}/24 dev b0\naddress add {}/64 dev b0 nodad\nroute replace default via {}\n\
             route replace ::/0 via {}\n",
            B[0], B[1], OWN[0], OWN[1]
        ))
        .unwrap();
        let at = Self { lab };
        for to in at.addresses() {
            let reached = || Ping::to(to).count(1).run(at.a()).is_ok_and(|report| report.received == 1);
            wait_until(&format!("{to} to be reached"), PATIENCE, reached).unwrap();
        }
        at
    }

    fn a(&self) -> &Namespace {
        &self.lab.a().ns
    }

    fn b(&self) -> &Namespace {
        &self.lab.b().ns
    }

    /// Returns b's addresses behind the macvlan, and behind the port itself.
    fn addresses(&self) -> [IpAddr; 4] {
        [ip(B[0]), ip(B[1]), self.lab.b().v4.into(), self.lab.b().v6.into()]
    }

    fn run(&self, arguments: &[&str]) -> Bywash<'_> {
        Bywash::run_as_is(self.lab.r(), &[arguments, &["r0", "r1"]].concat())
    }

    fn past(&self, bywash: &Bywash<'_>) -> [u64; 2] {
        ["r0", "r1"].map(|port| handled(bywash, port)[..2].iter().sum())
    }

    /// Waits until pings from a and b's answers by the macvlan are forwarded; without `back`, only the answers are.
    fn wait_until_passes(&self, bywash: &Bywash<'_>, to: IpAddr, back: bool) {
        bywash.wait(&format!("packets to {to} to be forwarded"), |bywash| {
            // The kernel has the first ones, which wait for a neighbour.
            let _ = Ping::to(to).count(2).run(self.a());
            let before = self.past(bywash);
            let report = Ping::to(to).count(10).run(self.a()).unwrap();
            let now = self.past(bywash);
            report.received == 10 && now[1] >= before[1] + 10 && (!back || now[0] >= before[0] + 10)
        });
    }

    /// Fails if something is lost, changed or not answered as the kernel answers it.
    fn assert_connected(&self) {
        let a = self.lab.a();
        let (a4, a6) = (IpAddr::from(a.v4), IpAddr::from(a.v6));
        for (from, to) in [(self.b(), a4), (self.b(), a6), (self.b(), ip(OWN[0])), (self.b(), ip(OWN[1]))] {
            let report = Ping::to(to).count(10).run(from).unwrap();
            assert_eq!((report.received, report.errors), (10, 0), "{to}: {}", report.text);
        }
        for (from, to, addr) in
            [(self.a(), self.b(), ip(B[0])), (self.a(), self.b(), ip(B[1])), (self.b(), self.a(), a4)]
        {
            let report = Transfer::new(1_000_000).run(from, to, addr).unwrap();
            assert!(report.is_intact(), "{addr}: {report:?}");
        }
        for (near, far) in [(a4, ip(B[0])), (a6, ip(B[1]))] {
            // The longest is sent in fragments.
            assert_datagrams((self.a(), near), (self.b(), far), &[0, 1, 100, 1452, 4000]);
        }
        for (to, by) in [(a4, OWN[0]), (a6, OWN[1])] {
            let report = Ping::to(to).count(1).ttl(1).run(self.b()).unwrap();
            assert!(report.text.contains(by) && report.errors == 1, "{}", report.text);
        }
    }
}

#[test]
fn what_a_macvlan_receives_and_sends_is_forwarded() {
    require!(require_lab());
    for mode in ["private", "bridge"] {
        let at = Virtual::new(mode);
        at.assert_connected();
        // In mode bridge, another macvlan on r1 might have the next hop's address: the kernel sends.
        let sends = mode == "private";
        let counted = format!(
            "table netdev c {{\nchain c {{\ntype filter hook ingress device b0 priority 0\n\
             ip daddr {} ether saddr != {VIRTUAL} counter\n}}\n}}",
            B[0]
        );
        at.b().nft(&counted).unwrap();
        for arguments in LEVELS {
            let bywash = at.run(arguments);
            for to in at.addresses() {
                at.wait_until_passes(&bywash, to, sends || !B.map(ip).contains(&to));
            }
            assert!(bywash.log().contains("mv0: its packets are forwarded past the kernel"), "{}", bywash.log());
            let above = &bywash.port("r1")["above"][0];
            assert_eq!((&above["kind"], &above["sends"]), (&"macvlan".into(), &sends.into()), "{above}");
            at.assert_connected();
            at.wait_until_passes(&bywash, ip(B[0]), sends);
            bywash.assert_conserved();
            bywash.stop();
        }
        let seen = at.b().run(&["nft", "list", "ruleset"]).unwrap().stdout;
        assert!(seen.contains("packets 0 "), "sent from another address than the macvlan's: {seen}");
    }
}

#[test]
fn policies_of_a_macvlan_and_of_its_port_hold() {
    require!(require_lab());
    let at = Virtual::new("private");
    let (r, a4) = (at.lab.r(), IpAddr::from(at.lab.a().v4));
    for arguments in LEVELS {
        let bywash = at.run(arguments);
        at.wait_until_passes(&bywash, ip(B[0]), true);
        for rules in [
            "table inet f {\nchain c {\ntype filter hook forward priority 0\niifname \"mv0\" drop\n}\n}",
            "table netdev f {\nchain c {\ntype filter hook ingress device \"r1\" priority 0\nip saddr 10.0.2.2 drop\n}\n}",
        ] {
            r.nft(rules).unwrap();
            // b's address on its own link is the source of its pings.
            let from = ["ping", "-n", "-c", "3", "-i", "0.05", "-W", "1", "-I", "10.0.2.2", &a4.to_string()];
            let lost = || at.b().try_run(&from, PATIENCE).unwrap().stdout.contains(" 100% packet loss");
            wait_until(rules, PATIENCE, lost).unwrap();
            assert!(lost(), "{rules}: some pass again");
            r.nft("flush ruleset").unwrap();
            at.wait_until_passes(&bywash, ip(B[0]), true);
        }
        // The macvlan's switch of forwarding, not the port's.
        r.sysctl("net/ipv4/conf/r1/forwarding", "0").unwrap();
        at.wait_until_passes(&bywash, ip(B[0]), true);
        r.sysctl("net/ipv4/conf/r1/forwarding", "1").unwrap();
        r.sysctl("net/ipv4/conf/mv0/forwarding", "0").unwrap();
        assert_lost(at.b(), a4, "no forwarding");
        r.sysctl("net/ipv4/conf/mv0/forwarding", "1").unwrap();
        at.wait_until_passes(&bywash, ip(B[0]), true);
        // It goes and comes back.
        r.ip(&["link", "set", "mv0", "down"]).unwrap();
        bywash.wait("the kernel to have it", |bywash| bywash.log().contains("mv0: left to the kernel: it is down"));
        r.ip_batch(&format!("link set mv0 up\naddress replace {}/64 dev mv0 nodad\n", OWN[1])).unwrap();
        at.wait_until_passes(&bywash, ip(B[0]), true);
        bywash.stop();
    }
}

/// Established connections through a firewall and a translation pass without the kernel.
#[test]
fn connections_by_a_macvlan_are_forwarded() {
    require!(require_lab(), has_tool("conntrack"));
    let at = Virtual::new("private");
    let r = at.lab.r();
    masquerade_to_r0(r, "mv0");
    for arguments in LEVELS {
        let bywash = at.run(arguments);
        wait_until_followed(&bywash);
        let a4 = IpAddr::from(at.lab.a().v4);
        let mut ends = Ends::udp_between((at.b(), ip(B[0])), (at.a(), a4), a4);
        assert_ne!(ends.seen().ip(), ip(B[0]), "the source is translated");
        let passes = || {
            let before = at.past(&bywash);
            (0..4u8).for_each(|n| ends.talk(&[n; 700]));
            let now = at.past(&bywash);
            now[0] >= before[0] + 4 && now[1] >= before[1] + 4
        };
        wait_until(&format!("{arguments:?}: the connection to be forwarded"), PATIENCE, passes).unwrap();
        let shown = bywash.show(&["flows", &format!("src={}", B[0])]);
        let flow = &shown["flows"][0];
        assert_eq!([&flow["original"]["port"], &flow["reply"]["port"]], ["mv0", "r0"], "{shown}");
        r.run(&["conntrack", "-D", "-p", "udp"]).unwrap();
        wait_until("the end of the connection to hold", PATIENCE, || ends.is_unanswered()).unwrap();
        assert!(!ends.answered(BRIEF), "forwarded past conntrack");
        let report = Transfer::new(3_000_000).run(at.b(), at.a(), a4).unwrap();
        assert!(report.is_intact(), "{report:?}");
        bywash.assert_conserved();
        bywash.stop();
    }
}
