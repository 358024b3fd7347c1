//! Conditions with unusual masks, and actions that set or copy parts of fields, in generated flows.

use super::generate::{IP6S, IPS, Kind, MACS, Random, TP};

/// Returns a condition on Ethernet addresses or a tag, with a mask.
pub fn ethernet(r: &mut Random) -> String {
    match r.below(4) {
        0 => format!("dl_src={}/00:00:00:00:00:ff", r.pick(&MACS[..3])),
        1 => format!("dl_dst={}/ff:00:00:00:ff:00", r.pick(&MACS)),
        2 => format!(
            "vlan_vid={}/{}",
            r.pick(&["0x1005", "0x0005", "0x1000", "0"]),
            r.pick(&["0x1fff", "0x1001", "0xfff", "0xf"])
        ),
        _ => r.pick(&["vlan_tci=0x0005/0x0fff", "vlan_tci=0/0x0fff", "vlan_tci=0x100a/0x1fff"]).into(),
    }
}

/// Returns a condition that a packet of this kind can have, with a mask where the field has one.
pub fn network(r: &mut Random, kind: Kind) -> Option<String> {
    let which = if r.one_in(2) { "src" } else { "dst" };
    Some(match r.below(6) {
        0 | 1 if kind.ip == 4 => {
            format!("nw_{which}={}/{}", r.pick(&IPS), r.pick(&["255.0.0.255", "0.0.0.255", "0.128.1.0", "0.0.0.1"]))
        }
        0 | 1 if kind.ip == 6 => {
            format!("ipv6_{which}={}/{}", r.pick(&IP6S), r.pick(&["ffff::ffff", "::1", "ff00::"]))
        }
        2 if kind.ip == 6 => format!("ipv6_label={}/{}", r.below(4), r.pick(&["0xfffff", "1", "0x3", "0x80000"])),
        3 if kind.ip != 0 => format!("ip_dscp={}", r.below(4)),
        4 if kind.arp => {
            let end = if which == "src" { "s" } else { "t" };
            match r.below(2) {
                0 => format!("arp_{end}ha={}/00:00:00:00:00:01", r.pick(&MACS[..3])),
                _ => format!("arp_{end}pa={}/0.0.0.255", r.pick(&IPS)),
            }
        }
        5 if matches!(kind.proto, 6 | 17 | 132) => {
            format!("tp_{which}={}/{}", r.pick(&TP), r.pick(&["1", "0xff00", "0x8001"]))
        }
        5 if kind.proto == 1 => format!("icmp_code={}", r.below(2)),
        5 if kind.proto == 58 => format!("icmpv6_code={}", r.below(2)),
        _ => return None,
    })
}

