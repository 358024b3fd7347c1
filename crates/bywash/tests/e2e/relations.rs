//! Ports whose interface already belongs to a bridge, or has an interface above it, when the port is opened: they are
//! left to the kernel from the first frame on.

use crate::harness::Bywash;
use crate::reload::{File, config, reload};
use bywash_lab::{Namespace, Ping, Topology, kernel_has, require, require_lab};
use std::net::IpAddr;
use std::time::Duration;

/// Reason for which a member of a bridge that learns no addresses is left.
const LEARNS_NOT: &str = "it is a member of bridge interface br0, but the bridge learns no addresses, or has an XDP \
                          program, a spanning tree for each VLAN or unknown properties";

/// Returns whether port r1 is left to the kernel for this reason.
fn is_left(running: &Bywash, why: &str) -> bool {
    running.left_because("r1").as_deref() == Some(why)
}

/// Pings from host b the router and host a, and fails if a packet reaches an AF_XDP socket of port r1.
fn kernel_has_all(lab: &Topology, running: &Bywash) {
    let before = running.counter("r1", "rx_packets");
    let host = &lab.hosts()[1];
    for to in [host.router_v4, lab.a().v4] {
        let ping = Ping::to(to).count(3).interval(Duration::from_millis(10)).wait(Duration::from_millis(200));
        ping.run(&host.ns).unwrap();
    }
    assert_eq!(running.counter("r1", "rx_packets"), before);
}

/// Fails unless host a reaches host b, and the packets leave by port r1.
fn reaches_through(lab: &Topology, running: &Bywash) {
    running.wait("host b to be reached through r1", |running| {
        let before = running.counter("r1", "tx_packets");
        let received = Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received;
        received == 3 && running.counter("r1", "tx_packets") >= before + 3
    });
}

#[test]
fn a_member_that_a_reload_adds_or_opens_anew_is_left() {
    require!(require_lab());
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let file = File::new(&config(&[("r0", ""), ("r2", "")]));
    let running = file.run(&lab);
    lab.r().ip_batch("link add br0 type bridge ageing_time 0\nlink set br0 up\nlink set r1 master br0\n").unwrap();
    // A reload goes by the interfaces that are known by then.
    lab.r().ip(&["route", "add", "198.51.100.0/24", "via", &lab.a().v4.to_string()]).unwrap();
    running.wait("the bridge to be known", |running| running.text(&["routes"]).contains("198.51.100.0/24"));
    for more in ["", "tx_burst = 16\n"] {
        file.write(&config(&[("r0", ""), ("r2", ""), ("r1", more)]));
        reload(&running, &[]).ok().unwrap();
        assert!(is_left(&running, LEARNS_NOT), "{}", running.show(&["placement"]));
        kernel_has_all(&lab, &running);
    }
    lab.r().ip(&["link", "set", "r1", "nomaster"]).unwrap();
    running.wait("the port to be taken over", |running| !is_left(running, LEARNS_NOT));
}

#[test]
fn a_member_that_comes_back_is_left() {
    require!(require_lab());
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let running = Bywash::run(lab.r(), &lab.router_interfaces());
    lab.r().ip(&["link", "del", "r1"]).unwrap();
    running.wait("the port to be down", |running| running.port("r1")["state"] == "down");
    // The new interface has a master before it gets the port's name.
    let (b, peer) = (lab.b().ns.name().to_owned(), lab.b().interface.clone());
    lab.r()
        .ip_batch(&format!(
            "link add br0 type bridge ageing_time 0\nlink set br0 up\nlink add x1 type veth peer name {peer} netns {b}\nlink set x1 master br0\n\
             link set x1 name r1\nlink set r1 up\n"
        ))
        .unwrap();
    running.wait("r1 to be left", |running| is_left(running, LEARNS_NOT));
    assert!(running.log().contains(&format!("r1: left to the kernel: {LEARNS_NOT}")), "{}", running.log());
    running.stop();
}

