//! Packets that are left to the kernel because a kernel policy (firewall, IPsec, rule, qdisc) applies to them.

use super::bits::Bits;
use super::followed::looked_up;
use super::hops::Adjacency;
use super::rib::Rank;
use super::{Applied, Control, Rib, Touched};
use bywash_engine::PortId;
use bywash_fib::model::{Families, HashPolicy, Prefix, Rules, SourceCheck};
use std::collections::{BTreeMap, BTreeSet};

/// Kernel policies and settings that the router applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Destinations whose packets are all left to the kernel, whatever their routes.
    pub prefixes: Vec<Prefix>,
    /// Egress interfaces, by kernel index, and the families whose packets out of them are left to the kernel.
    pub egress: Vec<(u32, Families)>,
    /// IPv6 MTU in bytes of an interface, by kernel index (net.ipv6.conf.IF.mtu), where it may differ from the link's.
    pub mtu6: BTreeMap<u32, u32>,
    /// Source validation of packets received on a port; [`SourceCheck::Off`] if absent.
    pub source_check: BTreeMap<PortId, SourceCheck>,
    /// Hash policy by which IPv4 packets choose a group member.
    pub hash4: HashPolicy,
    /// Hash policy by which IPv6 packets choose a group member.
    pub hash6: HashPolicy,
    /// Tunnels whose packets may be forwarded: no policy concerns their outer packets, which the host itself sends and
    /// receives.
    pub tunnels: BTreeSet<PortId>,
    /// Tunnels whose outer packets may be masqueraded: those that masquerading would change are left to the kernel.
    pub masqueraded: BTreeSet<PortId>,
    /// Families of which rules translate addresses: connection tracking must not forget the outer packets of tunnels.
    pub translating: Families,
    /// Set if outer packets of these tunnels are taken from ports whose gates are closed except for flows: what closes
    /// the gates does not concern them.
    pub outer_passes: bool,
    /// Policy routing rules of ports and VLANs; absent for those without.
    pub rules: BTreeMap<PortId, Rules>,
}

/// Destinations of one family that are left to the kernel.
pub(super) struct Excepted<A> {
    /// Number of times each prefix is excepted, by length and first address.
    prefixes: BTreeMap<u8, BTreeMap<A, u32>>,
}

impl<A: Bits> Excepted<A> {
    pub fn new() -> Self {
        Self { prefixes: BTreeMap::new() }
    }

    /// Returns the length of the shortest excepted prefix that covers this one or equals it.
    pub fn over(&self, addr: A, len: u8) -> Option<u8> {
        self.prefixes.range(..=len).find(|(len, of)| of.contains_key(&addr.first(**len))).map(|(len, _)| *len)
    }

    /// Returns the excepted prefixes within this one, itself included.
    pub fn under(&self, addr: A, len: u8) -> impl Iterator<Item = (A, u8)> {
        let within = addr.first(len)..=addr.last(len);
        self.prefixes.range(len..).flat_map(move |(len, of)| of.range(within.clone()).map(|(addr, _)| (*addr, *len)))
    }

    /// Returns the excepted prefixes that no other one covers.
    pub fn all(&self) -> impl Iterator<Item = (A, u8)> {
        let prefixes = self.prefixes.iter().flat_map(|(len, of)| of.keys().map(|addr| (*addr, *len)));
        prefixes.filter(|(addr, len)| self.over(*addr, *len) == Some(*len))
    }

    /// Adds an exception for a prefix; returns true if it was not excepted before.
    fn add(&mut self, addr: A, len: u8) -> bool {
        let times = self.prefixes.entry(len).or_default().entry(addr).or_default();
        *times += 1;
        *times == 1
    }

    /// Removes one exception for a prefix; returns true if it is no longer excepted.
    fn remove(&mut self, addr: A, len: u8) -> bool {
        let Some(of) = self.prefixes.get_mut(&len) else { return false };
        let Some(times) = of.get_mut(&addr) else { return false };
        *times -= 1;
        if *times > 0 {
            return false;
        }
        of.remove(&addr);
        if of.is_empty() {
            self.prefixes.remove(&len);
        }
        true
    }
}

/// Returns whether an adjacency is left to the kernel when packets of the families `excepted` are.
pub(super) fn is_excepted(a: &Adjacency, excepted: Families) -> bool {
    if a.v6 { excepted.v6 } else { excepted.v4 }
}

