//! Determines the forwarded packets that a ruleset may affect.
//!
//! The analysis overestimates: a rule is assumed to match every packet that its interfaces allow, and an earlier
//! `accept` exempts no packet from it. A chain has no effect only if its policy is accept and the rules that forwarded
//! packets can reach only read and let packets continue. The policy's own packet counter does not count as an effect.

use super::{Base, Chain, Comparison, Expression, Family, Rule, Ruleset, Table, To, Tracking, Verdict, meta};
use crate::effect::{Effect, IfMatch, Kind, Scope};
use bywash_fib::model::Families;
use std::collections::HashMap;
use std::rc::Rc;

/// NFT_JUMP_STACK_SIZE: the kernel rejects rulesets with deeper jumps.
const DEPTH: usize = 16;

/// Returns the effects of the chains of `ruleset` on forwarded packets, and the families that it tracks.
pub fn analyse(ruleset: &Ruleset) -> Vec<Effect> {
    let mut effects = Vec::new();
    for table in &ruleset.tables {
        let mut walk = Walk::new(table);
        for chain in table.chains.iter().filter(|_| !table.dormant) {
            if let Some(base) = &chain.base {
                base_chain(table, chain, base, &mut walk, &mut effects);
            }
        }
        let tracked = fragments(table);
        // The hooks of nf_conntrack_bridge are then there, which drop malformed packets and cut off padding.
        let bridged = tracked.clone().filter(|_| table.family == Family::Bridge);
        effects.extend(bridged.map(|effect| Effect { scope: Scope::Between, ..effect }));
        effects.extend(tracked);
    }
    let flow_tables = ruleset.tables.iter().filter_map(|table| {
        let covers = |effect: &Effect| matches!(effect.scope, Scope::All(all) if all & table.family.families() == table.family.families());
        (!effects.iter().any(covers)).then(|| of_flow_tables(table))
    });
    let flow_tables: Vec<Effect> = flow_tables.flatten().collect();
    effects.extend(flow_tables);
    effects
}

/// Returns the effects of a table's flow tables. Connections that are in one pass the rules, also after those that put
/// them there have gone, and are translated there. A dormant table's are on their devices, too.
fn of_flow_tables(table: &Table) -> impl Iterator<Item = Effect> {
    table.flow_tables.iter().filter_map(|of| {
        let families = table.family.families();
        let scope = match &of.devices {
            Some(devices) if devices.is_empty() => return None,
            Some(devices) => Scope::In(devices.clone(), families),
            None => Scope::All(families),
        };
        let object = format!("table {} {} flowtable {}", table.family, table.name, of.name);
        Some(Effect { kind: Kind::Netfilter, scope, object, reason: "connections in the flow table".into() })
    })
}

/// Packets that a base chain sees.
enum Place<'a> {
    Nothing,
    Forwarded,
    Bridged,
    Between,
    LocalIn,
    LocalOut,
    Ingress(&'a [IfMatch]),
    Egress(&'a [IfMatch]),
}

fn place(family: Family, base: &Base) -> Place<'_> {
    match (family, base.hook) {
        (Family::Arp, _) => Place::Nothing,
        // NF_BR_FORWARD
        (Family::Bridge, 2) => Place::Between,
        (Family::Bridge, _) => Place::Bridged,
        // NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_INGRESS.
        (Family::Ip | Family::Ip6 | Family::Inet, 1) => Place::LocalIn,
        (Family::Ip | Family::Ip6 | Family::Inet, 3) => Place::LocalOut,
        (Family::Inet, 5) => Place::Ingress(&base.devices),
        // NF_NETDEV_INGRESS, NF_NETDEV_EGRESS.
        (Family::Netdev, 0) => Place::Ingress(&base.devices),
        (Family::Netdev, 1) => Place::Egress(&base.devices),
        _ => Place::Forwarded,
    }
}

