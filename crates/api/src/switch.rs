//! Answers about a switch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Flow {
    /// Table.
    pub table: u8,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Match, in the syntax of ovs-ofctl; empty if it matches every packet.
    #[serde(rename = "match")]
    pub matches: String,
    /// Actions, in the syntax of ovs-ofctl.
    pub actions: String,
    /// Packets.
    pub n_packets: u64,
    /// Bytes.
    pub n_bytes: u64,
    /// Age, in seconds.
    pub duration_s: f64,
    /// Time since the last packet, in seconds.
    pub idle_age_s: u64,
    /// Time without packets after which it is removed, in seconds; 0 for never.
    pub idle_timeout_s: u16,
    /// Age at which it is removed, in seconds; 0 for never.
    pub hard_timeout_s: u16,
}

/// Groups and meters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Groups {
    /// Groups, in the syntax of ovs-ofctl.
    pub groups: Vec<String>,
    /// Meters.
    pub meters: Vec<Meter>,
}

/// Meter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Meter {
    /// Meter, in the syntax of ovs-ofctl.
    pub meter: String,
    /// Packets that passed.
    pub passed: u64,
    /// Packets refused.
    pub refused: u64,
}

/// Learned address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Address {
    /// Port; null if it has been removed.
    pub port: Option<String>,
    /// OpenFlow number of the port.
    pub number: u64,
    /// VLAN.
    pub vlan: u16,
    /// MAC address.
    pub mac: String,
    /// Time since its last packet, in seconds.
    pub age_s: u64,
}

/// Flow caches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Caches {
    /// Caches of each worker.
    pub workers: Vec<WorkerCaches>,
    /// Number of flows in the tables.
    pub flows: u64,
    /// Number of times that a learned address moved to another port.
    pub addresses_moved: u64,
    /// Number of times that a flow was not learned, because of its limit or because the tables were full.
    pub flows_not_learned: u64,
}

/// Flow caches of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkerCaches {
    /// Worker.
    pub worker: u64,
    /// Packets found in the exact-match cache.
    pub exact_hits: u64,
    /// Packets found in the megaflow cache.
    pub megaflow_hits: u64,
    /// Packets sent through the tables.
    pub misses: u64,
    /// Masks tried for packets that missed the exact-match cache.
    pub masks_tried: u64,
    /// Current number of megaflows.
    pub megaflows: u64,
    /// Current number of masks.
    pub masks: u64,
    /// Packets whose flow was not cached because the megaflow cache was full.
    pub not_cached: u64,
    /// Megaflows created for an exact key because there were too many masks.
    pub masks_full: u64,
    /// Megaflows created.
    pub made: u64,
    /// Megaflows revalidated after a change.
    pub revalidated: u64,
    /// Megaflows that a change made invalid and which were updated in place.
    pub changed: u64,
    /// Megaflows removed because they were invalid or idle.
    pub removed: u64,
    /// Address reports not sent because the queue to the control side was full.
    pub learn_later: u64,
    /// Packets that the driver forwarded by megaflows.
    pub driver_hits: u64,
    /// Current number of megaflows in the driver.
    pub driver_flows: u64,
    /// Generation of the tables that all megaflows are known to be valid for.
    pub generation: u64,
}
