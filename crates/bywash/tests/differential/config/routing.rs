//! Routes, next hops, addresses, neighbours and rules.

use super::{Feature, Object};
use crate::change::Change;
use crate::random::Random;
use crate::topology::{PORTS, host_mac, text};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Tables besides main that rules look up.
const TABLES: [u32; 3] = [100, 101, 102];

/// Returns a prefix. The choice is small, so that prefixes often contain or adjoin each other.
pub fn prefix(random: &Random, v6: bool) -> String {
    if v6 {
        let base = Ipv6Addr::new(
            0xfd10,
            random.below(3) as u16,
            random.pick(&[0, 1, 0x8000]),
            0,
            0,
            0,
            0,
            random.pick(&[0, 1, 0x80]),
        );
        let base = random.pick(&[
            base,
            base,
            base,
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0),
            Ipv6Addr::new(0xfd00, 1 + random.below(PORTS) as u16, 0, 0, 0, 0, 0, 0),
        ]);
        let length = random.pick(&[0, 3, 16, 31, 32, 33, 47, 48, 48, 63, 64, 64, 64, 65, 112, 120, 127, 128, 128]);
        let mask = if length == 0 { 0 } else { u128::MAX << (128 - length) };
        return format!("{}/{length}", Ipv6Addr::from(u128::from(base) & mask));
    }
    let base = [10, 10 + random.below(3) as u8, random.pick(&[0, 1, 128]), random.pick(&[0, 1, 64, 128, 255])];
    let base = random.pick(&[base, base, base, [192, 0, 2, 0], [10, 0, 1 + random.below(PORTS) as u8, 0]]);
    let length = random.pick(&[0, 1, 8, 8, 15, 16, 16, 17, 23, 24, 24, 24, 25, 30, 31, 32, 32]);
    let mask = if length == 0 { 0 } else { u32::MAX << (32 - length) };
    format!("{}/{length}", Ipv4Addr::from(u32::from_be_bytes(base) & mask))
}

/// Returns the address of a host, or one nearby: 2 to 5 have neighbour entries, the others do not exist.
fn gateway(random: &Random, n: usize, v6: bool) -> String {
    let host = random.pick(&[2, 2, 3, 3, 4, 5, 5, 6]);
    match v6 {
        false => format!("10.0.{n}.{host}"),
        true if random.chance(15) => format!("fe80::{n}:{host}"),
        true => format!("fd00:{n}::{host}"),
    }
}

/// Returns one path, in the syntax of `ip nexthop` and of `ip route`.
fn way(random: &Random, v6: bool) -> String {
    let n = 1 + random.below(PORTS);
    match random.below(20) {
        0 => format!("dev p{n}"),
        1 if !v6 => format!("via 172.16.{n}.{} dev p{n} onlink", 1 + random.below(3)),
        2 | 3 if !v6 => format!("via inet6 {} dev p{n}", gateway(random, n, true)),
        _ => format!("via {} dev p{n}", gateway(random, n, v6)),
    }
}

