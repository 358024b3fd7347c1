//! nf_tables: the ruleset as the kernel holds it, and which packets between ports it may touch.
//!
//! [`Reader`] reads tables, chains, rules and objects by nfnetlink (linux/netfilter/nf_tables.h), but no set elements;
//! [`analyse`] is a pure function of that. Rules that iptables writes (iptables-nft) are found there as well.

mod analyse;
mod parse;
mod read;
mod xt;

pub use analyse::analyse;
pub use read::{Reader, read};

use crate::effect::IfMatch;

/// All tables of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// In the kernel's order.
    pub tables: Vec<Table>,
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
    /// None of those this crate knows.
    Other(u8),
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its family.
    pub family: Family,
    /// Its name, one of a kind in its family.
    pub name: String,
    /// Its base chains are hooked nowhere (NFT_TABLE_F_DORMANT).
    pub dormant: bool,
    /// Its chains.
    pub chains: Vec<Chain>,
    /// Sets and objects that turn connection tracking on by being there, each named: "ct helper ftp".
    pub tracking: Vec<String>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name, one of a kind in its table.
    pub name: String,
    /// The hook it hangs on. `None` for a chain that is only jumped to.
    pub base: Option<Base>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
    /// The reason why this is not all of it, if so: "unknown attribute 13".
    pub opaque: Option<String>,
}

/// A hook that a base chain hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// NF_INET_* or NF_NETDEV_*, by the table's family.
    pub hook: u32,
    /// The place among the chains of that hook.
    pub priority: i32,
    /// "filter", "nat" or "route".
    pub kind: String,
    /// Whether packets that meet no verdict go on (NF_ACCEPT).
    pub accepts: bool,
    /// The devices of an ingress or egress chain, sorted.
    pub devices: Vec<IfMatch>,
}

/// A rule: its expressions run until one of them breaks off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its number in its table, as `nft -a` shows it.
    pub handle: u64,
    /// What it consists of.
    pub expressions: Vec<Expression>,
}

/// An expression, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Reads, computes or compares, and does nothing else.
    Reads,
    /// Loads one of those into a register, all of it.
    Load(Loaded, u32),
    /// Breaks off unless the register begins with the value.
    Equals(u32, Vec<u8>),
    /// Ends or leaves the chain.
    Verdict(Verdict),
    /// Does something.
    Acts {
        /// In plain words: "masquerade".
        how: String,
        /// Its part in connection tracking.
        tracking: Tracking,
    },
}

/// Registers' contents that tell interfaces or families apart (NFT_META_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Name of the interface it came by.
    IifName,
    /// Name of the interface it goes by.
    OifName,
    /// ifindex of the interface it came by, in host order.
    Iif,
    /// ifindex of the interface it goes by, in host order.
    Oif,
    /// AF_INET or AF_INET6, one octet.
    Nfproto,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet goes on, to the next chain, rule or caller: accept, continue, return.
    GoesOn,
    /// Another chain is run (jump, goto).
    Chain(String),
    /// Anything else: "drop".
    Other(String),
}

/// The part of an expression in connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tracking {
    /// None.
    No,
    /// Looks at what it knows: packets of both directions have to be seen by it.
    Uses,
    /// Turns it, or the putting together of fragments, on in the namespace for the table's families, wherever the rule
    /// is.
    TurnsOn,
}
