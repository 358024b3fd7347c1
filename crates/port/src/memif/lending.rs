//! Client side of the datapath: packets stay in the arena, which the server has mapped.
//!
//! The client remembers which cell it put in each slot. The server's indices tell how many slots came back, and only
//! the length is taken from a returned descriptor.

use super::link::Link;
use super::memory::Desc;
use super::refusal::Refusal;
use crate::PortCounters;
use bywash_frame::{Arena, BATCH, Batch, Buffers, Frame, RawFrame};
use std::sync::Arc;

/// Region index of the arena.
const ARENA: u16 = 1;
/// The RX ring is refilled once this many slots are free.
const REFILL: usize = 32;

/// Number of frames in flight from which `crowded` asks to reclaim before sending.
const RECLAIM: usize = 32;

/// Number of different cache lines at which packets begin in their cells. With one common offset, the packets of a
/// burst would share two sets of the L1 cache, on either side, and those of a ring 64 sets of the L2.
const LINES: u64 = 4;
const LINE: u64 = 64;
/// Log2 of the size of two cells of the smallest size in bytes. Two such neighbours lie in different sets of the L1
/// anyway.
const CELLS: u32 = 12;
/// Log2 of the distance in bytes after which addresses map to the same set of an L2 with 2,048 sets.
const ROUND: u32 = 17;
/// Bytes of a cell given up for this offset.
pub const SPREAD: usize = ((LINES - 1) * LINE) as usize;

/// Returns the bytes between the data offset of the cell at `addr` and the start of the packet.
#[inline(always)]
pub fn skip(addr: u64) -> usize {
    (((addr >> CELLS ^ addr >> ROUND) & (LINES - 1)) * LINE) as usize
}

/// Slots of one ring that the server owns, with the cells in them.
struct Lent {
    /// Arena address of the data of each slot's cell.
    addrs: Box<[u64]>,
    /// Slots given to the server so far, modulo 2^16.
    given: u16,
    /// Slots returned by the server so far, modulo 2^16.
    back: u16,
}

impl Lent {
    fn new(slots: usize) -> Self {
        Self { addrs: vec![0; slots].into(), given: 0, back: 0 }
    }

    #[inline]
    fn out(&self) -> usize {
        usize::from(self.given.wrapping_sub(self.back))
    }

    #[inline]
    fn room(&self) -> usize {
        self.addrs.len() - self.out()
    }

    /// Returns how many slots have been returned when the server's index is `limit`. Errors with [`Refusal::Jump`] if
    /// that is more than it owns.
    #[inline]
    fn returned(&self, limit: u16) -> Result<usize, Refusal> {
        let returned = usize::from(limit.wrapping_sub(self.back));
        if returned <= self.out() { Ok(returned) } else { Err(Refusal::Jump) }
    }

    #[inline]
    fn slot(&self, index: u16) -> usize {
        usize::from(index) & (self.addrs.len() - 1)
    }

    #[inline]
    fn give(&mut self, addr: u64) {
        let slot = self.slot(self.given);
        self.addrs[slot] = addr;
        self.given = self.given.wrapping_add(1);
    }

    #[inline]
    fn take(&mut self) -> u64 {
        let addr = self.addrs[self.slot(self.back)];
        self.back = self.back.wrapping_add(1);
        addr
    }

    /// Returns the cells in the next `n` slots to be returned.
    #[inline]
    fn next(&self, n: usize) -> impl Iterator<Item = u64> + '_ {
        (0..n as u16).map(|i| self.addrs[self.slot(self.back.wrapping_add(i))])
    }

    /// Frees the cells of the next `n` slots.
    #[inline]
    fn free(&mut self, n: usize, bufs: &mut Buffers) {
        let cells = (0..n).map(|_| RawFrame { addr: self.take(), ..RawFrame::default() });
        // SAFETY: each slot was given a frame's cell, and is taken once.
        unsafe { bufs.free_raw(cells) };
    }
}

/// Cells that a client has lent to the server.
pub struct Lending {
    /// Empty cells for the server to fill.
    rx: Lent,
    /// Packets for the server to read.
    tx: Lent,
}

impl Lending {
    pub fn new(link: &Link) -> Self {
        Self { rx: Lent::new(link.rx.slots()), tx: Lent::new(link.tx.slots()) }
    }

    /// Returns the index up to which the RX ring can be received.
    #[inline]
    pub fn limit(link: &Link) -> u16 {
        link.rx.tail()
    }

    /// Returns the number of descriptors to receive up to `limit`. Errors with [`Refusal::Jump`] if the index is out of
    /// range.
    #[inline]
    pub fn waiting(&self, limit: u16) -> Result<usize, Refusal> {
        self.rx.returned(limit)
    }

    /// Returns the number of frames that the server holds.
    pub fn held(&self) -> usize {
        self.rx.out() + self.tx.out()
    }

