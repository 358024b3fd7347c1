//! Ports on DPDK's drivers: any ethdev, named by its devargs. Without the feature `dpdk` there is nothing here.
#![cfg(feature = "dpdk")]

mod cells;
mod eal;
mod ffi;
mod port;

pub use eal::{Eal, EalConfig, EalError};
pub use port::{DpdkConfig, DpdkError, DpdkPort};
