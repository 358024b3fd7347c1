//! Process that makes BPF objects (`af_xdp::objects`) and unix domain sockets for another process, which has given up
//! the privilege.
//!
//! The two are joined by a socket pair. A request names the objects to make; the answer carries the descriptors. An
//! unknown request ends the broker. The broker itself reads the user's programs and connects sockets, and only where a
//! [`Policy`] allows it: whoever controls the other process can neither load a program of their own, nor speak to other
//! services as its user.

use crate::af_xdp::{Made, Make, Maker, Refused};
use bywash_sync::lock;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Longest message in bytes.
const MESSAGE: usize = 64 << 10;
/// Maximum number of descriptors of a message.
const FDS: usize = 96;
/// Longest wait for objects. A kernel takes 0.1 s for the largest program, one in an emulated machine 3 s.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    Make(Make),
    /// A connection to a socket, which fails if it is not accepted within some milliseconds, or at once.
    Connect {
        name: PathBuf,
        within: Option<u64>,
    },
    /// A socket that listens.
    Listen {
        name: PathBuf,
    },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Objects were made; descriptors with these names come with the message.
    Made {
        number: u32,
        no_spread: Option<String>,
        names: Vec<String>,
    },
    Refused(Refused),
    /// A socket could not be made: the number of the system's error, and the reason.
    Failed(Option<i32>, String),
}

/// Limits on the files and sockets that a process may request.
pub trait Policy {
    /// Returns the file to read for a user's program. Errors with the reason if there is none.
    fn program(&self, file: &Path) -> Result<PathBuf, String>;

    /// Returns the path of a socket, which the process may connect to or make; or its abstract name, with a leading
    /// `@`. Errors with the reason if it may not.
    fn socket(&self, name: &Path) -> Result<PathBuf, String>;
}

/// End of this process; `None` once the broker has ended or failed to answer.
static BROKER: OnceLock<Mutex<Option<OwnedFd>>> = OnceLock::new();

/// Returns a socket for [`set`], and the broker's for [`serve`].
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Makes the broker at the other end create all objects of this process from now on. Only the first call counts.
pub fn set(broker: OwnedFd) -> io::Result<()> {
    set_socket_timeout(&broker, Timeout::Recv, Some(PATIENCE))?;
    set_socket_timeout(&broker, Timeout::Send, Some(PATIENCE))?;
    // A second broker would not know the datapaths of the first.
    let _ = BROKER.set(Mutex::new(Some(broker)));
    Ok(())
}

const ENDED: &str = "the process that makes BPF objects and sockets has ended: restart";

/// Sends a request to the broker; `None` if there is no broker.
fn ask(what: &Ask) -> Option<io::Result<(Answer, Vec<OwnedFd>)>> {
    let mut broker = lock(BROKER.get()?);
    let Some(socket) = &*broker else { return Some(Err(io::Error::other(ENDED))) };
    let asked = send(socket, what, &[]).and_then(|()| receive(socket));
    Some(match asked {
        // The kernel closes descriptors that the process has no room for.
        Ok(Some((Answer::Made { names, .. }, fds))) if names.len() != fds.len() => Err(Errno::MFILE.into()),
        Ok(Some(answer)) => Ok(answer),
        // Answers would no longer match requests.
        other => {
            *broker = None;
            Err(other.err().unwrap_or_else(|| io::Error::other(ENDED)))
        }
    })
}

/// Requests objects from the broker; `None` if there is no broker.
pub(crate) fn make(what: &Make) -> Option<Result<Made, Refused>> {
    Some(match ask(&Ask::Make(what.clone()))? {
        Ok((Answer::Made { number, no_spread, names }, fds)) => {
            Ok(Made { number, no_spread, objects: names.into_iter().zip(fds).collect() })
        }
        Ok((Answer::Refused(why), _)) => Err(why),
        Ok((Answer::Failed(_, why), _)) => Err(Refused::Ours(why)),
        Err(why) => Err(Refused::Ours(why.to_string())),
    })
}

/// Connects to a unix domain socket that preserves message boundaries (`SOCK_SEQPACKET`), by a path or, with a leading
/// `@`, an abstract name. Waits at most `within` until the connection is accepted; `None` makes the socket
/// non-blocking.
///
/// # Errors
/// The system's, or the reason for which the broker does not connect there.
pub fn connect(name: &Path, within: Option<Duration>) -> io::Result<OwnedFd> {
    let millis = within.map(|time| time.as_millis() as u64);
    match ask(&Ask::Connect { name: name.to_owned(), within: millis }) {
        Some(answer) => socket_in(answer?),
        None => connected(name, within),
    }
}

/// Listens at a socket like those of [`connect`]. The permission to connect is the path's write permission: the
/// owner's only, unless it is changed later. A socket there that has no listener is replaced.
///
/// # Errors
/// `EADDRINUSE` if the socket there has a listener; if something other than a socket is there; and as for [`connect`].
pub(crate) fn listen(name: &Path) -> io::Result<OwnedFd> {
    match ask(&Ask::Listen { name: name.to_owned() }) {
        Some(answer) => socket_in(answer?),
        None => listening(name),
    }
}

fn socket_in((answer, mut fds): (Answer, Vec<OwnedFd>)) -> io::Result<OwnedFd> {
    match answer {
        Answer::Made { .. } => fds.pop().ok_or_else(|| io::Error::other("there is no descriptor in the answer")),
        Answer::Failed(Some(number), _) => Err(io::Error::from_raw_os_error(number)),
        Answer::Failed(None, why) => Err(io::Error::other(why)),
        Answer::Refused(why) => Err(io::Error::other(format!("{why:?}"))),
    }
}

