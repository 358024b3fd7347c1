//! Multicast groups of a netlink socket (netlink(7), NETLINK_ADD_MEMBERSHIP): bind(2) takes only the first 32.

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd};

/// Makes a netlink socket receive the messages of a multicast group.
///
/// # Errors
/// If the protocol has no such group, or the process may not receive its messages.
pub fn join(socket: impl AsFd, group: u32) -> std::io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let (level, option) = (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP);
    // SAFETY: setsockopt(2) reads the four bytes of `group`, which outlives the call.
    let failed = unsafe { libc::setsockopt(fd, level, option, (&raw const group).cast(), size_of_val(&group) as u32) };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
