//! Copies of passing packets, from a worker to a reader that writes them to a file.
//!
//! The worker's half is a [`Recorder`], the reader's a [`Records`]; a ring of bytes connects them. Packets that do not
//! fit into the ring are lost to the capture and counted; the worker never waits for the reader.

use crate::Port;
use crate::pcap::{Filter, Matcher, wall_ns};
use bywash_frame::{Arena, BATCH, Batch, Buffers, Frame};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a record's header in the ring: time, length on the wire, bytes kept, port, event.
const HEAD: usize = 8 + 4 + 4 + 2 + 1;
/// Values of the event byte; from `DROP` on, `DROP` plus the drop reason.
const RX: u8 = 0;
const TX: u8 = 1;
const DROP: u8 = 2;

/// Event at which a packet was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The packet was received.
    Received,
    /// The packet was sent.
    Sent,
    /// The packet was dropped, for the engine's reason of this number.
    Dropped(u8),
}

/// Selection of packets to capture. Lists are indexed by port number; ports beyond the end of a list are not selected.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Ports whose received packets are captured.
    pub received: Vec<bool>,
    /// Ports whose sent packets are captured.
    pub sent: Vec<bool>,
    /// Ingress ports whose dropped packets are captured.
    pub dropped: Vec<bool>,
    /// Drop reasons captured, one bit per reason number.
    pub reasons: u64,
    /// Filter that packets must pass.
    pub filter: Option<Arc<Filter>>,
    /// Maximum number of bytes kept of a packet.
    pub snaplen: usize,
}

/// Counters of a capture, shared by both halves.
#[derive(Debug, Default)]
struct Counts {
    captured: AtomicU64,
    lost: AtomicU64,
}

/// Snapshot of a capture's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Packets put into the ring.
    pub captured: u64,
    /// Packets that passed the filter but found the ring full.
    pub lost: u64,
}

/// Packet taken from the ring.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Time, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length on the wire, in bytes.
    pub length: u32,
    /// Port number.
    pub port: u16,
    /// Event at which the packet was captured.
    pub happened: Happened,
    /// First bytes of the packet, at most the snap length.
    pub bytes: &'a [u8],
}

/// The worker's half of a capture.
pub struct Recorder {
    id: u64,
    wanted: Wanted,
    matcher: Option<Box<Matcher>>,
    ring: Producer<u8>,
    counts: Arc<Counts>,
    /// Records of a burst, kept until it is known how many of its packets the port took, and the end of each frame's
    /// record.
    staged: Vec<u8>,
    ends: Vec<usize>,
}

/// The reader's half of a capture.
pub struct Records {
    ring: Consumer<u8>,
    counts: Arc<Counts>,
    bytes: Vec<u8>,
}

/// Creates a capture with a ring of `bytes` bytes. `id` is a number by which the caller finds it again.
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
    /// Returns the number passed to [`capture`].
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Records no more packets of `port`.
    pub fn leave_out(&mut self, port: u16) {
        let Wanted { received, sent, dropped, .. } = &mut self.wanted;
        let lists = [received, sent, dropped];
        lists.into_iter().filter_map(|ports| ports.get_mut(usize::from(port))).for_each(|wanted| *wanted = false);
    }

    /// Records `frames`, received by `port`.
    pub fn received(&mut self, arena: &Arena, port: u16, frames: &[Frame]) {
        if listed(&self.wanted.received, port) {
            self.stage(arena, port, RX, frames);
            self.commit(frames.len());
        }
    }

    /// Records `frame`, which was received by `port` and is dropped for `reason`.
    pub fn dropped(&mut self, arena: &Arena, port: u16, reason: u8, frame: &Frame) {
        let wanted = self.wanted.reasons.checked_shr(reason.into()).is_some_and(|bits| bits & 1 == 1);
        if wanted && listed(&self.wanted.dropped, port) {
            self.stage(arena, port, DROP + reason, std::slice::from_ref(frame));
            self.commit(1);
        }
    }

    /// Copies those of `frames` that pass the filter into `staged`.
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
                // The record of a frame that does not pass ends where it begins: it is empty.
                ends.push(staged.len());
            }
        }
    }

    /// Puts the records of the first `n` frames into the ring as far as it has room, and counts them.
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
        // The worker is the only writer of both counters.
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Release);
        add(&self.counts.captured, captured);
        add(&self.counts.lost, lost);
    }
}

impl Records {
    /// Takes the records that are in the ring now, and passes them to `each`; returns how many there were. Records
    /// that the worker adds meanwhile stay, so that this ends however fast it adds them.
    pub fn drain(&mut self, mut each: impl FnMut(Record<'_>) -> std::io::Result<()>) -> std::io::Result<usize> {
        let mut n = 0;
        let mut head = [0u8; HEAD];
        let mut left = self.ring.slots();
        // A record is put in as a whole, so its bytes follow its header.
        while left > 0 && self.ring.pop_entire_slice(&mut head).is_ok() {
            let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let mut time = [0; 8];
            time.copy_from_slice(&head[..8]);
            self.bytes.resize(word(12) as usize, 0);
            if self.ring.pop_entire_slice(&mut self.bytes).is_err() {
                return Err(std::io::Error::other("the capture ring is corrupt: a record header without its bytes"));
            }
            left = left.saturating_sub(HEAD + self.bytes.len());
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

    /// Returns the current counters.
    pub fn stats(&self) -> CaptureStats {
        CaptureStats {
            captured: self.counts.captured.load(Ordering::Acquire),
            lost: self.counts.lost.load(Ordering::Acquire),
        }
    }
}

/// Port whose sent packets are recorded; wraps the port for the duration of one call.
pub struct Watched<'a> {
    /// The wrapped port.
    pub port: &'a mut dyn Port,
    /// Port number.
    pub number: u16,
    /// Recorders of the active captures.
    pub recorders: &'a mut [Recorder],
}

impl Port for Watched<'_> {
    crate::by_port!(port: rx_burst, housekeep, held, wait_fd, receives, state, max_frame, counters, details, close);

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let number = self.number;
        // Copied before they are sent: the port may reuse a sent buffer at once.
        for recorder in self.recorders.iter_mut().filter(|r| listed(&r.wanted.sent, number)) {
            recorder.stage(bufs.arena(), number, TX, frames.as_slice());
        }
        let n = self.port.tx_burst(bufs, frames);
        for recorder in self.recorders.iter_mut().filter(|r| listed(&r.wanted.sent, number)) {
            recorder.commit(n);
        }
        n
    }
}
