//! The broker: a second process, which loads BPF programs and connects sockets for the instance in its sandbox.
//!
//! A process that may load any program reads the memory of the kernel and of all others. The instance gives that up;
//! the broker keeps it, and loads only the programs of this build and those in the directories of the configuration's
//! files, with the maps that they name. A process that may connect to any socket as root can have D-Bus or systemd do
//! whatever they do for root; the broker connects only to sockets in the directories that the configuration names, and
//! follows no links there. It is another process, started anew, and has no other task: it reads nothing but requests,
//! these files, and the kernel's list of CPUs. It ends with the instance.

use super::files::{Paths, Rules};
use super::{calls, drop_capabilities};
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
/// Paths that the broker reads besides the user's programs: the kernel's list of CPUs. The loader would also read the
/// kernel's types, for some 50 ms, although no object refers to them.
const SHOWN: [&str; 2] = ["/proc", "/sys/devices/system/cpu"];
/// Longest time until the broker has begun.
const BEGINS: Duration = Duration::from_secs(30);

/// Places of the user's programs, and of sockets.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Limits {
    /// Files, and directories of files.
    read: BTreeSet<PathBuf>,
    /// Directories in which the instance makes files: nothing is read there.
    written: BTreeSet<PathBuf>,
    /// Directories of sockets.
    sockets: BTreeSet<PathBuf>,
    /// Abstract names of sockets.
    names: BTreeSet<PathBuf>,
}

/// Starts the broker of an instance with these files, which makes all BPF objects from now on. Returns its pid.
pub fn start(config: &Config, files: &Files, paths: &Paths) -> anyhow::Result<u32> {
    let directory = |socket: &PathBuf| std::path::absolute(socket).ok()?.parent()?.canonicalize().ok();
    let sockets = files.sockets.iter().filter_map(directory).collect();
    let memifs = config.ports.iter().filter_map(|port| Some(port.memif.as_ref()?.socket.clone()));
    let names = memifs.filter(|name| is_abstract(name)).collect();
    let read = Paths::of_files(&files.read);
    let written = paths.written.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    let (ours, theirs) = broker::pair()?;
    let mut command = Command::new("/proc/self/exe");
    // A group of its own: Ctrl-C is for the instance alone.
    command.arg0("bywash").arg("broker").stdin(theirs).stdout(Stdio::null()).process_group(0);
    let child = command.spawn().context("cannot start a second process")?;
    drop(command);
    set_socket_timeout(&ours, Timeout::Recv, Some(BEGINS))?;
    broker::send(&ours, &Limits { read, written, sockets, names }, &[])?;
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
    broker::serve(&socket, &limits)?;
    Ok(())
}

/// Gives up everything that the broker does not need. On a kernel without Landlock it can still open all files.
fn confine(limits: &Limits) -> anyhow::Result<()> {
    let paths = Paths {
        read: limits.read.iter().cloned().chain(SHOWN.map(PathBuf::from)).collect(),
        written: limits.sockets.clone(),
    };
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

fn is_abstract(socket: &Path) -> bool {
    socket.as_os_str().as_encoded_bytes().starts_with(b"@")
}

impl Policy for Limits {
    fn socket(&self, name: &Path) -> Result<PathBuf, String> {
        let refused = || {
            "in its sandbox bywash may use only sockets in the directories of those that the configuration named at the \
             start, and their abstract names: Permission denied; others need a restart, or --no-sandbox"
                .to_owned()
        };
        if is_abstract(name) {
            return if self.names.contains(name) { Ok(name.to_owned()) } else { Err(refused()) };
        }
        let absolute = std::path::absolute(name).map_err(|why| why.to_string())?;
        let (Some(directory), Some(socket)) = (absolute.parent(), absolute.file_name()) else { return Err(refused()) };
        let directory = directory.canonicalize().map_err(|why| why.to_string())?;
        if self.sockets.contains(&directory) { Ok(directory.join(socket)) } else { Err(refused()) }
    }

    fn program(&self, file: &Path) -> Result<PathBuf, String> {
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
