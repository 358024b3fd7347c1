//! Tables that policy routing rules look up, each with FIBs of its own.

use super::Touched;
use super::bits::{Bits, V4, V6};
use super::hops::{BLACKHOLE, Hops, POLICY, PROHIBIT, UNREACHABLE};
use super::lookup::{Lookup, Ops};
use super::plan::Planner;
use super::rib::{Rank, Rec};
use super::sets::{Outcome, Sets};
use crate::rules::{Action, Step};
use bywash_engine::PortId;
use bywash_fib::model::{Prefix, Route, RouteKind, Rule, RuleAction, Rules};
use bywash_fib::{Addr, Fib, Fib4, Fib6, Table4, Table6};
use bywash_sync::Qsbr;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A table as rules look it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub table: u32,
    /// Length of the shortest prefix that is considered.
    pub shortest: u8,
}

/// All tables that rules look up; all of their routes have rank [`Rank::Main`]. The records here hold no references to
/// sets; the records of the routes themselves do.
pub(super) struct Followed {
    tables: BTreeMap<Key, Lookup>,
    /// FIBs of tables local and main.
    main: (Arc<Fib4>, Arc<Fib6>),
    /// Set of a `throw` route, held while a lookup needs it.
    throw: Option<u32>,
}

/// Returns the tables that these rules look up, without those of [`RuleAction::LocalAndMain`].
pub(super) fn looked_up(rules: &BTreeMap<PortId, Rules>) -> BTreeSet<Key> {
    let all = rules.values().flat_map(|rules| rules.v4.iter().chain(&rules.v6).chain(&rules.back4));
    let key = |rule: &Rule| match rule.then {
        RuleAction::Table { table, shortest } => Some(Key { table, shortest }),
        RuleAction::LocalAndMain | RuleAction::Discard(_) | RuleAction::Kernel => None,
    };
    all.filter_map(key).collect()
}

impl Followed {
    /// Creates the state without rules; `main` are the FIBs of tables local and main.
    pub fn new(main: (Arc<Fib4>, Arc<Fib6>)) -> Self {
        Self { tables: BTreeMap::new(), main, throw: None }
    }

    pub fn has(&self, table: u32) -> bool {
        self.of(table).next().is_some()
    }

    /// Returns the lookups of a table, by the length of the shortest prefix that is considered.
    pub fn of(&self, table: u32) -> impl Iterator<Item = &Lookup> {
        let all = Key { table, shortest: 0 }..=Key { table, shortest: u8::MAX };
        self.tables.range(all).map(|(_, lookup)| lookup)
    }

    pub fn tables(&self) -> impl Iterator<Item = &Lookup> {
        self.tables.values()
    }

    /// Adds a table without routes; returns false if it exists already.
    pub fn add(&mut self, domain: &Qsbr, key: Key) -> io::Result<bool> {
        if self.tables.contains_key(&key) {
            return Ok(false);
        }
        self.tables.insert(key, Lookup::new(Table4::new(domain)?, Table6::new(domain)?));
        Ok(true)
    }

    /// Removes the tables that are not among these. No worker may look them up any more.
    pub fn retain(&mut self, wanted: &BTreeSet<Key>, sets: &mut Sets, hops: &mut Hops) {
        self.tables.retain(|key, lookup| {
            let wanted = wanted.contains(key);
            if !wanted {
                lookup.release(hops);
            }
            wanted
        });
        if self.tables.keys().all(|key| key.shortest == 0)
            && let Some(throw) = self.throw.take()
            && let Some(Outcome::Id(id)) = sets.release(throw)
        {
            hops.release(id);
        }
    }

    /// Adds a route to the lookups of its table, or removes it if `rec` is `None`, and records the prefixes affected.
    pub fn note(
        &mut self,
        sets: &mut Sets,
        table: u32,
        prefix: Prefix,
        metric: u32,
        rec: Option<Rec>,
        touched: &mut Touched,
    ) {
        let all = Key { table, shortest: 0 }..=Key { table, shortest: u8::MAX };
        for (key, lookup) in self.tables.range_mut(all) {
            let rec = rec.map(|rec| counted(sets, &mut self.throw, key.shortest, prefix.len, rec));
            lookup.note(touched, prefix, Rank::Main, metric, rec);
        }
    }

