//! Comparison of a switch's XDP program with its worker: the same frames and the same flows.
//!
//! The kernel runs the program on each frame (BPF_PROG_TEST_RUN) before the worker gets it. If the program redirects a
//! frame to a port, the worker must send the frame out of that port only, with the same bytes. All other frames the
//! program must pass to the worker unchanged.

mod common;

use bywash_flow::app::CacheConfig;
use bywash_flow::control::BridgeConfig;
use bywash_flow::model::{FlowFilter, OfPort};
use bywash_flow::pipeline::Vlans;
use bywash_lab::{End, Namespace, Veth, require, require_lab, wait_until};
use bywash_port::af_xdp::{LinkInfo, Program, XdpAttach, XdpConfig, XdpDatapath};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use common::generate::Random;
use common::rig::{Rig, add, ports};
use std::net::SocketAddr;
use std::time::Duration;

const PORTS: u16 = 4;
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest frame that the ports' devices accept, in bytes.
const LONGEST: u32 = 400;

/// Returns a random frame from one host to another. The program can forward most of them.
fn frame(random: &mut Random) -> Vec<u8> {
    let mac = |n: u64| MacAddr([2, 0, 0, 0, 0, n as u8]);
    let (from, to) = (random.below(6), random.below(6));
    let (sport, dport) = (1000 + random.below(3), [53, 80, 443][random.below(3) as usize]);
    let address = |host: u64, port: u64, v6: bool| -> SocketAddr {
        let text = if v6 { format!("[fd00::{host}]:{port}") } else { format!("10.0.0.{host}:{port}") };
        text.parse().unwrap()
    };
    let v6 = random.one_in(3);
    let (src, dst) = (address(from + 1, sport, v6), address(to + 1, dport, v6));
    let most = if random.one_in(10) { 400 } else { 30 };
    let payload = vec![7; random.below(most) as usize];
    let mut packet = if random.one_in(2) { Packet::udp(src, dst) } else { Packet::tcp(src, dst) };
    if random.one_in(10) {
        packet = Packet::echo(src.ip(), dst.ip(), 1, 2);
    }
    packet = packet.macs(mac(from), mac(to)).payload(&payload).ttl([64, 255, 2, 1, 0, 128][random.below(6) as usize]);
    packet = packet.partial_checksum(random.one_in(8)).tos(random.below(3) as u8 * 4);
    if random.one_in(2) {
        packet = packet.vlan([10, 20, 30, 0, 0xa00a][random.below(5) as usize]);
    }
    if !v6 && random.one_in(12) {
        packet = packet.fragment([0x2000, 0x0004, 0x4000][random.below(3) as usize]);
    }
    if !v6 && random.one_in(15) {
        packet = packet.ip_options(&[1, 1, 1, 1]);
    }
    let mut frame = packet.build().unwrap();
    let last = frame.len() as u64;
    match random.below(30) {
        0 => frame[12..14].copy_from_slice(&[0x88, 0xa8]),
        1 => frame.truncate(14 + random.below(last - 14) as usize),
        2 => frame.resize(frame.len() + random.below(60) as usize, 0),
        3 => frame[0] = 1,
        4 | 5 => frame[random.below(last) as usize] ^= 1 << random.below(8),
        6 | 8 => frame.splice(12..12, [0x81, 0, 0, 10]).for_each(drop),
        9 => frame.splice(12..12, [0x88, 0xa8, 0, 20, 0x81, 0, 0, 10]).for_each(drop),
        7 => {
            let at = if frame[12] == 0x81 { 16 } else { 12 };
            frame.splice(at..at + 2, [0x88, 0x47, 0, 0, 0x11, 64]).for_each(drop);
        }
        _ => {}
    }
    frame
}

/// Ports with their XDP programs, and the switch.
struct Twin {
    datapath: XdpDatapath,
    programs: Vec<(Program, u32)>,
    rig: Rig,
    /// Frames forwarded by the program, their bytes as sent, and their bytes as received.
    driven: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// Number of forwarded frames that became shorter, kept their length and became longer.
    grown: [u64; 3],
}

