//! BPF_PROG_TEST_RUN: having the kernel run a program over a packet of ours, for what the program does to the world.

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

/// A run to be made.
pub(super) struct TestRun<'a> {
    pub program: BorrowedFd<'a>,
    /// The packet, with its Ethernet header.
    pub data: &'a [u8],
    /// `struct xdp_md` or `struct __sk_buff`, or the beginning of it, or nothing.
    pub context: &'a [u32],
    pub repeat: u32,
    pub flags: u32,
    pub batch_size: u32,
}

/// What a run gave.
pub(super) struct Ran {
    /// What the program returned, the last time.
    pub verdict: u32,
    /// Bytes of the packet then.
    pub bytes: usize,
    /// Time of one run, the mean of all.
    pub nanoseconds: u32,
}

impl TestRun<'_> {
    /// Has it run; what the program returned.
    pub fn run(&self) -> io::Result<u32> {
        self.run_into(&mut []).map(|ran| ran.verdict)
    }

    /// Has it run, and the packet written into `out`, unless that is empty.
    pub fn run_into(&self, out: &mut [u8]) -> io::Result<Ran> {
        let mut attr = Attr {
            prog_fd: self.program.as_raw_fd() as u32,
            data_in: self.data.as_ptr() as u64,
            data_size_in: self.data.len() as u32,
            data_out: if out.is_empty() { 0 } else { out.as_mut_ptr() as u64 },
            data_size_out: out.len() as u32,
            // A pointer without a size is refused.
            ctx_in: if self.context.is_empty() { 0 } else { self.context.as_ptr() as u64 },
            ctx_size_in: size_of_val(self.context) as u32,
            repeat: self.repeat,
            flags: self.flags,
            batch_size: self.batch_size,
            ..Attr::default()
        };
        loop {
            // SAFETY: bpf(2) with an attribute of its size; what it points to is borrowed for the call, and only read but for
            // `out`, which is borrowed to be written.
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
