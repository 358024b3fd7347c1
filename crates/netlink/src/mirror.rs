//! The mirror's public interface: a thread, a channel of changes, and counters.

use crate::elsewhere::Elsewhere;
use crate::follow::{Follower, Sink};
use crate::probe::{Found, Prober};
use crate::state::State;
use crate::stats::Stats;
use bywash_fib::model::{Change, Neighbour};
use bywash_nl::Error;
use bywash_nl::wake::Wake;
use bywash_sync::lock;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval at which a send to a full channel is retried.
const KNOCK: Duration = Duration::from_millis(2);

/// Settings of the mirror. The default suits a router with full tables.
#[derive(Clone, Debug)]
pub struct Config {
    /// Receive buffer in octets. Memory is used only while notifications wait in it; each takes about 1 KiB.
    pub receive_buffer: usize,
    /// Maximum number of changes in a batch.
    pub batch: usize,
    /// Maximum number of batches in the channel. While it is full, changes to one object are merged; nothing is lost.
    pub queue: usize,
    /// Delay before the tables are read again, so that the kernel can finish its silent changes.
    pub settle: Duration,
    /// Set if routes, next-hop objects and neighbours are followed. Links and their addresses always are.
    pub routes: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { receive_buffer: 128 << 20, batch: 4096, queue: 16, settle: Duration::from_millis(10), routes: true }
    }
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    resync: AtomicBool,
    wake: Arc<Wake>,
    found: Arc<Found>,
    stats: Mutex<Stats>,
    /// Newest change of the interfaces in other network namespaces.
    elsewhere: Mutex<Option<Change>>,
}

/// Follows the kernel's routing state until dropped.
///
/// The thread `bywash-netlink` does the work, and `bywash-netns` searches other network namespaces for interfaces that
/// use those of this one. The owner receives batches of changes from [`Mirror::changes`]. The
/// mirror may be moved to another thread but not shared: other threads use a [`Mirror::prober`].
#[derive(Debug)]
pub struct Mirror {
    changes: Receiver<Vec<Change>>,
    shared: Arc<Shared>,
    prober: Prober,
    thread: Option<JoinHandle<()>>,
}

impl Mirror {
    /// Starts following the calling thread's network namespace. The first batches describe the whole state, up to
    /// [`Change::Synced`].
    ///
    /// # Errors
    /// If no netlink socket can be opened or no thread started. No privilege is required, except for a receive buffer
    /// above `net.core.rmem_max` (CAP_NET_ADMIN): without it the buffer is smaller.
    pub fn start(config: Config) -> Result<Self, Error> {
        let mut follower = Follower::new(config.receive_buffer, config.settle, config.routes)?;
        if config.routes
            && let Err(error) = follower.follow_advertisements()
        {
            tracing::warn!(
                "cannot receive router advertisements: changes that they make to routes are not noticed: {error}"
            );
        }
        let wake = Arc::new(Wake::new()?);
        let found = Arc::new(Found::new(Arc::clone(&wake)));
        let prober = Prober::open(Arc::clone(&found))?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            resync: AtomicBool::new(false),
            wake,
            found,
            stats: Mutex::default(),
            elsewhere: Mutex::default(),
        });
        // The channel is bounded so that a slow control side cannot grow the process; the mirror merges changes
        // meanwhile.
        let (sender, changes) = sync_channel(config.queue.max(1));
        let (hurry, hurried) = sync_channel(1);
        if config.routes {
            let mut elsewhere = Elsewhere::open()?;
            *lock(&shared.elsewhere) = elsewhere.search(&shared.stop);
            let shared = Arc::clone(&shared);
            let search = move || {
                elsewhere.follow(&hurried, &shared.stop, |change| {
                    *lock(&shared.elsewhere) = Some(change);
                    shared.wake.wake();
                });
            };
            // Never joined: it may wait for the kernel's configuration lock, and ends when it has it.
            thread::Builder::new().name("bywash-netns".into()).spawn(search).map_err(Error::Thread)?;
        }
        let runner = Runner {
            follower,
            outbox: Outbox { batch: config.batch.max(1), waiting: VecDeque::new(), last: Vec::new(), changes: 0 },
            sender,
            hurry,
            shared: Arc::clone(&shared),
            found: vec![],
        };
        let thread =
            thread::Builder::new().name("bywash-netlink".into()).spawn(move || runner.run()).map_err(Error::Thread)?;
        Ok(Self { changes, shared, prober, thread: Some(thread) })
    }

    /// Returns the channel on which batches of changes arrive. It disconnects when the mirror has failed;
    /// [`Stats::failed`] then holds the reason.
    pub fn changes(&self) -> &Receiver<Vec<Change>> {
        &self.changes
    }

    /// Requests that everything be read again; the differences are reported, followed by [`Change::Synced`]. Returns at
    /// once.
    pub fn request_resync(&self) {
        self.shared.resync.store(true, Ordering::Release);
        self.shared.wake.wake();
    }

    /// See [`Prober::probe`].
    pub fn probe(&self, index: u32, addr: IpAddr) -> bool {
        self.prober.probe(index, addr)
    }

    /// See [`Prober::forget`].
    pub fn forget(&self, index: u32, addr: IpAddr) -> bool {
        self.prober.forget(index, addr)
    }

    /// Returns a handle for requesting neighbours from any thread, in this mirror's network namespace.
    pub fn prober(&self) -> Prober {
        self.prober.clone()
    }

    /// Returns a copy of the counters.
    pub fn stats(&self) -> Stats {
        lock(&self.shared.stats).clone()
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    /// Reads all tables once, in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel cannot be queried or changes faster than it can be read.
    pub fn read() -> Result<Self, Error> {
        let mut follower = Follower::new(64 << 20, Duration::ZERO, true)?;
        let mut state = Self::default();
        for _ in 0..8 {
            follower.want_all();
            follower.read_all(&mut |change: Change| state.apply(&change))?;
            if follower.is_settled() {
                return Ok(state);
            }
        }
        Err(Error::Restless)
    }
}

