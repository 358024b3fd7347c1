//! Giving the kernel frames in batches: to be sent by an interface, or as if the interface had received them.
//!
//! A program of the traffic-control kind (`xdp/inject.bpf.c`), never attached, is run over the batch (BPF_PROG_TEST_RUN),
//! which lies in memory shared with it, and redirects a copy of each frame into the interface (`bpf_clone_redirect`). The
//! kernel then does all it would have done: forwarding, netfilter and ICMP errors for what is received, queueing
//! disciplines for what is sent. A call takes 2 us and a frame 0.6; live frames of an XDP program would be received only
//! by a veth whose peer polls, and setting a run of them up takes the kernel 20 ms.

use super::Error;
use super::socket::Mapped;
use super::test_run::TestRun;
use aya::maps::Map;
use aya::programs::SchedClassifier;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../xdp/inject.bpf.o");

// xdp/inject.h
const FRAMES: usize = 256;
const BYTES: usize = 262144;
const LONGEST: usize = 16384;

/// Bytes of the packet that the run begins with: the shortest frame.
const FIRST: usize = 60;
/// Where the EtherType stands in a frame.
const ETHERTYPE: std::ops::Range<usize> = 12..14;
/// linux/bpf.h
const BPF_F_INGRESS: u32 = 1;
/// linux/netdevice.h, and NET_RX_DROP the same: a queue of the kernel's is full.
const NET_XMIT_DROP: i32 = 1;

/// `struct inject_frame`.
#[repr(C)]
struct RawFrame {
    at: u32,
    len: u32,
    result: i32,
    reserved: u32,
}

/// `struct inject_batch`.
#[repr(C)]
struct RawBatch {
    count: u32,
    ifindex: u32,
    flags: u32,
    reserved: u32,
    frames: [RawFrame; FRAMES],
    data: [u8; BYTES],
}

/// What an interface does with the frames of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It sends them.
    Send,
    /// It has received them.
    Receive,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Frames the kernel took.
    pub frames: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Frames it did not take. They are lost.
    pub refused: u64,
    /// Why not, of the last of these: ENOBUFS where a queue was full, EINVAL where there is no such interface in this
    /// network namespace, ENETDOWN where it is down.
    pub error: Option<Errno>,
}

/// Gives frames to the kernel, up to 256 by one system call.
///
/// # Thread-safety
/// One owner, in the interfaces' network namespace: the kernel looks the interface up in each call.
pub struct Injector {
    program: OwnedFd,
    batch: NonNull<RawBatch>,
    /// Unmaps `batch`.
    _map: Mapped,
    count: usize,
    /// Where the next frame goes in the batch's data.
    at: usize,
    first: [u8; FIRST],
}

// SAFETY: the mapping is the injector's alone, and no more bound to a thread than a vector's memory.
unsafe impl Send for Injector {}

impl Injector {
    /// Loads the program. Needs CAP_NET_ADMIN and CAP_BPF, and kernel 5.5 or newer.
    ///
    /// # Errors
    /// [`Error::Injector`] with the kernel's reason.
    pub fn new() -> Result<Self, Error> {
        let failed = |reason: &dyn std::error::Error| Error::Injector(super::program::chain(reason));
        let mut object = super::program::loader().load(OBJECT).map_err(|e| failed(&e))?;
        let classifier: &mut SchedClassifier = object
            .program_mut("inject")
            .ok_or_else(|| Error::Injector("the object has no program `inject`".into()))?
            .try_into()
            .map_err(|e: aya::programs::ProgramError| failed(&e))?;
        classifier.load().map_err(|e| failed(&e))?;
        let program = classifier.fd().map_err(|e| failed(&e))?.as_fd().try_clone_to_owned().map_err(|e| failed(&e))?;
        let Some(Map::Array(data)) = object.map("batch") else {
            return Err(Error::Injector("the object has no map `batch`".into()));
        };
        let (batch, map) = map_batch(data.fd().as_fd()).map_err(|e| failed(&io::Error::from(e)))?;
        Ok(Self { program, batch, _map: map, count: 0, at: 0, first: [0; FIRST] })
    }

