//! Cost of a buffer policy in memory traffic and TLB misses: a model of the caches, and the hardware counters that
//! measure the same on machines that have them.
//!
//! [`topdown`] determines from such counters which part of the processor limits a program.
//!
//! The model has no fitted constants. Its geometry is that of a real processor ([`processor`]), with a published source
//! for each figure. Its input is the sequence of addresses that a real pool handed out.
//!
//! ```
//! use bywash_measure::{Memory, XEON_GOLD_6148};
//! let mut memory = Memory::new(&XEON_GOLD_6148, 1, 1);
//! memory.write(0, 4096, 1520);
//! memory.read(0, 4096, 1520);
//! assert_eq!(memory.traffic().read_lines, 24, "read once, to be written; then it is there");
//! ```
#![forbid(unsafe_code)]

pub mod bandwidth;
pub mod hardware;
mod memory;
pub mod pmu;
pub mod processor;
mod sets;
mod tlb;
pub mod topdown;

pub use memory::{Memory, Traffic};
pub use processor::{Processor, XEON_GOLD_6148};
pub use tlb::{PageSize, Tlb};
