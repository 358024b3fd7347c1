//! Warnings about policy rules, by which the kernel routes packets and which the mirror does not follow.

use crate::parse::Rule;
use std::collections::BTreeSet;

/// Default rules of a new network namespace: priority and table (fib_default_rules_init, fib6_rules_net_init).
const BORN4: [(u32, u32); 3] = [(0, 255), (32766, 254), (32767, 253)];
const BORN6: [(u32, u32); 2] = [(0, 255), (32766, 254)];

/// Returns the warnings for these rules.
pub fn of(rules: &BTreeSet<Rule>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (v6, name, born) in [(false, "IPv4", &BORN4[..]), (true, "IPv6", &BORN6[..])] {
        let of_family = || rules.iter().filter(move |rule| rule.v6 == v6);
        let is_born = |rule: &&Rule| !rule.special && born.contains(&(rule.priority, rule.table));
        let added = of_family().filter(|rule| !is_born(rule)).count();
        if added > 0 {
            warnings
                .push(format!("{added} {name} policy rule(s) (ip rule) are not followed: table main decides alone"));
        }
        // A kernel without policy routing has no rules at all.
        let kept = of_family().filter(is_born).count();
        if kept < born.len() && of_family().next().is_some() {
            warnings.push(format!(
                "{} of the kernel's default {name} policy rules are missing; tables local and main are still used",
                born.len() - kept
            ));
        }
    }
    warnings
}
