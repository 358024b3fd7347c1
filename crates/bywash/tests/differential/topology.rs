//! Two equal routers, one the kernel alone and one with Bywash on its ports, each with links to hosts that send nothing
//! on their own account.
//!
//! ```text
//!   router  p1 10.0.1.1 fd00:1::1 ───── h1  hosts: 10.0.1.2 .. 5, known by permanent entries
//!           p2 10.0.2.1 fd00:2::1 ───── h2
//!           p3                    ───── h3
//!           p4                    ───── h4
//! ```

use crate::change::{Change, apply};
use crate::config::firewall;
use crate::raw::Raw;
use crate::rules::Context;
use bywash_lab::{Namespace, Process, wait_until};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const PORTS: usize = 4;
/// Number of hosts with permanent neighbour entries on each link; their numbers begin at 2.
pub const HOSTS: usize = 4;

/// The level at which Bywash forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    User,
    Driver,
    Auto,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Driver => "driver",
            Self::Auto => "auto",
        }
    }

    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::User => &["--level", "user"],
            Self::Driver => &["--xdp", "native", "--level", "driver"],
            Self::Auto => &["--level", "auto"],
        }
    }
}

/// A router and its hosts.
pub struct Side {
    pub router: Namespace,
    pub hosts: Namespace,
    pub raws: Vec<Raw>,
}

/// A running Bywash, which ends when this is dropped.
struct Bywash {
    process: Process,
    directory: TempDir,
}

/// Both routers. The first is the kernel alone.
pub struct Pair {
    bywash: Option<Bywash>,
    flows: bool,
    pub sides: [Side; 2],
}

/// Returns the part of Bywash's configuration before its ports.
pub fn router(flows: bool) -> &'static str {
    if flows { "[router]\nicmp_rate = 1000000\nflows = 1000\n" } else { "[router]\nicmp_rate = 1000000\n" }
}

pub fn router_mac(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8 + 1]
}

/// Returns the MAC address of host `host` on the link of `port`.
pub fn host_mac(port: usize, host: usize) -> [u8; 6] {
    [2, 0, 0, 1, port as u8 + 1, host as u8]
}

pub fn text(mac: [u8; 6]) -> String {
    bywash_wire::ethernet::MacAddr(mac).to_string()
}

/// Returns the configuration of a router before any change: addresses, neighbours, and no rate limits on errors.
pub fn base() -> Vec<Change> {
    let mut changes = vec![];
    for (key, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/all/send_redirects", "0"),
        ("net/ipv4/conf/all/accept_redirects", "0"),
        ("net/ipv6/conf/all/accept_redirects", "0"),
        ("net/ipv6/conf/all/keep_addr_on_down", "1"),
        ("net/ipv4/icmp_ratelimit", "0"),
        ("net/ipv4/icmp_ratemask", "0"),
        ("net/ipv6/icmp/ratelimit", "0"),
        // Limits only messages of type 200, which is no error.
        ("net/ipv6/icmp/ratemask", "200"),
    ] {
        changes.push(Change::Sysctl(key.into(), value.into()));
    }
    for port in 0..PORTS {
        let n = port + 1;
        for key in ["rp_filter", "send_redirects"] {
            changes.push(Change::Sysctl(format!("net/ipv4/conf/p{n}/{key}"), "0".into()));
        }
        for family in ["ipv4", "ipv6"] {
            // Packets to a neighbour that does not exist are dropped at once instead of after 3 s: while too many wait,
            // the kernel sends no errors.
            for probes in ["mcast_solicit", "ucast_solicit"] {
                changes.push(Change::Sysctl(format!("net/{family}/neigh/p{n}/{probes}"), "0".into()));
            }
        }
        for key in ["accept_ra", "accept_redirects", "router_solicitations"] {
            changes.push(Change::Sysctl(format!("net/ipv6/conf/p{n}/{key}"), "0".into()));
        }
    }
    for port in 0..PORTS {
        let n = port + 1;
        changes.push(Change::Ip(format!("address add 10.0.{n}.1/24 dev p{n}")));
        changes.push(Change::Ip(format!("address add fd00:{n}::1/64 dev p{n} nodad")));
        changes.extend(neighbours(port));
    }
    changes
}

