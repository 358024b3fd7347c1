//! The API of the instance: queries as [`bywash_api_server`] serves them, and further requests. docs/api.md describes
//! requests and answers; [`bywash_api`] has their types.

mod capture;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod serve;
#[cfg(test)]
mod tests;

pub use serve::serve;

use anyhow::Context as _;
use bywash_api::{CaptureRequest, CpesChanged, FlowsChanged, KeysChanged, Placement, Traced};
use bywash_api_server::{Address, Addresses, Metrics};
use bywash_config::{ApiConfig, Level, group_id};
use bywash_flow::script::Verb;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Capture that is ready to start.
pub trait Capturing: Send {
    /// Writes pcapng to `out` until `stop` is set, on the caller's thread. Errors only if `out` does.
    fn run(self: Box<Self>, out: Box<dyn Write>, stop: &AtomicBool) -> std::io::Result<()>;
}

/// Returns the configured addresses. Errors if a group does not exist.
pub fn addresses(config: &ApiConfig) -> anyhow::Result<Addresses> {
    let at = |path: &Path, key, group: Option<&String>| {
        let known =
            |group: &String| group_id(group).with_context(|| format!("no group {group}, [api] {key}: create it"));
        anyhow::Ok(Address { path: path.into(), group: group.map(known).transpose()? })
    };
    let reading = config.read_socket.as_deref().map(|path| at(path, "read_group", config.read_group.as_ref()));
    Ok(Addresses {
        all: at(&config.socket, "group", config.group.as_ref())?,
        reading: reading.transpose()?,
        metrics: config.metrics.map(|at| Metrics {
            at,
            token: Some(config.metrics_token.expose().clone()).filter(|token| !token.is_empty()),
        }),
    })
}

/// The running instance, as requests other than queries see it.
///
/// # Thread-safety
/// Methods are called from several threads, as those of [`bywash_api_server::Instance`] are.
pub trait Instance: bywash_api_server::Instance {
    /// Moves the named ports to a level, or all that have levels if none is named, and returns the placement. The
    /// client gets an error as a bad request; an unknown name moves nothing.
    fn set_level(&self, level: Level, ports: &[String]) -> Result<Vec<Placement>, String>;

    /// Reads the configuration again and applies it, and returns a line for each change. With `dry_run`, only returns
    /// the lines. The client gets an error as a bad request; it says whether anything is changed then.
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

    /// Changes keys of the modems of group `group`, one per line; with `later`, does not use them yet. The client gets
    /// an error as a bad request.
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
