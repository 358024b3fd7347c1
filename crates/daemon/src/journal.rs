//! Paths of the journals, which record changed interface settings until they are restored, and locks that tell whether
//! a journal's instance is running.
//!
//! Each instance has a journal of its own, named after its API socket, and holds a shared lock on a file beside it. A
//! process that takes over holds it, too. A journal whose lock nobody holds was left behind, and may be put back.

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
                    anyhow::bail!("another process puts back the settings in {}", journal.display())
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
            Err(why) => return Err(why).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

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