impl Twin {
    fn new(vlans: [Vlans; PORTS as usize], vlan_limit: usize) -> Self {
        let datapath = XdpDatapath::load_switch(1).unwrap();
        assert_eq!(datapath.refused(), None);
        let flows = datapath.flows().unwrap();
        let mut programs = vec![];
        for id in 0..PORTS {
            let link = LinkInfo::query(&format!("p{id}")).unwrap();
            let mut program = Program::attach_to(&datapath, id, &link, XdpAttach::Native, None).unwrap();
            datapath.set_device(id, link.index).unwrap();
            let config = XdpConfig {
                enabled: true,
                max_frame: 2000,
                raw: true,
                forward: true,
                partial: true,
                ..XdpConfig::default()
            };
            program.set_config(config).unwrap();
            program.set_target(LONGEST);
            flows.serve(id, 0, 0);
            programs.push((program, link.index));
        }
        let config = BridgeConfig { learn_interval: Duration::ZERO, vlan_limit, ..BridgeConfig::default() };
        let mut rig = Rig::configured(PORTS, CacheConfig::default(), 32, Some(flows), config);
        let mut ports = ports(PORTS);
        for (port, vlans) in ports.iter_mut().zip(vlans) {
            (port.vlans, port.partial_checksums) = (vlans, true);
        }
        rig.control.set_ports(ports, &[], vec![]);
        Self { datapath, programs, rig, driven: 0, sent_bytes: 0, received_bytes: 0, grown: [0; 3] }
    }

    fn flows(&mut self, flows: &[&str]) {
        self.rig.control.delete(&FlowFilter::default(), false);
        add(&mut self.rig.control, flows);
    }

    fn tx_frames(&self) -> Vec<u64> {
        self.programs.iter().map(|(program, _)| program.counters().unwrap().tx_frames).collect()
    }

    /// Runs the program on a frame received on port `of`, counted from 1. Returns the egress port and the bytes sent,
    /// or `None` if the program leaves the frame to the worker.
    fn drive(&mut self, of: u16, frame: &[u8]) -> Option<(u16, Vec<u8>)> {
        let before = self.tx_frames();
        let tried = self.datapath.try_frame(self.programs[usize::from(of) - 1].1, frame).unwrap();
        if !tried.redirected() {
            // Without an AF_XDP socket, frames for the worker are passed to the kernel.
            assert!(tried.passed(), "{}", tried.verdict);
            assert_eq!(tried.bytes, frame, "the program changed a frame that it left to the worker");
            return None;
        }
        let after = self.tx_frames();
        let to = (0..PORTS).filter(|p| after[usize::from(*p)] > before[usize::from(*p)]).collect::<Vec<_>>();
        assert_eq!(to.len(), 1);
        self.driven += 1;
        self.sent_bytes += tried.bytes.len() as u64;
        self.received_bytes += frame.len() as u64;
        self.grown[(tried.bytes.len() + 4 - frame.len()) / 4] += 1;
        Some((to[0] + 1, tried.bytes))
    }

    fn compare(&mut self, of: u16, frame: &[u8]) {
        self.rig.control.poll();
        // The worker follows learned addresses in its next turn.
        self.rig.settle(2);
        let driven = self.drive(of, frame);
        let sent = self.rig.send(of, &[frame.to_vec()]);
        if let Some(driven) = driven {
            assert_eq!([driven], sent[..], "from {of}: {frame:02x?}");
        }
    }

    fn counted(&self) -> u64 {
        self.rig.control.flows(&FlowFilter::default()).iter().map(|flow| flow.packets).sum()
    }
}

fn lab() -> Namespace {
    let ns = Namespace::new("swdriver").unwrap();
    for id in 0..PORTS {
        Veth::new(End::new(&ns, format!("p{id}")), End::new(&ns, format!("q{id}"))).create().unwrap();
    }
    // Keep the kernel's own multicast frames out of the counters.
    ns.sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    ns
}