impl Control {
    /// Applies these policies, and no others, from now on. On return every worker and the XDP program apply them, as
    /// after [`Control::apply`]. Waits for a grace period at most once.
    pub fn set_policies(&mut self, policies: &Policies) {
        let mut touched = Touched::default();
        let old = std::mem::replace(&mut self.excepted, policies.prefixes.clone());
        // Additions come first, so that a prefix in both keeps its count above zero.
        for prefix in &policies.prefixes {
            self.except_prefix(*prefix, true, &mut touched);
        }
        for prefix in old {
            self.except_prefix(prefix, false, &mut touched);
        }
        for index in self.links.set_excepted(&policies.egress) {
            self.hops.touch_link(Some(index));
        }
        for index in self.links.set_mtu6(&policies.mtu6) {
            self.hops.touch_link(Some(index));
        }
        for index in self.links.allow_tunnels(&policies.tunnels, &policies.masqueraded) {
            self.hops.touch_link(Some(index));
            (touched.ports, touched.bridged) = (true, true);
        }
        touched.ports |= self.links.let_outer_pass(policies.outer_passes);
        touched.ports |= self.links.let_rules_translate(policies.translating);
        let hash = [policies.hash4, policies.hash6];
        touched.ports |= std::mem::replace(&mut self.image.hash, hash) != hash;
        touched.ports |= self.links.check_sources(&policies.source_check);
        // Tables are filled before packets are looked up in them, and emptied when no more packets are.
        self.look_up_tables(&policies.rules, &mut touched);
        self.settle(touched, &mut Applied::default());
        if self.links.set_rules(&policies.rules) {
            self.publish_to_workers();
            if let Some(sink) = &mut self.sink {
                sink.changed();
            }
            self.forget_tables(&policies.rules);
        }
    }

    /// Fills the tables that these rules look up.
    fn look_up_tables(&mut self, rules: &BTreeMap<PortId, Rules>, touched: &mut Touched) {
        let mut new = BTreeSet::new();
        for key in looked_up(rules) {
            match self.followed.add(&self.domain, key) {
                Ok(true) => drop(new.insert(key)),
                Ok(false) => {}
                Err(e) => {
                    tracing::error!(
                        "no memory for routing table {}: packets that rules send to it are left to the kernel: {e}",
                        key.table
                    )
                }
            }
        }
        // The filter of sources depends on which tables are used.
        touched.ports |= !new.is_empty();
        for key in new {
            let table = key.table;
            let others = self.others.iter().filter(|((of, ..), _)| *of == table);
            let others = others.map(|((_, prefix, metric), rec)| (*prefix, *metric, *rec));
            for (prefix, metric, rec) in self.main.of(table).chain(others) {
                self.followed.note(&mut self.sets, table, prefix, metric, Some(rec), touched);
            }
            let selective = self.selective.iter().filter(|(of, _)| *of == table).map(|(_, prefix)| prefix);
            for prefix in self.excepted.iter().chain(selective) {
                self.followed.except(|of| *of == key, *prefix, true, touched);
            }
        }
    }

    /// Removes the tables that these rules do not look up.
    fn forget_tables(&mut self, rules: &BTreeMap<PortId, Rules>) {
        self.followed.retain(&looked_up(rules), &mut self.sets, &mut self.hops);
        self.hops.retire(&self.domain);
    }

    /// Records that a prefix has routes for some packets only, or no longer has any.
    pub(super) fn select(&mut self, table: u32, prefix: Prefix, add: bool, touched: &mut Touched) {
        let key = (table, prefix);
        let changed = if add { self.selective.insert(key) } else { self.selective.remove(&key) };
        if !changed {
            return;
        }
        if Rank::of(table).is_some() {
            self.main.except(touched, prefix, add);
        }
        self.followed.except(|of| of.table == table, prefix, add, touched);
        touched.ports |= self.is_used(table);
    }

    /// Adds or removes an exception for a prefix in all tables, and records the prefixes affected.
    fn except_prefix(&mut self, prefix: Prefix, add: bool, touched: &mut Touched) {
        self.main.except(touched, prefix, add);
        self.followed.except(|_| true, prefix, add, touched);
    }
}

pub(super) fn except<A: Bits>(rib: &mut Rib<A>, touched: &mut Vec<(A, u8)>, addr: A, len: u8, add: bool) {
    let len = len.min(A::MAX);
    let addr = addr.first(len);
    if if add { rib.excepted.add(addr, len) } else { rib.excepted.remove(addr, len) } {
        touched.push((addr, len));
        touched.extend(rib.under(addr, len).map(|(k, _)| (k.addr, k.len)));
        touched.extend(rib.excepted.under(addr, len));
    }
}
