//! The broker: a second process, which keeps privileges that the instance gives up, and serves few requests.
//!
//! A process that may load any program reads the memory of the kernel and of all others. The broker loads only the
//! programs of this build and those in the directories of the configuration's files, with the maps that they name. A
//! process that may connect to any socket as root can have D-Bus or systemd do whatever they do for root; the broker
//! connects only to sockets in the directories that the configuration names, and follows no links there. A process that
//! writes a journal decides what the next start changes; the broker changes the settings that Bywash needs, and writes
//! their journal itself. It also opens the configuration's files and recordings, which may be root's. It is another
//! process, started anew, and has no other task. It ends with the instance.

use super::files::{Paths, Rules};
use super::{calls, drop_capabilities};
use crate::journal;
use anyhow::{Context as _, bail};
use bywash_config::{Config, Files};
use bywash_port::broker::{self, Policy};
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
/// Paths that the broker reads besides the configuration's files: the kernel's list of CPUs, and interfaces' settings.
/// The loader would also read the kernel's types, for some 50 ms, although no object refers to them.
const SHOWN: [&str; 3] = ["/proc", "/sys/devices/system/cpu", "/sys/class/net"];
/// Longest time until the broker has begun.
const BEGINS: Duration = Duration::from_secs(30);

/// Places of files and sockets.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Limits {
    /// The configuration's files, and directories of such files.
    read: BTreeSet<PathBuf>,
    /// Paths at which files are made: no programs are read there.
    written: BTreeSet<PathBuf>,
    /// Directories of recordings.
    recordings: BTreeSet<PathBuf>,
    /// Directories of sockets.
    sockets: BTreeSet<PathBuf>,
    /// Abstract names of sockets.
    names: BTreeSet<PathBuf>,
    /// The journal.
    journal: PathBuf,
}

/// Starts the broker of an instance with these files and this journal, which serves this process from now on. Returns
/// its pid.
pub fn start(config: &Config, files: &Files, paths: &Paths, journal: &Path) -> anyhow::Result<u32> {
    let directory = |file: &PathBuf| std::path::absolute(file).ok()?.parent()?.canonicalize().ok();
    let sockets = files.sockets.iter().filter_map(directory).collect();
    let recordings = files.written.iter().filter_map(directory).collect();
    let memifs = config.ports.iter().filter_map(|port| Some(port.memif.as_ref()?.socket.clone()));
    let names = memifs.filter(|name| is_abstract(name)).collect();
    // Credentials of systemd are among the files of a configuration that uses them.
    let read = Paths::of_files(&files.read);
    let journal = journal.to_owned();
    let written = paths.written.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    let (ours, theirs) = broker::pair()?;
    let mut command = Command::new("/proc/self/exe");
    // A group of its own: Ctrl-C is for the instance alone.
    command.arg0("bywash").arg("broker").stdin(theirs).stdout(Stdio::null()).process_group(0);
    let child = command.spawn().context("cannot start a second process")?;
    drop(command);
    set_socket_timeout(&ours, Timeout::Recv, Some(BEGINS))?;
    broker::send(&ours, &Limits { read, written, recordings, sockets, names, journal }, &[])?;
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
    let Some((mut limits, _)) = asked else { return Ok(()) };
    let confined = confine(&mut limits);
    broker::send(&socket, &confined.as_ref().map(drop).map_err(|why| format!("{why:#}")), &[])?;
    confined?;
    broker::serve(&socket, &limits)?;
    Ok(())
}

