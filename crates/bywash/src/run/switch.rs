//! `mode = "switch"`: forwarding by flows, of which the learning bridge is one.

use super::bridge::Bridge;
use super::control::Shared;
use super::mode::{self, Parts, Setup};
use crate::config::{PortConfig, SwitchConfig};
use crate::flows::{self, Verb};
use anyhow::Context as _;
use bywash_engine::App;
use bywash_flow::app::CacheConfig;
use bywash_flow::control::{BridgeConfig, FlowControl, random_seed};
use bywash_flow::pipeline::{Mirror as Copies, SwitchPort, Vlans};
use bywash_mirror::Mirror;
use bywash_route::model::Change;
use bywash_router::control::{Applied, PortView, Ports};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a switch does with every frame when it is not told otherwise.
const BRIDGE: &str = "priority=0 actions=NORMAL";
/// How often what has run out of time is looked for.
const EXPIRE: Duration = Duration::from_secs(1);

/// The control half.
struct Switching {
    flows: Arc<Mutex<FlowControl>>,
    ports: Arc<Mutex<Ports>>,
    /// Ports with an interface, which works or does not.
    interfaces: Vec<bool>,
    expired: Instant,
}

/// Makes a switch of what is opened.
pub fn set_up(setup: &Setup<'_>) -> anyhow::Result<Parts> {
    let config = &setup.config.switch;
    let names: Vec<String> = setup.config.ports.iter().map(|port| port.name.clone()).collect();
    let specs = setup.specs();
    let ports = specs.iter().zip(&setup.config.ports).map(|(spec, port)| SwitchPort {
        of: flows::port_number(&names, &port.name).expect("a port's own name"),
        id: spec.id,
        name: port.name.clone(),
        vlans: match (port.bridge.tag, &port.bridge.trunks) {
            (Some(tag), _) => Vlans::Access(tag),
            (_, Some(trunks)) => Vlans::Trunk(trunks.clone()),
            _ => Vlans::All,
        },
        flood: port.bridge.flood,
        up: true,
        partial_checksums: spec.partial_checksums,
    });
    let ageing = Duration::from_secs(config.mac_ageing_s.into());
    let bridge = BridgeConfig { macs: config.macs, ageing, ..BridgeConfig::default() };
    let mut control = FlowControl::new(setup.domain, ports.collect(), bridge);
    control.set_storm_limits(&setup.config.ports.iter().map(|port| port.bridge.storm).collect::<Vec<_>>());
    control.set_mirrors(copies(&setup.config.ports, &names));
    first_flows(&mut control, config, &names)?;
    let caches = CacheConfig {
        exact: config.exact,
        insert_one_in: config.exact_insert,
        megaflows: config.megaflows,
        idle_s: config.megaflow_idle_s.into(),
    };
    let apps = (0..setup.workers).map(|_| Box::new(control.worker(caches, random_seed())) as Box<dyn App>).collect();
    let interfaces = setup.config.ports.iter().map(|port| port.interface.is_some()).collect();
    let (flows, ports) = (Arc::new(Mutex::new(control)), Arc::new(Mutex::new(Ports::new(specs))));
    let view = Arc::new(Bridge { flows: flows.clone(), ports: ports.clone(), names });
    let control = Box::new(Switching { flows, ports, interfaces, expired: Instant::now() });
    Ok(Parts { control, view, apps, links: vec![] })
}

/// One mirror for each port that has copies.
fn copies(ports: &[PortConfig], names: &[String]) -> Vec<Copies> {
    let copies = ports.iter().filter_map(|port| {
        let (own, to) = (flows::port_number(names, &port.name)?, port.bridge.mirror.as_ref()?);
        let output = flows::port_number(names, to);
        Some(Copies { name: port.name.clone(), sources: vec![own], destinations: vec![own], output })
    });
    copies.collect()
}

fn first_flows(control: &mut FlowControl, config: &SwitchConfig, names: &[String]) -> anyhow::Result<()> {
    let (from, text) = match &config.flows {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            (file.display().to_string(), text)
        }
        None => (String::new(), BRIDGE.into()),
    };
    let of_name = |name: &str| flows::port_number(names, name);
    let items = flows::parse(&text, Verb::Add, &of_name)
        .map_err(|wrong| anyhow::anyhow!("{from}:{}:{}: {}", wrong.line, wrong.error.column, wrong.error.what))?;
    flows::carry_out(control, items).map_err(|why| anyhow::anyhow!("{from}: {why}"))?;
    tracing::info!("{} flows{}", control.len(), if from.is_empty() { ": the learning bridge" } else { "" });
    Ok(())
}

impl mode::Control for Switching {
    fn apply(&mut self, changes: &[Change]) -> Applied {
        let mut ports = self.ports.lock().expect("ports");
        let applied = ports.apply(changes);
        let changed: Vec<PortView> = ports.ports().filter(|port| applied.ports_changed.contains(&port.id)).collect();
        drop(ports);
        let mut flows = self.flows.lock().expect("flows");
        for port in changed.iter().filter(|port| self.interfaces.get(usize::from(port.id.0)) == Some(&true)) {
            if let Some(of) = flows.pipeline().of_port(port.id) {
                flows.set_port_up(of, port.running);
            }
        }
        applied
    }

    fn tick(&mut self, _shared: &Shared, _mirror: &Mirror) -> bool {
        let mut flows = self.flows.lock().expect("flows");
        let learned = flows.poll();
        if self.expired.elapsed() >= EXPIRE {
            self.expired = Instant::now();
            flows.expire();
        }
        learned
    }
}
