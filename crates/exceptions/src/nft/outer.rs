//! The verdict of a ruleset on the outer packets of tunnels, which the host itself receives and sends.

use super::Ruleset;
use super::evaluate::{Answer, Evaluator, Finding};
use super::flow::{Course, Flow, ICMP, ICMP6, Interface, State, Tuple};
use crate::effect::{Effect, Kind, Scope};
use bywash_fib::model::{Encapsulation, Tunnel};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Returns an address of a tunnel if it is that of all outer packets.
fn known(addr: IpAddr) -> Option<IpAddr> {
    (!addr.is_unspecified()).then_some(addr)
}

/// Returns the outer packets of a tunnel: those that the host receives, and those that it sends.
fn outer(interface: &Interface, tunnel: &Tunnel) -> Vec<Flow> {
    let (local, remote) = (known(tunnel.local), known(tunnel.remote).filter(|_| tunnel.vxlan.is_none()));
    let dst_port = tunnel.vxlan.map(|vxlan| vxlan.port);
    let of = |protocol, course, input, src, dst| Flow {
        v6: tunnel.is_over_v6(),
        options6: tunnel.is_over_v6() && tunnel.vxlan.is_none(),
        protocol,
        course,
        state: State::Any,
        input,
        original: Tuple { src, dst, src_port: None, dst_port },
        ..Flow::default()
    };
    let both = |protocol| {
        let received = of(protocol, Course::Received, None, remote, local);
        [received, of(protocol, Course::Sent, Some(interface.clone()), local, remote)]
    };
    tunnel.protocols().flat_map(both).collect()
}

/// Returns the effects of a ruleset, read with the elements of its sets, on the outer packets of tunnels: none for a
/// tunnel if it accepts all of its outer packets, whatever their connections and other headers are. Also returns the
/// indices of the tunnels whose outer packets it may masquerade.
pub fn on_tunnels<'a>(
    ruleset: &Ruleset,
    tunnels: impl Iterator<Item = (Interface, &'a Tunnel)>,
) -> (Vec<Effect>, BTreeSet<u32>) {
    let evaluator = Evaluator::of_host(ruleset);
    let (mut effects, mut masqueraded) = (Vec::new(), BTreeSet::new());
    for (interface, tunnel) in tunnels {
        let answers: Vec<_> = outer(&interface, tunnel).iter().map(|flow| evaluator.evaluate(flow)).collect();
        if answers.iter().any(|answer| matches!(answer, Answer::Accept { masquerades: true, .. })) {
            masqueraded.insert(interface.index);
        }
        let refused = answers.iter().find_map(against).or_else(|| misses_errors(&evaluator, tunnel));
        effects.extend(refused.map(|(object, reason)| on_tunnel(interface.index, object, reason)));
    }
    (effects, masqueraded)
}

/// Returns the effect that leaves a tunnel to the kernel.
pub fn on_tunnel(index: u32, object: String, reason: String) -> Effect {
    Effect { kind: Kind::Netfilter, scope: Scope::Tunnel(index), object, reason }
}

/// Returns whether a ruleset, read with the elements of its sets, accepts all outer packets of these tunnels in the
/// chains on devices, too: what it does to other packets does not concern them.
pub fn pass_devices<'a>(ruleset: &Ruleset, mut tunnels: impl Iterator<Item = (Interface, &'a Tunnel)>) -> bool {
    let evaluator = Evaluator::of_host_on_devices(ruleset);
    let accepts = |flow: &Flow| matches!(evaluator.evaluate(flow), Answer::Accept { .. });
    tunnels.all(|(interface, tunnel)| outer(&interface, tunnel).iter().all(accepts))
}

/// ICMP error "fragmentation needed" (RFC 1191), by type and code.
const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
/// ICMPv6 error "packet too big" (RFC 4443 3.2).
const PACKET_TOO_BIG: [u8; 2] = [2, 0];
/// ICMPv6 errors "destination unreachable" and "hop limit exceeded" (RFC 4443 3.1, 3.3).
const UNREACHABLE6: [u8; 2] = [1, 0];
const EXCEEDED6: [u8; 2] = [3, 0];

/// Returns the rule by which the host would no longer learn of errors about outer packets, such as a smaller MTU of the
/// path, and how to change that. The ICMP error is related to a connection while the kernel sends the outer packets;
/// while they pass by, it is of none (nf_conntrack_inet_error). `None` if all errors are accepted all the same, dropped
/// in either case, or not caused.
fn misses_errors(evaluator: &Evaluator<'_>, tunnel: &Tunnel) -> Option<(String, String)> {
    let (protocol, errors, wanted) = match (tunnel.is_over_v6(), tunnel.encapsulation) {
        // The kernel answers the senders of the inner packets (ip6_tnl_err).
        (true, Encapsulation::Ip6tnl) => (
            ICMP6,
            [PACKET_TOO_BIG, UNREACHABLE6, EXCEEDED6].as_slice(),
            "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded }",
        ),
        (true, _) => (ICMP6, &[PACKET_TOO_BIG][..], "icmpv6 type packet-too-big"),
        (false, _) if tunnel.dont_fragment || tunnel.inherits_dont_fragment() => {
            (ICMP, &[FRAGMENTATION_NEEDED][..], "icmp type destination-unreachable")
        }
        (false, _) => return None,
    };
    errors.iter().find_map(|icmp| {
        let error = |state| {
            let (v6, original) = (tunnel.is_over_v6(), Tuple { dst: known(tunnel.local), ..Tuple::default() });
            let (icmp, course) = (*icmp, Course::Received);
            evaluator.evaluate(&Flow { v6, protocol, icmp, course, state, original, ..Flow::default() })
        };
        let (place, _) = against(&error(State::Invalid))?;
        let dropped = matches!(error(State::Related), Answer::Drop { .. });
        let why = format!("would drop ICMP errors about the outer packets as invalid: accept `{wanted}` before");
        (!dropped).then_some((place, why))
    })
}

/// Returns what leaves packets to the kernel, and why; `None` if they are accepted.
fn against(answer: &Answer) -> Option<(String, String)> {
    match answer {
        Answer::Accept { .. } => None,
        Answer::Drop { at, .. } => Some((at.to_string(), "drops the tunnel's outer packets".into())),
        Answer::Kernel { findings } | Answer::Depends { findings } => {
            let unknown = || ("nf_tables".into(), "gives a verdict that is not known".into());
            let found = |Finding { place, why, .. }: &Finding| (place.to_string(), format!("depends on {why}"));
            Some(findings.first().map_or_else(unknown, found))
        }
    }
}

#[cfg(test)]
mod tests;
