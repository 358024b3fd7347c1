//! Errors of netlink sockets, and of threads that read them.

use rustix::io::Errno;

/// Error of a netlink socket, or of a thread that reads one. Malformed messages never cause one.
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
    pub fn is_shortage(&self) -> bool {
        let shortage = |errno| matches!(errno, Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN);
        matches!(self, Self::Socket { source, .. } if Errno::from_io_error(source).is_some_and(shortage))
    }
}

/// Number of times that a request is made while the kernel is short of memory.
const TRIES: usize = 5;

/// Makes a request that changes nothing, again while the kernel is short of memory.
///
/// # Errors
/// The last error of `ask`.
pub fn retry<T>(mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..TRIES {
        match ask() {
            Err(error) if error.is_shortage() => {}
            done => return done,
        }
    }
    ask()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shortage_is_waited_for() {
        let failing = |errno: Errno, times: usize| {
            let mut calls = 0;
            let done = retry(|| {
                calls += 1;
                let error = Error::Socket { doing: "ask", source: errno.into() };
                if calls <= times { Err(error) } else { Ok(()) }
            });
            (done.is_ok(), calls)
        };
        assert_eq!(failing(Errno::NOBUFS, 2), (true, 3));
        assert_eq!(failing(Errno::NOBUFS, TRIES), (false, TRIES));
        assert_eq!(failing(Errno::NODEV, 1), (false, 1));
    }
}
