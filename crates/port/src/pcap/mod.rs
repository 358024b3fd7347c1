//! Capture files as ports: replay from memory and recording.

mod file;
mod filter;
mod port;
mod record;
mod replay;
mod tcpdump;

pub use file::{CaptureFile, Direction, Format, LinkType, PacketMeta};
pub use filter::{Filter, FilterError, Matcher};
pub use port::PcapPort;
pub use record::{PcapRecorder, wall_ns};
pub use replay::{Arrears, Pace, PcapError, PcapSource, wire_bits};
pub use tcpdump::{CompileError, compile};
