#![doc = include_str!("../README.md")]
//!
//! All functions work on borrowed byte slices, and nothing outside [`build`], [`hex`] and [`summary`] allocates. **No
//! function of this crate panics on any input**; invalid input yields `None`, `false` or an error that names the fault.
//!
//! `l3` always denotes a slice that starts at the IP header and holds at least the whole packet. Bytes behind the IP
//! total length (Ethernet padding) are ignored.

#![forbid(unsafe_code)]

pub mod build;
pub mod checksum;
pub mod ethernet;
pub mod frag;
pub mod hex;
pub mod icmp4;
pub mod icmp6;
pub mod ipv4;
pub mod ipv6;
pub mod l4;
pub mod partial;
pub mod summary;

/// IP protocol numbers (IANA) used by this crate.
pub mod proto {
    /// IPv6 hop-by-hop options (RFC 8200 4.3).
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP (RFC 792).
    pub const ICMP: u8 = 1;
    /// IPv4 in IP (RFC 2003, RFC 2473).
    pub const IPIP: u8 = 4;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// DCCP (RFC 4340).
    pub const DCCP: u8 = 33;
    /// IPv6 in IP (RFC 4213, RFC 2473).
    pub const IPV6: u8 = 41;
    /// IPv6 routing header (RFC 8200 4.4).
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header (RFC 8200 4.5).
    pub const FRAGMENT: u8 = 44;
    /// GRE (RFC 2784).
    pub const GRE: u8 = 47;
    /// Encapsulating security payload (RFC 4303).
    pub const ESP: u8 = 50;
    /// Authentication header (RFC 4302).
    pub const AUTH: u8 = 51;
    /// ICMPv6 (RFC 4443).
    pub const ICMP6: u8 = 58;
    /// No next header (RFC 8200 4.7).
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options (RFC 8200 4.6).
    pub const DEST_OPTIONS: u8 = 60;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
    /// UDP-Lite (RFC 3828).
    pub const UDP_LITE: u8 = 136;
}
