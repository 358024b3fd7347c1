//! Sending side of one stream.

use crate::pace::Pacer;
use crate::stamp::Stamp;
use crate::stream::Templates;
use bywash_frame::{BATCH, Batch, Buffers};
use bywash_port::Port;
use std::sync::Arc;

/// Sends a stream: stamps each frame when it is due, and passes it to the port.
pub struct Sender {
    templates: Arc<Templates>,
    stream: u16,
    /// Total number of frames to send.
    frames: u64,
    /// Number of the next frame to build, and its index in the templates.
    next: u64,
    place: usize,
    /// Frames built but not yet accepted by the port.
    waiting: Batch,
    /// Frames accepted by the port.
    pub sent: u64,
    /// Times at which the first frame was due and the last accepted, in nanoseconds.
    pub span: Option<(u64, u64)>,
    /// Schedule of the frames.
    pub pacer: Pacer,
}

impl Sender {
    /// Creates a sender of at most `frames` frames of a stream.
    pub fn new(templates: Arc<Templates>, stream: u16, frames: u64, pacer: Pacer) -> Self {
        let (next, place, sent, span) = (0, 0, 0, None);
        Self { templates, stream, frames, next, place, waiting: Batch::new(), sent, span, pacer }
    }

    /// Sends the frames due at `now`, the time written into them in nanoseconds. Returns how many the port accepted.
    #[inline]
    pub fn turn(&mut self, bufs: &mut Buffers, port: &mut dyn Port, now: u64) -> usize {
        let room = (BATCH - self.waiting.len()) as u64;
        let left = self.frames - self.next;
        // Do not query the pacer when nothing is left to send: it would count as late.
        let want = if left == 0 { 0 } else { self.pacer.due(now).min(room).min(left) as usize };
        if want > 0 {
            let before = self.waiting.len();
            let n = bufs.alloc(&mut self.waiting, want);
            let arena = bufs.arena().clone();
            for frame in &mut self.waiting.as_mut_slice()[before..] {
                let fits = arena.resize(frame, self.templates.frames()[self.place].len as usize);
                debug_assert!(fits, "the bench refuses frames that are longer than a buffer");
                let stamp = Stamp { stream: self.stream, sequence: self.next as u32, time: now };
                self.templates.write(self.place, stamp, arena.data_mut(frame));
                self.next += 1;
                self.place = if self.place + 1 == self.templates.frames().len() { 0 } else { self.place + 1 };
            }
            self.pacer.spend(n as u64);
        }
        if self.waiting.is_empty() {
            return 0;
        }
        let taken = port.tx_burst(bufs, &mut self.waiting);
        if taken > 0 {
            self.sent += taken as u64;
            let first = self.span.map_or(now, |(first, _)| first);
            self.span = Some((first, now));
        }
        taken
    }

    /// Returns the nanoseconds from the first to the last frame sent.
    pub fn time(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last - first)
    }

    /// Returns whether all frames have been sent.
    pub fn ended(&self) -> bool {
        self.next == self.frames && self.waiting.is_empty()
    }

    /// Ends the stream early, and frees the frames not accepted by the port.
    pub fn stop(&mut self, bufs: &mut Buffers) {
        bufs.free(&mut self.waiting);
        self.frames = self.next;
    }
}
