#![doc = include_str!("../README.md")]
//! A [`Mirror`] subscribes in the caller's network namespace, dumps all tables, and then reports every change as a
//! [`Change`](bywash_fib::model::Change); a [`State`] accumulates those changes. When the kernel changes its tables
//! without a message (it silently removes IPv4 routes with an interface that goes down), or messages are lost, the
//! tables are read again and the differences reported, so that working routes are never dropped meanwhile.

#![deny(unsafe_code)]

mod advertised;
mod bodies;
pub mod change;
mod elsewhere;
mod follow;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod kernel;
mod lookup;
mod mirror;
mod parse;
mod path;
mod pending;
mod probe;
mod routes;
mod state;
mod stats;
mod teams;
mod uapi;
mod vnis;

pub use bywash_nl::Error;
pub use lookup::interface_by_name;
pub use mirror::{Config, Mirror};
pub use path::{Path, Paths};
pub use probe::Prober;
pub use state::{RouteBody, RouteKey, State};
pub use stats::Stats;
