//! Policy routing: packets that rules route by other tables are forwarded by these, past the kernel.

use crate::bpf;
use crate::harness::{Bywash, bywash as bywash_command};
use crate::moves::handled;
use crate::trace::frame;
use bywash_lab::{Ping, Topology, has_tool, kernel_has, require, require_lab};
use std::net::IpAddr;
use std::time::Duration;

/// Levels asked for: user space looks the tables up, programs in the driver ask the kernel.
const LEVELS: [&[&str]; 3] = [&["--level", "user"], &["--xdp", "native", "--level", "driver"], &[]];

/// Creates a router between a, b and c, where c has an address of each of b's networks, and routes to these by c in
/// table 100.
fn lab() -> Topology {
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let c = &lab.hosts()[2];
    c.ns.ip_batch("address add 10.0.2.2/32 dev lo\naddress add fd00:2::2/128 dev lo nodad\n").unwrap();
    let (v4, v6) = (c.v4, c.v6);
    let routes = format!(
        "route add 10.0.2.0/24 via {v4} table 100\nroute add default via {v4} table 101\n\
         route add fd00:2::/64 via {v6} table 100\n"
    );
    lab.r().ip_batch(&routes).unwrap();
    lab
}

/// Returns the host, `b` or `c`, that answers a's pings to an address; `None` if none does.
fn answers(lab: &Topology, to: IpAddr) -> Option<&'static str> {
    let received = |host: usize, name: &str| {
        let text = lab.hosts()[host].ns.ip(&["-s", "-j", "link", "show", name]).unwrap().stdout;
        let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
        shown[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
    };
    let before = [received(1, "b0"), received(2, "c0")];
    let ping = Ping::to(to).count(5).interval(Duration::from_millis(20)).wait(Duration::from_millis(500));
    if ping.run(&lab.a().ns).unwrap().received == 0 {
        return None;
    }
    let [b, c] = [received(1, "b0") - before[0], received(2, "c0") - before[1]];
    Some(if b > c { "b" } else { "c" })
}

/// Waits until a host, or none, answers pings to b's addresses of both families.
fn wait_for(lab: &Topology, bywash: &Bywash, v4: Option<&str>, v6: Option<&str>) {
    let (b4, b6) = (IpAddr::from(lab.b().v4), IpAddr::from(lab.b().v6));
    bywash.wait(&format!("{v4:?} and {v6:?} to answer"), |_| answers(lab, b4) == v4 && answers(lab, b6) == v6);
}

/// A port whose program cannot be configured is left to the kernel: its old entry is not the kernel's word any more.
#[test]
fn a_configuration_that_is_refused_closes_the_port() {
    require!(require_lab(), has_tool("nft"));
    let lab = lab();
    let r = lab.r();
    let mut other = bpf::xdp(r, "r1", bpf::XDP_PASS);
    let bywash = Bywash::run_as_is(r, &["--xdp", "generic", "--level", "driver", "r0", "r1"]);
    let b_reaches_a = || Ping::to(lab.a().v4).count(5).run(&lab.b().ns).unwrap().received;
    assert_eq!(b_reaches_a(), 5);
    // With an MTU of a route, rules are looked up in user space, to which traffic control cannot lead.
    r.ip(&["rule", "add", "from", "10.200.0.0/24", "lookup", "77"]).unwrap();
    r.ip(&["route", "add", "10.44.0.0/24", "via", &lab.a().v4.to_string(), "mtu", "1400"]).unwrap();
    bywash.wait("the other program to be in the way", |bywash| bywash.log().contains("already runs XDP program"));
    r.nft("table ip f {\nchain c {\ntype filter hook forward priority 0\nip saddr 10.0.2.0/24 drop\n}\n}").unwrap();
    assert_eq!(b_reaches_a(), 0, "forwarded past the kernel's rule");
    r.nft("flush ruleset").unwrap();
    assert_eq!(b_reaches_a(), 5);
    // As soon as it can be configured, it is.
    other.kill().unwrap();
    bywash.wait("user space to forward", |bywash| {
        let before = handled(bywash, "r1")[1];
        b_reaches_a() == 5 && handled(bywash, "r1")[1] >= before + 5
    });
    drop(bywash);
}

