//! Counters of one worker: written by that worker, readable by any thread.

use crate::{DROP_REASONS, DropReason, EVENTS, Event, PortId};
use bywash_frame::BATCH;
use bywash_sync::Counter;

/// Drops and events of packets received by one port.
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
    /// Returns the number of packets dropped for `reason`.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Returns how often `event` happened.
    pub fn events(&self, event: Event) -> u64 {
        self.events[event as usize].get()
    }

    /// Returns the number of packets dropped for any reason.
    pub fn total(&self) -> u64 {
        self.drops.iter().map(Counter::get).sum()
    }
}

/// Counters of one processing stage.
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
    /// Core cycles, instructions and retired slots, estimated like `cycles`; zero without a [`crate::Meter`].
    pub counted: [Counter; 3],
}

/// Minimum number of ports that a worker has counters for; ports may be added while it runs.
pub const PORTS: usize = 64;

/// Counters of one worker. Each worker has its own allocation, so that no cache line is shared between workers.
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
    /// Panics of its application that the worker has outlived.
    pub panics: Counter,
    /// TSC ticks in turns that found something to do.
    pub busy_cycles: Counter,
    /// Thread ID assigned by the kernel; 0 before the thread runs.
    pub thread: Counter,
    /// TSC ticks since the worker started, including sleep.
    pub cycles: Counter,
    /// Bursts received, by number of packets (index 1 to 64).
    pub rx_bursts: [Counter; BATCH + 1],
    /// Frames held by the worker itself and its ports, as of the last report.
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
            panics: Counter::new(),
            busy_cycles: Counter::new(),
            thread: Counter::new(),
            cycles: Counter::new(),
            rx_bursts: zeroes(),
            held: Counter::new(),
        }
    }

    /// Returns the drops and events of packets received by `port`.
    pub fn port(&self, port: PortId) -> &PortDrops {
        &self.ports[usize::from(port.0)]
    }

    /// Resets the counters of `port`, whose number is reused. To be called by the worker only.
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
