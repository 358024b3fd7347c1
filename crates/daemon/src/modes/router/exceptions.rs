//! Kernel policies in a running router: every reading of the watcher is judged, applied, logged and shown.
//!
//! The watcher's thread closes the gates as soon as the kernel announces a change: nothing is forwarded until the
//! control loop has applied the next reading. Policies by destination or egress interface go into the tables first;
//! then the gates open as far as the verdict allows.

use super::flows::Flows;
use crate::ports::forwards;
use crate::shared::Shared;
use anyhow::Context;
use bywash_api as api;
use bywash_config::KernelConfig;
use bywash_engine::{PORTS, PortId};
use bywash_exceptions::{
    Effect, Foreign, Keeper, Kept, Kind, MISNAMED, PortLink, Programs, Reading, Respect, SOCKETS, Scope, Verdict,
    Watcher, judge,
};
use bywash_fib::model::{Families, HashPolicy, Rules, SourceCheck};
use bywash_port::af_xdp::{self, TunnelPolicy, XdpBridging, XdpGate, XdpSending, XdpVlan};
use bywash_port::broker;
use bywash_router::control::{Control, Entrance, MasterSpec, Policies, PortEntry, PortView, TunnelSpec};
use bywash_router::gates::{Gate, Gates};
use bywash_router::tunnel::MemberPort;
use bywash_router::vlan::{UNTAGGED, VLANS};
use bywash_sync::lock;
use bywash_wire::ethernet::TAG_LEN;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for the first reading at startup. After it, every packet is left to the kernel until a reading arrives.
const FIRST: Duration = Duration::from_secs(5);

/// Reasons why packets are left to the kernel; shared with the API.
pub type KeptReasons = Arc<Mutex<Vec<KeptReason>>>;

/// Reason why packets are left to the kernel.
#[derive(Clone, Debug)]
pub struct KeptReason {
    kept: Kept,
    /// Set if established flows are forwarded nevertheless.
    but_flows: bool,
    /// Objects of other reasons for which established flows are left to the kernel, too.
    held_by: Vec<String>,
}

/// Key of [`Guard::refused`] for the tunnels, which no port has.
const TUNNELS: u16 = u16::MAX;

/// Exception to the packets that are left to the kernel.
const BUT_FLOWS: &str = " except those of established flows";

/// Follows the kernel's policies and applies them.
pub struct Guard {
    watcher: Watcher,
    gates: Gates,
    program: Option<af_xdp::XdpDatapath>,
    ports: Vec<PortLink>,
    respect: Respect,
    /// Newest reading, judged again when ports or configuration change.
    reading: Option<Reading>,
    verdict: Verdict,
    failed: bool,
    reasons: KeptReasons,
    /// Numbers of the ports for which the verdict was logged.
    known: BTreeSet<u16>,
    /// Flows that pass gates which are closed only because of netfilter; `None` without a table of flows.
    flows: Option<Flows>,
    /// Number of the newest reading, and a flag that is set if its flows pass the gates.
    number: u64,
    passing: bool,
    /// Bridges of the VXLANs that are members of one, by number.
    bridged: BTreeMap<u16, u16>,
    /// Errors of ports whose programs could not be given their newest configuration.
    refused: BTreeMap<u16, String>,
}

impl Guard {
    /// Closes the gates and starts to follow the kernel's policies.
    pub fn start(
        ports: Vec<PortLink>,
        program: Option<af_xdp::XdpDatapath>,
        gates: Gates,
        config: &KernelConfig,
        flows: Option<Flows>,
    ) -> anyhow::Result<Self> {
        let (all, driver) = (gates.clone(), program.clone());
        let close = move || {
            all.close_all();
            driver.iter().for_each(af_xdp::XdpDatapath::close);
        };
        close();
        let (others, own) = (program.clone(), program.is_some());
        let on_interface = move |index| match &others {
            Some(driver) if own => driver.foreign(index).map(|all| all.into_iter().map(foreign).collect()),
            _ => Ok(vec![]),
        };
        let netns = File::open("/proc/thread-self/ns/net").context("cannot open the network namespace")?;
        let on_sockets = move || af_xdp::sk_lookup_programs(netns.as_fd());
        let programs = Programs { on_interface: Box::new(on_interface), on_sockets: Box::new(on_sockets) };
        let open = |path: &Path| broker::open(path).map(OwnedFd::from);
        let watcher = Watcher::start(ports.clone(), Keeper::new(close), programs, open)?;
        Ok(Self {
            watcher,
            gates,
            program,
            ports,
            respect: respect(config),
            reading: None,
            verdict: Verdict::default(),
            failed: false,
            reasons: KeptReasons::default(),
            known: BTreeSet::new(),
            flows,
            number: 0,
            passing: false,
            bridged: BTreeMap::new(),
            refused: BTreeMap::new(),
        })
    }

