//! A worker that hangs: ptrace(2) stops its thread, which looks the same as an endless loop or system call.

use crate::harness::{Bywash, bywash};
use bywash_lab::{Ping, Topology, require, require_lab};
use rustix::process::Signal;
use std::io;

/// A stopped thread of another process. Dropping this resumes it, and must happen on the thread that stopped it.
pub struct Stopped(libc::pid_t);

impl Stopped {
    pub fn new(thread: libc::pid_t) -> io::Result<Self> {
        // SAFETY: neither request takes memory arguments.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) != 0
                || libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0) != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let who = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
        if who == thread { Ok(Self(thread)) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: the request takes no memory arguments.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

fn levels(running: &Bywash) -> Vec<String> {
    let placement = running.show(&["placement"]);
    placement.as_array().unwrap().iter().map(|row| row["level"].as_str().unwrap().to_owned()).collect()
}

fn health(running: &Bywash) -> (bool, String) {
    let shown = bywash(running.namespace(), &["show", "health", "--socket", running.socket().to_str().unwrap()]);
    (shown.status.success(), shown.stdout + &shown.stderr)
}

#[test]
fn the_kernel_takes_the_ports_of_a_worker_that_hangs() {
    require!(require_lab());
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let mut running = Bywash::run(lab.r(), &lab.router_interfaces());
    let reaches = || Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received == 3;
    assert!(reaches() && levels(&running) == ["user", "user"]);
    let (well, told) = health(&running);
    let pid = running.show(&["health"])["pid"].clone();
    let about = format!("ok\nbywash {}, mode router, pid {pid}, up ", env!("CARGO_PKG_VERSION"));
    assert!(well && told.starts_with(&about), "{told}");

    let thread = running.show(&["workers"])[0]["thread"].as_u64().unwrap();
    let stopped = Stopped::new(thread as libc::pid_t).unwrap();
    running.wait("the ports to go to the kernel", |running| levels(running) == ["kernel", "kernel"]);
    assert!(reaches(), "{}", running.log());
    let (well, why) = health(&running);
    let named = format!("worker 0 (thread {thread}, ports r0, r1) hangs");
    assert!(!well && why.contains(&named), "{why}");
    assert_eq!(running.log().matches(&named).count(), 1, "{}", running.log());
    // Only a change of routes waits for the worker.
    lab.r().ip(&["route", "add", "198.51.100.0/24", "via", &lab.b().v4.to_string()]).unwrap();
    assert!(reaches() && !health(&running).0);

    drop(stopped);
    running.wait("the ports to be taken over again", |running| levels(running) == ["user", "user"]);
    running.wait("good health", |running| health(running).0);
    running.wait_to_count("r1", "tx_packets", 3, || assert!(reaches(), "{}", running.log()));
    running.assert_conserved();
    assert!(running.signalled(Signal::TERM).success(), "{}", running.log());
    assert!(running.log().contains("cells are back in their pools"), "{}", running.log());
}
