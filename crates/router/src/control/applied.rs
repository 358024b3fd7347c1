//! Effects of changes outside of the workers.

use bywash_engine::PortId;

/// An interface with a port's name exists while the port is not open on any. Until
/// [`Control::set_open`](super::Control::set_open) reports that the port is open on it, packets routed to that
/// interface are left to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBack {
    /// The port.
    pub id: PortId,
    /// Kernel index of the interface.
    pub index: u32,
}

/// Effects of a batch of changes outside of the workers.
#[derive(Debug, Default)]
pub struct Applied {
    /// Ports whose MAC, MTU, state or index changed, each once.
    pub ports_changed: Vec<PortId>,
    /// Ports whose interface is gone. Close them before anything is attached.
    pub ports_gone: Vec<PortId>,
    /// Ports to open on an interface: reported when the interface appears, and again with each change of it while the
    /// port is not open. A port whose interface was replaced in one batch is in both lists.
    pub ports_back: Vec<PortBack>,
    /// The batch contained [`Change::Synced`](bywash_fib::model::Change::Synced).
    pub synced: bool,
    /// New tables were published.
    pub published: bool,
}

impl Applied {
    /// Records that a port has lost its interface, and perhaps found another one with its name.
    pub(super) fn port_gone(&mut self, id: PortId, back: Option<PortBack>) {
        self.ports_changed.push(id);
        self.ports_gone.push(id);
        self.ports_back.retain(|back| back.id != id);
        self.ports_back.extend(back);
    }

    pub(super) fn port_back(&mut self, back: Option<PortBack>) {
        self.ports_back.extend(back.filter(|back| !self.ports_back.contains(back)));
    }
}
