//! Interfaces are deleted, created, renamed and moved while the program runs; the other ports are not affected.

use crate::harness::{Bywash, PATIENCE};
use crate::reload::{File, reload};
use bywash_lab::{End, Namespace, Ping, Topology, Transfer, Veth, kernel_has, require, require_lab, wait_until};
use std::time::Duration;

/// Pings from a to c, whose ports do not change, while `change` runs; fails if a ping is lost.
fn unharmed(lab: &Topology, change: impl FnOnce()) {
    let (a, c) = (lab.a(), &lab.hosts()[2]);
    let knows = || Ping::to(c.v4).count(1).run(&a.ns).unwrap().received == 1;
    wait_until("the neighbours", PATIENCE, knows).unwrap();
    std::thread::scope(|scope| {
        let steady = scope.spawn(|| Ping::to(c.v4).count(60).interval(Duration::from_millis(20)).run(&a.ns).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        change();
        let report = steady.join().unwrap();
        assert_eq!(report.received, report.sent, "{}", report.text);
    });
}

fn reaches_b(lab: &Topology) -> bool {
    let ping = |to| Ping::to(to).count(1).run(&lab.a().ns).unwrap().received;
    ping(std::net::IpAddr::from(lab.b().v4)) + ping(lab.b().v6.into()) == 2
}

/// An interface that nobody has set up is the first mistake of who tries the program.
#[test]
fn ports_that_cannot_receive_are_named() {
    require!(require_lab());
    let lab = Topology::router_n(3).unwrap();
    lab.r().ip(&["link", "set", "r1", "down"]).unwrap();
    let c = &lab.hosts()[2];
    c.ns.ip(&["link", "set", &c.interface, "down"]).unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let log = bywash.log();
    assert!(log.contains("r1: the interface is down: nothing is forwarded on it until `ip link set r1 up`"), "{log}");
    assert!(log.contains("r2: no carrier: "), "{log}");
    assert!(!log.contains("r0: the interface is down") && !log.contains("r0: no carrier"), "{log}");
    lab.r().ip(&["link", "set", "r1", "up"]).unwrap();
    bywash.wait("b to be reached", |_| Ping::to(lab.b().v4).count(1).run(&lab.a().ns).unwrap().received == 1);
    bywash.stop();
}

/// Links that go and come, and an MTU that is too large for the buffers, are logged once each.
#[test]
fn changes_of_links_are_logged() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &["r0", "r1"]);
    let logged = |bywash: &Bywash, what: &str| bywash.log().matches(what).count();
    let (b, down) = (lab.b(), "INFO r1: no carrier: nothing is forwarded on it");
    b.ns.ip(&["link", "set", &b.interface, "down"]).unwrap();
    bywash.wait("a line", |bywash| logged(bywash, down) == 1);
    b.ns.ip(&["link", "set", &b.interface, "up"]).unwrap();
    bywash.wait("a line", |bywash| logged(bywash, "INFO port `r1`: its link is up") == 1);
    lab.r().ip(&["link", "set", "r1", "mtu", "9000"]).unwrap();
    let large = "WARN r1: the MTU is 9000 now, but a buffer holds packets of 1774 bytes: longer ones are left to the \
                 kernel; set `cell = 16384` in [pool]";
    bywash.wait("a warning", |bywash| logged(bywash, large) == 1);
    lab.r().ip(&["link", "set", "r0", "mtu", "1600"]).unwrap();
    bywash.wait("the MTU", |bywash| bywash.port("r0")["mtu"] == 1600);
    let log = bywash.stop();
    assert!(log.matches("r0: ").count() == log.matches("r0: native XDP is not used").count() + 1, "{log}");
    assert_eq!((log.matches(down).count(), log.matches("the MTU is").count()), (1, 1), "{log}");
}

#[test]
fn deleted_and_made_again() {
    require!(require_lab());
    let lab = Topology::router_n(3).unwrap();
    let r = lab.r();
    let bywash = Bywash::run(r, &lab.router_interfaces());
    assert!(reaches_b(&lab));
    for _ in 0..2 {
        unharmed(&lab, || {
            r.ip(&["link", "del", "r1"]).unwrap();
            bywash.wait("the port to be down", |bywash| bywash.port("r1")["state"] == "down");
        });
        let reason = bywash.port("r1")["reason"].to_string();
        assert!(reason.contains("deleted") || reason.contains("gone"), "{reason}");
        bywash.wait("the program to be gone", |bywash| bywash.show(&["placement"])["ports"][1]["level"].is_null());
        let socket = bywash.socket().to_str().unwrap().to_owned();
        let trace = crate::harness::bywash(r, &["trace", "--socket", &socket, "r1", "00"]);
        assert!(trace.stdout.contains("port r1: its interface is gone; below"), "{}{}", trace.stdout, trace.stderr);
        assert!(bywash.show(&["routes", "10.0.2.0/24"]).to_string().find("10.0.2.0/24").is_none());
        unharmed(&lab, || {
            make_again(&lab, 1);
            bywash.wait("the port to be up", |bywash| bywash.port("r1")["state"] == "up");
        });
        bywash.wait("b to be reached", |_| reaches_b(&lab));
        bywash.wait_to_count("r1", "tx_packets", 2, || assert!(reaches_b(&lab)));
    }
    let log = bywash.stop();
    assert!(!log.contains("sysctl"), "a switch that went with its interface is no policy: {log}");
}

