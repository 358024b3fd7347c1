//! Settings of an interface's NAPI that busy polling needs, in the sysfs of its network namespace.
//!
//! `/sys` shows the network namespace it was mounted in. A thread in another one mounts a sysfs of its own, which is
//! attached nowhere and goes with its descriptor.

use rustix::fs::{Mode, OFlags, openat};
use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// How often a device's interrupts stay off although a poll found nothing (Linux 5.11 and older, for each device).
pub const DEFER: &str = "napi_defer_hard_irqs";
/// Nanoseconds after which the device is polled by the kernel although its interrupts are off.
pub const FLUSH: &str = "gro_flush_timeout";

// linux/mount.h
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;

/// Reads a setting.
pub fn get(interface: &str, name: &str) -> io::Result<u64> {
    let mut text = String::new();
    open(interface, name, OFlags::RDONLY)?.read_to_string(&mut text)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("`{}` is no number", text.trim())))
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
        // Without CAP_SYS_ADMIN: what `/sys` is, is the namespace's own unless somebody changed that.
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

/// A sysfs of the thread's network namespace.
fn mount() -> io::Result<OwnedFd> {
    let made = |rc: libc::c_long| match rc {
        0.. => Ok(rc as i32),
        _ => Err(io::Error::last_os_error()),
    };
    const NAME: &CStr = c"sysfs";
    // SAFETY: fsopen(2) with a string that outlives the call; the descriptor it gives is owned from here on.
    let context = unsafe {
        let fd = libc::syscall(libc::SYS_fsopen, NAME.as_ptr(), FSOPEN_CLOEXEC);
        OwnedFd::from_raw_fd(made(fd)?)
    };
    let fd = context.as_raw_fd();
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: fsconfig(2) with a command that has neither key nor value, and fsmount(2), of the context above.
    unsafe {
        made(libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0))?;
        Ok(OwnedFd::from_raw_fd(made(libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, 0))?))
    }
}
