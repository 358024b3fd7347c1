//! Firewalls and translations for established flows: rules that Bywash can follow, and some that only the kernel can.

use super::Object;
use crate::change::Change;
use crate::random::Random;
use crate::topology::{HOSTS, PORTS};

/// Configuration of each router in which connections are opened: routes, connection tracking, and the sets, chains and
/// translations that [`object`] changes.
pub fn base() -> Vec<Change> {
    let mut changes = vec![Change::Nft(
        "table inet keep {
 set blocked { type ipv4_addr; flags interval; }
 set blocked6 { type ipv6_addr; }
 map verdicts { type inet_service : verdict; }
 chain extra { }
 chain input { type filter hook input priority 0; ct state new accept; }
 chain forward { type filter hook forward priority -5; ip saddr @blocked drop; ip6 daddr @blocked6 drop
  th dport vmap @verdicts; jump extra; }
}
table ip nat {
 chain to { type nat hook prerouting priority -100; }
 chain from { type nat hook postrouting priority 100; }
}
table ip6 nat {
 chain to { type nat hook prerouting priority -100; }
 chain from { type nat hook postrouting priority 100; }
}"
        .into(),
    )];
    for n in 1..=PORTS {
        changes.push(Change::Ip(format!("route add 10.20.{n}.0/24 via 10.0.{n}.2")));
        changes.push(Change::Ip(format!("-6 route add fd20:{n}::/64 via fd00:{n}::2")));
    }
    changes
}

/// Ports of servers.
pub const SERVED: [u16; 6] = [53, 80, 443, 8080, 8081, 8082];

/// Matches. `N`, `M` stand for the number of a port, `H` for that of a host, `P` for a server's port.
const MATCHES: &[&str] = &[
    "",
    "",
    "iifname pN",
    "iifname != pN",
    "iifname { pN, pM }",
    "iifname \"p*\"",
    "ct state established",
    "ct state established,related",
    "ct state new",
    "ct state invalid",
    "ct state != invalid",
    "ct direction reply",
    "ct direction original",
    "ct status snat",
    "ct status dnat",
    "ct status assured",
    "ct mark 0",
    "ct mark 1-5",
    "ct mark & 0xf != 3",
    "meta mark 0",
    "ip saddr 10.0.N.H",
    "ip saddr 10.0.N.0/24",
    "ip daddr 10.0.N.0/24",
    "ip daddr 10.20.N.0/24",
    "ip daddr { 10.0.N.H, 10.20.M.0/24 }",
    "ip daddr 10.0.N.77",
    "ip6 saddr fd00:N::/64",
    "ip6 daddr fd00:N::H",
    "ip6 daddr { fd20:N::/64, fd00:M::/64 }",
    "udp dport P",
    "tcp dport { P, P }",
    "tcp sport P",
    "th dport 1024-9000",
    "th sport { P, 1024-5000 }",
    "th dport != { 1-79 }",
    "meta l4proto { tcp, udp }",
    "meta l4proto udp",
    "meta nfproto ipv4",
    "ip saddr . th dport { 10.0.N.H . P, 10.0.M.H . P }",
    "ip daddr . th dport { 10.0.N.0/24 . 80-90 }",
    "iifname . th dport { pN . P, pM . P }",
    "ct original ip saddr 10.0.N.H",
    "meta l4proto tcp ct original proto-dst P",
    "meta l4proto udp ct reply proto-src P",
    "meta pkttype host",
    "ct zone 0",
    "meta skuid 0",
];

/// Matches and statements that differ from packet to packet. The limits are so high that both routers keep them.
const EACH: &[&str] = &[
    "limit rate 1000000/second burst 100000 packets",
    "limit rate over 1000000/second burst 100000 packets",
    "quota 10000 mbytes",
    "meta length > 500",
    "ip length < 200",
    "udp length > 100",
    "ip dscp ef",
    "ip6 dscp cs0",
    "ip ttl > 10",
    "ip6 hoplimit > 60",
    "ip id < 30000",
    "tcp flags syn",
    "tcp flags & (fin | rst) != 0x0",
    "tcp flags psh",
    "tcp window > 1000",
    "ip frag-off & 0x4000 != 0",
    "jhash ip saddr mod 4 seed 0x1 == 1",
    "log",
    "tcp option timestamp exists",
];

const VERDICTS: &[&str] = &[
    "accept",
    "accept",
    "accept",
    "accept",
    "counter accept",
    "counter",
    "drop",
    "counter drop",
    "return",
    "jump sub",
    "goto sub",
    "ct state vmap { established : accept, related : accept, new : accept, invalid : drop }",
    "ct state vmap { new : drop, established : jump sub }",
    "th dport vmap { P : accept, P : drop }",
    "ip saddr vmap { 10.0.N.H : drop, 10.0.M.0/24 : jump sub }",
    "ip daddr . th dport vmap { 10.0.N.H . P : drop }",
    "iifname vmap { pN : accept, pM : jump sub }",
];

/// Statements with effects that only the kernel has.
const EFFECTS: &[&str] = &["reject", "meta mark set 5", "ct mark set 3", "ip dscp set af11"];

