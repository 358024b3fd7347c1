//! Kernel state that affects forwarded packets and that a dataplane beside the kernel does not implement.
//!
//! A packet that bypasses the kernel passes none of its firewall rules, IPsec policies, routing rules, queueing
//! disciplines and sysctl switches. This crate reads all of them in the network namespace it is started in and turns
//! them into [`Effect`]s; [`judge`] turns those into a [`Verdict`]: the packets of each port that are left to the
//! kernel.
//!
//! The crate fails closed. When the kernel announces a change, a [`Watcher`] closes the gate at once through a callback
//! of its owner, reads the state again, and lets the owner open the gate as far as the new state allows. State that
//! cannot be read is assumed to affect every packet.
//!
//! | state | read by | announced by |
//! |---|---|---|
//! | nf_tables | nfnetlink dumps | `NFNLGRP_NFTABLES` |
//! | iptables-legacy | getsockopt | nothing: read every [`POLL`] |
//! | connections translated by chains without rules | ctnetlink dump | nothing: read every second while there are some |
//! | translated connections of tunnels' outer packets | ctnetlink dump | nothing: read every second beside chains of type nat |
//! | IPsec policies | XFRM dump | `XFRMNLGRP_POLICY` |
//! | `ip rule` | rtnetlink dump | `RTNLGRP_IPV4_RULE`, `RTNLGRP_IPV6_RULE` |
//! | qdiscs, filters | rtnetlink dump | `RTNLGRP_TC` |
//! | sysctls | `/proc/sys/net` | `RTNLGRP_IPV4_NETCONF`, `RTNLGRP_IPV6_NETCONF`; the others read every [`POLL`] |
//! | tcx and sk_lookup programs | `BPF_PROG_QUERY` | nothing: queried every [`POLL`] |
//! | other functions on netfilter's hooks | nfnetlink_hook, `/proc/net/ip_vs` | nothing: read every 50 ms, and every [`POLL`] |

#![deny(unsafe_code)]

mod dump;
mod effect;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod hooks;
mod keeper;
pub mod legacy;
pub mod nft;
mod programs;
mod rules;
mod search;
mod sockets;
mod sysctl;
mod tc;
mod translated;
mod verdict;
mod watch;
mod xfrm;

pub use bywash_fib::model::Families;
pub use effect::{Effect, IfMatch, Kind, Scope, Unknown};
pub use keeper::Keeper;
pub use programs::{Foreign, Programs};
pub use rules::Rule;
pub use sockets::SOCKETS;
pub use sysctl::Settings;
pub use verdict::{Bridge, Kept, MISNAMED, PortLink, Respect, Verdict, Vrf, judge};
pub use watch::{Outer, POLL, Reading, Watcher};
