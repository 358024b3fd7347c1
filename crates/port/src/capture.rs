//! Copies of passing packets, from a worker to whoever writes them down.
//!
//! The worker's half is a [`Recorder`], the other a [`Records`]; between them is a ring of bytes. What does not fit is
//! lost to the capture, and counted; nobody waits for it.

use crate::pcap::{Filter, Matcher, wall_ns};
use crate::{Port, PortCounters, PortState};
use bywash_frame::{Arena, BATCH, Batch, Buffers, Frame};
use rtrb::{Consumer, Producer, RingBuffer};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Head of a record in the ring: time, length on the wire, bytes kept, port, what it was.
const HEAD: usize = 8 + 4 + 4 + 2 + 1;
/// Numbers in that last byte; from here on a drop's reason.
const RX: u8 = 0;
const TX: u8 = 1;
const DROP: u8 = 2;

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It was received.
    Received,
    /// It was sent.
    Sent,
    /// It was dropped; the number of the reason is the engine's.
    Dropped(u8),
}

/// Which packets are wanted. Ports are named by their numbers; those beyond a list are not wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Ports of which received packets are.
    pub received: Vec<bool>,
    /// Ports of which sent packets are.
    pub sent: Vec<bool>,
    /// Ports of which dropped packets are: those that came in by them.
    pub dropped: Vec<bool>,
    /// Reasons of such drops: a bit each.
    pub reasons: u64,
    /// Only packets that pass.
    pub filter: Option<Arc<Filter>>,
    /// Most bytes kept of a packet.
    pub snaplen: usize,
}

/// What was captured, and what should have been.
#[derive(Debug, Default)]
struct Counts {
    captured: AtomicU64,
    lost: AtomicU64,
}

/// What a capture brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Packets put into the ring.
    pub captured: u64,
    /// Packets that passed the filter and found the ring full.
    pub lost: u64,
}

/// A packet taken off the ring.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Length on the wire, in bytes.
    pub length: u32,
    /// The port's number.
    pub port: u16,
    /// What happened to it.
    pub happened: Happened,
    /// Its beginning.
    pub bytes: &'a [u8],
}

/// The worker's half of a capture.
pub struct Recorder {
    id: u64,
    wanted: Wanted,
    matcher: Option<Box<Matcher>>,
    ring: Producer<u8>,
    counts: Arc<Counts>,
    /// Records of a burst, kept back until it is known how many of its packets count, and where each of them ends.
    staged: Vec<u8>,
    ends: Vec<usize>,
}

/// The reader's half of a capture.
pub struct Records {
    ring: Consumer<u8>,
    counts: Arc<Counts>,
    bytes: Vec<u8>,
}

/// A capture of what is wanted: up to `bytes` of it wait for the reader. `id` is the caller's, to find it again.
pub fn capture(id: u64, wanted: Wanted, bytes: usize) -> (Recorder, Records) {
    let (tx, rx) = RingBuffer::new(bytes);
    let counts = Arc::new(Counts::default());
    let (staged, ends) = (Vec::with_capacity(1 << 16), Vec::with_capacity(BATCH));
    let matcher = wanted.filter.clone().map(|filter| Box::new(Matcher::new(filter)));
    let recorder = Recorder { id, wanted, matcher, ring: tx, counts: counts.clone(), staged, ends };
    (recorder, Records { ring: rx, counts, bytes: vec![] })
}

fn listed(ports: &[bool], port: u16) -> bool {
    ports.get(usize::from(port)) == Some(&true)
}

impl Recorder {
    /// The number it was given.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes `frames`, received by `port`.
    pub fn received(&mut self, arena: &Arena, port: u16, frames: &[Frame]) {
        if listed(&self.wanted.received, port) {
            self.stage(arena, port, RX, frames);
            self.commit(frames.len());
        }
    }

    /// Notes `frame`, which came in by `port` and is dropped for `reason`.
    pub fn dropped(&mut self, arena: &Arena, port: u16, reason: u8, frame: &Frame) {
        let wanted = self.wanted.reasons.checked_shr(reason.into()).is_some_and(|bits| bits & 1 == 1);
        if wanted && listed(&self.wanted.dropped, port) {
            self.stage(arena, port, DROP + reason, std::slice::from_ref(frame));
            self.commit(1);
        }
    }

