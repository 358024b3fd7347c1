//! Stream of frames made in the kernel, each with a sequence number, a timestamp and a valid UDP checksum.
//!
//! Like [`super::LiveGen`], uses BPF_PROG_TEST_RUN with live frames; the program (`xdp/stream.bpf.c`) writes the fields
//! that differ from frame to frame. Needs Linux 5.18.

use super::Error;
use super::load::{chain, loader};
use super::test_run::TestRun;
use aya::Ebpf;
use aya::maps::{Array, MapData, MapError};
use aya::programs::{ProgramError, Xdp};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../xdp/stream.bpf.o");

/// Bytes at the start of a frame that may be other than zero.
const HEAD: usize = 88;
/// Frame lengths in bytes, as in [`super::LiveGen`].
const LENGTHS: std::ops::RangeInclusive<usize> = 60..=3072;
/// Units of the program's times per nanosecond.
const FINE: f64 = 256.0;
/// Runs of the program per system call, at the beginning and at most. The kernel takes about 20 ms to set up and tear
/// down a call and sends nothing meanwhile.
const CHUNK: std::ops::RangeInclusive<u64> = 1 << 16..=1 << 24;
/// Target duration of a system call, and so the longest time until a stop takes effect.
const CALL: Duration = Duration::from_secs(1);
/// Number of frames that the kernel makes at once: a NAPI poll's worth; fewer for a paced stream, as each frame waits
/// for the last.
const BATCH: [u32; 2] = [64, 8];
// linux/bpf.h
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;

/// `struct order` of `xdp/stream.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawOrder {
    limit: u64,
    gap: u64,
    catch_up: u64,
    frames: u32,
    at: u32,
    stream: u32,
    longest: u32,
    stop: u64,
}

/// `struct state` of `xdp/stream.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawState {
    sequence: u64,
    due: u64,
    behind: u64,
    first: u64,
    last: u64,
    next: u64,
}

/// First bytes of a frame: `struct head` of `xdp/stream.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LiveHead {
    /// Headers and other constant bytes; the frame continues with zeros.
    pub bytes: [u8; HEAD],
    /// Length of the frame in bytes without FCS, 60 to 3,072.
    pub len: u32,
    /// Unfolded sum of the UDP checksum, without stream, sequence number and time.
    pub sum: u32,
}

// SAFETY: repr(C), integers only, no padding.
unsafe impl aya::Pod for RawOrder {}
// SAFETY: as above.
unsafe impl aya::Pod for RawState {}
// SAFETY: as above.
unsafe impl aya::Pod for LiveHead {}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct LiveOrder {
    /// Stream number.
    pub stream: u16,
    /// Rate in frames per second; `None` for as many as possible.
    pub pps: Option<f64>,
    /// Late frames are made up for, up to the number due in this time.
    pub catch_up: Duration,
    /// Maximum number of frames to send.
    pub frames: u64,
    /// Longest time to send.
    pub time: Duration,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveSent {
    /// Frames made, including those that the device did not take.
    pub frames: u64,
    /// Time from the first to the last frame, in nanoseconds.
    pub time: u64,
    /// Delay that was not made up for, in nanoseconds.
    pub behind: u64,
}

/// Sends a stream out of an interface. Belongs to one thread in the interface's network namespace: the kernel looks up
/// the interface in each call.
pub struct LiveStream {
    interface: String,
    index: u32,
    page: Vec<u8>,
    heads: u32,
    /// Offset of the UDP checksum.
    at: u32,
    program: Ebpf,
}

impl LiveStream {
    /// Creates a stream of these frames in turn. The UDP checksum occupies the two bytes before `at`; the stream (2
    /// bytes), sequence number (4) and time (8) start 4 bytes after `at`.
    ///
    /// # Errors
    /// [`Error::Generator`] for frames of invalid length, or with the kernel's reasons.
    pub fn new(interface: &str, heads: &[LiveHead], at: usize) -> Result<Self, Error> {
        let failed = |reason: String| Error::Generator { interface: interface.into(), reason };
        let index = super::LinkInfo::query(interface)?.index;
        if let Some(wrong) = heads.iter().find(|head| !LENGTHS.contains(&(head.len as usize))) {
            let (low, high) = (LENGTHS.start(), LENGTHS.end());
            return Err(failed(format!("invalid frame length {}: must be {low} to {high} bytes", wrong.len)));
        }
        let longest = heads.iter().map(|head| head.len).max().ok_or_else(|| failed("no frames given".into()))?;
        let mut ebpf =
            loader().map_max_entries("heads", heads.len() as u32).load(OBJECT).map_err(|e| failed(chain(&e)))?;
        {
            let mut map = array::<LiveHead>(&mut ebpf, "heads").map_err(failed)?;
            for (i, head) in heads.iter().enumerate() {
                map.set(i as u32, *head, 0).map_err(|e| failed(chain(&e)))?;
            }
        }
        let xdp: &mut Xdp = ebpf
            .program_mut("stream")
            .ok_or_else(|| failed("the object has no program `stream`".into()))?
            .try_into()
            .map_err(|e: ProgramError| failed(chain(&e)))?;
        xdp.load().map_err(|e| failed(chain(&e)))?;
        let page = vec![0; longest as usize];
        Ok(Self {
            interface: interface.into(),
            index,
            page,
            heads: heads.len() as u32,
            at: (at as u32).saturating_sub(2),
            program: ebpf,
        })
    }

