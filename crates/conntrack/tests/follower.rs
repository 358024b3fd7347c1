//! The follower's table of flows, beside connections of the kernel's.

use bywash_conntrack::{Announced, Follower, Judge, Kernel, Routes, Terms, Timeouts};
use bywash_exceptions::nft::{Interface, Reader, Ruleset};
use bywash_fib::flows::{Flow, Flows, Tuple};
use bywash_lab::{Topology, has_tool, patience, require, require_lab, wait_until};
use bywash_sync::Qsbr;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const UDP: u8 = 17;
const TIMEOUTS: Timeouts = Timeouts { tcp: 1000, tcp_stalled: 1000, udp: 1000 };
const GENERATION: u32 = 1;

const FIREWALL: &str = "add table inet filter; \
    add chain inet filter forward { type filter hook forward priority 0; policy drop; }; \
    add rule inet filter forward ct state established accept; \
    add rule inet filter forward meta l4proto udp accept";

/// Routes to the hosts: port 0 leads to a, port `output` to b.
struct Ways {
    to_a: Interface,
    to_b: Interface,
    a: IpAddr,
    output: Cell<u16>,
}

impl Routes for Ways {
    fn towards(&self, addr: IpAddr) -> Option<(u16, &Interface)> {
        Some(if addr == self.a { (0, &self.to_a) } else { (self.output.get(), &self.to_b) })
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
    require!(require_lab());
    require!(has_tool("nft"));
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

/// The end of a connection is heard before the many that wait to be judged have been.
#[test]
fn an_end_does_not_wait_for_beginnings() {
    require!(require_lab());
    require!(has_tool("nft"));
    require!(has_tool("conntrack"));
    let mut lab = Lab::new(1000);
    lab.established(4000);
    let others = 10_000..10_200;
    let ends: Vec<_> = others.clone().map(|port| lab.connection(port)).collect();
    let conntrack =
        |lab: &Lab, what: &[&str]| lab.topology.r().run(&[&["conntrack", "-p", "udp"], what].concat()).unwrap().stdout;
    wait_until("assured connections", LIMIT, || {
        ends.iter().for_each(talk);
        conntrack(&lab, &["-L"]).matches("[ASSURED]").count() > ends.len()
    })
    .unwrap();
    conntrack(&lab, &["-D", "--orig-port-src", "4000"]);
    assert!(lab.flow(4000).is_some());
    lab.hear();
    assert_eq!(lab.flow(4000), None);
    let behind = others.clone().filter(|port| lab.flow(*port).is_none()).count();
    assert!(lab.follower.is_behind() && behind >= 100, "{behind}");
    // They have their turn, but for one that ends first.
    let ends_first = others.clone().rev().find(|port| lab.flow(*port).is_none()).unwrap();
    conntrack(&lab, &["-D", "--orig-port-src", &ends_first.to_string()]);
    while lab.follower.is_behind() {
        lab.hear();
    }
    assert_eq!(others.filter(|port| lab.flow(*port).is_none()).collect::<Vec<_>>(), [ends_first]);
}

/// A flow that its own packets have revoked is valid again once the kernel has announced its connection.
#[test]
fn a_flow_that_revoked_itself_comes_back_by_an_announcement() {
    require!(require_lab());
    require!(has_tool("nft"));
    require!(has_tool("conntrack"));
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
    require!(require_lab());
    require!(has_tool("nft"));
    require!(has_tool("conntrack"));
    let mut lab = Lab::new(1);
    lab.established(4000);
    lab.topology.r().sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", "300").unwrap();
    let ends = lab.connection(4001);
    wait_until("the second connection to be assured", LIMIT, || {
        talk(&ends);
        lab.topology.r().run(&["conntrack", "-L", "-p", "udp"]).unwrap().stdout.matches("[ASSURED]").count() == 2
    })
    .unwrap();
    lab.hear();
    assert!(!lab.follower.is_behind());
    lab.hear();
    assert!(!lab.follower.is_behind(), "it is announced once more");
    assert_eq!(lab.flow(4001), None);
    let shown = lab.topology.r().run(&["conntrack", "-L", "-p", "udp", "--orig-port-src", "4001"]).unwrap().stdout;
    let left: u32 = shown.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(left <= 300, "{shown}");
}
