//! The device's side: dispatching, sending, taking back.

use super::channel::Descriptor;
use super::{Config, Dispatch, Left};
use crate::Port;
use bywash_frame::{BATCH, Batch, Buffers, Frame, PoolSet};
use bywash_sync::Counter;
use rtrb::{Consumer, Producer};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The port number of what is only let go of.
pub(super) const NOWHERE: u16 = u16::MAX;

/// Turns between two looks for channels that have gone.
const LOOK: u32 = 1024;

/// What the device did. Written by its thread, read by anyone.
#[derive(Debug, Default)]
pub struct Counters {
    /// Packets handed to channels.
    pub dispatched: Counter,
    /// Packets sent by ports.
    pub sent: Counter,
    /// Packets let go of by their threads.
    pub dropped: Counter,
    /// Received packets lost: their channel was full, or its thread is gone.
    pub channel_full: Counter,
    /// Received packets lost: no cell was free.
    pub no_buffer: Counter,
    /// Packets lost that a port did not take.
    pub tx_full: Counter,
    /// Packets lost that were sent to a port which is none.
    pub no_port: Counter,
}

/// The device's end of a channel.
pub(super) struct Lane {
    pub inbox: Producer<Frame>,
    /// None once closed.
    pub outbox: Option<Consumer<(Frame, u16)>>,
    pub left: Arc<Mutex<Left>>,
    /// The channel is gone: nothing is dispatched to it.
    pub gone: bool,
}

/// The cells that the next packets will lie in.
struct Hand {
    bufs: Buffers,
    cells: VecDeque<Frame>,
}

impl Hand {
    fn new(pools: &Arc<PoolSet>, own: usize) -> Self {
        Self { bufs: Buffers::attach(pools, own), cells: VecDeque::with_capacity(2 * BATCH) }
    }

    /// The next cell, and where the one after it lies. Where cells are given by length, one for `len` bytes: where the
    /// next will lie is not known then.
    #[inline]
    fn take(&mut self, len: usize) -> Option<(Frame, Option<u64>)> {
        if self.bufs.packed() {
            let mut one = Batch::new();
            self.bufs.alloc_for(&mut one, &[len as u32]);
            return one.pop().map(|cell| (cell, None));
        }
        if self.cells.len() < 2 {
            let mut batch = Batch::new();
            self.bufs.alloc(&mut batch, BATCH);
            self.cells.extend(batch.drain());
        }
        let cell = self.cells.pop_front()?;
        Some((cell, self.cells.front().map(Frame::addr)))
    }
}

/// The dispatching device, before it runs.
pub struct Device {
    config: Config,
    pub(super) ports: Vec<Box<dyn Port>>,
    pub(super) lanes: Vec<Lane>,
    hands: Vec<Hand>,
    /// The device's own: what ports receive into, and all that goes back.
    pub(super) staging: Buffers,
    pub(super) received: Batch,
    /// Handed out, and not yet taken by its port.
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

    /// A device whose cells are handed out and taken back by `engine`.
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

    /// What it does.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// One turn: receives a burst from each port and deals it out, sends what threads have handed over.
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
        if self.turns.is_multiple_of(LOOK) {
            self.look();
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

    /// Moves what was received by `port` to where its threads expect it: what a device does by DMA.
    fn dispatch(&mut self, port: usize) {
        let hands = self.hands.len();
        let own = hands == self.lanes.len();
        for from in self.received.as_slice() {
            let lane = match self.config.dispatch {
                Dispatch::RoundRobin => {
                    let lane = self.next;
                    self.next = (lane + 1) % self.lanes.len();
                    lane
                }
                Dispatch::ByPort => port % self.lanes.len(),
            };
            let Lane { inbox, gone, .. } = &mut self.lanes[lane];
            if *gone || inbox.is_full() {
                self.counters.channel_full.add(1);
                continue;
            }
            let Some((mut cell, next)) = self.hands[lane % hands].take(from.len()) else {
                self.counters.no_buffer.add(1);
                continue;
            };
            let arena = self.staging.arena();
            let fits = arena.write(&mut cell, arena.data(from));
            debug_assert!(fits, "both are cells of one arena");
            // Of a pool that all share, the next cell is whoever's packet comes next.
            let next = next.filter(|_| own);
            Descriptor { next, len: from.len() as u32, port: port as u16 }.put(arena.meta_mut(&mut cell));
            let pushed = inbox.push(cell);
            debug_assert!(pushed.is_ok());
            self.counters.dispatched.add(1);
        }
        self.staging.free(&mut self.received);
    }

    /// Takes what a thread has handed over.
    fn collect(&mut self, lane: usize) {
        let Lane { outbox: Some(outbox), .. } = &mut self.lanes[lane] else { return };
        for _ in 0..outbox.slots() {
            let Ok((frame, port)) = outbox.pop() else { break };
            let Some(batch) = self.sending.get_mut(usize::from(port)) else {
                let counter = if port == NOWHERE { &self.counters.dropped } else { &self.counters.no_port };
                counter.add(1);
                self.staging.free_one(frame);
                continue;
            };
            if batch.room() == 0 {
                self.counters.sent.add(self.ports[usize::from(port)].tx_burst(&mut self.staging, batch) as u64);
            }
            if let Err(frame) = batch.push(frame) {
                self.counters.tx_full.add(1);
                self.staging.free_one(frame);
            }
        }
    }

    /// Takes back what was dispatched to channels that have gone since.
    pub(super) fn look(&mut self) {
        for lane in &mut self.lanes {
            let inbox = lane.left.lock().unwrap_or_else(PoisonError::into_inner).inbox.take();
            if let Some(mut inbox) = inbox {
                lane.gone = true;
                while let Ok(frame) = inbox.pop() {
                    self.staging.free_one(frame);
                }
            }
        }
    }

    /// Frames it holds, its ports' included, those in channels not.
    pub fn held(&self) -> usize {
        let hands: usize = self.hands.iter().map(|h| h.cells.len()).sum();
        let ports: usize = self.ports.iter().map(|p| p.held()).sum();
        #[cfg(feature = "rtl")]
        let hands = hands + self.engine.as_ref().map_or(0, |e| e.held());
        hands + ports + self.sending.iter().map(Batch::len).sum::<usize>()
    }

    /// Gives everything back, and what threads have handed over and it could not send.
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
            let mut left = lane.left.lock().unwrap_or_else(PoisonError::into_inner);
            if left.inbox.is_none() && !lane.gone {
                left.outbox = lane.outbox.take();
            }
        }
        self.look();
        for hand in &mut self.hands {
            hand.cells.drain(..).for_each(|cell| self.staging.free_one(cell));
        }
    }

    /// Runs it on a thread of its own, on `cpu`, until the handle is dropped.
    pub fn start(self, cpu: Option<usize>) -> std::io::Result<Running> {
        let (stop, counters) = (Arc::new(AtomicBool::new(false)), self.counters());
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("bywash-npe".into()).spawn(move || {
            if let Some(cpu) = cpu {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                // Elsewhere it works as well, only not as fast.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            let mut device = self;
            while !stopped.load(Ordering::Acquire) {
                device.turn();
            }
            device.close();
        })?;
        Ok(Running { stop, counters, thread: Some(thread) })
    }
}

/// A device at work. Dropping it stops it.
pub struct Running {
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// What it does.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
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
