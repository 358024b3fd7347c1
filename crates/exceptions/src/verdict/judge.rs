//! The steps by which a verdict is derived.

use super::{Bridge, Kept, PortLink, Respect, Verdict};
use crate::effect::{Effect, IfMatch, Kind, Scope};
use crate::rules;
use crate::watch::Reading;
use bywash_fib::model::{Families, Gate, Rules, Tunnel};
use std::collections::{BTreeMap, BTreeSet};

/// Derives the verdict for `ports` from a reading. Effects that concern only interfaces that are not ports are left
/// out.
pub fn judge(reading: &Reading, ports: &[PortLink], respect: &Respect) -> Verdict {
    let mut judge = Judge::new(reading, ports, respect);
    let of_host = rules::of_host(&reading.rules);
    let misnamed: Vec<Effect> = ports.iter().filter(|port| port.name == LOOPBACK).flat_map(misnamed).collect();
    for effect in reading.effects.iter().chain(&of_host).chain(&misnamed) {
        judge.weigh(effect);
    }
    judge.close_gone();
    judge.let_flows_pass();
    judge.follow_rules();
    judge.consider_tunnels();
    judge.close_egress();
    let mut verdict = judge.verdict;
    verdict.prefixes.sort_unstable();
    verdict.prefixes.dedup();
    verdict
}

/// A verdict in the making.
struct Judge<'a> {
    reading: &'a Reading,
    ports: &'a [PortLink],
    respect: &'a Respect,
    verdict: Verdict,
    /// Families all of whose packets are left to the kernel, for another reason than netfilter, by port number.
    others: BTreeMap<u16, Families>,
    /// Families whose packets only the kernel may send because of netfilter, by egress interface.
    ruled: BTreeMap<u32, Families>,
}

impl<'a> Judge<'a> {
    /// Starts with all gates open, except for ports of which no packets are routed.
    fn new(reading: &'a Reading, ports: &'a [PortLink], respect: &'a Respect) -> Self {
        let gate = |port: &PortLink| if port.only_bridges() { Gate::CLOSED } else { Gate::default() };
        let bridges = |port: &&PortLink| port.bridge.is_some() && !port.members.is_empty();
        // A reading from before a tunnel was added or changed says nothing about it.
        let is_read = |port: &&PortLink| port.tunnel.is_some_and(|tunnel| reading.tunnels.contains(&(port.id, tunnel)));
        let mut verdict = Verdict {
            gates: ports.iter().map(|port| (port.id, gate(port))).collect(),
            settings: reading.settings.clone(),
            bridging: ports.iter().filter(bridges).map(|port| port.id).collect(),
            tunnels: ports.iter().filter(is_read).map(|port| port.id).collect(),
            ..Verdict::default()
        };
        if respect.ignored.contains(&Kind::Sysctls) {
            verdict.settings.source_check.clear();
        }
        let others = ports.iter().filter(|port| port.only_bridges()).map(|port| (port.id, Families::BOTH)).collect();
        Self { reading, ports, respect, verdict, others, ruled: BTreeMap::new() }
    }

    fn ignores(&self, kind: Kind) -> bool {
        self.respect.ignored.contains(&kind)
    }

    /// Leaves to the kernel what an effect requires, and keeps a record of it.
    fn weigh(&mut self, effect: &Effect) {
        let ports = self.ports;
        // Rules of every kind, netfilter's too, may be misread on a misnamed port, so this is never ignored.
        let ignored = self.ignores(effect.kind) && effect.object != MISNAMED;
        let concerned = concerned(effect, ports);
        if !ignored {
            let bridging = &mut self.verdict.bridging;
            bridging.retain(|id| ports.iter().all(|port| port.id != *id || !concerns_frames(effect, port)));
        }
        let of_some = !matches!(effect.scope, Scope::All(_) | Scope::To(_) | Scope::Errors(_) | Scope::Fragments(_));
        if concerned.is_empty() && of_some {
            return;
        }
        if !ignored {
            self.apply(effect, &concerned);
        }
        let ports = concerned.iter().map(|port| port.id).collect();
        self.verdict.kept.push(Kept { effect: effect.clone(), ports, ignored });
    }

