//! Packets numbered by their sender, while ports are moved between levels and routes change: where each one ended up.

use crate::harness::{Bywash, PATIENCE, alone, bywash};
use bywash_lab::{Namespace, Topology, Transfer, require, require_lab, wait_until};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PORT: u16 = 7007;
/// Packets a second of a sender, and most at once after it was kept waiting.
const RATE: u32 = 10_000;
const AT_ONCE: u64 = 32;

fn receiver(namespace: &Namespace) -> UdpSocket {
    let socket = namespace.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))).unwrap().unwrap();
    // What a busy machine keeps the reader from must not count as lost.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

/// Sends packet `n` to `to(n)`, at the rate, until `stop`; gives how many it sent.
fn send(namespace: &Namespace, to: impl Fn(u64) -> SocketAddr, stop: &AtomicBool) -> u64 {
    let socket = namespace.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap().unwrap();
    let (started, mut base, mut sent) = (Instant::now(), 0, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * f64::from(RATE)) as u64 - base;
        if due > sent + AT_ONCE {
            base += due - sent - AT_ONCE;
        }
        let until = due.min(sent + AT_ONCE);
        while sent < until {
            socket.send_to(&sent.to_be_bytes(), to(sent)).unwrap();
            sent += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    sent
}

/// The number of the next packet; none when nothing comes.
fn next(socket: &UdpSocket) -> Option<u64> {
    let mut number = [0; 8];
    socket.recv(&mut number).ok().map(|_| u64::from_be_bytes(number))
}

fn level(lab: &Topology, running: &Bywash, level: &str) {
    let socket = running.socket();
    bywash(lab.r(), &["level", level, "--socket", socket.to_str().unwrap()]).ok().unwrap();
}

/// Frames of the port that each level has handled: driver, user space, kernel.
fn handled(running: &Bywash, port: &str) -> [u64; 3] {
    let shown = running.show(&["placement"]);
    let row = shown.as_array().unwrap().iter().find(|row| row["port"] == port).unwrap();
    ["driver", "user", "kernel"].map(|level| row["frames"][level].as_u64().unwrap())
}

#[test]
fn flows_move_between_levels_and_none_is_lost() {
    require!(require_lab());
    let _alone = alone();
    for mode in ["native", "generic"] {
        // Finished checksums: unfinished ones are user space's at any level.
        let lab = Topology::builder().static_neighbours(true).host_offload("gro", true).host_offload("tx", false);
        let lab = lab.build().unwrap();
        let (a, b) = (lab.a(), lab.b());
        let running = Bywash::run(lab.r(), &["--xdp", mode, "--level", "driver", "r0", "r1"]);
        running.wait("redirection", |running| running.show(&["placement"])[1]["target"] == true);
        let (socket, stop, moves) = (receiver(&b.ns), AtomicBool::new(false), AtomicU64::new(0));
        let to = SocketAddr::from((b.v4, PORT));
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| send(&a.ns, |_| to, &stop));
            let reader = scope.spawn(|| {
                let (mut seen, mut most) = (Vec::<u8>::new(), 0);
                let mut late = [0u64; 16];
                loop {
                    let Some(number) = next(&socket) else {
                        if stop.load(Ordering::Relaxed) {
                            return (seen, late);
                        }
                        continue;
                    };
                    let at = number as usize;
                    seen.resize(seen.len().max(at + 1), 0);
                    seen[at] += 1;
                    late[moves.load(Ordering::Relaxed) as usize] += u64::from(number < most);
                    most = most.max(number);
                }
            });
            let path = ["user", "driver", "kernel", "driver", "user", "kernel", "user", "auto"];
            std::thread::sleep(Duration::from_millis(300));
            let mut before = handled(&running, "r0");
            assert!(before[0] > 0, "{mode}: nothing in the driver: {}", running.show(&["all"]));
            for wanted in path {
                moves.fetch_add(1, Ordering::Relaxed);
                level(&lab, &running, wanted);
                std::thread::sleep(Duration::from_millis(300));
                let now = handled(&running, "r0");
                if let Some(at) = ["driver", "user", "kernel"].iter().position(|level| *level == wanted) {
                    assert!(now[at] > before[at] + 100, "{mode}: not moved to {wanted}: {before:?}, {now:?}");
                }
                before = now;
            }
            stop.store(true, Ordering::Relaxed);
            let sent = sender.join().unwrap();
            let (seen, late) = reader.join().unwrap();
            let arrived = seen.iter().filter(|times| **times > 0).count() as u64;
            let twice = seen.iter().filter(|times| **times > 1).count();
            let late = &late[..=path.len()];
            println!(
                "{mode}: {sent} sent, {} lost, {twice} duplicated; reordered after each move: {late:?}",
                sent - arrived
            );
            assert_eq!((sent - arrived, twice), (0, 0), "{mode}: {}", running.show(&["all"]));
        });
        let error = bywash(lab.r(), &["level", "user", "r7", "--socket", running.socket().to_str().unwrap()]);
        assert!(error.stderr.contains("no port `r7`: there are r0, r1"), "{}", error.stderr);
        running.stop();
    }
}

