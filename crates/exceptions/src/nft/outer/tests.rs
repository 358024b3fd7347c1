use super::*;
use crate::fuzz::TUNNEL;
use crate::nft::build::{is, state};
use crate::nft::{Base, Chain, Expression, Family, Rule, Table, Tracking, Verdict, meta};
use bywash_fib::model::{Encapsulation, Families, Vxlan};

/// The tunnel's interface.
fn tg() -> Interface {
    Interface { index: 20, name: "tg".into(), ..Interface::default() }
}

const REMOTE: [u8; 4] = [192, 0, 2, 2];
/// NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT.
const INPUT: u32 = 1;
const OUTPUT: u32 = 3;
/// NF_INET_POST_ROUTING.
const POSTROUTING: u32 = 4;

fn vxlan() -> Tunnel {
    let (sources, unsummed6) = ([0; 2], false);
    let vxlan = Vxlan {
        vni: 1,
        port: 4789,
        sources,
        checksum: true,
        unsummed6,
        learns: false,
        filters: false,
        ageing: 0,
        link: 0,
    };
    Tunnel { encapsulation: Encapsulation::Vxlan, remote: [0; 4].into(), vxlan: Some(vxlan), ..TUNNEL }
}

fn payload(base: u32, offset: u32, value: &[u8]) -> Vec<Expression> {
    vec![Expression::Payload { base, offset, len: value.len() as u32, register: 0 }, is(value)]
}

fn protocol(number: u8) -> Vec<Expression> {
    vec![Expression::Meta { key: meta::L4PROTO, register: 0 }, is(&[number])]
}

fn accept() -> Vec<Expression> {
    vec![Expression::Verdict(Verdict::Accept)]
}

fn drop() -> Vec<Expression> {
    vec![Expression::Verdict(Verdict::Drop)]
}

/// Returns the reason why packets of a tunnel are left to the kernel, with a chain on a hook; "" if there is none.
fn reason(tunnel: &Tunnel, hook: u32, accepts: bool, rules: &[Vec<Vec<Expression>>]) -> String {
    told(tunnel, (hook, "filter"), accepts, rules).0
}

/// Returns a ruleset of one chain.
fn ruleset(family: Family, chain: Chain) -> Ruleset {
    let (name, chains) = ("t".into(), vec![chain]);
    let table = Table {
        family,
        name,
        dormant: false,
        owned: false,
        chains,
        sets: Vec::new(),
        tracking: Vec::new(),
        flow_tables: Vec::new(),
    };
    Ruleset { generation: 1, tables: vec![table] }
}

/// Returns the reason for a chain of some type, and whether the ruleset may masquerade the packets.
fn told(tunnel: &Tunnel, (hook, kind): (u32, &str), accepts: bool, rules: &[Vec<Vec<Expression>>]) -> (String, bool) {
    let rule = |parts: &Vec<Vec<Expression>>| Rule { handle: 1, expressions: parts.concat(), comment: None };
    let base = Base { hook, priority: 0, kind: kind.into(), accepts, devices: Vec::new() };
    let rules = rules.iter().map(rule).collect();
    let chain = Chain { name: "c".into(), base: Some(base), rules, opaque: None };
    let ruleset = ruleset(Family::Inet, chain);
    let (effects, masqueraded) = on_tunnels(&ruleset, std::iter::once((tg(), tunnel)));
    (effects.first().map(|effect| effect.reason.clone()).unwrap_or_default(), masqueraded.contains(&tg().index))
}

/// Returns a rule that accepts `icmp type destination-unreachable`.
fn unreachable() -> Vec<Vec<Expression>> {
    vec![protocol(1), payload(2, 0, &[3]), accept()]
}

