//! Runs of the built-in programs over frames that nobody has received.

use super::test_run::TestRun;
use super::{Error, XdpDatapath};
use std::os::fd::{AsFd, BorrowedFd};

// linux/bpf.h, linux/pkt_cls.h
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_REDIRECT: i32 = 7;

/// Result of [`XdpDatapath::try_frame`] or [`XdpDatapath::try_skb`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Verdict of the program, as an XDP action (linux/bpf.h); traffic-control verdicts are translated.
    pub verdict: u32,
    /// Frame after the program ran.
    pub bytes: Vec<u8>,
    /// Run time of the program in nanoseconds, with cold caches as after any system call.
    pub nanoseconds: u32,
}

impl Tried {
    /// Returns whether the frame is redirected to another port or to a socket; the counters say which.
    pub fn redirected(&self) -> bool {
        self.verdict == XDP_REDIRECT
    }

    /// Returns whether the frame is passed to the kernel.
    pub fn passed(&self) -> bool {
        self.verdict == XDP_PASS
    }
}

impl XdpDatapath {
    /// Runs the program on a frame as if queue 0 of the interface had just received it; nothing is sent. The interface
    /// must be in the calling thread's network namespace, up, and have the program attached.
    ///
    /// # Errors
    /// [`Error::TestRun`] with the kernel's reason, for instance for a frame of less than 14 bytes.
    pub fn try_frame(&self, ifindex: u32, frame: &[u8]) -> Result<Tried, Error> {
        // struct xdp_md.
        try_program(self.lock().xdp.as_fd(), frame, &[0, frame.len() as u32, 0, ifindex, 0, 0])
    }

    /// Runs the traffic-control program on a frame given as a linear skb; otherwise like [`XdpDatapath::try_frame`].
    ///
    /// # Errors
    /// Errors of [`XdpDatapath::try_frame`]; also for an unknown verdict of the program.
    pub fn try_skb(&self, ifindex: u32, frame: &[u8]) -> Result<Tried, Error> {
        let mut inner = self.lock();
        let program = inner.tc().map_err(Error::TestRun)?;
        // struct __sk_buff, up to its ifindex.
        let mut context = [0; 11];
        context[10] = ifindex;
        let mut tried = try_program(program, frame, &context)?;
        tried.verdict = match tried.verdict as i32 {
            TC_ACT_UNSPEC => XDP_PASS,
            TC_ACT_REDIRECT => XDP_REDIRECT,
            other => return Err(Error::TestRun(format!("unknown verdict {other} of the traffic-control program"))),
        };
        Ok(tried)
    }
}

fn try_program(program: BorrowedFd<'_>, data: &[u8], context: &[u32]) -> Result<Tried, Error> {
    let run = TestRun { program, data, context, repeat: 1, flags: 0, batch_size: 0 };
    let mut bytes = vec![0; data.len() + 256];
    let ran = run.run_into(&mut bytes).map_err(|e| Error::TestRun(e.to_string()))?;
    bytes.truncate(ran.bytes);
    Ok(Tried { verdict: ran.verdict, bytes, nanoseconds: ran.nanoseconds })
}
