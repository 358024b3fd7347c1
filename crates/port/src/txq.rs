//! The tx queue: gathers a worker's frames for one port, and sends them at a burst or at a deadline.

use crate::Port;
use bywash_frame::{BATCH, Batch, Buffers, Frame};
use bywash_sync::{Counter, clock};
use std::sync::Arc;

/// Most buckets of [`TxQueueStats::waits`]: the last holds everything from half a second on.
pub const WAIT_BUCKETS: usize = 21;

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
    /// Bursts by the time the oldest frame had waited: index 0 below 1 us, then `n` for 2^(n-1) to 2^n us.
    pub waits: [Counter; WAIT_BUCKETS],
}

impl Default for TxQueueStats {
    fn default() -> Self {
        Self { bursts: std::array::from_fn(|_| Counter::new()), waits: std::array::from_fn(|_| Counter::new()) }
    }
}

/// One worker's queue in front of one port.
///
/// It makes no system call and reads no clock: every `now` is the caller's time-stamp counter
/// ([`bywash_sync::clock::tsc`]), taken once a turn. Like [`Batch`], it must be emptied ([`TxQueue::clear`]), not
/// dropped.
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
    ticks_per_us: u64,
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
            deadline: clock::us_to_ticks(config.deadline_us),
            ticks_per_us: (clock::tsc_hz() / 1_000_000).max(1),
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
            self.stats.waits[0].add(1);
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

    /// Whether what waits should be sent now: a burst is complete, or the oldest frame's time is over.
    #[inline]
    pub fn due(&self, now: u64) -> bool {
        self.frames.len() >= self.burst || (!self.is_empty() && now.wrapping_sub(self.since) >= self.deadline)
    }

    /// Sends what waits; returns how many frames the port took. The rest waits on, in order. A port that took
    /// nothing is asked again after another burst's worth of calls, or in the next turn (another `now`).
    #[inline]
    pub fn flush(&mut self, port: &mut dyn Port, bufs: &mut Buffers, now: u64) -> usize {
        if self.is_empty() || (self.leave_out > 0 && self.skip(now)) {
            return 0;
        }
        let before = self.frames.len();
        let sent = port.tx_burst(bufs, &mut self.frames);
        debug_assert_eq!(self.frames.len() + sent, before, "the port lost a frame");
        self.stats.bursts[sent].add(1);
        self.count_wait(now.wrapping_sub(self.since));
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

    #[inline]
    fn count_wait(&self, ticks: u64) {
        let bucket = if ticks < self.ticks_per_us {
            0
        } else {
            let us = ticks / self.ticks_per_us;
            (64 - us.leading_zeros() as usize).min(WAIT_BUCKETS - 1)
        };
        self.stats.waits[bucket].add(1);
    }
}
