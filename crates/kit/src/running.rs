//! An application that runs.

use crate::Error;
use crate::interface::Attached;
use crate::routes::Following;
use bywash_engine::{WorkerCounters, WorkerExit, WorkerHandle};
use bywash_frame::{Buffers, PoolSet};
use bywash_port::af_xdp::Umem;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time to wait for the kernel to take the rings of zero-copy sockets back from drivers.
const LET_GO: Duration = Duration::from_secs(1);

/// Running application. Dropping it ends the application.
pub struct Running {
    // Declared first: while workers end, frames go to the kernel.
    pub(crate) attached: Vec<Attached>,
    pub(crate) workers: Vec<WorkerHandle>,
    pub(crate) following: Option<Following>,
    pub(crate) pools: Arc<PoolSet>,
    pub(crate) umem: Arc<Umem>,
}

impl Running {
    /// Returns the counters of each worker: packets and cycles by stage, drops by port and reason.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<WorkerCounters>> {
        self.workers.iter().map(WorkerHandle::counters)
    }

    /// Returns whether the application has ended by itself on a worker, which only a panic causes, or the kernel's
    /// routes are no longer followed. [`Running::stop`] returns the reason.
    pub fn failed(&self) -> bool {
        self.workers.iter().any(WorkerHandle::finished) || self.following.as_ref().is_some_and(Following::finished)
    }

    /// Ends the application and checks that every buffer is back in its pool.
    ///
    /// # Errors
    /// [`Error::App`] if the application panicked; [`Error::Routes`] if the kernel's routes were no longer followed;
    /// [`Error::Lost`] if buffers are missing or misplaced.
    pub fn stop(self) -> Result<(), Error> {
        let Self { attached, workers, following, pools, umem } = self;
        // Detach the XDP programs first: frames go to the kernel from then on.
        drop(attached);
        let exits: Vec<WorkerExit> = workers.iter().map(WorkerHandle::stop).collect();
        for (worker, exit) in exits.into_iter().enumerate() {
            if let WorkerExit::Panicked(why) = exit {
                return Err(Error::App { worker, why });
            }
        }
        following.map_or(Ok(()), Following::stop)?;
        umem.settle(&mut Buffers::attach(&pools, 0), LET_GO);
        match pools.verify() {
            (missing, wrong) if missing.is_empty() && wrong.is_empty() => Ok(()),
            (missing, wrong) => Err(Error::Lost { missing: missing.len(), wrong: wrong.len() }),
        }
    }
}
