//! The control loop: the kernel's changes in, the mode's own affairs, XDP programs and ports kept in step.

use super::driver::{Driver, Targets};
use super::instance;
use super::live::Live;
use super::mode::{self, Parts, Setup, View};
use super::ports::{Opened, Opener, Xdp, queues};
use super::reattach::Tried;
use super::relations::Relations;
use super::succession::{Predecessor, Successor};
use super::watch::Watch;
use super::workers;
use crate::bench::cpus::Placement;
use crate::config::{Config, ConfigErrors, Host, Level, Mode, PortKind};
use crate::notify::Notifier;
use anyhow::{Context as _, bail};
use bywash_engine::{PortId, WorkerExit};
use bywash_frame::{Arena, ArenaConfig, Buffers, Heap, PageKind, PoolSet};
use bywash_mirror::Mirror;
use bywash_port::PortCounters;
use bywash_port::af_xdp::{self, Journal, Umem};
use bywash_route::model::Change;
use bywash_router::control::Applied;
use bywash_sync::Qsbr;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often the mode's own affairs are looked after while workers ask for something, and at least: each time costs
/// whoever had the CPU, be it the hosts' TCP.
const TICK: Duration = Duration::from_millis(2);
const IDLE_TICK: Duration = Duration::from_millis(16);
/// How often the pools are looked at: the median is of the last 100 s.
const LOOK: Duration = Duration::from_millis(100);
/// How often free memory is given back: that of routes that are withdrawn, of long answers.
const TEND: Duration = Duration::from_secs(2);
/// How often it asks whether interfaces can be redirected to.
const ASK: Duration = Duration::from_secs(1);
/// What has arrived when the programs are told to leave frames to the kernel is still forwarded: as long as it takes to
/// go through the rings.
pub(super) const LAST_FRAMES: Duration = Duration::from_millis(5);
/// Longest wait at the end for the kernel to take the rings of zero-copy sockets from drivers.
const LET_GO: Duration = Duration::from_secs(1);
/// Longest wait for the kernel's tables at the start.
const FIRST_DUMP: Duration = Duration::from_secs(60);
/// Changes taken in at once: enough for one publication to serve many, few enough to stay responsive.
const AT_ONCE: usize = 65_536;

/// What the control loop and the API both use.
pub struct Shared {
    live: Mutex<Arc<Live>>,
    /// Reads the configuration again.
    pub source: Source,
    /// To the control loop.
    pub asks: Mutex<mpsc::Sender<Ask>>,
    pub pools: Arc<PoolSet>,
    /// Buffers held by AF_XDP sockets.
    pub umem: Arc<Umem>,
    /// What the mode shows.
    pub view: Arc<dyn View>,
    /// The programs, by port.
    pub xdp: Mutex<Vec<Option<Xdp>>>,
    /// Counters of every end: port, queue.
    pub counters: Mutex<Vec<(PortId, u32, Arc<PortCounters>)>>,
    /// Levels asked for while it runs, by port: they hold when an interface has come back, too.
    pub levels: Mutex<Vec<Option<Level>>>,
    pub workers: Vec<workers::Shown>,
    /// Why every port is left to the kernel, if it is: see [`super::watch`].
    pub(super) halted: Mutex<Option<String>>,
}

impl Shared {
    /// What is configured now.
    pub fn live(&self) -> Arc<Live> {
        self.live.lock().expect("configuration").clone()
    }

    pub(super) fn set_live(&self, live: Live) {
        *self.live.lock().expect("configuration") = Arc::new(live);
    }
}

/// Where a configuration comes from, each time it is asked for.
pub type Source = Box<dyn Fn() -> Result<Config, ConfigErrors> + Send + Sync>;

/// What the control loop is asked to do.
pub enum Ask {
    /// To take over this configuration: what has changed, or why nothing has.
    Reload(Box<Config>, mpsc::Sender<Result<Vec<String>, String>>),
    /// To meet the process that is to take over, at this socket.
    TakeOver(String, mpsc::Sender<Result<(), String>>),
}

