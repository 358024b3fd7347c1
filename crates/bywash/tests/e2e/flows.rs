//! Established connections through a stateful firewall and a translation are forwarded past the kernel, as the kernel
//! would forward them, until the kernel would not.

use crate::harness::{Bywash, PATIENCE, bound};
use crate::moves::handled;
use crate::reload::{File, config};
use bywash_lab::{Namespace, Topology, has_tool, patience, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::hex;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Hosts behind r0 may open connections; those of IPv4 are translated to the router's address.
pub const FIREWALL: &str = "
table inet filter {
 chain forward {
  type filter hook forward priority 0; policy drop;
  ct state established,related accept
  iifname r0 accept
 }
}
table ip nat { chain from { type nat hook postrouting priority 100; oifname r1 masquerade; }; }
";

/// Time in which a datagram arrives if it is forwarded at all.
pub const BRIEF: Duration = Duration::from_millis(300);
/// Time in which it does on a busy machine, too.
pub const LATE: Duration = Duration::from_secs(10);

/// Settings of the ports for each level: user space, the driver by native XDP, and the default, the driver by traffic
/// control.
pub const LEVELS: [&str; 3] = ["level = \"user\"\n", "xdp = \"native\"\nlevel = \"driver\"\n", "level = \"auto\"\n"];

/// Returns the configuration of a router at a level that forwards established connections.
pub fn router(level: &str) -> File {
    File::new(&format!("[router]\nflows = 1000\n{}", config(&[("r0", level), ("r1", level)])))
}

/// Starts such a router, and waits until it follows connections. For user space, which takes no datagrams with
/// unfinished checksums from generic XDP, the hosts finish them.
pub fn run<'a>(lab: &'a Topology, level: &str) -> Bywash<'a> {
    if level.is_empty() || level == LEVELS[0] {
        lab.hosts().iter().for_each(|host| host.ns.offload(&host.interface, "tx", false).unwrap());
    }
    let bywash = router(level).run(lab);
    wait_until_followed(&bywash);
    bywash
}

/// Creates a topology whose router has the rules [`FIREWALL`].
pub fn behind_firewall() -> Topology {
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    lab.r().nft(FIREWALL).unwrap();
    lab
}

/// Starts a router at this level, and waits until it forwards a UDP connection from host a to host b past the rules.
pub fn run_with_flow<'a>(lab: &'a Topology, level: &str) -> (Bywash<'a>, Ends) {
    let bywash = run(lab, level);
    let mut udp = Ends::udp(lab, lab.b().v4.into());
    wait_for_flow(&bywash, &mut udp, "UDP");
    (bywash, udp)
}

/// Sets the rules of a home's router: hosts behind `inner` may open connections to r0, from whose address they come.
pub fn masquerade_to_r0(r: &Namespace, inner: &str) {
    r.nft(&format!(
        "table ip nat {{\nchain post {{\ntype nat hook postrouting priority srcnat\noifname \"r0\" masquerade\n}}\n}}\n\
         table inet filter {{\nchain forward {{\ntype filter hook forward priority 0; policy drop\n\
         ct state established,related accept\niifname \"{inner}\" accept\n}}\n}}"
    ))
    .unwrap();
}

/// Waits until connections are followed. The kernel need not announce those that begin earlier.
pub fn wait_until_followed(bywash: &Bywash) {
    bywash.wait("connections to be followed", |bywash| bywash.show(&["flow-table"])["state"] == "passing");
}

/// Returns the packets that ports r0 and r1 received and that were forwarded past the kernel.
pub fn forwarded(bywash: &Bywash) -> [u64; 2] {
    ["r0", "r1"].map(|port| handled(bywash, port)[..2].iter().sum())
}

/// A stateful firewall is no fault: one line says that established flows are forwarded, and fragments are no exception.
#[test]
fn a_stateful_firewall_is_logged_once_and_not_as_a_warning() {
    require!(require_lab(), has_tool("nft"));
    let lab = Topology::router().unwrap();
    lab.r().nft(FIREWALL).unwrap();
    let bywash = run(&lab, LEVELS[2]);
    let log = bywash.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("filter") || line.contains("masquerade")).collect();
    assert!(
        lines.len() == 1 && lines[0].contains("INFO all ports: new connections and fragments go through the"),
        "{log}"
    );
    assert!(lines[0].contains("table inet filter chain forward policy drop, table inet filter"), "{log}");
    assert!(!log.contains("WARN"), "{log}");
    let placement = bywash.text(&["placement"]);
    assert!(placement.contains(": all packets except those of established flows left to the kernel"), "{placement}");
    assert!(placement.contains(": fragments left to the kernel"), "{placement}");
    bywash.stop();
}