    /// Leaves the packets that an effect selects on these ports to the kernel.
    fn apply(&mut self, effect: &Effect, concerned: &[&PortLink]) {
        match &effect.scope {
            Scope::Out(_, families) if effect.kind == Kind::Netfilter => {
                concerned.iter().for_each(|port| *self.ruled.entry(port.index).or_default() |= *families);
            }
            scope => {
                let own = self.own_packets(effect);
                let outer = |port: &&&PortLink| port.tunnel.is_some_and(|of| !(of.family() & own).is_empty());
                for port in concerned.iter().filter(outer) {
                    self.verdict.tunnels.remove(&port.id);
                }
                self.verdict.add(scope, concerned);
            }
        }
        let closed = match &effect.scope {
            Scope::All(families) | Scope::In(_, families) if effect.kind != Kind::Netfilter => *families,
            // Their Ethernet headers are sent, too, whose length the kernel loses where generic XDP copies a packet
            // (skb_pp_cow_data). A port without flows has no such program.
            Scope::Bridged | Scope::Relayed(_) => Families::BOTH,
            _ => Families::NONE,
        };
        concerned.iter().for_each(|port| *self.others.entry(port.id).or_default() |= closed);
    }

    /// Returns the families for which an effect also concerns packets that the host itself sends or receives, such as
    /// the outer packets of tunnels: they pass some of the hooks of forwarded packets.
    fn own_packets(&self, effect: &Effect) -> Families {
        match effect.scope {
            Scope::All(_) if effect.kind == Kind::Netfilter && self.reading.outer.judged => Families::NONE,
            Scope::All(families) | Scope::Own(families) => families,
            // A tunnel that is a member of a bridge sends and receives that bridge's frames.
            Scope::Tunnel(_) | Scope::Bridged => Families::BOTH,
            _ => Families::NONE,
        }
    }

    /// Closes ports whose interface is gone: its state is unknown, so nothing is forwarded for them until the ports are
    /// set again.
    fn close_gone(&mut self) {
        for port in self.ports.iter().filter(|port| self.reading.settings.gone.contains(&port.index)) {
            self.verdict.gates.insert(port.id, Gate::CLOSED);
            self.verdict.egress.insert(port.index, Families::BOTH);
            self.others.insert(port.id, Families::BOTH);
        }
    }

    /// Lets flows pass the gates that are closed because of netfilter alone.
    fn let_flows_pass(&mut self) {
        for (port, gate) in &mut self.verdict.gates {
            let others = self.others.get(port).copied().unwrap_or_default();
            gate.flows = Families { v4: gate.closed.v4 && !others.v4, v6: gate.closed.v6 && !others.v6 };
        }
        // Rules see the VRF as the interface that receives the packets (l3mdev_ip_rcv), and flows are evaluated for the
        // port.
        for port in self.ports.iter().filter(|port| port.vrf.is_some()) {
            self.verdict.gates.entry(port.id).or_default().flows = Families::NONE;
        }
        // br_netfilter makes IP's prerouting hooks see the packets of all VLANs of a bridge as if received on the
        // bridge itself, and packets that are translated there are bridged instead of routed.
        let called = |effect: &Effect| effect.kind == Kind::Sysctls && effect.scope == Scope::Between;
        let called = !self.ignores(Kind::Sysctls) && self.reading.effects.iter().any(called);
        let hooked = |of: Bridge| of.vlan && (of.calls_ip || called);
        for port in self.ports.iter().filter(|port| port.bridge.is_some_and(hooked)) {
            self.verdict.gates.entry(port.id).or_default().flows = Families::NONE;
        }
    }

