//! Bridges with addresses, whose members are ports: what they route is forwarded past the kernel, and all else is
//! bridged by the kernel.

mod members;

use crate::around::{assert_datagrams, assert_lost};
use crate::flows::{BRIEF, Ends, masquerade_to_r0, wait_until_followed};
use crate::harness::{self, Bywash, PATIENCE};
use crate::moves::handled;
use bywash_lab::{Namespace, Ping, Topology, Transfer, has_tool, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Levels asked for: user space, native XDP, and traffic control by default.
const LEVELS: [&[&str]; 3] = [&["--level", "user"], &["--xdp", "native", "--level", "driver"], &[]];

/// Host a on r0; hosts b and c on r1 and r2, members of br0, in one network.
pub struct Bridged {
    pub lab: Topology,
}

const BRIDGE4: &str = "10.9.0.1";
pub const B: [&str; 2] = ["10.9.0.2", "fd00:9::2"];
pub const C: [&str; 2] = ["10.9.0.3", "fd00:9::3"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Bridged {
    pub fn new(options: &str) -> Self {
        let lab = Topology::builder().ports(3).host_offload("gro", true).host_offload("tx", false).build().unwrap();
        lab.r()
            .ip_batch(&format!(
                "link add br0 address 02:00:00:00:00:99 type bridge {options}\nlink set r1 master br0\n\
                 link set r2 master br0\nlink set br0 up\naddress flush dev r1\naddress flush dev r2\n\
                 address add {BRIDGE4}/24 dev br0\naddress add fd00:9::1/64 dev br0 nodad\n"
            ))
            .unwrap();
        for (host, name, [v4, v6]) in [(lab.b(), "b0", B), (&lab.hosts()[2], "c0", C)] {
            host.ns
                .ip_batch(&format!(
                    "address flush dev {name} scope global\naddress add {v4}/24 dev {name}\naddress add {v6}/64 dev {name} nodad\n\
                     route replace default via {BRIDGE4}\nroute replace ::/0 via fd00:9::1\n"
                ))
                .unwrap();
        }
        let bridged = Self { lab };
        for to in [B, C].as_flattened() {
            let reached = || Ping::to(ip(to)).count(1).run(bridged.a()).is_ok_and(|report| report.received == 1);
            wait_until(&format!("{to} to be reached"), PATIENCE, reached).unwrap();
        }
        bridged
    }

    pub fn run(&self, arguments: &[&str]) -> Bywash<'_> {
        Bywash::run_as_is(self.lab.r(), &[arguments, &["r0", "r1", "r2"]].concat())
    }

    pub fn a(&self) -> &Namespace {
        &self.lab.a().ns
    }

    pub fn b(&self) -> &Namespace {
        &self.lab.b().ns
    }

    pub fn c(&self) -> &Namespace {
        &self.lab.hosts()[2].ns
    }

    /// Fails unless a packet from a member is traced through the bridge's gate, and a bridged frame is said to be one.
    fn assert_traced(&self, bywash: &Bywash<'_>) {
        let traced = |mac: &str, to: &str| {
            let (from, to) = ((ip(B[0]), 1000).into(), (ip(to), 2000).into());
            let macs = [mac, self.mac(1)].map(|mac| mac.parse::<MacAddr>().unwrap());
            let frame = Packet::udp(from, to).macs(macs[1], macs[0]).build().unwrap();
            let socket = bywash.socket();
            let hex = bywash_wire::hex::encode(&frame);
            let trace = ["trace", "--socket", socket.to_str().unwrap(), "r1", &hex];
            harness::bywash(self.lab.r(), &trace).stdout
        };
        let routed = traced("02:00:00:00:00:99", &self.lab.a().v4.to_string());
        assert!(routed.contains("sent to: r0") && !routed.contains("gate:"), "{routed}");
        let between = traced(self.mac(2), C[0]);
        assert!(between.contains("not routed: its destination is not the bridge"), "{between}");
    }

    /// Fails if something is lost, changed or not answered as the kernel answers it.
    pub fn assert_connected(&self) {
        let a = self.lab.a();
        let (a4, a6) = (IpAddr::from(a.v4), IpAddr::from(a.v6));
        let ways: [(&Namespace, IpAddr); 8] = [
            (&a.ns, ip(B[0])),
            (&a.ns, ip(C[1])),
            (self.b(), a4),
            (self.c(), a6),
            // Between members.
            (self.b(), ip(C[0])),
            (self.c(), ip(B[1])),
            // The router's own addresses.
            (self.b(), ip(BRIDGE4)),
            (self.c(), a.router_v4.into()),
        ];
        for (from, to) in ways {
            let report = Ping::to(to).count(10).run(from).unwrap();
            assert_eq!((report.received, report.errors), (10, 0), "{to}: {}", report.text);
        }
        for (from, to, addr) in [
            (&a.ns, self.b(), ip(B[0])),
            (&a.ns, self.c(), ip(C[1])),
            (self.b(), &a.ns, a4),
            (self.b(), self.c(), ip(C[0])),
        ] {
            let report = Transfer::new(1_000_000).run(from, to, addr).unwrap();
            assert!(report.is_intact(), "{addr}: {report:?}");
        }
        for (near, far) in [(a4, ip(B[0])), (a6, ip(B[1]))] {
            // The longest is sent in fragments.
            assert_datagrams((&a.ns, near), (self.b(), far), &[0, 1, 100, 1452, 4000]);
        }
        for (to, by) in [(a4, BRIDGE4), (a6, "fd00:9::1")] {
            let report = Ping::to(to).count(1).ttl(1).run(self.b()).unwrap();
            assert!(report.text.contains(by) && report.errors == 1, "{}", report.text);
        }
    }

    /// Returns the packets that have been forwarded past the kernel from each of the ports.
    pub fn past(&self, bywash: &Bywash<'_>) -> [u64; 3] {
        let is_port = |name: &str| bywash.show(&["ports"]).as_array().unwrap().iter().any(|port| port["name"] == name);
        ["r0", "r1", "r2"].map(|port| if is_port(port) { handled(bywash, port)[..2].iter().sum() } else { 0 })
    }

    /// Returns whether `pings` from a to an address are all answered, and at least ten of them, and of their answers,
    /// are forwarded past the kernel by this member.
    pub fn passes(&self, bywash: &Bywash<'_>, to: &str, member: usize, pings: u32) -> bool {
        // The kernel has the first ones, which wait for a neighbour.
        let _ = Ping::to(ip(to)).count(2).run(self.a());
        let before = self.past(bywash);
        let report = Ping::to(ip(to)).count(pings).run(self.a()).unwrap();
        let now = self.past(bywash);
        report.received == pings && now[0] >= before[0] + 10 && now[member] >= before[member] + 10
    }

    pub fn wait_until_passes(&self, bywash: &Bywash<'_>, to: &str, member: usize) {
        bywash.wait(&format!("packets to {to} to be forwarded"), |_| self.passes(bywash, to, member, 10));
    }

    /// Lets no hook of IP see frames between members, makes the router one that only bridges, and runs Bywash on the
    /// members.
    fn run_between(&self, arguments: &[&str]) -> Bywash<'_> {
        let r = self.lab.r();
        for hooks in ["iptables", "ip6tables", "arptables"] {
            let key = format!("net/bridge/bridge-nf-call-{hooks}");
            if std::path::Path::new("/proc/sys").join(&key).exists() {
                r.sysctl(&key, "0").unwrap();
            }
        }
        r.sysctl("net/ipv4/ip_forward", "0").unwrap();
        r.sysctl("net/ipv6/conf/all/forwarding", "0").unwrap();
        r.ip(&["address", "flush", "dev", "br0"]).unwrap();
        Bywash::run_as_is(r, &[arguments, &["r1", "r2"]].concat())
    }

    /// Returns the frames that have been bridged past the kernel from r1 and r2.
    fn between(&self, bywash: &Bywash<'_>) -> [u64; 2] {
        ["r1", "r2"].map(|port| handled(bywash, port)[0])
    }

    /// Returns whether ten pings from b to c, and their answers, are bridged past the kernel.
    pub fn bridges(&self, bywash: &Bywash<'_>, to: &str) -> bool {
        let _ = Ping::to(ip(to)).count(2).wait(Duration::from_millis(100)).run(self.b());
        let before = self.between(bywash);
        let report = Ping::to(ip(to)).count(10).wait(Duration::from_millis(100)).run(self.b()).unwrap();
        let now = self.between(bywash);
        report.received == 10 && (0..2).all(|at| now[at] >= before[at] + 10)
    }

    fn wait_until_bridges(&self, bywash: &Bywash<'_>) {
        for to in C {
            bywash.wait(&format!("frames to {to} to be bridged"), |_| self.bridges(bywash, to));
        }
    }

    /// Returns the MAC address of a host, counted from 0.
    pub fn mac(&self, host: usize) -> &str {
        &self.lab.hosts()[host].mac
    }

    /// Has b and c know each other, without neighbour discovery that the kernel would hear.
    fn introduce(&self) {
        for (ns, name, [v4, v6], host) in [(self.b(), "b0", C, 2), (self.c(), "c0", B, 1)] {
            for to in [v4, v6] {
                ns.ip(&["neigh", "replace", to, "lladdr", self.mac(host), "dev", name, "nud", "permanent"]).unwrap();
            }
        }
    }

    /// Fails unless translated connections from a host, with its address and the member that it is behind, to a are
    /// forwarded past the kernel, as those of this interface, until they end.
    pub fn assert_translated(&self, bywash: &Bywash<'_>, host: (&Namespace, &str, usize), interface: &str) {
        let (a, (ns, own, member)) = (self.lab.a(), host);
        let mut ends = Ends::udp_between((ns, ip(own)), (&a.ns, a.v4.into()), a.v4.into());
        assert_ne!(ends.seen().ip(), ip(own), "the source is translated");
        let passes = || {
            let before = self.past(bywash);
            (0..4u8).for_each(|n| ends.talk(&[n; 700]));
            let now = self.past(bywash);
            now[member] >= before[member] + 4 && now[0] >= before[0] + 4
        };
        wait_until(&format!("UDP from {own} to be forwarded"), PATIENCE, passes).unwrap();
        let shown = bywash.show(&["flows", &format!("src={own}")]);
        let flow = &shown["flows"][0];
        assert_eq!([&flow["original"]["port"], &flow["reply"]["port"]], [interface, "r0"], "{shown}");
        self.lab.r().run(&["conntrack", "-D", "-p", "udp"]).unwrap();
        wait_until("the end of the connection to hold", PATIENCE, || ends.is_unanswered()).unwrap();
        assert!(!ends.answered(BRIEF), "forwarded past conntrack");
        let report = Transfer::new(3_000_000).run(ns, &a.ns, IpAddr::from(a.v4)).unwrap();
        assert!(report.is_intact(), "{report:?}");
    }

    pub fn assert_passes(&self, bywash: &Bywash<'_>) {
        for (host, member) in [(B, 1), (C, 2)] {
            host.iter().for_each(|to| self.wait_until_passes(bywash, to, member));
        }
    }
}

