//! Assignment of queues, CPUs and buffers to workers.

use crate::choice::{MemifRole, Mode};
use crate::cmts::GroupConfig;
use crate::model::{Config, DEVICE_RING, PortConfig};
use crate::pools::PoolPlan;
use crate::problem::{ConfigErrors, Problem};
use crate::text;
use bywash_engine::cpus;

/// Buffers that a port without rings may hold: packets received and not yet sent.
const NO_RINGS: usize = 64;

/// Queues, CPU and buffers of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerPlan {
    /// CPU that the worker is pinned to; `None` if it is not pinned.
    pub cpu: Option<usize>,
    /// Queues that the worker polls: index in [`Config::ports`], and queue number.
    pub queues: Vec<(usize, usize)>,
    /// Size of the worker's pool in buffers.
    pub frames: usize,
}

/// Plan of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Workers by number.
    pub workers: Vec<WorkerPlan>,
    /// Pools by their first worker.
    pub pools: Vec<PoolPlan>,
}

impl Plan {
    /// Returns the size of a pool in buffers.
    pub fn frames(&self, pool: &PoolPlan) -> usize {
        pool.workers.iter().map(|worker| self.workers[*worker].frames).sum()
    }
}

impl PortConfig {
    /// Returns the index of the worker, out of `workers`, that polls the port's queue number `order` out of `queues`.
    /// `at` is the index of the port. An index that the configuration names can be out of range.
    pub fn worker_of(&self, (order, queues): (usize, usize), at: usize, workers: usize) -> usize {
        let first = if queues < workers { at } else { 0 };
        self.worker.set().map_or((first + order) % workers, |of_queues| of_queues[order % of_queues.len()])
    }

    /// Returns the maximum number of buffers that one of the port's queues holds.
    pub fn frames(&self) -> usize {
        let client = self.memif.as_ref().filter(|memif| memif.role == MemifRole::Client);
        // A memif client's buffers are lent to the peer in both rings.
        let lent = client.map(|memif| 2 * memif.ring);
        // A DPDK driver fills both rings with buffers.
        let driver = self.dpdk.as_ref().map(|_| 2 * DEVICE_RING);
        self.af_xdp.as_ref().map(|af_xdp| af_xdp.ring.frames()).or(lent).or(driver).unwrap_or(NO_RINGS)
    }
}

impl Config {
    /// Assigns queues and buffers to workers. `queues` lists the queues of each port, in the order of `self.ports`;
    /// `allowed` lists the CPUs to use if the configuration names none.
    ///
    /// A worker without a queue of a port sends on that port through a worker that has one. The queues of a port with
    /// fewer queues than workers begin at worker `at`, the port's index modulo the number of workers, so that such
    /// ports are spread over the workers.
    pub fn plan(&self, queues: &[Vec<usize>], allowed: &[usize]) -> Result<Plan, ConfigErrors> {
        self.lay_out(queues, allowed).map_err(|problem| ConfigErrors::new(None, Default::default(), vec![*problem]))
    }

    /// Returns the CPU that a worker is pinned to; `None` if it is not pinned.
    pub fn cpu_of(&self, worker: usize, allowed: &[usize]) -> Option<usize> {
        match self.workers.cpus.set() {
            Some(cpus) => cpus.get(worker).copied(),
            // Keep the two workers of a group on neighbouring CPUs.
            None if self.mode == Mode::Cmts && !allowed.is_empty() => Some(allowed[worker % allowed.len()]),
            None => cpus::of_worker(worker, allowed),
        }
    }

