//! The example `own_router`: an application on the kit with workers, routes, twins in the kernel, and an API.

use bywash_lab::{End, Namespace, Ping, Snapshot, Transfer, Veth, require, require_lab, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const A: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
/// Address of host b on no link, to which a route is added.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// Cargo builds examples before it runs all tests, and not for `--test own_router` alone.
fn example() -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    let path = exe.ancestors().nth(2).unwrap().join("examples/own_router");
    if !path.exists() {
        println!("SKIP: {} is not built: cargo build -p bywash-examples --examples", path.display());
        return None;
    }
    Some(path)
}

/// Two hosts, and the namespace of the router between them, whose links have two queues.
struct Lab {
    a: Namespace,
    r: Namespace,
    b: Namespace,
}

impl Lab {
    fn new() -> Self {
        let named = |hint| Namespace::new(hint).unwrap();
        let lab = Self { a: named("a"), r: named("r"), b: named("b") };
        for (host, interface, address, port, gateway) in
            [(&lab.a, "a0", A, "r0", ROUTER), (&lab.b, "b0", B, "r1", Ipv4Addr::new(10, 0, 2, 1))]
        {
            let end = End::new(host, interface).address(format!("{address}/24"));
            Veth::new(end, End::new(&lab.r, port)).queues(2).create().unwrap();
            host.ip(&["route", "add", "default", "via", &gateway.to_string()]).unwrap();
        }
        lab.b.ip(&["address", "add", "10.9.9.9/32", "dev", "b0"]).unwrap();
        lab.r.sysctl("net/ipv4/ip_forward", "1").unwrap();
        lab
    }

    /// Starts the router, and gives its twins their addresses.
    fn start(&self, program: &Path, socket: &Path) -> Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.r.name()]).arg(program).arg(socket).args(["r0", "r1"]);
        let mut router = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(router.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("routing; "), "{line}");
        self.r.ip_batch("address add 10.0.1.1/24 dev twin0\naddress add 10.0.2.1/24 dev twin1\n").unwrap();
        router
    }

    fn pings(&self, to: Ipv4Addr) -> bool {
        Ping::to(to).count(1).run(&self.a).is_ok_and(|report| report.received == 1)
    }
}