/// Without connection tracking of the outer packets, ICMP errors about them are invalid: the host would not learn the
/// MTU of the path.
#[test]
fn errors_about_outer_packets_must_be_accepted_as_invalid() {
    let own = |more: &[Vec<Vec<Expression>>]| {
        let rest = [vec![state(1), drop()], vec![state(2 | 4), accept()], vec![protocol(47), accept()]];
        [more, &rest].concat()
    };
    let misses = reason(&TUNNEL, INPUT, false, &own(&[]));
    assert!(misses.starts_with("would drop ICMP errors"), "{misses}");
    assert_eq!(reason(&TUNNEL, INPUT, false, &own(&[unreachable()])), "");
    // Errors that are dropped anyway, and tunnels that cause none.
    let none = [vec![protocol(1), drop()]];
    assert_eq!(reason(&TUNNEL, INPUT, false, &own(&none)), "");
    let (encapsulation, carries) = (Encapsulation::Sit, Families::V6);
    let sit = Tunnel { encapsulation, carries, dont_fragment: false, ..TUNNEL };
    let of_sit = [vec![state(1), drop()], vec![protocol(41), accept()]];
    assert_eq!(reason(&sit, INPUT, false, &of_sit), "");
    assert_ne!(reason(&Tunnel { dont_fragment: true, ..sit }, INPUT, true, &of_sit), "");
    // Rules for output do not concern them.
    assert_eq!(reason(&TUNNEL, OUTPUT, false, &own(&[])), "");
}

#[test]
fn a_firewall_that_accepts_the_outer_packets_leaves_the_tunnel_alone() {
    let gre = || vec![protocol(47), accept()];
    // Accepts those of established connections, then the tunnel's: both new and established packets pass.
    let usual = vec![unreachable(), vec![state(1), drop()], vec![state(2 | 4), accept()], gre()];
    assert_eq!(reason(&TUNNEL, INPUT, false, &usual), "");
    // Only replies: a connection that the kernel has forgotten would be dropped.
    assert_eq!(reason(&TUNNEL, INPUT, false, &usual[..3]), "depends on ct state");
    // A VXLAN's port may be one that another connection expects.
    assert_eq!(reason(&TUNNEL, INPUT, true, &[vec![state(4), drop()]]), "depends on ct state");
    assert_eq!(reason(&TUNNEL, INPUT, false, &[]), "drops the tunnel's outer packets");
    assert_eq!(reason(&TUNNEL, OUTPUT, false, &[gre()]), "");
    assert_eq!(reason(&TUNNEL, OUTPUT, false, &[]), "drops the tunnel's outer packets");
    // Of input, the source is the remote; of output, the destination.
    let from = vec![payload(1, 12, &REMOTE), accept()];
    let to = vec![payload(1, 16, &REMOTE), accept()];
    assert_eq!(reason(&TUNNEL, INPUT, false, &[unreachable(), from]), "");
    assert_eq!(reason(&TUNNEL, OUTPUT, false, std::slice::from_ref(&to)), "");
    assert_eq!(reason(&TUNNEL, INPUT, false, &[to]), "drops the tunnel's outer packets");
    // A rule that cannot match does nothing, whatever it would do.
    let log = |number| vec![protocol(number), vec![Expression::Acts { how: "log".into(), tracking: Tracking::No }]];
    assert_eq!(reason(&TUNNEL, INPUT, true, &[log(6)]), "");
    assert_eq!(reason(&TUNNEL, INPUT, true, &[log(47)]), "depends on log");
    // The ingress interface is not known, nor is a socket.
    let name = [b"lo".as_slice(), &[0; 14]].concat();
    let lo = vec![vec![Expression::Meta { key: meta::IIFNAME, register: 0 }, is(&name)]];
    assert_eq!(reason(&TUNNEL, INPUT, true, &[[lo.clone(), vec![accept()]].concat()]), "");
    assert_eq!(reason(&TUNNEL, INPUT, true, &[[lo.clone(), vec![drop()]].concat()]), "depends on ingress interface");
    // Packets that are sent have none.
    assert_eq!(reason(&TUNNEL, OUTPUT, true, &[[lo, vec![drop()]].concat()]), "");
    // Behind routing, that is the tunnel itself.
    for (name, expected) in [("tg", "drops the tunnel's outer packets"), ("r0", "")] {
        let name = [name.as_bytes(), &[0; 14]].concat();
        let from = vec![vec![Expression::Meta { key: meta::IIFNAME, register: 0 }, is(&name)], drop()];
        assert_eq!(reason(&TUNNEL, POSTROUTING, true, &[from]), expected);
    }
    let owner = vec![Expression::Meta { key: meta::SKUID, register: 0 }, is(&[0; 4])];
    assert_eq!(reason(&TUNNEL, OUTPUT, true, &[vec![owner, drop()]]), "depends on skuid");
}

