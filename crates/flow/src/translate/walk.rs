//! Traversal of tables and groups, with its limits.

use super::{DEPTH, MAX_RULES, NEST, RESUBMITS, Reason, Trip, explain};
use crate::field::Field;
use crate::key::{FRAG_ANY, Flow, at, hash_words};
use crate::model::{Action, GroupKind, OfPort};
use crate::pipeline::{Group, action_set};
use crate::table::Rule;
use bywash_engine::DropReason;
use std::sync::Arc;

/// Remaining actions of a list.
#[derive(Clone, Copy)]
struct Frame<'t> {
    actions: &'t [Action],
    /// Flow that the list belongs to.
    rule: Option<&'t Arc<Rule>>,
    table: u8,
    depth: u32,
    end: End<'t>,
}

impl<'t> Frame<'t> {
    const EMPTY: Self = Self { actions: &[], rule: None, table: 0, depth: 0, end: End::List };

    /// Returns the list of a flow in this table.
    fn of(rule: &'t Arc<Rule>, table: u8, depth: u32) -> Self {
        Self { actions: rule.actions(), rule: Some(rule), table, depth, end: End::List }
    }
}

/// Lists of actions that are being run, the innermost last.
struct Lists<'t> {
    frames: [Frame<'t>; NEST],
    len: usize,
}

impl<'t> Lists<'t> {
    fn new(first: Frame<'t>) -> Self {
        let mut frames = [Frame::EMPTY; NEST];
        frames[0] = first;
        Self { frames, len: 1 }
    }

    /// Returns the innermost list.
    fn last(&mut self) -> Option<&mut Frame<'t>> {
        self.frames[..self.len].last_mut()
    }

    /// Skips the remaining actions of the innermost list.
    fn leave(&mut self) {
        if let Some(frame) = self.last() {
            frame.actions = &[];
        }
    }

    /// Removes the innermost list.
    fn pop(&mut self) {
        self.len -= 1;
    }

    /// Adds a list; it replaces the innermost one if nothing is left to do for that. Returns `false` if there are too
    /// many.
    fn push(&mut self, frame: Frame<'t>) -> bool {
        if self.last().is_some_and(|last| last.actions.is_empty() && matches!(last.end, End::List)) {
            self.pop();
        }
        let Some(free) = self.frames.get_mut(self.len) else { return false };
        *free = frame;
        self.len += 1;
        true
    }
}

/// Step that follows the end of a list.
#[derive(Clone, Copy)]
enum End<'t> {
    /// The list below continues.
    List,
    /// The group's bucket with this index, or the list below. The packet's state to return to is in `saved`.
    Bucket(&'t Group, u32),
    /// The action set, and the list below with the state in `saved`, this bottom and length of the stack, and this
    /// extent of the action set.
    Clone { stack: (u32, u32), set: (u8, u8) },
}