/// Gives up everything that the broker does not need. On a kernel without Landlock it can still open all files of root.
fn confine(limits: &mut Limits) -> anyhow::Result<()> {
    // Only root may read the names of legacy iptables' tables. They are those of the thread's network namespace.
    if let Ok(own) = Path::new("/proc/thread-self/net").canonicalize() {
        limits.read.extend(["ip_tables_names", "ip6_tables_names"].map(|name| own.join(name)));
    }
    let paths = Paths {
        read: limits.read.iter().cloned().chain(SHOWN.map(PathBuf::from)).collect(),
        written: limits.written.clone(),
    };
    let rules = Rules::prepare(&paths);
    drop_capabilities(KEPT, None)?;
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

fn is_abstract(socket: &Path) -> bool {
    socket.as_os_str().as_encoded_bytes().starts_with(b"@")
}

/// Reason for the refusal of other places than those of the configuration.
fn refused(what: &str) -> String {
    format!(
        "in its sandbox bywash uses {what} only in the directories of those that the configuration named at the start: \
         Permission denied; others need a restart, or --no-sandbox"
    )
}

/// Returns a path with the canonical path of its directory, if that is one of `directories`.
fn within(path: &Path, directories: &BTreeSet<PathBuf>) -> Result<Option<PathBuf>, String> {
    let absolute = std::path::absolute(path).map_err(|why| why.to_string())?;
    let (Some(directory), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(None) };
    let directory = directory.canonicalize().map_err(|why| why.to_string())?;
    Ok(directories.contains(&directory).then(|| directory.join(name)))
}

impl Limits {
    /// Returns why no program is read from a file, if files are made there.
    fn made(&self, file: &Path) -> Option<String> {
        let made = self.written.iter().find(|made| file.starts_with(made))?.display();
        Some(format!("in its sandbox bywash reads no program from {made}, where it makes files itself: move it"))
    }
}

impl Policy for Limits {
    fn socket(&self, name: &Path) -> Result<PathBuf, String> {
        if is_abstract(name) {
            let known = self.names.contains(name);
            return known.then(|| name.to_owned()).ok_or_else(|| refused("abstract sockets"));
        }
        within(name, &self.sockets)?.ok_or_else(|| refused("sockets"))
    }

    fn program(&self, file: &Path) -> Result<PathBuf, String> {
        let found = self.readable(file)?;
        match self.made(&found) {
            Some(why) => Err(why),
            None => Ok(found),
        }
    }

    fn readable(&self, file: &Path) -> Result<PathBuf, String> {
        let found = file.canonicalize().map_err(|why| why.to_string())?;
        match self.read.iter().any(|read| found.starts_with(read)) {
            true => Ok(found),
            false => Err(self.made(&found).unwrap_or_else(|| refused("files"))),
        }
    }

    fn recording(&self, file: &Path) -> Result<PathBuf, String> {
        within(file, &self.recordings)?.ok_or_else(|| refused("recordings"))
    }

    fn journal(&self) -> &Path {
        &self.journal
    }

    fn unlock(&self) -> std::io::Result<()> {
        std::fs::remove_file(journal::lock_of(&self.journal))
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
        let (read, written) = ([at("programs")].into(), [at("made"), at("programs/made")].into());
        let limits = Limits { read, written, ..Limits::default() };
        assert_eq!(limits.program(&at("programs/a.o")), Ok(at("programs/a.o")));
        assert_eq!(limits.program(&at("made/link.o")), Ok(at("programs/a.o")));
        for refused in ["made/a.o", "programs/made/a.o", "programs/link.o", "else/a.o", "programs/../else/a.o", "none"]
        {
            assert!(limits.program(&at(refused)).is_err(), "{refused}");
        }
    }

    #[test]
    fn sockets_are_used_where_the_configuration_has_them() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().canonicalize().unwrap().join(name);
        for directory in ["sockets", "sockets/below", "else"] {
            std::fs::create_dir(at(directory)).unwrap();
        }
        let limits = Limits { sockets: [at("sockets")].into(), names: ["@memif".into()].into(), ..Limits::default() };
        for name in [at("sockets/one"), at("else/../sockets/one"), at("sockets/below/../one")] {
            assert_eq!(limits.socket(&name), Ok(at("sockets/one")), "{}", name.display());
        }
        assert_eq!(limits.socket(Path::new("@memif")), Ok("@memif".into()));
        for name in [at("sockets/below/one"), at("else/one"), at("none/one"), "@other".into(), "/".into(), "".into()] {
            assert!(limits.socket(&name).is_err(), "{}", name.display());
        }
    }
}