/// Returns a route, in table main if `table` is `None`.
pub fn route(random: &Random, feature: Feature, table: Option<u32>, features: &[Feature]) -> Object {
    let local = features.contains(&Feature::LocalRoutes);
    let v6 = random.chance(45);
    let (family, prefix) = (if v6 { "-6 " } else { "" }, prefix(random, v6));
    let mut key = prefix;
    if let Some(table) = table {
        key += &format!(" table {table}");
    }
    if random.chance(25) {
        key += &format!(" metric {}", random.pick(&[1, 10, 100, 1024, 2000]));
    }
    if !v6 && features.contains(&Feature::Tos) && random.chance(8) {
        key += &format!(" tos {}", random.pick(&["0x10", "0x08", "0x04"]));
    }
    if v6 && random.chance(5) {
        key = format!("{key} from fd00:{}::/64", 1 + random.below(PORTS));
    }
    let (mut kind, mut way) = match random.below(100) {
        0..7 => ("blackhole ", String::new()),
        7..14 => ("unreachable ", String::new()),
        14..20 => ("prohibit ", String::new()),
        20..24 => ("throw ", String::new()),
        24..26 if local => ("local ", format!("dev {}", random.pick(&["lo", "p1", "p2"]))),
        26..28 if local && !v6 => ("broadcast ", format!("dev p{}", 1 + random.below(PORTS))),
        28..30 => ("multicast ", format!("dev p{}", 1 + random.below(PORTS))),
        30..45 => {
            let hops = 2 + random.below(3);
            let hop = |random: &Random| {
                let weight = if random.chance(30) { format!(" weight {}", 1 + random.below(5)) } else { String::new() };
                format!("nexthop {}{weight}", way(random, v6))
            };
            ("", (0..hops).map(|_| hop(random)).collect::<Vec<_>>().join(" "))
        }
        45..55 if feature == Feature::Nexthops => ("", format!("nhid {}", 1 + random.below(12))),
        _ => ("", way(random, v6)),
    };
    if feature == Feature::Nexthops {
        (kind, way) = ("", format!("nhid {}", 1 + random.below(12)));
    }
    if random.chance(12) {
        let lock = if random.chance(30) { "lock " } else { "" };
        way = format!("mtu {lock}{} {way}", random.pick(&[1280, 1300, 1400, 1499, 1501, 9000]));
    }
    let verb = random.pick(&["add", "add", "replace", "append"]);
    Object::ip(format!("{family}route {verb} {kind}{key} {way}"), format!("{family}route del {kind}{key} {way}"))
}

/// Returns a next hop object or group, or a route that uses one.
pub fn nexthop(random: &Random, named: u32, features: &[Feature]) -> Object {
    if random.chance(50) {
        return route(random, Feature::Nexthops, None, features);
    }
    // 1 to 8 are single next hops, 9 to 12 are groups.
    let id = 1 + named % 12;
    let what = if id > 8 {
        let members: Vec<String> = (0..2 + random.below(2))
            .map(|_| 1 + random.below(8))
            .map(
                |member| {
                    if random.chance(30) { format!("{member},{}", 1 + random.below(4)) } else { member.to_string() }
                },
            )
            .collect();
        let kind = if random.chance(15) { " type resilient buckets 8" } else { "" };
        format!("group {}{kind}", members.join("/"))
    } else if random.chance(10) {
        format!("{}blackhole", random.pick(&["", "-6 "]))
    } else {
        let v6 = random.chance(50);
        way(random, v6).replace("via inet6", "via")
    };
    let (family, what) = what.strip_prefix("-6 ").map_or(("", what.as_str()), |rest| ("-6 ", rest));
    let family = if family.is_empty() && what.starts_with("dev") { random.pick(&["-4 ", "-6 "]) } else { family };
    Object::ip(format!("{family}nexthop replace id {id} {what}"), format!("nexthop del id {id}"))
}

pub fn address(random: &Random) -> Object {
    let n = 1 + random.below(PORTS);
    let m = 1 + random.below(200);
    let device = if random.chance(15) { "lo".into() } else { format!("p{n}") };
    let address = match random.below(12) {
        0 | 1 => format!("10.0.{n}.{}/24", 6 + random.below(240)),
        2 => format!("10.9.{n}.{m}/32"),
        3 => format!("10.9.{n}.{}/31", m & !1),
        4 => format!("10.9.{n}.{m}/30"),
        5 => format!("10.10.0.{m}/24"),
        6 => format!("10.9.{n}.{m} peer 10.9.{n}.{}/32", m + 1),
        7 => format!("10.10.{n}.{m}/16 noprefixroute"),
        8 => format!("fd00:{n}::{}/64", 10 + m),
        9 => format!("fd10:{n}::{m}/128"),
        10 => format!("fd10:{n}::{m}/127"),
        _ => format!("fd10:{n}::{m}/64 preferred_lft 0"),
    };
    let nodad = if address.contains(':') { " nodad" } else { "" };
    let plain = address.split_whitespace().next().unwrap().to_owned();
    let back = if address.contains("peer") { address.clone() } else { plain };
    Object::ip(format!("address add {address} dev {device}{nodad}"), format!("address del {back} dev {device}"))
}

