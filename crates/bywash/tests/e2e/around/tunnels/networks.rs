//! A VXLAN of several networks, which are VLANs of a bridge that filters VLANs (a single VXLAN device, as EVPN has it).

use super::super::ip;
use super::same_bytes::frames_are_encapsulated;
use super::{NETWORKS, Tunnels, carries};
use crate::harness::Bywash;
use bywash_lab::{Ping, Probe, kernel_has, require, require_lab};

fn has_networks() -> Probe {
    ["vxlan", "8021q", "bridge-vlans"].into_iter().try_for_each(kernel_has)
}

#[test]
fn networks_of_a_vxlan_are_forwarded_past_the_kernel() {
    require!(require_lab(), has_networks());
    carries(&NETWORKS, |_, bywash| {
        let shown = bywash.port("r1");
        let names = |kind: &str| -> Vec<String> {
            let above = shown["above"].as_array().unwrap().iter().filter(|of| of["kind"] == kind);
            above.map(|of| of["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("vxlan"), ["vxn VNI 97", "vxn VNI 98"], "{shown}");
        assert_eq!(names("vlan"), ["brn.97", "brn.98"], "{shown}");
        bywash.assert_conserved();
    });
}

#[test]
fn frames_of_networks_are_encapsulated_as_the_kernel_does() {
    require!(require_lab(), has_networks());
    frames_are_encapsulated(&NETWORKS);
}

/// The VNIs of VLANs, and the stations in them, are the kernel's after each change.
#[test]
fn networks_of_a_vxlan_are_followed() {
    require!(require_lab(), has_networks());
    let tunnels = Tunnels::new(&NETWORKS);
    let r = tunnels.0.r();
    tunnels.answer_by("n1", 97, 97);
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    // Returns how many of five packets in the first network are answered, and how many are encapsulated.
    let ping = || {
        let before = Tunnels::moved(&bywash).0;
        let report = Ping::to(ip("10.97.0.2")).count(5).run(&tunnels.0.a().ns).unwrap();
        (report.received, Tunnels::moved(&bywash).0 - before)
    };
    let bridge = |line: &str| drop(r.run(&[&["bridge"][..], &line.split(' ').collect::<Vec<_>>()].concat()).unwrap());
    let mac = super::mac_of(97, 2);
    let station = |vni: u8, more: &str| format!("{mac} dev vxn src_vni {vni} dst 10.0.2.2{more} self");
    let back = |why: &str| bywash.wait(&format!("packets by the first network again, {why}"), |_| ping() == (5, 5));
    back("at first");
    // Without an entry, the kernel sends to the network's default end.
    bridge(&format!("fdb del {}", station(97, "")));
    bywash.wait("the station to be left to the kernel", |_| ping() == (5, 0));
    // An entry of the other network is none of this one.
    bridge(&format!("fdb append {}", station(98, "")));
    assert_eq!(ping(), (5, 0));
    bridge(&format!("fdb del {}", station(98, "")));
    bridge(&format!("fdb append {}", station(97, "")));
    back("with its station");
    // Another VNI, which host b does not have.
    bridge("vlan del dev vxn vid 97 tunnel_info id 97");
    bridge("vlan add dev vxn vid 97 tunnel_info id 99");
    bywash.wait("another network", |_| ping() == (0, 0));
    assert_eq!(ping(), (0, 0), "by the old network");
    bridge("vlan del dev vxn vid 97 tunnel_info id 99");
    bywash.wait("no network", |_| ping() == (0, 0));
    assert_eq!(ping(), (0, 0), "by no network");
    bridge("vlan add dev vxn vid 97 tunnel_info id 97");
    back("with its VNI");
    bridge("vni delete dev vxn vni 97");
    bywash.wait("a network that is not received", |_| ping().1 == 0);
    assert_eq!(ping().0, 0, "past the filter");
    bridge("vni add dev vxn vni 97");
    back("through the filter");
    // Without the tag, the bridge does not find the VNI.
    bridge("vlan add dev vxn vid 97 untagged");
    bywash.wait("frames without a VNI", |_| ping() == (0, 0));
    bridge("vlan add dev vxn vid 97");
    back("with its tag");
    // The kernel forgets the VNIs, and announces nothing but that VLANs are no networks, and that they may be again.
    bridge("link set dev vxn vlan_tunnel off");
    bridge("link set dev vxn vlan_tunnel on");
    bywash.wait("VLANs without VNIs", |_| ping() == (0, 0));
    bridge("vlan add dev vxn vid 97 tunnel_info id 97");
    back("with its VNI once more");
    bridge("link set dev vxn vlan_tunnel off");
    bywash.wait("VLANs that are no networks", |_| ping() == (0, 0));
    assert_eq!(ping(), (0, 0), "by VLANs that are no networks");
    bywash.assert_conserved();
    bywash.stop();
}
