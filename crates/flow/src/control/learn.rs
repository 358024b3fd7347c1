//! Flows that packets create and change.

use super::{Entry, FlowControl};
use crate::learn::{FlowChange, LearnedFlow};
use crate::model::{Action, FlowFilter, FlowSpec, Timeouts};
use crate::table::Rule;
use std::sync::Arc;
use std::time::Instant;

/// Table and cookie, by which learned flows are counted and deleted.
pub(super) type LearnKey = (u8, u64);

fn learn_key(spec: &FlowSpec) -> LearnKey {
    (spec.table, spec.cookie)
}

/// Numbers of actions that learn flows of one table and cookie.
#[derive(Clone, Default)]
pub(super) struct Learners {
    all: usize,
    /// Number of those with `delete_learned`: the learned flows are deleted with the last of them.
    delete: usize,
}

/// Returns table and cookie of the flows that a flow learns, and whether they are deleted with it.
fn learned_by(spec: &FlowSpec) -> impl Iterator<Item = (LearnKey, bool)> {
    Action::all(&spec.actions).filter_map(|action| match action {
        Action::Learn(learn) => Some(((learn.table, learn.cookie), learn.delete_learned)),
        _ => None,
    })
}

impl FlowControl {
    /// Handles a worker's report.
    pub(super) fn handle_change(&mut self, change: FlowChange) {
        match change {
            FlowChange::Flow(flow) if self.to_learn.len() < self.config.learned => self.to_learn.push(flow),
            FlowChange::Flow(_) => self.not_learned += 1,
            FlowChange::Ended(rule, timeouts) => self.shorten(&rule, timeouts),
        }
    }

    /// Adds the flows that packets made, unless others were added less than `BridgeConfig::learn_interval` ago.
    pub(super) fn learn_flows(&mut self, now: Instant) {
        let early = self.last_learned.is_some_and(|last_learned| now - last_learned < self.config.learn_interval);
        if !self.to_learn.is_empty() && !early {
            self.last_learned = Some(now);
            std::mem::take(&mut self.to_learn).iter().for_each(|flow| self.learn_flow(flow, now));
        }
    }

    /// Adds a flow that a packet made; if it exists, its actions and cookie are replaced and its hard timeout begins
    /// anew. Does nothing if no flow learns such flows any more.
    fn learn_flow(&mut self, learned: &LearnedFlow, now: Instant) {
        let LearnedFlow { spec, limit } = learned;
        if !self.learners.contains_key(&learn_key(spec)) {
            return;
        }
        let done = match self.find_exact(spec.table, spec.priority, &spec.matches) {
            Some(slot) => {
                let Entry { rule, refreshed, .. } = self.entries.get_mut(&slot).expect("a slot of the index");
                *refreshed = now;
                let same = rule.spec.actions == spec.actions && rule.spec.cookie == spec.cookie;
                same || self.modify(spec.clone(), true).is_ok()
            }
            None => {
                let n = self.flow_counts.get(&learn_key(spec)).copied().unwrap_or_default();
                let room = self.learned < self.config.learned && (*limit == 0 || n < *limit as usize);
                room && self.add_learned(spec.clone())
            }
        };
        self.not_learned += u64::from(!done);
    }

    fn add_learned(&mut self, spec: FlowSpec) -> bool {
        let Ok(slot) = self.insert(spec) else { return false };
        self.entries.get_mut(&slot).expect("the flow just added").learned = true;
        self.learned += 1;
        true
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
            // The workers need not know: only the control side applies timeouts.
            let spec = FlowSpec { idle_timeout: both.0, hard_timeout: both.1, ..old.clone() };
            *own = Arc::new(Rule { spec, slot: rule.slot });
            self.timed.insert(rule.slot);
        }
    }

    /// Counts a flow that is added.
    pub(super) fn count(&mut self, spec: &FlowSpec) {
        *self.flow_counts.entry(learn_key(spec)).or_default() += 1;
        for (key, delete) in learned_by(spec) {
            let learners = self.learners.entry(key).or_default();
            learners.all += 1;
            learners.delete += usize::from(delete);
        }
    }

    /// Undoes [`FlowControl::count`] for a flow that is removed.
    pub(super) fn discount(&mut self, spec: &FlowSpec) {
        if let Some(n) = self.flow_counts.get_mut(&learn_key(spec)) {
            *n -= 1;
            if *n == 0 {
                self.flow_counts.remove(&learn_key(spec));
            }
        }
        for (key, delete) in learned_by(spec) {
            let Some(learners) = self.learners.get_mut(&key) else { continue };
            learners.all -= 1;
            learners.delete -= usize::from(delete);
            if delete && learners.delete == 0 {
                self.unlearned.push(key);
            }
            if learners.all == 0 {
                self.learners.remove(&key);
            }
        }
    }

    /// Deletes the learned flows that are to be deleted with flows that have been removed.
    pub(super) fn delete_unlearned(&mut self) {
        while let Some((table, cookie)) = self.unlearned.pop() {
            // Another learner may have been added since.
            if self.learners.get(&(table, cookie)).is_none_or(|learners| learners.delete == 0) {
                let learned =
                    FlowFilter { table: Some(table), cookie: Some((cookie, u64::MAX)), ..FlowFilter::default() };
                self.delete(&learned, false);
            }
        }
    }
}