/// How following ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was told to stop.
    Stopped,
    /// A new process waits for the ports.
    TakenOver,
}

/// Takes in all the kernel has before any frame is taken from it, and gives what that means for ports.
fn dump(mirror: &Mirror, mut apply: impl FnMut(&[Change]) -> Applied) -> anyhow::Result<Vec<(Vec<Change>, Applied)>> {
    let until = Instant::now() + FIRST_DUMP;
    let mut all = vec![];
    loop {
        let Ok(changes) = mirror.changes().recv_timeout(until.saturating_duration_since(Instant::now())) else {
            bail!("the kernel did not tell its routes within {} s", FIRST_DUMP.as_secs())
        };
        let applied = apply(&changes);
        let done = applied.synced;
        // Routes are of no more use: there may be a million.
        let links = |change: &Change| matches!(change, Change::Link(_) | Change::LinkGone { .. });
        all.push((changes.into_iter().filter(links).collect(), applied));
        if done {
            return Ok(all);
        }
    }
}

/// A running instance.
pub struct Runtime {
    pub(super) shared: Arc<Shared>,
    pub(super) opener: Opener,
    mirror: Mirror,
    pub(super) mode: Box<dyn mode::Control>,
    asked_for: mpsc::Receiver<Ask>,
    /// Who is about to take over.
    pub(super) successor: Option<Successor>,
    looked: Instant,
    heap: Heap,
    tended: Instant,
    asked: Instant,
    watch: Option<Watch>,
    pub(super) relations: Relations,
    /// Why ports without a program would be the kernel's, as it was said last.
    pub(super) unheeded: BTreeMap<PortId, String>,
    /// Ports that could not be opened on an interface, and on which.
    pub(super) tried: BTreeMap<usize, Tried>,
    /// What has been said of what is not followed.
    warned: Vec<String>,
}

