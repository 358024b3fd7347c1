//! From an application to a program that runs: buffers, ports and a worker, put together as `bywash run` does it, for
//! those who write their own. See docs/guide.md.
//!
//! ```no_run
//! use bywash_engine::{Context, PortId};
//! use bywash_frame::Batch;
//! use bywash_kit::Kit;
//!
//! fn forward(cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
//!     cx.send_batch(from, PortId(1 - from.0), batch);
//! }
//!
//! let mut kit = Kit::new(8192)?;
//! kit.interface("eth0")?;
//! kit.interface("eth1")?;
//! let running = kit.start(forward)?;
//! std::thread::park();
//! # running.stop()?;
//! # Ok::<(), bywash_kit::Error>(())
//! ```

#![forbid(unsafe_code)]

use bywash_engine::{App, Idle, Outputs, PortId, Worker, WorkerConfig, WorkerCounters, WorkerExit, WorkerHandle};
use bywash_frame::{Arena, ArenaConfig, ArenaError, Buffers, PoolConfig, PoolError, PoolSet};
use bywash_port::af_xdp::{self, AfXdpPort, LinkInfo, Program, Promiscuous, SocketConfig, Umem, XdpAttach, XdpConfig};
use bywash_port::{Port, TxQueue, TxQueueConfig};
use bywash_sync::Qsbr;
use std::sync::Arc;
use std::time::Duration;

/// How long the worker may take to begin.
const BEGIN: Duration = Duration::from_secs(5);

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No memory for the buffers.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// No pool of them.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An interface that cannot be a port.
    #[error(transparent)]
    AfXdp(#[from] af_xdp::Error),
    /// An interface that does not show all that comes by it.
    #[error("{interface} does not become promiscuous: {source}")]
    Promiscuous {
        /// The interface.
        interface: String,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// The worker's thread.
    #[error("the worker does not start: {0}")]
    Worker(std::io::Error),
    /// The application panicked: its message.
    #[error("the application failed: {0}")]
    App(String),
    /// Buffers that nobody has: the application or a port of its own lost them, or gave them back twice.
    #[error("{missing} buffers are missing and {wrong} misplaced: somebody keeps frames and does not give them back")]
    Lost {
        /// How many are nowhere.
        missing: usize,
        /// How many are where they do not belong.
        wrong: usize,
    },
}

/// Longest wait for the kernel to take the rings of zero-copy sockets from drivers.
const LET_GO: Duration = Duration::from_secs(1);

/// What an application is to run with.
pub struct Kit {
    pools: Arc<PoolSet>,
    umem: Arc<Umem>,
    ports: Vec<Box<dyn Port>>,
    programs: Vec<Program>,
    promiscuous: Vec<Promiscuous>,
}

impl Kit {
    /// With so many buffers, last in, first out. An interface needs some 8,192.
    ///
    /// # Errors
    /// [`Error::Arena`] and [`Error::Pool`].
    pub fn new(buffers: usize) -> Result<Self, Error> {
        let arena = Arena::new(ArenaConfig { cells: buffers, ..ArenaConfig::default() })?;
        Ok(Self::with_pools(PoolSet::new(arena, &[PoolConfig::stack("main", buffers)])?))
    }

    /// With buffers from the first of these pools, whatever their policy.
    pub fn with_pools(pools: Arc<PoolSet>) -> Self {
        let umem = Umem::new(pools.arena());
        Self { pools, umem, ports: vec![], programs: vec![], promiscuous: vec![] }
    }

    /// One more port of the application: queue 0 of an interface in the calling thread's network namespace. Every frame
    /// that comes by it is the application's, and none the kernel's, until [`Running::stop`].
    ///
    /// # Errors
    /// [`Error::AfXdp`] and [`Error::Promiscuous`] with the kernel's reasons.
    pub fn interface(&mut self, name: &str) -> Result<PortId, Error> {
        let link = LinkInfo::query(name)?;
        let mut program = Program::attach(&link, XdpAttach::Auto)?;
        let port = AfXdpPort::open(&self.umem, &link, 0, &SocketConfig::default())?;
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

    /// One more port, of any kind.
    pub fn port(&mut self, port: Box<dyn Port>) -> PortId {
        self.ports.push(port);
        PortId(self.ports.len() as u16 - 1)
    }

    /// The buffers.
    pub fn pools(&self) -> &Arc<PoolSet> {
        &self.pools
    }

    /// Runs the application on a worker of its own, which sleeps while nothing comes.
    ///
    /// # Errors
    /// [`Error::Worker`], and [`Error::AfXdp`] when frames cannot be had.
    pub fn start(self, app: impl App + 'static) -> Result<Running, Error> {
        let Self { pools, umem, ports, mut programs, promiscuous } = self;
        let mut out = Outputs::new();
        for port in ports {
            out.add(port, TxQueue::new(TxQueueConfig::default()));
        }
        let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Sleep };
        let worker = Worker::new(config, out, Box::new(app), Buffers::attach(&pools, 0), Qsbr::new().register());
        let worker = worker.spawn().map_err(Error::Worker)?;
        // It reports after a turn, in which its ports posted buffers.
        if worker.report(BEGIN).is_none() {
            return Err(Error::App("it does not answer".into()));
        }
        for program in &mut programs {
            program.set_config(XdpConfig { enabled: true, ..program.config() })?;
        }
        Ok(Running { worker, programs, pools, umem, promiscuous })
    }
}

/// An application that runs. Dropped, it ends.
pub struct Running {
    worker: WorkerHandle,
    programs: Vec<Program>,
    pools: Arc<PoolSet>,
    umem: Arc<Umem>,
    promiscuous: Vec<Promiscuous>,
}

impl Running {
    /// What it counts: packets and cycles by stage, drops by port and reason.
    pub fn counters(&self) -> &Arc<WorkerCounters> {
        self.worker.counters()
    }

    /// Whether it has ended by itself, which it does by panicking only.
    pub fn failed(&self) -> bool {
        self.worker.finished()
    }

    /// Ends it, and looks whether every buffer is back.
    ///
    /// # Errors
    /// [`Error::App`] when it had panicked; [`Error::Lost`].
    pub fn stop(mut self) -> Result<(), Error> {
        // First those that hand frames over: what comes is the kernel's.
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
