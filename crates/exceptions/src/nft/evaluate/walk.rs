//! The rules of a table, run for the packets of a flow.

use super::answer::{Cause, Counter, Finding, Place};
use crate::nft::expression::{To, source_nat};
use crate::nft::flow::{Course, Flow, Load, Tuple, View};
use crate::nft::octets::{self, Octet, Of, Truth, Why, known, unknown};
use crate::nft::{Chain, Data, Element, Expression, Rule, Set, Table, Verdict, meta, xt};
use std::collections::HashMap;
use std::net::IpAddr;

/// NFT_JUMP_STACK_SIZE: the kernel rejects rulesets with deeper jumps.
const DEPTH: usize = 16;
/// Maximum number of rules evaluated for one flow: chains that jump to each other repeatedly multiply them.
const RULES: usize = 1 << 18;
/// Maximum number of set elements compared with keys for one flow: partly unknown keys are compared with all.
pub const SCANNED: usize = 1 << 22;
/// Maximum number of findings of a kind that are reported: a ruleset may have thousands of rules.
const FINDINGS: usize = 32;
/// Octets of all data registers.
const REGISTERS: usize = 64;

/// Chains and sets of a table.
#[derive(Clone, Debug)]
pub struct Names<'a> {
    chains: HashMap<&'a str, &'a Chain>,
    sets: HashMap<&'a str, Known<'a>>,
}

/// A set, and the properties of all lookups in it.
#[derive(Clone, Copy, Debug)]
struct Known<'a> {
    set: &'a Set,
    /// Side effect that a lookup may have, if any.
    acts: Option<&'a str>,
    /// Set if a rule adds, changes or removes elements. Such a set need not be marked in any way.
    updated: bool,
}

impl<'a> Names<'a> {
    pub fn of(table: &'a Table) -> Self {
        let expressions = table.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.expressions);
        let mut updated: HashMap<&str, Option<&'a str>> = HashMap::new();
        for expression in expressions {
            if let Expression::Update { set, acts, .. } = expression {
                let of_set = updated.entry(set).or_default();
                *of_set = of_set.or(acts.as_deref());
            }
        }
        let known = |set: &'a Set| {
            let update = updated.get(set.name.as_str());
            Known { set, acts: set.acts().or(update.copied().flatten()), updated: update.is_some() }
        };
        Self {
            chains: table.chains.iter().map(|chain| (chain.name.as_str(), chain)).collect(),
            sets: table.sets.iter().map(|set| (set.name.as_str(), known(set))).collect(),
        }
    }
}

/// Returns a chain's place, or that of a rule in it.
pub fn place(table: &Table, chain: &Chain, rule: Option<&Rule>) -> Place {
    Place {
        family: table.family.to_string(),
        table: table.name.clone(),
        chain: chain.name.clone(),
        rule: rule.map(|rule| rule.handle),
    }
}

/// Outcomes that are possible for the packets that reach a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    pub accept: bool,
    pub drop: bool,
    /// Only the kernel can tell.
    pub kernel: bool,
    /// The chain ends without a verdict.
    pub through: bool,
}

impl Outcomes {
    pub const DROP: Self = Self { accept: false, drop: true, kernel: false, through: false };
    pub const KERNEL: Self = Self { accept: false, drop: false, kernel: true, through: false };

    fn add(&mut self, other: Self) {
        self.accept |= other.accept;
        self.drop |= other.drop;
        self.kernel |= other.kernel;
        self.through |= other.through;
    }
}

/// A rule that is run, and its result so far.
struct Step<'a> {
    chain: &'a Chain,
    rule: &'a Rule,
    /// Number of jumps that lead to the chain.
    depth: usize,
    /// Value that decides which packets are still in the rule, if not all are.
    certain: Option<Why<'a>>,
    out: Outcomes,
    /// Set if packets may go on to the next rule.
    goes_on: bool,
    /// Value that decides which packets go on, if not all or none do.
    split: Option<Why<'a>>,
}

impl<'a> Step<'a> {
    fn new(chain: &'a Chain, rule: &'a Rule, depth: usize) -> Self {
        Self { chain, rule, depth, certain: None, out: Outcomes::default(), goes_on: true, split: None }
    }
}

