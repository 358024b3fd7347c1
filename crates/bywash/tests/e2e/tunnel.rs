//! Segmentation offload: the segments of an unsegmented packet must fit the MTU of the outgoing port, including the
//! headers of tunnels, and leave as segments.

use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Ping, Topology, Transfer, has_tool, kernel_has, require, require_lab, wait_until};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Sends chunks of 12,000 bytes of UDP that are segmented into packets of 1,200 (UDP_SEGMENT).
const CHUNKS: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_UDP, 103, 1200)
for _ in range(20):
    s.sendto(bytes(12000), (sys.argv[1], 7009))
    time.sleep(0.005)
";

/// Sends a datagram of each length in one chunk (UDP_SEGMENT): all but the last have 400 bytes.
const SMALL_CHUNK: &str = "
import socket, sys
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_UDP, 103, 400)
s.sendto(bytes(1001), (sys.argv[1], 7009))
";

/// A chunk that fits the MTU is several datagrams, too, which XDP cannot see.
#[test]
fn datagrams_of_a_small_chunk_arrive_one_by_one() {
    require!(require_lab());
    for arguments in [&["--level", "user"][..], &["--level", "user", "--xdp", "native"], &["--level", "auto"]] {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        let (a, b) = (lab.a(), lab.b());
        let bywash = Bywash::run_as_is(lab.r(), &[arguments, &lab.router_interfaces()].concat());
        for to in [IpAddr::from(b.v4), b.v6.into()] {
            let socket = b.ns.enter(|| UdpSocket::bind(SocketAddr::from((to, 7009)))).unwrap().unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            a.ns.run(&["python3", "-c", SMALL_CHUNK, &to.to_string()]).unwrap();
            let lengths = [400, 400, 201].map(|_| socket.recv(&mut [0; 2000]).unwrap());
            assert_eq!(lengths, [400, 400, 201], "{arguments:?}: {to}");
        }
        bywash.stop();
    }
}

/// Gives the hosts a VXLAN between each other, and returns the addresses of b within.
fn vxlan_between_hosts(lab: &Topology) -> [IpAddr; 2] {
    for (host, other, n) in [(lab.a(), lab.b(), 1), (lab.b(), lab.a(), 2)] {
        host.ns
            .ip_batch(&format!(
                "link add vx type vxlan id 7 local {} remote {} dstport 4789 udpcsum\n\
                 addr add 10.77.0.{n}/24 dev vx\naddr add fd77::{n}/64 dev vx nodad\nlink set vx mtu 1450 up\n",
                host.v4, other.v4
            ))
            .unwrap();
    }
    ["10.77.0.2", "fd77::2"].map(|address| address.parse().unwrap())
}

/// The sender leaves checksums within the tunnel to a device, too.
#[test]
fn checksums_within_a_tunnel_of_hosts_are_finished() {
    require!(require_lab(), kernel_has("vxlan"), has_tool("nft"));
    for arguments in [&["--level", "user"][..], &["--xdp", "native", "--level", "user"], &["--xdp", "native"], &[]] {
        // The second time, the outer packets are of an established connection.
        for rules in
            ["", "table ip t { chain c { type filter hook forward priority 0; ct state established accept; }; }"]
        {
            let lab = Topology::builder().static_neighbours(true).build().unwrap();
            let inside = vxlan_between_hosts(&lab);
            lab.r().nft(rules).unwrap();
            let level = if arguments.contains(&"--level") { &[][..] } else { &["--level", "auto"] };
            let bywash = Bywash::run_as_is(lab.r(), &[level, arguments, &lab.router_interfaces()].concat());
            for to in inside {
                let report = Transfer::new(1_000_000).run(&lab.a().ns, &lab.b().ns, to).unwrap();
                assert!(report.is_intact(), "{arguments:?} {rules:?} {to}: {report:?}");
            }
            // Datagrams of a chunk within the tunnel, too.
            let socket = lab.b().ns.enter(|| UdpSocket::bind(SocketAddr::from((inside[0], 7009)))).unwrap().unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            lab.a().ns.run(&["python3", "-c", SMALL_CHUNK, &inside[0].to_string()]).unwrap();
            let lengths = [400, 400, 201].map(|_| socket.recv(&mut [0; 2000]).unwrap());
            assert_eq!(lengths, [400, 400, 201], "{arguments:?} {rules:?}");
            bywash.stop();
        }
    }
}

