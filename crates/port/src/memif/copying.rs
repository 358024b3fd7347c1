//! Server side of the datapath: packets lie in the client's memory and are copied from and to it.
//!
//! A burst's descriptors are read and validated first while the data they point to is prefetched; then the data is
//! copied. Chains and invalid descriptors take a separate path.

use super::lending;
use super::link::Link;
use super::memory::{Desc, Region};
use super::refusal::Refusal;
use crate::PortCounters;
use bywash_frame::{BATCH, Batch, Buffers, Frame, RawFrame};

/// Server's indices of its rings. The indices that the server writes are kept here; the copies in shared memory are
/// never read back.
#[derive(Default)]
pub struct Copying {
    /// Receive index: slots received from so far.
    received: u16,
    /// Transmit index: slots sent in so far.
    sent: u16,
    /// Head of the TX ring, as last read: slots that the client has provided.
    given: u16,
}

/// Returns the region of a descriptor. `None` if the index is unknown or the bytes are not all in the region.
#[inline]
fn region<'a>(link: &'a Link, desc: &Desc) -> Option<&'a Region> {
    link.regions.get(usize::from(desc.region)).filter(|region| region.has(desc.offset, desc.length as usize))
}

impl Copying {
    /// Returns the index up to which the RX ring can be received.
    #[inline]
    pub fn limit(link: &Link) -> u16 {
        link.rx.head()
    }

    /// Returns the number of descriptors to receive up to `limit`. Errors with [`Refusal::Jump`] if that is more than
    /// the ring has.
    #[inline]
    pub fn waiting(&self, link: &Link, limit: u16) -> Result<usize, Refusal> {
        let waiting = usize::from(limit.wrapping_sub(self.received));
        if waiting <= link.rx.slots() { Ok(waiting) } else { Err(Refusal::Jump) }
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
        let waiting = self.waiting(link, limit)?;
        let n = waiting.min(out.room());
        if n == 0 {
            return Ok(0);
        }
        let max = bufs.arena().max_data();
        let mut descs = [Desc::default(); BATCH];
        let mut plain = 0;
        while plain < n {
            let desc = link.rx.desc(self.received.wrapping_add(plain as u16));
            let Some(region) = region(link, &desc) else { break };
            if desc.next || desc.length == 0 || desc.length as usize > max {
                break;
            }
            region.prefetch(desc.offset);
            descs[plain] = desc;
            plain += 1;
        }
        if plain == 0 {
            return self.receive_exception(link, waiting, bufs, out, counters);
        }
        let mut frames = Batch::new();
        let n = bufs.alloc(&mut frames, plain);
        let mut bytes = 0;
        for (frame, desc) in frames.as_mut_slice().iter_mut().zip(&descs) {
            bytes += u64::from(desc.length);
            fill(link, desc, bufs, frame);
        }
        frames.move_to(out);
        self.received = self.received.wrapping_add(n as u16);
        link.rx.set_tail(self.received);
        link.rx.prefetch(self.received, (waiting - n).min(BATCH));
        counters.rx_packets.add(n as u64);
        counters.rx_bytes.add(bytes);
        Ok(n)
    }

    /// Receives the next packet, which is chained or invalid.
    #[cold]
    fn receive_exception(
        &mut self,
        link: &Link,
        waiting: usize,
        bufs: &mut Buffers,
        out: &mut Batch,
        counters: &PortCounters,
    ) -> Result<usize, Refusal> {
        let Some(mut frame) = bufs.alloc_one() else { return Ok(0) };
        let (mut used, mut fits) = (0, true);
        let end = loop {
            if used == waiting {
                break Err(Refusal::Chain);
            }
            let desc = link.rx.desc(self.received.wrapping_add(used as u16));
            used += 1;
            if region(link, &desc).is_none() {
                break Err(Refusal::Descriptor);
            }
            fits = fits && append(link, &desc, bufs, &mut frame);
            if !desc.next {
                break Ok(());
            }
        };
        let n = super::put_together(frame, end.is_ok() && fits, bufs, out, counters);
        end?;
        self.received = self.received.wrapping_add(used as u16);
        link.rx.set_tail(self.received);
        Ok(n)
    }

    /// Reads the head of the TX ring. Returns how many buffers the client has provided that are still free; errors with
    /// [`Refusal::Jump`] if those are more than the ring has.
    #[inline]
    fn provided(&mut self, link: &Link) -> Result<usize, Refusal> {
        self.given = link.tx.head();
        let room = usize::from(self.given.wrapping_sub(self.sent));
        if room <= link.tx.slots() { Ok(room) } else { Err(Refusal::Jump) }
    }

