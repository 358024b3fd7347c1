//! Policy routing rules (`ip rule`) that could route a forwarded packet differently from tables local and main.

use crate::effect::{Effect, IfMatch, Kind, Scope};
use bywash_fib::model::{Families, Prefix};
use bywash_netlink::wire::{Attributes, u8_at, u32_at};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

// linux/fib_rules.h
const FRA_DST: u16 = 1;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_L3MDEV: u16 = 19;
const FRA_PROTOCOL: u16 = 21;
const FR_ACT_TO_TBL: u8 = 1;
const FIB_RULE_INVERT: u32 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Default rules of a new network namespace: priority and table (`fib_default_rules_init`, `fib6_rules_net_init`). The
/// third IPv4 rule, for table default, may be missing: that table is assumed to be empty.
const BORN4: [(u32, u32); 3] = [(0, 255), (32766, 254), (32767, 253)];
const BORN6: [(u32, u32); 2] = [(0, 255), (32766, 254)];

/// A policy routing rule, reduced to the properties that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    v6: bool,
    priority: u32,
    table: u32,
    /// Whether it has a selector, or does anything but look up `table`.
    special: bool,
    /// Whether it applies only to members of VRFs.
    l3mdev: bool,
    invert: bool,
    input: Option<String>,
    to: Option<Prefix>,
}

/// Parses the body of an `RTM_NEWRULE` message. `None` if it is of another family; `Err` if it is truncated, or its
/// prefix longer than an address.
pub fn parse(body: &[u8]) -> Result<Option<Rule>, ()> {
    let family = u8_at(body, 0).ok_or(())?;
    if family != AF_INET && family != AF_INET6 {
        return Ok(None);
    }
    let (len, flags) = (u8_at(body, 1).ok_or(())?, u32_at(body, 8).ok_or(())?);
    let others = body.get(2..4) != Some(&[0, 0]);
    let mut rule = Rule {
        v6: family == AF_INET6,
        priority: 0,
        table: u32::from(u8_at(body, 4).ok_or(())?),
        special: u8_at(body, 7) != Some(FR_ACT_TO_TBL) || others || len != 0 || flags != 0,
        l3mdev: false,
        invert: flags & FIB_RULE_INVERT != 0,
        input: None,
        to: None,
    };
    for (kind, value) in Attributes::after(body, 12) {
        match kind {
            FRA_PRIORITY => rule.priority = u32_at(value, 0).ok_or(())?,
            FRA_TABLE => rule.table = u32_at(value, 0).ok_or(())?,
            // Present in every rule; this value means that nothing is suppressed.
            FRA_SUPPRESS_PREFIXLEN if u32_at(value, 0) == Some(u32::MAX) => {}
            FRA_PROTOCOL => {}
            FRA_L3MDEV => rule.l3mdev = u8_at(value, 0) != Some(0),
            FRA_IIFNAME => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                rule.input = Some(String::from_utf8_lossy(&value[..end]).into_owned());
                rule.special = true;
            }
            FRA_DST => {
                let v4 = || value.first_chunk::<4>().map(|octets| IpAddr::from(Ipv4Addr::from(*octets)));
                let v6 = || value.first_chunk::<16>().map(|octets| IpAddr::from(Ipv6Addr::from(*octets)));
                let addr = if rule.v6 { v6() } else { v4() }.ok_or(())?;
                rule.to = Some(Prefix::containing(addr, len).ok_or(())?);
                rule.special = true;
            }
            _ => rule.special = true,
        }
    }
    Ok(Some(rule))
}

