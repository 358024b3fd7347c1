//! Policy routing rules (`ip rule`): those that forwarded packets may meet, port by port, and the effects of those that
//! are not followed.
//!
//! A rule is followed if it selects packets by interface, source, destination, mark or VRF only. A forwarded packet has
//! no mark, because any state that could set one leaves the packet to the kernel; and it has no egress interface yet.
//! A veth keeps the mark of a packet that its peer sends, if both are in one network namespace: such a port's packets
//! are left to the kernel while a rule selects by a mark.

use crate::effect::{Effect, IfMatch, Kind, Scope};
use crate::verdict::PortLink;
use bywash_fib::model::{self, Families, Prefix, RouteKind, RuleAction};
use bywash_nl::wire::{Attributes, u8_at, u32_at};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

// linux/fib_rules.h
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_OIFNAME: u16 = 17;
const FRA_PAD: u16 = 18;
const FRA_L3MDEV: u16 = 19;
const FRA_PROTOCOL: u16 = 21;
const FR_ACT_TO_TBL: u8 = 1;
const FR_ACT_GOTO: u8 = 2;
const FR_ACT_NOP: u8 = 3;
const FR_ACT_BLACKHOLE: u8 = 6;
const FR_ACT_UNREACHABLE: u8 = 7;
const FR_ACT_PROHIBIT: u8 = 8;
const FIB_RULE_PERMANENT: u32 = 0x1;
const FIB_RULE_INVERT: u32 = 0x2;
const FIB_RULE_UNRESOLVED: u32 = 0x4;
const FIB_RULE_IIF_DETACHED: u32 = 0x8;
const FIB_RULE_OIF_DETACHED: u32 = 0x10;
/// Flags that are understood. A rule whose interface is missing (`DETACHED`) names no port either.
const KNOWN_FLAGS: u32 =
    FIB_RULE_PERMANENT | FIB_RULE_INVERT | FIB_RULE_UNRESOLVED | FIB_RULE_IIF_DETACHED | FIB_RULE_OIF_DETACHED;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const LOCAL: u32 = 255;
const MAIN: u32 = 254;
/// Table default, which the third of the kernel's own IPv4 rules looks up. Without other rules it is taken as empty.
const DEFAULT: u32 = 253;
/// Maximum number of rules of a family that are followed.
const MOST: usize = 64;

/// A policy routing rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    v6: bool,
    priority: u32,
    action: u8,
    table: u32,
    invert: bool,
    /// Set if a `goto` leads to no rule, and so does nothing.
    unresolved: bool,
    input: Option<String>,
    output: bool,
    from: Option<Prefix>,
    to: Option<Prefix>,
    /// Mark, and the bits of it that are compared.
    mark: (u32, u32),
    /// Set for a rule that applies only to members of VRFs, and looks up the VRF's table.
    l3mdev: bool,
    /// Length of the longest prefixes that are ignored.
    suppress: Option<u32>,
    target: Option<u32>,
    /// Set for a rule with a selector, flag or action that is not followed.
    unknown: bool,
}

