#![doc = include_str!("../README.md")]
//! A [`Worker`] is a pinned thread that owns one queue of each port and an [`App`], the processing stages. In every
//! turn it receives a burst from each port, runs the stages on it, and sends the frames on the TX queues. The control
//! plane reaches it through published snapshots and, for rare operations, through [`WorkerHandle`] commands between
//! turns.

#![forbid(unsafe_code)]

mod app;
mod counters;
pub mod cpus;
mod distribute;
mod drops;
mod failure;
pub mod line;
mod port_table;
mod worker;

pub use app::{App, Context, Counts, Meter, SAMPLE};
pub use counters::{PORTS, PortDrops, StageCounters, WorkerCounters};
pub use distribute::{Share, distribute};
pub use drops::{DROP_REASONS, DropReason, EVENTS, Event};
pub use failure::Failure;
pub use port_table::PortTable;
pub use worker::{Change, Idle, OpenMeter, PortReport, Report, Role, Worker, WorkerConfig, WorkerExit, WorkerHandle};

/// Number of a port in this process: its index in configuration order. The router also numbers the other interfaces
/// that packets arrive on or leave by, from [`PORTS`] on: VLANs, macvlans, bonds, bridges and tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct PortId(pub u16);

impl PortId {
    /// Returns whether this is the number of a port, and not of another interface.
    #[inline]
    pub const fn is_port(self) -> bool {
        (self.0 as usize) < PORTS
    }
}
