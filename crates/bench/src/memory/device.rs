//! Simulated network device between two descriptor rings, and its driver, for a traced pipeline.
//!
//! Both run on the worker's thread. The trace attributes accesses between two marks to the device.

use super::trace::Mark;
use bywash_frame::{Arena, BATCH, Batch, Buffers, Frame};
use bywash_port::{Port, PortCounters};
use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;

/// Frames freed at once when slots of the transmit ring are reused, as by default in DPDK (`tx_free_thresh`).
const FREED: usize = 32;

/// Descriptor for receiving: 32 bytes, the default of DPDK 18.08 on an X710 (RTE_LIBRTE_I40E_16BYTE_RX_DESC=n).
#[derive(Clone, Copy, Default)]
#[repr(align(32))]
struct RxDescriptor {
    addr: u64,
    /// Length of the packet written; 0 if none has been.
    len: u64,
}

/// Descriptor for sending: 16 bytes on an X710.
#[derive(Clone, Copy, Default)]
#[repr(align(16))]
struct TxDescriptor {
    addr: u64,
    /// Length to send; 0 once sent.
    len: u64,
}

/// Receiving side: takes packets in turn from its own memory and writes them to the frames posted.
pub struct Receive {
    arena: Arc<Arena>,
    packets: Vec<Vec<u8>>,
    ring: Box<[RxDescriptor]>,
    /// Frames posted, in ring order.
    posted: VecDeque<Frame>,
    /// Numbers of packets received, and of frames posted, which select descriptors.
    received: usize,
    filled: usize,
    counters: Arc<PortCounters>,
}

/// Sending side: reads the frames, which stay until their slots are reused.
pub struct Send {
    arena: Arc<Arena>,
    ring: Box<[TxDescriptor]>,
    sent: VecDeque<Frame>,
    filled: usize,
    counters: Arc<PortCounters>,
}

/// Lets a device work.
fn device<T>(work: impl FnOnce() -> T) -> T {
    Mark::Device.print();
    let done = work();
    Mark::Core.print();
    done
}

/// Returns the addresses of a slice.
fn addresses<T>(of: &[T]) -> Range<u64> {
    let range = of.as_ptr_range();
    range.start.addr() as u64..range.end.addr() as u64
}

impl Receive {
    /// Creates a device with a ring of `descriptors` descriptors that receives `packets` over and over.
    pub fn new(arena: Arc<Arena>, packets: Vec<Vec<u8>>, descriptors: usize) -> Self {
        let ring = vec![RxDescriptor::default(); descriptors].into();
        Self { arena, packets, ring, posted: VecDeque::new(), received: 0, filled: 0, counters: Arc::default() }
    }

    /// Returns the addresses of the ring.
    pub fn ring(&self) -> Range<u64> {
        addresses(&self.ring)
    }

    fn fill(&mut self, bufs: &mut Buffers) {
        let Self { ring, posted, filled, .. } = self;
        let mut batch = Batch::new();
        while posted.len() < ring.len() && bufs.alloc(&mut batch, BATCH.min(ring.len() - posted.len())) > 0 {
            for frame in batch.drain() {
                ring[*filled % ring.len()] = RxDescriptor { addr: frame.addr(), len: 0 };
                *filled += 1;
                posted.push_back(frame);
            }
        }
    }
}

impl Port for Receive {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        if self.posted.is_empty() {
            self.fill(bufs);
        }
        let Self { arena, packets, ring, posted, received, counters, .. } = self;
        let n = out.room().min(posted.len());
        device(|| {
            for (at, frame) in (*received..).zip(posted.iter_mut().take(n)) {
                let descriptor = &mut ring[at % ring.len()];
                debug_assert_eq!(descriptor.addr, frame.addr());
                let packet = &packets[at % packets.len()];
                let fits = arena.write(frame, packet);
                debug_assert!(fits);
                descriptor.len = packet.len() as u64;
            }
        });
        let mut bytes = 0;
        for mut frame in posted.drain(..n) {
            let len = ring[*received % ring.len()].len as usize;
            *received += 1;
            bytes += len as u64;
            arena.resize(&mut frame, len);
            let pushed = out.push(frame);
            debug_assert!(pushed.is_ok());
        }
        counters.rx_packets.add(n as u64);
        counters.rx_bytes.add(bytes);
        self.fill(bufs);
        n
    }

    fn tx_burst(&mut self, _bufs: &mut Buffers, _frames: &mut Batch) -> usize {
        0
    }

    fn held(&self) -> usize {
        self.posted.len()
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.posted.drain(..).for_each(|frame| bufs.free_one(frame));
    }
}

impl Send {
    /// Creates a device with a ring of `descriptors` descriptors.
    pub fn new(arena: Arc<Arena>, descriptors: usize) -> Self {
        let ring = vec![TxDescriptor::default(); descriptors].into();
        Self { arena, ring, sent: VecDeque::new(), filled: 0, counters: Arc::default() }
    }

    /// Returns the addresses of the ring.
    pub fn ring(&self) -> Range<u64> {
        addresses(&self.ring)
    }
}

impl Port for Send {
    fn rx_burst(&mut self, _bufs: &mut Buffers, _out: &mut Batch) -> usize {
        0
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let Self { arena, ring, sent, filled, counters } = self;
        let n = frames.len();
        let mut unused = Batch::new();
        while sent.len() + n > ring.len() {
            for frame in sent.drain(..FREED.min(sent.len())) {
                let pushed = unused.push(frame);
                debug_assert!(pushed.is_ok());
            }
            bufs.free(&mut unused);
        }
        let first = *filled;
        for frame in frames.drain() {
            ring[*filled % ring.len()] = TxDescriptor { addr: frame.addr(), len: frame.len() as u64 };
            *filled += 1;
            counters.tx_bytes.add(frame.len() as u64);
            sent.push_back(frame);
        }
        device(|| {
            for (at, frame) in (first..).zip(sent.range(sent.len() - n..)) {
                let descriptor = &mut ring[at % ring.len()];
                debug_assert_eq!(descriptor.addr, frame.addr());
                black_box(arena.data(frame).iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
                descriptor.len = 0;
            }
        });
        counters.tx_packets.add(n as u64);
        n
    }

    fn held(&self) -> usize {
        self.sent.len()
    }

    fn receives(&self) -> bool {
        false
    }

    fn max_frame(&self) -> usize {
        usize::MAX
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.sent.drain(..).for_each(|frame| bufs.free_one(frame));
    }
}
