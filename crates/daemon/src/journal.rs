//! Paths of the journals, which record changed interface settings until they are restored, and locks that show whether
//! a journal's instance is running.
//!
//! Each instance has a journal of its own, named after its API socket, and holds a shared lock on a file beside it. A
//! process that takes over holds it, too. A journal whose lock nobody holds was left behind: a process in its
//! network namespace may put its settings back. Once that namespace is gone, nobody can, and the journal is removed.

use anyhow::Context as _;
use bywash_port::broker;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Directory of the journals.
const STATE: &str = "/run/bywash";
/// Longest wait for another process to put a journal's settings back.
const PATIENCE: Duration = Duration::from_secs(5);
/// Inode of the first PID namespace, which has all processes (`PROC_PID_INIT_INO`).
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;
/// Interval of attempts meanwhile.
const RETRY: Duration = Duration::from_millis(10);

/// Returns the directory of the journals. Makes it if there is none: in the sandbox it cannot be made any more. An
/// error is that of the first journal.
pub fn directory() -> &'static Path {
    let _ = DirBuilder::new().recursive(true).mode(0o755).create(STATE);
    Path::new(STATE)
}

/// Returns the path of the journal of the instance in the current network namespace with this API socket.
pub fn settings(socket: &Path) -> PathBuf {
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.into());
    // FNV-1a: the same for all versions of the program.
    let hash = socket
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    Path::new(STATE).join(format!("settings-{}-{hash:016x}.json", namespace()))
}

/// Returns the path of a journal's lock.
pub fn lock_of(journal: &Path) -> PathBuf {
    journal.with_extension("lock")
}

/// Returns the path of journal `what` for the current network namespace.
pub fn journal(what: &str) -> PathBuf {
    Path::new(STATE).join(format!("{what}-{}.json", namespace()))
}

/// Returns the inode of the current network namespace.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map(|m| m.ino()).unwrap_or(0)
}

/// Lock on a journal.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Unlocked when closed.
    file: OwnedFd,
}

impl Lock {
    /// Locks a journal together with other processes of its instance, while its settings are in force. Waits a few
    /// seconds for a process that puts them back.
    pub fn share(journal: &Path) -> anyhow::Result<Self> {
        let start = Instant::now();
        loop {
            match Self::take(journal, FlockOperation::NonBlockingLockShared) {
                Ok(Some(lock)) => return Ok(lock),
                Err(Errno::WOULDBLOCK) if start.elapsed() > PATIENCE => {
                    anyhow::bail!("another process is restoring the settings in {}", journal.display())
                }
                Ok(None) | Err(Errno::WOULDBLOCK) => std::thread::sleep(RETRY),
                Err(why) => return Err(why).with_context(|| format!("cannot lock {}", journal.display())),
            }
        }
    }

    /// Locks a journal for this process alone; errors with `EWOULDBLOCK` if its instance runs.
    fn own(journal: &Path) -> Result<Self, Errno> {
        loop {
            if let Some(lock) = Self::take(journal, FlockOperation::NonBlockingLockExclusive)? {
                return Ok(lock);
            }
        }
    }

    /// Returns `None` if the file was removed meanwhile.
    fn take(journal: &Path, how: FlockOperation) -> Result<Option<Self>, Errno> {
        let path = lock_of(journal);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        flock(&file, how)?;
        let same = stat(&path).is_ok_and(|now| fstat(&file).is_ok_and(|own| own.st_ino == now.st_ino));
        Ok(same.then_some(Self { path, file }))
    }

    /// Removes the file, when nothing is left to be put back.
    pub fn remove(self) {
        // Before it is unlocked, so that nobody locks a file that is about to go. In the sandbox the broker removes it.
        if broker::remove_lock().is_none() {
            let _ = std::fs::remove_file(&self.path);
        }
        drop(self.file);
    }
}

/// Journals of a network namespace.
#[derive(Debug, Default)]
pub struct Found {
    /// Journals left behind, each with a lock.
    pub left: Vec<(PathBuf, Lock)>,
    /// Journals of instances that run.
    pub running: Vec<PathBuf>,
    /// Journals of another user, whose instances may run or not.
    pub denied: Vec<PathBuf>,
}

