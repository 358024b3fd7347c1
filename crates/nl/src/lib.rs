#![doc = include_str!("../README.md")]
//! [`wire`] parses messages and builds requests, [`socket`] exchanges them with the kernel, and [`generic`] finds the
//! families of generic netlink. The crates that speak one of the kernel's protocols build on it: `bywash-netlink`
//! (routing), `bywash-exceptions` (policies), `bywash-conntrack` (connections), `bywash-port` (properties of devices).
//!
//! The sockets are plain, for blocking threads: a million routes and an overflowing buffer are easier to get right that
//! way than through an asynchronous connection.

#![deny(unsafe_code)]

mod error;
#[cfg(debug_assertions)]
mod fault;
pub mod generic;
mod membership;
pub mod pace;
pub mod socket;
pub mod wake;
pub mod wire;

pub use error::{Error, retry};
