#![doc = include_str!("../README.md")]
//!
//! An [`Instance`] answers queries for topics; [`serve`] makes these, and metrics made of them, available at a
//! [`Listener`]'s sockets. Handlers of further requests can be added. [`answers`] has the answers that every instance
//! with workers of [`bywash_engine`] gives alike.

#![forbid(unsafe_code)]

pub mod answers;
mod lock;
mod metrics;
mod serve;
mod socket;
#[cfg(test)]
mod tests;

pub use serve::{Endless, Server, answer, error, serve};
pub use socket::{Address, Addresses, Listener};

use bywash_api::{Answer, Topic};

/// The running instance, as queries see it.
///
/// # Thread-safety
/// Called from several threads at once while workers run.
pub trait Instance: Send + Sync {
    /// Returns the topic's current state. `filter` is given only for topics that take one; it comes from the
    /// client and may be anything. The client gets an error as a bad request.
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String>;
}
