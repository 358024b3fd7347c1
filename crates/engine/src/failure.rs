//! Behaviour of a worker after its application has panicked.
//!
//! A worker that outlives panics puts the application aside, frees what it held, and goes on with its ports, so that
//! they neither fill up nor keep frames, its queues are sent, and its reader is quiescent in every turn. Frames that it
//! receives are dropped until somebody restarts it. It only does so if the panic came from the application itself:
//! one inside a port may have left a ring shared with the kernel between two states.

use crate::{App, Context, DropReason, PortId};
use bywash_frame::{BATCH, Batch};
use bywash_sync::lock;
use std::sync::Mutex;
use std::thread::Thread;

/// Panic of a worker's application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Message of the panic.
    pub why: String,
    /// Number of panics that the worker has outlived, this one included.
    pub number: u64,
}

/// Failure that keeps a worker's application from running, for other threads.
#[derive(Default)]
pub(crate) struct Failed {
    now: Mutex<Option<Failure>>,
    watcher: Mutex<Option<Thread>>,
}

impl Failed {
    pub fn get(&self) -> Option<Failure> {
        lock(&self.now).clone()
    }

    /// Sets the failure, or none, and wakes up the watcher.
    pub fn set(&self, failure: Option<Failure>) {
        *lock(&self.now) = failure;
        lock(&self.watcher).iter().for_each(Thread::unpark);
    }

    /// Sets the thread to unpark at every change.
    pub fn watch_by(&self, thread: Thread) {
        *lock(&self.watcher) = Some(thread);
    }
}

/// Returns how many panics of its application a worker outlives that allocates from a pool of `frames`.
///
/// The frames that an application has in hand when it panics, of its burst and built meanwhile, are on the stack and
/// lost until the process ends: fewer than two bursts. So a worker ends before they are a quarter of its pool.
pub(crate) fn most(frames: usize) -> u64 {
    (frames / 4 / (2 * BATCH)) as u64
}

/// Stands in for an application that has panicked: drops every frame.
pub(crate) struct Substitute;

impl App for Substitute {
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        batch.drain().for_each(|frame| cx.drop(from, DropReason::WorkerFailed, frame));
    }
}
