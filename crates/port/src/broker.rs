//! Process that makes BPF objects for another one, which has given up the privilege: see `af_xdp::objects`.
//!
//! Both are ends of a socket pair. A request names objects to be made; the answer has their descriptors. A request that
//! is not one of those that the program can say is refused, and the user's programs are read by the broker itself, only
//! where [`serve`] is told that they may lie: whoever controls the other process cannot have a program of its own
//! loaded.

use crate::af_xdp::{Made, Make, Maker, Refused};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Longest message in bytes.
const MESSAGE: usize = 64 << 10;
/// Most descriptors of a message.
const FDS: usize = 96;
/// Longest time that objects take. A kernel takes 0.1 s for the largest program, an emulated one 3 s.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Descriptors of these names come with it.
    Made {
        number: u32,
        no_spread: Option<String>,
        names: Vec<String>,
    },
    Refused(Refused),
}

/// End of this process; `None` once the broker has ended or failed to answer.
static BROKER: OnceLock<Mutex<Option<OwnedFd>>> = OnceLock::new();

/// Returns a socket for [`set`], and the broker's for [`serve`].
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Has the broker at the other end make all objects of this process from now on. Only the first call counts.
pub fn set(broker: OwnedFd) -> io::Result<()> {
    set_socket_timeout(&broker, Timeout::Recv, Some(PATIENCE))?;
    set_socket_timeout(&broker, Timeout::Send, Some(PATIENCE))?;
    // A second broker would not know the datapaths of the first.
    let _ = BROKER.set(Mutex::new(Some(broker)));
    Ok(())
}

/// Has the broker make objects; `None` if there is none to be asked.
pub(crate) fn make(what: &Make) -> Option<Result<Made, Refused>> {
    let mut broker = BROKER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(socket) = &*broker else {
        return Some(Err(Refused::Ours("the process that makes BPF objects has ended: restart".into())));
    };
    let asked = send(socket, what, &[]).and_then(|()| receive(socket));
    Some(match asked {
        Ok(Some((Answer::Made { number, no_spread, names }, fds))) if names.len() == fds.len() => {
            Ok(Made { number, no_spread, objects: names.into_iter().zip(fds).collect() })
        }
        // The kernel closes those that the process has no room for.
        Ok(Some((Answer::Made { .. }, _))) => Err(Refused::Ours(Errno::MFILE.to_string())),
        Ok(Some((Answer::Refused(why), _))) => Err(why),
        // Answers would no longer be those to the requests.
        other => {
            *broker = None;
            let why = other.err().map_or_else(|| "it has ended".into(), |why| why.to_string());
            Err(Refused::Ours(format!("the process that makes BPF objects does not answer: {why}")))
        }
    })
}

/// Makes what the other end asks for, until that is closed. `find` returns the file to read for a user's program, or
/// the reason for which there is none.
///
/// # Errors
/// If the socket fails.
pub fn serve(socket: &OwnedFd, find: impl Fn(&Path) -> Result<PathBuf, String>) -> io::Result<()> {
    let mut maker = Maker::default();
    while let Some((what, fds)) = receive::<Make>(socket)? {
        drop(fds);
        let made = match what {
            Make::First { of, mut user } => match find(&user.file) {
                Ok(file) => {
                    user.file = file;
                    maker.make(&Make::First { of, user })
                }
                Err(reason) => Err(Refused::Program { file: user.file.display().to_string(), reason }),
            },
            what => maker.make(&what),
        };
        let (answer, objects) = match made {
            Ok(Made { number, no_spread, objects }) => {
                let (names, fds): (_, Vec<OwnedFd>) = objects.into_iter().unzip();
                (Answer::Made { number, no_spread, names }, fds)
            }
            Err(why) => (Answer::Refused(why), vec![]),
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
