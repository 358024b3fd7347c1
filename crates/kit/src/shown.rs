//! State of a running application, as its API shows it.

use crate::interface::Attached;
use bywash_api::{Answer, Audit, Config, Drops, Health, Poll, Pools, Port, PortTxQueue, Topic, Worker, WorkerTxQueue};
use bywash_api_server::{Instance, answers};
use bywash_engine::{Idle, PortId, WorkerHandle};
use bywash_frame::PoolSet;
use bywash_port::af_xdp::{LinkInfo, Umem, XdpCounters};
use bywash_port::{PortCounters, PortState, TxQueueConfig, TxQueueStats};
use bywash_router::control::{Control, PortView};
use bywash_sync::lock;
use bywash_wire::ethernet::MacAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

/// Behaviour of the workers without packets.
pub const IDLE: Idle = Idle::Sleep;

/// Port of a running application.
pub struct ShownPort {
    pub name: String,
    pub kind: &'static str,
    /// Interface to which the kernel routes, as it was when the port was added.
    pub link: Option<LinkInfo>,
    /// Number of its program in [`Shown::attached`]; `None` if it has none.
    pub attached: Option<usize>,
    /// Counters of its ends, by queue.
    pub counters: Vec<Arc<PortCounters>>,
    /// Statistics of its TX queues, by worker.
    pub tx: Vec<Arc<TxQueueStats>>,
}

/// State of a running application.
pub struct Shown {
    pub started: Instant,
    pub pools: Arc<PoolSet>,
    pub umem: Arc<Umem>,
    pub workers: Vec<WorkerHandle>,
    /// CPU of each worker; `None` if the kernel chooses.
    pub cpus: Vec<Option<usize>>,
    pub ports: Vec<ShownPort>,
    /// Empty once the application has ended.
    pub attached: Mutex<Vec<Attached>>,
    /// Control side of the routing tables, if the kernel's routes are followed.
    pub control: Option<Arc<Mutex<Control>>>,
    /// Reason why the kernel's routes are no longer followed.
    pub unfollowed: OnceLock<String>,
}

