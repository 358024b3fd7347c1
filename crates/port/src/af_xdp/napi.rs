//! NAPI settings of an interface that busy polling needs, in the sysfs of its network namespace.
//!
//! `/sys` shows the network namespace it was mounted in. A thread in another namespace mounts a sysfs of its own, which
//! is not attached anywhere and is unmounted with its descriptor.

use rustix::fs::{Mode, OFlags, openat};
use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Number of empty polls for which a device's interrupts stay off (Linux 5.11; one value per device).
pub const DEFER: &str = "napi_defer_hard_irqs";
/// Nanoseconds after which the kernel polls a device whose interrupts are off.
pub const FLUSH: &str = "gro_flush_timeout";

// linux/mount.h
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;

/// Reads a setting.
pub fn get(interface: &str, name: &str) -> io::Result<u64> {
    let mut text = String::new();
    open(interface, name, OFlags::RDONLY)?.read_to_string(&mut text)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("`{}` is not a number", text.trim())))
}

/// Changes a setting.
pub fn set(interface: &str, name: &str, value: u64) -> io::Result<()> {
    open(interface, name, OFlags::WRONLY)?.write_all(value.to_string().as_bytes())
}

fn open(interface: &str, name: &str, flags: OFlags) -> io::Result<std::fs::File> {
    if interface.is_empty() || interface.contains('/') || interface.starts_with('.') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let path = format!("class/net/{interface}/{name}");
    let file = match mount() {
        Ok(root) => openat(&root, &path, flags | OFlags::CLOEXEC, Mode::empty()),
        // Without CAP_SYS_ADMIN: `/sys` shows the right namespace unless someone changed the mount.
        Err(_) => openat(rustix::fs::CWD, format!("/sys/{path}"), flags | OFlags::CLOEXEC, Mode::empty()),
    };
    match file {
        Err(rustix::io::Errno::NOENT) if get_index(interface).is_none() => {
            Err(io::Error::from_raw_os_error(libc::ENODEV))
        }
        file => Ok(file?.into()),
    }
}

fn get_index(interface: &str) -> Option<u32> {
    super::LinkInfo::query(interface).ok().map(|link| link.index)
}

/// Mounts a sysfs of the calling thread's network namespace.
fn mount() -> io::Result<OwnedFd> {
    let made = |rc: libc::c_long| match rc {
        0.. => Ok(rc as i32),
        _ => Err(io::Error::last_os_error()),
    };
    const NAME: &CStr = c"sysfs";
    // SAFETY: fsopen(2) with a string that outlives the call; the descriptor it returns is owned from here on.
    let context = unsafe {
        let fd = libc::syscall(libc::SYS_fsopen, NAME.as_ptr(), FSOPEN_CLOEXEC);
        OwnedFd::from_raw_fd(made(fd)?)
    };
    let fd = context.as_raw_fd();
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: fsconfig(2) with a command that has neither key nor value, and fsmount(2), on the context above.
    unsafe {
        made(libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0))?;
        Ok(OwnedFd::from_raw_fd(made(libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, 0))?))
    }
}
