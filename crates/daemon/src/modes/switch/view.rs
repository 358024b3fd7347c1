//! View of a switch: flows, groups, addresses and caches, and changes to them at run time.

use super::file::FlowFile;
use crate::modes::{Names, mac, packet};
use crate::view::{Pieces, View};
use bywash_api::{
    Address, Answer, Caches, Flow as FlowRow, FlowsChanged, Groups, Meter, SwitchPort, Topic, Traced, WorkerCaches,
};
use bywash_api_server::Rows;
use bywash_config::Config;
use bywash_engine::PortId;
use bywash_flow::control::{FlowControl, FlowReport};
use bywash_flow::extract::extract;
use bywash_flow::field::Field;
use bywash_flow::key::Flow;
use bywash_flow::model::{FlowFilter, Match, OfPort};
use bywash_flow::ops::Op;
use bywash_flow::script::{self as flows, Verb};
use bywash_flow::stats::CacheCounters;
use bywash_flow::syntax::{self, Shown, ShownActions, ShownMatch};
use bywash_router::control::{PortView, Ports};
use bywash_sync::lock;
use bywash_wire::summary;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The switch, as the API sees it.
pub struct Bridge {
    pub flows: Arc<Mutex<FlowControl>>,
    pub ports: Arc<Mutex<Ports>>,
    /// Names of the ports, by OpenFlow number less 1; empty where a port has been removed.
    pub names: Names,
    /// Name of the local port.
    pub local: Option<String>,
    /// File with the flows; `None` if the first flow was the learning bridge.
    pub file: Option<FlowFile>,
}

impl View for Bridge {
    fn ports(&self) -> Vec<PortView> {
        lock(&self.ports).ports().collect()
    }

    fn show(&self, topic: Topic, _filter: Option<&str>) -> Result<Answer, String> {
        match topic {
            Topic::Groups => Ok(self.groups().into()),
            Topic::Caches => Ok(self.caches().into()),
            _ => Err(topic.not_in("switch")),
        }
    }

    fn rows(&self, topic: Topic, filter: Option<&str>) -> Option<Result<Box<dyn Rows>, String>> {
        match topic {
            Topic::Flows => Some(self.flows(filter.unwrap_or_default())),
            Topic::Fdb => Some(Ok(self.addresses())),
            _ => None,
        }
    }

    fn switch_port(&self, port: PortId) -> Option<SwitchPort> {
        let control = self.control();
        let port = control.pipeline().ports().iter().find(|known| known.id == port)?;
        let (addresses, evicted) = control.learned_on(port.of);
        Some(SwitchPort {
            number: port.of.0.into(),
            addresses: addresses as u64,
            limit: port.macs.map(|limit| limit as u64),
            evicted,
        })
    }

    fn change_flows(&self, verb: Verb, lines: &str) -> Result<FlowsChanged, String> {
        // Parse before locking the tables, which learned addresses from the workers wait for.
        let items = flows::parse(lines, verb, &self.port_numbers());
        let items = items.map_err(|wrong| wrong.to_string())?;
        Ok(FlowsChanged { changed: flows::carry_out(&mut self.control(), items)? as u64 })
    }

    fn reread(&self, _config: &Config, apply: bool) -> anyhow::Result<Vec<String>> {
        let Some(file) = &self.file else { return Ok(vec![]) };
        let Some(text) = file.changed()? else { return Ok(vec![]) };
        if apply {
            let numbers = self.port_numbers();
            file.load(&mut self.control(), &text, &numbers)?;
        }
        Ok(vec!["all flows replaced by those of the changed file".into()])
    }

    fn trace(&self, text: &str, _has_program: &dyn Fn(PortId) -> bool) -> Result<Traced, String> {
        let names = self.port_numbers();
        // A description by fields has `=` or is one word; `PORT HEX` has a space and no `=`.
        if text.contains('=') || !text.trim().contains(char::is_whitespace) {
            let packet = syntax::packet(text.trim(), &names).map_err(|wrong| wrong.to_string())?;
            self.check_port(&packet)?;
            return Ok(self.traced(&packet));
        }
        let (port, frame) = packet::parse(text)?;
        let of = names(port).ok_or_else(|| format!("no port `{port}`: the ports are {}", self.names().join(", ")))?;
        let mut key = Default::default();
        let layout = extract(&frame, of.0, self.control().pipeline().vlan_limit, &mut key);
        layout.ok_or("the frame is shorter than an Ethernet header: the switch drops it (runt)")?;
        let mut traced = self.traced(&Flow::from(&key));
        traced.story.insert(0, format!("{port}: received, {} B: {}", frame.len(), summary::line(&frame)));
        Ok(traced)
    }
}

