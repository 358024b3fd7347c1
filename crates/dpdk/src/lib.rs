//! Ports on DPDK's drivers: any ethdev, named by its devargs. Empty without the feature `dpdk`.
#![cfg(feature = "dpdk")]

mod cells;
mod eal;
mod ffi;
mod port;

pub use eal::{Eal, EalConfig, EalError};
pub use port::{DpdkConfig, DpdkError, DpdkPort};
