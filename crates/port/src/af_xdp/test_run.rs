//! BPF_PROG_TEST_RUN: running a program in the kernel over a given packet.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

// linux/bpf.h
const BPF_PROG_TEST_RUN: libc::c_long = 10;

/// The `test` member of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct Attr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

/// Parameters of a run.
pub(super) struct TestRun<'a> {
    pub program: BorrowedFd<'a>,
    /// The packet, with its Ethernet header.
    pub data: &'a [u8],
    /// `struct xdp_md` or `struct __sk_buff`, or the beginning of either; may be empty.
    pub context: &'a [u32],
    pub repeat: u32,
    pub flags: u32,
    pub batch_size: u32,
}

/// Result of a run.
pub(super) struct Ran {
    /// Return value of the program's last run.
    pub verdict: u32,
    /// Length of the packet after the last run, in bytes.
    pub bytes: usize,
    /// Mean time of a run, in nanoseconds.
    pub nanoseconds: u32,
}

impl TestRun<'_> {
    /// Runs the program; returns its verdict.
    pub fn run(&self) -> io::Result<u32> {
        self.run_into(&mut []).map(|ran| ran.verdict)
    }

    /// Runs the program and writes the packet into `out` unless that is empty.
    pub fn run_into(&self, out: &mut [u8]) -> io::Result<Ran> {
        let mut attr = Attr {
            prog_fd: self.program.as_raw_fd() as u32,
            data_in: self.data.as_ptr() as u64,
            data_size_in: self.data.len() as u32,
            data_out: if out.is_empty() { 0 } else { out.as_mut_ptr() as u64 },
            data_size_out: out.len() as u32,
            // The kernel refuses a pointer without a size.
            ctx_in: if self.context.is_empty() { 0 } else { self.context.as_ptr() as u64 },
            ctx_size_in: size_of_val(self.context) as u32,
            repeat: self.repeat,
            flags: self.flags,
            batch_size: self.batch_size,
            ..Attr::default()
        };
        loop {
            // SAFETY: bpf(2) with an attribute of its size. The memory it points to is borrowed for the call and only
            // read, except `out`, which is borrowed mutably.
            let rc = unsafe {
                libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size_of::<Attr>() as libc::c_uint)
            };
            if rc >= 0 {
                let (verdict, bytes) = (attr.retval, attr.data_size_out as usize);
                return Ok(Ran { verdict, bytes, nanoseconds: attr.duration });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}