/// Readers of flows do not stop the control loop, which sets the programs of all ports for each change of the rules.
#[test]
fn flows_are_shown_while_rules_change() {
    require!(require_lab(), has_tool("nft"));
    let lab = Topology::router().unwrap();
    lab.r().nft(FIREWALL).unwrap();
    let bywash = run(&lab, LEVELS[2]);
    let going = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while going.load(std::sync::atomic::Ordering::Relaxed) {
                    bywash.show(&["flows"]);
                }
            });
        }
        for n in 0..600 {
            let more = if n % 2 == 0 { "add rule inet filter forward counter\n" } else { "" };
            lab.r().nft(&format!("flush ruleset\n{FIREWALL}{more}")).unwrap();
        }
        going.store(false, std::sync::atomic::Ordering::Relaxed);
    });
    wait_until_followed(&bywash);
    bywash.stop();
}

/// Octets of a datagram that is sent to see whether it arrives.
const NUMBER: usize = 8;

/// Sockets of a connection from a to b.
pub enum Ends {
    Udp(UdpSocket, UdpSocket),
    Tcp(TcpStream, TcpStream),
}

impl Ends {
    pub fn udp(lab: &Topology, to: IpAddr) -> Self {
        let own = |host: &bywash_lab::Host| if to.is_ipv4() { host.v4.into() } else { host.v6.into() };
        Self::udp_between((&lab.a().ns, own(lab.a())), (&lab.b().ns, own(lab.b())), to)
    }

    /// Connects a host's address to another's, by its address `to`.
    pub fn udp_between(near: (&Namespace, IpAddr), far: (&Namespace, IpAddr), to: IpAddr) -> Self {
        let socket = |(ns, addr): (&Namespace, IpAddr), port| {
            let socket = bound(ns, || UdpSocket::bind((addr, port)));
            socket.set_read_timeout(Some(patience(PATIENCE))).unwrap();
            socket
        };
        let (near, far) = (socket(near, 4000), socket(far, 80));
        near.connect((to, 80)).unwrap();
        near.send(b"open").unwrap();
        let (_, seen) = far.recv_from(&mut [0; 8]).unwrap();
        far.connect(seen).unwrap();
        Self::Udp(near, far)
    }

    pub fn tcp(lab: &Topology, to: IpAddr) -> Self {
        Self::tcp_to(lab, (to, 80).into(), (to, 80).into())
    }

    /// Connects to an address that the router translates to the server's.
    pub fn tcp_to(lab: &Topology, to: SocketAddr, server: SocketAddr) -> Self {
        let listener = bound(&lab.b().ns, || TcpListener::bind(server));
        let near = lab.a().ns.enter(|| TcpStream::connect(to)).unwrap().unwrap();
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(patience(PATIENCE))).unwrap();
        }
        Self::Tcp(near, far)
    }

    /// Returns the source that b sees.
    pub fn seen(&self) -> SocketAddr {
        match self {
            Self::Udp(_, far) => far.peer_addr().unwrap(),
            Self::Tcp(_, far) => far.peer_addr().unwrap(),
        }
    }

    /// Sends a message each way and checks what arrives.
    pub fn talk(&mut self, message: &[u8]) {
        match self {
            Self::Udp(near, far) => {
                assert_ne!(message.len(), NUMBER, "it would be taken for a late number");
                for (from, to) in [(&*near, &*far), (&*far, &*near)] {
                    from.send(message).unwrap();
                    let mut buffer = vec![0; message.len().max(NUMBER) + 1];
                    let mut receive = || to.recv(&mut buffer).unwrap();
                    let mut length = receive();
                    // Numbers for which nobody waits any more.
                    while length == NUMBER {
                        length = receive();
                    }
                    assert_eq!(buffer[..length], *message);
                }
            }
            Self::Tcp(near, far) => {
                let mut buffer = vec![0; message.len()];
                near.write_all(message).unwrap();
                far.read_exact(&mut buffer).unwrap();
                assert_eq!(buffer, message);
                far.write_all(message).unwrap();
                near.read_exact(&mut buffer).unwrap();
                assert_eq!(buffer, message);
            }
        }
    }

    /// Returns whether a datagram sent by b arrives at a before `limit`.
    pub fn answered(&self, limit: Duration) -> bool {
        let Self::Udp(near, far) = self else { panic!("only for UDP") };
        passes(far, near, limit)
    }

    /// Returns whether several datagrams sent by b one after the other do not arrive at a.
    pub fn is_unanswered(&self) -> bool {
        (0..3).all(|_| !self.answered(BRIEF))
    }

    /// Returns whether several datagrams sent by a one after the other do not arrive at b.
    pub fn is_lost(&self) -> bool {
        (0..3).all(|_| !self.arrives(BRIEF))
    }

    /// Returns whether a datagram sent by a arrives at b before `limit`.
    pub fn arrives(&self, limit: Duration) -> bool {
        let Self::Udp(near, far) = self else { panic!("only for UDP") };
        passes(near, far, limit)
    }
}

