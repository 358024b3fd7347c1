//! The follower's table of flows, beside connections of the kernel's.

use bywash_conntrack::{
    Change, Events, Follower, Judge, Kernel, Revocation, Routes, Subscription, TCP, Terms, Timeouts, UDP,
};
use bywash_exceptions::nft::{Interface, Reader, Ruleset};
use bywash_fib::flows::{Flow, FlowTables, Flows, Key, Tuple};
use bywash_fib::model::Families;
use bywash_lab::{Topology, has_tool, patience, require, require_lab, wait_until};
use bywash_sync::Qsbr;
use std::cell::Cell;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// The kernel's defaults.
const TIMEOUTS: Timeouts = Timeouts { tcp: 432_000, tcp_stalled: 300, udp: 120 };
const GENERATION: u32 = 1;
const NOWHERE: u16 = u16::MAX;

const FIREWALL: &str = "add table inet filter; \
    add chain inet filter forward { type filter hook forward priority 0; policy drop; }; \
    add rule inet filter forward ct state established accept; \
    add rule inet filter forward meta l4proto udp accept";

/// Routes to the hosts: port 0 leads to a, port `output` to b; none does if that is [`NOWHERE`].
struct Ways {
    to_a: Interface,
    to_b: Interface,
    a: IpAddr,
    output: Cell<u16>,
    /// An address of the host.
    own: Cell<Option<IpAddr>>,
    /// Families whose flows pass port 0; none pass the others.
    passing: Cell<Families>,
    /// Called when the first connection is judged from now on.
    meanwhile: Cell<Option<Box<dyn FnOnce()>>>,
    /// Set if the routes have changed since.
    changed: Rc<Cell<bool>>,
}

impl Routes for Ways {
    fn towards(&self, addr: IpAddr) -> Option<(u16, &Interface)> {
        if let Some(then) = self.meanwhile.take() {
            then();
        }
        let way = if addr == self.a { (0, &self.to_a) } else { (self.output.get(), &self.to_b) };
        Some(way).filter(|(port, _)| *port != NOWHERE)
    }

    fn is_source_of(&self, _: IpAddr, _: u16) -> bool {
        true
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        self.own.get() == Some(addr)
    }

    fn is_excepted(&self, _: IpAddr) -> bool {
        false
    }

    fn is_bridge(&self, _: u16) -> bool {
        false
    }

    fn passing(&self, port: u16) -> Families {
        if port == 0 { self.passing.get() } else { Families::NONE }
    }
}

struct Lab {
    topology: Arc<Topology>,
    follower: Follower,
    reader: FlowTables,
    ruleset: Ruleset,
    ways: Ways,
}

impl Lab {
    /// Creates a lab with room for this number of flows.
    fn new(room: usize) -> Self {
        let topology = Arc::new(Topology::builder().static_neighbours(true).build().unwrap());
        let r = topology.r();
        r.run(&["nft", FIREWALL]).unwrap();
        let table = Flows::new(&Qsbr::new(), [None, None], room).unwrap();
        let reader = table.reader();
        let (follower, ruleset) = r
            .enter(|| {
                let mut follower = Follower::new(Kernel::open(Subscription::default()).unwrap(), table, Arc::default());
                follower.revoke(GENERATION, Revocation::Rules);
                (follower, Reader::open().unwrap().read_whole().unwrap())
            })
            .unwrap();
        let interface = |index, name: &str| Interface { index, name: name.into(), ..Interface::default() };
        let (to_a, to_b) = (interface(2, "r0"), interface(3, "r1"));
        let ways = Ways {
            to_a,
            to_b,
            a: topology.a().v4.into(),
            output: Cell::new(1),
            own: Cell::new(None),
            passing: Cell::new(Families::V4),
            meanwhile: Cell::new(None),
            changed: Rc::default(),
        };
        Self { topology, follower, reader, ruleset, ways }
    }

    /// Adds rules, which later calls go by.
    fn load(&mut self, rules: &str) {
        let r = self.topology.r();
        r.run(&["nft", rules]).unwrap();
        self.ruleset = r.enter(|| Reader::open().unwrap().read_whole().unwrap()).unwrap();
    }

    /// Runs `conntrack` on the router's UDP connections, and returns what it prints.
    fn conntrack(&self, what: &[&str]) -> String {
        self.topology.r().run(&[&["conntrack", "-p", "udp"], what].concat()).unwrap().stdout
    }

