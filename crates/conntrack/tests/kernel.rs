//! Connections through a router with masquerade, as ctnetlink reports them.

use bywash_conntrack::{
    Change, Changed, Connection, Event, Events, Item, Kernel, Key, Subscription, TCP, Tuple, status, tcp,
};
use bywash_lab::{Namespace, Topology, has_tool, patience, require, require_lab, wait_until};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

const MASQUERADE: &str = "
table inet filter { chain forward { type filter hook forward priority 0; ct state established,related accept; }; }
table ip nat { chain from { type nat hook postrouting priority 100; oifname r1 masquerade; }; }
";

struct Lab {
    topology: Topology,
    kernel: Kernel,
    /// Received and not yet examined.
    pending: VecDeque<Event>,
}

impl Lab {
    /// Creates a lab with these rules; with `changes`, changes of connections are received.
    fn new(ruleset: &str, changes: bool) -> Self {
        let topology = Topology::builder().static_neighbours(true).build().unwrap();
        let r = topology.r();
        r.nft(ruleset).unwrap();
        let kernel = r.enter(|| Kernel::open(Subscription { changes, replied: false })).unwrap().unwrap();
        Self { topology, kernel, pending: VecDeque::new() }
    }

    /// Receives events until one is as described, and returns it.
    fn until(&mut self, what: &str, like: impl Fn(&Event) -> bool) -> Event {
        let Self { kernel, pending, .. } = self;
        let mut found = None;
        wait_until(what, LIMIT, || {
            let all = kernel.receive(usize::MAX, |event| pending.push_back(event)).unwrap();
            assert_eq!(all, Events::All);
            found = std::iter::from_fn(|| pending.pop_front()).find(&like);
            found.is_some()
        })
        .unwrap();
        found.unwrap()
    }

    /// Receives events until a connection is as described.
    fn present(&mut self, what: &str, like: impl Fn(&Connection) -> bool) -> Connection {
        match self.until(what, |event| matches!(event, Event::Present { connection } if like(connection))) {
            Event::Present { connection } => connection,
            gone => panic!("{gone:?}"),
        }
    }

    fn read(&mut self) -> Vec<Connection> {
        let mut read = Vec::new();
        let all = self.kernel.read(&mut |item| match item {
            Item::Connection(connection) => read.push(connection),
            Item::Event(_) | Item::Lost => {}
        });
        assert_eq!(all.unwrap(), Events::All);
        read
    }
}

fn udp(namespace: &Namespace, addr: SocketAddr) -> UdpSocket {
    let socket = namespace.enter(|| UdpSocket::bind(addr)).unwrap().unwrap();
    socket.set_read_timeout(Some(patience(LIMIT))).unwrap();
    socket
}

fn is_established(connection: &Connection) -> bool {
    connection.tcp_state == Some(tcp::ESTABLISHED) && connection.has(status::ASSURED)
}

#[test]
fn a_translated_connection_is_followed_from_its_handshake_to_its_removal() {
    require!(require_lab());
    require!(has_tool("nft"));
    let mut lab = Lab::new(MASQUERADE, true);
    let (a, b) = (IpAddr::from(lab.topology.a().v4), IpAddr::from(lab.topology.b().v4));
    // Connections without replies are not announced.
    udp(&lab.topology.a().ns, (a, 5000).into()).send_to(b"hello", (b, 5000)).unwrap();
    let listener = lab.topology.b().ns.enter(|| TcpListener::bind((b, 80))).unwrap().unwrap();
    let near = lab.topology.a().ns.enter(|| TcpStream::connect((b, 80))).unwrap().unwrap();
    let (far, seen) = listener.accept().unwrap();
    let original = Tuple { src: near.local_addr().unwrap(), dst: (b, 80).into() };
    let key = Key { protocol: TCP, original, zone: 0 };

    let first = lab.until("the first event", |_| true);
    assert_eq!(first.key(), key);
    let connection = match first {
        Event::Present { connection } if is_established(&connection) => connection,
        _ => lab.present("established", |connection| connection.key == key && is_established(connection)),
    };
    assert_eq!(connection.reply, Tuple { src: (b, 80).into(), dst: seen });
    assert_ne!(seen.ip(), a, "masquerade translates the source");
    assert!(connection.has(status::SRC_NAT | status::SEEN_REPLY | status::CONFIRMED));
    assert!(!connection.liberal && !connection.helper && !connection.expected && connection.unknown.is_none());

    let read = lab.read();
    let found = read.iter().find(|connection| connection.key == key).expect("the connection is in the table");
    assert_eq!((found.id, found.reply, found.tcp_state), (connection.id, connection.reply, connection.tcp_state));
    // Packets of both directions find it.
    let replies = Key { original: connection.reply, ..key };
    let got = lab.kernel.get(&[key, replies]).unwrap();
    assert_eq!(got.iter().map(|connection| connection.id).collect::<Vec<_>>(), [connection.id; 2]);

    let change = Change { key, timeout: Some(77), liberal: true };
    let all = lab.kernel.change(&[change]).unwrap();
    let [Changed::To(changed)] = &all[..] else { panic!("{all:?}") };
    assert!(changed.id == connection.id && changed.liberal && is_established(changed), "{changed:?}");
    let changed = lab.present("the change", |connection| connection.key == key && connection.liberal);
    assert!(changed.timeout.is_some_and(|seconds| (70..=77).contains(&seconds)), "{changed:?}");

    lab.topology.r().run(&["conntrack", "-F"]).unwrap();
    let gone = lab.until("the end", |event| matches!(event, Event::Gone { key: of, .. } if *of == key));
    assert_eq!(gone, Event::Gone { key, id: Some(connection.id) });
    assert_eq!(lab.kernel.get(&[key]).unwrap(), []);
    // A change of a connection that is gone does not bring it back.
    let change = Change { liberal: false, ..change };
    assert_eq!(lab.kernel.change(&[change]).unwrap(), [Changed::Gone]);
    assert!(lab.read().iter().all(|connection| connection.key != key));
    drop((near, far));
}

