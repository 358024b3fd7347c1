//! Batches of frames given to the kernel, to be sent by an interface or processed as if it had received them.
//!
//! A traffic-control program that is never attached (`xdp/inject.bpf.c`) is run over the batch (BPF_PROG_TEST_RUN). The
//! batch is in memory shared with the program, which redirects a copy of each frame into the interface
//! (`bpf_clone_redirect`). The kernel then does its usual work: forwarding, netfilter and ICMP errors for received
//! frames, queueing disciplines for sent ones. A call takes 2 us plus 0.6 us per frame. Live frames of an XDP program
//! would be received only by a veth whose peer polls, and the kernel takes 20 ms to set up a run of them.

use super::Error;
use super::load::{chain, loader, named, program_fd};
use super::objects::{Made, Make, Refused, make};
use super::socket::Mapped;
use super::test_run::TestRun;
use aya::maps::Map;
use aya::programs::SchedClassifier;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../xdp/inject.bpf.o");

// xdp/inject.h
const FRAMES: usize = 256;
const BYTES: usize = 262144;
const LONGEST: usize = 16384;

/// Length of the packet that the run starts with: the shortest frame.
const FIRST: usize = 60;
/// Position of the EtherType in a frame.
const ETHERTYPE: std::ops::Range<usize> = 12..14;
/// The bit of an Ethernet address's first byte that makes it a group address (IEEE 802).
const GROUP_BIT: u8 = 1;
/// linux/bpf.h
const BPF_F_INGRESS: u32 = 1;
/// linux/netdevice.h; NET_RX_DROP has the same value: a queue in the kernel is full.
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
    queue: u32,
    frames: [RawFrame; FRAMES],
    data: [u8; BYTES],
}

/// Direction in which an interface handles the frames of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The interface sends them.
    Send,
    /// The interface has received them.
    Receive,
}

/// Outcome of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Frames the kernel accepted.
    pub frames: u64,
    /// Bytes of the accepted frames.
    pub bytes: u64,
    /// Frames the kernel refused. They are lost.
    pub refused: u64,
    /// Error of the last refused frame: ENOBUFS if a queue was full, EINVAL if the interface does not exist in this
    /// network namespace, ENETDOWN if it is down.
    pub error: Option<Errno>,
}

/// Gives frames to the kernel, up to 256 per system call.
///
/// # Thread-safety
/// One owner, in the interfaces' network namespace: the kernel looks up the interface in each call.
pub struct Injector {
    program: OwnedFd,
    batch: NonNull<RawBatch>,
    /// Unmaps `batch`.
    _map: Mapped,
    count: usize,
    /// Offset of the next frame in the batch's data.
    at: usize,
    /// Number of the queue that sends, plus 1; 0 if the kernel chooses one by flow.
    queue: u32,
    first: [u8; FIRST],
}

// SAFETY: the mapping belongs to the injector alone and is no more bound to a thread than a vector's memory.
unsafe impl Send for Injector {}

impl Injector {
    /// Loads the program. Needs CAP_NET_ADMIN and CAP_BPF, and kernel 5.5 or newer.
    ///
    /// # Errors
    /// [`Error::Injector`] with the kernel's reason.
    pub fn new() -> Result<Self, Error> {
        let failed = |refused: Refused| Error::Injector(Error::from(refused).reason());
        let mut made = make(&Make::Injector).map_err(failed)?;
        let (program, data) = (made.take("inject"), made.take("batch"));
        let (program, data) = (program.map_err(Error::Injector)?, data.map_err(Error::Injector)?);
        let (batch, map) = map_batch(data.as_fd()).map_err(|e| Error::Injector(io::Error::from(e).to_string()))?;
        Ok(Self { program, batch, _map: map, count: 0, at: 0, queue: 0, first: [0; FIRST] })
    }

    /// Sends by this queue of the interface from now on, so that workers do not contend for one. The kernel chooses
    /// another if the interface has fewer.
    pub fn send_by(&mut self, queue: u32) {
        self.queue = queue + 1;
    }

