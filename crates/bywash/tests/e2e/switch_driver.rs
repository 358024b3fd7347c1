//! A switch's ports at level `driver`: the XDP program forwards by the flows that workers give it, until they change.

use crate::harness::Bywash;
use crate::raw::{Ear, send};
use crate::switch::{Lab, flow_ok};
use bywash_lab::{Transfer, require, require_lab};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const DRIVER: &str = "level = \"driver\"";

/// Creates a lab in which the driver can forward all frames: the hosts' devices accept redirected ones, and the hosts
/// complete their checksums. Other frames are left to user space.
pub fn lab(hosts: usize) -> Lab {
    let lab = Lab::new(hosts);
    for n in 1..=hosts {
        lab.host(n).offload("e0", "rx-gro", true).unwrap();
        lab.host(n).offload("e0", "tx-checksum-ip-generic", false).unwrap();
    }
    lab
}

/// Returns the number of frames that a port received and the XDP program forwarded.
pub fn driven(switch: &Bywash<'_>, port: &str) -> u64 {
    let placement = switch.show(&["placement"]);
    let row = placement.as_array().unwrap().iter().find(|row| row["port"] == port).unwrap();
    assert_eq!(row["level"], "driver", "{row}");
    row["frames"]["driver"].as_u64().unwrap()
}

/// Returns a UDP packet without a checksum, with a tag unless `vlan` is 0.
pub fn udp(to: u8, from: u8, vlan: u16) -> Vec<u8> {
    let mut frame = [[2, 0, 0, 0, 7, to], [2, 0, 0, 0, 7, from]].concat();
    if vlan > 0 {
        frame.extend([0x81, 0]);
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend([
        8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, from, 10, 9, 0, to, 0, 7, 0, 8, 0, 26, 0, 0,
    ]);
    frame.resize(frame.len() + 18, from);
    frame
}

/// Has a host send the frame again and again until the XDP program forwards it.
pub fn send_until_driven(switch: &Bywash<'_>, lab: &Lab, host: usize, frame: &[u8]) {
    let port = format!("p{host}");
    let before = driven(switch, &port);
    switch.wait("the driver to forward", |switch| {
        send(lab.host(host), "e0", &[(20, frame.to_vec())]);
        driven(switch, &port) >= before + 20
    });
}

#[test]
fn hosts_talk_through_the_driver() {
    require!(require_lab());
    let lab = lab(2);
    let switch = lab.run(&[DRIVER, DRIVER], "");
    lab.assert_reaches(1, 2);
    for (from, to) in [(1, 2), (2, 1)] {
        let report = Transfer::new(5_000_000).run(lab.host(from), lab.host(to), Lab::address(to)).unwrap();
        assert!(report.is_intact(), "{report:?}");
        lab.assert_reaches(from, to);
    }
    let (first, second) = (driven(&switch, "p1"), driven(&switch, "p2"));
    println!("forwarded by the driver: {first} from p1, {second} from p2");
    assert!(first > 1000 && second > 1000);
    // Each frame is counted by its port and by its flow, at either level.
    switch.wait("equal counters of ports and flows", |switch| {
        let received = switch.counter("p1", "rx_packets") + switch.counter("p2", "rx_packets");
        let bytes = switch.counter("p1", "rx_bytes") + switch.counter("p2", "rx_bytes");
        let flows = switch.show(&["flows"]);
        received > first + second && flows[0]["n_packets"] == received && flows[0]["n_bytes"] == bytes
    });
    switch.wait("as many hits as frames", |switch| {
        let hits = switch.show(&["caches"])["workers"][0]["driver_hits"].as_u64().unwrap();
        hits == driven(switch, "p1") + driven(switch, "p2")
    });
    switch.stop();
}

#[test]
fn vlans_and_a_moved_address_in_the_driver() {
    require!(require_lab());
    let lab = lab(4);
    let trunk = format!("{DRIVER}\ntrunks = [10, 20]");
    let access = format!("{DRIVER}\ntag = 10");
    let switch = lab.run(&[&access, &access, &trunk, &access], "");
    let ears: Vec<Ear> = (1..=4).map(|n| Ear::at(lab.host(n), "e0")).collect();
    let at = |switch: &Bywash<'_>, mac: u8, port: &str| {
        let (fdb, mac) = (switch.show(&["fdb"]), format!("02:00:00:00:07:{mac:02x}"));
        fdb.as_array().unwrap().iter().any(|row| row["mac"] == mac && row["port"] == port && row["vlan"] == 10)
    };
    // A broadcast makes the switch learn the address of its sender.
    let hello = |host: usize, mac: u8, vlan: u16| {
        let mut frame = udp(0, mac, vlan);
        frame[..6].fill(0xff);
        send(lab.host(host), "e0", &[(1, frame)]);
        switch.wait("the address to be learned", |switch| at(switch, mac, &format!("p{host}")));
    };
    hello(1, 0x21, 0);
    hello(3, 0x23, 10);
    // Frames from the access port to the trunk get a tag, and those back lose it.
    send_until_driven(&switch, &lab, 1, &udp(0x23, 0x21, 0));
    send_until_driven(&switch, &lab, 3, &udp(0x21, 0x23, 10));
    ears[2].wait(20, |frame| *frame == udp(0x23, 0x21, 10)[..]);
    ears[0].wait(20, |frame| *frame == udp(0x21, 0x23, 0)[..]);
    // A host moves from p2 to p4.
    hello(2, 0x29, 0);
    let wanted = udp(0x29, 0x21, 0);
    send_until_driven(&switch, &lab, 1, &wanted);
    hello(4, 0x29, 0);
    // Frames sent to p2 before arrive before the broadcast.
    ears[1].wait(1, |frame| frame[..12] == [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 7, 0x29]);
    let before = ears[1].heard().len();
    send_until_driven(&switch, &lab, 1, &wanted);
    ears[3].wait(20, |frame| *frame == wanted[..]);
    let later = ears[1].heard();
    assert!(!later[before..].contains(&wanted), "a frame to where the address was");
    // User space handles, and drops, frames of another VLAN.
    send(lab.host(3), "e0", &[(3, udp(0x21, 0x23, 20))]);
    send(lab.host(1), "e0", &[(3, udp(0x23, 0x21, 20))]);
    switch.wait("a tag to be refused", |switch| switch.drops("p1", "bridge-filtered") == 3);
    drop(ears);
    switch.stop();
}