/// Returns the journals of the current network namespace.
pub fn found() -> anyhow::Result<Found> {
    let mut found = Found::default();
    let entries = match std::fs::read_dir(STATE) {
        Ok(entries) => entries,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(why) => return Err(why).with_context(|| format!("cannot read {STATE}")),
    };
    let (first, others) = (format!("settings-{}.json", namespace()), format!("settings-{}-", namespace()));
    let mut journals = BTreeSet::new();
    for entry in entries {
        // A process may have left its lock, and nothing to be put back.
        let path = entry.with_context(|| format!("cannot read {STATE}"))?.path().with_extension("json");
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name == first || name.starts_with(&others) {
            journals.insert(path);
        }
    }
    for path in journals {
        match Lock::own(&path) {
            Ok(lock) => found.left.push((path, lock)),
            Err(Errno::WOULDBLOCK) => found.running.push(path),
            Err(Errno::ACCESS | Errno::PERM) => found.denied.push(path),
            Err(why) => return Err(why).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
    Ok(found)
}

/// Removes the journals of other network namespaces that are gone. Returns how many had changes. Removes none unless
/// this process sees everything that keeps a namespace.
pub fn remove_orphans() -> usize {
    let own = namespace();
    living().map_or(0, |living| {
        remove_orphans_in(Path::new(STATE), |namespace| namespace == own || living.contains(&namespace))
    })
}

fn remove_orphans_in(directory: &Path, lives: impl Fn(u64) -> bool) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let journals: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path().with_extension("json")).collect();
    let orphans = journals.iter().filter(|journal| namespace_of(journal).is_some_and(|namespace| !lives(namespace)));
    let removed = orphans.filter(|journal| {
        // A new namespace may have got the number meanwhile: then its instance holds the lock, or waits for it.
        let Ok(lock) = Lock::own(journal) else { return false };
        let had_changes = std::fs::remove_file(journal).is_ok();
        lock.remove();
        had_changes
    });
    removed.count()
}

/// Returns the network namespace of an instance's journal, from its name; `None` if the file is none. The journals of
/// `bywash doctor` have no lock.
fn namespace_of(journal: &Path) -> Option<u64> {
    let name = journal.file_name()?.to_str()?.strip_prefix("settings-")?.strip_suffix(".json")?;
    name.split('-').next()?.parse().ok()
}

/// Returns the network namespaces that a thread is in, or that a descriptor or a mount keeps; `None` if this process
/// does not see all of them.
fn living() -> Option<BTreeSet<u64>> {
    // In another PID namespace, processes of this machine are missing in /proc.
    if std::fs::metadata("/proc/self/ns/pid").ok()?.ino() != FIRST_PID_NAMESPACE {
        return None;
    }
    let is_process =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().iter().all(u8::is_ascii_digit));
    let processes: Vec<PathBuf> = entries(Path::new("/proc"))?.map(|entry| entry.path()).filter(is_process).collect();
    // With the option `hidepid` of /proc, processes of others are missing, and the first one with them.
    processes.contains(&PathBuf::from("/proc/1")).then(|| kept_by(&processes))?
}

/// Returns the network namespaces that these processes, directories in /proc, keep; `None` if one cannot be read.
fn kept_by(processes: &[PathBuf]) -> Option<BTreeSet<u64>> {
    let (mut kept, mut mounts) = (BTreeSet::new(), BTreeSet::new());
    for process in processes {
        for thread in entries(&process.join("task"))? {
            let thread = thread.path();
            kept.extend(there(std::fs::read_link(thread.join("ns/net")))?.and_then(|link| number(&link)));
            for descriptor in entries(&thread.join("fd"))? {
                kept.extend(there(std::fs::read_link(descriptor.path()))?.and_then(|link| number(&link)));
            }
            if there(std::fs::read_link(thread.join("ns/mnt")))?.is_some_and(|link| mounts.insert(link)) {
                let table = there(std::fs::read_to_string(thread.join("mountinfo")))?.unwrap_or_default();
                kept.extend(table.split_whitespace().filter_map(|word| number(Path::new(word))));
            }
        }
    }
    Some(kept)
}