#[test]
fn a_tunnel_is_shown_before_its_remote_is_resolved() {
    require!(require_lab());
    require!(bywash_lab::kernel_has("vxlan"));
    let lab = Topology::router().unwrap();
    // No host has the remote's address.
    let (local, remote) = (lab.b().router_v4, Ipv4Addr::new(10, 0, 2, 77));
    lab.r()
        .ip_batch(&format!(
            "link add vx type vxlan id 7 local {local} remote {remote} dstport 4789\n\
             addr add 10.77.0.1/24 dev vx\nlink set vx mtu 1450 up\n"
        ))
        .unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let shown = |bywash: &Bywash| bywash.text(&["ports"]).lines().any(|line| line.starts_with("  vx "));
    bywash.wait("the tunnel to be shown", shown);
    bywash.stop();
}

#[test]
fn segments_of_a_tunnels_chunks_fit_the_mtu() {
    require!(require_lab());
    require!(bywash_lab::kernel_has("vxlan"));
    let lab = Topology::router().unwrap();
    let (a, b) = (lab.a(), lab.b());
    // The packets have 1,500 bytes, 50 more than the chunk's segment size and the outer UDP header suggest.
    for (host, other, address) in [(a, b, "10.77.0.1/24"), (b, a, "10.77.0.2/24")] {
        let (local, remote) = (host.v4, other.v4);
        host.ns
            .ip_batch(&format!(
                "link add vx type vxlan id 7 local {local} remote {remote} dstport 4789\n\
                 addr add {address} dev vx\nlink set vx mtu 1450 up\n"
            ))
            .unwrap();
    }
    b.ns.ip(&["link", "set", &b.interface, "mtu", "1450"]).unwrap();
    lab.r().ip(&["link", "set", &b.router_interface, "mtu", "1450"]).unwrap();
    let bywash = Bywash::run_as_is(lab.r(), &[&["--level", "driver"][..], &lab.router_interfaces()].concat());
    bywash.wait("the MTU to be followed", |bywash| bywash.port("r1")["mtu"] == 1450);
    let far = Ipv4Addr::new(10, 77, 0, 2);
    assert_eq!(Ping::to(IpAddr::from(far)).count(3).run(&a.ns).unwrap().received, 3);
    let before = bywash.verdicts("r0", "pass_exception");
    let report = Transfer::new(2_000_000).run(&a.ns, &b.ns, far).unwrap();
    assert!(report.is_intact(), "{report:?}");
    // The kernel segments these chunks, and fragments the packets that exceed the MTU.
    let left = bywash.verdicts("r0", "pass_exception") - before;
    assert!(left > 20, "{left} chunks left to the kernel; {}", bywash.show(&["drops"]));

    // Chunks whose packets fit the MTU are forwarded unsegmented.
    let socket = b.ns.enter(|| UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7009)))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let before = (bywash.verdicts("r0", "to_port"), bywash.verdicts("r0", "pass_exception"));
    a.ns.run(&["python3", "-c", CHUNKS, &b.v4.to_string()]).unwrap();
    let mut got = 0;
    wait_until("packets of chunks", PATIENCE, || {
        got += socket.recv(&mut [0; 65536]).unwrap_or(0);
        got >= 100_000
    })
    .unwrap();
    bywash.wait("all chunks to be counted", |bywash| bywash.verdicts("r0", "to_port") >= before.0 + 20);
    assert_eq!(bywash.verdicts("r0", "pass_exception"), before.1);
    bywash.stop();
}
