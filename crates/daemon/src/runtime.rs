//! The running instance, as the control loop changes it.

use crate::modes;
use crate::notify::Notifier;
use crate::ports::{Opened, Opener};
use crate::relations::Relations;
use crate::shared::{Ask, Shared};
use crate::successor::Successor;
use crate::vlans::Numbers;
use crate::watch::Watch;
use crate::workers::{self, ANSWER};
use anyhow::Context as _;
use bywash_engine::{Change, PortId, distribute};
use bywash_frame::Heap;
use bywash_netlink::Mirror;
use bywash_port::{Port, TxQueueStats};
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Time to wait after the programs stop handing over frames: those in the rings are still forwarded.
pub const LAST_FRAMES: Duration = Duration::from_millis(5);

/// Running instance.
pub struct Runtime {
    pub shared: Arc<Shared>,
    pub opener: Opener,
    pub mirror: Mirror,
    pub mode: Box<dyn modes::Control>,
    pub notifier: Notifier,
    pub asked_for: mpsc::Receiver<Ask>,
    /// Number of readings of the configuration begun when that of the one in effect ended.
    pub reading: u64,
    /// Process that prepares to take over.
    pub successor: Option<Successor>,
    pub sampled: Instant,
    pub heap: Heap,
    pub tended: Instant,
    pub asked: Instant,
    /// Time of the last check of zero-copy ports.
    pub looked: Instant,
    pub watch: Option<Watch>,
    pub relations: Relations,
    pub numbers: Numbers,
    /// VLAN interfaces of the ports by name, with the reasons why their packets are left to the kernel, as logged.
    pub vlans: BTreeMap<String, Option<String>>,
    /// How many interfaces and VLANs of each kind are left to the kernel because there are too many, as logged.
    pub unnumbered: Vec<String>,
    /// Members of each bond and bridge, by kernel index, that are ports, as logged.
    pub members: BTreeMap<u32, Vec<(PortId, u32)>>,
}

impl Runtime {
    /// Serves the service manager's watchdog, which restarts a process that does not. Called before each step that may
    /// take seconds. While a worker hangs, nothing is served, so that the process is restarted.
    pub fn alive(&mut self) {
        if self.shared.halted().is_none() {
            self.notifier.alive();
        }
    }

    /// Gives the ends of a port to its workers: `queues` are its queues, each with its worker. Those of a new port get
    /// TX queues, whose statistics are appended to `tx`. If it is `None`, they replace the port's earlier ends and keep
    /// its TX queues and counters.
    pub fn give_to_workers(
        &self,
        id: PortId,
        opened: &mut Opened,
        queues: &[(u32, usize)],
        mut tx: Option<&mut Vec<Arc<TxQueueStats>>>,
    ) -> anyhow::Result<()> {
        let worker_of = |queue: u32| queues.iter().find(|(q, _)| *q == queue).map_or(0, |(_, worker)| *worker);
        let ends: Vec<(usize, Box<dyn Port>)> =
            opened.ends.drain(..).map(|end| (worker_of(end.queue), end.port)).collect();
        let shares = distribute(id, ends, opened.from_kernel.take(), self.shared.workers.len());
        let shares = shares.context("it has no end")?;
        for (worker, share) in self.shared.workers.iter().zip(shares) {
            let main = match &mut tx {
                Some(tx) => {
                    let queue = workers::tx_queue(&opened.config);
                    tx.push(queue.stats());
                    Change::Set(id, share.main, Box::new(queue))
                }
                None => Change::Replace(id, share.main),
            };
            let changes = std::iter::once(main);
            let changes = changes.chain(share.more.into_iter().map(|(port, role)| Change::Add(port, role)));
            worker.handle.change(changes.collect(), ANSWER);
        }
        Ok(())
    }
}
