//! Commands of the tester: `bywash gen` and `bywash rfc2544`.

mod generate;
mod kernel;
mod ports;
mod print;
mod rfc2544;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use generate::run as generate;
pub use rfc2544::run as rfc2544;

/// Gives the process the highest priority, if permitted: delays by other processes would be reported as the generator's
/// own.
fn raise_priority() {
    if let Err(e) = rustix::process::setpriority_process(None, -20) {
        tracing::debug!("cannot raise the process priority: {e}");
    }
}

/// Returns a flag that the first SIGINT or SIGTERM sets; a second signal ends the process.
fn stopped_by_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}
