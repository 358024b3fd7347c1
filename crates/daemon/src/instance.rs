//! Answers of a running instance. [`bywash_api::Topic`] documents their shapes.

use crate::api::{Capturing, Instance};
use crate::modes;
use crate::shared::Shared;
use crate::slots::{self, PortSlot};
use bywash_api::{
    Above, Answer, Audit, CaptureRequest, CpesChanged, CpuFrames, Drops, EstablishedFlows, FlowsChanged, KeysChanged,
    LevelFrames, Placement, Poll, Pools, Port, PortTxQueue, Topic, Traced, Worker, WorkerTxQueue,
};
use bywash_api_server::{Rows, answers};
use bywash_config::{Level, Mode, PortKind};
use bywash_engine::{PortId, PortReport};
use bywash_fib::model::Prefix;
use bywash_flow::script::Verb;
use bywash_port::PortState;
use std::collections::HashMap;
use std::sync::Arc;

/// The running instance, as the API sees it.
pub struct Running(pub Arc<Shared>);

impl bywash_api_server::Instance for Running {
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String> {
        Ok(match topic {
            Topic::Ports => self.ports().into(),
            Topic::Workers => self.workers().into(),
            Topic::Pools => self.pools().into(),
            Topic::Drops => self.drops().into(),
            Topic::Placement => self.placement().into(),
            Topic::Config => {
                let config = serde_json::to_value(&*self.0.config());
                config.and_then(|config| Answer::read(topic, config)).map_err(|why| why.to_string())?
            }
            Topic::Sandbox => crate::sandbox::report().into(),
            Topic::Audit => self.audit().into(),
            Topic::Health => match self.0.unwell() {
                Some(why) => return Err(why),
                None => answers::health(self.0.config().mode.name(), self.0.started).into(),
            },
            Topic::EstablishedFlows => {
                let mut answer = self.0.view.show(topic, filter)?;
                if let Answer::EstablishedFlows(shown) = &mut answer {
                    self.add_levels(shown);
                }
                answer
            }
            _ => return self.0.view.show(topic, filter),
        })
    }

    fn rows(&self, topic: Topic, filter: Option<&str>) -> Option<Result<Box<dyn Rows>, String>> {
        self.0.view.rows(topic, filter)
    }
}

impl Instance for Running {
    fn reload(&self, dry_run: bool) -> Result<Vec<String>, String> {
        self.0.reload(dry_run)
    }

    fn take_over(&self, socket: &str) -> Result<(), String> {
        self.0.take_over(socket)
    }

    fn capture(&self, request: &CaptureRequest) -> Result<Box<dyn Capturing>, String> {
        crate::capture::prepare(&self.0, request)
    }

    fn change_flows(&self, verb: Verb, lines: &str) -> Result<FlowsChanged, String> {
        self.0.view.change_flows(verb, lines)
    }

    fn change_keys(&self, group: usize, lines: &str, later: bool) -> Result<KeysChanged, String> {
        self.0.view.change_keys(group, lines, later)
    }

    fn change_cpes(&self, group: usize, lines: &str, add: bool) -> Result<CpesChanged, String> {
        self.0.view.change_cpes(group, lines, add)
    }

    fn trace(&self, packet: &str) -> Result<Traced, String> {
        let has_program = |id: PortId| self.0.ports().get(&usize::from(id.0)).is_some_and(|slot| slot.xdp.is_some());
        let mut traced = self.0.view.trace(packet, &has_program)?;
        // Only a router's trace names a level: a switch has no levels to choose from.
        if self.0.config().mode == Mode::Router {
            modes::placed(&mut traced, &self.placement());
        }
        Ok(traced)
    }

    fn set_level(&self, level: Level, ports: &[String]) -> Result<Vec<Placement>, String> {
        let config = self.0.config();
        let mut slots = self.0.ports();
        for name in ports {
            let at = slots::number(&slots, name);
            let names = || config.ports.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
            let kind = slots[&at.ok_or_else(|| format!("no port `{name}`: the ports are {}", names()))?].config.kind;
            if kind != PortKind::AfXdp {
                return Err(format!("port `{name}` is {}: only af_xdp ports have levels", kind.name()));
            }
        }
        if level == Level::Driver && config.mode == Mode::Cmts {
            let what = config.mode.name();
            return Err(format!("a {what} cannot forward in the driver: its ports can have level user or kernel"));
        }
        let chosen = |slot: &&mut PortSlot| match ports.is_empty() {
            true => slot.config.kind == PortKind::AfXdp,
            false => ports.contains(&slot.config.name),
        };
        for slot in slots.values_mut().filter(chosen) {
            slot.set_level(level).map_err(|e| format!("{e:#}"))?;
            if let Some(xdp) = &slot.xdp {
                let (name, level, now) = (&slot.config.name, level.name(), xdp.level().name());
                match xdp.program.config().raw && xdp.level() == Level::Kernel {
                    true => tracing::warn!(
                        "port `{name}`: level {now} in effect: the kernel gets its frames, and nothing is forwarded; \
                         `bywash level auto {name}` ends this"
                    ),
                    false => tracing::info!("port `{name}`: level {level} requested, {now} in effect"),
                }
            }
        }
        drop(slots);
        Ok(self.placement())
    }
}

