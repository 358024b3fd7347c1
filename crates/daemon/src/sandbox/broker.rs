//! The broker: a second process, which keeps privileges that the instance gives up, and serves few requests.
//!
//! A process that may load any program can read the memory of the kernel and of all others. The broker loads only the
//! programs of this build and those in the directories of the configuration's files, with the maps that they name. A
//! process that may connect to any socket as root can have D-Bus or systemd do whatever they do for root; the broker
//! connects only to sockets in the directories that the configuration names, and follows no links there. A process that
//! writes a journal decides what the next start changes; the broker changes the settings that Bywash needs, and writes
//! their journal itself. It also opens the configuration's files and recordings, which may be root's. It is another
//! process, started anew, and has no other task. It ends with the instance.

use super::files::{Paths, Rules, place};
use super::{calls, drop_capabilities};
use crate::journal;
use anyhow::{Context as _, bail};
use bywash_config::{Config, Files};
use bywash_port::broker::{self, Policy};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{self, CapabilitySet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
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

/// Places of files and sockets: directories, or files themselves in directories of much else.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Limits {
    /// The configuration's files.
    read: BTreeSet<PathBuf>,
    /// Paths at which files are made: no programs are read there.
    written: BTreeSet<PathBuf>,
    recordings: BTreeSet<PathBuf>,
    /// Directories of sockets to connect to.
    sockets: BTreeSet<PathBuf>,
    /// Sockets of memif.
    memifs: BTreeSet<PathBuf>,
    /// Abstract names of such sockets.
    names: BTreeSet<PathBuf>,
    /// The API's sockets.
    api: BTreeSet<PathBuf>,
    /// The journal.
    journal: PathBuf,
}

/// Endings of names in the directory of the journals that are not for sockets.
const KEPT_NAMES: [&str; 3] = ["json", "lock", "new"];

