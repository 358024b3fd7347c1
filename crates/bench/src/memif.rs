//! Benchmark of memif: one thread sends and one receives, each with its own buffers as in separate processes; or one of
//! the two, with another program as the peer.

use crate::args::{SECONDS, size};
use anyhow::{Context as _, ensure};
use bywash_frame::{Arena, ArenaConfig, BATCH, Batch, Buffers, Line, PoolConfig, PoolSet};
use bywash_port::memif::{Config, MemifPort, Role};
use bywash_port::{Port as _, PortCounters, PortState};
use bywash_sync::clock;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// `bywash bench memif`
#[derive(Debug, Args)]
pub struct MemifArgs {
    /// Our side of the memif; without --socket, the other thread is the other side
    #[arg(long, value_name = "server|client", default_value = "client", hide_possible_values = true)]
    pub role: Role,
    /// Direction of the packets, as seen from our side
    #[arg(long = "way", value_name = "send|receive", default_value = "send", hide_possible_values = true)]
    pub direction: MemifDirection,
    /// Control socket of a memif shared with another program  [default: both sides are in this process]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Packet size in bytes, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Size of each ring in slots, if our side is the client
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub ring: usize,
    /// CPU to run on  [default: the first CPU, and the second for the other thread]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Direction of the packets in `bywash bench memif`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemifDirection {
    /// Our side sends
    Send,
    /// Our side receives
    Receive,
}

/// Timeout for the connection and the first packets.
const PATIENCE: Duration = Duration::from_secs(20);
/// Warm-up time with traffic before the measurement.
const WARM: Duration = Duration::from_millis(300);

#[derive(Serialize)]
struct Figures {
    mpps: f64,
    cycles_per_packet: f64,
    packets: u64,
    size: usize,
    ring: usize,
    seconds: f64,
    /// Role of the sender; `None` if it is another program.
    sender: Option<&'static str>,
    receiver: Option<&'static str>,
    threads_on_cpus: Vec<usize>,
}

