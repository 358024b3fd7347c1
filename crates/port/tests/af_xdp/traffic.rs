//! Frames through the ports.

use crate::rig::{Net, R0, R1, Taken, Wire, forward, frame, ipv4, socket};
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_lab::{patience, require, require_lab};
use bywash_port::Port;
use bywash_port::af_xdp::{Layout, Polling, SocketConfig, Transmit, Umem};
use std::time::Duration;

const IPV4: u16 = 0x0800;

fn tag(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[34..38].try_into().unwrap())
}

#[test]
fn frames_cross_from_one_interface_to_the_other_and_back() {
    require!(require_lab());
    for transmit in [Transmit::Socket, Transmit::Inject] {
        frames_cross(&SocketConfig { transmit, ..SocketConfig::default() });
    }
}

/// Frames cross with each option of the socket, and with several at once.
#[test]
fn frames_cross_by_every_knob() {
    require!(require_lab());
    let plain = socket();
    frames_cross(&SocketConfig { polling: Polling::BusyPoll, budget: 16, ..plain.clone() });
    frames_cross(&SocketConfig { polling: Polling::Poll, need_wakeup: false, burst: 7, ..plain.clone() });
    frames_cross(&SocketConfig { tx_sockets: 3, ..plain.clone() });
    frames_cross_in(Layout::Aligned, &SocketConfig { in_order: true, ..plain.clone() });
    frames_cross_in(Layout::Unaligned, &SocketConfig { in_order: true, tx_sockets: 2, ..plain.clone() });
    frames_cross_in(Layout::Typewriter, &plain);
}

fn frames_cross(config: &SocketConfig) {
    frames_cross_in(Layout::Aligned, config);
}

fn frames_cross_in(layout: Layout, config: &SocketConfig) {
    let net = Net::new();
    let (near, far) = net.host.enter(|| (Wire::open("h0"), Wire::open("h1"))).unwrap();
    let cell = if layout == Layout::Typewriter { 512 } else { 2048 };
    let arena = Arena::new(ArenaConfig { cells: 8192 + layout.spare(cell), cell, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 8192)]).unwrap();
    net.router
        .enter(|| {
            let umem = Umem::with_layout(pools.arena(), layout);
            let mut bufs = Buffers::attach(&pools, 0);
            let mut a = Taken::new(&umem, "r0", true, config);
            let mut b = Taken::new(&umem, "r1", true, config);
            assert_eq!(a.program.mode(), "native", "{}", a.program.note());
            forward(&mut a.port, &mut b.port, &mut bufs, |_, _| true);

            for round in 0..50u32 {
                for i in 0..100 {
                    near.send(&frame(R0, IPV4, &ipv4([10, 0, 1, 2], [10, 0, 2, 2], round * 100 + i)));
                    far.send(&frame(R1, IPV4, &ipv4([10, 0, 2, 2], [10, 0, 1, 2], round * 100 + i)));
                }
                let want = u64::from(round + 1) * 100;
                let all = forward(&mut a.port, &mut b.port, &mut bufs, |a, b| {
                    a.counters().tx_packets.get() >= want && b.counters().tx_packets.get() >= want
                });
                assert!(all, "round {round}: {:?} {:?}", a.port.counters(), b.port.counters());
            }
            let seen = |wire: &Wire| -> Vec<u32> {
                std::iter::from_fn(|| wire.recv(IPV4)).map(|f| tag(&f)).take(5000).collect()
            };
            // In raw mode other frames than the tagged ones may arrive, but none of this EtherType.
            for wire in [&near, &far] {
                let mut seen = seen(wire);
                if config.tx_sockets > 1 {
                    // Only the frames of one socket keep their order.
                    seen.sort_unstable();
                }
                assert_eq!(seen, (0..5000).collect::<Vec<_>>(), "lost or out of order");
            }
            assert_eq!(a.port.counters().invalid.get() + b.port.counters().invalid.get(), 0);
            let reordered = a.port.counters().tx_reordered.get() + b.port.counters().tx_reordered.get();
            assert!(reordered == 0 || config.tx_sockets > 1, "{reordered}");
            assert!(a.port.held() > 0);
            a.port.close(&mut bufs);
            b.port.close(&mut bufs);
            assert_eq!(a.port.held() + b.port.held(), 0);
            umem.settle(&mut bufs, patience(Duration::from_secs(60)));
        })
        .unwrap();
    assert_eq!(pools.verify(), (vec![], vec![]));
}
