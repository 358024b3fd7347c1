//! The scripts that compare Bywash with other programs leave the host as it was.

use crate::harness::{alone, program};
use bywash_lab::{Snapshot, has_tool, require, require_lab};
use std::path::Path;
use std::process::Command;

const OVS: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// Returns the names in a directory, sorted; none if there is no such directory.
fn names(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into()).collect();
    names.sort();
    names
}

/// Names of persistent objects of Open vSwitch and DPDK, besides those of other tests.
fn left() -> (Vec<String>, Vec<String>, String) {
    let mut namespaces = names("/run/netns");
    namespaces.retain(|name| name.starts_with("bywash-ovs-"));
    let pages = std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap();
    (namespaces, names("/run/dpdk"), pages)
}

/// Open vSwitch makes persistent taps, `ovs-netdev` and one for each bridge. Its build without DPDK makes them, too, and
/// then fails; the script has to remove them in either case.
#[test]
fn a_comparison_with_open_vswitch_leaves_the_host_as_it_was() {
    let dpdk = Path::new(OVS).exists();
    require!(
        require_lab(),
        has_tool("ovs-vswitchd"),
        has_tool("ovsdb-server"),
        has_tool("ovs-vsctl"),
        has_tool("python3")
    );
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (before, left_before) = (Snapshot::of_host().unwrap(), left());
    let ovs = if dpdk { OVS } else { "/usr/sbin/ovs-vswitchd" };
    let out = Command::new(root.join("bench/peers/switch.sh"))
        .args(["--bywash", &program(), "--vswitchd", ovs, "--rounds", "1", "--seconds", "1", "--cpu", "0"])
        .args(["--pages", "4k", "--out"])
        .arg(place.path().join("switch.json"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.success(), dpdk, "{told}");
    assert!(dpdk || told.contains("OVS"), "OVS was not reached: {told}");
    let differences = before.differences(&Snapshot::of_host().unwrap());
    assert!(differences.is_empty(), "{differences:#?}\n{told}");
    assert_eq!(left(), left_before);
}