impl Bridge {
    fn control(&self) -> MutexGuard<'_, FlowControl> {
        lock(&self.flows)
    }

    fn names(&self) -> Vec<String> {
        lock(&self.names).clone()
    }

    /// Returns a function from the names that the ports have now to their OpenFlow numbers.
    fn port_numbers(&self) -> impl Fn(&str) -> Option<OfPort> + '_ {
        let names = self.names();
        move |name| flows::port_number(&names, self.local.as_deref(), name)
    }

    /// Returns the flows that there are now, each as it is when it is sent.
    fn flows(&self, filter: &str) -> Result<Box<dyn Rows>, String> {
        let names = self.port_numbers();
        let filter = match filter.trim() {
            "" => FlowFilter::default(),
            text => syntax::filter(text, &names, false).map_err(|wrong| wrong.to_string())?,
        };
        let (numbers, flows) = (self.control().numbers(&filter), self.flows.clone());
        let reports = numbers.into_iter().filter_map(move |number| lock(&flows).report(number));
        let row = |report: FlowReport| {
            let spec = &report.rule.spec;
            FlowRow {
                table: spec.table,
                priority: spec.priority,
                cookie: spec.cookie,
                matches: ShownMatch(&spec.matches).to_string(),
                actions: ShownActions(&spec.actions).to_string(),
                n_packets: report.packets,
                n_bytes: report.bytes,
                duration_s: (report.age.as_secs_f64() * 1000.0).round() / 1000.0,
                idle_age_s: report.idle.as_secs(),
                idle_timeout_s: spec.idle_timeout,
                hard_timeout_s: spec.hard_timeout,
            }
        };
        Ok(Pieces::of(reports.map(row), Answer::Flows))
    }

    fn groups(&self) -> Groups {
        let control = self.control();
        let meters = control.meters();
        let meters = meters.iter().map(|meter| {
            let (passed, refused) = (meter.passed.load(Ordering::Relaxed), meter.refused.load(Ordering::Relaxed));
            Meter { meter: Shown(&meter.spec).to_string(), passed, refused }
        });
        let groups = control.groups().iter().map(|group| Shown(&group.spec).to_string()).collect();
        Groups { groups, meters: meters.collect() }
    }

    fn addresses(&self) -> Box<dyn Rows> {
        let (list, names, local) = (self.control().macs(), self.names(), self.local.clone());
        let row = move |(vlan, address, of, age): (u16, u64, OfPort, Duration)| {
            let bytes = address.to_be_bytes();
            let address: [u8; 6] = std::array::from_fn(|at| bytes[at + 2]);
            Address {
                port: flows::port_name(&names, local.as_deref(), of).map(str::to_owned),
                number: of.0.into(),
                vlan,
                mac: mac(address),
                age_s: age.as_secs(),
            }
        };
        Pieces::of(list.into_iter().map(row), Answer::Fdb)
    }

    fn caches(&self) -> Caches {
        let control = self.control();
        let worker = |(id, counters): (usize, &Arc<CacheCounters>)| {
            let mut row = WorkerCaches { worker: id as u64, ..WorkerCaches::default() };
            add!(counters.as_ref(), CacheCounters => row; exact_hits, megaflow_hits, misses, masks_tried, megaflows,
                masks, not_cached, masks_full, made, revalidated, changed, removed, learn_later, driver_hits,
                driver_flows, generation);
            row
        };
        let workers = control.counters().enumerate().map(worker).collect();
        let (flows, not_learned) = (control.len() as u64, control.not_learned);
        Caches { workers, flows, addresses_moved: control.moved, flows_not_learned: not_learned }
    }

    /// Checks that the port of a packet exists, if it has one.
    fn check_port(&self, packet: &Flow) -> Result<(), String> {
        let control = self.control();
        let ports = control.pipeline().ports();
        let of = Field::InPort.get(packet) as u16;
        if of == 0 || ports.iter().any(|port| port.of.0 == of) {
            return Ok(());
        }
        let known: Vec<_> = ports.iter().map(|port| format!("{} {}", port.of.0, port.name)).collect();
        Err(format!("no port {of}: the ports are {}", known.join(", ")))
    }

    /// Traces a packet: its outputs, drop reason and megaflow, and the decisions on the way.
    fn traced(&self, packet: &Flow) -> Traced {
        let control = self.control();
        let done = control.trace(packet.key());
        let mask = done.mask;
        let of_id = |id| control.pipeline().ports().iter().find(|port| port.id == id);
        let outputs = done
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::Output(id) => of_id(*id).map(|port| port.name.clone()),
                _ => None,
            })
            .collect();
        Traced {
            outputs,
            dropped: done.reason.map(|reason| reason.name().into()),
            megaflow: Some(ShownMatch(&Match { value: *packet & mask, mask }).to_string()),
            story: done.story.unwrap_or_default(),
            routed: None,
        }
    }
}
