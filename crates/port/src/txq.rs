//! TX queue: gathers a worker's frames for one port and sends them when a burst is complete or a deadline expires.

use crate::{Port, Waits};
use bywash_frame::{BATCH, Batch, Buffers, Frame};
use bywash_sync::{Counter, clock};
use std::sync::Arc;

/// Conditions on which a TX queue sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxQueueConfig {
    /// Frames that complete a burst and are sent at once: 1 to 64; other values are clamped to that range.
    pub burst: usize,
    /// Longest time a frame waits for a burst to fill, in microseconds. 0: it is sent at the end of the turn.
    pub deadline_us: u64,
}

impl Default for TxQueueConfig {
    fn default() -> Self {
        Self { burst: 32, deadline_us: 0 }
    }
}

/// Statistics of a TX queue. Written by its worker, readable from any thread.
#[derive(Debug)]
pub struct TxQueueStats {
    /// Bursts by the number of frames the port took; index 0 counts calls in which it took none.
    pub bursts: [Counter; BATCH + 1],
    /// Bursts by the waiting time of their oldest frame, measured from the start of the turn in which the frame came,
    /// so that no clock is read per frame.
    pub waits: Waits,
}

impl TxQueueStats {
    /// Returns the number of calls to the port, and of frames it took in them.
    pub fn sends(&self) -> (u64, u64) {
        let bursts = self.bursts.iter().enumerate();
        bursts.fold((0, 0), |(calls, frames), (n, c)| (calls + c.get(), frames + n as u64 * c.get()))
    }
}

impl Default for TxQueueStats {
    fn default() -> Self {
        Self { bursts: std::array::from_fn(|_| Counter::new()), waits: Waits::default() }
    }
}

/// One worker's queue in front of one port.
///
/// Makes no system call. Every `now` is the caller's time-stamp counter ([`bywash_sync::clock::tsc`]), read once per
/// turn; the queue itself reads the clock only once for each burst that waited. Like [`Batch`], it must be emptied
/// ([`TxQueue::clear`]) before it is dropped.
///
/// # Thread-safety
/// Belongs to one worker; its statistics may be read from any thread.
pub struct TxQueue {
    frames: Batch,
    /// Number of queued frames at which `push` asks for a flush: `burst`, or more while the device is full.
    limit: usize,
    burst: usize,
    /// Arrival of the oldest frame, in ticks.
    since: u64,
    /// Ticks a frame may wait.
    deadline: u64,
    /// Nanoseconds per tick, times 2^20.
    tick: u64,
    /// Turn in which the port last took nothing, and number of flushes still to skip in that turn.
    refused_at: u64,
    leave_out: usize,
    stats: Arc<TxQueueStats>,
}

impl TxQueue {
    /// Returns an empty queue.
    pub fn new(config: TxQueueConfig) -> Self {
        let burst = config.burst.clamp(1, BATCH);
        Self {
            frames: Batch::new(),
            limit: burst,
            burst,
            since: 0,
            // A quarter early: the kernel's timer tick alone, every few milliseconds, takes about 8 us.
            deadline: clock::us_to_ticks(config.deadline_us) * 3 / 4,
            tick: (1_000_000_000 << 20) / clock::tsc_hz().max(1),
            refused_at: 0,
            leave_out: 0,
            stats: Arc::default(),
        }
    }

    /// Returns the number of queued frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether no frame is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the statistics.
    pub fn stats(&self) -> Arc<TxQueueStats> {
        self.stats.clone()
    }

    /// Appends `frame`. Returns it if a burst is complete and must be flushed first. After a flush the frame is
    /// accepted unless a whole batch waits for a device that takes nothing: then the caller must drop it.
    #[inline]
    pub fn push(&mut self, frame: Frame, now: u64) -> Result<(), Frame> {
        let len = self.frames.len();
        if len >= self.limit {
            return Err(frame);
        }
        if len == 0 {
            self.since = now;
        }
        self.frames.push(frame)
    }

    /// Appends the frames of `batch`, in order, and sends completed bursts: if nothing is queued, a whole burst goes to
    /// the port straight from `batch`. Frames left in `batch` are the caller's to drop, as with [`TxQueue::push`].
    /// Returns how many frames the port took.
    #[inline]
    pub fn push_batch(&mut self, port: &mut dyn Port, bufs: &mut Buffers, batch: &mut Batch, now: u64) -> usize {
        let mut sent = 0;
        if self.is_empty() && batch.len() >= self.burst && self.leave_out == 0 {
            sent = port.tx_burst(bufs, batch);
            self.stats.bursts[sent].add(1);
            self.stats.waits.count(0);
            if batch.is_empty() {
                return sent;
            }
        }
        sent + self.queue_batch(port, bufs, batch, now)
    }

    #[inline(never)]
    fn queue_batch(&mut self, port: &mut dyn Port, bufs: &mut Buffers, batch: &mut Batch, now: u64) -> usize {
        let mut sent = 0;
        for _ in 0..2 {
            if self.is_empty() {
                self.since = now;
            }
            batch.move_to(&mut self.frames);
            self.limit = self.limit.max((self.frames.len() + 1).min(BATCH));
            if self.frames.len() >= self.burst {
                sent += self.flush(port, bufs, now);
            }
        }
        sent
    }

    /// Returns whether the queue should be flushed now: a burst is complete, or the oldest frame's deadline expires by
    /// `at`. To keep every deadline, pass as `at` the time of the next call.
    #[inline]
    pub fn due(&self, at: u64) -> bool {
        self.frames.len() >= self.burst || (!self.is_empty() && at.wrapping_sub(self.since) >= self.deadline)
    }

    /// Returns the time at which the oldest frame's deadline expires, in ticks; `None` if no frame is queued.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.since.wrapping_add(self.deadline))
    }

    /// Sends the queued frames; returns how many the port took. The others stay queued, in order. After a call in which
    /// the port took nothing, the next `burst` calls of the same turn (the same `now`) do nothing.
    #[inline]
    pub fn flush(&mut self, port: &mut dyn Port, bufs: &mut Buffers, now: u64) -> usize {
        if self.is_empty() || (self.leave_out > 0 && self.skip(now)) {
            return 0;
        }
        let before = self.frames.len();
        let waited = clock::tsc().max(now).saturating_sub(self.since);
        self.stats.waits.count(((u128::from(waited) * u128::from(self.tick)) >> 20) as u64);
        let sent = port.tx_burst(bufs, &mut self.frames);
        debug_assert_eq!(self.frames.len() + sent, before, "the port lost a frame");
        self.stats.bursts[sent].add(1);
        let left = self.frames.len();
        self.limit = (left + self.burst).min(BATCH);
        if sent == 0 {
            (self.refused_at, self.leave_out) = (now, self.burst);
        }
        sent
    }

    /// Frees the queued frames; returns how many there were. For a port that is down, and at shutdown.
    pub fn clear(&mut self, bufs: &mut Buffers) -> usize {
        let n = self.frames.len();
        bufs.free(&mut self.frames);
        (self.limit, self.leave_out) = (self.burst, 0);
        n
    }

    #[cold]
    fn skip(&mut self, now: u64) -> bool {
        if now == self.refused_at {
            self.leave_out -= 1;
            return true;
        }
        self.leave_out = 0;
        false
    }
}