fn show(topic: &str, socket: &Path, more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
    let out = command.args(["show", topic, "--socket"]).arg(socket).args(more).output().unwrap();
    assert!(out.status.success(), "{topic}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn json(topic: &str, socket: &Path) -> Value {
    serde_json::from_str(&show(topic, socket, &["--json"])).unwrap()
}

/// The router, started in a lab, that forwards.
struct Started {
    lab: Lab,
    /// The router's namespace before the start.
    before: Snapshot,
    program: PathBuf,
    /// Directory of `socket`.
    _place: TempDir,
    socket: PathBuf,
    router: Child,
}

/// Starts the router and waits until it forwards: the first packets go by the kernel, until it has resolved the
/// neighbour. `None` if the example is not built.
fn started() -> Option<Started> {
    let program = example()?;
    let lab = Lab::new();
    let before = Snapshot::of(&lab.r).unwrap();
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("own_router.sock");
    let router = lab.start(&program, &socket);
    wait_until("a ping to b", LIMIT, || lab.pings(B)).unwrap();
    Some(Started { lab, before, program, _place: place, socket, router })
}

#[test]
fn an_application_routes_beside_the_kernel_and_shows_itself() {
    require!(require_lab());
    let Some(Started { lab, before, socket, mut router, _place, .. }) = started() else { return };
    let forwarded = |socket| json("workers", socket).as_array().unwrap().iter().map(routed).sum::<u64>();
    let earlier = forwarded(&socket);
    assert_eq!(Ping::to(B).count(20).interval(Duration::from_millis(10)).run(&lab.a).unwrap().received, 20);
    assert!(forwarded(&socket) >= earlier + 40);
    assert!(Transfer::new(1 << 20).run(&lab.a, &lab.b, B).unwrap().is_intact());
    assert!(Transfer::new(1 << 20).run(&lab.b, &lab.a, A).unwrap().is_intact());
    // The kernel's share.
    // A busy machine may keep the application from handing one over in time.
    let all = || Ping::to(ROUTER).count(5).run(&lab.a).unwrap().received == 5;
    wait_until("five pings to the router", LIMIT, all).unwrap();
    assert!(Transfer::new(1 << 20).run(&lab.a, &lab.r, ROUTER).unwrap().is_intact());

    assert!(!lab.pings(FAR));
    lab.r.ip(&["route", "add", "10.9.9.9/32", "via", "10.0.2.2"]).unwrap();
    // Pings that the twins do not give to the kernel, of several: other frames go there at times.
    let by_application = || {
        let before = given_to_the_kernel(&socket);
        Ping::to(FAR)
            .count(20)
            .interval(Duration::from_millis(10))
            .run(&lab.a)
            .is_ok_and(|report| report.received == 20)
            && given_to_the_kernel(&socket) < before + 20
    };
    wait_until("pings by the new route", LIMIT, by_application).unwrap();
    lab.r.ip(&["route", "replace", "unreachable", "10.9.9.9/32"]).unwrap();
    wait_until("no ping after the change", LIMIT, || !lab.pings(FAR)).unwrap();
    lab.r.ip(&["route", "del", "unreachable", "10.9.9.9/32"]).unwrap();

    let ports = json("ports", &socket);
    let names: Vec<_> = ports.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["r0", "twin0", "r1", "twin1"]);
    for port in [0, 2] {
        let port = &ports[port];
        assert!(port["counters"]["rx_packets"].as_u64().unwrap() > 700, "{port}");
        assert_eq!((&port["state"], &port["kind"]), (&"up".into(), &"af_xdp".into()), "{port}");
        assert_eq!(port["queues"].as_array().unwrap().iter().filter(|queue| queue["queue"] != Value::Null).count(), 2);
    }
    assert!(ports[0]["addresses"].as_array().unwrap().contains(&"10.0.1.1/24".into()), "{}", ports[0]);
    assert!(ports[1]["counters"]["tx_packets"].as_u64().unwrap() > 5, "{}", ports[1]);
    let workers = json("workers", &socket);
    assert_eq!(workers.as_array().unwrap().len(), 2);
    assert_eq!(json("pools", &socket)["pools"][0]["workers"], serde_json::json!([0, 1]));
    assert!(json("drops", &socket)["xdp"].as_array().unwrap().iter().any(|row| row["verdict"] == "to_user"));
    for (topic, word) in
        [("ports", "twin0"), ("workers", "route"), ("pools", "main"), ("drops", "r0"), ("all", "workers")]
    {
        let text = show(topic, &socket, &[]);
        assert!(text.contains(word), "{topic}: {text}");
    }
    let mut top = Command::new(env!("CARGO_BIN_EXE_bywash"));
    let top = top.args(["top", "--json", "--interval", "0.1", "--socket"]).arg(&socket).output().unwrap();
    let top: Value = serde_json::from_slice(&top.stdout).unwrap();
    assert_eq!((&top["mode"], top["ports"].as_array().unwrap().len()), (&"application".into(), 4));

    // Enter ends it; every buffer is back.
    router.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(router.wait().unwrap().success());
    let after = Snapshot::of(&lab.r).unwrap();
    assert!(before.differences(&after).is_empty(), "{:?}", before.differences(&after));
    assert!(!socket.exists());
}

/// Packets that the router has given back to the kernel.
fn given_to_the_kernel(socket: &Path) -> u64 {
    let ports = json("ports", socket);
    let twins = ports.as_array().unwrap().iter().filter(|port| port["kind"] == "twin");
    twins.map(|twin| twin["counters"]["tx_packets"].as_u64().unwrap()).sum()
}

/// Packets of a worker's stage `route`.
fn routed(worker: &Value) -> u64 {
    let stages = worker["stages"].as_array().unwrap();
    let packets =
        stages.iter().filter(|stage| stage["name"] == "route").map(|stage| stage["packets"].as_u64().unwrap());
    packets.sum()
}

#[test]
fn a_killed_application_leaves_the_host_as_found() {
    require!(require_lab());
    let Some(Started { lab, before, program, socket, mut router, _place }) = started() else { return };
    router.kill().unwrap();
    router.wait().unwrap();
    let differences = || before.differences(&Snapshot::of(&lab.r).unwrap());
    let left = wait_until("the host as found", LIMIT, || differences().is_empty());
    assert!(left.is_ok(), "{:?}", differences());
    // The socket's name is left, and no hindrance.
    let mut router = lab.start(&program, &socket);
    assert_eq!(json("workers", &socket).as_array().unwrap().len(), 2);
    drop(router.stdin.take());
    assert!(router.wait().unwrap().success());
}