/// Creates the link between host b and the router's second interface again, with this number of queues.
fn make_again(lab: &Topology, queues: u32) {
    let (b, r) = (lab.b(), lab.r());
    let near = End::new(&b.ns, &b.interface).address(format!("{}/24", b.v4)).address(format!("{}/64", b.v6));
    let far = End::new(r, "r1").address(format!("{}/24", b.router_v4)).address(format!("{}/64", b.router_v6));
    Veth::new(near, far).queues(queues).create().unwrap();
    b.ns.ip_batch(&format!("route add default via {}\nroute add ::/0 via {}\n", b.router_v4, b.router_v6)).unwrap();
}

/// A port with two queues, each with a worker of its own, is opened again when its interface comes back. If that lacks
/// a queue, the port stays down and the kernel forwards its packets.
#[test]
fn several_queues_made_again() {
    require!(require_lab());
    let lab = Topology::builder().ports(3).queues(2).build().unwrap();
    let port = |name| format!("[[port]]\ninterface = \"{name}\"\nqueues = [0, 1]\nlevel = \"user\"\n");
    let file = File::new(&format!("[workers]\ncount = 2\n{}{}{}", port("r0"), port("r1"), port("r2")));
    let bywash = file.run(&lab);
    let queues = |bywash: &Bywash| {
        let port = bywash.port("r1");
        let of = |queue: &serde_json::Value| (queue["queue"] != serde_json::Value::Null, queue["state"] == "up");
        port["queues"].as_array().unwrap().iter().map(of).filter(|queue| *queue == (true, true)).count()
    };
    assert!(reaches_b(&lab) && queues(&bywash) == 2);
    for queues_made in [2, 1, 2] {
        let counted = bywash.counter("r1", "rx_packets");
        unharmed(&lab, || {
            lab.r().ip(&["link", "del", "r1"]).unwrap();
            bywash.wait("the port to be down", |bywash| bywash.port("r1")["state"] == "down");
        });
        assert!(bywash.counter("r1", "rx_packets") >= counted, "a counter went back");
        // The file still names the interface that the instance waits for.
        assert_eq!(reload(&bywash, &["--dry-run"]).ok().unwrap().stdout, "nothing to change\n");
        unharmed(&lab, || {
            make_again(&lab, queues_made);
            match queues_made {
                2 => {
                    bywash.wait("the port to be up", |bywash| bywash.port("r1")["state"] == "up" && queues(bywash) == 2)
                }
                _ => bywash.wait("the port to be given up", |bywash| bywash.log().contains("port `r1` stays down")),
            }
        });
        bywash.wait("b to be reached", |_| reaches_b(&lab));
        let before = bywash.counter("r1", "tx_packets");
        let transfer = || {
            let to = std::net::IpAddr::from(lab.b().v4);
            let report = Transfer::new(2_000_000).run(&lab.a().ns, &lab.b().ns, to).unwrap();
            assert!(report.is_intact(), "{report:?}");
        };
        transfer();
        match queues_made {
            2 => bywash.wait_to_count("r1", "tx_packets", 1, transfer),
            _ => assert_eq!(bywash.counter("r1", "tx_packets"), before, "{}", bywash.show(&["ports"])),
        }
    }
    bywash.wait("the reason to be logged", |bywash| bywash.log().contains("interface `r1` has no queue 1"));
}

#[test]
pub fn renamed() {
    require!(require_lab(), kernel_has("live-rename"));
    let lab = Topology::router_n(3).unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    unharmed(&lab, || {
        lab.r().ip(&["link", "set", "r1", "name", "uplink"]).unwrap();
        bywash.wait("the new name", |bywash| bywash.port("r1")["interface"] == "uplink");
    });
    assert_eq!(bywash.port("r1")["state"], "up");
    assert!(reaches_b(&lab));
    bywash.stop();
}

#[test]
fn moved_to_another_namespace_and_back() {
    require!(require_lab());
    let lab = Topology::router_n(3).unwrap();
    let (b, r) = (lab.b(), lab.r());
    let elsewhere = Namespace::new("away").unwrap();
    let bywash = Bywash::run(r, &lab.router_interfaces());
    unharmed(&lab, || {
        r.ip(&["link", "set", "r1", "netns", elsewhere.name()]).unwrap();
        bywash.wait("the port to be down", |bywash| bywash.port("r1")["state"] == "down");
    });
    crate::harness::assert_detached(&elsewhere);
    elsewhere.ip(&["link", "set", "r1", "netns", r.name()]).unwrap();
    let (v4, v6) = (b.router_v4, b.router_v6);
    r.ip_batch(&format!("address add {v4}/24 dev r1\naddress add {v6}/64 dev r1 nodad\nlink set r1 up\n")).unwrap();
    bywash.wait("the port to be up", |bywash| bywash.port("r1")["state"] == "up");
    bywash.wait("b to be reached", |_| reaches_b(&lab));
    bywash.stop();
}
