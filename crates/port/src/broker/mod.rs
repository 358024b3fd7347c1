//! Process that makes BPF objects (`af_xdp::objects`) and unix domain sockets, opens files and changes settings of
//! interfaces for another process, which has given up the privilege.
//!
//! The two are joined by a socket pair. A request names one act of those in `Ask`; the answer carries descriptors. An
//! unknown request ends the broker. It acts only where its [`Policy`] allows it: whoever controls the other process can
//! neither load a program of their own, nor speak to other services as root, nor write a journal.
//!
//! The functions of this module act by themselves in a process without a broker, and where the process may do it
//! without its broker's help.

mod files;
mod lock;
mod peer;
mod serve;
mod wire;

pub use lock::NameLock;
pub use peer::{Peer, peer};
pub use serve::{Policy, serve};
pub use wire::{receive, receive_into, send};

use crate::af_xdp::{Act, Done, Made, Make, Refused};
use bywash_sync::lock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::time::Duration;

/// Longest wait for an answer. A kernel takes 0.1 s for the largest program, one in an emulated machine 3 s.
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
    /// A file, for reading.
    Open {
        path: PathBuf,
    },
    /// The device that makes TAP interfaces.
    Tun,
    /// A file that is created or emptied, for writing.
    Create {
        path: PathBuf,
    },
    /// Removal of a socket, if it is the one with this device and inode.
    Remove {
        path: PathBuf,
        identity: Option<(u64, u64)>,
    },
    /// A new name for a socket.
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    /// A change of settings, recorded in the journal.
    Change(Act),
    /// Removal of the journal's lock, which nobody waits for any more.
    RemoveLock,
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
    /// A descriptor comes with the message.
    Descriptor,
    Done,
    Changed(Done),
    /// The act failed: the number of the system's error, and the reason.
    Failed(Option<i32>, String),
}

/// End of this process; `None` once the broker has ended or failed to answer.
static BROKER: OnceLock<Mutex<Option<OwnedFd>>> = OnceLock::new();

/// Returns a socket for [`set`], and the broker's for [`serve`].
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Makes the broker at the other end serve this process from now on. Only the first call counts.
pub fn set(broker: OwnedFd) -> io::Result<()> {
    set_socket_timeout(&broker, Timeout::Recv, Some(PATIENCE))?;
    set_socket_timeout(&broker, Timeout::Send, Some(PATIENCE))?;
    // A second broker would not know the datapaths of the first.
    let _ = BROKER.set(Mutex::new(Some(broker)));
    Ok(())
}

/// Returns whether this process has, or had, a broker.
pub fn present() -> bool {
    BROKER.get().is_some()
}

/// Returns whether this process had a broker, and that has ended or failed to answer. Does not wait for a request of
/// another thread: meanwhile, it returns false.
pub fn ended() -> bool {
    let Some(broker) = BROKER.get() else { return false };
    let broker = match broker.try_lock() {
        Ok(broker) => broker,
        Err(TryLockError::Poisoned(broker)) => broker.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    // POLLHUP is reported whether it is asked for or not.
    let hung_up = |socket: &OwnedFd| {
        let mut polled = [PollFd::new(socket, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::HUP)
    };
    broker.as_ref().is_none_or(hung_up)
}

const ENDED: &str = "the process that acts for it with more privileges (`bywash broker`) has ended: restart";

/// Sends a request to the broker; `None` if there is no broker.
fn ask(what: &Ask) -> Option<io::Result<(Answer, Vec<OwnedFd>)>> {
    let mut broker = lock(BROKER.get()?);
    let Some(socket) = &*broker else { return Some(Err(io::Error::other(ENDED))) };
    // A path may be no text.
    let text = match serde_json::to_vec(what) {
        Ok(text) => text,
        Err(why) => return Some(Err(why.into())),
    };
    let asked = wire::post(socket, &text, &[]).and_then(|()| receive(socket));
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
        Ok((other, _)) => Err(Refused::Ours(failure(other).to_string())),
        Err(why) => Err(Refused::Ours(why.to_string())),
    })
}