    /// Receives packets up to `limit`, as far as `out` has room; returns how many.
    #[inline]
    pub fn receive(
        &mut self,
        (link, limit): (&Link, u16),
        bufs: &mut Buffers,
        out: &mut Batch,
        counters: &PortCounters,
    ) -> Result<usize, Refusal> {
        let waiting = self.rx.returned(limit)?;
        let n = waiting.min(out.room());
        let max = (bufs.arena().max_data() - SPREAD) as u32;
        let (mut done, mut bytes) = (0, 0);
        while done < n {
            let desc = link.rx.desc(self.rx.back);
            if desc.next || desc.length == 0 || desc.length > max {
                break;
            }
            let addr = self.rx.take();
            bytes += u64::from(desc.length);
            // SAFETY: the server has just returned the slot's cell; the length was checked to fit it.
            let pushed = out.push(unsafe { Frame::from_raw(RawFrame { addr, len: desc.length, options: 0 }) });
            debug_assert!(pushed.is_ok());
            done += 1;
        }
        // `refill` writes these descriptors next.
        link.rx.prefetch_to_write(self.rx.back, (waiting - done).min(BATCH));
        counters.rx_packets.add(done as u64);
        counters.rx_bytes.add(bytes);
        if done == 0 && n > 0 {
            return self.receive_exception(link, waiting, bufs, out, counters);
        }
        Ok(done)
    }

    /// Receives the next packet, which is chained or invalid. Reassembles a chain in the first part's cell.
    #[cold]
    fn receive_exception(
        &mut self,
        link: &Link,
        waiting: usize,
        bufs: &mut Buffers,
        out: &mut Batch,
        counters: &PortCounters,
    ) -> Result<usize, Refusal> {
        let arena: Arc<Arena> = bufs.arena().clone();
        let max = arena.max_data() - SPREAD;
        let mut whole: Option<Frame> = None;
        let mut fits = true;
        let mut end = Err(Refusal::Chain);
        for _ in 0..waiting {
            let desc = link.rx.desc(self.rx.back);
            let addr = self.rx.take();
            let len = if desc.length as usize <= max { desc.length } else { 0 };
            fits &= len == desc.length;
            // SAFETY: as in `receive`.
            let part = unsafe { Frame::from_raw(RawFrame { addr, len, options: 0 }) };
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => {
                    let had = whole.len();
                    fits = fits && had + part.len() <= max && arena.resize(whole, had + part.len());
                    if fits {
                        arena.data_mut(whole)[had..].copy_from_slice(arena.data(&part));
                    }
                    bufs.free_one(part);
                }
            }
            if !desc.next {
                end = Ok(());
                break;
            }
        }
        let Some(whole) = whole else { return Ok(0) };
        let n = super::put_together(whole, end.is_ok() && fits, bufs, out, counters);
        end.map(|()| n)
    }

    /// Fills the RX ring with empty cells once [`REFILL`] slots are free.
    #[inline]
    pub fn refill(&mut self, link: &Link, bufs: &mut Buffers) {
        if self.rx.room() < REFILL {
            return;
        }
        let length = (bufs.arena().max_data() - SPREAD) as u32;
        let before = self.rx.given;
        while self.rx.room() > 0 {
            let (mut fresh, want) = (Batch::new(), self.rx.room().min(BATCH));
            let got = bufs.alloc(&mut fresh, want);
            for frame in fresh.drain() {
                let addr = frame.into_raw().addr;
                let addr = addr + skip(addr) as u64;
                link.rx.set_desc(self.rx.given, Desc { next: false, region: ARENA, length, offset: addr as u32 });
                self.rx.give(addr);
            }
            if got < want {
                break;
            }
        }
        if self.rx.given != before {
            link.rx.set_head(self.rx.given);
        }
    }

    /// Frees the frames that the server has read. Errors with [`Refusal::Jump`] if its index is out of range.
    #[inline]
    pub fn reclaim(&mut self, link: &Link, bufs: &mut Buffers) -> Result<(), Refusal> {
        let n = self.tx.returned(link.tx.tail())?;
        if n > 0 {
            // The server's cache holds these lines, so each write would wait for a transfer; prefetched together, the
            // transfers overlap. These cells are likely to be allocated and written next.
            if let Some(arena) = link.regions.get(usize::from(ARENA)) {
                self.tx.next(n.min(BATCH)).for_each(|addr| arena.prefetch_to_write(addr));
            }
            link.tx.prefetch_to_write(self.tx.given, BATCH);
            self.tx.free(n, bufs);
        }
        Ok(())
    }

    /// Returns the number of sent frames that the server has not returned.
    #[inline]
    pub fn sending(&self) -> usize {
        self.tx.out()
    }

    /// Returns whether to call `reclaim` before `frames` more are sent.
    #[inline]
    pub fn crowded(&self, frames: usize) -> bool {
        self.tx.out() >= RECLAIM || self.tx.room() < frames
    }

    /// Sends from the front of `frames`, as far as there are free slots; returns how many.
    #[inline]
    pub fn send(&mut self, link: &Link, frames: &mut Batch, counters: &PortCounters) -> usize {
        let n = frames.len().min(self.tx.room());
        let mut bytes = 0;
        frames.take_front(n, |_, raw| {
            let desc = Desc { next: false, region: ARENA, length: raw.len, offset: raw.addr as u32 };
            link.tx.set_desc(self.tx.given, desc);
            self.tx.give(raw.addr);
            bytes += u64::from(raw.len);
        });
        link.tx.set_head(self.tx.given);
        counters.tx_packets.add(n as u64);
        counters.tx_bytes.add(bytes);
        n
    }

    /// Frees all lent cells. The link must not be used afterwards.
    pub fn end(&mut self, bufs: &mut Buffers) {
        self.rx.free(self.rx.out(), bufs);
        self.tx.free(self.tx.out(), bufs);
    }
}
