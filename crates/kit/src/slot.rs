//! Ports that no worker has yet.

use bywash_engine::PortId;
use bywash_port::Port;
use bywash_port::af_xdp::LinkInfo;
use bywash_router::control::PortSpec;
use bywash_router::tables::Reception;

/// Port that no worker has yet.
pub struct Slot {
    pub name: String,
    /// Kind, as `bywash show ports` names it.
    pub kind: &'static str,
    /// Ends of the port, by queue.
    pub ends: Vec<Box<dyn Port>>,
    /// End on which frames arrive that the kernel sends on the port's twin.
    pub from_kernel: Option<Box<dyn Port>>,
    /// Interface of the port; `None` if it has none.
    pub link: Option<LinkInfo>,
    /// Frames that it gives an application.
    pub reception: Reception,
    /// Twin of the port; `None` if it has none.
    pub twin: Option<LinkInfo>,
    /// Number of its XDP program; `None` if it has none.
    pub attached: Option<usize>,
}

impl Slot {
    /// Returns a port without an interface.
    pub fn new(name: String, kind: &'static str, ends: Vec<Box<dyn Port>>) -> Self {
        Self { name, kind, ends, from_kernel: None, link: None, reception: Reception::Link, twin: None, attached: None }
    }

    /// Returns the interface to which the kernel routes.
    pub fn routed(&self) -> Option<&LinkInfo> {
        self.twin.as_ref().or(self.link.as_ref())
    }

    /// Returns the port as the control side of the routing tables follows it: by the interface that the kernel routes
    /// to.
    pub fn spec(&self, id: usize) -> PortSpec {
        let (index, name) = match self.routed() {
            Some(link) => (link.index, link.name.clone()),
            None => (0, String::new()),
        };
        // The ports complete checksums themselves.
        PortSpec { id: PortId(id as u16), index, name, partial_checksums: false, reception: self.reception }
    }
}
