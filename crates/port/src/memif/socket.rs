//! Control socket: `SOCK_SEQPACKET` of the unix domain, named by a path or, with a leading `@`, an abstract name.

use super::message::{Message, SIZE};
use super::refusal::Refusal;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};
use std::io::{Error, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Maximum number of unread messages discarded before the disconnect message.
const UNHEARD: usize = 64;

fn address(name: &Path) -> std::io::Result<SocketAddrUnix> {
    Ok(match name.as_os_str().as_encoded_bytes() {
        [b'@', abstract_name @ ..] => SocketAddrUnix::new_abstract_name(abstract_name)?,
        _ => SocketAddrUnix::new(name)?,
    })
}

fn socket() -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listening socket. Dropping it removes its path.
pub struct Listener {
    pub fd: OwnedFd,
    path: Option<PathBuf>,
}

impl Listener {
    /// Listens at `name`. Replaces a stale path that has no listener; errors with `EADDRINUSE` if there is one. The
    /// permission to connect is the path's write permission: the owner's only, unless it is changed later.
    pub fn bind(name: &Path) -> std::io::Result<Self> {
        let (fd, address) = (socket()?, address(name)?);
        let path = (!name.as_os_str().as_encoded_bytes().starts_with(b"@")).then(|| name.to_owned());
        if let Some(path) = &path
            && path.exists()
        {
            if connect(&socket()?, &address) != Err(Errno::CONNREFUSED) {
                return Err(Error::from(Errno::ADDRINUSE));
            }
            std::fs::remove_file(path)?;
        }
        if path.is_some() {
            // Set before bind, which creates the path with this mode, less the umask.
            rustix::fs::fchmod(&fd, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        }
        bind(&fd, &address)?;
        listen(&fd, 8)?;
        Ok(Self { fd, path })
    }

    /// Accepts the next connection. `None` if there is none.
    pub fn accept(&self) -> Option<Channel> {
        accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok().map(Channel)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
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
    /// Connects to the server that listens at `name`.
    pub fn connect(name: &Path) -> std::io::Result<Self> {
        let fd = socket()?;
        connect(&fd, &address(name)?)?;
        Ok(Self(fd))
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
