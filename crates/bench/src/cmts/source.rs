//! Source of an instance's packets, which also counts the frames in flight.

use bywash_docsis::instance::INPUT;
use bywash_engine::WorkerCounters;
use bywash_frame::{Batch, Buffers};
use bywash_port::{Port, PortCounters};
use bywash_sync::{Counter, clock};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum length of a burst, as a multiple of the frames in flight that it should reach: an instance that is as fast
/// as its source would never reach them.
const LONGEST: u64 = 16;
/// Time between two bursts in microseconds.
const PAUSE_US: u64 = 100_000;
/// A burst counts as over when at most this many frames more than before it are in flight.
const SLACK: u64 = 64;

/// Frames in flight, as counted by the source whenever it receives once counting has begun.
#[derive(Default)]
pub struct Occupancy {
    counting: AtomicBool,
    /// Sum of the counts outside of bursts, and their number.
    sum: Counter,
    counts: Counter,
    peak: Counter,
    bursts: Counter,
    /// Bursts after which the frames in flight fell to the number before.
    over: Counter,
    /// Longest time that took in TSC ticks.
    longest: Counter,
}

/// Figures of an [`Occupancy`].
#[derive(Clone, Copy, Default, Serialize)]
pub struct Figures {
    /// Mean number of frames in flight outside of bursts.
    pub normal: f64,
    pub peak: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bursts: Option<Bursts>,
}

/// Figures of bursts.
#[derive(Clone, Copy, Serialize)]
pub struct Bursts {
    pub number: u64,
    /// Number of them after which the frames in flight fell to the number before.
    pub over: u64,
    /// Longest time from the start of such a burst until then, in milliseconds.
    pub longest_ms: f64,
}

impl Occupancy {
    /// Begins to count, and to send bursts.
    pub fn begin(&self) {
        self.counting.store(true, Ordering::Relaxed);
    }

    pub fn figures(&self) -> Figures {
        let bursts = Bursts {
            number: self.bursts.get(),
            over: self.over.get(),
            longest_ms: self.longest.get() as f64 * 1e3 / clock::tsc_hz() as f64,
        };
        Figures {
            normal: self.sum.get() as f64 / self.counts.get().max(1) as f64,
            peak: self.peak.get(),
            bursts: (bursts.number > 0).then_some(bursts),
        }
    }
}

/// Bursts beside a paced load: from time to time packets arrive as fast as they are taken, until a given number of
/// frames is in flight.
struct Surge<P> {
    port: P,
    frames: u64,
    /// State of the current burst. `None` between two bursts.
    current: Option<Burst>,
    /// Time of the next one in TSC ticks.
    next: u64,
    pause: u64,
}

#[derive(Clone, Copy)]
struct Burst {
    start: u64,
    /// Frames in flight before it.
    before: u64,
    /// Packets that may still arrive during the burst; 0 once it has reached its height.
    left: u64,
}

/// Port that receives from another port and counts the frames on their way through an instance.
pub struct Source<P> {
    port: P,
    surge: Option<Surge<P>>,
    counters: Arc<PortCounters>,
    /// Counters of the port by which frames leave.
    out: Arc<PortCounters>,
    /// Counters of the workers, which count the dropped frames; set once they run.
    workers: Arc<OnceLock<Vec<Arc<WorkerCounters>>>>,
    occupancy: Arc<Occupancy>,
}

impl<P: Port> Source<P> {
    /// Creates a source of what `port` receives, until it leaves by the port that counts in `out`.
    pub fn new(port: P, out: Arc<PortCounters>) -> Self {
        let (counters, workers) = (Arc::default(), Arc::default());
        Self { port, surge: None, counters, out, workers, occupancy: Arc::default() }
    }

    /// Adds bursts from a second port, each until `frames` frames are in flight.
    pub fn with_bursts(mut self, port: P, frames: usize) -> Self {
        let pause = clock::us_to_ticks(PAUSE_US);
        self.surge = Some(Surge { port, frames: frames as u64, current: None, next: clock::tsc() + pause, pause });
        self
    }

    pub fn occupancy(&self) -> Arc<Occupancy> {
        self.occupancy.clone()
    }

    /// Returns the place for the counters of the workers that drop frames.
    pub fn workers(&self) -> Arc<OnceLock<Vec<Arc<WorkerCounters>>>> {
        self.workers.clone()
    }

    fn in_flight(&self) -> u64 {
        let dropped = self.workers.get().map_or(0, |all| all.iter().map(|w| w.port(INPUT).total()).sum::<u64>());
        self.counters.rx_packets.get() - (self.out.tx_packets.get() + dropped).min(self.counters.rx_packets.get())
    }
}

impl<P: Port> Surge<P> {
    /// Begins or ends a burst with this number of frames in flight; returns whether one is under way.
    fn update(&mut self, now: u64, in_flight: u64, occupancy: &Occupancy) -> bool {
        match &mut self.current {
            None if now >= self.next => {
                occupancy.bursts.add(1);
                self.current = Some(Burst { start: now, before: in_flight, left: LONGEST * self.frames });
            }
            None => {}
            Some(burst) if burst.left > 0 && in_flight >= self.frames => burst.left = 0,
            Some(burst) if burst.left == 0 && in_flight <= burst.before + SLACK => {
                occupancy.over.add(1);
                occupancy.longest.set(occupancy.longest.get().max(now - burst.start));
                self.current = None;
                self.next = now + self.pause;
            }
            Some(_) => {}
        }
        self.current.is_some()
    }
}

