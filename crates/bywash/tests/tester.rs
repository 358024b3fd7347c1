//! Tests `bywash gen` in a namespace with two interfaces that the kernel, as a router, connects.

use bywash_lab::{End, Namespace, Process, Veth, counters, has_tool, patience, require, require_lab, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

const BYWASH: &str = env!("CARGO_BIN_EXE_bywash");
const PATIENCE: Duration = Duration::from_secs(60);

/// A tester with the interfaces `t0` and `t1`, connected to a router.
struct Net {
    tester: Namespace,
    router: Namespace,
}

impl Net {
    fn new() -> Self {
        let (tester, router) = (Namespace::new("gt").unwrap(), Namespace::new("gr").unwrap());
        for (n, net) in [(0, 1), (1, 2)] {
            let t = End::new(&tester, format!("t{n}")).address(format!("10.0.{net}.2/24"));
            let r = End::new(&router, format!("r{n}")).address(format!("10.0.{net}.1/24"));
            Veth::new(t, r).create().unwrap();
        }
        router.sysctl("net/ipv4/ip_forward", "1").unwrap();
        router.ip_batch("route add 198.18.0.0/16 via 10.0.1.2\nroute add 198.19.0.0/16 via 10.0.2.2\n").unwrap();
        let net = Self { tester, router };
        wait_until("links", PATIENCE, || {
            ["t0", "t1"].iter().all(|name| net.tester.ip(&["link", "show", name]).unwrap().stdout.contains("LOWER_UP"))
        })
        .unwrap();
        net
    }

    fn start(&self, arguments: &[&str]) -> Process {
        self.tester.spawn(&[&[BYWASH], arguments].concat()).unwrap()
    }

    /// Runs a command. Returns whether it succeeded, and its output on both streams.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut process = self.start(arguments);
        let status = process.wait(patience(PATIENCE)).unwrap();
        (status.success(), process.output())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (good, output) = self.run(&[arguments, &["--json"]].concat());
        assert!(good, "{output}");
        let line = output.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no JSON: {output}"));
        serde_json::from_str(line).unwrap()
    }

    /// Runs `gen` until every frame comes back, and in order: a busy machine may leave a queue on the way full, or move
    /// the sender to another CPU. Nothing excuses duplicates, or frames that were not sent.
    fn whole(&self, arguments: &[&str], count: u64) -> Value {
        let mut got = Value::Null;
        let whole = (0..5).any(|_| {
            got = self.json(arguments);
            let of = |name: &str| got["lanes"][0][name].as_u64().unwrap();
            assert_eq!((of("sent"), of("duplicates")), (count, 0), "{got}");
            (of("received"), of("lost"), of("reordered")) == (count, 0, 0)
        });
        assert!(whole, "{got}");
        got
    }
}

#[test]
fn through_a_router_every_frame_is_found_again() {
    require!(require_lab());
    let net = Net::new();
    let through = ["gen", "t0", "--rx", "t1", "--gateway", "10.0.1.1", "--rate", "20kpps", "--count", "4000"];
    for more in [&["--flows", "50", "--dst", "198.19.0.0/24"][..], &["--imix", "--random", "--flows", "9"]] {
        let got = net.whole(&[&through[..], more].concat(), 4000);
        let lane = &got["lanes"][0];
        assert_eq!(lane["latency"]["frames"], 4000, "{got}");
        assert!(lane["latency"]["min_us"].as_f64().unwrap() > 0.1, "{got}");
    }
    // The router's kernel must not have counted malformed headers.
    let snmp = net.router.run(&["cat", "/proc/net/snmp"]).unwrap().stdout;
    let ip = snmp.lines().nth(1).unwrap().split_whitespace().nth(4).unwrap();
    assert_eq!(ip, "0", "header errors:\n{snmp}");
}

#[test]
fn both_ways_and_a_capture() {
    require!(require_lab());
    let net = Net::new();
    let tcpdump = |count: &str| {
        net.router.spawn(&["tcpdump", "-l", "-n", "-i", "r0", "-c", count, "-vv", "src", "198.18.0.1"]).unwrap()
    };
    let mut seen = bywash_lab::has_tool("tcpdump").is_ok().then(|| tcpdump("3"));
    if let Some(seen) = &mut seen {
        seen.wait_for_output("listening", PATIENCE).unwrap();
    }
    let rate = ["--rate", "5kpps", "--count", "500", "--gateway", "10.0.1.1"];
    net.whole(&[&["gen", "t0", "--rx", "t1", "--size", "100,1518"][..], &rate].concat(), 500);
    if let Some(mut seen) = seen {
        seen.wait_for_output("[udp sum ok]", PATIENCE).unwrap();
        seen.wait(PATIENCE).unwrap();
        assert!(!seen.output().contains("bad udp"), "{}", seen.output());
    }
    let (good, text) = net.run(&["gen", "t0", "t1", "--rx", "t1", "--rx", "t0", "--rate", "1kpps", "--count", "10"]);
    assert!(good && text.contains("t0 -> t1") && text.contains("t1 -> t0"), "{text}");
}

