//! Everything at once, for as long as asked: traffic through a firewall, garbage, floods, hostile and idle clients of
//! the API, and changes of routes, rules, links, neighbours and configuration. Memory, descriptors and threads may not
//! grow, the log only with what changed, and every byte of the traffic arrives. The test runs 10 s, or
//! `BYWASH_SOAK_SECONDS`; `make soak MINUTES=N` runs it longer.

use crate::flows::FIREWALL;
use crate::garbage::mac;
use crate::harness::{PATIENCE, alone};
use crate::hostile::attack;
use crate::raw;
use crate::reload::{File, config, reload};
use bywash_lab::{Ping, Topology, Transfer, has_tool, patience, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use bywash_wire::l4::tcp_flags::SYN;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Anonymous memory that the program and its broker may have, in MiB.
const MEMORY: f64 = 64.0;
/// Growth of that at rest, after the first tenth of a long run. A leak of a byte for each of a thousand packets is more
/// in an hour.
const GROWTH: f64 = 8.0;
/// Lines that the log may have for each change of a link or of the configuration, and one more each ten seconds.
const LINES: u64 = 6;

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

/// Resources of the program and its broker.
#[derive(Debug)]
struct Use {
    /// Anonymous resident memory, in MiB.
    memory: f64,
    descriptors: usize,
    threads: usize,
}

impl Use {
    fn of(pid: u32) -> Self {
        let mut all = Self { memory: 0.0, descriptors: 0, threads: 0 };
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        for pid in [pid.to_string().as_str()].into_iter().chain(children.split_whitespace()) {
            let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
            let count = |name: &str| std::fs::read_dir(format!("/proc/{pid}/{name}")).unwrap().count();
            let status = read("status");
            let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap().trim_end_matches(" kB");
            all.memory += kib.trim().parse::<f64>().unwrap() / 1024.0;
            all.descriptors += count("fd");
            all.threads += count("task");
        }
        all
    }
}

fn routes(verb: &str, round: u64) -> String {
    let mut lines = String::new();
    for n in 0..2000 {
        let via = if (n + round).is_multiple_of(2) { "10.0.2.2" } else { "10.0.1.2" };
        writeln!(lines, "route {verb} 45.{}.{}.0/24 via {via}", n >> 8, n & 0xff).unwrap();
    }
    lines
}

/// Something that disturbs the program, again and again.
struct Trouble<'a> {
    name: &'static str,
    pause: Duration,
    times: u64,
    act: Box<dyn FnMut(u64) + Send + 'a>,
}

impl<'a> Trouble<'a> {
    /// Creates trouble that is made by `act`, which gets the number of times before, with a pause after each time.
    fn new(name: &'static str, pause_ms: u64, act: impl FnMut(u64) + Send + 'a) -> Self {
        Self { name, pause: Duration::from_millis(pause_ms), times: 0, act: Box::new(act) }
    }
}

/// Makes all the trouble at once for a time, or until one fails. Returns the most memory that the program had
/// meanwhile.
fn make(troubles: &mut [Trouble<'_>], time: Duration, pid: u32) -> f64 {
    let (until, failed) = (Instant::now() + time, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let repeat = |trouble: &mut Trouble<'_>| {
            while Instant::now() < until && !failed.load(Ordering::Relaxed) {
                (trouble.act)(trouble.times);
                trouble.times += 1;
                std::thread::sleep(trouble.pause);
            }
        };
        let threads: Vec<_> = troubles.iter_mut().map(|trouble| scope.spawn(move || repeat(trouble))).collect();
        let mut most = 0.0f64;
        while Instant::now() < until && !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(200));
            most = most.max(Use::of(pid).memory);
        }
        failed.store(Instant::now() < until, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        most
    })
}

/// Waits until the program has the same descriptors and threads for two seconds, and returns its resources.
fn rested(pid: u32) -> Use {
    let (mut last, mut since) = (Use::of(pid), Instant::now());
    let resting = wait_until("descriptors and threads to stay the same", PATIENCE, || {
        let now = Use::of(pid);
        if (now.descriptors, now.threads) != (last.descriptors, last.threads) {
            since = Instant::now();
        }
        last = now;
        since.elapsed() > Duration::from_secs(2)
    });
    resting.unwrap_or_else(|error| panic!("{error}: {last:?}"));
    last
}

