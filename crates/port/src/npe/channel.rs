//! A thread's end of the device.

use super::Left;
use bywash_frame::{Arena, Batch, Buffers, Frame, META, PoolSet};
use rtrb::{Consumer, Producer};
use std::sync::{Arc, Mutex, PoisonError};

/// What the device writes in front of each packet, in the metadata of its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Where the next packet of this channel will lie, as an offset in the arena; none: not known yet.
    pub next: Option<u64>,
    /// Bytes of the packet.
    pub len: u32,
    /// Number of the port it came in by.
    pub port: u16,
}

impl Descriptor {
    /// Writes it into a cell's metadata.
    pub(super) fn put(self, meta: &mut [u8; META]) {
        meta[..8].copy_from_slice(&self.next.unwrap_or(u64::MAX).to_le_bytes());
        meta[8..12].copy_from_slice(&self.len.to_le_bytes());
        meta[12..14].copy_from_slice(&self.port.to_le_bytes());
    }

    fn get(meta: &[u8; META]) -> Self {
        let (next, rest) = meta.split_first_chunk().expect("8 of 128 bytes");
        let (len, rest) = rest.split_first_chunk().expect("4 of 120 bytes");
        let (port, _) = rest.split_first_chunk().expect("2 of 116 bytes");
        let next = Some(u64::from_le_bytes(*next)).filter(|at| *at != u64::MAX);
        Self { next, len: u32::from_le_bytes(*len), port: u16::from_le_bytes(*port) }
    }
}

/// A thread's end: what it receives, in order, and where it sends.
///
/// # Thread-safety
/// One thread's. What it has not received when it is dropped goes back to the pools.
pub struct Channel {
    pools: Arc<PoolSet>,
    /// None once dropped.
    inbox: Option<Consumer<Frame>>,
    outbox: Producer<(Frame, u16)>,
    left: Arc<Mutex<Left>>,
}

impl Channel {
    pub(super) fn new(
        pools: Arc<PoolSet>,
        inbox: Consumer<Frame>,
        outbox: Producer<(Frame, u16)>,
        left: Arc<Mutex<Left>>,
    ) -> Self {
        Self { pools, inbox: Some(inbox), outbox, left }
    }

    /// The memory that packets lie in.
    pub fn arena(&self) -> &Arc<Arena> {
        self.pools.arena()
    }

    /// Appends the chain of packets that have come, as far as there is room; returns how many.
    #[inline]
    pub fn poll(&mut self, chain: &mut Batch) -> usize {
        let Some(inbox) = &mut self.inbox else { return 0 };
        let n = inbox.slots().min(chain.room());
        let Ok(chunk) = inbox.read_chunk(n) else { return 0 };
        for frame in chunk {
            let pushed = chain.push(frame);
            debug_assert!(pushed.is_ok());
        }
        n
    }

    /// The descriptor of a packet that came by [`Channel::poll`].
    #[inline]
    pub fn descriptor(&self, packet: &mut Frame) -> Descriptor {
        Descriptor::get(self.pools.arena().meta_mut(packet))
    }

    /// Sends `len` bytes of the packet by a port, and lets go of it. Given back when the device is behind, or when the
    /// cell has no room for so many bytes. Port numbers that are none are dropped and counted by the device.
    #[inline]
    pub fn send(&mut self, mut packet: Frame, port: u16, len: usize) -> Result<(), Frame> {
        if !self.pools.arena().resize(&mut packet, len) {
            return Err(packet);
        }
        self.outbox.push((packet, port)).map_err(|rtrb::PushError::Full((packet, _))| packet)
    }

    /// Lets go of a packet without sending it.
    #[inline]
    pub fn drop_packet(&mut self, packet: Frame) -> Result<(), Frame> {
        self.outbox.push((packet, super::device::NOWHERE)).map_err(|rtrb::PushError::Full((packet, _))| packet)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut outbox) = left.outbox.take() else {
            // The device takes care of it.
            left.inbox = self.inbox.take();
            return;
        };
        let mut bufs = Buffers::attach(&self.pools, 0);
        while let Some(frame) = self.inbox.as_mut().and_then(|inbox| inbox.pop().ok()) {
            bufs.free_one(frame);
        }
        while let Ok((frame, _)) = outbox.pop() {
            bufs.free_one(frame);
        }
    }
}