fn base_chain(table: &Table, chain: &Chain, base: &Base, walk: &mut Walk<'_>, effects: &mut Vec<Effect>) {
    let object = format!("table {} {} chain {}", table.family, table.name, chain.name);
    let place = match (table.family, &chain.opaque) {
        // A chain that is not understood may be on any hook.
        (Family::Bridge, Some(_)) => Place::Bridged,
        (family, Some(_)) if family != Family::Arp => Place::Forwarded,
        (family, _) => place(family, base),
    };
    match place {
        Place::Nothing => return,
        // Packets that are routed meet the other hooks where they come from a bridge's members or leave by one.
        Place::Bridged | Place::Between => {
            if !base.accepts || chain.opaque.is_some() || !walk.chain(&chain.name, 0).is_empty() {
                let scope = if matches!(place, Place::Bridged) { Scope::Bridged } else { Scope::Between };
                let reason = "rules for bridged packets".into();
                effects.push(Effect { kind: Kind::Netfilter, scope, object, reason });
            }
            return;
        }
        _ => {}
    }
    if let (Some(why), Family::Netdev | Family::Inet | Family::Other(_)) = (&chain.opaque, table.family) {
        let (object, reason) = (object.clone(), why.clone());
        effects.push(Effect { kind: Kind::Netfilter, scope: Scope::Between, object, reason });
    }
    if let (Place::Ingress(devices), Family::Netdev) = (&place, table.family)
        && let Some(how) = table.chains.iter().flat_map(|chain| &chain.rules).find_map(relays)
    {
        let (scope, object) = (Scope::Relayed(devices.to_vec()), object.clone());
        effects.push(Effect { kind: Kind::Netfilter, scope, object, reason: how.into() });
    }
    let everything = |what: &str| Rc::new(vec![Found::everything(what.into(), what.into())]);
    let found = match (&place, table.family) {
        // The policy concerns every packet; rules cannot add to that.
        _ if !base.accepts && chain.opaque.is_none() => everything("policy drop"),
        // Before any rule, such a chain drops packets with malformed headers (nft_do_chain_inet_ingress).
        (Place::Ingress(_), Family::Inet) => everything("hook ingress of family inet"),
        _ => walk.chain(&chain.name, 0),
    };
    let mut own: Vec<Effect> = Vec::new();
    for found in found.iter() {
        let families = table.family.families() & found.seen.families;
        // Replies are translated back on any interface, so a nat chain is not limited to the interface of its rule.
        let side = found.seen.side.clone().filter(|_| base.kind != "nat");
        let scope = match (&place, side) {
            (Place::LocalIn, _) => Scope::Own(families),
            (Place::LocalOut, _) => Scope::Errors(families),
            (Place::Ingress(devices), _) => Scope::In(devices.to_vec(), families),
            (Place::Egress(devices), _) => Scope::Out(devices.to_vec(), families),
            (_, Some(Side::In(interface))) => Scope::In(vec![interface], families),
            (_, Some(Side::Out(interface))) => Scope::Out(vec![interface], families),
            (_, None) => Scope::All(families),
        };
        let never = match &scope {
            Scope::In(interfaces, _) | Scope::Out(interfaces, _) => interfaces.iter().all(is_loopback),
            _ => false,
        };
        if !never && !families.is_empty() && !own.iter().any(|effect| effect.scope == scope) {
            let object = format!("{object} {}", found.place).trim_end().to_owned();
            own.push(Effect { kind: Kind::Netfilter, scope, object, reason: found.reason.clone() });
        }
    }
    let all = Scope::All(table.family.families());
    if let Some(widest) = own.iter().position(|effect| effect.scope == all) {
        effects.push(own.swap_remove(widest));
        return;
    }
    // NF_INET_POST_ROUTING and NF_NETDEV_EGRESS also see packets that the router itself sends; the former sees those of
    // tunnels as received by the tunnel.
    let sees_own = matches!(place, Place::Egress(_)) || base.hook == 4;
    for at in 0..own.len() {
        let scope = match own[at].scope {
            Scope::Errors(families) if matches!(place, Place::LocalOut) => Scope::Own(families),
            Scope::Out(_, families) if sees_own => Scope::Errors(families),
            Scope::In(_, families) if base.hook == 4 => Scope::Own(families),
            _ => continue,
        };
        if !own.iter().any(|effect| effect.scope == scope) {
            own.push(Effect { scope, ..own[at].clone() });
        }
    }
    effects.append(&mut own);
}

/// Returns what a rule does to send packets, or copies of them, by another device, if it does.
fn relays(rule: &Rule) -> Option<&str> {
    let how = |expression: &'_ Expression| match expression {
        Expression::Acts { how, .. } if how == "fwd" => Some("fwd"),
        Expression::Acts { how, .. } if how == "dup" => Some("dup"),
        _ => None,
    };
    rule.expressions.iter().find_map(how)
}

