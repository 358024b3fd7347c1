//! The files that a running instance may open, by Landlock.
//!
//! The kernel's own files may be read, and all files in the directories of those that the configuration names, so that
//! a reload finds them after they were replaced. The broker makes files in the directories of recordings, sockets and
//! the journal; an instance without a broker does it itself. Paths are those at the start: a file in another directory
//! needs a restart.

use bywash_config::Files;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The kernel's own files, and those that name users and groups.
const SHOWN: [&str; 4] = ["/proc", "/sys", "/etc/passwd", "/etc/group"];
/// Libraries, which are read where a reload may load code.
const LIBRARIES: [&str; 4] = ["/etc/ld.so.cache", "/lib", "/usr/lib", "/usr/local/lib"];
/// Makes TAP interfaces.
const TUN: &str = "/dev/net/tun";
/// Directories of too much else: only the named file in them may be read, or made by a broker.
const SHARED: [&str; 9] = ["/", "/dev", "/etc", "/home", "/root", "/run", "/tmp", "/usr", "/var"];

/// Paths by the access that is allowed to files there and below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    pub read: BTreeSet<PathBuf>,
    pub written: BTreeSet<PathBuf>,
}

impl Paths {
    /// Returns the paths of an instance with these files, whose journal is in the directory `state`.
    pub fn of(files: &Files, state: &Path) -> Self {
        let mut paths = Self::default();
        paths.read.extend(SHOWN.map(PathBuf::from));
        paths.read.extend(LIBRARIES.iter().filter(|_| super::LOADS_CODE).map(PathBuf::from));
        paths.read.extend(std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from));
        paths.read.extend(Self::of_files(&files.read));
        let made = files.written.iter().chain(&files.sockets);
        paths.written.extend(made.filter_map(|file| Some(std::path::absolute(file).ok()?.parent()?.to_owned())));
        paths.written.insert(state.into());
        // Settings of interfaces; the names in /sys/class/net are links.
        for interface in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
            let device = interface.path().canonicalize();
            paths.written.extend(device.ok().and_then(|device| Some(device.parent()?.to_owned())));
        }
        paths.written.insert(TUN.into());
        paths
    }
}

/// Returns the paths at which an instance writes whose broker makes all files.
pub fn of_the_instance() -> BTreeSet<PathBuf> {
    [TUN.into()].into()
}

impl Paths {
    /// Returns the places of files that are read.
    pub fn of_files(files: &[PathBuf]) -> BTreeSet<PathBuf> {
        let mut places = BTreeSet::new();
        for file in files {
            // A link is read, and so is what it leads to.
            let absolute = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            places.extend(absolute.canonicalize().ok().map(place));
            places.insert(place(absolute));
        }
        places
    }
}

/// Returns the directory of a file, or the file itself if too much else is there.
pub fn place(file: PathBuf) -> PathBuf {
    match file.parent() {
        Some(directory) if !SHARED.iter().any(|shared| directory == Path::new(shared)) => directory.to_owned(),
        _ => file,
    }
}

/// Ruleset that is ready to be enforced.
pub struct Rules(RulesetCreated);

impl Rules {
    /// Opens the paths, which takes privileges that are dropped before the rules apply. Those that do not exist are
    /// left out.
    pub fn prepare(paths: &Paths) -> anyhow::Result<Self> {
        let all = AccessFs::from_all(ABI::V7);
        let rules = Ruleset::default().handle_access(all)?;
        // The program makes no TCP connections, and sends no signals to other processes.
        let mut rules = rules.handle_access(AccessNet::ConnectTcp)?.scope(Scope::Signal)?.create()?;
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let write = read
            | AccessFs::WriteFile
            | AccessFs::Truncate
            | AccessFs::IoctlDev
            | AccessFs::MakeReg
            | AccessFs::MakeSock
            | AccessFs::RemoveFile;
        let read = paths.read.iter().map(|path| (path, read));
        for (path, access) in read.chain(paths.written.iter().map(|path| (path, write))) {
            rules = match PathFd::new(path) {
                Ok(fd) => rules.add_rule(PathBeneath::new(fd, fitting(path, access)))?,
                Err(PathFdError::OpenCall { .. }) => rules,
                Err(why) => return Err(why.into()),
            };
        }
        Ok(Self(rules))
    }

