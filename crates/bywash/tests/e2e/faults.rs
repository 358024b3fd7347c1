//! The program is killed at every step of start, reload, takeover and stop: the kernel, or the other process, forwards,
//! and after the next start nothing has changed. `BYWASH_FAULT_STEP` makes the program wait at a step.

use crate::harness::{Bywash, PATIENCE, assert_detached, bywash, program, wait_until_detached};
use crate::panics::of_this_build;
use crate::takeover::next;
use bywash_lab::{Ping, Process, Snapshot, Topology, require, require_lab, wait_until};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const START: [&str; 8] = [
    "start-alone",
    "start-sockets",
    "start-sandbox",
    "start-memory",
    "start-port",
    "start-ports",
    "start-workers",
    "start-programs",
];
/// Reached by a start as well, but only a process that waits there serves the API.
const SERVED: [&str; 1] = ["start-served"];
const RELOAD: [&str; 6] =
    ["reload-opened", "reload-added", "reload-removed", "reload-closed", "reload-sure", "reload-done"];
/// Reached by the new process.
const TAKEOVER: [&str; 5] = ["takeover-met", "takeover-ready", "takeover-asked", "takeover-gone", "takeover-end"];
/// Reached by the running process.
const HANDOVER: [&str; 3] = ["handover-asked", "handover-closed", "handover-gone"];
const STOP: [&str; 5] = ["stop-asked", "stop-disabled", "stop-workers", "stop-apart", "stop-put-back"];

#[test]
fn every_step_is_tried() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon/src");
    let mut found = BTreeSet::new();
    for file in ["lib.rs", "start.rs", "control.rs", "reload.rs", "takeover.rs"] {
        let text = fs::read_to_string(source.join(file)).unwrap();
        for line in text.lines().filter(|line| line.contains("step::reached(")) {
            found.extend(line.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
    let tried = START.iter().chain(&SERVED).chain(&RELOAD).chain(&TAKEOVER).chain(&HANDOVER).chain(&STOP);
    assert_eq!(found, tried.map(|step| (*step).to_owned()).collect());
}

fn waiting_at<'a>(step: &str, lab: &'a Topology, arguments: &[&str]) -> Bywash<'a> {
    Bywash::spawn_by(&["env", &format!("BYWASH_FAULT_STEP={step}")], lab.r(), arguments)
}

fn wait_for(process: &mut Process, step: &str) {
    let told = format!("waiting at step {step},");
    process.wait_for_output(&told, PATIENCE).unwrap_or_else(|why| panic!("{why}: {}", process.output()));
}

/// Fails unless pings are answered. Those on their way at the moment of a fault may be lost, later ones may not.
pub fn forwards(lab: &Topology, step: &str) {
    let answered = || Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received == 3;
    wait_until(&format!("three pings in a row to be answered after {step}"), PATIENCE, answered).unwrap();
}

/// Kills the program; checks that the kernel forwards, and that everything is as before once another one has run.
fn kill(mut running: Bywash<'_>, step: &str, lab: &Topology, before: &Snapshot) {
    let place = running.socket();
    running.process.kill().unwrap();
    forwards(lab, step);
    wait_until_detached(lab.r());
    starts_again(step, lab, before, &place);
}

pub fn starts_again(step: &str, lab: &Topology, before: &Snapshot, socket: &Path) {
    // Gone with an instance that has been stopped.
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let argv = [program(), "run".into(), "--socket".into(), socket.display().to_string(), "r0".into(), "r1".into()];
    let mut again = lab.r().spawn(&argv.each_ref().map(String::as_str)).unwrap();
    let started = again.wait_for_output("forwarding;", PATIENCE);
    started.unwrap_or_else(|why| panic!("after {step}: {why}: {}", again.output()));
    forwards(lab, step);
    assert!(again.terminate(PATIENCE).unwrap().success(), "{}", again.output());
    assert_detached(lab.r());
    let differences = before.differences(&Snapshot::of(lab.r()).unwrap());
    assert!(differences.is_empty(), "after {step}: {differences:#?}");
    let _ = std::fs::remove_dir(socket.parent().unwrap());
}

#[test]
fn a_start() {
    require!(require_lab(), of_this_build());
    let lab = Topology::router().unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    for step in START.iter().chain(&SERVED) {
        let mut running = waiting_at(step, &lab, &["r0", "r1"]);
        wait_for(&mut running.process, step);
        kill(running, step, &lab, &before);
    }
}

#[test]
fn a_stop() {
    require!(require_lab(), of_this_build());
    let lab = Topology::router().unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    for step in STOP {
        let mut running = waiting_at(step, &lab, &["--level", "user", "r0", "r1"]);
        running.process.wait_for_output("forwarding;", PATIENCE).unwrap();
        running.process.signal(Signal::TERM).unwrap();
        wait_for(&mut running.process, step);
        kill(running, step, &lab, &before);
    }
}

