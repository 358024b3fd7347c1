#![doc = include_str!("../README.md")]
//! A [`Mirror`] subscribes in the caller's network namespace, dumps all tables, and then reports every change as a
//! [`Change`](bywash_fib::model::Change); a [`State`] accumulates those changes. When the kernel changes its tables
//! without a message (it silently removes IPv4 routes with an interface that goes down), or messages are lost, the
//! tables are read again and the differences reported, so that working routes are never dropped meanwhile.
//!
//! This crate holds all netlink code, over plain sockets and one blocking thread: a million routes and an overflowing
//! buffer are easier to get right that way than through an asynchronous connection.

#![deny(unsafe_code)]

mod advertised;
mod bodies;
pub mod change;
mod elsewhere;
mod error;
#[cfg(debug_assertions)]
mod fault;
mod follow;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod generic;
mod kernel;
mod lookup;
mod membership;
mod mirror;
pub mod netns;
pub mod pace;
mod parse;
mod path;
mod pending;
mod probe;
mod routes;
pub mod socket;
mod state;
mod stats;
mod teams;
mod uapi;
pub mod wake;
pub mod wire;

pub use error::Error;
pub use lookup::interface_by_name;
pub use mirror::{Config, Mirror};
pub use path::{Path, Paths};
pub use probe::Prober;
pub use state::{RouteBody, RouteKey, State};
pub use stats::Stats;