impl<P: Port> Port for Source<P> {
    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let before = out.len();
        self.port.rx_burst(bufs, out);
        // A burst comes on top of the other packets.
        if let Some(Surge { port, current: Some(burst), .. }) = &mut self.surge
            && burst.left > 0
        {
            if out.room() > 0 {
                port.rx_burst(bufs, out);
            }
            burst.left = burst.left.saturating_sub((out.len() - before) as u64);
        }
        let n = out.len() - before;
        if n > 0 {
            let bytes: usize = out.as_slice()[before..].iter().map(|frame| frame.len()).sum();
            self.counters.rx_packets.add(n as u64);
            self.counters.rx_bytes.add(bytes as u64);
            if !self.occupancy.counting.load(Ordering::Relaxed) {
                return n;
            }
            let in_flight = self.in_flight();
            let Self { surge, occupancy, .. } = self;
            occupancy.peak.set(occupancy.peak.get().max(in_flight));
            let bursting = surge.as_mut().is_some_and(|surge| surge.update(clock::tsc(), in_flight, occupancy));
            if !bursting {
                occupancy.sum.add(in_flight);
                occupancy.counts.add(1);
            }
        }
        n
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        self.port.tx_burst(bufs, frames)
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.port.close(bufs);
        if let Some(surge) = &mut self.surge {
            surge.port.close(bufs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_frame::{Arena, ArenaConfig, PoolConfig, PoolSet};
    use bywash_port::pcap::{Pace, PcapPort, PcapSource};

    fn port() -> PcapPort {
        PcapPort::replay(PcapSource::from_frames([[0; 60]; 64]).unwrap().repeated())
    }

    fn buffers() -> Buffers {
        let arena = Arena::new(ArenaConfig { cells: 256, ..Default::default() }).unwrap();
        Buffers::attach(&PoolSet::new(arena, &[PoolConfig::stack("test", 256)]).unwrap(), 0)
    }

    /// Receives a batch and frees it.
    fn receive(source: &mut Source<PcapPort>, bufs: &mut Buffers) -> usize {
        let mut batch = Batch::new();
        let n = source.rx_burst(bufs, &mut batch);
        bufs.free(&mut batch);
        n
    }

    #[test]
    fn counts_what_has_neither_left_nor_been_dropped() {
        let mut bufs = buffers();
        let out: Arc<PortCounters> = Arc::default();
        let mut source = Source::new(port(), out.clone());
        let occupancy = source.occupancy();
        let uncounted = receive(&mut source, &mut bufs) as u64;
        assert_eq!(occupancy.figures().peak, 0);
        occupancy.begin();
        let first = uncounted + receive(&mut source, &mut bufs) as u64;
        out.tx_packets.add(first - 10);
        let second = 10 + receive(&mut source, &mut bufs) as u64;
        let figures = occupancy.figures();
        assert_eq!((figures.peak, figures.bursts.is_none()), (first.max(second), true));
        assert!((figures.normal - (first + second) as f64 / 2.0).abs() < 0.01, "{}", figures.normal);
    }

    #[test]
    fn a_burst_lasts_until_enough_frames_are_in_flight_and_is_over_when_they_have_left() {
        let mut bufs = buffers();
        let out: Arc<PortCounters> = Arc::default();
        let mut source = Source::new(port(), out.clone()).with_bursts(port(), 500);
        let occupancy = source.occupancy();
        occupancy.begin();
        let bursts = |occupancy: &Occupancy| occupancy.figures().bursts.map_or((0, 0), |b| (b.number, b.over));
        let leave = |source: &Source<PcapPort>| out.tx_packets.set(source.counters.rx_packets.get());
        while bursts(&occupancy) == (0, 0) {
            receive(&mut source, &mut bufs);
            leave(&source);
        }
        let normal = occupancy.figures().normal;
        while source.surge.as_ref().unwrap().current.is_some_and(|burst| burst.left > 0) {
            assert!(receive(&mut source, &mut bufs) > 0);
        }
        let figures = occupancy.figures();
        assert!((500..600).contains(&figures.peak), "{}", figures.peak);
        assert!(figures.normal == normal, "a burst does not count as normal");
        assert_eq!(bursts(&occupancy), (1, 0));
        leave(&source);
        receive(&mut source, &mut bufs);
        assert_eq!(bursts(&occupancy), (1, 1));
        assert!(occupancy.figures().bursts.unwrap().longest_ms > 0.0);
    }

    #[test]
    fn the_paced_packets_go_on_during_a_burst() {
        let mut bufs = buffers();
        let out: Arc<PortCounters> = Arc::default();
        let paced = PcapSource::from_frames([[0; 60]; 64]).unwrap().repeated().paced(Pace::PacketsPerSecond(1000));
        let arrears = paced.arrears().unwrap();
        let mut source = Source::new(PcapPort::replay(paced), out.clone()).with_bursts(port(), 1 << 20);
        source.occupancy().begin();
        while source.surge.as_ref().unwrap().current.is_none() {
            receive(&mut source, &mut bufs);
            out.tx_packets.set(source.counters.rx_packets.get());
        }
        let mut asked = arrears.asked.get();
        for _ in 0..100 {
            assert_eq!(receive(&mut source, &mut bufs), 64);
            assert!(std::mem::replace(&mut asked, arrears.asked.get()) < arrears.asked.get());
        }
        assert!(source.surge.unwrap().current.is_some_and(|burst| burst.left > 0));
    }

    #[test]
    fn a_burst_that_gets_nowhere_ends() {
        let mut bufs = buffers();
        let out: Arc<PortCounters> = Arc::default();
        let mut source = Source::new(port(), out.clone()).with_bursts(port(), 100);
        let occupancy = source.occupancy();
        occupancy.begin();
        while occupancy.figures().bursts.is_none_or(|bursts| bursts.over == 0) {
            receive(&mut source, &mut bufs);
            out.tx_packets.set(source.counters.rx_packets.get());
        }
    }
}
