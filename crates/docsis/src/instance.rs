//! A service group at work: two workers, and the ring between them.

use crate::group::Group;
use crate::lower::{Lower, LowerConfig, LowerStats};
use crate::seal::SealError;
use crate::upper::Upper;
use bywash_engine::{Idle, Outputs, PortId, Worker, WorkerConfig, WorkerExit, WorkerHandle};
use bywash_frame::{Buffers, PoolSet};
use bywash_port::{Port, TxQueue, TxQueueConfig, pair};
use bywash_sync::Qsbr;
use std::sync::Arc;

/// Frames the ring between the two MACs holds.
pub const RING: usize = 1024;

/// The port of either worker that frames come in by.
pub const INPUT: PortId = PortId(0);
/// The port of either worker that frames leave by.
pub const OUTPUT: PortId = PortId(1);

/// How an instance runs.
#[derive(Clone, Debug)]
pub struct InstanceConfig {
    /// Its number. Its workers are 2n (upper) and 2n + 1 (lower).
    pub id: usize,
    /// CPUs of the upper and the lower MAC.
    pub cpus: [Option<usize>; 2],
    /// What they do when there is nothing to do.
    pub idle: Idle,
    /// The tx queue before the output.
    pub tx: TxQueueConfig,
    /// The lower MAC.
    pub lower: LowerConfig,
}

/// Why an instance does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot seal.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A thread cannot be started.
    #[error("cannot start a worker: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running instance. Dropped, it stops.
pub struct Instance {
    /// The group it serves.
    pub group: Arc<Group>,
    /// Upper and lower MAC.
    pub workers: [WorkerHandle; 2],
    /// What the lower MAC says of itself.
    pub stats: Arc<LowerStats>,
}

impl Instance {
    /// Starts the two workers. Both use the pool of index `pool`: frames are taken from it on one and come back on the
    /// other.
    pub fn start(
        group: Arc<Group>,
        config: &InstanceConfig,
        (pools, pool): (&Arc<PoolSet>, usize),
        input: Box<dyn Port>,
        output: Box<dyn Port>,
        domain: &Qsbr,
    ) -> Result<Self, StartError> {
        let arena = pools.arena();
        let (down, up) = pair(RING);
        let ring = TxQueue::new(TxQueueConfig::default());
        let unused = TxQueue::new(TxQueueConfig::default());
        let ends = |input: Box<dyn Port>, before: TxQueue, output: Box<dyn Port>, queue: TxQueue| {
            let mut out = Outputs::new();
            let ids = (out.add(input, before), out.add(output, queue));
            debug_assert_eq!(ids, (INPUT, OUTPUT));
            out
        };
        let lower = Lower::new(group.clone(), arena.clone(), &config.lower, INPUT, OUTPUT)?;
        let stats = lower.stats();
        let upper = Upper::new(group.clone(), arena.clone(), OUTPUT).assisting(&config.lower, stats.clone())?;
        let upper_ends = ends(input, unused, Box::new(down), ring);
        let lower_ends = ends(Box::new(up), TxQueue::new(TxQueueConfig::default()), output, TxQueue::new(config.tx));
        let worker = |half: usize| WorkerConfig { id: config.id * 2 + half, cpu: config.cpus[half], idle: config.idle };
        let bufs = || Buffers::attach(pools, pool);
        // The receiving end first: what is sent finds somebody.
        let lower = Worker::new(worker(1), lower_ends, Box::new(lower), bufs(), domain.register()).spawn()?;
        let upper = Worker::new(worker(0), upper_ends, Box::new(upper), bufs(), domain.register()).spawn()?;
        Ok(Self { group, workers: [upper, lower], stats })
    }

    /// Stops it, the upper MAC first. When this returns, all frames are back in their pool. The panic message of a
    /// worker that had failed.
    pub fn stop(&self) -> Result<(), String> {
        let exits = [self.workers[0].stop(), self.workers[1].stop()];
        match exits.into_iter().find_map(|exit| if let WorkerExit::Panicked(why) = exit { Some(why) } else { None }) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
}