#[test]
fn packets_of_vxlans_are_known_by_their_port() {
    let port = |number: u16| vec![protocol(17), payload(2, 2, &number.to_be_bytes()), accept()];
    for hook in [INPUT, OUTPUT] {
        assert_eq!(reason(&vxlan(), hook, false, &[port(4789)]), "");
        assert_eq!(reason(&vxlan(), hook, false, &[port(8472)]), "drops the tunnel's outer packets");
        let source = vec![protocol(17), payload(2, 0, &[0x12, 0xb5]), drop()];
        assert_eq!(reason(&vxlan(), hook, true, &[source]), "depends on source port");
    }
    // It may have any remote.
    let from = vec![payload(1, 12, &REMOTE), accept()];
    assert_eq!(reason(&vxlan(), INPUT, false, &[from]), "depends on source address");
}

#[test]
fn tunnels_of_one_encapsulation_are_judged_together() {
    let other = Tunnel { remote: [192, 0, 2, 3].into(), ..TUNNEL };
    let base = Base { hook: INPUT, priority: 0, kind: "filter".into(), accepts: false, devices: Vec::new() };
    let rules = [protocol(17), accept()].concat();
    let from = [payload(1, 12, &REMOTE), accept()].concat();
    let rules = [unreachable().concat(), rules, from]
        .map(|expressions| Rule { handle: 1, expressions, comment: None })
        .to_vec();
    let chain = Chain { name: "c".into(), base: Some(base), rules, opaque: None };
    let ruleset = ruleset(Family::Ip, chain);
    let scopes = |tunnels: &[Tunnel]| -> Vec<Scope> {
        let interface = |at: usize| Interface { index: 20 + at as u32, ..tg() };
        let tunnels = tunnels.iter().enumerate().map(|(at, tunnel)| (interface(at), tunnel));
        on_tunnels(&ruleset, tunnels).0.into_iter().map(|effect| effect.scope).collect()
    };
    assert_eq!(scopes(&[TUNNEL, vxlan()]), []);
    assert_eq!(scopes(&[TUNNEL, other, vxlan(), other]), [Scope::Tunnel(21), Scope::Tunnel(23)]);
}

/// A translation that leaves the outer packets as they are is none.
#[test]
fn outer_packets_may_be_translated_to_what_they_are() {
    /// NF_INET_PRE_ROUTING.
    const PREROUTING: u32 = 0;
    let of = |tunnel: &Tunnel, hook, rules: &[Vec<Vec<Expression>>]| told(tunnel, (hook, "nat"), true, rules);
    let interface = || {
        let name = [b"wan".as_slice(), &[0; 13]].concat();
        vec![Expression::Meta { key: meta::OIFNAME, register: 0 }, is(&name)]
    };
    let masquerade = || vec![Expression::SourceNat { address: None }];
    let to = |addr: [u8; 4]| {
        vec![Expression::Immediate { register: 4, value: addr.to_vec() }, Expression::SourceNat { address: Some(4) }]
    };
    let nat = |how: &str| vec![Expression::Acts { how: how.into(), tracking: Tracking::TurnsOn }];
    let none = || (String::new(), false);
    for tunnel in [&TUNNEL, &vxlan()] {
        assert_eq!(of(tunnel, POSTROUTING, &[vec![interface(), masquerade()]]), (String::new(), true));
        assert_eq!(of(tunnel, POSTROUTING, &[vec![masquerade()]]), (String::new(), true));
        assert_eq!(of(tunnel, POSTROUTING, &[vec![interface(), to([192, 0, 2, 1])]]), none());
        assert_eq!(of(tunnel, POSTROUTING, &[vec![interface(), to([192, 0, 2, 77])]]).0, "depends on snat");
        // With ports, or with a map of addresses.
        assert_eq!(of(tunnel, POSTROUTING, &[vec![nat("masquerade")]]).0, "depends on masquerade");
        // Rules after a translation are not met.
        assert_eq!(of(tunnel, POSTROUTING, &[vec![masquerade()], vec![drop()]]), (String::new(), true));
        // Redirections of other packets.
        assert_eq!(of(tunnel, PREROUTING, &[vec![protocol(6), nat("nat")]]), none());
        assert_eq!(of(tunnel, PREROUTING, &[vec![nat("redirect")]]).0, "depends on redirect");
    }
}

