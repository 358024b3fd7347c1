//! Flows that a packet makes during its translation.

use super::{Reason, Trip, tell};
use crate::learn::{Learn, Part};
use bywash_engine::DropReason;
use std::sync::Arc;

/// Maximum number of flows that a packet makes.
const FLOWS: usize = 64;

impl Trip<'_, '_> {
    /// Makes a flow, and records that the result depends on what the flow is made of.
    pub(super) fn learn(&mut self, learn: &Learn) -> Result<(), Reason> {
        if self.t.flows.len() >= FLOWS {
            tell!(self, "dropped: the packet makes more than {FLOWS} flows");
            return Err(DropReason::TooManyResubmits);
        }
        for from in learn.parts.iter().filter_map(Part::source) {
            self.unwildcard(&from.field.mask(from.mask()));
        }
        // When another packet changes the flow, or it goes, this packet's next makes it again.
        self.t.tables[usize::from(learn.table / 64)] |= 1 << (learn.table % 64);
        let learned = learn.flow(&self.now.flow);
        tell!(self, "learns the flow `{}`", crate::syntax::Shown(&learned.spec));
        self.t.flows.push(Arc::new(learned));
        Ok(())
    }
}