#[test]
fn tcp_is_intact_at_each_level() {
    require!(require_lab());
    for (mode, level) in
        [("native", "driver"), ("native", "user"), ("native", "auto"), ("generic", "driver"), ("generic", "user")]
    {
        let lab = Topology::router().unwrap();
        let running = Bywash::run(lab.r(), &["--xdp", mode, "--level", level, "r0", "r1"]);
        let (a, b) = (lab.a(), lab.b());
        for (from, to, address) in [(a, b, std::net::IpAddr::from(b.v4)), (b, a, a.v6.into())] {
            let report = Transfer::new(20_000_000).run(&from.ns, &to.ns, address).unwrap();
            assert!(report.is_intact(), "{mode}, {level}, {address}: {report:?}");
            println!("{mode}, {level}: {:.2} Gbit/s", report.bits_per_second() / 1e9);
        }
        running.stop();
    }
}

/// Prefixes that are led to b and to c in turn; each of the others' neighbours stays where it is.
const PREFIXES: u32 = 10_000;

fn destination(n: u64) -> (u8, Ipv4Addr) {
    // 44/8 flips, 43/8 is b's, 45/8 is c's: each packet's next ones are in neighbouring prefixes.
    let prefix = (n / 3) % u64::from(PREFIXES);
    let first = 43 + (n % 3) as u8;
    (first, Ipv4Addr::new(first, (prefix >> 8) as u8, prefix as u8, 9))
}

/// Seconds that routes change for: BYWASH_CHURN, 5 if it is not there.
#[test]
fn no_wrong_next_hop_while_routes_change() {
    require!(require_lab());
    let _alone = alone();
    let seconds = std::env::var("BYWASH_CHURN").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let lab = Topology::builder().ports(3).static_neighbours(true).host_offload("gro", true).host_offload("tx", false);
    let lab = lab.build().unwrap();
    let hosts = lab.hosts();
    for host in &hosts[1..] {
        for first in 43..=45 {
            host.ns.ip(&["route", "add", "local", &format!("{first}.0.0.0/8"), "dev", "lo"]).unwrap();
        }
    }
    let routes = |what: &str, first: u32, via: &str| {
        (0..PREFIXES).fold(String::new(), |mut lines, n| {
            writeln!(lines, "route {what} {first}.{}.{}.0/24 via {via}", n >> 8, n & 255).unwrap();
            lines
        })
    };
    for (first, via) in [(43, "10.0.2.2"), (44, "10.0.2.2"), (45, "10.0.3.2")] {
        lab.r().ip_batch(&routes("add", first, via)).unwrap();
    }
    let running = Bywash::run(lab.r(), &["--xdp", "native", "--level", "driver", "r0", "r1", "r2"]);
    running.wait("redirection", |running| running.show(&["placement"])[2]["target"] == true);
    let stop = AtomicBool::new(false);
    let count = |host: usize| {
        let (socket, stop) = (receiver(&hosts[host].ns), &stop);
        move || {
            let (mut come, mut wrong, mut flipping) = (0u64, 0u64, 0u64);
            loop {
                match next(&socket) {
                    Some(number) => {
                        let (first, _) = destination(number);
                        come += 1;
                        flipping += u64::from(first == 44);
                        wrong += u64::from(first == if host == 1 { 45 } else { 43 });
                    }
                    None if stop.load(Ordering::Relaxed) => return (come, wrong, flipping),
                    None => {}
                }
            }
        }
    };
    let flips = [routes("replace", 44, "10.0.3.2"), routes("replace", 44, "10.0.2.2")];
    let (b, c, sent, changes, took) = std::thread::scope(|scope| {
        let (b, c) = (scope.spawn(count(1)), scope.spawn(count(2)));
        let sender = scope.spawn(|| send(&hosts[0].ns, |n| SocketAddr::from((destination(n).1, PORT)), &stop));
        let (started, mut changes) = (Instant::now(), 0);
        while started.elapsed() < Duration::from_secs(seconds) {
            lab.r().ip_batch(&flips[(changes / PREFIXES) as usize % 2]).unwrap();
            changes += PREFIXES;
        }
        let took = started.elapsed();
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        (b.join().unwrap(), c.join().unwrap(), sent, changes, took)
    });
    let rate = f64::from(changes) / took.as_secs_f64();
    let (driver, lost) = (handled(&running, "r0"), sent - b.0 - c.0);
    println!(
        "{rate:.0} changes/s for {took:.1?}; {sent} sent, {lost} lost, {} and {} by a wrong way; of those that",
        b.1, c.1
    );
    println!("flipped {} by one way, {} by the other; driver, user, kernel: {driver:?}", b.2, c.2);
    assert_eq!((b.1, c.1, lost), (0, 0, 0), "{}", running.show(&["drops"]));
    assert!(b.2 > 0 && c.2 > 0 && driver[0] > sent / 2, "{driver:?}");
    // The last word is the kernel's last.
    let last = if (changes / PREFIXES) % 2 == 1 { "10.0.3.2" } else { "10.0.2.2" };
    wait_until("the last change", PATIENCE, || {
        let shown = running.show(&["routes", "44.0.0.0/8"]);
        shown.as_array().unwrap().iter().all(|route| route["next_hops"][0]["via"] == last)
    })
    .unwrap();
    running.stop();
}
