//! Bridges that filter VLANs: packets without a tag are forwarded past the kernel if the bridge's own interface and the
//! member have them in the same VLAN, and only to stations that the bridge knows in that VLAN.

use super::ip;
use crate::bridges::{B, Bridged, C};
use bywash_lab::{Namespace, Ping, kernel_has, require, require_lab};
use std::time::{Duration, Instant};

/// Runs a command whose words are separated by blanks.
fn run(ns: &Namespace, command: &str) {
    ns.run(&command.split(' ').collect::<Vec<_>>()).unwrap();
}

/// Returns how many of five pings are answered.
fn answers(from: &Namespace, to: &str) -> u32 {
    Ping::to(ip(to)).count(5).wait(Duration::from_millis(100)).run(from).unwrap().received
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
    let both: &[&str] = &["r1", "r2"];
    for (set, unset, left) in [
        ("vlan add dev r1 vid 20 pvid untagged", "vlan add dev r1 vid 1 pvid untagged", &["r1"][..]),
        ("vlan del dev r1 vid 1", "vlan add dev r1 vid 1 pvid untagged", &["r1"]),
        // Sent with a tag.
        ("vlan add dev r1 vid 1 pvid", "vlan add dev r1 vid 1 pvid untagged", &["r1"]),
        ("vlan set dev r1 vid 1 state blocking", "vlan set dev r1 vid 1 state forwarding", &["r1"]),
        ("vlan del dev br0 vid 1 self", "vlan add dev br0 vid 1 pvid untagged self", both),
        ("vlan add dev br0 vid 1 pvid self", "vlan add dev br0 vid 1 pvid untagged self", both),
    ] {
        run(r, &format!("bridge {set}"));
        for port in left {
            let reason = "which filters VLANs";
            bywash
                .wait(&format!("{port} to be left by `{set}`"), |_| why(port).is_some_and(|why| why.contains(reason)));
        }
        // Nothing passes by the member, as the kernel has it.
        assert_eq!(answers(bridged.a(), B[0]), 0, "{set}");
        assert_eq!(answers(bridged.a(), C[0]), if left == both { 0 } else { 5 }, "{set}");
        run(r, &format!("bridge {unset}"));
        for port in left {
            bywash.wait(&format!("{port} to be taken over after `{unset}`"), |_| why(port).is_none());
        }
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
fn stations_are_heard_in_their_vlan() {
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
        assert_eq!(answers(b, &to), 5);
        let known = stations(&bridged);
        assert!(known.contains(&entry), "{known}");
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
        // The kernel routes for br0.30.
        assert_eq!(answers(b, "10.30.0.1"), 5);
        assert_eq!(answers(b, &bridged.lab.a().v4.to_string()), 5);
        assert!(bridged.passes(&bywash, C[0], 2, 10));
    }
    let known = stations(&bridged);
    let entry = |dev: &str, vlan: &str| format!("{mac} dev {dev} vlan {vlan} ");
    assert!(known.contains(&entry("r1", "30")) && known.contains(&entry("r2", "1")), "{known}");
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
