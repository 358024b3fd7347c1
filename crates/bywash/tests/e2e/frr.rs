//! Routing daemons, unmodified: FRR's OSPF and BGP on four routers with two ways between their hosts.
//!
//! ```text
//!              ┌─ e2 ── e1 r2 e4 ── e2 ─┐
//!   h1 ── h0 r1                         r4 h0 ── h4
//!              └─ e3 ── e1 r3 e4 ── e3 ─┘
//! ```
//!
//! Between r2 and r4 there may be a memif, which is no interface: e4 and e2 are its twins then.

use crate::daemons::{Router, join, open_to_all};
use crate::harness::{Bywash, PATIENCE, alone};
use crate::load;
use bywash_lab::{Namespace, Ping, has_tool, require, require_lab, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Packets a second.
const RATE: u32 = 5_000;
/// Links: router, interface, address; the same of the other end.
const LINKS: [(usize, &str, &str, usize, &str, &str); 4] = [
    (1, "e2", "10.12.0.1", 2, "e1", "10.12.0.2"),
    (1, "e3", "10.13.0.1", 3, "e1", "10.13.0.3"),
    (2, "e4", "10.24.0.2", 4, "e2", "10.24.0.4"),
    (3, "e4", "10.34.0.3", 4, "e3", "10.34.0.4"),
];

/// The link that may be a memif.
const MEMIF: usize = 2;

struct Lab {
    daemons_directory: tempfile::TempDir,
    hosts: [Namespace; 2],
    routers: Vec<Router>,
}

impl Lab {
    /// With a veth everywhere, or twins on one link.
    fn new(twins: bool) -> Self {
        let daemons_directory = tempfile::tempdir().unwrap();
        open_to_all(daemons_directory.path());
        let mut routers = vec![];
        for n in 1..=4 {
            let router = Router::new(&format!("r{n}"), daemons_directory.path());
            router.ns.ip(&["address", "add", &format!("10.0.0.{n}/32"), "dev", "lo"]).unwrap();
            routers.push(router);
        }
        for (n, (one, name, address, other, peer, its)) in LINKS.into_iter().enumerate() {
            if twins && n == MEMIF {
                continue;
            }
            let [address, its] = [address, its].map(|address| format!("{address}/24"));
            join(&routers[one - 1].ns, (name, &address), &routers[other - 1].ns, (peer, &its));
        }
        let hosts = ["h1", "h4"].map(|name| Namespace::new(name).unwrap());
        for (host, n) in hosts.iter().zip([1, 4]) {
            join(&routers[n - 1].ns, ("h0", &format!("10.{n}.0.1/24")), host, ("eth0", &format!("10.{n}.0.2/24")));
            host.ip(&["link", "set", "lo", "up"]).unwrap();
            host.ip(&["route", "add", "default", "via", &format!("10.{n}.0.1")]).unwrap();
        }
        // Where numbered packets go.
        hosts[1].ip(&["route", "add", "local", "44.0.0.0/8", "dev", "lo"]).unwrap();
        routers[3].ns.ip(&["route", "add", "44.0.0.0/8", "via", "10.4.0.2"]).unwrap();
        Self { daemons_directory, hosts, routers }
    }

    /// Starts the daemons of every router.
    fn start_daemons(&self) {
        for n in 1..=4 {
            let router = &self.routers[n - 1];
            for (daemon, config) in [("zebra", String::new()), ("ospfd", ospf(n)), ("bgpd", bgp(n))] {
                router.start(daemon, &config);
            }
        }
    }

    /// Runs bywash on every router. The twins it makes get their addresses.
    fn run(&self, twins: bool) -> Vec<Bywash<'_>> {
        let (_, e4, at_2, _, e2, at_4) = LINKS[MEMIF];
        let run = |n: usize| {
            let ns = &self.routers[n - 1].ns;
            let (twin, role, address) = match n {
                2 if twins => (e4, "server", at_2),
                4 if twins => (e2, "client", at_4),
                _ => return Bywash::run(ns, &Self::ports(n)),
            };
            let socket = self.daemons_directory.path().join("memif.sock");
            let mut text =
                format!("[[port]]\nkind = \"memif\"\nname = \"m\"\ninterface = \"{twin}\"\nrole = \"{role}\"\n");
            writeln!(text, "socket = \"{}\"", socket.display()).unwrap();
            for port in Self::ports(n).iter().filter(|port| **port != twin) {
                writeln!(text, "[[port]]\ninterface = \"{port}\"\nlevel = \"user\"").unwrap();
            }
            let file = self.daemons_directory.path().join(format!("{n}.toml"));
            std::fs::write(&file, text).unwrap();
            let running = Bywash::run_as_is(ns, &["--config", file.to_str().unwrap()]);
            ns.ip(&["address", "add", &format!("{address}/24"), "dev", twin]).unwrap();
            running
        };
        (1..=4).map(run).collect()
    }

    fn ports(n: usize) -> Vec<&'static str> {
        let ends = LINKS.iter().flat_map(|l| [(l.0, l.1), (l.3, l.4)]);
        let mut ports: Vec<&str> = ends.filter(|(router, _)| *router == n).map(|(_, name)| name).collect();
        if n == 1 || n == 4 {
            ports.push("h0");
        }
        ports
    }
}

