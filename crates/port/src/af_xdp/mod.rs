//! AF_XDP ports: the queues of a kernel interface, shared with the kernel.
//!
//! A [`Program`] on each interface decides which frames go to user space, to another port or to the kernel. A [`Umem`]
//! makes the arena usable by sockets. An [`AfXdpPort`] is the socket of one queue. [`Features`] and [`Journal`] change
//! interface settings and restore them. An [`Injector`] gives frames to the kernel without a socket: to send on an
//! interface, or to receive as if they had arrived there. `docs/decisions/af_xdp.md` describes how veth behaves with
//! all this.

mod abi;
mod attach;
mod bare;
mod below;
mod bridging;
mod config;
mod cpumap;
mod datapath;
mod ends;
mod error;
mod features;
mod flows;
mod in_flight;
mod inject;
mod ioctl;
mod journal;
mod link;
mod live;
mod live_stream;
mod load;
mod long;
mod map;
mod napi;
mod objects;
mod offload;
mod order;
mod parts;
mod port;
mod port_pairs;
mod prefilled;
mod program;
mod promiscuous;
mod punt;
mod tail_calls;
mod unreturned;
mod user_program;

mod ring;
mod rotate;
mod router;
mod segments;
mod shared;
mod short;
mod socket;
mod stations;
mod test_run;
mod trial;
mod umem;

pub use abi::{
    BUCKETS, FLOWS, HOPS, Hop, HopKind, PORT_CPUS, PORTS, REASONS, SEGMENT, TAKES_FRAMES, THROUGH, UNICAST, VLANS,
    XdpCounters,
};
pub use attach::{TcxProgram, sk_lookup_programs, tcx_programs};
pub use bare::Bare;
pub use below::{Below, TAKE_TAGS_OFF};
pub use config::{RpFilter, XdpBridging, XdpConfig, XdpGate, XdpSending, XdpVlan};
pub use datapath::{Family, XdpDatapath};
pub use ends::{TUNNEL_ENDS, TunnelEnd, TunnelPolicy};
pub use error::Error;
pub use features::{DeviceFeatures, takes_frames};
pub use flows::{FLOW_KEY, FlowTable, Flows, Forward, Tag};
pub use inject::{Direction, Injected, Injector};
pub use ioctl::bond_members;
pub(crate) use journal::{Act, Done};
pub use journal::{Change, Journal, JournalFile, Value, is_interface_name};
pub use link::LinkInfo;
pub use live::{Around, LiveGen};
pub use live_stream::{LiveHead, LiveOrder, LiveSent, LiveStream};
pub(crate) use objects::{Made, Make, Maker, Refused};
pub use offload::{Features, driver};
pub use port::{AfXdpPort, max_frame, may_inject, wait};
pub use program::{Attachment, Program, XdpAttach, is_of_an_instance, learn_programs};
pub use promiscuous::Promiscuous;
pub use punt::PuntPort;
pub use rotate::{HEAD, HEADS, Timed};
pub use segments::Segments;
pub use socket::{Polling, RingSizes, SocketConfig, Transmit, ZeroCopy};
pub use stations::BridgeTags;
pub use trial::Tried;
pub use umem::{Layout, Umem};
pub use user_program::UserProgram;
