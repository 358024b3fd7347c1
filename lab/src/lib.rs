//! Network-namespace topologies as code: what the demo, the end-to-end tests and the veth benchmarks stand on.
//!
//! Everything lives in network namespaces this crate made; no interface of the host is touched. A [`Namespace`] is
//! deleted when it is dropped, a [`Process`] ended when it is dropped, so a failed assertion leaves nothing behind;
//! after a `kill -9` the next run's [`sweep`] clears up.
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
//! All calls block; all types are `Send`, and `Sync` where they are handles. Nothing here belongs near a worker.

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
pub use link::{End, Veth};
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

/// How many times slower than a real machine this one is: `BYWASH_TEST_SLOWNESS`, 1 to 1000, by default 1. Above 1 it
/// is emulated, and what it does in a second means nothing: tests judge no rates there.
pub fn slowness() -> u32 {
    static SLOWNESS: OnceLock<u32> = OnceLock::new();
    let read = || std::env::var("BYWASH_TEST_SLOWNESS").ok()?.parse().ok();
    *SLOWNESS.get_or_init(|| read().unwrap_or(1).clamp(1, 1000))
}

/// A time limit for this machine: `limit` times [`slowness`]. Every limit this crate takes goes through here; give it
/// plain ones.
pub fn patience(limit: Duration) -> Duration {
    limit * slowness()
}

/// Polls `condition` until it holds or `timeout` ([`patience`]) is over; the error names `what` was waited for.
///
/// The step grows from 1 ms to 20 ms, so that short waits are short.
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
