//! The broker's side: acts on requests, where its policy allows it.

use super::{Answer, Ask, PATIENCE, files, receive, send};
use crate::af_xdp::{Done, Error, Journal, Made, Make, Maker, Refused};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limits on the files and sockets that a process may request. Functions that return a path return one without links,
/// but for its last part; they error with the reason for a refusal.
pub trait Policy {
    /// Returns the file to read for a user's program.
    fn program(&self, file: &Path) -> Result<PathBuf, String>;

    /// Returns the path of a socket to connect to, or its abstract name, with a leading `@`.
    fn connect(&self, name: &Path) -> Result<PathBuf, String>;

    /// Returns the path, or abstract name, at which the process may listen.
    fn listen(&self, name: &Path) -> Result<PathBuf, String>;

    /// Returns the path of a socket to remove.
    fn remove(&self, name: &Path) -> Result<PathBuf, String>;

    /// Returns the paths of a socket to rename.
    fn rename(&self, from: &Path, to: &Path) -> Result<(PathBuf, PathBuf), String>;

    /// Returns the file to open for reading.
    fn readable(&self, file: &Path) -> Result<PathBuf, String>;

    /// Returns the file to create or empty.
    fn recording(&self, file: &Path) -> Result<PathBuf, String>;

    /// Returns the path of the process's journal.
    fn journal(&self) -> &Path;

    /// Removes the lock of the journal.
    fn remove_lock(&self) -> io::Result<()>;
}

/// Serves the requests of the other end until it is closed.
///
/// # Errors
/// If the socket fails, or a request is invalid.
pub fn serve(socket: &OwnedFd, policy: &impl Policy) -> io::Result<()> {
    let mut maker = Maker::default();
    while let Some((what, _)) = receive::<Ask>(socket)? {
        let (answer, objects) = act(what, &mut maker, policy).unwrap_or_else(|why| (why, vec![]));
        let fds: Vec<BorrowedFd<'_>> = objects.iter().map(OwnedFd::as_fd).collect();
        send(socket, &answer, &fds)?;
    }
    Ok(())
}

/// Longest list of changes that could not be restored, of which an answer has room for some hundred.
const LEFT: usize = 64;