fn passes(from: &UdpSocket, to: &UdpSocket, limit: Duration) -> bool {
    // An earlier datagram may still come when nobody waits for it any more.
    static SENT: AtomicU64 = AtomicU64::new(0);
    let number = SENT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let end = Instant::now() + patience(limit);
    // The first call tells that an earlier datagram was refused.
    from.send(&number).or_else(|_| from.send(&number)).unwrap();
    let passed = loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break false;
        }
        to.set_read_timeout(Some(left)).unwrap();
        let mut received = [0; NUMBER];
        match to.recv(&mut received) {
            Ok(_) if received == number => break true,
            Ok(_) => {}
            // A signal ends the wait of a call with a time limit, whoever it is for: a child that is continued, for
            // instance.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => panic!("{error}"),
        }
    };
    to.set_read_timeout(Some(patience(PATIENCE))).unwrap();
    passed
}

/// Returns the connections of one protocol that `show flows` shows, once there is one that is valid.
fn shown(bywash: &Bywash, filter: &str) -> Value {
    let mut flows = Value::Null;
    bywash.wait(&format!("a flow with {filter}"), |bywash| {
        flows = bywash.show(&["flows", filter]);
        flows["flows"].as_array().is_some_and(|flows| flows.iter().any(|flow| flow["state"] == "valid"))
    });
    flows
}

/// Talks until packets of both directions are forwarded past the kernel.
pub fn wait_for_flow(bywash: &Bywash, ends: &mut Ends, what: &str) {
    wait_for_flow_by(bywash, ends, what, forwarded);
}

/// Talks until each of these counts of forwarded packets rises with every message.
pub fn wait_for_flow_by<const N: usize>(
    bywash: &Bywash,
    ends: &mut Ends,
    what: &str,
    forwarded: impl Fn(&Bywash) -> [u64; N],
) {
    let mut why = Value::Null;
    let all_forwarded = || {
        let before = forwarded(bywash);
        for n in 0..4u8 {
            ends.talk(&[n; 700]);
        }
        let after = forwarded(bywash);
        why = bywash.show(&["kernel-connections"]);
        after.iter().zip(before).all(|(after, before)| *after >= before + 4)
    };
    if let Err(error) = wait_until(&format!("{what} to be forwarded past the kernel"), PATIENCE, all_forwarded) {
        panic!("{error}; the kernel's are {why}; it shows {}; it logged {}", bywash.show(&["all"]), bywash.log());
    }
}

