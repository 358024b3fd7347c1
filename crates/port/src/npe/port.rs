//! Channels of a device as ports of workers.

use super::{Channel, Config, Counters, Error, Running, create};
use crate::{Port, PortCounters, PortState};
use bywash_frame::{Arena, ArenaConfig, ArenaError, Batch, Buffers, PoolError, PoolKind, PoolSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Error of [`open`].
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device's memory could not be mapped.
    #[error("{0}")]
    Arena(#[from] ArenaError),
    /// The device's memory could not be divided into pools.
    #[error("{0}")]
    Pool(#[from] PoolError),
    /// The device could not be created.
    #[error("{0}")]
    Device(#[from] Error),
    /// The device's thread could not be started.
    #[error("cannot start the device's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Memory of a device that [`open`] creates.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Cell size in bytes.
    pub cell: usize,
    /// Number of cells in a block.
    pub block: usize,
    /// Number of blocks of each channel.
    pub blocks: usize,
}

/// Creates a device over `ports` with memory of its own, starts its thread, and returns a port for each channel, in
/// order. The device receives once all of them have been polled, and ends when the last is dropped.
pub fn open(config: Config, ports: Vec<Box<dyn Port>>, memory: Memory) -> Result<Vec<ChannelPort>, OpenError> {
    let layout = config.layout(PoolKind::Tabm, memory.block * memory.blocks, memory.block);
    let cells = layout.iter().map(|pool| pool.frames).sum();
    let pools = PoolSet::new(Arena::new(ArenaConfig { cells, cell: memory.cell, ..Default::default() })?, &layout)?;
    let (device, channels) = create(config, ports, &pools)?;
    let (polled, all) = (Arc::new(AtomicUsize::new(0)), config.channels);
    let by_ports = Arc::clone(&polled);
    let device = Arc::new(device.start_when(None, move || polled.load(Ordering::Relaxed) == all)?);
    let port = |(at, channel)| ChannelPort {
        memory: Some(Buffers::attach(&pools, 0)),
        channel: Some(channel),
        device: Arc::clone(&device),
        reports: at == 0,
        to_poll: Some(Arc::clone(&by_ports)),
        received: Batch::new(),
        counters: Arc::default(),
    };
    Ok(channels.into_iter().enumerate().map(port).collect())
}

/// Channel as a port. Copies each packet between the device's memory and the worker's buffers, because the device
/// reclaims a cell when its own thread hands it back, and a worker frees its buffers wherever their packets leave.
pub struct ChannelPort {
    /// Handle on the device's own pool, and the channel; `None` once closed.
    memory: Option<Buffers>,
    channel: Option<Channel>,
    device: Arc<Running>,
    /// Set in the port of the first channel, which reports the device's losses.
    reports: bool,
    /// Number of ports polled so far; `None` once this one has been.
    to_poll: Option<Arc<AtomicUsize>>,
    /// Packets received from the device and not yet copied.
    received: Batch,
    counters: Arc<PortCounters>,
}

impl Port for ChannelPort {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let Some(channel) = &mut self.channel else { return 0 };
        if let Some(polled) = self.to_poll.take() {
            polled.fetch_add(1, Ordering::Relaxed);
        }
        if self.received.is_empty() {
            channel.poll(&mut self.received);
        }
        let (mut n, mut bytes) = (0, 0);
        self.received.filter(|at, packet| {
            let takes = n == at && out.room() > 0 && channel.takes();
            let Some(mut frame) = takes.then(|| bufs.alloc_one()).flatten() else { return Some(packet) };
            let fits = bufs.arena().write(&mut frame, channel.arena().data(&packet));
            debug_assert!(fits, "the cells of both have the same size");
            (n, bytes) = (n + 1, bytes + frame.len() as u64);
            let pushed = out.push(frame).is_ok() && channel.drop_packet(packet).is_ok();
            debug_assert!(pushed, "both had room");
            None
        });
        self.counters.rx_packets.add(n as u64);
        self.counters.rx_bytes.add(bytes);
        n
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let (Some(memory), Some(channel)) = (&mut self.memory, &mut self.channel) else { return 0 };
        let (mut n, mut bytes) = (0, 0);
        while n < frames.len() && channel.takes() {
            let Some(mut cell) = memory.alloc_one() else { break };
            let frame = &frames.as_slice()[n];
            let fits = memory.arena().write(&mut cell, bufs.arena().data(frame));
            let taken = channel.send(cell, 0, frame.len()).is_ok();
            debug_assert!(fits && taken, "the cells of both have the same size, and the device takes it");
            (n, bytes) = (n + 1, bytes + frame.len() as u64);
        }
        let mut sent = Batch::new();
        frames.move_front(n, &mut sent);
        bufs.free(&mut sent);
        self.counters.tx_packets.add(n as u64);
        self.counters.tx_bytes.add(bytes);
        self.counters.tx_full.add(u64::from(!frames.is_empty()));
        n
    }

    fn housekeep(&mut self, _bufs: &mut Buffers) {
        if self.reports {
            let Counters { channel_full, no_buffer, tx_full, .. } = &**self.device.counters();
            self.counters.rx_ring_full.set(channel_full.get());
            self.counters.rx_no_buffer.set(no_buffer.get());
            self.counters.tx_refused.set(tx_full.get());
        }
    }

    fn state(&self) -> PortState {
        match self.device.ended() {
            true => PortState::Down("the dispatching device has failed; see the log".into()),
            false => PortState::Up,
        }
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, _bufs: &mut Buffers) {
        if let Some(memory) = &mut self.memory {
            memory.free(&mut self.received);
        }
        (self.channel, self.memory) = (None, None);
    }
}
