//! Benchmark of forwarding between veth interfaces: the kernel, Bywash and a peer, in alternating rounds.

use super::lab::{FLOWS, FOR_RATE, Lab, Rate, Traffic};
use crate::args::Series;
use anyhow::Context as _;
use bywash_config::{Transmit, count};
use clap::Args;
use clap::ValueEnum as _;
use serde::Serialize;
use std::time::Duration;

/// `bywash bench veth`
#[derive(Debug, Args)]
pub struct VethArgs {
    #[command(flatten)]
    pub series: Series,
    /// Measure only bywash, not the kernel
    #[arg(long)]
    pub ours_only: bool,
    /// Transmit method of bywash's ports
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Also measure this command: it must forward between r0 and r1, and runs in the router's network namespace
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const MIB: f64 = (1 << 20) as f64;

#[derive(Serialize)]
struct Figures {
    /// Medians of the rounds.
    mpps: f64,
    offered_mpps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_mpps: Option<f64>,
    /// Ratio of Bywash's rate to the kernel's.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_mpps: Option<f64>,
    /// Ratio of Bywash's rate to the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_ratio: Option<f64>,
    size: usize,
    flows: u32,
    seconds: u64,
    /// CPUs of the generator and of the forwarder.
    cpus: [usize; 2],
    /// Cycles per packet of Bywash's worker by stage; tx includes the kernel's transmit path.
    stages: Vec<(String, f64)>,
    /// Milliseconds from the start of `bywash run` to its first forwarded packet.
    start_ms: f64,
    /// Resident memory of `bywash run` after a measurement, in MiB.
    resident_mib: f64,
    /// Size of the whole arena of packet buffers, in MiB.
    arena_mib: f64,
    rounds: Vec<Round>,
}

#[derive(Default, Serialize)]
struct Round {
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<Rate>,
    bywash: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<Rate>,
}

/// Runs `bywash bench veth`.
pub fn run(args: &VethArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    let lab = Lab::new(Traffic::one_route(args.series.size))?;
    let time = Duration::from_secs(args.series.seconds);
    let start_ms = lab.start_up()?.as_secs_f64() * 1e3;
    let (mut stages, mut resident, mut arena) = (vec![], 0, 0);
    let transmit = args.transmit.to_possible_value().context("the transmit method has no name")?;
    let options = [FOR_RATE, &["--transmit", transmit.get_name()]].concat();
    let mut rounds = vec![];
    for _ in 0..args.series.rounds {
        let mut round = Round::default();
        if !args.ours_only {
            round.kernel = Some(lab.kernel(time)?);
        }
        let bywash = lab.bywash(&options)?;
        round.bywash = Some(lab.measure(time)?);
        stages = bywash.stages()?;
        (resident, arena) = bywash.memory()?;
        bywash.stop()?;
        if let Some(command) = &args.peer {
            round.peer = Some(lab.peer(command, time)?);
        }
        rounds.push(round);
    }
    let ours = median(&rounds, |r| r.bywash).context("no round")?;
    let kernel_mpps = median(&rounds, |r| r.kernel).map(|r| r.mpps);
    let peer_mpps = median(&rounds, |r| r.peer).map(|r| r.mpps);
    let figures = Figures {
        mpps: ours.mpps,
        offered_mpps: ours.offered_mpps,
        kernel_mpps,
        ratio: kernel_mpps.map(|kernel| ours.mpps / kernel),
        peer_mpps,
        peer_ratio: peer_mpps.map(|peer| ours.mpps / peer),
        size: args.series.size,
        flows: FLOWS,
        seconds: args.series.seconds,
        cpus: lab.cpus,
        stages,
        start_ms,
        resident_mib: resident as f64 / MIB,
        arena_mib: arena as f64 / MIB,
        rounds,
    };
    super::report(args.json, &figures, print)
}

/// Returns the round with the median rate.
fn median(rounds: &[Round], of: impl Fn(&Round) -> Option<Rate>) -> Option<Rate> {
    super::middle(rounds.iter().filter_map(of), |rate| rate.mpps)
}

fn print(f: &Figures) {
    let (flows, rounds) = (count(f.flows, "flow"), count(f.rounds.len(), "round"));
    println!("{} B, {flows}, medians of {rounds} of {} s", f.size, f.seconds);
    if let (Some(kernel), Some(ratio)) = (f.kernel_mpps, f.ratio) {
        println!("  kernel  {kernel:6.3} Mpps");
        println!("  bywash  {:6.3} Mpps, {ratio:.2} x the kernel ({:.2} Mpps offered)", f.mpps, f.offered_mpps);
    } else {
        println!("  bywash  {:6.3} Mpps ({:.2} Mpps offered)", f.mpps, f.offered_mpps);
    }
    if let (Some(peer), Some(ratio)) = (f.peer_mpps, f.peer_ratio) {
        println!("  peer    {peer:6.3} Mpps: bywash has {ratio:.2} x its rate");
    }
    let stages: Vec<String> = f.stages.iter().map(|(name, cycles)| format!("{name} {cycles:.0}")).collect();
    println!("cycles per packet of bywash's worker: {}", stages.join(", "));
    println!(
        "first packet after {:.0} ms; {:.0} MiB resident, arena {:.0} MiB",
        f.start_ms, f.resident_mib, f.arena_mib
    );
}
