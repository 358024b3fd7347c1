//! Answer about drops and other events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Drops, other events, and verdicts of the XDP programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Drops {
    /// Packets dropped.
    pub drops: Vec<DropCount>,
    /// Other events of packets.
    pub events: Vec<EventCount>,
    /// Frames by verdict of the XDP programs.
    pub xdp: Vec<XdpCount>,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DropCount {
    /// Port that received the packets, or to which the device refused to send them.
    pub port: String,
    /// Reason.
    pub reason: String,
    /// Packets.
    pub packets: u64,
}

/// Packets that something happened to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventCount {
    /// Port that received the packets.
    pub port: String,
    /// Event.
    pub event: String,
    /// Number of events.
    pub count: u64,
}

/// Frames that an XDP program decided alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct XdpCount {
    /// Port.
    pub port: String,
    /// Verdict.
    pub verdict: String,
    /// Frames.
    pub packets: u64,
}
