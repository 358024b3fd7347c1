//! Tests of the dispatching device: distribution of packets, their addresses, and that every cell is returned.

use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, Frame, Pages, PoolKind, PoolSet};
use bywash_port::npe::{self, Channel, Config, Device, Dispatch, Error};
use bywash_port::pcap::{PcapPort, PcapSource};
use bywash_port::{NullPort, PairPort, Port, by_port, pair};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

fn pools(config: &Config, kind: PoolKind, frames: usize) -> Arc<PoolSet> {
    let layout = config.layout(kind, frames, 64);
    let cells = layout.iter().map(|p| p.frames).sum();
    let packed = kind.packed();
    let arena = Arena::new(ArenaConfig { cells, pages: Pages::Small, packed, ..Default::default() }).unwrap();
    PoolSet::new(arena, &layout).unwrap()
}

/// A port that ends a thread when it is closed: the thread hands over the packets that it has received before.
struct Ending(Box<dyn Port>, Arc<Mutex<Option<Channel>>>);

impl Port for Ending {
    by_port!(0: rx_burst, tx_burst, counters);

    fn close(&mut self, bufs: &mut Buffers) {
        if let Some(mut channel) = self.1.lock().unwrap().take() {
            let mut chain = Batch::new();
            assert_eq!(channel.poll(&mut chain), 9);
            chain.drain().for_each(|packet| channel.send(packet, 0, 60).unwrap());
        }
        self.0.close(bufs);
    }
}

/// Returns a port that replays packets filled with their number.
fn replay(packets: u8) -> Box<dyn Port> {
    let frames = (0..packets).map(|n| vec![n; 60 + usize::from(n)]);
    Box::new(PcapPort::replay(PcapSource::from_frames(frames).unwrap()))
}

fn cells(arena: &Arena, chain: &Batch) -> Vec<u32> {
    chain.as_slice().iter().map(|f| arena.cell_of(f.addr())).collect()
}

fn release(channel: &mut Channel, chain: &mut Batch) {
    chain.drain().for_each(|frame: Frame| channel.drop_packet(frame).unwrap());
}

fn end(device: Device, channels: Vec<Channel>, pools: &PoolSet) {
    drop(channels);
    device.close();
    assert_eq!(pools.verify(), (vec![], vec![]));
}

#[test]
fn a_threads_packets_are_contiguous_in_tabm_and_alternate_in_sdb() {
    for (kind, step) in [(PoolKind::Tabm, 1), (PoolKind::Sdb, 4)] {
        let config = Config { channels: 4, ..Config::default() };
        let pools = pools(&config, kind, 256);
        let (mut device, mut channels) = npe::create(config, vec![replay(40)], &pools).unwrap();
        device.turn();
        for (at, channel) in channels.iter_mut().enumerate() {
            let mut chain = Batch::new();
            assert_eq!(channel.poll(&mut chain), 10);
            let lie = cells(pools.arena(), &chain);
            assert!(lie.windows(2).all(|pair| pair[1] == pair[0] + step), "{kind}: {lie:?}");
            let addrs: Vec<u64> = chain.as_slice().iter().map(Frame::addr).collect();
            for (nth, packet) in chain.as_mut_slice().iter_mut().enumerate() {
                let number = (4 * nth + at) as u8;
                assert_eq!(pools.arena().data(packet), vec![number; 60 + usize::from(number)]);
                let told = channel.descriptor(packet);
                assert_eq!((told.len as usize, told.port), (packet.len(), 0));
                // Each descriptor gives the address of the next packet.
                let next = addrs.get(nth + 1).copied();
                assert!(told.next.is_some() && (next.is_none() || told.next == next), "{kind}: the chain breaks");
            }
            release(channel, &mut chain);
        }
        device.turn();
        assert_eq!(device.counters().dropped.get(), 40);
        end(device, channels, &pools);
    }
}

#[test]
fn a_thread_may_end_while_the_device_is_closed() {
    let config = Config { channels: 1, ..Config::default() };
    let pools = pools(&config, PoolKind::Tabm, 256);
    let channel = Arc::new(Mutex::new(None));
    let port = Ending(replay(9), channel.clone());
    let (mut device, mut channels) = npe::create(config, vec![Box::new(port)], &pools).unwrap();
    device.turn();
    *channel.lock().unwrap() = channels.pop();
    device.close();
    assert_eq!(pools.verify(), (vec![], vec![]));
}

/// The port receives into cells allocated by length, and the device copies to the thread's own blocks the same way.
#[test]
fn a_typewriter_puts_packets_one_behind_the_other() {
    let config = Config { channels: 1, ..Config::default() };
    let pools = pools(&config, PoolKind::Typewriter, 256);
    let (mut device, mut channels) = npe::create(config, vec![replay(200)], &pools).unwrap();
    let (mut seen, mut at) = (0, 0);
    while seen < 200 {
        device.turn();
        let mut chain = Batch::new();
        channels[0].poll(&mut chain);
        for packet in chain.as_mut_slice() {
            let number = seen as u8;
            assert_eq!(pools.arena().data(packet), vec![number; 60 + seen]);
            // Metadata, headroom, the packet and room for an FCS, in cache lines; a new cell is begun when one is full.
            let lines = (256 + 60 + seen as u64 + 4).div_ceil(64);
            let before = packet.addr() - 256;
            if at % 2048 != 0 && at % 2048 + 64 * lines <= 2048 {
                assert_eq!(before, at, "packet {seen} follows");
            } else {
                assert_eq!(before % 2048, 0, "packet {seen} begins a cell");
            }
            at = before + 64 * lines;
            assert_eq!(channels[0].descriptor(packet).next, None, "not known before its length is");
            seen += 1;
        }
        release(&mut channels[0], &mut chain);
    }
    end(device, channels, &pools);
}

