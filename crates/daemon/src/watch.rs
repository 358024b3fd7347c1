//! Detection of workers that hang or have panicked. While a worker hangs, every port is left to the kernel; while a
//! worker waits for its restart after a panic, only the ports with a queue that it polls are.
//!
//! A worker turns at least every 10 ms, asleep or not, and counts each turn. While one does not turn, frames wait in
//! its ports, and no port can be served correctly: new routes are published only when every worker has released the old
//! ones. So all programs leave their frames to the kernel until the worker turns again.
//!
//! A worker that has panicked still turns, with its stages suspended ([`bywash_engine::Failure`]): the other workers'
//! packets leave by its ports, and only what it receives is lost, until the programs leave it to the kernel. It is
//! restarted at once, but once a minute at most, so that packets that make it panic every time cost little.
//!
//! The watch runs on a thread of its own, because the control loop may be waiting for the hanging worker. For the same
//! reason it tends the clock.

use crate::shared::{Failed, Shared};
use crate::slots::PortSlot;
use crate::workers::Shown;
use bywash_sync::clock::{self, Changes};
use bywash_sync::lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between checks.
const EVERY: Duration = Duration::from_millis(250);
/// Time without a turn after which a worker counts as hanging. Only time in which it could have run counts, and a check
/// counts for at most [`EVERY`], however late it is, so that stopping the whole machine does not count.
const HANGS: Duration = Duration::from_secs(2);
/// Shortest time between two restarts of a worker.
const RESTARTS: Duration = Duration::from_secs(60);

/// State of a worker at one check.
#[derive(Clone, Copy, Default)]
struct Sample {
    turns: u64,
    /// CPU time of its thread, in nanoseconds.
    ran: u64,
    /// Set if the thread runs or waits for a CPU: then only the CPU time it got counts as its own.
    runnable: bool,
}

impl Sample {
    fn of(worker: &Shown) -> Self {
        let counters = worker.handle.counters();
        let (turns, thread) = (counters.turns.get(), counters.thread.get());
        let read = |what: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{what}")).ok();
        // proc_pid_stat(5): the state follows the name, which is in parentheses. If it cannot be read, all of the time
        // counts.
        let runnable =
            read("stat").is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R')));
        // Documentation/scheduler/sched-stats.rst: the first field is the time on a CPU, in nanoseconds.
        let ran = read("schedstat").and_then(|stat| stat.split_whitespace().next()?.parse().ok());
        Self { turns, ran: ran.unwrap_or(0), runnable: runnable && ran.is_some() }
    }
}

/// Last sample of each worker, and the time for which it has not turned.
struct Turns(Vec<(Sample, Duration)>);

impl Turns {
    /// Adds a sample of each worker. Returns the numbers of the workers that hang.
    fn check(&mut self, samples: impl Iterator<Item = Sample>) -> Vec<usize> {
        for ((seen, still), now) in self.0.iter_mut().zip(samples) {
            let own =
                if now.runnable { Duration::from_nanos(now.ran.saturating_sub(seen.ran)).min(EVERY) } else { EVERY };
            *still = if seen.turns == now.turns { *still + own } else { Duration::ZERO };
            *seen = now;
        }
        self.0.iter().enumerate().filter(|(_, (_, still))| *still >= HANGS).map(|(worker, _)| worker).collect()
    }
}

/// Time of each worker's last restart.
struct Restarts(Vec<Option<Instant>>);

impl Restarts {
    /// Returns the time until a worker that has panicked may be restarted.
    fn wait(&self, worker: usize, now: Instant) -> Duration {
        self.0[worker].map_or(Duration::ZERO, |last| RESTARTS.saturating_sub(now.saturating_duration_since(last)))
    }

    /// Restarts a worker if it may be.
    fn restart(&mut self, worker: usize, now: Instant, shared: &Shared) {
        if self.wait(worker, now).is_zero() {
            self.0[worker] = Some(now);
            shared.workers[worker].handle.restart();
            tracing::warn!("worker {worker} is restarted");
        }
    }
}

