//! Teams in mode activebackup are forwarded past the kernel by their active port; others are left to it. The test does
//! what teamd would: it sets the options of teams by generic netlink.

#[path = "../../../../../netlink/tests/common/team.rs"]
mod option;

use super::{Bonded, said, wait_for};
use crate::around::{assert_lost, ip};
use crate::harness::{Bywash, PATIENCE, bywash};
use bywash_lab::{Namespace, Ping, Topology, Transfer, kernel_has, require, require_lab, wait_until};
use option::Value;

fn set(ns: &Namespace, port: Option<&str>, name: &str, value: Value<'_>) {
    ns.enter(|| option::set("team0", port, name, value)).unwrap();
}

fn activate(ns: &Namespace, port: &str) {
    set(ns, None, "activeport", Value::Port(port));
}

/// Makes a team of two interfaces, with the MAC address of the first, as teamd does unless told otherwise.
fn join(ns: &Namespace, [first, second]: [&str; 2], mode: &str) {
    let address = ns.run(&["cat", &format!("/sys/class/net/{first}/address")]).unwrap().stdout;
    let address = address.trim();
    ns.ip(&["link", "add", "team0", "address", address, "type", "team"]).unwrap();
    set(ns, None, "mode", Value::Text(mode));
    ns.ip_batch(&format!(
        "link set {first} down\naddress flush dev {first}\nlink set {first} master team0\n\
         link set {second} down\nlink set {second} address {address}\nlink set {second} master team0\n\
         link set team0 up\n"
    ))
    .unwrap();
}

/// Returns teams at both ends of two cables, which send by the first one if the mode has an active port.
fn teamed(mode: &str) -> Bonded {
    let team = |ns: &Namespace, members: [&str; 2], v4: String, v6: String| {
        join(ns, members, mode);
        ns.ip_batch(&format!("address add {v4}/24 dev team0\naddress add {v6}/64 dev team0 nodad\n")).unwrap();
        if mode == "activebackup" {
            activate(ns, members[0]);
        }
    };
    Bonded::between(Topology::router().unwrap(), team)
}

/// Fails unless the kernel forwards for all members.
fn assert_left(bonded: &Bonded, bywash: &Bywash<'_>, why: &str) {
    let left = format!("r1: left to the kernel: it is a member of team interface team0, but {why}");
    bywash.wait("the members to be left", |bywash| bywash.log().contains(&left));
    let report = Ping::to(bonded.lab.b().v4).count(10).run(&bonded.lab.a().ns).unwrap();
    assert!(report.received > 0, "{}", report.text);
    for member in ["r1", "r2"] {
        let count = |name| bywash.counter(member, name);
        assert_eq!((count("rx_packets"), count("tx_packets")), (0, 0), "{member}");
    }
}

#[test]
fn a_team_is_forwarded_by_its_active_port() {
    require!(require_lab(), kernel_has("team"));
    let bonded = teamed("activebackup");
    let (a, b, r) = (bonded.lab.a(), bonded.lab.b(), bonded.lab.r());
    bonded.assert_connected();
    let told = bywash(r, &["doctor", "--json", "r1"]);
    assert!(told.status.success() && !told.stdout.contains("enslaved"), "{} {}", told.stdout, told.stderr);
    for level in ["user", "driver"] {
        let bywash = bonded.run(level);
        wait_for(&bywash, "r1", 1);
        let left = "r2: left to the kernel: it is a member of team interface team0, but another member is active";
        assert!(bywash.log().contains(left), "{}", bywash.log());
        let port = bywash.port("r1");
        assert_eq!((&port["level"], &port["above"][0]["kind"]), (&level.into(), &"team".into()), "{port}");
        bonded.assert_carried_by(&bywash, "r1");
        bonded.assert_connected();
        // The host sends by the cable on which the router's team receives nothing.
        activate(&b.ns, "b1");
        assert_lost(&b.ns, a.v4.into(), "packets to the port that is not active");
        activate(r, "r2");
        wait_for(&bywash, "r2", 1);
        bonded.wait_until_reached();
        bonded.assert_carried_by(&bywash, "r2");
        bonded.assert_connected();
        // A port that is not enabled receives nothing either.
        set(r, Some("r2"), "enabled", Value::Flag(false));
        assert_lost(&b.ns, a.v4.into(), "packets to the port that is not enabled");
        set(r, Some("r2"), "enabled", Value::Flag(true));
        wait_for(&bywash, "r2", 2);
        bonded.wait_until_reached();
        bonded.assert_carried_by(&bywash, "r2");
        // The team's MTU, which its ports get with it.
        r.ip(&["link", "set", "team0", "mtu", "1400"]).unwrap();
        bywash.wait("the MTU to be followed", |_| {
            let report = Ping::to(b.v4).count(2).size(1400).dont_fragment().run(&a.ns).unwrap();
            report.received == 0 && report.text.contains("1400")
        });
        r.ip(&["link", "set", "team0", "mtu", "1500"]).unwrap();
        r.ip(&["address", "replace", &format!("{}/64", b.router_v6), "dev", "team0", "nodad"]).unwrap();
        a.ns.ip(&["route", "flush", "cache"]).unwrap();
        bonded.wait_until_reached();
        bonded.assert_carried_by(&bywash, "r2");
        bywash.stop();
        activate(r, "r1");
        activate(&b.ns, "b0");
        bonded.wait_until_reached();
    }
}

