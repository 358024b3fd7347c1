//! Pools that a reload adds and removes.
//!
//! A pool is never resized or converted. A new pool takes the arena's spare cells (`pool.reserve`), workers allocate
//! from it from their next turn on, and the old one drains: its buffers in rings, queues and packets return as traffic
//! passes. The old pool is removed when its last frame is back.

use crate::choice::{Choice, Ways, pool_users};
use crate::diff::Step;
use crate::ports::places;
use crate::runtime::Runtime;
use crate::shared::Shared;
use crate::slots::{self, Opening, PortSlot, Ports};
use crate::workers::{ANSWER, Shown};
use anyhow::{Context as _, bail, ensure};
use bywash_config::{Config, PoolPlan, PortConfig};
use bywash_engine::{Change, PORTS};
use bywash_frame::{Pool, PoolConfig};
use std::sync::Arc;

/// Workers that have changed from one pool to another.
pub struct Changed {
    workers: Vec<usize>,
    before: Arc<Pool>,
    now: Arc<Pool>,
}

impl Shared {
    /// Returns the number of buffers that each worker needs for `steps`, while ports that are removed still have
    /// theirs; without its cache.
    fn needed(&self, steps: &[Step]) -> anyhow::Result<Vec<usize>> {
        let mut needed = vec![0; self.workers.len()];
        let ports = self.ports();
        // A reopened port releases its buffers before it takes new ones.
        let reopened = |slot: &PortSlot| {
            steps.iter().any(|step| matches!(step, Step::Reopen(port, _) if port.name == slot.config.name))
        };
        for slot in ports.values().filter(|slot| !reopened(slot)) {
            slot.queues.iter().for_each(|(_, worker)| needed[*worker] += slot.config.frames());
        }
        for (port, workers) in self.opened(&ports, steps)? {
            workers.into_iter().for_each(|worker| needed[worker] += port.frames());
        }
        Ok(needed)
    }

