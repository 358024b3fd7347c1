//! Bridges that filter VLANs: packets of the bridge's own interface and of VLAN interfaces on it are forwarded past the
//! kernel on the members that are in the VLAN, and only to stations that the bridge knows in that VLAN.

use super::{assert_datagrams, assert_lost, ip};
use crate::bridges::{B, Bridged, C};
use crate::flows::{masquerade_to_r0, wait_until_followed};
use crate::harness::PATIENCE;
use bywash_lab::{Namespace, Ping, Transfer, has_tool, kernel_has, require, require_lab};
use std::time::{Duration, Instant};

/// Runs a command whose words are separated by blanks.
fn run(ns: &Namespace, command: &str) {
    ns.run(&command.split(' ').collect::<Vec<_>>()).unwrap();
}

/// Returns how many of five pings are answered within a short time.
fn answers(from: &Namespace, to: &str) -> u32 {
    Ping::to(ip(to)).count(5).wait(Duration::from_millis(100)).run(from).unwrap().received
}

/// Fails unless all of five pings are answered, which may take longer on a busy machine.
fn assert_answered(from: &Namespace, to: &str, what: &str) {
    let report = Ping::to(ip(to)).count(5).wait(PATIENCE).run(from).unwrap();
    assert_eq!(report.received, 5, "{what}: {}", report.text);
}

/// Returns the stations that the router's bridge knows.
fn stations(bridged: &Bridged) -> String {
    bridged.lab.r().run(&["bridge", "fdb", "show", "br", "br0"]).unwrap().stdout
}

/// Connects host b, with this MAC address, and the router by VLAN 30 as well, tagged.
fn add_vlan(bridged: &Bridged, mac: &str) {
    let r = bridged.lab.r();
    run(r, "bridge vlan add dev r1 vid 30");
    run(r, "bridge vlan add dev br0 vid 30 self");
    for (ns, on, address, n) in [(r, "br0", String::new(), 1), (bridged.b(), "b0", format!("address {mac}"), 2)] {
        ns.ip_batch(&format!(
            "link add link {on} name {on}.30 {address} type vlan id 30\naddress add 10.30.0.{n}/24 dev {on}.30\n\
             link set {on}.30 up\n"
        ))
        .unwrap();
    }
}

#[test]
fn the_vlan_without_a_tag_is_followed() {
    require!(require_lab(), kernel_has("bridge-vlans"), kernel_has("8021q"), kernel_has("tcx"));
    let bridged = Bridged::new("vlan_filtering 1");
    let r = bridged.lab.r();
    let bywash = bridged.run(&["--level", "driver"]);
    bridged.assert_passes(&bywash);
    bridged.assert_connected();
    bridged.assert_passes(&bywash);
    let why = |port: &str| bywash.left_because(port);
    let why = |port: &str| why(port).filter(|why| why.contains("which filters VLANs"));
    for (set, unset, left, routes) in [
        ("vlan add dev r1 vid 20 pvid untagged", "vlan add dev r1 vid 1 pvid untagged", true, true),
        ("vlan del dev r1 vid 1", "vlan add dev r1 vid 1 pvid untagged", true, true),
        // Sent with a tag, which the host does not take.
        ("vlan add dev r1 vid 1 pvid", "vlan add dev r1 vid 1 pvid untagged", false, true),
        ("vlan set dev r1 vid 1 state blocking", "vlan set dev r1 vid 1 state forwarding", true, true),
        // Frames between the members are still forwarded.
        ("vlan del dev br0 vid 1 self", "vlan add dev br0 vid 1 pvid untagged self", false, false),
        ("vlan add dev br0 vid 1 pvid self", "vlan add dev br0 vid 1 pvid untagged self", true, false),
    ] {
        run(r, &format!("bridge {set}"));
        if left {
            bywash.wait(&format!("r1 to be left by `{set}`"), |_| why("r1").is_some());
        }
        // Nothing passes by the member, as the kernel has it.
        bywash.wait(&format!("nothing to pass after `{set}`"), |_| answers(bridged.a(), B[0]) == 0);
        assert_eq!(answers(bridged.a(), B[0]), 0, "{set}");
        match routes {
            true => assert_answered(bridged.a(), C[0], set),
            false => assert_eq!(answers(bridged.a(), C[0]), 0, "{set}"),
        }
        run(r, &format!("bridge {unset}"));
        bywash.wait(&format!("r1 to be taken over after `{unset}`"), |_| why("r1").is_none());
        bridged.assert_passes(&bywash);
    }
    run(r, "bridge vlan add dev r1 vid 20 pvid untagged");
    bywash.wait("r1 to be left", |_| why("r1").is_some());
    run(r, "ip link set br0 type bridge vlan_filtering 0");
    bywash.wait("r1 to be taken over", |_| why("r1").is_none());
    bridged.assert_passes(&bywash);
    run(r, "ip link set br0 type bridge vlan_filtering 1");
    bywash.wait("r1 to be left again", |_| why("r1").is_some());
    run(r, "bridge vlan add dev r1 vid 1 pvid untagged");
    bridged.assert_passes(&bywash);
    bywash.stop();
}

