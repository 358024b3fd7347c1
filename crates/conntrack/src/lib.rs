//! The connections that the kernel tracks, and those of them that a dataplane may forward by itself.
//!
//! [`Kernel`] reads, follows and changes connections by ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
//!
//! To *judge* a connection is to decide whether it may become a flow, which is forwarded past the kernel. [`obstacle`]
//! finds reasons in the connection itself (a helper, say) for leaving it to the kernel whatever the rules are;
//! [`Judge`] evaluates the firewall's rules for it. [`Follower`] keeps a table of flows in step with the kernel's
//! connections and with these decisions.

#![forbid(unsafe_code)]

mod connection;
mod filter;
mod follower;
mod judge;
mod kernel;
mod message;
mod obstacle;
mod statistics;

pub use connection::{Connection, Key, TCP, Tuple, UDP, status, tcp};
pub use follower::{Considered, Follower, Reason, Routes, Terms, Timeouts, flow};
pub use judge::{Judge, Refusal};
pub use kernel::{Change, Changed, Error, Events, Item, Kernel, Subscription, read_connections};
pub use message::{Event, parse_event};
pub use obstacle::{Obstacle, obstacle};
pub use statistics::{Counts, Revocation, Statistics, Times, packets_since};