/// Parses the body of an `RTM_NEWRULE` message. `None` if it is of another family; `Err` if it is truncated, or its
/// prefix longer than an address.
pub fn parse(body: &[u8]) -> Result<Option<Rule>, ()> {
    let family = u8_at(body, 0).ok_or(())?;
    if family != AF_INET && family != AF_INET6 {
        return Ok(None);
    }
    let (to_len, from_len, tos) = (u8_at(body, 1).ok_or(())?, u8_at(body, 2).ok_or(())?, u8_at(body, 3).ok_or(())?);
    let (action, flags) = (u8_at(body, 7).ok_or(())?, u32_at(body, 8).ok_or(())?);
    let actions = [FR_ACT_TO_TBL, FR_ACT_GOTO, FR_ACT_NOP, FR_ACT_BLACKHOLE, FR_ACT_UNREACHABLE, FR_ACT_PROHIBIT];
    let mut rule = Rule {
        v6: family == AF_INET6,
        action,
        table: u32::from(u8_at(body, 4).ok_or(())?),
        invert: flags & FIB_RULE_INVERT != 0,
        unresolved: flags & FIB_RULE_UNRESOLVED != 0,
        unknown: tos != 0 || flags & !KNOWN_FLAGS != 0 || !actions.contains(&action),
        ..Rule::default()
    };
    let prefix = |value: &[u8], len| {
        let v4 = || value.first_chunk::<4>().map(|octets| IpAddr::from(Ipv4Addr::from(*octets)));
        let v6 = || value.first_chunk::<16>().map(|octets| IpAddr::from(Ipv6Addr::from(*octets)));
        let addr = if family == AF_INET6 { v6() } else { v4() }.ok_or(())?;
        Prefix::containing(addr, len).ok_or(())
    };
    let (mut mark, mut mask) = (None, None);
    for (kind, value) in Attributes::after(body, 12) {
        let number = || u32_at(value, 0).ok_or(());
        match kind {
            FRA_PRIORITY => rule.priority = number()?,
            FRA_TABLE => rule.table = number()?,
            // Present in every rule; the greatest value means that nothing is suppressed.
            FRA_SUPPRESS_PREFIXLEN => rule.suppress = Some(number()?).filter(|len| *len != u32::MAX),
            FRA_PROTOCOL | FRA_PAD => {}
            FRA_L3MDEV => rule.l3mdev = u8_at(value, 0) != Some(0),
            FRA_IIFNAME => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                rule.input = Some(String::from_utf8_lossy(&value[..end]).into_owned());
            }
            FRA_OIFNAME => rule.output = true,
            FRA_DST => rule.to = Some(prefix(value, to_len)?),
            FRA_SRC => rule.from = Some(prefix(value, from_len)?),
            FRA_FWMARK => mark = Some(number()?),
            FRA_FWMASK => mask = Some(number()?),
            FRA_GOTO => rule.target = Some(number()?),
            _ => rule.unknown = true,
        }
    }
    // A length without an address would select by bits that are not known.
    rule.unknown |= (to_len != 0 && rule.to.is_none()) || (from_len != 0 && rule.from.is_none());
    rule.mark = (mark.unwrap_or(0), mask.unwrap_or(if mark.is_some() { u32::MAX } else { 0 }));
    Ok(Some(rule))
}

impl Rule {
    /// Returns whether it selects no forwarded packet, for a mark that none has.
    fn is_idle(&self) -> bool {
        !self.invert && self.mark.0 & self.mark.1 != 0
    }

    fn selects_some(&self) -> bool {
        self.from.is_some_and(|prefix| prefix.len > 0) || self.to.is_some_and(|prefix| prefix.len > 0)
    }

    /// Returns whether it is followed, on every port that belongs to no VRF.
    fn is_followed(&self) -> bool {
        let jumps = self.action == FR_ACT_GOTO && !self.unresolved;
        // The next rule of a packet depends on this rule alone.
        let splits = jumps && (self.selects_some() || self.target.is_none());
        let looks_up = self.action == FR_ACT_TO_TBL;
        !(self.unknown
            || splits
            || (self.l3mdev && (self.invert || !looks_up))
            || (looks_up && self.table == 0 && !self.l3mdev)
            || (self.suppress.is_some() && !looks_up))
    }

    /// Returns whether it looks up a table for every packet.
    fn looks_up_always(&self, table: u32) -> bool {
        let plain = self.input.is_none() && !self.output && self.mark == (0, 0) && !self.l3mdev && !self.invert;
        let looks_up = self.action == FR_ACT_TO_TBL && self.table == table && self.suppress.is_none();
        plain && looks_up && !self.selects_some() && !self.unknown
    }

    /// Returns whether it is one of the kernel's own, or that of VRFs.
    pub(crate) fn is_basic(&self) -> bool {
        self.looks_up_always(LOCAL) || self.looks_up_always(MAIN) || (self.l3mdev && self.is_followed())
    }

    /// Returns whether its selectors other than source and destination match packets received on a port.
    fn applies(&self, port: &PortLink) -> bool {
        let input = self.input.as_ref().is_none_or(|input| *input == port.name);
        input && !self.output && self.mark.0 & self.mark.1 == 0 && (!self.l3mdev || port.vrf.is_some())
    }

