//! Loads rulesets with the tools that users load them with, and checks the effects found in the kernel.

use bywash_exceptions::{Effect, Families, IfMatch, Scope, legacy, nft};
use bywash_lab::{Namespace, has_tool, require, require_lab};
use std::net::UdpSocket;
use std::time::Duration;

/// Creates a namespace with the interfaces p0 and p1.
fn router(hint: &str) -> Namespace {
    let namespace = Namespace::new(hint).unwrap();
    namespace.ip_batch("link add p0 type veth peer name p1\nlink set p0 up\nlink set p1 up\nlink set lo up\n").unwrap();
    namespace
}

fn load(namespace: &Namespace, ruleset: &str) -> bool {
    namespace.nft(ruleset).inspect_err(|why| println!("{ruleset}{why}")).is_ok()
}

/// Returns the families whose connections the kernel tracks, tested with one local datagram of each.
fn tracked(namespace: &Namespace) -> Families {
    let count = || namespace.read_sysctl("net/netfilter/nf_conntrack_count").map_or(0, |n| n.trim().parse().unwrap());
    let grows = |address: &'static str| {
        let before: u32 = count();
        let send = move || UdpSocket::bind((address, 0)).and_then(|socket| socket.send_to(b"x", (address, 9)));
        let _ = namespace.enter(send).unwrap();
        count() > before
    };
    Families { v4: grows("127.0.0.1"), v6: grows("::1") }
}

fn effects(namespace: &Namespace) -> Vec<Effect> {
    let ruleset = namespace.enter(nft::read).unwrap().unwrap();
    nft::analyse(&ruleset)
}

/// Formats effects briefly: "all46 drop", "in4(p0) counter", "fragments4". The reason for tracking is left out.
fn short(effects: &[Effect]) -> Vec<String> {
    let families = |f: &Families| ["", "4"][usize::from(f.v4)].to_owned() + ["", "6"][usize::from(f.v6)];
    let by = |interfaces: &[IfMatch]| {
        let names = interfaces.iter().map(|interface| match interface {
            IfMatch::Name(name) => name.clone(),
            IfMatch::Prefix(prefix) => format!("{prefix}*"),
            IfMatch::Index(index) => format!("#{index}"),
        });
        names.collect::<Vec<_>>().join(" ")
    };
    let one = |effect: &Effect| match &effect.scope {
        Scope::Relayed(interfaces) => format!("relayed({}) {}", by(interfaces), effect.reason),
        Scope::In(interfaces, f) => format!("in{}({}) {}", families(f), by(interfaces), effect.reason),
        Scope::Out(interfaces, f) => format!("out{}({}) {}", families(f), by(interfaces), effect.reason),
        Scope::All(f) => format!("all{} {}", families(f), effect.reason),
        Scope::Errors(f) => format!("errors{} {}", families(f), effect.reason),
        Scope::Fragments(f) => format!("fragments{}", families(f)),
        Scope::Own(f) => format!("own{} {}", families(f), effect.reason),
        Scope::Between => format!("between members {}", effect.reason),
        Scope::Bridged => format!("bridged {}", effect.reason),
        Scope::Tunnel(_) => panic!("tunnels are judged otherwise"),
        Scope::Decrypted => panic!("no rule decrypts packets"),
        Scope::Flows(_) => panic!("no rule holds flows alone"),
        Scope::To(prefix) => panic!("no rule is read for its destination: {prefix}"),
    };
    effects.iter().map(one).collect()
}

/// Returns a ruleset with a chain of the table "inet t" on `hook`, with `rules`.
fn inet(hook: &str, rules: &str) -> String {
    format!("table inet t {{\n chain c {{ type filter hook {hook} priority 0; policy accept;\n{rules}\n }}\n}}\n")
}