/// Sends numbered packets from host 1 to host 2's IP address until `stop`. The number of packets sent is in `sent`.
fn numbered(lab: &Lab, sent: &AtomicU64, stop: &AtomicBool) {
    let socket = lab.host(1).enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let to = SocketAddr::from((Lab::address(2), 7007));
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..4 {
            // `sent` includes the packet before it is sent.
            let n = sent.fetch_add(1, Ordering::SeqCst);
            let _ = socket.send_to(&n.to_be_bytes(), to);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn no_frame_goes_by_a_flow_that_was_changed() {
    require!(require_lab());
    let lab = lab(3);
    let switch = lab.run(&[DRIVER, DRIVER, DRIVER], "");
    flow_ok(&switch, &["add", "priority=9,udp,in_port=1,actions=output:2"]);
    lab.host(1).ip(&["neigh", "replace", "10.7.0.2", "lladdr", "02:00:00:00:07:02", "dev", "e0"]).unwrap();
    let ears = [2, 3].map(|n| Ear::at(lab.host(n), "e0"));
    let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    // For each change the first number sent after it, and a late one sent before the next change was requested.
    let mut spans: Vec<(u64, u64)> = vec![];
    std::thread::scope(|scope| {
        scope.spawn(|| numbered(&lab, &sent, &stop));
        let _stops = crate::load::Stops(&stop);
        for round in 0..8 {
            let to = 2 + round % 2;
            flow_ok(&switch, &["mod", &format!("priority=9,udp,in_port=1,actions=output:{to}")]);
            let first = sent.load(Ordering::SeqCst);
            let before = driven(&switch, "p1");
            switch.wait("the driver to forward by the flow", |switch| driven(switch, "p1") > before + 30);
            // Packets sent until here are handled by this flow once the worker has received all that the program left
            // to it.
            let last = sent.load(Ordering::SeqCst) - 1;
            let left: u64 = ["p1", "p2", "p3"].iter().map(|port| switch.verdicts(port, "to_user")).sum();
            switch.wait("the worker to catch up", |switch| {
                let workers = switch.show(&["workers"]);
                let bursts = workers[0]["rx_bursts"].as_array().unwrap().iter().zip(0..);
                bursts.map(|(times, size)| times.as_u64().unwrap() * size).sum::<u64>() >= left
            });
            spans.push((first, last));
        }
    });
    let number = |frame: &[u8]| {
        let ours = frame.len() >= 50 && frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == [0x1b, 0x5f];
        ours.then(|| u64::from_be_bytes(*frame[42..].first_chunk().unwrap()))
    };
    ears[1].wait(30, |frame| number(frame) >= Some(spans[7].0));
    // A busy machine may keep an ear from listening for a while.
    for (round, span) in spans.iter().enumerate() {
        ears[round % 2].wait(1, |frame| number(frame).is_some_and(|n| (span.0..span.1).contains(&n)));
    }
    for (ear, heard) in ears.iter().enumerate() {
        let numbers: Vec<u64> = heard.heard().iter().filter_map(|frame| number(frame)).collect();
        for (round, span) in spans.iter().enumerate() {
            let inside = numbers.iter().filter(|n| (span.0..span.1).contains(n)).count();
            assert_eq!(inside > 0, round % 2 == ear, "host {} heard {inside} of round {round}: {span:?}", ear + 2);
        }
    }
    switch.wait("packets to be counted", |switch| {
        let flows = switch.show(&["flows", "udp"]);
        flows[0]["n_packets"].as_u64() >= Some(sent.load(Ordering::SeqCst))
    });
    drop(ears);
    switch.stop();
}
