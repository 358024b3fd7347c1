//! Self-test of the lab: it builds what it claims, measures correctly, and leaves nothing behind.

use bywash_lab::{
    Direction, End, Iperf, Namespace, Ping, Snapshot, Topology, Transfer, Veth, counters, has_tool, patience, require,
    require_lab, run_host, sweep, wait_until,
};
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

fn exists(name: &str) -> bool {
    std::fs::exists(format!("/run/netns/{name}")).unwrap()
}

#[test]
fn a_namespace_goes_with_its_guard_even_on_panic() {
    require!(require_lab());
    let namespace = Namespace::new("gone").unwrap();
    let name = namespace.name().to_owned();
    let process = namespace.spawn(&["sleep", "60"]).unwrap();
    let pid = process.pid();
    assert!(exists(&name));
    let result = std::thread::spawn(move || {
        let _held = namespace;
        panic!("on purpose");
    })
    .join();
    assert!(result.is_err() && !exists(&name));
    // The process inside was ended and does not keep the devices.
    let mut process = process;
    let status = process.wait(Duration::from_secs(60)).unwrap();
    assert!(!status.success() && pid != 0);
}

#[test]
fn sweep_takes_the_dead_and_leaves_the_living() {
    require!(require_lab());
    let living = Namespace::new("living").unwrap();
    // A process ID above the kernel's limit of 2^22, so it cannot exist.
    let stale = format!("bw-4194999-{}-stale", std::process::id());
    run_host(&["ip", "netns", "add", &stale]).unwrap();
    sweep();
    assert!(!exists(&stale) && exists(living.name()));
}

#[test]
fn commands_run_inside_and_errors_name_the_command() {
    require!(require_lab());
    let namespace = Namespace::new("run").unwrap();
    let links = namespace.run(&["ls", "/sys/class/net"]).unwrap().stdout;
    assert!(links.contains("lo") && !links.contains("eth"), "{links}");
    let message = namespace.run(&["sh", "-c", "echo why >&2; exit 2"]).unwrap_err().to_string();
    assert!(message.contains("exit 2") && message.contains("why"), "{message}");
    let message = namespace.ip_batch("link add x0 type nonsense\n").unwrap_err().to_string();
    assert!(message.contains("nonsense") || message.contains("type"), "{message}");
}

#[test]
fn enter_sees_the_namespace_and_lets_panics_through() {
    require!(require_lab());
    let namespace = Namespace::new("enter").unwrap();
    namespace.sysctl("net.ipv4.ip_default_ttl", "77").unwrap();
    assert_eq!(namespace.read_sysctl("net/ipv4/ip_default_ttl").unwrap(), "77");
    assert_ne!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").unwrap().trim(), "77");
    let seen = namespace.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    assert_eq!(seen.lines().filter(|line| line.contains(':')).count(), 1, "{seen}");
    let panicked = std::panic::catch_unwind(|| namespace.enter(|| panic!("through")));
    assert!(panicked.is_err());
    assert!(namespace.sysctl("net/ipv4/no_such_key", "1").unwrap_err().to_string().contains("no_such_key"));
}

#[test]
fn a_veth_is_made_as_asked() {
    require!(require_lab(), has_tool("ethtool"));
    let (one, other) = (Namespace::new("one").unwrap(), Namespace::new("other").unwrap());
    // The same name on both sides: ends are created in their namespaces, not moved there.
    let near = End::new(&one, "v0").mac("02:00:00:00:00:aa").address("192.0.2.1/24").address("2001:db8::1/64");
    let far = End::new(&other, "v0").mac("02:00:00:00:00:bb").address("192.0.2.2/24").offload("tx", false);
    Veth::new(near, far).mtu(1400).queues(2).create().unwrap();
    let link = one.ip(&["-d", "link", "show", "v0"]).unwrap().stdout;
    for wanted in ["02:00:00:00:00:aa", "mtu 1400", "numtxqueues 2", "numrxqueues 2", "LOWER_UP"] {
        assert!(link.contains(wanted), "{wanted} in {link}");
    }
    let addresses = one.ip(&["address", "show", "v0"]).unwrap().stdout;
    assert!(addresses.contains("2001:db8::1/64") && !addresses.contains("tentative"), "{addresses}");
    assert!(other.ip(&["link", "show", "v0"]).unwrap().stdout.contains("02:00:00:00:00:bb"));
    let features = other.run(&["ethtool", "-k", "v0"]).unwrap().stdout;
    assert!(features.contains("tx-checksumming: off"), "{features}");
    assert_eq!(Ping::to([192, 0, 2, 2]).count(1).run(&one).unwrap().received, 1);
}

