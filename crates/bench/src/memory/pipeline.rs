//! Traced pipeline: both workers of a cable downstream, by turns on one thread, between simulated devices.
//!
//! Valgrind runs one thread at a time and does not say which one it is, so the workers share a thread, as they share a
//! core in the reference document. Their time is that in which packets arrive at the given rate.

use super::device::{Receive, Send};
use super::trace::Mark;
use super::{IMIX_MEAN, MemoryArgs};
use crate::args::OnOff;
use crate::cmts;
use bywash_docsis::group::Mac;
use bywash_docsis::instance::{CELL, INPUT, Instance, InstanceConfig, Parts, RING};
use bywash_docsis::lower::LowerConfig;
use bywash_docsis::protect::Protection;
use bywash_docsis::queue::{Overflow, QueueLimits};
use bywash_docsis::seal::Crypto;
use bywash_docsis::traffic::{CABLE_IMIX, packets};
use bywash_docsis::window::Window;
use bywash_engine::Idle;
use bywash_frame::{Arena, ArenaConfig, Pages, PoolConfig, PoolSet};
use bywash_port::{Port as _, TxQueueConfig};
use bywash_sync::{Qsbr, clock};

/// Cable modems and channels, as in the name of the document's capture, `ds_cable-imix2_300cms_4ofdm.pcap`.
pub const MODEMS: usize = 300;
pub const CHANNELS: usize = 4;
/// Set if the upper MAC seals as well. It would seal most frames: the window keeps so many in flight that the lower MAC
/// is always behind. In the reference document, which has no such help, the lower MAC seals each frame when its turn
/// comes.
pub const ASSIST: bool = false;
/// Turns without a packet after which the pipeline counts as stuck.
const STUCK: usize = 10_000;

/// Returns the packets that arrive, over and over.
pub fn traffic() -> Vec<Vec<u8>> {
    let modems: Vec<Mac> = (0..MODEMS).map(cmts::mac).collect();
    packets(&modems, &CABLE_IMIX, 2 * MODEMS)
}

