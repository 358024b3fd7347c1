//! Tests of the dispatching device on the simulated engine of `rtl/`: its output must equal that of the software
//! engine.
//!
//! `BYWASH_RTL_ENGINE` names the simulation's program, built with blocks of 64 cells; `BYWASH_RTL_POOL` names the kind
//! of pool it was built for, `tabm` (default) or `sdb`.
#![cfg(feature = "rtl")]

use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, Frame, Pages, PoolKind, PoolSet};
use bywash_port::npe::{self, Channel, Config, Device, Dispatch, Engine, Error};
use bywash_port::pcap::{PcapPort, PcapRecorder, PcapSource};
use bywash_port::{NullPort, Port};
use std::path::Path;
use std::sync::Arc;

fn kind() -> PoolKind {
    match std::env::var("BYWASH_RTL_POOL").as_deref() {
        Ok("sdb") => PoolKind::Sdb,
        _ => PoolKind::Tabm,
    }
}

fn pools(config: &Config, frames: usize) -> Arc<PoolSet> {
    let layout = config.layout(kind(), frames, 64);
    let cells = layout.iter().map(|p| p.frames).sum();
    let arena = Arena::new(ArenaConfig { cells, pages: Pages::Small, ..Default::default() }).unwrap();
    PoolSet::new(arena, &layout).unwrap()
}

/// Returns packets that differ in length and in every byte.
fn packets(n: usize) -> Vec<Vec<u8>> {
    (0..n).map(|n| (0..60 + n * 7 % 1455).map(|i| (n * 31 + i * (1 + n % 5)) as u8).collect()).collect()
}

fn replay(packets: &[Vec<u8>]) -> Box<dyn Port> {
    Box::new(PcapPort::replay(PcapSource::from_frames(packets.to_vec()).unwrap()))
}

fn end(device: Device, channels: Vec<Channel>, pools: &PoolSet) {
    drop(channels);
    device.close();
    assert_eq!(pools.verify(), (vec![], vec![]));
}

/// Forwards `packets` through an engine and `channels` channels, polled in turn; returns the recorded output.
fn forward(engine: Engine, channels: usize, packets: &[Vec<u8>], to: &Path) -> Vec<Vec<u8>> {
    let config = Config { channels, engine, ..Config::default() };
    let pools = pools(&config, 256);
    let source = PcapSource::from_frames(packets.to_vec()).unwrap();
    let port = PcapPort::new(Some(source), Some(PcapRecorder::create(to).unwrap()));
    let (mut device, mut ends) = npe::create(config, vec![Box::new(port)], &pools).unwrap();
    let (counters, mut chain, mut turns) = (device.counters(), Batch::new(), 0);
    while counters.sent.get() < packets.len() as u64 {
        device.turn();
        for channel in &mut ends {
            channel.poll(&mut chain);
            for mut packet in chain.drain() {
                let told = channel.descriptor(&mut packet);
                assert_eq!((told.len as usize, told.port), (packet.len(), 0));
                assert!(channel.send(packet, 0, told.len as usize).is_ok());
            }
        }
        turns += 1;
        assert!(turns < 10_000, "{} of {} packets sent", counters.sent.get(), packets.len());
    }
    assert_eq!((counters.no_buffer.get(), counters.tx_full.get()), (0, 0));
    end(device, ends, &pools);
    PcapSource::load(to).unwrap().frames().collect()
}

#[test]
fn what_is_forwarded_is_byte_for_byte_what_the_software_engine_forwards() {
    let (dir, packets) = (tempfile::tempdir().unwrap(), packets(1000));
    let (soft, hard) = (dir.path().join("soft.pcap"), dir.path().join("hard.pcap"));
    for channels in [1, 4] {
        let mut expected = forward(Engine::Software, channels, &packets, &soft);
        let mut got = forward(Engine::Rtl, channels, &packets, &hard);
        // The order of packets of different threads is not defined.
        if channels > 1 {
            expected.sort();
            got.sort();
        }
        assert_eq!(got.len(), packets.len());
        assert!(got == expected, "{channels} channels: other packets");
    }
}

#[test]
fn a_threads_packets_are_contiguous_and_its_chain_is_reported() {
    let config = Config { channels: 3, dispatch: Dispatch::ByPort, engine: Engine::Rtl, ..Config::default() };
    let pools = pools(&config, 256);
    let all = packets(60);
    let ports = all.chunks(10).map(replay).collect();
    let (mut device, mut channels) = npe::create(config, ports, &pools).unwrap();
    (0..10).for_each(|_| device.turn());
    for (at, channel) in channels.iter_mut().enumerate() {
        let (mut chain, mut next) = (Batch::new(), None);
        assert_eq!(channel.poll(&mut chain), 20, "ports {at} and {}", at + 3);
        for packet in chain.as_mut_slice() {
            let told = channel.descriptor(packet);
            assert!(usize::from(told.port) % 3 == at);
            assert!(next.is_none() || next == Some(packet.addr()), "the chain breaks");
            assert!(kind() == PoolKind::Sdb || next.is_none() || told.next == Some(packet.addr() + 2048));
            let of_port = &all[10 * usize::from(told.port)..][..10];
            assert!(of_port.iter().any(|p| p[..] == *pools.arena().data(packet)));
            next = told.next;
        }
        chain.drain().for_each(|frame: Frame| channel.drop_packet(frame).unwrap());
    }
    device.turn();
    assert_eq!(device.counters().dropped.get(), 60);
    end(device, channels, &pools);
}

