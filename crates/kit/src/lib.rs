#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use bywash_engine::{App, Idle, PortId, PortTable, Worker, WorkerConfig, WorkerCounters, WorkerExit, WorkerHandle};
use bywash_frame::{Arena, ArenaConfig, ArenaError, Buffers, PoolConfig, PoolError, PoolSet};
use bywash_port::af_xdp::{
    self, AfXdpPort, LinkInfo, Program, Promiscuous, SocketConfig, Transmit, Umem, XdpAttach, XdpConfig,
};
use bywash_port::{Port, TxQueue, TxQueueConfig};
use bywash_sync::Qsbr;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for the worker to start.
const BEGIN: Duration = Duration::from_secs(5);

/// Error of [`Kit`] and [`Running`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arena for the buffers cannot be allocated.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The pool of buffers cannot be created.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The interface cannot be opened as a port.
    #[error(transparent)]
    AfXdp(#[from] af_xdp::Error),
    /// The interface cannot be set to promiscuous mode.
    #[error("cannot set {interface} to promiscuous mode: {source}")]
    Promiscuous {
        /// Name of the interface.
        interface: String,
        /// Error returned by the kernel.
        source: std::io::Error,
    },
    /// The worker's thread cannot be created.
    #[error("cannot start the worker: {0}")]
    Worker(std::io::Error),
    /// The application panicked with this message, or did not start in time.
    #[error("the application failed: {0}")]
    App(String),
    /// Buffers were lost: the application or a custom port dropped frames without freeing them, or freed them twice.
    #[error("{missing} buffers are missing and {wrong} misplaced: a stage or port lost frames or freed them twice")]
    Lost {
        /// Number of buffers that are in no pool.
        missing: usize,
        /// Number of buffers that are in a pool twice or in the wrong pool.
        wrong: usize,
    },
}

/// Maximum time to wait for the kernel to take the rings of zero-copy sockets back from drivers.
const LET_GO: Duration = Duration::from_secs(1);

/// Buffers and ports of an application that does not run yet.
pub struct Kit {
    pools: Arc<PoolSet>,
    umem: Arc<Umem>,
    ports: Vec<Box<dyn Port>>,
    programs: Vec<Program>,
    promiscuous: Vec<Promiscuous>,
}

impl Kit {
    /// Creates a kit with `buffers` buffers in one pool of kind `stack` (last in, first out). An interface needs about
    /// 8,192.
    ///
    /// # Errors
    /// [`Error::Arena`] and [`Error::Pool`].
    pub fn new(buffers: usize) -> Result<Self, Error> {
        let arena = Arena::new(ArenaConfig { cells: buffers, ..ArenaConfig::default() })?;
        Ok(Self::with_pools(PoolSet::new(arena, &[PoolConfig::stack("main", buffers)])?))
    }

    /// Creates a kit with buffers from the first of `pools`, with any policy.
    pub fn with_pools(pools: Arc<PoolSet>) -> Self {
        let umem = Umem::new(pools.arena());
        Self { pools, umem, ports: vec![], programs: vec![], promiscuous: vec![] }
    }

    /// Adds a port of the application: queue 0 of an interface in the calling thread's network namespace. The
    /// application receives all frames of the interface, and the kernel none, until [`Running::stop`].
    ///
    /// # Errors
    /// [`Error::AfXdp`] and [`Error::Promiscuous`] with the kernel's reasons.
    pub fn interface(&mut self, name: &str) -> Result<PortId, Error> {
        let link = LinkInfo::query(name)?;
        let mut program = Program::attach(&link, XdpAttach::Auto)?;
        let config = SocketConfig { transmit: Transmit::Socket, ..SocketConfig::default() };
        let port = AfXdpPort::open(&self.umem, &link, 0, &config)?;
        if let Some(socket) = port.fd() {
            program.set_socket(0, socket)?;
        }
        let max_frame = port.max_frame() as u32;
        program.set_config(XdpConfig { mac: link.mac, max_frame, raw: true, ..XdpConfig::default() })?;
        let failed = |source| Error::Promiscuous { interface: name.into(), source };
        self.promiscuous.push(Promiscuous::new(link.index).map_err(failed)?);
        self.programs.push(program);
        Ok(self.port(Box::new(port)))
    }

    /// Adds a port of any kind.
    pub fn port(&mut self, port: Box<dyn Port>) -> PortId {
        self.ports.push(port);
        PortId(self.ports.len() as u16 - 1)
    }

    /// Returns the pools of the buffers.
    pub fn pools(&self) -> &Arc<PoolSet> {
        &self.pools
    }

    /// Runs the application on a worker of its own, which sleeps while no frames arrive.
    ///
    /// # Errors
    /// [`Error::Worker`] and [`Error::App`] if the worker does not start, and [`Error::AfXdp`] if the XDP program
    /// cannot be enabled.
    pub fn start(self, app: impl App + 'static) -> Result<Running, Error> {
        let Self { pools, umem, ports, mut programs, promiscuous } = self;
        let mut table = PortTable::new();
        for port in ports {
            table.add(port, TxQueue::new(TxQueueConfig::default()));
        }
        let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Sleep };
        let worker = Worker::new(config, table, Box::new(app), Buffers::attach(&pools, 0), Qsbr::new().register());
        let worker = worker.spawn().map_err(Error::Worker)?;
        // The worker reports after its first turn, in which its ports have posted buffers.
        if worker.report(BEGIN).is_none() {
            return Err(Error::App("no report from the worker in time".into()));
        }
        for program in &mut programs {
            program.set_config(XdpConfig { enabled: true, ..program.config() })?;
        }
        Ok(Running { worker, programs, pools, umem, promiscuous })
    }
}

/// Running application. Dropping it ends the application.
pub struct Running {
    worker: WorkerHandle,
    programs: Vec<Program>,
    pools: Arc<PoolSet>,
    umem: Arc<Umem>,
    promiscuous: Vec<Promiscuous>,
}

impl Running {
    /// Returns the worker's counters: packets and cycles by stage, drops by port and reason.
    pub fn counters(&self) -> &Arc<WorkerCounters> {
        self.worker.counters()
    }

    /// Returns whether the application has ended by itself, which only a panic causes.
    pub fn failed(&self) -> bool {
        self.worker.finished()
    }

    /// Ends the application and checks that every buffer is back in its pool.
    ///
    /// # Errors
    /// [`Error::App`] if the application panicked; [`Error::Lost`] if buffers are missing or misplaced.
    pub fn stop(mut self) -> Result<(), Error> {
        // Detach the XDP programs first: frames go to the kernel from then on.
        self.programs.clear();
        self.promiscuous.clear();
        if let WorkerExit::Panicked(why) = self.worker.stop() {
            return Err(Error::App(why));
        }
        self.umem.settle(&mut Buffers::attach(&self.pools, 0), LET_GO);
        match self.pools.verify() {
            (missing, wrong) if missing.is_empty() && wrong.is_empty() => Ok(()),
            (missing, wrong) => Err(Error::Lost { missing: missing.len(), wrong: wrong.len() }),
        }
    }
}
