//! The verdict that a ruleset gives to all packets of an established flow, or to all outer packets of a tunnel.
//!
//! The chains that the packets meet are run as the kernel runs them (nft_do_chain in net/netfilter/nf_tables_core.c),
//! with values of which some bits are not known ([`super::octets`]). Where a rule depends on an unknown value, both
//! ways are followed. If the packets of a flow can only be accepted, and the only side effects are counters that count
//! every packet, the ruleset accepts the flow whatever its packets are.

mod answer;
mod walk;

pub use answer::{Answer, Cause, Counter, Finding, Place};

use super::flow::{Course, Flow, Hook, State, View};
use super::octets::{Of, Truth, Why};
use super::{Base, Chain, Family, Ruleset, Table};
use std::collections::HashMap;
use walk::{Names, Outcomes, Report, Walk, packets, place};

/// A base chain that the packets in question meet.
#[derive(Clone, Copy, Debug)]
pub struct Hooked<'a> {
    /// Hook at which they meet it; `None` if unknown.
    pub hook: Option<Hook>,
    /// Table of the chain.
    pub table: &'a Table,
    /// The chain.
    pub chain: &'a Chain,
    /// Hook and priority as the kernel has them.
    pub base: &'a Base,
}

/// A ruleset, prepared for evaluations.
#[derive(Clone, Debug)]
pub struct Evaluator<'a> {
    hooked: Vec<Hooked<'a>>,
    /// Chains and sets by table.
    names: HashMap<(Family, &'a str), Names<'a>>,
}

/// Returns the hook of a base chain; `None` if it is not known.
fn hook_of(family: Family, base: &Base) -> Option<Hook> {
    match (family, base.hook) {
        (Family::Netdev, 0) | (Family::Inet, 5) => Some(Hook::Ingress),
        (Family::Netdev, 1) => Some(Hook::Egress),
        (Family::Ip | Family::Ip6 | Family::Inet, 0) => Some(Hook::Prerouting),
        (Family::Ip | Family::Ip6 | Family::Inet, 1) => Some(Hook::Input),
        (Family::Ip | Family::Ip6 | Family::Inet, 2) => Some(Hook::Forward),
        (Family::Ip | Family::Ip6 | Family::Inet, 3) => Some(Hook::Output),
        (Family::Ip | Family::Ip6 | Family::Inet, 4) => Some(Hook::Postrouting),
        _ => None,
    }
}

/// Packets that a ruleset is prepared for.
#[derive(Clone, Copy)]
enum Packets {
    /// Packets of established connections that are forwarded.
    Forwarded,
    /// Those that the host itself receives or sends, without the chains on devices.
    Own,
    OwnOnDevices,
}

impl Packets {
    /// Returns whether these packets may meet a base chain.
    fn meet(self, family: Family, base: &Base) -> bool {
        match (self, family, hook_of(family, base)) {
            (_, Family::Arp, _) => false,
            // Packets routed from or to a bridge meet them, and it is not known here which interfaces are bridges.
            // Chains that accept everything have been left out.
            (Self::Forwarded, Family::Bridge, _) => true,
            (Self::Forwarded, _, Some(Hook::Input | Hook::Output)) => false,
            // Packets of a connection whose translation is known meet no chain of type nat (nf_nat_inet_fn); the first
            // packet of one does.
            (Self::Forwarded, Family::Ip | Family::Ip6 | Family::Inet, Some(hook)) => {
                base.kind != "nat" || hook == Hook::Ingress
            }
            (Self::Own | Self::OwnOnDevices, Family::Bridge, _) => false,
            (Self::Own, Family::Netdev, _) | (Self::Own, _, Some(Hook::Ingress)) => false,
            (_, _, hook) => matches!(self, Self::Forwarded) || hook != Some(Hook::Forward),
        }
    }
}

