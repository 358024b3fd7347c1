//! Routes of the kernel, followed while the application runs, with the kernel's share by either way.

use crate::lab::{Lab, datagrams};
use bywash_engine::{App, Context, DropReason, PortId};
use bywash_frame::Batch;
use bywash_kit::tables::{Kind, Tables};
use bywash_kit::{Kit, Routes, Running};
use bywash_lab::{Ping, Transfer, require, wait_until};
use std::net::Ipv4Addr;
use std::time::Duration;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
/// Address of host b on no link, to which a route is added.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// Forwards by the routes, without changing the TTL. The port to the kernel follows each port.
struct Router {
    routes: Routes,
}

/// Returns the port to send a frame on; `None` if it is not for this router.
fn route(tables: &Tables, from: PortId, frame: &mut [u8]) -> Option<PortId> {
    if !frame.starts_with(&tables.ports[usize::from(from.0)].mac) {
        return None;
    }
    let hop = tables.next_hop(frame);
    if hop.kind != Kind::Forward {
        return Some(PortId(from.0 + 1));
    }
    frame[..12].copy_from_slice(&hop.macs);
    Some(hop.port)
}

impl App for Router {
    fn stages(&self) -> &'static [&'static str] {
        &["forward"]
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let (tables, mut forwarded) = (self.routes.load(cx.reader), 0);
        for mut frame in batch.drain() {
            match route(tables, from, cx.bufs.arena().data_mut(&mut frame)) {
                Some(to) => {
                    forwarded += usize::from(to.0.is_multiple_of(2));
                    cx.send(from, to, frame);
                }
                None => cx.drop(from, DropReason::Filtered, frame),
            }
        }
        cx.stage(0, forwarded);
    }
}

/// Creates the lab with hosts in subnets of their own.
fn lab() -> Lab {
    let lab = Lab::new([2, 2]);
    for (host, interface, old, new, gateway) in
        [(&lab.a, "a0", Lab::A, A, "10.0.1.1"), (&lab.b, "b0", Lab::B, B, "10.0.2.1")]
    {
        let lines = format!(
            "address del {old}/24 dev {interface}\naddress add {new}/24 dev {interface}\nroute add default via {gateway}\n"
        );
        host.ip_batch(&lines).unwrap();
    }
    lab.b.ip(&["address", "add", "10.9.9.9/32", "dev", "b0"]).unwrap();
    lab.r.sysctl("net/ipv4/ip_forward", "1").unwrap();
    lab
}

fn addresses(lab: &Lab, interfaces: [&str; 2]) {
    let [one, other] = interfaces;
    lab.r.ip_batch(&format!("address add 10.0.1.1/24 dev {one}\naddress add 10.0.2.1/24 dev {other}\n")).unwrap();
}

fn pings(lab: &Lab, to: Ipv4Addr) -> bool {
    Ping::to(to).count(1).run(&lab.a).is_ok_and(|report| report.received == 1)
}

/// Checks that the application forwards and follows the routes, and that the kernel has its share.
fn check(lab: &Lab, running: Running, by: &str) {
    let limit = Duration::from_secs(60);
    // The first packets go by the kernel, until it has resolved the neighbour.
    wait_until("a ping to b", limit, || pings(lab, B)).unwrap();
    // The stages `rx` and `tx` come first.
    let forwarded = || running.counters().map(|worker| worker.stages[2].packets.get()).sum::<u64>();
    let by_application = |to| {
        let before = forwarded();
        pings(lab, to) && forwarded() >= before + 2
    };
    wait_until("a ping that the kernel does not forward", limit, || by_application(B)).unwrap();
    let before = forwarded();
    assert_eq!(datagrams(&lab.a, &lab.b, B, 64), 64, "{by}");
    assert!(forwarded() >= before + 64, "{by}: the kernel forwards");
    assert!(Transfer::new(1 << 20).run(&lab.a, &lab.b, B).unwrap().is_intact(), "{by}");
    assert!(Transfer::new(1 << 20).run(&lab.b, &lab.a, A).unwrap().is_intact(), "{by}");
    assert_eq!(Ping::to(ROUTER).count(5).run(&lab.a).unwrap().received, 5, "{by}");
    assert!(Transfer::new(1 << 20).run(&lab.a, &lab.r, ROUTER).unwrap().is_intact(), "{by}");

    assert!(!pings(lab, FAR), "{by}");
    lab.r.ip(&["route", "add", "10.9.9.9/32", "via", "10.0.2.2"]).unwrap();
    wait_until("a ping by the new route", limit, || by_application(FAR)).unwrap();
    lab.r.ip(&["route", "replace", "unreachable", "10.9.9.9/32"]).unwrap();
    wait_until("no ping after the change", limit, || !pings(lab, FAR)).unwrap();
    assert!(!running.failed(), "{by}");
    running.stop().unwrap();
}

#[test]
fn routes_lead_to_the_ports_of_the_twins() {
    require!(bywash_lab::require_lab());
    let lab = lab();
    let mut kit = Kit::new(65_536).unwrap();
    kit.workers(2);
    let routes = lab.r.enter(|| {
        for (interface, twin) in [("r0", "k0"), ("r1", "k1")] {
            let port = kit.interface(interface).unwrap();
            assert_eq!(kit.twin(port, twin).unwrap(), PortId(port.0 + 1));
        }
        kit.routes().unwrap()
    });
    let routes = routes.unwrap();
    let running = kit.start_with(|_| Router { routes: routes.clone() }).unwrap();
    addresses(&lab, ["k0", "k1"]);
    check(&lab, running, "twins");
}

#[test]
fn the_kernel_keeps_its_packets_on_shared_interfaces() {
    require!(bywash_lab::require_lab());
    let lab = lab();
    addresses(&lab, ["r0", "r1"]);
    let mut kit = Kit::new(65_536).unwrap();
    kit.workers(2);
    let running = lab.r.enter(|| {
        for interface in ["r0", "r1"] {
            let (port, kernel) = kit.shared_interface(interface).unwrap();
            assert_eq!(kernel, PortId(port.0 + 1));
        }
        let routes = kit.routes().unwrap();
        kit.start_with(|_| Router { routes: routes.clone() }).unwrap()
    });
    check(&lab, running.unwrap(), "shared");
}
