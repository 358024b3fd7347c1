//! `bywash bench afxdp`: each application moves frames and accounts for them under various settings.

use crate::harness::{PATIENCE, alone};
use bywash_lab::{Process, has_tool, patience, require, require_lab, run_host, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::process::{Command, Output};
use std::time::Duration;

fn bench(arguments: &[&str]) -> Output {
    // An emulated machine may move nothing for a second.
    let seconds = patience(Duration::from_secs(1)).as_secs().to_string();
    let arguments = [&["bench", "afxdp", "--seconds", &seconds, "--json"], arguments].concat();
    Command::new(env!("CARGO_BIN_EXE_bywash")).args(arguments).output().unwrap()
}

/// Returns the figures of a run that must succeed, move frames and receive none that is invalid.
fn figures(arguments: &[&str]) -> Value {
    let ran = bench(arguments);
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    let figures: Value = serde_json::from_slice(&ran.stdout).unwrap();
    println!("{figures}");
    // The rate depends on the machine and is not checked.
    assert!(figures["mpps"].as_f64().unwrap() > 0.0, "{figures}");
    assert_eq!(figures["lost"]["invalid"], 0, "{figures}");
    figures
}

#[test]
fn afxdp_applications_move_frames() {
    require!(require_lab(), has_tool("ethtool"));
    let _alone = alone();
    let calls = |figures: &Value, reason: &str| figures["system_calls_per_packet"][reason].as_f64().unwrap();

    let rxdrop = figures(&["--app", "rxdrop", "--touch", "--batch", "16", "--ring", "256", "--pages", "4k"]);
    assert_eq!(rxdrop["got"][0]["rings"], "fill 256, rx 256, tx 256, completion 256");
    assert_eq!(rxdrop["got"][0]["pages"], "4 KiB");
    assert_eq!(rxdrop["got"].as_array().unwrap().len(), 1);
    // In copy mode receiving needs no system call.
    assert_eq!((calls(&rxdrop, "rx_wakeup"), calls(&rxdrop, "tx_kick")), (0.0, 0.0));

    let txpush = figures(&["--app", "txpush", "--transmit", "socket"]);
    assert_eq!(txpush["got"][0]["transmit"], "socket");
    assert!(calls(&txpush, "tx_kick") > 0.0);

    let l2fwd = figures(&["--app", "l2fwd", "--touch"]);
    assert_eq!(l2fwd["got"][1]["transmit"], "inject");
    assert_eq!(l2fwd["got"][1]["interface"], "r1");
}

/// In busy-poll mode the program configures the interface for it. In poll mode poll(2) is the only system call that
/// wakes the kernel.
#[test]
fn afxdp_settings_take_effect() {
    require!(require_lab(), has_tool("ethtool"));
    let _alone = alone();
    let calls = |figures: &Value, reason: &str| figures["system_calls_per_packet"][reason].as_f64().unwrap();

    let polled = figures(&["--app", "txpush", "--mode", "poll", "--transmit", "socket", "--in-order", "on"]);
    // Every frame is sent by a poll(2) call, and one call sends at most a full transmit ring.
    assert!(calls(&polled, "poll") >= 1.0 / 2048.0 && calls(&polled, "tx_kick") == 0.0, "{polled}");
    assert_eq!(polled["got"][0]["completion"], "in order");
    // In copy mode a frame completes when its receiver frees it, so completions may be reordered if the scheduler moves
    // the receiver to another CPU: the count is not checked.
    assert!(polled["reordered"].is_u64(), "{polled}");

    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
        let twice = figures(&["--app", "txpush", "--transmit", "socket", "--tx-queues", "2"]);
        assert_eq!((&twice["got"][0]["queue"], &twice["got"][1]["queue"]), (&"0".into(), &"1".into()), "{twice}");
    } else {
        println!("SKIP: two transmit queues need two CPUs");
    }

    let busy = figures(&["--app", "l2fwd", "--mode", "busy-poll", "--budget", "32", "--layout", "typewriter"]);
    assert!(calls(&busy, "busy_poll") > 0.0, "{busy}");
    assert_eq!(busy["got"][0]["busy_poll"], "32 frames a call");
    assert_eq!(busy["got"][0]["layout"], "typewriter");
}

#[test]
fn afxdp_refuses_impossible_settings() {
    require!(require_lab(), has_tool("ethtool"));
    for (arguments, why) in [
        (&["--ring", "100"][..], "ring of 100 entries: the size must be a power of two between 64 and 65536"),
        (&["--zero-copy", "require"], "the driver has no zero-copy, which was required"),
        (&["--app", "txpush", "--tx-sockets", "40"], "40 transmit sockets on one queue: 1 to 16 are possible"),
        (&["--tx-queues", "2"], "--tx-queues needs --app txpush"),
        (&["--in-order", "on"], "--in-order and --tx-sockets concern frames that are sent: add --app txpush"),
        (&["--app", "txpush", "--in-order", "on"], "but r1 sends by injection: add --transmit socket"),
        (&["--app", "l2fwd", "--tx-sockets", "2"], "sends by injection: add --transmit socket"),
        (&["--layout", "typewriter", "--size", "512"], "with --layout typewriter a buffer holds 260"),
    ] {
        let ran = bench(arguments);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && said.contains(why) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}

#[test]
fn an_interrupted_benchmark_leaves_nothing_behind() {
    require!(require_lab());
    let mut bench = Process::start(&[env!("CARGO_BIN_EXE_bywash"), "bench", "veth", "--seconds", "60"]).unwrap();
    let mine = format!("bw-{}-", bench.pid());
    let names = || run_host(&["ip", "netns", "list"]).unwrap().stdout.matches(&mine).count();
    wait_until("the topology", PATIENCE, || names() == 3).unwrap();
    bench.signal(Signal::TERM).unwrap();
    let status = bench.wait(PATIENCE).unwrap();
    assert_eq!((status.code(), names()), (Some(128 + 15), 0), "{}", bench.output());
}