    /// Takes over the policy routing rules of the ports. While there are any, the kernel sends ICMP errors, because
    /// rules may apply to their routes, and forwards the packets of flows, which would be looked up in tables local and
    /// main.
    fn follow_rules(&mut self) {
        let ignored = self.ignores(Kind::Rules);
        let rules: Vec<_> = self.reading.rules.iter().filter(|rule| !ignored || rule.is_basic()).cloned().collect();
        let followed = self.ports.iter().map(|port| (port.id, rules::followed(&rules, port)));
        self.verdict.rules = followed.filter(|(_, rules)| !rules.is_empty()).collect();
        let any = |of: fn(&Rules) -> bool| self.verdict.rules.values().any(of);
        let v4 = any(|rules| !rules.v4.is_empty() || !rules.back4.is_empty());
        let ruled = Families { v4, v6: any(|rules| !rules.v6.is_empty()) };
        let of_host = rules::of_host(&rules);
        for families in [Families::V4 & ruled, Families::V6 & ruled] {
            let held = self.verdict.gates.iter().filter(|(_, gate)| !(gate.flows & families).is_empty());
            let ports: Vec<u16> = held.map(|(port, _)| *port).collect();
            if ports.is_empty() {
                continue;
            }
            let rule = of_host.iter().find(|effect| effect.scope == Scope::Own(families));
            let vrf = || self.ports.iter().find_map(|port| Some(format!("VRF {}", port.vrf.as_ref()?.name)));
            let object = rule.map(|effect| effect.object.clone()).or_else(vrf).unwrap_or_else(|| "ip rule".into());
            let reason = "their routes are looked up in tables local and main only".into();
            let effect = Effect { kind: Kind::Rules, scope: Scope::Flows(families), object, reason };
            self.verdict.kept.push(Kept { effect, ports, ignored: false });
        }
        for gate in self.verdict.gates.values_mut() {
            gate.errors |= ruled;
            gate.flows = gate.flows & !ruled;
        }
    }

    /// Decides what the outer packets of tunnels may pass.
    fn consider_tunnels(&mut self) {
        let outer = &self.reading.outer;
        self.verdict.outer_passes = outer.accepted;
        if self.ignores(Kind::Netfilter) {
            return;
        }
        self.verdict.translating = outer.translating;
        let masqueraded = |port: &&PortLink| port.tunnel.is_some() && outer.masqueraded.contains(&port.index);
        self.verdict.masqueraded = self.ports.iter().filter(masqueraded).map(|port| port.id).collect();
    }

    /// Leaves packets to the kernel that netfilter's rules for egress interfaces concern.
    ///
    /// Where all gates of a family are closed, this is not needed: only flows pass the gates, and they were judged by
    /// these rules, too. Tunnels are the exception, because their outer packets may be of the other family, unless all
    /// outer packets were judged as well.
    fn close_egress(&mut self) {
        let tunnels = self.ports.iter().any(|port| port.tunnel.is_some()) && !self.reading.outer.accepted;
        let gates = &self.verdict.gates;
        let open = |of: fn(&Families) -> bool| tunnels || !gates.values().all(|gate| of(&gate.closed));
        let open = Families { v4: open(|families| families.v4), v6: open(|families| families.v6) };
        for (index, families) in &self.ruled {
            let families = *families & open;
            if !families.is_empty() {
                *self.verdict.egress.entry(*index).or_default() |= families;
            }
        }
    }
}

impl Verdict {
    /// Leaves the packets of a scope on these ports to the kernel.
    fn add(&mut self, scope: &Scope, ports: &[&PortLink]) {
        for port in ports {
            let gate = self.gates.entry(port.id).or_default();
            match scope {
                Scope::All(families) | Scope::In(_, families) => gate.closed |= *families,
                Scope::Fragments(families) => gate.fragments |= *families,
                Scope::Errors(families) => gate.errors |= *families,
                Scope::Out(_, families) => *self.egress.entry(port.index).or_default() |= *families,
                Scope::Bridged => {
                    gate.closed = Families::BOTH;
                    self.egress.insert(port.index, Families::BOTH);
                }
                Scope::Relayed(_) => gate.closed = Families::BOTH,
                Scope::To(_)
                | Scope::Between
                | Scope::Own(_)
                | Scope::Tunnel(_)
                | Scope::Decrypted
                | Scope::Flows(_) => {}
            }
        }
        self.decrypts |= *scope == Scope::Decrypted;
        if let Scope::To(prefix) = scope {
            self.prefixes.push(*prefix);
        }
    }
}

/// Name by which rules refer to the loopback interface.
const LOOPBACK: &str = "lo";
/// Object of the effects of a port with that name.
pub const MISNAMED: &str = "interface lo";

