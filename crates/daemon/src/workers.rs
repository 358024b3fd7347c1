//! Workers, and the assignment of queues to them.

use crate::choice::Choice;
use crate::ports::Opened;
use crate::slots::PortSlot;
use anyhow::Context as _;
use bywash_config::{Config, Plan, PortConfig, WorkerPlan};
use bywash_engine::{App, Change, Meter, PortId, PortTable, Share, Worker, WorkerConfig, WorkerHandle, distribute};
use bywash_frame::{Buffers, Pool, PoolSet};
use bywash_measure::pmu::StageCounters;
use bywash_port::{Port, TxQueue, TxQueueConfig, pair};
use bywash_sync::{Qsbr, lock};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest wait for a worker's answer.
pub const ANSWER: Duration = Duration::from_millis(200);

/// Running worker, as the control loop and the API see it.
pub struct Shown {
    pub handle: WorkerHandle,
    cpu: Mutex<Option<usize>>,
    /// Pool it allocates from.
    pub pool: Mutex<Arc<Pool>>,
    choice: Mutex<Option<Choice>>,
}

impl Shown {
    /// Returns the CPU it is pinned to; `None` if it is not pinned.
    pub fn cpu(&self) -> Option<usize> {
        *lock(&self.cpu)
    }

    /// Moves the worker to this CPU from its next turn on.
    pub fn move_to(&self, cpu: usize) {
        *lock(&self.cpu) = Some(cpu);
        self.handle.change(vec![Change::Cpu(cpu)], ANSWER);
    }

    /// Returns the pool it allocates from.
    pub fn pool(&self) -> Arc<Pool> {
        lock(&self.pool).clone()
    }

    /// Returns why its pool has its kind; `None` if the configuration says so.
    pub fn choice(&self) -> Option<Choice> {
        lock(&self.choice).clone()
    }

    /// Records why its pool has its kind.
    pub fn chosen(&self, choice: Option<Choice>) {
        *lock(&self.choice) = choice;
    }

    /// Records the pool it allocates from. The caller tells the worker.
    pub fn take_from(&self, pool: &Arc<Pool>) {
        lock(&self.pool).clone_from(pool);
    }
}

/// Counters of the processor for a worker's stages.
struct StageMeter(StageCounters);

impl Meter for StageMeter {
    fn read(&self) -> Option<[u64; 3]> {
        self.0.read()
    }
}

/// Returns a TX queue with the port's burst size and deadline.
pub fn tx_queue(settings: &PortConfig) -> TxQueue {
    TxQueue::new(TxQueueConfig { burst: settings.tx_burst, deadline_us: settings.tx_deadline_us.into() })
}

/// Starts the workers of `plan`, each with its own entry of `apps`, and moves ends and programs out of `ports` into
/// the returned run-time state. A ring joins each pair of workers in `links`; it is the last port of both.
pub fn start(
    config: &Config,
    plan: &Plan,
    ports: &mut [Opened],
    pools: &Arc<PoolSet>,
    domain: &Qsbr,
    apps: Vec<Box<dyn App>>,
    links: &[(usize, usize)],
) -> anyhow::Result<(Vec<Shown>, Vec<PortSlot>)> {
    let count = plan.workers.len();
    // Indexed by worker, then by port.
    let mut own: Vec<Vec<Share>> = (0..count).map(|_| vec![]).collect();
    let mut slots = vec![];
    for (port, opened) in ports.iter_mut().enumerate() {
        let of = |(w, worker): (usize, &WorkerPlan)| -> Vec<(u32, usize)> {
            worker.queues.iter().filter(|(p, _)| *p == port).map(|(_, queue)| (*queue as u32, w)).collect()
        };
        let slot = PortSlot::new(opened, plan.workers.iter().enumerate().flat_map(of).collect());
        let mut ends = vec![];
        for &(queue, worker) in &slot.queues {
            let at = opened.ends.iter().position(|end| end.queue == queue);
            ends.push((worker, opened.ends.remove(at.context("a queue that was not opened")?).port));
        }
        slots.push(slot);
        let shares = distribute(PortId(port as u16), ends, opened.from_kernel.take(), count);
        let shares = shares.with_context(|| format!("port `{}` has no end", opened.config.name))?;
        own.iter_mut().zip(shares).for_each(|(own, share)| own.push(share));
    }

    let mut rings: Vec<Option<Box<dyn Port>>> = (0..count).map(|_| None).collect();
    for &(one, other) in links {
        let (here, there) = pair(config.cmts.ring);
        rings[one] = Some(Box::new(here));
        rings[other] = Some(Box::new(there));
    }

    let mut running = vec![];
    for (w, (shares, app)) in own.into_iter().zip(apps).enumerate() {
        let mut out = PortTable::new();
        let mut more = vec![];
        for (share, slot) in shares.into_iter().zip(&mut slots) {
            let queue = tx_queue(&slot.config);
            slot.tx.push(queue.stats());
            out.add(share.main, queue);
            more.extend(share.more);
        }
        if let Some(ring) = rings[w].take() {
            out.add(ring, TxQueue::new(TxQueueConfig::default()));
        }
        let cpu = plan.workers[w].cpu;
        let worker_config = WorkerConfig { id: w, cpu, idle: config.workers.idle };
        let own = plan.pools.iter().position(|pool| pool.workers.contains(&w)).context("a worker without a pool")?;
        let mut worker = Worker::new(worker_config, out, app, Buffers::attach(pools, own), domain.register());
        more.into_iter().for_each(|(end, role)| worker.add(end, role));
        worker.outlive_panics();
        if config.workers.counters {
            worker.count_by(|| Ok(Box::new(StageMeter(StageCounters::open()?))));
        }
        let handle = worker.spawn().with_context(|| format!("cannot start worker {w}"))?;
        running.push(Shown {
            handle,
            cpu: Mutex::new(cpu),
            pool: Mutex::new(pools.pools()[own].clone()),
            choice: Mutex::default(),
        });
    }
    Ok((running, slots))
}