#[test]
fn established_connections_pass_without_the_kernel() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    for level in LEVELS {
        let lab = behind_firewall();
        let bywash = run(&lab, level);
        for to in [IpAddr::from(lab.b().v4), lab.b().v6.into()] {
            let mut tcp = Ends::tcp(&lab, to);
            assert_ne!(tcp.seen().ip(), IpAddr::from(lab.a().v4), "the source is translated");
            wait_for_flow(&bywash, &mut tcp, &format!("{level:?}: TCP to {to}"));
            let mut udp = Ends::udp(&lab, to);
            wait_for_flow(&bywash, &mut udp, &format!("{level:?}: UDP to {to}"));
            // The kernel's connection ends, and what b sends is of no connection any more.
            lab.r().run(&["conntrack", "-D", "-p", "udp", "-f", if to.is_ipv4() { "ipv4" } else { "ipv6" }]).unwrap();
            wait_until("the end of the connection to hold", PATIENCE, || udp.is_unanswered() && udp.is_unanswered())
                .unwrap();
            assert!(!udp.answered(BRIEF), "{level:?}: {to}: forwarded past conntrack");
            tcp.talk(b"still");
            // The kernel sees the end.
            drop(tcp);
            bywash.wait("conntrack to know that TCP is closed", |_| {
                let family = if to.is_ipv4() { "ipv4" } else { "ipv6" };
                let shown = lab.r().run(&["conntrack", "-L", "-p", "tcp", "-f", family]).unwrap().stdout;
                !shown.contains("ESTABLISHED")
            });
        }
        bywash.stop();
    }
}

/// The policy selects replies by the address that they arrive with (nf_nat_decode_session), which is the router's.
#[test]
fn an_ipsec_policy_for_an_address_before_translation_holds() {
    require!(require_lab(), has_tool("nft"));
    for level in LEVELS {
        let lab = behind_firewall();
        let (bywash, mut udp) = run_with_flow(&lab, level);
        let policy = |change: &str| {
            let own = format!("{}/32", lab.b().router_v4);
            let line = ["xfrm", "policy", change, "dir", "fwd", "src", "0.0.0.0/0", "dst", &own];
            lab.r().ip(&[&line[..], if change == "add" { &["action", "block"] } else { &[] }].concat()).unwrap();
        };
        policy("add");
        wait_until("the policy to hold", PATIENCE, || udp.is_unanswered() && udp.is_unanswered()).unwrap();
        assert!(!udp.answered(BRIEF), "{level:?}: forwarded past the policy");
        policy("del");
        wait_for_flow(&bywash, &mut udp, "UDP again");
        bywash.stop();
    }
}

#[test]
fn a_new_ruleset_holds_for_established_connections() {
    require!(require_lab(), has_tool("nft"));
    for level in LEVELS {
        let lab = behind_firewall();
        let (bywash, mut udp) = run_with_flow(&lab, level);
        lab.r().nft("insert rule inet filter forward iifname r1 drop").unwrap();
        // Bywash learns of it a moment after nft has returned.
        wait_until("the new rule to hold", PATIENCE, || udp.is_unanswered() && udp.is_unanswered()).unwrap();
        assert!(!udp.answered(BRIEF), "{level:?}: forwarded past the new rule");
        lab.r().nft(&format!("flush ruleset\n{FIREWALL}")).unwrap();
        wait_for_flow(&bywash, &mut udp, "UDP again");
        // A rule that looks at each packet leaves the connection to the kernel.
        lab.r().nft("insert rule inet filter forward ip length > 1400 drop").unwrap();
        let mut past = |n| {
            let before = forwarded(&bywash);
            (0..n).for_each(|_| udp.talk(b"by the kernel"));
            forwarded(&bywash)[1] - before[1]
        };
        wait_until("the new rule to hold", PATIENCE, || past(1) == 0).unwrap();
        assert_eq!(past(20), 0, "{level:?}: forwarded past a rule that looks at each packet");
        bywash.stop();
    }
}

/// Returns a sample of `/metrics`.
fn metric(bywash: &Bywash, name: &str) -> f64 {
    let mut stream = UnixStream::connect(bywash.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}: {answer}"));
    line.trim().parse().unwrap()
}

/// Returns the findings of `bywash doctor` of one kind.
fn findings(lab: &Topology, bywash: &Bywash, id: &str) -> Vec<Value> {
    let socket = bywash.socket().to_str().unwrap().to_owned();
    let out = crate::harness::bywash(lab.r(), &["doctor", "--json", "--socket", &socket]);
    let told: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|why| panic!("{why}: {}", out.stderr));
    told["findings"].as_array().unwrap().iter().filter(|finding| finding["id"] == id).cloned().collect()
}