#[test]
fn what_a_bridge_routes_is_forwarded() {
    require!(require_lab());
    let bridged = Bridged::new("");
    bridged.assert_connected();
    for arguments in LEVELS {
        let bywash = bridged.run(arguments);
        bridged.assert_passes(&bywash);
        let said = "br0: packets that it routes are forwarded on its members r1, r2";
        assert!(bywash.log().contains(said), "{}", bywash.log());
        let above = &bywash.port("r2")["above"];
        assert_eq!([&above[0]["name"], &above[0]["kind"]], ["br0", "bridge"], "{above}");
        bridged.assert_traced(&bywash);
        bridged.assert_connected();
        bridged.assert_passes(&bywash);
        bywash.assert_conserved();
        bywash.stop();
    }
}

/// A host moves from one member to another: as the kernel learns of it, packets to it leave by that.
#[test]
fn a_station_is_followed() {
    require!(require_lab());
    let bridged = Bridged::new("");
    for arguments in LEVELS {
        let bywash = bridged.run(arguments);
        bridged.assert_passes(&bywash);
        let address = |ns: &Namespace, interface: &str| {
            let text = ns.ip(&["-j", "link", "show", interface]).unwrap().stdout;
            let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
            shown[0]["address"].as_str().unwrap().to_owned()
        };
        let (of_b, of_c) = (address(bridged.b(), "b0"), address(bridged.c(), "c0"));
        let swap = |b: &str, c: &str, to_b: [&str; 2], to_c: [&str; 2]| {
            bridged
                .b()
                .ip_batch(&format!("link set b0 down\nlink set b0 address {b}\naddress flush dev b0 scope global\n"))
                .unwrap();
            bridged
                .c()
                .ip_batch(&format!("link set c0 down\nlink set c0 address {c}\naddress flush dev c0 scope global\n"))
                .unwrap();
            for (ns, name, [v4, v6]) in [(bridged.b(), "b0", to_b), (bridged.c(), "c0", to_c)] {
                ns.ip_batch(&format!(
                    "link set {name} up\naddress add {v4}/24 dev {name}\naddress add {v6}/64 dev {name} nodad\n\
                     route replace default via {BRIDGE4}\nroute replace ::/0 via fd00:9::1\n"
                ))
                .unwrap();
            }
        };
        swap(&of_c, &of_b, C, B);
        for (host, member) in [(B, 2), (C, 1)] {
            host.iter().for_each(|to| bridged.wait_until_passes(&bywash, to, member));
        }
        swap(&of_b, &of_c, B, C);
        bridged.assert_passes(&bywash);
        bywash.stop();
    }
}