impl<'t> Trip<'_, 't> {
    /// Returns the flow in this table that matches the packet in its current state.
    fn find(&mut self, table: u8) -> Option<&'t Arc<Rule>> {
        self.t.tables[usize::from(table / 64)] |= 1 << (table % 64);
        let mut unwildcarded = Flow::default();
        let mut flow = self.now.flow;
        // Flows see no ports and no ICMP type in fragments, including the first, so that all fragments of a packet
        // match the same flow: OVS's default, `set-frags normal` (ovs-ofctl(8)).
        if flow.u8(at::NW_FRAG) & FRAG_ANY != 0 {
            flow.put(at::TP_SRC, &[0; 4]);
        }
        let found =
            self.pipeline.table(table).and_then(|t| t.lookup(&flow, |bits| unwildcarded = unwildcarded | *bits));
        self.unwildcard(&unwildcarded);
        match found {
            Some(rule) => {
                if self.t.rules.len() < MAX_RULES && !self.t.rules.contains(&rule.slot) {
                    self.t.rules.push(rule.slot);
                }
                explain!(self, "table {table}: {}", crate::syntax::Shown(&rule.spec));
                Some(rule)
            }
            None => {
                explain!(self, "table {table}: no match");
                None
            }
        }
    }

    /// Runs the actions of the flow in table 0, and all lists of actions that they lead to; then the action set.
    pub(super) fn run(&mut self) -> Result<(), Reason> {
        let Some(rule) = self.find(0) else {
            self.t.reason = Some(DropReason::NoFlow);
            return Ok(());
        };
        self.walk(rule.actions(), Some(rule), true)?;
        self.run_set()
    }

    /// Executes the action set, after which it is empty.
    fn run_set(&mut self) -> Result<(), Reason> {
        let set = self.set;
        self.set.clear();
        for action in action_set(set.actions()) {
            self.indent = 0;
            match action {
                Action::DecTtl if !self.dec_ttl_if_ip() => return Ok(()),
                Action::DecMplsTtl if !self.dec_mpls_ttl() => return Ok(()),
                Action::DecTtl | Action::DecMplsTtl => {}
                action => self.walk(std::slice::from_ref(action), None, false)?,
            }
        }
        Ok(())
    }

    /// Decrements the TTL of an IP packet. Returns `false` if it is 0 or 1.
    fn dec_ttl_if_ip(&mut self) -> bool {
        let done = !self.is_ip() || self.dec_ttl();
        if !done {
            explain!(self, "dec_ttl: the TTL is 0 or 1");
            self.t.reason = Some(DropReason::TtlExceeded);
        }
        done
    }

    /// Runs a list of actions and all lists that it leads to. `rule` is the flow that the list belongs to, if it
    /// belongs to one. `sets` is `true` if clones execute their action sets.
    fn walk(&mut self, actions: &'t [Action], rule: Option<&'t Arc<Rule>>, sets: bool) -> Result<(), Reason> {
        let mut lists = Lists::new(Frame { actions, rule, ..Frame::EMPTY });
        while let Some(frame) = lists.last() {
            if let Some((action, rest)) = frame.actions.split_first() {
                frame.actions = rest;
                let frame = *frame;
                self.indent = lists.len;
                self.step(action, frame, &mut lists)?;
            } else {
                self.end_list(&mut lists, sets)?;
            }
        }
        Ok(())
    }

    /// Runs one action of the innermost list, `frame`.
    fn step(&mut self, action: &'t Action, frame: Frame<'t>, lists: &mut Lists<'t>) -> Result<(), Reason> {
        let Frame { table, depth, rule, .. } = frame;
        match action {
            Action::Resubmit(port, to) => {
                self.limit(depth)?;
                let to = to.unwrap_or(table);
                let own = Field::InPort.get(&self.now.flow);
                if let Some(port) = port.filter(|p| *p != OfPort::IN_PORT) {
                    Field::InPort.set(&mut self.now.flow, port.0.into());
                }
                // The megaflow mask always includes the ingress port, so it need not be recorded here.
                let found = self.find(to);
                Field::InPort.set(&mut self.now.flow, own);
                let deeper = depth + u32::from(to <= table);
                if let Some(found) = found {
                    self.t.resubmits += 1;
                    self.enter(lists, Frame::of(found, to, deeper))?;
                }
            }
            Action::Goto(to) => {
                self.limit(depth)?;
                if let Some(found) = self.find(*to) {
                    self.t.resubmits += 1;
                    self.enter(lists, Frame::of(found, *to, depth))?;
                }
            }
            Action::Group(id) => {
                self.limit(depth)?;
                self.enter_group(*id, frame, lists)?;
            }
            Action::DecTtl => {
                if !self.dec_ttl_if_ip() {
                    lists.leave();
                }
            }
            Action::DecMplsTtl => {
                if !self.dec_mpls_ttl() {
                    lists.leave();
                }
            }
            Action::Exit => self.exit(lists),
            Action::Clone(actions) => {
                self.limit(depth)?;
                explain!(self, "clone");
                self.t.resubmits += 1;
                self.t.saved.push(self.now);
                let len = self.t.stack.len();
                let end = End::Clone { stack: (self.bottom as u32, len as u32), set: self.set.extent() };
                self.t.stack.extend_from_within(self.bottom..);
                self.bottom = len;
                self.enter(lists, Frame { actions, end, ..frame })?;
            }
            Action::FinTimeout(timeouts) => {
                if let Some(rule) = rule {
                    explain!(self, "{action}");
                    self.fin_timeout(rule, *timeouts)?;
                }
            }
            Action::WriteActions(actions) => {
                explain!(self, "{action}");
                if !self.set.write(actions) {
                    explain!(self, "dropped: the action set is full");
                    return Err(DropReason::TooManyResubmits);
                }
            }
            other => self.act(other)?,
        }
        Ok(())
    }

    /// Does what follows the last action of the innermost list.
    fn end_list(&mut self, lists: &mut Lists<'t>, sets: bool) -> Result<(), Reason> {
        let Some(frame) = lists.last() else { return Ok(()) };
        match frame.end {
            End::List => lists.pop(),
            end @ End::Clone { .. } => {
                lists.pop();
                if sets {
                    self.run_set()?;
                }
                self.leave_clone(end);
            }
            End::Bucket(group, next) => {
                self.now = *self.t.saved.last().expect("a bucket has a saved state");
                if group.spec.kind != GroupKind::All || next as usize >= group.actions.len() {
                    self.t.saved.pop();
                    lists.pop();
                } else {
                    self.limit(0)?;
                    self.t.resubmits += 1;
                    frame.end = End::Bucket(group, next + 1);
                    frame.actions = &group.actions[next as usize];
                }
            }
        }
        Ok(())
    }

    /// Enters the bucket of a group that is to run, or the first one if all are.
    fn enter_group(&mut self, id: u32, frame: Frame<'t>, lists: &mut Lists<'t>) -> Result<(), Reason> {
        let Some(group) = self.pipeline.groups.get(&id) else {
            explain!(self, "group {id} does not exist");
            lists.leave();
            return Ok(());
        };
        let Some(first) = self.pick(group) else {
            explain!(self, "group {id}: no bucket is live");
            return Ok(());
        };
        explain!(self, "group {id}: bucket {}", group.spec.buckets[first].id);
        // Chains of groups can be as endless as resubmits, so they share the limit.
        self.t.resubmits += 1;
        self.t.saved.push(self.now);
        let end = End::Bucket(group, first as u32 + 1);
        self.enter(lists, Frame { actions: &group.actions[first], depth: frame.depth + 1, end, ..frame })
    }

    /// Ends the innermost bucket, or all lists outside of buckets. The group's other buckets and the actions behind the
    /// group still run.
    fn exit(&mut self, lists: &mut Lists<'t>) {
        while let Some(frame) = lists.last() {
            frame.actions = &[];
            if matches!(frame.end, End::Bucket(..)) {
                break;
            }
            let end = frame.end;
            lists.pop();
            self.leave_clone(end);
        }
    }

    /// Restores what a clone has changed, if this is the end of one.
    fn leave_clone(&mut self, end: End<'_>) {
        if let End::Clone { stack: (bottom, len), set } = end {
            self.t.stack.truncate(len as usize);
            self.bottom = bottom as usize;
            self.set.restore(set);
            self.now = self.t.saved.pop().expect("a clone has a saved state");
        }
    }

    /// Makes a list of actions the innermost one.
    fn enter(&mut self, lists: &mut Lists<'t>, frame: Frame<'t>) -> Result<(), Reason> {
        if lists.push(frame) {
            return Ok(());
        }
        explain!(self, "dropped: too many lists of actions inside each other");
        Err(DropReason::TooManyResubmits)
    }

    fn limit(&mut self, depth: u32) -> Result<(), Reason> {
        if depth >= DEPTH || self.t.resubmits >= RESUBMITS {
            explain!(self, "dropped: too many resubmits");
            return Err(DropReason::TooManyResubmits);
        }
        Ok(())
    }

    /// Returns the index of the bucket to run, or of the first one if all are to be run.
    fn pick(&mut self, group: &Group) -> Option<usize> {
        let n = group.spec.buckets.len();
        let mut budget = RESUBMITS.saturating_sub(self.t.resubmits);
        let picked = match group.spec.kind {
            GroupKind::All | GroupKind::Indirect => (n > 0).then_some(0),
            GroupKind::FastFailover => (0..n).find(|b| self.pipeline.alive(group, *b, &mut budget)),
            GroupKind::Select => {
                self.unwildcard(&group.hashed);
                let hash = hash_words(&(self.now.flow & group.hashed).0, u64::from(group.spec.id));
                // Weighted rendezvous hashing: each bucket draws a number for the flow, and the highest one, adjusted
                // by weight, wins. If a bucket is added or removed, only its own flows move.
                let score = |b: usize| {
                    let bucket = &group.spec.buckets[b];
                    let draw = hash_words(&[hash, u64::from(bucket.id)], hash) >> 11;
                    let uniform = (draw as f64 + 1.0) / (1u64 << 53) as f64;
                    uniform.ln() / f64::from(bucket.weight)
                };
                let weighs = (0..n).filter(|b| group.spec.buckets[*b].weight > 0);
                let usable = weighs.filter(|b| self.pipeline.alive(group, *b, &mut budget));
                usable.max_by(|a, b| score(*a).total_cmp(&score(*b)))
            }
        };
        self.t.resubmits = RESUBMITS - budget;
        picked
    }
}