impl Running {
    /// Returns where each port's packets are handled, and why.
    fn placement(&self) -> Vec<Placement> {
        let row = |(at, slot): (&usize, &PortSlot)| {
            let mut row = Placement {
                port: slot.config.name.clone(),
                configured: slot.asked().map(|level| level.name().into()),
                ..Placement::default()
            };
            if let Some(counted) = slot.verdicts() {
                row.frames = LevelFrames {
                    driver: counted.get("to_port") + counted.get("to_member"),
                    user: counted.get("to_user").saturating_sub(counted.get("pass_returned")),
                    kernel: counted.iter().filter(|(name, _)| name.starts_with("pass_")).map(|(_, n)| n).sum(),
                };
            }
            match &slot.xdp {
                Some(xdp) => {
                    let (target, target_why) = xdp.target();
                    row.level = Some(xdp.level().name().into());
                    row.why = xdp.why();
                    row.mode = Some(xdp.program.mode().into());
                    row.mode_why = Some(xdp.program.note().into());
                    match xdp.spread() {
                        Ok(cpus) => {
                            let cpus = cpus.into_iter().map(|(cpu, frames)| CpuFrames { cpu: cpu as u64, frames });
                            row.spread = Some(cpus.collect());
                        }
                        Err(why) => row.spread_why = Some(why.into()),
                    }
                    row.target = Some(target);
                    row.target_why = Some(target_why.into());
                }
                None if slot.config.kind == PortKind::AfXdp => row.why = "its interface is gone".into(),
                None => {
                    row.level = Some(Level::User.name().into());
                    row.why = "it has no XDP program".into();
                    row.frames.user = slot.counters.iter().map(|c| c.rx_packets.get()).sum();
                }
            }
            (PortId(*at as u16), row)
        };
        let rows: Vec<_> = self.0.ports().iter().map(row).collect();
        let policies = self.0.view.policies();
        rows.into_iter().map(|(id, row)| Placement { kept: self.0.view.kept(id), policies, ..row }).collect()
    }

    /// Adds the levels of the ports that flows pass.
    fn add_levels(&self, shown: &mut EstablishedFlows) {
        let level = |slot: &PortSlot| match &slot.xdp {
            Some(xdp) => xdp.level().name(),
            None => Level::User.name(),
        };
        let above = self.0.above();
        let ports = self.0.ports();
        let of_ports = ports.values().map(|slot| (slot.config.name.as_str(), level(slot)));
        let of_above = above
            .iter()
            .filter(|(_, above)| above.left.is_none())
            .filter_map(|(port, above)| Some((above.name.as_str(), level(ports.get(&usize::from(port.0))?))));
        let levels: HashMap<&str, &str> = of_above.chain(of_ports).collect();
        for flow in &mut shown.flows {
            for way in [&mut flow.original, &mut flow.reply] {
                way.level = levels.get(way.port.as_str()).copied().unwrap_or_default().into();
            }
        }
    }

    /// Returns the ends of every worker with the worker's number, and the number of buffers held by workers and
    /// sockets.
    fn reports(&self) -> (Vec<(usize, PortReport)>, usize) {
        let (ends, held) = answers::reports(self.0.workers.iter().map(|worker| &worker.handle));
        (ends, held + self.0.umem.held())
    }

