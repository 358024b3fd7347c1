//! Properties of the parsers for any datagram, shared by their fuzz targets and the test that replays their findings.

#[path = "../../../fuzz/attributes.rs"]
mod attributes;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

use crate::nft::{Answer, Evaluator, Family, Flow, Interface, Ruleset, Table, Tuple, analyse, gather, on_tunnels};
use crate::{Effect, Families, PortLink, Reading, Respect, Scope, Vrf, judge, rules, tc, xfrm};
use attributes::{Choice, datagram};
use bywash_fib::model::{Encapsulation, Prefix, Tunnel};
use bywash_nl::wire::Messages;
use std::net::{IpAddr, Ipv4Addr};

/// NFT_MSG_NEWTABLE, NEWCHAIN, NEWRULE, NEWSET, NEWSETELEM, NEWOBJ and NEWFLOWTABLE, with the size of struct nfgenmsg.
const NFTABLES: Choice = Choice {
    kinds: &[0xa00, 0xa03, 0xa06, 0xa09, 0xa0c, 0xa12, 0xa16],
    families: &[1, 2, 10, 5, 7, 3, 12],
    fixed: |_| 4,
};

const NEWRULE: u16 = 32;
/// RTM_NEWRULE, XFRM_MSG_NEWPOLICY, XFRM_MSG_GETDEFAULT, RTM_NEWQDISC and RTM_NEWTFILTER, with the sizes of struct
/// fib_rule_hdr, xfrm_userpolicy_info, xfrm_userpolicy_default and tcmsg.
const POLICIES: Choice = Choice {
    kinds: &[NEWRULE, xfrm::XFRM_MSG_NEWPOLICY, xfrm::XFRM_MSG_GETDEFAULT, tc::RTM_NEWQDISC, tc::RTM_NEWTFILTER],
    families: &[2, 10, 0, 1, 2],
    fixed: |kind| match kind {
        NEWRULE => 12,
        xfrm::XFRM_MSG_NEWPOLICY => 168,
        xfrm::XFRM_MSG_GETDEFAULT => 3,
        _ => tc::TCMSG,
    },
};

/// Checks that every rule can be printed, that a ruleset without an effect on forwarded packets lets every flow pass,
/// and that an answer for partly unknown packets also holds for each such packet.
pub fn nftables(data: &[u8]) {
    let mut ruleset = gather(Messages::new(&datagram(data, &NFTABLES)));
    ruleset.tables.iter_mut().flat_map(|table| &mut table.sets).for_each(|set| {
        set.elements.get_or_insert_default();
    });
    for rule in ruleset.tables.iter().flat_map(|table| &table.chains).flat_map(|chain| &chain.rules) {
        assert!(rule.expressions.is_empty() || !rule.text().contains('\0'));
    }
    let effects = analyse(&ruleset);
    assert_sound(&effects);
    let tunnel = Interface { index: 9, name: "gre1".into(), ..Interface::default() };
    let (own, _) = on_tunnels(&ruleset, std::iter::once((tunnel, &TUNNEL)));
    assert_sound(&own);
    assert!(own.is_empty() || !effects.is_empty(), "{own:?} by {ruleset:?}");
    for v6 in [false, true] {
        judged(&ruleset, &effects, v6);
    }
}

/// A tunnel.
pub const TUNNEL: Tunnel = Tunnel {
    ttl: 64,
    dont_fragment: true,
    ..Tunnel::between(
        Encapsulation::Gre,
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
    )
};

