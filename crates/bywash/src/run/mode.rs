//! What makes a router, a switch or something else of ports, pools and workers.
//!
//! A mode comes in three parts: stages, which go to the workers; a control half, which the control loop runs; and a
//! view, which the API asks. What they have in common is theirs to share.

use super::control::Shared;
use super::driver::Driver;
use super::ports::Opened;
use super::{cmts, router, switch};
use crate::api::{FlowCommand, Topic};
use crate::config::{Config, KernelConfig, Mode, PortConfig};
use bywash_engine::{App, PortId};
use bywash_frame::{Pool, PoolSet};
use bywash_mirror::Mirror;
use bywash_route::model::Change;
use bywash_router::control::{Applied, PortSpec, PortView};
use bywash_sync::Qsbr;
use serde_json::Value;
use std::sync::Arc;

/// What a mode finds when it is set up: everything is opened, nothing runs yet.
pub struct Setup<'a> {
    pub config: &'a Config,
    pub ports: &'a [Opened],
    /// The domain that workers' readers will be of.
    pub domain: &'a Qsbr,
    pub pools: &'a Arc<PoolSet>,
    /// The program on the AF_XDP ports, if there are any.
    pub driver: Option<&'a Driver>,
    /// How many workers there will be.
    pub workers: usize,
}

impl Setup<'_> {
    /// The ports as they are followed.
    pub fn specs(&self) -> Vec<PortSpec> {
        self.ports.iter().enumerate().map(|(id, opened)| opened.spec(id)).collect()
    }
}

/// A mode, set up.
pub struct Parts {
    pub control: Box<dyn Control>,
    pub view: Arc<dyn View>,
    /// Each worker's stages.
    pub apps: Vec<Box<dyn App>>,
    /// Workers that are joined by a ring: one and the other.
    pub links: Vec<(usize, usize)>,
}

/// The half that the control loop runs, on one thread.
pub trait Control {
    /// Takes in what has changed in the kernel, and says what that means for ports.
    fn apply(&mut self, changes: &[Change]) -> Applied;

    /// Does what workers asked for, and what time asks for; returns whether they asked for anything. Called every few
    /// milliseconds.
    fn tick(&mut self, shared: &Shared, mirror: &Mirror) -> bool;

    /// Waits until it is known what may be forwarded. The programs hand frames over afterwards.
    fn begin(&mut self, _shared: &Shared) {}

    /// `[kernel]` of the configuration has changed.
    fn kernel_changed(&mut self, _config: &KernelConfig, _shared: &Shared) {}

    /// Whether ports can come and go while it runs; if not, why.
    fn ports_can_change(&self) -> Result<(), &'static str> {
        Err("its ports are what they were when it began")
    }

    /// A port has come: workers have its ends, and it is to be used from now on.
    fn add_port(&mut self, _spec: PortSpec, _config: &PortConfig) {}

    /// A port is open on its interface from now on, or no longer: what is routed by that is then the kernel's to send.
    fn set_open(&mut self, id: PortId, open: bool);

    /// A port goes. Nothing is sent by it when this returns.
    fn remove_port(&mut self, _id: PortId) {}

    /// The devices that the XDP programs can send to are others now.
    fn targets_changed(&mut self) {}

    /// Frames it needs are taken from this pool.
    fn take_from(&mut self, _pool: &Arc<Pool>) {}

    /// Gives back every frame it holds: the workers have ended.
    fn stop(self: Box<Self>) {}
}

/// The half that the API asks, from several threads at once.
pub trait View: Send + Sync {
    /// The ports as the kernel has them, by number.
    fn ports(&self) -> Vec<PortView>;

    /// A topic that only some modes have.
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Value, String>;

    /// Changes flows, or tells what they do with a packet.
    fn command(&self, _command: FlowCommand, _text: &str) -> Result<Value, String> {
        Err("it has no flows: only a switch has (mode = \"switch\")".into())
    }

    /// Reasons for which packets that this port receives stay the kernel's.
    fn kept(&self, _port: PortId) -> Value {
        Value::Array(vec![])
    }

    /// Packets that a worker of this port's gave away for the kernel, and that the kernel did not take.
    fn punt_failed(&self, _port: PortId) -> u64 {
        0
    }
}

/// Sets the configured mode up.
pub fn set_up(setup: &Setup<'_>) -> anyhow::Result<Parts> {
    match setup.config.mode {
        Mode::Router => router::set_up(setup),
        Mode::Switch => switch::set_up(setup),
        Mode::Cmts => cmts::set_up(setup),
    }
}
