//! A wake-up for a thread that waits for sockets.

use crate::error::Error;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Timespec;
use rustix::io::Errno;
use std::time::Duration;

/// Wakes a thread that waits by [`Wake::wait`]. Any thread may call [`Wake::wake`].
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// Creates a wake-up. Holds one descriptor.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn new() -> Result<Self, Error> {
        let opening = |error: Errno| Error::Socket { doing: "create a wake-up descriptor for", source: error.into() };
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self).map_err(opening)
    }

    /// Ends the present wait, or the next one.
    pub fn wake(&self) {
        // A full counter means that a wake-up is already pending.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Waits until woken, until one of `others` is readable, or for `limit` if there is one. A signal ends it, too.
    /// Returns whether it was woken.
    ///
    /// # Errors
    /// If the system cannot wait for these descriptors.
    pub fn wait<'a>(
        &'a self,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
        limit: Option<Duration>,
    ) -> Result<bool, Error> {
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        let all = std::iter::once(self.0.as_fd()).chain(others);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::Socket { doing: "wait for", source: error.into() }),
        }
        let woken = !fds[0].revents().is_empty();
        if woken {
            let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
        }
        Ok(woken)
    }
}
