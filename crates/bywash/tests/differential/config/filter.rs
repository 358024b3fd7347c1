//! Firewalls, policies and queueing disciplines.

use super::Object;
use super::routing::prefix;
use crate::change::Change;
use crate::random::Random;
use crate::topology::PORTS;

/// Returns a match that nftables accepts in every hook of the family; empty if it is to match everything.
fn matching(random: &Random, family: &str) -> String {
    let n = 1 + random.below(PORTS);
    let v6 = match family {
        "ip" => false,
        "ip6" => true,
        _ => random.chance(45),
    };
    let side = random.pick(&["saddr", "daddr"]);
    match (random.below(13), v6) {
        (0..3, false) => format!("ip {side} {}", prefix(random, false).replace("0.0.0.0/0", "0.0.0.0/1")),
        (0..3, true) => format!("ip6 {side} {}", prefix(random, true).replace("::/0", "::/1")),
        (3, false) => format!("ip {side} {{ 10.0.{n}.2, 10.0.{n}.4-10.0.{n}.9, 10.11.0.0/16 }}"),
        (3, true) => format!("ip6 {side} {{ fd00:{n}::2, fd10:1::/32 }}"),
        (4, _) => format!("meta l4proto {}", random.pick(&["udp", "tcp", "{ icmp, icmpv6 }"])),
        (5, false) => format!("ip ttl {}", random.pick(&["64", "< 3", "255"])),
        (5, true) => format!("ip6 hoplimit {}", random.pick(&["64", "< 3", "255"])),
        (6, false) => format!("ip dscp {}", random.pick(&["ef", "cs0", "0x04"])),
        (6, true) => format!("ip6 dscp {}", random.pick(&["ef", "cs0", "0x04"])),
        (7, _) => format!("iifname {}", random.pick(&[format!("p{n}"), format!("p{n}"), "\"vx*\"".into()])),
        (8, _) => {
            let ports =
                ["udp dport 53", "tcp dport { 22, 80 }", "tcp flags syn", "udp sport 1024-65535", "udp dport 4789"];
            random.pick(&ports).into()
        }
        (9, _) => format!("meta length {}", random.pick(&["> 1000", "< 80"])),
        (10, false) => "ip frag-off & 0x3fff != 0".into(),
        (10, true) => "exthdr frag exists".into(),
        (11, _) => "meta mark 1".into(),
        _ => String::new(),
    }
}

fn conntrack(random: &Random) -> String {
    if random.chance(12) {
        format!("ct state {} ", random.pick(&["new", "established", "invalid"]))
    } else {
        String::new()
    }
}

fn verdict(random: &Random, family: &str, hook: &str) -> String {
    let header = match family {
        "ip" => "ip",
        "ip6" => "ip6",
        _ => random.pick(&["ip", "ip6"]),
    };
    match random.below(12) {
        0..4 => "drop".into(),
        4..6 => "accept".into(),
        6 => "meta mark set 1".into(),
        7 if header == "ip" => "ip ttl set 33".into(),
        7 => "ip6 hoplimit set 33".into(),
        8 => format!("{header} dscp set af11"),
        9 if hook == "forward" || hook == "input" => "reject".into(),
        10 if hook == "prerouting" => "notrack".into(),
        _ => "counter".into(),
    }
}

/// Returns an nftables table with one chain and a few rules; with `vxlans`, most are for the host's own packets, which
/// those of VXLANs are in.
pub fn nft(random: &Random, named: u32, vxlans: bool) -> Object {
    let n = 1 + random.below(PORTS);
    let own = [("inet", "filter", "input", "0"), ("ip", "filter", "input", "0"), ("ip", "filter", "output", "0")];
    let any = random.pick(&[
        ("inet", "filter", "forward", "0"),
        ("inet", "filter", "forward", "0"),
        ("inet", "filter", "prerouting", "-300"),
        ("inet", "filter", "prerouting", "-150"),
        ("inet", "filter", "postrouting", "-150"),
        ("inet", "filter", "input", "0"),
        ("inet", "filter", "output", "0"),
        ("ip", "filter", "forward", "0"),
        ("ip", "filter", "prerouting", "-150"),
        ("ip", "nat", "prerouting", "-100"),
        ("ip", "nat", "postrouting", "100"),
        ("ip6", "filter", "forward", "0"),
        ("ip6", "filter", "prerouting", "-150"),
        ("ip6", "nat", "prerouting", "-100"),
        ("ip6", "nat", "postrouting", "100"),
        ("inet", "nat", "postrouting", "100"),
        ("netdev", "filter", "ingress", "0"),
        ("netdev", "filter", "egress", "0"),
        ("inet", "filter", "ingress", "0"),
    ]);
    let (family, kind, hook, priority) = if vxlans && random.chance(70) { random.pick(&own) } else { any };
    let device = if hook.ends_with("gress") { format!(" device p{n}") } else { String::new() };
    let nat = kind == "nat";
    let policy = if !nat && random.chance(20) { "drop" } else { "accept" };
    let mut rules = vec![];
    for _ in 0..1 + random.below(3) {
        let (mut what, ct) = (matching(random, family), conntrack(random));
        if hook == "forward" && random.chance(20) || hook == "postrouting" && random.chance(40) {
            what = format!("oifname p{} {what}", 1 + random.below(PORTS));
        }
        let ct = if device.is_empty() && priority != "-300" { ct } else { String::new() };
        let v6 = family == "ip6";
        let (host, protocol) = if v6 { (format!("fd00:{n}::3"), "ip6") } else { (format!("10.0.{n}.3"), "ip") };
        let named = if family == "inet" { format!(" {protocol}") } else { String::new() };
        let then = match hook {
            "postrouting" if nat && random.chance(50) => "masquerade".into(),
            "postrouting" if nat => format!("snat{named} to {}", if v6 { "fd00:1::77" } else { "10.0.1.77" }),
            _ if nat => format!("dnat{named} to {host}"),
            _ => verdict(random, family, hook),
        };
        rules.push(format!("{ct}{what} {then}"));
    }
    let chain = format!(
        "chain c {{ type {kind} hook {hook}{device} priority {priority}; policy {policy}; {}; }}",
        rules.join("; ")
    );
    let add = Change::Nft(format!("table {family} t{named} {{ {chain}; }}"));
    Object::new(vec![add], vec![Change::Nft(format!("delete table {family} t{named}"))])
}

