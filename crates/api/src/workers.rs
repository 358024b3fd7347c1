//! Answer about workers.

use crate::TxQueue;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Worker. Cycles are ticks of the TSC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Worker {
    /// Number.
    pub id: u64,
    /// CPU that it is pinned to; null if it is not pinned.
    pub cpu: Option<u64>,
    /// Behaviour without packets: `sleep` or `spin`.
    pub idle: String,
    /// Queues that it polls.
    pub polls: Vec<Poll>,
    /// Iterations of its loop.
    pub turns: u64,
    /// Iterations that found nothing to do.
    pub idle_turns: u64,
    /// Number of times that it slept.
    pub sleeps: u64,
    /// Number of panics of its stages that it has outlived.
    pub panics: u64,
    /// Kernel's number of its thread.
    pub thread: u64,
    /// Cycles since its start.
    pub cycles: u64,
    /// Cycles of the iterations that found something to do.
    pub busy_cycles: u64,
    /// Percentage of busy cycles.
    pub busy_percent: f64,
    /// Mean number of packets in a burst received.
    pub rx_burst_mean: f64,
    /// Number of bursts received by the number of packets, from 0.
    pub rx_bursts: Vec<u64>,
    /// Stages.
    pub stages: Vec<Stage>,
    /// Statistics of its TX queues.
    pub tx_queues: Vec<WorkerTxQueue>,
}

/// Queue that a worker polls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Poll {
    /// Port.
    pub port: String,
    /// Number of the queue.
    pub queue: u64,
}

/// Stage of a worker. Its cycles are estimated from samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stage {
    /// Name.
    pub name: String,
    /// Cycles.
    pub cycles: u64,
    /// Packets handled.
    pub packets: u64,
    /// Bursts handled.
    pub bursts: u64,
    /// Mean cycles per packet.
    pub cycles_per_packet: f64,
    /// Core cycles, instructions and pipeline slots that retired a uop, by the processor's counters; null without
    /// `counters = true` of `[workers]`, or if the processor has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<[u64; 3]>,
}

/// Statistics of a worker's TX queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkerTxQueue {
    /// Port.
    pub port: String,
    /// Statistics.
    #[serde(flatten)]
    pub stats: TxQueue,
}