/// Batches of changes waiting for room in the channel.
#[derive(Debug)]
struct Outbox {
    batch: usize,
    waiting: VecDeque<Vec<Change>>,
    last: Vec<Change>,
    changes: u64,
}

impl Outbox {
    fn put(&mut self, change: Change) {
        self.changes += 1;
        self.last.push(change);
        if self.last.len() >= self.batch {
            self.close();
        }
    }

    fn close(&mut self) {
        if !self.last.is_empty() {
            self.waiting.push_back(std::mem::take(&mut self.last));
        }
    }

    /// Sends batches until the channel is full; returns false if the receiver is gone.
    fn send(&mut self, sender: &SyncSender<Vec<Change>>) -> bool {
        while let Some(batch) = self.waiting.pop_front() {
            match sender.try_send(batch) {
                Ok(()) => {}
                Err(TrySendError::Full(batch)) => {
                    self.waiting.push_front(batch);
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        true
    }
}

/// Sends changes while the tables are still being read.
struct Sending<'a> {
    outbox: &'a mut Outbox,
    sender: &'a SyncSender<Vec<Change>>,
}

impl Sink for Sending<'_> {
    fn put(&mut self, change: Change) {
        self.outbox.put(change);
        self.outbox.send(self.sender);
    }

    fn flush(&mut self) {
        self.outbox.close();
        self.outbox.send(self.sender);
    }
}

struct Runner {
    follower: Follower,
    outbox: Outbox,
    sender: SyncSender<Vec<Change>>,
    /// Has other network namespaces searched soon.
    hurry: SyncSender<()>,
    shared: Arc<Shared>,
    /// Neighbours to be compared with those that are known.
    found: Vec<Neighbour>,
}

impl Runner {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let outcome = self.follow();
        let mut stats = lock(&shared.stats);
        stats.clone_from(&self.follower.stats);
        if let Err(error) = outcome {
            let reason = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
            tracing::error!("the kernel's routing tables are no longer followed: {error}{reason}");
            stats.failed = Some(format!("{error}{reason}"));
        }
    }

    fn follow(&mut self) -> Result<(), Error> {
        self.outbox.waiting.extend(lock(&self.shared.elsewhere).take().map(|change| vec![change]));
        self.follower.want_all();
        self.read(Follower::read_all)?;
        loop {
            self.publish();
            if !self.wait()? {
                return Ok(());
            }
            if self.shared.resync.swap(false, Ordering::AcqRel) {
                self.follower.want_all();
            }
            let outbox = &mut self.outbox;
            lock(&self.shared.elsewhere).take().into_iter().for_each(|change| outbox.put(change));
            // Taken first: by then, their own announcements have been received below.
            self.found.append(&mut self.shared.found.take());
            let more = self.follower.receive(&mut |change| outbox.put(change))?;
            if !more {
                self.follower.check_neighbours(&std::mem::take(&mut self.found));
            }
            if std::mem::take(&mut self.follower.links_changed) {
                // A link may have moved to another namespace, or have an interface of another one above it. If the
                // channel is full, a search is due already.
                let _ = self.hurry.try_send(());
            }
            if self.follower.due().is_some_and(|due| due <= Instant::now()) && self.outbox.waiting.is_empty() {
                self.read(Follower::read)?;
            }
            if !self.outbox.send(&self.sender) {
                return Ok(());
            }
            // Nothing is added to waiting batches, so that later changes to the same objects are merged.
            if self.outbox.waiting.is_empty() {
                let outbox = &mut self.outbox;
                self.follower.report(&mut |change| outbox.put(change));
                self.outbox.close();
                if !self.outbox.send(&self.sender) {
                    return Ok(());
                }
            }
        }
    }

    fn read(&mut self, how: fn(&mut Follower, &mut dyn Sink) -> Result<(), Error>) -> Result<(), Error> {
        how(&mut self.follower, &mut Sending { outbox: &mut self.outbox, sender: &self.sender })?;
        self.outbox.close();
        Ok(())
    }

    fn publish(&mut self) {
        self.follower.stats.changes = self.outbox.changes;
        lock(&self.shared.stats).clone_from(&self.follower.stats);
    }

    /// Waits for notifications, a due read or a wake-up; returns false if the mirror must stop.
    fn wait(&mut self) -> Result<bool, Error> {
        let blocked = !self.outbox.waiting.is_empty();
        let until_due = self.follower.due().map(|due| due.saturating_duration_since(Instant::now()));
        let limit = if blocked { Some(KNOCK) } else { until_due };
        self.shared.wake.wait(self.follower.readable(), limit)?;
        Ok(!self.shared.stop.load(Ordering::Acquire))
    }
}