impl Runtime {
    /// Opens everything and starts forwarding.
    ///
    /// With a predecessor, its ports are taken over when everything else is ready.
    pub fn start(
        config: Config,
        source: Source,
        journal: &mut Journal,
        mut predecessor: Option<&mut Predecessor>,
    ) -> anyhow::Result<Self> {
        // Following begins first: nothing the kernel changes from here on is missed.
        let following = bywash_mirror::Config { routes: config.mode != Mode::Switch, ..Default::default() };
        let mirror = Mirror::start(following).context("cannot follow the kernel's links and routes")?;
        let per_port = config.ports.iter().map(|p| Ok(queues(p)?.into_iter().map(|q| q as usize).collect()));
        let per_port: Vec<Vec<usize>> = per_port.collect::<anyhow::Result<_>>()?;
        let mut cpus = Host::this().allowed;
        if config.mode == Mode::Cmts {
            let placement = Placement::of(2 * config.groups.len())?;
            tracing::info!("two workers for each of {} groups on {placement}", config.groups.len());
            cpus = placement.cpus().to_vec();
        }
        let plan = config.plan(&per_port, &cpus)?;
        // The kernel takes its time over the programs, and over the buffers' memory: both at once.
        let interfaces = config.ports.iter().any(|port| port.kind == PortKind::AfXdp);
        let (switch, count) = (config.mode == Mode::Switch, plan.workers.len());
        let load = move || if switch { af_xdp::Driver::load_switch(count) } else { af_xdp::Driver::load() };
        let driver = interfaces.then(|| std::thread::spawn(load));

        let total: usize = plan.workers.iter().map(|w| w.frames).sum();
        let arena_config = ArenaConfig {
            cells: total + config.pool.reserve,
            cell: config.pool.cell,
            pages: config.pool.pages.into(),
            node: None,
            packed: config.pool.packed(),
        };
        let arena = Arena::new(arena_config)?;
        if arena.pages() == PageKind::Small && !arena.pages_note().is_empty() {
            tracing::info!("buffers lie in 4 KiB pages: {}", arena.pages_note());
        }
        let of_workers = config.pool.sharers(plan.workers.len()).into_iter().map(|(name, workers)| {
            let frames = plan.workers[workers].iter().map(|worker| worker.frames).sum();
            config.pool.pool(&name, frames)
        });
        let pools = PoolSet::new(arena.clone(), &of_workers.collect::<Vec<_>>())?;

        let mut ports: Vec<Opened> = vec![];
        let driver = driver.map(|loading| loading.join().unwrap_or_else(|panic| resume_unwind(panic))).transpose()?;
        if let Some(why) = driver.as_ref().and_then(af_xdp::Driver::refused) {
            tracing::warn!(
                "the kernel refuses the program that forwards in the driver: user space does it all ({why})"
            );
        }
        let driver = driver.map(|program| Driver { program, targets: Targets::default() });
        let dpdk = super::dpdk::Dpdk::start(&config.ports, &pools)?;
        let opener = Opener { umem: Umem::new(&arena), driver, dpdk, raw: config.mode != Mode::Router };
        for (id, port) in config.ports.iter().enumerate() {
            let opened = match &mut predecessor {
                Some(predecessor) => opener.announce((id, port), journal, predecessor),
                None => opener.open((id, port), journal),
            };
            ports.push(opened.with_context(|| format!("port `{}`", port.name))?);
        }
        let domain = Qsbr::new();
        let setup = Setup {
            config: &config,
            ports: &ports,
            domain: &domain,
            pools: &pools,
            driver: opener.driver.as_ref(),
            workers: plan.workers.len(),
        };
        for (worker, plan) in plan.workers.iter().enumerate() {
            plan.queues.iter().for_each(|(port, queue)| opener.serve(*port, *queue as u32, worker));
        }
        let Parts { control: mut mode, view, apps, links } = mode::set_up(&setup)?;
        let mut known = vec![];
        if let Some(predecessor) = &mut predecessor {
            known = dump(&mirror, |changes| mode.apply(changes))?;
            predecessor.let_go()?;
            for (id, opened) in ports.iter_mut().enumerate() {
                let name = opened.config.name.clone();
                opener.open_announced(id, opened, journal).with_context(|| format!("port `{name}`"))?;
            }
        }
        let counters = ports
            .iter()
            .enumerate()
            .flat_map(|(i, p)| p.ends.iter().map(move |e| (PortId(i as u16), e.queue, e.counters.clone())));
        let counters = counters.collect();
        let workers = workers::start(&config, &plan, &mut ports, &pools, &domain, apps, &links)?;
        let (asks, asked_for) = mpsc::channel();
        let shared = Arc::new(Shared {
            source,
            asks: Mutex::new(asks),
            pools,
            umem: opener.umem.clone(),
            view,
            xdp: Mutex::new(ports.into_iter().map(|p| p.xdp).collect()),
            counters: Mutex::new(counters),
            levels: Mutex::new(vec![None; config.ports.len()]),
            workers,
            halted: Mutex::new(None),
            live: Mutex::new(Arc::new(Live::new(config))),
        });
        let mut runtime = Self {
            shared,
            opener,
            mirror,
            mode,
            asked_for,
            successor: None,
            looked: Instant::now(),
            heap: Heap::new(),
            tended: Instant::now(),
            asked: Instant::now(),
            watch: None,
            relations: Relations::default(),
            unheeded: BTreeMap::new(),
            tried: BTreeMap::new(),
            warned: vec![],
        };
        if predecessor.is_none() {
            known = dump(&runtime.mirror, |changes| runtime.mode.apply(changes))?;
        }
        known.iter().for_each(|(changes, applied)| runtime.follow_ports(changes, applied));
        // A worker reports after a turn, in which its ports posted buffers: before, what arrives would be lost.
        for worker in &runtime.shared.workers {
            if worker.handle.report(super::ANSWER).is_none() {
                tracing::warn!("worker {} has not begun: its CPU is busy with something else", worker.handle.id());
            }
        }
        runtime.mode.begin(&runtime.shared);
        for xdp in runtime.shared.xdp.lock().expect("programs").iter_mut().flatten() {
            xdp.begin(&runtime.relations, None)?;
        }
        if let Some(predecessor) = predecessor {
            predecessor.done();
        }
        runtime.watch = Some(Watch::start(runtime.shared.clone())?);
        Ok(runtime)
    }

