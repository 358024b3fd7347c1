//! File of a journal: read only if nobody else could have written it, and replaced atomically.

use super::Error;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest journal, in bytes: thousands of changes.
const LARGEST: u64 = 1 << 20;

/// File of recorded changes, in a directory in which only root, or this process's user, can create files.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
}

impl JournalFile {
    /// Returns the file at `path`, an absolute path. Nothing is read or created yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads the changes; returns none if there is no file.
    ///
    /// # Errors
    /// [`Error::JournalRefused`] if the file belongs to neither root nor this process's user, can be written by others,
    /// is not a regular file in a directory, or is too long, or if `check` errors for a change;
    /// [`Error::JournalDirectory`] if its directory has such an owner or can be written by others; [`Error::Journal`]
    /// if the file cannot be read.
    pub fn read<T: DeserializeOwned>(&self, check: impl Fn(&T) -> Result<(), String>) -> Result<Vec<T>, Error> {
        let Some(text) = self.text()? else { return Ok(vec![]) };
        parse(&text, check).map_err(|why| self.refused(why))
    }

    fn text(&self) -> Result<Option<Vec<u8>>, Error> {
        let (directory, name) = (self.path.parent(), self.path.file_name());
        let (Some(directory), Some(name)) = (directory, name) else {
            return Err(self.failed(io::ErrorKind::InvalidInput.into()));
        };
        // Descriptors are checked, not names, which somebody could exchange between a check and the use.
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = match openat(CWD, directory, flags | OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            Ok(place) => place,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR) => return Err(self.refused(format!("{} is not a directory", directory.display()))),
            Err(e) => return Err(self.failed(e.into())),
        };
        let stat = fstat(&place).map_err(|e| self.failed(e.into()))?;
        if let Err((reason, remedy)) = check_owner(&stat) {
            let path = directory.display().to_string();
            let remedy = format!("{remedy} {path}");
            return Err(Error::JournalDirectory { path, reason, remedy });
        }
        // Opening a FIFO would wait for its writer.
        let file = match openat(&place, name, flags | OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(self.refused("it is a symbolic link".into())),
            Err(e) => return Err(self.failed(e.into())),
        };
        let stat = fstat(&file).map_err(|e| self.failed(e.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.refused("it is not a regular file".into()));
        }
        check_owner(&stat).map_err(|(why, _)| self.refused(format!("it {why}")))?;
        let mut text = vec![];
        File::from(file).take(LARGEST + 1).read_to_end(&mut text).map_err(|e| self.failed(e))?;
        if text.len() as u64 > LARGEST {
            return Err(self.refused(format!("it is longer than {LARGEST} bytes")));
        }
        Ok(Some(text))
    }

    /// Replaces the file atomically, as a half-written journal would be worse than none; removes it if there are no
    /// changes. Errors if the file would be too long to be read.
    pub fn write<T: Serialize>(&self, changes: &[T]) -> Result<(), Error> {
        if changes.is_empty() {
            return remove(&self.path).map_err(|e| self.failed(e));
        }
        let write = || {
            let text = serde_json::to_vec_pretty(changes)?;
            if text.len() as u64 > LARGEST {
                return Err(io::Error::other(format!("more than {LARGEST} bytes of changes")));
            }
            if let Some(directory) = self.path.parent() {
                DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
            }
            let new = self.path.with_extension("new");
            remove(&new)?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            fs::rename(&new, &self.path)
        };
        write().map_err(|e| self.failed(e))
    }

    pub(super) fn failed(&self, source: io::Error) -> Error {
        Error::Journal { path: self.path.display().to_string(), source }
    }

    fn refused(&self, reason: String) -> Error {
        Error::JournalRefused { path: self.path.display().to_string(), reason }
    }
}

/// Checks that nobody but root and this process's user can write what `stat` describes, a file or a directory. Errors
/// with the reason, and with the command that corrects it for a directory.
fn check_owner(stat: &Stat) -> Result<(), (String, &'static str)> {
    let owner = stat.st_uid;
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err((format!("belongs to user {owner}, not to root"), "chown root"));
    }
    // With an access control list, the group's bits are its mask.
    if stat.st_mode & 0o022 != 0 {
        let mode = stat.st_mode & 0o7777;
        return Err((format!("can be written by others (mode {mode:04o})"), "chmod 755"));
    }
    Ok(())
}

