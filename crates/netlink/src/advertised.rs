//! Router advertisements, by which the kernel changes IPv6 routes without a message: it shortens their lifetimes
//! (fib6_set_expires) and lowers their MTUs (rt6_mtu_change).

#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto};

/// Type of a router advertisement (RFC 4861, 4.2).
const ADVERTISEMENT: usize = 134;
/// Option of a raw ICMPv6 socket with the types that it does not receive (RFC 3542, 3.2).
const ICMP6_FILTER: libc::c_int = 1;
/// Advertisements that are taken from the socket at a time: a flood of them is not followed.
const TURN: usize = 256;

/// A socket that receives a copy of each router advertisement to this host.
#[derive(Debug)]
pub struct Advertisements(OwnedFd);

impl Advertisements {
    /// Opens the socket in the calling thread's network namespace; `None` without IPv6.
    ///
    /// # Errors
    /// If the process may not open such a socket (CAP_NET_RAW).
    pub fn open() -> std::io::Result<Option<Self>> {
        let (family, kind) = (AddressFamily::INET6, SocketType::RAW);
        let fd = match rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(ipproto::ICMPV6)) {
            Ok(fd) => fd,
            Err(Errno::AFNOSUPPORT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut blocked = [u32::MAX; 8];
        blocked[ADVERTISEMENT / 32] &= !(1 << (ADVERTISEMENT % 32));
        let (level, length) = (libc::IPPROTO_ICMPV6, size_of_val(&blocked) as u32);
        // SAFETY: setsockopt(2) reads the 32 bytes of `blocked`, which outlives the call.
        let failed =
            unsafe { libc::setsockopt(fd.as_raw_fd(), level, ICMP6_FILTER, (&raw const blocked).cast(), length) };
        if failed == 0 { Ok(Some(Self(fd))) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Takes the received advertisements and returns whether there were any.
    pub fn receive(&self) -> bool {
        let one = || rustix::net::recvfrom(&self.0, &mut [0u8; 8][..], RecvFlags::DONTWAIT).is_ok();
        (0..TURN).take_while(|_| one()).count() > 0
    }
}

impl AsFd for Advertisements {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
