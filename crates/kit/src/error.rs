//! Errors of setting up, running and ending an application.

use bywash_frame::{ArenaError, PoolError};
use bywash_port::{TapError, af_xdp};
use std::io;

/// Error of [`Kit`](crate::Kit) and [`Running`](crate::Running).
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
        source: io::Error,
    },
    /// The twin's TAP interface cannot be created.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The twin cannot be used by several workers: no file descriptors are left.
    #[error("cannot open another end of the twin {name}: {source}")]
    Twin {
        /// Name of the twin's interface.
        name: String,
        /// Error returned by the kernel.
        source: io::Error,
    },
    /// The kernel's routes cannot be followed.
    #[error("cannot follow the kernel's routes: {0}")]
    Netlink(#[from] bywash_netlink::Error),
    /// The routing tables, or the thread that maintains them, cannot be created.
    #[error("cannot create the routing tables: {0}")]
    Tables(io::Error),
    /// The kernel's routes are not followed, for this reason.
    #[error("the kernel's routes are not followed: {0}")]
    Routes(String),
    /// The API cannot be served, for this reason.
    #[error("cannot serve the API: {0}")]
    Api(String),
    /// A worker's thread cannot be created.
    #[error("cannot start worker {worker}: {source}")]
    Worker {
        /// Number of the worker.
        worker: usize,
        /// Error returned by the kernel.
        source: io::Error,
    },
    /// The application panicked with this message, or did not start in time.
    #[error("the application failed on worker {worker}: {why}")]
    App {
        /// Number of the worker.
        worker: usize,
        /// Message of the panic.
        why: String,
    },
    /// Buffers were lost: the application or a custom port dropped frames without freeing them, or freed them twice.
    #[error("{missing} buffers are missing and {wrong} misplaced: a stage or port lost frames or freed them twice")]
    Lost {
        /// Number of buffers that are in no pool.
        missing: usize,
        /// Number of buffers that are in a pool twice or in the wrong pool.
        wrong: usize,
    },
}
