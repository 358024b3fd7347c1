//! Asks the kernel for the MTU of paths.

use crate::error::Error;
use crate::socket::{DATAGRAM, Socket};
use crate::uapi::*;
use crate::wire::{Attributes, u32_at};
use std::net::Ipv4Addr;

/// Socket that asks for the MTU of paths.
#[derive(Debug)]
pub struct Paths {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Paths {
    /// Opens the socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(&[], 64 << 10)?, buffer: vec![0; DATAGRAM] })
    }

    /// Returns the MTU in bytes of the path from an address of this host to another host, by the route or as learned
    /// from ICMP errors; `u32::MAX` if it is the MTU of the interface; `None` if there is no route. The kernel does not
    /// announce what it learns.
    pub fn mtu(&mut self, from: Ipv4Addr, to: Ipv4Addr, link: u32) -> Option<u32> {
        // struct rtmsg: family, lengths of destination and source, and nothing else; then the attributes.
        let mut body = vec![AF_INET, 32, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut put = |kind: u16, value: [u8; 4]| {
            body.extend(8u16.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(value);
        };
        put(RTA_DST, to.octets());
        put(RTA_SRC, from.octets());
        if link != 0 {
            put(RTA_OIF, link.to_ne_bytes());
        }
        let mut mtu = None;
        let asked = self.socket.ask(RTM_GETROUTE, &body, &mut self.buffer, |message| {
            let metrics = Attributes::after(message.body, 12).find(|(kind, _)| *kind == RTA_METRICS);
            let of = |(_, metrics): (u16, &[u8])| {
                let mtu = Attributes::after(metrics, 0).find(|(kind, _)| *kind == RTAX_MTU);
                mtu.and_then(|(_, mtu)| u32_at(mtu, 0))
            };
            mtu = Some(metrics.and_then(of).unwrap_or(u32::MAX));
        });
        asked.ok().and(mtu)
    }
}
