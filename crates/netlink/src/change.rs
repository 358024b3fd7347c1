//! Changes the kernel's routes in bulk, for benchmarks and tests that measure the cost of following them.

use crate::uapi::*;
use bywash_nl::Error;
use bywash_nl::socket::{DATAGRAM, Received, Socket};
use bywash_nl::wire::{NLM_F_CREATE, Request, u32_at};
use rustix::io::Errno;
use std::net::Ipv4Addr;

/// Changes per system call.
pub const AT_ONCE: usize = 100;

/// Encoded route changes, in pieces of [`AT_ONCE`]; the last may be shorter.
#[derive(Clone, Debug, Default)]
pub struct Changes(Vec<Vec<u8>>);

impl Changes {
    /// Returns the changes that add or replace IPv4 routes of table main to `prefixes`, by `gateway` on the interface
    /// of this index.
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

    /// Returns the number of pieces, each one system call.
    pub fn pieces(&self) -> usize {
        self.0.len()
    }
}

/// Changes the kernel's routes, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Changer {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Changer {
    /// Opens a netlink socket. Changing routes requires CAP_NET_ADMIN.
    ///
    /// # Errors
    /// If no netlink socket can be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(&[], 1 << 20)?, buffer: vec![0; DATAGRAM] })
    }

    /// Applies piece `n` of `changes`; the kernel has applied all of it on return.
    ///
    /// # Errors
    /// With the kernel's reason for the first change that it refuses.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn make(&mut self, changes: &Changes, n: usize) -> Result<(), Error> {
        self.socket.send_bytes(&changes.0[n])?;
        // Without NLM_F_ACK the kernel answers only refused requests, and does so within the send call.
        let refused = match self.socket.receive(&mut self.buffer)? {
            Received::Empty => return Ok(()),
            Received::Lost => Errno::NOBUFS,
            Received::Datagram(length) => {
                let code = u32_at(&self.buffer[..length], 16).unwrap_or(0) as i32;
                Errno::from_raw_os_error(code.saturating_neg())
            }
        };
        Err(Error::Socket { doing: "change routes through", source: refused.into() })
    }
}
