//! x_tables (iptables) extensions that nf_tables rules may contain (expressions "match" and "target").

use super::flow::{ICMP, ICMP6, Load, View};
use super::octets::{self, Octet, Of, Truth, Why};
use bywash_nl::wire::{u8_at, u16_at, u32_at};

/// Common extensions that do not enable connection tracking or defragmentation (net/netfilter/xt_*.c: nf_ct_netns_get
/// and nf_defrag_*_enable are not called). All others may.
const UNTRACKED_MATCHES: [&str; 30] = [
    "addrtype",
    "ah",
    "bpf",
    "cgroup",
    "comment",
    "dscp",
    "ecn",
    "esp",
    "frag",
    "hashlimit",
    "hl",
    "icmp",
    "icmp6",
    "iprange",
    "ipv6header",
    "length",
    "limit",
    "mac",
    "mark",
    "multiport",
    "owner",
    "pkttype",
    "recent",
    "set",
    "string",
    "tcp",
    "tos",
    "ttl",
    "u32",
    "udp",
];
const UNTRACKED_TARGETS: [&str; 11] =
    ["CLASSIFY", "DSCP", "HL", "LOG", "MARK", "NFLOG", "NFQUEUE", "REJECT", "TCPMSS", "TOS", "TTL"];

/// Returns whether the extension `name` is known not to enable connection tracking.
pub fn is_untracked(target: bool, name: &str) -> bool {
    match target {
        true => UNTRACKED_TARGETS.contains(&name),
        false => UNTRACKED_MATCHES.contains(&name),
    }
}

/// Matches that read the packet, its connection or the time and do nothing else. Others count (`limit`, `quota`,
/// `statistic`), change lists (`recent`, `set`, `connlabel`) or run programs (`bpf`).
const PURE_MATCHES: [&str; 25] = [
    "addrtype",
    "comment",
    "connmark",
    "conntrack",
    "dscp",
    "frag",
    "hl",
    "icmp",
    "icmp6",
    "iprange",
    "length",
    "mac",
    "mark",
    "multiport",
    "owner",
    "pkttype",
    "policy",
    "rpfilter",
    "rt",
    "state",
    "tcp",
    "time",
    "tos",
    "ttl",
    "udp",
];

/// Returns whether a match of x_tables holds for the packets of a flow; `None` if it may have a side effect.
pub fn matches<'a>(view: &View<'_>, name: &'a str, revision: u32, info: &[u8]) -> Option<Truth<'a>> {
    if !PURE_MATCHES.contains(&name) {
        return None;
    }
    let truth = match (name, revision) {
        ("comment", _) => Some(Truth::Yes),
        ("conntrack", 2 | 3) => conntrack(view, info),
        ("tcp", 0) => tcp(view, info),
        ("udp", 0) => udp(view, info),
        ("icmp" | "icmp6", 0) => icmp(view, info, name == "icmp6"),
        ("multiport", 1) => multiport(view, info),
        ("mark", 1) => mark(&view.meta(super::meta::MARK), info),
        ("connmark", 1) => mark(&view.ct(super::ct::MARK, None), info),
        ("addrtype", 1) => addrtype(view, info),
        ("rpfilter", 0) if view.returns() => u8_at(info, 0).map(|flags| (flags & XT_RPFILTER_INVERT == 0).into()),
        // Both look for an extension header of IPv6, and do not match without it, whatever is inverted.
        ("rt" | "frag", 0) if view.is_whole() => Some(Truth::No),
        _ => None,
    };
    Some(truth.unwrap_or(Truth::Maybe(Why { of: Of::Packets, what: name })))
}

// linux/netfilter/xt_rpfilter.h
const XT_RPFILTER_INVERT: u8 = 8;

// linux/netfilter/xt_conntrack.h: struct xt_conntrack_mtinfo3
const MATCH_FLAGS: usize = 146;
const INVERT_FLAGS: usize = 148;
const STATE_MASK: usize = 150;
const XT_CONNTRACK_STATE: u16 = 1;
/// Written `-m state`, which changes nothing else.
const XT_CONNTRACK_STATE_ALIAS: u16 = 1 << 13;
const XT_CONNTRACK_STATE_SNAT: u32 = 1 << 6;
const XT_CONNTRACK_STATE_DNAT: u32 = 1 << 7;
const IPS_SRC_NAT: u32 = 1 << 4;
const IPS_DST_NAT: u32 = 1 << 5;

