//! The start of an instance, from a configuration to forwarding.

use crate::choice::{Choice, Ways, pool_users};
use crate::modes::{self, Parts, Setup};
use crate::notify::Notifier;
use crate::pools::log_place;
use crate::ports::{Dpdk, Opened, Opener, queues};
use crate::relations::Relations;
use crate::runtime::Runtime;
use crate::shared::{Shared, Source};
use crate::slots::programs;
use crate::takeover::Predecessor;
use crate::vlans::Numbers;
use crate::watch::Watch;
use crate::workers;
use anyhow::{Context as _, bail};
use bywash_config::{Config, Host, Mode, Plan, PortKind, WorkerPlan, XdpMode};
use bywash_engine::cpus::{self, Placement};
use bywash_fib::model::{Behind, Change, Station};
use bywash_frame::{Arena, ArenaConfig, Buffers, Heap, PageKind, PoolSet};
use bywash_netlink::Mirror;
use bywash_port::af_xdp::{self, Journal, Umem, XdpDatapath};
use bywash_router::control::Applied;
use bywash_router::xdp::{Targets, XdpTableSink};
use bywash_sync::{Qsbr, clock};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for the kernel's tables at startup.
const FIRST_DUMP: Duration = Duration::from_secs(60);

/// Changes of the kernel's tables that describe how interfaces are related, with the effects of all changes on ports.
type Dump = Vec<(Vec<Change>, Applied)>;

/// Interval at which a start that waits for the kernel's tables looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Error of a start that a signal has stopped.
#[derive(Debug)]
pub struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped by a signal")
    }
}

impl std::error::Error for Stopped {}

/// Errors if a signal has asked the process to stop.
fn go_on(stop: &AtomicBool) -> Result<(), Stopped> {
    if stop.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
}

/// Applies the kernel's initial tables. Errors if they are not complete within `FIRST_DUMP`, or once `stop` is set.
fn dump(
    changes: &Receiver<Vec<Change>>,
    stop: &AtomicBool,
    mut apply: impl FnMut(&[Change]) -> Applied,
) -> anyhow::Result<Dump> {
    let until = Instant::now() + FIRST_DUMP;
    let mut all = vec![];
    loop {
        go_on(stop)?;
        let left = until.saturating_duration_since(Instant::now());
        let changes = match changes.recv_timeout(left.min(LOOK)) {
            Ok(changes) => changes,
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => continue,
            Err(_) => bail!("the kernel did not report all its routes within {} s", FIRST_DUMP.as_secs()),
        };
        let applied = apply(&changes);
        let done = applied.synced;
        // The other changes are dropped: there may be a million routes, which are applied by now.
        let related = |change: &Change| match change {
            Change::Link(_) | Change::LinkGone { .. } | Change::Elsewhere { .. } | Change::StationGone { .. } => true,
            Change::Station(Station { bridge, behind, .. }) => *behind == Behind::Member(*bridge),
            _ => false,
        };
        all.push((changes.into_iter().filter(related).collect(), applied));
        if done {
            return Ok(all);
        }
    }
}

/// Plans the workers, their queues and pools, for the CPUs that the process may use.
fn plan(config: &Config) -> anyhow::Result<Plan> {
    let per_port = config.ports.iter().map(|p| Ok(queues(p)?.into_iter().map(|q| q as usize).collect()));
    let per_port: Vec<Vec<usize>> = per_port.collect::<anyhow::Result<_>>()?;
    if config.mode != Mode::Cmts {
        return Ok(config.plan(&per_port, &Host::this().allowed)?);
    }
    let plan = config.plan(&per_port, Placement::of(2 * config.groups.len())?.cpus())?;
    let cpus: Vec<Option<usize>> = plan.workers.iter().map(|worker| worker.cpu).collect();
    tracing::info!("upper and lower MACs on CPUs {}", pairs(&cpus, cpus::one_core));
    Ok(plan)
}

