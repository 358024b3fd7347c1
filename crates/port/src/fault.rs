//! Decorator that injects the faults of a bad link.

use crate::{Port, PortState};
use bywash_frame::{Batch, Buffers, Frame};
use bywash_sync::{Counter, clock};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Faults of one direction. Rates are probabilities per frame, from 0 (never) to 1 (always).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that a frame is lost.
    pub drop: f64,
    /// Probability that a frame is duplicated into a buffer of its own; without a free buffer it is not.
    pub duplicate: f64,
    /// Probability that a frame changes places with the frame before it.
    pub reorder: f64,
    /// Probability that one byte of a frame is changed.
    pub corrupt: f64,
    /// Probability that a frame is cut to a random length.
    pub truncate: f64,
    /// Delay of every frame, in nanoseconds.
    pub delay_ns: u64,
    /// Rate limit in frames per second; frames beyond it are lost unless there is a `queue`. 0: no limit. Bursts of up
    /// to 64 frames pass without a queue.
    pub limit_pps: u64,
    /// Maximum number of frames that wait when the rate limit is exceeded, to be passed on at its rate. 0: they are
    /// lost.
    pub queue: usize,
}

/// Counters of the faults in one direction, in frames.
#[derive(Debug, Default)]
pub struct FaultCounters {
    /// Lost at random.
    pub dropped: Counter,
    /// Lost above the rate limit.
    pub limited: Counter,
    /// Copies made.
    pub duplicated: Counter,
    /// Copies not made for want of a buffer.
    pub no_buffer: Counter,
    /// Swapped with the frame before.
    pub reordered: Counter,
    /// Changed in one byte.
    pub corrupted: Counter,
    /// Truncated.
    pub truncated: Counter,
    /// Delayed.
    pub delayed: Counter,
}

/// Deterministic pseudo-random numbers from a seed: xorshift64* (Vigna, 2016).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // The state must not be zero; the multiplication spreads neighbouring seeds.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }
}

/// One direction: the delayed frames, each with the time at which it may go on.
struct Lane {
    faults: Faults,
    random: Random,
    delay: u64,
    /// `gap` is the number of ticks per frame at the rate limit. `spent` is the time up to which that budget is used;
    /// with a queue, the time at which its last frame goes.
    gap: u64,
    spent: u64,
    held: VecDeque<(u64, Frame)>,
    counters: Arc<FaultCounters>,
}

impl Lane {
    fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            random: Random::new(seed),
            delay: (u128::from(faults.delay_ns) * u128::from(clock::tsc_hz()) / 1_000_000_000) as u64,
            gap: clock::tsc_hz().checked_div(faults.limit_pps).unwrap_or(0),
            spent: 0,
            held: VecDeque::new(),
            counters: Arc::default(),
        }
    }

    /// Applies the faults to `frames` and queues them here.
    fn put(&mut self, bufs: &mut Buffers, frames: &mut Batch, now: u64) {
        for mut frame in frames.drain() {
            let (f, c) = (self.faults, &self.counters);
            let mut at = now.wrapping_add(self.delay);
            if self.gap > 0 && f.queue > 0 {
                let goes = self.spent.max(now);
                if (goes - now).div_ceil(self.gap) > f.queue as u64 {
                    c.limited.add(1);
                    bufs.free_one(frame);
                    continue;
                }
                self.spent = goes + self.gap;
                at = goes.wrapping_add(self.delay);
            } else if self.gap > 0 {
                self.spent = self.spent.max(now.saturating_sub(self.gap * 64));
                if self.spent >= now {
                    c.limited.add(1);
                    bufs.free_one(frame);
                    continue;
                }
                self.spent += self.gap;
            }
            if self.random.chance(f.drop) {
                c.dropped.add(1);
                bufs.free_one(frame);
                continue;
            }
            if self.random.chance(f.corrupt) && frame.len() > 0 {
                let (byte, flip) = (self.random.below(frame.len()), self.random.below(255) as u8 + 1);
                bufs.arena().data_mut(&mut frame)[byte] ^= flip;
                c.corrupted.add(1);
            }
            if self.random.chance(f.truncate) && frame.len() > 0 {
                frame.truncate(self.random.below(frame.len()));
                c.truncated.add(1);
            }
            c.delayed.add(u64::from(self.delay > 0));
            if self.random.chance(f.duplicate) {
                match copy(bufs, &frame) {
                    Some(twin) => {
                        self.held.push_back((at, twin));
                        c.duplicated.add(1);
                    }
                    None => c.no_buffer.add(1),
                }
            }
            let behind = self.held.len();
            self.held.push_back((at, frame));
            if behind > 0 && self.random.chance(f.reorder) {
                self.held.swap(behind - 1, behind);
                c.reordered.add(1);
            }
        }
    }

    /// Moves the frames that are due at `now` to `out`.
    fn take(&mut self, out: &mut Batch, now: u64) {
        while out.room() > 0 && self.held.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, frame)) = self.held.pop_front() else { break };
            let pushed = out.push(frame);
            debug_assert!(pushed.is_ok());
        }
    }

    fn clear(&mut self, bufs: &mut Buffers) {
        self.held.drain(..).for_each(|(_, frame)| bufs.free_one(frame));
    }
}