fn address(name: &Path) -> io::Result<SocketAddrUnix> {
    Ok(match name.as_os_str().as_encoded_bytes() {
        [b'@', abstract_name @ ..] => SocketAddrUnix::new_abstract_name(abstract_name)?,
        _ => SocketAddrUnix::new(name)?,
    })
}

fn unnamed(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

fn connected(name: &Path, within: Option<Duration>) -> io::Result<OwnedFd> {
    let socket = unnamed(if within.is_some() { SocketFlags::empty() } else { SocketFlags::NONBLOCK })?;
    if within.is_some() {
        // Holds for connect(2), too.
        set_socket_timeout(&socket, Timeout::Send, within)?;
    }
    rustix::net::connect(&socket, &address(name)?)?;
    Ok(socket)
}

fn listening(name: &Path) -> io::Result<OwnedFd> {
    let (socket, address) = (unnamed(SocketFlags::NONBLOCK)?, address(name)?);
    if !name.as_os_str().as_encoded_bytes().starts_with(b"@") {
        if let Ok(there) = std::fs::symlink_metadata(name) {
            // Connecting to it would be refused, too.
            if !there.file_type().is_socket() {
                return Err(io::Error::other("there is a file that is not a socket: move it, or give another socket"));
            }
            if rustix::net::connect(unnamed(SocketFlags::NONBLOCK)?, &address) != Err(Errno::CONNREFUSED) {
                return Err(Errno::ADDRINUSE.into());
            }
            std::fs::remove_file(name)?;
        }
        // Set before bind, which creates the path with this mode, less the umask.
        rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 8)?;
    Ok(socket)
}

/// Connects to a socket at exactly this path, without following a link there.
fn connected_at(path: &Path, within: Option<Duration>) -> io::Result<OwnedFd> {
    if path.as_os_str().as_encoded_bytes().starts_with(b"@") {
        return connected(path, within);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(rustix::fs::CWD, path, flags, rustix::fs::Mode::empty())?;
    let stat = rustix::fs::fstat(&place)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Errno::CONNREFUSED.into());
    }
    connected(Path::new(&format!("/proc/self/fd/{}", place.as_raw_fd())), within)
}

/// Serves the requests of the other end until it is closed.
///
/// # Errors
/// If the socket fails, or a request is invalid.
pub fn serve(socket: &OwnedFd, policy: &impl Policy) -> io::Result<()> {
    let mut maker = Maker::default();
    while let Some((what, _)) = receive::<Ask>(socket)? {
        let made = |made: io::Result<OwnedFd>| match made {
            Ok(fd) => Ok(Made { objects: [("socket".to_owned(), fd)].into(), ..Made::default() }),
            Err(why) => Err(Answer::Failed(why.raw_os_error(), why.to_string())),
        };
        let refused = |why| Answer::Failed(None, why);
        let made = match what {
            Ask::Make(Make::First { of, mut user }) => match policy.program(&user.file) {
                Ok(file) => {
                    user.file = file;
                    maker.make(&Make::First { of, user }).map_err(Answer::Refused)
                }
                Err(reason) => {
                    let file = user.file.display().to_string();
                    Err(Answer::Refused(Refused::Program { file, reason }))
                }
            },
            Ask::Make(what) => maker.make(&what).map_err(Answer::Refused),
            Ask::Connect { name, within } => policy.socket(&name).map_err(refused).and_then(|name| {
                made(connected_at(&name, within.map(Duration::from_millis).map(|time| time.min(PATIENCE / 2))))
            }),
            Ask::Listen { name } => policy.socket(&name).map_err(refused).and_then(|name| made(listening(&name))),
        };
        let (answer, objects) = match made {
            Ok(Made { number, no_spread, objects }) => {
                let (names, fds): (_, Vec<OwnedFd>) = objects.into_iter().unzip();
                (Answer::Made { number, no_spread, names }, fds)
            }
            Err(why) => (why, vec![]),
        };
        let fds: Vec<BorrowedFd<'_>> = objects.iter().map(OwnedFd::as_fd).collect();
        send(socket, &answer, &fds)?;
    }
    Ok(())
}

/// Sends a message with descriptors.
pub fn send(socket: &OwnedFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other(format!("{} descriptors: at most {FDS}", fds.len())));
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// Receives a message with descriptors; `None` if the other end is closed.
pub fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            other => break other?.bytes,
        }
    };
    let mut fds = vec![];
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    if got == 0 {
        return Ok(None);
    }
    let text = bytes.get(..got).ok_or_else(|| io::Error::other("the message is too long"))?;
    Ok(Some((serde_json::from_slice(text)?, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::thread;

    /// Allows every name without `secret` in it.
    struct Most;

    impl Policy for Most {
        fn program(&self, _: &Path) -> Result<PathBuf, String> {
            Err("none here".into())
        }

        fn socket(&self, name: &Path) -> Result<PathBuf, String> {
            if name.to_string_lossy().contains("secret") { Err("not there".into()) } else { Ok(name.to_owned()) }
        }
    }

    #[test]
    fn sockets_are_connected_where_they_may_be_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let (ours, theirs) = pair().unwrap();
        let broker = thread::spawn(move || serve(&theirs, &Most));
        let asked = |ask: &Ask| {
            send(&ours, ask, &[]).unwrap();
            socket_in(receive(&ours).unwrap().unwrap())
        };
        let connect = |name: &str, within| asked(&Ask::Connect { name: at(name), within });
        let listen = |name: &str| asked(&Ask::Listen { name: at(name) });
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
        drop(ours);
        broker.join().unwrap().unwrap();
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