    /// Returns the reasons as the API shows them.
    pub fn reasons(&self) -> KeptReasons {
        self.reasons.clone()
    }

    /// Returns the keeper of the gates.
    pub fn keeper(&self) -> Keeper {
        self.watcher.keeper().clone()
    }

    /// Waits until it is known which packets may be forwarded, for at most `FIRST`.
    pub fn begin(&mut self, control: &Mutex<Control>, shared: &Shared) {
        let until = Instant::now() + FIRST;
        while !self.watcher.keeper().is_open() && !self.failed {
            match self.watcher.readings().recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(reading) => self.apply_reading(reading, control, shared),
                Err(_) => {
                    tracing::warn!(
                        "the kernel's policies could not be read within {} s: all packets are left to the kernel until \
                         they have been read",
                        FIRST.as_secs()
                    );
                    return;
                }
            }
        }
    }

    /// Applies the newest reading since the last call, if there is one.
    pub fn tick(&mut self, control: &Mutex<Control>, shared: &Shared) {
        let mut newest = None;
        loop {
            match self.watcher.readings().try_recv() {
                Ok(reading) => newest = Some(reading),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if self.failed => return,
                Err(TryRecvError::Disconnected) => {
                    tracing::error!(
                        "the kernel's policies can no longer be followed: all packets are left to the kernel until \
                         Bywash is restarted"
                    );
                    self.failed = true;
                    self.watcher.keeper().close();
                    return;
                }
            }
        }
        if let Some(reading) = newest {
            self.apply_reading(reading, control, shared);
        } else if self.watcher.keeper().is_open() {
            self.let_flows_pass(control, shared);
            // Configure programs that were attached since.
            self.set_programs(control, shared);
        }
    }

    /// Closes the gates until the policies have been read again.
    pub fn close(&mut self) {
        self.watcher.set_ports(self.ports.clone());
    }

    /// Sets the ports. If they differ, the gates close until the policies that concern them have been read.
    pub fn set_ports(&mut self, ports: Vec<PortLink>) {
        let changed = ports != self.ports;
        let before = std::mem::replace(&mut self.ports, ports);
        // Interfaces above the ports come and go with containers, and matter for one scope alone.
        let relays = |reading: &Reading| reading.effects.iter().any(|effect| matches!(effect.scope, Scope::Relayed(_)));
        let same = |(one, other): (&PortLink, &PortLink)| one.is_same_but_for_uppers(other);
        let same = before.len() == self.ports.len() && before.iter().zip(&self.ports).all(same);
        if changed && (!same || self.reading.as_ref().is_none_or(relays)) {
            self.watcher.set_ports(self.ports.clone());
        }
    }

    /// Applies the `[kernel]` configuration to the newest reading.
    pub fn set_respect(&mut self, config: &KernelConfig, control: &Mutex<Control>, shared: &Shared) {
        self.respect = respect(config);
        if let Some(reading) = self.reading.take() {
            self.apply_reading(reading, control, shared);
        }
    }

    /// Records that routes have changed.
    pub fn routes_changed(&self) {
        self.flows.iter().for_each(Flows::routes_changed);
    }

    fn apply_reading(&mut self, reading: Reading, control: &Mutex<Control>, shared: &Shared) {
        for xdp in shared.ports().values_mut().filter_map(|slot| slot.xdp.as_mut()) {
            if let Err(why) = xdp.set_kernel_forwards(forwards(&xdp.interface)) {
                tracing::error!("{why:#}");
            }
        }
        let mut verdict = judge(&reading, &self.ports, &self.respect);
        if self.flows.is_none() {
            verdict.kept.retain(|kept| !matches!(kept.effect.scope, Scope::Flows(_)));
        }
        let number = reading.number;
        self.reading = Some(reading);
        let settings = &verdict.settings;
        let check = |port: &PortLink| Some((PortId(port.id), *settings.source_check.get(&port.index)?));
        let policies = Policies {
            prefixes: verdict.prefixes.clone(),
            egress: verdict.egress.iter().map(|(index, families)| (*index, *families)).collect(),
            mtu6: settings.mtu6.clone(),
            source_check: self.ports.iter().filter_map(check).collect(),
            tunnels: verdict.tunnels.iter().copied().map(PortId).collect(),
            masqueraded: verdict.masqueraded.iter().copied().map(PortId).collect(),
            translating: verdict.translating,
            outer_passes: verdict.outer_passes,
            hash4: settings.hash4,
            hash6: settings.hash6,
            rules: verdict.rules.iter().map(|(port, rules)| (PortId(*port), rules.clone())).collect(),
        };
        lock(control).set_policies(&policies);
        self.log(&verdict);
        self.verdict = verdict;
        (self.number, self.passing) = (number, false);
        if let Some(flows) = &mut self.flows {
            flows.judge(&self.ports, &self.verdict);
        }
        self.open_gates(control, shared);
    }

    /// Opens the gates as far as the newest reading allows.
    fn open_gates(&mut self, control: &Mutex<Control>, shared: &Shared) {
        self.set_programs(control, shared);
        let (gates, program) = (&self.gates, &self.program);
        self.watcher.keeper().open(self.number, || {
            // The gates of unused numbers stay closed for the next interface that gets one.
            for number in 0..(PORTS + VLANS) as u16 {
                gates.set(PortId(number), self.gate(number));
            }
            program.iter().for_each(af_xdp::XdpDatapath::open);
        });
    }

    /// Lets the packets of flows pass once all flows have been judged by the rules of the newest reading.
    fn let_flows_pass(&mut self, control: &Mutex<Control>, shared: &Shared) {
        let passing = self.flows.as_ref().is_some_and(Flows::is_ready);
        if std::mem::replace(&mut self.passing, passing) != passing {
            self.open_gates(control, shared);
        }
    }

    /// Returns the gate that a port should have now.
    fn gate(&self, port: u16) -> Gate {
        // The packets of a VXLAN in a bridge have the gate of the bridge. Its own is for the frames that the bridge
        // forwards to other members.
        if let Some(bridge) = self.bridged.get(&port) {
            return if self.verdict.bridging.contains(bridge) { Gate::default() } else { Gate::CLOSED };
        }
        let gate = self.verdict.gates.get(&port).copied().unwrap_or(Gate::CLOSED);
        if self.passing { gate } else { Gate { flows: Families::NONE, ..gate } }
    }

    /// Writes the gates of the ports and the kernel settings into the programs' configurations.
    fn set_programs(&mut self, control: &Mutex<Control>, shared: &Shared) {
        let control = lock(control);
        let masters: BTreeMap<u32, u16> = control.masters().map(|(view, spec)| (spec.index, view.id.0)).collect();
        let bridged = |(view, spec): (PortView, &TunnelSpec)| Some((view.id.0, *masters.get(&spec.bridge?.index)?));
        self.bridged = control.tunnels().filter_map(bridged).collect();
        let settings = &self.verdict.settings;
        let entries = control.entries();
        // Workers would punt the packets of the others, one by one.
        let takes = |Entrance { id, mac, link, members, learns }: Entrance| {
            let (gate, passes) = (self.gate(id.0), self.verdict.outer_passes);
            let open = [!gate.closed.v4, !gate.closed.v6];
            let flows = [gate.flows.v4 || open[0], gate.flows.v6 || open[1]].map(|flows| passes && flows);
            let members = if self.verdict.bridging.contains(&id.0) { members } else { 0 };
            TunnelPolicy { number: id.0, mac, link: link.map(|link| link.0), open, flows, members, passes, learns }
        };
        let ends = control.tunnels_by_end().into_iter().map(|(end, of)| (end, takes(of))).collect();
        let failed = self.program.as_ref().and_then(|program| program.set_tunnels(&ends).err());
        let failed = failed.map(|e| format!("packets of some tunnels are left to the kernel: {e}"));
        note(&mut self.refused, TUNNELS, failed);
        if let Some(program) = &self.program {
            program.set_bridge_tags(control.masters().filter_map(|(view, of)| bridge_tag(view.id, of)).collect());
        }
        let views: BTreeMap<u16, PortView> = control.ports().map(|view| (view.id.0, view)).collect();
        let mut ports = shared.ports();
        let targets: BTreeMap<PortId, XdpSending> =
            ports.iter().filter_map(|(at, slot)| Some((PortId(*at as u16), slot.xdp.as_ref()?.sending()))).collect();
        for (at, xdp) in ports.iter_mut().filter_map(|(at, slot)| Some((*at as u16, slot.xdp.as_mut()?))) {
            let Some(view) = views.get(&at) else { continue };
            let number = view.number.0;
            let rules = self.verdict.rules.contains_key(&number);
            let sees_decrypted = self.verdict.decrypts && (xdp.program.has_tc() || !xdp.program.is_native());
            let gate_of = |number: u16| program_gate(if sees_decrypted { Gate::CLOSED } else { self.gate(number) });
            // For the kernel, packets of a member are received on the bond or bridge, which is not a port of the
            // program.
            let link = self.ports.iter().find(|port| port.id == number);
            let bonded = link.is_some_and(|link| !link.lower_devices.is_empty());
            let filters = control.bridge_filters(view.id);
            // Packets that leave by a member itself, instead of the bond or bridge, have policies that are not among
            // these.
            let kept = match self.verdict.egress.get(&xdp.index()) {
                _ if bonded || number != at || filters.is_some() => Families::BOTH,
                kept => kept.copied().unwrap_or_default(),
            };
            let target = xdp.sending();
            let (may_bridge, may_hand_over, native) =
                (xdp.bridges(), xdp.hands_over_bridged(), xdp.program.is_native());
            let bridges = |number: PortId| self.verdict.bridging.contains(&number.0);
            let room = xdp.room;
            let forwarded = |number: PortId, tag: [u8; 4]| {
                let between = match may_bridge && bridges(number) {
                    true => bridging(&control.bridged_to(number, view.id), &targets, native),
                    false => XdpBridging::default(),
                };
                let through = (may_hand_over && bridges(number)).then(|| control.bridged_through(number, view.id));
                let held = room.saturating_sub(if tag == UNTAGGED { 0 } else { TAG_LEN });
                XdpBridging { through: through.flatten().unwrap_or(0).min(held as u32), ..between }
            };
            let own = forwarded(view.number, UNTAGGED);
            let updated = xdp.update_config(|config| {
                config.master = (number != at).then_some(number);
                config.bridged = filters.is_some();
                config.filters = filters == Some(true);
                config.mac = view.mac.unwrap_or(config.mac);
                config.gate = gate_of(number);
                config.source_check = rp_filter(control.source_check(view.number));
                config.l3_hash4 = settings.hash4 == HashPolicy::L3;
                config.l3_hash6 = settings.hash6 == HashPolicy::L3;
                config.rules = rules;
                // The kernel's answer includes the IPv6 routes that rules suppress (fib6_rule_suppress).
                let suppressed = self.verdict.rules.get(&number).is_some_and(Rules::suppress6);
                config.fib_lookup = rules && !bonded && !control.has_route_mtu() && !suppressed;
                config.fib_cache = rules && control.routes_by_addresses();
                config.sending = XdpSending { kernel_only4: kept.v4, kernel_only6: kept.v6, ..target };
                config.bridging = own;
            });
            let vlan = |PortEntry { view, entry, tag, .. }: &PortEntry| {
                let (id, entry, tag, mac) = (view.id.0, entry.0, *tag, view.mac?);
                let max_frame = xdp.longest(view.mtu?, tag != UNTAGGED);
                let gate = gate_of(id);
                let source_check = rp_filter(control.source_check(view.id));
                let rules = self.verdict.rules.contains_key(&id);
                let bridging = forwarded(view.id, tag);
                Some(XdpVlan { id, entry, tag, mac, max_frame, gate, source_check, rules, bridging })
            };
            let of_port: Vec<XdpVlan> = entries.iter().filter(|of| of.port.0 == at).filter_map(vlan).collect();
            let done = updated.and_then(|()| Ok(xdp.program.set_vlans(of_port)?));
            note(&mut self.refused, at, done.err().map(|e| format!("{e:#}")));
        }
        self.program.iter().for_each(af_xdp::XdpDatapath::resume_members);
    }

    /// Logs new reasons and those that no longer apply, for the ports that exist before and after. A new port is named
    /// if the reason does not hold for all ports.
    fn log(&mut self, verdict: &Verdict) {
        let now: BTreeSet<u16> = self.ports.iter().map(|port| port.id).collect();
        let before = std::mem::replace(&mut self.known, now.clone());
        let same = |kept: &&Kept, of: &Kept| kept.effect == of.effect && kept.ignored == of.ignored;
        let concerned = |verdict: &Verdict, of: &Kept| -> BTreeSet<u16> {
            verdict.kept.iter().filter(|kept| same(kept, of)).flat_map(|kept| kept.ports.iter().copied()).collect()
        };
        let all = |ports: &BTreeSet<u16>, of: &BTreeSet<u16>| !of.is_empty() && of.is_subset(ports);
        // Objects that established flows pass, by the names of the ports: there is nothing to change.
        let mut stateful = BTreeMap::new();
        for kept in &verdict.kept {
            let (had, has) = (concerned(&self.verdict, kept), concerned(verdict, kept));
            if (all(&had, &before) && all(&has, &now)) || kept.ports.iter().all(|port| had.contains(port)) {
                continue;
            }
            let ports = self.names(kept.ports.iter().filter(|port| !had.contains(port)));
            let Kept { effect, ignored, .. } = kept;
            if *ignored {
                tracing::warn!(
                    "{ports}: {} is IGNORED, as configured ([kernel] {} = \"ignore\"): {}",
                    effect.object,
                    effect.kind.name(),
                    effect.reason
                );
            } else if self.flows.is_some() && divided(kept, verdict).iter().all(|(_, but_flows)| *but_flows) {
                let objects = stateful.entry(ports).or_insert_with(Vec::new);
                if !objects.contains(&effect.object.as_str()) {
                    objects.push(&effect.object);
                }
            } else {
                tracing::warn!(
                    "{ports}: {} are left to the kernel: {}: {}; see `bywash show placement`",
                    packets(&effect.scope),
                    effect.object,
                    effect.reason
                );
            }
        }
        for (ports, objects) in stateful {
            tracing::info!(
                "{ports}: new connections and fragments go through the kernel's rules ({}); established flows bypass \
                 them if the rules accept all their packets: see `bywash show firewall`",
                objects.join(", ")
            );
        }
        let mut ended: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for gone in &self.verdict.kept {
            let has = concerned(verdict, gone);
            let ports: Vec<_> = gone.ports.iter().filter(|port| now.contains(port) && !has.contains(port)).collect();
            if !ports.is_empty() {
                let objects = ended.entry(self.names(ports.into_iter())).or_default();
                if !objects.contains(&gone.effect.object.as_str()) {
                    objects.push(&gone.effect.object);
                }
            }
        }
        for (ports, objects) in ended {
            tracing::info!("{ports}: packets are no longer left to the kernel for {}", objects.join(", "));
        }
        let shown = |(kept, but_flows): (Kept, bool)| {
            // Reasons of a VLAN are shown with the ports that carry it, and those of a bond or bridge with the ports on
            // its members.
            let uppers = || self.ports.iter().filter(|port| kept.ports.contains(&port.id));
            let below = |(index, _): &(u32, String)| self.ports.iter().find(|port| port.index == *index);
            let of = |port: &PortLink| if port.members.is_empty() { vec![port.id] } else { port.members.clone() };
            let carriers = uppers().flat_map(|upper| {
                upper.lower_devices.iter().filter_map(below).flat_map(of).chain(upper.members.clone())
            });
            // Packets of a tunnel come and leave by any port.
            let is_tunnel = |index| self.ports.iter().any(|port| port.index == index && port.tunnel.is_some());
            let tunnelled = |upper: &PortLink| upper.devices().any(|(index, _)| is_tunnel(index));
            let tunnelled = self.ports.iter().filter(|_| uppers().any(tunnelled)).map(|port| port.id);
            let carriers = carriers.chain(tunnelled);
            let held_by = if self.flows.is_some() { held_by(&kept, verdict) } else { vec![] };
            let ports = kept.ports.iter().copied().chain(carriers).collect();
            KeptReason { kept: Kept { ports, ..kept }, but_flows: but_flows && self.flows.is_some(), held_by }
        };
        *lock(&self.reasons) = verdict.kept.iter().flat_map(|kept| divided(kept, verdict)).map(shown).collect();
    }

    fn names<'a>(&self, ids: impl Iterator<Item = &'a u16>) -> String {
        let name = |id: &u16| self.ports.iter().find(|port| port.id == *id).map(|port| port.name.as_str());
        let names: Vec<_> = ids.filter_map(name).collect();
        if names.len() == self.ports.len() { "all ports".into() } else { names.join(", ") }
    }
}

