//! Network-namespace topologies as code, the basis of the demo, the end-to-end tests and the veth benchmarks.
//!
//! Everything runs in network namespaces created by this crate; no interface of the host is touched. Dropping a
//! [`Namespace`] deletes it and dropping a [`Process`] ends it, so that a failed assertion leaves nothing behind. After
//! a `kill -9`, the next run's [`sweep`] removes what was left.
//!
//! ```no_run
//! use bywash_lab::{Ping, Topology};
//!
//! let lab = Topology::router()?;
//! let report = Ping::to(lab.b().v4).count(3).run(&lab.a().ns)?;
//! assert_eq!(report.received, 3);
//! # Ok::<(), bywash_lab::Error>(())
//! ```
//!
//! All calls block; all types are `Send`, and handles are `Sync` as well. Do not use this crate on a worker thread.

#![forbid(unsafe_code)]

mod command;
mod counters;
mod error;
mod iperf;
mod link;
mod namespace;
mod ping;
mod probe;
mod process;
mod snapshot;
mod sweep;
mod topology;
mod transfer;
mod wire;

pub use command::{Output, run_host, run_host_with_timeout};
pub use counters::{Counters, counters};
pub use error::{Error, Result};
pub use iperf::{Direction, Iperf, IperfReport};
pub use link::{End, Veth, settle};
pub use namespace::Namespace;
pub use ping::{Ping, PingReport};
pub use probe::{Probe, Reason, has_tool, kernel_has, report_skip, require_lab, require_root};
pub use process::Process;
pub use snapshot::Snapshot;
pub use sweep::{sweep, sweep_own};
pub use topology::{Host, Topology, TopologyBuilder, detached, detached_ports};
pub use transfer::{Transfer, TransferReport};
pub use wire::Wire;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the slowdown of this machine relative to a real one: `BYWASH_TEST_SLOWNESS`, 1 to 1000, by default 1. Above
/// 1 the machine is emulated, and its speed means nothing: tests do not judge rates there.
pub fn slowness() -> u32 {
    static SLOWNESS: OnceLock<u32> = OnceLock::new();
    let read = || std::env::var("BYWASH_TEST_SLOWNESS").ok()?.parse().ok();
    *SLOWNESS.get_or_init(|| read().unwrap_or(1).clamp(1, 1000))
}

/// Returns a time limit scaled for this machine: `limit` times [`slowness`]. Every limit passed to this crate is scaled
/// here; callers pass unscaled ones.
pub fn patience(limit: Duration) -> Duration {
    limit * slowness()
}

/// Polls `condition` until it holds. After `timeout`, scaled by [`patience`], returns an error that names `what`.
///
/// The interval grows from 1 ms to 20 ms, so that short waits stay short.
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    let timeout = patience(timeout);
    let deadline = Instant::now() + timeout;
    let mut step = Duration::from_millis(1);
    loop {
        if condition() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::Timeout { what: what.to_owned(), after: timeout });
        }
        std::thread::sleep(step);
        step = (step * 2).min(Duration::from_millis(20));
    }
}
