//! A stream as it is sent by a port.

use crate::pace::Pacer;
use crate::stamp::Stamp;
use crate::stream::Templates;
use bywash_frame::{BATCH, Batch, Buffers};
use bywash_port::Port;
use std::sync::Arc;

/// Sends a stream: stamps each frame when it is due, and hands it to the port.
pub struct Sender {
    templates: Arc<Templates>,
    stream: u16,
    /// When it ends: after so many frames.
    frames: u64,
    /// Number of the next frame to be written, and its place in the templates.
    next: u64,
    place: usize,
    /// Written, and not yet taken by the port.
    waiting: Batch,
    /// Frames the port took.
    pub sent: u64,
    /// When the first was due, and when the last was taken.
    pub span: Option<(u64, u64)>,
    /// When what is to go goes.
    pub pacer: Pacer,
}

impl Sender {
    /// At most `frames` frames of a stream.
    pub fn new(templates: Arc<Templates>, stream: u16, frames: u64, pacer: Pacer) -> Self {
        let (next, place, sent, span) = (0, 0, 0, None);
        Self { templates, stream, frames, next, place, waiting: Batch::new(), sent, span, pacer }
    }

    /// Sends what is due; `now` is the time that is written into the frames. Returns how many the port took.
    #[inline]
    pub fn turn(&mut self, bufs: &mut Buffers, port: &mut dyn Port, now: u64) -> usize {
        let room = (BATCH - self.waiting.len()) as u64;
        let left = self.frames - self.next;
        // A pacer that is asked for nothing is not behind.
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

    /// No frame is to be sent any more.
    pub fn ended(&self) -> bool {
        self.next == self.frames && self.waiting.is_empty()
    }

    /// Ends before its time: what the port did not take is given back.
    pub fn stop(&mut self, bufs: &mut Buffers) {
        bufs.free(&mut self.waiting);
        self.frames = self.next;
    }
}
