//! Errors of the mirror.

use rustix::io::Errno;

/// An error of the netlink sockets or the mirror's thread. Malformed messages never cause one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A socket operation failed.
    #[error("cannot {doing} a netlink socket")]
    Socket {
        /// Operation that failed, as part of the message.
        doing: &'static str,
        /// Cause reported by the system.
        source: std::io::Error,
    },
    /// The kernel did not answer a request in time.
    #[error("no answer from the kernel on a netlink socket")]
    Silent,
    /// The thread could not be started.
    #[error("cannot start the netlink thread")]
    Thread(#[source] std::io::Error),
    /// The tables kept changing while they were being read.
    #[error("the kernel's routing tables change faster than they can be read")]
    Restless,
}

impl Error {
    /// Returns whether the kernel was short of memory, and may do the same at another time.
    pub(crate) fn is_shortage(&self) -> bool {
        let shortage = |errno| matches!(errno, Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN);
        matches!(self, Self::Socket { source, .. } if Errno::from_io_error(source).is_some_and(shortage))
    }
}
