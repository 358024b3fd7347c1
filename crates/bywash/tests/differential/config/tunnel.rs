//! Tunnels of IP packets in IP packets: GRE, IP in IP, and the same over IPv6.

use super::Object;
use super::routing::prefix;
use super::upper::{address, addresses, end, new, with_headers};
use crate::change::Change;
use crate::random::Random;
use crate::topology::PORTS;
use bywash_lab::{Namespace, report_skip};
use std::sync::LazyLock;

/// The kinds of tunnels, by their names in `ip link`.
const KINDS: [&str; 5] = ["gre", "ipip", "sit", "ip6gre", "ip6tnl"];

/// Returns the kinds that the kernel has, and reports the others when it is first called.
pub fn kinds() -> &'static [&'static str] {
    static THERE: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let missing = |kind: &str| {
            let namespace = Namespace::new("probe").map_err(|error| error.to_string())?;
            let tried = namespace.ip(&["link", "add", "probe", "type", kind, "local", &address(is_over6(kind), 1, 1)]);
            tried.map(drop).map_err(|error| format!("kernel without {kind}: {error}"))
        };
        let is_there = |kind: &&str| {
            let missing = missing(kind);
            missing.as_ref().err().inspect(|why| report_skip(&format_args!("tunnels: {why}")));
            missing.is_ok()
        };
        KINDS.into_iter().filter(is_there).collect()
    });
    &THERE
}

fn is_over6(kind: &str) -> bool {
    kind.starts_with("ip6")
}

/// Returns a tunnel, or a change of one of those in `standing`.
pub fn object(random: &Random, named: u32, standing: &[Change]) -> Object {
    let line = |change: &Change| match change {
        Change::Ip(line) if line.starts_with("link add tu") => Some(line.clone()),
        _ => None,
    };
    let there: Vec<String> = standing.iter().filter_map(line).collect();
    // The kernel prefers other tunnels of the kind.
    let is_of = |line: &String, kind: &str| line.contains(&format!(" type {kind} "));
    let alone = |kind: &&str| kinds().contains(kind) && !there.iter().any(|line| is_of(line, kind));
    let kind = Some(random.pick(&["gre", "gre", "ipip"])).filter(alone);
    if let Some(kind) = kind.filter(|_| random.chance(25)) {
        return external(random, named, kind);
    }
    if !there.is_empty() && random.chance(35) { change(random, &random.pick(&there)) } else { tunnel(random, named) }
}

/// Returns whether a tunnel has a property with which all of its packets are left to the kernel: mostly not.
fn rarely(random: &Random) -> bool {
    random.chance(2)
}

/// Returns the properties that say what outer headers look like. All of them are named, so that they replace others.
fn outer(random: &Random, kind: &str) -> String {
    if is_over6(kind) {
        let limit = random.pick(&["9", "64", "0", "0", "255"]);
        let class = random.pick(&["0x00", "inherit", "0x10", "0xb8"]);
        let nested = random.pick(&["none", "none", "4", "1", "0"]);
        return format!("hoplimit {limit} tclass {class} encaplimit {nested}");
    }
    let ttl = random.pick(&["9", "inherit", "inherit", "64", "255"]);
    let tos = random.pick(&["0x00", "inherit", "0x10", "0x12", "0xb8"]);
    let fragments = random.pick(&["pmtudisc", "pmtudisc", "nopmtudisc"]);
    format!("ttl {ttl} tos {tos} {fragments}")
}

/// Returns the properties by which packets belong to a tunnel, besides its ends.
fn kept(random: &Random, kind: &str) -> String {
    let mut kept = String::new();
    match kind {
        "gre" | "ip6gre" => {
            let [one, other] = [1 + random.below(3), 1 + random.below(3)];
            match random.below(10) {
                0..4 => {}
                4..8 => kept += &format!(" key {one}"),
                8 => kept += &format!(" ikey {one} okey {other}"),
                _ => kept += random.pick(&[" ikey 7", " okey 7"]),
            }
            if rarely(random) {
                kept += random.pick(&[" csum", " icsum", " ocsum", " seq", " iseq", " oseq"]);
            }
        }
        "ipip" => kept += random.pick(&["", "", " mode ipip", " mode any"]),
        "sit" => kept += random.pick(&["", "", " mode ip6ip", " mode any", " mode ipip"]),
        _ => kept += random.pick(&[" mode any", " mode any", " mode ip6ip6", " mode ipip6"]),
    }
    match kind {
        "gre" if rarely(random) => kept += " nopmtudisc ignore-df",
        "ip6gre" | "ip6tnl" if rarely(random) => kept += random.pick(&[" flowlabel inherit", " allow-localremote"]),
        "ip6tnl" if rarely(random) => kept += " dscp inherit",
        _ => {}
    }
    kept
}

