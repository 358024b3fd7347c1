//! Routes by an interface that is not a port of Bywash: the kernel forwards by them, while Bywash forwards by more
//! specific routes of its ports.

#[path = "e2e/harness.rs"]
#[allow(dead_code, reason = "the end-to-end tests need more of it")]
mod harness;

use bywash_lab::{End, Ping, Topology, Transfer, Veth, require, require_lab};
use harness::Bywash;
use std::net::IpAddr;
use std::time::Duration;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Checks that five pings from host a are answered with a remaining TTL of `ttl` out of 64, and that a ping with TTL 1
/// is refused by the router.
fn assert_reaches(lab: &Topology, to: IpAddr, ttl: u8) {
    let report = Ping::to(to).count(5).run(&lab.a().ns).unwrap();
    assert_eq!((report.received, report.errors), (5, 0), "{}", report.text);
    assert!(report.text.contains(&format!("ttl={ttl}")), "{}", report.text);
    let last_hop = Ping::to(to).count(1).ttl(1).run(&lab.a().ns).unwrap();
    assert_eq!((last_hop.received, last_hop.errors), (0, 1), "{}", last_hop.text);
}

fn assert_tcp(lab: &Topology, to: usize) {
    let host = &lab.hosts()[to];
    let report = Transfer::new(4_000_000).run(&lab.a().ns, &host.ns, host.v4).unwrap();
    assert!(report.is_intact(), "{report:?}");
}

/// Pings `to` until the program counts a ping as `verdict` at r0.
fn wait_for(lab: &Topology, bywash: &Bywash<'_>, to: &str, verdict: &str) {
    bywash.wait(&format!("{to} to be {verdict}"), |bywash| {
        let before = bywash.verdicts("r0", verdict);
        Ping::to(ip(to)).count(1).wait(Duration::from_millis(300)).run(&lab.a().ns).unwrap();
        bywash.verdicts("r0", verdict) > before
    });
}

/// Addresses that hosts b and c, behind r1 and r2, both have.
const FAR: [&str; 2] = ["203.0.113.9", "2001:db8::9"];

fn three_ports() -> Topology {
    let lab = Topology::router_n(3).unwrap();
    for host in &lab.hosts()[1..] {
        host.ns.ip_batch("address add 203.0.113.9 dev lo\naddress add 2001:db8::9 dev lo\n").unwrap();
    }
    lab
}

fn run_on_two_of_three(mode: &str) {
    let lab = three_ports();
    // More errors than a kernel sends to one host by default.
    for key in ["net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"] {
        lab.r().sysctl(key, "0").unwrap();
    }
    let (b, c) = (&lab.hosts()[1], &lab.hosts()[2]);
    lab.r().ip_batch("route add default via 10.0.3.2\nroute add ::/0 via fd00:3::2\n").unwrap();
    let bywash = Bywash::run_as_is(lab.r(), &["--xdp", mode, "--level", "user", "r0", "r1"]);

    // The default route, and the more specific connected routes, one of them by a port.
    for to in [IpAddr::from(b.v4), b.v6.into(), c.v4.into(), c.v6.into(), ip(FAR[0]), ip(FAR[1])] {
        assert_reaches(&lab, to, 63);
    }
    assert_tcp(&lab, 1);
    assert_tcp(&lab, 2);
    // Packets for routes by r2 were passed to the kernel by the program; those for routes by ports were not.
    let passed = bywash.verdicts("r0", "pass_route");
    assert!(passed >= 20, "{passed}");
    assert_eq!(bywash.events("r0", "punted"), 0);
    assert!(bywash.verdicts("r0", "to_user") >= 10);

    // Changes at run time: a more specific route by a port comes and goes; then the default route moves to a port and
    // back.
    for (add, to, del) in [
        ("route add 203.0.113.0/24 via 10.0.2.2", FAR[0], "route del 203.0.113.0/24"),
        ("route add 2001:db8::/32 via fd00:2::2", FAR[1], "route del 2001:db8::/32"),
        ("route replace default via 10.0.2.2", FAR[0], "route replace default via 10.0.3.2"),
        ("route replace ::/0 via fd00:2::2", FAR[1], "route replace ::/0 via fd00:3::2"),
    ] {
        lab.r().ip(&add.split(' ').collect::<Vec<_>>()).unwrap();
        wait_for(&lab, &bywash, to, "to_user");
        let sent = bywash.counter("r1", "tx_packets");
        assert_reaches(&lab, ip(to), 63);
        assert!(bywash.counter("r1", "tx_packets") >= sent + 5, "{add}");
        lab.r().ip(&del.split(' ').collect::<Vec<_>>()).unwrap();
        wait_for(&lab, &bywash, to, "pass_route");
        assert_reaches(&lab, ip(to), 63);
    }
    // Without any route by r2, Bywash gets all packets.
    lab.r().ip_batch("route del default\nroute del ::/0\n").unwrap();
    lab.r().ip(&["link", "set", "r2", "down"]).unwrap();
    wait_for(&lab, &bywash, FAR[0], "to_user");
    assert_reaches(&lab, b.v4.into(), 63);
    let log = bywash.stop();
    assert!(!log.contains("detour") && !log.contains("handed back"), "{log}");
}