#[test]
fn the_router_forwards_and_is_counted() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let before = counters(lab.r(), "r1").unwrap();
    let report = Ping::to(lab.b().v4).count(5).run(&lab.a().ns).unwrap();
    assert_eq!((report.sent, report.received), (5, 5), "{}", report.text);
    assert!(report.text.contains("ttl=63"), "not exactly one hop: {}", report.text);
    assert_eq!(Ping::to(lab.b().v6).run(&lab.a().ns).unwrap().received, 3);
    let passed = counters(lab.r(), "r1").unwrap().since(&before);
    assert!(passed.tx_packets >= 8 && passed.rx_packets >= 8, "{passed:?}");
    let short = Ping::to(lab.b().v4).count(1).ttl(1).run(&lab.a().ns).unwrap();
    assert_eq!((short.received, short.errors), (0, 1), "{}", short.text);
    assert!(short.text.contains("From 10.0.1.1"), "{}", short.text);
}

/// Returns two hosts on one cable: 192.0.2.1 on `v0` of the first, 192.0.2.2 on `v0` of the second.
fn two_hosts() -> (Namespace, Namespace) {
    let (one, other) = (Namespace::new("one").unwrap(), Namespace::new("other").unwrap());
    Veth::new(End::new(&one, "v0").address("192.0.2.1/24"), End::new(&other, "v0").address("192.0.2.2/24"))
        .create()
        .unwrap();
    (one, other)
}

#[test]
fn a_late_reply_to_the_last_request_counts_after_a_quick_one() {
    require!(require_lab());
    let (one, other) = two_hosts();
    for (key, value) in [("mcast_solicit", "100"), ("retrans_time_ms", "100")] {
        one.sysctl(&format!("net/ipv4/neigh/v0/{key}"), value).unwrap();
    }
    let interval = patience(Duration::from_secs(2));
    let ping = Ping::to([192, 0, 2, 2]).count(2).interval(interval).wait(Duration::from_secs(60));
    let report = std::thread::scope(|scope| {
        let pings = scope.spawn(|| ping.run(&one).unwrap());
        std::thread::sleep(interval / 2);
        // The second request waits until the other host answers ARP requests again.
        other.sysctl("net/ipv4/conf/all/arp_ignore", "8").unwrap();
        one.ip(&["neigh", "flush", "dev", "v0"]).unwrap();
        std::thread::sleep(interval * 2);
        other.sysctl("net/ipv4/conf/all/arp_ignore", "0").unwrap();
        pings.join().unwrap()
    });
    assert_eq!((report.sent, report.received, report.errors), (2, 2, 0), "{}", report.text);
    let time = |line: &str| line.split("time=").nth(1)?.strip_suffix(" ms")?.parse::<f64>().ok();
    let times: Vec<f64> = report.text.lines().filter_map(time).collect();
    // iputils' ping waits for twice the longest round trip or for the interval, whichever is longer.
    let late = f64::max(interval.as_secs_f64() * 1e3, 2.0 * times[0]);
    assert!(times.len() == 2 && times[1] > late, "{}", report.text);
}