/// Returns in words the CPUs of the two workers of each group, and how many groups have two hyper-threads of one core.
fn pairs(cpus: &[Option<usize>], one_core: impl Fn(usize, usize) -> bool) -> String {
    let name = |cpu: &Option<usize>| cpu.map_or("any".into(), |cpu| cpu.to_string());
    let (pairs, _) = cpus.as_chunks::<2>();
    let names: Vec<String> =
        pairs.iter().map(|[upper, lower]| format!("{} and {}", name(upper), name(lower))).collect();
    let near = pairs
        .iter()
        .filter(|[upper, lower]| upper.zip(*lower).is_some_and(|(one, other)| one != other && one_core(one, other)));
    let how = match (near.count(), pairs.len()) {
        (near, all) if near == all => "hyper-threads of one core".into(),
        (0, _) => "no hyper-threads of one core".into(),
        (near, all) => format!("{near} of {all} groups on hyper-threads of one core"),
    };
    let all: Vec<usize> = cpus.iter().flatten().copied().collect();
    let shared = if all.iter().collect::<BTreeSet<_>>().len() < all.len() { "; workers share CPUs" } else { "" };
    format!("{}: {how}{shared}", names.join(", "))
}

/// Starts to load the XDP programs for this number of workers, on a thread. `None` if no port needs them.
fn load_programs(config: &Config, workers: usize) -> Option<JoinHandle<Result<XdpDatapath, af_xdp::Error>>> {
    let interfaces = config.ports.iter().any(|port| port.kind == PortKind::AfXdp);
    let switch = config.mode == Mode::Switch;
    let mut by_program = config.ports.iter().filter(|port| port.kind == PortKind::AfXdp);
    let native = by_program.all(|port| port.af_xdp.as_ref().is_some_and(|port| port.xdp == XdpMode::Native));
    let load = move || match (switch, native) {
        (true, _) => XdpDatapath::load_switch(workers),
        (false, true) => XdpDatapath::load_native(),
        (false, false) => XdpDatapath::load(),
    };
    interfaces.then(|| std::thread::spawn(load))
}

/// Chooses, and logs, the kind of each worker's pool whose configuration is `auto`.
fn choices(config: &Config, plan: &Plan) -> Vec<(usize, Choice)> {
    let workers = plan.workers.iter().enumerate();
    let of_port = |port: usize| -> Vec<usize> {
        let polls = |worker: &WorkerPlan| worker.queues.iter().any(|(at, _)| *at == port);
        workers.clone().filter(|(_, worker)| polls(worker)).map(|(n, _)| n).collect()
    };
    let owners: Vec<Vec<usize>> = (0..config.ports.len()).map(of_port).collect();
    let auto = plan.pools.iter().filter(|pool| config.pools[pool.settings].kind.set().is_none());
    let mut ways = Ways::default();
    auto.map(|pool| {
        let worker = pool.workers[0];
        let choice =
            Choice::of(pool_users(config.mode, worker, &owners, &|worker| plan.workers[worker].cpu), &mut ways);
        tracing::info!("pool {}: kind {}: {}", pool.name, choice.kind, choice.why);
        (worker, choice)
    })
    .collect()
}

/// Allocates the memory of the buffers.
fn allocate(config: &Config, plan: &Plan) -> anyhow::Result<Arc<Arena>> {
    let total: usize = plan.workers.iter().map(|w| w.frames).sum();
    let arena = Arena::new(ArenaConfig {
        cells: total + config.reserve(),
        cell: config.cell(),
        pages: config.pages(),
        node: None,
        packed: config.packed(),
    });
    let arena = arena.map_err(|why| anyhow::anyhow!("{why}: lower `frames` or `reserve` in [pool]"))?;
    if arena.pages() != PageKind::Hugetlb && !arena.pages_note().is_empty() {
        tracing::info!("buffer memory uses {} pages: {}", arena.pages(), arena.pages_note());
    }
    Ok(arena)
}

/// Divides the memory among the workers' pools, whose kinds are configured or chosen.
fn divide(
    config: &Config,
    plan: &Plan,
    arena: &Arc<Arena>,
    choices: &[(usize, Choice)],
) -> anyhow::Result<Arc<PoolSet>> {
    let of_workers = plan.pools.iter().map(|pool| {
        let settings = &config.pools[pool.settings];
        let chosen = || choices.iter().find(|(worker, _)| pool.workers[0] == *worker).map(|(_, choice)| choice.kind);
        let kind = settings.kind.set().copied().or_else(chosen).unwrap_or_default();
        settings.pool(&pool.name, kind, plan.frames(pool))
    });
    let of_workers: Vec<_> = of_workers.collect();
    // A reload may choose pools of blocks.
    let new = if choices.is_empty() { PoolSet::new } else { PoolSet::watched };
    let pools = new(arena.clone(), &of_workers)?;
    pools.pools().iter().for_each(|pool| log_place(pool));
    Ok(pools)
}