impl Shown {
    /// Locks the programs.
    pub fn attached(&self) -> MutexGuard<'_, Vec<Attached>> {
        lock(&self.attached)
    }

    /// Leaves the ports to the kernel, because its routes are no longer followed.
    pub fn leave(&self, why: String) {
        self.attached().clear();
        let _ = self.unfollowed.set(why);
    }

    /// Returns the ports with their numbers and the counters of their programs.
    fn all_ports(&self) -> impl Iterator<Item = (PortId, &ShownPort, Option<(&'static str, XdpCounters)>)> {
        self.ports.iter().enumerate().map(|(id, port)| {
            let attached = self.attached();
            let program = port.attached.and_then(|at| attached.get(at)).map(Attached::program);
            let counted = program.and_then(|program| Some((program.mode(), program.counters().ok()?)));
            (PortId(id as u16), port, counted)
        })
    }

    /// Returns the ports' state in the kernel, by number; empty if it is not followed.
    fn views(&self) -> Vec<PortView> {
        let control = self.control.as_ref().map(|control| lock(control));
        control.map(|control| control.ports().collect()).unwrap_or_default()
    }

    fn ports(&self) -> Vec<Port> {
        let (ends, _) = answers::reports(&self.workers);
        let (views, tx_config) = (self.views(), TxQueueConfig::default());
        let ports = self.all_ports().map(|(id, port, program)| {
            let view = views.get(usize::from(id.0)).filter(|view| view.index != 0);
            let failing = ends.iter().find(|(_, end)| end.id == id && end.state != PortState::Up);
            let (mut state, mut reason) = failing.map_or(("up", None), |(_, end)| answers::state(&end.state));
            if state == "up" && view.is_some_and(|view| !view.running) {
                (state, reason) = ("down", Some("the link is down".into()));
            }
            let link = port.link.as_ref();
            let mac = view.and_then(|view| view.mac).or(link.map(|link| link.mac));
            Port {
                name: port.name.clone(),
                id: id.0.into(),
                interface: view.and_then(|view| view.dev.clone()).or(link.map(|link| link.name.clone())),
                kind: port.kind.into(),
                state: state.into(),
                reason,
                mac: mac.map(|mac| MacAddr(mac).to_string()),
                mtu: view.and_then(|view| view.mtu).or(link.map(|link| link.mtu)).map(u64::from),
                addresses: view.into_iter().flat_map(|view| &view.addresses).map(ToString::to_string).collect(),
                mode: program.as_ref().map(|(mode, _)| (*mode).into()),
                level: "user".into(),
                queues: ends.iter().filter(|(_, end)| end.id == id).map(answers::queue).collect(),
                tx_queue: PortTxQueue {
                    burst: tx_config.burst as u64,
                    deadline_us: tx_config.deadline_us,
                    stats: answers::tx_queue(&port.tx),
                },
                counters: answers::port_counters(&port.counters, program.as_ref().map(|(_, counted)| counted)),
                switch: None,
                above: vec![],
            }
        });
        ports.collect()
    }

    fn workers(&self) -> Vec<Worker> {
        let of = |(handle, cpu): (&WorkerHandle, &Option<usize>)| {
            let id = handle.id();
            let polls = self.ports.iter().flat_map(|port| {
                let own = (0..port.counters.len()).filter(|queue| queue % self.workers.len() == id);
                own.map(|queue| Poll { port: port.name.clone(), queue: queue as u64 })
            });
            let tx = self.ports.iter().filter_map(|port| {
                Some(WorkerTxQueue { port: port.name.clone(), stats: answers::tx_queue(port.tx.get(id..=id)?) })
            });
            answers::worker(handle, (*cpu, IDLE), polls.collect(), tx.collect())
        };
        self.workers.iter().zip(&self.cpus).map(of).collect()
    }

    fn pools(&self) -> Pools {
        let all = self.pools.pools();
        let pool = |(at, pool): (usize, &Arc<bywash_frame::Pool>)| {
            let workers: Vec<_> = (0..self.workers.len()).filter(|worker| worker % all.len() == at).collect();
            answers::pool(pool, &workers, None)
        };
        Pools {
            arena: answers::arena(&self.pools),
            pools: all.iter().enumerate().map(pool).collect(),
            audit: self.audit(),
        }
    }

    fn audit(&self) -> Audit {
        let (_, held) = answers::reports(&self.workers);
        answers::audit(&self.pools, held + self.umem.held())
    }

    fn drops(&self) -> Drops {
        let mut all = Drops::default();
        for (id, port, program) in self.all_ports() {
            let counted: Vec<_> = self.workers.iter().map(|worker| worker.counters().port(id)).collect();
            answers::add_drops(&mut all, &port.name, &counted, (0, 0));
            answers::add_losses(&mut all, &port.name, &port.counters);
            program.iter().for_each(|(_, counted)| answers::add_verdicts(&mut all, &port.name, counted));
        }
        all
    }

    fn health(&self) -> Result<Health, String> {
        match (self.workers.iter().find(|worker| worker.finished()), self.unfollowed.get()) {
            (Some(worker), _) => Err(format!("the application has failed on worker {}", worker.id())),
            (None, Some(why)) => Err(format!("the kernel's routes are not followed, and the kernel forwards: {why}")),
            (None, None) => Ok(answers::health("application", self.started)),
        }
    }
}

impl Instance for Shown {
    fn show(&self, topic: Topic, _filter: Option<&str>) -> Result<Answer, String> {
        Ok(match topic {
            Topic::Ports => self.ports().into(),
            Topic::Workers => self.workers().into(),
            Topic::Pools => self.pools().into(),
            Topic::Drops => self.drops().into(),
            Topic::Audit => self.audit().into(),
            Topic::Health => self.health()?.into(),
            Topic::Config => Config { mode: "application".into(), ..Config::default() }.into(),
            _ => return Err(format!("this is an application of its own, which does not show {}", topic.name())),
        })
    }
}
