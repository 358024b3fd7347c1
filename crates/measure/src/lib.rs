#![doc = include_str!("../README.md")]
//! [`topdown`] determines from such counters which part of the processor limits a program.
//!
//! The model's geometry is that of a real processor ([`processor`]), with a published source for each figure. Its input
//! is the sequence of addresses that a real pool handed out. The replacement of the last level by age was chosen after
//! results had been compared with a published measurement, so its agreement with that measurement confirms nothing.
#![forbid(unsafe_code)]

pub mod bandwidth;
pub mod energy;
pub mod hardware;
pub mod lackey;
mod memory;
pub mod pmu;
pub mod processor;
mod sets;
pub mod step;
mod tlb;
pub mod topdown;

pub use memory::{Memory, Traffic};
pub use processor::{Processor, XEON_GOLD_6148};
pub use tlb::{PageSize, Tlb};