/// Returns an action that sets a part of a field, or copies fields of the packet.
pub fn change(r: &mut Random, kind: Kind) -> Option<String> {
    let tp = match kind.proto {
        6 => "tcp",
        17 => "udp",
        132 => "sctp",
        _ => "",
    };
    let end = if r.one_in(2) { ("src", "SRC") } else { ("dst", "DST") };
    let reg = r.below(3);
    // Over OpenFlow 1.0, ovs-ofctl makes `mod_dl_src` and the like of a `set_field`, whatever its mask.
    let masks = !kind.loose;
    Some(match r.below(34) {
        0 if masks => format!("set_field:00:00:00:00:{:02x}:01/00:00:00:00:0f:ff->eth_{}", r.below(16), end.0),
        1 => "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]".into(),
        2 => "move:NXM_OF_ETH_DST[0..15]->NXM_OF_ETH_SRC[8..23]".into(),
        3 => format!("move:NXM_OF_IN_PORT[]->NXM_NX_REG{reg}[0..15]"),
        4 => format!("load:{}->NXM_OF_IN_PORT[]", r.below(7)),
        5 => format!("move:NXM_OF_ETH_TYPE[]->NXM_NX_REG{reg}[0..15]"),
        6 => format!("move:NXM_NX_REG{reg}[]->OXM_OF_METADATA[0..31]"),
        7 => format!("move:OXM_OF_METADATA[0..1]->NXM_OF_ETH_{}[3..4]", end.1),
        8 if masks && kind.ip == 4 => format!("set_field:0.0.{}.1/0.0.255.255->ip_{}", r.below(2), end.0),
        9 if kind.ip == 4 => "move:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[]".into(),
        10 if kind.ip == 4 => format!("move:NXM_OF_IP_{}[0..7]->NXM_NX_REG{reg}[0..7]", end.1),
        11 if kind.ip == 4 => format!("load:{}->NXM_OF_IP_{}[1..4]", r.below(16), end.1),
        8 if masks && kind.ip == 6 => format!("set_field:::{}/::ffff->ipv6_{}", r.below(3), end.0),
        9 if kind.ip == 6 => "move:NXM_NX_IPV6_SRC[0..63]->NXM_NX_IPV6_DST[0..63]".into(),
        10 if kind.ip == 6 => format!("move:NXM_NX_IPV6_{}[0..7]->NXM_NX_REG{reg}[0..7]", end.1),
        11 if kind.ip == 6 => format!("load:{}->NXM_NX_IPV6_{}[60..67]", r.below(256), end.1),
        12 if kind.ip == 6 => format!("set_field:{}->ipv6_label", r.below(6)),
        13 if masks && kind.ip == 6 => format!("set_field:{}/0xff->ipv6_label", r.below(256)),
        14 if kind.ip == 6 => format!("move:NXM_NX_IPV6_LABEL[0..3]->NXM_NX_REG{reg}[0..3]"),
        15 if kind.ip != 0 => format!("set_field:{}->ip_dscp", r.below(64)),
        16 if kind.ip != 0 => format!("set_field:{}->nw_ecn", r.below(4)),
        17 if kind.ip != 0 => format!("load:{}->NXM_NX_IP_ECN[{}]", r.below(2), r.below(2)),
        18 if kind.ip != 0 => format!("load:{}->NXM_NX_IP_TTL[{}]", r.below(4), r.pick(&["0..1", "5..6"])),
        19 if kind.ip != 0 => format!("move:NXM_NX_IP_TTL[]->NXM_NX_REG{reg}[0..7]"),
        20 if kind.ip != 0 => format!("move:NXM_NX_REG{reg}[0..7]->NXM_NX_IP_TTL[]"),
        21 if kind.ip != 0 => {
            r.pick(&["load:0x14->NXM_OF_IP_TOS[]", "load:0x4->NXM_OF_IP_TOS[1..3]", "set_field:8->nw_tos"]).into()
        }
        22 if kind.ip != 0 => format!("move:NXM_OF_IP_TOS[]->NXM_NX_REG{reg}[0..7]"),
        23 if kind.ip != 0 && r.one_in(2) => format!("move:NXM_NX_REG{reg}[0..7]->NXM_OF_IP_TOS[]"),
        23 if kind.ip != 0 => format!("move:NXM_NX_IP_ECN[]->NXM_NX_REG{reg}[0..1]"),
        24 if kind.ip != 0 => format!("move:NXM_OF_IP_PROTO[]->NXM_NX_REG{reg}[0..7]"),
        25 if kind.ip != 0 => format!("move:NXM_NX_IP_FRAG[]->NXM_NX_REG{reg}[0..1]"),
        26 if masks && !tp.is_empty() => format!("set_field:{:#x}/0xff00->{tp}_{}", r.below(256) << 8, end.0),
        27 if !tp.is_empty() => format!("move:{}_SRC[]->{0}_DST[]", tp_name(tp)),
        28 if !tp.is_empty() => format!("move:{}_{}[0..7]->NXM_NX_REG{reg}[0..7]", tp_name(tp), end.1),
        29 if kind.proto == 6 => format!("move:NXM_NX_TCP_FLAGS[0..7]->NXM_NX_REG{reg}[0..7]"),
        29 if kind.proto == 1 => format!("set_field:{}->icmp_{}", r.below(12), r.pick(&["type", "code"])),
        28 if kind.proto == 1 => {
            format!("load:{}->NXM_OF_ICMP_{}[{}]", r.below(4), r.pick(&["TYPE", "CODE"]), r.pick(&["0..1", "2..3"]))
        }
        28 if kind.proto == 58 && kind.nd == 0 => format!("load:{}->NXM_NX_ICMPV6_CODE[1..2]", r.below(4)),
        29 if kind.proto == 58 && kind.nd == 0 => format!("set_field:{}->icmpv6_code", r.below(3)),
        30 if kind.arp => format!("move:NXM_NX_ARP_SHA[]->NXM_OF_ETH_{}[]", end.1),
        31 if kind.arp => "move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[]".into(),
        32 if masks && kind.arp => format!("set_field:0.0.0.{}/0.0.0.255->arp_spa", r.below(4)),
        33 if kind.arp => format!("load:{}->NXM_OF_ARP_OP[]", 1 + r.below(3)),
        30 if kind.nd == 135 => "move:NXM_NX_ND_SLL[]->NXM_OF_ETH_SRC[]".into(),
        31 if masks && kind.nd != 0 => format!("set_field:::{}/::ff->nd_target", r.below(3)),
        32 if kind.nd != 0 => "move:NXM_NX_IPV6_SRC[]->NXM_NX_ND_TARGET[]".into(),
        _ => return None,
    })
}

fn tp_name(tp: &str) -> &'static str {
    match tp {
        "tcp" => "NXM_OF_TCP",
        "udp" => "NXM_OF_UDP",
        _ => "OXM_OF_SCTP",
    }
}