/// Records why a port's program, or what is at another key, could not be set; `None` if it could. Logged only when it
/// changes: programs are configured again all the time, and the kernel may refuse for a while, for instance while no
/// descriptors are free.
fn note(refused: &mut BTreeMap<u16, String>, at: u16, why: Option<String>) {
    if let Some(why) = why.as_ref().filter(|why| refused.get(&at) != Some(why)) {
        tracing::error!("{why}");
    }
    match why {
        Some(why) => refused.insert(at, why),
        None => refused.remove(&at),
    };
}

/// Divides a reason into those for the families and ports whose established flows pass it, with the flag set, and those
/// for the others.
fn divided(kept: &Kept, verdict: &Verdict) -> Vec<(Kept, bool)> {
    let Some(families) = families(&kept.effect.scope).filter(|_| kept.effect.kind == Kind::Netfilter) else {
        return vec![(kept.clone(), false)];
    };
    let passing = |port: &u16| verdict.gates.get(port).map_or(Families::NONE, |gate| gate.flows & families);
    let alike = |port: &u16| [Families::NONE, families].contains(&passing(port));
    let parts = match kept.ports.iter().all(alike) {
        true => vec![families],
        false => vec![Families::V4, Families::V6],
    };
    let mut all = vec![];
    for (of, but_flows) in parts.into_iter().flat_map(|of| [(of, true), (of, false)]) {
        let ports: Vec<u16> =
            kept.ports.iter().filter(|port| (passing(port) & of == of) == but_flows).copied().collect();
        if !ports.is_empty() {
            let effect = Effect { scope: narrowed(&kept.effect.scope, of), ..kept.effect.clone() };
            all.push((Kept { effect, ports, ..kept.clone() }, but_flows));
        }
    }
    if all.is_empty() { vec![(kept.clone(), false)] } else { all }
}