    /// Sends until all frames are sent, the time is over or `stop` is set, which takes effect within a second.
    ///
    /// # Errors
    /// [`Error::Generator`] with the kernel's reason.
    pub fn send(&mut self, order: &LiveOrder, stop: &AtomicBool) -> Result<LiveSent, Error> {
        let interface = self.interface.clone();
        let failed = |reason: String| Error::Generator { interface: interface.clone(), reason };
        let raw = RawOrder {
            limit: order.frames,
            gap: order.pps.map_or(0, |pps| (1e9 * FINE / pps).round() as u64),
            catch_up: (order.catch_up.as_nanos() as f64 * FINE) as u64,
            frames: self.heads,
            at: self.at,
            stream: order.stream.into(),
            longest: self.page.len() as u32,
            stop: 0,
        };
        let set = |map: &mut Array<&mut MapData, RawOrder>| map.set(0, raw, 0).map_err(|e| chain(&e));
        array(&mut self.program, "order").and_then(|mut map| set(&mut map)).map_err(failed)?;
        let set = |map: &mut Array<&mut MapData, RawState>| map.set(0, RawState::default(), 0).map_err(|e| chain(&e));
        array(&mut self.program, "state").and_then(|mut map| set(&mut map)).map_err(failed)?;
        let (start, mut n) = (Instant::now(), *CHUNK.start());
        loop {
            let began = Instant::now();
            self.call(n as u32, BATCH[usize::from(order.pps.is_some())]).map_err(|e| failed(e.to_string()))?;
            let state = self.state().map_err(failed)?;
            let left = order.time.saturating_sub(start.elapsed());
            if state.sequence >= order.frames || left.is_zero() || stop.load(Ordering::Relaxed) {
                let time = state.last - state.first;
                return Ok(LiveSent { frames: state.sequence, time, behind: (state.behind as f64 / FINE) as u64 });
            }
            let rate = n as f64 / began.elapsed().as_secs_f64();
            n = (rate * left.min(CALL).as_secs_f64()) as u64;
            n = n.clamp(*CHUNK.start(), *CHUNK.end());
            if order.pps.is_none() {
                n = n.min(order.frames - state.sequence);
            }
        }
    }

    fn state(&mut self) -> Result<RawState, String> {
        array(&mut self.program, "state")?.get(&0, 0).map_err(|e| chain(&e))
    }

    fn call(&self, runs: u32, batch: u32) -> io::Result<()> {
        let program: &Xdp =
            self.program.program("stream").and_then(|p| p.try_into().ok()).ok_or(io::ErrorKind::NotFound)?;
        let fd = program.fd().map_err(io::Error::other)?;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex.
        let context = [0, self.page.len() as u32, 0, self.index];
        let run = TestRun {
            program: fd.as_fd(),
            data: &self.page,
            context: &context,
            repeat: runs,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: batch,
        };
        run.run().map(drop)
    }
}

fn array<'a, T: aya::Pod>(ebpf: &'a mut Ebpf, name: &str) -> Result<Array<&'a mut MapData, T>, String> {
    let map = ebpf.map_mut(name).ok_or_else(|| format!("the object has no map `{name}`"))?;
    map.try_into().map_err(|e: MapError| chain(&e))
}
