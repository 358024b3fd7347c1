//! nf_tables: the kernel's ruleset, and the forwarded packets that it may affect.
//!
//! [`Reader`] reads tables, chains, rules and objects by nfnetlink (linux/netfilter/nf_tables.h), but no set elements;
//! [`analyse`] is a pure function of the result. Rules written by iptables-nft are included.

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
    /// Tables in the kernel's order.
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
    /// A family unknown to this crate, by number.
    Other(u8),
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its family.
    pub family: Family,
    /// Name, unique in its family.
    pub name: String,
    /// Whether the table is dormant (NFT_TABLE_F_DORMANT): its base chains are not hooked.
    pub dormant: bool,
    /// Its chains.
    pub chains: Vec<Chain>,
    /// Sets and objects whose mere existence enables connection tracking, by name: "ct helper ftp".
    pub tracking: Vec<String>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name, unique in its table.
    pub name: String,
    /// Hook of a base chain; `None` for a chain that is only jumped to.
    pub base: Option<Base>,
    /// Its rules, in order.
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
    /// Whether the policy is to accept (NF_ACCEPT).
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
}

/// An expression, reduced to the properties that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Reads, computes or compares, and does nothing else.
    Reads,
    /// Loads the whole value into a register.
    Load(Loaded, u32),
    /// Ends the rule unless the register begins with the value.
    Equals(u32, Vec<u8>),
    /// Gives a verdict, or leaves the chain.
    Verdict(Verdict),
    /// Has side effects, or is not understood.
    Acts {
        /// Description: "masquerade".
        how: String,
        /// Role in connection tracking.
        tracking: Tracking,
    },
}

/// Metadata (NFT_META_*) that tells interfaces or families apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Name of the ingress interface.
    IifName,
    /// Name of the egress interface.
    OifName,
    /// ifindex of the ingress interface, in host order.
    Iif,
    /// ifindex of the egress interface, in host order.
    Oif,
    /// AF_INET or AF_INET6, one octet.
    Nfproto,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet continues in the next chain, rule or caller: accept, continue, return.
    GoesOn,
    /// Jumps to another chain (jump, goto).
    Chain(String),
    /// Anything else: "drop".
    Other(String),
}

/// Role of an expression in connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tracking {
    /// No role.
    No,
    /// Uses the state of connection tracking, which must see the packets of both directions.
    Uses,
    /// Enables connection tracking or defragmentation in the namespace for the table's families, wherever the rule is.
    TurnsOn,
}
