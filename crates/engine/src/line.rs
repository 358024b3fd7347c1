//! Cost of a cache line transfer between two CPUs, measured by two threads that write the same line in turn.
//!
//! It determines the best pool policy between two threads. The CPUs of a virtual machine may or may not share a core or
//! a cache, which neither their numbers nor its kernel need to show.

use crate::cpus::{self, pin};
use bywash_frame::PoolKind;
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

/// Cost of a cache line transfer up to which two CPUs count as sharing a core, in nanoseconds. *Assumed*: hyper-threads
/// pass a line through the L1 cache they share. For such pairs the reference document for cable downstreams measured a
/// stack.
const SIBLINGS_NS: f64 = 30.0;
/// The same for two CPUs that are of one core by the kernel's word, which may be wrong in a virtual machine whose CPUs
/// move. *Assumed*: less than the 50 ns measured between two cores.
const ONE_CORE_NS: f64 = 45.0;
/// Cost of a cache line transfer at or above which frames arrive later from the other CPU's cache than from memory, in
/// nanoseconds. *Assumed*: the latency of memory. Below it, at 50 ns, `tabm` was measured faster than `stack` and
/// `ring` (docs/buffers.md).
const FAR_NS: f64 = 120.0;

/// Two CPUs between which frames move: from the one that takes them to the one that frees them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Way {
    /// Cost of a cache line transfer in nanoseconds; `None` if it could not be measured.
    pub ns: Option<f64>,
    /// True if the kernel says that both are hyper-threads of one core.
    pub one_core: bool,
}

impl Way {
    /// Returns the way between two different CPUs with the cost `ns`.
    pub fn between(first: usize, second: usize, ns: Option<f64>) -> Self {
        Self { ns, one_core: cpus::one_core(first, second) }
    }

    /// Returns whether the CPUs count as hyper-threads of one core by the kernel's word, which the cost does not
    /// contradict.
    pub fn is_one_core(&self) -> bool {
        self.one_core && self.ns.is_none_or(|ns| ns < ONE_CORE_NS)
    }

    /// Returns the best pool policy for frames on this way: that of `kind = "auto"`.
    pub fn policy(&self) -> PoolKind {
        match self.ns {
            _ if self.is_one_core() => PoolKind::Stack,
            None => PoolKind::Stack,
            Some(ns) if ns < SIBLINGS_NS => PoolKind::Stack,
            Some(ns) if ns < FAR_NS => PoolKind::Tabm,
            Some(_) => PoolKind::Ring,
        }
    }
}

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
    /// Waits until the line has this number. Returns false if the measurement ends before. There is no pause between
    /// two polls: on some processors it takes 140 cycles, more than a transfer between hyper-threads.
    fn await_number(&self, number: u64) -> bool {
        while self.line.load(Ordering::Acquire) != number {
            if self.done.load(Ordering::Relaxed) {
                return false;
            }
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
    fn the_policy_follows_the_cost_and_the_kernel() {
        for (ns, one_core, kind) in [
            (None, false, PoolKind::Stack),
            (None, true, PoolKind::Stack),
            (Some(12.0), false, PoolKind::Stack),
            // Twice the pause of some processors, and hyper-threads.
            (Some(31.0), true, PoolKind::Stack),
            (Some(31.0), false, PoolKind::Tabm),
            // CPUs of a virtual machine that are no longer where its kernel believes.
            (Some(52.0), true, PoolKind::Tabm),
            (Some(52.0), false, PoolKind::Tabm),
            (Some(160.0), true, PoolKind::Ring),
            (Some(160.0), false, PoolKind::Ring),
        ] {
            assert_eq!(Way { ns, one_core }.policy(), kind, "{ns:?} {one_core}");
        }
    }

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
