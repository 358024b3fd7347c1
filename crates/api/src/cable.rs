//! Answers about a cable downstream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Modem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Modem {
    /// Number of its service group, from 1.
    pub group: u64,
    /// MAC address.
    pub mac: String,
    /// Security association.
    pub said: u16,
    /// Sequence number of its key in use.
    pub key_sequence: u8,
    /// Bits per symbol of its profile; 0 without profiles.
    pub bits: u8,
    /// Number of its service flows.
    pub flows: u64,
    /// Frames sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets in its queues.
    pub queued: u64,
    /// Packets that exceeded a rate and were dropped.
    pub policed: u64,
    /// Packets dropped because a queue was full.
    pub queue_overflow: u64,
    /// Packets dropped early to keep the delay in the queue short.
    pub aqm: u64,
}

/// Address behind a modem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cpe {
    /// Number of the service group, from 1.
    pub group: u64,
    /// MAC address.
    pub mac: String,
    /// MAC address of the modem.
    pub modem: String,
    /// Origin: `configured`, `added` by the API, or `learned`.
    pub origin: String,
    /// Seconds since it was last seen; null if it is not learned.
    pub idle_s: Option<u64>,
}

/// Service flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceFlow {
    /// Number of the service group, from 1.
    pub group: u64,
    /// MAC address of the modem.
    pub modem: String,
    /// Name.
    pub flow: String,
    /// DSID.
    pub dsid: u32,
    /// Priority.
    pub priority: u8,
    /// Frames sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets in its queue.
    pub queued: u64,
    /// Packets that exceeded a rate and were dropped.
    pub policed: u64,
    /// Packets dropped because the queue was full.
    pub queue_overflow: u64,
    /// Packets dropped early to keep the delay in the queue short.
    pub aqm: u64,
}

/// Channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Channel {
    /// Number of the service group, from 1.
    pub group: u64,
    /// Number of the channel, from 1.
    pub channel: u64,
    /// Rate, in bits per second; null if there is no limit.
    pub rate: Option<u64>,
    /// Frames sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Codewords begun; 0 without profiles.
    pub codewords: u64,
    /// Packets queued in the service group.
    pub group_queued: u64,
    /// Implementation of the cipher.
    pub crypto: String,
}