    /// Returns the ports that `steps` open, each with the worker of each queue.
    fn opened<'a>(&self, ports: &Ports, steps: &'a [Step]) -> anyhow::Result<Vec<(&'a PortConfig, Vec<usize>)>> {
        let of = |Opening { at, port, .. }: Opening<'a>| {
            ensure!(at < PORTS, "port `{}`: there can be {PORTS} ports", port.name);
            let places = places(port, at, self.workers.len()).with_context(|| format!("port `{}`", port.name))?;
            Ok((port, places.into_iter().map(|(_, worker)| worker).collect()))
        };
        slots::openings(ports, steps).into_iter().map(of).collect()
    }

    /// Returns the workers that have queues of each port, after `steps`.
    fn owners(&self, steps: &[Step]) -> anyhow::Result<Vec<Vec<usize>>> {
        let ports = self.ports();
        let goes = |slot: &PortSlot| {
            let name = &slot.config.name;
            steps.iter().any(|step| match step {
                Step::Remove(gone) => gone == name,
                Step::Reopen(port, _) => port.name == *name,
                _ => false,
            })
        };
        let stay = ports.values().filter(|slot| !goes(slot));
        let mut owners: Vec<Vec<usize>> =
            stay.map(|slot| slot.queues.iter().map(|(_, worker)| *worker).collect()).collect();
        owners.extend(self.opened(&ports, steps)?.into_iter().map(|(_, workers)| workers));
        Ok(owners)
    }

    /// Returns the steps that replace pools for the configuration `new`, given the other `steps` and those of `cpus`.
    /// Errors if a fixed pool size is too small, or if the arena has too few spare cells.
    ///
    /// A pool whose kind is chosen keeps it if there are too few spare cells for another.
    pub fn pool_steps(&self, new: &Config, steps: &[Step], cpus: &[Step]) -> anyhow::Result<Vec<Step>> {
        let (needed, owners) = (self.needed(steps)?, self.owners(steps)?);
        let cpu_of = |worker: usize| {
            let moved = cpus.iter().find_map(|step| match step {
                Step::Cpu(moved, _, cpu) if *moved == worker => Some(*cpu),
                _ => None,
            });
            moved.or_else(|| self.workers[worker].cpu())
        };
        let (mut changes, mut wishes, mut choices, mut ways) = (vec![], vec![], vec![], Ways::default());
        for PoolPlan { name, settings, workers } in new.pool_plans(needed.len())? {
            let pool = &new.pools[settings];
            let first = &self.workers[workers[0]];
            let before = first.pool();
            let shared = self.sharers(&before) == workers;
            let before = before.config();
            let (mut frames, mut least) = (0, 0);
            for &worker in &workers {
                let needed = needed[worker] + pool.cache_frames();
                least += needed;
                frames += pool.frames_for(needed).map_err(|frames| {
                    anyhow::anyhow!(
                        "worker {worker} would need {needed} buffers and has {frames}: give the new ports smaller \
                         rings (`ring`), or set {} to at least {needed}",
                        new.pool_path(settings, "frames")
                    )
                })?;
            }
            // A choice holds until a worker moves, or another one frees its frames.
            let (stored, mut choice) = (first.choice(), None);
            if pool.kind.set().is_none() {
                let users = pool_users(new.mode, workers[0], &owners, &cpu_of);
                choice =
                    stored.clone().filter(|stored| stored.is_by(&users)).or_else(|| Some(Choice::of(users, &mut ways)));
            }
            let kind = pool.kind.set().copied().or(choice.as_ref().map(|choice| choice.kind)).unwrap_or_default();
            let is = pool.pool(&before.name, kind, frames);
            let like = |is: &PoolConfig| {
                let same =
                    is_name(&before.name, &name) && PoolConfig { frames: before.frames, ..is.clone() } == *before;
                // With `auto`, keep a pool that is large enough.
                let enough = pool.frames.set().is_none() && before.frames >= least;
                same && shared && (is.frames == before.frames || enough)
            };
            // Another kind is better, but not necessary.
            let wish = choice.is_some() && like(&pool.pool(&before.name, before.kind, frames));
            let step = (!like(&is)).then(|| {
                let name = self.free_name(&name, &changes);
                Step::Pool(workers.clone(), before.clone(), PoolConfig { name, ..is })
            });
            match step {
                Some(step) if wish => wishes.push((workers[0], step)),
                step => changes.extend(step),
            }
            if choice != stored {
                choices.push((workers[0], choice));
            }
        }
        let frames: usize = changes.iter().map(Step::frames).sum();
        let spare = self.pools.spare();
        if frames > spare {
            let draining: usize =
                self.pools.pools().iter().filter(|pool| pool.drains()).map(|pool| pool.config().frames).sum();
            let drain = if draining > 0 {
                format!(" ({draining} more are in draining pools: try again later)")
            } else {
                String::new()
            };
            bail!(
                "the new pools need {frames} buffers, but only {spare} are spare{drain}; use smaller rings (`ring`) on \
                 the ports, or set pool.reserve to {frames} and restart bywash"
            );
        }
        for (worker, step) in wishes {
            let taken: usize = changes.iter().map(Step::frames).sum();
            let (wanted, room) = (step.frames(), self.pools.room().saturating_sub(taken));
            if wanted <= room {
                changes.push(step);
            } else if let (Step::Pool(_, before, is), Some((_, Some(choice)))) =
                (step, choices.iter_mut().find(|(chosen, _)| *chosen == worker))
            {
                let but = format!("{} would be better, but takes {wanted} buffers, and {room} are spare", is.kind);
                let why = format!("{}; {but}: set pool.reserve", choice.why);
                *choice = Choice { kind: before.kind, why, ..choice.clone() };
            }
        }
        changes.extend(choices.into_iter().map(|(worker, choice)| Step::Choose(worker, choice)));
        Ok(changes)
    }

    /// Returns the workers that allocate from a pool.
    pub fn sharers(&self, pool: &Arc<Pool>) -> Vec<usize> {
        let takes = |worker: &&Shown| Arc::ptr_eq(&worker.pool(), pool);
        self.workers.iter().filter(takes).map(|worker| worker.handle.id()).collect()
    }

    /// Returns a name that no pool has, nor one that drains or that `changes` adds: `name`, or `name.2` and so on.
    fn free_name(&self, name: &str, changes: &[Step]) -> String {
        let pools = self.pools.pools();
        let names = std::iter::once(name.to_owned()).chain((2..).map(|n| format!("{name}.{n}")));
        let added = |name: &str| changes.iter().any(|step| matches!(step, Step::Pool(.., is) if is.name == name));
        let mut free = names.filter(|name| !added(name) && pools.iter().all(|pool| pool.config().name != *name));
        free.next().unwrap_or_default()
    }
}

