//! Changes of the flows that a packet makes during its translation.

use super::{Reason, Trip, explain};
use crate::field::{Field, Needs};
use crate::learn::{FlowChange, Learn, Part};
use crate::model::Timeouts;
use crate::table::Rule;
use bywash_engine::DropReason;
use std::sync::Arc;

/// Maximum number of changes that a packet makes.
const MAX_FLOW_CHANGES: usize = 64;
/// TCP flags that end a connection: FIN and RST.
const ENDS: u128 = 1 | 4;

impl Trip<'_, '_> {
    fn push_change(&mut self, change: FlowChange) -> Result<(), Reason> {
        if self.t.flow_changes.len() >= MAX_FLOW_CHANGES {
            explain!(self, "dropped: the packet makes more than {MAX_FLOW_CHANGES} changes of flows");
            return Err(DropReason::TooManyResubmits);
        }
        self.t.flow_changes.push(change);
        Ok(())
    }

    /// Makes a flow, and records that the result depends on what the flow is made of.
    pub(super) fn learn(&mut self, learn: &Learn) -> Result<(), Reason> {
        for from in learn.parts.iter().filter_map(Part::source) {
            self.unwildcard(&from.field.mask(from.mask()));
        }
        // When another packet changes the flow, or it goes, this packet's next makes it again.
        self.t.tables[usize::from(learn.table / 64)] |= 1 << (learn.table % 64);
        let learned = learn.flow(&self.now.flow);
        explain!(self, "learns the flow `{}`", crate::syntax::Shown(&learned.spec));
        self.push_change(FlowChange::Flow(Arc::new(learned)))
    }

    /// Shortens the timeouts of `rule`, whose action this is, if the packet ends a TCP connection.
    pub(super) fn fin_timeout(&mut self, rule: &Arc<Rule>, timeouts: Timeouts) -> Result<(), Reason> {
        if !self.has(Needs::Proto(6)) {
            return Ok(());
        }
        self.unwildcard(&Field::TcpFlags.mask(ENDS));
        if Field::TcpFlags.get(&self.now.flow) & ENDS == 0 {
            return Ok(());
        }
        explain!(self, "the connection ends");
        self.push_change(FlowChange::Ended(rule.clone(), timeouts))
    }
}
