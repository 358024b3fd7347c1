//! Lock on a socket's name that other users cannot take.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for the lock.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval of attempts while another process has the lock.
const RETRY: Duration = Duration::from_millis(10);

/// Exclusive lock on a name, by a file `NAME.lock` that exists as long as the lock is held. A file is locked and not
/// the directory, which every user can open and lock.
#[derive(Debug)]
pub struct NameLock {
    path: PathBuf,
    /// Unlocked when closed.
    file: OwnedFd,
}

impl NameLock {
    /// Waits at most 5 s for the lock.
    ///
    /// # Errors
    /// With the lock's path in the text: the system's, `TimedOut`, or if the file could be another user's.
    pub fn take(name: &Path) -> io::Result<Self> {
        Self::within(PATIENCE, name)
    }

    fn within(patience: Duration, name: &Path) -> io::Result<Self> {
        let mut path = name.as_os_str().to_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let start = Instant::now();
        loop {
            let shown = path.display();
            let failed = |why: Errno| {
                let why = io::Error::from(why);
                io::Error::new(why.kind(), format!("cannot lock {shown}: {why}"))
            };
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            let opened = fstat(&file).map_err(failed)?;
            if opened.st_uid != rustix::process::geteuid().as_raw() || opened.st_mode & 0o077 != 0 {
                let what = "is another user's, or open to others: remove it, or give another --socket";
                return Err(io::Error::other(format!("{shown} {what}")));
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The process that had the lock may have removed this very file meanwhile.
                Ok(()) if stat(&path).is_ok_and(|now| now.st_ino == opened.st_ino) => {
                    return Ok(Self { path, file });
                }
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if start.elapsed() < patience => std::thread::sleep(RETRY),
                Err(Errno::WOULDBLOCK) => {
                    let what = format!("another process has had {shown} locked for {} s: stop it", patience.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
                Err(why) => return Err(failed(why)),
            }
        }
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // Before the descriptor is closed, so that nobody locks a file that is about to go. Somebody may have replaced
        // it.
        if let (Ok(own), Ok(now)) = (fstat(&self.file), stat(&self.path))
            && own.st_ino == now.st_ino
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn one_holder_at_a_time_and_nothing_left() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("a.sock");
        let held = NameLock::within(SHORT, &name).unwrap();
        let why = NameLock::within(SHORT, &name).unwrap_err().to_string();
        assert!(why.contains("another process"), "{why}");
        drop(held);
        drop(NameLock::within(SHORT, &name).unwrap());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// Every user can open and lock a directory with the usual mode.
    #[test]
    fn a_locked_directory_does_not_matter() {
        let directory = tempfile::tempdir().unwrap();
        let held = open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        drop(NameLock::within(SHORT, &directory.path().join("a.sock")).unwrap());
    }

    #[test]
    fn a_file_that_others_can_open_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (name, lock) = (directory.path().join("a.sock"), directory.path().join("a.sock.lock"));
        std::fs::write(&lock, "").unwrap();
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o666)).unwrap();
        let why = NameLock::within(SHORT, &name).unwrap_err().to_string();
        assert!(why.contains("open to others"), "{why}");
        std::fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink("elsewhere", &lock).unwrap();
        assert!(NameLock::within(SHORT, &name).is_err());
    }
}