    /// Returns the number of frames in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether the batch has room for another frame of any length.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.count < FRAMES && self.at <= BYTES - LONGEST
    }

    /// Copies an Ethernet frame without FCS into the batch. Returns false and does nothing if it is longer than 16,384
    /// bytes or the batch is full.
    #[inline]
    pub fn push(&mut self, frame: &[u8]) -> bool {
        if !self.has_room() || frame.len() > LONGEST {
            return false;
        }
        if self.count == 0
            && let Some(ethertype) = frame.get(ETHERTYPE)
        {
            // Queueing disciplines see this as the protocol of every packet in the batch.
            self.first[ETHERTYPE].copy_from_slice(ethertype);
        }
        let (batch, at) = (self.batch.as_ptr(), self.at);
        // SAFETY: a frame and its slot, both inside the mapping: count < FRAMES, and `at` leaves LONGEST bytes. Nothing
        // else uses the mapping now: the program runs in `flush` only, and other objects have maps of their own.
        unsafe {
            (&raw mut (*batch).data).cast::<u8>().add(at).copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            let slot = RawFrame { at: at as u32, len: frame.len() as u32, result: 0, reserved: 0 };
            (&raw mut (*batch).frames).cast::<RawFrame>().add(self.count).write(slot);
        }
        self.count += 1;
        self.at = (at + frame.len()).next_multiple_of(64);
        true
    }

    /// Gives the batch to the interface with this index, in order, and empties it.
    pub fn flush(&mut self, ifindex: u32, direction: Direction) -> Injected {
        let count = std::mem::take(&mut self.count);
        self.at = 0;
        if count == 0 {
            return Injected::default();
        }
        let flags = if direction == Direction::Send { 0 } else { BPF_F_INGRESS };
        let batch = self.batch.as_ptr();
        // SAFETY: inside of the mapping, and the program does not run yet.
        unsafe {
            (&raw mut (*batch).count).write(count as u32);
            (&raw mut (*batch).ifindex).write(ifindex);
            (&raw mut (*batch).flags).write(flags);
            (&raw mut (*batch).queue).write(if direction == Direction::Send { self.queue } else { 0 });
        }
        let run = TestRun {
            program: self.program.as_fd(),
            data: &self.first,
            context: &[],
            // More would run with softirqs disabled throughout.
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

    /// Has the kernel receive `frame`, an Ethernet frame without FCS, on the interface with this index. If `marked`,
    /// its source address is overwritten with its destination, the interface's own address, with the group bit set: a
    /// generic XDP program there, which sees the frame again, passes it because of that. A native one does not see it.
    /// A bridge that the interface has just joined drops such a frame, and learns no station from it.
    ///
    /// # Errors
    /// The kernel's error, as in [`Injected::error`]; EINVAL also for a frame without a complete Ethernet header.
    pub fn inject(&mut self, ifindex: u32, frame: &[u8], marked: bool) -> io::Result<()> {
        debug_assert!(self.is_empty(), "a batch is being made");
        if !self.push(frame) {
            return Err(Errno::INVAL.into());
        }
        if let Some(to) = frame.first_chunk::<6>().filter(|_| marked && frame.len() >= 12) {
            let mut mark = *to;
            mark[0] |= GROUP_BIT;
            // SAFETY: the first frame of the batch lies at the data's start, with both addresses.
            unsafe {
                (&raw mut (*self.batch.as_ptr()).data).cast::<u8>().add(6).copy_from_nonoverlapping(mark.as_ptr(), 6)
            };
        }
        self.flush(ifindex, Direction::Receive).error.map_or(Ok(()), |errno| Err(errno.into()))
    }
}

/// Makes the objects of an injector: the program `inject` and the map `batch`.
pub(super) fn load() -> Result<Made, String> {
    let mut object = loader().load(OBJECT).map_err(|e| chain(&e))?;
    named::<SchedClassifier>(&mut object, "inject")?.load().map_err(|e| chain(&e))?;
    let program = program_fd(&mut object, "inject")?.as_fd().try_clone_to_owned();
    let Some(Map::Array(data)) = object.map("batch") else {
        return Err("the object has no map `batch`".into());
    };
    let batch = data.fd().as_fd().try_clone_to_owned();
    let mut made = Made::default();
    for (name, fd) in [("inject", program), ("batch", batch)] {
        made.objects.insert(name.into(), fd.map_err(|e| e.to_string())?);
    }
    Ok(made)
}

fn errno(result: i32) -> Errno {
    match result {
        -4095..=-1 => Errno::from_raw_os_error(-result),
        NET_XMIT_DROP => Errno::NOBUFS,
        _ => Errno::IO,
    }
}

/// Maps the only value of the program's map.
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
        const HEADER: &str = include_str!("../../xdp/inject.h");
        for (name, value) in [("FRAMES", FRAMES), ("BYTES", BYTES), ("LONGEST", LONGEST)] {
            assert!(HEADER.contains(&format!("#define INJECT_{name} {value}\n")), "{name}");
        }
        assert_eq!((size_of::<RawFrame>(), size_of::<RawBatch>()), (16, 16 + FRAMES * 16 + BYTES));
    }
}
