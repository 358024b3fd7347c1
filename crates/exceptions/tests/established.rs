//! The evaluation of rulesets for established flows against the kernel: connections are established through a router,
//! then rulesets are loaded, and the kernel is asked by the next packet of each direction.

use bywash_exceptions::nft::{self, Answer, Course, Evaluator, Flow, Interface, State, Tuple};
use bywash_lab::{Namespace, Topology, has_tool, patience, require, require_lab, wait_until};
use bywash_sync::random::{STEP, splitmix64};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Translates the flows of the tests and keeps connection tracking on, whatever else is loaded.
const KEEP: &str = "
table inet keep {
 chain track { type filter hook input priority 0; ct state new accept; }
}
table ip translate {
 chain to { type nat hook prerouting priority -100; udp dport 8080 dnat to 10.0.2.2:81; }
 chain from { type nat hook postrouting priority 100; oifname r1 th dport 80 masquerade; }
}
";

/// Accepts the packets of the marker, which is sent behind each probe, in the order of the path.
const MARKER: &str = "udp dport 9 accept;";

/// The two sockets of a connection.
enum Ends {
    Udp { a: UdpSocket, b: UdpSocket },
    Tcp { a: TcpStream, b: TcpStream },
}

/// A connection through the router, from host a.
struct Link {
    name: &'static str,
    ends: Ends,
    /// The direction from a to b.
    flow: Flow,
}

struct Lab {
    topology: Topology,
    links: Vec<Link>,
    marker: (UdpSocket, UdpSocket),
}

fn load(namespace: &Namespace, ruleset: &str) -> bool {
    let file = std::env::temp_dir().join(format!("{}.nft", namespace.name()));
    std::fs::write(&file, ruleset).unwrap();
    let loaded = namespace.try_run(&["nft", "-f", file.to_str().unwrap()], LIMIT).unwrap();
    std::fs::remove_file(&file).unwrap();
    if !loaded.status.success() {
        println!("{ruleset}{}", loaded.stderr);
    }
    loaded.status.success()
}

fn udp(namespace: &Namespace, addr: SocketAddr) -> UdpSocket {
    let socket = namespace.enter(|| UdpSocket::bind(addr)).unwrap().unwrap();
    socket.set_read_timeout(Some(patience(LIMIT))).unwrap();
    socket
}

fn interface(namespace: &Namespace, name: &str) -> Option<Interface> {
    let shown = namespace.run(&["cat", &format!("/sys/class/net/{name}/ifindex")]).unwrap();
    Some(Interface { index: shown.stdout.trim().parse().unwrap(), name: name.into(), ..Interface::default() })
}

fn tuple(src: SocketAddr, dst: SocketAddr) -> Tuple {
    Tuple { src: Some(src.ip()), dst: Some(dst.ip()), src_port: Some(src.port()), dst_port: Some(dst.port()) }
}

