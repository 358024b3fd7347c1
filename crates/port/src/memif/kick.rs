//! Thread that wakes the peer of one connection.
//!
//! Waking means writing to an eventfd that the peer also holds. A hostile peer can fill it and make it blocking at any
//! moment, so that the write does not return. The thread therefore has nothing but this eventfd, and nobody waits for
//! it while the connection lasts.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ReadWriteFlags;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};

struct Shared {
    eventfd: OwnedFd,
    asked: AtomicBool,
    stop: AtomicBool,
}

/// Running thread, as the control thread has it.
pub struct Kicker {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// Right to have the peer woken.
pub struct Kick {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Kicker {
    /// Starts the thread for a connection whose peer waits for `eventfd`.
    pub fn start(eventfd: OwnedFd) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { eventfd, asked: AtomicBool::new(false), stop: AtomicBool::new(false) });
        let of = shared.clone();
        let thread = std::thread::Builder::new().name("bywash-memif".into()).spawn(move || of.run())?;
        Ok(Self { shared, thread })
    }

    pub fn kick(&self) -> Kick {
        Kick { shared: self.shared.clone(), thread: self.thread.thread().clone() }
    }

    /// Requests that the thread end.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    /// Returns whether the thread has ended. If it has not, empties a full eventfd, for which it could be waiting.
    pub fn has_ended(&self) -> bool {
        if self.thread.is_finished() {
            return true;
        }
        let eventfd = &self.shared.eventfd;
        // Read only a full one: the peer needs what is in any other.
        if poll(&mut [PollFd::new(eventfd, PollFlags::OUT)], Some(&Timespec::default())) == Ok(0) {
            // RWF_NOWAIT never blocks, whatever the peer does meanwhile.
            let mut count = [0; 8];
            let _ = rustix::io::preadv2(eventfd, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT);
        }
        false
    }
}

impl Shared {
    fn run(&self) {
        loop {
            if self.asked.swap(false, Ordering::AcqRel) {
                let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
            } else if self.stop.load(Ordering::Acquire) {
                return;
            } else {
                std::thread::park();
            }
        }
    }
}

impl Kick {
    /// Requests that the peer be woken. Never blocks.
    pub fn ask(&self) {
        if !self.shared.asked.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}
