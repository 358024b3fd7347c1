//! One flow table: the best flow for a packet, by tuple-space search, and the bits that had to be looked at to find it.

use crate::key::{FLOW_WORDS, Flow, at};
use crate::model::{Action, FlowSpec, Match};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A flow in a table.
#[derive(Debug)]
pub struct Rule {
    /// As it was asked for.
    pub spec: FlowSpec,
    /// Where its counters are.
    pub slot: u32,
}

impl Rule {
    /// What it does.
    pub fn actions(&self) -> &[Action] {
        &self.spec.actions
    }
}

/// Bits by the stage they are looked at in, in bytes of a [`Flow`]: metadata, Ethernet, network; the rest is the last
/// stage. What a miss shows at one stage need not be looked at further.
const STAGES: [&[Range<usize>]; 3] = [
    &[at::METADATA..FLOW_WORDS * 8, at::IN_PORT..at::IN_PORT + 2],
    &[at::DL_DST..at::VLAN_TCI, at::VLAN_TCI..at::IN_PORT],
    &[at::NW_TOS..at::NW_FRAG + 1, at::LABEL..at::METADATA],
];

/// The bits of all stages up to this one.
fn stage_mask(stage: usize) -> Flow {
    let mut mask = Flow::default();
    for range in STAGES[..=stage].iter().copied().flatten() {
        mask.bytes_mut()[range.clone()].fill(0xff);
    }
    mask
}

/// How often bits under some mask occur among a subtable's flows.
type Seen = HashMap<Box<[u64]>, u32>;

/// Flows with one mask.
#[derive(Clone, Debug)]
struct Subtable {
    mask: Flow,
    /// The highest priority in it.
    top: u16,
    /// Masks of the stages before the last, each wider than the one before, with the packets' bits that occur, and how
    /// often.
    stages: Vec<(Flow, Seen)>,
    /// By the masked bits: the flows, highest priority first.
    flows: HashMap<Box<[u64]>, Vec<Arc<Rule>>>,
    rules: usize,
}

/// The words of `flow` that `mask` has bits in, masked.
fn pack(flow: &Flow, mask: &Flow, into: &mut [u64; FLOW_WORDS]) -> usize {
    let mut n = 0;
    for (f, m) in flow.0.iter().zip(&mask.0).filter(|(_, m)| **m != 0) {
        into[n] = f & m;
        n += 1;
    }
    n
}

fn packed(flow: &Flow, mask: &Flow) -> Box<[u64]> {
    let mut words = [0; FLOW_WORDS];
    let n = pack(flow, mask, &mut words);
    words[..n].into()
}

impl Subtable {
    fn new(mask: Flow) -> Self {
        let mut stages: Vec<(Flow, HashMap<_, _>)> = Vec::new();
        for stage in 0..STAGES.len() {
            let part = mask & stage_mask(stage);
            let before = stages.last().map_or_else(Flow::default, |(mask, _)| *mask);
            if part != before && part != mask {
                stages.push((part, HashMap::new()));
            }
        }
        Self { mask, top: 0, stages, flows: HashMap::new(), rules: 0 }
    }

    fn insert(&mut self, rule: &Arc<Rule>) {
        let value = &rule.spec.matches.value;
        for (mask, seen) in &mut self.stages {
            *seen.entry(packed(value, mask)).or_default() += 1;
        }
        let list = self.flows.entry(packed(value, &self.mask)).or_default();
        let at = list.partition_point(|r| r.spec.priority > rule.spec.priority);
        list.insert(at, rule.clone());
        self.top = self.top.max(rule.spec.priority);
        self.rules += 1;
    }

    fn remove(&mut self, rule: &Rule) {
        let value = &rule.spec.matches.value;
        let key = packed(value, &self.mask);
        let Some(list) = self.flows.get_mut(&key) else { return };
        let before = list.len();
        list.retain(|r| r.slot != rule.slot);
        if list.len() == before {
            return;
        }
        if list.is_empty() {
            self.flows.remove(&key);
        }
        for (mask, seen) in &mut self.stages {
            let key = packed(value, mask);
            if let Some(count) = seen.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    seen.remove(&key);
                }
            }
        }
        self.rules -= 1;
        // `top` may stay too high: it only costs a look.
    }

    /// The best flow for `flow`; `look` gets the bits that say so.
    fn find(&self, flow: &Flow, look: &mut impl FnMut(&Flow)) -> Option<&Arc<Rule>> {
        let mut words = [0; FLOW_WORDS];
        for (mask, seen) in &self.stages {
            let n = pack(flow, mask, &mut words);
            if !seen.contains_key(&words[..n]) {
                look(mask);
                return None;
            }
        }
        look(&self.mask);
        let n = pack(flow, &self.mask, &mut words);
        self.flows.get(&words[..n])?.first()
    }
}

/// A flow table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Highest priority first.
    subtables: Vec<Subtable>,
    /// When it was last changed: the pipeline's generation then.
    pub(crate) changed: u64,
}

