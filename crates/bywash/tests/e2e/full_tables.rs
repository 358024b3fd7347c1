//! A routing daemon learns a full table: the time that the kernel takes, the time that the router takes, the loss of
//! other flows, and the memory.
//!
//! ```text
//!   h1 ── e0 r1 e1 ── h2
//! ```
//!
//! h1 announces routes by BGP to FRR on r1, and sends numbered packets to h2.

use crate::daemons::{Router, join, open_to_all};
use crate::harness::{Bywash, PATIENCE, alone, daemons};
use crate::load;
use bywash_lab::{Namespace, has_tool, require, require_lab, wait_until};
use serde_json::json;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

const BGP: &str = "router bgp 65001
 bgp router-id 10.0.0.1
 no bgp ebgp-requires-policy
 neighbor 10.1.0.2 remote-as 65100
 neighbor 10.1.0.2 passive
 address-family ipv4 unicast
  neighbor 10.1.0.2 prefix-list none out
 exit-address-family
 address-family ipv6 unicast
  neighbor 10.1.0.2 activate
  neighbor 10.1.0.2 prefix-list none out
 exit-address-family
ip prefix-list none deny any
ipv6 prefix-list none deny any
";

/// A BGP speaker that announces routes, or withdraws them, on command: /28 prefixes from 45.0.0.0 on, or /48 prefixes
/// from 2a00:: on.
const ANNOUNCER: &str = r"
import socket, struct, sys, threading, time
family, count = sys.argv[1], int(sys.argv[2])
s = socket.create_connection(('10.1.0.1', 179))
one = threading.Lock()
def msg(kind, body):
    with one:
        s.sendall(b'\xff' * 16 + struct.pack('!HB', 19 + len(body), kind) + body)
both = b''.join(struct.pack('!BBBBHBB', 2, 6, 1, 4, afi, 0, 1) for afi in (1, 2))
msg(1, struct.pack('!BHH4sB', 4, 65100, 90, socket.inet_aton('10.1.0.2'), len(both)) + both)
msg(4, b'')
threading.Thread(target=lambda: [None for _ in iter(lambda: s.recv(65536), b'')], daemon=True).start()
def beat():
    while True:
        time.sleep(0.5)
        msg(4, b'')
threading.Thread(target=beat, daemon=True).start()
attribute = lambda kind, flags, value: struct.pack('!BBH', flags | 0x10, kind, len(value)) + value
base = attribute(1, 0x40, b'\0') + attribute(2, 0x40, b'\x02\x01' + struct.pack('!H', 65100))
if family == '4':
    nlri = lambda n: b'\x1c' + struct.pack('!I', (45 << 24) + (n << 4))
    attrs = base + attribute(3, 0x40, socket.inet_aton('10.1.0.2'))
    announce = lambda nets: struct.pack('!HH', 0, len(attrs)) + attrs + nets
    withdraw = lambda nets: struct.pack('!H', len(nets)) + nets + struct.pack('!H', 0)
else:
    nlri = lambda n: b'\x30' + struct.pack('!HI', 0x2a00, n)
    update = lambda attrs: struct.pack('!HH', 0, len(attrs)) + attrs
    reach = b'\0\x02\x01\x10' + socket.inet_pton(socket.AF_INET6, 'fd01::2') + b'\0'
    announce = lambda nets: update(base + attribute(14, 0x80, reach + nets))
    withdraw = lambda nets: update(attribute(15, 0x80, b'\0\x02\x01' + nets))
print('up', flush=True)
for line in sys.stdin:
    what = announce if line.strip() == 'announce' else withdraw
    for first in range(0, count, 500):
        msg(2, what(b''.join(nlri(n) for n in range(first, min(first + 500, count)))))
";

struct Announcer {
    process: Child,
    to: ChildStdin,
}

