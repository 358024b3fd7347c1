//! Benchmark of longest-prefix match alone: cycles per lookup, memory, and the time to build and update the table.

use crate::args::{Family, routes};
use bywash_config::count;
use bywash_fib::bench::{LookupFigures, Spread, Traffic, bench_lookup};
use clap::{Args, ValueEnum};

/// Addresses to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LookupTraffic {
    /// Uniformly random addresses: most match no route and miss the CPU caches
    Uniform,
    /// Random addresses covered by the routes
    Routed,
}

/// `bywash bench lookup`
#[derive(Debug, Args)]
pub struct LookupArgs {
    /// IP version
    #[arg(long, value_name = "4|6", default_value = "4", hide_possible_values = true)]
    pub family: Family,
    /// Number of routes in the table  [default: 500000 for IPv4, 200000 for IPv6]
    #[arg(long, value_name = "N", value_parser = routes)]
    pub routes: Option<usize>,
    /// Addresses to look up
    #[arg(long, value_name = "KIND", default_value = "uniform")]
    pub traffic: LookupTraffic,
    /// CPU to run on  [default: chosen by the scheduler]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs `bywash bench lookup`.
pub fn run(args: &LookupArgs) -> anyhow::Result<()> {
    super::pin(args.cpu)?;
    let family = match args.family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    let routes = args.routes.unwrap_or(if family == 4 { 500_000 } else { 200_000 });
    let traffic = match args.traffic {
        LookupTraffic::Uniform => Traffic::Uniform,
        LookupTraffic::Routed => Traffic::Routes,
    };
    let figures = bench_lookup(family, routes, Spread::Global, traffic, None)?;
    super::report(args.json, &figures, print)
}

fn print(f: &LookupFigures) {
    println!("{:.1} cycles/lookup, batches of {}", f.cycles_per_lookup, f.batch);
    println!(
        "{} in {:.2} MiB, built in {:.0} ms",
        count(f.routes, &format!("IPv{} route", f.family)),
        f.bytes as f64 / 1048576.0,
        f.build_ms
    );
    println!("{:.0} changes/s; {:.0} % of the addresses found a route", f.update_per_s, f.hit_percent);
}
