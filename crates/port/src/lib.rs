#![doc = include_str!("../README.md")]
//! A [`Port`] is one worker's queue of a device. Kinds: AF_XDP ([`af_xdp`]), TAP, memif ([`memif`]), pcap, pair, null.
//! A decorator wraps a port and is itself a port: [`Fault`], [`Watched`] (packet capture), [`TwinPort`] (a kernel TAP
//! interface beside the port). The dispatching device ([`npe`]) distributes received frames over threads.

pub mod af_xdp;
pub mod broker;
mod capture;
mod fault;
pub mod memif;
pub mod npe;
mod null;
mod pace;
mod pair;
pub mod pcap;
mod port;
mod tap;
mod twin;
mod txq;
mod waits;

pub use capture::{CaptureStats, Happened, Record, Recorder, Records, Wanted, Watched, capture};
pub use fault::{Fault, FaultCounters, Faults};
pub use null::NullPort;
pub use pair::{PairPort, pair};
pub use port::{Port, PortCounters, PortState};
pub use tap::{TapConfig, TapError, TapPort};
pub use twin::{ToKernel, TwinPort};
pub use txq::{TxQueue, TxQueueConfig, TxQueueStats};
pub use waits::{WaitCounts, Waits};
