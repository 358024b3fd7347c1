//! Promiscuous mode of an interface for the lifetime of a value.

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Keeps an interface promiscuous (packet(7), `PACKET_MR_PROMISC`). The kernel counts the requests and drops this one
/// when the socket is closed, however the process ends: nothing has to be restored.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Makes the interface with this kernel index promiscuous.
    ///
    /// # Errors
    /// The kernel's error, such as EPERM without CAP_NET_RAW.
    pub fn new(index: u32) -> io::Result<Self> {
        // Protocol 0: the socket itself receives nothing.
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let mut wanted = libc::packet_mreq {
            mr_ifindex: index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let size = size_of::<libc::packet_mreq>() as libc::socklen_t;
        // SAFETY: the option takes a packet_mreq, which outlives the call.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw mut wanted).cast(),
                size,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { _socket: socket }) }
    }
}
