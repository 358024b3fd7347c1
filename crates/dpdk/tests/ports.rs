//! Tests of ports on DPDK's virtual devices: no copies, no lost cells, no fatal errors.
//!
//! The EAL starts once in a process, so this is one test. It needs neither root nor huge pages.
#![cfg(feature = "dpdk")]

use bywash_dpdk::{DpdkConfig, DpdkError, DpdkPort, Eal, EalConfig, EalError};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, Pages, PoolConfig, PoolSet};
use bywash_port::pcap::{CaptureFile, PcapSource};
use bywash_port::{Port, PortState, pair};
use std::sync::{Arc, Barrier, Mutex};

const CELLS: usize = 8192;
/// Cells of a pool that is added later.
const OTHERS: usize = 4096;

struct Bench {
    pools: Arc<PoolSet>,
    bufs: Buffers,
}

impl Bench {
    fn frames(&mut self, n: usize) -> (Batch, Vec<u32>) {
        let mut batch = Batch::new();
        assert_eq!(self.bufs.alloc(&mut batch, n), n);
        let arena = self.pools.arena();
        for (i, frame) in batch.as_mut_slice().iter_mut().enumerate() {
            assert!(arena.write(frame, &[i as u8; 100]));
        }
        let cells = batch.as_slice().iter().map(|f| arena.cell_of(f.addr())).collect();
        (batch, cells)
    }

    fn cells(&self, batch: &Batch) -> Vec<u32> {
        batch.as_slice().iter().map(|f| self.pools.arena().cell_of(f.addr())).collect()
    }
}

