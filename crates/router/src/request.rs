//! Requests of the workers to the control side, and the settings of the router.

use bywash_engine::PortId;
use bywash_frame::Frame;
use std::net::IpAddr;

/// Request of the stages to the control side.
#[derive(Debug)]
pub enum Request {
    /// Resolve or confirm this neighbour.
    Resolve {
        /// Kernel index of the interface.
        index: u32,
        /// Address of the neighbour.
        addr: IpAddr,
    },
    /// Punt this packet to the kernel as if it had arrived on `from`. The receiver must free the frame.
    Punt {
        /// Port that received it.
        from: PortId,
        /// Number of the interface that received it, as gates refer to it ([`Tables::number`](crate::tables::Tables)):
        /// the port's own, or that of a VLAN, bond or bridge. `None` for a frame to another station, which the bridge
        /// that the port is on a member of forwards: the kernel receives it on that member, unmarked.
        id: Option<PortId>,
        /// The packet, including its Ethernet header.
        frame: Frame,
        /// Set if the packet is a copy of one that was dropped and counted, which the kernel is to answer with an ICMP
        /// error.
        copy: bool,
    },
}

/// Settings of the router.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// Maximum number of ICMP errors per second and worker, and as many again about packets that are too big; 0 for
    /// none.
    pub icmp_rate: u32,
    /// Set to send redirects to senders that have a better first hop (RFC 1812 5.2.7.2).
    pub redirects: bool,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self { icmp_rate: 1000, redirects: false }
    }
}