    /// Frames in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the batch has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether another frame of any length has room in the batch.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.count < FRAMES && self.at <= BYTES - LONGEST
    }

    /// Copies an Ethernet frame without FCS into the batch. False, and nothing done, when it is longer than 16,384 bytes, or
    /// the batch is full.
    #[inline]
    pub fn push(&mut self, frame: &[u8]) -> bool {
        if !self.has_room() || frame.len() > LONGEST {
            return false;
        }
        if self.count == 0
            && let Some(ethertype) = frame.get(ETHERTYPE)
        {
            // The kernel's idea of every packet's protocol in this batch, where a queueing discipline asks.
            self.first[ETHERTYPE].copy_from_slice(ethertype);
        }
        let (batch, at) = (self.batch.as_ptr(), self.at);
        // SAFETY: a frame and its slot, both inside of the mapping: count < FRAMES, and `at` leaves LONGEST bytes. Nobody
        // else uses it now: the program runs in `flush` only, and other objects have maps of their own.
        unsafe {
            (&raw mut (*batch).data).cast::<u8>().add(at).copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            let slot = RawFrame { at: at as u32, len: frame.len() as u32, result: 0, reserved: 0 };
            (&raw mut (*batch).frames).cast::<RawFrame>().add(self.count).write(slot);
        }
        self.count += 1;
        self.at = (at + frame.len()).next_multiple_of(64);
        true
    }

    /// Gives the batch to the interface of this index, in order; it is empty then.
    pub fn flush(&mut self, ifindex: u32, way: Way) -> Injected {
        let count = std::mem::take(&mut self.count);
        self.at = 0;
        if count == 0 {
            return Injected::default();
        }
        let flags = if way == Way::Send { 0 } else { BPF_F_INGRESS };
        let batch = self.batch.as_ptr();
        // SAFETY: inside of the mapping, and the program does not run yet.
        unsafe {
            (&raw mut (*batch).count).write(count as u32);
            (&raw mut (*batch).ifindex).write(ifindex);
            (&raw mut (*batch).flags).write(flags);
        }
        let run = TestRun {
            program: self.program.as_fd(),
            data: &self.first,
            context: &[],
            // Softirqs are off during each.
            repeat: 1,
            flags: 0,
            batch_size: 0,
        };
        let ran = run.run();
        // SAFETY: the program has run; until the next push or flush the batch is only read.
        let frames = unsafe { &(&(*batch).frames)[..count] };
        let failed = ran.as_ref().err().map(|e| Errno::from_io_error(e).unwrap_or(Errno::IO));
        let mut done = Injected { frames: count as u64, ..Injected::default() };
        done.bytes = frames.iter().map(|f| u64::from(f.len)).sum();
        if matches!(ran, Ok(0)) {
            return done;
        }
        for frame in frames.iter().filter(|f| failed.is_some() || f.result != 0) {
            done.frames -= 1;
            done.bytes -= u64::from(frame.len);
            done.refused += 1;
            done.error = failed.or_else(|| Some(errno(frame.result)));
        }
        done
    }

    /// The kernel receives `frame`, an Ethernet frame without FCS, on the interface of this index. Its source address
    /// is overwritten with its destination, the interface's own: by that a generic XDP program there, which meets the
    /// frame again, knows to pass it.
    ///
    /// # Errors
    /// The kernel's, as in [`Injected::error`]; EINVAL also for a frame without a whole Ethernet header.
    pub fn inject(&mut self, ifindex: u32, frame: &[u8]) -> io::Result<()> {
        debug_assert!(self.is_empty(), "a batch is being made");
        if !self.push(frame) {
            return Err(Errno::INVAL.into());
        }
        if let Some(to) = frame.first_chunk::<6>().filter(|_| frame.len() >= 12) {
            // SAFETY: the first frame of the batch lies at the data's start, with both addresses.
            unsafe {
                (&raw mut (*self.batch.as_ptr()).data).cast::<u8>().add(6).copy_from_nonoverlapping(to.as_ptr(), 6)
            };
        }
        self.flush(ifindex, Way::Receive).error.map_or(Ok(()), |errno| Err(errno.into()))
    }
}

fn errno(result: i32) -> Errno {
    match result {
        -4095..=-1 => Errno::from_raw_os_error(-result),
        NET_XMIT_DROP => Errno::NOBUFS,
        _ => Errno::IO,
    }
}

/// Maps the one value of the program's map.
fn map_batch(map: BorrowedFd<'_>) -> rustix::io::Result<(NonNull<RawBatch>, Mapped)> {
    let (len, prot) = (size_of::<RawBatch>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, map, 0) }?;
    let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
    Ok((base.cast(), Mapped { base, len }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_programs() {
        const HEADER: &str = include_str!("../../../../xdp/inject.h");
        for (name, value) in [("FRAMES", FRAMES), ("BYTES", BYTES), ("LONGEST", LONGEST)] {
            assert!(HEADER.contains(&format!("#define INJECT_{name} {value}\n")), "{name}");
        }
        assert_eq!((size_of::<RawFrame>(), size_of::<RawBatch>()), (16, 16 + FRAMES * 16 + BYTES));
    }
}