impl Lab {
    /// Establishes a connection of each kind.
    fn new() -> Self {
        let topology = Topology::builder().static_neighbours(true).build().unwrap();
        let (a, b, r) = (&topology.a().ns, &topology.b().ns, topology.r());
        assert!(load(r, KEEP));
        let (input, output) = (interface(r, "r0"), interface(r, "r1"));
        let (a4, b4): (IpAddr, IpAddr) = (topology.a().v4.into(), topology.b().v4.into());
        let (a6, b6): (IpAddr, IpAddr) = (topology.a().v6.into(), topology.b().v6.into());
        let at = SocketAddr::new;
        let flow = |protocol, original: Tuple, reply: Tuple, status| Flow {
            mark_changes: false,
            v6: original.src.unwrap().is_ipv6(),
            options6: false,
            icmp: [0; 2],
            protocol,
            course: Course::Forwarded,
            state: State::Established,
            input: input.clone(),
            output: output.clone(),
            original,
            reply,
            replies: Some(false),
            status: Some(status),
            mark: Some(0),
            zone: Some(0),
            skb_mark: Some(0),
            returns: true,
        };
        let mut links = Vec::new();
        // SEEN_REPLY, CONFIRMED, SRC_NAT_DONE and DST_NAT_DONE; SRC_NAT, DST_NAT.
        let (plain, source, destination) = (0x18a, 0x10, 0x20);
        let datagrams = [
            ("udp4", at(a4, 4000), at(b4, 80), at(b4, 80), plain | source),
            ("dnat4", at(a4, 4001), at(topology.a().router_v4.into(), 8080), at(b4, 81), plain | destination),
            ("udp6", at(a6, 4000), at(b6, 80), at(b6, 80), plain),
        ];
        for (name, from, to, server, status) in datagrams {
            let (near, far) = (udp(a, from), udp(b, server));
            near.connect(to).unwrap();
            near.send(b"hello").unwrap();
            let (_, seen) = far.recv_from(&mut [0; 8]).unwrap();
            far.connect(seen).unwrap();
            far.send(b"hello").unwrap();
            near.recv(&mut [0; 8]).unwrap();
            let flow = flow(17, tuple(from, to), tuple(server, seen), status);
            links.push(Link { name, ends: Ends::Udp { a: near, b: far }, flow });
        }
        let listener = b.enter(|| TcpListener::bind(at(b4, 80))).unwrap().unwrap();
        let near = a.enter(|| TcpStream::connect(at(b4, 80))).unwrap().unwrap();
        let (far, seen) = listener.accept().unwrap();
        let from = near.local_addr().unwrap();
        for end in [&near, &far] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(patience(LIMIT))).unwrap();
        }
        // ASSURED.
        let flow = flow(6, tuple(from, at(b4, 80)), tuple(at(b4, 80), seen), plain | source | 4);
        links.push(Link { name: "tcp4", ends: Ends::Tcp { a: near, b: far }, flow });
        let marker = (udp(a, at(a4, 9)), udp(b, at(b4, 9)));
        marker.0.connect(at(b4, 9)).unwrap();
        marker.1.connect(at(a4, 9)).unwrap();
        Self { topology, links, marker }
    }

    fn load(&self, ruleset: &str) -> bool {
        load(self.topology.r(), &format!("flush ruleset\n{KEEP}{ruleset}"))
    }

    /// Sends a marker behind the probe and waits until it has arrived.
    fn mark(&self, replies: bool) {
        let (from, to) = if replies { (&self.marker.1, &self.marker.0) } else { (&self.marker.0, &self.marker.1) };
        from.send(b"mark").unwrap();
        to.recv(&mut [0; 8]).unwrap();
    }

    /// Sends a packet of a connection; returns whether it has passed the router.
    fn passes(&self, link: &Link, replies: bool) -> bool {
        match &link.ends {
            Ends::Udp { a, b } => {
                let (from, to) = if replies { (b, a) } else { (a, b) };
                from.send(b"probe").unwrap();
                self.mark(replies);
                to.set_nonblocking(true).unwrap();
                let passed = to.recv(&mut [0; 8]).is_ok();
                to.set_nonblocking(false).unwrap();
                passed
            }
            Ends::Tcp { a, b } => {
                let (mut from, mut to) = if replies { (b, a) } else { (a, b) };
                from.write_all(b"p").unwrap();
                self.mark(replies);
                to.set_nonblocking(true).unwrap();
                let read = to.read(&mut [0; 8]);
                to.set_nonblocking(false).unwrap();
                match read {
                    Ok(1) => true,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Takes what has arrived late of an earlier case.
    fn drain(&self, link: &Link) {
        let Ends::Udp { a, b } = &link.ends else { return };
        for socket in [a, b] {
            socket.set_nonblocking(true).unwrap();
            while socket.recv(&mut [0; 8]).is_ok() {}
            socket.set_nonblocking(false).unwrap();
        }
    }

    /// Lets everything pass until nothing of the connection is under way: TCP sends again what was dropped.
    fn settle(&self, link: &Link, lost: Option<bool>) {
        let Ends::Tcp { a, b } = &link.ends else { return };
        let (a, b): (&TcpStream, &TcpStream) = (a, b);
        assert!(self.load(""));
        if let Some(replies) = lost {
            let mut to = if replies { a } else { b };
            assert_eq!(to.read(&mut [0; 8]).unwrap(), 1);
        }
        // All data is acknowledged in both directions.
        let shown = |namespace: &Namespace| {
            let shown = namespace.run(&["ss", "-tnHi", "state", "established"]).unwrap().stdout;
            !shown.contains("unacked:") && !shown.contains("notsent:")
        };
        wait_until("acknowledgements", LIMIT, || shown(&self.topology.a().ns) && shown(&self.topology.b().ns)).unwrap();
    }

    /// Compares the evaluation with the kernel for some connections, in both directions, with the ruleset that
    /// `install` loads. Returns the answers; `None` if it cannot be loaded.
    fn compare(&self, install: &dyn Fn() -> bool, links: &[&str]) -> Option<Vec<String>> {
        if !install() {
            return None;
        }
        let mut answers = Vec::new();
        for link in self.links.iter().filter(|link| links.contains(&link.name)) {
            for replies in [false, true] {
                let (input, output) = (link.flow.input.clone(), link.flow.output.clone());
                let flow = match replies {
                    false => link.flow.clone(),
                    true => Flow { input: output, output: input, replies: Some(true), ..link.flow.clone() },
                };
                let read = self.topology.r().enter(nft::read_whole).unwrap().unwrap();
                let answer = Evaluator::new(&read).evaluate(&flow);
                let wanted = match &answer {
                    Answer::Accept { .. } => Some(true),
                    Answer::Drop { .. } => Some(false),
                    _ => None,
                };
                answers.push(match &answer {
                    Answer::Accept { .. } => "accept".to_owned(),
                    Answer::Drop { .. } => "drop".to_owned(),
                    Answer::Kernel { findings } | Answer::Depends { findings } => findings[0].why.clone(),
                });
                if let Some(wanted) = wanted {
                    self.drain(link);
                    // A marker may overtake the probe if the sender has moved to another CPU, so the kernel accepts if
                    // one of several probes passes, and drops if none does: what arrives late counts for the next one.
                    let passed = (0..if wanted { 5 } else { 2 }).map(|_| {
                        let passed = self.passes(link, replies);
                        self.settle(link, (!passed).then_some(replies));
                        assert!(!matches!(link.ends, Ends::Tcp { .. }) || install());
                        passed
                    });
                    if passed.into_iter().any(|passed| passed) != wanted {
                        let rules = self.topology.r().run(&["nft", "-a", "list", "ruleset"]).unwrap().stdout;
                        panic!("{}, replies: {replies}: {answer:?}, the kernel differs\n{rules}", link.name);
                    }
                }
            }
        }
        Some(answers)
    }
}

/// Returns a table with a chain of `head`, such as "type filter hook forward priority 0; policy drop;".
fn chain(family: &str, head: &str, rules: &str) -> String {
    format!(
        "table {family} t {{\n chain sub {{ tcp dport 80 accept; udp dport 80 accept; }}\n chain c {{ {head} {MARKER}\n{rules}\n }}\n}}\n"
    )
}

const DROPS: &str = "type filter hook forward priority 0; policy drop;";
const ACCEPTS: &str = "type filter hook forward priority 0; policy accept;";

#[test]
fn the_kernel_does_what_was_predicted() {
    require!(require_lab(), has_tool("nft"), has_tool("ss"));
    let lab = Lab::new();
    let two = |there: &str, back: &str| vec![there.to_owned(), back.to_owned()];
    let prerouting = |priority: i32| format!("type filter hook prerouting priority {priority}; policy accept;");
    let postrouting = |priority: i32| format!("type filter hook postrouting priority {priority}; policy accept;");
    // Ruleset, connection, answers for both directions.
    let cases: Vec<(String, &str, Vec<String>)> = vec![
        (String::new(), "udp4", two("accept", "accept")),
        (chain("inet", DROPS, "ct state established,related accept"), "udp4", two("accept", "accept")),
        (chain("inet", DROPS, "ct state established,related accept"), "udp6", two("accept", "accept")),
        (chain("inet", DROPS, "ct state established,related accept"), "tcp4", two("accept", "accept")),
        (chain("inet", DROPS, "ct state vmap { established : accept, invalid : drop }"), "dnat4", two("accept", "accept")),
        (chain("inet", DROPS, "ct state new accept"), "udp4", two("drop", "drop")),
        (chain("inet", DROPS, ""), "tcp4", two("drop", "drop")),
        (chain("inet", DROPS, "limit rate 10/second accept\nct state established accept"), "udp4", two("limit", "limit")),
        (chain("inet", DROPS, "ct state established accept\nlimit rate 10/second accept"), "udp4", two("accept", "accept")),
        (chain("inet", DROPS, "counter ct state established counter accept"), "tcp4", two("accept", "accept")),
        (chain("inet", DROPS, "tcp flags syn / syn,rst tcp option maxseg size set 1400\naccept"), "tcp4", two("accept", "accept")),
        (chain("inet", DROPS, "iifname r0 oifname r1 accept\niifname r1 oifname r0 ct state established accept"), "udp6",
         two("accept", "accept")),
        (chain("inet", DROPS, "iifname r0 accept"), "udp4", two("accept", "drop")),
        (chain("inet", DROPS, "iif r1 accept"), "udp6", two("drop", "accept")),
        (chain("inet", DROPS, "iifname \"r*\" oifname { r1, r2 } accept"), "udp4", two("accept", "drop")),
        (chain("inet", DROPS, "jump sub\nct direction reply accept"), "tcp4", two("accept", "accept")),
        (chain("inet", DROPS, "goto sub\naccept"), "udp4", two("accept", "drop")),
        (chain("inet", ACCEPTS, "ct direction reply drop"), "udp6", two("accept", "drop")),
        (chain("inet", ACCEPTS, "ct status snat drop"), "udp4", two("drop", "drop")),
        (chain("inet", ACCEPTS, "ct status dnat drop"), "udp4", two("accept", "accept")),
        (chain("inet", ACCEPTS, "ct status dnat drop"), "dnat4", two("drop", "drop")),
        (chain("inet", ACCEPTS, "ct original ip daddr 10.0.1.1 drop"), "dnat4", two("drop", "drop")),
        (chain("inet", ACCEPTS, "meta l4proto udp ct original proto-dst 8080 drop"), "dnat4", two("drop", "drop")),
        (chain("inet", ACCEPTS, "ct mark 0 ct zone 0 meta mark 0 drop"), "udp4", two("drop", "drop")),
        (chain("inet", ACCEPTS, "ct mark 1-7 drop\nmeta mark & 0xff == 1 drop\nmeta skuid 0 drop"), "udp4", two("accept", "accept")),
        (chain("inet", ACCEPTS, "meta mark set 1"), "udp4", two("meta set", "meta set")),
        (chain("inet", ACCEPTS, "ip ttl 63 accept"), "udp4", two("accept", "accept")),
        (chain("inet", ACCEPTS, "ip ttl 63 drop"), "udp4", two("ip ttl", "ip ttl")),
        (chain("inet", ACCEPTS, "meta length > 1000 drop"), "udp6", two("length", "length")),
        // The addresses of the place.
        (chain("ip", ACCEPTS, "ip saddr 10.0.1.2 ip daddr 10.0.2.2 drop"), "udp4", two("drop", "accept")),
        (chain("ip", ACCEPTS, "ip daddr 10.0.1.2 udp dport 4000 drop"), "udp4", two("accept", "drop")),
        (chain("ip", &prerouting(-150), "ip daddr 10.0.2.1 drop"), "udp4", two("accept", "drop")),
        (chain("ip", &prerouting(-50), "ip daddr 10.0.2.1 drop"), "udp4", two("accept", "accept")),
        (chain("ip", &prerouting(-100), "ip daddr 10.0.2.1 drop"), "udp4", two("accept", "destination address")),
        (chain("ip", &prerouting(-150), "udp dport 8080 drop"), "dnat4", two("drop", "accept")),
        (chain("ip", ACCEPTS, "udp dport 8080 drop"), "dnat4", two("accept", "accept")),
        (chain("ip", ACCEPTS, "udp dport 81 drop"), "dnat4", two("drop", "accept")),
        (chain("ip", &postrouting(50), "ip saddr 10.0.1.2 drop"), "udp4", two("drop", "accept")),
        (chain("ip", &postrouting(150), "ip saddr 10.0.1.2 drop"), "udp4", two("accept", "accept")),
        (chain("ip", &postrouting(150), "ip saddr 10.0.2.1 drop"), "udp4", two("drop", "accept")),
        (chain("ip", &postrouting(50), "ip saddr 10.0.2.2 udp sport 81 drop"), "dnat4", two("accept", "drop")),
        (chain("ip", &postrouting(150), "iifname r1 oifname r0 ip saddr 10.0.1.1 udp sport 8080 drop"), "dnat4", two("accept", "drop")),
        // Before connection tracking.
        (chain("inet", &prerouting(-300), "ct state invalid drop"), "udp4", two("drop", "drop")),
        (chain("inet", &prerouting(-300), "ct state established drop\nct mark 0 drop"), "udp4", two("accept", "accept")),
        (chain("inet", &prerouting(-300), "udp dport 80 notrack"), "udp4", two("notrack", "accept")),
        (chain("inet", &prerouting(-150), "ct state established drop"), "udp6", two("drop", "drop")),
        (chain("inet", &prerouting(-300), "oif 0 drop"), "udp6", two("drop", "drop")),
        // Routes.
        (chain("inet", &prerouting(10), "fib saddr . iif oif missing drop"), "udp6", two("accept", "accept")),
        (chain("inet", &prerouting(10), "fib saddr . mark . iif oif missing drop"), "dnat4", two("accept", "accept")),
        (chain("inet", &prerouting(-300), "fib saddr . iif oif exists drop"), "tcp4", two("drop", "drop")),
        (chain("inet", ACCEPTS, "fib saddr . iif oif r0 drop"), "udp4", two("drop", "accept")),
        (chain("inet", ACCEPTS, "fib saddr . iif oifname r1 drop"), "udp6", two("accept", "drop")),
        (chain("inet", &prerouting(10), "fib saddr oif 0 drop"), "udp6", two("fib", "fib")),
        (chain("inet", ACCEPTS, "fib daddr type local drop"), "dnat4", two("accept", "accept")),
        (chain("inet", ACCEPTS, "fib daddr type unicast drop"), "udp6", two("drop", "drop")),
        (chain("inet", &prerouting(-50), "fib daddr type != unicast drop"), "udp4", two("accept", "accept")),
        (chain("inet", &prerouting(-150), "fib daddr type local drop"), "dnat4", two("fib", "fib")),
        (chain("inet", &postrouting(150), "fib daddr type local drop"), "udp4", two("accept", "accept")),
        // Families.
        (chain("ip6", ACCEPTS, "drop"), "udp4", two("accept", "accept")),
        (chain("ip6", ACCEPTS, "drop"), "udp6", two("drop", "drop")),
        (chain("inet", ACCEPTS, "meta nfproto ipv6 drop\nip6 version 6 drop"), "udp6", two("drop", "drop")),
        (chain("inet", ACCEPTS, "ip6 nexthdr udp ip6 saddr fd00:1::/64 drop"), "udp6", two("drop", "accept")),
        (chain("inet", ACCEPTS, "meta protocol ip drop"), "udp6", two("accept", "accept")),
        (chain("netdev", "type filter hook ingress device r0 priority 0; policy accept;", "ip daddr 10.0.2.2 drop"), "udp4",
         two("drop", "packets of devices above")),
        (chain("netdev", "type filter hook ingress device r1 priority 0; policy accept;", "ip daddr 10.0.2.1 drop"), "udp4",
         two("packets of devices above", "drop")),
        (chain("netdev", "type filter hook ingress device r1 priority 0; policy drop;", "ip6 saddr fd00:2::2 accept"), "udp6",
         two("packets of devices above", "accept")),
        (chain("netdev", "type filter hook egress device r1 priority 0; policy accept;", "ip saddr 10.0.2.1 drop"), "udp4",
         two("drop", "packets of devices above")),
        (chain("inet", "type filter hook ingress device r0 priority 0; policy accept;", "meta nfproto ipv6 drop"), "udp6",
         two("drop", "packets of devices above")),
        (chain("inet", "type filter hook ingress device r0 priority 0; policy accept;", "ct state invalid drop"), "udp6",
         two("drop", "packets of devices above")),
        // Sets and maps.
        (chain("inet", DROPS, "ip saddr { 10.0.1.0/24, 10.9.0.0-10.9.0.7 } accept"), "udp4", two("accept", "drop")),
        (chain("inet", DROPS, "ip saddr != { 10.0.1.0/24 } accept"), "udp4", two("drop", "accept")),
        (chain("inet", DROPS, "th dport { 70-79, 80, 90-100 } accept"), "tcp4", two("accept", "drop")),
        (chain("inet", DROPS, "ip saddr . th dport { 10.0.1.2 . 80, 10.0.2.2 . 4000 } accept"), "udp4", two("accept", "accept")),
        (chain("inet", DROPS, "ip daddr . th dport { 10.0.2.0/24 . 80-90 } accept"), "tcp4", two("accept", "drop")),
        (chain("inet", DROPS, "iifname . oifname vmap { r0 . r1 : accept, r1 . r0 : jump sub }"), "udp6", two("accept", "drop")),
        (chain("inet", DROPS, "ip6 saddr . ip6 daddr { fd00:1::2 . fd00:2::2 } accept"), "udp6", two("accept", "drop")),
        (chain("inet", DROPS, "meta l4proto { tcp, udp } ct state { established, untracked } accept"), "udp4", two("accept", "accept")),
        (chain("inet", DROPS, "iifname { \"r*\", eth7 } accept"), "udp4", two("accept", "accept")),
        ("table inet t {\n set s { type ipv4_addr; flags dynamic; }\n chain c { type filter hook forward priority 0; \
          udp dport 9 accept; ip saddr @s drop; }\n}\n".into(), "udp4", two("flags dynamic", "flags dynamic")),
        ("table inet t {\n set s { type ipv4_addr; counter; elements = { 10.0.1.2 }; }\n chain c { type filter hook \
          forward priority 0; udp dport 9 accept; ip saddr @s drop; }\n}\n".into(), "udp4",
         two("element of set s: counter", "accept")),
        ("table inet t {\n map m { type inet_service : verdict; elements = { 80 : drop, * : accept }; }\n chain c { type \
          filter hook forward priority 0; policy drop; udp dport 9 accept; udp dport vmap @m; }\n}\n".into(), "udp4",
         two("drop", "accept")),
        // The lower priority first; a chain that accepts does not spare the next one.
        ("table inet t {\n chain c { type filter hook forward priority -10; udp dport 9 accept; accept; }\n chain d { type \
          filter hook forward priority 10; policy drop; udp dport 9 accept; }\n}\n".into(), "udp6", two("drop", "drop")),
        ("table inet t {\n chain c { type filter hook forward priority 10; udp dport 9 accept; log; }\n chain d { type \
          filter hook forward priority -10; policy drop; udp dport 9 accept; }\n}\n".into(), "udp6", two("drop", "drop")),
        ("table inet t {\n flags dormant;\n chain c { type filter hook forward priority 0; policy drop; }\n}\n".into(),
         "udp6", two("accept", "accept")),
    ];
    let mut wrong = Vec::new();
    for (ruleset, link, wanted) in &cases {
        let Some(answers) = lab.compare(&|| lab.load(ruleset), &[link]) else {
            // Linux has hook egress since 5.16, and hook ingress for family inet since 5.10.
            let may_fail = ruleset.contains("hook egress") || ruleset.contains("hook ingress");
            assert!(may_fail, "it cannot be loaded:\n{ruleset}");
            continue;
        };
        if answers != *wanted {
            wrong.push(format!("{ruleset}{link}: {answers:?}, not {wanted:?}\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rules_of_iptables_nft() {
    require!(require_lab(), has_tool("nft"), has_tool("ss"), has_tool("iptables-nft"));
    let lab = Lab::new();
    let r = lab.topology.r();
    let marker = "iptables-nft -I FORWARD -p udp --dport 9 -j ACCEPT";
    // Commands, connection, answers.
    let cases: &[(&str, &str, [&str; 2])] = &[
        (
            "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -m limit --limit 9/s -j ACCEPT",
            "udp4",
            ["accept", "accept"],
        ),
        ("-A FORWARD -m limit --limit 9/s -j ACCEPT", "udp4", ["limit", "limit"]),
        ("-A FORWARD -m conntrack --ctstate NEW,INVALID -j ACCEPT", "tcp4", ["drop", "drop"]),
        (
            "-A FORWARD -m conntrack ! --ctstate NEW,INVALID -m comment --comment x -j ACCEPT",
            "tcp4",
            ["accept", "accept"],
        ),
        ("-A FORWARD -m conntrack --ctstate SNAT -j ACCEPT", "udp4", ["accept", "accept"]),
        ("-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT", "udp4", ["drop", "drop"]),
        ("-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT", "dnat4", ["accept", "accept"]),
        ("-A FORWARD -i r0 -o r1 -p tcp -m tcp --dport 80 -j ACCEPT", "tcp4", ["accept", "drop"]),
        ("-A FORWARD -p udp -m udp --sport 4000:4002 ! --dport 53 -j ACCEPT", "udp4", ["accept", "drop"]),
        ("-A FORWARD -p udp -m multiport --ports 53,70:90 -j ACCEPT", "udp4", ["accept", "accept"]),
        ("-A FORWARD -p udp -m multiport ! --dports 53,70:90 -j ACCEPT", "udp4", ["drop", "accept"]),
        ("-A FORWARD -m mark --mark 0/0xff -j ACCEPT", "udp4", ["accept", "accept"]),
        ("-A FORWARD -m addrtype --dst-type UNICAST -j ACCEPT", "udp4", ["accept", "accept"]),
        ("-A FORWARD -m addrtype --dst-type LOCAL,BROADCAST -j ACCEPT", "dnat4", ["drop", "drop"]),
        ("-A FORWARD -m addrtype ! --dst-type LOCAL -j ACCEPT", "dnat4", ["accept", "accept"]),
        ("-A FORWARD -m addrtype --src-type UNICAST -j ACCEPT", "udp4", ["counter of some packets, by addrtype"; 2]),
        // Before the translation, the address is the router's.
        (
            "-t mangle -A PREROUTING -p udp ! --dport 9 -m addrtype --dst-type LOCAL -j DROP\n-A FORWARD -j ACCEPT",
            "dnat4",
            ["counter of some packets, by addrtype"; 2],
        ),
        ("6 -A FORWARD -m addrtype --dst-type LOCAL -j DROP", "udp6", ["accept", "accept"]),
        (
            "6 -A FORWARD -m rt --rt-type 0 -j DROP\n6 -A FORWARD -m frag --fragmore -j DROP",
            "udp6",
            ["accept", "accept"],
        ),
        ("6 -A FORWARD -m rt ! --rt-type 0 -j DROP\n6 -A FORWARD -j DROP", "udp6", ["drop", "drop"]),
        ("-A FORWARD -m connmark --mark 0/0xff -j ACCEPT", "udp4", ["accept", "accept"]),
        ("-A FORWARD -m connmark ! --mark 0 -j ACCEPT", "udp4", ["drop", "drop"]),
        (
            "-t raw -A PREROUTING -p udp ! --dport 9 -m connmark ! --mark 7 -j DROP\n-A FORWARD -j ACCEPT",
            "udp4",
            ["accept", "accept"],
        ),
        ("-A FORWARD -m mark --mark 0x4000/0x4000 -j DROP\n-A FORWARD -j ACCEPT", "udp4", ["accept", "accept"]),
        (
            "-t mangle -A FORWARD -j MARK --set-xmark 0/0xff\n-A FORWARD -m mark --mark 0 -j ACCEPT",
            "tcp4",
            ["accept", "accept"],
        ),
        ("-t mangle -A FORWARD -j MARK --set-mark 1\n-A FORWARD -j ACCEPT", "udp4", ["xt target MARK"; 2]),
        ("-t mangle -A FORWARD -j MARK --xor-mark 1\n-A FORWARD -j ACCEPT", "udp4", ["xt target MARK"; 2]),
        (
            "-t mangle -A PREROUTING -i r1 -m rpfilter --validmark --invert -m conntrack --ctstate NEW,INVALID -j DROP\n\
             -A FORWARD -j ACCEPT",
            "udp4",
            ["accept", "accept"],
        ),
        ("-t mangle -A PREROUTING -m rpfilter --invert -j DROP\n-A FORWARD -j ACCEPT", "dnat4", ["accept", "accept"]),
        ("-t raw -A PREROUTING -p udp ! --dport 9 -m rpfilter --loose -j DROP", "udp4", ["drop", "drop"]),
        ("6 -t raw -A PREROUTING -m rpfilter --validmark --invert -j DROP", "udp6", ["accept", "accept"]),
        (
            "-A FORWARD -p tcp --tcp-flags ALL NONE -j DROP\n-A FORWARD -p tcp --tcp-flags ALL FIN,PSH,URG -j DROP\n\
             -A FORWARD -p tcp --sport 0 --tcp-flags FIN,SYN,RST,ACK SYN -j DROP\n-A FORWARD -j ACCEPT",
            "tcp4",
            ["accept", "accept"],
        ),
        ("-A FORWARD -p tcp --tcp-flags SYN,RST SYN -j DROP\n-A FORWARD -j ACCEPT", "tcp4", ["accept", "accept"]),
        ("-N X\n-A FORWARD -j X\n-A X -s 10.0.1.0/24 -j RETURN\n-A X -j ACCEPT", "udp4", ["drop", "accept"]),
    ];
    for (commands, link, wanted) in cases {
        let install = || {
            assert!(lab.load(""));
            let commands = commands.lines().map(|line| match line.strip_prefix("6 ") {
                Some(line) => format!("ip6tables-nft {line}"),
                None => format!("iptables-nft {line}"),
            });
            for command in commands.chain([marker.into(), "iptables-nft -P FORWARD DROP".into()]) {
                r.run(&command.split_whitespace().collect::<Vec<_>>()).unwrap();
            }
            true
        };
        let answers = lab.compare(&install, &[link]).unwrap();
        assert_eq!(answers, wanted, "{link}\n{commands}");
    }
}

/// A generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(STEP);
        (splitmix64(self.0, 0) % limit as u64) as usize
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    fn rule(&mut self, family: &str, prerouting: bool, sub: bool) -> String {
        const MATCHES: &[&str] = &[
            "iifname r0",
            "iifname r1",
            "iif r0",
            "iifname \"r*\"",
            "ct state established",
            "ct state new,invalid",
            "ct state != invalid",
            "ct direction reply",
            "ct direction original",
            "ct status snat",
            "ct status dnat",
            "ct mark 0",
            "ct mark != 1-5",
            "meta mark 0",
            "ip saddr 10.0.1.2",
            "ip daddr 10.0.2.0/24",
            "ip daddr 10.0.1.2",
            "ip saddr 10.0.2.1",
            "ip6 daddr fd00:2::/64",
            "ip6 saddr fd00:2::2",
            "meta nfproto ipv4",
            "meta nfproto ipv6",
            "udp dport 80",
            "tcp dport 80",
            "tcp sport { 80, 90-100 }",
            "th sport 1-4000",
            "th dport 4000",
            "th dport != { 1-79 }",
            "th dport 8080",
            "udp sport 81",
            "meta l4proto { tcp, udp }",
            "ip protocol udp",
            "ip saddr . th dport { 10.0.1.2 . 80, 10.0.2.2 . 4000 }",
            "ip daddr . th dport { 10.0.2.0/24 . 80-90 }",
            "ct original ip saddr 10.0.1.2",
            "meta l4proto udp ct original proto-dst 80",
            "meta l4proto udp ct reply proto-src 81",
            "ip ttl > 10",
            "ip dscp cs0",
            "meta length < 2000",
            "tcp flags syn",
            "tcp flags ack",
            "tcp flags & (fin | syn | rst | psh | ack | urg) == 0x0",
            "tcp flags & (ack | psh) == ack",
            "tcp flags & (fin | syn | rst) == 0x0",
            "meta pkttype host",
            "meta skuid 0",
            "ct zone 0",
            "ct l3proto ipv6",
            "ct protocol tcp",
            "ip frag-off & 0x1fff == 0",
            "fib daddr type unicast",
            "fib saddr . iif oif exists",
        ];
        const AFTER: &[&str] =
            &["oifname r0", "oifname r1", "oif r1", "iifname . oifname { r0 . r1 }", "oifname != { r1 }"];
        const VERDICTS: &[&str] = &[
            "accept",
            "accept",
            "accept",
            "drop",
            "counter accept",
            "counter drop",
            "return",
            "counter",
            "log accept",
            "ct state vmap { established : accept, new : drop }",
            "th dport vmap { 80 : accept, 81 : drop, 4000 : return }",
        ];
        // Matches of the other family, and of the family itself where there is one only, are refused.
        let refused: &[&str] = match family {
            "ip" => &["ip6 ", "meta nfproto"],
            "ip6" => &["ip ", "ct original ip ", "meta nfproto"],
            _ => &[],
        };
        let fits = |text: &str| !refused.iter().any(|start| text.starts_with(start));
        let mut rule = String::new();
        for _ in 0..self.below(3) {
            let known = if !prerouting && self.below(5) == 0 { AFTER } else { MATCHES };
            let matched = self.of(known);
            if fits(matched) {
                rule += &format!("{matched} ");
            }
        }
        let verdict = if !sub && self.below(4) == 0 { self.of(&["jump sub", "goto sub"]) } else { self.of(VERDICTS) };
        rule + verdict
    }

    fn ruleset(&mut self) -> String {
        let family = self.of(&["inet", "inet", "ip", "ip6"]);
        let rules = |random: &mut Self, prerouting, sub| -> String {
            (0..1 + random.below(4)).map(|_| format!("  {}\n", random.rule(family, prerouting, sub))).collect()
        };
        // The other chain may be met at any hook.
        let sub = rules(self, true, true);
        let mut ruleset = format!("table {family} t {{\n chain sub {{\n{sub} }}\n");
        for number in 0..1 + self.below(3) {
            let hook = self.of(&["prerouting", "forward", "forward", "postrouting"]);
            let priority = self.of(&["-300", "-200", "-150", "-100", "-50", "0", "50", "100", "150"]);
            let policy = self.of(&["accept", "accept", "drop"]);
            let rules = rules(self, hook == "prerouting", false);
            ruleset += &format!(
                " chain c{number} {{\n  type filter hook {hook} priority {priority}; policy {policy}; {MARKER}\n{rules} }}\n"
            );
        }
        ruleset + "}\n"
    }
}

/// Runs random rulesets: `RULESETS` of them from `SEED` on, by default 60 from 1.
#[test]
fn random_rulesets() {
    require!(require_lab(), has_tool("nft"), has_tool("ss"));
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seed, count): (u64, u64) = (number("SEED", 1), number("RULESETS", 60));
    let lab = Lab::new();
    let mut answers: BTreeMap<String, u32> = BTreeMap::new();
    let mut loaded = 0;
    for seed in seed..seed + count {
        let ruleset = Random(seed).ruleset();
        println!("seed {seed}\n{ruleset}");
        let Some(found) = lab.compare(&|| lab.load(&ruleset), &["udp4", "dnat4", "udp6", "tcp4"]) else { continue };
        loaded += 1;
        for answer in found {
            *answers.entry(answer).or_default() += 1;
        }
    }
    println!("{loaded} of {count} rulesets loaded: {answers:?}");
    let verdicts = answers.get("accept").unwrap_or(&0) + answers.get("drop").unwrap_or(&0);
    assert!(loaded * 10 >= count * 6, "{loaded} of {count} rulesets could be loaded");
    assert!(u64::from(verdicts) >= loaded * 4, "{answers:?}");
}
