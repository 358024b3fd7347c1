//! Ports that no worker has yet.

use bywash_port::Port;
use bywash_port::af_xdp::LinkInfo;

/// Port that no worker has yet.
pub struct Slot {
    /// Ends of the port, by queue.
    pub ends: Vec<Box<dyn Port>>,
    /// End on which frames arrive that the kernel sends on the port's twin.
    pub from_kernel: Option<Box<dyn Port>>,
    /// Interface of the port; `None` if it has none.
    pub link: Option<LinkInfo>,
}
