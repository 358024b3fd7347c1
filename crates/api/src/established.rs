//! Answers about a router's established flows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Part of the established flows that a router forwards past the kernel's rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EstablishedFlows {
    /// Flows, in the order of the table.
    pub flows: Vec<EstablishedFlow>,
    /// Number of flows in the table, whatever the filter.
    pub total: u64,
    /// Place in the table from which to continue (`after=NEXT` in the filter); null if there are no more flows.
    pub next: Option<String>,
}

/// Established flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstablishedFlow {
    /// Protocol: `tcp` or `udp`.
    pub protocol: String,
    /// Packets of the side that opened the connection.
    pub original: FlowDirection,
    /// Replies. Without translation, their addresses and ports are the original ones exchanged.
    pub reply: FlowDirection,
    /// Time since it was installed, in seconds.
    pub age_s: u64,
    /// Time since a packet of it was last noticed, in seconds. Packets are looked for in a pass over all flows, which
    /// takes up to an eighth of the kernel's shortest timeout of established connections: 15 s by its defaults.
    #[serde(default)]
    pub idle_s: u64,
    /// State: `valid`; `unconfirmed` until the newest rules have been evaluated for it; `revoked` if its packets
    /// are left to the kernel until it is removed.
    pub state: String,
}

/// Direction of an established flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowDirection {
    /// Source address of its packets as they are received.
    pub src: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination address.
    pub dst: IpAddr,
    /// Destination port.
    pub dst_port: u16,
    /// Port that receives them.
    pub port: String,
    /// Level of that port, at which they are forwarded if nothing prevents it: `driver`, `user` or `kernel`.
    pub level: String,
    /// Packets forwarded, modulo 2^32.
    pub packets: u32,
    /// Bytes forwarded, of the IP headers and what follows them.
    pub bytes: u64,
}

/// Table of a router's established flows, counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlowTable {
    /// State: `off` (no `flows` in `[router]`); `passing` if packets of flows bypass the kernel's rules on some port;
    /// `idle` if no port needs them, or no flow may be used now.
    pub state: String,
    /// Maximum number of flows in the table.
    pub limit: u64,
    /// Flows by family.
    pub families: Vec<FlowFamily>,
    /// Packets forwarded by flows, removed ones included.
    pub packets: u64,
    /// Bytes forwarded by flows, of the IP headers and what follows them.
    pub bytes: u64,
    /// Flows revoked, by reason.
    pub revoked: Vec<FlowsRevoked>,
    /// Last time that flows were revoked; null if none has been.
    pub last_revoked: Option<LastRevoked>,
    /// Connections that were left to the kernel because the table was full.
    pub full: u64,
    /// Number of times that the kernel's events of connections were lost.
    pub lost: u64,
    /// Evaluations of the rules for a connection; there is another one when it or the rules change.
    pub judged: u64,
    /// Time that these evaluations took, in microseconds.
    pub judging_us: u64,
}

/// Established flows of a family.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlowFamily {
    /// Family: `ipv4` or `ipv6`.
    pub family: String,
    /// Set if packets of its flows bypass the kernel's rules on some port.
    pub passing: bool,
    /// Flows in the table.
    pub flows: u64,
    /// Flows inserted.
    pub inserted: u64,
    /// Flows removed.
    pub removed: u64,
}

/// Flows revoked for one reason. A flow that is found valid again may be revoked again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlowsRevoked {
    /// Reason. All flows are revoked until the rules have been evaluated again: `new-rules` (or other ports),
    /// `events-lost`, `failure`. One flow is removed: `connection-gone`, `closed-by-packet` (SYN, FIN or RST),
    /// `verdict-changed`.
    pub reason: String,
    /// Flows.
    pub flows: u64,
}

/// Last time that flows were revoked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LastRevoked {
    /// Reason, as in `revoked`.
    pub reason: String,
    /// Time, in seconds since 1970.
    pub time: u64,
}

/// Connections that the kernel tracks, TCP and UDP, and why it forwards them itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KernelConnections {
    /// Connections.
    pub connections: u64,
    /// Connections with a valid flow: they are forwarded past the kernel's rules.
    pub forwarded: u64,
    /// Reasons why the others are left to the kernel, the most frequent one first.
    pub reasons: Vec<KernelReason>,
    /// Connections that were not examined, for lack of time.
    pub skipped: u64,
}

/// Reason why connections are left to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KernelReason {
    /// Connections.
    pub connections: u64,
    /// Reason.
    pub reason: String,
    /// Rule, or chain as a whole, that is the reason; null if the reason is not a rule.
    pub rule: Option<String>,
    /// The rule as text; null for a chain.
    pub text: Option<String>,
    /// Example of a connection.
    pub example: String,
}
