//! `mode = "cmts"`: the downstream of a cable modem termination system. Each service group has two workers, an upper
//! and a lower MAC, joined by a ring.

use super::modems::Modems;
use super::view::{GroupView, Headend};
use crate::modes::{self, Parts, Setup};
use crate::shared::Shared;
use anyhow::Context as _;
use bywash_config::count;
use bywash_config::{Aqm, CmtsConfig, Config, DepiConfig, FlowConfig, GroupConfig};
use bywash_docsis::classify::Rule;
use bywash_docsis::cpe::{CpeLimits, Learning};
use bywash_docsis::depi::Depi;
use bywash_docsis::group::{FlowKind, Group, ModemKind};
use bywash_docsis::keys::Rollover;
use bywash_docsis::lower::{Lower, LowerConfig};
use bywash_docsis::police::Limits;
use bywash_docsis::protect::Protection;
use bywash_docsis::queue::QueueLimits;
use bywash_docsis::upper::Upper;
use bywash_engine::{App, PortId};
use bywash_fib::model::Change;
use bywash_netlink::Mirror;
use bywash_router::control::{Applied, Ports};
use bywash_sync::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Control half: follows links, rolls keys over and learns addresses; everything else stays as configured.
struct Downstream {
    ports: Arc<Mutex<Ports>>,
    modems: Vec<Arc<Modems>>,
    /// By port number, whether the log says that the interface has an address; set for ports without a program.
    addressed: Vec<bool>,
}

/// Sets up a downstream on the opened ports.
pub fn set_up(setup: &Setup<'_>) -> anyhow::Result<Parts> {
    let config = setup.config;
    let specs = setup.specs();
    let arena = setup.pools.arena();
    // The ring between an upper and its lower MAC takes the port number after the configured ports.
    let ring = PortId(config.ports.len() as u16);
    let (mut apps, mut links, mut groups) = (vec![], vec![], vec![]);
    for (number, group) in config.groups.iter().enumerate() {
        let id = |name: &str| {
            let at = config.ports.iter().position(|port| port.name == name);
            at.map(|at| PortId(at as u16)).with_context(|| format!("group {}: unknown port `{name}`", number + 1))
        };
        let (input, output) = (id(&group.input)?, id(&group.output)?);
        let in_group = || format!("group {}", number + 1);
        let all = group.all_modems(config).with_context(in_group)?;
        let kinds = all.kinds.iter().map(|flows| modem_kind(&config.flows, flows)).collect();
        let of = Arc::new(Group::new(kinds, all.modems.clone())?);
        let mut rollover = Rollover::new(of.clone());
        let limits =
            CpeLimits { of_modem: config.cmts.cpes, ageing: Duration::from_secs(config.cmts.cpe_ageing_s.into()) };
        let (learning, observer) = Learning::new(of.clone(), limits, setup.domain);
        let partial = specs[usize::from(input.0)].partial_checksums;
        let config = lower_config(config, group);
        let lower = Lower::new(of.clone(), arena.clone(), &config, ring, output).with_context(in_group)?;
        let lower = lower.on_account_of(input).keyed_by(&mut rollover).observed_by(observer);
        let stats = lower.stats();
        let upper = Upper::new(of.clone(), arena.clone(), ring);
        let upper = upper.assisting(&config, stats.clone()).with_context(in_group)?.keyed_by(&mut rollover);
        let modems = count(of.modems().len(), "modem");
        tracing::info!("group {}: {modems}, sealed by {}", number + 1, stats.crypto);
        apps.push(Box::new(upper.completing(partial).with_cpes(learning.table())) as Box<dyn App>);
        apps.push(Box::new(lower) as Box<dyn App>);
        links.push((2 * number, 2 * number + 1));
        let modems = Arc::new(Modems::new(of.clone(), rollover, learning, all));
        groups.push(GroupView { group: of, stats, channels: config.channels, modems });
    }
    let ports = Arc::new(Mutex::new(Ports::new(specs)));
    let modems = groups.iter().map(|group| group.modems.clone()).collect();
    let view = Arc::new(Headend { ports: ports.clone(), groups: groups.into() });
    let addressed = config.ports.iter().map(|port| port.af_xdp.is_none()).collect();
    Ok(Parts { control: Box::new(Downstream { ports, modems, addressed }), view, apps, links })
}