    pub(crate) fn lay_out(&self, queues: &[Vec<usize>], allowed: &[usize]) -> Result<Plan, Box<Problem>> {
        let fewest = queues.iter().map(Vec::len).min().unwrap_or(0);
        let named = self.workers.cpus.set();
        let cmts = self.mode == Mode::Cmts;
        let count = match self.workers.count.set() {
            _ if cmts => 2 * self.groups.len(),
            Some(&count) => count,
            None => self.auto_count(fewest, named.map_or(allowed.len(), Vec::len)),
        };
        let mut workers = vec![WorkerPlan::default(); count];
        for (index, worker) in workers.iter_mut().enumerate() {
            worker.cpu = self.cpu_of(index, allowed);
        }
        for (at, (port, queues)) in self.ports.iter().zip(queues).enumerate() {
            for (order, &queue) in queues.iter().enumerate() {
                let index =
                    if cmts { self.mac_of(&port.name) } else { port.worker_of((order, queues.len()), at, count) };
                let Some(worker) = workers.get_mut(index) else {
                    let what = format!("port {} names worker {index} of {}", port.name, text::count(count, "worker"));
                    let expected = format!("expected 0 to {}", count - 1);
                    return Err(Problem::at(format!("port.{at}.worker"), what, expected).into());
                };
                worker.queues.push((at, queue));
            }
        }
        if let Some(index) = workers.iter().position(|worker| worker.queues.is_empty()) {
            return Err(self.without_queue(index, queues).into());
        }
        let pools = self.distribute_pools(count)?;
        for pool in &pools {
            for &index in &pool.workers {
                workers[index].frames = self.frames_of(index, &workers[index], pool.settings)?;
            }
        }
        Ok(Plan { workers, pools })
    }

    /// Returns the worker that polls a port of a cable downstream: the upper MAC of a group polls its input, the lower
    /// MAC its output.
    fn mac_of(&self, port: &str) -> usize {
        let of_group = |(at, group): (usize, &GroupConfig)| match port {
            _ if group.input == port => Some(2 * at),
            _ if group.output == port => Some(2 * at + 1),
            _ => None,
        };
        self.groups.iter().enumerate().find_map(of_group).unwrap_or(0)
    }

    /// Returns the automatic number of workers: enough for the highest worker that a port names; if none is named, the
    /// queue count of the port with the fewest queues, at most `cpus`.
    fn auto_count(&self, fewest: usize, cpus: usize) -> usize {
        let named = self.ports.iter().filter_map(|port| port.worker.set()).flatten().max();
        match named {
            Some(highest) => highest + 1,
            None => fewest.min(cpus.max(1)).max(1),
        }
    }

    fn without_queue(&self, worker: usize, queues: &[Vec<usize>]) -> Problem {
        let what = format!("worker {worker} has nothing to poll");
        let more = "give the port more queues (ethtool -L IFACE combined N)";
        let named = |at: &usize| self.ports[*at].worker.set().map_or(&[][..], Vec::as_slice);
        let (at, ports) = (|at: usize| format!("port.{at}.worker"), 0..self.ports.len());
        if let Some(port) = ports.clone().find(|at| named(at).contains(&worker)) {
            let (workers, queues) = (named(&port).len(), queues[port].len());
            let (workers, queues) = (text::count(workers, "worker"), text::count(queues, "queue"));
            let expected = format!("port {} names {workers} for {queues}", self.ports[port].name);
            return Problem::at(at(port), what, expected).help(format!("name fewer workers, or {more}"));
        }
        let highest = ports.filter_map(|at| Some((*named(&at).iter().max()?, at))).max();
        if let (Some((highest, port)), None) = (highest.filter(|(named, _)| *named > worker), self.workers.count.set())
        {
            let expected = format!("port {} names worker {highest}", self.ports[port].name);
            return Problem::at(at(port), what, expected).help("name workers from 0, without a gap");
        }
        let all: usize = queues.iter().map(Vec::len).sum();
        let help = "use fewer workers, or give the ports more queues (ethtool -L IFACE combined N)";
        Problem::at("workers.count", what, format!("the ports have {} in all", text::count(all, "queue"))).help(help)
    }

    fn frames_of(&self, index: usize, worker: &WorkerPlan, settings: usize) -> Result<usize, Box<Problem>> {
        let pool = &self.pools[settings];
        let held = |&(port, _): &(usize, usize)| self.ports[port].frames();
        // An upper MAC's buffers also fill the ring to the lower MAC and the queues behind it.
        let downstream = if self.mode == Mode::Cmts { self.cmts.queues + self.cmts.ring } else { 0 };
        let needed = worker.queues.iter().map(held).sum::<usize>() + downstream + pool.cache_frames();
        pool.frames_for(needed).map_err(|frames| {
            let what = format!("{frames} buffers are too few for worker {index}");
            let (rings, cache) = (needed - pool.cache_frames(), pool.cache_frames());
            let help = format!("its {} can hold {rings}, its cache {cache}", text::count(worker.queues.len(), "queue"));
            let path = self.pool_path(settings, "frames");
            Problem::at(path, what, format!("expected at least {needed}")).help(help).into()
        })
    }
}