impl Table {
    /// Adds a flow that is not in it.
    pub fn insert(&mut self, rule: &Arc<Rule>) {
        let mask = rule.spec.matches.mask;
        let at = match self.subtables.iter().position(|s| s.mask == mask) {
            Some(at) => at,
            None => {
                self.subtables.push(Subtable::new(mask));
                self.subtables.len() - 1
            }
        };
        self.subtables[at].insert(rule);
        self.subtables.sort_by_key(|s| std::cmp::Reverse(s.top));
    }

    /// Removes a flow that is in it.
    pub fn remove(&mut self, rule: &Rule) {
        let Some(at) = self.subtables.iter().position(|s| s.mask == rule.spec.matches.mask) else { return };
        self.subtables[at].remove(rule);
        if self.subtables[at].rules == 0 {
            self.subtables.remove(at);
        }
    }

    /// The flow of the highest priority that matches; of several, whichever. `look` gets the bits that decide it: any
    /// packet with the same bits has the same answer.
    pub fn lookup(&self, flow: &Flow, mut look: impl FnMut(&Flow)) -> Option<&Arc<Rule>> {
        let mut best: Option<&Arc<Rule>> = None;
        for subtable in &self.subtables {
            if best.is_some_and(|b| b.spec.priority >= subtable.top) {
                break;
            }
            if let Some(found) = subtable.find(flow, &mut look)
                && best.is_none_or(|b| found.spec.priority > b.spec.priority)
            {
                best = Some(found);
            }
        }
        best
    }

    /// The flow with exactly this match and priority.
    pub fn exact(&self, matches: &Match, priority: u16) -> Option<&Arc<Rule>> {
        let subtable = self.subtables.iter().find(|s| s.mask == matches.mask)?;
        let list = subtable.flows.get(&packed(&matches.value, &matches.mask))?;
        list.iter().find(|r| r.spec.priority == priority)
    }

    /// Every flow.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.subtables.iter().flat_map(|s| s.flows.values().flatten())
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.subtables.iter().map(|s| s.rules).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.subtables.is_empty()
    }

    /// Number of different masks.
    pub fn masks(&self) -> usize {
        self.subtables.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Field;
    use proptest::prelude::*;

    /// Few values in few fields, so that flows overlap and packets meet them.
    fn matches() -> impl Strategy<Value = Match> {
        proptest::collection::vec((0..6usize, 0..4u128, 0..3usize), 0..4).prop_map(|parts| {
            let mut m = Match::default();
            for (field, value, mask) in parts {
                let field =
                    [Field::InPort, Field::DlDst, Field::NwSrc, Field::TpDst, Field::Reg3, Field::DlType][field];
                let mask = [u128::MAX, 1, 2][mask];
                if field.get(&m.mask) == 0 {
                    m.add(field, value & mask, mask);
                }
            }
            m
        })
    }

    fn packet() -> impl Strategy<Value = Flow> {
        proptest::array::uniform6(0..4u128).prop_map(|v| {
            let mut flow = Flow::default();
            for (field, value) in
                [Field::InPort, Field::DlDst, Field::NwSrc, Field::TpDst, Field::Reg3, Field::DlType].into_iter().zip(v)
            {
                field.set(&mut flow, value);
            }
            flow
        })
    }

    fn rule(slot: usize, priority: u16, matches: Match) -> Arc<Rule> {
        let spec = crate::syntax::flow("actions=drop", &|_| None).unwrap();
        Arc::new(Rule { spec: FlowSpec { priority, matches, ..spec }, slot: slot as u32 })
    }

    proptest! {
        /// Lookups are as in a list, and the bits looked at decide them.
        #[test]
        fn like_a_list(specs in proptest::collection::vec((matches(), 0..4u16), 0..20),
                       gone in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
                       packets in proptest::collection::vec((packet(), packet()), 20)) {
            let mut table = Table::default();
            let mut list: Vec<Arc<Rule>> = Vec::new();
            for (i, (m, priority)) in specs.into_iter().enumerate() {
                if table.exact(&m, priority).is_none() {
                    let rule = rule(i, priority, m);
                    table.insert(&rule);
                    list.push(rule);
                }
            }
            for at in gone {
                if !list.is_empty() {
                    let rule = list.remove(at.index(list.len()));
                    table.remove(&rule);
                    prop_assert!(table.exact(&rule.spec.matches, rule.spec.priority).is_none());
                }
            }
            prop_assert_eq!(table.len(), list.len());
            prop_assert_eq!(table.rules().count(), list.len());
            for (packet, noise) in packets {
                let best = list.iter().filter(|r| r.spec.matches.matches(&packet)).map(|r| r.spec.priority).max();
                let mut looked = Flow::default();
                let found = table.lookup(&packet, |mask| looked = looked | *mask);
                prop_assert_eq!(found.map(|r| r.spec.priority), best);
                prop_assert!(found.is_none_or(|r| r.spec.matches.matches(&packet)));
                let other = packet.or_else(&looked, &noise);
                prop_assert_eq!(table.lookup(&other, |_| ()).map(|r| r.slot), found.map(|r| r.slot));
            }
        }
    }
}
