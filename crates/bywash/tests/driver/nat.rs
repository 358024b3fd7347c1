//! Sends TCP and UDP through a router whose kernel translates addresses and ports, and whose programs take over the
//! established connections: hosts must receive what was sent, with right checksums.

use super::*;
use bywash_fib::flows::{Flow, FlowId, Flows, Traffic, Tuple};
use bywash_lab::{Host, Topology, has_tool, patience};
use bywash_port::af_xdp::XdpGate;
use bywash_sync::random::splitmix64;
use bywash_wire::ethernet::MacAddr;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const RULES: &str = "
table inet translate {
 chain from { type nat hook postrouting priority 100; oifname r1 masquerade; }
}
";
/// Bytes that TCP carries in each direction.
const BYTES: usize = 8 << 20;
const DATAGRAMS: u32 = 200;

/// The programs on both interfaces of the router, with routes to both hosts.
struct Rig {
    datapath: XdpDatapath,
    programs: Vec<Program>,
    flows: Flows,
    _fibs: (Table4, Table6),
}

impl Rig {
    /// `None` if the kernel has no traffic control programs of this kind.
    fn new(hosts: &[Host], how: XdpAttach) -> Option<Self> {
        let datapath = XdpDatapath::load().unwrap();
        let domain = Qsbr::new();
        let memory = |family| Box::new(Memory(datapath.segments(family).unwrap()));
        let mut table4 = Table4::shared(&domain, memory(Family::V4)).unwrap();
        let mut table6 = Table6::shared(&domain, memory(Family::V6)).unwrap();
        let mut hops = vec![Hop::default()];
        let mut programs = vec![];
        for (port, host) in (0u16..).zip(hosts) {
            let link = LinkInfo::query(&host.router_interface).unwrap();
            let program = Program::attach_to(&datapath, port, &link, how, None).unwrap();
            if how == XdpAttach::Generic && !program.has_tc() {
                return None;
            }
            datapath.set_device(port, link.index).unwrap();
            let station: MacAddr = host.mac.parse().unwrap();
            let macs = [station.0, link.mac].concat().try_into().unwrap();
            let (kind, flags) = (HopKind::Forward, TAKES_FRAMES | UNICAST);
            hops.push(Hop { macs, kind, flags, port, mtu: 1500, ifindex: link.index, ..Hop::default() });
            table4.insert(Net::new(host.v4.to_bits(), 32).unwrap(), u32::from(port) + 1);
            table6.insert(Net::new(host.v6.to_bits(), 128).unwrap(), u32::from(port) + 1);
            programs.push(program);
        }
        datapath.publish(&hops, &[], 0);
        for (program, host) in programs.iter_mut().zip(hosts) {
            let gate = XdpGate { flows4: true, flows6: true, ..XdpGate::CLOSED };
            let mac = LinkInfo::query(&host.router_interface).unwrap().mac;
            let partial = program.is_native();
            let config =
                XdpConfig { enabled: true, mac, max_frame: 1514, forward: true, partial, gate, ..XdpConfig::default() };
            program.set_config(config).unwrap();
        }
        let memory = [Family::V4, Family::V6]
            .map(|family| Some(Box::new(Memory(datapath.flow_segments(family).unwrap())) as Box<dyn Shared>));
        let mut flows = Flows::new(&domain, memory, 100).unwrap();
        flows.set_generation(1);
        Some(Self { datapath, programs, flows, _fibs: (table4, table6) })
    }

    /// Takes over a connection from host a, which the kernel has translated.
    fn take(&mut self, protocol: u8, near: (SocketAddr, SocketAddr), far: (SocketAddr, SocketAddr)) -> FlowId {
        let tuple = |(from, to): (SocketAddr, SocketAddr)| Tuple {
            src: from.ip(),
            dst: to.ip(),
            src_port: from.port(),
            dst_port: to.port(),
        };
        assert_ne!(near.0.ip(), far.1.ip(), "not translated");
        let flow = Flow { protocol, original: tuple(near), reply: tuple(far), input: 0, output: 1 };
        self.flows.insert(&flow, 1).unwrap()
    }

    fn count(&self, reason: &str) -> u64 {
        self.programs.iter().map(|program| program.counters().unwrap().get(reason)).sum()
    }
}

fn pattern(seed: u64) -> Vec<u8> {
    (0..BYTES as u64 / 8).flat_map(|i| splitmix64(seed, i).to_le_bytes()).collect()
}

