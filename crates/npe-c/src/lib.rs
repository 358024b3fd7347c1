#![doc = include_str!("../README.md")]
//! The header is generated from this crate's sources, including their comments; a test checks that it is up to date.

mod counters;
mod device;
mod error;
mod packet;
mod ports;

pub use counters::{NetCounters, net_device_counters};
pub use device::{DISP_BY_PORT, DISP_ROUND_ROBIN, NetDevice, create_net_device, destroy_net_device, start_net_device};
pub use error::net_device_error;
pub use packet::{NetPkt, recv_pkt, release_pkt, send_pkt};
pub use ports::{add_pcap_port, add_tap_port};
