//! Answers to commands, and errors.

use crate::Route;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Error, with a status of 400 or more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Problem {
    /// Problem.
    pub error: String,
    /// Hint: what would have been accepted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

/// Version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Version {
    /// Version of the instance.
    pub version: String,
}

/// Result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reloaded {
    /// Changes, a line of text each.
    pub changes: Vec<String>,
    /// True if the changes were applied, false for a dry run.
    pub applied: bool,
}

/// Result of a takeover: the instance is connected to the process that takes over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TakenOver {}

/// Result of a change of flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlowsChanged {
    /// Number of flows, groups and meters added, changed or deleted.
    pub changed: u64,
}

/// Result of a change of keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KeysChanged {
    /// Number of keys loaded or put in use.
    pub changed: u64,
    /// Number of changes of the group's keys that are not complete yet: frames sealed with the replaced keys still wait
    /// in queues.
    pub under_way: u64,
}

/// Result of a change of addresses behind modems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpesChanged {
    /// Number of addresses added or removed.
    pub changed: u64,
}

/// Capture that has been requested to end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CaptureEnded {
    /// Number of the capture.
    pub ended: u64,
}

/// Trace of a packet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Traced {
    /// Decisions and events, a line of text each.
    pub story: Vec<String>,
    /// Ports that the packet would be sent on.
    pub outputs: Vec<String>,
    /// Reason for which it would be dropped.
    pub dropped: Option<String>,
    /// Megaflow that the packet would create in a switch; empty if every packet would match it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub megaflow: Option<String>,
    /// Further parts of a router's trace.
    #[serde(flatten)]
    pub routed: Option<TracedRoute>,
}

/// Further parts of a router's trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TracedRoute {
    /// Port that receives the packet.
    pub port: String,
    /// Level at which the port's packets are handled. Missing while the port's interface is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<TraceLevel>,
    /// Reason why the port's XDP or tc program leaves the packet to the kernel, so that no worker gets it; missing if
    /// it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Flow or reason, if the kernel's policies keep packets that belong to no established flow; missing if they do
    /// not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<TraceGate>,
    /// Stages that handled the packet.
    pub stages: Vec<String>,
    /// Route to the packet's destination.
    pub route: Option<Route>,
    /// Neighbours that packets would be sent to.
    pub adjacencies: Vec<TraceAdjacency>,
    /// Frames that would be sent.
    pub frames: Vec<TraceFrame>,
}

/// Outcome for a packet that is left to the kernel unless it belongs to an established flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TraceGate {
    /// Flow that the packet belongs to; null if none.
    pub flow: Option<String>,
    /// Reason why the packet is left to the kernel; null if it is forwarded.
    pub kernel: Option<String>,
}

/// Level of a port, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TraceLevel {
    /// Level: `driver`, `user` or `kernel`.
    pub level: String,
    /// Reason for it.
    pub why: String,
}

/// Neighbour that a traced packet would be sent to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceAdjacency {
    /// Address.
    pub addr: IpAddr,
    /// Port.
    pub port: String,
    /// MAC address.
    pub mac: String,
    /// State in the kernel.
    pub state: String,
}

/// Frame that would be sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TraceFrame {
    /// Port.
    pub port: String,
    /// Frame, in hex.
    pub frame: String,
}