/// Evaluates conntrack_mt for a match of the state alone; other matches are not evaluated.
fn conntrack(view: &View<'_>, info: &[u8]) -> Option<Truth<'static>> {
    let (flags, inverted) = (u16_at(info, MATCH_FLAGS)?, u16_at(info, INVERT_FLAGS)? & XT_CONNTRACK_STATE != 0);
    let mask = u32::from(u16_at(info, STATE_MASK)?);
    if flags & !XT_CONNTRACK_STATE_ALIAS != XT_CONNTRACK_STATE {
        return None;
    }
    let mut more = 0;
    if view.tracked()? && mask & (XT_CONNTRACK_STATE_SNAT | XT_CONNTRACK_STATE_DNAT) != 0 {
        let status = view.flow().status?;
        more |= if status & IPS_SRC_NAT != 0 { XT_CONNTRACK_STATE_SNAT } else { 0 };
        more |= if status & IPS_DST_NAT != 0 { XT_CONNTRACK_STATE_DNAT } else { 0 };
    }
    let (first, others) = view.states().split_first()?;
    let holds = |state: &u32| (mask & (state | more) != 0) != inverted;
    others.iter().all(|state| holds(state) == holds(first)).then(|| holds(first).into())
}

/// Returns the source or destination port.
fn port(view: &View<'_>, destination: bool) -> Option<Vec<Octet<'static>>> {
    match view.payload(2, if destination { 2 } else { 0 }, 2) {
        Load::Value(octets) => Some(octets[..2].to_vec()),
        _ => None,
    }
}

/// Returns whether a port is within a range; the numbers are in host order.
fn in_range(port: &[Octet<'static>], first: u16, last: u16) -> Truth<'static> {
    octets::within(port, &first.to_be_bytes(), &last.to_be_bytes())
}

/// Returns the port ranges that the matches tcp and udp begin with: source and destination, then flags that invert.
fn ports(view: &View<'_>, info: &[u8], inverted: u8) -> Option<[Truth<'static>; 2]> {
    let range = |at, destination, bit| {
        let truth = in_range(&port(view, destination)?, u16_at(info, at)?, u16_at(info, at + 2)?);
        Some(if inverted & bit != 0 { truth.not() } else { truth })
    };
    Some([range(0, false, 1)?, range(4, true, 2)?])
}

/// Evaluates tcp_mt: struct xt_tcp.
fn tcp(view: &View<'_>, info: &[u8]) -> Option<Truth<'static>> {
    let [option, mask, wanted, inverted] = info.get(8..12)?.try_into().ok()?;
    // An option is a part of the header that is not described.
    if view.flow().protocol != 6 || option != 0 {
        return None;
    }
    let Load::Value(flags) = view.payload(2, 13, 1) else { return None };
    let flags = Octet { value: flags[0].value & mask, known: flags[0].known | !mask, why: flags[0].why };
    let flags = octets::equal(&[flags], &[wanted]);
    let flags = if inverted & 4 != 0 { flags.not() } else { flags };
    let [src, dst] = ports(view, info, inverted)?;
    Some(src.and(dst).and(flags))
}

/// Evaluates udp_mt: struct xt_udp.
fn udp(view: &View<'_>, info: &[u8]) -> Option<Truth<'static>> {
    let [src, dst] = ports(view, info, u8_at(info, 8)?)?;
    Some(src.and(dst))
}

/// Evaluates icmp_match and icmp6_match: struct ipt_icmp, struct ip6t_icmp. The type 255 of the former stands for all.
fn icmp(view: &View<'_>, info: &[u8], v6: bool) -> Option<Truth<'static>> {
    let [wanted, first, last, inverted] = info.get(..4)?.try_into().ok()?;
    let Load::Value(head) = view.payload(2, 0, 2) else { return None };
    if view.flow().protocol != if v6 { ICMP6 } else { ICMP } {
        return None;
    }
    let of_type = octets::equal(&head[..1], &[wanted]).and(octets::within(&head[1..2], &[first], &[last]));
    let matches = if wanted == 0xff && !v6 { Truth::Yes } else { of_type };
    Some(if inverted & 1 != 0 { matches.not() } else { matches })
}

/// Evaluates multiport_mt: struct xt_multiport_v1.
fn multiport(view: &View<'_>, info: &[u8]) -> Option<Truth<'static>> {
    const PORTS: usize = 15;
    let (which, count) = (u8_at(info, 0)?, usize::from(u8_at(info, 1)?));
    let flags = 2 + 2 * PORTS;
    let inverted = u8_at(info, flags + PORTS)? != 0;
    let mut found = Truth::No;
    let mut at = 0;
    while at < count.min(PORTS) {
        let first = u16_at(info, 2 + 2 * at)?;
        let range = u8_at(info, flags + at)? != 0;
        at += usize::from(range);
        let last = u16_at(info, 2 + 2 * at)?;
        at += 1;
        // XT_MULTIPORT_SOURCE, XT_MULTIPORT_DESTINATION, XT_MULTIPORT_EITHER.
        let sides: &[bool] = [&[false][..], &[true], &[false, true]].get(usize::from(which)).copied()?;
        for &side in sides {
            found = found.or(in_range(&port(view, side)?, first, last));
        }
    }
    Some(if inverted { found.not() } else { found })
}

/// Evaluates mark_mt and connmark_mt: struct xt_mark_mtinfo1, struct xt_connmark_mtinfo1.
fn mark<'a>(mark: &Load<'a>, info: &[u8]) -> Option<Truth<'a>> {
    let octets = match mark {
        Load::Value(octets) => octets,
        // Without a connection, connmark_mt does not match.
        Load::Break => return Some(Truth::No),
        Load::Either(_) => return None,
    };
    let masked = octets::bitwise(octets, &u32_at(info, 4)?.to_ne_bytes(), &[0; 4]);
    let equal = octets::equal(&masked, &u32_at(info, 0)?.to_ne_bytes());
    Some(if u8_at(info, 8)? != 0 { equal.not() } else { equal })
}

// linux/netfilter/xt_addrtype.h: struct xt_addrtype_info_v1
const XT_ADDRTYPE_INVERT_DEST: u32 = 2;
/// A bit for each type; those of the kernel's numbers up to UNICAST have the same order.
const XT_ADDRTYPE_LOCAL: u16 = 1 << 2;

/// Evaluates addrtype_mt_v1 for a match of the destination alone.
fn addrtype(view: &View<'_>, info: &[u8]) -> Option<Truth<'static>> {
    let (source, types, flags) = (u16_at(info, 0)?, u16_at(info, 2)?, u32_at(info, 4)?);
    // Of IPv6, other types are found by the address (match_type6).
    let understood = flags & !XT_ADDRTYPE_INVERT_DEST == 0 && (!view.flow().v6 || types == XT_ADDRTYPE_LOCAL);
    let of = view.destination_type().filter(|_| understood && source == 0 && types != 0)?;
    Some(((types >> of & 1 != 0) != (flags != 0)).into())
}
