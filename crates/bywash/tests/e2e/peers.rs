//! The scripts that compare Bywash with other programs leave the host as it was.

use crate::harness::program;
use bywash_lab::{Snapshot, has_tool, require, require_lab};
use std::path::{Path, PathBuf};
use std::process::Command;

const OVS: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// Returns the namespaces and DPDK directories of a script's runs.
fn left(prefix: &str) -> Vec<PathBuf> {
    let places = ["/run/netns", "/run/dpdk"].map(std::fs::read_dir);
    let mut found: Vec<PathBuf> = places.into_iter().flatten().flatten().flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)));
    found.sort();
    found
}

/// Runs a script for one round, and returns whether it succeeded, and what it said.
fn run(script: &str, arguments: &[&str]) -> (bool, String) {
    let place = tempfile::tempdir().unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers");
    let out = Command::new(scripts.join(script))
        .args(["--bywash", &program(), "--rounds", "1", "--seconds", "1"])
        .args(arguments)
        .arg("--out")
        .arg(place.path().join("result.json"))
        .output()
        .unwrap();
    (out.status.success(), String::from_utf8_lossy(&out.stderr).into())
}

/// Open vSwitch makes persistent taps, `ovs-netdev` and one for each bridge. Its build without DPDK makes them, too,
/// and then fails; the script has to remove them in either case.
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
    let (before, left_before) = (Snapshot::of_host().unwrap(), left("bywash-ovs-"));
    let ovs = if dpdk { OVS } else { "/usr/sbin/ovs-vswitchd" };
    // OVS gives DPDK an option that does not go with pages of 4 KiB.
    let pages = if dpdk { "2m" } else { "4k" };
    let (done, told) = run("switch.sh", &["--vswitchd", ovs, "--cpu", "0", "--pages", pages]);
    assert_eq!(done, dpdk, "{told}");
    assert!(dpdk || told.contains("OVS"), "OVS was not reached: {told}");
    let differences = before.differences(&Snapshot::of_host().unwrap());
    assert!(differences.is_empty(), "{differences:#?}\n{told}");
    assert_eq!(left("bywash-ovs-"), left_before);
}

/// A peer may look up the kernel's routes, which needs forwarding to be on; but what the kernel forwards is not the
/// peer's.
#[test]
fn what_the_kernel_forwards_is_not_counted_as_a_peers() {
    require!(require_lab(), has_tool("nft"), has_tool("ethtool"));
    // With GRO, the kernel receives what the generator sends.
    let peer =
        "none=sh -c 'cd /proc/sys/net; cat ipv4/ip_forward ipv6/conf/all/forwarding; ethtool -K r0 gro on; sleep 3'";
    for family in ["4", "6"] {
        let bench = ["bench", "placement", "--ours-only", "--rounds", "1", "--seconds", "1", "--family", family];
        let out = Command::new(program()).args(bench).args(["--peer", peer]).output().unwrap();
        let told = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && told.contains("forwards no frames; its output: 1 1"), "IPv{family}: {told}");
    }
}

#[test]
fn a_comparison_with_a_crypto_library_leaves_the_host_as_it_was() {
    require!(require_lab(), has_tool("dpdk-test-crypto-perf"), has_tool("python3"));
    let before = left("bywash-cmts-");
    let (done, told) = run("cmts.sh", &[]);
    // Without the library of ciphers the peer fails, after it has made its directory.
    assert!(done || told.contains("failed"), "{told}");
    assert_eq!(left("bywash-cmts-"), before);
}