    pub fn instance(&self) -> Arc<instance::Running> {
        Arc::new(instance::Running(self.shared.clone()))
    }

    /// Runs until `stop`, until a new process takes over, or until a worker dies.
    pub fn follow(
        &mut self,
        (stop, reload, upgrade): (&AtomicBool, &AtomicBool, &AtomicBool),
        notifier: &mut Notifier,
    ) -> anyhow::Result<End> {
        let mut tick = TICK;
        while !stop.load(Ordering::Acquire) {
            // Where a worker hangs for good, the service manager's way out is the right one: to start anew.
            if self.shared.halted().is_none() {
                notifier.alive();
            }
            let mut busy = false;
            match self.mirror.changes().recv_timeout(tick) {
                Ok(mut changes) => {
                    busy = true;
                    while changes.len() < AT_ONCE
                        && let Ok(more) = self.mirror.changes().try_recv()
                    {
                        changes.extend(more);
                    }
                    self.take(&changes);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("netlink following ended: routes can no longer be kept; the kernel forwards from now on")
                }
            }
            if let Some(successor) = &self.successor {
                match successor.wants_all() {
                    Ok(true) => return Ok(End::TakenOver),
                    Ok(false) => {}
                    Err(e) => {
                        tracing::warn!("pid {} does not take over: {e:#}; going on", successor.pid);
                        self.successor = None;
                    }
                }
            }
            busy |= self.mode.tick(&self.shared, &self.mirror);
            tick = if busy { TICK } else { (2 * tick).min(IDLE_TICK) };
            self.look();
            self.tend(busy);
            self.ask();
            while let Ok(ask) = self.asked_for.try_recv() {
                self.obey(ask);
            }
            if reload.swap(false, Ordering::AcqRel) {
                self.reload_by_signal();
            }
            if upgrade.swap(false, Ordering::AcqRel) {
                super::upgrade();
            }
            if let Some(worker) = self.shared.workers.iter().find(|w| w.handle.finished()) {
                let WorkerExit::Panicked(why) = worker.handle.stop() else { bail!("a worker ended unasked") };
                bail!("worker {} failed ({why}): a bug; the kernel forwards from now on", worker.handle.id());
            }
        }
        Ok(End::Stopped)
    }

