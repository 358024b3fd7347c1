#![doc = include_str!("../README.md")]
//! [`Table4`] and [`Table6`] hold the routes and belong to the control side; [`Fib4`] and [`Fib6`] answer lookups on
//! any number of workers while the tables change. The caller defines the meaning of next-hop ids. [`flows`] has the
//! established connections whose packets are forwarded without the kernel.

pub mod addr;
pub mod bench;
pub mod fib;
pub mod flows;
mod hash;
pub mod model;
mod pool;
mod region;
mod rib;
mod simd;
pub mod synth;
pub mod table;

pub use addr::{Addr, Net, Net4, Net6};
pub use fib::{Fib, Fib4, Fib6, Kernel, MAX_ID, NO_ROUTE, NextHopId};
pub use hash::{flow_hash4, flow_hash6};
pub use region::{SEGMENT, Shared};
pub use table::{Table, Table4, Table6};