#[test]
fn dpdk_ports() {
    let arena = Arena::new(ArenaConfig { cells: CELLS + OTHERS, pages: Pages::Small, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena, &[PoolConfig::stack("main", CELLS)]).unwrap();
    // Options that would end the program are rejected before the EAL sees them.
    let config = |option: &str| EalConfig { options: vec![option.into()] };
    assert!(matches!(Eal::start(&pools, &config("--help")), Err(EalError::Option(_))));
    assert!(matches!(Eal::start(&pools, &config("--proc-type=secondary")), Err(EalError::Option(_))));
    let eal = Eal::start(&pools, &EalConfig { options: vec!["--file-prefix=bywash-test".into()] }).unwrap();
    assert!(matches!(Eal::start(&pools, &EalConfig::default()), Err(EalError::Twice)));

    let mut bench = Bench { bufs: Buffers::attach(&pools, 0), pools };
    frames_cross_without_a_copy(&eal, &mut bench);
    for lines in [true, false] {
        if !DpdkPort::read_lines(lines) && lines {
            println!("SKIP: no AVX-512: mbufs are not read by lines");
            continue;
        }
        frames_are_sent_as_they_are_now(&eal, &mut bench);
        frames_in_several_segments_are_copied(&eal, &mut bench);
    }
    DpdkPort::read_lines(true);
    drivers_take_and_free_our_cells(&eal, &mut bench);
    more_threads_than_lcores(&eal, &mut bench);
    what_cannot_be_is_said(&eal, &mut bench);
    free_cells_in_a_drivers_cache_are_counted_and_recalled(&eal, &mut bench);
    drop(eal);
    drop(bench.bufs);
    assert_eq!(bench.pools.verify(), (vec![], vec![]));
    assert_eq!(bench.pools.audit(0).missing, 0);
    assert!(matches!(Eal::start(&bench.pools, &EalConfig::default()), Err(EalError::Twice)));
}

/// Frames from another kind of port keep their cells through a DPDK device (a ring that receives what it sends) and
/// back.
fn frames_cross_without_a_copy(eal: &Arc<Eal>, bench: &mut Bench) {
    let mut ring = DpdkPort::open(eal, &DpdkConfig::new("net_ring0")).unwrap().pop().unwrap();
    let (mut a, mut b) = pair(64);
    let (mut batch, cells) = bench.frames(32);
    assert_eq!(a.tx_burst(&mut bench.bufs, &mut batch), 32);
    assert_eq!(b.rx_burst(&mut bench.bufs, &mut batch), 32);
    let arena = bench.pools.arena().clone();
    // Move the data to other offsets in its cell.
    batch.as_mut_slice().iter_mut().for_each(|f| {
        f.pull(10);
        assert!(arena.push(f, 90));
    });
    let before: Vec<(u64, usize)> = batch.as_slice().iter().map(|f| (f.addr(), f.len())).collect();
    assert_eq!(ring.tx_burst(&mut bench.bufs, &mut batch), 32);
    assert_eq!(ring.held(), 32);
    assert_eq!(bench.pools.audit(32).missing, 0);
    assert_eq!(ring.rx_burst(&mut bench.bufs, &mut batch), 32);
    assert_eq!(bench.cells(&batch), cells, "the received frames are those that were sent");
    assert_eq!(batch.as_slice().iter().map(|f| (f.addr(), f.len())).collect::<Vec<_>>(), before);
    for (i, frame) in batch.as_slice().iter().enumerate() {
        assert!(arena.data(frame)[80..].iter().all(|b| *b == i as u8), "untouched");
    }
    assert_eq!(b.tx_burst(&mut bench.bufs, &mut batch), 32);
    assert_eq!(a.rx_burst(&mut bench.bufs, &mut batch), 32);
    assert_eq!(bench.cells(&batch), cells);
    bench.bufs.free(&mut batch);
    let details = ring.details();
    let detail = |name| details.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str());
    assert_eq!((detail("mode"), detail("driver")), (Some("zero-copy"), Some("net_ring")));
    assert_eq!(detail("xstats").map(|x| x.contains("rx_good_packets=32")), Some(true), "{details:?}");
    // Offloads have DPDK's names.
    assert_eq!((detail("rx_offloads"), detail("tx_offloads")), (Some("scatter"), Some("multi-segs")), "{details:?}");
    assert_eq!((ring.held(), ring.state()), (0, PortState::Up));
    // Frames left in the device are freed when it closes.
    let (mut batch, _) = bench.frames(16);
    assert_eq!(ring.tx_burst(&mut bench.bufs, &mut batch), 16);
    let mut rest = Batch::new();
    assert_eq!(ring.rx_burst(&mut bench.bufs, &mut rest), 16);
    bench.bufs.free(&mut rest);
    ring.close(&mut bench.bufs);
    [&mut a, &mut b].into_iter().for_each(|port| port.close(&mut bench.bufs));
    assert_eq!(bench.pools.audit(0).missing, 0);
}