/// Returns effects that leave a port with the loopback interface's name to the kernel: rules about that name are taken
/// to concern no forwarded packet.
fn misnamed(port: &PortLink) -> [Effect; 2] {
    let on = || vec![IfMatch::Index(port.index)];
    [Scope::In(on(), Families::BOTH), Scope::Out(on(), Families::BOTH)].map(|scope| Effect {
        kind: Kind::Rules,
        scope,
        object: MISNAMED.into(),
        reason: "is not the loopback interface: rename it".into(),
    })
}

/// Returns the ports that receive or send the packets of an effect.
///
/// A VLAN's packets also pass its port, and a bond's also its members, with their device hooks, filters, qdiscs and
/// programs; routing rules and sysctls see only the interface of the VLAN or bond itself. Rules of netfilter's other
/// hooks are treated like those of device hooks. Packets of a member of a VRF are the VRF's, too.
fn concerned<'a>(effect: &Effect, ports: &'a [PortLink]) -> Vec<&'a PortLink> {
    let routed = matches!(effect.kind, Kind::Sysctls | Kind::Rules);
    let covers = |one: &IfMatch, port: &PortLink| {
        let on_vrf = port.vrf.as_ref().is_some_and(|vrf| one.covers(vrf.index, &vrf.name));
        let mut devices = port.devices().take(if routed { 1 } else { usize::MAX });
        on_vrf || devices.any(|(index, name)| one.covers(index, name))
    };
    let receives = |one: &IfMatch, port: &PortLink| {
        !routed && port.received_by.iter().any(|(index, name)| one.covers(*index, name.as_str()))
    };
    let named = |on: &[IfMatch], port: &PortLink| on.iter().any(|one| covers(one, port));
    match &effect.scope {
        Scope::In(on, _) | Scope::Relayed(on) => {
            let received = |port: &&PortLink| named(on, port) || on.iter().any(|one| receives(one, port));
            // Generic XDP of a port also copies the packets of all interfaces above it.
            let is_above =
                |one: &IfMatch, port: &PortLink| port.uppers.iter().any(|(index, name)| one.covers(*index, name));
            let copies = |port: &&PortLink| named(on, port) || on.iter().any(|one| is_above(one, port));
            let copying = ports.iter().filter(|port| matches!(effect.scope, Scope::Relayed(_)) && copies(port));
            let copied = copying.flat_map(PortLink::devices).map(|(index, _)| index).filter(|index| *index != 0);
            let copied: BTreeSet<u32> = copied.collect();
            let shares = |port: &&PortLink| port.devices().any(|(index, _)| copied.contains(&index));
            ports.iter().filter(|port| received(port) || shares(port)).collect()
        }
        Scope::Out(on, _) => ports.iter().filter(|port| named(on, port)).collect(),
        Scope::Bridged => ports.iter().filter(|port| port.bridge.is_some() || port.received_by_member).collect(),
        Scope::Between => ports.iter().filter(|port| port.bridge.is_some()).collect(),
        Scope::Own(families) => {
            let of = |tunnel: Tunnel| !(tunnel.family() & *families).is_empty();
            ports.iter().filter(|port| port.tunnel.is_some_and(of)).collect()
        }
        Scope::Tunnel(index) => ports.iter().filter(|port| port.tunnel.is_some() && port.index == *index).collect(),
        _ => ports.iter().filter(|port| !port.only_bridges()).collect(),
    }
}

/// Returns whether an effect may concern frames between the members of a bridge, which do not pass the bridge's own
/// interface. Rules of IP's hooks that name a member are not told from those of its device; such rules cannot match.
fn concerns_frames(effect: &Effect, bridge: &PortLink) -> bool {
    let on_devices = matches!(effect.kind, Kind::TrafficControl | Kind::Programs);
    match &effect.scope {
        Scope::Bridged | Scope::Between => true,
        Scope::In(on, _) | Scope::Out(on, _) | Scope::Relayed(on) if on_devices || effect.kind == Kind::Netfilter => {
            bridge.lower_devices.iter().any(|(index, name)| on.iter().any(|one| one.covers(*index, name)))
        }
        Scope::All(_) => on_devices,
        _ => false,
    }
}
