//! Pool policies of [`bywash_frame`] for DPDK's mempools: the functions that `shim/mempool.c` calls.
//!
//! A mempool's objects are addresses, while the pools identify cells by number. [`Objects`] converts between them.

mod abi;
mod objects;

pub use objects::Objects;
