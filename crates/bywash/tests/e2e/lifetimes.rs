//! The kernel's connections last as long as their traffic, in the right state, while their packets pass by Bywash:
//! renewed, closed, expired, and across the death of the process and a takeover.

use crate::flows::{LEVELS, forwarded, wait_until_followed};
use crate::harness::{Bywash, PATIENCE, bound};
use crate::reload::{File, config};
use crate::takeover::next;
use bywash_lab::{Topology, has_tool, patience, require, require_lab, wait_until};
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// TCP connections of a router: as many are half-closed, reset, and left alone.
const TCP: usize = 999;
/// UDP connections of a router with replies, and as many without.
const UDP: usize = 10;
/// The kernel's timeout of established connections, in seconds: a start on a busy machine takes several, in which
/// nobody renews a connection.
const TIMEOUT: u64 = 16;
/// Interval at which a connection is used.
const INTERVAL: Duration = Duration::from_millis(200);
/// Octets of a message.
const MESSAGE: usize = 2000;

/// A connection that the kernel has lost does not begin again in its midst.
const FIREWALL: &str = "
table inet filter {
 chain forward {
  type filter hook forward priority 0; policy drop;
  ct state established,related accept
  iifname r0 ct state new accept
 }
}
table ip nat { chain from { type nat hook postrouting priority 100; oifname r1 masquerade; }; }
";

/// Both ends of TCP connections.
type Connection = (TcpStream, TcpStream);

/// Returns a message of a connection.
fn message(connection: usize, round: usize) -> Vec<u8> {
    (0..MESSAGE).map(|at| (at * 31 + connection * 7 + round * 13) as u8).collect()
}

/// Sends a message along all connections each way, and checks what arrives.
fn talk(connections: &[Connection], round: usize) {
    let mut buffer = [0; MESSAGE];
    let mut each = |ways: &mut dyn Iterator<Item = (&TcpStream, &TcpStream)>| {
        let ways: Vec<_> = ways.collect();
        for (n, &(mut from, _)) in ways.iter().enumerate() {
            from.write_all(&message(n, round)).unwrap();
        }
        for (n, &(_, mut to)) in ways.iter().enumerate() {
            to.read_exact(&mut buffer).unwrap_or_else(|why| panic!("connection {n}, round {round}: {why}"));
            assert_eq!(buffer[..], message(n, round), "connection {n}, round {round}");
        }
    };
    each(&mut connections.iter().map(|(near, far)| (near, far)));
    each(&mut connections.iter().map(|(near, far)| (far, near)));
}

/// UDP sockets: of a with an answer, of b that answers, of a without an answer, of b that does not.
struct Datagrams {
    answered: Vec<UdpSocket>,
    answers: UdpSocket,
    unanswered: Vec<UdpSocket>,
    _silent: UdpSocket,
}

