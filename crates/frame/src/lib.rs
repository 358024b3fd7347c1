#![doc = include_str!("../README.md")]
//! An [`Arena`] is one mapping divided into cells. A [`Frame`] is the exclusive, move-only right to one cell. A
//! [`Pool`] allocates and frees frames in bulk, following its configured policy. [`Buffers`] is one worker's access to
//! all pools of the arena.

mod arena;
mod batch;
mod buffers;
mod frame;
mod heads;
mod heap;
mod marks;
mod numa;
mod pages;
mod pool;

pub use arena::{Arena, ArenaConfig, ArenaError, Line};
pub use batch::{BATCH, Batch};
pub use buffers::{Buffers, Lent};
pub use frame::{Frame, RawFrame};
pub use heads::{Burst, Heads};
pub use heap::Heap;
pub use numa::Place;
pub use pages::{PageKind, Pages};
pub use pool::{Audit, BLOCK, BlockStats, CellPool, Policy, Pool, PoolConfig, PoolError, PoolKind, PoolSet, PoolStats};

/// Bytes of a cell reserved for metadata: room for a DPDK `struct rte_mbuf`.
pub const META: usize = 128;
/// Offset of packet data in a fresh cell: metadata, then headroom for pushed headers. Equal to the kernel's
/// `XDP_PACKET_HEADROOM` (linux/bpf.h), so that data received by AF_XDP starts at the same offset.
pub const DATA_OFFSET: usize = 256;
