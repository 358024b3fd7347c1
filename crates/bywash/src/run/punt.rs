//! Handing the kernel a packet that user space has taken although it is the kernel's: the XDP program passes such packets,
//! but not every table fits into its memory, and a worker may see a change in between.

use bywash_engine::PortId;
use bywash_port::af_xdp::Injector;
use bywash_sync::Counter;
use std::sync::Arc;

/// Gives packets back to the interfaces they came from.
pub struct Punt {
    injector: Option<Injector>,
    /// Packets the kernel did not take, by port.
    failed: Arc<[Counter]>,
    said: bool,
}

impl Punt {
    /// For as many ports as there are counters. A kernel that lacks what it takes is done without: packets are dropped.
    pub fn open(failed: Arc<[Counter]>) -> Self {
        let injector = Injector::new().inspect_err(|e| tracing::warn!("{e}; they are dropped as punt-failed"));
        Self { injector: injector.ok(), failed, said: false }
    }

    /// The kernel receives a frame on the interface of this index, once more.
    pub fn hand(&mut self, from: PortId, index: u32, frame: &[u8]) {
        let Some(injector) = &mut self.injector else { return self.count(from) };
        if let Err(e) = injector.inject(index, frame) {
            if !std::mem::replace(&mut self.said, true) {
                tracing::warn!(
                    "a packet could not be handed back to the kernel: {e}; punt-failed counts them; said once"
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
