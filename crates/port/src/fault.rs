//! A decorator that does to frames what bad wires do.

use crate::{Port, PortCounters, PortState};
use bywash_frame::{Batch, Buffers, Frame};
use bywash_sync::{Counter, clock};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What shall happen to frames in one direction. Rates are probabilities a frame, from 0 (never) to 1 (always).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is lost.
    pub drop: f64,
    /// It comes twice, in a buffer of its own; when none is free, once.
    pub duplicate: f64,
    /// It changes places with the one behind it.
    pub reorder: f64,
    /// One byte of it is changed.
    pub corrupt: f64,
    /// It is cut to a random length.
    pub truncate: f64,
    /// Every frame comes this many nanoseconds later.
    pub delay_ns: u64,
    /// Frames beyond this many a second are lost; 0: no limit. Up to 64 may come at once, and with a queue as many as
    /// that holds.
    pub limit_pps: u64,
    /// Frames beyond the limit wait, up to this many, and go at the limit's rate; 0: they are lost.
    pub queue: usize,
}

/// What was done to frames in one direction, in frames.
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
    /// Put behind the next one.
    pub reordered: Counter,
    /// Changed in a byte.
    pub corrupted: Counter,
    /// Cut.
    pub truncated: Counter,
    /// Delayed.
    pub delayed: Counter,
}

/// Numbers that look random and are the same for the same seed: xorshift64* (Vigna, 2016).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Any state but zero; neighbouring seeds far apart.
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

/// One direction: the frames on their way, each with the time it may go.
struct Lane {
    faults: Faults,
    random: Random,
    delay: u64,
    /// Ticks a frame costs at the limit, and the time up to which they are spent: with a queue, when the last in it
    /// goes.
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

    /// Does to `frames` what is to be done, and lets them wait here.
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

    /// Moves what may go now to `out`.
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

/// A port with faults in either direction, the same for the same seed and the same traffic. For tests and for the
/// tester; its own frames cost an allocation now and then.
///
/// `rx_packets` and `tx_packets` are the inner port's: what the wire carried, not what came through.
pub struct Fault<P> {
    inner: P,
    rx: Lane,
    tx: Lane,
    /// On their way to the inner port, which had no room.
    ready: Batch,
}

impl<P: Port> Fault<P> {
    /// Decorates `inner`.
    pub fn new(inner: P, seed: u64, rx: Faults, tx: Faults) -> Self {
        Self { inner, rx: Lane::new(rx, seed), tx: Lane::new(tx, !seed), ready: Batch::new() }
    }

    /// What was done to received frames.
    pub fn rx_faults(&self) -> Arc<FaultCounters> {
        self.rx.counters.clone()
    }

    /// What was done to sent frames.
    pub fn tx_faults(&self) -> Arc<FaultCounters> {
        self.tx.counters.clone()
    }

    fn push_on(&mut self, bufs: &mut Buffers, now: u64) {
        self.tx.take(&mut self.ready, now);
        while !self.ready.is_empty() && self.inner.tx_burst(bufs, &mut self.ready) > 0 {
            self.tx.take(&mut self.ready, now);
        }
    }
}

impl<P: Port> Port for Fault<P> {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let before = out.len();
        let now = clock::tsc();
        let mut got = Batch::new();
        // A source that is faster than its reader must not pile up here.
        if self.rx.held.len() < QUEUE {
            self.inner.rx_burst(bufs, &mut got);
        }
        self.rx.put(bufs, &mut got, now);
        self.rx.take(out, now);
        out.len() - before
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let now = clock::tsc();
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
        self.push_on(bufs, clock::tsc());
        self.inner.housekeep(bufs);
    }

    fn held(&self) -> usize {
        self.inner.held() + self.rx.held.len() + self.tx.held.len() + self.ready.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // What waits here comes without a word from the descriptor.
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

    fn max_frame(&self) -> usize {
        self.inner.max_frame()
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.inner.counters()
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

/// Frames that may wait in one direction.
const QUEUE: usize = 4096;
