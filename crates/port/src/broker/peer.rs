//! The process at the other end of a unix domain socket.

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;

/// User and process at the other end of a connected socket (`SO_PEERCRED`, unix(7)), as of the connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// User id, effective at the time of the connection.
    pub user: u32,
    /// `None` if the process is in a PID namespace that cannot be seen from this one, where the kernel reports 0.
    pub pid: Option<i32>,
}

impl Peer {
    /// Returns whether the process is in the network namespace of this one. Errors if that cannot be seen.
    pub fn shares_network(&self) -> io::Result<bool> {
        let pid = self.pid.ok_or_else(|| io::Error::other("it is in another PID namespace"))?;
        let namespace = |process: &str| std::fs::metadata(format!("/proc/{process}/ns/net")).map(|file| file.ino());
        Ok(namespace(&pid.to_string())? == namespace("self")?)
    }
}

/// Returns the peer of a connected socket.
///
/// # Errors
/// The kernel's.
pub fn peer(socket: &impl AsFd) -> io::Result<Peer> {
    // Not by rustix, whose pid type cannot hold the 0.
    let credentials = getsockopt(socket, PeerCredentials)?;
    Ok(Peer { user: credentials.uid(), pid: Some(credentials.pid()).filter(|pid| *pid != 0) })
}
