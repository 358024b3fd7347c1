//! Sending by injection instead of through the socket.

use crate::rig::{H0, Net, R1, Wire};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_lab::{End, Namespace, Veth, has_tool, patience, require, require_lab, wait_until};
use bywash_port::af_xdp::{AfXdpPort, Bare, LinkInfo, RingSizes, SocketConfig, Transmit, Umem};
use bywash_port::{Port, PortState};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::sync::Arc;
use std::time::Duration;

/// EtherType for local experiments (IEEE 802); other traffic on the link has other types.
const ETHERTYPE: u16 = 0x88b5;
const MTU: u32 = 3800;

fn big_pools() -> Arc<PoolSet> {
    let arena = Arena::new(ArenaConfig { cells: 1024, cell: 4096, ..Default::default() }).unwrap();
    PoolSet::new(arena, &[PoolConfig::stack("main", 1024)]).unwrap()
}

fn open(umem: &Arc<Umem>, transmit: Transmit) -> AfXdpPort {
    open_queue(umem, transmit, 0)
}

fn open_queue(umem: &Arc<Umem>, transmit: Transmit, queue: u32) -> AfXdpPort {
    let link = LinkInfo::query("r1").unwrap();
    let rings = RingSizes::all(128);
    AfXdpPort::open(umem, &link, queue, &SocketConfig { transmit, rings, ..Default::default() }).unwrap()
}

fn detail(port: &AfXdpPort, name: &str) -> Option<String> {
    port.details().into_iter().find(|(n, _)| *n == name).map(|(_, value)| value)
}

/// Returns a frame of this length whose content differs for every number.
fn numbered(n: usize, len: usize) -> Vec<u8> {
    let mut frame = [H0, R1].concat();
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend((0..len - 14).map(|i| (n * 31 + i) as u8));
    frame
}

/// Sends frames on a port as a worker does.
fn send(port: &mut AfXdpPort, bufs: &mut Buffers, frames: &[Vec<u8>]) {
    let mut batch = Batch::new();
    for chunk in frames.chunks(32) {
        for bytes in chunk {
            let mut frame = bufs.alloc_one().expect("a buffer");
            assert!(bufs.arena().write(&mut frame, bytes));
            batch.push(frame).unwrap();
        }
        assert_eq!(port.tx_burst(bufs, &mut batch), chunk.len());
        assert!(batch.is_empty());
        port.housekeep(bufs);
    }
    port.housekeep(bufs);
}

#[test]
fn frames_of_any_length_arrive_whole_and_in_order() {
    require!(require_lab());
    let net = Net::new();
    let mtu = MTU.to_string();
    net.router.ip(&["link", "set", "r1", "mtu", &mtu]).unwrap();
    net.host.ip(&["link", "set", "h1", "mtu", &mtu]).unwrap();
    let far = net.host.enter(|| Wire::open("h1")).unwrap();
    let pools = big_pools();
    net.with_buffers(&pools, |umem, mut bufs| {
        let mut port = open(&umem, Transmit::Inject);
        let (mut sent, mut octets) = (0, 0);
        let lengths = prop::collection::vec(prop_oneof![15..100usize, 1490..1515usize, 15..MTU as usize + 15], 1..400);
        let mut runner = TestRunner::deterministic();
        for _ in 0..12 {
            let lengths = lengths.new_tree(&mut runner).unwrap().current();
            let frames: Vec<_> = lengths.iter().enumerate().map(|(n, len)| numbered(n, *len)).collect();
            send(&mut port, &mut bufs, &frames);
            for frame in &frames {
                let came = far.recv(ETHERTYPE);
                assert!(came.as_ref() == Some(frame), "{} octets sent, {:?}", frame.len(), came.map(|c| c.len()));
            }
            sent += frames.len() as u64;
            octets += lengths.iter().sum::<usize>() as u64;
            let c = port.counters();
            assert_eq!((c.tx_packets.get(), c.tx_bytes.get(), c.tx_refused.get()), (sent, octets, 0));
        }
        let counters = port.counters();
        assert!(counters.tx_wakeups.get() < sent / 32, "one system call sends many: {counters:?}");
        port.close(&mut bufs);
    });
}