/// Frames that go round through a device arrive as they were sent, whether they were changed in between or not: bursts
/// of all sizes, of frames of which any were moved, cut, extended, rewritten, replaced or passed through another port.
fn frames_are_sent_as_they_are_now(eal: &Arc<Eal>, bench: &mut Bench) {
    let mut ring = DpdkPort::open(eal, &DpdkConfig::new("net_ring1")).unwrap().pop().unwrap();
    let (mut a, mut b) = pair(64);
    let (arena, bufs) = (bench.pools.arena().clone(), &mut bench.bufs);
    let mut seed = 1u32;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    let mut batch = Batch::new();
    for round in 0..500 {
        // Some go, and new ones come.
        for _ in 0..random(8) {
            batch.pop().into_iter().for_each(|frame| bufs.free_one(frame));
        }
        let (before, more) = (batch.len(), random(12) as usize);
        bufs.alloc(&mut batch, more);
        for frame in &mut batch.as_mut_slice()[before..] {
            assert!(arena.write(frame, &[round as u8; 60]));
            // As far as the headroom of a buffer that begins on another line, and beyond.
            assert!(arena.push(frame, random(129) as usize));
        }
        // (Of every second round, none is changed.)
        for frame in batch.as_mut_slice() {
            match if round % 2 == 0 { random(12) } else { 99 } {
                0 => frame.truncate(1 + random(60) as usize),
                1 => frame.pull(random(20) as usize),
                2 => drop(arena.push(frame, random(40) as usize)),
                3 => drop(arena.resize(frame, random(1200) as usize)),
                4 => drop(arena.write(frame, &[7; 100])),
                5 => arena.data_mut(frame).fill(5),
                6 => {
                    let moved = std::mem::replace(frame, bufs.alloc_one().unwrap());
                    assert!(arena.write(frame, arena.data(&moved)));
                    bufs.free_one(moved);
                }
                _ => {}
            }
        }
        if random(8) == 0 {
            let n = batch.len();
            assert_eq!(a.tx_burst(bufs, &mut batch), n);
            assert_eq!(b.rx_burst(bufs, &mut batch), n);
        }
        let said =
            |batch: &Batch| batch.as_slice().iter().map(|f| (f.raw(), arena.data(f).to_vec())).collect::<Vec<_>>();
        let (sent, n) = (said(&batch), batch.len());
        assert_eq!(ring.tx_burst(bufs, &mut batch), n);
        assert_eq!(ring.rx_burst(bufs, &mut batch), n);
        assert_eq!(said(&batch), sent, "round {round}");
        assert!(sent.iter().all(|(raw, _)| raw.options == 0), "a descriptor has no options");
    }
    bufs.free(&mut batch);
    [&mut a, &mut b].into_iter().for_each(|port| port.close(bufs));
    assert_eq!(bench.pools.audit(ring.held()).missing, 0);
    ring.close(bufs);
    assert_eq!(bench.pools.audit(0).missing, 0);
}

/// Frames longer than a buffer, which the driver receives into several, are copied into one cell; those beside them in
/// the same burst are not. All can be sent.
fn frames_in_several_segments_are_copied(eal: &Arc<Eal>, bench: &mut Bench) {
    let directory = tempfile::tempdir().unwrap();
    let [from, to] = ["from.pcap", "to.pcap"].map(|name| directory.path().join(name));
    // (A buffer has room for 1,600 to 1,792 bytes, by the line on which it begins.)
    let sizes = (0..64).map(|n| match n {
        7 => 3000,
        n if n % 3 == 0 => 60 + n,
        n => 1700 + n,
    });
    let frames: Vec<Vec<u8>> = sizes.map(|size| (0..size).map(|at| (at + size) as u8).collect()).collect();
    CaptureFile::of_frames(&from, &frames).unwrap();
    let device = format!("net_pcap3,rx_pcap={},tx_pcap={}", from.display(), to.display());
    let mut file = DpdkPort::open(eal, &DpdkConfig::new(&device)).unwrap().pop().unwrap();
    // Buffers of cells that were used before may have all of the room by now.
    let mut used: [Batch; 16] = std::array::from_fn(|_| bench.frames(64).0);
    let mut batch = Batch::new();
    file.rx_burst(&mut bench.bufs, &mut batch);
    let arena = bench.pools.arena();
    let received: Vec<Vec<u8>> = batch.as_slice().iter().map(|frame| arena.data(frame).to_vec()).collect();
    // (No cell has room for 3,000 bytes.)
    let fitting: Vec<Vec<u8>> = frames.into_iter().filter(|frame| frame.len() < 1792).collect();
    assert!(received == fitting, "{:?}", received.iter().map(Vec::len).collect::<Vec<_>>());
    let details = file.details();
    assert!(details.iter().any(|(name, _)| *name == "copied"), "{details:?}");
    assert_eq!(file.counters().rx_no_buffer.get(), 1);
    let n = batch.len();
    assert_eq!(file.tx_burst(&mut bench.bufs, &mut batch), n);
    used.iter_mut().for_each(|batch| bench.bufs.free(batch));
    assert_eq!(bench.pools.audit(file.held()).missing, 0);
    file.close(&mut bench.bufs);
    assert_eq!(bench.pools.audit(0).missing, 0);
    let sent: Vec<Vec<u8>> = PcapSource::load(&to).unwrap().frames().collect();
    assert!(sent == fitting, "{:?}", sent.iter().map(Vec::len).collect::<Vec<_>>());
}

