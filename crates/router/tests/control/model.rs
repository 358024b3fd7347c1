//! Reference implementation: stores what was reported and derives every answer from all of it.

use crate::world::{Got, share};
use bywash_fib::model::Families;
use bywash_fib::model::{
    Address, Change, Link, Mac, NeighbourState, NextHop, Prefix, Route, RouteKind, Rule, RuleAction,
};
use bywash_router::control::Policies;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

#[derive(Default)]
pub struct Model {
    pub links: BTreeMap<u32, Link>,
    pub addresses: BTreeMap<u32, Vec<Address>>,
    pub routes: Vec<Route>,
    pub neighbours: BTreeMap<(u32, IpAddr), (NeighbourState, Option<Mac>)>,
    /// Name and index of each port.
    pub ports: Vec<(String, u32)>,
    pub policies: Policies,
    pub selective: BTreeSet<(u32, Prefix)>,
}

impl Model {
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Link(l) => {
                self.links.insert(l.index, l.clone());
            }
            Change::LinkGone { index } => {
                self.links.remove(index);
                self.addresses.remove(index);
                self.policies.mtu6.remove(index);
                self.neighbours.retain(|(i, _), _| i != index);
                self.ports.iter_mut().filter(|p| p.1 == *index).for_each(|p| p.1 = 0);
            }
            Change::Address(a) => {
                let list = self.addresses.entry(a.index).or_default();
                match list.iter_mut().find(|b| (b.addr, b.len) == (a.addr, a.len)) {
                    Some(b) => *b = a.clone(),
                    None => list.push(a.clone()),
                }
            }
            Change::AddressGone { index, addr, len } => {
                self.addresses.entry(*index).or_default().retain(|a| (a.addr, a.len) != (*addr, *len));
            }
            Change::Route(r) => {
                self.routes.retain(|o| (o.table, o.prefix, o.metric) != (r.table, r.prefix, r.metric));
                // Left to the kernel like an address of this host.
                let local = r.table == 255 && (r.prefix.addr.is_ipv4() || r.kind == RouteKind::Throw);
                self.routes.push(Route { kind: if local { RouteKind::Local } else { r.kind }, ..r.clone() });
            }
            Change::RouteGone { table, prefix, metric } => {
                self.routes.retain(|o| (o.table, o.prefix, o.metric) != (*table, *prefix, *metric));
            }
            Change::Selective { table, prefix } => drop(self.selective.insert((*table, *prefix))),
            Change::SelectiveGone { table, prefix } => drop(self.selective.remove(&(*table, *prefix))),
            Change::Neighbour(n) => {
                self.neighbours.insert((n.index, n.addr), (n.state, n.mac));
            }
            Change::NeighbourGone { index, addr } => {
                self.neighbours.remove(&(*index, *addr));
            }
            Change::Station(_) | Change::StationGone { .. } | Change::Elsewhere { .. } | Change::Synced => {}
        }
        for n in 0..self.ports.len() {
            if self.ports[n].1 == 0
                && let Some(l) = self.links.values().find(|l| l.name == self.ports[n].0 && self.port(l.index).is_none())
            {
                self.ports[n].1 = l.index;
            }
        }
    }

    fn port(&self, index: u32) -> Option<u16> {
        self.ports.iter().position(|p| p.1 == index).map(|n| n as u16)
    }

    fn running(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(|l| l.up && l.carrier)
    }

    /// Returns the route that decides among those for which `fits` is true: table local first, then longest prefix,
    /// then lowest metric.
    fn decides(&self, fits: impl Fn(&Route) -> bool) -> Option<&Route> {
        let usable = |r: &&Route| match r.kind {
            RouteKind::Unicast => r.next_hops.iter().any(|h| h.alive),
            _ => true,
        };
        let of = |table| {
            let routes = self.routes.iter().filter(move |r| r.table == table).filter(usable).filter(|r| fits(r));
            routes.max_by_key(|r| (r.prefix.len, std::cmp::Reverse(r.metric)))
        };
        of(255).or_else(|| of(254))
    }

    pub fn get(&self, addr: IpAddr) -> Got {
        if self.is_excepted(addr, &[254, 255]) {
            return Got::Verdict("policy");
        }
        match self.decides(|r| r.prefix.covers(addr.into())) {
            Some(r) => self.by(r, addr),
            None => Got::Verdict("no-route"),
        }
    }

    fn is_excepted(&self, addr: IpAddr, tables: &[u32]) -> bool {
        let selective = self.selective.iter().filter(|(table, _)| tables.contains(table)).map(|(_, p)| p);
        self.policies.prefixes.iter().chain(selective).any(|p| p.covers(addr.into()))
    }

    /// Returns where a packet goes by these rules.
    pub fn get_by(&self, rules: &[Rule], src: IpAddr, dst: IpAddr) -> Got {
        let within = |addr: IpAddr, prefix: Option<Prefix>| prefix.is_none_or(|p| p.covers(addr.into()));
        for rule in rules.iter().filter(|r| (within(src, r.from) && within(dst, r.to)) != r.not) {
            let got = match rule.then {
                RuleAction::LocalAndMain => self.get(dst),
                RuleAction::Discard(RouteKind::Blackhole) => Got::Verdict("blackhole"),
                RuleAction::Discard(RouteKind::Prohibit) => Got::Verdict("prohibit"),
                RuleAction::Discard(_) => Got::Verdict("unreachable"),
                RuleAction::Kernel => Got::Verdict("policy"),
                RuleAction::Table { table, .. } if self.is_excepted(dst, &[table]) => Got::Verdict("policy"),
                RuleAction::Table { table, shortest } => {
                    let usable = |r: &&Route| r.kind != RouteKind::Unicast || r.next_hops.iter().any(|h| h.alive);
                    let routes = self.routes.iter().filter(|r| r.table == table && within(dst, Some(r.prefix)));
                    let best = routes.filter(usable).max_by_key(|r| (r.prefix.len, std::cmp::Reverse(r.metric)));
                    let discards = |r: &Route| {
                        matches!(r.kind, RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit)
                    };
                    match best {
                        Some(r) if r.prefix.len >= shortest || discards(r) => self.by(r, dst),
                        _ => continue,
                    }
                }
            };
            if got != Got::Verdict("no-route") {
                return got;
            }
        }
        Got::Verdict("no-route")
    }

    fn by(&self, r: &Route, addr: IpAddr) -> Got {
        match r.kind {
            RouteKind::Unicast => {}
            RouteKind::Local => return Got::Verdict("local"),
            RouteKind::Blackhole => return Got::Verdict("blackhole"),
            RouteKind::Unreachable => return Got::Verdict("unreachable"),
            RouteKind::Prohibit => return Got::Verdict("prohibit"),
            RouteKind::Throw => return Got::Verdict("no-route"),
        }
        let alive: Vec<&NextHop> = r.next_hops.iter().filter(|h| h.alive).collect();
        if let [hop] = alive[..] {
            return self.hop(r, hop, addr);
        }
        if alive.iter().any(|h| h.gateway.is_none() && self.port(h.index).is_some()) {
            return Got::Verdict("kernel");
        }
        let ways: BTreeSet<_> = alive.iter().map(|h| self.port(h.index).map(|_| (h.index, h.gateway))).collect();
        if ways.len() == 1 {
            return self.hop(r, alive[0], addr);
        }
        share(alive.iter().map(|h| (self.hop(r, h, addr), usize::from(h.weight))).collect())
    }

    fn hop(&self, r: &Route, hop: &NextHop, addr: IpAddr) -> Got {
        let (Some(port), Some(link)) = (self.port(hop.index), self.links.get(&hop.index)) else {
            return Got::Verdict("kernel");
        };
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        let known = |a: IpAddr| match self.neighbours.get(&(hop.index, a)) {
            Some((NeighbourState::Reachable | NeighbourState::Stale, Some(mac))) => ("forward", *mac),
            Some((NeighbourState::Failed, _)) => ("failed", [0; 6]),
            _ => ("pending", [0; 6]),
        };
        let gateway = hop.gateway.or_else(|| {
            let own = known(addr).0 != "pending" && !is_special(addr);
            (own || r.prefix.len == whole).then_some(addr)
        });
        let (v4, v6) = (r.prefix.addr.is_ipv4(), r.prefix.addr.is_ipv6());
        let excepted = |(index, of): &(u32, Families)| *index == hop.index && (of.v4 && v4 || of.v6 && v6);
        if self.policies.egress.iter().any(excepted) {
            return Got::Verdict("policy");
        }
        if !self.running(hop.index) {
            return Got::Verdict("no-carrier");
        }
        let own = self.policies.mtu6.get(&hop.index).filter(|_| v6);
        let least = own.map_or(link.mtu, |own| link.mtu.min(*own));
        let mtu = r.mtu.unwrap_or(least);
        if mtu > least {
            return Got::Verdict("kernel");
        }
        let (kind, to) = gateway.map_or(("glean", [0; 6]), known);
        let near = gateway.or_else(|| r.source.is_none().then_some(r.prefix.addr));
        let source4 = match r.source {
            Some(IpAddr::V4(s)) => Some(s),
            _ => self.source(hop.index, near, true).and_then(|a| if let IpAddr::V4(a) = a { Some(a) } else { None }),
        };
        let source6 = match r.source {
            Some(IpAddr::V6(s)) => Some(s),
            _ => self.source(hop.index, near, false).and_then(|a| if let IpAddr::V6(a) = a { Some(a) } else { None }),
        };
        let from = link.mac.unwrap_or_default();
        Got::Out { kind, port, index: hop.index, gateway, to, from, mtu, source4, source6 }
    }

    pub fn source(&self, index: u32, near: Option<IpAddr>, v4: bool) -> Option<IpAddr> {
        let all = |i: u32| self.addresses.get(&i).into_iter().flatten().filter(move |a| a.addr.is_ipv4() == v4);
        let good = |a: &&Address| !a.secondary && !a.link_scope;
        let prefix = |a: &Address| Prefix::containing(a.addr, a.len).unwrap();
        let subnet = |a: &&Address| near.is_some_and(|n| prefix(a).covers(n.into()));
        let elsewhere = || self.addresses.keys().flat_map(|i| all(*i)).find(good);
        let found = all(index).filter(good).find(subnet).or_else(|| all(index).find(good)).or_else(elsewhere);
        found.or_else(|| all(index).next()).map(|a| a.addr)
    }
}

fn is_special(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => a.is_multicast() || a.is_broadcast(),
        IpAddr::V6(a) => a.is_multicast() || a.is_unicast_link_local(),
    }
}