impl Datagrams {
    fn new(lab: &Topology) -> Self {
        let socket = |at: &bywash_lab::Host, port| {
            let socket = bound(&at.ns, || UdpSocket::bind((at.v4, port)));
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let near = |first: u16, to: u16| {
            let one = |n| {
                let socket = socket(lab.a(), first + n);
                socket.connect((lab.b().v4, to)).unwrap();
                socket
            };
            (0..UDP as u16).map(one).collect()
        };
        let (answers, silent) = (socket(lab.b(), 81), socket(lab.b(), 82));
        Self { answered: near(5000, 81), answers, unanswered: near(6000, 82), _silent: silent }
    }

    /// Sends a datagram along each connection, and answers those that have arrived.
    fn send(&self) {
        let mut buffer = [0; 8];
        for near in self.answered.iter().chain(&self.unanswered) {
            near.send(b"datagram").unwrap();
        }
        while let Ok((_, from)) = self.answers.recv_from(&mut buffer) {
            self.answers.send_to(&buffer, from).unwrap();
        }
        self.answered.iter().for_each(|near| while near.recv(&mut buffer).is_ok() {});
    }
}

/// Returns the lines of `conntrack -L` in the router, with identifiers.
fn listed(lab: &Topology) -> Vec<String> {
    let shown = lab.r().run(&["conntrack", "-L", "-f", "ipv4", "-o", "id"]).unwrap().stdout;
    shown.lines().map(str::to_owned).collect()
}

/// Returns the identifiers of assured connections.
fn assured(lab: &Topology) -> BTreeSet<String> {
    let id = |line: &String| Some(line.rsplit_once("id=")?.1.trim().to_owned()).filter(|_| line.contains("[ASSURED]"));
    listed(lab).iter().filter_map(id).collect()
}

/// Returns the number of TCP connections in each state.
fn states(lab: &Topology) -> BTreeMap<String, usize> {
    let mut states = BTreeMap::new();
    for line in listed(lab).iter().filter(|line| line.starts_with("tcp")) {
        *states.entry(line.split_whitespace().nth(3).unwrap().to_owned()).or_default() += 1;
    }
    states
}

fn flows(bywash: &Bywash) -> u64 {
    bywash.show(&["flow-table"])["families"][0]["flows"].as_u64().unwrap()
}

/// Waits until all connections are forwarded past the kernel while they are used.
fn wait_for_flows(bywash: &Bywash, level: &str) {
    let all = (TCP + UDP) as u64;
    bywash.wait(&format!("{level}: {all} flows"), |bywash| flows(bywash) == all);
    bywash.wait(&format!("{level}: packets of flows"), |bywash| {
        let before = forwarded(bywash);
        thread::sleep(INTERVAL);
        forwarded(bywash).iter().zip(before).all(|(after, before)| *after > before)
    });
}

fn connections_last(level: &str) {
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    lab.r().nft(FIREWALL).unwrap();
    let sysctl =
        |name: &str, value: u64| lab.r().sysctl(&format!("net/netfilter/nf_conntrack_{name}"), &value.to_string());
    sysctl("tcp_loose", 0).unwrap();
    // The state is seen before it expires, on a busy machine, too.
    sysctl("tcp_timeout_close", 120).unwrap();
    let file = File::new(&format!("[router]\nflows = 4000\n{}", config(&[("r0", level), ("r1", level)])));
    let arguments = ["--config", file.path().to_str().unwrap()];
    let mut bywash = file.run(&lab);
    wait_until_followed(&bywash);
    let socket = bywash.socket();

    let to = SocketAddr::from((lab.b().v4, 80));
    let listener = bound(&lab.b().ns, || TcpListener::bind(to));
    let open = || -> Vec<Connection> {
        (0..TCP).map(|_| (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0)).collect()
    };
    let connections = lab.a().ns.enter(open).unwrap();
    for end in connections.iter().flat_map(|(near, far)| [near, far]) {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(patience(PATIENCE))).unwrap();
    }
    let datagrams = Datagrams::new(&lab);
    let stop = AtomicBool::new(false);
    let used = thread::scope(|scope| {
        // Returns when its last round began: all connections were used after that.
        let user = scope.spawn(|| {
            let (mut round, mut began) = (0, Instant::now());
            while !stop.load(Ordering::Relaxed) {
                began = Instant::now();
                talk(&connections, round);
                datagrams.send();
                round += 1;
                thread::sleep(INTERVAL);
            }
            began
        });
        /// Ends the traffic, also if a check fails.
        struct Stops<'a>(&'a AtomicBool);
        impl Drop for Stops<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let stops = Stops(&stop);
        wait_for_flows(&bywash, level);
        let before = assured(&lab);
        assert_eq!(before.len(), TCP + UDP);
        sysctl("tcp_timeout_established", TIMEOUT).unwrap();
        sysctl("udp_timeout_stream", TIMEOUT).unwrap();
        sysctl("udp_timeout", TIMEOUT).unwrap();
        let lowered = Instant::now();
        // The kernel forwards until a new process does.
        bywash.signalled(Signal::KILL);
        bywash.process = next(&lab, &socket, &arguments);
        bywash.process.wait_for_output("forwarding;", PATIENCE).unwrap();
        wait_for_flows(&bywash, level);
        let mut old = std::mem::replace(&mut bywash.process, next(&lab, &socket, &arguments));
        bywash.process.wait_for_output("forwarding;", PATIENCE).unwrap();
        assert!(old.wait(PATIENCE).unwrap().success(), "{}", old.output());
        wait_for_flows(&bywash, level);
        let since = Instant::now();
        thread::sleep(Duration::from_secs(3 * TIMEOUT).saturating_sub(lowered.elapsed()));
        // At least once nobody but Bywash has used them for longer than they last without a packet.
        thread::sleep(Duration::from_secs(TIMEOUT * 3 / 2).saturating_sub(since.elapsed()));
        let lost = before.difference(&assured(&lab)).count();
        assert_eq!(lost, 0, "{level}: connections of the kernel have ended");
        drop(stops);
        user.join().unwrap()
    });

    let third = TCP / 3;
    let mut connections = connections;
    let left: Vec<_> = connections.drain(2 * third..).collect();
    let reset: Vec<_> = connections.drain(third..).collect();
    let half = connections;
    for (near, mut far) in half.iter().map(|(near, far)| (near, far)) {
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        far.write_all(&message(1, 1)).unwrap();
    }
    for (near, mut far) in reset {
        set_socket_linger(&near, Some(Duration::ZERO)).unwrap();
        drop(near);
        assert_eq!(far.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    for (mut near, _) in half.iter().map(|(near, far)| (near, far)) {
        let mut buffer = [0; MESSAGE];
        near.read_exact(&mut buffer).unwrap();
        assert_eq!(buffer[..], message(1, 1));
    }
    let after = states(&lab);
    assert_eq!((after.get("CLOSE_WAIT"), after.get("CLOSE")), (Some(&third), Some(&third)), "{level}: {after:?}");
    drop(half);
    // The rest is not used any more, and expires.
    wait_until("the closed connections to be known as such", PATIENCE, || {
        states(&lab).get("TIME_WAIT") == Some(&third)
    })
    .unwrap();
    wait_until("the connections to expire", PATIENCE, || {
        let shown = listed(&lab);
        let lasting = shown.iter().filter(|line| line.contains("ESTABLISHED") || line.starts_with("udp")).count();
        assert!(lasting >= third || used.elapsed() >= Duration::from_secs(TIMEOUT - 1), "{level}: {lasting} too early");
        lasting == 0
    })
    .unwrap();
    bywash.wait("the flows to end", |bywash| flows(bywash) == 0);
    drop(left);
    bywash.stop();
}

#[test]
fn the_kernels_connections_are_right_while_their_packets_pass_it_by() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    thread::scope(|scope| LEVELS.iter().for_each(|level| drop(scope.spawn(|| connections_last(level)))));
}