/// Returns the answer to a request, with its descriptors, or the answer of a failure.
fn act(what: Ask, maker: &mut Maker, policy: &impl Policy) -> Result<(Answer, Vec<OwnedFd>), Answer> {
    let failed = |why: io::Error| Answer::Failed(why.raw_os_error(), why.to_string());
    let refused = |why| Answer::Failed(None, why);
    let one = |fd: OwnedFd| (Answer::Descriptor, vec![fd]);
    let none = |()| (Answer::Done, vec![]);
    let objects = |made: Made| {
        let (names, fds) = made.objects.into_iter().unzip();
        (Answer::Made { number: made.number, no_spread: made.no_spread, names }, fds)
    };
    match what {
        Ask::Make(Make::First { of, mut user }) => {
            let name = user.file.display().to_string();
            let program = |reason| Answer::Refused(Refused::Program { file: name, reason });
            user.file = policy.program(&user.file).map_err(program)?;
            maker.make(&Make::First { of, user }).map(objects).map_err(Answer::Refused)
        }
        Ask::Make(what) => maker.make(&what).map(objects).map_err(Answer::Refused),
        Ask::Connect { name, within } => {
            let within = within.map(Duration::from_millis).map(|time| time.min(PATIENCE / 2));
            files::connected_at(&policy.connect(&name).map_err(refused)?, within).map(one).map_err(failed)
        }
        Ask::Listen { name } => files::listening(&policy.listen(&name).map_err(refused)?).map(one).map_err(failed),
        Ask::Open { path } => {
            let file = files::opened(&policy.readable(&path).map_err(refused)?).map_err(failed)?;
            Ok(one(file.into()))
        }
        Ask::Tun => files::tun().map(one).map_err(failed),
        Ask::Create { path } => {
            let file = files::created(&policy.recording(&path).map_err(refused)?).map_err(failed)?;
            Ok(one(file.into()))
        }
        Ask::Remove { path, identity } => {
            files::removed(&policy.remove(&path).map_err(refused)?, identity).map(none).map_err(failed)
        }
        Ask::Rename { from, to } => {
            let (from, to) = policy.rename(&from, &to).map_err(refused)?;
            files::renamed(&from, &to).map(none).map_err(failed)
        }
        Ask::Change(act) => {
            let mut journal = Journal::open(policy.journal()).map_err(|why| refused(why.to_string()))?;
            match journal.act(&act) {
                Ok(mut done) => {
                    if let Done::Left(changes) = &mut done {
                        changes.truncate(LEFT);
                    }
                    Ok((Answer::Changed(done), vec![]))
                }
                // The other end knows interface and setting.
                Err(Error::Feature { source, .. }) => Err(failed(source)),
                Err(why) => Err(refused(why.to_string())),
            }
        }
        Ask::RemoveLock => policy.remove_lock().map(none).map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{descriptor, nothing, pair};
    use super::*;
    use rustix::net::SocketAddrUnix;
    use std::io::Read as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::thread;

    /// Allows every name without `secret` in it.
    struct Most;

    impl Policy for Most {
        fn program(&self, _: &Path) -> Result<PathBuf, String> {
            Err("none here".into())
        }

        fn connect(&self, name: &Path) -> Result<PathBuf, String> {
            if name.to_string_lossy().contains("secret") { Err("not there".into()) } else { Ok(name.to_owned()) }
        }

        fn listen(&self, name: &Path) -> Result<PathBuf, String> {
            self.connect(name)
        }

        fn remove(&self, name: &Path) -> Result<PathBuf, String> {
            self.connect(name)
        }

        fn rename(&self, from: &Path, to: &Path) -> Result<(PathBuf, PathBuf), String> {
            Ok((self.connect(from)?, self.connect(to)?))
        }

        fn readable(&self, file: &Path) -> Result<PathBuf, String> {
            self.connect(file)
        }

        fn recording(&self, file: &Path) -> Result<PathBuf, String> {
            self.connect(file)
        }

        fn journal(&self) -> &Path {
            Path::new("/nowhere/journal")
        }

        fn remove_lock(&self) -> io::Result<()> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Runs `test` with a function that asks a broker with this policy.
    fn with_broker(test: impl FnOnce(&dyn Fn(&Ask) -> (Answer, Vec<OwnedFd>))) {
        let (ours, theirs) = pair().unwrap();
        let broker = thread::spawn(move || serve(&theirs, &Most));
        test(&|ask| {
            send(&ours, ask, &[]).unwrap();
            receive(&ours).unwrap().unwrap()
        });
        drop(ours);
        broker.join().unwrap().unwrap();
    }

    #[test]
    fn sockets_are_connected_where_they_may_be_and_links_are_not_followed() {
        with_broker(|asked| {
            let place = tempfile::tempdir().unwrap();
            let at = |name: &str| place.path().join(name);
            let connect = |name: &str, within| descriptor(asked(&Ask::Connect { name: at(name), within }));
            let listen = |name: &str| descriptor(asked(&Ask::Listen { name: at(name) }));
            assert_eq!(connect("one", None).unwrap_err().kind(), io::ErrorKind::NotFound);
            let _listener = listen("one").unwrap();
            assert_eq!(listen("one").unwrap_err().kind(), io::ErrorKind::AddrInUse);
            for within in [None, Some(1000)] {
                let line = connect("one", within).unwrap();
                assert_eq!(
                    rustix::net::getpeername(&line).unwrap().unwrap(),
                    SocketAddrUnix::new(at("one")).unwrap().into()
                );
            }
            symlink(at("one"), at("link")).unwrap();
            std::fs::write(at("file"), "").unwrap();
            for name in ["link", "file"] {
                assert_eq!(connect(name, None).unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "{name}");
                assert!(listen(name).is_err(), "{name}");
            }
            assert!(connect("secret", None).unwrap_err().to_string().contains("not there"));
            assert!(listen("secret").is_err() && !at("secret").exists());
        });
    }

    #[test]
    fn files_are_opened_and_only_sockets_renamed_and_removed() {
        with_broker(|asked| {
            let place = tempfile::tempdir().unwrap();
            let at = |name: &str| place.path().join(name);
            let open = |name: &str| descriptor(asked(&Ask::Open { path: at(name) }));
            let create = |name: &str| descriptor(asked(&Ask::Create { path: at(name) }));
            std::fs::write(at("text"), "some text").unwrap();
            let mut text = String::new();
            std::fs::File::from(open("text").unwrap()).read_to_string(&mut text).unwrap();
            assert_eq!(text, "some text");
            create("new").unwrap();
            create("text").unwrap();
            assert_eq!(std::fs::metadata(at("text")).unwrap().len(), 0, "it is emptied");
            symlink(at("text"), at("link")).unwrap();
            assert!(open("link").is_err() && create("link").is_err());
            assert!(create("secret").is_err() && !at("secret").exists());
            std::fs::create_dir(at("directory")).unwrap();
            assert!(open("directory").is_err() && create("directory").is_err());
            // The other end of a FIFO is not waited for.
            rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            assert!(open("fifo").is_ok() && create("fifo").is_err());

            let _socket = descriptor(asked(&Ask::Listen { name: at("one") })).unwrap();
            let rename = |from: &str, to: &str| nothing(asked(&Ask::Rename { from: at(from), to: at(to) }));
            for (from, to) in [("text", "three"), ("one", "text"), ("one", "secret"), ("none", "one")] {
                assert!(rename(from, to).is_err(), "{from} to {to}");
            }
            rename("one", "two").unwrap();
            assert!(!at("one").exists() && at("two").exists() && !at("two.lock").exists());
            let remove = |name: &str, identity| nothing(asked(&Ask::Remove { path: at(name), identity }));
            let there = std::fs::metadata(at("two")).unwrap();
            assert!(remove("text", None).is_err() && remove("two", Some((there.dev(), there.ino() + 1))).is_err());
            assert!(at("text").exists() && at("two").exists());
            remove("two", Some((there.dev(), there.ino()))).unwrap();
            assert!(!at("two").exists());
        });
    }

    #[test]
    fn what_is_no_request_ends_it() {
        for nonsense in ["", "{}", "{\"Make\": {\"Program\": [1, 2, 3]}}", "{\"Connect\": 1}"] {
            let (ours, theirs) = pair().unwrap();
            send(&ours, &nonsense, &[]).unwrap();
            assert!(serve(&theirs, &Most).is_err(), "{nonsense}");
        }
    }
}
