//! A scan of a subnet's unused addresses: a neighbour that exists is still resolved.

use crate::harness::{Bywash, PATIENCE, alone};
use crate::load::Stops;
use bywash_lab::{Namespace, Ping, Topology, require, require_lab, wait_until};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Packets a second of the scan, each to another address: at this rate the neighbour has a tenth of a second to answer.
const RATE: f64 = 2_000.0;
/// Number of pings at most.
const PINGS: u32 = 12;
/// Number of answers that suffice: a busy machine may answer late. If unused addresses kept the queue full, about one
/// ping in thirty would be answered.
const ENOUGH: u32 = 3;

/// Sends packets to `addresses` addresses from `first` on, over and over, until `stop`.
fn scan(from: &Namespace, first: Ipv4Addr, addresses: u32, stop: &AtomicBool) {
    let socket = from.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap().unwrap();
    let (started, mut sent) = (Instant::now(), 0u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * RATE) as u64;
        // After a delay, packets are skipped.
        sent = sent.max(due.saturating_sub(50));
        while sent < due {
            let to = Ipv4Addr::from(first.to_bits() + (sent % u64::from(addresses)) as u32);
            // An error concerns an earlier packet.
            let _ = socket.send_to(&[0], SocketAddr::from((to, 9)));
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Scans the router's subnet from `first` on, and meanwhile pings a neighbour, whose entry is flushed before each ping.
/// Returns the number of answers.
fn answered(lab: &Topology, to: Ipv4Addr, first: Ipv4Addr, addresses: u32) -> u32 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| scan(&lab.a().ns, first, addresses, &stop));
        // The kernel takes about that long to give up a neighbour, and so long the router lets a packet wait.
        std::thread::sleep(Duration::from_secs(4));
        let ping = || {
            // The router does not ask for the same neighbour again before 0.6 s have passed.
            std::thread::sleep(Duration::from_millis(700));
            let _ = lab.r().ip(&["neigh", "flush", "to", &to.to_string()]);
            Ping::to(to).count(1).wait(Duration::from_secs(2)).run(&lab.a().ns).unwrap().received
        };
        let mut got = 0;
        for _ in 0..PINGS {
            got += if got < ENOUGH { ping() } else { 0 };
        }
        got
    })
}

#[test]
fn a_neighbour_is_found_while_its_subnet_is_scanned() {
    require!(require_lab());
    // The kernel's neighbour tables of all namespaces share their limits.
    let _alone = alone();
    // With traffic control the kernel resolves neighbours, in its table of 1,024 entries: the scan must be smaller.
    for (arguments, whole) in [
        (&["--level", "user"][..], true),
        (&["--xdp", "native", "--level", "driver"], true),
        (&["--level", "auto"], false),
    ] {
        let lab = Topology::router().unwrap();
        let (b, live) = (lab.b(), Ipv4Addr::new(10, 64, 0, 2));
        lab.r().ip(&["addr", "add", "10.64.0.1/16", "dev", &b.router_interface]).unwrap();
        b.ns.ip(&["addr", "add", "10.64.0.2/16", "dev", &b.interface]).unwrap();
        let bywash = Bywash::run_as_is(lab.r(), &[arguments, &lab.router_interfaces()].concat());
        let reached = || Ping::to(IpAddr::from(live)).count(1).run(&lab.a().ns).unwrap().received == 1;
        wait_until("the neighbour", PATIENCE, reached).unwrap();
        let got = answered(&lab, live, Ipv4Addr::new(10, 64, 1, 0), if whole { 60_000 } else { 150 });
        assert!(got >= ENOUGH, "{arguments:?}: {got} of {PINGS}; {}", bywash.show(&["drops"]));
        bywash.stop();
    }
}