/// Checks `sends`, which sends 250 packets of each station, one each 20 ms, and returns how many were answered, 0 if
/// the kernel does not know a station afterwards, and how many of each were forwarded past the kernel: every half a
/// second one is passed to it, and it forgets none. Tries up to five times, because a busy machine may keep all from
/// running for longer than the kernel remembers a station.
fn assert_renewed(mut sends: impl FnMut() -> (Vec<u32>, Vec<u64>)) {
    let mut tries = vec![];
    let renewed = (0..5).any(|_| {
        let started = Instant::now();
        let (answered, past) = sends();
        let most = 2 * started.elapsed().as_secs() + 10;
        let right =
            answered.iter().all(|n| *n == 250) && past.iter().all(|n| (250_u64.saturating_sub(most)..=245).contains(n));
        tries.push((answered, past, most));
        right
    });
    assert!(renewed, "answers, packets past the kernel, and at most passed to it: {tries:?}");
}

/// The kernel forgets stations that it does not hear, and it hears none of the packets that are forwarded past it: some
/// are passed to it for that.
#[test]
fn stations_that_send_are_not_forgotten() {
    require!(require_lab());
    let bridged = Bridged::new("ageing_time 200");
    let r = bridged.lab.r();
    // No neighbour discovery that the kernel would hear.
    for (name, ns, host, mac) in [("b0", bridged.b(), B, bridged.mac(1)), ("c0", bridged.c(), C, bridged.mac(2))] {
        for addr in host {
            r.ip(&["neigh", "replace", addr, "lladdr", mac, "dev", "br0", "nud", "permanent"]).unwrap();
        }
        for addr in [BRIDGE4, "fd00:9::1"] {
            let set = ["neigh", "replace", addr, "lladdr", "02:00:00:00:00:99", "dev", name, "nud", "permanent"];
            ns.ip(&set).unwrap();
        }
    }
    let bywash = bridged.run(LEVELS[1]);
    // The kernel has some, to hear the stations again, and more if a busy machine gives it time to forget them.
    for (to, member) in [(B[0], 1), (B[1], 1), (C[0], 2), (C[1], 2)] {
        bywash.wait("packets to be forwarded", |_| bridged.passes(&bywash, to, member, 30));
    }
    assert_renewed(|| {
        let (before, to) = (bridged.past(&bywash), bridged.lab.a().v4);
        let answered = std::thread::scope(|scope| {
            let ping = |ns| Ping::to(to).count(250).interval(Duration::from_millis(20)).run(ns).unwrap().received;
            let pings = [bridged.b(), bridged.c()].map(|ns| scope.spawn(move || ping(ns)));
            pings.map(|ping| ping.join().unwrap()).to_vec()
        });
        let now = bridged.past(&bywash);
        (answered, [1, 2].map(|member| now[member] - before[member]).to_vec())
    });
    // Silent ones are forgotten.
    let known = || r.run(&["bridge", "fdb", "show", "br", "br0", "dynamic"]).unwrap().stdout;
    bywash.wait("the kernel to forget them", |_| known().trim().is_empty());
    bywash.stop();
}

