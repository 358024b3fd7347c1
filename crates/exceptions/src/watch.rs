//! The watcher: one thread that receives the kernel's notifications, closes the gate, reads the state again and reports
//! it.

mod runner;

use crate::effect::Effect;
use crate::keeper::Keeper;
use crate::legacy::Open;
use crate::programs::Programs;
use crate::rules::Rule;
use crate::sysctl::Settings;
use crate::verdict::PortLink;
use bywash_fib::model::{Families, Tunnel};
use bywash_nl::Error;
use bywash_nl::wake::Wake;
use bywash_sync::lock;
use runner::Runner;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Interval between reads of state whose changes the kernel does not announce.
pub const POLL: Duration = Duration::from_millis(5);

/// Snapshot of the kernel state that concerns forwarded packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Number of the reading, for [`Keeper::open`].
    pub number: u64,
    /// Effects of all kinds, in the order of [`crate::Kind::ALL`].
    pub effects: Vec<Effect>,
    /// Settings that the dataplane applies itself.
    pub settings: Settings,
    /// Policy routing rules, in the kernel's order.
    pub rules: Vec<Rule>,
    /// Tunnels among the ports, by number, whose outer packets the effects were determined for.
    pub tunnels: Vec<(u16, Tunnel)>,
    /// Extent to which the rules of nf_tables were evaluated for these packets.
    pub outer: Outer,
}

/// Extent to which the rules of nf_tables were evaluated for the outer packets of tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outer {
    /// Set if all chains that the host's own packets meet were: what the others do does not concern them.
    pub judged: bool,
    /// Set if the chains on devices were, too, and accept all packets of the tunnels that the others accept.
    pub accepted: bool,
    /// Families in which nf_tables has chains of type nat.
    pub translating: Families,
    /// Indices of the tunnels whose outer packets may be masqueraded: the kernel leaves them as they are only if their
    /// source is the address that it would give them.
    pub masqueraded: BTreeSet<u32>,
}

/// Watches the kernel's state until dropped.
///
/// One thread, `bywash-except`, does all the work. It sends a first reading and another one after each change; the
/// owner passes each to [`crate::judge`] and opens the gate by [`Keeper::open`].
#[derive(Debug)]
pub struct Watcher {
    readings: Receiver<Reading>,
    shared: Arc<Shared>,
    keeper: Keeper,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    ports: Mutex<Option<Vec<PortLink>>>,
    wake: Wake,
}

impl Watcher {
    /// Starts watching the calling thread's network namespace for `ports`. The first reading arrives shortly
    /// afterwards. `open` opens files that only root may open.
    ///
    /// # Errors
    /// If the eventfd or a netlink socket cannot be opened, or the thread cannot be started. A netlink protocol that
    /// the kernel lacks is not an error. State that the kernel later refuses to report becomes an effect on every
    /// packet.
    pub fn start(ports: Vec<PortLink>, keeper: Keeper, programs: Programs, open: Open) -> Result<Self, Error> {
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), ports: Mutex::new(None), wake: Wake::new()? });
        let (sender, readings) = channel();
        // The sockets are opened on this thread because it is in the network namespace to watch.
        let runner = Runner::open(ports, keeper.clone(), programs, open, sender, shared.clone())?;
        let thread =
            thread::Builder::new().name("bywash-except".into()).spawn(move || runner.run()).map_err(Error::Thread)?;
        Ok(Self { readings, shared, keeper, thread: Some(thread) })
    }

    /// Returns the channel on which readings arrive. It disconnects when the watcher has failed; nothing may be
    /// forwarded past the kernel then.
    pub fn readings(&self) -> &Receiver<Reading> {
        &self.readings
    }

    /// Returns the keeper of the gate.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Watches these ports from now on. Closes the gate until their state has been read.
    pub fn set_ports(&self, ports: Vec<PortLink>) {
        // Locked until the gate is closed: a reading of the new ports that was numbered before that could never open it
        // again.
        let mut news = lock(&self.shared.ports);
        *news = Some(ports);
        self.keeper.close();
        drop(news);
        self.shared.wake.wake();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
