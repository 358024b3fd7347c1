//! Attachment of a program to an interface by a bpf_link. The link is a file descriptor: it lasts as long as any
//! process has it open, it can be passed to another process, and its program can be replaced while traffic flows.

use super::map::info;
use aya_obj::generated::bpf_insn;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// linux/bpf.h
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const BPF_SK_LOOKUP: u32 = 36;
/// Maximum number of programs on one side of an interface (BPF_MPROG_MAX in the kernel).
const PROGRAMS: usize = 64;

/// Place where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// Native XDP, in the driver.
    XdpDriver,
    /// Generic XDP, on skbs before the network stack.
    XdpSkb,
    /// Ingress traffic control (tcx), after the programs already attached.
    Tcx,
}

/// Attachment of a program. Dropping it detaches the program unless another process holds the link too.
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
    /// Attaches a loaded program to the interface with this index in the calling thread's network namespace.
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
        // SAFETY: a descriptor the kernel has just returned, owned by no one else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Returns the kernel's id of the link.
    pub(super) fn id(&self) -> io::Result<u32> {
        // Type, id and program id of struct bpf_link_info.
        let [_, id, _] = info(self.0.as_fd())?;
        Ok(id)
    }

    /// Returns the index, in its own network namespace, of the interface to which the program is attached; 0 if the
    /// interface is gone.
    pub(super) fn ifindex(&self) -> io::Result<u32> {
        // The fourth word pads the header; XDP's and tcx's parts of the union begin with the index.
        let [_, _, _, _, ifindex] = info(self.0.as_fd())?;
        Ok(ifindex)
    }

    /// Replaces the attached program atomically by another loaded one of the same type: each frame is processed by one
    /// of the two.
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
        // SAFETY: bpf(2) with an attribute of its size, without pointers.
        let rc =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_UPDATE, &raw mut attr, size_of::<Attr>() as libc::c_uint) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Attaches a loaded program to a tracepoint of the kernel.
pub(super) fn attach_tracepoint(program: BorrowedFd<'_>, name: &CStr) -> io::Result<Attached> {
    /// `raw_tracepoint` of `union bpf_attr`.
    #[repr(C)]
    struct Attr {
        name: u64,
        prog_fd: u32,
        pad: u32,
    }
    let mut attr = Attr { name: name.as_ptr() as u64, prog_fd: program.as_raw_fd() as u32, pad: 0 };
    let size = size_of::<Attr>() as libc::c_uint;
    // SAFETY: bpf(2) with an attribute of its size, which points to a string that outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_RAW_TRACEPOINT_OPEN, &raw mut attr, size) };
    // SAFETY: a descriptor the kernel has just returned, owned by no one else.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Attached(unsafe { OwnedFd::from_raw_fd(fd as i32) })) }
}

/// Maximum number of bytes of the verifier's log that are read.
const LOG: usize = 4 << 20;

/// Loads an XDP program that takes frames in several buffers.
///
/// # Errors
/// The kernel's reason, with the verifier's log if there is one.
pub(super) fn load_xdp(instructions: &[bpf_insn], license: &CStr, name: &CStr) -> Result<OwnedFd, (io::Error, String)> {
    /// Fields of `union bpf_attr` for BPF_PROG_LOAD.
    #[repr(C)]
    struct Attr {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
    }
    let mut prog_name = [0; 16];
    prog_name.iter_mut().zip(name.to_bytes().iter().take(15)).for_each(|(to, from)| *to = *from);
    let load = |log: &mut [u8]| {
        let mut attr = Attr {
            prog_type: BPF_PROG_TYPE_XDP,
            insn_cnt: instructions.len() as u32,
            insns: instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            kern_version: 0,
            prog_flags: BPF_F_XDP_HAS_FRAGS,
            prog_name,
            prog_ifindex: 0,
            expected_attach_type: BPF_XDP,
        };
        let size = size_of::<Attr>() as libc::c_uint;
        // SAFETY: bpf(2) with an attribute of its size, which points to `insn_cnt` instructions, a string and
        // `log_size` octets that outlive the call.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw mut attr, size) };
        // SAFETY: a descriptor the kernel has just returned, owned by no one else.
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }) }
    };
    load(&mut []).or_else(|e| {
        let mut log = vec![0; LOG];
        load(&mut log).map_err(|_| {
            let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
            (e, String::from_utf8_lossy(text).into_owned())
        })
    })
}

/// Traffic-control program on an interface (tcx).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcxProgram {
    /// Program id, as shown by bpftool.
    pub id: u32,
    /// Id of the link it is attached by; 0 without one.
    pub link: u32,
    /// Set if it runs on ingress; otherwise on egress.
    pub ingress: bool,
}

/// Returns the tcx programs on the interface with this index in the calling thread's network namespace. Empty if the
/// kernel has no tcx (before Linux 6.6) or there is no such interface.
///
/// # Errors
/// If the kernel refuses the query, for instance without `CAP_NET_ADMIN`.
pub fn tcx_programs(ifindex: u32) -> io::Result<Vec<TcxProgram>> {
    let mut found = vec![];
    for (attach_type, ingress) in [(BPF_TCX_INGRESS, true), (BPF_TCX_EGRESS, false)] {
        let all = attached(ifindex, attach_type, true)?;
        found.extend(all.into_iter().map(|(id, link)| TcxProgram { id, link, ingress }));
    }
    Ok(found)
}

/// Returns the ids of the programs that choose the sockets of received packets (sk_lookup) in this network namespace.
/// Empty if the kernel has no such programs (before Linux 5.9).
///
/// # Errors
/// If the kernel refuses the query, for instance without `CAP_NET_ADMIN`.
pub fn sk_lookup_programs(netns: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let all = attached(netns.as_raw_fd() as u32, BPF_SK_LOOKUP, false)?;
    Ok(all.into_iter().map(|(id, _)| id).collect())
}

/// Returns the ids of the programs that are attached to an interface, or to another target by its descriptor, with the
/// ids of their links if these are asked for: kernels refuse the question where there are none. Empty if the target is
/// gone, or has no such programs.
fn attached(target: u32, attach_type: u32, ask_links: bool) -> io::Result<Vec<(u32, u32)>> {
    /// `query` of `union bpf_attr`.
    #[repr(C)]
    struct Attr {
        target: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        prog_ids: u64,
        count: u32,
        pad: u32,
        prog_attach_flags: u64,
        link_ids: u64,
        link_attach_flags: u64,
        revision: u64,
    }
    let (mut ids, mut links) = ([0u32; PROGRAMS], [0u32; PROGRAMS]);
    let mut attr = Attr {
        target,
        attach_type,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        count: PROGRAMS as u32,
        pad: 0,
        prog_attach_flags: 0,
        link_ids: if ask_links { links.as_mut_ptr() as u64 } else { 0 },
        link_attach_flags: 0,
        revision: 0,
    };
    let size = size_of::<Attr>() as libc::c_uint;
    // SAFETY: bpf(2) with an attribute of its size, which points to arrays of `count` numbers that outlive the call.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, &raw mut attr, size) };
    if rc < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENODEV | libc::ENOENT) => Ok(vec![]),
            _ => Err(error),
        };
    }
    Ok(ids.into_iter().zip(links).take(attr.count as usize).collect())
}