fn copy(bufs: &mut Buffers, frame: &Frame) -> Option<Frame> {
    let mut twin = bufs.alloc_one()?;
    if bufs.arena().write(&mut twin, bufs.arena().data(frame)) {
        return Some(twin);
    }
    bufs.free_one(twin);
    None
}

/// Port that injects faults in either direction, reproducibly for the same seed and the same traffic. For tests and for
/// the tester; its queues allocate memory now and then.
///
/// `rx_packets` and `tx_packets` are the inner port's: they count frames on the link, not frames passed through the
/// faults.
pub struct Fault<P> {
    inner: P,
    rx: Lane,
    tx: Lane,
    /// Frames due, waiting for room in the inner port.
    ready: Batch,
    /// Time of the last call, in ticks.
    now: u64,
}

impl<P: Port> Fault<P> {
    /// Wraps `inner`.
    pub fn new(inner: P, seed: u64, rx: Faults, tx: Faults) -> Self {
        Self { inner, rx: Lane::new(rx, seed), tx: Lane::new(tx, !seed), ready: Batch::new(), now: 0 }
    }

    /// Returns the counters of the faults of received frames.
    pub fn rx_faults(&self) -> Arc<FaultCounters> {
        self.rx.counters.clone()
    }

    /// Returns the counters of the faults of sent frames.
    pub fn tx_faults(&self) -> Arc<FaultCounters> {
        self.tx.counters.clone()
    }

    /// Returns the time in ticks, which never goes back: frames would be held until it is reached again.
    fn time(&mut self) -> u64 {
        self.now = clock::tsc_after(self.now);
        self.now
    }

    fn push_on(&mut self, bufs: &mut Buffers, now: u64) {
        self.tx.take(&mut self.ready, now);
        while !self.ready.is_empty() && self.inner.tx_burst(bufs, &mut self.ready) > 0 {
            self.tx.take(&mut self.ready, now);
        }
    }
}

impl<P: Port> Port for Fault<P> {
    crate::by_port!(inner: max_frame, counters);

    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let before = out.len();
        let now = self.time();
        let mut got = Batch::new();
        // Bounds the queue when the source is faster than its reader.
        if self.rx.held.len() < QUEUE {
            self.inner.rx_burst(bufs, &mut got);
        }
        self.rx.put(bufs, &mut got, now);
        self.rx.take(out, now);
        out.len() - before
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let now = self.time();
        self.push_on(bufs, now);
        if self.tx.held.len() >= QUEUE || self.inner.state() != PortState::Up {
            return 0;
        }
        let n = frames.len();
        self.tx.put(bufs, frames, now);
        self.push_on(bufs, now);
        n
    }

    fn housekeep(&mut self, bufs: &mut Buffers) {
        let now = self.time();
        self.push_on(bufs, now);
        self.inner.housekeep(bufs);
    }

    fn held(&self) -> usize {
        self.inner.held() + self.rx.held.len() + self.tx.held.len() + self.ready.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // The descriptor does not signal frames that become due here, so the port must be polled while it holds any.
        if self.held() == self.inner.held() { self.inner.wait_fd() } else { None }
    }

    fn receives(&self) -> bool {
        self.inner.receives() || !self.rx.held.is_empty()
    }

    fn state(&self) -> PortState {
        match self.inner.state() {
            PortState::Ended if !self.rx.held.is_empty() => PortState::Up,
            state => state,
        }
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut details = self.inner.details();
        details.push(("faults_rx", format!("{:?}", self.rx.faults)));
        details.push(("faults_tx", format!("{:?}", self.tx.faults)));
        details
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.rx.clear(bufs);
        self.tx.clear(bufs);
        bufs.free(&mut self.ready);
        self.inner.close(bufs);
    }
}

/// Maximum number of frames that wait in one direction before the port stops taking more.
const QUEUE: usize = 4096;
