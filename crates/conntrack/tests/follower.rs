//! The follower's table of flows, beside connections of the kernel's.

use bywash_conntrack::{Announced, Follower, Judge, Kernel, Routes, Terms, Timeouts, UDP};
use bywash_exceptions::nft::{Interface, Reader, Ruleset};
use bywash_fib::flows::{Flow, Flows, Tuple};
use bywash_lab::{Topology, has_tool, patience, require, require_lab, wait_until};
use bywash_sync::Qsbr;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const TIMEOUTS: Timeouts = Timeouts { tcp: 1000, tcp_stalled: 1000, udp: 1000 };
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
}

impl Routes for Ways {
    fn towards(&self, addr: IpAddr) -> Option<(u16, &Interface)> {
        let way = if addr == self.a { (0, &self.to_a) } else { (self.output.get(), &self.to_b) };
        Some(way).filter(|(port, _)| *port != NOWHERE)
    }
}

struct Lab {
    topology: Topology,
    follower: Follower,
    ruleset: Ruleset,
    ways: Ways,
}

impl Lab {
    /// Creates a lab with room for this number of flows.
    fn new(room: usize) -> Self {
        let topology = Topology::builder().static_neighbours(true).build().unwrap();
        let r = topology.r();
        r.run(&["nft", FIREWALL]).unwrap();
        let (follower, ruleset) = r
            .enter(|| {
                let table = Flows::new(&Qsbr::new(), [None, None], room).unwrap();
                let follower = Follower::new(Kernel::open().unwrap(), table, Arc::default());
                (follower, Reader::open().unwrap().read_whole().unwrap())
            })
            .unwrap();
        let interface = |index, name: &str| Interface { index, name: name.into() };
        let (to_a, to_b) = (interface(2, "r0"), interface(3, "r1"));
        let ways = Ways { to_a, to_b, a: topology.a().v4.into(), output: Cell::new(1) };
        Self { topology, follower, ruleset, ways }
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
        let terms = Terms { generation: GENERATION, judge: &judge, routes: &self.ways, timeouts: TIMEOUTS };
        then(&mut self.follower, &terms)
    }

    fn hear(&mut self) {
        assert_eq!(self.with(Follower::hear).unwrap(), Announced::All);
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

    /// Opens a connection and waits until it has a flow: for UDP, two seconds with packets both ways.
    fn established(&mut self, port: u16) -> Flow {
        let ends = self.connection(port);
        let mut flow = None;
        wait_until("a flow", LIMIT, || {
            talk(&ends);
            self.hear();
            flow = self.flow(port);
            flow.is_some()
        })
        .unwrap();
        flow.unwrap()
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
    lab.ways.output.set(2);
    lab.with(|follower, terms| follower.renew(terms).unwrap());
    assert_eq!(lab.flow(4000), None);
    wait_until("the announcement", LIMIT, || {
        lab.hear();
        lab.flow(4000).is_some()
    })
    .unwrap();
    assert_eq!(lab.flow(4000).unwrap().output, 2);
}

/// A connection that was refused for its route, or for the interface that its route led out of, is judged again when
/// the route changes, though the kernel has nothing to announce.
#[test]
fn a_refused_connection_follows_the_route() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let renew = |lab: &mut Lab| lab.with(|follower, terms| follower.renew(terms).unwrap());
    lab.ways.output.set(NOWHERE);
    let ends = [4000, 4001].map(|port| lab.connection(port));
    wait_until("assured connections", LIMIT, || {
        ends.iter().for_each(talk);
        lab.assured() == 2
    })
    .unwrap();
    lab.hear();
    assert!(lab.follower.due().is_none());
    renew(&mut lab);
    lab.hear();
    assert_eq!(lab.flow(4000), None);
    lab.conntrack(&["-D", "--orig-port-src", "4001"]);
    lab.hear();
    // A change is announced before the call returns.
    lab.ways.output.set(1);
    renew(&mut lab);
    lab.hear();
    assert_eq!((lab.flow(4000).map(|flow| flow.output), lab.flow(4001)), (Some(1), None));
    // The firewall refuses what leaves by another interface, once all connections have been read by these rules, too.
    lab.load("insert rule inet filter forward oifname r2 drop");
    lab.ways.to_b.name = "r2".into();
    assert_eq!(lab.with(Follower::read).unwrap(), Announced::All);
    assert_eq!(lab.flow(4000), None);
    lab.ways.to_b.name = "r1".into();
    lab.ways.output.set(2);
    renew(&mut lab);
    lab.hear();
    assert_eq!(lab.flow(4000).map(|flow| flow.output), Some(2));
}

/// The end of a connection is heard before the many that wait to be judged have been.
#[test]
fn an_end_does_not_wait_for_beginnings() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    lab.established(4000);
    let others = 10_000..10_200;
    let ends: Vec<_> = others.clone().map(|port| lab.connection(port)).collect();
    wait_until("assured connections", LIMIT, || {
        ends.iter().for_each(talk);
        lab.assured() > ends.len()
    })
    .unwrap();
    lab.conntrack(&["-D", "--orig-port-src", "4000"]);
    assert!(lab.flow(4000).is_some());
    lab.hear();
    assert_eq!(lab.flow(4000), None);
    let behind = others.clone().filter(|port| lab.flow(*port).is_none()).count();
    assert!(lab.follower.due().is_some() && behind >= 100, "{behind}");
    // They have their turn, but for one that ends first.
    let ends_first = others.clone().rev().find(|port| lab.flow(*port).is_none()).unwrap();
    lab.conntrack(&["-D", "--orig-port-src", &ends_first.to_string()]);
    while lab.follower.due().is_some() {
        lab.hear();
    }
    assert_eq!(others.filter(|port| lab.flow(*port).is_none()).collect::<Vec<_>>(), [ends_first]);
}