/// Runs a pipeline on the first of the pool kinds: first as many packets as are in use at once, then as many as the
/// pool has frames, so that each frame of a ring is used once more. Prints its marks.
pub fn run(args: &MemoryArgs) -> anyhow::Result<()> {
    let kind = args.kinds[0];
    let (cells, pages, packed) = (args.frames, Pages::Small, kind.packed());
    let arena = Arena::new(ArenaConfig { cells, cell: CELL, pages, packed, ..ArenaConfig::default() })?;
    let pools = PoolSet::new(arena.clone(), &[PoolConfig::new("bench", kind, args.frames)])?;
    let (source, output) =
        (Receive::new(arena.clone(), traffic(), args.rx_ring), Send::new(arena.clone(), args.tx_ring));
    let base = arena.base().addr() as u64;
    for range in [base..base + arena.size() as u64, source.ring(), output.ring()] {
        Mark::Dma(range).print();
    }
    let (received, sent) = (source.counters(), output.counters());
    let ticks = clock::tsc_hz() as f64 * IMIX_MEAN * 8.0 / (args.rate * 1e9);
    let group = cmts::group(&(0..MODEMS).map(cmts::mac).collect::<Vec<_>>())?;
    let queue = RING + args.in_flight;
    let config = InstanceConfig {
        id: 0,
        cpus: [None; 2],
        idle: Idle::Spin,
        tx: TxQueueConfig::default(),
        ring: queue,
        lower: LowerConfig {
            protection: Protection { crc: args.crc == OnOff::On, cipher: true, ..Protection::default() },
            crypto: Crypto::Auto,
            assist: ASSIST,
            queues: QueueLimits { flow: queue, total: queue, overflow: Overflow::Tail },
            channels: vec![0; CHANNELS],
            bits: 0,
            depi: None,
        },
    };
    let input = Box::new(Window::new(source, sent.clone(), args.in_flight));
    let domain = Qsbr::new();
    let Parts { workers: [mut upper, mut lower], .. } =
        Instance::assemble(&group, &config, (&pools, 0), input, Box::new(output), &domain)?;
    let (warm, all) = (args.held() as u64, (args.held() + args.frames) as u64);
    let (start, mut warmed, mut idle) = (clock::tsc(), false, 0);
    Mark::Core.print();
    while received.rx_packets.get() < all {
        let packets = received.rx_packets.get();
        if !warmed && packets >= warm {
            warmed = true;
            Mark::Warm(sent.tx_packets.get()).print();
        }
        let now = start + (packets as f64 * ticks) as u64;
        upper.turn(now);
        lower.turn(now);
        Mark::Turn.print();
        idle = if received.rx_packets.get() == packets { idle + 1 } else { 0 };
        anyhow::ensure!(idle < STUCK, "the pipeline is stuck after {packets} packets");
    }
    Mark::End(sent.tx_packets.get()).print();
    let dropped: u64 = [&upper, &lower].iter().map(|worker| worker.counters().port(INPUT).total()).sum();
    upper.close();
    lower.close();
    anyhow::ensure!(dropped == 0, "{dropped} packets were dropped");
    drop((upper, lower));
    crate::all_back(&pools)
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Access, Touch, follow, valgrind};
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const PATH: &str = "memory::pipeline::tests::workload";
    const RUN: &str = "BYWASH_TRACED";

    /// Program to trace, not a test. `RUN` has the numbers of frames and of packets in flight.
    #[test]
    fn workload() {
        let Some(numbers) = std::env::var(RUN).ok() else { return };
        let (frames, in_flight) = numbers.split_once(' ').unwrap();
        run(&MemoryArgs {
            frames: frames.parse().unwrap(),
            in_flight: in_flight.parse().unwrap(),
            rx_ring: 64,
            tx_ring: 64,
            crc: OnOff::On,
            ..MemoryArgs::default()
        })
        .unwrap();
    }

    /// Returns the command that traces [`workload`]; `None` without valgrind.
    fn traced(frames: usize, in_flight: usize) -> Option<std::process::Command> {
        if std::process::Command::new("valgrind").arg("--version").output().is_err() {
            println!("SKIP: no valgrind");
            return None;
        }
        let mut command = valgrind(&std::env::current_exe().unwrap());
        command.args(["--exact", PATH, "--test-threads=1"]).env(RUN, format!("{frames} {in_flight}"));
        Some(command)
    }

    /// The upper MAC passes payloads on untouched, however many frames wait for the lower MAC, which seals all of them.
    #[test]
    fn the_lower_mac_seals_each_frame_when_its_turn_comes() {
        let Some(mut command) = traced(768, 512) else { return };
        let (mut arena, mut warm, mut turn) = (None, false, 0);
        // Lines written by the device and by no worker since, with the turn.
        let mut written: BTreeMap<u64, usize> = BTreeMap::new();
        let (mut at_once, mut later) = (0, 0);
        let each = |mark: &Mark, touches: &[Touch]| {
            if let Mark::Dma(range) = mark {
                arena.get_or_insert(range.clone());
            }
            let Some(arena) = &arena else { return };
            for Touch { addr, access } in touches.iter().filter(|touch| arena.contains(&touch.addr)) {
                match access {
                    Access::DeviceWrite => _ = written.insert(*addr, turn),
                    Access::Write => {
                        let Some(since) = written.remove(addr) else { continue };
                        // Until more frames wait than the lower MAC takes in a turn, it seals some at once.
                        let count = if since == turn { &mut at_once } else { &mut later };
                        *count += usize::from(warm);
                    }
                    Access::Read | Access::DeviceRead => {}
                }
            }
            warm |= matches!(mark, Mark::Warm(_));
            turn += usize::from(*mark == Mark::Turn);
        };
        follow(&mut command, each).unwrap();
        // A packet has 24 lines; the upper MAC writes headers into the first.
        assert!(later > 10_000 && at_once < later / 10, "{at_once} lines at once, {later} later");
    }

    /// Every line that the device writes is read and written by a worker, which encrypts it, before the device reads
    /// it.
    #[test]
    fn each_line_of_a_packet_is_seen_on_its_way() {
        let Some(mut command) = traced(512, 64) else { return };
        let (mut arena, mut sent) = (None, 0);
        // Lines written by the device, with whether a worker has read and written them since.
        let mut written: BTreeMap<u64, [bool; 2]> = BTreeMap::new();
        let (mut by_device, mut sealed, mut cells_sent) = (0, 0, BTreeSet::new());
        let each = |mark: &Mark, touches: &[Touch]| {
            if let Mark::Dma(range) = mark {
                arena.get_or_insert(range.clone());
            }
            let Some(arena) = &arena else { return };
            for Touch { addr, access } in touches.iter().filter(|touch| arena.contains(&touch.addr)) {
                let cell = (addr - arena.start) / CELL as u64;
                match access {
                    Access::DeviceWrite => {
                        by_device += 1;
                        cells_sent.remove(&cell);
                        written.insert(*addr, [false; 2]);
                    }
                    Access::DeviceRead => {
                        cells_sent.insert(cell);
                        if let Some(seen) = written.remove(addr) {
                            assert_eq!(seen, [true; 2], "line {addr:#x}");
                            sealed += 1;
                        }
                    }
                    Access::Read => _ = written.get_mut(addr).map(|seen| seen[0] = true),
                    Access::Write => _ = written.get_mut(addr).map(|seen| seen[1] = true),
                }
            }
            if let Mark::End(packets) = mark {
                sent = *packets;
            }
        };
        follow(&mut command, each).unwrap();
        let lines =
            |n: usize| -> usize { traffic().iter().cycle().take(n).map(|packet| packet.len().div_ceil(64)).sum() };
        let received = (256 + 512..).find(|n| lines(*n) >= by_device).unwrap();
        assert_eq!(by_device, lines(received), "lines of whole packets");
        assert!((768..832).contains(&received) && sent as usize >= received - 64, "{received} {sent}");
        // No sent lines are left over, so all lines of the other packets were sealed.
        assert!(
            written.keys().all(|addr| !cells_sent.contains(&((addr - arena.as_ref().unwrap().start) / CELL as u64)))
        );
        assert_eq!(sealed + written.len(), by_device);
        assert!(cells_sent.len() > 256, "{}", cells_sent.len());
    }
}