/// Without changes, one event of each assured connection is received: its end.
#[test]
fn only_ends_are_received() {
    require!(require_lab());
    require!(has_tool("nft"));
    require!(has_tool("conntrack"));
    let mut lab = Lab::new(MASQUERADE, false);
    let (a, b) = (IpAddr::from(lab.topology.a().v4), IpAddr::from(lab.topology.b().v4));
    udp(&lab.topology.a().ns, (a, 5000).into()).send_to(b"never answered", (b, 5000)).unwrap();
    let listener = lab.topology.b().ns.enter(|| TcpListener::bind((b, 80))).unwrap().unwrap();
    let mut sources = vec![];
    for n in 0..3 {
        let near = lab.topology.a().ns.enter(|| TcpStream::connect((b, 80))).unwrap().unwrap();
        sources.push(near.local_addr().unwrap());
        let (far, _) = listener.accept().unwrap();
        drop(near);
        drop(far);
        let r = lab.topology.r();
        wait_until("the end", LIMIT, || r.run(&["conntrack", "-L"]).unwrap().stdout.matches("TIME_WAIT").count() > n)
            .unwrap();
    }
    lab.topology.r().run(&["conntrack", "-F"]).unwrap();
    let mut ends = vec![];
    wait_until("the ends", LIMIT, || {
        let all = lab.kernel.receive(usize::MAX, |item| match item {
            Event::Gone { key, .. } => ends.push(key.original.src),
            other @ Event::Present { .. } => panic!("{other:?}"),
        });
        assert_eq!(all.unwrap(), Events::All);
        ends.len() >= sources.len()
    })
    .unwrap();
    ends.sort();
    sources.sort();
    assert_eq!(ends, sources);
}

/// A connection in a flow table of the kernel is replied, and never assured.
#[test]
fn ends_of_replied_connections_are_received_on_request() {
    require!(require_lab());
    require!(has_tool("nft"));
    require!(has_tool("conntrack"));
    for replied in [false, true] {
        let mut lab = Lab::new(MASQUERADE, false);
        lab.kernel =
            lab.topology.r().enter(|| Kernel::open(Subscription { changes: false, replied })).unwrap().unwrap();
        let (a, b) = (IpAddr::from(lab.topology.a().v4), IpAddr::from(lab.topology.b().v4));
        let (near, far) = (udp(&lab.topology.a().ns, (a, 5000).into()), udp(&lab.topology.b().ns, (b, 5000).into()));
        near.send_to(b"never answered", (b, 5001)).unwrap();
        near.send_to(b"answered", (b, 5000)).unwrap();
        let (_, seen) = far.recv_from(&mut [0; 8]).unwrap();
        far.send_to(b"answer", seen).unwrap();
        near.recv_from(&mut [0; 8]).unwrap();
        // The kernel queues events before the command returns.
        lab.topology.r().run(&["conntrack", "-F"]).unwrap();
        let mut ends = vec![];
        let all = lab.kernel.receive(usize::MAX, |event| ends.push(event.key().original.dst));
        assert_eq!(all.unwrap(), Events::All);
        let wanted: &[SocketAddr] = if replied { &[(b, 5000).into()] } else { &[] };
        assert_eq!(ends, wanted);
    }
}

/// With `nf_conntrack_events` at 2 this depends on all listeners of the machine.
#[test]
fn earlier_connections_have_events_if_a_sysctl_says_so() {
    require!(require_lab());
    require!(has_tool("nft"));
    let topology = Topology::builder().static_neighbours(true).build().unwrap();
    let r = topology.r();
    r.run(&["nft", "add table inet filter; add chain inet filter forward { type filter hook forward priority 0; }"])
        .unwrap();
    r.run(&["nft", "add rule inet filter forward ct state established accept"]).unwrap();
    r.sysctl("net.netfilter.nf_conntrack_events", "1").unwrap();
    let (a, b) = (IpAddr::from(topology.a().v4), IpAddr::from(topology.b().v4));
    let listener = topology.b().ns.enter(|| TcpListener::bind((b, 80))).unwrap().unwrap();
    let near = topology.a().ns.enter(|| TcpStream::connect((b, 80))).unwrap().unwrap();
    let (_far, from) = listener.accept().unwrap();
    assert_eq!((from.ip(), from), (a, near.local_addr().unwrap()));
    let mut kernel = r.enter(|| Kernel::open(Subscription::default())).unwrap().unwrap();
    let mut found = None;
    kernel
        .read(&mut |item| match item {
            Item::Connection(connection) if connection.key.original.src == from => found = Some(connection),
            _ => {}
        })
        .unwrap();
    let connection = found.expect("the connection is in the table");
    assert!(is_established(&connection));
    let change = Change { key: connection.key, timeout: connection.timeout, liberal: false };
    let all = kernel.change(&[change]).unwrap();
    assert!(matches!(&all[..], [Changed::To(now)] if now.id == connection.id), "{all:?}");
}
