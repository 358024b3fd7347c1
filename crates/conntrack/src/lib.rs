//! The connections that the kernel tracks, and those of them that a dataplane may forward by itself.
//!
//! [`Kernel`] reads, follows and changes connections by ctnetlink (linux/netfilter/nfnetlink_conntrack.h). [`obstacle`]
//! names the reason, if any, for leaving a connection to the kernel whatever the firewall's rules are; [`Judge`]
//! evaluates these rules. [`Follower`] keeps a table of flows in step with both.

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
pub use kernel::{Announced, Change, Changed, Error, Heard, Hears, Kernel, read_connections};
pub use message::{Announcement, announcement};
pub use obstacle::{Obstacle, obstacle};
pub use statistics::{Counts, Revocation, Statistics, Times};
