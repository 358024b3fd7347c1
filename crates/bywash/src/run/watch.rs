//! Notices workers that hang, and leaves every port to the kernel while one does.
//!
//! A worker turns at least every 10 ms, asleep or not, and counts each turn. While one does not turn, what its ports receive
//! waits for nothing, and no port can be forwarded rightly: new routes are published when every worker has let go of the
//! old ones. So all programs leave their frames to the kernel, until it turns again.
//!
//! It is a thread of its own that watches, for the control loop may be waiting for that very worker.

use super::control::Shared;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it looks.
const EVERY: Duration = Duration::from_millis(250);
/// A worker hangs that has not turned at so many looks in a row, 2 s. Looks rather than time: on a machine that was stopped
/// as a whole, or is starved, there are fewer of them, too.
const LOOKS: u32 = 8;

/// How often each worker had turned when last looked at, and for how many looks it has not.
struct Turns(Vec<(u64, u32)>);

impl Turns {
    /// Takes in how often each has turned by now, and gives the numbers of those that hang.
    fn look(&mut self, turns: impl Iterator<Item = u64>) -> Vec<usize> {
        for (seen, now) in self.0.iter_mut().zip(turns) {
            *seen = if seen.0 == now { (now, seen.1.saturating_add(1)) } else { (now, 0) };
        }
        self.0.iter().enumerate().filter(|(_, (_, still))| *still >= LOOKS).map(|(worker, _)| worker).collect()
    }
}

/// The thread that watches. It ends when this is dropped.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to watch the workers.
    pub fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("bywash-watch".into()).spawn(move || {
            let mut turns = Turns(vec![(0, 0); shared.workers.len()]);
            while !stopped.load(Ordering::Acquire) {
                let hung = turns.look(shared.workers.iter().map(|worker| worker.handle.counters().turns.get()));
                shared.found((!hung.is_empty()).then(|| shared.why_halted(&hung)));
                std::thread::park_timeout(EVERY);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It ends by a panic only where a lock is poisoned by another.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Why no port is forwarded now: a worker hangs.
    pub fn halted(&self) -> Option<String> {
        self.halted.lock().expect("halted").clone()
    }

    fn why_halted(&self, hung: &[usize]) -> String {
        let live = self.live();
        let of = |worker: &usize| {
            let worker = &self.workers[*worker];
            let mut ports: Vec<&str> = worker.polls().iter().map(|(port, _)| live.name(*port)).collect();
            ports.dedup();
            let thread = worker.handle.counters().thread.get();
            format!("worker {} (thread {thread}, ports {}) hangs", worker.handle.id(), ports.join(", "))
        };
        hung.iter().map(of).collect::<Vec<_>>().join(", ")
    }

    /// Workers hang, or none does any more.
    fn found(&self, why: Option<String>) {
        let before = std::mem::replace(&mut *self.halted.lock().expect("halted"), why.clone());
        match &why {
            Some(why) if before.as_ref() != Some(why) => tracing::error!(
                "{why}: it has not turned for {} s; every port is the kernel's until it does",
                (EVERY * LOOKS).as_secs()
            ),
            None if before.is_some() => tracing::warn!("every worker turns again: ports are taken over again"),
            // Those that have come meanwhile are halted, too.
            Some(_) => {}
            None => return,
        }
        for xdp in self.xdp.lock().expect("programs").iter_mut().flatten() {
            if let Err(e) = xdp.halt(why.as_deref()) {
                tracing::error!("{}: {e:#}", xdp.interface);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_turn_hangs() {
        let mut turns = Turns(vec![(0, 0); 3]);
        // The second stands still from its fifth turn on; the third turns now and then.
        let at = |look: u64| [look, look.min(5), look / u64::from(LOOKS)];
        for look in 1..5 + u64::from(LOOKS) {
            assert_eq!(turns.look(at(look).into_iter()), [0; 0], "{look}");
        }
        for look in 5 + u64::from(LOOKS)..40 {
            assert_eq!(turns.look(at(look).into_iter()), [1], "{look}");
        }
        assert_eq!(turns.look([40, 6, 9].into_iter()), [0; 0]);
    }
}
