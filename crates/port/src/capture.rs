//! A decorator that copies passing frames to a writer on another thread.

use crate::pcap::{CaptureFile, Direction, PacketMeta, wall_ns};
use crate::{Port, PortCounters, PortState};
use bywash_frame::{Arena, BATCH, Batch, Buffers, Frame};
use rtrb::{Consumer, Producer, RingBuffer};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the writer looks into the ring.
const LOOK: Duration = Duration::from_millis(2);
/// Head of a record in the ring: time, length on the wire, bytes kept, direction.
const HEAD: usize = 8 + 4 + 4 + 1;

struct Shared {
    on: AtomicBool,
    snaplen: AtomicU32,
    captured: AtomicU64,
    lost: AtomicU64,
}

/// Switches the capture of one port on and off. Clones of it are not needed: keep it with the port's control side.
///
/// # Thread-safety
/// Belongs to the control side; the port is its worker's. They share a ring of bytes and four atomics.
pub struct CaptureControl {
    shared: Arc<Shared>,
    ring: Arc<Mutex<Consumer<u8>>>,
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<std::io::Result<()>>>,
}

/// What a capture brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Packets handed to the writer since the decorator was made.
    pub captured: u64,
    /// Packets not captured because the ring was full.
    pub lost: u64,
}

/// A port whose frames can be captured. While the capture is off it costs one branch a burst.
pub struct Capture<P> {
    inner: P,
    shared: Arc<Shared>,
    ring: Producer<u8>,
    records: Vec<u8>,
    ends: Vec<usize>,
}

impl<P: Port> Capture<P> {
    /// Decorates `inner`; up to `bytes` of packets wait for the writer.
    pub fn new(inner: P, bytes: usize) -> (Self, CaptureControl) {
        let (tx, rx) = RingBuffer::new(bytes);
        let shared = Arc::new(Shared {
            on: AtomicBool::new(false),
            snaplen: AtomicU32::new(0),
            captured: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let control = CaptureControl {
            shared: shared.clone(),
            ring: Arc::new(Mutex::new(rx)),
            stop: Arc::default(),
            writer: None,
        };
        (Self { inner, shared, ring: tx, records: Vec::new(), ends: Vec::with_capacity(BATCH) }, control)
    }

    #[inline]
    fn on(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed)
    }

    /// Copies `frames` into records, to be put into the ring when it is known how many of them count.
    #[cold]
    fn stage(&mut self, arena: &Arena, frames: &[Frame], direction: Direction) {
        let time_ns = wall_ns().to_ne_bytes();
        let snaplen = self.shared.snaplen.load(Ordering::Relaxed) as usize;
        let way = u8::from(direction == Direction::Tx);
        self.records.clear();
        self.ends.clear();
        for frame in frames {
            let data = arena.data(frame);
            let kept = &data[..data.len().min(snaplen)];
            self.records.extend(time_ns);
            self.records.extend((data.len() as u32).to_ne_bytes());
            self.records.extend((kept.len() as u32).to_ne_bytes());
            self.records.push(way);
            self.records.extend(kept);
            self.ends.push(self.records.len());
        }
    }

    /// Puts the first `n` records into the ring, as far as it has room.
    #[cold]
    fn commit(&mut self, n: usize) {
        let (mut from, mut captured) = (0, 0);
        for &end in &self.ends[..n] {
            captured += u64::from(self.ring.push_entire_slice(&self.records[from..end]).is_ok());
            from = end;
        }
        // The worker is the only writer of either.
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Release);
        add(&self.shared.captured, captured);
        add(&self.shared.lost, n as u64 - captured);
    }
}

