//! Modes, which make a router, a switch or a CMTS of ports, pools and workers.
//!
//! A mode has three parts: stages, which run on the workers; a control half, which the control loop runs; and a view,
//! which answers the API. The mode decides how they share state.

mod cmts;
pub mod packet;
mod router;
mod switch;

pub use router::placed;

use crate::ports::Opened;
use crate::shared::Shared;
use crate::view::View;
use crate::vlans::Uppers;
use bywash_config::{Config, KernelConfig, Mode, PortConfig};
use bywash_engine::{App, PortId};
use bywash_fib::model::{Change, Mac};
use bywash_frame::{Pool, PoolSet};
use bywash_netlink::Mirror;
use bywash_router::control::{Applied, PortSpec, PortView};
use bywash_router::xdp::XdpTableSink;
use bywash_sync::Qsbr;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Names of the ports, by number.
pub type Names = Arc<Mutex<Vec<String>>>;

/// Input of a mode's setup: everything is opened, nothing runs yet.
pub struct Setup<'a> {
    pub config: &'a Config,
    pub ports: &'a [Opened],
    /// QSBR domain in which the workers' readers register.
    pub domain: &'a Qsbr,
    pub pools: &'a Arc<PoolSet>,
    /// XDP program of the AF_XDP ports, if there are any.
    pub driver: Option<&'a XdpTableSink>,
    /// Number of workers.
    pub workers: usize,
}

impl Setup<'_> {
    /// Returns the ports as the control half follows them.
    pub fn specs(&self) -> Vec<PortSpec> {
        self.ports.iter().enumerate().map(|(id, opened)| opened.spec(id)).collect()
    }
}

/// Mode that has been set up.
pub struct Parts {
    pub control: Box<dyn Control>,
    pub view: Arc<dyn View>,
    /// Stages of each worker.
    pub apps: Vec<Box<dyn App>>,
    /// Pairs of workers that a ring joins.
    pub links: Vec<(usize, usize)>,
}

/// Control half of a mode. The control loop calls it from one thread.
pub trait Control {
    /// Applies changes in the kernel, and returns what they mean for ports.
    fn apply(&mut self, changes: &[Change]) -> Applied;

    /// Serves the workers' requests and runs periodic work. Returns whether there were requests. Called every 2 to 16
    /// ms, and after each change in the kernel.
    fn tick(&mut self, shared: &Shared, mirror: &Mirror) -> bool;

    /// Waits until it is known which packets may be forwarded. The programs hand over frames only afterwards.
    fn begin(&mut self, _shared: &Shared) {}

    /// Applies a changed `[kernel]` section of the configuration.
    fn kernel_changed(&mut self, _config: &KernelConfig, _shared: &Shared) {}

    /// Returns whether ports can be added and removed at run time; errors with the reason if not.
    fn ports_can_change(&self) -> Result<(), &'static str> {
        Err("its ports are fixed at startup")
    }

    /// Adds a port. The workers have its ends already; it is used from now on.
    fn add_port(&mut self, _spec: PortSpec, _config: &PortConfig) {}

    /// Marks a port as open on its interface, or not. While it is not, packets routed to that interface are left to the
    /// kernel.
    fn set_open(&mut self, id: PortId, open: bool);

    /// Removes a port. When this returns, nothing more is sent on it.
    fn remove_port(&mut self, _id: PortId) {}

    /// Sets the interfaces above ports, and the tunnels, whose packets may be forwarded.
    fn set_uppers(&mut self, _uppers: &Uppers) {}

    /// Called after the devices that the XDP programs can send to have changed.
    fn targets_changed(&mut self) {}

    /// Allocates the frames it needs from this pool from now on.
    fn take_from(&mut self, _pool: &Arc<Pool>) {}

    /// Frees every frame it holds. Called after the workers have ended.
    fn stop(self: Box<Self>) {}
}

/// Sets up the configured mode.
pub fn set_up(setup: &Setup<'_>) -> anyhow::Result<Parts> {
    match setup.config.mode {
        Mode::Router => router::set_up(setup),
        Mode::Switch => switch::set_up(setup),
        Mode::Cmts => cmts::set_up(setup),
    }
}

/// Warns if a port's interface has an address, while a mode takes all of its frames: the machine may be reached only by
/// it. Returns whether it has one.
pub fn warn_of_address(port: &PortView, mode: &str) -> bool {
    // Each interface has a link-local one for IPv6.
    let other = |addr: &IpAddr| match addr {
        IpAddr::V4(addr) => !addr.is_link_local(),
        IpAddr::V6(addr) => !addr.is_unicast_link_local(),
    };
    let addr = port.addresses.iter().map(|prefix| prefix.addr).find(other);
    if let Some(addr) = addr {
        let name = &port.name;
        tracing::warn!(
            "{name}: the kernel can no longer be reached at its address {addr}: the {mode} takes all frames"
        );
    }
    addr.is_some()
}

/// Formats a MAC address.
pub fn mac(mac: Mac) -> String {
    bywash_wire::ethernet::MacAddr(mac).to_string()
}