/// Without an address of its own, what a rule says about that address is not known.
#[test]
fn a_tunnel_may_have_any_source() {
    let chosen = &Tunnel { local: [0; 4].into(), dont_fragment: false, ..vxlan() };
    let (own, udp) = ([192, 0, 2, 1], || vec![protocol(17), accept()]);
    for (hook, at) in [(OUTPUT, 12), (INPUT, 16)] {
        assert_eq!(reason(chosen, hook, false, &[udp()]), "");
        assert_eq!(reason(&vxlan(), hook, false, &[unreachable(), vec![payload(1, at, &own), accept()]]), "");
        let by_address = reason(chosen, hook, false, &[vec![payload(1, at, &own), accept()]]);
        assert!(by_address.starts_with("depends on "), "{by_address}");
        let dropped = reason(chosen, hook, true, &[vec![payload(1, at, &own), drop()]]);
        assert!(dropped.starts_with("depends on "), "{dropped}");
    }
    let nat = |rules: &[Vec<Vec<Expression>>]| told(chosen, (POSTROUTING, "nat"), true, rules);
    let masquerade = || vec![Expression::SourceNat { address: None }];
    // The next hop decides whether that changes the source.
    assert_eq!(nat(&[vec![masquerade()]]), (String::new(), true));
    let to =
        vec![Expression::Immediate { register: 4, value: own.to_vec() }, Expression::SourceNat { address: Some(4) }];
    assert_eq!(nat(&[vec![to]]).0, "depends on snat");
    assert_eq!(nat(&[vec![payload(1, 12, &own), masquerade()]]), (String::new(), true));
}

/// Destination options may be in front of the header of GRE, but not of a VXLAN's UDP.
#[test]
fn packets_over_ipv6_may_have_options() {
    let local = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let remote = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let gre = Tunnel { local: local.into(), remote: remote.into(), ..TUNNEL };
    let tnl = Tunnel { encapsulation: Encapsulation::Ip6tnl, ..gre };
    let vxlan = Tunnel { local: local.into(), remote: [0; 16].into(), ..vxlan() };
    let errors = || vec![protocol(58), accept()];
    let too_big = || vec![protocol(58), payload(2, 0, &[2]), accept()];
    let from = || vec![payload(1, 8, &remote), accept()];
    for tunnel in [&gre, &tnl] {
        assert_eq!(reason(tunnel, INPUT, false, &[errors(), from()]), "");
    }
    assert_eq!(reason(&gre, INPUT, false, &[too_big(), vec![protocol(47), accept()]]), "");
    assert_eq!(
        reason(&tnl, INPUT, false, &[too_big(), vec![protocol(4), accept()]]),
        "drops the tunnel's outer packets"
    );
    let both = [too_big(), vec![protocol(4), accept()], vec![protocol(41), accept()]];
    assert_eq!(reason(&tnl, INPUT, false, &both), "");
    // `ip6 nexthdr`
    let next = |number| vec![payload(1, 6, &[number]), accept()];
    assert_eq!(reason(&gre, INPUT, false, &[too_big(), next(47)]), "depends on ip6 nexthdr");
    assert_eq!(reason(&vxlan, INPUT, false, &[too_big(), next(17)]), "");
    // An error as invalid, of whichever tunnel: none of them may fragment. The kernel passes some of ip6tnl on.
    let invalid = vec![state(1), drop()];
    for (tunnel, wanted) in [(&gre, "packet-too-big"), (&tnl, "{ destination-unreachable"), (&vxlan, "packet-too-big")]
    {
        let tunnel = &Tunnel { dont_fragment: false, ..*tunnel };
        for rules in [vec![invalid.clone()], vec![too_big(), invalid.clone()]] {
            let misses = reason(tunnel, INPUT, true, &rules);
            let expected = rules.len() == 1 || tunnel.encapsulation == Encapsulation::Ip6tnl;
            assert_eq!(misses.contains(&format!("accept `icmpv6 type {wanted}")), expected, "{misses}");
        }
        assert_eq!(reason(tunnel, INPUT, true, &[errors(), invalid.clone()]), "");
        let (why, _) = told(tunnel, (POSTROUTING, "nat"), true, &[vec![vec![Expression::SourceNat { address: None }]]]);
        assert_eq!(why, "depends on masquerade");
    }
}
