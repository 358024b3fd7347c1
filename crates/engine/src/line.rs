//! Cost of a cache line transfer between two CPUs, measured by two threads that write the same line in turn.
//!
//! It determines the best pool policy between two threads. The CPUs of a virtual machine may or may not share a core or
//! a cache, which their numbers do not show.

use crate::cpus::pin;
use bywash_sync::{CachePadded, clock};
use serde::Serialize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Round trips of one sample.
const TRIPS: u64 = 500;
/// Maximum number of samples.
const SAMPLES: usize = 64;
/// Maximum duration of a measurement, for CPUs that other threads use, too.
const LIMIT: Duration = Duration::from_millis(250);

/// Cost of a cache line transfer from one CPU to another.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TransferCost {
    /// Nanoseconds per transfer.
    pub ns: f64,
    /// Ticks of the time stamp counter.
    pub cycles: f64,
}

/// State that the two threads share: the line that they write in turn, and whether the measurement has ended.
#[derive(Default)]
struct Shared {
    line: CachePadded<AtomicU64>,
    done: CachePadded<AtomicBool>,
}

impl Shared {
    /// Waits until the line has this number. Returns false if the measurement ends before.
    fn await_number(&self, number: u64) -> bool {
        while self.line.load(Ordering::Acquire) != number {
            if self.done.load(Ordering::Relaxed) {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }
}

/// Measures the cost between two different CPUs. Returns the lower quartile of the samples, because a sample during
/// which a thread is preempted is too long; `None` if no sample ended in time. Errors if a thread cannot run on its
/// CPU.
pub fn measure(first: usize, second: usize) -> rustix::io::Result<Option<TransferCost>> {
    let shared = Shared::default();
    let mut samples = std::thread::scope(|threads| -> rustix::io::Result<Vec<f64>> {
        let (shared, until) = (&shared, Instant::now() + LIMIT);
        // Odd numbers are this thread's, even ones the other's.
        let other = threads.spawn(move || -> rustix::io::Result<()> {
            pin(second)?;
            let mut number = 1;
            while shared.await_number(number) {
                shared.line.store(number + 1, Ordering::Release);
                number += 2;
            }
            Ok(())
        });
        let starter = threads.spawn(move || -> rustix::io::Result<Vec<f64>> {
            let pinned = pin(first);
            let (mut samples, mut number) = (vec![], 1);
            'samples: while pinned.is_ok() && samples.len() < SAMPLES {
                let start = clock::tsc();
                for _ in 0..TRIPS {
                    shared.line.store(number, Ordering::Release);
                    let mut polls = 0u32;
                    while shared.line.load(Ordering::Acquire) != number + 1 {
                        // Reading the clock at each poll would add to the time measured.
                        polls = polls.wrapping_add(1);
                        if polls.is_multiple_of(4096) && Instant::now() > until {
                            break 'samples;
                        }
                        std::hint::spin_loop();
                    }
                    number += 2;
                }
                samples.push((clock::tsc() - start) as f64 / (2 * TRIPS) as f64);
            }
            shared.done.store(true, Ordering::Relaxed);
            pinned.map(|()| samples)
        });
        let samples = starter.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        other.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(samples)
    })?;
    samples.sort_by(f64::total_cmp);
    let of = |cycles: f64| TransferCost { ns: cycles * 1e9 / clock::tsc_hz() as f64, cycles };
    Ok(samples.get(samples.len() / 4).copied().map(of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::Placement;

    #[test]
    fn a_transfer_takes_time() {
        let cpus = Placement::of(2).unwrap();
        if !cpus.enough_for(2) {
            println!("SKIP: fewer than two CPUs");
            return;
        }
        // Another thread may occupy one of the CPUs for a whole measurement.
        let cost =
            std::iter::repeat_with(|| measure(cpus.cpu(0), cpus.cpu(1)).unwrap()).take(100).flatten().next().unwrap();
        assert!(cost.ns > 1.0 && cost.ns < 1e6 && cost.cycles > 1.0, "{cost:?}");
    }
}