    /// Returns whether the rule selects by the interface of a VRF or of a VRF's member: kernels differ in which of the
    /// two is compared.
    fn names_vrf(&self, port: &PortLink) -> bool {
        let Some(vrf) = &port.vrf else { return false };
        self.output || self.input.as_ref().is_some_and(|input| *input == port.name || *input == vrf.name)
    }
}

/// Returns the rules that packets received on a port meet. Those with an effect of their own ([`analyse`]) are left
/// out.
pub fn followed(rules: &[Rule], port: &PortLink) -> model::Rules {
    let of = |v6: bool| {
        let all: Vec<&Rule> = rules.iter().filter(|rule| rule.v6 == v6).collect();
        steps(&all, port)
    };
    let v4 = of(false);
    // A source is looked up like the destination of a packet received on the interface by which the original one leaves
    // (fib_validate_source).
    let by_input = |rule: &Rule| !rule.v6 && !rule.is_idle() && rule.input.as_ref().is_some_and(|input| input != "lo");
    let kernel = model::Rule { not: false, from: None, to: None, then: RuleAction::Kernel };
    let back4 = if rules.iter().any(by_input) { vec![kernel] } else { v4.clone() };
    model::Rules { v4, v6: of(true), back4 }
}

fn steps(rules: &[&Rule], port: &PortLink) -> Vec<model::Rule> {
    let mut steps: Vec<model::Rule> = vec![];
    // Set once every packet has been looked up in table local, and set if the last step did only that.
    let (mut past_local, mut just_local) = (false, false);
    let mut at = 0;
    while let Some(rule) = rules.get(at) {
        at += 1;
        if rule.is_idle() || !rule.is_followed() || rule.names_vrf(port) {
            continue;
        }
        let applies = rule.applies(port);
        if !applies && !rule.invert {
            continue;
        }
        // An inverted rule of which another selector does not match selects every packet.
        let (from, to) = match applies {
            true => (rule.from.filter(|prefix| prefix.len > 0), rule.to.filter(|prefix| prefix.len > 0)),
            false => (None, None),
        };
        let always = from.is_none() && to.is_none();
        let not = rule.invert && applies;
        if always && not {
            continue;
        }
        let then = match rule.action {
            FR_ACT_GOTO => {
                if let (true, false, Some(target)) = (always, rule.unresolved, rule.target) {
                    at += rules[at..].iter().take_while(|next| next.priority < target).count();
                }
                continue;
            }
            FR_ACT_NOP => continue,
            FR_ACT_BLACKHOLE => RuleAction::Discard(RouteKind::Blackhole),
            FR_ACT_PROHIBIT => RuleAction::Discard(RouteKind::Prohibit),
            FR_ACT_UNREACHABLE => RuleAction::Discard(RouteKind::Unreachable),
            _ => {
                let shortest = rule.suppress.map_or(0, |len| len.saturating_add(1).min(u32::from(u8::MAX)) as u8);
                let vrf = port.vrf.as_ref().filter(|_| rule.l3mdev);
                let table = vrf.map_or(rule.table, |vrf| vrf.table);
                if table == MAIN && shortest == 0 && past_local {
                    // Other packets have still been looked up in table local if the rule selects only some.
                    if just_local && always {
                        steps.pop();
                    }
                    RuleAction::LocalAndMain
                } else {
                    RuleAction::Table { table, shortest }
                }
            }
        };
        just_local = always && then == RuleAction::Table { table: LOCAL, shortest: 0 };
        past_local |= just_local;
        steps.push(model::Rule { not, from, to, then });
        if always && matches!(then, RuleAction::Discard(_)) {
            break;
        }
    }
    let usual = |rule: &model::Rule| {
        let always = rule.from.is_none() && rule.to.is_none();
        always && [RuleAction::LocalAndMain, RuleAction::Table { table: DEFAULT, shortest: 0 }].contains(&rule.then)
    };
    // Without rules, a kernel without policy routing looks up local and main.
    let first = steps.first().is_none_or(|first| first.then == RuleAction::LocalAndMain);
    if first && steps.iter().all(usual) { vec![] } else { steps }
}

