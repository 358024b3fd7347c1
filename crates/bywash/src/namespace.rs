//! The network namespace of a running instance: the kernel state that the instance follows is that of its namespace.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;

/// Returns the process that listens at the other end if it is in another network namespace than this one; `None` also
/// if that cannot be seen.
pub fn elsewhere(stream: &UnixStream) -> Option<i32> {
    let pid = rustix::net::sockopt::socket_peercred(stream).ok()?.pid.as_raw_nonzero().get();
    let namespace = |process: &str| std::fs::metadata(format!("/proc/{process}/ns/net")).map(|file| file.ino());
    (namespace(&pid.to_string()).ok()? != namespace("self").ok()?).then_some(pid)
}
