//! After every kind of end of the program the kernel forwards at once, nothing stays attached, and every setting is as
//! before the start (after SIGKILL, once `bywash restore` has run).

use crate::harness::{Bywash, PATIENCE, alone, assert_detached, bywash, wait_until_detached};
use bywash_lab::{Ping, Snapshot, Topology, require, require_lab};
use rustix::process::Signal;
use std::thread::scope;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(4);

/// Ends the program by `signal` under a ping flood. Returns its exit code and the time without forwarding.
fn end_under_load(signal: Signal) -> (Option<i32>, Duration) {
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    let mut running = Bywash::run(lab.r(), &lab.router_interfaces());
    running.wait_to_count("r0", "rx_packets", 3, || {
        Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap();
    });
    let (status, report) = scope(|scope| {
        let flood = scope.spawn(|| Ping::to(lab.b().v4).count(400).interval(EVERY).run(&lab.a().ns).unwrap());
        running.wait("the flood", |bywash| bywash.counter("r0", "rx_packets") > 50);
        let status = running.signalled(signal);
        match signal {
            Signal::KILL => wait_until_detached(lab.r()),
            _ => assert_detached(lab.r()),
        }
        (status, flood.join().unwrap())
    });
    let lost = report.sent - report.received;
    let gap = EVERY * lost;
    println!("{signal:?}: {lost} of {} lost, at most {gap:?} without forwarding", report.sent);

    if signal == Signal::KILL {
        let restored = bywash(lab.r(), &["restore", "--json"]);
        assert_eq!(restored.status.code(), Some(0), "{}", restored.stderr);
    } else {
        assert!(running.log().contains("cells are back in their pools"), "{}", running.log());
    }
    let differences = before.differences(&Snapshot::of(lab.r()).unwrap());
    assert!(differences.is_empty(), "{differences:#?}");
    assert_eq!(Ping::to(lab.b().v6).count(3).run(&lab.a().ns).unwrap().received, 3);
    (status.code(), gap)
}

/// Longest time without forwarding. The goal is 100 ms; a machine busy with other tests is allowed more, and the tests
/// print the figure.
const GAP: Duration = Duration::from_millis(400);

#[test]
fn ctrl_c_and_sigterm_hand_over_cleanly() {
    require!(require_lab());
    let _alone = alone();
    for signal in [Signal::INT, Signal::TERM] {
        ends_quickly(signal, Some(0));
    }
}

#[test]
fn kill_leaves_the_kernel_forwarding() {
    require!(require_lab());
    let _alone = alone();
    ends_quickly(Signal::KILL, None);
}

/// Fails unless the program ends by a signal with this exit code, and once at least within [`GAP`]: a machine that does
/// much else may disturb some of the times, but hardly all.
fn ends_quickly(signal: Signal, code: Option<i32>) {
    let gaps = (0..5).map(|_| {
        let (ended, gap) = end_under_load(signal);
        assert_eq!(ended, code, "{signal:?}");
        gap
    });
    let mut all = vec![];
    assert!(gaps.inspect(|gap| all.push(*gap)).any(|gap| gap <= GAP), "{signal:?}: {all:?}");
}

#[test]
fn a_killed_run_is_no_obstacle_to_the_next() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let arguments = ["run", "--socket", socket.to_str().unwrap(), "r0", "r1"];
    let program = crate::harness::program();
    let argv = [&[program.as_str()][..], &arguments].concat();
    for round in 0..3 {
        let mut process = lab.r().spawn(&argv).unwrap();
        process.wait_for_output("forwarding;", PATIENCE).unwrap();
        assert_eq!(Ping::to(lab.b().v4).count(1).run(&lab.a().ns).unwrap().received, 1, "round {round}");
        process.kill().unwrap();
        assert!(socket.exists(), "the killed run left no socket");
    }
    let shown = bywash(lab.r(), &["show", "ports", "--socket", socket.to_str().unwrap()]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(shown.stderr.contains("no bywash runs here any more"), "{}", shown.stderr);
    wait_until_detached(lab.r());
}
