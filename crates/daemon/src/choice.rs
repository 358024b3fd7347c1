//! Choice of a pool's policy, for `kind = "auto"`.
//!
//! A worker that frees the frames it takes keeps them warm in a stack. If another worker frees them, both the frames
//! and the policy's own lines move between two CPUs, and the best policy depends on what that costs.

use bywash_config::Mode;
use bywash_engine::line::{self, Way};
use bywash_frame::PoolKind;
use std::collections::BTreeMap;

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

/// Ways between CPUs that were measured for one start or reload. Measuring takes time from the threads on both CPUs, so
/// each pair is measured only once; a later reload measures again, because the CPUs of a virtual machine move.
#[derive(Default)]
pub struct Ways(BTreeMap<(usize, usize), Way>);

impl Ways {
    fn between(&mut self, one: usize, other: usize) -> Way {
        let cpus = (one.min(other), one.max(other));
        let measure = || {
            let cost = line::measure(cpus.0, cpus.1).ok().flatten();
            Way::between(cpus.0, cpus.1, cost.map(|cost| cost.ns))
        };
        *self.0.entry(cpus).or_insert_with(measure)
    }
}

impl Choice {
    /// Chooses a policy by the most expensive of `users`.
    pub fn of(users: Vec<PoolUser>, ways: &mut Ways) -> Self {
        Self::by(users, |one, other| ways.between(one, other))
    }

    fn by(users: Vec<PoolUser>, mut way: impl FnMut(usize, usize) -> Way) -> Self {
        // Of two ways, that of two cores is the more expensive.
        let mut worst: Option<((bool, f64), Way, String)> = None;
        for (worker, one, other) in &users {
            let (Some(one), Some(other)) = (*one, *other) else {
                let why = format!("worker {worker} frees its frames, and may run on any CPU");
                return Self { kind: PoolKind::Stack, why, users };
            };
            // Workers on one CPU share its caches.
            let way = if one == other { Way { ns: Some(0.0), one_core: true } } else { way(one, other) };
            if way.ns.is_none() && !way.is_one_core() {
                let why = format!("worker {worker} frees its frames; CPUs {one} and {other} were too busy to measure");
                return Self { kind: way.policy(), why, users };
            }
            let cost = (!way.is_one_core(), way.ns.unwrap_or(0.0));
            if worst.as_ref().is_none_or(|(worst, ..)| cost > *worst) {
                let takes = way.ns.map(|ns| format!("a cache line takes {ns:.0} ns from CPU {one} to {other}"));
                let near = (way.is_one_core() && one != other).then(|| match takes {
                    Some(_) => "hyper-threads of one core".into(),
                    None => format!("CPUs {one} and {other} are hyper-threads of one core"),
                });
                let between = takes.into_iter().chain(near).collect::<Vec<_>>().join(", ");
                worst = Some((cost, way, format!("worker {worker} frees its frames, and {between}")));
            }
        }
        let kind = worst.as_ref().map_or(PoolKind::Stack, |(_, way, _)| way.policy());
        let why = worst.map_or("the worker frees its frames itself".into(), |(.., why)| why);
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
        let way = |_: usize, other: usize| {
            let ns = Some(if other == 2 { 150.0 } else { 40.0 });
            Way { ns, one_core: other == 4 }
        };
        let user = |worker: usize| (worker, Some(0), Some(worker));
        let choice = Choice::by(vec![user(1), user(2), user(3)], way);
        let why = "worker 2 frees its frames, and a cache line takes 150 ns from CPU 0 to 2";
        assert_eq!((choice.kind, choice.why.as_str()), (PoolKind::Ring, why));
        assert!(choice.is_by(&[user(1), user(2), user(3)]) && !choice.is_by(&[user(1)]));
        let near = Choice::by(vec![user(4)], way);
        let why = "worker 4 frees its frames, and a cache line takes 40 ns from CPU 0 to 4, hyper-threads of one core";
        assert_eq!((near.kind, near.why.as_str()), (PoolKind::Stack, why));
        assert_eq!(Choice::by(vec![(1, Some(4), Some(4))], way).kind, PoolKind::Stack);
        assert_eq!(Choice::by(vec![], way).why, "the worker frees its frames itself");
        let unknown = Choice::by(vec![user(1)], |_, _| Way { ns: None, one_core: false });
        assert!(unknown.kind == PoolKind::Stack && unknown.why.ends_with("CPUs 0 and 1 were too busy to measure"));
        let unknown = Choice::by(vec![user(1)], |_, _| Way { ns: None, one_core: true });
        let why = "worker 1 frees its frames, and CPUs 0 and 1 are hyper-threads of one core";
        assert_eq!((unknown.kind, unknown.why.as_str()), (PoolKind::Stack, why));
        assert!(Choice::by(vec![(1, None, Some(1))], way).why.ends_with("may run on any CPU"));
    }

    #[test]
    fn a_pair_of_cpus_is_measured_once_for_all_pools_of_a_reload() {
        let (mut ways, known) = (Ways::default(), Way { ns: Some(77.0), one_core: false });
        ways.0.insert((3, 5), known);
        assert_eq!(ways.between(5, 3), known);
        // A CPU that does not exist cannot be measured; this is remembered, too.
        assert_eq!(ways.between(5, 1023), Way { ns: None, one_core: false });
        assert!(ways.0.contains_key(&(5, 1023)));
    }
}