#[test]
fn a_reload() {
    require!(require_lab(), of_this_build());
    let lab = Topology::router().unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("bywash.toml");
    let port = |interface: &str, more: &str| format!("[[port]]\ninterface = \"{interface}\"\nlevel = \"user\"\n{more}");
    // Buffers for a second port.
    let pool = "[pool]\nreserve = 40000\n";
    for step in RELOAD {
        fs::write(&file, pool.to_owned() + &port("r0", "")).unwrap();
        let mut running = waiting_at(step, &lab, &["--config", file.to_str().unwrap()]);
        running.process.wait_for_output("forwarding;", PATIENCE).unwrap();
        // A port comes, its name goes to another port, or it is opened anew.
        let text = match step {
            "reload-removed" => port("r0", "name = \"other\"\n"),
            "reload-closed" => port("r0", "ring = { rx = 512 }\n"),
            _ => port("r0", "") + &port("r1", ""),
        };
        fs::write(&file, pool.to_owned() + &text).unwrap();
        running.process.signal(Signal::HUP).unwrap();
        wait_for(&mut running.process, step);
        kill(running, step, &lab, &before);
    }
}

/// The new process is killed: until the running one has let go, that one goes on.
#[test]
fn a_takeover() {
    require!(require_lab(), of_this_build());
    let lab = Topology::router().unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    for step in TAKEOVER {
        let mut running = Bywash::run(lab.r(), &["r0", "r1"]);
        let socket = running.socket();
        let mut new = waiting_at_takeover(step, &lab, &socket);
        wait_for(&mut new, step);
        new.kill().unwrap();
        forwards(&lab, step);
        let continues = |running: &Bywash<'_>| running.log().contains("does not take over");
        let mut ended = None;
        wait_until("the end of the takeover", PATIENCE, || {
            ended = running.process.try_status().unwrap();
            ended.is_some() || continues(&running)
        })
        .unwrap();
        match ended {
            // It let go before the new process was killed, or noticed too late that this has ended.
            Some(_) if step == "takeover-asked" => {}
            Some(status) => assert!(status.success() && TAKEOVER[3..].contains(&step), "{step}: {}", running.log()),
            None => {
                assert!(continues(&running) && !TAKEOVER[3..].contains(&step), "{step}: {}", running.log());
                assert!(bywash(lab.r(), &["show", "ports", "--socket", socket.to_str().unwrap()]).status.success());
                running.stop();
            }
        }
        wait_until("the kernel to detach", PATIENCE, || !attached(&lab)).unwrap();
        starts_again(step, &lab, &before, &socket);
    }
}

fn attached(lab: &Topology) -> bool {
    lab.r().ip(&["-d", "link", "show"]).unwrap().stdout.contains("xdp")
}

fn waiting_at_takeover(step: &str, lab: &Topology, socket: &Path) -> Process {
    let (program, fault) = (program(), format!("BYWASH_FAULT_STEP={step}"));
    let run = ["env", &fault, &program, "run", "--takeover", "--socket", socket.to_str().unwrap()];
    lab.r().spawn(&[&run[..], &["--level", "user", "r0", "r1"]].concat()).unwrap()
}

/// The running process is killed: the new one goes on if it has all that it needs, or leaves everything to the kernel.
#[test]
fn a_handover() {
    require!(require_lab(), of_this_build());
    let lab = Topology::router().unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    for step in HANDOVER {
        let mut running = waiting_at(step, &lab, &["--level", "user", "r0", "r1"]);
        running.process.wait_for_output("forwarding;", PATIENCE).unwrap();
        let socket = running.socket();
        let mut new = next(&lab, &socket, &["--level", "user", "r0", "r1"]);
        wait_for(&mut running.process, step);
        running.process.kill().unwrap();
        forwards(&lab, step);
        let settled = || new.output().contains("forwarding;") || new.output().contains("\nbywash: ");
        wait_until("the new process to go on or end", PATIENCE, settled)
            .unwrap_or_else(|why| panic!("{why}: {}", new.output()));
        forwards(&lab, step);
        if new.output().contains("forwarding;") {
            assert!(new.terminate(PATIENCE).unwrap().success(), "{step}: {}", new.output());
        } else {
            assert!(!new.wait(PATIENCE).unwrap().success(), "{step}: {}", new.output());
        }
        wait_until("the kernel to detach", PATIENCE, || !attached(&lab)).unwrap();
        starts_again(step, &lab, &before, &socket);
    }
}
