//! Recording of sent packets to a capture file.

use super::{CaptureFile, Direction, Format, LinkType, PacketMeta};
use crate::broker;
use bywash_frame::{Arena, Batch, Buffers};
use bywash_sync::clock;
use std::io::{Result, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum time in microseconds that packets stay in the buffer when no more follow.
const LINGER_US: u64 = 200_000;

/// Recorder that writes sent frames to a capture file through a buffer. After a failed write (a full disk) it takes no
/// more frames and reports the reason in [`PcapRecorder::failure`].
///
/// # Thread-safety
/// Used by one worker, which blocks on the disk when the buffer is full.
pub struct PcapRecorder {
    file: CaptureFile<Box<dyn Write + Send>>,
    failure: Option<String>,
    /// Time at which the oldest packet in the buffer was written, in TSC ticks; `None` if the buffer is flushed.
    dirty: Option<u64>,
    linger: u64,
}

/// Returns the wall clock in nanoseconds since 1970-01-01 UTC.
pub fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

impl PcapRecorder {
    /// Creates or replaces the file in the format of its name ([`Format::of`]).
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Self::create_linked(path, LinkType::Ethernet)
    }

    /// Creates or replaces a file like [`PcapRecorder::create`], for packets of any link type.
    pub fn create_linked(path: impl AsRef<Path>, link: LinkType) -> Result<Self> {
        let path = path.as_ref();
        Self::linked(Box::new(broker::create(path)?), Format::of(path), link)
    }

    /// Records to `out`.
    pub fn to(out: Box<dyn Write + Send>, format: Format) -> Result<Self> {
        Self::linked(out, format, LinkType::Ethernet)
    }

    fn linked(out: Box<dyn Write + Send>, format: Format, link: LinkType) -> Result<Self> {
        let mut file = CaptureFile::linked(out, format, link, &["bywash"], 0)?;
        file.flush()?;
        Ok(Self { file, failure: None, dirty: None, linger: clock::us_to_ticks(LINGER_US) })
    }

    /// Returns the reason for which it takes no more frames, if it failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Writes and frees frames from the front; returns their number and their bytes. Takes none after a failure.
    pub fn take(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> (usize, u64) {
        if frames.is_empty() || self.failure.is_some() {
            return (0, 0);
        }
        let time_ns = wall_ns();
        let (n, bytes) = self.write(bufs.arena(), frames, time_ns);
        let mut done = Batch::new();
        frames.move_front(n, &mut done);
        bufs.free(&mut done);
        self.dirty.get_or_insert_with(clock::tsc);
        (n, bytes)
    }

    fn write(&mut self, arena: &Arena, frames: &Batch, time_ns: u64) -> (usize, u64) {
        let mut bytes = 0;
        for (i, frame) in frames.as_slice().iter().enumerate() {
            let data = arena.data(frame);
            let length = data.len() as u32;
            let meta = PacketMeta { time_ns, length, direction: Some(Direction::Tx), interface: 0 };
            if let Err(e) = self.file.write(meta, data) {
                self.failure = Some(e.to_string());
                return (i, bytes);
            }
            bytes += data.len() as u64;
        }
        (frames.len(), bytes)
    }

    /// Flushes the buffer once its oldest packet has waited long enough.
    #[inline]
    pub fn housekeep(&mut self) {
        if let Some(since) = self.dirty
            && clock::tsc().wrapping_sub(since) > self.linger
        {
            self.flush();
        }
    }

    /// Flushes all packets to the file.
    pub fn flush(&mut self) {
        self.dirty = None;
        if self.failure.is_none()
            && let Err(e) = self.file.flush()
        {
            self.failure = Some(e.to_string());
        }
    }
}