#[test]
fn a_port_can_be_bound_to_its_channel() {
    let config = Config { channels: 2, dispatch: Dispatch::ByPort, ..Config::default() };
    let pools = pools(&config, PoolKind::Tabm, 256);
    let (mut device, mut channels) = npe::create(config, vec![replay(3), replay(5), replay(7)], &pools).unwrap();
    device.turn();
    for (channel, ports) in channels.iter_mut().zip([vec![0u16, 2], vec![1]]) {
        let mut chain = Batch::new();
        let expected: usize = ports.iter().map(|p| [3, 5, 7][usize::from(*p)]).sum();
        assert_eq!(channel.poll(&mut chain), expected);
        assert!(chain.as_mut_slice().iter_mut().all(|f| ports.contains(&channel.descriptor(f).port)));
        release(channel, &mut chain);
    }
    end(device, channels, &pools);
}

#[test]
fn what_cannot_be_is_refused() {
    let config = Config::default();
    let set = pools(&config, PoolKind::Stack, 64);
    let null = || -> Box<dyn Port> { Box::new(NullPort::new()) };
    let make = |config: Config, ports| npe::create(config, ports, &set).err().unwrap();
    for channels in [0, 17, usize::MAX] {
        assert_eq!(make(Config { channels, ..config }, vec![null()]), Error::Channels(channels));
    }
    assert_eq!(make(config, vec![]), Error::NoPort);
    assert_eq!(make(config, (0..257).map(|_| null()).collect()), Error::Ports(257));
    assert_eq!(make(Config { depth: 0, ..config }, vec![null()]), Error::Depth);
    let other = pools(&Config { channels: 4, ..config }, PoolKind::Tabm, 128);
    let wrong = npe::create(Config { channels: 3, ..config }, vec![null()], &other).err().unwrap();
    assert_eq!(wrong, Error::Pools { got: 5, channels: 3 });
}

#[test]
fn threads_that_do_not_keep_up_or_go_lose_their_own_packets_only() {
    let config = Config { channels: 2, depth: 8, ..Config::default() };
    let pools = pools(&config, PoolKind::Tabm, 128);
    let (mut device, mut channels) = npe::create(config, vec![replay(200)], &pools).unwrap();
    let mut chain = Batch::new();
    let mut got = 0;
    for _ in 0..20 {
        device.turn();
        got += channels[0].poll(&mut chain);
        let sent = chain.drain().all(|f| channels[0].send(f, 9, 60).is_ok());
        assert!(sent);
    }
    let c = device.counters();
    assert_eq!((c.dispatched.get(), c.channel_full.get()), (got as u64 + 8, 200 - got as u64 - 8));
    assert_eq!(c.no_port.get(), got as u64);
    drop(channels.pop());
    end(device, channels, &pools);
}

#[test]
fn either_end_may_go_first() {
    for device_first in [true, false] {
        let config = Config { channels: 2, ..Config::default() };
        let pools = pools(&config, PoolKind::Sdb, 256);
        let (mut device, mut channels) = npe::create(config, vec![replay(50)], &pools).unwrap();
        device.turn();
        let mut chain = Batch::new();
        channels[0].poll(&mut chain);
        chain.drain().for_each(|f| channels[0].send(f, 0, 60).unwrap());
        if device_first {
            device.close();
            drop(channels);
        } else {
            drop(channels);
            device.close();
        }
        assert_eq!(pools.verify(), (vec![], vec![]), "device first: {device_first}");
    }
}

/// Returns the packets that arrive at the far end of the pair.
fn through(far: &mut PairPort, bufs: &mut Buffers) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    far.rx_burst(bufs, &mut batch);
    let out = batch.as_slice().iter().map(|f| bufs.arena().data(f).to_vec()).collect();
    bufs.free(&mut batch);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In any order of operations, each packet comes out once or is counted, and each cell is returned.
    #[test]
    fn everything_is_accounted_for(
        kind in 0usize..4,
        channels in 1usize..5,
        steps in proptest::collection::vec((0usize..4, 0usize..5, 0u16..4), 1..200),
    ) {
        let config = Config { channels, depth: 16, ..Config::default() };
        let pools = pools(&config, PoolKind::ALL[kind], 128);
        let (near, mut far) = pair(64);
        let mut bufs = Buffers::attach(&pools, 0);
        let (mut device, mut ends) =
            npe::create(config, vec![replay(255), Box::new(near)], &pools).unwrap();
        let mut hands: Vec<Batch> = (0..channels).map(|_| Batch::new()).collect();
        let mut out = 0;
        for (what, at, port) in steps {
            let at = at % channels;
            match what {
                0 => device.turn(),
                1 => { ends[at].poll(&mut hands[at]); }
                2 => out += through(&mut far, &mut bufs).len(),
                _ => {
                    let mut kept = Batch::new();
                    for f in hands[at].drain() {
                        let len = f.len();
                        if let Err(f) = ends[at].send(f, port, len) {
                            prop_assert!(kept.push(f).is_ok());
                        }
                    }
                    hands[at] = kept;
                }
            }
        }
        for (end, hand) in ends.iter_mut().zip(&mut hands) {
            hand.drain().for_each(|f| bufs.free_one(f));
            end.poll(hand);
            hand.drain().for_each(|f| bufs.free_one(f));
        }
        let counters = device.counters();
        drop(ends);
        device.close();
        loop {
            let more = through(&mut far, &mut bufs).len();
            if more == 0 { break }
            out += more;
        }
        far.close(&mut bufs);
        drop(bufs);
        prop_assert_eq!(pools.verify(), (vec![], vec![]));
        prop_assert!(out as u64 <= counters.sent.get());
    }
}
