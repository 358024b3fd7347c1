//! Connected sockets of this host with an address that it no longer has.
//!
//! The kernel finds the socket of a packet before its route (early demultiplexing), and drops a packet to be forwarded
//! that has one (ip_forward, ip6_forward). So when an address moves to another host while connections to it are open,
//! the kernel does not forward packets of these connections until their sockets are closed.

use crate::dump::dump;
use crate::effect::{Effect, Kind, Scope};
use bywash_fib::model::{Prefix, is_host};
use bywash_nl::socket::Socket;
use bywash_nl::wire::{Attributes, Message, attribute, u8_at};
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

// linux/rtnetlink.h, linux/if_addr.h
pub const RTM_DELADDR: u16 = 21;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
pub const RTNLGRP_IPV4_IFADDR: u32 = 5;
pub const RTNLGRP_IPV6_IFADDR: u32 = 9;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
// linux/sock_diag.h, linux/inet_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_REQ_BYTECODE: u16 = 1;
const INET_DIAG_BC_S_COND: u8 = 7;
/// Protocols, with the states of sockets that early demultiplexing finds, as bits (net/tcp_states.h): all but closed
/// and listening ones for TCP, connected ones for UDP.
const PROTOCOLS: [(i32, u32); 2] = [(libc::IPPROTO_TCP, 0x1fff & !(1 << 7 | 1 << 10)), (libc::IPPROTO_UDP, 1 << 1)];

/// Interval between questions about one of the addresses: the kernel walks all its sockets for an answer.
const INTERVAL: Duration = Duration::from_millis(100);
/// Number of new addresses that are asked about at once; the others are taken to have sockets until their turn.
const AT_ONCE: usize = 4;
/// Maximum number of addresses; those asked about last are forgotten.
const MOST: usize = 1024;

/// Returns the address that an interface has lost (`RTM_DELADDR`, struct ifaddrmsg); `None` for one that no packets are
/// forwarded to.
pub fn lost(message: &Message<'_>) -> Option<IpAddr> {
    let of = |wanted| Attributes::after(message.body, 8).find(|(kind, _)| *kind == wanted);
    let (_, addr) = of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?;
    address(addr).filter(|addr| is_host(*addr))
}

/// Returns an address whose length tells its family; an IPv4 address for one that is mapped to IPv6.
fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(octets).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(octets).ok().map(|octets| IpAddr::from(octets).to_canonical()))
}

/// An address that this host has lost, or never had.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// Sockets have not been looked for yet.
    Unasked,
    /// A connected socket has it.
    Connected,
    /// Sockets cannot be listed, with the reason.
    Unknown(String),
}

/// Addresses that this host does not have, and that its connected sockets may have.
#[derive(Debug)]
pub struct Lost {
    /// In the order in which they are asked about.
    all: VecDeque<(IpAddr, Found)>,
    asked_at: Instant,
    /// Set if sockets must be looked for whose addresses are not known.
    unseen: bool,
    /// Set if the effects have changed since they were last returned.
    news: bool,
    /// Socket of the protocol NETLINK_SOCK_DIAG; `None` if the kernel lacks that.
    socket: Option<Socket>,
}

impl Lost {
    /// Creates an empty list. Sockets from before are looked for at the first [`Lost::poll`].
    pub fn new(socket: Option<Socket>) -> Self {
        Self { all: VecDeque::new(), asked_at: Instant::now(), unseen: true, news: false, socket }
    }

    /// Adds an address that an interface has lost.
    pub fn add(&mut self, addr: IpAddr) {
        self.all.retain(|(other, _)| *other != addr);
        self.all.push_front((addr, Found::Unasked));
        self.all.truncate(MOST);
    }

    /// Records that announcements of lost addresses may have been missed.
    pub fn missed(&mut self) {
        self.unseen = true;
    }

    /// Asks about an address if one is due, and returns whether that has changed the effects. `routes` is a socket for
    /// requests about routes.
    pub fn poll(&mut self, routes: &mut Socket, buffer: &mut [u8]) -> bool {
        if std::mem::take(&mut self.unseen) {
            let new = self.unknown_addresses(routes, buffer);
            self.all.extend(new.iter().map(|addr| (*addr, Found::Connected)));
            return !new.is_empty();
        }
        if self.all.is_empty() || self.asked_at.elapsed() < INTERVAL {
            return false;
        }
        self.asked_at = Instant::now();
        let Some((addr, before)) = self.all.pop_front() else { return false };
        let now = if is_local(routes, addr, buffer) { None } else { self.find(addr, buffer) };
        self.all.extend(now.clone().map(|now| (addr, now)));
        let unasked = |(_, found): &(IpAddr, Found)| *found == Found::Unasked;
        // A reading closes the gates. While there are new addresses, whose packets are left to the kernel, it waits.
        self.news |= now != Some(before);
        !self.all.iter().any(unasked) && std::mem::take(&mut self.news)
    }

    /// Returns the effects of the sockets, after looking for those with some of the new addresses.
    pub fn effects(&mut self, buffer: &mut [u8]) -> Vec<Effect> {
        self.news = false;
        // These may still be local: the kernel announces the loss before it removes the route (__inet_del_ifa).
        let new: Vec<IpAddr> =
            self.all.iter().filter(|(_, found)| *found == Found::Unasked).map(|(addr, _)| *addr).collect();
        for addr in new.into_iter().take(AT_ONCE) {
            let found = self.find(addr, buffer);
            self.all.retain(|(other, _)| *other != addr);
            self.all.extend(found.map(|found| (addr, found)));
        }
        self.all.iter().map(|(addr, found)| effect(*addr, found)).collect()
    }