/// Starts the broker of an instance with these files and this journal, which serves this process from now on. Returns
/// its pid.
pub fn start(config: &Config, files: &Files, paths: &Paths, journal: &Path) -> anyhow::Result<u32> {
    let exact = |file: &PathBuf| located(file).ok();
    let directory = |file: PathBuf| file.parent().map(Path::to_owned);
    let memifs = config.ports.iter().filter_map(|port| Some(port.memif.as_ref()?.socket.clone()));
    let (names, memifs): (Vec<PathBuf>, Vec<PathBuf>) = memifs.partition(|name| is_abstract(name));
    let mut limits = Limits {
        read: Paths::of_files(&files.read),
        written: paths.written.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect(),
        sockets: files.sockets.iter().filter_map(exact).filter_map(directory).collect(),
        memifs: memifs.iter().filter_map(exact).map(place).collect(),
        names: names.into_iter().collect(),
        api: [Some(&config.api.socket), config.api.read_socket.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(exact)
            .collect(),
        journal: journal.to_owned(),
        ..Limits::default()
    };
    // A directory with other files of ours is no place for any recording.
    let others = |file: &Path| {
        let directory = file.parent().unwrap_or(file);
        limits.read.contains(directory) || limits.sockets.contains(directory) || journal.parent() == Some(directory)
    };
    let recordings = files.written.iter().filter_map(exact);
    limits.recordings = recordings.map(|file| if others(&file) { file } else { place(file) }).collect();
    let (ours, theirs) = broker::pair()?;
    let mut command = Command::new("/proc/self/exe");
    // A group of its own: Ctrl-C is for the instance alone.
    command.arg0("bywash").arg("broker").stdin(theirs).stdout(Stdio::null()).process_group(0);
    let child = command.spawn().context("cannot start a second process")?;
    drop(command);
    set_socket_timeout(&ours, Timeout::Recv, Some(BEGINS))?;
    broker::send(&ours, &limits, &[])?;
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
    let asked = broker::receive::<Limits>(&socket).context("only `bywash run` starts this process")?;
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
    if let Err(why) = rules.and_then(Rules::enforce) {
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
        "in its sandbox bywash uses {what} only in the directories of those that the configuration named at the start, \
         and in directories of much else only these themselves: Permission denied; others need a restart, or \
         --no-sandbox"
    )
}

/// Returns a path with the canonical path of its directory.
fn located(path: &Path) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let (Some(directory), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    Ok(directory.canonicalize()?.join(name))
}

/// Returns the path of a file if it is at one of `places`. Does not reveal what exists elsewhere.
fn at(places: &BTreeSet<PathBuf>, file: &Path, what: &str) -> Result<PathBuf, String> {
    let found = located(file).ok();
    let known = |found: &PathBuf| places.contains(found) || found.parent().is_some_and(|place| places.contains(place));
    found.filter(known).ok_or_else(|| refused(what))
}

/// Returns whether a path is one under which the API's socket was made: its final one, and more.
fn is_early(path: &Path, socket: &Path) -> bool {
    let more = path.as_os_str().as_bytes().strip_prefix(socket.as_os_str().as_bytes());
    more.is_some_and(|more| more.starts_with(b".") && !more.ends_with(b".lock") && !more.contains(&b'/'))
}

impl Limits {
    /// Returns why no program is read from a file, if files are made there.
    fn made(&self, file: &Path) -> Option<String> {
        let made = self.written.iter().find(|made| file.starts_with(made))?.display();
        Some(format!("in its sandbox bywash reads no program from {made}, where it makes files itself: move it"))
    }
}

impl Policy for Limits {
    fn connect(&self, name: &Path) -> Result<PathBuf, String> {
        if is_abstract(name) {
            return self.listen(name);
        }
        at(&self.sockets, name, "sockets")
    }

    fn listen(&self, name: &Path) -> Result<PathBuf, String> {
        if is_abstract(name) {
            let known = self.names.contains(name);
            return known.then(|| name.to_owned()).ok_or_else(|| refused("abstract sockets"));
        }
        let found = at(&self.memifs, name, "sockets")?;
        let kept = found.extension().is_some_and(|ending| KEPT_NAMES.iter().any(|kept| ending == *kept));
        if kept || self.api.contains(&found) { Err(refused("sockets")) } else { Ok(found) }
    }

    fn remove(&self, name: &Path) -> Result<PathBuf, String> {
        self.listen(name).or_else(|_| at(&self.api, name, "sockets")).or_else(|_| {
            let found = located(name).map_err(|_| refused("sockets"))?;
            let early = self.api.iter().any(|socket| is_early(&found, socket));
            early.then_some(found).ok_or_else(|| refused("sockets"))
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(PathBuf, PathBuf), String> {
        let (from, to) = (located(from).map_err(|_| refused("sockets"))?, at(&self.api, to, "sockets")?);
        if is_early(&from, &to) { Ok((from, to)) } else { Err(refused("sockets")) }
    }

    fn program(&self, file: &Path) -> Result<PathBuf, String> {
        let found = self.readable(file)?;
        match self.made(&found) {
            Some(why) => Err(why),
            None => Ok(found),
        }
    }

    fn readable(&self, file: &Path) -> Result<PathBuf, String> {
        let known = |found: &Path| self.read.iter().any(|read| found.starts_with(read));
        match file.canonicalize() {
            Ok(found) if known(&found) => Ok(found),
            Ok(found) => Err(self.made(&found).unwrap_or_else(|| refused("files"))),
            // The reason would reveal which files exist elsewhere.
            Err(why) => match std::path::absolute(file).is_ok_and(|named| known(&named)) {
                true => Err(why.to_string()),
                false => Err(refused("files")),
            },
        }
    }

    fn recording(&self, file: &Path) -> Result<PathBuf, String> {
        at(&self.recordings, file, "recordings")
    }

    fn journal(&self) -> &Path {
        &self.journal
    }

    fn remove_lock(&self) -> std::io::Result<()> {
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
        for directory in ["api", "sockets", "sockets/below", "else"] {
            std::fs::create_dir(at(directory)).unwrap();
        }
        let limits = Limits {
            sockets: [at("sockets"), at("api")].into(),
            memifs: [at("sockets"), at("else/alone")].into(),
            names: ["@memif".into()].into(),
            api: [at("api/one")].into(),
            ..Limits::default()
        };
        for name in [at("sockets/one"), at("else/../sockets/one"), at("sockets/below/../one")] {
            for found in [limits.connect(&name), limits.listen(&name), limits.remove(&name)] {
                assert_eq!(found, Ok(at("sockets/one")), "{}", name.display());
            }
        }
        assert_eq!((limits.connect(Path::new("@memif")), limits.listen(Path::new("@memif"))), {
            let name = PathBuf::from("@memif");
            (Ok(name.clone()), Ok(name))
        });
        for name in [at("sockets/below/one"), at("else/one"), at("none/one"), "@other".into(), "/".into(), "".into()] {
            for found in [limits.connect(&name), limits.listen(&name), limits.remove(&name)] {
                assert!(found.is_err(), "{}", name.display());
            }
        }
        assert!(limits.listen(&at("else/alone")).is_ok() && limits.remove(&at("else/alone")).is_ok());
        // A takeover's socket is beside the API's, which are made before.
        assert!(limits.connect(&at("api/.t-1")).is_ok());
        for name in ["api/one", "api/other", "sockets/a.lock", "sockets/settings-1.json"] {
            assert!(limits.listen(&at(name)).is_err(), "{name}");
        }
        assert!(limits.remove(&at("api/one")).is_ok() && limits.remove(&at("api/one.7-0")).is_ok());
        assert!(limits.remove(&at("api/other")).is_err() && limits.remove(&at("api/one.lock")).is_err());
        assert!(limits.rename(&at("api/one.7-0"), &at("api/one")).is_ok());
        for (from, to) in [("api/one.7-0", "api/other"), ("api/other", "api/one"), ("sockets/one.7", "api/one")] {
            assert!(limits.rename(&at(from), &at(to)).is_err(), "{from} to {to}");
        }
    }

    #[test]
    fn recordings_are_made_beside_no_other_files() {
        let limits = Limits { recordings: ["/tmp/one.pcap".into(), "/".into()].into(), ..Limits::default() };
        assert!(limits.recording(Path::new("/tmp/one.pcap")).is_ok());
        assert!(limits.recording(Path::new("/tmp/two.pcap")).is_err());
        assert!(limits.recording(Path::new("/two.pcap")).is_ok());
    }
}