    /// Adds or removes an exception for a prefix in some lookups, and records the prefixes affected.
    pub fn except(&mut self, of: impl Fn(&Key) -> bool, prefix: Prefix, add: bool, touched: &mut Touched) {
        for (_, lookup) in self.tables.iter_mut().filter(|(key, _)| of(key)) {
            lookup.except(touched, prefix, add);
        }
    }

    /// Returns the changes of all FIBs, as [`Lookup::plan`].
    pub fn plan(&self, planner: &mut Planner<'_>, touched: &mut Touched) -> Vec<(Key, Ops)> {
        self.tables.iter().map(|(key, lookup)| (*key, lookup.plan(planner, touched))).collect()
    }

    pub fn carry_out(&mut self, hops: &mut Hops, all: Vec<(Key, Ops)>) {
        for (key, ops) in all {
            if let Some(lookup) = self.tables.get_mut(&key) {
                lookup.carry_out(hops, ops);
            }
        }
    }

    pub fn reclaim(&mut self) {
        self.tables.values_mut().for_each(Lookup::reclaim);
    }

    /// Returns a rule as workers apply it to IPv4 packets.
    pub fn step4(&self, rule: &Rule) -> Step<u32> {
        step::<V4>(rule, self.action(rule, |lookup| lookup.fib4.reader(), &self.main.0))
    }

    /// Returns a rule as workers apply it to IPv6 packets.
    pub fn step6(&self, rule: &Rule) -> Step<u128> {
        step::<V6>(rule, self.action(rule, |lookup| lookup.fib6.reader(), &self.main.1))
    }

    fn action<A: Addr>(&self, rule: &Rule, fib: impl Fn(&Lookup) -> Arc<Fib<A>>, main: &Arc<Fib<A>>) -> Action<A> {
        match rule.then {
            RuleAction::LocalAndMain => Action::Lookup(main.clone()),
            // `POLICY` if there was no memory for the table.
            RuleAction::Table { table, shortest } => self
                .tables
                .get(&Key { table, shortest })
                .map_or(Action::Hop(POLICY), |lookup| Action::Lookup(fib(lookup))),
            RuleAction::Discard(RouteKind::Blackhole) => Action::Hop(BLACKHOLE),
            RuleAction::Discard(RouteKind::Prohibit) => Action::Hop(PROHIBIT),
            RuleAction::Discard(RouteKind::Unreachable) => Action::Hop(UNREACHABLE),
            RuleAction::Discard(_) | RuleAction::Kernel => Action::Hop(POLICY),
        }
    }
}

/// Returns the record of a route for a rule that considers only prefixes of at least `shortest` bits: the rule skips
/// shorter routes, except those that discard (fib4_rule_suppress).
fn counted(sets: &mut Sets, throw: &mut Option<u32>, shortest: u8, len: u8, rec: Rec) -> Rec {
    match sets.get(rec.set).kind {
        RouteKind::Throw => Rec { usable: true, ..rec },
        RouteKind::Unicast | RouteKind::Local if len < shortest => {
            let prefix = Prefix { addr: Ipv4Addr::UNSPECIFIED.into(), len: 0 };
            let (kind, next_hops) = (RouteKind::Throw, Arc::new([]));
            let none = Route { table: 0, prefix, kind, metric: 0, next_hops, mtu: None, source: None, protocol: 0 };
            Rec { set: *throw.get_or_insert_with(|| sets.hold(&none)), ..rec }
        }
        _ => rec,
    }
}

fn step<A: Bits>(rule: &Rule, action: Action<A::Word>) -> Step<A::Word> {
    let one = |prefix: Option<Prefix>| {
        let net = prefix.and_then(|prefix| Some((A::of(prefix.addr)?, prefix.len)));
        let mask = |len| A::ones(len).word();
        // No rule has a prefix of the other family, which would select nothing.
        net.map_or((A::ones(0).word(), A::ones(0).word()), |(addr, len)| (addr.first(len).word(), mask(len)))
    };
    Step { not: rule.not, from: one(rule.from), to: one(rule.to), action }
}
