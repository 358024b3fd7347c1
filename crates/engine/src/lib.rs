//! What turns ports and stages into a running program: workers, drops with a name, and counters.
//!
//! A [`Worker`] is a pinned thread that owns one queue of each port and an [`App`], the stages. Every turn it takes
//! a burst from each port, has the stages decide, and sends what they put on the tx queues. Control reaches it by
//! published snapshots and, for the rare things, by [`WorkerHandle`] commands between turns.

#![forbid(unsafe_code)]

mod app;
mod counters;
mod drops;
mod outputs;
mod worker;

pub use app::{App, Context};
pub use counters::{PORTS, PortDrops, StageCounters, WorkerCounters};
pub use drops::{DROP_REASONS, DropReason, EVENTS, Event};
pub use outputs::Outputs;
pub use worker::{Change, Idle, PortReport, Report, Role, Worker, WorkerConfig, WorkerExit, WorkerHandle};

/// A port's number in this process: its index in the config's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct PortId(pub u16);