/// Requests a change of settings from the broker; `None` if there is no broker.
pub(crate) fn change(what: &Act) -> Option<io::Result<Done>> {
    Some(match ask(&Ask::Change(what.clone()))? {
        Ok((Answer::Changed(done), _)) => Ok(done),
        Ok((other, _)) => Err(failure(other)),
        Err(why) => Err(why),
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
        Some(answer) => descriptor(answer?),
        None => files::connected(name, within),
    }
}

/// Listens at a socket like those of [`connect`]. The permission to connect is the path's write permission: the
/// owner's only, unless it is changed later. A socket there that has no listener is replaced.
///
/// # Errors
/// `EADDRINUSE` if the socket there has a listener; if something other than a socket is there; and as for [`connect`].
pub(crate) fn listen(name: &Path) -> io::Result<OwnedFd> {
    match ask(&Ask::Listen { name: name.to_owned() }) {
        Some(answer) => descriptor(answer?),
        None => files::listening(name),
    }
}

/// Opens a file for reading. A broker does not wait for the writer of a FIFO.
///
/// # Errors
/// The system's, or the reason for which the broker does not open it.
pub fn open(path: &Path) -> io::Result<File> {
    let asked = || Ask::Open { path: path.to_owned() };
    may_ask(File::open(path), asked)
}

/// Reads a text file that [`open`] opens.
///
/// # Errors
/// The errors of [`open`], and one for a text that is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Opens the device that makes TAP interfaces, without waiting in reads.
pub(crate) fn tun() -> io::Result<OwnedFd> {
    may_ask(files::tun(), || Ask::Tun)
}

/// Creates or empties a file, and opens it for writing. A broker does not wait for the reader of a FIFO.
///
/// # Errors
/// The system's, or the reason for which the broker does not create it.
pub fn create(path: &Path) -> io::Result<File> {
    match ask(&Ask::Create { path: path.to_owned() }) {
        Some(answer) => Ok(descriptor(answer?)?.into()),
        None => File::create(path),
    }
}

/// Removes the socket at `path`: the one with this device and inode, if they are given.
///
/// # Errors
/// The system's, or the reason for which the broker does not remove it.
pub fn remove(path: &Path, identity: Option<(u64, u64)>) -> io::Result<()> {
    match ask(&Ask::Remove { path: path.to_owned(), identity }) {
        Some(answer) => nothing(answer?),
        None => files::removed(path, identity),
    }
}

/// Renames a socket, even if another socket has the new name.
///
/// # Errors
/// The system's, or the reason for which the broker does not rename it.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match ask(&Ask::Rename { from: from.to_owned(), to: to.to_owned() }) {
        Some(answer) => nothing(answer?),
        None => files::renamed(from, to),
    }
}

/// Removes the lock of the process's journal, when nothing is left to be restored; `None` if there is no broker.
pub fn remove_lock() -> Option<io::Result<()>> {
    Some(ask(&Ask::RemoveLock)?.and_then(nothing))
}

/// Asks the broker to open what this process could not open for want of permission.
fn may_ask<T: From<OwnedFd>>(own: io::Result<T>, asked: impl FnOnce() -> Ask) -> io::Result<T> {
    match own {
        Err(why) if why.kind() == io::ErrorKind::PermissionDenied => match ask(&asked()) {
            Some(answer) => Ok(descriptor(answer?)?.into()),
            None => Err(why),
        },
        own => own,
    }
}

/// Returns the descriptor in an answer.
fn descriptor((answer, mut fds): (Answer, Vec<OwnedFd>)) -> io::Result<OwnedFd> {
    match answer {
        // The kernel closes a descriptor that the process has no room for.
        Answer::Descriptor => fds.pop().ok_or_else(|| Errno::MFILE.into()),
        other => Err(failure(other)),
    }
}

/// Checks that an act without a result succeeded.
fn nothing((answer, _): (Answer, Vec<OwnedFd>)) -> io::Result<()> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(failure(other)),
    }
}

fn failure(answer: Answer) -> io::Error {
    match answer {
        Answer::Failed(Some(number), _) => io::Error::from_raw_os_error(number),
        Answer::Failed(None, why) => io::Error::other(why),
        other => io::Error::other(format!("unexpected answer {other:?}")),
    }
}
