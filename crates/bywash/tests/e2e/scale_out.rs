//! Four routers side by side: an edge router shares flows among them, one fails, one is drained, and the flows of the
//! others lose nothing.
//!
//! ```text
//!                   ┌─ e1 ── e n1 x ── x1 ─┐
//!   h1 ── h0 edge ──┼─ e2 ── e n2 x ── x2 ─┼── h2
//!                   ├─ e3 ── e n3 x ── x3 ─┤
//!                   └─ e4 ── e n4 x ── x4 ─┘
//! ```

use crate::harness::{Bywash, PATIENCE, alone, bywash};
use crate::load::{Stops, dropped};
use bywash_lab::{Namespace, Ping, counters, require, require_lab, wait_until};
use rustix::net::{AddressFamily, SocketType, sockopt};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NODES: usize = 4;
/// Number of flows: even ones are IPv4, odd ones IPv6.
const FLOWS: u64 = 32_768;
/// Packets a second.
const RATE: u64 = 20_000;
const PORT: u16 = 7008;

struct Lab {
    h1: Namespace,
    edge: Namespace,
    nodes: Vec<Namespace>,
    h2: Namespace,
}

/// Joins two namespaces; network `n` has 10.n.0.0/24 and fd00:n::/64, with the ends 1 and 2.
fn join(one: (&Namespace, &str), other: (&Namespace, &str), n: usize) {
    one.0.ip(&["link", "add", one.1, "type", "veth", "peer", "name", other.1, "netns", other.0.name()]).unwrap();
    for (end, (ns, name)) in [(1, one), (2, other)] {
        ns.ip_batch(&format!(
            "address add 10.{n}.0.{end}/24 dev {name}\naddress add fd00:{n}::{end}/64 dev {name} nodad\nlink set {name} up\n"
        ))
        .unwrap();
    }
}

impl Lab {
    fn new() -> Self {
        let namespace = |name: &str| {
            let ns = Namespace::new(name).unwrap();
            ns.ip(&["link", "set", "lo", "up"]).unwrap();
            for (key, value) in [("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")] {
                ns.sysctl(key, value).unwrap();
            }
            // Packets may come by another path than their answers would take, or without any.
            ns.sysctl("net/ipv4/conf/all/rp_filter", "0").unwrap();
            ns.sysctl("net/ipv4/conf/default/rp_filter", "0").unwrap();
            ns
        };
        let lab = Self {
            h1: namespace("h1"),
            edge: namespace("edge"),
            nodes: (1..=NODES).map(|n| namespace(&format!("n{n}"))).collect(),
            h2: namespace("h2"),
        };
        join((&lab.edge, "h0"), (&lab.h1, "h0"), 1);
        for (at, node) in lab.nodes.iter().enumerate() {
            let n = at + 1;
            join((&lab.edge, &format!("e{n}")), (node, "e"), 20 + n);
            join((node, "x"), (&lab.h2, &format!("x{n}")), 30 + n);
            node.ip_batch(&format!(
                "route add 44.0.0.0/8 via 10.{net}.0.2\nroute add fd44::/16 via fd00:{net}::2\n\
                 route add 10.1.0.0/24 via 10.{back}.0.1\nroute add fd00:1::/64 via fd00:{back}::1\n",
                net = 30 + n,
                back = 20 + n
            ))
            .unwrap();
            lab.edge
                .ip_batch(&format!(
                    "nexthop add id {n} via 10.{net}.0.2 dev e{n}\nnexthop add id 1{n} via fd00:{net}::2 dev e{n}\n",
                    net = 20 + n
                ))
                .unwrap();
        }
        lab.h1.ip_batch("route add default via 10.1.0.1\nroute add default via fd00:1::1\n").unwrap();
        lab.h2
            .ip_batch(
                "route add local 44.0.0.0/8 dev lo\nroute add local fd44::/16 dev lo\n\
                       route add 10.1.0.0/24 via 10.31.0.1\nroute add fd00:1::/64 via fd00:31::1\n",
            )
            .unwrap();
        lab.share("add", &[1, 2, 3, 4]);
        lab.edge.ip_batch("route add 44.0.0.0/8 nhid 100\nroute add fd44::/16 nhid 110\n").unwrap();
        lab
    }

