//! Answers of a running instance. [`crate::api::Topic`] documents their shapes.

use super::ANSWER;
use super::control::Shared;
use crate::api::{CaptureRequest, Capturing, FlowCommand, Instance, Topic};
use crate::config::{Level, Mode, PortKind};
use bywash_engine::{DROP_REASONS, DropReason, EVENTS, Event, PortId, PortReport};
use bywash_frame::BATCH;
use bywash_port::{PortState, TxQueueStats, WaitCounts};
use bywash_route::model::{Mac, Prefix};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The running instance, as the API sees it.
pub struct Running(pub Arc<Shared>);

impl Instance for Running {
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Value, String> {
        Ok(match topic {
            Topic::Ports => self.ports(),
            Topic::Workers => self.workers(),
            Topic::Pools => self.pools(),
            Topic::Drops => self.drops(),
            Topic::Placement => self.placement(),
            Topic::Config => serde_json::to_value(&self.0.live().config).map_err(|e| e.to_string())?,
            Topic::Sandbox => crate::sandbox::report(),
            Topic::Audit => self.audit(),
            Topic::Health => match self.0.halted() {
                Some(why) => return Err(why),
                None => json!({ "status": "ok" }),
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
        super::capture::prepare(&self.0, request)
    }

    fn flows(&self, command: FlowCommand, text: &str) -> Result<Value, String> {
        let mut answer = self.0.view.command(command, text)?;
        // Only a router's trace names a level: a switch has no levels to choose from.
        if command == FlowCommand::Trace && self.0.live().config.mode == Mode::Router {
            super::trace::placed(&mut answer, &self.placement());
        }
        Ok(answer)
    }

    fn set_level(&self, level: Level, ports: &[String]) -> Result<Value, String> {
        let live = self.0.live();
        let mut chosen = vec![];
        for name in ports {
            let at = live.number(name);
            let names = || live.config.ports.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
            let (at, config) = at.ok_or_else(|| format!("no port `{name}`: there are {}", names()))?;
            if config.kind != PortKind::AfXdp {
                return Err(format!("port `{name}` is {}: only af_xdp ports have levels", config.kind.name()));
            }
            chosen.push(at);
        }
        if level == Level::Driver && live.config.mode == Mode::Cmts {
            let what = live.config.mode.name();
            return Err(format!("a {what} cannot forward in the driver: its ports can have level user or kernel"));
        }
        if ports.is_empty() {
            chosen.extend(live.ports().filter(|(_, port)| port.kind == PortKind::AfXdp).map(|(at, _)| at));
        }
        let mut levels = self.0.levels.lock().expect("levels");
        let mut programs = self.0.xdp.lock().expect("programs");
        for at in chosen {
            // A port whose interface is gone gets its level when the interface is back.
            if let Some(xdp) = &mut programs[at] {
                xdp.set_level(level).map_err(|e| format!("{e:#}"))?;
                tracing::info!(
                    "port `{}`: level {} asked for, {} now",
                    live.name(at),
                    level.name(),
                    xdp.level().name()
                );
            }
            levels[at] = Some(level);
        }
        drop((levels, programs));
        Ok(self.placement())
    }
}

impl Running {
    /// Returns where each port's packets are handled, and why. Takes the locks in the same order as the control loop.
    fn placement(&self) -> Value {
        let live = self.0.live();
        let levels = self.0.levels.lock().expect("levels");
        let counters = self.0.counters.lock().expect("counters");
        let programs = self.0.xdp.lock().expect("programs");
        let ports = live.ports().map(|(at, config)| {
            let configured = levels[at].or(config.af_xdp.as_ref().map(|af_xdp| af_xdp.level));
            let mut row = json!({ "port": config.name, "configured": configured.map(Level::name) });
            let (mut driver, mut kernel) = (0, 0);
            let user = match &programs[at] {
                Some(xdp) => {
                    let counted = xdp.program.counters().unwrap_or_default();
                    let returned = counted.get("pass_returned");
                    driver = counted.get("to_port");
                    kernel = counted.iter().filter(|(name, _)| name.starts_with("pass_")).map(|(_, n)| n).sum();
                    let (target, target_why) = xdp.target();
                    row["level"] = xdp.level().name().into();
                    row["why"] = xdp.why().into();
                    row["mode"] = xdp.program.mode().into();
                    row["mode_why"] = xdp.program.note().into();
                    match xdp.spread() {
                        Ok(cpus) => {
                            let cpus = cpus.into_iter().map(|(cpu, frames)| json!({ "cpu": cpu, "frames": frames }));
                            row["spread"] = cpus.collect();
                        }
                        Err(why) => row["spread_why"] = why.into(),
                    }
                    row["target"] = target.into();
                    row["target_why"] = target_why.into();
                    counted.get("to_user").saturating_sub(returned)
                }
                None if config.kind == PortKind::AfXdp => {
                    row["why"] = "its interface is gone".into();
                    0
                }
                None => {
                    row["level"] = Level::User.name().into();
                    row["why"] = "it has no XDP program".into();
                    let mine = counters.iter().filter(|(id, _, _)| usize::from(id.0) == at);
                    mine.map(|(_, _, c)| c.rx_packets.get()).sum()
                }
            };
            row["kept"] = self.0.view.kept(PortId(at as u16));
            row["frames"] = json!({ "driver": driver, "user": user, "kernel": kernel });
            row
        });
        ports.collect()
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

    fn ports(&self) -> Value {
        let (ends, _) = self.reports();
        let views = self.0.view.ports();
        let counters = self.0.counters.lock().expect("counters");
        let xdp = self.0.xdp.lock().expect("programs");
        let live = self.0.live();
        let ports = live.ports().filter_map(|(at, config)| views.get(at).map(|view| (view, config)));
        let ports = ports.map(|(view, config)| {
            let id = view.id;
            let mine = || counters.iter().filter(move |(p, _, _)| *p == id);
            let mut sum: Map<String, Value> = Map::new();
            for (_, _, c) in mine() {
                let Ok(Value::Object(one)) = serde_json::to_value(c.as_ref()) else { continue };
                for (name, n) in one {
                    let n = n.as_u64().unwrap_or(0) + sum.get(&name).and_then(Value::as_u64).unwrap_or(0);
                    sum.insert(name, n.into());
                }
            }
            let program = xdp.get(usize::from(id.0)).and_then(Option::as_ref);
            if let Some(Ok(c)) = program.map(|x| x.program.counters()) {
                // Count the port's frames whichever level they were handled at.
                for (name, more) in [
                    ("rx_packets", c.get("to_port") + c.get("drop_port_gone") + c.get("drop_cpu_busy")),
                    ("rx_bytes", c.rx_bytes),
                    ("tx_packets", c.tx_frames),
                    ("tx_bytes", c.tx_bytes),
                ] {
                    let n = more + sum.get(name).and_then(Value::as_u64).unwrap_or(0);
                    sum.insert(name.into(), n.into());
                }
            }
            let queues: Vec<Value> = ends
                .iter()
                .filter(|(_, e)| e.id == id)
                .map(|(worker, e)| {
                    let mut q: Map<String, Value> =
                        e.details.iter().map(|(k, v)| ((*k).to_owned(), Value::from(v.as_str()))).collect();
                    q.insert("worker".into(), (*worker).into());
                    q.insert("held".into(), e.held.into());
                    q.insert("state".into(), state(&e.state).0.into());
                    Value::Object(q)
                })
                .collect();
            let end_state = ends.iter().find(|(_, e)| e.id == id && e.state != PortState::Up).map(|(_, e)| &e.state);
            let (mut up, mut reason) = end_state.map_or(("up", None), state);
            let queues_of = self.0.workers.iter().filter_map(|w| w.queues().get(usize::from(id.0)).cloned());
            let mut tx = tx_queue(&queues_of.collect::<Vec<_>>());
            (tx["burst"], tx["deadline_us"]) = (config.tx_burst.into(), config.tx_deadline_us.into());
            let has_interface = config.interface.is_some();
            if has_interface && up == "up" && !view.running {
                (up, reason) = ("down", Some("the link is down".into()));
            }
            json!({
                "name": config.name,
                "id": id,
                "interface": view.dev.as_ref().or(config.interface.as_ref()),
                "kind": config.kind.name(),
                "state": up,
                "reason": reason,
                "mac": view.mac.map(mac),
                "mtu": view.mtu,
                "addresses": view.addresses.iter().map(Prefix::to_string).collect::<Vec<_>>(),
                "mode": program.map(|x| x.program.mode()),
                "level": program.map_or("user", |x| x.level().name()),
                "queues": queues,
                "tx_queue": tx,
                "counters": sum,
            })
        });
        ports.collect()
    }

    fn workers(&self) -> Value {
        let live = self.0.live();
        let workers = self.0.workers.iter().map(|w| {
            let c = w.handle.counters();
            let cycles = c.cycles.get().max(1);
            let bursts: u64 = c.rx_bursts.iter().map(|b| b.get()).sum();
            let packets: u64 = c.rx_bursts.iter().enumerate().map(|(n, b)| n as u64 * b.get()).sum();
            let stages: Vec<Value> = c
                .stages
                .iter()
                .map(|s| {
                    let (cycles, packets) = (s.cycles.get(), s.packets.get());
                    json!({
                        "name": s.name,
                        "cycles": cycles,
                        "packets": packets,
                        "bursts": s.bursts.get(),
                        "cycles_per_packet": cycles as f64 / packets.max(1) as f64,
                    })
                })
                .collect();
            let queues = w.queues();
            let tx = live.ports().filter_map(|(at, port)| {
                let mut shown = tx_queue(&[queues.get(at)?.clone()]);
                shown["port"] = port.name.as_str().into();
                Some(shown)
            });
            let tx: Vec<Value> = tx.collect();
            let polls = w.polls().clone().into_iter().map(|(p, q)| json!({ "port": live.name(p), "queue": q }));
            json!({
                "id": w.handle.id(),
                "cpu": w.cpu(),
                "idle": live.config.workers.idle,
                "polls": polls.collect::<Vec<_>>(),
                "turns": c.turns.get(),
                "idle_turns": c.idle_turns.get(),
                "sleeps": c.sleeps.get(),
                "thread": c.thread.get(),
                "cycles": c.cycles.get(),
                "busy_cycles": c.busy_cycles.get(),
                "busy_percent": 100.0 * c.busy_cycles.get() as f64 / cycles as f64,
                "rx_burst_mean": packets as f64 / bursts.max(1) as f64,
                "rx_bursts": c.rx_bursts.iter().map(|b| b.get()).collect::<Vec<_>>(),
                "stages": stages,
                "tx_queues": tx,
            })
        });
        workers.collect()
    }

    fn pools(&self) -> Value {
        let arena = self.0.pools.arena();
        let pools: Vec<_> = self.0.pools.pools().iter().map(|p| p.stats()).collect();
        json!({
            "arena": {
                "cells": arena.cells(),
                "spare": self.0.pools.spare(),
                "cell": arena.cell_size(),
                "bytes": arena.mapped(),
                "pages": arena.pages().to_string(),
                "note": arena.pages_note(),
            },
            "pools": pools,
            "audit": self.audit(),
        })
    }

    /// Counts all buffers, one worker after the other. The result is exact without traffic, and otherwise off by the
    /// buffers that moved during the count.
    fn audit(&self) -> Value {
        let (_, held) = self.reports();
        serde_json::to_value(self.0.pools.audit(held)).unwrap_or_default()
    }

    fn drops(&self) -> Value {
        let (mut drops, mut events, mut passes) = (vec![], vec![], vec![]);
        let live = self.0.live();
        for (i, port) in live.ports().map(|(at, config)| (at, config.name.as_str())) {
            let id = PortId(i as u16);
            let counters = || self.0.workers.iter().map(|w| w.handle.counters().port(id));
            // Workers count a packet as punted when they hand it over; the kernel may still refuse it.
            let failed = self.0.view.punt_failed(id);
            for reason in DROP_REASONS {
                let later = if *reason == DropReason::PuntFailed { failed } else { 0 };
                let n = later + counters().map(|c| c.drops(*reason)).sum::<u64>();
                if n > 0 {
                    drops.push(json!({ "port": port, "reason": reason.name(), "packets": n }));
                }
            }
            for event in EVENTS {
                let less = if *event == Event::Punted { failed } else { 0 };
                let n = counters().map(|c| c.events(*event)).sum::<u64>().saturating_sub(less);
                if n > 0 {
                    events.push(json!({ "port": port, "event": event.name(), "count": n }));
                }
            }
        }
        // Packets that the kernel or the driver lost before or after the workers had them are drops, too.
        for (id, _, c) in self.0.counters.lock().expect("counters").iter() {
            let port = live.name(usize::from(id.0));
            for (reason, n) in [
                ("rx-no-buffer", c.rx_no_buffer.get()),
                ("rx-ring-full", c.rx_ring_full.get()),
                ("invalid-descriptor", c.invalid.get()),
                ("tx-refused", c.tx_refused.get()),
            ] {
                if n > 0 {
                    drops.push(json!({ "port": port, "reason": reason, "packets": n }));
                }
            }
        }
        let xdp = self.0.xdp.lock().expect("programs");
        for (at, config) in live.ports() {
            let port = config.name.as_str();
            if let Some(Ok(counters)) = xdp[at].as_ref().map(|x| x.program.counters()) {
                let counted = counters.iter().filter(|(_, n)| *n > 0);
                passes.extend(counted.map(|(verdict, n)| json!({ "port": port, "verdict": verdict, "packets": n })));
            }
        }
        json!({ "drops": drops, "events": events, "xdp": passes })
    }
}

/// Returns the statistics of TX queues, added up.
fn tx_queue(queues: &[Arc<TxQueueStats>]) -> Value {
    let (mut calls, mut frames, mut waits) = (0, 0, WaitCounts::default());
    let mut bursts = [0; BATCH + 1];
    for queue in queues {
        let (c, f) = queue.sends();
        (calls, frames) = (calls + c, frames + f);
        waits.add(&queue.waits.counts());
        bursts.iter_mut().zip(&queue.bursts).for_each(|(all, n)| *all += n.get());
    }
    json!({
        "sends": calls,
        "packets": frames,
        "burst_mean": frames as f64 / calls.max(1) as f64,
        "bursts": bursts.as_slice(),
        "wait_us_p50": waits.quantile_us(0.5),
        "wait_us_p99": waits.quantile_us(0.99),
        "wait_us_max": waits.quantile_us(1.0),
        "waits_us": waits.buckets(),
    })
}

fn state(state: &PortState) -> (&'static str, Option<String>) {
    match state {
        PortState::Up => ("up", None),
        PortState::Down(reason) => ("down", Some(reason.clone())),
        PortState::Ended => ("ended", None),
    }
}

/// Formats a MAC address.
pub fn mac(mac: Mac) -> String {
    bywash_wire::ethernet::MacAddr(mac).to_string()
}
