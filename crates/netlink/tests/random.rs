//! Applies hundreds of random changes with `ip`, in bursts; after each burst the mirror must agree with the kernel.

mod common;

use bywash_lab::{Namespace, wait_until};
use bywash_netlink::{Config, State};
use bywash_sync::random::{STEP, splitmix64};
use common::{Followed, Oracle, differences, skipped};
use std::fmt::Write as _;
use std::time::Duration;

/// Yields the same changes every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        splitmix64(self.0, 0) % sides
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.roll(of.len() as u64) as usize]
    }

    fn device(&mut self) -> &'static str {
        self.pick(&["a0", "b0", "c0"])
    }

    fn gateway4(&mut self) -> String {
        // A gateway within the network of the device is also accepted without `onlink`: such a route is another one.
        let (n, last, onlink) = (self.roll(3), 2 + self.roll(3), self.pick(&[" onlink", " onlink", ""]));
        let device = if onlink.is_empty() { ["a0", "b0", "c0"][n as usize] } else { self.device() };
        format!("via 10.{}.0.{last}{onlink} dev {device}", 1 + n)
    }

    fn gateway6(&mut self) -> String {
        format!("via fd0{}::{} onlink dev {}", 1 + self.roll(3), 2 + self.roll(3), self.device())
    }

    fn several(&mut self, one: fn(&mut Self) -> String) -> String {
        (0..2 + self.roll(2)).map(|_| format!(" nexthop {} weight {}", one(self), 1 + self.roll(4))).collect()
    }

    fn route4(&mut self) -> String {
        let prefix = self.pick(&["192.0.2.0/24", "192.0.2.128/25", "198.51.100.0/24", "203.0.113.7/32", "default"]);
        let metric = self.pick(&["", " metric 10", " metric 20"]);
        let extra = self.pick(&["", "", " mtu 1400", " src 10.1.0.1", " proto bird", " advmss 1400", " realm 7"]);
        let table = self.pick(&["", "", "", " table 100"]);
        match self.roll(12) {
            0 => format!("{} {prefix}{metric}{table}", self.pick(&["blackhole", "unreachable", "prohibit", "throw"])),
            1 => format!("{prefix} dev {}{metric}{table}{extra}", self.device()),
            2 | 3 => format!("{prefix}{metric}{table}{extra}{}", self.several(Self::gateway4)),
            4 => format!("{prefix} nhid {}{metric}{table}", 1 + self.roll(8)),
            5 => format!("{prefix} via inet6 fd01::{} dev {}{metric}{table}", 2 + self.roll(3), self.device()),
            _ => format!("{prefix} {}{metric}{table}{extra}", self.gateway4()),
        }
    }

    fn route6(&mut self) -> String {
        let prefix =
            self.pick(&["2001:db8:1::/48", "2001:db8:1:1::/64", "2001:db8:2::/48", "2001:db8::9/128", "default"]);
        // If routes with and without a gateway share prefix and metric, the kernel's own dump leaves some out.
        let metric = self.pick(&["", " metric 10"]);
        let extra = self.pick(&["", "", " src fd01::1", " proto bird"]);
        // Routes by gateways join as legs, of which the kernel's dump shows only one MTU.
        let mtu = self.pick(&["", "", " mtu 1400"]);
        match self.roll(12) {
            0 => format!("{} {prefix} metric 30", self.pick(&["blackhole", "unreachable", "prohibit", "throw"])),
            1 => format!("{prefix} dev {} metric 40{mtu}{extra}", self.device()),
            2 | 3 => format!("{prefix}{metric}{extra}{}", self.several(Self::gateway6)),
            4 => format!("{prefix} nhid {} metric 50", 5 + self.roll(4)),
            _ => format!("{prefix} {}{metric}{extra}", self.gateway6()),
        }
    }

    fn object(&mut self) -> String {
        let verb = self.pick(&["add", "replace", "replace", "del"]);
        let id = 1 + self.roll(8);
        match (verb, id) {
            ("del", _) => format!("nexthop del id {id}"),
            (_, 1 | 2) => format!("nexthop {verb} id {id} {}", self.gateway4()),
            (_, 3) => format!("nexthop {verb} id 3 group {}", self.pick(&["1", "1/2", "2,3/1,2", "2"])),
            (_, 4) => format!("nexthop {verb} id 4 blackhole"),
            (_, 5 | 6) => format!("nexthop {verb} id {id} {}", self.gateway6()),
            (_, 7) => format!("nexthop {verb} id 7 group {}", self.pick(&["5", "5/6", "6,3/5,2"])),
            (..) => format!("nexthop {verb} id 8 blackhole"),
        }
    }

    fn link(&mut self) -> String {
        let device = self.pick(&["a0", "b0", "c0", "a1", "b1", "c1"]);
        match self.roll(10) {
            0..3 => format!("link set {device} down"),
            3..8 => format!("link set {device} up"),
            _ => format!("link set {device} mtu {}", self.pick(&["1500", "1400", "1300"])),
        }
    }

    fn address(&mut self) -> String {
        let verb = self.pick(&["add", "add", "del"]);
        let device = self.device();
        let net = match device {
            "a0" => 1,
            "b0" => 2,
            _ => 3,
        };
        match self.roll(4) {
            0 => format!("addr {verb} fd0{net}::{}/64 dev {device}", 1 + self.roll(2)),
            1 => format!("addr {verb} 10.{net}.1.1/24 dev {device}"),
            _ => format!("addr {verb} 10.{net}.0.{}/24 dev {device}", 1 + self.roll(2)),
        }
    }

    fn neighbour(&mut self) -> String {
        let device = self.device();
        let addr = self.pick(&["10.1.0.2", "10.1.0.3", "fd01::2", "fe80::2"]);
        match self.roll(3) {
            0 => format!("neigh del {addr} dev {device}"),
            _ => format!(
                "neigh replace {addr} lladdr 02:00:00:00:00:0{} dev {device} nud {}",
                self.roll(9),
                self.pick(&["permanent", "stale"])
            ),
        }
    }

    fn line(&mut self) -> String {
        let verb = |dice: &mut Self| {
            dice.pick(&["add", "add", "replace", "replace", "append", "append", "prepend", "del", "del"])
        };
        match self.roll(100) {
            0..40 => format!("route {} {}", verb(self), self.route4()),
            40..70 => format!("-6 route {} {}", verb(self), self.route6()),
            70..78 => self.object(),
            78..86 => self.link(),
            86..92 => self.address(),
            92..97 => self.neighbour(),
            97 => format!("link set {} name x9", self.device()),
            98 => "link set x9 name c0".into(),
            _ => "link add c0 type veth peer name c1".into(),
        }
    }
}

