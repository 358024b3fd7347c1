//! VRRP by keepalived: two routers that share the gateway addresses of their hosts.
//!
//! ```text
//!          ┌─ p1 r1 p2 ─┐
//!   h1 ── lan1         lan2 ── h2
//!          └─ p1 r2 p2 ─┘
//! ```

use crate::daemons::{Router, join, open_to_all};
use crate::harness::{Bywash, PATIENCE, daemons};
use crate::load;
use bywash_lab::{Namespace, Ping, counters, has_tool, kernel_has, require, require_lab, wait_until};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Packets a second of the load.
const RATE: u32 = 2_000;

fn keepalived(n: usize, vmac: bool) -> String {
    let mut text = "global_defs {\n vrrp_version 3\n}\nvrrp_sync_group both {\n group {\n p1\n p2\n }\n}\n".to_owned();
    for (interface, net) in [("p1", 1), ("p2", 2)] {
        let more = if vmac { format!(" use_vmac v{interface}\n") } else { String::new() };
        write!(
            text,
            "vrrp_instance {interface} {{\n state BACKUP\n interface {interface}\n virtual_router_id 5{net}\n\
             priority {}\n advert_int 0.2\n{more} virtual_ipaddress {{\n 10.{net}.0.254/24\n }}\n}}\n",
            200 - 50 * n
        )
        .unwrap();
    }
    text
}

#[test]
fn another_router_takes_the_address_over() {
    fails_over(false);
}

#[test]
fn another_router_takes_the_virtual_mac_over() {
    fails_over(true);
}

fn fails_over(vmac: bool) {
    require!(require_lab(), has_tool("keepalived"), kernel_has("bridge"));
    if vmac {
        require!(kernel_has("macvlan"));
    }
    let _daemons = daemons();
    let directory = tempfile::tempdir().unwrap();
    open_to_all(directory.path());
    let lans = ["lan1", "lan2"].map(|name| {
        let ns = Namespace::new(name).unwrap();
        ns.ip_batch("link add br0 type bridge\nlink set br0 up\n").unwrap();
        ns
    });
    let plug = |lan: usize, ns: &Namespace, name: &str, address: &str, port: &str| {
        join(ns, (name, address), &lans[lan], (port, ""));
        lans[lan].ip(&["link", "set", port, "master", "br0"]).unwrap();
    };
    let hosts = ["h1", "h2"].map(|name| Namespace::new(name).unwrap());
    for (at, host) in hosts.iter().enumerate() {
        let net = at + 1;
        plug(at, host, "eth0", &format!("10.{net}.0.2/24"), "host");
        // User space gets no datagrams with unfinished checksums from generic XDP.
        host.offload("eth0", "tx", false).unwrap();
        host.ip_batch(&format!("link set lo up\nroute add default via 10.{net}.0.254\n")).unwrap();
    }
    hosts[1].ip(&["route", "add", "local", "44.0.0.0/8", "dev", "lo"]).unwrap();
    let routers = [1, 2].map(|n| {
        let router = Router::new(&format!("r{n}"), directory.path());
        plug(0, &router.ns, "p1", &format!("10.1.0.1{n}/24"), &format!("r{n}"));
        plug(1, &router.ns, "p2", &format!("10.2.0.1{n}/24"), &format!("r{n}"));
        router.ns.ip(&["route", "add", "44.0.0.0/8", "via", "10.2.0.2"]).unwrap();
        router
    });
    let running = [0, 1].map(|n| Bywash::run(&routers[n].ns, &["p1", "p2"]));
    for (router, n) in routers.iter().zip(1..) {
        router.start_keepalived(&keepalived(n, vmac));
    }
    let is_master = |n: usize| {
        let addresses = routers[n].ns.ip(&["-4", "-o", "address", "show"]).unwrap().stdout;
        ["10.1.0.254", "10.2.0.254"].iter().all(|address| addresses.contains(address))
    };
    let master = |n: usize| {
        wait_until("the master", PATIENCE, || is_master(n) && !is_master(1 - n))
            .unwrap_or_else(|e| panic!("{e}: {} {}", routers[n].daemons_say(), routers[1 - n].daemons_say()));
    };
    master(0);
    let ping = Ping::to(Ipv4Addr::new(10, 2, 0, 2)).count(5).interval(Duration::from_millis(10));
    let reached = || ping.clone().run(&hosts[0]).unwrap().received == 5;
    wait_until("the other host", PATIENCE, reached).unwrap();

    let forwarded = || [0, 1].map(|n| running[n].counter("p2", "tx_packets"));
    // With a virtual MAC address, which is a macvlan interface above the port, the kernel forwards.
    let share = |packets: u64| if vmac { 0 } else { packets };
    let before = forwarded();
    let set = |state: &str| {
        for lan in &lans {
            lan.ip(&["link", "set", "r1", state]).unwrap();
        }
    };
    // Waits until more packets of the load have arrived, by this router.
    let arrive_by = |n: usize| {
        let arrived = || counters(&hosts[1], "eth0").unwrap().rx_packets;
        let (had, sent) = (arrived(), forwarded()[n]);
        wait_until("packets to arrive", PATIENCE, || {
            arrived() >= had + u64::from(RATE) / 4 && forwarded()[n] >= sent + share(100)
        })
        .unwrap_or_else(|why| panic!("{why}: {} {}", running[n].text(&["drops"]), running[n].text(&["placement"])));
    };
    let ((), loss) = load::between(&hosts[0], &[], &hosts[1], RATE, || {
        arrive_by(0);
        set("down");
        master(1);
        wait_until("the other host", PATIENCE, reached).unwrap();
        arrive_by(1);
    });
    let after = forwarded();
    println!("the master gone: {} of {} packets lost, none for {:?}", loss.lost, loss.sent, loss.gap);
    assert!(loss.sent - loss.lost > u64::from(RATE) / 4, "{loss:?}");
    assert!((0..2).all(|n| after[n] - before[n] >= share(100)), "{before:?} {after:?}");

    // The first router comes back and takes over again, because it has the higher priority.
    let ((), loss) = load::between(&hosts[0], &[], &hosts[1], RATE, || {
        set("up");
        master(0);
        wait_until("the other host", PATIENCE, reached).unwrap();
        arrive_by(0);
    });
    println!("the master back: {} of {} packets lost, none for {:?}", loss.lost, loss.sent, loss.gap);
    assert!(forwarded()[0] - after[0] >= share(100), "{after:?} {:?}", forwarded());
    for running in running {
        running.stop();
    }
}
