//! Frames longer than a chunk, in several buffers.

use crate::rig::{H0, Net, R0, R1, Taken, Wire, forward};
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_lab::{require, require_lab};
use bywash_port::Port;
use bywash_port::af_xdp::{AfXdpPort, LinkInfo, RingSizes, SocketConfig, Transmit, Umem};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::sync::Arc;

/// EtherType for local experiments (IEEE 802); other traffic on the link has other types.
const ETHERTYPE: u16 = 0x88b5;
const MTU: usize = 9000;
const FRAMES: usize = 8;
const ROUNDS: usize = 15;

fn long_cells() -> Arc<PoolSet> {
    let arena = Arena::new(ArenaConfig { cells: 2048, cell: 16384, ..Default::default() }).unwrap();
    PoolSet::new(arena, &[PoolConfig::stack("main", 2048)]).unwrap()
}

/// Rings so small that a frame of three descriptors crosses their end at each of its descriptors.
fn config(transmit: Transmit, burst: usize) -> SocketConfig {
    let rings = RingSizes { fill: 256, rx: 64, tx: 64, completion: 64 };
    SocketConfig { transmit, rings, burst, ..SocketConfig::default() }
}

/// Returns whether this kernel supports multi-buffer frames; prints why the tests are skipped if not.
fn kernel_has_it(umem: &Arc<Umem>, bufs: &mut Buffers) -> bool {
    match AfXdpPort::open(umem, &LinkInfo::query("r0").unwrap(), 0, &config(Transmit::Socket, 64)) {
        Ok(mut port) => {
            port.close(bufs);
            true
        }
        Err(e) if e.to_string().contains("need Linux 6.6") => {
            println!("SKIP: kernel without XDP_USE_SG (6.6): {e}");
            false
        }
        Err(e) => panic!("{e}"),
    }
}

fn numbered(to: [u8; 6], n: usize, len: usize) -> Vec<u8> {
    let mut frame = [to, H0].concat();
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend((0..len - 14).map(|i| (n * 31 + i + i / 251) as u8));
    frame
}

/// Both directions, all lengths, both ways of sending; a burst ends in the middle of a frame, and between frames.
#[test]
fn long_frames_cross_whole_and_in_order() {
    require!(require_lab());
    let net = Net::new();
    let mtu = MTU.to_string();
    for (end, names) in [(&net.router, ["r0", "r1"]), (&net.host, ["h0", "h1"])] {
        for name in names {
            end.ip(&["link", "set", name, "mtu", &mtu]).unwrap();
        }
    }
    let (near, far) = net.host.enter(|| (Wire::open("h0"), Wire::open("h1"))).unwrap();
    let pools = long_cells();
    net.with_buffers(&pools, |umem, mut bufs| {
        if !kernel_has_it(&umem, &mut bufs) {
            return;
        }
        let mut runner = TestRunner::deterministic();
        let length = prop_oneof![60..200usize, 3830..3850usize, 7670..7690usize, 60..MTU + 15, Just(MTU + 14)];
        for (transmit, burst) in [(Transmit::Socket, 64), (Transmit::Socket, 1), (Transmit::Inject, 2)] {
            let mut a = Taken::new(&umem, "r0", true, &config(transmit, burst));
            let mut b = Taken::new(&umem, "r1", true, &config(transmit, burst));
            assert_eq!(a.program.mode(), "native", "{}", a.program.note());
            forward(&mut a.port, &mut b.port, &mut bufs, |_, _| true);
            let mut want = 0;
            for round in 0..ROUNDS {
                let lengths = [(); FRAMES].map(|()| length.new_tree(&mut runner).unwrap().current());
                let frames = |to| lengths.iter().enumerate().map(move |(n, len)| numbered(to, round + n, *len));
                frames(R0).for_each(|frame| near.send(&frame));
                frames(R1).for_each(|frame| far.send(&frame));
                want += lengths.iter().sum::<usize>() as u64;
                let all = forward(&mut a.port, &mut b.port, &mut bufs, |a, b| {
                    a.counters().tx_bytes.get() >= want && b.counters().tx_bytes.get() >= want
                });
                assert!(all, "round {round}: {:?} {:?}", a.port.counters(), b.port.counters());
                for (wire, to) in [(&near, R1), (&far, R0)] {
                    for (n, frame) in frames(to).enumerate() {
                        let came = wire.recv(ETHERTYPE);
                        assert!(
                            came.as_ref() == Some(&frame),
                            "{transmit:?}, round {round}, frame {n}: {} octets sent, {:?} came",
                            frame.len(),
                            came.map(|c| c.len())
                        );
                    }
                }
            }
            for port in [&mut a.port, &mut b.port] {
                let counters = port.counters();
                assert!(counters.rx_packets.get() >= (ROUNDS * FRAMES) as u64, "{counters:?}");
                assert_eq!(counters.invalid.get(), 0, "{counters:?}");
                port.close(&mut bufs);
                assert_eq!(port.held(), 0);
            }
        }
    });
}