/// The watching thread. Dropping this stops and joins it.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to watch the workers. Errors if the thread cannot be created.
    pub fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("bywash-watch".into()).spawn(move || {
            let mut turns = Turns(vec![Default::default(); shared.workers.len()]);
            let mut restarts = Restarts(vec![None; shared.workers.len()]);
            let mut broker_ended = false;
            let this = std::thread::current();
            shared.workers.iter().for_each(|worker| worker.handle.watch_by(this.clone()));
            while !stopped.load(Ordering::Acquire) {
                let hung = turns.check(shared.workers.iter().map(Sample::of));
                let failed = shared.failures();
                let now = Instant::now();
                shared.found((!hung.is_empty()).then(|| shared.why_halted(&hung)), &failed, |worker| {
                    restarts.wait(worker, now)
                });
                failed.iter().for_each(|failed| restarts.restart(failed.worker, now, &shared));
                log_changes(clock::tend());
                if !broker_ended && let Some(why) = crate::sandbox::without_broker() {
                    broker_ended = true;
                    tracing::warn!("{why}");
                }
                std::thread::park_timeout(EVERY);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Logs changes of the time-stamp counter.
fn log_changes(Changes { back, old_hz }: Changes) {
    if !back.is_zero() {
        tracing::warn!(
            "the time-stamp counter went back by {:.1} s, as it does when a machine resumes or moves to another host; \
             time continues from its last value",
            back.as_secs_f64()
        );
    }
    if let Some(old) = old_hz {
        let mhz = |hz: u64| hz as f64 / 1e6;
        tracing::warn!(
            "the time-stamp counter runs at {:.1} MHz instead of {:.1}, as it does when a machine moves to another \
             host: rate limits that were set up before are wrong by this factor; restart Bywash",
            mhz(clock::tsc_hz()),
            mhz(old)
        );
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread panics only if another thread has poisoned a lock.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn why_halted(&self, hung: &[usize]) -> String {
        let of = |&worker: &usize| {
            let thread = self.workers[worker].handle.counters().thread.get();
            format!("worker {worker} (thread {thread}, ports {}) hangs", self.polled(worker))
        };
        hung.iter().map(of).collect::<Vec<_>>().join(", ")
    }

    /// Returns the names of the ports with a queue that a worker polls.
    fn polled(&self, worker: usize) -> String {
        let ports = self.ports();
        let polled = ports.values().filter(|slot| polls(slot, worker));
        polled.map(|slot| slot.config.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the workers that have panicked and not been restarted.
    fn failures(&self) -> Vec<Failed> {
        let of = |(worker, shown): (usize, &Shown)| Some(Failed { worker, failure: shown.handle.failed()? });
        self.workers.iter().enumerate().filter_map(of).collect()
    }

    /// Applies the result of a check: `why` names the hanging workers; `None` if there are none. `failed` are those
    /// that have panicked, `wait` the time until one of them may be restarted.
    fn found(&self, why: Option<String>, failed: &[Failed], wait: impl Fn(usize) -> Duration) {
        let before = std::mem::replace(&mut *lock(&self.halted), why.clone());
        let failed_before = std::mem::replace(&mut *lock(&self.failed), failed.to_vec());
        match &why {
            Some(why) if before.as_ref() != Some(why) => tracing::error!(
                "{why}: no iteration for {} s; all ports are left to the kernel until it responds",
                HANGS.as_secs()
            ),
            None if before.is_some() => {
                tracing::warn!("all workers respond again: Bywash forwards on their ports again")
            }
            _ => {}
        }
        for new in failed.iter().filter(|failed| !failed_before.contains(failed)) {
            tracing::error!(
                "{new}: this is a bug; the worker is restarted in {} s; until then its ports ({}) are left to the \
                 kernel, and packets that still reach it are dropped as worker-failed",
                wait(new.worker).as_secs(),
                self.polled(new.worker)
            );
        }
        if before.is_none() && why.is_none() && failed_before.is_empty() && failed.is_empty() {
            return;
        }
        // All ports each time, to find those that were added meanwhile.
        for slot in self.ports().values_mut() {
            let of_port = failed.iter().find(|failed| polls(slot, failed.worker)).map(Failed::to_string);
            let Some(xdp) = &mut slot.xdp else { continue };
            if let Err(e) = xdp.halt(why.as_deref().or(of_port.as_deref())) {
                tracing::error!("{}: {e:#}", xdp.interface);
            }
        }
    }
}

/// Returns whether a worker polls a queue of a port.
fn polls(slot: &PortSlot, worker: usize) -> bool {
    slot.polled_by(worker).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKS: u64 = (HANGS.as_millis() / EVERY.as_millis()) as u64;

    #[test]
    fn who_does_not_turn_hangs() {
        let mut turns = Turns(vec![Default::default(); 3]);
        // The second worker stops after its fifth turn; the third turns every `CHECKS` checks.
        let at = |n: u64| [n, n.min(5), n / CHECKS].map(|turns| Sample { turns, ..Sample::default() });
        for n in 1..5 + CHECKS {
            assert_eq!(turns.check(at(n).into_iter()), [0; 0], "{n}");
        }
        for n in 5 + CHECKS..40 {
            assert_eq!(turns.check(at(n).into_iter()), [1], "{n}");
        }
        let turned = [40, 6, 9].map(|turns| Sample { turns, ..Sample::default() });
        assert_eq!(turns.check(turned.into_iter()), [0; 0]);
    }

    #[test]
    fn who_gets_no_cpu_does_not_hang() {
        let mut turns = Turns(vec![Default::default(); 2]);
        let all = EVERY.as_nanos() as u64;
        // Both wait for a CPU most of the time; the second gets a tenth of one and does not turn in that time.
        let at = |n: u64| [0, n * all / 10].map(|ran| Sample { turns: 1, ran, runnable: true });
        let hung = (0..=10 * CHECKS).map(|n| turns.check(at(n).into_iter())).collect::<Vec<_>>();
        assert!(hung[..10 * CHECKS as usize].iter().all(Vec::is_empty));
        assert_eq!(hung[10 * CHECKS as usize], [1]);
    }

    #[test]
    fn who_has_panicked_is_restarted_at_once_and_then_once_a_minute() {
        let mut restarts = Restarts(vec![None; 2]);
        let start = Instant::now();
        assert_eq!(restarts.wait(1, start), Duration::ZERO);
        restarts.0[1] = Some(start);
        assert_eq!(restarts.wait(1, start), RESTARTS);
        assert_eq!(restarts.wait(1, start + RESTARTS / 3), RESTARTS * 2 / 3);
        assert_eq!(restarts.wait(1, start + RESTARTS), Duration::ZERO);
        assert_eq!(restarts.wait(0, start), Duration::ZERO, "another worker's restart does not count");
    }
}