pub fn neighbour(random: &Random) -> Object {
    let n = 1 + random.below(PORTS);
    let host = random.pick(&[2, 3, 4, 5, 6, 7]);
    let mac = |host| text(host_mac(n - 1, host));
    let address = random.pick(&[
        format!("10.0.{n}.{host}"),
        format!("fd00:{n}::{host}"),
        format!("fe80::{n}:{host}"),
        format!("172.16.{n}.{}", 1 + random.below(3)),
        format!("10.10.0.{}", random.below(3)),
        format!("fd10::{}", random.below(3)),
    ]);
    let known = Change::Ip(format!("neighbour replace {address} lladdr {} nud permanent dev p{n}", mac(host)));
    let gone = Change::Ip(format!("neighbour del {address} dev p{n}"));
    let other =
        |nud: &str, host| Change::Ip(format!("neighbour replace {address} lladdr {} nud {nud} dev p{n}", mac(host)));
    let (add, remove) = match random.below(10) {
        0..3 => (known, gone),
        3..5 => (gone, known),
        5 => (Change::Ip(format!("neighbour replace {address} nud failed dev p{n}")), known),
        6 => (Change::Ip(format!("neighbour replace {address} nud noarp dev p{n}")), known),
        7 => (other("noarp", host + 20), known),
        8 => (
            Change::Ip(format!("neighbour add proxy {address} dev p{n}")),
            Change::Ip(format!("neighbour del proxy {address} dev p{n}")),
        ),
        _ => (other("permanent", host + 10), known),
    };
    Object::new(vec![add], vec![remove])
}

/// Returns a policy rule, or a route in one of the tables that rules look up.
pub fn rule(random: &Random, named: u32, features: &[Feature]) -> Object {
    if random.chance(50) {
        let table = random.pick(&TABLES);
        return route(random, Feature::Rules, Some(table), features);
    }
    let v6 = random.chance(45);
    let family = if v6 { "-6 " } else { "" };
    let n = 1 + random.below(PORTS);
    let near = |random: &Random| match v6 {
        true if random.chance(50) => format!("fd00:{n}::/64"),
        false if random.chance(50) => format!("10.0.{n}.0/24"),
        _ => prefix(random, v6),
    };
    let mut selector = match random.below(11) {
        0..2 => format!("from {}", near(random)),
        2..4 => format!("to {}", near(random)),
        4 => format!("iif p{n}"),
        5 => "fwmark 1".into(),
        6 => format!("tos {}", random.pick(&["0x10", "0x08"])),
        7 => format!("ipproto {}", random.pick(&["udp", "tcp", "icmp"])),
        8 => format!("ipproto udp dport {}", random.pick(&["53", "1024-60000"])),
        9 => format!("from {} iif p{n}", near(random)),
        _ => format!("from {} to {}", near(random), near(random)),
    };
    if random.chance(12) {
        selector = format!("not {selector}");
    }
    let action = match random.below(12) {
        0 => "prohibit".into(),
        1 => "blackhole".into(),
        2 => "unreachable".into(),
        3 => "goto 40000".into(),
        4 => "lookup main suppress_prefixlength 0".into(),
        5 => "nop".into(),
        6 => "lookup main".into(),
        _ => format!("lookup {}", random.pick(&TABLES)),
    };
    let pref = random.pick(&[0, 100, 1000, 32765, 32766, 32800]) + named;
    let rule = format!("pref {pref} {selector} {action}");
    Object::ip(format!("{family}rule add {rule}"), format!("{family}rule del {rule}"))
}

/// Returns a route into a lightweight tunnel.
pub fn encap(random: &Random) -> Object {
    let v6 = random.chance(70);
    let (family, prefix) = (if v6 { "-6 " } else { "" }, prefix(random, v6));
    let n = 1 + random.below(PORTS);
    let mode = if v6 { random.pick(&["encap", "inline", "l2encap"]) } else { "encap" };
    let what = match random.below(4) {
        0 if v6 => format!("encap seg6local action End via fd00:{n}::2 dev p{n}"),
        1 if v6 => format!("encap seg6local action End.X nh6 fd00:{n}::3 dev p{n}"),
        _ => format!("encap seg6 mode {mode} segs fd00:{n}::3 dev p{n}"),
    };
    let line = format!("{prefix} {what}");
    Object::ip(format!("{family}route add {line}"), format!("{family}route del {prefix}"))
}