/// A host that sends much in another VLAN, with the same MAC address: the kernel hears it in both.
#[test]
fn stations_are_renewed_in_their_vlan() {
    require!(require_lab(), kernel_has("bridge-vlans"), kernel_has("8021q"), kernel_has("tcx"));
    let bridged = Bridged::new("vlan_filtering 1");
    let (r, b) = (bridged.lab.r(), bridged.b());
    let mac = bridged.mac(1);
    add_vlan(&bridged, mac);
    let to = bridged.lab.a().v4.to_string();
    let entry = format!("{mac} dev r1 vlan 1 ");
    let bywash = bridged.run(&["--level", "driver"]);
    bridged.assert_passes(&bywash);
    // Four seconds. The kernel forgets at once what it heard earlier, and the tests above would always see some packets
    // passed to it.
    run(r, "ip link set br0 type bridge ageing_time 400");
    bywash.wait("b to be heard again", |_| answers(b, &to) == 5 && stations(&bridged).contains(&entry));
    let other = b.spawn(&["ping", "-q", "-i", "0.002", "-w", "12", "10.30.0.1"]).unwrap();
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        let began = Instant::now();
        assert_answered(b, &to, "beside the other VLAN");
        let known = stations(&bridged);
        // A busy machine may keep all from running for longer than the kernel remembers a station.
        assert!(known.contains(&entry) || began.elapsed() > Duration::from_secs(2), "{known}");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(other);
    bywash.stop();
}

/// Another host has host c's MAC address in another VLAN, behind another member.
#[test]
fn stations_of_other_vlans_are_others() {
    require!(require_lab(), kernel_has("bridge-vlans"), kernel_has("8021q"), kernel_has("tcx"));
    let bridged = Bridged::new("vlan_filtering 1");
    let (b, mac) = (bridged.b(), bridged.mac(2));
    add_vlan(&bridged, mac);
    let bywash = bridged.run(&["--level", "driver"]);
    bridged.assert_passes(&bywash);
    for _ in 0..3 {
        assert_answered(b, "10.30.0.1", "in VLAN 30");
        assert_answered(b, &bridged.lab.a().v4.to_string(), "without a tag");
        assert!(bridged.passes(&bywash, C[0], 2, 10));
    }
    let known = stations(&bridged);
    let entry = |dev: &str, vlan: &str| format!("{mac} dev {dev} vlan {vlan} ");
    assert!(known.contains(&entry("r1", "30")) && known.contains(&entry("r2", "1")), "{known}");
    bywash.stop();
}

/// Adds the addresses of host n in a VLAN's networks, and the router, host 1, as the gateway of the others.
fn join(ns: &Namespace, dev: &str, vlan: u16, n: u8) {
    let routes = format!("route replace default via 10.{vlan}.0.1\nroute replace ::/0 via fd00:{vlan}::1\n");
    ns.ip_batch(&format!(
        "link set lo up\nlink set {dev} up\naddress add 10.{vlan}.0.{n}/24 dev {dev}\n\
         address add fd00:{vlan}::{n}/64 dev {dev} nodad\n{}",
        if n == 1 { "" } else { &routes }
    ))
    .unwrap();
}

/// Hosts of VLANs 10 and 20 behind r1, with tags, beside host b without; host c behind r2, in VLAN 10 without a tag.
struct Trunk {
    bridged: Bridged,
    h10: Namespace,
    h20: Namespace,
}