/// A port that leaves and returns is no longer the active one, and a team that is deleted leaves nothing.
#[test]
fn ports_of_a_team_come_and_go() {
    require!(require_lab(), kernel_has("team"));
    let bonded = teamed("activebackup");
    let (a, b, r) = (bonded.lab.a(), bonded.lab.b(), bonded.lab.r());
    let bywash = bonded.run("driver");
    bonded.assert_carried_by(&bywash, "r1");
    r.ip_batch("link set r1 nomaster\nlink set r1 down\nlink set r1 master team0\n").unwrap();
    assert_lost(&b.ns, a.v4.into(), "no port is active");
    let said_before = said(&bywash, "r1");
    activate(r, "r1");
    wait_for(&bywash, "r1", said_before + 1);
    bonded.wait_until_reached();
    bonded.assert_carried_by(&bywash, "r1");
    // The same team as before, but for its mode.
    let again = |mode| {
        r.ip(&["link", "del", "team0"]).unwrap();
        join(r, ["r1", "r2"], mode);
        let (v4, v6) = (b.router_v4, b.router_v6);
        r.ip_batch(&format!("address add {v4}/24 dev team0\naddress add {v6}/64 dev team0 nodad\n")).unwrap();
    };
    again("activebackup");
    assert_lost(&b.ns, a.v4.into(), "no port of the new team is active");
    activate(r, "r1");
    bonded.wait_until_reached();
    bonded.assert_carried_by(&bywash, "r1");
    bonded.assert_connected();
    again("random");
    let left =
        "r1: left to the kernel: it is a member of team interface team0, but the team's mode is not activebackup";
    bywash.wait("the members to be left", |bywash| bywash.log().contains(left));
    let sent = || ["r1", "r2"].map(|member| bywash.counter(member, "tx_packets"));
    let before = sent();
    Ping::to(b.v4).count(10).run(&a.ns).unwrap();
    assert_eq!(sent(), before);
    bywash.stop();
}

#[test]
fn a_vlan_on_a_team_goes_with_it() {
    require!(require_lab(), kernel_has("team"), kernel_has("8021q"), kernel_has("tcx"));
    let bonded = teamed("activebackup");
    let (a, b, r) = (&bonded.lab.a().ns, &bonded.lab.b().ns, bonded.lab.r());
    for (ns, host) in [(r, 1), (b, 2)] {
        ns.ip_batch(&format!(
            "link add link team0 name team0.7 type vlan id 7\naddress add 10.1.7.{host}/24 dev team0.7\n\
             link set team0.7 up\n"
        ))
        .unwrap();
    }
    b.ip(&["route", "add", "10.0.1.0/24", "via", "10.1.7.1"]).unwrap();
    let to = ip("10.1.7.2");
    let reached = || Ping::to(to).count(1).run(a).is_ok_and(|report| report.received == 1);
    wait_until("the VLAN to be reached", PATIENCE, reached).unwrap();
    let bywash = bonded.run("driver");
    for member in ["r1", "r2"] {
        activate(b, if member == "r1" { "b0" } else { "b1" });
        activate(r, member);
        wait_for(&bywash, member, 1);
        let carried = || bonded.passes(&bywash, to, member);
        bywash.wait(&format!("packets to {to} to be forwarded by {member}"), |_| carried());
        let report = Transfer::new(1_000_000).run(a, b, to).unwrap();
        assert!(report.is_intact(), "{report:?}");
    }
    bywash.stop();
}

/// Only teams in mode activebackup receive and send by ports that are known.
#[test]
fn other_teams_are_left_to_the_kernel() {
    require!(require_lab(), kernel_has("team"));
    let bonded = teamed("roundrobin");
    let bywash = bonded.run("user");
    assert_left(&bonded, &bywash, "the team's mode is not activebackup, or its options are unknown");
    assert_eq!(said(&bywash, "r"), 0);
    bywash.stop();
}
