//! Address learning of the bridge.

mod common;

use bywash_flow::app::CacheConfig;
use bywash_flow::model::OfPort;
use bywash_flow::syntax;
use common::rig::{Rig, ports};

const HOST: u64 = 0x0200_0000_0001;

fn frame() -> Vec<u8> {
    frame_from(HOST)
}

/// Returns a broadcast frame.
fn frame_from(address: u64) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(&address.to_be_bytes()[2..]);
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    frame
}

/// Returns a frame from one address to another.
fn between(from: u64, to: u64) -> Vec<u8> {
    let mut frame = to.to_be_bytes()[2..].to_vec();
    frame.extend(&frame_from(from)[6..]);
    frame
}

/// Creates a switch with `n` ports, the given actions for all packets, and no megaflow that idles out.
fn switch(n: u16, actions: &str) -> Rig {
    let mut rig = Rig::new(n, CacheConfig { idle_s: 3600, ..CacheConfig::default() }, 32);
    rig.control.add(syntax::flow(&format!("actions={actions}"), &|_| None).unwrap()).unwrap();
    rig.control.commit();
    rig
}

fn bridge() -> Rig {
    switch(3, "NORMAL")
}

/// Returns the ports that a packet leaves by, once all addresses seen so far have been processed.
fn way(rig: &mut Rig, of: u16, from: u64, to: u64) -> Vec<u16> {
    rig.control.poll();
    let mut ports: Vec<u16> = rig.send(of, &[between(from, to)]).iter().map(|(port, _)| *port).collect();
    ports.sort_unstable();
    ports
}

/// Returns the port of the host after all address reports have been processed.
fn port(rig: &mut Rig) -> Option<OfPort> {
    rig.control.poll();
    rig.control.macs().iter().find(|(_, mac, ..)| *mac == HOST).map(|(_, _, port, _)| *port)
}

#[test]
fn an_address_is_where_it_was_last_seen() {
    let mut rig = bridge();
    for round in 0..3 {
        for of in [1, 2] {
            // A cached path learns addresses like an uncached one.
            assert_eq!(rig.send(of, &[frame()]).len(), 2);
            assert_eq!(port(&mut rig), Some(OfPort(of)), "round {round}");
            // Sweeping the megaflow cached for the other port must not move the address.
            for _ in 0..3 {
                rig.settle(10);
                assert_eq!(port(&mut rig), Some(OfPort(of)), "round {round}");
            }
        }
    }
    assert_eq!(rig.control.moved, 5);
}

/// OVS's NORMAL drops frames to these addresses, some of which are not among those that IEEE 802.1D reserves.
#[test]
fn frames_of_control_protocols_are_not_bridged() {
    let mut rig = bridge();
    let nobody: [u16; 0] = [];
    for address in [
        0x0180_c200_0000u64,
        0x0180_c200_000f,
        0x00e0_2b00_0000,
        0x00e0_2b00_0004,
        0x00e0_2b00_0006,
        0x0100_0c00_0000,
        0x0100_0ccc_ccc0,
        0x0100_0ccc_ccc7,
        0x0100_0ccc_cccc,
        0x0100_0ccc_cccd,
        0x0100_0ccd_cdcd,
    ] {
        assert_eq!(way(&mut rig, 1, HOST, address), nobody, "{address:012x}");
    }
    for address in [0x0180_c200_0010u64, 0x00e0_2b00_0005, 0x0100_0ccc_ccc8, 0x0100_0ccc_cccb, 0x0100_0ccc_ccce] {
        assert_eq!(way(&mut rig, 1, HOST, address), [2, 3], "{address:012x}");
    }
}

#[test]
fn a_port_that_goes_down_is_forgotten() {
    let mut rig = bridge();
    rig.send(1, &[frame()]);
    assert_eq!(port(&mut rig), Some(OfPort(1)));
    rig.control.set_port_up(OfPort(1), false);
    for _ in 0..3 {
        rig.settle(10);
        assert_eq!(port(&mut rig), None);
    }
    rig.control.set_port_up(OfPort(1), true);
    rig.send(1, &[frame()]);
    assert_eq!(port(&mut rig), Some(OfPort(1)));
}

/// Returns the address of host `n` behind a port.
fn host(port: u16, n: u64) -> u64 {
    0x0200_0000_0000 | u64::from(port) << 32 | n
}

/// Sends one packet from each of these hosts behind port 1 to a host behind port 2, and has their addresses processed.
fn flood(rig: &mut Rig, hosts: std::ops::Range<u64>) {
    let frames: Vec<Vec<u8>> = hosts.map(|n| between(host(1, n), host(2, 0))).collect();
    // Each worker queues 256 reports.
    for some in frames.chunks(200) {
        rig.send(1, some);
        rig.control.poll();
    }
}

