#![doc = include_str!("../README.md")]
//!
//! An [`Instance`] answers queries for topics; [`serve`] makes these, and metrics made of them, available at a
//! [`Listener`]'s sockets. Handlers of further requests can be added. [`answers`] has the answers that are the same for
//! every instance with workers of [`bywash_engine`].

#![forbid(unsafe_code)]

pub mod answers;
mod guard;
mod memory;
mod metrics;
mod patient;
mod pieces;
mod refusal;
mod serve;
mod socket;
#[cfg(test)]
mod tests;

pub use guard::{Guard, guard};
pub use memory::InMemory;
pub use pieces::Pieces;
pub use serve::{Endless, Server, answer, error, serve, serve_tcp};
pub use socket::{Address, Addresses, Listener, Metrics};

use bywash_api::{Answer, Topic};

/// The running instance, as queries see it.
///
/// # Thread-safety
/// Called from several threads at once while workers run.
pub trait Instance: Send + Sync {
    /// Returns the topic's current state. `filter` is given only for topics that take one; it comes from the
    /// client and may be anything. The client gets an error as a bad request.
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String>;

    /// Returns the rows of a topic that may have very many; `None`, which is the default, if [`Instance::show`] returns
    /// all of the topic.
    fn rows(&self, _topic: Topic, _filter: Option<&str>) -> Option<Result<Box<dyn Rows>, String>> {
        None
    }
}

/// Rows of a topic, in pieces. Each piece shows the rows as they are when it is made. Until the client takes it, the
/// server holds that one piece, and no lock.
pub trait Rows: Send {
    /// Returns the next piece, a list; `None` after the last.
    fn next(&mut self) -> Option<Answer>;
}
