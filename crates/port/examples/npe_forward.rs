//! Forwards the packets of a capture with the dispatching device: N threads, each with its own blocks of memory.
//!
//!     cargo run --release -p bywash-port --example npe_forward -- in.pcap out.pcap [THREADS [ENGINE]]

use bywash_frame::{Arena, ArenaConfig, Batch, PoolKind, PoolSet};
use bywash_port::npe::{self, Channel, Config, Dispatch};
use bywash_port::pcap::{PcapPort, PcapRecorder, PcapSource};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, rest @ ..] = &args[..] else {
        return Err("usage: npe_forward IN.pcap OUT.pcap [THREADS [ENGINE]]".into());
    };
    let channels = rest.first().map_or(Ok(2), |n| n.parse())?;
    let engine = rest.get(1).map_or(Ok(npe::Engine::Software), |name| name.parse())?;
    let config = Config { channels, dispatch: Dispatch::RoundRobin, engine, ..Config::default() };

    // 16 blocks of 1024 cells for each thread.
    let layout = config.layout(PoolKind::Tabm, 16 * 1024, 1024);
    let cells = layout.iter().map(|pool| pool.frames).sum();
    let pools = PoolSet::new(Arena::new(ArenaConfig { cells, ..Default::default() })?, &layout)?;
    let source = PcapSource::load(from)?;
    let packets = source.len() as u64;
    let port = PcapPort::new(Some(source), Some(PcapRecorder::create(to)?));
    let (device, ends) = npe::create(config, vec![Box::new(port)], &pools)?;
    let counters = device.counters();
    let device = device.start(None)?;

    let forwarded = AtomicU64::new(0);
    let work = |mut channel: Channel| {
        let mut chain = Batch::new();
        let lost = || counters.channel_full.get() + counters.no_buffer.get();
        while forwarded.load(Ordering::Relaxed) + lost() < packets {
            if channel.poll(&mut chain) == 0 {
                std::thread::sleep(Duration::from_micros(10));
            }
            forwarded.fetch_add(chain.len() as u64, Ordering::Relaxed);
            for mut packet in chain.drain() {
                let len = packet.len();
                while let Err(again) = channel.send(packet, 0, len) {
                    packet = again; // the device is behind
                }
            }
        }
    };
    std::thread::scope(|threads| ends.into_iter().for_each(|end| drop(threads.spawn(|| work(end)))));
    drop(device);
    println!("{} of {packets} packets sent; cells lost: {:?}", counters.sent.get(), pools.verify().0);
    Ok(())
}
