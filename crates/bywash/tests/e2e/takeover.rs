//! A new process takes over the ports of a running one under load, and the kernel and then a new process replace one
//! that was killed: numbered packets show the loss.

use crate::faults::forwards;
use crate::harness::{Bywash, PATIENCE, alone, assert_detached, bywash, program};
use crate::load;
use bywash_lab::{Namespace, Process, Snapshot, Topology, require, require_lab, wait_until};
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

fn lab() -> Topology {
    let lab = Topology::builder().static_neighbours(true).host_offload("gro", true).host_offload("tx", false);
    let lab = lab.build().unwrap();
    load::route(&lab);
    lab
}

/// Starts another `bywash run`, with `--takeover`, at the same socket.
pub fn next(lab: &Topology, socket: &Path, arguments: &[&str]) -> Process {
    next_in(lab.r(), socket, arguments)
}

fn next_in(namespace: &Namespace, socket: &Path, arguments: &[&str]) -> Process {
    let program = program();
    let argv = [&[program.as_str(), "run", "--takeover", "--socket", socket.to_str().unwrap()], arguments].concat();
    namespace.spawn(&argv).unwrap()
}

/// Returns the level of a port, from the process that answers at the socket.
fn level_of(lab: &Topology, socket: &Path, port: usize) -> String {
    let shown = bywash(lab.r(), &["show", "placement", "--json", "--socket", socket.to_str().unwrap()]);
    let shown: serde_json::Value = serde_json::from_str(&shown.ok().unwrap().stdout).unwrap();
    shown[port]["level"].as_str().unwrap().to_owned()
}

/// Returns the pause of user space that the new process logged.
fn pause(log: &str) -> &str {
    log.split("user space paused for ")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .unwrap_or_else(|| panic!("{log}"))
}

/// Ends the process by `end`, fails unless it ends cleanly, and returns its log.
fn ends_in_peace(mut process: Process, end: impl FnOnce(&mut Process)) -> String {
    end(&mut process);
    let status = process.wait(PATIENCE).unwrap();
    let log = process.output();
    assert!(status.success() && log.contains("cells are back in their pools") && !log.contains("ERROR"), "{log}");
    log
}

#[test]
fn a_new_process_takes_over_and_nothing_is_lost() {
    require!(require_lab());
    let _alone = alone();
    for (xdp, first, then) in [("generic", "user", "user"), ("native", "user", "driver"), ("native", "driver", "user")]
    {
        let lab = lab();
        let before = Snapshot::of(lab.r()).unwrap();
        let arguments = |level| ["--xdp", xdp, "--level", level, "r0", "r1"];
        let first_running = Bywash::run_as_is(lab.r(), &arguments(first));
        let socket = first_running.socket();
        let (second, loss) = load::during(&lab, load::rate(), || {
            std::thread::sleep(Duration::from_millis(200));
            let mut second = next(&lab, &socket, &arguments(then));
            second.wait_for_output("forwarding;", PATIENCE).unwrap_or_else(|e| panic!("{e}: {}", second.output()));
            std::thread::sleep(Duration::from_millis(200));
            second
        });
        println!(
            "{xdp}, {first} to {then}: {} sent, {} lost, none for {:?}; user space paused for {}",
            loss.sent,
            loss.lost,
            loss.gap,
            pause(&second.output())
        );
        // The first process ends by itself. Its settings are restored only when the second ends.
        let Bywash { process, .. } = &first_running;
        let log = || process.output();
        wait_until("the first to end", PATIENCE, || log().contains("another process has taken over")).unwrap();
        assert!(log().contains("cells are back in their pools") && !log().contains("ERROR"), "{}", log());
        assert_eq!((loss.unexplained(0), loss.twice), (0, 0), "{loss:?}: {} {}", log(), second.output());
        assert_eq!(level_of(&lab, &socket, 0), then);
        let sandbox = ["show", "sandbox", "--socket", socket.to_str().unwrap()];
        assert!(bywash(lab.r(), &sandbox).ok().unwrap().stdout.starts_with("sandbox: on\n"));
        ends_in_peace(second, |process| process.signal(Signal::TERM).unwrap());
        assert_detached(lab.r());
        let differences = before.differences(&Snapshot::of(lab.r()).unwrap());
        assert!(differences.is_empty(), "{differences:#?}");
        assert!(!socket.exists());
    }
}