/// Returns buffers for a queue of a port, of the pool of the worker that serves it.
fn buffers_of(plan: &Plan, pools: &Arc<PoolSet>, port: usize, queue: u32) -> Option<Buffers> {
    let serves = |of: &WorkerPlan| of.queues.contains(&(port, queue as usize));
    let worker = plan.workers.iter().position(serves)?;
    let own = plan.pools.iter().position(|pool| pool.workers.contains(&worker))?;
    Some(Buffers::attach(pools, own))
}

/// Opens the ports; those of a predecessor only as far as both processes can have them.
fn open(
    config: &Config,
    opener: &Opener,
    journal: &mut Journal,
    mut predecessor: Option<&mut Predecessor>,
    buffers_of: &dyn Fn(usize, u32) -> Option<Buffers>,
) -> anyhow::Result<Vec<Opened>> {
    let mut ports = vec![];
    for (id, port) in config.ports.iter().enumerate() {
        let opened = match &mut predecessor {
            Some(predecessor) => opener.announce((id, port), journal, predecessor),
            None => opener.open((id, port), journal, &|queue| buffers_of(id, queue)),
        };
        ports.push(opened.with_context(|| format!("port `{}`", port.name))?);
        crate::step::reached("start-port");
    }
    Ok(ports)
}

/// Makes the predecessor let go of the ports, and opens what only one process can have. Errors if `stop` is set before,
/// so that the predecessor continues.
fn take_over(
    predecessor: &mut Predecessor,
    stop: &AtomicBool,
    opener: &Opener,
    ports: &mut [Opened],
    journal: &mut Journal,
    buffers_of: &dyn Fn(usize, u32) -> Option<Buffers>,
) -> anyhow::Result<()> {
    crate::step::reached("takeover-ready");
    go_on(stop)?;
    predecessor.let_go()?;
    crate::step::reached("takeover-gone");
    for (id, opened) in ports.iter_mut().enumerate() {
        let name = opened.config.name.clone();
        let opening = opener.open_announced(id, opened, journal, &|queue| buffers_of(id, queue));
        opening.with_context(|| format!("port `{name}`"))?;
    }
    Ok(())
}

impl Runtime {
    /// Opens everything and starts to forward. Errors with [`Stopped`] once `stop` is set, but not after a predecessor
    /// has let go.
    ///
    /// With a predecessor, takes over its ports when everything else is ready.
    pub fn start(
        config: Config,
        source: Source,
        journal: &mut Journal,
        mut predecessor: Option<&mut Predecessor>,
        (stop, notifier): (&AtomicBool, Notifier),
    ) -> anyhow::Result<Self> {
        let mut heap = Heap::new();
        // Follow the kernel before anything else, so that no change from here on is missed.
        let following = bywash_netlink::Config { routes: config.mode != Mode::Switch, ..Default::default() };
        let mirror = Mirror::start(following).context("cannot follow the kernel's links and routes")?;
        let plan = plan(&config)?;
        // Load the programs while the memory of the buffers is allocated: both take the kernel a while.
        let loading = load_programs(&config, plan.workers.len());
        // The clock's first use sleeps. If no thread can be started, the first caller measures it.
        let _ = std::thread::Builder::new().name("clock".into()).spawn(clock::tsc_hz);

        let arena = allocate(&config, &plan)?;
        let choices = choices(&config, &plan);
        let pools = divide(&config, &plan, &arena, &choices)?;
        crate::step::reached("start-memory");

        let driver = loading.map(|loading| loading.join().unwrap_or_else(|panic| resume_unwind(panic))).transpose()?;
        if let Some(why) = driver.as_ref().and_then(XdpDatapath::refused) {
            tracing::warn!(
                "the kernel refuses the program for level driver, so all packets are forwarded in user space: {why}"
            );
        }
        let driver = driver.map(|program| XdpTableSink { program, targets: Targets::default() });
        let dpdk = Dpdk::start(&config.ports, &pools)?;
        let opener = Opener { umem: Umem::new(&arena), driver, dpdk, raw: config.mode != Mode::Router };
        let buffers_of = |port, queue| buffers_of(&plan, &pools, port, queue);
        let mut ports = open(&config, &opener, journal, predecessor.as_deref_mut(), &buffers_of)?;
        crate::step::reached("start-ports");

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
        let Parts { control: mut mode, view, apps, links } = modes::set_up(&setup)?;
        // A predecessor forwards while the kernel's tables are applied.
        let mut known = None;
        if let Some(predecessor) = &mut predecessor {
            known = Some(dump(mirror.changes(), stop, |changes| mode.apply(changes))?);
            take_over(predecessor, stop, &opener, &mut ports, journal, &buffers_of)?;
        }
        #[cfg(debug_assertions)]
        let apps = crate::fault::inject(apps);
        let (workers, slots) = workers::start(&config, &plan, &mut ports, &pools, &domain, apps, &links)?;
        choices.into_iter().for_each(|(worker, choice)| workers[worker].chosen(Some(choice)));

        let (asks, asked_for) = mpsc::channel();
        let shared = Arc::new(Shared {
            started: Instant::now(),
            source,
            readings: AtomicU64::new(0),
            asks: Mutex::new(asks),
            pools,
            umem: opener.umem.clone(),
            view,
            ports: Mutex::new(slots.into_iter().enumerate().collect()),
            workers,
            halted: Mutex::new(None),
            failed: Mutex::default(),
            left: Mutex::default(),
            captures: Mutex::default(),
            config: Mutex::new(Arc::new(config)),
        });
        heap.startup_done();
        let mut runtime = Self {
            shared,
            opener,
            mirror,
            mode,
            notifier,
            asked_for,
            reading: 0,
            successor: None,
            sampled: Instant::now(),
            heap,
            tended: Instant::now(),
            asked: Instant::now(),
            looked: Instant::now(),
            watch: None,
            relations: Relations::default(),
            numbers: Numbers::default(),
            vlans: BTreeMap::new(),
            unnumbered: Vec::new(),
            members: BTreeMap::new(),
        };
        if let Err(why) = runtime.enable(known, stop) {
            if why.is::<Stopped>() {
                runtime.stop();
            }
            return Err(why);
        }
        if let Some(predecessor) = predecessor {
            predecessor.done();
        }
        runtime.watch = Some(Watch::start(runtime.shared.clone())?);
        Ok(runtime)
    }

