//! Cost of stamping frames in the generator: streams with sequence number, timestamp and valid checksum compared with
//! bare frames, both generated in the kernel, sent to a veth whose peer drops them immediately.

use crate::args::{SECONDS, flows, size};
use anyhow::Context as _;
use bywash_config::count;
use bywash_lab::{Host, Topology, counters};
use bywash_port::af_xdp::{Bare, LiveGen, LiveOrder, LiveStream};
use bywash_tester::{Addresses, Sizes, Stream, Templates};
use clap::Args;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// `bywash bench generator`
#[derive(Debug, Args)]
pub struct GeneratorArgs {
    /// Number of flows in the traffic
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Number of rounds, alternating between the two
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Frames that the kernel generates at once.
const BATCH: u32 = 64;
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);

#[derive(Serialize)]
struct Figures {
    /// Medians of the rounds, in millions of arrived frames per second.
    bare_mpps: f64,
    stamped_mpps: f64,
    /// Ratio of the stamped rate to the bare rate.
    ratio: f64,
    size: usize,
    flows: usize,
    seconds: u64,
    rounds: Vec<[f64; 2]>,
}

pub fn run(args: &GeneratorArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    let topology = Topology::router()?;
    let (a, time) = (topology.a(), Duration::from_secs(args.seconds));
    let _sink = topology.r().enter(|| Bare::drop(&a.router_interface))??;
    let stream = Stream {
        dst: Addresses { first: FIRST.into(), count: args.flows as u64 },
        flows: args.flows,
        sizes: Sizes(vec![args.size]),
        ..Stream::default()
    };
    let templates = stream.templates()?;
    let mut rounds = vec![];
    for _ in 0..args.rounds {
        rounds.push([bare(&topology, a, &templates, time)?, stamped(&topology, a, &templates, time)?]);
    }
    let median = |which: usize| super::median(rounds.iter().map(|round: &[f64; 2]| round[which])).context("no round");
    let (bare_mpps, stamped_mpps) = (median(0)?, median(1)?);
    let figures = Figures {
        bare_mpps,
        stamped_mpps,
        ratio: stamped_mpps / bare_mpps,
        size: args.size,
        flows: args.flows,
        seconds: args.seconds,
        rounds,
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!(
            "{} B, {}: bare {:.3} Mpps, stamped {:.3} Mpps, {:.3} x",
            figures.size,
            count(figures.flows, "flow"),
            figures.bare_mpps,
            figures.stamped_mpps,
            figures.ratio
        );
    }
    Ok(())
}

/// Returns the rate of frames that arrive while `send` runs, in millions per second.
fn arrive(topology: &Topology, a: &Host, send: impl FnOnce() -> anyhow::Result<()> + Send) -> anyhow::Result<f64> {
    let arrived = || counters(topology.r(), &a.router_interface).map(|c| c.rx_packets);
    let (before, start) = (arrived()?, Instant::now());
    a.ns.enter(send)??;
    let elapsed = start.elapsed();
    Ok((arrived()? - before) as f64 / elapsed.as_secs_f64() / 1e6)
}

fn bare(topology: &Topology, a: &Host, templates: &Templates, time: Duration) -> anyhow::Result<f64> {
    let first = templates.frames().first().context("no frames")?;
    let mut frame = first.head[..first.head.len().min(first.len as usize)].to_vec();
    frame.resize(first.len as usize, 0);
    let flows = templates.frames().len() as u32;
    let to: Vec<IpAddr> = (0..flows).map(|i| Ipv4Addr::from(u32::from(FIRST) + i).into()).collect();
    let mut generator = a.ns.enter(|| LiveGen::new(&a.interface, &frame, &to))??;
    arrive(topology, a, move || Ok(generator.run_for(time, BATCH).map(drop)?))
}

fn stamped(topology: &Topology, a: &Host, templates: &Templates, time: Duration) -> anyhow::Result<f64> {
    let (heads, at) = (templates.heads(), templates.stamp_at());
    let mut generator = a.ns.enter(|| LiveStream::new(&a.interface, &heads, at))??;
    let order = LiveOrder { stream: 1, pps: None, catch_up: Duration::ZERO, frames: u64::MAX, time };
    arrive(topology, a, move || Ok(generator.send(&order, &AtomicBool::new(false)).map(drop)?))
}
