//! `mode = "switch"`: forwarding by flows. The learning bridge is a single flow.

use super::file::FlowFile;
use super::view::Bridge;
use crate::modes::{self, Names, Parts, Setup};
use crate::shared::Shared;
use bywash_config::PortConfig;
use bywash_config::count;
use bywash_engine::{App, PortId};
use bywash_fib::model::Change;
use bywash_flow::app::CacheConfig;
use bywash_flow::control::{BridgeConfig, FlowControl, random_seed};
use bywash_flow::model::OfPort;
use bywash_flow::pipeline::{Mirror as Copies, SwitchPort, Vlans};
use bywash_flow::script::{self as flows, Verb};
use bywash_netlink::Mirror;
use bywash_router::control::{Applied, PortSpec, PortView, Ports};
use bywash_sync::lock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Default flow: the learning bridge.
const BRIDGE: &str = "priority=0 actions=NORMAL";
/// Interval between removals of expired flows and addresses.
const EXPIRE: Duration = Duration::from_secs(1);

/// Control half of the switch.
struct Switching {
    flows: Arc<Mutex<FlowControl>>,
    ports: Arc<Mutex<Ports>>,
    names: Names,
    /// Name of the local port.
    local: Option<String>,
    /// Ports by the engine's port number; `None` if the number is free.
    slots: Vec<Option<Slot>>,
    expired: Instant,
}

/// Port of the switch.
struct Slot {
    config: PortConfig,
    partial_checksums: bool,
    up: bool,
    /// Set once the log says that the interface has an address.
    addressed: bool,
}

impl Switching {
    /// Warns of ports whose interface has an address: the machine may be reached only by it.
    fn warn_of_addresses(&mut self) {
        for port in lock(&self.ports).ports() {
            let slot = self.slots.get_mut(usize::from(port.id.0)).and_then(Option::as_mut);
            let Some(slot) = slot.filter(|slot| slot.config.af_xdp.is_some() && !slot.addressed) else { continue };
            slot.addressed = modes::warn_of_address(&port, "switch");
        }
    }

    fn set_slot(&mut self, id: PortId, slot: Option<Slot>) {
        let at = usize::from(id.0);
        let mut names = lock(&self.names);
        let len = self.slots.len().max(at + 1);
        self.slots.resize_with(len, || None);
        names.resize(len, String::new());
        names[at] = slot.as_ref().map_or_else(String::new, |slot| slot.config.name.clone());
        self.slots[at] = slot;
        set_ports(&mut lock(&self.flows), &self.slots, &names, self.local.as_deref());
    }

    /// Passes the link state of the changed ports to the flow tables. Ports without an interface are always up.
    fn pass_state(&mut self, changed: &[PortId]) {
        let ports = lock(&self.ports);
        let changed: Vec<PortView> = ports.ports().filter(|port| changed.contains(&port.id)).collect();
        drop(ports);
        let mut flows = lock(&self.flows);
        for port in changed {
            let slot = self.slots.get_mut(usize::from(port.id.0)).and_then(Option::as_mut);
            let Some(slot) = slot.filter(|slot| slot.config.interface.is_some()) else { continue };
            slot.up = port.running;
            if let Some(of) = flows.pipeline().of_port(port.id) {
                flows.set_port_up(of, port.running);
            }
        }
    }
}

/// Sets up a switch on the opened ports.
pub fn set_up(setup: &Setup<'_>) -> anyhow::Result<Parts> {
    let config = &setup.config.switch;
    let names: Vec<String> = setup.config.ports.iter().map(|port| port.name.clone()).collect();
    let specs = setup.specs();
    let slot = |(spec, port): (&PortSpec, &PortConfig)| {
        Some(Slot { config: port.clone(), partial_checksums: spec.partial_checksums, up: true, addressed: false })
    };
    let slots: Vec<Option<Slot>> = specs.iter().zip(&setup.config.ports).map(slot).collect();
    let ageing = Duration::from_secs(config.mac_ageing_s.into());
    let bridge = BridgeConfig { macs: config.macs, ageing, vlan_limit: config.vlan_limit, ..BridgeConfig::default() };
    let mut control = FlowControl::new(setup.domain, vec![], bridge);
    if let Some(flows) = setup.driver.and_then(|driver| driver.program.flows()) {
        control.drive(flows);
    }
    let local = config.local.clone();
    set_ports(&mut control, &slots, &names, local.as_deref());
    let file = config.flows.clone().map(FlowFile::new);
    first_flows(&mut control, file.as_ref(), &|name| flows::port_number(&names, local.as_deref(), name))?;
    let caches = CacheConfig {
        exact: config.exact,
        insert_one_in: config.exact_insert,
        megaflows: config.megaflows,
        idle_s: config.megaflow_idle_s.into(),
    };
    let apps = (0..setup.workers).map(|_| Box::new(control.worker(caches, random_seed())) as Box<dyn App>).collect();
    let names: Names = Arc::new(Mutex::new(names));
    let (flows, ports) = (Arc::new(Mutex::new(control)), Arc::new(Mutex::new(Ports::new(specs))));
    let view = Arc::new(Bridge {
        flows: flows.clone(),
        ports: ports.clone(),
        names: names.clone(),
        local: local.clone(),
        file,
    });
    let control = Box::new(Switching { flows, ports, names, local, slots, expired: Instant::now() });
    Ok(Parts { control, view, apps, links: vec![] })
}

