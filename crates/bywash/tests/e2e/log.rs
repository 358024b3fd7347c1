//! The log: a reader that stalls, as a terminal does after Ctrl-S, holds nothing up.

use crate::harness::{Bywash, PATIENCE, bywash};
use bywash_lab::{Ping, Topology, require, require_lab, wait_until};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

/// Size of the pipe that carries the log, in octets: the smallest.
const PIPE: usize = 4096;
/// Free octets of a full pipe, at most: those of two lines do not fit.
const REST: u64 = 80;

/// The reader of a log.
struct Reader {
    pipe: File,
    text: String,
}

impl Reader {
    /// Creates a named pipe.
    fn new(path: &Path) -> Self {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // With the side that writes open here, too, the program need not wait for a reader.
        let pipe = rustix::fs::open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(rustix::pipe::fcntl_setpipe_size(&pipe, PIPE).unwrap(), PIPE);
        Self { pipe: pipe.into(), text: String::new() }
    }

    /// Reads what there is, and returns everything read so far.
    fn read(&mut self) -> &str {
        let mut some = [0; PIPE];
        loop {
            match self.pipe.read(&mut some) {
                Ok(n) => self.text.push_str(&String::from_utf8_lossy(&some[..n])),
                Err(why) => {
                    assert_eq!(why.kind(), ErrorKind::WouldBlock);
                    return &self.text;
                }
            }
        }
    }

    /// Returns whether a writer would have to wait.
    fn is_full(&self) -> bool {
        rustix::io::ioctl_fionread(&self.pipe).unwrap() + REST > PIPE as u64
    }
}

/// Changes the level of both ports until nothing more of the log fits its pipe, and once more. Returns the number of
/// changes.
fn fill(running: &Bywash, log: &Reader) -> usize {
    let socket = running.socket();
    let (mut changes, mut full) = (0, false);
    loop {
        let level = ["auto", "user"][changes % 2];
        let done = bywash(running.namespace(), &["level", level, "--socket", socket.to_str().unwrap()]);
        changes += 1;
        if full || !done.status.success() {
            return changes;
        }
        full = log.is_full();
        assert!(full || changes < PIPE, "no lines for changes");
    }
}

/// Routes and signals take effect, and requests are answered, while nobody reads the log. It is whole afterwards.
#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let b = lab.b().v4;
    let answered = || {
        let ping = Ping::to(b).count(2).interval(Duration::from_millis(20)).wait(Duration::from_millis(300));
        ping.run(&lab.a().ns).unwrap().received
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut log = Reader::new(&path);
    let redirected = format!("exec \"$@\" 2>{}", path.display());
    let arguments = ["--level", "user", "r0", "r1"];
    let mut running = Bywash::spawn_by(&["sh", "-c", &redirected, "sh"], lab.r(), &arguments);
    wait_until("the start", PATIENCE, || log.read().contains("forwarding;")).unwrap();
    wait_until("an answer", PATIENCE, || answered() == 2).unwrap();

    let changes = fill(&running, &log);
    lab.r().ip(&["route", "add", "blackhole", &b.to_string()]).unwrap();
    wait_until("the blackhole to hold", PATIENCE, || answered() == 0).unwrap();
    lab.r().ip(&["route", "del", "blackhole", &b.to_string()]).unwrap();
    running.wait("the route", |_| answered() == 2);

    let lines = |log: &str| log.lines().filter(|line| line.contains(" requested, ")).count();
    wait_until("the rest of the log", PATIENCE, || lines(log.read()) == 2 * changes).unwrap();
    assert!(!log.text.contains("ERROR"), "{}", log.text);

    fill(&running, &log);
    assert!(running.signalled(Signal::TERM).success());
    assert!(log.is_full());
}
