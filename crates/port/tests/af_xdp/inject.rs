//! Frames returned to the kernel are received as if from the interface, whatever program is attached to it.

use crate::rig::{Net, R0, Wire, frame, ipv4, ipv6, pools, socket};
use bywash_lab::{patience, require, require_lab, wait_until};
use bywash_port::af_xdp::{AfXdpPort, Injector, LinkInfo, Program, Umem, XdpAttach, XdpConfig};
use std::time::{Duration, Instant};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

#[test]
fn the_kernel_forwards_what_is_handed_back() {
    require!(require_lab());
    let net = Net::new();
    for (path, on) in [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")] {
        net.router.enter(|| std::fs::write(format!("/proc/sys/net/{path}"), on)).unwrap().unwrap();
    }
    for to in ["10.0.2.9", "fd00:2::9"] {
        net.router.ip(&["neigh", "add", to, "lladdr", "02:00:00:00:02:02", "dev", "r1"]).unwrap();
    }
    let far = net.host.enter(|| Wire::open("h1")).unwrap();
    for how in [XdpAttach::Native, XdpAttach::Generic] {
        let pools = pools(1024);
        net.router
            .enter(|| {
                let umem = Umem::new(pools.arena());
                let link = LinkInfo::query("r0").unwrap();
                let mut program = Program::attach(&link, how).unwrap();
                let port = AfXdpPort::open(&umem, &link, 0, &socket()).unwrap();
                program.set_socket(0, port.fd().unwrap()).unwrap();
                program
                    .set_config(XdpConfig { enabled: true, mac: link.mac, max_frame: 1514, ..XdpConfig::default() })
                    .unwrap();
                let mut injector = Injector::new().unwrap();
                let v4 = frame(R0, IPV4, &valid4(ipv4([10, 0, 1, 2], [10, 0, 2, 9], 7)));
                let v6 = frame(R0, IPV6, &ipv6("fd00:1::2", "fd00:2::9", 17));
                for (ethertype, sent, ttl, dst) in [(IPV4, &v4, 22, 30..34), (IPV6, &v6, 21, 38..54)] {
                    injector.inject(link.index, sent, true).unwrap();
                    let came = loop {
                        let came = far.recv(ethertype).expect("it arrives");
                        if came.get(dst.clone()) == sent.get(dst.clone()) {
                            break came;
                        }
                    };
                    assert_eq!(came[ttl], sent[ttl] - 1, "{how:?}: forwarded, not copied");
                }
                let counters = program.counters().unwrap();
                let returned = if how == XdpAttach::Generic { 2 } else { 0 };
                assert_eq!(counters.get("pass_returned"), returned, "{how:?}: {counters:?}");

                let start = Instant::now();
                const MANY: u32 = 500;
                for _ in 0..MANY {
                    injector.inject(link.index, &v4, true).unwrap();
                }
                println!("{how:?}: {:?} a packet", start.elapsed() / MANY);
                assert!(injector.inject(link.index, &v4[..13], true).is_err(), "no Ethernet header");
                assert!(injector.inject(0x7fff_ffff, &v4, true).is_err(), "no such interface");
                assert!(injector.inject(0, &v4, true).is_err(), "no interface");
            })
            .unwrap();
    }
}

/// A port may join a bridge in the moment in which a worker returns a packet by it.
#[test]
fn a_bridge_does_not_learn_from_what_is_handed_back() {
    require!(require_lab());
    let net = Net::new();
    for command in ["link add br0 type bridge", "link set r0 master br0", "link set br0 up"] {
        net.router.ip(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    // The host sends frames of its own, from another address.
    let learned = || {
        let fdb = net.router.run(&["bridge", "fdb", "show", "br", "br0", "dynamic"]).unwrap();
        fdb.stdout.lines().filter(|line| line.contains("02:00:00:00:07:08")).count()
    };
    net.router
        .enter(|| {
            let (index, mut injector) = (LinkInfo::query("r0").unwrap().index, Injector::new().unwrap());
            // Neither is the member's address by then: for that, a bridge has an entry of its own, and learns none.
            let mut sent = frame([2, 0, 0, 0, 7, 7], IPV4, &valid4(ipv4([10, 0, 1, 2], [10, 0, 2, 9], 7)));
            sent[6..12].copy_from_slice(&[2, 0, 0, 0, 7, 8]);
            injector.inject(index, &sent, true).unwrap();
            assert_eq!(learned(), 0);
            // The member forwards, and learns, once the bridge knows that its link is up.
            wait_until(
                "an unmarked frame, as if received again, to be learned",
                patience(Duration::from_secs(60)),
                || {
                    injector.inject(index, &sent, false).unwrap();
                    learned() == 1
                },
            )
            .unwrap();
            net.router.run(&["bridge", "fdb", "del", "02:00:00:00:07:08", "dev", "r0", "master"]).unwrap();
            injector.inject(index, &sent, true).unwrap();
            assert_eq!(learned(), 0, "marked, by a member that learns");
        })
        .unwrap();
}

/// Returns the packet with its header checksum filled in.
fn valid4(mut packet: Vec<u8>) -> Vec<u8> {
    packet[10..12].fill(0);
    let mut sum: u32 = packet[..20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}
