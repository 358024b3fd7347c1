//! Steps of start, reload, takeover and stop, between which the process may be killed at any time.

/// Marks that a step is reached. In builds with debug assertions `BYWASH_FAULT_STEP` names a step at which the thread
/// waits for ever, so that a test can kill the process there.
pub fn reached(step: &str) {
    if cfg!(debug_assertions) && std::env::var("BYWASH_FAULT_STEP").is_ok_and(|asked| asked == step) {
        tracing::warn!("waiting at step {step}, as a test requested");
        loop {
            std::thread::park();
        }
    }
}
