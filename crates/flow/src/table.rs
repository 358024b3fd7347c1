//! Flow table: finds the best flow for a packet by tuple-space search and reports the bits that decided it.

use crate::field::Field;
use crate::key::{FLOW_WORDS, Flow, at};
use crate::model::{Action, FlowSpec, Match};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Flow in a table.
#[derive(Debug)]
pub struct Rule {
    /// Specification of the flow.
    pub spec: FlowSpec,
    /// Slot of its counters.
    pub slot: u32,
}

impl Rule {
    /// Returns the flow's actions.
    pub fn actions(&self) -> &[Action] {
        &self.spec.actions
    }

    /// Returns `true` if the flow is a part of conjunctions, and matches no packet by itself.
    fn is_part(&self) -> bool {
        matches!(self.spec.actions.first(), Some(Action::Conjunction { .. }))
    }
}

/// Byte ranges of a [`Flow`] by lookup stage: metadata, Ethernet, network. All remaining bytes belong to the last
/// stage. A miss at one stage makes the bits of later stages irrelevant.
const STAGES: [&[Range<usize>]; 3] = [
    &[at::METADATA..FLOW_WORDS * 8, at::IN_PORT..at::IN_PORT + 2],
    &[at::DL_DST..at::VLAN_TCI, at::VLAN_TCI..at::IN_PORT],
    &[at::NW_TOS..at::NW_FRAG + 1, at::LABEL..at::METADATA],
];

/// Returns the mask of all stages up to and including this one.
fn stage_mask(stage: usize) -> Flow {
    let mut mask = Flow::default();
    for range in STAGES[..=stage].iter().copied().flatten() {
        mask.bytes_mut()[range.clone()].fill(0xff);
    }
    mask
}

/// Number of occurrences of each masked value among a subtable's flows.
type Seen = HashMap<Box<[u64]>, u32>;

/// Flows that share one mask.
#[derive(Clone, Debug)]
struct Subtable {
    mask: Flow,
    /// Upper bound of the priorities in it.
    top: u16,
    /// Masks of the stages before the last, each wider than the one before, with the masked values that occur and how
    /// often.
    stages: Vec<(Flow, Seen)>,
    /// Flows by masked value, highest priority first.
    flows: HashMap<Box<[u64]>, Vec<Arc<Rule>>>,
    rules: usize,
}

/// Writes the masked words of `flow` for which `mask` is not zero to `into` and returns their number.
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
        // `top` may stay too high, which only costs a needless lookup.
    }

    /// Returns the flows that match `flow`, best first; `unwildcard` receives the bits that decide the result.
    fn find(&self, flow: &Flow, unwildcard: &mut impl FnMut(&Flow)) -> &[Arc<Rule>] {
        let mut words = [0; FLOW_WORDS];
        for (mask, seen) in &self.stages {
            let n = pack(flow, mask, &mut words);
            if !seen.contains_key(&words[..n]) {
                unwildcard(mask);
                return &[];
            }
        }
        unwildcard(&self.mask);
        let n = pack(flow, &self.mask, &mut words);
        self.flows.get(&words[..n]).map_or(&[], Vec::as_slice)
    }
}

/// Returns the numbers of the conjunctions of which all parts are there, in ascending order.
fn complete(parts: &[&Arc<Rule>]) -> Vec<u32> {
    // Number of parts by the first flow, and the set of those that are there.
    let mut seen: BTreeMap<u32, (u8, u64)> = BTreeMap::new();
    for action in parts.iter().flat_map(|rule| rule.actions()) {
        if let Action::Conjunction { id, part, parts } = action {
            seen.entry(*id).or_insert((*parts, 0)).1 |= 1 << ((part - 1) & 63);
        }
    }
    let all = |parts: u8| u64::MAX.checked_shr(64 - u32::from(parts)).unwrap_or_default();
    seen.retain(|_, (parts, there)| *there & all(*parts) == all(*parts));
    seen.into_keys().collect()
}

/// Flow table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Subtables, highest priority first.
    subtables: Vec<Subtable>,
    /// Number of flows that are parts of conjunctions.
    parts: usize,
    /// Pipeline generation of its last change.
    pub(crate) changed: u64,
}

