//! Frames longer than a chunk, in cells larger than a chunk: received in several buffers, sent by several descriptors
//! (`XDP_USE_SG`, Linux 6.6).
//!
//! The kernel's chunks are at most a page. Of a larger cell, only the first chunk is posted. When a frame arrives in
//! several buffers, the later ones are copied after the first, so that a frame is always contiguous. A frame to send
//! occupies consecutive chunks of its cell and is not copied here.

use bywash_frame::{Arena, Buffers, Frame, RawFrame};

/// `XDP_PKT_CONTD` (linux/if_xdp.h): the frame continues in the next descriptor.
pub(super) const MORE: u32 = 1;

/// Additional state of a port whose cells are larger than chunks.
pub(super) struct Long {
    chunk: usize,
    /// Frame whose last buffer has not been received yet.
    head: Option<Frame>,
    /// Set if that frame is longer than a cell.
    spoilt: bool,
    /// Descriptors in flight of each cell that is being sent.
    out: Box<[u8]>,
}

impl Long {
    /// Creates the state for an arena with cells larger than `chunk` bytes.
    pub fn new(arena: &Arena, chunk: usize) -> Self {
        Self { chunk, head: None, spoilt: false, out: vec![0; arena.cells()].into() }
    }

    /// Adds a received buffer; returns the frame if this was its last buffer. A frame longer than a cell is returned
    /// empty.
    #[inline]
    pub fn join(&mut self, bufs: &mut Buffers, piece: Frame, more: bool) -> Option<Frame> {
        if self.head.is_none() && !more {
            return Some(piece);
        }
        self.join_more(bufs, piece, more)
    }

    fn join_more(&mut self, bufs: &mut Buffers, piece: Frame, more: bool) -> Option<Frame> {
        match &mut self.head {
            None => self.head = Some(piece),
            Some(head) => {
                let (arena, had) = (bufs.arena(), head.len());
                self.spoilt |= !arena.resize(head, had + piece.len());
                if !self.spoilt {
                    arena.data_mut(head)[had..].copy_from_slice(arena.data(&piece));
                }
                bufs.free_one(piece);
            }
        }
        if more {
            return None;
        }
        let mut frame = self.head.take()?;
        if std::mem::take(&mut self.spoilt) {
            frame.truncate(0);
        }
        Some(frame)
    }

    /// Returns the number of descriptors needed to send this frame.
    #[inline]
    pub fn descriptors(&self, raw: RawFrame) -> u32 {
        let at = raw.addr as usize % self.chunk;
        (at + raw.len as usize).div_ceil(self.chunk) as u32
    }

    /// Returns how many of `frames`, from the front, can be sent with `room` descriptors, and how many descriptors they
    /// need.
    pub fn fitting(&self, frames: &[Frame], room: u32) -> (usize, u32) {
        let mut used = 0;
        for (n, frame) in frames.iter().enumerate() {
            let more = self.descriptors(frame.raw());
            if used + more > room {
                return (n, used);
            }
            used += more;
        }
        (frames.len(), used)
    }

    /// Passes the descriptors to send a frame in `cell` to `put`.
    #[inline]
    pub fn send(&mut self, cell: u32, raw: RawFrame, mut put: impl FnMut(RawFrame)) {
        self.out[cell as usize] = self.descriptors(raw) as u8;
        let (mut addr, mut left) = (raw.addr, raw.len);
        while left > 0 {
            let len = left.min((self.chunk - addr as usize % self.chunk) as u32);
            left -= len;
            put(RawFrame { addr, len, options: if left > 0 { MORE } else { 0 } });
            addr += u64::from(len);
        }
    }

    /// Records the completion of a descriptor of `cell`; returns whether it was the last of its frame.
    #[inline]
    pub fn completed(&mut self, cell: u32) -> bool {
        let Some(out) = self.out.get_mut(cell as usize) else { return true };
        *out = out.saturating_sub(1);
        *out == 0
    }

