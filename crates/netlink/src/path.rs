//! Asks the kernel for what it knows of paths.

use crate::parse::{Leg, ip, leg_attribute};
use crate::uapi::*;
use bywash_nl::Error;
use bywash_nl::socket::{DATAGRAM, Socket};
use bywash_nl::wire::{Attributes, attribute, u32_at};
use std::net::IpAddr;

/// A path to another host, as far as it differs from its interface and from the host's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// MTU in bytes, of the route or as learned from ICMP errors.
    pub mtu: Option<u32>,
    /// TTL or hop limit of packets that the host sends.
    pub ttl: Option<u8>,
    /// Kernel index of the interface by which it leads.
    pub index: u32,
    /// Gateway; `None` for a host on the link.
    pub gateway: Option<IpAddr>,
    /// Source address of packets that the host sends without having chosen one.
    pub source: Option<IpAddr>,
}

/// Socket that asks for paths.
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

    /// Returns the path from an address of this host, or from any if it is unspecified, to another host, by the
    /// interface `link` unless it is 0; `None` if there is no route, or if its MTU is locked: the kernel then clears
    /// the DF bit of what it sends (ip_mtu_locked). Both addresses are of one family. The kernel sends no notification
    /// of what it learns of paths.
    pub fn to(&mut self, from: IpAddr, to: IpAddr, link: u32) -> Option<Path> {
        let octets = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => addr.octets().to_vec(),
            IpAddr::V6(addr) => addr.octets().to_vec(),
        };
        let (family, len) = if to.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
        // struct rtmsg: family, lengths of destination and source, and nothing else; then the attributes.
        let from = Some(from).filter(|from| !from.is_unspecified());
        let mut body = vec![family, len, if from.is_some() { len } else { 0 }, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        body.extend(attribute(RTA_DST, &octets(to)));
        body.extend(from.map(|from| attribute(RTA_SRC, &octets(from))).into_iter().flatten());
        if link != 0 {
            body.extend(attribute(RTA_OIF, &link.to_ne_bytes()));
        }
        let mut path = None;
        let asked = self.socket.ask(RTM_GETROUTE, &body, &mut self.buffer, |message| {
            let metrics = Attributes::after(message.body, 12).find(|(kind, _)| *kind == RTA_METRICS);
            let metrics = metrics.map_or(&[][..], |(_, metrics)| metrics);
            let metric = |wanted| {
                let found = Attributes::after(metrics, 0).find(|(kind, _)| *kind == wanted);
                found.and_then(|(_, value)| u32_at(value, 0)).filter(|value| *value != 0)
            };
            if metric(RTAX_LOCK).is_some_and(|locked| locked & 1 << RTAX_MTU != 0) {
                return;
            }
            let (mut leg, mut source) = (Leg::of(0), None);
            for (kind, value) in Attributes::after(message.body, 12) {
                match kind {
                    RTA_PREFSRC => source = ip(family, value),
                    _ => leg_attribute(family, kind, value, &mut leg),
                }
            }
            path = Some(Path {
                mtu: metric(RTAX_MTU),
                ttl: metric(RTAX_HOPLIMIT).map(|ttl| ttl as u8),
                index: leg.index,
                gateway: leg.gateway,
                source,
            });
        });
        asked.ok().and(path)
    }
}
