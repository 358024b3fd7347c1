//! Identity of a thread's network namespace.

use serde::Serialize;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Identity of a network namespace, unique while the namespace exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Identity {
    /// Device number of the nsfs file system.
    pub device: u64,
    /// Inode number, as shown by `ls -l /proc/self/ns/net`.
    pub inode: u64,
}

/// Returns the identity of the calling thread's network namespace.
///
/// # Errors
/// If /proc is not mounted.
pub fn identity() -> io::Result<Identity> {
    let metadata = fs::metadata("/proc/thread-self/ns/net")?;
    Ok(Identity { device: metadata.dev(), inode: metadata.ino() })
}