/// Returns whether a pool has the name that the configuration gives it, with or without a number for a later one.
fn is_name(name: &str, configured: &str) -> bool {
    let numbered = |rest: &str| rest.strip_prefix('.').is_some_and(|n| n.bytes().all(|c| c.is_ascii_digit()));
    name.strip_prefix(configured).is_some_and(|rest| rest.is_empty() || numbered(rest))
}

/// Logs where the memory of a pool with a CPU is.
pub fn log_place(pool: &Pool) {
    if let (Some(place), PoolConfig { name, cpu: Some(cpu), .. }) = (pool.place(), pool.config()) {
        tracing::info!("pool {name}: memory near CPU {cpu}: {place}");
    }
}

impl Runtime {
    /// Makes workers allocate from a new pool. The previous one keeps the buffers in use. Errors if the pool cannot be
    /// created.
    pub fn change_pool(&mut self, workers: Vec<usize>, config: &PoolConfig) -> anyhow::Result<Changed> {
        let now = self.shared.pools.add(config.clone())?;
        log_place(&now);
        let before = self.shared.workers[workers[0]].pool();
        let changed = Changed { workers, before, now };
        self.take_from(&changed.workers, &changed.now);
        Ok(changed)
    }

    /// Starts to drain the previous pools.
    pub fn pools_changed(&mut self, changes: &[Changed]) {
        let pools: Vec<&Arc<Pool>> = changes.iter().map(|changed| &changed.before).collect();
        self.drain(&pools);
    }

    /// Reverts a change: workers allocate from the previous pool, and the new one drains.
    pub fn undo_pool(&mut self, changed: &Changed) {
        self.take_from(&changed.workers, &changed.before);
        self.drain(&[&changed.now]);
    }

    fn take_from(&mut self, workers: &[usize], pool: &Arc<Pool>) {
        for worker in workers.iter().map(|worker| &self.shared.workers[*worker]) {
            worker.take_from(pool);
            worker.handle.change(vec![Change::Pool(pool.clone())], ANSWER);
        }
        if workers.contains(&0) {
            self.mode.take_from(pool);
        }
    }

    fn drain(&mut self, pools: &[&Arc<Pool>]) {
        if pools.is_empty() {
            return;
        }
        pools.iter().for_each(|pool| self.shared.pools.drain(pool));
        self.refresh_pools();
    }

    /// Makes workers and control half return buffers cached of draining pools, and forget pools that are gone.
    fn refresh_pools(&mut self) {
        for worker in &self.shared.workers {
            worker.handle.change(vec![Change::Pool(worker.pool())], ANSWER);
        }
        if let Some(first) = self.shared.workers.first() {
            self.mode.take_from(&first.pool());
        }
    }

    /// Removes pools that have drained.
    pub fn collect_pools(&mut self) {
        if self.shared.pools.collect() {
            self.refresh_pools();
            tracing::info!("pools have drained: {} buffers are spare", self.shared.pools.spare());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_names() {
        for (name, is) in [("worker1", true), ("worker1.2", true), ("worker1.x", false), ("work", false)] {
            assert_eq!(is_name(name, "worker1"), is, "{name}");
        }
        assert!(!is_name("worker10", "worker1"), "another worker's");
    }
}