/// Returns the families of a scope of routed packets that flows may pass; `None` for other scopes.
fn families(scope: &Scope) -> Option<Families> {
    match scope {
        Scope::All(of) | Scope::In(_, of) | Scope::Out(_, of) | Scope::Fragments(of) | Scope::Errors(of) => Some(*of),
        _ => None,
    }
}

/// Returns a scope limited to some of its families.
fn narrowed(scope: &Scope, to: Families) -> Scope {
    match scope {
        Scope::All(_) => Scope::All(to),
        Scope::In(on, _) => Scope::In(on.clone(), to),
        Scope::Out(on, _) => Scope::Out(on.clone(), to),
        Scope::Fragments(_) => Scope::Fragments(to),
        Scope::Errors(_) => Scope::Errors(to),
        other => other.clone(),
    }
}

/// Returns the objects of other reasons that keep the established flows of the same packets for the
/// kernel.
fn held_by(kept: &Kept, verdict: &Verdict) -> Vec<String> {
    let Some(of) = families(&kept.effect.scope).filter(|_| kept.effect.kind == Kind::Netfilter) else { return vec![] };
    let holds = |other: &&Kept| {
        let families = match other.effect.scope {
            Scope::All(families) | Scope::In(_, families) if other.effect.kind != Kind::Netfilter => families,
            Scope::Flows(families) => families,
            Scope::Relayed(_) | Scope::Bridged => Families::BOTH,
            _ => Families::NONE,
        };
        let same_port = other.ports.iter().any(|port| kept.ports.contains(port));
        !other.ignored && same_port && !(families & of).is_empty()
    };
    let mut objects: Vec<String> = vec![];
    for Kept { effect, .. } in verdict.kept.iter().filter(holds) {
        if !objects.contains(&effect.object) {
            objects.push(effect.object.clone());
        }
    }
    objects
}