#[test]
fn policies_of_a_bridge_and_of_its_members_hold() {
    require!(require_lab());
    let bridged = Bridged::new("");
    let r = bridged.lab.r();
    let a4 = bridged.lab.a().v4;
    let bywash = bridged.run(LEVELS[1]);
    bridged.assert_passes(&bywash);
    for rules in [
        "table inet f {\nchain c {\ntype filter hook forward priority 0\niifname \"br0\" drop\n}\n}",
        "table netdev f {\nchain c {\ntype filter hook ingress device \"r1\" priority 0\nip saddr 10.9.0.2 drop\n}\n}",
        "table bridge f {\nchain c {\ntype filter hook prerouting priority 0\nip saddr 10.9.0.2 drop\n}\n}",
        "table bridge f {\nchain c {\ntype filter hook output priority 0\nip daddr 10.9.0.2 drop\n}\n}",
    ] {
        r.nft(rules).unwrap();
        assert_lost(bridged.b(), a4.into(), rules);
        r.nft("flush ruleset").unwrap();
        bridged.wait_until_passes(&bywash, B[0], 1);
    }
    // Without the bridge's own entry, the kernel sends to all members what is to its address.
    let own = |verb: &str| {
        let entry = r.run(&["sh", "-c", "cat /sys/class/net/br0/address"]).unwrap().stdout.trim().to_owned();
        r.run(&["bridge", "fdb", verb, &entry, "dev", "br0", "self", "permanent"]).unwrap();
    };
    own("del");
    assert_lost(bridged.b(), a4.into(), "without its own entry");
    own("add");
    bridged.wait_until_passes(&bywash, B[0], 1);
    // By the route of a rule, packets leave by a member itself.
    let mac = bridged.lab.b().mac.clone();
    bridged.b().ip(&["address", "add", "10.99.0.1/32", "dev", "lo"]).unwrap();
    let routes = format!(
        "address add 10.98.0.1/24 dev r1\nneighbour add 10.98.0.2 lladdr {mac} dev r1 nud permanent\n\
         route add 10.99.0.0/24 via 10.98.0.2 dev r1 table 7\nrule add to 10.99.0.0/24 lookup 7\n"
    );
    r.ip_batch(&routes).unwrap();
    let rules = "table inet f {\nchain c {\ntype filter hook forward priority 0\noifname \"r1\" drop\n}\n}";
    r.nft(rules).unwrap();
    assert_lost(bridged.a(), ip("10.99.0.1"), rules);
    r.nft("flush ruleset").unwrap();
    r.ip(&["rule", "delete", "to", "10.99.0.0/24"]).unwrap();
    bridged.wait_until_passes(&bywash, B[0], 1);
    r.run(&["tc", "qdisc", "add", "dev", "r1", "clsact"]).unwrap();
    let filter = "tc filter add dev r1 egress protocol ip u32 match u32 0 0 action mirred egress redirect dev lo";
    r.run(&filter.split(' ').collect::<Vec<_>>()).unwrap();
    assert_lost(bridged.a(), ip(B[0]), "a filter of the member");
    r.run(&["tc", "qdisc", "del", "dev", "r1", "clsact"]).unwrap();
    bridged.wait_until_passes(&bywash, B[0], 1);
    // The bridge's switch of forwarding, not the member's.
    r.sysctl("net/ipv4/conf/r1/forwarding", "0").unwrap();
    bridged.wait_until_passes(&bywash, B[0], 1);
    r.sysctl("net/ipv4/conf/br0/forwarding", "0").unwrap();
    assert_lost(bridged.b(), a4.into(), "no forwarding");
    r.sysctl("net/ipv4/conf/br0/forwarding", "1").unwrap();
    bridged.wait_until_passes(&bywash, B[0], 1);
    // Sources must be behind the bridge, whichever of its members that is.
    r.sysctl("net/ipv4/conf/br0/rp_filter", "1").unwrap();
    bridged.assert_passes(&bywash);
    bridged.b().ip(&["address", "add", "10.97.0.1/32", "dev", "lo"]).unwrap();
    let spoofed = ["ping", "-n", "-c", "3", "-i", "0.05", "-W", "1", "-I", "10.97.0.1", &a4.to_string()];
    r.ip(&["route", "add", "10.97.0.1", "via", "10.0.1.2"]).unwrap();
    let counted = "table ip c {\nchain c {\ntype filter hook prerouting priority 0\nip saddr 10.97.0.1 counter\n}\n}";
    bridged.a().nft(counted).unwrap();
    let _ = bridged.b().try_run(&spoofed, PATIENCE);
    let seen = bridged.a().run(&["nft", "list", "ruleset"]).unwrap().stdout;
    assert!(seen.contains("packets 0 "), "from a source that is not behind the bridge: {seen}");
    r.sysctl("net/ipv4/conf/br0/rp_filter", "0").unwrap();
    let passes = || {
        let _ = bridged.b().try_run(&spoofed, PATIENCE);
        !bridged.a().run(&["nft", "list", "ruleset"]).unwrap().stdout.contains("packets 0 ")
    };
    bywash.wait("such packets to pass", |_| passes());
    bywash.stop();
}

