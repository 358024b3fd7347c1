//! An application that runs.

use crate::Error;
use crate::routes::Following;
use crate::shown::Shown;
use bywash_api_server::{Addresses, Listener, Server};
use bywash_engine::{WorkerCounters, WorkerExit, WorkerHandle};
use bywash_frame::Buffers;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time to wait for the kernel to take the rings of zero-copy sockets back from drivers.
const LET_GO: Duration = Duration::from_secs(1);

/// Running application. Dropping it ends the application.
pub struct Running {
    shown: Arc<Shown>,
    following: Option<Following>,
    server: Option<Server>,
}

impl Running {
    pub(crate) fn new(shown: Arc<Shown>, following: Option<Following>) -> Self {
        Self { shown, following, server: None }
    }

    /// Serves the application's API at a unix socket, for root, until it ends: `bywash show ports --socket PATH` shows
    /// its ports, as do the topics `workers`, `pools` and `drops` and `bywash top`. Replaces the socket that a killed
    /// process has left.
    ///
    /// # Errors
    /// [`Error::Api`], also if another process listens there.
    pub fn serve(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        // A server that runs already gives its name back first.
        self.server = None;
        let failed = |why| Error::Api(format!("{why:#}"));
        let listener = Listener::bind(&Addresses::of(path.as_ref())).map_err(failed)?;
        let server = bywash_api_server::serve(listener, self.shown.clone(), Default::default()).map_err(failed)?;
        self.server = Some(server);
        Ok(())
    }

    /// Returns the counters of each worker: packets and cycles by stage, drops by port and reason.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<WorkerCounters>> {
        self.shown.workers.iter().map(WorkerHandle::counters)
    }

    /// Returns whether the application has ended by itself on a worker, which only a panic causes, or the kernel's
    /// routes are no longer followed. [`Running::stop`] returns the reason.
    pub fn failed(&self) -> bool {
        let routes = self.following.as_ref().is_some_and(Following::finished);
        routes || self.shown.workers.iter().any(WorkerHandle::finished)
    }

    /// Ends the application and checks that every buffer is back in its pool.
    ///
    /// # Errors
    /// [`Error::App`] if the application panicked; [`Error::Routes`] if the kernel's routes were no longer followed;
    /// [`Error::Lost`] if buffers are missing or misplaced.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()?;
        self.following.take().map_or(Ok(()), Following::stop)?;
        let Shown { pools, umem, .. } = &*self.shown;
        umem.settle(&mut Buffers::attach(pools, 0), LET_GO);
        match pools.verify() {
            (missing, wrong) if missing.is_empty() && wrong.is_empty() => Ok(()),
            (missing, wrong) => Err(Error::Lost { missing: missing.len(), wrong: wrong.len() }),
        }
    }

    /// Ends all workers. Does nothing when called again.
    fn end(&mut self) -> Result<(), Error> {
        self.server = None;
        // Detach the XDP programs first: frames go to the kernel from then on.
        self.shown.attached().clear();
        let exits: Vec<WorkerExit> = self.shown.workers.iter().map(WorkerHandle::stop).collect();
        let panicked = exits.into_iter().enumerate().find_map(|(worker, exit)| match exit {
            WorkerExit::Panicked(why) => Some(Error::App { worker, why }),
            WorkerExit::Stopped => None,
        });
        panicked.map_or(Ok(()), Err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `stop` returns errors; a drop cannot.
        let _ = self.end();
    }
}