#[test]
fn default_by_no_port_generic() {
    require!(require_lab());
    run_on_two_of_three("generic");
}

#[test]
fn default_by_no_port_native() {
    require!(require_lab());
    run_on_two_of_three("native");
}

#[test]
fn a_port_that_comes_back_knows_the_routes() {
    require!(require_lab());
    let lab = three_ports();
    let (a, r) = (lab.a(), lab.r());
    r.ip_batch("route add default via 10.0.3.2\nroute add ::/0 via fd00:3::2\n").unwrap();
    let bywash = Bywash::run(r, &["r0", "r1"]);
    wait_for(&lab, &bywash, FAR[0], "pass_route");
    r.ip(&["link", "del", "r0"]).unwrap();
    bywash.wait("the port to be down", |bywash| bywash.port("r0")["state"] == "down");
    let near = End::new(&a.ns, &a.interface).address(format!("{}/24", a.v4)).address(format!("{}/64", a.v6));
    let far = End::new(r, "r0").address(format!("{}/24", a.router_v4)).address(format!("{}/64", a.router_v6));
    Veth::new(near, far).create().unwrap();
    let (v4, v6) = (a.router_v4, a.router_v6);
    a.ns.ip_batch(&format!("route add default via {v4}\nroute add ::/0 via {v6}\n")).unwrap();
    bywash.wait("the port to be up", |bywash| bywash.port("r0")["state"] == "up");
    for (far, ours) in [(FAR[0], "10.0.2.2"), (FAR[1], "fd00:2::2")] {
        wait_for(&lab, &bywash, far, "pass_route");
        wait_for(&lab, &bywash, ours, "to_user");
        assert_reaches(&lab, ip(far), 63);
    }
    assert_eq!(bywash.events("r0", "punted"), 0);
    bywash.stop();
}

/// Returns the number of packets that the router's kernel has forwarded.
fn forwarded(lab: &Topology) -> u64 {
    let text = lab.r().enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap().unwrap();
    let mut ip = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let names = ip.next().unwrap().split(' ').position(|name| name == "ForwDatagrams").unwrap();
    ip.next().unwrap().split(' ').nth(names).unwrap().parse().unwrap()
}

/// Many routes by ports below a default route that is left to the kernel: the program distinguishes them, so that no
/// packet for the kernel reaches a worker.
#[test]
fn a_full_table_beneath() {
    require!(require_lab());
    const MANY: u32 = 60_100;
    let batch: String = (0..MANY)
        .map(|n| format!("route add {}/24 via 10.0.2.2\n", std::net::Ipv4Addr::from(0x6400_0000 + (n << 8))))
        .collect();
    for mode in ["generic", "native"] {
        let lab = three_ports();
        lab.r().ip_batch(&batch).unwrap();
        lab.r().ip(&["route", "add", "default", "via", "10.0.3.2"]).unwrap();
        let bywash = Bywash::run_as_is(lab.r(), &["--xdp", mode, "--level", "user", "r0", "r1"]);
        let to = ip(FAR[0]);
        let (before, verdicts) = (forwarded(&lab), bywash.verdicts("r0", "pass_route"));
        assert_reaches(&lab, to, 63);
        assert_eq!(bywash.events("r0", "punted"), 0, "{mode}");
        assert!(bywash.verdicts("r0", "pass_route") >= verdicts + 5);
        // Five requests and five replies.
        assert!(forwarded(&lab) >= before + 10, "{mode}");
        wait_for(&lab, &bywash, "100.0.7.7", "to_user");
        bywash.stop();
    }
}
