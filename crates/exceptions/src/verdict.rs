//! The verdict: the packets of each port that are left to the kernel, derived from all effects.

mod judge;

use crate::effect::{Effect, Kind};
use crate::nft::Interface;
use crate::sysctl::Settings;
use bywash_fib::model::{Families, Gate, Prefix, Rules, Tunnel};
use std::collections::{BTreeMap, BTreeSet};

pub use judge::{MISNAMED, judge};

/// A port, or a VLAN or bridge of ports, on which the dataplane forwards packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortLink {
    /// Number of the port.
    pub id: u16,
    /// Kernel index of its interface; 0 while there is none, and for a VLAN of a bridge without an interface, of which
    /// no packets are routed.
    pub index: u32,
    /// Name of its interface.
    pub name: String,
    /// Interfaces below it, by kernel index and name: the device below a VLAN, the members of a bond or bridge. Its
    /// packets pass there, too.
    pub lower_devices: Vec<(u32, String)>,
    /// Interfaces above it, by kernel index and name, whether they have numbers or are left to the kernel. Empty for a
    /// VLAN or macvlan above a port.
    pub uppers: Vec<(u32, String)>,
    /// If the port is itself a bridge, bond, VLAN or macvlan: the interfaces below it, by kernel index and name, which
    /// have received its packets before Bywash sees them.
    pub received_by: Vec<(u32, String)>,
    /// Set if an interface of `received_by` is a member of a bridge.
    pub received_by_member: bool,
    /// Set if it is a veth whose peer is in the same network namespace: packets from there may carry marks.
    pub paired: bool,
    /// Numbers of the ports on its members, if it is a bond or bridge.
    pub members: Vec<u16>,
    /// The bridge that its packets pass, if it is a bridge, a VLAN on one, or a VXLAN that is a member of one.
    pub bridge: Option<Bridge>,
    /// VRF that the interface belongs to.
    pub vrf: Option<Vrf>,
    /// Set for a tunnel, whose packets are within packets that the host itself sends and receives.
    pub tunnel: Option<Tunnel>,
}

impl PortLink {
    /// Returns whether they differ at most in the interfaces above them.
    pub fn is_same_but_for_uppers(&self, other: &Self) -> bool {
        let Self { uppers, .. } = other;
        Self { uppers: uppers.clone(), ..self.clone() } == *other
    }

    /// Returns its interface as rules see it.
    pub fn interface(&self) -> Interface {
        let below = self.watched().skip(1).map(|(index, name)| (index, name.to_owned())).collect();
        Interface { index: self.index, name: self.name.clone(), marked: self.paired, below }
    }

    /// Returns whether its packets are only bridged, never routed.
    fn only_bridges(&self) -> bool {
        self.index == 0 && self.bridge.is_some()
    }

    /// Returns the interfaces that its packets pass, except for a VRF: its own, and those below it.
    pub fn devices(&self) -> impl Iterator<Item = (u32, &str)> {
        let lower = self.lower_devices.iter().map(|(index, name)| (*index, name.as_str()));
        std::iter::once((self.index, self.name.as_str())).chain(lower)
    }

    /// Returns the interfaces whose state concerns its packets: [`PortLink::devices`] and those that received the
    /// packets before.
    pub fn watched(&self) -> impl Iterator<Item = (u32, &str)> {
        self.devices().chain(self.received_by.iter().map(|(index, name)| (*index, name.as_str())))
    }
}

/// Properties of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Set if it filters VLANs, and the interface is a VLAN interface on it.
    pub vlan: bool,
    /// Set if the bridge itself requests that IP's hooks be called (`nf_call_iptables` and the like), independently of
    /// the sysctls.
    pub calls_ip: bool,
}

/// A VRF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vrf {
    /// Kernel index of its interface. Netfilter also sees the members' packets on it.
    pub index: u32,
    /// Name of its interface.
    pub name: String,
    /// Routing table of its members' packets.
    pub table: u32,
}