/// A flow that its own packets have revoked is valid again once the kernel has announced its connection.
#[test]
fn a_flow_that_revoked_itself_comes_back_by_an_announcement() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let flow = lab.established(4000);
    let generation = |lab: &mut Lab| {
        let flows = lab.follower.flows();
        flows.find(UDP, &flow.original).map(|id| flows.generation(id))
    };
    assert_eq!(generation(&mut lab), Some(GENERATION));
    let flows = lab.follower.flows();
    let id = flows.find(UDP, &flow.original).unwrap();
    flows.revoke(id);
    // Reading it proves nothing: what it was revoked for may be on its way.
    assert_eq!(lab.with(Follower::read).unwrap(), Announced::All);
    assert_eq!(generation(&mut lab), None);
    wait_until("the announcement", LIMIT, || {
        lab.hear();
        generation(&mut lab) == Some(GENERATION)
    })
    .unwrap();
}

/// A connection for which there is no room keeps its timeout, and is not asked for again and again.
#[test]
fn a_full_table_leaves_a_connection_alone() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let mut lab = Lab::new(1);
    lab.established(4000);
    lab.topology.r().sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", "300").unwrap();
    let ends = lab.connection(4001);
    wait_until("the second connection to be assured", LIMIT, || {
        talk(&ends);
        lab.assured() == 2
    })
    .unwrap();
    lab.hear();
    assert!(lab.follower.due().is_none());
    lab.hear();
    assert!(lab.follower.due().is_none(), "it is announced once more");
    assert_eq!(lab.flow(4001), None);
    let shown = lab.conntrack(&["-L", "--orig-port-src", "4001"]);
    let left: u32 = shown.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(left <= 300, "{shown}");
}

/// Connections that are there before the follower reads them are asked for in turn, not all at once.
#[test]
fn connections_from_before_are_taken_in_turn() {
    require!(require_lab());
    require!(has_tool("nft"));
    require!(has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    let ports = 10_000..10_300;
    let ends: Vec<_> = ports.clone().map(|port| lab.connection(port)).collect();
    wait_until("assured connections", LIMIT, || {
        ends.iter().for_each(talk);
        let shown = lab.topology.r().run(&["conntrack", "-L", "-p", "udp"]).unwrap().stdout;
        shown.matches("[ASSURED]").count() == ends.len()
    })
    .unwrap();
    assert_eq!(lab.with(Follower::read).unwrap(), Announced::All);
    let mut taken = 0;
    for _ in 0..1000 {
        lab.hear();
        let now = ports.clone().filter(|port| lab.flow(*port).is_some()).count();
        assert!(now - taken <= 64, "{now} after {taken}");
        taken = now;
    }
    assert_eq!((taken, lab.follower.due()), (ends.len(), None));
}