/// Returns a tunnel that takes the headers of its packets from routes, with a subnet and routes to the stations in it.
fn external(random: &Random, named: u32, kind: &str) -> Object {
    let name = format!("tu{named}");
    let mut add = new(&name, format!("link add {name} type {kind} external"));
    add.push(Change::Ip(format!("link set {name} mtu {} up", random.pick(&[1472, 1472, 1280, 1500]))));
    add.extend(addresses(&name, 100 + named % 100));
    let flags: &[&str] = if kind == "gre" { &["", " key", " key", " csum", " seq"] } else { &[""] };
    add.extend(with_headers(random, named, &name, false, flags));
    add.push(Change::Ip(format!("link set {name} up")));
    Object::new(add, vec![Change::Ip(format!("link del {name}"))])
}

/// Returns a tunnel of one of the router's addresses, with a subnet and routes.
fn tunnel(random: &Random, named: u32) -> Object {
    let (n, name) = (1 + random.below(PORTS), format!("tu{named}"));
    let kind = random.pick(kinds());
    let v6 = is_over6(kind);
    let mut line = format!("link add {name} type {kind}");
    if random.chance(if v6 { 98 } else { 85 }) {
        line += &format!(" local {}", address(v6, n, 1));
    }
    if !rarely(random) {
        line += &format!(" remote {}", end(random, v6));
    }
    if rarely(random) {
        line += &format!(" dev p{}", 1 + random.below(PORTS));
    }
    line += &format!(" {}{}", outer(random, kind), kept(random, kind));
    let mut add = new(&name, line);
    if v6 {
        // The kernel would make the link-local address at random.
        add.push(Change::Ip(format!("link set {name} addrgenmode none")));
    }
    let mtu = random.pick(&["", "", "", " mtu 1280", " mtu 1400", " mtu 1500"]);
    add.push(Change::Ip(format!("link set {name}{mtu} up")));
    add.extend(addresses(&name, 100 + named % 100));
    for _ in 0..random.below(3) {
        let v6 = random.chance(45);
        let (family, via) = match v6 {
            true => ("-6 ", format!(" via fd00:{}::2", 100 + named % 100)),
            false => ("", format!(" via 10.{}.0.2", 100 + named % 100)),
        };
        let via = if random.chance(20) { via } else { String::new() };
        add.push(Change::Ip(format!("{family}route add {}{via} dev {name}", prefix(random, v6))));
    }
    // The last change tells whether there is such an interface.
    add.push(Change::Ip(format!("link set {name} up")));
    Object::new(add, vec![Change::Ip(format!("link del {name}"))])
}

/// Returns a change of the tunnel that this line has made.
fn change(random: &Random, line: &str) -> Object {
    let (name, properties) = line["link add ".len()..].split_once(" type ").expect("a tunnel's kind");
    let (kind, properties) = properties.split_once(' ').expect("a tunnel's properties");
    let set = |what: &str| format!("link set {name} {what}");
    let (there, back) = match random.below(6) {
        0 => ("down".into(), "up".into()),
        1 => (format!("mtu {}", random.pick(&[1280, 1300, 1472])), "mtu 1400".into()),
        2 => {
            // Another end, if it has one.
            let remote = format!("type {kind} {properties} remote {}", end(random, is_over6(kind)));
            (remote, format!("type {kind} {properties}"))
        }
        _ => (format!("type {kind} {}", outer(random, kind)), format!("type {kind} {properties}")),
    };
    Object::ip(set(&there), set(&back))
}
