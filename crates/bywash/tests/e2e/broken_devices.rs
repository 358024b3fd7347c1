//! Devices whose zero-copy sockets receive or send nothing: `BYWASH_FAULT_DEVICE` makes an interface look like one.

use crate::harness::{Bywash, PATIENCE};
use crate::panics::of_this_build;
use bywash_lab::{Ping, Topology, require, require_lab};
use rustix::process::Signal;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs the program with r0 on such a device, sends what the device does not pass on, and waits for the remedies.
/// Checks that afterwards everything arrives.
fn mended(fault: &str, remedies: &[&str]) {
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let asked = format!("BYWASH_FAULT_DEVICE=r0 {fault}");
    let arguments = [&["--level", "user"], &lab.router_interfaces()[..]].concat();
    let mut running = Bywash::spawn_by(&["env", &asked], lab.r(), &arguments);
    running.process.wait_for_output("forwarding;", PATIENCE).unwrap();
    // Ends whose packets a deaf r0 does not receive, or a mute one does not send.
    let (from, to) = if fault.starts_with("deaf") { (lab.a(), lab.b()) } else { (lab.b(), lab.a()) };
    let mut seen = vec![];
    let began = Instant::now();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                Ping::to(to.v4).count(20).interval(Duration::from_millis(10)).run(&from.ns).unwrap();
            }
        });
        running.wait("the remedies", |running| {
            let log = running.log();
            let new = remedies[seen.len()..].iter().take_while(|remedy| log.contains(**remedy));
            seen.extend(new.map(|_| began.elapsed()));
            seen.len() == remedies.len()
        });
        done.store(true, Ordering::Relaxed);
    });
    println!("{fault}: {seen:?}");
    let reaches = || Ping::to(to.v4).count(3).run(&from.ns).unwrap().received == 3;
    running.wait("packets to arrive", |_| reaches());
    let levels: Vec<Value> = running.show(&["placement"]).as_array().unwrap().clone();
    assert!(levels.iter().all(|port| port["level"] == "user"), "{levels:?}\n{}", running.log());
    // Lost are only frames that the device had: no cell is.
    assert!(running.signalled(Signal::TERM).success(), "{}", running.log());
    let log = running.log();
    assert!(log.contains("cells are back in their pools") && !log.contains("are missing"), "{log}");
}

const AGAIN: &str = "; opened again";
const COPY: &str = "now opened in copy mode";

#[test]
fn a_deaf_device_is_opened_again() {
    require!(require_lab(), of_this_build());
    mended("deaf 1", &[AGAIN]);
}

#[test]
fn a_device_that_stays_deaf_is_opened_in_copy_mode() {
    require!(require_lab(), of_this_build());
    mended("deaf 9", &[AGAIN, COPY]);
}

#[test]
fn a_mute_device_is_opened_again() {
    require!(require_lab(), of_this_build());
    mended("mute 1", &[AGAIN]);
}

#[test]
fn a_device_that_stays_mute_is_opened_in_copy_mode() {
    require!(require_lab(), of_this_build());
    mended("mute 9", &[AGAIN, COPY]);
}
