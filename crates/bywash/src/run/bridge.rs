//! View of a switch: flows, groups, addresses and caches, and changes to them at run time.

use super::instance::mac;
use super::mode::View;
use super::routes::Names;
use crate::api::{FlowCommand, Topic};
use crate::capture::summary;
use crate::flows;
use bywash_flow::control::FlowControl;
use bywash_flow::extract::extract;
use bywash_flow::key::Flow;
use bywash_flow::model::{FlowFilter, Match};
use bywash_flow::ops::Op;
use bywash_flow::syntax::{self, Shown, ShownActions, ShownMatch};
use bywash_router::control::{PortView, Ports};
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// The switch, as the API sees it.
pub struct Bridge {
    pub flows: Arc<Mutex<FlowControl>>,
    pub ports: Arc<Mutex<Ports>>,
    /// Names of the ports, by OpenFlow number less 1; empty where a port has been removed.
    pub names: Names,
}

impl View for Bridge {
    fn ports(&self) -> Vec<PortView> {
        self.ports.lock().expect("ports").ports().collect()
    }

    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Value, String> {
        match topic {
            Topic::Flows => self.flows(filter.unwrap_or_default()),
            Topic::Groups => Ok(self.groups()),
            Topic::Fdb => Ok(self.addresses()),
            Topic::Caches => Ok(self.caches()),
            _ => Err(format!("a switch has no {}", topic.name())),
        }
    }

    fn command(&self, command: FlowCommand, text: &str) -> Result<Value, String> {
        let known = self.names();
        let names = |name: &str| flows::port_number(&known, name);
        match command {
            FlowCommand::Change(verb) => {
                // Parse before locking the tables, which learned addresses from the workers wait for.
                let items = flows::parse(text, verb, &names).map_err(|wrong| wrong.to_string())?;
                Ok(json!({ "changed": flows::carry_out(&mut self.control(), items)? }))
            }
            FlowCommand::Trace => {
                // A description by fields has `=` or is one word; `PORT HEX` has a space and no `=`.
                if text.contains('=') || !text.trim().contains(char::is_whitespace) {
                    let packet = syntax::packet(text.trim(), &names).map_err(|wrong| wrong.to_string())?;
                    return Ok(self.trace(&packet));
                }
                let (port, frame) = crate::trace::parse(text)?;
                let of = names(port).ok_or_else(|| format!("no port `{port}`: there are {}", known.join(", ")))?;
                let mut key = Default::default();
                let layout = extract(&frame, of.0, &mut key);
                layout.ok_or("the frame is shorter than an Ethernet header: the switch drops it (runt)")?;
                let mut told = self.trace(&Flow::from(&key));
                if let Some(story) = told["story"].as_array_mut() {
                    story.insert(0, format!("{port}: received, {} B: {}", frame.len(), summary(&frame)).into());
                }
                Ok(told)
            }
        }
    }
}

impl Bridge {
    fn control(&self) -> MutexGuard<'_, FlowControl> {
        self.flows.lock().expect("flows")
    }

    fn names(&self) -> Vec<String> {
        self.names.lock().expect("names").clone()
    }

    fn flows(&self, filter: &str) -> Result<Value, String> {
        let known = self.names();
        let names = |name: &str| flows::port_number(&known, name);
        let filter = match filter.trim() {
            "" => FlowFilter::default(),
            text => syntax::filter(text, &names).map_err(|wrong| wrong.to_string())?,
        };
        let reports = self.control().flows(&filter);
        let row = reports.iter().map(|report| {
            let spec = &report.rule.spec;
            json!({
                "table": spec.table,
                "priority": spec.priority,
                "cookie": spec.cookie,
                "match": ShownMatch(&spec.matches).to_string(),
                "actions": ShownActions(&spec.actions).to_string(),
                "n_packets": report.packets,
                "n_bytes": report.bytes,
                "duration_s": (report.age.as_secs_f64() * 1000.0).round() / 1000.0,
                "idle_age_s": report.idle.as_secs(),
                "idle_timeout_s": spec.idle_timeout,
                "hard_timeout_s": spec.hard_timeout,
            })
        });
        Ok(row.collect())
    }

    fn groups(&self) -> Value {
        let control = self.control();
        let groups: Vec<String> = control.groups().iter().map(|group| Shown(&group.spec).to_string()).collect();
        let meters = control.meters();
        let meters = meters.iter().map(|meter| {
            let (passed, refused) = (meter.passed.load(Ordering::Relaxed), meter.refused.load(Ordering::Relaxed));
            json!({ "meter": Shown(&meter.spec).to_string(), "passed": passed, "refused": refused })
        });
        json!({ "groups": groups, "meters": meters.collect::<Vec<_>>() })
    }

    fn addresses(&self) -> Value {
        let (list, names) = (self.control().macs(), self.names());
        let row = list.iter().map(|(vlan, address, of, age)| {
            let bytes = address.to_be_bytes();
            let address: [u8; 6] = std::array::from_fn(|at| bytes[at + 2]);
            json!({
                "port": usize::from(of.0).checked_sub(1).and_then(|at| names.get(at)),
                "number": of.0,
                "vlan": vlan,
                "mac": mac(address),
                "age_s": age.as_secs(),
            })
        });
        row.collect()
    }

    fn caches(&self) -> Value {
        let control = self.control();
        let worker = |(id, counters): (usize, &Arc<bywash_flow::stats::CacheCounters>)| {
            let mut row = Map::new();
            row.insert("worker".into(), id.into());
            row.extend(counters.list().into_iter().map(|(name, n)| (name.to_owned(), n.into())));
            Value::Object(row)
        };
        let workers: Vec<Value> = control.counters().enumerate().map(worker).collect();
        json!({ "workers": workers, "flows": control.len(), "addresses_moved": control.moved })
    }

    /// Traces a packet: its outputs, drop reason and megaflow, and the decisions on the way.
    fn trace(&self, packet: &Flow) -> Value {
        let control = self.control();
        let done = control.trace(packet.key());
        let mask = done.mask;
        let of_id = |id| control.pipeline().ports().iter().find(|port| port.id == id);
        let outputs: Vec<&str> = done
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::Output(id) => of_id(*id).map(|port| port.name.as_str()),
                _ => None,
            })
            .collect();
        json!({
            "story": done.story.unwrap_or_default(),
            "outputs": outputs,
            "dropped": done.reason.map(|reason| reason.name()),
            "megaflow": ShownMatch(&Match { value: *packet & mask, mask }).to_string(),
        })
    }
}
