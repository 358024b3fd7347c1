//! Key extraction for a burst: packet keys and header offsets.

use super::{AHEAD, Caches, Work};
use crate::emc::Emc;
use crate::exec::drop_as;
use crate::extract::{Layout, complete_partial, extract, plain};
use crate::megaflow::bits;
use bywash_engine::{Context, DropReason, Event, PortId};
use bywash_frame::{Arena, BATCH, Frame};

/// Completes partial checksums, which a sender on this host left to its device.
#[inline(never)]
pub(super) fn complete(cx: &mut Context<'_>, from: PortId, frames: &mut [Frame]) {
    let arena = cx.bufs.arena();
    let completed = frames.iter_mut().fold(0, |n, frame| n + u64::from(complete_partial(arena.data_mut(frame))));
    if completed > 0 {
        cx.event(from, Event::ChecksumCompleted, completed);
    }
}

impl Work {
    /// Extracts the keys of the plain packets.
    #[inline]
    pub(super) fn read_plain(&mut self, arena: &Arena, caches: &Caches, of: u16, frames: &[Frame]) {
        frames.iter().take(AHEAD).for_each(|f| arena.prefetch(f));
        let mut plain_ones = 0;
        for (i, frame) in frames.iter().enumerate() {
            if let Some(ahead) = frames.get(i + AHEAD) {
                arena.prefetch(ahead);
            }
            let Some(key) = arena.head(frame).and_then(|head| plain(head, frame.len(), of)) else { continue };
            let hash = Emc::hash(&key, caches.ends.seed);
            (self.plain_keys[i % BATCH], self.hashes[i % BATCH]) = (key, hash);
            caches.plain.prefetch(hash);
            plain_ones |= 1 << (i % BATCH);
        }
        self.plain = plain_ones;
    }

    /// Extracts the keys of the other packets; runts are marked to be dropped.
    pub(super) fn read_others(
        &mut self,
        arena: &Arena,
        caches: &Caches,
        (of, tags): (u16, usize),
        frames: &mut [Frame],
        others: u64,
    ) {
        for i in bits(others) {
            if self.read(arena, (of, tags), &frames[i], i) {
                self.hashes[i] = Emc::hash(&self.keys[i], caches.ends.seed);
                if let Some(cache) = &caches.others {
                    cache.prefetch(self.hashes[i]);
                }
            } else {
                self.to[i] = drop_as(DropReason::Runt);
            }
        }
    }

    /// Extracts the full key of a packet from port `of`, with up to `tags` VLAN tags. Returns `false` if the frame is
    /// shorter than an Ethernet header.
    #[inline]
    pub(super) fn read(&mut self, arena: &Arena, (of, tags): (u16, usize), frame: &Frame, i: usize) -> bool {
        match extract(arena.data(frame), of, tags, &mut self.keys[i]) {
            Some(layout) => {
                self.layouts[i] = layout;
                true
            }
            None => {
                self.layouts[i] = Layout::default();
                false
            }
        }
    }
}
