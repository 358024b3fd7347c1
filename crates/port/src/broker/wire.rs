//! Messages between a process and its broker: JSON with descriptors, one datagram each.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Longest message in bytes.
const MESSAGE: usize = 64 << 10;
/// Maximum number of descriptors of a message.
const FDS: usize = 96;

/// Sends a message with descriptors.
pub fn send(socket: &OwnedFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    post(socket, &serde_json::to_vec(message)?, fds)
}

/// Sends the text of a message with descriptors.
pub(super) fn post(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other(format!("{} descriptors: at most {FDS}", fds.len())));
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// Receives a message with descriptors; `None` if the other end is closed.
pub fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let Some((text, fds)) = receive_into(socket, &mut bytes, &mut space)? else { return Ok(None) };
    Ok(Some((serde_json::from_slice(text)?, fds)))
}

/// Receives the text of a message into `bytes`, with as many descriptors as `space` has room for; the kernel closes the
/// others. `None` if the other end is closed. Errors if the text does not fit.
pub fn receive_into<'a>(
    socket: &OwnedFd,
    bytes: &'a mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<Option<(&'a [u8], Vec<OwnedFd>)>> {
    let mut control = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Ok(got) => break got.bytes,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(why) => return Err(why.into()),
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
    Ok(Some((text, fds)))
}
