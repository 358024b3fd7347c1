//! Measures how long packets are still forwarded by the old configuration after a change: with a stream of packets
//! running, the time from the return of the command that makes the change to the last packet treated the old way. The
//! time at which this process reads that packet counts, so the results are upper bounds.

use crate::change::{Change, apply};
use crate::packets::build::{Ipv4, ethernet, tagged_udp};
use crate::raw::{Raw, Room, wait};
use crate::topology::{Level, PORTS, Pair, host_mac, router_mac};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Packets a second.
const RATE: u64 = 100_000;
/// How long the stream is watched after each change.
const AFTER: Duration = Duration::from_millis(300);

/// A change after which no packet leaves by the second port, and the change that undoes it.
struct Flip {
    name: &'static str,
    there: &'static [Line],
    back: &'static [Line],
}

/// A change as it can stand in a constant.
enum Line {
    Ip(&'static str),
    Sysctl(&'static str, &'static str),
    Nft(&'static str),
}

impl Line {
    fn made(&self) -> Change {
        match self {
            Self::Ip(line) => Change::Ip((*line).into()),
            Self::Sysctl(key, value) => Change::Sysctl((*key).into(), (*value).into()),
            Self::Nft(text) => Change::Nft((*text).into()),
        }
    }
}

const FLIPS: &[Flip] = &[
    Flip {
        name: "route replaced",
        there: &[Line::Ip("route replace 10.20.0.0/16 via 10.0.3.2")],
        back: &[Line::Ip("route replace 10.20.0.0/16 via 10.0.2.2")],
    },
    Flip {
        name: "blackhole added",
        there: &[Line::Ip("route add blackhole 10.20.0.0/24")],
        back: &[Line::Ip("route del blackhole 10.20.0.0/24")],
    },
    Flip {
        name: "rule added",
        there: &[Line::Ip("rule add pref 100 to 10.20.0.0/16 prohibit")],
        back: &[Line::Ip("rule del pref 100")],
    },
    Flip {
        name: "forwarding off",
        there: &[Line::Sysctl("net/ipv4/ip_forward", "0")],
        back: &[Line::Sysctl("net/ipv4/ip_forward", "1")],
    },
    Flip {
        name: "nft drop",
        there: &[Line::Nft("table ip t { chain c { type filter hook forward priority 0; policy drop; }; }")],
        back: &[Line::Nft("delete table ip t")],
    },
];

/// Prints the median and the maximum of `rounds` measurements for each kind of change.
pub fn measure(level: Level, rounds: usize) {
    let mut pair = Pair::new();
    pair.start(level, PORTS, false);
    let side = &pair.sides[1];
    apply(side, &[Change::Ip("route replace 10.20.0.0/16 via 10.0.2.2".into())]);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let ip = Ipv4 { src: Ipv4Addr::new(10, 0, 1, 2), dst: Ipv4Addr::new(10, 20, 0, 1), ..Ipv4::default() };
    let frame = ethernet(router_mac(0), host_mac(0, 2), 0x800, ip.packet(&tagged_udp(1)));
    std::thread::scope(|scope| {
        scope.spawn(|| stream(&side.raws[0], &frame, &stop, &sent));
        let old = &side.raws[1];
        let mut room = Room::new();
        for flip in FLIPS {
            let mut late = vec![];
            for _ in 0..rounds {
                std::thread::sleep(Duration::from_millis(100));
                drain(old, &mut room);
                let taken = apply(side, &flip.there.iter().map(Line::made).collect::<Vec<_>>());
                assert!(taken.iter().all(|taken| *taken), "refused: {}", flip.name);
                let returned = Instant::now();
                let mut last = None;
                // Packets that have arrived by now were forwarded before the command returned.
                drain(old, &mut room);
                while returned.elapsed() < AFTER {
                    wait(&[old], 5);
                    if old.receive(&mut room, |_| ()) > 0 {
                        last = Some(returned.elapsed());
                    }
                }
                late.push(last.unwrap_or_default());
                apply(side, &flip.back.iter().map(Line::made).collect::<Vec<_>>());
            }
            late.sort();
            let never = if late[late.len() / 2] > AFTER * 9 / 10 { " (never took effect)" } else { "" };
            println!(
                "{}: {}: median {:?}, at most {:?}{never}",
                level.name(),
                flip.name,
                late[late.len() / 2],
                late[late.len() - 1]
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{}: {} packets", level.name(), sent.load(Ordering::Relaxed));
}

fn drain(raw: &Raw, room: &mut Room) {
    while raw.receive(room, |_| ()) > 0 {}
}

fn stream(raw: &Raw, frame: &[u8], stop: &AtomicBool, sent: &AtomicU64) {
    let started = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let due = started.elapsed().as_micros() as u64 * RATE / 1_000_000;
        let behind = due.saturating_sub(sent.load(Ordering::Relaxed));
        // After a pause by the scheduler, the missed packets are not sent in one burst.
        for _ in 0..behind.min(64) {
            raw.send(frame);
        }
        sent.fetch_add(behind, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(100));
    }
}