/// The operator's choice of kinds of kernel state to ignore; all others are respected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Respect {
    /// Kinds that are ignored.
    pub ignored: BTreeSet<Kind>,
}

/// An effect and the ports whose packets it keeps for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The effect.
    pub effect: Effect,
    /// Port numbers, ascending.
    pub ports: Vec<u16>,
    /// Set if the operator has chosen to ignore it; it then keeps no packets.
    pub ignored: bool,
}

/// Decisions that workers, XDP programs and forwarding tables apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Gates by port number.
    pub gates: BTreeMap<u16, Gate>,
    /// Families whose packets only the kernel may send, by index of the egress interface.
    pub egress: BTreeMap<u32, Families>,
    /// Destinations that are left to the kernel.
    pub prefixes: Vec<Prefix>,
    /// Settings that the dataplane applies itself.
    pub settings: Settings,
    /// Policy routing rules that the dataplane applies itself, by port number; absent for ports without.
    pub rules: BTreeMap<u16, Rules>,
    /// Numbers of the bridges that may forward frames between their members past the kernel.
    pub bridging: BTreeSet<u16>,
    /// Numbers of the tunnels whose outer packets no policy concerns; the packets of all others are left to the kernel.
    pub tunnels: BTreeSet<u16>,
    /// Numbers of the tunnels whose outer packets may be masqueraded: packets are left to the kernel unless their
    /// source is already the address that masquerading would give them.
    pub masqueraded: BTreeSet<u16>,
    /// Families whose addresses rules translate.
    pub translating: Families,
    /// Set if the outer packets of tunnels pass gates that let flows pass.
    pub outer_passes: bool,
    /// Set if the kernel decrypts packets, which programs of traffic control and generic XDP then see once more.
    pub decrypts: bool,
    /// Effects behind these decisions, ignored ones included.
    pub kept: Vec<Kept>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::{IfMatch, Scope};
    use crate::watch::Reading;
    use bywash_fib::model::Encapsulation;

    fn ports() -> Vec<PortLink> {
        let port = |id| PortLink { id, index: 10 + u32::from(id), name: format!("r{id}"), ..PortLink::default() };
        vec![port(0), port(1)]
    }

    fn judged(scopes: &[Scope], ignored: &[Kind]) -> Verdict {
        let effect = |scope: &Scope| Effect {
            kind: Kind::Netfilter,
            scope: scope.clone(),
            object: String::new(),
            reason: String::new(),
        };
        let reading = Reading { effects: scopes.iter().map(effect).collect(), ..Reading::default() };
        judge(&reading, &ports(), &Respect { ignored: ignored.iter().copied().collect() })
    }

    #[test]
    fn scopes_become_gates_and_exceptions() {
        let name = |name: &str| vec![IfMatch::Name(name.into())];
        let prefix = Prefix { addr: "10.0.0.0".parse().unwrap(), len: 8 };
        let verdict = judged(
            &[
                Scope::In(name("r0"), Families::V4),
                Scope::Out(name("r1"), Families::V6),
                Scope::Out(vec![IfMatch::Prefix("r".into())], Families::V4),
                Scope::In(name("eth9"), Families::BOTH),
                Scope::To(prefix),
                Scope::Errors(Families::V6),
            ],
            &[],
        );
        let flows = Families::V4;
        assert_eq!(verdict.gates[&0], Gate { closed: Families::V4, errors: Families::V6, flows, ..Gate::default() });
        assert_eq!(verdict.gates[&1], Gate { errors: Families::V6, ..Gate::default() });
        assert_eq!(verdict.egress, [(10, Families::V4), (11, Families::BOTH)].into());
        assert_eq!(verdict.prefixes, [prefix]);
        assert_eq!(verdict.kept.len(), 5, "effects that concern no port are left out");
        assert_eq!(verdict.kept[0].ports, [0]);
    }

    /// Generic XDP of a port copies the packets of the interfaces above it, too, before rules send them on.
    #[test]
    fn rules_that_send_frames_on_concern_the_ports_below() {
        let mut ports = ports();
        let upper = |id, index, name: &str, below: &[u32]| PortLink {
            id,
            index,
            name: name.into(),
            lower_devices: below.iter().map(|index| (*index, format!("i{index}"))).collect(),
            ..PortLink::default()
        };
        ports.extend([upper(64, 30, "mv0", &[10]), upper(67, 33, "mv1", &[10])]);
        ports.extend([upper(65, 31, "bond0", &[11]), upper(66, 32, "bond0.7", &[31, 11])]);
        let concerned = |ports: &[PortLink], device: &str| {
            let scope = Scope::Relayed(vec![IfMatch::Name(device.into())]);
            let effect = Effect { kind: Kind::Netfilter, scope, object: String::new(), reason: String::new() };
            let verdict = judge(&Reading { effects: vec![effect], ..Reading::default() }, ports, &Respect::default());
            let closed = |(id, gate): (&u16, &Gate)| (gate.closed == Families::BOTH).then_some(*id);
            assert!(verdict.gates.values().all(|gate| gate.closed.is_empty() || gate.flows.is_empty()));
            verdict.gates.iter().filter_map(closed).collect::<Vec<u16>>()
        };
        assert_eq!(["r0", "mv0"].map(|device| concerned(&ports, device)), [[0, 64, 67], [0, 64, 67]]);
        assert_eq!(["r1", "bond0"].map(|device| concerned(&ports, device)), [[1, 65, 66], [1, 65, 66]]);
        assert_eq!(concerned(&ports, "bond0.7"), [1, 65, 66]);
        assert_eq!(concerned(&ports, "eth9"), [0; 0]);
        // A VLAN that is left to the kernel.
        ports[1].uppers = vec![(40, "r1.9".into())];
        assert_eq!(concerned(&ports, "r1.9"), [1, 65, 66]);
    }

    #[test]
    fn rules_of_an_egress_interface_keep_nothing_where_only_flows_pass() {
        let out = |families| Scope::Out(vec![IfMatch::Name("r1".into())], families);
        let verdict = judged(&[out(Families::BOTH), Scope::All(Families::V4)], &[]);
        assert_eq!(verdict.egress, [(11, Families::V6)].into());
        let one = Scope::In(vec![IfMatch::Name("r0".into())], Families::BOTH);
        assert_eq!(judged(&[out(Families::BOTH), one], &[]).egress, [(11, Families::BOTH)].into());
    }

    /// IPv6 within IPv4 meets the rules of IPv4, whose hooks see the outer packets, and the other way round.
    #[test]
    fn tunnels_are_left_where_their_outer_packets_have_policies() {
        let effect = |kind, scope| Effect { kind, scope, object: String::new(), reason: String::new() };
        let judged = |scopes: &[Scope], tunnel: bool, ignored: &[Kind]| {
            let mut ports = ports();
            let tunnels = [(64, "gre1", Encapsulation::Gre), (65, "sit1", Encapsulation::Sit)];
            let tunnels = tunnels.into_iter().filter(|_| tunnel);
            let tunnels = tunnels.map(|(id, name, encapsulation)| PortLink {
                id,
                index: 20 + u32::from(id),
                name: name.into(),
                tunnel: Some(Tunnel { encapsulation, ..crate::fuzz::TUNNEL }),
                ..PortLink::default()
            });
            ports.extend(tunnels);
            let effects = scopes.iter().map(|scope| effect(Kind::Netfilter, scope.clone())).collect();
            let respect = Respect { ignored: ignored.iter().copied().collect() };
            let tunnels = ports.iter().filter_map(|port| Some((port.id, port.tunnel?))).collect();
            judge(&Reading { effects, tunnels, ..Reading::default() }, &ports, &respect)
        };
        let one = [Scope::Tunnel(20 + 65)];
        let both = [Scope::All(Families::V4), Scope::Own(Families::V4)];
        for (scope, tunnels) in both.iter().map(|scope| (scope, vec![])).chain([(&one[0], vec![64])]) {
            let allowed = |ignored: &[Kind]| judged(std::slice::from_ref(scope), true, ignored).tunnels;
            assert_eq!(allowed(&[]).into_iter().collect::<Vec<_>>(), tunnels, "{scope:?}");
            assert_eq!(allowed(&[Kind::Netfilter]), [64, 65].into(), "{scope:?}");
        }
        assert_eq!(judged(&both[1..], true, &[]).kept[0].ports, [64, 65]);
        assert_eq!(judged(&one, true, &[]).kept[0].ports, [65]);
        assert_eq!(judged(&[both[1].clone(), one[0].clone()], false, &[]).kept, []);
        // Those over IPv6 have the policies of IPv6.
        for scope in [Scope::All(Families::V6), Scope::Own(Families::V6)] {
            assert_eq!(judged(&[scope], true, &[]).tunnels, [64, 65].into());
        }
        let over6 = Tunnel { local: [1; 16].into(), remote: [2; 16].into(), ..crate::fuzz::TUNNEL };
        let port = PortLink { id: 66, tunnel: Some(over6), ..PortLink::default() };
        for (families, allowed) in [(Families::V4, 1), (Families::V6, 0)] {
            let effects = vec![effect(Kind::Netfilter, Scope::Own(families))];
            let reading = Reading { effects, tunnels: vec![(66, over6)], ..Reading::default() };
            let verdict = judge(&reading, std::slice::from_ref(&port), &Respect::default());
            assert_eq!(verdict.tunnels.len(), allowed);
        }
        let of_r0 = Scope::In(vec![IfMatch::Name("r0".into())], Families::V4);
        assert_eq!(judged(&[of_r0], true, &[]).tunnels, [64, 65].into());
        // A tunnel that the reading does not know, or not as it is now.
        let tunnel = PortLink { id: 64, tunnel: Some(crate::fuzz::TUNNEL), ..PortLink::default() };
        let changed = Tunnel { ttl: 1, ..crate::fuzz::TUNNEL };
        for (known, allowed) in [(vec![], 0), (vec![(64, changed)], 0), (vec![(64, crate::fuzz::TUNNEL)], 1)] {
            let reading = Reading { tunnels: known, ..Reading::default() };
            let verdict = judge(&reading, std::slice::from_ref(&tunnel), &Respect::default());
            assert_eq!(verdict.tunnels.len(), allowed);
        }
        // Rules of an egress interface also hold for the outer packets of the other family's.
        let out = Scope::Out(vec![IfMatch::Name("r1".into())], Families::V4);
        let scopes = [out, Scope::All(Families::V4)];
        assert_eq!(judged(&scopes, true, &[]).egress, [(11, Families::V4)].into());
        assert_eq!(judged(&scopes, false, &[]).egress, BTreeMap::new());
    }

    #[test]
    fn a_vlan_has_its_own_policies_and_those_of_its_device() {
        let mut ports = ports();
        let lower_devices = vec![(10, "r0".into())];
        ports.push(PortLink { id: 64, index: 20, name: "r0.5".into(), lower_devices, ..ports[0].clone() });
        let judged = |kind, scope: Scope| {
            let effect = Effect { kind, scope, object: String::new(), reason: String::new() };
            judge(&Reading { effects: vec![effect], ..Reading::default() }, &ports, &Respect::default())
        };
        let on = |name: &str| vec![IfMatch::Name(name.into())];
        let closed = |kind, scope| -> Vec<u16> {
            let verdict = judged(kind, scope);
            let closed = verdict.gates.iter().filter(|(_, gate)| !gate.closed.is_empty());
            closed.map(|(port, _)| *port).collect()
        };
        let received = |name: &str| Scope::In(on(name), Families::BOTH);
        assert_eq!(closed(Kind::Netfilter, received("r0")), [0, 64]);
        assert_eq!(closed(Kind::TrafficControl, Scope::In(vec![IfMatch::Index(10)], Families::V4)), [0, 64]);
        assert_eq!(closed(Kind::Sysctls, received("r0")), [0]);
        assert_eq!(closed(Kind::Rules, received("r0")), [0]);
        for kind in [Kind::Netfilter, Kind::Sysctls, Kind::Rules, Kind::TrafficControl, Kind::Programs] {
            assert_eq!(closed(kind, received("r0.5")), [64]);
        }
        let egress = |name: &str| judged(Kind::TrafficControl, Scope::Out(on(name), Families::BOTH)).egress;
        assert_eq!(egress("r0").into_keys().collect::<Vec<_>>(), [10, 20]);
        assert_eq!(egress("r0.5").into_keys().collect::<Vec<_>>(), [20]);
        let flows = |kind, scope| {
            let gates = judged(kind, scope).gates;
            (gates[&0].flows, gates[&64].flows)
        };
        assert_eq!(flows(Kind::Netfilter, Scope::All(Families::BOTH)), (Families::BOTH, Families::BOTH));
        assert_eq!(flows(Kind::Netfilter, received("r0.5")), (Families::NONE, Families::BOTH));
        assert_eq!(flows(Kind::TrafficControl, received("r0")), (Families::NONE, Families::NONE));
    }

    #[test]
    fn a_vlan_without_an_interface_is_only_bridged() {
        let lower_devices = vec![(20, "br0".to_owned()), (10, "r0".to_owned())];
        let (members, bridge) = (vec![0, 2], Some(Bridge { vlan: true, ..Bridge::default() }));
        let vlan =
            PortLink { id: 64, name: "br0 VLAN 7".into(), lower_devices, members, bridge, ..PortLink::default() };
        let all = [ports(), vec![vlan]].concat();
        for (kind, scope, bridged, closed) in [
            (Kind::Netfilter, Scope::All(Families::BOTH), true, true),
            (Kind::Sysctls, Scope::In(vec![IfMatch::Index(20)], Families::BOTH), true, false),
            (Kind::TrafficControl, Scope::In(vec![IfMatch::Index(10)], Families::V4), false, true),
        ] {
            let effect = Effect { kind, scope, object: String::new(), reason: String::new() };
            for ignored in [vec![], vec![kind]] {
                let respect = Respect { ignored: ignored.iter().copied().collect() };
                let reading = Reading { effects: vec![effect.clone()], ..Reading::default() };
                let verdict = judge(&reading, &all, &respect);
                assert_eq!(verdict.bridging.contains(&64), bridged || !ignored.is_empty(), "{kind:?}");
                assert_eq!(verdict.gates[&64], Gate::CLOSED, "{kind:?}");
                let left = !verdict.gates[&0].closed.is_empty();
                assert_eq!(left, closed && ignored.is_empty(), "{kind:?}");
            }
            // Flows are forwarded on all ports that an effect is told of.
            let kept = &judge(&Reading { effects: vec![effect], ..Reading::default() }, &all, &Respect::default()).kept;
            assert!(kind != Kind::Netfilter || !kept[0].ports.contains(&64));
        }
    }

    #[test]
    fn frames_between_members_meet_what_is_on_these() {
        let mut ports = ports();
        let lower_devices = vec![(10, "r0".to_owned()), (12, "r2".to_owned())];
        let (members, bridge) = (vec![0, 2], Some(Bridge::default()));
        ports[0] =
            PortLink { id: 64, index: 20, name: "br0".into(), lower_devices, members, bridge, ..PortLink::default() };
        let frames = |kind, scope: Scope, ignored: &[Kind]| {
            let effect = Effect { kind, scope, object: String::new(), reason: String::new() };
            let respect = Respect { ignored: ignored.iter().copied().collect() };
            !judge(&Reading { effects: vec![effect], ..Reading::default() }, &ports, &respect).bridging.is_empty()
        };
        let (both, on) = (Families::BOTH, |name: &str| vec![IfMatch::Name(name.into())]);
        for (kind, scope, forwarded) in [
            (Kind::Netfilter, Scope::All(both), true),
            (Kind::Netfilter, Scope::In(on("br0"), both), true),
            (Kind::Netfilter, Scope::In(on("r1"), both), true),
            (Kind::Netfilter, Scope::Fragments(both), true),
            (Kind::Sysctls, Scope::In(on("br0"), both), true),
            (Kind::Sysctls, Scope::All(both), true),
            (Kind::Ipsec, Scope::All(both), true),
            (Kind::TrafficControl, Scope::Out(on("br0"), both), true),
            (Kind::Netfilter, Scope::Between, false),
            (Kind::Sysctls, Scope::Between, false),
            (Kind::IptablesLegacy, Scope::Bridged, false),
            (Kind::Netfilter, Scope::In(on("r2"), Families::V4), false),
            (Kind::Netfilter, Scope::Out(vec![IfMatch::Prefix("r".into())], Families::V6), false),
            (Kind::TrafficControl, Scope::Out(on("r0"), both), false),
            (Kind::TrafficControl, Scope::All(both), false),
            (Kind::Programs, Scope::In(vec![IfMatch::Index(12)], both), false),
        ] {
            assert_eq!(frames(kind, scope.clone(), &[]), forwarded, "{kind:?} {scope:?}");
            assert!(frames(kind, scope, &[kind]));
        }
        // It keeps no routed packets.
        let effect = Effect { kind: Kind::Netfilter, scope: Scope::Between, object: "o".into(), reason: "r".into() };
        let verdict = judge(&Reading { effects: vec![effect], ..Reading::default() }, &ports, &Respect::default());
        assert!(verdict.gates.values().all(|gate| gate.closed.is_empty()) && verdict.egress.is_empty());
        assert_eq!(verdict.kept[0].ports, [64]);
        let none = judge(&Reading::default(), &ports[1..], &Respect::default());
        assert!(none.bridging.is_empty());
    }

    /// With br_netfilter, the first hooks see packets of a bridge's VLANs on the bridge itself.
    #[test]
    fn no_flows_pass_where_a_bridge_of_vlans_calls_the_hooks_of_ip() {
        let flows = |of: Bridge, called: bool| {
            let port = PortLink { bridge: Some(of), members: vec![0], ..ports()[0].clone() };
            let effect = |kind, scope| Effect { kind, scope, object: String::new(), reason: String::new() };
            let mut effects = vec![effect(Kind::Netfilter, Scope::All(Families::BOTH))];
            effects.extend(called.then(|| effect(Kind::Sysctls, Scope::Between)));
            let verdict = judge(&Reading { effects, ..Reading::default() }, &[port], &Respect::default());
            verdict.gates[&0].flows
        };
        for (vlan, calls_ip, called, passes) in [
            (true, false, false, true),
            (true, true, false, false),
            (true, false, true, false),
            (false, true, true, true),
        ] {
            let expected = if passes { Families::BOTH } else { Families::NONE };
            assert_eq!(flows(Bridge { vlan, calls_ip }, called), expected, "{vlan} {calls_ip} {called}");
        }
    }

    #[test]
    fn a_bond_has_its_own_policies_and_those_of_its_members() {
        let devices = |all: &[(u32, &str)]| all.iter().map(|(index, name)| (*index, (*name).to_owned())).collect();
        let ports = [
            PortLink {
                id: 64,
                index: 30,
                name: "bond0".into(),
                lower_devices: devices(&[(10, "r0"), (11, "r1")]),
                members: vec![0, 1],
                ..PortLink::default()
            },
            PortLink {
                id: 65,
                index: 31,
                name: "bond0.5".into(),
                lower_devices: devices(&[(30, "bond0"), (10, "r0"), (11, "r1")]),
                ..PortLink::default()
            },
        ];
        let judged = |kind, scope: Scope| {
            let effect = Effect { kind, scope, object: String::new(), reason: String::new() };
            judge(&Reading { effects: vec![effect], ..Reading::default() }, &ports, &Respect::default())
        };
        let on = |name: &str| vec![IfMatch::Name(name.into())];
        let closed = |kind, name| -> Vec<u16> {
            let verdict = judged(kind, Scope::In(on(name), Families::BOTH));
            verdict.gates.iter().filter(|(_, gate)| !gate.closed.is_empty()).map(|(port, _)| *port).collect()
        };
        for kind in [Kind::Netfilter, Kind::TrafficControl, Kind::Programs] {
            assert_eq!(["r0", "r1", "bond0"].map(|name| closed(kind, name)), [[64, 65]; 3]);
            assert_eq!(closed(kind, "bond0.5"), [65]);
        }
        for kind in [Kind::Sysctls, Kind::Rules] {
            assert_eq!([closed(kind, "r0"), closed(kind, "bond0")], [vec![], vec![64]]);
        }
        // Packets leave by the bond's interface, whichever has the qdisc.
        let egress = |name: &str| judged(Kind::TrafficControl, Scope::Out(on(name), Families::BOTH)).egress;
        assert_eq!([egress("r0"), egress("bond0")].map(|of| of.into_keys().collect::<Vec<_>>()), [[30, 31]; 2]);
    }

    #[test]
    fn a_bridge_has_its_own_policies_and_those_of_all_members() {
        let lower_devices: Vec<_> = [(10, "r0"), (11, "r1")].map(|(index, name)| (index, name.to_owned())).into();
        let (members, bridge) = (vec![0, 1], Some(Bridge::default()));
        let bridge =
            PortLink { id: 64, index: 30, name: "br0".into(), lower_devices, members, bridge, ..PortLink::default() };
        let other = PortLink { id: 2, index: 12, name: "r2".into(), ..ports()[0].clone() };
        let judged = |kind, scope: Scope| {
            let effect = Effect { kind, scope, object: String::new(), reason: String::new() };
            let reading = Reading { effects: vec![effect], ..Reading::default() };
            judge(&reading, &[bridge.clone(), other.clone()], &Respect::default())
        };
        let on = |name: &str| vec![IfMatch::Name(name.into())];
        let closed = |kind, name| !judged(kind, Scope::In(on(name), Families::BOTH)).gates[&64].closed.is_empty();
        for kind in [Kind::Netfilter, Kind::TrafficControl, Kind::Programs] {
            assert_eq!(["r0", "r1", "br0", "r2"].map(|name| closed(kind, name)), [true, true, true, false]);
        }
        for kind in [Kind::Sysctls, Kind::Rules] {
            assert_eq!(["r0", "r1", "br0"].map(|name| closed(kind, name)), [false, false, true]);
        }
        let egress = judged(Kind::TrafficControl, Scope::Out(on("r1"), Families::V4)).egress;
        assert_eq!(egress, [(30, Families::V4)].into());
        // Rules for bridged packets, past which no flows go either.
        let verdict = judged(Kind::Netfilter, Scope::Bridged);
        let gate = Gate { closed: Families::BOTH, ..Gate::default() };
        assert_eq!((verdict.gates[&64], verdict.gates[&2]), (gate, Gate::default()));
        assert_eq!((verdict.egress, verdict.kept[0].ports.clone()), ([(30, Families::BOTH)].into(), vec![64]));
        let reading =
            Reading { effects: verdict.kept.iter().map(|kept| kept.effect.clone()).collect(), ..Reading::default() };
        assert!(judge(&reading, &[other], &Respect::default()).kept.is_empty(), "there is no bridge");
    }

    #[test]
    fn all_of_a_family_closes_every_gate() {
        let verdict = judged(&[Scope::All(Families::V6)], &[]);
        assert!(verdict.gates.values().all(|gate| gate.closed == Families::V6));
        assert!(judged(&[], &[]).gates.values().all(|gate| *gate == Gate::default()));
    }

    #[test]
    fn ignored_kinds_are_reported_and_keep_nothing() {
        let verdict = judged(&[Scope::All(Families::BOTH)], &[Kind::Netfilter]);
        assert!(verdict.gates.values().all(|gate| *gate == Gate::default()));
        assert!(verdict.kept[0].ignored);
    }
}
