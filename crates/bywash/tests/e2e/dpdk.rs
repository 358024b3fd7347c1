//! Ports on DPDK's drivers, alone and beside others, in a switch and in a router: forwarding, errors, `show`. Only in a
//! build with the feature `dpdk`.

use crate::garbage::mac;
use crate::harness::{Bywash, PATIENCE, bywash};
use crate::raw::send;
use bywash_lab::{End, Namespace, Ping, Topology, Veth, detached, has_tool, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use tempfile::TempDir;

/// Writes a configuration to a file; returns the file's directory, which is deleted on drop, and the file's path.
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

/// The switch forwards between a host behind a DPDK device and a host behind an AF_XDP port.
#[test]
fn a_switch_between_dpdk_and_af_xdp() {
    require!(require_lab());
    let (switch, a, b) = (Namespace::new("s").unwrap(), Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    for (host, n) in [(&a, 1), (&b, 2)] {
        let end = End::new(host, "e0").mac(format!("02:00:00:00:09:0{n}")).address(format!("10.9.0.{n}/24"));
        Veth::new(End::new(&switch, format!("p{n}")), end.offload("tx-vlan-hw-insert", false)).create().unwrap();
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

/// Several devices whose driver receives into memory of its own, separate for each device, work at the same time.
#[test]
fn several_devices_that_copy() {
    require!(require_lab());
    let (switch, hosts) =
        (Namespace::new("s").unwrap(), [1, 2, 3, 4].map(|n| Namespace::new(&format!("h{n}")).unwrap()));
    let mut text = "mode = \"switch\"\n[workers]\ncount = 1\n".to_owned();
    for (host, n) in hosts.iter().zip(1..) {
        let end = End::new(host, "e0").mac(format!("02:00:00:00:09:0{n}")).address(format!("10.9.0.{n}/24"));
        Veth::new(End::new(&switch, format!("p{n}")), end).create().unwrap();
        writeln!(text, "[[port]]\nkind = \"dpdk\"\nname = \"d{n}\"\ndevice = \"net_af_xdp{n},iface=p{n}\"").unwrap();
    }
    let (_directory, path) = config(&text);
    let running = Bywash::run(&switch, &["--config", path.to_str().unwrap()]);
    for (host, next) in hosts.iter().zip([2, 3, 4, 1]) {
        wait_until("the hosts to reach each other", PATIENCE, || reaches(host, &format!("10.9.0.{next}"))).unwrap();
    }
    let queue = &running.port("d4")["queues"][0];
    assert_eq!((queue["mode"].as_str(), queue["offloads_used"].as_str()), (Some("copy"), Some("none")), "{queue}");
    running.stop();
}

/// A port that DPDK cannot open is an error at the start; the message names the device or the setting.
#[test]
fn a_refusal_by_dpdk_is_reported() {
    require!(require_lab());
    let alone = Namespace::new("n").unwrap();
    for (device, more, says) in [
        ("net_nonesuch0", "", "net_nonesuch0"),
        ("net_af_packet0,iface=nonesuch", "", "net_af_packet0"),
        ("net_ring0", "device_queues = 17\n", "queues each way"),
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

/// A reload that adds the first DPDK port starts EAL. A failed reload changes nothing; a removed port can come back.
#[test]
fn a_reload_starts_dpdk() {
    require!(require_lab());
    let router = Namespace::new("r").unwrap();
    router.sysctl("net/ipv4/ip_forward", "1").unwrap();
    let first = "[workers]\ncount = 1\n[pool]\nframes = 40960\n[[port]]\nkind = \"null\"\nname = \"n\"\n";
    let dpdk = |device: &str, more: &str| {
        format!("{first}[[port]]\nkind = \"dpdk\"\nname = \"d\"\ninterface = \"twin\"\ndevice = \"{device}\"\n{more}")
    };
    let (_directory, path) = config(first);
    let running = Bywash::run_as_is(&router, &["--config", path.to_str().unwrap()]);
    let reload = |text: &str| {
        std::fs::write(&path, text).unwrap();
        bywash(&router, &["reload", "--socket", running.socket().to_str().unwrap()])
    };
    let names = || running.show(&["ports"]).as_array().unwrap().len();
    let refused = reload(&dpdk("net_nonesuch0", ""));
    assert!(!refused.status.success() && refused.stderr.contains("net_nonesuch0"), "{}", refused.stderr);
    assert_eq!(names(), 1);
    for device in ["net_null0", "net_null0,size=100"] {
        reload(&dpdk(device, "")).ok().unwrap();
        running.wait("the port", |running| running.port("d")["state"] == "up");
        running
            .wait("the twin's carrier", |_| router.ip(&["link", "show", "twin"]).unwrap().stdout.contains("LOWER_UP"));
        reload(first).ok().unwrap();
        assert_eq!(names(), 1);
        assert!(router.ip(&["link", "show", "twin"]).is_err(), "the port's twin is left behind");
    }
    reload(&dpdk("net_null0", "eal = \"--log-level=7\"\n")).ok().unwrap();
    running.wait("the option to be reported", |running| {
        running.log().contains("option `--log-level=7` takes effect at the next start")
    });
    // More queues than the device has are refused, and the existing port stays.
    let refused = reload(&dpdk("net_ring0", "device_queues = 17\n"));
    assert!(!refused.status.success() && refused.stderr.contains("queues each way"), "{}", refused.stderr);
    running.wait("the port", |running| running.port("d")["queues"][0]["driver"] == "net_null");
    running.stop();
}

/// The interface below a device is deleted: the port goes down with a reason, and the other ports keep forwarding.
#[test]
fn a_device_is_unplugged() {
    require!(require_lab());
    let (switch, a, b) = (Namespace::new("s").unwrap(), Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    for (host, n) in [(&a, 1), (&b, 2)] {
        let end = End::new(host, "e0").mac(format!("02:00:00:00:09:0{n}")).address(format!("10.9.0.{n}/24"));
        Veth::new(End::new(&switch, format!("p{n}")), end).create().unwrap();
    }
    for (device, gone) in
        [("net_tap0,iface=gone", "gone"), ("net_af_packet7,iface=gone,framesz=1792,blocksz=28672", "gone")]
    {
        if device.starts_with("net_af_packet") {
            switch.ip_batch("link add gone type veth peer name other\nlink set gone up\nlink set other up\n").unwrap();
        }
        let text = format!(
            "mode = \"switch\"\n[workers]\ncount = 1\n[[port]]\nkind = \"dpdk\"\nname = \"d\"\ndevice = \"{device}\"\n\
             [[port]]\nname = \"x\"\ninterface = \"p1\"\n[[port]]\nname = \"y\"\ninterface = \"p2\"\n"
        );
        let (_directory, path) = config(&text);
        let running = Bywash::run(&switch, &["--config", path.to_str().unwrap()]);
        running.wait("the device", |running| running.port("d")["state"] == "up");
        switch.ip(&["link", "del", gone]).unwrap();
        // The port first reports that its link is down, then that the device is unplugged.
        let unplugged = |port: serde_json::Value| port["reason"].as_str().is_some_and(|why| why.contains("unplugged"));
        running.wait("the unplugging to be noticed", |running| unplugged(running.port("d")));
        assert_eq!(running.port("d")["state"], "down");
        wait_until("the hosts to reach each other", PATIENCE, || reaches(&a, "10.9.0.2")).unwrap();
        running.stop();
    }
}

/// Packets that a router's NIC receives and that are not forwarded go to the kernel by the twin, or are dropped.
#[test]
fn packets_not_forwarded_cross_to_the_twin() {
    require!(require_lab(), has_tool("python3"));
    detached(17, || {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        let (a, b) = (lab.a(), lab.b());
        let running = Bywash::run(lab.r(), &lab.router_interfaces());
        let packet = Packet::udp(SocketAddr::from((a.v4, 1000)), SocketAddr::from((b.v4, 9)));
        let to = |to: &str, packet: &Packet<'_>| packet.clone().macs(mac(&a.mac), mac(to)).build().unwrap();
        let mut lldp = to(&a.router_mac, &packet);
        lldp[12..14].copy_from_slice(&[0x88, 0xcc]);
        let to_kernel = || -> u64 {
            let queues = running.port("r0")["queues"].clone();
            let of = |queue: &serde_json::Value| queue["to_kernel"].as_str().map_or(0, |n| n.parse().unwrap());
            queues.as_array().unwrap().iter().map(of).sum()
        };
        let before = to_kernel();
        let frames = [(3, lldp), (4, to(&a.router_mac, &packet.clone().vlan(7)))];
        send(&a.ns, &a.interface, &frames);
        running.wait("the frames to reach the kernel", |_| to_kernel() >= before + 7);
        send(&a.ns, &a.interface, &[(5, to("02:00:00:00:77:77", &packet))]);
        running.wait("foreign frames to be dropped", |running| running.drops("r0", "not-mine") == 5);
        send(&a.ns, &a.interface, &[(2, to(&a.router_mac, &packet.clone().ip_options(&[1, 1, 1, 0])))]);
        running.wait("packets with options to be punted", |running| running.events("r0", "punted") >= 2);
        running.stop();
    });
}