fn ospf(n: usize) -> String {
    let mut text = format!("router ospf\n ospf router-id 10.0.0.{n}\n network 10.0.0.{n}/32 area 0\n");
    for net in [12, 13, 24, 34] {
        writeln!(text, " network 10.{net}.0.0/24 area 0").unwrap();
    }
    for interface in ["e1", "e2", "e3", "e4"] {
        write!(text, "interface {interface}\n ip ospf network point-to-point\n ip ospf hello-interval 1\n").unwrap();
        writeln!(text, " ip ospf dead-interval 4").unwrap();
    }
    text
}

fn bgp(n: usize) -> String {
    let mut text = format!("router bgp {}\n bgp router-id 10.0.0.{n}\n no bgp ebgp-requires-policy\n", 65000 + n);
    text += " timers bgp 1 3\n bgp bestpath as-path multipath-relax\n";
    let ends = LINKS.iter().flat_map(|&(a, _, at_a, b, _, at_b)| [(a, b, at_b), (b, a, at_a)]);
    for (_, peer, address) in ends.filter(|(own, ..)| *own == n) {
        writeln!(text, " neighbor {address} remote-as {}", 65000 + peer).unwrap();
        writeln!(text, " neighbor {address} timers connect 1\n neighbor {address} advertisement-interval 0").unwrap();
    }
    text += " address-family ipv4 unicast\n  maximum-paths 4\n";
    match n {
        1 => text += "  network 10.1.0.0/24\n",
        4 => text += "  network 10.4.0.0/24\n  network 44.0.0.0/8\n",
        _ => {}
    }
    text
}

/// IPv4 routes of table main: prefix, ways out.
type Routes = BTreeMap<String, Vec<(String, String)>>;

fn routes<'a>(rows: impl Iterator<Item = (String, &'a Value, [&'a str; 2])>) -> Routes {
    let row = |(prefix, hops, [via, dev]): (String, &Value, [&str; 2])| {
        let text = |hop: &Value, key: &str| hop[key].as_str().unwrap_or("").to_owned();
        let mut hops: Vec<_> = hops.as_array().unwrap().iter().map(|hop| (text(hop, via), text(hop, dev))).collect();
        hops.sort();
        (if prefix.contains('/') { prefix } else { format!("{prefix}/32") }, hops)
    };
    rows.map(row).collect()
}

fn of_kernel(router: &Router) -> Routes {
    let text = router.ns.ip(&["-j", "-4", "route", "show", "table", "main"]).unwrap().stdout;
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let hops = |row: &Value| match &row["nexthops"] {
        Value::Null => json!([row]),
        several => several.clone(),
    };
    let rows: Vec<_> = rows.iter().map(|row| (row["dst"].as_str().unwrap().to_owned(), hops(row))).collect();
    routes(rows.iter().map(|(prefix, hops)| (prefix.clone(), hops, ["gateway", "dev"])))
}

fn of_frr(router: &Router) -> Routes {
    let all = router.ask("show ip route json");
    let chosen = |row: &&Value| row["selected"] == true && row["installed"] == true;
    let rows = all.as_object().unwrap().iter().filter_map(|(prefix, rows)| {
        // A host's own address is in table local.
        let row = rows.as_array().unwrap().iter().find(chosen)?;
        (row["nexthops"][0]["interfaceName"] != "lo")
            .then(|| (prefix.clone(), &row["nexthops"], ["ip", "interfaceName"]))
    });
    routes(rows)
}