#[test]
fn nothing_leaks_or_grows() {
    require!(require_lab(), has_tool("nft"), has_tool("conntrack"));
    let _alone = alone();
    let seconds = std::env::var("BYWASH_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let lab = Topology::router_n(3).unwrap();
    let (a, b, noisy) = (lab.a(), lab.b(), &lab.hosts()[2]);
    lab.r().nft(FIREWALL).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let reading = directory.path().join("read");
    let levels = |other: &str| {
        let other = format!("level = \"{other}\"\n");
        let ports = config(&[("r0", "level = \"auto\"\n"), ("r1", ""), ("r2", &other)]);
        format!("[router]\nflows = 10000\n[api]\nread_socket = {reading:?}\n{ports}")
    };
    let file = File::new(&levels("user"));
    let bywash = file.run(&lab);
    let pid = bywash.process.pid();
    let [host, router] = [&noisy.mac, &noisy.router_mac].map(|text| mac(text));
    let (mut garbage, idle) = (Garbage(0x2545_f491_4f6c_dd1d), Mutex::new(vec![]));
    let mut troubles = [
        Trouble::new("transfers", 0, |n| {
            let transfer = Transfer::new(20_000_000).stall(patience(PATIENCE));
            let report = if n % 2 == 0 { transfer.run(&a.ns, &b.ns, b.v4) } else { transfer.run(&a.ns, &b.ns, b.v6) };
            assert!(report.unwrap().is_intact(), "a transfer was changed on its way");
        }),
        Trouble::new("garbage", 20, |_| {
            let frames: Vec<(u32, Vec<u8>)> = (0..500).map(|_| (4, garbage.frame(router.0))).collect();
            raw::send(&noisy.ns, &noisy.interface, &frames);
        }),
        // New connections, of which the firewall lets none pass.
        Trouble::new("floods", 50, |n| {
            let frame = |port: u16| {
                let (from, to) = (SocketAddr::from((noisy.v4, port)), SocketAddr::from((b.v4, n as u16)));
                let opens = Packet::tcp(from, to).tcp_fields(1, 0, SYN);
                let packet = if port.is_multiple_of(2) { Packet::udp(from, to) } else { opens };
                (1, packet.macs(host, router).ttl(64).build().unwrap())
            };
            raw::send(&noisy.ns, &noisy.interface, &(1..2000).map(frame).collect::<Vec<_>>());
        }),
        Trouble::new("route changes", 100, |n| {
            lab.r().ip_batch(&routes(if n == 0 { "add" } else { "replace" }, n)).unwrap();
        }),
        Trouble::new("rulesets", 500, |n| {
            let more = if n.is_multiple_of(2) { "" } else { "add rule inet filter forward counter\n" };
            lab.r().nft(&format!("flush ruleset\n{FIREWALL}{more}")).unwrap();
        }),
        // It fails if there is no connection.
        Trouble::new("connections ended", 2000, |_| drop(lab.r().run(&["conntrack", "-D", "-p", "udp"]))),
        Trouble::new("neighbours forgotten", 1000, |_| drop(lab.r().ip(&["neigh", "flush", "dev", "r1"]).unwrap())),
        Trouble::new("link flaps", 700, |_| {
            lab.r().ip(&["link", "set", &noisy.router_interface, "down"]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            lab.r().ip(&["link", "set", &noisy.router_interface, "up"]).unwrap();
        }),
        Trouble::new("interfaces", 1500, |_| {
            lab.r().ip(&["link", "add", "soak", "link", "r0", "type", "macvlan", "mode", "private"]).unwrap();
            lab.r().ip(&["link", "set", "soak", "up"]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            lab.r().ip(&["link", "del", "soak"]).unwrap();
        }),
        Trouble::new("reloads", 3000, |n| {
            file.write(&levels(if n.is_multiple_of(2) { "driver" } else { "user" }));
            let output = reload(&bywash, &[]);
            assert!(output.status.success(), "{} {}; {}", output.stdout, output.stderr, bywash.log());
        }),
        Trouble::new("hostile requests", 100, |n| attack(&reading, n as usize)),
        // Clients that ask for much and read nothing.
        Trouble::new("idle clients", 50, |_| {
            let Ok(mut stream) = UnixStream::connect(&reading) else { return };
            let _ = stream.write_all(b"GET /v1/routes HTTP/1.1\r\nHost: x\r\n\r\n");
            let mut idle = idle.lock().unwrap();
            idle.push(stream);
            if idle.len() > 100 {
                idle.clear();
            }
        }),
        Trouble::new("readers", 200, |n| {
            drop(bywash.show(&[["routes", "flows", "drops", "firewall"][n as usize % 4]]))
        }),
    ];
    let whole = Duration::from_secs(seconds);
    let early = make(&mut troubles, whole / 10, pid);
    idle.lock().unwrap().clear();
    let before = rested(pid);
    let late = make(&mut troubles, whole * 9 / 10, pid);
    idle.lock().unwrap().clear();
    let after = rested(pid);
    let did: Vec<_> = troubles.iter().map(|trouble| format!("{} {}", trouble.times, trouble.name)).collect();
    let times = |name: &str| troubles.iter().find(|trouble| trouble.name == name).unwrap().times;
    let changes = 2 * times("link flaps") + 2 * times("interfaces") + times("reloads");
    let log = bywash.log();
    let lines = log.lines().count() as u64;
    println!("{seconds} s: {}", did.join(", "));
    println!("memory {early:.1}, then {late:.1} MiB at most; at rest {before:?}, then {after:?}; {lines} lines logged");
    assert!(early.max(late) < MEMORY);
    // Shorter runs do not fill all tables within their first tenth.
    assert!(seconds < 300 || after.memory < before.memory + GROWTH);
    // Some are opened when they are first needed.
    assert!(after.descriptors <= before.descriptors + 8 && after.threads <= before.threads + 2);
    assert!(lines < LINES * changes + seconds / 10 + 100, "{lines} lines for {changes} changes: {log}");
    let report = Ping::to(b.v4).count(5).interval(Duration::from_millis(50)).run(&a.ns).unwrap();
    assert_eq!(report.received, 5);
    drop(troubles);
    bywash.stop();
}