fn foreign(program: af_xdp::TcxProgram) -> Foreign {
    Foreign { id: program.id, ingress: program.ingress }
}

fn respect(config: &KernelConfig) -> Respect {
    Respect { ignored: Kind::ALL.into_iter().filter(|kind| config.ignores(*kind)).collect() }
}

fn program_gate(gate: Gate) -> XdpGate {
    XdpGate {
        v4: gate.closed.v4,
        v6: gate.closed.v6,
        fragments: !gate.fragments.is_empty(),
        flows4: gate.flows.v4,
        flows6: gate.flows.v6,
    }
}

/// Returns which frames a program forwards to these members of its port's bridge.
fn bridging(members: &[MemberPort], targets: &BTreeMap<PortId, XdpSending>, native: bool) -> XdpBridging {
    let takes = |target: &XdpSending| target.target && (target.takes_frames || !native);
    let to = || members.iter().filter(|member| targets.get(&member.port).is_some_and(takes));
    XdpBridging {
        to: to().map(|member| 1 << member.port.0).sum(),
        longest: to().map(|member| member.longest).min().unwrap_or(0),
        through: 0,
    }
}

/// Returns the number of an interface on a bridge that filters VLANs, its tag, and the ports on which its frames have
/// it.
fn bridge_tag(number: PortId, of: &MasterSpec) -> Option<(u16, ([u8; 4], u64))> {
    of.stations().filter(|(_, vlan)| *vlan != 0)?;
    Some((number.0, (of.tag, of.tagged.iter().map(|(port, _)| 1 << port.0).sum())))
}