    /// Returns the number of frames held: 0 or 1.
    pub fn held(&self) -> usize {
        self.head.is_some().into()
    }

    /// Forgets all descriptors in flight, and returns the incomplete frame if there is one.
    pub fn clear(&mut self) -> Option<Frame> {
        self.spoilt = false;
        self.out.fill(0);
        self.head.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_frame::{ArenaConfig, Pages, PoolConfig, PoolSet};
    use proptest::prelude::*;

    proptest! {
        /// A frame cut into descriptors and received in pieces is the original frame.
        #[test]
        fn pieces_make_the_frame_they_were_cut_of(len in 1usize..16128, pulled in 0usize..64, received in 1usize..3840) {
            let arena = Arena::new(ArenaConfig { cells: 64, cell: 16384, pages: Pages::Small, ..Default::default() });
            let pools = PoolSet::new(arena.unwrap(), &[PoolConfig::stack("main", 64)]).unwrap();
            let mut bufs = Buffers::attach(&pools, 0);
            let mut long = Long::new(pools.arena(), 4096);
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut frame = bufs.alloc_one().unwrap();
            prop_assert!(pools.arena().write(&mut frame, &bytes));
            frame.pull(pulled.min(len - 1));
            let (whole, cell) = (pools.arena().data(&frame).to_vec(), pools.arena().cell_of(frame.addr()));

            let (mut cut, mut seen) = (vec![], frame.addr());
            long.send(cell, frame.raw(), |raw| cut.push(raw));
            prop_assert_eq!(cut.len() as u32, long.descriptors(frame.raw()));
            for (n, raw) in cut.iter().enumerate() {
                prop_assert_eq!((raw.addr, raw.options), (seen, u32::from(n + 1 < cut.len()) * MORE));
                prop_assert!(raw.len > 0 && raw.addr / 4096 == (raw.addr + u64::from(raw.len) - 1) / 4096);
                prop_assert_eq!(long.completed(cell), n + 1 == cut.len());
                seen += u64::from(raw.len);
            }
            prop_assert_eq!(seen, frame.addr() + whole.len() as u64);
            bufs.free_one(frame);

            let received = received.max(whole.len() / 60);
            let mut came = None;
            for (n, part) in whole.chunks(received).enumerate() {
                prop_assert!(came.is_none());
                let mut piece = bufs.alloc_one().unwrap();
                prop_assert!(pools.arena().write(&mut piece, part));
                came = long.join(&mut bufs, piece, (n + 1) * received < whole.len());
                prop_assert_eq!(long.held() == 0, came.is_some());
            }
            let came = came.unwrap();
            prop_assert_eq!(pools.arena().data(&came), &whole[..]);
            bufs.free_one(came);
            drop(bufs);
            prop_assert_eq!(pools.verify(), (vec![], vec![]));
        }
    }

    #[test]
    fn what_no_cell_holds_is_an_empty_frame() {
        let arena = Arena::new(ArenaConfig { cells: 64, cell: 16384, pages: Pages::Small, ..Default::default() });
        let pools = PoolSet::new(arena.unwrap(), &[PoolConfig::stack("main", 64)]).unwrap();
        let mut bufs = Buffers::attach(&pools, 0);
        let mut long = Long::new(pools.arena(), 4096);
        let mut piece = |long: &mut Long, more| {
            let mut piece = bufs.alloc_one().unwrap();
            assert!(pools.arena().write(&mut piece, &[7; 3840]));
            long.join(&mut bufs, piece, more).map(|frame| {
                let len = frame.len();
                bufs.free_one(frame);
                len
            })
        };
        for _ in 0..4 {
            assert_eq!(piece(&mut long, true), None);
        }
        assert_eq!(piece(&mut long, false), Some(0));
        // The next frame is not affected.
        assert_eq!((piece(&mut long, true), piece(&mut long, false)), (None, Some(7680)));
    }
}
