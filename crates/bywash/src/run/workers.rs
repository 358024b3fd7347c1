//! Which worker polls what, and the workers themselves.
//!
//! Every worker can send by every port. Where it has no queue of its own it hands its frames, by a ring in memory, to a
//! worker that has.

use super::ports::Opened;
use crate::config::{Config, Idle, Plan};
use anyhow::Context as _;
use bywash_engine::{App, Outputs, PortId, Role, Worker, WorkerConfig, WorkerHandle};
use bywash_frame::{Buffers, PoolSet};
use bywash_port::{Port, TxQueue, TxQueueConfig, TxQueueStats, pair};
use bywash_sync::Qsbr;
use std::sync::Arc;

/// Frames a ring between two workers holds.
const HANDOFF: usize = 1024;

/// A running worker, as everyone sees it.
pub struct Shown {
    pub handle: WorkerHandle,
    pub cpu: Option<usize>,
    /// What it polls: port, queue.
    pub polls: Vec<(usize, usize)>,
    /// Its tx queues' statistics, by port.
    pub queues: Vec<Arc<TxQueueStats>>,
}

/// Starts the workers of `plan`, each with its own of `apps`. Their ends are taken out of `ports`. Two workers of `links` are
/// joined by a ring of their own: the port behind all others, on either.
pub fn start(
    config: &Config,
    plan: &Plan,
    ports: &mut [Opened],
    pools: &Arc<PoolSet>,
    domain: &Qsbr,
    apps: Vec<Box<dyn App>>,
    links: &[(usize, usize)],
) -> anyhow::Result<Vec<Shown>> {
    // (worker, port) -> the ends it polls; the first is the one it sends by.
    let count = plan.workers.len();
    let mut own: Vec<Vec<Vec<Box<dyn Port>>>> = (0..count).map(|_| ports.iter().map(|_| vec![]).collect()).collect();
    for (w, worker) in plan.workers.iter().enumerate() {
        for &(port, queue) in &worker.queues {
            let ends = &mut ports[port].ends;
            let at = ends.iter().position(|e| e.queue as usize == queue).context("a queue that was not opened")?;
            own[w][port].push(ends.remove(at).port);
        }
    }
    let mut transit: Vec<Vec<(Box<dyn Port>, PortId)>> = (0..count).map(|_| vec![]).collect();
    for id in (0..ports.len() as u16).map(PortId) {
        let port = usize::from(id.0);
        let Some(owner) = (0..count).find(|w| !own[*w][port].is_empty()) else { continue };
        for w in (0..count).filter(|w| *w != owner) {
            if own[w][port].is_empty() {
                let (here, there) = pair(HANDOFF);
                own[w][port].push(Box::new(here));
                transit[owner].push((Box::new(there), id));
            }
        }
    }

    let mut rings: Vec<Option<Box<dyn Port>>> = (0..count).map(|_| None).collect();
    for &(one, other) in links {
        let (here, there) = pair(HANDOFF);
        rings[one] = Some(Box::new(here));
        rings[other] = Some(Box::new(there));
    }

    let mut running = vec![];
    for (w, ((ends, transit), app)) in own.into_iter().zip(transit).zip(apps).enumerate() {
        let mut out = Outputs::new();
        let mut queues = vec![];
        let mut more = vec![];
        for (p, ends) in ends.into_iter().enumerate() {
            let settings = &ports[p].config;
            let queue =
                TxQueue::new(TxQueueConfig { burst: settings.tx_burst, deadline_us: settings.tx_deadline_us.into() });
            queues.push(queue.stats());
            let mut ends = ends.into_iter();
            let main = ends.next().with_context(|| format!("port `{}` has no end", settings.name))?;
            let id = out.add(main, queue);
            more.extend(ends.map(|end| (end, Role::Receive(id))));
        }
        if let Some(ring) = rings[w].take() {
            out.add(ring, TxQueue::new(TxQueueConfig::default()));
        }
        more.extend(transit.into_iter().map(|(end, to)| (end, Role::Transit(to))));
        let idle = match config.workers.idle {
            Idle::Sleep => bywash_engine::Idle::Sleep,
            Idle::Spin => bywash_engine::Idle::Spin,
        };
        let cpu = plan.workers[w].cpu;
        let worker_config = WorkerConfig { id: w, cpu, idle };
        // Its own pool, or the only one.
        let mut worker = Worker::new(
            worker_config,
            out,
            app,
            Buffers::attach(pools, w.min(pools.pools().len() - 1)),
            domain.register(),
        );
        more.into_iter().for_each(|(end, role)| worker.add(end, role));
        let handle = worker.spawn().with_context(|| format!("cannot start worker {w}"))?;
        running.push(Shown { handle, cpu, polls: plan.workers[w].queues.clone(), queues });
    }
    Ok(running)
}