#[test]
fn the_doctor_says_what_keeps_flows_in_the_kernel() {
    require!(require_lab(), has_tool("nft"));
    let lab = behind_firewall();
    let without = File::new(&format!("[router]\nflows = 0\n{}", config(&[("r0", ""), ("r1", "")])));
    let bywash = without.run(&lab);
    let found = findings(&lab, &bywash, "flows-off");
    assert!(found[0]["mend"].as_str().unwrap().contains("flows = "), "{found:?}");
    assert_eq!(bywash.show(&["flow-table"])["state"], "off");
    bywash.stop();
    let bywash = run(&lab, "");
    assert_eq!((findings(&lab, &bywash, "flows-off"), findings(&lab, &bywash, "flows-kept")), (vec![], vec![]));
    lab.r().nft("insert rule inet filter forward limit rate 1000000/second accept").unwrap();
    let mut found = vec![];
    bywash.wait("the rule to be known", |bywash| {
        found = findings(&lab, bywash, "flows-kept");
        !found.is_empty()
    });
    let what = found[0]["what"].as_str().unwrap();
    assert!(what.contains("table inet filter chain forward rule handle ") && what.contains("(limit accept)"), "{what}");
    // So does the log, once.
    let warned = "WARN established flows (IPv4 TCP, IPv4 UDP, IPv6 TCP, IPv6 UDP) are left to the kernel: table inet ";
    bywash.wait("the log", |bywash| bywash.log().contains(warned));
    lab.r().nft("add rule inet filter forward counter").unwrap();
    lab.r().nft(&format!("flush ruleset\n{FIREWALL}")).unwrap();
    bywash.wait("the log", |bywash| bywash.log().contains("established flows bypass the kernel's rules again"));
    assert_eq!(bywash.log().matches(warned).count(), 1, "{}", bywash.log());
    bywash.stop();
}

/// Returns the level of port r0 by its placement.
fn level_of_r0(bywash: &Bywash) -> String {
    bywash.placement("r0")["level"].as_str().unwrap().into()
}

/// Returns packets of both directions of the only flow that a filter selects.
fn packets(bywash: &Bywash, filter: &str) -> [u64; 2] {
    let flows = bywash.show(&["flows", filter]);
    assert_eq!(flows["flows"].as_array().map(Vec::len), Some(1), "{filter}: {flows}");
    ["original", "reply"].map(|way| flows["flows"][0][way]["packets"].as_u64().unwrap())
}