    /// Has the edge share flows among these nodes. The next-hop groups are resilient where the kernel supports that, so
    /// that flows keep their nodes in the kernel, too.
    fn share(&self, verb: &str, nodes: &[usize]) {
        for (group, first) in [("100", ""), ("110", "1")] {
            let members: Vec<String> = nodes.iter().map(|n| format!("{first}{n}")).collect();
            let members = members.join("/");
            let plain = ["nexthop", verb, "id", group, "group", members.as_str()];
            let resilient = [&plain[..], &["type", "resilient", "buckets", "128"]].concat();
            if self.edge.ip(&resilient).is_err() {
                self.edge.ip(&plain).unwrap();
            }
        }
    }
}

/// Returns a socket that receives the packets arriving by one interface.
fn receiver(ns: &Namespace, interface: &str, v6: bool) -> UdpSocket {
    let make = || -> std::io::Result<UdpSocket> {
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let any = if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        let fd = rustix::net::socket(family, SocketType::DGRAM, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        if v6 {
            sockopt::set_ipv6_v6only(&fd, true)?;
        }
        sockopt::set_socket_recv_buffer_size_force(&fd, 32 << 20)?;
        rustix::net::bind(&fd, &SocketAddr::from((any, PORT)))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let _inside = runtime.enter();
        let socket = UdpSocket::from(fd);
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        socket.bind_device(Some(interface.as_bytes()))?;
        socket.into_std()
    };
    let socket = ns.enter(make).unwrap().unwrap();
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

fn destination(flow: u64) -> SocketAddr {
    let of_family = (flow / 2) as u16;
    let [high, low] = of_family.to_be_bytes();
    match flow % 2 {
        0 => (Ipv4Addr::new(44, 7, high, low), PORT).into(),
        _ => (Ipv6Addr::new(0xfd44, 0, 0, 0, 0, 0, 7, of_family), PORT).into(),
    }
}

/// Sends packet `n` along flow `n` modulo [`FLOWS`] until `stop`, and keeps the number of packets sent in `sent`.
fn send(ns: &Namespace, stop: &AtomicBool, sent: &AtomicU64) {
    let bind = |any: IpAddr| ns.enter(|| UdpSocket::bind((any, 0))).unwrap().unwrap();
    let sockets = [bind(Ipv4Addr::UNSPECIFIED.into()), bind(Ipv6Addr::UNSPECIFIED.into())];
    let (started, mut skipped, mut n) = (Instant::now(), 0, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * RATE as f64) as u64 - skipped;
        // After a delay, packets are skipped: no queue would hold the burst.
        skipped += due.saturating_sub(n + 64);
        while n < due.min(n + 64) {
            let flow = n % FLOWS;
            sockets[(flow % 2) as usize].send_to(&n.to_be_bytes(), destination(flow)).unwrap();
            n += 1;
            sent.store(n, Ordering::Relaxed);
            if n.is_multiple_of(64) {
                break;
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The packets that arrived: for each number the node that forwarded it, or 0 if it did not arrive.
struct Came {
    by: Vec<u8>,
    sent: u64,
}

impl Came {
    /// Returns for each flow a bit for each node that forwarded one of its packets within this range.
    fn nodes(&self, packets: Range<u64>) -> Vec<u8> {
        let mut nodes = vec![0u8; FLOWS as usize];
        for n in packets {
            nodes[(n % FLOWS) as usize] |= match self.by.get(n as usize) {
                Some(&by) if by > 0 => 1 << by,
                _ => 0,
            };
        }
        nodes
    }

    /// Returns the numbers within this range that did not arrive.
    fn lost(&self, packets: Range<u64>) -> Vec<u64> {
        packets.filter(|n| self.by.get(*n as usize).is_none_or(|by| *by == 0)).collect()
    }
}

/// Sends while `body` runs; its argument returns the number of packets sent so far.
fn during(lab: &Lab, body: impl FnOnce(&dyn Fn() -> u64)) -> Came {
    let (stop, sent, arrived) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
    let sockets: Vec<(u8, UdpSocket)> =
        (1..=NODES).flat_map(|n| [false, true].map(|v6| (n as u8, receiver(&lab.h2, &format!("x{n}"), v6)))).collect();
    std::thread::scope(|scope| {
        let readers: Vec<_> = sockets
            .into_iter()
            .map(|(node, socket)| {
                let arrived = &arrived;
                scope.spawn(move || {
                    let (mut numbers, mut number, mut last) = (vec![], [0; 8], Instant::now());
                    // A busy machine may keep the last ones on their way for a while.
                    const LATE: Duration = Duration::from_secs(3);
                    loop {
                        match socket.recv(&mut number) {
                            Ok(_) => {
                                numbers.push(u64::from_be_bytes(number));
                                last = Instant::now();
                            }
                            Err(_) if arrived.load(Ordering::Relaxed) && last.elapsed() > LATE => {
                                return (node, numbers);
                            }
                            Err(_) => {}
                        }
                    }
                })
            })
            .collect();
        let sender = scope.spawn(|| send(&lab.h1, &stop, &sent));
        {
            let _ends = Stops(&arrived);
            {
                let _stops = Stops(&stop);
                body(&|| sent.load(Ordering::Relaxed));
            }
            sender.join().unwrap();
        }
        let sent = sent.load(Ordering::Relaxed);
        let mut by = vec![0; sent as usize];
        for reader in readers {
            let (node, numbers) = reader.join().unwrap();
            numbers.into_iter().for_each(|n| by[n as usize] = node);
        }
        Came { by, sent }
    })
}

/// Returns the number of flows of each node relative to an even share, for IPv4 and for IPv6.
fn spread(nodes: &[u8]) -> [[f64; NODES]; 2] {
    let share = |family: usize, node: usize| {
        let mine = nodes.iter().skip(family).step_by(2).filter(|via| **via == 1 << (node + 1)).count();
        mine as f64 / (FLOWS as f64 / 2.0 / NODES as f64)
    };
    [0, 1].map(|family| std::array::from_fn(|node| share(family, node)))
}

#[test]
fn four_routers_share_and_one_is_lost() {
    require!(require_lab());
    let _alone = alone();
    let lab = Lab::new();
    let edge = Bywash::run(&lab.edge, &["h0", "e1", "e2", "e3", "e4"]);
    let nodes: Vec<Bywash> = lab.nodes.iter().map(|node| Bywash::run(node, &["e", "x"])).collect();
    // All neighbours must be known.
    for n in 1..=NODES {
        for (from, to) in [(&lab.edge, 20 + n), (&lab.nodes[n - 1], 30 + n)] {
            let v4 = IpAddr::from(Ipv4Addr::new(10, to as u8, 0, 2));
            let v6 = IpAddr::from(format!("fd00:{to}::2").parse::<Ipv6Addr>().unwrap());
            for address in [v4, v6] {
                let answers = || Ping::to(address).count(1).run(from).is_ok_and(|report| report.received == 1);
                wait_until("a neighbour", PATIENCE, answers).unwrap();
            }
        }
    }
    let carrier = |up: bool| {
        let state = if up { "up" } else { "down" };
        lab.nodes[1].ip_batch(&format!("link set e {state}\nlink set x {state}\n")).unwrap();
    };
    let two_rounds = |sent: &dyn Fn() -> u64| {
        let until = sent() + 2 * FLOWS;
        wait_until("packets to be sent", 6 * PATIENCE, || sent() >= until).unwrap();
        sent()
    };
    // A starved edge may not answer in time.
    let shown = |what: &str| -> Option<Value> {
        let asked = bywash(&lab.edge, &["show", what, "--json", "--socket", edge.socket().to_str()?]);
        serde_json::from_str(&asked.stdout).ok().filter(|_| asked.status.success())
    };
    let follows = |also: &dyn Fn() -> bool| {
        let followed = || also() && shown("drift") == Some(json!([]));
        wait_until("the edge to follow the kernel", 6 * PATIENCE, followed).unwrap();
    };
    // The edge's tables follow a moment later: warm up with one packet of each flow.
    during(&lab, |sent| wait_until("packets to be sent", 6 * PATIENCE, || sent() >= FLOWS).unwrap());
    let (mut quiet, mut followed, mut killed, mut alone_at, mut drained) = (0, 0, 0, 0, 0);
    // Without the queues on the way to and from the second node, whose packets are lost.
    let busy_queues = || {
        let others = [&lab.h1, &lab.nodes[0], &lab.nodes[2], &lab.nodes[3], &lab.h2];
        dropped(&others) + counters(&lab.edge, "h0").unwrap().rx_dropped
    };
    let full = busy_queues();
    let came = during(&lab, |sent| {
        quiet = two_rounds(sent);
        carrier(false);
        let down = |ports: &Value| ports[2]["name"] == "e2" && ports[2]["state"] != "up";
        follows(&|| shown("ports").as_ref().is_some_and(down));
        followed = sent();
        killed = two_rounds(sent);
        // Node 4 is drained: the edge's next-hop groups no longer contain it. Node 2 is still down.
        alone_at = sent();
        // (The kernel has deleted the next hops on a link without carrier.)
        lab.share("replace", &[1, 3]);
        follows(&|| true);
        drained = two_rounds(sent);
    });

    // With all nodes up nothing is lost, and each node has its share.
    let before = came.nodes(0..quiet);
    let shares = spread(&before);
    println!("{FLOWS} flows, half IPv4, half IPv6; of an even share each node has {shares:.3?}");
    let drops = edge.show(&["drops"]);
    // A busy machine may keep the edge and the nodes from reading their first ports, and queues from being emptied.
    let (full, read) = (busy_queues() - full, [0, 2, 3].map(|n| nodes[n].unread("e")));
    let unread = edge.unread("h0") + full + read.iter().sum::<u64>();
    assert!(came.lost(0..quiet).len() as u64 <= unread, "{} lost: {drops}", came.lost(0..quiet).len());
    assert!(before.iter().all(|nodes| nodes.is_power_of_two()), "a flow took two paths");
    // The kernel draws the flow labels of IPv6, which count: the shares of that have a standard deviation of 1.35 %.
    let [v4, v6] = shares;
    let even = |shares: [f64; NODES], within: f64| shares.iter().all(|share| (share - 1.0).abs() <= within);
    assert!(even(v4, 0.05) && even(v6, 0.085), "{shares:.3?}");

    // Node 2 fails. The flows of the other nodes do not move and lose nothing.
    let lost = came.lost(quiet..killed);
    let others = |n: &&u64| before[(**n % FLOWS) as usize] != 1 << 2;
    let dark = lost.last().map_or(0, |last| last - quiet) as f64 / RATE as f64;
    let after = came.nodes(quiet..killed);
    let moved = before.iter().zip(&after).filter(|(was, is)| **was != 1 << 2 && *is & !*was != 0).count();
    println!(
        "a node killed: {} of {} packets lost, of the others' flows {}; the last {:.1} ms after; {moved} of the others' flows moved",
        lost.len(),
        killed - quiet,
        lost.iter().filter(others).count(),
        dark * 1e3
    );
    let lost_by_others = lost.iter().filter(others).count() as u64;
    assert!(lost_by_others <= unread && moved == 0, "{lost_by_others} lost, {moved} moved: {drops}");
    // Packets on their way through a queue or a worker when the edge has followed are among its first.
    let late = came.lost(followed + FLOWS / 2..killed).len() as u64;
    assert!(late <= unread, "{late} lost, {dark} s: {drops}");

    // Node 4 is drained: nothing is lost, and no flow of the two remaining nodes moves.
    let now = came.nodes(alone_at.saturating_sub(FLOWS)..alone_at);
    let after = came.nodes(drained - FLOWS..came.sent);
    let stays = |node: u8| [1 << 1, 1 << 3].contains(&node);
    let moved = now.iter().zip(&after).filter(|(was, is)| stays(**was) && *is & !*was != 0).count();
    let lost = came.lost(alone_at..came.sent.min(drained)).len() as u64;
    println!("a node drained: {lost} of {} packets lost; {moved} of the others' flows moved", drained - alone_at);
    assert!(lost <= unread && moved == 0, "{lost} lost, {moved} moved: {drops}");
    assert!(after.iter().all(|node| *node == 0 || stays(*node)), "a flow still uses a removed node");
    carrier(true);
    drop(nodes);
    edge.stop();
}
