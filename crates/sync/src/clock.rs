//! Time for the hot path: the processor's time-stamp counter and its rate.
//!
//! A counter can go back: when a machine resumes, or when a virtual machine moves to another host. Token buckets would
//! then stay empty, and deadlines far away, until the counter has caught up, perhaps after months. So the time of
//! [`tsc`] is the counter and an offset, which grows by as much as the counter went back. A worker detects such a jump
//! in the turn in which it happens, by [`tsc_after`]; for all other threads, the one that calls [`tend`] does.
//!
//! The rate is measured against CLOCK_MONOTONIC_RAW, which is not adjusted to any time server: over 10 ms at first,
//! then by [`tend`] over all of the time since.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const NS: u64 = 1_000_000_000;
/// Length of the first measurement of the rate.
const FIRST: Duration = Duration::from_millis(10);
/// Shortest interval, in nanoseconds, between readings from which the rate is corrected.
const INTERVAL: u64 = 50_000_000;
/// Pairs of counter and clock read each time; the one read fastest counts, so that an interrupt does no harm.
const READS: usize = 8;
/// A reading that took more than a second divided by this is not used.
const SLOWEST: u64 = 50_000;
/// Rates differ if they do so by more than one part in so many.
const ALIKE: u64 = 1000;
/// Counters of two CPUs may differ by a second divided by this. Time then stands still for a thread that moves from one
/// to the other.
const SKEW: u64 = 100;

static CLOCK: Clock<Machine> = Clock::new(Machine);

/// Returns the time in ticks: the time-stamp counter and an offset. Takes about 20 cycles and is not serialising, so
/// call it per burst, never per packet.
///
/// The time is too early from the moment in which the counter goes back until a worker or [`tend`] notices. Where that
/// would do harm, use [`tsc_after`].
#[inline]
pub fn tsc() -> u64 {
    CLOCK.now()
}

/// Returns the time in ticks, which is not before `seen`, a time seen by this thread. If the counter has gone back,
/// time goes on from there, for all threads.
#[inline]
pub fn tsc_after(seen: u64) -> u64 {
    CLOCK.after(seen)
}

/// Returns the rate of the time-stamp counter in ticks per second (sleeps 10 ms at first use, to measure it).
#[inline]
pub fn tsc_hz() -> u64 {
    CLOCK.hz()
}

/// Corrects the rate, by the time since the first measurement, and makes time go on if the counter has gone back.
/// Call it a few times a second, from a thread that may wait for a lock.
pub fn tend() -> Changes {
    CLOCK.tend()
}

/// Changes of the time-stamp counter since the previous call of [`tend`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Time by which the counter went back; zero if it did not.
    pub back: Duration,
    /// Rate that was in force before, if it differed from the present one by more than a thousandth.
    pub old_hz: Option<u64>,
}

/// Returns the core clock cycles per tick of the time-stamp counter on the present CPU, from the time of a chain of
/// squarings and additions. Each takes four cycles: three for IMUL r64 (Intel from Sandy Bridge on, AMD Zen; Agner Fog,
/// "Instruction tables"), one for the addition. A chain of products alone would be reassociated by the compiler. Takes
/// a millisecond or two.
pub fn core_cycles_per_tick() -> f64 {
    const LENGTH: u32 = 10_000;
    const LATENCY: u32 = 4;
    let addend = std::hint::black_box(3u64);
    let ticks = (0..20).map(|_| {
        let start = tsc();
        std::hint::black_box((0..LENGTH).fold(addend, |x, _| x.wrapping_mul(x).wrapping_add(addend)));
        tsc_after(start) - start
    });
    // The sample that no interrupt lengthened.
    f64::from(LENGTH * LATENCY) / ticks.min().unwrap_or(1).max(1) as f64
}

/// Converts microseconds to time-stamp counter ticks.
pub fn us_to_ticks(us: u64) -> u64 {
    (u128::from(us) * u128::from(tsc_hz()) / 1_000_000) as u64
}

/// Converts time-stamp counter ticks to nanoseconds.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    (u128::from(ticks) * u128::from(NS) / u128::from(tsc_hz())) as u64
}

/// Counter, and a clock to measure it by.
trait Source {
    /// Returns the value of the counter, which may be less than before.
    fn counter(&self) -> u64;
    /// Returns the time in nanoseconds.
    fn ns(&self) -> u64;
    fn sleep(&self, time: Duration);
}

