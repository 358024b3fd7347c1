//! The tester's commands: `bywash gen` and `bywash rfc2544`.

mod generate;
mod kernel;
mod ports;
mod print;
mod rfc2544;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use generate::run as generate;
pub use kernel::heads;
pub use rfc2544::run as rfc2544;

/// Before all others on its CPU, where that is allowed: what keeps the generator from it is told as its own fault.
fn first_in_line() {
    if let Err(e) = rustix::process::setpriority_process(None, -20) {
        tracing::debug!("cannot be preferred to other processes: {e}");
    }
}

/// Set by the first Ctrl-C or SIGTERM; the second ends the process.
fn stopped_by_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}
