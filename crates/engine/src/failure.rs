//! Behaviour of a worker after its application has panicked.
//!
//! A worker that outlives panics suspends the application, frees the frames that it held, and continues to serve its
//! ports: they do not fill up, queued frames are sent, and the reader is quiescent in every turn. Received frames are
//! dropped until the application is restarted. A worker outlives only panics of the application itself: a panic inside
//! a port may have left a ring that the kernel shares in an inconsistent state.

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

/// Returns the number of panics of their applications that the workers of a pool outlive together, given the number of
/// its frames.
///
/// The frames that an application holds on its stack when it panics, received and newly built, are lost until the
/// process ends: fewer than two bursts per panic. A worker ends before the pool has lost a quarter of its frames.
pub(crate) fn max_panics(frames: usize) -> u64 {
    (frames / 4 / (2 * BATCH)) as u64
}

/// Stands in for an application that has panicked: drops every frame.
pub(crate) struct Substitute;

impl App for Substitute {
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        batch.drain().for_each(|frame| cx.drop(from, DropReason::WorkerFailed, frame));
    }
}