#[test]
fn a_flood_of_addresses_costs_only_its_own_port() {
    let mut rig = switch(8, "NORMAL");
    // 100 hosts behind each of the other ports, and an established flow between two of them.
    for port in 2..=8 {
        let hosts: Vec<Vec<u8>> = (0..100).map(|n| frame_from(host(port, n))).collect();
        rig.send(port, &hosts);
        rig.control.poll();
    }
    assert_eq!(way(&mut rig, 2, host(2, 0), host(3, 0)), [3]);
    // While there is room, no megaflow is looked at again.
    let before = rig.counter("revalidated");
    let room = 8192 - 700;
    flood(&mut rig, 0..room);
    rig.settle(100);
    assert_eq!(way(&mut rig, 2, host(2, 0), host(3, 0)), [3]);
    let (learned, evicted) = rig.control.learned_on(OfPort(1));
    assert!(learned as u64 > room / 2 && evicted == 0, "{learned} learned, {evicted} evicted");
    assert_eq!(rig.counter("revalidated"), before);
    // Then each new address takes the place of another of its port: only this one's megaflow is looked at again.
    flood(&mut rig, room..20_000);
    rig.settle(10_000);
    assert_eq!(way(&mut rig, 2, host(2, 0), host(3, 0)), [3]);
    let (learned, evicted) = rig.control.learned_on(OfPort(1));
    assert!(learned as u64 == room && evicted > 5000, "{learned} learned, {evicted} evicted");
    for port in 2..=8 {
        assert_eq!(rig.control.learned_on(OfPort(port)), (100, 0), "port {port}");
    }
    let again = rig.counter("revalidated") - before;
    println!("{again} revalidations, {evicted} addresses evicted");
    assert!(again <= evicted);
    // With a limit of its own, a port loses more.
    let mut limited = ports(8);
    limited[0].macs = Some(50);
    rig.control.set_ports(limited, &[], vec![]);
    flood(&mut rig, 20_000..20_001);
    assert_eq!(rig.control.learned_on(OfPort(1)).0, 50);
    assert_eq!(way(&mut rig, 3, host(3, 0), host(1, 20_000)), [1]);
}

#[test]
fn megaflows_follow_the_addresses_they_depend_on() {
    let mut rig = bridge();
    let (a, b) = (host(1, 0), host(2, 0));
    for _ in 0..3 {
        assert_eq!(way(&mut rig, 1, a, b), [2, 3], "not learned yet");
    }
    assert_eq!(way(&mut rig, 2, b, a), [1]);
    let changed = rig.counter("changed");
    assert_eq!(way(&mut rig, 1, a, b), [2], "learned");
    assert_eq!(rig.counter("changed"), changed + 1);
    // The host moves.
    assert_eq!(way(&mut rig, 3, b, a), [1]);
    assert_eq!(way(&mut rig, 1, a, b), [3], "moved");
    assert_eq!(way(&mut rig, 2, b, a), [1]);
    assert_eq!(way(&mut rig, 1, a, b), [2], "moved back");
    // More addresses are forgotten at once than workers are told about one by one.
    let others: Vec<Vec<u8>> = (1..3000).map(|n| between(host(3, n), b)).collect();
    for some in others.chunks(200) {
        rig.send(3, some);
        rig.control.poll();
    }
    assert_eq!(rig.control.flush_macs(None), 3001);
    rig.settle(200);
    assert_eq!(way(&mut rig, 1, a, b), [2, 3], "forgotten");
    assert_eq!(way(&mut rig, 3, host(3, 1), a), [1], "learned again");
}

#[test]
fn a_megaflow_may_depend_on_several_addresses() {
    let mut rig = switch(4, "NORMAL,mod_dl_dst:02:04:00:00:00:00,NORMAL");
    let (a, b, third) = (host(1, 0), host(2, 0), host(4, 0));
    assert_eq!(way(&mut rig, 1, a, b), [2, 2, 3, 3, 4, 4]);
    rig.send(2, &[between(b, a)]);
    assert_eq!(way(&mut rig, 1, a, b), [2, 2, 3, 4], "the first is learned");
    rig.send(4, &[between(third, a)]);
    assert_eq!(way(&mut rig, 1, a, b), [2, 4], "both are learned");
    rig.send(3, &[between(third, a)]);
    assert_eq!(way(&mut rig, 1, a, b), [2, 3], "the second has moved");
}

#[test]
fn addresses_that_could_not_be_reported_are_reported_later() {
    let mut rig = bridge();
    let frames: Vec<Vec<u8>> = (0..600).map(|n| frame_from(host(1, n))).collect();
    rig.send(1, &frames);
    rig.control.poll();
    let first = rig.control.macs().len();
    assert!(first < 600 && rig.counter("learn_later") > 0, "{first} learned at once: the queue has become longer");
    // The packets take the cached path now.
    let misses = rig.counter("misses");
    while rig.control.macs().len() < 600 {
        rig.send(1, &frames);
        rig.settle(100);
        rig.control.poll();
    }
    assert_eq!(rig.counter("misses"), misses);
}