#[test]
fn a_port_whose_packets_a_macvlan_takes_is_left() {
    require!(require_lab());
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let add = |mode: &str| {
        lab.r().ip_batch(&format!("link add link r1 name mv0 type macvlan mode {mode}\nlink set mv0 up\n")).unwrap();
    };
    let why = "macvlan interface mv0 is above it";
    add("passthru");
    let running = Bywash::run(lab.r(), &lab.router_interfaces());
    assert!(is_left(&running, why), "{}", running.show(&["placement"]));
    kernel_has_all(&lab, &running);
    lab.r().ip(&["link", "del", "mv0"]).unwrap();
    running.wait("the port to be taken over", |running| !is_left(running, why));
    add("source");
    running.wait("the port to be left", |running| is_left(running, why));
    lab.r().ip(&["link", "del", "mv0"]).unwrap();
    running.wait("the port to be taken over", |running| !is_left(running, why));
    // A macvlan in mode `bridge` takes only packets to its own MAC address.
    add("bridge");
    lab.r().ip_batch("link add y0 type bridge\nlink set y0 master br1\n").unwrap_err();
    running.wait("the interface to be seen", |running| !is_left(running, why));
    reaches_through(&lab, &running);
    running.stop();
}

/// Such as a container's ipvlan.
#[test]
fn a_port_whose_packets_an_interface_of_another_namespace_takes_is_left() {
    require!(require_lab());
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let (r, container) = (lab.r(), &lab.hosts()[2].ns);
    let name = container.name();
    let why = "macvlan interface mv0 of another network namespace is above it";
    r.ip_batch(&format!("link add link r1 name mv0 type macvlan mode source\nlink set mv0 netns {name}\n")).unwrap();
    let running = Bywash::run(r, &lab.router_interfaces());
    assert!(is_left(&running, why), "{}", running.show(&["placement"]));
    kernel_has_all(&lab, &running);
    let remove = || {
        container.ip(&["link", "del", "mv0"]).unwrap();
        running.wait("the port to be taken over", |running| !is_left(running, why));
    };
    remove();
    // Made where it belongs, so that it never was an interface of this namespace.
    let add = |name: &str, mode: &str| {
        r.ip(&["link", "add", "link", "r1", "name", "mv0", "netns", name, "type", "macvlan", "mode", mode]).unwrap();
    };
    add(name, "source");
    running.wait("the port to be left", |running| is_left(running, why));
    remove();
    // In a namespace that has no number in this one, until it gets one by its process.
    let other = Namespace::new("other").unwrap();
    let mut process = other.spawn(&["sleep", "1000"]).unwrap();
    add(other.name(), "source");
    running.wait("the port to be left", |running| is_left(running, why));
    process.kill().unwrap();
    drop(other);
    running.wait("the port to be taken over", |running| !is_left(running, why));
    // It takes only packets to its own MAC address.
    add(name, "bridge");
    reaches_through(&lab, &running);
    assert!(!is_left(&running, why));
    running.stop();
}

/// Packets to its addresses are the host's own while it is in the same network namespace.
#[test]
fn a_port_below_an_ipvlan_is_forwarded_for() {
    require!(require_lab(), kernel_has("ipvlan"));
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let (r, a, container) = (lab.r(), lab.a(), &lab.hosts()[2].ns);
    let running = Bywash::run(r, &lab.router_interfaces());
    let forwards = |running: &Bywash| {
        let before = running.counter("r1", "tx_packets");
        Ping::to(lab.b().v4).count(3).run(&a.ns).unwrap().received == 3
            && running.counter("r1", "tx_packets") >= before + 3
    };
    let own = ["10.0.2.77", "fd00:2::77"];
    for mode in ["l2", "l3"] {
        r.ip_batch(&format!(
            "link add link r1 name iv0 type ipvlan mode {mode}\naddress add {}/32 dev iv0\n\
             address add {}/128 dev iv0 nodad\nlink set iv0 up\n",
            own[0], own[1]
        ))
        .unwrap();
        running.wait("packets beside the ipvlan", forwards);
        for to in own {
            for (host, name) in [(&a.ns, "a"), (&lab.b().ns, "b")] {
                let report = Ping::to(to.parse::<IpAddr>().unwrap()).count(3).run(host).unwrap();
                assert_eq!(report.received, 3, "{mode}, {to} from {name}: {}", report.text);
            }
        }
        // The addresses of another namespace are not known.
        r.ip(&["link", "set", "iv0", "netns", container.name()]).unwrap();
        let why = "ipvlan interface iv0 of another network namespace is above it";
        running.wait("the port to be left", |running| is_left(running, why));
        container.ip(&["link", "del", "iv0"]).unwrap();
        running.wait("the port to be taken over", |running| !is_left(running, why));
    }
    r.ip_batch("link add link r1 name iv0 type ipvlan mode l3s\nlink set iv0 up\n").unwrap();
    running.wait("the port to be left", |running| is_left(running, "ipvlan interface iv0 is above it"));
    running.stop();
}
