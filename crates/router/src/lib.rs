//! The router: its stages, the tables they look up, and the control side that keeps those right.
//!
//! A burst passes three stages. *input* checks every packet and collects destinations ([`stages`]); *lookup* asks
//! the FIB for all of them at once; *forward* rewrites and queues. What any of them cannot finish on the spot goes
//! to the slow path ([`slow`]), which drops it with a name, answers it with an ICMP error, fragments it, has it
//! wait for its neighbour, or hands it to the kernel.

#![forbid(unsafe_code)]

pub mod control;
mod flow;
pub mod gates;
mod icmp;
mod slow;
mod sound;
mod stages;
pub mod tables;
mod waiting;

pub use stages::{Request, Router, RouterConfig};