/// Findings of an evaluation so far.
#[derive(Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    pub counters: Vec<Counter>,
    pub dropped: Option<Place>,
    pub masquerades: bool,
    rules: usize,
    /// Elements of sets that were compared with a key.
    scanned: usize,
}

impl Report {
    /// Adds a finding, unless it is known or there are enough of its kind.
    pub fn add(&mut self, finding: Finding) {
        let alike = |other: &&Finding| other.cause == finding.cause && other.some == finding.some;
        let known = self.findings.iter().filter(alike).count();
        if known < FINDINGS && !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}

/// State of an evaluation in one table.
pub struct Walk<'a, 'e> {
    table: &'a Table,
    names: &'e Names<'a>,
    view: View<'e>,
    registers: [Octet<'a>; REGISTERS],
    /// Value that decides which packets reach the rule, if not all do.
    reach: Option<Why<'a>>,
    report: &'e mut Report,
}

const UNSET: Why<'static> = Why { of: Of::Packets, what: "register without a value" };

pub const fn packets(what: &str) -> Why<'_> {
    Why { of: Of::Packets, what }
}

/// Returns the weaker of two reasons, the first if they are alike.
fn weaker<'a>(one: Option<Why<'a>>, other: Option<Why<'a>>) -> Option<Why<'a>> {
    match (one, other) {
        (Some(first), Some(second)) if second.of > first.of => other,
        (Some(_), _) => one,
        (None, _) => other,
    }
}

impl<'a, 'e> Walk<'a, 'e> {
    pub fn new(
        (table, names): (&'a Table, &'e Names<'a>),
        view: View<'e>,
        reach: Option<Why<'a>>,
        report: &'e mut Report,
    ) -> Self {
        Self { table, names, view, registers: [Octet::unknown(UNSET); REGISTERS], reach, report }
    }

    /// Runs a chain. Returns the outcomes, and the value that decides between them.
    pub fn chain(&mut self, chain: &'a Chain, depth: usize) -> (Outcomes, Option<Why<'a>>) {
        if let Some(why) = &chain.opaque {
            return (self.gives_up(chain, why), None);
        }
        if depth > DEPTH {
            return (self.gives_up(chain, "jumps nested too deeply"), None);
        }
        let before = self.reach;
        let (mut out, mut split) = (Outcomes::default(), None);
        let mut goes_on = true;
        for rule in &chain.rules {
            self.report.rules += 1;
            if self.report.rules > RULES {
                out.add(self.gives_up(chain, "too many rules"));
                goes_on = false;
                break;
            }
            let mut step = Step::new(chain, rule, depth);
            self.rule(&mut step);
            out.add(step.out);
            split = weaker(split, step.split);
            self.reach = weaker(self.reach, step.split);
            goes_on = step.goes_on;
            if !goes_on {
                break;
            }
        }
        self.reach = before;
        out.through |= goes_on;
        (out, split)
    }

    fn gives_up(&mut self, chain: &Chain, why: &str) -> Outcomes {
        let place = place(self.table, chain, None);
        self.report.add(Finding::of(place, Cause::Acts, why, self.reach, self.view.tracked() == Some(true)));
        Outcomes::KERNEL
    }

    fn store(&mut self, register: usize, octets: &[Octet<'a>]) {
        for (to, octet) in self.registers.iter_mut().skip(register).zip(octets) {
            *to = *octet;
        }
    }

    fn register(&self, register: usize, len: usize) -> Option<&[Octet<'a>]> {
        self.registers.get(register..register.checked_add(len)?)
    }

    /// Runs a rule. Values that an earlier rule has left in registers are not used: nft loads them again.
    fn rule(&mut self, step: &mut Step<'a>) {
        self.registers = [Octet::unknown(UNSET); REGISTERS];
        for (at, expression) in step.rule.expressions.iter().enumerate() {
            let truth = match expression {
                Expression::Verdict(Verdict::Continue) => Truth::Yes,
                Expression::Verdict(verdict) => return self.verdicts(step, &[verdict]),
                Expression::Lookup { set, key, data, invert } => match self.lookup(set, *key, *invert) {
                    Ok(found) if found.elements.is_empty() => return,
                    Ok(found) => {
                        let last = at + 1 == step.rule.expressions.len();
                        match self.found(step, set, &found, *data, last) {
                            Some(truth) => truth,
                            None => return,
                        }
                    }
                    Err(Truth::Maybe(why)) => {
                        let acts = self.names.sets.get(set.as_str()).map_or(Some("unknown set"), |of| of.acts);
                        if let Some(how) = acts.or((*data == Some(To::Verdict)).then_some(why.what)) {
                            self.acts(step, &format!("set {set}: {how}"));
                            step.goes_on = true;
                            step.split = weaker(step.split, Some(why));
                            return;
                        }
                        if let Some(To::Register(to)) = data {
                            self.store(*to, &unknown(REGISTERS, why));
                        }
                        Truth::Maybe(why)
                    }
                    Err(truth) => truth,
                },
                // Packets that pass by are not counted: whether all or only some of them would be makes no difference
                // here.
                Expression::Counter { .. } if self.view.flow().course != Course::Forwarded => Truth::Yes,
                Expression::Counter { name } => {
                    match weaker(step.certain, self.reach) {
                        None => {
                            let place = place(self.table, step.chain, Some(step.rule));
                            self.report.counters.push(Counter { place, name: name.clone() });
                        }
                        // Which flows the counter counts is certain once the flow is known.
                        Some(Why { of: Of::Flows, .. }) => {}
                        Some(Why { what, .. }) => {
                            let why = format!("counter of some packets, by {what}");
                            self.note(step, Cause::Acts, &why);
                            step.out.kernel = true;
                        }
                    }
                    Truth::Yes
                }
                Expression::Match { name, revision, info } => match xt::matches(&self.view, name, *revision, info) {
                    Some(truth) => truth,
                    None => return self.acts(step, &format!("xt match {name}")),
                },
                // Shorewall clears bits of the mark for packets that have none set.
                Expression::Mark { keep, xor } if self.keeps(*keep, *xor) => Truth::Yes,
                Expression::Mark { .. } => return self.acts(step, "xt target MARK"),
                // A connection that is in the table already ends the rule (nft_flow_offload_eval). Packets that meet
                // the table skip all rules. A verdict therefore holds for every packet only if it depends neither on
                // this rule nor on the table.
                Expression::FlowAdd => Truth::Maybe(packets("flow add")),
                Expression::SourceNat { address } if self.keeps_source(*address) => {
                    self.report.masquerades |= address.is_none();
                    return self.verdicts(step, &[&Verdict::Accept]);
                }
                Expression::SourceNat { address } => return self.acts(step, source_nat(*address)),
                Expression::Update { set, .. } => return self.acts(step, &format!("update of set {set}")),
                Expression::Acts { how, .. } => return self.acts(step, how),
                other => self.reads(other),
            };
            match truth {
                Truth::Yes => {}
                Truth::No => return,
                Truth::Maybe(why) => step.certain = weaker(step.certain, Some(why)),
            }
        }
    }

    /// Runs an expression that only reads or compares; returns whether the rule goes on.
    fn reads(&mut self, expression: &'a Expression) -> Truth<'a> {
        let (load, register) = match expression {
            Expression::Immediate { register, value } => (Load::Value(known(value)), *register),
            Expression::Meta { key, register } => (self.view.meta(*key), *register),
            Expression::Ct { key, direction, register } => (self.view.ct(*key, *direction), *register),
            Expression::Payload { base, offset, len, register } => (self.view.payload(*base, *offset, *len), *register),
            Expression::Fib { result, flags, register } => (self.view.fib(*result, *flags), *register),
            Expression::Compare { register, by, value } => {
                return match self.register(*register, value.len()) {
                    Some(octets) => octets::compare(octets, *by, value),
                    None => Truth::Maybe(UNSET),
                };
            }
            Expression::Range { register, inside, from, to } => {
                let truth = match self.register(*register, from.len()) {
                    Some(octets) => octets::within(octets, from, to),
                    None => Truth::Maybe(UNSET),
                };
                return if *inside { truth } else { truth.not() };
            }
            Expression::Bitwise { from, to, mask, xor } => {
                let octets = self.register(*from, mask.len()).map(|octets| octets::bitwise(octets, mask, xor));
                (octets.map_or(Load::Either(UNSET), Load::Value), *to)
            }
            Expression::ByteOrder { from, to, len, size } => {
                let octets = self.register(*from, *len).and_then(|octets| octets::byte_order(octets, *size));
                (octets.map_or(Load::Either(packets("byteorder")), Load::Value), *to)
            }
            Expression::Reads { how, register } => (Load::Either(packets(how)), register.unwrap_or(0)),
            Expression::Verdict(_)
            | Expression::Lookup { .. }
            | Expression::Counter { .. }
            | Expression::Match { .. }
            | Expression::Mark { .. }
            | Expression::SourceNat { .. }
            | Expression::FlowAdd
            | Expression::Update { .. }
            | Expression::Acts { .. } => return Truth::Maybe(UNSET),
        };
        match load {
            Load::Value(octets) => {
                self.store(register, &octets);
                Truth::Yes
            }
            Load::Break => Truth::No,
            Load::Either(why) => {
                self.store(register, &unknown(REGISTERS, why));
                Truth::Maybe(why)
            }
        }
    }

    /// Returns whether a translation leaves the source of the packets as it is: that to the address in a register, or
    /// that of the interface that sends them, if that is the source already (get_unique_tuple in nf_nat_core.c). The
    /// caller compares with the latter, which depends on the route.
    fn keeps_source(&self, address: Option<usize>) -> bool {
        // Among an interface's addresses of IPv6, the kernel chooses by rules that are not followed (RFC 6724).
        let Flow { v6: false, course: Course::Sent, original: Tuple { src, .. }, .. } = self.view.flow() else {
            return false;
        };
        let value = |register| octets::value(self.register(register, 4)?);
        let is_source = |value: Vec<u8>| matches!(src, Some(IpAddr::V4(src)) if value == src.octets());
        address.is_none_or(|register| value(register).is_some_and(is_source))
    }

    /// Returns whether the packets' mark is known and stays as it is.
    fn keeps(&self, keep: u32, xor: u32) -> bool {
        let Load::Value(mark) = self.view.meta(meta::MARK) else { return false };
        octets::bitwise(&mark, &keep.to_ne_bytes(), &xor.to_ne_bytes()) == mark && octets::value(&mark).is_some()
    }

    /// Looks a key up. Returns the elements that it may find, with the reason if the result is not certain. `Err` if
    /// the rule ends, or if nothing can be said about the lookup.
    fn lookup(&mut self, set: &'a str, key: usize, invert: bool) -> Result<Candidates<'a>, Truth<'a>> {
        let Known { set, updated, .. } = *self.names.sets.get(set).ok_or(Truth::Maybe(packets("unknown set")))?;
        if updated {
            return Err(Truth::Maybe(packets("set that rules update")));
        }
        let octets = self.register(key, set.key_len).ok_or(Truth::Maybe(UNSET))?.to_vec();
        self.report.scanned += set.scans(&octets);
        if self.report.scanned > SCANNED {
            return Err(Truth::Maybe(packets("too many set elements")));
        }
        let found = set.find(&octets).map_err(Truth::Maybe)?;
        if found.elements.iter().any(|element| element.expires) {
            return Err(Truth::Maybe(packets("set element that expires")));
        }
        let unsure = found.why.filter(|_| found.none || found.elements.len() > 1);
        if invert {
            return Err(match unsure {
                _ if set.catch_all().is_some() => Truth::Maybe(packets("catch-all element")),
                Some(why) => Truth::Maybe(why),
                None => found.elements.is_empty().into(),
            });
        }
        Ok(Candidates { elements: found.elements, none: found.none, unsure })
    }

    /// Continues after a lookup that may find some elements; `last` if it is the rule's last expression. Returns
    /// whether the rule goes on, `None` if a verdict of an element has ended it.
    fn found(
        &mut self,
        step: &mut Step<'a>,
        set: &str,
        found: &Candidates<'a>,
        data: Option<To>,
        last: bool,
    ) -> Option<Truth<'a>> {
        if let Some(how) = found.elements.iter().find_map(|element| element.acts.as_ref()) {
            step.certain = weaker(step.certain, found.unsure);
            self.acts(step, &format!("element of set {set}: {how}"));
            step.goes_on |= found.none || found.elements.len() > 1;
            return None;
        }
        match data {
            None => {}
            Some(To::Register(to)) => {
                let values = found.elements.iter().map(|element| match &element.data {
                    Some(Data::Value(value)) => Some(value.as_slice()),
                    _ => None,
                });
                let values = values.collect::<Option<Vec<_>>>();
                let why = found.unsure.unwrap_or(packets("map"));
                match values {
                    Some(values) => self.store(to, &octets::merged(&values, why)),
                    None => self.store(to, &unknown(REGISTERS, packets("map"))),
                }
            }
            Some(To::Verdict) => {
                let verdicts = found.elements.iter().map(|element| match &element.data {
                    Some(Data::Verdict(verdict)) => verdict,
                    _ => &Verdict::Continue,
                });
                let verdicts: Vec<&'a Verdict> = verdicts.collect();
                if verdicts.iter().all(|verdict| **verdict == Verdict::Continue) {
                    return Some(found.unsure.map_or(Truth::Yes, Truth::Maybe));
                }
                step.certain = weaker(step.certain, found.unsure);
                // The rest of the rule would have to be run beside the other verdicts.
                if !last && verdicts.contains(&&Verdict::Continue) {
                    let how = format!("map {set}: some packets go on in the rule");
                    self.acts(step, &how);
                    step.goes_on = true;
                    return None;
                }
                self.verdicts(step, &verdicts);
                return None;
            }
        }
        Some(match found.unsure.filter(|_| found.none) {
            Some(why) => Truth::Maybe(why),
            None => Truth::Yes,
        })
    }

    /// Ends a rule by one of several verdicts.
    fn verdicts(&mut self, step: &mut Step<'a>, verdicts: &[&'a Verdict]) {
        step.goes_on = step.certain.is_some();
        let before = self.reach;
        self.reach = weaker(self.reach, step.certain);
        for (at, verdict) in verdicts.iter().enumerate() {
            // Maps have few different verdicts.
            if verdicts[..at].contains(verdict) {
                continue;
            }
            let mut cause = Some(Cause::Passes);
            match verdict {
                Verdict::Accept => step.out.accept = true,
                Verdict::Drop => {
                    step.out.drop = true;
                    self.report.dropped.get_or_insert_with(|| place(self.table, step.chain, Some(step.rule)));
                    cause = Some(Cause::Drops);
                }
                Verdict::Return => step.out.through = true,
                Verdict::Break | Verdict::Continue => {
                    step.goes_on = true;
                    cause = None;
                }
                Verdict::Jump(name) | Verdict::Goto(name) => {
                    let (mut out, split) = match self.names.chains.get(name.as_str()) {
                        Some(next) => self.chain(next, step.depth + 1),
                        None => (self.gives_up(step.chain, "jump to an unknown chain"), None),
                    };
                    if matches!(verdict, Verdict::Jump(_)) {
                        step.goes_on |= std::mem::take(&mut out.through);
                        cause = cause.filter(|_| out != Outcomes::default());
                    }
                    step.split = weaker(step.split, split);
                    step.out.add(out);
                }
                Verdict::Other(how) => {
                    self.note(step, Cause::Acts, how);
                    step.out.kernel = true;
                    cause = None;
                }
            }
            if let (Some(cause), Some(why)) = (cause, step.certain) {
                self.note(step, cause, why.what);
                step.split = weaker(step.split, step.certain);
            }
        }
        self.reach = before;
    }

    /// Ends a rule by a side effect.
    fn acts(&mut self, step: &mut Step<'a>, how: &str) {
        self.note(step, Cause::Acts, how);
        step.out.kernel = true;
        step.goes_on = step.certain.is_some();
        step.split = weaker(step.split, step.certain);
    }

    fn note(&mut self, step: &Step<'a>, cause: Cause, why: &str) {
        let place = place(self.table, step.chain, Some(step.rule));
        let tracked = self.view.tracked() == Some(true);
        let finding = Finding::of(place, cause, why, weaker(step.certain, self.reach), tracked);
        self.report.add(finding);
    }
}

/// Elements that a lookup may find.
struct Candidates<'a> {
    elements: Vec<&'a Element>,
    /// Set if it may find none.
    none: bool,
    /// Value that it depends on, if there is more than one possibility.
    unsure: Option<Why<'a>>,
}
