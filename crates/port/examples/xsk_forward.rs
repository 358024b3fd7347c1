//! A minimal forwarder, which shows the cost of AF_XDP itself: every frame from one interface leaves by the other,
//! unchanged or with its MAC addresses swapped.
//!
//!     xsk_forward IF IF [--swap] [--seconds N] [--rings N] [--generic]

use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_port::Port;
use bywash_port::af_xdp::{
    AfXdpPort, LinkInfo, Program, RingSizes, SocketConfig, Transmit, Umem, XdpAttach, XdpConfig,
};
use std::error::Error;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: u64| {
        let at = arguments.iter().position(|a| a == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let flag = |name: &str| arguments.iter().any(|a| a == name);
    let seconds = value("--seconds", 5);
    let how = if flag("--generic") { XdpAttach::Generic } else { XdpAttach::Auto };
    let swapping = flag("--swap");
    let [a, b, ..] = &arguments[..] else { return Err("usage: xsk_forward IF IF [options]".into()) };

    let rings = value("--rings", 2048) as u32;
    let rings = RingSizes::all(rings);
    let config = SocketConfig { rings, transmit: Transmit::Socket, ..SocketConfig::default() };
    let arena = Arena::new(ArenaConfig { cells: 16384, ..Default::default() })?;
    let pools = PoolSet::new(arena, &[PoolConfig::ring("main", 16384)])?;
    let umem = Umem::new(pools.arena());
    let mut bufs = Buffers::attach(&pools, 0);
    let mut open = |name: &str| -> Result<(Program, AfXdpPort), Box<dyn Error>> {
        let link = LinkInfo::query(name)?;
        let mut program = Program::attach(&link, how)?;
        let mut port = AfXdpPort::open(&umem, &link, 0, &config)?;
        port.housekeep(&mut bufs);
        program.set_socket(0, port.fd().ok_or("no socket")?)?;
        let max_frame = port.max_frame() as u32;
        program.set_config(XdpConfig { enabled: true, mac: link.mac, max_frame, raw: true, ..XdpConfig::default() })?;
        println!("{name}: {} {:?}", program.mode(), port.details());
        Ok((program, port))
    };
    let (program_a, mut a) = open(a)?;
    let (_program_b, mut b) = open(b)?;

    let end = Instant::now() + Duration::from_secs(seconds);
    let mut next = Instant::now() + Duration::from_secs(1);
    let (mut last, mut turns, mut idle) = (0, 0u64, 0u64);
    let mut batch = Batch::new();
    loop {
        let mut busy = 0;
        for forth in [true, false] {
            let (rx, tx) = if forth { (&mut a, &mut b) } else { (&mut b, &mut a) };
            busy += rx.rx_burst(&mut bufs, &mut batch);
            if swapping {
                swap(&mut bufs, &mut batch);
            }
            tx.tx_burst(&mut bufs, &mut batch);
            bufs.free(&mut batch);
            rx.housekeep(&mut bufs);
        }
        turns += 1;
        idle += u64::from(busy == 0);
        if turns.is_multiple_of(64) {
            let now = Instant::now();
            if now >= next {
                let sent = b.counters().tx_packets.get() + a.counters().tx_packets.get();
                println!("{:.3} Mpps", (sent - last) as f64 / 1e6);
                (last, next) = (sent, now + Duration::from_secs(1));
            }
            if now >= end {
                break;
            }
        }
    }
    println!("a {:?}\nb {:?}\n{turns} turns, {idle} idle", a.counters(), b.counters());
    for (name, count) in program_a.counters()?.iter().filter(|(_, count)| *count > 0) {
        println!("{name} {count}");
    }
    a.close(&mut bufs);
    b.close(&mut bufs);
    umem.settle(&mut bufs, Duration::from_secs(1));
    drop(bufs);
    println!("audit {:?}", pools.verify());
    Ok(())
}

fn swap(bufs: &mut Buffers, batch: &mut Batch) {
    let arena = bufs.arena();
    for frame in batch.as_mut_slice() {
        if let Some(head) = arena.data_mut(frame).first_chunk_mut::<12>() {
            head.rotate_left(6);
        }
    }
}