#[test]
fn what_the_kernel_refuses_is_counted() {
    require!(require_lab());
    let net = Net::new();
    let pools = big_pools();
    net.with_buffers(&pools, |umem, mut bufs| {
        let frames: Vec<_> = (0..100).map(|n| numbered(n, 60)).collect();
        let outcome = |port: &AfXdpPort| (port.counters().tx_packets.get(), port.counters().tx_refused.get());

        let mut port = open(&umem, Transmit::Inject);
        send(&mut port, &mut bufs, &frames);
        assert_eq!(outcome(&port), (100, 0));
        // 13 bytes are too short for a frame.
        let mut batch = Batch::new();
        let mut short = bufs.alloc_one().unwrap();
        assert!(bufs.arena().write(&mut short, &[0; 13]));
        batch.push(short).unwrap();
        port.tx_burst(&mut bufs, &mut batch);
        send(&mut port, &mut bufs, &frames);
        assert_eq!(outcome(&port), (200, 1));

        net.router.ip(&["link", "set", "r1", "down"]).unwrap();
        send(&mut port, &mut bufs, &frames[..20]);
        assert_eq!(outcome(&port), (200, 21));
        assert_eq!(port.state(), PortState::Down("link is down".into()));

        net.router.ip(&["link", "set", "r1", "up"]).unwrap();
        // The link is looked at only now and then.
        wait_until("the port's link to be up", patience(Duration::from_secs(60)), || {
            port.housekeep(&mut bufs);
            port.state() == PortState::Up
        })
        .unwrap();
        send(&mut port, &mut bufs, &frames);
        assert_eq!(outcome(&port), (300, 21));

        net.router.ip(&["link", "del", "r1"]).unwrap();
        send(&mut port, &mut bufs, &frames[..20]);
        assert_eq!(outcome(&port), (300, 41));
        assert!(matches!(port.state(), PortState::Down(why) if why.contains("deleted")));
        port.close(&mut bufs);
    });
}

#[test]
fn veth_is_sent_to_by_injection_unless_configured_otherwise() {
    require!(require_lab());
    let net = Net::new();
    let pools = big_pools();
    net.router
        .enter(|| {
            let umem = Umem::new(pools.arena());
            let mut bufs = Buffers::attach(&pools, 0);
            for (transmit, how, said) in [
                (Transmit::Auto, "inject", true),
                (Transmit::Socket, "socket", false),
                (Transmit::Inject, "inject", false),
            ] {
                let mut port = open(&umem, transmit);
                assert_eq!(detail(&port, "transmit").as_deref(), Some(how), "{transmit:?}");
                assert_eq!(detail(&port, "transmit_note").is_some(), said, "{transmit:?}");
                port.close(&mut bufs);
            }
        })
        .unwrap();
}

/// Otherwise the flow would choose the queue, and workers would contend for it.
#[test]
fn each_queue_is_sent_to_by_its_own_port() {
    require!(require_lab(), has_tool("ethtool"));
    let (router, host) = (Namespace::new("qr").unwrap(), Namespace::new("qh").unwrap());
    Veth::new(End::new(&router, "r1"), End::new(&host, "h1")).queues(2).create().unwrap();
    let _drop = host.enter(|| Bare::drop("h1")).unwrap().unwrap();
    let received = |queue: u32| -> u64 {
        let said = host.run(&["ethtool", "-S", "h1"]).unwrap().stdout;
        let name = format!("rx_queue_{queue}_xdp_packets:");
        said.lines().find_map(|line| line.trim().strip_prefix(&name)?.trim().parse().ok()).unwrap()
    };
    let pools = big_pools();
    let frames: Vec<_> = (0..64).map(|n| numbered(n, 60)).collect();
    for transmit in [Transmit::Inject, Transmit::Socket] {
        for queue in [0, 1] {
            let before = received(queue);
            let send_all = || {
                let umem = Umem::new(pools.arena());
                let mut bufs = Buffers::attach(&pools, 0);
                let mut port = open_queue(&umem, transmit, queue);
                send(&mut port, &mut bufs, &frames);
                port.close(&mut bufs);
            };
            router.enter(send_all).unwrap();
            let what = format!("64 frames by {transmit:?} on queue {queue}");
            wait_until(&what, patience(Duration::from_secs(60)), || received(queue) >= before + 64).unwrap();
        }
    }
}
