//! Attaching a program to an interface by a bpf_link, which is a descriptor: it holds while anybody has it, it can be
//! handed to another process, and the program behind it can be replaced while frames come.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// linux/bpf.h
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// XDP in the driver.
    XdpDriver,
    /// XDP before the network stack.
    XdpSkb,
    /// Traffic control, behind the programs that are there (tcx).
    Tcx,
}

/// An attachment. Dropped, it goes, unless another process has it too.
#[derive(Debug)]
pub struct Attached(OwnedFd);

impl From<OwnedFd> for Attached {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Attached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Attached {
    /// Attaches a loaded program to the interface of this index in the calling thread's network namespace.
    pub(super) fn new(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> io::Result<Self> {
        /// `link_create` of `union bpf_attr`.
        #[repr(C)]
        struct Attr {
            prog_fd: u32,
            target_ifindex: u32,
            attach_type: u32,
            flags: u32,
            relative: u64,
            expected_revision: u64,
        }
        // XDP_FLAGS_*_MODE (linux/if_link.h)
        let (attach_type, flags) = match hook {
            Hook::XdpDriver => (BPF_XDP, 1 << 2),
            Hook::XdpSkb => (BPF_XDP, 1 << 1),
            Hook::Tcx => (BPF_TCX_INGRESS, 0),
        };
        let prog_fd = program.as_raw_fd() as u32;
        let mut attr = Attr { prog_fd, target_ifindex: ifindex, attach_type, flags, relative: 0, expected_revision: 0 };
        // SAFETY: bpf(2) with an attribute of its size, without pointers.
        let fd =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw mut attr, size_of::<Attr>() as libc::c_uint) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor the kernel has just given us.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Puts a loaded program of the same kind in the place of the one that is attached: each frame meets one of the two.
    pub(super) fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        /// `link_update` of `union bpf_attr`.
        #[repr(C)]
        struct Attr {
            link_fd: u32,
            new_prog_fd: u32,
            flags: u32,
            old_prog_fd: u32,
        }
        let mut attr = Attr {
            link_fd: self.0.as_raw_fd() as u32,
            new_prog_fd: program.as_raw_fd() as u32,
            flags: 0,
            old_prog_fd: 0,
        };
        // SAFETY: as above.
        let rc =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_UPDATE, &raw mut attr, size_of::<Attr>() as libc::c_uint) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
