//! Which network namespace a thread is in.

use serde::Serialize;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Identifies a network namespace while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Identity {
    /// Device of the nsfs file system.
    pub device: u64,
    /// Inode: the number that `ls -l /proc/self/ns/net` shows.
    pub inode: u64,
}

/// The calling thread's network namespace.
///
/// # Errors
/// When /proc is not mounted.
pub fn identity() -> io::Result<Identity> {
    let metadata = fs::metadata("/proc/thread-self/ns/net")?;
    Ok(Identity { device: metadata.dev(), inode: metadata.ino() })
}
