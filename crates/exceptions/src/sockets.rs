//! Connected sockets of this host with an address that it no longer has.
//!
//! The kernel finds the socket of a packet before its route (early demultiplexing), and drops a packet to be forwarded
//! that has one (ip_forward, ip6_forward). So when an address moves to another host while connections to it are open,
//! the kernel does not forward packets of these connections until their sockets are closed.

use crate::dump::dump;
use crate::effect::{Effect, Kind, Scope};
use bywash_fib::model::Prefix;
use bywash_netlink::socket::Socket;
use bywash_netlink::wire::{Attributes, Message};
use std::net::IpAddr;

// linux/rtnetlink.h, linux/if_addr.h
pub const RTM_DELADDR: u16 = 21;
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

/// Returns the address that an interface has lost (`RTM_DELADDR`, struct ifaddrmsg).
pub fn lost(message: &Message<'_>) -> Option<IpAddr> {
    let of = |wanted| Attributes::after(message.body, 8).find(|(kind, _)| *kind == wanted);
    let (_, addr) = of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?;
    let v4 = || <[u8; 4]>::try_from(addr).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(addr).ok().map(IpAddr::from))
}

/// Returns whether a connected socket has this local address; the kernel selects the sockets.
///
/// # Errors
/// If the kernel does not list sockets (CONFIG_INET_DIAG), or refuses to.
pub fn has_connected(socket: &mut Socket, addr: IpAddr, buffer: &mut [u8]) -> Result<bool, String> {
    let (family, octets) = match addr {
        IpAddr::V4(addr) => (libc::AF_INET, addr.octets().to_vec()),
        IpAddr::V6(addr) => (libc::AF_INET6, addr.octets().to_vec()),
    };
    // struct inet_diag_bc_op, and struct inet_diag_hostcond with any port: accepts what has the address.
    let len = 4 + 8 + octets.len();
    let op = [&[INET_DIAG_BC_S_COND, len as u8][..], &(len as u16 + 4).to_ne_bytes()].concat();
    let condition = [&[family as u8, 8 * octets.len() as u8, 0, 0][..], &(-1i32).to_ne_bytes(), &octets].concat();
    let code = [op, condition].concat();
    // A socket of IPv6 may have an address of IPv4.
    for family in [libc::AF_INET, libc::AF_INET6].into_iter().filter(|of| *of >= family) {
        for (protocol, states) in PROTOCOLS {
            // struct inet_diag_req_v2
            let mut body = [0; 56];
            (body[0], body[1]) = (family as u8, protocol as u8);
            body[4..8].copy_from_slice(&states.to_ne_bytes());
            let attributes = [(INET_DIAG_REQ_BYTECODE, &code[..])];
            let one = |message: &Message<'_>| Ok((message.kind == SOCK_DIAG_BY_FAMILY).then_some(()));
            let found = dump(socket, SOCK_DIAG_BY_FAMILY, &body, &attributes, buffer, one)?;
            if !found.ok_or("the kernel does not list sockets (CONFIG_INET_DIAG)")?.is_empty() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the effect of sockets with an address that this host has lost; `unknown` has the reason if the sockets could
/// not be listed.
pub fn effect(addr: IpAddr, unknown: Option<&str>) -> Option<Effect> {
    let reason = match unknown {
        Some(why) => format!("cannot be listed: {why}"),
        None => "are connected: the kernel drops packets that belong to them (early demultiplexing)".into(),
    };
    let len = if addr.is_ipv4() { 32 } else { 128 };
    let scope = Scope::To(Prefix::containing(addr, len)?);
    Some(Effect { kind: Kind::Sysctls, scope, object: format!("sockets of this host with address {addr}"), reason })
}