    /// Copies those of `frames` that pass.
    fn stage(&mut self, arena: &Arena, port: u16, happened: u8, frames: &[Frame]) {
        let Self { wanted, matcher, staged, ends, .. } = self;
        staged.clear();
        ends.clear();
        let mut time = None;
        for burst in frames.chunks(BATCH) {
            let passing = matcher.as_mut().map_or(u64::MAX, |matcher| matcher.passing(arena, burst));
            if passing == 0 {
                ends.resize(ends.len() + burst.len(), staged.len());
                continue;
            }
            for (i, frame) in burst.iter().enumerate() {
                if passing >> i & 1 == 1 {
                    let data = arena.data(frame);
                    let kept = &data[..data.len().min(wanted.snaplen)];
                    staged.extend(time.get_or_insert_with(wall_ns).to_ne_bytes());
                    staged.extend((data.len() as u32).to_ne_bytes());
                    staged.extend((kept.len() as u32).to_ne_bytes());
                    staged.extend(port.to_ne_bytes());
                    staged.push(happened);
                    staged.extend(kept);
                }
                // One that does not pass ends where it begins.
                ends.push(staged.len());
            }
        }
    }

    /// Puts the records of the first `n` frames into the ring, as far as it has room.
    fn commit(&mut self, n: usize) {
        if self.staged.is_empty() {
            return;
        }
        let (mut from, mut captured, mut lost) = (0, 0, 0);
        for &end in self.ends.iter().take(n) {
            if end == from {
                continue;
            }
            match self.ring.push_entire_slice(&self.staged[from..end]) {
                Ok(()) => captured += 1,
                Err(_) => lost += 1,
            }
            from = end;
        }
        // The worker is the only writer of either.
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Release);
        add(&self.counts.captured, captured);
        add(&self.counts.lost, lost);
    }
}

impl Records {
    /// Takes all there are off the ring; how many there were.
    pub fn drain(&mut self, mut each: impl FnMut(Record<'_>) -> std::io::Result<()>) -> std::io::Result<usize> {
        let mut n = 0;
        let mut head = [0u8; HEAD];
        // A record is put in whole, so a head that is there has its bytes behind it.
        while self.ring.pop_entire_slice(&mut head).is_ok() {
            let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let mut time = [0; 8];
            time.copy_from_slice(&head[..8]);
            self.bytes.resize(word(12) as usize, 0);
            if self.ring.pop_entire_slice(&mut self.bytes).is_err() {
                return Err(std::io::Error::other("the capture's ring is out of step"));
            }
            let happened = match head[18] {
                RX => Happened::Received,
                TX => Happened::Sent,
                reason => Happened::Dropped(reason - DROP),
            };
            let port = u16::from_ne_bytes([head[16], head[17]]);
            let time_ns = u64::from_ne_bytes(time);
            each(Record { time_ns, length: word(8), port, happened, bytes: &self.bytes })?;
            n += 1;
        }
        Ok(n)
    }

    /// The figures now.
    pub fn stats(&self) -> CaptureStats {
        CaptureStats {
            captured: self.counts.captured.load(Ordering::Acquire),
            lost: self.counts.lost.load(Ordering::Acquire),
        }
    }
}

/// A port whose sent packets are recorded: put around it for the time of a call.
pub struct Watched<'a> {
    /// The port itself.
    pub port: &'a mut dyn Port,
    /// Its number.
    pub number: u16,
    /// Who wants to know.
    pub recorders: &'a mut [Recorder],
}

impl Port for Watched<'_> {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        self.port.rx_burst(bufs, out)
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let number = self.number;
        // Before they are sent: what is sent may be overwritten at once.
        for recorder in self.recorders.iter_mut().filter(|r| listed(&r.wanted.sent, number)) {
            recorder.stage(bufs.arena(), number, TX, frames.as_slice());
        }
        let n = self.port.tx_burst(bufs, frames);
        for recorder in self.recorders.iter_mut().filter(|r| listed(&r.wanted.sent, number)) {
            recorder.commit(n);
        }
        n
    }

    fn housekeep(&mut self, bufs: &mut Buffers) {
        self.port.housekeep(bufs);
    }

    fn held(&self) -> usize {
        self.port.held()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.wait_fd()
    }

    fn receives(&self) -> bool {
        self.port.receives()
    }

    fn state(&self) -> PortState {
        self.port.state()
    }

    fn max_frame(&self) -> usize {
        self.port.max_frame()
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.port.counters()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        self.port.details()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.port.close(bufs);
    }
}