impl Announcer {
    fn start(host: &Namespace, v6: bool, count: usize) -> Self {
        let mut process = Command::new("ip")
            .args(["netns", "exec", host.name(), "python3", "-c", ANNOUNCER, if v6 { "6" } else { "4" }])
            .arg(count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let to = process.stdin.take().unwrap();
        Self { process, to }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the number of the kernel's routes of a family. Reading it takes milliseconds, while listing the routes takes
/// seconds of a CPU.
fn in_kernel(ns: &Namespace, v6: bool) -> usize {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
    ns.enter(|| match v6 {
        // rt6_stats: fib_rt_entries.
        true => usize::from_str_radix(file("rt6_stats").split_whitespace().nth(3).unwrap(), 16).unwrap(),
        false => {
            let text = file("fib_triestat");
            // The first count: while there are no rules, tables main and local are one.
            let count = text.lines().find_map(|line| line.trim().strip_prefix("Prefixes:"));
            count.unwrap().trim().parse().unwrap()
        }
    })
    .unwrap()
}

/// Returns the resident memory of the program, in MiB.
fn memory(running: &Bywash) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.process.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn a_daemon_announces_many_ipv4_routes() {
    announced(false);
}

#[test]
fn a_daemon_announces_many_ipv6_routes() {
    announced(true);
}

/// Announces 10,000 routes, or BYWASH_ROUTES, to a kernel alone, and then to a kernel with the router; with the latter,
/// on a machine that does nothing else, the router's time is checked, too.
fn announced(v6: bool) {
    require!(require_lab(), has_tool("vtysh"), has_tool("/usr/lib/frr/bgpd"), has_tool("python3"));
    let (_daemons, _alone) = (daemons(), alone());
    let asked = std::env::var("BYWASH_ROUTES").ok().map(|text| text.parse().expect("a number in BYWASH_ROUTES"));
    let count: usize = asked.unwrap_or(10_000);
    let patience = PATIENCE + Duration::from_micros(300) * count as u32;
    let directory = tempfile::tempdir().unwrap();
    open_to_all(directory.path());
    let r1 = Router::new("r1", directory.path());
    let [h1, h2] = ["h1", "h2"].map(|name| Namespace::new(name).unwrap());
    join(&r1.ns, ("e0", "10.1.0.1/24"), &h1, ("eth0", "10.1.0.2/24"));
    join(&r1.ns, ("e1", "10.2.0.1/24"), &h2, ("eth0", "10.2.0.2/24"));
    r1.ns.ip_batch("address add fd01::1/64 dev e0 nodad\nroute add 44.0.0.0/8 via 10.2.0.2\n").unwrap();
    h1.ip_batch("address add fd01::2/64 dev eth0 nodad\nroute add default via 10.1.0.1\n").unwrap();
    h2.ip_batch("link set lo up\nroute add default via 10.2.0.1\nroute add local 44.0.0.0/8 dev lo\n").unwrap();
    r1.start("zebra", "");
    r1.start("bgpd", BGP);
    let mut announcer = Announcer::start(&h1, v6, count);
    let few = in_kernel(&r1.ns, v6);
    let kernel_has = |routes: usize| {
        wait_until("the kernel to follow", patience, || in_kernel(&r1.ns, v6).abs_diff(few + routes) < 8)
            .unwrap_or_else(|e| panic!("{e}: {} {}", in_kernel(&r1.ns, v6), r1.daemons_say()));
    };

    load::between(&h1, &[&r1.ns], &h2, load::rate(), || std::thread::sleep(Duration::from_millis(300)));
    let (alone, loss_alone) = load::between(&h1, &[&r1.ns], &h2, load::rate(), || {
        let started = Instant::now();
        announcer.tell("announce");
        kernel_has(count);
        let took = started.elapsed();
        announcer.tell("withdraw");
        kernel_has(0);
        took
    });

    let running = Bywash::run(&r1.ns, &["e0", "e1"]);
    let in_step = || wait_until("no drift", patience, || running.show(&["drift"]) == json!([])).unwrap();
    load::between(&h1, &[&r1.ns], &h2, load::rate(), || std::thread::sleep(Duration::from_millis(300)));
    in_step();
    let before = memory(&running);
    let last: IpAddr = match v6 {
        true => ((0x2a00_u128 << 112) + ((count as u128 - 1) << 80)).to_be_bytes().into(),
        false => ((45_u32 << 24) + ((count as u32 - 1) << 4)).to_be_bytes().into(),
    };
    let last = format!("{last}/{}", if v6 { 48 } else { 28 });
    let ((kernel, ours, same, most, withdrawn), loss) = load::between(&h1, &[&r1.ns], &h2, load::rate(), || {
        let started = Instant::now();
        announcer.tell("announce");
        kernel_has(count);
        let kernel = started.elapsed();
        let has = || running.show(&["routes", &last])[0]["installed"] == true;
        wait_until("the last route", patience, has).unwrap();
        let ours = started.elapsed();
        in_step();
        let same = started.elapsed();
        let most = memory(&running);
        let started = Instant::now();
        announcer.tell("withdraw");
        kernel_has(0);
        in_step();
        (kernel, ours, same, most, started.elapsed())
    });
    // The program returns free memory with a delay.
    let back = || memory(&running) < before + (most - before) / 4 + 8;
    let is_back = wait_until("the memory to be returned", PATIENCE, back);
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    println!(
        "{count} IPv{} routes: a kernel alone has them after {} (lost {} of {} packets); with bywash it has them after \
         {}, bywash after {} ({:.2} of the former), and no drift is shown after {}; withdrawn after {}; lost {} of {} packets; \
         {before} MiB before, {most} with them, {} after",
        if v6 { 6 } else { 4 },
        seconds(alone),
        loss_alone.lost,
        loss_alone.sent,
        seconds(kernel),
        seconds(ours),
        ours.as_secs_f64() / alone.as_secs_f64(),
        seconds(same),
        seconds(withdrawn),
        loss.lost,
        loss.sent,
        memory(&running)
    );
    let drops = running.show(&["drops"]);
    assert!(loss.unexplained(running.unread("e0")) == 0 && loss.twice == 0, "{loss:?}: {drops}");
    // With the default, the test runs beside others, and its times say little.
    if asked.is_some() {
        assert!(ours <= alone.mul_f64(1.5) + Duration::from_secs(1), "{ours:?} {alone:?}");
    }
    is_back.unwrap();
}
