#![doc = include_str!("../README.md")]
//! A [`Stream`] describes the frames, and [`Templates`] are the frames prepared from it. A [`Bench`] holds the ports
//! and runs a [`Trial`] over them in one thread: lanes from port to port, each with a [`Sender`] and a [`Receiver`].
//! The result of a lane is a [`LaneResult`], which separates the effects of the device from the limits of the tester
//! itself.

#![forbid(unsafe_code)]

mod bench;
mod clock;
mod device;
mod order;
mod pace;
mod rate;
mod receiver;
pub mod rfc2544;
pub mod search;
mod sender;
mod sizes;
mod stamp;
mod stream;

pub use bench::{Bench, Event, Lane, LaneResult, Length, Limit, Progress, Sent, Source, Task, Trial, TrialError};
pub use clock::now_ns;
pub use device::{Device, Planted};
pub use order::Order;
pub use pace::Pacer;
pub use rate::{OVERHEAD, Rate, wire_bits};
pub use receiver::{Latency, Receiver};
pub use sender::Sender;
pub use sizes::Sizes;
pub use stamp::{LEARNING, MAGIC, STAMP, Stamp, find};
pub use stream::{Addresses, HEAD, Ports, Stream, StreamError, Template, Templates};