fn judged(ruleset: &Ruleset, effects: &[Effect], v6: bool) {
    let evaluator = Evaluator::new(ruleset);
    let interface = |index, name: &str| Some(Interface { index, name: name.into(), ..Interface::default() });
    let addr = |last: u8| match v6 {
        false => [10, 0, last, 1].into(),
        true => [0xfd00, 0, 0, last.into(), 0, 0, 0, 1].into(),
    };
    let tuple = |src, dst, from, to| Tuple {
        src: Some(addr(src)),
        dst: Some(addr(dst)),
        src_port: Some(from),
        dst_port: Some(to),
    };
    let little = Flow { v6, protocol: 6, input: interface(7, "r0"), output: interface(8, "r1"), ..Flow::default() };
    let all = Flow {
        original: tuple(1, 2, 40_000, 80),
        reply: tuple(2, 1, 80, 40_000),
        replies: Some(false),
        // IPS_SEEN_REPLY, IPS_ASSURED, IPS_CONFIRMED.
        status: Some(0xe),
        mark: Some(1),
        zone: Some(0),
        skb_mark: Some(0),
        returns: true,
        ..little.clone()
    };
    let (of_little, of_all) = (evaluator.evaluate(&little), evaluator.evaluate(&all));
    match (&of_little, &of_all) {
        (Answer::Accept { .. }, Answer::Accept { .. }) | (Answer::Drop { .. }, Answer::Drop { .. }) => {}
        (Answer::Accept { .. } | Answer::Drop { .. }, _) => panic!("{of_little:?}, but {of_all:?} by {ruleset:?}"),
        _ => {}
    }
    // Only the kernel knows which devices and bridges are above the ports.
    let above = |table: &Table| {
        let ingress = table.chains.iter().filter_map(|chain| chain.base.as_ref()).any(|base| base.hook == 5);
        ingress || !matches!(table.family, Family::Ip | Family::Ip6 | Family::Inet | Family::Arp)
    };
    if effects.is_empty() && !ruleset.tables.iter().any(above) {
        assert!(matches!(of_all, Answer::Accept { .. }), "no effect, but {of_all:?} by {ruleset:?}");
    }
    if let Answer::Depends { findings } | Answer::Kernel { findings } = &of_all {
        assert!(!findings.is_empty());
    }
}

/// Checks that prefixes of rules and policies are valid, and that every effect leaves packets to the kernel.
pub fn policies(data: &[u8]) {
    let (mut all, mut effects) = (vec![], vec![]);
    for message in Messages::new(&datagram(data, &POLICIES)) {
        let body = message.body;
        match message.kind {
            NEWRULE => all.extend(rules::parse(body).ok().flatten()),
            xfrm::XFRM_MSG_NEWPOLICY => effects.extend(xfrm::parse(body).ok().flatten()),
            xfrm::XFRM_MSG_GETDEFAULT => effects.extend(xfrm::parse_default(body)),
            tc::RTM_NEWQDISC => effects.extend(tc::parse(body).and_then(|qdisc| qdisc.qdisc_effect("r0"))),
            tc::RTM_NEWTFILTER => effects.extend(tc::parse(body).map(|filter| filter.filter_effect("r0"))),
            _ => {}
        }
    }
    let vrf = |id: u16| (id == 1).then(|| Vrf { index: 9, name: "red".into(), table: 10 });
    let port = |id: u16| {
        let (index, name) = (u32::from(id), format!("r{id}"));
        PortLink { id, index, name, vrf: vrf(id), tunnel: (id == 0).then_some(TUNNEL), ..PortLink::default() }
    };
    let ports = [port(0), port(1)];
    effects.extend(rules::analyse(&all, &ports));
    assert_sound(&effects);
    let tunnels = vec![(0, TUNNEL)];
    let reading = Reading { effects: effects.clone(), rules: all, tunnels, ..Reading::default() };
    let verdict = judge(&reading, &ports, &Respect::default());
    for effect in &effects {
        match &effect.scope {
            Scope::All(families) => assert!(verdict.gates.values().all(|gate| gate.closed & *families == *families)),
            Scope::Errors(families) => assert!(verdict.gates.values().all(|gate| gate.errors & *families == *families)),
            Scope::To(prefix) => assert!(verdict.prefixes.contains(prefix)),
            Scope::Own(families) => assert!(!families.v4 || verdict.tunnels.is_empty()),
            _ => {}
        }
    }
}

fn assert_sound(effects: &[Effect]) {
    for Effect { scope, object, reason, .. } in effects {
        assert!(!object.is_empty() && !reason.is_empty(), "{scope:?}");
        match scope {
            Scope::To(prefix) => assert_eq!(Prefix::containing(prefix.addr, prefix.len), Some(*prefix)),
            Scope::All(families) | Scope::Errors(families) => assert_ne!(*families, Families::NONE),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_and_crashes() {
        super::replay::corpus_and_crashes(&[("nftables", super::nftables), ("policies", super::policies)]);
    }
}
