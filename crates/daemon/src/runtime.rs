//! The running instance, as the control loop changes it.

use crate::modes;
use crate::ports::{Opened, Opener};
use crate::relations::Relations;
use crate::shared::{Ask, Shared};
use crate::successor::Successor;
use crate::watch::Watch;
use crate::workers::{self, ANSWER};
use bywash_engine::{Change, PortId};
use bywash_frame::Heap;
use bywash_netlink::Mirror;
use bywash_port::Port;
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Time to wait after the programs stop handing over frames: those in the rings are still forwarded.
pub const LAST_FRAMES: Duration = Duration::from_millis(5);

/// State on which opening a port may depend beside its configuration: the interface's index, whether it is up, and its
/// number of queues. Opening is retried only when this changes. Retrying at every message could go on forever: some
/// drivers reset a NIC, and report it, when a program is attached.
pub type Tried = (u32, bool, u32);

/// Running instance.
pub struct Runtime {
    pub shared: Arc<Shared>,
    pub opener: Opener,
    pub mirror: Mirror,
    pub mode: Box<dyn modes::Control>,
    pub asked_for: mpsc::Receiver<Ask>,
    /// Process that prepares to take over.
    pub successor: Option<Successor>,
    pub sampled: Instant,
    pub heap: Heap,
    pub tended: Instant,
    pub asked: Instant,
    pub watch: Option<Watch>,
    pub relations: Relations,
    /// Reasons, as last logged, for which ports without an XDP program should be left to the kernel.
    pub unheeded: BTreeMap<PortId, String>,
    /// Ports that could not be opened on their interface, with the state of the interface at that attempt.
    pub tried: BTreeMap<usize, Tried>,
    /// Warnings about policies that are not followed, as last logged.
    pub warned: Vec<String>,
}

impl Runtime {
    /// Gives the ends of a port to its workers. With `again`, they replace the port's earlier ends and keep its TX
    /// queues and counters.
    pub fn give_to_workers(
        &self,
        id: PortId,
        opened: &mut Opened,
        places: &[(u32, usize)],
        again: bool,
    ) -> anyhow::Result<()> {
        let worker_of = |queue: u32| places.iter().find(|(q, _)| *q == queue).map_or(0, |(_, worker)| *worker);
        let ends: Vec<(usize, Box<dyn Port>)> =
            opened.ends.drain(..).map(|end| (worker_of(end.queue), end.port)).collect();
        let shares = workers::deal(id, ends, opened.from_kernel.take(), self.shared.workers.len())?;
        for (worker, share) in self.shared.workers.iter().zip(shares) {
            let main = if again {
                Change::Replace(id, share.main)
            } else {
                let queue = workers::tx_queue(&opened.config);
                let mut queues = worker.queues();
                let len = queues.len().max(usize::from(id.0) + 1);
                queues.resize_with(len, Default::default);
                queues[usize::from(id.0)] = queue.stats();
                Change::Set(id, share.main, Box::new(queue))
            };
            let changes = std::iter::once(main);
            let changes = changes.chain(share.more.into_iter().map(|(port, role)| Change::Add(port, role)));
            worker.handle.change(changes.collect(), ANSWER);
            let mine = places.iter().filter(|(_, w)| *w == worker.handle.id());
            let mut polls = worker.polls();
            polls.retain(|(port, _)| *port != usize::from(id.0));
            polls.extend(mine.map(|(queue, _)| (usize::from(id.0), *queue as usize)));
        }
        Ok(())
    }
}