#[test]
pub fn packets_go_by_the_tables_of_rules() {
    require!(require_lab());
    for arguments in LEVELS {
        let lab = lab();
        let r = lab.r();
        let bywash = Bywash::run_as_is(r, &[arguments, &["r0", "r1", "r2"]].concat());
        wait_for(&lab, &bywash, Some("b"), Some("b"));
        r.ip(&["rule", "add", "from", "10.0.1.0/24", "lookup", "100"]).unwrap();
        wait_for(&lab, &bywash, Some("c"), Some("b"));
        r.ip(&["-6", "rule", "add", "iif", "r0", "to", "fd00:2::/64", "lookup", "100"]).unwrap();
        wait_for(&lab, &bywash, Some("c"), Some("c"));
        bywash.wait("packets to be forwarded past the kernel", |bywash| {
            let before = handled(bywash, "r0");
            wait_for(&lab, bywash, Some("c"), Some("c"));
            let after = handled(bywash, "r0");
            let past = |of: [u64; 3]| of[0] + of[1];
            past(after) >= past(before) + 10
        });
        // A trace names the route of the table that is looked up.
        let mac = bywash.port("r0")["mac"].as_str().unwrap().parse().unwrap();
        for (from, route) in [
            (lab.a().v4, "route: unicast 10.0.2.0/24 table 100 via 10.0.3.2 dev r2"),
            ([10, 7, 0, 1].into(), "route: unicast 10.0.2.0/24 dev r1"),
        ] {
            let frame = frame(from.into(), "10.0.2.2", 64, mac);
            let trace = ["trace", "--socket", bywash.socket().to_str().unwrap(), "r0", &frame].map(str::to_owned);
            let story = bywash_command(r, &trace.each_ref().map(String::as_str)).stdout;
            assert!(story.contains(route), "{story}");
        }
        // A route of the table, a throw, and a prohibition before it.
        r.ip(&["route", "change", "10.0.2.0/24", "via", &lab.b().v4.to_string(), "table", "100"]).unwrap();
        wait_for(&lab, &bywash, Some("b"), Some("c"));
        r.ip(&["route", "replace", "throw", "fd00:2::/64", "table", "100"]).unwrap();
        wait_for(&lab, &bywash, Some("b"), Some("b"));
        r.ip(&["rule", "add", "pref", "10", "from", "10.0.1.2", "to", "10.0.2.2", "prohibit"]).unwrap();
        wait_for(&lab, &bywash, None, Some("b"));
        bywash.wait("the table's route to be installed", |bywash| {
            let routes = bywash.show(&["routes"]);
            let route = routes.as_array().unwrap().iter().find(|route| route["table"] == 100);
            route.is_some_and(|route| route["installed"] == true)
        });
        r.ip(&["rule", "del", "pref", "10"]).unwrap();
        r.ip(&["rule", "del", "from", "10.0.1.0/24", "lookup", "100"]).unwrap();
        r.ip(&["-6", "rule", "del", "iif", "r0", "to", "fd00:2::/64", "lookup", "100"]).unwrap();
        wait_for(&lab, &bywash, Some("b"), Some("b"));
        bywash.wait("the rules to be gone", |bywash| {
            !bywash.placement("r0")["why"].as_str().unwrap().contains("policy routing rules")
        });
        bywash.assert_conserved();
        bywash.stop();
    }
}

/// Rules as wg-quick sets them: all but the tunnel's own packets, which have a mark, go by a table of its own, unless
/// table main has a route other than the default.
#[test]
pub fn rules_of_wg_quick_are_followed() {
    require!(require_lab());
    let lab = lab();
    let r = lab.r();
    r.ip_batch(
        "rule add not fwmark 51820 lookup 101\nrule add lookup main suppress_prefixlength 0\n\
         route add default via 10.0.2.2\n",
    )
    .unwrap();
    let bywash = Bywash::run_as_is(r, &["r0", "r1", "r2"]);
    wait_for(&lab, &bywash, Some("b"), Some("b"));
    // By default to c in table 101, to b in main.
    lab.hosts()[2].ns.ip(&["address", "add", "203.0.113.9/32", "dev", "lo"]).unwrap();
    lab.b().ns.ip(&["address", "add", "203.0.113.9/32", "dev", "lo"]).unwrap();
    bywash.wait("the tunnel's table", |_| answers(&lab, [203, 0, 113, 9].into()) == Some("c"));
    bywash.wait("the driver to forward by the tunnel's table", |bywash| {
        let before = handled(bywash, "r0")[0];
        answers(&lab, [203, 0, 113, 9].into()) == Some("c") && handled(bywash, "r0")[0] >= before + 5
    });
    // A port that is not in use has no rules either.
    let socket = bywash.socket();
    bywash_command(r, &["level", "kernel", "r0", "--socket", socket.to_str().unwrap()]).ok().unwrap();
    let before = handled(&bywash, "r0");
    assert_eq!(answers(&lab, [203, 0, 113, 9].into()), Some("c"));
    let after = handled(&bywash, "r0");
    assert_eq!((after[0], after[1]), (before[0], before[1]), "forwarded at level kernel");
    bywash.stop();
}

