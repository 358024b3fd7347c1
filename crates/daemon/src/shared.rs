//! State that the control loop, the API and the watch share.

use crate::slots::Ports;
use crate::view::View;
use crate::vlans::Left;
use crate::workers;
use bywash_api::Above;
use bywash_config::{Config, ConfigErrors};
use bywash_engine::{Failure, PortId};
use bywash_frame::{Buffers, PoolSet};
use bywash_port::af_xdp::{self, Journal, Umem};
use bywash_sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Instant;

/// State shared by the control loop, the API and the watch.
///
/// # Thread-safety
/// The control loop alone adds and removes ports, and gives them their programs; the API and the watch only change what
/// it finds there. A thread that holds `ports` takes no lock of a mode and waits for no worker, so that the order of
/// locks does not matter; no worker takes any of them.
pub struct Shared {
    /// Time at which the instance started.
    pub started: Instant,
    /// Configuration in effect.
    pub config: Mutex<Arc<Config>>,
    /// Reads the configuration again, for a reload.
    pub source: Source,
    /// Number of readings begun.
    pub readings: AtomicU64,
    /// Requests to the control loop.
    pub asks: Mutex<mpsc::Sender<Ask>>,
    pub pools: Arc<PoolSet>,
    /// UMEM of the AF_XDP sockets.
    pub umem: Arc<Umem>,
    /// View of the mode.
    pub view: Arc<dyn View>,
    pub ports: Mutex<Ports>,
    pub workers: Vec<workers::Shown>,
    /// Reason for which every port is left to the kernel, if it is: see [`crate::watch`].
    pub halted: Mutex<Option<String>>,
    /// Workers that have panicked and wait for their restart.
    pub failed: Mutex<Vec<Failed>>,
    /// Interfaces above the ports, and tunnels, that are left to the kernel.
    pub left: Mutex<Vec<Left>>,
    /// Names of the ports of each running capture, by its number and theirs: a reload may give a number to another
    /// port, which the capture does not know.
    pub captures: Mutex<BTreeMap<u64, Vec<String>>>,
}

/// Worker that has panicked, whose ports are left to the kernel.
#[derive(Clone, PartialEq, Eq)]
pub struct Failed {
    pub worker: usize,
    pub failure: Failure,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {} failed ({})", self.worker, self.failure.why)
    }
}

impl Shared {
    /// Returns the interfaces above ports, and tunnels, each with a port that carries it.
    pub fn above(&self) -> Vec<(PortId, Above)> {
        let left = lock(&self.left).clone();
        self.view.above(&left)
    }

    /// Returns buffers of the worker that serves a queue of a port; `queues` names each queue's worker.
    pub fn buffers(&self, queues: &[(u32, usize)], queue: u32) -> Option<Buffers> {
        let (_, worker) = queues.iter().find(|(one, _)| *one == queue)?;
        let own = self.workers.get(*worker)?.pool();
        let at = self.pools.pools().iter().position(|pool| Arc::ptr_eq(pool, &own))?;
        Some(Buffers::attach(&self.pools, at))
    }

    /// Returns the configuration in effect.
    pub fn config(&self) -> Arc<Config> {
        lock(&self.config).clone()
    }

    /// Opens the journal of this instance.
    pub fn journal(&self) -> Result<Journal, af_xdp::Error> {
        Journal::open(crate::journal::settings(&self.config().api.socket))
    }

    /// Locks the ports. Locks of a mode's view or control side must be taken before this one, never after: the control
    /// loop configures the programs of ports with its tables locked.
    pub fn ports(&self) -> MutexGuard<'_, Ports> {
        lock(&self.ports)
    }

    /// Returns the reason for which no port is forwarded: a hanging worker. `None` if all workers turn.
    pub fn halted(&self) -> Option<String> {
        lock(&self.halted).clone()
    }

    /// Returns the reason for which a port with these queues, each with its worker, is left to the kernel: a worker
    /// that hangs, or one of its own that has panicked.
    pub fn halted_for(&self, queues: &[(u32, usize)]) -> Option<String> {
        let own = |failed: &&Failed| queues.iter().any(|(_, worker)| *worker == failed.worker);
        self.halted().or_else(|| lock(&self.failed).iter().find(own).map(Failed::to_string))
    }

    /// Returns the reason for which some or all ports are left to the kernel, or what does not work without the broker;
    /// `None` if every worker forwards and the broker runs.
    pub fn unwell(&self) -> Option<String> {
        let failed = || lock(&self.failed).first().map(Failed::to_string);
        self.halted().or_else(failed).or_else(crate::sandbox::without_broker)
    }
}

/// Source of the configuration.
pub struct Source {
    /// Reads the configuration, at the start and for each reload. The argument names interfaces that are gone, and that
    /// ports wait for.
    pub read: Box<dyn Fn(Vec<String>) -> Result<Config, ConfigErrors> + Send + Sync>,
    /// Set if it comes from a file, which may have changed since.
    pub file: bool,
}

/// Place of a reading of the configuration among all readings.
#[derive(Clone, Copy)]
pub struct Reading {
    /// Number of readings begun by then, including this one.
    pub begun: u64,
    /// Number of readings begun when this one ended.
    pub ended: u64,
}

/// Request to the control loop.
pub enum Ask {
    /// Applies this configuration; answers with what changed, or why nothing did.
    Reload(Box<Config>, Reading, mpsc::Sender<Result<Vec<String>, String>>),
    /// Connects to the process that takes over, at this socket.
    TakeOver(String, mpsc::Sender<Result<(), String>>),
}
