use super::*;
use crate::fuzz::CHOICE;
use bywash_fib::model::{Bond, Bridge, Bridging, Encapsulation, Families, Tunnel, Vlan, Vxlan};
use bywash_nl::wire;
use proptest::prelude::*;

fn attributes() -> impl Strategy<Value = Vec<u8>> {
    let one = (0u16..44, prop::collection::vec(any::<u8>(), 0..24), -3i16..4);
    prop::collection::vec(one, 0..8).prop_map(|all| {
        let mut bytes = Vec::new();
        for (kind, value, lie) in all {
            // Most lengths are right, because random octets alone never get past the first attribute.
            let lie = if lie > 2 { 5 } else { 0 };
            bytes.extend_from_slice(&((4 + value.len()) as u16 + lie).to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    })
}

/// Returns the VLAN of a link with this `IFLA_INFO_DATA`, and `IFLA_XDP_ATTACHED`.
fn vlan_of(data: &[(u16, &[u8])], attached: u8) -> Option<Vlan> {
    link_with(&[(IFLA_INFO_KIND, b"vlan\0"), (IFLA_INFO_DATA, &attributes_of(data))], attached).vlan
}

#[test]
fn a_vlan_is_plain_without_what_is_not_known() {
    let id = (IFLA_VLAN_ID, &[5, 0][..]);
    let protocol = (IFLA_VLAN_PROTOCOL, &[0x81, 0][..]);
    let flags = |flags: &'static [u8; 8]| (IFLA_VLAN_FLAGS, &flags[..]);
    let reorder = flags(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let whole = [protocol, id, reorder];
    assert_eq!(vlan_of(&whole, 0), Some(Vlan { protocol: 0x8100, id: 5, plain: true }));
    assert_eq!(vlan_of(&[(IFLA_VLAN_PROTOCOL, &[0x88, 0xa8][..]), id, reorder], 0).unwrap().protocol, 0x88a8);
    let mapping = wire::attribute(1, &[0, 0, 0, 0, 3, 0, 0, 0]);
    // VLAN_FLAG_GVRP, LOOSE_BINDING, MVRP and BRIDGE_BINDING beside it; without it; QoS maps; one more.
    for more in [
        flags(&[3, 0, 0, 0, 0xff, 0, 0, 0]),
        flags(&[5, 0, 0, 0, 0xff, 0, 0, 0]),
        flags(&[9, 0, 0, 0, 0xff, 0, 0, 0]),
        flags(&[17, 0, 0, 0, 0xff, 0, 0, 0]),
        flags(&[0, 0, 0, 0, 0xff, 0, 0, 0]),
        (3, &mapping[..]),
        (4, &mapping[..]),
        (6, &[0; 4][..]),
    ] {
        assert!(!vlan_of(&[protocol, id, reorder, more], 0).unwrap().plain, "{more:?}");
    }
    assert!(!vlan_of(&[protocol, id], 0).unwrap().plain);
    assert!(!vlan_of(&whole, 2).unwrap().plain, "an XDP program");
    assert_eq!(vlan_of(&[protocol, reorder], 0), None);
    assert_eq!(vlan_of(&[protocol, id, (IFLA_VLAN_FLAGS, &[1, 0][..])], 0), None);
}

/// Returns a link with these attributes in `IFLA_LINKINFO`, and `IFLA_XDP_ATTACHED`.
fn link_with(info: &[(u16, &[u8])], attached: u8) -> Link {
    let info = attributes_of(info);
    let xdp = wire::attribute(IFLA_XDP_ATTACHED, &[attached]);
    let mut body = vec![0; 16];
    for (kind, value) in
        [(IFLA_IFNAME, &b"e0.5\0"[..]), (IFLA_MTU, &[0xdc, 5, 0, 0]), (IFLA_XDP, &xdp), (IFLA_LINKINFO, &info)]
    {
        body.extend(wire::attribute(kind, value));
    }
    match parse(&Message { kind: RTM_NEWLINK, flags: 0, sequence: 0, port: 0, body: &body }) {
        Ok(Some(Event::Link { link, .. })) => link,
        other => panic!("{other:?}"),
    }
}

fn attributes_of(all: &[(u16, &[u8])]) -> Vec<u8> {
    all.iter().flat_map(|(kind, value)| wire::attribute(*kind, value)).collect()
}

#[test]
fn a_bond_is_plain_without_what_counts_its_packets_or_is_not_known() {
    let of = |data: &[(u16, &[u8])], attached| {
        link_with(&[(IFLA_INFO_KIND, b"bond\0"), (IFLA_INFO_DATA, &attributes_of(data))], attached).bond
    };
    let mode = (IFLA_BOND_MODE, &[1][..]);
    let active = (IFLA_BOND_ACTIVE_SLAVE, &[7, 0, 0, 0][..]);
    let no_arp = (IFLA_BOND_ARP_INTERVAL, &[0; 4][..]);
    let whole = [mode, active, no_arp];
    let bond = Bond { mode: 1, active: Some(7), xmit_hash: 0, plain: true };
    assert_eq!(of(&whole, 0), Some(bond));
    assert_eq!(of(&[mode, no_arp], 0), Some(Bond { active: None, ..bond }));
    assert_eq!(of(&[&whole[..], &[(IFLA_BOND_XMIT_HASH_POLICY, &[1])]].concat(), 0).unwrap().xmit_hash, 1);
    // With any other known property, the bond is plain.
    let more: Vec<(u16, &[u8])> =
        (1..34).filter(|kind| ![1, 2, 7, 14].contains(kind)).map(|k| (k, &[1; 4][..])).collect();
    assert_eq!(of(&[&whole[..], &more].concat(), 0), of(&whole, 0));
    let plain = |data: &[(u16, &[u8])], attached| of(data, attached).unwrap().plain;
    assert!(!plain(&[mode, active, (IFLA_BOND_ARP_INTERVAL, &[100, 0, 0, 0])], 0));
    assert!(!plain(&[mode, active], 0) && !plain(&[mode, active, (IFLA_BOND_ARP_INTERVAL, &[0])], 0));
    assert!(!plain(&[mode, active, no_arp, (34, &[0; 4])], 0), "a property that is not known");
    assert!(!plain(&whole, 2), "an XDP program");
    assert_eq!(of(&[active, no_arp], 0), None);
    assert_eq!(of(&[(IFLA_BOND_MODE, &[]), no_arp], 0), None);
    assert_eq!(of(&[&whole[..], &[(IFLA_BOND_XMIT_HASH_POLICY, &[])]].concat(), 0), None);
}

#[test]
fn a_team_shows_neither_its_mode_nor_its_active_port() {
    let team = Bond { mode: Bond::UNKNOWN, active: None, xmit_hash: 0, plain: true };
    let of = |data: &[u8], attached| link_with(&[(IFLA_INFO_KIND, b"team\0"), (IFLA_INFO_DATA, data)], attached).bond;
    assert_eq!(of(&[], 0), Some(team));
    assert_eq!(link_with(&[(IFLA_INFO_KIND, b"team\0")], 0).bond, Some(team));
    let unknown = attributes_of(&[(IFLA_BOND_MODE, &[1])]);
    assert_eq!([of(&[], 2), of(&unknown, 0)], [Some(Bond { plain: false, ..team }); 2]);
}

#[test]
fn a_member_is_active_while_the_bond_says_so() {
    let of_kind = |kind: &[u8], data: &[(u16, &[u8])]| {
        let data = attributes_of(data);
        let info = [(IFLA_INFO_KIND, &b"veth\0"[..]), (IFLA_INFO_SLAVE_KIND, kind), (IFLA_INFO_SLAVE_DATA, &data)];
        let link = link_with(&info, 0);
        (link.kind == "veth").then_some(link.member).unwrap()
    };
    let of = |data: &[(u16, &[u8])]| of_kind(b"bond\0", data);
    let byte = |kind, value: &'static [u8; 1]| (kind, &value[..]);
    let (state, link) = (byte(IFLA_BOND_SLAVE_STATE, &[0]), byte(IFLA_BOND_SLAVE_MII_STATUS, &[0]));
    let queue = (IFLA_BOND_SLAVE_QUEUE_ID, &[0, 0][..]);
    assert_eq!(of(&[state, link, queue]), Some(Member { active: true, plain: true, ..Member::default() }));
    for other in [
        [byte(IFLA_BOND_SLAVE_STATE, &[1]), link, queue],
        [state, byte(IFLA_BOND_SLAVE_MII_STATUS, &[1]), queue],
        [state, byte(IFLA_BOND_SLAVE_MII_STATUS, &[2]), queue],
        [state, byte(IFLA_BOND_SLAVE_MII_STATUS, &[3]), queue],
    ] {
        assert_eq!(of(&other), Some(Member { active: false, plain: true, ..Member::default() }), "{other:?}");
    }
    let plain = |data: &[(u16, &[u8])]| of(data).unwrap().plain;
    assert!(!plain(&[state, link, (IFLA_BOND_SLAVE_QUEUE_ID, &[2, 0])]) && !plain(&[state, link]));
    assert!(plain(&[state, link, queue, (6, &[1, 0]), (9, &[0; 4]), (12, &[0])]));
    assert!(!plain(&[state, link, queue, (13, &[0])]), "a property that is not known");
    assert_eq!((of(&[link, queue]), of(&[state, queue])), (None, None));
    assert_eq!(of_kind(b"team\0", &[state, link, queue]), None);
}

#[test]
fn a_tunnel_is_plain_without_what_is_not_known() {
    let of = |kind: &[u8], data: &[(u16, &[u8])], attached| {
        link_with(&[(IFLA_INFO_KIND, kind), (IFLA_INFO_DATA, &attributes_of(data))], attached).tunnel
    };
    let (local, remote) = ([192, 0, 2, 1].into(), [198, 51, 100, 1].into());
    let plain = Tunnel {
        encapsulation: Encapsulation::Ipip,
        carries: Families::V4,
        local,
        remote,
        link: 7,
        keys: [None; 2],
        summed: [false; 2],
        ttl: 64,
        tos: 1,
        dont_fragment: true,
        limit: None,
        vxlan: None,
        external: false,
        plain: true,
    };
    let all: Vec<(u16, &[u8])> = vec![
        (IFLA_IPTUN_LINK, &[7, 0, 0, 0]),
        (IFLA_IPTUN_LOCAL, &[192, 0, 2, 1]),
        (IFLA_IPTUN_REMOTE, &[198, 51, 100, 1]),
        (IFLA_IPTUN_TTL, &[64]),
        (IFLA_IPTUN_TOS, &[1]),
        (IFLA_IPTUN_PMTUDISC, &[1]),
        (IFLA_IPTUN_FLAGS, &[0, 0]),
        // 6rd, and ports of an encapsulation that there is none of.
        (11, &[0x20, 2, 0, 0]),
        (13, &[16, 0]),
        (IFLA_IPTUN_ENCAP_TYPE, &[0, 0]),
        (16, &[1, 0]),
        (17, &[1, 0]),
        (IFLA_IPTUN_FWMARK, &[0; 4]),
    ];
    let with = |more: &[(u16, &'static [u8])]| {
        let kept = all.iter().filter(|(kind, _)| more.iter().all(|(other, _)| other != kind));
        kept.copied().chain(more.iter().copied()).collect::<Vec<(u16, &[u8])>>()
    };
    for protocol in [&[0][..], &[4]] {
        assert_eq!(of(b"ipip\0", &with(&[(IFLA_IPTUN_PROTO, protocol)]), 0), Some(plain));
    }
    let sit = Tunnel { encapsulation: Encapsulation::Sit, carries: Families::V6, ..plain };
    assert_eq!(of(b"sit\0", &with(&[(IFLA_IPTUN_PROTO, &[41])]), 0), Some(sit));
    let any: (u16, &'static [u8]) = (IFLA_IPTUN_PROTO, &[0]);
    assert_eq!(of(b"sit\0", &with(&[any]), 2), Some(Tunnel { plain: false, ..sit }), "an XDP program");
    for other in [
        &[(IFLA_IPTUN_PROTO, &[137][..])][..],
        &[],
        &[any, (IFLA_IPTUN_FLAGS, &[1, 0])],
        &[any, (IFLA_IPTUN_ENCAP_TYPE, &[1, 0])],
        &[any, (IFLA_IPTUN_FWMARK, &[0, 0, 0, 1])],
        &[any, (19, &[])],
        &[any, (21, &[0])],
    ] {
        assert_eq!(of(b"sit\0", &with(other), 0), Some(Tunnel { plain: false, ..sit }), "{other:?}");
    }
    assert_eq!(of(b"sit\0", &with(&[any, (IFLA_IPTUN_LOCAL, &[1, 2])]), 0), None, "a short address");
    // With headers from routes, of which it has none itself.
    let by_routes = |encapsulation| {
        let nobody = Ipv4Addr::UNSPECIFIED.into();
        Tunnel { external: true, ..Tunnel::between(encapsulation, nobody, nobody) }
    };
    let external = with(&[(IFLA_IPTUN_PROTO, &[4]), (IFLA_IPTUN_COLLECT_METADATA, &[])]);
    assert_eq!(of(b"ipip\0", &external, 0), Some(by_routes(Encapsulation::Ipip)));

    let gre: Vec<(u16, &[u8])> = vec![
        (IFLA_GRE_LINK, &[7, 0, 0, 0]),
        (IFLA_GRE_IFLAGS, &[0x20, 0]),
        (IFLA_GRE_OFLAGS, &[0, 0]),
        (IFLA_GRE_IKEY, &[0, 0, 1, 2]),
        (IFLA_GRE_OKEY, &[0, 0, 0, 9]),
        (IFLA_GRE_LOCAL, &[192, 0, 2, 1]),
        (IFLA_GRE_REMOTE, &[198, 51, 100, 1]),
        (IFLA_GRE_TTL, &[64]),
        (IFLA_GRE_TOS, &[1]),
        (IFLA_GRE_PMTUDISC, &[1]),
        (IFLA_GRE_ENCAP_TYPE, &[0, 0]),
        (15, &[1, 0]),
        (IFLA_GRE_IGNORE_DF, &[0]),
        (IFLA_GRE_FWMARK, &[0; 4]),
    ];
    let (encapsulation, carries) = (Encapsulation::Gre, Families::BOTH);
    let keyed = Tunnel { encapsulation, carries, keys: [Some(0x102), None], ..plain };
    assert_eq!(of(b"gre\0", &gre, 0), Some(keyed));
    let tap = Tunnel { encapsulation: Encapsulation::Gretap, ..keyed };
    assert_eq!(of(b"gretap\0", &gre, 0), Some(tap));
    assert_eq!(tap.kind(), "gretap");
    // A checksum of received packets, and of sent ones.
    for (kind, value, summed) in
        [(IFLA_GRE_IFLAGS, &[0xa0, 0], [true, false]), (IFLA_GRE_OFLAGS, &[0x80, 0], [false, true])]
    {
        let mut data: Vec<_> = gre.iter().filter(|(other, _)| *other != kind).copied().collect();
        data.push((kind, value));
        assert_eq!(of(b"gretap\0", &data, 0), Some(Tunnel { summed, ..tap }));
        assert_eq!(of(b"gre\0", &data, 0), Some(Tunnel { summed, ..keyed }));
        data.push((IFLA_GRE_COLLECT_METADATA, &[]));
        assert!(of(b"gre\0", &data, 0).is_some_and(|tunnel| !tunnel.plain), "{kind}");
    }
    for (kind, value) in [
        (IFLA_GRE_IFLAGS, &[0x30, 0][..]),
        (IFLA_GRE_OFLAGS, &[0x90, 0]),
        (IFLA_GRE_ENCAP_TYPE, &[2, 0]),
        (IFLA_GRE_IGNORE_DF, &[1]),
        (IFLA_GRE_FWMARK, &[1, 0, 0, 0]),
        (12, &[0; 4]),
        (30, &[0]),
    ] {
        let mut data: Vec<_> = gre.iter().filter(|(other, _)| *other != kind).copied().collect();
        data.push((kind, value));
        assert!(of(b"gre\0", &data, 0).is_some_and(|tunnel| !tunnel.plain), "{kind} {value:?}");
    }
    let external = [&gre[..], &[(IFLA_GRE_COLLECT_METADATA, &[])]].concat();
    assert_eq!(of(b"gre\0", &external, 0), Some(by_routes(Encapsulation::Gre)));
    for kind in [&b"ip6gre\0"[..], b"gretap\0", b"ip6gretap\0"] {
        assert!(!of(kind, &[(IFLA_GRE_COLLECT_METADATA, &[])], 0).unwrap().plain);
    }
    // Over IPv6, with an encapsulation limit, a traffic class, or that of the packets within.
    let (local6, remote6) = ([0x20u8; 16], [0x21u8; 16]);
    let plain6 = Tunnel {
        encapsulation: Encapsulation::Ip6tnl,
        carries: Families::BOTH,
        local: local6.into(),
        remote: remote6.into(),
        tos: 0,
        dont_fragment: false,
        limit: Some(4),
        ..plain
    };
    let iptun: [u16; 9] = [
        IFLA_IPTUN_LINK,
        IFLA_IPTUN_LOCAL,
        IFLA_IPTUN_REMOTE,
        IFLA_IPTUN_TTL,
        IFLA_IPTUN_ENCAP_LIMIT,
        IFLA_IPTUN_FLOWINFO,
        IFLA_IPTUN_FLAGS,
        IFLA_IPTUN_FWMARK,
        IFLA_IPTUN_PROTO,
    ];
    let ip6gre: [u16; 8] = [
        IFLA_GRE_LINK,
        IFLA_GRE_LOCAL,
        IFLA_GRE_REMOTE,
        IFLA_GRE_TTL,
        IFLA_GRE_ENCAP_LIMIT,
        IFLA_GRE_FLOWINFO,
        IFLA_GRE_FLAGS,
        IFLA_GRE_FWMARK,
    ];
    let over6 = |flowinfo: [u8; 4], flags: u32, protocol: u8| {
        let flags = flags.to_ne_bytes();
        let values: [&[u8]; 9] =
            [&[7, 0, 0, 0], &local6, &remote6, &[64], &[4], &flowinfo, &flags, &[0; 4], &[protocol]];
        let of = |kind, attributes: &[u16]| {
            of(kind, &attributes.iter().copied().zip(values).collect::<Vec<(u16, &[u8])>>(), 0).unwrap()
        };
        let [ip6tnl, other, tap] = [of(b"ip6tnl\0", &iptun), of(b"ip6gre\0", &ip6gre), of(b"ip6gretap\0", &ip6gre)];
        assert_eq!(other, Tunnel { encapsulation: Encapsulation::Gre, carries: Families::BOTH, ..ip6tnl });
        assert_eq!(tap, Tunnel { encapsulation: Encapsulation::Gretap, ..other });
        assert_eq!(tap.kind(), "ip6gretap");
        ip6tnl
    };
    assert_eq!(over6([0; 4], IP6_TNL_F_CAP, 0), plain6);
    for (protocol, carries) in [(4, Families::V4), (41, Families::V6)] {
        let of = over6([0x0b, 0x80, 0, 0], IP6_TNL_F_IGN_ENCAP_LIMIT, protocol);
        assert_eq!(of.carries, carries);
    }
    let without = Tunnel { limit: None, ..plain6 };
    assert_eq!(over6([0x0b, 0x80, 0, 0], IP6_TNL_F_IGN_ENCAP_LIMIT, 0), Tunnel { tos: 0xb8, ..without });
    assert_eq!(over6([0; 4], IP6_TNL_F_USE_ORIG_TCLASS, 0), Tunnel { tos: 1, ..plain6 });
    for (flowinfo, flags) in [([0, 0, 0, 1], 0), ([0, 0x10, 0, 0], 0), ([0; 4], 4), ([0; 4], 0x10), ([0; 4], 0x40)] {
        assert!(!over6(flowinfo, flags, 0).plain, "{flowinfo:?} {flags}");
    }
    // Its packets come and leave in another namespace.
    let info = attributes_of(&[(IFLA_INFO_KIND, b"gre\0"), (IFLA_INFO_DATA, &attributes_of(&gre))]);
    let name = (IFLA_IFNAME, &b"g0\0"[..]);
    let body = [
        &[0, 0, 10, 3, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..],
        &attributes_of(&[name, (IFLA_MTU, &[0, 5, 0, 0]), (IFLA_LINK_NETNSID, &[0; 4]), (IFLA_LINKINFO, &info)]),
    ]
    .concat();
    let message = Message { kind: RTM_NEWLINK, flags: 0, sequence: 0, port: 0, body: &body };
    assert!(matches!(parse(&message), Ok(Some(Event::Link { link: Link { tunnel: None, .. }, .. }))));
}

#[test]
fn a_vxlan_is_plain_without_what_is_not_known() {
    let of = |data: &[(u16, &[u8])]| {
        link_with(&[(IFLA_INFO_KIND, b"vxlan\0"), (IFLA_INFO_DATA, &attributes_of(data))], 0).tunnel
    };
    // As Linux 6.18 shows one: id 87 local 10.0.0.1 remote 10.0.0.2 dstport 4789 srcport 49152 65535.
    let all: Vec<(u16, &[u8])> = vec![
        (IFLA_VXLAN_ID, &[87, 0, 0, 0]),
        (IFLA_VXLAN_GROUP, &[10, 0, 0, 2]),
        (IFLA_VXLAN_LOCAL, &[10, 0, 0, 1]),
        (IFLA_VXLAN_TTL, &[0]),
        (IFLA_VXLAN_TTL_INHERIT, &[0]),
        (IFLA_VXLAN_TOS, &[1]),
        (IFLA_VXLAN_DF, &[0]),
        (26, &[0; 4]),
        (32, &[0; 4]),
        (IFLA_VXLAN_LEARNING, &[1]),
        (IFLA_VXLAN_PROXY, &[0]),
        (IFLA_VXLAN_LINK, &[4, 0, 0, 0]),
        (IFLA_VXLAN_RSC, &[0]),
        (13, &[0]),
        (14, &[0]),
        (IFLA_VXLAN_COLLECT_METADATA, &[0]),
        (IFLA_VXLAN_AGEING, &[0x2c, 1, 0, 0]),
        (9, &[0; 4]),
        (IFLA_VXLAN_PORT, &[0x12, 0xb5]),
        (IFLA_VXLAN_UDP_CSUM, &[1]),
        (19, &[0]),
        (20, &[0]),
        (IFLA_VXLAN_REMCSUM_TX, &[0]),
        (IFLA_VXLAN_REMCSUM_RX, &[0]),
        (31, &[1]),
        (IFLA_VXLAN_PORT_RANGE, &[0xc0, 0, 0xff, 0xff]),
        (33, &[0xf7, 0xff, 0xff, 0xff, 0, 0, 0, 0xff]),
    ];
    let sources = [49152, 65535];
    let (checksum, unsummed6, learns, ageing) = (true, false, true, 300);
    let vxlan = Vxlan { vni: 87, port: 4789, sources, checksum, unsummed6, learns, filters: false, ageing, link: 4 };
    let plain = Tunnel {
        encapsulation: Encapsulation::Vxlan,
        carries: Families::BOTH,
        local: [10, 0, 0, 1].into(),
        remote: [10, 0, 0, 2].into(),
        link: 0,
        keys: [None; 2],
        summed: [false; 2],
        ttl: 0,
        tos: 1,
        dont_fragment: false,
        limit: None,
        vxlan: Some(vxlan),
        external: false,
        plain: true,
    };
    assert_eq!(of(&all), Some(plain));
    let with = |kind, value: &'static [u8]| {
        let kept = all.iter().filter(|(other, _)| *other != kind).copied();
        of(&kept.chain([(kind, value)]).collect::<Vec<(u16, &[u8])>>()).unwrap()
    };
    assert_eq!(with(IFLA_VXLAN_DF, &[1]), Tunnel { dont_fragment: true, ..plain });
    assert_eq!(with(IFLA_VXLAN_TTL, &[9]), Tunnel { ttl: 9, ..plain });
    let other = |vxlan| Tunnel { vxlan: Some(vxlan), ..plain };
    assert_eq!(with(IFLA_VXLAN_UDP_CSUM, &[0]), other(Vxlan { checksum: false, ..vxlan }));
    assert_eq!(with(IFLA_VXLAN_LEARNING, &[0]), other(Vxlan { learns: false, ..vxlan }));
    assert_eq!(with(IFLA_VXLAN_VNIFILTER, &[1]), other(Vxlan { filters: true, ..vxlan }));
    for (kind, value) in [
        (IFLA_VXLAN_DF, &[2][..]),
        (IFLA_VXLAN_TOS, &[3]),
        (IFLA_VXLAN_TTL_INHERIT, &[1]),
        (IFLA_VXLAN_PROXY, &[1]),
        (IFLA_VXLAN_RSC, &[1]),
        (IFLA_VXLAN_REMCSUM_RX, &[1]),
        (IFLA_VXLAN_GBP, &[]),
        (IFLA_VXLAN_GPE, &[]),
        (IFLA_VXLAN_LOCAL6, &[0; 16]),
        (IFLA_VXLAN_LABEL, &[0, 0, 0, 1]),
        (IFLA_VXLAN_LABEL_POLICY, &[1, 0, 0, 0]),
        (35, &[0]),
    ] {
        assert!(!with(kind, value).plain, "{kind}");
    }
    // The kernel would learn stations. Packets with headers from routes do not have its own addresses.
    let external = with(IFLA_VXLAN_COLLECT_METADATA, &[1]);
    assert!(!external.plain && external.external && !external.local.is_unspecified());
    let by_routes = external.with_headers_of_routes();
    assert!(by_routes.external && by_routes.local.is_unspecified() && by_routes.remote.is_unspecified());
    assert_eq!(of(&all[1..]), None, "without an identifier");
    // Over IPv6: local fd00::1, with checksums unless told otherwise.
    let local = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let ends = [IFLA_VXLAN_GROUP, IFLA_VXLAN_LOCAL, IFLA_VXLAN_UDP_CSUM];
    let over6 = |[zero_tx, zero_rx]: [&'static [u8]; 2]| {
        let more = [(IFLA_VXLAN_LOCAL6, &local[..]), (IFLA_VXLAN_UDP_CSUM, &[0])];
        let zero = [(IFLA_VXLAN_UDP_ZERO_CSUM6_TX, zero_tx), (IFLA_VXLAN_UDP_ZERO_CSUM6_RX, zero_rx)];
        let kept = all.iter().filter(|(kind, _)| ![&ends[..], &[19, 20]].concat().contains(kind)).copied();
        of(&kept.chain(more).chain(zero).collect::<Vec<(u16, &[u8])>>()).unwrap()
    };
    for (zero, checksum, unsummed6) in [([&[0][..], &[0]], true, false), ([&[1][..], &[1]], false, true)] {
        let vxlan = Some(Vxlan { checksum, unsummed6, ..vxlan });
        let (local, remote) = (local.into(), [0u8; 16].into());
        assert_eq!(over6(zero), Tunnel { local, remote, vxlan, ..plain });
    }
}

#[test]
fn a_vxlans_entry_leads_to_an_end() {
    let mac = [2, 0, 0, 0, 0, 5];
    let head = [AF_BRIDGE, 0, 0, 0, 7, 0, 0, 0, 2, 0, 2, 0];
    let of = |kind, more: &[(u16, &[u8])]| bridged(kind, &head, &[&[(NDA_LLADDR, &mac[..])][..], more].concat());
    let known = Event::Station(Station { bridge: 7, vlan: 0, mac, behind: Behind::End([10, 0, 0, 2].into()) });
    let gone = Event::StationGone { bridge: 7, vlan: 0, mac };
    let end: (u16, &[u8]) = (NDA_DST, &[10, 0, 0, 2]);
    assert_eq!(of(RTM_NEWNEIGH, &[end]), Some(known));
    assert_eq!(of(RTM_DELNEIGH, &[end]), Some(gone.clone()));
    for special in [NDA_PORT, NDA_VNI, NDA_IFINDEX, NDA_NH_ID] {
        assert_eq!(of(RTM_NEWNEIGH, &[end, (special, &[1, 0, 0, 0])]), Some(gone.clone()), "{special}");
    }
    assert_eq!(of(RTM_NEWNEIGH, &[end, (NDA_VNI, &[0; 4])]), Some(gone.clone()), "sent as network 0's");
    assert_eq!(of(RTM_NEWNEIGH, &[(NDA_NH_ID, &[1, 0, 0, 0])]), Some(gone.clone()), "several ends");
    let (network, same, other) =
        ((NDA_SRC_VNI, &[9, 1, 2, 0][..]), (NDA_VNI, &[9, 1, 2, 0][..]), (NDA_VNI, &[9; 4][..]));
    let station = Station { bridge: 7, vlan: 0x2_0109, mac, behind: Behind::End([10, 0, 0, 2].into()) };
    assert_eq!(of(RTM_NEWNEIGH, &[end, network]), Some(Event::Station(station)));
    assert_eq!(of(RTM_NEWNEIGH, &[end, same, network]), Some(Event::Station(station)));
    let gone_there = Event::StationGone { bridge: 7, vlan: 0x2_0109, mac };
    assert_eq!(of(RTM_NEWNEIGH, &[end, network, other]), Some(gone_there.clone()), "sent as another network's");
    assert_eq!(of(RTM_DELNEIGH, &[end, network]), Some(gone_there));
    let far = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let known = Event::Station(Station { bridge: 7, vlan: 0, mac, behind: Behind::End(far.into()) });
    assert_eq!(of(RTM_NEWNEIGH, &[(NDA_DST, &far)]), Some(known));
    let mut near = far;
    (near[0], near[1]) = (0xfe, 0x80);
    for nobody in [&[0; 4][..], &[239, 1, 1, 1], &[0xff; 4], &[0; 16], &[0xff; 16], &near] {
        assert_eq!(of(RTM_NEWNEIGH, &[(NDA_DST, nobody)]), Some(gone.clone()), "{nobody:?}");
    }
    assert_eq!(of(RTM_NEWNEIGH, &[(NDA_DST, &[1; 8])]), Some(gone), "of no family");
    assert_eq!(of(RTM_NEWNEIGH, &[]), None, "an address of a device's own list");
    for mac in [[0; 6], [1, 0, 0x5e, 0, 0, 1], [0xff; 6]] {
        assert_eq!(bridged(RTM_NEWNEIGH, &head, &[(NDA_LLADDR, &mac), end]), None, "{mac:x?}");
    }
}

#[test]
fn a_bridge_is_plain_without_what_is_not_known() {
    let of = |data: &[(u16, &[u8])], attached| {
        link_with(&[(IFLA_INFO_KIND, b"bridge\0"), (IFLA_INFO_DATA, &attributes_of(data))], attached).bridge
    };
    let ageing = (IFLA_BR_AGEING_TIME, &[0x30, 0x75, 0, 0][..]);
    let filtering = |on: &'static [u8; 1]| (IFLA_BR_VLAN_FILTERING, &on[..]);
    let plain = Bridge { ageing_ms: 300_000, plain: true, ..Bridge::default() };
    assert_eq!([of(&[ageing], 0), of(&[ageing, filtering(&[0])], 0)], [Some(plain); 2]);
    let more: Vec<(u16, &[u8])> = (6..50)
        .filter(|kind| ![7, 8].contains(kind) && !(36..=38).contains(kind))
        .map(|kind| (kind, &[1, 0, 0, 0, 1, 0, 0, 0][..]))
        .collect();
    assert_eq!(of(&[&[ageing][..], &more].concat(), 0), Some(plain));
    // With a spanning tree, it may be the delay of 15 s.
    let delay = (IFLA_BR_FORWARD_DELAY, &[0xdc, 5, 0, 0][..]);
    let tree = |on: &'static [u8; 4]| (IFLA_BR_STP_STATE, &on[..]);
    assert_eq!(of(&[ageing, delay, tree(&[0; 4])], 0), Some(plain));
    assert_eq!(of(&[ageing, delay, tree(&[1, 0, 0, 0])], 0), Some(Bridge { ageing_ms: 15_000, ..plain }));
    for kind in 36..=38 {
        assert_eq!(of(&[ageing, (kind, &[1])], 0), Some(Bridge { calls_ip: true, ..plain }), "{kind}");
        assert_eq!(of(&[ageing, (kind, &[0])], 0), Some(plain), "{kind}");
    }
    let not = Some(Bridge { plain: false, ..plain });
    let filters = Bridge { filters: true, ..plain };
    assert_eq!(of(&[ageing, filtering(&[1])], 0), Some(filters));
    let protocol = (IFLA_BR_VLAN_PROTOCOL, &[0x88, 0xa8][..]);
    assert_eq!(of(&[ageing, filtering(&[1]), protocol], 0), Some(Bridge { protocol: 0x88a8, ..filters }));
    let trees = (IFLA_BR_MULTI_BOOLOPT, &[4, 0, 0, 0, 4, 0, 0, 0][..]);
    assert_eq!(of(&[ageing, trees, filtering(&[1])], 0), Some(Bridge { plain: false, ..filters }));
    assert_eq!(of(&[ageing, trees], 0), Some(plain));
    assert_eq!(of(&[ageing, (50, &[0])], 0), not, "a property that is not known");
    assert_eq!(of(&[ageing, (IFLA_BR_MULTI_BOOLOPT, &[0x20, 0, 0, 0, 0x20, 0, 0, 0])], 0), not, "an option");
    assert_eq!(of(&[ageing], 2), not, "an XDP program");
    assert_eq!(of(&[(IFLA_BR_AGEING_TIME, &[0; 4])], 0), Some(Bridge { ageing_ms: 0, plain: false, ..plain }));
    assert_eq!(of(&[filtering(&[0])], 0), None);
}

/// Returns the event of a message of AF_BRIDGE.
fn bridged(kind: u16, head: &[u8], attributes: &[(u16, &[u8])]) -> Option<Event> {
    let body = [head, &attributes_of(attributes)].concat();
    parse(&Message { kind, flags: 0, sequence: 0, port: 0, body: &body }).unwrap()
}

#[test]
fn a_bridges_member_announces_its_state() {
    let head = [AF_BRIDGE, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let of = |data: &[(u16, &[u8])]| match bridged(RTM_NEWLINK, &head, &[(IFLA_PROTINFO, &attributes_of(data))]) {
        Some(Event::BridgePort(9, member)) => Some(member),
        None => None,
        other => panic!("{other:?}"),
    };
    let (forwards, learns) = ((IFLA_BRPORT_STATE, &[3][..]), (IFLA_BRPORT_LEARNING, &[1][..]));
    assert_eq!(of(&[forwards, learns]), Some(Member { active: true, plain: true, learns: true, ..Member::default() }));
    for state in [0, 1, 2, 4] {
        let state = (IFLA_BRPORT_STATE, &[state][..]);
        assert_eq!(
            of(&[state, learns]),
            Some(Member { active: false, plain: true, learns: true, ..Member::default() })
        );
    }
    let tunnels = of(&[forwards, learns, (IFLA_BRPORT_VLAN_TUNNEL, &[1])]);
    assert_eq!(tunnels.map(|state| (state.plain, state.tunnels)), Some((true, true)));
    let special = [IFLA_BRPORT_LOCKED, IFLA_BRPORT_MAB];
    let more: Vec<(u16, &[u8])> = (2..45)
        .filter(|kind| ![8, IFLA_BRPORT_VLAN_TUNNEL].contains(kind) && !special.contains(kind))
        .map(|kind| (kind, &[1; 4][..]))
        .collect();
    // Of what frames between members need, the kernel has always told whether they are isolated.
    let bridging = |data: &[(u16, &[u8])]| of(&[&[forwards, learns][..], data].concat()).unwrap().bridging;
    for (data, expected) in [
        (&[][..], Bridging::Kernel),
        (&[(IFLA_BRPORT_ISOLATED, &[0][..])], Bridging::Any),
        (&[(IFLA_BRPORT_ISOLATED, &[1])], Bridging::Isolated),
        (&[(IFLA_BRPORT_ISOLATED, &[0]), (IFLA_BRPORT_BACKUP_PORT, &[0, 1, 0, 0])], Bridging::Kernel),
        (&[(IFLA_BRPORT_ISOLATED, &[0]), (IFLA_BRPORT_BACKUP_NHID, &[1, 0, 0, 0])], Bridging::Kernel),
        (&[(IFLA_BRPORT_ISOLATED, &[0]), (IFLA_BRPORT_BACKUP_NHID, &[0; 4])], Bridging::Any),
    ] {
        assert_eq!(bridging(data), expected, "{data:?}");
    }
    let all = [Bridging::Any, Bridging::Isolated, Bridging::Kernel];
    let reached = |from: Bridging| all.map(|to| from.reaches(to));
    assert_eq!(all.map(reached), [[true, true, false], [true, false, false], [false; 3]]);
    assert_eq!(
        of(&[&[forwards, learns][..], &more].concat()),
        Some(Member { active: true, plain: true, learns: true, ..Member::default() })
    );
    let not = Some(Member { active: true, plain: false, learns: true, ..Member::default() });
    for kind in special {
        assert_eq!(of(&[forwards, learns, (kind, &[1])]), not, "{kind}");
        assert_eq!(
            of(&[forwards, learns, (kind, &[0])]),
            Some(Member { active: true, plain: true, learns: true, ..Member::default() }),
            "{kind}"
        );
    }
    assert_eq!(of(&[forwards, learns, (45, &[0])]), not, "a property that is not known");
    let told = Some(Member { active: true, plain: true, ..Member::default() });
    assert_eq!(of(&[forwards, (IFLA_BRPORT_LEARNING, &[0])]), told);
    assert_eq!(of(&[forwards]), Some(Member { active: true, ..Member::default() }), "not known whether it learns");
    assert_eq!(of(&[learns]), None);
    assert_eq!(bridged(RTM_DELLINK, &head, &[(IFLA_PROTINFO, &attributes_of(&[forwards, learns]))]), None);
    assert_eq!(bridged(RTM_NEWLINK, &head, &[]), None, "the bridge itself");
}

#[test]
fn stations_of_bridges_are_followed() {
    let mac = [2, 0, 0, 0, 0, 5];
    let of = |kind, state: u16, attributes: &[(u16, &[u8])]| {
        let [low, high] = state.to_ne_bytes();
        bridged(kind, &[AF_BRIDGE, 0, 0, 0, 9, 0, 0, 0, low, high, 0, 0], attributes)
    };
    let (lladdr, bridge) = ((NDA_LLADDR, &mac[..]), (NDA_MASTER, &[7, 0, 0, 0][..]));
    let known = Event::Station(Station { bridge: 7, vlan: 0, mac, behind: Behind::Member(9) });
    let gone = Event::StationGone { bridge: 7, vlan: 0, mac };
    for state in [NUD_STALE, NUD_NOARP, 2] {
        assert_eq!(of(RTM_NEWNEIGH, state, &[lladdr, bridge]), Some(known.clone()));
    }
    assert_eq!(of(RTM_DELNEIGH, NUD_STALE, &[lladdr, bridge]), Some(gone.clone()));
    let own = Event::Station(Station { bridge: 7, vlan: 0, mac, behind: Behind::Member(7) });
    assert_eq!(of(RTM_NEWNEIGH, NUD_PERMANENT, &[lladdr, bridge]), Some(own), "the bridge's own address");
    let locked = (NDA_FLAGS_EXT, &[2, 0, 0, 0][..]);
    assert_eq!(of(RTM_NEWNEIGH, NUD_STALE, &[lladdr, bridge, locked]), Some(gone));
    let in_vlan = Event::Station(Station { bridge: 7, vlan: 258, mac, behind: Behind::Member(9) });
    assert_eq!(of(RTM_NEWNEIGH, NUD_STALE, &[lladdr, bridge, (NDA_VLAN, &[2, 1])]), Some(in_vlan));
    let gone = Event::StationGone { bridge: 7, vlan: 258, mac };
    assert_eq!(of(RTM_DELNEIGH, 2, &[lladdr, bridge, (NDA_VLAN, &[2, 1])]), Some(gone));
    assert_eq!(of(RTM_NEWNEIGH, NUD_STALE, &[lladdr]), None, "a device's own list");
}

#[test]
fn vlans_of_a_bridge_are_distinguished_by_how_they_are_sent() {
    let of = |entries: &[&[(u16, &[u8])]]| {
        let entries: Vec<Vec<u8>> = entries.iter().map(|entry| attributes_of(entry)).collect();
        let all: Vec<(u16, &[u8])> = entries.iter().map(|entry| (BRIDGE_VLANDB_ENTRY, &entry[..])).collect();
        match bridged(RTM_NEWVLAN, &[AF_BRIDGE, 0, 0, 0, 9, 0, 0, 0], &all) {
            Some(Event::BridgeVlans(9, BridgeVlans { untagged, tagged, .. })) => {
                (untagged, tagged.iter().map(|range| (range.first, range.last)).collect::<Vec<_>>())
            }
            other => panic!("{other:?}"),
        }
    };
    let info = |flags: &'static [u8; 4]| (BRIDGE_VLANDB_ENTRY_INFO, &flags[..]);
    let (both, ingress, egress, neither) =
        (info(&[6, 0, 2, 1]), info(&[2, 0, 2, 1]), info(&[4, 0, 2, 1]), info(&[0, 0, 5, 0]));
    let state = |state: &'static [u8; 1]| (BRIDGE_VLANDB_ENTRY_STATE, &state[..]);
    let forwards = state(&[3]);
    let range = (BRIDGE_VLANDB_ENTRY_RANGE, &[9, 0][..]);
    assert_eq!(of(&[&[both, forwards]]), (258, vec![]));
    assert_eq!(of(&[&[neither, forwards], &[both, forwards], &[egress, forwards]]), (258, vec![(5, 5)]));
    assert_eq!(of(&[&[neither, forwards, range], &[ingress, forwards]]), (0, vec![(5, 9), (258, 258)]));
    for other in [
        &[egress, forwards][..],
        &[neither],
        &[ingress, state(&[1])],
        &[neither, forwards, (BRIDGE_VLANDB_ENTRY_TUNNEL_INFO, &[])],
        &[both],
        &[both, state(&[2])],
        &[both, forwards, (BRIDGE_VLANDB_ENTRY_RANGE, &[9, 1])],
        &[both, forwards, (BRIDGE_VLANDB_ENTRY_TUNNEL_INFO, &[])],
    ] {
        assert_eq!(of(&[other]), (0, vec![]), "{other:?}");
    }
    assert_eq!(of(&[]), (0, vec![]));
    let vni = attributes_of(&[(BRIDGE_VLANDB_TINFO_ID, &[1, 0, 1, 0])]);
    let network = (BRIDGE_VLANDB_ENTRY_TUNNEL_INFO, &vni[..]);
    assert_eq!(of(&[&[neither, forwards, range, network]]), (0, vec![(5, 9)]));
    assert_eq!(of(&[&[both, forwards, network], &[egress, forwards, network]]), (0, vec![]), "no VNI without a tag");
    let entry = attributes_of(&[neither, forwards, range, network]);
    let parsed = bridged(RTM_NEWVLAN, &[AF_BRIDGE, 0, 0, 0, 9, 0, 0, 0], &[(BRIDGE_VLANDB_ENTRY, &entry)]);
    let Some(Event::BridgeVlans(9, vlans)) = parsed else { panic!("{parsed:?}") };
    assert_eq!([4, 5, 9, 10].map(|vlan| vlans.vni(vlan)), [None, Some(0x1_0001), Some(0x1_0005), None]);
    let network = attributes_of(&[(VXLAN_VNIFILTER_ENTRY_START, &[7, 0, 1, 0])]);
    let more =
        attributes_of(&[(VXLAN_VNIFILTER_ENTRY_START, &[9, 0, 0, 0]), (VXLAN_VNIFILTER_ENTRY_END, &[12, 0, 0, 0])]);
    let entries = [(VXLAN_VNIFILTER_ENTRY, &network[..]), (VXLAN_VNIFILTER_ENTRY, &more)];
    let of = |kind| bridged(kind, &[AF_BRIDGE, 0, 0, 0, 9, 0, 0, 0], &entries);
    let all = vec![(0x1_0007, 0x1_0007), (9, 12)];
    assert_eq!(of(RTM_NEWTUNNEL), Some(Event::Networks(9, all.clone())));
    assert_eq!(of(RTM_DELTUNNEL), Some(Event::NetworksGone(9, all)));
    let body = [&[AF_BRIDGE, 0, 0, 0, 9, 0, 0, 0][..], &attributes_of(&[(BRIDGE_VLANDB_ENTRY, &[])])].concat();
    assert!(parse(&Message { kind: RTM_NEWVLAN, flags: 0, sequence: 0, port: 0, body: &body }).is_err());
}

proptest! {
    #[test]
    fn no_message_makes_it_panic(
        kind in prop::sample::select(CHOICE.kinds),
        family in prop::sample::select(CHOICE.families),
        fixed in prop::collection::vec(any::<u8>(), 0..16),
        attributes in attributes(),
        flags in any::<u16>(),
    ) {
        let mut body = vec![family];
        body.extend(fixed);
        body.extend(attributes);
        let message = Message { kind, flags, sequence: 0, port: 0, body: &body };
        if let Ok(Some(Event::Route { key, .. })) = parse(&message) {
            let longest = if key.prefix.addr.is_ipv4() { 32 } else { 128 };
            prop_assert!(key.prefix.len <= longest);
        }
    }
}

#[test]
fn a_subnet_is_no_longer_than_an_address() {
    let read = |family, len, addr: &[u8]| {
        let mut body = vec![family, len, 0, 0, 7, 0, 0, 0];
        body.extend((addr.len() as u16 + 4).to_ne_bytes());
        body.extend(IFA_LOCAL.to_ne_bytes());
        body.extend(addr);
        parse(&Message { kind: RTM_NEWADDR, flags: 0, sequence: 0, port: 0, body: &body }).map(|event| event.is_some())
    };
    assert_eq!(read(AF_INET, 32, &[10, 0, 0, 1]), Ok(true));
    assert_eq!(read(AF_INET, 33, &[10, 0, 0, 1]), Err(Malformed));
    assert_eq!(read(AF_INET6, 128, &[0xfd; 16]), Ok(true));
    assert_eq!(read(AF_INET6, 129, &[0xfd; 16]), Err(Malformed));
}

/// Returns the object and the legs of an announced route over link 3.
fn legs_of(family: u8, attributes: &[(u16, &[u8])]) -> (u32, Vec<Leg>) {
    let mut body = vec![family, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    body.extend(attributes_of(&[(RTA_OIF, &3u32.to_ne_bytes())]));
    body.extend(attributes_of(attributes));
    match parse(&Message { kind: RTM_NEWROUTE, flags: 0, sequence: 0, port: 0, body: &body }) {
        Ok(Some(Event::Route { body, .. })) => (body.object, body.legs),
        other => panic!("{other:?}"),
    }
}

/// A locked MTU without a value means 576 octets to IPv4, and only by a gateway.
#[test]
fn a_lock_without_an_mtu_is_for_the_kernel() {
    let (mtu, lock) = ((RTAX_MTU, &[120, 5, 0, 0][..]), (RTAX_LOCK, &[1 << RTAX_MTU, 0, 0, 0][..]));
    let kernels = |family, metrics: &[(u16, &[u8])], more: &[(u16, &[u8])]| {
        let metrics = attributes_of(metrics);
        let (object, legs) = legs_of(family, &[&[(RTA_METRICS, &metrics[..])], more].concat());
        assert_eq!(legs.len(), usize::from(object == 0));
        legs.iter().any(|leg| matches!(leg.encap, Encap::Kernel(_)))
    };
    assert!(kernels(AF_INET, &[lock], &[]));
    assert!(kernels(AF_INET, &[lock], &[(RTA_NH_ID, &[7, 0, 0, 0])]));
    assert!(!kernels(AF_INET, &[lock, mtu], &[]) && !kernels(AF_INET, &[mtu], &[]));
    assert!(!kernels(AF_INET, &[], &[(RTA_NH_ID, &[7, 0, 0, 0])]));
    assert!(!kernels(AF_INET, &[(RTAX_LOCK, &[1 << 3, 0, 0, 0])], &[]), "another metric");
    assert!(!kernels(AF_INET6, &[lock], &[]));
}

#[test]
fn cached_routes_are_of_no_concern() {
    let mut body = [0; 12];
    body[0] = AF_INET;
    body[8..].copy_from_slice(&RTM_F_CLONED.to_ne_bytes());
    assert_eq!(parse(&Message { kind: RTM_NEWROUTE, flags: 0, sequence: 0, port: 0, body: &body }), Ok(None));
}

/// Headers that the kernel puts around packets in an external tunnel; whatever else a route may have is left to the
/// kernel.
#[test]
fn encapsulations_are_headers_of_tunnels_or_the_kernels() {
    let remote = IpAddr::from([192, 0, 2, 2]);
    let encap = |more: &[(u16, &[u8])], kind: u16| {
        let mut all: Vec<(u16, &[u8])> =
            vec![(LWTUNNEL_IP_ID, &[0, 0, 0, 0, 0, 1, 2, 3]), (LWTUNNEL_IP_DST, &[192, 0, 2, 2])];
        all.extend([(LWTUNNEL_IP_SRC, &[0; 4][..]), (LWTUNNEL_IP_TTL, &[9]), (LWTUNNEL_IP_TOS, &[0x10])]);
        all.retain(|(kind, _)| more.iter().all(|(other, _)| other != kind));
        all.extend(more);
        let mut leg = Leg::of(0);
        leg_attribute(AF_INET, RTA_ENCAP, &attributes_of(&all), &mut leg);
        leg_attribute(AF_INET, RTA_ENCAP_TYPE, &kind.to_ne_bytes(), &mut leg);
        leg.encap
    };
    let header = OuterHeader { id: 0x1_0203, keyed: false, ttl: 9, tos: 0x10, checksum: false, dont_fragment: false };
    let outer = Outer { remote, source: [0; 4].into(), header };
    assert_eq!(encap(&[], LWTUNNEL_ENCAP_IP), Encap::Outer(outer));
    let flags = encap(&[(LWTUNNEL_IP_FLAGS, &[0, 1])], LWTUNNEL_ENCAP_IP);
    assert_eq!(flags, Encap::Outer(Outer { header: OuterHeader { checksum: true, ..header }, ..outer }));
    let flags = encap(&[(LWTUNNEL_IP_FLAGS, &[0, 4])], LWTUNNEL_ENCAP_IP);
    assert_eq!(flags, Encap::Outer(Outer { header: OuterHeader { keyed: true, ..header }, ..outer }));
    let own = encap(&[(LWTUNNEL_IP_SRC, &[192, 0, 2, 1])], LWTUNNEL_ENCAP_IP);
    assert_eq!(own, Encap::Outer(Outer { source: [192, 0, 2, 1].into(), ..outer }));
    let v6: [u8; 16] = std::array::from_fn(|at| if at == 0 { 0xfd } else { 1 });
    let over6 = encap(&[(LWTUNNEL_IP_DST, &v6), (LWTUNNEL_IP_SRC, &[0; 16])], LWTUNNEL_ENCAP_IP6);
    assert_eq!(over6, Encap::Outer(Outer { remote: v6.into(), source: [0; 16].into(), header }));
    // MPLS, another family; more than 32 bits of a number, ECN bits, sequence numbers, DF, options, a group, two
    // families.
    assert_eq!(encap(&[], LWTUNNEL_ENCAP_NONE), Encap::None);
    let mut kernels = std::collections::HashSet::new();
    for kind in [1, LWTUNNEL_ENCAP_IP6, 5] {
        kernels.insert(encap(&[], kind));
    }
    for more in [
        (LWTUNNEL_IP_ID, &[0, 0, 0, 1, 0, 0, 0, 0][..]),
        (LWTUNNEL_IP_TOS, &[1]),
        (LWTUNNEL_IP_FLAGS, &[0, 8]),
        (LWTUNNEL_IP_FLAGS, &[1, 0]),
        (8, &[0; 4]),
        (LWTUNNEL_IP_DST, &[224, 0, 0, 1]),
        (LWTUNNEL_IP_DST, &v6),
    ] {
        kernels.insert(encap(&[more], LWTUNNEL_ENCAP_IP));
    }
    // The kernel tells them apart.
    assert_eq!(kernels.len(), 10);
    assert!(kernels.iter().all(|encap| matches!(encap, Encap::Kernel(_))), "{kernels:?}");
    // Not by counters.
    let of = |kind, count| encap(&[(kind, &[count])], 7);
    assert!(of(SEG6_LOCAL_COUNTERS, 1) == of(SEG6_LOCAL_COUNTERS, 2) && of(9, 1) != of(9, 2));
    // The type alone, or first.
    let mut leg = Leg::of(0);
    leg_attribute(AF_INET, RTA_ENCAP_TYPE, &LWTUNNEL_ENCAP_IP.to_ne_bytes(), &mut leg);
    assert!(matches!(leg.encap, Encap::Kernel(_)));
    leg_attribute(AF_INET, RTA_ENCAP, &[], &mut leg);
    assert!(matches!(leg.encap, Encap::Kernel(_)));
}

/// The kernel sends to the destinations themselves if the scope is narrower than a link's (rt_set_nexthop).
#[test]
fn the_scope_of_a_next_hop_decides_about_its_gateway() {
    let gateway_of = |family, scope, addr: &[u8]| {
        let mut body = vec![family, scope, 0, 0, 0, 0, 0, 0];
        body.extend(attributes_of(&[(NHA_ID, &[1, 0, 0, 0]), (NHA_OIF, &[3, 0, 0, 0]), (NHA_GATEWAY, addr)]));
        match parse(&Message { kind: RTM_NEWNEXTHOP, flags: 0, sequence: 0, port: 0, body: &body }) {
            Ok(Some(Event::Object(1, Object::Leg(leg)))) => leg.gateway,
            other => panic!("{other:?}"),
        }
    };
    let addr = IpAddr::from([10, 0, 2, 1]);
    let of = |scope| gateway_of(AF_INET, scope, &[10, 0, 2, 1]);
    assert_eq!([of(RT_SCOPE_LINK), of(RT_SCOPE_LINK + 1)], [Some(addr), None]);
    assert!(gateway_of(AF_INET6, RT_SCOPE_LINK + 1, &[0xfd; 16]).is_some());
}
