//! Punt of packets to the kernel that user space received although they are the kernel's. The XDP program passes such
//! packets itself, but not every table fits into its memory, and a worker may see a change that the program has not
//! seen yet.

use bywash_engine::PortId;
use bywash_port::af_xdp::Injector;
use bywash_sync::Counter;
use std::sync::Arc;

/// Injects packets into the interfaces they were received on.
pub struct Punt {
    injector: Option<Injector>,
    /// Packets that the kernel did not accept, by port.
    failed: Arc<[Counter]>,
    said: bool,
}

impl Punt {
    /// Opens the injector. `failed` has a counter for each port. If the kernel refuses it, packets are dropped and
    /// counted.
    pub fn open(failed: Arc<[Counter]>) -> Self {
        let injector = Injector::new().inspect_err(|e| tracing::warn!("{e}; they are dropped as punt-failed"));
        Self { injector: injector.ok(), failed, said: false }
    }

    /// Has the kernel receive a frame once more on the interface with this index. Counts the frame as failed if it does
    /// not.
    pub fn hand(&mut self, from: PortId, index: u32, frame: &[u8]) {
        let Some(injector) = &mut self.injector else { return self.count(from) };
        if let Err(e) = injector.inject(index, frame) {
            if !std::mem::replace(&mut self.said, true) {
                tracing::warn!(
                    "a packet could not be handed back to the kernel: {e}; counted as punt-failed; logged once"
                );
            }
            self.count(from);
        }
    }

    fn count(&self, from: PortId) {
        if let Some(failed) = self.failed.get(usize::from(from.0)) {
            failed.add(1);
        }
    }
}