    /// Sends from the front of `frames`, as far as the client has provided buffers; returns how many were taken.
    #[inline]
    pub fn send(
        &mut self,
        link: &Link,
        bufs: &mut Buffers,
        frames: &mut Batch,
        counters: &PortCounters,
    ) -> Result<usize, Refusal> {
        let mut room = usize::from(self.given.wrapping_sub(self.sent));
        if room < frames.len() {
            room = self.provided(link)?;
        }
        let n = frames.len().min(room);
        let mut descs = [Desc::default(); BATCH];
        let mut plain = 0;
        for (frame, to) in frames.as_slice()[..n].iter().zip(&mut descs) {
            let desc = link.tx.desc(self.sent.wrapping_add(plain as u16));
            let region = region(link, &desc).ok_or(Refusal::Descriptor)?;
            if (desc.length as usize) < frame.len() {
                break;
            }
            region.prefetch(desc.offset);
            *to = Desc { next: false, length: frame.len() as u32, ..desc };
            plain += 1;
        }
        if plain == 0 && n > 0 {
            return self.send_in_parts(link, bufs, frames, counters);
        }
        let (mut bytes, mut raws) = (0, [RawFrame::default(); BATCH]);
        for (i, (frame, desc)) in frames.as_slice()[..plain].iter().zip(&descs).enumerate() {
            bytes += u64::from(desc.length);
            if let Some(region) = link.regions.get(usize::from(desc.region)) {
                region.write(desc.offset, bufs.arena().data(frame));
            }
            link.tx.set_desc(self.sent.wrapping_add(i as u16), *desc);
        }
        self.sent = self.sent.wrapping_add(plain as u16);
        link.tx.set_tail(self.sent);
        link.tx.prefetch_to_write(self.sent, (room - plain).min(BATCH));
        frames.take_front(plain, |i, raw| raws[i] = raw);
        // SAFETY: frames of the caller, just taken out of the batch.
        unsafe { bufs.free_raw(raws[..plain].iter().copied()) };
        counters.tx_packets.add(plain as u64);
        counters.tx_bytes.add(bytes);
        Ok(plain)
    }

    /// Sends the first frame in several descriptors, because the client's next buffer is too small for it. Drops the
    /// frame if all of the ring's buffers together are too small.
    #[cold]
    fn send_in_parts(
        &mut self,
        link: &Link,
        bufs: &mut Buffers,
        frames: &mut Batch,
        counters: &PortCounters,
    ) -> Result<usize, Refusal> {
        // A frame may need more buffers than were free when the head was last read.
        let room = self.provided(link)?;
        let Some(first) = frames.as_slice().first() else { return Ok(0) };
        let packet = bufs.arena().data(first);
        let (mut done, mut used) = (0, 0);
        while done < packet.len() && used < room {
            let at = self.sent.wrapping_add(used as u16);
            let desc = link.tx.desc(at);
            let region = region(link, &desc).filter(|_| desc.length > 0).ok_or(Refusal::Descriptor)?;
            let part = &packet[done..packet.len().min(done + desc.length as usize)];
            region.write(desc.offset, part);
            done += part.len();
            used += 1;
            link.tx.set_desc(at, Desc { next: done < packet.len(), length: part.len() as u32, ..desc });
        }
        let sent = done == packet.len();
        if !sent && room < link.tx.slots() {
            // The client may provide more buffers later. It sees the parts written so far only once the tail moves.
            return Ok(0);
        }
        let bytes = packet.len() as u64;
        let mut raw = RawFrame::default();
        frames.take_front(1, |_, first| raw = first);
        // SAFETY: as in `send`.
        unsafe { bufs.free_raw(std::iter::once(raw)) };
        if sent {
            self.sent = self.sent.wrapping_add(used as u16);
            link.tx.set_tail(self.sent);
            counters.tx_packets.add(1);
            counters.tx_bytes.add(bytes);
        } else {
            counters.tx_refused.add(1);
        }
        Ok(1)
    }
}

/// Copies a descriptor's bytes into an empty frame. The caller has checked that they lie in their region and fit.
#[inline(always)]
fn fill(link: &Link, desc: &Desc, bufs: &mut Buffers, frame: &mut Frame) {
    let arena = bufs.arena();
    spread(bufs, frame, desc.length as usize);
    if let Some(region) = link.regions.get(usize::from(desc.region)) {
        region.read(desc.offset, arena.data_mut(frame));
    }
}

/// Resizes the frame to `len` bytes, beginning at the same cache line as in `Lending`, or at the data offset if they
/// would not fit otherwise.
#[inline(always)]
fn spread(bufs: &Buffers, frame: &mut Frame, len: usize) {
    let arena = bufs.arena();
    let skip = lending::skip(frame.addr());
    if arena.resize(frame, skip + len) {
        frame.pull(skip);
    } else {
        let fits = arena.resize(frame, len);
        debug_assert!(fits);
    }
}

/// Appends a descriptor's bytes to the frame. Returns false if they do not fit.
fn append(link: &Link, desc: &Desc, bufs: &mut Buffers, frame: &mut Frame) -> bool {
    let (arena, had, more) = (bufs.arena(), frame.len(), desc.length as usize);
    if had + more > arena.max_data() || !arena.resize(frame, had + more) {
        return false;
    }
    region(link, desc).is_some_and(|region| region.read(desc.offset, &mut arena.data_mut(frame)[had..]))
}
