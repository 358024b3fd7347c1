//! Device side: dispatching, sending and reclaiming packets.

use super::channel::Descriptor;
use super::{Config, Dispatch, Left};
use crate::Port;
use bywash_frame::{BATCH, Batch, Buffers, Frame, PoolSet};
use bywash_sync::{Counter, lock};
use rtrb::{Consumer, Producer};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Port number that marks a packet released without sending.
pub(super) const NOWHERE: u16 = u16::MAX;

/// Turns between two checks for dropped channels.
const CHECK: u32 = 1024;

/// Turns without a packet after which the device's thread sleeps between turns, and for how long.
const IDLE: u32 = 1024;
const SLEEP: Duration = Duration::from_micros(50);

/// Counters of the device. Written by its thread, readable by any.
#[derive(Debug, Default)]
pub struct Counters {
    /// Packets dispatched to channels.
    pub dispatched: Counter,
    /// Packets sent by ports.
    pub sent: Counter,
    /// Packets released by threads without sending.
    pub dropped: Counter,
    /// Received packets dropped because their channel was full or its thread had ended.
    pub channel_full: Counter,
    /// Received packets dropped because no cell was free.
    pub no_buffer: Counter,
    /// Packets dropped on transmit because a port did not take them.
    pub tx_full: Counter,
    /// Packets dropped on transmit because their port does not exist.
    pub no_port: Counter,
}

impl Counters {
    /// Returns the number of packets of all kinds, modulo 2^64.
    fn packets(&self) -> u64 {
        let Self { dispatched, sent, dropped, channel_full, no_buffer, tx_full, no_port } = self;
        let all = [dispatched, sent, dropped, channel_full, no_buffer, tx_full, no_port];
        all.iter().fold(0, |sum, counter| sum.wrapping_add(counter.get()))
    }
}

/// Device's end of a channel.
pub(super) struct Lane {
    pub inbox: Producer<Frame>,
    /// `None` once closed.
    pub outbox: Option<Consumer<(Frame, u16)>>,
    pub left: Arc<Mutex<Left>>,
    /// Set once the channel is dropped: no packets are dispatched to it any more.
    pub gone: bool,
    /// Cell of the channel's next packet, which the descriptor of the last one names.
    pub next: Option<Frame>,
}

/// Cells allocated from a pool, in order of their addresses within a block.
struct Hand {
    bufs: Buffers,
    cells: VecDeque<Frame>,
}

impl Hand {
    fn new(pools: &Arc<PoolSet>, own: usize) -> Self {
        Self { bufs: Buffers::attach(pools, own), cells: VecDeque::with_capacity(BATCH) }
    }

    /// Returns the cell after the last one returned. `None` if no cell is free, and in a packed arena, where a cell is
    /// known only once its packet's length is.
    #[inline]
    fn next(&mut self) -> Option<Frame> {
        if self.bufs.packed() {
            return None;
        }
        if self.cells.is_empty() {
            let mut batch = Batch::new();
            self.bufs.alloc(&mut batch, BATCH);
            self.cells.extend(batch.drain());
        }
        self.cells.pop_front()
    }

    /// Returns a cell for a packet of `len` bytes: `reserved`, if there is one.
    #[inline]
    fn take(&mut self, reserved: Option<Frame>, len: usize) -> Option<Frame> {
        if self.bufs.packed() {
            let mut one = Batch::new();
            self.bufs.alloc_for(&mut one, &[len as u32]);
            return one.pop();
        }
        reserved.or_else(|| self.next())
    }
}

/// Dispatching device that is not running yet.
pub struct Device {
    config: Config,
    pub(super) ports: Vec<Box<dyn Port>>,
    pub(super) lanes: Vec<Lane>,
    hands: Vec<Hand>,
    /// Handle on the device's own pool: ports receive from it, and all frames are freed through it.
    pub(super) staging: Buffers,
    pub(super) received: Batch,
    /// Frames handed over by threads that their port has not taken yet.
    pub(super) sending: Vec<Batch>,
    next: usize,
    turns: u32,
    pub(super) counters: Arc<Counters>,
    #[cfg(feature = "rtl")]
    pub(super) engine: Option<super::rtl::Engine>,
}