#[test]
fn takeover_by_signal_and_without_a_running_process() {
    require!(require_lab());
    let _alone = alone();
    let lab = lab();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    // Without a running process, `--takeover` just starts.
    let mut first = next(&lab, &socket, &["--no-sandbox", "--level", "user", "r0", "r1"]);
    first.wait_for_output("forwarding;", PATIENCE).unwrap();
    let ((), loss) = load::during(&lab, load::rate(), || {
        std::thread::sleep(Duration::from_millis(100));
        first.signal(Signal::USR2).unwrap();
        let ended = first.wait(PATIENCE).unwrap_or_else(|e| panic!("{e}: {}", first.output()));
        assert!(ended.success(), "{}", first.output());
        let answers = || bywash(lab.r(), &["show", "ports", "--socket", socket.to_str().unwrap()]).status.success();
        wait_until("the second to answer", PATIENCE, answers).unwrap();
    });
    println!("by SIGUSR2: {} sent, {} lost, none for {:?}", loss.sent, loss.lost, loss.gap);
    assert_eq!((loss.unexplained(0), loss.twice), (0, 0), "{loss:?}: {}", first.output());
    let log = first.output();
    let pid = log
        .split("SIGUSR2: started pid ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next())
        .unwrap()
        .parse()
        .unwrap();
    let second = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(second, Signal::TERM).unwrap();
    let detached = || !lab.r().ip(&["-d", "link", "show"]).unwrap().stdout.contains("xdp");
    wait_until("the second to end", PATIENCE, || !socket.exists() && detached()).unwrap();
}

/// A process in its sandbox cannot start another: on SIGUSR2 it logs that and continues.
#[test]
fn a_signal_for_takeover_changes_nothing_in_the_sandbox() {
    require!(require_lab());
    let lab = lab();
    let mut running = Bywash::run(lab.r(), &["r0", "r1"]);
    running.process.signal(Signal::USR2).unwrap();
    wait_until("the refusal", PATIENCE, || running.log().contains("SIGUSR2: in its sandbox")).unwrap();
    assert!(bywash(lab.r(), &["show", "ports", "--socket", running.socket().to_str().unwrap()]).status.success());
    assert!(running.log().contains("--no-sandbox") && running.log().contains("--takeover"), "{}", running.log());
    running.stop();
    assert_detached(lab.r());
}

#[test]
fn a_takeover_that_fails_leaves_the_running_one() {
    require!(require_lab());
    let _alone = alone();
    let lab = lab();
    let running = Bywash::run(lab.r(), &["--xdp", "native", "r0", "r1"]);
    let before = Snapshot::of(lab.r()).unwrap();
    // In the other namespace the interfaces have other programs, even those of the same names.
    let of_other = [lab.a().interface.as_str()];
    let ((), loss) = load::during(&lab, load::rate(), || {
        for (namespace, arguments, why) in [
            (lab.r(), &["--xdp", "generic", "r0", "r1"][..], "its XDP program is native"),
            (lab.r(), &["r0", "r1", "nosuch0"], "no interface nosuch0"),
            (&lab.a().ns, &of_other, "runs in another network namespace"),
        ] {
            let mut process = next_in(namespace, &running.socket(), arguments);
            let status = process.wait(PATIENCE).unwrap();
            assert!(!status.success() && process.output().contains(why), "{arguments:?}: {}", process.output());
            println!("{arguments:?}: {}", process.output().lines().last().unwrap_or_default());
        }
    });
    assert_eq!((loss.unexplained(running.starved("r0")), loss.twice), (0, 0), "{loss:?}: {}", running.log());
    assert!(before.differences(&Snapshot::of(lab.r()).unwrap()).is_empty());
    let left: Vec<_> =
        std::fs::read_dir(running.socket().parent().unwrap()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left, [running.socket()]);
    running.stop();
}

/// Until the running process has let go, a signal to the new one ends only that.
#[test]
fn a_new_process_that_is_stopped_early_leaves_the_running_one() {
    require!(require_lab());
    let _alone = alone();
    let lab = lab();
    let in_time = || {
        let running = Bywash::run(lab.r(), &["r0", "r1"]);
        let mut process = next(&lab, &running.socket(), &["r0", "r1"]);
        process.wait_for_output("taking over from pid ", PATIENCE).unwrap();
        process.signal(Signal::TERM).unwrap();
        let status = process.wait(PATIENCE).unwrap();
        assert!(status.success(), "{}", process.output());
        // On a busy machine the signal may come late.
        if process.output().contains("taken over from pid ") {
            return false;
        }
        running.wait("the end of the takeover", |running| running.log().contains("does not take over"));
        forwards(&lab, "a stop");
        assert!(bywash(lab.r(), &["show", "ports", "--socket", running.socket().to_str().unwrap()]).status.success());
        running.stop();
        true
    };
    assert!((0..5).any(|_| in_time()), "the new process takes over although it is to stop");
}

#[test]
fn killed_under_load_and_started_again() {
    require!(require_lab());
    let _alone = alone();
    let lost = |level: &str| {
        let lab = lab();
        let mut running = Bywash::run_as_is(lab.r(), &["--level", level, "r0", "r1"]);
        let socket = running.socket();
        let (_second, loss) = load::during(&lab, load::rate(), || {
            std::thread::sleep(Duration::from_millis(200));
            running.signalled(Signal::KILL);
            let started = Instant::now();
            // A service manager would start it again, with the same command line.
            let mut second = next(&lab, &socket, &["--level", level, "r0", "r1"]);
            second.wait_for_output("forwarding;", PATIENCE).unwrap_or_else(|e| panic!("{e}: {}", second.output()));
            println!("{level}: forwarding again after {:?}", started.elapsed());
            second
        });
        println!("{level}, killed: {} sent, {} lost, none for {:?}", loss.sent, loss.lost, loss.gap);
        loss.lost
    };
    for level in ["user", "driver"] {
        // Packets in the rings of the killed process are lost. A busy machine may take its time to end it, but hardly
        // each time.
        let few = |lost: u64| lost < u64::from(load::rate()) / 2;
        assert!((0..5).any(|_| few(lost(level))), "{level}: half a second's packets are lost each time");
    }
}
