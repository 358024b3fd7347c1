//! The kernel's firewall, as `bywash show firewall` prints it. An instance is only queried for its flows.

use crate::FlowTable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kernel's nf_tables rules, iptables-nft included, as forwarded packets of established flows meet them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Firewall {
    /// Generation of the ruleset, which every change by a program increases.
    pub generation: u32,
    /// Base chains, in the order in which a forwarded packet meets them.
    pub chains: Vec<FirewallChain>,
    /// Answers for established flows of any addresses, ports and interfaces.
    pub established: Vec<Established>,
    /// Families of these chains for which no rule turns on connection tracking, so that no connection is ever
    /// established: `IPv4`, `IPv6`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub untracked: Vec<String>,
    /// True if iptables-legacy has rules, which are not evaluated.
    pub legacy: bool,
    /// Table of established flows of the router that runs; missing if none does, or if it is `elsewhere`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowTable>,
    /// Process of the running instance if it is in another network namespace, where other rules apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<i32>,
}

/// Base chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FirewallChain {
    /// Hook: `ingress`, `prerouting`, `forward`, `postrouting` or `egress`; empty if unknown.
    pub hook: String,
    /// Priority among the chains of the hook.
    pub priority: i32,
    /// Family of the table.
    pub family: String,
    /// Table.
    pub table: String,
    /// Chain.
    pub chain: String,
    /// Devices of an ingress or egress chain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Policy: `accept` or `drop`.
    pub policy: String,
    /// Number of its rules.
    pub rules: usize,
}

/// Answer for established flows of a family and a protocol.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Established {
    /// Flows: `IPv4 TCP`.
    pub flows: Vec<String>,
    /// Verdict: `accept` or `drop` for every packet; `kernel` if only the kernel can tell; `depends` if it differs
    /// between flows.
    pub verdict: String,
    /// Chain or rule that drops them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Rules whose counters count every packet of every flow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<String>,
    /// Rules that it depends on, the most important one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<FirewallReason>,
}

/// Rule that a verdict depends on, or that keeps flows in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FirewallReason {
    /// Rule, or chain as a whole.
    pub rule: String,
    /// The rule as text; empty for a chain.
    pub text: String,
    /// Side effect, or value that it depends on.
    pub why: String,
    /// True if it applies only to some flows.
    pub some: bool,
    /// Change that would help.
    pub change: String,
}
