//! Opened ports.

use super::xdp::Xdp;
use bywash_config::{PortConfig, PortKind};
use bywash_engine::PortId;
use bywash_port::af_xdp::Injector;
use bywash_port::{Port, PortCounters};
use bywash_router::control::PortSpec;
use bywash_router::tables::Reception;
use std::sync::Arc;

/// Configured port that has been opened.
pub struct Opened {
    pub config: PortConfig,
    /// Kernel index of its interface; 0 for a port without one.
    pub index: u32,
    /// Set if received frames may have unfinished transport checksums.
    pub partial_checksums: bool,
    /// Frames that the port gives a router.
    pub reception: Reception,
    pub ends: Vec<End>,
    /// End on which frames arrive that the kernel sends through a twin interface.
    pub from_kernel: Option<Box<dyn Port>>,
    pub xdp: Option<Xdp>,
    /// Injectors for its ends, loaded before their sockets are opened; only when a port is announced.
    pub(super) injectors: Vec<Injector>,
}

impl Opened {
    /// Returns a port of which nothing is open yet.
    pub fn none(port: &PortConfig) -> Self {
        Self {
            config: port.clone(),
            index: 0,
            partial_checksums: false,
            reception: if port.kind == PortKind::AfXdp { Reception::Own } else { Reception::Link },
            ends: vec![],
            from_kernel: None,
            xdp: None,
            injectors: vec![],
        }
    }

    /// Returns the counters of its ends.
    pub fn counters(&self) -> impl Iterator<Item = Arc<PortCounters>> {
        self.ends.iter().map(|end| end.counters.clone())
    }

    /// Returns the port as the control half follows it. `id` is its number.
    pub fn spec(&self, id: usize) -> PortSpec {
        PortSpec {
            id: PortId(id as u16),
            index: self.index,
            name: self.config.interface.clone().unwrap_or_else(|| self.config.name.clone()),
            partial_checksums: self.partial_checksums,
            reception: self.reception,
        }
    }
}

/// Opened DPDK device.
pub struct Device {
    pub ends: Vec<End>,
    /// MAC address of the device, if it has one.
    pub mac: Option<[u8; 6]>,
}

/// End of a port: one queue of it.
pub struct End {
    pub queue: u32,
    pub port: Box<dyn Port>,
    pub counters: Arc<PortCounters>,
}
