//! The network namespace of a running instance: the kernel state that the instance follows is that of its namespace.

use bywash_port::broker::peer;
use std::os::unix::net::UnixStream;

/// Returns the process that listens at the other end if it is in another network namespace than this one; `None` also
/// if that cannot be seen.
pub fn elsewhere(stream: &UnixStream) -> Option<i32> {
    let peer = peer(stream).ok()?;
    peer.pid.filter(|_| peer.shares_network().is_ok_and(|shares| !shares))
}