    /// Looks for sockets with an address; `None` if there are none.
    fn find(&mut self, addr: IpAddr, buffer: &mut [u8]) -> Option<Found> {
        match self.connected(Some(addr), buffer) {
            Ok(found) => (!found.is_empty()).then_some(Found::Connected),
            Err(why) => Some(Found::Unknown(why)),
        }
    }

    /// Returns the local addresses of connected sockets that are not this host's. Without an answer, none: this is a
    /// precaution.
    fn unknown_addresses(&mut self, routes: &mut Socket, buffer: &mut [u8]) -> Vec<IpAddr> {
        let all = self.connected(None, buffer).unwrap_or_default();
        let known = |addr: &IpAddr| self.all.iter().any(|(other, _)| other == addr);
        all.into_iter().filter(|addr| is_host(*addr) && !known(addr) && !is_local(routes, *addr, buffer)).collect()
    }

    /// Returns the local addresses of connected sockets: only this one, which the kernel selects, or all.
    ///
    /// # Errors
    /// If the kernel does not list sockets (CONFIG_INET_DIAG), or refuses to.
    fn connected(&mut self, addr: Option<IpAddr>, buffer: &mut [u8]) -> Result<BTreeSet<IpAddr>, String> {
        let socket = self.socket.as_mut().ok_or("the kernel has no NETLINK_SOCK_DIAG")?;
        let code = addr.map(selecting);
        let mut all = BTreeSet::new();
        // A socket of IPv6 may have an address of IPv4.
        let families = [libc::AF_INET, libc::AF_INET6];
        for family in
            families.into_iter().filter(|family| *family == libc::AF_INET6 || addr.is_none_or(|a| a.is_ipv4()))
        {
            for (protocol, states) in PROTOCOLS {
                // struct inet_diag_req_v2
                let mut body = [0; 56];
                (body[0], body[1]) = (family as u8, protocol as u8);
                body[4..8].copy_from_slice(&states.to_ne_bytes());
                let attributes = code.iter().map(|code| (INET_DIAG_REQ_BYTECODE, &code[..])).collect::<Vec<_>>();
                let one = |message: &Message<'_>| match message.kind {
                    SOCK_DIAG_BY_FAMILY => local(message.body).map(Some).ok_or(()),
                    _ => Ok(None),
                };
                let found = dump(socket, SOCK_DIAG_BY_FAMILY, &body, &attributes, buffer, one)?;
                all.extend(found.ok_or("the kernel does not list sockets (CONFIG_INET_DIAG)")?);
            }
            if addr.is_some() && !all.is_empty() {
                break;
            }
        }
        Ok(all)
    }
}

/// Returns the family and the octets of an address.
fn parts(addr: IpAddr) -> (u8, Vec<u8>) {
    match addr {
        IpAddr::V4(addr) => (libc::AF_INET as u8, addr.octets().to_vec()),
        IpAddr::V6(addr) => (libc::AF_INET6 as u8, addr.octets().to_vec()),
    }
}

/// Returns the local address of a socket (struct inet_diag_msg).
fn local(body: &[u8]) -> Option<IpAddr> {
    let len = if i32::from(u8_at(body, 0)?) == libc::AF_INET { 4 } else { 16 };
    address(body.get(8..8 + len)?)
}

/// Returns the code that selects sockets with a local address: struct inet_diag_bc_op, and struct inet_diag_hostcond
/// with any port.
fn selecting(addr: IpAddr) -> Vec<u8> {
    let (family, octets) = parts(addr);
    let len = 4 + 8 + octets.len();
    let op = [&[INET_DIAG_BC_S_COND, len as u8][..], &(len as u16 + 4).to_ne_bytes()].concat();
    let condition = [&[family, 8 * octets.len() as u8, 0, 0][..], &(-1i32).to_ne_bytes(), &octets].concat();
    [op, condition].concat()
}

/// Returns whether the kernel takes packets to an address for its own. Without an answer, it does not.
fn is_local(routes: &mut Socket, addr: IpAddr, buffer: &mut [u8]) -> bool {
    let (family, octets) = parts(addr);
    // struct rtmsg, and the destination.
    let mut body = vec![family, 8 * octets.len() as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend(attribute(RTA_DST, &octets));
    let mut local = false;
    let asked = routes.ask(RTM_GETROUTE, &body, buffer, |message| local |= u8_at(message.body, 7) == Some(RTN_LOCAL));
    asked.is_ok() && local
}

/// Returns the effect of what was found about an address.
fn effect(addr: IpAddr, found: &Found) -> Effect {
    let reason = match found {
        Found::Unknown(why) => format!("cannot be listed: {why}"),
        Found::Unasked => "are being looked for".into(),
        Found::Connected => "are connected: the kernel drops packets that belong to them (early demultiplexing)".into(),
    };
    let scope = Scope::To(Prefix::from(addr));
    Effect { kind: Kind::Sysctls, scope, object: format!("{SOCKETS} {addr}"), reason }
}

/// Start of the name of an effect of sockets; their address follows.
pub const SOCKETS: &str = "sockets of this host with address";