/// The IPv6 rules of wg-quick: a default route in table main is ignored, which the kernel does not tell a program.
#[test]
fn a_default_route_that_a_rule_ignores_is_not_used() {
    require!(require_lab());
    let to: IpAddr = "2001:db8::9".parse().unwrap();
    for arguments in LEVELS {
        let lab = lab();
        let (r, [b, c]) = (lab.r(), [1, 2].map(|at| &lab.hosts()[at]));
        r.ip_batch(&format!("route add default via {}\nroute add default via {} table 101\n", b.v6, c.v6)).unwrap();
        for rule in ["not fwmark 51820 lookup 101", "lookup main suppress_prefixlength 0"] {
            r.ip(&[&["-6", "rule", "add"][..], &rule.split(' ').collect::<Vec<_>>()].concat()).unwrap();
        }
        for host in [b, c] {
            host.ns.ip(&["address", "add", &format!("{to}/128"), "dev", "lo", "nodad"]).unwrap();
        }
        assert_eq!(answers(&lab, to), Some("c"), "the kernel");
        let bywash = Bywash::run_as_is(r, &[arguments, &["r0", "r1", "r2"]].concat());
        for _ in 0..20 {
            assert_eq!(answers(&lab, to), Some("c"), "{arguments:?}");
        }
        bywash.stop();
    }
}

/// A VRF holds a and c, and c has b's addresses too: packets of its members go by its table, at every level, those to
/// the router's address in it to the kernel, and a route of its table may leave it.
#[test]
pub fn members_of_a_vrf_go_by_its_table() {
    require!(require_lab(), kernel_has("vrf"));
    for arguments in LEVELS {
        let lab = lab();
        let (r, c) = (lab.r(), &lab.hosts()[2]);
        let bywash = Bywash::run_as_is(r, &[arguments, &["r0", "r1", "r2"]].concat());
        wait_for(&lab, &bywash, Some("b"), Some("b"));
        // Members lose their IPv6 addresses, which this gives them again, with their neighbours.
        r.ip_batch("link add red type vrf table 10\nlink set red up\nlink set r0 master red\nlink set r2 master red\n")
            .unwrap();
        for host in [lab.a(), c] {
            let (on, mac) = (&host.router_interface, &host.mac);
            let lines = format!(
                "address replace {}/64 dev {on} nodad\nneigh replace {} lladdr {mac} nud permanent dev {on}\n\
                 neigh replace {} lladdr {mac} nud permanent dev {on}\n",
                host.router_v6, host.v6, host.v4
            );
            r.ip_batch(&lines).unwrap();
        }
        r.ip_batch(&format!(
            "route add 10.0.2.0/24 via {} vrf red\nroute add fd00:2::/64 via {} vrf red\n",
            c.v4, c.v6
        ))
        .unwrap();
        wait_for(&lab, &bywash, Some("c"), Some("c"));
        // Native XDP leaves frames to user space where the peer of a veth takes none.
        let level = usize::from(!arguments.is_empty());
        bywash.wait("packets of the VRF to be forwarded past the kernel", |bywash| {
            let before = handled(bywash, "r0")[level];
            wait_for(&lab, bywash, Some("c"), Some("c"));
            handled(bywash, "r0")[level] >= before + 10
        });
        for own in [IpAddr::from(lab.a().router_v4), lab.a().router_v6.into()] {
            let report = Ping::to(own).count(3).run(&lab.a().ns).unwrap();
            assert_eq!(report.received, 3, "{}", report.text);
        }
        // Out of the VRF to b, and back into it.
        r.ip_batch("route replace 10.0.2.0/24 dev r1 table 10\nroute add 10.0.1.0/24 dev r0\n").unwrap();
        wait_for(&lab, &bywash, Some("b"), Some("c"));
        r.ip_batch("link set r0 nomaster\nlink set r2 nomaster\nlink del red\n").unwrap();
        bywash.wait("IPv4 to go by table main", |_| answers(&lab, lab.b().v4.into()) == Some("b"));
        bywash.assert_conserved();
        bywash.stop();
    }
}
