//! Packet buffer ownership and allocation.
//!
//! An [`Arena`] is one mapping divided into cells. A [`Frame`] is the exclusive, move-only right to one cell. A
//! [`Pool`] allocates and frees frames in bulk, following its configured policy. [`Buffers`] is one worker's access to
//! all pools of the arena.
//!
//! ```
//! use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
//! let arena = Arena::new(ArenaConfig { cells: 1024, ..Default::default() }).unwrap();
//! let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 1024)]).unwrap();
//! let mut bufs = Buffers::attach(&pools, 0);
//! let mut batch = Batch::new();
//! assert_eq!(bufs.alloc(&mut batch, 32), 32);
//! bufs.free(&mut batch);
//! ```

mod arena;
mod batch;
mod buffers;
mod frame;
mod heads;
mod heap;
mod marks;
mod pages;
mod pool;

pub use arena::{Arena, ArenaConfig, ArenaError, Line};
pub use batch::{BATCH, Batch};
pub use buffers::Buffers;
pub use frame::{Frame, RawFrame};
pub use heads::{Burst, Heads};
pub use heap::Heap;
pub use pages::{PageKind, Pages};
pub use pool::{Audit, BLOCK, BlockStats, CellPool, Policy, Pool, PoolConfig, PoolError, PoolKind, PoolSet, PoolStats};

/// Bytes of a cell reserved for metadata: room for a DPDK `struct rte_mbuf`.
pub const META: usize = 128;
/// Offset of packet data in a fresh cell: metadata, then headroom for pushed headers. Equal to the kernel's
/// `XDP_PACKET_HEADROOM` (linux/bpf.h), so that data received by AF_XDP starts at the same offset.
pub const DATA_OFFSET: usize = 256;
