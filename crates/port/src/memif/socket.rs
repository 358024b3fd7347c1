//! Control socket: `SOCK_SEQPACKET` of the unix domain, named by a path or, with a leading `@`, an abstract name.

use super::message::{Message, SIZE};
use super::refusal::Refusal;
use crate::broker;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, accept_with, recvmsg, sendmsg,
};
use rustix::process::geteuid;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Maximum number of unread messages discarded before the disconnect message.
const UNHEARD: usize = 64;

/// Listening socket. Dropping it removes its path.
pub struct Listener {
    pub fd: OwnedFd,
    path: Option<PathBuf>,
}

impl Listener {
    /// Listens at `name`. Replaces a stale socket that has no listener; errors with `EADDRINUSE` if it has one, and if
    /// something else than a socket has the name. The permission to connect is the path's write permission: the owner's
    /// only, unless it is changed later.
    pub fn bind(name: &Path) -> std::io::Result<Self> {
        let path = (!name.as_os_str().as_encoded_bytes().starts_with(b"@")).then(|| name.to_owned());
        Ok(Self { fd: broker::listen(name)?, path })
    }

    /// Accepts the next connection. `None` if there is none.
    pub fn accept(&self) -> Option<Channel> {
        accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok().map(Channel)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = broker::remove(path, None);
        }
    }
}

/// Control connection to one peer.
pub struct Channel(pub OwnedFd);

/// Result of receiving from a channel.
pub enum Came {
    Nothing,
    Message(Message, Option<OwnedFd>),
    Wrong(Refusal),
    /// The peer closed its end, or the socket failed.
    End,
}

impl Channel {
    /// Connects to the server that listens at `name`. Errors with `PermissionDenied` if it runs as another user than
    /// root, the user of this process, or `peer`.
    pub fn connect(name: &Path, peer: Option<u32>) -> std::io::Result<Self> {
        let fd = broker::connect(name, None)?;
        let user = broker::peer(&fd)?.user;
        if user == 0 || user == geteuid().as_raw() || peer == Some(user) {
            return Ok(Self(fd));
        }
        let why = format!("the server runs as user {user}, who is not trusted: `peer` names one who is");
        Err(Error::new(ErrorKind::PermissionDenied, why))
    }

    /// Sends a message without blocking. Errors if the peer's receive queue is full.
    pub fn send(&self, message: &Message, fd: Option<&OwnedFd>) -> std::io::Result<()> {
        let bytes = message.bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd.as_fd()]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Sends the reason for the disconnection, best effort. Discards unread messages first: if the socket is closed
    /// while any are left, the kernel signals a connection reset to the peer instead of delivering the reason.
    pub fn end(&self, why: Refusal) {
        for _ in 0..UNHEARD {
            if !matches!(self.receive(), Came::Message(..) | Came::Wrong(_)) {
                break;
            }
        }
        let _ = self.send(&Message::Disconnect { code: 0, reason: why.to_string() }, None);
    }

    /// Receives the next message without blocking.
    pub fn receive(&self) -> Came {
        let mut bytes = [0; SIZE];
        // A message carries one descriptor at most. The kernel closes those that do not fit.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let got = match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Came::Nothing,
            Err(_) => return Came::End,
        };
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fds.for_each(|one| fd = Some(one));
            }
        }
        match got.bytes {
            0 => Came::End,
            SIZE => {
                Message::read(&bytes).map_or(Came::Wrong(Refusal::MessageType), |message| Came::Message(message, fd))
            }
            _ => Came::Wrong(Refusal::MessageSize),
        }
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "channel {}", self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_the_name_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("memif.sock");
        std::fs::write(&name, "precious").unwrap();
        let why = Listener::bind(&name).map(drop).unwrap_err();
        assert!(why.to_string().contains("not a socket: move it"), "{why}");
        assert_eq!(std::fs::read(&name).unwrap(), b"precious");
        std::fs::remove_file(&name).unwrap();
        // A socket without a listener is.
        drop(std::os::unix::net::UnixListener::bind(&name).unwrap());
        drop(Listener::bind(&name).unwrap());
    }

    #[test]
    fn a_server_of_another_user_gets_nothing() {
        const NOBODY: u32 = 65534;
        if !geteuid().is_root() {
            println!("SKIP: root is needed to listen as another user");
            return;
        }
        let name = PathBuf::from(format!("@bywash-test-{}", std::process::id()));
        // The credentials of a server are those of the thread that listens.
        let listening = {
            let name = name.clone();
            std::thread::spawn(move || {
                let nobody = rustix::process::Uid::from_raw(NOBODY);
                let changed = rustix::thread::set_thread_res_uid(nobody, nobody, nobody);
                changed.map(|()| Listener::bind(&name).unwrap())
            })
        };
        let listener = match listening.join().unwrap() {
            Ok(listener) => listener,
            Err(why) => return println!("SKIP: no other user to listen as: {why}"),
        };
        let why = Channel::connect(&name, None).map(drop).unwrap_err();
        assert_eq!(why.to_string(), "the server runs as user 65534, who is not trusted: `peer` names one who is");
        assert!(Channel::connect(&name, Some(1)).is_err());
        assert!(Channel::connect(&name, Some(NOBODY)).is_ok());
        drop(listener);
        let _own = Listener::bind(&name).unwrap();
        assert!(Channel::connect(&name, None).is_ok());
    }
}