impl<'a> Evaluator<'a> {
    /// Prepares a ruleset that was read with the elements of its sets, for forwarded packets.
    pub fn new(ruleset: &'a Ruleset) -> Self {
        Self::of_chains(ruleset, Packets::Forwarded)
    }

    /// Prepares a ruleset that was read with the elements of its sets, for packets that the host itself receives or
    /// sends. Chains on devices are left out.
    pub fn of_host(ruleset: &'a Ruleset) -> Self {
        Self::of_chains(ruleset, Packets::Own)
    }

    /// Like [`Evaluator::of_host`], with the chains on devices.
    pub fn of_host_on_devices(ruleset: &'a Ruleset) -> Self {
        Self::of_chains(ruleset, Packets::OwnOnDevices)
    }

    fn of_chains(ruleset: &'a Ruleset, packets: Packets) -> Self {
        let mut hooked = Vec::new();
        for table in ruleset.tables.iter().filter(|table| !table.dormant) {
            for chain in &table.chains {
                let Some(base) = &chain.base else { continue };
                let accepts = base.accepts && chain.rules.is_empty() && chain.opaque.is_none();
                if table.family == Family::Bridge && accepts {
                    continue;
                }
                // A chain that is not understood may be on any hook.
                if chain.opaque.is_some() && table.family != Family::Arp {
                    hooked.push(Hooked { hook: None, table, chain, base });
                } else if packets.meet(table.family, base) {
                    hooked.push(Hooked { hook: hook_of(table.family, base), table, chain, base });
                }
            }
        }
        // The kernel puts a new function before registered ones of the same priority (nf_hook_entries_grow).
        hooked.reverse();
        hooked.sort_by_key(|hooked| (hooked.hook, hooked.base.priority));
        let names = ruleset.tables.iter().map(|table| ((table.family, table.name.as_str()), Names::of(table)));
        Self { hooked, names: names.collect() }
    }

    /// Returns the base chains that the packets may meet, in their order. Chains whose hook is not
    /// known come first.
    pub fn chains(&self) -> &[Hooked<'a>] {
        &self.hooked
    }

    /// Evaluates the ruleset for the packets of a flow, whose course must be one that it was prepared for.
    pub fn evaluate(&self, flow: &Flow) -> Answer {
        let mut report = Report::default();
        let mut all = Outcomes::default();
        // Counters found before a chain that may drop packets: later ones may miss some packets.
        let mut certain = usize::MAX;
        let order = |hooked: &Hooked<'_>| (hooked.hook, hooked.base.priority);
        // The order of chains of the same hook and priority is that of their registration, which is not known for
        // certain: all of them are run.
        for alike in self.hooked.chunk_by(|one, other| order(one) == order(other)) {
            let (mut met, mut ends) = (0, false);
            let before = report.counters.len();
            for hooked in alike {
                let reach = match meets(hooked, flow) {
                    Truth::No => continue,
                    Truth::Yes => None,
                    Truth::Maybe(why) => Some(why),
                };
                let mut out = self.chain(hooked, flow, reach, &mut report);
                if reach.is_none() && is_met_below(hooked, flow) {
                    let below = self.chain(hooked, flow, Some(ABOVE), &mut report);
                    out.kernel |= below.kernel;
                    out.drop |= below.drop;
                }
                met += 1;
                all.kernel |= out.kernel;
                all.drop |= out.drop;
                ends |= out == Outcomes::DROP && reach.is_none();
            }
            if all.drop {
                certain = certain.min(if met > 1 { before } else { report.counters.len() });
            }
            all.accept = !ends;
            if ends {
                break;
            }
        }
        if let Some(counter) = report.counters.get(certain).filter(|_| !all.accept) {
            let why = "counter of some packets, by an earlier drop";
            report.findings.push(Finding::of(counter.place.clone(), Cause::Acts, why, None, true));
            all.kernel = true;
        }
        let Report { mut findings, counters, dropped, masquerades, .. } = report;
        match (all, dropped) {
            (Outcomes { kernel: false, drop: false, .. }, _) => return Answer::Accept { counters, masquerades },
            (Outcomes::DROP, Some(at)) => return Answer::Drop { at, counters },
            _ => {}
        }
        findings.sort_by_key(|finding| finding.cause);
        match findings.iter().all(|finding| finding.some) {
            true => Answer::Depends { findings },
            false => Answer::Kernel { findings },
        }
    }