struct Machine;

impl Source for Machine {
    #[inline]
    fn counter(&self) -> u64 {
        // SAFETY: RDTSC has no preconditions; every x86-64 processor has it and Linux leaves it enabled.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    fn ns(&self) -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // The C library's function, because rustix's crashes under valgrind, which `bywash bench memory` runs.
        // SAFETY: the pointer is valid for the call. It cannot fail: every Linux has this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
        now.tv_sec as u64 * NS + now.tv_nsec as u64
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Counter and clock at one time.
#[derive(Clone, Copy)]
struct Reading {
    counter: u64,
    ns: u64,
    /// Ticks between the readings of the counter before and after that of the clock.
    took: u64,
}

/// Returns the rate between two readings in ticks per second.
fn rate(from: &Reading, to: &Reading) -> u64 {
    let (ticks, ns) = (to.counter.saturating_sub(from.counter), to.ns.saturating_sub(from.ns));
    (u128::from(ticks) * u128::from(NS) / u128::from(ns.max(1))) as u64
}

fn alike(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one / ALIKE
}

/// State of the counter's measurement.
struct Known {
    /// Begin of the time over which the rate is measured.
    base: Reading,
    last: Reading,
    /// Rate between the last two readings.
    recent: u64,
    /// Ticks by which the counter went back since this was last reported.
    back: u64,
}

/// Time by a counter.
///
/// # Thread-safety
/// May be used by any number of threads. None waits for another one, but at first use and in [`Clock::tend`].
struct Clock<S> {
    source: S,
    /// Difference of the time and the counter.
    offset: AtomicU64,
    /// Ticks per second; 0 before the first measurement.
    hz: AtomicU64,
    known: Mutex<Option<Known>>,
}

impl<S: Source> Clock<S> {
    const fn new(source: S) -> Self {
        Self { source, offset: AtomicU64::new(0), hz: AtomicU64::new(0), known: Mutex::new(None) }
    }

    #[inline]
    fn now(&self) -> u64 {
        self.time(self.source.counter())
    }

    #[inline]
    fn time(&self, counter: u64) -> u64 {
        counter.wrapping_add(self.offset.load(Relaxed))
    }

    #[inline]
    fn after(&self, seen: u64) -> u64 {
        let now = self.now();
        if now >= seen { now } else { self.behind(seen) }
    }

    #[inline]
    fn hz(&self) -> u64 {
        match self.hz.load(Relaxed) {
            0 => self.begin(),
            hz => hz,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        // A poisoned lock is impossible: nothing panics while it is held.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Reading {
        let one = || {
            let (before, ns, after) = (self.source.counter(), self.source.ns(), self.source.counter());
            let took = after.wrapping_sub(before);
            Reading { counter: before.wrapping_add(took / 2), ns, took }
        };
        (1..READS).map(|_| one()).fold(one(), |best, next| if next.took < best.took { next } else { best })
    }

    /// Measures the rate for the first time.
    #[cold]
    fn begin(&self) -> u64 {
        let mut known = self.lock();
        while known.is_none() {
            let base = self.read();
            self.source.sleep(FIRST);
            let last = self.read();
            // The rate is 0 if the counter went back meanwhile.
            let recent = rate(&base, &last);
            if recent > 0 {
                self.hz.store(recent, Relaxed);
                *known = Some(Known { base, last, recent, back: 0 });
            }
        }
        self.hz.load(Relaxed)
    }

    /// Returns the time for a thread that has seen `seen`, which is later than the counter says.
    #[cold]
    fn behind(&self, seen: u64) -> u64 {
        let skew = self.hz() / SKEW;
        let far = || self.now().saturating_add(skew) < seen;
        // If another thread holds the lock, time stands still for this one until the next call.
        if far()
            && let Ok(mut known) = self.known.try_lock()
            && let Some(known) = known.as_mut().filter(|_| far())
        {
            self.go_on(known, self.read(), seen);
        }
        self.now().max(seen)
    }

    /// Sets the offset so that time goes on from the last reading, and is not before `seen`.
    fn go_on(&self, known: &mut Known, now: Reading, seen: u64) {
        let passed = u128::from(now.ns.saturating_sub(known.last.ns)) * u128::from(self.hz.load(Relaxed));
        let due = self.time(known.last.counter).wrapping_add((passed / u128::from(NS)) as u64).max(seen);
        known.back = known.back.saturating_add(due.saturating_sub(self.time(now.counter)));
        self.offset.store(due.wrapping_sub(now.counter), Relaxed);
        (known.base, known.last) = (now, now);
    }

    fn tend(&self) -> Changes {
        let hz = self.hz();
        let mut known = self.lock();
        let Some(known) = &mut *known else { return Changes::default() };
        let now = self.read();
        let mut old_hz = None;
        if now.counter < known.last.counter {
            self.go_on(known, now, 0);
        } else if now.ns.saturating_sub(known.last.ns) >= INTERVAL && now.took <= hz / SLOWEST {
            let recent = rate(&known.last, &now);
            if alike(known.recent, recent) {
                let new = rate(&known.base, &now);
                old_hz = (!alike(hz, new)).then_some(hz);
                self.hz.store(new.max(1), Relaxed);
            } else {
                // The counter leapt, or runs at another rate: the next interval tells.
                known.base = now;
            }
            (known.recent, known.last) = (recent, now);
        }
        let back = u128::from(std::mem::take(&mut known.back)) * u128::from(NS) / u128::from(hz);
        Changes { back: Duration::from_nanos(back as u64), old_hz }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bucket::{Bucket, Rate};
    use crate::random::splitmix64;

    const HZ: u64 = 2_300_000_000;

    /// Machine whose time passes by sleeping, and by 40 ns for each reading.
    struct Fake {
        ns: AtomicU64,
        /// Counter at `from`, and its rate from there on.
        counter: AtomicU64,
        from: AtomicU64,
        hz: AtomicU64,
        /// One reading in so many is interrupted for a millisecond; 0 for none.
        interrupted: u64,
        reads: AtomicU64,
    }

    impl Fake {
        fn new(interrupted: u64) -> Clock<Self> {
            let (ns, counter) = (AtomicU64::new(77_000), AtomicU64::new(90 * 86_400 * HZ));
            let (from, hz, reads) = (AtomicU64::new(77_000), AtomicU64::new(HZ), AtomicU64::new(0));
            Clock::new(Self { ns, counter, from, hz, interrupted, reads })
        }

        fn pass(&self) -> u64 {
            let read = self.reads.fetch_add(1, Relaxed);
            let interrupted = self.interrupted > 0 && splitmix64(1, read).is_multiple_of(self.interrupted);
            let ns = if interrupted { 1_000_000 } else { 40 };
            self.ns.fetch_add(ns, Relaxed) + ns
        }

        fn at(&self, ns: u64) -> u64 {
            let passed = u128::from(ns - self.from.load(Relaxed)) * u128::from(self.hz.load(Relaxed));
            self.counter.load(Relaxed) + (passed / u128::from(NS)) as u64
        }

        /// Sets the counter to `counter`, and its rate to `hz`.
        fn move_to(&self, counter: u64, hz: u64) {
            self.counter.store(counter, Relaxed);
            self.from.store(self.ns.load(Relaxed), Relaxed);
            self.hz.store(hz, Relaxed);
        }

        fn present(&self) -> u64 {
            self.at(self.ns.load(Relaxed))
        }
    }

    impl Source for Fake {
        fn counter(&self) -> u64 {
            self.at(self.pass())
        }

        fn ns(&self) -> u64 {
            self.pass()
        }

        fn sleep(&self, time: Duration) {
            self.ns.fetch_add(time.as_nanos() as u64, Relaxed);
        }
    }

    const STEP: Duration = Duration::from_millis(250);

    /// Calls `tend` for this many seconds; returns all the changes that it reported.
    fn tend_for(clock: &Clock<Fake>, seconds: u64) -> Vec<Changes> {
        let tend = |_| {
            clock.source.sleep(STEP);
            clock.tend()
        };
        (0..seconds * 4).map(tend).filter(|changes| *changes != Changes::default()).collect()
    }

    fn off(hz: u64) -> f64 {
        hz.abs_diff(HZ) as f64 / HZ as f64
    }

    #[test]
    fn an_interrupt_does_not_falsify_the_rate() {
        for interrupted in [0, 3, 5] {
            let clock = Fake::new(interrupted);
            assert!(off(clock.hz()) < 5e-6, "{}", clock.hz());
            assert_eq!(tend_for(&clock, 3600), []);
            assert!(off(clock.hz()) < 1e-9, "{}", clock.hz());
        }
    }

    #[test]
    fn this_machines_rate_is_that_of_its_clock() {
        let (hz, from) = (tsc_hz(), CLOCK.read());
        std::thread::sleep(Duration::from_millis(200));
        let longer = rate(&from, &CLOCK.read());
        assert!(hz.abs_diff(longer) < longer / 2000, "{hz} and {longer}");
    }

    /// The bucket gains a token in 100 ms.
    #[test]
    fn a_bucket_gives_again_after_the_counter_went_back() {
        for (seconds, to) in [(0, 5), (3, 5), (3, 90 * 86_400 * HZ), (90_000, 0)] {
            let clock = Fake::new(0);
            let mut bucket = Bucket::new(Rate::new(10, clock.hz(), 1));
            tend_for(&clock, seconds);
            clock.source.sleep(STEP / 2);
            let mut now = clock.after(0);
            assert!(bucket.take(now) && !bucket.take(now));
            let (before, gone) = (now, clock.source.present() - to);
            clock.source.move_to(to, HZ);
            // A worker, which turns every millisecond.
            let refused = |_: &u32| {
                clock.source.sleep(Duration::from_millis(1));
                let next = clock.after(now);
                assert!(next >= now);
                now = next;
                !bucket.take(now)
            };
            let turns = (0..1000).take_while(refused).count();
            assert!((95..=105).contains(&turns), "{turns} ms");
            // Time has passed as if nothing had happened, for all other threads, too.
            assert!(clock.now().abs_diff(before + turns as u64 * HZ / 1000) < HZ / 100);
            let changes = tend_for(&clock, 10);
            let [Changes { back, old_hz: None }] = changes[..] else { panic!("{changes:?}") };
            let gone = gone as f64 / HZ as f64;
            assert!((back.as_secs_f64() - gone).abs() < 0.02 + gone / 1000.0, "{back:?} of {gone}");
            assert!(off(clock.hz()) < 1e-6);
        }
    }

    #[test]
    fn a_thread_that_tends_suffices() {
        let clock = Fake::new(0);
        tend_for(&clock, 10);
        let (before, ns) = (clock.now(), clock.source.ns());
        clock.source.move_to(0, HZ);
        clock.source.sleep(Duration::from_millis(100));
        assert!(clock.now() < before);
        let changes = tend_for(&clock, 1);
        assert_eq!(changes.len(), 1, "{changes:?}");
        let passed = clock.source.ns() - ns;
        let due = before + (u128::from(passed) * u128::from(HZ) / u128::from(NS)) as u64;
        assert!(clock.now().abs_diff(due) < HZ / 100_000);
    }

    #[test]
    fn counters_of_two_cpus_may_differ() {
        let clock = Fake::new(0);
        tend_for(&clock, 1);
        let seen = clock.now();
        clock.source.move_to(clock.source.present() - HZ / 200, HZ);
        // Time stands still instead of going back, and the offset stays.
        assert_eq!(clock.after(seen), seen);
        assert_eq!(clock.offset.load(Relaxed), 0);
        clock.source.sleep(Duration::from_millis(6));
        assert!(clock.after(seen) > seen);
    }

    #[test]
    fn another_rate_is_taken_over() {
        let clock = Fake::new(0);
        tend_for(&clock, 5);
        // Moved to another host: another rate, and its counter began later.
        clock.source.move_to(HZ, 2 * HZ);
        let (before, ns) = (clock.after(90 * 86_400 * HZ), clock.source.ns());
        let changes = tend_for(&clock, 2);
        let [Changes { old_hz: None, .. }, Changes { old_hz: Some(old), back }] = changes[..] else {
            panic!("{changes:?}")
        };
        assert!(off(old) < 1e-6 && back.is_zero(), "{changes:?}");
        assert!(off(clock.hz() / 2) < 1e-6);
        assert!(clock.now() > before && clock.source.ns() > ns);
        // A leap forward does not change the rate.
        clock.source.move_to(clock.source.present() + 3600 * HZ, 2 * HZ);
        assert_eq!(tend_for(&clock, 2), []);
        assert!(off(clock.hz() / 2) < 1e-6);
    }
}