/// A bridge of which more decides than addresses, and members that do not forward, are left to the kernel.
#[test]
fn bridges_that_do_more_are_left() {
    require!(require_lab());
    let bridged = Bridged::new("");
    let r = bridged.lab.r();
    let bywash = bridged.run(&[]);
    bridged.assert_passes(&bywash);
    let why = |port: &str| bywash.left_because(port);
    let whole: &[&str] = &["r1", "r2"];
    for (set, unset, left, reason) in [
        (
            "ip link set br0 type bridge ageing_time 0",
            "ip link set br0 type bridge ageing_time 30000",
            whole,
            "learns no addresses",
        ),
        (
            "ip link set r1 type bridge_slave learning off",
            "ip link set r1 type bridge_slave learning on",
            &["r1"],
            "does not learn",
        ),
        (
            "ip link set r1 type bridge_slave locked on",
            "ip link set r1 type bridge_slave locked off",
            &["r1"],
            "locked",
        ),
        ("bridge link set dev r1 state 0", "bridge link set dev r1 state 3", &["r1"], "not in state forwarding"),
        ("ip link set r1 mtu 1300", "ip link set r1 mtu 1500", &["r1"], "MTU"),
    ] {
        if set.contains("mtu") {
            // A bridge has the smallest MTU of its members unless one is set.
            r.ip_batch("link set br0 mtu 1400\nlink set br0 mtu 1500\n").unwrap();
        }
        r.run(&set.split(' ').collect::<Vec<_>>()).unwrap();
        for port in left {
            bywash
                .wait(&format!("{port} to be left by `{set}`"), |_| why(port).is_some_and(|why| why.contains(reason)));
        }
        r.run(&unset.split(' ').collect::<Vec<_>>()).unwrap();
        for port in left {
            bywash.wait(&format!("{port} to be taken over after `{unset}`"), |_| why(port).is_none());
        }
        bridged.assert_passes(&bywash);
    }
    // The switch of the configuration, and a bridge that is a port itself.
    bywash.stop();
    let bywash = bridged.run(&["br0"]);
    bridged.assert_connected();
    let row = bywash.placement("r1");
    assert!(row["why"].as_str().unwrap().contains("is a port itself"), "{row}");
    bywash.stop();
}

