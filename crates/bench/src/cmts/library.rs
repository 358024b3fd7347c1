//! Benchmark of encryption alone: the same frames repeatedly, on one thread.

use super::{CmtsArgs, key, protection};
use bywash_docsis::seal::Sealer;
use bywash_engine::cpus::Placement;
use bywash_frame::{Arena, ArenaConfig, Buffers, Frame, PoolConfig, PoolSet};
use bywash_sync::clock;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// PDU size in bytes, as in the reference figure.
const SIZE: usize = 1518;
/// Number of frames, which are reused: they fit a second-level cache, and are more than the library holds.
const FRAMES: usize = 64;
const WARM_UP: Duration = Duration::from_millis(200);

/// Figures of the library alone.
#[derive(Serialize)]
pub struct Figures {
    pub gbps: f64,
    pub cycles_per_packet: f64,
    pub size: usize,
    crypto: String,
}

pub fn measure(args: &CmtsArgs, cpus: &Placement) -> anyhow::Result<Figures> {
    let (cpu, seconds) = (cpus.cpu(0), Duration::from_secs(args.seconds));
    let (crypto, how, modems) = (args.crypto, protection(args), args.modems);
    // Use a separate thread, because it is pinned.
    let thread = std::thread::spawn(move || -> anyhow::Result<Figures> {
        super::super::pin(Some(cpu))?;
        let arena = Arena::new(ArenaConfig { cells: 2 * FRAMES, ..Default::default() })?;
        let pools = PoolSet::new(arena.clone(), &[PoolConfig::stack("bench", 2 * FRAMES)])?;
        let mut bufs = Buffers::attach(&pools, 0);
        let keys: Vec<_> = (0..modems).map(key).collect();
        let mut sealer = Sealer::new(crypto, how, &arena, &keys)?;
        let mut frames = filled(&arena, &mut bufs, SIZE + how.added());
        run(&mut sealer, &mut frames, modems, WARM_UP);
        let (packets, ticks) = run(&mut sealer, &mut frames, modems, seconds);
        sealer.flush(|frame| frames.push_back(frame));
        frames.drain(..).for_each(|frame| bufs.free_one(frame));
        let seconds = ticks as f64 / clock::tsc_hz() as f64;
        Ok(Figures {
            gbps: packets as f64 * SIZE as f64 * 8.0 / 1e9 / seconds,
            cycles_per_packet: ticks as f64 / packets.max(1) as f64,
            size: SIZE,
            crypto: sealer.note().into(),
        })
    });
    thread.join().map_err(|_| anyhow::anyhow!("the encrypting thread panicked"))?
}

fn filled(arena: &Arc<Arena>, bufs: &mut Buffers, len: usize) -> VecDeque<Frame> {
    let frame = |i: usize| {
        let mut frame = bufs.alloc_one()?;
        arena.write(&mut frame, &vec![i as u8; len]);
        Some(frame)
    };
    (0..FRAMES).filter_map(frame).collect()
}

/// Encrypts frames for `length` and returns the number of packets and the TSC ticks.
fn run(sealer: &mut Sealer, frames: &mut VecDeque<Frame>, keys: usize, length: Duration) -> (u64, u64) {
    let (start, ticks) = (clock::tsc(), (length.as_secs_f64() * clock::tsc_hz() as f64) as u64);
    let mut packets = 0;
    let mut key = 0;
    while clock::tsc() - start < ticks {
        for _ in 0..FRAMES {
            // The library holds fewer frames than there are.
            let Some(frame) = frames.pop_front() else { break };
            key = if key + 1 == keys { 0 } else { key + 1 };
            sealer.seal(frame, key, 0, |done| frames.push_back(done));
            packets += 1;
        }
    }
    (packets, clock::tsc() - start)
}
