//! Cost of a cache line's way between two CPUs, measured by two threads that write the same line in turn.
//!
//! On a virtual machine the CPUs are at times neighbours and at times not, and a pool's rate between two threads differs
//! by several times accordingly. So each round of a benchmark has this figure beside its rate.

use bywash_engine::cpus::Placement;
use bywash_sync::{CachePadded, clock};
use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Round trips of one sample.
const TRIPS: u64 = 500;
/// Maximum number of samples.
const SAMPLES: usize = 64;
/// Maximum length of a measurement, for CPUs that others use, too.
const LIMIT: Duration = Duration::from_millis(250);
/// Ratio to the nearest round from which on a round counts as far.
const FAR: f64 = 2.0;

/// Cost of a cache line's way from one CPU to another.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Way {
    pub ns: f64,
    /// Ticks of the time stamp counter.
    pub cycles: f64,
}

/// Line that goes to and fro, and whether the measurement has ended.
#[derive(Default)]
struct Court {
    line: CachePadded<AtomicU64>,
    over: CachePadded<AtomicBool>,
}

impl Court {
    /// Waits until the line has this number. Returns false if the measurement ends before.
    fn await_number(&self, number: u64) -> bool {
        while self.line.load(Ordering::Acquire) != number {
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }
}

/// Measures the way between the first two CPUs: the lower quartile of the samples, since a sample in which a thread
/// loses its CPU says nothing. `None` if there are fewer CPUs, or no sample ended in time.
pub fn measure(cpus: &Placement) -> anyhow::Result<Option<Way>> {
    if !cpus.enough_for(2) {
        return Ok(None);
    }
    let court = Court::default();
    let (first, second) = (cpus.cpu(0), cpus.cpu(1));
    let mut samples = std::thread::scope(|threads| -> anyhow::Result<Vec<f64>> {
        let (court, until) = (&court, Instant::now() + LIMIT);
        // Odd numbers are this thread's, even ones the other's.
        let other = threads.spawn(move || -> anyhow::Result<()> {
            super::pin(Some(second))?;
            let mut number = 1;
            while court.await_number(number) {
                court.line.store(number + 1, Ordering::Release);
                number += 2;
            }
            Ok(())
        });
        let starter = threads.spawn(move || -> anyhow::Result<Vec<f64>> {
            let pinned = super::pin(Some(first));
            let (mut samples, mut number) = (vec![], 1);
            'samples: while pinned.is_ok() && samples.len() < SAMPLES {
                let start = clock::tsc();
                for _ in 0..TRIPS {
                    court.line.store(number, Ordering::Release);
                    let mut looks = 0u32;
                    while court.line.load(Ordering::Acquire) != number + 1 {
                        // Reading the time at each look would be part of what is measured.
                        looks = looks.wrapping_add(1);
                        if looks.is_multiple_of(4096) && Instant::now() > until {
                            break 'samples;
                        }
                        std::hint::spin_loop();
                    }
                    number += 2;
                }
                samples.push((clock::tsc() - start) as f64 / (2 * TRIPS) as f64);
            }
            court.over.store(true, Ordering::Relaxed);
            pinned.map(|()| samples)
        });
        let samples = starter.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        other.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        Ok(samples)
    })?;
    samples.sort_by(f64::total_cmp);
    let of = |cycles: f64| Way { ns: cycles * 1e9 / clock::tsc_hz() as f64, cycles };
    Ok(samples.get(samples.len() / 4).copied().map(of))
}

/// Medians of rounds with near and with far CPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Apart {
    pub near_mpps: f64,
    pub near_rounds: usize,
    pub far_mpps: f64,
    pub far_rounds: usize,
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { near_mpps, near_rounds, far_mpps, far_rounds } = self;
        write!(f, "two machines in one: {near_mpps:.2} Mpps in {near_rounds} near rounds, ")?;
        write!(f, "{far_mpps:.2} in {far_rounds} far ones")
    }
}

/// Returns the medians of near and far rounds apart; `None` if all rounds are alike or the ways are unknown.
pub fn apart(ways: &[Option<Way>], mpps: &[f64]) -> Option<Apart> {
    let rounds: Vec<(f64, f64)> =
        ways.iter().zip(mpps).map(|(way, mpps)| way.map(|way| (way.ns, *mpps))).collect::<Option<_>>()?;
    let nearest = rounds.iter().map(|(ns, _)| *ns).min_by(f64::total_cmp)?;
    let (far, near): (Vec<_>, Vec<_>) = rounds.iter().partition(|(ns, _)| *ns > FAR * nearest);
    let median = |of: &[(f64, f64)]| super::median(of.iter().map(|(_, mpps)| *mpps));
    Some(Apart { near_mpps: median(&near)?, near_rounds: near.len(), far_mpps: median(&far)?, far_rounds: far.len() })
}

/// Returns the ways of the rounds in words, such as `50, 51, 160 ns`.
pub fn words(ways: &[Option<Way>]) -> String {
    let one = |way: &Option<Way>| way.map_or("?".into(), |way| format!("{:.0}", way.ns));
    format!("{} ns", ways.iter().map(one).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_takes_time() {
        let cpus = Placement::of(2).unwrap();
        if !cpus.enough_for(2) {
            println!("SKIP: fewer than two CPUs");
            return;
        }
        // Others may keep one of the CPUs for a whole measurement.
        let way = std::iter::repeat_with(|| measure(&cpus).unwrap()).take(100).flatten().next().unwrap();
        assert!(way.ns > 1.0 && way.ns < 1e6 && way.cycles > 1.0, "{way:?}");
    }

    #[test]
    fn near_and_far_rounds_are_not_averaged() {
        let ways = |ns: &[f64]| ns.iter().map(|ns| Some(Way { ns: *ns, cycles: 2.0 * ns })).collect::<Vec<_>>();
        let mpps = [18.0, 2.2, 17.0, 2.1, 18.5];
        let both = apart(&ways(&[50.0, 160.0, 52.0, 170.0, 70.0]), &mpps).unwrap();
        assert_eq!(both, Apart { near_mpps: 18.0, near_rounds: 3, far_mpps: 2.2, far_rounds: 2 });
        assert_eq!(apart(&ways(&[50.0, 60.0, 52.0, 70.0, 99.0]), &mpps), None);
        assert_eq!(apart(&[None, Some(Way { ns: 1.0, cycles: 2.0 })], &mpps[..2]), None);
    }
}
