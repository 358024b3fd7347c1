//! AF_XDP: an interface's queues as ports, beside the kernel.
//!
//! A [`Program`] on each interface decides whose a frame is. A [`Umem`] makes the arena usable by sockets. An
//! [`AfXdpPort`] is one queue's socket. [`Features`] and [`Journal`] change interface settings so that they can be
//! put back. An [`Injector`] gives the kernel frames that no socket does: to send, or to
//! receive what user space took. `docs/decisions/af_xdp.md` says what veth does with all this.

mod abi;
mod attach;
mod bare;
mod custody;
mod driver;
mod error;
mod features;
mod flows;
mod inject;
mod limbo;
mod link;
mod live;
mod live_stream;
mod long;
mod napi;
mod offload;
mod order;
mod port;
mod program;
mod promiscuous;

mod ring;
mod rotate;
mod shared;
mod socket;
mod spread;
mod test_run;
mod umem;

pub use abi::{BUCKETS, FLOWS, HOPS, Hop, HopKind, PORTS, REASONS, SPREAD, TAKES_FRAMES, UNICAST, XdpCounters};
pub use attach::{TcxProgram, tcx_programs};
pub use bare::Bare;
pub use driver::{Driver, Family, SEGMENT, Segments, Tried};
pub use error::Error;
pub use features::{DeviceFeatures, takes_frames};
pub use flows::{FLOW_KEY, FlowTable, Flows, Forward, Tag};
pub use inject::{Injected, Injector, Way};
pub use link::LinkInfo;
pub use live::LiveGen;
pub use live_stream::{LiveHead, LiveOrder, LiveSent, LiveStream};
pub use offload::{Change, Features, Journal, Value, driver};
pub use port::{AfXdpPort, max_frame, may_inject, wait};
pub use program::{Attachment, Program, SourceCheck, XdpAttach, XdpConfig, XdpGate};
pub use promiscuous::Promiscuous;
pub use rotate::{HEAD, HEADS, Timed};
pub use socket::{Polling, RingSizes, SocketConfig, Transmit, ZeroCopy};
pub use umem::{Layout, Umem};
