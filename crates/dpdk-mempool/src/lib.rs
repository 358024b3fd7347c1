//! The policies of [`bywash_frame`]'s pools for DPDK's mempools: what `shim/mempool.c` calls.
//!
//! A mempool's objects are addresses; the pools know cells by number. [`Objects`] turns one into the other.

mod abi;
mod objects;

pub use objects::Objects;