impl Trunk {
    fn new() -> Self {
        let trunk = Self {
            bridged: Bridged::new("vlan_filtering 1"),
            h10: Namespace::new("h10").unwrap(),
            h20: Namespace::new("h20").unwrap(),
        };
        let (r, c) = (trunk.bridged.lab.r(), trunk.bridged.c());
        for (vlan, host) in [(10, &trunk.h10), (20, &trunk.h20)] {
            run(r, &format!("bridge vlan add dev br0 vid {vlan} self"));
            run(r, &format!("bridge vlan add dev r1 vid {vlan}"));
            let name = host.name();
            let of_host = format!("link add link b0 name v{vlan} netns {name} type vlan id {vlan}\n");
            trunk.bridged.b().ip_batch(&of_host).unwrap();
            r.ip_batch(&format!("link add link br0 name br0.{vlan} type vlan id {vlan}\n")).unwrap();
            join(r, &format!("br0.{vlan}"), vlan, 1);
            join(host, &format!("v{vlan}"), vlan, 2);
        }
        run(r, "bridge vlan add dev r2 vid 10 pvid untagged");
        run(r, "bridge vlan del dev r2 vid 1");
        c.ip_batch("address flush dev c0 scope global\n").unwrap();
        join(c, "c0", 10, 3);
        trunk
    }