impl modes::Control for Downstream {
    fn apply(&mut self, changes: &[Change]) -> Applied {
        let mut ports = lock(&self.ports);
        let applied = ports.apply(changes);
        if changes.iter().any(|change| matches!(change, Change::Address(_))) {
            for port in ports.ports() {
                if let Some(addressed) = self.addressed.get_mut(usize::from(port.id.0)).filter(|warned| !**warned) {
                    *addressed = modes::warn_of_address(&port, "cable downstream");
                }
            }
        }
        applied
    }

    fn set_open(&mut self, id: PortId, open: bool) {
        lock(&self.ports).set_open(id, open);
    }

    fn tick(&mut self, _shared: &Shared, _mirror: &Mirror) -> bool {
        self.modems.iter().filter(|modems| modems.tick()).count() > 0
    }
}

fn lower_config(config: &Config, group: &GroupConfig) -> LowerConfig {
    let CmtsConfig { crc, cipher, crypto, assist, queue, queues, overflow, channels, .. } = &config.cmts;
    LowerConfig {
        protection: Protection { crc: *crc, cipher: *cipher, ..Protection::default() },
        crypto: *crypto,
        assist: *assist,
        queues: QueueLimits { flow: *queue, total: *queues, overflow: *overflow },
        channels: channels.clone(),
        bits: config.best_bits(),
        depi: group.depi.as_ref().map(depi),
    }
}

fn depi(config: &DepiConfig) -> Depi {
    Depi {
        source_mac: config.local_mac.0,
        destination_mac: config.remote_mac.0,
        source: config.local,
        destination: config.remote,
        session: config.session,
        dscp: config.dscp,
        mtu: config.mtu,
    }
}

/// Returns the kind of modems with these of the configured service flows, or with one flow for all packets if none is
/// configured.
fn modem_kind(flows: &[FlowConfig], of: &[usize]) -> ModemKind {
    let filters = flows.iter().filter(|flow| flow.drop).map(rule).collect();
    let kinds = of.iter().map(|at| &flows[*at]).enumerate().map(|(at, flow)| FlowKind {
        name: flow.name.clone(),
        priority: flow.priority,
        limits: Limits { sustained: flow.rate, burst: flow.burst, peak: flow.peak },
        shape: flow.shape,
        reserved: flow.reserved,
        latency_ms: (flow.aqm == Aqm::Pie).then_some(flow.latency_ms),
        // The first flow takes the packets that match no other, and so needs no rule.
        rules: if at == 0 { vec![] } else { vec![rule(flow)] },
    });
    let mut kinds: Vec<FlowKind> = kinds.collect();
    if kinds.is_empty() {
        kinds.push(FlowKind { name: "all".into(), ..FlowKind::default() });
    }
    ModemKind { flows: kinds, filters }
}

fn rule(flow: &FlowConfig) -> Rule {
    let mut rule = Rule::default();
    if let Some(prefix) = &flow.source {
        rule = rule.source(prefix.addr, prefix.len);
    }
    if let Some(prefix) = &flow.destination {
        rule = rule.destination(prefix.addr, prefix.len);
    }
    if let Some(proto) = flow.proto {
        rule = rule.proto(proto);
    }
    if let Some(range) = &flow.source_port {
        rule = rule.source_port(range.0..=range.1);
    }
    if let Some(range) = &flow.destination_port {
        rule = rule.destination_port(range.0..=range.1);
    }
    if !flow.dscp.is_empty() {
        rule = rule.dscp(flow.dscp.iter().copied());
    }
    rule
}
