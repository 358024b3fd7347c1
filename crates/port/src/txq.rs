//! The tx queue: gathers a worker's frames for one port, and sends them at a burst or at a deadline.

use crate::{Port, Waits};
use bywash_frame::{BATCH, Batch, Buffers, Frame};
use bywash_sync::{Counter, clock};
use std::sync::Arc;

/// When a tx queue sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxQueueConfig {
    /// Frames that are sent without waiting for more: 1 to 64; values beyond are brought into that range.
    pub burst: usize,
    /// Longest wait of a frame for a burst to fill, in microseconds. 0: it is sent at the end of the turn.
    pub deadline_us: u64,
}

impl Default for TxQueueConfig {
    fn default() -> Self {
        Self { burst: 32, deadline_us: 0 }
    }
}

/// What a tx queue did. Written by its worker, read by anyone.
#[derive(Debug)]
pub struct TxQueueStats {
    /// Bursts by the number of frames the port took; index 0: it took none.
    pub bursts: [Counter; BATCH + 1],
    /// Bursts by the time their oldest frame had waited. It begins with the turn in which the frame came, so that no
    /// clock is read for a frame.
    pub waits: Waits,
}

impl TxQueueStats {
    /// Calls to the port, and the frames it took in them.
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
/// It makes no system call. Every `now` is the caller's time-stamp counter ([`bywash_sync::clock::tsc`]), taken once a
/// turn; the queue itself reads the clock once for each burst that waited. Like [`Batch`], it must be emptied
/// ([`TxQueue::clear`]), not dropped.
///
/// # Thread-safety
/// Belongs to one worker; its statistics may be read from anywhere.
pub struct TxQueue {
    frames: Batch,
    /// Frames at which `push` asks for a flush: `burst`, or more while the device is full.
    limit: usize,
    burst: usize,
    /// When the oldest frame came.
    since: u64,
    /// Ticks a frame may wait.
    deadline: u64,
    /// Nanoseconds a tick, times 2^20.
    tick: u64,
    /// The turn in which the device last took nothing, and the flushes to leave out in it.
    refused_at: u64,
    leave_out: usize,
    stats: Arc<TxQueueStats>,
}

impl TxQueue {
    /// An empty queue.
    pub fn new(config: TxQueueConfig) -> Self {
        let burst = config.burst.clamp(1, BATCH);
        Self {
            frames: Batch::new(),
            limit: burst,
            burst,
            since: 0,
            // A quarter early: the kernel's tick alone, which comes between every few milliseconds, takes some 8 us.
            deadline: clock::us_to_ticks(config.deadline_us) * 3 / 4,
            tick: (1_000_000_000 << 20) / clock::tsc_hz().max(1),
            refused_at: 0,
            leave_out: 0,
            stats: Arc::default(),
        }
    }

    /// Frames that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Its statistics.
    pub fn stats(&self) -> Arc<TxQueueStats> {
        self.stats.clone()
    }

    /// Appends `frame`. Gives it back when a burst is complete and must be flushed first; after a flush it is
    /// taken, unless a whole batch waits for a device that takes nothing: then it is the caller's to drop.
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

    /// Appends the frames of `batch`, in order, sending what completes a burst: a whole burst with nothing before it
    /// goes to the port straight from `batch`. What stays in `batch` is the caller's to drop, as with
    /// [`TxQueue::push`]. Returns how many frames the port took.
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

    /// Whether what waits should be sent now: a burst is complete, or the oldest frame's time is over by `at`. So that
    /// no frame waits longer than its deadline, `at` is the next time that this is asked.
    #[inline]
    pub fn due(&self, at: u64) -> bool {
        self.frames.len() >= self.burst || (!self.is_empty() && at.wrapping_sub(self.since) >= self.deadline)
    }

    /// When the oldest frame's time is over; none: no frame waits.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.since.wrapping_add(self.deadline))
    }

    /// Sends what waits; returns how many frames the port took. The rest waits on, in order. A port that took
    /// nothing is asked again after another burst's worth of calls, or in the next turn (another `now`).
    #[inline]
    pub fn flush(&mut self, port: &mut dyn Port, bufs: &mut Buffers, now: u64) -> usize {
        if self.is_empty() || (self.leave_out > 0 && self.skip(now)) {
            return 0;
        }
        let before = self.frames.len();
        let waited = clock::tsc().max(now).wrapping_sub(self.since);
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

    /// Frees what waits; returns how many frames that was. For a port that is down, and at the end.
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
