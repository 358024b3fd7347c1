//! Server of the API: HTTP and JSON over a unix socket. docs/api.md describes requests and answers;
//! [`bywash_api`] has their types.

mod capture;
mod lock;
mod metrics;
mod serve;
mod socket;
#[cfg(test)]
mod tests;

pub use serve::serve;
pub use socket::Listener;

use bywash_api::{Answer, CaptureRequest, CpesChanged, FlowsChanged, KeysChanged, Placement, Topic, Traced};
use bywash_config::Level;
use bywash_flow::script::Verb;
use std::io::Write;
use std::sync::atomic::AtomicBool;

/// Capture that is ready to start.
pub trait Capturing: Send {
    /// Writes pcapng to `out` until `stop` is set, on the caller's thread. Errors only if `out` does.
    fn run(self: Box<Self>, out: Box<dyn Write>, stop: &AtomicBool) -> std::io::Result<()>;
}

/// The running instance, as the API sees it.
///
/// # Thread-safety
/// Called from several threads at once while workers run.
pub trait Instance: Send + Sync {
    /// Returns the topic's current state. `filter` is given only for topics that take one; it comes from the
    /// client and may be anything. The client gets an error as a bad request.
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String>;

    /// Moves the named ports to a level, or all that have levels if none is named, and returns the placement. The
    /// client gets an error as a bad request; an unknown name moves nothing.
    fn set_level(&self, level: Level, ports: &[String]) -> Result<Vec<Placement>, String>;

    /// Reads the configuration again and applies it, and returns a line for each change. With `dry_run`, only returns
    /// the lines. The client gets an error as a bad request; nothing is changed then.
    fn reload(&self, dry_run: bool) -> Result<Vec<String>, String>;

    /// Connects to the process that takes over, at the socket where it waits. The client gets an error as a
    /// bad request; this instance continues then.
    fn take_over(&self, _socket: &str) -> Result<(), String> {
        Err("this instance cannot be taken over".into())
    }

    /// Prepares a capture. The client gets an error as a bad request.
    fn capture(&self, _request: &CaptureRequest) -> Result<Box<dyn Capturing>, String> {
        Err("this instance cannot capture packets".into())
    }

    /// Changes flows, groups and meters, one per line. The client gets an error as a bad request; if one line is
    /// invalid, none is applied.
    fn change_flows(&self, verb: Verb, lines: &str) -> Result<FlowsChanged, String>;

    /// Changes keys of the modems of group `group`, one per line; with `later`, does not use them yet. The client gets an
    /// error as a bad request.
    fn change_keys(&self, _group: usize, _lines: &str, _later: bool) -> Result<KeysChanged, String> {
        Err("this instance has no keys".into())
    }

    /// Adds addresses behind modems of group `group`, one per line, or removes them. The client gets an error as a bad
    /// request; nothing is changed then.
    fn change_cpes(&self, _group: usize, _lines: &str, _add: bool) -> Result<CpesChanged, String> {
        Err("this instance has no modems".into())
    }

    /// Traces a packet, given as `PORT HEX` or, to a switch, described by its fields. The client gets an error as a bad
    /// request.
    fn trace(&self, packet: &str) -> Result<Traced, String>;
}