    /// Returns the number of assured connections.
    fn assured(&self) -> usize {
        self.conntrack(&["-L"]).matches("[ASSURED]").count()
    }

    /// Calls the follower's function with the terms.
    fn with<T>(&mut self, then: impl FnOnce(&mut Follower, &Terms<'_>) -> T) -> T {
        let judge = Judge::new(&self.ruleset);
        let are_current = || !self.ways.changed.get();
        let (judge, routes, are_current) = (&judge, &self.ways, &are_current);
        let terms = Terms { generation: GENERATION, judge, routes, timeouts: TIMEOUTS, are_current };
        then(&mut self.follower, &terms)
    }

    fn receive(&mut self) {
        assert_eq!(self.follower.receive().unwrap(), Events::All);
    }

    /// Returns the key of packets of the connection from this port.
    fn key(&self, port: u16, replies: bool) -> Key<1> {
        let (a, b) = (self.topology.a().v4.octets(), self.topology.b().v4.octets());
        let (src, dst) = if replies { (b, a) } else { (a, b) };
        let addresses = [src, dst].concat().try_into().unwrap();
        let [high, low] = port.to_be_bytes();
        Key::new(&[addresses], [high, low, high, low], UDP, 0)
    }

    /// Has the follower consider the connection from this port, as so many packets of one direction do.
    fn consider(&mut self, port: u16, replies: bool) {
        let key = self.key(port, replies);
        // More than the number after which a tuple is reported again.
        (0..1024).for_each(|_| self.reader.v4.miss(&key, false));
        while self.with(|follower, terms| follower.consider(terms).unwrap()).more {}
    }

    fn renew(&mut self) {
        self.follower.renew(&TIMEOUTS).unwrap();
    }

    /// Uses a flow.
    fn count(&mut self, flow: &Flow) {
        let Tuple { src, dst, src_port, dst_port } = flow.original;
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (src, dst) else { unreachable!() };
        let ports = [src_port.to_be_bytes(), dst_port.to_be_bytes()].concat().try_into().unwrap();
        let addresses = [src.octets(), dst.octets()].concat().try_into().unwrap();
        let hit = self.reader.v4.lookup(&Key::new(&[addresses], ports, flow.protocol, flow.input));
        assert!(hit.is_some());
        self.reader.v4.count(hit, 100);
    }

    /// Returns a socket at each host, from this port on a's side.
    fn connection(&self, port: u16) -> [UdpSocket; 2] {
        let (a, b) = (self.topology.a(), self.topology.b());
        let socket = |ns: &bywash_lab::Namespace, addr: SocketAddr, to: SocketAddr| {
            let socket = ns.enter(|| UdpSocket::bind(addr)).unwrap().unwrap();
            socket.set_read_timeout(Some(patience(LIMIT))).unwrap();
            socket.connect(to).unwrap();
            socket
        };
        let (near, far) = ((a.v4, port).into(), (b.v4, port).into());
        [socket(&a.ns, near, far), socket(&b.ns, far, near)]
    }

    /// Returns the flow of the connection from this port.
    fn flow(&mut self, port: u16) -> Option<Flow> {
        let (a, b) = (self.topology.a().v4.into(), self.topology.b().v4.into());
        let original = Tuple { src: a, dst: b, src_port: port, dst_port: port };
        let flows = self.follower.flows();
        flows.find(UDP, &original).map(|id| flows.flow(id))
    }

    /// Opens connections from these ports and waits until they are assured: for UDP, two seconds with packets both
    /// ways.
    fn open(&self, ports: impl Iterator<Item = u16>) -> Vec<[UdpSocket; 2]> {
        let before = self.assured();
        let ends: Vec<_> = ports.map(|port| self.connection(port)).collect();
        wait_until("assured connections", LIMIT, || {
            ends.iter().for_each(talk);
            self.assured() == before + ends.len()
        })
        .unwrap();
        ends
    }

    /// Opens a connection and has it considered once it is assured.
    fn established(&mut self, port: u16) -> Flow {
        self.open([port].into_iter());
        self.consider(port, false);
        self.flow(port).expect("a flow")
    }
}

fn talk([near, far]: &[UdpSocket; 2]) {
    for (from, to) in [(near, far), (far, near)] {
        from.send(b"talk").unwrap();
        assert_eq!(to.recv(&mut [0; 8]).unwrap(), 4);
    }
}

#[test]
fn a_flow_follows_the_route() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    assert_eq!(lab.established(4000).output, 1);
    // Packets of the flow are the kernel's now, and so the connection is considered again.
    lab.ways.output.set(2);
    lab.consider(4000, false);
    assert_eq!(lab.flow(4000).unwrap().output, 2);
    lab.ways.output.set(NOWHERE);
    lab.consider(4000, true);
    assert_eq!(lab.flow(4000), None);
}

