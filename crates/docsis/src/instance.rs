//! Running service group: two workers and the ring between them.

use crate::crc::CRC_LEN;
use crate::group::{Group, LEAD, PDU_MAX};
use crate::keys::Rollover;
use crate::lower::{Lower, LowerConfig, LowerStats};
use crate::seal::SealError;
use crate::upper::Upper;
use bywash_engine::{Idle, PortId, PortTable, Worker, WorkerConfig, WorkerExit, WorkerHandle};
use bywash_frame::{Buffers, DATA_OFFSET, PoolSet};
use bywash_port::{Port, TxQueue, TxQueueConfig, pair};
use bywash_sync::Qsbr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Default capacity in frames of the ring between the two MACs: 8 ms of frames at 6 Gbit/s, more than the time slice
/// for which another thread may take the lower MAC's CPU.
pub const RING: usize = 4096;
/// Valid capacities of that ring.
pub const RINGS: RangeInclusive<usize> = 64..=1 << 20;
/// Default size of a cell in bytes: the smallest that holds the longest PDU with its headers and CRC.
pub const CELL: usize = 4096;

const _: () = assert!(DATA_OFFSET + LEAD + PDU_MAX + CRC_LEN <= CELL);

/// Ingress port of either worker.
pub const INPUT: PortId = PortId(0);
/// Egress port of either worker.
pub const OUTPUT: PortId = PortId(1);

/// Configuration of an instance.
#[derive(Clone, Debug)]
pub struct InstanceConfig {
    /// Number n of the instance. Its workers are 2n (upper MAC) and 2n + 1 (lower MAC).
    pub id: usize,
    /// CPUs of the upper and the lower MAC.
    pub cpus: [Option<usize>; 2],
    /// Behaviour of idle workers.
    pub idle: Idle,
    /// TX queue of the output port.
    pub tx: TxQueueConfig,
    /// Capacity in frames of the ring between the two MACs.
    pub ring: usize,
    /// Configuration of the lower MAC.
    pub lower: LowerConfig,
}

/// Instance whose workers have not been started.
pub struct Parts {
    /// Workers of the upper and the lower MAC.
    pub workers: [Worker; 2],
    /// Statistics of the lower MAC.
    pub stats: Arc<LowerStats>,
    /// Control half of the modems' keys.
    pub keys: Rollover,
}

/// Error of [`Instance::start`].
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Sealing is not possible as configured.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A worker's thread cannot be created.
    #[error("cannot start a worker: {0}")]
    Thread(#[from] std::io::Error),
}

/// Running instance. Dropping it stops the workers.
pub struct Instance {
    /// Service group.
    pub group: Arc<Group>,
    /// Workers of the upper and the lower MAC.
    pub workers: [WorkerHandle; 2],
    /// Statistics of the lower MAC.
    pub stats: Arc<LowerStats>,
    /// Control half of the modems' keys.
    pub keys: Rollover,
}

impl Instance {
    /// Starts the two workers. Both use pool `pool`: frames are allocated on one and freed on the other.
    pub fn start(
        group: Arc<Group>,
        config: &InstanceConfig,
        pools: (&Arc<PoolSet>, usize),
        input: Box<dyn Port>,
        output: Box<dyn Port>,
        domain: &Qsbr,
    ) -> Result<Self, StartError> {
        let Parts { workers: [upper, lower], stats, keys } =
            Self::assemble(&group, config, pools, input, output, domain)?;
        // Start the receiving end first, so that the sender finds it running.
        let lower = lower.spawn()?;
        let upper = upper.spawn()?;
        Ok(Self { group, workers: [upper, lower], stats, keys })
    }

    /// Creates the parts of an instance, and starts nothing.
    pub fn assemble(
        group: &Arc<Group>,
        config: &InstanceConfig,
        (pools, pool): (&Arc<PoolSet>, usize),
        input: Box<dyn Port>,
        output: Box<dyn Port>,
        domain: &Qsbr,
    ) -> Result<Parts, SealError> {
        let arena = pools.arena();
        let (down, up) = pair(config.ring);
        let ring = TxQueue::new(TxQueueConfig::default());
        let unused = TxQueue::new(TxQueueConfig::default());
        let ends = |input: Box<dyn Port>, before: TxQueue, output: Box<dyn Port>, queue: TxQueue| {
            let mut table = PortTable::new();
            let ids = (table.add(input, before), table.add(output, queue));
            debug_assert_eq!(ids, (INPUT, OUTPUT));
            table
        };
        let mut keys = Rollover::new(group.clone());
        let lower = Lower::new(group.clone(), arena.clone(), &config.lower, INPUT, OUTPUT)?.keyed_by(&mut keys);
        let stats = lower.stats();
        let upper = Upper::new(group.clone(), arena.clone(), OUTPUT).assisting(&config.lower, stats.clone())?;
        let upper = upper.keyed_by(&mut keys);
        let upper_ends = ends(input, unused, Box::new(down), ring);
        let lower_ends = ends(Box::new(up), TxQueue::new(TxQueueConfig::default()), output, TxQueue::new(config.tx));
        let worker = |half: usize| WorkerConfig { id: config.id * 2 + half, cpu: config.cpus[half], idle: config.idle };
        let bufs = || Buffers::attach(pools, pool);
        let lower = Worker::new(worker(1), lower_ends, Box::new(lower), bufs(), domain.register());
        let upper = Worker::new(worker(0), upper_ends, Box::new(upper), bufs(), domain.register());
        Ok(Parts { workers: [upper, lower], stats, keys })
    }

    /// Stops the workers, the upper MAC first. On return all frames are back in their pool. Errors with the panic
    /// message of a worker that failed.
    pub fn stop(&self) -> Result<(), String> {
        let exits = [self.workers[0].stop(), self.workers[1].stop()];
        match exits.into_iter().find_map(|exit| if let WorkerExit::Panicked(why) = exit { Some(why) } else { None }) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
}
