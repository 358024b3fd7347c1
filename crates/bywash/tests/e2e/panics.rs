//! Workers whose stages panic: `BYWASH_FAULT_LENGTH` makes them do so when they receive a frame of that length.

use crate::cmts::packet;
use crate::flows::{self, forwarded, wait_for_flow};
use crate::harness::{Bywash, PATIENCE, assert_detached, bywash};
use crate::raw::send;
use crate::switch;
use bywash_lab::{End, Namespace, Ping, Reason, Topology, Veth, has_tool, require, require_lab};
use rustix::process::Signal;
use serde_json::Value;
use std::net::Ipv6Addr;
use std::time::Duration;

/// Length of the frames that are fatal, and of the data of a ping in one, behind the Ethernet, IPv4 and ICMP headers.
const LENGTH: u32 = 777;
const DATA: u32 = LENGTH - 14 - 20 - 8;
/// Bytes of a frame that hosts do not send, but count.
const FCS: usize = 4;
const KEY: &str = "2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b";

/// Firewall of IPv4 alone.
const FIREWALL: &str = "
table ip filter {
 chain forward {
  type filter hook forward priority 0; policy drop;
  ct state established,related accept
  iifname r0 accept
 }
}
";

/// Runs the program such that those frames are fatal.
fn run<'a>(namespace: &'a Namespace, arguments: &[&str]) -> Bywash<'a> {
    let fault = format!("BYWASH_FAULT_LENGTH={LENGTH}");
    let mut running = Bywash::spawn_by(&["env", &fault], namespace, arguments);
    running.process.wait_for_output("forwarding;", PATIENCE).unwrap();
    running
}

/// Checks that the program under test panics when asked to.
pub fn of_this_build() -> Result<(), Reason> {
    match std::env::var("BYWASH_UNDER_TEST") {
        Ok(other) => Err(Reason::new(format!("{other} is not a build for tests, and cannot be made to panic"))),
        Err(_) => Ok(()),
    }
}

fn levels(running: &Bywash) -> Vec<Value> {
    running.show(&["placement"]).as_array().unwrap().iter().map(|row| row["level"].clone()).collect()
}

fn health(running: &Bywash) -> (bool, String) {
    let shown = bywash(running.namespace(), &["show", "health", "--socket", running.socket().to_str().unwrap()]);
    (shown.status.success(), shown.stdout + &shown.stderr)
}

/// Waits until a worker has panicked for the `n`-th time.
fn wait_for_panic(running: &Bywash, n: usize) {
    let named = "worker 0 failed (a test asked for it): this is a bug; the worker is restarted in ";
    running.wait("the panic", |running| running.log().matches(named).count() == n);
}

fn ends_cleanly(mut running: Bywash) {
    running.assert_conserved();
    assert!(running.signalled(Signal::TERM).success(), "{}", running.log());
    let log = running.log();
    assert!(log.contains("cells are back in their pools") && !log.contains("are missing"), "{log}");
}

#[test]
fn the_kernel_has_the_ports_of_a_worker_that_panics_until_it_is_restarted() {
    require!(require_lab(), of_this_build());
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let running = run(lab.r(), &[&["--level", "user"], &lab.router_interfaces()[..]].concat());
    let reaches = |size: u32| Ping::to(lab.b().v4).count(3).size(size).run(&lab.a().ns).unwrap().received == 3;
    assert!(reaches(56));

    // The first time it is restarted at once.
    Ping::to(lab.b().v4).count(1).size(DATA).run(&lab.a().ns).unwrap();
    wait_for_panic(&running, 1);
    running.wait("the restart", |running| running.log().contains("worker 0 is restarted"));
    running.wait("the ports to be taken over again", |running| levels(running) == ["user", "user"]);
    running.wait("good health", |running| health(running).0);
    running.wait_to_count("r1", "tx_packets", 3, || assert!(reaches(56), "{}", running.log()));
    assert!(running.drops("r0", "worker-failed") > 0);

    // The second time it has to wait for a minute: meanwhile the kernel forwards everything.
    Ping::to(lab.b().v4).count(1).size(DATA).run(&lab.a().ns).unwrap();
    wait_for_panic(&running, 2);
    running.wait("the ports to go to the kernel", |running| levels(running) == ["kernel", "kernel"]);
    let why = "worker 0 failed (a test asked for it)";
    let (well, told) = health(&running);
    assert!(!well && told.contains(why), "{told}");
    assert_eq!(running.show(&["placement"])[0]["why"], why);
    assert!(reaches(56) && reaches(DATA), "{}", running.log());
    // Routes are still followed: publishing waits for no worker that has panicked.
    lab.r().ip(&["route", "add", "198.51.100.0/24", "via", &lab.b().v4.to_string()]).unwrap();
    running.wait("the route", |running| running.text(&["routes"]).contains("198.51.100.0/24"));
    ends_cleanly(running);
}