#[test]
fn flows_are_shown_with_their_translation_and_packets() {
    require!(require_lab(), has_tool("nft"));
    for level in LEVELS {
        let lab = behind_firewall();
        let bywash = run(&lab, level);
        let (near, far) = (lab.a().v4, lab.b().v4);
        let mut tcp = Ends::tcp(&lab, far.into());
        wait_for_flow(&bywash, &mut tcp, "TCP");
        let mut udp = Ends::udp(&lab, far.into());
        wait_for_flow(&bywash, &mut udp, "UDP");
        let placed = level_of_r0(&bywash);
        for (ends, protocol) in [(&tcp, "tcp"), (&udp, "udp")] {
            let flows = shown(&bywash, &format!("proto={protocol}"));
            let flow = &flows["flows"][0];
            assert_eq!((flows["flows"].as_array().unwrap().len(), &flows["total"]), (1, &2.into()), "{flows}");
            let way =
                |way: &str| ["src", "dst", "port", "level"].map(|key| flow[way][key].as_str().unwrap().to_owned());
            assert_eq!(way("original"), [near.to_string(), far.to_string(), "r0".into(), placed.clone()]);
            let seen = ends.seen();
            assert_eq!(way("reply"), [far.to_string(), seen.ip().to_string(), "r1".into(), placed.clone()]);
            assert_eq!((&flow["protocol"], &flow["reply"]["dst_port"]), (&protocol.into(), &seen.port().into()));
        }
        // Each datagram is one packet, and nothing else is sent.
        let before = packets(&bywash, "proto=udp");
        (0..10).for_each(|_| udp.talk(b"counted"));
        assert_eq!(packets(&bywash, "proto=udp"), before.map(|packets| packets + 10), "{level:?}");
        // Addresses before and after the translation, and ports, select.
        let router = tcp.seen().ip();
        for (filter, found) in [
            (format!("src={near},port=80"), 2),
            (format!("src={router}"), 2),
            (format!("dst={near}"), 0),
            ("port=81".into(), 0),
        ] {
            assert_eq!(bywash.show(&["flows", &filter])["flows"].as_array().unwrap().len(), found, "{filter}");
        }
        // Parts follow one another.
        let first = bywash.show(&["flows", "--limit", "1"]);
        let next = format!("after={}", first["next"].as_str().unwrap());
        let second = bywash.show(&["flows", &next]);
        assert_eq!((first["flows"].as_array().unwrap().len(), second["flows"].as_array().unwrap().len()), (1, 1));
        assert_ne!(first["flows"][0], second["flows"][0]);
        let table = bywash.show(&["flow-table"]);
        assert_eq!((&table["state"], &table["limit"]), (&"passing".into(), &1000.into()), "{table}");
        assert_eq!(table["families"][0]["flows"], 2, "{table}");
        let before = metric(&bywash, "bywash_established_packets_total");
        drop(tcp);
        bywash.wait("the closed flow to be counted", |bywash| {
            let table = bywash.show(&["flow-table"]);
            let closed = table["revoked"].as_array().unwrap().iter().find(|row| row["reason"] == "closed-by-packet");
            closed.unwrap()["flows"] == 1 && table["last_revoked"]["reason"] == "closed-by-packet"
        });
        let inserted = metric(&bywash, "bywash_established_flows_inserted_total{family=\"ipv4\"}");
        let removed = metric(&bywash, "bywash_established_flows_removed_total{family=\"ipv4\"}");
        assert_eq!(metric(&bywash, "bywash_established_flows{family=\"ipv4\"}"), inserted - removed);
        assert!(metric(&bywash, "bywash_established_flows_revoked_total{reason=\"closed-by-packet\"}") >= 1.0);
        // Packets that removed flows have forwarded are still counted.
        (0..10).for_each(|_| udp.talk(b"counted"));
        assert_eq!(metric(&bywash, "bywash_established_packets_total"), before + 20.0, "{level:?}");
        bywash.stop();
    }
}

#[test]
fn connections_that_are_left_to_the_kernel_are_shown_with_the_rule() {
    require!(require_lab(), has_tool("nft"));
    let lab = behind_firewall();
    lab.r().nft("insert rule inet filter forward meta l4proto udp ip length > 1400 drop").unwrap();
    let bywash = run(&lab, "");
    let mut tcp = Ends::tcp(&lab, lab.b().v4.into());
    wait_for_flow(&bywash, &mut tcp, "TCP");
    let mut udp = Ends::udp(&lab, lab.b().v4.into());
    let reasons = |bywash: &Bywash| bywash.show(&["kernel-connections"])["reasons"].as_array().unwrap().clone();
    bywash.wait("the rule that keeps UDP in the kernel", |bywash| {
        udp.talk(b"kept");
        reasons(bywash).iter().any(|reason| !reason["rule"].is_null())
    });
    let all = bywash.show(&["kernel-connections"]);
    assert_eq!((&all["connections"], &all["forwarded"]), (&2.into(), &1.into()), "{all}");
    // `show firewall` has the table's counts, metrics the same.
    let socket = bywash.socket().to_str().unwrap().to_owned();
    let firewall = |from: &Namespace| -> Value {
        let shown = crate::harness::bywash(from, &["show", "firewall", "--json", "--socket", &socket]).stdout;
        serde_json::from_str(&shown).unwrap()
    };
    let elsewhere = firewall(&lab.a().ns);
    assert!(elsewhere["elsewhere"].is_u64() && elsewhere["flows"].is_null(), "{elsewhere}");
    lab.a().ns.nft("add table ip x; add chain ip x y { type filter hook forward priority 0; }").unwrap();
    let untracked = firewall(&lab.a().ns);
    assert_eq!(untracked["untracked"], serde_json::json!(["IPv4"]), "{untracked}");
    let firewall = firewall(lab.r());
    assert!(firewall["untracked"].is_null(), "{firewall}");
    assert!(firewall["elsewhere"].is_null(), "{firewall}");
    assert_eq!(firewall["flows"]["families"], bywash.show(&["flow-table"])["families"], "{firewall}");
    let reason = &all["reasons"][0];
    let rule = reason["rule"].as_str().unwrap();
    assert!(rule.starts_with("table inet filter chain forward rule handle "), "{all}");
    assert!(reason["text"].as_str().unwrap().contains("1400"), "{all}");
    assert!(reason["example"].as_str().unwrap().starts_with(&format!("udp {}:4000 to ", lab.a().v4)), "{all}");
    bywash.stop();
}

