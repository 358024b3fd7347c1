//! Follows the kernel's links, addresses, routes and neighbours by netlink.
//!
//! A [`Mirror`] subscribes in the caller's network namespace, reads everything there is, and then reports every change
//! as a [`Change`](bywash_route::model::Change); a [`State`] is what those changes add up to. Where the kernel changes
//! its tables without a message (an interface going down takes IPv4 routes with it, in silence), or messages are lost,
//! the tables are read again and the differences reported, so that working routes are never dropped meanwhile.
//!
//! Netlink is spoken here and nowhere else, over plain sockets and one blocking thread: a million routes and an
//! overflowing buffer are easier to get right that way than through an asynchronous connection.

#![forbid(unsafe_code)]

mod bodies;
pub mod change;
mod error;
mod follow;
mod kernel;
mod lookup;
mod mirror;
pub mod netns;
mod parse;
mod pending;
mod probe;
mod routes;
pub mod socket;
mod state;
mod stats;
pub mod sysctl;
mod uapi;
mod warnings;
pub mod wire;

pub use error::Error;
pub use lookup::interface_by_name;
pub use mirror::{Config, Mirror};
pub use probe::Prober;
pub use state::{RouteBody, RouteKey, State};
pub use stats::Stats;
