//! Punts to the kernel the packets that user space received although they belong to the kernel. The XDP program passes
//! such packets itself, but not every table fits into its memory, and a worker may see a change that the program has
//! not seen yet.

use crate::view::Refused;
use bywash_engine::PortId;
use bywash_port::af_xdp::Injector;
use std::sync::Arc;

/// Injects packets into the interfaces they were received on.
pub struct Punt {
    injector: Option<Injector>,
    refused: Arc<[Refused]>,
    said: bool,
}

impl Punt {
    /// Opens the injector. `refused` has an entry for each port. If the kernel refuses it, packets are dropped and
    /// counted.
    pub fn open(refused: Arc<[Refused]>) -> Self {
        let injector = Injector::new().inspect_err(|e| tracing::warn!("{e}; they are dropped as punt-failed"));
        Self { injector: injector.ok(), refused, said: false }
    }

    /// Makes the kernel receive a frame again on the interface with this index, with a mark if set; `copy` if the
    /// packet itself was dropped. Counts the frame as refused if there is no such interface any more, or the kernel
    /// does not take it.
    pub fn hand(&mut self, from: PortId, (index, marked): (Option<u32>, bool), frame: &[u8], copy: bool) {
        let (Some(injector), Some(index)) = (&mut self.injector, index) else { return self.count(from, copy) };
        if let Err(e) = injector.inject(index, frame, marked) {
            if !std::mem::replace(&mut self.said, true) {
                tracing::warn!(
                    "a packet could not be punted (handed to the kernel): {e}; counted as punt-failed; logged once"
                );
            }
            self.count(from, copy);
        }
    }

    fn count(&self, from: PortId, copy: bool) {
        if let Some(refused) = self.refused.get(usize::from(from.0)) {
            if copy { &refused.copies } else { &refused.packets }.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_copy_is_no_lost_packet() {
        let refused: Arc<[Refused]> = (0..2).map(|_| Refused::default()).collect();
        let mut punt = Punt { injector: None, refused: refused.clone(), said: false };
        punt.hand(PortId(1), (Some(1), true), &[0; 60], true);
        punt.hand(PortId(1), (Some(1), true), &[0; 60], false);
        punt.hand(PortId(1), (Some(1), true), &[0; 60], true);
        let counted = |port: usize| (refused[port].packets.get(), refused[port].copies.get());
        assert_eq!((counted(0), counted(1)), ((0, 0), (1, 2)));
    }
}