fn filled(random: &Random, text: &str) -> String {
    let mut filled = String::new();
    for (at, c) in text.char_indices() {
        let alone = !text[at + 1..].starts_with(|c: char| c.is_ascii_alphanumeric())
            && !text[..at].ends_with(|c: char| c.is_ascii_uppercase());
        match c {
            'N' | 'M' if alone => filled += &(1 + random.below(PORTS)).to_string(),
            'H' if alone => filled += &(2 + random.below(HOSTS)).to_string(),
            'P' if alone => filled += &random.pick(&SERVED).to_string(),
            _ => filled.push(c),
        }
    }
    filled
}

/// Returns a rule that the hook and the family take.
fn rule(random: &Random, family: &str, hook: &str, sub: bool) -> String {
    let other: &[&str] = match family {
        "ip" => &["ip6 "],
        "ip6" => &["ip ", "ct original ip ", "jhash ip "],
        _ => &[],
    };
    let fits = |text: &str| {
        let late = !text.starts_with("reject") || hook == "forward";
        let subs = !sub || !text.contains("sub");
        late && subs && !other.iter().any(|start| text.starts_with(start)) && !(sub && text == "reject")
    };
    let pick = |of: &[&str]| loop {
        let text = random.pick(of);
        if fits(text) {
            return filled(random, text);
        }
    };
    let mut rule = String::new();
    for _ in 0..random.below(3) {
        rule += &format!("{} ", pick(MATCHES));
    }
    if hook != "prerouting" && !sub && random.chance(15) {
        rule += &filled(random, random.pick(&["oifname pN ", "oifname != pN ", "oifname { pN, pM } "]));
    }
    if random.chance(5) {
        rule += &format!("{} ", pick(EACH));
    }
    rule + &pick(if random.chance(5) { EFFECTS } else { VERDICTS })
}

/// Returns a table with one or two chains.
fn table(random: &Random, named: u32) -> Object {
    let family = random.pick(&["inet", "inet", "ip", "ip6"]);
    let sub: Vec<String> = (0..random.below(3)).map(|_| rule(random, family, "any", true)).collect();
    let mut text = format!("table {family} f{named} {{ chain sub {{ {}; }}; ", sub.join("; "));
    for number in 0..1 + random.below(2) {
        let hook = random.pick(&["forward", "forward", "forward", "prerouting", "postrouting"]);
        let priority = random.pick(&["0", "0", "-150", "-50", "-300", "50", "-100", "100", "150"]);
        let policy = if random.chance(25) { "drop" } else { "accept" };
        let mut rules = vec![];
        if policy == "drop" || random.chance(30) {
            rules.push(random.pick(&["ct state established,related accept", "ct state established accept"]).to_owned());
            rules.push(filled(
                random,
                random.pick(&["iifname pN accept", "ct state new accept", "ct state != invalid accept"]),
            ));
        }
        for _ in 0..1 + random.below(3) {
            let at = random.below(rules.len() + 1);
            rules.insert(at, rule(random, family, hook, false));
        }
        text += &format!(
            "chain c{number} {{ type filter hook {hook} priority {priority}; policy {policy}; {}; }}; ",
            rules.join("; ")
        );
    }
    let removal = Change::Nft(format!("delete table {family} f{named}"));
    Object::new(vec![Change::Nft(text + "}")], vec![removal])
}

/// Returns a translation. None draws a port at random unless the packet's own is taken.
fn translation(random: &Random) -> Object {
    let (family, chain, rule) = random.pick(&[
        ("ip", "from", "oifname pN masquerade"),
        ("ip", "from", "oifname pN masquerade"),
        ("ip", "from", "oifname pN snat to 10.0.N.77"),
        ("ip", "from", "ip saddr 10.0.N.0/24 snat to 10.0.M.78"),
        ("ip", "from", "oifname pN meta l4proto tcp snat to 10.0.M.77"),
        ("ip", "to", "tcp dport 8080 dnat to 10.0.N.H:80"),
        ("ip", "to", "udp dport { 8080, 8081 } dnat to 10.0.N.H:53"),
        ("ip", "to", "ip daddr 10.0.N.1 dnat to 10.0.M.H"),
        ("ip", "to", "iifname pN ip daddr 10.0.M.1 tcp dport P dnat to 10.20.M.9"),
        ("ip", "to", "dnat to th dport map { 8080 : 10.0.N.H, 8082 : 10.0.M.H }"),
        ("ip", "to", "tcp dport 8082 dnat to :443"),
        ("ip6", "from", "oifname pN masquerade"),
        ("ip6", "from", "oifname pN snat to fd00:N::77"),
        ("ip6", "to", "tcp dport 8080 dnat to [fd00:N::H]:80"),
        ("ip6", "to", "udp dport { 8080, 8081 } dnat to [fd00:N::H]:53"),
        ("ip6", "to", "ip6 daddr fd00:N::1 dnat to fd00:M::H"),
    ]);
    let add = format!("add rule {family} nat {chain} {}", filled(random, rule));
    Object::new(vec![Change::Nft(add)], vec![Change::Nft(format!("flush chain {family} nat {chain}"))])
}

