//! Changing the kernel's routes, by the hundred: for benchmarks and tests, which want to know what following them costs.

use crate::error::Error;
use crate::socket::{DATAGRAM, Received, Socket};
use crate::uapi::*;
use crate::wire::Request;
use rustix::io::Errno;
use std::net::Ipv4Addr;

/// Changes in one system call.
pub const AT_ONCE: usize = 100;

/// Changes as the kernel wants them, [`AT_ONCE`] a piece but for the last.
#[derive(Clone, Debug, Default)]
pub struct Changes(Vec<Vec<u8>>);

impl Changes {
    /// IPv4 routes of table main to `prefixes`, by `gateway` on the interface of this index, in the place of those there are.
    pub fn replace(prefixes: &[(Ipv4Addr, u8)], gateway: Ipv4Addr, index: u32) -> Self {
        let one = |(to, len): &(Ipv4Addr, u8)| {
            let mut body = [0; 12];
            (body[0], body[1], body[4], body[5]) = (AF_INET, *len, RT_TABLE_MAIN, RTPROT_STATIC);
            body[7] = RTN_UNICAST;
            Request::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, 0, &body)
                .attribute(RTA_DST, &to.octets())
                .attribute(RTA_GATEWAY, &gateway.octets())
                .attribute(RTA_OIF, &index.to_ne_bytes())
        };
        let piece = |prefixes: &[(Ipv4Addr, u8)]| prefixes.iter().flat_map(|p| one(p).bytes().to_vec()).collect();
        Self(prefixes.chunks(AT_ONCE).map(piece).collect())
    }

    /// System calls they take.
    pub fn pieces(&self) -> usize {
        self.0.len()
    }
}

/// A way to the kernel's routes, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Changer {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Changer {
    /// Opens it. To change anything with it CAP_NET_ADMIN is needed.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(&[], 1 << 20)?, buffer: vec![0; DATAGRAM] })
    }

    /// Makes piece `n` of `changes`; the kernel has made them all when this returns.
    ///
    /// # Errors
    /// The kernel's reason for the first that it refuses.
    ///
    /// # Panics
    /// When there is no such piece.
    pub fn make(&mut self, changes: &Changes, n: usize) -> Result<(), Error> {
        self.socket.send_bytes(&changes.0[n])?;
        // Unasked it answers only to what it refuses, and within the call.
        let refused = match self.socket.receive(&mut self.buffer)? {
            Received::Empty => return Ok(()),
            Received::Lost => Errno::NOBUFS,
            Received::Datagram(length) => {
                let code = crate::wire::u32_at(&self.buffer[..length], 16).unwrap_or(0) as i32;
                Errno::from_raw_os_error(code.saturating_neg())
            }
        };
        Err(Error::Socket { doing: "change routes by", source: refused.into() })
    }
}
