//! Two ports joined in memory: each receives what the other sends.

use crate::{Port, PortCounters, PortState};
use bywash_frame::{BATCH, Batch, Buffers, Frame, RawFrame};
use rtrb::{Consumer, Producer, RingBuffer};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State shared by both ends.
struct Joint {
    closed: [AtomicBool; 2],
    /// RX halves left behind by closed ends, with frames that were sent too late to be received.
    left: Mutex<[Option<Consumer<RawFrame>>; 2]>,
    /// Base address of the arena whose frames pass; 0 until the first frames do.
    arena: AtomicUsize,
}

/// One end of a pair. Frames move without a copy, so both ends must use buffers of the same arena.
///
/// A frame in flight is held by the end that will receive it. When that end is closed or dropped, the other end takes
/// back the frames it did not receive and goes down with the reason `peer closed`; before that it still receives what
/// was sent to it.
///
/// # Thread-safety
/// The two ends may be used on two threads; each belongs to one worker.
pub struct PairPort {
    tx: Producer<RawFrame>,
    /// `None` once closed.
    rx: Option<Consumer<RawFrame>>,
    joint: Arc<Joint>,
    side: usize,
    /// Set if the peer is gone and the frames it left were taken back.
    alone: bool,
    /// Set if buffers of another arena were offered.
    foreign: bool,
    counters: Arc<PortCounters>,
}

/// Returns two ends with room for `depth` frames in each direction, at least one batch.
pub fn pair(depth: usize) -> (PairPort, PairPort) {
    let depth = depth.max(BATCH);
    let ((tx_a, rx_b), (tx_b, rx_a)) = (RingBuffer::new(depth), RingBuffer::new(depth));
    let joint = Arc::new(Joint {
        closed: [AtomicBool::new(false), AtomicBool::new(false)],
        left: Mutex::new([None, None]),
        arena: AtomicUsize::new(0),
    });
    let end = |side, tx, rx, joint| PairPort {
        tx,
        rx: Some(rx),
        joint,
        side,
        alone: false,
        foreign: false,
        counters: Arc::default(),
    };
    (end(0, tx_a, rx_a, joint.clone()), end(1, tx_b, rx_b, joint))
}

impl PairPort {
    fn peer_closed(&self) -> bool {
        self.joint.closed[1 - self.side].load(Ordering::Acquire)
    }

    /// Returns whether frames of `bufs` may pass. If not, this end closes, and the peer takes back what was sent to it.
    #[inline]
    fn admits(&mut self, bufs: &Buffers) -> bool {
        let base = bufs.arena().base() as usize;
        let known = self.joint.arena.load(Ordering::Relaxed);
        if known == base || (known == 0 && self.claim(base)) {
            return true;
        }
        self.foreign = true;
        self.retire();
        false
    }

    #[cold]
    fn claim(&self, base: usize) -> bool {
        match self.joint.arena.compare_exchange(0, base, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(known) => known == base,
        }
    }

    /// Takes back the frames that the closed peer did not receive.
    #[cold]
    fn take_back(&mut self, bufs: &mut Buffers) {
        self.alone = true;
        let left = self.left()[1 - self.side].take();
        if let Some(mut ring) = left {
            drain(&mut ring, bufs);
        }
    }

    fn left(&self) -> MutexGuard<'_, [Option<Consumer<RawFrame>>; 2]> {
        self.joint.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the RX half to the peer. If the peer has already closed, returns both halves for the caller to drain: a
    /// frame sent after the first end's last poll is freed by no one else.
    fn retire(&mut self) -> [Option<Consumer<RawFrame>>; 2] {
        let Some(rx) = self.rx.take() else { return [None, None] };
        let mut left = self.left();
        left[self.side] = Some(rx);
        self.joint.closed[self.side].store(true, Ordering::Release);
        if self.peer_closed() { std::mem::take(&mut *left) } else { [None, None] }
    }
}

/// Fills `into` from the ring as far as possible, oldest frame first.
#[inline]
fn take<'a>(ring: &mut Consumer<RawFrame>, into: &'a mut [MaybeUninit<RawFrame>]) -> &'a [RawFrame] {
    let (taken, _) = ring.pop_partial_slice_uninit(into);
    taken
}

fn drain(ring: &mut Consumer<RawFrame>, bufs: &mut Buffers) {
    loop {
        let mut raw = [const { MaybeUninit::uninit() }; BATCH];
        let got = take(ring, &mut raw);
        if got.is_empty() {
            return;
        }
        // SAFETY: `tx_burst` gave them up, each once, and the caller's `bufs` are of the same arena (`admits`).
        unsafe { bufs.free_raw(got.iter().copied()) };
    }
}

impl Port for PairPort {
    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        if !self.admits(bufs) {
            return 0;
        }
        let Some(rx) = self.rx.as_mut() else { return 0 };
        let mut raw = [const { MaybeUninit::uninit() }; BATCH];
        let got = take(rx, &mut raw[..out.room()]);
        if got.is_empty() {
            return 0;
        }
        let mut bytes = 0;
        for &raw in got {
            bytes += u64::from(raw.len);
            // SAFETY: `tx_burst` gave the frame up, to an end of the same arena; the ring delivers it once.
            let pushed = out.push(unsafe { Frame::from_raw(raw) });
            debug_assert!(pushed.is_ok());
        }
        self.counters.rx_packets.add(got.len() as u64);
        self.counters.rx_bytes.add(bytes);
        got.len()
    }

    #[inline]
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        if frames.is_empty() || self.rx.is_none() || self.peer_closed() || !self.admits(bufs) {
            return 0;
        }
        // The other end's index is on another CPU: read it only if the cached value leaves too little room.
        let known = self.tx.cached_slots();
        let n = frames.len().min(if known < frames.len() { self.tx.slots() } else { known });
        if n < frames.len() {
            self.counters.tx_full.add(1);
        }
        let Ok(chunk) = self.tx.write_chunk_uninit(n) else { return 0 };
        let mut bytes = 0;
        chunk.fill_from_iter(frames.as_slice()[..n].iter().map(|f| {
            bytes += f.len() as u64;
            f.raw()
        }));
        frames.take_front(n, |_, _| {});
        self.counters.tx_packets.add(n as u64);
        self.counters.tx_bytes.add(bytes);
        n
    }

    #[inline]
    fn housekeep(&mut self, bufs: &mut Buffers) {
        if !self.alone && self.peer_closed() && self.admits(bufs) {
            self.take_back(bufs);
        }
    }

    fn held(&self) -> usize {
        let to_receive = self.rx.as_ref().map_or(0, Consumer::slots);
        let left_behind =
            if self.alone || !self.peer_closed() { 0 } else { self.tx.buffer().capacity() - self.tx.slots() };
        to_receive + left_behind
    }

    fn state(&self) -> PortState {
        if self.foreign {
            PortState::Down("the two ends use buffers of different arenas".into())
        } else if self.peer_closed() {
            PortState::Down("peer closed".into())
        } else {
            PortState::Up
        }
    }

    fn max_frame(&self) -> usize {
        usize::MAX
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        vec![("depth", self.tx.buffer().capacity().to_string())]
    }

    fn close(&mut self, bufs: &mut Buffers) {
        if !self.admits(bufs) {
            return;
        }
        if let Some(rx) = self.rx.as_mut() {
            drain(rx, bufs);
        }
        self.retire().iter_mut().flatten().for_each(|ring| drain(ring, bufs));
        self.alone |= self.peer_closed();
    }
}

impl Drop for PairPort {
    fn drop(&mut self) {
        self.retire();
    }
}