/// Returns the effects of the rules of both families that are not followed.
pub fn analyse(rules: &[Rule], ports: &[PortLink]) -> Vec<Effect> {
    let mut effects = vec![];
    for (v6, families, family) in [(false, Families::V4, ""), (true, Families::V6, "-6 ")] {
        let of_family = || rules.iter().filter(move |rule| rule.v6 == v6);
        let name = |priority: u32| format!("ip {family}rule {priority}");
        let mut add = |scope, object, reason: String| {
            effects.push(Effect { kind: Kind::Rules, scope, object, reason });
        };
        // Nothing else gives a forwarded packet a mark without leaving it to the kernel.
        let paired: Vec<IfMatch> =
            ports.iter().filter(|port| port.paired).map(|port| IfMatch::Index(port.index)).collect();
        if let Some(marked) = of_family().find(|rule| rule.is_idle()).filter(|_| !paired.is_empty()) {
            let reason = "selects by a mark, which packets from the peer may have".into();
            add(Scope::In(paired, families), name(marked.priority), reason);
        }
        for rule in of_family().filter(|rule| !rule.is_idle()) {
            let on_vrfs: Vec<IfMatch> =
                ports.iter().filter(|port| rule.names_vrf(port)).map(|port| IfMatch::Index(port.index)).collect();
            if rule.is_followed() {
                if !on_vrfs.is_empty() {
                    let reason = "selects by an interface of a VRF".into();
                    add(Scope::In(on_vrfs, families), name(rule.priority), reason);
                }
                // Packets received on the ports may meet no rule, and then the host's errors about them do.
                if rule.input.as_ref().is_some_and(|input| (input == "lo") != rule.invert) {
                    add(Scope::Errors(families), name(rule.priority), "packets from this host".into());
                }
                continue;
            }
            let (scope, reason) = match (&rule.input, rule.to) {
                _ if rule.invert => (Scope::All(families), "inverted selector".into()),
                // `iif lo` selects packets that the router itself sends.
                (Some(input), _) if input == "lo" => (Scope::Errors(families), "packets from this host".into()),
                (Some(input), _) => {
                    let named = std::iter::once(IfMatch::Name(input.clone())).chain(on_vrfs).collect();
                    (Scope::In(named, families), format!("packets received on {input}"))
                }
                (None, Some(to)) if to.len > 0 => (Scope::To(to), format!("packets to {to}")),
                (None, _) => (Scope::All(families), format!("may route any packet by table {}", rule.table)),
            };
            add(scope, name(rule.priority), reason);
        }
        // A kernel without policy routing has no rules at all and looks up tables local and main.
        if of_family().next().is_none() {
            continue;
        }
        if of_family().count() > MOST {
            add(Scope::All(families), format!("ip {family}rule"), format!("more than {MOST} rules"));
        }
        for table in [LOCAL, MAIN] {
            if !of_family().any(|rule| rule.looks_up_always(table)) {
                let which = if table == LOCAL { "local" } else { "main" };
                let reason = format!("no rule looks up table {which} for every packet");
                add(Scope::All(families), format!("ip {family}rule"), reason);
            }
        }
    }
    effects
}