fn rp_filter(check: SourceCheck) -> af_xdp::RpFilter {
    match check {
        SourceCheck::Off => af_xdp::RpFilter::Off,
        SourceCheck::Loose => af_xdp::RpFilter::Loose,
        SourceCheck::Strict => af_xdp::RpFilter::Strict,
    }
}

/// Describes the packets of a scope.
fn packets(scope: &Scope) -> String {
    let of = |families: &bywash_exceptions::Families| match (families.v4, families.v6) {
        (true, false) => "IPv4 ",
        (false, true) => "IPv6 ",
        _ => "",
    };
    match scope {
        Scope::All(families) => format!("all {}packets", of(families)),
        Scope::In(_, families) => format!("{}packets received", of(families)),
        Scope::Out(_, families) => format!("{}packets that leave", of(families)),
        Scope::Relayed(_) => "all packets received".into(),
        Scope::Bridged => "packets of bridges".into(),
        Scope::Between => "frames between members of bridges".into(),
        Scope::To(prefix) => format!("packets to {prefix}"),
        Scope::Errors(families) => format!("{}packets to be answered with ICMP errors", of(families)),
        Scope::Fragments(families) => format!("{}fragments", of(families)),
        Scope::Flows(families) => format!("{}packets of established flows", of(families)),
        Scope::Own(_) => "packets in tunnels".into(),
        Scope::Tunnel(_) => "packets in the tunnel".into(),
        Scope::Decrypted => "all packets, except with native XDP,".into(),
    }
}