    fn chain(&self, hooked: &Hooked<'a>, flow: &Flow, reach: Option<Why<'static>>, report: &mut Report) -> Outcomes {
        let Hooked { hook, table, chain, base } = *hooked;
        let names = &self.names[&(table.family, table.name.as_str())];
        let Some(hook) = hook else {
            let why = chain.opaque.clone().unwrap_or_else(|| format!("hook {} of family {}", base.hook, table.family));
            let place = place(table, chain, None);
            report.add(Finding { place, cause: Cause::Acts, why, some: false, tracked: false });
            return Outcomes::KERNEL;
        };
        let view = View::new(flow, hook, base.priority, table.family == Family::Netdev, reach);
        let tracked = view.tracked() == Some(true);
        let (mut out, _) = Walk::new((table, names), view, reach, report).chain(chain, 0);
        if std::mem::take(&mut out.through) {
            if base.accepts {
                out.accept = true;
            } else {
                out.drop = true;
                report.dropped.get_or_insert_with(|| place(table, chain, None));
            }
        }
        if let Some(why) = reach.filter(|_| out.drop) {
            report.add(Finding::of(place(table, chain, None), Cause::Drops, why.what, reach, tracked));
        }
        out
    }
}

/// Reason why it is unknown whether packets meet a chain of another device, and what they look like there.
const ABOVE: Why<'static> = packets("packets of devices above");

/// Returns whether packets of a flow meet a base chain.
fn meets(hooked: &Hooked<'_>, flow: &Flow) -> Truth<'static> {
    match hooked.table.family {
        Family::Ip if flow.v6 => return Truth::No,
        Family::Ip6 if !flow.v6 => return Truth::No,
        _ => {}
    }
    match (hooked.hook, flow.course) {
        (Some(Hook::Ingress | Hook::Prerouting | Hook::Input), Course::Sent)
        | (Some(Hook::Output | Hook::Postrouting | Hook::Egress), Course::Received) => return Truth::No,
        _ => {}
    }
    // Packets of no connection, and errors about those of one, meet no chain of type nat (nf_nat_inet_fn).
    if hooked.base.kind == "nat" && matches!(flow.state, State::Related | State::Invalid) {
        return Truth::No;
    }
    let (interface, what) = match hooked.hook {
        Some(Hook::Ingress) => (&flow.input, "ingress interface"),
        Some(Hook::Egress) => (&flow.output, "egress interface"),
        _ => return Truth::Yes,
    };
    match interface {
        _ if hooked.base.devices.is_empty() => Truth::No,
        Some(interface) if hooked.base.devices.iter().any(|d| d.covers(interface.index, &interface.name)) => Truth::Yes,
        // The packets of a VLAN, a bond, a bridge and the like pass the hooks of the devices below, too.
        Some(_) => Truth::Maybe(ABOVE),
        None => Truth::Maybe(Why { of: Of::Flows, what }),
    }
}

/// Returns whether packets of a flow also meet a base chain on a device below their interface.
fn is_met_below(hooked: &Hooked<'_>, flow: &Flow) -> bool {
    let interface = match hooked.hook {
        Some(Hook::Ingress) => &flow.input,
        Some(Hook::Egress) => &flow.output,
        _ => return false,
    };
    let mut below = interface.iter().flat_map(|interface| &interface.below);
    below.any(|(index, name)| hooked.base.devices.iter().any(|device| device.covers(*index, name)))
}

#[cfg(test)]
mod tests;
