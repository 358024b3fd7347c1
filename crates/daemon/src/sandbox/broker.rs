//! The broker: a second process, which loads BPF programs for the instance in its sandbox.
//!
//! Who may load any program reads the memory of the kernel and of all processes. The instance gives that up; the broker
//! keeps it, and loads only the programs of this build and those in the directories of the configuration's files, with
//! the maps that they name. It is another process, started anew, and has no other task: it opens no socket, and reads
//! nothing but requests, these files, and what the kernel shows of CPUs. It ends with the instance.

use super::files::{Paths, Rules};
use super::{calls, drop_capabilities};
use anyhow::{Context as _, bail};
use bywash_config::Files;
use bywash_port::broker;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{self, CapabilitySet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Capabilities that the broker keeps.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::BPF).union(CapabilitySet::PERFMON);
/// What the broker reads besides the user's programs: CPUs, as the kernel shows them. The loader would read the kernel's
/// types as well, for some 50 ms, which no object refers to.
const SHOWN: [&str; 2] = ["/proc", "/sys/devices/system/cpu"];
/// Longest time until the broker has begun.
const BEGINS: Duration = Duration::from_secs(30);

/// Places of the user's programs.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Limits {
    /// Files, and directories of files.
    read: BTreeSet<PathBuf>,
    /// Directories in which the instance makes files: nothing is read there.
    written: BTreeSet<PathBuf>,
}

/// Starts the broker of an instance with these files, and has it make all BPF objects from now on. Returns its pid.
pub fn start(files: &Files, paths: &Paths) -> anyhow::Result<u32> {
    let read = Paths::of_files(&files.read);
    let written = paths.written.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    let (ours, theirs) = broker::pair()?;
    let mut command = Command::new("/proc/self/exe");
    // A group of its own: Ctrl-C is for the instance alone.
    command.arg0("bywash").arg("broker").stdin(theirs).stdout(Stdio::null()).process_group(0);
    let child = command.spawn().context("cannot start a second process")?;
    drop(command);
    set_socket_timeout(&ours, Timeout::Recv, Some(BEGINS))?;
    broker::send(&ours, &Limits { read, written }, &[])?;
    match broker::receive::<Result<(), String>>(&ours).context("the second process does not answer")? {
        Some((Ok(()), _)) => {}
        Some((Err(why), _)) => bail!(why),
        None => bail!("the second process has ended"),
    }
    broker::set(ours)?;
    Ok(child.id())
}

/// Runs the broker, whose socket is the standard input, until the instance has ended.
///
/// # Errors
/// If it was not started by an instance.
pub fn run() -> anyhow::Result<()> {
    // A service manager signals all processes of a service; the broker ends with the instance.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, ignored.clone())?;
    }
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let asked = broker::receive::<Limits>(&socket).context("`bywash run` starts this, and nobody else")?;
    let Some((limits, _)) = asked else { return Ok(()) };
    let confined = confine(&limits);
    broker::send(&socket, &confined.as_ref().map(drop).map_err(|why| format!("{why:#}")), &[])?;
    confined?;
    broker::serve(&socket, |file| limits.find(file))?;
    Ok(())
}

/// Gives up all but what the broker needs. A kernel without Landlock leaves it the files.
fn confine(limits: &Limits) -> anyhow::Result<()> {
    let paths =
        Paths { read: limits.read.iter().cloned().chain(SHOWN.map(PathBuf::from)).collect(), written: BTreeSet::new() };
    let rules = Rules::prepare(&paths);
    drop_capabilities(KEPT)?;
    let has = thread::capabilities(None)?.effective;
    if !has.contains(KEPT) {
        bail!("the second process would lack capabilities: {:?}", KEPT.difference(has));
    }
    if let Err(why) = rules.and_then(Rules::obey) {
        tracing::warn!("the broker's files are not restricted: {why:#}");
    }
    let program = calls::of_broker().context("cannot build the filter")?;
    seccompiler::apply_filter(&program).context("the kernel refuses the filter")
}

impl Limits {
    /// Returns the file that a path leads to, if a program may be read there.
    fn find(&self, file: &Path) -> Result<PathBuf, String> {
        let found = file.canonicalize().map_err(|why| why.to_string())?;
        if let Some(made) = self.written.iter().find(|made| found.starts_with(made)) {
            return Err(format!(
                "in its sandbox bywash loads no program from {}, where it makes files itself: move the program",
                made.display()
            ));
        }
        if !self.read.iter().any(|read| found.starts_with(read)) {
            return Err("in its sandbox bywash may load programs only from the directories of files that the \
                        configuration named at the start: Permission denied; others need a restart, or --no-sandbox"
                .into());
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_where_the_user_put_them() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().canonicalize().unwrap().join(name);
        for directory in ["programs", "made", "programs/made", "else"] {
            std::fs::create_dir(at(directory)).unwrap();
            std::fs::write(at(directory).join("a.o"), "").unwrap();
        }
        std::os::unix::fs::symlink(at("made/a.o"), at("programs/link.o")).unwrap();
        std::os::unix::fs::symlink(at("programs/a.o"), at("made/link.o")).unwrap();
        let limits = Limits { read: [at("programs")].into(), written: [at("made"), at("programs/made")].into() };
        assert_eq!(limits.find(&at("programs/a.o")), Ok(at("programs/a.o")));
        assert_eq!(limits.find(&at("made/link.o")), Ok(at("programs/a.o")));
        for refused in ["made/a.o", "programs/made/a.o", "programs/link.o", "else/a.o", "programs/../else/a.o", "none"]
        {
            assert!(limits.find(&at(refused)).is_err(), "{refused}");
        }
    }
}
