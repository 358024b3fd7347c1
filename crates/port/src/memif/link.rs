//! Worker's part of a connection.

use super::memory::{Region, Ring};
use std::os::fd::OwnedFd;

/// Both rings of a connection and the memory regions they point into.
pub struct Link {
    /// Receive ring.
    pub rx: Ring,
    /// Transmit ring.
    pub tx: Ring,
    /// Eventfd that is readable when packets arrived after a wakeup was requested.
    pub bell: OwnedFd,
    /// Regions by index. The rings lie in them.
    pub regions: Vec<Region>,
}

/// Result of a completed handshake.
pub struct Connected {
    pub link: Link,
    /// Eventfd that wakes the peer.
    pub kick: OwnedFd,
    /// Peer's name: program and interface, as it sent them.
    pub peer: String,
}