/// Returns the inode in the name of a network namespace, `net:[4026531840]`.
fn number(name: &Path) -> Option<u64> {
    name.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns the entries of a directory in /proc, none if its process has ended; `None` if they cannot be read.
fn entries(directory: &Path) -> Option<impl Iterator<Item = std::fs::DirEntry>> {
    Some(there(std::fs::read_dir(directory))?.into_iter().flatten().flatten())
}

/// Returns what was read of a process, `Some(None)` if it has ended; `None` if it cannot be read.
fn there<T>(read: std::io::Result<T>) -> Option<Option<T>> {
    match read {
        Ok(found) => Some(Some(found)),
        Err(why) => {
            let ended = [Errno::NOENT, Errno::SRCH, Errno::INVAL].map(|errno| Some(errno.raw_os_error()));
            ended.contains(&why.raw_os_error()).then_some(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_of_gone_namespaces_are_removed_unless_they_are_held() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let files = [
            "settings-1-00.json",
            "settings-1-00.lock",
            "settings-1.lock",
            "settings-2-00.json",
            "settings-2-00.lock",
            "settings-3-00.json",
            "doctor-1.json",
            "doctor-files-1.json",
            "settings-x-00.json",
            "bywash.sock",
        ];
        files.iter().for_each(|name| std::fs::write(at(name), "[]").unwrap());
        let held = Lock::share(&at("settings-3-00.json")).unwrap();
        assert_eq!(remove_orphans_in(directory.path(), |namespace| namespace == 2), 1);
        let gone = ["settings-1-00.json", "settings-1-00.lock", "settings-1.lock"];
        let left: Vec<_> = files.into_iter().filter(|name| at(name).exists()).collect();
        assert_eq!(left, files.into_iter().filter(|name| !gone.contains(name)).collect::<Vec<_>>());
        drop(held);
        assert_eq!(remove_orphans_in(directory.path(), |namespace| namespace == 2), 1);
        assert!(!at("settings-3-00.json").exists() && !at("settings-3-00.lock").exists());
    }

    #[test]
    fn threads_descriptors_and_mounts_keep_a_namespace() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root makes network namespaces");
            return;
        }
        let wait = |ready: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !ready() {
                assert!(start.elapsed() < Duration::from_secs(60));
                std::thread::sleep(RETRY);
            }
        };
        let start = |script: &str| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--mount", "sh", "-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap()
        };
        let at = |process: &std::process::Child, file: &str| PathBuf::from(format!("/proc/{}/{file}", process.id()));
        let inode = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.ino());
        // The shell that mounts a namespace is not in it.
        let maker = std::process::Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
        let net = at(&maker, "ns/net");
        wait(&|| ![0, namespace()].contains(&inode(&net)));
        let made = inode(&net);
        let directory = tempfile::tempdir().unwrap();
        let mounted = directory.path().join("mounted");
        std::fs::write(&mounted, "").unwrap();
        let script = format!("mount --bind {} {} && exec cat", net.display(), mounted.display());
        let mounter = start(&script);
        wait(&|| std::fs::read_to_string(at(&mounter, "comm")).is_ok_and(|name| name == "cat\n"));
        let by = |process: &std::process::Child| kept_by(&[at(process, "")]).unwrap().contains(&made);
        let own = || kept_by(&["/proc/self".into()]).unwrap().contains(&made);
        assert!(by(&maker) && by(&mounter) && !own());
        let held = std::fs::File::open(&net).unwrap();
        assert!(own());
        drop(held);
        assert!(!own());
        for mut process in [maker, mounter] {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    #[test]
    fn a_journal_is_left_over_when_no_process_of_its_instance_runs() {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("settings.json");
        let first = Lock::share(&journal).unwrap();
        // The lock of a process that takes over.
        let second = Lock::share(&journal).unwrap();
        drop(first);
        assert_eq!(Lock::own(&journal).unwrap_err(), Errno::WOULDBLOCK);
        drop(second);
        let alone = Lock::own(&journal).unwrap();
        alone.remove();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        Lock::share(&journal).unwrap().remove();
    }

    #[test]
    fn instances_have_journals_of_their_own() {
        let [one, other] = ["/run/bywash/bywash.sock", "/run/bywash/b.sock"].map(|socket| settings(Path::new(socket)));
        assert_ne!(one, other);
        assert!(one.to_str().unwrap().starts_with(&format!("/run/bywash/settings-{}-", namespace())));
    }
}
