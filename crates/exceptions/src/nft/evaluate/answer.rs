//! Answers of an evaluation.

use crate::nft::octets::{Of, Why};
use std::fmt;

/// A chain or a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Family of the table, by name.
    pub family: String,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// Handle of the rule; `None` for the chain as a whole or its policy.
    pub rule: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, table, chain, rule } = self;
        write!(f, "table {family} {table} chain {chain}")?;
        rule.map_or(Ok(()), |handle| write!(f, " rule handle {handle}"))
    }
}

/// Kind of a finding, the one that most deserves a change first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The rule does something that only the kernel can do, or that is not understood.
    Acts,
    /// The rule drops packets, depending on a value.
    Drops,
    /// The rule accepts packets or leaves the chain, depending on a value.
    Passes,
}

/// A rule that decides by packet, or by flow where several are meant, or that has a side effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub place: Place,
    /// Kind of finding.
    pub cause: Cause,
    /// The side effect, or the value that the verdict depends on: "limit", "ip length".
    pub why: String,
    /// Set if it applies only to some of the flows in question.
    pub some: bool,
    /// Set if connection tracking has seen the packets there: else no rule can ask for the state of the connection.
    pub tracked: bool,
}

/// A counter that counts every packet of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The rule.
    pub place: Place,
    /// Name of the counter, unless it is the rule's own.
    pub name: Option<String>,
}

/// Verdict of a ruleset on the packets of an established flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Every packet is accepted, and nothing else is done with it than being counted.
    Accept {
        /// Counters that count it, in their order. If the flow is only partly known, others may count it, too: counters
        /// of only some flows are reported once the flow is known. Counters of policies are never reported.
        counters: Vec<Counter>,
        /// Set if a rule may translate the source to an address of the interface that sends the packet, which leaves a
        /// packet with that source as it is.
        masquerades: bool,
    },
    /// Every packet is dropped.
    Drop {
        /// Where, or where first.
        at: Place,
        /// Counters that count it before, in their order, with the limits of those of [`Answer::Accept`].
        counters: Vec<Counter>,
    },
    /// Only the kernel can tell what a packet meets.
    Kernel {
        /// Reasons, at least one, most important first.
        findings: Vec<Finding>,
    },
    /// The verdict differs between the flows in question.
    Depends {
        /// Rules that it depends on, at least one, most important first.
        findings: Vec<Finding>,
    },
}

impl Finding {
    /// Creates a finding that concerns the packets among which `unsure` differs.
    pub(super) fn of(place: Place, cause: Cause, why: &str, unsure: Option<Why<'_>>, tracked: bool) -> Self {
        let some = unsure.is_some_and(|why| why.of == Of::Flows);
        Self { place, cause, why: why.to_owned(), some, tracked }
    }
}
