//! Choice of a pool's policy, for `kind = "auto"`.
//!
//! A worker that frees the frames it takes keeps them warm in a stack. If another worker frees them, both the frames
//! and the policy's own lines move between two CPUs, and the best policy depends on what that costs.

use bywash_config::Mode;
use bywash_engine::line;
use bywash_frame::PoolKind;
use bywash_sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Cost of a cache line transfer up to which two CPUs count as sharing a core, in nanoseconds. *Assumed*: hyper-threads
/// pass a line through the L1 cache they share. For such pairs the reference document for cable downstreams measured a
/// stack.
const SIBLINGS_NS: f64 = 30.0;
/// Cost of a cache line transfer at or above which frames arrive later from the other CPU's cache than from memory, in
/// nanoseconds. *Assumed*: the latency of memory. Below it, at 50 ns, `tabm` was measured faster than `stack` and
/// `ring` (docs/buffers.md).
const FAR_NS: f64 = 120.0;

/// Policy chosen for a worker's pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub kind: PoolKind,
    /// Reason in words.
    pub why: String,
    /// Workers that free its frames, each with the CPUs of both; the choice holds as long as these stay the same.
    pub users: Vec<PoolUser>,
}

/// Worker that frees the frames of another worker's pool: its number, the CPU of the pool's worker, and its own CPU.
pub type PoolUser = (usize, Option<usize>, Option<usize>);

/// Returns the best policy for a pool. `shared` is set if another thread frees its frames; `line_ns` is the time that a
/// cache line takes from one thread to the other, `None` if unknown.
pub fn choose(shared: bool, line_ns: Option<f64>) -> PoolKind {
    match line_ns.filter(|_| shared) {
        None => PoolKind::Stack,
        Some(ns) if ns < SIBLINGS_NS => PoolKind::Stack,
        Some(ns) if ns < FAR_NS => PoolKind::Tabm,
        Some(_) => PoolKind::Ring,
    }
}

/// Returns the workers that free a worker's frames, with the CPUs of both. `owners` lists, for each port, the workers
/// that have a queue of it: a worker without one hands its frames to the first of them. In a cable downstream the lower
/// MAC of a group frees the frames of the upper one.
pub fn pool_users(
    mode: Mode,
    worker: usize,
    owners: &[Vec<usize>],
    cpu_of: &dyn Fn(usize) -> Option<usize>,
) -> Vec<PoolUser> {
    let without = owners.iter().filter(|owners| !owners.contains(&worker));
    let mut others: Vec<usize> = match mode {
        Mode::Cmts if worker.is_multiple_of(2) => vec![worker + 1],
        Mode::Cmts => vec![],
        _ => without.filter_map(|owners| owners.iter().min().copied()).collect(),
    };
    others.sort_unstable();
    others.dedup();
    others.into_iter().map(|other| (other, cpu_of(worker), cpu_of(other))).collect()
}

impl Choice {
    /// Chooses a policy by the most expensive of `users`. Each is measured only once, because measuring takes time from
    /// the threads on both CPUs.
    pub fn of(users: Vec<PoolUser>) -> Self {
        static MEASURED: Mutex<BTreeMap<(usize, usize), f64>> = Mutex::new(BTreeMap::new());
        Self::by(users, |one, other| {
            let cpus = (one.min(other), one.max(other));
            let mut measured = lock(&MEASURED);
            if let Some(ns) = measured.get(&cpus) {
                return Some(*ns);
            }
            let ns = line::measure(cpus.0, cpus.1).ok().flatten()?.ns;
            measured.insert(cpus, ns);
            Some(ns)
        })
    }

    fn by(users: Vec<PoolUser>, measure: impl Fn(usize, usize) -> Option<f64>) -> Self {
        let mut worst: Option<(f64, String)> = None;
        for (worker, one, other) in &users {
            let (Some(one), Some(other)) = (*one, *other) else {
                let why = format!("worker {worker} frees its frames, and may run on any CPU");
                return Self { kind: choose(true, None), why, users };
            };
            // Workers on one CPU share its caches.
            let ns = if one == other { Some(0.0) } else { measure(one, other) };
            let Some(ns) = ns else {
                let why = format!("worker {worker} frees its frames; CPUs {one} and {other} were too busy to measure");
                return Self { kind: choose(true, None), why, users };
            };
            if worst.as_ref().is_none_or(|(worst, _)| ns > *worst) {
                let between = format!("a cache line takes {ns:.0} ns from CPU {one} to {other}");
                worst = Some((ns, format!("worker {worker} frees its frames, and {between}")));
            }
        }
        let kind = choose(!users.is_empty(), worst.as_ref().map(|(ns, _)| *ns));
        let why = worst.map_or("the worker frees its frames itself".into(), |(_, why)| why);
        Self { kind, why, users }
    }

    /// Returns whether the choice was made for these users.
    pub fn is_by(&self, users: &[PoolUser]) -> bool {
        self.users == users
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_follows_the_cost() {
        for (shared, ns, kind) in [
            (false, None, PoolKind::Stack),
            (false, Some(500.0), PoolKind::Stack),
            (true, None, PoolKind::Stack),
            (true, Some(12.0), PoolKind::Stack),
            (true, Some(50.0), PoolKind::Tabm),
            (true, Some(160.0), PoolKind::Ring),
        ] {
            assert_eq!(choose(shared, ns), kind, "{shared} {ns:?}");
        }
    }

    #[test]
    fn frames_are_freed_by_the_first_worker_with_a_queue() {
        let cpu = |worker: usize| Some(10 + worker);
        // Port 0 has queues at all workers, port 1 at workers 1 and 2, port 2 at worker 2.
        let owners = [vec![0, 1, 2], vec![2, 1], vec![2]];
        assert_eq!(pool_users(Mode::Router, 0, &owners, &cpu), [(1, Some(10), Some(11)), (2, Some(10), Some(12))]);
        assert_eq!(pool_users(Mode::Router, 1, &owners, &cpu), [(2, Some(11), Some(12))]);
        assert_eq!(pool_users(Mode::Cmts, 2, &owners, &cpu), [(3, Some(12), Some(13))]);
        assert_eq!(pool_users(Mode::Cmts, 3, &owners, &cpu), []);
        assert_eq!(pool_users(Mode::Switch, 2, &owners, &cpu), []);
    }

    #[test]
    fn the_most_expensive_user_decides() {
        let ns = |_: usize, other: usize| Some(if other == 2 { 150.0 } else { 40.0 });
        let user = |worker: usize| (worker, Some(0), Some(worker));
        let choice = Choice::by(vec![user(1), user(2), user(3)], ns);
        let why = "worker 2 frees its frames, and a cache line takes 150 ns from CPU 0 to 2";
        assert_eq!((choice.kind, choice.why.as_str()), (PoolKind::Ring, why));
        assert!(choice.is_by(&[user(1), user(2), user(3)]) && !choice.is_by(&[user(1)]));
        assert_eq!(Choice::by(vec![(1, Some(4), Some(4))], |_, _| None).kind, PoolKind::Stack);
        assert_eq!(Choice::by(vec![], ns).why, "the worker frees its frames itself");
        let unknown = Choice::by(vec![user(1)], |_, _| None);
        assert!(unknown.kind == PoolKind::Stack && unknown.why.ends_with("CPUs 0 and 1 were too busy to measure"));
        assert!(Choice::by(vec![(1, None, Some(1))], ns).why.ends_with("may run on any CPU"));
    }
}