/// Returns the neighbour entries of the hosts on the link of `port`.
pub fn neighbours(port: usize) -> Vec<Change> {
    let n = port + 1;
    let of = |host: usize| {
        let mac = text(host_mac(port, host));
        let entry =
            |address: String| Change::Ip(format!("neighbour replace {address} lladdr {mac} nud permanent dev p{n}"));
        [format!("10.0.{n}.{host}"), format!("fd00:{n}::{host}"), format!("fe80::{n}:{host}")].map(entry)
    };
    (2..2 + HOSTS).flat_map(of).collect()
}

impl Side {
    fn new(hint: &str) -> Self {
        let (router, hosts) =
            (Namespace::new(&format!("{hint}r")).unwrap(), Namespace::new(&format!("{hint}h")).unwrap());
        let mut lines = String::new();
        let mut there = String::new();
        for port in 0..PORTS {
            let (n, mac) = (port + 1, text(router_mac(port)));
            writeln!(lines, "link add p{n} address {mac} mtu 1500 type veth peer name h{n} netns {}", hosts.name())
                .unwrap();
            writeln!(there, "link set h{n} mtu 2000 up").unwrap();
        }
        // The kernel must not answer for the hosts.
        hosts.sysctl("net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        hosts.sysctl("net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        hosts.sysctl("net/ipv4/conf/default/arp_ignore", "8").unwrap();
        router.sysctl("net/ipv6/conf/default/router_solicitations", "0").unwrap();
        for hooks in ["arptables", "iptables", "ip6tables"] {
            // With these, the kernel has all frames between members of bridges. Missing without br_netfilter.
            let _ = router.sysctl(&format!("net/bridge/bridge-nf-call-{hooks}"), "0");
        }
        router.ip_batch(&lines).unwrap();
        hosts.ip_batch(&there).unwrap();
        for port in 0..PORTS {
            // Without GRO on the peer, a native XDP program cannot redirect to a veth.
            hosts.offload(&format!("h{}", port + 1), "gro", true).unwrap();
        }
        let up: String = (1..=PORTS).map(|n| format!("link set p{n} up\n")).collect();
        router.ip_batch(&up).unwrap();
        let open = || (1..=PORTS).map(|n| Raw::open(&format!("h{n}")).unwrap()).collect();
        let raws = hosts.enter(open).unwrap();
        let side = Self { router, hosts, raws };
        side.wait_for_link_local();
        let (base, taken) = (base(), apply(&side, &base()));
        if let Some(at) = taken.iter().position(|taken| !taken) {
            // Older kernels lack some of these keys in namespaces.
            assert!(matches!(&base[at], Change::Sysctl(..)), "refused: {}", base[at]);
        }
        side
    }

    /// Waits for the link-local addresses. They come last: the kernel adds them from a work queue once there is
    /// carrier.
    fn wait_for_link_local(&self) {
        let come = || {
            let table = self.router.enter(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6")).unwrap();
            let table = table.unwrap_or_default();
            table.lines().filter(|line| line.starts_with("fe80")).count() >= PORTS
        };
        wait_until("link-local addresses", Duration::from_secs(60), come).unwrap();
    }
}

impl Side {
    /// Returns the output of `ip` with each of these arguments.
    pub fn tables(&self, of: &[&str]) -> Vec<String> {
        let show = |what: &&str| self.router.ip(&what.split(' ').collect::<Vec<_>>()).map(|output| output.stdout);
        of.iter().map(|what| show(what).unwrap_or_default()).collect()
    }
}

impl Pair {
    pub fn new() -> Self {
        let [kernel, bywash] = std::thread::scope(|scope| {
            ["k", "b"].map(|hint| scope.spawn(move || Side::new(hint))).map(|side| side.join().unwrap())
        });
        Self { bywash: None, flows: false, sides: [kernel, bywash] }
    }

    /// Runs Bywash on the first `ports` ports of the second router, and waits until it forwards. With `flows` both
    /// routers have [`firewall::base`], and Bywash forwards established flows.
    pub fn start(&mut self, level: Level, ports: usize, flows: bool) {
        self.flows = flows;
        if flows {
            let base = firewall::base();
            for taken in self.apply(&base) {
                let refused = taken.iter().position(|taken| !taken);
                assert!(refused.is_none(), "refused: {}", base[refused.unwrap()]);
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let (socket, file) = (directory.path().join("socket"), directory.path().join("bywash.toml"));
        let names: Vec<String> = (1..=ports).map(|n| format!("\"p{n}\"")).collect();
        let ports: String = names.iter().map(|name| format!("[[port]]\ninterface = {name}\n")).collect();
        std::fs::write(&file, format!("{}{ports}", router(flows))).unwrap();
        let program = std::env::var("BYWASH_UNDER_TEST").unwrap_or_else(|_| env!("CARGO_BIN_EXE_bywash").to_owned());
        let mut argv = vec![program.as_str(), "run", "--socket", socket.to_str().unwrap()];
        argv.extend(["--config", file.to_str().unwrap()]);
        argv.extend(level.arguments());
        let mut process = self.sides[1].router.spawn(&argv).unwrap();
        process.wait_for_output("forwarding;", Duration::from_secs(60)).unwrap();
        self.bywash = Some(Bywash { process, directory });
    }

    /// Returns what rules for allowed differences may ask.
    pub fn context(&self) -> Context<'_> {
        Context { kernel: &self.sides[0], flows: self.flows }
    }

    /// Returns what Bywash answers to a request.
    pub fn asked(&self, what: &str) -> Value {
        let bywash = self.bywash.as_ref().expect("Bywash runs");
        let mut stream = UnixStream::connect(bywash.directory.path().join("socket")).unwrap();
        write!(stream, "GET /v1/{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_else(|why| panic!("{why}: {answer}"))
    }

    /// Returns the number of packets that flows have forwarded past the kernel.
    pub fn past_the_kernel(&self) -> u64 {
        self.asked("flow-table")["packets"].as_u64().unwrap()
    }

    /// Returns the number of packets that Bywash has put into tunnels, and of those that it has taken out of them.
    pub fn tunnelled(&self) -> [u64; 2] {
        let drops = self.asked("drops");
        let events = drops["events"].as_array().expect("events");
        ["encapsulated", "decapsulated"].map(|name| {
            let of_it = events.iter().filter(|event| event["event"] == name);
            of_it.map(|event| event["count"].as_u64().expect("a count")).sum()
        })
    }

    /// Waits until no connection is judged any more, for a short time only: what is not yet, is left to the kernel.
    pub fn wait_for_flows(&self) {
        let look = || {
            let table = self.asked("flow-table");
            [&table["state"], &table["judged"], &table["families"]].map(Value::clone)
        };
        let (started, mut before) = (Instant::now(), look());
        while started.elapsed() < Duration::from_millis(60) {
            std::thread::sleep(Duration::from_millis(5));
            let now = look();
            if now == before {
                return;
            }
            before = now;
        }
    }

    /// Panics if Bywash has ended.
    pub fn assert_runs(&self) {
        let Some(Bywash { process, .. }) = &self.bywash else { return };
        let state = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap_or_default();
        assert!(state.contains(") ") && !state.contains(") Z"), "Bywash ended: {}", process.output());
    }

    /// Returns the lines of Bywash's log that contain `word`.
    pub fn log(&self, word: &str) -> String {
        let output = self.bywash.as_ref().map(|bywash| bywash.process.output()).unwrap_or_default();
        output.lines().filter(|line| line.contains(word)).map(|line| format!("{line}\n")).collect()
    }

    /// Makes the same changes on both sides. Returns for each side and change whether it was accepted.
    pub fn apply(&self, changes: &[Change]) -> [Vec<bool>; 2] {
        std::thread::scope(|scope| {
            let there = self.sides.each_ref().map(|side| scope.spawn(move || apply(side, changes)));
            there.map(|thread| thread.join().unwrap())
        })
    }

    /// Returns the lines of the tables that only one of the two kernels has.
    pub fn unlike(&self) -> String {
        let all = [
            "-o address",
            "route show table all",
            "neighbour show nud permanent",
            "neighbour show nud noarp",
            "nexthop",
            "rule",
            "-6 rule",
        ];
        let [kernel, bywash] = self.sides.each_ref().map(|side| side.tables(&all).concat());
        // The kernel makes entries for multicast addresses and on lo as it needs them.
        let multicast = |line: &str| {
            let address = line.split(' ').next().and_then(|word| word.parse::<IpAddr>().ok());
            address.is_some_and(|address| address.is_multicast())
        };
        differing_lines(&kernel, &bywash, |line| !multicast(line) && !line.contains("dev lo lladdr"))
    }

    /// Returns the stations of bridges that only one of the two kernels knows. They may differ: a kernel learns only
    /// from what it receives.
    pub fn unlike_stations(&self) -> String {
        let [kernel, bywash] = self.sides.each_ref().map(|side| {
            let shown = side.router.run(&["bridge", "fdb", "show"]);
            shown.map(|output| output.stdout).unwrap_or_default()
        });
        differing_lines(&kernel, &bywash, |line| line.contains(" master "))
    }

    /// Waits until both kernels have the same addresses and routes: the kernel handles the effects of a link going up
    /// or down in work queues, up to a second later. Returns whether they have.
    pub fn agree(&self, changes: &[Change]) -> bool {
        let later = |change: &Change| match change {
            Change::Ip(line) => line.starts_with("link"),
            Change::Sysctl(key, _) => key.contains("disable_ipv6"),
            Change::Host(_) => true,
            _ => false,
        };
        if !changes.iter().any(later) {
            return true;
        }
        // Addresses below the names of their interfaces, and routes of both families, in one process: in an emulated
        // machine each takes a tenth of a second.
        let table = |side: &Side| {
            let listed = side.router.ip_batch("address show up\nroute show table all\n");
            listed.map(|output| output.stdout).unwrap_or_default()
        };
        let is_link = |line: &&str| line.contains(": <");
        let compared = |table: &str| -> Vec<String> {
            let only = |line: &str| line.split(": <").next().unwrap_or(line).to_owned();
            let of_links = |line: &&str| ["link/", "prog/"].iter().any(|start| line.trim_start().starts_with(start));
            table.lines().filter(|line| !of_links(line)).map(only).collect()
        };
        // The carrier flag changes at once, the operational state once the work is done.
        // The operational state of a VXLAN that is up is "unknown".
        let behind = |line: &str| {
            let differ = line.contains("NO-CARRIER") == line.contains("state UP");
            differ && !line.contains("state UNKNOWN") && !line.contains(" lo:")
        };
        let same = wait_until("both kernels to agree", Duration::from_secs(3), || {
            let [kernel, bywash] = std::thread::scope(|scope| {
                let there = self.sides.each_ref().map(|side| scope.spawn(move || table(side)));
                there.map(|thread| thread.join().unwrap())
            });
            let links = [&kernel, &bywash].map(|table| table.lines().filter(is_link)).into_iter().flatten();
            compared(&kernel) == compared(&bywash) && !links.into_iter().any(behind)
        });
        same.is_ok()
    }
}

/// Returns those of the compared lines that only one side has, one a line.
fn differing_lines(kernel: &str, bywash: &str, is_compared: impl Fn(&str) -> bool) -> String {
    let mut unlike = String::new();
    for (name, one, other) in [("kernel", kernel, bywash), ("bywash", bywash, kernel)] {
        let lines = one.lines().filter(|line| is_compared(line));
        for line in lines.filter(|line| !other.lines().any(|there| there == *line)) {
            writeln!(unlike, "  only the {name}'s: {line}").unwrap();
        }
    }
    unlike
}