/// `others`: number of further routes of each family, which make a reading last; the tables are read again beside each
/// burst.
fn bursts(seed: u64, count: usize, size: usize, config: Config, others: u32) {
    if skipped() {
        return;
    }
    // `BYWASH_SEED=n` selects other changes than the default ones.
    let seed = seed + std::env::var("BYWASH_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let ns = Namespace::new("rnd").unwrap();
    let mend: String = ["a", "b", "c"]
        .iter()
        .zip(1..)
        .map(|(l, n)| {
            format!(
                "link add {l}0 type veth peer name {l}1\nlink set {l}0 up\nlink set {l}1 up\n\
                 addr add 10.{n}.0.1/24 dev {l}0\naddr add fd0{n}::1/64 dev {l}0\n"
            )
        })
        .collect();
    batch(&ns, "-0", &mend);
    if others > 0 {
        batch(&ns, "-0", "link add z0 type veth peer name z1\nlink set z0 up\nlink set z1 up\n");
        let [mut v4, mut v6] = [String::new(), String::new()];
        for n in 0..others {
            // On both sides of the prefixes that change.
            let first = if n % 2 == 0 { 100 } else { 220 };
            writeln!(v4, "route add {first}.{}.{}.0/24 dev z0", n >> 8, n & 255).unwrap();
            writeln!(v6, "route add {:x}:{n:x}::/32 dev z0", 0x2001 + n % 2).unwrap();
        }
        batch(&ns, "-0", &v4);
        batch(&ns, "-6", &v6);
    }
    let mut followed = Followed::start(&ns, config);
    let mut dice = Dice(seed);
    for burst in 0..count {
        // Most changes need links that are up.
        if dice.roll(3) == 0 {
            batch(&ns, "-0", &mend);
        }
        let lines: Vec<String> = (0..size).map(|_| dice.line()).collect();
        // IPv4 and IPv6 lines in one file: the family is an option of the program.
        for run in lines.chunk_by(|a, b| a.starts_with("-6") == b.starts_with("-6")) {
            let text: String = run.iter().map(|line| format!("{}\n", line.trim_start_matches("-6 "))).collect();
            let family = if run[0].starts_with("-6") { "-6" } else { "-0" };
            if others > 0 {
                followed.mirror.request_resync();
            }
            batch(&ns, family, &text);
        }
        if dice.roll(16) == 0 {
            let device = dice.device();
            let _ = ns.ip(&["link", "del", device]);
        }
        followed.must_agree(&ns, &format!("seed {seed}, burst {burst}:\n{}", lines.join("\n")));
    }
    // Links that came up last may get addresses and routes meanwhile.
    let mut found = vec![];
    let agrees = wait_until("a reading to agree", Duration::from_secs(60), || {
        found = match ns.enter(State::read).unwrap() {
            Ok(read) => differences(&read, &Oracle::of(&ns)),
            Err(why) => vec![why.to_string()],
        };
        found.is_empty()
    });
    assert!(agrees.is_ok(), "seed {seed}: {}", found.join("\n"));
    let stats = followed.mirror.stats();
    assert_eq!(stats.malformed, 0);
    println!("seed {seed}: {} changes, {stats:?}", followed.changes);
}

/// Runs a batch of `ip` lines, many of which the kernel is expected to refuse.
fn batch(ns: &Namespace, family: &str, text: &str) {
    let mut file = std::env::temp_dir();
    file.push(format!("bywash-netlink-{}-{:?}.batch", std::process::id(), std::thread::current().id()));
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let arguments: Vec<&str> = match family {
        "-6" => vec!["ip", "-6", "-force", "-batch", path],
        _ => vec!["ip", "-force", "-batch", path],
    };
    let _ = ns.try_run(&arguments, Duration::from_secs(60));
    let _ = std::fs::remove_file(&file);
}

#[test]
fn random_changes_one_by_one() {
    bursts(1, 150, 1, Config::default(), 0);
}

#[test]
fn random_changes_in_bursts() {
    bursts(2, 80, 15, Config::default(), 0);
}

#[test]
fn random_changes_in_large_bursts() {
    bursts(3, 30, 100, Config::default(), 0);
}

#[test]
fn random_changes_through_overflows() {
    bursts(4, 25, 60, Config { receive_buffer: 1, ..Config::default() }, 0);
}

#[test]
fn random_changes_during_long_readings() {
    bursts(5, 12, 60, Config { settle: Duration::ZERO, ..Config::default() }, 10_000);
}