/// Returns the policies for which packets of a port, or of its VLANs, are left to the kernel.
pub fn shown(reasons: &KeptReasons, port: PortId) -> Vec<api::Kept> {
    let reasons = lock(reasons);
    let mine = reasons.iter().filter(|reason| reason.kept.ports.contains(&port.0));
    let row = |KeptReason { kept: Kept { effect, ignored, .. }, but_flows, held_by }: &KeptReason| api::Kept {
        kind: effect.kind.name().into(),
        packets: packets(&effect.scope) + but(effect, *but_flows),
        object: effect.object.to_string(),
        reason: effect.reason.to_string(),
        ignored: *ignored,
        allow: allow(effect, *but_flows, held_by),
    };
    mine.map(row).collect()
}

/// Returns the exception to the packets that an effect keeps, where established flows pass it. Fragments of those are
/// left to the kernel, too.
fn but(effect: &Effect, flows: bool) -> &'static str {
    if flows && !matches!(effect.scope, Scope::Fragments(_)) { BUT_FLOWS } else { "" }
}

/// Returns a hint for the operator: how to have such packets forwarded without the kernel. `held_by` are the objects
/// of other reasons, without which established flows might be.
fn allow(effect: &Effect, but_flows: bool, held_by: &[String]) -> String {
    if effect.object == MISNAMED {
        return "rename the interface".into();
    }
    let remove = match effect.kind {
        Kind::Sysctls if effect.object.starts_with(SOCKETS) => "close the sockets (`ss -K src ADDRESS`)",
        Kind::Ipsec if effect.scope == Scope::Decrypted => {
            "use native XDP (`xdp = \"native\"`), which does not see them"
        }
        Kind::Netfilter if matches!(effect.scope, Scope::Tunnel(_)) => {
            "accept the tunnel's outer packets, new and established, before this rule"
        }
        // The rules have to be evaluated for new connections. They may keep established flows as well.
        _ if but_flows => {
            return "`bywash show firewall` says which established flows are forwarded, and what to change for others"
                .into();
        }
        Kind::Netfilter if !held_by.is_empty() => {
            let others = held_by.join(", ");
            return format!("`bywash show firewall` says which established flows would be forwarded without {others}");
        }
        Kind::Netfilter => "remove the rule, or bind it to other interfaces (iifname, oifname)",
        Kind::IptablesLegacy => "remove the rules, and set the policies to ACCEPT",
        Kind::Ipsec => "remove the policy, or select fewer destinations",
        Kind::Rules if matches!(effect.scope, Scope::Flows(_)) => "remove the rule, or the VRF",
        Kind::Rules => "remove the rule, or select by `to` or `iif`",
        Kind::Sysctls => &switched(&effect.object),
        Kind::TrafficControl => "`tc qdisc del`, or `tc filter del`",
        Kind::Programs => "detach the program, or remove the services or the module",
    };
    format!("{remove}; or `{} = \"ignore\"` in [kernel], at your own risk", effect.kind.name())
}

/// Returns what ends an effect of kind sysctls. For `sysctl KEY=0` or `sysctl KEY=1`, it is the other value.
fn switched(object: &str) -> String {
    if let Some((key, value)) = object.strip_prefix("sysctl ").and_then(|switch| switch.split_once('=')) {
        return format!("`sysctl -w {key}={}`", u8::from(value == "0"));
    }
    match object.split_once(' ') {
        // An interface without switches.
        Some(("sysctl", _)) => "raise the MTU of the interface".into(),
        Some(_) => {
            "remove the proxied addresses (`ip -6 neigh del proxy`), or `sysctl -w net.ipv6.conf.all.proxy_ndp=0`"
                .into()
        }
        None => "make the switch readable: see the reason".into(),
    }
}