/// Members that leave, stations of members that are no ports, and a bridge that goes, under traffic.
#[test]
fn members_and_bridges_come_and_go() {
    require!(require_lab());
    let bridged = Bridged::new("");
    let r = bridged.lab.r();
    for arguments in LEVELS {
        let bywash = Bywash::run_as_is(r, &[arguments, &["r0", "r1"]].concat());
        bridged.wait_until_passes(&bywash, B[0], 1);
        // c is behind a member that is no port.
        bridged.assert_connected();
        r.ip(&["link", "set", "r1", "nomaster"]).unwrap();
        r.ip(&["address", "add", "10.9.1.1/24", "dev", "r1"]).unwrap();
        bridged.b().ip_batch("address add 10.9.1.2/24 dev b0\nroute replace default via 10.9.1.1\n").unwrap();
        bridged.wait_until_passes(&bywash, "10.9.1.2", 1);
        let reached = Ping::to(ip(C[0])).count(5).run(bridged.a()).unwrap();
        assert_eq!(reached.received, 5, "{}", reached.text);
        r.ip_batch("address del 10.9.1.1/24 dev r1\nlink set r1 master br0\n").unwrap();
        bridged
            .b()
            .ip_batch(&format!("address del 10.9.1.2/24 dev b0\nroute replace default via {BRIDGE4}\n"))
            .unwrap();
        bridged.wait_until_passes(&bywash, B[0], 1);
        bridged.assert_connected();
        bywash.stop();
    }
}