#[test]
fn established_connections_go_to_the_kernel_with_the_ports_and_come_back() {
    require!(require_lab(), has_tool("nft"), of_this_build());
    // Traffic control hands no frames to the worker.
    for level in &flows::LEVELS[..2] {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        lab.r().nft(FIREWALL).unwrap();
        let file = flows::router(level);
        let running = run(lab.r(), &["--config", file.path().to_str().unwrap()]);
        flows::wait_until_followed(&running);
        let mut tcp = flows::Ends::tcp(&lab, lab.b().v4.into());
        wait_for_flow(&running, &mut tcp, "TCP");
        // Packets of IPv6 are not kept for the kernel, and the worker asks for a neighbour that nobody is.
        let mut nobody = lab.b().v6.segments();
        nobody[7] = 0xbad;
        let panic = || {
            let ping = Ping::to(Ipv6Addr::from(nobody)).count(1).size(LENGTH - 14 - 40 - 8);
            assert_eq!(ping.wait(Duration::from_millis(10)).run(&lab.a().ns).unwrap().received, 0);
        };
        panic();
        wait_for_panic(&running, 1);
        running.wait("good health", |running| health(running).0);
        wait_for_flow(&running, &mut tcp, "TCP again");

        panic();
        wait_for_panic(&running, 2);
        running.wait("the ports to go to the kernel", |running| levels(running) == ["kernel", "kernel"]);
        let before = forwarded(&running);
        (0..20).for_each(|_| tcp.talk(b"by the kernel"));
        assert_eq!(forwarded(&running), before, "{level:?}: forwarded for a worker that has panicked");
        ends_cleanly(running);
    }
}

#[test]
fn a_switch_goes_on_after_a_panic_with_its_flows_and_addresses() {
    require!(require_lab(), of_this_build());
    let lab = switch::Lab::new(2);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bywash.toml");
    std::fs::write(&file, "mode = \"switch\"\n[[port]]\ninterface = \"p1\"\n[[port]]\ninterface = \"p2\"\n").unwrap();
    let running = run(&lab.switch, &["--config", file.to_str().unwrap()]);
    lab.assert_reaches(1, 2);
    let socket = running.socket();
    let flow = |arguments: &[&str]| {
        let (command, rest) = arguments.split_first().unwrap();
        let out = bywash(&lab.switch, &[&["flow", command, "--socket", socket.to_str().unwrap()], rest].concat());
        assert!(out.status.success(), "{}", out.stderr);
        out.stdout
    };
    flow(&["add", "priority=9,udp,actions=drop"]);

    Ping::to(switch::Lab::address(2)).count(1).size(DATA).run(lab.host(1)).unwrap();
    wait_for_panic(&running, 1);
    running.wait("good health", |running| health(running).0);
    lab.assert_reaches(1, 2);
    let dump = flow(&["dump"]);
    assert!(dump.contains("priority=9,udp"), "{dump}");
    ends_cleanly(running);
}

#[test]
fn a_cable_downstream_ends_with_the_panic() {
    require!(require_lab(), has_tool("python3"), of_this_build());
    let (headend, host) = (Namespace::new("c").unwrap(), Namespace::new("h").unwrap());
    Veth::new(End::new(&headend, "in"), End::new(&host, "e0")).create().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (file, capture) = (directory.path().join("bywash.toml"), directory.path().join("cable.pcap"));
    let text = format!(
        "mode = \"cmts\"\n[[port]]\ninterface = \"in\"\n[[port]]\nname = \"cable\"\nkind = \"pcap\"\n\
         link = \"docsis\"\nrecord = \"{}\"\n[[group]]\ninput = \"in\"\noutput = \"cable\"\nmodems = 3\n\
         key = \"{KEY}\"\niv = \"{KEY}\"\n",
        capture.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut running = run(&headend, &["--config", file.to_str().unwrap()]);
    send(&host, "e0", &[(1, packet([2, 0xca, 0xb1, 0, 0, 1], 80, 0, LENGTH as usize + FCS))]);
    let status = running.process.wait(PATIENCE).unwrap();
    let log = running.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains("worker 0 failed (a test asked for it): this is a bug; the kernel forwards from now on"),
        "{log}"
    );
    assert_detached(&headend);
}