/// The kernel goes on checking connections whose flow would forward no packet, and they take no room from others.
#[test]
fn a_connection_has_no_flow_where_none_passes() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1);
    let _ends = lab.open(4000..4001);
    lab.ways.passing.set(Families::V6);
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert!(!lab.with(|follower, terms| follower.consider(terms).unwrap()).more);
    lab.consider(4000, false);
    assert_eq!(lab.flow(4000), None);
    lab.ways.passing.set(Families::BOTH);
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    lab.with(|follower, terms| follower.consider(terms).unwrap());
    assert!(lab.flow(4000).is_some(), "packets of one direction pass");
    lab.ways.passing.set(Families::NONE);
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert_eq!(lab.flow(4000), None);
}

/// A connection that was refused for its route, or for the interface that its route led out of, is judged anew each
/// time that it is considered.
#[test]
fn a_refused_connection_follows_the_route() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    lab.ways.output.set(NOWHERE);
    let _ends = lab.open(4000..4001);
    lab.consider(4000, false);
    assert_eq!(lab.flow(4000), None);
    lab.ways.output.set(1);
    lab.consider(4000, true);
    assert_eq!(lab.flow(4000).map(|flow| flow.output), Some(1));
    // The firewall refuses what leaves by another interface, once all connections have been read by these rules, too.
    lab.load("insert rule inet filter forward oifname r2 drop");
    lab.ways.to_b.name = "r2".into();
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert_eq!(lab.flow(4000), None);
    lab.consider(4000, false);
    assert_eq!(lab.flow(4000), None);
    lab.ways.to_b.name = "r1".into();
    lab.consider(4000, false);
    assert_eq!(lab.flow(4000).map(|flow| flow.output), Some(1));
}

/// A connection may have been masqueraded on an interface without an address, with that of the interface that its
/// packets leave by now. With the next packet of its original direction, the kernel then ends it (nf_nat_oif_changed).
#[test]
fn masqueraded_connections_show_that_they_last() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    lab.load(
        "add table ip nat
         add chain ip nat from { type nat hook postrouting priority 100; }
         add rule ip nat from oifname r1 masquerade",
    );
    // The first reading, after which connections show that they last.
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    let [near, far] = [lab.topology.a(), lab.topology.b()].map(|host| {
        let socket = host.ns.enter(|| UdpSocket::bind((host.v4, 4000))).unwrap().unwrap();
        socket.set_read_timeout(Some(patience(LIMIT))).unwrap();
        socket
    });
    let mut source = None;
    wait_until("an assured connection", LIMIT, || {
        near.send_to(b"talk", (lab.topology.b().v4, 4000)).unwrap();
        let (_, from) = far.recv_from(&mut [0; 8]).unwrap();
        far.send_to(b"talk", from).unwrap();
        near.recv_from(&mut [0; 8]).unwrap();
        source = Some(from.ip());
        lab.assured() == 1
    })
    .unwrap();
    lab.ways.own.set(source);
    assert_ne!(source, Some(lab.ways.a));
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    lab.with(|follower, terms| follower.consider(terms).unwrap());
    assert_eq!(lab.flow(4000), None, "no packet of its original direction");
    lab.consider(4000, false);
    assert_eq!(lab.flow(4000).map(|flow| flow.output), Some(1));
    // Once it has a flow, it keeps it.
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert_eq!(lab.flow(4000).map(|flow| flow.output), Some(1));
}