#[test]
fn icmp_errors_are_reported_with_their_senders() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (a, b, r) = (lab.a(), lab.b(), lab.r());
    // The kernel gives up a neighbour after 3 s.
    let ping = |to: &str| Ping::to(to.parse::<IpAddr>().unwrap()).count(1).wait(Duration::from_secs(60));
    let line = |ping: Ping, line: &str| {
        let report = ping.run(&a.ns).unwrap();
        assert_eq!((report.sent, report.received, report.errors), (1, 0, 1), "{line}: {}", report.text);
        assert!(report.text.lines().any(|found| found == line), "{line} not in {}", report.text);
    };
    let (b4, b6) = (b.v4.to_string(), b.v6.to_string());
    line(ping(&b4).ttl(1), "From 10.0.1.1 icmp_seq=1 Time to live exceeded");
    line(ping(&b6).ttl(1), "From fd00:1::1 icmp_seq=1 Time exceeded: Hop limit");
    assert_eq!(ping(&b4).ttl(2).run(&a.ns).unwrap().received, 1);
    assert_eq!(ping(&b6).ttl(2).run(&a.ns).unwrap().received, 1);

    r.ip(&["link", "set", "r1", "mtu", "1300"]).unwrap();
    b.ns.ip(&["link", "set", &b.interface, "mtu", "1300"]).unwrap();
    for (to, head, first) in [
        (&b4, 28, "From 10.0.1.1 icmp_seq=1 Frag needed and DF set (mtu = 1300)"),
        (&b6, 48, "From fd00:1::1 icmp_seq=1 Packet too big: mtu=1300"),
    ] {
        let short = || ping(to).size(1300 - head).dont_fragment();
        assert_eq!(short().run(&a.ns).unwrap().received, 1);
        line(short().size(1301 - head), first);
        // By now the kernel of the sender knows.
        line(short().size(1301 - head), "icmp_seq=1 local error: message too long, mtu=1300");
        // Longer than the links' MTU, in fragments.
        let report = ping(to).size(4000).run(&a.ns).unwrap();
        assert_eq!(report.received, 1, "{}", report.text);
    }

    r.ip_batch("route add prohibit 10.9.0.0/24\nroute add unreachable fd09::/64\n").unwrap();
    line(ping("10.9.0.1"), "From 10.0.1.1 icmp_seq=1 Packet filtered");
    line(ping("fd09::1"), "From fd00:1::1 icmp_seq=1 Destination unreachable: No route");
    // Of the sender itself: nobody has this address.
    line(ping("10.0.1.77"), "From 10.0.1.2 icmp_seq=1 Destination Host Unreachable");
    line(ping("fd00:1::77"), "From fd00:1::2 icmp_seq=1 Destination unreachable: Address unreachable");
    a.ns.ip(&["route", "del", "default"]).unwrap();
    let error = ping(&b4).run(&a.ns).unwrap_err().to_string();
    assert!(error.contains("pinging 10.0.2.2") && error.contains("unreachable"), "{error}");
}

#[test]
fn without_forwarding_nothing_arrives() {
    require!(require_lab());
    let lab = Topology::builder().forwarding(false).build().unwrap();
    let report = Ping::to(lab.b().v4).count(2).wait(Duration::from_millis(200)).run(&lab.a().ns).unwrap();
    assert_eq!(report.received, 0);
    assert!(Topology::router_n(1).is_err() && Topology::router_n(18).is_err());
}

#[test]
fn more_ports_and_static_neighbours() {
    require!(require_lab());
    let lab = Topology::builder().ports(4).queues(2).static_neighbours(true).build().unwrap();
    assert_eq!(lab.router_interfaces(), ["r0", "r1", "r2", "r3"]);
    let neighbours = lab.r().ip(&["neigh", "show", "nud", "permanent"]).unwrap().stdout;
    assert_eq!(neighbours.lines().count(), 8, "{neighbours}");
    for host in &lab.hosts()[1..] {
        assert_eq!(Ping::to(host.v4).count(1).run(&lab.a().ns).unwrap().received, 1);
        assert_eq!(Ping::to(host.v6).count(1).run(&lab.a().ns).unwrap().received, 1);
    }
}

#[test]
fn iperf_measures_both_ways_and_both_families() {
    require!(require_lab(), has_tool("iperf3"));
    let lab = Topology::router().unwrap();
    let (a, b) = (lab.a(), lab.b());
    for direction in [Direction::Forward, Direction::Reverse] {
        let report = Iperf::tcp(1).run(&a.ns, &b.ns, b.v4, direction).unwrap();
        assert!(report.bits_per_second > 1e6 && report.bytes > 100_000, "{report:?}");
    }
    assert!(Iperf::tcp(1).run(&a.ns, &b.ns, b.v6, Direction::Forward).unwrap().bits_per_second > 1e6);
    let udp = Iperf::udp(1, 1_000_000).udp_payload(500).run(&a.ns, &b.ns, b.v4, Direction::Forward).unwrap();
    assert!((0.5e6..2e6).contains(&udp.bits_per_second), "{udp:?}");
}

