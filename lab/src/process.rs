//! Background programs of a test: output is readable while they run, and dropping the guard ends them.

use crate::command::{command, wait, words};
use crate::error::{Error, Result};
use crate::patience;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread, read};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time for a dropped process to clean up before it is killed.
const GRACE: Duration = Duration::from_secs(3);

/// A running program. Dropping it sends SIGTERM, and SIGKILL after 3 s, to this process only.
#[derive(Debug)]
pub struct Process {
    command: String,
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
    readers: Vec<(Arc<OwnedFd>, JoinHandle<()>)>,
}

impl Process {
    /// Starts a program in the caller's own namespace. See [`crate::Namespace::spawn`] for other namespaces.
    pub fn start<S: AsRef<OsStr>>(argv: &[S]) -> Result<Self> {
        let text = words(argv);
        let mut child = command(argv)?.spawn().map_err(|source| Error::Start { command: text.clone(), source })?;
        let output = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            readers.push(collect(pipe.into(), Arc::clone(&output)));
        }
        if let Some(pipe) = child.stderr.take() {
            readers.push(collect(pipe.into(), Arc::clone(&output)));
        }
        Ok(Self { command: text, child, output, readers })
    }

    /// Returns the process ID. `ip netns exec` replaces itself, so this is the ID of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output so far, both streams in order of arrival.
    pub fn output(&self) -> String {
        let bytes = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the output contains `text`. On timeout, or if the program ends first, the error carries the output.
    pub fn wait_for_output(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let timeout = patience(timeout);
        let deadline = Instant::now() + timeout;
        loop {
            let ended = self.try_status()?;
            let output = self.output();
            if output.contains(text) {
                return Ok(());
            }
            if let Some(status) = ended {
                self.join_readers();
                let output = self.output();
                if output.contains(text) {
                    return Ok(());
                }
                return Err(Error::Failed {
                    command: self.command.clone(),
                    status: format!("{status} before it printed {text:?}"),
                    stderr: output,
                });
            }
            if Instant::now() >= deadline {
                let what = format!("`{}` to print {text:?}; it printed: {output}", self.command);
                return Err(Error::Timeout { what, after: timeout });
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends a signal to the process. Returns an error if it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.try_status()? {
            return Err(Error::Failed {
                command: self.command.clone(),
                status: format!("{status} before the signal"),
                stderr: self.output(),
            });
        }
        // The process has not been reaped (checked above, and only this guard reaps), so its ID is still valid.
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).map_err(|source| Error::io(format!("signalling `{}`", self.command), source))
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill().map_err(|source| Error::io(format!("killing `{}`", self.command), source))?;
        self.child.wait().map_err(|source| Error::io(format!("waiting for `{}`", self.command), source))
    }

    /// Sends SIGTERM and waits for the end, at most `timeout`.
    pub fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(timeout)
    }

    /// Waits for the end, at most `timeout`. After a timeout the process is still running.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let timeout = patience(timeout);
        let waited = wait(&mut self.child, timeout);
        let status = waited.map_err(|source| Error::io(format!("waiting for `{}`", self.command), source))?;
        let status = status.ok_or_else(|| Error::Timeout {
            what: format!("`{}` to end; it printed: {}", self.command, self.output()),
            after: timeout,
        })?;
        self.join_readers();
        Ok(status)
    }

    /// Returns the exit status, or `None` while the process runs.
    pub fn try_status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|source| Error::io(format!("waiting for `{}`", self.command), source))
    }

    /// Waits until the readers have taken everything from the pipes; call only after the process has ended. They may go
    /// on after that, because a grandchild may keep the pipes open.
    fn join_readers(&mut self) {
        let is_behind = |pipe: &OwnedFd| {
            // A reader keeps the lock from before it takes bytes from a pipe until they are in the output.
            let _taken = self.output.lock().unwrap_or_else(PoisonError::into_inner);
            ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 0)
        };
        while self.readers.iter().any(|(pipe, reader)| !reader.is_finished() && is_behind(pipe)) {
            thread::sleep(Duration::from_millis(1));
        }
        self.readers.retain(|(_, reader)| !reader.is_finished());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if !matches!(wait(&mut self.child, patience(GRACE)), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Starts a thread that appends what comes from a pipe.
fn collect(pipe: OwnedFd, into: Arc<Mutex<Vec<u8>>>) -> (Arc<OwnedFd>, JoinHandle<()>) {
    let pipe = Arc::new(pipe);
    let from = Arc::clone(&pipe);
    let reader = thread::spawn(move || {
        let mut chunk = [0; 4096];
        loop {
            // Errors are those of interrupted calls.
            if poll(&mut [PollFd::new(&from, PollFlags::IN)], None).is_err() {
                continue;
            }
            let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
            match read(&from, &mut chunk) {
                Ok(0) => return,
                Ok(count) => into.extend_from_slice(&chunk[..count]),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    });
    (pipe, reader)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_seen_while_it_runs_and_drop_ends_it() {
        let mut process = Process::start(&["sh", "-c", "echo ready; exec sleep 60"]).unwrap();
        process.wait_for_output("ready", Duration::from_secs(60)).unwrap();
        let proc_entry = format!("/proc/{}", process.pid());
        assert!(std::fs::exists(&proc_entry).unwrap());
        drop(process);
        assert!(!std::fs::exists(&proc_entry).unwrap());
    }

    #[test]
    fn an_early_end_is_reported_with_its_output() {
        let mut process = Process::start(&["sh", "-c", "echo no; exit 4"]).unwrap();
        let message = process.wait_for_output("ready", Duration::from_secs(60)).unwrap_err().to_string();
        assert!(message.contains("exit status: 4") && message.contains("no"), "{message}");
        assert!(process.signal(Signal::TERM).is_err());
    }

    /// However late its readers run, and though a grandchild keeps its pipes open.
    #[test]
    fn all_that_it_printed_is_there_when_it_has_ended() {
        let script = "sleep 5 & i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i + 1)); done; echo last >&2";
        for _ in 0..5 {
            let mut process = Process::start(&["sh", "-c", script]).unwrap();
            process.wait(Duration::from_secs(60)).unwrap();
            let output = process.output();
            assert!(output.contains("\nline 2999\n") && output.contains("last\n"), "{} bytes", output.len());
        }
    }

    #[test]
    fn one_that_ignores_sigterm_is_killed() {
        let mut process =
            Process::start(&["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]).unwrap();
        process.wait_for_output("ready", Duration::from_secs(60)).unwrap();
        assert!(process.terminate(Duration::from_millis(50)).is_err());
        let status = process.kill().unwrap();
        assert!(!status.success());
    }
}