/// Removes a file if there is one.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Returns the changes in the text of a journal. Errors if it is not a list of changes, or if `check` errors for one.
pub fn parse<T: DeserializeOwned>(text: &[u8], check: impl Fn(&T) -> Result<(), String>) -> Result<Vec<T>, String> {
    let changes: Vec<T> = serde_json::from_slice(text).map_err(|why| format!("it is not a list of changes ({why})"))?;
    changes.iter().try_for_each(check)?;
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::super::{Change, Journal, Value};
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const GOOD: &str = r#"[{"interface": "nosuchif0", "feature": "rx-gro", "was": true}]"#;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Returns a directory with a journal that is accepted, and the journal's path.
    fn journal() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("settings.json");
        fs::write(&path, GOOD).unwrap();
        set_mode(&path, 0o600);
        (directory, path)
    }

    #[track_caller]
    fn assert_refused(path: &Path, why: &str) {
        let error = Journal::open(path).unwrap_err().to_string();
        let whole = format!("journal {} is not trusted, so no setting was restored: ", path.display());
        assert!(error.starts_with(&whole) && error.contains(why) && error.contains("delete it"), "{error}");
    }

    #[test]
    fn what_others_could_have_written_is_refused() {
        let (directory, path) = journal();
        assert_eq!(Journal::open(&path).unwrap().changes().len(), 1);
        for mode in [0o666, 0o620, 0o602] {
            set_mode(&path, mode);
            assert_refused(&path, &format!("it can be written by others (mode {mode:04o})"));
        }
        set_mode(&path, 0o644);
        assert!(Journal::open(&path).is_ok(), "everybody may read it");
        let place = directory.path().display().to_string();
        let refused = |why: &str, remedy: &str| {
            // It is the directory that is to be corrected, whether there is a journal or not.
            for path in [&path, &directory.path().join("none.json")] {
                let error = Journal::open(path).unwrap_err().to_string();
                let whole = format!("directory {place} is not trusted, so no setting was restored: it {why}");
                assert!(error.starts_with(&whole) && error.ends_with(&format!("`{remedy} {place}`")), "{error}");
            }
        };
        for mode in [0o777, 0o770, 0o1777] {
            set_mode(directory.path(), mode);
            refused(&format!("can be written by others (mode {mode:04o})"), "chmod 755");
        }
        set_mode(directory.path(), 0o755);
        assert!(Journal::open(&path).is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert_refused(&path, "it belongs to user 12345, not to root");
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
            std::os::unix::fs::chown(directory.path(), Some(12345), None).unwrap();
            refused("belongs to user 12345, not to root", "chown root");
        }
    }

    #[test]
    fn links_and_what_is_no_file_are_refused() {
        let (directory, path) = journal();
        let link = directory.path().join("link.json");
        symlink(&path, &link).unwrap();
        assert_refused(&link, "it is a symbolic link");
        let (linked, _) = journal();
        let beside = linked.path().join("beside");
        symlink(directory.path(), &beside).unwrap();
        assert_refused(&beside.join("settings.json"), "is not a directory");
        let folder = directory.path().join("folder.json");
        fs::create_dir(&folder).unwrap();
        assert_refused(&folder, "it is not a regular file");
        let fifo = directory.path().join("fifo.json");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_refused(&fifo, "it is not a regular file");
        fs::write(&path, vec![b' '; LARGEST as usize + 1]).unwrap();
        assert_refused(&path, "it is longer than");
    }

    #[test]
    fn a_broken_journal_is_an_error_not_a_loss() {
        let (_directory, path) = journal();
        for broken in ["{", "[", "{}", "[{}]", r#"[{"interface": "eth0", "feature": "mtu", "was": 68}]"#] {
            fs::write(&path, broken).unwrap();
            assert_refused(&path, "");
            assert_eq!(fs::read_to_string(&path).unwrap(), broken);
        }
        fs::remove_file(&path).unwrap();
        assert!(Journal::open(&path).unwrap().changes().is_empty());
    }

    #[test]
    fn a_written_journal_is_its_owner_s_alone_and_follows_no_link() {
        let (directory, other) = journal();
        let file = JournalFile::new(directory.path().join("new/settings.json"));
        let change = Change { interface: "eth0".into(), feature: "rx-gro".into(), was: Value::On(true), index: 2 };
        file.write(std::slice::from_ref(&change)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file.path), mode(&directory.path().join("new")) & 0o022), (0o600, 0));
        // A file at the temporary name is replaced, not written to.
        symlink(&other, file.path.with_extension("new")).unwrap();
        file.write(&[change.clone(), change]).unwrap();
        assert_eq!(Journal::open(&file.path).unwrap().changes().len(), 2);
        assert_eq!(fs::read_to_string(&other).unwrap(), GOOD);
        file.write::<Change>(&[]).unwrap();
        assert!(!file.path.exists());
    }
}
