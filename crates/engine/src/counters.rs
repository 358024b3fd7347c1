//! One worker's counters: written by it, read by anyone.

use crate::{DROP_REASONS, DropReason, EVENTS, Event, PortId};
use bywash_frame::BATCH;
use bywash_sync::Counter;

/// Drops and events of packets that came in by one port.
pub struct PortDrops {
    drops: [Counter; DROP_REASONS.len()],
    events: [Counter; EVENTS.len()],
}

impl Default for PortDrops {
    fn default() -> Self {
        Self { drops: zeroes(), events: zeroes() }
    }
}

fn zeroes<const N: usize>() -> [Counter; N] {
    std::array::from_fn(|_| Counter::new())
}

impl PortDrops {
    /// Packets dropped for `reason`.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Times `event` happened.
    pub fn events(&self, event: Event) -> u64 {
        self.events[event as usize].get()
    }

    /// Packets dropped for any reason.
    pub fn total(&self) -> u64 {
        self.drops.iter().map(Counter::get).sum()
    }
}

/// Where a worker's cycles went.
#[derive(Default)]
pub struct StageCounters {
    /// Name in `show workers` and profiles.
    pub name: &'static str,
    /// TSC ticks spent, estimated from one turn in sixteen.
    pub cycles: Counter,
    /// Packets handled.
    pub packets: Counter,
    /// Bursts handled.
    pub bursts: Counter,
}

/// Ports that a worker has counters for, however few it begins with.
pub const PORTS: usize = 64;

/// One worker's counters. Cache lines are not shared with another worker's: each worker has its own allocation.
pub struct WorkerCounters {
    ports: Vec<PortDrops>,
    /// The engine's stages `rx` and `tx`, then the application's.
    pub stages: Vec<StageCounters>,
    /// Turns of the loop.
    pub turns: Counter,
    /// Turns that found nothing to do.
    pub idle_turns: Counter,
    /// Times the worker slept.
    pub sleeps: Counter,
    /// TSC ticks in turns that found something to do.
    pub busy_cycles: Counter,
    /// The kernel's number of its thread; 0 before it runs.
    pub thread: Counter,
    /// TSC ticks since the worker started, asleep or not.
    pub cycles: Counter,
    /// Bursts received, by their number of packets (index 1 to 64).
    pub rx_bursts: [Counter; BATCH + 1],
    /// Frames held by the worker itself and its ports, as of its last audit.
    pub held: Counter,
}

impl WorkerCounters {
    pub(crate) fn new(ports: usize, stages: &[&'static str]) -> Self {
        let named = |name: &&'static str| StageCounters { name, ..Default::default() };
        Self {
            ports: (0..ports.max(PORTS)).map(|_| PortDrops::default()).collect(),
            stages: ["rx", "tx"].iter().chain(stages).map(named).collect(),
            turns: Counter::new(),
            idle_turns: Counter::new(),
            sleeps: Counter::new(),
            busy_cycles: Counter::new(),
            thread: Counter::new(),
            cycles: Counter::new(),
            rx_bursts: zeroes(),
            held: Counter::new(),
        }
    }

    /// What happened to packets that came in by `port`.
    pub fn port(&self, port: PortId) -> &PortDrops {
        &self.ports[usize::from(port.0)]
    }

    /// The number is another port's from now on. For the worker only.
    pub(crate) fn reset_port(&self, port: PortId) {
        if let Some(of) = self.ports.get(usize::from(port.0)) {
            of.drops.iter().chain(&of.events).for_each(|counter| counter.set(0));
        }
    }

    #[inline]
    pub(crate) fn count_drops(&self, port: PortId, reason: DropReason, n: u64) {
        self.ports[usize::from(port.0)].drops[reason as usize].add(n);
    }

    #[inline]
    pub(crate) fn count_events(&self, port: PortId, event: Event, n: u64) {
        self.ports[usize::from(port.0)].events[event as usize].add(n);
    }
}
