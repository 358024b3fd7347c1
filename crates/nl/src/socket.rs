//! A netlink socket, bound to the network namespace of the thread that opens it.

use crate::error::Error;
use crate::membership;
use crate::wire::{
    Message, Messages, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, Request, u32_at,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::time::Duration;

/// Longest wait for an answer before a request is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Size of a receive buffer, in octets. Dump datagrams have at most 32 KiB; a notification can be longer.
pub const DATAGRAM: usize = 64 << 10;

/// Result of one receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A datagram of this many octets.
    Datagram(usize),
    /// No message is pending.
    Empty,
    /// Messages were lost: the buffer was full, or one was longer than [`DATAGRAM`].
    Lost,
}

/// Outcome of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dumped {
    /// The dump is complete.
    Whole,
    /// The tables changed during the dump and objects may be missing (NLM_F_DUMP_INTR).
    Interrupted,
    /// The kernel does not support such objects.
    Unsupported,
}

/// A netlink socket, read by one thread.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens a routing socket (`NETLINK_ROUTE`, protocol 0); see [`Socket::open_protocol`].
    ///
    /// # Errors
    /// See [`Socket::open_protocol`].
    pub fn open(groups: &[u32], receive_buffer: usize) -> Result<Self, Error> {
        Self::open_protocol(None, groups, receive_buffer)
    }

    /// Opens a socket of a netlink protocol that receives multicast `groups`, with a receive buffer of `receive_buffer`
    /// octets (as far as the system allows).
    ///
    /// # Errors
    /// If the kernel lacks the protocol or refuses the socket.
    pub fn open_protocol(protocol: Option<Protocol>, groups: &[u32], receive_buffer: usize) -> Result<Self, Error> {
        let opening = |source: Errno| Error::Socket { doing: "open", source: source.into() };
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
            .map_err(opening)?;
        // A size above net.core.rmem_max requires CAP_NET_ADMIN.
        if sockopt::set_socket_recv_buffer_size_force(&fd, receive_buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&fd, receive_buffer).map_err(opening)?;
        }
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(opening)?;
        let socket = Self { fd, sequence: 0 };
        groups.iter().try_for_each(|group| socket.join(*group))?;
        Ok(socket)
    }

    /// Also receives the messages of a multicast group from now on.
    ///
    /// # Errors
    /// If the protocol has no such group, or the process may not receive its messages.
    pub fn join(&self, group: u32) -> Result<(), Error> {
        membership::join(&self.fd, group).map_err(|source| Error::Socket { doing: "subscribe to", source })
    }

    /// Sends the request that `build` makes from a fresh sequence number, and returns that number.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn send(&mut self, build: impl FnOnce(u32) -> Request) -> Result<u32, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        self.send_bytes(build(self.sequence).bytes())?;
        Ok(self.sequence)
    }

    /// Sends requests that are already encoded.
    ///
    /// # Errors
    /// If the kernel refuses them.
    pub fn send_bytes(&self, requests: &[u8]) -> Result<(), Error> {
        #[cfg(debug_assertions)]
        if crate::fault::strikes() {
            return Err(Error::Socket { doing: "send to", source: Errno::NOBUFS.into() });
        }
        loop {
            match rustix::net::send(&self.fd, requests, SendFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::Socket { doing: "send to", source: error.into() }),
            }
        }
    }

    /// Receives a datagram without waiting. Datagrams that are not from the kernel are discarded.
    ///
    /// # Errors
    /// If the socket fails; an overflow of its buffer is [`Received::Lost`].
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received, Error> {
        #[cfg(debug_assertions)]
        if crate::fault::strikes() {
            return Ok(Received::Lost);
        }
        loop {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match rustix::net::recvfrom(&self.fd, &mut *buffer, flags) {
                Ok((_, length, from)) => {
                    let kernel = from.is_none_or(|a| SocketAddrNetlink::try_from(a).is_ok_and(|a| a.pid() == 0));
                    return Ok(match kernel {
                        // Other processes can send to this socket; only the kernel's messages are trusted.
                        false => continue,
                        true if length > buffer.len() => Received::Lost,
                        true => Received::Datagram(length),
                    });
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Empty),
                Err(Errno::NOBUFS) => return Ok(Received::Lost),
                Err(error) => return Err(Error::Socket { doing: "receive from", source: error.into() }),
            }
        }
    }

    /// Requests a dump of all objects of a kind, hands each message to `each`, and calls `between` after every
    /// datagram.
    ///
    /// # Errors
    /// If the kernel refuses the request or does not answer within 30 seconds, or if `between` fails.
    pub fn dump(
        &mut self,
        kind: u16,
        body: &[u8],
        attributes: &[(u16, &[u8])],
        buffer: &mut [u8],
        mut each: impl FnMut(&Message<'_>),
        mut between: impl FnMut() -> Result<(), Error>,
    ) -> Result<Dumped, Error> {
        let sequence = self.send(|sequence| {
            let request = Request::new(kind, NLM_F_DUMP, sequence, body);
            attributes.iter().fold(request, |request, (kind, value)| request.attribute(*kind, value))
        })?;
        let mut interrupted = false;
        loop {
            let length = match self.receive(buffer)? {
                Received::Datagram(length) => length,
                Received::Lost => {
                    interrupted = true;
                    continue;
                }
                Received::Empty => {
                    self.wait(PATIENCE)?;
                    continue;
                }
            };
            for message in Messages::new(&buffer[..length]).filter(|message| message.sequence == sequence) {
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    // A dump that fails midway ends with the error (dump_done_errno).
                    NLMSG_DONE if code(message.body) < 0 => return dump_error(message.body),
                    NLMSG_DONE if interrupted => return Ok(Dumped::Interrupted),
                    NLMSG_DONE => return Ok(Dumped::Whole),
                    NLMSG_ERROR => return dump_error(message.body),
                    _ => each(&message),
                }
            }
            between()?;
        }
    }

    /// Sends a request that is not a dump and hands each message of the answer to `each`.
    ///
    /// # Errors
    /// If the kernel refuses the request, with its reason as the source, or does not answer within 30 seconds.
    pub fn ask(
        &mut self,
        kind: u16,
        body: &[u8],
        buffer: &mut [u8],
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<(), Error> {
        let asking = |source: Errno| Error::Socket { doing: "ask", source: source.into() };
        let sequence = self.send(|sequence| Request::new(kind, NLM_F_ACK, sequence, body))?;
        loop {
            let length = match self.receive(buffer)? {
                Received::Datagram(length) => length,
                Received::Lost => return Err(asking(Errno::NOBUFS)),
                Received::Empty => {
                    self.wait(PATIENCE)?;
                    continue;
                }
            };
            for message in Messages::new(&buffer[..length]).filter(|message| message.sequence == sequence) {
                match (message.kind, code(message.body)) {
                    (NLMSG_ERROR, 0) => return Ok(()),
                    (NLMSG_ERROR, code) => return Err(asking(Errno::from_raw_os_error(code.saturating_neg()))),
                    _ => each(&message),
                }
            }
        }
    }

    fn wait(&self, patience: Duration) -> Result<(), Error> {
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => Err(Error::Silent),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Socket { doing: "wait for", source: error.into() }),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the negative error number at the head of `NLMSG_ERROR` and `NLMSG_DONE`.
fn code(body: &[u8]) -> i32 {
    u32_at(body, 0).unwrap_or(0) as i32
}

fn dump_error(body: &[u8]) -> Result<Dumped, Error> {
    match Errno::from_raw_os_error(code(body).saturating_neg()) {
        Errno::OPNOTSUPP | Errno::AFNOSUPPORT | Errno::INVAL => Ok(Dumped::Unsupported),
        error => Err(Error::Socket { doing: "dump from", source: error.into() }),
    }
}
