//! Parses the outline of a table from the kernel's answers. No length or offset in them is trusted.

use super::sockopt::{Family, INFO};
use bywash_nl::wire::{u16_at, u32_at};

const HOOKS: usize = 5;
const CHAINS: [&str; HOOKS] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
const FORWARDED: [usize; 3] = [0, 2, 4];
const INPUT: usize = 1;
const OUTPUT: usize = 3;
/// Verdict of a standard target that accepts: -NF_ACCEPT - 1.
const ACCEPT: u32 = -2i32 as u32;
/// Upper bound of the size of a table's entries, in octets.
const SIZE: u32 = 1 << 30;

/// Built-in chains of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Size of its entries, in octets.
    pub size: u32,
    entries: u32,
    chains: [Option<BuiltIn>; HOOKS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BuiltIn {
    first: u32,
    /// Offset of the policy entry, the last one of the chain.
    policy: u32,
    /// Set if the policy is known to be ACCEPT.
    accepts: bool,
}

impl Outline {
    /// Parses struct ipt_getinfo; `None` if it is inconsistent.
    pub fn of(info: &[u8; INFO]) -> Option<Self> {
        let at = |offset| u32_at(info, offset);
        let (valid, entries, size) = (at(32)?, at(76)?, at(80)?);
        let mut chains = [None; HOOKS];
        for (hook, chain) in chains.iter_mut().enumerate().filter(|(hook, _)| valid & 1 << hook != 0) {
            let (first, policy) = (at(36 + 4 * hook)?, at(56 + 4 * hook)?);
            if first > policy || policy >= size {
                return None;
            }
            *chain = Some(BuiltIn { first, policy, accepts: false });
        }
        (size <= SIZE && valid < 1 << HOOKS).then_some(Self { size, entries, chains })
    }

    /// Returns whether the policies must be read, as they are when forwarded packets pass no rule.
    pub fn hides_policies(&self) -> bool {
        !FORWARDED.iter().any(|&hook| self.rules_in(hook))
    }

    /// Reads the policies from the table's entries; `None` if the entries are malformed.
    pub fn policies(&mut self, family: Family, entries: &[u8]) -> Option<()> {
        // struct ipt_entry and ip6t_entry: target_offset, next_offset.
        let (header, target_at) = match family {
            Family::Ip => (112, 88),
            Family::Ip6 => (168, 140),
        };
        for chain in self.chains.iter_mut().flatten() {
            let entry = entries.get(chain.policy as usize..)?;
            let target = usize::from(u16_at(entry, target_at)?);
            let next = usize::from(u16_at(entry, target_at + 2)?);
            // struct xt_standard_target: size, an empty name and revision in 32 octets, then the verdict.
            let standard = entry.get(target..target.checked_add(36)?)?;
            chain.accepts =
                target == header && next >= target + 36 && standard[2] == 0 && u32_at(standard, 32)? == ACCEPT;
        }
        Some(())
    }

    /// Returns whether the table has entries other than one policy per hook and the terminating entry.
    pub fn has_rules(&self) -> bool {
        self.entries as usize != self.chains.iter().flatten().count() + 1
    }

    /// Returns the first chain that affects forwarded packets, and its effect.
    pub fn forwarded(&self) -> Option<(&'static str, &'static str)> {
        let with_rules = FORWARDED.iter().find(|&&hook| self.rules_in(hook));
        let dropping = || FORWARDED.iter().find(|&&hook| self.does(hook).is_some());
        let hook = *with_rules.or_else(dropping)?;
        Some((CHAINS[hook], self.does(hook)?))
    }

    /// Returns the effect of chain OUTPUT on the router's own packets, if any.
    pub fn local(&self) -> Option<&'static str> {
        self.does(OUTPUT)
    }

    /// Returns the effect of chain INPUT on packets to this host, if any.
    pub fn input(&self) -> Option<&'static str> {
        self.does(INPUT)
    }

    fn does(&self, hook: usize) -> Option<&'static str> {
        match self.chains[hook] {
            Some(_) if self.rules_in(hook) => Some("rules"),
            Some(chain) if !chain.accepts => Some("policy drop"),
            _ => None,
        }
    }

    fn rules_in(&self, hook: usize) -> bool {
        self.chains[hook].is_some_and(|chain| chain.first != chain.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info(valid: u32, first: [u32; 5], policy: [u32; 5], entries: u32, size: u32) -> [u8; INFO] {
        let mut info = [0; INFO];
        let words = [valid].into_iter().chain(first).chain(policy).chain([entries, size]);
        for (at, word) in words.enumerate() {
            info[32 + 4 * at..36 + 4 * at].copy_from_slice(&word.to_ne_bytes());
        }
        info
    }

    /// Returns a filter table of three policy entries and the terminating entry.
    fn filter(family: Family, verdicts: [i32; 3]) -> (Outline, Vec<u8>) {
        let (header, target_at) = match family {
            Family::Ip => (112, 88),
            Family::Ip6 => (168, 140),
        };
        let length = header + 40;
        let mut entries = vec![0; 4 * length];
        for (at, verdict) in verdicts.iter().enumerate() {
            let entry = &mut entries[at * length..];
            entry[target_at..target_at + 2].copy_from_slice(&(header as u16).to_ne_bytes());
            entry[target_at + 2..target_at + 4].copy_from_slice(&(length as u16).to_ne_bytes());
            entry[header + 32..header + 36].copy_from_slice(&verdict.to_ne_bytes());
        }
        let at = |n: usize| (n * length) as u32;
        let offsets = [0, at(0), at(1), at(2), 0];
        let outline = Outline::of(&info(0b01110, offsets, offsets, 4, entries.len() as u32)).unwrap();
        (outline, entries)
    }

    #[test]
    fn a_table_without_rules_that_accepts_does_nothing() {
        for family in [Family::Ip, Family::Ip6] {
            let (mut outline, entries) = filter(family, [-2, -2, -2]);
            assert!(outline.hides_policies());
            outline.policies(family, &entries).unwrap();
            assert_eq!((outline.forwarded(), outline.local(), outline.has_rules()), (None, None, false));
        }
    }

    #[test]
    fn a_policy_that_drops_is_found_in_its_chain() {
        let (mut outline, entries) = filter(Family::Ip, [-2, -1, -2]);
        outline.policies(Family::Ip, &entries).unwrap();
        assert_eq!((outline.forwarded(), outline.local()), (Some(("FORWARD", "policy drop")), None));
        let (mut outline, entries) = filter(Family::Ip6, [-1, -2, -1]);
        outline.policies(Family::Ip6, &entries).unwrap();
        assert_eq!((outline.forwarded(), outline.local()), (None, Some("policy drop")));
    }

    #[test]
    fn policies_that_were_not_read_are_none_to_rely_on() {
        let (outline, _) = filter(Family::Ip, [-2, -2, -2]);
        assert!(outline.forwarded().is_some());
    }

    #[test]
    fn rules_are_found_in_their_chain() {
        let outline = |first, policy| Outline::of(&info(0b01110, first, policy, 5, 1000)).unwrap();
        let forward = outline([0, 0, 152, 456, 0], [0, 0, 304, 456, 0]);
        assert!(!forward.hides_policies() && forward.has_rules());
        assert_eq!(forward.forwarded(), Some(("FORWARD", "rules")));
        let input = outline([0, 0, 304, 456, 0], [0, 152, 304, 456, 0]);
        assert!(input.hides_policies() && input.has_rules());
    }

    #[test]
    fn offsets_past_the_end_are_refused() {
        assert_eq!(Outline::of(&info(1, [0; 5], [1000, 0, 0, 0, 0], 2, 1000)), None);
        assert_eq!(Outline::of(&info(1, [8, 0, 0, 0, 0], [0; 5], 2, 1000)), None);
        assert_eq!(Outline::of(&info(1 << 5, [0; 5], [0; 5], 2, 1000)), None);
        let (mut outline, entries) = filter(Family::Ip, [-2, -2, -2]);
        assert_eq!(outline.policies(Family::Ip, &entries[..300]), None);
    }

    proptest! {
        #[test]
        fn any_octets_are_read_without_harm(
            octets in prop::collection::vec(any::<u8>(), INFO),
            entries in prop::collection::vec(any::<u8>(), 0..512),
            offsets in prop::array::uniform5(0u32..512),
        ) {
            let _ = Outline::of(&octets.try_into().unwrap());
            for family in [Family::Ip, Family::Ip6] {
                if let Some(mut outline) = Outline::of(&info(0b11111, offsets, offsets, 6, 512)) {
                    let _ = outline.policies(family, &entries);
                    let _ = (outline.forwarded(), outline.local(), outline.has_rules());
                }
            }
        }
    }
}