    /// Applies the kernel's initial tables unless they are `known` already, waits for the workers, and enables the
    /// programs of the ports.
    fn enable(&mut self, known: Option<Dump>, stop: &AtomicBool) -> anyhow::Result<()> {
        let known = match known {
            Some(known) => known,
            None => dump(self.mirror.changes(), stop, |changes| self.mode.apply(changes))?,
        };
        known.iter().for_each(|(changes, applied)| self.follow_ports(changes, applied));
        // A worker answers after a turn, in which its ports filled their fill rings: frames that arrive before that are
        // lost.
        for worker in &self.shared.workers {
            if worker.handle.report(workers::ANSWER).is_none() {
                tracing::warn!(
                    "worker {} has not started within {} ms: its CPU is busy; give it another one (`cpus` in [workers])",
                    worker.handle.id(),
                    workers::ANSWER.as_millis()
                );
            }
        }
        crate::step::reached("start-workers");
        // Beside a predecessor, which let go meanwhile, the tables may be seconds old.
        while self.apply_changes(Duration::ZERO)? {}
        self.mode.begin(&self.shared);
        for xdp in programs(&mut self.shared.ports()) {
            xdp.begin(&self.relations, None, None)?;
        }
        self.query_targets();
        crate::step::reached("start-programs");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_waits_for_the_kernel_can_be_stopped() {
        // The kernel reports something, and never all.
        let (sender, changes) = mpsc::channel();
        sender.send(vec![]).unwrap();
        let stop = AtomicBool::new(false);
        let begun = Instant::now();
        let done = dump(&changes, &stop, |_| {
            stop.store(true, Ordering::Release);
            Applied::default()
        });
        assert!(done.is_err_and(|why| why.is::<Stopped>()) && begun.elapsed() < FIRST_DUMP);
        drop(sender);
    }

    #[test]
    fn the_log_says_where_the_workers_of_a_group_are() {
        let far = |one: usize, other: usize| one % 20 == other % 20;
        assert_eq!(pairs(&[Some(1), Some(21)], far), "1 and 21: hyper-threads of one core");
        let of_two = pairs(&[Some(1), Some(21), Some(2), Some(3)], far);
        assert_eq!(of_two, "1 and 21, 2 and 3: 1 of 2 groups on hyper-threads of one core");
        assert_eq!(pairs(&[Some(1), None], far), "1 and any: no hyper-threads of one core");
        let of_one = pairs(&[Some(0), Some(0)], far);
        assert_eq!(of_one, "0 and 0: no hyper-threads of one core; workers share CPUs");
    }
}
