//! Traversal of tables and groups, with its limits.

use super::{DEPTH, MAX_RULES, NEST, RESUBMITS, Reason, Trip, tell};
use crate::field::Field;
use crate::key::{FRAG_ANY, Flow, at, hash_words};
use crate::model::{Action, GroupKind, OfPort};
use crate::pipeline::Group;
use bywash_engine::DropReason;

/// Remaining actions of a list.
#[derive(Clone, Copy)]
struct Frame<'t> {
    actions: &'t [Action],
    table: u8,
    depth: u32,
    /// For a group's bucket: the group and the index of its next bucket. The state to return to is in `saved`.
    bucket: Option<(&'t Group, usize)>,
}

impl<'t> Trip<'_, 't> {
    /// Returns the actions of the flow in this table that matches the packet in its current state.
    fn find(&mut self, table: u8) -> Option<&'t [Action]> {
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
                tell!(self, "table {table}: {}", crate::syntax::Shown(&rule.spec));
                Some(rule.actions())
            }
            None => {
                tell!(self, "table {table}: no match");
                None
            }
        }
    }

    /// Runs the actions of the flow in table 0, and all lists of actions that they lead to.
    pub(super) fn run(&mut self) -> Result<(), Reason> {
        const NONE: Frame<'_> = Frame { actions: &[], table: 0, depth: 0, bucket: None };
        let mut stack = [NONE; NEST];
        let Some(actions) = self.find(0) else {
            self.t.reason = Some(DropReason::NoFlow);
            return Ok(());
        };
        stack[0] = Frame { actions, ..NONE };
        let mut top = 1;
        while top > 0 {
            let frame = &mut stack[top - 1];
            let Some((action, rest)) = frame.actions.split_first() else {
                match frame.bucket {
                    None => top -= 1,
                    Some((group, next)) => {
                        self.now = *self.t.saved.last().expect("a bucket has a saved state");
                        if group.spec.kind != GroupKind::All || next >= group.actions.len() {
                            self.t.saved.pop();
                            top -= 1;
                        } else {
                            self.limit(0)?;
                            self.t.resubmits += 1;
                            frame.bucket = Some((group, next + 1));
                            frame.actions = &group.actions[next];
                        }
                    }
                }
                continue;
            };
            frame.actions = rest;
            let (table, depth) = (frame.table, frame.depth);
            self.depth_of_story = top;
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
                    if let Some(actions) = found {
                        self.t.resubmits += 1;
                        enter(&mut stack, &mut top, Frame { actions, table: to, depth: deeper, bucket: None })?;
                    }
                }
                Action::Goto(to) => {
                    self.limit(depth)?;
                    if let Some(actions) = self.find(*to) {
                        self.t.resubmits += 1;
                        enter(&mut stack, &mut top, Frame { actions, table: *to, depth, bucket: None })?;
                    }
                }
                Action::Group(id) => {
                    self.limit(depth)?;
                    let Some(group) = self.pipeline.groups.get(id) else {
                        tell!(self, "group {id} does not exist");
                        leave_list(&mut stack[top - 1]);
                        continue;
                    };
                    if let Some(first) = self.pick(group) {
                        tell!(self, "group {id}: bucket {}", group.spec.buckets[first].id);
                        // Chains of groups can be as endless as resubmits, so they share the limit.
                        self.t.resubmits += 1;
                        self.t.saved.push(self.now);
                        let bucket = Some((&**group, first + 1));
                        let frame = Frame { actions: &group.actions[first], table, depth: depth + 1, bucket };
                        enter(&mut stack, &mut top, frame)?;
                    } else {
                        tell!(self, "group {id}: no bucket is live");
                    }
                }
                Action::DecTtl => {
                    if self.is_ip() && !self.dec_ttl() {
                        tell!(self, "dec_ttl: the TTL is 0 or 1");
                        self.t.reason = Some(DropReason::TtlExceeded);
                        leave_list(&mut stack[top - 1]);
                    }
                }
                Action::Exit => {
                    // `exit` ends the bucket: the group's other buckets and the actions behind the group still run.
                    while top > 0 {
                        leave_list(&mut stack[top - 1]);
                        if stack[top - 1].bucket.is_some() {
                            break;
                        }
                        top -= 1;
                    }
                }
                other => self.act(other)?,
            }
        }
        Ok(())
    }

    fn limit(&mut self, depth: u32) -> Result<(), Reason> {
        if depth >= DEPTH || self.t.resubmits >= RESUBMITS {
            tell!(self, "dropped: too many resubmits");
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

fn leave_list(frame: &mut Frame<'_>) {
    frame.actions = &[];
}

/// Pushes a list of actions; it replaces the top of the stack if that list has ended.
fn enter<'t>(stack: &mut [Frame<'t>; NEST], top: &mut usize, frame: Frame<'t>) -> Result<(), Reason> {
    let ended = |f: &Frame<'_>| f.actions.is_empty() && f.bucket.is_none();
    if *top > 0 && ended(&stack[*top - 1]) {
        *top -= 1;
    }
    if *top == NEST {
        return Err(DropReason::TooManyResubmits);
    }
    stack[*top] = frame;
    *top += 1;
    Ok(())
}
