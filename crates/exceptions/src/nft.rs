//! nf_tables: the kernel's ruleset, and the forwarded packets that it may affect.
//!
//! [`Reader`] reads tables, chains, rules, sets and objects by nfnetlink (linux/netfilter/nf_tables.h), the elements of
//! sets on request; [`analyse`] is a pure function of the result, and so is [`Evaluator`], which finds the verdict on
//! the packets of an established flow and, by [`on_tunnels`], on the outer packets of tunnels. Rules written by
//! iptables-nft are included.

mod analyse;
#[cfg(test)]
mod build;
mod evaluate;
mod expression;
mod flow;
mod octets;
mod outer;
mod parse;
mod read;
mod set;
mod text;
mod xt;

pub use analyse::analyse;
pub use evaluate::{Answer, Cause, Counter, Evaluator, Finding, Hooked, Place};
pub use expression::{Comparison, Expression, To, Tracking, Verdict, ct, meta};
pub use flow::{Course, Flow, Hook, Interface, State, Tuple};
pub use outer::{on_tunnel, on_tunnels, pass_devices};
#[cfg(any(test, fuzzing))]
pub(crate) use read::gather;
pub use read::{Reader, read, read_whole};
pub use set::{Data, Element, Set};

use crate::effect::IfMatch;
use bywash_fib::model::Families;

/// All tables of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Generation id at which it was read: if the kernel's differs, the ruleset is out of date.
    pub generation: u32,
    /// Tables in the kernel's order.
    pub tables: Vec<Table>,
}

impl Ruleset {
    /// Returns the families in which a chain of type nat is hooked. The kernel hooks all chains of a family as soon as
    /// there is one (nf_nat_register_fn).
    pub fn translating(&self) -> Families {
        let nat = |chain: &Chain| chain.base.as_ref().is_some_and(|base| base.kind == "nat");
        let tables = self.tables.iter().filter(|table| !table.dormant && table.chains.iter().any(nat));
        tables.fold(Families::NONE, |all, table| all | table.family.families())
    }

    /// Returns the rule at a place; `None` if the place is a chain as a whole, or not in this ruleset.
    pub fn rule(&self, place: &Place) -> Option<&Rule> {
        let tables = self.tables.iter().filter(|t| t.name == place.table && t.family.to_string() == place.family);
        let chain = tables.flat_map(|table| &table.chains).find(|chain| chain.name == place.chain)?;
        chain.rules.iter().find(|rule| Some(rule.handle) == place.rule)
    }

    /// Returns the first rule, or chain as a whole, that may have a hidden effect, and the effect; `None` if there is
    /// none. A hidden effect is one that the first packet of a connection has on the connection, and that the kernel
    /// shows neither in later packets nor in its messages about the connection: a choice of its timeout or of its
    /// events (`ct event set`, or `CT --ctevents` of iptables). Rules that are not understood may have any effect.
    pub fn hidden_effect(&self) -> Option<(Place, &str)> {
        let mut chains = self.tables.iter().flat_map(|table| table.chains.iter().map(move |chain| (table, chain)));
        chains.find_map(|(table, chain)| {
            let place = |rule| Place {
                family: table.family.to_string(),
                table: table.name.clone(),
                chain: chain.name.clone(),
                rule,
            };
            let of_rule = || {
                chain.rules.iter().find_map(|rule| {
                    let mut effects = rule.expressions.iter().filter_map(|expression| expression.hidden_effect(table));
                    Some((place(Some(rule.handle)), effects.next()?))
                })
            };
            chain.opaque.as_deref().map(|why| (place(None), why)).or_else(of_rule)
        })
    }
}

/// The family of a table (NFPROTO_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// "ip".
    Ip,
    /// "ip6".
    Ip6,
    /// "inet": both.
    Inet,
    /// "netdev".
    Netdev,
    /// "bridge".
    Bridge,
    /// "arp".
    Arp,
    /// A family unknown to this crate, by number.
    Other(u8),
}

impl Family {
    /// Returns the families of the IP packets that its chains see.
    fn families(self) -> Families {
        match self {
            Self::Ip => Families::V4,
            Self::Ip6 => Families::V6,
            Self::Arp => Families::NONE,
            Self::Inet | Self::Netdev | Self::Bridge | Self::Other(_) => Families::BOTH,
        }
    }

    /// Returns its number (NFPROTO_*).
    pub fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Arp => 3,
            Self::Netdev => 5,
            Self::Bridge => 7,
            Self::Ip6 => 10,
            Self::Other(number) => number,
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip => f.write_str("ip"),
            Self::Ip6 => f.write_str("ip6"),
            Self::Inet => f.write_str("inet"),
            Self::Netdev => f.write_str("netdev"),
            Self::Bridge => f.write_str("bridge"),
            Self::Arp => f.write_str("arp"),
            Self::Other(number) => write!(f, "family {number}"),
        }
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Family of the table.
    pub family: Family,
    /// Name, unique in its family.
    pub name: String,
    /// Set if the table is dormant (NFT_TABLE_F_DORMANT): its base chains are not hooked.
    pub dormant: bool,
    /// Set if the kernel removes the table when its owner ends, without an announcement and in the same generation of
    /// the ruleset (NFT_TABLE_F_OWNER without NFT_TABLE_F_PERSIST; nft_rcv_nl_event).
    pub owned: bool,
    /// Chains of the table.
    pub chains: Vec<Chain>,
    /// Sets and maps of the table, anonymous ones included.
    pub sets: Vec<Set>,
    /// Sets and objects whose mere existence enables connection tracking, by name: "ct helper ftp".
    pub tracking: Vec<String>,
    /// Flow tables.
    pub flow_tables: Vec<FlowTable>,
}

/// A flow table: connections that a rule has put into it pass the other rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowTable {
    /// Name, unique in its table.
    pub name: String,
    /// Devices on whose ingress hook it is; `None` if they are not understood.
    pub devices: Option<Vec<IfMatch>>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name, unique in its table.
    pub name: String,
    /// Hook of a base chain; `None` for a chain that is only jumped to.
    pub base: Option<Base>,
    /// Rules of the chain, in order.
    pub rules: Vec<Rule>,
    /// Reason why the chain is not fully understood, if so: "unknown attribute 13".
    pub opaque: Option<String>,
}

/// Hook, policy and devices of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// NF_INET_* or NF_NETDEV_*, by the table's family.
    pub hook: u32,
    /// Priority among the chains of that hook.
    pub priority: i32,
    /// "filter", "nat" or "route".
    pub kind: String,
    /// Set if the policy is to accept (NF_ACCEPT).
    pub accepts: bool,
    /// The devices of an ingress or egress chain, sorted.
    pub devices: Vec<IfMatch>,
}

/// A rule, whose expressions run until one of them ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Handle in its table, as shown by `nft -a`.
    pub handle: u64,
    /// Expressions, in order.
    pub expressions: Vec<Expression>,
    /// Comment, if the rule has one.
    pub comment: Option<String>,
}