    /// Applies the rules to the calling thread, and those that it starts. Errors if the kernel has no Landlock.
    pub fn enforce(self) -> anyhow::Result<()> {
        match self.0.restrict_self()?.ruleset {
            RulesetStatus::NotEnforced => anyhow::bail!("the kernel has no Landlock"),
            RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
        }
    }
}

/// Returns the rights that apply to a path: some apply to directories only.
fn fitting(path: &Path, access: BitFlags<AccessFs>) -> BitFlags<AccessFs> {
    if path.is_dir() { access } else { access & AccessFs::from_file(ABI::V7) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{ErrorKind, Write as _};

    #[test]
    fn paths_are_the_directories_of_what_is_named() {
        let path = |path: &str| PathBuf::from(path);
        let files = Files {
            read: vec![path("/etc/bywash/bywash.toml"), path("/dev/null"), path("/nowhere/a.pcap")],
            written: vec![path("/nowhere/recorded/b.pcap")],
            sockets: vec![path("/run/bywash/bywash.sock")],
        };
        let paths = Paths::of(&files, Path::new("/run/bywash"));
        for there in ["/proc", "/sys", "/etc/group", "/etc/bywash", "/dev/null", "/nowhere"] {
            assert!(paths.read.contains(Path::new(there)), "{there}: {paths:?}");
        }
        for there in ["/run/bywash", "/nowhere/recorded", TUN] {
            assert!(paths.written.contains(Path::new(there)), "{there}: {paths:?}");
        }
        let too_much = |path: &&PathBuf| SHARED.iter().any(|shared| path.as_path() == Path::new(shared));
        assert_eq!(paths.read.iter().chain(&paths.written).find(too_much), None);
    }

    /// Runs in a thread of its own: the rules apply only to that thread.
    #[test]
    fn what_is_not_named_can_neither_be_read_nor_written() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for directory in ["config", "state", "else"] {
            fs::create_dir(at(directory)).unwrap();
            fs::write(at(directory).join("file"), "x").unwrap();
        }
        std::os::unix::fs::symlink(at("else/file"), at("config/link")).unwrap();
        let files = Files { read: vec![at("config/file")], ..Files::default() };
        let paths = Paths::of(&files, &at("state"));
        let within = || {
            rustix::thread::set_no_new_privs(true).unwrap();
            if let Err(why) = Rules::prepare(&paths).and_then(Rules::enforce) {
                assert!(why.to_string().contains("no Landlock"), "{why}");
                return false;
            }
            let denied =
                |result: std::io::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
            let read = |name: &str| fs::read_to_string(at(name)).map(drop);
            read("config/file").unwrap();
            read("state/file").unwrap();
            fs::read_to_string("/proc/self/status").unwrap();
            denied(read("else/file"));
            denied(read("config/link"));
            denied(fs::read("/bin/sh").map(drop));
            denied(fs::write(at("config/file"), "y"));
            denied(fs::write(at("config/new"), "y"));
            denied(fs::write("/proc/self/comm", "y"));
            denied(fs::remove_file(at("else/file")));
            // As the journal is replaced.
            fs::File::create(at("state/new")).unwrap().write_all(b"y").unwrap();
            fs::rename(at("state/new"), at("state/file")).unwrap();
            denied(fs::rename(at("state/file"), at("else/file")));
            fs::remove_file(at("state/file")).unwrap();
            true
        };
        if !std::thread::scope(|scope| scope.spawn(within).join()).unwrap() {
            println!("SKIP: this kernel has no Landlock");
        }
    }
}
