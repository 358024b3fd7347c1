//! Which worker polls what, where, and with how many buffers.

use super::cmts::GroupConfig;
use super::model::{Config, DEVICE_RING, MemifRole, Mode, PoolConfig, PoolKind, PortConfig};
use super::problem::{ConfigErrors, Problem};
use std::ops::Range;

/// Frames a worker may hold beside its rings: a batch in its hands, packets that wait for a neighbour, bursts being
/// collected.
pub const SPARE: usize = 1024;
/// Frames a port without rings may hold: what was received and not yet sent.
const NO_RINGS: usize = 64;

/// One worker's part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerPlan {
    /// CPU it is pinned to; none: not pinned.
    pub cpu: Option<usize>,
    /// What it polls: index in [`Config::ports`], and the queue's number.
    pub queues: Vec<(usize, usize)>,
    /// Frames in its pool.
    pub frames: usize,
}

/// What each worker does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub workers: Vec<WorkerPlan>,
}

impl PortConfig {
    /// The worker, of so many, that polls the queue that is `order` of its `queues`; the port is number `at`. One that the
    /// configuration names may be none of them.
    pub fn worker_of(&self, (order, queues): (usize, usize), at: usize, workers: usize) -> usize {
        let first = if queues < workers { at } else { 0 };
        self.worker.set().map_or((first + order) % workers, |of_queues| of_queues[order % of_queues.len()])
    }

    /// Frames that a queue of it may hold.
    pub fn frames(&self) -> usize {
        let client = self.memif.as_ref().filter(|memif| memif.role == MemifRole::Client);
        // A memif client has lent what is in both its rings.
        let lent = client.map(|memif| 2 * memif.ring);
        // A DPDK driver has both its rings full of them.
        let driver = self.dpdk.as_ref().map(|_| 2 * DEVICE_RING);
        self.af_xdp.as_ref().map(|af_xdp| af_xdp.ring.frames()).or(lent).or(driver).unwrap_or(NO_RINGS)
    }
}

impl PoolConfig {
    /// The pools' names, and the workers that take from each: a pool for each worker, so that none is contended; but sharing is
    /// what `sdb` is about.
    pub fn sharers(&self, workers: usize) -> Vec<(String, Range<usize>)> {
        match self.kind {
            PoolKind::Sdb => vec![("shared".to_owned(), 0..workers)],
            _ => (0..workers).map(|worker| (format!("worker{worker}"), worker..worker + 1)).collect(),
        }
    }
}

impl Config {
    /// Deals queues and buffers out to workers. `queues` are those each port has, in the order of `self.ports`;
    /// `allowed` the CPUs that may be used where the configuration names none.
    ///
    /// Where a worker has no queue of a port, it sends there through a worker that has. A port with fewer queues than
    /// there are workers begins at another worker than the port before it.
    pub fn plan(&self, queues: &[Vec<usize>], allowed: &[usize]) -> Result<Plan, ConfigErrors> {
        self.lay_out(queues, allowed).map_err(|problem| ConfigErrors::new(None, Default::default(), vec![*problem]))
    }

    /// The CPU that a worker is pinned to, if it is to any.
    pub fn cpu_of(&self, worker: usize, allowed: &[usize]) -> Option<usize> {
        match self.workers.cpus.set() {
            Some(cpus) => cpus.get(worker).copied(),
            // The first CPU takes most of the machine's other work: last.
            None if allowed.is_empty() => None,
            // The two of a group stay together.
            None if self.mode == Mode::Cmts => Some(allowed[worker % allowed.len()]),
            None => Some(allowed[(worker + 1) % allowed.len()]),
        }
    }

    pub(super) fn lay_out(&self, queues: &[Vec<usize>], allowed: &[usize]) -> Result<Plan, Box<Problem>> {
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
                    let what = format!("port {} wants worker {index}, and there are {count}", port.name);
                    let expected = format!("expected 0 to {}", count - 1);
                    return Err(Problem::at(format!("port.{at}.worker"), what, expected).into());
                };
                worker.queues.push((at, queue));
            }
        }
        if let Some(index) = workers.iter().position(|worker| worker.queues.is_empty()) {
            return Err(Self::without_queue(index, queues.iter().map(Vec::len).sum()).into());
        }
        for (index, worker) in workers.iter_mut().enumerate() {
            worker.frames = self.frames_of(index, worker)?;
        }
        Ok(Plan { workers })
    }

    /// Of a cable downstream, the worker that polls a port: the upper MAC its input, the lower one its output.
    fn mac_of(&self, port: &str) -> usize {
        let of_group = |(at, group): (usize, &GroupConfig)| match port {
            _ if group.input == port => Some(2 * at),
            _ if group.output == port => Some(2 * at + 1),
            _ => None,
        };
        self.groups.iter().enumerate().find_map(of_group).unwrap_or(0)
    }

    /// As many as the port with the fewest queues has, at most one per CPU, and enough for the numbers named.
    fn auto_count(&self, fewest: usize, cpus: usize) -> usize {
        let named = self.ports.iter().filter_map(|port| port.worker.set()).flatten().max();
        match named {
            Some(highest) => highest + 1,
            None => fewest.min(cpus.max(1)).max(1),
        }
    }

    fn without_queue(worker: usize, queues: usize) -> Problem {
        let what = format!("worker {worker} has nothing to poll");
        let help = "use fewer workers, or give the ports more queues (ethtool -L IFACE combined N)";
        Problem::at("workers.count", what, format!("the ports have {queues} queue(s) in all")).help(help)
    }

    fn frames_of(&self, index: usize, worker: &WorkerPlan) -> Result<usize, Box<Problem>> {
        let held = |&(port, _): &(usize, usize)| self.ports[port].frames();
        // An upper MAC's frames are what the ring and the queues behind it hold.
        let downstream = if self.mode == Mode::Cmts { self.cmts.queues + bywash_docsis::instance::RING } else { 0 };
        let needed = worker.queues.iter().map(held).sum::<usize>() + downstream + self.pool.cache_frames();
        self.pool.frames_for(needed).map_err(|frames| {
            let what = format!("{frames} buffers are too few for worker {index}");
            let (rings, cache) = (needed - self.pool.cache_frames(), self.pool.cache_frames());
            let help = format!("its {} queue(s) can hold {rings}, its cache {cache}", worker.queues.len());
            Problem::at("pool.frames", what, format!("expected at least {needed}")).help(help).into()
        })
    }
}
