//! What the router's stages look up: the forwarding tables and the next hops their ids name.
//!
//! The control side builds [`Tables`] and publishes it whole; the FIBs inside are updated in place. The rule that
//! keeps the two consistent: **an id is born before a FIB names it and dies a grace period after the last FIB entry
//! that did.** So control publishes tables that contain a new id, and only then inserts routes to it; it removes
//! routes first, waits for a grace period, and only then reuses the id.

use bywash_engine::PortId;
use bywash_route::{Fib4, Fib6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// What becomes of a packet whose route led here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Kind {
    /// No route: ICMP network unreachable (IPv6: no route to destination).
    NoRoute,
    /// Rewrite the MAC addresses and send.
    Forward,
    /// The destination is itself a neighbour on the link, and not resolved.
    Glean,
    /// The gateway is not resolved.
    Pending,
    /// The neighbour was asked for and did not answer: ICMP host (address) unreachable.
    Failed,
    /// One of several: choose by flow hash.
    Group,
    /// Discard silently.
    Blackhole,
    /// Discard; ICMP host unreachable (IPv6: no route).
    Unreachable,
    /// Discard; ICMP communication administratively prohibited.
    Prohibit,
    /// An address of this host: the kernel's.
    Local,
    /// The way out is an interface that is not one of our ports: the kernel's.
    Kernel,
    /// A policy of the kernel's concerns the destination or the way out: the kernel's.
    Policy,
}

/// A next hop. Two to a cache line; everything the fast path needs of it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Entry {
    /// Destination MAC, then source MAC, as they go into the frame.
    pub macs: [u8; 12],
    /// What to do.
    pub kind: Kind,
    /// Port to send on, for `Forward`, `Glean`, `Pending` and `Failed`.
    pub port: PortId,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// For `Group`: its first bucket in [`Tables::buckets`].
    pub first: u32,
    /// For `Group`: how many buckets, at least 1.
    pub count: u32,
}

impl Entry {
    /// An entry that only says `kind`.
    pub const fn verdict(kind: Kind) -> Self {
        Self { macs: [0; 12], kind, port: PortId(0), mtu: 0, first: 0, count: 1 }
    }
}

/// What only the slow path needs of a next hop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cold {
    /// Kernel index of the interface.
    pub index: u32,
    /// The gateway to resolve, for `Pending`; for `Glean` it is the packet's destination.
    pub gateway: Option<IpAddr>,
    /// Source address of ICMP errors sent this way.
    pub source4: Option<Ipv4Addr>,
    /// Source address of ICMPv6 errors sent this way.
    pub source6: Option<Ipv6Addr>,
}

/// A port as routing sees it.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Kernel index; 0 while the interface is gone.
    pub index: u32,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Whether frames received on it may carry partial checksums (veth, TAP).
    pub partial_checksums: bool,
    /// Whether frames to other machines are received on it as well.
    pub promiscuous: bool,
    /// Main IPv4 address, for errors whose way back is not one of our ports.
    pub source4: Option<Ipv4Addr>,
    /// Main global IPv6 address, likewise.
    pub source6: Option<Ipv6Addr>,
}

/// One version of everything; immutable but for the FIBs.
pub struct Tables {
    /// Counts versions, from 1.
    pub generation: u64,
    /// IPv4 routes.
    pub fib4: Arc<Fib4>,
    /// IPv6 routes.
    pub fib6: Arc<Fib6>,
    /// Next hops by id; entry 0 is `NoRoute`. An id beyond the end is treated as 0.
    pub entries: Vec<Entry>,
    /// Parallel to `entries`.
    pub cold: Vec<Cold>,
    /// Members of groups, as ids of entries that are not groups; a member appears as often as its weight asks.
    pub buckets: Vec<u32>,
    /// Ports by [`PortId`].
    pub ports: Vec<PortInfo>,
}
