//! What can go wrong between the mirror and the kernel.

/// An error of the mirror's own sockets. What the kernel's objects look like never makes one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused.
    #[error("cannot {doing} a netlink socket")]
    Socket {
        /// What was tried.
        doing: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A dump was asked for and nothing came.
    #[error("the kernel does not answer on a netlink socket")]
    Silent,
    /// The thread could not be started.
    #[error("cannot start the mirror's thread")]
    Thread(#[source] std::io::Error),
    /// The tables kept changing while they were read.
    #[error("the kernel's tables change too fast to be read whole")]
    Restless,
}
