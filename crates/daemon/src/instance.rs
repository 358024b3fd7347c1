//! Answers of a running instance. [`bywash_api::Topic`] documents their shapes.

use crate::api::{Capturing, Instance};
use crate::modes;
use crate::shared::Shared;
use crate::slots::{self, PortSlot};
use crate::workers::ANSWER;
use bywash_api::{
    Answer, Arena, Audit, Blocks, CaptureRequest, CpesChanged, CpuFrames, DropCount, Drops, EventCount, FlowsChanged,
    Health, KeysChanged, LevelFrames, Placement, Poll, Pool, Pools, Port, PortCounters, PortTxQueue, Queue, Stage,
    Topic, Traced, TxQueue, Worker, WorkerTxQueue, XdpCount,
};
use bywash_config::{Idle, Level, Mode, PortKind};
use bywash_engine::{DROP_REASONS, DropReason, EVENTS, Event, PortId, PortReport};
use bywash_fib::model::Prefix;
use bywash_flow::script::Verb;
use bywash_frame::BATCH;
use bywash_port::{PortState, TxQueueStats, WaitCounts};
use bywash_sync::Counter;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The running instance, as the API sees it.
pub struct Running(pub Arc<Shared>);

impl Instance for Running {
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
            Topic::Health => match self.0.halted() {
                Some(why) => return Err(why),
                None => Health { status: "ok".into() }.into(),
            },
            _ => return self.0.view.show(topic, filter),
        })
    }

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
        let mut traced = self.0.view.trace(packet)?;
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
            let kind = slots[&at.ok_or_else(|| format!("no port `{name}`: there are {}", names()))?].config.kind;
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
                tracing::info!("port `{name}`: level {level} asked for, {now} now");
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
            match &slot.xdp {
                Some(xdp) => {
                    let counted = xdp.program.counters().unwrap_or_default();
                    let returned = counted.get("pass_returned");
                    row.frames = LevelFrames {
                        driver: counted.get("to_port"),
                        user: counted.get("to_user").saturating_sub(returned),
                        kernel: counted.iter().filter(|(name, _)| name.starts_with("pass_")).map(|(_, n)| n).sum(),
                    };
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
        rows.into_iter().map(|(id, row)| Placement { kept: self.0.view.kept(id), ..row }).collect()
    }

    /// Returns the ends of every worker with the worker's number, and the number of buffers held by workers and
    /// sockets.
    fn reports(&self) -> (Vec<(usize, PortReport)>, usize) {
        let mut held = self.0.umem.held();
        let mut ends = vec![];
        for worker in &self.0.workers {
            if let Some(report) = worker.handle.report(ANSWER) {
                held += report.held;
                ends.extend(report.ports.into_iter().map(|p| (worker.handle.id(), p)));
            }
        }
        (ends, held)
    }

    fn ports(&self) -> Vec<Port> {
        let (ends, _) = self.reports();
        let views = self.0.view.ports();
        let slots = self.0.ports();
        let ports = slots.iter().filter_map(|(at, slot)| views.get(*at).map(|view| (view, slot)));
        let ports = ports.map(|(view, slot)| {
            let (id, config, program) = (view.id, &slot.config, slot.xdp.as_ref());
            let mut sum = PortCounters::default();
            for c in &slot.counters {
                add!(c.as_ref(), bywash_port::PortCounters => sum; rx_packets, rx_bytes, tx_packets, tx_bytes,
                    rx_no_buffer, rx_ring_full, invalid, tx_full, tx_refused, rx_wakeups, tx_wakeups, polls, busy_polls,
                    tx_reordered);
            }
            if let Some(Ok(c)) = program.map(|x| x.program.counters()) {
                // Count the port's frames whichever level they were handled at.
                sum.rx_packets += c.get("to_port") + c.get("drop_port_gone") + c.get("drop_cpu_busy");
                sum.rx_bytes += c.rx_bytes;
                sum.tx_packets += c.tx_frames;
                sum.tx_bytes += c.tx_bytes;
            }
            let end_state = ends.iter().find(|(_, e)| e.id == id && e.state != PortState::Up).map(|(_, e)| &e.state);
            let (mut up, mut reason) = end_state.map_or(("up", None), state);
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
                queues: ends.iter().filter(|(_, end)| end.id == id).map(queue).collect(),
                tx_queue: PortTxQueue {
                    burst: config.tx_burst as u64,
                    deadline_us: config.tx_deadline_us.into(),
                    stats: tx_queue(&slot.tx),
                },
                counters: sum,
                switch: self.0.view.switch_port(id),
            }
        });
        ports.collect()
    }

    fn workers(&self) -> Vec<Worker> {
        let idle = self.0.config().workers.idle;
        let ports = self.0.ports();
        let workers = self.0.workers.iter().map(|w| {
            let c = w.handle.counters();
            let (cycles, busy) = (c.cycles.get(), c.busy_cycles.get());
            let rx_bursts: Vec<u64> = c.rx_bursts.iter().map(|b| b.get()).collect();
            let packets: u64 = rx_bursts.iter().zip(0..).map(|(bursts, size)| size * bursts).sum();
            let stages = c.stages.iter().map(|s| {
                let (cycles, packets) = (s.cycles.get(), s.packets.get());
                let cycles_per_packet = cycles as f64 / packets.max(1) as f64;
                let counted = s.counted.each_ref().map(Counter::get);
                let counted = (counted[0] > 0).then_some(counted);
                Stage { name: s.name.into(), cycles, packets, bursts: s.bursts.get(), cycles_per_packet, counted }
            });
            let id = w.handle.id();
            let tx = ports.values().filter_map(|slot| {
                let stats = tx_queue(slot.tx.get(id..=id)?);
                Some(WorkerTxQueue { port: slot.config.name.clone(), stats })
            });
            let polls = ports.values().flat_map(|slot| {
                let port = slot.config.name.as_str();
                slot.polled_by(id).map(move |queue| Poll { port: port.into(), queue: queue.into() })
            });
            Worker {
                id: id as u64,
                cpu: w.cpu().map(|cpu| cpu as u64),
                idle: match idle {
                    Idle::Sleep => "sleep".into(),
                    Idle::Spin => "spin".into(),
                },
                polls: polls.collect(),
                turns: c.turns.get(),
                idle_turns: c.idle_turns.get(),
                sleeps: c.sleeps.get(),
                thread: c.thread.get(),
                cycles,
                busy_cycles: busy,
                busy_percent: 100.0 * busy as f64 / cycles.max(1) as f64,
                rx_burst_mean: packets as f64 / rx_bursts.iter().sum::<u64>().max(1) as f64,
                rx_bursts,
                stages: stages.collect(),
                tx_queues: tx.collect(),
            }
        });
        workers.collect()
    }

    fn pools(&self) -> Pools {
        let arena = self.0.pools.arena();
        Pools {
            arena: Arena {
                cells: arena.cells() as u64,
                spare: self.0.pools.spare() as u64,
                cell: arena.cell_size() as u64,
                bytes: arena.mapped() as u64,
                pages: arena.pages().to_string(),
                note: arena.pages_note().into(),
            },
            pools: self.0.pools.pools().iter().map(|pool| self.pool(pool)).collect(),
            audit: self.audit(),
        }
    }

    fn pool(&self, pool: &Arc<bywash_frame::Pool>) -> Pool {
        let (stats, config, sharers) = (pool.stats(), pool.config(), self.0.sharers(pool));
        let blocks = stats.blocks.map(|blocks| Blocks {
            size: blocks.size as u64,
            free: blocks.free as u64,
            open: blocks.open as u64,
            draining: blocks.draining as u64,
        });
        Pool {
            name: stats.name,
            kind: stats.kind.to_string(),
            cache: stats.cache as u64,
            frames: stats.frames as u64,
            free: stats.free as u64,
            cached: stats.cached as u64,
            parked: stats.parked as u64,
            in_use: stats.in_use as u64,
            normal: stats.normal as u64,
            peak: stats.peak as u64,
            high_water: stats.high_water as u64,
            allocated: stats.allocated,
            freed: stats.freed,
            exhausted: stats.exhausted,
            surplus: stats.surplus,
            draining: stats.draining,
            chosen: sharers.first().and_then(|worker| self.0.workers[*worker].choice()).map(|choice| choice.why),
            workers: sharers.into_iter().map(|worker| worker as u64).collect(),
            cpu: config.cpu.map(|cpu| cpu as u64),
            memory: pool.place().map(|place| place.to_string()),
            blocks,
        }
    }

    /// Counts all buffers, one worker after the other. The result is exact without traffic, and otherwise off by the
    /// buffers that moved during the count.
    fn audit(&self) -> Audit {
        let (_, held) = self.reports();
        let bywash_frame::Audit { cells, free, cached, parked, held, missing } = self.0.pools.audit(held);
        let [cells, free, cached, parked, held] = [cells, free, cached, parked, held].map(|cells| cells as u64);
        Audit { cells, free, cached, parked, held, missing }
    }

    fn drops(&self) -> Drops {
        let mut all = Drops::default();
        let ports = self.0.ports();
        for (at, slot) in ports.iter() {
            let (id, port) = (PortId(*at as u16), slot.config.name.as_str());
            let counters = || self.0.workers.iter().map(|w| w.handle.counters().port(id));
            // Workers count a packet as punted, or as answered by the kernel, when they hand it over; the kernel may
            // still refuse it.
            let refused = self.0.view.refused(id);
            let (packets, copies) = refused.map_or((0, 0), |r| (r.packets.get(), r.copies.get()));
            for reason in DROP_REASONS {
                let later = if *reason == DropReason::PuntFailed { packets } else { 0 };
                let n = later + counters().map(|c| c.drops(*reason)).sum::<u64>();
                if n > 0 {
                    all.drops.push(DropCount { port: port.into(), reason: reason.name().into(), packets: n });
                }
            }
            for event in EVENTS {
                let (more, less) = match event {
                    Event::Punted => (0, packets),
                    Event::IcmpByKernel => (0, copies),
                    Event::IcmpWithheld => (copies, 0),
                    _ => (0, 0),
                };
                let n = (more + counters().map(|c| c.events(*event)).sum::<u64>()).saturating_sub(less);
                if n > 0 {
                    all.events.push(EventCount { port: port.into(), event: event.name().into(), count: n });
                }
            }
        }
        // Packets that the kernel or the driver lost before or after the workers had them are drops, too.
        for (slot, c) in ports.values().flat_map(|slot| slot.counters.iter().map(move |c| (slot, c))) {
            for (reason, n) in [
                ("rx-no-buffer", c.rx_no_buffer.get()),
                ("rx-ring-full", c.rx_ring_full.get()),
                ("invalid-descriptor", c.invalid.get()),
                ("tx-refused", c.tx_refused.get()),
            ] {
                if n > 0 {
                    let port = slot.config.name.clone();
                    all.drops.push(DropCount { port, reason: reason.into(), packets: n });
                }
            }
        }
        for slot in ports.values() {
            if let Some(Ok(counters)) = slot.xdp.as_ref().map(|x| x.program.counters()) {
                let counted = counters.iter().filter(|(_, n)| *n > 0);
                let row = |(verdict, packets): (&str, u64)| XdpCount {
                    port: slot.config.name.clone(),
                    verdict: verdict.into(),
                    packets,
                };
                all.xdp.extend(counted.map(row));
            }
        }
        all
    }
}