/// Running side of the memif.
struct Side {
    counters: Arc<PortCounters>,
    up: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Starts a thread that sends or receives at the maximum rate until it is stopped.
fn start(
    config: Config,
    (sends, cpu): (bool, Option<usize>),
    args: &MemifArgs,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Side> {
    let cells = (4 * args.ring).max(4096);
    let arena = Arena::new(ArenaConfig { cells, ..ArenaConfig::default() })?;
    let pools = PoolSet::new(arena, &[PoolConfig::stack("memif", cells)])?;
    let mut port = MemifPort::open(&config, pools.arena())?;
    let counters = port.counters();
    let up = Arc::new(AtomicBool::new(false));
    let (found, stop, size) = (up.clone(), stop.clone(), args.size);
    let work = move || -> anyhow::Result<()> {
        super::pin(cpu)?;
        let mut bufs = Buffers::attach(&pools, 0);
        let arena = bufs.arena().clone();
        let mut batch = Batch::new();
        // Like testpmd: headers are written, the payload is whatever the buffer held.
        let lines = [Line(std::array::from_fn(|i| i as u8)); BATCH];
        let lens = [size.min(64) as u32; BATCH];
        while !stop.load(Ordering::Relaxed) {
            if sends {
                if batch.is_empty() {
                    let n = bufs.alloc(&mut batch, BATCH);
                    arena.write_line_each(batch.as_mut_slice(), &lines[..n], &lens[..n]);
                    if size > 64 {
                        batch.as_mut_slice().iter_mut().for_each(|frame| {
                            arena.resize(frame, size);
                        });
                    }
                }
                // Pause as a worker does in an idle iteration: constant polling of the ring delays the peer's writes.
                if port.tx_burst(&mut bufs, &mut batch) == 0 {
                    std::hint::spin_loop();
                }
            } else {
                if port.rx_burst(&mut bufs, &mut batch) == 0 {
                    std::hint::spin_loop();
                }
                bufs.free(&mut batch);
            }
            port.housekeep(&mut bufs);
            if !found.load(Ordering::Relaxed) {
                found.store(port.state() == PortState::Up, Ordering::Release);
            }
        }
        bufs.free(&mut batch);
        port.close(&mut bufs);
        drop(bufs);
        super::all_back(&pools)
    };
    let thread = std::thread::Builder::new().name("bywash-bench".into()).spawn(work)?;
    Ok(Side { counters, up, thread })
}

/// Runs `bywash bench memif`.
pub fn run(args: &MemifArgs) -> anyhow::Result<()> {
    ensure!(args.size <= 1536, "--size {}: at most 1536 bytes fit a buffer", args.size);
    let placement = bywash_engine::cpus::Placement::of(2)?;
    let own = PathBuf::from(format!("@bywash-bench-{}", std::process::id()));
    let socket = args.socket.clone().unwrap_or(own);
    let config =
        |role: Role| Config { socket: socket.clone(), role, ring: args.ring, sealed: false, ..Config::default() };
    let other = |role| if role == Role::Server { Role::Client } else { Role::Server };
    let name = |role| if role == Role::Server { "server" } else { "client" };
    let stop = Arc::new(AtomicBool::new(false));
    let sends = args.direction == MemifDirection::Send;
    let cpu = |thread| args.cpu.filter(|_| thread == 0).unwrap_or(placement.cpu(thread));
    let mut sides = vec![start(config(args.role), (sends, Some(cpu(0))), args, &stop)?];
    if args.socket.is_none() {
        sides.push(start(config(other(args.role)), (!sends, Some(cpu(1))), args, &stop)?);
    }
    let measured = (|| {
        let start = Instant::now();
        while !sides.iter().all(|side| side.up.load(Ordering::Acquire)) {
            ensure!(start.elapsed() < PATIENCE, "no peer at {} within {PATIENCE:?}", socket.display());
            ensure!(!sides.iter().any(|side| side.thread.is_finished()), "one side ended early");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Count arrived packets if the receiver is ours. Otherwise count sent ones: more cannot be sent than the peer
        // takes.
        let receiver = sides.iter().zip([!sends, sends]).find(|(_, receives)| *receives);
        let packets = || match receiver {
            Some((side, _)) => side.counters.rx_packets.get(),
            None => sides[0].counters.tx_packets.get(),
        };
        // A connected peer may not have started yet.
        while packets() < 8 * args.ring as u64 {
            ensure!(start.elapsed() < PATIENCE, "connected, but no packet was transferred within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(WARM);
        let (t0, n0) = (clock::tsc(), packets());
        std::thread::sleep(Duration::from_secs(args.seconds));
        Ok((clock::tsc() - t0, packets() - n0))
    })();
    stop.store(true, Ordering::Relaxed);
    let used = sides.len();
    for side in sides {
        side.thread.join().map_err(|_| anyhow::anyhow!("a side panicked"))?.context("a side ended")?;
    }
    let (ticks, packets): (u64, u64) = measured?;
    let seconds = ticks as f64 / clock::tsc_hz() as f64;
    let role_of = |sending: bool| match (sending == sends, used) {
        (true, _) => Some(name(args.role)),
        (false, 2) => Some(name(other(args.role))),
        _ => None,
    };
    let figures = Figures {
        mpps: packets as f64 / seconds / 1e6,
        cycles_per_packet: ticks as f64 / packets as f64,
        packets,
        size: args.size,
        ring: args.ring,
        seconds,
        sender: role_of(true),
        receiver: role_of(false),
        threads_on_cpus: (0..used).map(cpu).collect(),
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        let side = |role: Option<&'static str>| role.unwrap_or("peer");
        println!(
            "{:.2} Mpps of {} B from {} to {}, {:.1} cycles/packet, ring {}",
            figures.mpps,
            figures.size,
            side(figures.sender),
            side(figures.receiver),
            figures.cycles_per_packet,
            figures.ring
        );
    }
    Ok(())
}
