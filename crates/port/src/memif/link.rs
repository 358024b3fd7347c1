//! What a worker has of a connection.

use super::memory::{Region, Ring};
use std::os::fd::OwnedFd;

/// Both rings of a connection and the memory they point into.
pub struct Link {
    /// By which we receive.
    pub rx: Ring,
    /// By which we send.
    pub tx: Ring,
    /// Readable when something was received and we had asked to be woken.
    pub bell: OwnedFd,
    /// By their numbers. The rings lie in them.
    pub regions: Vec<Region>,
}

/// A handshake that has come to its end.
pub struct Connected {
    pub link: Link,
    /// What wakes the peer.
    pub kick: OwnedFd,
    /// Its program and interface, as it calls them.
    pub peer: String,
}