/// Flows that were judged by routes that have changed are not used, even while others are still to be judged.
#[test]
fn no_flow_is_used_once_terms_change_during_a_reading() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let ports = 4000..4002;
    let _ends = lab.open(ports.clone());
    ports.clone().for_each(|port| lab.consider(port, false));
    let used = |lab: &Lab| ports.clone().filter(|port| lab.reader.v4.lookup(&lab.key(*port, false)).is_some()).count();
    assert_eq!(used(&lab), 2);
    let changed = lab.ways.changed.clone();
    lab.ways.meanwhile.set(Some(Box::new(move || changed.set(true))));
    assert_eq!(lab.with(Follower::read).unwrap(), Events::Lost);
    assert_eq!((used(&lab), lab.follower.flows().len()), (0, 2));
    lab.ways.changed.set(false);
    lab.follower.revoke(GENERATION, Revocation::Rules);
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert_eq!(used(&lab), 2);
}

/// The ends of connections are read before candidates are considered, at most 64 at a time.
#[test]
fn an_end_does_not_wait_for_beginnings() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    lab.established(4000);
    let others = 10_000..10_200;
    let _ends = lab.open(others.clone());
    assert_eq!(lab.follower.flows().len(), 1, "nobody has proposed the others");
    let (a, b) = (lab.topology.a().v4.octets(), lab.topology.b().v4.octets());
    let addresses = [a, b].concat().try_into().unwrap();
    for port in others.clone() {
        let [high, low] = port.to_be_bytes();
        (0..8).for_each(|_| lab.reader.v4.miss(&Key::new(&[addresses], [high, low, high, low], UDP, 0), false));
    }
    lab.conntrack(&["-D", "--orig-port-src", "4000"]);
    let considered = lab.with(|follower, terms| follower.consider(terms).unwrap());
    assert_eq!((considered.more, lab.follower.flows().len()), (true, 65));
    lab.receive();
    assert_eq!((lab.flow(4000), lab.follower.flows().len()), (None, 64));
    while lab.with(|follower, terms| follower.consider(terms).unwrap()).more {}
    assert!(others.clone().all(|port| lab.flow(port).is_some()));
    lab.topology.r().run(&["conntrack", "-F"]).unwrap();
    lab.receive();
    assert!(lab.follower.flows().is_empty());
}

/// While very many connections end, as when the table is flushed, no flow is used: any may be the next to end.
#[test]
fn no_flow_is_used_while_many_end() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let _ends = lab.open(10_000..10_100);
    (10_000..10_100).for_each(|port| lab.consider(port, false));
    let used = |lab: &Lab| lab.reader.v4.lookup(&lab.key(10_099, false)).is_some();
    let end = |lab: &mut Lab, ports: std::ops::Range<u16>| {
        ports.for_each(|port| drop(lab.conntrack(&["-D", "--orig-port-src", &port.to_string()])));
        lab.receive();
    };
    end(&mut lab, 10_000..10_010);
    assert!(used(&lab) && lab.follower.flows().len() == 90);
    end(&mut lab, 10_010..10_090);
    assert!(!used(&lab) && lab.follower.flows().len() == 10);
    lab.receive();
    assert!(used(&lab) && lab.follower.flows().len() == 10);
}

/// Flows that are judged while very many end are not used either.
#[test]
fn no_flow_is_used_while_many_end_during_a_reading() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let _ends = lab.open(10_000..10_100);
    (10_000..10_100).for_each(|port| lab.consider(port, false));
    let used = |lab: &Lab| lab.reader.v4.lookup(&lab.key(10_099, false)).is_some();
    let topology = lab.topology.clone();
    let end = move || {
        for port in 10_000..10_090 {
            let end = ["conntrack", "-D", "-p", "udp", "--orig-port-src", &port.to_string()];
            topology.r().run(&end).unwrap();
        }
    };
    lab.ways.meanwhile.set(Some(Box::new(end)));
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert!(!used(&lab) && lab.follower.flows().len() == 10);
    lab.receive();
    assert!(used(&lab) && lab.follower.flows().len() == 10);
}

/// A flow that its own packets have revoked is valid again once its connection is found to be established.
#[test]
fn a_flow_that_revoked_itself_comes_back_when_its_packets_go_on() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let flow = lab.established(4000);
    let generation = |lab: &mut Lab| {
        let flows = lab.follower.flows();
        flows.find(UDP, &flow.original).map(|id| flows.generation(id))
    };
    let revoke = |lab: &mut Lab| {
        let flows = lab.follower.flows();
        let id = flows.find(UDP, &flow.original).unwrap();
        flows.revoke(id);
    };
    assert_eq!(generation(&mut lab), Some(GENERATION));
    revoke(&mut lab);
    lab.consider(4000, true);
    assert_eq!(generation(&mut lab), Some(GENERATION));
    // Reading it does not make it valid, and does not keep it either.
    revoke(&mut lab);
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert_eq!(generation(&mut lab), None);
    lab.consider(4000, false);
    revoke(&mut lab);
    lab.renew();
    assert_eq!(generation(&mut lab), None);
}

