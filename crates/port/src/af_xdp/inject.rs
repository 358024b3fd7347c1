//! Handing the kernel a packet that user space has taken, as if its interface had just received it.
//!
//! A program of the traffic-control kind, never attached, is run over the packet (BPF_PROG_TEST_RUN) and redirects a
//! copy into the interface (`bpf_clone_redirect`). The kernel then does all it would have done: forwarding, netfilter,
//! ICMP errors. It takes microseconds; live frames of an XDP program would do the same, but setting a run of them up
//! takes the kernel 20 ms.

use super::Error;
use super::test_run::TestRun;
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};
use std::io;
use std::os::fd::AsFd;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../xdp/inject.bpf.o");

/// Words of `struct __sk_buff` up to the end of `cb`.
const CONTEXT: usize = 17;
/// Word of `cb[0]`.
const CB: usize = 12;

/// Hands packets to the kernel.
///
/// # Thread-safety
/// One owner, in the interfaces' network namespace: the kernel looks the interface up in each call.
pub struct Injector {
    program: Ebpf,
    frame: Vec<u8>,
}

impl Injector {
    /// Loads the program. Needs CAP_NET_ADMIN and CAP_BPF, and kernel 5.2 or newer.
    ///
    /// # Errors
    /// [`Error::Injector`] with the kernel's reason.
    pub fn new() -> Result<Self, Error> {
        let failed = |reason: &dyn std::error::Error| Error::Injector(super::program::chain(reason));
        let mut program = EbpfLoader::new().load(OBJECT).map_err(|e| failed(&e))?;
        let classifier: &mut SchedClassifier = program
            .program_mut("inject")
            .ok_or_else(|| Error::Injector("the object has no program `inject`".into()))?
            .try_into()
            .map_err(|e: aya::programs::ProgramError| failed(&e))?;
        classifier.load().map_err(|e| failed(&e))?;
        Ok(Self { program, frame: Vec::new() })
    }

    /// The kernel receives `frame`, an Ethernet frame without FCS, on the interface of this index. Its source address
    /// is overwritten with its destination, the interface's own: by that a generic XDP program there, which meets the
    /// frame again, knows to pass it.
    ///
    /// # Errors
    /// The kernel's: EINVAL for a frame longer than a page has room for, or an interface that is not there; ENOBUFS when
    /// its backlog is full.
    pub fn inject(&mut self, ifindex: u32, frame: &[u8]) -> io::Result<()> {
        let program: &SchedClassifier = self
            .program
            .program("inject")
            .and_then(|p| p.try_into().ok())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let fd = program.fd().map_err(io::Error::other)?;
        self.frame.clear();
        self.frame.extend_from_slice(frame);
        if let Some((to, from)) = self.frame.first_chunk_mut::<12>().map(|macs| macs.split_at_mut(6)) {
            from.copy_from_slice(to);
        }
        let mut context = [0; CONTEXT];
        context[CB] = ifindex;
        let run =
            TestRun { program: fd.as_fd(), data: &self.frame, context: &context, repeat: 1, flags: 0, batch_size: 0 };
        match run.run()? as i32 {
            0 => Ok(()),
            // NET_RX_DROP
            1 => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            errno => Err(io::Error::from_raw_os_error(errno.saturating_abs())),
        }
    }
}
