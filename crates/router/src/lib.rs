//! The router: its stages, the tables they look up, and the control side that maintains those tables.
//!
//! A burst first passes the gate of its port ([`gates`]), which punts to the kernel the packets that a kernel policy
//! affects, except for those of established flows (`translate`). Then it passes three stages (`stages`): *input* checks
//! every packet and collects destinations; *lookup* looks all of them up in the FIB at once; *forward* rewrites and
//! queues. Packets that no stage can finish go to the slow path (`slow`), which drops them with a reason, answers them
//! with an ICMP error, fragments them, holds them until their neighbour is resolved, passes them through tunnels
//! ([`tunnel`]), or punts them. An XDP program uses the same tables ([`xdp`]).

#![forbid(unsafe_code)]

pub mod bond;
mod bytes;
pub mod control;
mod explain;
mod flow;
pub mod gates;
mod icmp;
mod request;
pub mod rules;
mod slow;
mod stages;
pub mod tables;
mod translate;
pub mod tunnel;
mod valid;
pub mod vlan;
mod waiting;
pub mod xdp;

pub use explain::{Gated, gated, left_by_program};
pub use request::{Request, RouterConfig};
pub use stages::Router;