/// Only those who listen to changes learn of a mark at once. Others find it when they renew or read the connection.
#[test]
fn a_changed_mark_removes_a_flow() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let ends = lab.open(4000..4001);
    lab.consider(4000, false);
    // Without the rule's being among those that the connection is judged by.
    let mark = |lab: &Lab, mark: &str| {
        let r = lab.topology.r();
        r.nft("add chain inet filter marks { type filter hook prerouting priority 0; }").unwrap();
        r.nft(&format!("add rule inet filter marks ct mark set {mark}")).unwrap();
        // Told once the packet has left. Replies may be dropped from now on.
        ends[0][0].send(b"marked").unwrap();
        wait_until("the mark", LIMIT, || lab.conntrack(&["-L"]).contains(&format!("mark={mark} "))).unwrap();
        r.nft("delete chain inet filter marks").unwrap();
    };
    mark(&lab, "7");
    lab.receive();
    assert!(lab.flow(4000).is_some());
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert!(lab.flow(4000).is_some(), "the rules do not ask for marks");
    lab.load("insert rule inet filter forward iifname r1 ct mark 8 drop");
    assert_eq!(Judge::new(&lab.ruleset).subscription(), Subscription { changes: true, replied: false });
    let kernel =
        lab.topology.r().enter(|| Kernel::open(Subscription { changes: true, replied: false }).unwrap()).unwrap();
    lab.follower.listen(kernel);
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    assert!(lab.flow(4000).is_some());
    mark(&lab, "8");
    lab.receive();
    assert_eq!(lab.flow(4000), None);
    lab.consider(4000, false);
    assert_eq!(lab.flow(4000), None);
    mark(&lab, "9");
    lab.consider(4000, false);
    assert!(lab.flow(4000).is_some());
}

/// A map of objects hides nothing but timeouts, which its table must hold.
#[test]
fn maps_of_timeouts_leave_connections_to_the_kernel() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let _ends = lab.open(4000..4002);
    let table = |kind: &str, object: &str| {
        let chain = "chain input { type filter hook input priority 0; ct";
        format!(
            "table ip of{kind} {{ ct {kind} one {object}; {chain} {kind} set udp dport map {{ 9 : \"one\" }}; }}; }}"
        )
    };
    lab.load(&table("helper", "{ type \"tftp\" protocol udp; l3proto ip; }"));
    lab.consider(4000, false);
    assert!(lab.flow(4000).is_some());
    lab.load(&table("timeout", "{ protocol udp; policy = { unreplied: 5 }; }"));
    lab.consider(4001, false);
    assert_eq!(lab.flow(4001), None);
}

/// A connection for which there is no room keeps its timeout.
#[test]
fn a_full_table_leaves_a_connection_alone() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1);
    lab.established(4000);
    lab.topology.r().sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", "300").unwrap();
    let _ends = lab.open(4001..4002);
    lab.consider(4001, false);
    assert_eq!(lab.flow(4001), None);
    let shown = lab.conntrack(&["-L", "--orig-port-src", "4001"]);
    let left: u32 = shown.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(left <= 300, "{shown}");
}

/// A connection that began while nobody listened, and whose end the kernel would not announce, is not taken.
#[test]
fn a_connection_whose_end_is_not_announced_has_no_flow() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    lab.topology.r().sysctl("net/netfilter/nf_conntrack_events", "0").unwrap();
    let _ends = lab.open(4000..4001);
    lab.consider(4000, false);
    assert_eq!(lab.flow(4000), None);
    lab.topology.r().sysctl("net/netfilter/nf_conntrack_events", "1").unwrap();
    let _ends = lab.open(4001..4002);
    lab.consider(4000, false);
    lab.consider(4001, false);
    assert_eq!((lab.flow(4000), lab.flow(4001).is_some()), (None, true));
}

