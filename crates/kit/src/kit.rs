//! Buffers, ports and workers of an application that does not run yet.

use crate::interface::Attached;
use crate::routes::{Follower, Routes, Source};
use crate::shown::{IDLE, Shown, ShownPort};
use crate::slot::Slot;
use crate::{Error, Running};
use bywash_engine::{App, PortId, PortTable, Worker, WorkerConfig, cpus, distribute};
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_port::af_xdp::{LinkInfo, PuntPort, Umem, XdpDatapath};
use bywash_port::{NullPort, Port, TapConfig, TapPort, TwinPort, TxQueue, TxQueueConfig};
use bywash_router::tables::Reception;
use bywash_router::xdp::{Targets, XdpTableSink};
use bywash_sync::Qsbr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Time limit for a worker to start.
const BEGIN: Duration = Duration::from_secs(5);

/// Buffers, ports and workers of an application that does not run yet.
pub struct Kit {
    pools: Arc<PoolSet>,
    umem: Arc<Umem>,
    domain: Qsbr,
    /// CPU of each worker; `None` if the kernel chooses.
    cpus: Vec<Option<usize>>,
    ports: Vec<Slot>,
    attached: Vec<Attached>,
    /// XDP program of all interfaces, once there is one.
    datapath: Option<XdpDatapath>,
    /// The kernel's routes, if they are followed.
    source: Option<Source>,
}

impl Kit {
    /// Creates a kit with `buffers` buffers in one pool of kind `stack` (last in, first out). Each queue of an
    /// interface needs about 8,192.
    ///
    /// # Errors
    /// [`Error::Arena`] and [`Error::Pool`].
    pub fn new(buffers: usize) -> Result<Self, Error> {
        let arena = Arena::new(ArenaConfig { cells: buffers, ..ArenaConfig::default() })?;
        Ok(Self::with_pools(PoolSet::new(arena, &[PoolConfig::stack("main", buffers)])?))
    }

    /// Creates a kit with buffers from `pools`, with any policy. Worker k takes them from pool k modulo the number of
    /// pools.
    pub fn with_pools(pools: Arc<PoolSet>) -> Self {
        let umem = Umem::new(pools.arena());
        Self {
            pools,
            umem,
            domain: Qsbr::new(),
            cpus: vec![None],
            ports: vec![],
            attached: vec![],
            datapath: None,
            source: None,
        }
    }

    /// Sets the number of workers, at least one. Each is pinned to a CPU of its own, as far as there are enough; the
    /// first CPU comes last. Without this call there is one worker, on any CPU.
    pub fn workers(&mut self, count: usize) {
        let allowed = cpus::Placement::of(count).map(|placement| placement.cpus().to_vec()).unwrap_or_default();
        self.cpus = (0..count.max(1)).map(|worker| cpus::of_worker(worker, &allowed)).collect();
    }

    /// Adds a port of the application: all queues of an interface in the calling thread's network namespace. The
    /// application receives all frames of the interface, and the kernel none, until [`Running::stop`].
    ///
    /// # Errors
    /// [`Error::AfXdp`] and [`Error::Promiscuous`] with the kernel's reasons.
    pub fn interface(&mut self, name: &str) -> Result<PortId, Error> {
        self.open(name, true)
    }

    /// Adds a port like [`Kit::interface`], whose frames the application shares with the kernel by the kernel's own
    /// tables ([`Kit::routes`]), as a router's port does. The application receives IP packets that are to be forwarded:
    /// those to the interface's MAC address that no route leads to the host itself, or out of an interface that is not
    /// a port. All other frames are left to the kernel: ARP, VLANs, multicast, packets with IP options, too long ones.
    /// The interface's MAC address and MTU must not change meanwhile.
    ///
    /// Returns the port, and another one for frames that the application gives back to the kernel, which receives them
    /// on the interface. For that, [`Kit::start_with`] must be called in the same network namespace.
    ///
    /// # Errors
    /// [`Error::AfXdp`] and [`Error::Netlink`] with the kernel's reasons.
    pub fn shared_interface(&mut self, name: &str) -> Result<(PortId, PortId), Error> {
        self.routes()?;
        let port = self.open(name, false)?;
        let slot = &self.ports[usize::from(port.0)];
        let index = slot.link.as_ref().map_or(0, |link| link.index);
        let ends = slot.ends.iter().map(|_| Ok(Box::new(PuntPort::new(index)?) as Box<dyn Port>));
        let ends = ends.collect::<Result<_, Error>>()?;
        Ok((port, self.add(Slot::new(format!("{name}.kernel"), "kernel", ends))))
    }