    fn ports(&self) -> Vec<Port> {
        let (ends, _) = self.reports();
        let (views, mut above) = (self.0.view.ports(), self.0.above());
        let mut of_switch: Vec<_> = views.iter().map(|view| self.0.view.switch_port(view.id)).collect();
        let slots = self.0.ports();
        if slots::leave_tunnels(&slots) {
            // Tunnels that are members of a bridge are included.
            let is_tunnel = |above: &Above| above.ends.is_some();
            let tunnels =
                above.iter_mut().map(|(_, above)| above).filter(|above| is_tunnel(above) && above.left.is_none());
            tunnels.for_each(|tunnel| (tunnel.left, tunnel.sends) = (Some(slots::TUNNELS_LEFT.into()), false));
        }
        let ports = slots.iter().filter_map(|(at, slot)| Some((views.get(*at)?, slot, of_switch.get_mut(*at)?.take())));
        let ports = ports.map(|(view, slot, switch)| {
            let (id, config, program) = (view.id, &slot.config, slot.xdp.as_ref());
            let end_state = ends.iter().find(|(_, e)| e.id == id && e.state != PortState::Up).map(|(_, e)| &e.state);
            let (mut up, mut reason) = end_state.map_or(("up", None), answers::state);
            let has_interface = config.interface.is_some();
            if has_interface && up == "up" && !view.running {
                (up, reason) = ("down", Some("the link is down".into()));
            }
            Port {
                name: config.name.clone(),
                id: id.0.into(),
                interface: view.dev.as_ref().or(config.interface.as_ref()).cloned(),
                kind: config.kind.name().into(),
                state: up.into(),
                reason,
                mac: view.mac.map(modes::mac),
                mtu: view.mtu.map(u64::from),
                addresses: view.addresses.iter().map(Prefix::to_string).collect(),
                mode: program.map(|x| x.program.mode().into()),
                level: program.map_or("user", |x| x.level().name()).into(),
                queues: ends.iter().filter(|(_, end)| end.id == id).map(answers::queue).collect(),
                tx_queue: PortTxQueue {
                    burst: config.tx_burst as u64,
                    deadline_us: config.tx_deadline_us.into(),
                    stats: answers::tx_queue(&slot.tx),
                },
                counters: answers::port_counters(&slot.counters, slot.verdicts().as_ref()),
                switch,
                above: above.iter().filter(|(port, _)| *port == id).map(|(_, above)| above.clone()).collect(),
            }
        });
        ports.collect()
    }

    fn workers(&self) -> Vec<Worker> {
        let idle = self.0.config().workers.idle;
        let ports = self.0.ports();
        let workers = self.0.workers.iter().map(|w| {
            let id = w.handle.id();
            let tx = ports.values().filter_map(|slot| {
                let stats = answers::tx_queue(slot.tx.get(id..=id)?);
                Some(WorkerTxQueue { port: slot.config.name.clone(), stats })
            });
            let polls = ports.values().flat_map(|slot| {
                let port = slot.config.name.as_str();
                slot.polled_by(id).map(move |queue| Poll { port: port.into(), queue: queue.into() })
            });
            answers::worker(&w.handle, (w.cpu(), idle), polls.collect(), tx.collect())
        });
        workers.collect()
    }

    fn pools(&self) -> Pools {
        let pool = |pool: &Arc<bywash_frame::Pool>| {
            let sharers = self.0.sharers(pool);
            let chosen = sharers.first().and_then(|worker| self.0.workers[*worker].choice()).map(|choice| choice.why);
            answers::pool(pool, &sharers, chosen)
        };
        Pools {
            arena: answers::arena(&self.0.pools),
            pools: self.0.pools.pools().iter().map(pool).collect(),
            audit: self.audit(),
        }
    }

    /// Counts all buffers, one worker after the other. The result is exact without traffic, and otherwise off by the
    /// buffers that moved during the count.
    fn audit(&self) -> Audit {
        let (_, held) = self.reports();
        answers::audit(&self.0.pools, held)
    }

    fn drops(&self) -> Drops {
        let mut all = Drops::default();
        let ports = self.0.ports();
        for (at, slot) in ports.iter() {
            let (id, port) = (PortId(*at as u16), slot.config.name.as_str());
            let counted: Vec<_> = self.0.workers.iter().map(|w| w.handle.counters().port(id)).collect();
            // Workers count a packet as punted, or as answered by the kernel, when they hand it over; the kernel may
            // still refuse it.
            let refused = self.0.view.refused(id);
            let refused = refused.map_or((0, 0), |r| (r.packets.get(), r.copies.get()));
            answers::add_drops(&mut all, port, &counted, refused);
        }
        for slot in ports.values() {
            answers::add_losses(&mut all, &slot.config.name, &slot.counters);
        }
        for slot in ports.values() {
            if let Some(counters) = slot.verdicts() {
                answers::add_verdicts(&mut all, &slot.config.name, &counters);
            }
        }
        all
    }
}