/// Makes the workers use these ports and no others.
fn set_ports(control: &mut FlowControl, slots: &[Option<Slot>], names: &[String], local: Option<&str>) {
    let there = || slots.iter().enumerate().filter_map(|(at, slot)| Some((at, slot.as_ref()?)));
    let ports = there().map(|(at, Slot { config, partial_checksums, up, .. })| SwitchPort {
        of: if local == Some(&config.name) { OfPort::LOCAL } else { OfPort(at as u16 + 1) },
        id: PortId(at as u16),
        name: config.name.clone(),
        vlans: match (config.bridge.tag, &config.bridge.trunks) {
            (Some(tag), _) => Vlans::Access(tag),
            (_, Some(trunks)) => Vlans::Trunk(trunks.clone()),
            _ => Vlans::All,
        },
        flood: config.bridge.flood,
        macs: config.bridge.macs.set().copied(),
        up: *up,
        partial_checksums: *partial_checksums,
    });
    let limit = |slot: &Option<Slot>| slot.as_ref().map_or(0, |slot| slot.config.bridge.storm);
    let limits: Vec<u32> = slots.iter().map(limit).collect();
    let of_name = |name: &str| flows::port_number(names, local, name);
    let mirrors = copies(there().map(|(_, slot)| &slot.config), &of_name);
    control.set_ports(ports.collect(), &limits, mirrors);
}

/// Returns one mirror for each port with a mirror configured.
fn copies<'a>(ports: impl Iterator<Item = &'a PortConfig>, of_name: &dyn Fn(&str) -> Option<OfPort>) -> Vec<Copies> {
    let copies = ports.filter_map(|port| {
        let (own, to) = (of_name(&port.name)?, port.bridge.mirror.as_ref()?);
        let output = of_name(to);
        Some(Copies { name: port.name.clone(), sources: vec![own], destinations: vec![own], output })
    });
    copies.collect()
}

/// Loads the first flows: those of the file, or the learning bridge.
fn first_flows(
    control: &mut FlowControl,
    file: Option<&FlowFile>,
    names: &dyn Fn(&str) -> Option<OfPort>,
) -> anyhow::Result<()> {
    let Some(file) = file else {
        let bridge = flows::parse(BRIDGE, Verb::Add, names).map_err(|wrong| anyhow::anyhow!("{wrong}"))?;
        flows::carry_out(control, bridge).map_err(|why| anyhow::anyhow!("{why}"))?;
        tracing::info!("1 flow: the learning bridge");
        return Ok(());
    };
    if let Some(text) = file.changed()? {
        file.load(control, &text, names)?;
    }
    tracing::info!("{}", count(control.len(), "flow"));
    Ok(())
}

impl modes::Control for Switching {
    fn apply(&mut self, changes: &[Change]) -> Applied {
        let applied = lock(&self.ports).apply(changes);
        if changes.iter().any(|change| matches!(change, Change::Address(_))) {
            self.warn_of_addresses();
        }
        self.pass_state(&applied.ports_changed);
        applied
    }

    fn set_open(&mut self, id: PortId, open: bool) {
        lock(&self.ports).set_open(id, open);
        self.pass_state(&[id]);
    }

    fn ports_can_change(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn add_port(&mut self, spec: PortSpec, config: &PortConfig) {
        let (id, partial_checksums) = (spec.id, spec.partial_checksums);
        let mut ports = lock(&self.ports);
        ports.add_port(spec);
        let running = ports.ports().any(|port| port.id == id && port.running);
        drop(ports);
        let up = config.interface.is_none() || running;
        self.set_slot(id, Some(Slot { config: config.clone(), partial_checksums, up, addressed: false }));
    }

    fn remove_port(&mut self, id: PortId) {
        lock(&self.ports).remove_port(id);
        self.set_slot(id, None);
    }

    fn tick(&mut self, _shared: &Shared, _mirror: &Mirror) -> bool {
        let mut flows = lock(&self.flows);
        let learned = flows.poll();
        if self.expired.elapsed() >= EXPIRE {
            self.expired = Instant::now();
            flows.expire();
        }
        learned
    }
}
