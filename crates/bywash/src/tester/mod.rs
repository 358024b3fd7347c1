//! The tester's commands: `bywash gen`.

mod generate;
mod kernel;
mod ports;
mod print;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use generate::run as generate;
pub use kernel::heads;

/// Set by the first Ctrl-C or SIGTERM; the second ends the process.
fn stopped_by_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}