/// Rules of iptables-nft that only the kernel follows.
const EACH_OF_IPTABLES: &[&str] = &[
    "-m addrtype --dst-type UNICAST -j ACCEPT",
    "-m limit --limit 10000/s --limit-burst 10000 -j ACCEPT",
    "-m length --length 500:1000 -j DROP",
    "-s NET -j REJECT",
];

/// Returns a rule of iptables-nft.
fn iptables(random: &Random) -> Object {
    let v6 = random.chance(40);
    let tool = if v6 { "ip6tables-nft" } else { "iptables-nft" };
    let network = if v6 { "fd00:N::/64" } else { "10.0.N.0/24" };
    let mut what = filled(
        random,
        random.pick(&[
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-m conntrack --ctstate ESTABLISHED -j ACCEPT",
            "-m conntrack --ctstate INVALID -j DROP",
            "-m conntrack --ctstate NEW -m comment --comment x -j DROP",
            "-m conntrack --ctstate DNAT -j ACCEPT",
            "-i pN -o pM -j ACCEPT",
            "-i pN -j DROP",
            "-s NET -p udp -m udp --dport P -j DROP",
            "-d NET -p tcp -m tcp --sport P -j ACCEPT",
            "-p tcp -m multiport --ports P,P -j ACCEPT",
            "-p udp -m multiport --dports P,P -j DROP",
            "-m mark --mark 0/0xff -j ACCEPT",
            "-m mark --mark 5 -j DROP",
            "-p tcp --tcp-flags SYN,RST SYN -j DROP",
            "-p udp -m udp --sport 1024:2000 -m comment --comment x",
            EACH_OF_IPTABLES[random.below(EACH_OF_IPTABLES.len())],
        ]),
    );
    what = what.replace("NET", &filled(random, network));
    let rule = |verb: &str| vec![Change::Run(format!("{tool} -w {verb} FORWARD {what}"))];
    Object::new(rule(random.pick(&["-A", "-I"])), rule("-D"))
}

/// Returns an element of a set or a map, or a rule in a chain that is always met.
fn element(random: &Random) -> Object {
    let of = |what: String| {
        let line = |verb: &str| vec![Change::Nft(format!("{verb} element inet keep {what}"))];
        Object::new(line("add"), line("delete"))
    };
    match random.below(5) {
        0 => of(filled(random, random.pick(&["blocked { 10.0.N.H }", "blocked { 10.20.N.0/24 }"]))),
        1 => of(filled(random, "blocked6 { fd00:N::H }")),
        2 => of(filled(random, random.pick(&["verdicts { P : drop }", "verdicts { P : accept }"]))),
        _ => {
            let add = format!("insert rule inet keep extra {}", rule(random, "inet", "forward", true));
            Object::new(vec![Change::Nft(add)], vec![Change::Nft("flush chain inet keep extra".into())])
        }
    }
}

/// Returns another place for hosts behind a router: another route, another MAC address, or a key of connection
/// tracking.
fn place(random: &Random) -> Object {
    let back = |add: String, back: &str| Object::ip(add, back.to_owned());
    let n = 1 + random.below(PORTS);
    match random.below(6) {
        0 => back(
            filled(random, &format!("route replace 10.20.{n}.0/24 via 10.0.M.H")),
            &format!("route replace 10.20.{n}.0/24 via 10.0.{n}.2"),
        ),
        1 => back(
            filled(random, &format!("-6 route replace fd20:{n}::/64 via fd00:M::H")),
            &format!("-6 route replace fd20:{n}::/64 via fd00:{n}::2"),
        ),
        2 => Object::ip(format!("route add blackhole 10.0.{n}.3"), format!("route del blackhole 10.0.{n}.3")),
        3 => {
            let address = random.pick(&["10.0.N.H", "fd00:N::H"]).replace('N', &n.to_string());
            let address = filled(random, &address);
            let entry = |mac: &str| format!("neighbour replace {address} lladdr {mac} nud permanent dev p{n}");
            let host: usize = address.rsplit(['.', ':']).next().unwrap().parse().unwrap();
            let own = crate::topology::text(crate::topology::host_mac(n - 1, host));
            Object::ip(entry("02:00:00:07:07:07"), entry(&own))
        }
        _ => {
            let (key, value, back) = random.pick(&[
                ("nf_conntrack_checksum", "0", "1"),
                ("nf_conntrack_tcp_be_liberal", "1", "0"),
                ("nf_conntrack_tcp_loose", "0", "1"),
                ("nf_conntrack_acct", "1", "0"),
                ("nf_conntrack_events", "1", "2"),
                ("nf_conntrack_udp_timeout_stream", "60", "120"),
            ]);
            Object::sysctl(format!("net/netfilter/{key}"), value, back)
        }
    }
}

pub fn object(random: &Random, named: u32) -> Object {
    match random.below(20) {
        0..7 => table(random, named),
        7..11 => element(random),
        11..14 => translation(random),
        14..17 => iptables(random),
        _ => place(random),
    }
}