/// Returns one iptables rule, or a chain's policy.
pub fn iptables(random: &Random, kind: &str) -> Object {
    let v6 = random.chance(40);
    let tool = format!("{}-{kind} -w", if v6 { "ip6tables" } else { "iptables" });
    let n = 1 + random.below(PORTS);
    if random.chance(10) {
        let policy = |policy: &str| vec![Change::Run(format!("{tool} -P FORWARD {policy}"))];
        return Object::new(policy("DROP"), policy("ACCEPT"));
    }
    let (table, chain, target) = random.pick(&[
        ("filter", "FORWARD", "DROP"),
        ("filter", "FORWARD", "REJECT"),
        ("filter", "FORWARD", "ACCEPT"),
        ("filter", "INPUT", "DROP"),
        ("raw", "PREROUTING", "DROP"),
        ("mangle", "PREROUTING", "MARK --set-mark 1"),
        ("mangle", "FORWARD", if v6 { "HL --hl-set 33" } else { "TTL --ttl-set 33" }),
        ("mangle", "POSTROUTING", "DSCP --set-dscp 10"),
        ("nat", "POSTROUTING", "MASQUERADE"),
        ("nat", "PREROUTING", if v6 { "DNAT --to-destination fd00:2::3" } else { "DNAT --to-destination 10.0.2.3" }),
    ]);
    let what = match random.below(6) {
        0 => format!("-s {}", prefix(random, v6)),
        1 => format!("-d {}", prefix(random, v6)),
        2 if chain == "POSTROUTING" => format!("-o p{n}"),
        2 => format!("-i p{n}"),
        3 => "-p udp --dport 53".into(),
        4 => "-m conntrack --ctstate NEW".into(),
        _ => "-m mark --mark 1".into(),
    };
    let rule = |verb: &str| vec![Change::Run(format!("{tool} -t {table} {verb} {chain} {what} -j {target}"))];
    Object::new(rule("-A"), rule("-D"))
}

/// Returns an IPsec policy that blocks, that allows, or that requires ESP, for which no state exists.
pub fn xfrm(random: &Random) -> Object {
    let v6 = random.chance(45);
    let (src, dst) = (prefix(random, v6), prefix(random, v6));
    let direction = random.pick(&["fwd", "fwd", "out", "in"]);
    let what = if random.chance(60) {
        random.pick(&["action block", "action allow"]).to_owned()
    } else if v6 {
        "tmpl src fd00:1::1 dst fd00:2::2 proto esp mode tunnel".into()
    } else {
        "tmpl src 10.0.1.1 dst 10.0.2.2 proto esp mode tunnel".into()
    };
    let key = format!("src {src} dst {dst} dir {direction}");
    Object::ip(format!("xfrm policy add {key} {what}"), format!("xfrm policy delete {key}"))
}

pub fn qdisc(random: &Random, named: u32) -> Object {
    let n = 1 + random.below(PORTS);
    let root = |line: &str| Change::Tc(format!("qdisc replace dev p{n} root {line}"));
    let gone = |at: &str| vec![Change::Tc(format!("qdisc del dev p{n} {at}"))];
    let prio = 1 + named % 60000;
    let (add, remove) = match random.below(5) {
        // It drops packets longer than its burst.
        0 => (vec![root("tbf rate 1gbit burst 200 latency 50ms")], gone("root")),
        1 => (vec![root("pfifo limit 1000")], gone("root")),
        2 => (
            vec![root("handle 1: htb"), Change::Tc(format!("class add dev p{n} parent 1: classid 1:1 htb rate 1gbit"))],
            gone("root"),
        ),
        // Classic BPF that drops all frames of one EtherType.
        _ => {
            let parent = random.pick(&["ingress", "egress"]);
            let key = format!("dev p{n} {parent} protocol all prio {prio}");
            let ethertype = random.pick(&[0x800, 0x86dd]);
            let code = format!("4,40 0 0 12,21 0 1 {ethertype},6 0 0 2,6 0 0 4294967295");
            let filter = format!("filter add {key} bpf da bytecode {code:?}");
            let add = vec![Change::Tc(format!("qdisc add dev p{n} clsact")), Change::Tc(filter)];
            (add, vec![Change::Tc(format!("filter del {key}"))])
        }
    };
    Object::new(add, remove)
}