/// A connection in use is renewed, and one that is gone, or about to close, is found to be so.
#[test]
fn connections_in_use_are_renewed() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let flow = lab.established(4000);
    let left = |lab: &Lab| -> u32 {
        let shown = lab.conntrack(&["-L", "--orig-port-src", "4000"]);
        shown.split_whitespace().nth(2).unwrap().parse().unwrap()
    };
    assert!(left(&lab) <= 120, "it has not been renewed at its entry");
    let mut kernel = lab.topology.r().enter(|| Kernel::open(Subscription::default()).unwrap()).unwrap();
    let original = bywash_conntrack::Tuple::new(
        (flow.original.src, flow.original.src_port),
        (flow.original.dst, flow.original.dst_port),
    );
    let key = bywash_conntrack::Key { protocol: UDP, original, zone: 0 };
    kernel.change(&[Change { key, timeout: Some(50), liberal: false }]).unwrap();
    let soon = Timeouts { tcp: 8, tcp_stalled: 8, udp: 8 };
    lab.follower.renew(&soon).unwrap();
    assert!(left(&lab) <= 50, "it has not been used");
    lab.count(&flow);
    wait_until("the renewal", LIMIT, || {
        lab.follower.renew(&soon).unwrap();
        left(&lab) <= 10
    })
    .unwrap();
    lab.count(&flow);
    // Its end is not announced.
    lab.conntrack(&["-D", "--orig-port-src", "4000"]);
    wait_until("the end to be noticed", LIMIT, || {
        lab.follower.renew(&soon).unwrap();
        lab.flow(4000).is_none()
    })
    .unwrap();
}

/// A connection may take the key of one whose end has not been read yet, and is renewed in its place.
#[test]
fn a_new_connection_does_not_inherit_the_timeout() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    lab.load("insert rule inet filter forward meta l4proto tcp accept");
    let (to, own) = (SocketAddr::from((lab.topology.b().v4, 80)), IpAddr::from(lab.topology.a().v4));
    let listener = lab.topology.b().ns.enter(|| TcpListener::bind(to)).unwrap().unwrap();
    let mut near = lab.topology.a().ns.enter(|| TcpStream::connect(to)).unwrap().unwrap();
    let (_far, from) = listener.accept().unwrap();
    let shown = |lab: &Lab| lab.topology.r().run(&["conntrack", "-L", "-p", "tcp"]).unwrap().stdout;
    wait_until("an assured connection", LIMIT, || shown(&lab).contains("[ASSURED]")).unwrap();
    assert_eq!(lab.with(Follower::read).unwrap(), Events::All);
    lab.with(|follower, terms| follower.consider(terms).unwrap());
    let original = Tuple { src: own, dst: to.ip(), src_port: from.port(), dst_port: 80 };
    let id = lab.follower.flows().find(TCP, &original).expect("a flow");
    // The server no longer answers.
    let drop = "add table ip t; add chain ip t c { type filter hook input priority 0; policy drop; }";
    lab.topology.b().ns.run(&["nft", drop]).unwrap();
    lab.topology.r().run(&["conntrack", "-D", "-p", "tcp"]).unwrap();
    near.write_all(b"more").unwrap();
    wait_until("a new connection", LIMIT, || shown(&lab).contains("[UNREPLIED]")).unwrap();
    let flow = lab.follower.flows().flow(id);
    let soon = Timeouts { tcp: 432_000, tcp_stalled: 8, udp: 8 };
    wait_until("the renewal", LIMIT, || {
        lab.count(&flow);
        lab.follower.renew(&soon).unwrap();
        lab.follower.flows().is_empty()
    })
    .unwrap();
    let left: u32 = shown(&lab).split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(left <= 300, "{}", shown(&lab));
}

/// The kernel does not announce that a connection expires before it collects it.
#[test]
fn an_expired_connection_has_no_flow() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let flow = lab.established(4000);
    let soon = Timeouts { tcp: 8, tcp_stalled: 8, udp: 8 };
    wait_until("the renewal", LIMIT, || {
        lab.count(&flow);
        lab.follower.renew(&soon).unwrap();
        lab.conntrack(&["-L"]).split_whitespace().nth(2).is_some_and(|left| left.parse::<u32>().unwrap() <= 10)
    })
    .unwrap();
    lab.follower.renew(&soon).unwrap();
    assert!(lab.flow(4000).is_some(), "it has not expired");
    wait_until("the flow to end", LIMIT, || {
        lab.follower.renew(&soon).unwrap();
        lab.flow(4000).is_none()
    })
    .unwrap();
}
