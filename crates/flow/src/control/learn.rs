//! Flows that packets make and change.

use super::{Entry, FlowControl};
use crate::learn::LearnedFlow;
use crate::model::{Action, FlowFilter, FlowSpec, Timeouts};
use crate::table::Rule;
use std::sync::Arc;
use std::time::Instant;

/// Table and cookie, by which learned flows are counted and deleted.
pub(super) type Kin = (u8, u64);

fn kin(spec: &FlowSpec) -> Kin {
    (spec.table, spec.cookie)
}

/// Returns the flows that go when the last flow that learns them so does.
fn heirs(spec: &FlowSpec) -> impl Iterator<Item = Kin> {
    Action::all(&spec.actions).filter_map(|action| match action {
        Action::Learn(learn) if learn.delete_learned => Some((learn.table, learn.cookie)),
        _ => None,
    })
}

impl FlowControl {
    /// Adds a flow that a packet made; if it exists, its actions and cookie are replaced and its hard timeout begins anew.
    pub(super) fn learn_flow(&mut self, learned: &LearnedFlow, now: Instant) {
        let LearnedFlow { spec, limit } = learned;
        let done = match self.find_exact(spec.table, spec.priority, &spec.matches) {
            Some(slot) => {
                let Entry { rule, refreshed, .. } = self.entries.get_mut(&slot).expect("a slot of the index");
                *refreshed = now;
                let same = rule.spec.actions == spec.actions && rule.spec.cookie == spec.cookie;
                same || self.modify(spec.clone(), true).is_ok()
            }
            None => {
                let n = self.kin.get(&kin(spec)).copied().unwrap_or_default();
                (*limit == 0 || n < *limit as usize) && self.add(spec.clone()).is_ok()
            }
        };
        self.not_learned += u64::from(!done);
    }

    /// Shortens the timeouts of a flow, unless it has gone.
    pub(super) fn shorten(&mut self, rule: &Rule, to: Timeouts) {
        let Some(Entry { rule: own, .. }) = self.entries.get_mut(&rule.slot) else { return };
        let (old, spec) = (&own.spec, &rule.spec);
        if (old.table, old.priority, &old.matches) != (spec.table, spec.priority, &spec.matches) {
            return;
        }
        let shorter = |own: u16, to: u16| if to != 0 && (own == 0 || own > to) { to } else { own };
        let both = (shorter(old.idle_timeout, to.idle), shorter(old.hard_timeout, to.hard));
        if both != (old.idle_timeout, old.hard_timeout) {
            // The workers need not know: timeouts are the control side's.
            let spec = FlowSpec { idle_timeout: both.0, hard_timeout: both.1, ..old.clone() };
            *own = Arc::new(Rule { spec, slot: rule.slot });
            self.timed.insert(rule.slot);
        }
    }

    /// Counts a flow that is added.
    pub(super) fn count(&mut self, spec: &FlowSpec) {
        *self.kin.entry(kin(spec)).or_default() += 1;
        heirs(spec).for_each(|heir| *self.learners.entry(heir).or_default() += 1);
    }

    /// Undoes [`FlowControl::count`] for a flow that is removed.
    pub(super) fn discount(&mut self, spec: &FlowSpec) {
        if let Some(n) = self.kin.get_mut(&kin(spec)) {
            *n -= 1;
            if *n == 0 {
                self.kin.remove(&kin(spec));
            }
        }
        for heir in heirs(spec) {
            if let Some(n) = self.learners.get_mut(&heir) {
                *n -= 1;
                if *n == 0 {
                    self.orphans.push(heir);
                }
            }
        }
    }

    /// Deletes the learned flows that were to go with flows that have gone.
    pub(super) fn delete_orphans(&mut self) {
        while let Some((table, cookie)) = self.orphans.pop() {
            if self.learners.get(&(table, cookie)).is_some_and(|n| *n == 0) {
                self.learners.remove(&(table, cookie));
                let learned =
                    FlowFilter { table: Some(table), cookie: Some((cookie, u64::MAX)), ..FlowFilter::default() };
                self.delete(&learned, false);
            }
        }
    }
}