/// Returns a frame as r0 would receive it from a, in hex.
fn frame(bywash: &Bywash, packet: Packet) -> String {
    let mac: MacAddr = bywash.port("r0")["mac"].as_str().unwrap().parse().unwrap();
    hex::encode(&packet.macs(MacAddr([2, 0, 0, 0, 0, 9]), mac).build().unwrap())
}

#[test]
fn a_packet_of_a_flow_is_traced() {
    require!(require_lab(), has_tool("nft"));
    let lab = behind_firewall();
    let bywash = run(&lab, "");
    let (near, far) = (IpAddr::from(lab.a().v4), IpAddr::from(lab.b().v4));
    let mut tcp = Ends::tcp(&lab, far);
    wait_for_flow(&bywash, &mut tcp, "TCP");
    let mut udp = Ends::udp(&lab, far);
    wait_for_flow(&bywash, &mut udp, "UDP");
    let before = packets(&bywash, "proto=udp");
    let socket = bywash.socket().to_str().unwrap().to_owned();
    let trace = |packet: Packet| -> Value {
        let frame = frame(&bywash, packet);
        let out = crate::harness::bywash(lab.r(), &["trace", "--json", "--socket", &socket, "r0", &frame]);
        serde_json::from_str(&out.stdout).unwrap_or_else(|why| panic!("{why}: {}", out.stderr))
    };
    let traced = trace(Packet::udp((near, 4000).into(), (far, 80).into()));
    let flow = traced["gate"]["flow"].as_str().unwrap_or_else(|| panic!("{traced}"));
    let seen = udp.seen();
    assert_eq!(
        flow,
        format!("udp {near}:4000 > {far}:80, replies {far}:80 > {seen}; the packet is of the original direction")
    );
    assert_eq!((&traced["outputs"], &traced["gate"]["kernel"]), (&serde_json::json!(["r1"]), &Value::Null), "{traced}");
    let story = traced["story"].as_array().unwrap();
    let sent = story.iter().filter_map(Value::as_str).find(|line| line.starts_with("r1: sent, ")).unwrap();
    assert!(sent.contains(&format!("{} port {}", seen.ip(), seen.port())), "{sent}: the source is translated");
    // A packet that closes the connection is left to the kernel; the trace does not revoke its flow.
    let port = match &tcp {
        Ends::Tcp(near, _) => near.local_addr().unwrap().port(),
        Ends::Udp(..) => unreachable!(),
    };
    let traced = trace(Packet::tcp((near, port).into(), (far, 80).into()).tcp_fields(1, 1, 0x11));
    assert!(
        traced["gate"]["kernel"].as_str().unwrap().contains("FIN") && !traced["gate"]["flow"].is_null(),
        "{traced}"
    );
    let traced = trace(Packet::udp((near, 4001).into(), (far, 80).into()));
    assert_eq!(
        (&traced["gate"]["kernel"], &traced["gate"]["flow"]),
        (&"it belongs to no established flow".into(), &Value::Null)
    );
    let udp = || Packet::udp((near, 4000).into(), (far, 80).into());
    for (packet, why) in [
        (udp().ttl(1), "its TTL is 1"),
        (udp().fragment(0x2000), "it is a fragment"),
        (Packet::echo(near, far, 1, 1), "it is neither TCP nor UDP: no other packets have flows"),
    ] {
        assert_eq!(trace(packet)["gate"]["kernel"], why);
    }
    assert_eq!(packets(&bywash, "proto=udp"), before, "the trace counts nothing");
    assert_eq!(shown(&bywash, "proto=tcp")["flows"][0]["state"], "valid");
    bywash.stop();
}