/// The known answers of `bench tabm`: two cells share a page, and a thread finds the second cell's translation cached
/// only if both cells are its own.
#[test]
fn two_threads_take_half_a_page_for_each_packet_in_tabm_and_a_page_in_sdb() {
    const PAGE: u64 = 4096;
    let config = Config { channels: 2, engine: Engine::Rtl, ..Config::default() };
    let pools = pools(&config, 256);
    let (mut device, mut channels) = npe::create(config, vec![replay(&packets(1000))], &pools).unwrap();
    let (mut chain, mut seen, mut turns) = (Batch::new(), 0, 0);
    let mut threads = [(0, 0); 2];
    while seen < 1000 {
        device.turn();
        for (channel, (page, walks)) in channels.iter_mut().zip(&mut threads) {
            seen += channel.poll(&mut chain);
            for packet in chain.drain() {
                let now = packet.addr() / PAGE;
                *walks += u32::from(now != *page);
                *page = now;
                channel.drop_packet(packet).unwrap();
            }
        }
        turns += 1;
        assert!(turns < 10_000, "{seen} packets");
    }
    let each = if kind() == PoolKind::Sdb { 500 } else { 250 };
    assert_eq!(threads.map(|(_, walks)| walks), [each; 2]);
    end(device, channels, &pools);
}

/// A packet in other memory than the channel's is sent, but not by the engine.
#[test]
fn packets_of_other_pools_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sent.pcap");
    let config = Config { engine: Engine::Rtl, ..Config::default() };
    let pools = pools(&config, 256);
    let port = PcapPort::new(None, Some(PcapRecorder::create(&path).unwrap()));
    let (mut device, mut channels) = npe::create(config, vec![Box::new(port)], &pools).unwrap();
    let mut bufs = Buffers::attach(&pools, 0);
    let packets = packets(100);
    for packet in &packets {
        let mut frame = bufs.alloc_one().unwrap();
        assert!(pools.arena().write(&mut frame, packet));
        assert!(channels[0].send(frame, 0, packet.len()).is_ok());
    }
    device.turn();
    assert_eq!(device.counters().sent.get(), 100);
    drop(bufs);
    end(device, channels, &pools);
    assert!(PcapSource::load(&path).unwrap().frames().eq(packets));
}

#[test]
fn threads_that_keep_everything_lose_packets_and_get_more_when_they_let_go() {
    let config = Config { channels: 1, depth: 4096, engine: Engine::Rtl, ..Config::default() };
    let pools = pools(&config, 128);
    let (mut device, mut channels) = npe::create(config, vec![replay(&packets(1000))], &pools).unwrap();
    let counters = device.counters();
    let mut kept: Vec<Frame> = vec![];
    let mut chain = Batch::new();
    let mut rounds = 0;
    while counters.no_buffer.get() == 0 {
        device.turn();
        channels[0].poll(&mut chain);
        kept.extend(chain.drain());
        rounds += 1;
        assert!(rounds < 1000, "{} packets kept and none lost", kept.len());
    }
    // Two blocks, less the cell reserved for the next packet.
    assert_eq!(kept.len(), 127);
    for frame in kept.drain(..) {
        let port = if frame.len() % 2 == 0 { 0 } else { 7 };
        let len = frame.len();
        assert!(channels[0].send(frame, port, len).is_ok());
    }
    rounds = 0;
    while counters.dispatched.get() == 127 || counters.sent.get() + counters.no_port.get() < 127 {
        device.turn();
        rounds += 1;
        assert!(rounds < 1000, "{} packets sent, no block came back", counters.sent.get());
    }
    assert!(counters.no_port.get() > 0 && counters.sent.get() + counters.no_port.get() == 127);
    end(device, channels, &pools);
}

#[test]
fn either_end_may_go_first() {
    for device_first in [true, false] {
        let config = Config { channels: 2, engine: Engine::Rtl, ..Config::default() };
        let pools = pools(&config, 256);
        let (mut device, mut channels) = npe::create(config, vec![replay(&packets(50))], &pools).unwrap();
        device.turn();
        let mut chain = Batch::new();
        channels[0].poll(&mut chain);
        chain.drain().for_each(|f| channels[0].send(f, 0, 60).unwrap());
        if device_first {
            device.close();
            drop(channels);
        } else {
            drop(channels);
            device.turn();
            device.close();
        }
        assert_eq!(pools.verify(), (vec![], vec![]), "device first: {device_first}");
    }
}

#[test]
fn pools_that_are_not_the_engines_are_refused() {
    let config = Config { channels: 2, engine: Engine::Rtl, ..Config::default() };
    let kind = if kind() == PoolKind::Sdb { PoolKind::Tabm } else { PoolKind::Sdb };
    let layout = config.layout(kind, 256, 64);
    let cells = layout.iter().map(|p| p.frames).sum();
    let arena = Arena::new(ArenaConfig { cells, pages: Pages::Small, ..Default::default() }).unwrap();
    let other = PoolSet::new(arena, &layout).unwrap();
    let refused = npe::create(config, vec![Box::new(NullPort::new())], &other).err().unwrap();
    assert!(
        matches!(&refused, Error::Engine { why, .. } if why.contains("different pool for all threads")),
        "{refused}"
    );
    assert_eq!(other.verify(), (vec![], vec![]));
}