impl CaptureControl {
    /// Starts capturing into `file`, `snaplen` bytes a packet (0: all). Packets go to interface 0 of the file. A
    /// capture that runs is stopped first; its error, if it had one, is returned and the new one not started.
    pub fn start<W: Write + Send + 'static>(&mut self, file: CaptureFile<W>, snaplen: u32) -> std::io::Result<()> {
        self.stop()?;
        let (ring, stop, shared) = (self.ring.clone(), self.stop.clone(), self.shared.clone());
        // What an earlier capture left.
        drain(&mut ring.lock().unwrap_or_else(PoisonError::into_inner), |_, _| Ok(()))?;
        let snaplen = if snaplen == 0 { u32::MAX } else { snaplen };
        self.shared.snaplen.store(snaplen, Ordering::Relaxed);
        self.stop.store(false, Ordering::Relaxed);
        self.writer = Some(std::thread::Builder::new().name("bywash-capture".into()).spawn(move || {
            let result = write(&ring, &stop, file);
            if result.is_err() {
                shared.on.store(false, Ordering::Relaxed);
            }
            result
        })?);
        self.shared.on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Stops capturing and waits until everything is in the file; an error is the writer's. Nothing to stop is no
    /// error.
    pub fn stop(&mut self) -> std::io::Result<()> {
        self.shared.on.store(false, Ordering::Relaxed);
        let Some(writer) = self.writer.take() else { return Ok(()) };
        self.stop.store(true, Ordering::Release);
        writer.join().unwrap_or_else(|_| Err(std::io::Error::other("the capture's writer panicked")))
    }

    /// Whether packets are being captured; false also after the writer failed.
    pub fn running(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed)
    }

    /// The figures now.
    pub fn stats(&self) -> CaptureStats {
        CaptureStats {
            captured: self.shared.captured.load(Ordering::Acquire),
            lost: self.shared.lost.load(Ordering::Acquire),
        }
    }
}

impl Drop for CaptureControl {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn write<W: Write>(ring: &Mutex<Consumer<u8>>, stop: &AtomicBool, mut file: CaptureFile<W>) -> std::io::Result<()> {
    let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        // Looked at first, so that what came before the order to stop is still written.
        let last = stop.load(Ordering::Acquire);
        let n = drain(&mut ring, |meta, bytes| file.write(meta, bytes))?;
        if last {
            return file.flush();
        }
        if n == 0 {
            file.flush()?;
            std::thread::sleep(LOOK);
        }
    }
}

/// Takes all records off the ring.
fn drain(
    ring: &mut Consumer<u8>,
    mut each: impl FnMut(PacketMeta, &[u8]) -> std::io::Result<()>,
) -> std::io::Result<usize> {
    let mut bytes = Vec::new();
    let mut n = 0;
    let mut head = [0u8; HEAD];
    // A record is put in whole, so a head that is there has its bytes behind it.
    while ring.pop_entire_slice(&mut head).is_ok() {
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut time = [0; 8];
        time.copy_from_slice(&head[..8]);
        let direction = Some(if head[16] == 1 { Direction::Tx } else { Direction::Rx });
        let meta = PacketMeta { time_ns: u64::from_ne_bytes(time), length: word(8), direction, interface: 0 };
        bytes.resize(word(12) as usize, 0);
        if ring.pop_entire_slice(&mut bytes).is_err() {
            return Err(std::io::Error::other("the capture ring is out of step"));
        }
        each(meta, &bytes)?;
        n += 1;
    }
    Ok(n)
}

impl<P: Port> Port for Capture<P> {
    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let n = self.inner.rx_burst(bufs, out);
        if self.on() && n > 0 {
            self.stage(bufs.arena(), &out.as_slice()[out.len() - n..], Direction::Rx);
            self.commit(n);
        }
        n
    }

    #[inline]
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        if !self.on() {
            return self.inner.tx_burst(bufs, frames);
        }
        // Before they are sent: what is sent may be overwritten at once.
        self.stage(bufs.arena(), frames.as_slice(), Direction::Tx);
        let n = self.inner.tx_burst(bufs, frames);
        self.commit(n);
        n
    }

    #[inline]
    fn housekeep(&mut self, bufs: &mut Buffers) {
        self.inner.housekeep(bufs);
    }

    fn held(&self) -> usize {
        self.inner.held()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn receives(&self) -> bool {
        self.inner.receives()
    }

    fn state(&self) -> PortState {
        self.inner.state()
    }

    fn max_frame(&self) -> usize {
        self.inner.max_frame()
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.inner.counters()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut details = self.inner.details();
        details.push(("capture", if self.on() { "on" } else { "off" }.into()));
        details
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.inner.close(bufs);
    }
}
