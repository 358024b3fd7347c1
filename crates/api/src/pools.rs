//! Answers about buffers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pools and their arena.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pools {
    /// Memory of all buffers.
    pub arena: Arena,
    /// Pools.
    pub pools: Vec<Pool>,
    /// Audit of all buffers.
    pub audit: Audit,
}

/// Memory of all buffers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Arena {
    /// Number of cells, each for one buffer.
    pub cells: u64,
    /// Cells that belong to no pool.
    pub spare: u64,
    /// Size of a cell, in bytes.
    pub cell: u64,
    /// Size of the memory, in bytes.
    pub bytes: u64,
    /// Size of its pages.
    pub pages: String,
    /// Reason for the size of its pages; empty if the size is as configured.
    pub note: String,
}

/// Pool. Amounts are in frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Allocation policy: `ring`, `stack`, `sdb`, `tabm` or `typewriter`.
    pub kind: String,
    /// Size of each worker's cache.
    pub cache: u64,
    /// Total frames.
    pub frames: u64,
    /// Free frames in the shared part.
    pub free: u64,
    /// Free frames in workers' caches.
    pub cached: u64,
    /// Frames returned to a block that is not free yet.
    pub parked: u64,
    /// Frames held by ports, queues and workers; packets for `typewriter`, whose cells hold several.
    pub in_use: u64,
    /// Median of the sampled `in_use`.
    pub normal: u64,
    /// Maximum of the sampled `in_use`.
    pub peak: u64,
    /// Maximum number of frames that were ever absent from the shared part at once.
    pub high_water: u64,
    /// Frames allocated since the start.
    pub allocated: u64,
    /// Frames freed since the start.
    pub freed: u64,
    /// Number of requests that were met only in part or not at all.
    pub exhausted: u64,
    /// Frames refused because they were free already or belong to no pool: a bug if not zero.
    pub surplus: u64,
    /// True if the pool is removed as soon as all of its frames are back.
    pub draining: bool,
    /// Workers that allocate from the pool.
    pub workers: Vec<u64>,
    /// Reason for the kind, if it was chosen (`kind = "auto"`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// CPU to whose NUMA node the memory is bound, if one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// NUMA node that the memory is bound to for `cpu`, or that the machine has only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Blocks, if the pool has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
}

/// Number of a pool's blocks by state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Blocks {
    /// Cells per block.
    pub size: u64,
    /// Blocks waiting to be handed out.
    pub free: u64,
    /// Blocks being handed out.
    pub open: u64,
    /// Blocks fully handed out, with cells still in use.
    pub draining: u64,
}

/// Location of every buffer. Exact without traffic, and otherwise off by the buffers that moved during the count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Audit {
    /// Cells that belong to pools.
    pub cells: u64,
    /// Free cells in pools.
    pub free: u64,
    /// Free cells in workers' caches.
    pub cached: u64,
    /// Cells returned to blocks that are not free yet.
    pub parked: u64,
    /// Cells held by ports, queues and workers, by their own count.
    pub held: u64,
    /// Cells unaccounted for; negative if some are counted twice.
    pub missing: i64,
}