const BRIDGE: &[&str] = &["actions=NORMAL"];
const MANY: &[&str] = &[
    "priority=10,in_port=1,udp,tp_dst=53,actions=mod_dl_src:02:00:00:00:00:aa,mod_dl_dst:02:00:00:00:00:bb,output:2",
    "priority=9,in_port=1,tcp,actions=dec_ttl,output:3",
    "priority=9,in_port=1,tcp6,actions=dec_ttl,dec_ttl,output:3",
    "priority=8,in_port=2,dl_vlan=10,actions=strip_vlan,output:1",
    "priority=8,in_port=2,dl_vlan=20,actions=mod_vlan_vid:30,mod_vlan_pcp:3,dec_ttl,output:3",
    "priority=8,in_port=2,vlan_tci=0,actions=mod_vlan_vid:5,output:4",
    "priority=8,in_port=3,actions=push_vlan:0x88a8,mod_vlan_vid:7,dec_ttl,mod_dl_src:02:00:00:00:00:aa,output:1",
    "priority=8,in_port=4,dl_vlan=10,actions=strip_vlan,push_vlan:0x88a8,mod_vlan_vid:9,output:2",
    "priority=7,in_port=4,ip,nw_dst=10.0.0.3,actions=mod_nw_dst:10.9.9.9,output:2",
    "priority=6,in_port=4,udp,actions=output:1,output:2",
    "priority=5,in_port=4,tcp,tcp_flags=+ack,nw_tos=4,actions=output:1",
    "priority=5,in_port=1,actions=drop",
    "priority=1,actions=NORMAL",
];

#[test]
fn the_program_does_what_the_worker_does() {
    as_the_worker(1);
}

#[test]
fn the_program_leaves_two_tags_to_the_worker() {
    as_the_worker(2);
}

/// Compares the program with a worker that reads this number of tags.
fn as_the_worker(vlan_limit: usize) {
    require!(require_lab());
    let vlans = [Vlans::All, Vlans::Trunk(vec![10, 20, 0]), Vlans::Access(10), Vlans::All];
    lab()
        .enter(|| {
            let mut random = Random::new(0x5eed_0003);
            let mut twin = Twin::new(vlans, vlan_limit);
            // Every change of the flows must apply to the next frame.
            for flows in [BRIDGE, MANY, BRIDGE, MANY] {
                // Hosts mostly stay on their ports.
                let frames: Vec<_> = std::iter::repeat_with(|| {
                    let frame = frame(&mut random);
                    let host = if random.one_in(20) { random.below(100) } else { frame[11].into() };
                    (1 + (host % u64::from(PORTS)) as u16, frame)
                })
                .take(150)
                .collect();
                twin.flows(flows);
                for round in 0..3 {
                    let driven = twin.driven;
                    frames.iter().for_each(|(of, frame)| twin.compare(*of, frame));
                    println!("{} flows, round {round}: {} of 150 driven", flows.len(), twin.driven - driven);
                }
                let seen = twin.driven;
                // One more round by the driver alone: its frames must be credited to the flows as well.
                let before = wait_for(&twin, u64::MAX);
                frames.iter().for_each(|(of, frame)| drop(twin.drive(*of, frame)));
                wait_for(&twin, before + twin.driven - seen);
            }
            let [shorter, same, longer] = twin.grown;
            println!("{} driven: {same} as long, {shorter} shorter, {longer} longer", twin.driven);
            assert!(same > 200 && shorter > 10 && longer > 10, "too few frames of some kind");
            let counters: Vec<_> = twin.programs.iter().map(|(program, _)| program.counters().unwrap()).collect();
            let all = |of: fn(&bywash_port::af_xdp::XdpCounters) -> u64| counters.iter().map(of).sum::<u64>();
            assert_eq!(all(|c| c.tx_frames), twin.driven);
            assert_eq!((all(|c| c.rx_bytes), all(|c| c.tx_bytes)), (twin.received_bytes, twin.sent_bytes));
        })
        .unwrap();
}

/// Waits until the flows have counted `packets` packets, or, for `u64::MAX`, until the count is stable. Returns the
/// count.
fn wait_for(twin: &Twin, packets: u64) -> u64 {
    let mut last = twin.counted();
    wait_until("packets to be counted", PATIENCE, || {
        // The count grows with each pass of the worker over the driver's table.
        let before = std::mem::replace(&mut last, twin.counted());
        if packets == u64::MAX {
            twin.rig.settle(300);
            return before == last && last == twin.counted();
        }
        assert!(last <= packets, "{last} counted, {packets} sent");
        last == packets
    })
    .unwrap_or_else(|e| panic!("{e}: {last} of {packets}"));
    last
}

