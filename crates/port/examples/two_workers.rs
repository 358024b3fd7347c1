//! A pipeline of two threads, on a pool of any kind: one allocates the buffers, the other frees them.
//!
//!     cargo run --release -p bywash-port --example two_workers -- in.pcap out.pcap [ring|stack|sdb|tabm]

use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolKind, PoolSet};
use bywash_port::pcap::{PcapPort, PcapRecorder, PcapSource};
use bywash_port::{Port, PortState, pair};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, rest @ ..] = &args[..] else { return Err("usage: two_workers IN.pcap OUT.pcap [KIND]".into()) };
    let named = |kind: &PoolKind| rest.first().is_none_or(|name| *name == kind.to_string());
    let kind = PoolKind::ALL.into_iter().find(named).ok_or("the kinds are ring, stack, sdb and tabm")?;

    let arena = Arena::new(ArenaConfig { cells: 4096, ..Default::default() })?;
    let pools = PoolSet::new(arena, &[PoolConfig { block: 256, ..PoolConfig::new("main", kind, 4096) }])?;
    let mut source = PcapPort::replay(PcapSource::load(from)?);
    let mut sink = PcapPort::record(PcapRecorder::create(to)?);
    let (mut upper, mut lower) = pair(1024);

    std::thread::scope(|threads| {
        threads.spawn(|| {
            let (mut bufs, mut batch) = (Buffers::attach(&pools, 0), Batch::new());
            while source.state() == PortState::Up {
                source.rx_burst(&mut bufs, &mut batch);
                for packet in batch.as_mut_slice() {
                    // The work of this thread: swap the MAC addresses.
                    if let Some(head) = bufs.arena().head_mut::<12>(packet) {
                        head.rotate_left(6);
                    }
                }
                while !batch.is_empty() && upper.tx_burst(&mut bufs, &mut batch) == 0 {
                    std::thread::yield_now(); // the other thread is behind
                }
            }
            upper.close(&mut bufs);
        });
        let (mut bufs, mut batch) = (Buffers::attach(&pools, 0), Batch::new());
        loop {
            // Packets sent before the end closed are still received.
            let ended = lower.state() != PortState::Up;
            if lower.rx_burst(&mut bufs, &mut batch) == 0 && ended {
                break;
            }
            sink.tx_burst(&mut bufs, &mut batch);
        }
        lower.close(&mut bufs);
        sink.close(&mut bufs);
    });
    println!("{} packets, {} cells lost", sink.counters().tx_packets.get(), pools.verify().0.len());
    Ok(())
}
