//! A scan of a subnet whose addresses are nobody's: a neighbour that would answer is found all the same.

use crate::harness::{Bywash, alone};
use crate::load::Stops;
use bywash_lab::{Namespace, Ping, Topology, require, require_lab};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Packets a second, each to another address: the neighbour then has a tenth of a second to answer.
const RATE: f64 = 2_000.0;
/// Pings at most, and answers that are enough: a busy machine may be late now and then. By a queue that dead neighbours keep
/// full, one in thirty would pass.
const PINGS: u32 = 12;
const ENOUGH: u32 = 3;

/// Sends one packet after the other to the addresses of `first`, over and over, until `stop`.
fn scan(from: &Namespace, first: Ipv4Addr, addresses: u32, stop: &AtomicBool) {
    let socket = from.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap().unwrap();
    let (started, mut sent) = (Instant::now(), 0u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * RATE) as u64;
        // After a pause it does not make up for what it has missed.
        sent = sent.max(due.saturating_sub(50));
        while sent < due {
            let to = Ipv4Addr::from(first.to_bits() + (sent % u64::from(addresses)) as u32);
            // An error tells of an earlier packet.
            let _ = socket.send_to(&[0], SocketAddr::from((to, 9)));
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many pings to a neighbour come back that is forgotten before each, while the router's subnet is scanned from `first`
/// on.
fn answered(lab: &Topology, to: Ipv4Addr, first: Ipv4Addr, addresses: u32) -> u32 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| scan(&lab.a().ns, first, addresses, &stop));
        // As long as the kernel takes to give one up, and the router lets a packet wait.
        std::thread::sleep(Duration::from_secs(4));
        let ping = || {
            // Longer than a neighbour is not asked for again.
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
    let _alone = alone();
    // What traffic control leaves to the kernel is the kernel's to resolve, in its table of 1,024 neighbours.
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
        assert_eq!(Ping::to(IpAddr::from(live)).count(1).run(&lab.a().ns).unwrap().received, 1);
        let got = answered(&lab, live, Ipv4Addr::new(10, 64, 1, 0), if whole { 60_000 } else { 150 });
        assert!(got >= ENOUGH, "{arguments:?}: {got} of {PINGS}; {}", bywash.show(&["drops"]));
        bywash.stop();
    }
}