#[test]
fn what_the_driver_forwards_is_in_use() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::new([Vlans::All, Vlans::All, Vlans::All, Vlans::All], 1);
            twin.flows(BRIDGE);
            let packet = Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
            let packet = packet.macs(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])).build().unwrap();
            let mut back = packet.clone();
            back[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            wait_until("the driver to forward", PATIENCE, || {
                twin.compare(2, &back);
                twin.compare(1, &packet);
                twin.driven > 0
            })
            .unwrap();
            let age = |twin: &mut Twin| {
                twin.rig.control.poll();
                let macs = twin.rig.control.macs();
                macs.iter().find(|(_, mac, ..)| *mac == 0x0200_0000_0001).map(|(.., age)| *age)
            };
            let old = Duration::from_secs(3);
            wait_until("the address to be unused", PATIENCE, || age(&mut twin).unwrap() > old).unwrap();
            let (driven, sent) = (twin.driven, twin.drive(1, &packet));
            assert!(sent.is_some() && twin.driven == driven + 1);
            wait_until("the address to be in use", PATIENCE, || {
                twin.drive(1, &packet);
                age(&mut twin).unwrap() < old
            })
            .unwrap();
            // The host moves: the driver leaves its first frame from the new port to the worker, and then sends to the
            // new port.
            assert_eq!(twin.drive(3, &packet), None);
            twin.compare(3, &packet);
            twin.rig.control.poll();
            wait_until("the driver to know where it is", PATIENCE, || {
                twin.compare(2, &back);
                twin.drive(2, &back).is_some_and(|(to, _)| to == 3)
            })
            .unwrap();
            assert_eq!(twin.drive(1, &packet), None, "the driver forwarded from the port that the host has left");
        })
        .unwrap();
}

#[test]
fn a_flood_of_addresses_leaves_the_driver_alone() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::new([Vlans::All, Vlans::All, Vlans::All, Vlans::All], 1);
            twin.flows(BRIDGE);
            let mac = |n: u32| MacAddr([2, 0, (n >> 24) as u8, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
            let packet = |from: u32, to: u32| {
                let packet = Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
                packet.macs(mac(from), mac(to)).build().unwrap()
            };
            let (there, back) = (packet(1, 2), packet(2, 1));
            wait_until("the driver to forward", PATIENCE, || {
                twin.compare(1, &there);
                twin.compare(2, &back);
                twin.drive(1, &there).is_some() && twin.drive(2, &back).is_some()
            })
            .unwrap();
            let moved = twin.rig.control.moved;
            twin.rig.send(4, &[packet(5, 1)]);
            // 20,000 new sources behind port 3, to a host behind port 4: at each moment the driver still forwards
            // between ports 1 and 2.
            let (before, mut left) = (twin.rig.counter("revalidated"), 0);
            for hundred in 0..200 {
                let frames: Vec<_> = (0..100).map(|n| packet(0x0100_0000 + hundred * 100 + n, 5)).collect();
                twin.rig.send(3, &frames);
                twin.rig.control.poll();
                for (of, frame, to) in [(1, &there, 2), (2, &back, 1)] {
                    match twin.drive(of, frame) {
                        Some((port, _)) => assert_eq!(port, to),
                        None => left += 1,
                    }
                }
            }
            let again = twin.rig.counter("revalidated") - before;
            println!("{left} of 400 packets left the driver, {again} revalidations");
            assert_eq!(left, 0);
            let evicted = twin.rig.control.learned_on(OfPort(3)).1;
            assert_eq!((twin.rig.control.macs().len(), evicted > 10_000, twin.rig.control.moved), (8192, true, moved));
            // The host behind port 2 moves. The driver stops sending there long before the worker has come to this flow
            // among all others by itself.
            twin.rig.settle(100);
            twin.rig.send(4, std::slice::from_ref(&back));
            twin.rig.control.poll();
            twin.rig.settle(3);
            assert_eq!(twin.rig.control.moved, moved + 1);
            let driven = twin.drive(1, &there);
            assert!(driven.as_ref().is_none_or(|(to, _)| *to == 4), "sent to the port that the host has left");
            assert_eq!(twin.rig.send(1, std::slice::from_ref(&there)), [(4, there)]);
        })
        .unwrap();
}