    fn open(&mut self, name: &str, whole: bool) -> Result<PortId, Error> {
        let link = LinkInfo::query(name)?;
        let datapath = match &mut self.datapath {
            Some(datapath) => datapath,
            none => none.insert(XdpDatapath::load()?),
        };
        let (attached, ends) = Attached::open(datapath, self.ports.len() as u16, &link, &self.umem, whole)?;
        self.attached.push(attached);
        let attached = Some(self.attached.len() - 1);
        let slot = Slot::new(name.into(), "af_xdp", ends);
        let reception = if whole { Reception::Promiscuous } else { Reception::Own };
        Ok(self.add(Slot { link: Some(link), reception, attached, ..slot }))
    }

    /// Adds a port of any kind, with one queue.
    pub fn port(&mut self, port: Box<dyn Port>) -> PortId {
        self.port_of_queues(vec![port])
    }

    /// Adds a port of any kind, whose queues are `ends`. Worker k modulo the number of workers receives from queue k. A
    /// worker without a queue of a port sends on it through a worker that has one.
    ///
    /// # Panics
    /// If `ends` is empty.
    pub fn port_of_queues(&mut self, ends: Vec<Box<dyn Port>>) -> PortId {
        assert!(!ends.is_empty(), "a port has a queue");
        self.add(Slot::new(format!("port{}", self.ports.len()), "custom", ends))
    }

    fn add(&mut self, slot: Slot) -> PortId {
        self.ports.push(slot);
        PortId(self.ports.len() as u16 - 1)
    }

    /// Gives a port a twin in the kernel, the TAP interface `name` in the calling thread's network namespace, with the
    /// MAC address and MTU of the port's interface. To the kernel, that interface is the port: addresses and routes are
    /// set on it.
    ///
    /// Frames that belong to the kernel whatever the routes are (ARP, neighbour discovery, multicast, anything but IP)
    /// go to the twin at once, and frames that the application sends to the returned port. Frames that the kernel sends
    /// on the twin leave by `port`. The twin exists until the application ends.
    ///
    /// # Errors
    /// [`Error::Tap`] and [`Error::Twin`] with the kernel's reasons.
    ///
    /// # Panics
    /// If there is no such port, or it has a twin.
    pub fn twin(&mut self, port: PortId, name: &str) -> Result<PortId, Error> {
        let slot = &mut self.ports[usize::from(port.0)];
        assert!(slot.twin.is_none(), "port {} has a twin", port.0);
        let (mac, mtu) = slot.link.as_ref().map(|link| (link.mac, link.mtu)).unzip();
        let tap = TapPort::create(&TapConfig { name: name.into(), mac, mtu, up: true })?;
        slot.twin = Some(LinkInfo::query(tap.name())?);
        let failed = |source| Error::Twin { name: name.into(), source };
        // After an error the port has no queue, but still its number.
        let queues = std::mem::replace(&mut slot.ends, vec![Box::new(NullPort::new())]);
        let mut twins = TwinPort::of_queues(queues, tap).map_err(failed)?;
        let mut to_kernel = vec![];
        for twin in &twins {
            to_kernel.push(Box::new(twin.to_kernel().map_err(failed)?) as Box<dyn Port>);
        }
        slot.from_kernel = Some(Box::new(twins[0].from_kernel().map_err(failed)?));
        slot.ends = twins.into_iter().map(|twin| Box::new(twin) as Box<dyn Port>).collect();
        Ok(self.add(Slot::new(name.into(), "twin", to_kernel)))
    }

    /// Follows the routes of the kernel, in the calling thread's network namespace, while the application runs. They
    /// lead to the kit's ports: to that of an interface, or to the one whose twin the interface is.
    ///
    /// # Errors
    /// [`Error::Netlink`] with the kernel's reasons.
    pub fn routes(&mut self) -> Result<Routes, Error> {
        let source = match &mut self.source {
            Some(source) => source,
            none => none.insert(Source::start()?),
        };
        Ok(source.routes.clone())
    }