fn of_bywash(running: &Bywash) -> Routes {
    let all = running.show(&["routes"]);
    let main = |row: &&Value| row["table"] == 254 && !row["prefix"].as_str().unwrap().contains(':');
    let rows = all.as_array().unwrap().iter().filter(main);
    routes(rows.map(|row| (row["prefix"].as_str().unwrap().to_owned(), &row["next_hops"], ["via", "interface"])))
}

#[test]
fn ospf_and_bgp_with_equal_paths() {
    converge_share_and_survive(false);
}

#[test]
fn ospf_and_bgp_over_twins() {
    converge_share_and_survive(true);
}

fn converge_share_and_survive(twins: bool) {
    require!(require_lab(), has_tool("vtysh"), has_tool("/usr/lib/frr/bgpd"));
    let _alone = alone();
    let lab = Lab::new(twins);
    let running = lab.run(twins);
    lab.start_daemons();
    let started = Instant::now();
    let both = |table: &Routes| table.get("44.0.0.0/8").is_some_and(|hops| hops.len() == 2);
    let converged = || {
        let ospf = |n: usize| of_kernel(&lab.routers[n]).contains_key(&format!("10.0.0.{}/32", 4 - n));
        both(&of_kernel(&lab.routers[0]))
            && ospf(0)
            && ospf(3)
            && of_kernel(&lab.routers[3]).contains_key("10.1.0.0/24")
    };
    let done = wait_until("the routers to converge", Duration::from_secs(40), converged);
    done.unwrap_or_else(|e| panic!("{e}: {:?} {}", of_kernel(&lab.routers[0]), lab.routers[0].daemons_say()));
    println!("converged after {:.1} s", started.elapsed().as_secs_f64());

    // The same routes everywhere, and nothing adrift.
    for (router, running) in lab.routers.iter().zip(&running) {
        let same = || of_frr(router) == of_kernel(router) && of_bywash(running) == of_kernel(router);
        wait_until("the same routes", PATIENCE, same).unwrap_or_else(|e| {
            panic!("{e}:\n{:?}\n{:?}\n{:?}", of_frr(router), of_kernel(router), of_bywash(running))
        });
        let none = || running.show(&["drift"]) == json!([]);
        wait_until("no drift", PATIENCE, none).unwrap_or_else(|e| panic!("{e}: {}", running.show(&["drift"])));
    }

    // Traffic, shared by both ways, once everybody knows its neighbours.
    let report = Ping::to(std::net::Ipv4Addr::new(10, 4, 0, 2)).count(20).interval(Duration::from_millis(10));
    wait_until("the other host", PATIENCE, || report.clone().run(&lab.hosts[0]).unwrap().received == 20).unwrap();
    let sent = || ["e2", "e3"].map(|port| running[0].counter(port, "tx_packets"));
    let before = sent();
    let [h1, h4] = &lab.hosts;
    let ((), loss) = load::between(h1, h4, RATE, || std::thread::sleep(Duration::from_secs(1)));
    let ways = [0, 1].map(|n| sent()[n] - before[n]);
    let even = (ways[0] + ways[1]) as f64 / 2.0;
    println!("by each way {ways:?}, {:.1} % off even", 100.0 * (ways[0] as f64 - even).abs() / even);
    assert_eq!((loss.lost, loss.twice), (0, 0), "{loss:?}");
    assert!((ways[0] as f64 - even).abs() < 0.2 * even, "{ways:?}");

    // One of the two in the middle dies under load: the other takes its flows.
    let ((), loss) = load::between(h1, h4, RATE, || {
        std::thread::sleep(Duration::from_millis(300));
        lab.routers[1].ns.ip_batch("link set e1 down\nlink set e4 down\n").unwrap();
        running[0].wait("one way", |running| of_bywash(running).get("44.0.0.0/8").is_some_and(|hops| hops.len() == 1));
        std::thread::sleep(Duration::from_millis(300));
    });
    let dark = Duration::from_secs_f64(loss.lost as f64 / f64::from(RATE) * 2.0);
    println!("one of two died: {} of {} lost, its flows dark for {dark:?}", loss.lost, loss.sent);
    assert!(dark < Duration::from_secs(5), "{loss:?}");
}