/// A device that generates frames and discards them: the driver itself takes and frees cells of the pool.
fn drivers_take_and_free_our_cells(eal: &Arc<Eal>, bench: &mut Bench) {
    let mut null = DpdkPort::open(eal, &DpdkConfig::new("net_null7,size=200")).unwrap().pop().unwrap();
    let mut batch = Batch::new();
    for _ in 0..1000 {
        assert_eq!(null.rx_burst(&mut bench.bufs, &mut batch), 64);
        assert!(batch.as_slice().iter().all(|f| f.len() == 200));
        assert_eq!(null.tx_burst(&mut bench.bufs, &mut batch), 64);
        assert!(batch.is_empty());
    }
    assert_eq!(null.counters().tx_packets.get(), 64_000);
    // Capabilities of the device and those in use, by name.
    let details = null.details();
    let detail = |name| details.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str());
    assert!(detail("rx_offloads").is_some() && detail("tx_offloads").is_some(), "{details:?}");
    assert_eq!((detail("rss"), detail("offloads_used")), (Some("none"), Some("none")), "{details:?}");
    assert_eq!(detail("speed"), Some("10000 Mb/s"), "{details:?}");
    assert_eq!((null.held(), bench.pools.audit(0).missing), (0, 0));
    let several = DpdkPort::open(eal, &DpdkConfig { queues: 2, ..DpdkConfig::new("net_null5") }).unwrap();
    for queue in &several {
        let details = queue.details();
        let rss = &details.iter().find(|(key, _)| *key == "rss").unwrap().1;
        assert!(["ipv4", "ipv4-tcp", "ipv6-udp"].iter().all(|kind| rss.split(' ').any(|name| name == *kind)), "{rss}");
    }
    several.into_iter().for_each(|mut queue| queue.close(&mut bench.bufs));
    null.close(&mut bench.bufs);
    assert_eq!(null.rx_burst(&mut bench.bufs, &mut batch), 0);
    assert_eq!(bench.pools.audit(0).missing, 0);
}

/// A worker's lcore keeps free cells between calls, of the worker's own pool only, which counts them as cached. They go
/// back when the pool is drained.
fn free_cells_in_a_drivers_cache_are_counted_and_recalled(eal: &Arc<Eal>, bench: &mut Bench) {
    let mut null = DpdkPort::open(eal, &DpdkConfig::new("net_null4,size=100")).unwrap().pop().unwrap();
    let main = bench.pools.pools()[0].clone();
    let counts = |pool: &bywash_frame::Pool| (pool.stats().free + pool.stats().cached, pool.stats().in_use);
    let mut batch = Batch::new();
    assert_eq!(null.rx_burst(&mut bench.bufs, &mut batch), 64);
    assert_eq!((counts(&main), null.held()), ((CELLS - 64, 64), 0));
    assert_eq!(null.tx_burst(&mut bench.bufs, &mut batch), 64);
    assert_eq!((counts(&main), null.held()), ((CELLS, 0), 0));
    let kept = main.stats().cached;
    assert!((64..=128).contains(&kept), "{kept}");
    // Frames of another pool, freed by the same driver.
    let other = bench.pools.add(PoolConfig::stack("other", OTHERS)).unwrap();
    let mut others = Buffers::attach(&bench.pools, 1);
    for _ in 0..3 {
        assert_eq!(others.alloc(&mut batch, 64), 64);
        assert_eq!(null.tx_burst(&mut bench.bufs, &mut batch), 64);
        assert_eq!((counts(&main), counts(&other), null.held()), ((CELLS, 0), (OTHERS, 0), 0));
        assert_eq!((main.stats().cached, other.stats().cached), (kept, 0));
    }
    drop(others);
    bench.bufs.take_from(&other);
    bench.pools.drain(&main);
    assert_eq!(main.stats().cached, kept);
    null.housekeep(&mut bench.bufs);
    assert_eq!((main.stats().free, main.stats().cached), (CELLS, 0));
    assert_eq!(null.rx_burst(&mut bench.bufs, &mut batch), 64);
    assert_eq!(null.tx_burst(&mut bench.bufs, &mut batch), 64);
    assert_eq!((counts(&main), counts(&other)), ((CELLS, 0), (OTHERS, 0)));
    assert!(other.stats().cached > 0);
    null.close(&mut bench.bufs);
    assert_eq!((main.stats().cached, other.stats().cached), (0, 0));
    assert_eq!(bench.pools.audit(0).missing, 0);
}