    /// Returns the hosts, with an address of each and the member that they are behind.
    fn ways(&self) -> [(&Namespace, &'static str, usize); 7] {
        [
            (self.bridged.b(), B[0], 1),
            (&self.h10, "10.10.0.2", 1),
            (&self.h10, "fd00:10::2", 1),
            (&self.h20, "10.20.0.2", 1),
            (&self.h20, "fd00:20::2", 1),
            (self.bridged.c(), "10.10.0.3", 2),
            (self.bridged.c(), "fd00:10::3", 2),
        ]
    }
}

#[test]
fn vlan_interfaces_are_forwarded_for() {
    require!(require_lab(), kernel_has("bridge-vlans"), kernel_has("8021q"), kernel_has("tcx"));
    let trunk = Trunk::new();
    let Trunk { bridged, h10, h20 } = &trunk;
    let (r, a, b, c) = (bridged.lab.r(), bridged.a(), bridged.b(), bridged.c());
    let bywash = bridged.run(&["--level", "driver"]);
    for (host, to, member) in trunk.ways() {
        bridged.wait_until_passes(&bywash, to, member);
        let report = Transfer::new(1_000_000).run(a, host, ip(to)).unwrap();
        assert!(report.is_intact(), "{to}: {report:?}");
    }
    let above = &bywash.port("r2")["above"];
    assert_eq!([&above[0]["name"], &above[0]["kind"], &above[0]["tag"]], ["br0.10", "vlan", "802.1Q 10"], "{above}");
    // From VLAN to VLAN: by another member, with and without tags, and by the same one.
    let to_vlans =
        [(h20, c, "10.10.0.3", 2), (h10, h20, "fd00:20::2", 1), (c, h20, "10.20.0.2", 1), (b, h10, "10.10.0.2", 1)];
    for (from, host, to, member) in to_vlans {
        bywash.wait(&format!("packets to {to} to be forwarded"), |bywash| {
            let before = bridged.past(bywash);
            let report = Ping::to(ip(to)).count(10).run(from).unwrap();
            assert_eq!((report.received, report.errors), (10, 0), "{to}: {}", report.text);
            bridged.past(bywash)[member] >= before[member] + 10
        });
        let report = Transfer::new(1_000_000).run(from, host, ip(to)).unwrap();
        assert!(report.is_intact(), "{to}: {report:?}");
    }
    // Within a VLAN, and to the router, the kernel bridges and receives.
    for (from, to) in [(h10, "10.10.0.3"), (c, "fd00:10::2"), (h20, "10.20.0.1"), (c, "fd00:10::1")] {
        let report = Ping::to(ip(to)).count(3).run(from).unwrap();
        assert_eq!((report.received, report.errors), (3, 0), "{to}: {}", report.text);
    }
    assert_datagrams((a, bridged.lab.a().v4.into()), (h10, ip("10.10.0.2")), &[0, 1452, 4000]);
    for (from, by) in [(h10, "10.10.0.1"), (h20, "10.20.0.1"), (c, "10.10.0.1")] {
        let report = Ping::to(bridged.lab.a().v4).count(1).ttl(1).run(from).unwrap();
        assert!(report.text.contains(by) && report.errors == 1, "{}", report.text);
    }
    // Rules for the VLAN, the bridge, and a member.
    for rules in [
        "table inet f {\nchain c {\ntype filter hook forward priority 0\niifname \"br0.10\" drop\n}\n}",
        "table netdev f {\nchain c {\ntype filter hook ingress device \"r1\" priority 0\ndrop\n}\n}",
        "table netdev f {\nchain c {\ntype filter hook ingress device \"br0\" priority 0\ndrop\n}\n}",
        "table bridge f {\nchain c {\ntype filter hook input priority 0\ndrop\n}\n}",
    ] {
        r.nft(rules).unwrap();
        assert_lost(h10, bridged.lab.a().v4.into(), rules);
        r.nft("flush ruleset").unwrap();
    }
    bridged.wait_until_passes(&bywash, "10.10.0.2", 1);
    bywash.stop();
}

#[test]
fn translated_connections_of_vlan_interfaces_are_forwarded() {
    require!(require_lab(), has_tool("conntrack"), kernel_has("bridge-vlans"), kernel_has("8021q"), kernel_has("tcx"));
    let trunk = Trunk::new();
    masquerade_to_r0(trunk.bridged.lab.r(), "br0.10");
    let bywash = trunk.bridged.run(&["--level", "driver"]);
    wait_until_followed(&bywash);
    trunk.bridged.assert_translated(&bywash, (&trunk.h10, "10.10.0.2", 1), "br0.10");
    trunk.bridged.assert_translated(&bywash, (trunk.bridged.c(), "10.10.0.3", 2), "br0.10");
    bywash.assert_conserved();
    bywash.stop();
}

/// Each host is lost as the kernel loses it, and no other.
#[test]
fn vlans_of_members_change() {
    require!(require_lab(), kernel_has("bridge-vlans"), kernel_has("8021q"), kernel_has("tcx"));
    let trunk = Trunk::new();
    let (r, a) = (trunk.bridged.lab.r(), trunk.bridged.a());
    let bywash = trunk.bridged.run(&["--level", "driver"]);
    let v4 = || trunk.ways().into_iter().filter(|(_, to, _)| to.contains('.'));
    v4().for_each(|(_, to, member)| trunk.bridged.wait_until_passes(&bywash, to, member));
    let (h10, h20, c) = ("10.10.0.2", "10.20.0.2", "10.10.0.3");
    for (set, unset, lost) in [
        ("bridge vlan del dev r1 vid 10", "bridge vlan add dev r1 vid 10", &[h10][..]),
        ("bridge vlan del dev br0 vid 10 self", "bridge vlan add dev br0 vid 10 self", &[h10, c]),
        // Sent without a tag.
        ("bridge vlan add dev r1 vid 10 untagged", "bridge vlan add dev r1 vid 10", &[h10]),
        ("bridge vlan set dev r1 vid 20 state blocking", "bridge vlan set dev r1 vid 20 state forwarding", &[h20]),
        ("bridge vlan add dev r2 vid 20 pvid untagged", "bridge vlan add dev r2 vid 10 pvid untagged", &[c]),
        ("bridge vlan del dev r1 vid 1", "bridge vlan add dev r1 vid 1 pvid untagged", &[B[0]]),
        ("ip link set br0.20 down", "ip link set br0.20 up", &[h20]),
        ("ip link set br0.10 address 02:00:00:00:00:98", "ip link set br0.10 address 02:00:00:00:00:99", &[]),
    ] {
        run(r, set);
        for to in lost {
            bywash.wait(&format!("{to} to be lost by `{set}`"), |_| answers(a, to) == 0);
        }
        for (_, to, _) in v4() {
            match lost.contains(&to) {
                true => assert_eq!(answers(a, to), 0, "{to} after `{set}`"),
                false => assert_answered(a, to, set),
            }
        }
        run(r, unset);
        v4().for_each(|(_, to, member)| trunk.bridged.wait_until_passes(&bywash, to, member));
    }
    bywash.stop();
}

/// XDP on veth does not see the tags of frames, so the kernel has all of them.
#[test]
fn members_whose_tags_are_not_seen_are_left() {
    require!(require_lab(), kernel_has("bridge-vlans"));
    let bridged = Bridged::new("vlan_filtering 1");
    let bywash = bridged.run(&["--level", "user"]);
    let left = "bridge interface br0 filters VLANs: programs do not see the tags of its packets";
    bywash.wait("the members to be left", |bywash| bywash.log().contains(left));
    bridged.assert_connected();
    bywash.stop();
}
