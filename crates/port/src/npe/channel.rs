//! Thread's end of the device.

use super::Left;
use bywash_frame::{Arena, Batch, Buffers, Frame, META, PoolSet};
use bywash_sync::lock;
use rtrb::{Consumer, Producer};
use std::sync::{Arc, Mutex};

/// Descriptor that the device writes into the metadata of each packet's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Address of the channel's next packet, as an offset in the arena, so that a thread can follow its packets. `None`
    /// if not known yet: no cell is free, or the cell depends on the packet's length (`typewriter`).
    pub next: Option<u64>,
    /// Length of the packet in bytes.
    pub len: u32,
    /// Index of the ingress port.
    pub port: u16,
}

impl Descriptor {
    /// Writes the descriptor into a cell's metadata.
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

/// Thread's end of a device: receives packets in order, sends and releases them.
///
/// # Thread-safety
/// Used by one thread. Dropping it returns the packets not yet received to the pools.
pub struct Channel {
    pools: Arc<PoolSet>,
    /// `None` once dropped.
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

    /// Returns the arena that contains the packets.
    pub fn arena(&self) -> &Arc<Arena> {
        self.pools.arena()
    }

    /// Appends received packets to `chain`, up to its room; returns how many.
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

    /// Returns the descriptor of a packet received by [`Channel::poll`].
    #[inline]
    pub fn descriptor(&self, packet: &mut Frame) -> Descriptor {
        Descriptor::get(self.pools.arena().meta_mut(packet))
    }

    /// Returns whether the queue to the device has room for a packet.
    #[inline]
    pub fn takes(&self) -> bool {
        !self.outbox.is_full()
    }

    /// Hands the packet over to the device to send its first `len` bytes by `port`. Errors with the packet if the queue
    /// to the device is full or the cell has no room for `len` bytes. The device drops and counts packets for unknown
    /// ports.
    #[inline]
    pub fn send(&mut self, mut packet: Frame, port: u16, len: usize) -> Result<(), Frame> {
        if !self.pools.arena().resize(&mut packet, len) {
            return Err(packet);
        }
        // No device has as many ports: this number is as unknown as the one that stands for none.
        let port = port.min(super::device::NOWHERE - 1);
        self.outbox.push((packet, port)).map_err(|rtrb::PushError::Full((packet, _))| packet)
    }

    /// Releases a packet without sending it. Errors with the packet if the queue to the device is full.
    #[inline]
    pub fn drop_packet(&mut self, packet: Frame) -> Result<(), Frame> {
        self.outbox.push((packet, super::device::NOWHERE)).map_err(|rtrb::PushError::Full((packet, _))| packet)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let mut left = lock(&self.left);
        let Some(mut outbox) = left.outbox.take() else {
            // The device is still there and frees the frames.
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