/// Each thread that calls a driver becomes a DPDK lcore; threads beyond the maximum work without one, and a thread that
/// ends releases its lcore.
fn more_threads_than_lcores(eal: &Arc<Eal>, bench: &mut Bench) {
    const THREADS: usize = 140;
    let null = Mutex::new(DpdkPort::open(eal, &DpdkConfig::new("net_null6,size=100")).unwrap().pop().unwrap());
    for _ in 0..2 {
        let all_there = Barrier::new(THREADS);
        std::thread::scope(|threads| {
            let spawn = |_| {
                threads.spawn(|| {
                    let (mut bufs, mut batch) = (Buffers::attach(&bench.pools, 0), Batch::new());
                    {
                        let mut null = null.lock().unwrap();
                        for _ in 0..3 {
                            assert_eq!(null.rx_burst(&mut bufs, &mut batch), 64);
                            assert_eq!(null.tx_burst(&mut bufs, &mut batch), 64);
                        }
                        assert_eq!((null.held(), bench.pools.audit(0).missing), (0, 0));
                    }
                    all_there.wait();
                })
            };
            // An lcore's free cells are given back when its thread has ended, which is later than the end of its
            // closure.
            let all: Vec<_> = (0..THREADS).map(spawn).collect();
            all.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
    let mut null = null.into_inner().unwrap();
    assert_eq!(null.counters().tx_packets.get(), 2 * 3 * 64 * THREADS as u64);
    null.close(&mut bench.bufs);
}

fn what_cannot_be_is_said(eal: &Arc<Eal>, bench: &mut Bench) {
    let refused = |config: DpdkConfig| DpdkPort::open(eal, &config).map(drop).expect_err("DPDK refuses it");
    let error = refused(DpdkConfig::new("net_nonesuch0"));
    assert!(error.to_string().contains("net_nonesuch0: DPDK cannot find a driver for it"), "{error}");
    assert!(matches!(refused(DpdkConfig::new("")), DpdkError::Devargs(_)));
    let error = refused(DpdkConfig { queues: 60_000, ..DpdkConfig::new("net_null8") });
    assert!(matches!(error, DpdkError::Queues { queues: 60_000, .. }), "{error}");
    let mut null = DpdkPort::open(eal, &DpdkConfig::new("net_null9")).unwrap().pop().unwrap();
    assert!(matches!(refused(DpdkConfig::new("net_null9,size=64")), DpdkError::InUse(_)));
    // The open port still works; once closed, it can be opened again.
    let mut batch = Batch::new();
    assert_eq!(null.rx_burst(&mut bench.bufs, &mut batch), 64);
    bench.bufs.free(&mut batch);
    null.close(&mut bench.bufs);
    let mut again = DpdkPort::open(eal, &DpdkConfig::new("net_null9")).unwrap().pop().unwrap();
    again.close(&mut bench.bufs);
    // A PCI address without a device.
    let error = refused(DpdkConfig::new("0000:ff:1f.7"));
    assert!(error.to_string().contains("0000:ff:1f.7"), "{error}");
}