/// Returns an end of a port, polled by a worker.
fn queue((worker, end): &(usize, PortReport)) -> Queue {
    let mut texts: BTreeMap<String, String> =
        end.details.iter().map(|(key, text)| ((*key).to_owned(), text.clone())).collect();
    Queue {
        worker: *worker as u64,
        held: end.held as u64,
        state: state(&end.state).0.into(),
        queue: texts.remove("queue"),
        mode: texts.remove("mode"),
        mode_note: texts.remove("mode_note"),
        transmit_note: texts.remove("transmit_note"),
        peer: texts.remove("peer"),
        reconnects: texts.remove("reconnects"),
        refused: texts.remove("refused"),
        others: texts,
    }
}

/// Returns the statistics of TX queues, added up.
fn tx_queue(queues: &[Arc<TxQueueStats>]) -> TxQueue {
    let (mut calls, mut frames, mut waits) = (0, 0, WaitCounts::default());
    let mut bursts = [0; BATCH + 1];
    for queue in queues {
        let (c, f) = queue.sends();
        (calls, frames) = (calls + c, frames + f);
        waits.add(&queue.waits.counts());
        bursts.iter_mut().zip(&queue.bursts).for_each(|(all, n)| *all += n.get());
    }
    TxQueue {
        sends: calls,
        packets: frames,
        burst_mean: frames as f64 / calls.max(1) as f64,
        bursts: bursts.to_vec(),
        wait_us_p50: waits.quantile_us(0.5),
        wait_us_p99: waits.quantile_us(0.99),
        wait_us_max: waits.quantile_us(1.0),
        waits_us: waits.buckets(),
    }
}

fn state(state: &PortState) -> (&'static str, Option<String>) {
    match state {
        PortState::Up => ("up", None),
        PortState::Down(reason) => ("down", Some(reason.clone())),
        PortState::Ended => ("ended", None),
    }
}