/// Returns the effects of the rules of both families.
pub fn analyse(rules: &[Rule]) -> Vec<Effect> {
    let mut effects = vec![];
    for (v6, families, born) in [(false, Families::V4, &BORN4[..]), (true, Families::V6, &BORN6[..])] {
        let of_family = || rules.iter().filter(move |rule| rule.v6 == v6);
        let is_born = |rule: &&Rule| !rule.special && !rule.l3mdev && born.contains(&(rule.priority, rule.table));
        let name = |rule: &Rule| format!("ip {}rule {}", if v6 { "-6 " } else { "" }, rule.priority);
        for rule in of_family().filter(|rule| !is_born(rule)) {
            // The kernel applies it only to members of VRFs, whose packets are left to the kernel anyway.
            if rule.l3mdev && !rule.special {
                continue;
            }
            let (scope, reason) = match (&rule.input, rule.to) {
                _ if rule.invert => (Scope::All(families), "inverted selector".into()),
                // `iif lo` selects packets that the router itself sends.
                (Some(input), _) if input == "lo" => (Scope::Errors(families), "packets from this host".into()),
                (Some(input), _) => {
                    (Scope::In(vec![IfMatch::Name(input.clone())], families), format!("packets received on {input}"))
                }
                (None, Some(to)) => (Scope::To(to), format!("packets to {to}")),
                (None, None) => (Scope::All(families), format!("may route any packet by table {}", rule.table)),
            };
            effects.push(Effect { kind: Kind::Rules, scope, object: name(rule), reason });
        }
        // A kernel without policy routing has no rules at all and looks up tables local and main.
        if of_family().next().is_none() {
            continue;
        }
        for (priority, table) in born.iter().filter(|(_, table)| *table != 253) {
            if !of_family().any(|rule| is_born(&rule) && (rule.priority, rule.table) == (*priority, *table)) {
                effects.push(Effect {
                    kind: Kind::Rules,
                    scope: Scope::All(families),
                    object: format!("ip {}rule {priority}", if v6 { "-6 " } else { "" }),
                    reason: format!("the default rule for table {table} is missing"),
                });
            }
        }
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;

    fn born() -> Vec<Rule> {
        let rule = |v6, priority, table| Rule {
            v6,
            priority,
            table,
            special: false,
            l3mdev: false,
            invert: false,
            input: None,
            to: None,
        };
        let four = BORN4.map(|(priority, table)| rule(false, priority, table));
        four.into_iter().chain(BORN6.map(|(priority, table)| rule(true, priority, table))).collect()
    }

    #[test]
    fn a_namespace_s_own_rules_have_no_effect() {
        assert_eq!(analyse(&born()), []);
        assert_eq!(analyse(&[]), []);
    }

    #[test]
    fn scopes_are_as_narrow_as_the_selector() {
        let scope = |change: &dyn Fn(&mut Rule)| {
            let mut rules = born();
            let mut rule = rules[1].clone();
            (rule.priority, rule.special) = (100, true);
            change(&mut rule);
            rules.push(rule);
            let effects = analyse(&rules);
            assert_eq!(effects.len(), 1);
            effects[0].scope.clone()
        };
        let prefix = Prefix { addr: "10.0.0.0".parse().unwrap(), len: 8 };
        assert_eq!(scope(&|_| {}), Scope::All(Families::V4));
        assert_eq!(scope(&|r| r.to = Some(prefix)), Scope::To(prefix));
        let input = |name: &str| Scope::In(vec![IfMatch::Name(name.into())], Families::V4);
        assert_eq!(scope(&|r| r.input = Some("r0".into())), input("r0"));
        assert_eq!(scope(&|r| r.input = Some("lo".into())), Scope::Errors(Families::V4));
        assert_eq!(scope(&|r| (r.to, r.invert) = (Some(prefix), true)), Scope::All(Families::V4));
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
        let prefix = |addr: &str, len| Ok(Some(Prefix { addr: addr.parse().unwrap(), len }));
        assert_eq!(to(AF_INET, &[10, 1, 2, 3], 32), prefix("10.1.2.3", 32));
        // The kernel keeps the bits behind the prefix, which select nothing.
        assert_eq!(to(AF_INET, &[10, 1, 2, 3], 12), prefix("10.0.0.0", 12));
        assert_eq!(to(AF_INET6, &[0xfd; 16], 8), prefix("fd00::", 8));
        assert_eq!(to(AF_INET6, &[0xfd; 16], 0), prefix("::", 0));
        assert_eq!(to(AF_INET, &[10, 1, 2, 3], 33), Err(()));
        assert_eq!(to(AF_INET6, &[0xfd; 16], 129), Err(()));
    }

    #[test]
    fn a_missing_rule_concerns_everything() {
        let mut rules = born();
        rules.remove(0);
        assert_eq!(analyse(&rules)[0].scope, Scope::All(Families::V4));
        rules.push(Rule { l3mdev: true, priority: 1000, ..rules[0].clone() });
        assert_eq!(analyse(&rules).len(), 1, "the VRF's rule adds nothing");
    }
}