/// Sends the same bytes in both directions, one after the other.
fn tcp(rig: &mut Rig, a: &Host, b: &Host, to: IpAddr) -> [Traffic; 2] {
    let listener = b.ns.enter(|| TcpListener::bind((to, 0))).unwrap().unwrap();
    let at = listener.local_addr().unwrap();
    let mut near = a.ns.enter(|| TcpStream::connect(at)).unwrap().unwrap();
    let (mut far, seen) = listener.accept().unwrap();
    for end in [&near, &far] {
        end.set_read_timeout(Some(patience(LIMIT))).unwrap();
        end.set_write_timeout(Some(patience(LIMIT))).unwrap();
    }
    let id = rig.take(6, (near.local_addr().unwrap(), at), (at, seen));
    carry(1, &mut near, &mut far);
    carry(2, &mut far, &mut near);
    rig.flows.traffic(id)
}

fn carry(seed: u64, from: &mut TcpStream, into: &mut TcpStream) {
    let bytes = pattern(seed);
    let mut received = vec![0; bytes.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&bytes).unwrap());
        into.read_exact(&mut received).unwrap();
    });
    assert!(received == bytes, "other bytes than were sent");
}

/// Sends datagrams of many lengths back and forth. A whole checksum may by chance be one that looks unfinished, which a
/// native program leaves to user space: the kernel forwards such a datagram here.
fn udp(rig: &mut Rig, a: &Host, b: &Host, from: IpAddr, to: IpAddr) {
    let bound = |host: &Host, addr: IpAddr| {
        let socket = host.ns.enter(|| UdpSocket::bind((addr, 0))).unwrap().unwrap();
        socket.set_read_timeout(Some(patience(LIMIT))).unwrap();
        socket
    };
    let (near, far) = (bound(a, from), bound(b, to));
    let at = far.local_addr().unwrap();
    near.connect(at).unwrap();
    near.send(b"hello").unwrap();
    let (_, seen) = far.recv_from(&mut [0; 8]).unwrap();
    far.connect(seen).unwrap();
    far.send(b"hello").unwrap();
    near.recv(&mut [0; 8]).unwrap();
    let id = rig.take(17, (near.local_addr().unwrap(), at), (at, seen));
    let before = rig.count("pass_no_socket");
    let mut buffer = [0; 2000];
    for i in 0..u64::from(DATAGRAMS) {
        let sent: Vec<u8> = (0..splitmix64(3, i) % 1450).map(|n| splitmix64(i, n) as u8).collect();
        for (from, to) in [(&near, &far), (&far, &near)] {
            from.send(&sent).unwrap();
            let n = to.recv(&mut buffer).unwrap();
            assert!(buffer[..n] == sent, "datagram {i}");
        }
    }
    let forwarded: u64 = rig.flows.traffic(id).iter().map(|traffic| u64::from(traffic.packets)).sum();
    assert_eq!(forwarded + rig.count("pass_no_socket") - before, u64::from(2 * DATAGRAMS));
}

fn run(lab: &Topology, how: XdpAttach, whole: bool) {
    let r = lab.r();
    r.nft(RULES).unwrap();
    // The kernel sees no segment between those with SYN and FIN.
    r.sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", "1").unwrap();
    let (a, b) = (lab.a(), lab.b());
    r.enter(|| {
        let Some(mut rig) = Rig::new(lab.hosts(), how) else {
            println!("SKIP: kernel without tcx (6.6)");
            return;
        };
        for (from, to) in [(IpAddr::from(a.v4), IpAddr::from(b.v4)), (a.v6.into(), b.v6.into())] {
            for (direction, traffic) in tcp(&mut rig, a, b, to).into_iter().enumerate() {
                println!("{how:?}, TCP to {to}, direction {direction}: {traffic:?}");
                assert!(traffic.bytes > BYTES as u64, "the kernel forwarded it");
                assert!(!whole || traffic.bytes / u64::from(traffic.packets) > 1500, "in pieces");
            }
            udp(&mut rig, a, b, from, to);
        }
        assert!(rig.count("to_port") > u64::from(4 * DATAGRAMS));
        rig.datapath.close();
    })
    .unwrap();
}

/// Checksums that the senders leave to their devices, and chunks that the router has to segment: it completes both, so
/// that the receivers verify them.
#[test]
fn unfinished_skbs_are_translated() {
    require!(require_lab(), has_tool("nft"));
    let lab = Topology::builder().static_neighbours(true).router_offload("tx", false).build().unwrap();
    run(&lab, XdpAttach::Generic, true);
}

/// Whole checksums, which the receivers verify.
#[test]
fn finished_skbs_and_frames_are_translated() {
    require!(require_lab(), has_tool("nft"));
    for how in [XdpAttach::Generic, XdpAttach::Native] {
        let lab = Topology::builder().static_neighbours(true).host_offload("tx", false).host_offload("gro", true);
        run(&lab.build().unwrap(), how, false);
    }
}