#[test]
fn rulesets_of_nft() {
    require!(require_lab(), has_tool("nft"));
    let namespace = router("nft");
    let by_index = format!("in46(#{}) drop", interface_index(&namespace, "p1"));
    let by_index = [by_index.as_str()];
    let forward = |rules: &str| inet("forward", rules);
    let cases: Vec<(String, &[&str])> = vec![
        // Rulesets that do not affect forwarded packets.
        (String::new(), &[]),
        ("table inet t { }\n".into(), &[]),
        (forward(""), &[]),
        (
            "table inet filter {\n chain input { type filter hook input priority 0; policy accept; }\n\
             chain forward { type filter hook forward priority 0; policy accept; }\n\
             chain output { type filter hook output priority 0; policy accept; }\n}\n"
                .into(),
            &[],
        ),
        (forward("tcp dport 80 accept\nip saddr 10.0.0.0/8 accept\nip6 daddr != fe80::/10 accept"), &[]),
        (forward("meta mark 7 accept\nip protocol udp th dport 1-1000 return\nether type ip continue"), &[]),
        (forward("fib saddr . iif oif missing accept\nrt mtu 1000 accept\nip ttl & 3 == 1 accept"), &[]),
        (forward("accept comment \"all of it\""), &[]),
        (inet("input", "tcp dport 22 drop\ncounter log reject"), &["own46 drop"]),
        (inet("prerouting", "iifname lo drop\niif lo counter"), &[]),
        (inet("postrouting", "oifname lo drop\noif \"lo\" counter"), &[]),
        (forward("iifname lo jump { counter drop; }"), &[]),
        ("table inet t {\n chain sub { drop; }\n}\n".into(), &[]),
        ("table inet t {\n chain sub { tcp dport 1 accept; }\n chain c { type filter hook forward priority 0; jump sub; \
          goto sub; }\n}\n".into(), &[]),
        ("table inet t {\n flags dormant;\n chain c { type filter hook forward priority 0; policy drop; counter drop; \
          }\n}\n".into(), &[]),
        ("table ip t {\n chain c { type nat hook postrouting priority 100; }\n}\n".into(), &[]),
        ("table ip t {\n chain c { type nat hook postrouting priority 100; oifname lo return; ip saddr 10.0.0.1 \
          accept; }\n}\n".into(), &[]),
        ("table bridge t {\n chain c { type filter hook forward priority 0; drop; }\n}\n".into(),
            &["between members rules for bridged packets"]),
        ("table arp t {\n chain c { type filter hook input priority 0; drop; }\n}\n".into(), &[]),
        ("table inet t {\n set s { type ipv4_addr; elements = { 10.0.0.1 }; }\n counter n { }\n}\n".into(), &[]),
        ("table netdev t {\n chain c { type filter hook ingress device p0 priority 0; policy accept; }\n}\n".into(), &[]),
        ("table netdev t {\n chain c { type filter hook ingress device lo priority 0; drop; }\n}\n".into(), &[]),
        ("table ip t {\n chain c { type route hook output priority 0; ip daddr 10.0.0.1 accept; }\n}\n".into(), &[]),
        // Actions.
        (forward("drop"), &["all46 drop"]),
        (forward("tcp dport 80 counter accept"), &["all46 counter"]),
        (forward("log prefix \"x\""), &["all46 log"]),
        (forward("reject"), &["all46 reject"]),
        (forward("limit rate 10/second accept"), &["all46 limit"]),
        (forward("quota over 1 mbytes drop"), &["all46 quota, drop"]),
        (forward("meta mark set 1"), &["all46 meta set"]),
        (forward("meta nftrace set 1"), &["all46 meta set"]),
        (forward("ip ttl set 5"), &["all4 header written"]),
        (forward("tcp option maxseg size set 1400"), &["all46 option written"]),
        (forward("tcp dport { 22, 80 } accept"), &["all46 set lookup"]),
        (forward("tcp dport vmap { 22 : accept, 80 : drop }"), &["all46 verdict map"]),
        (forward("iifname vmap { p0 : drop }"), &["all46 verdict map"]),
        (forward("iifname p0 tcp dport vmap { 22 : accept, 80 : drop }"), &["in46(p0) verdict map"]),
        // A chain that a map leads to may track connections, and must then see both directions.
        ("table inet t {\n chain in { ct state established accept; drop; }\n chain c { type filter hook forward \
          priority 0; iifname p0 meta l4proto vmap { tcp : jump in, udp : goto in }; }\n}\n".into(),
         &["all46 verdict map", "fragments46"]),
        (forward("numgen inc mod 2 0 accept"), &["all46 numgen"]),
        ("table inet t {\n set s { type ipv4_addr; flags dynamic; }\n chain c { type filter hook forward priority 0; \
          add @s { ip saddr }; }\n}\n".into(), &["all4 set update"]),
        ("table inet t {\n counter n { }\n chain c { type filter hook forward priority 0; counter name n; }\n}\n".into(),
         &["all46 counter"]),
        ("table inet t {\n chain c { type filter hook forward priority 0; policy drop; tcp dport 80 accept; }\n}\n".into(),
         &["all46 policy drop"]),
        ("table ip6 t {\n chain c { type filter hook prerouting priority -300; fib saddr . iif oif missing drop; }\n}\n"
          .into(), &["all6 drop"]),
        ("table ip t {\n chain c { type filter hook postrouting priority 0; counter; }\n}\n".into(), &["all4 counter"]),
        ("table inet t {\n chain c { type filter hook output priority 0; policy drop; }\n}\n".into(),
         &["errors46 policy drop", "own46 policy drop"]),
        ("table ip t {\n chain c { type route hook output priority 0; meta mark set 1; }\n}\n".into(),
         &["errors4 meta set", "own4 meta set"]),
        ("table ip t {\n chain c { type filter hook forward priority 0; dup to 10.0.0.1 device p1; }\n}\n".into(),
         &["all4 dup"]),
        // Interfaces and families.
        (forward("iifname p0 drop"), &["in46(p0) drop"]),
        (forward("oifname \"p*\" drop"), &["out46(p*) drop"]),
        (forward("iif p1 drop"), &by_index),
        (forward("iifname p0 oifname p1 counter drop"), &["in46(p0) counter, drop"]),
        (forward("iifname p0 ip saddr 10.0.0.1 drop\niifname p1 drop"), &["in4(p0) drop", "in46(p1) drop"]),
        (forward("iifname != p0 drop"), &["all46 drop"]),
        (forward("iifgroup 0 drop"), &["all46 drop"]),
        (forward("counter iifname p0"), &["all46 counter"]),
        (forward("iifname p0 drop\niifname p1 drop\ndrop"), &["all46 drop"]),
        (forward("meta nfproto ipv6 drop"), &["all6 drop"]),
        (inet("prerouting", "iifname \"p0.7\" udp dport 53 drop"), &["in46(p0.7) drop"]),
        (forward("iifname p0 jump { ip saddr 10.0.0.1 drop; }"), &["in4(p0) drop"]),
        ("table inet t {\n chain leaf { ip6 saddr ::1 drop; }\n chain mid { oifname p1 goto leaf; }\n\
          chain c { type filter hook forward priority 0; jump mid; }\n}\n".into(), &["out6(p1) drop"]),
        // Devices.
        ("table netdev t {\n chain c { type filter hook ingress device p0 priority 0; policy drop; }\n}\n".into(),
         &["in46(p0) policy drop"]),
        ("table netdev t {\n chain c { type filter hook ingress devices = { p0, p1 } priority 0; counter; }\n}\n".into(),
         &["in46(p0 p1) counter"]),
        ("table netdev t {\n chain c { type filter hook egress device p1 priority 0; ip ttl 1 drop; }\n}\n".into(),
         &["out46(p1) drop", "errors46 drop"]),
        (inet("postrouting", "oifname p1 ip6 hoplimit 1 drop"), &["out6(p1) drop", "errors6 drop"]),
        ("table inet t {\n chain c { type filter hook ingress device p0 priority 0; policy accept; }\n}\n".into(),
         &["in46(p0) hook ingress of family inet"]),
        ("table netdev t {\n chain c { type filter hook ingress device p0 priority 0; fwd to p1; }\n}\n".into(),
         &["relayed(p0) fwd", "in46(p0) fwd"]),
        // Connection tracking.
        (inet("input", "ct state established accept"), &["own46 ct", "fragments46"]),
        (forward("ct state established accept"), &["all46 ct", "fragments46"]),
        (forward("iifname p0 ct state invalid drop"), &["all46 ct, drop", "fragments46"]),
        (inet("prerouting", "udp dport 53 notrack"), &["all46 notrack"]),
        ("table ip t {\n chain c { type nat hook postrouting priority 100; oifname p1 masquerade; }\n}\n".into(),
         &["all4 masquerade", "fragments4"]),
        ("table ip t {\n chain c { type nat hook prerouting priority -100; iifname p0 tcp dport 80 dnat to 10.0.0.2; \
          }\n}\n".into(), &["all4 nat", "fragments4"]),
        ("table inet t {\n chain c { type nat hook prerouting priority -100; tcp dport 80 redirect to :81; }\n}\n".into(),
         &["all46 redirect", "fragments46"]),
        ("table ip t {\n chain c { type nat hook output priority -100; ip daddr 10.0.0.1 dnat to 10.0.0.2; }\n}\n".into(),
         &["errors4 nat", "own4 nat", "fragments4"]),
        ("table ip t {\n chain sub { ct state new accept; }\n}\n".into(), &["fragments4"]),
        ("table ip6 t {\n flags dormant;\n chain c { type filter hook forward priority 0; ct mark 1 drop; }\n}\n".into(),
         &["fragments6"]),
        ("table ip t {\n ct timeout q { protocol udp; policy = { unreplied: 5 }; }\n}\n".into(), &["fragments4"]),
        ("table inet t {\n chain c { type filter hook input priority 0; tcp dport 80 ct count over 3 reject; }\n}\n".into(),
         &["own46 ct count, reject", "fragments46"]),
        ("table ip t {\n set s { type ipv4_addr; flags dynamic; }\n chain c { type filter hook input priority 0; \
          add @s { ip saddr ct count over 3 } drop; }\n}\n".into(), &["own4 set update, drop", "fragments4"]),
        ("table inet t {\n chain c { type filter hook prerouting priority -150; tcp dport 80 tproxy ip to :81 accept; \
          }\n}\n".into(), &["all46 tproxy", "fragments46"]),
        // The default of distributions.
        (
            "table inet filter {\n chain input { type filter hook input priority 0; policy drop;\n\
             iif lo accept\n ct state established,related accept\n tcp dport 22 accept\n }\n\
             chain forward { type filter hook forward priority 0; policy drop; }\n}\n"
                .into(),
            &["own46 policy drop", "all46 policy drop", "fragments46"],
        ),
    ];
    let mut wrong = Vec::new();
    let (mut loaded, mut tracking) = (0, 0);
    for (ruleset, wanted) in &cases {
        namespace.run(&["nft", "flush", "ruleset"]).unwrap();
        if !load(&namespace, ruleset) {
            println!("this kernel or nft refuses the ruleset above");
            continue;
        }
        loaded += 1;
        let effects = effects(&namespace);
        let found = short(&effects);
        if found != *wanted {
            wrong.push(format!("{ruleset}found:  {found:?}\nwanted: {wanted:?}\n"));
        }
        let tracked = tracked(&namespace);
        let told =
            |effect: &Effect| matches!(effect.scope, Scope::Fragments(families) if tracked & families == tracked);
        if !tracked.is_empty() {
            tracking += 1;
            assert!(effects.iter().any(told), "{ruleset}{tracked:?} is tracked, {found:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{loaded} of {} rulesets loaded, {tracking} track", cases.len());
    assert!(loaded >= 40, "only {loaded} rulesets of {} could be loaded", cases.len());
}

fn interface_index(namespace: &Namespace, name: &str) -> u32 {
    let shown = namespace.run(&["cat", &format!("/sys/class/net/{name}/ifindex")]).unwrap();
    shown.stdout.trim().parse().unwrap()
}

/// Runs commands, one per line.
fn run(namespace: &Namespace, commands: &str) {
    for command in commands.lines() {
        let argv: Vec<&str> = command.split_whitespace().collect();
        namespace.run(&argv).unwrap();
    }
}

#[test]
fn rulesets_of_iptables() {
    require!(require_lab(), has_tool("nft"), has_tool("iptables-nft"));
    let cases: &[(&str, &[&str])] = &[
        ("iptables-nft -P FORWARD ACCEPT", &[]),
        ("ip6tables-nft -t nat -N X", &[]),
        ("iptables-nft -P FORWARD DROP", &["all4 policy drop"]),
        ("iptables-nft -A INPUT -p tcp --dport 22 -j DROP", &["own4 counter, drop"]),
        ("iptables-nft -A FORWARD -i p0 -j ACCEPT", &["in4(p0) counter"]),
        ("iptables-nft -A FORWARD -o p+ -m comment --comment x -j DROP", &["out4(p*) counter, drop"]),
        ("ip6tables-nft -t raw -A PREROUTING -i lo -j DROP", &[]),
        ("iptables-nft -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT", &["own4", "fragments4"]),
        (
            "ip6tables-nft -A OUTPUT -p tcp -j REJECT",
            &["errors6 counter, xt target REJECT", "own6 counter, xt target REJECT"],
        ),
        (
            "iptables-nft -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
            &["all4 counter, xt target TCPMSS"],
        ),
        ("iptables-nft -t nat -A POSTROUTING -o p1 -j MASQUERADE", &["all4 counter, masquerade", "fragments4"]),
        // The rules that Docker sets up.
        (
            "iptables-nft -P FORWARD DROP\niptables-nft -t nat -N DOCKER\n\
             iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
             iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n\
             iptables-nft -t nat -A DOCKER -i docker0 -j RETURN\n\
             iptables-nft -N DOCKER-USER\niptables-nft -A FORWARD -j DOCKER-USER\n\
             iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            &["all4 policy drop", "all4 xt match addrtype, counter", "all4 counter, masquerade"],
        ),
    ];
    for (commands, wanted) in cases {
        let namespace = router("ipt");
        run(&namespace, commands);
        let found = short(&effects(&namespace));
        let tracking = found.iter().any(|effect| effect.starts_with("fragments"));
        assert!(tracking || !commands.contains("conntrack"), "{commands}: {found:?}");
        for effect in *wanted {
            assert!(found.iter().any(|f| f.starts_with(effect)), "{commands}\n{found:?}");
        }
        assert!(!wanted.is_empty() || found.is_empty(), "{commands}\n{found:?}");
    }
}

#[test]
fn objects_are_named_as_nft_names_them() {
    require!(require_lab(), has_tool("nft"));
    let namespace = router("nftobj");
    let ruleset = "table inet fw {\n chain sub { drop; }\n chain forward { type filter hook forward priority 0;\n\
                   accept\n iifname p0 jump sub\n }\n}\n";
    assert!(load(&namespace, ruleset));
    let shown = namespace.run(&["nft", "-a", "list", "ruleset"]).unwrap().stdout;
    let handle = |of: &str| shown.lines().find(|l| l.contains(of)).unwrap().rsplit(' ').next().unwrap().to_owned();
    let (jump, drop) = (handle("jump sub"), handle("drop #"));
    let wanted = format!("table inet fw chain forward rule handle {jump}, chain sub rule handle {drop}");
    assert_eq!(effects(&namespace)[0].object, wanted);
}

#[test]
fn flowtables() {
    require!(require_lab(), has_tool("nft"));
    let namespace = router("nftflow");
    let table = "flowtable f { hook ingress priority 0; devices = { p0, p1 }; }\n";
    let empty = format!("table inet t {{\n {} }}\n", table.replace(", p1", ""));
    if !load(&namespace, &empty) {
        bywash_lab::skip!("this kernel has no flow tables");
    }
    // Connections that are in it are forwarded whatever the rules.
    assert_eq!(short(&effects(&namespace)), ["in46(p0) connections in the flow table"]);
    let used = "chain c { type filter hook forward priority 0; iifname p0 flow add @f; }";
    assert!(load(&namespace, &format!("flush ruleset\ntable inet t {{\n {table} {used}\n}}\n")));
    assert_eq!(short(&effects(&namespace)), ["all46 flow add", "fragments46"]);
}

#[test]
fn a_reader_sees_every_change() {
    require!(require_lab(), has_tool("nft"));
    let namespace = router("nftgen");
    let (mut reader, before) = namespace
        .enter(|| {
            let mut reader = nft::Reader::open().unwrap();
            let generation = reader.generation().unwrap();
            (reader, generation)
        })
        .unwrap();
    if before.is_none() {
        bywash_lab::skip!("this kernel has no nf_tables");
    }
    assert_eq!(reader.read().unwrap(), nft::Ruleset { generation: before.unwrap(), tables: vec![] });
    assert_eq!(reader.generation().unwrap(), before);
    assert!(load(&namespace, &inet("forward", "drop")));
    // Called from a thread in another namespace: the socket stays where it was opened.
    assert_ne!(reader.generation().unwrap(), before);
    assert_eq!(reader.read().unwrap().tables.len(), 1);
}

#[test]
fn thousands_of_rules_are_read_whole() {
    require!(require_lab(), has_tool("nft"));
    let namespace = router("nftbig");
    let rules: String =
        (0..5000).map(|n| format!("ip saddr 10.0.{}.{} tcp dport 80 accept\n", n / 250, n % 250)).collect();
    assert!(load(&namespace, &inet("forward", &rules)));
    assert_eq!(short(&effects(&namespace)), [""; 0]);
    let ruleset = namespace.enter(nft::read).unwrap().unwrap();
    assert_eq!(ruleset.tables[0].chains[0].rules.len(), 5000);
    assert!(load(&namespace, "add rule inet t c drop\n"));
    assert_eq!(short(&effects(&namespace)), ["all46 drop"]);
}

#[test]
fn rulesets_of_legacy_iptables() {
    require!(require_lab(), has_tool("iptables-legacy"));
    let probe = router("legacy");
    let mut legacy = probe.enter(|| legacy::Legacy::open(legacy::opened)).unwrap();
    assert_eq!(legacy.effects().unwrap(), []);
    if !probe.try_run(&["iptables-legacy", "-S"], Duration::from_secs(60)).unwrap().status.success() {
        bywash_lab::skip!("this kernel has no legacy iptables");
    }
    // The table exists now, without rules.
    assert!(!probe.enter(|| legacy.changed()).unwrap());
    let cases: &[(&str, &[&str])] = &[
        ("iptables-legacy -A FORWARD -j ACCEPT", &["all4 rules", "fragments4"]),
        ("iptables-legacy -F", &[]),
        ("iptables-legacy -P FORWARD DROP", &["all4 policy drop"]),
        ("iptables-legacy -P FORWARD ACCEPT", &[]),
        ("iptables-legacy -A INPUT -j DROP", &["own4 rules", "fragments4"]),
        ("iptables-legacy -P OUTPUT DROP", &["errors4 policy drop", "own4 policy drop", "own4 rules", "fragments4"]),
        ("iptables-legacy -A OUTPUT -j ACCEPT", &["errors4 rules", "own4 rules", "own4 rules", "fragments4"]),
        ("iptables-legacy -P OUTPUT ACCEPT\niptables-legacy -F", &[]),
        ("iptables-legacy -N X", &["fragments4"]),
        ("iptables-legacy -X X", &[]),
        ("iptables-legacy -t nat -A POSTROUTING -o p1 -j MASQUERADE", &["all4 rules", "fragments4"]),
        (
            "ip6tables-legacy -t raw -A PREROUTING -i p0 -j DROP",
            &["all4 rules", "fragments4", "all6 rules", "fragments6"],
        ),
        ("iptables-legacy -t nat -F", &["all6 rules", "fragments6"]),
        ("ip6tables-legacy -t raw -F", &[]),
        ("ip6tables-legacy -t mangle -P POSTROUTING DROP", &["all6 policy drop"]),
        ("ip6tables-legacy -t mangle -P POSTROUTING ACCEPT", &[]),
    ];
    let mut before = Vec::new();
    for (commands, wanted) in cases {
        run(&probe, commands);
        let changed = probe.enter(|| legacy.changed()).unwrap();
        let found = legacy.effects().unwrap().to_vec();
        assert_eq!(short(&found), *wanted, "{commands}");
        assert_eq!(changed, found != before, "{commands}");
        assert_eq!(probe.enter(legacy::read).unwrap().unwrap(), found);
        before = found;
    }
    // None of it appears in nf_tables.
    assert_eq!(effects(&probe), []);
}