    /// Returns the pools of the buffers.
    pub fn pools(&self) -> &Arc<PoolSet> {
        &self.pools
    }

    /// Returns the reclamation domain of the workers: tables that an application publishes in it
    /// ([`bywash_sync::Published`]) are read on the workers through [`bywash_engine::Context::reader`].
    pub fn domain(&self) -> &Qsbr {
        &self.domain
    }

    /// Runs the application on one worker, which sleeps while no frames arrive. Further workers are left out.
    ///
    /// # Errors
    /// Errors of [`Kit::start_with`].
    pub fn start(mut self, app: impl App + 'static) -> Result<Running, Error> {
        self.cpus.truncate(1);
        let mut app = Some(app);
        self.start_with(|_| app.take().expect("one worker has the application"))
    }

    /// Runs an application on every worker: `app` makes it from the worker's number. Workers sleep while no frames
    /// arrive.
    ///
    /// # Errors
    /// [`Error::Worker`] and [`Error::App`] if a worker does not start, [`Error::Tables`] and [`Error::Routes`] if the
    /// kernel's routes cannot be read, and [`Error::AfXdp`] if an XDP program cannot be enabled.
    pub fn start_with<A: App + 'static>(self, mut app: impl FnMut(usize) -> A) -> Result<Running, Error> {
        let Self { pools, umem, domain, cpus, ports, mut attached, datapath, source } = self;
        let count = cpus.len();
        let follower = source.map(|source| {
            let specs = ports.iter().enumerate().map(|(id, slot)| slot.spec(id)).collect();
            // A program that the kernel does not allow to forward looks up the kernel's tables instead.
            let program = datapath.filter(|program| program.refused().is_none());
            let sink = program.map(|program| XdpTableSink { program, targets: Targets::default() });
            source.read(&domain, specs, sink)
        });
        let follower = follower.transpose()?;
        let mut tables: Vec<_> = (0..count).map(|_| (PortTable::new(), vec![])).collect();
        let mut shown = vec![];
        for (id, slot) in ports.into_iter().enumerate() {
            let (link, counters) = (slot.routed().cloned(), slot.ends.iter().map(|end| end.counters()).collect());
            let mut port =
                ShownPort { name: slot.name, kind: slot.kind, link, attached: slot.attached, counters, tx: vec![] };
            let ends = slot.ends.into_iter().enumerate().map(|(queue, end)| (queue % count, end)).collect();
            let shares = distribute(PortId(id as u16), ends, slot.from_kernel, count).into_iter().flatten();
            for ((table, more), share) in tables.iter_mut().zip(shares) {
                let queue = TxQueue::new(TxQueueConfig::default());
                port.tx.push(queue.stats());
                table.add(share.main, queue);
                more.extend(share.more);
            }
            shown.push(port);
        }
        let mut workers = vec![];
        for (id, ((table, more), cpu)) in tables.into_iter().zip(&cpus).enumerate() {
            let config = WorkerConfig { id, cpu: *cpu, idle: IDLE };
            let buffers = Buffers::attach(&pools, id % pools.pools().len());
            let mut worker = Worker::new(config, table, Box::new(app(id)), buffers, domain.register());
            more.into_iter().for_each(|(end, role)| worker.add(end, role));
            workers.push(worker.spawn().map_err(|source| Error::Worker { worker: id, source })?);
        }
        // A worker reports after its first turn, in which its ports have posted buffers.
        if let Some(late) = workers.iter().find(|worker| worker.report(BEGIN).is_none()) {
            return Err(Error::App {
                worker: late.id(),
                why: format!("it has not run within {} s: its CPU is busy", BEGIN.as_secs()),
            });
        }
        attached.iter_mut().try_for_each(Attached::enable)?;
        let control = follower.as_ref().map(Follower::control);
        let (attached, unfollowed) = (Mutex::new(attached), OnceLock::new());
        let shown = Arc::new(Shown {
            started: Instant::now(),
            pools,
            umem,
            workers,
            cpus,
            ports: shown,
            attached,
            control,
            unfollowed,
        });
        let following = follower.map(|follower| follower.spawn(shown.clone())).transpose()?;
        Ok(Running::new(shown, following))
    }
}