#[test]
fn the_kernels_frames_are_as_sound_as_ours() {
    require!(require_lab(), has_tool("tcpdump"));
    let net = Net::new();
    // A veth accepts frames redirected by XDP only while its peer has NAPI on, which GRO switches on.
    net.router.offload("r0", "gro", true).unwrap();
    let through = ["gen", "t0", "--rx", "t1", "--gateway", "10.0.1.1", "--via", "kernel", "--rate", "20kpps"];
    let more = ["--count", "6000", "--flows", "20", "--dst", "198.19.0.0/24"];
    for sizes in [&["--imix"][..], &["--size", "64"], &["--size", "100,1518,87"]] {
        let mut seen =
            net.router.spawn(&["tcpdump", "-l", "-n", "-i", "r0", "-c", "40", "-vv", "src", "198.18.0.1"]).unwrap();
        seen.wait_for_output("listening", PATIENCE).unwrap();
        let got = net.whole(&[&through[..], &more, sizes].concat(), 6000);
        let lane = &got["lanes"][0];
        assert_eq!(got["via"], serde_json::json!(["kernel"]), "{got}");
        assert!(lane["latency"]["p50_us"].as_f64().unwrap() > 0.5, "{got}");
        seen.wait(PATIENCE).unwrap();
        let sound = || seen.output().matches("[udp sum ok]").count() == 40;
        wait_until("tcpdump's lines", PATIENCE, sound).unwrap_or_else(|error| panic!("{error}: {}", seen.output()));
    }
    let six = ["--src", "fd00:1::2", "--dst", "fd00:2::2", "--size", "84,90", "--dst-mac", "02:00:00:00:00:09"];
    let six = net.json(&[&["gen", "t0", "--via", "kernel", "--rate", "20kpps", "--count", "100"][..], &six].concat());
    assert_eq!(six["lanes"][0]["sent"], 100, "{six}");
    let fast = net.json(&["gen", "t0", "--rx", "t1", "--gateway", "10.0.1.1", "--seconds", "0.3"]);
    assert_eq!(fast["via"], serde_json::json!(["kernel"]), "{fast}");
    assert!(fast["lanes"][0]["received"].as_u64().unwrap() > 1000, "{fast}");
}

/// A rate that the generator cannot reach ends in time, without the rest of the frames.
#[test]
fn a_rate_beyond_reach_ends_in_time() {
    require!(require_lab());
    let net = Net::new();
    let got = net.json(&["gen", "t0", "--via", "socket", "--rate", "400mpps", "--seconds", "0.5"]);
    let lane = &got["lanes"][0];
    let sent = lane["sent"].as_u64().unwrap();
    assert!(sent > 0 && sent < 200_000_000, "{got}");
    assert!(lane["limits"].to_string().contains("generator"), "{got}");
}

#[test]
fn what_cannot_be_is_said() {
    require!(require_lab());
    let net = Net::new();
    let (good, text) = net.run(&["gen", "t0", "--rx", "t1", "--size", "1519", "--count", "1"]);
    assert!(!good && text.contains("port `t0` carries frames of 1518 bytes at most"), "{text}");
    // The smallest frames have no room for a tag: IMIX has longer ones.
    let tagged = ["gen", "t0", "--vlan", "10", "--via", "socket", "--rate", "1kpps", "--count", "12"];
    let (good, text) = net.run(&tagged);
    assert!(!good && text.contains("use at least 68"), "{text}");
    let (good, text) = net.run(&[&tagged[..], &["--imix"]].concat());
    assert!(good && text.contains(" 12 frames in "), "{text}");
    let (good, text) = net.run(&["gen", "t0", "--rx", "t0", "--rate", "1kpps", "--count", "20"]);
    assert!(good && text.contains("nothing came back: `t0` both sends and receives"), "{text}");
    let mut running = net.start(&["gen", "t0", "--rx", "t1", "--rate", "1kpps", "--seconds", "60"]);
    let received = || counters(&net.router, "r0").unwrap().rx_packets;
    let before = received();
    wait_until("frames", PATIENCE, || received() > before + 100).unwrap();
    net.tester.ip(&["link", "set", "t0", "down"]).unwrap();
    assert!(!running.wait(patience(PATIENCE)).unwrap().success());
    let text = running.output();
    assert!(text.contains("went down in the middle of a trial: link is down"), "{text}");
    let (good, text) = net.run(&["gen", "t0", "--rx", "t1"]);
    assert!(!good && text.contains("port `t0` does not work: link is down"), "{text}");
}

#[test]
fn ends_cleanly_at_ctrl_c() {
    require!(require_lab());
    let net = Net::new();
    let mut running = net.start(&["gen", "t0", "--rx", "t1", "--gateway", "10.0.1.1", "--rate", "2kpps", "--json"]);
    wait_until("frames", PATIENCE, || counters(&net.router, "r0").unwrap().rx_packets > 500).unwrap();
    running.signal(Signal::INT).unwrap();
    assert!(running.wait(patience(PATIENCE)).unwrap().success(), "{}", running.output());
    let output = running.output();
    let got: Value = serde_json::from_str(output.lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    let lane = &got["lanes"][0];
    assert!(lane["sent"].as_u64().unwrap() > 500 && lane["lost"] == 0, "{got}");
    assert!(!net.tester.ip(&["-d", "link", "show", "t1"]).unwrap().stdout.contains("prog/xdp"));
}