impl Table {
    /// Adds a flow, which must not be in the table yet.
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
        self.parts += usize::from(rule.is_part());
        self.subtables.sort_by_key(|s| std::cmp::Reverse(s.top));
    }

    /// Removes a flow, if it is in the table.
    pub fn remove(&mut self, rule: &Rule) {
        let Some(at) = self.subtables.iter().position(|s| s.mask == rule.spec.matches.mask) else { return };
        let before = self.subtables[at].rules;
        self.subtables[at].remove(rule);
        if self.subtables[at].rules < before {
            self.parts -= usize::from(rule.is_part());
        }
        if self.subtables[at].rules == 0 {
            self.subtables.remove(at);
        }
    }

    /// Returns the matching flow with the highest priority; among several with the same priority, any of them.
    /// `unwildcard` receives the bits that decide the result: every packet that agrees in these bits has the same
    /// result.
    pub fn lookup(&self, flow: &Flow, mut unwildcard: impl FnMut(&Flow)) -> Option<&Arc<Rule>> {
        if self.parts == 0 {
            return self.best(flow, &mut unwildcard, |_| ());
        }
        let mut parts: Vec<&Arc<Rule>> = Vec::new();
        let best = self.best(flow, &mut unwildcard, |part| parts.push(part));
        parts.retain(|part| best.is_none_or(|best| part.spec.priority > best.spec.priority));
        parts.sort_by_key(|part| std::cmp::Reverse(part.spec.priority));
        for parts in parts.chunk_by(|a, b| a.spec.priority == b.spec.priority) {
            for id in complete(parts) {
                let mut flow = *flow;
                Field::ConjId.set(&mut flow, id.into());
                let found = self.best(&flow, &mut unwildcard, |_| ());
                if found.is_some() {
                    return found;
                }
            }
        }
        best
    }

    /// Does the same as [`Table::lookup`], but for parts of conjunctions: `part` receives each that matches and may
    /// have a higher priority than the result.
    fn best<'a>(
        &'a self,
        flow: &Flow,
        unwildcard: &mut impl FnMut(&Flow),
        mut part: impl FnMut(&'a Arc<Rule>),
    ) -> Option<&'a Arc<Rule>> {
        let mut best: Option<&Arc<Rule>> = None;
        for subtable in &self.subtables {
            if best.is_some_and(|b| b.spec.priority >= subtable.top) {
                break;
            }
            let mut found = subtable.find(flow, unwildcard).iter();
            let found = if self.parts == 0 {
                found.next()
            } else {
                found.find(|rule| {
                    if rule.is_part() {
                        part(rule);
                    }
                    !rule.is_part()
                })
            };
            if let Some(found) = found
                && best.is_none_or(|b| found.spec.priority > b.spec.priority)
            {
                best = Some(found);
            }
        }
        best
    }

    /// Returns the flow with exactly this match and priority.
    pub fn exact(&self, matches: &Match, priority: u16) -> Option<&Arc<Rule>> {
        let subtable = self.subtables.iter().find(|s| s.mask == matches.mask)?;
        let list = subtable.flows.get(&packed(&matches.value, &matches.mask))?;
        list.iter().find(|r| r.spec.priority == priority)
    }

    /// Returns an iterator over all flows.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.subtables.iter().flat_map(|s| s.flows.values().flatten())
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.subtables.iter().map(|s| s.rules).sum()
    }

    /// Returns `true` if there are no flows.
    pub fn is_empty(&self) -> bool {
        self.subtables.is_empty()
    }

    /// Returns the number of different masks.
    pub fn masks(&self) -> usize {
        self.subtables.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates matches with few values in few fields, so that flows overlap and packets hit them.
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
        /// Lookups agree with a linear search, and the reported bits decide them.
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
                let mut unwildcarded = Flow::default();
                let found = table.lookup(&packet, |mask| unwildcarded = unwildcarded | *mask);
                prop_assert_eq!(found.map(|r| r.spec.priority), best);
                prop_assert!(found.is_none_or(|r| r.spec.matches.matches(&packet)));
                let other = packet.or_else(&unwildcarded, &noise);
                prop_assert_eq!(table.lookup(&other, |_| ()).map(|r| r.slot), found.map(|r| r.slot));
            }
        }
    }
}