#[test]
fn a_transfer_is_compared_byte_by_byte() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (a, b) = (lab.a(), lab.b());
    for (bytes, address) in [(20_000_001, b.v4.into()), (1_000_000, std::net::IpAddr::from(b.v6)), (0, b.v4.into())] {
        let report = Transfer::new(bytes).run(&a.ns, &b.ns, address).unwrap();
        assert!(report.is_intact() && report.received == bytes, "{report:?}");
    }
    let other = Transfer::new(1000).seed(2).run(&a.ns, &b.ns, b.v4).unwrap();
    let first = Transfer::new(1000).run(&a.ns, &b.ns, b.v4).unwrap();
    assert_ne!(other.sent_hash, first.sent_hash);
    lab.r().ip(&["link", "set", "r1", "down"]).unwrap();
    let error = Transfer::new(10).stall(Duration::from_millis(300)).run(&a.ns, &b.ns, b.v4).unwrap_err().to_string();
    assert!(error.contains("connecting"), "{error}");
}

#[test]
fn a_snapshot_sees_every_kind_of_change() {
    require!(require_lab(), has_tool("ethtool"));
    let lab = Topology::router().unwrap();
    let r = lab.r();
    let before = Snapshot::of(r).unwrap();
    // Traffic changes counters and learns neighbours, which are not settings.
    assert_eq!(Ping::to(lab.b().v4).run(&lab.a().ns).unwrap().received, 3);
    assert_eq!(before.differences(&Snapshot::of(r).unwrap()), Vec::<String>::new());

    let by_ip = [
        ("link r0 mtu", "link set r0 mtu 1400", "link set r0 mtu 1500"),
        ("link r0 promiscuity", "link set r0 promisc on", "link set r0 promisc off"),
        ("address r0 192.0.2.1/32", "addr add 192.0.2.1/32 dev r0", "addr del 192.0.2.1/32 dev r0"),
        ("route4", "route add 198.51.100.0/24 dev r0", "route del 198.51.100.0/24 dev r0"),
        ("neighbour", "neigh add 10.0.1.9 lladdr 02:00:00:00:00:09 nud permanent dev r0", "neigh del 10.0.1.9 dev r0"),
    ];
    let check = |key: &str, make: &dyn Fn(), undo: &dyn Fn()| {
        make();
        let differences = before.differences(&Snapshot::of(r).unwrap());
        assert!(differences.iter().any(|line| line.contains(key)), "{key} not in {differences:?}");
        undo();
        let left = before.differences(&Snapshot::of(r).unwrap());
        assert!(left.is_empty(), "after undoing {key}: {left:?}");
    };
    for (key, make, undo) in by_ip {
        check(key, &|| set(r, make), &|| set(r, undo));
    }
    let gro = |on| r.offload("r0", "gro", on).unwrap();
    check("ethtool -k r0", &|| gro(true), &|| gro(false));
    let rp_filter = |value| r.sysctl("net/ipv4/conf/r0/rp_filter", value).unwrap();
    let found = r.read_sysctl("net/ipv4/conf/r0/rp_filter").unwrap();
    let other = if found == "2" { "1" } else { "2" };
    check("sysctl net/ipv4/conf/r0/rp_filter", &|| rp_filter(other), &|| rp_filter(&found));
}

fn set(namespace: &Namespace, line: &str) {
    namespace.ip_batch(&format!("{line}\n")).unwrap();
}

#[test]
fn the_host_is_left_as_found() {
    require!(require_lab());
    let before = Snapshot::of_host().unwrap();
    drop(Topology::router().unwrap());
    let differences = before.differences(&Snapshot::of_host().unwrap());
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn work_in_a_namespace_can_outlive_the_call() {
    require!(require_lab());
    let namespace = Namespace::new("thread").unwrap();
    let echo = namespace.thread(|| {
        let socket = UdpSocket::bind("127.0.0.1:7777").unwrap();
        let mut buffer = [0; 16];
        let (count, from) = socket.recv_from(&mut buffer).unwrap();
        socket.send_to(&buffer[..count], from).unwrap();
    });
    let echo = echo.unwrap();
    let answered = namespace.enter(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut buffer = [0; 16];
        wait_until("an echo", Duration::from_secs(60), || {
            socket.send_to(b"hello", "127.0.0.1:7777").is_ok() && socket.recv(&mut buffer).is_ok()
        })
    });
    answered.unwrap().unwrap();
    echo.join().unwrap().unwrap();
}