/// Returns the effects of rules on packets that the host itself sends and receives, which the dataplane looks up in
/// tables local and main: one for each family.
pub(crate) fn of_host(rules: &[Rule]) -> Vec<Effect> {
    // Table default is looked up only for destinations without a route in table main.
    let other = |rule: &&Rule| !rule.is_basic() && !rule.is_idle() && !rule.looks_up_always(DEFAULT);
    let of = |(v6, families, family)| {
        let rule = rules.iter().filter(|rule| rule.v6 == v6).find(other)?;
        Some(Effect {
            kind: Kind::Rules,
            scope: Scope::Own(families),
            object: format!("ip {family}rule {}", rule.priority),
            reason: "may route what this host sends".into(),
        })
    };
    [(false, Families::V4, ""), (true, Families::V6, "-6 ")].into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Vrf;

    fn rule(v6: bool, priority: u32, table: u32) -> Rule {
        Rule { v6, priority, action: FR_ACT_TO_TBL, table, ..Rule::default() }
    }

    /// Returns the rules of a new network namespace (`fib_default_rules_init`, `fib6_rules_net_init`).
    fn born() -> Vec<Rule> {
        let four = [(0, LOCAL), (32766, MAIN), (32767, DEFAULT)].map(|(priority, table)| rule(false, priority, table));
        let six = [(0, LOCAL), (32766, MAIN)].map(|(priority, table)| rule(true, priority, table));
        four.into_iter().chain(six).collect()
    }

    fn with(others: &[Rule]) -> Vec<Rule> {
        let mut all = [born(), others.to_vec()].concat();
        all.sort_by_key(|rule| rule.priority);
        all
    }

    fn port(vrf: Option<u32>) -> PortLink {
        let vrf = vrf.map(|table| Vrf { index: 20, name: "red".into(), table });
        PortLink { index: 10, name: "r0".into(), vrf, ..PortLink::default() }
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    /// Returns the rules for IPv4 packets, each as a line.
    fn lines(rules: &[Rule], port: &PortLink) -> Vec<String> {
        let line = |rule: &model::Rule| {
            let not = if rule.not { "not " } else { "" };
            let one = |word, prefix: Option<Prefix>| prefix.map_or(String::new(), |prefix| format!("{word} {prefix} "));
            let then = match rule.then {
                RuleAction::LocalAndMain => "local and main".into(),
                RuleAction::Table { table, shortest: 0 } => format!("table {table}"),
                RuleAction::Table { table, shortest } => format!("table {table} from /{shortest}"),
                RuleAction::Discard(kind) => format!("{kind:?}"),
                RuleAction::Kernel => "kernel".into(),
            };
            format!("{not}{}{}{then}", one("from", rule.from), one("to", rule.to))
        };
        followed(rules, port).v4.iter().map(line).collect()
    }

    #[test]
    fn a_namespace_s_own_rules_have_no_effect() {
        assert_eq!(analyse(&born(), &[port(None)]), []);
        assert_eq!(analyse(&[], &[port(None)]), []);
        for vrf in [None, Some(7)] {
            assert!(followed(&born(), &port(vrf)).is_empty() && followed(&[], &port(vrf)).is_empty());
        }
    }

    #[test]
    fn rules_are_met_in_order() {
        let rules = with(&[
            Rule { from: Some(prefix("10.1.0.0/16")), ..rule(false, 100, 7) },
            Rule { from: Some(prefix("10.2.0.0/16")), to: Some(prefix("10.9.0.0/16")), ..rule(false, 101, 8) },
            Rule { from: Some(prefix("10.3.0.0/16")), invert: true, ..rule(false, 102, 9) },
            Rule { action: FR_ACT_PROHIBIT, to: Some(prefix("10.8.0.0/16")), ..rule(false, 103, 0) },
        ]);
        assert_eq!(analyse(&rules, &[port(None)]), []);
        let met = [
            "table 255",
            "from 10.1.0.0/16 table 7",
            "from 10.2.0.0/16 to 10.9.0.0/16 table 8",
            "not from 10.3.0.0/16 table 9",
            "to 10.8.0.0/16 Prohibit",
            "local and main",
            "table 253",
        ];
        assert_eq!(lines(&rules, &port(None)), met);
        assert!(followed(&rules, &port(None)).v6.is_empty());
        // Packets to the host's own addresses meet table local first also if the next rule is for some others.
        let split = with(&[
            Rule { to: Some(prefix("10.0.0.0/8")), ..rule(false, 100, MAIN) },
            Rule { from: Some(prefix("10.1.0.0/16")), ..rule(false, 200, 7) },
        ]);
        let met =
            ["table 255", "to 10.0.0.0/8 local and main", "from 10.1.0.0/16 table 7", "local and main", "table 253"];
        assert_eq!(lines(&split, &port(None)), met);
    }

    #[test]
    fn interfaces_and_marks_are_decided_beforehand() {
        let input = |name: &str| Rule { input: Some(name.into()), ..rule(false, 100, 7) };
        let seven = ["table 255", "table 7", "local and main", "table 253"];
        let none: [&str; 0] = [];
        assert_eq!(lines(&with(&[input("r0")]), &port(None)), seven);
        assert_eq!(lines(&with(&[input("r1")]), &port(None)), none);
        assert_eq!(lines(&with(&[input("lo")]), &port(None)), none);
        let back = |rule: Rule| followed(&with(&[rule]), &port(None)).back4;
        assert_eq!(back(input("r1"))[0].then, RuleAction::Kernel);
        assert_eq!(back(input("lo")), []);
        assert_eq!(back(rule(false, 100, 7)).len(), 4);
        assert_eq!(lines(&with(&[Rule { invert: true, ..input("r1") }]), &port(None)), seven);
        assert_eq!(lines(&with(&[Rule { invert: true, ..input("r0") }]), &port(None)), none);
        assert_eq!(lines(&with(&[Rule { output: true, ..rule(false, 100, 7) }]), &port(None)), none);
        // Rules of wg-quick.
        let marked = Rule { mark: (0xca6c, u32::MAX), ..rule(false, 100, 7) };
        assert_eq!(lines(&with(std::slice::from_ref(&marked)), &port(None)), none);
        let rules = with(&[
            Rule { suppress: Some(0), ..rule(false, 32764, MAIN) },
            Rule { invert: true, priority: 32765, ..marked },
        ]);
        let met = ["table 255", "table 254 from /1", "table 7", "local and main", "table 253"];
        assert_eq!(lines(&rules, &port(None)), met);
        assert_eq!(analyse(&rules, &[port(None)]), []);
    }

    #[test]
    fn members_of_vrfs_are_looked_up_in_its_table() {
        let l3mdev = Rule { l3mdev: true, ..rule(false, 1000, 0) };
        let rules = with(std::slice::from_ref(&l3mdev));
        assert!(lines(&rules, &port(None)).is_empty());
        let met = ["table 255", "table 10", "local and main", "table 253"];
        assert_eq!(lines(&rules, &port(Some(10))), met);
        assert_eq!(followed(&rules, &port(Some(10))).back4.len(), 4);
        // Table local behind those of VRFs, as it should be.
        let mut behind = rules;
        behind.retain(|rule| rule.v6 || rule.table != LOCAL);
        behind.push(rule(false, 32765, LOCAL));
        behind.sort_by_key(|rule| rule.priority);
        assert_eq!(lines(&behind, &port(Some(10))), ["table 10", "local and main", "table 253"]);
        assert_eq!(analyse(&behind, &[port(Some(10))]), []);
        // Rules that name interfaces of VRFs.
        for name in ["r0", "red"] {
            let named = with(&[l3mdev.clone(), Rule { input: Some(name.into()), ..rule(false, 500, 7) }]);
            assert_eq!(analyse(&named, &[port(Some(10))])[0].scope, Scope::In(vec![IfMatch::Index(10)], Families::V4));
        }
    }

    #[test]
    fn rules_of_the_host_concern_its_errors() {
        let errors = |input: &str, invert| {
            let rule = Rule { input: Some(input.into()), invert, ..rule(false, 100, 7) };
            analyse(&with(&[rule]), &[port(None)]).into_iter().map(|effect| effect.scope).collect::<Vec<_>>()
        };
        let of_host = [Scope::Errors(Families::V4)];
        assert_eq!([errors("lo", false), errors("r0", true)], [of_host.clone(), of_host]);
        assert_eq!([errors("lo", true), errors("r0", false)], [[], []]);
    }

    #[test]
    fn jumps_skip_rules() {
        let jump = Rule { action: FR_ACT_GOTO, target: Some(200), ..rule(false, 100, 0) };
        let others = [rule(false, 150, 7), rule(false, 200, 8)];
        let rules = |jump: Rule| with(&[&[jump][..], &others].concat());
        assert_eq!(lines(&rules(jump.clone()), &port(None))[1], "table 8");
        let nowhere = Rule { unresolved: true, ..jump.clone() };
        assert_eq!(lines(&rules(nowhere), &port(None))[1], "table 7");
        let elsewhere = Rule { input: Some("r1".into()), ..jump.clone() };
        assert_eq!(lines(&rules(elsewhere), &port(None))[1], "table 7");
        let some = Rule { from: Some(prefix("10.0.0.0/8")), ..jump };
        assert_eq!(analyse(&rules(some), &[port(None)])[0].scope, Scope::All(Families::V4));
    }

    #[test]
    fn scopes_of_what_is_not_followed_are_as_narrow_as_the_selector() {
        let scope = |change: &dyn Fn(&mut Rule)| {
            let mut other = Rule { unknown: true, ..rule(false, 100, 7) };
            change(&mut other);
            let rules = with(&[other]);
            let met = followed(&rules, &port(None));
            assert!(met.v4.is_empty() && met.v6.is_empty());
            let effects = analyse(&rules, &[port(None)]);
            assert_eq!(effects.len(), 1);
            effects[0].scope.clone()
        };
        let ten = prefix("10.0.0.0/8");
        assert_eq!(scope(&|_| {}), Scope::All(Families::V4));
        assert_eq!(scope(&|r| r.to = Some(ten)), Scope::To(ten));
        assert_eq!(scope(&|r| r.from = Some(ten)), Scope::All(Families::V4));
        let input = |name: &str| Scope::In(vec![IfMatch::Name(name.into())], Families::V4);
        assert_eq!(scope(&|r| r.input = Some("r0".into())), input("r0"));
        assert_eq!(scope(&|r| r.input = Some("lo".into())), Scope::Errors(Families::V4));
        assert_eq!(scope(&|r| (r.to, r.invert) = (Some(ten), true)), Scope::All(Families::V4));
    }

    /// Returns what is read of a rule to a destination.
    fn to(family: u8, addr: &[u8], len: u8) -> Result<Option<Prefix>, ()> {
        let mut body = vec![family, len, 0, 0, 100, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
        body.extend((addr.len() as u16 + 4).to_ne_bytes());
        body.extend(FRA_DST.to_ne_bytes());
        body.extend(addr);
        parse(&body).map(|rule| rule.and_then(|rule| rule.to))
    }

    #[test]
    fn a_destination_is_a_prefix_of_an_address() {
        let some = |text: &str| Ok(Some(prefix(text)));
        assert_eq!(to(AF_INET, &[10, 1, 2, 3], 32), some("10.1.2.3/32"));
        // The kernel keeps the bits behind the prefix, which have no effect.
        assert_eq!(to(AF_INET, &[10, 1, 2, 3], 12), some("10.0.0.0/12"));
        assert_eq!(to(AF_INET6, &[0xfd; 16], 8), some("fd00::/8"));
        assert_eq!(to(AF_INET6, &[0xfd; 16], 0), some("::/0"));
        assert_eq!(to(AF_INET, &[10, 1, 2, 3], 33), Err(()));
        assert_eq!(to(AF_INET6, &[0xfd; 16], 129), Err(()));
    }

    #[test]
    fn rules_of_the_hosts_own_packets_are_reported() {
        let own = |more: &dyn Fn(&mut Rule)| {
            let mut other = rule(false, 100, 77);
            more(&mut other);
            let rules = [rule(false, 0, LOCAL), other, rule(false, 32766, MAIN), rule(false, 32767, DEFAULT)];
            of_host(&rules).into_iter().map(|effect| (effect.scope, effect.object)).collect::<Vec<_>>()
        };
        let told = |object: &str| vec![(Scope::Own(Families::V4), object.to_owned())];
        assert_eq!(own(&|_| {}), told("ip rule 100"));
        assert_eq!(own(&|rule| rule.input = Some("r0".into())), told("ip rule 100"));
        assert_eq!(own(&|rule| rule.mark = (7, u32::MAX)), [], "no packet has the mark");
        assert_eq!(own(&|rule| rule.table = MAIN), []);
        assert_eq!(own(&|rule| rule.v6 = true), [(Scope::Own(Families::V6), "ip -6 rule 100".into())]);
    }

    #[test]
    fn a_missing_rule_concerns_everything() {
        let mut rules = born();
        rules.remove(0);
        assert_eq!(analyse(&rules, &[port(None)])[0].scope, Scope::All(Families::V4));
        rules.push(Rule { l3mdev: true, priority: 1000, ..rules[0].clone() });
        assert_eq!(analyse(&rules, &[port(None)]).len(), 1, "the VRF's rule adds nothing");
        let many = with(&vec![Rule { from: Some(prefix("10.0.0.0/8")), ..rule(false, 100, 7) }; MOST]);
        assert_eq!(analyse(&many, &[port(None)])[0].scope, Scope::All(Families::V4));
    }
}
