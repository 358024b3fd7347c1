//! Effects: the forwarded packets that a piece of kernel state affects, and the reason.

use bywash_fib::model::{Families, Prefix};
use serde::{Deserialize, Serialize};

/// Kind of kernel state, one for each key of `[kernel]` in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// nf_tables, iptables-nft included.
    Netfilter,
    /// Legacy iptables and ip6tables, of the x_tables kernel interface (`iptables-legacy`).
    IptablesLegacy,
    /// IPsec policies (`ip xfrm policy`).
    Ipsec,
    /// Policy routing rules (`ip rule`), and tables other than main and local.
    Rules,
    /// Switches under `/proc/sys/net` that decide whether and how packets are forwarded.
    Sysctls,
    /// Queueing disciplines, filters and policers (`tc`).
    TrafficControl,
    /// BPF programs that others have attached (tcx, sk_lookup), IPVS, and functions of other modules on netfilter's
    /// hooks.
    Programs,
}

impl Kind {
    /// All kinds, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Netfilter,
        Self::IptablesLegacy,
        Self::Ipsec,
        Self::Rules,
        Self::Sysctls,
        Self::TrafficControl,
        Self::Programs,
    ];

    /// Returns the name of the kind's key in `[kernel]`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Netfilter => "netfilter",
            Self::IptablesLegacy => "iptables_legacy",
            Self::Ipsec => "ipsec",
            Self::Rules => "rules",
            Self::Sysctls => "sysctls",
            Self::TrafficControl => "traffic_control",
            Self::Programs => "programs",
        }
    }
}

/// Selector of interfaces in kernel state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IfMatch {
    /// The interface of this name.
    Name(String),
    /// Interfaces whose names begin with this string (`eth*`).
    Prefix(String),
    /// The interface of this kernel index.
    Index(u32),
}

impl IfMatch {
    /// Returns whether the interface with this kernel index and name matches.
    pub fn covers(&self, index: u32, name: &str) -> bool {
        match self {
            Self::Name(this) => this == name,
            Self::Prefix(start) => name.starts_with(start.as_str()),
            Self::Index(this) => *this == index,
        }
    }
}

/// The forwarded packets that an effect concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Every forwarded packet of these families.
    All(Families),
    /// Packets received on one of these interfaces.
    In(Vec<IfMatch>, Families),
    /// Packets that would be sent on one of these interfaces.
    Out(Vec<IfMatch>, Families),
    /// Packets received on one of these interfaces, which a rule may send by another one as they are.
    Relayed(Vec<IfMatch>),
    /// Every packet that a bridge receives or sends on its members.
    Bridged,
    /// Frames between the members of a bridge.
    Between,
    /// Packets to this destination.
    To(Prefix),
    /// ICMP errors about forwarded packets, which the router itself sends.
    Errors(Families),
    /// Fragments, which connection tracking reassembles.
    Fragments(Families),
    /// Packets of established flows, where others are left to the kernel because of netfilter.
    Flows(Families),
    /// Packets that the host itself receives or sends, such as the outer packets of tunnels.
    Own(Families),
    /// Outer packets of the tunnel with this kernel index.
    Tunnel(u32),
    /// Packets that the kernel decrypts, and receives once more.
    Decrypted,
}

/// A piece of kernel state that affects forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Effect {
    /// Kind of state.
    pub kind: Kind,
    /// Packets concerned.
    pub scope: Scope,
    /// The object, as its own tool names it: `table inet filter chain forward rule handle 5`, `ip rule 100`.
    pub object: String,
    /// Action of the object: `policy drop`, `masquerade`.
    pub reason: String,
}

/// Error for kernel state that could not be read. Every packet that it might concern is left to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unknown {
    /// Reason of the failure, and where it occurred.
    pub why: String,
}