/// The router of a home: translated connections of hosts behind a bridge are forwarded past the kernel.
#[test]
fn translated_connections_of_a_bridge_are_forwarded() {
    require!(require_lab(), has_tool("conntrack"));
    let bridged = Bridged::new("");
    let r = bridged.lab.r();
    masquerade_to_r0(r, "br0");
    for arguments in LEVELS {
        let bywash = bridged.run(arguments);
        wait_until_followed(&bywash);
        bridged.assert_translated(&bywash, (bridged.b(), B[0], 1), "br0");
        bridged.assert_translated(&bywash, (bridged.c(), C[0], 2), "br0");
        bywash.assert_conserved();
        bywash.stop();
    }
}

/// The kernel may bridge what it translates from a bridge to the same, instead of routing it.
#[test]
fn translated_connections_that_stay_on_a_bridge_are_left_to_the_kernel() {
    require!(require_lab(), has_tool("conntrack"));
    let bridged = Bridged::new("");
    bridged
        .lab
        .r()
        .nft(&format!(
            "table ip nat {{\nchain pre {{\ntype nat hook prerouting priority dstnat\n\
             ip daddr {BRIDGE4} udp dport 80 dnat to {c}\n}}\n\
             chain post {{\ntype nat hook postrouting priority srcnat\nip daddr {c} oifname \"br0\" masquerade\n}}\n}}",
            c = C[0]
        ))
        .unwrap();
    let bywash = bridged.run(&[]);
    wait_until_followed(&bywash);
    let mut ends = Ends::udp_between((bridged.b(), ip(B[0])), (bridged.c(), ip(C[0])), ip(BRIDGE4));
    bywash.wait("the connection to be left to the kernel", |bywash| {
        (0..8u8).for_each(|n| ends.talk(&[n; 100]));
        bywash.show(&["kernel-connections"]).to_string().contains("stays on one bridge")
    });
    assert_eq!(bywash.show(&["flows"])["total"], 0);
    bywash.stop();
}

/// Without a program that tells stations, a member must not forward as an ordinary port, past the bridge's rules.
#[test]
fn members_without_a_program_that_forwards_are_left() {
    require!(require_lab(), has_tool("setpriv"));
    let bridged = Bridged::new("");
    bridged
        .lab
        .r()
        .nft("table inet f {\nchain c {\ntype filter hook forward priority 0\niifname \"br0\" counter drop\n}\n}")
        .unwrap();
    // The verifier refuses the forwarding program without CAP_PERFMON, as in `moves`.
    let by = ["setpriv", "--bounding-set=-perfmon,-sys_admin", "--inh-caps=-perfmon,-sys_admin"];
    let bywash = Bywash::spawn_by(&by, bridged.lab.r(), &["--level", "user", "r0", "r1", "r2"]);
    bywash.wait("r1 to be left to the kernel", |bywash| {
        bywash.log().contains("forwarding;")
            && bywash
                .log()
                .contains("r1: left to the kernel: it is a member of bridge interface br0, but there are too many")
    });
    for ns in [bridged.b(), bridged.c()] {
        let report = Ping::to(bridged.lab.a().v4).count(5).wait(Duration::from_millis(100)).run(ns).unwrap();
        assert_eq!(report.received, 0, "{}", report.text);
    }
    assert_eq!(bywash.counter("r1", "rx_packets") + bywash.counter("r2", "rx_packets"), 0);
    bywash.stop();
}