/// Returns the effect on fragments if the table enables connection tracking. A rule or object enables it whether or not
/// it is hooked (nf_ct_netns_get).
fn fragments(table: &Table) -> Option<Effect> {
    let families = table.family.families();
    let rule = |chain: &Chain, rule: &Rule| {
        let effects = rule.expressions.iter().filter_map(Expression::effect);
        let tracks = effects.filter(|(_, tracking)| *tracking == Tracking::TurnsOn).map(|(how, _)| how).next()?;
        Some((format!("chain {} rule handle {}", chain.name, rule.handle), tracks))
    };
    let chain = |chain: &Chain| match &chain.opaque {
        Some(why) => Some((format!("chain {}", chain.name), why.clone())),
        None => chain.rules.iter().find_map(|r| rule(chain, r)),
    };
    let object = || table.tracking.first().map(|object| (object.clone(), object.clone()));
    let (place, how) = table.chains.iter().find_map(chain).or_else(object)?;
    (!families.is_empty()).then(|| Effect {
        kind: Kind::Netfilter,
        scope: Scope::Fragments(families),
        object: format!("table {} {} {place}", table.family, table.name),
        reason: format!("connection tracking ({how})"),
    })
}

/// Ingress or egress interface of the packets that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Side {
    In(IfMatch),
    Out(IfMatch),
}

/// Packets that reach an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    families: Families,
    side: Option<Side>,
}

impl Seen {
    const ALL: Self = Self { families: Families::BOTH, side: None };

    /// Returns the intersection with `inner`. If both are limited to an interface, the limit of `self` is kept: one
    /// suffices.
    fn and(&self, inner: &Self) -> Self {
        Self { families: self.families & inner.families, side: self.side.clone().or_else(|| inner.side.clone()) }
    }
}

/// An effect found in a chain.
#[derive(Clone, Debug)]
struct Found {
    seen: Seen,
    /// Set if connection tracking is involved: packets of the reverse direction are then concerned too, on any
    /// interface.
    both_ways: bool,
    /// Position within the chain: "rule handle 5".
    place: String,
    reason: String,
}

impl Found {
    fn everything(place: String, reason: String) -> Self {
        Self { seen: Seen::ALL, both_ways: true, place, reason }
    }

    fn covers(&self, other: &Self) -> bool {
        self.both_ways >= other.both_ways && (self.seen == other.seen || self.seen == Seen::ALL)
    }

    /// Returns the effect limited to packets in `seen`, at another place.
    fn within(&self, seen: &Seen, place: String) -> Self {
        let mut seen = seen.and(&self.seen);
        if self.both_ways {
            seen.side = None;
        }
        Self { seen, both_ways: self.both_ways, place, reason: self.reason.clone() }
    }

    fn add(&mut self, how: &str, tracking: Tracking) {
        if !self.reason.is_empty() {
            self.reason.push_str(", ");
        }
        self.reason.push_str(how);
        if tracking != Tracking::No {
            self.both_ways = true;
            self.seen.side = None;
        }
    }
}

struct Walk<'a> {
    chains: HashMap<&'a str, &'a Chain>,
    done: HashMap<&'a str, Rc<Vec<Found>>>,
    /// Role in connection tracking of the rules that a verdict map may lead to: those of any chain that is not a base
    /// chain, because the elements of maps are not read.
    mapped: Tracking,
}

impl<'a> Walk<'a> {
    fn new(table: &'a Table) -> Self {
        let role = |chain: &Chain| match chain.opaque {
            Some(_) => Tracking::TurnsOn,
            None => chain
                .rules
                .iter()
                .flat_map(|rule| &rule.expressions)
                .filter_map(Expression::effect)
                .fold(Tracking::No, |most, (_, tracking)| most.max(tracking)),
        };
        let mapped = table.chains.iter().filter(|chain| chain.base.is_none()).map(role);
        Self {
            chains: table.chains.iter().map(|c| (c.name.as_str(), c)).collect(),
            done: HashMap::new(),
            mapped: mapped.max().unwrap_or(Tracking::No),
        }
    }

