#![doc = include_str!("../README.md")]
//!
//! The instance serialises these types, clients deserialise them, and the JSON schemas (`bywash show --schema`) and
//! docs/api.md are derived from them. A field that an answer lacks, as one of another version may, is read as its
//! default; unknown fields are ignored.

mod cable;
pub mod client;
mod command;
mod drops;
mod established;
mod firewall;
mod placement;
mod pools;
mod ports;
mod request;
mod routes;
mod schema;
mod state;
mod switch;
mod topic;
mod workers;

pub use cable::{Channel, Cpe, Modem, ServiceFlow};
pub use command::{CaptureEnded, CpesChanged, FlowsChanged, KeysChanged, Problem, Reloaded, TakenOver, Version};
pub use command::{TraceAdjacency, TraceFrame, TraceGate, TraceLevel, Traced, TracedRoute};
pub use drops::{DropCount, Drops, EventCount, XdpCount};
pub use established::{EstablishedFlow, EstablishedFlows, FlowDirection, FlowFamily, FlowTable, FlowsRevoked};
pub use established::{KernelConnections, KernelReason, LastRevoked};
pub use firewall::{Established, Firewall, FirewallChain, FirewallReason};
pub use placement::{CpuFrames, Kept, LevelFrames, Placement, Policies};
pub use pools::{Arena, Audit, Blocks, Pool, Pools};
pub use ports::{Above, Port, PortCounters, PortTxQueue, Queue, SwitchPort, TxQueue};
pub use request::{CAPTURE_NUMBER, CaptureRequest, Direction, REQUESTS, Request};
pub use routes::{Drift, Neighbour, NextHop, Route};
pub use schema::{schema, without_descriptions};
pub use state::{Config, Health, Sandbox};
pub use switch::{Address, Caches, Flow, Groups, Meter, WorkerCaches};
pub use topic::{Answer, NO_FLOW_RULES, OfTopic, Topic};
pub use workers::{Poll, Stage, Worker, WorkerTxQueue};
