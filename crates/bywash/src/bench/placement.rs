//! What each level makes of the same frames: the kernel, the barest XDP redirect, us at each level, and peers, in
//! alternating rounds.
//!
//! Everything but `user`, `spread` and the peers runs on one CPU, the generator's: its system call hands each frame to the
//! driver, and the driver's program, or the kernel's forwarding, and b's receiving all happen in it. What the
//! generator costs is in every figure. b's driver drops what arrives, unless its stack is to have it.

use super::lab::{FOR_RATE, Lab, Rate, Traffic};
use crate::cli::bench::{PlacementArgs, Sink};
use anyhow::{Context as _, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Serialize)]
struct Figures {
    /// The first level's, of the medians below.
    mpps: f64,
    /// Medians of the rounds, in millions of frames a second that arrived, by who forwarded them.
    median_mpps: BTreeMap<String, f64>,
    /// The first level's rate to each of the others'.
    ratio: BTreeMap<String, f64>,
    size: usize,
    destinations: usize,
    routes: usize,
    seconds: u64,
    /// CPUs of the generator and of the workers.
    cpus: [usize; 2],
    rounds: Vec<BTreeMap<String, Rate>>,
}

/// `bywash bench placement`.
pub fn run(args: &PlacementArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    let peers: Vec<(&str, &str)> = args.peer.iter().map(|p| peer(p)).collect::<anyhow::Result<_>>()?;
    let lab = Lab::new(Traffic { size: args.size, destinations: args.destinations, routes: args.routes })?;
    let lab = match args.sink {
        Sink::Driver => lab.with_driver_sink()?,
        Sink::Stack => lab.with_stack_sink()?,
    };
    let time = Duration::from_secs(args.seconds);
    let mut rounds = vec![];
    for _ in 0..args.rounds {
        let mut round = BTreeMap::new();
        if !args.ours_only {
            round.insert("kernel".to_owned(), lab.kernel(time)?);
            round.insert("redirect".to_owned(), lab.redirect(time)?);
        }
        for level in &args.level {
            let name = level.name();
            let bywash = lab.bywash(&[FOR_RATE, &["--level", name]].concat())?;
            round.insert(name.to_owned(), lab.measure(time).with_context(|| format!("at level {name}"))?);
            bywash.stop()?;
        }
        if let Some(cpus) = &args.spread {
            let cpus = cpus.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let bywash = lab.bywash(&[FOR_RATE, &["--level", "driver", "--spread", &cpus]].concat())?;
            round.insert("spread".to_owned(), lab.measure(time).context("spread over CPUs")?);
            bywash.stop()?;
        }
        for (name, command) in &peers {
            round.insert((*name).to_owned(), lab.peer(command, time)?);
        }
        rounds.push(round);
    }
    let figures = figures(args, &lab, rounds);
    super::report(args.json, &figures, print)
}

/// NAME=COMMAND.
fn peer(text: &str) -> anyhow::Result<(&str, &str)> {
    match text.split_once('=') {
        Some((name, command)) if !name.is_empty() && !command.is_empty() => Ok((name, command)),
        _ => bail!("--peer {text}: expected NAME=COMMAND"),
    }
}

fn figures(args: &PlacementArgs, lab: &Lab, rounds: Vec<BTreeMap<String, Rate>>) -> Figures {
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, rate) in rounds.iter().flatten() {
        samples.entry(name.clone()).or_default().push(rate.mpps);
    }
    let median = |(name, rates): (String, Vec<f64>)| Some((name, super::median(rates)?));
    let median_mpps: BTreeMap<String, f64> = samples.into_iter().filter_map(median).collect();
    let first = args.level[0].name();
    let mpps = median_mpps[first];
    let others = median_mpps.iter().filter(|(name, _)| *name != first);
    Figures {
        mpps,
        ratio: others.map(|(name, other)| (name.clone(), mpps / other)).collect(),
        median_mpps,
        size: args.size,
        destinations: args.destinations,
        routes: args.routes,
        seconds: args.seconds,
        cpus: lab.cpus,
        rounds,
    }
}

fn print(f: &Figures) {
    println!(
        "{} B, {} destinations, {} routes, medians of {} rounds of {} s",
        f.size,
        f.destinations,
        f.routes,
        f.rounds.len(),
        f.seconds
    );
    for (name, mpps) in &f.median_mpps {
        let ratio = f.ratio.get(name).map(|r| format!(", bywash has {r:.2} x its rate")).unwrap_or_default();
        println!("  {name:10} {mpps:6.3} Mpps{ratio}");
    }
}
