//! Hostile clients of the API do not disturb forwarding.
//!
//! `BYWASH_HOSTILE=10000` sets the number of requests, and raises the rate of packets tenfold; the test prints its
//! measurements.

use crate::harness::{Bywash, PATIENCE, alone};
use crate::load;
use bywash_lab::{Topology, require, require_lab};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Packets a second during the attack: a busy machine can send that many in time.
const RATE: u32 = 2000;
/// Threads that attack at once.
const ATTACKERS: usize = 8;
/// Number of periods with the attack, each followed by one without.
const PAIRS: usize = 5;
/// Connections with an incomplete request that are kept open: more than are served at once.
const HALF_OPEN: usize = 80;

/// Sends a hostile request as far as the instance accepts it, and reads the start of the answer, if there is one.
pub fn attack(socket: &Path, n: usize) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    let limit = Some(Duration::from_millis(200));
    stream.set_write_timeout(limit).unwrap();
    stream.set_read_timeout(limit).unwrap();
    let head = |line: &str, length: usize| format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    let request: Vec<u8> = match n % 12 {
        // Half a header, after which the connection is closed.
        0 => b"GET /v1/ports HTTP/1.1\r\nHo".to_vec(),
        // A header that does not end.
        1 => [b"GET / HTTP/1.1\r\n".as_slice(), &b"x: y\r\n".repeat(20_000)].concat(),
        2 => format!("GET /v1/{} HTTP/1.1\r\n\r\n", "a".repeat(100_000)).into_bytes(),
        // A huge body that is announced only; then a large one that is sent.
        3 => head("POST /v1/flows?op=add", 1 << 40).into_bytes(),
        4 => [head("POST /v1/trace", 4 << 20).as_bytes(), &vec![b'f'; 4 << 20]].concat(),
        5 => (head("POST /v1/trace", 40) + &"z".repeat(40)).into_bytes(),
        // Neither HTTP nor text.
        6 => (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(),
        7 => b"DELETE /v1/ports HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        8 => head("POST /v1/capture?port=nobody&snaplen=99999999999", 0).into_bytes(),
        9 => (head("POST /v1/reload", 17) + "{\"dry_run\": [[[[[").into_bytes(),
        10 => b"GET /v1/routes?prefix=%00%ff%25/999 HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        _ => b"GET /v1/ports HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n".to_vec(),
    };
    let _ = stream.write_all(&request);
    // Incomplete requests are not answered.
    if n % 12 > 1 {
        let _ = stream.read(&mut [0; 512]);
    }
}

/// Returns the resident memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn hostile_requests_leave_forwarding_alone() {
    require!(require_lab());
    let _alone = alone();
    let lab = Topology::router().unwrap();
    load::route(&lab);
    let router = Bywash::run(lab.r(), &lab.router_interfaces());
    let asked: Option<usize> = std::env::var("BYWASH_HOSTILE").ok().map(|n| n.parse().expect("a number of requests"));
    let (requests, rate) = (asked.unwrap_or(400), if asked.is_some() { 10 * RATE } else { RATE });
    let socket = router.socket();
    let begun = Instant::now();
    let attack_from = |from: usize, until: usize| {
        let mut half_open = vec![];
        for n in from..until {
            // Half-open connections are held for 100 ms, and then replaced.
            if half_open.len() < HALF_OPEN / ATTACKERS
                && let Ok(mut stream) = UnixStream::connect(&socket)
            {
                let _ = stream.write_all(b"G");
                half_open.push((stream, Instant::now()));
            }
            half_open.retain(|(_, since)| since.elapsed() < Duration::from_millis(100));
            attack(&socket, n);
        }
    };
    let share = requests / PAIRS / ATTACKERS;
    let attack_all = |from: usize| {
        std::thread::scope(|scope| {
            for n in 0..ATTACKERS {
                let from = from + n * share;
                let attack_from = &attack_from;
                scope.spawn(move || attack_from(from, from + share));
            }
        })
    };
    // Warm up: neighbour resolution and the first use of memory must not count as effects of the attack.
    load::during(&lab, rate, || std::thread::sleep(Duration::from_secs(1)));
    let memory = resident(router.process.pid());
    // Packets sent and packets lost, with the attack and without.
    let (mut with, mut without) = ([0; 2], [0; 2]);
    for pair in 0..PAIRS {
        let attacked = Instant::now();
        let ((), during) = load::during(&lab, rate, || attack_all(pair * share * ATTACKERS));
        let took = attacked.elapsed();
        let ((), before) = load::during(&lab, rate, || std::thread::sleep(took));
        println!(
            "{} hostile requests in {:.1} s: {} of {} packets lost, longest gap {:?}; without: {} of {}, {:?}",
            share * ATTACKERS,
            took.as_secs_f64(),
            during.lost,
            during.sent,
            during.gap,
            before.lost,
            before.sent,
            before.gap
        );
        assert_eq!(during.twice, 0);
        for (sum, loss) in [(&mut with, &during), (&mut without, &before)] {
            (sum[0], sum[1]) = (sum[0] + loss.sent, sum[1] + loss.lost);
        }
    }
    // There is no outage. Some packets are lost without an attack, too, when other processes have the CPUs.
    assert!(with[1] <= without[1] + with[0] / 20, "sent and lost: {with:?}, without {without:?}");
    let grown = resident(router.process.pid()).saturating_sub(memory);
    assert!(grown < 64 << 10, "{grown} KiB more");
    // The API answers again once the half-open connections are closed.
    router.wait("an answer", |router| router.port("r0")["state"] == "up");
    assert!(router.process.pid() > 0 && begun.elapsed() < 60 * PATIENCE);
    router.stop();
}
