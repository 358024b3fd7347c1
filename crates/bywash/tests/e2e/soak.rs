//! Traffic, route churn, a flapping interface and garbage at the same time: nothing may leak, grow or end. The test
//! runs 10 s, or `BYWASH_SOAK_SECONDS`; `make soak` runs it for 600 s.

use crate::harness::{Bywash, alone};
use crate::raw;
use bywash_lab::{Ping, Topology, Transfer, require, require_lab};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Generator of garbage that is the same in every run (xorshift64).
struct Garbage(u64);

impl Garbage {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a frame to the router's MAC address with a random IP header; three of four have a plausible first byte.
    fn frame(&mut self, mac: [u8; 6]) -> Vec<u8> {
        let len = 15 + (self.next() % 200) as usize;
        let mut frame: Vec<u8> = (0..len).map(|_| self.next() as u8).collect();
        frame[..6].copy_from_slice(&mac);
        frame[6] &= 0xfe;
        let kind: [u8; 2] = if self.next().is_multiple_of(2) { [0x08, 0x00] } else { [0x86, 0xdd] };
        frame[12..14].copy_from_slice(&kind);
        frame[14] = if self.next().is_multiple_of(4) { frame[14] } else { [0x45, 0x60][usize::from(kind[0] != 8)] };
        frame
    }
}

/// Returns the resident anonymous memory of a process, in MiB.
fn resident_mib(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

fn routes(verb: &str, round: u32) -> String {
    let mut lines = String::new();
    for n in 0..2000 {
        let via = if (n + round).is_multiple_of(2) { "10.0.2.2" } else { "10.0.1.2" };
        writeln!(lines, "route {verb} 45.{}.{}.0/24 via {via}", n >> 8, n & 0xff).unwrap();
    }
    lines
}

#[test]
fn nothing_leaks_or_grows() {
    require!(require_lab());
    let _alone = alone();
    let seconds = std::env::var("BYWASH_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let lab = Topology::router_n(3).unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let pid = bywash.process.pid();
    let noisy = &lab.hosts()[2];
    let until = Instant::now() + Duration::from_secs(seconds);
    let going = || Instant::now() < until;
    let mac: Vec<u8> = noisy.router_mac.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
    let mac: [u8; 6] = mac.try_into().unwrap();
    let (mut early, mut rounds, mut sent) = (f64::MAX, 0, 0u64);
    std::thread::scope(|scope| {
        let transfers = scope.spawn(|| {
            let mut bytes = 0;
            while going() {
                let report = Transfer::new(20_000_000).run(&lab.a().ns, &lab.b().ns, lab.b().v4).unwrap();
                assert!(report.is_intact(), "a transfer was changed on its way");
                bytes += 20_000_000u64;
            }
            bytes
        });
        let flaps = scope.spawn(|| {
            let mut flaps = 0;
            while going() {
                std::thread::sleep(Duration::from_millis(700));
                lab.r().ip(&["link", "set", &noisy.router_interface, "down"]).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                lab.r().ip(&["link", "set", &noisy.router_interface, "up"]).unwrap();
                flaps += 1;
            }
            flaps
        });
        let mut garbage = Garbage(0x2545_f491_4f6c_dd1d);
        while going() {
            let frames: Vec<(u32, Vec<u8>)> = (0..500).map(|_| (4, garbage.frame(mac))).collect();
            raw::send(&noisy.ns, &noisy.interface, &frames);
            sent += 2000;
            lab.r().ip_batch(&routes(if rounds == 0 { "add" } else { "replace" }, rounds)).unwrap();
            rounds += 1;
            if rounds == 3 {
                early = resident_mib(pid);
            }
        }
        let (bytes, flaps) = (transfers.join().unwrap(), flaps.join().unwrap());
        println!(
            "{seconds} s: {bytes} bytes, {flaps} flaps, {} route changes, {sent} frames of garbage",
            rounds * 2000
        );
    });
    let late = resident_mib(pid);
    println!("{early:.1} MiB anonymous early, {late:.1} MiB late");
    assert!(late < early + 8.0, "grew from {early:.1} to {late:.1} MiB");
    let report = Ping::to(lab.b().v4).count(5).interval(Duration::from_millis(50)).run(&lab.a().ns).unwrap();
    assert_eq!(report.received, 5);
    bywash.stop();
}
