//! Ports: where frames come from and go to.
//!
//! A [`Port`] is one worker's queue of a device. Kinds: AF_XDP (`af_xdp`), TAP, memif ([`memif`]), pcap, pair, null. A
//! decorator wraps a port and is one (`fault`, `capture`'s [`Watched`], [`TwinPort`] with an interface of the kernel's beside it).
//! The dispatching device ([`npe`]) deals what ports receive out to threads.

pub mod af_xdp;
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
pub use twin::TwinPort;
pub use txq::{TxQueue, TxQueueConfig, TxQueueStats};
pub use waits::{WaitCounts, Waits};