    /// Returns the effects of chain `name`, without those that an earlier one covers.
    fn chain(&mut self, name: &str, depth: usize) -> Rc<Vec<Found>> {
        let everything = |place: &str, why: &str| Rc::new(vec![Found::everything(place.into(), why.into())]);
        let Some(&chain) = self.chains.get(name) else { return everything("", "jump to an unknown chain") };
        if let Some(done) = self.done.get(name) {
            return done.clone();
        }
        if let Some(why) = &chain.opaque {
            return everything("", why);
        }
        if depth > DEPTH {
            return everything("", "jumps nested too deeply");
        }
        self.done.insert(&chain.name, everything("", "jump loop"));
        let mut all: Vec<Found> = Vec::new();
        for rule in &chain.rules {
            for found in self.rule(rule, depth) {
                if !all.iter().any(|other| other.covers(&found)) {
                    all.push(found);
                }
            }
        }
        let all = Rc::new(all);
        self.done.insert(&chain.name, all.clone());
        all
    }

    fn rule(&mut self, rule: &'a Rule, depth: usize) -> Vec<Found> {
        let here = format!("rule handle {}", rule.handle);
        let mut seen = Seen::ALL;
        let mut own: Option<Found> = None;
        let mut found = Vec::new();
        let mut loaded = None;
        for expression in &rule.expressions {
            let before = loaded.take();
            let (how, tracking) = match expression {
                Expression::Meta { key, register } => {
                    loaded = Some((*key, *register));
                    continue;
                }
                // Only directly after the load is it certain that the register still holds the value.
                Expression::Compare { register, by: Comparison::Equal, value } => {
                    if let Some((what, _)) = before.filter(|(_, r)| r == register) {
                        match narrowed(what, value) {
                            Some(inner) => seen = seen.and(&inner),
                            None => break,
                        }
                    }
                    continue;
                }
                Expression::Verdict(Verdict::Jump(name) | Verdict::Goto(name)) => {
                    for inner in self.chain(name, depth + 1).iter() {
                        let place = format!("{here}, chain {name} {}", inner.place).trim_end().to_owned();
                        found.push(inner.within(&seen, place));
                    }
                    continue;
                }
                Expression::Lookup { data: Some(To::Verdict), .. } => ("verdict map".to_owned(), self.mapped),
                Expression::Verdict(Verdict::Drop) => ("drop".to_owned(), Tracking::No),
                Expression::Verdict(Verdict::Other(how)) => (how.clone(), Tracking::No),
                other => match other.effect() {
                    Some(effect) => effect,
                    None => continue,
                },
            };
            own.get_or_insert_with(|| Found {
                seen: seen.clone(),
                both_ways: false,
                place: here.clone(),
                reason: String::new(),
            })
            .add(&how, tracking);
        }
        found.splice(0..0, own);
        found
    }
}

/// Returns the packets whose metadata `key` begins with `value`; `None` if no forwarded packet is among them.
fn narrowed(key: u32, value: &[u8]) -> Option<Seen> {
    let interface = match key {
        meta::IIFNAME | meta::OIFNAME => name(value),
        // Where a packet has no such interface yet, the index is 0.
        meta::IIF | meta::OIF => {
            value.try_into().ok().map(u32::from_ne_bytes).filter(|index| *index != 0).map(IfMatch::Index)
        }
        meta::NFPROTO => {
            let families = match value {
                [2] => Families::V4,
                [10] => Families::V6,
                _ => return Some(Seen::ALL),
            };
            return Some(Seen { families, side: None });
        }
        _ => return Some(Seen::ALL),
    };
    if interface.as_ref().is_some_and(is_loopback) {
        return None;
    }
    let side = interface.map(|interface| match key {
        meta::OIFNAME | meta::OIF => Side::Out(interface),
        _ => Side::In(interface),
    });
    Some(Seen { families: Families::BOTH, side })
}

/// Returns whether `interface` matches only the loopback interface, the first one of every namespace.
fn is_loopback(interface: &IfMatch) -> bool {
    matches!(interface, IfMatch::Name(name) if name == "lo") || *interface == IfMatch::Index(1)
}

/// Parses the value of a name comparison: with NUL padding it is a whole name, without any NUL a prefix. `None` if it
/// is neither.
fn name(value: &[u8]) -> Option<IfMatch> {
    let end = value.iter().position(|&octet| octet == 0);
    let name = std::str::from_utf8(&value[..end.unwrap_or(value.len())]).ok().filter(|name| !name.is_empty())?;
    match end {
        Some(end) if value[end..].iter().all(|&octet| octet == 0) => Some(IfMatch::Name(name.to_owned())),
        Some(_) => None,
        None => Some(IfMatch::Prefix(name.to_owned())),
    }
}

#[cfg(test)]
mod tests;
