//! Acts on files and sockets, of the broker or of a process without one.

use super::lock::NameLock;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::fs::{File, symlink_metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

fn address(name: &Path) -> io::Result<SocketAddrUnix> {
    Ok(match name.as_os_str().as_encoded_bytes() {
        [b'@', abstract_name @ ..] => SocketAddrUnix::new_abstract_name(abstract_name)?,
        _ => SocketAddrUnix::new(name)?,
    })
}

fn unnamed(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

pub(super) fn connected(name: &Path, within: Option<Duration>) -> io::Result<OwnedFd> {
    let socket = unnamed(if within.is_some() { SocketFlags::empty() } else { SocketFlags::NONBLOCK })?;
    if within.is_some() {
        // Holds for connect(2), too.
        set_socket_timeout(&socket, Timeout::Send, within)?;
    }
    rustix::net::connect(&socket, &address(name)?)?;
    Ok(socket)
}

pub(super) fn listening(name: &Path) -> io::Result<OwnedFd> {
    let (socket, address) = (unnamed(SocketFlags::NONBLOCK)?, address(name)?);
    if !name.as_os_str().as_encoded_bytes().starts_with(b"@") {
        if let Ok(there) = symlink_metadata(name) {
            // Connecting to it would be refused, too.
            if !there.file_type().is_socket() {
                return Err(io::Error::other("there is a file that is not a socket: move it, or give another socket"));
            }
            if rustix::net::connect(unnamed(SocketFlags::NONBLOCK)?, &address) != Err(Errno::CONNREFUSED) {
                return Err(Errno::ADDRINUSE.into());
            }
            std::fs::remove_file(name)?;
        }
        // Set before bind, which creates the path with this mode, less the umask.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 8)?;
    Ok(socket)
}

/// Connects to a socket at exactly this path, without following a link there.
pub(super) fn connected_at(path: &Path, within: Option<Duration>) -> io::Result<OwnedFd> {
    if path.as_os_str().as_encoded_bytes().starts_with(b"@") {
        return connected(path, within);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = openat(CWD, path, flags, Mode::empty())?;
    let stat = fstat(&place)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Errno::CONNREFUSED.into());
    }
    connected(Path::new(&format!("/proc/self/fd/{}", place.as_raw_fd())), within)
}

/// Opens a file at exactly this path for reading.
pub(super) fn opened(path: &Path) -> io::Result<File> {
    opened_with(path, OFlags::RDONLY)
}

/// Creates or empties a file at exactly this path, and opens it for writing.
pub(super) fn created(path: &Path) -> io::Result<File> {
    let file = opened_with(path, OFlags::WRONLY | OFlags::CREATE)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a file that is neither a link nor a directory. Does not wait for the other end of a FIFO.
fn opened_with(path: &Path, flags: OFlags) -> io::Result<File> {
    let never = OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags | never, Mode::from_raw_mode(0o666))?);
    if file.metadata()?.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Opens the device that makes TAP interfaces, without waiting in reads.
pub(super) fn tun() -> io::Result<OwnedFd> {
    Ok(openat(CWD, "/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

/// Removes the socket at a path if it is the one with this device and inode, or if none are given.
pub(super) fn removed(path: &Path, identity: Option<(u64, u64)>) -> io::Result<()> {
    let there = symlink_metadata(path)?;
    if !there.file_type().is_socket() || identity.is_some_and(|own| own != (there.dev(), there.ino())) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "another file has that name"));
    }
    std::fs::remove_file(path)
}

/// Renames a socket, also if another one has the new name, while the new name is locked.
pub(super) fn renamed(from: &Path, to: &Path) -> io::Result<()> {
    let _lock = NameLock::take(to)?;
    let is_socket = |path: &Path| symlink_metadata(path).map(|there| there.file_type().is_socket());
    if !is_socket(from)? || is_socket(to).is_ok_and(|socket| !socket) {
        return Err(io::Error::other("only sockets are renamed, and nothing else is replaced"));
    }
    std::fs::rename(from, to)
}
