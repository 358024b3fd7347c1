//! Ports on DPDK's drivers: a switch and a router between them and others, errors, what is shown. Only in a build with the
//! feature `dpdk`.

use crate::harness::{Bywash, PATIENCE, bywash};
use bywash_lab::{End, Namespace, Ping, Veth, require, require_lab, wait_until};
use std::net::IpAddr;
use std::path::PathBuf;
use tempfile::TempDir;

/// The text of a configuration as a file, and where it is.
fn config(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bywash.toml");
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

fn reaches(host: &Namespace, to: &str) -> bool {
    let to: IpAddr = to.parse().unwrap();
    Ping::to(to).count(1).run(host).unwrap().received == 1
}

/// One host behind a DPDK device, one behind an AF_XDP port: the switch joins them.
#[test]
fn a_switch_between_dpdk_and_af_xdp() {
    require!(require_lab());
    let (switch, a, b) = (Namespace::new("s").unwrap(), Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    for (host, n) in [(&a, 1), (&b, 2)] {
        let end = End::new(host, "e0").mac(format!("02:00:00:00:09:0{n}")).address(format!("10.9.0.{n}/24"));
        Veth::new(End::new(&switch, &format!("p{n}")), end.offload("tx-vlan-hw-insert", false)).create().unwrap();
    }
    let text = "mode = \"switch\"\n[workers]\ncount = 1\n[pool]\ncell = 4096\n\
        [[port]]\nkind = \"dpdk\"\nname = \"d\"\ndevice = \"net_af_packet0,iface=p1\"\n\
        [[port]]\nname = \"x\"\ninterface = \"p2\"\n";
    let (_directory, path) = config(text);
    let running = Bywash::run(&switch, &["--config", path.to_str().unwrap()]);
    wait_until("the hosts to reach each other", PATIENCE, || reaches(&a, "10.9.0.2") && reaches(&b, "10.9.0.1"))
        .unwrap();
    let port = running.port("d");
    assert_eq!((port["kind"].as_str(), port["state"].as_str()), (Some("dpdk"), Some("up")), "{port}");
    let queue = &port["queues"][0];
    assert_eq!(
        (queue["driver"].as_str(), queue["mode"].as_str()),
        (Some("net_af_packet"), Some("zero-copy")),
        "{queue}"
    );
    assert!(queue["xstats"].as_str().unwrap().contains("rx_good_packets="), "{queue}");
    assert!(running.counter("d", "rx_packets") > 0 && running.counter("d", "tx_packets") > 0);
    running.stop();
}

/// A port that cannot be is an error of the start that names the port, and what to do.
#[test]
fn what_dpdk_refuses_is_said() {
    require!(require_lab());
    let alone = Namespace::new("n").unwrap();
    for (device, more, says) in [
        ("net_nonesuch0", "", "net_nonesuch0"),
        ("net_af_packet0,iface=nonesuch", "", "net_af_packet0"),
        ("net_ring0", "device_queues = 64\n", "queues each way"),
        ("net_null0", "eal = \"--help\"\n", "--help"),
        ("net_null0", "eal = \"--no-such-option\"\n", "--no-such-option"),
    ] {
        let (_directory, path) =
            config(&format!("[[port]]\nkind = \"dpdk\"\nname = \"d\"\ndevice = \"{device}\"\n{more}"));
        let output = bywash(&alone, &["run", "--config", path.to_str().unwrap()]);
        assert!(!output.status.success(), "{device} {more}");
        assert!(output.stderr.contains(says) || output.stdout.contains(says), "{device} {more}: {}", output.stderr);
    }
}
