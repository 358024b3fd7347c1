//! Runs programs to completion, capturing their output, with a time limit.

use crate::error::{Error, Result};
use crate::patience;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit far above any set-up command's duration; it turns a hang into an error.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Result of a finished program.
#[derive(Debug, Clone)]
pub struct Output {
    /// Command line, for messages.
    pub command: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output, invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, invalid UTF-8 replaced.
    pub stderr: String,
}

impl Output {
    /// Turns a failure status into [`Error::Failed`].
    pub fn ok(self) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        Err(Error::Failed { command: self.command, status: self.status.to_string(), stderr: said.trim().to_owned() })
    }
}

/// Runs a program in the caller's own namespace; a failure status is an error.
pub fn run_host<S: AsRef<OsStr>>(argv: &[S]) -> Result<Output> {
    run_host_with_timeout(argv, DEFAULT_TIMEOUT)
}

/// Runs a program like [`run_host`]. After `timeout` it is killed (SIGKILL), and [`Error::Timeout`] returned.
pub fn run_host_with_timeout<S: AsRef<OsStr>>(argv: &[S], timeout: Duration) -> Result<Output> {
    run(argv, None, timeout)?.ok()
}

pub(crate) fn words<S: AsRef<OsStr>>(argv: &[S]) -> String {
    argv.iter().map(|word| word.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Builds the [`Command`] of a non-empty argument list, with all three streams piped or closed.
pub(crate) fn command<S: AsRef<OsStr>>(argv: &[S]) -> Result<Command> {
    let (program, arguments) = argv.split_first().ok_or_else(|| {
        Error::io("running a command", std::io::Error::new(std::io::ErrorKind::InvalidInput, "empty command"))
    })?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The tools' messages are parsed (ping) or matched in tests.
    command.env("LC_ALL", "C");
    Ok(command)
}

/// Runs a program to its end and returns its output whatever its status. `input` is passed on standard input.
pub(crate) fn run<S: AsRef<OsStr>>(argv: &[S], input: Option<&str>, timeout: Duration) -> Result<Output> {
    let (text, timeout) = (words(argv), patience(timeout));
    let mut command = command(argv)?;
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().map_err(|source| Error::Start { command: text.clone(), source })?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();

    // One thread per stream: a child blocked on a full pipe never ends.
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            if let (Some(mut pipe), Some(input)) = (stdin, input) {
                // If a program ends without reading its input, only its status matters.
                let _ = pipe.write_all(input.as_bytes());
            }
        });
        let out = scope.spawn(move || drain(stdout));
        let err = scope.spawn(move || drain(stderr));
        let waited = wait(&mut child, timeout);
        if !matches!(waited, Ok(Some(_))) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let status = waited.map_err(|source| Error::io(format!("waiting for `{text}`"), source))?;
        let status = status.ok_or_else(|| Error::Timeout { what: format!("`{text}`"), after: timeout })?;
        let _ = writer.join();
        let (stdout, stderr) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        Ok(Output { command: text.clone(), status, stdout, stderr })
    })
}

fn drain(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits at most `timeout` for the child to end; returns `None` if it is still running then.
pub(crate) fn wait(child: &mut std::process::Child, timeout: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + timeout;
    let mut step = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(step);
        step = (step * 2).min(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_streams_are_kept() {
        let output = run(&["sh", "-c", "cat; echo bad >&2; exit 3"], Some("in"), DEFAULT_TIMEOUT).unwrap();
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("in", "bad\n"));
        assert_eq!(output.status.code(), Some(3));
        let message = output.ok().unwrap_err().to_string();
        assert!(message.contains("exit status: 3") && message.contains("bad"), "{message}");
    }

    #[test]
    fn a_hang_becomes_a_timeout() {
        let started = Instant::now();
        let error = run_host_with_timeout(&["sleep", "300"], Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(started.elapsed() < Duration::from_secs(150));
    }

    #[test]
    fn a_missing_program_is_named() {
        let message = run_host(&["bywash-no-such-program"]).unwrap_err().to_string();
        assert!(message.contains("bywash-no-such-program"), "{message}");
        assert!(run_host::<&str>(&[]).is_err());
    }
}