impl Device {
    pub(super) fn new(config: Config, ports: Vec<Box<dyn Port>>, pools: &Arc<PoolSet>, lanes: Vec<Lane>) -> Self {
        Self {
            config,
            sending: ports.iter().map(|_| Batch::new()).collect(),
            ports,
            lanes,
            hands: (1..pools.pools().len()).map(|own| Hand::new(pools, own)).collect(),
            staging: Buffers::attach(pools, 0),
            received: Batch::new(),
            next: 0,
            turns: 0,
            counters: Arc::default(),
            #[cfg(feature = "rtl")]
            engine: None,
        }
    }

    /// Returns a device whose cells `engine` allocates and reclaims.
    #[cfg(feature = "rtl")]
    pub(super) fn with_engine(
        config: Config,
        ports: Vec<Box<dyn Port>>,
        pools: &Arc<PoolSet>,
        lanes: Vec<Lane>,
        engine: super::rtl::Engine,
    ) -> Self {
        Self { hands: vec![], engine: Some(engine), ..Self::new(config, ports, pools, lanes) }
    }

    /// Reserves the cells of the channels' first packets, in order of the channels.
    pub(super) fn reserve(&mut self) {
        let hands = self.hands.len();
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            lane.next = self.hands[at % hands].next();
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Runs one turn: receives a burst from each port and dispatches it, collects what threads have handed over and
    /// sends it.
    pub fn turn(&mut self) {
        #[cfg(feature = "rtl")]
        if self.engine.is_some() {
            return self.turn_engine();
        }
        for port in 0..self.ports.len() {
            self.ports[port].rx_burst(&mut self.staging, &mut self.received);
            self.dispatch(port);
        }
        for lane in 0..self.lanes.len() {
            self.collect(lane);
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(CHECK) {
            self.free_dropped();
        }
        self.transmit();
    }

    pub(super) fn transmit(&mut self) {
        for (port, frames) in self.ports.iter_mut().zip(&mut self.sending) {
            if !frames.is_empty() {
                self.counters.sent.add(port.tx_burst(&mut self.staging, frames) as u64);
            }
            port.housekeep(&mut self.staging);
        }
    }

    /// Copies the packets received by `port` to the cells of their threads, which a hardware device does by DMA.
    fn dispatch(&mut self, port: usize) {
        let hands = self.hands.len();
        for from in self.received.as_slice() {
            let lane = match self.config.dispatch {
                Dispatch::RoundRobin => {
                    let lane = self.next;
                    self.next = (lane + 1) % self.lanes.len();
                    lane
                }
                Dispatch::ByPort => port % self.lanes.len(),
            };
            let Lane { inbox, gone, next, .. } = &mut self.lanes[lane];
            if *gone || inbox.is_full() {
                self.counters.channel_full.add(1);
                continue;
            }
            let hand = &mut self.hands[lane % hands];
            let Some(mut cell) = hand.take(next.take(), from.len()) else {
                self.counters.no_buffer.add(1);
                continue;
            };
            let arena = self.staging.arena();
            let fits = arena.write(&mut cell, arena.data(from));
            debug_assert!(fits, "both are cells of one arena");
            *next = hand.next();
            let next = next.as_ref().map(Frame::addr);
            Descriptor { next, len: from.len() as u32, port: port as u16 }.put(arena.meta_mut(&mut cell));
            let pushed = inbox.push(cell);
            debug_assert!(pushed.is_ok());
            self.counters.dispatched.add(1);
        }
        self.staging.free(&mut self.received);
    }

    /// Collects the packets that a thread has handed over.
    fn collect(&mut self, lane: usize) {
        let Some(slots) = self.lanes[lane].outbox.as_ref().map(Consumer::slots) else { return };
        for _ in 0..slots {
            let Some(Ok((frame, port))) = self.lanes[lane].outbox.as_mut().map(Consumer::pop) else { break };
            self.hand_to_port(frame, port);
        }
    }

    /// Queues a packet at its port, or frees it if it has none.
    pub(super) fn hand_to_port(&mut self, frame: Frame, port: u16) {
        let Some(batch) = self.sending.get_mut(usize::from(port)) else {
            let counter = if port == NOWHERE { &self.counters.dropped } else { &self.counters.no_port };
            counter.add(1);
            self.staging.free_one(frame);
            return;
        };
        if batch.room() == 0 {
            self.counters.sent.add(self.ports[usize::from(port)].tx_burst(&mut self.staging, batch) as u64);
        }
        if let Err(frame) = batch.push(frame) {
            self.counters.tx_full.add(1);
            self.staging.free_one(frame);
        }
    }

    /// Frees packets dispatched to channels that were dropped since.
    pub(super) fn free_dropped(&mut self) {
        for lane in &mut self.lanes {
            let inbox = lock(&lane.left).inbox.take();
            if let Some(mut inbox) = inbox {
                lane.gone = true;
                while let Ok(frame) = inbox.pop() {
                    self.staging.free_one(frame);
                }
            }
        }
    }

    /// Returns the number of frames held by the device and its ports, without those queued in channels.
    pub fn held(&self) -> usize {
        let hands: usize = self.hands.iter().map(|h| h.cells.len()).sum();
        let hands = hands + self.lanes.iter().filter(|lane| lane.next.is_some()).count();
        let ports: usize = self.ports.iter().map(|p| p.held()).sum();
        #[cfg(feature = "rtl")]
        let hands = hands + self.engine.as_ref().map_or(0, |e| e.held());
        hands + ports + self.sending.iter().map(Batch::len).sum::<usize>()
    }

    /// Sends what threads have handed over, frees everything that remains, and closes the ports.
    pub fn close(mut self) {
        #[cfg(feature = "rtl")]
        self.close_engine();
        for lane in 0..self.lanes.len() {
            self.collect(lane);
        }
        for (port, frames) in self.ports.iter_mut().zip(&mut self.sending) {
            self.counters.sent.add(port.tx_burst(&mut self.staging, frames) as u64);
            self.counters.tx_full.add(frames.len() as u64);
            self.staging.free(frames);
            port.close(&mut self.staging);
        }
        for lane in &mut self.lanes {
            let mut left = lock(&lane.left);
            if left.inbox.is_none() && !lane.gone {
                left.outbox = lane.outbox.take();
            }
        }
        self.free_dropped();
        // A thread that ended since its packets were collected may have handed over more.
        for outbox in self.lanes.iter_mut().filter_map(|lane| lane.outbox.as_mut()) {
            while let Ok((frame, _)) = outbox.pop() {
                self.staging.free_one(frame);
            }
        }
        let next = self.lanes.iter_mut().filter_map(|lane| lane.next.take());
        next.for_each(|cell| self.staging.free_one(cell));
        for hand in &mut self.hands {
            hand.cells.drain(..).for_each(|cell| self.staging.free_one(cell));
        }
    }

    /// Runs the device on a thread of its own, pinned to `cpu` if given, until the returned handle is dropped.
    pub fn start(self, cpu: Option<usize>) -> std::io::Result<Running> {
        self.start_when(cpu, || true)
    }

    /// Starts like [`Device::start`]; the device makes its first turn once `ready` returns true.
    pub(super) fn start_when(
        self,
        cpu: Option<usize>,
        ready: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<Running> {
        let (stop, counters) = (Arc::new(AtomicBool::new(false)), self.counters());
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("bywash-npe".into()).spawn(move || {
            if let Some(cpu) = cpu {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                // Best effort: an unpinned device works, only more slowly.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            let mut device = self;
            let (mut before, mut idle) = (0, 0);
            while !stopped.load(Ordering::Acquire) {
                if !ready() {
                    std::thread::sleep(SLEEP);
                    continue;
                }
                device.turn();
                let packets = device.counters.packets();
                idle = if packets == before { idle + 1 } else { 0 };
                before = packets;
                if idle >= IDLE {
                    idle = IDLE;
                    std::thread::sleep(SLEEP);
                }
            }
            device.close();
        })?;
        Ok(Running { stop, counters, thread: Some(thread) })
    }
}

/// Running device. Dropping it stops and closes the device.
pub struct Running {
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Returns the counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns whether the thread has ended by itself, because the engine failed.
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
