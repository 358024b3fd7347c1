//! A tester: sends frames that carry sequence numbers and timestamps, at an exact rate, and says what came of them.
//!
//! A [`Stream`] describes the frames, [`Templates`] are what it comes to. A [`Bench`] holds the ports and runs a
//! [`Trial`] over them in one thread: lanes from port to port, each with a [`Sender`] and a [`Receiver`]. What is told
//! of a lane is a [`LaneResult`]: it keeps apart what the device did and what the tester itself could not do.

#![forbid(unsafe_code)]

mod bench;
mod clock;
mod device;
mod order;
mod pace;
mod rate;
mod receiver;
pub mod rfc2544;
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
