//! Handing the kernel a packet that user space has taken: its way out is an interface that is not a port.
//!
//! It goes by a raw socket, as if this host had made it: the kernel looks the route up, resolves the neighbour and
//! sends. What differs from a packet forwarded by the kernel: it meets netfilter's OUTPUT chain instead of FORWARD,
//! and one larger than the way out takes is lost without an ICMP error.

use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::{ipv4, ipv6};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;

/// Raw sockets, one per family. `IPPROTO_RAW`: the header is in the packet (raw(7)); nothing is received by them.
pub struct Punt {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
    /// Packets the kernel refused.
    refused: u64,
}

impl Punt {
    /// Opens both; one that cannot be had (a kernel without IPv6) is done without. Needs CAP_NET_RAW.
    pub fn open() -> Self {
        let open = |family| {
            socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(ipproto::RAW)).ok()
        };
        Self { v4: open(AddressFamily::INET), v6: open(AddressFamily::INET6), refused: 0 }
    }

    /// Hands over the packet in a frame and charges it with its hop; the router has found it sound.
    pub fn hand(&mut self, frame: &mut [u8]) {
        if self.try_hand(frame).is_none() {
            if self.refused == 0 {
                tracing::warn!("the kernel refused a packet that leaves by an interface that is no port; said once");
            }
            self.refused += 1;
        }
    }

    fn try_hand(&self, frame: &mut [u8]) -> Option<usize> {
        let ip = frame.get_mut(HEADER_LEN..)?;
        if ip.first()? >> 4 == 6 {
            ip.first_chunk_mut().filter(|header| header[7] > 1).map(ipv6::decrement_hop_limit)?;
            let len = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            let to = Ipv6Addr::from(*ip.get(24..)?.first_chunk::<16>()?);
            sendto(self.v6.as_ref()?, ip.get(..len)?, SendFlags::empty(), &SocketAddrV6::new(to, 0, 0, 0)).ok()
        } else {
            ip.first_chunk_mut().filter(|header| header[8] > 1).map(ipv4::decrement_ttl)?;
            let len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            let to = Ipv4Addr::from(*ip.get(16..)?.first_chunk::<4>()?);
            sendto(self.v4.as_ref()?, ip.get(..len)?, SendFlags::empty(), &SocketAddrV4::new(to, 0)).ok()
        }
    }
}