    /// Notes how full the pools are.
    fn look(&mut self) {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.shared.pools.look();
            self.collect_pools();
            if self.shared.umem.held() > 0 {
                self.shared.umem.reclaim(&mut Buffers::attach(&self.shared.pools, 0));
            }
        }
    }

    /// Gives back memory that is free, when there is nothing else to do.
    fn tend(&mut self, busy: bool) {
        if !busy && self.tended.elapsed() >= TEND {
            self.heap.tend();
            self.tended = Instant::now();
        }
    }

    /// Applies changes; true when the kernel's tables are complete.
    fn take(&mut self, changes: &[Change]) -> bool {
        let applied = self.mode.apply(changes);
        self.follow_ports(changes, &applied);
        applied.synced
    }

    /// Does for the ports' programs what the changes mean for them.
    fn follow_ports(&mut self, changes: &[Change], applied: &Applied) {
        let related = self.relations.note(changes);
        self.carry_out(applied);
        if related {
            self.relate();
        }
    }

    /// Tells the XDP program what changed about its interfaces.
    fn carry_out(&mut self, applied: &Applied) {
        let ports = if applied.ports_changed.is_empty() { vec![] } else { self.shared.view.ports() };
        let mut programs = self.shared.xdp.lock().expect("programs");
        for id in &applied.ports_gone {
            if let Some(xdp) = programs[usize::from(id.0)].take() {
                xdp.forget();
                tracing::warn!(
                    "port `{}`: its interface is gone; waiting for it",
                    self.shared.live().name(id.0.into())
                );
            }
        }
        for port in ports.iter().filter(|p| applied.ports_changed.contains(&p.id)) {
            if let (Some(xdp), Some(mac), Some(mtu)) = (&mut programs[usize::from(port.id.0)], port.mac, port.mtu)
                && let Err(e) = xdp.update(mac, mtu)
            {
                tracing::error!("{e}");
            }
        }
        drop(programs);
        applied.ports_back.iter().for_each(|back| self.reattach(back));
    }

    /// Says what the kernel goes by and this does not, when it is new: policy rules.
    fn warn(&mut self) {
        let warnings = self.mirror.stats().warnings;
        for news in warnings.iter().filter(|warning| !self.warned.contains(warning)) {
            tracing::warn!("{news}");
        }
        self.warned = warnings;
    }

    /// Finds out whether frames can be redirected to the ports' interfaces still, or by now: a veth's peer decides.
    fn ask(&mut self) {
        if self.asked.elapsed() < ASK {
            return;
        }
        self.asked = Instant::now();
        self.warn();
        let programs = self.shared.xdp.lock().expect("programs");
        // Each is asked, whatever another said.
        let news = programs.iter().flatten().filter(|xdp| xdp.look()).count() > 0;
        drop(programs);
        if news {
            self.mode.targets_changed();
        }
    }

    /// Takes everything apart for the process that takes over, and tells it ([`super::succession`]). That waits for the
    /// end of what is given back.
    pub fn hand_over(mut self) -> Option<Successor> {
        self.watch = None;
        let successor = self.successor.take();
        // Nobody here will hear any more that a policy of the kernel's changes.
        self.opener.driver.iter().for_each(|driver| driver.program.close());
        self.shared.xdp.lock().expect("programs").iter_mut().flatten().for_each(Xdp::hand_over);
        // Its queues are the successor's: there is nothing to wait for.
        self.take_apart(|| successor.iter().for_each(Successor::gone), Duration::ZERO);
        successor
    }

    /// Takes everything apart: the programs first.
    pub fn stop(mut self) {
        self.watch = None;
        self.shared.xdp.lock().expect("programs").iter_mut().flatten().for_each(Xdp::disable);
        self.take_apart(|| (), LET_GO);
    }

    /// Ends the workers, once what is with them is forwarded, then all else. `closed`: the sockets are. `settle`: how long
    /// the kernel may take to let go of them.
    fn take_apart(self, closed: impl FnOnce(), settle: Duration) {
        std::thread::sleep(LAST_FRAMES);
        for worker in &self.shared.workers {
            if let WorkerExit::Panicked(why) = worker.handle.stop() {
                tracing::error!("worker {} had failed: {why}", worker.handle.id());
            }
        }
        self.shared.xdp.lock().expect("programs").clear();
        closed();
        let Self { shared, mode, .. } = self;
        mode.stop();
        let held = shared.umem.settle(&mut Buffers::attach(&shared.pools, 0), settle);
        let (missing, wrong) = shared.pools.verify();
        let cells = shared.pools.arena().cells();
        if missing.len() == held && wrong.is_empty() {
            let devices = if held > 0 { format!(" but {held}, which devices had last") } else { String::new() };
            tracing::info!("audit: all {cells} cells are back in their pools{devices}");
        } else {
            tracing::error!("audit: {} of {cells} cells are missing, {} misplaced: a bug", missing.len(), wrong.len());
        }
    }
}
